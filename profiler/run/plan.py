"""The measurements that a command line asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from costmodel.errors import SizeError, did_you_mean, shortened
from costmodel.language.equations import Mixer
from costmodel.mixers.load import user_module
from costmodel.program.chosen_sizes import Given, refuse_unknown
from costmodel.program.phases import phase_name
from profiler.host.device import device_name
from profiler.meters.energy.protocol import EnergyLimits
from profiler.modules.registry import Implementation
from profiler.records.element_types import dtype_name
from profiler.records.reading import MeasureError
from profiler.run.in_record import is_class, named_in
from profiler.run.own_class import described_class, refuse_unequal, users_class
from profiler.run.request import OF_ENERGY, Request
from profiler.run.subject import Measurable, Named, measurable, subject


@dataclass(frozen=True)
class Plan:
    """What to measure: every combination of the fields' values."""

    mixers: Sequence[Named]
    given: Given = field(default_factory=dict)
    phases: Sequence[str] = ("training",)
    implementation: str = "all"
    """For mixers named without an implementation: `all`, comma-separated names, or
    `path.py:Class`."""
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
    def with_equations(self) -> list[Mixer]:
        """The named mixers, without modules that have no equations."""
        found = [named[0] if isinstance(named, tuple) else named for named in self.mixers]
        return [mixer for mixer in found if isinstance(mixer, Mixer)]

    @property
    def options(self) -> dict[str, Any]:
        """A dict: field of `Request` -> value, for the options that all requests share."""
        return {
            "compile": self.compile,
            "shared": self.shared,
            "counters": self.counters,
            **{name: getattr(self, name) for name in OF_ENERGY},
        }


MOST_POINTS = 100_000
"""The most measurements of a plan; more are refused as a typing error, as each takes a second."""


def refuse_too_many(requests: int, rounds: int = 1, processes: int = 1) -> None:
    """Raise MeasureError if requests x rounds x processes are more than `MOST_POINTS`."""
    if (points := requests * rounds * processes) > MOST_POINTS:
        raise MeasureError(
            f"the plan has {points:,} measurements ({requests:,} in a round, rounds: {rounds:,}, "
            f"processes: {processes:,}): expected at most {MOST_POINTS:,}"
        )


Unequal = Callable[[Request, MeasureError], object]
"""A function that receives a request of a module that differs from its equations, and the error."""


def requests(
    plan: Plan,
    *,
    refused: bool = False,
    unequal: Unequal | None = None,
    rounds: int = 1,
    processes: int = 1,
) -> list[Request]:
    """List the measurements of a plan as requests, mixer by mixer.

    Args:
        refused: keep requests whose sizes their mixer refuses, if others remain.
        unequal: receives the requests of a user's module that differs from its equations, which
            the list then leaves out, if others remain.
        rounds: how often each of `processes` processes measures every request.

    Raises:
        MeasureError: an unknown implementation, device or dtype; a mixer without an implementation
            to measure; a user's module that differs from its equations, unless `unequal` receives
            it; options that `Request` refuses; more than `MOST_POINTS` measurements.
        SizeError: a mixer refuses the sizes.
    """
    refuse_unknown(plan.given, plan.with_equations)
    device = device_name(plan.device)
    dtypes = [dtype_name(part.strip()) for part in plan.dtype.split(",")]
    found: list[Request] = []
    apart: list[tuple[Request, MeasureError]] = []
    for mixer, chosen in chosen_of_each(plan):
        combined = [
            (phase, sizes)
            for phase in map(phase_name, plan.phases)
            for sizes in subject(mixer).combinations(phase, plan.given)
        ]
        number = len(found) + len(combined) * len(chosen) * len(dtypes)
        refuse_too_many(number, rounds, processes)
        _refuse_sizes(mixer, [sizes for _, sizes in combined], refused)
        wrong = {one.name: why for one in chosen if (why := _why_unequal(mixer, one, plan))}
        for phase, sizes in combined:
            for implementation in chosen:
                for dtype in dtypes:
                    asked = (implementation, sizes, phase, dtype, device, plan.seed)
                    request = Request(mixer, *asked, **plan.options)
                    if why := wrong.get(implementation.name):
                        apart.append((request, why))
                    else:
                        found.append(request)
    if apart and (unequal is None or not found):
        raise apart[0][1]
    if unequal is not None:
        for each in apart:
            unequal(*each)
    return found


def _why_unequal(
    mixer: Measurable, implementation: Implementation, plan: Plan
) -> MeasureError | None:
    """The error that says where a user's module differs from its equations; None for a module that
    does not, and for a built-in one."""
    own = is_class(implementation.name)  # FILE.py:Class, else registered by a user's file
    if not isinstance(mixer, Mixer) or not (own or implementation.home):
        return None
    named = implementation.name if own else f"the module {implementation.module.__qualname__}"
    called = ("training", "inference") if own else tuple(map(phase_name, plan.phases))
    try:
        refuse_unequal(mixer, implementation, named, called)
    except MeasureError as error:
        return error
    return None


def _refuse_sizes(mixer: Measurable, combined: Sequence[Mapping[str, int]], refused: bool) -> None:
    """Raise SizeError if the mixer refuses any of the sizes; with `refused`, if it refuses all."""
    complaints = []
    for sizes in combined:
        try:
            subject(mixer).fit(sizes)
        except SizeError as error:
            complaints.append(error)
    if complaints and not (refused and len(complaints) < len(combined)):
        raise complaints[0]


def chosen_of_each(plan: Plan) -> list[tuple[Measurable, list[Implementation]]]:
    """Pairs of each mixer of the plan and the list of its implementations to measure: the one that
    is named with the mixer, as in MIXER:IMPLEMENTATION, or those that `plan.implementation` names.
    Raises MeasureError: a mixer has none of the implementations that the plan names, or the plan
    names some although each mixer is named with its own."""
    named = [each if isinstance(each, tuple) else (each, None) for each in plan.mixers]
    plain = [mixer for mixer, own in named if own is None]
    if not plain and plan.implementation != "all":
        raise MeasureError(
            f"--impl {shortened(plan.implementation)} applies to mixers named without an "
            f"implementation, but every mixer names one: leave out --impl"
        )
    found = []
    for mixer, own in named:
        # a class is proven by `requests`
        chosen = chosen_implementations(
            mixer, own or plan.implementation, [] if own else plain, described_class
        )
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
    """An example of MIXER:IMPLEMENTATION: the first of `mixers` that has one of the implementations
    in `wanted`, names separated by commas; at least one mixer must have one."""
    return next(
        f"{mixer.origin}:{name}"
        for mixer in mixers
        for name in map(str.strip, wanted.split(","))
        if name in subject(mixer).implementations()
    )


def chosen_implementations(
    mixer: Measurable,
    wanted: str,
    mixers: Sequence[Measurable],
    class_of: Callable[[Measurable, str], Implementation] = users_class,
) -> list[Implementation]:
    """The implementations of a mixer or module that `wanted` lists, separated by commas: a name,
    `all`, or FILE.py:Class, which `class_of` looks up. A name that another one of `mixers`, for
    which the list is meant too, has, but not this mixer, is skipped; [] if all are. Raises
    MeasureError: neither the mixer nor any of `mixers` has the name."""
    found: dict[str, Implementation] = {}
    for name in (part.strip() for part in wanted.split(",")):
        if is_class(name):
            found[name] = class_of(mixer, name)
            continue
        known = subject(mixer).implementations()
        if name == "all":
            found |= known
        elif name in known:
            found[name] = known[name]
        elif not any(name in subject(other).implementations() for other in mixers):
            hint = did_you_mean(name, [*known, "all"])
            raise MeasureError(
                f"no implementation '{name}': {hint}{mixer.name} has {', '.join(known)}, and a "
                f"class of your own is given as FILE.py:Class"
            )
    return list(found.values())


def implementation_of(
    mixer: Measurable, name: str, load: Callable[[Path], ModuleType] = user_module
) -> Implementation:
    """Find the mixer's implementation of this name, which may be FILE.py:Class.

    Args:
        load: imports a user's file and returns the module.

    Raises:
        UnknownMixer, MeasureError: there is no such implementation, or `load` refuses its file.
    """
    if is_class(name):
        return users_class(mixer, name, load)
    return named_in(subject(mixer).implementations(), name, mixer.name)


def candidate_of(description: Mapping[str, Any]) -> tuple[Measurable, Implementation]:
    """The mixer or module and the implementation in a description, a user's class proven first;
    UnknownMixer or MeasureError if one does not exist any more."""
    mixer = measurable(description["mixer"])
    return mixer, implementation_of(mixer, description["implementation"])


def request_of(
    description: Mapping[str, Any], candidate: tuple[Measurable, Implementation] | None = None
) -> Request:
    """Make the request that a description from another process (`request_json`) names: its sizes,
    phase, dtype, device, seed, options, and mixer and implementation, which are looked up unless
    `candidate` is given."""
    return Request(
        *(candidate or candidate_of(description)),
        description["sizes"],
        description["phase"],
        description["dtype"],
        description["device"],
        description["seed"],
        **description["options"],
    )
