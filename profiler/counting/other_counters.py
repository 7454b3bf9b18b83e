"""What do other projects' counters print for the same call, and which operations do they skip?

Such a counter is a *peer*: torch's FlopCounterMode, or fvcore.
"""

from __future__ import annotations

import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from msgspec.structs import replace
from torch import nn

from profiler.counting.call import HIGHER_ORDER
from profiler.counting.dispatch import DispatchRecorder
from profiler.counting.mode import OperationKind
from profiler.counting.operations import NOTHING
from profiler.counting.rules import only_moves
from profiler.records.reading import Unavailable, reason_of
from profiler.records.schema import Record

# Operations that fvcore passes over in silence although they compute (its list of ignored
# operations otherwise holds moves, and arithmetic on indices).
SILENT_IN_FVCORE = (
    "aten::clamp",
    "aten::clamp_",
    "aten::dropout",
    "aten::max",
    "aten::relu",
    "aten::relu_",
)


class PeerCount(Record, frozen=True):
    """The figures that a peer printed: its total and its figure per operation, in its own unit.

    `uncounted` maps every operation that computes, and for which the peer has no figure, to its
    number of calls; `moved` does the same for operations that only move data. Operations are named
    as in `OperationTimes` (`aten::softmax`). `unit` is "flop" (a multiply-add is 2) or "mac" (a
    multiply-add is 1).
    """

    name: str
    total: int
    by_op: Mapping[str, int]
    unit: str
    uncounted: Mapping[str, int] = {}
    moved: Mapping[str, int] = {}


class ComputingRecorder(DispatchRecorder):
    """Counts the calls of each operation of torch, and the scalar operations of its calls up to the
    first call that computes: enough to tell operations that compute from moves."""

    def see(self, kind: OperationKind, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Run an operation, and add the call to `by_op`: its operations and bytes too up to the
        first call that computes, or of an operation that never does (`OperationKind.free`) only the
        first; of later calls the number alone."""
        known = self.by_op.get(kind.name)
        computes = known and (known.operations != NOTHING or kind.name in self.unknown)
        if not known or not (kind.free or computes):
            return super().see(kind, args, kwargs)
        self.by_op[kind.name] = replace(known, calls=known.calls + 1)
        return kind.func(*args, **kwargs)


def flop_counter_mode(
    fn: Callable[..., Any], *args: Any, beside: AbstractContextManager[Any] | None = None
) -> PeerCount | Unavailable:
    """The figures of torch.utils.flop_counter.FlopCounterMode for one run of `fn(*args)`;
    Unavailable if the call fails under it.

    Operations without a formula in FlopCounterMode, except views, are in `moved` if a rule of this
    project says that they compute nothing, else in `uncounted`. `beside`: a context around the run,
    as of a `DispatchRecorder`, which sees each operation before FlopCounterMode decomposes it.
    """
    from torch.utils.flop_counter import FlopCounterMode, flop_registry

    recorder = ComputingRecorder()
    try:
        # the innermost mode sees calls first: `recorder` sees what FlopCounterMode makes of them
        with recorder, FlopCounterMode(display=False) as counter, beside or nullcontext():
            fn(*args)
    except Exception as error:  # of any kind, as from a function in torch.cond
        return Unavailable(f"FlopCounterMode could not count the call: {_in_words(error)}")
    figures = counter.get_flop_counts().get("Global", {})
    known = {str(packet).replace(".", "::") for packet in flop_registry}
    skipped = {name: op for name, op in recorder.by_op.items() if not op.view and name not in known}
    computing = {
        name for name, op in skipped.items() if op.operations != NOTHING or name in recorder.unknown
    }
    return PeerCount(
        name="torch",
        total=int(counter.get_total_flops()),
        by_op={str(packet).replace(".", "::"): int(n) for packet, n in figures.items()},
        unit="flop",
        uncounted={name: op.calls for name, op in skipped.items() if name in computing},
        moved={name: op.calls for name, op in skipped.items() if name not in computing},
    )


class CallAsModule(nn.Module):
    """A callable as a module, so that a tracer of modules can run it, such as a method `step`."""

    def __init__(self, fn: Callable[..., Any], module: nn.Module | None = None) -> None:
        super().__init__()
        self.fn = fn
        self.inner = module  # registers its parameters and buffers

    def forward(self, *args: Any) -> Any:
        """The callable's result."""
        return self.fn(*args)


def fvcore_count(
    module: nn.Module, *args: torch.Tensor, call: Callable[..., Any] | None = None
) -> PeerCount | Unavailable:
    """The figures of fvcore's FlopCountAnalysis for one traced run of `module(*args)`, or of
    `call(*args)`; Unavailable if fvcore is not installed, or the trace or a rule of it fails.

    `call` is for other methods: `fvcore_count(module, x_t, call=lambda x_t: module.step(x_t, s))`.
    `uncounted` are the operations that fvcore reports as unsupported and those that it ignores
    although they compute. fvcore counts a multiply-add as 1.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from fvcore.nn import FlopCountAnalysis  # type: ignore[import-untyped]  # no stubs
    except ImportError as error:
        return Unavailable(f"fvcore is not installed ({reason_of(error)}): pip install fvcore")
    traced = module if call is None else CallAsModule(call, module)
    analysis = FlopCountAnalysis(traced, args)
    analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False)
    analysis.tracer_warnings("none")
    silent: Counter[str] = Counter()
    for name in SILENT_IN_FVCORE:
        analysis.set_op_handle(name, note_only(silent, name))
    try:
        with warnings.catch_warnings(), torch.no_grad(), traced_convolutions():
            warnings.simplefilter("ignore")
            total = int(analysis.total())
    except Exception as error:  # its tracer and its handlers raise anything, AssertionError too
        return Unavailable(f"fvcore could not count the call: {_in_words(error)}")
    skipped = Counter(analysis.unsupported_ops()) + silent
    return PeerCount(
        name="fvcore",
        total=total,
        by_op={name: int(n) for name, n in analysis.by_operator().items()},
        unit="mac",
        uncounted={name: n for name, n in skipped.items() if not only_moves(name)},
        moved={name: n for name, n in skipped.items() if only_moves(name)},
    )


@contextmanager
def traced_convolutions() -> Iterator[None]:
    """A context in which torch's tracer records a convolution on the meta device as on any other
    device, as `aten::_convolution`. By itself torch's kernel of `aten::convolution` there reads
    shapes, which a tracer gives as tensors, and fails."""

    def as_elsewhere(*given: Any) -> torch.Tensor:
        switches = (False, False, True, True)  # benchmark, deterministic, cudnn_enabled, allow_tf32
        made: torch.Tensor = torch.ops.aten._convolution.default(*given, *switches)
        return made

    with torch.library._scoped_library("aten", "IMPL", "Meta") as kernels:
        kernels.impl("convolution", as_elsewhere, allow_override=True)
        yield


NO_TENSOR = "an argument or a result of the call is no tensor"
RUNS_FUNCTIONS = f"the call runs an operator such as torch.cond, {HIGHER_ORDER}"
FAILURES: Mapping[str, str] = {
    "Only tuples, lists and Variables": NO_TENSOR,
    "observable data dependence": "a result does not depend on the inputs",
    "dynamo-optimized function": RUNS_FUNCTIONS,
    "Unsupported value kind": RUNS_FUNCTIONS,
    "higher_order": RUNS_FUNCTIONS,
}
"""Part of an error message of torch's tracer or modes -> the reason in words."""


def _in_words(error: Exception) -> str:
    """A sentence on why another project's counter failed: a rule of fvcore raised the error, torch
    could not trace the call for a known reason (`FAILURES`), or else the error's own message."""
    frames = traceback.extract_tb(error.__traceback__)
    rule = next((f.name for f in frames if f.filename.endswith("jit_handles.py")), "")
    if rule:
        said = f"{type(error).__name__}: {reason_of(error)}"
        return f"fvcore's rule {rule} fails for operands of these shapes ({said})"
    return next((means for piece, means in FAILURES.items() if piece in str(error)), "") or (
        reason_of(error)
    )


def note_only(seen: Counter[str], name: str) -> Callable[[Any, Any], Counter[str]]:
    """Return a handler for fvcore that adds no figure, and counts runs of `name` in `seen`."""

    def handle(inputs: Any, outputs: Any) -> Counter[str]:
        seen[name] += 1
        return Counter()

    return handle
