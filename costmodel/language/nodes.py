"""The parts of an equation: arrays, positions, and scalar expressions.

A kind of node is a frozen record whose fields are its parts: expressions (`Node`), indices with
their ranges, polynomials in sizes and indices, positions. Traversal and rebuilding (`map`, `fold`,
`walk`, `refs`, `rewrite`, `substitute`) are derived from the fields, for every kind. What holds of
a kind whatever is asked stands in its declaration (`kind`); what it means for a question is a rule
in that question's table (`rule_table.Rules`).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from fractions import Fraction
from functools import cache, cached_property
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
from costmodel.symbolic.refused_operators import (
    Written,
    compared_by_structure,
    refuse_truth,
)

T = TypeVar("T")
R = TypeVar("R")
P = TypeVar("P")


def _same(part: T) -> T:
    return part


class Parts:
    """A record whose fields are parts of an expression."""

    _fields: ClassVar[tuple[str, ...]] = ()
    _with_polys: ClassVar[tuple[str, ...]] = ()
    """The fields that hold polynomials or positions."""

    def map(
        self,
        operand: Callable[[Node], Node],
        index: Callable[[Index], Index] = _same,
        poly: Callable[[Poly], Poly] = _same,
    ) -> Self:
        """The record with each operand, index and polynomial in its fields replaced by what the
        functions return; the record itself if none changes. Operands of operands are left to the
        function `operand`."""
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
    """The value of a record's field with operands, indices and polynomials replaced by what the
    functions return, in nested records and tuples too; the same object if nothing changes."""
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


_POLYS = re.compile(r"\b(Poly|Position)\b")
"""What the type of a field names if the field holds polynomials."""


@dataclass_transform(frozen_default=True)
def record(made: type[R]) -> type[R]:
    """Decorate a class of parts of equations: it becomes a frozen dataclass whose hash is computed
    once, with the names of its fields in `_fields`. Returns the class."""
    new: Any = hashed_once(dataclass(frozen=True)(made))
    new._fields = tuple(field.name for field in fields(new))
    new._with_polys = tuple(f.name for f in fields(new) if _POLYS.search(str(f.type)))
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
    """A gather: the position is the value of `at`, an entry of an array of positions; to follow it
    is free. With blocks of `extent` positions it is (value-1)*extent + inner."""

    at: Ref
    extent: Poly = Poly.of(1)
    inner: Poly = Poly.of(1)

    @property
    def outer(self) -> Gather:
        """The gather whose position is the number of the block: the value of `at` alone."""
        return Gather(self.at)

    def named(self, value: Poly) -> Position:
        """The position if the entry `at` has this value."""
        return value if self.extent == Poly.of(1) else Flat(value, self.inner, self.extent)


Position = Poly | Flat | Gather


def position_value(position: Position) -> Poly:
    """The position on its axis as one polynomial; a flattening (outer, inner) becomes (outer-1)*h +
    inner.

    Raises:
        Unsupported: a gather, whose position depends on values.
    """
    if isinstance(position, Gather):
        raise Unsupported(
            f"{position.at.array.name} selects positions by its values: the answer needs positions "
            "that follow from indices and sizes alone"
        )
    return position.value if isinstance(position, Flat) else position


@record
class Node(Parts, Written):
    """A scalar expression."""

    free: ClassVar[bool]
    """Whether a node of this kind costs nothing, so that copies of it are free."""
    alone: ClassVar[str]
    """For a kind that must be a whole right-hand side (if it binds indices): what it does to its
    operand, in words; else ""."""

    def in_words(self) -> str:
        """The node, in words for messages."""
        return "an expression"

    __bool__ = refuse_truth

    def __add__(self, other: Any) -> Node:
        return Add(self, self.operand(other, node))

    def __radd__(self, other: Any) -> Node:
        return Add(self.operand(other, node), self)

    def __sub__(self, other: Any) -> Node:
        return Sub(self, self.operand(other, node))

    def __rsub__(self, other: Any) -> Node:
        return Sub(self.operand(other, node), self)

    def __mul__(self, other: Any) -> Node:
        return Mul(self, self.operand(other, node))

    def __rmul__(self, other: Any) -> Node:
        return Mul(self.operand(other, node), self)

    def __truediv__(self, other: Any) -> Node:
        return Div(self, self.operand(other, node))

    def __rtruediv__(self, other: Any) -> Node:
        return Div(self.operand(other, node), self)

    def __pow__(self, power: object, modulus: object = None) -> Node:
        raise WrongKind(f"powers are written as products, x * x for x ** 2; {A_ROOT}")

    def __neg__(self) -> Node:
        return Neg(self)

    @cached_property
    def children(self) -> tuple[Node, ...]:
        """The direct subexpressions, and the entries `at` of gathers."""
        return tuple(_operands([getattr(self, name) for name in self._fields]))

    @property
    def binders(self) -> tuple[Index, ...]:
        """The indices that this node itself reduces over, or runs along; () for most kinds."""
        return ()

    @cached_property
    def arrays(self) -> frozenset[Array]:
        """The arrays that are read, arrays of positions included."""
        return frozenset().union(*(child.arrays for child in self.children))

    @property
    def is_free(self) -> bool:
        """Whether the node and all nodes inside it cost nothing."""
        return self.free and all(child.is_free for child in self.children)

    @property
    def names(self) -> tuple[str, ...]:
        """The values of the fields that are texts, such as the name of a function."""
        every = (getattr(self, name) for name in self._fields)
        return tuple(field for field in every if isinstance(field, str))

    @property
    def parts(self) -> Sequence[Node]:
        """The node alone; for a `Reduce`, one node for each choice of one range per index."""
        return (self,)

    def fold(self, rule: Callable[[Node, Sequence[T]], T]) -> T:
        """Evaluate bottom-up: the rule gets each node and the results of its children."""
        return rule(self, [child.fold(rule) for child in self.children])


def _operands(parts: Iterable[Any]) -> Iterator[Node]:
    """Yield the expressions in the fields of a node: in nested tuples and in gathers (reads at
    positions that data choose) too."""
    for part in parts:
        if isinstance(part, Node):
            yield part
        elif isinstance(part, Gather):
            yield part.at
        elif isinstance(part, tuple):
            yield from _operands(part)


KINDS: list[type[Node]] = []
"""Every kind of node, in the order of definition."""


@dataclass_transform(frozen_default=True)
def kind(*, free: bool, alone: str) -> Callable[[type[R]], type[R]]:
    """Decorate a class as a kind of node, listed in `KINDS`; every table of rules then needs a rule
    for it.

    Args:
        free: whether the node costs nothing, such as an entry, a constant or a unary minus.
        alone: what the node does to its operand, for messages ("transforms", "scans"), if it must
            be a whole right side; else "".

    Raises:
        TypeError: a second kind has a field `array`, though `refs` finds one kind of reference.
    """

    def declared(made: type[R]) -> type[R]:
        """The same class, changed into a record that compares by structure, and added to `KINDS`.
        TypeError for a second kind with a field `array`."""
        new: Any = compared_by_structure(record(made))
        new.free, new.alone = free, alone
        first = next((known for known in KINDS if "array" in known._fields), new)
        if "array" in new._fields and first is not new:
            raise TypeError(
                f"{new.__name__} has a field 'array', which {first.__name__} alone may have: give "
                "the field another name"
            )
        KINDS.append(new)
        return made

    return declared


@kind(free=True, alone="")
class Constant(Node):
    """A number known before the input: `base ** (half_power / 2)`, in sizes (sqrt(d) has base d and
    half_power 1); or the value of an index expression, such as a row number."""

    base: Poly
    half_power: int | Fraction = 2


@kind(free=True, alone="")
class Ref(Node):
    """An entry of an array."""

    array: Array
    positions: tuple[Position, ...]

    def in_words(self) -> str:
        """The node, in words for messages."""
        return f"an entry of {self.array.name}"

    @cached_property
    def arrays(self) -> frozenset[Array]:
        """The array, and the arrays of positions by which it is gathered."""
        return frozenset({self.array}).union(*(child.arrays for child in self.children))


@record
class Binary(Node):
    """An operation on two expressions."""

    left: Node
    right: Node


@kind(free=False, alone="")
class Add(Binary):
    """left + right."""


@kind(free=False, alone="")
class Sub(Binary):
    """left - right."""


@kind(free=False, alone="")
class Mul(Binary):
    """left * right."""


@kind(free=False, alone="")
class Div(Binary):
    """left / right."""


@kind(free=False, alone="")
class Maximum(Binary):
    """The larger of left and right: one comparison, even if an operand is an empty sum."""


@kind(free=True, alone="")
class Neg(Node):
    """Unary minus: free."""

    body: Node


@kind(free=True, alone="")
class FreeScale(Node):
    """A constant factor that is part of the weights: it changes the value, at no cost."""

    body: Node
    factor: Constant


@kind(free=False, alone="")
class Call(Node):
    """A named function of `functions.TABLE`."""

    function: str
    body: Node


@kind(free=False, alone="")
class Reduce(Node):
    """A sum (`sum`) or a maximum (`max`) over indices, whose ranges may be unions. Over unions the
    terms are those of all `parts` together, as one operation: R terms in all take R - 1
    additions."""

    kind: str
    body: Node
    over: tuple[Index, ...]

    @property
    def binders(self) -> tuple[Index, ...]:
        """The indices that are bound."""
        return self.over

    @property
    def scatters(self) -> bool:
        """Whether this is a scatter: the values of an array of positions say which terms belong to
        an entry. R terms are added to zeros, by R additions."""
        return isinstance(self.body, Bracket) and self.body.numbered

    @cached_property
    def parts(self) -> Sequence[Reduce]:
        """One reduction for each choice of one range per index."""
        if not any(isinstance(index, UnionIndex) for index in self.over):
            return (self,)
        return tuple(Reduce(self.kind, self.body, over) for over in one_by_one(self.over))


@kind(free=False, alone="")
class Bracket(Node):
    """Iverson's bracket: `body` where `left relation right` holds, `otherwise` elsewhere.

    Whether the relation holds is known from the forward pass, so the choice is free, like a mask;
    both values are computed. Without `otherwise` the bracket is empty elsewhere, like a sum over no
    term: adding it or multiplying by it costs nothing.
    """

    body: Node
    left: Node
    relation: str
    """`>` or `=`."""
    right: Node
    otherwise: Node | None = None
    first: tuple[Index, ...] = ()
    """Indices over points; the bracket holds only at the first point that satisfies it."""

    @property
    def numbered(self) -> bool:
        """Whether the relation holds at the place that an entry of an array of positions names."""
        at = self.right
        return not self.first and isinstance(at, Ref) and at.array.below is not None

    @property
    def named(self) -> frozenset[str]:
        """The variables of `left`, in this bracket and in those directly inside it: {"@i"} for a
        bracket that holds where i equals an entry of an array of positions."""
        own = frozenset(v for p in polys_of(self.left) for v in p.variables)
        match self.body:
            case Bracket() as inside:
                return own | inside.named
            case _:
                return own


@dataclass(frozen=True)
class Transform:
    """One kind of transform, and the kinds of its gradient."""

    latex: str
    adjoint: str = ""
    """The transpose, from gradients of the result to gradients of the operand; or ""."""
    of_libraries: str = ""
    """The transpose as libraries compute it; "" without one."""
    complex_points: bool = False
    """Whether it is a complex transform of all points, counted in full and not as half."""
    doubled_bins: bool = False
    """Whether the bins that count twice are multiplied by 2."""


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


@record
class Along(Node):
    """An opaque operation along the indices `over` of an entry `body`, by a named algorithm on
    `length` points: the left side has one or two indices of its own in their place."""

    kind: str
    body: Ref
    over: tuple[Index, ...]
    length: Poly

    @property
    def binders(self) -> tuple[Index, ...]:
        """The indices along which it goes."""
        return self.over

    @property
    def work(self) -> dict[str, Poly]:
        """Class, such as "mul" -> the number of operations of the algorithm on one row."""
        raise NotImplementedError

    @property
    def levels(self) -> Poly:
        """The depth: dependent operations of the algorithm."""
        raise NotImplementedError


@kind(free=False, alone="transforms")
class Fft(Along):
    """An opaque transform along indices of its operand, zero-padded to `length` points.

    `rfft`: `over` is one index; the equation's left side has a bin in 1..length/2+1 and a part (1
    real, 2 imaginary) instead. `irfft`: `over` is (bin, part); the left side has a position in
    1..length. `fft`, of complex numbers: `over` is (position, part); the left side has a bin in
    1..length and a part. The other kinds in `TRANSFORMS` are their gradients. Operations are
    nominal: radix-2 at powers of two, and at other lengths as many butterflies with the logarithm
    rounded up; a real transform is half of a complex one.
    """

    @property
    def work(self) -> dict[str, Poly]:
        """Class -> the number of operations of one transform of N points: N log2 N multiplications
        and 3/2 N log2 N additions for a real transform, twice as many for a complex one (radix 2;
        log2 is rounded up); in some adjoint transforms also a doubling of each bin but the first
        and, for even N, the last: N - 2 numbers, N - 1 for odd N."""
        work = self.length * call("ceil_log2", self.length)
        if TRANSFORMS[self.kind].complex_points:
            work = work * 2
        doubled = (self.length - 1) // 2 * 2 if TRANSFORMS[self.kind].doubled_bins else Poly()
        return {"mul": work + doubled, "add": work * 3 / 2}

    @property
    def levels(self) -> Poly:
        """The depth: every radix-2 level is a twiddle product (2) and a sum (1)."""
        doubled = 1 if TRANSFORMS[self.kind].doubled_bins else 0
        return call("ceil_log2", self.length) * 3 + doubled


@kind(free=False, alone="scans")
class Scan(Along):
    """An opaque linear recurrence along one index w of `body`, by an algorithm of `SCANS`: entry i
    of the result is `body` at i plus the entry before i times `kept` at i. With `reverse` (the
    gradient of a scan) it is `body` at i plus the entry after i times `kept` at i + 1.

    The algorithms combine spans of rows. Two neighbours (decay of a span, sum of its rows) give
    (late decay * early decay, late decay * early sum + late sum), which takes two multiplications
    and one addition. The product of decays is taken once for all entries of `body` that share
    `kept`. The decay of the first row is multiplied like any other and changes no result.
    """

    kept: Ref
    reverse: bool = False

    @property
    def combinations(self) -> Poly:
        """How many pairs of spans are combined for N = `length` rows, as `SCANS` says."""
        stages = call("ceil_log2", self.length)
        padded = call("pow2", stages)
        if self.kind == BRENT_KUNG:
            return padded * 2 - 2 - stages
        return self.length * stages - padded + 1

    @property
    def work(self) -> dict[str, Poly]:
        """One product and one sum for each combination; the product of decays is counted apart."""
        return {"mul": self.combinations, "add": self.combinations}

    @property
    def levels(self) -> Poly:
        """The depth: a product and a sum for each round; a combination waits for both spans."""
        stages = call("ceil_log2", self.length)
        if self.kind == BRENT_KUNG:
            return call("Max", stages * 2, stages * 4 - 4)
        return stages * 2


BRENT_KUNG = "brent-kung"
"""The kind that a scan becomes under the convention `scan=brent-kung`."""

SCANS: Mapping[str, str] = {
    "kogge-stone": "Kogge and Stone's, N L - P + 1 combinations in L rounds",
    BRENT_KUNG: "Brent and Kung's, 2P - L - 2 combinations in max(L, 2L - 2) rounds",
}
"""Kind of scan -> its algorithm for N rows, with L = log2 N rounded up and P = 2^L.

Kogge and Stone 1973 (also Hillis and Steele 1986): round p combines each row with the row 2^p
before it, if there is one. Brent and Kung 1982 (also Blelloch 1990; jax.lax.associative_scan):
neighbours are combined, the pairs are scanned, and every other row gets one more combination. Rows
are padded to P here, as a nominal count; jax pads none.
"""


@kind(free=False, alone="chooses from")
class Select(Node):
    """An opaque selection along one index: the positions, not the values, of some entries.

    `argmax`: the position of the largest entry. `top-k`: the left side has an index in 1..K, for
    the positions of the K largest entries in descending order. `sort`: the left side has an index
    with as many values as entries, for their positions in ascending order. Ties: the first of equal
    entries comes first. Comparisons are nominal: those of the algorithm in `SELECTIONS`.
    """

    kind: str
    body: Ref
    over: tuple[Index, ...]
    rank: str = ""
    """The index of the left side that numbers the positions of a row; "" for argmax."""

    @property
    def binders(self) -> tuple[Index, ...]:
        """The index of the entries."""
        return self.over

    @property
    def sorts(self) -> bool:
        """Whether the selection gives all positions, in ascending order of the entries."""
        return self.kind in ("sort", MERGE_SORT)

    @property
    def maximum(self) -> Reduce:
        """The maximum over the same entries, which has as many terms."""
        return Reduce("max", self.body, self.over)


MERGE_SORT = "merge-sort"
"""The kind that a sort becomes under the convention `sort=merge`."""

SELECTIONS: Mapping[str, str] = {
    "argmax": "a knockout tournament, R - 1 comparisons of R entries",
    "top-k": "K knockout tournaments of all R entries, K (R - 1) comparisons",
    "sort": "a bitonic network of the next power of two, P log2 P (log2 P + 1) / 4 comparisons",
    MERGE_SORT: "a merge sort of the next power of two, P log2 P comparisons",
}
"""Kind of selection -> the algorithm whose comparisons are counted.

Knockout and bitonic network: Knuth, The Art of Computer Programming, volume 3, sections 5.2.3 and
5.3.4; Batcher 1968, Sorting networks and their applications. Repeated argmax under a mask: top_k of
Mesh TensorFlow (Shazeer et al. 2018, arXiv 1811.02084); a masked entry is compared like any other,
so that K positions of R entries take K (R - 1) comparisons.
"""


@kind(free=False, alone="combines")
class Composite(Node):
    """A macro, such as softmax or a norm, which lowering expands to equations of the kinds above:
    its name, its operand or `Operands`, and the indices that it runs over."""

    name: str
    body: Node
    over: tuple[Index, ...] = ()
    by: Poly = Poly()
    """Of `scaled` alone: the size by whose square root the body is divided."""

    @property
    def binders(self) -> tuple[Index, ...]:
        """The bound indices, which may be indices of the left side."""
        return self.over


class Operands(Node):
    """The operands of a composite with several: not an expression, and not a kind of its own."""

    free, alone = False, ""


OPAQUE = tuple(kind for kind in KINDS if kind.alone)
"""Kinds that must be a whole right-hand side (except a composite for a scale)."""


def node(value: Any) -> Node:
    """A node from a node, a number or a size. WrongKind for a number that no float holds."""
    number = isinstance(value, (int, Fraction)) and not isinstance(value, bool)
    if number and not -sys.float_info.max <= value <= sys.float_info.max:
        raise WrongKind(f"a constant is at most {sys.float_info.max:.1e}, got a larger one")
    return value if isinstance(value, Node) else Constant(Poly.of(value))


class Owner(Protocol):
    """The mixer that declares an array, as arrays need it: it parses positions and records
    equations."""

    name: str
    home: str

    @property
    def bounds(self) -> frozenset[Poly]:
        """The differences, at least 0, of a size that the mixer bounds and its bound."""
        ...

    def position(self, part: Any) -> Position:
        """An index expression as a position on an axis."""
        ...

    def define(self, array: Array, positions: tuple[Position, ...], value: Node) -> None:
        """Record an equation."""
        ...


GRADIENT = "gradient"
"""The relation of a gradient to its array."""

AGAIN = "again"
"""The relation of a recomputed copy to its array."""

MASKED = "masked"
"""The step of a softmax that adds a mask to the scores, under `mask=add`."""


@dataclass(frozen=True)
class Origin:
    """The array for which another array was made, by lowering or by differentiation."""

    of: Array
    how: str
    """`GRADIENT`, `AGAIN`, or the name of the composite or rewrite that is expanded."""
    step: str = ""
    """The name of an intermediate step; "" for the gradient or copy itself."""

    @property
    def name(self) -> str:
        """The name of the new array: `x.grad` for the gradient of x, `x.grad.1` for a step."""
        how = {GRADIENT: "grad", AGAIN: "again"}.get(self.how, "")
        return ".".join(part for part in (self.of.name, how, self.step) if part)


def derived(of: Array, how: str, step: str = "", **fields: Any) -> Array:
    """A new intermediate array made for the array `of`: its gradient (`how` is GRADIENT), its copy
    that is computed again (AGAIN), or a `step` of one of these or of an expanded composite (`how`
    is its name). The array has the shape, owner and citation of `of` unless `fields` give
    others."""
    origin = Origin(of, how, step)
    own = {"role": "intermediate", "shape": of.shape, "owner": of.owner, "cite": of.cite}
    own["rows"] = None if "shape" in fields else of.rows
    return Array(origin.name, origin=origin, **{**own, **fields})


@dataclass(frozen=True, eq=False)
class Array(Written):
    """An array with a role; entries are counted from 1. Arrays are compared by identity."""

    name: str
    role: str
    shape: tuple[Poly, ...]
    owner: Owner = field(repr=False)
    cite: str = ""
    latex: str = ""
    kernel: str = "contraction"
    """The kernel class under which peers count the sums over products in the array's equation."""
    below: Poly | None = None
    """For an array of positions: entries are integers in 1..below, a bound that may depend on the
    entry's own positions, `#0` on the first axis. None for an array of real numbers."""
    origin: Origin | None = field(default=None, repr=False)
    """The array for which this array was made, and how; None for declared arrays."""
    rows: tuple[int, Poly] | None = None
    """(axis, number of rows) if rows lie on two axes, chunk (this axis) and place (the next); the
    last chunk may be short."""
    value: Any = field(default=None, repr=False)
    """For a buffer: its entries, as a table or as a function of positions and sizes."""
    cancels: bool = field(default=False, repr=False)
    """Whether the output is the same for any entries, as for the maximum m that a softmax subtracts
    in exp(s - m) / sum of exp(s - m): the entries get no gradient."""

    def in_words(self) -> str:
        """The array, in words for messages."""
        return f"the whole array {self.name}"

    def _of(self, how: str) -> Array | None:
        made = self.origin
        return made.of if made and made.how == how and not made.step else None

    @property
    def gradient_of(self) -> Array | None:
        """The array whose complete gradient this array is; else None."""
        return self._of(GRADIENT)

    @property
    def again(self) -> Array | None:
        """The array whose recomputed copy this array is; else None."""
        return self._of(AGAIN)

    @property
    def made_for(self) -> tuple[Array, ...]:
        """The array for which this array was made, and so on; () for a declared array."""
        of = self.origin.of if self.origin else None
        return () if of is None else (of, *of.made_for)

    @property
    def step(self) -> str:
        """The steps from the declared array to this array, such as `exp` of a softmax, or ""."""
        made = self.origin
        return ".".join(part for part in (made.of.step, made.step) if part) if made else ""

    def last(self, positions: Sequence[Position]) -> Poly:
        """The largest position that the entry at `positions` of an array of positions may hold, a
        polynomial: for below=lambda i: i and the position t, t.

        Raises:
            Unsupported: the bound depends on a position that is gathered itself.
        """
        assert self.below is not None
        axes = {axis_atom(k): p for k, p in enumerate(positions)}
        return self.below.substitute(
            {name: position_value(axes[name]) for name in self.below.letters & axes.keys()}
        )

    def _positions(self, key: Any) -> tuple[Position, ...]:
        """The positions for the index expressions `key` in square brackets, a tuple or a single
        one; EquationError if there are more or fewer expressions than axes."""
        parts = key if isinstance(key, tuple) else (key,)
        if len(parts) != len(self.shape):
            raise EquationError(
                f"{self.name} has {len(self.shape)} axes but is indexed with {len(parts)} "
                "positions: give one position for each axis"
            )
        return tuple(map(self._position, parts))

    def _position(self, part: Any) -> Position:
        """The position on an axis that one index expression stands for. An EquationError about an
        expression that names no array is raised again with this array's name."""
        try:
            return self.owner.position(part)
        except EquationError as error:
            if isinstance(part, Node):  # the message already names an array
                raise
            raise type(error)(f"an index of {self.name}: {error}") from None

    def __getitem__(self, key: Any) -> Ref:
        return Ref(self, self._positions(key))

    def __setitem__(self, key: Any, value: Any) -> None:
        """Record the equation self[key] = value in the form being written."""
        positions = self._positions(key)
        try:
            self.owner.define(self, positions, node(value))
        except WrongKind as error:
            raise WrongKind(f"the value of {self.name}: {error}") from None


MOST_NESTED = 1000
"""How deep operations may be nested in one expression, as in a written sum x + x + ... ."""

FRAMES_PER_LEVEL, FRAMES_AROUND = 10, 800
"""At least as many stack frames as a recursion over an expression takes per nested operation, and
as its callers take."""


MOST_BESIDE = 100
"""`has_room` looks for equal objects in a level of an expression that has more parts than this."""


def has_room(expression: Node) -> bool:
    """Whether an expression nests at most `MOST_NESTED` operations. If so, Python's limit of
    recursion is raised where recursion over the expression needs more."""
    depth, level = 0, [expression]
    while level and depth <= MOST_NESTED:
        depth += 1
        level = [child for one in level for child in one.children]
        if len(level) > MOST_BESIDE:  # an object that stands in several places is followed once
            level = list({id(child): child for child in level}.values())
    if level:
        return False
    frames = FRAMES_AROUND + FRAMES_PER_LEVEL * depth
    sys.setrecursionlimit(max(sys.getrecursionlimit(), frames))
    return True


Walked = tuple[tuple[Node, tuple[Index, ...]], ...]


def walk(expression: Node) -> Walked:
    """Pairs (node, indices of the reductions around the node) for an expression and all nodes
    inside it. Inside a reduction over unions of ranges, a node occurs once per choice of ranges."""
    known: dict[str, Walked] = expression.__dict__
    if "walked" not in known:
        found: list[tuple[Node, tuple[Index, ...]]] = []
        _walk(expression, (), found)
        known["walked"] = tuple(found)
    return known["walked"]


def _walk(
    expression: Node, over: tuple[Index, ...], found: list[tuple[Node, tuple[Index, ...]]]
) -> None:
    """Add to `found` the pairs (node, indices of the reductions around it) of an expression and all
    nodes inside; `over` are the indices around the expression itself. A reduction over unions of
    ranges is entered once per choice of one range for each index."""
    found.append((expression, over))
    if not expression.binders:
        for child in expression.children:
            _walk(child, over, found)
        return
    for ranges in one_by_one(expression.binders):
        inner = over + tuple(index for index in outer_first(ranges) if index not in over)
        for child in expression.children:
            _walk(child, inner, found)


def refs(expression: Node) -> Iterator[tuple[Ref, tuple[Index, ...]]]:
    """Yield (array entry, indices of the reductions around it) for each entry in an expression."""
    return ((found, over) for found, over in walk(expression) if isinstance(found, Ref))


def rewrite(
    expression: Node, change: Callable[[Node], Node], index: Callable[[Index], Index] = _same
) -> Node:
    """The expression with every node replaced by `change` of it, innermost first, and every index
    of a reduction by `index` of it."""

    def changed(inside: Node) -> Node:
        return change(inside.map(changed, index))

    return changed(expression)


def with_entries(expression: Node, others: Mapping[Ref, Ref]) -> Node:
    """The expression with each array entry that is a key of `others` replaced by its value
    there."""

    def changed(inside: Node) -> Node:
        match inside:
            case Ref() if inside in others:
                return others[inside]
            case _:
                return inside.map(changed)

    return changed(expression)


def with_refs(expression: Node, change: Callable[[Ref], Node]) -> Node:
    """The expression with `change(entry)` for every array entry, those inside of gathers first."""

    def changed(found: Node) -> Node:
        match found:
            case Ref():
                return change(found)
            case _:
                return found

    return rewrite(expression, changed)


def reading(expression: Node, others: Mapping[Array, Array]) -> Node:
    """The expression with each array that is a key of `others` replaced, at the same positions."""

    def changed(ref: Ref) -> Ref:
        return Ref(others[ref.array], ref.positions) if ref.array in others else ref

    return with_refs(expression, changed)


def substitute(part: P, values: Mapping[str, Poly]) -> P:
    """An expression, position or index, or a tuple of them, with polynomials substituted for
    letters; `values`: atom of an index, or size -> polynomial. {"@i": i2} also renames the index i
    of a sum to i2; Unsupported if the value for such an index names no index."""

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
    """Yield the polynomials in the fields of a position or node, in tuples and flattenings ((j-1)*h
    + c) too. Those in subexpressions, gathers and ranges of indices are left out."""
    if isinstance(part, Poly):
        yield part
    elif isinstance(part, tuple):
        for one in part:
            if isinstance(one, Poly):
                yield one
            else:
                yield from polys_of(one)
    elif isinstance(part, (Flat, Node)):
        for name in part._with_polys:
            value = getattr(part, name)
            if isinstance(value, Poly):
                yield value
            elif isinstance(value, (Flat, tuple)):
                yield from polys_of(value)


def names_in(positions: Sequence[Position]) -> list[str]:
    """The names of the indices in some positions, as atoms of polynomials (`@i`), in order of
    appearance."""
    found: list[str] = []
    for position in positions:
        if isinstance(position, Gather):
            found += names_in((*position.at.positions, position.inner))
        else:
            found += _index_atoms(position)
    return list(dict.fromkeys(found))


@cache
def _index_atoms(position: Poly | Flat) -> Sequence[str]:
    """The atoms of the indices in a position, polynomial by polynomial, in the order of their
    names."""
    return [a for poly in polys_of(position) for a in sorted(filter(is_index, poly.letters))]
