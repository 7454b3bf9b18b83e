"""Measures a plan so that no completed measurement is lost.

Every record is written before the next measurement starts; a failure becomes a sentence and stops
nothing else. A *point* is one request in one round, measured by one process; a *block* has points
that one worker measures in turn.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

from msgspec import structs

from profiler.meters.sampler import LatencyLimits
from profiler.records.grades import INTERRUPTED, undisturbed
from profiler.records.keys import key_of
from profiler.records.measurement import Measurement, new_id
from profiler.records.store import append
from profiler.records.words import sizes_words
from profiler.run.measure import count, measure
from profiler.run.request import Request
from profiler.sweep.failures import REFUSED, Failure, failed_record
from profiler.sweep.joined import joined
from profiler.sweep.order import shuffled
from profiler.sweep.points import Block, Point
from profiler.sweep.results import Results, writable
from profiler.sweep.workers import Note, Outcome, Outcomes, Team, Worker, here

Starts = Mapping[str, Callable[[], Worker]]
"""Name -> a function that starts a worker, as from `processes` or `Cluster.actors`."""

Progress = Callable[[int, int, str], None]
"""Receives the number of completed measurements, the total number, and the current activity."""


@dataclass
class Session:
    """The measurements of a run, and the failures."""

    measurements: list[Measurement] = field(default_factory=list)
    failed_at: dict[str, list[str]] = field(default_factory=dict)
    """Sentence of a failure -> the points with this failure, each as its phase and sizes; [] for
    requests that `lose` counts."""
    lost: list[Measurement] = field(default_factory=list)
    """For each request that failed and that no process measured, a record without readings that
    keeps the reason."""
    kinds: Counter[str] = field(default_factory=Counter)
    """Kind of failure -> the number of points."""
    interrupted: bool = False

    def failed(self, request: Request, failure: Failure) -> None:
        """Count the failure of a request; equal sentences are kept once. A refusal names no point:
        its sentence says which sizes are refused, or that none works."""
        self.kinds[failure.kind] += 1
        points = self.failed_at.setdefault(failure.sentence, [])
        point = f"{request.phase}, {sizes_words(request.sizes)}"
        if failure.kind != REFUSED and point not in points:
            points.append(point)

    @property
    def failures(self) -> list[str]:
        """A sentence per distinct failure, with its points: of 3 or more, one and a number."""
        found = []
        for sentence, points in self.failed_at.items():
            many = len(points) > 2
            said = [*points[:1], f"{len(points) - 1:,} other points"] if many else points
            at = f" (at {', and at '.join(said)})" if said else ""
            found.append(f"{sentence}{at}")
        return found

    def lose(self, request: Request, failure: Failure) -> None:
        """Count the failure of a request that no process measured, and keep its record."""
        self.kinds[failure.kind] += 1
        self.failed_at.setdefault(failure.sentence, [])
        self.lost.append(failed_record(Point(request), failure, {}))


def run(
    requests: Sequence[Request],
    output: Path | None = None,
    *,
    limits: LatencyLimits | None = None,
    progress: Progress = lambda done, of, what: None,
    tell: Callable[[str], None] = lambda sentence: None,
    command: str = "",
    counts_only: bool = False,
    processes: int = 1,
    starts: Starts | None = None,
    further: Starts | None = None,
) -> Session:
    """Measure requests one by one, appending each record to `output` (None: to no file); after an
    interrupt the session has the measurements so far.

    Args:
        limits: the stopping rules of latency.
        progress: receives the number of completed measurements, the total, and the activity.
        processes: how many processes each measure all requests, one after another, in an order of
            their own; the file has every record, the session one per request.
        starts: starts the workers of these processes; None: this process measures.
        tell: receives once, at the first busy time, a sentence on the busy machine.
        command: the command line, which every record keeps.
        counts_only: whether timing is left out.
        further: starts a worker that times short calls of a quiet device again, in `FURTHER`
            processes; None: they are not timed again.

    Raises:
        StoreError: the file cannot be written; raised before anything is measured, unless the disk
            becomes full later. Earlier records are in the file.
        MeasureError: no worker can measure.
    """
    if output is not None:
        writable(output)
    session = Session()
    lost: dict[str, Measurement] = {}  # key of a point -> the record of its first failure
    measured: set[str] = set()  # keys of points
    warned: list[str] = []  # a sentence for each busy time

    def keep(outcome: Outcome) -> None:
        """Add a measurement to the session and the file, if any, and tell of the first busy time;
        add a failure to the session alone, and to `lost`."""
        point = Point(outcome.point.request)  # one point for all processes
        if isinstance(outcome.found, Failure):
            session.failed(point.request, outcome.found)
            lost.setdefault(point.key, failed_record(point, outcome.found, outcome.environment))
            return
        measured.add(point.key)
        found = structs.replace(by_command(outcome.found, command), sweep=outcome.point.origin)
        if output is not None:
            append(output, found)
        session.measurements.append(found)
        if busy := busy_words(found):
            warned.append(busy)
            if len(warned) == 1:
                tell(busy)

    by = count if counts_only else measure
    plan = new_id() if processes > 1 or further else ""

    def block(requests: Sequence[Request], process: int) -> Block:
        """The requests as points of one process, counted from 0, in the process's order."""
        points = (Point(r, process=process, plan=plan) for r in shuffled(requests, process))
        return Block("", tuple(points))

    def outcomes(blocks: Sequence[Block], note: Note) -> Outcomes:
        if starts is None:
            return here(blocks, by, limits, note)
        return in_fresh_processes(lambda: Team(starts, wanted=lambda point: True), blocks, note)

    def again(blocks: Sequence[Block], note: Note) -> Outcomes:
        """Time points once more, in fresh processes, for an interval over processes."""
        assert further is not None
        return in_fresh_processes(lambda: Team(further, wanted=lambda point: True), blocks, note)

    try:
        collect([block(requests, k) for k in range(processes)], outcomes, keep, progress)
        if further and (short := [r for r in requests if is_short(r, session.measurements)]):
            numbers = range(1, FURTHER + 1)  # the measurements so far are those of process 0
            collect([block(short, k) for k in numbers], again, keep, progress)
    except KeyboardInterrupt:
        session.interrupted = True
    session.measurements = joined(session.measurements)
    session.lost = [record for key, record in lost.items() if key not in measured]
    return session


def busy_words(found: Measurement) -> str:
    """A sentence on processors that others use, if the latency of a record shows it, else ""."""
    latency = found.readings.get("latency")
    if latency is None or INTERRUPTED not in latency.labels:
        return ""
    waited = statistics.fmean(latency.details.get("waiting") or (0,))
    share = f" (a thread waited for {waited:.0%} of the time)" if waited >= LEAST_SHARE else ""
    return (
        f"other programs use the processors{share}: times that they disturb are estimates, printed "
        "as ≈ (busy), without rates; operations and bytes are as on a quiet machine"
    )


LEAST_SHARE = 0.01
"""The least share of waiting that is printed."""
FURTHER = 2
"""The number of further processes that time short calls, so that an interval spans three."""
SHORT_S = 0.02
"""The longest duration of a short call, in seconds."""


def is_short(request: Request, measured: Sequence[Measurement]) -> bool:
    """Whether a latency of at most `SHORT_S` was `measured` for a request, on a quiet device."""
    key = Point(request).key
    found = [
        m.readings["latency"] for m in measured if "latency" in m.readings and key_of(m) == key
    ]
    return any(one.value <= SHORT_S and undisturbed(one) for one in found)


def in_fresh_processes(team: Callable[[], Team], blocks: Sequence[Block], note: Note) -> Outcomes:
    """Yield the outcomes of blocks, ordered by process number; each number gets a new `team()`."""
    for _, each in groupby(blocks, key=lambda block: block.process):
        yield from team().outcomes(list(each), note)


def sweep(
    blocks: Sequence[Block],
    results: Results,
    starts: Starts,
    *,
    retry: bool = False,
    progress: Progress = lambda done, of, what: None,
    tell: Callable[[str], None] = lambda sentence: None,
    command: str = "",
) -> Session:
    """Measure the points that a file lacks, by parallel workers; the session has failures alone.

    Args:
        blocks: ordered by process; each process gets fresh workers.
        starts: one entry per parallel worker.
        retry: attempt all failed points again, even those that would fail again.
        tell: receives sentences on workers that cannot measure and on records that are dropped.
        command: the command line, which every record keeps.

    Raises:
        StoreError: the file cannot be written, or, unless it is `mixed`, was measured in another
            environment. MeasureError: no worker can measure.
    """
    session = Session()
    tried: set[str] = set()  # keys of points

    def wanted(point: Point) -> bool:
        return point.key not in tried and results.lacks(point, retry=retry)

    def home(block: Block) -> str:
        """The worker that measured a point of the block before, in this process of the plan or in
        the first; "" if there is none. All times of the block are then of one device."""
        firsts = (replace(point, process=0) for point in block.points)
        measured = (results.workers.get(each.key, "") for each in (*block.points, *firsts))
        return next((worker for worker in measured if worker), "")

    def keep(outcome: Outcome) -> None:
        """Add an outcome to the session if it is a failure, and its record, also of a failure, to
        the file; tell if another process wrote the same point."""
        point, found = outcome.point, outcome.found
        tried.add(point.key)
        if isinstance(found, Failure):
            session.failed(point.request, found)
            found = failed_record(point, found, outcome.environment)
        place = point.place | {"worker": outcome.worker}
        if not results.add(structs.replace(by_command(found, command), sweep=place)):
            tell(
                f"{results.path}: another process measured the same point meanwhile, so this "
                f"record was dropped: give each process its own --shard"
            )

    todo = left_over(blocks, results, retry)

    def team() -> Team:
        return Team(starts, wanted=wanted, accept=results.accept, home=home, tell=tell)

    collect(todo, lambda blocks, note: in_fresh_processes(team, blocks, note), keep, progress)
    return session


def by_command(record: Measurement, command: str) -> Measurement:
    """The record with the command line that measured it."""
    if not command:
        return record
    return structs.replace(record, environment={**record.environment, "command": command})


def left_over(blocks: Sequence[Block], results: Results, retry: bool = False) -> list[Block]:
    """Copies of a plan's blocks with only the points still to be measured, in order; with `retry`,
    failed points are among them."""
    left = (
        replace(block, points=tuple(p for p in block.points if not results.settled(p, retry=retry)))
        for block in blocks
    )
    return [block for block in left if block.points]


def collect(
    blocks: Sequence[Block],
    outcomes: Callable[[Sequence[Block], Note], Outcomes],
    keep: Callable[[Outcome], None],
    progress: Progress,
) -> None:
    """Take the outcomes of all points from `outcomes(blocks, note)`, which measures them, and give
    each to `keep`, before the worker that measured it begins its next point."""
    points, done = sum(len(block.points) for block in blocks), 0

    def note(point: Point, what: str) -> None:
        asked = point.request
        progress(done, points, f"{asked.mixer.name} {asked.implementation.name}: {what}")

    with closing(outcomes(blocks, note)) as found:
        for outcome in found:
            keep(outcome)
            done += 1
    progress(points, points, "done")
