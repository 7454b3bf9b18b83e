"""How does a test load our weights into the shipped layers of xLSTM and RWKV-7?"""

from __future__ import annotations

import math
import os
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch

import costmodel as cm
from tests.references.comparison import (
    Comparison,
    compared,
    fill,
    heads,
    joined,
    linear,
    then_three,
)
from tests.references.packages import Weights
from tests.references.self_attention import double

PINS = "references-2026"

XLSTM = "transformers.models.xlstm.modeling_xlstm.xLSTMLayer"
"""transformers' own code, which it uses where the package xlstm is not installed."""


@compared("mlstm", "transformers", XLSTM, l=8, d=8, n=2, K=2)
@compared("mlstm", "transformers", XLSTM, l=12, d=12, n=3, K=2)
def xlstm(of: Any, ours: Weights, each: Comparison) -> Any:
    """The whole layer, all rows but three in chunks of 4 and then three by its states, which are
    ours; its norm would be taken in float32."""
    configured = import_module("transformers.models.xlstm.configuration_xlstm").xLSTMConfig
    config = configured(
        hidden_size=each.sizes["d"], num_heads=each.sizes["n"], num_blocks=1,
        mode="inference", chunk_size=4, return_last_states=True,
        norm_reduction_force_float32=False,
    )  # fmt: skip
    with double():
        theirs = of(config).double()
    for name, layer in (("Q", "q"), ("K", "k"), ("V", "v"), ("O", "ogate_preact")):
        linear(getattr(theirs, layer), ours[f"W_{name}"])
    linear(theirs.igate_preact, ours["W_I"], ours["b_I"])
    linear(theirs.fgate_preact, ours["W_F"], ours["b_F"])
    linear(theirs.out_proj, ours["W_out"])
    fill((theirs.multihead_norm.weight, ours["gain"]))

    def read(x: torch.Tensor) -> torch.Tensor:
        states: list[Any] = [None]

        def some(rows: slice) -> torch.Tensor:
            found, states[0] = theirs(x[:, rows], states[0])
            return found  # type: ignore[no-any-return]

        found = then_three(x, some)
        derived = cm.state(cm.mixer(each.mixer)).at(**each.sizes, t=x.shape[1])
        assert sum(state.numel() for state in states[0]) == len(x) * derived
        return found

    def in_double(x: torch.Tensor) -> torch.Tensor:
        with double(), patch.object(torch.Tensor, "float", torch.Tensor.double):
            return read(x)

    return in_double


os.environ.setdefault("RWKV_V7_ON", "1")  # without it, their file has no RWKV-7
RWKV = "rwkv/model.py:RWKV_x070_TMix_seq"


@compared("rwkv-7", "rwkv", RWKV, l=7, d=6, n=2, A=2, G=3)
@compared("rwkv-7", "rwkv", RWKV, l=5, d=8, n=1, A=3, G=4)
def time_mixing(of: Any, ours: Weights, each: Comparison) -> Any:
    """The whole first layer, not compiled: all rows but three, then three by their matrix and the
    row before, which are our state. Their decay and state are in float32, with exp(-1/2) to six
    digits: here float64 and all digits."""
    with patch.object(torch.jit, "script", lambda function: function):
        of = each.theirs()
    n, width = each.sizes["n"], len(ours["W_out"])
    none = torch.zeros(())
    mixes = [ours[f"mu_{name}"] for name in "rwkvag"]
    low = [ours["b_w"], ours["A_w"], ours["B_w"], ours["b_a"], ours["A_a"], ours["B_a"]]
    values = [none, none, none, ours["A_g"], ours["B_g"]]
    rest = [ours["k_k"], ours["k_a"], ours["r_k"].flatten()]
    maps = [ours[f"W_{name}"] for name in ("r", "k", "v", "out")]
    given = [*mixes, *low, *values, *rest, *maps]
    exp = torch.exp

    def of_one(x: torch.Tensor) -> torch.Tensor:
        held = [torch.zeros_like(x[0]), x.new_zeros(n, width // n, width // n)]
        norm = ours["gain"], ours["bias"]

        def some(rows: slice) -> torch.Tensor:
            found, *held[:], _ = of(
                0, n, width // n, x[rows], held[0], none, held[1], *given, *norm
            )
            return found[None]  # type: ignore[no-any-return]

        found = then_three(x[None], some)[0]
        derived = cm.state(cm.mixer(each.mixer)).at(**each.sizes, t=len(x))
        assert sum(state.numel() for state in held) == derived
        return found

    def read(x: torch.Tensor) -> torch.Tensor:
        whole = math.exp(-0.5) / 0.606531
        with (
            patch.object(torch.Tensor, "float", torch.Tensor.double),
            patch.object(torch, "exp", lambda z: exp(z * whole)),
        ):
            return torch.stack([of_one(rows) for rows in x])

    return read


NAIVE = "fla/ops/generalized_delta_rule/dplr/naive.py:dplr_recurrence"


@compared("rwkv-7+core", "fla-core", NAIVE, l=7, d=6, n=2)
@compared("rwkv-7+core", "fla-core", NAIVE, l=9, d=4, n=1)
def diagonal_plus_low_rank(of: Any, ours: Weights, each: Comparison) -> Any:
    """Their recurrence after our maps, in float64; they scale r by 1/sqrt(h), which is undone."""
    n = each.sizes["n"]

    def read(x: torch.Tensor) -> torch.Tensor:
        r, w, k, v, a = (heads(x, ours[f"W_{name}"], n) for name in "rwkva")
        kappa = torch.nn.functional.normalize(k, dim=-1)
        decay = -math.exp(-0.5) * torch.sigmoid(w)
        with patch.object(torch.Tensor, "float", torch.Tensor.double):
            O, _ = of(r * r.shape[-1] ** 0.5, k, v, -kappa, kappa * torch.sigmoid(a), decay)
        return joined(O, ours["W_out"])

    return read
