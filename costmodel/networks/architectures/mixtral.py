"""Which network does a configuration of Mixtral describe?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costmodel.networks import parts
from costmodel.networks.architectures.decoder import attention, block, decoder, mixture, rotary
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
    "sliding_window": None,
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
    "rope_parameters": None,
    "rope_scaling": None,
}
"""The fields of transformers' MixtralConfig that a count may depend on."""


def read(c: Configuration) -> Description:
    """The blocks of transformers' MixtralForCausalLM or MixtralModel: attention and experts."""
    c.with_defaults(DEFAULTS)
    turned, share = rotary(c)
    window = c.size_or_none("sliding_window")
    seen, norm = ("window",) if window else (), parts.rms_norm()
    mixer = attention(c, *seen, *turned, w=window, **share)
    experts = mixture(c, "softmax-normalised", c.size("intermediate_size"))
    layers = [block("mixtral", mixer, experts, norm=norm)] * c.size("num_hidden_layers")
    return decoder(c, "Mixtral", layers, norm)
