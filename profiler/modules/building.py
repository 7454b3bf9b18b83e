"""Builds a module of an implementation, with random parameters that are equal on every device."""

from __future__ import annotations

import inspect

import torch
from torch import nn

from profiler.modules.base import fan_in, made_in, require_sizes
from profiler.modules.registry import Implementation


def build(
    implementation: Implementation,
    sizes: dict[str, int],
    *,
    device: torch.device | str,
    dtype: torch.dtype,
    seed: int,
    drawn: bool = True,
) -> nn.Module:
    """Make the module with these sizes and random parameters, which are equal for equal seeds on
    every device.

    Each parameter is normal with standard deviation 1/sqrt(fan-in), drawn in float64 on the CPU in
    the order of the parameters' names, then cast and moved; on the meta device, parameters have
    only shapes. Random numbers of the constructor follow the seed too, and are the parameters
    unless `drawn`. A class that needs h, which is not given, gets d/n. Other sizes than h that the
    class does not take are ignored.

    Raises:
        ValueError: a size is missing or refused, or h is given to a class that does not take it.
    """
    module = _construct(implementation, sizes, device, dtype, seed)
    if drawn and torch.device(device).type != "meta":
        draw_parameters(module, seed)
    return module


def draw_parameters(module: nn.Module, seed: int) -> None:
    """Draw all floating-point parameters in the order of their names, normal with standard
    deviation 1/sqrt(fan-in); others keep their values."""
    generator = torch.Generator().manual_seed(seed)
    for _, parameter in sorted(module.named_parameters()):
        if parameter.is_floating_point():
            _fill(parameter, generator)


def _construct(
    implementation: Implementation,
    sizes: dict[str, int],
    device: torch.device | str,
    dtype: torch.dtype,
    seed: int,
) -> nn.Module:
    """Construct the module by its class from those of the sizes that the class takes; the head
    width h, where the class needs one and none is given, is d/n. `seed` is that of numbers that the
    class draws itself; torch's random state stays as it was. Raises ValueError: a size is missing,
    not positive or refused by the class, or h is given to a class whose heads have the width
    d/n."""
    given: dict[str, object] = {**sizes, "device": device, "dtype": dtype}
    if implementation.options:
        given["options"] = implementation.options
    taken = inspect.signature(implementation.module).parameters
    require_sizes(**{letter: sizes[letter] for letter in sizes if letter in taken})
    needs_h = "h" in taken and taken["h"].default is inspect.Parameter.empty and "h" not in sizes
    if needs_h and {"d", "n"} <= sizes.keys() and sizes["d"] % sizes["n"] == 0:
        given["h"] = sizes["d"] // sizes["n"]
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values())
    missing = [
        name
        for name, parameter in taken.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        and name not in given
    ]
    if "h" in sizes and "h" not in taken and not takes_all:
        raise ValueError(
            f"{implementation.mixer} {implementation.name} takes no head width h, since its heads "
            "are d/n wide: leave out h"
        )
    if missing:
        raise ValueError(
            f"{implementation.mixer} {implementation.name} needs the size {', '.join(missing)} "
            f"and was given {', '.join(sizes)}"
        )
    accepted = {name: value for name, value in given.items() if takes_all or name in taken}
    where = torch.device(device)
    forked = torch.random.fork_rng(devices=[where] if where.type == "cuda" else [])
    with forked, made_in(where, dtype):
        torch.default_generator.manual_seed(seed)
        return implementation.module(**accepted).to(device=where, dtype=dtype)


def _fill(parameter: nn.Parameter, generator: torch.Generator) -> None:
    """Draw one parameter in place, normal with standard deviation 1/sqrt(fan-in); with three axes
    or more, slice by slice to save memory."""
    scale = fan_in(parameter.shape) ** -0.5
    with torch.no_grad():
        for slab in parameter if parameter.dim() > 2 else [parameter]:
            slab.copy_(torch.randn(slab.shape, generator=generator, dtype=torch.float64) * scale)
