"""Which check belongs to a kind of claim, and under which other readings does a claim hold?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from costmodel.asymptotics import growth
from costmodel.claims import Claim, PublishedError
from costmodel.comparisons import formula, ordering, path, threshold
from costmodel.constraints import Unsupported
from costmodel.figures import QUANTITIES, mixer_of
from costmodel.findings import Finding, letters
from costmodel.intervals import intersection, interval
from costmodel.phases import PHASES, TRAINING_STEP, Unanswered
from costmodel.printed_figures import arithmetic, number
from costmodel.readings import Reading, Scope, alternatives, of_others

CHECKS: Mapping[str, Callable[[Claim, Reading], Finding]] = {
    "formula": formula,
    "number": number,
    "path": path,
    "ordering": ordering,
    "threshold": threshold,
    "ratio": number,
    "order": growth,
    "model": number,
    "interval": interval,
    "value": arithmetic,
}
"""Kind of claim -> its check; intersections need the other claims besides."""


def evaluate(claim: Claim, reading: Reading, known: Mapping[str, Claim] | None = None) -> Finding:
    """Check a claim as it is read, by its kind.

    Args:
        known: claims that it may name, by id.

    Raises:
        Unanswered, Unsupported: the question has no answer for what the claim is about.
        PublishedError: the claim cannot be read; the message names it.
    """
    try:
        if claim.kind == "intersection":
            return intersection(claim, reading, known or {})
        return CHECKS[claim.kind](claim, reading)
    except (Unanswered, Unsupported):
        raise
    except ValueError as reason:
        raise PublishedError(f"claim {claim.id}: {reason}") from None


def own_reading(claim: Claim) -> Reading:
    """How a claim says that it is to be read."""
    return Reading(claim.convention, PHASES.get(claim.phase, claim.phase), claim.form)


@dataclass(frozen=True)
class Found:
    """Readings under which a claim holds, the least different ones, and the first one's finding."""

    readings: Sequence[Reading]
    finding: Finding


def under(claim: Claim, known: Mapping[str, Claim] | None = None) -> Found | None:
    """The other readings of a claim's own phase under which it holds; None: it holds under none."""
    own = own_reading(claim)
    return _least(claim, own, alternatives(own, scope(claim)), known)


def elsewhere(claim: Claim, known: Mapping[str, Claim] | None = None) -> Found | None:
    """The readings of another phase, or of a variant of the mixer, under which a claim holds."""
    own = own_reading(claim)
    return _least(claim, own, of_others(own, scope(claim)), known)


def _least(
    claim: Claim, own: Reading, tried: Sequence[Reading], known: Mapping[str, Claim] | None
) -> Found | None:
    """Of these readings, in order of difference, the first ones under which the claim holds."""
    for _, group in groupby(tried, key=lambda reading: reading.changes(own)):
        holding = [(r, f) for r in group if (f := _tried(claim, r, known)) and f.holds]
        if holding:
            return Found([reading for reading, _ in holding], holding[0][1])
    return None


def _tried(claim: Claim, reading: Reading, known: Mapping[str, Claim] | None) -> Finding | None:
    """What is found, or None where a question has no answer under a reading."""
    try:
        return evaluate(claim, reading, known)
    except (Unanswered, Unsupported, PublishedError):
        return None


ONE_SIDED = ("formula", "number", "order", "path")
"""Kinds of claims that are about one mixer."""


def scope(claim: Claim) -> Scope:
    """How else a claim may be read."""
    name = "critical_path" if claim.kind == "path" else claim.quantity
    asked = QUANTITIES.get(name)
    if asked is None or claim.kind in ("interval", "intersection", "value"):
        return Scope(conventions=False)
    one = claim.kind in ONE_SIDED and not claim.model
    mixer = mixer_of(claim.mixer) if claim.mixer and not claim.model else None
    own = claim.form or (mixer.default_form if mixer else "")
    phase = own_reading(claim).phase
    return Scope(
        forms=tuple(f for f in mixer.forms if f != own) if mixer and one and asked.formed else (),
        options=tuple(o for o in mixer.offers if o not in mixer.options) if mixer and one else (),
        phases=_other_phases(asked.phases, phase),
        operations=asked.operations and claim.kind != "order",
        total=name == "total" and claim.kind != "order",
        positions=one and _in_length(claim),
        conventions=asked.conventions,
        growing=claim.kind == "order",
    )


def _other_phases(known: Sequence[str], own: str) -> tuple[str, ...]:
    """The other phases of which a claim may be true; gradients are derived for it only where it is
    about them itself."""
    others = (p for p in known if own in TRAINING_STEP or p not in TRAINING_STEP)
    return tuple(p for p in others if p != own) if len(known) > 1 else ()


def _in_length(claim: Claim) -> bool:
    """Whether a formula for one new token is written in l."""
    named = letters(claim)
    return claim.kind in ("formula", "order") and "l" in named and "t" not in named
