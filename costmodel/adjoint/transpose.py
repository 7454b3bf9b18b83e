"""Which instances read a given entry? References turned round, bounds and indices with them.

What ran over j in 1..i, reading entry j, is for that entry a sum over i in j..l: each axis of the
array is solved for an index of the reader, what is left is summed over, and the conditions that
speak of the entry alone say where there is a reader at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from costmodel.errors import Unsupported
from costmodel.language.equations import System
from costmodel.language.indices import Index
from costmodel.language.nodes import (
    Array,
    Bracket,
    Constant,
    Div,
    Flat,
    Gather,
    Mul,
    Node,
    Position,
    Reduce,
    Ref,
    substitute,
)
from costmodel.program.chosen_sizes import is_extent
from costmodel.symbolic.constraints import (
    ONE,
    Constraints,
    bounds,
    implied,
    infeasible,
    irredundant,
    is_plain,
    projected,
    stride,
)
from costmodel.symbolic.polynomial import Poly, atom_name, by_text, call, index_atom

Layout = tuple[Poly | None, ...]
"""For each axis the extent of the inner index of a flattening, or None."""


Scale = tuple[type[Mul | Div], Constant]
"""How a value is scaled: by which operation, and with what."""


@dataclass(frozen=True)
class Cotangent:
    """What one reference hands to the gradient of the array that it reads.

    `axes` are the variables of the entry, two for a flattened axis; `where` are the conditions on
    them; `over` are the indices of the reader that are summed over.
    """

    array: Array
    layout: Layout
    axes: tuple[str, ...]
    where: Constraints
    value: Node
    over: tuple[Index, ...]
    hints: tuple[str | None, ...]
    """What the reader calls each axis, where it is an index of its own."""
    scale: Scale | None = None
    """What the sum is scaled by."""

    @property
    def numbered(self) -> bool:
        """Whether positions that an array holds say to which entry it is handed."""
        return isinstance(self.value, Bracket) and self.value.numbered

    @property
    def expression(self) -> Node:
        """The value summed over the readers of an entry, then scaled."""
        summed = self.over or self.numbered
        value = Reduce("sum", self.value, self.over) if summed else self.value
        if self.scale is None:
            return value
        operation, by = self.scale
        return operation(value, by)

    @property
    def positions(self) -> tuple[Position, ...]:
        """The entry, in the variables of its axes."""
        found: list[Position] = []
        waiting = list(self.axes)
        for extent in self.layout:
            first = Poly.atom(waiting.pop(0))
            inner = None if extent is None else Poly.atom(waiting.pop(0))
            if extent is None or inner is None:
                found.append(first)
            else:
                found.append(Flat(first, inner, extent))
        return tuple(found)


def names_of(layout: Layout) -> tuple[str, ...]:
    """The variables of an entry's axes: `@0` for a plain axis, `@0o` and `@0i` for a flat one."""
    found: list[str] = []
    for axis, extent in enumerate(layout):
        found += (
            [index_atom(axis)]
            if extent is None
            else [index_atom(f"{axis}o"), index_atom(f"{axis}i")]
        )
    return tuple(found)


def transposed(
    ref: Ref, indices: Sequence[Index], around: Constraints, value: Node
) -> Cotangent | None:
    """What a reference under some indices hands to each entry that it reads, or None if it reads
    none. Where sizes leave no reader, the sum over the readers has no term.

    Args:
        indices: those around the reference, outer ones first.
        around: the constraints on them.
        value: the gradient of the entry read, in those indices.

    Raises:
        Unsupported: an index that cannot be solved for.
    """
    if infeasible(around):
        return None
    layout, wanted = _targets(ref)
    names = names_of(layout)
    solved: dict[str, Poly] = {}
    left = [index.atom for index in indices]
    where = set(around)
    for name, target in zip(names, wanted, strict=True):
        here = target.substitute(solved)
        entry = Poly.atom(name)
        chosen = _solvable(here, left)
        if chosen is None:
            if set(left) & here.letters:
                raise Unsupported(
                    f"the gradient of {ref.array.name}: no index can be solved for in '{target}'"
                )
            where |= {c.substitute(solved) for c in (entry - here, here - entry)}
            continue
        sign = here.coefficient(chosen)
        of_entry = (entry - (here - sign * Poly.atom(chosen))) * sign
        solved = {k: v.substitute({chosen: of_entry}) for k, v in solved.items()}
        solved[chosen] = of_entry
        left.remove(chosen)
    whole = entries(ref.array, layout)
    pinned = _pinned(where, solved, indices, whole)
    left = [i.atom for i in indices if i.atom in {*left, *pinned}]
    where |= {c for v in pinned for c in (Poly.atom(v) - solved[v], solved[v] - Poly.atom(v))}
    gone = {v: entry for v, entry in solved.items() if v not in pinned}
    known = frozenset(c.substitute(gone) for c in where) - {Poly()}
    if infeasible(known | whole):
        return None
    over, alone = ranges(known | whole, left)
    empty = {c for c in alone if not c.variables and _leaves_no_term(known | whole, c)}
    where_alone = irredundant(alone - empty) if over else irredundant(alone)
    where_alone = frozenset(c for c in where_alone if not implied(whole, c))
    hints = tuple(_name(target, indices) for target in wanted)
    return Cotangent(ref.array, layout, names, where_alone, substitute(value, solved), over, hints)


def _pinned(
    where: Iterable[Poly], solved: Mapping[str, Poly], indices: Sequence[Index], whole: Constraints
) -> frozenset[str]:
    """The indices that are solved for and yet stay, to run over the one value that they have.

    Where e is k, the bound `e <= l - (p-1)*C` says of p that `p*C <= l + C - k`, which no range of
    p says in the language; a range of e from k to the least of k and `l - (p-1)*C` does, and has no
    term where it does not hold.
    """
    order = [index.atom for index in indices]
    moved = {condition: condition.substitute(solved) for condition in where}
    known, found = whole.union(moved.values()), set()
    for condition, bound in moved.items():
        waiting = [v for v in order if v in bound.letters]
        held = [v for v in order if v in solved and v in condition.letters]
        if not (waiting and held) or is_plain([bound], waiting[-1]):
            continue
        if is_plain([condition], held[-1]) and not implied(known - {bound}, bound):
            found.add(held[-1])
    return frozenset(found)


def _leaves_no_term(known: Constraints, guard: Poly) -> bool:
    """Whether ranges have no term anyway where a condition in sizes does not hold."""
    return infeasible(known - {guard} | {-guard - 1})


def _name(target: Poly, indices: Sequence[Index]) -> str | None:
    return next((index.name for index in indices if index.as_poly() == target), None)


def _targets(ref: Ref) -> tuple[Layout, list[Poly]]:
    """The layout of a reference, and the position on each of its axes."""
    layout: list[Poly | None] = []
    wanted: list[Poly] = []
    for position in ref.positions:
        assert not isinstance(position, Gather)
        if isinstance(position, Flat):
            layout.append(position.extent)
            wanted += [position.outer, position.inner]
        else:
            layout.append(None)
            wanted.append(position)
    return tuple(layout), wanted


def _solvable(position: Poly, left: Sequence[str]) -> str | None:
    """The innermost index that a position holds with a factor of 1 or -1."""
    for atom in reversed(left):
        if atom in position.letters and position.coefficient(atom).constant() in (1, -1):
            return atom
    return None


def entries(array: Array, layout: Layout, system: System | None = None) -> Constraints:
    """All entries of an array, in the variables of a layout's axes; a system says which sizes
    divide others."""
    found: set[Poly] = set()
    for axis, (size, extent) in enumerate(zip(array.shape, layout, strict=True)):
        if extent is None:
            entry = Poly.atom(index_atom(axis))
            found |= {entry - 1, size - entry}
        else:
            outer, inner = Poly.atom(index_atom(f"{axis}o")), Poly.atom(index_atom(f"{axis}i"))
            found |= {outer - 1, inner - 1, extent - inner}
            number = size / extent
            even = all(power > 0 for monomial in number.terms for _, power in monomial)
            even = even or (system is not None and is_extent(system.mixer, system.form, number))
            found.add(number - outer if even else size - (outer - 1) * extent - inner)
    return frozenset(found)


def ranges(known: Constraints, left: Sequence[str]) -> tuple[tuple[Index, ...], Constraints]:
    """Indices for the variables in `left`, each bounded by the ones before it, and the conditions
    that are left on the `given` variables.

    A bound with a stride that the ranges of inner indices say is left to them: where it does not
    hold, one of these has no term.

    Raises:
        Unsupported: a bound with a stride that does not come out even.
    """
    found: list[Index] = []
    waiting, said, given = list(left), known, known
    while waiting:
        variable = waiting.pop()
        own = frozenset(c for c in known if variable in c.letters)
        inside = set()
        for bound in by_text(own):
            if not is_plain([bound], variable) and implied(said - {bound}, bound):
                inside.add(bound)
                said = said - {bound}
        if inside:
            inside |= {c for c in own - given if stride(c, variable)[0] != ONE}
        lower, upper, _ = bounds(_tight(own - inside, known - inside), variable)
        if any(scale != ONE for scale, _ in lower + upper) or not (lower and upper):
            raise Unsupported(f"index {atom_name(variable)} is bounded with a stride")
        ends = ([end for _, end in side] for side in (lower, upper))
        low, high = (tuple(by_text(dict.fromkeys(side))) for side in ends)
        found.insert(0, Index(atom_name(variable), low, high))
        known = projected(known, [variable])
    return tuple(found), known


def guarded_ranges(known: Constraints, left: Sequence[str], what: str) -> tuple[Index, ...]:
    """Indices for the variables in `left`, in ranges that are empty for the sizes at which `known`
    cannot hold.

    Raises:
        Unsupported: there is no index whose range could be empty; see `ranges`, too.
    """
    indices, _ = ranges(known, left)
    guards = [c for c in known if not c.variables and not implied(frozenset(), c)]
    if not guards:
        return indices
    if not indices:
        raise Unsupported(f"{what} exists for some sizes only")
    first, *others = indices
    low, upper = first.lower[0], first.upper
    for guard in by_text(guards):
        holds = call("Min", 1, call("Max", 0, guard + 1))
        upper += (low - 1 + (first.upper[0] - low + 1) * holds,)
    return Index(first.name, first.lower, upper), *others


def _tight(own: Constraints, known: Constraints) -> Constraints:
    """The bounds on a variable that the other constraints do not imply."""
    kept = known
    for constraint in sorted(by_text(own), key=lambda c: -len(c.letters)):
        if implied(kept - {constraint}, constraint):
            kept = kept - {constraint}
    return own & kept
