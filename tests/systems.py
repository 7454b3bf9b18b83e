"""Which random equation systems do the tests draw?

A system has one to four steps and ends in y[i,b]. Steps write rows S[i,b], pair scores Z[i,k] with
or without a softmax, heads on a flattened axis, tables computed from weights alone, two-part
arrays, a first row apart from the rest, recurrences of many kinds, a context read by a contraction
or by attention, gathers, and rows, channels or weights at a stride; ranges are causal, windowed,
whole, ahead or around, or may be empty: strictly before the row, lagged behind it, before its
window, or the part of its window on one side of a row or a distance. Some are unions of ranges,
where a test asks for them; where a test asks for `coupled`, two or three recurrences read each
other's rows.
Values stay small: exponentials are taken of bounded numbers and divisors are positive.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hypothesis import strategies as st

from costmodel import (
    Mixer,
    argmax,
    exp,
    function,
    max_,
    max_over,
    maximum,
    min_,
    scaled,
    softmax,
    sum_,
    union,
)
from costmodel.language.equations import Form
from costmodel.language.indices import Index, Ranges
from costmodel.language.nodes import (
    Add,
    Array,
    Binary,
    Div,
    Flat,
    Gather,
    Maximum,
    Mul,
    Node,
    Position,
    Reduce,
    Ref,
    Sub,
)
from costmodel.symbolic.polynomial import Poly

T = TypeVar("T")
PAST = ("causal", "window")
FULL = (*PAST, "whole", "ahead", "around")
"""Ranges that hold a term at every row."""
BEFORE = ("before", "lagged", "past", "from", "up to", "between")
"""Causal ranges that hold none at some rows."""
RANGES = (*FULL, *BEFORE, "inside")
UNIONS_PAST = ("sinks", "own", "apart")
UNIONS = (*UNIONS_PAST, "ends", "beside")
"""Unions of ranges."""
HELD = (*FULL, "sinks", "own", "ends")
"""Ranges, and unions of them, that hold a term at every row."""


def examples(many: int) -> int:
    """How many random examples a test draws: a third of them in the suite, all with `--grid`."""
    return many if "COSTMODEL_GRID" in os.environ else many // 3


@dataclass(frozen=True)
class _Recurrence:
    """Rows of which each follows from the row before, or from the row after (`down`), with an index
    of l - 1 values for l rows and of l values for l + 1 rows (`shift` 1)."""

    rows: Array
    shift: int
    down: bool
    l: Poly

    @property
    def place(self) -> int:
        """The row that the index i writes, less i."""
        return 0 if self.down else self.shift

    @property
    def before(self) -> int:
        """The row computed before, less i."""
        return 1 if self.down else self.shift - 1

    @property
    def first(self) -> Poly:
        """The row that is computed first."""
        return self.l + self.shift if self.down else Poly.of(1)

    @property
    def bounds(self) -> tuple[Poly, Poly]:
        """The least and the largest value of the index."""
        less = 1 - self.shift
        return (Poly.of(1), self.l - less) if self.down else (Poly.of(1 + less), self.l)

    def has(self, first: Poly, last: Poly, offset: int) -> bool:
        """Whether there are rows first + offset to last + offset, at every length."""
        least, most = (
            (first + offset - 1).constant(),
            (self.l + self.shift - last - offset).constant(),
        )
        return least is not None and most is not None and least >= 0 and most >= 0


@dataclass
class _Writer:
    """Draws one form; every array that is written is read again before the end."""

    draw: st.DrawFn
    mixer: Mixer
    form: Form
    ranges: tuple[str, ...]
    grown: bool
    """Whether loops, contexts, gathers and ranges without a term may be drawn."""
    rows: list[Array] = field(default_factory=list)
    whole: bool = False
    """Whether every range holds a term at every row."""
    named: bool = False
    """Whether what is read once, by one instance, gets a name of its own."""
    drawn: list[int] = field(default_factory=list)
    """What was chosen, by number."""
    again: Iterator[int] | None = None
    """What to choose, where the same is chosen once more."""
    unread: list[Callable[[], Node]] = field(default_factory=list)
    number: int = 0

    def __post_init__(self) -> None:
        self.l, self.d, self.n, self.w, self.h = self.mixer.sizes("l d n w h")
        self.i, self.b = self.index("i", 1, self.l), self.index("b", 1, self.d)
        self.a = self.index("a", 1, self.d)
        self.e, self.c = self.index("e", 1, self.n), self.index("c", 1, self.h)
        unions = (kind for kind in self.ranges if kind in UNIONS_PAST)
        self.past = (*PAST, *(BEFORE if self.grown and not self.whole else ()), *unions)

    def index(self, name: str, lower: object, upper: object) -> Index:
        return self.form.index(name, lower, upper)

    @contextmanager
    def at(self, row: Index) -> Iterator[None]:
        """Terms are written at another row than i."""
        usual, self.i = self.i, row
        yield
        self.i = usual

    def choose(self, *options: T) -> T:
        if self.again is not None:
            return options[next(self.again)]
        chosen = self.draw(st.sampled_from(options))
        self.drawn.append(options.index(chosen))
        return chosen

    def number_up_to(self, most: int) -> int:
        """A number from 0 on."""
        number = self.draw(st.integers(0, most)) if self.again is None else next(self.again)
        self.drawn.append(number)
        return number

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
        if kind in UNIONS:
            return self.form.index(f"{name}_{kind}_{outer.name}", self.seen_apart(kind, outer))
        ends: dict[str, Callable[[], tuple[object, object]]] = {
            "causal": lambda: (1, outer),
            "window": lambda: (max_(1, outer - self.w + 1), outer),
            "whole": lambda: (1, self.l),
            "ahead": lambda: (outer, min_(self.l, outer + self.w - 1)),
            "around": lambda: (max_(1, outer - self.w + 1), min_(self.l, outer + self.w - 1)),
            "before": lambda: (1, outer - 1),
            "lagged": lambda: (max_(1, outer - self.w), outer - 1),
            "past": lambda: (1, outer - self.w),
            "from": lambda: (max_(self.s, outer - self.w + 1), outer),
            "up to": lambda: (max_(1, outer - self.w + 1), min_(self.s, outer)),
            "between": lambda: (max_(1, outer - self.w + 1), outer - self.r),
            "inside": lambda: (
                max_(self.s, outer - self.w + 1),
                min_(self.l - self.s + 1, outer + self.w - 1),
            ),
        }
        return self.index(f"{name}_{kind.replace(' ', '_')}_{outer.name}", *ends[kind]())

    @property
    def s(self) -> Poly:
        """A number of rows."""
        return self.mixer.sizes("s")[0]

    @property
    def r(self) -> Poly:
        """A number of rows or weights, at most w."""
        (r,) = self.mixer.sizes("r")
        self.mixer.at_most(r, self.w)
        return r

    def seen_apart(self, kind: str, outer: Index) -> Ranges:
        """Rows that a row sees at several places: the first s and the last w, itself and those
        before its window, two of its past, the first and the last, those on both sides of it."""
        s = self.s
        first, window = min_(s, outer), max_(s + 1, outer - self.w + 1)
        return {
            "sinks": lambda: union((1, first), (window, outer)),
            "own": lambda: union((1, outer - self.w), (outer, outer)),
            "apart": lambda: union((1, outer - self.w - 2), (max_(1, outer - self.w), outer - 1)),
            "ends": lambda: union((1, 1), (max_(2, self.l - s + 1), self.l)),
            "beside": lambda: union(
                (max_(1, outer - self.w), outer - 1), (outer + 1, min_(self.l, outer + self.w))
            ),
        }[kind]()

    def lag(self, kind: str, outer: Index, inner: Index, *positions: Index) -> Node:
        """A weight for the distance of two rows, or for the row where there is no distance."""
        extents = [self.d for _ in positions]
        if kind in ("whole", "ends"):
            return self.parameter(self.l, *extents)[(inner, *positions)]
        if kind in ("around", "inside"):
            return self.parameter(2 * self.w - 1, *extents)[(inner - outer + self.w, *positions)]
        if kind == "beside":
            return self.parameter(2 * self.w + 1, *extents)[
                (inner - outer + self.w + 1, *positions)
            ]
        windows = ("window", "ahead", "lagged", "from", "up to", "between")
        extent = self.w if kind in windows else self.l
        distance = inner - outer + 1 if kind == "ahead" else outer - inner + 1
        distance = outer - inner if kind == "lagged" else distance
        return self.parameter(extent, *extents)[(distance, *positions)]

    def mixed(self) -> Node:
        """One reduction over rows that [i,b] sees."""
        kind = self.choose(*self.ranges)
        j = self.seen(kind, self.i, "j")
        s, (a, b) = self.row(), (self.a, self.b)
        ways = ("scalar", "vector", "matrix", "max", "plain", "inner", "rows", "deep")
        way = self.choose(*ways, *(("nested",) if self.grown else ()))
        if way == "scalar":
            return sum_(s[j, b] * self.lag(kind, self.i, j), over=j)
        if way == "vector":
            return sum_(s[j, b] * self.lag(kind, self.i, j, b), over=j)
        if way == "matrix":
            return sum_(s[j, a] * self.lag(kind, self.i, j, a, b), over=(j, a))
        if way == "max" and kind in HELD:
            return max_over(s[j, b], over=j)
        if way == "plain":
            return sum_(s[j, b] * self.row()[self.i, b], over=j)
        if way == "inner":
            linear = sum_(s[j, a] * self.parameter(self.d, self.d)[a, b], over=a)
            return sum_(linear * self.lag(kind, self.i, j), over=j)
        if way == "rows" and kind in self.past:
            return sum_(s[j, b] * self.row()[self.i - j + 1, b], over=j)
        k = self.seen(self.choose(*self.past), j, "k")
        if way == "nested":
            return sum_(self.combined(s[j, b], sum_(self.row()[k, b], over=k)), over=j)
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
        way = self.choose("+", "-", "*", "/", "max")
        if way == "max":
            return maximum(left, right)
        if way == "/":
            return left / function("sqrt", exp(function("sigmoid", right)))
        return {"+": left + right, "-": left - right, "*": left * right}[way]

    def part(self, value: Node) -> Node:
        """A value at [i,b], by its name where it has one."""
        if not self.named:
            return value
        array = self.form.array(f"part{len(self.form.arrays)}", self.l, self.d)
        array[self.i, self.b] = value
        return array[self.i, self.b]

    def value(self) -> Node:
        """An expression at [i,b] that reads everything that was left unread."""
        result = self.part(self.changed(self.term()))
        if self.choose(True, False):
            result = self.combined(result, self.part(self.changed(self.term())))
        for read in self.unread:
            result = self.combined(result, self.part(read()))
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
            self.by_place,
        )
        grown = (self.loop, self.loop, self.given) if self.grown else ()
        self.choose(*ways, *grown)()

    def write_rows(self) -> None:
        value = self.value()
        rows = self.form.array(self.name("S"), self.l, self.d)
        rows[self.i, self.b] = value
        self.rows.append(rows)
        self.unread.append(lambda: rows[self.i, self.b])

    def scores(self) -> None:
        """Z[i,k] for the pairs of a range, a softmax of them perhaps, read as a weighted sum."""
        kind = self.choose(*self.ranges)
        k = self.seen(kind, self.i, "k")
        left, right, a = self.row(), self.row(), self.a
        z = self.form.array(self.name("Z"), self.l, self.l)
        z[self.i, k] = scaled(sum_(left[self.i, a] * right[k, a], over=a), by=self.d)
        if self.choose(True, False):
            bounded = self.form.array(self.name("Z"), self.l, self.l)
            bounded[self.i, k] = function("tanh", z[self.i, k])
            weights = self.form.array(self.name("A"), self.l, self.l)
            if kind in HELD:
                weights[self.i, k] = softmax(bounded[self.i, k], over=k)
            else:
                total = self.form.array(self.name("N"), self.l)
                total[self.i] = sum_(exp(bounded[self.i, k]), over=k)
                weights[self.i, k] = exp(bounded[self.i, k]) / total[self.i]
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

    def by_place(self) -> None:
        """Rows that differ by their place: the first from the rest, or every second or third."""
        self.choose(self.first_and_rest, self.strided)()

    def strided(self) -> None:
        """An index that stands alone in a position with a factor."""
        self.choose(self.spread, self.interleaved, self.halves, self.pooled, self.channels)()

    def spread(self) -> None:
        """U[2*i + 1, b]: rows with free entries between them."""
        factor, shift = self.choose(Poly.of(2), Poly.of(3), self.w), self.choose("", "on", "first")
        wide = self.form.array(self.name("U"), factor * self.l + int(shift == "on"), self.d)

        def place(row: Index) -> Poly:
            """factor*row, one more, or the first of `factor` rows."""
            last = factor * row.as_poly()
            return {"": last, "on": last + 1, "first": last - factor + 1}[shift]

        wide[place(self.i), self.b] = self.value()
        if self.choose(True, False):
            self.unread.append(lambda: wide[place(self.i), self.b])
            return
        kind = self.choose(*self.ranges)

        def read() -> Node:
            j = self.seen(kind, self.i, "j")
            return sum_(wide[place(j), self.b] * self.lag(kind, self.i, j), over=j)

        self.unread.append(read)

    def interleaved(self) -> None:
        """U[2*i - 1, b] and U[2*i, b], read side by side or all up to the row's."""
        wide = self.form.array(self.name("U"), 2 * self.l, self.d)
        wide[2 * self.i - 1, self.b] = self.value()
        wide[2 * self.i, self.b] = self.term()
        if self.choose(True, False):
            self.unread.append(lambda: wide[2 * self.i - 1, self.b] * wide[2 * self.i, self.b])
            return

        def read() -> Node:
            j = self.index(f"j_twice_{self.i.name}", 1, 2 * self.i)
            return sum_(wide[j, self.b], over=j)

        self.unread.append(read)

    def halves(self) -> None:
        """Odd rows and even ones, the latter of which may read the odd row before."""
        odd, even = self.index("i_odd", 1, (self.l + 1) // 2), self.index("i_even", 1, self.l // 2)
        rows, b = self.form.array(self.name("S"), self.l, self.d), self.b
        rows[2 * odd - 1, b] = self.at_stride(2 * odd - 1, "odd")
        value = self.at_stride(2 * even, "even")
        before = self.row() if self.choose(True, False) else rows
        rows[2 * even, b] = value + before[2 * even - 1, b]
        self.rows.append(rows)
        self.unread.append(lambda: rows[self.i, self.b])

    def at_stride(self, row: Poly, name: str) -> Node:
        """A value at a row that is twice an index."""
        source, way = self.row(), self.choose("entry", "product", "causal", "linear")
        if way == "causal":
            j = self.index(f"j_{name}", 1, row)
            return sum_(source[j, self.b], over=j)
        if way == "linear":
            weights = self.parameter(self.d, self.d)
            return sum_(source[row, self.a] * weights[self.a, self.b], over=self.a)
        return (
            source[row, self.b] * self.row()[row, self.b]
            if way == "product"
            else source[row, self.b]
        )

    def pooled(self) -> None:
        """Every second row, by itself or with the one before, or counted back from the row."""
        source, b = self.row(), self.b
        way = self.choose("pairs", "seconds", "dilated")
        if way == "dilated":
            weights = self.parameter(self.l, self.d)

            def dilated() -> Node:
                k = self.index(f"k_back_{self.i.name}", 1, (self.i - 1) // 2 + 1)
                return sum_(source[self.i - 2 * k + 2, self.b] * weights[k, self.b], over=k)

            self.unread.append(dilated)
            return
        even = self.index("i_even", 1, self.l // 2)
        pool = self.form.array(self.name("P"), self.l // 2, self.d)
        value = self.at_stride(2 * even, "even")
        pool[even, b] = value - source[2 * even - 1, b] if way == "pairs" else value
        whole = self.choose(True, False) and "whole" in self.ranges

        def read() -> Node:
            last = self.l // 2 if whole else (self.i - 1) // 2
            k = self.index(f"k_pool_{'whole' if whole else self.i.name}", 1, last)
            return sum_(pool[k, self.b], over=k)

        self.unread.append(read)

    def channels(self) -> None:
        """V[i, 2*b] and V[i, 2*b - 1], or one of them alone."""
        wide, b = self.form.array(self.name("V"), self.l, 2 * self.d), self.b
        wide[self.i, 2 * b] = self.value()
        if self.choose(True, False):
            self.unread.append(lambda: wide[self.i, 2 * b])
            return
        wide[self.i, 2 * b - 1] = self.term()
        c, weights = self.index("c_wide", 1, 2 * self.d), self.parameter(2 * self.d, self.d)
        self.unread.append(lambda: sum_(wide[self.i, c] * weights[c, b], over=c))

    def blocks(self) -> None:
        """Weights in m/r blocks of r: the last of each block, its last r of w, or all."""
        (m,), r, b, source = self.mixer.sizes("m"), self.r, self.b, self.row()
        u, c = self.index("u_block", 1, m / r), self.index("c_block", 1, r)
        way = self.choose("last", "ends", "all", "made")
        weights = self.parameter(m, self.d)
        if way == "last":
            self.unread.append(lambda: sum_(source[self.i, b] * weights[r * u, b], over=u))
        elif way == "ends":
            ends = self.parameter(self.w, self.d)
            self.unread.append(lambda: sum_(source[self.i, b] * ends[self.w - c + 1, b], over=c))
        elif way == "all":
            at = (u - 1) * r + c
            self.unread.append(lambda: sum_(source[self.i, b] * weights[at, b], over=(u, c)))
        else:
            table = self.form.array(self.name("T"), m, self.d)
            table[r * u, b] = sum_(weights[(u - 1) * r + c, b] * weights[r * u, b], over=c)
            self.unread.append(lambda: sum_(source[self.i, b] * table[r * u, b], over=u))

    def loop(self) -> None:
        """Rows that need the row before, of one array or of several."""
        self.choose(self.carried, self.cell, self.outer_products, self.other_axis)()

    def first(self) -> Poly | Index:
        """The first row, by its number or by an index that is 1 alone."""
        return self.index("i_first", 1, 1) if self.choose(True, False) else Poly.of(1)

    def rest(self) -> Index:
        """The rows after the first."""
        return self.index("i_rest", 2, self.l)

    def started(self, source: Array, first: Poly | Index) -> Node:
        """The value of a first row."""
        way = self.choose("copy", "product", "linear")
        if way == "copy":
            return source[first, self.b]
        if way == "product":
            return source[first, self.b] * self.row()[first, self.b]
        weights = self.parameter(self.d, self.d)
        return sum_(source[first, self.a] * weights[self.a, self.b], over=self.a)

    def carry(self, rows: Array, before: Poly) -> Node:
        """What a row takes over from the row before, kept small."""
        way = self.choose("plain", "decay", "gate", "linear", "inner", "squashed")
        if way == "plain":
            return rows[before, self.b]
        if way == "decay":
            return rows[before, self.b] * self.parameter(self.d)[self.b]
        if way == "gate":
            return function("sigmoid", self.row()[self.i, self.b]) * rows[before, self.b]
        if way == "squashed":
            return function("tanh", rows[before, self.b])
        others = self.parameter(self.d, self.d)[self.a, self.b]
        if way == "inner":
            others = self.row()[self.i, self.a]
        return function("tanh", sum_(rows[before, self.a] * others, over=self.a))

    def carried(self) -> None:
        """One array: a decayed sum, a linear recurrence, a row of a network."""
        first, rest, source = self.first(), self.rest(), self.row()
        rows = self.form.array(self.name("S"), self.l, self.d)
        rows[first, self.b] = self.started(source, first)
        with self.at(rest):
            kept = self.part(self.carry(rows, rest - 1))
            new = self.part(self.changed(self.term()))
            value = kept - new if self.choose(True, False) else new + kept
            rows[rest, self.b] = function("tanh", value) if self.choose(True, False) else value
        self.rows.append(rows)
        self.unread.append(lambda: rows[self.i, self.b])

    def cell(self) -> None:
        """A cell and a hidden row that need each other, and a gate between them perhaps."""
        first, rest, a, b = self.first(), self.rest(), self.a, self.b
        cell, hidden = (self.form.array(self.name(x), self.l, self.d) for x in "CS")
        source, recurrent = self.row(), self.parameter(self.d, self.d)
        before = sum_(hidden[rest - 1, a] * recurrent[a, b], over=a)
        cell[first, b] = self.started(source, first)
        with self.at(rest):
            if self.choose(True, False):
                gate = self.form.array(self.name("G"), self.l, self.d)
                gate[rest, b] = self.term() + before
                cell[rest, b] = function("sigmoid", gate[rest, b]) * cell[rest - 1, b]
            else:
                kept = self.carry(cell, rest - 1)
                cell[rest, b] = kept + function("tanh", self.term() - before)
        rows = (first, rest) if self.choose(True, False) else (self.i,)
        for row in rows:
            hidden[row, b] = function("tanh", cell[row, b]) * source[row, b]
        self.rows.append(hidden)
        self.unread.append(lambda: hidden[self.i, self.b])

    def outer_products(self) -> None:
        """A matrix M[i,a,b] that sums up products of rows, with a decay or a delta rule perhaps."""
        first, rest, a, b = self.first(), self.rest(), self.a, self.b
        keys, values, queries = self.row(), self.row(), self.row()
        state = self.form.array(self.name("M"), self.l, self.d, self.d)
        state[first, a, b] = function("tanh", keys[first, a]) * values[first, b]
        key, kept = function("tanh", keys[rest, a]), state[rest - 1, a, b]
        way = self.choose("", "decay", "gate", "delta")
        if way == "delta":
            c = self.index("a_too", 1, self.d)
            seen = sum_(function("tanh", keys[rest, c]) * state[rest - 1, c, b], over=c)
            state[rest, a, b] = kept + key * (values[rest, b] - seen)
        elif way == "decay":
            state[rest, a, b] = kept * self.parameter(self.d)[a] + key * values[rest, b]
        elif way == "gate":
            gate = function("sigmoid", keys[rest, a])
            state[rest, a, b] = gate * kept + key * values[rest, b]
        else:
            state[rest, a, b] = kept + key * values[rest, b]
        rows = self.form.array(self.name("S"), self.l, self.d)
        rows[self.i, b] = sum_(queries[self.i, a] * state[self.i, a, b], over=a)
        self.rows.append(rows)
        self.unread.append(lambda: rows[self.i, self.b])

    def other_axis(self) -> None:
        """Rows that lie on another axis than the first, or from which no token axis is made."""
        source, b, first, rest = self.row(), self.b, self.first(), self.rest()
        rows = self.form.array(self.name("S"), self.l, self.d)
        way = self.choose("columns", "heads", "width", "start", "pieces")
        if way == "pieces":
            self.pieces()
            return
        if way == "columns":
            columns = self.form.array(self.name("V"), self.d, self.l)
            columns[b, first] = source[first, b]
            columns[b, rest] = self.parameter(self.d)[b] * columns[b, rest - 1] + source[rest, b]
            rows[self.i, b] = columns[b, self.i]
        elif way == "heads":
            e, c, shift = self.e, self.c, self.parameter(self.d, self.d)
            heads = self.form.array(self.name("H"), self.n, self.l, self.h)
            heads[e, first, c] = source[first, (e - 1) * self.h + c]
            new = sum_(source[rest, self.a] * shift[self.a, (e - 1) * self.h + c], over=self.a)
            heads[e, rest, c] = new - heads[e, rest - 1, c] * self.parameter(self.n)[e]
            rows[self.i, (e - 1) * self.h + c] = heads[e, self.i, c]
        elif way == "width":
            further = self.index("b_rest", 2, self.d)
            rows[self.i, 1] = source[self.i, 1]
            rows[self.i, further] = rows[self.i, further - 1] + source[self.i, further]
        else:
            states = self.form.array(self.name("V"), self.l + 1, self.d)
            states[1, b] = self.parameter(self.d)[b]
            states[self.i + 1, b] = self.carry(states, self.i.as_poly()) + source[self.i, b]
            rows[self.i, b] = states[self.i + 1, b]
        self.rows.append(rows)
        self.unread.append(lambda: rows[self.i, self.b])

    def pieces(self) -> None:
        """One array, or two in one loop, over rows or over channels, whose first entry on the other
        axis may have an equation of its own."""
        by_row = self.choose(True, False)
        other = (self.b, self.index("b_rest", 2, self.d)) if by_row else (self.i, self.rest())
        later = self.rest() if by_row else self.index("b_rest", 2, self.d)
        made = [self.form.array(self.name(x), self.l, self.d) for x in self.choose("S", "SQ")]

        def entry(rows: Array, at: Poly | Index, across: Poly | Index) -> Ref:
            return rows[at, across] if by_row else rows[across, at]

        for rows in made:
            for step in (Poly.of(1), later):
                apart = self.choose(True, False)
                for across in (Poly.of(1), other[1]) if apart else (other[0],):
                    value: Node = entry(self.row(), step, across)
                    if step is later:
                        read = entry(self.choose(*made), later - 1, across)
                        if rows is not made[0]:  # reads the first array, perhaps in its own row
                            value = self.choose(value, read)
                            back = self.choose(0, 1)
                            read = entry(made[0], later - back, across)
                        kept = function("tanh", read) if self.choose(True, False) else read
                        value = kept * value if self.choose(True, False) else kept + value
                    elif self.choose(True, False):
                        value = function("tanh", value)
                    rows[(step, across) if by_row else (across, step)] = value

        def whole(rows: Array) -> Callable[[], Node]:
            return lambda: rows[self.i, self.b]

        self.unread += map(whole, made)
        self.rows += made

    def end_in_a_loop(self, y: Array) -> None:
        """The output, each of whose rows needs the one before."""
        value = self.form.array(self.name("S"), self.l, self.d)
        value[self.i, self.b] = self.value()
        first, rest = self.first(), self.rest()
        y[first, self.b] = self.started(value, first)
        with self.at(rest):
            y[rest, self.b] = self.carry(y, rest - 1) + value[rest, self.b]

    def given(self) -> None:
        """A context, a table that is gathered from, or weights in blocks."""
        self.choose(self.read_context, self.attend, self.gather, self.blocks)()

    def context(self) -> Array:
        """The mixer's context, rows of the width d."""
        if "z" not in self.mixer.arrays:
            (length,) = self.mixer.sizes("e")
            self.mixer.context("z", length, self.d)
        return self.mixer.arrays["z"]

    def read_context(self) -> None:
        """A contraction of the context: by itself, with weights, or with rows."""
        z, a, b, source = self.context(), self.a, self.b, self.row()
        s = self.index("s_context", 1, z.shape[0])
        way = self.choose("itself", "weights", "rows")
        if way == "rows":
            self.unread.append(lambda: sum_(source[self.i, a] * z[s, a] * z[s, b], over=(s, a)))
            return
        pooled = self.form.array(self.name("P"), self.d)
        weights = self.parameter(self.d, self.d)[a, b]
        pooled[b] = (
            sum_(z[s, b], over=s) if way == "itself" else sum_(z[s, a] * weights, over=(s, a))
        )
        self.unread.append(lambda: source[self.i, b] * pooled[b])

    def attend(self) -> None:
        """Attention to the context, whose keys may be projected."""
        z, a, b, source = self.context(), self.a, self.b, self.row()
        s = self.index("s_context", 1, z.shape[0])
        keys = z
        if self.choose(True, False):
            keys = self.form.array(self.name("K"), *z.shape)
            keys[s, b] = sum_(z[s, a] * self.parameter(self.d, self.d)[a, b], over=a)
        bounded = self.form.array(self.name("Z"), self.l, z.shape[0])
        bounded[self.i, s] = function("tanh", sum_(source[self.i, a] * keys[s, a], over=a))
        weighted = self.form.array(self.name("A"), self.l, z.shape[0])
        weighted[self.i, s] = softmax(bounded[self.i, s], over=s)
        self.unread.append(lambda: sum_(weighted[self.i, s] * z[s, self.b], over=s))

    def gather(self) -> None:
        """Entries at positions that a buffer holds: of weights, of work on weights, or of rows, any
        or those up to the own; or the best row of some."""
        positions = self.mixer.buffer(self.name("g"), self.l, below=self.w)
        table, b, source = self.parameter(self.w, self.d), self.b, self.row()
        way = self.choose("weights", "table", "reduced", "rows", "earlier", "best")
        if way == "table":
            u, weights = self.index("u_table", 1, self.w), table
            table = self.form.array(self.name("T"), self.w, self.d)
            table[u, b] = function("tanh", weights[u, b])
        if way == "reduced":
            j = self.seen(self.choose(*self.ranges), self.i, "j")
            self.unread.append(lambda: sum_(source[j, b] * table[positions[j], b], over=j))
        elif way == "best":
            k, scores = (
                self.seen("causal", self.i, "k"),
                self.form.array(self.name("Z"), self.l, self.l),
            )
            best = self.form.array(self.name("P"), self.l, below=self.l)
            scores[self.i, k] = sum_(source[k, self.a], over=self.a)
            best[self.i] = argmax(scores[self.i, k], over=k)
            self.unread.append(lambda: source[best[self.i], b] * table[positions[self.i], b])
        elif way in ("rows", "earlier"):
            last = self.l if way == "rows" else lambda i: i
            rows = self.mixer.buffer(self.name("g"), self.l, below=last)
            self.unread.append(lambda: source[rows[self.i], b] * table[positions[self.i], b])
        else:
            self.unread.append(lambda: source[self.i, b] - table[positions[self.i], b])

    def coupled(self) -> None:
        """Two or three recurrences: in one loop, each reading the rows of the others, or each
        reading the rows of earlier ones at offsets -1, 0 and 1; unary chains of unequal length
        lie between, some in arrays of their own."""
        together, down, shift = self.choose(True, False), self.choose(True, False), 0
        loops: list[_Recurrence] = []
        for _ in range(2 + self.number_up_to(1)):
            down = down if together else self.choose(True, False)
            # each can read the row before of the next one in the same loop
            shift = self.choose(*range(shift if together else 0, 2))
            rows = self.form.array(self.name("R"), self.l + shift, self.d)
            loops.append(_Recurrence(rows, shift, down, self.l))
        order = [(step, k) for k in range(len(loops)) for step in (self.begun, self.continued)]
        if together:  # the first rows of all come before the other rows of any
            order.sort(key=lambda one: one[0] == self.continued)
        for step, k in order:
            step(loops, k, together)

    def chain(self, value: Node) -> Node:
        """A value after zero to three functions."""
        for _ in range(self.number_up_to(3)):
            value = function(self.choose("tanh", "sigmoid", "exp"), function("tanh", value))
        return value

    def begun(self, loops: Sequence[_Recurrence], k: int, together: bool) -> None:
        """The first row of recurrence k: a row of weights, of the input, or of an earlier
        recurrence, by itself or as a linear map."""
        own = loops[k]
        source = self.choose(None, self.row(), *(one.rows for one in loops[:k]))
        row = next((one.first for one in loops if one.rows is source), Poly.of(1))
        if source is None:
            value: Node = self.parameter(self.d)[self.b]
        elif self.choose(True, False):
            weights = self.parameter(self.d, self.d)
            value = sum_(source[row, self.a] * weights[self.a, self.b], over=self.a)
        else:
            value = source[row, self.b]
        own.rows[own.first, self.b] = self.chain(value)

    def continued(self, loops: Sequence[_Recurrence], k: int, together: bool) -> None:
        """The rows of recurrence k after its first, and what reads them."""
        own, b = loops[k], self.b
        first, last = own.bounds
        i = self.index(f"i_{own.rows.name}", first, last)
        value = self.chain(self.read_at(own, i, own.before))
        for m, other in enumerate(loops[: None if together else k]):
            # a later recurrence of the loop is known up to the row before
            known = (other.before, other.place) if m < k else (other.before,)
            there = [o for o in (known if together else (-1, 0, 1)) if other.has(first, last, o)]
            if m != k and there and (abs(m - k) == 1 or self.choose(True, False)):
                read = self.chain(self.read_at(other, i, self.choose(*there)))
                value = value + read if self.choose(True, False) else value * read
        if self.choose(True, False):
            value = function("tanh", value + self.row()[i, b])
        own.rows[i + own.place, b] = value
        place = own.place if not together and self.choose(True, False) else 0
        if self.choose(True, False):
            self.unread.append(lambda: self.chain(own.rows[self.i + place, self.b]))
            return
        rows = self.form.array(self.name("C"), self.l, self.d)
        rows[self.i, b] = self.chain(own.rows[self.i + place, b])
        self.rows.append(rows)
        self.unread.append(lambda: rows[self.i, self.b])

    def read_at(self, of: _Recurrence, i: Index, offset: int) -> Node:
        """The row i + offset of a recurrence: an entry, or a linear map."""
        if self.choose(True, True, False):
            return of.rows[i + offset, self.b]
        weights = self.parameter(self.d, self.d)
        return sum_(of.rows[i + offset, self.a] * weights[self.a, self.b], over=self.a)


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
        return f"{node.array.name}[{', '.join(map(_position, node.positions))}]"
    if isinstance(node, Reduce):
        ranges = "; ".join(f"{i.name} in {_ranges(i)}" for i in node.over)
        return f"{node.kind}({_text(node.body)}, {ranges})"
    inside = [_text(child) for child in node.children]
    if isinstance(node, Binary):
        return f"({inside[0]} {_SIGNS[type(node)]} {inside[1]})"
    name = getattr(node, "function", getattr(node, "name", type(node).__name__))
    return f"{name}({', '.join(inside)})"


def _position(position: Position) -> str:
    if isinstance(position, Gather):
        return _text(position.at)
    return str(position.value if isinstance(position, Flat) else position)


_SIGNS = {Add: "+", Sub: "-", Mul: "*", Div: "/", Maximum: "max"}


def _ranges(index: Index) -> str:
    return " and ".join(f"{_bound(r.lower)}..{_bound(r.upper)}" for r in index.pieces)


def _bound(bounds: tuple[Poly, ...]) -> str:
    return str(bounds[0]) if len(bounds) == 1 else f"({', '.join(map(str, bounds))})"


@st.composite
def mixers(
    draw: st.DrawFn, ranges: tuple[str, ...] | None = None, *, grown: bool | None = None
) -> Mixer:
    """A random mixer of one to four steps, its form called `direct`.

    Args:
        ranges: the ranges of outer reductions; all of them by default.
        grown: whether it may hold loops, contexts, gathers and inner ranges without a term; by
            default where no ranges are named.
    """
    return _written(draw, ranges or RANGES, ranges is None if grown is None else grown)


def _written(
    draw: st.DrawFn,
    ranges: tuple[str, ...],
    grown: bool,
    steps: Sequence[Callable[[_Writer], None]] = (_Writer.step,) * 3,
    **further: Any,
) -> Mixer:
    mixer = RandomMixer("random")
    l, d = mixer.sizes("l d")
    x, y = mixer.input("x", l, d), mixer.output("y", l, d)
    with mixer.form("direct") as form:
        writer = _Writer(draw, mixer, form, ranges, grown, [x], **further)
        for step in steps[: writer.number_up_to(len(steps))]:
            step(writer)
        if grown and writer.number_up_to(5) == 5:
            writer.end_in_a_loop(y)
        else:
            y[writer.i, writer.b] = writer.value()
    return mixer


@st.composite
def loops_in_pieces(draw: st.DrawFn) -> Mixer:
    """A random mixer of one or two loops, each over rows or over channels, of one or two arrays."""
    return _written(draw, PAST, False, steps=(_Writer.pieces, _Writer.pieces))


@st.composite
def coupled(draw: st.DrawFn) -> Mixer:
    """A random mixer of coupled recurrences; rows that follow one another may read them."""
    mixer = RandomMixer("coupled")
    l, d = mixer.sizes("l d")
    x, y = mixer.input("x", l, d), mixer.output("y", l, d)
    with mixer.form("direct") as form:
        writer = _Writer(draw, mixer, form, PAST, grown=False, rows=[x])
        writer.coupled()
        if writer.choose(True, True, False):
            writer.end_in_a_loop(y)
        else:
            y[writer.i, writer.b] = writer.value()
    return mixer


@st.composite
def with_and_without_names(draw: st.DrawFn) -> tuple[Mixer, Mixer]:
    """One causal system twice: what is read once has no name, or has one."""
    drawn: list[int] = []
    inlined = _written(draw, PAST, True, whole=True, drawn=drawn)
    named = _written(draw, PAST, True, whole=True, again=iter(drawn), named=True)
    return inlined, named


@st.composite
def sizes(draw: st.DrawFn) -> dict[str, int]:
    """Small sizes, size 1 among them, windows shorter and longer than the sequence."""
    n, h = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    w = draw(st.integers(1, 5))
    r = draw(st.integers(1, min(w, 3)))
    return {
        "l": draw(st.integers(1, 4)),
        "n": n,
        "d": n * h,
        "w": w,
        "e": draw(st.integers(1, 3)),
        "s": draw(st.integers(1, 3)),
        "r": r,
        "m": r * draw(st.integers(1, 2)),
    }
