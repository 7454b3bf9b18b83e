"""Which operations did the hardware execute (rung 4 of the ladder), and if not known, why not?"""

from __future__ import annotations

import shutil

import torch

from profiler.meters.interface import Unavailable

NEEDS = (
    "it needs an NVIDIA GPU, Nsight Compute's command ncu, and permission to read the GPU's "
    "performance counters (NVreg_RestrictProfilingToAdminUsers=0, or CAP_SYS_ADMIN)"
)


def hardware_operations() -> Unavailable:
    """Executed operations and DRAM bytes are not collected: what is missing here, and what they
    would need. This package reads no hardware counters itself."""
    missing = []
    if not torch.cuda.is_available():
        missing.append("torch finds no NVIDIA GPU")
    if shutil.which("ncu") is None:
        missing.append("ncu is not on PATH")
    found = " and ".join(missing) if missing else "a GPU and ncu are here, but no run was made"
    return Unavailable(f"hardware counters were not read: {found}; {NEEDS}")
