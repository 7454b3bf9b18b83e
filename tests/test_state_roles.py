"""Which arrays of a state are rows of tokens, which are recurrent; the bytes that each takes."""

from __future__ import annotations

import pytest

import costmodel as cm
from costmodel.mixers.load import mixer as load_mixer

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
    kinds = moved.compulsory.at(d=d, k=k, N=N, t=9, b=b)
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


@pytest.mark.parametrize("b", [1, 8, 64, 4096])
def test_from_which_length_mamba_2_moves_fewer_bytes_than_grouped_attention(b: int) -> None:
    """d = 4096, bf16, the recurrent state fp32, weights read once a step: by hand more than 2,068 +
    33,053/b tokens. Weights: 109,635,968 - 41,943,040 elements of 2 bytes; state read and written:
    2 * 4 * 128 * 64 * 128 bytes; three rows read and one written of 10,240 columns; 4,096 bytes a
    row of keys and values, read, and the new row written."""
    grouped = load_mixer("self-attention+grouped{n=32,g=8,h=128}")
    mamba = load_mixer("mamba-2{n=128,P=64,N=128,G=8,k=4}")
    moved = {mixer: cm.traffic(mixer, "inference") for mixer in (grouped, mamba)}

    def fewer(t: int) -> bool:
        rows, state = (
            one.at(dtype="bf16", state_dtype="fp32", d=4096, t=t, b=b)["compulsory"]
            for one in moved.values()
        )
        return state < rows

    last = 2068 + 33053 // b
    assert not fewer(last) and fewer(last + 1)
