"""At which small sizes is any mixer tried? Letters that a test does not name get small primes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

import costmodel as cm
from costmodel.language.equations import Mixer
from costmodel.language.options import joined
from costmodel.mixers import builtin, names

OTHERS = {"g": 1, "v": 3, "w": 2, "k": 3, "C": 2, "e": 4, "K": 3, "V": 2}
"""Values of letters that only some mixers have; 2 for every other one."""


LEFT_OPEN: Mapping[tuple[str, str, str], str] = {}
"""Mixer, form and question of the forward pass -> why no rule answers it, in letters."""


def by_sizes(sizes: Sequence[Mapping[str, int]]) -> pytest.MarkDecorator:
    """A test at each of these sizes, which its name tells: `5-6-2`."""
    return pytest.mark.parametrize("sizes", sizes, ids=lambda s: "-".join(map(str, s.values())))


def complete(mixer: Mixer, sizes: Mapping[str, int]) -> dict[str, int]:
    """The sizes with a value for every letter of a mixer."""
    letters = (x for x in mixer.letters if x not in sizes)
    return {**sizes, **{letter: OTHERS.get(letter, 2) for letter in letters}}


def variants() -> list[str]:
    """Every built-in mixer, and each of its options by itself: `self-attention+bias`."""
    return [
        variant
        for name in names()
        for variant in (name, *(joined(name, [option]) for option in builtin(name).offers))
    ]


def forms(mixers: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Every form of some mixers, of all built-in ones by default."""
    return [(name, form) for name in mixers or names() for form in builtin(name).forms]


def without_inference(mixer: Mixer, form: str | None = None) -> str | None:
    """Why one new token has no cost of its own; None where it has one."""
    try:
        cm.count(mixer, "inference", form)
    except cm.Unanswered as reason:
        return str(reason)
    return None


def has_inference(mixer: Mixer, form: str | None = None) -> bool:
    """Whether one new token has a cost of its own."""
    return without_inference(mixer, form) is None
