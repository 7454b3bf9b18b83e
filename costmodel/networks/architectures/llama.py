"""Which network does a configuration of Llama 2 or 3 describe?"""

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
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "rope_parameters": None,
    "rope_scaling": None,
    "attention_bias": False,
    "mlp_bias": False,
    "head_dim": None,
}
"""The fields of transformers' LlamaConfig that a count may depend on."""


def read(c: Configuration) -> Description:
    """The blocks of transformers' LlamaForCausalLM or LlamaModel: rotary attention, gated FFN."""
    c.with_defaults(DEFAULTS)
    turned, share = rotary(c)
    bias = ("bias",) if c.switch("attention_bias") else ()
    norm = parts.rms_norm()
    ffn = parts.gated_ffn(c.activation("hidden_act"), c.switch("mlp_bias"))
    layer = block(
        "llama", attention(c, *bias, *turned, **share), part("gated FFN", ffn), norm=norm
    )  # fmt: skip
    layers = [layer] * c.size("num_hidden_layers")
    return decoder(c, "Llama", layers, norm, {"f": c.size("intermediate_size")})
