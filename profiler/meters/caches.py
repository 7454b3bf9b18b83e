"""The size of a device's caches, and the flush that empties them before a call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

LEAST_GPU_BYTES = 2**28
"""256 MiB: the buffer of triton.testing.do_bench, for any size of the L2 cache."""
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
SYS = Path("/sys/devices/system/cpu")
L2_SOURCE = "torch.cuda.get_device_properties: L2"


class CacheError(RuntimeError):
    """The size of the caches is unknown, so that they cannot be flushed."""


@dataclass(frozen=True)
class Flush:
    """Empties the caches when called, by reading a buffer of `size` bytes."""

    act: Callable[[], Any]
    size: int
    cache_bytes: int | None
    """The size of the caches; None if unknown, with a buffer that is large anyway."""
    source: str
    """The source of the caches' size."""

    def __call__(self) -> None:
        self.act()


def flush_for(device: torch.device) -> Flush:
    """A flush by a buffer on the device, at least twice as large as the device's caches. Raises
    CacheError: the size of a CPU's caches is unknown."""
    return gpu_flush(device) if device.type == "cuda" else cpu_flush()


def gpu_flush(device: torch.device) -> Flush:
    """A flush that reads a buffer of at least 256 MiB and at least twice the L2."""
    held = l2_bytes(torch.cuda.get_device_properties(device))
    source = L2_SOURCE if held else "not reported by this version of torch"
    return reading_flush(max(2 * (held or 0), LEAST_GPU_BYTES), device, held, source)


def reading_flush(size: int, device: torch.device, held: int | None, source: str) -> Flush:
    """Make a flush (a call that empties the caches) that sums a buffer of `size` bytes, for caches
    of `held` bytes (None: unknown) by the source `source`. The sum writes evicted lines back before
    the call, and leaves only clean lines, which need no write-back during the call."""
    buffer = torch.ones(size // 4, dtype=torch.float32, device=device)
    total = torch.empty((), device=device)
    return Flush(lambda: torch.sum(buffer, dim=0, out=total), size, held, source)


def l2_bytes(properties: Any) -> int | None:
    """The size of a GPU's L2; None if this version of torch does not tell."""
    held = getattr(properties, "L2_cache_size", None)
    return int(held) if held else None


def cache_bytes(device: torch.device) -> tuple[int, str]:
    """(bytes of a GPU's L2, or of all last-level caches of a CPU; the source of the number, in
    words). Raises CacheError: the size is unknown."""
    if device.type != "cuda":
        return last_level_bytes()
    held = l2_bytes(torch.cuda.get_device_properties(device))
    if held is None:
        raise CacheError(
            f"torch {torch.__version__} does not report the size of the GPU's L2 cache: install a "
            "newer torch"
        )
    return held, L2_SOURCE


def cpu_flush(held: tuple[int, str] | None = None) -> Flush:
    """Make a flush (a call that empties the caches) that reads, with torch's threads, a buffer of
    twice the last-level caches.

    `held`: the bytes of these caches and the source of the number; by default from the system.
    """
    cache_bytes, source = held or last_level_bytes()
    return reading_flush(2 * cache_bytes, torch.device("cpu"), cache_bytes, source)


def last_level_bytes(sys: Path = SYS) -> tuple[int, str]:
    """(bytes of all last-level caches of the CPU together; the source of the number, in words), as
    the system tells in the folder `sys`.

    Processors that share a cache have the same `shared_cpu_list`: the cache counts once.

    Raises:
        CacheError: the system does not tell the size, and the processors, of each.
    """
    caches: dict[tuple[int, str], str] = {}
    for index in sys.glob("cpu[0-9]*/cache/index[0-9]*"):
        level, shared, size, kind = (
            text_in(index / name) for name in ("level", "shared_cpu_list", "size", "type")
        )
        if level.isdecimal() and kind != "Instruction":
            caches[int(level), shared] = size if shared else ""  # "": two may be one
    last = max((level for level, _ in caches), default=0)
    try:
        sizes = [bytes_of(size) for (level, _), size in caches.items() if level == last]
    except ValueError:
        sizes = []
    if not sizes:
        raise CacheError(
            f"expected the sizes of the processors' caches in {sys}/cpu*/cache, and found none"
            + f" of level {last}" * (last > 0)
        )
    found = f"{len(sizes)} of level {last}" if len(sizes) > 1 else f"level {last}"
    return sum(sizes), f"{sys}/cpu*/cache: {found}"


def text_in(path: Path) -> str:
    """The stripped text of a file; "" if it cannot be read."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def bytes_of(size: str) -> int:
    """The bytes of a size in the kernel's notation; ValueError for other text.

    >>> bytes_of("32768K")
    33554432
    """
    unit = UNITS.get(size[-1:], 1)
    return int(size[:-1] if unit > 1 else size) * unit
