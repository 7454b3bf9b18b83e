"""Under which convention is a question asked, with what a backward pass is to compute?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from typing import Any, Literal, TypedDict, TypeVar, cast

from costmodel.errors import ConventionError, EquationError, Refused, Unanswered
from costmodel.language.equations import TRAINED, Mixer, System
from costmodel.program.chosen_sizes import divisors, fit
from costmodel.program.chunks import token_by_token
from costmodel.program.conventions import (
    LOSS,
    OF_GRADIENTS,
    ONLY,
    RECOMPUTE,
    WANTED,
    Convention,
    convention,
    parted,
)
from costmodel.program.lowering import lower
from costmodel.program.phases import TRAINING_STEP, phase_name
from costmodel.program.wellformed import check_form, check_order
from costmodel.symbolic.at_sizes import held_to

Q = TypeVar("Q", bound=Callable[..., Any])


def addressed(question: Q) -> Q:
    """A question about a mixer, whose refusals have advice where its author asks."""

    @wraps(question)
    def asked(mixer: Mixer, *args: Any, **named: Any) -> Any:
        try:
            return question(mixer, *args, **named)
        except Refused as refused:
            raise refused.told(mixer.home) from refused.__cause__

    return cast(Q, asked)


@addressed
def system_of(mixer: Mixer, form: str | None, rewrites: tuple[str, ...], phase: str) -> System:
    """The equations that a question about a phase counts.

    `dense` widens axes, and one new token at position t has no axis beyond t: it is left out of
    inference. What changes the backward pass alone is left out where there is none.

    Raises:
        EquationError: no such form, or one that reads or defines entries that it must not; an array
            to recompute that the form does not compute.
        Unanswered: the mixer has nothing of what alone is to get a gradient, or no output of which
            a loss is the loss.
    """
    name = form or mixer.default_form
    if name not in mixer.forms:
        raise EquationError(
            f"{mixer.name} has no form '{name}': expected one of {', '.join(mixer.forms)}"
        )
    if not mixer.checked:
        for role in ("input", "output"):
            mixer.role(role)
        check_form(lower(mixer.forms[name]))
        if mixer.home:  # a command's table would show a dash for what is no mixer
            check_order(lower(mixer.forms[name]))
    rewrites, backward = parted(rewrites)
    if phase == "inference":
        rewrites = tuple(r for r in rewrites if r != "dense")
    system = lower(mixer.forms[name], rewrites)
    if phase == "inference":
        return token_by_token(system)
    if phase not in TRAINING_STEP:
        return system
    from costmodel.adjoint.reverse import adjoint

    if backward.loss:
        from costmodel.program.losses import with_loss

        system = with_loss(system, backward.loss, rewrites)
    trained = WANTED.get(backward.only, TRAINED)
    step = adjoint(
        system,
        rewrites=frozenset(OF_GRADIENTS).intersection(rewrites),
        trained=trained,
        recompute=backward.recompute,
    )
    if not step.backward:
        raise Unanswered(f"the output of {mixer.name} depends on no {' or '.join(trained)}")
    return step


class Training(TypedDict, total=False):
    """What the backward pass of a question computes.

    `recompute`: "all", or arrays of the forward pass that are computed again in the backward pass,
    in place of being kept; `only`: gradients of "parameters" or of "inputs" (contexts among them)
    alone; `loss`: one of `LOSSES`, counted with its gradients, its target given. Without one the
    gradient of the output is given.
    """

    recompute: str | Sequence[str]
    only: Literal["parameters", "inputs"]
    loss: str


def asked(given: str | Sequence[str] | Convention, phase: str, training: Training) -> Convention:
    """The convention of a question about a phase; what is to be trained is among its rewrites.

    Raises:
        ConventionError: an unknown name, or something to train in a phase without gradients.
    """
    found = convention(given)
    if unknown := sorted(training.keys() - Training.__annotations__.keys()):
        known = ", ".join(Training.__annotations__)
        raise ConventionError(f"unknown option '{unknown[0]}': a backward pass has {known}")
    names = [f"{RECOMPUTE}{array}" for array in recomputed(training.get("recompute"))]
    names += [f"{ONLY}{training['only']}"] if training.get("only") else []
    names += [f"{LOSS}{training['loss']}"] if training.get("loss") else []
    if names and phase_name(phase) not in TRAINING_STEP:
        raise of_the_backward_pass(phase)
    return convention((*found.names, *names)) if names else found


def recomputed(arrays: object) -> list[str]:
    """The names that `recompute` holds; none where it is not given.

    Raises:
        ConventionError: no names at all, or something else than names.
    """
    if arrays is None:
        return []
    listed = arrays.split(",") if isinstance(arrays, str) else arrays
    if not isinstance(listed, Sequence) or not all(isinstance(array, str) for array in listed):
        raise ConventionError(f"recompute: expected all, or names of arrays, got {arrays!r}")
    names = [array.strip() for array in listed if array.strip()]
    if not names:
        raise ConventionError("recompute names nothing: expected all, or arrays such as A,B")
    return names


def of_the_backward_pass(phase: str) -> ConventionError:
    """What to say where something to train is asked of a phase without gradients."""
    return ConventionError(
        f"what is recomputed, what gets a gradient and which loss is counted is a matter of the "
        f"backward pass: ask for the phase {' or '.join(TRAINING_STEP)}, not {phase}"
    )


def _fits(mixer: Mixer, sizes: Mapping[str, int]) -> None:
    """Refuse sizes at which a quotient of two is no whole number, or what has to be a power of two
    is none; other extents always fit."""
    parted = any(sizes.get(size, 0) % sizes.get(by, 1) for size, by in divisors(mixer).items())
    if parted or mixer.powers_of_two:
        fit(mixer, sizes)


def about_mixer(question: Q) -> Q:
    """A question about a mixer, whose answer refuses sizes at which the mixer does not exist."""

    @wraps(question)
    @addressed
    def asked(mixer: Mixer, *args: Any, **named: Any) -> Any:
        return held_to(question(mixer, *args, **named), partial(_fits, mixer))

    return cast(Q, asked)
