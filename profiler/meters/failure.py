"""Why a call failed while it was measured, and how memory is freed after it ran out."""

from __future__ import annotations

import gc
import re

import torch

from profiler.counting.call import higher_order_reason
from profiler.records.reading import reason_of, whole_text

SAYINGS = ("out of memory", "not enough memory", "can't allocate memory")
"""Parts of the messages with which CUDA's and the CPU's allocators report exhausted memory."""

ASKED_FOR = re.compile(
    r"[Tt]ried to allocate (?P<cuda>[\d.]+ [KMGT]?i?B)|you tried to allocate (?P<cpu>\d+) bytes"
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocator refused memory."""
    kind = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return kind or any(words in whole_text(error) for words in SAYINGS)


def requested(error: BaseException) -> str:
    """The size of the request for memory that was refused, as the allocator's error prints it; ""
    if it prints none.

    >>> requested(RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has"))
    '20.00 GiB'
    """
    found = ASKED_FOR.search(whole_text(error))
    if found is None:
        return ""
    return found["cuda"] or f"{int(found['cpu']):,} B"


def why_failed(error: BaseException, doing: str, device: torch.device) -> str:
    """One sentence on why a call failed; after an out-of-memory error torch's cached device memory
    is freed too.

    `doing` continues "the call failed": "while it was timed".
    """
    said = failure_words(error, f" {doing}")
    if is_out_of_memory(error):
        give_back(error, device)
    return said


def failure_words(error: BaseException, doing: str = "") -> str:
    """Why a call failed, in one sentence; for an out-of-memory error the refused size and a remedy.

    >>> failure_words(KeyError("z"), " while it was timed")
    "the call failed while it was timed: KeyError: 'z'"
    """
    if not is_out_of_memory(error):
        if reason := higher_order_reason(error):
            return f"the call failed{doing}: {reason}"
        kind = "" if isinstance(error, RuntimeError) else f"{type(error).__name__}: "
        return f"the call failed{doing}: {kind}{reason_of(error)}"
    size = requested(error)
    asked = f"{size} could not be had; " if size else ""
    if not size and whole_text(error):
        asked = f"{reason_of(error).rstrip('.')}; "
    return f"out of memory{doing}: {asked}take smaller sizes, a smaller --b first"


def give_back(error: BaseException, device: torch.device) -> None:
    """Drop the tensors that the failed call still holds, and return torch's cache to the device."""
    error.__traceback__ = None  # its frames hold the call's tensors
    gc.collect()
    if device.type == "cuda" and torch.cuda.is_available():
        torch.cuda.empty_cache()
