"""Which path through torch does a count assume: its decompositions, or fused operations?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from profiler.tracing.fused import FusedMode
from profiler.tracing.recorder import Backend, Recorder
from profiler.tracing.recurrences import CELLS

RECURRENT: Mapping[Any, str] = {getattr(torch, name): name for name in CELLS}
"""torch's functions of whole recurrent layers."""


class Steps(TorchFunctionMode):
    """Notes which recurrent layers torch takes apart into steps."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func.__hash__ is not None and func in RECURRENT:
            self.recorder.stepped.add(RECURRENT[func])
        return func(*args, **(kwargs or {}))


@contextmanager
def math_backend(recorder: Recorder) -> Iterator[None]:
    """torch's own decompositions: attention as products, softmax and products."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.MATH), Steps(recorder):
        yield


@contextmanager
def fused_backend(recorder: Recorder) -> Iterator[None]:
    """Attention, recurrent cells and norms as one operation each; all else as `math`."""
    with math_backend(recorder), FusedMode(recorder).inside():
        yield


BACKENDS: Mapping[str, Backend] = {"math": math_backend, "fused": fused_backend}
"""Name -> the context in which a module runs."""
