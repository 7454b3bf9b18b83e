"""Which measurements does a command line ask for?"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from costmodel.errors import SizeError, shortened
from costmodel.language.equations import Mixer
from costmodel.mixers.load import imported, known, user_module
from costmodel.program.chosen_sizes import Given
from costmodel.program.phases import phase_name
from profiler.host.device import device_name, dtype_name
from profiler.meters.energy.protocol import EnergyLimits
from profiler.modules.registry import Implementation, implementations
from profiler.proofs.equality import module_equals, step_equals
from profiler.records.reading import MeasureError
from profiler.run.plain import PlainModule, without_equations
from profiler.run.request import OF_ENERGY, Request
from profiler.run.subject import Measurable, Named, measurable, subject


@dataclass(frozen=True)
class Plan:
    """What to measure: every combination of the fields."""

    mixers: Sequence[Named]
    given: Given = field(default_factory=dict)
    phases: Sequence[str] = ("training",)
    implementation: str = "all"
    """Of mixers named without one: `all`, names separated by commas, or `path.py:Class`."""
    dtype: str = "fp32"
    device: str | None = None
    seed: int = 0
    compile: bool = False
    shared: bool = False
    energy: bool = True
    energy_window_s: float = EnergyLimits.window_s
    energy_trials: int = EnergyLimits.trials
    counters: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """The options of requests, which records have no field for."""
        return {
            "compile": self.compile,
            "shared": self.shared,
            "counters": self.counters,
            **{name: getattr(self, name) for name in OF_ENERGY},
        }


MOST_POINTS = 100_000
"""More measurements than this are refused as a typing error: each takes a second or more."""


def bounded(requests: int, rounds: int = 1, processes: int = 1) -> None:
    """MeasureError for a plan that nobody can measure."""
    if (points := requests * rounds * processes) > MOST_POINTS:
        raise MeasureError(
            f"{points:,} measurements are asked for ({requests:,} in a round, rounds: {rounds:,}, "
            f"processes: {processes:,}); at most {MOST_POINTS:,} are planned"
        )


def requests(plan: Plan, *, refused: bool = False) -> list[Request]:
    """The measurements of a plan, mixer by mixer.

    Args:
        refused: keep those at sizes that their mixer refuses, as long as there are others.

    Raises:
        MeasureError: an implementation, device or dtype that does not exist, a mixer of which
            nothing is left to measure, or a user's module that computes something else than its
            equations.
        SizeError: sizes that a mixer refuses.
        MeasureError: more than `MOST_POINTS` of them.
    """
    device = device_name(plan.device)
    dtypes = [dtype_name(part.strip()) for part in plan.dtype.split(",")]
    found: list[Request] = []
    for mixer, chosen in chosen_of_each(plan):
        combined = [
            (phase, sizes)
            for phase in map(phase_name, plan.phases)
            for sizes in subject(mixer).combinations(phase, plan.given)
        ]
        bounded(len(found) + len(combined) * len(chosen) * len(dtypes))
        _fit(mixer, [sizes for _, sizes in combined], refused)
        for implementation in chosen:
            own = implementation.home and not is_class(implementation.name)
            if isinstance(mixer, Mixer) and own:
                named = f"the module {implementation.module.__qualname__}"
                shown_equal(mixer, implementation, named, tuple(map(phase_name, plan.phases)))
        for phase, sizes in combined:
            for implementation in chosen:
                for dtype in dtypes:
                    asked = (implementation, sizes, phase, dtype, device, plan.seed)
                    found.append(Request(mixer, *asked, **plan.options))
    return found


def _fit(mixer: Measurable, combined: Sequence[Mapping[str, int]], refused: bool) -> None:
    """Raise SizeError where the mixer refuses sizes; with `refused` only where it refuses all."""
    complaints = []
    for sizes in combined:
        try:
            subject(mixer).fit(sizes)
        except SizeError as error:
            complaints.append(error)
    if complaints and not (refused and len(complaints) < len(combined)):
        raise complaints[0]


def chosen_of_each(plan: Plan) -> list[tuple[Measurable, list[Implementation]]]:
    """Each mixer with the implementations that are measured of it: the one that was named with it,
    or those that the plan names for all.

    Raises:
        MeasureError: none is left of a mixer, or of the plan's own names none is asked for.
    """
    named = [each if isinstance(each, tuple) else (each, None) for each in plan.mixers]
    plain = [mixer for mixer, own in named if own is None]
    if not plain and plan.implementation != "all":
        raise MeasureError(
            f"--impl {shortened(plan.implementation)} is for mixers that are named without an "
            f"implementation, and each has its own: leave out --impl"
        )
    found = []
    for mixer, own in named:
        chosen = chosen_implementations(mixer, own or plan.implementation, [] if own else plain)
        if not chosen:
            known = ", ".join(subject(mixer).implementations())
            raise MeasureError(
                f"--impl {shortened(plan.implementation)} leaves nothing to measure of "
                f"{mixer.origin}, which has {known}: name an implementation with its mixer, such "
                f"as {with_implementation(plan.implementation, plain)}"
            )
        found.append((mixer, chosen))
    return found


def with_implementation(wanted: str, mixers: Sequence[Measurable]) -> str:
    """A mixer that has one of the wanted implementations, and this one, as a user names them."""
    return next(
        f"{mixer.origin}:{name}"
        for mixer in mixers
        for name in map(str.strip, wanted.split(","))
        if name in subject(mixer).implementations()
    )


def chosen_implementations(
    mixer: Measurable, wanted: str, mixers: Sequence[Measurable]
) -> list[Implementation]:
    """The implementations of a mixer that a user names; none where only another mixer has them.

    Raises:
        MeasureError: a name that neither the mixer nor one of `mixers` has; the message lists the
            known ones.
    """
    found: dict[str, Implementation] = {}
    for name in (part.strip() for part in wanted.split(",")):
        if is_class(name):
            found[name] = users_class(mixer, name)
            continue
        known = subject(mixer).implementations()
        if name == "all":
            found |= known
        elif name in known:
            found[name] = known[name]
        elif not any(name in subject(other).implementations() for other in mixers):
            near = difflib.get_close_matches(name, [*known, "all"], 1)
            hint = f"did you mean '{near[0]}'? " if near else ""
            raise MeasureError(
                f"no implementation '{name}': {hint}{mixer.name} has {', '.join(known)}, and a "
                f"class of your own is given as FILE.py:Class"
            )
    return list(found.values())


def candidate_in_record(mixer: str, implementation: str, form: str) -> tuple[Mixer, Implementation]:
    """The mixer and the implementation that a record names: built-in ones, or those of a user's
    files that this process has already imported.

    Raises:
        UnknownMixer, MeasureError: one of them does not exist (any more), or is in a file that has
            not been imported; or the record, whose form is "", is of a module without equations.
    """
    if not form:
        raise MeasureError(without_equations(mixer))
    found = known(mixer)
    return found, implementation_of(found, implementation, imported)


def implementation_of(
    mixer: Measurable, name: str, load: Callable[[Path], ModuleType] = user_module
) -> Implementation:
    """The implementation of this name, FILE.py:Class included.

    Args:
        load: gives the module of a user's file.

    Raises:
        UnknownMixer, MeasureError: it does not exist (any more), or `load` refuses its file.
    """
    if is_class(name):
        return users_class(mixer, name, load)
    known = subject(mixer).implementations()
    if name not in known:
        raise MeasureError(f"no implementation '{name}': {mixer.name} has {', '.join(known)}")
    return known[name]


def is_class(name: str) -> bool:
    """Whether an implementation is named as FILE.py:Class."""
    return name.rpartition(":")[0].endswith(".py")


def users_class(
    mixer: Measurable, wanted: str, load: Callable[[Path], ModuleType] = user_module
) -> Implementation:
    """A user's class, after proving that it computes the mixer's equations, token by token too
    where it has `step`.

    It is described as the plain equations unless it carries a description of its own, and named as
    the user did, so that a record of it leads back to its file.

    Raises:
        MeasureError: no such class, or it computes something else; the message says where.
    """
    if isinstance(mixer, PlainModule):
        raise MeasureError(f"{mixer.origin} has no equations that {wanted} could compute")
    path, _, name = wanted.rpartition(":")
    if not Path(path).is_file():
        raise MeasureError(f"no file '{path}': a class of your own is given as FILE.py:Class")
    module = load(Path(path))
    found = getattr(module, name, None)
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise MeasureError(f"{path} has no class '{name}' that is a torch.nn.Module")
    claimed = _users_implementation(mixer, found, wanted)
    shown_equal(mixer, claimed, wanted, ("training", "inference"))
    return claimed


def shown_equal(mixer: Mixer, claimed: Implementation, named: str, phases: Sequence[str]) -> None:
    """MeasureError where a module differs from its equations, in `step` too for inference."""
    proofs = [module_equals] + [step_equals] * ("inference" in phases)
    for prove in proofs:
        proof = prove(mixer, claimed)
        if proof.passed is False:
            failed = proof.name.removeprefix(f"{claimed.name}: ")
            raise MeasureError(f"{named} is not {mixer.name}: {failed} fails {proof.detail}")


def _users_implementation(mixer: Mixer, found: type[nn.Module], name: str) -> Implementation:
    try:
        for implementation in implementations(mixer).values():
            if implementation.module is found:
                return replace(implementation, name=name)
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
        options=mixer.options,
    )


def candidate_of(description: Mapping[str, Any]) -> tuple[Measurable, Implementation]:
    """The mixer or module, and the implementation of a description; a user's class is proven first.

    Raises:
        UnknownMixer, MeasureError: a mixer or an implementation that does not exist (any more).
    """
    mixer = measurable(description["mixer"])
    return mixer, implementation_of(mixer, description["implementation"])


def request_of(
    description: Mapping[str, Any], candidate: tuple[Measurable, Implementation] | None = None
) -> Request:
    """The request that `request_json` gave; its candidate is looked up where it is not given."""
    return Request(
        *(candidate or candidate_of(description)),
        description["sizes"],
        description["phase"],
        description["dtype"],
        description["device"],
        description["seed"],
        **description["options"],
    )
