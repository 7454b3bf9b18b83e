"""The mixers of the catalogue as PyTorch modules; the names below are for files of a user's own
modules."""

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
