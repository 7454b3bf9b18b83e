"""Is a known exponent within its interval over the settled range, and is the settling size
correct?"""

from __future__ import annotations

import csv
import json
import math
import random
from collections.abc import Callable
from fractions import Fraction
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import costmodel as cm
from cli import run
from costmodel.prediction.boards import Board
from costmodel.prediction.columns import NO_BOARD
from costmodel.symbolic.polynomial import Poly
from profiler.records.measurement import Measurement
from profiler.records.quantities import QUANTITIES
from profiler.records.reading import Reading
from profiler.records.store import append
from profiler.scaling import report
from profiler.scaling.derived import (
    COMPULSORY,
    LIVE,
    LOCAL,
    OPERATIONS,
    UNFUSED,
    Derived,
    NotSmooth,
    Predictions,
    local_exponent,
)
from profiler.scaling.exponents import (
    AGREE,
    KNOWN_TO,
    LEAST,
    NORMAL,
    Exponent,
    MeasuredValue,
    Unsettled,
    exponent,
    fit_line,
    pooled,
    power_of,
    settled_range,
)
from profiler.scaling.floors import (
    ARITHMETIC,
    LAUNCHES,
    NEAR,
    TRAFFIC,
    Departure,
    ScaledFloor,
    departure,
    rate_on,
)
from profiler.scaling.growth import DerivedGrowth, Scaling, scalings
from profiler.scaling.series import Series, series_of
from tests.growing import along_l, record, with_rates
from tests.printing import printed

LENGTHS = (64, 128, 256, 512, 1024, 2048)


def curve(
    function: Callable[[int], float],
    sizes: tuple[int, ...] = LENGTHS,
    noise: float = 0.0,
    seed: int = 0,
) -> list[MeasuredValue]:
    """Values whose logarithms are off by a normal error that their intervals tell."""
    chance = random.Random(seed)
    found = []
    for size in sizes:
        y = math.log(function(size)) + chance.gauss(0, noise)
        half = NORMAL * noise
        found.append(MeasuredValue(size, math.exp(y), math.exp(y - half), math.exp(y + half)))
    return found


def fitted(found: Exponent | Unsettled) -> Exponent:
    assert isinstance(found, Exponent)
    return found


# The line


def test_the_weighted_line_is_that_of_numpy() -> None:
    xs, ys = [0.0, 1.0, 2.5, 4.0], [1.0, 2.2, 3.9, 7.0]
    deviations = [0.1, 0.5, 0.2, 0.3]
    found = fit_line(xs, ys, deviations)
    weights = [1 / s for s in deviations]
    slope, start = np.polyfit(xs, ys, 1, w=weights)
    assert found.slope == pytest.approx(slope, rel=1e-12)
    assert found.at(0.0) == pytest.approx(start, rel=1e-12)
    # numpy's unscaled covariance is the one of known deviations
    _, covariance = np.polyfit(xs, ys, 1, w=weights, cov="unscaled")
    assert found.slope_deviation == pytest.approx(math.sqrt(covariance[0][0]), rel=1e-12)
    assert found.deviation(3.0) == pytest.approx(
        math.sqrt(np.array([3.0, 1.0]) @ covariance @ np.array([3.0, 1.0])), rel=1e-12
    )


def test_a_line_needs_two_places() -> None:
    with pytest.raises(ValueError, match="two sizes or more"):
        fit_line([1.0, 1.0], [1.0, 2.0], [0.1, 0.1])


# A power law


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0, 3.0])
def test_an_exact_power_is_found_exactly(power: float) -> None:
    found = fitted(exponent(curve(lambda l: 3e-9 * l**power)))
    assert found.value == pytest.approx(power, abs=1e-9)
    assert found.contains(power)
    assert (found.first, found.last, found.sizes, found.ended) == (64, 2048, 6, "")
    # no median is believed to be known better than KNOWN_TO, whatever its interval says
    spread = sum((math.log(l) - math.log(64 * 2048) / 2) ** 2 for l in LENGTHS)
    assert found.high - found.value == pytest.approx(NORMAL * KNOWN_TO / math.sqrt(spread))


def test_a_noisy_power_lies_in_its_interval_as_often_as_promised() -> None:
    # of 200 curves of 3 % noise 190 or more are expected to hold the power, with a deviation of 3
    held = ranges = 0
    for seed in range(200):
        found = exponent(curve(lambda l: 1e-9 * l**1.7, noise=0.03, seed=seed))
        held += fitted(found).contains(1.7)
        ranges += fitted(found).sizes == len(LENGTHS)
    assert held >= 190 - 3 * 3
    assert ranges >= 195  # chance alone cuts a curve seldom


def test_scatter_beyond_the_intervals_widens_the_interval() -> None:
    # the same curve, whose intervals claim a tenth of the noise that it has
    honest = curve(lambda l: 1e-9 * l**2, noise=0.02, seed=3)
    bold = [
        MeasuredValue(v.size, v.value, v.value * math.exp(-0.004), v.value * math.exp(0.004))
        for v in honest
    ]
    spread = sum((math.log(v.size) - math.log(64 * 2048) / 2) ** 2 for v in bold)
    own = 2 * NORMAL * (0.004 / NORMAL) / math.sqrt(spread)
    found = fitted(exponent(bold))
    assert found.high - found.low > 3 * own
    assert found.contains(2.0)


# The settled range


def test_a_head_that_is_bound_by_launches_is_cut() -> None:
    values = [
        MeasuredValue(
            v.size, v.value, v.low, v.high, cut="bound by launches" if v.size <= 128 else ""
        )
        for v in curve(lambda l: max(6e-4, 1e-8 * l**2))  # at 256: 6.6e-4
    ]
    found = fitted(exponent(values))
    assert (found.first, found.last, found.sizes) == (256, 2048, 4)
    assert found.ended == "bound by launches at 128"


def test_a_flat_head_ends_the_range_and_is_named() -> None:
    sizes = (32, *LENGTHS)
    found = fitted(exponent(curve(lambda l: max(4e-5, 1e-8 * l**2), sizes)))
    # 1e-8 * 64^2 = 4.1e-5 lies on the power law, 32 on the flat head
    assert (found.first, found.sizes) == (64, 6)
    assert found.value == pytest.approx(2.0, abs=1e-9)
    assert found.ended == "the slope changes between 32 and 64"


def test_a_slow_bend_within_the_tolerance_stays_in_the_range() -> None:
    # l + l^2/100000 bends by less than AGREE from size to size
    kept, ended = settled_range(curve(lambda l: l + l * l / 100_000))
    slopes = [math.log(b.value / a.value) / math.log(b.size / a.size) for a, b in pairwise(kept)]
    assert ended == "" and len(kept) == len(LENGTHS)
    assert max(slopes) - min(slopes) < AGREE


def test_too_few_points_are_refused_with_what_would_help() -> None:
    found = exponent(curve(lambda l: 1e-9 * l**2, LENGTHS[:3]))
    assert found == Unsettled(
        "not enough points: 3 of 3 sizes are settled, and an exponent needs 4: measure more sizes, "
        "or larger ones"
    )
    assert LEAST == 4


def test_a_jump_at_the_largest_size_leaves_too_few() -> None:
    found = exponent(curve(lambda l: 1e-9 * l**2 * (3 if l == 2048 else 1)))
    assert isinstance(found, Unsettled)
    assert "2 of 6 sizes are settled (the slope changes between 512 and 1024)" in found.reason


def test_values_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="one value for each size"):
        exponent([MeasuredValue(2, 1.0, 1.0, 1.0)] * 2)
    with pytest.raises(ValueError, match="0 < low <= value <= high"):
        exponent([MeasuredValue(2, 1.0, 1.1, 1.2), MeasuredValue(4, 1.0, 1.0, 1.0)])


def test_rounds_that_disagree_widen_the_interval() -> None:
    assert pooled([(2.0, 1.9, 2.1), (8.0, 7.9, 8.1)]) == (4.0, 1.9, 8.1)
    assert pooled([(2.0, 2.0, 2.0), (2.0, 2.0, 2.0)]) == (2.0, 2.0, 2.0)


# What is derived


def one_series(records: list[Measurement], letter: str = "l") -> Series:
    (found,) = series_of(records, letter)
    return found


def derived(series: Series, name: str) -> Derived:
    found = Predictions(series).of(name)
    assert isinstance(found, Derived)
    return found


def test_the_local_exponent_of_a_polynomial_by_hand() -> None:
    l, d = Poly.atom("l"), Poly.atom("d")
    from costmodel.symbolic.piecewise import Exact

    answer = Exact.of(l * l * d + l * d * d)
    # 2 l^2 d + l d^2 over l^2 d + l d^2: at l = 30, d = 10 (18000 + 3000) / 12000
    assert local_exponent(answer, frozenset("l"), {"l": 30, "d": 10}) == Fraction(7, 4)
    # both together: a sum of cubes
    assert local_exponent(answer, frozenset("ld"), {"l": 30, "d": 10}) == 3


def test_a_formula_with_steps_has_no_local_exponent() -> None:
    records = along_l("she", "fft", LENGTHS, lambda l: 1e-6 * l)
    found = derived(one_series(records), OPERATIONS)
    with pytest.raises(NotSmooth):
        found.local(128)
    low, high, how = found.between(64, 2048)
    assert low == high == pytest.approx(math.log(found.at(2048) / found.at(64)) / math.log(32))
    assert how.startswith("between the ends")


def test_one_number_between_the_ends_is_not_printed_as_a_range() -> None:
    """The power of all sizes lies beside it: as a range it would read as an interval that misses
    its own estimate."""
    between = DerivedGrowth(
        OPERATIONS, 1.1751, 1.1749, 1.1749, "between the ends, since it has steps"
    )
    assert between.words == "1.18 (1.17 between the ends)"
    assert DerivedGrowth(OPERATIONS, 1.68, 1.37, 1.9, LOCAL).words == "1.68 (1.37 to 1.90)"


@pytest.mark.parametrize("how", [LOCAL, "between the ends, since it has steps"])
def test_what_is_alike_to_the_last_digit_is_printed_once(how: str) -> None:
    assert DerivedGrowth(OPERATIONS, 1.131, 1.129, 1.134, how).words == "1.13"


def test_one_end_that_differs_is_printed() -> None:
    assert DerivedGrowth(OPERATIONS, 1.0, 1.0, 0.98, LOCAL).words == "1.00 (1.00 to 0.98)"
    records = along_l("she", "fft", LENGTHS, lambda l: 1e-6 * l)
    found = [s for s in scalings(records, ("l",))[0] if s.quantity.reading == "latency"]
    text = printed(report.document(found), "markdown")
    growths = [
        g for g in found[0].derived.values() if isinstance(g, DerivedGrowth) and g.how != LOCAL
    ]
    assert growths and all(g.words in text for g in growths)
    assert "some derived exponents are those between the ends, since the formula has steps" in text


@pytest.mark.parametrize("phase", ["training", "training-step", "inference"])
@pytest.mark.parametrize("implementation", ["explicit", "sdpa"])
def test_derived_values_are_those_of_the_questions(implementation: str, phase: str) -> None:
    from profiler.modules import implementations
    from profiler.modules.described import description_of

    records = along_l("self-attention", implementation, (5, 7), lambda l: 1.0, phase=phase, d=16)
    series = one_series(records)
    mixer = cm.mixer("self-attention")
    does = description_of(mixer, implementations(mixer)[implementation], phase)
    rules = ("strict", *does.rewrites)
    for l in (5, 7):
        sizes: dict[str, Any] = {"b": 1, "l": l, "d": 16, "n": 8} | (
            {"t": l} if phase == "inference" else {}
        )
        count = cm.count(mixer, phase, convention=rules).at(**sizes).total
        assert derived(series, OPERATIONS).at(l) == count
        moved = cm.traffic(mixer, phase, convention=rules).at(**sizes)
        assert derived(series, UNFUSED).at(l) == moved["unfused"]
        assert derived(series, COMPULSORY).at(l) == moved["compulsory"]


def test_a_batch_is_counted_as_the_questions_count_it() -> None:
    records = [
        record("me", "toeplitz", {"b": 3, "l": l, "d": 4}, 1.0, phase="training-step")
        for l in (5, 7)
    ]
    series = one_series(records)
    mixer = cm.mixer("me")
    from profiler.modules import implementations
    from profiler.modules.described import description_of

    does = description_of(mixer, implementations(mixer)["toeplitz"], "training-step")
    rules = ("strict", *does.rewrites)
    for l in (5, 7):
        count = cm.count(mixer, "training-step", convention=rules).at(b=3, l=l, d=4).total
        assert derived(series, OPERATIONS).at(l) == count
        moved = cm.traffic(mixer, "training-step", convention=rules).at(b=3, l=l, d=4)
        assert derived(series, UNFUSED).at(l) == moved["unfused"]


def test_the_live_set_leaves_out_what_was_there_before() -> None:
    # me: y (l, d) is written while x (l, d) is read; x was there before the call
    records = along_l("me", "toeplitz", (5, 7), lambda l: 1.0, d=3)
    assert derived(one_series(records), LIVE).at(5) == 4 * 5 * 3
    # one new token's memory is its state, which is no peak
    records = along_l("me", "toeplitz", (5, 7), lambda l: 1.0, phase="inference")
    assert Predictions(one_series(records)).of(LIVE) == (
        "the memory of one new token is the state and one row: ask for the column state"
    )


def test_derived_growth_over_the_same_range_is_the_same_line() -> None:
    values = curve(lambda l: 1e-9 * l**2, noise=0.05, seed=5)
    assert power_of(lambda l: 7.0 * l**2, values, 64, 2048) == pytest.approx(2.0, abs=1e-12)


def test_a_mixer_that_is_known_no_longer_gives_its_reason() -> None:
    records = [
        Measurement(
            mixer="gone-mixer",
            implementation="direct",
            form="direct",
            sizes={"b": 1, "l": l, "d": 2},
            dtype="fp32",
            phase="training",
            device="cpu",
            readings={"latency": Reading("latency", 1.0, "s", (1.0,))},
        )
        for l in (2, 4)
    ]
    found = Predictions(one_series(records)).of(OPERATIONS)
    assert isinstance(found, str) and "gone-mixer" in found


# Series


def test_the_last_token_moves_with_the_length() -> None:
    records = along_l("self-attention", "explicit", (4, 8), lambda l: 1.0, phase="inference")
    series = one_series(records)
    assert series.moving == {"l", "t"}
    assert derived(series, OPERATIONS).sizes(8) == {"b": 1, "l": 8, "t": 8, "d": 64, "n": 8}


def decoded(l: int, t: int) -> Measurement:
    sizes = {"b": 1, "l": l, "t": t, "d": 64, "n": 8}
    return record("self-attention", "explicit", sizes, 1.0, phase="inference")


def test_a_last_token_belongs_to_the_series_at_its_position_too() -> None:
    """t = 8 over l = 8, 16, 32, and t = l at 8 and 16: the record at t = l = 8 is in both."""
    records = [decoded(8, 8), decoded(16, 8), decoded(32, 8), decoded(16, 16)]
    moving, fixed = sorted(series_of(records, "l"), key=lambda s: len(s.fixed))
    assert (moving.sizes, moving.moving) == ([8, 16], frozenset("lt"))
    assert (fixed.sizes, fixed.moving) == ([8, 16, 32], frozenset("l"))
    assert dict(fixed.fixed)["t"] == 8
    assert records[0] in moving.records and records[0] in fixed.records
    assert records[3] not in fixed.records  # its own position, 16, was measured at one length only
    (along_t,) = series_of(records, "t")
    assert (along_t.sizes, dict(along_t.fixed)["l"]) == ([8, 16], 16)


def test_what_differs_in_anything_else_is_another_series() -> None:
    records = [
        record("me", "toeplitz", {"b": 1, "l": l, "d": d}, 1.0, dtype=dtype)
        for l in (2, 4) for d in (3, 5) for dtype in ("fp32", "bf16")
    ]  # fmt: skip
    assert len(series_of(records, "l")) == 4
    assert len(series_of(records, "d")) == 4
    assert [s.sizes for s in series_of(records, "d")] == [[3, 5]] * 4


def test_what_was_asked_for_besides_tells_series_apart() -> None:
    """In the tables too: two limits of energy are two series."""
    plain = along_l("me", "toeplitz", (2, 4), lambda l: 1.0, rounds=1)
    other = [replace(r, sweep={**r.sweep, "options": {"energy_trials": 3}}) for r in plain]
    assert [s.asked for s in series_of([*plain, *other], "l")] == ["", ", energy_trials=3"]
    text = printed(report.document(scalings([*plain, *other], ("l",))[0]), "markdown")
    settings = [line.split(" | ")[2] for line in text.splitlines() if line.startswith("| me |")]
    alike = "forward pass, fp32, cpu, b = 1, d = 64"
    assert settings[:2] == [alike, f"{alike}, energy_trials=3"]


def test_failures_are_no_points() -> None:
    good = along_l("me", "toeplitz", (2, 4), lambda l: 1.0, rounds=1)
    failed = Measurement(
        mixer="me",
        implementation="toeplitz",
        form="direct",
        sizes={"b": 1, "l": 8, "d": 64},
        dtype="fp32",
        phase="training",
        device="cpu",
        failure={"kind": "out of memory"},
    )
    assert one_series([*good, failed]).sizes == [2, 4]


def test_what_a_record_without_a_time_holds_has_its_exponent_and_what_lacks_is_told() -> None:
    """Of thirty-nine of forty-one records the device was disturbed: their bytes are there."""
    lengths = tuple(range(64, 64 + 41))
    records = along_l("me", "toeplitz", lengths, lambda l: 1e-9 * l, memory=lambda l: 64.0 * l,
                      rounds=1)  # fmt: skip
    why = "3 of 12 blocks were undisturbed"
    lost = [
        replace(
            each,
            readings={"peak_memory": each.readings["peak_memory"]},
            reasons={**each.reasons, "latency": why},
            failure={"kind": "disturbed"},
        )
        for each in records[2:]
    ]
    nothing = replace(records[0], id="x", readings={}, failure={"kind": "out of memory"},
                      reasons={"measurement": "no memory"})  # fmt: skip
    found, told = scalings([*records[:2], *lost, nothing], ("l",))
    (held,) = (each for each in found if each.quantity.reading == "peak_memory")
    assert held.series.sizes == list(lengths)
    assert fitted(held.measured).value == pytest.approx(1)
    assert told == [
        "1 of 42 records are in no series in l: nothing was measured (no memory)",
        f"latency, hot of 39 of 41 records is left out: {why}",
    ]


def test_a_busy_time_shows_growth_where_its_interval_touches_no_other() -> None:
    def times(part: float) -> list[str]:
        records = [
            record("me", "toeplitz", {"b": 1, "l": l, "d": 64}, 1e-6 * l, grade="busy",
                   ci_low=1e-6 * l / part, ci_high=1e-6 * l * part, labels=["preempted"])
            for l in LENGTHS
        ]  # fmt: skip
        return [v.cut for v in one_series(records).values(QUANTITIES["latency"])]

    assert times(1.3) == [""] * len(LENGTHS)
    assert set(times(1.5)) == {"busy, with an interval that touches that of the next size"}


def test_a_row_of_busy_times_that_touch_gives_one_reason() -> None:
    records = [
        record("me", "toeplitz", {"b": 1, "l": l, "d": 64}, 1e-6 * l, grade="busy",
               ci_low=1e-6 * l / 1.5, ci_high=1e-6 * l * 1.5, labels=["preempted"])
        for l in LENGTHS
    ]  # fmt: skip
    (found,) = scaled_up(records)
    assert found.departure == (
        "every value is left out: busy, with an interval that touches that of the next size"
    )


def test_a_launch_bound_point_is_marked_for_time_and_not_for_memory() -> None:
    records = along_l("me", "toeplitz", (2, 4), lambda l: 1.0, launches=lambda l: 0.6 / l)
    series = one_series(records)
    # at 2 the launches take 0.3 of the time; at 4 0.15: neither is half of it
    assert [v.cut for v in series.values(QUANTITIES["latency"])] == ["", ""]
    records = along_l("me", "toeplitz", (2, 4), lambda l: 1.0, launches=lambda l: 1.8 / l)
    series = one_series(records)
    assert [v.cut for v in series.values(QUANTITIES["latency"])] == ["bound by launches", ""]
    assert [v.cut for v in series.values(QUANTITIES["peak_memory"])] == ["", ""]


def test_a_gpu_that_waits_for_the_host_is_marked() -> None:
    records = along_l("me", "toeplitz", (2, 4), lambda l: 1.0, launch_bound=True, device="cuda:1")
    series = one_series(records)
    assert series.device == "cuda"
    assert all(v.cut for v in series.values(QUANTITIES["latency"]))


def test_what_has_no_interval_is_no_part_of_a_range() -> None:
    records = along_l("me", "toeplitz", LENGTHS, lambda l: 1e-9 * l, ci_low=None, ci_high=None)
    series = one_series(records)
    values = series.values(QUANTITIES["latency"])
    assert {v.cut for v in values} == {"without an interval (40 samples)"}
    (found,) = scaled_up(records)
    assert isinstance(found.measured, Unsettled)
    assert "without an interval (40 samples) at 2048" in found.measured.reason
    assert found.departure == "every value is left out: without an interval (40 samples)"
    why = "4 blocks are too few: 6 are needed"
    alike = along_l(
        "me", "toeplitz", (2, 4), lambda l: 1e-9 * l, ci_low=None, ci_high=None, ci_missing=why
    )
    cuts = {v.cut for v in one_series(alike).values(QUANTITIES["latency"])}
    assert cuts == {f"without an interval ({why})"}


def test_a_missing_reading_gives_its_reason() -> None:
    series = one_series(along_l("me", "toeplitz", (2, 4), lambda l: 1.0))
    assert series.missing(QUANTITIES["energy"]) == "energy needs an NVIDIA GPU"
    assert series.missing(QUANTITIES["latency_graph"]) == "latency_graph was not measured"
    assert series.missing(QUANTITIES["latency"]) == ""


# Floors


def floors(*rules: tuple[str, Callable[[int], float]]) -> list[ScaledFloor]:
    return [ScaledFloor(name, {l: rule(l) for l in LENGTHS}, "") for name, rule in rules]


def test_leaving_the_floors_is_found_at_the_right_size() -> None:
    own = floors((LAUNCHES, lambda l: 1e-4), (ARITHMETIC, lambda l: 1e-9 * l**2))
    found = departure(own, curve(lambda l: max(1e-4, 1e-9 * l**2 * (2 if l >= 1024 else 1))))
    assert found.left == 1024
    assert found.above[1024] == pytest.approx(2)
    assert found.highest == {64: LAUNCHES, 128: LAUNCHES, 256: LAUNCHES, 512: ARITHMETIC}
    assert found.words == (
        "launch overhead 64 to 256, arithmetic at 512; leaves it at 1024: all floors together "
        "times 2.00 at 1024, 2.00 at 2048"
    )


def test_work_whose_floors_add_up_to_more_than_launches_explains_a_value() -> None:
    own = floors((LAUNCHES, lambda l: 10), (TRAFFIC, lambda l: 8), (ARITHMETIC, lambda l: 8.1))
    assert departure(own, [MeasuredValue(64, 16, 15.9, 16.1)]).highest == {64: ARITHMETIC}


def test_what_is_above_the_floors_from_the_beginning_is_not_said_to_leave_them() -> None:
    own = floors((ARITHMETIC, lambda l: 1e-9 * l**2))
    found = departure(own, curve(lambda l: 1e-9 * l**2 * (3 if l < 256 else 1)))
    assert found.left is None
    assert found.words == (
        "arithmetic 256 to 2048; not explained below: all floors together times 3.00 at 64, 3.00 "
        "at 128; explained to the largest size"
    )


def test_a_value_whose_interval_reaches_down_to_the_floors_is_explained() -> None:
    own = floors((ARITHMETIC, lambda l: 1.0))
    assert departure(own, [MeasuredValue(64, 1.2, NEAR, 1.3)]).highest == {64: ARITHMETIC}
    assert departure(own, [MeasuredValue(64, 1.2, NEAR + 0.01, 1.3)]).above == {64: 1.2}


# All together


def scaled_up(
    records: list[Measurement], reading: str = "latency", on: Board | None = None
) -> list[Scaling]:
    found, _ = scalings(records, ("l",), on)
    return [each for each in found if each.quantity.reading == reading]


def operations_of(l: int) -> int:
    from profiler.modules import implementations
    from profiler.modules.described import description_of

    mixer = cm.mixer("me")
    does = description_of(mixer, implementations(mixer)["toeplitz"], "training")
    return cm.count(mixer, convention=("strict", *does.rewrites)).at(b=1, l=l, d=64).total


def test_a_curve_that_follows_its_operations_agrees_with_them() -> None:
    records = along_l(
        "me", "toeplitz", LENGTHS, lambda l: 1e-9 * operations_of(l), noise=0.01,
        launches=lambda l: 1e-7,
    )  # fmt: skip
    (found,) = scaled_up(records)
    growth = found.derived[OPERATIONS]
    assert isinstance(growth, DerivedGrowth) and isinstance(found.measured, Exponent)
    assert found.measured.contains(growth.power)
    assert OPERATIONS in found.agrees_with and COMPULSORY not in found.agrees_with
    # dense convolution: 2 l^2 d operations without their l d lower terms
    assert growth.power == pytest.approx(2.0, abs=0.01)
    assert growth.first > growth.last > 2.0
    assert found.departure == NO_BOARD


def left_of(records: list[Measurement], **rates: float) -> Departure:
    (found,) = scaled_up(records, on=with_rates(**rates))
    assert isinstance(found.departure, Departure)
    return found.departure


def test_floors_are_those_of_a_board() -> None:
    """Calls that reach half of what the board does, and move nothing to speak of."""
    records = along_l("me", "toeplitz", LENGTHS, lambda l: 1e-9 * operations_of(l))
    left = left_of(records, matrix_fp32=2e9, vector_fp32=1e9, memory_bandwidth=1e15)
    constants = {floor.name: floor.constant for floor in left.floors}
    assert constants == {
        "arithmetic": "2 Gop/s, matrix.fp32 of mine, measured",
        "memory traffic": "1000 TB/s, memory_bandwidth of mine, measured",
    }
    assert list(left.above) == list(LENGTHS) and not left.highest and left.left is None
    assert left.above[64] == pytest.approx(2.0, rel=1e-3)
    assert "explained nowhere: all floors together times 2.00 at 64" in left.words
    assert "floors: arithmetic 2 Gop/s, matrix.fp32 of mine, measured" in left.words
    reached = left_of(records, matrix_fp32=1e9, memory_bandwidth=1e15)
    assert not reached.above and set(reached.highest.values()) == {"arithmetic"}


def test_launches_overlap_with_work() -> None:
    """Calls that take as long as their launches, and as their operations."""
    records = along_l(
        "me", "toeplitz", LENGTHS, lambda l: 2e-9 * operations_of(l),
        launches=lambda l: 1e-9 * operations_of(l),
    )  # fmt: skip
    left = left_of(records, matrix_fp32=1e9, memory_bandwidth=1e15)
    assert left.above[64] == pytest.approx(2.0, rel=1e-3)


def test_a_figure_that_the_board_lacks_is_named() -> None:
    records = along_l("me", "toeplitz", LENGTHS, lambda l: 1e-9 * operations_of(l))
    for rates, missing in (
        ({"matrix_bf16": 1e9, "memory_bandwidth": 1e9}, "matrix.fp32"),
        ({"matrix_fp32": 1e9}, "memory_bandwidth"),
        ({"vector_fp32": 1e8, "memory_bandwidth": 1e9}, "matrix.fp32"),
    ):
        (found,) = scaled_up(records, on=with_rates(**rates))
        assert isinstance(found.departure, str)
        assert f"board mine has no figure '{missing}'" in found.departure


def test_vectors_are_no_floor_beside_matrix_units_that_may_be_faster() -> None:
    """The matrix units take bf16, and fp16 perhaps at the same rate, which no figure tells."""
    on = with_rates(matrix_bf16=1e9, vector_fp16=1e8, vector_fp32=2e8)
    assert "no figure 'matrix.fp16'" in str(rate_on(on, OPERATIONS, "fp16"))
    assert rate_on(on, OPERATIONS, "fp32") == (2e8, "vector.fp32 of mine, measured")


def test_exponentials_have_a_floor_of_their_own_and_are_in_no_other() -> None:
    mixer = cm.mixer("self-attention")
    counts = {
        l: cm.count(mixer, convention=("strict", "dense", "safe-softmax")).at(b=1, l=l, d=64, n=8)
        for l in LENGTHS
    }
    records = along_l("self-attention", "explicit", LENGTHS, lambda l: 1e-9 * l * l)
    tops = {"matrix_fp32": 1e9, "special": 1e7, "memory_bandwidth": 1e15}
    floors = {f.name: f.at for f in left_of(records, **tops).floors}
    for l, count in counts.items():
        assert floors["exponentials"][l] == pytest.approx(count.exp / 1e7)
        assert floors["arithmetic"][l] == pytest.approx((count.total - count.exp) / 1e9)
    without = {f.name for f in left_of(records, matrix_fp32=1e9, memory_bandwidth=1e15).floors}
    assert "exponentials" not in without
    none = along_l("me", "toeplitz", LENGTHS, lambda l: 1e-9 * l * l)
    assert "exponentials" not in {f.name for f in left_of(none, **tops).floors}


def test_joules_have_no_floor() -> None:
    records = along_l("me", "toeplitz", LENGTHS, lambda l: 1e-6 * l, energy=lambda l: 1e-4 * l**2)
    (found,) = scaled_up(records, "energy", with_rates(matrix_fp32=2e9, memory_bandwidth=1e9))
    assert found.departure == "the least energy of an operation is unknown"


def test_a_spill_is_found_where_it_begins() -> None:
    records = along_l(
        "me", "toeplitz", LENGTHS, lambda l: 1e-9 * operations_of(l) * (2 if l >= 1024 else 1),
        noise=0.005, launches=lambda l: 1e-9,
    )  # fmt: skip
    (found,) = scaled_up(records, on=with_rates(matrix_fp32=1e9, memory_bandwidth=1e15))
    assert isinstance(found.departure, Departure)
    assert found.departure.left == 1024
    assert isinstance(found.measured, Unsettled)


def test_exactly_repeated_bytes_have_an_exponent() -> None:
    records = along_l("me", "toeplitz", LENGTHS, lambda l: 1e-6 * l, memory=lambda l: 256.0 * l)
    (found,) = scaled_up(records, "peak_memory")
    assert isinstance(found.measured, Exponent)
    assert found.measured.value == pytest.approx(1.0, abs=1e-9)
    assert found.agrees_with == [LIVE]


def test_what_lies_below_the_live_set_is_not_explained_by_it() -> None:
    """me holds its l d = 64 l results, 256 l bytes; a quarter of them is less than any floor."""
    records = along_l("me", "toeplitz", LENGTHS, lambda l: 1e-6 * l, memory=lambda l: 64.0 * l)
    (found,) = scaled_up(records, "peak_memory")
    assert isinstance(found.departure, str)
    assert found.departure.startswith("at 64, 128, 256, 512, 1024, 2048 the call holds less than")


def test_energy_that_is_missing_is_a_reason_and_that_is_there_an_exponent() -> None:
    without = along_l("me", "toeplitz", LENGTHS, lambda l: 1e-6 * l)
    (found,) = scaled_up(without, "energy")
    assert found.measured == Unsettled("energy needs an NVIDIA GPU")
    assert found.to_json()["measured"] is None
    with_ = along_l("me", "toeplitz", LENGTHS, lambda l: 1e-6 * l, energy=lambda l: 1e-4 * l**2)
    (found,) = scaled_up(with_, "energy")
    assert isinstance(found.measured, Exponent)
    assert found.measured.contains(2.0)


def test_a_file_of_one_size_says_so() -> None:
    found, problems = scalings(along_l("me", "toeplitz", (4,), lambda l: 1.0))
    assert found == []
    assert problems[0].startswith("no two records differ in l alone: no exponent in l")


# Reports and the command


def sample() -> list[Measurement]:
    return along_l("me", "toeplitz", LENGTHS, lambda l: 1e-9 * l * l, launches=lambda l: 1e-9)


@pytest.mark.parametrize("format_", ["rich", "markdown", "latex", "csv", "json"])
def test_every_format_has_the_exponent(format_: str) -> None:
    found, _ = scalings(sample(), ("l",))
    text = printed(report.document(found), format_, command="costmodel scaling runs.jsonl")
    if format_ == "json":
        made = json.loads(text)
        latency = next(s for s in made["scalings"] if s["quantity"] == "latency")
        assert latency["measured"]["exponent"] == pytest.approx(2.0)
        assert latency["reasons"]["departure"] == NO_BOARD
        energy = next(s for s in made["scalings"] if s["quantity"] == "energy")
        assert energy["measured"] is None and energy["reasons"]["measured"]
    elif format_ == "csv":
        rows = list(csv.DictReader(StringIO(text)))
        ours = [r for r in rows if r["quantity"] == "latency" and r["derived"] == OPERATIONS]
        assert [round(float(r["exponent"]), 3) for r in ours] == [2.0]
        assert [r["reason"] for r in rows if r["quantity"] == "energy"] == [
            "energy needs an NVIDIA GPU"
        ]
    else:
        assert "2.00" in text and "64 to 2048" in text
        assert "energy needs an NVIDIA GPU" in text
        assert "weighted" in text


def test_nothing_that_grows_is_said() -> None:
    bare = [
        Measurement(
            mixer="me",
            implementation="toeplitz",
            form="direct",
            sizes={"b": 1, "l": l, "d": 2},
            dtype="fp32",
            phase="training",
            device="cpu",
            reasons={"latency": "nobody looked"},
        )
        for l in (2, 4)
    ]
    found, _ = scalings(bare, ("l",))
    text = printed(report.document(found), "rich")
    assert "no quantity was measured at several sizes" in text and "nobody looked" in text


def written(path: Path, records: list[Measurement]) -> Path:
    for each in records:
        append(path, each)
    return path


def test_the_command_prints_and_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = written(tmp_path / "runs.jsonl", sample())
    assert run(["scaling", str(runs), "--format", "markdown"]) == 0
    shown = capsys.readouterr()
    assert "### Scaling of latency, hot, in l" in shown.out
    assert "no two records differ in d alone" in shown.err


def test_a_broken_line_is_told_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = written(tmp_path / "runs.jsonl", sample())
    with runs.open("a") as file:
        file.write('{"schema": 1')
    assert run(["scaling", str(runs), "--along", "l"]) == 1
    assert "cut off" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["--along", "x"], "--along"),
        (["--format", "pdf"], "--format"),
    ],
)
def test_what_is_no_choice_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], typed: list[str], said: str
) -> None:
    runs = written(tmp_path / "runs.jsonl", sample())
    assert run(["scaling", str(runs), *typed]) == 2
    assert said in capsys.readouterr().err
