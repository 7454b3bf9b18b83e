"""Which measurements does a command line ask for?"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import nn

from costmodel.equations import Mixer
from costmodel.load import user_module
from costmodel.requests import Given, combinations, fit, letters_of
from costmodel.tokens import phase_name
from profiler.measure import MeasureError, Request, device_name, dtype_name
from profiler.modules import Implementation, implementations


@dataclass(frozen=True)
class Plan:
    """What to measure: every combination of these."""

    mixers: Sequence[Mixer]
    given: Given = field(default_factory=dict)
    phases: Sequence[str] = ("training",)
    implementation: str = "all"
    """`all`, names separated by commas, or `path.py:Class`."""
    dtype: str = "fp32"
    device: str | None = None
    seed: int = 0


def requests(plan: Plan) -> list[Request]:
    """The measurements of a plan, mixer by mixer.

    Raises:
        MeasureError: an implementation, device or dtype that does not exist.
        SizeError: sizes that a mixer refuses.
    """
    device = device_name(plan.device)
    dtypes = [dtype_name(part.strip()) for part in plan.dtype.split(",")]
    found = []
    for mixer in plan.mixers:
        for phase in map(phase_name, plan.phases):
            for sizes in combinations(letters_of(mixer, phase), plan.given):
                fit(mixer, sizes)
                for chosen in chosen_implementations(mixer, plan.implementation, plan.mixers):
                    for dtype in dtypes:
                        found.append(Request(mixer, chosen, sizes, phase, dtype, device, plan.seed))
    if not found:
        raise MeasureError(f"none of these mixers has an implementation '{plan.implementation}'")
    return found


def chosen_implementations(
    mixer: Mixer, wanted: str, mixers: Sequence[Mixer]
) -> list[Implementation]:
    """The implementations of a mixer that a user names.

    Raises:
        MeasureError: a name that no mixer of the command has; the message lists the known ones.
    """
    if wanted.rpartition(":")[0].endswith(".py"):
        return [users_class(mixer, wanted)]
    try:
        known = implementations(mixer.name)
    except ValueError as error:
        raise MeasureError(str(error)) from error
    if wanted == "all":
        return list(known.values())
    names = [name.strip() for name in wanted.split(",")]
    everywhere = {name for m in mixers for name in implementations(m.name)}
    for name in names:
        if name not in everywhere:
            near = difflib.get_close_matches(name, sorted(everywhere), 1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise MeasureError(
                f"no implementation '{name}'{hint} {mixer.name} has {', '.join(known)}, and a "
                f"class of your own is given as FILE.py:Class"
            )
    return [known[name] for name in names if name in known]


def users_class(mixer: Mixer, wanted: str) -> Implementation:
    """A user's class, after showing that it computes the mixer's equations.

    It is described as the plain equations unless it carries a description of its own.

    Raises:
        MeasureError: no such class, or it computes something else; the message says where.
    """
    path, _, name = wanted.rpartition(":")
    module = user_module(Path(path))
    found = getattr(module, name, None)
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise MeasureError(f"{path} has no class '{name}' that is a torch.nn.Module")
    described = _described(mixer, found, wanted)
    from profiler.check import module_equals

    proof = module_equals(mixer, described)
    if not proof.passed:
        raise MeasureError(f"{wanted} is not {mixer.name}: {proof.detail}")
    return described


def _described(mixer: Mixer, found: type[nn.Module], name: str) -> Implementation:
    try:
        for implementation in implementations(mixer.name).values():
            if implementation.module is found:
                return implementation
    except ValueError:
        pass
    form = mixer.default_form
    return Implementation(
        mixer=mixer.name,
        name=name,
        module=found,
        form=form,
        rewrites=(),
        kernels=None,
        step_form=form if hasattr(found, "step") else None,
        step_rewrites=(),
        step_kernels=None,
    )
