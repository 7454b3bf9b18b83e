"""Finds sizes at which a module may behave differently, from the conditions that its code tests.

Every condition that a run tests is followed along each letter to the sizes at which it changes. The
module is run at these sizes and their neighbours, and the conditions tested there are followed in
turn. Each condition is also written as a polynomial in the letters, whose sign separates the sizes
into cases.

Example: at (l, w) = (5, 3) a module tests l < 1024. Along l the condition changes at 1024, so the
module is run at 1023, 1024 and 1025, each with w = 3. A *point* is such a tuple of sizes, one per
letter; k *steps* along letter i add k * multiples[i] to its size. *Guards* are the conditions that
one run tests, sympy expressions in torch's symbols (s0) of the axes of inputs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import reduce
from itertools import islice, pairwise
from math import floor
from operator import mul
from typing import Any

from sympy import Function, Integer, Max, Min
from torch.utils._sympy.functions import FloorDiv, Mod, PythonMod

from costmodel.symbolic.constraints import floor_div, nonnegative
from costmodel.symbolic.polynomial import Poly, by_text
from profiler.tracing.interpolation import Point
from profiler.tracing.meta_run.size_guards import Condition, SizeGuards, size_guards
from profiler.tracing.meta_run.target import TraceError, listed_sizes
from profiler.tracing.size_samples import SizeSamples

FARTHEST = 2**24
"""The largest size that is searched for."""

LONGEST = 2**12
"""The largest divisor whose multiples are searched for."""

RUNS = 12
"""The largest number of points whose conditions are followed."""

STEPS = 4
"""The largest number of constants per size whose comparisons are followed: l < 64, l < 128, ..."""

FOLLOWED = (Max, Min, FloorDiv, Mod, PythonMod)
"""Functions in conditions that can be followed."""


def run_breakpoints(samples: SizeSamples, base: Point) -> list[Point]:
    """Run the module at the sizes at which conditions of its code (l < 1024) change along each
    letter, and at their neighbours; return the points (tuples of sizes, one per letter) at which
    the module runs. The search starts at the point `base`; `samples` keeps every run. Conditions
    that may be missed (with a function outside `FOLLOWED`, beyond `RUNS` points, of a size with
    more than `STEPS` constants) become doubts: reasons why formulas may fail elsewhere."""
    found: dict[Point, None] = {}
    followed: Counter[Any] = Counter()  # how often each of the `condition_keys` was followed
    waiting = [base]  # grows by a point of each branch that is found
    for here in waiting:
        if waiting.index(here) == RUNS:  # the number of points that were followed before
            samples.doubt("the module tests too many conditions on its sizes to follow them all")
            break
        guards = conditions_at(samples, here)
        for condition in guards.conditions:
            holds, place = condition.holds, condition.place
            key, kind = condition_keys(holds)
            if key in followed:
                continue
            followed.update({key, kind})
            among = in_every_letter(samples, here, guards, condition, untracked(samples, guards))
            samples.boundaries |= dict.fromkeys(among)
            if holds.atoms(Function) - holds.atoms(*FOLLOWED):
                samples.doubt(
                    f"the module tests a condition of an unknown kind on its sizes {place}"
                )
            elif followed[kind] > STEPS:
                samples.doubt(f"the module compares a size with ever more numbers {place}")
                continue
            for i, letter in enumerate(samples.letters):
                along = Along(holds, guards, letter)
                for k in along.changes():
                    changed = [
                        samples.moved(here, i, here[i] + steps * samples.multiples[i])
                        for steps in (k - 1, k, k + 1)
                    ]
                    ran = [point for point in changed if _ran(samples, base, point)]
                    found.update(dict.fromkeys(ran))
                    # The condition holds at `here`. The first point at which it fails takes the
                    # other branch, whose conditions are followed in turn.
                    other = changed[2 if along.at(holds, k) else 1]
                    waiting += [p for p in ran if p == other and p not in waiting]
    return list(found)


def run_edges(samples: SizeSamples, base: Point) -> list[Point]:
    """Run the module at the last sizes along each letter at which the conditions of a case hold
    (for l <= 2*w at w = 3: at l = 6); return the points (tuples of sizes) at which the module runs.
    The conditions are `samples.region`, polynomials that are at least 0 in the case; the other
    letters keep their sizes in `base`."""
    found: dict[Point, None] = {}
    for condition in by_text(samples.region):
        for i, step in enumerate(samples.multiples):
            if slope := samples.slope(condition, i):
                # the condition's value at `base` falls by |slope| * step per step, to at least 0
                above = Fraction(condition.rational(samples.named(base)))
                steps = floor(above / abs(Fraction(slope) * step))
                place = base[i] - (steps if slope > 0 else -steps) * step
                found[samples.moved(base, i, place)] = None
    return [point for point in found if min(point) > 0 and _ran(samples, base, point)]


def _ran(samples: SizeSamples, base: Point, point: Point) -> bool:
    """Whether the module runs at a point (a tuple of sizes). False outside the case; False with a
    doubt (a reason why formulas may fail elsewhere) if a run is expected to take too long, judged
    by the run at `base`; False with a note for the user if the module fails."""
    if not samples.inside(point):
        return False
    if point not in samples.seen and not samples.affordable(base, point):
        at = listed_sizes(samples.named(point))
        samples.doubt(f"a condition on sizes changes at {at}, where a run takes too long")
        return False
    return samples.runs_or_notes(point)


def conditions_at(samples: SizeSamples, point: Point) -> SizeGuards:
    """The conditions that a run at a point tests, found once per point."""
    if point not in samples.guards:
        samples.guards[point] = _conditions_at(samples, point)
    return samples.guards[point]


def _conditions_at(samples: SizeSamples, point: Point) -> SizeGuards:
    """Run the module at a point (a tuple of sizes), and return the conditions on sizes that its
    code tests, such as l < 64; none if the module cannot be built at the point or with a letter one
    step larger. Tests that cannot be followed become doubts."""
    sizes = samples.variables.sizes
    try:
        further = {
            letter: sizes(samples.named(samples.moved(point, i, point[i] + samples.multiples[i])))
            for i, letter in enumerate(samples.letters)
        }
        found = size_guards(samples.target, sizes(samples.named(point)), further)
    except TraceError:
        return SizeGuards()
    for doubt in found.doubts:
        samples.doubt(doubt)
    return found


UNTRACKED = 2
"""The largest number of letters whose part in a condition is found by runs at other sizes. Each
letter takes three sizes, so two letters take 3 * 3 = 9 sizes for each condition."""


def untracked(samples: SizeSamples, guards: SizeGuards) -> tuple[int, ...]:
    """The positions of the letters that occur in a run's conditions (`guards`) as plain numbers,
    because no axis of an input tracks them: a width on which the shapes of weights depend. () if
    there are more than `UNTRACKED`, no axis is tracked, or runs are slow."""
    followed = {letter for axis in guards.axes.values() for letter in axis.slopes}
    left = tuple(i for i, letter in enumerate(samples.letters) if letter not in followed)
    return left if len(left) <= UNTRACKED and guards.axes and not samples.slow else ()


def in_every_letter(
    samples: SizeSamples,
    here: Point,
    guards: SizeGuards,
    condition: Condition,
    letters: Sequence[int],
) -> list[Poly]:
    """The boundaries of a condition (polynomials whose sign decides it), as polynomials in the
    untracked `letters` too (positions of sizes that the code uses as plain numbers). A boundary
    that is linear at three sizes of a letter is extended along this letter; any other boundary
    keeps the numbers that it has at `here`.

    Example: a module of width d tests l*d > 1000. At d = 3, 4 and 5 the boundaries are 3*l - 1001,
    4*l - 1001 and 5*l - 1001, so the boundary in both letters is d*l - 1001.
    """
    if not letters:
        return list(boundaries(samples, here, condition.holds, guards))
    *others, i = letters
    number, step = guards.conditions.index(condition), samples.multiples[i]
    found: list[list[Poly]] = []
    for k in range(3):
        there = samples.moved(here, i, here[i] + k * step)
        beside = guards if not k else conditions_at(samples, there)
        same = beside.conditions[number : number + 1]
        if not same or same[0].origin != condition.origin:
            break
        found.append(in_every_letter(samples, there, beside, same[0], others))
    if len(found) < 3 or len({*map(len, found)}) > 1:
        return found[0]
    more = Poly.atom(samples.letters[i]) - here[i]
    return [  # the line through the first two sizes, if the third lies on it
        one + (two - one) * Fraction(1, step) * more if three - two == two - one else one
        for one, two, three in zip(*found, strict=True)
    ]


def boundaries(
    samples: SizeSamples, here: Point, condition: Any, guards: SizeGuards
) -> Iterator[Poly]:
    """Yield polynomials whose signs decide a condition that the run at the point `here` tests:
    sizes at which each polynomial has the same sign (negative, or at least 0) give the condition
    the same value. Nothing for a condition that does not compare polynomials, or that is an
    equation without floors, as torch records of a size taken as a number (l == 5).

    Example: l < w gives l - w, and l != w gives both l - w - 1 and l - w.
    """
    if not condition.is_Relational or (condition.is_Equality and not condition.atoms(Function)):
        return
    known: dict[Any, Poly] = {}
    for symbol, axis in guards.axes.items():
        known[symbol] = Poly.of(axis.size)
        for letter, place, step in zip(samples.letters, here, samples.multiples, strict=True):
            growth = Fraction(axis.slopes.get(letter, 0), step)
            known[symbol] += (Poly.atom(letter) - place) * growth
    left, right = (polynomial(side, known) for side in (condition.lhs, condition.rhs))
    if left is None or right is None:
        return
    apart = left - right
    if condition.rel_op in (">", "<=", "==", "!="):
        yield apart - 1
    if condition.rel_op in (">=", "<", "==", "!="):
        yield apart


def polynomial(expression: Any, known: Mapping[Any, Poly]) -> Poly | None:
    """A sympy expression as a polynomial, with floors for divisions and remainders (s0 // 2 as
    floor(l/2)); None if the expression has another function, a divisor that may be below 1, or a
    symbol that `known` (symbol -> polynomial in the letters) lacks."""
    if expression.is_Integer:
        return Poly.of(int(expression))
    if expression.is_Symbol:
        return known.get(expression)
    parts = [polynomial(part, known) for part in expression.args]
    made = [part for part in parts if part is not None]
    if not parts or len(made) < len(parts):
        return None
    first, *others = made
    if expression.is_Add:
        return sum(others, first)
    if expression.is_Pow and isinstance(power := others[0].constant(), int) and power > 0:
        return first**power
    if expression.is_Mul:
        return reduce(mul, others, first)
    if isinstance(expression, FloorDiv | Mod | PythonMod) and nonnegative(others[0] - 1):
        whole = floor_div(*made)
        return whole if isinstance(expression, FloorDiv) else first - whole * others[0]
    return None


def condition_keys(condition: Any) -> tuple[Any, Any]:
    """Two keys of a condition (a sympy expression), by which conditions are recognised as already
    followed: the first is equal for all comparisons of the same two sides (l < 64, l >= 64), the
    second also for comparisons that differ in the constant alone (l < 64, l < 128)."""
    if not condition.is_Relational:
        return condition, ("kind", condition)
    apart = condition.lhs - condition.rhs
    key = min(apart, -apart, key=str)
    return key, ("kind", key - key.as_coeff_Add()[0])


class Along:
    """A condition on sizes, as a function of the number of steps by which one letter is larger;
    `sizes`: symbol of the condition -> (its size, by how much a step enlarges the size)."""

    def __init__(self, condition: Any, guards: SizeGuards, letter: str) -> None:
        """Keep the condition, and `sizes` for steps along one `letter`."""
        self.condition = condition
        self.sizes = {
            symbol: (axis.size, axis.slopes.get(letter, 0))
            for symbol, axis in guards.axes.items()
            if symbol in condition.free_symbols
        }

    def at(self, expression: Any, k: int) -> Any:
        """The value of an expression with the letter k steps larger."""
        at = {symbol: Integer(size + k * more) for symbol, (size, more) in self.sizes.items()}
        return expression.xreplace(at)

    def changes(self) -> Iterator[int]:
        """Yield numbers of steps along the letter at which the two sides of the condition change
        their order, or at which a division leaves no remainder; nothing if no size grows with the
        letter."""
        if not any(more for _, more in self.sizes.values()):
            return
        # numbers of steps; a change of order is searched for between two neighbours
        places = [2**power for power in range(FARTHEST.bit_length())]
        if divisions := self.condition.atoms(Mod, PythonMod):
            places = [k for division in divisions for k in self._period(*division.args)]
            yield from places[2::3]  # the last of the three numbers of each `_period`
        if self.condition.is_Relational:
            yield from self._crossings(self.condition.lhs - self.condition.rhs, places)

    def _crossings(self, apart: Any, places: Sequence[int]) -> Iterator[int]:
        """Yield numbers of steps along the letter at which the difference `apart` of two sides of a
        condition has a new sign, by bisection; at most one between two neighbours of `places`."""

        def sign(k: int) -> int:
            value = self.at(apart, k)
            return int(bool(value > 0)) - int(bool(value < 0))

        for low, high in pairwise(places):
            if sign(low) == sign(high):
                continue
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if sign(middle) == sign(low) else (low, middle)
            yield high

    def _period(self, dividend: Any, divisor: Any) -> Iterator[int]:
        """Yield the steps beside which a remainder may change: 1, k - 1 and k, for the first number
        k of steps at which the divisor divides the dividend (for l % 4 at l = 5: 1, 2 and 3);
        nothing if there is none, or unless the divisor is a number from 2 to `LONGEST`."""
        if not divisor.is_Integer or not 1 < divisor <= LONGEST:
            return
        start, then = (int(self.at(dividend, k)) for k in (0, 1))
        whole = (k for k in range(1, divisor + 1) if (start + k * (then - start)) % divisor == 0)
        for k in islice(whole, 1):
            yield from (1, k - 1, k)
