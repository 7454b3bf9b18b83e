"""What transformers' classes have and hold, drawn at random: `python -m tests.models.drawn`.

The command needs transformers and torch, and writes `configurations.json`, the oracle of
test_architectures.py; the tests need neither. Each type has its default configuration, one with
every field drawn, and drawn ones: their parameters, counted on the meta device, and of drawn ones
each tensor of the cache after `TOKENS` tokens of one sequence, run in bfloat16 on the CPU.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from costmodel.networks.architectures.bart import BARTS
from costmodel.networks.architectures.bert import ENCODERS
from costmodel.networks.architectures.encoder_rows import ENCODER_ROWS
from costmodel.networks.architectures.rows import ROWS as DECODER_ROWS
from costmodel.networks.architectures.t5 import T5S
from costmodel.networks.configuration import COUNT_NOTHING
from costmodel.networks.huggingface import READERS

ROWS = {**DECODER_ROWS, **ENCODER_ROWS}
FILE = Path(__file__).parent / "configurations.json"
DEFAULTS = Path(__file__).parents[2] / "tables" / "transformers" / "defaults.json"
TEXTS = DEFAULTS.with_name("texts.json")
TOKENS = 30

TOWERS = r"image_encoder|visual_projection|img_temporal|embed_tokens_extend"
"""Names of parameters beside those of a text."""

DRAWN = 6
"""Drawn configurations of each type."""

WIDTHS = {
    "pad_token_id": (None,),
    "vocab_size": (7, 31),
    "hidden_size": (24, 48, 120),
    "num_hidden_layers": (1, 2, 3, 5, 9),
}
FFN = {"intermediate_size": (1, 11, 70)}
HEADS: Mapping[str, Sequence[Any]] = {
    "num_attention_heads": (6, 12),
    "num_key_value_heads": (1, 2, 6),
    "head_dim": (2, 4, 14),
}
TIED = {"tie_word_embeddings": (True, False)}
EXPERTS = {
    "num_experts": (3, 5),
    "num_experts_per_tok": (1, 2),
    "moe_intermediate_size": (1, 10),
}
SHARED = {"shared_expert_intermediate_size": (1, 9)}
DELTA = {
    "linear_num_key_heads": (1, 2),
    "linear_num_value_heads": (2, 6),
    "linear_key_head_dim": (3, 5),
    "linear_value_head_dim": (2, 7),
    "linear_conv_kernel_dim": (2, 4),
    "full_attention_interval": (2, 3),
    "num_hidden_layers": (3, 4, 7),
    "head_dim": (8, 16, 40),
    "attention_bias": (True, False),
}
STATES = {
    "state_size": (3, 16),
    "conv_kernel": (3, 4),
    "use_conv_bias": (True, False),
    "use_bias": (True, False),
}
USUAL = {**WIDTHS, **FFN, **HEADS, **TIED}

INCOMPLETE = (
    "bert",
    "cohere_compass_text",
    "dbrx",
    "dots1",
    "emu3_text_model",
    "lfm2_moe",
    "mllama_text_model",
    "hunyuan_v1_dense",
    "hunyuan_v1_moe",
    "ministral",
    "nemotron",
)
"""Types whose default configuration has no size that its class needs, or is of a class without a
head."""

ALWAYS = (
    *WIDTHS, "num_attention_heads", "num_key_value_heads", "num_experts", "num_experts_per_tok",
    "linear_num_key_heads", "linear_num_value_heads", "num_heads", "n_groups", "head_dim",
    "num_local_experts", "n_routed_experts", "moe_num_experts", "moe_topk", "moe_k",
    "n_shared_experts", "n_group", "rotary_dim", "n_embd", "n_head", "num_layers", "num_heads",
    "lru_width", "conv1d_width", "linear_num_heads", "d_model", "attention_heads",
    "attn_config", "ffn_config", "num_kv_shared_layers", "layers_block_type", "emb_dim",
    "languages", "attn_layer_offset", "mamba_d_ssm",
    "encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads",
)  # fmt: skip
"""Fields that are always drawn: the class's defaults would not fit the others."""

SOME: Mapping[str, Sequence[Any]] = {
    **USUAL,
    "attention_bias": (True, False),
    "attention_out_bias": (True, False),
    "mlp_bias": (True, False),
    "use_bias": (True, False),
    "use_qkv_bias": (True, False),
    "qkv_bias": (True, False),
    "bias": (True, False),
    "alibi": (True, False),
    "clip_qkv": (None, 8.0),
    "qk_layernorm": (True, False),
    "n_layer": (1, 3),
    "lm_head_bias": (True, False),
    "use_qk_norm": (True, False),
    "use_parallel_residual": (True, False),
    "use_post_norm": (True, False),
    "mup_enabled": (True, False),
    "final_logit_softcapping": (None, 30.0),
    "sliding_window": (3, 9),
    "sliding_window_pattern": (2, 3),
    "global_attn_every_n_layers": (2, 3),
    "num_experts": (4,),
    "n_routed_experts": (4,),
    "num_local_experts": (4,),
    "moe_num_experts": (4,),
    "num_experts_per_tok": (1, 2, 3),
    "moe_topk": (1, 2, 3),
    "moe_k": (1, 2, 3),
    "moe_intermediate_size": (1, 10),
    "shared_expert_intermediate_size": (1, 9),
    "shared_intermediate_size": (0, 9),
    "n_shared_experts": (1, 2),
    "num_shared_experts": (1, 2),
    "moe_num_shared_experts": (0, 2),
    "norm_topk_prob": (True, False),
    "num_dense_layers": (0, 2),
    "first_k_dense_replace": (0, 1, 2),
    "moe_layer_start_index": (0, 1),
    "moe_layer_end_index": (-1, 1),
    "moe_layer_interval": (1, 2),
    "n_group": (1, 2),
    "kv_lora_rank": (3, 8),
    "q_lora_rank": (None, 5),
    "qk_rope_head_dim": (2, 4),
    "v_head_dim": (3, 7),
    "qk_nope_head_dim": (5, 6),
    "topk_group": (1,),
    "decoder_sparse_step": (1, 2),
    "mlp_only_layers": ([], [0], [1, 2]),
    "use_sliding_window": (True, False),
    "max_window_layers": (0, 1, 2),
    "partial_rotary_factor": (0.5, 0.75, 1.0),
    "enable_bias": (True, False),
    "do_layer_norm_before": (True, False),
    "scale_embedding": (True, False),
    "n_inner": (None, 11),
    "dff": (1, 11),
    "ffn_dim": (1, 11),
    "ffn_hidden_size": (None, 11),
    "num_kv_heads": (1, 2, 6),
    "multi_query": (True, False),
    "new_decoder_architecture": (True, False),
    "parallel_attn": (True, False),
    "rotary_dim": (2, 4),
    "attn_layer_indices": ([0], [0, 2]),
    "mamba_n_heads": (6,),
    "mamba_n_groups": (1, 3),
    "mamba_d_state": (3, 8),
    "mamba_d_conv": (3, 4),
    "mamba_conv_bias": (True, False),
    "mamba_proj_bias": (True, False),
    "conv_L_cache": (2, 5),
    "conv_bias": (True, False),
    "use_sandwich_norm": (True, False),
    "linear_num_heads": (1, 2),
    "linear_head_dim": (3, 5),
    "linear_conv_kernel_dim": (2, 4),
    "moe_renormalize": (True, False),
    "intermediate_size_mlp": (1, 11),
    "interleave_moe_layer_step": (1, 2),
    "no_rope_layer_interval": (2, 4),
    "attention_chunk_size": (3,),
    "conv1d_width": (2, 4),
    "attention_window_size": (3,),
}
"""Fields that several types have, with the values that are drawn where a class has the field."""

TURNED: Mapping[str, Sequence[Any]] = {"hidden_size": (48, 96), "num_attention_heads": (6,),
                                       "head_dim": (8, 16)}  # fmt: skip
"""Where half or a quarter of the channels of a head turn."""

LATENT: Mapping[str, Sequence[Any]] = {
    "num_attention_heads": (6,), "num_key_value_heads": (6,), "head_dim": (),
    "num_experts_per_tok": (1, 2),
}  # fmt: skip
"""Where attention is latent: every head has keys of its own."""

OTHERS: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "axk1": {**LATENT, "n_group": (1,), "mlp_layer_types": (None,), "q_lora_rank": (5,)},
    "dbrx": {
        "d_model": (24,),
        "n_heads": (6,),
        "n_layers": (1, 3),
        "attn_config": (
            {"clip_qkv": 2.5, "kv_n_heads": 2, "rope_theta": 1e4},
            {"clip_qkv": 8, "kv_n_heads": 6, "rope_theta": 1e4},
        ),
        "ffn_config": (
            {"hidden_size": 24, "moe_num_experts": 4, "moe_top_k": 2, "ffn_hidden_size": 10},
            {
                "hidden_size": 24,
                "moe_normalize_expert_weights": None,
                "ffn_hidden_size": 3,
                "ffn_act_fn": None,
            },
        ),
        "tie_word_embeddings": (),
    },
    "diffllama": {
        "num_key_value_heads": (2, 6),
        "num_attention_heads": (6, 12),
        "attention_bias": (),
    },
    "gpt_neox_japanese": {**TURNED, "head_dim": (), "intermediate_multiple_size": (1, 3)},
    "jetmoe": {"num_attention_heads": (), "kv_channels": (4, 8)},
    "kolibri1": {"num_hidden_layers": (3, 6)},
    "minimax_m3_vl_text": {
        **TURNED,
        "num_hidden_layers": (3,),
        "mlp_layer_types": (["dense", "sparse", "sparse"], None),
        "dense_intermediate_size": (1, 11),
        "shared_intermediate_size": (1, 9),
        "rotary_dim": (4,),
        "partial_rotary_factor": (0.5,),
    },
    "mimo_v2_flash": {
        "head_dim": (12, 24),
        "v_head_dim": (3, 8),
        "num_key_value_heads": (1, 3),
        "num_hidden_layers": (2, 7),
        "n_group": (1,),
    },
    "apertus": {"hidden_act": ("xielu", "silu")},
    "mpt": {
        "d_model": (24, 48),
        "n_heads": (3, 6),
        "n_layers": (1, 3),
        "attn_config": ({}, {"clip_qkv": 8.0}, {"alibi": True, "clip_qkv": None}),
    },
    "persimmon": {**TURNED, "head_dim": ()},
    "afmoe": {"attention_bias": (False,)},
    "deepseek_v3": LATENT,
    "bailing_hybrid": {
        **LATENT,
        "num_hidden_layers": (5, 6),
        "layer_group_size": (2, 3),
        "head_dim": (3, 5),
        "kda_safe_gate": (True, False),
        "short_conv_kernel_size": (2, 4),
        "n_group": (1,),
    },
    "bamba": {
        "hidden_size": (48,),
        "num_attention_heads": (6,),
        "num_hidden_layers": (3, 5),
        "attn_layer_indices": ([0],),
    },
    "cohere2_moe": {"first_k_dense_replace": ()},
    "cohere_compass_text": {
        "num_hidden_layers": (3,),
        "layer_types": (["sliding_attention", "full_attention", "sliding_attention"], None),
        "rope_parameters": ({"full_attention": None, "sliding_attention": {"rope_theta": 1e4}},),
    },
    "beam": {
        "sliding_window": (3,),
        "rope_parameters": (
            None,
            {"full_attention": None, "sliding_attention": {"rope_theta": 1e4}},
        ),
    },
    "codegen": {"n_embd": (96,), "n_head": (4, 8), "rotary_dim": (2, 4)},
    "deepseek_v2": {
        **LATENT,
        "n_group": (1,),
        "topk_group": (1,),
        "topk_method": ("greedy", "group_limited_greedy"),
    },
    "falcon": {"num_kv_heads": (2,), "multi_query": (True,)},
    "glm4_moe_lite": LATENT,
    "gpt_neo": {
        "attention_types": ([[["global", "local"], 2]],),
        "num_layers": (4,),
        "window_size": (3,),
    },
    "gptj": {"n_embd": (96,), "n_head": (4, 8), "rotary_dim": (2, 4)},
    "kimi_linear": {
        **LATENT,
        "num_hidden_layers": (5, 6),
        "num_experts_per_token": (1, 2),
        "num_experts_per_tok": (),
    },
    "jamba": {
        "mamba_expand": (2, 3),
        "mamba_dt_rank": ("auto", 5),
        "num_hidden_layers": (3, 5),
        "attn_layer_period": (2, 3),
        "attn_layer_offset": (1,),
        "expert_layer_period": (2, 3),
        "expert_layer_offset": (1,),
        "num_experts": (1, 4),
        "num_experts_per_tok": (1,),
    },
    "laguna": {"attention_bias": (), "hidden_size": (48, 96), "head_dim": (8, 16)},
    "lfm2_moe": {"num_hidden_layers": (3,), "layer_types": (["conv", "full_attention", "conv"],)},
    "lfm3": {
        "attention_bias": (),
        "hidden_size": (48, 96),
        "head_dim": (8, 16),
        "num_hidden_layers": (5, 8),
    },
    "llama4_text": {"layer_types": ()},
    "minicpm3": {**LATENT, "num_experts_per_tok": ()},
    "minimax": {"head_dim": ()},
    "minimax_m2": {"rotary_dim": (2, 4, 8), "partial_rotary_factor": (0.5, 1.0)},
    "olmo_hybrid": {
        "num_hidden_layers": (2, 5, 9),
        "linear_num_key_heads": (1, 2),
        "linear_num_value_heads": (2, 6),
        "linear_key_head_dim": (3, 5),
        "linear_value_head_dim": (2, 7),
        "linear_allow_neg_eigval": (True, False),
        "rope_parameters": (None, {"rope_type": "default", "rope_theta": None}),
        "layer_types": (),
    },
    "opt": {"hidden_size": (768,), "num_attention_heads": (6, 12)},
    "recurrent_gemma": {
        "hidden_size": (48, 96),
        "num_attention_heads": (6,),
        "head_dim": (),
        "lru_width": (None, 36, 60),
        "num_hidden_layers": (3, 4, 9),
        "intermediate_size": (2, 70),
    },
    "albert": {"tie_word_embeddings": (), "num_hidden_groups": (1, 2)},
    "bert-generation": {"tie_word_embeddings": ()},
    "big_bird": {
        "tie_word_embeddings": (),
        "use_bias": (True, False),
        "rescale_embeddings": (True, False),
        "hidden_act": ("gelu", "gelu_new"),
    },
    "modernbert": {
        "global_attn_every_n_layers": (2, 3),
        "architectures": (None, ["ModernBertForSequenceClassification"]),
        "id2label": ({"0": "a", "1": "b", "2": "c"},),
    },
    "modernbert-decoder": {"global_attn_every_n_layers": (2, 3)},
    "rembert": {"tie_word_embeddings": ()},
    "roc_bert": {
        "tie_word_embeddings": (),
        "enable_shape": (True, False),
        "enable_pronunciation": (True, False),
        "shape_vocab_size": (5, 13),
        "shape_embed_dim": (3, 7),
        "pronunciation_vocab_size": (5, 11),
        "pronunciation_embed_dim": (2, 13),
    },
    "roformer": {"tie_word_embeddings": ()},
    "xlm": {
        "emb_dim": (24, 48),
        "n_langs": (1, 3),
        "use_lang_emb": (True, False),
        "gelu_activation": (True, False),
    },
    "xmod": {
        "tie_word_embeddings": (),
        "pre_norm": (True, False),
        "adapter_reduction_factor": (2, 3, 5),
        "adapter_layer_norm": (True, False),
        "adapter_reuse_layer_norm": (False, True),
        "ln_before_adapter": (True, False),
        "languages": (["fr_XX"], ["de_DE", "fr_XX", "it_IT"]),
        "default_language": ("fr_XX",),
    },
    "xlstm": {
        "hidden_size": (128, 384),
        "num_heads": (2, 4),
        "qk_dim_factor": (0.5, 1.0),
        "v_dim_factor": (1.0, 2.0),
        "ffn_proj_factor": (2.667, 1.3),
        "ffn_round_up_to_multiple_of": (7, 64),
        "use_bias": (),
    },
    "bitnet": {"num_attention_heads": (6, 12), "attention_bias": (True, False)},
    "youtu": {**LATENT, "num_experts_per_tok": ()},
    "cohere": {"use_qk_norm": (False,)},
    "dots1": {"num_local_experts": (), "n_routed_experts": (4,)},
    "ernie4_5_moe": {"use_bias": (False,)},
    "helium": {"hidden_size": (48,), "num_attention_heads": (6,), "head_dim": (8,)},
    "phimoe": {"num_experts_per_tok": (2,)},
    "internlm3": {"attention_bias": (), "mlp_bias": ()},
    "git": {"pad_token_id": (1,), "max_position_embeddings": (40,), "num_attention_heads": (6, 12)},
    "mllama_text_model": {
        "pad_token_id": (1,),
        "head_dim": (),
        "cross_attention_layers": ([0], [0, 2]),
        "num_hidden_layers": (3, 5),
        "architectures": (["MllamaForCausalLM"],),
    },
    "moshi": {"ffn_dim": (2, 22), "hidden_act": ("silu", "relu")},
    "phi4_multimodal": {"pad_token_id": (1,), "head_dim": ()},
    "emu3_text_model": {"pad_token_id": (1,), "architectures": (["Emu3ForCausalLM"],)},
}
"""model_type of a row -> fields with values other than those in `SOME`; () for none."""

ENCODER: Mapping[str, Sequence[Any]] = {
    **WIDTHS,
    **FFN,
    "pad_token_id": (1,),
    "num_attention_heads": (6, 12),
    "type_vocab_size": (1, 2),
    "max_position_embeddings": (40,),
    "hidden_act": ("gelu", "relu"),
}

OF_ENCODERS: Mapping[str, Sequence[Any]] = {
    "pad_token_id": (1,), "num_attention_heads": (6, 12), "type_vocab_size": (1, 2),
    "max_position_embeddings": (40,), "embedding_size": (7, 24), "input_embedding_size": (7, 24),
    "output_embedding_size": (5, 24), "dim": (24, 48), "hidden_dim": (1, 11), "n_heads": (6,),
    "n_layers": (1, 3), "num_key_value_heads": (), "head_dim": (), "hidden_act": ("gelu", "relu"),
    "activation": ("gelu", "relu"), "classifier_bias": (True, False),
    "decoder_bias": (True, False), "norm_bias": (True, False), "local_attention": (4, 9),
    "classifier_activation": ("gelu", "relu"), "hidden_activation": ("gelu", "silu"),
}  # fmt: skip
"""Fields of the encoders among the rows."""

GPT_2: Mapping[str, Sequence[Any]] = {
    "pad_token_id": (None,),
    "vocab_size": (7, 31),
    "n_embd": (24, 48),
    "n_layer": (1, 3),
    "n_head": (6,),
    "n_inner": (None, 11),
    **TIED,
}

T_5: Mapping[str, Sequence[Any]] = {
    "vocab_size": (7, 31),
    "d_model": (24, 40),
    "num_layers": (1, 2, 5),
    "num_decoder_layers": (None, 1, 3),
    "num_heads": (2, 3),
    "d_kv": (2, 7),
    "d_ff": (1, 11),
    "relative_attention_num_buckets": (4, 32),
    "feed_forward_proj": ("relu", "gated-gelu", "gated-silu"),
    "tie_word_embeddings": (True, False),
}

BART: Mapping[str, Sequence[Any]] = {
    "vocab_size": (7, 31),
    "d_model": (24, 48),
    **{f"{way}_{of}": values for way in ("encoder", "decoder") for of, values in (
        ("attention_heads", (2, 6)), ("ffn_dim", (1, 11)),
    )},
    "encoder_layers": (2, 5),  # the cache of the decoder alone has as many layers
    "decoder_layers": (1, 2),
    "max_position_embeddings": (40,),
    "pad_token_id": (1,),
    "scale_embedding": (True, False),
    "activation_function": ("gelu", "relu", "swish"),
    "tie_word_embeddings": (True, False),
}  # fmt: skip
OF_BARTS: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "bigbird_pegasus": {"use_bias": (True, False)},
    **{
        kind: {
            "architectures": ([BARTS[kind].name + BARTS[kind].scored],),
            "tie_word_embeddings": (True,),
        }
        for kind in ("bart", "marian", "mbart")
    },
    "trocr": {
        "layernorm_embedding": (True, False),
        **{name: () for name in BART if name.startswith("encoder_")},
    },
    "whisper": {
        "max_position_embeddings": (),
        "max_target_positions": (40,),
        "num_mel_bins": (3, 128),
    },
}

GEMMA_4: Mapping[str, Sequence[Any]] = {
    **USUAL,
    "num_hidden_layers": (6, 9),
    "layer_types": (None,),
    "sliding_window": (3,),
    "global_head_dim": (4, 16),
    "num_global_key_value_heads": (None, 2, 3),
    "attention_k_eq_v": (False, True),
    "num_kv_shared_layers": (0,),
    "use_double_wide_mlp": (True, False),
    "attention_bias": (True, False),
    "final_logit_softcapping": (None, 30.0),
    "pad_token_id": (1,),
}

FIELDS: Mapping[str, Mapping[str, Sequence[Any]]] = {
    **dict.fromkeys(ENCODERS, ENCODER),
    "bert": {**ENCODER, "architectures": (["BertLMHeadModel"],)},
    "gpt2": GPT_2,
    "gpt-sw3": GPT_2,
    "qwen3_next": {
        **USUAL,
        **DELTA,
        **EXPERTS,
        **SHARED,
        "decoder_sparse_step": (1, 2),
        "mlp_only_layers": ([], [0], [1, 2]),
    },
    "falcon_mamba": {**WIDTHS, **TIED, **STATES, "expand": (2, 3), "time_step_rank": ("auto", 5)},
    "mamba": {**WIDTHS, **TIED, **STATES, "expand": (2, 3), "time_step_rank": ("auto", 5)},
    "mamba2": {
        **WIDTHS,
        **TIED,
        **STATES,
        "hidden_size": (24,),
        "expand": (2,),
        "num_heads": (6,),
        "head_dim": (8,),
        "n_groups": (1, 2, 3),
    },
    "smollm3": {
        **USUAL,
        "attention_bias": (True, False),
        "mlp_bias": (True, False),
        "no_rope_layer_interval": (2, 3),
        "use_sliding_window": (True, False),
        "sliding_window": (3,),
    },
    "lfm2": {
        **USUAL,
        "intermediate_size": (11, 70),
        "conv_L_cache": (2, 5),
        "full_attn_idxs": ([0], [0, 2]),
        "conv_bias": (True, False),
        "block_multiple_of": (8,),
        "block_ffn_dim_multiplier": (1.0, 1.5),
        "block_auto_adjust_ff_dim": (True, False),
    },
    "longcat_flash": {
        "pad_token_id": (None,),
        "vocab_size": (7, 31),
        "hidden_size": (24, 48),
        "num_layers": (1, 3),
        "num_attention_heads": (6,),
        "attention_bias": (True, False),
        "ffn_hidden_size": (1, 11),
        "q_lora_rank": (5, 7),
        "kv_lora_rank": (3, 8),
        "qk_nope_head_dim": (5, 6),
        "qk_rope_head_dim": (4,),
        "head_dim": (4,),
        "v_head_dim": (3, 7),
        "moe_topk": (2, 3),  # the class cannot run with 1
        "n_routed_experts": (4,),
        "zero_expert_num": (0, 3),
        "expert_ffn_hidden_size": (1, 10),
        **TIED,
    },
    "granitemoehybrid": {
        **USUAL,
        "hidden_size": (24, 48),
        "num_hidden_layers": (3,),
        "layer_types": (["mamba", "attention", "mamba"], ["attention", "attention", "mamba"]),
        "num_local_experts": (0, 3),
        "num_experts_per_tok": (2,),
        "shared_intermediate_size": (1, 9),
        "mamba_n_heads": (6,),
        "mamba_n_groups": (1, 3),
        "mamba_d_state": (3, 8),
        "mamba_d_conv": (3, 4),
        "mamba_conv_bias": (True, False),
        "mamba_proj_bias": (True, False),
        "attention_bias": (True, False),
    },
    "nemotron_h": {
        "pad_token_id": (None,),
        "vocab_size": (7, 31),
        "hidden_size": (24, 48),
        **FFN,
        **HEADS,
        **TIED,
        "hybrid_override_pattern": ("M*M-", "*EM*E", "M*"),
        "ssm_state_size": (3, 8),
        "mamba_num_heads": (6,),
        "mamba_head_dim": (5, 8),
        "n_groups": (1, 3),
        "conv_kernel": (3, 4),
        "use_conv_bias": (True, False),
        "use_bias": (True, False),
        "mlp_bias": (True, False),
        "n_routed_experts": (4,),
        "num_experts_per_tok": (1, 2),
        "moe_intermediate_size": (2, 9),
        "moe_shared_expert_intermediate_size": (3, 7),
        "norm_topk_prob": (True, False),
        "attention_bias": (True, False),
    },
    **dict.fromkeys(T5S, T_5),
    **{
        kind: {n: of for n, of in {**BART, **OF_BARTS.get(kind, {})}.items() if of}
        for kind in BARTS
    },
    "vit": {
        "hidden_size": (24, 48),
        "num_hidden_layers": (1, 3),
        "num_attention_heads": (6, 12),
        **FFN,
        "hidden_act": ("gelu", "relu"),
        "image_size": (16, [8, 16]),
        "patch_size": (4, [2, 4], 3),
        "num_channels": (1, 3),
        "qkv_bias": (True, False),
        "architectures": (None, ["ViTForMaskedImageModeling"]),
        "encoder_stride": (2, 3),
        "id2label": ({"0": "a", "1": "b", "2": "c"}, {"0": "a"}),
    },
    "zamba": {
        **WIDTHS,
        **FFN,
        "hidden_size": (24, 48),
        "num_attention_heads": (6, 12),
        "num_key_value_heads": (2, 6),
        "attention_head_dim": (None, 4),
        "num_hidden_layers": (5,),
        "layers_block_type": (None, ["mamba", "hybrid", "hybrid", "mamba", "hybrid"]),
        "attn_layer_period": (2, 3),
        "attn_layer_offset": (0, 1),
        "mamba_expand": (1, 2),
        "n_mamba_heads": (2, 6),
        "mamba_d_state": (3, 8),
        "mamba_d_conv": (3, 4),
        "mamba_dt_rank": ("auto", 5),
        "hidden_act": ("gelu", "silu"),
        "mamba_conv_bias": (True, False),
        "mamba_proj_bias": (True, False),
        "tie_word_embeddings": (True, False),
    },
    "zamba2": {
        **WIDTHS,
        **FFN,
        "hidden_size": (24, 48),
        "num_attention_heads": (6, 12),
        "num_hidden_layers": (5,),
        "layers_block_type": (
            ["mamba", "hybrid", "hybrid", "mamba", "hybrid"],
            [*["linear_attention"] * 2, *["hybrid"] * 3],
        ),
        "mamba_expand": (1, 2),
        "n_mamba_heads": (6,),
        "mamba_ngroups": (1, 3),
        "mamba_d_state": (3, 8),
        "mamba_d_conv": (3, 4),
        "num_mem_blocks": (1, 2, 4),
        "adapter_rank": (2, 5),
        "use_shared_attention_adapter": (True, False),
        "use_mem_rope": (True, False),
        "hidden_act": ("gelu", "silu"),
        "add_bias_linear": (True, False),
        "tie_word_embeddings": (True, False),
    },
    "falcon_h1": {
        **USUAL,
        "hidden_size": (24, 48),
        "num_hidden_layers": (1, 3),
        "mamba_d_ssm": (None, 30, 42),
        "mamba_n_heads": (6,),
        "mamba_n_groups": (1, 3),
        "mamba_d_state": (3, 8),
        "mamba_d_conv": (3, 4),
        "mamba_conv_bias": (True, False),
        "mamba_rms_norm": (True, False),
        "attention_bias": (True, False),
        "mlp_bias": (True, False),
        "mamba_proj_bias": (True, False),
        "projectors_bias": (True, False),
    },
    "hrm_text": {
        **{name: drawn for name, drawn in USUAL.items() if name != "num_key_value_heads"},
        "attention_bias": (True, False),
        "mlp_bias": (True, False),
        "H_cycles": (1, 3),
        "L_cycles": (1, 2, 3),
        "L_bp_cycles": (None, [1, 2], [3]),
        "initializer_range": (0.02, 0.5),
    },
    "gemma": USUAL,
    "gemma4_text": {
        **GEMMA_4,
        "num_hidden_layers": (6,),
        "layer_types": ([*["sliding_attention"] * 2, "full_attention"] * 2,),
        "num_kv_shared_layers": (0, 2, 3),
        "attention_k_eq_v": (False,),
        "enable_moe_block": (True, False),
        "num_experts": (3, 5),
        "top_k_experts": (1, 2),
        "moe_intermediate_size": (2, 9),
        "vocab_size_per_layer_input": (31, 40),
        "hidden_size_per_layer_input": (3, 8),
    },
    "gemma3n_text": {
        **USUAL,
        "num_hidden_layers": (6,),
        "layer_types": ([*["sliding_attention"] * 2, "full_attention"] * 2,),
        "intermediate_size": (11, [5, 6, 7, 8, 9, 10]),
        "activation_sparsity_pattern": (None, [0.95, 0.95, 0.0, 0.0, 0.5, 0.0]),
        "num_attention_heads": (6,),
        "sliding_window": (3,),
        "num_kv_shared_layers": (0, 2, 3),
        "vocab_size_per_layer_input": (31, 40),
        "hidden_size_per_layer_input": (3, 8),
        "altup_num_inputs": (2, 4),
        "altup_active_idx": (0, 1),
        "laurel_rank": (2, 5),
        "attention_bias": (True, False),
        "pad_token_id": (1,),
    },
    "gemma4_unified_text": GEMMA_4,
    "gemma2": {**USUAL, "sliding_window": (3,)},
    "gemma3_text": {**USUAL, "sliding_window": (3,), "sliding_window_pattern": (2, 3)},
    "qwen3_5_text": {**USUAL, **DELTA},
    "qwen3_5_moe_text": {**WIDTHS, **HEADS, **TIED, **DELTA, **EXPERTS, **SHARED},
}
"""model_type -> the fields that are drawn, each with the values that it takes."""


def values(kind: str) -> Mapping[str, Sequence[Any]]:
    """The fields that are drawn of a type, each with the values that it takes."""
    if kind not in ROWS:
        return FIELDS[kind]
    found, others = defaults([kind])[kind], {**OTHERS.get(kind, {})}
    if kind in ENCODER_ROWS:
        known_ = {"pad_token_id", *found["defaults"]}
        others = {**{n: v for n, v in OF_ENCODERS.items() if n in known_}, **others}
    usual = {own: name for name, own in found["spellings"].items()}
    there = ["pad_token_id", *found["defaults"], *others]
    turned = {} if ROWS[kind].share is None else TURNED
    some = {**SOME, **{n: v for n, v in turned.items() if n in SOME}, **others}
    if turned:
        there.append("partial_rotary_factor")
    known = {name: some.get(name, some.get(usual.get(name, ""), ())) for name in there}
    return {name: values for name, values in known.items() if values}


def drawn(kinds: Iterable[str]) -> list[dict[str, Any]]:
    """The configurations of some types, each with its type: the default, one with every field
    drawn, one as its class saves it, and others."""
    found: list[dict[str, Any]] = []
    for kind in kinds:
        random_, of = random.Random(kind), values(kind)
        if kind not in INCOMPLETE:
            found.append({"model_type": kind})
        for k in range(DRAWN):
            names = [
                n for n in of if k == 0 or n in ALWAYS or len(of[n]) == 1 or random_.random() < 0.8
            ]
            one = {n: random_.choice(of[n]) for n in names}
            free = OTHERS.get(kind, {}).get("layer_types") is None
            if kind in ROWS and k % 2 and free and (listed := _kinds(kind, one)):
                one["layer_types"] = random_.choices(listed, k=one["num_hidden_layers"])
            if kind in ROWS and k == 2 and kind != "dbrx":  # by the usual names of fields
                usual = {own: n for n, own in defaults([kind])[kind]["spellings"].items()}
                one = {usual.get(n, n): value for n, value in one.items()}
            found.append({"model_type": kind, **(saved(kind, one) if k == 1 else one)})
    return found


def saved(kind: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the file that the class of a configuration with these fields writes."""
    from transformers import CONFIG_MAPPING

    made = json.loads(CONFIG_MAPPING[kind](**fields).to_json_string())
    return {
        n: value for n, value in made.items() if n not in ("model_type", "transformers_version")
    }


def _kinds(kind: str, fields: Mapping[str, Any]) -> list[str]:
    """The kinds of layers that a type has by default, if its configuration lists them."""
    from transformers import CONFIG_MAPPING

    made = CONFIG_MAPPING[kind](**fields)
    there = "layer_types" in defaults([kind])[kind]["defaults"]
    return sorted({*made.layer_types}) if there and made.layer_types else []


def recorded(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with the number of parameters of its class; a drawn one with what its cache
    holds too."""
    import torch
    from transformers import CONFIG_MAPPING

    fields = {name: value for name, value in config.items() if name != "model_type"}
    of = CONFIG_MAPPING[config["model_type"]]
    made = of(**of._decode_special_floats(fields))  # infinity, as its class saves it
    with torch.device("meta"):
        model = class_of(made)(made)
    model.tie_weights()
    numbers = {id(p): p.numel() for n, p in model.named_parameters() if not re.search(TOWERS, n)}
    found = {"config": dict(config), "parameters": sum(numbers.values())}
    return found if len(config) == 1 else {**found, **ran(made)}


def class_of(made: Any) -> Any:
    """The class that a configuration names, else that with a head: that of causal language models,
    else of masked ones, of an encoder and decoder, or of images."""
    import transformers

    if made.architectures:
        return getattr(transformers, made.architectures[0])
    names = ("CAUSAL_LM", "MASKED_LM", "SEQ_TO_SEQ_CAUSAL_LM", "IMAGE_CLASSIFICATION")
    of = [getattr(transformers, f"MODEL_FOR_{name}_MAPPING") for name in names]
    return next(classes[type(made)] for classes in of if type(made) in classes)


def ran(made: Any) -> dict[str, Any]:
    """What a configuration's model does with `TOKENS` tokens: `products`, the multiplications of
    its matrix products by FlopCounterMode, with eager attention and experts by themselves; and the
    tensors that it keeps, as [name, shape, element type, number of layers]. Nothing where the class
    does not run."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    mixed = made.model_type not in ("falcon_mamba", "mamba", "mamba2")
    if mixed and {*getattr(made, "layer_types", "?")} <= {"linear_attention", "conv"}:
        return {}  # the class does not run without a layer of attention
    if getattr(made, "new_decoder_architecture", False) and not made.parallel_attn:
        return {}  # Falcon's class has other norms than those that it reads
    if "MaskedImage" in class_of(made).__name__ and not (
        isinstance(made.image_size, int) and isinstance(made.patch_size, int)
    ):
        return {}  # the class makes square images
    made._experts_implementation = "eager"  # kernels of experts want widths of 16 bytes
    made._attn_implementation = "eager"
    model = class_of(made)(made).eval().requires_grad_(False).to(torch.bfloat16)
    made = model.config  # some classes change theirs
    read = inputs(made)
    with torch.no_grad(), FlopCounterMode(display=False) as counted:
        out = model(**read)
    found = {"products": counted.get_total_flops() // 2}
    if getattr(made, "zero_expert_num", None):
        found = {}  # products depend on the chosen experts
    given = read.get("past_key_values")
    kept = given or getattr(out, "past_key_values", None) or getattr(out, "cache_params", None)
    if kept is None or made.is_encoder_decoder:
        return found
    tensors = [found for layer in getattr(kept, "layers", ()) for found in named(vars(layer))]
    of_xlstm = getattr(kept, "rnn_state", {}).values()
    tensors += [("recurrent_states", t) for layer in of_xlstm for t in layer]
    tensors += [("recurrent_states", t) for t in getattr(kept, "linear_cache", ()) if len(t)]
    for module in model.modules():  # what RecurrentGemma keeps in its modules
        for own, called in (("conv1d_state", "conv_states"), ("recurrent_states",) * 2):
            if (t := vars(module).get(own)) is not None:
                tensors.append((called, t))
    alike = Counter(
        (name, tuple(t.shape), str(t.dtype).removeprefix("torch.")) for name, t in tensors
    )
    rows = [[name, list(shape), dtype, n] for (name, shape, dtype), n in alike.items()]
    return {**found, "tensors": rows}


def inputs(made: Any) -> dict[str, Any]:
    """What a configuration's model reads: `TOKENS` tokens, or an image."""
    import torch
    from transformers import DynamicCache

    if hasattr(made, "image_size"):
        sides = made.image_size if isinstance(made.image_size, list) else [made.image_size] * 2
        return {"pixel_values": torch.zeros(1, made.num_channels, *sides, dtype=torch.bfloat16)}
    tokens = torch.arange(TOKENS)[None] % made.vocab_size
    more: dict[str, Any] = {"decoder_input_ids": tokens} if made.is_encoder_decoder else {}
    if hasattr(made, "cross_attention_layers"):  # as many rows of an image
        rows = torch.zeros(1, TOKENS, made.hidden_size, dtype=torch.bfloat16)
        more = {"cross_attention_states": rows}
    if made.model_type == "recurrent_gemma":  # its class does not return the cache that it makes
        more = {"past_key_values": DynamicCache(config=made)}
    return {"input_ids": tokens, "use_cache": True, **more}


def named(attributes: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each tensor with entries among the attributes of a cache's layer, with its name: without
    numbers of the layer's own, such as the size of a window, whose names begin with _."""
    import torch

    for name, value in attributes.items():
        for tensor in value.values() if isinstance(value, dict) else [value]:
            if torch.is_tensor(tensor) and tensor.numel() and not name.startswith("_"):
                yield name, tensor


def defaults(kinds: Iterable[str]) -> dict[str, Any]:
    """Type of model -> the fields of its class with their defaults, but for fields of every class
    and those that count nothing; the names that the class has for usual fields; and names of older
    files that it reads."""
    from transformers import CONFIG_MAPPING, PretrainedConfig

    usual = {one.name for one in fields(PretrainedConfig)} - {"tie_word_embeddings"}
    found: dict[str, Any] = {}
    for kind in kinds:
        made, own = CONFIG_MAPPING[kind], dict[str, Any]()
        for one in fields(made):
            if one.name in usual | COUNT_NOTHING - {"max_position_embeddings"}:
                continue
            factory = one.default_factory
            own[one.name] = one.default if factory is MISSING else factory()
        plain = {n: v for n, v in own.items() if isinstance(v, (*PLAIN, list, tuple, dict))}
        source = Path(sys.modules[made.__module__].__file__ or "").read_text(encoding="utf-8")
        older = {*re.findall(r"kwargs\.(?:pop|get)\(\s*\"(\w+)\"", source)} - {*own}
        found[kind] = {
            "defaults": plain, "spellings": dict(made.attribute_map), "older": sorted(older)
        }  # fmt: skip
    return found


def texts() -> dict[str, Any]:
    """Type of a model with images or sound, whose text is of a type that is read -> `text`: the
    fields of its default text; `flat`: whether the class reads fields of the text without an object
    of the text; `beside`: the other fields of its class; `parameters`: those of the
    text's class."""
    import torch
    from huggingface_hub.errors import StrictDataclassError
    from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, PretrainedConfig

    usual = {one.name for one in fields(PretrainedConfig)} | {"tie_word_embeddings"}
    found: dict[str, Any] = {}
    for kind in sorted(CONFIG_MAPPING):
        if "text_config" not in getattr(CONFIG_MAPPING[kind], "sub_configs_defaults", ()):
            continue
        try:
            whole = CONFIG_MAPPING[kind]()
            made = whole.text_config
            if kind in READERS or made.model_type not in {*READERS} - {*ENCODERS, *BARTS}:
                continue
            with torch.device("meta"):
                classes = MODEL_FOR_CAUSAL_LM_MAPPING
                model = classes[type(made if type(made) in classes else whole)](made)
        except (ImportError, KeyError, ValueError, StrictDataclassError):
            continue  # a class without defaults, or a text of another kind
        model.tie_weights()
        own = CONFIG_MAPPING[kind].sub_configs_defaults["text_config"]
        given = {} if isinstance(own, type) else own.init_kwargs
        numbers = {id(p): p.numel() for p in model.parameters()}
        found[kind] = {
            "text": {"model_type": made.model_type, **given},
            "flat": CONFIG_MAPPING[kind](num_hidden_layers=1).text_config.num_hidden_layers == 1,
            "beside": sorted({one.name for one in fields(CONFIG_MAPPING[kind])} - usual),
            "parameters": sum(numbers.values()),
        }
    return found


PLAIN = (bool, int, float, str, type(None))
"""Types of values that stand in a file as they are."""


BY_CLASS = (
    "falcon_h1",
    "gemma3n_text",
    "gemma4_text",
    "gemma4_unified_text",
    "gpt2",
    "gpt-sw3",
    "hrm_text",
    "longcat_flash",
    "vit",
    "zamba",
    "zamba2",
)
"""Further types whose reader has the defaults of the class."""


def main(kinds: Sequence[str]) -> None:
    """Write the files anew; with types named, of these types alone."""
    if find_spec("mlstm_kernels") is None:
        sys.modules["xlstm"] = None  # type: ignore[assignment]  # the package needs its kernels
    lines = ",\n".join(
        f"{json.dumps(kind)}: {json.dumps(one)}"
        for kind, one in defaults(sorted({*ROWS, *ENCODERS, *T5S, *BARTS, *BY_CLASS})).items()
    )
    DEFAULTS.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    of_texts = ",\n".join(f"{json.dumps(k)}: {json.dumps(one)}" for k, one in texts().items())
    TEXTS.write_text(f"{{\n{of_texts}\n}}\n", encoding="utf-8")
    every = sorted({*FIELDS, *ROWS})
    kept = json.loads(FILE.read_text(encoding="utf-8")) if kinds else []
    kept = [one for one in kept if one["config"]["model_type"] not in kinds]
    found = [*kept, *(recorded(config) for config in drawn(kinds or every))]
    found.sort(key=lambda one: every.index(one["config"]["model_type"]))
    lines = ",\n".join(json.dumps(one) for one in found)
    FILE.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    print(f"{len(found)} configurations")


if __name__ == "__main__":
    main(sys.argv[1:])
