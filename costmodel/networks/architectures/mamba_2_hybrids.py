"""Which network does a configuration of Granite 4.0 or Falcon-H1 describe?

Layers of Granite have Mamba-2 or attention. In each layer of Falcon-H1 both read the same normed
rows, and both outputs are added; an FFN follows. The class of Falcon-H1 multiplies rows at several
places by constants of the configuration, `muP`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from costmodel.networks import parts
from costmodel.networks.architectures.decoder import (
    attention,
    block,
    decoder,
    layer_kinds,
    mamba_2,
    mixture,
    part,
    rotary,
)
from costmodel.networks.blocks import Block, Description
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
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "shared_intermediate_size": 1024,
    "position_embedding_type": None,
    "layer_types": None,
    "mamba_n_heads": 128,
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_head": "auto",
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}
"""The fields of transformers' GraniteMoeHybridConfig that a count may depend on."""

FULL, LINEAR = KINDS = ("full_attention", "linear_attention")

ONLY_NUMBERS = (
    "embedding_multiplier", "logits_scaling", "residual_multiplier", "attention_multiplier",
    "mamba_chunk_size", "time_step_limit", "init_method", "normalization_function",
)  # fmt: skip
"""Constants, by which the class multiplies whatever they are, and sizes of kernels."""

MULTIPLIERS = (
    "lm_head_multiplier", "embedding_multiplier", "mlp_multipliers", "key_multiplier",
    "attention_out_multiplier", "attention_in_multiplier", "ssm_multipliers", "ssm_in_multiplier",
    "ssm_out_multiplier",
)  # fmt: skip
OF_FALCON = (
    "mamba_chunk_size", "time_step_limit", "num_logits_to_keep", "mamba_norm_before_gate",
    "attn_layer_indices", "mamba_use_mlp", "mlp_expansion_factor",
)  # fmt: skip
"""Constants, sizes of kernels, on which side of the gate the norm of Mamba-2 stands, and fields of
released files that the class does not read."""


def read_granite(c: Configuration) -> Description:
    """Describe the network of a configuration of GraniteMoeHybridForCausalLM or -Model: each layer
    is attention or Mamba-2 (as `layer_types` lists them, else Mamba-2), then experts, or a gated
    FFN if `num_local_experts` is 0. ModelError if the heads of Mamba-2 together are not
    `mamba_expand` times as wide as the rows."""
    c.with_defaults(DEFAULTS)
    c.fields_read.update(ONLY_NUMBERS)
    turned, share = rotary(c)
    if c.get("position_embedding_type") != "rope":
        turned, share = (), {}
    bias = ("bias",) if c.switch("attention_bias") else ()
    number, norm = c.size("num_hidden_layers"), parts.rms_norm()
    made = {
        FULL: attention(c, *bias, *turned, **share),
        LINEAR: mamba_2(c, c.size("mamba_expand") * c.size("hidden_size")),
    }
    sizes: dict[str, int] = {}
    if c.get("num_local_experts"):
        ffn = mixture(c, "chosen-softmax", c.size("intermediate_size"), shared="plain")
    else:
        ffn = part("gated FFN", parts.gated_ffn(c.activation("hidden_act")))
        sizes = {"f": c.size("shared_intermediate_size")}
        c.fields_read.update(("intermediate_size", "num_experts_per_tok"))
    kinds = layer_kinds(c, number, lambda k: LINEAR, KINDS)
    layers = [
        block(kind.removesuffix("_attention"), made[kind], ffn, norm=norm, scaled="output")
        for kind in kinds
    ]
    return decoder(
        c, "GraniteMoeHybrid", layers, norm, sizes, scaled=True, scale="divided", state="fp32"
    )


def read_falcon(c: Configuration) -> Description:
    """Describe the network of a configuration of FalconH1ForCausalLM or -Model: equal layers, each
    with Mamba-2 and attention side by side, which read the same normed rows, then a gated FFN."""
    c.with_class().require({"hidden_act": ("silu",)})
    c.fields_read.update((*MULTIPLIERS, *OF_FALCON, "mamba_expand"))
    norm, wide = parts.rms_norm(), c.size_or_none("mamba_d_ssm")
    inner = wide or c.size("mamba_expand") * c.size("hidden_size")
    normed = () if c.switch("mamba_rms_norm") else ("no-norm",)
    of = "mamba_d_ssm" if wide else "mamba_expand"
    state = mamba_2(c, inner, *normed, of=of, out="projectors_bias")
    turned, share = rotary(c)
    biased = ("bias",) if c.switch("attention_bias") else ()
    ffn = parts.gated_ffn("silu", c.switch("mlp_bias"))
    beside = block("hybrid", state, attention(c, *biased, *turned, **share), norm=norm)
    one, two = beside.sublayers
    after = block("hybrid", part("gated FFN", ffn), norm=norm).sublayers
    layer = Block("hybrid", (one, replace(two, before=None, beside=True), *after))
    return decoder(
        c, "FalconH1", [layer] * c.size("num_hidden_layers"), norm,
        {"f": c.size("intermediate_size")}, state="fp32",
        remark="products with the multipliers of the configuration are not counted",
    )  # fmt: skip
