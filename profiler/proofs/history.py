"""Events before a call that must not change the call's result, such as an earlier call."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

import torch

from profiler.modules.building import build, draw_parameters
from profiler.modules.registry import Implementation
from profiler.proofs.cases import ModuleCase

Happening = Callable[[Implementation, ModuleCase], ModuleCase]
"""An event before a call: lets it happen to the module of a case, and returns the case to call."""


def _other_weights(described: Implementation, case: ModuleCase) -> ModuleCase:
    """Call and decode the module of a case with other weights, copy its own weights back, and
    return the case."""
    parameters = dict(case.module.named_parameters())
    own = {name: p.detach().clone() for name, p in parameters.items()}
    draw_parameters(case.module, seed=77)
    _called(described, case)
    with torch.no_grad():
        for name, values in own.items():
            parameters[name].copy_(values)
    return case


def _called(described: Implementation, case: ModuleCase) -> None:
    """Call the module of a case once, and decode up to three tokens if it has a step."""
    with torch.no_grad():
        case.forward()
        if described.step_form:
            state = case.initial_state()
            for t in range(1, min(3, case.x.shape[1]) + 1):
                case.step(t, state)


def _other_lengths(described: Implementation, case: ModuleCase) -> ModuleCase:
    """Call the module of a case with sequences of length 1, l/2 and l + 3, which it may refuse, and
    return the case. Inputs are cut, or repeated from the start; contexts stay. `described` is not
    used: all events have one signature."""
    length = case.x.shape[1]
    own = {array.name: rows for array, rows in case.given().items() if array.role == "input"}
    for other in dict.fromkeys((1, max(1, length // 2), length + 3)):
        given = {
            name: torch.cat([rows] * (1 + other // length), 1)[:, :other]
            for name, rows in own.items()
        }
        x = given.pop(case.mixer.role("input").name)
        try:
            with torch.no_grad():
                replace(case, x=x, beside={**case.beside, **given}).forward()
        except Exception:  # refusing another length is a module's right
            continue
    return case


def _training_step(described: Implementation, case: ModuleCase) -> ModuleCase:
    """Run the module of a case forward and backward in train mode, drop the gradients, and return
    the case. `described` is not used: all events have one signature."""
    mode = case.module.training
    with torch.enable_grad():
        y = case.module.train()(*case.call)
        if y.requires_grad:
            y.sum().backward()
    case.module.zero_grad(set_to_none=True)
    case.module.train(mode)
    return case


def _decoded(described: Implementation, case: ModuleCase) -> ModuleCase:
    """Call the module of a case once, decode the first tokens, and return the case."""
    _called(described, case)
    return case


def _another_module(described: Implementation, case: ModuleCase) -> ModuleCase:
    """Build another module of the same class with other weights, in float32, call it with the
    inputs of the case in float32, and return the case unchanged: modules must share no values."""
    sizes = {**case.sizes, "b": len(case.x)}
    other = build(described, sizes, device="cpu", dtype=torch.float32, seed=78)
    call = [t.float() if t.is_floating_point() else t for t in case.call]
    beside = dict(zip(case.beside, call[1:], strict=True))
    _called(described, ModuleCase(case.mixer, case.sizes, other, call[0], beside))
    return case


def _reloaded(described: Implementation, case: ModuleCase) -> ModuleCase:
    """The case with a new module, into which the weights of its module were loaded."""
    sizes = {**case.sizes, "b": len(case.x)}
    other = build(described, sizes, device="cpu", dtype=torch.float64, seed=79)
    other.load_state_dict(case.module.state_dict())
    return replace(case, module=other.train(case.module.training))


def _copied(described: Implementation, case: ModuleCase) -> ModuleCase:
    """Call the module of a case, and return the case with a deep copy of the module."""
    _called(described, case)
    return replace(case, module=copy.deepcopy(case.module))


def _converted(described: Implementation, case: ModuleCase) -> ModuleCase:
    """Convert the module of a case to float32, call it (an error of this call is ignored), convert
    it back to float64 with the exact values of parameters and buffers restored, and return the
    case. A module with complex tensors is left alone: torch would drop their imaginary parts."""
    tensors = {**dict(case.module.named_parameters()), **dict(case.module.named_buffers())}
    if any(tensor.is_complex() for tensor in tensors.values()):
        return case
    own = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    low = {name: t.float() if t.is_floating_point() else t for name, t in case.beside.items()}
    x = case.x.float() if case.x.is_floating_point() else case.x
    case.module.to(torch.float32)
    with suppress(Exception):  # refusing a type is a module's right
        _called(described, replace(case, x=x, beside=low))
    case.module.to(torch.float64)
    with torch.no_grad():
        for name, tensor in (*case.module.named_parameters(), *case.module.named_buffers()):
            if name in own and own[name].shape == tensor.shape:  # else made or resized in the call
                tensor.copy_(own[name])
    return case


def _half_frozen(described: Implementation, case: ModuleCase) -> ModuleCase:
    """Let every second parameter of the module require no gradient, and return the case."""
    for parameter in [*case.module.parameters()][::2]:
        parameter.requires_grad_(False)
    return case


def _unasked(described: Implementation, case: ModuleCase) -> ModuleCase:
    """The case without gradients of inputs and contexts."""
    return replace(case, asks=False)


CALLS = 130
"""How many times one module is called, one call after another."""
OFTEN = f"after {CALLS} calls"


def _often(described: Implementation, case: ModuleCase) -> ModuleCase:
    """Call the module of a case `CALLS` times, and return the case. `described` is not used: all
    events have one signature."""
    with torch.no_grad():
        for _ in range(CALLS):
            case.forward()
    return case


BEFORE: Mapping[str, Happening] = {
    "after a call with other weights": _other_weights,
    "after calls of other lengths": _other_lengths,
    "after a training step": _training_step,
    "after tokens were decoded": _decoded,
    "after another module of the class was called": _another_module,
    "loaded from a state_dict": _reloaded,
    "as a deep copy": _copied,
    "after the module was converted to float32 and back": _converted,
    "with every second parameter frozen": _half_frozen,
    "with inputs that require no gradient": _unasked,
}
"""The event in words -> the function that lets it happen and returns the case to call next."""
EVENTS: Mapping[str, Happening] = {**BEFORE, OFTEN: _often}
"""`BEFORE`, which is drawn, and `OFTEN`, which a few calls in low precision get."""
