"""Is the span of gradients exact for short chunks, late loops and overlapping windows?"""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import given, settings, strategies as st

import costmodel as cm
from costmodel import Mixer, function
from costmodel.errors import Unsupported
from costmodel.oracle.execute import random_arrays, run
from costmodel.program.conventions import convention
from costmodel.program.recurrences import ascending, blocks
from costmodel.proofs.gradients import GradientComparison
from costmodel.questions.question import Answers, Case, Searched
from costmodel.questions.registry import FIGURES
from costmodel.questions.subject import system_of
from tests import chunk_systems, systems
from tests.small import complete
from tests.systems import examples

PHASES = ("backward", "training-step")
CUT = (
    ("linear-attention", "chunked", "C"),
    ("restricted-attention-causal", "direct", "w"),
    ("restricted-attention-causal", "banded", "w"),
)
PLAIN = [*product((1, 2, 3, 4, 5), (1, 2, 3, 8)), (7, 3), (7, 4), (9, 4)]
REWRITTEN = [(1, 3), (3, 1), (3, 2), (4, 2), (4, 4), (5, 8), (7, 3)]
"""Lengths, and chunks or windows."""
REWRITES: tuple[tuple[str, ...], ...] = ((), ("dense",), ("recompute=all",), ("only=inputs",))


def executed(
    mixer: Mixer, form: str, phase: str, sizes: dict[str, int], rewrites: tuple[str, ...]
) -> int:
    system = system_of(mixer, form, rewrites, "backward")
    ready = system.forward.equations if phase == "backward" else ()
    return run(system, sizes, dense="dense" in rewrites, ready=ready).span()


@pytest.mark.grid(4)
@pytest.mark.parametrize("rewrites", REWRITES, ids=str)
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(("name", "form", "letter"), CUT)
def test_span_of_cut_sequences_equals_execution(
    name: str, form: str, letter: str, phase: str, rewrites: tuple[str, ...]
) -> None:
    """Chunks and windows of one row, that divide the length or do not, as long as it and longer."""
    mixer = cm.mixer(name)
    about = Answers(mixer, form, phase, convention(("strict", *rewrites)))
    for length, cut in REWRITTEN if rewrites else PLAIN:
        sizes = complete(mixer, {"l": length, letter: cut, "d": 2, "n": 1})
        found = Case(about, sizes, symbolic=False).figure(FIGURES["span"])
        assert found == executed(mixer, form, phase, sizes, rewrites), sizes
        assert not isinstance(found, Searched)


@pytest.mark.grid(3)
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("form", ["direct", "banded"])
@pytest.mark.parametrize("name", ["restricted-attention-causal", "restricted-attention"])
def test_a_maximum_over_a_window(name: str, form: str, phase: str) -> None:
    """The largest score of a row is looked for from the window's first row on, or the sequence's;
    with all rows alike it is the first, from which on the gradient of a maximum is deepest."""
    mixer, rewrites = cm.mixer(name), ("safe-softmax",)
    derived = cm.span(mixer, phase, form, ("strict", *rewrites))
    system = system_of(mixer, form, rewrites, "backward")
    for length in (1, 2, 3, 5, 6):
        for window in (1, 2, 3, 5, 8):
            sizes = complete(mixer, {"l": length, "w": window, "d": 2, "n": 1})
            arrays = random_arrays(system.mixer.forms[form], sizes)
            arrays["x"][:] = arrays["x"][:1]
            ready = system.forward.equations if phase == "backward" else ()
            done = run(system, sizes, ready=ready, arrays=arrays)
            assert derived.at(**sizes) == done.span(), sizes


def test_the_span_of_a_window_by_hand() -> None:
    """R.grad: a product and log d. A.grad: a product, log(d/n); the quotient by the sum beside a
    product and log w, an addition, a product; Z.grad: the scale. From there to K.grad, a product
    and log w, to x.grad, a product and log d, and two additions of the three projections."""
    sizes = {"l": 9, "d": 8, "n": 2, "w": 4}
    window, wide, head = 2, 3, 2
    upto = (1 + wide) + (1 + head) + 1 + (1 + window) + 1 + 1 + 1
    expected = upto + (1 + window) + (1 + wide) + 2
    for form in ("direct", "banded"):
        found = cm.span(cm.mixer("restricted-attention-causal"), "backward", form).at(**sizes)
        assert found == expected


def late() -> Mixer:
    """Sums of whole chunks, carried on; only what a later chunk reads of them has a gradient."""
    m = Mixer("late")
    l, C = m.sizes("l C")
    x, y = m.input("x", l), m.output("y", l)
    with m.form("direct") as f:
        s, i = f.index("s", 1, C), f.index("i", 1, cm.min_(C, l))
        first, later = f.index("o", 1, cm.min_(1, l // C)), f.index("r", 2, l // C)
        S = f.array("S", l // C)
        S[first] = cm.sum_(x[(first - 1) * C + s], over=s)
        S[later] = S[later - 1] * cm.sum_(x[(later - 1) * C + s], over=s)
        g = f.index("g", 2, l // C + 1)
        u = f.index("u", 1, cm.min_(C, l - (g - 1) * C))
        y[i] = function("tanh", x[i])
        y[(g - 1) * C + u] = x[(g - 1) * C + u] * S[g - 1]
    return m


def test_a_loop_is_numbered_from_the_last_row_that_it_computes() -> None:
    """Of l // C sums, the last one has no gradient where no row comes after it."""
    system = system_of(late(), "direct", (), "backward")
    (block,) = (b for b in blocks(ascending(system)) if any(a.name == "S.grad" for a in b.axes))
    assert {str(row) for row in block.last_rows.values()} == {"floor((l - 1)/C)"}


@pytest.mark.grid(2)
@pytest.mark.parametrize("phase", PHASES)
def test_a_loop_without_its_last_rows_is_as_deep_as_executed(phase: str) -> None:
    derived = cm.span(late(), phase)
    for length in range(1, 13):
        for chunk in (1, 2, 3, 4, 5, 14):
            sizes = {"l": length, "C": chunk}
            assert derived.at(**sizes) == executed(late(), "direct", phase, sizes, ()), sizes


def test_span_of_random_chunks_equals_execution() -> None:
    """The comparison would prove nothing if nearly all were refusals: 42 % are not."""
    answered: Counter[tuple[str, bool]] = Counter()

    @given(mixer=chunk_systems.mixers(), sizes=chunk_systems.sizes())
    @settings(max_examples=examples(40))
    def ask(mixer: Mixer, sizes: dict[str, int]) -> None:
        for phase in PHASES:
            try:
                derived = cm.span(mixer, phase)
            except Unsupported:
                answered[phase, False] += 1
                continue
            answered[phase, True] += 1
            assert derived.at(**sizes) == executed(mixer, "direct", phase, sizes, ()), sizes

    ask()
    known, unknown = (answered["training-step", is_derived] for is_derived in (True, False))
    assert known >= (known + unknown) / 3 > 0


def test_coupled_recurrences_equal_execution() -> None:
    """Operations and depths, derived or searched, in three phases."""
    asked: Counter[str] = Counter()

    @given(mixer=systems.coupled(), length=st.integers(1, 6), width=st.integers(1, 3))
    @settings(max_examples=examples(12))
    def ask(mixer: Mixer, length: int, width: int) -> None:
        sizes = {"l": length, "d": width, "n": 1, "h": width, "w": 1}
        for phase in ("training", *PHASES):
            try:
                system = system_of(mixer, "direct", (), phase)
                derived = cm.count(mixer, phase).at(**sizes).total
            except Unsupported:
                continue
            asked[phase] += 1
            done = run(system, sizes, ready=system.forward.equations if phase == "backward" else ())
            answers = Answers(mixer, "direct", phase, convention("strict"))
            about = Case(answers, sizes, symbolic=False)
            counted = sum(done.counts().values()) + sum(done.once().values())
            assert derived == counted, (phase, sizes)
            assert about.figure(FIGURES["span"]) == done.span(), (phase, sizes)
            assert about.figure(FIGURES["sequential"]) == done.steps(), (phase, sizes)

    ask()
    assert min(asked[phase] for phase in ("training", *PHASES)) > 0


def interleaved() -> Mixer:
    """S is written by two equations, and the second one reads T, which is written between them."""
    m = Mixer("interleaved")
    (l,) = m.sizes("l")
    x, y = m.input("x", l), m.output("y", l)
    with m.form("direct") as f:
        i, first, later, j = (
            f.index(n, *r) for n, r in (("i", (1, l)), ("o", (1, 1)), ("r", (2, l)), ("j", (1, l)))
        )
        S, T = f.array("S", l), f.array("T", 1)
        S[later] = x[later] * x[later]
        T[first] = function("exp", cm.sum_(x[j], over=j))
        S[first] = T[first] * x[first]
        y[i] = S[i] * x[i]
    return m


def window_and_first() -> Mixer:
    """Softmax attention of each row to the first s rows and to w rows on either side."""
    made = cm.Mixer("window-and-first")
    l, d, w, s = made.sizes("l d w s")
    x, y = made.input("x", l, d), made.output("y", l, d)
    with made.form("direct") as f:
        a, g, r = f.index("a", 1, d), f.index("g", 1, cm.min_(s, l)), f.index("r", s + 1, l)
        near = (cm.max_(1, r - w), cm.min_(l, r + w))
        k = f.index("k", cm.union((1, cm.min_(s, r - w - 1)), near))
        Z, A = f.array("Z", l, l), f.array("A", l, l)
        Z[r, k] = cm.sum_(x[r, a] * x[k, a], over=a)
        A[r, k] = cm.softmax(Z[r, k], over=k)
        y[r, a] = cm.sum_(A[r, k] * x[k, a], over=k)
        y[g, a] = x[g, a]
    return made


def test_a_logarithm_inside_of_what_does_not_exist_has_a_value() -> None:
    mixer = window_and_first()
    derived = cm.span(mixer, "backward")
    for length in (1, 2, 3, 5):
        for first, window in ((1, 1), (1, 2), (2, 1), (3, 1)):
            sizes = {"l": length, "d": 2, "w": window, "s": first}
            assert derived.at(**sizes) == executed(mixer, "direct", "backward", sizes, ()), sizes


def test_an_array_that_is_written_before_and_after_another_one() -> None:
    """exp of a sum of 5, two products: 3 + 1 + 2 levels."""
    assert cm.span(interleaved()).at(l=5) == 3 + 1 + 2
    made = GradientComparison(interleaved(), "direct")
    for length in (1, 2, 5):
        made.at({"l": length})
    assert made.apart == []
