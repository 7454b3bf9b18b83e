"""Does the energy meter notice a sensor that never changes, a missed step, and an unsteady idle
power?"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from profiler.meters import board_energy as meter
from profiler.meters.energy.estimate import energy_reading, estimate_energy
from profiler.meters.energy.protocol import EnergyLimits
from profiler.meters.energy.trials import Campaign, Idle
from profiler.meters.energy.window import Poller, gap_s
from profiler.records.reading import Reading
from tests.nvml.board import ENERGY, MS, Busy, Simulated
from tests.nvml.estimates import read, refused
from tests.stand_ins import Instead

INSTANT, NOT_SUPPORTED = 186, 3  # NVML_FI_DEV_POWER_INSTANT, NVML_ERROR_NOT_SUPPORTED

# Steps that come otherwise than was thought.


@pytest.mark.parametrize(("true_ms", "kept"), [(100, True), (20, False), (85, False)])
def test_a_step_that_was_missed_at_rest_ends_the_resting(
    board: Simulated, true_ms: float, kept: bool
) -> None:
    """After the first edge that a rest has hidden, every edge is as narrow as polls are close."""
    board.counter(true_ms)
    poller = Poller(board.sensor(), EnergyLimits(), period_s=0.1)
    for _ in range(2000):
        board.advance(MS)
        poller.look()
    assert (poller.period_s is not None) == kept
    wide = [place for place, edge in enumerate(poller.edges) if edge.width_s > 0.005]
    assert wide == ([] if kept else [1])
    gaps = [gap_s(a, b) for a, b in pairwise(poller.edges[2:])]
    assert gaps == pytest.approx([true_ms * 1e-3] * len(gaps), abs=0.002)


# A power reading of 0 W.


def test_a_power_sensor_that_shows_zero_beside_a_counter_that_counts(board: Simulated) -> None:
    """The counter is believed, and the reader is told that the other sensor contradicts it."""
    board.instant(gain=0.0)
    load = Busy(board)
    found = read(estimate_energy(board.sensor(), load, pause=board.pause))
    assert found.value == pytest.approx(load.call_J, rel=0.01)
    assert found.details["labels"] == ["sensor disagreement", "idle sensor disagreement"]
    assert (found.details["check_J"], found.details["check_gap"]) == (0.0, -1.0)


@pytest.mark.parametrize("error", [ZeroDivisionError("float division by zero"), KeyError("w")])
def test_whatever_a_call_raises_while_it_loads_the_device_is_a_reason(
    board: Simulated, instead: Instead, error: Exception
) -> None:
    def fails(*_: Any) -> Any:
        raise error

    instead(open_sensor=lambda device, *, force: board.sensor())
    instead(queued_load=fails)
    kind = type(error).__name__
    asked: dict[str, Any] = {"device": "cuda"}
    assert f"while its energy was measured: {kind}: " in refused(meter.energy(fails, **asked))
    pair = meter.energies_in_turn({"a": (fails, None)}, **asked)
    assert f"while energies were measured in turns: {kind}: " in refused(pair)


# Idle power.


def at_idle(board: Simulated, number: int, what: Callable[[], None]) -> Reading:
    """A whole measurement; `what` happens as the first (1) or the last (2) idle reading begins."""
    load, limits = Busy(board), EnergyLimits()
    campaign = Campaign(board.sensor(), {"": load}, board.pause, limits)
    plain, asked = campaign.idle, 0

    def idle() -> Idle:
        nonlocal asked
        asked += 1
        if asked == number:
            what()
        return plain()

    campaign.idle = idle  # type: ignore[method-assign]  # the moment is what the test decides
    return energy_reading(campaign.sensor, "", campaign.run(), load, limits)


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("seconds", [0.3, 1.5])
def test_somebodys_burst_while_idle_is_read_is_labelled(
    board: Simulated, number: int, seconds: float
) -> None:
    """300 W for 1.5 of 3 s make net energy 17 % too low."""

    def burst() -> None:
        start = board.now_ns() + 2 * 10**9
        board.draw(start, 300.0)
        board.draw(start + round(seconds * 1e9), 80.0)

    found = at_idle(board, number, burst)
    assert found.details["labels"] == ["unsteady idle"]
    assert found.details["idle_spread"] > 0.3


def test_idle_that_has_doubled_between_its_readings_is_labelled(board: Simulated) -> None:
    """80 W before and 160 W after, each steady: no leakage grows like that."""
    found = at_idle(board, 2, lambda: board.draw(board.now_ns(), 160.0))
    assert found.details["labels"] == ["unsteady idle"]
    assert found.details["idle_spread"] < 0.01
    assert found.details["idle_change"] == pytest.approx(80 / 120, rel=0.01)


def test_idle_power_that_leaks_a_little_more_is_a_line_and_no_label(board: Simulated) -> None:
    found = at_idle(board, 2, lambda: board.draw(board.now_ns(), 86.0))
    assert found.details["labels"] == []
    assert found.details["idle_change"] == pytest.approx(6 / 83, rel=0.01)


# Idle power by a sensor that averages.


@pytest.mark.parametrize(
    ("reach_s", "counts", "true"), [(1.5, False, True), (1.5, True, True), (1.0, False, False)]
)
def test_a_mean_over_one_second_of_rest_is_waited_for(
    board: Simulated, reach_s: float, counts: bool, true: bool
) -> None:
    """400 W of load stay in the mean for more than the second of rest that other sensors need."""
    board.library.sim_field_fault(0, INSTANT, NOT_SUPPORTED)
    if not counts:
        board.fault(ENERGY, NOT_SUPPORTED)
    limits = EnergyLimits(averaged_settle_s=reach_s, settle_s=1.5, idle_s=1.0, window_s=2.0)
    campaign = Campaign(board.sensor(), {"": Busy(board)}, board.pause, limits)
    idle = campaign.run().idles[0].stretch
    read_W = idle.check_W if counts else idle.power_W
    assert read_W is not None and read_W > 80 - 1e-3
    assert (read_W < 80 + 1e-3) == true


def test_rest_is_as_long_as_what_a_sensor_is_known_to_average() -> None:
    assert EnergyLimits().resting("averaged") == EnergyLimits().averaged_settle_s > 1.0
    assert EnergyLimits().resting("instant") == EnergyLimits().resting(None) == 1.0
    assert EnergyLimits(idle_discard_s=4.0).resting("averaged") == 4.0
    longer = EnergyLimits().seconds(power="averaged") - EnergyLimits().seconds(power="instant")
    assert longer == pytest.approx(0.5 * (5 + 2))  # five trials, and two readings of idle power
