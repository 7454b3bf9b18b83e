"""Is the largest depth over an index exact, and are windows as deep as executed ones?"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import assume, given, settings, strategies as st

import costmodel as cm
from costmodel import Mixer, critical_path, scaled, softmax
from costmodel.errors import Unsupported
from costmodel.language.equations import Form
from costmodel.language.indices import Index
from costmodel.language.nodes import Node
from costmodel.oracle.execute import execute
from costmodel.symbolic.maximise import direction, highest
from costmodel.symbolic.polynomial import Poly, call, size
from tests import systems
from tests.systems import examples

l, w, r, d = (size(letter) for letter in "lwrd")
v, u = Poly.atom("@v"), Poly.atom("@u")
WHOLE = frozenset({v - 1, l - v})


def test_a_window_is_fullest_inside() -> None:
    """The rows that v sees: v-w..v+w inside 1..l. Some v sees them all, or 2w+1 of them."""
    seen = call("Min", l, v + w, l - v + w + 1, 2 * w + 1)
    assert highest(seen, "@v", WHOLE) == call("Min", l, 2 * w + 1)
    depth = call("ceil_log2", seen) * 2 + call("ceil_log2", d)
    expected = call("ceil_log2", call("Min", l, 2 * w + 1)) * 2 + call("ceil_log2", d)
    assert highest(depth, "@v", WHOLE) == expected


def test_terms_that_cross_meet_in_the_middle() -> None:
    """min(v, l+1-v) is largest at the middle row, of an odd and of an even length."""
    assert str(highest(call("Min", v, l + 1 - v), "@v", WHOLE)) == "floor((l + 1)/2)"


def test_a_depth_that_grows_is_largest_at_the_end() -> None:
    assert highest(call("ceil_log2", v) + 1, "@v", WHOLE) == call("ceil_log2", l) + 1
    assert highest(l - v + 1, "@v", WHOLE) == l
    assert direction(call("floor_div", l, v), "@v") == -1
    assert highest(call("floor_div", l, v), "@v", WHOLE) == l
    assert str(highest(v, "@v", frozenset({v - 1, l - 2 * v}))) == "floor(l/2)"


def test_two_windows_are_full_at_one_row() -> None:
    """Where both are full together, in the middle, the depth is the sum of both."""
    wide, narrow = (call("Min", l, v + x, l - v + x + 1, 2 * x + 1) for x in (w, r))
    depth = call("ceil_log2", wide) + call("ceil_log2", narrow)
    full = [call("ceil_log2", call("Min", l, 2 * x + 1)) for x in (w, r)]
    assert highest(depth, "@v", WHOLE) == full[0] + full[1]


@pytest.mark.parametrize(
    "depth",
    [
        v * (l + 1 - v),
        v + call("ceil_log2", l + 1 - v) * 2,
        call("ceil_log2", d * v) + call("ceil_log2", l + 1 - v),
        call("ceil_log2", v) + call("ceil_log2", v + w) + call("ceil_log2", l + 1 - v),
        call("Max", v, l + 1 - v),
    ],
    ids=str,
)
def test_parts_that_are_largest_at_different_rows_are_refused(depth: Poly) -> None:
    with pytest.raises(Unsupported, match="the depth is not monotone in index v"):
        highest(depth, "@v", WHOLE)


def test_an_index_without_an_end_is_refused() -> None:
    with pytest.raises(Unsupported, match="index v has no upper bound: give it both"):
        highest(v, "@v", frozenset({v - 1}))
    with pytest.raises(Unsupported, match="index v skips entries by a stride of 2"):
        highest(v, "@v", frozenset({v - 1, u - 2 * v}))
    with pytest.raises(Unsupported, match="from above depends on the sizes") as refused:
        highest(v, "@v", frozenset({v - 1, w * v - l * v}))
    assert refused.value.advice == "multiply v by a factor that has one sign at all sizes"


SIZES = [(a, b) for a in (1, 2, 3, 4, 7) for b in (1, 2, 3, 9)]
POINTS = [{"l": a, "w": b, "@v": value} for a, b in SIZES for value in range(1, a + 1)]

OFFSETS = st.tuples(st.integers(-1, 1), st.integers(-1, 2), st.integers(-1, 2), st.integers(-2, 3))
"""How often v, l and w occur in an affine term, and a number."""


def affine(term: tuple[int, int, int, int]) -> Poly:
    slope, long, wide, number = term
    return v * slope + l * long + w * wide + number


@st.composite
def depths(draw: st.DrawFn) -> Poly:
    """Sums of logarithms of the least of affine terms, and of such terms themselves."""
    result = Poly()
    for _ in range(draw(st.integers(1, 2))):
        least = call("Min", *map(affine, draw(st.lists(OFFSETS, min_size=1, max_size=4))))
        if draw(st.booleans()):
            least = least - call("Max", *map(affine, draw(st.lists(OFFSETS, max_size=2))), 0)
        positive = least.constant() is None and all(least.at(at) >= 1 for at in POINTS)
        deeper = positive and draw(st.booleans())
        result = result + (call("ceil_log2", least) if deeper else least)
    return result


RANGES = {
    "whole": WHOLE,
    "past": frozenset({v - 1, v - u + w, u - v, l - v}),
    "around": frozenset({v - 1, v - u + w, u + w - v, l - v}),
    "one": frozenset({v - u, u - v}),
}


@given(depth=depths(), kind=st.sampled_from(sorted(RANGES)))
@settings(max_examples=examples(300))
def test_the_largest_of_all_values(depth: Poly, kind: str) -> None:
    """By trying every index at sizes with windows shorter and longer than the range."""
    around = RANGES[kind] | {u - 1, l - u}
    try:
        found = highest(depth, "@v", around)
    except Unsupported:
        assume(False)
    for length, window in SIZES:
        for row in range(1, length + 1):
            at = {"l": length, "w": window, "@u": row}
            inside = [
                value
                for value in range(1, length + 1)
                if all(c.at({**at, "@v": value}) >= 0 for c in around)
            ]
            best = max(depth.at({**at, "@v": value}) for value in inside)
            assert found.at(at) == best, (at, str(found))


Writer = Callable[[Mixer, Form, Index, Index], Node]


def _written(name: str, write: Writer) -> Mixer:
    mixer = Mixer(name)
    l, d = mixer.sizes("l d")
    mixer.input("x", l, d)
    y = mixer.output("y", l, d)
    with mixer.form("direct") as form:
        i, b = form.index("i", 1, l), form.index("b", 1, d)
        y[i, b] = write(mixer, form, i, b)
    return mixer


def _around(mixer: Mixer, form: Form, i: Index, name: str, back: str, ahead: str) -> Index:
    behind, before = mixer.sizes(f"{back} {ahead}")
    return form.index(name, cm.max_(1, i - behind), cm.min_(mixer.sizes("l")[0], i + before))


def _sums(mixer: Mixer, form: Form, i: Index, b: Index) -> Node:
    j, x = _around(mixer, form, i, "j", "w", "w"), mixer.arrays["x"]
    return cm.sum_(x[j, b] * x[j, b], over=j)


def _uneven(mixer: Mixer, form: Form, i: Index, b: Index) -> Node:
    j, a, x = _around(mixer, form, i, "j", "w", "r"), form.index("a", 1, d), mixer.arrays["x"]
    return cm.sum_(x[j, a] * x[i, b], over=(j, a))


def _stacked(mixer: Mixer, form: Form, i: Index, b: Index) -> Node:
    """Two windows of different reach, and the first row's own sum beside the second."""
    rows, x = form.array("S", l, d), mixer.arrays["x"]
    j, q = _around(mixer, form, i, "j", "w", "w"), _around(mixer, form, i, "q", "r", "r")
    rows[i, b] = cm.sum_(x[j, b], over=j)
    return cm.sum_(rows[q, b] * rows[i, b], over=q)


def _attention(mixer: Mixer, form: Form, i: Index, b: Index) -> Node:
    scores, weights, x = form.array("Z", l, l), form.array("A", l, l), mixer.arrays["x"]
    k, a = _around(mixer, form, i, "k", "w", "r"), form.index("a", 1, d)
    scores[i, k] = scaled(cm.sum_(x[i, a] * x[k, a], over=a), by=d)
    weights[i, k] = softmax(scores[i, k], over=k)
    return cm.sum_(weights[i, k] * x[k, b], over=k)


WRITERS: tuple[Writer, ...] = (_sums, _uneven, _stacked, _attention)


@pytest.mark.grid(2)
@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
@pytest.mark.parametrize("rewrites", [(), ("safe-softmax",)], ids=str)
def test_a_two_sided_window_is_as_deep_as_executed(
    write: Writer, rewrites: tuple[str, ...]
) -> None:
    """Windows shorter than the sequence, as long, longer; one-sided at the edges."""
    mixer = _written("window", write)
    derived = cm.span(mixer, convention=("strict", *rewrites))
    wide = (1, 3, 6) if "r" in mixer.letters else (1,)
    for length in (1, 2, 3, 4, 5, 8, 9, 11):
        for window in (1, 2, 4, 7, 12):
            for reach in wide:
                sizes = {"l": length, "w": window, "r": reach, "d": 2}
                run = execute(mixer.forms["direct"], sizes, rewrites=rewrites)
                assert derived.at(**sizes) == run.span(), sizes


def test_the_path_through_a_window() -> None:
    assert critical_path(_written("window", _sums)).steps == ("mul", "sum")


def test_most_random_windows_have_a_span() -> None:
    """The comparison below would prove nothing if most were refusals."""
    asked: list[bool] = []

    @given(mixer=systems.mixers(ranges=("around", "ahead", "window")))
    @settings(max_examples=examples(60))
    def ask(mixer: Mixer) -> None:
        try:
            cm.span(mixer)
        except Unsupported:
            asked.append(False)
        else:
            asked.append(True)

    ask()
    assert sum(asked) >= 0.8 * len(asked)


@given(
    mixer=systems.mixers(ranges=("around", "ahead", "window")),
    length=st.integers(1, 7),
    window=st.integers(1, 9),
)
@settings(max_examples=examples(80))
def test_random_windows_are_as_deep_as_executed(mixer: Mixer, length: int, window: int) -> None:
    sizes = {"l": length, "w": window, "n": 1, "d": 2, "e": 3}
    try:
        derived = cm.span(mixer)
    except Unsupported:
        return
    assert derived.at(**sizes) == execute(mixer.forms["direct"], sizes).span()
