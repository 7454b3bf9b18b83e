"""Which network does a configuration of Falcon-H1 describe?

In each layer Mamba-2 and attention read the same normed rows, and both outputs are added; an FFN
follows. The class multiplies rows at several places by constants of the configuration, `muP`.
"""

from __future__ import annotations

from dataclasses import replace

from costmodel.networks import parts
from costmodel.networks.architectures.decoder import (
    attention,
    block,
    decoder,
    mamba_2,
    part,
    rotary,
)
from costmodel.networks.blocks import Block, Description
from costmodel.networks.configuration import Configuration

MULTIPLIERS = (
    "lm_head_multiplier", "embedding_multiplier", "mlp_multipliers", "key_multiplier",
    "attention_out_multiplier", "attention_in_multiplier", "ssm_multipliers", "ssm_in_multiplier",
    "ssm_out_multiplier",
)  # fmt: skip
ONLY_NUMBERS = (
    "mamba_chunk_size", "time_step_limit", "num_logits_to_keep", "mamba_norm_before_gate",
    "attn_layer_indices", "mamba_use_mlp", "mlp_expansion_factor",
)  # fmt: skip
"""Constants, sizes of kernels, on which side of the gate the norm of Mamba-2 stands, and fields of
released files that the class does not read."""


def read(c: Configuration) -> Description:
    """Describe the network of a configuration of FalconH1ForCausalLM or -Model: in each block
    Mamba-2 beside attention, then a gated FFN."""
    c.with_class().require({"hidden_act": ("silu",)})
    c.fields_read.update((*MULTIPLIERS, *ONLY_NUMBERS, "mamba_expand"))
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
        c,
        "FalconH1",
        [layer] * c.size("num_hidden_layers"),
        norm,
        {"f": c.size("intermediate_size")},
        state="fp32",
        remark="products with the multipliers of the configuration are not counted",
    )
