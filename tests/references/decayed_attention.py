"""How does a test load our weights into shipped layers and operators of attention with decay?

fla's layers need a GPU's compiler, but the operators that they call have plain versions: these are
compared between our maps, and where the mixer is a whole layer, with torch's own norm, silu and log
sigmoid.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import Tensor

import costmodel as cm
from tests.references.comparison import (
    Comparison,
    compared,
    fill,
    heads,
    linear,
    made_in_float64,
    then_three,
)
from tests.references.delta_rule import in_double
from tests.references.packages import Weights

PINS = "references-2026"

MINIMAX = "transformers.models.minimax.modeling_minimax.MiniMaxLightningAttention"


@compared("lightning", "transformers", MINIMAX, l=8, d=6, n=3, C=2)
@compared("lightning", "transformers", MINIMAX, l=5, d=8, n=2, C=4)
def minimax(of: Any, ours: Weights, each: Comparison) -> Any:
    """The whole layer, layer 0 of 5, in chunks of 3 tokens, then three tokens by its cache, which
    is our state; the maps of a head lie side by side in theirs."""
    d, n = (each.sizes[letter] for letter in "dn")
    with made_in_float64():
        theirs = of(
            SimpleNamespace(
                hidden_size=d, num_attention_heads=n, head_dim=d // n, num_hidden_layers=5,
                block_size=3, hidden_act="silu", layer_types=["linear_attention"],
            ),
            0,
        )  # fmt: skip
    linear(
        theirs.qkv_proj,
        torch.cat([ours[f"W_{name}"].view(d, n, -1) for name in "QKV"], 2).flatten(1),
    )
    linear(theirs.output_gate, ours["W_G"])
    linear(theirs.out_proj, ours["W_out"])
    fill((theirs.norm.weight, ours["gain"]))
    module = sys.modules[of.__module__]

    def read(x: Tensor) -> Tensor:
        cache = module.MiniMaxCache()
        found = then_three(x, lambda rows: theirs(x[:, rows], None, None, cache)[0])
        assert cache.linear_cache[0].numel() == len(x) * cm.state(cm.mixer(each.mixer)).at(
            **each.sizes, t=x.shape[1]
        )
        return found

    return in_double(vars(module), read)


def maps(x: Tensor, ours: Weights, n: int) -> list[Tensor]:
    """Queries, keys and values (b, l, n, ...)."""
    return [heads(x, ours[f"W_{name}"], n).transpose(1, 2) for name in "QKV"]


def whole(x: Tensor, reads: Tensor, ours: Weights) -> Tensor:
    """y of reads (b, l, n, V): after each head's norm and the gate, where the mixer has both."""
    if "gain" in ours:
        reads = F.rms_norm(reads, reads.shape[-1:], ours["gain"], 1e-5)
        reads = reads * F.silu(x @ ours["W_G"]).view(reads.shape)
    return reads.flatten(2) @ ours["W_out"]


GLA = "fla/ops/gla/naive.py:naive_recurrent_gla"


@compared("gla", "fla-core", GLA, l=7, d=8, n=2, v=2, r=3)
@compared("gla", "fla-core", GLA, l=4, d=9, n=3, v=3, r=2)
@compared("gla+core", "fla-core", GLA, l=7, d=8, n=2, v=2, r=3)
@compared("gla+core", "fla-core", GLA, l=4, d=9, n=3, v=3, r=2)
def gated(of: Any, ours: Weights, each: Comparison) -> Any:
    """Their recurrence, given queries that it scales, and logarithms of the decays."""
    n = each.sizes["n"]

    def theirs(x: Tensor) -> Tensor:
        gate = heads(x @ ours["W_1"], ours["W_2"], n) + ours["b_2"].view(n, 1, -1)
        g = F.logsigmoid(gate).transpose(1, 2) / 16
        return whole(x, of(*maps(x, ours, n), g)[0], ours)

    return in_double(of.__globals__, theirs)


RETENTION = "fla/ops/retention/naive.py:naive_retention"


@compared("retnet", "fla-core", RETENTION, l=7, d=8, n=2, v=2, C=3)
@compared("retnet", "fla-core", RETENTION, l=5, d=12, n=3, v=1, C=2)
@compared("retnet+core", "fla-core", RETENTION, l=7, d=8, n=2, v=2, C=3)
@compared("retnet+core", "fla-core", RETENTION, l=5, d=9, n=3, v=1, C=2)
def retention(of: Any, ours: Weights, each: Comparison) -> Any:
    """All pairs by their operator, which scales queries and makes the decays; rotation as a product
    of complex numbers."""
    n = each.sizes["n"]

    def turned(rows: Tensor) -> Tensor:
        one, other = rows.chunk(2, dim=-1)
        half, places = one.shape[-1], torch.arange(rows.shape[1], dtype=torch.float64)
        angles = torch.outer(places, 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half))
        z = torch.complex(one, other) * torch.polar(torch.ones_like(angles), angles)[:, None]
        return torch.cat([z.real, z.imag], dim=-1)

    def theirs(x: Tensor) -> Tensor:
        q, k, v = maps(x, ours, n)
        if "core" not in each.options:
            q, k = turned(q), turned(k)
        read = of(*(rows.transpose(1, 2) for rows in (q, k, v)))
        return whole(x, read.transpose(1, 2), ours)

    return in_double(of.__globals__, theirs)


SIMPLE = "fla/ops/simple_gla/naive.py:naive"


@compared("lightning+core", "fla-core", f"{SIMPLE}_recurrent_simple_gla", l=8, d=6, n=3, C=2)
@compared("lightning+core", "fla-core", f"{SIMPLE}_recurrent_simple_gla", l=5, d=8, n=2, C=4)
@compared("lightning+core", "fla-core", f"{SIMPLE}_parallel_simple_gla", l=8, d=6, n=3, C=2)
@compared("lightning+core", "fla-core", f"{SIMPLE}_parallel_simple_gla", l=5, d=8, n=2, C=4)
@compared("lightning+core", "fla-core", f"{SIMPLE}_chunk_simple_gla", l=8, d=6, n=3, C=2)
@compared("lightning+core", "fla-core", f"{SIMPLE}_chunk_simple_gla", l=5, d=8, n=2, C=4)
def constant(of: Any, ours: Weights, each: Comparison) -> Any:
    """fla's lightning attention is its simple gated one with a constant logarithm for each head;
    their recurrence, all pairs, or chunks of 3 tokens."""
    n, chunks = each.sizes["n"], {"chunk_size": 3} if "chunk" in each.of else {}
    slopes = 2 ** (-8 * torch.arange(1, n + 1, dtype=torch.float64) / n) * (1 + 1e-5)

    def theirs(x: Tensor) -> Tensor:
        g = -slopes.expand(*x.shape[:2], n)
        return whole(x, of(*maps(x, ours, n), g, scale=1.0, **chunks)[0], ours)

    return in_double(of.__globals__, theirs)
