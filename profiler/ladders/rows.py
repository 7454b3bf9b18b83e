"""What is held while the rows of a loop run one after another, operation by operation?

The operations of one row run in the order of the file. Operations that differ only in the slice of
a parameter that they read, or that read slices of one result, are one operation, whose result is
released as a whole. A row is held until it is last read, in its own row or in the next one, or
throughout, where something after the loop reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from costmodel.constraints import Unsupported
from costmodel.equations import Equation
from costmodel.expressions import Array, Node, Reduce, Ref, rebuilt
from costmodel.indices import Index
from costmodel.loops import Block, references
from costmodel.polynomial import Poly

Operation = tuple[Equation, ...]
"""Equations that one operation computes."""

Reading = Callable[[Operation], Collection[Array]]
"""Which arrays equations read."""


def together(
    equations: Sequence[Operation], read: Reading, known: Mapping[Array, Array] | None = None
) -> list[Operation]:
    """The same equations in the order in which they run, like ones as one operation.

    Args:
        equations: those of one array each.
        read: what they wait for.
        known: array -> one that the same operation computed.
    """
    like = dict(known or {})
    found: list[Operation] = []
    waiting = list(equations)
    while waiting:
        own = {e.array for one in waiting for e in one}
        outline = _outline(waiting[0], like)
        alike = [
            one
            for k, one in enumerate(waiting)
            if k == 0
            or (
                _outline(one, like) == outline
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
    product = isinstance(equation.value, Reduce)
    return product or all(
        ref.array in like or ref.array.role == "parameter" for ref in references(equation)
    )


def read(equations: Operation) -> set[Array]:
    """All arrays that equations read."""
    return {ref.array for e in equations for ref in references(e)}


def _outline(equations: Operation, like: Mapping[Array, Array]) -> frozenset[Node]:
    """What is computed, without the slices of parameters that are read."""

    def entry(ref: Ref) -> Ref:
        positions = ref.positions
        if ref.array.role == "parameter":
            positions = tuple(
                p for p in positions if not isinstance(p, Poly) or p.constant() is None
            )
        return Ref(like.get(ref.array, ref.array), positions)

    return frozenset(rebuilt(e.value, entry, lambda index: index) for e in equations)


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of one loop at some sizes, and what holds them."""

    equations: Mapping[Equation, Equation]
    """What runs in a row -> the equation that it is a part of."""
    block: Block
    """The loop as the file has it."""
    inner: Block
    """The loop as it is taken apart."""
    follow: Mapping[Equation, Poly]
    """Equation that only reads the loop -> the row with which it runs."""
    kept: Collection[Array]
    """What is there after the loop."""
    in_place: Collection[Equation]
    """What overwrites an operand that it reads last."""
    like: Mapping[Array, Array]
    """Array computed before the loop -> the first one that the same operation computed."""
    sizes: Mapping[str, int]

    def moments(self) -> Iterator[tuple[Operation, dict[Array, int], set[Array], bool]]:
        """Each operation of the first row, of the last one and of that before; what is held of
        rows, in entries of one sequence; what is read from then on in the same row; whether the row
        is the last one. In the rows between, no more is held."""
        ends = [self._ends(e) for e in self.equations.values()]
        first, last = min(low for low, _ in ends), max(high for _, high in ends)
        for row in sorted({first, max(first, last - 1), last}):
            own = [(e,) for e, of in self.equations.items() if self._runs(of, row)]
            operations = together(own, self._now, self.like)
            for k, operation in enumerate(operations):
                later = {a for o in operations[k:] for a in read(o)}
                held = self._held(operations, k, row, last=row == last)
                yield operation, held, later, row == last

    def _held(
        self, operations: Sequence[Operation], k: int, row: int, *, last: bool
    ) -> dict[Array, int]:
        """What is held of rows while the k-th operation of a row runs."""
        found: dict[Array, int] = {}
        now = {a for o in operations[k:] for a in self._now(o)} - self._overwritten(operations[k:])
        before = {a for o in operations[k:] for a in self._before(o)}
        next_ = set() if last else self._before(tuple(self.equations))
        for j, operation in enumerate(operations[: k + 1]):
            stays = j == k or not {e.array for e in operation}.isdisjoint(now | next_)
            for e in operation:
                if stays or e.array in self.kept:
                    found[e.array] = self.entries(e)
        for e, of in self.equations.items():
            low, high = self._ends(of)
            number = max(0, min(high, row - 1) - low + 1)
            if e.array not in self.kept:
                number = int(low < row <= high + 1 and e.array in before)
            found[e.array] = found.get(e.array, 0) + number * self.entries(e)
        return {array: number for array, number in found.items() if number}

    def _overwritten(self, operations: Sequence[Operation]) -> set[Array]:
        """The operands that the first one of some operations overwrites: it reads them last."""
        first, *rest = operations
        later = {*self.kept, *self._before(tuple(self.equations))}.union(*map(self._now, rest))
        own = {e.array for e in self.equations} - later
        found: set[Array] = set()
        for e in first:
            if e in self.in_place and not isinstance(e.value, Reduce):
                read = (t.array for t in e.value.children if isinstance(t, Ref))
                found |= {*[array for array in read if array in own][:1]}
        return found

    def _now(self, equations: Operation) -> set[Array]:
        """What is read of the same row, or of what is no row of the loop."""
        return {r.array for e in equations for r in references(e) if not self._lag(e, r)}

    def _before(self, equations: Operation) -> set[Array]:
        """What is read of the row before."""
        return {r.array for e in equations for r in references(e) if self._lag(e, r)}

    def _lag(self, equation: Equation, ref: Ref) -> bool:
        """Whether a reference reads the row before."""
        return equation in self.inner.equations and bool(self.inner.lag(equation, ref))

    def entries(self, equation: Equation) -> int:
        """How many entries of an array one row has."""
        row = self._row(self.equations[equation])
        others = (i for i in equation.indices if i.atom not in row.letters)
        return prod(high - low + 1 for low, high in map(self._range, others))

    def _row(self, equation: Equation) -> Poly:
        """The row of an equation of the loop, or of one that runs with it."""
        return self.follow[equation] if equation in self.follow else self.block.row(equation)

    def _runs(self, equation: Equation, row: int) -> bool:
        low, high = self._ends(equation)
        return low <= row <= high

    def _ends(self, equation: Equation) -> tuple[int, int]:
        """The first and the last row of an equation of the loop."""
        row = self._row(equation)
        ranges = {i.atom: self._range(i) for i in equation.indices if i.atom in row.letters}
        low, high = (
            row.substitute({a: Poly.of(ends[k]) for a, ends in ranges.items()}).at(self.sizes)
            for k in (0, 1)
        )
        return low, high

    def _range(self, index: Index) -> tuple[int, int]:
        """The ends of an index.

        Raises:
            Unsupported: they depend on another one.
        """
        if any(end.variables for end in index.ends):
            raise Unsupported(f"rows of a loop whose {index.name} has different ends")
        return (
            max(end.at(self.sizes) for end in index.lower),
            min(end.at(self.sizes) for end in index.upper),
        )
