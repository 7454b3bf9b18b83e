"""Which network does a configuration of LFM2 describe?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costmodel.networks import parts
from costmodel.networks.architectures.decoder import (
    attention,
    block,
    decoder,
    gated_convolution,
    layer_kinds,
    part,
    rotary,
)
from costmodel.networks.blocks import Description
from costmodel.networks.configuration import Configuration

DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 65536, "hidden_size": 2560, "intermediate_size": 12288, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 128000,
    "tie_word_embeddings": True, "rope_parameters": None, "rope_scaling": None, "conv_L_cache": 3,
    "conv_bias": False, "block_multiple_of": 256, "block_ffn_dim_multiplier": 1.0,
    "block_auto_adjust_ff_dim": True, "full_attn_idxs": None, "layer_types": None,
}  # fmt: skip
"""The fields of transformers' Lfm2Config that a count may depend on."""

FULL, CONV = KINDS = ("full_attention", "conv")

ONLY_NUMBERS = (
    "norm_eps", "block_norm_eps", "block_mlp_init_scale", "block_out_init_scale",
    "block_use_xavier_init", "conv_use_xavier_init", "theta",
)  # fmt: skip
"""Fields that say how weights start, and constants of norms and angles."""


def read(c: Configuration) -> Description:
    """Describe the network of a configuration of transformers' Lfm2ForCausalLM or Lfm2Model: in
    each layer attention (in those that `layer_types`, or else `full_attn_idxs`, lists; without
    both in all) or a gated convolution, then a gated FFN."""
    c.with_defaults(DEFAULTS)
    c.replaced(tie_word_embeddings="tie_embedding")
    d, number, norm = c.size("hidden_size"), c.size("num_hidden_layers"), parts.rms_norm()
    c.fields_read.update(ONLY_NUMBERS)
    c.agree(
        block_dim=d, conv_dim=d, conv_dim_out=d, num_heads=c.size("num_attention_heads"),
        block_use_swiglu=True, use_pos_enc=True,
    )  # fmt: skip
    turned, _ = rotary(c)
    listed = c.layers("full_attn_idxs")
    attending = range(number) if listed is None else listed
    kinds = layer_kinds(c, number, lambda k: FULL if k in attending else CONV, KINDS)
    made = {FULL: attention(c, "qk-norm", *turned), CONV: gated_convolution(c)}
    ffn = part("gated FFN", parts.gated_ffn())
    layers = [block(kind, made[kind], ffn, norm=norm) for kind in kinds]
    return decoder(c, "Lfm2", layers, norm, {"f": _width(c)})


def _width(c: Configuration) -> int:
    """The width of the gated FFNs: that of the first field given; if `block_auto_adjust_ff_dim`,
    two thirds of it; with a factor, times it and up to a multiple of `block_multiple_of`."""
    width: int = c.size("block_ff_dim", "intermediate_size")
    name, multiple = "block_ffn_dim_multiplier", c.size("block_multiple_of")
    factor = None if c.get(name) is None else c.positive(name)
    if not c.switch("block_auto_adjust_ff_dim"):
        return width
    width = int(2 * width / 3)
    return width if factor is None else -(-int(factor * width) // multiple) * multiple
