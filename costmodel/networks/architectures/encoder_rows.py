"""Which choices make each of BERT's relatives, by its model type?

A row says where a type differs from the plain decoder, as in `rows.py`. All but one are encoders,
in which each token sees all, or all of a window on both sides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from costmodel.networks import parts
from costmodel.networks.architectures.decoder import part, square
from costmodel.networks.architectures.plain import FULL, NEAR, Plain, Transform
from costmodel.networks.blocks import Block, Use
from costmodel.networks.configuration import Configuration
from costmodel.questions.parameters import parameters

TIED = {"tie_word_embeddings": (True,)}
"""An untied head has two biases in the class, of which the class reads one."""

ABSOLUTE = {"position_embedding_type": ("absolute",)}

LIKE_BERT: dict[str, Any] = {
    "kind": "encoder", "head_class": "ForMaskedLM", "options": ("bias", "bidirectional"),
    "turned": "", "norm": "layer", "place": "after", "end": False, "ffn": "plain",
    "ffn_bias": True, "embedding_norm": True, "dropout": "hidden_dropout_prob", "head_bias": True,
    "numbers": "attention_probs_dropout_prob classifier_dropout classifier_dropout_prob",
    "fixed": ABSOLUTE,
}  # fmt: skip
"""Norms after each sum, biases, an FFN without a gate, a norm of the embedding."""

MODERN = (
    "initializer_cutoff_factor classifier_pooling classifier_dropout deterministic_flash_attn "
    "sparse_prediction sparse_pred_ignore_index mlp_dropout reference_compile global_rope_theta "
    "local_rope_theta norm_eps cls_token_id position_embedding_type repad_logits_with_grad "
    "global_attn_every_n_layers num_key_value_heads local_attention"
)
"""Constants, dropout inside of the FFN, fields of training and of other classes."""


def _modern(c: Configuration, k: int, number: int) -> str:
    """Full attention in each `global_attn_every_n_layers`-th layer, from the first on."""
    return NEAR if k % (c.size_or_none("global_attn_every_n_layers") or 3) else FULL


MODERN_BERT: dict[str, Any] = {
    "norm": lambda c: "layer" if c.switch("norm_bias") else "layer, no bias",
    "begins": False,
    "kinds": _modern,
    "embedding_norm": True,
    "activation": "hidden_activation",
    "transform": Transform(activation="classifier_activation", bias="classifier_bias"),
    "head_bias": "decoder_bias",
    "fixed": {"embedding_dropout": (0.0,)},
    "numbers": MODERN,
}

XLM = (
    "embed_init_std init_std unk_index mask_index summary_type summary_use_proj summary_activation "
    "summary_first_dropout summary_proj_to_labels start_n_top end_n_top mask_token_id lang_id "
    "bos_index eos_index pad_index sinusoidal_embeddings id2lang lang2id asm_cutoffs asm_div_value"
)
"""Numbers of tokens and languages, the start of weights, fields of other classes and heads."""


def _languages(c: Configuration) -> int:
    """The languages that have a row each, which the class adds to a token's: none if there is one
    language, or if the configuration wants no rows."""
    number, wanted = c.size("n_langs"), c.switch("use_lang_emb")
    return number if number > 1 and wanted else 0


def _with_adapter(c: Configuration, layer: Block) -> tuple[Block, int]:
    """A pair: `layer` with the adapter of one language, a plain FFN, as a sublayer after its FFN;
    and the number of parameters of this layer's adapters of all other languages, which tokens of
    one language do not read. The adapter's norm may share the parameters of the FFN's norm."""
    d, languages = c.size("hidden_size"), c.get("languages")
    if not isinstance(languages, Sequence) or isinstance(languages, str) or not languages:
        raise c.refused(f"'languages' must list one language at least, got {languages!r}")
    if not (width := d // c.size("adapter_reduction_factor")):
        raise c.refused(
            f"'adapter_reduction_factor' is above the {d} channels of a row: expected {d} or less"
        )
    *others, ffn = layer.sublayers
    # `own`: the adapter has a norm of its own, for all languages; else `again`: one that shares the
    # parameters of the FFN's norm, `edge`. `between`, if any, is this norm of the adapter's input;
    # if `inside`, the residual sum after the adapter starts from the normed rows too
    own, again = c.switch("adapter_layer_norm"), c.switch("adapter_reuse_layer_norm")
    edge, inside = ffn.before or ffn.after, c.switch("ln_before_adapter")
    assert edge is not None
    between = None
    if own:
        between = Use("norm, of the adapter", parts.layer_norm())
    elif again:  # the first norm in order counts the parameters, the second shares them
        one = replace(edge, mixer=parts.layer_norm(repeated=True))
        two = replace(one, shared=frozenset({"gain_R", "offset_R"}))
        edge, between = (one, two) if ffn.before else (two, one)
    adapter = part("adapter", parts.ffn(c.activation("hidden_act")), f=width)
    made = (
        replace(ffn, before=ffn.before and edge, after=between if inside else None),
        replace(ffn, part=adapter, before=None if inside else between, after=ffn.after and edge),
    )
    number = parameters(adapter.mixer).poly.at({"d": d, "f": width})
    return Block(layer.name, (*others, *made)), number * (len({*map(str, languages)}) - 1)


def _mean(c: Configuration) -> str:
    """Note that the class of a classifier maps the mean of all rows, if the configuration says so,
    where the first row is counted. Return "", since nothing is refused."""
    named = str(c.get("architectures"))
    if "ForSequenceClassification" in named and c.get("classifier_pooling") == "mean":
        c.remark = "the sums of the mean of all rows, which the class maps, are not counted"
    return ""


def _halved(c: Configuration) -> str:
    """Return "" if `sliding_window`, which the class of ModernBERT's decoder saves, is missing or
    half of `local_attention`; ModelError for another width."""
    c.agree(sliding_window=c.size("local_attention") // 2)
    return ""


ENCODER_ROWS: Mapping[str, Plain] = {
    "albert": Plain(
        **LIKE_BERT | {
            "numbers": "attention_probs_dropout_prob classifier_dropout_prob down_scale_factor "
            "gap_size net_structure_type num_memory_blocks",
            "fixed": {"inner_group_num": (1,), **ABSOLUTE, **TIED},
        },
        name="Albert", positions="learned", segments="type_vocab_size",
        narrow="embedding_size", widened=True, transform=Transform(), pooler=True, check=square,
        groups="num_hidden_groups",
    ),
    "bert-generation": Plain(
        **LIKE_BERT | {"head_class": "Decoder", "fixed": {**ABSOLUTE, **TIED}},
        name="BertGeneration", bare="Encoder", positions="learned",
    ),
    "big_bird": Plain(
        **LIKE_BERT | {
            "options": ("output-bias", "bidirectional"),
            "numbers": "attention_probs_dropout_prob classifier_dropout block_size "
            "num_random_blocks",
            "fixed": {"attention_type": ("block_sparse", "original_full"), **ABSOLUTE, **TIED},
        },
        name="BigBird", more=("ForCausalLM",), switches={"use_bias": "qkv-bias"},
        positions="learned", segments="type_vocab_size", scaled="rescale_embeddings",
        transform=Transform(), pooler=True, pooled=True,
        remark="attention is full, as the class's is up to (5 + 2 num_random_blocks) block_size "
        "tokens; of more tokens, with attention_type block_sparse, the class attends to blocks",
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
            "summary_use_proj summary_activation summary_last_dropout generator_size",
        },
        name="Electra", more=("ForCausalLM",), detects=True, positions="learned",
        segments="type_vocab_size", narrow="embedding_size", transform=Transform(activation="gelu"),
        check=square,
    ),
    "modernbert": Plain(
        **MODERN_BERT, name="ModernBert", kind="encoder", head_class="ForMaskedLM",
        options=("bidirectional",), window=lambda c: c.size("local_attention") // 2 + 1,
        classifies=True, check=_mean,
    ),
    "modernbert-decoder": Plain(
        **MODERN_BERT, name="ModernBertDecoder", window=lambda c: c.size("local_attention") // 2,
        check=_halved,
    ),
    "rembert": Plain(
        **LIKE_BERT, name="RemBert", more=("ForCausalLM",), positions="learned",
        segments="type_vocab_size", narrow="input_embedding_size", widened=True, ties=False,
        transform=Transform(width="output_embedding_size"), pooler=True,
    ),
    "roc_bert": Plain(
        **LIKE_BERT | {"fixed": {**ABSOLUTE, **TIED, "concat_input": (True,)}},
        name="RoCBert", more=("ForCausalLM",), positions="learned", segments="type_vocab_size",
        appended=(
            ("enable_shape", "shape_vocab_size", "shape_embed_dim"),
            ("enable_pronunciation", "pronunciation_vocab_size", "pronunciation_embed_dim"),
        ),
        transform=Transform(), pooler=True,
    ),
    "roformer": Plain(
        **LIKE_BERT | {
            "turned": "rotary-pairs", "fixed": {**ABSOLUTE, **TIED, "rotary_value": (False,)},
        },
        name="RoFormer", more=("ForCausalLM",), angles=True, segments="type_vocab_size",
        narrow="embedding_size", transform=Transform(), check=square,
    ),
    "xlm": Plain(
        **LIKE_BERT | {
            "head_class": "WithLMHeadModel", "dropout": "dropout", "numbers": XLM,
            "fixed": {"asm": (False,), "causal": (False,), "is_encoder": (True,)},
        },
        name="XLM", positions="learned", segments=_languages,
        width=lambda c: 4 * c.size("hidden_size"),
        activation=lambda c: "gelu" if c.switch("gelu_activation") else "relu",
        remark="each token has the row of its language, where there are several: the class adds "
        "the row where its input names languages",
    ),
    "xmod": Plain(
        **LIKE_BERT | {
            "numbers": "attention_probs_dropout_prob classifier_dropout default_language",
            "place": lambda c: "before" if c.switch("pre_norm") else "after",
            "end": lambda c: c.switch("pre_norm"), "fixed": {**ABSOLUTE, **TIED},
        },
        name="Xmod", more=("ForCausalLM",), positions="learned", pads=2,
        segments="type_vocab_size", adapted=_with_adapter, transform=Transform(activation="gelu"),
        pooler=True, remark="each token passes the adapter of one language",
    ),
}  # fmt: skip
"""model_type -> how its encoder differs from the plain decoder."""
