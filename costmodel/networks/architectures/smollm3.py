"""Which network does a configuration of SmolLM3 describe?"""

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
from costmodel.networks.blocks import Description
from costmodel.networks.configuration import Configuration

DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36,
    "num_attention_heads": 16, "num_key_value_heads": 4, "hidden_act": "silu",
    "max_position_embeddings": 32768, "tie_word_embeddings": True, "rope_parameters": None,
    "rope_scaling": None, "use_sliding_window": False, "sliding_window": None,
    "max_window_layers": None, "no_rope_layers": None, "no_rope_layer_interval": 4,
    "layer_types": None, "attention_bias": False, "mlp_bias": False,
}  # fmt: skip
"""The fields of transformers' SmolLM3Config that a count may depend on."""

FULL, NEAR = KINDS = ("full_attention", "sliding_attention")


def read(c: Configuration) -> Description:
    """Describe the network of a configuration of transformers' SmolLM3ForCausalLM or SmolLM3Model.
    Layers with 0 in the list `no_rope_layers` (without it, each `no_rope_layer_interval`-th) have
    no rotary embedding; windows, if `use_sliding_window`, stand in these or as `layer_types` lists
    them. ModelError for a listed window if `use_sliding_window` or the width is missing."""
    c.with_defaults(DEFAULTS)
    turned, _ = rotary(c)
    number, every = c.size("num_hidden_layers"), c.size("no_rope_layer_interval")
    turns = c.flags("no_rope_layers", number) or [(k + 1) % every > 0 for k in range(number)]
    width = c.size_or_none("sliding_window") if c.switch("use_sliding_window") else None
    c.fields_read.update(("sliding_window", "max_window_layers"))  # read where windows are in use
    kinds = layer_kinds(c, number, lambda k: NEAR if width and not turns[k] else FULL, KINDS)
    if NEAR in kinds and width is None:
        raise c.refused(
            "layer_types has 'sliding_attention', but no window is in use: set use_sliding_window "
            "= true and sliding_window, or write 'full_attention' in layer_types"
        )
    norm, bias = parts.rms_norm(), ("bias",) if c.switch("attention_bias") else ()
    ffn = part("gated FFN", parts.gated_ffn(c.activation("hidden_act"), c.switch("mlp_bias")))
    made = {
        (turn, near): attention(
            c, *bias, *(("window",) if near else ()), *(turned if turn else ()),
            w=width if near else None,
        )
        for turn in (True, False)
        for near in (True, False)
        if not near or width is not None
    }  # fmt: skip
    layers = [
        block("rotary" if turn else "no positions", made[turn, kind == NEAR], ffn, norm=norm)
        for turn, kind in zip(turns, kinds, strict=True)
    ]
    return decoder(c, "SmolLM3", layers, norm, {"f": c.size("intermediate_size")})
