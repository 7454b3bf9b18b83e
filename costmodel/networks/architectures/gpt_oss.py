"""Which network does a configuration of gpt-oss describe?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costmodel.networks import parts
from costmodel.networks.architectures.decoder import (
    attention,
    block,
    decoder,
    layer_kinds,
    mixture,
    rotary,
)
from costmodel.networks.blocks import Description
from costmodel.networks.configuration import Configuration

DEFAULTS: Mapping[str, Any] = {
    "num_hidden_layers": 36,
    "num_local_experts": 128,
    "vocab_size": 201088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "head_dim": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "sliding_window": 128,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "num_experts_per_tok": 4,
    "swiglu_alpha": 1.702,
    "swiglu_limit": 7.0,
    "layer_types": None,
    "attention_bias": True,
    "rope_parameters": None,
    "rope_scaling": None,
    "initial_context_length": 4096,
}
"""The fields of transformers' GptOssConfig that a count may depend on; the released files name the
context before yarn and the experts of a token twice."""

KINDS = ("full_attention", "sliding_attention")


def read(c: Configuration) -> Description:
    """The blocks of GptOssForCausalLM or GptOssModel: attention with sinks, and experts."""
    c.with_defaults(DEFAULTS)
    turned, share = rotary(c)
    layers, norm = c.size("num_hidden_layers"), parts.rms_norm()
    bias = ("bias",) if c.switch("attention_bias") else ()
    c.agree(experts_per_token=c.size("num_experts_per_tok"))
    c.taken.update(("swiglu_alpha", "swiglu_limit", "initial_context_length"))  # only numbers
    full = attention(c, *bias, "sinks", *turned, **share)
    window = c.size("sliding_window")
    near = attention(c, *bias, "window", "sinks", *turned, w=window, **share)
    experts = mixture(c, "chosen-softmax", c.size("intermediate_size"), clamped=True)
    kinds = layer_kinds(c, layers, lambda k: KINDS[(k + 1) % 2], KINDS)
    made = {
        KINDS[0]: block("full", full, experts, norm=norm),
        KINDS[1]: block("window", near, experts, norm=norm),
    }
    return decoder(c, "GptOss", [made[kind] for kind in kinds], norm)
