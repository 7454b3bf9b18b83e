"""Is every byte explained that a call holds at its worst moment while rows run one by one; does one
more surface?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

import costmodel as cm
from costmodel.errors import Unsupported
from costmodel.language.writing import sum_
from costmodel.questions.subject import system_of
from profiler.modules.registry import implementations
from profiler.reconcile.allocations import formulas
from profiler.reconcile.allocations.schedule import held_in_turn, schedules
from tests.profiler.test_reconcile_memory import (
    ONE,
    doctored,
    holding,
    keeping_throughout,
    named,
    quickly,  # noqa: F401  # a fixture for every test here
    remembered,
)
from tests.small import by_sizes

LOOPS = (
    ("recurrent", "explicit"), ("lstm", "explicit"), ("gru", "explicit"), ("gru", "interpolated"),
    ("gru+reset-before", "explicit"), ("gru+reset-before", "interpolated"),
    ("recurrent+two-biases", "explicit"), ("lstm+two-biases", "explicit"),
    ("gru+two-biases", "explicit"), ("gru+reset-before+two-biases", "explicit"),
    ("recurrent+two-biases", "torch"), ("lstm+two-biases", "torch"), ("gru+two-biases", "torch"),
    ("simple-causal", "recurrent"), ("simple-causal-resl", "recurrent"),
    ("linear-attention", "recurrent"), ("linear-attention", "chunked"),
    ("additive-attention", "rows"), ("dot-product-attention", "rows"),
    ("general-attention", "rows"),
)  # fmt: skip
"""Mixers and implementations that go through rows, or chunks, one after another."""

each = pytest.mark.parametrize(("mixer", "name"), LOOPS)


@by_sizes(
    [
        {"b": 2, "l": 1, "d": 4, "n": 2, "C": 3}, {"b": 1, "l": 1, "d": 2, "n": 1, "C": 1},
        {"b": 3, "l": 2, "d": 4, "n": 2, "C": 1}, {"b": 5, "l": 3, "d": 4, "n": 2, "C": 3},
        {"b": 1, "l": 9, "d": 6, "n": 3, "C": 4}, {"b": 4, "l": 6, "d": 2, "n": 1, "C": 5},
        {"b": 2, "l": 3, "d": 34, "n": 1, "C": 12}, {"b": 7, "l": 13, "d": 2, "n": 2, "C": 2},
    ]
)  # fmt: skip
@pytest.mark.parametrize("phase", ["training", "training-step"])
@each
def test_the_worst_moment_is_explained_to_the_byte(
    mixer: str, name: str, phase: str, sizes: dict[str, int]
) -> None:
    """One row and two, one sequence, one head, wide rows and narrow ones, chunks that fit, that do
    not, and one that is longer than all rows."""
    found = remembered(mixer, implementations(mixer)[name], phase, sizes=sizes, kept=False)["peak"]
    assert found.unexplained == 0 and not found.unasked


@each
def test_a_tensor_kept_until_the_last_gradient_is_unexplained(mixer: str, name: str) -> None:
    module = keeping_throughout(implementations(mixer)[name].module)
    assert doctored(mixer, name, module, "training-step")["peak"].unexplained == ONE


@each
def test_a_tensor_held_while_rows_run_is_unexplained(mixer: str, name: str) -> None:
    module = holding(implementations(mixer)[name].module)
    assert doctored(mixer, name, module, "training")["peak"].unexplained == ONE


@pytest.mark.parametrize(
    ("mixer", "name", "other"),
    [
        ("lstm", "explicit", "recurrent-layer"),
        ("gru", "explicit", "recurrent-layer"),
        ("gru+two-biases", "torch", "contraction"),
        ("linear-attention", "recurrent", "running-sum"),
        ("general-attention", "rows", "elementwise"),
    ],
)
def test_another_kernel_class_leaves_bytes_unexplained(mixer: str, name: str, other: str) -> None:
    chosen = implementations(mixer)[name]
    told = dict.fromkeys(chosen.kernels or {}, other)
    found = remembered(mixer, replace(chosen, kernels=told), "training-step", kept=False)["peak"]
    assert found.unexplained != 0


def test_a_switch_that_cannot_be_counted_under_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a function whose gradient nobody knows: what rows hold then is unexplained."""
    known = {name: formula for name, formula in formulas.CALLS.items() if name != "tanh"}
    monkeypatch.setattr(formulas, "CALLS", known)
    sizes = {"b": 3, "l": 5, "d": 7}
    chosen = implementations("recurrent")["explicit"]
    found = remembered("recurrent", chosen, "training-step", sizes=sizes, kept=False)["peak"]
    expected = "'row by row' could not be counted: the operations of the gradient of tanh"
    assert found.unasked == found.to_json()["unasked"] == expected
    assert found.unexplained != 0 and "row by row" not in named(found)


# By hand


def step_of(mixer: cm.Mixer, kernel: str, sizes: Mapping[str, int]) -> int:
    """The elements that a training step holds at most."""
    system = system_of(mixer, None, (), "training-step")
    *_, (_, _, schedule) = schedules(
        {array.name: kernel for array in system.forward.defining}, lets_go=True
    )
    return held_in_turn(system, "training-step", sizes, schedule)


@pytest.mark.parametrize("upward", [True, False])
def test_products_row_by_row_by_hand(upward: bool) -> None:
    """y_1 = x_1 x_1 and y_i = y_{i-1} x_i, of three rows; or from the last row down.

    Beside x and the gradient of y, most is held when the gradients of both factors of y_1 are
    added up: both, their sum, and the gradients of x_2 and x_3.
    """
    mixer = cm.Mixer("products")
    l, d = mixer.sizes("l d")
    x, y = mixer.input("x", l, d), mixer.output("y", l, d)
    with mixer.form("recurrent") as form:
        i, a = form.index("i", 2, l) if upward else form.index("i", 1, l - 1), form.index("a", 1, d)
        first, before = (1, i - 1) if upward else (l, i + 1)
        y[first, a] = x[first, a] * x[first, a]
        y[i, a] = y[before, a] * x[i, a]
    assert step_of(mixer, "elementwise", {"b": 2, "l": 3, "d": 5}) == (3 + 3 + 5) * 2 * 5


def test_rows_whose_number_falls_while_their_index_rises_are_refused() -> None:
    mixer = cm.Mixer("downward")
    l, d = mixer.sizes("l d")
    x, y = mixer.input("x", l, d), mixer.output("y", l, d)
    with mixer.form("recurrent") as form:
        i, a = form.index("i", 2, l), form.index("a", 1, d)
        y[l, a] = x[l, a] * x[l, a]
        y[l - i + 1, a] = y[l - i + 2, a] * x[l - i + 1, a]
    with pytest.raises(Unsupported, match="do not follow one index upward"):
        by_row_of(mixer)


def test_a_loop_that_reads_another_one_s_rows_by_hand() -> None:
    """S_1 = x_1 x_1, S_i = S_{i-1} + x_i, and y the same of S, whose rows are put together first:
    at the last row, all five of S and of y, beside x."""
    mixer = cm.Mixer("sums-of-sums")
    l, d = mixer.sizes("l d")
    x, y = mixer.input("x", l, d), mixer.output("y", l, d)
    with mixer.form("recurrent") as form:
        i, a = form.index("i", 2, l), form.index("a", 1, d)
        S = form.array("S", l, d)
        S[1, a] = x[1, a] * x[1, a]
        S[i, a] = S[i - 1, a] + x[i, a]
        y[1, a] = S[l, a] * S[1, a]
        y[i, a] = y[i - 1, a] + S[i, a]
    assert by_row_of(mixer) == (5 + 5 + 5) * 2 * 3


def by_row_of(mixer: cm.Mixer) -> int:
    """The elements that the forward pass of five rows holds at most."""
    system, sizes = system_of(mixer, None, (), "training"), {"b": 2, "l": 5, "d": 3}
    *_, (_, _, schedule) = schedules(
        {array.name: "elementwise" for array in system.defining}, lets_go=False
    )
    return held_in_turn(system, "training", sizes, schedule)


def test_rows_of_different_lengths_by_hand() -> None:
    """y_i = the sum of x_k x_k over k <= i, of two rows: beside x and the gradient of y, those of
    both factors of row 2, which reads all of x, and their sum."""
    mixer = cm.Mixer("sums")
    l, d = mixer.sizes("l d")
    x, y = mixer.input("x", l, d), mixer.output("y", l, d)
    with mixer.form("direct") as form:
        i, a = form.index("i", 1, l), form.index("a", 1, d)
        k = form.index("k", 1, i)
        y[i, a] = sum_(x[k, a] * x[k, a], over=k)
    assert step_of(mixer, "contraction", {"b": 3, "l": 2, "d": 5}) == (2 + 2 + 3 * 2) * 3 * 5
