"""The gradient of an array as the sum of its cotangents (contributions of its readers), by entry.

A cotangent is the contribution of one reference to the gradient of the array that it reads. A mixer
may have one equation for row 1 and another for later rows. Two cotangents are then often the same
expression at different rows, or the first term and the rest of one sum: such pairs are fused before
the sum is written.

A *region* or *cell* is a set of entries of an array, given by constraints (polynomials >= 0) on the
entry's position: `@0`, `@1` along its axes, or `@0o`, `@0i` on an axis (o - 1)*h + i that flattens
two (`Cotangent.layout`); {`@0` - 2} are the rows from the second on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from costmodel.adjoint.derivatives import ZERO
from costmodel.adjoint.node_rules import rows_together
from costmodel.adjoint.transpose import Cotangent, entries, guarded_ranges
from costmodel.errors import Unsupported
from costmodel.language.equations import JOINED, SEQUENCE, STEP, Equation, System
from costmodel.language.indices import Index
from costmodel.language.nodes import (
    GRADIENT,
    MOST_NESTED,
    Add,
    Array,
    Bracket,
    Flat,
    Node,
    Ref,
    derived,
    has_room,
    position_value,
    substitute,
)
from costmodel.program.dependence import holes
from costmodel.program.recurrences import references
from costmodel.program.tokens import tokens
from costmodel.program.wellformed import region, whole
from costmodel.symbolic.constraints import Constraints, implied, infeasible, irredundant, outside
from costmodel.symbolic.polynomial import Poly, axis_atom, by_text, index_atom
from costmodel.symbolic.printing import identifier


@dataclass(frozen=True)
class Handed:
    """A cotangent handed to an array (`reverse`); `sequence` is True if the cotangent depends on
    the sequence, False if on weights alone."""

    cotangent: Cotangent
    sequence: bool


@dataclass
class Sums:
    """The gradients of a system's arrays, and the equations that sum the cotangents."""

    system: System
    grads: dict[Array, Array] = field(default_factory=dict)
    """Array -> the array that its cotangents are summed into."""
    handed: dict[Array, list[Handed]] = field(default_factory=dict)
    """Array -> its cotangents so far."""
    written: dict[Equation, str] = field(default_factory=dict)
    """Equation of the backward pass -> its kind: `SEQUENCE`, `JOINED` or `STEP`."""
    numbers: dict[Array, int] = field(default_factory=dict)
    """Array -> the number of its numbered intermediate steps so far."""
    wholes: dict[Array, Array] = field(default_factory=dict)
    """Array -> the array of its complete gradient."""

    def _gradient(self, array: Array, *, in_loop: bool) -> Array:
        """The array into which the cotangents (what readers contribute to the gradient) of an array
        are summed: the array of its gradient. For the output, the gradient that a training step is
        given (`y.grad`) if no equation reads the output (then it has a single cotangent and is in
        no loop), else a new array for the sum of the given gradient and the readers' cotangents."""
        if array is not self.system.mixer.role("output"):
            return self.gradient(array)
        if len(self.handed.get(array, [])) == 1 and not in_loop:
            return self.system.given
        return self._array(array, "sum")

    def gradient(self, array: Array) -> Array:
        """The array for the complete gradient of `array`; for the output, the given gradient."""
        if array is self.system.mixer.role("output"):
            return self.system.given
        if array not in self.wholes:
            self.wholes[array] = self._array(array)
        return self.wholes[array]

    def _array(self, of: Array, step: str = "", shape: tuple[Poly, ...] | None = None) -> Array:
        """A new array for the gradient of `of`, such as `S.grad`, or with a name in `step` ("sum",
        "1") for an intermediate step, `S.grad.1`; of the shape of `of` unless `shape` is given."""
        return derived(
            of,
            GRADIENT,
            step,
            shape=of.shape if shape is None else shape,
            owner=self.system.mixer,
            latex=bar(of, step),
            kernel=of.kernel,
        )

    def _new_step(self, array: Array, shape: tuple[Poly, ...] | None = None) -> Array:
        """A new array for the next numbered intermediate step of a gradient."""
        self.numbers[array] = self.numbers.get(array, 0) + 1
        return self._array(array, str(self.numbers[array]), shape)

    def _write_sums(self, array: Array) -> None:
        """Write the equations that sum the cotangents of an array (`handed`: what its readers
        contribute to its gradient). The entries are cut into cells, in each of which the same
        cotangents are present (x[1..3] and the rest, if a reader reads x[1..3] alone); each cell
        gets an equation of its own. A cell without cotangents gets an equation (gradient 0) only if
        a scan computes the array, an array without cotangents none. Unsupported as `_write`, and if
        the number of additions depends on which entry is a maximum."""
        target = self.grads.setdefault(array, self._gradient(array, in_loop=False))
        # an equation is executed per sequence (True), or once, on weights alone: never fuse both
        handed = [
            Handed(cotangent, sequence)
            for sequence in (True, False)
            for cotangent in fused(
                [h.cotangent for h in self.handed.get(array, []) if h.sequence == sequence]
            )
        ]
        if len(handed) > 1:
            # a cotangent in a flattened layout has two indices on one axis, (q - 1)*C + e: one
            # equation can add such cotangents only if all are of the same entries; a scatter
            # (`numbered`) is first written to an array, as values select its entries
            flat = any(any(h.cotangent.layout) for h in handed)
            flat = flat and len({(h.cotangent.layout, h.cotangent.where) for h in handed}) > 1
            handed = [
                self._in_own_array(array, h) if flat or h.cotangent.numbered else h for h in handed
            ]
        if not handed:
            return
        layout = handed[0].cotangent.layout
        inside = entries(array, layout, self.system)
        # (constraints of a cell, the regions `where` of cotangents that contain the cell)
        cells: list[tuple[Constraints, frozenset[Constraints]]] = [(inside, frozenset())]
        for where in dict.fromkeys(h.cotangent.where for h in handed):
            cells = [
                (part, (regions | {where}) if within else regions)
                for cell, regions in cells
                for part, within in _split(cell, inside | where)
            ]
        # the scan back reads the gradient of every row: zero where an entry has no cotangent
        together = any(rows_together(e.value) for e in self.system.defining.get(array, ()))
        for cell, regions in cells:
            present = [h for h in handed if h.cotangent.where in regions]
            self._require_certain_count(array, present, cell, inside)
            if not present and together:
                zero = replace(handed[0].cotangent, value=ZERO, over=(), scale=None)
                present = [replace(handed[0], cotangent=zero)]
            if present:
                for part, sequence in self._parts_by_dependence(array, cell, handed[0].cotangent):
                    self._write_cell(target, array, part, present, sequence=sequence)

    def _require_certain_count(
        self, array: Array, present: Sequence[Handed], cell: Constraints, inside: Constraints
    ) -> None:
        """Raise Unsupported where the number of additions depends on the position of a maximum: an
        entry gets the gradients of two maxima, or the entries of one maximum lie in several cells.

        Args:
            present: the cotangents (contributions to the gradient) that are summed in the cell, a
                region of entries.
            inside: the constraints that all entries of the array satisfy.
        """
        values = ((h.cotangent.where, h.cotangent.value) for h in present)
        # gradients of maxima over the indices `first`, which the first largest entry gets
        firsts = [(where, v.first) for where, v in values if isinstance(v, Bracket) and v.first]
        cut = any(
            c.letters & {index.atom for index in over} and not implied(inside | where, c)
            for where, over in firsts
            for c in cell
        )
        if len(firsts) > 1 or cut:
            raise Unsupported(
                f"the number of additions in the gradient of {array.name} depends on values, on "
                "which entries are maxima: ask for phase training, the forward pass"
            )

    def _parts_by_dependence(
        self, array: Array, cell: Constraints, cotangent: Cotangent
    ) -> list[tuple[Constraints, bool]]:
        """The disjoint parts of a cell (a region of entries), as (constraints, whether the entries
        depend on the sequence): gradients of entries that depend on weights alone are summed once
        per training step. All entries count as dependent if their array depends on the sequence,
        and has an equation that reads nothing, or zeros in place of entries without an equation.
        `cotangent` is one of the array: its positions are those of an entry of the cell."""
        constant = any(not [*references(e)] for e in self.system.defining.get(array, ()))
        constant = constant or bool(holes(self.system, array))
        if constant and array in tokens(self.system).from_inputs_or_contexts:
            return [(cell, True)]
        return tokens(self.system).dependent_entries(Ref(array, cotangent.positions), cell)

    def _in_own_array(self, array: Array, handed: Handed) -> Handed:
        """The cotangent `handed` (what a reader contributes to the gradient of `array`), unchanged
        unless it has two indices on one axis (a flattened layout), or a stored index selects its
        entries (a scatter: values would decide which terms are added to which entry). Such a
        cotangent is written to an array of its own; the result reads this array entry by entry."""
        cotangent = handed.cotangent
        if not (any(cotangent.layout) or cotangent.numbered):
            return handed
        target = self._new_step(array)
        kind = SEQUENCE if handed.sequence else STEP
        inside = entries(array, cotangent.layout, self.system)
        self._write(target, array, inside | cotangent.where, [cotangent], kind)
        layout = (None,) * len(array.shape)
        plain = tuple(Poly.atom(index_atom(k)) for k in range(len(array.shape)))
        at = {axis_atom(k): p for k, p in enumerate(plain)}  # #0 -> `@0`
        found, every = plain_region(cotangent), whole(array)
        where = frozenset(c.substitute(at) for c in found if not implied(every, c))
        axes, hints = tuple(index_atom(k) for k in range(len(plain))), (None,) * len(plain)
        return Handed(
            Cotangent(array, layout, axes, where, Ref(target, plain), (), hints), handed.sequence
        )

    def _write_cell(
        self,
        target: Array,
        array: Array,
        cell: Constraints,
        present: Sequence[Handed],
        *,
        sequence: bool,
    ) -> None:
        """Write the sum of the cotangents `present` (contributions of readers to the gradient of
        `array`) at the entries of a cell (a region, given by constraints) into the array `target`.
        At entries that depend on weights alone (not `sequence`), cotangents that depend on the
        sequence are summed over the batch; if others are present too, the sum over the batch has an
        array of its own, which is added to the others once per training step."""
        cotangents = [h.cotangent for h in present]
        if sequence:
            self._write(target, array, cell, cotangents, SEQUENCE)
            return
        each = [h.cotangent for h in present if h.sequence]
        alone = [h.cotangent for h in present if not h.sequence]
        if not (each and alone):
            self._write(target, array, cell, cotangents, JOINED if each else STEP)
            return
        joined = self._new_step(array)
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
        """Write the equation of `target` that sums `cotangents` of `array` (contributions of its
        readers) at the entries of a cell (a region, given by constraints), such as x.grad[j] = sum
        over i in j..l of y.grad[i]. `kind` says how often it is executed: per sequence
        (`SEQUENCE`), per sequence with the results summed over the batch (`JOINED`), or once per
        step (`STEP`). Raises Unsupported: the sum nests too many operations, or the cell is no
        product of ranges."""
        names = self._axis_names(array, cotangents)
        renamed = {old: Poly.atom(index_atom(new)) for old, new in names.items()}
        indices = guarded_ranges(
            frozenset(c.substitute(renamed) for c in cell),
            [index_atom(n) for n in names.values()],
            f"the gradient of {array.name}",
        )
        # an axis with a single position is no index: the position stands in its place
        fixed = {i.atom: i.lower[0] for i in indices if len({*i.lower, *i.upper}) == 1}
        free = tuple(substitute(i, fixed) for i in indices if i.atom not in fixed)
        at = {old: new.substitute(fixed) for old, new in renamed.items()}
        terms = [_expression(cotangent, at, names) for cotangent in cotangents]
        value = terms[0]
        for term in terms[1:]:
            value = Add(value, term)
        if not has_room(value):
            raise Unsupported(
                f"the gradient of {array.name}, a sum over {len(terms):,} reads of {array.name}, "
                f"nests more than {MOST_NESTED:,} operations",
                f"copy {array.name} to another array, and let some of the reads read the copy",
            )
        positions = substitute(cotangents[0].positions, at)
        equation = Equation(target, positions, value, free, whole=self.gradient(array))
        self.written[equation] = kind

    def _axis_names(self, array: Array, cotangents: Sequence[Cotangent]) -> dict[str, str]:
        """A dict: axis variable of an entry (`@0`, `@1`, ...) -> the name of its index (i, j, ...):
        the name in an equation of the array, else in a reader, else a spare letter."""
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
        """The name of the index on each axis of an array, in the first of its equations with one
        index alone at each position; None for each axis if there is no such equation, or if the
        cotangent's layout flattens an axis."""
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
    """The LaTeX of the gradient of an array, or of an intermediate step."""
    place = f"({step})" if step.isdecimal() else rf"\mathrm{{{step}}}"
    return rf"\bar{{{array.latex or identifier(array.name)}}}" + (f"^{{{place}}}" if step else "")


SPARE = "pqrsuvwzefg"
"""Names for axes without an index name of their own."""


def plain_region(cotangent: Cotangent) -> Constraints:
    """The region of the entries that a cotangent contributes to, in axes (`#0`) of its array."""
    known = entries(cotangent.array, cotangent.layout) | cotangent.where
    found = region(cotangent.array, cotangent.positions, known, cotangent.axes)
    assert found is not None  # a cotangent contributes to some entry
    return found


def _split(cell: Constraints, where: Constraints) -> list[tuple[Constraints, bool]]:
    """The disjoint parts of a cell (a region), as (constraints, whether the part is in `where`)."""
    inside = cell | where
    if infeasible(inside):
        return [(cell, False)]
    parts = outside(cell, [where])
    return [(irredundant(inside), True), *((irredundant(part), False) for part in parts)]


def _expression(cotangent: Cotangent, at: Mapping[str, Poly], names: Mapping[str, str]) -> Node:
    """A cotangent's expression (what a reader contributes to a gradient) in the names of the
    equation that sums it. A reduction index whose name is taken is renamed, if possible to the
    reader's name of the axis.

    Args:
        at: axis variable of the entry -> its value in the equation.
        names: axis variable -> its index name.
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
    """The cotangents (contributions to a gradient, to be added up) with two fused into one wherever
    they are one expression at neighbouring rows; their sum stays the same. dx[1] += g[1] and dx[j]
    += g[j] for j = 2..l become one with j = 1..l, and so do g[1] and the sum of g[i], i = 2..l."""
    found: list[Cotangent] = []
    for cotangent in cotangents:
        for k, other in enumerate(found):
            both = _fused_pair(other, cotangent) or _fused_pair(cotangent, other)
            if both is not None:
                found[k] = both
                break
        else:
            found.append(cotangent)
    return found if len(found) == len(cotangents) else fused(found)


def fused_equations(written: Mapping[Equation, str]) -> dict[Equation, str]:
    """Equation -> its kind (how often it is executed), with the equation of a first row merged into
    the equation of later rows where both agree in everything but the row: y[1] = x[1] and
    y[i] = x[i] for i in 2..l become y[i] = x[i] for i in 1..l, as an author would write it."""
    found = dict(written)
    for first in written:
        for rest in list(found):
            both = _same_rows(rest, first) if rest.array is first.array else None
            if both is not None and first in found and found[rest] == found[first]:
                found = {(both if e is rest else e): k for e, k in found.items() if e is not first}
                break
    return found


def _same_rows(rest: Equation, first: Equation) -> Equation | None:
    """Two equations of one array as one, if `rest`, taken one row before its range, equals `first`,
    and the range extended by this row has the row wherever `first` is executed; else None.
    y[1] = x[1] and y[i] = x[i] for i = 2..l become y[i] = x[i] for i = 1..l."""
    for index in rest.indices:
        at = {index.atom: index.lower[0] - 1}
        others = tuple(i for i in rest.indices if i is not index)
        if (
            len(index.lower) == 1
            and substitute(rest.positions, at) == first.positions
            and substitute(others, at) == first.indices
            and substitute(rest.value, at) == first.value
            and _reaches(index, first.domain)
        ):
            wider = Index(index.name, (index.lower[0] - 1,), index.upper)
            indices = tuple(wider if i is index else i for i in rest.indices)
            return replace(rest, indices=indices)
    return None


def _fused_pair(rest: Cotangent, first: Cotangent) -> Cotangent | None:
    """Two cotangents (contributions to a gradient) as one, if `rest`, taken one row before its
    range, equals `first`: a row of the array (`_fused_rows`), or a row of the reader that is summed
    over (`_fused_terms`). Else None."""
    if rest.layout != first.layout or rest.scale != first.scale:
        return None
    return _fused_rows(rest, first) or _fused_terms(rest, first)


def _fused_rows(rest: Cotangent, first: Cotangent) -> Cotangent | None:
    """Two cotangents (contributions to a gradient) at different rows of the array as one: `first`
    at the single row before the rows of `rest` (dx[1] += g[1] and dx[j] += g[j] for j = 2..l). None
    if they differ in anything else."""
    whole = entries(rest.array, rest.layout)
    for axis in rest.axes:
        entry = Poly.atom(axis)
        for start in by_text(rest.where):
            # as a lower bound of the rows of `rest`, start = entry - (row + 1) >= 0
            row = entry - start - 1
            if entry.letters & row.letters or not _is_zero(whole | first.where, entry - row):
                continue
            at = {axis: row}
            same = substitute(rest.value, at) == substitute(first.value, at)
            over = substitute(rest.over, at) == substitute(first.over, at)
            others = _moved(rest.where - {start}, at) == _moved(first.where, at)
            if same and over and others:
                where = rest.where - {start} | {entry - row}
                return replace(rest, where=frozenset(c for c in where if not implied(whole, c)))
    return None


def _fused_terms(rest: Cotangent, first: Cotangent) -> Cotangent | None:
    """One sum over rows m-1..n of an equation that reads the array: `rest`, its sum over m..n, and
    `first`, its term of row m-1. None if they differ otherwise, or if n >= m-1 is not proven."""
    if rest.where != first.where:
        return None
    known = entries(first.array, first.layout) | first.where
    known = known.union(*(index.constraints for index in first.over))
    for index in rest.over:
        if len(index.lower) != 1:
            continue
        at = {index.atom: index.lower[0] - 1}
        others = tuple(i for i in rest.over if i is not index)
        same = substitute(rest.value, at) == first.value and substitute(others, at) == first.over
        if same and _reaches(index, known):
            wider = Index(index.name, (index.lower[0] - 1,), index.upper)
            return replace(rest, over=tuple(wider if i is index else i for i in rest.over))
    return None


def _reaches(index: Index, known: Constraints) -> bool:
    """Whether the row before an index's range is proven to be at most each upper bound, so that the
    range may begin there: row 1 of 2..l, but not of 2..C - 1, which ends at row 0 where C = 1."""
    row = index.lower[0] - 1
    return all(implied(known, up - row) for up in index.upper)


def _is_zero(known: Constraints, difference: Poly) -> bool:
    """Whether a difference is proven to be 0 wherever the constraints `known` hold."""
    return implied(known, difference) and implied(known, -difference)


def _moved(where: Constraints, at: dict[str, Poly]) -> Constraints:
    """The conditions with a row substituted (`at`: axis variable `@0` -> row), without those that
    are then numbers >= 0: at row 3 the condition `@0` - 2 >= 0 is left out."""
    moved = (c.substitute(at) for c in where)
    return frozenset(c for c in moved if c.variables or not implied(frozenset(), c))
