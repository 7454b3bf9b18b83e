"""What lies between a traced module and a mixer's equations, and which switches name it?

The equations' formula is subtracted from the traced one, class by class, as polynomials. The
equations are then counted again under every form and every set of the ladder's switches: those that
leave the least unexplained are the causes, one switch turned at a time. What a backward pass does
with zeros that fill gradients up is a cause of its own, counted of the module.

Where the equations count by cases (l < w, l >= w), the module is traced anew at sizes of each case,
and subtracted there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from costmodel.composites import OF_GRADIENTS, PADDINGS, REWRITES
from costmodel.constraints import (
    Constraints,
    Unsupported,
    implied,
    infeasible,
    irredundant,
    nonnegative,
)
from costmodel.equations import Mixer
from costmodel.exact import Exact
from costmodel.load import mixer as load_mixer
from costmodel.phases import Unanswered
from costmodel.polynomial import Poly
from costmodel.rules.count import count
from costmodel.rules.printing import conditions_words
from profiler.counters.zeros import MEANING
from profiler.tracing.halves import by_halves
from profiler.tracing.result import Trace
from profiler.tracing.target import TraceError

Classes = dict[str, Poly]


@dataclass(frozen=True)
class Cause:
    """A switch, and what the equations count more under it, by class."""

    name: str
    meaning: str
    counts: Classes


@dataclass(frozen=True)
class Difference:
    """A module's forward or backward pass less a mixer's equations.

    `difference` is the whole of it by class; `causes` are re-counts of the equations under named
    switches and, of a backward pass, what it does with zeros that fill gradients up; `unexplained`
    is what stays when all of them are turned, empty where nothing does.
    """

    mixer: str
    phase: str
    form: str
    equations: Classes
    difference: Classes
    causes: tuple[Cause, ...]
    unexplained: Classes
    reason: str = ""
    """Why the pass is not compared; empty where it is."""
    notes: tuple[str, ...] = ()
    """Which causes were not looked for, and why."""
    region: Constraints = frozenset()
    """The case of the sizes, each of these being at least 0; none where there is one case."""
    proven: Sequence[Mapping[str, int]] = ()
    """The sizes of the case at which the module was held against its formulas."""

    @property
    def explained(self) -> bool:
        """Whether the switches name all of the difference."""
        return not (self.reason or self.unexplained)

    @property
    def case(self) -> str:
        """The case in words; "" where there is one."""
        return conditions_words(self.region)


class ByCases(Exception):
    """The equations count by cases at the sizes of a trace; `regions` are disjoint and cover it."""

    def __init__(self, regions: Sequence[Constraints]) -> None:
        super().__init__(" or ".join(map(conditions_words, regions)))
        self.regions = regions


SETTLED = 2
"""From these sizes on a module is compared: one row alone is a case of its own for a recurrence."""
PHASES: Mapping[str, str] = {"forward": "training", "backward": "backward"}
"""What a trace calls a pass -> the phase of the equations."""


def against(found: Trace, name: str | Mixer, phase: str = "forward") -> Difference:
    """Subtract a mixer's equations from a traced pass, symbolically, and name the rest.

    Raises:
        UnknownMixer: no such mixer.
        TraceError: the trace has no formula, or the equations have sizes that it lacks.
        ByCases: the equations count by cases; `passes` compares each.
    """
    mixer = load_mixer(name)
    listed = ", ".join(dict.fromkeys(u.name for u in found.uncounted if u.phase == phase))
    if listed:
        raise TraceError(
            f"{found.target} cannot be held against {mixer.name}: no counting rule for {listed}"
        )
    plain = counted(mixer, mixer.default_form, (), found, phase)
    traced: Classes = {}
    for class_, poly in found.classes(phase).items():
        if not isinstance(poly, Poly):
            for form in mixer.forms:  # what has no formula may have one in each case of a form
                counted(mixer, form, (), found, phase)
            raise TraceError(f"{found.target}: {class_}: {poly}")
        if poly.terms:
            traced[class_] = poly
    filled, notes = zeros(found) if phase == "backward" else ({}, ())
    form, rewrites = nearest(mixer, found, phase, minus(traced, filled))
    current, causes = plain, []
    for cause, meaning, inner in steps(mixer, form, rewrites):
        after = counted(mixer, form, inner, found, phase)
        causes.append(Cause(cause, meaning, minus(after, current)))
        current = after
    causes.append(Cause("zeros", MEANING, filled))
    return Difference(
        mixer.name,
        phase,
        form,
        plain,
        minus(traced, plain),
        tuple(c for c in causes if c.counts),
        minus(minus(traced, current), filled),
        notes=notes,
        region=found.region,
        proven=found.proven if found.region else (),
    )


def zeros(found: Trace) -> tuple[Classes, tuple[str, ...]]:
    """The part of a backward pass that is arithmetic with zeros which fill gradients up, and why
    some of it is not known."""
    try:
        followed = found.zeros
    except TraceError as error:
        return {}, (f"zeros that fill gradients up are not told apart: {error}",)
    broken = {name: poly for name, poly in followed.items() if not isinstance(poly, Poly)}
    notes = tuple(f"zeros that fill gradients up: {name}: {why}" for name, why in broken.items())
    return {name: poly for name, poly in followed.items() if isinstance(poly, Poly)}, notes


def passes(found: Trace, name: str | Mixer) -> list[Difference]:
    """The differences of the forward and of the backward pass, each by cases where the equations
    count so; what cannot be compared says why.

    Raises:
        UnknownMixer, TraceError: as `against` for the forward pass at all sizes.
    """
    mixer = load_mixer(name)
    traces: dict[Constraints, Trace | TraceError] = {frozenset(): found}
    return [one for phase in PHASES for one in by_case(traces, mixer, phase)]


def by_case(
    traces: dict[Constraints, Trace | TraceError], mixer: Mixer, phase: str
) -> Iterator[Difference]:
    """The differences of one pass, case by case; `traces` holds those of the cases that were met,
    and of all sizes."""
    waiting: list[Constraints] = [frozenset()]
    taken: set[Constraints] = set()
    while waiting:
        region = waiting.pop(0)
        if region not in taken and (lines := thin(region)) != [region]:
            taken.add(region)
            waiting = [*lines, *waiting]
            continue
        try:
            yield against(in_case(traces, region), mixer, phase)
        except ByCases as cases:
            waiting = [*cases.regions, *waiting]
        except (TraceError, Unsupported) as error:
            if not region and phase == "forward":
                raise
            yield Difference(
                mixer.name, phase, "", {}, {}, (), {}, reason=str(error), region=region
            )


NARROW = 2
"""A case in which a condition exceeds 0 by no more than this is taken apart."""


def thin(region: Constraints) -> list[Constraints]:
    """The lines of a narrow case, on each of which a condition has one value; a case that is wide,
    or a line already, as it is."""
    for condition in sorted(region, key=str):
        if -condition in region:
            continue
        for most in range(NARROW + 1):
            if implied(region, Poly.of(most) - condition):
                lines = (line(region - {condition}, condition - n) for n in range(most + 1))
                return [one for one in lines if not infeasible(one)]
    return [region]


def line(region: Constraints, zero: Poly) -> Constraints:
    """The sizes of a case at which a polynomial is 0, without conditions that follow."""
    equation = frozenset((zero, -zero))
    for condition in sorted(region, key=str):
        if implied(region - {condition} | equation, condition):
            region = region - {condition}
    return region | equation


def in_case(traces: dict[Constraints, Trace | TraceError], region: Constraints) -> Trace:
    """The trace of a case, made when it is first asked for; TraceError where there is none."""
    if region not in traces:
        everywhere = traces[frozenset()]
        assert isinstance(everywhere, Trace)
        try:
            traces[region] = everywhere.within(region)
        except TraceError as error:
            traces[region] = error
    if isinstance(known := traces[region], TraceError):
        raise known
    return known


def nearest(mixer: Mixer, found: Trace, phase: str, traced: Classes) -> tuple[str, tuple[str, ...]]:
    """The form and the rewrites that leave the least unexplained, few rather than many.

    A backward pass is that of the forward pass that ran: it has the form and the rewrites of that
    one, or a form that counts the same forward, and the rewrites that concern gradients alone, each
    of which leaves less than without it.
    """
    if phase == "backward":
        return following(mixer, found, traced)
    choices = [(form, rewrites) for form in mixer.forms for rewrites in switches()]
    least: tuple[int, int, int] | None = None
    best: tuple[str, tuple[str, ...]] = (mixer.default_form, ())
    undecided: ByCases | None = None
    for form, rewrites in sorted(choices, key=lambda c: len(c[1]) + (c[0] != mixer.default_form)):
        try:
            left = remaining(minus(traced, counted(mixer, form, rewrites, found, phase)))
        except ByCases as cases:  # of no interest where another choice leaves nothing
            undecided = undecided or cases
            continue
        if least is None or left < least:
            least, best = left, (form, rewrites)
        if left == NOTHING_LEFT:
            break
    else:
        if undecided is not None:
            raise undecided
    return best[0], lessening(mixer, found, phase, traced, *best)


def following(mixer: Mixer, found: Trace, traced: Classes) -> tuple[str, tuple[str, ...]]:
    """The form and the rewrites of a backward pass, from those of the forward pass; of forms that
    count the same forward, the one that leaves the least."""
    before = against(found, mixer)
    ran = tuple(cause.name for cause in before.causes if cause.name in REWRITES)
    forward = counted(mixer, before.form, ran, found, "forward")
    least: tuple[int, int, int] | None = None
    best: tuple[str, tuple[str, ...]] = (before.form, ran)
    for form in (before.form, *(form for form in mixer.forms if form != before.form)):
        try:
            if counted(mixer, form, ran, found, "forward") != forward:
                continue
            rewrites = lessening(mixer, found, "backward", traced, form, ran)
            left = remaining(minus(traced, counted(mixer, form, rewrites, found, "backward")))
        except (ByCases, Unanswered, Unsupported):
            if form == before.form:
                raise
            continue
        if least is None or left < least:
            least, best = left, (form, rewrites)
        if left == NOTHING_LEFT:
            break
    return best


def lessening(
    mixer: Mixer,
    found: Trace,
    phase: str,
    traced: Classes,
    form: str,
    rewrites: tuple[str, ...],
) -> tuple[str, ...]:
    """The rewrites and those of gradients that leave less unexplained, the best one first."""

    def left(chosen: tuple[str, ...]) -> tuple[int, int, int]:
        return remaining(minus(traced, counted(mixer, form, chosen, found, phase)))

    beyond = () if "dense" in rewrites else PADDINGS  # without it there are no zeros to be stored
    waiting = [name for name in OF_GRADIENTS if name not in (*rewrites, *beyond)]
    least = left(rewrites)
    undecided: ByCases | None = None
    while waiting and least != NOTHING_LEFT:
        tried = {}
        for name in waiting:
            try:
                tried[name] = left((*rewrites, name))
            except (Unanswered, Unsupported):  # a switch that cannot be counted is none
                continue
            except ByCases as cases:
                undecided = undecided or cases
        best = min(tried, key=lambda name: tried[name], default=None)
        if best is None or tried[best] >= least:
            break
        least, rewrites = tried[best], (*rewrites, best)
        waiting = [name for name in waiting if name != best and not {name, best} <= {*PADDINGS}]
    if undecided is not None and least != NOTHING_LEFT:
        raise undecided
    return rewrites


def steps(
    mixer: Mixer, form: str, rewrites: Sequence[str]
) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Another form first, then one rewrite after the other, with those before it."""
    if form != mixer.default_form:
        yield f"form={form}", f"form '{form}' computes the same function by other equations", ()
    for k, rewrite in enumerate(rewrites):
        yield rewrite, REWRITES[rewrite], tuple(rewrites[: k + 1])


def switches() -> Iterator[tuple[str, ...]]:
    """Every set of rewrites of a forward pass that go together, small sets first."""
    names = [name for name in REWRITES if name not in OF_GRADIENTS]
    for number in range(len(names) + 1):
        for chosen in combinations(names, number):
            if sum(name.startswith("scale=") for name in chosen) <= 1:
                yield chosen


def counted(
    mixer: Mixer, form: str, rewrites: tuple[str, ...], found: Trace, phase: str
) -> Classes:
    """A pass of the equations in the letters of the trace, for its batch.

    A forward pass under a rewrite of gradients is that of a training step: it keeps what they read.
    """
    if phase == "forward" and not {*OF_GRADIENTS}.isdisjoint(rewrites):
        both, one = (
            in_trace(mixer, form, rewrites, found, part) for part in ("training-step", "backward")
        )
        return minus(both, one)
    return in_trace(mixer, form, rewrites, found, PHASES[phase])


def in_trace(
    mixer: Mixer, form: str, rewrites: tuple[str, ...], found: Trace, phase: str
) -> Classes:
    """What the equations count in a phase, in the letters of the trace."""
    counts = count(mixer, phase, form, ("strict", *rewrites))
    batch = found.variables.poly("b") or Poly.of(1)
    once = counts.once.classes if counts.once else {}
    result: Classes = {}
    for classes, times in ((counts.classes, batch), (once, Poly.of(1))):
        for name, exact in classes.items():
            poly = in_letters(mixer, exact, found) * times
            result[name] = result.get(name, Poly()) + poly
    joined = in_letters(mixer, counts.joined, found) * (batch - 1)
    result["add"] = result.get("add", Poly()) + joined
    return {name: poly for name, poly in result.items() if poly.terms}


def in_letters(mixer: Mixer, exact: Exact, found: Trace) -> Poly:
    """An exact count in the letters of the trace; ByCases where it is several polynomials there,
    TraceError where it has other sizes."""
    needed = sorted(exact.letters)
    given: Mapping[str, Poly | None] = {letter: found.variables.poly(letter) for letter in needed}
    values = {letter: poly for letter, poly in given.items() if poly is not None}
    if missing := [letter for letter in needed if letter not in values]:
        raise TraceError(
            f"the equations of {mixer.name} have the sizes {', '.join(needed)}: give "
            f"{', '.join(missing)} with --over or --let"
        )
    moved = exact.substitute(values)
    total, split = Poly(), Exact()
    for guards, poly in moved.pieces:
        open_ = frozenset(guard for guard in guards if not _always(guard, found))
        if not open_:
            total = total + poly
        elif not any(_always(-guard - 1, found) for guard in open_):
            split = split + Exact(((open_, poly),))
    here = found.region | {Poly.atom(x) - _least(found, x) for x in split.letters}
    for where in (frozenset(), found.region):  # cases may join at all sizes, or in this case alone
        cases = [case for case in split.chambers(where) if not infeasible(case[0] | here)]
        if len(cases) == 1:
            return total + cases[0][1]
    raise ByCases([irredundant(guards | found.region) for guards, _ in cases])


def _always(guard: Poly, found: Trace) -> bool:
    """Whether a condition is proven in the case of a trace, from the sizes on from which its
    formulas hold."""
    later = {x: Poly.atom(x) + _least(found, x) - 1 for x in guard.letters}
    return nonnegative(guard.substitute(later)) or implied(found.region, guard)


def _least(found: Trace, letter: str) -> int:
    """The size of a letter from which on a trace is compared."""
    return max(found.since.get(letter, 1), SETTLED)


def minus(larger: Classes, smaller: Classes) -> Classes:
    """Per class, zeros left out."""
    names = dict.fromkeys([*larger, *smaller])
    found = {n: by_halves(larger.get(n, Poly()) - smaller.get(n, Poly())) for n in names}
    return {name: poly for name, poly in found.items() if poly.terms}


NOTHING_LEFT = (0, 0, 0)


def remaining(left: Classes) -> tuple[int, int, int]:
    """How much is unexplained: classes, terms, then their highest degree."""
    terms = [monomial for poly in left.values() for monomial in poly.terms]
    degrees = [sum(power for _, power in monomial) for monomial in terms]
    return len(left), len(terms), max(degrees, default=0)
