"""What do latency, energy and records report of a board that fails, is shared or is partitioned?

The boards are simulated behind NVIDIA's own binding; the queue that is timed is a known one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from msgspec import structs

from profiler.doctor.findings import PROBES, diagnose
from profiler.host import environment as surroundings
from profiler.host.probes import NO, Surroundings
from profiler.meters.board_energy import open_sensor
from profiler.meters.disturbances import NoWatch, NvmlWatch, watch_for
from profiler.meters.energy.estimate import estimate_energy
from profiler.meters.energy.protocol import EnergyLimits, SensorError
from profiler.meters.latency import latency
from profiler.meters.nvml import INSTANT, handle_of
from profiler.meters.timers import CudaTimer
from profiler.records.reading import Reading, Unavailable
from profiler.run import measure
from profiler.run.caveats import contention
from profiler.run.prepare import prepare
from profiler.sweep.devices import board_uuids
from tests.fake_devices import US, Gpu
from tests.nvml.board import ENERGY, Busy, Simulated, properties, uuid
from tests.nvml.estimates import read, refused
from tests.profiler.test_work import asked
from tests.recorded import recorded

FIELDS = "nvmlDeviceGetFieldValues"
REASONS = "nvmlDeviceGetCurrentClocksEventReasons"
CLOCK = "nvmlDeviceGetClockInfo"
GPU_LOST, NOT_SUPPORTED, TOO_OLD = 15, 3, 13


def watched(board: Simulated, *, meanwhile: Callable[[int], None] = lambda call: None) -> Reading:
    """A reading that was taken."""
    return read(measured(board, meanwhile=meanwhile))


def measured(
    board: Simulated, *, meanwhile: Callable[[int], None] = lambda call: None
) -> Reading | Unavailable:
    """Hot latency of calls of 200 us, the simulated board watched; `meanwhile` hears their number
    from the end of the warm-up on."""
    gpu = Gpu()
    enqueue = gpu.kernels(device_ns=200 * US)
    calls = 0

    def call() -> None:
        nonlocal calls
        if gpu.host.ns >= 10**9:  # the warm-up takes a second
            calls += 1
            meanwhile(calls)
        enqueue()

    watch = NvmlWatch(board.nvml, handle_of(board.nvml, properties(board.index)))
    return latency(call, timer=CudaTimer(gpu), watch=watch, pause=lambda seconds: None)


def holding(board: Simulated, number: int, when: Callable[[int], bool]) -> Callable[[int], None]:
    """A counter of held-down clocks that grows at some calls."""

    def meanwhile(call: int) -> None:
        if when(call):
            board.call("sim_held", number, call * 10**6)

    return meanwhile


# Latency, watched.


def test_a_quiet_board_leaves_no_label(board: Simulated) -> None:
    found = watched(board)
    assert found.value == pytest.approx(200e-6)
    assert found.details["labels"] == []
    assert (found.details["watched_by"], found.details["clock_MHz"]) == ("NVML", 1980.0)
    assert found.details["not_watched"] == {}
    assert found.details["left_out_blocks"] == 0


@pytest.mark.parametrize("number", [75, 269, 270, 271])
def test_thermal_slowdown_in_one_block_leaves_that_block_out(board: Simulated, number: int) -> None:
    found = watched(board, meanwhile=holding(board, number, lambda call: call == 7))
    assert found.details["left_out_blocks"] == 1
    assert found.details["labels"] == []


def test_thermal_slowdown_in_every_block_is_a_label(board: Simulated) -> None:
    found = watched(board, meanwhile=holding(board, 270, lambda call: True))
    assert found.details["labels"] == ["throttled"]
    assert found.details["disturbances"] == ["a throttling counter moved"]
    assert found.value == pytest.approx(200e-6)


def test_power_cap_leaves_nothing_out_and_is_labelled(board: Simulated) -> None:
    found = watched(board, meanwhile=holding(board, 74, lambda call: call == 7))
    assert found.details["left_out_blocks"] == 0
    assert found.details["labels"] == ["power-capped"]


@pytest.mark.parametrize(
    ("function", "code", "missing"),
    [
        (FIELDS, NOT_SUPPORTED, "counters"),
        (REASONS, NOT_SUPPORTED, "event_reasons"),
        (REASONS, TOO_OLD, "event_reasons"),
        (CLOCK, GPU_LOST, "clock"),
    ],
)
def test_what_a_board_refuses_to_tell_is_named_and_timed_all_the_same(
    board: Simulated, function: str, code: int, missing: str
) -> None:
    board.fault(function, code)
    found = watched(board)
    assert set(found.details["not_watched"]) == {missing}
    assert found.value == pytest.approx(200e-6)


def test_counters_that_are_refused_one_by_one_hide_no_other(board: Simulated) -> None:
    """The call for several fields succeeds, and each field carries its own error."""
    for number in (74, 75, 269, 271):
        board.library.sim_field_fault(0, number, NOT_SUPPORTED)
    found = watched(board, meanwhile=holding(board, 270, lambda call: call == 7))
    assert found.details["left_out_blocks"] == 1
    assert found.details["not_watched"] == {}


def test_slowdown_of_another_board_leaves_nothing_out(
    boards: Callable[..., list[Simulated]],
) -> None:
    mine, other = boards(2)
    found = watched(mine, meanwhile=holding(other, 270, lambda call: True))
    assert (found.details["left_out_blocks"], found.details["labels"]) == (0, [])


@pytest.mark.parametrize("code", [9, 12, 18])
def test_without_a_driver_a_gpu_is_timed_unwatched(
    board: Simulated, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties(0))
    assert isinstance(watch_for(torch.device("cuda")), NvmlWatch)
    board.fault("nvmlInitWithFlags", code)
    watch = watch_for(torch.device("cuda"))
    assert isinstance(watch, NoWatch)
    gpu = Gpu()
    call = gpu.kernels(device_ns=200 * US)
    found = read(latency(call, timer=CudaTimer(gpu), watch=watch, pause=lambda seconds: None))
    assert found.value == pytest.approx(200e-6)
    assert "were not watched" in found.details["not_watched"]["watch"]


# A clock that has yet to settle.


def warmed(board: Simulated, clock_MHz: Callable[[float], int]) -> tuple[float, Reading]:
    """Seconds of warm-up, and the reading, of calls of 200 us; the clock by seconds of work."""
    gpu = Gpu()
    enqueue = gpu.kernels(device_ns=200 * US)

    def call() -> None:
        board.call("sim_clock", clock_MHz(gpu.host.ns * 1e-9))
        enqueue()

    watch = NvmlWatch(board.nvml, handle_of(board.nvml, properties(board.index)))
    found = read(latency(call, timer=CudaTimer(gpu), watch=watch, pause=lambda seconds: None))
    return found.details["warmup"] * 220e-6, found  # 20 us to enqueue a call, then it is awaited


def test_a_steady_clock_is_waited_for_no_longer_than_a_second(board: Simulated) -> None:
    seconds, found = warmed(board, lambda now: 1980)
    assert seconds == pytest.approx(1.0, rel=0.01)
    assert found.details["warmup_clocks_MHz"] == [1980.0] * 3
    assert found.details["warmup_clock_settled"] is True


def test_a_clock_that_rises_is_waited_for(board: Simulated) -> None:
    """It has risen after 2 s; three looks, 0.1 s apart, must agree then."""
    seconds, found = warmed(board, lambda now: round(min(345 + 817.5 * now, 1980)))
    assert 2.1 < seconds < 2.4
    assert found.details["warmup_clock_settled"] is True
    assert min(found.details["warmup_clocks_MHz"]) >= 0.98 * 1980


def test_a_clock_that_never_settles_is_waited_for_until_the_cap_and_said_so(
    board: Simulated,
) -> None:
    seconds, found = warmed(board, lambda now: 1980 - 300 * (round(now * 10) % 2))
    assert seconds == pytest.approx(5.0, rel=0.01)
    assert found.details["warmup_clock_settled"] is False


def test_a_clock_that_is_not_told_is_not_waited_for(board: Simulated) -> None:
    board.fault(CLOCK, NOT_SUPPORTED)
    seconds, found = warmed(board, lambda now: 345)
    assert seconds == pytest.approx(1.0, rel=0.01)
    assert found.details["warmup_clock_settled"] is None
    assert found.details["warmup_clocks_MHz"] == []


# A part of a board.


def part(board: Simulated) -> None:
    """The board is a MIG instance, whose fields the driver refuses."""
    board.call("sim_uuid", f"MIG-{uuid(0)}".encode())
    board.call("sim_mig", 0, 1)
    board.fault(FIELDS, NOT_SUPPORTED)


def on_the_board(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's only device is the first simulated board."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties(0))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index: 0)


def test_a_part_of_a_board_is_timed_and_its_energy_is_not_told(
    board: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    part(board)
    found = watched(board)
    assert found.value == pytest.approx(200e-6)
    assert "counters" in found.details["not_watched"]
    on_the_board(monkeypatch)
    request = asked("me", "fft")
    work = prepare(request)
    energies = measure.energies_of_work(work, replace(request, device="cuda"))
    assert set(energies) == {"energy", "energy_net", "power"}
    assert {refused(each).partition(":")[2].strip()[:20] for each in energies.values()} == {
        "unsupported (shared)"
    }


def test_parts_of_boards_are_not_named_by_the_boards_uuid(
    boards: Callable[..., list[Simulated]],
) -> None:
    """With MIG on, the board's UUID would name all its parts."""
    _, second = boards(2)
    assert board_uuids() == [f"GPU-{uuid(0)}", f"GPU-{uuid(1)}"]
    second.call("sim_mig", 1, 0)
    assert board_uuids() == []


def test_doctor_says_that_a_part_has_no_energy(
    board: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    part(board)
    on_the_board(monkeypatch)
    machine = Surroundings(device="cuda", cuda_usable=lambda: True)
    probes = {name: PROBES[name] for name in ("energy", "power")}
    found = diagnose(machine, probes=probes).findings
    for each in found:
        assert each.verdict == NO
        assert "unsupported (shared)" in each.said and "take a whole GPU" in each.fix


# Energy, while the board fails.


def test_a_thermometer_that_is_lost_meanwhile_stops_nothing(board: Simulated) -> None:
    sensor = board.sensor()
    board.fault("nvmlDeviceGetTemperature", 999, since_s=12.0)
    found = read(estimate_energy(sensor, Busy(board), pause=board.pause))
    assert found.details["start_C"][0] == 40.0
    assert found.details["start_C"][-1] is None
    assert found.value == pytest.approx(400 * 0.01 / 6, rel=0.01)


@pytest.mark.parametrize(("settle_s", "true"), [(1.5, True), (1.0, False)])
def test_a_mean_over_one_second_is_waited_for_beyond_that_second(
    board: Simulated, settle_s: float, true: bool
) -> None:
    """It is shown up to one update late: after 1 s of load it still holds some of the rest."""
    board.fault(ENERGY, NOT_SUPPORTED)
    board.library.sim_field_fault(0, INSTANT, NOT_SUPPORTED)
    load = Busy(board)
    waiting = EnergyLimits(averaged_settle_s=settle_s, settle_s=settle_s, window_s=2.0)
    found = read(estimate_energy(board.sensor(), load, pause=board.pause, limits=waiting))
    # a load of constant power is read to the rounding of milliwatts, or else too low
    assert (abs(found.value / load.call_J - 1) < 1e-5) == true
    assert found.value < load.call_J * (1 + 1e-5)


def test_the_second_of_an_average_is_waited_for_without_being_asked() -> None:
    assert EnergyLimits().settling("averaged") > 1.0 + 0.1
    assert EnergyLimits(settle_s=4.0).settling("averaged") == 4.0


@pytest.mark.parametrize("mJ", [90e3, 200e3, 5e6])
def test_a_jump_of_any_size_is_discarded_refused_or_labelled(board: Simulated, mJ: float) -> None:
    """90 J in 5 s of 400 W are 4.5 %: less than the board's limit shows, and never passed over."""
    board.call("sim_counter_event", board.started_ns + 15 * 10**9, mJ, 0)
    load = Busy(board)
    found = estimate_energy(board.sensor(), load, pause=board.pause)
    if isinstance(found, Unavailable):
        assert "power varied by" in found.reason
    else:
        assert found.details["discarded"] or found.details["labels"]
        if not found.details["labels"]:
            assert found.value == pytest.approx(load.call_J, rel=0.01)


def test_a_power_sensor_that_shows_nothing_is_no_measurement(board: Simulated) -> None:
    """A successful call, and 0 W, on a board without a counter."""
    board.fault(ENERGY, NOT_SUPPORTED)
    board.instant(gain=0.0)
    found = estimate_energy(board.sensor(), Busy(board), pause=board.pause)
    assert refused(found) == (
        "energy: the power sensor shows 0 W while the power was sampled: costmodel doctor tells "
        "which sensors work"
    )


# Others on the board.


def test_utilisation_of_five_per_cent_is_none_and_six_is_somebodys(board: Simulated) -> None:
    board.call("sim_busy", 5)
    board.sensor().require_alone()
    board.call("sim_busy", 6)
    with pytest.raises(SensorError, match="6 % busy while this process is idle"):
        board.sensor().require_alone()


def test_memory_of_others_tells_where_one_process_is_listed(board: Simulated) -> None:
    """That it is this process nobody can say: in a container its number is another one."""
    board.call("sim_processes", 1)
    board.sensor(own_bytes=lambda: 2**30).require_alone()
    board.call("sim_memory", 60 * 2**30)
    board.sensor(own_bytes=lambda: 59 * 2**30).require_alone()
    with pytest.raises(SensorError, match="63350767616 bytes of the board's memory are held by"):
        board.sensor(own_bytes=lambda: 2**30)


@pytest.mark.parametrize(
    ("control", "number", "said"),
    [
        ("sim_processes", 3, "3 processes compute on this board, one was expected"),
        ("sim_memory", 9 * 2**30, "9663676416 bytes of the board's memory are held by others"),
    ],
)
def test_latency_beside_others_is_labelled_and_has_no_rates(
    board: Simulated, control: str, number: int, said: str
) -> None:
    board.call(control, number)
    found = watched(board)
    assert found.details["labels"] == ["shared device"]
    assert found.details["others"] == [said]
    record = recorded("me", "fft", {"b": 1, "l": 4, "d": 8}, readings={"latency": found})
    assert contention(record) == (
        "not comparable: the device was disturbed while it was timed (shared device)"
    )
    assert contention(structs.replace(record, readings={"latency": quiet(found)})) == ""


def quiet(found: Reading) -> Reading:
    """The same without its labels."""
    return structs.replace(found, details={**found.details, "labels": []})


def test_others_that_come_while_samples_are_taken_are_noticed(board: Simulated) -> None:
    found = watched(board, meanwhile=lambda call: board.call("sim_processes", 1 + (call > 7)))
    assert found.details["labels"] == ["shared device"]
    assert found.details["others"] == ["2 processes compute on this board, one was expected"]


def test_a_board_that_tells_of_nobody_is_not_called_alone(board: Simulated) -> None:
    board.fault("nvmlDeviceGetComputeRunningProcesses_v3", NOT_SUPPORTED)
    assert watched(board).details["not_watched"] == {}  # its memory still tells
    board.fault("nvmlDeviceGetMemoryInfo", NOT_SUPPORTED)
    assert set(watched(board).details["not_watched"]) == {"others"}


def test_processes_on_another_board_disturb_nobody(
    boards: Callable[..., list[Simulated]],
) -> None:
    mine, other = boards(2)
    other.call("sim_processes", 4)
    other.call("sim_busy", 100)
    mine.sensor().require_alone()
    with pytest.raises(SensorError, match="4 processes compute on this board"):
        other.sensor()


def test_other_processes_are_in_every_record(
    board: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container nobody has this process's number: how many there are is still recorded."""
    on_the_board(monkeypatch)
    board.call("sim_processes", 3)
    reasons: dict[str, str] = {}
    identity, state = surroundings.board_facts(torch.device("cuda"), reasons)
    assert identity["uuid"] == f"GPU-{uuid(0)}"
    assert state["compute_processes"] == 3
    assert "other_processes" not in state
    assert "does not list this process" in reasons["state.other_processes"]


def test_what_a_driver_lacks_is_a_reason_in_the_record(
    board: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The simulated library has no ECC mode, as an old driver: NVIDIA's binding says so itself."""
    on_the_board(monkeypatch)
    reasons: dict[str, str] = {}
    identity, state = surroundings.board_facts(torch.device("cuda"), reasons)
    assert "ecc" not in identity
    assert reasons["gpu.ecc"] == "the driver is too old for this function"
    assert identity["power_limit_W"] == 700.0
    assert (state["sm_clock_MHz"], state["temperature_C"]) == (1980, 40)


def test_a_board_that_is_lost_after_it_was_found_is_a_reason(
    board: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_the_board(monkeypatch)
    for function in (FIELDS, ENERGY):
        board.fault(function, GPU_LOST)
    assert refused(open_sensor("cuda")) == "NVML: the GPU is lost"
