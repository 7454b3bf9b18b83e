"""Do the rules derive exactly what executing the equations entry by entry counts?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import costmodel as cm
from costmodel.check import Comparison, differences
from costmodel.equations import Mixer
from costmodel.execution.oracle import execute
from costmodel.mixers import builtin, names
from tests import systems
from tests.small import complete, has_inference

SIZES = (
    {"l": 1, "d": 1, "n": 1},
    {"l": 5, "d": 6, "n": 2},
    {"l": 3, "d": 7, "n": 7},
    {"l": 4, "d": 3, "n": 1},
)
"""Distinct small primes, so that swapped axes cannot cancel; size 1; a power of two."""

REWRITES = (
    (),
    ("dense",),
    ("safe-softmax",),
    ("dense", "safe-softmax", "scale=mul"),
    ("scale=mul",),
    ("scale=folded",),
)
FORMS = [(name, form) for name in names() for form in builtin(name).forms]


@pytest.mark.parametrize("rewrites", REWRITES, ids=lambda r: ",".join(r) or "strict")
@pytest.mark.parametrize(("name", "form"), FORMS)
def test_every_mixer_form_and_rewrite(name: str, form: str, rewrites: tuple[str, ...]) -> None:
    """Counts per class, once, span, traffic, state, one token at every t, and the values."""
    for sizes in (complete(builtin(name), x) for x in (SIZES[1:2] if rewrites else SIZES)):
        assert differences(builtin(name), sizes, form=form, rewrites=rewrites) == [], sizes


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_multiply_accumulate(name: str, form: str) -> None:
    sizes = complete(builtin(name), SIZES[1])
    assert differences(builtin(name), sizes, form=form, accounting="mac") == []


@pytest.mark.parametrize("name", names())
@given(l=st.integers(1, 5), n=st.integers(1, 3), h=st.integers(1, 3))
@settings(max_examples=4)
def test_any_size(name: str, l: int, n: int, h: int) -> None:
    for form in builtin(name).forms:
        sizes = complete(builtin(name), {"l": l, "d": n * h, "n": n})
        assert differences(builtin(name), sizes, form=form) == []


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_batch_multiplies_what_depends_on_the_input(name: str, form: str) -> None:
    mixer, sizes = builtin(name), complete(builtin(name), SIZES[1])
    run = execute(mixer.forms[form], sizes)
    counts = cm.count(mixer, form=form).at(**sizes, b=3)
    once = sum(run.once().values())
    assert counts.total == 3 * sum(run.counts().values()) + once
    least = run.compulsory()
    moved = cm.traffic(mixer, form=form).compulsory.at({**sizes, "b": 3})
    assert moved["activations"] == 3 * (least.inputs + least.outputs)
    assert moved.get("weights", 0) == least.weights


CAUSAL = [(name, form) for name, form in FORMS if has_inference(builtin(name), form)]


@pytest.mark.parametrize(("name", "form"), CAUSAL)
def test_batch_multiplies_the_state(name: str, form: str) -> None:
    mixer, sizes = builtin(name), complete(builtin(name), SIZES[1])
    run = execute(mixer.forms[form], sizes, length=7)
    assert cm.state(mixer, form).at(**sizes, t=3, b=64) == 64 * run.state(3)


@pytest.mark.parametrize(("name", "form"), CAUSAL)
def test_one_token_is_the_difference_of_two_lengths(name: str, form: str) -> None:
    """inference(t) = training(t) - training(t-1), by the rules alone, at sizes no oracle runs."""
    mixer, sizes = builtin(name), complete(builtin(name), {"d": 96, "n": 4, "l": 1})
    for t in (2, 3, 17, 1000):
        longer, shorter = (
            cm.count(mixer, form=form).at(**{**sizes, "l": length}) for length in (t, t - 1)
        )
        token = cm.count(mixer, "inference", form).at(**{**sizes, "l": t}, t=t)
        classes = longer.by_class()
        assert token.by_class() == {c: v - shorter.by_class()[c] for c, v in classes.items()}


def test_a_token_past_the_length() -> None:
    """Self-attention has no array of extent l that a token past l would exceed."""
    mixer = builtin("self-attention")
    run = execute(mixer.forms["direct"], SIZES[1], length=9)
    token = cm.count(mixer, "inference").at(**{**SIZES[1], "t": 8})
    found = {name: number for name, number in token.by_class().items() if number}
    assert found == run.counts_inference(8)


@pytest.mark.parametrize("name", names())
def test_parameters_are_the_entries_of_the_arrays(name: str) -> None:
    mixer, sizes = builtin(name), complete(builtin(name), SIZES[1])
    run = execute(mixer.forms[mixer.default_form], sizes)
    held = sum(run.arrays[array.name].size for array in mixer.parameters)
    assert cm.parameters(mixer).at(**sizes) == held


RANDOM_REWRITES = st.sampled_from([(), ("dense",), ("safe-softmax",), ("scale=folded",)])


@given(mixer=systems.mixers(), sizes=systems.sizes(), rewrites=RANDOM_REWRITES)
@settings(max_examples=120)
def test_random_systems(mixer: Mixer, sizes: dict[str, int], rewrites: tuple[str, ...]) -> None:
    """Whatever the rules answer about a system of the language is what its execution counts."""
    assert Comparison(mixer, rewrites=rewrites).at(sizes).apart == [], sizes


@given(
    mixer=systems.mixers(ranges=("causal", "before"), grown=True),
    sizes=systems.sizes(),
    rewrites=RANDOM_REWRITES,
)
@settings(max_examples=40)
def test_random_causal_systems(
    mixer: Mixer, sizes: dict[str, int], rewrites: tuple[str, ...]
) -> None:
    assert Comparison(mixer, rewrites=rewrites).at(sizes).apart == [], sizes


def test_few_questions_about_random_systems_are_left_open() -> None:
    """A refusal is honest, but the comparisons above would prove nothing if most were refusals."""
    asked: Counter[bool] = Counter()

    @given(mixer=systems.mixers(), sizes=systems.sizes())
    @settings(max_examples=60)
    def ask(mixer: Mixer, sizes: dict[str, int]) -> None:
        asked[bool(Comparison(mixer).at(sizes).refused)] += 1

    ask()
    assert asked[True] <= 0.3 * asked.total()


def _number(expression: Any, sizes: Mapping[str, int]) -> int:
    """A printed expression with its symbols replaced."""
    return int(expression.subs({s: sizes[str(s)] for s in expression.free_symbols}))


def _window() -> Mixer:
    """y[i] = sum of the last w rows, weighted by distance."""
    mixer = Mixer("window")
    l, w = mixer.sizes("l w")
    x, y, p = mixer.input("x", l), mixer.output("y", l), mixer.parameter("p", w)
    with mixer.form("direct") as form:
        i = form.index("i", 1, l)
        j = form.index("j", cm.max_(1, i - w + 1), i)
        y[i] = cm.sum_(x[j] * p[i - j + 1], over=j)
    return mixer


@pytest.mark.parametrize("l", [1, 2, 3, 6])
@pytest.mark.parametrize("w", [1, 2, 3, 5])
def test_both_sides_of_a_breakpoint(l: int, w: int) -> None:
    """Shorter than the window, as long, longer; and the printed expression says the same."""
    mixer, sizes = _window(), {"l": l, "w": w}
    assert differences(mixer, sizes) == []
    run = execute(mixer.forms["direct"], sizes, length=l + w + 2)
    assert _number(cm.count(mixer).mul, sizes) == cm.count(mixer).at(**sizes).mul
    assert _number(cm.state(mixer).expr, {"t": l, "w": w}) == run.state(l)


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_expressions_and_integers_are_one_answer(name: str, form: str) -> None:
    mixer, sizes = builtin(name), complete(builtin(name), SIZES[1])
    counts = cm.count(mixer, form=form)
    assert _number(counts.total, sizes) == counts.at(**sizes).total


@pytest.mark.parametrize("l", [1, 2, 3, 5])
@pytest.mark.parametrize("w", [1, 2, 3])
def test_what_dense_reads_outside_an_array_has_no_depth(l: int, w: int) -> None:
    """Every S[i-j+1] with j > i is a zero: it is multiplied, but nothing came before it."""
    mixer = Mixer("outside")
    size, width = mixer.sizes("l w")
    x, y = mixer.input("x", size), mixer.output("y", size)
    with mixer.form("direct") as form:
        i = form.index("i", 1, size)
        j, k = form.index("j", 1, i), form.index("k", i, cm.min_(size, i + width - 1))
        s = form.array("S", size)
        s[i] = cm.sum_(x[k], over=k)
        y[i] = cm.sum_(x[j] * s[i - j + 1], over=j)
    assert differences(mixer, {"l": l, "w": w}, rewrites=("dense",)) == []
