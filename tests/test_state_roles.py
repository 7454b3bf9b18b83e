"""Which arrays of a state are rows of tokens, which are recurrent; the bytes that each takes."""

from __future__ import annotations

import pytest

import costmodel as cm

ROLES = {
    ("self-attention", "direct"): {"K": "cache", "V": "cache"},
    ("ssa", "direct"): {"x": "cache", "V": "cache"},
    ("convolution", "direct"): {"x": "cache"},
    ("lstm", "recurrent"): {"y": "state", "C": "state"},
    ("linear-attention", "recurrent"): {"S": "state", "Z": "state"},
    ("linear-attention", "parallel"): {"K": "cache", "V": "cache"},
    ("linear-attention", "chunked"): {"K": "cache", "V": "cache", "S": "state", "Z": "state"},
    ("h3", "recurrent"): {"X_K": "cache", "S_re": "state", "S_im": "state"},
}
"""Mixer and form -> the role of each array of the state, by the papers: keys, values and the rows
that a convolution reads are rows of tokens; sums over tokens and hidden rows are recurrent."""


@pytest.mark.parametrize(("name", "form"), ROLES)
def test_loops_are_recurrent_and_all_else_is_rows(name: str, form: str) -> None:
    assert cm.state(cm.mixer(name), form).roles == ROLES[name, form]


def test_each_role_has_its_type() -> None:
    """H3's decode at b = 2: the shift's rows and the state are read once and written once."""
    d, k, N, b = 6, 4, 5, 2
    rows, recurrent = (k - 1) * d, 2 * d * N
    moved = cm.traffic(cm.mixer("h3"), "inference", "recurrent")
    kinds = moved.compulsory.at({"d": d, "k": k, "N": N, "t": 9, "b": b})
    assert kinds["cache"] == b * (rows + d)
    assert kinds["state"] == b * 2 * recurrent

    def added(cache: str = "bf16", state: str = "bf16", weight: str = "bf16") -> int:
        """The bytes more than with bf16 alone."""
        found = [
            moved.at(
                dtype="bf16", cache_dtype=cache, state_dtype=state, weight_dtype=weight,
                d=d, k=k, N=N, t=9, b=b,
            )["compulsory"]
            for cache, state, weight in ((cache, state, weight), ("bf16",) * 3)
        ]  # fmt: skip
        return found[0] - found[1]

    assert added(cache="fp32") == 2 * kinds["cache"]
    assert added(state="fp32") == 2 * kinds["state"]
    assert added(weight="fp32") == 2 * kinds["weights"]
