"""The equations of a phase, and the points of each equation that the phase executes.

A forward pass (phase `training`) executes every point, one-token inference (`inference`) the points
that the new token t owns, a backward pass (`backward`) every point of the equations of gradients,
and a `training-step` both passes. The token of a point is the latest input row that it depends on,
its owner the token whose decoding step executes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from costmodel.errors import Unanswered, Unsupported, described, did_you_mean
from costmodel.language.equations import JOINED, STEP, Equation, System
from costmodel.language.nodes import Flat, Gather, walk
from costmodel.program.chunks import token_by_token
from costmodel.program.dependence import Read, at_token, chosen_by_values, reads
from costmodel.program.lowering import lower
from costmodel.program.owners import owners
from costmodel.program.tokens import tokens
from costmodel.symbolic.constraints import Constraints, infeasible, projected, variables_of
from costmodel.symbolic.hashed_once import hashed_once
from costmodel.symbolic.polynomial import Poly

T = Poly.atom("t")


PHASES: Mapping[str, str] = {
    "training": "training",
    "forward": "training",
    "prefill": "training",
    "inference": "inference",
    "decode": "inference",
    "backward": "backward",
    "training-step": "training-step",
}
"""Name or alias of a phase -> phase."""


TRAINING_STEP = ("backward", "training-step")
"""The phases that need the equations of gradients; "training" is the forward pass alone."""


def phase_name(phase: str) -> str:
    """The phase for a name or alias; ValueError, with the nearest name, for any other text."""
    if not isinstance(phase, str):
        raise ValueError(f"expected the name of a phase, such as training, got {described(phase)}")
    if phase not in PHASES:
        hint = did_you_mean(phase, PHASES)
        raise ValueError(f"unknown phase '{phase}': {hint}expected one of {', '.join(PHASES)}")
    return PHASES[phase]


@hashed_once
@dataclass(frozen=True)
class IterationDomain:
    """The points of one equation that a phase executes: those that meet all `constraints`."""

    equation: Equation
    constraints: Constraints
    once: bool
    """Whether the points depend on no input and no context: executed once per pass, not per
    sequence."""
    joined: bool = False
    """Whether results are summed over the sequences of a batch, like gradients of weights."""

    @cached_property
    def variables(self) -> tuple[str, ...]:
        """The free indices, outermost first."""
        return tuple(index.atom for index in self.equation.indices)


def by_equation(parts: Iterable[IterationDomain]) -> Mapping[Equation, Sequence[IterationDomain]]:
    """Equation -> the disjoint parts of its points, of `iteration_domains`, in the order given."""
    found: dict[Equation, list[IterationDomain]] = {}
    for part in parts:
        found.setdefault(part.equation, []).append(part)
    return found


def underivable(system: System) -> Unsupported | None:
    """The reason why tokens cannot be derived for a system; None if they can."""
    try:
        return tokens(token_by_token(system)).underivable
    except Unsupported as reason:
        return reason


def _has_inference(system: System) -> bool:
    """Whether the tokens of a system are derived, and no output row depends on a later token."""
    return underivable(system) is None and tokens(token_by_token(system)).causal


def inference_reason(system: System) -> str | None:
    """The reason why one-token inference is undefined, with advice if the mixer is the user's own;
    None if it is defined."""
    refused = without_inference(system)
    return None if refused is None else str(refused.told(system.mixer.home))


def without_inference(system: System) -> Unanswered | None:
    """The error with the reason why one-token inference is undefined for a form: tokens are not
    derived, a step takes the whole token axis at once, or an output depends on later tokens. None
    if it is defined."""
    if unsupported := underivable(system):
        return Unanswered(
            f"which tokens each entry depends on is not derived: {unsupported}", unsupported.advice
        )
    system = token_by_token(system)
    known = tokens(system)
    if known.causal:
        return None
    mixer = system.mixer
    others = [
        name
        for name in mixer.forms
        if name != system.form and _has_inference(lower(mixer.forms[name]))
    ]
    hint = f"; form '{others[0]}' works token by token" if others else ""
    for equation in system.equations:
        for part, _ in walk(equation.value):
            if part.alone and known.spanned(part, equation):
                return Unanswered(
                    f"form '{system.form}' {part.alone} the whole token axis at once{hint}",
                    f"equation {equation.name} {part.alone} it",
                )
    reason, advice = _table_without_bound(system) or ("an output depends on later tokens", "")
    return Unanswered(f"not causal: {reason}{hint}", advice)


def _table_without_bound(system: System) -> tuple[str, str] | None:
    """(reason, advice) for a given index table p whose positions have no bound that depends on the
    row, so that y[i] = x[p[i]] may gather rows of all tokens; None if there is no such table. Only
    asked of a form that is not proven causal."""
    for equation in system.equations:
        for read in reads(equation):
            for at in (p.at.array for p in read.ref.positions if isinstance(p, Gather)):
                given = at not in system.defining and not variables_of([at.below or Poly()])
                if given and chosen_by_values(read.ref, tokens(system).of(read.ref.array)):
                    return (
                        f"{equation.name} gathers from {read.ref.array.name} at any position that "
                        f"{at.name} holds, later ones too",
                        "if these positions are no later than row i, declare below=lambda i: i",
                    )
    return None


@cache
def iteration_domains(system: System, phase: str) -> tuple[IterationDomain, ...]:
    """The points that a phase executes: for each equation the disjoint parts of its points.
    Inference leaves out work that depends on no input; other phases mark it `once` (per pass, not
    per sequence). Gradients of weights are `joined`: summed over the sequences of a batch.

    Raises:
        Unanswered: `inference` is undefined for the form; the reason names a form that has it.
        Unsupported: `inference` depends on where the sequence ends, or owners are not derived.
        ValueError: an unknown phase.
    """
    if phase == "training":
        return _of_forward_pass(system)
    if phase in TRAINING_STEP:
        forward = () if phase == "backward" else _of_forward_pass(system.forward)
        backward = (
            IterationDomain(equation, equation.domain, once=kind == STEP, joined=kind == JOINED)
            for equation, kind in system.backward.items()
        )
        return (*forward, *backward)
    if phase != "inference":
        raise ValueError(f"unknown phase '{phase}': expected one of {', '.join(PHASES)}")
    if refused := without_inference(system):
        raise refused
    known = owners(system)
    if known.ending:
        raise Unsupported(known.ending)
    return tuple(
        IterationDomain(equation, constraints, once=False)
        for equation in system.equations
        if equation.array in known.tokens.from_inputs
        for constraints in at_token(known.unbounded(equation), known.instance(equation), T)
    )


def _of_forward_pass(system: System) -> tuple[IterationDomain, ...]:
    """All points of a forward pass, in parts: those that depend on an input or a context, and the
    others, which are marked `once` (executed once per pass, not per sequence)."""
    known = tokens(system)
    return tuple(
        IterationDomain(equation, constraints, not given)
        for equation in system.equations
        for constraints, given in known.dependent(equation)
    )


NOW = Poly.atom("now")
"""The new token t where t > l is possible: `implied` assumes t <= l of a letter t."""


@dataclass(frozen=True)
class Overrun:
    """A read of weights by token t past the end or before the start of an axis, which happens where
    all `conditions` (in sizes and `NOW`) are >= 0."""

    array: str
    extent: Poly
    """The extent of the axis."""
    where: str
    """`past the end` or `before the start`."""
    conditions: Constraints

    def at(self, sizes: Mapping[str, int]) -> bool:
        """Whether the read lies outside its array at these sizes, which include t."""
        values = {**sizes, "now": sizes["t"]}
        return all(condition.rational(values) >= 0 for condition in self.conditions)

    def reason(self, sizes: Mapping[str, int]) -> str:
        """A sentence that says why there is no answer at these sizes: position t reads outside of
        the array; and which size to choose larger, where one alone makes an axis longer, with its
        value if t suffices."""
        letters, t = sorted(self.extent.letters), sizes["t"]
        hint = f": choose a larger {letters[0]}" if len(letters) == 1 else ""
        if hint and not self.at({**sizes, letters[0]: t}):
            hint = f": give {letters[0]} = {t} or more"
        return (
            f"position t = {sizes['t']} would read {self.where} of {self.array}, which has "
            f"{self.extent} = {self.extent.at(sizes)} positions{hint}"
        )


@cache
def overruns(system: System) -> tuple[Overrun, ...]:
    """The reads by which a new token t may leave an array that depends on no input, as weights do:
    x[t] + P[t] reads past the end of a table P (l, d) if t > l. Each is listed once.

    Raises:
        Unanswered: a form without one-token inference, such as attention in both directions.
        Unsupported: the points (values of indices) that a token executes are not derived.
    """
    found: dict[Overrun, None] = {}
    for part in iteration_domains(system, "inference"):
        for read in reads(part.equation):
            if read.ref.array not in tokens(system).from_inputs:
                found.update(dict.fromkeys(_overruns_of(part, read)))
    return tuple(found)


def _overruns_of(part: IterationDomain, read: Read) -> Iterator[Overrun]:
    """Yield an `Overrun` for each way in which a reference of `part` may read outside of its array
    for one new token t (`NOW` in the conditions): on each axis, past the end and before the start.
    Axes with a gather, x[p[i]], or a flattened position, (q - 1)*C + e, are skipped."""
    hidden = sorted({*part.variables, *(index.atom for index in read.over)}, reverse=True)
    now = {"t": NOW}
    around = frozenset(c.substitute(now) for c in part.constraints | read.constraints)
    for axis, position in enumerate(read.ref.positions):
        if isinstance(position, (Flat, Gather)):
            continue
        place, extent = position.substitute(now), read.ref.array.shape[axis]
        for where, beyond in (("past the end", place - extent - 1), ("before the start", -place)):
            outside = around | {beyond}
            if not infeasible(outside):
                yield Overrun(read.ref.array.name, extent, where, projected(outside, hidden))
