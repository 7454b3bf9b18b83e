"""What does a call dispatch, by this project's counter and by others, from a run of its own or from
one on torch's meta device, on tensors that have shapes and no values?

A *call* is the function that a request measures (`prepare.PreparedCall`), its *reset* the work
before each call, such as dropping gradients; *peers* are the counters of torch and fvcore.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from costmodel.errors import as_exception
from costmodel.program.conventions import PEERS
from costmodel.program.phases import phase_name
from costmodel.proofs.tried_sizes import small_sizes
from profiler.counting.call import HIGHER_ORDER
from profiler.counting.dispatch import DispatchCounts, DispatchRecorder, count_dispatch
from profiler.counting.operations import NOTHING, Operations
from profiler.counting.other_counters import PeerCount, flop_counter_mode, fvcore_count
from profiler.counting.zero_gradients import spent_on_zeros
from profiler.records.reading import Unavailable
from profiler.run.plain import PlainModule
from profiler.run.prepare import PreparedCall, module_of, prepare
from profiler.run.request import Request

Peers = Mapping[str, PeerCount | Unavailable]
"""Name of another program's counter (`torch`, `fvcore`) -> its figures for the same call, or why
there are none."""


@dataclass(frozen=True)
class Called:
    """What a call dispatches.

    Args:
        peers: the figures of other counters.
        zeros: the backward pass's arithmetic on zeros that stand for missing gradients.
        forward: sorted names in torch of the forward pass's operations; [] without gradients.
        details: where the call was counted, if not in a run of its own; as JSON values.
    """

    dispatched: DispatchCounts
    peers: Peers
    zeros: Operations
    forward: list[str]
    details: Mapping[str, Any] = field(default_factory=dict)


def called_by(work: PreparedCall) -> Called:
    """What the call dispatches, without its reset, from runs of the call."""
    zeros, forward = of_halves(work)
    dispatched, peer = dispatched_beside_torch(work)
    peers = {"torch": peer, "fvcore": fvcore_of(work)}
    return Called(dispatched, peers, zeros, forward)


ON_META = {
    "counted": "on the meta device (shapes, no values), which dispatches at small sizes what a run "
    "there dispatches"
}
"""The detail of a call that `on_meta` counted."""


def on_meta(request: Request) -> Called | None:
    """The operations that the call of a request dispatches, from a run on the meta device; without
    fvcore's figures if at small sizes they differ there from those of a run with values. None if
    the call needs a run with values: at small sizes that run dispatches something else (an
    operation whose kernel depends on the device), the call fails without values (a module that
    reads them), or a module without equations has no small sizes."""
    try:
        with as_exception():
            small = [replace(request, sizes=sizes) for sizes in _small_sizes(request)]
            pairs = [(_called(each), _called(_meta(each))) for each in small]
            alike = [
                name for name in PEERS
                if all(run.peers[name] == meta.peers[name] for run, meta in pairs)
            ]  # fmt: skip
            same = all(replace(run, peers={}) == replace(meta, peers={}) for run, meta in pairs)
            if not (pairs and same and "torch" in alike):
                return None
            found = _called(_meta(request))
    except Exception:  # a module of a user's own may raise anything
        return None
    return replace(found, peers={name: found.peers[name] for name in alike}, details=ON_META)


def parameters_of(request: Request) -> int:
    """The number of parameters of a request's module, made on the meta device; 0 for a module
    without equations, or one that cannot be made there."""
    if isinstance(request.mixer, PlainModule):
        return 0
    try:
        with as_exception():
            made = module_of(_meta(request), request.sizes, train=False).module
            return sum(each.numel() for each in made.parameters())
    except Exception:  # a module of a user's own may raise anything
        return 0


def _meta(request: Request) -> Request:
    """The request for the meta device."""
    return replace(request, device="meta")


def _called(request: Request) -> Called:
    """The operations that a request's call dispatches after a first call, which fills caches."""
    work = prepare(request)
    if work.halves is None:  # else preparing and `of_halves` make the first call
        work.once()
    return called_by(work)


def _small_sizes(request: Request) -> list[dict[str, int]]:
    """The small sizes, of at most two sequences, at which a request's call is compared with one on
    the meta device; [] for a module without equations."""
    if isinstance(request.mixer, PlainModule):
        return []
    own = {"b": min(request.sizes["b"], 2)}
    token = phase_name(request.phase) == "inference"
    found = small_sizes(request.mixer)
    return [{**sizes, **own, **({"t": sizes["l"]} if token else {})} for sizes in found]


def dispatched_by(work: PreparedCall) -> DispatchCounts:
    """The operations that the call dispatches, without its reset."""
    work.restore()
    return count_dispatch(work.bare)


def dispatched_beside_torch(work: PreparedCall) -> tuple[DispatchCounts, PeerCount | Unavailable]:
    """(the operations that the call dispatches, without its reset; the figures of torch's
    FlopCounterMode, or why there are none), from one run. FlopCounterMode may refuse a call and
    runs the functions of an operator such as torch.cond: then the operations are counted in a run
    without FlopCounterMode."""
    work.restore()
    recorder = DispatchRecorder()
    peer = flop_counter_mode(work.bare, beside=recorder.watching())
    found = recorder.counts()
    alone = isinstance(peer, Unavailable) or any(
        operation.reason == HIGHER_ORDER for operation in found.unknown.values()
    )
    return dispatched_by(work) if alone else found, peer


def of_halves(work: PreparedCall) -> tuple[Operations, list[str]]:
    """(the backward pass's arithmetic on zeros that stand for missing gradients, the sorted names
    in torch of the operations that the forward pass before it dispatches), from one run of both;
    (`NOTHING`, []) if the call takes no gradients."""
    if work.halves is None:
        return NOTHING, []
    forward, backward = work.halves
    work.restore()
    names = sorted(count_dispatch(forward).by_op)
    return spent_on_zeros(backward), names


def zeros_of(work: PreparedCall) -> Operations:
    """Count the backward pass's arithmetic on zeros that stand for missing gradients; `NOTHING`
    without a backward pass."""
    return of_halves(work)[0]


FORWARD_ONLY = "fvcore counts forward passes only, no gradients"


def fvcore_of(work: PreparedCall) -> PeerCount | Unavailable:
    """What fvcore counts in the prepared call; or why it counts nothing, as with gradients."""
    if work.forward is not None:
        return Unavailable(FORWARD_ONLY)

    def call(*_: torch.Tensor) -> Any:
        """The result and what the call left in the state: a trace drops other work."""
        result = work.once()
        return result if work.state is None else (result, *work.state.arrays.values())

    work.restore()
    # fvcore traces the module, or, if a call changes a state, a function that resets and calls
    return fvcore_count(work.module, *work.args, call=call if work.reset else None)
