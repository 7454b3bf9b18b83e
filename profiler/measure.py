"""What does one implementation of a mixer cost on this machine?

Everything that is measured of one implementation at one set of sizes becomes one `Measurement`:
what it dispatches, what peers print, time, memory and energy. What a machine cannot give is a
reason, never a zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from costmodel.equations import Mixer
from costmodel.tokens import phase_name
from profiler.counters.dispatch import DispatchCounts, count_dispatch
from profiler.counters.hardware import hardware_operations
from profiler.counters.peers import PeerCount, flop_counter_mode, fvcore_count
from profiler.counters.trace import OperationTimes, count_kernels, operation_times
from profiler.environment import environment
from profiler.meters.energy import split
from profiler.meters.interface import Measured, Reading, Unavailable, reason_of
from profiler.meters.latency import LatencyLimits, latency
from profiler.meters.memory import peak_memory
from profiler.meters.nvml import energy
from profiler.modules import STEPLESS, Implementation, State, build, without_token
from profiler.store import Measurement, divide

DTYPES: Mapping[str, torch.dtype] = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
ALIASES = {"float64": "fp64", "float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


class MeasureError(ValueError):
    """A measurement that cannot be made; one sentence says what was expected and what came."""


@dataclass(frozen=True)
class Request:
    """One implementation at one set of sizes: what to measure."""

    mixer: Mixer
    implementation: Implementation
    sizes: Mapping[str, int]
    """b and every letter of the mixer; t for inference."""
    phase: str = "training"
    dtype: str = "fp32"
    device: str = "cpu"
    seed: int = 0


@dataclass(frozen=True)
class Work:
    """A call to measure: `fn(*args)` after `reset()`."""

    module: nn.Module
    fn: Callable[..., Any]
    args: tuple[torch.Tensor, ...]
    reset: Callable[[], None] | None
    state: State | None = None
    """What `step` keeps between tokens; none in a forward pass."""

    def once(self) -> Any:
        """The call on a restored state."""
        if self.reset is not None:
            self.reset()
        return self.fn(*self.args)

    def bare(self) -> Any:
        """The call alone."""
        return self.fn(*self.args)


def dtype_name(name: str) -> str:
    """The short name of a dtype; MeasureError lists the choices."""
    short = ALIASES.get(name, name)
    if short not in DTYPES:
        raise MeasureError(f"unknown dtype '{name}': expected one of {', '.join(DTYPES)}")
    return short


def default_device() -> str:
    """The GPU where there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def device_name(name: str | None) -> str:
    """A usable device; MeasureError says what is missing."""
    if name is None:
        return default_device()
    try:
        place = torch.device(name)
    except RuntimeError:
        raise MeasureError(f"unknown device '{name}': expected cpu, cuda or cuda:N") from None
    if place.type not in ("cpu", "cuda"):
        raise MeasureError(f"device '{name}' is not measured: expected cpu, cuda or cuda:N")
    if place.type == "cuda" and not torch.cuda.is_available():
        raise MeasureError("device 'cuda' was asked for, but torch finds no NVIDIA GPU: use cpu")
    if place.type == "cuda" and (place.index or 0) >= torch.cuda.device_count():
        raise MeasureError(f"there is no '{name}': torch finds {torch.cuda.device_count()} GPUs")
    return str(place)


def prepare(request: Request) -> Work:
    """Build the module with random parameters and the call that a phase times.

    Inference fills the state with t-1 random tokens, and every call is the t-th one.
    """
    dtype, sizes = DTYPES[request.dtype], dict(request.sizes)
    phase, t = phase_name(request.phase), sizes.get("t", sizes["l"])
    if phase == "inference":
        sizes["l"] = max(sizes["l"], t) if not _bounded(request) else sizes["l"]
    module = build(
        request.implementation, sizes, device=request.device, dtype=dtype, seed=request.seed
    )
    module.eval()
    contexts = _contexts(request, sizes)
    if phase == "training":
        x = random((sizes["b"], sizes["l"], sizes["d"]), request, 1)
        return Work(module, _without_gradients(module), (x, *contexts), None)
    return _step_work(request, module, sizes, t, contexts)


def _contexts(request: Request, sizes: Mapping[str, int]) -> tuple[torch.Tensor, ...]:
    """What is whole before the first token, (b, ...) each."""
    shapes = [tuple(extent.at(sizes) for extent in a.shape) for a in request.mixer.contexts]
    return tuple(random((sizes["b"], *s), request, 100 + k) for k, s in enumerate(shapes))


def _bounded(request: Request) -> bool:
    return bool(getattr(request.implementation.module, "bounded", False))


def _without_gradients(module: nn.Module) -> Callable[..., Any]:
    @torch.no_grad()
    def forward(*args: torch.Tensor) -> Any:
        return module(*args)

    return forward


def _step_work(
    request: Request,
    module: nn.Module,
    sizes: Mapping[str, int],
    t: int,
    contexts: tuple[torch.Tensor, ...],
) -> Work:
    state = module.initial_state(sizes["b"], t, *contexts)  # type: ignore[operator]
    for k, name in enumerate(sorted(state.arrays)):
        state.arrays[name].copy_(random(tuple(state.arrays[name].shape), request, 2 + k))
    x_t = random((sizes["b"], sizes["d"]), request, 1)

    def reset() -> None:
        state.position = t - 1

    @torch.no_grad()
    def step(row: torch.Tensor) -> Any:
        return module.step(row, state)  # type: ignore[operator]

    return Work(module, step, (x_t,), reset, state)


def random(shape: tuple[int, ...], request: Request, stream: int) -> torch.Tensor:
    """Normal numbers, equal for equal seeds on every device: (shape) in the request's dtype."""
    generator = torch.Generator().manual_seed(request.seed * 1000 + stream)
    values = torch.randn(shape, generator=generator, dtype=torch.float32)
    return values.to(device=request.device, dtype=DTYPES[request.dtype])


def measure(
    request: Request,
    *,
    limits: LatencyLimits | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> Measurement:
    """Measure one implementation.

    Args:
        limits: when the sampling of latency stops.
        note: told what is being measured, for a progress bar.

    Raises:
        MeasureError: the implementation cannot run this phase, dtype or size at all.
    """
    note("building")
    _require_token(request)
    try:
        work = prepare(request)
        work.once()
    except Exception as error:  # a module of a user's own may raise anything
        raise MeasureError(_named(request, failure(error))) from error
    try:
        return _measured(request, work, limits, note)
    except RuntimeError as error:  # the device ran out of memory meanwhile, for one
        raise MeasureError(_named(request, failure(error))) from error


def _require_token(request: Request) -> None:
    """MeasureError where one new token is asked for and has no call.

    A reason that is the equations' names the mixer alone: it is that of all its implementations.
    """
    if phase_name(request.phase) != "inference":
        return
    if reason := without_token(request.mixer, request.implementation):
        sentence = f"{reason}, so that one new token cannot be measured"
        own = _named(request, sentence)
        raise MeasureError(own if reason == STEPLESS else f"{request.mixer.name}: {sentence}")


def _measured(
    request: Request, work: Work, limits: LatencyLimits | None, note: Callable[[str], None]
) -> Measurement:
    note("counting operations")
    dispatched = count_dispatch(work.once)
    note("asking other counters")
    peers = peers_of(work)
    note("measuring memory")
    measured: dict[str, Measured] = {
        "peak_memory": peak_memory(work.bare, device=request.device, reset=work.reset),
        "weights": weight_bytes(work.module),
        "state": state_bytes(work),
        "kernels": kernels_of(work, request.device, dispatched),
        "hardware": hardware_operations(),
    }
    note("measuring latency")
    measured |= latencies(work, request, dispatched, limits)
    note("sharing out the time")
    times = operation_times(work.once, cuda=request.device.startswith("cuda"))
    note("measuring energy")
    measured |= energies(work, request.device)
    readings, reasons = divide(measured)
    reasons |= {f"peer {name}": p.reason for name, p in peers.items() if isinstance(p, Unavailable)}
    return Measurement(
        mixer=request.mixer.origin,
        implementation=request.implementation.name,
        form=_form(request),
        sizes=dict(request.sizes),
        dtype=request.dtype,
        phase=phase_name(request.phase),
        device=request.device,
        readings=readings,
        reasons=reasons,
        counts={
            "dispatch": dispatched.to_json(),
            "peers": {
                name: peer_json(peer, times)
                for name, peer in peers.items()
                if isinstance(peer, PeerCount)
            },
            "seed": request.seed,
        },
        environment=environment(request.device),
    )


OUT_OF_MEMORY = ("out of memory", "not enough memory", "can't allocate memory")
"""How CUDA's and the CPU's allocators say so."""


def failure(error: Exception) -> str:
    """Why a call failed and, where it was memory, what to do."""
    reason = reason_of(error)
    memory = isinstance(error, torch.OutOfMemoryError | MemoryError)
    if memory or any(words in reason for words in OUT_OF_MEMORY):
        return f"out of memory: {reason}; take smaller sizes, a smaller --b first"
    if isinstance(error, ValueError):
        return reason
    kind = "" if isinstance(error, RuntimeError) else f"{type(error).__name__}: "
    return f"the call failed: {kind}{reason}"


def _form(request: Request) -> str:
    chosen = request.implementation
    return (chosen.step_form or "") if phase_name(request.phase) == "inference" else chosen.form


def _named(request: Request, reason: str) -> str:
    return f"{request.mixer.name} {request.implementation.name} ({request.dtype}): {reason}"


def peers_of(work: Work) -> dict[str, PeerCount | Unavailable]:
    """What other counters print for the same call."""

    def call(*_: torch.Tensor) -> Any:
        return work.once()

    return {
        "torch": flop_counter_mode(work.once),
        "fvcore": fvcore_count(work.module, *work.args, call=call if work.reset else None),
    }


def peer_json(peer: PeerCount, times: OperationTimes | Unavailable) -> dict[str, Any]:
    """A peer's figures, with the share of the time of the operations that it did not count."""
    share = None if isinstance(times, Unavailable) else times.share(peer.uncounted)
    return peer.to_json() | {"uncounted_time_share": share}


def weight_bytes(module: nn.Module) -> Reading:
    """Bytes of the parameters, which stand in memory before any call."""
    held = sum(p.numel() * p.element_size() for p in module.parameters())
    return Reading("weights", held, "B", (float(held),))


def state_bytes(work: Work) -> Measured:
    """Bytes of the rows held once the token is in the state; those allocated are in details."""
    if work.state is None:
        return Unavailable("a forward pass keeps no state between tokens")
    if not hasattr(work.state, "held"):
        return Unavailable("its state has no `held`, which says which of its rows are valid")
    work.once()
    valid, allocated = (
        sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        for tensors in (map(work.state.held, work.state.arrays), work.state.arrays.values())
    )
    return Reading("state", valid, "B", (float(valid),), {"allocated": allocated})


def kernels_of(work: Work, device: str, dispatched: DispatchCounts) -> Measured:
    """Kernels launched: by CUPTI on a GPU; on a CPU the dispatched operations that are no view."""
    if device.startswith("cuda"):
        return count_kernels(work.once)
    number = float(dispatched.launched)
    return Reading("kernels", number, "1", (number,), {"method": "dispatched non-view operations"})


def latencies(
    work: Work, request: Request, dispatched: DispatchCounts, limits: LatencyLimits | None
) -> dict[str, Measured]:
    """The call's latency, and an estimate of what launching its operations alone takes."""
    return {
        "latency": latency(
            work.bare,
            device=request.device,
            reset=work.reset,
            reset_is_trivial=True,
            limits=limits,
        ),
        "launch_estimate": launch_estimate(request.device, dispatched.launched, limits),
    }


def launch_estimate(device: str, launched: int, limits: LatencyLimits | None = None) -> Measured:
    """Seconds to launch so many operations: their number times that of an addition of one element.

    An estimate, not a bound: an operation called from within another one is launched faster.
    """
    one = torch.ones(1, device=device)
    target = torch.empty(1, device=device)
    seconds = min(0.3, limits.max_seconds) if limits else 0.3
    brief = LatencyLimits(max_seconds=seconds, warmup_seconds=0.1)
    smallest = latency(lambda: torch.add(one, one, out=target), device=device, limits=brief)
    if isinstance(smallest, Unavailable):
        return smallest
    return Reading(
        "launch_estimate",
        smallest.value * launched,
        "s",
        (smallest.value * launched,),
        {"operations": launched, "smallest_operation_s": smallest.value},
    )


def energies(work: Work, device: str) -> dict[str, Measured]:
    """Gross and net energy and mean power, each a reading or the reason why not."""
    measured = energy(work.bare, device=device, reset=work.reset)
    if isinstance(measured, Unavailable):
        return dict.fromkeys(("energy", "energy_net", "power"), measured)
    return {reading.name: reading for reading in split(measured)}
