"""What does a scan over the values of one size find, by the questions themselves?"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import costmodel as cm
from costmodel.errors import SizeError
from costmodel.language.equations import Mixer
from costmodel.program.chosen_sizes import fit, letters_of

SCANNED = 90
"""The values of the open size that are tried."""

Cost = Callable[[Mapping[str, int]], int]


def costs(mixer: Mixer, phase: str) -> dict[str, Cost]:
    """Figure -> its value at sizes."""
    found: dict[str, Cost] = {
        "total": lambda sizes: cm.count(mixer, phase).at(**sizes).total,
        "parameters": lambda sizes: cm.parameters(mixer).at(**sizes),
    }
    if phase == "inference":
        found["state"] = lambda sizes: cm.state(mixer).at(**sizes)
    else:
        found["peak"] = lambda sizes: cm.peak(mixer, phase).at(**sizes)
        found["span"] = lambda sizes: cm.span(mixer, phase).at(**sizes)
    return found


def random_sizes(mixer: Mixer, phase: str, draw: random.Random) -> dict[str, int]:
    """Small sizes that fit a mixer; t = l."""
    letters = letters_of(mixer, phase, mixer.default_form)
    while True:
        sizes: dict[str, int] = {x: draw.choice((1, 2, 3, 4, 5, 6, 8, 12, 16)) for x in letters}
        sizes |= {**mixer.given, **{x: sizes["l"] for x in ("t",) if x in sizes}}
        try:
            fit(mixer, sizes)
        except SizeError:
            continue
        return sizes


def opened(letter: str, sizes: Mapping[str, int]) -> tuple[list[str], dict[str, int]]:
    """The letters that are open together with one, and the other sizes: t and l are equal."""
    equal = [x for x in ("l", "t") if x in sizes] if letter in ("l", "t") else [letter]
    return equal, {x: size for x, size in sizes.items() if x not in equal}


def scanned(cost: Cost, given: Mapping[str, int], equal: Sequence[str]) -> dict[int, int]:
    """Value of the open size -> the cost there, for the values up to `SCANNED` that fit."""
    found = {}
    for value in range(1, SCANNED + 1):
        try:
            found[value] = cost({**given, **dict.fromkeys(equal, value)})
        except SizeError:
            continue
    return found


def blocks() -> Mixer:
    """A mixer whose new token reads its block alone, up to itself: its cost depends on t mod B."""
    m = cm.Mixer("blocks", source="these tests")
    l, d, B = m.sizes("l d B")
    x, y = m.input("x", l, d), m.output("y", l, d)
    with m.form("direct") as f:
        q = f.index("q", 1, l // B + 1)
        e = f.index("e", 1, cm.min_(B, l - (q - 1) * B))
        r, a = f.index("r", 1, e), f.index("a", 1, d)
        row = (q - 1) * B
        y[row + e, a] = cm.sum_(x[row + r, a] * x[row + r, a], over=r)
    return m
