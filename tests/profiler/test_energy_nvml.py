"""Does the energy meter ask the right board through the right binding with a full queue, or give a
reason?"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml  # type: ignore[import-untyped]  # no stubs
import pytest
import torch

from profiler.meters import board_energy as meter
from profiler.meters.board_energy import BATCH_S, NvmlSensor, QueuedLoad, open_sensor
from profiler.meters.energy.estimate import PairedEnergy
from profiler.meters.energy.protocol import EnergyLimits, SensorError
from profiler.meters.nvml import handle_of
from tests.nvml.board import Busy, Simulated, properties, uuid
from tests.nvml.estimates import read, refused
from tests.stand_ins import Instead

ROOT = Path(__file__).resolve().parent.parent.parent
NO_SUCH = "deadbeef-0000-1111-2222-333344445555"


def torch_sees(monkeypatch: pytest.MonkeyPatch, *devices: Any) -> None:
    """As if torch had these devices, in this order."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: devices[device.index or 0]
    )
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index: 0)


def text(handle: Any) -> str:
    found = pynvml.nvmlDeviceGetUUID(handle)
    return str(found.decode() if isinstance(found, bytes) else found)


# Which board.


def test_reordered_cuda_visible_devices_are_mapped_by_uuid(
    boards: Callable[..., list[Simulated]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA_VISIBLE_DEVICES=2,0: torch's device 0 is NVML's board 2, its device 1 board 0."""
    boards(3)
    torch_sees(monkeypatch, properties(2), properties(0))
    for device, board in (("cuda", 2), ("cuda:0", 2), ("cuda:1", 0)):
        sensor = open_sensor(device)
        assert isinstance(sensor, NvmlSensor), sensor
        assert text(sensor.handle) == f"GPU-{uuid(board)}"


def test_the_wrong_boards_energy_is_never_read(
    boards: Callable[..., list[Simulated]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two boards at 80 and 300 W idle: the sensor of torch's only device reads the second."""
    first, second = boards(2)
    second.draw(second.now_ns(), 300.0)
    second.instant()
    for each in (first, second):
        each.advance(10**9)
    torch_sees(monkeypatch, properties(1))
    sensor = open_sensor("cuda")
    assert isinstance(sensor, NvmlSensor), sensor
    assert sensor.power_mW() == pytest.approx(300_000)


def test_uuids_may_come_with_their_prefix(boards: Callable[..., list[Simulated]]) -> None:
    boards(2)
    assert text(handle_of(pynvml, SimpleNamespace(uuid=f"GPU-{uuid(1)}"))) == f"GPU-{uuid(1)}"


def test_a_board_is_found_by_its_address_where_torch_knows_no_uuid(
    boards: Callable[..., list[Simulated]],
) -> None:
    boards(3)
    handle = handle_of(pynvml, properties(2, uuid=None))
    assert text(handle) == f"GPU-{uuid(2)}"


def test_a_part_of_a_board_is_found(boards: Callable[..., list[Simulated]]) -> None:
    (board,) = boards(1)
    board.call("sim_uuid", f"MIG-{uuid(0)}".encode())
    assert text(handle_of(pynvml, properties(0))) == f"MIG-{uuid(0)}"


def test_a_mig_device_of_cuda_visible_devices_is_refused(
    boards: Callable[..., list[Simulated]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (board,) = boards(1)
    board.call("sim_uuid", f"MIG-{uuid(0)}".encode())
    board.call("sim_mig", 0, 1)
    torch_sees(monkeypatch, properties(0))
    assert refused(open_sensor("cuda")).startswith("NVML: unsupported (shared)")


def test_a_board_that_nvml_does_not_know_is_a_reason(
    boards: Callable[..., list[Simulated]], monkeypatch: pytest.MonkeyPatch
) -> None:
    boards(1)
    torch_sees(monkeypatch, properties(0, uuid=NO_SUCH))
    assert refused(open_sensor("cuda")) == "NVML: NVML knows no such board"


def test_another_error_is_not_taken_for_a_part(board: Simulated) -> None:
    board.fault("nvmlDeviceGetHandleByUUID", 15)
    with pytest.raises(SensorError, match="the GPU is lost"):
        handle_of(pynvml, properties(0))


# Which binding.


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (12, "NVML: library not found: there is no NVIDIA driver on this machine"),
        (9, "NVML: the NVIDIA driver is not loaded"),
        (18, "NVML: driver and library versions differ: reload the driver"),
        (4, "NVML: no permission to read this device"),
        (999, "NVML: Unknown Error"),
    ],
)
def test_no_driver_or_a_broken_one_is_a_reason(board: Simulated, code: int, reason: str) -> None:
    board.fault("nvmlInitWithFlags", code)
    assert refused(open_sensor("cuda")) == reason


def test_no_driver_on_this_machine_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "CDLL", missing)
    assert "library not found" in refused(open_sensor("cuda"))


def test_missing_binding_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    reason = refused(open_sensor("cuda"))
    assert reason == "NVML: the package nvidia-ml-py is not installed (pip install nvidia-ml-py)"


def test_a_package_that_shadows_the_binding_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The older package of that name warns on import and lacks what NVIDIA's own has."""
    package = tmp_path / "pynvml"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import warnings\n"
        "warnings.warn('use nvidia-ml-py', FutureWarning)\n"
        "class NVMLError(Exception): pass\n"
        "def nvmlInit(): raise AssertionError('not to be called')\n"
    )
    monkeypatch.delitem(sys.modules, "pynvml")
    monkeypatch.syspath_prepend(tmp_path)
    reason = refused(open_sensor("cuda"))
    assert "another package named pynvml hides NVIDIA's" in reason
    assert "pip uninstall pynvml; pip install nvidia-ml-py" in reason


def test_the_binding_loads_the_library_by_its_name(library_path: Path) -> None:
    """In a process of its own, found as a driver's library is."""
    script = (
        "from profiler.meters.nvml import load_nvml\n"
        "nvml = load_nvml()\n"
        "handle = nvml.nvmlDeviceGetHandleByIndex(0)\n"
        "print(nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetTotalEnergyConsumption(handle))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env=os.environ | {"LD_LIBRARY_PATH": str(library_path.parent)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout.split() == [f"GPU-{uuid(0)}", "5000000000"], done.stderr


def test_an_older_driver_lacks_functions(board: Simulated) -> None:
    """NVMLError_FunctionNotFound (13) is "not supported" for sensors, and fields are optional."""
    board.fault("nvmlDeviceGetTotalEnergyConsumption", 13)
    sensor = board.sensor()
    assert (sensor.counter, sensor.power) == (False, "instant")
    board.fault("nvmlDeviceGetFieldValues", 13)
    assert board.sensor().power == "averaged"
    assert board.sensor().slowdowns() == {}


def test_energy_of_a_cpu_is_a_reason(board: Simulated) -> None:
    reason = refused(meter.energy(lambda: None, device="cpu"))
    assert reason == "NVML reads NVIDIA GPUs, and the device is cpu"
    pair = meter.energies_in_turn({"a": (lambda: None, None)}, device="cpu")
    assert refused(pair) == reason


def test_a_board_that_torch_cannot_use_is_a_reason(
    board: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "torch finds no usable NVIDIA GPU" in refused(open_sensor("cuda"))


def test_the_simulated_library_is_not_shipped() -> None:
    targets = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    shipped = targets["targets"]["wheel"]["only-include"]
    assert not [each for each in shipped if each.startswith("tests")]
    for package in shipped:
        assert not list((ROOT / package).rglob("*.c"))


# The queue.


class Device:
    """A GPU that takes 2 ms a call, and a host whose queries take 0.1 ms."""

    def __init__(self) -> None:
        self.now_s, self.until_s = 0.0, 0.0
        self.ran: list[str] = []

    def call(self) -> None:
        self.ran.append("call")
        self.until_s = max(self.until_s, self.now_s) + 2e-3

    def reset(self) -> None:
        self.ran.append("reset")

    def marker(self, place: torch.device) -> Any:
        end = self.until_s

        def query() -> bool:
            self.now_s += 1e-4
            return self.now_s >= end

        def synchronize() -> None:
            self.now_s = max(self.now_s, end)

        return SimpleNamespace(query=query, synchronize=synchronize)


@pytest.fixture
def queued(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Device, QueuedLoad]]:
    """A load on such a device."""
    monkeypatch.setattr(torch.cuda, "device", lambda place: torch.no_grad())

    def made(reset: bool = False) -> tuple[Device, QueuedLoad]:
        device = Device()
        place = torch.device("cuda", 0)
        load = QueuedLoad(
            device.call,
            device.reset if reset else None,
            place,
            marker=device.marker,
            clock=lambda: device.now_s,
        )
        return device, load

    return made


def test_a_batch_lasts_longer_than_a_reading(
    queued: Callable[..., tuple[Device, QueuedLoad]],
) -> None:
    device, load = queued()
    assert load.calls == round(BATCH_S / 2e-3) == 5
    assert not load.queue
    assert device.now_s == pytest.approx(device.until_s)


def test_the_queue_never_runs_dry(queued: Callable[..., tuple[Device, QueuedLoad]]) -> None:
    device, load = queued()
    done = []
    for _ in range(20):
        load.submit()
        while not load.ready():
            assert device.until_s > device.now_s
        done.append(device.now_s)
        if len(done) > 1:
            assert device.until_s - device.now_s > 5e-3  # half a batch is still to be run
    gaps = [b - a for a, b in pairwise(done[2:])]
    assert gaps == pytest.approx([0.01] * len(gaps), abs=2e-4)
    load.drain()
    assert device.now_s >= device.until_s
    assert not load.queue


def test_reset_comes_before_every_call(
    queued: Callable[..., tuple[Device, QueuedLoad]],
) -> None:
    device, _ = queued(reset=True)
    assert device.ran == ["reset", "call"] * (len(device.ran) // 2)


def test_whole_measurements_of_calls(board: Simulated, instead: Instead) -> None:
    """`energy` and `energies_in_turn`, simulated loads in place of queues."""
    forced: list[bool] = []

    def opened(device: Any, *, force: bool) -> NvmlSensor:
        forced.append(force)
        return board.sensor(force=force)

    instead(open_sensor=opened, queued_load=lambda fn, reset, place: fn())
    a, b = Busy(board), Busy(board, ((0.01, 300.0),))
    asked: dict[str, Any] = {"device": "cuda", "limits": EnergyLimits(window_s=2.0)}
    found = read(meter.energy(lambda: a, pause=board.pause, force=True, **asked))
    assert found.value == pytest.approx(a.call_J, rel=0.01)
    calls: Any = {"a": (lambda: a, None), "b": (lambda: b, None)}
    pair = meter.energies_in_turn(calls, pause=board.pause, **asked)
    assert isinstance(pair, PairedEnergy)
    assert pair.ratio("a", "b").value == pytest.approx(400 / 300, rel=2e-3)
    assert forced == [True, False]


def test_a_call_that_fails_is_a_reason(
    board: Simulated, monkeypatch: pytest.MonkeyPatch, instead: Instead
) -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError("CUDA error: an illegal memory access\nstack")

    torch_sees(monkeypatch, properties(0))
    instead(queued_load=fails)
    wanted = "the call failed while its energy was measured: CUDA error: an illegal memory access"
    assert refused(meter.energy(lambda: None, device="cuda")) == wanted
    assert "CUDA error" in refused(meter.energies_in_turn({"a": (fails, None)}, device="cuda"))
