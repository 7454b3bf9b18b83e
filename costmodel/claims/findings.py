"""The outcome of a check of a claim under an interpretation, and sizes that fit a mixer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice, product

from costmodel.claims.identities import IdentityCheck
from costmodel.claims.quantities import Answer
from costmodel.errors import SizeError
from costmodel.language.equations import Mixer
from costmodel.program.chosen_sizes import fit

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Finding:
    """The outcome of one check of a claim under one interpretation.

    `in_limit`: the claim holds from some size on, or as some sizes outgrow others, but not at all
    sizes. `bounded`: an O(...) is an upper bound, not tight. `under`: another reading in which the
    claim holds, such as "rounded down". `compared`: the comparison of a formula. `there`: the
    derived and the claimed value at the counterexample.
    """

    holds: bool
    answer: Answer | str
    counterexample: Sizes = field(default_factory=dict)
    note: str = ""
    in_limit: bool = False
    bounded: bool = False
    under: str = ""
    compared: IdentityCheck | None = None
    there: Mapping[str, str] = field(default_factory=dict)
    values_note: str = ""
    """The part of the note with the values of `there` in words, which reports with `there` omit."""

    @property
    def derived(self) -> str:
        """The derived answer as text: a formula or cases, written when it is asked for."""
        return self.answer if isinstance(self.answer, str) else self.answer.text


def join_notes(*notes: str) -> str:
    """The notes that are not empty, in one text."""
    return "; ".join(filter(None, notes))


MOST_TRIED = 400
"""The most combinations of missing sizes that `completed` tries."""


def completed(mixer: Mixer, sizes: Sizes) -> dict[str, int] | None:
    """All sizes of a mixer: the given ones, those that the mixer's name fixes in braces, and for
    the missing ones the first values that fit, chosen from 1 and the given numbers; None if none of
    `MOST_TRIED` choices fits."""
    values = sorted({1, *sizes.values()})
    sizes = {**sizes, **mixer.given}
    missing = [x for x in dict.fromkeys(("l", *mixer.letters)) if x not in sizes]
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
