"""Do formulas hold at sizes that they were not found from, and where do they first fail?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations, product

from costmodel.symbolic.polynomial import Poly
from profiler.tracing.interpolation import Point
from profiler.tracing.meta_run.observe import Quantity
from profiler.tracing.meta_run.target import words
from profiler.tracing.result import Break
from profiler.tracing.size_samples import Points

PRIME = (13, 11, 7, 17, 19, 23, 29, 31)
ODD = (21, 15, 9, 25, 27, 33, 35, 39)
EVEN = (32, 16, 8, 64, 4, 28, 40, 44)
"""Sizes, as multiples, of the first three points that formulas are proven at: one out of each."""

LARGE = (1021, 509, 251, 127, 61, 37)
"""Large primes, one of which every size takes in turn."""

DIVISIBLE = ((960, 480, 192, 64), (896, 448, 224, 56))
"""Sizes that many others divide, two of which every size takes in turn, one where runs take long:
what a module does only where its chunks come out even shows there."""


def held_out(points: Points, base: Point) -> list[Point]:
    """Sizes that no formula was found from, at which the module runs: prime, odd, powers of two,
    and each letter large, once a prime, once divisible by many, the others being the primes: what
    depends on which of two sizes is the larger, or divides the other, shows where neither is one
    that formulas were found from. Of two
    letters each is the larger one somewhere, where the case has such sizes."""
    found: list[Point] = []
    for sizes in (PRIME, ODD, EVEN):
        turns = (sizes[shift:] + sizes[:shift] for shift in range(len(sizes)))
        made = [tuple(beyond(points, base, i, t[i]) for i in range(len(base))) for t in turns]
        unused = [p for p in made if p not in points.used and points.inside(p)]
        quick = (point for point in unused if points.patient(base, point))
        point = next(quick, min(unused, key=lambda p: points.expected(base, p), default=None))
        if point is not None:
            found += [point] * points.told(point)
    among = next(iter(found), base)
    for listed in (LARGE, *DIVISIBLE[: 1 if points.slow else None]):
        largest = (large(points, base, i, among, listed) for i in range(len(base)))
        found += [point for point in largest if point is not None]
    for i, j in permutations(range(len(base)), 2):
        if not any(point[i] > point[j] for point in found):
            point = larger(points, base, i, j)
            found += [point] if point is not None and points.told(point) else []
    return found


def larger(points: Points, base: Point, i: int, j: int) -> Point | None:
    """The point that takes the least time among those of the primes at which one letter is larger
    than another; None where there is none that is no slower than what is waited for elsewhere."""
    made = (
        tuple(beyond(points, base, k, size) for k, size in enumerate(sizes))
        for sizes in permutations(PRIME[: max(6, len(base))], len(base))
    )
    fit = [p for p in made if p[i] > p[j] and points.inside(p) and p not in points.used]
    point = min(fit, key=lambda p: points.expected(base, p), default=None)
    return point if point is not None and points.patient(base, point) else None


def beyond(points: Points, base: Point, i: int, place: int) -> int:
    """A multiple of a letter that lies beyond its smallest."""
    step = points.multiples[i]
    return base[i] - base[i] % step + place * step if base[i] > place * step else place * step


def large(points: Points, base: Point, i: int, among: Point, sizes: Sequence[int]) -> Point | None:
    """A large multiple of one letter, the first of some that patience allows, the others as in
    `among`."""
    for size in sizes:
        place = size * points.multiples[i]
        point = points.moved(among, i, place)
        if place <= base[i] or point in points.used or not points.inside(point):
            continue
        if not points.patient(base, point):
            continue
        if points.told(point):
            return point
    return None


def breaks(
    points: Points, polys: Mapping[Quantity, Poly], among: Sequence[Point]
) -> dict[Quantity, Break]:
    """The first point at which each formula fails, the smallest sizes first."""
    found: dict[Quantity, Break] = {}
    for point in sorted(among, key=lambda p: (sum(p), p)):
        for quantity in polys.keys() - found.keys():
            if broken := apart(points, polys[quantity], quantity, point):
                found[quantity] = broken
    return found


def apart(points: Points, poly: Poly, quantity: Quantity, point: Point) -> Break | None:
    """How a formula fails at a point, if it does."""
    sizes = points.named(point)
    value, counted = poly.rational(sizes), points.at(point).quantities.get(quantity, 0)
    return None if value == counted else Break(sizes, str(poly), str(value), counted)


def earliest(points: Points, poly: Poly, quantity: Quantity, base: Point, found: Break) -> Break:
    """The first size, along the letters one by one, at which a formula fails."""
    for i, letter in enumerate(points.letters):
        step, low, high = points.multiples[i], base[i], found.sizes[letter]
        nearer = fails(points, poly, quantity, points.moved(base, i, high)) if high > low else None
        if nearer is None:
            continue
        while high - low > step:
            middle = low + (high - low) // (2 * step) * step
            if between := fails(points, poly, quantity, points.moved(base, i, middle)):
                nearer, high = between, middle
            else:
                low = middle
        return nearer
    return found


def fails(points: Points, poly: Poly, quantity: Quantity, point: Point) -> Break | None:
    """How a formula fails at a point, if the module runs there."""
    return apart(points, poly, quantity, point) if points.runs(point) else None


def since(points: Points, polys: Mapping[Quantity, Poly], base: Point) -> Point:
    """The least size of each letter down to which formulas of operations and parameters hold, the
    other letters being as they were first; where one that holds from there on breaks below becomes
    a note."""
    wrong = breaks(points, polys, points.above(base))
    kept = {q: p for q, p in polys.items() if q not in wrong and q[0] != "bytes"}
    least = list(base)
    bound = points.bound()
    for near in range(NEAR if bound else 0, 0, -1):
        corner = [p for p in nearest(points, base, near) if points.runs(p)]
        if broken := next(iter(breaks(points, kept, corner).values()), None):
            points.notes.append(breaking_below(broken, "these sizes"))
            break
        for i in bound:
            least[i] = near * points.multiples[i]
    for i, letter in enumerate(points.letters):
        if i in bound:
            continue
        for place in range(base[i] - points.multiples[i], 0, -points.multiples[i]):
            point = points.moved(base, i, place)
            if not points.runs(point):
                break
            if broken := next(iter(breaks(points, kept, [point]).values()), None):
                points.notes.append(breaking_below(broken, f"{letter}={least[i]}"))
                break
            least[i] = place
    return tuple(least)


NEAR = 6
"""Of a case, every combination of sizes up to this many is held against the formulas."""


def nearest(points: Points, base: Point, near: int) -> Iterator[Point]:
    """The smallest sizes of a case, one of the letters that it bounds being `near`."""
    sizes = [range(near, NEAR + 1) if i in points.bound() else (0,) for i in range(len(base))]
    for chosen in product(*sizes):
        if near in chosen:
            point = tuple(
                k * m or x for k, m, x in zip(chosen, points.multiples, base, strict=True)
            )
            if points.inside(point):
                yield point


def breaking_below(broken: Break, least: str) -> str:
    """That formulas hold from some size on."""
    return (
        f"the formulas hold from {least} on: {broken.formula} gives {broken.gives} at "
        f"{words(broken.sizes)}, where {broken.counted} was counted"
    )
