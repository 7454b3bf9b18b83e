"""How does a test load our weights into the shipped layers and operators of the delta rules?

A layer of transformers reads all rows but three in chunks, then three one by one with its cache,
which holds our state, but k columns of a convolution where k-1 are read. So does the layer of
flash-linear-attention, whose kernels triton's interpreter runs on a CPU.
Their code casts to float32. While it runs, its name `torch` has float64 under the names float and
float32, and `Tensor.float` gives float64.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

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


def with_cache(theirs: Any, config: Any, each: Comparison) -> Callable[[Tensor], Tensor]:
    """Their layer over all rows but three, then row by row with its cache."""
    cached = import_module("transformers").DynamicCache

    def read(x: Tensor) -> Any:
        cache = cached(config=config)
        found = then_three(x, lambda rows: theirs(x[:, rows], cache_params=cache))
        (layer, _) = cache.layers
        state_is_ours(layer.recurrent_states[0], [layer.conv_states[0]], x, each)
        return found

    own = vars(sys.modules[type(theirs).__module__])
    return in_double(vars(import_module("transformers.cache_utils")), in_double(own, read))


def state_is_ours(S: Tensor, columns: list[Tensor], x: Tensor, each: Comparison) -> None:
    """Their state after the rows x has as many numbers as ours: S, and k-1 of the k columns of
    their convolutions."""
    k = each.sizes["k"]
    derived = cm.state(cm.mixer(each.mixer)).at(**each.sizes, t=x.shape[1])
    assert S.numel() + sum(map(torch.numel, columns)) // k * (k - 1) == len(x) * derived


def configuration(name: str, prefix: str, **given: Any) -> Any:
    """The configuration of a model of transformers whose first layer is of this kind."""
    of = getattr(import_module(f"transformers.models.{name}.configuration_{name}"), prefix)
    types = ["linear_attention", "full_attention"]
    return of(num_hidden_layers=2, layer_types=types, hidden_act="silu", **given)


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
    config = configuration(
        "qwen3_next", "Qwen3NextConfig", hidden_size=d, linear_num_value_heads=n,
        linear_num_key_heads=g, linear_key_head_dim=K, linear_value_head_dim=V,
        linear_conv_kernel_dim=k, rms_norm_eps=1e-6,
    )  # fmt: skip
    theirs = of(config, 0).double()

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
    return with_cache(theirs, config, each)


OLMO = "transformers.models.olmo_hybrid.modeling_olmo_hybrid.OlmoHybridGatedDeltaNet"


@compared("gated-deltanet+negative", "transformers", OLMO, l=7, d=5, n=4, g=4, K=3, V=2, k=4)
@compared("gated-deltanet+negative", "transformers", OLMO, l=70, d=4, n=3, g=3, K=2, V=5, k=2)
def olmo(of: Any, ours: Weights, each: Comparison) -> Any:
    """The whole layer; its norm adds 1e-5, ours and Qwen3-Next's 1e-6."""
    d, n, g, K, V, k = (each.sizes[letter] for letter in "dngKVk")
    config = configuration(
        "olmo_hybrid", "OlmoHybridConfig", hidden_size=d, linear_num_value_heads=n,
        linear_num_key_heads=g, linear_key_head_dim=K, linear_value_head_dim=V,
        linear_conv_kernel_dim=k, linear_allow_neg_eigval=True,
    )  # fmt: skip
    theirs = of(config, 0).double()
    for layer, name in (
        (theirs.q_proj, "W_Q"), (theirs.k_proj, "W_K"), (theirs.v_proj, "W_V"),
        (theirs.a_proj, "W_a"), (theirs.b_proj, "W_b"), (theirs.g_proj, "W_z"),
        (theirs.o_proj, "W_out"),
    ):  # fmt: skip
        linear(layer, ours[name])
    theirs.o_norm.variance_epsilon = 1e-6
    fill(
        (theirs.conv1d.weight, taps(ours)),
        (theirs.dt_bias, ours["dt"]),
        (theirs.A_log, ours["A_log"]),
        (theirs.o_norm.weight, ours["gain"]),
    )
    return with_cache(theirs, config, each)


BAILING = "transformers.models.bailing_hybrid.modeling_bailing_hybrid.BailingHybridDeltaAttention"


@compared("kda+safe-gate", "transformers", BAILING, l=7, d=6, n=2, k=4)
@compared("kda+safe-gate", "transformers", BAILING, l=70, d=6, n=3, k=2)
def bailing(of: Any, ours: Weights, each: Comparison) -> Any:
    """The whole layer; their maps to decays and to the gate have one matrix, ours the product of
    two."""
    d, n, k = (each.sizes[letter] for letter in "dnk")
    config = configuration(
        "bailing_hybrid", "BailingHybridConfig", hidden_size=d, linear_num_heads=n,
        linear_head_dim=d // n, linear_conv_kernel_dim=k, rms_norm_eps=1e-5, kda_safe_gate=True,
        kda_lower_bound=-5.0,
    )  # fmt: skip
    theirs = of(config, 0).double()
    gate = theirs.forget_gate
    for layer, weight in (
        (theirs.q_proj, ours["W_Q"]), (theirs.k_proj, ours["W_K"]), (theirs.v_proj, ours["W_V"]),
        (theirs.b_proj, ours["W_b"]), (theirs.g_proj, ours["W_G"] @ ours["U_G"]),
        (gate.f_proj, ours["W_F"] @ ours["U_F"]), (theirs.o_proj, ours["W_out"]),
    ):  # fmt: skip
        linear(layer, weight)
    fill(
        (theirs.conv1d.weight, taps(ours)),
        (gate.dt_bias, ours["dt"]),
        (gate.A_log, ours["A_log"]),
        (theirs.o_norm.weight, ours["gain"]),
    )
    return with_cache(theirs, config, each)


@compared("kda", "transformers", KIMI, l=7, d=6, n=2, k=4)
@compared("kda", "transformers", KIMI, l=70, d=6, n=3, k=2)
def kimi(of: Any, ours: Weights, each: Comparison) -> Any:
    """The whole layer, in chunks of 64 tokens."""
    d, n, k = (each.sizes[letter] for letter in "dnk")
    config = configuration(
        "kimi_linear", "KimiLinearConfig", hidden_size=d, linear_num_heads=n,
        linear_head_dim=d // n, linear_conv_kernel_dim=k, rms_norm_eps=1e-5,
    )  # fmt: skip
    theirs = of(config, 0).double()
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
    return with_cache(theirs, config, each)


class Counter(int):
    """The counter of a kernel's loop; `to` casts it, as in compiled kernels."""

    def to(self, _: Any) -> Counter:
        """The counter, in any type."""
        return self


@contextmanager
def interpreted() -> Iterator[None]:
    """A block in which triton's interpreter runs fla's kernels of the delta rule in float64, each
    with the first of its configurations, which differ in speed alone."""
    language = import_module("triton.language")
    tuner = import_module("triton.runtime.autotuner").Autotuner
    with ExitStack() as during:

        def change(of: Any, name: str, value: Any) -> None:
            during.enter_context(patch.object(of, name, value, create=True))

        change(language, "float32", language.float64)
        change(tuner, "do_bench", lambda *_, **__: [0.0])
        states = sys.modules["fla.ops.common.chunk_delta_h"]
        change(states, "range", lambda *ends: map(Counter, range(*ends)))
        for name, module in [*sys.modules.items()]:
            own = name.startswith("fla.") and vars(module).get("torch") is torch
            if own and name != "fla.ops.delta_rule.chunk":  # that one refuses float32
                change(module, "torch", Double())
        yield


FLA = "fla.layers.delta_net.DeltaNet"


@compared("deltanet", "flash-linear-attention", FLA, l=7, d=6, n=2, k=4)
@compared("deltanet", "flash-linear-attention", FLA, l=70, d=6, n=3, k=2)
@compared("deltanet+negative", "flash-linear-attention", FLA, l=7, d=6, n=2, k=4)
@compared("deltanet+negative", "flash-linear-attention", FLA, l=70, d=6, n=3, k=2)
def layer(of: Any, ours: Weights, each: Comparison) -> Any:
    """The whole layer, in chunks of 64 tokens; row by row up to 64 tokens."""
    d, n, k = (each.sizes[letter] for letter in "dnk")
    theirs = of(
        hidden_size=d, num_heads=n, conv_size=k, layer_idx=0,
        allow_neg_eigval="negative" in each.options,
    ).double()  # fmt: skip
    for name, weight in zip("QKV", taps(ours).chunk(3), strict=True):
        linear(getattr(theirs, f"{name.lower()}_proj"), ours[f"W_{name}"])
        fill((getattr(theirs, f"{name.lower()}_conv1d").weight, weight))
    linear(theirs.b_proj, ours["W_b"])
    linear(theirs.o_proj, ours["W_out"])
    fill((theirs.o_norm.weight, ours["gain"]))
    number = cm.parameters(cm.mixer(each.mixer)).at(**each.sizes)
    assert number == sum(weight.numel() for weight in theirs.parameters())
    cached = import_module("fla.models.cache_utils").FLACache

    def read(x: Tensor) -> Any:
        cache = cached()
        with interpreted():
            found = then_three(
                x, lambda rows: theirs(x[:, rows], past_key_values=cache, use_cache=True)[0]
            )
        kept = cache[0]
        state_is_ours(kept["recurrent_state"], list(kept["conv_state"]), x, each)
        return found

    return read


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
