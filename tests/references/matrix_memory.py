"""How does a test load our weights into the shipped layers of xLSTM and RWKV-7?"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from tests.references.comparison import Comparison, compared, fill, linear
from tests.references.packages import Weights

XLSTM = "transformers.models.xlstm.modeling_xlstm.xLSTMLayer"
"""transformers' own code, which it uses where the package xlstm is not installed."""


@compared("mlstm", "transformers", XLSTM, l=8, d=8, n=2, K=2)
@compared("mlstm", "transformers", XLSTM, l=12, d=12, n=3, K=2)
def xlstm(of: Any, ours: Weights, each: Comparison) -> Any:
    """The whole layer in chunks of 4 rows; its norm would be taken in float32."""
    configured = import_module("transformers.models.xlstm.configuration_xlstm").xLSTMConfig
    config = configured(
        hidden_size=each.sizes["d"], num_heads=each.sizes["n"], num_blocks=1,
        mode="train", chunk_size=4, return_last_states=True,
        norm_reduction_force_float32=False,
    )  # fmt: skip
    theirs = of(config).double()
    for name, layer in (("Q", "q"), ("K", "k"), ("V", "v"), ("O", "ogate_preact")):
        linear(getattr(theirs, layer), ours[f"W_{name}"])
    linear(theirs.igate_preact, ours["W_I"], ours["b_I"])
    linear(theirs.fgate_preact, ours["W_F"], ours["b_F"])
    linear(theirs.out_proj, ours["W_out"])
    fill((theirs.multihead_norm.weight, ours["gain"]))

    def read(x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = theirs(x)[0]
        return found

    return read
