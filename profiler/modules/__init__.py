"""The base classes and the registry of mixers as PyTorch modules; a user's file of modules imports
the names below. A name is imported from its file when it is first asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from profiler.modules.base import (
        Mixer as Mixer,
        SequenceMixer as SequenceMixer,
        State as State,
        Unsupported as Unsupported,
    )
    from profiler.modules.building import build as build
    from profiler.modules.registry import (
        Implementation as Implementation,
        implementation as implementation,
        implementations as implementations,
    )

if not TYPE_CHECKING:
    FILES = {
        "base": ("Mixer", "SequenceMixer", "State", "Unsupported"),
        "building": ("build",),
        "registry": ("Implementation", "implementation", "implementations"),
    }
    """File -> the names that it has."""

    __all__ = [name for names in FILES.values() for name in names]

    def __getattr__(name: str) -> object:
        """Import the attribute `name`, one of those in `FILES`, from its file at the first request.
        Raises AttributeError: there is no such name."""
        from importlib import import_module

        for file, names in FILES.items():
            if name in names:
                return getattr(import_module(f"profiler.modules.{file}"), name)
        raise AttributeError(f"module 'profiler.modules' has no attribute '{name}'")
