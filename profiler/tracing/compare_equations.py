"""Compares a traced module with a mixer's equations, and names the switches that differ.

The equations' formula is subtracted from the traced formula, class by class (mul, add, exp, ...),
as polynomials. A *switch* is a form (another set of equations for the same function) or a rewrite
(a named change of equations, `safe-softmax`). The equations are counted again under every form and
set of rewrites; the causes are the switches that leave least unexplained, turned one after another.
The arithmetic of a backward pass on zeros that pad gradients is a cause counted from the module.

If the equations count by cases (l < w, l >= w), the module is traced at sizes of each case and
compared there; by cases of the remainder, if floors (floor(l/C)) leave a case without formulas.

Formulas in f = floor(x/2) are compared in a normal form. Either x = 2f or x = 2f + 1, so that (2f -
x)(2f - x + 1) = 0 gives f**2 by f and x; and floor((x + 1)/2) = x - floor(x/2). A formula in x and
the first power of f is 0 at all sizes only if it is 0 as a polynomial.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations, islice
from math import prod

from costmodel.errors import Unanswered, UnknownMixer, Unsupported
from costmodel.language.equations import Form, Mixer
from costmodel.language.options import joined
from costmodel.mixers.load import mixer as load_mixer
from costmodel.program.chosen_sizes import letters_of
from costmodel.program.conventions import OF_GRADIENTS, PADDINGS, REWRITES
from costmodel.program.lowering import effective
from costmodel.questions.count import count
from costmodel.questions.subject import Training
from costmodel.symbolic.constraints import (
    Constraints,
    implied,
    infeasible,
    irredundant,
    nonnegative,
)
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Fn, Poly, by_text, call
from costmodel.symbolic.printing import conditions_words
from profiler.counting.operations import ZERO_GRADIENTS
from profiler.modules.described import switches_to
from profiler.tracing.cases import SETTLED, ByCases, SizeCase, Traces, narrow_lines
from profiler.tracing.divisions import (
    asked_formula,
    cases_by_floor,
    floor_values,
    floors_in,
    proven_zero,
    with_known_floors,
)
from profiler.tracing.meta_run.target import TraceError, Variables, listed_sizes
from profiler.tracing.result import Cases, Trace, Value
from profiler.tracing.zero_gradients import MOST_MADE


@dataclass(frozen=True)
class SwitchCause:
    """A switch, and the increase that it causes in the equations' count of each class."""

    name: str
    meaning: str
    counts: Classes


@dataclass(frozen=True)
class Difference:
    """The formulas of a module's forward or backward pass minus those of a mixer's equations.

    `equations` are the counts of their default form by class, `difference` the module's minus
    these. `causes` are the changes that named switches make to the equations' counts and, for a
    backward pass, its arithmetic on zeros that pad gradients. `unexplained` is the remainder after
    all switches; empty if there is none.
    """

    mixer: str
    phase: str
    form: str
    equations: Classes
    difference: Classes
    causes: tuple[SwitchCause, ...]
    unexplained: Classes
    reason: str = ""
    """Why the pass is not compared; "" if it is."""
    notes: tuple[str, ...] = ()
    """The causes that were not looked for, and why."""
    region: Constraints = frozenset()
    """The case: the sizes at which each of these polynomials is at least 0; empty for all sizes."""
    proven: Sequence[Mapping[str, int]] = ()
    """The sizes of the case at which the module's counts were compared with its formulas."""
    rewrites: tuple[str, ...] = ()
    """The rewrites of the equations, such as `safe-softmax`: those among the causes, and those that
    change no count in this case, such as `dense` of one row."""

    @property
    def explained(self) -> bool:
        """Whether the switches explain the whole difference."""
        return not (self.reason or self.unexplained)

    @property
    def case(self) -> str:
        """The case in words; "" for all sizes."""
        return conditions_words(self.region)


def compare_pass(
    trace: Trace,
    name: str | Mixer,
    phase: str = "forward",
    likely: Sequence[Switches] = (),
) -> Difference:
    """Subtract the operations that a mixer's equations count from those of one traced pass, class
    by class (mul, add, exp, ...), as polynomials in the sizes. Return the difference, its causes
    (another form of the equations, rewrites of them such as `safe-softmax`, arithmetic on known
    zeros in the backward pass) and the operations that no cause explains.

    Args:
        phase: the pass, "forward" or "backward".
        likely: forms with rewrites that are tried first, such as those of another case.

    Raises:
        UnknownMixer: no such mixer.
        Unsupported: the equations have no count.
        TraceError: no such pass, an operation of it has no counting rule, a class has no formula,
            or the equations have sizes that the trace lacks.
        ByCases: the module or the equations count by cases; `compare_passes` compares each.
    """
    counted = trace.classes(phase)
    mixer = in_sizes_of(trace, load_mixer(name))
    listed = ", ".join(dict.fromkeys(u.name for u in trace.uncounted if u.phase == phase))
    if listed:
        raise TraceError(
            f"{trace.target} cannot be compared with {mixer.name}: no counting rule for {listed}"
        )
    plain = equation_counts(mixer, mixer.default_form, (), trace, phase)
    traced = polynomials_of(counted, mixer, trace, phase)
    filled, notes = known_zero_arithmetic(trace) if phase == "backward" else ({}, ())
    form, rewrites = closest_switches(mixer, trace, phase, classes_minus(traced, filled), likely)
    current, causes = plain, []
    for cause, meaning, _, inner in switches_to(mixer, form, rewrites):
        after = equation_counts(mixer, form, inner, trace, phase)
        causes.append(SwitchCause(cause, meaning, classes_minus(after, current)))
        current = after
    causes.append(SwitchCause("zeros", ZERO_GRADIENTS, filled))
    return Difference(
        mixer.name,
        phase,
        form,
        in_asked_sizes(plain, trace),
        in_asked_sizes(classes_minus(traced, plain), trace),
        tuple(replace(c, counts=in_asked_sizes(c.counts, trace)) for c in causes if c.counts),
        in_asked_sizes(classes_minus(classes_minus(traced, current), filled), trace),
        notes=notes,
        region=SizeCase(trace.region, trace.divisions).asked,
        proven=trace.proven if trace.region or trace.divisions else (),
        rewrites=rewrites,
    )


def in_sizes_of(trace: Trace, mixer: Mixer) -> Mixer:
    """The mixer with the head width h as a size by itself, if the trace names h and d is not n*h
    there; else the mixer unchanged, whose h is d/n. Raises TraceError: the mixer is in no file, so
    that its equations cannot be written with h."""
    d, n, h = (trace.variables.poly(letter) for letter in ("d", "n", "h"))
    derived = mixer.has_head_width and "h" not in mixer.letters
    if not derived or h is None or (d is not None and n is not None and d == n * h):
        return mixer
    try:
        return load_mixer(joined(mixer.origin.partition("{")[0], (), {"h": 1})).at_any_sizes
    except UnknownMixer:
        raise TraceError(
            f"h is d/n in the equations of {mixer.name}: give d with --let d=n*h"
        ) from None


def in_asked_sizes(classes: Classes, trace: Trace) -> Classes:
    """Formulas in the sizes of the user, without letters of divisions."""
    return {name: asked_formula(poly, trace.divisions) for name, poly in classes.items()}


def polynomials_of(counted: Mapping[str, Value], mixer: Mixer, trace: Trace, phase: str) -> Classes:
    """The polynomials of the classes `counted` in a traced pass, without those that are 0. Raises
    ByCases: a class counts by cases or, if some class has no formula, a form of the equations does;
    else TraceError: a class has no formula."""
    for class_, poly in counted.items():
        if isinstance(poly, Cases):
            raise ByCases([region for region, _ in poly.pieces])
        if not isinstance(poly, Poly):
            # raises ByCases for a form that counts by cases: the module may have a formula in each
            for form in forms_with_sizes_of(trace, mixer):
                equation_counts(mixer, form, (), trace, phase)
            raise TraceError(
                f"{trace.target} has no formula for operations of class {class_}: {poly}"
            )
    return {name: poly for name, poly in counted.items() if isinstance(poly, Poly) and poly.terms}


def known_zero_arithmetic(trace: Trace) -> tuple[Classes, tuple[str, ...]]:
    """Count the operations of a traced backward pass on zeros that pad gradients. Returns a pair:
    class of operations (mul, add, ...) -> their number, as a polynomial in the sizes; notes on
    classes without a formula and on untested sizes. If the pass cannot be followed, no operations,
    and a note with the reason. Without such zeros: ({}, ())."""
    try:
        zeros = trace.zeros
    except TraceError as error:
        return {}, (f"zeros that pad gradients are not counted separately: {error}",)
    broken = {name: poly for name, poly in zeros.formulas.items() if not isinstance(poly, Poly)}
    notes = [f"zeros that pad gradients: {name}: {why}" for name, why in broken.items()]
    if zeros.formulas and zeros.untested:
        asked = trace.proven[0].keys()
        large = ({x: size for x, size in sizes.items() if x in asked} for sizes in zeros.untested)
        notes.append(
            f"zeros that pad gradients: not tested at {'; '.join(map(listed_sizes, large))}, where "
            f"a run allocates more than {MOST_MADE >> 20} MiB"
        )
    formulas = {name: poly for name, poly in zeros.formulas.items() if isinstance(poly, Poly)}
    return formulas, tuple(notes)


def compare_passes(trace: Trace, name: str | Mixer, most: int | None = None) -> list[Difference]:
    """The differences between a traced module and a mixer's equations, of the forward and the
    backward pass, by cases if the equations do; a pass that cannot be compared has a reason, as has
    a backward pass of more than `most` cases.

    Raises:
        UnknownMixer: no such mixer.
        Unsupported, TraceError: the forward pass can be compared in no case, as the equations have
            no count, an operation has no counting rule, or a class or size has no formula.
    """
    mixer, traces = in_sizes_of(trace, load_mixer(name)), Traces(trace)
    forward = [*by_case(traces, mixer, "forward", SizeCase())]
    if (refused := refused_gradient(mixer, trace, forward)) is not None:
        return [*forward, not_compared(mixer, "backward", SizeCase(), refused)]
    backward = [*islice(by_case(traces, mixer, "backward", SizeCase()), most and most + 1)]
    if most and len(backward) > most:
        too_many = TraceError(f"more than {most} cases of sizes: `costmodel trace` compares all")
        backward = [not_compared(mixer, "backward", SizeCase(), too_many)]
    return [*forward, *backward]


def refused_gradient(
    mixer: Mixer, trace: Trace, forward: Sequence[Difference]
) -> Unsupported | None:
    """Why no case of the forward pass has a gradient by the equations that were found for the case,
    such as under `safe-softmax` over several ranges: no backward pass is then traced case by case.
    None if a case has a gradient, or if no equations were found for a case."""
    asked = gradients_of(trace, PHASES["backward"]) if trace.differentiated else {}
    refused: Unsupported | None = None
    for form, rewrites in dict.fromkeys((one.form, one.rewrites) for one in forward):
        if not form:
            return None
        try:
            count(mixer, PHASES["backward"], form, ("strict", *rewrites), **asked)
        except Unsupported as error:
            refused = error
        else:
            return None
    return refused


def by_case(
    traces: Traces, mixer: Mixer, phase: str, start: SizeCase, likely: list[Switches] | None = None
) -> Iterator[Difference]:
    """Yield the differences of one pass (`phase`; `traces` has the module's trace in each case)
    from the equations at the sizes of the case `start`, split into smaller cases if necessary: a
    narrow case (0 <= l - w <= 2) into lines (l = w, ...), then by the quotient of a size (l = C*q +
    r), then by the cases of the equations. A module executes the same rewrites in every case:
    `likely` receives those that explain a case, and the next cases are compared with them first.
    Raises TraceError, Unsupported: the forward pass can be compared neither at all sizes nor by
    quotients. Another case, or a backward pass, gives a difference with the reason instead."""
    likely = [] if likely is None else likely
    waiting = [start]
    taken: set[SizeCase] = set()
    while waiting:
        case = waiting.pop(0).plain  # floors with one value in the case replaced by the value
        if case not in taken and (lines := narrow_lines(case.region)) != [case.region]:
            taken.add(case)
            waiting = [*case.among(lines), *waiting]
            continue
        over = floors_to_divide(case.region)
        if over and (found := by_quotients(traces, mixer, phase, case, over, likely)):
            yield from found
            continue
        try:
            one = compare_pass(traces.at(case), mixer, phase, likely)
            if one.explained:
                likely.insert(0, (one.form, one.rewrites))
            yield one
        except ByCases as cases:
            waiting = [*case.among(cases.regions), *waiting]
        except (TraceError, Unsupported) as error:
            over = undecided_floors(mixer, phase, case.region, traces.sizes(case))
            if found := by_quotients(traces, mixer, phase, case, over, likely):
                yield from found
            elif case == SizeCase() and phase == "forward":
                raise
            else:
                yield not_compared(mixer, phase, case, error)


def by_quotients(
    traces: Traces,
    mixer: Mixer,
    phase: str,
    case: SizeCase,
    over: Sequence[Fn],
    likely: list[Switches],
) -> list[Difference]:
    """The differences of one pass from the equations in a case, after a size l under one of the
    floors `over` (such as floor(l/C)) is written by its quotient, l = C*q + r. [] if no part of the
    case can be compared in these letters; one, with a reason, if floors divide it in many ways."""
    try:
        parts = traces.parts(case, over)
    except TraceError as refused:
        return [not_compared(mixer, phase, case, refused)]
    found = [one for part in parts for one in by_case(traces, mixer, phase, part, likely)]
    return found if any(not one.reason for one in found) else []


def not_compared(mixer: Mixer, phase: str, case: SizeCase, why: Exception) -> Difference:
    """The record of a case that could not be compared, with the reason."""
    return Difference(mixer.name, phase, "", {}, {}, (), {}, reason=str(why), region=case.asked)


def undecided_floors(mixer: Mixer, phase: str, region: Constraints, sizes: Variables) -> list[Fn]:
    """The floors (such as floor(l/C)) with several values in the case `region`, in its conditions
    and in the counts of every form that has any, in the letters of `sizes` (--over, --let)."""
    counted_with: list[Poly] = []  # counts, and conditions under which they hold
    for form in mixer.forms:
        try:
            counts = count(mixer, PHASES[phase], form, ("strict",))
        except (Unanswered, Unsupported):
            continue
        once = counts.once.classes if counts.once else {}  # the work on parameters alone
        for exact in (*counts.classes.values(), *once.values()):
            given = {letter: sizes.poly(letter) for letter in exact.letters}
            moved = exact.substitute({x: poly for x, poly in given.items() if poly is not None})
            for guards, poly in moved.pieces:
                if not infeasible(guards | region):
                    counted_with += [*by_text(guards), poly]
    return open_floors([*by_text(region), *counted_with], region)


def open_floors(polys: Iterable[Poly], region: Constraints) -> list[Fn]:
    """The floors in polynomials that have several values in a case."""
    found = floors_in(polys)
    return [f for f in found if (known := floor_values(f, region)) is None or len(known) > 1]


def floors_to_divide(region: Constraints) -> list[Fn]:
    """The floors in a case that are replaced by quotients before the module is traced: floors over
    a divisor that is a size, floor(l/C), and floors without a remainder, floor(w/2) in a case of
    even w alone, where the equations would keep w and floor(w/2) as two letters."""
    return [
        floor
        for floor in open_floors(by_text(region), region)
        if floor.args[1].constant() is None
        or proven_zero(region, floor.args[0] - floor.args[1] * Poly.atom(floor))
    ]


Switches = tuple[str, tuple[str, ...]]
"""A form of the equations, and rewrites of it."""


def closest_switches(
    mixer: Mixer, trace: Trace, phase: str, traced: Classes, likely: Sequence[Switches] = ()
) -> Switches:
    """Find the form of the equations, and the rewrites of it (named changes such as
    `safe-softmax`), that leave least of the operations `traced` (class -> Poly) unexplained;
    among equals, the fewest rewrites. Returns (form, rewrites), one of `likely` if no others leave
    less; the others are searched for where each of `likely` leaves some.

    A backward pass belongs to the forward pass that ran, so it has the form and rewrites of the
    forward pass, or a form with the same forward count; rewrites of gradients are added as long as
    one leaves less unexplained. Raises ByCases: a choice counts by cases, and no other choice
    explains everything."""

    def left_by(switches: Switches) -> Fraction:
        counts = equation_counts(mixer, *switches, trace, phase)
        return amount_unexplained(classes_minus(traced, counts))

    known: dict[Switches, Fraction] = {}
    for switches in likely:
        with suppress(ByCases, Unanswered, Unsupported):
            known[switches] = left_by(switches)
            if known[switches] == NOTHING_LEFT:
                return switches
    found = searched_switches(mixer, trace, phase, traced)
    known.setdefault(found, left_by(found))
    return min(known, key=known.__getitem__)  # the first of equals


def searched_switches(mixer: Mixer, trace: Trace, phase: str, traced: Classes) -> Switches:
    """(form, rewrites) of the equations that leave least of the operations `traced` (class ->
    polynomial) unexplained: few terms of low degree, then small coefficients; among equals, the
    fewest rewrites. ByCases: a choice counts by cases, and no other choice explains everything."""
    if phase == "backward":
        return switches_of_backward(mixer, trace, traced)
    choices = [
        (form, rewrites)
        for form in forms_with_sizes_of(trace, mixer)
        for rewrites in forward_rewrite_sets(mixer.forms[form])
    ]
    least: Fraction | None = None
    best: Switches = (mixer.default_form, ())
    undecided: ByCases | None = None
    for form, rewrites in sorted(choices, key=lambda c: len(c[1]) + (c[0] != mixer.default_form)):
        try:
            left = amount_unexplained(
                classes_minus(traced, equation_counts(mixer, form, rewrites, trace, phase))
            )
        except ByCases as cases:  # raised only if no other choice leaves nothing
            undecided = undecided or cases
            continue
        if least is None or left < least:
            least, best = left, (form, rewrites)
        if left == NOTHING_LEFT:
            break
    else:
        if undecided is not None:
            raise undecided
    return best[0], with_gradient_rewrites(mixer, trace, phase, traced, *best)


def forms_with_sizes_of(trace: Trace, mixer: Mixer) -> Sequence[str]:
    """The forms of a mixer whose sizes, but for the batch, the trace names; if none, all forms."""
    found = [
        form
        for form in mixer.forms
        if all(
            letter == "b" or trace.variables.poly(letter) is not None
            for letter in letters_of(mixer, "training", form)
        )
    ]
    return found or [*mixer.forms]


def switches_of_backward(mixer: Mixer, trace: Trace, traced: Classes) -> Switches:
    """Find the form of the equations, and the rewrites of it (named changes such as
    `safe-softmax`), for a backward pass, and return both. The rewrites are those of the forward
    pass, with rewrites of gradients added; among forms with the forward pass's count, the form is
    taken that leaves least of the operations `traced` (class -> number) unexplained. Raises
    ByCases, Unanswered, Unsupported: the forward pass's own form has no single count."""
    before = compare_pass(trace, mixer)
    ran = before.rewrites
    forward = equation_counts(mixer, before.form, ran, trace, "forward")
    least: Fraction | None = None
    best: Switches = (before.form, ran)
    named = forms_with_sizes_of(trace, mixer)
    for form in (before.form, *(form for form in named if form != before.form)):
        try:
            if equation_counts(mixer, form, ran, trace, "forward") != forward:
                continue
            rewrites = with_gradient_rewrites(mixer, trace, "backward", traced, form, ran)
            left = amount_unexplained(
                classes_minus(traced, equation_counts(mixer, form, rewrites, trace, "backward"))
            )
        except (ByCases, Unanswered, Unsupported):
            if form == before.form:
                raise
            continue
        if least is None or left < least:
            least, best = left, (form, rewrites)
        if left == NOTHING_LEFT:
            break
    return best


def with_gradient_rewrites(
    mixer: Mixer,
    trace: Trace,
    phase: str,
    traced: Classes,
    form: str,
    rewrites: tuple[str, ...],
) -> tuple[str, ...]:
    """The `rewrites` (names) of the equations of `form`, extended again and again by the rewrite of
    gradients that leaves least of the operations `traced` unexplained, while one leaves less than
    before. Raises ByCases: a rewrite counts by cases, and the others do not explain everything."""

    def left(chosen: tuple[str, ...]) -> Fraction:
        return amount_unexplained(
            classes_minus(traced, equation_counts(mixer, form, chosen, trace, phase))
        )

    padded = any(name in PADDINGS for name in rewrites)
    # a padding says how the zeros of "dense" are stored: at most one, and only beside "dense"
    beyond = PADDINGS if padded or "dense" not in rewrites else ()
    waiting = [name for name in OF_GRADIENTS if name not in (*rewrites, *beyond)]
    least = left(rewrites)
    undecided: ByCases | None = None
    while waiting and least != NOTHING_LEFT:
        tried = {}
        for name in waiting:
            try:
                tried[name] = left((*rewrites, name))
            except (Unanswered, Unsupported):  # a switch without a count is not tried
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


def forward_rewrite_sets(form: Form) -> Iterator[tuple[str, ...]]:
    """Yield, small sets first, every set of rewrites that may each change an equation of `form` in
    a forward pass: at most one `scale=...`, and at most one of "zero-state" and "unread-rows"."""
    changing = effective(form)
    names = [name for name in REWRITES if name in changing]
    for number in range(len(names) + 1):
        for chosen in combinations(names, number):
            scales = sum(name.startswith("scale=") for name in chosen)
            if scales <= 1 and not {"zero-state", "unread-rows"} <= {*chosen}:
                yield chosen


Classes = dict[str, Poly]
"""Class of operations -> formula."""


PHASES: Mapping[str, str] = {"forward": "training", "backward": "backward"}
"""Name of a pass in a trace -> the phase of the equations."""


def equation_counts(
    mixer: Mixer, form: str, rewrites: tuple[str, ...], trace: Trace, phase: str
) -> Classes:
    """A dict: class -> number of operations of one pass by the equations, as a polynomial in the
    letters of the trace, for its batch.

    Under a rewrite of gradients the forward pass is that of a training step, the step minus its
    backward pass: it also keeps the arrays that the rewritten gradients read.
    """
    if phase == "forward" and not {*OF_GRADIENTS}.isdisjoint(rewrites):
        both, one = (
            phase_counts(mixer, form, rewrites, trace, part)
            for part in ("training-step", "backward")
        )
        return classes_minus(both, one)
    return phase_counts(mixer, form, rewrites, trace, PHASES[phase])


def phase_counts(
    mixer: Mixer, form: str, rewrites: tuple[str, ...], trace: Trace, phase: str
) -> Classes:
    """A dict: class -> number of operations of a phase by the equations, as a polynomial in the
    letters of the trace, for its batch b: b times the work of a sequence, once the work that
    sequences share, and b - 1 adds per shared gradient. The gradients are those of the trace: of
    parameters, of inputs, or of both.

    Raises:
        Unanswered, Unsupported: the equations have no count.
        TraceError: the trace has no gradients, or lacks a size of the equations.
        ByCases: the count is several polynomials in the case of the trace.
    """
    counts = count(mixer, phase, form, ("strict", *rewrites), **gradients_of(trace, phase))
    batch = trace.variables.poly("b") or Poly.of(1)
    once = counts.once.classes if counts.once else {}  # work that all sequences share
    result: Classes = {}
    for classes, times in ((counts.classes, batch), (once, Poly.of(1))):
        for name, exact in classes.items():
            poly = one_polynomial(mixer, exact, trace) * times
            result[name] = result.get(name, Poly()) + poly
    joined = one_polynomial(mixer, counts.joined, trace) * (batch - 1)
    result["add"] = result.get("add", Poly()) + joined
    return {name: poly for name, poly in result.items() if poly.terms}


def gradients_of(trace: Trace, phase: str) -> Training:
    """The options with which the equations are counted for the gradients that the trace has, such
    as {"only": "inputs"}; {} for both, and for the forward pass. Raises TraceError: a backward pass
    without gradients."""
    if phase == PHASES["forward"] or trace.differentiated == {"parameters", "inputs"}:
        return {}
    if not trace.differentiated:
        why = "no parameter or input requires a gradient"
        why = "no gradient was asked for (grad='none')" if trace.grad == "none" else why
        raise TraceError(f"{why}: trace with grad='both'")
    return {"only": "parameters" if "parameters" in trace.differentiated else "inputs"}


def one_polynomial(mixer: Mixer, exact: Exact, trace: Trace) -> Poly:
    """An exact count by the mixer's equations as one polynomial in the letters of the trace.

    Raises:
        ByCases: the count is several polynomials in the case of the trace.
        TraceError: the count has sizes that the trace lacks.
    """
    needed = sorted(exact.letters)
    given: Mapping[str, Poly | None] = {letter: trace.variables.poly(letter) for letter in needed}
    known = {letter: poly for letter, poly in given.items() if poly is not None}
    if missing := [letter for letter in needed if letter not in known]:
        raise TraceError(
            f"the equations of {mixer.name} have the sizes {', '.join(needed)}: give "
            f"{', '.join(missing)} with --over or --let"
        )
    moved = without_floors(exact.substitute(known), trace)
    # a piece counts where its guards hold: in the whole case (`total`), or in a part (`split`)
    total, split = Poly(), Exact()
    for guards, poly in moved.pieces:
        open_ = frozenset(guard for guard in guards if not _proven_in_case(guard, trace))
        if not open_:
            total = total + poly
        elif not any(_proven_in_case(-guard - 1, trace) for guard in open_):
            split = split + Exact(((open_, poly),))
    least = {Poly.atom(x) - _compared_from(trace, x) for x in split.letters}
    here = trace.region | least | _quotient_sizes(trace)
    for where in (frozenset(), trace.region):  # pieces may agree everywhere, or only in this case
        cases = [case for case in split.chambers(where) if not infeasible(case[0] | here)]
        if len(cases) == 1:
            return total + cases[0][1]
    raise ByCases([irredundant(guards | trace.region) for guards, _ in cases])


def without_floors(exact: Exact, trace: Trace) -> Exact:
    """A copy of a count in which each floor with one value in the case of the trace is replaced by
    the value. Raises ByCases: a floor has several values, and sizes are written by quotients."""
    parts = [poly for guards, value in exact.pieces for poly in (*guards, value)]
    if trace.divisions and (regions := cases_by_floor(parts, trace.region)):
        raise ByCases(regions)
    total = Exact()
    for guards, poly in exact.pieces:
        held = frozenset(with_known_floors(guard, trace.region) for guard in guards)
        total = total + Exact(((held, with_known_floors(poly, trace.region)),))
    return total


def _proven_in_case(guard: Poly, trace: Trace) -> bool:
    """Whether guard >= 0 is proven in the case of a trace, for sizes at which its formulas hold."""
    # letters of `nonnegative` are at least 1
    later = {x: Poly.atom(x) + _compared_from(trace, x) - 1 for x in guard.letters}
    here = trace.region | _quotient_sizes(trace)
    return nonnegative(guard.substitute(later)) or implied(here, guard)


def _compared_from(trace: Trace, letter: str) -> int:
    """The smallest value of a letter at which a trace is compared."""
    quotients = {letter for division in trace.divisions for letter in division.letters}
    return max(trace.since.get(letter, 1), 1 if letter in quotients else SETTLED)


def _quotient_sizes(trace: Trace) -> Constraints:
    """The condition that each size written by its quotient is at least `SETTLED`."""
    sizes = [trace.variables.poly(division.size) for division in trace.divisions]
    return frozenset(poly - SETTLED for poly in sizes if poly is not None)


def classes_minus(larger: Classes, smaller: Classes) -> Classes:
    """larger - smaller, class by class; classes with difference 0 are left out."""
    names = dict.fromkeys([*larger, *smaller])
    found = {n: reduced_halves(larger.get(n, Poly()) - smaller.get(n, Poly())) for n in names}
    return {name: poly for name, poly in found.items() if poly.terms}


NOTHING_LEFT = Fraction(1)  # `amount_unexplained` of no operations

LARGE = 1000
"""The value of every size at which unexplained operations are weighed."""


def amount_unexplained(left: Classes) -> Fraction:
    """The unexplained operations as one number to be compared: the product of 1 + |c| LARGE**p over
    the terms of all classes, with c the coefficient and p the degree. Fewer terms, smaller
    coefficients and lower degrees make it smaller, in whichever class they are.

    >>> four, many = Poly.of(4), Poly.of(336)
    >>> amount_unexplained({"mul": four, "exp": four, "div": four}) < amount_unexplained(
    ...     {"mul": many, "add": many}
    ... )
    True
    """
    terms = [term for poly in left.values() for term in poly.terms.items()]
    amounts = (
        1 + abs(Fraction(number)) * LARGE ** sum(power for _, power in monomial)
        for monomial, number in terms
    )
    return prod(amounts, start=NOTHING_LEFT)


def reduced_halves(poly: Poly) -> Poly:
    """The polynomial rewritten, with equal values, so that each floor(x/2) has the first power.

    >>> k = Poly.atom("k")
    >>> up, down = (k + 1) // 2, k // 2
    >>> str(reduced_halves(up + down))
    'k'
    >>> str(reduced_halves((up * 2 - k) ** 2 - up * 2 + k))
    '0'
    """
    # a floor before the floors inside it, which its square holds
    for atom in reversed(floors_in([poly])):
        if atom.args[1] == 2:
            above = atom.args[0]
            if above.terms.get((), 0) == 1:  # floor((x + 1)/2) = x - floor(x/2)
                poly = poly.substitute({atom: above - 1 - call("floor_div", above - 1, 2)})
    for atom in reversed(floors_in([poly])):
        if atom.args[1] == 2:
            poly = first_powers(poly, atom, atom.args[0])
    return poly


def first_powers(poly: Poly, half: Fn, whole: Poly) -> Poly:
    """The polynomial rewritten, with equal values at all sizes, so that the atom `half`, which is
    floor(whole/2), occurs in the first power only."""
    # x = whole is 2f or 2f + 1: (2f - x)(2f - x + 1) = 0, so 4f**2 = (4x - 2)f - x(x - 1)
    square = (Poly.atom(half) * (whole * 4 - 2) - whole * (whole - 1)) * Fraction(1, 4)
    while high := [m for m in poly.terms if dict(m).get(half, 0) > 1]:
        for monomial in high:
            powers = dict(monomial)
            powers[half] -= 2
            rest = tuple(sorted((a, p) for a, p in powers.items() if p))
            number = poly.terms[monomial]
            poly = poly - Poly({monomial: number}) + Poly({rest: number}) * square
    return poly
