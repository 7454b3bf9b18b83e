"""The catalogue of mixers as PyTorch modules: what a user's own file needs of it."""

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
