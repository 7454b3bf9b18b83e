"""Which operations run in each row of a loop?

The operations of one row run in the order of the file. Operations that differ only in the slice of
a parameter that they read, or that read slices of one result, are one operation. Loops over the
same rows run together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from costmodel.errors import Unsupported
from costmodel.language.equations import Equation
from costmodel.language.indices import Index
from costmodel.language.nodes import Add, Array, Flat, Node, Position, Reduce, Ref, rewrite
from costmodel.program.recurrences import references
from costmodel.symbolic.polynomial import Poly
from profiler.reconcile.allocations.formulas import Tensor

Operation = tuple[Equation, ...]
"""Equations that one operation computes."""

Reading = Callable[[Operation], Collection[Array]]
"""Which arrays equations read."""


def together(
    equations: Sequence[Operation],
    read: Reading,
    known: Mapping[Array, Array] | None = None,
    partners: Mapping[str, Collection[str]] | None = None,
) -> list[Operation]:
    """The same equations in the order in which they run, like ones as one operation.

    Args:
        equations: those of one array each.
        read: what they wait for.
        known: array -> one that the same operation computed.
        partners: array of the file -> those with which it may be computed, where that is told.
    """
    like, told = dict(known or {}), partners or {}
    found: list[Operation] = []
    waiting = list(equations)
    while waiting:
        own = {e.array for one in waiting for e in one}
        outline = _outline(waiting[0], like)
        first = waiting[0][0].part_of
        alike = [
            one
            for k, one in enumerate(waiting)
            if k == 0
            or (
                one[0].part_of in told.get(first, (one[0].part_of,))
                and _outline(one, like) == outline
                and own.isdisjoint(read(one))
                and all(_sliced(e, like) for e in one)
            )
        ]
        found.append(tuple(e for one in alike for e in one))
        if len(alike) > 1:
            like |= dict.fromkeys((e.array for e in found[-1]), found[-1][0].array)
        waiting = [one for one in waiting if one not in alike]
    return found


def _sliced(equation: Equation, like: Mapping[Array, Array]) -> bool:
    """Whether all that an operation reads may be slices of what one operation computed: of a
    product with a matrix it is the matrix alone."""
    value = equation.value
    product = isinstance(value, Reduce) or (
        isinstance(value, Add) and isinstance(value.left, Reduce)
    )
    return product or all(
        ref.array in like or ref.array.role == "parameter" for ref in references(equation)
    )


def read(equations: Operation) -> set[Array]:
    """All arrays that equations read."""
    return {ref.array for e in equations for ref in references(e)}


def _outline(equations: Operation, like: Mapping[Array, Array]) -> frozenset[Node]:
    """What is computed, without the slices of parameters that are read."""

    def entry(ref: Node) -> Node:
        if not isinstance(ref, Ref):
            return ref
        positions = ref.positions
        if ref.array.role == "parameter":
            positions = tuple(
                p for p in positions if not isinstance(p, Poly) or p.constant() is None
            )
        return Ref(like.get(ref.array, ref.array), positions)

    return frozenset(rewrite(e.value, entry) for e in equations)


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of one loop, or of several that run together, at some sizes."""

    steps: Sequence[Operation]
    """What runs in a row, in turn."""
    rows: Mapping[Equation, Poly]
    """Each equation -> the row, in its own indices."""
    like: Mapping[Array, Array] = field(default_factory=dict)
    """Array computed before the loop -> the first one that the same operation computed."""
    inner: Mapping[Operation, Rows] = field(default_factory=dict)
    """The steps that are loops themselves."""
    step: int = 1
    """-1 where the last row runs first."""
    sliced: bool = False
    """Whether rows have different lengths: what they read of all rows are slices."""
    sizes: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def ends(self) -> Mapping[Equation, tuple[int, int]]:
        """The first and the last row of each equation.

        Raises:
            Unsupported: they depend on other indices.
        """
        found = {}
        for equation, row in self.rows.items():
            if any(a in (row - Poly.atom(a)).letters for a in row.variables - self.sizes.keys()):
                raise Unsupported(f"rows of {equation.name} that do not follow one index upward")
            ranges = [self._range(i) for i in equation.indices if i.atom in row.letters]
            letters = [i.atom for i in equation.indices if i.atom in row.letters]
            low, high = (
                row.at({**self.sizes, **dict(zip(letters, ends, strict=True))})
                for ends in ([r[0] for r in ranges], [r[1] for r in ranges])
            )
            found[equation] = low, high
        return found

    @property
    def numbers(self) -> range:
        """The numbers of the rows, in the order in which they run."""
        ends = self.ends.values()
        found = range(min(low for low, _ in ends), max(high for _, high in ends) + 1)
        return found[:: self.step]

    def runs(self, equation: Equation, row: int) -> bool:
        """Whether an equation has a row."""
        low, high = self.ends[equation]
        return low <= row <= high

    def operations(self, row: int) -> list[Operation]:
        """The operations of one row, in turn."""
        own = tuple(e for e in self.rows if self.runs(e, row))
        if own not in self._known:
            steps = [tuple(e for e in step if e in own) for step in self.steps]
            steps = [step for step in steps if step]
            self._known[own] = steps if self.sliced else self._together(steps, self._partners)
        return self._known[own]

    def _together(
        self,
        steps: Sequence[Operation],
        partners: Mapping[str, Collection[str]] | None = None,
    ) -> list[Operation]:
        return together(steps, self._now, self.like, partners)

    @cached_property
    def _partners(self) -> Mapping[str, Collection[str]]:
        """Array of the file -> those with which it is computed where an index numbers the row: what
        these rows run apart, a row of its own does too."""
        found: dict[str, set[str]] = {}
        for operation in self._together([(e,) for e, row in self.rows.items() if row.variables]):
            names = {e.part_of for e in operation}
            for name in names:
                found.setdefault(name, set()).update(names)
        return found

    @cached_property
    def _known(self) -> dict[Operation, list[Operation]]:
        """What runs in a row -> its operations."""
        return {}

    def _now(self, equations: Operation) -> set[Array]:
        """What is read of the same row, or of what is no row of the loop."""
        return {r.array for e in equations for r in references(e) if not self.lag(e, r)}

    @cached_property
    def axes(self) -> Mapping[Array, int | None]:
        """The arrays of the loop -> the axis on which the rows lie; None of one of a single row."""
        found: dict[Array, int | None] = {}
        for equation, row in self.rows.items():
            places = (_pieces(place) for place in equation.positions)
            own = [k for k, pieces in enumerate(places) if row.variables and row in pieces]
            found[equation.array] = own[0] if own else found.get(equation.array)
        return found

    def lag(self, equation: Equation, ref: Ref) -> int:
        """How many rows before its own a reference to an array of the loop reads."""
        axis = self.axes.get(ref.array)
        if axis is None:
            return 0
        row = self.rows[equation]
        found = [(row - piece).constant() for piece in _pieces(ref.positions[axis])]
        return next((int(lag) for lag in found if lag is not None), 0)

    def kinds(self) -> list[Operation]:
        """The operations of all rows, those once that rows share."""
        if self.sliced:
            return [
                operation
                for step in self.steps
                for operation in (self.inner[step].kinds() if step in self.inner else [step])
            ]
        found = (operation for row in self.numbers for operation in self.operations(row))
        return list(dict.fromkeys(found))

    def cut(self, equation: Equation, ref: Ref) -> int:
        """How many rows an array has of which a reference reads one; 0 where it reads all."""
        axis = self._axis(equation, ref)
        return 0 if axis is None else ref.array.shape[axis].at(self.sizes)

    def place(self, equation: Equation, ref: Ref, row: int) -> int:
        """Which row of an array a reference reads."""
        axis = self._axis(equation, ref)
        assert axis is not None
        position = ref.positions[axis]
        assert isinstance(position, Poly)
        return position.at(self.at(equation, row))

    def _axis(self, equation: Equation, ref: Ref) -> int | None:
        """The axis of which a reference reads one place in each row."""
        letters = self.rows[equation].letters
        for axis, position in enumerate(ref.positions):
            if isinstance(position, Poly) and not (position.variables - letters):
                return axis
        return None

    def at(self, equation: Equation, row: int) -> dict[str, int]:
        """The sizes, and the index of the row.

        Raises:
            Unsupported: several indices make a row.
        """
        of = self.rows[equation]
        letters = [i.atom for i in equation.indices if i.atom in of.letters]
        if len(letters) > 1:
            raise Unsupported(f"rows of {equation.name} that several indices number")
        rest = of.at({**self.sizes, **dict.fromkeys(letters, 0)})
        return {**self.sizes, **dict.fromkeys(letters, row - rest)}

    def _range(self, index: Index) -> tuple[int, int]:
        """The ends of an index.

        Raises:
            Unsupported: they depend on another one.
        """
        if any(end.variables - self.sizes.keys() for end in index.ends):
            raise Unsupported(f"rows of a loop whose {index.name} has different ends")
        return (
            max(end.at(self.sizes) for end in index.lower),
            min(end.at(self.sizes) for end in index.upper),
        )


def _pieces(place: Position) -> list[Poly]:
    """What a position is made of: both indices of a flattened one."""
    if isinstance(place, Flat):
        return [place.outer, place.inner]
    return [place] if isinstance(place, Poly) else []


Made = dict[tuple[Array, int], Tensor]
"""What the rows of a loop have written: an array and a row -> the result."""


@dataclass(eq=False)
class Place:
    """Where an operation runs: in a row of a loop."""

    rows: Rows
    row: int
    made: Made
    outer: Place | None = None
    """Where the loop runs."""
    slices: dict[tuple[Tensor, int], Tensor] = field(default_factory=dict)
    """What was cut out for the loops that run in the row."""

    def sizes(self, equation: Equation) -> Mapping[str, int]:
        """The sizes, and the indices that have one value in the row."""
        return self.rows.at(equation, self.row)

    @property
    def chain(self) -> list[Place]:
        """The rows that it is in, the outermost one first."""
        return [*(self.outer.chain if self.outer else ()), self]
