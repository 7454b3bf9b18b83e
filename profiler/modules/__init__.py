"""The base classes and the registry of mixers as PyTorch modules; a user's file of modules imports
the names below."""

from profiler.modules.registry import (
    Implementation,
    Mixer,
    SequenceMixer,
    State,
    Unsupported,
    build,
    implementation,
    implementations,
)

__all__ = [
    "Implementation",
    "Mixer",
    "SequenceMixer",
    "State",
    "Unsupported",
    "build",
    "implementation",
    "implementations",
]
