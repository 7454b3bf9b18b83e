"""Which network does a configuration of Qwen3 with experts describe?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costmodel.networks import parts
from costmodel.networks.architectures.decoder import (
    attention,
    block,
    decoder,
    mixture,
    part,
    rotary,
    sparse,
)
from costmodel.networks.blocks import Description
from costmodel.networks.configuration import Configuration

DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 24,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": None,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
    "rope_parameters": None,
    "rope_scaling": None,
    "attention_bias": False,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": None,
    "decoder_sparse_step": 1,
    "moe_intermediate_size": 768,
    "num_experts_per_tok": 8,
    "num_experts": 128,
    "norm_topk_prob": False,
    "mlp_only_layers": None,
}
"""The fields of transformers' Qwen3MoeConfig that a count may depend on."""


def read(c: Configuration) -> Description:
    """The blocks of transformers' Qwen3MoeForCausalLM or -Model: attention; experts or an FFN."""
    c.with_defaults(DEFAULTS)
    turned, share = rotary(c)
    bias = ("bias",) if c.switch("attention_bias") else ()
    window = c.size_or_none("sliding_window") if c.switch("use_sliding_window") else None
    c.taken.update(("sliding_window", "max_window_layers"))  # a window is one of every layer
    seen, norm = ("window",) if window else (), parts.rms_norm()
    mixer = attention(c, *bias, *seen, "qk-norm", *turned, w=window, **share)
    routing = "softmax-normalised" if c.switch("norm_topk_prob") else "softmax"
    made = {
        True: mixture(c, routing, c.size("moe_intermediate_size")),
        False: part("gated FFN", parts.gated_ffn(c.activation("hidden_act"))),
    }
    layers = [
        block("experts" if there else "dense", mixer, made[there], norm=norm)
        for there in sparse(c, c.size("num_hidden_layers"))
    ]
    return decoder(c, "Qwen3Moe", layers, norm, {"f": c.size("intermediate_size")})
