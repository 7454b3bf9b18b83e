"""How is a mixer written down? Equations in index notation over domains, as papers print them.

    with m.form("direct") as f:
        i, j = f.index("i", 1, l), f.index("j", 1, "i")

An equation says: for every index in its domain, this array entry is that scalar expression. Nodes
are plain frozen records; each question about a mixer is a table of rules over them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from costmodel.domains import Constraints
from costmodel.functions import TABLE
from costmodel.polynomial import Poly, size

ROLES = ("input", "parameter", "buffer", "intermediate", "output")


class EquationError(ValueError):
    """A mixer that is not well formed; the message names the equation and what to change."""


@dataclass(frozen=True)
class Extremum:
    """A bound that is the largest (`max_`) or smallest (`min_`) of several affine expressions."""

    kind: str
    of: tuple[Poly, ...]


def max_(*bounds: Any) -> Extremum:
    """A lower bound such as max(1, i-w+1)."""
    return Extremum("max", tuple(map(Poly.of, bounds)))


def min_(*bounds: Any) -> Extremum:
    """An upper bound such as min(l, i+r)."""
    return Extremum("min", tuple(map(Poly.of, bounds)))


@dataclass(frozen=True)
class Index:
    """An index and the range it runs over, both ends included; bounds may name outer indices."""

    name: str
    lower: tuple[Poly, ...]
    upper: tuple[Poly, ...]

    @property
    def atom(self) -> str:
        """The variable that stands for the index in polynomials."""
        return "@" + self.name

    def as_poly(self) -> Poly:
        """The index as a polynomial."""
        return Poly.atom(self.atom)

    @property
    def constraints(self) -> Constraints:
        """lower <= index <= upper, each as a polynomial that is at least 0."""
        v = self.as_poly()
        return frozenset([v - low for low in self.lower] + [up - v for up in self.upper])

    def __add__(self, other: Any) -> Poly:
        return self.as_poly() + Poly.of(other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Poly:
        return self.as_poly() - Poly.of(other)

    def __rsub__(self, other: Any) -> Poly:
        return Poly.of(other) - self.as_poly()

    def __mul__(self, other: Any) -> Poly:
        return self.as_poly() * Poly.of(other)

    __rmul__ = __mul__


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


Position = Poly | Flat


def position_value(position: Position) -> Poly:
    """The position on its axis as one polynomial."""
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
class Ref(Node):
    """An entry of an array."""

    array: Array
    positions: tuple[Position, ...]


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


@dataclass(frozen=True)
class Neg(Node):
    """Unary minus: free."""

    body: Node

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.body,)


@dataclass(frozen=True)
class Call(Node):
    """A named function of `functions.TABLE`."""

    function: str
    body: Node

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.body,)


@dataclass(frozen=True)
class Reduce(Node):
    """A sum or a maximum over indices."""

    kind: str
    body: Node
    over: tuple[Index, ...]

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.body,)


@dataclass(frozen=True)
class Folded(Node):
    """A constant factor that the weights already carry: it changes the value and costs nothing."""

    body: Node
    factor: Constant

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.body,)


@dataclass(frozen=True)
class Fft(Node):
    """An opaque real transform along indices of its operand, zero-padded to `length` points.

    `rfft`: `over` is one index; the equation's left side adds a bin in 1..length/2+1 and a part
    (1 real, 2 imaginary). `irfft`: `over` is (bin, part); the left side adds a position in
    1..length. The arithmetic is nominal: radix-2 at powers of two, half of a complex transform.
    """

    kind: str
    body: Ref
    over: tuple[Index, ...]
    length: Poly

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.body,)


@dataclass(frozen=True)
class Composite(Node):
    """A named combination that `composites.lower` writes out in the parts above."""

    name: str
    body: Node
    over: tuple[Index, ...] = ()
    by: Poly = Poly()

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.body,)


def node(value: Any) -> Node:
    """A node from a node, a number or a size."""
    return value if isinstance(value, Node) else Constant(Poly.of(value))


def _indices(over: Any) -> tuple[Index, ...]:
    found = tuple(over) if isinstance(over, (tuple, list)) else (over,)
    for index in found:
        if not isinstance(index, Index):
            raise EquationError(f"'over' takes indices of the form, got {index!r}")
    return found


def sum_(body: Any, over: Any) -> Node:
    """The sum of `body` over one index or a tuple of indices."""
    return Reduce("sum", node(body), _indices(over))


def max_over(body: Any, over: Any) -> Node:
    """The maximum of `body` over one index or a tuple of indices."""
    return Reduce("max", node(body), _indices(over))


def function(name: str, body: Any) -> Node:
    """A named scalar function (`exp`, `tanh`, `sigmoid`, ...) of an expression."""
    if name not in TABLE:
        raise EquationError(f"unknown function '{name}': expected one of {', '.join(TABLE)}")
    return Call(name, node(body))


def exp(body: Any) -> Node:
    """e to the power of an expression."""
    return Call("exp", node(body))


def rfft(body: Ref, over: Index, length: Any) -> Node:
    """The real Fourier transform of `body` along `over`, zero-padded to `length` points."""
    return Fft("rfft", body, (over,), Poly.of(length))


def irfft(body: Ref, over: tuple[Index, Index], length: Any) -> Node:
    """The inverse of `rfft`: `over` is the (bin, part) pair of indices."""
    return Fft("irfft", body, _indices(over), Poly.of(length))


@dataclass(frozen=True, eq=False)
class Array:
    """An array with a role; entries are counted from 1. Identity is the object itself."""

    name: str
    role: str
    shape: tuple[Poly, ...]
    owner: Mixer = field(repr=False)
    cite: str = ""
    latex: str = ""
    kernel: str = "contraction"
    """The kernel class in which a peer meets the reductions over products of its equation."""

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


@dataclass(frozen=True)
class Equation:
    """For every index in the domain, `array[positions]` is `value`."""

    array: Array
    positions: tuple[Position, ...]
    value: Node
    indices: tuple[Index, ...]
    """The free indices of the left side, outer ones first."""
    part_of: str
    """The name of the array that the file defines (composites are written out under it)."""

    @property
    def name(self) -> str:
        """The array's name."""
        return self.array.name

    @cached_property
    def domain(self) -> Constraints:
        """The constraints on the free indices."""
        return frozenset().union(*(index.constraints for index in self.indices))


@dataclass(frozen=True, eq=False)
class System:
    """Equations in the order in which they are written; no composites are left in them."""

    mixer: Mixer
    form: str
    equations: tuple[Equation, ...]

    @cached_property
    def defining(self) -> Mapping[Array, tuple[Equation, ...]]:
        """The equations of each array."""
        found: dict[Array, tuple[Equation, ...]] = {}
        for equation in self.equations:
            found[equation.array] = (*found.get(equation.array, ()), equation)
        return found


@dataclass(eq=False)
class Form:
    """One way to compute a mixer: indices, intermediate arrays, and equations."""

    mixer: Mixer
    name: str
    indices: dict[str, Index] = field(default_factory=dict)
    arrays: dict[str, Array] = field(default_factory=dict)
    equations: list[Equation] = field(default_factory=list)

    def index(self, name: str, lower: Any, upper: Any) -> Index:
        """Declare an index that runs over lower..upper, both included."""
        low = lower.of if isinstance(lower, Extremum) else (Poly.of(lower),)
        up = upper.of if isinstance(upper, Extremum) else (Poly.of(upper),)
        index = Index(name, low, up)
        if self.indices.setdefault(name, index) != index:
            raise EquationError(f"index {name} of form '{self.name}' already has another range")
        return index

    def array(
        self,
        name: str,
        *shape: Any,
        cite: str = "",
        latex: str = "",
        kernel: str = "contraction",
    ) -> Array:
        """Declare an intermediate array; `cite` is the equation's number in the source."""
        if name in self.arrays or name in self.mixer.arrays:
            raise EquationError(f"array {name} is declared twice in {self.mixer.name}")
        extents = tuple(map(Poly.of, shape))
        self.arrays[name] = Array(name, "intermediate", extents, self.mixer, cite, latex, kernel)
        return self.arrays[name]


class Mixer:
    """A token mixer: its sizes, arrays and forms. The first form is the default.

    Args:
        name: kebab-case name.
        title: how tables print it.
        source: paper and equation numbers.
        group: the family that `--group` selects.
        aliases: other names for the same mixer.
        references: somebody else's code that its module was held against, and equals in float64;
            empty where the mixer rests on our own reading of the source.
    """

    def __init__(
        self,
        name: str,
        *,
        title: str = "",
        source: str = "",
        group: str = "user",
        aliases: Sequence[str] = (),
        references: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.title = title or name
        self.source = source
        self.group = group
        self.aliases = tuple(aliases)
        self.references = tuple(references)
        self.origin = name
        """How a user names it: the name, or FILE.py:NAME for a mixer in a user's own file."""
        self.letters: tuple[str, ...] = ()
        self.arrays: dict[str, Array] = {}
        self.forms: dict[str, Form] = {}
        self._active: Form | None = None

    def __repr__(self) -> str:
        return f"Mixer({self.name!r})"

    def sizes(self, letters: str) -> tuple[Poly, ...]:
        """Declare sizes by their letters, separated by spaces; h means d/n."""
        names = tuple(letters.split())
        self.letters += tuple(x for x in names if x != "h" and x not in self.letters)
        return tuple(size(letter) for letter in names)

    def _declare(
        self, name: str, role: str, shape: tuple[Any, ...], cite: str = "", latex: str = ""
    ) -> Array:
        if name in self.arrays:
            raise EquationError(f"array {name} is declared twice in {self.name}")
        array = Array(name, role, tuple(map(Poly.of, shape)), self, cite, latex)
        self.arrays[name] = array
        return array

    def input(self, name: str, *shape: Any) -> Array:
        """The input sequence: its first axis is the token axis."""
        return self._declare(name, "input", shape)

    def output(self, name: str, *shape: Any, cite: str = "") -> Array:
        """The output sequence: its first axis is the token axis."""
        return self._declare(name, "output", shape, cite)

    def parameter(self, name: str, *shape: Any, latex: str = "") -> Array:
        """A trainable array."""
        return self._declare(name, "parameter", shape, latex=latex)

    def buffer(self, name: str, *shape: Any, latex: str = "") -> Array:
        """A constant table: it costs nothing and is no parameter."""
        return self._declare(name, "buffer", shape, latex=latex)

    @contextmanager
    def form(self, name: str) -> Iterator[Form]:
        """Write the equations of one form inside a `with` block."""
        if name in self.forms:
            raise EquationError(f"form '{name}' of {self.name} is written twice")
        form = Form(self, name)
        self._active = form
        try:
            yield form
        finally:
            self._active = None
        if not any(e.array.role == "output" for e in form.equations):
            raise EquationError(f"form '{name}' of {self.name} never defines its output")
        self.forms[name] = form

    @property
    def default_form(self) -> str:
        """The name of the first form."""
        if not self.forms:
            raise EquationError(f"{self.name} has no form: write its equations in `with form(...)`")
        return next(iter(self.forms))

    @property
    def parameters(self) -> tuple[Array, ...]:
        """The trainable arrays, in the order of declaration."""
        return tuple(a for a in self.arrays.values() if a.role == "parameter")

    def role(self, role: str) -> Array:
        """The one array with this role (input or output)."""
        found = [a for a in self.arrays.values() if a.role == role]
        if len(found) != 1:
            raise EquationError(f"{self.name} needs exactly one {role}, it has {len(found)}")
        return found[0]

    def position(self, part: Any) -> Position:
        """An index expression, with `(j-1)*h + c` recognised as a flattening."""
        poly = Poly.of(part)
        scaled = [
            (v, c)
            for v in sorted(a for a in poly.atoms if a.startswith("@"))
            if (c := poly.coefficient(v)).constant() is None
        ]
        if not scaled:
            return poly
        variable, extent = scaled[0]
        outer = Poly.atom(variable)
        inner = poly - (outer - 1) * extent
        inner_index = self._index_of(inner)
        if len(scaled) > 1 or inner_index is None or inner_index.upper != (extent,):
            raise EquationError(
                f"index '{poly}' in {self.name} is not affine: only a flattening (j-1)*h+c of an "
                f"index c in 1..h is allowed"
            )
        return Flat(outer, inner, extent)

    def _index_of(self, poly: Poly) -> Index | None:
        if self._active is None:
            return None
        return next((x for x in self._active.indices.values() if x.as_poly() == poly), None)

    def define(self, array: Array, positions: tuple[Position, ...], value: Node) -> None:
        """Record an equation of the form being written."""
        form = self._active
        if form is None:
            raise EquationError(f"{array.name}[...] = ... stands outside `with {self.name}.form()`")
        if array.role not in ("intermediate", "output"):
            raise EquationError(f"{array.name} is a {array.role} and cannot be defined")
        names = _names_in(positions)
        by_atom = {index.atom: index for index in form.indices.values()}
        indices = tuple(_outer_first([by_atom[n] for n in names]))
        equation = Equation(array, positions, value, indices, array.name)
        _check_bound(equation)
        form.equations.append(equation)


def _names_in(positions: Sequence[Position]) -> list[str]:
    """Index atoms of the left side, in order of appearance."""
    found: dict[str, None] = {}
    for position in positions:
        parts = (position.outer, position.inner) if isinstance(position, Flat) else (position,)
        for part in parts:
            found.update(dict.fromkeys(sorted(a for a in part.letters if a.startswith("@"))))
    return list(found)


def _outer_first(indices: Sequence[Index]) -> list[Index]:
    """Order indices so that a bound names only earlier ones."""
    ordered: list[Index] = []
    waiting = list(indices)
    while waiting:
        known = {i.atom for i in ordered}
        pending = {i.atom for i in waiting}
        ready = [
            i
            for i in waiting
            if not ({a for b in i.lower + i.upper for a in b.letters} & pending - known - {i.atom})
        ]
        if not ready:
            raise EquationError(f"indices {', '.join(i.name for i in waiting)} bound each other")
        ordered.append(ready[0])
        waiting.remove(ready[0])
    return ordered


def walk(
    expression: Node, over: tuple[Index, ...] = ()
) -> Iterator[tuple[Node, tuple[Index, ...]]]:
    """Every node with the reduction indices around it."""
    yield expression, over
    inner = over
    if isinstance(expression, (Reduce, Fft)):
        inner = over + tuple(i for i in _outer_first(expression.over))
    elif isinstance(expression, Composite):
        inner = over + tuple(i for i in expression.over if i not in over)
    for child in expression.children:
        yield from walk(child, inner)


def _check_bound(equation: Equation) -> None:
    """Every index on the right side is free on the left or reduced over."""
    free = {i.atom for i in equation.indices}
    for entry, over in walk(equation.value):
        bound = free | {i.atom for i in over}
        for index in over:
            for name in {a for b in index.lower + index.upper for a in b.letters if a[0] == "@"}:
                if name not in bound:
                    raise EquationError(
                        f"{equation.name}: the range of {index.name} names {name[1:]}, which is "
                        f"neither on the left side nor reduced over"
                    )
        if isinstance(entry, Ref):
            for name in _names_in(entry.positions):
                if name not in bound:
                    raise EquationError(
                        f"{equation.name}: index {name[1:]} of {entry.array.name} is unbound; "
                        f"put it on the left side or reduce over it"
                    )
