"""Which network does a configuration of Gemma, Gemma 2 or the text of Gemma 3 describe?

Norms have gains 1 + w; embedded tokens are multiplied by sqrt(d); Gemma 2 and 3 have a norm before
and one after each sublayer, and windows in some layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costmodel.networks import parts
from costmodel.networks.architectures.decoder import (
    UNIT_GAINS,
    attention,
    block,
    decoder,
    layer_kinds,
    part,
    rotary,
)
from costmodel.networks.blocks import Description
from costmodel.networks.configuration import Configuration

ONE: Mapping[str, Any] = {
    "vocab_size": 256000,
    "hidden_size": 3072,
    "intermediate_size": 24576,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "rope_parameters": None,
    "rope_scaling": None,
    "attention_bias": False,
}
"""The fields of transformers' GemmaConfig that a count may depend on."""
LATER: Mapping[str, Any] = {
    **ONE,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "hidden_activation": "gelu_pytorch_tanh",
    "sliding_window": 4096,
    "layer_types": None,
    "query_pre_attn_scalar": 256,
}
TWO: Mapping[str, Any] = {
    **LATER,
    "final_logit_softcapping": 30.0,
    "attn_logit_softcapping": 50.0,
}
"""The fields of Gemma2Config that a count may depend on."""
THREE: Mapping[str, Any] = {
    **LATER,
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "final_logit_softcapping": None,
    "attn_logit_softcapping": None,
    "sliding_window_pattern": 6,
}
"""The fields of Gemma3TextConfig that a count may depend on."""

FULL, NEAR = KINDS = ("full_attention", "sliding_attention")


def read(c: Configuration) -> Description:
    """Describe the network that a configuration of transformers' GemmaForCausalLM or GemmaModel
    describes: equal layers, each rotary attention over all earlier tokens, then a gated FFN."""
    c.with_defaults(ONE)
    c.agree(hidden_activation=c.get("hidden_act"), use_bidirectional_attention=False)
    turned, _ = rotary(c)
    norm, bias = parts.rms_norm(gain="1 + w"), ("bias",) if c.switch("attention_bias") else ()
    ffn = part("gated FFN", parts.gated_ffn(c.activation("hidden_act")))
    layer = block("gemma", attention(c, *bias, *turned), ffn, norm=norm)
    layers = [layer] * c.size("num_hidden_layers")
    return decoder(c, "Gemma", layers, norm, {"f": c.size("intermediate_size")}, scaled=True)


def read_2(c: Configuration) -> Description:
    """The blocks of transformers' Gemma2ForCausalLM and Gemma2Model."""
    return _windowed(c.with_defaults(TWO), "Gemma2", "Model", 2)


def read_3(c: Configuration) -> Description:
    """The blocks of transformers' Gemma3ForCausalLM and Gemma3TextModel."""
    c.with_defaults(THREE)
    every = c.size("sliding_window_pattern", "_sliding_window_pattern")
    return _windowed(c, "Gemma3", "TextModel", every, "qk-norm")


def _windowed(c: Configuration, name: str, bare: str, every: int, *options: str) -> Description:
    """Describe the network of Gemma 2 or 3: where `layer_types` does not list them, layers 6, 12,
    ... (from 1, if `every` is 6) have full attention, all others a window. `name`: the beginning
    of its classes' names ("Gemma3"); `bare`: the end of the name without a head ("TextModel");
    `options`: further options of attention in all layers."""
    c.agree(use_bidirectional_attention=False, hidden_act=c.get("hidden_activation"))
    c.agree(cache_implementation="hybrid", sliding_window_size=c.get("sliding_window"))
    # a constant, and a base of angles
    c.fields_read.update(("query_pre_attn_scalar", "rope_local_base_freq"))
    turned, _ = rotary(c)
    bias = ("bias",) if c.switch("attention_bias") else ()
    cap = ("soft-cap",) if c.get("attn_logit_softcapping") is not None else ()
    norm = parts.rms_norm(gain="1 + w")
    ffn = part("gated FFN", parts.gated_ffn(c.activation("hidden_activation")))
    kinds = layer_kinds(
        c, c.size("num_hidden_layers"), lambda k: NEAR if (k + 1) % every else FULL, KINDS
    )  # fmt: skip
    full = attention(c, *bias, *options, *cap, *turned)
    near = attention(c, *bias, "window", *options, *cap, *turned, w=c.size("sliding_window"))
    made = {FULL: full, NEAR: near}
    layers = [
        block(kind.removesuffix("_attention"), made[kind], ffn, norm=norm, place="both")
        for kind in kinds
    ]
    return decoder(
        c, name, layers, norm, {"f": c.size("intermediate_size")}, bare=bare, scaled=True,
        cap=c.get("final_logit_softcapping") is not None, remark=UNIT_GAINS if options else "",
    )  # fmt: skip
