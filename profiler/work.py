"""What call is measured: which module, with which inputs, in which phase, and what before it?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import nn

from costmodel.equations import Mixer
from costmodel.tokens import TRAINING_STEP, phase_name
from profiler.modules import Implementation, State, build

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
    compile: bool = False
    """Whether what torch.compile makes of the call is timed, in place of the call."""
    shared: bool = False
    """Whether energy is measured even where others use the device, with a label."""

    def __post_init__(self) -> None:
        if self.compile and phase_name(self.phase) in TRAINING_STEP:
            raise MeasureError(
                "torch.compile is measured of the forward pass and of one new token: leave out "
                f"--compile, or --phase {self.phase}"
            )


NAMED = ("mixer", "implementation", "sizes", "phase", "dtype", "device", "seed")
"""The fields of a request that a record has a place for; the others are its options."""


def options_of(request: Request) -> dict[str, Any]:
    """What a request asks for beside what records name: only what is not as it is by default."""
    return {
        entry.name: value
        for entry in fields(request)
        if entry.name not in NAMED and (value := getattr(request, entry.name)) != entry.default
    }


@dataclass(frozen=True)
class Work:
    """A call to measure: `fn(*args)` after `reset()`."""

    module: nn.Module
    fn: Callable[..., Any]
    args: tuple[torch.Tensor, ...]
    reset: Callable[[], None] | None
    state: State | None = None
    """What `step` keeps between tokens; none in a forward pass."""
    trivial: bool = True
    """Whether `reset` takes no time worth naming, so that several calls may be timed at once."""
    forward: Callable[[], Any] | None = None
    """The forward pass whose gradients the call takes; None where it takes none."""
    halves: tuple[Callable[[], None], Callable[[], None]] | None = None
    """The forward pass, kept, and the backward pass that uses it up; None without gradients."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """How the call is made, as JSON values."""

    def restore(self) -> None:
        """Make everything as it is before a call."""
        if self.reset is not None:
            self.reset()

    def once(self) -> Any:
        """The call on a restored state."""
        self.restore()
        return self.bare()

    def bare(self) -> Any:
        """The call alone."""
        return self.fn(*self.args)


def on_device(device: str | torch.device) -> AbstractContextManager[Any]:
    """A context in which a GPU is the current one; on a CPU one that does nothing."""
    place = torch.device(device)
    return torch.cuda.device(place) if place.type == "cuda" else nullcontext()


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

    Inference fills the state with t-1 random tokens, and every call is the t-th one. A backward
    pass starts from a random gradient of the output, and gives those of every parameter, of x and
    of every context; the forward pass before it is no part of the call. A training step is both,
    without an optimiser. Gradients of the call before are gone when a call starts.
    """
    phase = phase_name(request.phase)
    return PREPARED[phase](request)


def _module(request: Request, sizes: dict[str, int], *, train: bool) -> nn.Module:
    """The module with random parameters, in train mode where gradients are wanted."""
    dtype = DTYPES[request.dtype]
    module = build(
        request.implementation, sizes, device=request.device, dtype=dtype, seed=request.seed
    )
    return module.train(train)


def _given(request: Request, sizes: Mapping[str, int]) -> tuple[torch.Tensor, ...]:
    """x (b, l, d), then every context."""
    x = random((sizes["b"], sizes["l"], sizes["d"]), request, 1)
    return (x, *_contexts(request, sizes))


def _contexts(request: Request, sizes: Mapping[str, int]) -> tuple[torch.Tensor, ...]:
    """What is whole before the first token, (b, ...) each."""
    shapes = [tuple(extent.at(sizes) for extent in a.shape) for a in request.mixer.contexts]
    return tuple(random((sizes["b"], *s), request, 100 + k) for k, s in enumerate(shapes))


def _forward_work(request: Request) -> Work:
    sizes = dict(request.sizes)
    module = _module(request, sizes, train=False)

    @torch.no_grad()
    def forward(*args: torch.Tensor) -> Any:
        return module(*args)

    return Work(module, forward, _given(request, sizes), None, details=mode_of(module))


def _bounded(request: Request) -> bool:
    return bool(getattr(request.implementation.module, "bounded", False))


def _step_work(request: Request) -> Work:
    sizes = dict(request.sizes)
    t = sizes.get("t", sizes["l"])
    if not _bounded(request):
        sizes["l"] = max(sizes["l"], t)
    module = _module(request, sizes, train=False)
    contexts = _contexts(request, sizes)
    state = module.initial_state(sizes["b"], t, *contexts)  # type: ignore[operator]
    for k, name in enumerate(sorted(state.arrays)):
        state.arrays[name].copy_(random(tuple(state.arrays[name].shape), request, 2 + k))
    x_t = random((sizes["b"], sizes["d"]), request, 1)

    def reset() -> None:
        state.position = t - 1

    @torch.no_grad()
    def step(row: torch.Tensor) -> Any:
        return module.step(row, state)  # type: ignore[operator]

    return Work(module, step, (x_t,), reset, state, details=mode_of(module))


@dataclass
class Trained:
    """A module in train mode with inputs that want gradients, and the gradient of its output."""

    module: nn.Module
    given: tuple[torch.Tensor, ...]
    cotangent: torch.Tensor | None = None
    """(b, l, d), random; made after the first forward pass, which shows its shape."""
    y: Any = None
    """What the last forward pass gave."""

    @property
    def halves(self) -> tuple[Callable[[], None], Callable[[], None]]:
        """The forward and the backward pass."""
        return self.forward, self.backward

    def forget(self) -> None:
        """No gradient and no graph is left of earlier calls."""
        self.y = None
        for tensor in (*self.module.parameters(), *self.given):
            tensor.grad = None

    def forward(self) -> None:
        """A forward pass that can be differentiated."""
        with torch.enable_grad():
            self.y = self.module(*self.given)

    def result(self) -> Any:
        """What a forward pass gives, and nothing keeps."""
        self.forward()
        y, self.y = self.y, None
        return y

    def backward(self) -> None:
        """The gradients of everything; the graph of the forward pass is used up."""
        y, self.y = self.y, None
        y.backward(self.cotangent)


def trained(request: Request) -> Trained:
    """The module of a request, ready for a forward and a backward pass.

    Raises:
        MeasureError: what it returns is no tensor that a gradient flows back from.
    """
    sizes = dict(request.sizes)
    module = _module(request, sizes, train=True)
    given = tuple(tensor.requires_grad_() for tensor in _given(request, sizes))
    made = Trained(module, given)
    made.forward()
    if not isinstance(made.y, torch.Tensor) or made.y.grad_fn is None:
        raise MeasureError(
            f"no gradient flows back from what {request.mixer.name} "
            f"{request.implementation.name} returns: expected one tensor that depends on x by "
            f"differentiable operations"
        )
    made.cotangent = random(tuple(made.y.shape), request, 200).to(made.y.dtype)
    made.forget()
    return made


def _backward_work(request: Request) -> Work:
    made = trained(request)

    def reset() -> None:
        made.forget()
        made.forward()

    def backward(*_: torch.Tensor) -> None:
        made.backward()

    details = mode_of(made.module) | {"before": "a forward pass, outside the call"}
    return Work(
        made.module, backward, made.given, reset,
        trivial=False, forward=made.result, halves=made.halves, details=details,
    )  # fmt: skip


def _training_step_work(request: Request) -> Work:
    made = trained(request)

    def step(*_: torch.Tensor) -> None:
        made.forward()
        made.backward()

    details = mode_of(made.module)
    return Work(
        made.module, step, made.given, made.forget,
        forward=made.result, halves=made.halves, details=details,
    )  # fmt: skip


PREPARED: Mapping[str, Callable[[Request], Work]] = {
    "training": _forward_work,
    "inference": _step_work,
    "backward": _backward_work,
    "training-step": _training_step_work,
}
"""Phase -> what makes its call."""


def mode_of(module: nn.Module) -> dict[str, Any]:
    """Whether a module is in train or eval mode, for its record."""
    return {"mode": "train" if module.training else "eval"}


def random(shape: tuple[int, ...], request: Request, stream: int) -> torch.Tensor:
    """Normal numbers, equal for equal seeds on every device: (shape) in the request's dtype."""
    generator = torch.Generator().manual_seed(request.seed * 1000 + stream)
    values = torch.randn(shape, generator=generator, dtype=torch.float32)
    return values.to(device=request.device, dtype=DTYPES[request.dtype])
