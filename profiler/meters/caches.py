"""How large are a device's caches, and how are they emptied before a call?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

LEAST_GPU_BYTES = 2**28
"""256 MiB, as triton.testing.do_bench overwrites, whatever the size of the L2 cache."""
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
SYS = Path("/sys/devices/system/cpu")
L2_SOURCE = "torch.cuda.get_device_properties: L2"


class CacheError(RuntimeError):
    """Caches that cannot be emptied, because nobody tells how large they are."""


@dataclass(frozen=True)
class Flush:
    """Calling it empties the caches: it goes through a buffer of `size` bytes."""

    act: Callable[[], Any]
    size: int
    cache_bytes: int | None
    """What the caches hold, None where it is not known and the buffer is large all the same."""
    source: str
    """Where that was found."""

    def __call__(self) -> None:
        self.act()


def flush_for(device: torch.device) -> Flush:
    """A buffer of at least twice the caches on the device itself.

    Raises:
        CacheError: nothing tells how large a CPU's caches are.
    """
    return gpu_flush(device) if device.type == "cuda" else cpu_flush()


def gpu_flush(device: torch.device) -> Flush:
    """A buffer of at least twice the L2 and 256 MiB, overwritten."""
    held = l2_bytes(torch.cuda.get_device_properties(device))
    size = max(2 * (held or 0), LEAST_GPU_BYTES)
    buffer = torch.empty(size // 4, dtype=torch.int32, device=device)
    source = L2_SOURCE if held else "not told by this torch"
    return Flush(buffer.zero_, buffer.numel() * 4, held, source)


def l2_bytes(properties: Any) -> int | None:
    """The L2 of a GPU, where this version of torch tells."""
    held = getattr(properties, "L2_cache_size", None)
    return int(held) if held else None


def cache_bytes(device: torch.device) -> tuple[int, str]:
    """The bytes of the L2 of a GPU, or of a CPU's last-level caches, and where that was found.

    Raises:
        CacheError: nothing tells how large they are.
    """
    if device.type != "cuda":
        return last_level_bytes()
    held = l2_bytes(torch.cuda.get_device_properties(device))
    if held is None:
        raise CacheError("this torch does not tell how large the GPU's L2 is")
    return held, L2_SOURCE


def cpu_flush(held: tuple[int, str] | None = None) -> Flush:
    """A buffer of twice the last-level caches, read and written by torch's threads."""
    cache_bytes, source = held or last_level_bytes()
    buffer = torch.ones(cache_bytes // 2, dtype=torch.float32)
    return Flush(lambda: buffer.add_(1.0), buffer.numel() * 4, cache_bytes, source)


def last_level_bytes(sys: Path = SYS) -> tuple[int, str]:
    """The bytes of all caches of the highest level together, and where that was found.

    Processors that share a cache name the same processors in `shared_cpu_list`: it counts once.

    Raises:
        CacheError: the system does not tell.
    """
    caches: dict[tuple[int, str], int] = {}
    for index in sys.glob("cpu[0-9]*/cache/index[0-9]*"):
        try:
            level, shared, size, kind = (
                (index / name).read_text(encoding="ascii").strip()
                for name in ("level", "shared_cpu_list", "size", "type")
            )
            if kind != "Instruction":
                caches[int(level), shared] = bytes_of(size)
        except (OSError, ValueError):
            continue
    if not caches:
        raise CacheError(
            f"expected the sizes of the processors' caches in {sys}/cpu*/cache, and found none"
        )
    last = max(level for level, _ in caches)
    sizes = [size for (level, _), size in caches.items() if level == last]
    found = f"{len(sizes)} of level {last}" if len(sizes) > 1 else f"level {last}"
    return sum(sizes), f"{sys}/cpu*/cache: {found}"


def bytes_of(size: str) -> int:
    """Bytes of a size as the kernel prints it; ValueError where it is none.

    >>> bytes_of("32768K")
    33554432
    """
    unit = UNITS.get(size[-1:], 1)
    return int(size[:-1] if unit > 1 else size) * unit
