"""Which choices make each of BERT's relatives, by its model type?

A row says where a type differs from the plain decoder, as in `rows.py`: all of them are encoders,
in which each token sees all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costmodel.networks.architectures.plain import Plain, Transform

TIED = {"tie_word_embeddings": (True,)}
"""An untied head has two biases in the class, of which the class reads one."""

LIKE_BERT: dict[str, Any] = {
    "kind": "encoder", "head_class": "ForMaskedLM", "options": ("bias", "bidirectional"),
    "turned": "", "norm": "layer", "place": "after", "end": False, "ffn": "plain",
    "ffn_bias": True, "embedding_norm": True, "dropout": "hidden_dropout_prob", "head_bias": True,
    "numbers": "attention_probs_dropout_prob classifier_dropout",
}  # fmt: skip
"""Norms after each sum, biases, an FFN without a gate, a norm of the embedding."""

ENCODER_ROWS: Mapping[str, Plain] = {
    "bert-generation": Plain(
        **LIKE_BERT | {"head_class": "Decoder"}, name="BertGeneration", bare="Encoder",
        positions="learned", fixed=TIED,
    ),
    "distilbert": Plain(
        **LIKE_BERT | {
            "dropout": "dropout", "numbers": "sinusoidal_pos_embds qa_dropout seq_classif_dropout",
        },
        name="DistilBert", positions="learned", width="hidden_dim", activation="activation",
        transform=Transform(),
    ),
    "electra": Plain(
        **LIKE_BERT | {
            "numbers": "attention_probs_dropout_prob classifier_dropout summary_type "
            "summary_use_proj summary_activation summary_last_dropout",
        },
        name="Electra", more=("ForCausalLM",), positions="learned", segments="type_vocab_size",
        narrow="embedding_size", transform=Transform(activation="gelu"),
    ),
    "rembert": Plain(
        **LIKE_BERT, name="RemBert", more=("ForCausalLM",), positions="learned",
        segments="type_vocab_size", narrow="input_embedding_size", widened=True, ties=False,
        transform=Transform(width="output_embedding_size"), pooler=True,
    ),
}  # fmt: skip
"""model_type -> how its encoder differs from the plain decoder."""
