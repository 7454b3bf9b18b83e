"""Who measures the points of a sweep, and in which order do their outcomes come back?"""

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
"""`profiler.run.measure.measure`, or what stands in for it."""
Note = Callable[[Point, str], None]
"""Told which point is at which stage."""
Wanted = Callable[[Point], bool]
"""Asked right before a point whether it is still to be measured."""


@dataclass(frozen=True)
class Outcome:
    """What became of a point."""

    point: Point
    found: Measurement | Failure
    worker: str = ""
    environment: Mapping[str, Any] = field(default_factory=dict)


Outcomes = Generator[Outcome, None, None]


LONGEST_WAIT_S = 0.1
"""An interrupt that comes just before a thread begins to wait does not end that wait: what waits
for other threads looks up this often."""


class WorkerGone(Exception):
    """The process that was measuring is no more; one sentence says how it ended."""


class Worker(Protocol):
    """A process that measures one point after the other on one device."""

    environment: Mapping[str, Any]

    def begin(self) -> None:
        """Wait until it can measure; MeasureError says why it cannot."""

    def measure(self, point: Point, note: Note) -> Measurement | Failure:
        """What became of a point; WorkerGone where the process ended over it."""

    def stop(self) -> None:
        """End the process, at once and whatever it does."""


def attempt(
    request: Request,
    measure: Measure,
    limits: LatencyLimits | None,
    note: Callable[[str], None],
    survived: type[Exception] = ValueError,
) -> Measurement | Failure:
    """A measurement, or why there is none; exceptions that are not `survived` are raised."""
    try:
        subject(request.mixer).fit(request.sizes)
        return measure(request, limits=limits, note=note)
    except survived as error:
        return failure_of(error)


def here(
    blocks: Sequence[Block], measure: Measure, limits: LatencyLimits | None, note: Note
) -> Outcomes:
    """Every point in turn, in this process, as long as its device answers it: the points that come
    after one that cost the device fail with that reason."""
    lost: dict[str, Failure] = {}
    for block in blocks:
        for point in block.points:
            device = point.request.device
            if device in lost:
                yield Outcome(point, lost[device])
                continue

            def told(what: str, point: Point = point) -> None:
                note(point, what)

            found = attempt(point.request, measure, limits, told, MeasureError)
            if not recovered(device):
                lost[device] = lost_since(point.request)
            yield Outcome(point, found)


def lost_since(request: Request) -> Failure:
    """Why nothing is measured after a request that cost its device."""
    last = f"{request.mixer.name} {request.implementation.name}"
    return Failure(
        LOST,
        f"device '{request.device}' answers this process no more since {last} was measured: what "
        f"comes after it needs a new process",
    )


class Deal:
    """Hands out blocks, each to one worker; one that a worker began before goes to it again."""

    def __init__(
        self, blocks: Sequence[Block], workers: Sequence[str], home: Callable[[Block], str]
    ) -> None:
        self.waiting = list(blocks)
        self.workers = set(workers)
        self.home = home
        self._lock = threading.Lock()

    def next_for(self, worker: str) -> Block | None:
        """A block that waits for this worker or for any."""
        with self._lock:
            for place, block in enumerate(self.waiting):
                if self.home(block) in self.workers - {worker}:
                    continue
                return self.waiting.pop(place)
        return None

    def lose(self, worker: str, block: Block) -> None:
        """Another worker may take what this one had: it can measure nothing."""
        with self._lock:
            self.workers.discard(worker)
            self.waiting.insert(0, block)


@dataclass
class Event:
    """What a thread tells: an outcome that waits to be handled, an error, or that it is done."""

    outcome: Outcome | None = None
    error: BaseException | None = None
    lost: str = ""
    handled: threading.Event = field(default_factory=threading.Event)


class Team:
    """Several workers side by side, a thread for each that does nothing but wait for it."""

    def __init__(
        self,
        starts: Mapping[str, Callable[[], Worker]],
        *,
        wanted: Wanted,
        accept: Callable[[Mapping[str, Any]], None] = lambda environment: None,
        home: Callable[[Block], str] = lambda block: "",
        tell: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        """Nothing starts before `outcomes` is asked.

        Args:
            starts: name -> what starts a worker, without waiting for it.
            wanted: asked before each point.
            accept: raises where a worker's environment is not to be measured in.
            home: the worker that measured some of a block before, "" where none did.
            tell: told of a worker that cannot measure.
        """
        self.starts = starts
        self.wanted, self.accept, self.home, self.tell = wanted, accept, home, tell
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.live: dict[str, Worker] = {}
        self.stopping = threading.Event()
        self._lock = threading.Lock()

    def outcomes(self, blocks: Sequence[Block], note: Note) -> Outcomes:
        """What becomes of the points, as it happens; a worker's next point waits for the caller.

        Closing the generator ends all workers, whatever they are doing.

        Raises:
            MeasureError: no worker is left that can measure.
        """
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
        with self._lock:
            self.stopping.set()
            live = list(self.live.values())
        for worker in live:
            worker.stop()

    def _work(self, name: str, deal: Deal, note: Note) -> None:
        told = Event()
        try:
            while not self.stopping.is_set() and (block := deal.next_for(name)) is not None:
                try:
                    self._measured(name, block, note)
                except MeasureError as error:
                    deal.lose(name, block)
                    told = Event(lost=f"{name}: {error}")
                    break
        except BaseException as error:
            told = Event(error=error)
        finally:
            self._dismiss(name)
            self.events.put(told)

    def _measured(self, name: str, block: Block, note: Note) -> None:
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
        """The worker of this name, begun where it is not there (any more)."""
        if name in self.live:
            return self.live[name]
        with self._lock:
            if self.stopping.is_set():
                raise MeasureError("the sweep is ending")
            worker = self.live[name] = self.starts[name]()
        worker.begin()
        self.accept(worker.environment)
        return worker

    def _dismiss(self, name: str) -> None:
        with self._lock:
            worker = self.live.pop(name, None)
        if worker is not None:
            worker.stop()
