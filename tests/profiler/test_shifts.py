"""Is what sums of products hold that run shift by shift explained to the byte, at sizes of all
kinds; does another description, or one more tensor, surface?"""

from __future__ import annotations

from dataclasses import replace

import pytest

import costmodel as cm
from costmodel.errors import Unsupported
from costmodel.language.indices import min_
from costmodel.language.writing import sum_
from costmodel.questions.subject import system_of
from profiler.modules.registry import implementations
from profiler.reconcile.allocations.schedule import Schedule, moments
from tests.implementations import every
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

BY_SHIFT = ("she", "she-no-output", "she-extraction", "convolution", "convolution-same")
"""The mixers whose implementation `direct` takes one product for each shift."""

each = pytest.mark.parametrize("mixer", BY_SHIFT)


@by_sizes(
    [
        {"b": 2, "l": 1, "d": 4, "k": 3}, {"b": 1, "l": 1, "d": 3, "k": 1},
        {"b": 3, "l": 2, "d": 5, "k": 2}, {"b": 3, "l": 2, "d": 5, "k": 6},
        {"b": 1, "l": 3, "d": 4, "k": 2}, {"b": 4, "l": 9, "d": 8, "k": 4},
        {"b": 5, "l": 11, "d": 2, "k": 3}, {"b": 2, "l": 4, "d": 17, "k": 5},
    ]
)  # fmt: skip
@pytest.mark.parametrize("phase", ["training", "training-step"])
@each
def test_the_worst_moment_is_explained_to_the_byte(
    mixer: str, phase: str, sizes: dict[str, int]
) -> None:
    """One row, one shift and two, more taps than rows, one sequence, wide rows and narrow ones."""
    chosen = implementations(mixer)["direct"]
    found = remembered(mixer, chosen, phase, sizes=sizes, kept=False)["peak"]
    assert found.unexplained == 0


@each
def test_shifts_are_the_cause_that_is_named(mixer: str) -> None:
    sizes = {"b": 3, "l": 4, "d": 6, "k": 3}
    found = remembered(mixer, implementations(mixer)["direct"], "training-step", sizes=sizes)
    assert named(found["peak"])["shift by shift"] > 0
    assert found["peak"].unexplained == 0


def windows(first: int = 1) -> cm.Mixer:
    """y_i = the sum of x_{i-s+1} W_s over three taps, or fewer where rows end; from another tap
    on, no tap has all rows."""
    mixer = cm.Mixer("windows")
    l, d = mixer.sizes("l d")
    x, y, W = mixer.input("x", l, d), mixer.output("y", l, d), mixer.parameter("W", 3, d, d)
    with mixer.form("direct") as form:
        i, s = form.index("i", 1, l), form.index("s", first, min_(3, form.index("i", 1, l)))
        a, c = form.index("a", 1, d), form.index("c", 1, d)
        y[i, a] = sum_(x[i - s + 1, c] * W[s, c, a], over=(s, c))
    return mixer


def by_hand(phase: str, *unbound: str) -> list[int]:
    """What is held at each moment, of b = 2 sequences of l = 5 rows of d = 3."""
    schedule = Schedule(
        {"y": "contraction"},
        lets_go=True,
        operations=True,
        nodes=True,
        shifts=True,
        unbound=unbound,
    )
    system, sizes = system_of(windows(), "direct", (), phase), {"b": 2, "l": 5, "d": 3}
    found = moments(system, phase, sizes, schedule)
    return [sum(alive.values()) for _, alive in found]


def test_products_are_added_to_the_first_by_hand() -> None:
    """x and y, and beside them the products of four rows and of three."""
    row = 2 * 3
    assert by_hand("training") == [(5 + 5) * row, (5 + 5 + 4) * row, (5 + 5 + 3) * row]


def test_slices_of_gradients_are_added_up_as_whole_arrays_by_hand() -> None:
    """x and y.grad throughout. The last tap hands on (d, d) and three rows, the next one (d, d) and
    four, and both are summed up whole; then the first one (d, d) and all five rows."""
    row, tap = 2 * 3, 3 * 3
    given, W, x = (5 + 5) * row, 3 * tap, 5 * row
    assert by_hand("training-step")[3:] == [given + more for more in (
        tap, tap + 3 * row,
        2 * tap + 3 * row, 2 * tap + 7 * row, 2 * tap + W + 7 * row, W + 7 * row + x,
        W + tap + x, W + tap + 2 * x, W + tap + 3 * x, W + tap + W + x,
    )]  # fmt: skip


def test_slices_that_one_operation_took_are_put_together_by_hand() -> None:
    """Those of the last two taps wait for each other."""
    row, tap = 2 * 3, 3 * 3
    given, W, x = (5 + 5) * row, 3 * tap, 5 * row
    assert by_hand("training-step", "W")[3:] == [given + more for more in (
        tap, tap + 3 * row,
        2 * tap + 3 * row, 2 * tap + 7 * row, 2 * tap + 7 * row + x, 2 * tap + W + x,
        W + tap + x, W + tap + 2 * x, W + tap + 3 * x, W + tap + W + x,
    )]  # fmt: skip


def test_a_sum_without_a_shift_that_all_rows_have_is_refused() -> None:
    """y_1 is no product: the rule has nothing to start with."""
    system = system_of(windows(first=2), "direct", (), "training")
    schedule = Schedule({"y": "contraction"}, operations=True, shifts=True)
    with pytest.raises(Unsupported, match="a sum over shifts of which none has all rows"):
        moments(system, "training", {"b": 2, "l": 5, "d": 3}, schedule)


@pytest.mark.parametrize(
    ("mixer", "unbound"), [("she", ("W_ext",)), ("convolution", ()), ("convolution-same", ())]
)
def test_another_description_of_how_slices_are_taken_is_unexplained(
    mixer: str, unbound: tuple[str, ...]
) -> None:
    chosen = implementations(mixer)["direct"]
    sizes = {"b": 2, "l": 4, "d": 17, "k": 4}
    for told, explained in ((chosen, True), (replace(chosen, unbound=unbound), False)):
        found = remembered(mixer, told, "training-step", sizes=sizes, kept=False)["peak"]
        assert (found.unexplained == 0) == explained


def test_what_is_taken_apart_is_a_parameter() -> None:
    for chosen in every():
        assert {*chosen.unbound} <= {array.name for array in cm.mixer(chosen.mixer).parameters}


@each
def test_a_tensor_held_while_shifts_run_is_unexplained(mixer: str) -> None:
    module = holding(implementations(mixer)["direct"].module)
    assert doctored(mixer, "direct", module, "training")["peak"].unexplained == ONE


@each
def test_a_tensor_kept_until_the_last_gradient_is_unexplained(mixer: str) -> None:
    module = keeping_throughout(implementations(mixer)["direct"].module)
    assert doctored(mixer, "direct", module, "training-step")["peak"].unexplained == ONE
