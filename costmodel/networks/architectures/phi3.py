"""Which network does a configuration of Phi-3 or Phi-4 describe?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costmodel.networks import parts
from costmodel.networks.architectures.decoder import attention, block, decoder, part, rotary
from costmodel.networks.blocks import Description
from costmodel.networks.configuration import Configuration

DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 32064,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "original_max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "rope_parameters": None,
    "rope_scaling": None,
    "partial_rotary_factor": 1.0,
    "sliding_window": None,
}
"""The fields of transformers' Phi3Config that a count may depend on."""


def read(c: Configuration) -> Description:
    """The blocks of transformers' Phi3ForCausalLM and Phi3Model. One map gives queries, keys and
    values there, and one gate and up; both are maps side by side."""
    c.with_defaults(DEFAULTS)
    c.require(dict.fromkeys(("resid_pdrop", "embd_pdrop"), (0.0,)))
    c.agree(attention_bias=False)
    c.taken.add("original_max_position_embeddings")  # which angles, by the length
    turned, share = rotary(c, 1)
    window = c.size_or_none("sliding_window")
    seen, norm = ("window",) if window else (), parts.rms_norm()
    mixer = attention(c, *seen, *turned, w=window, **share)
    ffn = part("gated FFN", parts.gated_ffn(c.activation("hidden_act")))
    layers = [block("phi3", mixer, ffn, norm=norm)] * c.size("num_hidden_layers")
    return decoder(c, "Phi3", layers, norm, {"f": c.size("intermediate_size")})
