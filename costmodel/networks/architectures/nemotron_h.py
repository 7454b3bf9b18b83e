"""Which network does a configuration of Nemotron-H or Nemotron 3 Nano describe?

A layer is one sublayer: Mamba-2 (M), attention without positions (*), an FFN (-) or experts (E).
The class never ties the head to the embedding and gives attention no bias, whatever the
configuration says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costmodel.networks import parts
from costmodel.networks.architectures.decoder import (
    attention,
    block,
    conv_bias,
    decoder,
    map_biases,
    mixer,
    mixture,
    part,
)
from costmodel.networks.blocks import Block, Description
from costmodel.networks.configuration import Configuration

DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 131072,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "intermediate_size": 21504,
    "mlp_bias": False,
    "ssm_state_size": 128,
    "mamba_num_heads": 128,
    "mamba_head_dim": 64,
    "n_groups": 8,
    "conv_kernel": 4,
    "n_routed_experts": 8,
    "moe_intermediate_size": 7688,
    "moe_shared_expert_intermediate_size": 7688,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "hybrid_override_pattern": None,
    "layers_block_type": None,
    "layer_types": None,
}
"""The fields of transformers' NemotronHConfig that a count may depend on."""

KINDS: Mapping[str, str] = {
    "M": "linear_attention",
    "E": "moe",
    "*": "full_attention",
    "-": "mlp",
}
"""Letter of `hybrid_override_pattern` -> the kind of a layer; in this order, the default."""

ONLY_NUMBERS = (
    "expand", "time_step_rank", "time_step_min", "time_step_max", "time_step_limit",
    "time_step_floor", "chunk_size",
    "use_mamba_kernels", "rescale_prenorm_residual", "residual_in_fp32", "routed_scaling_factor",
    "attention_bias", "num_logits_to_keep", "mamba_ssm_cache_dtype", "moe_shared_expert_overlap",
    "n_shared_experts", "num_nextn_predict_layers", "mtp_layers_block_type",
    "mtp_hybrid_override_pattern", "mamba_proj_bias", "norm_eps", "partial_rotary_factor",
)  # fmt: skip
"""Constants, kernels, a rotary embedding and a bias that the class does not read (`use_bias` says
which biases there are), and layers that predict further tokens, which the class does not load; the
width of a shared expert has its own field, and the width of Mamba-2 is heads times their width."""


def read(c: Configuration) -> Description:
    """Describe the network of a configuration of transformers' NemotronHForCausalLM or
    NemotronHModel: blocks of one sublayer each (Mamba-2, attention, an FFN or experts)."""
    c.with_defaults(DEFAULTS)
    c.require(
        {"mlp_hidden_act": ("relu2",), "mamba_hidden_act": ("silu",), "moe_latent_size": (None,),
         "hidden_dropout": (0.0,)}
    )  # fmt: skip
    c.fields_read.update(ONLY_NUMBERS)
    c.agree(attention_head_dim=c.size("head_dim"), num_query_groups=c.size("num_key_value_heads"))
    kinds, norm = _kinds(c), parts.rms_norm()
    made = {kind: block(kind, _part(c, kind), norm=norm) for kind in dict.fromkeys(kinds)}
    for kind, fields in FIELDS.items():
        # fields of a kind of layer that the network lacks change nothing: they count as read
        if kind not in made:
            c.fields_read.update(fields)
    layers: list[Block] = [made[kind] for kind in kinds]
    remark = ""
    if "moe" in made and c.size("topk_group") < c.size("n_group"):
        remark = "experts are chosen among all, where the class compares within groups"
    c.fields_read.update(("n_group", "topk_group"))
    return decoder(c, "NemotronH", layers, norm, ties=False, remark=remark, state="fp32")


FIELDS: Mapping[str, tuple[str, ...]] = {
    "linear_attention": (
        "mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel",
        "use_conv_bias", "use_bias",
    ),
    "full_attention": ("num_attention_heads", "num_key_value_heads", "head_dim"),
    "mlp": ("intermediate_size", "mlp_bias"),
    "moe": (
        "n_routed_experts", "moe_intermediate_size", "moe_shared_expert_intermediate_size",
        "num_experts_per_tok", "norm_topk_prob", "mlp_bias",
    ),
}  # fmt: skip
"""Kind of a layer -> the fields that say nothing where no layer is of that kind."""


def _part(c: Configuration, kind: str) -> Any:
    """Make the part in a layer of this kind: Mamba-2 for linear_attention, attention, an FFN of
    squared relu for mlp, else a mixture of such experts."""
    if kind == "linear_attention":
        return mixer(
            "mamba-2",
            (*conv_bias(c, "use_conv_bias"), *map_biases(c, "use_bias")),
            n=c.size("mamba_num_heads"),
            P=c.size("mamba_head_dim"),
            N=c.size("ssm_state_size"),
            G=c.size("n_groups"),
            k=c.size("conv_kernel"),
        )
    if kind == "full_attention":
        return attention(c)
    if kind == "mlp":
        ffn = parts.ffn("relu", bias=c.switch("mlp_bias"), squared=True)
        return part("FFN", ffn, f=c.size("intermediate_size"))
    routing = "sigmoid-normalised" if c.switch("norm_topk_prob") else "sigmoid"
    width = c.size("moe_intermediate_size")
    shared = "biased" if c.switch("mlp_bias") else "plain"
    return mixture(c, routing, width, squared="relu", shared=shared)


def _kinds(c: Configuration) -> list[str]:
    """The kind of each layer: as `layers_block_type` or `layer_types` lists them, else by the
    letters of `hybrid_override_pattern`, by default ME*-. ModelError for an unknown letter or kind,
    or another number of layers in `num_hidden_layers`."""
    pattern, listed = c.get("hybrid_override_pattern"), c.get("layers_block_type", "layer_types")
    if not isinstance(pattern, str | None):
        letters = " ".join(KINDS)
        raise c.refused(f"'hybrid_override_pattern' must be a string of {letters}, got {pattern!r}")
    if listed is None:
        if unknown := {*(pattern or "")} - {*KINDS}:
            raise c.refused(
                f"'hybrid_override_pattern' has '{min(unknown)}': expected {' '.join(KINDS)} alone"
            )
        found = [KINDS[letter] for letter in pattern or "ME*-"]
    else:
        if not isinstance(listed, list) or not listed:
            raise c.refused(f"'layers_block_type' must name the kind of each layer, got {listed!r}")
        found = c.layer_types(len(listed), [*KINDS.values()], listed, "layers_block_type") or []
    c.agree(num_hidden_layers=len(found))
    return found
