"""Tests formulas at sizes that they were not found from, and finds the smallest failing sizes.

`samples` makes and keeps the runs of the module; `base` is the point at which the search starts,
the smallest sizes from which formulas are found; `least` are the smallest sizes at which they still
hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, permutations, product

from costmodel.symbolic.polynomial import Poly
from profiler.tracing.interpolation import Point
from profiler.tracing.meta_run.observe import Quantity
from profiler.tracing.meta_run.target import listed_sizes
from profiler.tracing.result import Break
from profiler.tracing.size_samples import SizeSamples

PRIME = (13, 11, 7, 17, 19, 23, 29, 31)
ODD = (21, 15, 9, 25, 27, 33, 35, 39)
EVEN = (32, 16, 8, 64, 4, 28, 40, 44)
"""Multiples for the first three points at which formulas are proven, one point per list."""

LARGE = (1021, 509, 251, 127, 61, 37)
"""Large primes: each letter alone takes the first with which the module runs quickly enough."""

DIVISIBLE = ((960, 480, 192, 64), (896, 448, 224, 56))
"""Sizes with many divisors: each letter alone takes the first possible of each list, or of one list
where runs are slow. They show behaviour that occurs only if chunks divide the size."""


def held_out(samples: SizeSamples, base: Point) -> list[Point]:
    """Choose points (tuples of sizes) for the test of formulas: points at which the module runs and
    from which no formula was found (`samples.used`); `base` is the point of the first sizes.

    The points are: one of primes, (13, 11), one of odd and one of even sizes; then, for each
    letter, that of primes with a large prime for this letter, (1021, 11) and (13, 1021), and with a
    large size of many divisors; then, for each ordered pair of letters for which no point so far
    has the first larger, one that has, if the case does. Points outside the case are left out. So
    it shows if behaviour depends on which of two sizes is larger, or on one dividing the other. A
    size at which the module fails becomes a note.
    """
    found: list[Point] = []
    for sizes in (PRIME, ODD, EVEN):
        turns = (sizes[shift:] + sizes[:shift] for shift in range(len(sizes)))
        made = [
            tuple(multiple_above(samples, base, i, t[i]) for i in range(len(base))) for t in turns
        ]
        unused = [p for p in made if p not in samples.used and samples.inside(p)]
        quick = (point for point in unused if samples.affordable(base, point))
        point = next(quick, min(unused, key=lambda p: samples.expected(base, p), default=None))
        if point is not None:
            found += [point] * samples.runs_or_notes(point)
    among = next(iter(found), base)
    for listed in (LARGE, *DIVISIBLE[: 1 if samples.slow else None]):
        largest = (with_large_letter(samples, base, i, among, listed) for i in range(len(base)))
        found += [point for point in largest if point is not None]
    for i, j in permutations(range(len(base)), 2):
        if not any(point[i] > point[j] for point in found):
            point = with_letter_above(samples, base, i, j)
            found += [point] if point is not None and samples.runs_or_notes(point) else []
    return found


def with_letter_above(samples: SizeSamples, base: Point, i: int, j: int) -> Point | None:
    """A point (a tuple of sizes) at which letter i is larger than letter j. Candidates give each
    letter another one of the first primes, times its step, lie in the case and are not used; the
    one with the fewest expected operations is taken. None if there is none, or its run is expected
    to exceed the allowed number of operations."""
    made = (
        tuple(multiple_above(samples, base, k, size) for k, size in enumerate(sizes))
        for sizes in permutations(PRIME[: max(6, len(base))], len(base))
    )
    fit = [p for p in made if p[i] > p[j] and samples.inside(p) and p not in samples.used]
    point = min(fit, key=lambda p: samples.expected(base, p), default=None)
    return point if point is not None and samples.affordable(base, point) else None


def multiple_above(samples: SizeSamples, base: Point, i: int, place: int) -> int:
    """The size of letter i after `place` steps from 0 or, if that is below its size in `base`, from
    the last multiple up to this size: with step 1 and place 13, 13 for base 5, 33 for base 20."""
    step = samples.multiples[i]
    return base[i] - base[i] % step + place * step if base[i] > place * step else place * step


def with_large_letter(
    samples: SizeSamples, base: Point, i: int, among: Point, sizes: Sequence[int]
) -> Point | None:
    """A copy of the point `among` (a tuple of sizes) with a large size of letter i: the first of
    `sizes`, times the letter's step, that is above the size in `base`, lies in the case, and at
    which the module runs within the allowed number of operations. In a case that bounds the letter
    by another letter, such as l <= k - 2, that letter is twice as large. None if there is none."""
    alone = [(size, samples.moved(among, i, size * samples.multiples[i])) for size in sizes]
    beside = [
        (size, samples.moved(point, j, 2 * size * samples.multiples[j]))
        for size, point in alone
        for j in samples.bound()
        if j != i
    ]
    for size, point in (*alone, *beside):
        place = size * samples.multiples[i]
        if place <= base[i] or point in samples.used or not samples.inside(point):
            continue
        if not samples.affordable(base, point):
            continue
        if samples.runs_or_notes(point):
            return point
    return None


def first_failures(
    samples: SizeSamples, polys: Mapping[Quantity, Poly], among: Sequence[Point]
) -> dict[Quantity, Break]:
    """A dict: quantity (part, kind) -> the failure of its formula (`polys`), at the first point of
    `among` at which the formula gives another number than the run, smallest sizes first; formulas
    that hold everywhere are left out."""
    found: dict[Quantity, Break] = {}
    for point in sorted(among, key=lambda p: (sum(p), p)):
        for quantity in [each for each in polys if each not in found]:
            if broken := failure_at(samples, polys[quantity], quantity, point):
                found[quantity] = broken
    return found


def failure_at(samples: SizeSamples, poly: Poly, quantity: Quantity, point: Point) -> Break | None:
    """The failure of a formula at a point; None if the formula holds."""
    sizes = samples.named(point)
    value, counted = poly.rational(sizes), samples.at(point).quantities.get(quantity, 0)
    return None if value == counted else Break(sizes, str(poly), str(value), counted)


def earliest_failure(
    samples: SizeSamples, poly: Poly, quantity: Quantity, base: Point, found: Break
) -> Break:
    """Search for a failure of a formula at smaller sizes than the failure `found`: along the first
    letter whose size in `found` suffices to break the formula with the others those of `base`, the
    smallest failing size by bisection; `found` if no letter alone breaks it."""
    for i, letter in enumerate(samples.letters):
        step, low, high = samples.multiples[i], base[i], found.sizes[letter]
        nearer = (
            failure_if_runs(samples, poly, quantity, samples.moved(base, i, high))
            if high > low
            else None
        )
        if nearer is None:
            continue
        while high - low > step:
            middle = low + (high - low) // (2 * step) * step
            if between := failure_if_runs(samples, poly, quantity, samples.moved(base, i, middle)):
                nearer, high = between, middle
            else:
                low = middle
        return nearer
    return found


def failure_if_runs(
    samples: SizeSamples, poly: Poly, quantity: Quantity, point: Point
) -> Break | None:
    """The failure of a formula at a point; None if the formula holds or the module does not run."""
    return failure_at(samples, poly, quantity, point) if samples.runs(point) else None


def lowest_sizes(samples: SizeSamples, polys: Mapping[Quantity, Poly], base: Point) -> Point:
    """Find the point (a tuple) of the least size of each letter from which formulas of operations
    and parameters hold, the other letters being those of `base`. Letters that the case bounds
    become smaller together, each other letter alone; if formulas fail where several letters have
    these sizes, all letters move halfway back to `base`. A formula that fails below becomes a
    note. If every formula holds down to 1, `base` (5, 3) gives (1, 1)."""
    # (part, name) -> failure: these fail already above `base`, and are sought again by cases
    wrong = first_failures(samples, polys, samples.above(base))
    kept = {q: p for q, p in polys.items() if q not in wrong and q[0] != "bytes"}
    least = list(base)
    bound = samples.bound()  # letters of the case's conditions: together, from `NEAR` down
    for near in range(NEAR if bound else 0, 0, -1):
        corner = [p for p in corner_points(samples, base, near) if samples.runs(p)]
        if broken := next(iter(first_failures(samples, kept, corner).values()), None):
            samples.notes.append(breaking_below(broken, "these sizes"))
            break
        for i in bound:
            least[i] = near * samples.multiples[i]
    for i, letter in enumerate(samples.letters):
        if i in bound:
            continue
        for place in range(base[i] - samples.multiples[i], 0, -samples.multiples[i]):
            point = samples.moved(base, i, place)
            if not samples.runs(point):
                break
            if broken := next(iter(first_failures(samples, kept, [point]).values()), None):
                samples.notes.append(breaking_below(broken, f"{letter}={least[i]}"))
                break
            least[i] = place
    failing = any(part != "bytes" for part, _ in wrong)  # then formulas are sought by cases
    while not failing and (broken := failure_at_corner(samples, kept, base, least)) is not None:
        for i, step in enumerate(samples.multiples):
            least[i] = base[i] - (base[i] - least[i]) // (2 * step) * step
        holding = listed_sizes(samples.named(tuple(least)))
        samples.notes[:] = [note for note in samples.notes if not note.startswith(HOLD_FROM)]
        samples.notes.append(breaking_below(broken, holding))
    return tuple(least)


def failure_at_corner(
    samples: SizeSamples, polys: Mapping[Quantity, Poly], base: Point, least: Sequence[int]
) -> Break | None:
    """Search for a failure of a formula where two letters, or all, have their least sizes; None if
    there is none. Each least size was found with the other letters at `base`, so that two small
    sizes together are untested."""
    lower = [i for i, x in enumerate(base) if least[i] < x]
    pairs = [p for p in (lower, *combinations(lower, 2)) if len(p) > 1]
    corners = [tuple(least[i] if i in p else x for i, x in enumerate(base)) for p in pairs]
    among = [point for point in dict.fromkeys(corners) if samples.inside(point)]
    return next(
        iter(first_failures(samples, polys, [p for p in among if samples.runs(p)]).values()), None
    )


NEAR = 6
"""Within a case, every combination of sizes up to this one is compared with the formulas."""


def corner_points(samples: SizeSamples, base: Point, near: int) -> Iterator[Point]:
    """Yield the smallest points (tuples of sizes) of the case of `samples`: each letter that the
    case bounds is `near` to `NEAR` times its step, and at least one of these is `near`; the other
    letters are those of `base`."""
    # 0 multiples stand for the size in `base`
    sizes = [range(near, NEAR + 1) if i in samples.bound() else (0,) for i in range(len(base))]
    for chosen in product(*sizes):
        if near in chosen:
            point = tuple(
                k * m or x for k, m, x in zip(chosen, samples.multiples, base, strict=True)
            )
            if samples.inside(point):
                yield point


HOLD_FROM = "the formulas hold from"
"""The beginning of the note that `breaking_below` writes."""


def breaking_below(broken: Break, least: str) -> str:
    """A note which says from which size on formulas hold, with the failure below."""
    return (
        f"{HOLD_FROM} {least} on: {broken.formula} gives {broken.gives} at "
        f"{listed_sizes(broken.sizes)}, where {broken.counted} was counted"
    )
