"""Which network does a configuration of Mistral describe?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costmodel.networks import parts
from costmodel.networks.architectures.decoder import attention, block, decoder, part, rotary
from costmodel.networks.blocks import Description
from costmodel.networks.configuration import Configuration

DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": None,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "rope_parameters": None,
    "rope_scaling": None,
    "sliding_window": 4096,
}
"""The fields of transformers' MistralConfig that a count may depend on."""


def read(c: Configuration) -> Description:
    """The blocks of transformers' MistralForCausalLM or MistralModel, with a window if given."""
    c.with_defaults(DEFAULTS)
    turned, share = rotary(c)
    window = c.size_or_none("sliding_window")
    seen = ("window",) if window else ()
    norm = parts.rms_norm()
    mixer = attention(c, *seen, *turned, w=window, **share)
    ffn = part("gated FFN", parts.gated_ffn(c.activation("hidden_act")))
    layers = [block("mistral", mixer, ffn, norm=norm)] * c.size("num_hidden_layers")
    return decoder(c, "Mistral", layers, norm, {"f": c.size("intermediate_size")})
