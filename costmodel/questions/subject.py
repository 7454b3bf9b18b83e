"""The system of equations and the convention that a question about a phase is asked under."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from inspect import signature
from typing import Any, Literal, TypedDict, TypeVar, cast

from costmodel.errors import (
    ConventionError,
    EquationError,
    Refused,
    SizeError,
    Unanswered,
    WrongKind,
    described,
)
from costmodel.language.equations import TRAINED, Mixer, System
from costmodel.program.chosen_sizes import divisors, fit, has_other_quotients
from costmodel.program.chunks import token_by_token
from costmodel.program.conventions import (
    LOSS,
    OF_GRADIENTS,
    ONLY,
    RECOMPUTE,
    WANTED,
    Convention,
    convention,
    of_sequences,
    parted,
)
from costmodel.program.lowering import lower
from costmodel.program.online import require_even_blocks
from costmodel.program.phases import TRAINING_STEP, phase_name
from costmodel.program.wellformed import check_at, check_form, check_order
from costmodel.symbolic.at_sizes import held_to, refuse_other_head_width
from costmodel.symbolic.sizes import checked

Q = TypeVar("Q", bound=Callable[..., Any])


def mixer_required(question: Q) -> Q:
    """Wrap a question about a mixer (decorator): a first argument that is no mixer, or a network as
    one mixer, raises WrongKind, and a refusal about a mixer of a user's own file has its advice for
    authors added to its message."""

    @wraps(question)
    def asked(mixer: Mixer, *args: Any, **named: Any) -> Any:
        """The question's answer about `mixer`. WrongKind for no mixer, and for a network as one
        mixer (`checked`, without equations); a refusal about a mixer of a user's own file (`home`)
        is raised again with advice for authors at the end of its message."""
        if not isinstance(mixer, Mixer):
            raise WrongKind(f"expected a mixer, such as cm.mixer('she'), got {described(mixer)}")
        if mixer.checked and not any(form.equations for form in mixer.forms.values()):
            raise WrongKind(f"expected equations, but {mixer.name} is a network, whose "
                            "parts have them: ask costmodel.networks.model")  # fmt: skip
        try:
            return question(mixer, *args, **named)
        except Refused as refused:
            raise refused.told(mixer.home) from refused.__cause__

    return cast(Q, asked)


@mixer_required
def system_of(mixer: Mixer, form: str | None, rewrites: tuple[str, ...], phase: str) -> System:
    """The equations of a form in a phase, after the rewrites; with gradients if the phase has them.

    Inference ignores rewrites of whole sequences (`of_sequences`), such as `dense` and the
    paddings: one new token at position t has no axis beyond t. Phases without gradients ignore
    rewrites that change only the backward pass. The equations of a user's own mixer (not marked
    `checked`) are validated first.

    Raises:
        EquationError: an unknown form, a form that reads or defines entries that it must not, or
            an array to recompute that the form does not compute.
        Unanswered: the output depends on none of the arrays whose gradients are asked for, or the
            mixer has no output that the loss could take.
        Unsupported: an equation whose gradient is not derived.
    """
    name = form or mixer.default_form
    if name not in mixer.forms:
        raise EquationError(
            f"{mixer.name} has no form '{name}': expected one of {', '.join(mixer.forms)}"
        )
    if not mixer.checked:
        for role in ("input", "output"):
            mixer.role(role)
        try:
            check_form(lower(mixer.forms[name]))
        except EquationError as error:
            if "h" not in mixer.letters:
                raise
            raise EquationError(f"{mixer.name} has h = d/n in its equations: {error}") from error
        if mixer.home:  # else a command's table would show dashes for a file that is no mixer
            check_order(lower(mixer.forms[name]))
    rewrites, backward = parted(rewrites)
    if phase == "inference":
        rewrites = tuple(r for r in rewrites if not of_sequences(r))
    system = lower(mixer.forms[name], rewrites)
    if phase == "inference":
        return token_by_token(system)
    if phase not in TRAINING_STEP:
        return system
    from costmodel.adjoint.reverse import adjoint

    require_even_blocks(system)
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
        raise Unanswered(
            f"the output of {mixer.name} depends on no {' or '.join(trained)}, so "
            "there is no gradient: ask for phase training"
        )
    return step


class Training(TypedDict, total=False):
    """Options of a backward pass.

    `recompute`: "all", or the arrays of the forward pass that the backward pass computes again
    instead of keeping them. `only`: compute the gradients of "parameters" only, or of "inputs"
    (and contexts) only. `loss`: one of `LOSSES`; its operations and gradients are counted, and its
    target is given. Without a loss the gradient of the output is given.
    """

    recompute: str | Sequence[str]
    only: Literal["parameters", "inputs"]
    loss: str


def asked(given: str | Sequence[str] | Convention, phase: str, training: Training) -> Convention:
    """The convention of a question about a phase, with the options of training (`recompute`,
    `only`, `loss`) added as rewrites.

    Raises:
        ConventionError: an unknown name or option, names that exclude each other, or an option of
            training in a phase without gradients.
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
    """The option `recompute` (text with commas, or a list) as a list of array names; [] for None.

    Raises:
        ConventionError: an empty list, or a value that is neither text nor a list of texts.
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
    """The error for an option of training in a phase without gradients."""
    return ConventionError(
        "recompute, only and loss are options of a backward pass: ask for the phase "
        f"{' or '.join(TRAINING_STEP)}, not {phase}"
    )


def _fits(mixer: Mixer, form: str | None, given: Mapping[str, int]) -> dict[str, int]:
    """The sizes at which an answer about a mixer is evaluated: the given ones, and the sizes in
    braces behind the mixer's name, which replace given values.

    Raises:
        SizeError: an unknown size, or one that has another value in braces; or sizes at which an
            extent is a fraction, a quantity that has to be a power of two is none, a size exceeds
            its bound, or h is not d/n.
        EquationError: sizes at which equations of the form read or define an entry wrongly; the
            forms of built-in mixers are not checked.
    """
    sizes = {**checked(given, mixer.letters), **mixer.given}
    for letter, value in mixer.given.items():
        if given.get(letter, value) != value:
            raise SizeError(
                f"{letter} = {given[letter]} is not read, as {mixer.name} has {letter} = {value}: "
                f"leave out {letter}"
            )
    # extents without quotients are whole at all sizes, so that `fit` need not check them
    uneven = any(sizes.get(size, 0) % sizes.get(by, 1) for size, by in divisors(mixer).items())
    if uneven or mixer.powers_of_two or mixer.bounded_sizes or has_other_quotients(mixer):
        fit(mixer, sizes)
    if "h" not in mixer.letters:
        refuse_other_head_width(sizes)
    well_formed_at(mixer, form, sizes)
    return sizes


def well_formed_at(mixer: Mixer, form: str | None, sizes: Mapping[str, int]) -> None:
    """Raise EquationError if equations of a form (None: the first) of a user's mixer read or define
    an entry wrongly at these sizes."""
    if not mixer.checked and mixer.forms:
        check_at(lower(mixer.forms[form or mixer.default_form]), sizes)


def about_mixer(question: Q) -> Q:
    """Wrap a question about a mixer (decorator) as `mixer_required` does; and the answer that is
    returned raises SizeError at sizes that do not fit the mixer."""
    bound = signature(question).bind_partial

    @wraps(question)
    @mixer_required
    def asked(mixer: Mixer, *args: Any, **named: Any) -> Any:
        form = bound(mixer, *args, **named).arguments.get("form")
        answer = question(mixer, *args, **named)
        return held_to(answer, partial(_fits, mixer, form), mixer.letters)

    return cast(Q, asked)
