"""Which network does a configuration of BERT describe?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costmodel.networks.choices import Choices
from costmodel.networks.configuration import Configuration

HEADS: Mapping[str, Mapping[str, Any]] = {
    "BertModel": {"head": "none", "pooler": True, "loss": False},
    "BertForMaskedLM": {"head": "vocabulary", "head_bias": True},
}

DEFAULTS: Mapping[str, Any] = {
    "attention_probs_dropout_prob": 0.1,
    "classifier_dropout": None,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "tie_word_embeddings": True,
    "type_vocab_size": 2,
}


def read(c: Configuration) -> Choices:
    """The choices of the network of transformers' BertModel or BertForMaskedLM; ModelError for a
    value in the configuration that is not known here."""
    c.with_defaults(DEFAULTS).require(
        {
            "position_embedding_type": ("absolute",),
            "is_decoder": (False,),
            "add_cross_attention": (False,),
        }
    )
    head = HEADS[c.architecture(*HEADS)]
    activation = c.activation("hidden_act")
    scored = head["head"] == "vocabulary"
    positions = c.size("max_position_embeddings")
    return Choices(
        name=c.name,
        source=c.source,
        kind="encoder",
        mixers=("self-attention+bias+bidirectional",),
        positions="learned",
        position_rows=positions,
        segments=c.size("type_vocab_size"),
        embedding_norm=True,
        norm="post",
        activation=activation,
        dropout=c.some("hidden_dropout_prob"),
        transform=activation if scored else "none",
        tied=c.switch("tie_word_embeddings") and scored,
        sizes={
            "L": c.size("num_hidden_layers"),
            "d": c.size("hidden_size"),
            "n": c.size("num_attention_heads"),
            "f": c.size("intermediate_size"),
            "l": positions,
            "u": c.size("vocab_size"),
        },
        **head,
    )
