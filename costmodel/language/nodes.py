"""What may stand in an equation? Arrays, positions, and scalar expressions.

Nodes are plain frozen records; each question about a mixer is a table of rules over them.

How is an expression gone through part by part, and how are its parts replaced?
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Protocol

from costmodel.errors import EquationError, Unsupported
from costmodel.language.indices import Index, UnionIndex, hashed_once, one_by_one, outer_first
from costmodel.symbolic.polynomial import Poly, call


@hashed_once
@dataclass(frozen=True)
class Flat:
    """Two indices flattened into one axis: (outer-1)*extent + inner, with inner in 1..extent."""

    outer: Poly
    inner: Poly
    extent: Poly

    @property
    def value(self) -> Poly:
        """The position on the axis, counted from 1."""
        return (self.outer - 1) * self.extent + self.inner


@dataclass(frozen=True)
class Gather:
    """A position that is the value of an entry of an integer array: a gather, which is free."""

    at: Ref


Position = Poly | Flat | Gather


def position_value(position: Position) -> Poly:
    """The position on its axis as one polynomial.

    Raises:
        Unsupported: a gather, whose position depends on values.
    """
    if isinstance(position, Gather):
        raise Unsupported(
            f"which position is meant depends on the values of {position.at.array.name}"
        )
    return position.value if isinstance(position, Flat) else position


@dataclass(frozen=True)
class Node:
    """A scalar expression."""

    def __add__(self, other: Any) -> Node:
        return Add(self, node(other))

    def __radd__(self, other: Any) -> Node:
        return Add(node(other), self)

    def __sub__(self, other: Any) -> Node:
        return Sub(self, node(other))

    def __rsub__(self, other: Any) -> Node:
        return Sub(node(other), self)

    def __mul__(self, other: Any) -> Node:
        return Mul(self, node(other))

    def __rmul__(self, other: Any) -> Node:
        return Mul(node(other), self)

    def __truediv__(self, other: Any) -> Node:
        return Div(self, node(other))

    def __rtruediv__(self, other: Any) -> Node:
        return Div(node(other), self)

    def __neg__(self) -> Node:
        return Neg(self)

    @property
    def children(self) -> tuple[Node, ...]:
        """The expressions directly inside."""
        return ()


@dataclass(frozen=True)
class Constant(Node):
    """A fixed number or function of sizes, known before the input: `base ** (power / 2)`."""

    base: Poly
    half_power: int = 2


@dataclass(frozen=True)
class IndexValue(Node):
    """The value of an index expression, such as the number of a row."""

    place: Poly


@hashed_once
@dataclass(frozen=True)
class Ref(Node):
    """An entry of an array."""

    array: Array
    positions: tuple[Position, ...]

    @property
    def children(self) -> tuple[Node, ...]:
        """The entries that say where to gather."""
        return tuple(p.at for p in self.positions if isinstance(p, Gather))


@hashed_once
@dataclass(frozen=True)
class Binary(Node):
    """An operation on two expressions."""

    left: Node
    right: Node

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.left, self.right)


class Add(Binary):
    """left + right."""


class Sub(Binary):
    """left - right."""


class Mul(Binary):
    """left * right."""


class Div(Binary):
    """left / right."""


class Around(Node):
    """An expression around one other."""

    body: Node

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.body,)


@dataclass(frozen=True)
class Neg(Around):
    """Unary minus: free."""

    body: Node


@hashed_once
@dataclass(frozen=True)
class Call(Around):
    """A named function of `functions.TABLE`."""

    function: str
    body: Node


@hashed_once
@dataclass(frozen=True)
class Reduce(Around):
    """A sum or a maximum over indices, each with one range."""

    kind: str
    body: Node
    over: tuple[Index, ...]

    def __post_init__(self) -> None:
        for index in self.over:
            if isinstance(index, UnionIndex):
                raise EquationError(f"{index.name} runs over a union: reduce with `reduction`")

    @property
    def parts(self) -> tuple[Reduce, ...]:
        """The reduction by itself."""
        return (self,)


@dataclass(frozen=True)
class Joined(Node):
    """One sum or maximum over indices of which some run over a union of ranges.

    Its terms are those of all `parts` together. The parts are no operations of their own: R terms
    in all cost R - 1 additions, and are one cumulation.
    """

    kind: str
    body: Node
    over: tuple[Index, ...]

    @property
    def children(self) -> tuple[Node, ...]:
        return self.parts

    @cached_property
    def parts(self) -> tuple[Reduce, ...]:
        """The terms at one range of each index, for every choice of ranges."""
        return tuple(Reduce(self.kind, self.body, over) for over in one_by_one(self.over))


Reduction = Reduce | Joined


def reduction(kind: str, body: Node, over: tuple[Index, ...]) -> Reduction:
    """A sum (`sum`) or a maximum (`max`) over indices, whether or not over unions of ranges."""
    unions = any(isinstance(index, UnionIndex) for index in over)
    return Joined(kind, body, over) if unions else Reduce(kind, body, over)


@dataclass(frozen=True)
class Where(Node):
    """`then` where `on` exceeds `above`, `otherwise` elsewhere: the forward pass has compared them,
    so that choosing is free, like a mask. Both branches are computed."""

    on: Node
    above: Poly
    then: Node
    otherwise: Node

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.on, self.then, self.otherwise)


@dataclass(frozen=True)
class First(Node):
    """`body` where `entry` is the first over some indices to equal `largest`, nothing elsewhere.

    What the forward pass has found: choosing is free. Nothing is like a sum over no term: adding it
    or multiplying by it costs nothing.
    """

    body: Node
    entry: Ref | IndexValue
    largest: Ref
    over: tuple[Index, ...]

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.body, self.entry, self.largest)


@dataclass(frozen=True)
class Folded(Around):
    """A constant factor that the weights already carry: it changes the value and costs nothing."""

    body: Node
    factor: Constant


@dataclass(frozen=True)
class Fft(Around):
    """An opaque real transform along indices of its operand, zero-padded to `length` points.

    `rfft`: `over` is one index; the equation's left side adds a bin in 1..length/2+1 and a part
    (1 real, 2 imaginary). `irfft`: `over` is (bin, part); the left side adds a position in
    1..length. `rfft-adjoint` and `irfft-adjoint`, their transposes, carry gradients back from the
    left side of each to its operand. The arithmetic is nominal: radix-2 at powers of two, half of
    a complex transform. Libraries carry gradients back otherwise: `rfft-adjoint-complex` is a
    complex transform of all points, and `irfft-adjoint-doubled` multiplies the bins that stand for
    two by 2.
    """

    kind: str
    body: Ref
    over: tuple[Index, ...]
    length: Poly

    @property
    def work(self) -> dict[str, Poly]:
        """Operations by class: N log2 N multiplications and 3/2 N log2 N additions, half of a
        complex transform."""
        work = self.length * call("ceil_log2", self.length)
        if self.kind == "rfft-adjoint-complex":
            work = work * 2
        doubled = self.length - 2 if self.kind == "irfft-adjoint-doubled" else Poly()
        return {"mul": work + doubled, "add": work * 3 / 2}

    @property
    def levels(self) -> Poly:
        """How deep it is: every radix-2 level is a product of twiddles (2) and a sum (1)."""
        doubled = 1 if self.kind == "irfft-adjoint-doubled" else 0
        return call("ceil_log2", self.length) * 3 + doubled


@dataclass(frozen=True)
class Select(Around):
    """An opaque choice among entries along one index: the positions, not the values, of some.

    `argmax`: the position of the largest entry. `top-k`: the equation's left side adds an index in
    1..K, and the positions of the K largest come in falling order. `sort`: it adds an index over
    as many values as there are entries, whose positions come in rising order. Of equal entries the
    first comes first. Comparisons are nominal: those of the algorithm that `SELECTIONS` names.
    """

    kind: str
    body: Ref
    over: tuple[Index, ...]
    rank: str = ""
    """The index of the left side that numbers the positions of one row; an argmax has none."""

    @property
    def maximum(self) -> Reduce:
        """The maximum over the same entries: it has as many of them."""
        return Reduce("max", self.body, self.over)


SELECTIONS: Mapping[str, str] = {
    "argmax": "a knockout, R - 1 comparisons of R entries",
    "top-k": "K knockouts, the entries found before masked but compared, K (R - 1) comparisons",
    "sort": "a bitonic network of the next power of two, P log2 P (log2 P + 1) / 4 comparisons",
}
"""What chooses positions, and the algorithm whose comparisons are counted.

Knockout and bitonic network: Knuth, The Art of Computer Programming, volume 3, sections 5.2.3 and
5.3.4; Batcher 1968, Sorting networks and their applications. Repeated argmax under a mask: top_k of
Mesh TensorFlow (Shazeer et al. 2018, arXiv 1811.02084); a masked entry is compared like any other,
so that K positions of R entries take K (R - 1) comparisons.
"""


@dataclass(frozen=True)
class Composite(Around):
    """A named combination that `composites.lower` writes out in the parts above."""

    name: str
    body: Node
    over: tuple[Index, ...] = ()
    by: Poly = Poly()


def node(value: Any) -> Node:
    """A node from a node, a number or a size."""
    return value if isinstance(value, Node) else Constant(Poly.of(value))


class Owner(Protocol):
    """What an array belongs to: it reads positions and records equations."""

    name: str

    def position(self, part: Any) -> Position:
        """An index expression as a position on an axis."""
        ...

    def define(self, array: Array, positions: tuple[Position, ...], value: Node) -> None:
        """Record an equation."""
        ...


@dataclass(frozen=True, eq=False)
class Array:
    """An array with a role; entries are counted from 1. Identity is the object itself."""

    name: str
    role: str
    shape: tuple[Poly, ...]
    owner: Owner = field(repr=False)
    cite: str = ""
    latex: str = ""
    kernel: str = "contraction"
    """The kernel class in which a peer meets the reductions over products of its equation."""
    below: Poly | None = None
    """Entries are integers in 1..below, positions of another array; None for real numbers."""

    def _positions(self, key: Any) -> tuple[Position, ...]:
        parts = key if isinstance(key, tuple) else (key,)
        if len(parts) != len(self.shape):
            raise EquationError(
                f"{self.name} has {len(self.shape)} axes but is indexed with {len(parts)}"
            )
        return tuple(self.owner.position(part) for part in parts)

    def __getitem__(self, key: Any) -> Ref:
        return Ref(self, self._positions(key))

    def __setitem__(self, key: Any, value: Any) -> None:
        self.owner.define(self, self._positions(key), node(value))


def names_in(positions: Sequence[Position]) -> list[str]:
    """Index atoms of the left side, in order of appearance."""
    found: dict[str, None] = {}
    for position in positions:
        if isinstance(position, Gather):
            found.update(dict.fromkeys(names_in(position.at.positions)))
            continue
        parts = (position.outer, position.inner) if isinstance(position, Flat) else (position,)
        for part in parts:
            found.update(dict.fromkeys(sorted(a for a in part.letters if a.startswith("@"))))
    return list(found)


Walked = tuple[tuple[Node, tuple[Index, ...]], ...]


def walk(expression: Node) -> Walked:
    """Every node with the reduction indices around it."""
    known: dict[str, Walked] = expression.__dict__
    if "walked" not in known:
        known["walked"] = tuple(_walked(expression, ()))
    return known["walked"]


def _walked(expression: Node, over: tuple[Index, ...]) -> Iterator[tuple[Node, tuple[Index, ...]]]:
    yield expression, over
    inner = over
    if isinstance(expression, (Reduce, Fft, Select)):
        inner = over + tuple(outer_first(expression.over))
    elif isinstance(expression, Composite):
        inner = over + tuple(i for i in expression.over if i not in over)
    for child in expression.children:
        yield from _walked(child, inner)


def rebuilt(
    expression: Node, entry: Callable[[Ref], Node], index: Callable[[Index], Index]
) -> Node:
    """The same expression with every reference and every index of a reduction replaced."""
    if isinstance(expression, Ref):
        return entry(expression)
    changed: dict[str, Any] = {}
    for part in fields(expression):
        value = getattr(expression, part.name)
        if isinstance(value, Node):
            changed[part.name] = rebuilt(value, entry, index)
        elif part.name == "over":
            changed[part.name] = tuple(map(index, value))
    return replace(expression, **changed) if changed else expression


def moved(position: Position, values: Mapping[str, Poly]) -> Position:
    """A position with indices replaced."""
    if isinstance(position, Gather):
        where = tuple(moved(p, values) for p in position.at.positions)
        return Gather(Ref(position.at.array, where))
    if isinstance(position, Flat):
        parts = (position.outer, position.inner, position.extent)
        return Flat(*(part.substitute(values) for part in parts))
    return position.substitute(values)


def reading(node: Node, others: Mapping[Array, Array]) -> Node:
    """The same expression with some arrays read in place of others, and gathered from as well."""

    def entry(ref: Ref) -> Ref:
        positions = tuple(position(p) for p in ref.positions)
        return Ref(others.get(ref.array, ref.array), positions)

    def position(place: Position) -> Position:
        return Gather(entry(place.at)) if isinstance(place, Gather) else place

    return rebuilt(node, entry, lambda index: index)
