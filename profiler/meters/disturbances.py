"""Observes the device while a block of regions is timed: heat, power limits, preemption, other
users.

Counters are read before and after a block, and the differences show limits that acted at any moment
of the block. Preemption is a share of the block's time: how long a ready thread of this process
waited for a processor. An unreadable sensor leaves a sentence.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import torch

from profiler.meters.energy.protocol import SensorError
from profiler.meters.nvml import HELD_DOWN, POWER_CAP, SLOWDOWNS, Board
from profiler.meters.timers import Call
from profiler.records.grades import CAPPED, SHARED
from profiler.records.reading import reason_of

NOTICED = 0.05
"""The largest share of a block for which a thread may wait for a processor in a quiet block."""


@dataclass(frozen=True)
class BlockObservation:
    """The counters' differences and the sensors' values between `before()` and `after()`."""

    clock_MHz: float | None = None
    """The clock at the end of the block, before the device rests."""
    slowed: tuple[str, ...] = ()
    """The reasons why a clock was held down: heat or a hardware brake."""
    power_capped: bool = False
    switches: int = 0
    """The number of involuntary context switches of this process."""
    waited_s: float | None = None
    """The longest time in seconds for which a thread was ready but preempted; None if unknown."""
    processor_s: float | None = None
    """Seconds for which the busiest thread ran on a processor; None if unknown."""
    threads: tuple[int, ...] = ()
    """The ids of the threads that work, the busiest first."""
    page_faults: int = 0
    """Minor page faults of this process. An allocator that returns memory to the system after every
    call makes calls several times as long."""
    others: str = ""
    """Evidence that other processes computed on the device; "" without evidence."""
    notes: Mapping[str, Any] = field(default_factory=dict)  # further details, as JSON values


class ThreadTime(NamedTuple):
    """Nanoseconds that a thread has used so far."""

    ran_ns: int
    """Running on a processor."""
    waited_ns: int
    """Ready to run, but preempted."""


Told = TypeVar("Told")
Threads = Mapping[int, ThreadTime]
"""Thread id -> the time that the thread has used so far."""


class Watch(Protocol):
    """Observes a device before and after a block."""

    name: str

    def clock(self) -> float | None:
        """The current clock of the device's processors in MHz; None if unknown."""
        ...

    def before(self) -> None:
        """Note the counters at the start of a block."""
        ...

    def aside(self, prepare: Call) -> Call:
        """A function that calls `prepare` without counting its processor and waiting time."""
        ...

    def after(self) -> BlockObservation:
        """The observation of the block since `before()`."""
        ...

    def missing(self) -> Mapping[str, str]:
        """A dict: name of an unreadable sensor -> the reason."""
        ...


class NvmlWatch:
    """Watches one NVIDIA board through NVML."""

    name = "NVML"

    def __init__(self, nvml: Any, handle: Any, own_bytes: Callable[[], int] = lambda: 0) -> None:
        """`own_bytes()` is the device memory that this process holds."""
        self.board = Board(nvml, handle)
        self.own_bytes = own_bytes
        self.reasons: dict[str, str] = {}
        self.counters: dict[int, int] = {}

    def fields(self) -> dict[int, int]:
        """The board's counters: NVML's field -> nanoseconds for which it held clocks down."""
        found = self.board.held_clocks()
        self.note("counters", "" if found else "the board has no counters of clock throttling")
        return found

    def note(self, sensor: str, reason: str) -> None:
        """Note why a sensor is unreadable; "" if the sensor answers (again)."""
        if reason:
            self.reasons[sensor] = reason
        else:
            self.reasons.pop(sensor, None)

    def told(self, sensor: str, question: Callable[[], Told]) -> Told | None:
        """Ask a sensor, and return its answer, `question()`; None, with the reason noted under the
        name `sensor`, if the sensor is unreadable."""
        try:
            found = question()
        except SensorError as error:
            self.note(sensor, reason_of(error))
            return None
        self.note(sensor, "")
        return found

    def clock(self) -> float | None:
        """The clock of the multiprocessors in MHz; None, with the reason noted, if unreadable."""
        read = self.told("clock", self.board.sm_clock_MHz)
        return None if read is None else float(read)

    def others(self) -> str:
        """Evidence that other processes compute on the board; "" without evidence."""
        found = self.board.signs_of_others(self.own_bytes())
        untold = "the board reports neither its processes nor its memory"
        self.note("others", untold if found is None else "")
        return found or ""

    def before(self) -> None:
        """Note the counters at the start of a block."""
        self.counters = self.fields()

    def aside(self, prepare: Call) -> Call:
        """`prepare` itself: a board's counters do not distinguish calls."""
        return prepare

    def after(self) -> BlockObservation:
        """The observation of the board since `before()` (clock, slowdowns, power cap, other users):
        events that act now, and counters that have moved since. The clock is read first, before the
        board can rest."""
        clock, now = self.clock(), self.fields()
        events = self.told("event_reasons", self.board.clock_events) or []
        # a counter that was not readable before counts as unmoved
        moved = {SLOWDOWNS[n] for n in now if now[n] != self.counters.get(n, now[n])}
        slowed = [event for event in events if event in HELD_DOWN.values()]
        slowed += ["a throttling counter moved"] if "throttled" in moved else []
        return BlockObservation(
            clock_MHz=clock,
            slowed=tuple(slowed),
            power_capped=POWER_CAP in events or CAPPED in moved,
            others=self.others(),
        )

    def missing(self) -> Mapping[str, str]:
        """A dict: name of an unreadable sensor -> the reason."""
        return dict(self.reasons)


class CpuWatch:
    """Watches this process on the machine's processors, through the operating system's counters."""

    name = "operating system"

    def __init__(
        self,
        frequency: Callable[[], float | None] | None = None,
        counted: Callable[[], tuple[int, int]] | None = None,
        load: Callable[[], float] | None = None,
        threads: Callable[[], Threads] | None = None,
    ) -> None:
        """Take functions that read the clock in MHz, (involuntary context switches, page faults) so
        far, the load average of a minute, and the time used by each thread so far; by default those
        of the operating system."""
        self.frequency = frequency or cpu_frequency_MHz
        self.counted: Callable[[], tuple[int, int]] = counted or switches_and_faults
        self.load = load or (lambda: os.getloadavg()[0])
        self.threads: Callable[[], Threads] = threads or thread_times
        self.reasons: dict[str, str] = {}
        self.first = (0, 0)
        self.used: dict[int, ThreadTime] = {}
        """Thread -> time used since `before()`, without the time used in calls made by `aside`."""

    def clock(self) -> float | None:
        """The highest clock of the usable processors, in MHz; None if unknown."""
        return self.frequency()

    def before(self) -> None:
        """Begin an observation: note the context switches and page faults of the process so far,
        and its threads' times."""
        try:
            self.first = self.counted()
        except ImportError:
            self.reasons["involuntary_switches"] = "this system does not count preemptions"
            self.counted = lambda: (0, 0)
        self.used = {}
        self.used = self._times_used(-1)

    def _times_used(self, sign: int) -> dict[int, ThreadTime]:
        """A dict: thread -> `used` plus `sign` times the time that the thread has used so far; with
        -1 where counting begins, and 1 where it ends, the sum is the time used in between."""
        found = dict(self.used)
        for thread, now in self.threads().items():
            then = found.get(thread, ThreadTime(0, 0))
            found[thread] = ThreadTime(*(a + sign * b for a, b in zip(then, now, strict=True)))
        return found

    def aside(self, prepare: Call) -> Call:
        """Return a function that calls `prepare`, without counting the processor time and waiting
        time of the call."""

        def uncounted() -> Any:
            self.used = self._times_used(1)
            found = prepare()
            self.used = self._times_used(-1)
            return found

        return uncounted

    def after(self) -> BlockObservation:
        """The observation of this process since `before()`: the current clock and load, and the
        differences of the counters (context switches, page faults, threads' waiting and processor
        time)."""
        by_thread = self._times_used(1)  # thread -> ns that it ran, and waited, since `before()`
        used = by_thread.values()
        switches, faults = (
            now - then for now, then in zip(self.counted(), self.first, strict=True)
        )
        clock = self.clock()
        if clock is None:
            self.reasons["clock"] = "neither /sys nor /proc gives the processors' frequency"
        notes: dict[str, Any] = {}
        try:
            notes["load_average"] = self.load()
        except OSError as error:
            self.reasons["load_average"] = reason_of(error)
        return BlockObservation(
            clock_MHz=clock,
            switches=switches,
            waited_s=longest(each.waited_ns for each in used),
            processor_s=longest(each.ran_ns for each in used),
            threads=working(by_thread),
            page_faults=faults,
            notes=notes,
        )

    def missing(self) -> Mapping[str, str]:
        """A dict: name of an unreadable sensor -> the reason."""
        return dict(self.reasons)


class NoWatch:
    """A watch that observes nothing, with the reason."""

    def __init__(self, reason: str) -> None:
        self.name = "none"
        self.reason = reason

    def clock(self) -> float | None:
        """None."""
        return None

    def before(self) -> None:
        """Nothing to note."""

    def aside(self, prepare: Call) -> Call:
        """`prepare` itself."""
        return prepare

    def after(self) -> BlockObservation:
        """Nothing seen."""
        return BlockObservation()

    def missing(self) -> Mapping[str, str]:
        """Why nothing is watched."""
        return {"watch": self.reason}


def watch_for(device: torch.device) -> Watch:
    """Make the watch that observes a device while calls are timed: of a CUDA device's board through
    NVML, or, if NVML cannot be used, a watch that observes nothing; of a CPU through the operating
    system."""
    if device.type != "cuda":
        return CpuWatch()
    try:
        board = Board.of(device)
        return NvmlWatch(board.nvml, board.handle, lambda: torch.cuda.memory_reserved(device))
    except (SensorError, RuntimeError, AssertionError) as error:
        return NoWatch(f"clocks and limits of the GPU were not watched: {reason_of(error)}")


def switches_and_faults() -> tuple[int, int]:
    """(involuntary context switches, minor page faults) of this process so far; ImportError if the
    system does not count them."""
    import resource

    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_nivcsw, usage.ru_minflt


def thread_times(tasks: Path = Path("/proc/self/task")) -> Threads:
    """Thread id -> nanoseconds that the thread of this process ran, and waited for a processor,
    from Linux's scheduler (proc(5), schedstat); on other systems one entry, in which all time that
    the process does not run is waiting time.

    The scheduler counts the running time at its next tick, some milliseconds later; for the calling
    thread, reading the thread's clock makes the scheduler count at once.
    """
    found: dict[int, ThreadTime] = {}
    try:
        time.thread_time_ns()
        for thread in tasks.iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
                ran, waited, _ = (thread / "schedstat").read_text(encoding="ascii").split()
                found[int(thread.name)] = ThreadTime(int(ran), int(waited))
    except (OSError, ValueError):
        ran_ns = time.process_time_ns()
        return {0: ThreadTime(ran_ns, time.perf_counter_ns() - ran_ns)}
    return found


def working(used: Threads) -> tuple[int, ...]:
    """The ids of threads that ran more than a tenth as long as the busiest, the busiest first."""
    most = max((each.ran_ns for each in used.values()), default=0)
    found = [thread for thread, each in used.items() if each.ran_ns > most / 10]
    return tuple(sorted(found, key=lambda thread: -used[thread].ran_ns))


def spread_threads(threads: Sequence[int]) -> None:
    """Move each of these threads to a processor of its own, then allow all processors again.

    Beside other programs, threads that wait for one another may stay on one processor and never run
    at the same time: a call of two threads then takes hundreds of times as long. No thread is moved
    if a thread is bound to some processors, if there are fewer processors than threads, or if the
    system has no such call.
    """
    places = processors()
    if not hasattr(os, "sched_setaffinity") or not 1 < len(threads) <= len(places):
        return
    with suppress(OSError):  # a thread has ended meanwhile
        if any(sorted(os.sched_getaffinity(thread)) != places for thread in threads):
            return
        for thread, place in zip(threads, places, strict=False):
            os.sched_setaffinity(thread, {place})
    for thread in threads:
        with suppress(OSError):
            os.sched_setaffinity(thread, places)


def longest(spans_ns: Iterable[int]) -> float | None:
    """The longest of these spans of nanoseconds, in seconds, 0 or more; None without a span."""
    found = max(spans_ns, default=None)
    return None if found is None else max(found, 0) * 1e-9


def cpu_frequency_MHz(
    sys: Path = Path("/sys/devices/system/cpu"), proc: Path = Path("/proc/cpuinfo")
) -> float | None:
    """The highest current clock of the usable processors, in MHz, from files in `sys`, else `proc`:
    idle ones are slow, working ones fast. None if neither tells. psutil.cpu_freq does not say which
    processor has which clock where processors share a frequency policy, and fails at a clock that
    is no number."""
    usable = processors()
    read = map(number_in, (sys / f"cpu{n}/cpufreq/scaling_cur_freq" for n in usable))
    found = [kHz / 1e3 for kHz in read if kHz is not None]
    if not found:
        try:
            lines = proc.read_text(encoding="utf-8").splitlines()
        except OSError:
            return None
        own = True
        for name, _, value in (line.partition(":") for line in lines):
            if name.strip() == "processor":  # begins the lines of one processor
                own = value.strip() in map(str, usable)
            elif own and name.startswith("cpu MHz"):
                with suppress(ValueError):  # Unknown
                    found.append(float(value))
    return max(found, default=None)


def processors() -> list[int]:
    """The ids of the processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def number_in(path: Path) -> float | None:
    """The number in a file; None if the file is unreadable or holds no number."""
    try:
        return float(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


class DisturbanceLog:
    """The observations of the blocks that a measurement keeps, and the reason for each block that
    it leaves out.

    A clock is low if it is below the part `slow_clock` of the median clock of all blocks so far.
    """

    def __init__(self, watch: Watch, slow_clock: float) -> None:
        """Begin an empty log of blocks of calls. A block counts as heated if a counter says so, or
        if its clock is below `slow_clock` times the median of `clocks`, its own among them."""
        self.watch = watch
        self.slow_clock = slow_clock
        self.clocks: list[float] = []  # MHz; not of blocks that a counter shows held down
        self.kept: list[BlockObservation] = []
        self.left_out: list[str] = []
        """The reason for each block that was left out."""

    def heat(self, seen: BlockObservation) -> str:
        """The reason why the clock was held down in a block; "" if it was not. The block's clock is
        added to the clocks so far, unless a counter shows that it was held down."""
        if seen.slowed:
            return ", ".join(seen.slowed)
        if seen.clock_MHz is None:
            return ""
        self.clocks.append(seen.clock_MHz)
        usual = statistics.median(self.clocks)
        if seen.clock_MHz >= self.slow_clock * usual:
            return ""
        return f"clock at {seen.clock_MHz:.0f} of {usual:.0f} MHz"

    def keep(self, seen: BlockObservation) -> None:
        """Add a block to the measurement."""
        self.kept.append(seen)

    def leave_out(self, disturbance: str) -> None:
        """Note the reason for a block that is not part of the measurement."""
        self.left_out.append(disturbance)

    @property
    def by(self) -> str:
        """Each reason for left-out blocks with the number of blocks; "" if none was left out."""
        found = Counter(self.left_out).most_common()
        return ", ".join(f"{why} in {times}" for why, times in found)

    @property
    def labels(self) -> list[str]:
        """The labels of the reading, from the kept blocks."""
        found = [CAPPED] if any(seen.power_capped for seen in self.kept) else []
        return found + ([SHARED] if any(seen.others for seen in self.kept) else [])

    def details(self) -> dict[str, Any]:
        """A dict of JSON values about disturbances, for the details of a reading; `disturbances`
        and `left_out_blocks` are of the blocks left out, other values of the blocks kept."""
        clocks = [s.clock_MHz for s in self.kept if s.clock_MHz is not None]
        others = sorted({seen.others for seen in self.kept} - {""})
        return {
            "watched_by": self.watch.name,
            "left_out_blocks": len(self.left_out),
            "disturbances": sorted(set(self.left_out)),
            "clock_MHz": statistics.median(clocks) if clocks else None,
            "lowest_clock_MHz": min(clocks, default=None),
            "involuntary_switches": sum(s.switches for s in self.kept),
            "page_faults": sum(s.page_faults for s in self.kept),
            **({"others": others} if others else {}),
            "not_watched": dict(self.watch.missing()),
            **(self.kept[-1].notes if self.kept else {}),
        }
