"""Do the watches see what a board or an operating system reports, and name what they cannot see?"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from profiler.meters.disturbances import (
    BlockObservation,
    CpuWatch,
    DisturbanceLog,
    NoWatch,
    NvmlWatch,
    ThreadTime,
    cpu_frequency_MHz,
    spread_threads,
    switches_and_faults,
    thread_times,
    watch_for,
)
from profiler.meters.energy.protocol import SensorError
from tests.fake_devices import MS, ScriptedWatch
from tests.stand_ins import Instead


class NVMLError(Exception):
    """As NVIDIA's: an error with a number."""

    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


class Board:
    """NVIDIA's binding for one board whose counters and clock the test moves."""

    NVMLError = NVMLError
    NVML_SUCCESS = 0

    def __init__(self) -> None:
        self.counters = {74: 500, 75: 100, 269: 0, 270: 0, 271: 0}
        self.clock = 1980
        self.reasons = 0
        self.refusing: dict[str, int] = {}

    def answer(self, name: str) -> None:
        """Raise what was told."""
        if name in self.refusing:
            raise NVMLError(self.refusing[name])

    def nvmlDeviceGetFieldValues(self, handle: Any, wanted: Any) -> list[Any]:
        self.answer("fields")
        numbers = [entry[0] if isinstance(entry, tuple) else entry for entry in wanted]
        return [
            SimpleNamespace(
                nvmlReturn=0 if number in self.counters else 3,
                valueType=3,
                value=SimpleNamespace(ullVal=self.counters.get(number, 0)),
            )
            for number in numbers
        ]

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: Any) -> int:
        self.answer("reasons")
        return self.reasons

    def nvmlDeviceGetClockInfo(self, handle: Any, kind: int) -> int:
        assert kind == 1  # NVML_CLOCK_SM
        self.answer("clock")
        return self.clock

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> list[int]:
        return [1]

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:
        return SimpleNamespace(used=2**30)


def looked(board: Any, *, meanwhile: Any = lambda: None) -> tuple[BlockObservation, NvmlWatch]:
    watch = NvmlWatch(board, "handle")
    watch.before()
    meanwhile()
    return watch.after(), watch


def test_a_quiet_board_disturbs_no_block() -> None:
    seen, watch = looked(Board())
    assert seen == BlockObservation(clock_MHz=1980.0)
    assert watch.missing() == {}


@pytest.mark.parametrize("number", [75, 269, 270, 271])
def test_a_thermal_counter_that_moved_is_throttling(number: int) -> None:
    board = Board()
    seen, _ = looked(board, meanwhile=lambda: board.counters.update({number: 101 + number}))
    assert seen.slowed == ("a throttling counter moved",)
    assert not seen.power_capped


def test_the_power_counter_is_a_power_cap_and_no_slowdown() -> None:
    board = Board()
    seen, _ = looked(board, meanwhile=lambda: board.counters.update({74: 501}))
    assert seen == BlockObservation(clock_MHz=1980.0, power_capped=True)


@pytest.mark.parametrize(
    ("bits", "slowed", "capped"),
    [
        (0x4, (), True),
        (0x8, ("hardware slowdown",), False),
        (0x20, ("software thermal slowdown",), False),
        (0x44, ("hardware thermal slowdown",), True),
        (0x80, ("hardware power brake",), False),
        (0x1 | 0x2 | 0x10 | 0x100, (), False),  # idle, clocks as set, boost and display
    ],
)
def test_reasons_of_held_down_clocks(bits: int, slowed: tuple[str, ...], capped: bool) -> None:
    board = Board()
    board.reasons = bits
    seen, _ = looked(board)
    assert (seen.slowed, seen.power_capped) == (slowed, capped)


def test_an_older_driver_calls_them_throttle_reasons() -> None:
    board: Any = Board()
    board.reasons = 0x20
    board.nvmlDeviceGetCurrentClocksThrottleReasons = board.nvmlDeviceGetCurrentClocksEventReasons

    def too_new(handle: Any) -> int:
        raise NVMLError(13)

    board.nvmlDeviceGetCurrentClocksEventReasons = too_new
    seen, watch = looked(board)
    assert seen.slowed == ("software thermal slowdown",)
    assert watch.missing() == {}


def test_hidden_field_errors_are_missing_counters_not_zeros() -> None:
    board = Board()
    board.counters = {}
    seen, watch = looked(board)
    assert seen == BlockObservation(clock_MHz=1980.0)
    assert watch.missing() == {"counters": "the board has no counters of clock throttling"}


def test_what_a_board_refuses_has_a_reason() -> None:
    board = Board()
    board.refusing = {"fields": 3, "reasons": 3, "clock": 4}
    seen, watch = looked(board)
    assert seen == BlockObservation()
    assert set(watch.missing()) == {"counters", "event_reasons", "clock"}
    assert watch.missing()["clock"] == "no permission to read this device"


def test_a_refusal_that_passes_leaves_no_reason() -> None:
    board = Board()
    counters, board.counters = board.counters, {}
    board.refusing = {"reasons": 3, "clock": 4}
    _, watch = looked(board)
    board.counters, board.refusing = counters, {}
    watch.before()
    assert watch.after() == BlockObservation(clock_MHz=1980.0)
    assert watch.missing() == {}


def test_without_nvml_nothing_is_watched_and_the_reason_is_kept(
    instead: Instead,
) -> None:
    def absent() -> Any:
        raise SensorError("library not found")

    instead(load_nvml=absent)
    watch = watch_for(torch.device("cuda"))
    assert isinstance(watch, NoWatch)
    watch.before()
    assert watch.after() == BlockObservation()
    assert "library not found" in watch.missing()["watch"]


def test_a_cpu_is_watched_by_its_operating_system() -> None:
    counts = iter([(10, 100), (17, 130)])
    watch = CpuWatch(lambda: 2600.0, lambda: next(counts), lambda: 0.5, dict)
    watch.before()
    seen = watch.after()
    assert seen == BlockObservation(
        clock_MHz=2600.0, switches=7, page_faults=30, notes={"load_average": 0.5}
    )
    assert watch.missing() == {}
    assert isinstance(watch_for(torch.device("cpu")), CpuWatch)


def test_what_a_system_does_not_tell_has_a_reason() -> None:
    def none_kept() -> float:
        raise OSError("load averages are not kept")

    def none_counted() -> tuple[int, int]:
        raise ImportError("No module named 'resource'")

    watch = CpuWatch(lambda: None, none_counted, none_kept, dict)
    watch.before()
    assert watch.after() == BlockObservation()
    assert set(watch.missing()) == {"clock", "involuntary_switches", "load_average"}


def test_the_frequency_is_that_of_the_fastest_processor(tmp_path: Path, instead: Instead) -> None:
    instead(processors=lambda: [0, 1, 2])
    for cpu, kHz in ((0, "800000"), (1, "3600000"), (2, "<unknown>")):
        (tmp_path / f"cpu{cpu}" / "cpufreq").mkdir(parents=True)
        (tmp_path / f"cpu{cpu}" / "cpufreq" / "scaling_cur_freq").write_text(kHz)
    assert cpu_frequency_MHz(tmp_path) == 3600.0


def test_the_frequency_may_stand_in_proc_or_nowhere(tmp_path: Path) -> None:
    proc = tmp_path / "cpuinfo"
    assert cpu_frequency_MHz(tmp_path, proc) is None
    proc.write_text("model name : x\ncpu MHz\t\t: 2596.102\ncpu MHz : 1800.0\n")
    assert cpu_frequency_MHz(tmp_path, proc) == 2596.102


def test_the_frequency_in_proc_is_of_usable_processors(tmp_path: Path, instead: Instead) -> None:
    instead(processors=lambda: [0, 2])
    proc = tmp_path / "cpuinfo"
    clocks = "1000.5", "3000.0", "Unknown"
    lines = (f"processor\t: {n}\ncpu MHz\t\t: {clock}\n" for n, clock in enumerate(clocks))
    proc.write_text("\n".join(lines))
    assert cpu_frequency_MHz(tmp_path, proc) == 1000.5


def test_counts_of_a_real_process() -> None:
    """16 MiB that were never touched before are at least 8 pages, however large these are."""
    before = switches_and_faults()
    with mmap.mmap(-1, 2**24) as fresh:  # torch may be given pages that were touched before
        fresh.write(bytes(2**24))
    after = switches_and_faults()
    assert after[0] >= before[0] >= 0
    assert after[1] >= before[1] + 8


def test_threads_are_asked_of_linux_and_elsewhere_the_process(tmp_path: Path) -> None:
    for number, waited in ((1, 0), (2, 30_000_000)):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "schedstat").write_text(f"5 {waited} 7\n", encoding="ascii")
    assert thread_times(tmp_path) == {1: (5, 0), 2: (5, 30_000_000)}
    (elsewhere,) = thread_times(tmp_path / "absent").values()
    assert elsewhere.ran_ns > 0


def test_the_scheduler_is_made_to_count_before_it_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a call that ran since the last tick, some milliseconds ago, did not run."""
    (tmp_path / "7").mkdir()

    def count(ran: int = 11) -> int:
        (tmp_path / "7" / "schedstat").write_text(f"{ran} 3 2\n", encoding="ascii")
        return ran

    count(5)
    monkeypatch.setattr("time.thread_time_ns", count)
    assert thread_times(tmp_path) == {7: (11, 3)}


def seen_of(*threads: dict[int, ThreadTime], aside: bool = False) -> BlockObservation:
    """What a watch sees whose threads used this at its looks."""
    told = iter(threads)
    watch = CpuWatch(lambda: None, lambda: (0, 0), lambda: 0.5, lambda: next(told))
    watch.before()
    if aside:
        watch.aside(lambda: None)()
    return watch.after()


def test_waits_of_threads_are_not_added_up() -> None:
    """Four threads that waited for 2 ms each at the same time waited for 2 ms."""
    before = {n: ThreadTime(50 * MS, 5 * MS) for n in range(4)}
    after = {n: ThreadTime((51 + n) * MS, 7 * MS) for n in range(4)}
    seen = seen_of(before, after)
    assert seen.waited_s == pytest.approx(2e-3)
    assert seen.processor_s == pytest.approx(4e-3)  # of the busiest


def test_what_prepares_a_call_is_not_counted() -> None:
    """Of 30 ms on a processor and 10 ms of waiting, 20 and 8 went into preparing."""
    times = [(0, 0), (5, 1), (25, 9), (30, 10)]
    seen = seen_of(*({1: ThreadTime(a * MS, b * MS)} for a, b in times), aside=True)
    assert (seen.processor_s, seen.waited_s) == pytest.approx((10e-3, 2e-3))


def test_a_thread_that_begins_in_a_block_counts_and_one_that_ends_does_not() -> None:
    seen = seen_of({1: ThreadTime(9 * MS, 9 * MS)}, {2: ThreadTime(3 * MS, MS)})
    assert (seen.processor_s, seen.waited_s) == pytest.approx((3e-3, 1e-3))


@pytest.mark.parametrize(
    ("threads", "masks", "moved"),
    [
        ((7, 8), {7: [0, 1], 8: [0, 1]}, [(7, [0]), (8, [1]), (7, [0, 1]), (8, [0, 1])]),
        ((7,), {7: [0, 1]}, []),  # one thread waits for no other
        ((7, 8, 9), {7: [0, 1], 8: [0, 1], 9: [0, 1]}, []),  # more than there are processors
        ((7, 8), {7: [0], 8: [1]}, []),  # bound already
    ],
)
def test_threads_that_share_a_processor_are_moved_apart_and_set_free(
    threads: tuple[int, ...],
    masks: dict[int, list[int]],
    moved: list[tuple[int, list[int]]],
    monkeypatch: pytest.MonkeyPatch,
    instead: Instead,
) -> None:
    done: list[tuple[int, list[int]]] = []
    instead(processors=lambda: [0, 1])
    monkeypatch.setattr(os, "sched_getaffinity", masks.get, raising=False)
    monkeypatch.setattr(
        os, "sched_setaffinity", lambda at, to: done.append((at, sorted(to))), raising=False
    )
    spread_threads(threads)
    assert done == moved


def test_the_threads_that_work_are_told_the_busiest_first() -> None:
    used = {1: ThreadTime(9 * MS, 0), 2: ThreadTime(20 * MS, 0), 3: ThreadTime(MS, 0)}
    assert seen_of({}, used).threads == (2, 1)


def test_a_board_without_a_clock_disturbs_nothing() -> None:
    log = DisturbanceLog(ScriptedWatch(BlockObservation()), 0.75)
    assert log.heat(BlockObservation()) == ""
    assert log.labels == []
    assert log.details()["clock_MHz"] is None


def test_a_clock_is_held_against_the_median_of_all_rounds() -> None:
    log = DisturbanceLog(ScriptedWatch(BlockObservation()), 0.75)
    for clock in (1980.0, 1980.0, 1960.0):
        assert log.heat(BlockObservation(clock_MHz=clock)) == ""
    assert log.heat(BlockObservation(clock_MHz=1400.0)) == "clock at 1400 of 1970 MHz"


@pytest.mark.gpu
def test_a_real_board_is_watched() -> None:
    watch = watch_for(torch.device("cuda"))
    if isinstance(watch, NoWatch):
        pytest.skip(watch.reason)
    watch.before()
    assert (watch.after().clock_MHz or 0) > 100
