"""How does a test load our weights into the shipped layers of LFM2 and RecurrentGemma?"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from tests.references.comparison import Comparison, compared, fill, linear
from tests.references.packages import Weights

PINS = "references-2026"

LFM2 = "transformers.models.lfm2.modeling_lfm2.Lfm2ShortConv"
GRIFFIN = (
    "transformers.models.recurrent_gemma.modeling_recurrent_gemma.RecurrentGemmaRecurrentBlock"
)


@compared("lfm2", "transformers", LFM2, l=7, d=5, k=3)
@compared("lfm2", "transformers", LFM2, l=9, d=4, k=7)
def short_gated_convolution(of: Any, ours: Weights, each: Comparison) -> Any:
    """Their maps are one; their convolution has the token itself last."""
    d, k = (each.sizes[letter] for letter in "dk")
    config = SimpleNamespace(hidden_size=d, conv_L_cache=k, conv_bias=False, layer_types=["conv"])
    theirs = of(config, 0).double()
    linear(theirs.in_proj, torch.cat([ours[f"W_{name}"] for name in "BCX"], 1))
    linear(theirs.out_proj, ours["W_out"])
    fill((theirs.conv.weight, ours["w"].flip(0).t().unsqueeze(1)))
    return theirs


@compared("rg-lru", "transformers", GRIFFIN, l=7, d=6, n=3, k=4)
@compared("rg-lru", "transformers", GRIFFIN, l=9, d=4, n=1, k=2)
def griffin(of: Any, ours: Weights, each: Comparison) -> Any:
    """The whole block, its state in float64 too."""
    d, n, k = (each.sizes[letter] for letter in "dnk")
    theirs = of(
        SimpleNamespace(
            hidden_size=d, lru_width=d, num_attention_heads=n, conv1d_width=k,
            hidden_activation="gelu_pytorch_tanh",
        ),
        0,
    ).double()  # fmt: skip
    linear(theirs.linear_x, ours["W_X"], ours["b_X"])
    linear(theirs.linear_y, ours["W_Z"], ours["b_Z"])
    linear(theirs.linear_out, ours["W_out"], ours["b_out"])
    unit = theirs.rg_lru
    fill(
        (theirs.conv_1d.weight, ours["w"].flip(0).t().unsqueeze(1)),
        (theirs.conv_1d.bias, ours["b_w"]),
        (unit.recurrent_param, ours["Lambda"]),
        (unit.recurrent_gate_weight, ours["W_R"]),
        (unit.recurrent_gate_bias, ours["b_R"]),
        (unit.input_gate_weight, ours["W_I"]),
        (unit.input_gate_bias, ours["b_I"]),
    )
    scan = unit._rnn_scan
    unit._rnn_scan = lambda **given: scan(**given, acc_dtype=torch.float64)

    def read(x: torch.Tensor) -> torch.Tensor:
        rows = torch.arange(x.shape[1]).expand(x.shape[:2])
        found: torch.Tensor = theirs(x, rows, None, use_cache=False)[0]
        return found

    return read
