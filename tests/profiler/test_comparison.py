"""Is a difference claimed only where one exists, and is the ratio free of drift?"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from scipy import stats

from profiler.compare.verdict import (
    Rounds,
    holm,
    interval_rank,
    location,
    location_interval,
    log_ratios,
    rounds_needed,
    signed_rank_p,
    too_few,
    verdicts,
)

Noise = Callable[[random.Random, int], float]


def visits(
    costs: dict[str, float], noise: Callable[[int], float]
) -> dict[str, Callable[[], float]]:
    """Fake candidates: the cost of each times what the machine does at the visit's time."""
    now = [0]

    def visit(cost: float) -> Callable[[], float]:
        def once() -> float:
            now[0] += 1
            return cost * noise(now[0])

        return once

    return {name: visit(cost) for name, cost in costs.items()}


def compared(
    costs: dict[str, float], noise: Callable[[int], float], rounds: int, seed: int
) -> Rounds:
    made = Rounds(visits(costs, noise), seed)
    for _ in range(rounds):
        made.once()
    return made


# The test itself


@pytest.mark.parametrize("n", [1, 5, 6, 9, 20])
def test_probabilities_are_those_of_scipy(n: int) -> None:
    chance = np.random.default_rng(n)
    for _ in range(5):
        logs = chance.normal(0.3, 1, n)
        assert signed_rank_p(list(logs)) == pytest.approx(
            stats.wilcoxon(logs, method="exact").pvalue, abs=1e-12
        )


@pytest.mark.parametrize(
    "logs", [[1.0, 1.0, -1.0, 2.0, 3.0], [1.0, 1.0, 1.0, 1.0], [-2.0, 2.0, 2.0, 5.0, 0.5, 0.5]]
)
def test_probabilities_with_ties_are_those_of_all_signs(logs: list[float]) -> None:
    ranks = stats.rankdata(np.abs(logs))
    sums = [
        sum(rank for rank, sign in zip(ranks, signs, strict=True) if sign > 0)
        for signs in product((1, -1), repeat=len(logs))
    ]
    seen = sum(rank for rank, value in zip(ranks, logs, strict=True) if value > 0)
    least = min(sum(s <= seen for s in sums), sum(s >= seen for s in sums))
    assert signed_rank_p(logs) == pytest.approx(min(1, 2 * least / len(sums)))


def test_zeros_tell_nothing() -> None:
    assert signed_rank_p([0.0, 0.0]) == 1.0
    assert signed_rank_p([0.0, 1.0, 2.0, 3.5]) == signed_rank_p([1.0, 2.0, 3.5])


def test_least_probability_is_that_of_the_refusal() -> None:
    for n in range(2, 12):
        assert signed_rank_p([float(k) for k in range(1, n + 1)]) == pytest.approx(2 / 2**n)


def test_the_interval_holds_the_shifts_that_the_test_does_not_refuse() -> None:
    chance = np.random.default_rng(3)
    logs = list(chance.normal(0.2, 0.5, 11))
    found = location_interval(logs, 0.95)
    assert found is not None
    low, high = found
    tiny = 1e-9
    for inside in (low + tiny, location(logs), high - tiny):
        assert signed_rank_p([value - inside for value in logs]) > 0.05
    for outside in (low - tiny, high + tiny):
        assert signed_rank_p([value - outside for value in logs]) <= 0.05


def test_interval_ranks_are_those_printed() -> None:
    # For n = 10 the 95 % interval begins at the ninth mean: P(T <= 8) = 25/1024 <= 0.025 <
    # P(T <= 9) = 33/1024, as tables of the signed-rank test have it (critical value 8).
    assert interval_rank(10, 0.95) == 9
    assert interval_rank(5, 0.95) == 0


def test_of_many_rounds_the_rank_is_that_of_the_normal_distribution() -> None:
    """The rank sum of n values has the mean n(n + 1)/4 and the variance n(n + 1)(2n + 1)/24."""
    n = 400
    normal = n * (n + 1) / 4 - 1.959964 * math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
    assert interval_rank(n, 0.95) == pytest.approx(normal, abs=5)
    assert signed_rank_p([1.0, *range(1, n)]) == pytest.approx(2 / 2**n)


def test_holm_is_the_step_down_procedure() -> None:
    # Holm (1979): 4 x 0.005, max(0.02, 3 x 0.01), max(0.03, 2 x 0.03), max(0.06, 0.04).
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []


def test_values_without_a_ratio_are_refused() -> None:
    with pytest.raises(ValueError, match="positive"):
        log_ratios([1.0], [0.0])
    with pytest.raises(ValueError, match="expected pairs, got 1 and 2"):
        log_ratios([1.0], [1.0, 1.0])


# Refusal


def test_too_few_rounds_are_refused_with_the_number_that_is_needed() -> None:
    assert too_few(5, 1, 0.05) == (
        "5 rounds are too few to show a difference: the smallest possible p-value is "
        "2 / 2^5 = 0.0625, above 0.05; 6 rounds are needed"
    )
    assert too_few(6, 1, 0.05) == ""
    assert "10, for 10 compared pairs; 9 rounds are needed" in too_few(8, 10, 0.05)
    for pairs in (1, 3, 10, 45):
        needed = rounds_needed(pairs)
        assert 2 / 2**needed <= 0.05 / pairs < 2 / 2 ** (needed - 1)


def test_a_verdict_on_too_few_rounds_is_none() -> None:
    (found,) = verdicts({"a": [1.0] * 5, "b": [9.0] * 5})
    assert "6 rounds are needed" in found.refused
    assert (found.p, found.ratio, found.differs) == (None, None, False)
    (found,) = verdicts({"a": [1.0 + k / 9 for k in range(6)], "b": [9.0] * 6})
    assert found.differs and found.p == pytest.approx(2 / 2**6)


# Rounds


def test_rounds_go_there_and_back_in_an_order_of_the_seed() -> None:
    told: list[str] = []
    names = ("a", "b", "c")

    def visit(name: str) -> Callable[[], float]:
        def once() -> float:
            told.append(name)
            return 1.0

        return once

    made = Rounds({name: visit(name) for name in names}, seed=4)
    for _ in range(20):
        made.once()
    turns = [tuple(told[k : k + 6]) for k in range(0, len(told), 6)]
    assert all(turn[:3] == turn[:2:-1] and set(turn) == set(names) for turn in turns)
    assert [turn[:3] for turn in turns] == made.orders
    assert len(set(made.orders)) > 3
    again = Rounds({name: visit(name) for name in names}, seed=4)
    for _ in range(20):
        again.once()
    assert again.orders == made.orders
    other = Rounds({name: visit(name) for name in names}, seed=5)
    for _ in range(20):
        other.once()
    assert other.orders != made.orders


def test_a_straight_drift_is_in_no_ratio() -> None:
    def drift(now: int) -> float:
        return 1 + 0.05 * now  # the last visit takes five times as long as the first

    made = compared({"a": 1.0, "b": 1.2, "c": 0.7}, drift, 20, seed=1)
    for a, b in zip(made.values["a"], made.values["b"], strict=True):
        assert b / a == pytest.approx(1.2, rel=1e-12)
    found = {(v.first, v.second): v for v in verdicts(made.values)}
    assert found["a", "b"].ratio == pytest.approx(1.2, rel=1e-12)
    assert found["a", "c"].ratio == pytest.approx(0.7, rel=1e-12)
    one_after_the_other = [drift(k) for k in range(40)], [1.2 * drift(k) for k in range(40, 80)]
    biased = np.median(one_after_the_other[1]) / np.median(one_after_the_other[0])
    assert biased > 1.2 * 1.5


def test_a_round_that_is_interrupted_is_in_no_result() -> None:
    count = [0]

    def visit() -> float:
        count[0] += 1
        if count[0] == 7:
            raise KeyboardInterrupt
        return 1.0

    made = Rounds({"a": visit, "b": visit})
    made.once()
    with pytest.raises(KeyboardInterrupt):
        made.once()
    assert {name: len(values) for name, values in made.values.items()} == {"a": 1, "b": 1}
    assert len(made.orders) == 1


def test_a_candidate_that_fails_ends_and_the_others_go_on() -> None:
    count = [0]

    def failing() -> float:
        count[0] += 1
        if count[0] == 5:
            raise RuntimeError("out of memory")
        return 1.0

    made = Rounds({"a": lambda: 1.0, "bad": failing, "c": lambda: 2.0}, seed=2)
    for _ in range(8):
        made.once()
    assert made.failed == {"bad": "out of memory"}
    assert {name: len(values) for name, values in made.values.items()} == {"a": 8, "bad": 2, "c": 8}
    found = verdicts(made.values, refused=made.failed)
    assert [(v.first, v.second, v.refused) for v in found if v.refused] == [
        ("a", "bad", "bad: out of memory"), ("bad", "c", "bad: out of memory"),
    ]  # fmt: skip
    (kept,) = (v for v in found if not v.refused)
    assert (kept.first, kept.second) == ("a", "c")
    assert kept.ratio == pytest.approx(2.0)


# How often a difference is claimed


def steady(chance: random.Random) -> Callable[[int], float]:
    return lambda now: math.exp(chance.gauss(0, 0.05))


def heavy(chance: random.Random) -> Callable[[int], float]:
    """Now and then something else runs: up to many times as long."""
    return lambda now: (
        1 + 0.02 * chance.random() + (chance.random() < 0.2) * chance.expovariate(0.3)
    )


def bursts(chance: random.Random) -> Callable[[int], float]:
    """A machine that is slow for a while, then fast: visits are not independent."""
    level = [1.0]

    def noise(now: int) -> float:
        if chance.random() < 0.05:
            level[0] = chance.uniform(1, 3)
        return level[0] * (1 + 0.001 * now) * math.exp(chance.gauss(0, 0.02))

    return noise


@pytest.mark.parametrize("machine", [steady, heavy, bursts])
def test_one_against_itself_is_seldom_found_to_differ(
    machine: Callable[[random.Random], Callable[[int], float]],
) -> None:
    trials, claimed = 400, 0
    for seed in range(trials):
        made = compared({"a": 1.0, "b": 1.0}, machine(random.Random(1000 + seed)), 12, seed)
        claimed += sum(v.differs for v in verdicts(made.values))
    # At the level 0.05 more than 31 of 400 come up less than once in 100; the seeds are fixed.
    assert stats.binom.sf(31, trials, 0.05) < 0.01
    assert claimed <= 31


def test_of_many_equal_candidates_seldom_any_two_are_found_to_differ() -> None:
    trials, claimed = 200, 0
    for seed in range(trials):
        noise = bursts(random.Random(7000 + seed))
        made = compared(dict.fromkeys("abcde", 1.0), noise, 12, seed)
        claimed += any(v.differs for v in verdicts(made.values))
    assert stats.binom.sf(18, trials, 0.05) < 0.01
    assert claimed <= 18


def test_without_correction_many_pairs_would_claim_too_much() -> None:
    claimed = 0
    for seed in range(200):
        noise = bursts(random.Random(7000 + seed))
        made = compared(dict.fromkeys("abcde", 1.0), noise, 12, seed)
        claimed += any((v.p or 1.0) <= 0.05 for v in verdicts(made.values))
    assert claimed > 30


@pytest.mark.parametrize(("machine", "most"), [(steady, 0), (heavy, 20), (bursts, 0)])
def test_a_true_difference_is_found_and_its_interval_holds_it(
    machine: Callable[[random.Random], Callable[[int], float]], most: int
) -> None:
    held = missed = 0
    for seed in range(100):
        costs = {"a": 1.0, "b": 2.0, "c": 2.0}
        made = compared(costs, machine(random.Random(50 + seed)), 20, seed)
        found = {(v.first, v.second): v for v in verdicts(made.values)}
        missed += not found["a", "b"].differs
        low, high = found["a", "b"].ci_low, found["a", "b"].ci_high
        assert low is not None and high is not None
        held += low <= 2.0 <= high
    # At 98.3 % each, 92 or fewer of 100 come up less than once in 1,000; the seeds are fixed.
    assert stats.binom.cdf(92, 100, 1 - 0.05 / 3) < 0.001
    assert held >= 93
    assert missed <= most
