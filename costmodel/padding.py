"""What if the zeros around an array are part of it, as where a kernel needs whole rows?

Under `dense`, entries outside an array are zeros that are multiplied. An implementation copies the
array between zeros first: moves, free in the forward pass. The gradients of the zeros are computed
like all others, and dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from costmodel.constraints import Constraints, implied
from costmodel.equations import Equation, System
from costmodel.expressions import Array, Constant, Node, Position, Reduce, Ref
from costmodel.indices import Index, outer_first
from costmodel.polynomial import Poly
from costmodel.traversal import moved, rebuilt, walk

ONE = Poly.of(1)
Window = tuple[int, Poly, Poly]
"""An axis, and the first and the last of its positions that are read."""


def padded(system: System, *, rows: bool = False) -> System:
    """The same equations, reading arrays between zeros wherever they read outside of one.

    Args:
        rows: sums run over the entries of a weight that is read outside of its range, so that the
            rows beside it are (a convolution pads the sequence, and not its taps).
    """
    equations = [_by_taps(e) if rows else e for e in system.equations]
    pads = _Pads()
    changed = []
    for equation in equations:
        value = _between_zeros(equation, pads)
        changed += [*pads.new(), replace(equation, value=value)]
    return replace(system, equations=tuple(changed))


@dataclass
class _Pads:
    """The arrays with zeros around them, each written before what reads it first."""

    known: dict[tuple[Array, Window], Array] = field(default_factory=dict)
    waiting: list[Equation] = field(default_factory=list)

    def new(self) -> list[Equation]:
        """The equations of those that were made since."""
        found, self.waiting = self.waiting, []
        return found

    def array(self, of: Array, window: Window) -> Array:
        """An array whose axis holds the whole window."""
        if (of, window) not in self.known:
            taken = sum(known is of for known, _ in self.known)
            self.known[of, window] = self._made(of, window, f"{of.name}.pad{taken or ''}")
        return self.known[of, window]

    def _made(self, of: Array, window: Window, name: str) -> Array:
        axis, first, last = window
        shape = (*of.shape[:axis], last - first + 1, *of.shape[axis + 1 :])
        made = Array(name, "intermediate", shape, of.owner, of.cite)
        others = [Index(f"p{k}", (ONE,), (extent,)) for k, extent in enumerate(of.shape)]
        inside = Index("q", (ONE, 2 - first), (last - first + 1, of.shape[axis] + 1 - first))
        before = Index("q", (ONE,), (-first + 1,))
        behind = Index("q", (of.shape[axis] + 2 - first,), (last - first + 1,))
        for index in (inside, before, behind):
            places = [i.as_poly() for i in others]
            value: Node = Constant(Poly())
            if index is inside:
                source = [*places[:axis], index.as_poly() + first - 1, *places[axis + 1 :]]
                value = Ref(of, tuple(source))
            positions = (*places[:axis], index.as_poly(), *places[axis + 1 :])
            indices = (*others[:axis], index, *others[axis + 1 :])
            self.waiting.append(Equation(made, positions, value, indices, name))
        return made


def _between_zeros(equation: Equation, pads: _Pads) -> Node:
    """A right side that reads the padded array where it reads outside of one."""
    at: dict[Ref, Ref] = {}
    for node, over in walk(equation.value):
        if not isinstance(node, Ref):
            continue
        indices = (*equation.indices, *over)
        ref = node
        for window in _windows(node, indices):
            axis, first, _ = window
            place = ref.positions[axis]
            assert isinstance(place, Poly)
            positions = (*ref.positions[:axis], place - first + 1, *ref.positions[axis + 1 :])
            ref = Ref(pads.array(ref.array, window), positions)
        at[node] = ref
    return rebuilt(equation.value, lambda ref: at.get(ref, ref), lambda index: index)


def _windows(ref: Ref, indices: tuple[Index, ...]) -> Iterator[Window]:
    """The axes along which a reference reads outside of its array."""
    around: Constraints = frozenset().union(*(index.constraints for index in indices))
    for axis, (place, extent) in enumerate(zip(ref.positions, ref.array.shape, strict=True)):
        if isinstance(place, Poly) and not _within(place, extent, around):
            ends = _ends(place, indices)
            if ends is not None:
                yield axis, *ends


def _within(place: Position, extent: Poly, around: Constraints) -> bool:
    assert isinstance(place, Poly)
    return implied(around, place - 1) and implied(around, extent - place)


def _ends(place: Poly, indices: tuple[Index, ...]) -> tuple[Poly, Poly] | None:
    """The smallest and the largest value of a position whose indices have plain ranges; None for
    another one."""
    first = last = place
    for index in indices:
        slope = place.coefficient(index.atom).constant()
        if not slope:
            continue
        if len(index.ends) != 2 or any(a[0] == "@" for end in index.ends for a in end.letters):
            return None
        low, high = index.lower[0], index.upper[0]
        small, large = (low, high) if slope > 0 else (high, low)
        first, last = first.substitute({index.atom: small}), last.substitute({index.atom: large})
    return first, last


def _by_taps(equation: Equation) -> Equation:
    """A sum over rows, of weights that are read outside of their range, as one over the weights."""
    value = equation.value
    if not isinstance(value, Reduce):
        return equation
    for node, over in walk(value):
        if isinstance(node, Ref) and node.array.role == "parameter":
            indices = (*equation.indices, *over)
            for axis, _, _ in _windows(node, indices):
                place, extent = node.positions[axis], node.array.shape[axis]
                for row in value.over:
                    if isinstance(place, Poly) and place.coefficient(row.atom) == Poly.of(-1):
                        return replace(equation, value=_turned(value, row, place, extent))
    return equation


def _turned(value: Reduce, row: Index, place: Poly, extent: Poly) -> Reduce:
    """The sum over an index of its own in place of a row, which is read so far back."""
    tap = Index(row.name, (ONE,), (extent,))
    at = {row.atom: place}
    body = rebuilt(
        value.body,
        lambda ref: Ref(ref.array, tuple(moved(p, at) for p in ref.positions)),
        lambda index: index,
    )
    over = tuple(tap if index is row else index for index in value.over)
    return replace(value, body=body, over=tuple(outer_first(over)))
