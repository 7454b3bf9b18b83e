"""Do intervals of a median hold it where each sample resembles the one before it?"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from profiler.compare.records import medians
from profiler.meters.effective_sample_size import (
    LEAST,
    cautious_effective_number,
    effective_number,
    median_interval,
    separate_interval,
    variance_factor,
)
from profiler.records.reading import Reading

RUNS = 300
Ends = Callable[[list[float], float], tuple[float, float] | None]


def following(chance: np.random.Generator, number: int, kept: float) -> list[float]:
    """An autoregressive process of median 0: each keeps so much of the one before it."""
    shocks = chance.normal(size=number) * np.sqrt(1 - kept * kept)
    found = [float(chance.normal())]
    for shock in shocks[1:]:
        found.append(kept * found[-1] + float(shock))
    return found


def held(by: Ends, number: int, kept: float) -> float:
    """The share of intervals of 95 % that hold the median, of those that there are."""
    chance = np.random.default_rng(number)
    found = [by(following(chance, number, kept), 0.95) for _ in range(RUNS)]
    known = [ends for ends in found if ends is not None]
    assert len(known) > 0.9 * RUNS
    return sum(low <= 0 <= high for low, high in known) / len(known)


@pytest.mark.parametrize("number", [30, 100, 1000])
def test_of_independent_samples_the_interval_is_hardly_wider(number: int) -> None:
    assert held(median_interval, number, 0.0) >= stats.binom.ppf(0.01, RUNS, 0.95) / RUNS
    chance = np.random.default_rng(7)
    widths = np.array(
        [
            [high - low for low, high in filter(None, (by(samples, 0.95) for by in BOTH))]
            for samples in (following(chance, number, 0.0) for _ in range(100))
        ]
    ).mean(axis=0)
    assert 1 <= widths[1] / widths[0] < 1.3


BOTH: tuple[Ends, Ends] = (separate_interval, median_interval)


@pytest.mark.parametrize(
    ("number", "kept", "as_if", "least"),
    [
        (100, 0.5, 0.87, 0.91),
        (300, 0.5, 0.87, 0.91),
        (1000, 0.9, 0.5, 0.90),
        (1000, 0.97, 0.3, 0.86),
    ],
)
def test_intervals_hold_the_median_of_samples_that_resemble_one_another(
    number: int, kept: float, as_if: float, least: float
) -> None:
    """As if they were independent, of 95 % hardly a quarter do; the seeds are fixed."""
    assert held(separate_interval, number, kept) < as_if
    assert held(median_interval, number, kept) >= least


def test_the_number_is_that_of_the_process() -> None:
    """Of normal samples that keep c: signs keep (2 / pi) asin(c ** k) (Sheppard 1899), so that the
    variance is 1 + 2 (the sum of these) times as large."""
    kept, number = 0.8, 20_000
    signs = [2 / np.pi * np.arcsin(kept**k) for k in range(1, 200)]
    found = effective_number(following(np.random.default_rng(1), number, kept))
    assert found == pytest.approx(number / (1 + 2 * sum(signs)), rel=0.2)


def test_it_is_never_more_than_there_are_and_few_are_taken_as_they_are() -> None:
    assert effective_number([1.0, 2.0] * 50) == 100
    assert effective_number([1.0] * 100) == 100
    rising = [float(k) for k in range(LEAST)]
    assert effective_number(rising) < 4
    assert effective_number(rising[:-1]) == LEAST - 1


@pytest.mark.parametrize("kept", [0.3, 0.9])
def test_what_is_surely_known_is_less_by_the_error_of_the_sum(kept: float) -> None:
    """By the quantile of Student's t, which the approximation does not undercut."""
    for number in (30, 100, 1000):
        samples = following(np.random.default_rng(number), number, kept)
        freedom = number / (2 * variance_factor(samples)[1])
        wider = stats.t.ppf(0.975, freedom) / stats.norm.ppf(0.975)
        exact = effective_number(samples) * (1 - 1 / freedom) / wider**2
        assert 0.9 * exact < cautious_effective_number(samples) <= exact
    assert cautious_effective_number([1.0, 2.0] * 2) == 4


def test_two_files_of_slow_waves_are_not_found_to_differ_more_often() -> None:
    """Two runs of one machine whose speed wanders while they last."""
    chance = np.random.default_rng(11)
    claimed = refused = 0
    for _ in range(RUNS):
        one, other = (
            Reading("latency", 1.0, "s", tuple(1 + 0.02 * v for v in following(chance, 400, 0.9)))
            for _ in range(2)
        )
        found = medians("a", "b", one, other, 0.05, 1)
        claimed += found.differs
        refused += bool(found.refused)
    assert claimed <= stats.binom.ppf(0.99, RUNS, 0.05)
    assert refused < 0.05 * RUNS


def test_samples_that_tell_too_little_are_refused_by_what_they_tell() -> None:
    rising = tuple(1.0 + 0.01 * k for k in range(40))
    latency = Reading("latency", 1.2, "s", rising)
    refused = medians("a", "b", latency, latency, 0.05, 1).refused
    assert refused == (
        "40 samples that resemble the ones before them tell as much as 2 independent ones: 7 are "
        "needed"
    )
    joules = Reading("energy", 1.2, "J", rising)  # windows of their own
    assert not medians("a", "b", joules, joules, 0.05, 1).refused
