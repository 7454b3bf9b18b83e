"""Which random systems of rows in chunks do the tests draw?

A sequence of l rows lies in chunks of C, the last of which may be short. An array of rows is
written row by row, chunk by chunk, or split: by one equation for the rows of the first chunk and
one for those of the later ones. A row reads itself, the rows of its chunk so far, all rows so far,
a window, weights at its place in the chunk, counted from either end or from another row of it, or
the sum over the chunk before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from costmodel import Mixer, function, max_, min_, sum_
from costmodel.language.equations import Form
from costmodel.language.indices import Index
from costmodel.language.nodes import Array, Node
from costmodel.symbolic.polynomial import Poly
from tests.systems import RandomMixer

LAYOUTS = ("rows", "chunks", "split", "split")
WAYS = ("copy", "function", "chunk", "chunk", "causal", "window", "places", "product", "before")
PLACED = (*WAYS, "offset", "own", "end")
"""And what reads weights at a place: of fewer of them there is a span for all sizes."""


@dataclass(frozen=True)
class Place:
    """A row by its chunk (None for the first one, or where chunks are not told apart) and place."""

    row: Poly
    place: Index
    chunk: Index | None = None
    later: bool = False
    """Whether a chunk lies before it."""

    def other(self, place: Index) -> Poly | Index:
        """Another row of the chunk."""
        return place if self.chunk is None else (self.chunk - 1) * self.size + place

    @property
    def size(self) -> Poly:
        """The length of a chunk."""
        return Poly.atom("C")


@dataclass
class _Writer:
    draw: st.DrawFn
    mixer: Mixer
    form: Form
    rows: list[Array]
    ways: Sequence[str]
    sums: list[Array] = field(default_factory=list)
    number: int = 0

    def __post_init__(self) -> None:
        self.l, self.C, self.w = self.mixer.sizes("l C w")

    def index(self, lower: object, upper: object) -> Index:
        self.number += 1
        return self.form.index(f"j{self.number}", lower, upper)

    def places(self) -> Iterator[Place]:
        """All rows, in one of the layouts."""
        l, C, f = self.l, self.C, self.form
        layout = self.draw(st.sampled_from(LAYOUTS))
        if layout == "rows":
            i = f.index("i", 1, l)
            yield Place(i.as_poly(), i)
        elif layout == "chunks":
            q = f.index("q", 1, l // C + 1)
            e = f.index("e", 1, min_(C, l - (q - 1) * C))
            yield Place((q - 1) * C + e, e, q)
        else:
            k, g = f.index("k", 1, min_(C, l)), f.index("g", 2, l // C + 1)
            u = f.index("u", 1, min_(C, l - (g - 1) * C))
            yield Place(k.as_poly(), k)
            yield Place((g - 1) * C + u, u, g, later=True)

    def term(self, at: Place) -> Node:
        """A value at a row."""
        source, way = self.draw(st.sampled_from(self.rows)), self.draw(st.sampled_from(self.ways))
        if way == "function":
            return function("tanh", source[at.row])
        if way == "chunk":
            j = self.index(1, at.place)
            return sum_(source[at.other(j)], over=j)
        if way == "causal":
            j = self.index(1, at.row)
            return sum_(source[j], over=j)
        if way == "window":
            j = self.index(max_(1, at.row - self.w + 1), at.row)
            return sum_(source[j], over=j)
        if way == "places":
            j = self.index(1, at.place)
            return sum_(self.weights(at)[j] * source[at.row], over=j)
        if way == "offset":
            j = self.index(1, at.place)
            return sum_(source[at.other(j)] * self.weights(at)[at.place - j + 1], over=j)
        if way == "own":
            return source[at.row] * self.weights(at)[at.place]
        if way == "end":
            weights = self.weights(at)
            return source[at.row] * weights[weights.shape[0] - at.place + 1]
        if way == "product":
            j = self.index(1, at.place)
            return sum_(source[at.row] * source[at.other(j)], over=j)
        if way == "before" and at.later and self.sums:
            assert at.chunk is not None
            return self.draw(st.sampled_from(self.sums))[at.chunk - 1]
        return source[at.row]

    def weights(self, at: Place) -> Array:
        """One for every place that a row may have."""
        self.number += 1
        return self.mixer.parameter(f"p{self.number}", self.l if at.place.name == "i" else self.C)

    def write(self, array: Array, *, ends: bool = False) -> None:
        """One array of rows; the one at the end reads most others."""
        for at in list(self.places()):
            value = self.term(at)
            if self.draw(st.booleans()):
                value = value + self.term(at)
            for other in self.rows[1:] if ends else ():
                if self.draw(st.integers(0, 4)):
                    value = value + other[at.row]
            array[at.row] = value
        self.rows.append(array)

    def sum_up(self) -> None:
        """The sum over every complete chunk, or over all up to it."""
        source = self.draw(st.sampled_from(self.rows))
        name = f"S{self.number}"
        sums, s = self.form.array(name, self.l // self.C), self.index(1, self.C)
        if self.draw(st.booleans()):
            r = self.index(1, self.l // self.C)
            sums[r] = sum_(source[(r - 1) * self.C + s], over=s)
        else:
            first, r = self.index(1, min_(1, self.l // self.C)), self.index(2, self.l // self.C)
            sums[first] = sum_(source[(first - 1) * self.C + s], over=s)
            sums[r] = sums[r - 1] + sum_(source[(r - 1) * self.C + s], over=s)
        self.sums.append(sums)


def _needed_alone(mixer: Mixer, form: Form) -> None:
    """Leave out the equations that the output does not need."""
    needed = {mixer.role("output")}
    for _ in form.equations:
        needed |= {a for e in form.equations if e.array in needed for a in e.value.arrays}
    form.equations = [e for e in form.equations if e.array in needed]


@st.composite
def mixers(draw: st.DrawFn, ways: Sequence[str] = WAYS) -> Mixer:
    """A random mixer over rows in chunks, its form called `direct`; its rows read in some ways."""
    mixer = RandomMixer("chunks")
    (l,) = mixer.sizes("l")
    x, y = mixer.input("x", l), mixer.output("y", l)
    with mixer.form("direct") as form:
        writer = _Writer(draw, mixer, form, [x], ways)
        for number in range(draw(st.integers(1, 3))):
            if draw(st.integers(0, 3)) == 3:
                writer.sum_up()
            writer.write(form.array(f"A{number}", l))
        writer.write(y, ends=True)
    _needed_alone(mixer, form)
    return mixer


@st.composite
def sizes(draw: st.DrawFn) -> dict[str, int]:
    """Chunks that divide the length and that do not, of one row and longer than all rows."""
    return {name: draw(st.integers(1, top)) for name, top in (("l", 9), ("C", 5), ("w", 4))}
