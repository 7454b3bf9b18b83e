"""Does peak memory equal a sum by hand, and is it refused where no allocator counts?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from profiler.meters.memory import allocator
from profiler.meters.memory.allocator import (
    MOST_RUNS,
    MeasuredPeak,
    peak_memory,
    peak_of,
    steady_runs,
)
from tests.fake_devices import read, refused
from tests.stand_ins import Instead

# On a CPU: allocations that a hand adds up


def test_product_allocates_its_result() -> None:
    x, w = torch.ones(8, 16), torch.ones(16, 32)
    found = read(peak_memory(lambda: x @ w))
    assert (found.value, found.unit) == (8 * 32 * 4, "B")
    assert found.samples == (1024.0, 1024.0)
    assert found.details["agree"] is True
    assert (found.details["kept"], found.details["labels"]) == (1024, [])


def test_a_device_without_an_allocator_has_no_peak() -> None:
    reason = refused(peak_memory(lambda: torch.ones(8, device="meta"), device="meta"))
    assert reason == "peak memory is of a CPU or an NVIDIA GPU; the device is meta"


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


def test_peak_of_releases_first() -> None:
    assert peak_of([]) == 0
    assert peak_of([-100, 50]) == 0
    assert peak_of([10, -10, 4, 4]) == 10


# Runs that agree


def test_steady_memory_leaves_out_what_grows() -> None:
    """What the second and third call allocate more is no part of the steady state."""
    sizes = iter([9, 5, 3, 3])
    found = read(peak_memory(lambda: torch.empty(next(sizes))))
    assert found.samples == (12.0, 12.0)
    assert (found.value, found.details["agree"], found.details["runs"]) == (12, True, 3)


def test_runs_that_disagree_are_all_kept_with_a_label() -> None:
    sizes = iter([1, 1, 3, 1, 3, 1, 3, 1])
    found = read(peak_memory(lambda: torch.empty(next(sizes))))
    assert found.samples == (4.0, 12.0) * 3
    assert (found.value, found.details["agree"]) == (12, False)
    assert found.details["labels"] == ["runs disagree"]


def test_two_runs_that_agree_end_it() -> None:
    peaks = iter([7, 5, 5, 9])
    assert [run.peak for run in steady_runs(lambda: MeasuredPeak(next(peaks)))] == [7, 5, 5]
    counting = iter(range(100))
    assert len(steady_runs(lambda: MeasuredPeak(next(counting)))) == MOST_RUNS


# Nobody counts


def test_a_profiler_that_records_nothing_is_refused_and_no_zero(
    instead: Instead,
) -> None:
    instead(sees_allocations=lambda: False)
    assert "records no allocation on the CPU" in refused(peak_memory(lambda: torch.ones(8)))


def test_the_profiler_sees_a_buffer_of_known_size_here() -> None:
    assert allocator.profiler_sees_allocations()


def test_memory_on_a_missing_gpu_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    assert "finds no NVIDIA GPU" in refused(peak_memory(lambda: None, device="cuda"))


def test_torch_cpu_build_returning_zero_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "built without CUDA" in refused(peak_memory(lambda: None, device="cuda"))


def test_out_of_memory_is_a_reason_with_the_size() -> None:
    def fail() -> None:
        raise RuntimeError(
            "[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate "
            "memory: you tried to allocate 80000000000 bytes. Error code 12"
        )

    assert refused(peak_memory(fail)) == (
        "out of memory while its memory was measured: 80,000,000,000 B could not be had; take "
        "smaller sizes, a smaller --b first"
    )


# On a GPU's allocator, faked at torch.cuda


class Allocator:
    """torch's CUDA allocator: blocks of 512 B, segments of 2 MiB, a workspace that cuBLAS keeps."""

    WORKSPACE = 32 * 2**20

    def __init__(self, *, missing: str = "", foreign: bool = False) -> None:
        self.now = dict.fromkeys(("requested_bytes", "allocated_bytes", "reserved_bytes"), 0)
        self.peak = dict(self.now)
        self.workspace = False
        self.others = 0  # workspaces for other streams
        self.missing, self.foreign = missing, foreign
        self.take(1000)  # parameters

    def take(self, size: int) -> None:
        """Allocate, or give back where it is negative."""
        sign = 1 if size > 0 else -1
        rounded = sign * (-(-abs(size) // 512) * 512)
        self.now["requested_bytes"] += size
        self.now["allocated_bytes"] += rounded
        segments = -(-self.now["allocated_bytes"] // 2**21) * 2**21
        self.now["reserved_bytes"] = max(self.now["reserved_bytes"], segments)
        self.peak = {name: max(self.peak[name], n) for name, n in self.now.items()}

    def product(self, *sizes: int) -> None:
        """A call that holds so many bytes at once, and needs cuBLAS's workspace."""
        if not self.workspace:
            self.take(self.WORKSPACE)
            self.workspace = True
        for size in sizes:
            self.take(size)
        for size in sizes:
            self.take(-size)

    def clear(self) -> None:
        """What torch's private function does."""
        self.take(-self.WORKSPACE * (self.workspace + self.others))
        self.workspace, self.others = False, 0

    def memory_stats(self, device: Any) -> Mapping[str, int]:
        """As torch names them."""
        if self.foreign:
            return {f"{n}.all.{kind}": 0 for n in self.now for kind in ("current", "peak")}
        found = {f"{name}.all.current": n for name, n in self.now.items()}
        found |= {f"{name}.all.peak": n for name, n in self.peak.items()}
        return {name: n for name, n in found.items() if not name.startswith(self.missing or "-")}

    def reset_peak_memory_stats(self, device: Any) -> None:
        """The peak is what is held now."""
        self.peak = dict(self.now)


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Allocator]:
    """torch.cuda over a fake allocator."""

    def placed(*, clears: bool = True, **given: Any) -> Allocator:
        made = Allocator(**given)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
        for name in ("memory_stats", "reset_peak_memory_stats"):
            monkeypatch.setattr(torch.cuda, name, getattr(made, name))
        if clears:
            monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", made.clear, raising=False)
        else:
            monkeypatch.delattr(torch._C, "_cuda_clearCublasWorkspaces", raising=False)
        return made

    return placed


def test_requested_allocated_and_reserved_over_the_baseline(on_gpu: Any) -> None:
    gpu = on_gpu()
    found = read(peak_memory(lambda: gpu.product(700, 100), device="cuda"))
    assert (found.value, found.samples) == (800, (800.0, 800.0))
    assert found.details["allocated"] == 1024 + 512
    assert found.details["reserved"] == 0  # it fits what is reserved already
    assert found.details["reserved_total"] == 34 * 2**20  # 32 MiB of workspace, 2 MiB for the rest
    assert (found.details["agree"], found.details["kept"]) == (True, 0)


def test_cublas_workspace_is_apart_and_not_in_the_peak(on_gpu: Any) -> None:
    gpu = on_gpu()
    found = read(peak_memory(lambda: gpu.product(700), device="cuda"))
    assert found.value == 700
    assert found.details["workspace"] == Allocator.WORKSPACE
    assert found.details["left_by_first_call"] == Allocator.WORKSPACE
    assert gpu.workspace  # the measured calls found it there


def test_cublas_workspaces_of_earlier_calls_are_not_this_one_s(on_gpu: Any) -> None:
    """Three workspaces were there: one for this stream, two for those of graphs and warm-ups."""
    gpu = on_gpu()
    gpu.product(1)
    gpu.take(2 * Allocator.WORKSPACE)
    gpu.others = 2
    found = read(peak_memory(lambda: gpu.product(700), device="cuda"))
    assert found.details["workspace"] == Allocator.WORKSPACE
    assert found.details["left_by_first_call"] == Allocator.WORKSPACE


def test_without_the_private_function_the_first_call_tells(on_gpu: Any) -> None:
    gpu = on_gpu(clears=False)
    found = read(peak_memory(lambda: gpu.product(700), device="cuda"))
    assert (found.value, found.details["workspace"]) == (700, Allocator.WORKSPACE)
    assert "of unknown owner" in found.details["workspace_method"]


def test_a_call_without_products_has_no_workspace(on_gpu: Any) -> None:
    on_gpu()
    assert read(peak_memory(lambda: None, device="cuda")).details["workspace"] == 0


def test_an_allocator_that_does_not_count_requests_is_refused(on_gpu: Any) -> None:
    on_gpu(missing="requested_bytes")
    reason = refused(peak_memory(lambda: None, device="cuda"))
    assert "does not count requested_bytes.all.current" in reason
    assert "PYTORCH_CUDA_ALLOC_CONF" in reason


def test_a_foreign_allocator_is_refused_and_no_zero(on_gpu: Any, instead: Instead) -> None:
    on_gpu(foreign=True)
    result = torch.ones(4)
    instead(lies_on_gpu=lambda tensor: True)
    assert "another allocator is in use" in refused(peak_memory(lambda: result, device="cuda"))


@pytest.mark.gpu
def test_memory_on_a_gpu() -> None:
    x = torch.randn(100, 64, device="cuda")
    found = read(peak_memory(lambda: x + 1, device="cuda"))
    assert (found.value, found.details["agree"]) == (100 * 64 * 4, True)
    assert found.details["allocated"] == 100 * 64 * 4  # 25,600 B are 50 blocks of 512 B
    product = read(peak_memory(lambda: x @ x.t(), device="cuda"))
    assert product.value == 100 * 100 * 4
    assert product.details["allocated"] == 40_448  # 79 blocks
    assert product.details["workspace"] > 0


@pytest.mark.gpu
def test_out_of_memory_on_a_gpu_leaves_it_usable() -> None:
    free, _ = torch.cuda.mem_get_info()
    reason = refused(
        peak_memory(lambda: torch.empty(4 * free, dtype=torch.uint8, device="cuda"), device="cuda")
    )
    assert reason.startswith("out of memory") and "could not be had" in reason
    assert float(torch.ones(2, device="cuda").sum()) == 2.0
