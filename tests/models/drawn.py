"""What transformers' classes have and hold, drawn at random: `python -m tests.models.drawn`.

The command needs transformers and torch, and writes `configurations.json`, the oracle of
test_architectures.py; the tests need neither. Each type has its default configuration, one with
every field drawn, and drawn ones: their parameters, counted on the meta device, and of drawn ones
each tensor of the cache after `TOKENS` tokens of one sequence, run in bfloat16 on the CPU.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "configurations.json"
TOKENS = 30

DRAWN = 6
"""Drawn configurations of each type."""

WIDTHS = {
    "pad_token_id": (None,),
    "vocab_size": (7, 31),
    "hidden_size": (24, 48, 120),
    "num_hidden_layers": (1, 2, 3, 5, 9),
}
FFN = {"intermediate_size": (1, 11, 70)}
HEADS: Mapping[str, Sequence[Any]] = {
    "num_attention_heads": (6, 12),
    "num_key_value_heads": (1, 2, 6),
    "head_dim": (2, 4, 14),
}
TIED = {"tie_word_embeddings": (True, False)}
EXPERTS = {
    "num_experts": (3, 5),
    "num_experts_per_tok": (1, 2),
    "moe_intermediate_size": (1, 10),
}
SHARED = {"shared_expert_intermediate_size": (1, 9)}
DELTA = {
    "linear_num_key_heads": (1, 2),
    "linear_num_value_heads": (2, 6),
    "linear_key_head_dim": (3, 5),
    "linear_value_head_dim": (2, 7),
    "linear_conv_kernel_dim": (2, 4),
    "full_attention_interval": (2, 3),
    "num_hidden_layers": (3, 4, 7),
    "head_dim": (8, 16, 40),
    "attention_bias": (True, False),
}
STATES = {"state_size": (3, 16), "conv_kernel": (3, 4)}
WINDOWS = {"use_sliding_window": (True, False), "max_window_layers": (0, 1, 2)}
USUAL = {**WIDTHS, **FFN, **HEADS, **TIED}

ALWAYS = (
    *WIDTHS, "num_attention_heads", "num_key_value_heads", "num_experts", "num_experts_per_tok",
    "linear_num_key_heads", "linear_num_value_heads", "num_heads", "n_groups",
)  # fmt: skip
"""Fields that are always drawn: the class's defaults would not fit the others."""

FIELDS: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "llama": {**USUAL, "attention_bias": (True, False), "mlp_bias": (True, False)},
    "mistral": {**USUAL, "sliding_window": (None, 3)},
    "qwen2": {**USUAL, **WINDOWS},
    "qwen3": {**USUAL, **WINDOWS, "attention_bias": (True, False)},
    "mixtral": {**USUAL, "num_local_experts": (3, 5), "num_experts_per_tok": (1, 2)},
    "gpt_oss": {
        **USUAL,
        "num_local_experts": (3, 5),
        "num_experts_per_tok": (1, 2),
        "sliding_window": (2, 9),
        "attention_bias": (True, False),
    },
    "qwen3_moe": {
        **USUAL,
        **EXPERTS,
        "decoder_sparse_step": (1, 2, 3),
        "mlp_only_layers": ([], [0], [1, 2]),
        "attention_bias": (True, False),
        "use_sliding_window": (True, False),
        "norm_topk_prob": (True, False),
    },
    "qwen3_next": {
        **USUAL,
        **DELTA,
        **EXPERTS,
        **SHARED,
        "decoder_sparse_step": (1, 2),
        "mlp_only_layers": ([], [0], [1, 2]),
    },
    "mamba": {**WIDTHS, **TIED, **STATES, "expand": (2, 3), "time_step_rank": ("auto", 5)},
    "mamba2": {
        **WIDTHS,
        **TIED,
        **STATES,
        "hidden_size": (24,),
        "expand": (2,),
        "num_heads": (6,),
        "head_dim": (8,),
        "n_groups": (1, 2, 3),
    },
    "phi3": {**USUAL, "partial_rotary_factor": (0.5, 0.75, 1.0), "head_dim": (8, 16)},
    "smollm3": {
        **USUAL,
        "attention_bias": (True, False),
        "mlp_bias": (True, False),
        "no_rope_layer_interval": (2, 3),
        "use_sliding_window": (True, False),
        "sliding_window": (3,),
    },
    "lfm2": {
        **USUAL,
        "intermediate_size": (11, 70),
        "conv_L_cache": (2, 5),
        "full_attn_idxs": ([0], [0, 2]),
        "block_multiple_of": (8,),
        "block_ffn_dim_multiplier": (1.0, 1.5),
        "block_auto_adjust_ff_dim": (True, False),
    },
    "deepseek_v3": {
        **WIDTHS,
        **FFN,
        **TIED,
        "num_attention_heads": (6,),
        "num_key_value_heads": (6,),
        "moe_intermediate_size": (1, 9),
        "n_shared_experts": (1, 2),
        "n_routed_experts": (8,),
        "kv_lora_rank": (3, 8),
        "q_lora_rank": (None, 5),
        "qk_rope_head_dim": (2, 4),
        "v_head_dim": (3, 7),
        "qk_nope_head_dim": (5, 6),
        "n_group": (1, 4),
        "topk_group": (1,),
        "num_experts_per_tok": (1, 2),
        "first_k_dense_replace": (0, 1, 2),
        "norm_topk_prob": (True, False),
    },
    "granitemoehybrid": {
        **USUAL,
        "hidden_size": (24, 48),
        "num_hidden_layers": (3,),
        "layer_types": (["mamba", "attention", "mamba"], ["attention", "attention", "mamba"]),
        "num_local_experts": (0, 3),
        "num_experts_per_tok": (2,),
        "shared_intermediate_size": (1, 9),
        "mamba_n_heads": (6,),
        "mamba_n_groups": (1, 3),
        "mamba_d_state": (3, 8),
        "mamba_d_conv": (3, 4),
        "attention_bias": (True, False),
    },
    "nemotron_h": {
        "pad_token_id": (None,),
        "vocab_size": (7, 31),
        "hidden_size": (24, 48),
        **FFN,
        **HEADS,
        **TIED,
        "hybrid_override_pattern": ("M*M-", "*EM*E", "M*"),
        "ssm_state_size": (3, 8),
        "mamba_num_heads": (6,),
        "mamba_head_dim": (5, 8),
        "n_groups": (1, 3),
        "conv_kernel": (3, 4),
        "n_routed_experts": (4,),
        "num_experts_per_tok": (1, 2),
        "moe_intermediate_size": (2, 9),
        "moe_shared_expert_intermediate_size": (3, 7),
        "norm_topk_prob": (True, False),
        "attention_bias": (True, False),
    },
    "gemma": USUAL,
    "gemma2": {**USUAL, "sliding_window": (3,)},
    "gemma3_text": {**USUAL, "sliding_window": (3,), "sliding_window_pattern": (2, 3)},
    "qwen3_5_text": {**USUAL, **DELTA},
    "qwen3_5_moe_text": {**WIDTHS, **HEADS, **TIED, **DELTA, **EXPERTS, **SHARED},
}
"""model_type -> the fields that are drawn, each with the values that it takes."""


def drawn() -> list[dict[str, Any]]:
    """The configurations, each with its type."""
    random_ = random.Random(31)
    found: list[dict[str, Any]] = []
    for kind, fields in FIELDS.items():
        found.append({"model_type": kind})
        for k in range(DRAWN):
            names = [
                n
                for n in fields
                if k == 0 or n in ALWAYS or len(fields[n]) == 1 or random_.random() < 0.8
            ]
            one = {"model_type": kind, **{n: random_.choice(fields[n]) for n in names}}
            found.append(one)
    return found


def recorded(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with the number of parameters of its class; a drawn one with what its cache
    holds too."""
    import torch
    from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING

    fields = {name: value for name, value in config.items() if name != "model_type"}
    made = CONFIG_MAPPING[config["model_type"]](**fields)
    with torch.device("meta"):
        model = MODEL_FOR_CAUSAL_LM_MAPPING[type(made)](made)
    model.tie_weights()
    numbers = {id(p): p.numel() for p in model.parameters()}
    found = {"config": dict(config), "parameters": sum(numbers.values())}
    return found if len(config) == 1 else {**found, **held(made)}


def held(made: Any) -> dict[str, Any]:
    """The tensors that a configuration's model keeps after `TOKENS` tokens, as [name, shape,
    element type, number of layers]; nothing where the class does not run."""
    import torch
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    mixed = made.model_type not in ("mamba", "mamba2")
    if mixed and {*getattr(made, "layer_types", "?")} <= {"linear_attention", "conv"}:
        return {}  # the class does not run without a layer of attention
    made._experts_implementation = "eager"  # kernels of experts want widths of 16 bytes
    model = MODEL_FOR_CAUSAL_LM_MAPPING[type(made)](made).eval().to(torch.bfloat16)
    with torch.no_grad():
        out = model(torch.arange(TOKENS)[None] % made.vocab_size, use_cache=True)
    kept = getattr(out, "past_key_values", None) or out.cache_params
    tensors = [found for layer in kept.layers for found in named(vars(layer))]
    alike = Counter(
        (name, tuple(t.shape), str(t.dtype).removeprefix("torch.")) for name, t in tensors
    )
    return {"tensors": [[name, list(shape), dtype, n] for (name, shape, dtype), n in alike.items()]}


def named(attributes: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each tensor with entries among the attributes of a cache's layer, with its name: without
    numbers of the layer's own, such as the size of a window, whose names begin with _."""
    import torch

    for name, value in attributes.items():
        for tensor in value.values() if isinstance(value, dict) else [value]:
            if torch.is_tensor(tensor) and tensor.numel() and not name.startswith("_"):
                yield name, tensor


def main() -> None:
    """Write the file anew."""
    found = [recorded(config) for config in drawn()]
    lines = ",\n".join(json.dumps(one) for one in found)
    FILE.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    print(f"{len(found)} configurations")


if __name__ == "__main__":
    main()
