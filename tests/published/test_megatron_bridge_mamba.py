"""Does a Mamba-2 layer of Nemotron-3-Nano cost what Megatron-Bridge says? A count by hand."""

from __future__ import annotations

from costmodel.claims.published import check
from costmodel.claims.records import load
from costmodel.data import data_dir

PATH = data_dir("published") / "megatron-bridge-mamba.json"


def test_a_layer_is_counted_with_the_width_of_the_heads_of_another_model() -> None:
    """2 operations a product; d_in is twice the model's width, where the heads are 4,096 wide."""
    (claim,) = load(PATH)
    l, d, n, P, N, G, k = 8192, 2688, 64, 64, 128, 8, 4

    def printed(width: int) -> int:
        projections = 2 * d * (2 * width + 2 * G * N + n) + 2 * width * d
        return l * (projections + 7 * width * N)

    assert printed(2 * d) == 842_753_114_112
    found = check(claim)
    assert found.verdict == "disagrees"
    channels = n * P + 2 * G * N
    taps = sum(min(k, i) for i in range(1, l + 1))
    whole = (
        2 * l * d * (2 * n * P + 2 * G * N + n) + 2 * l * n * P * d + 4 * l * n + n
    )  # softplus, A
    whole += channels * (2 * taps + l + 4 * l)  # taps, bias, silu
    whole += (l - 1) * n * 2 + l * n * P + n * P * N * (3 * l - 2)  # decays, Delta x, states
    whole += l * n * P * (2 * N + 2) + l * n * P * 5 + l * (4 * n * P + 3 * G)
    assert whole == 656_712_785_856
