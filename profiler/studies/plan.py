"""The plan of a study as a TOML file: mixers that are compared with a base mixer on a grid, or
networks whose training steps are compared with printed times.

The keys are listed in tables/studies/README.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from msgspec import Meta, Struct
from msgspec.structs import replace

from costmodel.data import read_data
from costmodel.mixers.load import mixer as load_mixer, refuse_unimported
from costmodel.program.chosen_sizes import values
from costmodel.program.phases import phase_name
from profiler.records.element_types import dtype_name
from profiler.records.schema import Name, RecordError, Size, checked
from profiler.studies.published_times import claim, printed_times
from profiler.studies.study import StudyError

Names = Annotated[tuple[Name, ...], Meta(min_length=1)]
KINDS = ("cpu", "cuda")

T = TypeVar("T")


class Scale(Struct, frozen=True, forbid_unknown_fields=True):
    """The grid of a study on one kind of device."""

    lengths: Name
    widths: Name
    dtypes: Name
    rounds: Size
    seconds: Annotated[float, Meta(gt=0, le=1e6)]
    """The time limit for the samples of one latency."""
    operations: Size
    """The limit of derived operations per call; calls above it take minutes and are left out."""
    live_bytes: Size | None = None
    """The limit of the derived live set in bytes; calls above it are left out, as they would fill
    the main memory. None: no limit (on a GPU, running out of memory is a finding)."""
    instead: str = ""
    """A sentence on why this grid is smaller than the grids of other devices."""


class StudyPlan(Struct, frozen=True, forbid_unknown_fields=True):
    """Mixers that are compared with a base mixer, on a grid per kind of device."""

    question: Name
    base: Name
    others: Names
    phases: Names
    devices: Annotated[dict[str, Scale], Meta(min_length=1)]
    as_wide: tuple[Name, ...] = ()
    """The letters of further sizes that equal the width d."""
    claim: str = ""
    """The id of the published claim that the page quotes; "" for none."""

    @property
    def mixers(self) -> tuple[str, ...]:
        """The base, then the others."""
        return (self.base, *self.others)


class Amount(Struct, frozen=True, forbid_unknown_fields=True):
    """The amount of training on one kind of device."""

    batch: Size
    """Sequences in a batch."""
    steps: Size
    """Timed steps in a visit."""
    rounds: Size

    @property
    def trained(self) -> int:
        """The timed steps of each network, which has two visits per round."""
        return 2 * self.steps * self.rounds


class TrainingPlan(Struct, frozen=True, forbid_unknown_fields=True):
    """Networks whose training steps are timed in turns, beside printed times of trainings."""

    question: Name
    printed: Name
    """The table under tables/published whose training times are compared with: `Table 7.4`."""
    batch: Size
    """Sequences in a batch of the printed trainings."""
    iterations: Size
    """Steps of a printed training."""
    devices: Annotated[dict[str, Amount], Meta(min_length=1)]
    otherwise: tuple[Name, ...] = ()
    """Sentences on further differences between the measured steps and the printed trainings."""


def load(path: Path) -> StudyPlan | TrainingPlan:
    """Read the plan in a TOML file: a `TrainingPlan` if the file has the key `printed`, else a
    `StudyPlan`, in which each mixer has the name that its records have (`origin`). Raises
    StudyError: a file that is no TOML, lacks a key, has an unknown key, has a value that cannot be
    read, or names a mixer twice; the message names file and key."""
    try:
        data = read_data(path)
        kind: type[StudyPlan | TrainingPlan] = TrainingPlan if "printed" in data else StudyPlan
        plan = checked(data, kind, "")
    except RecordError as reason:
        raise StudyError(f"{path}: {reason}") from None
    except ValueError as reason:
        raise StudyError(f"{path} is not a readable plan of a study: {reason}") from None
    for key, rule, texts in rules(plan):
        for text in texts:
            try:
                rule(text)
            except ValueError as reason:
                raise StudyError(f"{path}: {key}: {reason}") from None
    if isinstance(plan, TrainingPlan):
        return plan
    base, *others = (load_mixer(name).origin for name in plan.mixers)
    if len({base, *others}) <= len(others):
        twice = next(one for k, one in enumerate(others) if one in (base, *others[:k]))
        first = "base" if twice == base else "others"
        raise StudyError(f"{path}: others: {twice} is named in '{first}' already: leave one out")
    return replace(plan, base=base, others=tuple(others))


def rules(
    plan: StudyPlan | TrainingPlan,
) -> Iterator[tuple[str, Callable[[str], Any], Sequence[str]]]:
    """Yield the checks of a plan, as (key, rule, texts): the caller calls the rule with each of the
    texts, which stand under the key ("devices.cpu.lengths"); it raises ValueError for a bad one."""
    yield "devices", kind, tuple(plan.devices)
    if isinstance(plan, TrainingPlan):
        yield "printed", printed_times, (plan.printed,)
        return
    yield "base", measurable, (plan.base,)
    yield "others", measurable, plan.others
    yield "phases", phase_name, plan.phases
    yield "as_wide", lambda letter: size_of_one(letter, plan.mixers), plan.as_wide
    yield "claim", claim, (plan.claim,) if plan.claim else ()
    for name, scale in plan.devices.items():
        yield f"devices.{name}.lengths", lambda text: values("l", text), (scale.lengths,)
        yield f"devices.{name}.widths", lambda text: values("d", text), (scale.widths,)
        dtypes = [part.strip() for part in scale.dtypes.split(",")]
        yield f"devices.{name}.dtypes", dtype_name, dtypes


def measurable(name: str) -> None:
    """StudyError (or UnknownMixer) for the name of an unknown mixer, of a mixer in a user's file
    that was not imported before, or of a mixer without size l or d."""
    refuse_unimported(name)
    if lacking := {"l", "d"} - set(load_mixer(name).letters):
        raise StudyError(
            f"{name} has no size {' and no size '.join(sorted(lacking))}: name mixers with sizes l "
            "and d"
        )


def size_of_one(letter: str, mixers: Sequence[str]) -> None:
    """StudyError for a letter that is a size of no mixer, and for l and d, which the grid sets."""
    if letter in ("l", "d") or not any(letter in load_mixer(name).letters for name in mixers):
        there = dict.fromkeys(x for name in mixers for x in load_mixer(name).letters)
        own = ", ".join(x for x in there if x not in ("l", "d"))
        raise StudyError(
            f"'{letter}' is no size of {', '.join(mixers)} besides l and d, which the grid sets: "
            + (f"expected one of {own}" if own else "these mixers have no other size")
        )


def kind(device: str) -> None:
    """StudyError for a key of `devices` that is no kind of device, cpu or cuda."""
    if device not in KINDS:
        raise StudyError(f"'{device}' is no kind of device: expected {' or '.join(KINDS)}")


def of_device(devices: Mapping[str, T], device: str, study: str) -> T:
    """A study's plan for a kind of device (cpu, cuda). Raises StudyError: there is none."""
    if device not in devices:
        known = ", ".join(devices)
        raise StudyError(f"study {study} has no plan for '{device}': it has one for {known}")
    return devices[device]
