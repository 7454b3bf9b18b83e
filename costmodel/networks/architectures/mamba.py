"""Which network does a configuration of Mamba or Mamba-2 describe?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costmodel.networks import parts
from costmodel.networks.architectures.decoder import block, conv_bias, decoder, map_biases, mixer
from costmodel.networks.blocks import Description
from costmodel.networks.configuration import Configuration

BOTH: Mapping[str, Any] = {
    "expand": 2,
    "conv_kernel": 4,
    "time_step_rank": "auto",
}
ONE: Mapping[str, Any] = {
    **BOTH,
    "vocab_size": 50280,
    "hidden_size": 768,
    "state_size": 16,
    "num_hidden_layers": 32,
    "tie_word_embeddings": True,
    "ssm_cfg": {},
}
"""The fields of transformers' MambaConfig that a count may depend on."""
TWO: Mapping[str, Any] = {
    **BOTH,
    "num_heads": 128,
    "head_dim": 64,
    "vocab_size": 32768,
    "hidden_size": 4096,
    "state_size": 128,
    "num_hidden_layers": 64,
    "n_groups": 8,
    "tie_word_embeddings": False,
}
"""The fields of Mamba2Config that a count may depend on."""

ONLY_NUMBERS = (
    "time_step_min", "time_step_max", "time_step_floor", "time_step_scale", "time_step_limit",
    "time_step_init_scheme", "rescale_prenorm_residual", "residual_in_fp32", "use_mambapy",
    "use_associative_scan", "chunk_size", "fused_add_norm", "pad_vocab_size_multiple",
    "norm_before_gate",
)  # fmt: skip
"""Fields that say how weights start, how states are rounded, and which kernel computes them."""


def read(c: Configuration) -> Description:
    """The blocks of transformers' MambaForCausalLM and MambaModel."""
    return _selective(c, "Mamba")


def read_falcon(c: Configuration) -> Description:
    """The blocks of transformers' FalconMambaForCausalLM and FalconMambaModel."""
    c.fields_read.add("mixer_rms_eps")
    remark = "norms of the step, the input and the output, which have no weights, are not counted"
    return _selective(c, "FalconMamba", remark)


def _selective(c: Configuration, name: str, remark: str = "") -> Description:
    """Describe the network of a configuration of Mamba, for the classes whose names begin with
    `name`; `remark` is a sentence for a reader."""
    d, inner = _common(c.with_defaults(ONE))
    rank = c.get("time_step_rank")
    rank = -(-d // 16) if rank == "auto" else c.size("time_step_rank")
    c.agree(d_inner=inner, d_model=d, n_layer=c.size("num_hidden_layers"), rms_norm=True)
    state, taps = c.size("state_size"), c.size("conv_kernel")
    return _decoder(c, name, "mamba", remark, E=inner, R=rank, N=state, k=taps)


def read_2(c: Configuration) -> Description:
    """Describe the network of a configuration of transformers' Mamba2ForCausalLM or Mamba2Model;
    ModelError if heads times their width are not the inner width."""
    _, inner = _common(c.with_defaults(TWO))
    heads, width = c.size("num_heads"), c.size("head_dim")
    c.fields_read.add("time_step_rank")  # the class reads no rank
    if heads * width != inner:
        raise c.refused(
            f"num_heads = {heads} times head_dim = {width} is {heads * width}: expected {inner}, "
            "which is expand times hidden_size"
        )
    state, taps, groups = c.size("state_size"), c.size("conv_kernel"), c.size("n_groups")
    return _decoder(c, "Mamba2", "mamba-2", "", n=heads, P=width, N=state, G=groups, k=taps)


def _common(c: Configuration) -> tuple[int, int]:
    """(model width, inner width) from a configuration of Mamba or Mamba-2; ModelError for
    an activation or inner width other than those that the mixers have."""
    c.require({"hidden_act": ("silu", "swish")})
    c.fields_read.update(ONLY_NUMBERS)
    d = c.size("hidden_size")
    inner = c.size("expand") * d
    c.agree(intermediate_size=inner)
    return d, inner


def _decoder(c: Configuration, name: str, of: str, remark: str, **sizes: int) -> Description:
    """Describe the network of the classes whose names begin with `name`; each layer has the mixer
    `of`, which has the `sizes`. `remark` is a sentence for a reader."""
    norm = parts.rms_norm()
    biases = (*conv_bias(c, "use_conv_bias"), *map_biases(c, "use_bias"))
    layer = block(of, mixer(of, biases, **sizes), norm=norm)
    layers = [layer] * c.size("num_hidden_layers")
    return decoder(c, name, layers, norm, remark=remark, state="fp32")
