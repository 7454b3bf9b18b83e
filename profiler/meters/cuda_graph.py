"""Captures a call as a CUDA graph, and tells whether a failed capture broke the process.

A failed capture may leave the process's CUDA context unusable, and a call, a closure over device
tensors, cannot move to another process. Three precautions:

1. A rehearsal: the call runs on a side stream while torch refuses operations that wait for the GPU
   (`torch.cuda.set_sync_debug_mode`), the usual reason for failing captures. A call refused there
   is never captured.
2. The capture is `thread_local`: other threads and the capture do not affect each other.
3. After a failed capture the device is tested: it must still add two numbers. If it cannot,
   `ContextLost` says that this process has to end; a sweep continues in a new process.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch.utils._pytree import tree_leaves

from profiler.meters.timers import Call
from profiler.records.grades import GRAPH_DIFFERS
from profiler.records.reading import reason_of

Tensors = list[torch.Tensor]
WARMUPS = 3
"""Calls on the side stream before a capture: libraries choose and allocate in the first calls."""


class GraphError(RuntimeError):
    """The call cannot be captured; the message is one sentence."""


class ContextLost(RuntimeError):
    """The GPU no longer answers this process: the process must end, and a new one continue."""


@dataclass(frozen=True)
class Captured:
    """A call as a graph: `replay` enqueues it, `release` frees its memory; `facts` are details."""

    replay: Call
    release: Call
    facts: Mapping[str, Any] = field(default_factory=dict)
    labels: tuple[str, ...] = ()


class Graphs(Protocol):
    """The operations of torch that a capture needs."""

    def rehearse(self, fn: Call) -> tuple[Tensors, Tensors]:
        """Call `fn` several times on a side stream, the last time with waits for the GPU refused,
        and return copies of the tensors in the results of the last two calls."""
        ...

    def record(self, fn: Call) -> tuple[Call, Call, Any]:
        """Capture a call; return replay, release, and the result that replays overwrite."""
        ...

    def probe(self) -> None:
        """Use the device; RuntimeError if the device is unusable."""
        ...


class TorchGraphs:
    """Captures with torch.cuda.CUDAGraph."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def rehearse(self, fn: Call) -> tuple[Tensors, Tensors]:
        """Run a call on a side stream, after warm-up calls, and return copies of the tensors in the
        results of the last warm-up call and of the call; RuntimeError if the call waits for the
        GPU. The side stream waits for the current stream first, and the current stream for the side
        stream at the end."""
        stream: Any = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        here = torch.cuda.current_stream(self.device)
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            for _ in range(WARMUPS):
                before = copied_tensors(fn())
            with refusing_waits():
                result = fn()
            last = copied_tensors(result)
        here.wait_stream(stream)
        torch.cuda.synchronize(self.device)
        return before, last

    def record(self, fn: Call) -> tuple[Call, Call, Any]:
        """Capture a call as a CUDA graph: returns (replay, release, result), where `replay()` runs
        the graph, `release()` frees it, and `result` are the tensors that a replay fills. It is
        captured on torch's capturing stream, into a private memory pool; RuntimeError if the call
        cannot be captured.

        If a capture cannot be ended, torch stays on its stream, which the outer context then
        leaves.
        """
        with torch.cuda.device(self.device), torch.cuda.stream(torch.cuda.current_stream()):
            graph = torch.cuda.CUDAGraph()
            with warnings.catch_warnings():
                warnings.filterwarnings("error", message=".*CUDA Graph is empty.*")
                with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                    result = fn()
        return graph.replay, graph.reset, result

    def probe(self) -> None:
        """Add one and one on the device; RuntimeError if the device cannot."""
        torch.cuda.synchronize(self.device)
        ones = torch.ones(2, device=self.device)
        if float((ones + ones).sum()) != 4.0:
            raise RuntimeError(f"{self.device} cannot add two numbers")


@contextmanager
def refusing_waits() -> Iterator[None]:
    """A context in which torch raises a RuntimeError for an operation that waits for the GPU.

    Torch's warning that the mode is a prototype is suppressed.
    """
    before = torch.cuda.get_sync_debug_mode()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def capture(fn: Call, device: torch.device, graphs: Graphs | None = None) -> Captured:
    """Capture a call as a CUDA graph, after a rehearsal, which runs it without capture; the result
    of the first replay is compared with the rehearsal's, unless the results of the rehearsal differ
    from call to call, as a recurrence's do, whose state each call changes.

    Raises:
        GraphError: the call cannot be captured.
        ContextLost: the rehearsal, capture or replay failed and left the device unusable.
    """
    used = graphs or TorchGraphs(device)
    try:
        before, expected = used.rehearse(fn)
    except Exception as error:  # a module of a user's own may raise anything
        raise failure_after(
            used, f"cannot be captured as a CUDA graph: {first_reason(error)}"
        ) from error
    try:
        replay, release, result = used.record(fn)
    except Exception as error:
        raise failure_after(
            used, f"failed while a CUDA graph was captured: {first_reason(error)}"
        ) from error
    try:
        fill_with_nan(result)  # a replay that leaves an entry unwritten then differs
        replay()
        used.probe()
    except Exception as error:
        raise failure_after(
            used, f"gives a CUDA graph that does not run: {first_reason(error)}"
        ) from error
    same = results_agree(expected, result) if results_agree(before, expected) else None
    labels = () if same in (True, None) else (GRAPH_DIFFERS,)
    return Captured(replay, release, {"graph_agrees": same}, labels)


def failure_after(graphs: Graphs, sentence: str) -> RuntimeError:
    """Make the error of a failed attempt, GraphError or, if the device is unusable, ContextLost;
    `sentence` continues the message "the call ..."."""
    gc.collect()
    try:
        graphs.probe()
    except Exception as error:
        return ContextLost(
            f"the call {sentence}; the GPU cannot be used by this process any more "
            f"({reason_of(error)}): run the rest in a new process"
        )
    return GraphError(f"the call {sentence}")


def first_reason(error: BaseException) -> str:
    """The reason of the first error in the chain: ending a broken capture raises another error."""
    while error.__context__ is not None:
        error = error.__context__
    return reason_of(error)


def copied_tensors(result: Any) -> Tensors:
    """Copies of the tensors in a nested result."""
    return [leaf.detach().clone() for leaf in tensor_leaves(result)]


def fill_with_nan(result: Any) -> None:
    """Overwrite the result's floating-point tensors with NaN, so that a replay must restore
    them."""
    for leaf in tensor_leaves(result):
        if leaf.is_floating_point():
            leaf.detach().fill_(float("nan"))


def results_agree(expected: Tensors, result: Any) -> bool | None:
    """Whether the floating-point tensors in `result` equal those of `expected`, the call's result,
    within rounding; None without such a tensor."""
    found = tensor_leaves(result)
    pairs = [(a, b) for a, b in zip(expected, found, strict=False) if a.is_floating_point()]
    if not pairs:
        return None
    return all(tensors_close(a, b) for a, b in pairs)


def tensors_close(expected: torch.Tensor, found: torch.Tensor) -> bool:
    """Whether shapes are equal, and entries differ by at most a thousandth of the largest finite
    expected entry, or by 4 eps of it if the dtype is that coarse; NaN and infinities stand at the
    same places."""
    if expected.shape != found.shape:
        return False
    wanted, got = expected.double(), found.double()
    finite = wanted[wanted.isfinite()].abs()
    scale = float(finite.max()) if finite.numel() else 0.0
    tolerance = max(1e-3, 4 * torch.finfo(expected.dtype).eps) * scale
    return bool(torch.allclose(wanted, got, rtol=0.0, atol=tolerance, equal_nan=True))


def tensor_leaves(result: Any) -> list[torch.Tensor]:
    """Every tensor in nested containers."""
    return [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
