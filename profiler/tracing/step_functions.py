"""Finds the functions of one size, besides powers, on which counts depend.

The shapes of results reveal them: an extent that is no affine function of the size either steps up
with a period, like ceil(l/p), or is a power of two, a padded length. Counts are then polynomials in
the size and in such functions, its atoms; the logarithm of a padded length is an atom too.

Example: a module pads its length x to a multiple of 4. Results have an extent of 4, 4, 4, 4, 8 at
x = 1 to 5: it repeats with period 4, and the atom is floor((x + 3)/4). Padded to a power of two,
the extents are 1, 2, 4, 4, 8, and the atoms ceil(log2(x)) and 2**ceil(log2(x)). A *place* is a size
of the letter; extents are the lengths of one axis of one result at consecutive places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, reduce
from itertools import combinations_with_replacement, pairwise, product

import numpy as np
from numpy.typing import NDArray

from costmodel.symbolic.polynomial import Fn, Poly, call
from profiler.tracing.divisions import floors_in
from profiler.tracing.interpolation import Axis, Numbers, axis, spans
from profiler.tracing.meta_run.target import TraceError

LONGEST = 64
"""The longest period that is tried."""

WINDOWS = (24, 80, 2 * LONGEST + 12)
"""Numbers of consecutive sizes at which shapes are compared: few at first."""

BEYOND = (31, 41, 52, 57, 70, 83, 97, 131, 160, 191, 256, 257)
"""Steps from the start at which a set of functions is tested before it is accepted."""

FARTHER = (401, 701, 1103)
"""Multiples at which functions are tested too where a run is quick: many functions agree with each
other at small sizes."""

EVEN = (192, 224, 240)
"""Multiples at which functions, like powers, are tested too: most numbers by which a module may
divide a size, with special behaviour for remainder 0, divide one of these."""

MOST_ATOMS, DEGREES = 7, (1, 2, 3)
"""The most atoms of one size, and the degrees of polynomials in them that are tried."""

Extents = tuple[int, ...]


def axis_with_atoms(
    letter: str,
    step: int,
    start: int,
    numbers: Callable[[int], Numbers],
    without_bytes: Callable[[int], Numbers],
    shapes: Callable[[int], Sequence[tuple[int, ...]]],
    quick: Callable[[int], bool] = lambda place: True,
) -> Axis | None:
    """Search for a basis of functions of one size that gives all numbers of runs: powers and
    products with its atoms (step functions such as floor((x + 3)/4)); None if there is none.

    Args:
        letter, step, start: the size, the number whose multiples are tried, the first place.
        numbers: place -> every number; the basis gives them at about twelve places, and far ones.
        without_bytes: place -> the numbers without bytes, which the basis gives at every tried
            place.
        shapes: place -> the shapes of all results, which reveal atoms.
        quick: place -> whether a run is short enough for a test far along the size.
    """
    search = AtomSearch(letter, step, start, numbers, without_bytes, quick)
    for window in WINDOWS:
        places = [start + k * step for k in range(window)]
        for atoms in (search.seen_in(places, shapes), *search.guesses(window)):
            if atoms and (found := search.fitted(atoms, places)) is not None:
                return found
    return None


class AtomSearch:
    """The search for the atoms of one size, `letter`, from `start` in steps of `step`.

    Functions answer for a size: `numbers` gives every number of a run (operations, parameters,
    bytes), `without_bytes` these numbers without bytes; `quick` whether a run is short, `runs`
    whether the module runs. `row` keeps answers of `values`, `tests` of `tested_places`, `mixed` of
    `mixed_numbers`. `beyond`: far sizes, for tests; `tried`: the sets of atoms so far."""

    def __init__(
        self,
        letter: str,
        step: int,
        start: int,
        numbers: Callable[[int], Numbers],
        without_bytes: Callable[[int], Numbers],
        quick: Callable[[int], bool],
    ) -> None:
        """Begin a search without atoms; answers of all functions but `quick` are kept."""
        self.letter = letter
        self.size = Poly.atom(letter)
        self.step = step
        self.start = start
        self.beyond = [start + k * step for k in BEYOND]
        self.numbers = cache(numbers)
        self.without_bytes = cache(without_bytes)
        self.quick = quick
        self.runs = cache(self.runs_at)
        self.row = cache(self.values)
        self.tests = cache(self.tested_places)
        self.mixed = cache(mixed_numbers)
        self.tried: set[frozenset[Poly]] = set()

    def fitted(self, atoms: Sequence[Poly], places: Sequence[int]) -> Axis | None:
        """Search for the basis of polynomials in the size and the atoms (step functions such as
        floor((x + 3)/4)), of the lowest degree that gives every number of a run; None if no degree
        does, these atoms were tried before, there are too many, or the basis needs more sizes than
        `places`, or sizes at which the module fails. `places`: sizes at which to interpolate."""
        key = frozenset(atoms)
        if key in self.tried or len(atoms) > MOST_ATOMS:
            return None
        self.tried.add(key)
        # where every number is tested, and where the numbers without bytes are
        checks, each = self.tests(tuple(places))
        listed = ((self.numbers, checks), (self.without_bytes, each))

        def may_span(degree: int) -> bool:
            """A quick test modulo a prime; `spans` below tests in exact numbers."""
            for numbers, where in listed:
                known = np.array([self.row(atom, where) for atom in (self.size, *atoms)])
                if not in_span(monomial_values(known, degree), self.mixed(numbers, where)):
                    return False
            return True

        # what the highest degree does not span, no lower one does
        for degree in filter(may_span, DEGREES if may_span(DEGREES[-1]) else ()):
            powers = monomials([self.size, *atoms], degree)
            basis = axis(self.letter, powers, [*places, *self.beyond])
            if len(basis.places) > len(places) or not all(map(self.runs, basis.places)):
                return None
            if (
                spans(basis, checks, self.numbers)
                and spans(basis, each, self.without_bytes)
                and spans(basis, self.later_steps(atoms, degree), self.without_bytes)
            ):
                return replace(basis, others=tuple(self.reordered(atoms, degree, basis)))
        return None

    def later_steps(self, atoms: Sequence[Poly], degree: int) -> list[int]:
        """Places (sizes) at which atoms step, with both neighbours: `degree` + 4 steps per floor
        (1, 5, 9, ... of floor((x + 3)/4)) and `degree` + 2 powers of two, more than a polynomial of
        this degree fits by chance. Places where the module fails or is not quick are left out."""
        found: dict[int, None] = {}
        for floor in floors_in(atoms):
            # floor((x + c)/p) with c = `above`, p = `below` steps where p divides x + c
            above, below = (argument.rational({self.letter: 0}) for argument in floor.args)
            first = self.start + int(-(above + self.start) % below)
            found |= dict.fromkeys(first + k * int(below) for k in range(degree + 4))
        if any(
            isinstance(atom, Fn) and atom.function == "ceil_log2" for a in atoms for atom in a.atoms
        ):
            power = self.step << (self.start // self.step).bit_length()
            found |= dict.fromkeys(power << k for k in range(degree + 2))
        beside = dict.fromkeys(
            p for step in found for p in (step - self.step, step, step + self.step)
        )
        return [p for p in beside if p >= self.start and self.quick(p) and self.runs(p)]

    def tested_places(self, places: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Two tuples of places: first those at which every number is tested, some of `places` and
        far ones; then those at which the numbers without bytes are tested, all of the first and all
        of `places`. Bytes may differ at single places, where torch avoids a copy. Places where the
        module fails are left out."""
        even = [k * self.step for k in EVEN]
        farther = [k * self.step for k in FARTHER if self.quick(k * self.step)]
        some = [*self.beyond, *even, *farther, *places[:: max(1, len(places) // 12)]]
        checks = [p for p in dict.fromkeys(some) if p >= self.start and self.runs(p)]
        return tuple(checks), tuple(p for p in dict.fromkeys((*checks, *places)) if self.runs(p))

    def values(self, atom: Poly, places: Sequence[int]) -> NDArray[np.int64]:
        """The values of an atom (or of the size) at places, shape (places,)."""
        return np.array([atom.at({self.letter: p}) for p in places], dtype=np.int64)

    def reordered(self, atoms: Sequence[Poly], degree: int, basis: Axis) -> Iterator[Axis]:
        """Yield bases of the same space of functions, from the products in two other orders: a
        basis leaves out the later of dependent products, so each order may keep other ones. A basis
        that needs other places than `basis` is dropped."""
        for order in ([*atoms, self.size], [self.size, *atoms]):
            raw = monomials(order, degree, apart=True)
            other = axis(self.letter, raw, basis.places)
            if len(other.places) == len(basis.places) and other.places[0] == basis.places[0]:
                yield other

    def runs_at(self, place: int) -> bool:
        """Whether the module runs at a place; `runs` keeps the answer."""
        try:
            self.numbers(place)
        except TraceError:
            return False
        return True

    def seen_in(
        self, places: Sequence[int], shapes: Callable[[int], Sequence[tuple[int, ...]]]
    ) -> list[Poly]:
        """The atoms (step functions of the size) that the extents (lengths of axes) of all results
        reveal, whose shapes `shapes(place)` lists; [] if the module fails at one of `places`, or
        its results differ in number or rank between these."""
        try:
            listed = [shapes(place) for place in places]
        except TraceError:
            return []
        if len({tuple(map(len, made)) for made in listed}) > 1:
            return []
        extents = {
            values
            for results in zip(*listed, strict=True)
            for values in zip(*results, strict=True)
            if not rises_evenly(values)
        }
        found: dict[Poly, None] = {}
        for values in sorted(extents):
            for atom in self.atoms_of(values, places):
                found[atom] = None
        return list(found)

    def atoms_of(self, values: Extents, places: Sequence[int]) -> Iterator[Poly]:
        """Yield the atoms (step functions of the size) of one extent that is no affine function of
        the size, with the lengths `values` at `places`: the exponent of a padded length and the
        length, or the steps of the shortest period; nothing if the extent has neither."""
        for exponent in self.padded(values, places):
            yield exponent
            yield call("pow2", exponent)
            return
        for period in range(2, min(LONGEST, len(values) // 2) + 1):
            rises = {b - a for a, b in zip(values, values[period:], strict=False)}
            if len(rises) == 1:
                yield from self.steps(values, places, period)
                return

    def padded(self, values: Extents, places: Sequence[int]) -> Iterator[Poly]:
        """Yield the first atom ceil(log2(a x + c)), with a from 1 to 3 and c from -8 to 8, nearest
        to 0 first, such that a x + c >= 1 and all extents (lengths of one axis at `places`, values
        of x) are one factor (3, 1/2) times 2 to this power; nothing if there is none."""
        # every extent is to be `odd` times a power of two
        odd = values[0] // (values[0] & -values[0]) if values[0] else 0
        if not odd or any(v % odd or (v // odd) & (v // odd - 1) for v in values):
            return
        for a, c in product((1, 2, 3), sorted(range(-8, 9), key=abs)):
            if a * min(places) + c < 1:
                continue
            ratios = {  # in units of 2**-LONGEST, so that a fraction of the power stays exact
                v * (1 << LONGEST) // (1 << (a * x + c - 1).bit_length())
                for v, x in zip(values, places, strict=True)
            }
            if len(ratios) == 1:
                yield call("ceil_log2", self.size * a + c)
                return

    def steps(self, values: Extents, places: Sequence[int], period: int) -> Iterator[Poly]:
        """Yield one atom (a floor function) for each position within a period at which the extent
        (the length of an axis, `values` at `places`) rises otherwise than at most positions, whose
        rise is that of the size's affine part."""
        rises = [b - a for a, b in pairwise(values[: period + 1])]
        usual = max(set(rises), key=rises.count)
        for k, rise in enumerate(rises):
            if rise != usual:
                yield self.stepping(period, places[k + 1])

    def stepping(self, period: int, place: int) -> Poly:
        """floor((x + c)/p), which steps at x = place and every p from there: period 4 and place 5
        give floor((x + 3)/4). `period` counts steps of the letter, `place` is a size."""
        long = period * self.step
        return call("floor_div", self.size + (-place) % long, long)

    def guesses(self, window: int) -> Iterator[list[Poly]]:
        """Yield lists of atoms (step functions) to try if shapes reveal none, because different
        operations run at different sizes: a padded length; for each period up to half the window
        one or two steps; and for short periods, in the largest window, a step at every place of the
        period."""
        exponent = call("ceil_log2", self.size)
        yield [exponent, call("pow2", exponent)]
        for period in range(2, min(LONGEST, window // 2) + 1):
            above = self.stepping(period, self.step)  # ceil(x/p) - 1 of the steps
            below = self.stepping(period, 0)
            yield [above]
            yield [below]
            yield [above, below]
            if period < MOST_ATOMS and window == WINDOWS[-1]:
                yield [self.stepping(period, k * self.step) for k in range(period)]


PRIME = 2**31 - 1
"""A prime below 2**31: the product of two remainders fits into 64 bits."""


def mixed_numbers(numbers: Callable[[int], Numbers], places: tuple[int, ...]) -> NDArray[np.int64]:
    """One row, of shape (places,): at each place the sum of all numbers modulo `PRIME`, each
    number times a random factor of its own, the same at all places. Functions that do not span
    this row do not span all numbers."""
    listed = [*map(numbers, places)]
    names = dict.fromkeys(name for found in listed for name in found)
    drawn = np.random.default_rng(0).integers(1, PRIME, len(names), dtype=np.int64)
    total = np.zeros(len(places), dtype=np.int64)
    for factor, name in zip(drawn, names, strict=True):
        row = np.array([found.get(name, 0) % PRIME for found in listed], dtype=np.int64)
        total = (total + factor * row) % PRIME
    return total


def monomial_values(known: NDArray[np.int64], degree: int) -> NDArray[np.int64]:
    """Values modulo `PRIME` of every product of at most `degree` of the rows of `known`, shape
    (atoms, places): an array of shape (products, places)."""
    rows = [
        reduce(lambda a, b: a * b % PRIME, known[list(chosen)], np.ones_like(known[0]))
        for number in range(degree + 1)
        for chosen in combinations_with_replacement(range(len(known)), number)
    ]
    return np.array(rows)


def in_span(rows: NDArray[np.int64], wanted: NDArray[np.int64]) -> bool:
    """Whether the row `wanted` is a linear combination of `rows` modulo `PRIME`.

    >>> in_span(np.array([[1, 1, 1], [1, 2, 3]]), np.array([5, 7, 9]))
    True
    >>> in_span(np.array([[1, 1, 1], [1, 2, 3]]), np.array([1, 4, 9]))
    False
    """
    # Gaussian elimination: `wanted` is in the span if its row becomes 0
    left = np.vstack([rows, wanted]) % PRIME
    for k in range(len(rows)):
        places = np.flatnonzero(left[k])
        if len(places):
            at = places[0]
            factors = left[k + 1 :, at] * pow(int(left[k, at]), -1, PRIME) % PRIME
            left[k + 1 :] = (left[k + 1 :] - np.outer(factors, left[k]) % PRIME) % PRIME
    return not left[-1].any()


def rises_evenly(values: Extents) -> bool:
    """Whether consecutive values rise by equal amounts, as an affine function does."""
    return len({b - a for a, b in pairwise(values)}) <= 1


def monomials(atoms: Sequence[Poly], degree: int, *, apart: bool = False) -> list[Poly]:
    """Every product of at most `degree` atoms, short products first; with `apart`, products of
    equal length are sorted by their number of distinct atoms."""
    found: dict[Poly, None] = {}
    for number in range(degree + 1):
        listed = list(combinations_with_replacement(atoms, number))
        for chosen in sorted(listed, key=lambda c: len(set(c))) if apart else listed:
            term = Poly.of(1)
            for atom in chosen:
                term = term * atom
            found[term] = None
    return list(found)
