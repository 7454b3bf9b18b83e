"""Why does a module keep and hold other bytes than its equations do? Every gap with its cause.

What the equations keep, or hold at most, is counted again under each switch of the
implementation's description; what was measured is told apart by class. Values that are left over,
or missing, are unexplained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from costmodel.errors import EquationError, Unanswered, Unsupported
from costmodel.language.equations import Mixer
from costmodel.program.phases import TRAINING_STEP
from costmodel.questions.activations import activations
from costmodel.questions.peak import peak, there_before
from costmodel.questions.question import BYTES
from costmodel.questions.subject import system_of
from profiler.meters.memory.keeping import CLASSES, HELD_ON, SUMMED
from profiler.reconcile.allocations.schedule import Schedule, held_in_turn, schedules
from profiler.reconcile.levels import Memory, MemoryCause
from profiler.records.measurement import Measurement
from profiler.records.reading import Reading

Rewrites = tuple[str, ...]
Steps = Sequence[tuple[str, str, str, Rewrites]]
"""Name and meaning of each switch, then the form and the rewrites when it is turned, too."""

NOTHING_KEPT = "only a phase with gradients keeps anything for a backward pass"
APART = {
    "inference": "the memory of one new token is its state, and what one row needs",
    "backward": "what the forward pass kept was there before: compare the training step",
}
"""Phase -> why its peak is not compared."""

THERE_BEFORE = (
    "the inputs and the gradient of the output: they lie in memory before the call begins"
)
MADE = "gradients of parameters, which the equations' peak leaves out: each is held once it is made"
RENAMED = (
    "arrays that an equation only sets equal to other kept arrays: the same bytes, counted once"
)
HOW = {
    HELD_ON: (
        "still allocated after its last use, because a variable of the program or the autograd "
        "graph refers to it"
    ),
    SUMMED: (
        "sums without an array of their own: autograd adds a gradient to the one before it in "
        "place, and a linear map adds its bias to the product in place"
    ),
}
PADDED = "the gradients of the zeros around an array, which are computed and dropped"
INSIDE = (
    "workspace of operations: the measured peak of the allocator less the measured peak of all "
    "tensors; nothing derives it"
)
UNSEEN = (
    "bytes that are alive after the forward pass and that autograd's hooks do not report: a "
    "difference of two measurements; nothing derives it"
)


def memory(
    measurement: Measurement,
    mixer: Mixer,
    steps: Steps,
    phase: str,
    kernels: Mapping[str, str],
    rewrites: Rewrites,
    unbound: tuple[str, ...] = (),
) -> dict[str, Memory]:
    """What lies between the equations' memory and what was measured, by quantity.

    Args:
        steps: the switches that lead from the mixer's default form to the implementation, in order.
        kernels: array -> the kernel class that carries it.
        rewrites: those of the implementation with the ones that put zeros around arrays: what is
            kept of these is measured, and what is computed for them is counted.
        unbound: the parameters whose slices one operation takes.
    """
    return {
        "activations": _activations(measurement, mixer, steps, phase),
        "peak": _peak(measurement, mixer, steps, phase, kernels, rewrites, unbound),
    }


def _activations(measurement: Measurement, mixer: Mixer, steps: Steps, phase: str) -> Memory:
    if phase not in TRAINING_STEP:
        return Memory(reason=NOTHING_KEPT)

    def count(form: str, rewrites: Rewrites, *, renamed: bool = False) -> int:
        found = activations(mixer, form, ("strict", *rewrites), renamed=renamed)
        return found.at(**measurement.sizes) * BYTES[measurement.dtype]

    found = _derived(count, mixer.default_form, steps)
    reading = measurement.readings.get("activations")
    if isinstance(found, str) or reading is None:
        missing = measurement.reasons.get("activations", "activations were not measured")
        return _half(found, reading, missing)
    form, rewrites = _last(mixer, steps)
    causes = [*found[1]]
    if twice := count(form, rewrites) - count(form, rewrites, renamed=True):
        causes.append(MemoryCause("renamed", -twice, RENAMED))
    causes += _classes(reading.details["classes"])
    if unseen := reading.details.get("unseen"):
        causes.append(MemoryCause("unseen", round(unseen), UNSEEN))
    return Memory(found[0], round(reading.value), tuple(causes))


def _last(mixer: Mixer, steps: Steps) -> tuple[str, Rewrites]:
    """The form and the rewrites that the switches lead to."""
    return (steps[-1][2], steps[-1][3]) if steps else (mixer.default_form, ())


def _peak(
    measurement: Measurement,
    mixer: Mixer,
    steps: Steps,
    phase: str,
    kernels: Mapping[str, str],
    rewrites: Rewrites,
    unbound: tuple[str, ...],
) -> Memory:
    if phase in APART:
        return Memory(reason=APART[phase])
    size, sizes = BYTES[measurement.dtype], measurement.sizes

    def count(form: str, rewrites: Rewrites, schedule: Schedule | None = None) -> int:
        return held_in_turn(system_of(mixer, form, rewrites, phase), phase, sizes, schedule) * size

    found = _derived(count, mixer.default_form, steps)
    reading = measurement.readings.get("peak_memory")
    if isinstance(found, str) or reading is None:
        missing = measurement.reasons.get("peak_memory", "peak memory was not measured")
        return _half(found, reading, missing)
    apart = peak(mixer, phase).at(**sizes) * size
    before = there_before(mixer, phase).at(sizes) * sizes["b"] * size
    causes = [MemoryCause("there before", -before, THERE_BEFORE)]
    if made := found[0] - apart:
        causes.append(MemoryCause("gradients of parameters", made, MADE))
    causes += found[1]
    form, last = _last(mixer, steps)
    own = list(schedules(kernels, unbound, lets_go=phase in TRAINING_STEP))
    otherwise, unasked = _otherwise(partial(count, form), (last, rewrites), own)
    causes += otherwise
    if (tensors := measurement.readings.get("tensors_at_peak")) is not None:
        causes += _classes(tensors.details["classes"])
        if inside := round(reading.value - tensors.value):
            causes.append(MemoryCause("inside operations", inside, INSIDE))
    return Memory(apart, round(reading.value), tuple(causes), unasked=unasked)


def _otherwise(
    count: Callable[..., int],
    rewrites: tuple[Rewrites, Rewrites],
    own: Sequence[tuple[str, str, Schedule]],
) -> tuple[list[MemoryCause], str]:
    """The re-counts of the equations' peak under an implementation's own schedule, and last with
    zeros around arrays; and, where a switch cannot be counted under, or operations cannot run in
    the order that a description says, which one and why: what comes after it stays unexplained."""
    plain, padded = rewrites
    switches = [(*switch, plain) for switch in own]
    switches.append(("padded", PADDED, switches[-1][2], padded))
    current = count(plain)
    found: list[MemoryCause] = []
    for name, meaning, schedule, applied in switches:
        try:
            after = count(applied, schedule)
        except (EquationError, Unsupported) as reason:
            return found, f"'{name}' could not be counted: {reason}"
        if after != current:
            found.append(MemoryCause(name, after - current, meaning))
        current = after
    return found, ""


def _derived(
    count: Callable[[str, Rewrites], int], form: str, steps: Steps
) -> tuple[int, list[MemoryCause]] | str:
    """What the equations have, and the re-counts that lead to the implementation's; or why not."""
    try:
        first = current = count(form, ())
        causes = []
        for name, meaning, inner, rewrites in steps:
            after = count(inner, rewrites)
            if after != current:
                causes.append(MemoryCause(name, after - current, meaning))
            current = after
    except (Unsupported, Unanswered) as reason:
        return str(reason)
    return first, causes


def _half(
    found: tuple[int, list[MemoryCause]] | str, reading: Reading | None, missing: str
) -> Memory:
    """One side alone, with the reason why the other is missing."""
    derived = None if isinstance(found, str) else found[0]
    measured = None if reading is None else round(reading.value)
    return Memory(derived, measured, reason=found if isinstance(found, str) else missing)


def _classes(found: Mapping[str, Any]) -> Iterator[MemoryCause]:
    """The classes of measured bytes that are no values."""
    for name, number in found.items():
        if name != "values" and number:
            yield MemoryCause(name, round(number), {**CLASSES, **HOW}[name])
