"""Transposed references: for each entry of an array, the instances (points) that read the entry.

Where row i sums over j in 1..i and reads entry j, the gradient of entry j is a sum over i in j..l.
Each axis of the array is solved for the innermost index with factor 1 or -1; the others are summed;
constraints on the entry alone are the condition for any reader to exist. An index is known by its
atom (`@i`), an entry by one variable for each axis (`names_of`); constraints are polynomials >= 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

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
    require_plain,
    stride,
)
from costmodel.symbolic.polynomial import Poly, atom_name, by_text, call, index_atom

Layout = tuple[Poly | None, ...]
"""For each axis: the extent of the inner index if the axis flattens two indices, else None."""


Scale = tuple[type[Mul | Div], Constant]
"""(operation, right operand): a product with a constant, or a quotient by a constant."""


@dataclass(frozen=True)
class Cotangent:
    """The contribution of one reference to the gradient of the array that it reads."""

    array: Array
    layout: Layout
    axes: tuple[str, ...]
    """The variables of the entry, as `names_of` the layout: two for a flattened axis."""
    where: Constraints
    """The conditions on these variables and on sizes under which the entry has a reader."""
    value: Node
    """The gradient that one instance of the reader contributes, in `axes` and `over`."""
    over: tuple[Index, ...]
    """The indices of the reader that are summed over."""
    hints: tuple[str | None, ...]
    """The reader's index name for each axis, if the position is a single index."""
    scale: Scale | None = None
    """The scale that is applied to the sum; None for no scale."""

    @property
    def numbered(self) -> bool:
        """Whether a stored index selects the entry that receives the value (a scatter)."""
        return isinstance(self.value, Bracket) and self.value.numbered

    @property
    def expression(self) -> Node:
        """The expression of what an entry's readers contribute to its gradient: the value summed
        over the readers, then scaled."""
        summed = self.over or self.numbered
        value = Reduce("sum", self.value, self.over) if summed else self.value
        if self.scale is None:
            return value
        operation, by = self.scale
        return operation(value, by)

    @property
    def positions(self) -> tuple[Position, ...]:
        """The positions of the entry on the axes of its array, one for each axis: a variable of
        `axes` or, on a flattened axis, (outer-1)*h + inner with two of them."""
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
    """The cotangent of a reference: its contribution to the gradient of each entry that it reads,
    as a sum over the instances that read the entry: for x[i + j], entry e gets the sum over i of
    `value` with e - i for j. None if the reference reads no entry at any size. At sizes at which an
    entry has no reader, the sum is empty.

    Args:
        indices: the indices around the reference, outermost first.
        around: the constraints on these indices.
        value: the gradient of the referenced entry, in these indices.

    Raises:
        Unsupported: a position that cannot be solved for an index; as `ranges`.
    """
    if infeasible(around):
        return None
    layout, wanted = _axis_positions(ref)
    names = names_of(layout)
    solved, left, fixed = _solved(ref.array.name, dict(zip(names, wanted, strict=True)), indices)
    where = set(around | fixed)
    whole = entries(ref.array, layout)  # what all entries of the array satisfy
    # solved indices that stay, each with a single value, as a bound cannot be stated without them
    pinned = _pinned(where, solved, indices, whole)
    left = [i.atom for i in indices if i.atom in {*left, *pinned}]
    where |= {c for v in pinned for c in (Poly.atom(v) - solved[v], solved[v] - Poly.atom(v))}
    gone = {v: entry for v, entry in solved.items() if v not in pinned}
    known = frozenset(c.substitute(gone) for c in where) - {Poly()}
    if infeasible(known | whole):
        return None
    over, alone = ranges(known | whole, left)
    empty = {c for c in alone if not c.variables and _leaves_no_term(known | whole, c)}
    # a sum that is empty, and so 0, at the sizes at which a condition fails needs no condition
    where_alone = irredundant(alone - empty) if over else irredundant(alone)
    where_alone = frozenset(c for c in where_alone if not implied(whole, c))
    hints = tuple(_index_name(target, indices) for target in wanted)
    return Cotangent(ref.array, layout, names, where_alone, substitute(value, solved), over, hints)


def _pinned(
    where: Iterable[Poly], solved: Mapping[str, Poly], indices: Sequence[Index], whole: Constraints
) -> frozenset[str]:
    """The solved indices (`solved`: index -> its value in the entry's axes and in unsolved indices)
    that are kept as summation indices with one value. `where`: the conditions on all `indices`,
    outermost first; `whole`: those that every entry of the array satisfies.

    If x[e] is read by the instances (p, e), entry k has e = k, and the bound `e <= l - (p-1)*C`
    becomes `p*C <= l + C - k`, a bound on p with a stride, which a range cannot express. A range
    of e from k to min(k, l - (p-1)*C) expresses it: the range is empty where the bound fails.
    """
    order = [index.atom for index in indices]
    moved = {condition: condition.substitute(solved) for condition in where}
    known, found = whole.union(moved.values()), set()
    # the innermost unsolved index would get a bound with a stride (a factor other than 1 and -1)
    # that no other bound implies, and the innermost solved index has this bound without a stride
    for condition, bound in moved.items():
        waiting = [v for v in order if v in bound.letters]
        held = [v for v in order if v in solved and v in condition.letters]
        if not (waiting and held) or is_plain([bound], waiting[-1]):
            continue
        if is_plain([condition], held[-1]) and not implied(known - {bound}, bound):
            found.add(held[-1])
    return frozenset(found)


def _leaves_no_term(known: Constraints, guard: Poly) -> bool:
    """Whether, at all sizes at which a condition on sizes (`guard` >= 0) fails, the ranges that
    `known` gives are empty, so that the condition need not be stated."""
    return infeasible(known - {guard} | {-guard - 1})


def _index_name(target: Poly, indices: Sequence[Index]) -> str | None:
    """The name of the index that a position is; None for any other position."""
    return next((index.name for index in indices if index.as_poly() == target), None)


def _axis_positions(ref: Ref) -> tuple[Layout, list[Poly]]:
    """(layout of a reference without gathers: for each axis None, or the inner extent h of a
    flattening (j-1)*h + c; the positions, two for a flattening): ((None, h), [i, j, c]) for
    x[i, (j-1)*h + c]."""
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


def _solved(
    array: str, positions: Mapping[str, Poly], indices: Sequence[Index]
) -> tuple[dict[str, Poly], list[str], Constraints]:
    """The equations entry = position solved for indices, the innermost first: (index -> its value
    in variables of entries and other indices; the indices that are not solved for; the conditions
    of positions without an index, @0 = 1 of x[1]). For x[i + j]: ({@j: @0 - @i}, [@i], none).

    Args:
        array: the array's name, for the message.
        positions: variable of the entry -> the position that a reference reads on its axis.

    Raises:
        Unsupported: a position in which no index has factor 1 or -1.
    """
    solved: dict[str, Poly] = {}
    left, fixed = [index.atom for index in indices], set[Poly]()
    for name, target in positions.items():
        here = target.substitute(solved)  # the position in indices that are not solved for
        entry = Poly.atom(name)
        chosen = _solvable(here, left)
        if chosen is None:
            if set(left) & here.letters:
                raise Unsupported(
                    f"the gradient of {array} needs an index with factor 1 in each position, as i "
                    f"in i + 2*j, got '{target}': give one of its indices factor 1, or ask for "
                    "phase training, the forward pass"
                )
            fixed |= {c.substitute(solved) for c in (entry - here, here - entry)}
            continue
        sign = here.coefficient(chosen)  # 1 or -1
        of_entry = (entry - (here - sign * Poly.atom(chosen))) * sign
        solved = {k: v.substitute({chosen: of_entry}) for k, v in solved.items()}
        solved[chosen] = of_entry
        left.remove(chosen)
    return solved, left, frozenset(fixed)


def _solvable(position: Poly, left: Sequence[str]) -> str | None:
    """The innermost index with coefficient 1 or -1 in a position; None if there is none."""
    for atom in reversed(left):
        if atom in position.letters and position.coefficient(atom).constant() in (1, -1):
            return atom
    return None


def entries(array: Array, layout: Layout, system: System | None = None) -> Constraints:
    """The constraints that all entries of an array satisfy, in variables for its axes: one for
    each, or two for an axis that `layout` gives an inner extent (chunks and places in a chunk).
    `system` tells which quotients of sizes are whole: whether l rows are l/C whole chunks."""
    found: set[Poly] = set()
    for axis, (size, extent) in enumerate(zip(array.shape, layout, strict=True)):
        if extent is None:
            entry = Poly.atom(index_atom(axis))
            found |= {entry - 1, size - entry}
        else:
            outer, inner = Poly.atom(index_atom(f"{axis}o")), Poly.atom(index_atom(f"{axis}i"))
            found |= {outer - 1, inner - 1, extent - inner}
            number = size / extent
            # full chunks: the number of chunks bounds the outer index; else the rows bound the pair
            even = all(
                Fraction(times).denominator == 1 and all(power > 0 for _, power in monomial)
                for monomial, times in number.terms.items()
            )
            even = even or (system is not None and is_extent(system.mixer, system.form, number))
            found.add(number - outer if even else size - (outer - 1) * extent - inner)
    return frozenset(found)


def ranges(known: Constraints, left: Sequence[str]) -> tuple[tuple[Index, ...], Constraints]:
    """(indices for the variables in `left`, outermost first, each bounded by earlier ones; what the
    constraints `known` leave for other variables). From 1 <= j <= i <= l and `left` j, i: j in 1..l
    and i in j..l; from 2*i <= l: i in 1..floor(l/2). A bound with a stride on another variable, 2*i
    <= j, is dropped where the ranges of inner indices imply it, being empty where the bound fails.

    Raises:
        Unsupported: a bound with a stride that remains; a variable without both bounds.
    """
    found: list[Index] = []
    waiting, undropped, given = list(left), known, known
    while waiting:
        variable = waiting.pop()
        own = frozenset(c for c in known if variable in c.letters)
        # bounds with a stride that the constraints not dropped so far imply, and, with such a
        # bound, bounds with a stride that eliminating inner variables has added
        inside = set()
        for bound in by_text(own):
            if not is_plain([bound], variable) and implied(undropped - {bound}, bound):
                inside.add(bound)
                undropped = undropped - {bound}
        if inside:
            inside |= {c for c in own - given if stride(c, variable)[0] != ONE}
        lower, upper, _ = bounds(_tight(own - inside, known - inside), variable)
        require_plain(variable, lower + upper)
        if not (lower and upper):
            raise Unsupported(
                f"index {atom_name(variable)} has no {'upper' if lower else 'lower'} bound: "
                "declare the index with both bounds"
            )
        ends = ([end for _, end in side] for side in (lower, upper))
        low, high = (tuple(by_text(dict.fromkeys(side))) for side in ends)
        found.insert(0, Index(atom_name(variable), low, high))
        known = projected(known, [variable])
    return tuple(found), known


def guarded_ranges(known: Constraints, left: Sequence[str], what: str) -> tuple[Index, ...]:
    """Indices for the variables in `left`, outermost first, each bounded by earlier ones, in ranges
    that are empty at sizes at which a condition of `known` on sizes fails: for 1 <= i <= l and
    C <= l, i runs to min(l, l*min(1, max(0, l - C + 1))), which is 0 where C > l.

    Args:
        what: the equation or gradient whose indices these are, for messages.

    Raises:
        Unsupported: `known` restricts the sizes, and there is no index; or as `ranges`.
    """
    indices, _ = ranges(known, left)
    guards = [c for c in known if not c.variables and not implied(frozenset(), c)]
    if not guards:
        return indices
    if not indices:
        raise Unsupported(
            f"{what} is a scalar that exists at some sizes only, and has no formula: ask for "
            "phase training, the forward pass"
        )
    first, *others = indices
    low, upper = first.lower[0], first.upper
    for guard in by_text(guards):
        # 1 where the guard holds, 0 elsewhere: then the upper bound is low - 1
        holds = call("Min", 1, call("Max", 0, guard + 1))
        upper += (low - 1 + (first.upper[0] - low + 1) * holds,)
    return Index(first.name, first.lower, upper), *others


def _tight(own: Constraints, known: Constraints) -> Constraints:
    """The constraints in `own` (bounds of a variable), a part of `known`, that the other
    constraints of `known` do not imply: of i <= l and i <= l + 1 the first."""
    kept = known
    for constraint in sorted(by_text(own), key=lambda c: -len(c.letters)):
        if implied(kept - {constraint}, constraint):
            kept = kept - {constraint}
    return own & kept
