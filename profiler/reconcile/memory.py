"""Which tensors hold the bytes that a module keeps, or holds at its worst moment, and which arrays
of the equations are these?

What the equations keep, or hold at most, stands first; then each tensor that was alive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from costmodel.errors import Unanswered, Unsupported
from costmodel.language.equations import Mixer
from costmodel.program.phases import TRAINING_STEP
from costmodel.questions.activations import activations
from costmodel.questions.peak import peak, there_before
from costmodel.questions.question import BYTES
from costmodel.questions.subject import system_of
from costmodel.symbolic.piecewise import Exact
from profiler.modules.described import Described, held_rewrites
from profiler.reconcile.arrays import Arrays, listed_tensor
from profiler.reconcile.levels import HeldMemory
from profiler.records.measurement import Measurement
from profiler.records.reading import Reading

NOTHING_KEPT = "only a phase with gradients keeps anything for a backward pass"
APART = {
    "inference": "the memory of one new token is its state, and what one row needs",
    "backward": "what the forward pass kept was there before: compare the training step",
}
"""Phase -> why its peak is not compared."""

NO_LIST = "the record lists no tensors: an earlier version made it; measure again"


def live_set(mixer: Mixer, does: Described, phase: str, sizes: Mapping[str, int]) -> Exact:
    """The equations' largest live set at these sizes in elements, as an implementation executes
    them: without what is there before the call, and with the gradients of parameters.

    Raises:
        Unanswered: a phase whose peak is not compared.
        Unsupported: an equation whose gradient is not derived.
    """
    if reason := APART.get(phase):
        raise Unanswered(reason)
    found = peak(mixer, phase, does.form, ("strict", *held_rewrites(does)))
    moment = max(found.moments, key=lambda m: m.at(sizes))
    before = there_before(mixer, phase) * sizes["b"]
    held = moment.each * sizes["b"] + moment.once
    return held + Exact.of(found.gradients) - Exact.of(before)


def memory(
    measurement: Measurement, mixer: Mixer, does: Described, phase: str
) -> dict[str, HeldMemory]:
    """What the equations hold and which tensors were held, by quantity."""
    size, sizes = BYTES[measurement.dtype], measurement.sizes

    def kept() -> int:
        found = activations(mixer, does.form, ("strict", *held_rewrites(does)))
        return found.at(**sizes) * size

    def at_most() -> int:
        return live_set(mixer, does, phase, sizes).at(sizes) * size

    rewrites = tuple(name for name in held_rewrites(does) if name != "dense")

    def held(derive: Callable[[], int], listed: str, told: str) -> HeldMemory:
        lists, reading = measurement.readings.get(listed), measurement.readings.get(told)
        derived = arrays = None
        reason = ""
        try:
            derived = derive()
            arrays = Arrays(system_of(mixer, does.form, rewrites, phase), sizes)
        except (Unsupported, Unanswered) as error:
            reason = str(error)
        if reading is None:
            reason = measurement.reasons.get(told, f"{told} was not measured")
        measured = figure(reading)
        if lists is None or "tensors" not in lists.details:
            why = NO_LIST if lists is not None else measurement.reasons.get(listed, NO_LIST)
            return HeldMemory(derived, measured, reason=reason or why)
        rows = tuple(listed_tensor(row, arrays) for row in lists.details["tensors"])
        beside = (lists.details["rounding"], lists.details["released"], round(lists.value))
        return HeldMemory(derived, measured, rows, *beside, reason)

    kept_by = HeldMemory(reason=NOTHING_KEPT)
    if phase in TRAINING_STEP:
        kept_by = held(kept, "activations", "activations")
    most = HeldMemory(reason=APART.get(phase, ""))
    if phase not in APART:
        most = held(at_most, "tensors_at_peak", "peak_memory")
    return {"activations": kept_by, "peak": most}


def figure(reading: Reading | None) -> int | None:
    """The bytes of a reading, in the blocks that the allocator gives where it tells these."""
    return None if reading is None else round(reading.details.get("allocated", reading.value))
