"""The implementation that a user's class (FILE.py:Class) is, if it computes the equations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from os.path import isfile
from pathlib import Path
from types import ModuleType

from torch import nn

from costmodel.language.equations import Mixer
from costmodel.mixers.load import user_module
from profiler.modules.registry import Implementation, implementations
from profiler.proofs.equality import module_equals, step_equals
from profiler.records.reading import MeasureError
from profiler.run.plain import PlainModule


def users_class(
    mixer: Mixer | PlainModule, wanted: str, load: Callable[[Path], ModuleType] = user_module
) -> Implementation:
    """Return the implementation of a user's class (`wanted`: FILE.py:Class), after a proof that the
    class computes the mixer's equations, token by token too if it has `step`; `load` imports FILE.
    Raises MeasureError: as `described_class`; or the class computes something else, which it
    tells."""
    claimed = described_class(mixer, wanted, load)
    assert isinstance(mixer, Mixer)  # described_class refuses a module without equations
    refuse_unequal(mixer, claimed, wanted, ("training", "inference"))
    return claimed


def described_class(
    mixer: Mixer | PlainModule, wanted: str, load: Callable[[Path], ModuleType] = user_module
) -> Implementation:
    """Return the implementation of a user's class (`wanted`: FILE.py:Class), without a proof;
    `load` imports FILE.

    A class without a description of its own is described as executing the default form without
    rewrites. The implementation's name is as the user gave it, so that a record leads back to the
    file. Raises MeasureError: no such file or class, or `mixer` is a module without equations.
    """
    if isinstance(mixer, PlainModule):
        raise MeasureError(
            f"{mixer.origin} has no equations, so {wanted} cannot implement them: name {wanted} in "
            f"place of {mixer.origin}"
        )
    path, _, name = wanted.rpartition(":")
    if not isfile(path):
        raise MeasureError(f"no file '{path}': a class of your own is given as FILE.py:Class")
    module = load(Path(path))
    found = getattr(module, name, None)
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        there = [x for x, kind in vars(module).items()
                 if isinstance(kind, type) and issubclass(kind, nn.Module)]  # fmt: skip
        raise MeasureError(
            f"{path} has no class '{name}' that is a torch.nn.Module: it has "
            f"{', '.join(there) or 'none'}"
        )
    return _users_implementation(mixer, found, wanted)


def refuse_unequal(
    mixer: Mixer, claimed: Implementation, named: str, phases: Sequence[str]
) -> None:
    """Raise MeasureError if the module of `claimed`, called `named` in the message, is shown to
    differ from its equations; if `phases` has inference, its `step` is compared too. A comparison
    that cannot be made raises nothing."""
    mixer = mixer.at_any_sizes
    proofs = [module_equals] + [step_equals] * ("inference" in phases)
    for prove in proofs:
        proof = prove(mixer, claimed)
        if proof.passed is False:
            failed = proof.name.removeprefix(f"{claimed.name}: ")
            raise MeasureError(
                f"{named} does not compute {mixer.name}: the check '{failed}' fails {proof.detail}"
            )


def _users_implementation(mixer: Mixer, found: type[nn.Module], name: str) -> Implementation:
    """Return the implementation that describes a user's class, under the given name; for a class
    without description make one that executes the default form without rewrites."""
    try:
        for implementation in implementations(mixer).values():
            if implementation.module is found:
                return replace(implementation, name=name)
    except ValueError:  # the mixer has no described implementation
        pass
    form = mixer.default_form
    return Implementation(
        mixer=mixer.name,
        name=name,
        made=found,
        form=form,
        rewrites=(),
        kernels=None,
        step_form=form if hasattr(found, "step") else None,
        step_rewrites=(),
        step_kernels=None,
        options=mixer.options,
    )
