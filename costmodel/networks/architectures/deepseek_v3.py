"""Which network does a configuration of DeepSeek-V3, R1 or Kimi-K2 describe?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from costmodel.networks import parts
from costmodel.networks.architectures.decoder import (
    block,
    decoder,
    mixer,
    mixture,
    part,
    rotary,
)
from costmodel.networks.blocks import Description
from costmodel.networks.configuration import Configuration

DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "n_shared_experts": 1,
    "n_routed_experts": 256,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "qk_nope_head_dim": 128,
    "n_group": 8,
    "topk_group": 4,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "norm_topk_prob": True,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "rope_parameters": None,
    "rope_scaling": None,
    "attention_bias": False,
}
"""The fields of transformers' DeepseekV3Config that a count may depend on."""

ONLY_NUMBERS = (
    "routed_scaling_factor", "rope_interleave", "num_key_value_heads", "ep_size", "seq_aux",
    "aux_loss_alpha", "num_nextn_predict_layers", "num_mtp_layers",
)  # fmt: skip
"""Constants, losses, and layers that predict further tokens, which the class does not load."""


def read(c: Configuration) -> Description:
    """The blocks of DeepseekV3ForCausalLM or -Model: latent attention; a dense FFN or experts."""
    c.with_defaults(DEFAULTS)
    rotary(c)
    c.require({"attention_bias": (False,)})
    c.agree(moe_layer_freq=1, scoring_func="sigmoid", topk_method="noaux_tc")
    c.taken.update(ONLY_NUMBERS)
    queries = c.size_or_none("q_lora_rank")
    latent = mixer(
        "mla",
        ("query-compression",) if queries else (),
        n=c.size("num_attention_heads"),
        K=c.size("qk_nope_head_dim"),
        V=c.size("v_head_dim"),
        c=c.size("kv_lora_rank"),
        R=c.size("qk_rope_head_dim"),
        r=queries,
    )
    latent = replace(latent, token_form="absorbed")
    routing = "sigmoid-normalised" if c.switch("norm_topk_prob") else "sigmoid"
    groups = (c.size("n_group"), c.size("topk_group"))
    experts = mixture(c, routing, c.size("moe_intermediate_size"), shared="plain")
    dense = part("gated FFN", parts.gated_ffn(c.activation("hidden_act")))
    norm, first = parts.rms_norm(), c.get("first_k_dense_replace") or 0
    layers = [
        block(
            "dense" if k < first else "experts", latent, dense if k < first else experts, norm=norm
        )
        for k in range(c.size("num_hidden_layers"))
    ]
    remark = "a new token attends to latent rows (absorbed), a whole sequence to keys and values"
    if groups[1] < groups[0]:
        remark += (
            f"; experts are chosen among all, where the class compares within {groups[1]} of "
            f"{groups[0]} groups"
        )
    sizes = {"f": c.size("intermediate_size")}
    return decoder(c, "DeepseekV3", layers, norm, sizes, remark=remark)
