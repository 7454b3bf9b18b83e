"""The answers of the equations about the call of one record: all that a ladder asks costmodel.

A *description* (`Described`) says which form, rewrites and kernel classes an implementation
executes. A *peer* is another tool's counter of operations: torch's FlopCounterMode, or fvcore.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from costmodel.errors import Unanswered, Unsupported
from costmodel.language.equations import Mixer
from costmodel.program.conventions import FUSED_ATTENTION, PEERS, Peer
from costmodel.program.phases import TRAINING_STEP, phase_name
from costmodel.questions.activations import activations
from costmodel.questions.counting.peers import contraction_counts
from costmodel.questions.peak import peak, there_before
from costmodel.questions.question import BYTES
from costmodel.questions.subject import system_of
from costmodel.questions.traffic import traffic
from costmodel.symbolic.piecewise import Exact
from profiler.counting.operations import Classes
from profiler.counting.rules import nominal
from profiler.modules.described import (
    Described,
    class_differences,
    description_of,
    executed_classes,
    held_rewrites,
    switches_to,
)
from profiler.modules.registry import Implementation
from profiler.reconcile.arrays import Arrays
from profiler.reconcile.levels import Cause
from profiler.records.measurement import Measurement
from profiler.run.lower_bounds import readings_below

NOTHING_KEPT = "only a phase with gradients keeps tensors for a backward pass"
APART = {
    "inference": "the memory of one new token is its state and one row: ask for the state",
    "backward": "the call begins with the tensors of the forward pass: compare the training step",
}
"""Phase -> why the derived peak memory of the phase is not compared with the measured peak."""


@dataclass(frozen=True)
class Prediction:
    """The figure that a peer is predicted to print, in the peer's unit; or None and the `reason`.

    `causes` are (name, added operations): added to the total of rung 2, they give the figure.
    """

    figure: int | None = None
    causes: tuple[tuple[str, int], ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Held:
    """The bytes that the equations hold, and the arrays that hold the bytes. `reason` says why one
    of both is None; `compared` is false in a phase whose bytes are not compared with measured
    bytes."""

    bytes: int | None = None
    arrays: Arrays | None = None
    reason: str = ""
    compared: bool = True


@dataclass(frozen=True)
class Derived:
    """The answers of the equations about one call, at its sizes."""

    form: str
    phase: str
    sizes: Mapping[str, int]
    first: Classes
    """Rung 1: the operations of the equations, by class."""
    second: Classes
    """Rung 2: the operations of the equations as the implementation executes them."""
    causes: tuple[Cause, ...]
    """The re-counts between rung 1 and rung 2."""
    peers: Mapping[str, Prediction]
    moved: Mapping[str, int]
    """Bytes moved: `compulsory`, if every input is read and every result written once, and
    `unfused`, if every equation reads its operands from memory and writes its result to memory."""
    held: Mapping[str, Held]
    """`activations`: what is kept for the backward pass; `peak`: the largest live set."""
    below: Mapping[str, str]
    """Name of each reading that is below its lower bound -> a sentence."""


def derived(measurement: Measurement, mixer: Mixer, implementation: Implementation) -> Derived:
    """What the equations say of the call that a record measured, at its sizes: operations, what
    other counters should print, bytes moved and held, and readings below their lower bounds.

    Raises:
        Unanswered, Unsupported: the equations do not say how many operations the call executes, or
            how many bytes it moves.
    """
    printed = measurement.counts.get("peers", {})
    found = _of_call(
        mixer,
        implementation,
        phase_name(measurement.phase),
        tuple(measurement.sizes.items()),
        measurement.dtype,
        measurement.device.split(":")[0],
        frozenset(telltale_operations(measurement)),
        tuple(classes_seen(printed.get(name)) for name in PEERS),
    )
    return replace(found, below=readings_below(measurement, mixer, found.form))


@lru_cache(maxsize=4096)
def _of_call(
    mixer: Mixer,
    implementation: Implementation,
    phase: str,
    measured: tuple[tuple[str, int], ...],
    dtype: str,
    backend: str,
    telltale: frozenset[str],
    known: tuple[frozenset[str], ...],
) -> Derived:
    """What the equations say of a call at its sizes (`measured`: letter and number), without
    readings. The calls of one point, such as all rounds of a sweep, share one answer. `telltale`:
    the operations by which `description_of` knows the rewrites; `known`: the classes for which
    each counter in `PEERS` has a formula."""
    wanted = {*mixer.letters, "b"} | ({"t"} if phase == "inference" else set())
    every: dict[str, Any] = dict(measured)
    sizes = {k: v for k, v in measured if k in wanted}
    does = description_of(mixer, implementation, phase, telltale)
    first, second, causes = recounts(mixer, does, phase, sizes)
    return Derived(
        does.form,
        phase,
        sizes,
        first,
        second,
        causes,
        predictions(mixer, does, phase, sizes, backend, sum(second.values()), known),
        traffic(mixer, phase, does.form).at(dtype=dtype, **every),
        bytes_held(mixer, does, phase, dtype, every),
        {},
    )


def telltale_operations(measurement: Measurement) -> Collection[str]:
    """The names of torch operations that show which rewrites of the equations a module executes:
    without a backward pass all operations; with one, the forward pass's operations and the backward
    kernels, such as `aten::_softmax_backward_data`."""
    dispatched: Collection[str] = measurement.counts.get("dispatch", {}).get("by_op", ())
    if "forward" not in measurement.counts:
        return dispatched
    kernels = (name for name in dispatched if "_backward" in name)
    return {*measurement.counts["forward"], *kernels}


def recounts(
    mixer: Mixer, does: Described, phase: str, sizes: Mapping[str, int]
) -> tuple[Classes, Classes, tuple[Cause, ...]]:
    """(rung 1, rung 2, causes): the operations by class of the default form as published, those of
    the equations that the module executes (its description `does`), and what makes the difference.

    A switch is one change of form or one rewrite. The switches lead from the default form to
    `does`, for instance `form=stream`, then `safe-softmax`. The equations are counted again after
    each switch: a cause is the difference from the count before. A switch after which the equations
    cannot be counted forms one cause with the next switch. The last count is rung 2, so the causes
    add up to the whole gap; causes without a difference are left out.

    Raises:
        Unsupported: the equations cannot be counted before the first or after the last switch.
    """
    first = current = executed_classes(mixer, Described(mixer.default_form, ()), phase, sizes)
    causes: list[Cause] = []
    # `current` is the count after the first `turned` switches
    switches, turned = [*switches_to(mixer, does.form, does.rewrites)], 0
    for number, (_, _, form, rewrites) in enumerate(switches, 1):
        try:
            after = executed_classes(mixer, Described(form, rewrites), phase, sizes)
        except Unsupported:
            if number == len(switches):
                raise
            continue
        names, meanings, *_ = zip(*switches[turned:number], strict=True)
        counts = class_differences(after, current)
        causes.append(Cause(1, 2, " and ".join(names), counts, "; ".join(meanings)))
        current, turned = after, number
    return first, current, tuple(c for c in causes if c.counts)


def predictions(
    mixer: Mixer,
    does: Described,
    phase: str,
    sizes: Mapping[str, int],
    backend: str,
    total: int,
    known: Sequence[frozenset[str]],
) -> dict[str, Prediction]:
    """A dict: name of a peer (another project's operation counter) -> the `Prediction` of the total
    that the peer prints for the call, of which rung 2 has `total` operations; `known` has the
    classes of each peer (see `predict`). In a phase with gradients, or if the description `does`
    states no kernel class for some contraction, each prediction is only a reason."""
    if phase in TRAINING_STEP:
        of_gradients = "the count of {} for a backward pass is only measured, not derived"
        return {name: Prediction(reason=of_gradients.format(name)) for name in PEERS}
    system = system_of(mixer, does.form, does.rewrites, phase)
    unnamed = [name for name in contraction_counts(system, phase) if name not in does.kernels]
    if unnamed:
        return dict.fromkeys(PEERS, Prediction(reason=_unpredicted(unnamed, phase)))
    return {
        name: predict(peer, backend, mixer, does, phase, sizes, total, classes)
        for (name, peer), classes in zip(PEERS.items(), known, strict=True)
    }


def _unpredicted(unnamed: Sequence[str], phase: str) -> str:
    """The message that says why no figure is predicted: the contractions that define the arrays
    `unnamed` have no kernel class, which the module's @implementation would state."""
    where = "step_kernels=" if phase == "inference" else "kernels="
    them = "it" if len(unnamed) == 1 else "them"
    return (
        f"no kernel class for {', '.join(unnamed)}: name {them} in {where} of the module's "
        f"@implementation"
    )


def classes_seen(printed: Mapping[str, Any] | None) -> frozenset[str]:
    """{"fused-attention"} if a peer's printed figures include operations of fused attention, else
    {}. Only some versions of a peer have a formula for this kernel class."""
    names = () if printed is None else printed.get("by_op", ())
    fused = any(nominal(name) == "fused attention" for name in names)
    return frozenset({FUSED_ATTENTION} if fused else ())


def predict(
    peer: Peer,
    backend: str,
    mixer: Mixer,
    does: Described,
    phase: str,
    sizes: Mapping[str, int],
    total: int,
    known: Collection[str],
) -> Prediction:
    """Predict the total that a peer (another project's operation counter) prints for the call, by
    the peer's rule for the kernel class of each contraction, with the causes (name, added
    operations).

    Summed, the causes lead from the operations of the executed equations to the figure. Operations
    outside contractions, and contractions of classes that the peer does not count, are subtracted.
    For each other contraction masked pairs are added if the peer counts them, the peer's operations
    per product replace the strict count, and the figure is rounded.

    Args:
        backend: the device's type, `cpu` or `cuda`. does: what the module executes: form, rewrites,
            and a kernel class for each contraction.
        total: the operations of rung 2, of all classes.
        known: the classes for which this version of the peer has a formula.
    """
    system = system_of(mixer, does.form, does.rewrites, phase)
    causes: dict[str, int] = {}

    def add(cause: str, number: int) -> None:
        causes[cause] = causes.get(cause, 0) + number

    inside = predicted = 0
    for name, part in contraction_counts(system, phase).items():
        rule = peer.rule(does.kernels[name], backend, known)
        own = part.operations(sizes)
        inside += own
        if rule.per_product is None:
            add(rule.meaning, -own)
            continue
        seen = part
        if rule.masked:
            wide = system_of(mixer, does.form, ("dense", *does.rewrites), phase)
            seen = contraction_counts(wide, phase)[name]
            add("masked pairs are counted", seen.operations(sizes) - own)
        exact = int(seen.products(sizes) * rule.per_product)
        figure = rule.rounded(exact)
        add(rule.meaning, exact - seen.operations(sizes))
        add(f"{peer.name} rounds to {rule.digits} digits", figure - exact)
        predicted += figure
    add("operations outside contractions are not counted", inside - total)
    return Prediction(predicted, tuple((cause, n) for cause, n in causes.items() if n))


def bytes_held(
    mixer: Mixer, does: Described, phase: str, dtype: str, sizes: Mapping[str, int]
) -> dict[str, Held]:
    """A dict with the keys `activations` (kept for the backward pass) and `peak` (the most at one
    time) -> the bytes that the equations hold, and their arrays with shapes, by which tensors are
    named. The equations are rewritten as the description `does` says. If bytes or arrays are
    unknown, they are None with a reason."""
    rewrites = held_rewrites(does)

    def held(elements: Callable[[], int], apart: str) -> Held:
        """The bytes of `elements()`, and the arrays of the equations; `apart` is "" or the reason
        why the bytes are not compared, which is then all that is returned."""
        if apart:
            return Held(reason=apart, compared=False)
        number: int | None = None
        try:
            number = elements() * BYTES[dtype]
            # without "dense": the arrays' entries are unmasked, so that a dense tensor has more
            plain = tuple(name for name in rewrites if name != "dense")
            return Held(number, Arrays(system_of(mixer, does.form, plain, phase), sizes))
        except (Unsupported, Unanswered) as error:
            return Held(number, reason=str(error))

    return {
        "activations": held(
            lambda: activations(mixer, does.form, ("strict", *rewrites)).at(**sizes),
            "" if phase in TRAINING_STEP else NOTHING_KEPT,
        ),
        "peak": held(lambda: live_set(mixer, does, phase, sizes).at(sizes), APART.get(phase, "")),
    }


def live_set(mixer: Mixer, does: Described, phase: str, sizes: Mapping[str, int]) -> Exact:
    """The largest number of elements that one call of a module holds at one time, at these sizes:
    gradients of parameters included, arrays that exist before the call excluded. The mixer's
    equations are rewritten first as the module's description `does` says, such as by masked pairs
    that the module computes.

    Raises:
        Unanswered: a phase in `APART`, whose memory is not compared with a measured peak.
        Unsupported: an equation whose gradient is not derived.
    """
    if reason := APART.get(phase):
        raise Unanswered(reason)
    found = peak(mixer, phase, does.form, ("strict", *held_rewrites(does)))
    moment = max(found.moments, key=lambda m: m.at(sizes))
    before = there_before(mixer, phase) * sizes["b"]
    # a moment holds `each` elements per sequence, and `once` that all sequences share
    held = moment.each * sizes["b"] + moment.once
    return held + Exact.of(found.gradients) - Exact.of(before)
