"""The call that a phase measures: the module, its inputs, and the work before each call.

The phase `training` is a forward pass alone, `inference` one new token with a state of those before
it, `backward` a backward pass alone, `training-step` both passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import torch
from msgspec import structs
from torch import nn

from costmodel.errors import as_exception
from costmodel.program.phases import phase_name
from profiler.host.device import DTYPES
from profiler.modules.base import State
from profiler.records.reading import Measured, MeasureError, Reading
from profiler.run.inputs import SETS, Built, refuse_constant, rotated, why_one_set
from profiler.run.request import Request
from profiler.run.subject import subject
from profiler.tracing.meta_run.observe import differentiable
from profiler.tracing.meta_run.target import can_have_gradient


@dataclass(frozen=True)
class PreparedCall:
    """A call to measure: `fn(*args)` after `reset()`.

    Counts are of the call on `args` alone. The timed call, also used as the load for energy, takes
    turns with `others` if there are any (`timed`). Raises ConstantInput: all entries of an input
    are equal."""

    module: nn.Module
    fn: Callable[..., Any]
    args: tuple[torch.Tensor, ...]
    reset: Callable[[], None] | None
    state: State | None = None
    """The state of `step` between tokens; None in phases without `step`."""
    trivial: bool = True
    """Whether `reset` is negligibly short, so that several calls may share a timed region."""
    forward: Callable[[], Any] | None = None
    """The forward pass whose gradients the call computes; None without gradients."""
    halves: tuple[Callable[[], None], Callable[[], None]] | None = None
    """The forward pass, and the backward pass that consumes its graph; None without gradients."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """How the call is made, as JSON values."""
    others: tuple[tuple[torch.Tensor, ...], ...] = ()
    """Further sets of arguments, of the shapes of `args`."""
    one_set: str = ""
    """The reason if there are no `others`."""
    lead: Callable[..., None] | None = None
    """Of a backward pass, the reset on a given set of inputs: a forward pass; None if the call
    itself takes the inputs."""
    names: tuple[str, ...] = ()
    """The names of the inputs of a whole sequence."""

    def __post_init__(self) -> None:
        for arguments in (self.args, *self.others):
            refuse_constant(arguments)

    def restore(self) -> None:
        """Restore the state that a call changes."""
        if self.reset is not None:
            self.reset()

    @as_exception()
    def once(self) -> Any:
        """Restore the state, then call."""
        self.restore()
        return self.bare()

    def bare(self) -> Any:
        """The call without a reset."""
        return self.fn(*self.args)

    def timed(self) -> tuple[Callable[[], Any], Callable[[], None] | None]:
        """The timed call and the work before each call (None: nothing), as functions without
        arguments. With further sets of inputs (`others`), each call takes the next set: through its
        reset if the reset runs the forward pass (`lead`), else directly. Weights and a decoding
        state are the same in every call."""
        sets = (self.args, *self.others)
        if len(sets) < 2:
            return self.bare, self.reset
        if self.lead is not None:
            return self.bare, rotated(self.lead, sets)
        return rotated(self.fn, sets), self.reset

    def noted(self, measured: Measured) -> Measured:
        """A copy of a reading whose details say over how many sets of inputs the calls went in turn
        (so that inputs do not stay in the cache), and why if it is one; details that the meter gave
        are kept. Unavailable as it is."""
        if not isinstance(measured, Reading):
            return measured
        facts: dict[str, Any] = {"input_sets": 1 + len(self.others)}
        facts |= {"one_set": self.one_set} if self.one_set else {}
        return structs.replace(measured, details={**facts, **measured.details})


@as_exception()
def prepare(request: Request) -> PreparedCall:
    """Build the module with random parameters, and the call of the request's phase.

    Inference fills the state with t-1 random tokens, and every call is the t-th. A backward pass
    starts from a random gradient of each output and computes the gradients of every parameter and
    input; the forward pass before it is not part of the call. A training step is both passes,
    without an optimiser. A call starts without gradients of earlier calls.
    """
    phase = phase_name(request.phase)
    return PREPARED[phase](request)


def module_of(request: Request, sizes: Mapping[str, int], *, train: bool) -> Built:
    """Build the request's module with random parameters, in train or eval mode, and its inputs."""
    made = subject(request.mixer).build(
        request.implementation,
        sizes,
        device=request.device,
        dtype=DTYPES[request.dtype],
        seed=request.seed,
        drawn=request.drawn,
    )
    made.module.train(train)
    return made


def _inputs(
    request: Request, built: Built, turn: int = 0, *, first: int = 0
) -> tuple[torch.Tensor, ...]:
    """Make the tensors of the module's inputs, from number `first` on, counted from 0. Floating
    types get random values in the request's dtype, from its seed and `turn`, the number of one of
    the sets that calls take in turns; tensors of other types are those of `built` in every set."""
    # numbers of random streams in a turn: 1 for the first input, from 100 on for further inputs;
    # elsewhere from 2 on for a state's arrays, from 200 on for gradients of outputs
    return tuple(
        random_values(tuple(like.shape), request, (99 + k if k else 1) + turn * STREAMS)
        if like.is_floating_point()
        else like
        for k, like in enumerate(built.inputs.values())
        if k >= first
    )


def with_turns(
    work: PreparedCall, request: Request, made: Callable[[int], tuple[torch.Tensor, ...]]
) -> PreparedCall:
    """A copy of the call with further sets of inputs, `made(turn)` for turn 1 to `SETS` - 1, which
    calls take in turns; if the cache cannot hold all sets, or its size is unknown, a copy with the
    reason (`one_set`), in which all calls get the same inputs."""
    held = () if work.state is None else tuple(work.state.arrays.values())
    beside = (*work.module.parameters(), *work.module.buffers(), *held)
    if why := why_one_set(torch.device(request.device), work.args, beside):
        return replace(work, one_set=why)
    return replace(work, others=tuple(made(turn) for turn in range(1, SETS)))


def _forward_work(request: Request) -> PreparedCall:
    """Prepare the call of a forward pass in eval mode, without gradients, on inputs in turn."""
    built = module_of(request, request.sizes, train=False)
    module = built.module

    @torch.no_grad()
    def forward(*args: torch.Tensor) -> Any:
        return module(*args)

    work = PreparedCall(
        module, forward, _inputs(request, built), None,
        details=mode_of(module), names=tuple(built.inputs),
    )  # fmt: skip
    return with_turns(work, request, lambda turn: _inputs(request, built, turn))


def _step_work(request: Request) -> PreparedCall:
    """Prepare the call of one decoding step: of the t-th token (without a size t, the l-th), with a
    state of t-1 random tokens, to which the reset returns. The module's own steps fill a chunk that
    has begun: what a chunk holds of a token, such as the logarithms of decays, are no arbitrary
    numbers, and calls that repeat its last token would let the sums grow without bound."""
    sizes = dict(request.sizes)
    t = sizes.get("t", sizes["l"])
    if not getattr(request.implementation.module, "bounded", False):
        # room in the state for a token after the l-th; a parameter of extent l, which a `bounded`
        # module has, forbids it
        sizes["l"] = max(sizes["l"], t)
    built = module_of(request, sizes, train=False)
    module, contexts = built.module, _inputs(request, built, first=1)
    state = module.initial_state(sizes["b"], t, *contexts)  # type: ignore[operator]
    for k, name in enumerate(sorted(state.arrays)):
        state.arrays[name].copy_(random_values(tuple(state.arrays[name].shape), request, 2 + k))

    def row(turn: int = 0) -> tuple[torch.Tensor, ...]:
        """The token's row; each turn, like each tensor, has a random stream of its own."""
        return (random_values((sizes["b"], sizes["d"]), request, 1 + turn * STREAMS),)

    def reset() -> None:
        state.position = t - 1

    @torch.no_grad()
    def step(x_t: torch.Tensor) -> Any:
        return module.step(x_t, state)  # type: ignore[operator]

    reset()
    # how many of the t-1 tokens lie in the chunk that has begun; only a state in chunks has some
    begun = getattr(state, "in_chunk", 0)
    state.position -= begun
    for token in range(begun):
        step(*row(SETS + token))
    work = PreparedCall(module, step, row(), reset, state, details=mode_of(module))
    return with_turns(work, request, row)


@dataclass
class Trained:
    """A module in train mode, its inputs, which require gradients, and its outputs' gradients."""

    built: Built
    given: tuple[torch.Tensor, ...]
    cotangents: tuple[torch.Tensor, ...] = ()
    """A random gradient for each output through which gradients flow; made after the first forward
    pass, which shows the outputs."""
    y: Any = None
    """The result of the last forward pass, with its graph, until a backward pass consumes it."""
    others: list[tuple[torch.Tensor, ...]] = field(default_factory=list)
    """Further sets of inputs, of the shapes of `given`."""

    @property
    def module(self) -> nn.Module:
        """The module."""
        return self.built.module

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the inputs."""
        return tuple(self.built.inputs)

    @property
    def halves(self) -> tuple[Callable[[], None], Callable[[], None]]:
        """(the forward pass, the backward pass), as functions without arguments."""
        return self.forward, self.backward

    def another(self, given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """Add a set of inputs, which require gradients from then on, and return the set."""
        self.others.append(requiring_gradients(given))
        return self.others[-1]

    def forget(self) -> None:
        """Drop the gradients and the graph of earlier calls."""
        self.y = None
        for tensor in (*self.module.parameters(), *self.given, *chain(*self.others)):
            tensor.grad = None

    def forward(self, *given: torch.Tensor) -> None:
        """A differentiable forward pass on `given`, by default on the first set of inputs."""
        with torch.enable_grad():
            self.y = self.module(*(given or self.given))

    def anew(self, *given: torch.Tensor) -> None:
        """`forget`, then `forward`."""
        self.forget()
        self.forward(*given)

    def result(self) -> Any:
        """Run a forward pass on the first set of inputs and return its result; `y` becomes None."""
        self.forward()
        y, self.y = self.y, None
        return y

    def backward(self) -> None:
        """Compute all gradients from the last forward pass, whose graph this consumes."""
        y, self.y = self.y, None
        torch.autograd.backward(outputs_with_gradient(y), self.cotangents)


def outputs_with_gradient(y: Any) -> tuple[torch.Tensor, ...]:
    """The tensors of a result through which gradients flow back."""
    if isinstance(y, torch.Tensor):  # the short way, as this runs inside a timed call
        return (y,) if y.grad_fn is not None else ()
    return tuple(differentiable(y))


def trained_module(request: Request) -> Trained:
    """Build the module of a request and its inputs, which require gradients; one forward pass finds
    the outputs through which gradients flow, for which random gradients are drawn. Raises
    MeasureError: gradients flow through no tensor of the result."""
    built = module_of(request, request.sizes, train=True)
    made = Trained(built, requiring_gradients(_inputs(request, built)))
    made.forward()
    if not outputs_with_gradient(made.y):
        raise MeasureError(
            f"no gradient flows back from what {request.mixer.name} "
            f"{request.implementation.name} returns: expected a tensor that depends on x by "
            f"differentiable operations"
        )
    made.cotangents = tuple(
        random_values(tuple(y.shape), request, 200 + k).to(y.dtype)
        for k, y in enumerate(outputs_with_gradient(made.y))
    )
    made.forget()
    return made


def requiring_gradients(given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """The same tensors, set to require gradients where their dtype can have gradients."""
    return tuple(tensor.requires_grad_(can_have_gradient(tensor)) for tensor in given)


def _with_trained_turns(work: PreparedCall, request: Request, made: Trained) -> PreparedCall:
    """`with_turns`, by sets of inputs that require gradients."""
    return with_turns(work, request, lambda turn: made.another(_inputs(request, made.built, turn)))


def _backward_work(request: Request) -> PreparedCall:
    """Prepare the call of a backward pass; its reset, the work before each call, runs the forward
    pass on the next inputs."""
    made = trained_module(request)

    def backward(*_: torch.Tensor) -> None:
        made.backward()

    details = mode_of(made.module) | {"before": "a forward pass, outside the call"}
    work = PreparedCall(
        made.module, backward, made.given, made.anew,
        trivial=False, forward=made.result, halves=made.halves, details=details, lead=made.anew,
        names=made.names,
    )  # fmt: skip
    return _with_trained_turns(work, request, made)


def _training_step_work(request: Request) -> PreparedCall:
    """Prepare the call of a forward pass and a backward pass in train mode, without an optimiser;
    its reset drops the gradients of earlier calls."""
    made = trained_module(request)

    def step(*given: torch.Tensor) -> None:
        made.forward(*given)
        made.backward()

    details = mode_of(made.module)
    work = PreparedCall(
        made.module, step, made.given, made.forget,
        forward=made.result, halves=made.halves, details=details, names=made.names,
    )  # fmt: skip
    return _with_trained_turns(work, request, made)


PREPARED: Mapping[str, Callable[[Request], PreparedCall]] = {
    "training": _forward_work,
    "inference": _step_work,
    "backward": _backward_work,
    "training-step": _training_step_work,
}
"""Phase -> the function that makes the call of the phase."""


def mode_of(module: nn.Module) -> dict[str, Any]:
    """The mode of a module, train or eval, for the record."""
    return {"mode": "train" if module.training else "eval"}


STREAMS = 400
"""The distance between the random streams of two sets of inputs, so that no two tensors of one seed
are equal."""


def random_values(shape: tuple[int, ...], request: Request, stream: int) -> torch.Tensor:
    """Normal numbers of a shape, in the request's dtype: equal on every device for equal seeds and
    numbers `stream`, one for each tensor of a call; on the meta device without values."""
    if request.device == "meta":
        return torch.empty(shape, dtype=DTYPES[request.dtype], device="meta")
    generator = torch.Generator().manual_seed(request.seed * 1000 + stream)
    values = torch.randn(shape, generator=generator, dtype=torch.float32)
    return values.to(device=request.device, dtype=DTYPES[request.dtype])
