"""Which network does a configuration of Qwen3-Next or Qwen3.5 describe?

Gated DeltaNet in most layers, gated attention in the others; after either a gated FFN, or experts
with one that is shared. All norms but that of Gated DeltaNet have gains 1 + w; those of queries
and keys count without the sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from costmodel.networks import parts
from costmodel.networks.architectures.decoder import (
    UNIT_GAINS,
    attention,
    block,
    decoder,
    layer_kinds,
    mixer,
    mixture,
    part,
    rotary,
    sparse,
)
from costmodel.networks.blocks import Description, Use
from costmodel.networks.configuration import Configuration

MIXERS: Mapping[str, Any] = {
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
    "rope_parameters": None,
    "rope_scaling": None,
    "partial_rotary_factor": 0.25,
    "attention_bias": False,
    "head_dim": 256,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "layer_types": None,
    "full_attention_interval": 4,
}
EXPERTS: Mapping[str, Any] = {
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}
NEXT: Mapping[str, Any] = {
    **MIXERS,
    **EXPERTS,
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "decoder_sparse_step": 1,
    "num_experts_per_tok": 10,
    "num_experts": 512,
    "norm_topk_prob": True,
    "mlp_only_layers": None,
    "use_sliding_window": False,
}
"""The fields of transformers' Qwen3NextConfig that a count may depend on."""
DENSE: Mapping[str, Any] = {
    **MIXERS,
    "vocab_size": 248320,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
}
"""The fields of Qwen3_5TextConfig that a count may depend on."""
MOE: Mapping[str, Any] = {
    **MIXERS,
    **EXPERTS,
    "vocab_size": 248320,
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 8,
    "num_experts": 256,
}
"""The fields of Qwen3_5MoeTextConfig that a count may depend on."""

FULL, LINEAR = KINDS = ("full_attention", "linear_attention")


def read(c: Configuration) -> Description:
    """Describe the network of a configuration of Qwen3NextForCausalLM or -Model: after its mixer,
    each layer has experts or a gated FFN."""
    c.with_defaults(NEXT)
    routing = "softmax-normalised" if c.switch("norm_topk_prob") else "softmax"
    there = sparse(c, c.size("num_hidden_layers"))
    experts = mixture(c, routing, c.size("moe_intermediate_size"), shared="gated")
    f = c.size("intermediate_size")
    ffn = [experts if sparse_ else _dense(c) for sparse_ in there]
    return _decoder(c, "Qwen3Next", ffn, {"f": f}, "Model")


def read_3_5(c: Configuration) -> Description:
    """The blocks of transformers' Qwen3_5ForCausalLM and Qwen3_5TextModel."""
    ffn = [_dense(c.with_defaults(DENSE))] * c.size("num_hidden_layers")
    c.agree(mlp_only_layers=[])
    return _decoder(c, "Qwen3_5", ffn, {"f": c.size("intermediate_size")}, "TextModel")


def read_3_5_moe(c: Configuration) -> Description:
    """Describe the network of a configuration of Qwen3_5MoeForCausalLM or -TextModel, with experts
    in each layer."""
    c.with_defaults(MOE).agree(mlp_only_layers=[])
    width = c.size("moe_intermediate_size")
    experts = mixture(c, "softmax-normalised", width, shared="gated")
    ffn = [experts] * c.size("num_hidden_layers")
    return _decoder(c, "Qwen3_5Moe", ffn, {}, "TextModel")


def _dense(c: Configuration) -> Use:
    return part("gated FFN", parts.gated_ffn(c.activation("hidden_act")))


def _decoder(
    c: Configuration, name: str, ffn: Sequence[Use], sizes: Mapping[str, int], bare: str
) -> Description:
    """Describe the network of the classes whose names begin with `name` (without a head, they end
    with `bare`). The mixer is attention in every `full_attention_interval`-th layer, or as
    `layer_types` lists, else gated DeltaNet. `ffn`: for each layer the part after its mixer;
    `sizes`: letter -> value, such as f."""
    c.require({"use_sliding_window": (False,), "attn_output_gate": (True,)})
    # the layers that predict further tokens (mtp) are not loaded, and states are float32
    c.fields_read.update(
        ("mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "mamba_ssm_dtype")
    )
    turned, share = rotary(c, 0.25)
    every = c.size("full_attention_interval")
    kinds = layer_kinds(c, len(ffn), lambda k: LINEAR if (k + 1) % every else FULL, KINDS)
    bias = ("bias",) if c.switch("attention_bias") else ()
    c.divide("linear_num_key_heads", "linear_num_value_heads")
    made = {
        FULL: attention(c, *bias, "gate", "qk-norm", *turned, **share),
        LINEAR: mixer(
            "gated-deltanet", (), n=c.size("linear_num_value_heads"),
            g=c.size("linear_num_key_heads"), K=c.size("linear_key_head_dim"),
            V=c.size("linear_value_head_dim"), k=c.size("linear_conv_kernel_dim"),
        ),
    }  # fmt: skip
    norm = parts.rms_norm(gain="1 + w")
    layers = [
        block(kind.removesuffix("_attention"), made[kind], after, norm=norm)
        for kind, after in zip(kinds, ffn, strict=True)
    ]
    return decoder(c, name, layers, norm, sizes, bare=bare, remark=UNIT_GAINS, state="fp32")
