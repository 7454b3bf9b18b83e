"""How many elements does one call of a module hold at each moment, by its equations?"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from costmodel.errors import Unanswered
from costmodel.language.equations import Mixer
from costmodel.questions.peak import peak_of, there_before
from costmodel.questions.question import BATCH
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Poly
from profiler.modules.described import Described, answers_about, held_rewrites

APART = {
    "inference": "the memory of one new token is the state and one row: ask for the column state",
    "backward": "the call begins with the tensors of the forward pass: compare the training step",
}
"""Phase -> why the derived peak memory of the phase is not compared with the measured peak."""


@lru_cache(maxsize=1024)
def live_sets(mixer: Mixer, does: Described, phase: str) -> tuple[Exact, ...]:
    """The numbers of elements that one call of a module holds at each moment for b sequences, of
    which the largest is the peak: gradients of parameters included, arrays that exist before the
    call excluded. The mixer's equations are rewritten first as the module's description `does`
    says, such as by masked pairs that the module computes.

    Raises:
        Unanswered: a phase in `APART`, whose memory is not compared with a measured peak.
        Unsupported: an equation whose gradient is not derived.
    """
    if reason := APART.get(phase):
        raise Unanswered(reason)
    found = answers_about(mixer, does.form, phase, held_rewrites(does)).of(peak_of)
    # a moment holds `each` elements per sequence, and `once` that all sequences share
    other = Exact.of(found.gradients) - Exact.of(there_before(mixer, phase) * BATCH)
    return tuple(moment.each * BATCH + moment.once + other for moment in found.moments)


def live_set(mixer: Mixer, does: Described, phase: str, sizes: Mapping[str, int]) -> Exact:
    """The largest of `live_sets` at these sizes, b among them. Unanswered: a phase in `APART`;
    Unsupported: a gradient is not derived."""
    moments = live_sets(mixer, does, phase)
    largest = max(moments, key=lambda moment: moment.at(sizes))
    return _of_batch(largest, sizes["b"])


@lru_cache(maxsize=1024)
def _of_batch(elements: Exact, b: int) -> Exact:
    """A formula with the number `b` in place of the size b."""
    return elements.substitute({"b": Poly.of(b)})
