"""Merges files of measurements, refusing duplicates and unlabelled mixtures of environments."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from msgspec.structs import replace

from profiler.records.environments import VARYING, environment_differences
from profiler.records.keys import in_turns, key_of
from profiler.records.measurement import Measurement, Share
from profiler.records.store import OBJECT, Line, StoreError, lines, numbered


@dataclass(frozen=True)
class Placed:
    """The place of a line of a file, and its record without readings."""

    path: Path
    number: int
    digest: int
    """The hash of the line, which is read again when it is written."""
    text: bytes
    """The line, if it cannot be read again because the file is a pipe; else b""."""
    record: Measurement

    @staticmethod
    def of(path: Path, line: Line, record: Measurement, share: Share) -> Placed:
        """The line's place, and of its record what tells points and environments apart: readings,
        reasons, counts and the machine's state would take most of the memory of a large file."""
        seed = {k: v for k, v in record.counts.items() if k == "seed"}
        bare = replace(record, readings={}, reasons={}, counts=seed).compact(VARYING, share)
        text = b"" if path.is_file() else line.text
        return Placed(path, line.number, hash(line.text), text, bare)

    @property
    def place(self) -> str:
        """File and line, in words."""
        return f"{self.path} line {self.number}"


def merged(
    paths: Sequence[Path],
    *,
    mixed: bool = False,
    tell: Callable[[str], object] = lambda sentence: None,
) -> tuple[Iterator[str], int, list[str]]:
    """Merge files: return the lines of all files as the text of one file, line by line, the number
    of records, and a sentence for every line that was left out because it is no record.

    Lines stay as they are, except that records of mixed environments are labelled.

    Args:
        mixed: whether environments may differ.
        tell: receives the remarks on truncated lines of files that were continued.

    Raises:
        StoreError: a file cannot be read or has no record, a record or a measured point occurs
            twice, or environments differ.
    """
    found, problems = placed(paths, tell)
    refuse_twice(found)
    labels = differences_from_first(found)
    if labels and not mixed:
        place, apart = next(iter(labels.items()))
        first = found[0]
        raise StoreError(
            f"{first.place} and {found[place].place} were measured in different environments "
            f"({apart}): merge records of one environment, or add --allow-mixed, which labels the "
            f"records with the difference"
        )
    texts = (
        labelled(text, labels.get(place, "as the first record")) if labels else text
        for place, text in enumerate(texts_of(found))
    )
    return (f"{text.decode()}\n" for text in texts), len(found), problems


def texts_of(found: Sequence[Placed]) -> Iterator[bytes]:
    """The lines at these places, read again file by file. Raises StoreError: a file changed."""
    for path, group in groupby(found, key=lambda one: one.path):
        texts = numbered(path)
        for one in group:
            text = one.text or next((text for number, text in texts if number == one.number), b"")
            if hash(text) != one.digest:
                raise StoreError(f"{path} was changed while it was merged: merge it again")
            yield text


def placed(paths: Sequence[Path], tell: Callable[[str], object]) -> tuple[list[Placed], list[str]]:
    """Every record of the files in order, and a sentence for every line that is no record. `tell`
    receives the remarks on truncated lines of files that were continued. Raises StoreError: a file
    has no record."""
    found: list[Placed] = []
    problems: list[str] = []
    share = Share()
    for path in paths:
        own: list[Placed] = []
        first = ""
        for line in lines(path):
            if line.record is not None:
                own.append(Placed.of(path, line, line.record, share))
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
    """Raise StoreError if a record occurs twice, or a point was measured twice.

    A point that failed and was measured later, or failed twice, is accepted, and a record of a
    comparison in turns is of no point.
    """
    ids: dict[str, Placed] = {}
    points: dict[str, Placed] = {}
    for one in found:
        if (before := ids.setdefault(one.record.id, one)) is not one:
            raise StoreError(
                f"record {one.record.id[:8]} was given twice, {before.place} and {one.place}: "
                "merge each file once"
            )
        if one.record.failure or in_turns(one.record):
            continue
        if (before := points.setdefault(key_of(one.record), one)) is not one:
            raise StoreError(
                f"a point was measured twice, {before.place} and {one.place} "
                f"({one.record.mixer} {one.record.implementation}, {one.record.phase}): leave one "
                f"of the files out"
            )


def differences_from_first(found: Sequence[Placed]) -> dict[int, str]:
    """A dict: index of a record -> the differences, in words, of its environment from the first
    record's; records without a difference are absent."""
    first = found[0].record.environment
    words: dict[int, str] = {}  # records share their environments
    for one in found:
        other = one.record.environment
        if id(other) not in words:
            words[id(other)] = "; ".join(environment_differences(first, other))
    every = (words[id(one.record.environment)] for one in found)
    return {place: said for place, said in enumerate(every) if said}


def labelled(text: bytes, label: str) -> bytes:
    """The line of a record, with one more label; the other fields keep their bytes."""
    fields = {name: bytes(value) for name, value in OBJECT.decode(text).items()}
    labels = [*json.loads(fields.get("labels", b"[]")), f"mixed environments: {label}"]
    fields["labels"] = json.dumps(labels, ensure_ascii=False).encode()
    named = (json.dumps(name).encode() + b": " + value for name, value in fields.items())
    return b"{" + b", ".join(named) + b"}"
