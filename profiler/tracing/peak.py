"""The peak of the bytes alive during a call, as a formula.

The bytes alive at one moment (after one dispatched operation) are a polynomial in the sizes. The
peak is the maximum over all moments, if the same operations run at all sizes; otherwise the maximum
over the moments that were highest at some tried size.

Words: `samples` makes and keeps the runs of the module at points (tuples of sizes); `alive` lists
the bytes alive after each operation of a run, so that a moment is an index of it; `inside` are the
points at which the formula must hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import combinations

from costmodel.symbolic.polynomial import Poly, call
from profiler.tracing.interpolation import Axis, Point, interpolate, shortest_formulas
from profiler.tracing.meta_run.observe import PEAK, Observation
from profiler.tracing.proof import first_failures
from profiler.tracing.size_samples import SizeSamples

TRIED = (
    "peak: the operations of a call depend on the sizes; the formula is the maximum over the "
    "moments that were the highest at one of the traced sizes"
)
"""The note on a peak that is not the maximum over all moments."""

MOST_MOMENTS = 60
"""With more moments than this, moments shift with the sizes and are not followed."""

MOST_SIZES = 500
"""With more tried sizes than this (as for blocks that do not divide the length), the formula of one
moment takes many seconds: moments are not followed."""


def peak_formula(samples: SizeSamples, axes: Sequence[Axis], inside: Sequence[Point]) -> Poly:
    """The formula of the peak of the bytes alive in the runs of `samples`, made of the functions of
    each letter (`axes`), by the first method whose formula holds at all points `inside` (tuples of
    sizes), a polynomial or a maximum of polynomials; a note says if not all moments were followed.
    If every formula fails somewhere, the first one; 0 if no method finds a formula."""
    if (every := every_moment(samples, axes, inside)) is not None:
        return every
    found: Poly | None = None
    for way in (highest_moments, plain_peak):
        poly = way(samples, axes, inside)
        if poly is not None and not first_failures(samples, {PEAK: poly}, inside):
            samples.notes.append(TRIED)
            return poly
        found = found or poly
    return found or Poly()


def every_moment(
    samples: SizeSamples, axes: Sequence[Axis], inside: Sequence[Point]
) -> Poly | None:
    """The peak as the maximum of the formulas of all moments (indices of operations) that are local
    maxima of the bytes alive at some point; `axes` are the functions of each letter that formulas
    are made of. None if different operations run at different points, the interpolation needs a
    point that is not among `inside`, or the formula of a moment fails at one of them. Without any
    moment, the peak as one polynomial."""
    seen = {p: samples.at(p) for p in inside}
    names = seen[inside[0]].names
    if any(one.names != names for one in seen.values()):
        return None
    alive = [one.alive for one in seen.values()]
    # a column: the bytes of one moment at every point
    tops = {k for a in alive for k in range(len(a)) if a[k] >= max(a[max(k - 1, 0) : k + 2])}
    columns = outermost(list(dict.fromkeys(tuple(a[k] for a in alive) for k in sorted(tops))))
    if not columns:
        return plain_peak(samples, axes, inside)
    numbers = {p: dict.fromkeys(columns, 0) for p in inside}  # a column is its quantity's name
    for values in columns:
        for point, value in zip(inside, values, strict=True):
            numbers[point][values] = value
    try:
        polys = shortest_formulas(axes, lambda p: numbers[p])
    except KeyError:
        return None
    named = [samples.named(p) for p in inside]
    if any(tuple(map(poly.rational, named)) != values for values, poly in polys.items()):
        return None
    # the last argument: the smallest size of each letter among the points
    kept = greatest(list(polys.values()), samples.named(tuple(map(min, zip(*inside, strict=True)))))
    return call("Max", *kept) if kept else Poly()


APART = 256
"""A moment is compared only with pairs of moments at most this far away on either side."""


def outermost(columns: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The columns (each the bytes alive at one moment, at every point) without each column that is
    the mean of two others, equally far before and after it, as of moments in equal layers.
    Formulas are linear in these bytes, so at every size one of the two is at least as high."""

    def halfway(k: int) -> bool:
        """Whether column k is the mean of columns k - step and k + step, for a step <= `APART`."""
        value = columns[k]
        for step in range(1, min(k, len(columns) - 1 - k, APART) + 1):
            one, two = columns[k - step], columns[k + step]
            if one[0] + two[0] == 2 * value[0] and all(
                a + b == 2 * c for a, b, c in zip(one, two, value, strict=True)
            ):
                return True
        return False

    return [value for k, value in enumerate(columns) if not halfway(k)]


def plain_peak(samples: SizeSamples, axes: Sequence[Axis], inside: Sequence[Point]) -> Poly:
    """The peak as one polynomial, which need not hold at all points: a maximum is no polynomial."""
    found = interpolate(axes, lambda p: {PEAK: samples.at(p).quantities[PEAK]}, whole=True)
    return found.get(PEAK, Poly())


def highest_moments(
    samples: SizeSamples, axes: Sequence[Axis], inside: Sequence[Point]
) -> Poly | None:
    """The peak as the maximum of the formulas of all moments that were highest at one of the points
    `inside`; `axes` are the functions of each letter that formulas are made of; None if there are
    too many points or moments, or no moment has a formula. A moment without a formula is left out,
    so that the maximum may be too low at a point: the caller checks it at all points.

    If loops over a size change the number of operations, a moment is identified across points by
    its distance from a landmark, an operation that runs equally often at all points.
    """
    if len(inside) > MOST_SIZES:
        return None
    places = landmarks([samples.at(p) for p in inside])
    moments: dict[tuple[Landmark, int], None] = {}
    for point, marks in zip(inside, places, strict=True):
        alive = samples.at(point).alive
        top = alive.index(max(alive)) if alive else 0
        for mark, place in around(marks, top):
            moments[mark, top - place] = None
    if len(moments) > MOST_MOMENTS:
        return None
    kept: dict[Poly, None] = {}
    for mark, distance in moments:
        at = {p: marks[mark] + distance for p, marks in zip(inside, places, strict=True)}
        if (poly := moment(samples, axes, at)) is not None:
            kept[poly] = None
    least = samples.named(tuple(map(min, zip(*inside, strict=True))))
    return call("Max", *greatest(list(kept), least)) if kept else None


def moment(samples: SizeSamples, axes: Sequence[Axis], places: Mapping[Point, int]) -> Poly | None:
    """The formula, made of the functions of each letter (`axes`), of the bytes alive at the moment
    that is operation number `places[point]` of the run at a point; None if no formula holds at all
    points that have the moment, or the interpolation needs a point without the moment."""
    values: dict[Point, int] = {}
    for point, place in places.items():
        alive = samples.at(point).alive
        if 0 <= place < len(alive):
            values[point] = alive[place]
    try:
        poly = shortest_formulas(axes, lambda p: {PEAK: values[p]}).get(PEAK, Poly())
    except KeyError:
        return None
    fits = all(poly.rational(samples.named(p)) == value for p, value in values.items())
    return poly if fits else None


Landmark = tuple[str, int]
"""An operation: its name, and how many operations of that name ran before."""


def landmarks(listed: Sequence[Observation]) -> list[dict[Landmark, int]]:
    """A dict for each run, landmark -> its index among the run's operations. Landmarks identify
    moments across runs: occurrences of the operations that run equally often in all runs, and of
    the start and the end."""
    counts = [Counter(seen.names) for seen in listed]
    steady = {name for name in counts[0] if len({c[name] for c in counts}) == 1}
    found = []
    for seen in listed:
        marks: dict[Landmark, int] = {("start", 0): 0}
        before: Counter[str] = Counter()
        for place, name in enumerate(seen.names):
            if name in steady:
                marks[name, before[name]] = place
                before[name] += 1
        marks["end", 0] = len(seen.names)
        found.append(marks)
    return found


def around(marks: Mapping[Landmark, int], top: int) -> Iterator[tuple[Landmark, int]]:
    """Yield the last landmark (an operation that all runs share) up to the moment `top`, and the
    first one after it if there is one, as (landmark, index)."""
    earlier = [(mark, place) for mark, place in marks.items() if place <= top]
    later = [(mark, place) for mark, place in marks.items() if place > top]
    yield max(earlier, key=lambda entry: entry[1])
    if later:
        yield min(later, key=lambda entry: entry[1])


def greatest(polys: Sequence[Poly], least: Mapping[str, int]) -> list[Poly]:
    """The polynomials that are needed for their maximum: left out are those that one other, or the
    larger of two others, provably reaches from the sizes `least` on: at every such point one of the
    remaining polynomials is the maximum.

    >>> l = Poly.atom("l")
    >>> [str(poly) for poly in greatest([l + 2, l * 3, l * l], {"l": 1})]  # 3*l >= l + 2 from 1 on
    ['3*l', 'l**2']
    """
    moved = {p: shifted(p, least) for p in dict.fromkeys(polys)}
    ordered = sorted(moved, key=lambda p: -sum(moved[p].values()))
    monomials = dict.fromkeys(m for terms in moved.values() for m in terms)
    highest = [max(ordered, key=lambda p: moved[p].get(m, Fraction(0))) for m in monomials]
    kept: list[Poly] = []
    for poly in dict.fromkeys((*highest, *ordered)):  # the largest first: they exceed most others
        if not exceeded(moved[poly], [moved[other] for other in kept]):
            kept.append(poly)
    for poly in list(kept):
        if exceeded(moved[poly], [moved[other] for other in kept if other is not poly]):
            kept.remove(poly)
    return [poly for poly in ordered if poly in kept]


Moved = Mapping[object, Fraction]
"""Monomial -> coefficient, for a polynomial in the excesses of the sizes over the least sizes;
functions of sizes count as letters."""


def shifted(poly: Poly, least: Mapping[str, int]) -> Moved:
    """The coefficients of a polynomial in the excesses of the sizes over the least sizes: l**2 at
    least l=3 is (l' + 3)**2, so l'**2: 1, l': 6, 1: 9. Functions of sizes become functions of the
    excesses, which are at least 0: floor(l/2) is floor((l' + 1)/2) + 1.
    """
    moved = poly.substitute({x: Poly.atom(x) + size for x, size in least.items()})
    return {monomial: Fraction(number) for monomial, number in moved.terms.items()}


def exceeded(poly: Moved, others: Sequence[Moved]) -> bool:
    """Whether at all sizes from the least on one of the `others` (monomial -> coefficient, from
    `shifted`) is at least as large as `poly`, as is proven of one alone, or of the larger of
    two."""
    return any(covers(other, poly) for other in others) or any(
        mean_covers(one, two, poly) for one, two in combinations(others, 2)
    )


def covers(larger: Moved, smaller: Moved) -> bool:
    """Whether no coefficient of `larger` is below that of `smaller`, so that no value is."""
    return all(larger.get(m, 0) >= smaller.get(m, 0) for m in {*larger, *smaller})


def mean_covers(one: Moved, two: Moved, smaller: Moved) -> bool:
    """Whether some weighted mean of `one` and `two` has no coefficient below that of `smaller`, so
    that max(one, two) is nowhere below `smaller`."""
    # the weights w in [low, high] for which w * one + (1 - w) * two is not below `smaller`
    low, high = Fraction(0), Fraction(1)
    for m in {*one, *two, *smaller}:
        slope = one.get(m, Fraction(0)) - two.get(m, Fraction(0))
        wanted = smaller.get(m, Fraction(0)) - two.get(m, Fraction(0))
        if not slope:
            if wanted > 0:
                return False
        elif slope > 0:
            low = max(low, wanted / slope)
        else:
            high = min(high, wanted / slope)
    return low <= high
