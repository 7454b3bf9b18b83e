"""Finds the formulas of a module's cost from runs at a few sizes, and proves them at others.

Words: a *letter* is the name of a size in `over`; a *point* has one size per letter, and `base` is
the point of the first sizes; a *step* of a letter is the number whose multiples are tried. *Powers*
are the functions 1, x, x**2, ... of a letter x, *atoms* functions such as ceil(x/8)
(`step_functions.py`). A *case* is the set of sizes at which the polynomials of a `region` are at
least 0. *Patience* is the most operations that a run is expected to take. Example: over l and d the
search starts at (5, 3), finds the powers 1, l and l**2 along l at d = 3, those along d at l = 5,
and then the products of both that counts need.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from itertools import islice, permutations, product
from math import ceil, lcm
from typing import Any

from costmodel.symbolic.constraints import Constraints, nonnegative
from costmodel.symbolic.polynomial import Poly, by_text
from costmodel.symbolic.printing import conditions_words
from profiler.counting.rules import nominal_words
from profiler.tracing import step_functions
from profiler.tracing.divisions import (
    Division,
    Divisions,
    floors_in,
    formula_of_poly,
    sizes_divided,
)
from profiler.tracing.interpolation import (
    HIGHEST,
    Axis,
    Point,
    axis,
    degree_along,
    powers_up_to,
    shortest_formulas,
    spans,
)
from profiler.tracing.meta_run.flop_counter import FlopCounter, flop_counter
from profiler.tracing.meta_run.fused import BACKENDS
from profiler.tracing.meta_run.observe import BYTES, MADE, PEAK, Observation, Quantity, beside_meta
from profiler.tracing.meta_run.target import (
    GRADS,
    MODES,
    Sizes,
    Target,
    TraceError,
    Variables,
    listed_sizes,
    load_target,
    parameters_of,
    parse_variables,
)
from profiler.tracing.orders import FEW, RULE_AT, OnlyDivided, by_cases, of_multiples
from profiler.tracing.peak import peak_formula
from profiler.tracing.proof import earliest_failure, first_failures, held_out, lowest_sizes
from profiler.tracing.repeated_blocks import NotStraight, samples_by_blocks
from profiler.tracing.result import Break, Trace, ZeroArithmetic
from profiler.tracing.size_samples import PATIENCE, Effort, OutOfRuns, SizeSamples
from profiler.tracing.step_functions import EVEN, WINDOWS
from profiler.tracing.zero_gradients import zero_arithmetic

SMALLEST = (5, 3, 2, 7, 4, 6)
"""The first size of each letter, in order: small and distinct."""

SCALES = (1, 4, 16, 64)
"""Factors of the smallest sizes, tried in turn until the module runs."""

FINE = (1, 2, 4, 8, 16, 32, 64)
"""`SCALES` for sizes that are written by quotients."""

PRODUCTS = (72, 100, 120, 132, 156, 168)
"""Further factors of the smallest sizes, tried if the module runs at none of `SCALES`: products of
the primes up to 13, among which are multiples of most numbers of heads, groups or parts of a
size (5, 7, 9, 14, 20, 25, 28, 40)."""

DIVIDED = PATIENCE / 4
"""The largest expected number of operations of a run if sizes are written by quotients, which
gives many cases."""

MULTIPLES = range(1, 65)
"""If the module does not run at every size of a letter, multiples of these are tried."""

RULED = (2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
"""Multiples of a letter at which every operation may have a counting rule."""

ONE_OF_MANY = 1 / 3
"""The part of the patience for each of several runs far along one letter, so that a few of them
together take as long as one run of the proof."""

SOUGHT = 10**3
"""How many sizes of a letter are tested for lying in the case: sizes of a case may be far apart,
formulas need only the first few, and the test takes no run."""

FAR = (9, 27, 60, 97)
"""Steps from the start at which powers of a size are tested before acceptance."""

REPEATS = 5
"""The number of runs at the first sizes, if runs are quick, to detect random behaviour."""

POWERS, ATOMS = "powers", "atoms"
LATER = (
    (POWERS, 0), (ATOMS, 0), (POWERS, 32), (POWERS, 128), (POWERS, 512), (ATOMS, 32), (ATOMS, 128)
)  # fmt: skip
"""Kinds of functions along a letter to try, in turn, each with the number of steps after the base
at which the first size lies: small sizes may be a separate case."""


def trace(
    target: str | Callable[..., Any],
    *,
    over: str | Sequence[str],
    let: str | Sequence[str] | Mapping[str, str] = (),
    backend: str = "math",
    grad: str | None = None,
    mode: str | None = None,
    memory: bool = True,
    cases: bool = True,
) -> Trace:
    """Count a module symbolically: formulas of all its costs, in the sizes `over`.

    Args:
        target: `package.module:factory`, `path/file.py:Class`, or the factory itself. The factory
            is called with the sizes that its parameters name, and returns a module, or a pair of a
            module and its inputs: a tensor, a tuple of arguments or a dict of them by name. Without
            inputs x is (b, l, d).
        over: the letters of the formulas, `l,h,n`; `h:2` tries multiples of 2 alone.
        let: sizes that follow from these letters, `d=n*h`.
        backend: `math`, torch's own decompositions; `fused`, attention, recurrent cells and norms
            as one operation each.
        grad: which gradients the backward pass computes: of `parameters`, `inputs` or `both`;
            `none` traces the forward pass alone; None follows `requires_grad`, which only a factory
            sets for inputs. Frozen parameters never have a gradient.
        mode: `train` or `eval`; None for the mode in which the module is made.
        memory: whether formulas of bytes (saved for the backward pass, alive at the peak) are
            sought; without them the trace takes less time, and has no bytes.
        cases: whether formulas by cases are sought where no formula fits all sizes. A comparison
            with equations that count by cases splits the sizes itself.

    Raises:
        TraceError: an option or letter is unknown, the module cannot be found, built or run on the
            meta device, or no formulas are found in `MOST_RUNS` runs; one sentence.
    """
    for option, chosen, known in (
        ("backend", backend, BACKENDS),
        ("grad", "both" if grad is None else grad, GRADS),
        ("mode", "train" if mode is None else mode, MODES),
    ):
        if chosen not in known:
            raise TraceError(f"--{option} '{chosen}': expected one of {', '.join(known)}")
    asked = replace(load_target(target), grad=grad, mode=mode)
    sizes = parse_variables(over, let, parameters_of(asked))
    effort = Effort()
    case = partial(trace_case, asked, sizes, backend, memory=memory, effort=effort)
    try:
        found = case(frozenset())
        found = by_cases(found) if cases else found
    except OnlyDivided as refused:  # traced over the quotient of both sizes instead
        division = Division(refused.size, Poly.atom(refused.divisor), 0)
        if sizes.over[refused.size] != 1:
            raise
        try:
            divided = case(frozenset(), (division,))
        except TraceError as error:
            raise (error if effort.stopped else refused) from None
        found = of_multiples(divided, sizes, division, refused)
    if effort.stopped and found.broken:
        found = replace(found, notes=(*found.notes, effort.words(found.target)))
    return found


def trace_case(
    target: Target,
    sizes: Variables,
    backend: str,
    region: Constraints,
    divisions: Divisions = (),
    *,
    memory: bool = True,
    effort: Effort | None = None,
) -> Trace:
    """Trace a module at the sizes of one case: find formulas of its operations, parameters and,
    with `memory`, bytes. `effort` counts the runs of all cases. `region` holds the conditions of
    the case, polynomials that are at least 0 (none for all sizes); each of `divisions` writes a
    size by its quotient, l = C*q + r. Raises TraceError: the module cannot be built or run on the
    meta device, the case has too few sizes to find formulas from, or all cases took `MOST_RUNS`."""
    effort = effort or Effort()
    # without the case's equations, such as l = w, whose letters follow from the others
    left, chosen = pinned(region, sizes_divided(sizes, divisions))
    patience = DIVIDED if divisions else PATIENCE
    samples = SizeSamples(
        target, chosen, BACKENDS[backend], left, patience, memory=memory, effort=effort
    )
    try:
        found = by_blocks(samples, backend, divided=bool(divisions))
        found = found or FormulaSearch(samples, backend, divided=bool(divisions)).traced()
    except OutOfRuns:
        raise TraceError(effort.words(target.name)) from None
    everywhere = map(chosen.sizes, found.proven)
    return replace(
        found,
        proven=[{letter: every[letter] for letter in sizes.over} for every in everywhere],
        region=region,
        divisions=divisions,
        within=partial(trace_case, target, sizes, backend, memory=memory, effort=effort),
    )


def by_blocks(samples: SizeSamples, backend: str, *, divided: bool) -> Trace | None:
    """Trace a module of many equal blocks, from runs with fewer blocks; None if the module has no
    such blocks, or the whole does not follow from these runs. `divided`: sizes are quotients."""
    starts = FormulaSearch(samples, backend, divided=divided).starts()
    if (deep := samples_by_blocks(samples, starts)) is not None:
        with suppress(NotStraight, TraceError):
            return deep.proven(FormulaSearch(deep, backend, divided=divided).traced())
    return None


def pinned(region: Constraints, sizes: Variables) -> tuple[Constraints, Variables]:
    """Solve the equations in a case (`region`), and return the conditions and sizes that are left.

    In l - w = 0 (l - w and w - l are both conditions) w determines l: l moves from `over` to the
    front of `let`, since later formulas may hold l, and w replaces l in the conditions. Conditions
    that then always hold are dropped. A letter of which the case has only multiples of n gets the
    step n. A letter with a step moves only if it equals another letter, which gets the step too: of
    l = w in steps of 4 and 6, w stays, in steps of 12."""
    for condition in by_text(region):
        for letter, multiple in sorted(sizes.over.items(), key=lambda each: each[1]):
            if (number := whole_divisor(condition, letter)) is not None:
                over = {**sizes.over, letter: lcm(multiple, number)}
                return pinned(region - {condition}, Variables(over, sizes.let))
            # slope * letter + rest = 0, with a slope of 1 or -1, gives letter = -slope * rest
            slope = condition.terms.get(((letter, 1),))
            value = Poly.atom(letter) - condition * (slope or 0)
            if slope not in (1, -1) or letter in value.letters or -condition not in region:
                continue
            over = {name: step for name, step in sizes.over.items() if name != letter}
            if multiple > 1:
                other = next((name for name in over if value == Poly.atom(name)), None)
                if other is None:
                    continue
                over[other] = lcm(over[other], multiple)
            moved = (c.substitute({letter: value}) for c in region)
            left = frozenset(c for c in moved if not nonnegative(c))
            return pinned(left, Variables(over, {letter: formula_of_poly(value), **sizes.let}))
    return region, sizes


def whole_divisor(condition: Poly, letter: str) -> int | None:
    """The number n of a condition n*floor(letter/n) >= letter, which holds exactly at multiples of
    n; None for other conditions."""
    for floor in floors_in([condition]):
        above, below = floor.args
        number = below.constant()
        if isinstance(number, int) and above == Poly.atom(letter):
            return number if condition == Poly.atom(floor) * number - above else None
    return None


def none_larger(point: Point, base: Point) -> bool:
    """Whether no size of `point` is larger than the same size of `base`."""
    return all(x <= y for x, y in zip(point, base, strict=True))


def corners(start: Point, room: Sequence[int]) -> Iterator[Point]:
    """The corners of a box of sizes: letter i is start[i] or start[i] + room[i]."""
    return product(*({x, x + more} for x, more in zip(start, room, strict=True)))


def changed_operation(one: Observation, other: Observation) -> str:
    """Words on an operation whose number of calls differs in two runs at equal sizes, or ""."""
    before, after = Counter(one.names), Counter(other.names)
    for name in [*before, *after]:
        if before[name] != after[name]:
            phase, operation = name.split(" ", 1)
            return f"{phase} {before[name]} times {operation}, then {after[name]}"
    return ""


def counted_at(samples: SizeSamples, quantities: Mapping[Quantity, Poly | Break]) -> Iterator[str]:
    """Yield notes on operations without a formula that have a counting rule at multiples of a
    letter, though not at all sizes: each note begins with the value of --over that counts them,
    such as `--over l:8`. The multiple must have been run at three points at least."""
    listed: dict[str, dict[str, None]] = {}
    for (part, name), value in quantities.items():
        if not (part.endswith(" calls") and isinstance(value, Break)):
            continue
        operation = name.split(": ")[0]  # without the reason
        for i, letter in enumerate(samples.letters):
            for m in RULED:
                reached = [seen for point, seen in samples.seen.items() if point[i] % m == 0]
                if len(reached) > 2 and not any((part, name) in s.quantities for s in reached):
                    listed.setdefault(f"{letter}:{m}", {})[operation] = None
                    break
    for over, operations in listed.items():
        yield f"--over {over} {RULE_AT} {', '.join(operations)}"


def observation_notes(seen: Observation, batch: str) -> Iterator[str]:
    """Yield notes on layers that run differently on the meta device, or misread the axes of x;
    `batch` is the first axis of x in words, "b" or "1"."""
    if seen.misread:
        yield (
            f"batch_first is False in {', '.join(sorted(seen.misread))}: x ({batch}, l, d) is read "
            f"as l sequences of length {batch}"
        )
    if seen.stepped:
        yield (
            f"counted step by step, as on the meta device: {', '.join(sorted(seen.stepped))}; a "
            f"CPU runs all steps in one operation and holds other bytes"
        )


def flops_at(samples: SizeSamples, sizes: Sizes) -> FlopCounter:
    """The figures of FlopCounterMode for a module at one set of sizes, run by torch's own
    decompositions whatever the trace's backend; TraceError if the module does not run there. Those
    of a module of many equal blocks follow from runs with fewer blocks (`samples.targets`)."""
    runs = [flop_counter(target, sizes, BACKENDS["math"]) for target in samples.targets]
    return replace(
        runs[0],
        printed=samples.joined_counts([run.printed for run in runs]),
        products=samples.joined_counts([run.products for run in runs]),
        left_out=samples.joined_counts([run.left_out for run in runs]),
        ungrouped=samples.joined_counts([run.ungrouped for run in runs]),
        total=samples.joined([run.total for run in runs]),
    )


class FormulaSearch:
    """The search for the formulas of one module.

    With `thorough`, powers are also sought along a second line per letter, on which the other
    letters are larger, and all products of powers are tried. If `divided`, sizes are written by
    quotients, l = C*q: they grow as products of letters, so the letters start small. `room` is the
    number of steps above the start that must lie in the case. `samples` runs the module and keeps
    its runs; `breakpoints` are points at which conditions that it tests change, and neighbours.
    """

    def __init__(self, samples: SizeSamples, backend: str, *, divided: bool) -> None:
        """Begin a search; `scales`: factors of the smallest sizes, tried until the module runs."""
        self.samples = samples
        self.backend = backend
        self.divided = divided
        self.scales: tuple[int, ...] = FINE if divided else SCALES
        self.room = HIGHEST + 2 if divided else WINDOWS[0]
        self.thorough = False
        self.breakpoints: list[Point] = []

    def traced(self) -> Trace:
        """Search the formulas and return the trace. If a formula fails, a thorough search follows,
        whose trace is returned if fewer of its formulas fail."""
        found = self.attempt()
        if found.broken:
            # Terms of opposite sign may cancel along one line.
            self.thorough = True
            self.samples.notes.clear()
            self.samples.doubts.clear()
            self.samples.used.clear()
            second = self.attempt()
            found = second if len(second.broken) < len(found.broken) else found
        return found

    def attempt(self) -> Trace:
        """Make one search and return its trace: find the first sizes (`base`), the functions along
        each letter (`axes`), the polynomials in all letters (`polys`, (part, name) -> formula), the
        least sizes from which they hold (`least`), and test them at other sizes (`proven`).

        Raises:
            OnlyDivided: the module runs only if one size is a multiple of another.
            TraceError: the module runs at too few sizes to find formulas from.
        """
        from profiler.tracing.breakpoints import run_breakpoints, run_edges  # loads sympy

        samples = self.samples
        base = self.at_multiples(self.base())
        self.breakpoints = []
        if not self.divided:
            self.breakpoints = [*run_breakpoints(samples, base), *run_edges(samples, base)]
        base, axes = self.axes(base)
        polys = shortest_formulas(axes, samples.numbers, whole=self.thorough)
        proven = held_out(samples, base)
        least = lowest_sizes(samples, polys, base)
        # a quantity without a polynomial was 0 at all points from which formulas were found
        every = {q: polys.get(q, Poly()) for seen in samples.seen.values() for q in seen.quantities}
        every.pop(MADE, None)  # shows which powers the live bytes need, and is no cost
        work = {q: p for q, p in every.items() if q[0] != BYTES}
        memory: dict[Quantity, Poly] = {}
        if samples.memory:
            memory = {q: p for q, p in every.items() if q[0] == BYTES}
            memory[PEAK] = peak_formula(samples, axes, samples.above(base))
        broken = first_failures(samples, work, samples.above(least))
        broken |= first_failures(samples, memory, samples.above(base))
        quantities: dict[Quantity, Poly | Break] = {**work, **memory}
        for quantity, first in broken.items():
            poly = (work | memory)[quantity]
            quantities[quantity] = earliest_failure(samples, poly, quantity, base, first)
        held = [p for p in samples.above(least) if none_larger(p, base)]  # from `least` to `base`
        fitted = set(product(*(a.places for a in axes)))
        proven += (beside := [point for point in self.breakpoints if point not in fitted])
        followed = partial(zero_arithmetic, samples, axes, held, proven, whole=self.thorough)
        samples.used.difference_update(beside)  # a breakpoint outside the grid is part of the proof
        return self.result(base, least, quantities, proven, followed)

    def result(
        self,
        base: Point,
        least: Point,
        quantities: Mapping[Quantity, Poly | Break],
        proven: Sequence[Point],
        followed: Callable[[], ZeroArithmetic],
    ) -> Trace:
        """Put the trace together: the record of the formulas, with its notes.

        Args:
            base, least: the first sizes; of each letter, the least size from which formulas hold.
            quantities: (part, name) -> formula, or how it fails.
            proven: the points at which formulas were tested.
            followed: when first asked, counts operations on zeros that pad gradients (of slices).
        """
        samples, first = self.samples, self.samples.at(base)
        sizes = samples.variables.sizes(samples.named(base))
        notes = [*samples.notes, *observation_notes(first, "b" if "b" in sizes else "1")]
        notes += counted_at(samples, quantities)
        counted = [name for (_, name), operation in first.by_op.items() if operation.known]
        notes += filter(None, [nominal_words(counted)])
        flops: FlopCounter | None = None
        try:
            flops = flops_at(samples, sizes)
        except TraceError as error:
            notes.append(str(error))
        return Trace(
            target=samples.target.name,
            backend=self.backend,
            variables=samples.variables,
            quantities=quantities,
            fitted=[samples.named(p) for p in samples.seen if p in samples.used],
            proven=[samples.named(p) for p in proven],
            since=samples.named(least),
            base=samples.named(base),
            boundaries=tuple(samples.boundaries),
            doubts=tuple(samples.doubts),
            notes=tuple(notes),
            decomposed=tuple(sorted(first.decomposed)),
            followed=followed,
            sample=first.by_op,
            at_peak=first.at_peak,
            peak_sizes=samples.named(base),
            flops=flops,
            differentiated=first.differentiated,
            grad=samples.target.grad,
            modes=first.modes,
            memory=samples.memory,
            steps=dict(zip(samples.letters, samples.multiples, strict=True)),
            within=partial(
                trace_case,
                samples.target,
                samples.variables,
                self.backend,
                memory=samples.memory,
                effort=samples.effort,
            ),
        )

    def base(self) -> Point:
        """The first point (a tuple of sizes) at which the module runs, small sizes tried first.

        Raises:
            OnlyDivided: the module runs only if one size is a multiple of another.
            TraceError: the module runs at no small sizes, or the case (`samples.region`) has too
                few of them.
        """
        first: TraceError | None = None
        for point in self.starts():
            try:
                self.check_repeatable(point)
            except TraceError as error:
                first = first or error
            else:
                return point
        if first is None:
            raise TraceError(
                f"{self.samples.target.name}: no formulas where "
                f"{conditions_words(self.samples.region)}, which holds for fewer than the "
                f"{HIGHEST + 3} consecutive small sizes of each letter that a trace needs; "
                "`costmodel profile` counts the module at single sizes"
            )
        if (pair := self.dividing()) is not None:
            raise OnlyDivided(str(first), *pair) from first
        sizes = self.samples.variables.sizes(self.samples.named(next(self.starts())))
        elsewhere = beside_meta(self.samples.target, sizes) or self.multiples_words()
        raise TraceError(f"{first}{elsewhere}") from first

    def multiples_words(self) -> str:
        """The words to append to the error of a module that runs at none of the points tried: the
        last point in lexicographic order, and how --over asks for the multiples of a number."""
        samples = self.samples
        largest = listed_sizes(samples.named(max(samples.refused)))
        over = ",".join(samples.letters)
        return (
            f"; the module fails at each of {len(samples.refused)} sizes tried, up to {largest}: "
            f"if the module needs multiples of a number, name the number, as in --over {over}:17"
        )

    def dividing(self) -> tuple[str, str] | None:
        """A pair of letters (size, divisor) such that the module runs at a point where the size of
        the first is a multiple of the second's; None if there is none."""
        samples = self.samples
        for i, j in permutations(range(len(samples.letters)), 2):
            start = tuple(SMALLEST[k % len(SMALLEST)] for k in range(len(samples.letters)))
            with suppress(TraceError):
                samples.at(samples.moved(start, i, start[i] * start[j]))
                return samples.letters[i], samples.letters[j]
        return None

    def starts(self) -> Iterator[Point]:
        """Yield points (tuples of sizes) at which the search may start, smallest first: the sizes
        `SMALLEST` with all letters scaled alike or, in a case (a set of sizes given by conditions),
        each bounded letter (one that a condition of the case limits) separately and raised into the
        case, so that the next sizes of every bounded letter lie in the case too: `room` of them,
        then fewer. If the module runs at none of these points, the points of `PRODUCTS` at which it
        runs follow, each with its letters lowered. Over l, d: (5, 3), (20, 12)."""
        samples = self.samples
        bound, rooms = samples.bound(), dict.fromkeys((self.room, HIGHEST + 2))
        for most in rooms if samples.region else (0,):
            room = [most * m if i in bound else 0 for i, m in enumerate(samples.multiples)]
            for start in self.scaled(bound, room):
                if all(map(samples.inside, corners(start, room))):
                    yield start
        # reached if the module runs at none of the points above
        for scale in PRODUCTS:
            start = tuple(x * scale for x in self.smallest)
            if all(map(samples.inside, corners(start, room))) and samples.runs(start):
                yield self.lowered(start, scale, room)

    @property
    def smallest(self) -> Point:
        """The smallest size of each letter, a multiple of the letter's step."""
        return tuple(SMALLEST[i % len(SMALLEST)] * m for i, m in enumerate(self.samples.multiples))

    def lowered(self, start: Point, scale: int, room: Sequence[int]) -> Point:
        """The point `start` (the smallest sizes times `scale`, at which the module runs) with each
        letter in turn lowered to its smallest size times the least divisor of `scale` with which
        the module runs, and with `room` above the letter in the case. For a module of 5 heads over
        l and d, (500, 300), which is (5, 3) times 100, is lowered to (5, 15)."""
        samples = self.samples
        for i, least in enumerate(self.smallest):
            for factor in (k for k in range(1, scale) if scale % k == 0):
                point = samples.moved(start, i, least * factor)
                if all(map(samples.inside, corners(point, room))) and samples.runs(point):
                    start = point
                    break
        return start

    def scaled(self, bound: Sequence[int], room: Sequence[int]) -> Iterator[Point]:
        """Yield the smallest sizes with each letter of `bound` scaled separately and all other
        letters alike, and each of these points raised into the case (with `room` above it), in
        ascending order of the sum of the sizes. The points are made one after another, since their
        number grows exponentially with the number of letters."""
        smallest = self.smallest
        others = tuple(i for i in range(len(smallest)) if i not in bound)
        groups: list[Point] = [*((i,) for i in bound), others]

        def point(scales: Sequence[int]) -> Point:
            of = {i: scale for group, scale in zip(groups, scales, strict=True) for i in group}
            return tuple(x * self.scales[of[i]] for i, x in enumerate(smallest))

        # `scales`: of each group the index of its scale; () of a raised point
        first = (0,) * len(groups)
        waiting: list[tuple[int, Point, Point]] = [(sum(point(first)), point(first), first)]
        made, given = {first}, set[Point]()
        while waiting:
            _, start, scales = heappop(waiting)
            if start not in given:
                given.add(start)
                yield start
            if not scales:
                continue
            raised = self.raised(start, room)
            heappush(waiting, (sum(raised), raised, ()))
            for k, scale in enumerate(scales):
                more = (*scales[:k], scale + 1, *scales[k + 1 :])
                if groups[k] and scale + 1 < len(self.scales) and more not in made:
                    made.add(more)
                    heappush(waiting, (sum(point(more)), point(more), more))

    def raised(self, start: Point, room: Sequence[int]) -> Point:
        """The point `start` with letters raised: per condition of the case the first letter with
        which it grows, until the condition holds at all sizes up to `room` above the point. For
        l - n - 2 >= 0, l = 1, n = 1 and a room of 3 for both, l becomes 6."""
        samples = self.samples
        for condition in by_text(samples.region):
            for i, step in enumerate(samples.multiples):
                if (slope := samples.slope(condition, i)) > 0:
                    ends = map(samples.named, corners(start, room))
                    missing = -min(condition.rational(end) for end in ends)
                    more = max(0, ceil(missing / slope / step)) * step
                    start = samples.moved(start, i, start[i] + more)
                    break
        return start

    def check_repeatable(self, point: Point) -> None:
        """Run the module repeatedly at a point (a tuple of sizes), check that it does the same each
        time, and keep the last observation.

        The first call in a process keeps some results longer than later calls, so the bytes of the
        first run are neither compared nor kept. Raises TraceError: the module does not run there,
        or runs dispatch different operations."""
        samples = self.samples
        runs: list[Observation] = []
        while len(runs) < 2 or (len(runs) < REPEATS and not samples.slow):
            samples.seen.pop(point, None)
            runs.append(samples.at(point))
            if changed := changed_operation(runs[0], runs[-1]):
                raise TraceError(
                    f"{samples.target.name} cannot be traced: at "
                    f"{listed_sizes(samples.named(point))} the module does something else each "
                    f"time it runs: {changed}: trace a version without random choices"
                )

    def at_multiples(self, base: Point) -> Point:
        """The base (the point of the first sizes), moved letter by letter to a multiple of one of
        `MULTIPLES`, the first such that the module runs at three consecutive multiples; the steps
        `samples.multiples` become these multiples, and a note says why a multiple was needed.
        Raises TraceError: no multiple of a letter serves, or the sizes of the case have gaps."""
        samples = self.samples
        for i, letter in enumerate(samples.letters):
            reason: TraceError | None = None
            for multiple in MULTIPLES:
                step = samples.multiples[i] * multiple
                start = -(-base[i] // step) * step
                places = [samples.moved(base, i, start + k * step) for k in range(3)]
                if not all(map(samples.inside, places)):
                    raise TraceError(
                        f"{samples.target.name}: where {conditions_words(samples.region)}, the "
                        f"values of {letter} have gaps, so that no formula is sought; `costmodel "
                        "profile` counts the module at single sizes"
                    )
                if all(map(samples.runs, places)):
                    break
                reason = reason or next(samples.refused[p] for p in places if p in samples.refused)
            else:
                assert reason is not None
                raise TraceError(
                    f"{reason}; the module runs at {listed_sizes(samples.named(base))}, and no "
                    f"step of {letter} up to {MULTIPLES[-1]} gives three sizes in a row at "
                    "which the module runs: if the module needs multiples of a larger number, name "
                    f"the number, as in --over {letter}:100"
                )
            if reason is not None:
                samples.notes.append(
                    f"{letter} runs over multiples of {step}; at other sizes the module fails: "
                    f"{reason}"
                )
            samples.multiples[i], base = step, samples.moved(base, i, start)
        return base

    def axes(self, base: Point) -> tuple[Point, list[Axis]]:
        """The base and, for each letter, the functions of the letter (an `Axis`) whose linear
        combinations give all counts along it. Where the counts follow such functions from a larger
        size on alone, the base moves up to that size, once per letter (a letter that has moved
        tries only powers and atoms that hold from the base on), and the search starts again."""
        moved: set[int] = set()
        while True:
            axes: list[Axis] = []
            for i in range(len(base)):
                found = self.axis(base, i, LATER[:2] if i in moved else LATER)
                if found.places[0] != base[i]:
                    base = self.samples.moved(base, i, found.places[0])
                    moved.add(i)
                    break
                axes.append(found)
            else:
                return base, axes

    def axis(self, base: Point, i: int, kinds: Sequence[tuple[str, int]]) -> Axis:
        """A basis of functions of letter i (with interpolation places), of which every number of a
        run is a combination along the letter, of the first of `kinds` that has some: powers (1, l,
        l**2, ...) or atoms (step functions such as ceil(l/8)), with the number of steps above the
        base from which they hold. The trial of `kinds` ends where a condition of the code has
        changed since the base, or where the size from which functions hold depends on other
        letters. If none has some, powers that hold as long as the code's conditions have the same
        value as at the base; else the powers up to 3, whose formulas the proof then finds to fail.
        Raises TraceError: the module fails at a size next to the base."""
        letter, step = self.samples.letters[i], self.samples.multiples[i]
        ways = {POWERS: self.powers_from, ATOMS: self.atoms_from}
        for way, later in kinds:
            start = base[i] + later * step
            if later and not self.unchanged_until(base, i, start):
                break
            if later and way == ATOMS and not self.quick(base, i, start):
                continue
            try:
                found = ways[way](base, i, start)
            except TraceError:
                if not later:
                    raise
                continue
            if found is not None and later and self.depends(base, i, start):
                break
            if found is not None:
                return found
        if (found := self.powers_from(base, i, base[i], one_case=True)) is not None:
            return found
        return axis(letter, powers_up_to(letter, 3), [base[i] + k * step for k in range(4)])

    def one_case(self, point: Point, other: Point, conditions: Iterable[Poly]) -> bool:
        """Whether each condition is negative at both points, or at least 0 at both."""
        one, two = map(self.samples.named, (point, other))
        return all((c.rational(one) < 0) == (c.rational(two) < 0) for c in conditions)

    def depends(self, base: Point, i: int, start: int) -> bool:
        """Whether the size of letter i from which formulas hold depends on other letters: whether
        no powers are found from `start` on with every other letter larger too, three steps more
        than `start` has, or runs there fail or would take too long. False if there is no other
        letter."""
        samples = self.samples
        steps = start // samples.multiples[i] + 3
        others = tuple(max(x, steps * m) for x, m in zip(base, samples.multiples, strict=True))
        if len(base) == 1 or not samples.affordable(base, others, ONE_OF_MANY):
            return len(base) > 1

        def along(place: int) -> dict[Quantity, int]:
            return samples.numbers(samples.moved(others, i, place))

        places = [start + k * samples.multiples[i] for k in range(HIGHEST + 3)]
        try:
            return degree_along(samples.letters[i], places, along) is None
        except TraceError:
            return True

    def unchanged_until(self, base: Point, i: int, start: int) -> bool:
        """Whether no condition on sizes that the module's code tests changes between the base and
        the size `start` of letter i. Conditions on letter i alone may change within the first `FEW`
        sizes from the base on."""
        samples, boundaries = self.samples, self.samples.boundaries
        near = min(start, base[i] + FEW * samples.multiples[i])
        alone = [c for c in boundaries if len(c.letters) == 1]
        others = [c for c in boundaries if len(c.letters) > 1]
        there = samples.moved(base, i, start)
        return self.one_case(base, there, others) and self.one_case(
            samples.moved(base, i, near), there, alone
        )

    def quick(self, base: Point, i: int, start: int) -> bool:
        """Whether the runs that atoms need, from the size `start` of letter i on, fit together into
        the allowed number of operations; False in a case."""
        samples = self.samples  # up to WINDOWS[-1] runs
        return not samples.region and samples.affordable(
            base, samples.moved(base, i, start), 1 / WINDOWS[-1]
        )

    def atoms_from(self, base: Point, i: int, start: int) -> Axis | None:
        """A basis of products of the size of letter i and its atoms (step functions such as
        ceil(l/8)), of which every number of a run is a combination from the size `start` on; None
        if there are none. Bytes may differ at single sizes, where torch avoids a copy."""
        samples = self.samples

        def along(place: int) -> dict[Quantity, int]:
            return samples.numbers(samples.moved(base, i, place))

        return step_functions.axis_with_atoms(
            samples.letters[i],
            samples.multiples[i],
            start,
            along,
            lambda place: {q: n for q, n in along(place).items() if q[0] != BYTES},
            lambda place: samples.at(samples.moved(base, i, place), shapes=True).shapes,
            lambda place: samples.affordable(base, samples.moved(base, i, place), ONE_OF_MANY),
        )

    def powers_from(
        self, base: Point, i: int, start: int, *, one_case: bool = False
    ) -> Axis | None:
        """A basis of the powers 1, x, x**2, ... of the size x of letter i, of which every number of
        a run (operations, bytes) is a combination from the size `start` on, the other letters as in
        `base`; None if the powers of no tried degree suffice, also at sizes that were not fitted.
        With `one_case` only sizes count at which the conditions of the code have the same values as
        at the base. A `place` is a size of letter i."""
        samples, letter, step = self.samples, self.samples.letters[i], self.samples.multiples[i]
        # a second line along the letter, on which the other letters are larger
        other = tuple(x + (3 + k) * samples.multiples[k] for k, x in enumerate(base))

        def along(place: int) -> dict[Quantity, int]:
            return samples.numbers(samples.moved(base, i, place))

        def elsewhere(place: int) -> dict[Quantity, int]:
            return samples.numbers(samples.moved(other, i, place))

        lean = samples.slow and not self.thorough  # as few runs as possible
        everywhere = (start + k * step for k in range(SOUGHT))
        tested = samples.boundaries if one_case else ()

        def inside(place: int) -> bool:
            point = samples.moved(base, i, place)
            return samples.inside(point) and self.one_case(base, point, tested)

        places = list(islice(filter(inside, everywhere), HIGHEST + 3))
        degree = degree_along(letter, places, along, beyond=1 if lean else 2)
        if degree is None:
            return None
        if self.thorough and (second := degree_along(letter, places, elsewhere)):
            degree = max(degree, second)
        found = axis(letter, powers_up_to(letter, degree), places)
        if lean:
            seen = [place for place in places if samples.moved(base, i, place) in samples.seen]
            return found if spans(found, seen, along) else None
        checks = places[:6]
        far = [start + k * step for k in (FAR[::3] if samples.slow else FAR)]
        # sizes on this line at which a condition of the code changes
        breaks = [p[i] for p in self.breakpoints if samples.moved(p, i, base[i]) == base]
        later = [place for place in (*(k * step for k in EVEN), *breaks) if place > start]
        for place in [*far, *later]:
            point = samples.moved(base, i, place)
            if (
                inside(place)
                and samples.affordable(base, point, ONE_OF_MANY)
                and samples.runs(point)
            ):
                checks.append(place)
        return found if spans(found, checks, along) else None
