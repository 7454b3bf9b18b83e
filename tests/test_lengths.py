"""Are exactly those lengths found at which a count is positive?"""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

import costmodel as cm
from costmodel.claims.crossover import Crossover
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Poly, call, padded
from costmodel.symbolic.sizes import LARGEST
from costmodel.symbolic.thresholds import positive

L = Poly.atom("l")
TRIED = 300


@given(
    numbers=st.lists(st.integers(-40, 40), min_size=1, max_size=4),
    pads=st.integers(-30, 30),
    logs=st.integers(-30, 30),
)
def test_every_change_of_sign_is_found(numbers: list[int], pads: int, logs: int) -> None:
    poly = padded(L) * pads + call("ceil_log2", L) * logs * L
    for power, number in enumerate(numbers):
        poly = poly + L**power * number
    found = positive(Exact.of(poly), "l", {})
    for l in range(1, TRIED):
        assert (poly.at({"l": l}) > 0) == any(a <= l <= b for a, b in found), l


@pytest.mark.parametrize("name", ["she", "he", "we", "me"])
@pytest.mark.parametrize("d", [1, 4, 128])
def test_lengths_at_which_the_transform_wins(name: str, d: int) -> None:
    """Against both totals at every length, and at the far end."""
    about = Crossover(cm.mixer(name), "fft", "direct")
    found = about.lengths({"d": d})
    for l in (*range(1, TRIED), LARGEST):
        fft, direct = about.at({"d": d, "l": l, "b": 1})
        assert (fft < direct) == any(a <= l <= b for a, b in found), l


@pytest.mark.parametrize(("c", "said"), [(1, "at no length"), (40, "from t = 1 on")])
def test_tokens_at_which_a_step_takes_fewer_operations(c: int, said: str) -> None:
    """A step of latent attention as written and absorbed, which have one price of t tokens."""
    about = Crossover(cm.mixer("mla"), "expanded", "absorbed", "inference")
    sizes = {"l": 5, "d": 6, "n": 3, "K": 7, "V": 9, "R": 2, "c": c}
    found = about.lengths(sizes)
    for t in (*range(1, TRIED), LARGEST):
        expanded, absorbed = about.at({**sizes, "t": t, "b": 1})
        assert (expanded < absorbed) == any(a <= t <= b for a, b in found), t
    assert about.over_lengths(sizes).endswith(said)
