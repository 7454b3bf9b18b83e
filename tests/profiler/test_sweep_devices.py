"""Is every GPU of a machine given to one process under a stable name?"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from profiler.meters.energy.protocol import SensorError
from profiler.records.reading import MeasureError
from profiler.sweep.devices import Device, board_uuids, devices
from tests.stand_ins import Instead

UUIDS = ["GPU-aaaa", "GPU-bbbb"]


def names(wanted: str, visible: str | None = None, count: int = 2, boards: Any = None) -> list[str]:
    """The devices of a machine that never was; each is shown under its name."""
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    found = devices(wanted, environment, lambda: count, boards or (lambda: UUIDS))
    assert all(d.variables == {"CUDA_VISIBLE_DEVICES": d.name} for d in found)
    return [device.name for device in found]


def test_a_cpu_is_one_device() -> None:
    assert devices("cpu") == [Device("cpu")]


def test_every_board_is_named_by_its_uuid() -> None:
    assert names("cuda") == UUIDS


@pytest.mark.parametrize("boards", [[], ["GPU-aaaa"], ["GPU-aaaa", "GPU-bbbb", "GPU-cccc"]])
def test_boards_are_numbered_where_nvml_lists_others_than_torch(boards: list[str]) -> None:
    assert names("cuda", boards=lambda: boards) == ["0", "1"]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("3,5", ["3", "5"]),
        (" GPU-bbbb , GPU-aaaa ", ["GPU-bbbb", "GPU-aaaa"]),
        ("MIG-1111,MIG-2222", ["MIG-1111", "MIG-2222"]),
        ("1,0,-1,4", ["1", "0"]),  # torch finds two: what follows an invalid number is not seen
    ],
)
def test_what_is_visible_is_handed_on_word_by_word(visible: str, expected: list[str]) -> None:
    assert names("cuda", visible) == expected


def test_one_board_is_the_one_that_torch_numbers_so() -> None:
    """NVML and CUDA may order boards differently, so that its number names it, not a UUID."""
    assert names("cuda:1") == ["1"]
    assert names("cuda:1", "GPU-bbbb,GPU-aaaa") == ["GPU-aaaa"]
    with pytest.raises(MeasureError, match="torch finds 2 GPUs: use cuda:0 or cuda:1"):
        names("cuda:2")


def test_no_gpu_is_a_sentence() -> None:
    with pytest.raises(MeasureError, match="torch finds no NVIDIA GPU: use cpu"):
        names("cuda", count=0, boards=lambda: [])


class NVMLError(Exception):
    """As the binding raises it."""

    value = 3


def binding(modes: list[int | None]) -> SimpleNamespace:
    """A binding with boards of these MIG modes, None where the board refuses the question."""

    def mode(board: int) -> list[int]:
        found = modes[board]
        if found is None:
            raise NVMLError
        return [found, found]

    return SimpleNamespace(
        NVMLError=NVMLError,
        nvmlDeviceGetCount=lambda: len(modes),
        nvmlDeviceGetHandleByIndex=lambda place: place,
        nvmlDeviceGetMigMode=mode,
        nvmlDeviceGetUUID=lambda board: f"GPU-{board}".encode(),
    )


def test_uuids_are_those_of_whole_boards(instead: Instead) -> None:
    instead(load_nvml=lambda: binding([None, 0]))
    assert board_uuids() == ["GPU-0", "GPU-1"]
    instead(load_nvml=lambda: binding([0, 1]))
    assert board_uuids() == []


def test_without_nvml_there_are_no_uuids(instead: Instead) -> None:
    def missing() -> None:
        raise SensorError("library not found")

    instead(load_nvml=missing)
    assert board_uuids() == []
