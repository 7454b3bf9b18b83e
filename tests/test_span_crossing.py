"""Is a depth exact that sums growing and falling logarithms?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings, strategies as st

import costmodel as cm
from costmodel import Mixer
from costmodel.errors import Unsupported
from costmodel.oracle.execute import execute
from costmodel.symbolic import piecewise_max
from costmodel.symbolic.maximise import best_pairs, highest
from costmodel.symbolic.piecewise_max import (
    Level,
    is_at_least,
    maxima,
    pruned,
    reached,
    the_tightest,
)
from costmodel.symbolic.polynomial import Poly, call, size
from costmodel.symbolic.simplify_max import simplify_max
from costmodel.symbolic.sizes import ceil_log2
from tests.systems import examples

l, w, r, d, C = (size(letter) for letter in "lwrdC")
v = Poly.atom("@v")
WHOLE = frozenset({v - 1, l - v})


def log(number: Poly | int) -> Poly:
    return call("ceil_log2", number)


def test_the_logarithm_of_a_product_is_at_most_those_of_its_factors() -> None:
    """ceil_log2(15) = 4 and ceil_log2(3) + ceil_log2(5) = 2 + 3; each factor counts once."""
    assert is_at_least(frozenset(), log(l) + log(d) + 1, log(l * d) + 1)
    assert is_at_least(frozenset({l - w}), log(l) + log(d), log(w * d))
    assert not is_at_least(frozenset(), log(l) + log(d), log(l * d) + 1)
    assert not is_at_least(frozenset(), log(l) + log(d), log(l * d) + log(d))
    assert not is_at_least(frozenset(), log(l) + log(w), log(l * d))


@pytest.mark.parametrize(
    ("level", "rival"),
    [
        (log(l) + log(d) + 3, log(l) + log(d) + 2),
        (log(l) + log(d), log(l * d * w) + 5),
        (log(l) * 2 + 1, log(l) + log(w) + 1 - log(d)),
    ],
    ids=["number", "logarithms", "subtracted"],
)
def test_a_depth_with_fewer_logarithms_or_a_lower_number_is_refused_at_once(
    level: Poly, rival: Poly, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No proof replaces a number by a logarithm, or two logarithms by one."""
    assert not is_at_least(WHOLE, rival, level)
    monkeypatch.delattr(piecewise_max, "is_at_least")
    assert not reached(Level(level), Level(rival))


def below(pairs: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """Every pair that is no better than one of some."""
    return {(a, b) for most, few in pairs for a in range(most + 1) for b in range(few + 1)}


def test_three_pairs_are_as_good_as_all() -> None:
    """Whatever is asked of two logarithms, the pairs offer what some division of the total does,
    and nothing that none does."""
    for total in range(2, 300):
        divided = {(ceil_log2(a), ceil_log2(total - a)) for a in range(1, total)}
        at = {"l": total}
        chosen = {(ceil_log2(a.at(at)), ceil_log2(b.at(at))) for a, b in best_pairs(l)}
        assert below(chosen) == below(divided), total


def test_the_best_row_of_a_growing_and_a_falling_window() -> None:
    """Of 10 rows the fifth: 5 terms before it and 6 after it are 3 levels each; of 16 none has more
    than 3 + 4 levels, and the first has 4; of 17 rows the last but one has 4 + 2 levels only, but
    the ninth 4 + 4."""
    depth = highest(log(v) + log(l + 1 - v), "@v", WHOLE)
    assert [depth.at({"l": n}) for n in (1, 2, 3, 4, 10, 16, 17)] == [0, 1, 2, 3, 6, 7, 8]


def test_steps_outrun_the_logarithms_that_fall() -> None:
    """From row to row a level more, and at most one less for what is left."""
    assert highest(v + log(l + 1 - v), "@v", WHOLE) == l
    assert highest(log(v) + log(v + w) - v * 2, "@v", WHOLE) == log(w + 1) - 2


TERMS = st.tuples(st.sampled_from((v, l + 1 - v)), st.integers(0, 2), st.integers(0, 3))
CAPS = st.lists(st.sampled_from((w, r, l, w + 1)), max_size=2)


@st.composite
def windows(draw: st.DrawFn, base: Poly) -> Poly:
    """How many terms a window has that grows or falls, and is cut."""
    return call("Min", base, *draw(CAPS))


@st.composite
def sums(draw: st.DrawFn) -> Poly:
    """A weighted sum of logarithms of windows that grow, and of others that fall."""
    result = v * draw(st.sampled_from((0, 0, 0, 1, 12, -12)))
    for base, number, wide in draw(st.lists(TERMS, min_size=2, max_size=4)):
        term = base + w * draw(st.integers(0, 1)) if wide == 3 else base
        result = result + log(draw(windows(term))) * (number + 1)
    return result


SIZES = [(a, b, c) for a in (*range(1, 14), 17, 31) for b in (1, 2, 3, 5, 8, 40) for c in (1, 4)]


def enumerated(depth: Poly, at: dict[str, int], rows: Sequence[int]) -> int:
    return max(depth.at({**at, "@v": row}) for row in rows)


def test_random_sums_by_trying_every_row() -> None:
    """The comparison would prove nothing if most were refusals."""
    asked: Counter[bool] = Counter()

    @given(sums())
    @settings(max_examples=examples(80))
    def ask(depth: Poly) -> None:
        try:
            found = highest(depth, "@v", WHOLE)
        except Unsupported:
            asked[False] += 1
            return
        asked[True] += 1
        for a, b, c in SIZES:
            at = {"l": a, "w": b, "r": c}
            assert found.at(at) == enumerated(depth, at, range(1, a + 1)), (at, str(found))

    ask()
    assert asked[True] >= 0.7 * asked.total()


def test_a_depth_is_divided_where_a_minimum_bends_it() -> None:
    """Rows that go on one after another, of which the last chunk may be short: the last full chunk,
    or the short one."""
    rows = frozenset({v - 1, call("floor_div", l - 1, C) + 1 - v})
    depth = v + log(call("Min", C, l - C * v + C)) * 3
    found = maxima(Level(depth), ["@v"], rows)
    assert len(found) == 2
    for length in range(1, 20):
        for chunk in range(1, 9):
            at = {"l": length, "C": chunk}
            there = [x for x in found if all(c.at(at) >= 0 for c in x.where)]
            number = (length - 1) // chunk + 1
            assert max(x.depth.at(at) for x in there) == enumerated(depth, at, range(1, number + 1))


def test_a_maximum_of_many_levels_under_many_conditions_is_the_same_and_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """l + 4 is reached by l + 5 where w >= 3 and by l + 6 elsewhere; of 40 levels under 40
    conditions, 128,000 comparisons, none is left out."""
    few = [
        Level(l + 5, frozenset({w - 3, l - 2})),
        Level(l + 6, frozenset({4 - w, l - 2})),
        Level(l + 4, frozenset({l - 2})),
    ]
    many = [Level(l + d * k, frozenset({w - k * l})) for k in range(2, 42)]
    assert len(simplify_max(few)) == 2
    monkeypatch.delattr("costmodel.symbolic.simplify_max._reached_on_both_sides")
    assert {*simplify_max(many)} == {*many}
    monkeypatch.setattr("costmodel.symbolic.simplify_max.MOST_COMPARED", 0)
    assert {*simplify_max(few)} == {*few}


def test_a_logarithm_inside_of_a_logarithm_may_have_no_value() -> None:
    """At l = 1, which the condition leaves out, log(l - 1) has none."""
    nested = Level(log(log(l - 1) + 1), frozenset({l - 2}))
    assert {*simplify_max([nested, Level(w)])} == {nested, Level(w)}


def test_a_depth_of_too_many_levels_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the depths l + d*k where w >= k*l is always the larger one."""
    levels = [Level(l + d * k, frozenset({w - k * l})) for k in range(2, 13)]
    monkeypatch.setattr(piecewise_max, "MOST_LEVELS", 10)
    assert {*pruned(frozenset(), levels[1:])} == {*levels[1:]}
    with pytest.raises(Unsupported, match=r"more than 10 cases: give each size a value"):
        pruned(frozenset(), levels)


def before_and_after(*, weight: int, cut: bool) -> Mixer:
    """Row i adds up the rows before it and those after it, one sum into the other: a running sum
    whose terms are each a sum of the rest."""
    m = Mixer("crossing")
    length, window = m.sizes("l w")
    x, y = m.input("x", length), m.output("y", length)
    with m.form("direct") as f:
        i = f.index("i", 1, length)
        j = f.index("j", cm.max_(1, i - window + 1) if cut else 1, i)
        k = f.index("k", i, cm.min_(length, i + window - 1) if cut else length)
        ahead, rows = f.array("U", length), f.array("S", length)
        ahead[i] = cm.sum_(x[k], over=k)
        rows[i] = cm.sum_(ahead[i] * x[j], over=j)
        y[i] = cm.sum_(rows[i] * x[j], over=j) if weight == 2 else rows[i] * 1
    return m


@pytest.mark.parametrize("weight", [1, 2])
@pytest.mark.parametrize("cut", [False, True])
def test_sums_before_and_after_a_row_are_as_deep_as_executed(weight: int, cut: bool) -> None:
    mixer = before_and_after(weight=weight, cut=cut)
    derived = cm.span(mixer)
    assert len(derived.terms) == 2
    for length in (*range(1, 12), 16, 17, 23):
        for window in (1, 2, 3, 4, 5, 9, 30) if cut else (1,):
            sizes = {"l": length, "w": window}
            run = execute(mixer.forms["direct"], sizes)
            assert derived.at(**sizes) == run.span(), sizes


def test_the_bounds_that_may_be_tightest_are_named_in_one_order() -> None:
    l, d = Poly.atom("l"), Poly.atom("d")
    for ends in ((l, d), (d, l)):
        with pytest.raises(Unsupported, match=r"the sizes: it is one of d, l$"):
            the_tightest(ends, frozenset(), 1)
