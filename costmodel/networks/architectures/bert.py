"""Which network does a configuration of BERT, or of a relative of BERT, describe?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from costmodel.networks.choices import Choices
from costmodel.networks.configuration import Configuration

SCORED: Mapping[str, Any] = {"head": "vocabulary", "head_bias": True}
BARE: Mapping[str, Any] = {"head": "none", "pooler": True, "loss": False}
"""The choices of a class with scores of the vocabulary, and of one with a pooler and no head."""


@dataclass(frozen=True)
class Encoder:
    """The choices of a relative of BERT.

    Args:
        name: the beginning of the names of its classes.
        ends: how the names of its classes end; the first is meant if none is named. All but
            "Model" have a head over the vocabulary.
        offset: rows before the first of its table of positions.
        transform: the activation before the head; "": that of the FFN.
        norm: "post", or "pre" with a norm at the end.
        embedding_norm: a norm follows the embedding.
        fixed: further fields with their only values that are read.
    """

    name: str
    ends: tuple[str, ...] = ("ForMaskedLM", "ForCausalLM", "Model")
    offset: int = 0
    transform: str = ""
    norm: str = "post"
    embedding_norm: bool = True
    fixed: tuple[str, ...] = ()

    def read(self, c: Configuration) -> Choices:
        """Read the choices that make the network of a `config.json` of this type: of the class with
        scores of the vocabulary, or of the class without a head, with a pooler. ModelError for a
        value that is not known here."""
        c.with_class().require(
            {
                "position_embedding_type": ("absolute",),
                "is_decoder": (False,),
                "add_cross_attention": (False,),
                **dict.fromkeys(self.fixed, (False,)),
            }
        )
        named = c.architecture(*(self.name + end for end in self.ends))
        scored = named != f"{self.name}Model"
        if scored:  # an untied head has two biases in the class, of which it reads one
            c.require({"tie_word_embeddings": (True,)})
        c.divide("num_attention_heads", "hidden_size")
        activation, rows = c.activation("hidden_act"), c.size("max_position_embeddings")
        c.fields_read.update(("attention_probs_dropout_prob", "classifier_dropout", "use_cache"))
        return Choices(
            name=c.name,
            source=c.source,
            kind="encoder",
            mixers=("self-attention+bias+bidirectional",),
            positions="learned",
            position_rows=rows,
            segments=c.size("type_vocab_size"),
            embedding_norm=self.embedding_norm,
            norm=self.norm,
            activation=activation,
            dropout=c.some("hidden_dropout_prob"),
            transform=(self.transform or activation) if scored else "none",
            tied=c.switch("tie_word_embeddings") and scored,
            sizes={
                "L": c.size("num_hidden_layers"),
                "d": c.size("hidden_size"),
                "n": c.size("num_attention_heads"),
                "f": c.size("intermediate_size"),
                "l": rows - self.offset,
                "u": c.size("vocab_size"),
            },
            **(SCORED if scored else BARE),
        )


ENCODERS: Mapping[str, Encoder] = {
    "bert": Encoder("Bert", ("Model", "ForMaskedLM", "LMHeadModel")),
    "camembert": Encoder("Camembert", offset=2, transform="gelu"),
    "data2vec-text": Encoder("Data2VecText", offset=2, transform="gelu"),
    "ernie": Encoder("Ernie", fixed=("use_task_id",)),
    "megatron-bert": Encoder("MegatronBert", norm="pre", embedding_norm=False),
    "roberta": Encoder("Roberta", offset=2, transform="gelu"),
    "roberta-prelayernorm": Encoder("RobertaPreLayerNorm", offset=2, transform="gelu", norm="pre"),
    "xlm-roberta": Encoder("XLMRoberta", offset=2, transform="gelu"),
    "xlm-roberta-xl": Encoder(
        "XLMRobertaXL", offset=2, transform="gelu", norm="pre", embedding_norm=False
    ),
}
"""model_type -> how its encoder differs from BERT's."""
