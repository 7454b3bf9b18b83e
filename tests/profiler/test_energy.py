"""Does the energy meter find the true energy with a correct interval where sensors allow?

Boards are simulated behind NVIDIA's own binding (tests/nvml); what was true is integrated apart.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable
from typing import Any

import pytest

from profiler.meters.energy.estimate import PairedEnergy, paired_energy, student_interval
from profiler.meters.energy.protocol import EnergyLimits, energy_readings
from profiler.meters.energy.trials import Campaign
from profiler.meters.energy.window import Poller, Running, mean_power
from profiler.meters.sampler import LatencyLimits
from profiler.records.reading import Reading, Unavailable
from profiler.run.energy_tokens import per_token, tokens
from tests.nvml.board import SAMPLING, Busy, Simulated
from tests.nvml.estimates import compared, estimated, read, refused
from tests.recorded import reading, recorded

Profile = tuple[tuple[float, float], ...]
STEADY: Profile = ((0.01, 400.0),)
WAVES = ((0.003, 620.0), (0.004, 300.0))  # one call's kernels differ; its period locks to nothing
LONG = ((0.13, 350.0), (0.12, 360.0))
VARIETIES: dict[str, tuple[dict[str, Any], dict[str, Any], Profile, int]] = {
    "H100: counter every 100 ms, power sees 25 of them": ({}, {}, STEADY, 20),
    "A100 that integrates 25 of every 100 ms": (
        {"mode": SAMPLING, "window_ms": 25},
        {},
        STEADY,
        20,
    ),
    "Ada: power over the whole 100 ms": ({}, {"window_ms": 100}, STEADY, 20),
    "V100: counter every 20 ms": (
        {"period_ms": 20, "phase_ms": 7},
        {"period_ms": 20, "phase_ms": 3, "window_ms": 10},
        STEADY,
        20,
    ),
    "a counter every 333 ms": ({"period_ms": 333}, {}, STEADY, 20),
    "a counter of whole joules": ({"quantum_mJ": 1000.0}, {}, STEADY, 20),
    "a power that waves within a call": ({}, {"window_ms": 100}, WAVES, 20),
    "calls of a quarter of a second": ({}, {}, LONG, 20),
    "NVML that answers in 4 ms": ({}, {}, STEADY, 4000),
}


@pytest.mark.grid(3)
@pytest.mark.parametrize("variety", VARIETIES)
def test_within_one_per_cent_of_the_truth(board: Simulated, variety: str) -> None:
    counter, instant, profile, cost_us = VARIETIES[variety]
    board.counter(**counter)
    board.instant(**instant)
    board.library.sim_cost_ns(cost_us * 1000)
    load = Busy(board, profile)
    result = compared(board, load)
    assert result.found.unit == "J"
    assert result.found.value == pytest.approx(result.gross_J, rel=0.01)
    assert result.found.value == pytest.approx(load.call_J, rel=0.01)
    assert result.found.details["net_J"] == pytest.approx(result.net_J, rel=0.01)
    assert result.found.details["check_J"] == pytest.approx(load.call_J, rel=0.02)
    assert result.found.details["idle_W"] == pytest.approx(board.idle_W, rel=0.01)
    assert set(result.found.details["labels"]) <= {"window lengthened", "coarse edges"}


def test_an_ordinary_board_is_found_to_a_thousandth_without_a_label(board: Simulated) -> None:
    result = compared(board, Busy(board))
    details = result.found.details
    # Polls of 1 ms at both ends of 5 s: 0.02 % each
    assert result.found.value == pytest.approx(result.gross_J, rel=1e-3)
    assert details["labels"] == []
    assert details["update_period_s"] == pytest.approx(0.1, rel=0.01)
    assert details["call_s"] == pytest.approx(0.01 / 6, rel=1e-6)
    assert details["window_s"] >= 5.0
    assert len(result.found.samples) == details["n"] == 5
    assert details["stop_rule"] == "5 trials"
    assert details["systematic"] == 0.05
    assert details["method"] == "steps of the energy counter"
    assert details["check_method"] == "integral of instant power"


def test_calls_are_counted_exactly(board: Simulated) -> None:
    """Every window holds whole batches, and their seconds a call are those of the load."""
    result = compared(board, Busy(board, ((0.0107, 300.0),), calls=7))
    for trial in result.trials.of(""):
        assert trial.window.calls == 7 * trial.window.batches
        assert trial.window.call_s == pytest.approx(0.0107 / 7, rel=1e-9)
        held = trial.window.batches * 0.0107
        assert trial.window.stretch.elapsed_s - 2 * 0.0107 < held <= trial.window.stretch.elapsed_s


def test_a_short_window_is_right_between_edges_and_wrong_between_moments(board: Simulated) -> None:
    """Half a second: two plain reads of the counter are off by up to a period, 20 %."""
    load = Busy(board)
    short = {"window_s": 0.5, "min_window_s": 0.5, "min_periods": 5}
    found = read(estimated(board, load, **short))
    assert found.value == pytest.approx(load.call_J, rel=5e-3)
    running = Running(load, Poller(board.sensor(), EnergyLimits()))
    plain = []
    for _ in range(20):
        running.during(0.533)
        start, before = board.now_ns(), board.sensor().energy_mJ()
        running.during(0.5)
        joules = (board.sensor().energy_mJ() - before) * 1e-3
        plain.append(joules / ((board.now_ns() - start) * 1e-9) / 400 - 1)
    assert 0.1 < max(plain) - min(plain) < 0.4


def test_a_seed_repeats_the_phases_and_the_order(board: Simulated) -> None:
    def drawn(seed: int) -> tuple[list[list[str]], float]:
        loads = {name: Busy(board) for name in "abc"}
        campaign = Campaign(board.sensor(), loads, board.pause, EnergyLimits(seed=seed))
        return campaign.orders(4), campaign.chance.random()

    assert drawn(5) == drawn(5)
    assert drawn(5) != drawn(6)
    orders, _ = drawn(5)
    assert orders[0] == orders[2] == orders[1][::-1] == orders[3][::-1]
    assert sorted(orders[0]) == ["a", "b", "c"]


# Net of idle, which leaks.


def test_net_follows_idle_that_drifts(board: Simulated) -> None:
    """Leakage that grows by 0.2 W/s, 8 W in all, under load and at rest alike: net stays."""
    board.drift_W_per_s = 0.2
    result = compared(board, Busy(board))
    details = result.found.details
    assert result.found.value == pytest.approx(result.gross_J, rel=0.01)
    assert details["net_J"] == pytest.approx(result.net_J, rel=0.01)
    assert details["net_J"] == pytest.approx((400 - 80) * 0.01 / 6, rel=0.01)
    assert details["idle_after_W"] - details["idle_before_W"] > 4
    # the first reading alone would have missed it
    first = result.found.value - details["idle_before_W"] * details["call_s"]
    assert first != pytest.approx(result.net_J, rel=0.01)


def test_energy_splits_into_three_readings(board: Simulated) -> None:
    gross, net, power = energy_readings(read(estimated(board, Busy(board))))
    assert [(r.name, r.unit) for r in (gross, net, power)] == [
        ("energy", "J"),
        ("energy_net", "J"),
        ("power", "W"),
    ]
    assert gross.value > net.value > 0
    assert power.value == gross.details["power_W"] == pytest.approx(400, rel=0.01)
    for each in (gross, net, power):
        assert each.value == pytest.approx(statistics.fmean(each.samples))
        assert each.details["systematic"] == 0.05
        assert each.details["labels"] == []
    for each in (gross, net):
        assert each.details["ci_low"] < each.value < each.details["ci_high"]


# The interval.


def test_an_interval_of_the_mean_follows_students_t() -> None:
    # Five values of sd 1: t(0.975, 4) = 2.776 (any table), half width 2.776 / sqrt(5) = 1.2416
    samples = [2 - math.sqrt(2), 2.0, 2.0, 2.0, 2 + math.sqrt(2)]
    assert statistics.stdev(samples) == pytest.approx(1.0)
    assert student_interval(samples, 0.95) == pytest.approx((2 - 1.2416, 2 + 1.2416), abs=1e-3)


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    """Trials of a power that differs by 1 % (sd) from one to the next: 95 of 100 intervals."""
    draw, hits = random.Random(3), 0
    for _ in range(1000):
        low, high = student_interval([draw.gauss(400, 4) for _ in range(5)], 0.95)
        hits += low <= 400 <= high
    assert 0.93 < hits / 1000 < 0.97  # 0.95, standard error 0.007


def test_a_power_that_wanders_between_trials_is_labelled(board: Simulated) -> None:
    board.drift_W_per_s = 1.0  # 24 W from the first trial to the last: sd of 9.6 W in 430
    found = read(estimated(board, Busy(board)))
    assert "unsteady" in found.details["labels"]
    assert found.details["ci_high"] - found.details["ci_low"] > 0.02 * found.value


# Ratios.


def in_turn(board: Simulated, trials: int = 6) -> PairedEnergy:
    loads = {
        "a": Busy(board, ((0.01, 400.0),), calls=6),
        "b": Busy(board, ((0.012, 300.0),), calls=9),
    }
    limits = EnergyLimits(trials=trials, window_s=2.0)
    found = paired_energy(board.sensor(), loads, pause=board.pause, limits=limits)
    assert isinstance(found, PairedEnergy), found
    return found


TRUE_RATIO = (400 * 0.01 / 6) / (300 * 0.012 / 9)


def test_a_ratio_is_free_of_the_sensors_gain(board: Simulated) -> None:
    board.counter(gain=0.92)
    board.instant(gain=0.92)
    found = in_turn(board)
    assert found.readings["a"].value == pytest.approx(0.92 * 400 * 0.01 / 6, rel=0.01)
    ratio = found.ratio("a", "b")
    assert ratio.value == pytest.approx(TRUE_RATIO, rel=2e-3)
    assert ratio.ci_low <= ratio.value <= ratio.ci_high
    assert len(ratio.samples) == 6
    assert found.ratio("b", "a").value == pytest.approx(1 / ratio.value)
    net = ((400 - 80) * 0.01 / 6) / ((300 - 80) * 0.012 / 9)
    assert found.ratio("a", "b", net=True).value == pytest.approx(net, rel=5e-3)


@pytest.mark.parametrize(("net", "kind"), [(True, "net"), (False, "gross")])
def test_a_ratio_of_energies_that_are_not_positive_is_refused(net: bool, kind: str) -> None:
    some = Reading("energy", 2.0, "J", (2.0, 3.0), {"net_samples_J": [1.0, 2.0]})
    none = Reading("energy", 0.0, "J", (2.0, 0.0), {"net_samples_J": [1.0, 0.0]})
    found = PairedEnergy({"a": some, "b": none}, 0.95)
    with pytest.raises(ValueError, match=f"a / b: expected positive {kind} joules .* got 0: raise"):
        found.ratio("a", "b", net=net)


def test_a_ratio_of_loads_in_turn_is_free_of_drift(board: Simulated) -> None:
    """The board's power grows by 0.4 W/s; the first of one over the last of the other shows it."""
    board.drift_W_per_s = 0.4
    found = in_turn(board)
    middle = statistics.fmean(found.readings[name].details["power_W"] for name in "ab") - 350
    truth = ((400 + middle) * 0.01 / 6) / ((300 + middle) * 0.012 / 9)
    ratio = found.ratio("a", "b")
    assert middle > 8  # W: the drift until the middle of the trials
    assert ratio.value == pytest.approx(truth, rel=2e-3)
    assert ratio.ci_low <= truth <= ratio.ci_high
    first = found.samples("a")[0] / found.samples("b")[-1]
    assert first != pytest.approx(truth, rel=0.02)


# What it takes.


@pytest.mark.parametrize("period_ms", [20, 100, 500])
def test_seconds_foretell_what_a_measurement_takes(board: Simulated, period_ms: int) -> None:
    board.counter(period_ms=period_ms)
    limits = EnergyLimits()
    read(estimated(board, Busy(board)))
    took = (board.now_ns() - board.started_ns) * 1e-9
    assert took == pytest.approx(limits.seconds(period_ms * 1e-3), rel=0.15)


def test_few_trials_are_labelled(board: Simulated) -> None:
    labels = {n: read(estimated(board, Busy(board), trials=n)).details["labels"] for n in (2, 4, 5)}
    assert labels == {2: ["few trials"], 4: ["few trials"], 5: []}


def test_what_is_asked_for_is_refused_with_a_reason() -> None:
    assert EnergyLimits.asked(2.0, 2) == EnergyLimits(window_s=2.0, trials=2)
    for window_s in (1.99, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=r"^--energy-window .*: expected 2 s or more"):
            EnergyLimits.asked(window_s, 5)
    with pytest.raises(ValueError, match=r"^--energy-trials 1: expected 2 or more"):
        EnergyLimits.asked(5.0, 1)


def test_limits_refuse_nonsense() -> None:
    with pytest.raises(ValueError, match="confidence between 0 and 1"):
        EnergyLimits(confidence=95)


@pytest.mark.parametrize(
    ("kind", "name", "value", "said"),
    [
        (EnergyLimits, "trials", 1, "a whole number >= 2"),
        (EnergyLimits, "parts", 0, "a whole number >= 1"),
        (EnergyLimits, "parts", 2.5, "a whole number >= 1"),
        (EnergyLimits, "parts", True, "a number"),
        (EnergyLimits, "min_periods", 0, "a whole number >= 1"),
        (EnergyLimits, "min_batches", -1, "a whole number >= 1"),
        (EnergyLimits, "window_s", 0, "above 0 and finite"),
        (EnergyLimits, "max_window_s", math.inf, "above 0 and finite"),
        (EnergyLimits, "poll_s", math.nan, "above 0 and finite"),
        (EnergyLimits, "patience_s", -1.0, "0 or more"),
        (EnergyLimits, "temperature_C", math.nan, "0 or more"),
        (EnergyLimits, "steady", "0.1", "a number"),
        (LatencyLimits, "regions", -1, "a whole number >= 1"),
        (LatencyLimits, "warmup_calls", 0, "a whole number >= 1"),
        (LatencyLimits, "retries", -1, "a whole number >= 0"),
        (LatencyLimits, "max_seconds", 0.0, "above 0 and finite"),
        (LatencyLimits, "settled", math.nan, "0 or more"),
        (LatencyLimits, "cold", 1, "True or False"),
    ],
)
def test_impossible_limits_are_refused_by_name(
    kind: Callable[..., object], name: str, value: object, said: str
) -> None:
    with pytest.raises(ValueError, match=f"^expected {name} to be {said}, got {value!r}$"):
        kind(**{name: value})


def test_reading_the_sensor_leaves_the_host_alone(board: Simulated) -> None:
    """Polls rest between steps of the counter: far fewer calls of NVML than milliseconds."""
    read(estimated(board, Busy(board)))
    milliseconds = (board.now_ns() - board.started_ns) / 1e6
    assert board.library.sim_calls() < milliseconds / 3


def test_mean_power_holds_each_reading_until_the_next() -> None:
    readings = [(1.0, 100.0), (4.0, 300.0), (9.0, 999.0)]
    assert mean_power(readings, 0.0, 8.0) == pytest.approx((4 * 100 + 4 * 300) / 8)
    assert mean_power(readings, 10.0, 12.0) is None


# Per token.


def measured(phase: str, **sizes: int) -> Any:
    details = {"ci_low": 0.9, "ci_high": 1.2, "systematic": 0.05, "labels": ["mostly idle"]}
    return recorded(
        "self-attention",
        "explicit",
        sizes,
        phase=phase,
        device="cuda:0",
        readings={"energy": reading("energy", 1.0, "J", **details)},
        reasons={"energy_net": "idle power was not steady"},
    )


def test_energy_per_token() -> None:
    assert tokens("training", {"b": 3, "l": 7}) == 21
    assert tokens("inference", {"b": 3, "l": 7, "t": 5}) == 3
    found = per_token(measured("training", b=2, l=5, d=8))
    joules, rate = read(found["J_per_token"]), read(found["tokens_per_s_per_W"])
    assert (joules.value, joules.unit) == (0.1, "J")
    assert joules.details["ci_low"] == pytest.approx(0.09)
    assert joules.details["labels"] == ["mostly idle"]
    assert (rate.value, rate.unit) == (10.0, "1/J")
    assert (rate.details["ci_low"], rate.details["ci_high"]) == pytest.approx((10 / 1.2, 10 / 0.9))
    assert refused(found["net_J_per_token"]) == "idle power was not steady"


def test_an_energy_of_zero_has_no_tokens_per_joule() -> None:
    """A sensor that counts in steps may read no energy."""
    record = recorded(
        "me", "toeplitz", {"b": 1, "l": 4, "d": 8}, readings={"energy": reading("energy", 0.0, "J")}
    )
    found = per_token(record)
    assert read(found["J_per_token"]).value == 0
    assert refused(found["tokens_per_s_per_W"]) == "tokens per joule need energies above zero"


def test_one_new_token_of_every_sequence() -> None:
    assert read(per_token(measured("inference", b=4, l=64, d=8, t=64))["J_per_token"]).value == 0.25


def test_no_energy_is_no_energy_per_token() -> None:
    record = recorded(
        "self-attention",
        "explicit",
        {"b": 1, "l": 4, "d": 8},
        reasons={"energy": "NVML: forbidden"},
    )
    found = per_token(record)
    assert found["J_per_token"] == found["tokens_per_s_per_W"] == Unavailable("NVML: forbidden")
    assert not any(isinstance(each, Reading) for each in found.values())
