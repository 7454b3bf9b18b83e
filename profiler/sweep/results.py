"""A file of results: the points that it holds, and records that are added once."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from profiler.records.environments import environment_differences
from profiler.records.keys import in_turns, key_of
from profiler.records.measurement import REASON, Measurement
from profiler.records.store import (
    BEGINNING,
    StoreError,
    exclusive,
    line_of,
    lines_of,
    read_from,
    write_line,
)
from profiler.sweep.failures import REPEATS
from profiler.sweep.points import Block, Point

MEASURED = "measured"


class Results:
    """A file of measurements that several sweeps may write concurrently.

    Records of other writers are read before each point, so that no point is measured twice. Four
    dicts have the keys of points: `state` (`MEASURED`, or the kind of the last failure), `workers`
    (by which it was measured or failed last), `commands` (the command line of that attempt) and
    `sentences` (why it failed last; "" if it was measured). `problems` has a sentence for each line
    that is no record; `environment` is that of the first record, or else of the first worker.
    """

    def __init__(self, path: Path, *, mixed: bool = False) -> None:
        """Read the file's records.

        Args:
            mixed: whether records of another environment may join, labelled as such.

        Raises:
            StoreError: the file cannot be read or written.
        """
        self.path = path
        self.mixed = mixed
        self.state: dict[str, str] = {}
        self.workers: dict[str, str] = {}
        self.commands: dict[str, str] = {}
        self.sentences: dict[str, str] = {}
        self.problems: list[str] = []
        self.environment: Mapping[str, Any] | None = None
        self._read, self._lines = 0, 0  # bytes and lines of the file that were read so far
        self._lock = threading.Lock()
        writable(path)
        if path.exists():
            self.refresh()

    def refresh(self) -> None:
        """Read the lines that were appended since the last read."""
        with self._lock, exclusive(self.path) as handle:
            self._catch_up(handle)

    def _catch_up(self, handle: int) -> None:
        """Take the records appended to the open file, which the caller locks, since the last read;
        other lines, invalid or cut off, join `problems`. StoreError: the file became shorter."""
        size = os.fstat(handle).st_size
        if size < self._read:
            raise StoreError(
                f"{self.path} became shorter while it was written: another program overwrites it: "
                f"name another file by -o"
            )
        data = read_from(handle, self._read, size)
        if not data:
            return
        for line in lines_of(BytesIO(data), self._lines):
            if line.record is None:
                self.problems.append(f"{self.path} {line.problem or line.remark}")
            else:
                self._take(line.record)
        self._read = size
        self._lines += data.count(b"\n")

    def _take(self, record: Measurement) -> None:
        """Note the state of a record's point (`MEASURED`, which is never replaced, or the kind of
        its last failure), its worker, command and reason, and the first record's environment. A
        record of a comparison in turns, which belongs to no point, changes nothing."""
        if in_turns(record):
            return
        key = key_of(record)
        if self.environment is None:
            self.environment = record.environment
        if self.state.get(key) == MEASURED:
            return
        self.state[key] = str(record.failure.get("kind", "")) if record.failure else MEASURED
        self.workers[key] = str(record.sweep.get("worker", ""))
        self.commands[key] = str(record.environment.get("command", ""))
        self.sentences[key] = record.reasons.get(REASON, "")

    def settled(self, point: Point, *, retry: bool = False) -> bool:
        """Whether a point is measured or, unless `retry`, has a failure that would repeat."""
        state = self.state.get(point.key)
        return state == MEASURED or (not retry and REPEATS.get(state or "", False))

    def lacks(self, point: Point, *, retry: bool = False) -> bool:
        """Whether a point is still to be measured, after reading the records of other writers."""
        if self.path.exists():
            self.refresh()
        return not self.settled(point, retry=retry)

    def add(self, record: Measurement) -> bool:
        """Append a record unless its point is measured already; return whether it was written.

        A record whose environment differs from the file's is labelled with the difference.
        """
        with self._lock, exclusive(self.path) as handle:
            self._catch_up(handle)
            if self.state.get(key_of(record)) == MEASURED:
                return False
            if apart := self.apart(record.environment):
                record = replace(record, labels=(*record.labels, f"mixed environments: {apart}"))
            write_line(handle, line_of(record).encode(), self.path)
            self._catch_up(handle)
        return True

    def apart(self, environment: Mapping[str, Any]) -> str:
        """The differences of an environment from the file's, in words; "" if there are none."""
        return "; ".join(environment_differences(self.environment or {}, environment))

    def accept(self, environment: Mapping[str, Any]) -> None:
        """Raise StoreError if the environment of a worker that begins differs from the file's
        environment, unless `mixed` allows differences. A file without records gets the environment
        of the first worker."""
        with self._lock:
            if self.environment is None:
                self.environment = environment
        apart = self.apart(environment)
        if apart and not self.mixed:
            raise StoreError(
                f"{self.path} was measured in another environment ({apart}): name another file by "
                "-o, or add --allow-mixed, which labels new records with the difference"
            )

    def count(self, blocks: Iterable[Block]) -> Counter[str]:
        """`MEASURED`, and each kind of failure -> the number of a plan's points in this state."""
        keys = (point.key for block in blocks for point in block.points)
        return Counter(self.state[key] for key in keys if key in self.state)

    def by_others(self, blocks: Iterable[Block], command: str) -> Counter[str]:
        """A dict: command line -> the number of a plan's points measured by this command line, for
        the command lines that differ from `command` in --seconds."""
        keys = (point.key for block in blocks for point in block.points)
        by = Counter(self.commands[key] for key in keys if self.state.get(key) == MEASURED)
        own = manner(command)
        return Counter({other: by[other] for other in by if other and manner(other) != own})


def manner(command: str) -> list[str]:
    """The option of a command line that affects readings but is not in a point's key, the seconds
    of sampling, as a list of its text; [] without it.

    >>> manner("costmodel sweep me --seconds=0.1 --format csv"), manner("costmodel sweep me")
    (['0.1'], [])
    """
    words = command.replace("=", " ").split()
    return words[words.index("--seconds") + 1 :][:1] if "--seconds" in words else []


def writable(path: Path) -> None:
    """Raise StoreError if a file cannot be appended to, or has text, but no measurement among its
    lines. A missing file is not left behind."""
    existed = path.exists()
    with exclusive(path) as handle:
        size = os.fstat(handle).st_size
        data = read_from(handle, 0, size)
        if not (existed or size):  # under the lock, so that no other process writes meanwhile
            path.unlink(missing_ok=True)
    begun = data.startswith(BEGINNING[: len(data)])  # a first record may be truncated
    if data.strip() and not begun and not any(line.record for line in lines_of(BytesIO(data))):
        raise StoreError(f"{path} exists and holds no measurement: give another name after -o")
