"""At which moment are most bytes alive, as a formula?

The bytes alive at one moment are a polynomial; the peak is the maximum over the moments that are
the highest at some sizes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from costmodel.polynomial import Poly, call
from profiler.tracing.fit import Axis, Point, interpolate, shortest
from profiler.tracing.observe import PEAK, Observation
from profiler.tracing.points import Points
from profiler.tracing.proof import breaks

MOST_MOMENTS = 60
"""Moments beyond this many are not followed: they move with the sizes."""


def peak(points: Points, axes: Sequence[Axis], inside: Sequence[Point]) -> Poly:
    """The most bytes alive: the first way to find it that gives it at all of some points."""
    found: Poly | None = None
    for way in (highest_moments, plain_peak):
        poly = way(points, axes, inside)
        if poly is not None and not breaks(points, {PEAK: poly}, inside):
            return poly
        found = found or poly
    return found or Poly()


def plain_peak(points: Points, axes: Sequence[Axis], inside: Sequence[Point]) -> Poly:
    """The peak as one polynomial."""
    found = interpolate(axes, lambda p: {PEAK: points.at(p).quantities[PEAK]}, whole=True)
    return found.get(PEAK, Poly())


def highest_moments(points: Points, axes: Sequence[Axis], inside: Sequence[Point]) -> Poly | None:
    """The maximum over all moments that were one at any of some points.

    A moment is told by its distance from a landmark, so that it can be found again where loops
    over a size make the number of operations differ.
    """
    places = landmarks([points.at(p) for p in inside])
    moments: dict[tuple[Landmark, int], None] = {}
    for point, marks in zip(inside, places, strict=True):
        alive = points.at(point).alive
        top = alive.index(max(alive)) if alive else 0
        for mark, place in around(marks, top):
            moments[mark, top - place] = None
    if len(moments) > MOST_MOMENTS:
        return None
    kept: dict[Poly, None] = {}
    for mark, distance in moments:
        at = {p: marks[mark] + distance for p, marks in zip(inside, places, strict=True)}
        if (poly := moment(points, axes, at)) is not None:
            kept[poly] = None
    return call("Max", *undominated(list(kept))) if kept else None


def moment(points: Points, axes: Sequence[Axis], places: Mapping[Point, int]) -> Poly | None:
    """The bytes alive at a moment; None where no formula gives them at all points that have it."""
    values: dict[Point, int] = {}
    for point, place in places.items():
        alive = points.at(point).alive
        if 0 <= place < len(alive):
            values[point] = alive[place]
    try:
        poly = shortest(axes, lambda p: {PEAK: values[p]}).get(PEAK, Poly())
    except KeyError:
        return None
    fits = all(poly.rational(points.named(p)) == value for p, value in values.items())
    return poly if fits else None


Landmark = tuple[str, int]
"""An operation by its name, and how many of that name came before."""


def landmarks(listed: Sequence[Observation]) -> list[dict[Landmark, int]]:
    """Where operations stand that run equally often at all points, and the start and the end."""
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
    """The last landmark up to a moment, and the first after it, if there is one."""
    earlier = [(mark, place) for mark, place in marks.items() if place <= top]
    later = [(mark, place) for mark, place in marks.items() if place > top]
    yield max(earlier, key=lambda entry: entry[1])
    if later:
        yield min(later, key=lambda entry: entry[1])


def undominated(polys: Sequence[Poly]) -> list[Poly]:
    """The polynomials that none of the others exceeds at all sizes of at least 1: their difference
    in sizes less 1 has no negative coefficient."""
    kept: list[Poly] = []
    for poly in polys:
        if not any(exceeds(other, poly) for other in kept):
            kept = [other for other in kept if not exceeds(poly, other)] + [poly]
    return kept


def exceeds(larger: Poly, smaller: Poly) -> bool:
    """Whether one polynomial is shown to be nowhere less than another at sizes of at least 1."""
    difference = larger - smaller
    if any(not letter.isidentifier() for letter in difference.atoms):
        return False
    moved = difference.substitute({letter: Poly.atom(letter) + 1 for letter in difference.atoms})
    return all(number >= 0 for number in moved.terms.values())
