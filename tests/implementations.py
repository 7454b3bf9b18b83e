"""Which implementations do the generic tests sweep, and how is any of them built and called?"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

import costmodel as cm
from costmodel import Mixer
from costmodel.language.nodes import Constant, walk
from costmodel.language.options import split
from costmodel.program.lowering import lower
from costmodel.program.phases import inference_reason
from costmodel.proofs.tried_sizes import whole_length
from profiler.modules import Implementation, SequenceMixer, build, implementations
from tests.small import complete, variants

Array = NDArray[np.float64]


def every() -> list[Implementation]:
    """Every module class, described for the plainest mixer that has it."""
    found: dict[type, Implementation] = {}
    for mixer in sorted(variants(), key=lambda name: len(split(name)[1])):
        for described in implementations(mixer).values():
            found.setdefault(described.module, described)
    return list(found.values())


def label(described: Implementation) -> str:
    """How a test names an implementation."""
    return f"{described.mixer}-{described.name}"


def equations(described: Implementation) -> Mixer:
    """The mixer that a class implements."""
    return cm.mixer(described.mixer)


def completed(described: Implementation, sizes: Mapping[str, int]) -> dict[str, int]:
    """The sizes with a value for every letter of the equations."""
    return complete(equations(described), sizes)


def made(described: Implementation, sizes: Mapping[str, int], **given: Any) -> Any:
    """The module in float64 on the CPU unless told otherwise."""
    options: dict[str, Any] = {"device": "cpu", "dtype": torch.float64, "seed": 3, **given}
    module = build(described, completed(described, sizes), **options)
    assert isinstance(module, SequenceMixer)
    return module


def held(described: Implementation, module: Any) -> dict[str, Tensor]:
    """The parameters, and the buffers that the equations give no values, by name."""
    arrays = equations(described).arrays
    every = chain(module.named_parameters(), module.named_buffers())
    return {name: t for name, t in every if name in arrays and arrays[name].value is None}


def inputs(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 11) -> Tensor:
    """Normal numbers, the same in every dtype up to rounding."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def sequences(
    described: Implementation,
    sizes: Mapping[str, int],
    batch: int,
    length: int | None = None,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, ...]:
    """x (batch, length, d), l tokens unless given, or the first greater length that the sizes fit,
    and (batch, ...) of every further input, as long, and of every context."""
    known = completed(described, sizes)
    length = whole_length(equations(described), known, length or known["l"])
    x = inputs(batch, length, known["d"], dtype=dtype)
    known["l"] = length
    beside = [
        inputs(batch, *(extent.at(known) for extent in array.shape), dtype=dtype, seed=12 + place)
        for place, array in enumerate(equations(described).beside)
    ]
    return x, *beside


def stepped(module: Any, x: Tensor, *contexts: Tensor) -> Tensor:
    """y (b, s, d), token by token."""
    state = module.initial_state(x.shape[0], x.shape[1], *contexts)
    return torch.stack([module.step(x[:, i], state) for i in range(x.shape[1])], dim=1)


def evaluated(
    described: Implementation, module: Any, sizes: Mapping[str, int], *given: Tensor
) -> Tensor:
    """What the equations of the described form give for each sequence, at the module's weights.

    A sequence of fewer than l tokens is the beginning of one of l where the mixer is causal; else
    the sequence is all there is, l is its length, and weights end there.
    """
    mixer, rows_of = equations(described), [tensor.detach() for tensor in given]
    known, length = completed(described, sizes), rows_of[0].shape[1]
    if described.step_form and length < known["l"]:
        for place in range(len(mixer.inputs)):
            rows_of[place] = functional.pad(rows_of[place], (0, 0, 0, known["l"] - length))
    known["l"] = rows_of[0].shape[1]
    weights = {
        name: p.detach().numpy()[
            tuple(slice(extent.at(known)) for extent in mixer.arrays[name].shape)
        ]
        for name, p in held(described, module).items()
    }
    names = [mixer.role("input").name, *(array.name for array in mixer.beside)]
    rows = []
    for sample in zip(*(tensor.numpy() for tensor in rows_of), strict=True):
        arrays = weights | dict(zip(names, sample, strict=True))
        y = cm.evaluate(mixer, arrays, known, described.form)
        rows.append(torch.from_numpy(y[:length]))
    return torch.stack(rows)


def reads_the_length(described: Implementation) -> bool:
    """Whether the number l is in the values, and not only in the extents."""
    system = equations(described).forms[described.form]
    constants = (
        node.base
        for e in system.equations
        for node, _ in walk(e.value)
        if isinstance(node, Constant)
    )
    return any("l" in base.letters for base in constants)


def bounded(mixer: Mixer, form: str) -> bool:
    """Whether a weight ends at l, so that no sequence may be longer, or a table that a form reads
    whose rows stay as they are when the sequence goes on."""
    short, long = (complete(mixer, {"d": 6, "n": 2, "l": l}) for l in (5, 7))
    read = {array for e in mixer.forms[form].equations for array in e.value.arrays}
    causal = inference_reason(lower(mixer.forms[mixer.default_form])) is None
    tables = [array for array in mixer.buffers if causal and array in read]
    arrays = [*mixer.parameters, *tables]
    return any(extent.at(short) != extent.at(long) for array in arrays for extent in array.shape)
