"""How does a test load our weights into the shipped layers and operators of the delta rules?

Their code casts to float32. While it runs, its name `torch` has float64 under the names float and
float32, and `Tensor.float` gives float64.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from tests.references.comparison import Comparison, compared, fill, heads, joined, linear
from tests.references.packages import Weights

PINS = "references-2026"


class Double:
    """torch, with float64 under the names of float32."""

    float = float32 = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def in_double(space: dict[str, Any], call: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    """The call, with float64 in place of float32 in a namespace of their code."""

    def called(x: Tensor) -> Any:
        with patch.dict(space, torch=Double()), patch.object(Tensor, "float", Tensor.double):
            return call(x)

    return called


def taps(ours: Weights) -> Tensor:
    """The taps of queries, keys and values as the weight of a convolution of torch."""
    return torch.cat([ours[f"w_{name}"] for name in "QKV"], 1).flip(0).t().unsqueeze(1)


QWEN = "transformers.models.qwen3_next.modeling_qwen3_next.Qwen3NextGatedDeltaNet"
KIMI = "transformers.models.kimi_linear.modeling_kimi_linear.KimiLinearDeltaAttention"


@compared("gated-deltanet", "transformers", QWEN, l=7, d=5, n=4, g=2, K=3, V=2, k=4)
@compared("gated-deltanet", "transformers", QWEN, l=70, d=4, n=3, g=3, K=2, V=5, k=2)
def qwen(of: Any, ours: Weights, each: Comparison) -> Any:
    """The whole layer, in chunks of 64 tokens; the maps of a head of keys lie side by side."""
    d, n, g, K, V, k = (each.sizes[letter] for letter in "dngKVk")
    theirs = of(
        SimpleNamespace(
            hidden_size=d, linear_num_value_heads=n, linear_num_key_heads=g, linear_key_head_dim=K,
            linear_value_head_dim=V, linear_conv_kernel_dim=k, hidden_act="silu",
            rms_norm_eps=1e-6, layer_types=["linear_attention"],
        ),
        0,
    ).double()  # fmt: skip

    def by_key(*names: str) -> Tensor:
        parts = [ours[name].reshape(d, g, -1) for name in names]
        return torch.cat(parts, 2).flatten(1)

    linear(theirs.in_proj_qkvz, by_key("W_Q", "W_K", "W_V", "W_z"))
    linear(theirs.in_proj_ba, by_key("W_b", "W_a"))
    linear(theirs.out_proj, ours["W_out"])
    fill(
        (theirs.conv1d.weight, taps(ours)),
        (theirs.dt_bias, ours["dt"]),
        (theirs.A_log, ours["A_log"]),
        (theirs.norm.weight, ours["gain"]),
    )
    return in_double(vars(sys.modules[of.__module__]), theirs)


@compared("kda", "transformers", KIMI, l=7, d=6, n=2, k=4)
@compared("kda", "transformers", KIMI, l=70, d=6, n=3, k=2)
def kimi(of: Any, ours: Weights, each: Comparison) -> Any:
    """The whole layer, in chunks of 64 tokens."""
    d, n, k = (each.sizes[letter] for letter in "dnk")
    theirs = of(
        SimpleNamespace(
            hidden_size=d, linear_num_heads=n, linear_head_dim=d // n, linear_conv_kernel_dim=k,
            hidden_act="silu", rms_norm_eps=1e-5, layer_types=["linear_attention"],
        ),
        0,
    ).double()  # fmt: skip
    gate = theirs.forget_gate
    for layer, name in (
        (theirs.q_proj, "W_Q"), (theirs.k_proj, "W_K"), (theirs.v_proj, "W_V"),
        (theirs.b_proj, "W_b"), (theirs.g_a_proj, "W_G"), (theirs.g_b_proj, "U_G"),
        (gate.f_a_proj, "W_F"), (gate.f_b_proj, "U_F"), (theirs.o_proj, "W_out"),
    ):  # fmt: skip
        linear(layer, ours[name])
    fill(
        (theirs.conv1d.weight, taps(ours)),
        (gate.dt_bias, ours["dt"]),
        (gate.A_log, ours["A_log"].view(1, 1, n, 1)),
        (theirs.o_norm.weight, ours["gain"]),
    )
    return in_double(vars(sys.modules[of.__module__]), theirs)


def rows(x: Tensor, ours: Weights, n: int, g: int) -> tuple[Tensor, ...]:
    """Queries and keys of each head, normed, values and degrees: (b, l, n, ...)."""
    q, k = (heads(x, ours[f"W_{name}"], g).transpose(1, 2) for name in "QK")
    q, k = (
        (z / ((z * z).sum(-1, keepdim=True) + 1e-6).sqrt()).repeat_interleave(n // g, 2)
        for z in (q, k)
    )
    return q, k, heads(x, ours["W_V"], n).transpose(1, 2), torch.sigmoid(x @ ours["W_b"])


def out(o: Tensor, ours: Weights) -> Tensor:
    """o (b, l, n, V) times W_out."""
    return o.flatten(2) @ ours["W_out"]


DELTA = "fla/ops/delta_rule/naive.py"
GATED = "fla/ops/gated_delta_rule/naive.py"
KDA = "fla/ops/kda/naive.py"


@compared("deltanet+core", "fla-core", f"{DELTA}:delta_rule_recurrence", l=7, d=6, n=2)
@compared("deltanet+core", "fla-core", f"{DELTA}:delta_rule_recurrence", l=4, d=5, n=1)
@compared("deltanet+core", "fla-core", f"{DELTA}:delta_rule_chunkwise", l=9, d=6, n=2)
@compared("deltanet+core", "fla-core", f"{DELTA}:delta_rule_chunkwise", l=6, d=5, n=1)
def delta(of: Any, ours: Weights, each: Comparison) -> Any:
    """Their recurrence, or their chunks of 3 tokens, after our maps."""
    n, chunks = each.sizes["n"], {"chunk_size": 3} if "chunk" in each.of else {}

    def theirs(x: Tensor) -> Tensor:
        given = (z.transpose(1, 2) for z in rows(x, ours, n, n))
        return joined(of(*given, **chunks)[0], ours["W_out"])

    return in_double(of.__globals__, theirs)


@compared(
    "gated-deltanet+core",
    "fla-core",
    f"{GATED}:naive_recurrent_gated_delta_rule",
    l=7,
    d=5,
    n=4,
    g=2,
    K=3,
    V=2,
)
@compared(
    "gated-deltanet+core",
    "fla-core",
    f"{GATED}:naive_recurrent_gated_delta_rule",
    l=4,
    d=3,
    n=2,
    g=2,
    K=2,
    V=5,
)
@compared(
    "gated-deltanet+core",
    "fla-core",
    f"{GATED}:naive_chunk_gated_delta_rule",
    l=7,
    d=5,
    n=4,
    g=2,
    K=3,
    V=2,
)
@compared("gated-deltanet+core", "fla-core", f"{GATED}:naive_chunk_gated_delta_rule",
          l=6, d=3, n=2, g=2, K=2, V=5)  # fmt: skip
def gated(of: Any, ours: Weights, each: Comparison) -> Any:
    """Their recurrence, or their chunks of 3 tokens, after our maps."""
    n, g = (each.sizes[letter] for letter in "ng")
    chunks = {"chunk_size": 3} if "chunk" in each.of else {}

    def theirs(x: Tensor) -> Tensor:
        q, k, v, beta = rows(x, ours, n, g)
        inside = torch.nn.functional.softplus(x @ ours["W_a"] + ours["dt"])
        return out(of(q, k, v, beta=beta, g=-ours["A_log"].exp() * inside, **chunks)[0], ours)

    return in_double(of.__globals__, theirs)


@compared("kda+core", "fla-core", f"{KDA}:naive_recurrent_kda", l=7, d=6, n=2)
@compared("kda+core", "fla-core", f"{KDA}:naive_recurrent_kda", l=4, d=5, n=1)
@compared("kda+core", "fla-core", f"{KDA}:naive_chunk_kda", l=9, d=6, n=2)
@compared("kda+core", "fla-core", f"{KDA}:naive_chunk_kda", l=6, d=5, n=1)
def kda(of: Any, ours: Weights, each: Comparison) -> Any:
    """Their recurrence, or their chunks of 3 tokens, after our maps."""
    n, chunks = each.sizes["n"], {"chunk_size": 3} if "chunk" in each.of else {}

    def theirs(x: Tensor) -> Tensor:
        q, k, v, beta = rows(x, ours, n, n)
        inside = torch.nn.functional.softplus(x @ ours["W_F"] @ ours["U_F"] + ours["dt"])
        decay = -ours["A_log"].exp()[:, None] * inside.view(*beta.shape, -1)
        return out(of(q, k, v, g=decay, beta=beta, **chunks)[0], ours)

    return in_double(of.__globals__, theirs)
