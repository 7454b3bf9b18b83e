"""Do the meters find a known truth, stop when they should, and refuse what they cannot measure?"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from profiler.meters import nvml as nvml_meter
from profiler.meters.energy import EnergyLimits, SensorError, estimate_energy, split
from profiler.meters.interface import Reading, Unavailable, reason_of
from profiler.meters.latency import (
    LatencyLimits,
    is_settled,
    latency,
    median_interval,
    median_ranks,
    quantile,
    tick_of,
)
from profiler.meters.memory import peak_memory, peak_of

MS = 1_000_000


def read(measured: Reading | Unavailable) -> Reading:
    assert isinstance(measured, Reading), measured
    return measured


def refused(measured: Reading | Unavailable) -> str:
    assert isinstance(measured, Unavailable), measured
    return measured.reason


def test_a_reason_is_a_sentence() -> None:
    with pytest.raises(ValueError, match="needs a reason"):
        Unavailable(" ")
    assert reason_of(RuntimeError()) == "RuntimeError"


# Latency, on a clock that only work moves.


class Clock:
    """Nanoseconds that pass only when somebody works."""

    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns


class Work:
    """Takes the listed nanoseconds, call by call, the last for ever."""

    def __init__(self, clock: Clock, *durations: int) -> None:
        self.clock = clock
        self.durations = list(durations)
        self.calls = 0

    def __call__(self) -> None:
        self.clock.ns += self.durations[min(self.calls, len(self.durations) - 1)]
        self.calls += 1


def test_ranks_of_the_median() -> None:
    # P(Binomial(30, 1/2) <= 9) = 0.0214 <= 0.025 < P(<= 10); tables of the sign test
    assert median_ranks(5) is None
    assert median_ranks(6) == (1, 6)
    assert median_ranks(10) == (2, 9)
    assert median_ranks(30) == (10, 21)
    assert median_ranks(100) == (40, 61)
    assert median_interval([5.0, 1.0, 3.0, 2.0, 6.0, 4.0]) == (1.0, 6.0)


def test_ranks_cover_the_median() -> None:
    draw = random.Random(7)
    hits = 0
    for _ in range(2000):
        low, high = median_interval([draw.expovariate(1.0) for _ in range(30)]) or (0.0, 0.0)
        hits += low <= 0.6931 <= high
    assert 0.94 < hits / 2000 < 0.975  # 0.957 exactly for n = 30; standard error 0.0045


def test_settled_needs_both_ends() -> None:
    assert is_settled([1.0] * 30, 0.01)
    assert is_settled([1.0] * 20 + [5.0] * 9 + [1.0], 0.01)  # the 21st value is still 1
    assert not is_settled([1.0] * 20 + [5.0] * 10, 0.01)
    assert not is_settled([1.0] * 5, 0.01)


def test_quantile_interpolates() -> None:
    assert quantile([4.0, 1.0, 2.0, 3.0], 0.5) == 2.5
    assert quantile([1.0], 0.2) == 1.0


def test_steady_work_needs_thirty_samples() -> None:
    clock = Clock()
    work = Work(clock, 2 * MS)
    found = read(latency(work, clock=clock))
    assert found.unit == "s"
    assert found.value == pytest.approx(2e-3, rel=1e-12)
    assert found.details["n"] == len(found.samples) == 30
    assert found.details["stop_rule"] == "median settled"
    assert (found.details["warmup"], found.details["block"]) == (3, 1)
    assert found.details["ci_low"] == found.details["ci_high"] == found.value
    assert work.calls == 33


def test_warm_up_ends_when_three_agree() -> None:
    clock = Clock()
    found = read(latency(Work(clock, 90 * MS, 9 * MS, 2 * MS), clock=clock))
    assert found.details["warmup"] == 5
    assert found.value == pytest.approx(2e-3, rel=1e-12)


def test_warm_up_has_a_cap() -> None:
    clock = Clock()
    falling = [(200 - n) * MS for n in range(0, 190, 30)]
    limits = LatencyLimits(warmup_calls=4)
    assert read(latency(Work(clock, *falling), clock=clock, limits=limits)).details["warmup"] == 4
    clock, limits = Clock(), LatencyLimits(warmup_seconds=0.3)
    assert read(latency(Work(clock, *falling), clock=clock, limits=limits)).details["warmup"] == 2


def test_two_speeds_never_settle() -> None:
    clock = Clock()
    speeds = [MS, 2 * MS] * 500
    limits = LatencyLimits(max_samples=200, warmup_calls=3)
    found = read(latency(Work(clock, *speeds), clock=clock, limits=limits))
    assert found.details["stop_rule"] == "sample cap"
    assert found.details["n"] == 200


def test_time_cap_keeps_what_was_measured() -> None:
    clock = Clock()
    found = read(latency(Work(clock, 1000 * MS), clock=clock, limits=LatencyLimits(max_seconds=2)))
    assert found.details["stop_rule"] == "time cap"
    assert found.details["n"] == 2
    assert found.details["ci_low"] is None
    assert found.value == pytest.approx(1.0)


def test_short_calls_share_a_region() -> None:
    clock = Clock()

    class Ticking(Clock):
        """A clock whose every reading costs 100 ns."""

        def __call__(self) -> int:
            clock.ns += 100
            return clock.ns

    ticking = Ticking()
    assert tick_of(ticking) == pytest.approx(100e-9)
    found = read(latency(Work(clock, 900), clock=ticking))
    # a region holds 50 ticks, 5000 ns; a call and the reading after it take 1000 ns
    assert found.details["block"] == 5
    assert found.value == pytest.approx((5 * 900 + 100) / 5 * 1e-9)


def test_reset_runs_before_every_call_and_is_not_timed() -> None:
    clock, order = Clock(), []

    def reset() -> None:
        order.append("reset")
        clock.ns += 7 * MS

    def call() -> None:
        order.append("call")
        clock.ns += 2 * MS

    found = read(latency(call, reset=reset, clock=clock))
    assert found.value == pytest.approx(2e-3)
    assert order == ["reset", "call"] * (len(order) // 2)
    assert found.details["reset"] == "outside"


def test_trivial_reset_may_share_the_region() -> None:
    clock, resets = Clock(), []
    work = Work(clock, 10)
    found = read(latency(work, reset=lambda: resets.append(1), reset_is_trivial=True, clock=clock))
    assert found.details["reset"] == "inside"
    assert found.details["block"] == 5  # the tick of this clock is 1 ns
    assert len(resets) == work.calls


def test_a_failing_call_is_a_reason() -> None:
    def fail() -> None:
        raise RuntimeError("out of memory: 5 GiB\nstack")

    assert refused(latency(fail)) == "the call failed while it was timed: out of memory: 5 GiB"
    assert "out of memory" in refused(peak_memory(fail))


def test_limits_refuse_nonsense() -> None:
    with pytest.raises(ValueError, match="min_samples"):
        LatencyLimits(min_samples=10, max_samples=5)


def test_real_clock_gives_a_positive_time() -> None:
    limits = LatencyLimits(max_samples=30, max_seconds=1.0)
    found = read(latency(lambda: torch.ones(8) + 1, limits=limits))
    assert found.value > 0
    assert found.details["p20"] <= found.value <= found.details["p80"]


# Memory, on allocations that a hand adds up.


def test_product_allocates_its_result() -> None:
    x, w = torch.ones(8, 16), torch.ones(16, 32)
    found = read(peak_memory(lambda: x @ w))
    assert (found.value, found.unit) == (8 * 32 * 4, "B")
    assert found.samples == (1024.0, 1024.0)
    assert found.details["agree"] is True
    assert found.details["kept"] == 1024


def test_peak_is_the_worst_moment() -> None:
    x, w = torch.ones(8, 16), torch.ones(16, 32)

    def chain() -> torch.Tensor:
        first = x @ w  # 1024 live
        second = first @ first.t()  # + 8 x 8 x 4 = 1280 live
        del first
        return second @ second  # 512 live

    found = read(peak_memory(chain))
    assert (found.value, found.details["kept"]) == (1280, 256)


def test_in_place_work_allocates_nothing() -> None:
    x, y = torch.ones(8), torch.ones(8)
    found = read(peak_memory(lambda: x.copy_(y)))
    assert (found.value, found.details["allocations"]) == (0, 0)


def test_float64_needs_twice_as_much() -> None:
    x = torch.ones(8, 16, dtype=torch.float64)
    assert read(peak_memory(lambda: x @ x.t())).value == 8 * 8 * 8


def test_reset_runs_before_each_measured_call() -> None:
    calls: list[str] = []
    peak_memory(lambda: calls.append("call"), reset=lambda: calls.append("reset"))
    assert calls == ["reset", "call"] * 3


def test_disagreement_is_said() -> None:
    sizes = iter([1, 1, 3])
    found = read(peak_memory(lambda: torch.empty(next(sizes))))
    assert found.samples == (4.0, 12.0)
    assert (found.value, found.details["agree"]) == (12, False)


def test_peak_of_releases_first() -> None:
    assert peak_of([]) == 0
    assert peak_of([-100, 50]) == 0
    assert peak_of([10, -10, 4, 4]) == 10


def test_memory_on_a_missing_gpu_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "finds no NVIDIA GPU" in refused(peak_memory(lambda: None, device="cuda"))


# Energy, on a simulated board.


class Board:
    """A board whose true power is known; its counter moves every `period_ms`, in whole mJ."""

    def __init__(self, idle_W: float = 80.0, load_W: float = 400.0, period_ms: int = 100) -> None:
        self.idle_W, self.load_W, self.period_ns = idle_W, load_W, period_ms * MS
        self.ns = 37 * MS
        self.true_J = 0.0
        self.shown_mJ = 0
        self.next_ns = self.period_ns
        self.power_W = idle_W
        self.phase: Callable[[int], float] | None = None

    def advance(self, seconds: float, watts: float) -> None:
        self.power_W = watts
        end = self.ns + round(seconds * 1e9)
        while self.next_ns <= end:
            self.true_J += watts * (self.next_ns - self.ns) * 1e-9
            self.ns = self.next_ns
            self.shown_mJ = int(self.true_J * 1e3)
            self.next_ns += self.period_ns
        self.true_J += watts * (end - self.ns) * 1e-9
        self.ns = end

    def energy_mJ(self) -> int:
        self.advance(10e-6, self.power_W)  # reading takes a while
        return self.shown_mJ

    def power_mW(self) -> float:
        return self.power_W * 1e3

    def now_ns(self) -> int:
        return self.ns

    def pause(self, seconds: float) -> None:
        self.advance(seconds, self.idle_W)

    def work(self) -> None:
        self.advance(0.003, self.load_W)


def measure(board: Any, work: Callable[[], Any] | None = None, **limits: Any) -> Any:
    return estimate_energy(
        board,
        work or board.work,
        calls_per_work=6,
        pause=board.pause,
        limits=EnergyLimits(**limits),
    )


@pytest.mark.parametrize("period_ms", [20, 100])
def test_energy_within_one_per_cent(period_ms: int) -> None:
    board = Board(period_ms=period_ms)
    found = read(measure(board))
    truth = 400 * 0.003 / 6
    assert found.unit == "J"
    assert found.value == pytest.approx(truth, rel=0.01)
    assert found.details["net_J"] == pytest.approx((400 - 80) * 0.003 / 6, rel=0.01)
    assert found.details["power_W"] == pytest.approx(400, rel=0.01)
    assert found.details["idle_W"] == pytest.approx(80, rel=0.01)
    assert found.details["update_period_s"] == pytest.approx(period_ms * 1e-3, rel=0.05)
    assert found.details["window_s"] >= max(2.0, 20 * period_ms * 1e-3)
    assert found.details["labels"] == []


def test_energy_window_follows_a_slow_counter() -> None:
    found = read(measure(Board(period_ms=500)))
    assert found.details["window_s"] >= 20 * 0.497  # the period is seen through polls of 3 ms
    assert found.value == pytest.approx(400 * 0.003 / 6, rel=0.01)


def test_energy_splits_into_three_readings() -> None:
    gross, net, power = split(read(measure(Board())))
    assert [(r.name, r.unit) for r in (gross, net, power)] == [
        ("energy", "J"),
        ("energy_net", "J"),
        ("power", "W"),
    ]
    assert gross.value > net.value > 0
    assert power.value == gross.details["power_W"]


def test_mostly_idle_is_labelled() -> None:
    assert read(measure(Board(load_W=120.0))).details["labels"] == ["mostly idle"]


def test_disagreeing_sensors_are_labelled() -> None:
    board = Board()
    board.power_mW = lambda: board.power_W * 1.1e3  # type: ignore[method-assign]
    assert read(measure(board)).details["labels"] == ["sensor disagreement"]


def test_bursts_are_refused() -> None:
    board = Board()

    def bursts() -> None:
        busy = (board.ns // (700 * MS)) % 2 == 0
        board.advance(0.003, 400.0 if busy else 80.0)

    assert "the load comes in bursts" in refused(measure(board, bursts))


def test_short_window_is_refused() -> None:
    reason = refused(measure(Board(), window_s=1.0))
    assert "a window of 1 s is too short" in reason
    assert "2" in reason


def test_standing_counter_is_refused_and_no_zero() -> None:
    board = Board()
    board.energy_mJ = lambda: 5  # type: ignore[method-assign]
    assert "did not move in 2 s" in refused(measure(board))


def test_falling_counter_is_refused() -> None:
    board = Board()
    honest = board.energy_mJ

    def reloaded() -> int:
        return honest() % 900_000  # the driver is reloaded after 900 J

    board.energy_mJ = reloaded  # type: ignore[method-assign]
    assert "the energy counter went down from" in refused(measure(board))


def test_a_sensor_that_fails_later_is_a_reason() -> None:
    board = Board()
    honest = board.energy_mJ

    def failing() -> int:
        if board.ns > 3_000 * MS:
            raise SensorError("no permission to read this device")
        return honest()

    board.energy_mJ = failing  # type: ignore[method-assign]
    assert refused(measure(board)) == "energy: no permission to read this device"


# NVML, faked at its Python binding.


class NVMLError(Exception):
    """As NVIDIA's: an error with a number."""

    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


def fake_nvml(**broken: int) -> Any:
    """NVIDIA's binding for one healthy board; functions named in `broken` raise that error."""

    def answering(name: str, value: Any) -> Callable[..., Any]:
        def function(*args: Any) -> Any:
            fake.asked.append((name, args))
            if name in broken:
                raise NVMLError(broken[name])
            return value

        return function

    field = SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=250_000))
    answers = {
        "nvmlInit": None,
        "nvmlDeviceGetHandleByUUID": "by uuid",
        "nvmlDeviceGetHandleByPciBusId": "by address",
        "nvmlDeviceGetMigMode": (0, 0),
        "nvmlDeviceGetComputeRunningProcesses": [object()],
        "nvmlDeviceGetTotalEnergyConsumption": 1234,
        "nvmlDeviceGetPowerUsage": 300_000,
        "nvmlDeviceGetFieldValues": [field],
        "_nvmlGetFunctionPointer": None,
    }
    fake = SimpleNamespace(asked=[], NVMLError=NVMLError, NVML_SUCCESS=0, field=field)
    for name, value in answers.items():
        setattr(fake, name, answering(name, value))
    return fake


UUID = "2e6b1f7a-0000-1111-2222-333344445555"
PROPERTIES = SimpleNamespace(uuid=UUID, pci_domain_id=0, pci_bus_id=0x1B, pci_device_id=0)


def opened(monkeypatch: pytest.MonkeyPatch, nvml: Any, device: str = "cuda:1") -> Any:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: PROPERTIES)
    return nvml_meter.open_sensor(device)


def test_board_is_found_by_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = fake_nvml()
    sensor = opened(monkeypatch, nvml)
    assert ("nvmlDeviceGetHandleByUUID", (f"GPU-{UUID}".encode(),)) in nvml.asked
    assert (sensor.handle, sensor.energy_mJ(), sensor.power_mW()) == ("by uuid", 1234, 250_000)
    assert sensor.now_ns() > 0


def test_board_is_found_by_address_without_uuid() -> None:
    nvml = fake_nvml()
    without = SimpleNamespace(**{**vars(PROPERTIES), "uuid": None})
    assert nvml_meter.handle_of(nvml, without) == "by address"
    assert nvml.asked == [("nvmlDeviceGetHandleByPciBusId", (b"00000000:1b:00.0",))]


def test_hidden_field_error_falls_back_to_average_power(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = fake_nvml()
    nvml.field.nvmlReturn = 3
    assert opened(monkeypatch, nvml).power_mW() == 300_000


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ({"nvmlInit": 12}, "NVML: library not found"),
        ({"nvmlInit": 9}, "NVML: the NVIDIA driver is not loaded"),
        ({"nvmlInit": 18}, "NVML: driver and library versions differ"),
        ({"nvmlDeviceGetTotalEnergyConsumption": 3}, "NVML: not supported by this device"),
        ({"nvmlDeviceGetTotalEnergyConsumption": 4}, "NVML: no permission"),
        ({"nvmlDeviceGetHandleByUUID": 999}, "NVML: NVML error 999"),
    ],
)
def test_every_nvml_error_is_a_reason(
    monkeypatch: pytest.MonkeyPatch, broken: dict[str, int], reason: str
) -> None:
    assert refused(opened(monkeypatch, fake_nvml(**broken))).startswith(reason)


def test_shared_boards_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    split_board = fake_nvml()
    split_board.nvmlDeviceGetMigMode = lambda handle: (1, 1)
    assert "MIG mode is on" in refused(opened(monkeypatch, split_board))
    crowded = fake_nvml()
    crowded.nvmlDeviceGetComputeRunningProcesses = lambda handle: [1, 2]
    assert "2 processes compute" in refused(opened(monkeypatch, crowded))


def test_boards_without_mig_or_process_list_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = fake_nvml(nvmlDeviceGetMigMode=3, nvmlDeviceGetComputeRunningProcesses=3)
    assert isinstance(opened(monkeypatch, nvml), nvml_meter.NvmlSensor)


def test_another_pynvml_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = fake_nvml()
    del nvml._nvmlGetFunctionPointer
    assert "pip uninstall pynvml" in refused(opened(monkeypatch, nvml))


def test_missing_binding_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = refused(opened(monkeypatch, None))
    assert reason == "NVML: the package nvidia-ml-py is not installed (pip install nvidia-ml-py)"


def test_energy_of_a_cpu_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    reason = refused(nvml_meter.energy(lambda: None, device="cpu"))
    assert reason == "NVML reads NVIDIA GPUs, and the device is cpu"
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(nvmlInit=12))
    assert "library not found" in refused(nvml_meter.energy(lambda: None, device="cpu"))


# On a real GPU.

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


@pytest.mark.gpu
@needs_gpu
def test_memory_and_latency_on_a_gpu() -> None:
    x = torch.ones(64, 64, device="cuda")
    assert read(peak_memory(lambda: x + 1, device="cuda")).value == 64 * 64 * 4
    assert read(latency(lambda: x @ x, device="cuda")).value > 0


@pytest.mark.gpu
@needs_gpu
def test_energy_on_a_gpu() -> None:
    x = torch.randn(4096, 4096, device="cuda")
    found = nvml_meter.energy(lambda: x @ x, device="cuda")
    if isinstance(found, Unavailable):
        pytest.skip(found.reason)
    assert found.value > found.details["net_J"] > 0
