"""The parts that all checks of claims share: derived answers, sizes to try, and the outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice, product

from costmodel.claims.claim import Claim
from costmodel.claims.identities import IdentityCheck
from costmodel.claims.interpretations import Interpretation
from costmodel.claims.quantities import (
    Answer,
    derive,
    derive_network,
    mixer_of,
    own_sizes,
    refuse_letters,
)
from costmodel.errors import SizeError
from costmodel.language.equations import Mixer
from costmodel.language.formula_text import parse
from costmodel.program.chosen_sizes import fit

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Finding:
    """The outcome of one check of a claim under one interpretation.

    `in_limit`: the claim holds from some size on, or as some sizes outgrow others, but not at all
    sizes. `under`: another reading in which the claim holds, such as "rounded down". `compared`:
    the comparison of a formula. `there`: the derived and the claimed value at the counterexample.
    """

    holds: bool
    derived: str
    counterexample: Sizes = field(default_factory=dict)
    note: str = ""
    in_limit: bool = False
    under: str = ""
    compared: IdentityCheck | None = None
    there: Mapping[str, str] = field(default_factory=dict)
    parted: str = ""
    """The part of the note that repeats the values of `there` in words."""


def join_notes(*notes: str) -> str:
    """The notes that are not empty, in one text."""
    return "; ".join(filter(None, notes))


def compared_answers(claim: Claim, interpretation: Interpretation) -> tuple[Answer, ...]:
    """The answer for the claim's mixer or network, then for `against`, if the claim has one.

    Answers are for one sequence, unless the claim names the size b.

    Raises:
        ValueError: a letter of the claim's formula is no size of its network or mixer.
    """
    if not claim.model:
        _check_letters(claim)
    found = [_answer(claim.model, claim.mixer, claim, interpretation)]
    if claim.against:
        other = (claim.against, claim.against_mixer) if claim.model else ("", claim.against)
        found.append(_answer(*other, claim, interpretation))
    if "b" not in letters(claim):
        found = [answer.substitute({"b": 1}) for answer in found]
    return tuple(found)


def _answer(model: str, mixer: str, claim: Claim, interpretation: Interpretation) -> Answer:
    if model:
        given = {(k, v) for k, v in claim.sizes.items() if isinstance(v, int) and k != claim.letter}
        left_open = letters(claim) - {letter for letter, _ in given}
        return derive_network(
            model, mixer, claim.quantity, interpretation, frozenset(given), frozenset(left_open)
        )
    return derive(mixer, claim.quantity, interpretation)


def letters(claim: Claim) -> frozenset[str]:
    """The sizes that a claim names."""
    return _in_formulas(claim).union(claim.sizes, {claim.letter} - {""})


def _in_formulas(claim: Claim) -> frozenset[str]:
    texts = [text for text in (claim.formula, claim.equals) if text]
    return frozenset[str]().union(*(parse(text, growing=True).letters for text in texts))


def _check_letters(claim: Claim) -> None:
    """Raise ValueError for a letter in the claim's formula that is a size neither of the mixer nor
    of the mixer with one more option."""
    mixer, named = mixer_of(claim.mixer), _in_formulas(claim)
    if not named <= own_sizes(mixer.letters):
        options = (mixer_of(claim.mixer, option).letters for option in mixer.offers)
        if not named <= own_sizes(mixer.letters).union(*options):
            refuse_letters(named, mixer.letters, claim.mixer)


def fits(claim: Claim, given: Sizes) -> Callable[[Sizes], bool]:
    """A test of sizes: whether they and `given` fit the claim's mixer; always true for claims
    about networks."""
    if not claim.mixer or claim.model:
        return lambda sizes: True
    mixer = mixer_of(claim.mixer)
    return lambda sizes: completed(mixer, {**given, **sizes}) is not None


MOST_TRIED = 400
"""The most combinations of missing sizes that `completed` tries."""


def completed(mixer: Mixer, sizes: Sizes) -> dict[str, int] | None:
    """The sizes, with the first values of the mixer's other sizes that fit; None if none fit."""
    missing = [x for x in dict.fromkeys(("l", *mixer.letters)) if x not in sizes]
    values = sorted({1, *sizes.values()})
    for chosen in islice(product(values, repeat=len(missing)), MOST_TRIED):
        found = {**sizes, **dict(zip(missing, chosen, strict=True))}
        if found["l"] < found.get("t", 1):
            continue
        try:
            fit(mixer, found)
        except SizeError:
            continue
        return found
    return None
