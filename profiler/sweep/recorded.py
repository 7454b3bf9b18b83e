"""Reads files of results for the commands that answer from records, without torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from profiler.records.measurement import Measurement, Share
from profiler.records.store import StoreError, read
from profiler.sweep.joined import joined, settled


def recorded(
    paths: Sequence[Path],
    tell: Callable[[str], object] = lambda sentence: None,
    *,
    every: bool = False,
    without: Sequence[str] = (),
) -> tuple[list[Measurement], list[str]]:
    """Read the records of results files, joined over the processes of each file, and a sentence for
    each line that is no record. Numbers are kept in arrays; details of readings, counters and facts
    of the environment that `without` names are left out, and details that the schema lacks.

    Failures of points that were measured, or failed again later, in the same file are left out,
    unless `every`. A record that occurs more than once, in any file, counts once. `tell` receives
    remarks on duplicates, on such failures, and on truncated lines of continued files. Raises
    StoreError: a file cannot be read, or holds no record at all."""
    found: list[Measurement] = []
    problems: list[str] = []
    seen: set[str] = set()
    share = Share()
    for path in paths:
        remarks: list[str] = []
        records, unread = read(path, remarks.append, lambda record: record.compact(without, share))
        if not records:
            detail = "".join(f": {said}" for said in [*unread, *remarks][:1])
            raise StoreError(f"{path} holds no measurement{detail}")
        new: list[Measurement] = []
        for record in records:
            if record.id not in seen:
                seen.add(record.id)
                new.append(record)
        if again := len(records) - len(new):
            remarks.append(
                f"{again:,} of {len(records):,} records were read before: they count once"
            )
        points = joined(new)
        kept = points if every else settled(points)
        if older := len(points) - len(kept):
            remarks.append(
                f"{older:,} of {len(points):,} records are failures of points with a newer record"
            )
        found += kept
        problems += [f"{path}: {sentence}" for sentence in unread]
        for sentence in remarks:
            tell(f"{path}: {sentence}")
    return found, problems
