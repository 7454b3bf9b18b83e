"""How are the cotangents of an array added up to its gradient, entry by entry?

A mixer may say what holds for row 1 apart from what holds for later rows. Two cotangents are then
often one expression, over all rows of the array, or one sum over all rows: these are put together
first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from costmodel.adjoint.transpose import Cotangent, entries, guarded_ranges
from costmodel.errors import Unsupported
from costmodel.language.equations import JOINED, SEQUENCE, STEP, Equation, System
from costmodel.language.indices import Index
from costmodel.language.nodes import (
    GRADIENT,
    Add,
    Array,
    Bracket,
    Flat,
    Node,
    Ref,
    derived,
    position_value,
    substitute,
)
from costmodel.program.recurrences import references
from costmodel.program.tokens import tokens
from costmodel.program.wellformed import region, whole
from costmodel.symbolic.constraints import Constraints, implied, infeasible, irredundant, outside
from costmodel.symbolic.polynomial import Poly, axis_atom, index_atom
from costmodel.symbolic.printing import identifier


@dataclass(frozen=True)
class Handed:
    """A cotangent, and whether it is for each sequence or on weights alone."""

    cotangent: Cotangent
    sequence: bool


@dataclass
class Sums:
    """The gradients of a system's arrays, and the equations that add them up."""

    system: System
    grads: dict[Array, Array] = field(default_factory=dict)
    handed: dict[Array, list[Handed]] = field(default_factory=dict)
    written: dict[Equation, str] = field(default_factory=dict)
    numbers: dict[Array, int] = field(default_factory=dict)
    wholes: dict[Array, Array] = field(default_factory=dict)

    def _gradient(self, array: Array, *, in_loop: bool) -> Array:
        """The array that holds the gradient of an array.

        That of an output which other equations read, too, is more than what is given.
        """
        if array is not self.system.mixer.role("output"):
            return self.gradient(array)
        if len(self.handed.get(array, [])) == 1 and not in_loop:
            return self.system.given
        return self._array(array, "sum")

    def gradient(self, array: Array) -> Array:
        """The gradient of an array, as a whole."""
        if array is self.system.mixer.role("output"):
            return self.system.given
        if array not in self.wholes:
            self.wholes[array] = self._array(array)
        return self.wholes[array]

    def _array(self, of: Array, step: str = "", shape: tuple[Poly, ...] | None = None) -> Array:
        """An array for the gradient of another one, or for a step on the way to it."""
        return derived(
            of,
            GRADIENT,
            step,
            shape=of.shape if shape is None else shape,
            owner=self.system.mixer,
            latex=bar(of, step),
            kernel=of.kernel,
        )

    def _next(self, array: Array, shape: tuple[Poly, ...] | None = None) -> Array:
        """An array for one more step on the way to a gradient."""
        self.numbers[array] = self.numbers.get(array, 0) + 1
        return self._array(array, str(self.numbers[array]), shape)

    def _collect(self, array: Array) -> None:
        """The equations that add up what was handed to an array."""
        target = self.grads.setdefault(array, self._gradient(array, in_loop=False))
        handed = [
            Handed(cotangent, sequence)
            for sequence in (True, False)
            for cotangent in fused(
                [h.cotangent for h in self.handed.get(array, []) if h.sequence == sequence]
            )
        ]
        if len(handed) > 1:
            flat = any(any(h.cotangent.layout) for h in handed)
            handed = [self._apart(array, h) if flat or h.cotangent.numbered else h for h in handed]
        if not handed:
            return
        layout = handed[0].cotangent.layout
        inside = entries(array, layout, self.system)
        cells = [inside]
        for where in dict.fromkeys(h.cotangent.where for h in handed):
            cells = [part for cell in cells for part in _split(cell, inside | where)]
        for cell in cells:
            present = [h for h in handed if all(implied(cell, c) for c in h.cotangent.where)]
            self._certain(array, present, cell, inside)
            if present:
                for part, sequence in self._kinds(array, cell, handed[0].cotangent):
                    self._add(target, array, part, present, sequence=sequence)

    def _certain(
        self, array: Array, present: Sequence[Handed], cell: Constraints, inside: Constraints
    ) -> None:
        """Raise Unsupported where the number of additions depends on which entry is largest: two
        maxima are taken of one entry, or some entries of one maximum lie in another cell."""
        values = ((h.cotangent.where, h.cotangent.value) for h in present)
        firsts = [(where, v.first) for where, v in values if isinstance(v, Bracket) and v.first]
        cut = any(
            c.letters & {index.atom for index in over} and not implied(inside | where, c)
            for where, over in firsts
            for c in cell
        )
        if len(firsts) > 1 or cut:
            raise Unsupported(
                f"the gradient of {array.name}: how much is added to the entry that a maximum is "
                f"taken from depends on which one it is"
            )

    def _kinds(
        self, array: Array, cell: Constraints, cotangent: Cotangent
    ) -> list[tuple[Constraints, bool]]:
        """A cell in parts that are for each sequence, or on weights alone.

        Constants among the entries of an array that sequences give stand in it for each sequence.
        """
        constant = any(not [*references(e)] for e in self.system.defining.get(array, ()))
        if constant and array in tokens(self.system).given:
            return [(cell, True)]
        return tokens(self.system).dependent_entries(Ref(array, cotangent.positions), cell)

    def _apart(self, array: Array, handed: Handed) -> Handed:
        """The same cotangent in an array of its own, if it lies in a flattened layout or is
        scattered: how many of its terms lie where others do depends on the values."""
        cotangent = handed.cotangent
        if not (any(cotangent.layout) or cotangent.numbered):
            return handed
        target = self._next(array)
        kind = SEQUENCE if handed.sequence else STEP
        inside = entries(array, cotangent.layout, self.system)
        self._write(target, array, inside | cotangent.where, [cotangent], kind)
        layout = (None,) * len(array.shape)
        plain = tuple(Poly.atom(index_atom(k)) for k in range(len(array.shape)))
        at = {axis_atom(k): p for k, p in enumerate(plain)}
        found, every = plain_region(cotangent), whole(array)
        where = frozenset(c.substitute(at) for c in found if not implied(every, c))
        axes, hints = tuple(index_atom(k) for k in range(len(plain))), (None,) * len(plain)
        return Handed(
            Cotangent(array, layout, axes, where, Ref(target, plain), (), hints), handed.sequence
        )

    def _add(
        self,
        target: Array,
        array: Array,
        cell: Constraints,
        present: Sequence[Handed],
        *,
        sequence: bool,
    ) -> None:
        """The equation of a gradient at some entries; over the batch before weights alone."""
        cotangents = [h.cotangent for h in present]
        if sequence:
            self._write(target, array, cell, cotangents, SEQUENCE)
            return
        each = [h.cotangent for h in present if h.sequence]
        alone = [h.cotangent for h in present if not h.sequence]
        if not (each and alone):
            self._write(target, array, cell, cotangents, JOINED if each else STEP)
            return
        joined = self._next(array)
        self._write(joined, array, cell, each, JOINED)
        first = replace(alone[0], value=Ref(joined, alone[0].positions), over=(), scale=None)
        self._write(target, array, cell, [first, *alone], STEP)

    def _write(
        self,
        target: Array,
        array: Array,
        cell: Constraints,
        cotangents: Sequence[Cotangent],
        kind: str,
    ) -> None:
        """The equation that adds cotangents up at the entries of a cell."""
        names = self._axis_names(array, cotangents)
        renamed = {old: Poly.atom(index_atom(new)) for old, new in names.items()}
        indices = guarded_ranges(
            frozenset(c.substitute(renamed) for c in cell),
            [index_atom(n) for n in names.values()],
            f"the gradient of {array.name}",
        )
        fixed = {i.atom: i.lower[0] for i in indices if len({*i.lower, *i.upper}) == 1}
        free = tuple(substitute(i, fixed) for i in indices if i.atom not in fixed)
        at = {old: new.substitute(fixed) for old, new in renamed.items()}
        terms = [_expression(cotangent, at, names) for cotangent in cotangents]
        value = terms[0]
        for term in terms[1:]:
            value = Add(value, term)
        positions = substitute(cotangents[0].positions, at)
        equation = Equation(target, positions, value, free, self.gradient(array))
        self.written[equation] = kind

    def _axis_names(self, array: Array, cotangents: Sequence[Cotangent]) -> dict[str, str]:
        """A name for each axis of an entry: what its equations, or its readers, call it."""
        hints = list(zip(*(cotangent.hints for cotangent in cotangents), strict=True))
        own = self._own_names(array, cotangents[0])
        taken: set[str] = set()
        names: dict[str, str] = {}
        for axis, mine, theirs in zip(cotangents[0].axes, own, hints, strict=True):
            wanted = [name for name in (mine, *theirs) if name and name not in taken]
            name = wanted[0] if wanted else next(x for x in SPARE if x not in taken)
            names[axis] = name
            taken.add(name)
        return names

    def _own_names(self, array: Array, cotangent: Cotangent) -> list[str | None]:
        if any(cotangent.layout):
            return [None] * len(cotangent.axes)
        for equation in self.system.defining.get(array, ()):
            names = {index.as_poly(): index.name for index in equation.indices}
            found = [
                None if isinstance(p, Flat) else names.get(position_value(p))
                for p in equation.positions
            ]
            if all(found):
                return found
        return [None] * len(cotangent.axes)


def bar(array: Array, step: str = "") -> str:
    """How LaTeX prints the gradient of an array, or a step on the way to it."""
    place = f"({step})" if step.isdecimal() else rf"\mathrm{{{step}}}"
    return rf"\bar{{{array.latex or identifier(array.name)}}}" + (f"^{{{place}}}" if step else "")


SPARE = "pqrsuvwzefg"
"""Names for axes that no equation calls by an index of its own."""


def plain_region(cotangent: Cotangent) -> Constraints:
    """The entries that a cotangent is handed to, in the axes of the array."""
    around = entries(cotangent.array, cotangent.layout) | cotangent.where
    found = region(cotangent.array, cotangent.positions, around, cotangent.axes)
    assert found is not None
    return found


def _split(cell: Constraints, where: Constraints) -> list[Constraints]:
    """A cell in the part inside a region and those outside it."""
    inside = cell | where
    if infeasible(inside):
        return [cell]
    return [irredundant(inside), *map(irredundant, outside(cell, [where]))]


def _expression(cotangent: Cotangent, at: Mapping[str, Poly], names: Mapping[str, str]) -> Node:
    """A cotangent at entries called by new names; its own indices make way for these.

    An index whose name is taken gets the one that the reader called that axis by, if it is free.
    """
    values = dict(at)
    called = {names[axis]: hint for axis, hint in zip(cotangent.axes, cotangent.hints, strict=True)}
    taken = {*names.values(), *(index.name for index in cotangent.over)}
    for index in cotangent.over:
        if index.name in called:
            hint = called[index.name]
            numbered = (f"{index.name}{k}" for k in range(2, 100))
            new = next(n for n in (hint, *numbered) if n and n not in taken)
            taken.add(new)
            values[index.atom] = Poly.atom(index_atom(new))
    return substitute(cotangent.expression, values)


def fused(cotangents: Sequence[Cotangent]) -> list[Cotangent]:
    """The cotangents, with those that are one put together; their sum is the same."""
    found: list[Cotangent] = []
    for cotangent in cotangents:
        for k, other in enumerate(found):
            both = _one(other, cotangent) or _one(cotangent, other)
            if both is not None:
                found[k] = both
                break
        else:
            found.append(cotangent)
    return found if len(found) == len(cotangents) else fused(found)


def fused_equations(written: Mapping[Equation, str]) -> dict[Equation, str]:
    """The equations, with one in place of two that say the same of a first row and of the rest."""
    found = dict(written)
    for first in written:
        for rest in list(found):
            both = _same_rows(rest, first) if rest.array is first.array else None
            if both is not None and first in found and found[rest] == found[first]:
                found = {(both if e is rest else e): k for e, k in found.items() if e is not first}
                break
    return found


def _same_rows(rest: Equation, first: Equation) -> Equation | None:
    """Two equations of one array as one, if `first` is what `rest` would be one row earlier."""
    for index in rest.indices:
        at = {index.atom: index.lower[0] - 1}
        others = tuple(i for i in rest.indices if i is not index)
        if (
            len(index.lower) == 1
            and substitute(rest.positions, at) == first.positions
            and substitute(others, at) == first.indices
            and substitute(rest.value, at) == first.value
        ):
            wider = Index(index.name, (index.lower[0] - 1,), index.upper)
            indices = tuple(wider if i is index else i for i in rest.indices)
            return replace(rest, indices=indices)
    return None


def _one(rest: Cotangent, first: Cotangent) -> Cotangent | None:
    """The two as one cotangent, if `first` is what `rest` would be one row earlier."""
    if rest.layout != first.layout or rest.scale != first.scale:
        return None
    return _rows(rest, first) or _sums(rest, first)


def _rows(rest: Cotangent, first: Cotangent) -> Cotangent | None:
    """Two cotangents at different rows of the array."""
    whole = entries(rest.array, rest.layout)
    for axis in rest.axes:
        entry = Poly.atom(axis)
        for start in rest.where:
            row = entry - start - 1
            if entry.letters & row.letters or not _fixed(whole | first.where, entry - row):
                continue
            at = {axis: row}
            same = substitute(rest.value, at) == substitute(first.value, at)
            over = substitute(rest.over, at) == substitute(first.over, at)
            others = _others(rest.where - {start}, at) == _others(first.where, at)
            if same and over and others:
                where = rest.where - {start} | {entry - row}
                return replace(rest, where=frozenset(c for c in where if not implied(whole, c)))
    return None


def _sums(rest: Cotangent, first: Cotangent) -> Cotangent | None:
    """A sum over later rows of a reader, and its term at the row before them."""
    if rest.where != first.where:
        return None
    for index in rest.over:
        if len(index.lower) != 1:
            continue
        at = {index.atom: index.lower[0] - 1}
        others = tuple(i for i in rest.over if i is not index)
        if substitute(rest.value, at) == first.value and substitute(others, at) == first.over:
            wider = Index(index.name, (index.lower[0] - 1,), index.upper)
            return replace(rest, over=tuple(wider if i is index else i for i in rest.over))
    return None


def _fixed(known: Constraints, difference: Poly) -> bool:
    """Whether a difference is proven to be 0."""
    return implied(known, difference) and implied(known, -difference)


def _others(where: Constraints, at: dict[str, Poly]) -> Constraints:
    """Conditions at a row, without those that say nothing more there."""
    moved = (c.substitute(at) for c in where)
    return frozenset(c for c in moved if c.variables or not implied(frozenset(), c))
