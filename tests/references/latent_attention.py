"""How does a test load our weights into latent attention of transformers?

Each of their layers mixes all rows but three at once, then three rows one by one from its cache,
which holds as many numbers as the state of the form `re-expanded`. What they convert to float32
(the angles, norms and the softmax) stays float64.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any
from unittest.mock import patch

import torch

import costmodel as cm
from tests.references.comparison import Comparison, compared, fill, linear
from tests.references.packages import Weights

PINS = "references-2026"

MODELS = "transformers.models"
DEEPSEEK = f"{MODELS}.deepseek_v3.modeling_deepseek_v3.DeepseekV3Attention"
KIMI = f"{MODELS}.kimi_linear.modeling_kimi_linear.KimiLinearAttention"
DOUBLE: Mapping[str, Any] = {"float32": torch.float64, "float": torch.float64}
STEPS = 3

Call = Callable[..., torch.Tensor]


@compared("mla", "transformers", DEEPSEEK, l=7, d=6, n=3, K=4, V=5, c=7, R=4)
@compared("mla", "transformers", DEEPSEEK, l=12, d=8, n=2, K=6, V=3, c=5, R=8)
@compared("mla+query-compression", "transformers", DEEPSEEK,
          l=7, d=6, n=3, K=4, V=5, c=7, R=4, r=5)  # fmt: skip
@compared("mla+query-compression", "transformers", DEEPSEEK,
          l=12, d=8, n=2, K=6, V=3, c=5, R=8, r=3)  # fmt: skip
def rotated(of: Any, ours: Weights, each: Comparison) -> Any:
    """DeepSeek-V3, with the angles of its rotary embedding."""
    module = importlib.import_module(of.__module__)
    theirs = layer(of, module.DeepseekV3Config, ours, each)
    with patch.multiple(torch, **DOUBLE):
        angles = module.DeepseekV3RotaryEmbedding(theirs.config)

    def call(x: torch.Tensor, rows: slice, **given: Any) -> torch.Tensor:
        places = angles(x, torch.arange(x.shape[1])[None, rows])
        return theirs(x[:, rows], position_embeddings=places, **given)[0]  # type: ignore[no-any-return]

    return by_steps(call, each)


@compared("mla+nope", "transformers", KIMI, l=7, d=6, n=3, K=4, V=5, c=7, R=3)
@compared("mla+nope", "transformers", KIMI, l=12, d=8, n=2, K=6, V=3, c=5, R=8)
@compared("mla+query-compression+nope", "transformers", KIMI,
          l=7, d=6, n=3, K=4, V=5, c=7, R=3, r=5)  # fmt: skip
@compared("mla+no-shared-key", "transformers", KIMI, l=7, d=6, n=3, K=4, V=5, c=7)
@compared("mla+no-shared-key", "transformers", KIMI, l=12, d=8, n=2, K=6, V=3, c=5)
def unrotated(of: Any, ours: Weights, each: Comparison) -> Any:
    """Kimi Linear."""
    module = importlib.import_module(of.__module__)
    theirs = layer(of, module.KimiLinearConfig, ours, each)

    def call(x: torch.Tensor, rows: slice, **given: Any) -> torch.Tensor:
        return theirs(x[:, rows], **given)[0]  # type: ignore[no-any-return]

    return by_steps(call, each)


def layer(of: Any, config: Any, ours: Weights, each: Comparison) -> Any:
    """Their layer with our weights; the columns of a head stand side by side in theirs."""
    n, K, V, R = (each.sizes.get(letter, 0) for letter in "nKVR")
    theirs = of(
        config(
            hidden_size=each.sizes["d"], num_attention_heads=n, num_key_value_heads=n,
            num_hidden_layers=1, q_lora_rank=each.sizes.get("r"), kv_lora_rank=each.sizes["c"],
            qk_nope_head_dim=K, qk_rope_head_dim=R, v_head_dim=V, attn_implementation="eager",
        ),
        0,
    ).double()  # fmt: skip

    def beside(*names: str) -> torch.Tensor:
        parts = [ours[name].view(len(ours[name]), n, -1) for name in names if name in ours]
        return torch.cat(parts, dim=-1).flatten(1)

    queries = beside("W_UQ", "W_QR")
    if "r" in each.sizes:
        linear(theirs.q_a_proj, ours["W_DQ"])
        fill((theirs.q_a_layernorm.weight, ours["gain_Q"]))
        linear(theirs.q_b_proj, queries)
    else:
        linear(theirs.q_proj, queries)
    down = [ours[name] for name in ("W_DKV", "W_KR") if name in ours]
    linear(theirs.kv_a_proj_with_mqa, torch.cat(down, dim=1))
    fill((theirs.kv_a_layernorm.weight, ours["gain_KV"]))
    linear(theirs.kv_b_proj, beside("W_UK", "W_UV"))
    linear(theirs.o_proj, ours["W_O"])
    number = cm.parameters(cm.mixer(each.mixer)).at(**each.sizes)
    assert number == sum(weight.numel() for weight in theirs.parameters())
    return theirs


def by_steps(call: Call, each: Comparison) -> Call:
    """A function that gives their rows for x (b, l, d)."""
    new_cache = importlib.import_module("transformers.cache_utils").DynamicCache

    def rows(x: torch.Tensor) -> torch.Tensor:
        cache, length = new_cache(), x.shape[1]
        first = length - STEPS
        causal = torch.full((first, first), -torch.inf, dtype=x.dtype).triu(1)
        with patch.multiple(torch, **DOUBLE):
            found = [call(x, slice(first), attention_mask=causal, past_key_values=cache)]
            for i in range(first, length):
                found.append(call(x, slice(i, i + 1), attention_mask=None, past_key_values=cache))
        kept = sum(tensor.numel() for tensor in (cache.layers[0].keys, cache.layers[0].values))
        derived = cm.state(cm.mixer(each.mixer), "re-expanded").at(**each.sizes, t=length)
        assert kept == len(x) * derived, (kept, derived)
        return torch.cat(found, dim=1)

    return rows
