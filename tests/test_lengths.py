"""Are exactly those lengths found at which a form takes fewer operations?"""

from __future__ import annotations

from typing import Any

import pytest

import costmodel as cm
from costmodel.symbolic.sizes import LARGEST

TRIED = 300


@pytest.mark.parametrize("name", ["she", "he", "we", "me"])
@pytest.mark.parametrize("d", [1, 4, 128])
def test_lengths_at_which_the_transform_wins(name: str, d: int) -> None:
    """Against both totals at every length, and at the far end."""
    about = cm.crossover(f"{name}:fft", f"{name}:direct", d=d)
    for l in (*range(1, TRIED), LARGEST):
        fft, direct = (cm.count(cm.mixer(name), form=form).at(d=d, l=l).total for form in FORMS)
        least = [one.least for one in about.ranges if one.first <= l <= one.last]
        assert least == [
            tuple(
                n for n, v in zip(about.names, (fft, direct), strict=True) if v == min(fft, direct)
            )
        ]


FORMS = ("fft", "direct")


@pytest.mark.parametrize(("c", "first"), [(1, "mla:absorbed"), (40, "mla")])
def test_tokens_at_which_a_step_takes_fewer_operations(c: int, first: str) -> None:
    """A step of latent attention as written and absorbed, which have one price of t tokens."""
    sizes: Any = {"d": 6, "n": 3, "K": 7, "V": 9, "R": 2, "c": c}
    about = cm.crossover("mla:expanded", "mla:absorbed", phase="inference", **sizes)
    assert [(one.first, one.last, one.least) for one in about.ranges] == [(1, LARGEST, (first,))]
    for t in (*range(1, TRIED), LARGEST):
        expanded, absorbed = (
            cm.count(cm.mixer("mla"), "inference", form=form).at(t=t, **sizes).total
            for form in ("expanded", "absorbed")
        )
        assert (expanded < absorbed) == (first == "mla")
