"""The power with which a measured curve grows over its settled range, and its interval.

A power law is a straight line in the logarithms. Its slope is found by weighted least squares. A
point's weight follows from the interval of its median, with a standard deviation of at least
`KNOWN_TO`. The slope's 95 % interval is the wider of two: the interval from the points' intervals,
and the interval from the scatter about the line (Student's t), since points of one curve also
differ by effects that no interval of a single point contains.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

LEAST = 4
"""The smallest number of sizes from which an exponent is computed."""

AGREE = 0.1
"""The largest difference of local slopes that count as equal: the local slopes of an exactly known
sum of several powers always differ."""

SURE = 3.0
"""The largest distance from a line, in standard deviations, of a value on the line: rare enough by
chance for a test of every value of a curve."""

KNOWN_TO = 1e-3
"""The smallest relative standard deviation of a median that is used."""

TOUCHING = "busy, with an interval that touches that of the next size"
"""The reason why a busy value shows no growth."""

NORMAL = 1.959963984540054
"""The number of standard deviations within which 95 % of a normal distribution lies."""


@dataclass(frozen=True)
class MeasuredValue:
    """A measured value at one size, with the 95 % interval of its median."""

    size: int
    value: float
    low: float
    high: float
    cut: str = ""
    """Why the value does not show the work (the device waits for the host, ...); "" if it does."""
    busy: bool = False
    """Whether the value is an estimate from a device that others used; its interval is wide."""

    @cached_property
    def x(self) -> float:
        """The logarithm of the size."""
        return math.log(self.size)

    @cached_property
    def y(self) -> float:
        """The logarithm of the value."""
        return math.log(self.value)

    @cached_property
    def deviation(self) -> float:
        """The standard deviation of `y`, from the interval of the median."""
        return max((math.log(self.high) - math.log(self.low)) / (2 * NORMAL), KNOWN_TO)


@dataclass(frozen=True)
class FittedLine:
    """A weighted straight line through the point (x, y), with the standard deviations of its slope
    and of its height at x."""

    slope: float
    x: float
    """The weighted mean of x, at which the line's y is most certain."""
    y: float
    slope_deviation: float
    y_deviation: float

    def at(self, x: float) -> float:
        """The line's y at an x."""
        return self.y + self.slope * (x - self.x)

    def deviation(self, x: float) -> float:
        """The standard deviation of the line's y at an x."""
        return math.hypot(self.y_deviation, self.slope_deviation * (x - self.x))


@dataclass(frozen=True)
class Exponent:
    """The power over a settled range, with its 95 % interval."""

    value: float
    low: float
    high: float
    first: int
    last: int
    sizes: int
    """The number of sizes in the range, from `first` to `last`."""
    ended: str
    """Why the range ends at its smallest size; "" if that is the curve's smallest size."""

    def contains(self, power: float) -> bool:
        """Whether a power lies in the interval."""
        return self.low <= power <= self.high


@dataclass(frozen=True)
class Unsettled:
    """The reason why there is no exponent."""

    reason: str


@dataclass
class Fit:
    """The straight line of weighted least squares through points that come one after the other:
    weighted means `x` and `y`, and about them the weighted sums of squares of x (`spread`) and of
    products of x and y (`together`). Source: West 1979, Communications of the ACM 22(9), "Updating
    mean and variance estimates"."""

    total: float = 0.0
    """The sum of the weights: a point with the standard deviation s of y weighs 1/s^2."""
    x: float = 0.0
    y: float = 0.0
    spread: float = 0.0
    together: float = 0.0

    def add(self, x: float, y: float, deviation: float) -> None:
        """Add a point whose y has this standard deviation."""
        weight = deviation**-2
        self.total += weight
        away, share = x - self.x, weight / self.total
        self.x += share * away
        self.y += share * (y - self.y)
        self.spread += weight * away * (x - self.x)
        self.together += weight * away * (y - self.y)

    @property
    def line(self) -> FittedLine:
        """The line, and the standard deviations of its slope and of its height at the mean of x.
        ValueError: fewer than two different x."""
        if not self.spread > 0:
            raise ValueError("expected values at two sizes or more, got values at one")
        slope = self.together / self.spread
        return FittedLine(slope, self.x, self.y, self.spread**-0.5, self.total**-0.5)


def fit_line(xs: Sequence[float], ys: Sequence[float], deviations: Sequence[float]) -> FittedLine:
    """The straight line of weighted least squares through points (x, y), and the standard
    deviations of its slope and height; `deviations` are the standard deviations of `ys`. Raises
    ValueError: fewer than two different `xs`."""
    fit = Fit()
    for x, y, deviation in zip(xs, ys, deviations, strict=True):
        fit.add(x, y, deviation)
    return fit.line


def line_through(values: Sequence[MeasuredValue]) -> FittedLine:
    """The line through the logarithms of measured values."""
    return fit_line(
        [each.x for each in values], [each.y for each in values], [v.deviation for v in values]
    )


def settled_range(values: Sequence[MeasuredValue]) -> tuple[list[MeasuredValue], str]:
    """(values, reason): the part of a curve, from its largest size down, that grows with one power
    (the settled range), by ascending size; and why it ends, or "" if it reaches the smallest size.

    A smaller size joins while its value lies on the line through the values above: within their
    uncertainty, or so near that the local slope differs by at most `AGREE`. A value that may not be
    fitted (its `cut` says why: bound by launches, without an interval, busy) ends the range.
    """
    found: list[MeasuredValue] = []
    fit = Fit()
    for each in sorted(values, key=lambda v: -v.size):
        if each.cut:
            return found[::-1], f"{each.cut} at {each.size}"
        if len(found) > 1 and not follows(each, fit.line, found[-1].x):
            return found[::-1], f"the slope changes between {each.size} and {found[-1].size}"
        found.append(each)
        fit.add(each.x, each.y, each.deviation)
    return found[::-1], ""


def follows(value: MeasuredValue, fitted: FittedLine, next_x: float) -> bool:
    """Whether a value lies on the line through the values at larger sizes, the next of them at
    `next_x`: at most `SURE` standard deviations away, besides what a slope changed by `AGREE`
    explains."""
    uncertain = SURE * math.hypot(value.deviation, fitted.deviation(value.x))
    bend = AGREE * (next_x - value.x)
    return abs(value.y - fitted.at(value.x)) <= uncertain + bend


def exponent(values: Sequence[MeasuredValue]) -> Exponent | Unsettled:
    """The power with which the values grow, with its 95 % interval, over the settled range: the
    part from the largest size down that has one slope in logarithms. `Unsettled`, with the reason,
    if this part has fewer than `LEAST` sizes. Raises ValueError: two values have one size, or a
    value is not positive or outside its interval."""
    if len({v.size for v in values}) != len(values):
        raise ValueError(
            "expected one value for each size, got the sizes "
            f"{', '.join(str(v.size) for v in values)}"
        )
    if bad := [v.size for v in values if not 0 < v.low <= v.value <= v.high]:
        raise ValueError(f"expected 0 < low <= value <= high, which fails at {bad[0]}")
    found, ended = settled_range(values)
    if len(found) < LEAST:
        because = f" ({ended})" if ended else ""
        return Unsettled(
            f"not enough points: {len(found)} of {len(values)} sizes are settled{because}, and an "
            f"exponent needs {LEAST}: measure more sizes, or larger ones"
        )
    fitted = line_through(found)
    half = max(NORMAL * fitted.slope_deviation, scatter_half_width(found, fitted))
    return Exponent(
        fitted.slope, fitted.slope - half, fitted.slope + half,
        found[0].size, found[-1].size, len(found), ended,
    )  # fmt: skip


def scatter_half_width(values: Sequence[MeasuredValue], fitted: FittedLine) -> float:
    """Half the slope's 95 % interval by the scatter of three values or more (Student's t)."""
    free = len(values) - 2
    chi2 = math.fsum(((v.y - fitted.at(v.x)) / v.deviation) ** 2 for v in values)
    return student(free) * fitted.slope_deviation * math.sqrt(chi2 / free)


@cache
def student(free: int) -> float:
    """The 0.975 quantile (two-sided 95 %) of Student's t with this many degrees of freedom.

    >>> round(student(2), 3)
    4.303
    """
    from scipy.special import stdtrit

    return float(stdtrit(free, 0.975))


def power_of(
    function: Callable[[int], float], values: Sequence[MeasuredValue], first: int, last: int
) -> float:
    """The power with which a known function of the size grows from `first` to `last`: the slope of
    the line through its logarithms, at the sizes and with the weights of measured values."""
    kept = [v for v in values if first <= v.size <= last]
    ys = [math.log(function(v.size)) for v in kept]
    return fit_line([v.x for v in kept], ys, [v.deviation for v in kept]).slope


def with_touching_cut(values: Sequence[MeasuredValue]) -> list[MeasuredValue]:
    """A copy of the values, which are in ascending order of size. A value from a busy machine whose
    interval overlaps that of a neighbouring size shows no growth, and is marked `cut`: the line of
    the exponent leaves it out."""
    found = []
    for k, value in enumerate(values):
        beside = [*values[max(k - 1, 0) : k], *values[k + 1 : k + 2]]
        touches = any(value.low <= each.high and each.low <= value.high for each in beside)
        hidden = value.busy and touches and not value.cut
        found.append(replace(value, cut=TOUCHING) if hidden else value)
    return found


def pooled(rounds: Sequence[tuple[float, float, float]]) -> tuple[float, float, float]:
    """(value, low, high): one value from several rounds, each (median, low, high): the geometric
    mean of the medians, with an interval that contains the intervals of all rounds.

    >>> [round(x, 9) for x in pooled([(1.0, 0.9, 1.1), (4.0, 3.9, 4.1)])]
    [2.0, 0.9, 4.1]
    """
    medians, lows, highs = zip(*rounds, strict=True)
    low, high = min(lows), max(highs)
    return min(max(statistics.geometric_mean(medians), low), high), low, high
