"""How are a mixer's equations and modules held against something written down apart from them?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import costmodel as cm
from profiler import modules
from profiler.ladders.ladder import Ladder
from profiler.meters.latency import LatencyLimits
from profiler.modules import SequenceMixer, build
from profiler.session import ladders, run
from profiler.work import Request

Array = NDArray[np.float64]
Arrays = dict[str, Array]
Sizes = Mapping[str, int]

BRIEF = LatencyLimits(max_seconds=0.01, warmup_seconds=0.0)


def drawn(mixer: str, sizes: Sizes) -> Arrays:
    """Numbers for the input and every parameter of a mixer, none of them special."""
    generator = np.random.default_rng(sum(sizes.values()))
    return {
        name: generator.normal(size=tuple(extent.at(sizes) for extent in array.shape))
        for name, array in cm.mixer(mixer).arrays.items()
        if array.role in ("input", "parameter")
    }


def module_of(mixer: str, implementation: str, sizes: Sizes, arrays: Arrays) -> Any:
    """The module in float64 that holds these parameters."""
    described = modules.implementations(mixer)[implementation]
    made = build(described, dict(sizes), device="cpu", dtype=torch.float64, seed=0)
    assert isinstance(made, SequenceMixer)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            parameter.copy_(torch.from_numpy(arrays[name]))
    return made


def forward(module: Any, *sequences: Array) -> list[Array]:
    """The module's outputs for a batch of sequences."""
    with torch.no_grad():
        return list(module(torch.from_numpy(np.stack(sequences))).numpy())


def stepped(module: Any, x: Array) -> Array:
    """The module's rows for one sequence, token by token."""
    state = module.initial_state(1, len(x))
    rows = [module.step(row, state) for row in torch.from_numpy(x).unsqueeze(1)]
    return torch.cat(rows).numpy()


def tensors(arrays: Arrays) -> dict[str, Tensor]:
    """The same numbers as tensors."""
    return {name: torch.from_numpy(value) for name, value in arrays.items()}


def operations(mixer: str, sizes: Sizes, **asked: Any) -> dict[str, int]:
    """Operations of one sequence by name, those that are 0 left out."""
    found = cm.count(cm.mixer(mixer), **asked).at(**sizes)
    return {name: number for name, number in found.by_class().items() if number}


def reconciled(mixer: str, sizes: Sizes, phase: str) -> list[Ladder]:
    """The ladder of every implementation of a mixer, measured here."""
    equations = cm.mixer(mixer)
    requests = [
        Request(equations, described, sizes, phase)
        for described in modules.implementations(equations).values()
    ]
    session = run(requests, limits=BRIEF)
    assert session.failures == []
    found, problems = ladders(session.measurements)
    assert problems == [] and len(found) == len(requests)
    return found
