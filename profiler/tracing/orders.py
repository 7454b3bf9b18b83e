"""Formulas by cases of the sizes (one for l < w, one for l >= w), where no formula fits all sizes.

The sizes are split where the module's code tests them, where one size becomes larger than another,
where a formula starts to fail, or by whether one size divides another. Each case is traced
separately. If a module runs only at multiples of another size, it is traced over the quotient, and
its formulas are then written in the sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import combinations, permutations
from math import lcm

from costmodel.symbolic.constraints import Constraints, floor_div
from costmodel.symbolic.polynomial import Fn, Poly, call
from profiler.tracing.cases import ByCases, SizeCase, Traces
from profiler.tracing.divisions import (
    Division,
    asked_conditions,
    asked_formula,
    division_cases,
    floors_in,
    sizes_divided,
)
from profiler.tracing.meta_run.observe import PEAK, Quantity
from profiler.tracing.meta_run.target import Sizes, TraceError, Variables
from profiler.tracing.proof import HOLD_FROM
from profiler.tracing.result import Break, Cases, Trace, Value

MOST_TRACES = 16
"""The largest number of cases that are traced in search of formulas by cases. Each costs as much
as the trace of all sizes. Splits three deep take 2 + 4 + 8 = 14 traces, which leaves two for a
split that fails."""

DEPTH = 3
"""The largest number of splits one inside another: a module with two thresholds along one size, or
with one along each of two, needs two, and one more separates sizes by which is larger."""

FEW = 16
"""The largest starting size that is accepted without a split: fewer smaller sizes than this do not
suffice to find formulas for them."""

RULE_AT = "has sizes at which there is a rule for"
"""The words of a note on multiples of a letter at which every operation has a counting rule."""


def by_cases(trace: Trace) -> Trace:
    """Search formulas by cases: return a copy of the trace with formulas by cases where no formula
    fits all sizes, by the fewest splits of the sizes (one split: l < w and l >= w); the trace
    itself if no splits give a formula in each case. The peak and, in cases by quotient (l = C*q +
    r), the bytes may stay without a formula."""
    traces = Traces(trace)
    made = (solved(traces, trace, depth) for depth in range(DEPTH + 1))
    return next(filter(None, made), trace)


def solved(traces: Traces, trace: Trace, depth: int) -> Trace | None:
    """Search for a trace with a formula, or formulas by cases, for every quantity but the peak and,
    in cases by quotient (l = C*q + r), the bytes, by at most `depth` splits of the sizes, one
    inside another; None if there is none, or the search has made `MOST_TRACES` traces."""
    if not failures(trace) and not small_sizes(trace):
        return trace
    for cases in splits(trace, traces.everywhere.boundaries) if depth else ():
        parts: list[Trace] = []
        with suppress(TraceError, ByCases):
            for case in cases:
                if case not in traces.known and len(traces.known) > MOST_TRACES:
                    return None
                part = solved(traces, traces.at(case), 0 if case.divisions else depth - 1)
                if part is None or coarser(part, trace):  # no formulas, or not at all its sizes
                    break
                parts.append(part)
            if (
                parts
                and len(parts) == len(cases)
                and right_at_failures(trace, made := joined(trace, parts))
            ):
                return made
    return None


def coarser(part: Trace, trace: Trace) -> bool:
    """Whether the module runs only at some sizes of a case, such as multiples of 2, although the
    case and the whole trace `trace` have all sizes."""
    over = part.variables.over
    return any(n > lcm(over.get(x, 1), trace.steps.get(x, 1)) for x, n in part.steps.items())


def right_at_failures(trace: Trace, made: Trace) -> bool:
    """Whether the formulas by cases give the counted numbers at the sizes at which the formulas for
    all sizes failed; a quantity still without a formula is skipped."""
    for quantity, broken in failures(trace).items():
        value, sizes = made.quantities[quantity], trace.variables.sizes(broken.sizes)
        if not isinstance(value, Break) and value.rational(sizes) != broken.counted:
            return False
    return True


def failures(trace: Trace) -> dict[Quantity, Break]:
    """The quantities without a formula; the peak, a maximum, does not divide sizes into cases."""
    return {quantity: broken for quantity, broken in trace.broken.items() if quantity != PEAK}


def small_sizes(trace: Trace) -> dict[str, int]:
    """A dict: letter -> the size from which formulas hold, for letters whose formulas fail at more
    than `FEW` smaller sizes, or, for a quotient or remainder (q, r in l = C*q + r), at 1."""
    quotients = {letter for division in trace.divisions for letter in division.letters}
    few = {x: 1 if x in quotients else FEW * trace.steps.get(x, 1) for x in trace.since}
    return {x: n for x, n in trace.since.items() if n > few[x]}


def splits(trace: Trace, tested: Iterable[Poly]) -> Iterator[Sequence[SizeCase]]:
    """Yield ways to split the sizes of a trace into disjoint cases that cover them, in this order:
    by a condition that the code tests (here, or `tested` in other cases), by which of two sizes is
    larger, by whether one size divides another, by the size at which a formula fails. A tested
    condition counts if it separates the first sizes (`first`) from some that are `failing`."""
    failing = [trace.variables.sizes(broken.sizes) for broken in failures(trace).values()]
    first = trace.variables.sizes(trace.base)
    # letter -> the size from which formulas hold: smaller sizes count as failing
    later = small_sizes(trace)
    failing += [first | {x: n - 1} for x, n in later.items()]
    first |= later
    letters = [*trace.variables.over]
    sizes = [Poly.atom(x) for x in letters]
    places = [
        Poly.atom(x) - n
        for x in letters
        for n in {*(at[x] for at in failing), *([later[x]] if x in later else [])}
    ]

    def separating(polys: Iterable[Poly]) -> list[Poly]:
        """The polynomials that are negative at the first sizes and not where some formula fails, or
        the reverse; those without floors before the others."""
        apart = {
            poly
            for poly in polys
            if any((poly.rational(first) < 0) != (poly.rational(at) < 0) for at in failing)
        }
        return sorted(apart, key=lambda poly: (len(floors_in([poly])), str(poly)))

    def by_sign(polys: Iterable[Poly]) -> Iterator[Sequence[SizeCase]]:
        """Two cases for each polynomial: it is at least 0, or negative."""
        for poly in polys:
            yield [SizeCase(trace.region | {case}) for case in (poly, -poly - 1)]

    yield from by_sign(separating((*trace.boundaries, *tested)))
    yield from by_sign(y - x for x, y in combinations(sizes, 2))
    for size, divisor in permutations(letters, 2):
        floors = floors_in([floor_div(Poly.atom(size), Poly.atom(divisor))])
        with suppress(TraceError):
            made = division_cases(trace.region, trace.variables, floors)
            yield [SizeCase(region, () if one is None else (one,)) for region, one in made]
    yield from by_sign(separating(places))


def joined(trace: Trace, parts: Sequence[Trace]) -> Trace:
    """Join traces: a copy of `trace`, the trace of all sizes, with the formulas of `parts`, the
    traces of its cases. A quantity has one formula if all cases have the same, `Cases` if they
    differ, and the value in `trace` if some case has none. Notes and doubts (reasons why formulas
    may fail elsewhere) are those of all, without those that cases resolve."""
    quantities: dict[Quantity, Value] = dict(trace.quantities)
    for quantity in dict.fromkeys(name for part in (trace, *parts) for name in part.quantities):
        if quantity[0] == "bytes" and any(part.divisions for part in parts):
            continue  # bytes of small quotients are not tried
        pieces = [piece for part in parts for piece in pieces_of(part, quantity)]
        known = tuple((region, poly) for region, poly in pieces if isinstance(poly, Poly))
        if len(known) == len(pieces):
            one = len({poly for _, poly in known}) == 1
            quantities[quantity] = known[0][1] if one else Cases(known)
    since = {x: max(least_size(x, part) for part in parts) for x in trace.since}
    notes = [n for n in trace.notes if not n.startswith(HOLD_FROM)]
    if max(since.values()) > 1:
        notes += [n for part in parts for n in part.notes if n.startswith(HOLD_FROM)]
    if not any(q[0].endswith(" calls") and isinstance(v, Break) for q, v in quantities.items()):
        notes = [n for n in notes if RULE_AT not in n]
    return replace(
        trace,
        quantities=quantities,
        proven=[*trace.proven, *(point for part in parts for point in part.proven)],
        since=since,
        base={x: first_size(x, parts, n) for x, n in trace.base.items()},
        doubts=tuple(dict.fromkeys(d for one in (trace, *parts) for d in one.doubts)),
        notes=tuple(dict.fromkeys(notes)),
    )


def pieces_of(part: Trace, quantity: Quantity) -> Iterator[tuple[Constraints, Poly | Break]]:
    """Yield (conditions, formula) of a quantity for each case within a traced case, in the sizes of
    the user; a `Break` (sizes at which the best formula fails) stands for a missing formula."""
    value = part.quantities.get(quantity, Poly())
    for region, poly in value.pieces if isinstance(value, Cases) else ((part.region, value),):
        asked = poly if isinstance(poly, Break) else asked_formula(poly, part.divisions)
        yield asked_conditions(region, part.divisions), asked


def least_size(letter: str, part: Trace) -> int:
    """The size of a letter from which the formulas of a case hold; 1 if no multiple of the letter's
    step is smaller, so that they hold in the whole case."""
    least = part.since.get(letter, 1)
    return 1 if least <= part.steps.get(letter, 1) else least


def first_size(letter: str, parts: Sequence[Trace], otherwise: int) -> int:
    """The size of a letter from which formulas of bytes hold in all cases: the largest first traced
    size among cases that contain smaller sizes of the letter, or the smallest of all first sizes if
    no case contains smaller ones. `otherwise` stands for a case without the letter."""
    free, bound = list[int](), list[int]()
    for part in parts:
        first = part.base.get(letter, otherwise)
        below = {letter: first - part.steps.get(letter, 1)}
        alone = (poly for poly in part.region if poly.letters == {letter})
        least = any(poly.rational(below) < 0 for poly in alone)
        (bound if least else free).append(first)
    return max(free) if free else min(bound)


class OnlyDivided(TraceError):
    """The module runs only if `size` is a multiple of another size, `divisor`."""

    def __init__(self, reason: str, size: str, divisor: str) -> None:
        super().__init__(reason)
        self.size, self.divisor = size, divisor


def of_multiples(trace: Trace, sizes: Variables, division: Division, refused: OnlyDivided) -> Trace:
    """Rewrite `trace`, over the quotient of two sizes (`division`), as a trace over the sizes
    themselves (`sizes`): with l = w*q, formulas in w and q become formulas in l and w, and points
    (w=2, q=3) become (l=6, w=2). Formulas hold where `refused.size` (l) is a multiple of
    `refused.divisor` (w)."""
    inner = sizes_divided(sizes, (division,))

    def asked(point: Sizes) -> dict[str, int]:
        """A point with the quotient as a point of the sizes themselves."""
        every = inner.sizes(point)
        return {letter: every[letter] for letter in sizes.over}

    def poly(value: Value) -> Value:
        return without_quotient(value, division) if isinstance(value, Poly) else value

    flops = trace.flops
    if flops is not None:
        own = {x: size for x, size in flops.sizes.items() if x != division.quotient}
        flops = replace(flops, sizes=own)
    size, divisor = refused.size, refused.divisor
    return replace(
        trace,
        variables=sizes,
        quantities={quantity: poly(value) for quantity, value in trace.quantities.items()},
        fitted=[asked(point) for point in trace.fitted],
        since=asked(trace.since),
        base=asked(trace.base),
        peak_sizes=asked(trace.peak_sizes),
        steps={x: trace.steps.get(x, 1) for x in sizes.over},
        multiple_of={size: divisor},
        divisions=(),
        flops=flops,
        notes=(
            f"{size} runs over multiples of {divisor}; at other sizes the module fails: {refused}",
            *trace.notes,
        ),
        followed=lambda: replace(
            trace.zeros, formulas={name: poly(p) for name, p in trace.zeros.formulas.items()}
        ),
    )


def without_quotient(poly: Poly, division: Division) -> Poly:
    """A polynomial without the letter of the quotient, with the same value wherever the size is a
    multiple of its divisor: each product quotient * divisor becomes the size, and any other
    quotient a floor. With l = C*q, q*C**2 + q becomes C*l + floor(l/C)."""
    (divisor,) = division.divisor.letters
    total = Poly()
    for monomial, number in poly.terms.items():
        powers = dict(monomial)
        both = min(powers.get(division.quotient, 0), powers.get(divisor, 0))
        term = Poly.of(number) * Poly.atom(division.size) ** both
        for atom, power in monomial:
            if isinstance(atom, Fn):
                inner = call(atom.function, *(without_quotient(p, division) for p in atom.args))
                term = term * inner**power
            elif atom in (division.quotient, divisor):
                base = division.floor if atom == division.quotient else Poly.atom(atom)
                term = term * base ** (power - both)
            else:
                term = term * Poly.atom(atom) ** power
        total = total + term
    return total
