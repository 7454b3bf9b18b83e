"""Which network does a configuration of Qwen2, Qwen2.5 or Qwen3 describe?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costmodel.networks import parts
from costmodel.networks.architectures.decoder import (
    attention,
    block,
    decoder,
    layer_kinds,
    part,
    rotary,
)
from costmodel.networks.blocks import Description, Use
from costmodel.networks.configuration import Configuration

DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
    "rope_parameters": None,
    "rope_scaling": None,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "layer_types": None,
}
"""The fields of transformers' Qwen2Config that a count may depend on."""

KINDS = ("full_attention", "sliding_attention")


def read(c: Configuration) -> Description:
    """The blocks of transformers' Qwen2ForCausalLM and Qwen2Model."""
    return _dense(c.with_defaults(DEFAULTS), "Qwen2", "qkv-bias")


def read_3(c: Configuration) -> Description:
    """The blocks of transformers' Qwen3ForCausalLM and Qwen3Model."""
    c.with_defaults({**DEFAULTS, "head_dim": 128, "attention_bias": False})
    bias = ("bias",) if c.switch("attention_bias") else ()
    return _dense(c, "Qwen3", *bias, "qk-norm")


def _dense(c: Configuration, name: str, *options: str) -> Description:
    """The blocks of Qwen2 or Qwen3 (`name`), whose attention has `options`, with gated FFNs."""
    norm, ffn = parts.rms_norm(), parts.gated_ffn(c.activation("hidden_act"))
    layers = [
        block(name.lower(), mixer, part("gated FFN", ffn), norm=norm)
        for mixer in windowed(c, *options)
    ]
    return decoder(c, name, layers, norm, {"f": c.size("intermediate_size")})


def windowed(c: Configuration, *options: str) -> list[Use]:
    """The attention of each layer, with `options`: of the kinds in `layer_types`, else with a
    window in the layers from `max_window_layers` on if the configuration switches windows on.
    ModelError if a layer has a window and windows are switched off."""
    layers, width = c.size("num_hidden_layers"), c.size_or_none("sliding_window")
    width = width if c.switch("use_sliding_window") else None
    first = c.get("max_window_layers")
    turned, share = rotary(c)
    kinds = layer_kinds(
        c, layers, lambda k: KINDS[width is not None and k >= first], KINDS
    )  # fmt: skip
    full = attention(c, *options, *turned, **share)
    if KINDS[1] not in kinds:
        return [full] * layers
    if width is None:
        raise c.refused("layer_types has 'sliding_attention', and no sliding window is in use")
    near = attention(c, *options, "window", *turned, w=width, **share)
    return [full if kind == KINDS[0] else near for kind in kinds]
