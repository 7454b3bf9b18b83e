"""How does a test load our weights into the attention layers of transformers?

Each layer mixes all rows but three at once, then three rows one by one from its cache. What they
convert to float32 (angles, norms, softmax) stays float64, and the epsilon of their norms is ours.
Their parameters are as many as ours, and the cache holds as many numbers as our state: of a window
w-1 rows; of Llama 4's chunks their cache would keep all rows but one of a chunk's length, so that
all rows are kept instead.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch

import costmodel as cm
from tests.references.comparison import Comparison, compared, fill, linear
from tests.references.packages import Weights

PINS = "references-2026"

STEPS = 3
EPS = 2.0**-52
ATTENTION = "self-attention+"
MODELS = "transformers.models."


def model(name: str, prefix: str) -> str:
    """The attention class of a model."""
    return f"{MODELS}{name}.modeling_{name}.{prefix}Attention"


LLAMA, LLAMA_4 = model("llama", "Llama"), model("llama4", "Llama4Text")
MISTRAL, OLMO_2, QWEN_3, GPT_OSS, GEMMA_2, GEMMA_4, QWEN_3_NEXT, GLM_4_MOE, GLM = (
    model(name, prefix)
    for name, prefix in (
        ("mistral", "Mistral"),
        ("olmo2", "Olmo2"),
        ("qwen3", "Qwen3"),
        ("gpt_oss", "GptOss"),
        ("gemma2", "Gemma2"),
        ("gemma4", "Gemma4Text"),
        ("qwen3_next", "Qwen3Next"),
        ("glm4_moe", "Glm4Moe"),
        ("glm", "Glm"),
    )
)


@compared(f"{ATTENTION}grouped+rotary", "transformers", LLAMA, l=7, d=8, n=2, g=1)
@compared(f"{ATTENTION}grouped+rotary", "transformers", LLAMA, l=12, d=24, n=4, g=2)
@compared(f"{ATTENTION}grouped+window+rotary", "transformers", MISTRAL, l=7, d=8, n=2, g=1, w=3)
@compared(f"{ATTENTION}grouped+window+rotary", "transformers", MISTRAL, l=12, d=24, n=4, g=2, w=5)
@compared(f"{ATTENTION}grouped+chunked-window+rotary-pairs", "transformers", LLAMA_4,
          l=7, d=8, n=2, g=1, w=3)  # fmt: skip
@compared(f"{ATTENTION}grouped+chunked-window+rotary-pairs", "transformers", LLAMA_4,
          l=12, d=24, n=4, g=2, w=5)  # fmt: skip
@compared(f"{ATTENTION}grouped+window+soft-cap+rotary", "transformers", GEMMA_2,
          l=7, d=8, n=2, g=1, w=3)  # fmt: skip
@compared(f"{ATTENTION}grouped+window+soft-cap+rotary", "transformers", GEMMA_2,
          l=12, d=24, n=4, g=2, w=5)  # fmt: skip
@compared(f"{ATTENTION}grouped+keys-as-values+qk-norm+v-norm+unscaled+rotary", "transformers",
          GEMMA_4, l=7, d=8, n=2, g=1)  # fmt: skip
@compared(f"{ATTENTION}grouped+keys-as-values+qk-norm+v-norm+unscaled+rotary", "transformers",
          GEMMA_4, l=12, d=24, n=4, g=2)  # fmt: skip
@compared(f"{ATTENTION}grouped+whole-qk-norm+rotary", "transformers", OLMO_2, l=7, d=8, n=2, g=1)
@compared(f"{ATTENTION}grouped+whole-qk-norm+rotary", "transformers", OLMO_2, l=12, d=24, n=4, g=2)
@compared(f"{ATTENTION}grouped+qk-norm+rotary", "transformers", QWEN_3, l=7, d=8, n=2, g=1)
@compared(f"{ATTENTION}grouped+qk-norm+rotary", "transformers", QWEN_3, l=12, d=24, n=4, g=2)
@compared(f"{ATTENTION}grouped+gate+qk-norm+partial-rotary", "transformers", QWEN_3_NEXT,
          l=7, d=8, n=2, g=1, r=2)  # fmt: skip
@compared(f"{ATTENTION}grouped+gate+qk-norm+partial-rotary", "transformers", QWEN_3_NEXT,
          l=12, d=48, n=4, g=2, r=8)  # fmt: skip
@compared(f"{ATTENTION}grouped+partial-rotary", "transformers", GLM_4_MOE,
          l=7, d=8, n=2, g=1, r=2)  # fmt: skip
@compared(f"{ATTENTION}grouped+partial-rotary", "transformers", GLM_4_MOE,
          l=12, d=32, n=4, g=2, r=6)  # fmt: skip
@compared(f"{ATTENTION}grouped+rotary-pairs+partial-rotary", "transformers", GLM,
          l=7, d=8, n=2, g=1, r=2)  # fmt: skip
@compared(f"{ATTENTION}grouped+rotary-pairs+partial-rotary", "transformers", GLM,
          l=12, d=32, n=4, g=2, r=6)  # fmt: skip
@compared(f"{ATTENTION}bias+grouped+window+sinks+rotary", "transformers", GPT_OSS,
          l=7, d=8, n=2, g=1, w=3)  # fmt: skip
@compared(f"{ATTENTION}bias+grouped+window+sinks+rotary", "transformers", GPT_OSS,
          l=12, d=24, n=4, g=2, w=5)  # fmt: skip
def attention(of: Any, ours: Weights, each: Comparison) -> Any:
    """Their layer, and the angles of its rotary embedding. Gemma 4 has tables for each type of
    layer, and a place where layers put rows that others read."""
    module, prefix = importlib.import_module(of.__module__), of.__name__.removesuffix("Attention")
    config = configuration(getattr(module, f"{prefix}Config"), each)
    theirs = of(config, 0).double()
    assert sum(p.numel() for p in theirs.parameters()) == sum(map(torch.numel, weights(ours)))
    load(theirs, ours, each)
    with double():
        angles = getattr(module, f"{prefix}RotaryEmbedding")(config)

    by_type = isinstance(config.rope_parameters.get("full_attention"), dict)

    def call(x: torch.Tensor, rows: slice, **given: Any) -> torch.Tensor:
        of_type = {"layer_type": "full_attention"} if by_type else {}
        places = angles(x, torch.arange(x.shape[1])[None, rows], **of_type)
        given |= {"shared_kv_states": {}} if by_type else {}
        found, _ = theirs(x[:, rows], position_embeddings=places, **given)
        return found  # type: ignore[no-any-return]

    return by_steps(call, config, each)


DIFFERENTIAL = model("diffllama", "DiffLlama")


@compared("differential-attention+rotary", "transformers", DIFFERENTIAL, l=7, d=8, n=2, g=1)
@compared("differential-attention+rotary", "transformers", DIFFERENTIAL, l=9, d=16, n=4, g=2)
def differential(of: Any, ours: Weights, each: Comparison) -> Any:
    """Their layer 0. They count two heads for one of ours, and their heads of values are in two
    halves, of which ours has one of twice the width."""
    n, g = each.sizes["n"], each.sizes["g"]
    module = importlib.import_module(of.__module__)
    config = module.DiffLlamaConfig(
        hidden_size=each.sizes["d"], num_attention_heads=2 * n, num_key_value_heads=2 * g,
        head_dim=each.sizes["d"] // n, rms_norm_eps=EPS, num_hidden_layers=1,
        attn_implementation="eager",
    )  # fmt: skip
    theirs = of(config, 0).double()
    assert sum(p.numel() for p in theirs.parameters()) == sum(map(torch.numel, weights(ours)))
    halves = ours["W_V"].view(each.sizes["d"], g, 2, -1).movedim(-2, 1)
    W = {"q": ours["W_Q"], "k": ours["W_K"], "v": halves}
    for name, weight in W.items():
        linear(getattr(theirs, f"{name}_proj"), weight.flatten(1))
    linear(theirs.o_proj, ours["W_out"].flatten(0, -2))
    for half, (Q, K) in enumerate(zip(ours["lambda_Q"], ours["lambda_K"], strict=True), 1):
        fill((getattr(theirs, f"lambda_q{half}"), Q), (getattr(theirs, f"lambda_k{half}"), K))
    with double():
        angles = module.DiffLlamaRotaryEmbedding(config)

    def call(x: torch.Tensor, rows: slice, **given: Any) -> torch.Tensor:
        places = angles(x, torch.arange(x.shape[1])[None, rows])
        found, _ = theirs(x[:, rows], position_embeddings=places, **given)
        return found  # type: ignore[no-any-return]

    return by_steps(call, config, each)


def double() -> Any:
    """A context in which what they convert to float32 is converted to float64."""
    return patch.multiple(torch, float32=torch.float64, float=torch.float64)


def weights(ours: Weights) -> list[torch.Tensor]:
    """The parameters among the arrays."""
    return [value for name, value in ours.items() if name[0] in "Wbw" or "lambda" in name]


def configuration(of: Any, each: Comparison) -> Any:
    """A configuration with our sizes; what it has not is left out of account."""
    d, n, g = (each.sizes[letter] for letter in "dng")
    chunk = window = each.sizes.get("w")
    of_layer = "sliding" if "window" in each.options else "full"
    of_layer = "chunked" if "chunked-window" in each.options else of_layer
    rotary = {"rope_type": "default", "rope_theta": 10_000.0}
    rotary["partial_rotary_factor"] = each.sizes.get("r", d // n) / (d // n)
    more: dict[str, Any] = {}
    if "keys-as-values" in each.options:
        rotary = dict.fromkeys(("full_attention", "sliding_attention"), rotary)
        more = {"attention_k_eq_v": True, "global_head_dim": d // n}
        window, chunk = each.sizes["l"], None  # of other layers
    return of(
        hidden_size=d, num_attention_heads=n, num_key_value_heads=g, head_dim=d // n,
        num_hidden_layers=1, attn_implementation="eager", rms_norm_eps=EPS, rope_parameters=rotary,
        layer_types=[f"{of_layer}_attention"], sliding_window=window, attention_chunk_size=chunk,
        query_pre_attn_scalar=d // n, attention_bias="bias" in each.options, use_qk_norm=False,
        attn_temperature_tuning=False, no_rope_layers=[1], **more,
    )  # fmt: skip


def load(theirs: Any, ours: Weights, each: Comparison) -> None:
    """Give their layer our weights; a head's queries and its gate stand side by side in theirs."""
    W = {name: ours[f"W_{name}"].flatten(1) for name in "QKVG" if f"W_{name}" in ours}
    b = {name: ours[f"b_{name}"].flatten() for name in "QKV" if f"b_{name}" in ours}
    if "G" in W:
        parts = [W[name].view(len(W[name]), each.sizes["n"], -1) for name in "QG"]
        W["Q"] = torch.cat(parts, dim=-1).flatten(1)
    for layer, name in ((theirs.q_proj, "Q"), (theirs.k_proj, "K"), (theirs.v_proj, "V")):
        if layer is not None:
            linear(layer, W[name], b.get(name))
    linear(theirs.o_proj, ours["W_out"].flatten(0, -2), ours.get("b_out"))
    if "b_sink" in ours:
        fill((theirs.sinks, ours["b_sink"].flatten()))
    if "w_Q" in ours:  # Qwen3-Next adds 1
        one = 1.0 if "gate" in each.options else 0.0
        gains = (ours[name].flatten() - one for name in ("w_Q", "w_K"))
        fill(*zip((theirs.q_norm.weight, theirs.k_norm.weight), gains, strict=True))


def seen(rows: slice, keys: int, each: Comparison) -> torch.Tensor:
    """The mask to add to scores of some rows and the first `keys` rows."""
    i, k = torch.arange(keys)[rows, None], torch.arange(keys)
    apart = k > i
    if "window" in each.options:
        apart |= k <= i - each.sizes["w"]
    if "chunked-window" in each.options:
        apart |= k // each.sizes["w"] != i // each.sizes["w"]
    return torch.zeros(apart.shape, dtype=torch.float64).masked_fill(apart, -torch.inf)


def by_steps(call: Callable[..., torch.Tensor], config: Any, each: Comparison) -> Any:
    """A function that gives their rows for x (b, l, d)."""
    new_cache = importlib.import_module("transformers.cache_utils").DynamicCache
    chunked = "chunked-window" in each.options

    def rows(x: torch.Tensor) -> torch.Tensor:
        cache, length = new_cache(**({} if chunked else {"config": config})), x.shape[1]
        first = length - STEPS
        with double(), patch.object(torch.Tensor, "float", torch.Tensor.double):
            causal = seen(slice(first), first, each)
            found = [call(x, slice(first), attention_mask=causal, past_key_values=cache)]
            for i in range(first, length):
                row = slice(i, i + 1)
                mask = seen(row, i + 1, each) if chunked else None
                found.append(call(x, row, attention_mask=mask, past_key_values=cache))
        kept = sum(tensor.numel() for tensor in (cache.layers[0].keys, cache.layers[0].values))
        derived = cm.state(cm.mixer(each.mixer)).at(**each.sizes, t=length)
        assert chunked or kept == len(x) * derived, (kept, derived)
        return torch.cat(found, dim=1)

    return rows
