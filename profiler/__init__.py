"""What do the mixers, as real PyTorch modules, execute and cost on this machine?

    import profiler

    profiler.measure("she", d=128, l=128)      # time, memory, operations: `costmodel profile`
    profiler.trace(module, over="l,d")         # any nn.Module counted as formulas
    help(profiler.measure)                     # the options, and what a record holds

A name is imported from its file when it is first asked for: it imports torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from costmodel.prediction import columns

if TYPE_CHECKING:
    from costmodel.prediction.columns import Modules
    from profiler.commands.in_python import measure as measure
    from profiler.tracing import trace as trace

if not TYPE_CHECKING:
    PLACES = {"measure": "profiler.commands.in_python", "trace": "profiler.tracing"}
    """Name -> the file that has it."""

    __all__ = [*PLACES]

    def __getattr__(name: str) -> object:
        """Import the attribute `name`, one of those in `PLACES`, from its file at the first
        request. Raises AttributeError: there is no such name."""
        from importlib import import_module

        if name not in PLACES:
            raise AttributeError(f"module 'profiler' has no attribute '{name}'")
        return getattr(import_module(PLACES[name]), name)


def _modules() -> Modules:
    """What modules dispatch, with predicted times."""
    from profiler.reconcile import unmeasured

    return unmeasured


columns.OF_MODULES[:] = [_modules]
