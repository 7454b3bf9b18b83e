"""Workers measure the points of a sweep, and their outcomes come back in one sequence."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from profiler.meters.sampler import LatencyLimits
from profiler.records.measurement import Measurement
from profiler.records.reading import MeasureError
from profiler.run.request import Request
from profiler.run.subject import subject
from profiler.sweep.devices import recovered
from profiler.sweep.failures import DIED, LOST, Failure, failure_of
from profiler.sweep.points import Block, Point

Measure = Callable[..., Measurement]
"""`profiler.run.measure.measure` or a function with its signature."""
Note = Callable[[Point, str], None]
"""Receives a point and the name of the stage that it has reached."""
Wanted = Callable[[Point], bool]
"""Called right before a point is measured: whether it is still to be measured."""


@dataclass(frozen=True)
class Outcome:
    """The measurement or failure of a point, with its worker ("": none) and its environment."""

    point: Point
    found: Measurement | Failure
    worker: str = ""
    environment: Mapping[str, Any] = field(default_factory=dict)


Outcomes = Generator[Outcome, None, None]


LONGEST_WAIT_S = 0.1
"""The longest single wait for another thread, repeated: an interrupt just before a wait does not
end that wait."""


class WorkerGone(Exception):
    """The measuring process has ended; one sentence says how."""


class Worker(Protocol):
    """A process that measures points one after another on one device."""

    environment: Mapping[str, Any]

    def begin(self) -> None:
        """Wait until the worker can measure; MeasureError says why it cannot."""

    def measure(self, point: Point, note: Note) -> Measurement | Failure:
        """The record or failure of a point, its stages told to `note`; WorkerGone if it ended."""

    def stop(self) -> None:
        """End the process at once."""


def attempt(
    request: Request,
    measure: Measure,
    limits: LatencyLimits | None,
    note: Callable[[str], None],
    survived: type[Exception] = ValueError,
) -> Measurement | Failure:
    """Measure a request by `measure` if its sizes fit (else SizeError), and return its record, or
    the failure for an exception of type `survived`; other exceptions are raised."""
    try:
        subject(request.mixer).fit(request.sizes)
        return measure(request, limits=limits, note=note)
    except survived as error:
        return failure_of(error)


def here(
    blocks: Sequence[Block], measure: Measure, limits: LatencyLimits | None, note: Note
) -> Outcomes:
    """Measure every point in this process by `measure`, and yield the outcomes: a MeasureError is a
    failure, another exception is raised. Once a point has made a device unusable, all later points
    of this device are failures (`LOST`)."""
    lost: dict[str, Failure] = {}
    for block in blocks:
        for point in block.points:
            device = point.request.device
            if device in lost:
                yield Outcome(point, lost[device])
                continue

            def note_stage(what: str, point: Point = point) -> None:
                note(point, what)

            found = attempt(point.request, measure, limits, note_stage, MeasureError)
            if not recovered(device):
                lost[device] = lost_since(point.request)
            yield Outcome(point, found)


def lost_since(request: Request) -> Failure:
    """Make the failure of all points after a request that made its device unusable."""
    last = f"{request.mixer.name} {request.implementation.name}"
    return Failure(
        LOST,
        f"device '{request.device}' stopped answering this process when {last} was measured: the "
        f"rest needs a new process",
    )


class Deal:
    """Hands out each block to one worker; a begun block goes to the worker that began it,
    `home(block)`. `waiting` are blocks that no worker has, `workers` the names of those left."""

    def __init__(
        self, blocks: Sequence[Block], workers: Sequence[str], home: Callable[[Block], str]
    ) -> None:
        """Begin with all blocks waiting. `home` gives "" for a block that no worker began."""
        self.waiting = list(blocks)
        self.workers = set(workers)
        self.home = home
        self._lock = threading.Lock()

    def next_for(self, worker: str) -> Block | None:
        """Take the next waiting block that this worker began, or that no worker of the team began
        (its `home` is the worker that began it); None if there is none."""
        with self._lock:
            for place, block in enumerate(self.waiting):
                if self.home(block) in self.workers - {worker}:
                    continue
                return self.waiting.pop(place)
        return None

    def lose(self, worker: str, block: Block) -> None:
        """Return the block of a worker that cannot measure, so that other workers may take it and
        every other block that this worker began."""
        with self._lock:
            self.workers.discard(worker)
            self.waiting.insert(0, block)


@dataclass
class Event:
    """A message of a worker's thread: an outcome, an error, or the end of the thread."""

    outcome: Outcome | None = None
    error: BaseException | None = None
    lost: str = ""
    """At the end of the thread: why its worker cannot measure; "" if no block is left for it."""
    handled: threading.Event = field(default_factory=threading.Event)
    """Set once the caller has taken the outcome."""


class Team:
    """Several workers in parallel, with a thread each that waits for its worker, and puts outcomes
    into `events`, the queue that `outcomes` empties; `stopping` is set at the end."""

    def __init__(
        self,
        starts: Mapping[str, Callable[[], Worker]],
        *,
        wanted: Wanted,
        accept: Callable[[Mapping[str, Any]], None] = lambda environment: None,
        home: Callable[[Block], str] = lambda block: "",
        tell: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        """Workers start in `outcomes`, not here.

        Args:
            starts: name -> a function that starts a worker without waiting for it.
            wanted: called before each point.
            accept: raises if a worker's environment is unsuitable.
            home: the worker that measured a part of the block before; "" if there is none.
            tell: receives a sentence on each worker that cannot measure.
        """
        self.starts = starts
        self.wanted, self.accept, self.home, self.tell = wanted, accept, home, tell
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.live: dict[str, Worker] = {}  # name -> a running worker
        self.stopping = threading.Event()
        self._lock = threading.Lock()

    def outcomes(self, blocks: Sequence[Block], note: Note) -> Outcomes:
        """Start the workers and yield the points' outcomes as they occur; a worker's next point
        waits for the caller. Closing the generator ends all workers at once. Raises MeasureError:
        no worker can measure any more; and any other error of a worker's thread, as `accept`'s."""
        deal = Deal(blocks, list(self.starts), self.home)
        threads = [
            threading.Thread(target=self._work, args=(name, deal, note), daemon=True)
            for name in self.starts
        ]
        try:
            for thread in threads:
                thread.start()
            yield from self._handled(len(threads), deal)
        finally:
            self._end()
            for thread in threads:
                while thread.is_alive():
                    thread.join(LONGEST_WAIT_S)

    def _handled(self, threads: int, deal: Deal) -> Outcomes:
        """Yield the outcomes in the threads' events, until all threads end. An event's error is
        raised. Raises MeasureError: blocks are left that no worker could measure."""
        lost = []
        while threads:
            event = self._next_event()
            try:
                if event.error is not None:
                    raise event.error
                if event.outcome is not None:
                    yield event.outcome
                    continue
                threads -= 1
                lost += [event.lost] if event.lost else []
                if event.lost and threads:
                    self.tell(event.lost)
            finally:
                event.handled.set()
        if deal.waiting and lost:
            raise MeasureError(lost[-1])

    def _next_event(self) -> Event:
        while True:
            with suppress(queue.Empty):
                return self.events.get(timeout=LONGEST_WAIT_S)

    def _end(self) -> None:
        """Stop all workers, and keep further ones from starting."""
        with self._lock:
            self.stopping.set()
            live = list(self.live.values())
        for worker in live:
            worker.stop()

    def _work(self, name: str, deal: Deal, note: Note) -> None:
        """Run the thread of the worker `name`: measure the blocks that `deal` gives it one after
        another, then report the end as an event, which holds the error that ended it, if any. After
        a MeasureError, as of a worker that cannot begin, another worker gets the block."""
        end = Event()
        try:
            while not self.stopping.is_set() and (block := deal.next_for(name)) is not None:
                try:
                    self._measure_block(name, block, note)
                except MeasureError as error:
                    deal.lose(name, block)
                    end = Event(lost=f"{name}: {error}")
                    break
        except BaseException as error:
            end = Event(error=error)
        finally:
            self._dismiss(name)
            self.events.put(end)

    def _measure_block(self, name: str, block: Block, note: Note) -> None:
        """Measure the wanted points of a block by the worker `name`: put each outcome (the failure
        `DIED` if the worker's process ended) into the queue of events, and wait until the outcome
        is handled. Returns early once the team is stopping."""
        for point in block.points:
            if self.stopping.is_set() or not self.wanted(point):
                continue
            worker = self._at_work(name)
            found: Measurement | Failure
            try:
                found = worker.measure(point, note)
            except WorkerGone as gone:
                if self.stopping.is_set():
                    return
                found = Failure(DIED, str(gone))
                self._dismiss(name)
            event = Event(Outcome(point, found, name, worker.environment))
            self.events.put(event)
            while not (event.handled.wait(LONGEST_WAIT_S) or self.stopping.is_set()):
                pass

    def _at_work(self, name: str) -> Worker:
        """The worker of this name, started if it is not running. Raises MeasureError: it cannot
        begin, or the team is stopping; and what `accept` raises if it refuses its environment."""
        if name in self.live:
            return self.live[name]
        with self._lock:
            if self.stopping.is_set():
                raise MeasureError(f"{name} is not started: the sweep is ending")
            worker = self.live[name] = self.starts[name]()
        worker.begin()
        self.accept(worker.environment)
        return worker

    def _dismiss(self, name: str) -> None:
        with self._lock:
            worker = self.live.pop(name, None)
        if worker is not None:
            worker.stop()
