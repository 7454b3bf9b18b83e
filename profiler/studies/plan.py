"""The plan of a study as a TOML file: a base mixer, the mixers compared with it, and the grid.

The keys are listed in tables/studies/README.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import replace

from costmodel.data import read_data
from costmodel.mixers.load import mixer as load_mixer, only_imported
from costmodel.program.chosen_sizes import values
from costmodel.program.phases import phase_name
from profiler.host.device import dtype_name
from profiler.records.schema import Name, RecordError, Size, checked
from profiler.studies.published_times import claim
from profiler.studies.study import StudyError

Names = Annotated[tuple[Name, ...], Meta(min_length=1)]
KINDS = ("cpu", "cuda")


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
    """The id of the published claim that the page quotes."""

    @property
    def mixers(self) -> tuple[str, ...]:
        """The base, then the others."""
        return (self.base, *self.others)


def load(path: Path) -> StudyPlan:
    """The plan in a TOML file, with mixers renamed to their `origin`, as in records.

    Raises:
        StudyError: a file that is no TOML, lacks a key, has an unknown key, or has a value that
            cannot be read; the message names file and key.
    """
    try:
        plan = checked(read_data(path), StudyPlan, "")
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
    base, *others = (load_mixer(name).origin for name in plan.mixers)
    if len({base, *others}) <= len(others):
        raise StudyError(f"{path}: others: a mixer is named twice, or is the base itself")
    return replace(plan, base=base, others=tuple(others))


def rules(plan: StudyPlan) -> Iterator[tuple[str, Callable[[str], Any], Sequence[str]]]:
    """Triples (key, rule, texts): the rule raises ValueError for a bad text under the key."""
    yield "base", measurable, (plan.base,)
    yield "others", measurable, plan.others
    yield "phases", phase_name, plan.phases
    yield "as_wide", lambda letter: size_of_one(letter, plan.mixers), plan.as_wide
    yield "claim", claim, (plan.claim,) if plan.claim else ()
    yield "devices", kind, tuple(plan.devices)
    for name, scale in plan.devices.items():
        yield f"devices.{name}.lengths", lambda text: values("l", text), (scale.lengths,)
        yield f"devices.{name}.widths", lambda text: values("d", text), (scale.widths,)
        dtypes = [part.strip() for part in scale.dtypes.split(",")]
        yield f"devices.{name}.dtypes", dtype_name, dtypes


def measurable(name: str) -> None:
    """Refuse the name of an unknown mixer, or of a mixer without size l or d."""
    only_imported(name)
    if lacking := {"l", "d"} - set(load_mixer(name).letters):
        raise StudyError(f"{name} has no size {' and no size '.join(sorted(lacking))}")


def size_of_one(letter: str, mixers: Sequence[str]) -> None:
    """Refuse a letter that is a size of no mixer, and the letters l and d of the grid."""
    if letter in ("l", "d") or not any(letter in load_mixer(name).letters for name in mixers):
        raise StudyError(f"'{letter}' is no further size of {', '.join(mixers)}")


def kind(device: str) -> None:
    """Refuse a name that is no kind of device."""
    if device not in KINDS:
        raise StudyError(f"'{device}' is no kind of device: expected {' or '.join(KINDS)}")
