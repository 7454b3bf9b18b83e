"""How do files of measurements become one, without a point twice and without a mixture unseen?"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from profiler.host.environment import environment_differences
from profiler.records.measurement import Measurement
from profiler.records.store import Line, StoreError, lines
from profiler.sweep.points import in_turns, key_of


@dataclass(frozen=True)
class Placed:
    """A record, and where it stands."""

    path: Path
    line: Line
    record: Measurement

    @property
    def place(self) -> str:
        """In words."""
        return f"{self.path} line {self.line.number}"


def merged(
    paths: Sequence[Path],
    *,
    mixed: bool = False,
    tell: Callable[[str], object] = lambda sentence: None,
) -> tuple[bytes, int, list[str]]:
    """The lines of all files as one, how many records that are, and a sentence for every line that
    is none and was left out.

    Lines stay as they are, whatever joined the schema since; a mixture is labelled in every record.

    Args:
        mixed: whether environments may differ.
        tell: told of lines that were cut off before their file was gone on with, and left out.

    Raises:
        StoreError: a file cannot be read or holds nothing, a record or a measured point is there
            twice, or environments differ.
    """
    found, problems = placed(paths, tell)
    refuse_twice(found)
    labels = environments(found)
    if labels and not mixed:
        place, apart = next(iter(labels.items()))
        first = found[0]
        raise StoreError(
            f"{first.place} and {found[place].place} were measured in different environments "
            f"({apart}): merge those of one alone, or add --allow-mixed to have the records "
            f"labelled with the difference"
        )
    texts = [
        labelled(one, labels.get(place, "as the first record")) if labels else one.line.text
        for place, one in enumerate(found)
    ]
    return b"".join(text + b"\n" for text in texts), len(texts), problems


def placed(paths: Sequence[Path], tell: Callable[[str], object]) -> tuple[list[Placed], list[str]]:
    """Every record of the files in order, and a sentence for every line that is none."""
    found: list[Placed] = []
    problems: list[str] = []
    for path in paths:
        own: list[Placed] = []
        first = ""
        for line in lines(path):
            if line.record is not None:
                own.append(Placed(path, line, line.record))
                continue
            first = first or f": {line.problem or line.remark}"
            if line.problem:
                problems.append(f"{path} {line.problem}")
            else:
                tell(f"{path} {line.remark}")
        if not own:
            raise StoreError(f"{path} holds no measurement{first}")
        found += own
    return found, problems


def refuse_twice(found: Sequence[Placed]) -> None:
    """StoreError where a record is there twice, or a point was measured twice.

    A point may fail and be measured later, or fail twice: that is its history.
    """
    ids: dict[str, Placed] = {}
    points: dict[str, Placed] = {}
    for one in found:
        if (before := ids.setdefault(one.record.id, one)) is not one:
            raise StoreError(
                f"record {one.record.id[:8]} is there twice, {before.place} and {one.place}: "
                f"merge each file once"
            )
        if one.record.failure or in_turns(one.record):
            continue
        if (before := points.setdefault(key_of(one.record), one)) is not one:
            raise StoreError(
                f"a point was measured twice, {before.place} and {one.place} "
                f"({one.record.mixer} {one.record.implementation}, {one.record.phase}): leave one "
                f"of the files out"
            )


def environments(found: Sequence[Placed]) -> dict[int, str]:
    """Place -> in what a record's environment differs from that of the first."""
    apart: dict[int, str] = {}
    for place, one in enumerate(found):
        if words := environment_differences(found[0].record.environment, one.record.environment):
            apart[place] = "; ".join(words)
    return apart


def labelled(one: Placed, label: str) -> bytes:
    """The line with a label more."""
    values = json.loads(one.line.text)
    values["labels"] = [*values.get("labels", []), f"mixed environments: {label}"]
    return json.dumps(values, allow_nan=False, ensure_ascii=False).encode()
