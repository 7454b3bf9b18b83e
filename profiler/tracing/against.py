"""What lies between a traced module and a mixer's equations, and which switches name it?

The equations' formula is subtracted from the traced one, class by class, as polynomials. The
equations are then counted again under every form and every set of the ladder's switches: those that
leave the least unexplained are the causes, one switch turned at a time. What a backward pass does
with zeros that fill gradients up is a cause of its own, counted of the module.

Where the equations count by cases (l < w, l >= w), the module is traced anew at sizes of each case,
and subtracted there; where floors of theirs (floor(w/2), floor(l/C)) leave a case without formulas,
by cases of the remainder.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from costmodel.atoms import Fn
from costmodel.composites import OF_GRADIENTS, PADDINGS, REWRITES
from costmodel.constraints import Constraints, Unsupported, infeasible
from costmodel.equations import Mixer
from costmodel.load import mixer as load_mixer
from costmodel.phases import Unanswered
from costmodel.polynomial import Poly
from costmodel.rules.count import count
from costmodel.rules.printing import conditions_words
from profiler.counters.zeros import MEANING
from profiler.tracing.cases import ByCases, Case, Traces, thin
from profiler.tracing.counted import NOTHING_LEFT, PHASES, Classes, counted, minus, remaining
from profiler.tracing.divisions import floors, undone, values
from profiler.tracing.result import Trace
from profiler.tracing.target import TraceError, Variables


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
        asked_for(plain, found),
        asked_for(minus(traced, plain), found),
        tuple(replace(c, counts=asked_for(c.counts, found)) for c in causes if c.counts),
        asked_for(minus(minus(traced, current), filled), found),
        notes=notes,
        region=Case(found.region, found.divisions).asked,
        proven=found.proven if found.region or found.divisions else (),
    )


def asked_for(classes: Classes, found: Trace) -> Classes:
    """Formulas in the sizes that were asked for, where the trace has others."""
    return {name: undone(poly, found.divisions) for name, poly in classes.items()}


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
    mixer, traces = load_mixer(name), Traces(found)
    return [one for phase in PHASES for one in by_case(traces, mixer, phase, Case())]


def by_case(traces: Traces, mixer: Mixer, phase: str, start: Case) -> Iterator[Difference]:
    """The differences of one pass at the sizes of a case, by cases of it where it has some."""
    waiting = [start]
    taken: set[Case] = set()
    while waiting:
        case = waiting.pop(0).plain
        if case not in taken and (lines := thin(case.region)) != [case.region]:
            taken.add(case)
            waiting = [*case.among(lines), *waiting]
            continue
        over = [
            f
            for f in open_floors(sorted(case.region, key=str), case.region)
            if f.args[1].constant() is None
        ]
        if over and (found := by_quotients(traces, mixer, phase, case, over)):
            yield from found  # two sizes that divide each other have no formulas in either alone
            continue
        try:
            yield against(traces.at(case), mixer, phase)
        except ByCases as cases:
            waiting = [*case.among(cases.regions), *waiting]
        except (TraceError, Unsupported) as error:
            over = unsettled(mixer, phase, case.region, traces.sizes(case))
            if found := by_quotients(traces, mixer, phase, case, over):
                yield from found
            elif case == Case() and phase == "forward":
                raise
            else:
                yield not_compared(mixer, phase, case, error)


def by_quotients(
    traces: Traces, mixer: Mixer, phase: str, case: Case, over: Sequence[Fn]
) -> list[Difference]:
    """The differences at the sizes of a case where a size under one of some floors is written by
    its quotient; none where nothing can be compared so."""
    try:
        parts = traces.parts(case, over)
    except TraceError as refused:
        return [not_compared(mixer, phase, case, refused)]
    found = [one for part in parts for one in by_case(traces, mixer, phase, part)]
    return found if any(not one.reason for one in found) else []


def not_compared(mixer: Mixer, phase: str, case: Case, why: Exception) -> Difference:
    """What there is of a case without a difference."""
    return Difference(mixer.name, phase, "", {}, {}, (), {}, reason=str(why), region=case.asked)


def unsettled(mixer: Mixer, phase: str, region: Constraints, sizes: Variables) -> list[Fn]:
    """The floors of a case, and those that the equations count with there, which have more than one
    value in it."""
    counted_with: list[Poly] = []
    for form in mixer.forms:
        try:
            counts = count(mixer, PHASES[phase], form, ("strict",))
        except (Unanswered, Unsupported):
            continue
        once = counts.once.classes if counts.once else {}
        for exact in (*counts.classes.values(), *once.values()):
            given = {letter: sizes.poly(letter) for letter in exact.letters}
            moved = exact.substitute({x: poly for x, poly in given.items() if poly is not None})
            for guards, poly in moved.pieces:
                if not infeasible(guards | region):
                    counted_with += [*sorted(guards, key=str), poly]
    return open_floors([*sorted(region, key=str), *counted_with], region)


def open_floors(polys: Iterable[Poly], region: Constraints) -> list[Fn]:
    """The floors that have more than one value in a case."""
    found = floors(polys)
    return [f for f in found if (known := values(f, region)) is None or len(known) > 1]


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
