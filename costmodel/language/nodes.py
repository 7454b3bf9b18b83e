"""What may stand in an equation? Arrays, positions, and scalar expressions.

A kind of node is a frozen record whose fields are its parts: expressions (`Node`), indices with
their ranges, polynomials in sizes and indices, positions. How an expression is gone through and
rebuilt follows from the fields (`map`, `fold`, `walk`, `rewrite`, `substitute`), for every kind.
What a kind means to a question stands in that question's table of rules (`rule_table.Rules`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar, Protocol, Self, TypeVar, dataclass_transform

from costmodel.errors import EquationError, Unsupported, WrongKind
from costmodel.language.indices import (
    Index,
    UnionIndex,
    one_by_one,
    outer_first,
)
from costmodel.symbolic.hashed_once import hashed_once
from costmodel.symbolic.polynomial import A_ROOT, Poly, axis_atom, call, is_index
from costmodel.symbolic.refused_operators import Written

T = TypeVar("T")
R = TypeVar("R")
P = TypeVar("P")


def _same(part: T) -> T:
    return part


class Parts:
    """A record whose fields are parts of an expression."""

    _fields: ClassVar[tuple[str, ...]] = ()

    def map(
        self,
        operand: Callable[[Node], Node],
        index: Callable[[Index], Index] = _same,
        poly: Callable[[Poly], Poly] = _same,
    ) -> Self:
        """The same record with each operand, index and polynomial in it replaced; the record itself
        where none changes. Operands are replaced whole: what is inside them is up to `operand`.
        """
        before = [getattr(self, name) for name in self._fields]
        after = [_mapped(part, operand, index, poly) for part in before]
        changed = any(new is not old for new, old in zip(after, before, strict=True))
        return type(self)(*after) if changed else self


def _mapped(
    part: Any,
    operand: Callable[[Node], Node],
    index: Callable[[Index], Index],
    poly: Callable[[Poly], Poly],
) -> Any:
    """A part with what is in it replaced, itself where nothing changes."""
    if isinstance(part, Poly):
        return poly(part)
    if isinstance(part, Node):
        return operand(part)
    if isinstance(part, Index):
        return index(part)
    if isinstance(part, Parts):
        return part.map(operand, index, poly)
    if isinstance(part, tuple):
        after = tuple([_mapped(one, operand, index, poly) for one in part])
        return after if any(x is not y for x, y in zip(after, part, strict=True)) else part
    return part


@dataclass_transform(frozen_default=True)
def record(made: type[R]) -> type[R]:
    """A frozen dataclass of parts whose hash is computed once."""
    made = hashed_once(dataclass(frozen=True)(made))
    made._fields = tuple(f.name for f in fields(made))  # type: ignore[arg-type,attr-defined]
    return made


@record
class Flat(Parts):
    """Two indices flattened into one axis: (outer-1)*extent + inner, with inner in 1..extent."""

    outer: Poly
    inner: Poly
    extent: Poly

    @property
    def value(self) -> Poly:
        """The position on the axis, counted from 1."""
        return (self.outer - 1) * self.extent + self.inner


@record
class Gather(Parts):
    """A position that is the value of an entry of an integer array, or the `inner` one in the block
    of `extent` that the value names, (value-1)*extent + inner: a gather, which is free."""

    at: Ref
    extent: Poly = Poly.of(1)
    inner: Poly = Poly.of(1)

    @property
    def outer(self) -> Gather:
        """The block that the entry names."""
        return Gather(self.at)

    def named(self, value: Poly) -> Position:
        """The position where the entry holds a value."""
        return value if self.extent == Poly.of(1) else Flat(value, self.inner, self.extent)


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


@record
class Node(Parts, Written):
    """A scalar expression."""

    def in_words(self) -> str:
        """As a message says what was given."""
        return "an expression"

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

    def __pow__(self, power: object) -> Node:
        raise WrongKind(f"powers are written as what is calculated, x * x for x ** 2; {A_ROOT}")

    def __neg__(self) -> Node:
        return Neg(self)

    @cached_property
    def children(self) -> tuple[Node, ...]:
        """The expressions directly inside, the entries that say where to gather among them."""
        return tuple(_operands([getattr(self, name) for name in self._fields]))

    @property
    def binders(self) -> tuple[Index, ...]:
        """The indices that run over their ranges for what is inside."""
        return ()

    @cached_property
    def arrays(self) -> frozenset[Array]:
        """The arrays that are read, those of positions among them."""
        return frozenset().union(*(child.arrays for child in self.children))

    def fold(self, rule: Callable[[Node, Sequence[T]], T]) -> T:
        """What a rule makes of the expression and of what it makes of the expressions inside."""
        return rule(self, [child.fold(rule) for child in self.children])


def _operands(parts: Iterable[Any]) -> Iterator[Node]:
    for part in parts:
        if isinstance(part, Node):
            yield part
        elif isinstance(part, Gather):
            yield part.at
        elif isinstance(part, tuple):
            yield from _operands(part)


KINDS: list[type[Node]] = []
"""Every kind of node, in the order in which they stand here."""


@dataclass_transform(frozen_default=True)
def kind(made: type[R]) -> type[R]:
    """A record that is one of `KINDS`: every table of rules has a line for it."""
    made = record(made)
    KINDS.append(made)  # type: ignore[arg-type]
    return made


@kind
class Constant(Node):
    """A number known before the input: `base ** (power / 2)`, a function of sizes; or the value of
    an index expression, such as the number of a row."""

    base: Poly
    half_power: int | Fraction = 2


@kind
class Ref(Node):
    """An entry of an array."""

    array: Array
    positions: tuple[Position, ...]

    def in_words(self) -> str:
        """As a message says what was given."""
        return f"an entry of {self.array.name}"

    @cached_property
    def arrays(self) -> frozenset[Array]:
        """The array, and those that say where to gather."""
        return frozenset({self.array}).union(*(child.arrays for child in self.children))


@record
class Binary(Node):
    """An operation on two expressions."""

    left: Node
    right: Node


@kind
class Add(Binary):
    """left + right."""


@kind
class Sub(Binary):
    """left - right."""


@kind
class Mul(Binary):
    """left * right."""


@kind
class Div(Binary):
    """left / right."""


@kind
class Maximum(Binary):
    """The larger of left and right: one comparison, with a sum over no term as with any 0."""


@kind
class Neg(Node):
    """Unary minus: free."""

    body: Node


@kind
class FreeScale(Node):
    """A constant factor that the weights already carry: it changes the value and costs nothing."""

    body: Node
    factor: Constant


@kind
class Call(Node):
    """A named function of `functions.TABLE`."""

    function: str
    body: Node


@kind
class Reduce(Node):
    """A sum (`sum`) or a maximum (`max`) over indices, whose ranges may be unions.

    Over unions its terms are those of all `parts` together. The parts are no operations of their
    own: R terms in all cost R - 1 additions, and are one cumulation.
    """

    kind: str
    body: Node
    over: tuple[Index, ...]

    @property
    def binders(self) -> tuple[Index, ...]:
        """What it runs over."""
        return self.over

    @property
    def scatters(self) -> bool:
        """Whether its terms are those that name an entry by number, of all that may: which they are
        depends on the values. R of them are added to zeros, R additions."""
        return isinstance(self.body, Bracket) and self.body.numbered

    @cached_property
    def parts(self) -> tuple[Reduce, ...]:
        """The terms at one range of each index, for every choice of ranges."""
        if not any(isinstance(index, UnionIndex) for index in self.over):
            return (self,)
        return tuple(Reduce(self.kind, self.body, over) for over in one_by_one(self.over))


@kind
class Bracket(Node):
    """`body` where `left` stands in a `relation` to `right`, `otherwise` elsewhere: Iverson's
    bracket, [left > right] body + [left <= right] otherwise.

    Where it holds is known from the forward pass, so that choosing is free, like a mask; both are
    computed. Without `otherwise` there is nothing elsewhere, like a sum over no term: adding it or
    multiplying by it costs nothing.
    """

    body: Node
    left: Node
    relation: str
    """`>` or `=`."""
    right: Node
    otherwise: Node | None = None
    first: tuple[Index, ...] = ()
    """Of the points that these indices run over, the first alone at which it holds."""

    @property
    def numbered(self) -> bool:
        """Whether it holds at the entry that an array of positions names."""
        at = self.right
        return not self.first and isinstance(at, Ref) and at.array.below is not None

    @property
    def named(self) -> frozenset[str]:
        """The variables of the entry that is named, by this bracket and those inside it."""
        inside = self.body.named if isinstance(self.body, Bracket) else frozenset()
        return inside | frozenset(v for p in polys_of(self.left) for v in p.variables)


@dataclass(frozen=True)
class Transform:
    """One kind of transform, and which kind carries gradients back through it."""

    latex: str
    adjoint: str = ""
    """Its transpose, which hands gradients from what it gives to its operand; none if empty."""
    of_libraries: str = ""
    """The transpose as libraries compute it; none if empty."""
    complex_points: bool = False
    """Whether it is a complex transform of all points, no half of which is spared."""
    doubled_bins: bool = False
    """Whether the bins that stand for two are multiplied by 2."""


TRANSFORMS: Mapping[str, Transform] = {
    "rfft": Transform(r"\mathrm{rfft}", "rfft-adjoint", "rfft-adjoint-complex"),
    "irfft": Transform(r"\mathrm{irfft}", "irfft-adjoint", "irfft-adjoint-doubled"),
    "fft": Transform(r"\mathrm{fft}", "fft-adjoint", "fft-adjoint", complex_points=True),
    "rfft-adjoint": Transform(r"\overline{\mathrm{rfft}}"),
    "irfft-adjoint": Transform(r"\overline{\mathrm{irfft}}"),
    "rfft-adjoint-complex": Transform(r"\overline{\mathrm{rfft}}", complex_points=True),
    "irfft-adjoint-doubled": Transform(r"\overline{\mathrm{irfft}}", doubled_bins=True),
    "fft-adjoint": Transform(r"\overline{\mathrm{fft}}", complex_points=True),
}


@kind
class Fft(Node):
    """An opaque transform along indices of its operand, zero-padded to `length` points.

    `rfft`: `over` is one index; the equation's left side adds a bin in 1..length/2+1 and a part
    (1 real, 2 imaginary). `irfft`: `over` is (bin, part); the left side adds a position in
    1..length. `fft`, of complex numbers: `over` is (position, part); the left side adds a bin in
    1..length and a part. The other kinds of `TRANSFORMS` carry gradients back from the left side of
    each to its operand. The arithmetic is nominal: radix-2 at powers of two, of other lengths as
    many butterflies with the logarithm rounded up, a real transform half of a complex one.
    """

    kind: str
    body: Ref
    over: tuple[Index, ...]
    length: Poly

    @property
    def binders(self) -> tuple[Index, ...]:
        """What is transformed."""
        return self.over

    def made(self, positions: Sequence[Position]) -> tuple[int, ...]:
        """The axes of the left side that it adds."""
        read = {*names_in(self.body.positions)}
        return tuple(k for k, at in enumerate(positions) if read.isdisjoint(names_in([at])))

    @property
    def work(self) -> dict[str, Poly]:
        """Operations by class: N log2 N multiplications and 3/2 N log2 N additions, half of a
        complex transform."""
        work = self.length * call("ceil_log2", self.length)
        if TRANSFORMS[self.kind].complex_points:
            work = work * 2
        doubled = self.length - 2 if TRANSFORMS[self.kind].doubled_bins else Poly()
        return {"mul": work + doubled, "add": work * 3 / 2}

    @property
    def levels(self) -> Poly:
        """How deep it is: every radix-2 level is a product of twiddles (2) and a sum (1)."""
        doubled = 1 if TRANSFORMS[self.kind].doubled_bins else 0
        return call("ceil_log2", self.length) * 3 + doubled


@kind
class Select(Node):
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
    def binders(self) -> tuple[Index, ...]:
        """What it chooses among."""
        return self.over

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


@kind
class Composite(Node):
    """A named combination that `composites.lower` writes out in the parts above."""

    name: str
    body: Node
    over: tuple[Index, ...] = ()
    by: Poly = Poly()

    @property
    def binders(self) -> tuple[Index, ...]:
        """What it runs over: indices of its own, or of the left side."""
        return self.over


class Operands(Node):
    """What a composite of several operands takes: no expression, and so no kind, of its own."""


OPAQUE = (Fft, Select, Composite)
"""What stands alone on the right side of an equation (a scale may stand anywhere)."""


def node(value: Any) -> Node:
    """A node from a node, a number or a size."""
    return value if isinstance(value, Node) else Constant(Poly.of(value))


class Owner(Protocol):
    """What an array belongs to: it reads positions and records equations."""

    name: str
    home: str

    def position(self, part: Any) -> Position:
        """An index expression as a position on an axis."""
        ...

    def define(self, array: Array, positions: tuple[Position, ...], value: Node) -> None:
        """Record an equation."""
        ...


GRADIENT = "gradient"
"""How an array comes from another one as its gradient."""

AGAIN = "again"
"""How an array comes from another one as the same, computed again."""


@dataclass(frozen=True)
class Origin:
    """Which array another one was made for: one that equations are written out with, and not one
    that an author declares."""

    of: Array
    how: str
    """`GRADIENT`, `AGAIN`, or what is written out: a composite by its name, a rewrite."""
    step: str = ""
    """Which step on the way it is; empty for the gradient itself, and the copy itself."""

    @property
    def name(self) -> str:
        """What the array is called: `x.grad` for the gradient of x, `x.grad.1` on the way to it."""
        how = {GRADIENT: "grad", AGAIN: "again"}.get(self.how, "")
        return ".".join(part for part in (self.of.name, how, self.step) if part)


def gradient_name(array: Array) -> str:
    """What the gradient of an array is called."""
    return Origin(array, GRADIENT).name


def derived(of: Array, how: str, step: str = "", **fields: Any) -> Array:
    """An intermediate array that is made for another one, with its shape, owner and number in the
    source where these are not among the `fields`."""
    origin = Origin(of, how, step)
    own = {"role": "intermediate", "shape": of.shape, "owner": of.owner, "cite": of.cite}
    own["rows"] = None if "shape" in fields else of.rows
    return Array(origin.name, origin=origin, **{**own, **fields})


@dataclass(frozen=True, eq=False)
class Array(Written):
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
    """Entries are integers in 1..below, positions of another array; None for real numbers. It may
    name the axes of the array, as rows up to the own one do."""
    origin: Origin | None = field(default=None, repr=False)
    """What it is to another array that it was made for."""
    rows: tuple[int, Poly] | None = None
    """Where rows lie on two axes, chunk and place: the first of these, and how many rows there are;
    the last chunk may be short."""
    value: Any = field(default=None, repr=False)
    """Of a buffer: its entries, as a function of their positions and the sizes or as a table."""

    def in_words(self) -> str:
        """As a message says what was given."""
        return f"the whole array {self.name}"

    def _of(self, how: str) -> Array | None:
        made = self.origin
        return made.of if made and made.how == how and not made.step else None

    @property
    def gradient_of(self) -> Array | None:
        """The array that this is the gradient of, whole."""
        return self._of(GRADIENT)

    @property
    def again(self) -> Array | None:
        """The array that is computed once more as this one."""
        return self._of(AGAIN)

    @property
    def made_for(self) -> tuple[Array, ...]:
        """The array that it was made for, the one that that was made for, and so on."""
        of = self.origin.of if self.origin else None
        return () if of is None else (of, *of.made_for)

    @property
    def step(self) -> str:
        """Which step it is on the way from what an author declares, such as `exp` of a softmax."""
        made = self.origin
        return ".".join(part for part in (made.of.step, made.step) if part) if made else ""

    def last(self, positions: Sequence[Position]) -> Poly:
        """The last position that an entry may hold.

        Raises:
            Unsupported: it depends on a position that is gathered itself.
        """
        assert self.below is not None
        axes = {axis_atom(k): p for k, p in enumerate(positions)}
        return self.below.substitute(
            {name: position_value(axes[name]) for name in self.below.letters & axes.keys()}
        )

    def _positions(self, key: Any) -> tuple[Position, ...]:
        parts = key if isinstance(key, tuple) else (key,)
        if len(parts) != len(self.shape):
            raise EquationError(
                f"{self.name} has {len(self.shape)} axes but is indexed with {len(parts)}"
            )
        return tuple(map(self._position, parts))

    def _position(self, part: Any) -> Position:
        try:
            return self.owner.position(part)
        except EquationError as error:
            if isinstance(part, Node):  # what is said names an array already
                raise
            raise type(error)(f"{error}; it indexes {self.name}") from None

    def __getitem__(self, key: Any) -> Ref:
        return Ref(self, self._positions(key))

    def __setitem__(self, key: Any, value: Any) -> None:
        positions = self._positions(key)
        try:
            self.owner.define(self, positions, node(value))
        except WrongKind as error:
            raise WrongKind(f"{self.name}: what it is: {error}") from None


Walked = tuple[tuple[Node, tuple[Index, ...]], ...]


def walk(expression: Node) -> Walked:
    """Every node with the indices around it that run over their ranges: what is inside a reduction
    over unions comes once for every choice of ranges."""
    known: dict[str, Walked] = expression.__dict__
    if "walked" not in known:
        known["walked"] = tuple(_walked(expression, ()))
    return known["walked"]


def _walked(expression: Node, over: tuple[Index, ...]) -> Iterator[tuple[Node, tuple[Index, ...]]]:
    yield expression, over
    for ranges in one_by_one(expression.binders):
        inner = over + tuple(index for index in outer_first(ranges) if index not in over)
        for child in expression.children:
            yield from _walked(child, inner)


def rewrite(
    expression: Node, change: Callable[[Node], Node], index: Callable[[Index], Index] = _same
) -> Node:
    """The expression with every node changed, inner ones first, and every index of one replaced."""

    def changed(inside: Node) -> Node:
        return change(inside.map(changed, index))

    return changed(expression)


def with_entries(expression: Node, others: Mapping[Ref, Ref]) -> Node:
    """The expression with some entries read in place of others."""

    def changed(inside: Node) -> Node:
        if isinstance(inside, Ref) and inside in others:
            return others[inside]
        return inside.map(changed)

    return changed(expression)


def reading(expression: Node, others: Mapping[Array, Array]) -> Node:
    """The expression with some arrays read in place of others."""

    def changed(inside: Node) -> Node:
        if isinstance(inside, Ref) and inside.array in others:
            return Ref(others[inside.array], inside.positions)
        return inside

    return rewrite(expression, changed)


def substitute(part: P, values: Mapping[str, Poly]) -> P:
    """An expression, position or index, or a tuple of them, with indices replaced throughout."""

    def poly(inside: Poly) -> Poly:
        return inside.substitute(values)

    def index(inside: Index) -> Index:
        return inside.substitute(values)

    def operand(inside: Node) -> Node:
        return inside.map(operand, index, poly)

    found: P = (
        part.map(operand, index, poly)
        if isinstance(part, Parts)
        else _mapped(part, operand, index, poly)
    )
    return found


def polys_of(part: Any) -> Iterator[Poly]:
    """The polynomials in a position or a node, without those of the expressions inside it and of
    the ranges of its indices."""
    if isinstance(part, Poly):
        yield part
    elif isinstance(part, tuple):
        for one in part:
            yield from polys_of(one)
    elif isinstance(part, (Flat, Node)):
        for name in part._fields:
            value = getattr(part, name)
            if isinstance(value, (Poly, Flat, tuple)):
                yield from polys_of(value)


def names_in(positions: Sequence[Position]) -> list[str]:
    """The atoms of the indices in some positions, in order of appearance."""
    found: dict[str, None] = {}
    for position in positions:
        if isinstance(position, Gather):
            found.update(dict.fromkeys(names_in((*position.at.positions, position.inner))))
            continue
        for part in polys_of(position):
            found.update(dict.fromkeys(sorted(a for a in part.letters if is_index(a))))
    return list(found)
