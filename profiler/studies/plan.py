"""What does a file say of a study: which mixers stand beside which one, at which sizes on what?

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
    """What a study measures on one kind of device."""

    lengths: Name
    widths: Name
    dtypes: Name
    rounds: Size
    seconds: Annotated[float, Meta(gt=0, le=1e6)]
    """Most seconds to sample one latency for."""
    operations: Size
    """A call that executes more, as derived, is left out: it would take minutes."""
    live_bytes: Size | None = None
    """A forward pass or training step that holds more, as derived, is left out where no device
    refuses it (a machine's main memory); None where running out of memory is a finding."""
    instead: str = ""
    """Why this is less than elsewhere."""


class StudyPlan(Struct, frozen=True, forbid_unknown_fields=True):
    """Mixers beside a base, on a grid for each kind of device."""

    question: Name
    base: Name
    others: Names
    phases: Names
    devices: Annotated[dict[str, Scale], Meta(min_length=1)]
    as_wide: tuple[Name, ...] = ()
    """Sizes that are as large as the width."""
    claim: str = ""
    """The id of the published claim that the page quotes."""

    @property
    def mixers(self) -> tuple[str, ...]:
        """The base, then the others."""
        return (self.base, *self.others)


def load(path: Path) -> StudyPlan:
    """The plan that a file states, mixers by the names that records have.

    Raises:
        StudyError: what is no TOML, lacks a key, or has one that is unknown or cannot be read; the
            sentence names file and key.
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
    """Each key, what refuses its texts with a ValueError, and the texts."""
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
    """Refuse a mixer that there is none of, or that has no length or width."""
    only_imported(name)
    if lacking := {"l", "d"} - set(load_mixer(name).letters):
        raise StudyError(f"{name} has no size {' and no size '.join(sorted(lacking))}")


def size_of_one(letter: str, mixers: Sequence[str]) -> None:
    """Refuse what is no size of any mixer, or is given by the grid."""
    if letter in ("l", "d") or not any(letter in load_mixer(name).letters for name in mixers):
        raise StudyError(f"'{letter}' is no further size of {', '.join(mixers)}")


def kind(device: str) -> None:
    """Refuse what is no kind of device."""
    if device not in KINDS:
        raise StudyError(f"'{device}' is no kind of device: expected {' or '.join(KINDS)}")
