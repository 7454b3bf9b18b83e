"""The kernels of a calibration, of known work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from profiler.hardware.calibration import (
    CHAIN,
    COPIED,
    COPY,
    ENTRIES,
    EX2,
    FUNCTIONS,
    GEMM,
    HALVES,
    SIDE,
)
from profiler.host.device import DTYPES

CHAINED = f"""
template <typename T> T halves(T x) {{
  unsigned a = x, b = x;
  #pragma unroll 32
  for (int k = 0; k < {CHAIN}; ++k) asm volatile("fma.rn.f16x2 %0, %0, %1, %1;" : "+r"(a) : "r"(b));
  return a;
}}
"""

Call = Callable[[], Any]


def makers(device: torch.device, dtype: str) -> Mapping[str, Callable[[], Call]]:
    """A dict: name of a calibration kernel (of known work) -> a function that allocates its tensors
    and returns the call that launches it. `dtype` is that of the product and of `FUNCTIONS`."""
    kind = DTYPES[dtype]
    return {
        GEMM: lambda: product_kernel(device, kind),
        COPY: lambda: copy_kernel(device),
        EX2: lambda: function_kernel("exp", device, torch.float32),
        HALVES: lambda: chain_kernel(device),
        **{name: partial(function_kernel, name, device, kind) for name in FUNCTIONS},
    }


def product_kernel(device: torch.device, kind: torch.dtype) -> Call:
    """Return a call that multiplies two random matrices of shape (`SIDE`, `SIDE`)."""
    a, b = (torch.randn(SIDE, SIDE, device=device).to(kind) for _ in range(2))
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out)


def copy_kernel(device: torch.device) -> Call:
    """Return a call that reads `COPIED` bytes and writes as many: a negation, as torch may execute
    a copy by memcpy, which is no kernel."""
    source = torch.randn(COPIED // 4, device=device)
    target = torch.empty_like(source)
    return lambda: torch.neg(source, out=target)


def chain_kernel(device: torch.device) -> Call:
    """Return a call of a kernel that executes `CHAIN` multiply-adds per entry on pairs of
    half-precision numbers, in PTX so that no compiler drops any."""
    from torch.cuda.jiterator import _create_jit_fn

    run = _create_jit_fn(CHAINED)
    entries = torch.arange(ENTRIES, device=device, dtype=torch.int32)
    return lambda: run(entries)


def function_kernel(name: str, device: torch.device, kind: torch.dtype) -> Call:
    """Return a call that applies the torch function `name` to `ENTRIES` positive numbers near 1; a
    division takes two operands."""
    entries = (torch.randn(ENTRIES, device=device).abs() + 0.5).to(kind)
    out = torch.empty_like(entries)
    called = getattr(torch, name)
    operands = (entries.flip(0), entries) if name == "div" else (entries,)
    return lambda: called(*operands, out=out)
