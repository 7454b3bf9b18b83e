"""Measures one implementation of a mixer on this machine.

All results for one implementation at one set of sizes become one `Measurement`: dispatched
operations, other counters' figures, time, memory and energy. A quantity that the machine cannot
measure is a reason, never a zero. A *request* says what is measured, the *prepared call* is the
function that does it; the *floor* of a reading is the least value that the equations allow. The
phase `training` is a forward pass alone, `inference` one new token, `training-step` both passes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import astuple, replace
from time import process_time
from typing import Any

import torch
from msgspec import structs
from torch import nn

from costmodel.errors import Unanswered, Unsupported, as_exception
from costmodel.program.conventions import PEERS
from costmodel.program.phases import phase_name
from profiler.counting.dispatch import DispatchCounts
from profiler.counting.other_counters import PeerCount
from profiler.hardware.products import products_of
from profiler.host.device import on_device
from profiler.host.environment import current_state, environment
from profiler.meters.board_energy import energy
from profiler.meters.compilation import compile_call
from profiler.meters.energy.protocol import EnergyLimits, energy_readings
from profiler.meters.failure import failure_words
from profiler.meters.latency import latency, latency_readings as latency_kinds
from profiler.meters.memory.allocator import peak_memory
from profiler.meters.memory.live_tensors import kept, most_alive
from profiler.meters.sampler import LatencyLimits
from profiler.meters.torch_profile import OperationTimes, count_kernels, operation_times
from profiler.modules.described import description_of, executed_classes
from profiler.modules.registry import STEPLESS
from profiler.records.grades import undisturbed
from profiler.records.measurement import Measurement, divide
from profiler.records.quantities import read_by
from profiler.records.reading import (
    DeviceLost,
    Measured,
    MeasureError,
    Reading,
    Unavailable,
    reason_of,
    taken_once,
)
from profiler.records.words import PHASES
from profiler.run.called import Called, Peers, called_by, fvcore_of, on_meta, parameters_of
from profiler.run.hardware_counters import hardware_counts
from profiler.run.plain import PlainModule
from profiler.run.prepare import PreparedCall, prepare
from profiler.run.request import Request, record_of
from profiler.run.subject import subject


def measure(
    request: Request,
    *,
    limits: LatencyLimits | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> Measurement:
    """Measure one implementation: operations, memory, time, energy, hardware counters if asked for.

    Args:
        limits: the stopping rules of latency.
        note: receives the name of each step, for a progress bar.

    Raises:
        MeasureError: the implementation cannot run this phase, dtype or size at all.
    """
    return _prepare_and_take(
        request, note, lambda work: _measurement_of(request, work, limits, note)
    )


def count(
    request: Request,
    *,
    limits: LatencyLimits | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> Measurement:
    """Count one implementation without a clock: its operations, the figures of other counters, and
    bytes. Return the record. A large module or a long call (`LARGE`, `MANY`, `LONG_S`) is counted
    on the meta device, without values, if its counts need none.

    Args:
        limits: ignored, as no latency is sampled; the signature is that of `measure`.
        note: receives the name of each step, for a progress bar.

    Raises:
        MeasureError: the implementation cannot run this phase, dtype or size at all.
    """
    listed: list[Measured] = []  # one entry: the tensors at the peak, or why they are unknown
    took: list[float] = []  # one entry: seconds of processor time
    # from the meta device: `without_values`, what the call dispatches, with the figures of all
    # other counters if `counted_all`; `held`, the tensors at the peak, or why no run is made for
    # these alone (from `MOST` operations on); None: from runs with values
    with on_device(request.device):
        operations = operations_of(request)
        large = parameters_of(request) >= LARGE or operations >= MANY
        without_values = on_meta(request) if large else None
        counted_all = without_values is not None and {*PEERS} <= {*without_values.peers}
        held = held_on_meta(request) if without_values is not None else None
        if held is None and counted_all and operations >= MOST:
            held = NEEDS_VALUES

    def first(work: PreparedCall) -> None:
        """Put the tensors at the peak into `listed`, and the seconds of the first call, by which
        `counts` chooses the meta device, into `took`: 0 if `held`, and no call if `counted_all`."""
        note("counting what is held")
        if held is not None:
            listed.append(held)
            took.append(0.0)
            if not counted_all:
                work.once()
            return
        began = process_time()
        listed.append(tensors_at_peak(work, request))
        if isinstance(listed[0], Unavailable):
            work.once()
        took.append(process_time() - began)

    def counts(work: PreparedCall) -> Measurement:
        """Make the record of the counts."""
        called = without_values
        if not large and took[0] >= LONG_S:
            called = on_meta(request)
        return _counts_of(request, work, note, listed[0], called)

    prepared = replace(request, drawn=without_values is None)  # else parameters need no numbers
    return _prepare_and_take(prepared, note, counts, first)


LONG_S = 1.0
"""A call of this many seconds of processor time, which other programs do not lengthen, is counted
on the meta device, which takes no longer for large tensors."""
LARGE = 10_000_000
"""A call of a module of this many parameters is counted on the meta device before the module is
made: if the count depends on no values, the parameters need no drawing."""
MANY = 10**9
"""A call of this many operations, by its equations, is counted on the meta device first."""
MOST = 10**11
"""A call of this many operations takes seconds: it is not run for its memory alone."""
NEEDS_VALUES = Unavailable(
    "a run with values would take long, and without values the bytes that a kernel allocates for "
    "itself are not seen: leave out --counts-only"
)


def time_again(
    request: Request,
    *,
    limits: LatencyLimits | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> Measurement:
    """Measure the hot latency (of calls one after another) of one implementation alone, and return
    the record; meant for a fresh process. `limits` are the stopping rules of latency; `note`
    receives the name of each step. Raises MeasureError: the implementation cannot run this phase,
    dtype or size at all."""

    def timed(work: PreparedCall) -> Measurement:
        """Make the record of the latency alone: in seconds, or why it is missing."""
        note("measuring latency")
        call, reset = work.timed()
        found = latency(
            call,
            device=request.device,
            reset=reset,
            reset_is_trivial=work.trivial,  # so short that calls may share a timed region
            limits=limits,
        )
        return _record(request, {"latency": work.noted(found)}, {"seed": request.seed})

    return _prepare_and_take(request, note, timed)


def _prepare_and_take(
    request: Request,
    note: Callable[[str], None],
    take: Callable[[PreparedCall], Measurement],
    warm_up: Callable[[PreparedCall], Any] = PreparedCall.once,
) -> Measurement:
    """Prepare the request's call, and return the record that `take` makes of it after a first call
    (`warm_up`), with the state of the device before the call was prepared; `note` receives the name
    of each step. Raises MeasureError: the implementation cannot mix one new token though the
    request is for one, or preparing, the first call or `take` fails."""
    note("building")
    require_token(request)
    with on_device(request.device):
        before = current_state(request.device)
        try:
            with as_exception():
                work = prepare(request)
                warm_up(work)
        except Exception as error:  # a module of a user's own may raise anything
            raise MeasureError(_with_candidate(request, failure(error))) from error
        try:
            with as_exception():
                found = take(work)
        except MeasureError:
            raise
        except Exception as error:  # a later call may fail where the first did not
            raise MeasureError(_with_candidate(request, failure(error))) from error
    return structs.replace(found, environment={**found.environment, "state_before": before})


def require_token(request: Request) -> None:
    """Raise MeasureError if one new token is asked for and the implementation cannot mix one.

    The message names the implementation if its class lacks `step`; a reason that follows from the
    equations holds for all implementations, so that the message names the mixer alone.
    """
    if phase_name(request.phase) != "inference":
        return
    if reason := subject(request.mixer).without_token(request.implementation):
        sentence = f"{reason}, so that one new token cannot be measured"
        own = _with_candidate(request, sentence)
        raise MeasureError(own if reason == STEPLESS else f"{request.mixer.name}: {sentence}")


def _measurement_of(
    request: Request, work: PreparedCall, limits: LatencyLimits | None, note: Callable[[str], None]
) -> Measurement:
    """Measure everything of the prepared call: operations, the figures of other counters, memory,
    time, energy, and hardware counters if asked for. Return the record."""
    dispatched, peers, counts, measured = counted(work, request, note)
    note("measuring memory")
    measured = {"peak_memory": peak_of_call(work, request.device)} | measured
    measured |= metered(work, request, dispatched, limits, note)
    printed, readings = profiled(work, request, dispatched, peers, measured, note)
    measured |= readings
    counts |= {"peers": printed, "seed": request.seed}
    return _record(request, measured, counts)


COUNTS_ONLY = Unavailable("only counts were asked for (--counts-only)")


def _counts_of(
    request: Request,
    work: PreparedCall,
    note: Callable[[str], None],
    listed: Measured,
    called: Called | None,
) -> Measurement:
    """Count the prepared call without a clock: operations, other counters' figures, and bytes.
    Return the record; readings that need a clock are missing, with the reason. `listed`: the
    tensors at the peak of the first call, or why there is no list; `called`: what the call
    dispatches, if a run on the meta device told."""
    dispatched, peers, counts, measured = counted(work, request, note, listed=listed, called=called)
    note("measuring memory")
    measured = {"peak_memory": peak_of_listed(measured, work, request.device)} | measured
    measured["kernels"] = kernels_of(work, request.device, dispatched)
    measured |= dict.fromkeys(read_by("clock", "energy"), COUNTS_ONLY)
    printed, missing = figures_of(peers, COUNTS_ONLY)
    counts |= {"peers": printed, "seed": request.seed}
    return _record(request, measured | missing, counts)


def _record(
    request: Request, measured: Mapping[str, Measured], counts: Mapping[str, Any]
) -> Measurement:
    """Make the record of a request from `measured` (name -> reading, or why it is missing) and
    counts, with this machine's environment and a label on each reading that is below its floor."""
    readings, reasons = divide(measured)
    facts = environment(request.device) | tools(counts)
    found = record_of(request, readings=readings, reasons=reasons, counts=counts, environment=facts)
    return subject(request.mixer).flagged(found)


def counted(
    work: PreparedCall,
    request: Request,
    note: Callable[[str], None],
    *,
    listed: Measured | None = None,
    called: Called | None = None,
) -> tuple[DispatchCounts, Peers, dict[str, Any], dict[str, Measured]]:
    """Take the figures of the prepared call that need no clock.

    Args:
        listed: the tensors at the peak; by default they are listed in a further run.
        called: the operations that the call dispatches; by default they are counted in a run.

    Returns:
        The dispatched operations; the figures of other counters; the `counts` of a record as JSON
        values (`dispatch`, `zeros`: on zeros in place of gradients, `call` and, where there are
        any, `forward`, `hardware`, `traced` without equations); and the readings, or their reasons.
    """
    phase = phase_name(request.phase)
    note("counting operations")
    called = called or called_by(work)
    peers = called.peers
    if "fvcore" not in peers:
        peers = {**peers, "fvcore": fvcore_of(work)}
    note("tracing")
    traced = subject(request.mixer).traced(phase, request.sizes)
    note("counting what is held")
    measured: dict[str, Measured] = {
        "tensors_at_peak": listed or tensors_at_peak(work, request),
        "activations": activation_bytes(work, request),
        "weights": weight_bytes(work.module),
        "state": state_bytes(work, phase),
    }
    hardware, read = hardware_of(work, request, note)
    measured |= read
    counts: dict[str, Any] = {
        "dispatch": called.dispatched.to_json(),
        "zeros": called.zeros.to_json(),
        "call": {**work.details, **called.details},
    }
    if called.forward:
        counts["forward"] = called.forward
    if isinstance(traced, Unavailable):
        measured["traced"] = traced
    elif traced is not None:
        counts["traced"] = traced.to_json()
    return called.dispatched, peers, counts | hardware, measured


def profiled(
    work: PreparedCall,
    request: Request,
    dispatched: DispatchCounts,
    peers: Peers,
    measured: Mapping[str, Measured],
    note: Callable[[str], None],
) -> tuple[dict[str, Any], dict[str, Measured]]:
    """Take the figures of the prepared call that need torch's profiler.

    Returns:
        Name of another counter -> its figures as JSON values, with the share of the time spent in
        operations that the counter does not count; and the readings: `kernels`, and `peer NAME`
        with the reason for each counter without figures.

    Call it last: the profiler stays attached to a GPU for a while and slows every launch. The share
    is None if the latency was disturbed. If an earlier reading left the device unusable
    (`lost_in`), that reading is the reason why `kernels` is missing, and every share is None.
    """
    note("sharing out the time")
    times: OperationTimes | Unavailable
    kernels: Measured
    lost = lost_in(measured)
    if lost is not None:
        times = kernels = lost
    else:
        kernels = kernels_of(work, request.device, dispatched)
        on_gpu = request.device.startswith("cuda")
        times = NOT_QUIET
        if not is_busy(measured.get("latency")):
            times = operation_times(work.bare, reset=work.reset, cuda=on_gpu)
    printed, missing = figures_of(peers, times)
    return printed, {"kernels": kernels, **missing}


def figures_of(
    peers: Peers, times: OperationTimes | Unavailable
) -> tuple[dict[str, Any], dict[str, Measured]]:
    """Two dicts about the counters of torch and fvcore (`peers`): name -> figures as JSON values,
    with the share of the time (by `times`) spent in operations that the counter does not count; and
    `peer NAME` -> the reason, for each counter without figures."""
    printed = {n: peer_json(p, times) for n, p in peers.items() if isinstance(p, PeerCount)}
    return printed, {f"peer {n}": p for n, p in peers.items() if isinstance(p, Unavailable)}


def hardware_of(
    work: PreparedCall, request: Request, note: Callable[[str], None]
) -> tuple[dict[str, Any], dict[str, Measured]]:
    """Read the hardware counters, and return {"hardware": the hardware's counts as JSON values,
    with the matrix products that the call dispatches}, and the moved bytes as readings; if nothing
    was read, {} and {"hardware": the reason}."""
    found = hardware_counts(request, note)
    if isinstance(found, Unavailable):
        return {}, {"hardware": found}
    work.restore()
    products = [list(astuple(product)) for product in products_of(work.bare)]
    return {"hardware": found.to_json() | {"products": products}}, found.readings()


def metered(
    work: PreparedCall,
    request: Request,
    dispatched: DispatchCounts,
    limits: LatencyLimits | None,
    note: Callable[[str], None],
) -> dict[str, Measured]:
    """Measure time and energy of the call, compiled by torch.compile if the request says so, and
    return a dict: name -> reading, or why it was not measured, for instance that compiling failed,
    that the device was lost, or that energy was not asked for.

    `dispatched`: the operations of the call, from which the time of its launches is estimated;
    `limits`: when sampling stops (None: the defaults)."""
    measured: dict[str, Measured] = {}
    if request.compile:
        note("compiling")
        work, measured["compile"] = compiled_work(work, request, limits)
    if isinstance(failed := measured.get("compile"), Unavailable):
        return measured | dict.fromkeys(read_by("clock", "energy"), failed)
    note("measuring latency")
    measured |= latencies_of_work(work, request, dispatched, limits)
    note("measuring energy")
    lost = lost_in(measured)
    return measured | (dict.fromkeys(ENERGIES, lost) if lost else energies_of_work(work, request))


def tools(counts: Mapping[str, Any]) -> dict[str, str]:
    """The versions of other programs that took part in the measurement: of ncu, if hardware
    counters were read; else {}."""
    return {"ncu": counts["hardware"]["ncu"]} if "hardware" in counts else {}


def failure(error: Exception) -> str:
    """A sentence on why a call failed: a ValueError's own message, of others `failure_words`."""
    return reason_of(error) if isinstance(error, ValueError) else failure_words(error)


def _with_candidate(request: Request, reason: str) -> str:
    return f"{request.mixer.name} {request.implementation.name} ({request.dtype}): {reason}"


def peer_json(peer: PeerCount, times: OperationTimes | Unavailable) -> dict[str, Any]:
    """A counter's figures, with the share of the time spent in operations that it did not count;
    None if the operations were not timed."""
    share = None if isinstance(times, Unavailable) else times.share(peer.uncounted)
    return peer.to_json() | {"uncounted_time_share": share}


def weight_bytes(module: nn.Module) -> Reading:
    """Bytes of the parameters, which exist before any call."""
    held = sum(p.numel() * p.element_size() for p in module.parameters())
    return taken_once("weights", held)


def state_bytes(work: PreparedCall, phase: str = "training") -> Measured:
    """Measure the bytes of a decoding state's valid rows after one new token; `allocated` in the
    details are the bytes of all its rows. Unavailable without a state (as in a `phase` that is not
    inference), or if the state does not tell its valid rows."""
    if work.state is None:
        return Unavailable(f"a {PHASES[phase]} keeps no state between tokens")
    if not hasattr(work.state, "held"):
        return Unavailable("the state has no method `held`, which gives its valid rows")
    work.once()
    valid, allocated = (
        sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        for tensors in (map(work.state.held, work.state.arrays), work.state.arrays.values())
    )
    return taken_once("state", valid, {"allocated": allocated})


def owned(work: PreparedCall) -> list[torch.Tensor]:
    """The module's parameters and buffers."""
    return [*work.module.parameters(), *work.module.buffers()]


RELEASES_UNSEEN = (
    "a backward pass releases tensors that the forward pass kept, and on a CPU the release of "
    "earlier tensors is not recorded: measure the training step"
)


def peak_of_call(work: PreparedCall, device: str) -> Measured:
    """The peak memory of the call, or why it is unknown (a backward pass alone, on a CPU)."""
    if not (work.trivial or device.startswith("cuda")):
        return Unavailable(RELEASES_UNSEEN)
    return peak_memory(work.bare, device=device, reset=work.reset)


def peak_of_listed(measured: Mapping[str, Measured], work: PreparedCall, device: str) -> Measured:
    """The call's peak memory in bytes: `NEEDS_VALUES` if the list was refused for it; that of
    `peak_of_call` on a GPU or without a list; else that of the run that listed the tensors."""
    listed = measured["tensors_at_peak"]
    if listed == NEEDS_VALUES:
        return listed
    if isinstance(listed, Unavailable) or device.startswith("cuda"):
        return peak_of_call(work, device)
    method = listed.details.get("method", "torch.profiler")
    return taken_once("peak_memory", listed.value, {"method": method, "runs": 1})


def tensors_at_peak(work: PreparedCall, request: Request) -> Measured:
    """Measure the largest number of bytes that the call holds at once, by the allocator, in a
    separate run; in the details are the tensors alive at that moment. A call that leaves tensors
    besides its result, such as a first one that fills a cache, is listed once more. Unavailable for
    one new token, for a backward pass alone, or if the call fails."""
    if phase_name(request.phase) == "inference":
        return Unavailable("the memory of one new token is its state: its tensors are not listed")
    if not work.trivial:  # the reset of a backward pass alone, a forward pass, is long
        return Unavailable(
            "a backward pass also holds the tensors of its forward pass: measure the training step"
        )

    def named(result: Any) -> dict[str, torch.Tensor]:
        """The tensors that a call leaves, by name: gradients, and its `result`."""
        held = {**dict(work.module.named_parameters()), **inputs_of(work)}
        found = {f"{name}.grad": t.grad for name, t in held.items() if t.grad is not None}
        return found | ({"result": result} if isinstance(result, torch.Tensor) else {})

    try:
        for _ in range(2):
            work.restore()
            found = most_alive(work.bare, torch.device(request.device).type, named)
            if not found.left:
                break
    except Exception as error:  # a module of a user's own may raise anything
        return Unavailable(f"the module failed while its tensors were listed: {reason_of(error)}")
    return taken_once("tensors_at_peak", found.total, found.to_json())


META = "live ranges of storages on the meta device, equal to those of runs of fewer tokens"
"""The method of a list of tensors that no call with values made."""
SHORT = (31, 64)
"""A list of tensors from the meta device is compared with those of runs of so many tokens, with the
request's other sizes: another width may call another kernel."""


def held_on_meta(request: Request) -> Measured | None:
    """The tensors at the peak of a forward pass on a CPU, from a run on the meta device, without
    values. None for another phase or device, for 64 tokens or fewer, if the module fails there, or
    if at `SHORT` tokens the list differs (`alike`) from that of a run with values, for instance
    because a kernel allocates bytes for itself."""
    phase = phase_name(request.phase)
    length = request.sizes["l"]
    if torch.device(request.device).type != "cpu" or phase != "training" or length <= SHORT[-1]:
        return None

    def listed(one: Request, device: str) -> Measured:
        asked = replace(one, device=device)
        return tensors_at_peak(prepare(asked), asked)

    try:
        with as_exception():
            for tokens in SHORT:
                short = replace(request, sizes={**request.sizes, "l": tokens})
                run, meta = (listed(short, device) for device in (request.device, "meta"))
                if not alike(run, meta):
                    return None
            found = listed(request, "meta")
    except Exception:  # a module of a user's own may raise anything
        return None
    if not isinstance(found, Reading):
        return None
    return taken_once("tensors_at_peak", found.value, {**found.details, "method": META})


def alike(run: Measured, meta: Measured) -> bool:
    """Whether two lists of tensors exist, with equal bytes at the peak and tensors that are equal
    in all but the shapes as which operations read the bytes; the order is free."""

    def rows(listed: Reading) -> dict[tuple[Any, ...], int]:
        found: Counter[tuple[Any, ...]] = Counter()
        for row in listed.details["tensors"]:
            kept = {key: v for key, v in row.items() if key not in ("shape", "views", "number")}
            found[tuple(sorted(kept.items()))] += row.get("number", 1)
        return found

    if not (isinstance(run, Reading) and isinstance(meta, Reading)):
        return False
    return run.value == meta.value and rows(run) == rows(meta)


def operations_of(request: Request) -> int:
    """The number of operations of a request's call, by the equations that its module executes; 0
    without equations, without a formula of them, or if the sizes do not fit."""
    if isinstance(request.mixer, PlainModule):
        return 0
    try:
        described = description_of(request.mixer, request.implementation, request.phase)
        return sum(
            executed_classes(request.mixer, described, request.phase, request.sizes).values()
        )
    except (ValueError, Unsupported, Unanswered):
        return 0


def inputs_of(work: PreparedCall) -> dict[str, torch.Tensor]:
    """A dict: name -> input tensor of the call."""
    return dict(zip(work.names, work.args, strict=True))


def activation_bytes(work: PreparedCall, request: Request) -> Measured:
    """Measure the bytes that the forward pass keeps for the backward pass, without parameters; in
    the details are the tensors. Unavailable without a backward pass, or if the call fails."""
    if work.forward is None:
        return Unavailable("nothing is kept for a backward pass: the call takes no gradients")
    kind = torch.device(request.device).type
    try:
        found = kept(work.forward, kind, owned(work), inputs_of(work))
    except Exception as error:  # a module of a user's own may raise anything
        return Unavailable(f"could not list the tensors kept for backward: {reason_of(error)}")
    return taken_once("activations", found.total, found.to_json())


def kernels_of(work: PreparedCall, device: str, dispatched: DispatchCounts) -> Measured:
    """Launched kernels: by CUPTI on a GPU; on a CPU the dispatched operations other than views."""
    if device.startswith("cuda"):
        return count_kernels(work.bare, reset=work.reset)
    method = "dispatched non-view operations"
    return taken_once("kernels", float(dispatched.launched), {"method": method})


def latencies_of_work(
    work: PreparedCall, request: Request, dispatched: DispatchCounts, limits: LatencyLimits | None
) -> dict[str, Measured]:
    """Measure the call's latency: hot (calls one after another), cold (caches emptied before) and
    as a CUDA graph. Return a dict: name -> reading, or the reason why there is none. The reading
    `launch_estimate` is the time to launch the call's operations (`dispatched`); it is missing if
    the device was busy or lost, or if the call is compiled, so that the number of its launches is
    unknown. Times are in seconds; the graph replays `work.bare`, with one set of inputs."""
    call, reset = work.timed()
    found = latency_kinds(
        call,
        device=request.device,
        reset=reset,
        reset_is_trivial=work.trivial,
        launches=0 if request.compile else dispatched.launched,
        limits=limits,
        still=work.bare,
    )
    readings = {name: work.noted(measured) for name, measured in found.items()}
    launches: Measured | None = Unavailable(OF_ITS_OWN) if request.compile else lost_in(readings)
    if launches is None:
        busy = is_busy(readings["latency"])
        launched = dispatched.launched
        launches = NOT_QUIET if busy else launch_estimate(request.device, launched, limits)
    return readings | {"launch_estimate": launches}


NOT_QUIET = Unavailable("the device was not quiet while the call was timed")


def is_busy(latency: Measured | None) -> bool:
    """Whether a time was measured while other programs disturbed the device. A time of one sample
    without a sign of others is not busy."""
    return isinstance(latency, Reading) and not undisturbed(latency)


def lost_in(measured: Mapping[str, Measured]) -> DeviceLost | None:
    """The first reading that left the device unusable, so that no other may follow, or None."""
    return next((m for m in measured.values() if isinstance(m, DeviceLost)), None)


def launch_estimate(device: str, launched: int, limits: LatencyLimits | None = None) -> Measured:
    """Estimate the seconds to launch `launched` operations: this number times the measured latency
    of adding one element, or why that latency is unknown. `limits` may shorten the 0.3 s of timing.

    The true time may be less: a nested operation launches faster.
    """
    # 0.3 s are enough samples of the smallest operation
    one = torch.ones(1, device=device)
    target = torch.empty(1, device=device)
    seconds = min(0.3, limits.max_seconds) if limits else 0.3
    brief = LatencyLimits(max_seconds=seconds, warmup_seconds=0.1)
    smallest = latency(lambda: torch.add(one, one, out=target), device=device, limits=brief)
    if isinstance(smallest, Unavailable):
        return smallest
    details = {"operations": launched, "smallest_operation_s": smallest.value}
    return taken_once("launch_estimate", smallest.value * launched, details)


OF_ITS_OWN = "a compiled call launches generated kernels, whose number is not counted"


def compiled_work(
    work: PreparedCall, request: Request, limits: LatencyLimits | None
) -> tuple[PreparedCall, Measured]:
    """Compile the call by torch.compile, and return (the compiled call, the seconds of compiling);
    if compiling fails, (the call as it was, the reason)."""
    made = compile_call(work.fn, work.args, device=request.device, reset=work.reset, limits=limits)
    if isinstance(made, Unavailable):
        return work, made
    return replace(work, fn=made.fn), made.reading


NO_STEADY_LOAD = (
    "energy needs a steady load of calls, but a forward pass precedes each of these: measure the "
    "training step, and the forward pass"
)


ENERGIES = read_by("energy")
NO_ENERGY = Unavailable("energy was not asked for (--energy)")


def energies_of_work(work: PreparedCall, request: Request) -> dict[str, Measured]:
    """Measure gross and net energy (J) and mean power (W) of a call, and return a dict: each name
    in `ENERGIES` -> its reading, or why there is none: energy was not asked for, a forward pass
    precedes each call (no steady load), there is no meter, or, unless the request says that the
    board is `shared`, other processes use it."""
    if not request.energy:
        return dict.fromkeys(ENERGIES, NO_ENERGY)
    if not work.trivial:
        return dict.fromkeys(ENERGIES, Unavailable(NO_STEADY_LOAD))
    call, reset = work.timed()
    limits = EnergyLimits.asked(request.energy_window_s, request.energy_trials)
    found = energy(call, device=request.device, reset=reset, limits=limits, force=request.shared)
    measured = work.noted(found)
    if isinstance(measured, Unavailable):
        return dict.fromkeys(ENERGIES, measured)
    return {reading.name: reading for reading in energy_readings(measured)}
