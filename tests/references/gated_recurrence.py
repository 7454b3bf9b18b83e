"""How does a test load our weights into the shipped layers of LFM2 and RecurrentGemma?

They read all rows but three at once, then three one by one with what they keep: our state, but k
columns of LFM2's convolution where k-1 are read.
"""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch

import costmodel as cm
from tests.references.comparison import Comparison, compared, fill, linear, then_three
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
    config = import_module("transformers").Lfm2Config(
        hidden_size=d, conv_L_cache=k, conv_bias=False, num_attention_heads=1,
        num_key_value_heads=1, num_hidden_layers=2, layer_types=["conv", "full_attention"],
    )  # fmt: skip
    theirs = of(config, 0).double()
    linear(theirs.in_proj, torch.cat([ours[f"W_{name}"] for name in "BCX"], 1))
    linear(theirs.out_proj, ours["W_out"])
    fill((theirs.conv.weight, ours["w"].flip(0).t().unsqueeze(1)))

    def read(x: torch.Tensor) -> torch.Tensor:
        cache = import_module("transformers").DynamicCache(config=config)
        found = then_three(x, lambda rows: theirs(x[:, rows], past_key_values=cache))
        columns = cache.layers[0].conv_states[0].numel()
        assert columns // k * (k - 1) == len(x) * kept(each, x)
        return found

    return read


def kept(each: Comparison, x: torch.Tensor) -> int:
    """The numbers of our state after the rows of x."""
    return cm.state(cm.mixer(each.mixer)).at(**each.sizes, t=x.shape[1])


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
        theirs.conv1d_state = None
        places = torch.arange(x.shape[1]).expand(x.shape[:2])
        found = then_three(x, lambda rows: theirs(x[:, rows], places[:, rows], None)[0])
        held = theirs.conv1d_state.numel() + unit.recurrent_states.numel()
        assert held == len(x) * kept(each, x)
        return found

    return read
