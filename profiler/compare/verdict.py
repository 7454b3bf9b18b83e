"""Tests whether one of several candidates is faster, from paired rounds.

In each round the candidates are visited in a new random order, forward and backward, so that a
drift linear in time affects all candidates of a round equally; the two values of a round for two
candidates are a pair. If both had the same cost, chance alone would decide which value of a pair is
larger, independently for every round: this is the null hypothesis of an exact Wilcoxon signed-rank
test of the logarithms of the ratios. Wilcoxon, "Individual Comparisons by Ranking Methods" (1945);
the correction for many pairs is Holm, "A Simple Sequentially Rejective Multiple Test Procedure"
(1979); estimate and interval of the ratio are Hodges and Lehmann, "Estimates of Location Based on
Rank Tests" (1963): the ratios that the test does not reject.

The signs are random because the orders are drawn, whatever the noise: rounds need not be
independent or identically distributed (Fisher, "The Design of Experiments" (1935), section 21). A
slowdown of all calls by one factor, however long, leaves test and interval exact; an equal wait
added to every timed region changes the ratio itself. No interval contains effects that last for a
whole process: the addresses of arrays and code make the same calls faster or slower (Mytkowicz et
al., "Producing Wrong Data Without Doing Anything Obviously Wrong!" (2009)), here by some tenths of
a percent (benchmarks/compare_with_itself.py).

With several processes each gives one value. The signs are then those of where memory, caches and
libraries place a candidate; the order in which candidates are built changes from process to
process, so that none has the better place in all of them.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from profiler.meters.sampler import Disturbed
from profiler.records.schema import Record

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEVEL = 0.05
"""The probability of claiming a difference where there is none, over all pairs of a comparison."""

TRIES = 2
"""At most this many times the requested rounds are tried, as disturbed rounds are left out."""

Visit = Callable[[], float]
"""Measures a candidate once; seconds per call."""


@dataclass
class Rounds:
    """Candidates visited in turns; `values[name][k]` is the mean, in seconds, of the two visits of
    round k, `orders[k]` the order of its first visits, `visits` name -> the call that times it.

    Only complete, undisturbed rounds count. A candidate that raises another exception than
    Disturbed is not visited again: `failed` says why.
    """

    visits: Mapping[str, Visit]
    seed: int = 0
    values: dict[str, list[float]] = field(default_factory=dict)
    orders: list[tuple[str, ...]] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.values = {name: [] for name in self.visits}
        self.chance = random.Random(self.seed)

    def take(
        self,
        number: int,
        describe: Callable[[Exception], str] = str,
        progress: Callable[[int], object] = lambda done: None,
    ) -> None:
        """Take `number` rounds, trying at most `TRIES * number`. `describe` makes an error of a
        candidate the text in `failed`; `progress` gets the completed number."""
        for _ in range(TRIES * number):
            if len(self.orders) < number:
                progress(len(self.orders))
                self.once(describe)

    def once(self, describe: Callable[[Exception], str] = str) -> None:
        """Take one round: visit all candidates in random order, then in reverse, and keep the mean
        of each candidate's two values; nothing is kept if a visit is disturbed. `describe` words
        the error of a candidate that fails."""
        try:
            order, found = self.visited(describe)
        except Disturbed:
            return
        self.orders.append(tuple(order))
        for name, taken in found.items():
            if name not in self.failed:
                self.values[name].append(statistics.fmean(taken))

    def visited(
        self, describe: Callable[[Exception], str]
    ) -> tuple[list[str], dict[str, list[float]]]:
        """Visit each candidate without an earlier failure in random order, then in reverse; return
        the first order and a dict: candidate -> its two values in seconds. A candidate that fails
        has fewer, and its error, as text by `describe`, is in `failed`. Raises Disturbed: a visit
        does."""
        order = [name for name in self.visits if name not in self.failed]
        self.chance.shuffle(order)
        found: dict[str, list[float]] = {name: [] for name in order}
        for name in (*order, *reversed(order)):
            if name in self.failed:  # in its first visit of this round
                continue
            try:
                found[name].append(self.visits[name]())
            except Disturbed:
                raise
            except Exception as error:  # a module of a user's own may raise anything
                self.failed[name] = describe(error)
        return order, found


class Verdict(Record, frozen=True):
    """Whether two candidates differ; `ratio` is the cost of the second over that of the first.

    `ratio`, its interval and the probabilities are None if `refused` says why there is no test.
    """

    first: str
    second: str
    pairs: int
    """The number of tested values per candidate; `of` names their source."""
    ratio: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    confidence: float | None = None
    """The confidence of the interval; all intervals of a comparison together hold at the level."""
    p: float | None = None
    p_corrected: float | None = None
    differs: bool = False
    refused: str = ""
    of: str = ""


def rounds_needed(pairs: int, level: float = LEVEL) -> int:
    """The least number of rounds with which one of this many pairs can be shown to differ.

    With n rounds the smallest two-sided probability is 2 / 2^n, and Holm's correction compares the
    smallest of all with level / pairs.

    >>> rounds_needed(1), rounds_needed(3), rounds_needed(45)
    (6, 7, 11)
    """
    rounds = 1
    while 2.0 ** (1 - rounds) > level / pairs:
        rounds += 1
    return rounds


def too_few(rounds: int, pairs: int, level: float, unit: str = "rounds") -> str:
    """A sentence why this many rounds cannot show a difference, and how many can; "" if they
    suffice.

    `pairs` is the number of pairs of candidates compared, `level` the accepted probability that any
    of them differs falsely, `unit` the source of one value of each candidate (rounds, processes).
    """
    needed = rounds_needed(pairs, level)
    if rounds >= needed:
        return ""
    share = f"{level:g}" if pairs == 1 else f"{level:g} / {pairs}, for {pairs} compared pairs"
    return (
        f"{rounds} {unit} are too few to show a difference: the smallest possible p-value is "
        f"2 / 2^{rounds} = {2.0 ** (1 - rounds):.3g}, above {share}; {needed} {unit} are needed"
    )


def ranks(values: Sequence[float]) -> list[int]:
    """Twice the rank of each absolute value; equal values share their mean rank, so that twice the
    rank is a whole number.

    >>> ranks([0.5, -0.1, 0.5])
    [5, 2, 5]
    """
    from scipy.stats import rankdata

    return [round(2 * rank) for rank in rankdata([abs(value) for value in values])]


def signed_rank_shares(doubled: Sequence[int]) -> NDArray[np.float64]:
    """The distribution of the signed-rank sum: index s -> the share of all sign choices for which
    the positive doubled ranks sum to s. Exact up to 53 ranks, of more to the rounding of floats.

    >>> signed_rank_shares([2, 4]).tolist()  # sums 0, 2, 4 and 6, each a quarter
    [0.25, 0.0, 0.25, 0.0, 0.25, 0.0, 0.25]
    """
    shares = np.zeros(sum(doubled) + 1)
    shares[0], reach = 1.0, 0
    for rank in doubled:
        reach += rank
        shares[: reach + 1] /= 2
        shares[rank : reach + 1] += shares[: reach + 1 - rank].copy()
    return shares


def signed_rank_p(logs: Sequence[float]) -> float:
    """The exact two-sided p-value of the Wilcoxon signed-rank test: the probability of a rank sum
    as far from its mean as this one, if each sign is as likely plus as minus.

    `logs` are the logarithms of ratios. Zeros are left out; equal values share their mean rank, in
    the sum and in its distribution.

    >>> signed_rank_p([0.3, 0.2, 0.1]), signed_rank_p([0.3, 0.2, 0.0])  # 2 / 2^3, 2 / 2^2
    (0.25, 0.5)
    """
    nonzero = [value for value in logs if value != 0]
    if not nonzero:
        return 1.0
    if len({abs(value) for value in nonzero}) == len(nonzero):
        from scipy.stats import wilcoxon

        return float(wilcoxon(nonzero, method="exact").pvalue)
    doubled = ranks(nonzero)
    shares = signed_rank_shares(doubled)
    positive = sum(rank for rank, value in zip(doubled, nonzero, strict=True) if value > 0)
    tail = min(shares[: positive + 1].sum(), shares[positive:].sum())
    return min(1.0, float(2 * tail))


def walsh(logs: Sequence[float]) -> list[float]:
    """The Walsh averages, ascending: the means of every two values, and each value itself."""
    return sorted((a + b) / 2 for k, a in enumerate(logs) for b in logs[k:])


def location(logs: Sequence[float]) -> float:
    """The Hodges-Lehmann estimate of the centre: the median of the Walsh averages (`walsh`)."""
    return float(statistics.median(walsh(logs)))


@lru_cache(maxsize=256)
def interval_rank(n: int, confidence: float) -> int:
    """The rank, from 1, of the lower end of the centre's confidence interval among the ascending
    Walsh averages (means of two) of `n` values; 0 if too few for an interval. Below the rank lie at
    most (1 - confidence)/2 of all choices of signs.

    >>> interval_rank(5, 0.95), interval_rank(6, 0.95), interval_rank(10, 0.95)
    (0, 1, 9)
    """
    below = np.cumsum(signed_rank_shares(range(1, n + 1)))
    return int(np.argmax(below > (1 - confidence) / 2))


def location_interval(logs: Sequence[float], confidence: float) -> tuple[float, float] | None:
    """The confidence interval (low, high) of the centre of `logs`, the logarithms of ratios, by the
    signed-rank test, between two of their Walsh averages (means of two values); None for too few
    values.

    Exact for values without ties, conservative with ties.
    """
    rank = interval_rank(len(logs), confidence)
    means = walsh(logs)
    return (means[rank - 1], means[-rank]) if rank else None


def holm(probabilities: Sequence[float]) -> list[float]:
    """Correct p-values of several tests by Holm's method: for each the smallest level that rejects
    its hypothesis.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(probabilities)), key=lambda k: probabilities[k])
    corrected = [0.0] * len(probabilities)
    highest = 0.0
    for place, k in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - place) * probabilities[k]))
        corrected[k] = highest
    return corrected


def verdicts(
    values: Mapping[str, Sequence[float]],
    level: float = LEVEL,
    refused: Mapping[str, str] | None = None,
    unit: str = "rounds",
) -> list[Verdict]:
    """Compare every two candidates, and return a verdict for each pair; value k of each candidate
    is from round k.

    Args:
        values: candidate -> one positive value per round, equally many for all compared candidates.
        level: the accepted probability that any pair is falsely found to differ.
        refused: candidate -> why it is not compared.
        unit: the source of one value.
    """
    refused = dict(refused or {})
    listed = list(combinations(values, 2))
    compared = [pair for pair in listed if not any(name in refused for name in pair)]
    found = {pair: _tested(pair, values, level, len(compared), unit) for pair in compared}
    tested = [pair for pair in compared if found[pair].p is not None]
    corrected = dict(zip(tested, holm([found[pair].p or 0.0 for pair in tested]), strict=True))
    for pair, p in corrected.items():
        found[pair] = replace(found[pair], p_corrected=p, differs=p <= level)
    for pair in listed:
        if pair not in found:
            found[pair] = Verdict(*pair, 0, refused=reasons(pair, refused))
    return [found[pair] for pair in listed]


def reasons(pair: Sequence[str], refused: Mapping[str, str]) -> str:
    """A sentence why two candidates are not compared: the reason in `refused` of each that has one;
    "" if neither has."""
    return "; ".join(f"{name}: {refused[name]}" for name in pair if name in refused)


def _tested(
    pair: tuple[str, str],
    values: Mapping[str, Sequence[float]],
    level: float,
    pairs: int,
    unit: str,
) -> Verdict:
    """Test one `pair` of `pairs` that are compared, and return the verdict on second / first,
    refused for too few values, one for each `unit` ("rounds", "processes"). The intervals of all
    pairs hold together at `level`; the p-value is not corrected yet."""
    first, second = (values[name] for name in pair)
    logs = log_ratios(first, second)
    if why := too_few(len(logs), pairs, level, unit):
        return Verdict(*pair, len(logs), refused=why, of=unit)
    confidence = 1 - level / pairs
    interval = location_interval(logs, confidence)
    if interval is None:
        raise AssertionError(f"no interval of {len(logs)} rounds at confidence {confidence}")
    low, high = map(math.exp, interval)
    ratio = math.exp(location(logs))
    p = signed_rank_p(logs)
    return Verdict(*pair, len(logs), ratio, low, high, confidence, p, of=unit)


def log_ratios(first: Sequence[float], second: Sequence[float]) -> list[float]:
    """The logarithm of second / first for each pair of values at the same place. Raises ValueError:
    the numbers of values differ, or a value is not positive."""
    if len(first) != len(second):
        raise ValueError(f"expected pairs, got {len(first)} and {len(second)} values")
    if min((*first, *second), default=1.0) <= 0:
        raise ValueError("expected positive values, since other values have no ratio")
    return [math.log(b / a) for a, b in zip(first, second, strict=True)]
