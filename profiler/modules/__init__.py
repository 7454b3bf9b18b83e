"""Which names does a user's own module file need from the catalogue of mixers as PyTorch
modules?"""

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
