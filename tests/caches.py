"""How does a test empty every cache of derived answers?"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from typing import Any

PACKAGES = ("costmodel", "profiler", "cli")
KEPT = "costmodel.mixers"
"""The catalogue keeps its mixers: tests hold mixers, whose arrays are compared by identity."""


def clear_all() -> None:
    """Empty every cache of the project's loaded modules."""
    for cached in caches():
        cached.cache_clear()


def caches() -> Iterator[functools._lru_cache_wrapper[Any]]:
    """Every function and method with a cache in the project's loaded modules, `KEPT` apart."""
    for name, module in tuple(sys.modules.items()):
        if name.partition(".")[0] in PACKAGES and not name.startswith(KEPT):
            for value in tuple(vars(module).values()):
                members = vars(value).values() if isinstance(value, type) else ()
                for one in (value, *members):
                    if isinstance(one, functools._lru_cache_wrapper):
                        yield one
