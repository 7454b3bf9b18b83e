"""Which small equation systems do the rules have to get right? Random ones inside the language.

A system has one to four steps and ends in y[i,b]. Steps write rows S[i,b], pair scores Z[i,k] with
or without a softmax, heads on a flattened axis, tables computed from weights alone, two-part
arrays, and a first row apart from the rest; ranges are causal, windowed, whole, ahead or around.
Values stay small: exponentials are taken of bounded numbers and divisors are positive.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from hypothesis import strategies as st

from costmodel.composites import scaled, softmax
from costmodel.equations import Form, Mixer
from costmodel.expressions import (
    Add,
    Array,
    Binary,
    Div,
    Flat,
    Index,
    Mul,
    Node,
    Reduce,
    Ref,
    Sub,
    exp,
    function,
    max_,
    max_over,
    min_,
    sum_,
)
from costmodel.polynomial import Poly

T = TypeVar("T")
PAST = ("causal", "window")
RANGES = (*PAST, "whole", "ahead", "around")


@dataclass
class _Writer:
    """Draws one form; every array that is written is read again before the end."""

    draw: st.DrawFn
    mixer: Mixer
    form: Form
    ranges: tuple[str, ...]
    rows: list[Array] = field(default_factory=list)
    unread: list[Callable[[], Node]] = field(default_factory=list)
    number: int = 0

    def __post_init__(self) -> None:
        self.l, self.d, self.n, self.w, self.h = self.mixer.sizes("l d n w h")
        self.i, self.b = self.index("i", 1, self.l), self.index("b", 1, self.d)
        self.a = self.index("a", 1, self.d)
        self.e, self.c = self.index("e", 1, self.n), self.index("c", 1, self.h)

    def index(self, name: str, lower: object, upper: object) -> Index:
        return self.form.index(name, lower, upper)

    def choose(self, *options: T) -> T:
        return self.draw(st.sampled_from(options))

    def name(self, letter: str) -> str:
        self.number += 1
        return f"{letter}{self.number}"

    def parameter(self, *shape: object) -> Array:
        return self.mixer.parameter(self.name("w"), *shape)

    def row(self) -> Array:
        """An input or an array of rows that is there already."""
        return self.choose(*self.rows)

    def seen(self, kind: str, outer: Index, name: str) -> Index:
        """The rows that a row sees."""
        low, up = {
            "causal": (1, outer),
            "window": (max_(1, outer - self.w + 1), outer),
            "whole": (1, self.l),
            "ahead": (outer, min_(self.l, outer + self.w - 1)),
            "around": (max_(1, outer - self.w + 1), min_(self.l, outer + self.w - 1)),
        }[kind]
        return self.index(f"{name}_{kind}", low, up)

    def lag(self, kind: str, outer: Index, inner: Index, *positions: Index) -> Node:
        """A weight for the distance of two rows, or for the row where there is no distance."""
        extents = [self.d for _ in positions]
        if kind == "whole":
            return self.parameter(self.l, *extents)[(inner, *positions)]
        if kind == "around":
            return self.parameter(2 * self.w - 1, *extents)[(inner - outer + self.w, *positions)]
        extent = self.l if kind == "causal" else self.w
        distance = inner - outer + 1 if kind == "ahead" else outer - inner + 1
        return self.parameter(extent, *extents)[(distance, *positions)]

    def mixed(self) -> Node:
        """One reduction over rows that [i,b] sees."""
        kind = self.choose(*self.ranges)
        j = self.seen(kind, self.i, "j")
        s, (a, b) = self.row(), (self.a, self.b)
        way = self.choose("scalar", "vector", "matrix", "max", "plain", "inner", "rows", "deep")
        if way == "scalar":
            return sum_(s[j, b] * self.lag(kind, self.i, j), over=j)
        if way == "vector":
            return sum_(s[j, b] * self.lag(kind, self.i, j, b), over=j)
        if way == "matrix":
            return sum_(s[j, a] * self.lag(kind, self.i, j, a, b), over=(j, a))
        if way == "max":
            return max_over(s[j, b], over=j)
        if way == "plain":
            return sum_(s[j, b] * self.row()[self.i, b], over=j)
        if way == "inner":
            linear = sum_(s[j, a] * self.parameter(self.d, self.d)[a, b], over=a)
            return sum_(linear * self.lag(kind, self.i, j), over=j)
        if way == "rows" and kind in PAST:
            return sum_(s[j, b] * self.row()[self.i - j + 1, b], over=j)
        k = self.seen(self.choose(*PAST), j, f"k{kind}")
        return sum_(s[j, b] * self.row()[k, b], over=(j, k))

    def term(self) -> Node:
        """A value at [i,b]."""
        way = self.choose("entry", "linear", "mixed", "mixed", "gated")
        if way == "entry":
            return self.row()[self.i, self.b]
        if way == "linear":
            weights = self.parameter(self.d, self.d)
            return sum_(self.row()[self.i, self.a] * weights[self.a, self.b], over=self.a)
        if way == "gated":
            return function("sigmoid", self.row()[self.i, self.b]) * self.row()[self.i, self.b]
        return self.mixed()

    def changed(self, value: Node) -> Node:
        """A value after at most one function."""
        way = self.choose("", "", "", "neg", "scaled", "tanh", "silu", "gelu", "exp", "relu")
        if way == "neg":
            return -value
        if way == "scaled":
            return scaled(value, by=self.d)
        if way == "exp":
            return exp(function("tanh", value))
        return function(way, value) if way else value

    def combined(self, left: Node, right: Node) -> Node:
        """Two values in one."""
        way = self.choose("+", "-", "*", "/")
        if way == "/":
            return left / function("sqrt", exp(function("sigmoid", right)))
        return {"+": left + right, "-": left - right, "*": left * right}[way]

    def value(self) -> Node:
        """An expression at [i,b] that reads everything that was left unread."""
        result = self.changed(self.term())
        if self.choose(True, False):
            result = self.combined(result, self.changed(self.term()))
        for read in self.unread:
            result = self.combined(result, read())
        self.unread.clear()
        return result

    def step(self) -> None:
        """One more step: an array of rows, scores, heads, a table or parts."""
        ways = (
            self.write_rows,
            self.scores,
            self.heads,
            self.table,
            self.parts,
            self.first_and_rest,
        )
        self.choose(*ways)()

    def write_rows(self) -> None:
        value = self.value()
        rows = self.form.array(self.name("S"), self.l, self.d)
        rows[self.i, self.b] = value
        self.rows.append(rows)
        self.unread.append(lambda: rows[self.i, self.b])

    def scores(self) -> None:
        """Z[i,k] for the pairs of a range, a softmax of them perhaps, read as a weighted sum."""
        k = self.seen(self.choose(*self.ranges), self.i, "k")
        left, right, a = self.row(), self.row(), self.a
        z = self.form.array(self.name("Z"), self.l, self.l)
        z[self.i, k] = scaled(sum_(left[self.i, a] * right[k, a], over=a), by=self.d)
        if self.choose(True, False):
            bounded = self.form.array(self.name("Z"), self.l, self.l)
            bounded[self.i, k] = function("tanh", z[self.i, k])
            weights = self.form.array(self.name("A"), self.l, self.l)
            weights[self.i, k] = softmax(bounded[self.i, k], over=k)
            z = weights
        values = self.row()
        self.unread.append(lambda: sum_(z[self.i, k] * values[k, self.b], over=k))

    def heads(self) -> None:
        """H[e,i,c] from a flattened axis of the weights, flattened back into rows."""
        e, c, i = self.e, self.c, self.i
        weights = self.parameter(self.d, self.d)
        head = self.form.array(self.name("H"), self.n, self.l, self.h)
        source = self.row()
        head[e, i, c] = sum_(source[i, self.a] * weights[self.a, (e - 1) * self.h + c], over=self.a)
        kind = self.choose(*self.ranges)
        j = self.seen(kind, i, "j")
        rows = self.form.array(self.name("S"), self.l, self.d)
        if self.choose(True, False):
            rows[i, (e - 1) * self.h + c] = sum_(head[e, j, c] * self.lag(kind, i, j), over=j)
        else:
            rows[i, (e - 1) * self.h + c] = head[e, i, c] * head[e, i, c]
        self.rows.append(rows)
        self.unread.append(
            lambda: (
                sum_(rows[i, (e - 1) * self.h + c] * weights[(e - 1) * self.h + c, self.b], (e, c))
                if len(self.rows) % 2
                else rows[i, self.b]
            )
        )

    def table(self) -> None:
        """Work on weights alone: it belongs to token 0."""
        if self.choose(True, False):
            table = self.form.array(self.name("T"), self.d)
            weights = self.parameter(self.d, self.d)
            table[self.b] = sum_(function("tanh", weights[self.a, self.b]), over=self.a)
            source = self.row()
            self.unread.append(lambda: source[self.i, self.b] * table[self.b])
            return
        s = self.index("s", 1, self.l)
        table, source = self.form.array(self.name("T"), self.l), self.row()
        table[s] = softmax(self.parameter(self.l)[s], over=s)
        j = self.seen("causal", self.i, "j")
        self.unread.append(lambda: sum_(source[j, self.b] * table[self.i - j + 1], over=j))

    def parts(self) -> None:
        """Two equations that cover one array together."""
        pair = self.form.array(self.name("P"), self.l, 2, self.d)
        pair[self.i, 1, self.b] = self.value()
        pair[self.i, 2, self.b] = self.term()
        self.unread.append(lambda: pair[self.i, 1, self.b] * pair[self.i, 2, self.b])

    def first_and_rest(self) -> None:
        """Rows whose first differs from the rest, which read the row before."""
        first, rest = self.index("i_first", 1, 1), self.index("i_rest", 2, self.l)
        source, j = self.row(), self.index("j_before", 1, self.index("i_rest", 2, self.l) - 1)
        rows = self.form.array(self.name("S"), self.l, self.d)
        rows[first, self.b] = source[first, self.b] * source[first, self.b]
        if self.choose(True, False):
            rows[rest, self.b] = source[rest, self.b] + source[rest - 1, self.b]
        else:
            rows[rest, self.b] = sum_(source[j, self.b], over=j)
        self.rows.append(rows)
        self.unread.append(lambda: rows[self.i, self.b])


class RandomMixer(Mixer):
    """A mixer that prints its equations, for the report of a failing example."""

    def __repr__(self) -> str:
        return "\n".join(
            f"{_text(Ref(e.array, e.positions))} = {_text(e.value)}"
            for form in self.forms.values()
            for e in form.equations
        )


def _text(node: Node) -> str:
    if isinstance(node, Ref):
        positions = (p.value if isinstance(p, Flat) else p for p in node.positions)
        return f"{node.array.name}[{', '.join(map(str, positions))}]"
    if isinstance(node, Reduce):
        ranges = "; ".join(f"{i.name} in {_bound(i.lower)}..{_bound(i.upper)}" for i in node.over)
        return f"{node.kind}({_text(node.body)}, {ranges})"
    inside = [_text(child) for child in node.children]
    if isinstance(node, Binary):
        return f"({inside[0]} {_SIGNS[type(node)]} {inside[1]})"
    name = getattr(node, "function", getattr(node, "name", type(node).__name__))
    return f"{name}({', '.join(inside)})"


_SIGNS = {Add: "+", Sub: "-", Mul: "*", Div: "/"}


def _bound(bounds: tuple[Poly, ...]) -> str:
    return str(bounds[0]) if len(bounds) == 1 else f"({', '.join(map(str, bounds))})"


@st.composite
def mixers(draw: st.DrawFn, ranges: tuple[str, ...] = RANGES) -> Mixer:
    """A random mixer of one to four steps, its form called `direct`."""
    mixer = RandomMixer("random")
    l, d = mixer.sizes("l d")
    x, y = mixer.input("x", l, d), mixer.output("y", l, d)
    with mixer.form("direct") as form:
        writer = _Writer(draw, mixer, form, ranges, [x])
        for _ in range(draw(st.integers(0, 3))):
            writer.step()
        y[writer.i, writer.b] = writer.value()
    return mixer


@st.composite
def sizes(draw: st.DrawFn) -> dict[str, int]:
    """Small sizes, size 1 among them, windows shorter and longer than the sequence."""
    n, h = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    return {"l": draw(st.integers(1, 4)), "n": n, "d": n * h, "w": draw(st.integers(1, 5))}
