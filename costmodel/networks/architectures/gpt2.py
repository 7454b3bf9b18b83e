"""Which network does a configuration of GPT-2 describe?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costmodel.networks.choices import Choices
from costmodel.networks.configuration import Configuration

HEADS: Mapping[str, Mapping[str, Any]] = {
    "GPT2LMHeadModel": {"head": "vocabulary"},
    "GPT2Model": {"head": "none", "loss": False},
}

NUMBERS = (
    "attn_pdrop", "reorder_and_upcast_attn", "summary_activation", "summary_first_dropout",
    "summary_proj_to_labels", "summary_type", "summary_use_proj",
)  # fmt: skip
"""Fields of attention weights that are dropped, of rounding, and of a class with a summary."""


def read(c: Configuration) -> Choices:
    """Read the choices that make the network which a configuration of transformers' GPT2LMHeadModel
    or GPT2Model describes; ModelError for a value that is not known here."""
    c.with_class().require(
        {
            "scale_attn_weights": (True,),
            "add_cross_attention": (False,),
            "scale_attn_by_inverse_layer_idx": (False,),
        }
    )
    c.fields_read.update(NUMBERS)  # accepted; no count depends on these
    c.divide("n_head", "n_embd")
    head = HEADS[c.architecture(*HEADS)]
    inner = c.size_or_none("n_inner")
    positions = c.size("n_positions", "n_ctx", "max_position_embeddings")
    sizes = {
        "L": c.size("n_layer", "num_hidden_layers"),
        "d": c.size("n_embd", "hidden_size"),
        "n": c.size("n_head", "num_attention_heads"),
        "l": positions,
        "u": c.size("vocab_size"),
        **({} if inner is None else {"f": inner}),
    }
    return Choices(
        name=c.name,
        source=c.source,
        kind="decoder",
        mixers=("self-attention+bias",),
        positions="learned",
        position_rows=positions,
        norm="pre",
        activation=c.activation("activation_function"),
        dropout=c.some("resid_pdrop", "embd_pdrop"),
        tied=c.switch("tie_word_embeddings") and head["head"] == "vocabulary",
        sizes=sizes,
        widths={"f": "4*d"} if inner is None else {},
        **head,
    )
