"""What lies between a traced module and a mixer's equations, and which switches name it?

The equations' formula is subtracted from the traced one, class by class, as polynomials. The
equations are then counted again under every form and every set of the ladder's switches: those that
leave the least unexplained are the causes, one switch turned at a time. What a backward pass does
with zeros that fill gradients up is a cause of its own, counted of the module.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations

from costmodel.composites import OF_GRADIENTS, PADDINGS, REWRITES
from costmodel.domains import Exact, Unsupported, nonnegative
from costmodel.equations import Mixer
from costmodel.load import mixer as load_mixer
from costmodel.phases import Unanswered
from costmodel.polynomial import Poly
from costmodel.rules.count import count
from profiler.counters.zeros import MEANING
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

    @property
    def explained(self) -> bool:
        """Whether the switches name all of the difference."""
        return not (self.reason or self.unexplained)


SETTLED = 2
"""From these sizes on a module is compared: one row alone is a case of its own for a recurrence."""
PHASES: Mapping[str, str] = {"forward": "training", "backward": "backward"}
"""What a trace calls a pass -> the phase of the equations."""


def against(found: Trace, name: str | Mixer, phase: str = "forward") -> Difference:
    """Subtract a mixer's equations from a traced pass, symbolically, and name the rest.

    Raises:
        UnknownMixer: no such mixer.
        TraceError: the trace has no formula, or the equations have sizes that it lacks.
    """
    mixer = load_mixer(name)
    listed = ", ".join(dict.fromkeys(u.name for u in found.uncounted if u.phase == phase))
    if listed:
        raise TraceError(
            f"{found.target} cannot be held against {mixer.name}: no counting rule for {listed}"
        )
    traced: Classes = {}
    for class_, poly in found.classes(phase).items():
        if not isinstance(poly, Poly):
            raise TraceError(f"{found.target}: {class_}: {poly}")
        if poly.terms:
            traced[class_] = poly
    filled, notes = zeros(found) if phase == "backward" else ({}, ())
    plain = counted(mixer, mixer.default_form, (), found, phase)
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
    """The differences of the forward and of the backward pass; one that cannot be compared says
    why.

    Raises:
        UnknownMixer, TraceError: as `against` for the forward pass.
    """
    forward = against(found, name)
    try:
        return [forward, against(found, name, "backward")]
    except (TraceError, Unsupported) as error:
        return [forward, Difference(forward.mixer, "backward", "", {}, {}, (), {}, str(error))]


def nearest(mixer: Mixer, found: Trace, phase: str, traced: Classes) -> tuple[str, tuple[str, ...]]:
    """The form and the rewrites that leave the least unexplained, few rather than many.

    A backward pass is that of the forward pass that ran: it has the form and the rewrites of that
    one, and those that concern gradients alone, each of which leaves less than without it.
    """
    if phase == "backward":
        before = against(found, mixer)
        ran = tuple(cause.name for cause in before.causes if cause.name in REWRITES)
        return before.form, lessening(mixer, found, phase, traced, before.form, ran)
    choices = [(form, rewrites) for form in mixer.forms for rewrites in switches()]
    form, rewrites = min(
        choices,
        key=lambda choice: (
            remaining(minus(traced, counted(mixer, choice[0], choice[1], found, phase))),
            len(choice[1]) + (choice[0] != mixer.default_form),
        ),
    )
    return form, lessening(mixer, found, phase, traced, form, rewrites)


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
    while waiting and least != NOTHING_LEFT:
        tried = {}
        for name in waiting:
            with suppress(Unanswered, Unsupported):  # a switch that cannot be counted is none
                tried[name] = left((*rewrites, name))
        best = min(tried, key=lambda name: tried[name], default=None)
        if best is None or tried[best] >= least:
            break
        least, rewrites = tried[best], (*rewrites, best)
        waiting = [name for name in waiting if name != best and not {name, best} <= {*PADDINGS}]
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
    """An exact count in the letters of the trace; TraceError where it is no polynomial there."""
    needed = sorted(exact.letters)
    given: Mapping[str, Poly | None] = {letter: found.variables.poly(letter) for letter in needed}
    values = {letter: poly for letter, poly in given.items() if poly is not None}
    if missing := [letter for letter in needed if letter not in values]:
        raise TraceError(
            f"the equations of {mixer.name} have the sizes {', '.join(needed)}: give "
            f"{', '.join(missing)} with --over or --let"
        )
    moved = exact.substitute(values)
    total = Poly()
    for guards, poly in moved.pieces:
        if all(_always(guard, found.since) for guard in guards):
            total = total + poly
        elif not any(_always(-guard - 1, found.since) for guard in guards):
            raise TraceError(
                f"the equations of {mixer.name} count by cases: give sizes with --let at which one "
                f"case holds"
            )
    return total


def _always(guard: Poly, since: Mapping[str, int]) -> bool:
    """Whether a condition is proven from the sizes on from which the trace's formulas hold."""
    later = {x: Poly.atom(x) + max(since.get(x, 1), SETTLED) - 1 for x in guard.letters}
    return nonnegative(guard.substitute(later))


def minus(larger: Classes, smaller: Classes) -> Classes:
    """Per class, zeros left out."""
    names = dict.fromkeys([*larger, *smaller])
    found = {n: larger.get(n, Poly()) - smaller.get(n, Poly()) for n in names}
    return {name: poly for name, poly in found.items() if poly.terms}


NOTHING_LEFT = (0, 0, 0)


def remaining(left: Classes) -> tuple[int, int, int]:
    """How much is unexplained: classes, terms, then their highest degree."""
    terms = [monomial for poly in left.values() for monomial in poly.terms]
    degrees = [sum(power for _, power in monomial) for monomial in terms]
    return len(left), len(terms), max(degrees, default=0)
