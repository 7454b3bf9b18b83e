"""Why does a module keep and hold other bytes than its equations do? Every gap with its cause.

What the equations keep, or hold at most, is counted again under each switch of the
implementation's description; what was measured is told apart by class. Values that are left over,
or missing, are unexplained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from costmodel.domains import Exact, Unsupported
from costmodel.equations import Mixer, System
from costmodel.expressions import Array
from costmodel.polynomial import Poly
from costmodel.rules.activations import activations
from costmodel.rules.peak import Held, held_arrays, peak, steps_of
from costmodel.rules.traffic import BYTES
from costmodel.tokens import TRAINING_STEP, Unanswered, system_of
from profiler.ladders.keeping import CLASSES
from profiler.ladders.ladder import Memory, MemoryCause
from profiler.meters.interface import Reading
from profiler.store import Measurement

Rewrites = tuple[str, ...]
Steps = Sequence[tuple[str, str, str, Rewrites]]
"""Name and meaning of each switch, then the form and the rewrites when it is turned, too."""

NOTHING_KEPT = "only a phase with gradients keeps anything for a backward pass"
APART = {
    "inference": "the memory of one new token is its state, and what one row needs",
    "backward": "what the forward pass kept was there before: compare the training step",
}
"""Phase -> why its peak is not compared."""

THERE_BEFORE = "inputs, and the gradient of the output: they were there before the call"
MADE = "gradients of parameters, which stand apart in the equations' peak: held once they are there"
INSIDE = "what the allocator gave beside all tensors: room that an operation takes for itself"
UNSEEN = "alive after the forward pass and unknown to autograd's hooks"


def memory(measurement: Measurement, mixer: Mixer, steps: Steps, phase: str) -> dict[str, Memory]:
    """What lies between the equations' memory and what was measured, by quantity.

    Args:
        steps: the switches that lead from the mixer's default form to the implementation, in order.
    """
    return {
        "activations": _activations(measurement, mixer, steps, phase),
        "peak": _peak(measurement, mixer, steps, phase),
    }


def _activations(measurement: Measurement, mixer: Mixer, steps: Steps, phase: str) -> Memory:
    if phase not in TRAINING_STEP:
        return Memory(reason=NOTHING_KEPT)

    def count(form: str, rewrites: Rewrites) -> int:
        found = activations(mixer, form, ("strict", *rewrites))
        return found.at(**measurement.sizes) * BYTES[measurement.dtype]

    found = _derived(count, mixer.default_form, steps)
    reading = measurement.readings.get("activations")
    if isinstance(found, str) or reading is None:
        missing = measurement.reasons.get("activations", "activations were not measured")
        return _half(found, reading, missing)
    causes = [*found[1], *_classes(reading.details["classes"])]
    if unseen := reading.details.get("unseen"):
        causes.append(MemoryCause("unseen", round(unseen), UNSEEN))
    return Memory(found[0], round(reading.value), tuple(causes))


def _peak(measurement: Measurement, mixer: Mixer, steps: Steps, phase: str) -> Memory:
    if phase in APART:
        return Memory(reason=APART[phase])
    size, sizes = BYTES[measurement.dtype], measurement.sizes

    def count(form: str, rewrites: Rewrites) -> int:
        return held_in_turn(system_of(mixer, form, rewrites, phase), phase, sizes) * size

    found = _derived(count, mixer.default_form, steps)
    reading = measurement.readings.get("peak_memory")
    if isinstance(found, str) or reading is None:
        missing = measurement.reasons.get("peak_memory", "peak memory was not measured")
        return _half(found, reading, missing)
    apart = peak(mixer, phase).at(**sizes) * size
    before = sum(_entries(array, sizes) for array in _given(mixer, phase)) * size
    causes = [MemoryCause("there before", -before, THERE_BEFORE)]
    if made := found[0] - apart:
        causes.append(MemoryCause("gradients of parameters", made, MADE))
    causes += found[1]
    if (tensors := measurement.readings.get("tensors_at_peak")) is not None:
        causes += _classes(tensors.details["classes"])
        if inside := round(reading.value - tensors.value):
            causes.append(MemoryCause("inside operations", inside, INSIDE))
    return Memory(apart, round(reading.value), tuple(causes))


def held_in_turn(system: System, phase: str, sizes: Mapping[str, int]) -> int:
    """The largest live set of a phase in elements, each gradient of a parameter held from the
    equation that gives it on."""
    order = steps_of(system, phase)
    held = [*held_arrays(system, phase, order)]
    written = {e.array: k for k, step in reversed([*enumerate(order)]) for e in step}
    for array in system.results(phase) & system.weights:
        entries = Exact.of(Poly.of(1))
        for extent in array.shape:
            entries = entries * extent
        held.append(Held(array, entries, written[array], len(order) - 1, once=True))
    sums = [0] * len(order)
    for one in held:
        number = one.number.at(sizes) * (1 if one.once else sizes["b"])
        for k in range(one.first, one.last + 1):
            sums[k] += number
    return max(sums)


def _given(mixer: Mixer, phase: str) -> Iterator[Array]:
    """What is there before a call, as the equations' peak has it: the gradient of the output is as
    large as the output."""
    yield mixer.role("input")
    yield from mixer.contexts
    if phase in TRAINING_STEP:
        yield mixer.role("output")


def _entries(array: Array, sizes: Mapping[str, int]) -> int:
    """Entries for all sequences."""
    number = sizes["b"]
    for extent in array.shape:
        number *= extent.at(sizes)
    return number


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
            yield MemoryCause(name, round(number), CLASSES[name])
