"""Which choices make each of the plain decoders, by its model type?

A row says where a type differs from Llama: RMS norms before gated FFNs and rotary attention without
biases. `tests/models/drawn.py` holds each row against the class of transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from costmodel.networks.architectures.decoder import sparse
from costmodel.networks.architectures.plain import FULL, NEAR, Experts, Plain, latent
from costmodel.networks.configuration import Configuration

Kinds = Callable[[Configuration, int, int], str]

NORMED = ("qk-norm",)
QKV = {"attention_bias": "qkv-bias"}
USE_BIAS = {"use_bias": "bias"}
GRANITE = "attention_multiplier embedding_multiplier logits_scaling residual_multiplier"
DEEPSEEK = (
    "routed_scaling_factor ep_size seq_aux aux_loss_alpha num_nextn_predict_layers topk_method "
    "scoring_func moe_layer_freq"
)
"""Constants, losses, and layers that predict further tokens, which no class loads."""


def every(of: int | str) -> Kinds:
    """Full attention in the last layer of each `of`, or of as many as the field of that name or
    of `sliding_window_pattern` says, and windows in the others."""

    def kind(c: Configuration, k: int, number: int) -> str:
        found = of if isinstance(of, int) else c.size(of)
        return NEAR if (k + 1) % (c.size_or_none("sliding_window_pattern") or found) else FULL

    return kind


def first(of: int) -> Kinds:
    """Full attention in the first layer of each `of`, and windows in the others."""
    return lambda c, k, number: NEAR if k % of else FULL


def _exaone(c: Configuration, k: int, number: int) -> str:
    """Windows but in each `sliding_window_pattern`-th layer; full attention without a window."""
    near = c.size_or_none("sliding_window") and (k + 1) % c.size("sliding_window_pattern")
    return NEAR if near else FULL


def _windowed(c: Configuration, k: int, number: int) -> str:
    """Windows if the configuration has the width of one."""
    return FULL if c.size_or_none("sliding_window") is None else NEAR


def _alternate(c: Configuration, k: int, number: int) -> str:
    """Windows in each other one of the first `max_window_layers`, where they are switched on."""
    near = c.switch("use_sliding_window") and not k % 2 and k < c.number("max_window_layers")
    return NEAR if near else FULL


def _alternately(c: Configuration, k: int, number: int) -> str:
    return FULL if k % 2 else NEAR


def _late(c: Configuration, k: int, number: int) -> str:
    """Windows from layer `max_window_layers` on, if the configuration has the width of one and does
    not switch windows off."""
    near = c.size_or_none("sliding_window") if c.get("use_sliding_window") is not False else None
    return NEAR if near and k >= c.number("max_window_layers") else FULL


def _flint(c: Configuration, k: int, number: int) -> str:
    return FULL if k < 2 or k % 4 == 1 or k == number - 1 else NEAR


def _ernie(c: Configuration, number: int) -> list[bool]:
    """Experts in each `moe_layer_interval`-th layer from one number to another, from 0."""
    last, begin = c.get("moe_layer_end_index"), c.get("moe_layer_start_index")
    last, step = number - 1 if last == -1 else last, c.size("moe_layer_interval")
    return [begin <= k <= last and (k + 1) % step == 0 for k in range(number)]


def _parallel(c: Configuration) -> str:
    return "beside, apart" if c.switch("use_parallel_residual") else "before"


ROWS: Mapping[str, Plain] = {
    "afmoe": Plain(
        name="Afmoe", options=(*NORMED, "gate"), place="both", scaled="mup_enabled",
        numbers="route_scale global_attn_every_n_layers", fixed={"attention_bias": (False,)},
        kinds=every("global_attn_every_n_layers"), still=frozenset({FULL}),
        experts=Experts(
            scores="sigmoid", normalised=True, shared="plain", correction="parameter"
        ),
    ),
    "arcee": Plain(name="Arcee", ffn="plain"),
    "aria_text": Plain(
        name="AriaText", fixed={"mlp_bias": (False,)},
        experts=Experts(
            scores="chosen-softmax", normalised=False, width="intermediate_size", shared="plain"
        ),
    ),
    "cohere": Plain(
        name="Cohere", norm="layer, no bias", place="beside", turned="rotary-pairs", divided=True,
        numbers="logit_scale", fixed={"use_qk_norm": (False,)},
    ),
    "cohere2": Plain(
        name="Cohere2", norm="layer, no bias", place="beside", turned="rotary-pairs", divided=True,
        numbers="logit_scale", kinds=every(4), still=frozenset({FULL}),
    ),
    "cwm": Plain(name="Cwm", kinds=first(4)),
    "deepseek_v3": Plain(
        name="DeepseekV3", mixers={FULL: latent}, numbers=DEEPSEEK,
        experts=Experts(scores="sigmoid", shared="plain"),
    ),
    "dots1": Plain(
        name="Dots1", options=NORMED, numbers=DEEPSEEK, kinds=_late,
        experts=Experts(scores="sigmoid", shared="plain"),
    ),
    "ernie4_5": Plain(
        name="Ernie4_5", turned="rotary-pairs", switches=USE_BIAS, ffn_bias="use_bias",
    ),
    "ernie4_5_moe": Plain(
        name="Ernie4_5_Moe", turned="rotary-pairs", fixed={"use_bias": (False,)},
        numbers="moe_norm_min moe_layer_start_index moe_layer_end_index moe_layer_interval",
        experts=Experts(
            normalised=True, shared="plain", correction="parameter", there=_ernie
        ),
    ),
    "exaone4": Plain(name="Exaone4", options=NORMED, place="output", kinds=_exaone),
    "exaone_moe": Plain(
        name="ExaoneMoe", options=NORMED, kinds=_exaone, numbers=DEEPSEEK,
        experts=Experts(scores="sigmoid", shared="plain"),
    ),
    "flint": Plain(
        name="Flint", options=(*NORMED, "sinks"), kinds=_flint,
        experts=Experts(
            shared="plain",
            there=lambda c, n: sparse(c, n, 0 if c.get("mlp_only_layers") is not None else 2),
        ),
    ),
    "glm": Plain(name="Glm", switches=QKV, share=0.5),
    "glm4": Plain(name="Glm4", switches=QKV, share=0.5, place="both"),
    "glm4_moe": Plain(
        name="Glm4Moe", switches={**QKV, "use_qk_norm": "qk-norm"}, share=0.5, numbers=DEEPSEEK,
        experts=Experts(scores="sigmoid", shared="plain"),
    ),
    "gpt_neox": Plain(
        name="GPTNeoX", norm="layer", place=_parallel, ffn="plain", ffn_bias=True, share=0.25,
        dropout="hidden_dropout",
    ),
    "gpt_oss": Plain(
        name="GptOss", options=("sinks",), kinds=_alternately,
        same={"experts_per_token": "num_experts_per_tok"},
        numbers="swiglu_alpha swiglu_limit initial_context_length",
        experts=Experts(
            scores="chosen-softmax", normalised=False, width="intermediate_size", clamped=True
        ),
    ),
    "granite": Plain(name="Granite", scaled=True, residual=True, divided=True, numbers=GRANITE),
    "granitemoe": Plain(
        name="GraniteMoe", scaled=True, residual=True, divided=True, numbers=GRANITE,
        experts=Experts(scores="chosen-softmax", normalised=False, width="intermediate_size"),
    ),
    "granitemoeshared": Plain(
        name="GraniteMoeShared", scaled=True, residual=True, divided=True, numbers=GRANITE,
        experts=Experts(
            scores="chosen-softmax", normalised=False, width="intermediate_size", shared="plain"
        ),
    ),
    "granite_swa": Plain(
        name="GraniteSWA", options=("sinks",), scaled=True, residual=True, divided=True,
        numbers=GRANITE, kinds=first(4),
    ),
    "granitemoe_swa": Plain(
        name="GraniteMoeSWA", options=("sinks",), scaled=True, residual=True, divided=True,
        numbers=GRANITE, kinds=first(4),
        experts=Experts(
            scores="chosen-softmax", normalised=False, width="intermediate_size", shared="plain"
        ),
    ),
    "helium": Plain(name="Helium", turned="rotary-pairs", switches=QKV),
    "hunyuan_v1_dense": Plain(name="HunYuanDenseV1", options=NORMED),
    "hunyuan_v1_moe": Plain(
        name="HunYuanMoEV1", options=NORMED,
        experts=Experts(
            normalised=True, width="intermediate_size", shared="plain", copies=1
        ),
    ),
    "hy_v3": Plain(
        name="HYV3", options=NORMED, fixed={"mlp_bias": (False,)},
        numbers="router_scaling_factor enable_moe_fp32_combine",
        experts=Experts(scores="sigmoid", normalised=True, shared="plain", first=1),
    ),
    "hyperclovax": Plain(
        name="HyperCLOVAX", scaled=True, residual=True, divided=True, numbers=GRANITE,
        place=lambda c: "both" if c.switch("use_post_norm") else "before",
    ),
    "internlm3": Plain(name="Llama"),
    "iquestcoder": Plain(name="Llama"),
    "jais2": Plain(name="Jais2", norm="layer", ffn="plain"),
    "llama": Plain(name="Llama"),
    "mellum": Plain(
        name="Mellum", options=NORMED, experts=Experts(),
    ),
    "ministral": Plain(name="Ministral", kinds=_windowed),
    "ministral3": Plain(name="Ministral3"),
    "mistral": Plain(name="Mistral"),
    "mixtral": Plain(
        name="Mixtral", experts=Experts(normalised=True, width="intermediate_size")
    ),
    "nanochat": Plain(
        name="NanoChat", norm="rms, no weights", ffn="plain", cap="final_logit_softcapping",
        remark="norms of queries and keys, which have no weights, are not counted",
    ),
    "nemotron": Plain(name="Nemotron", norm="layer, 1 + w", ffn="plain", share=0.5),
    "olmo": Plain(name="Olmo", norm="layer, no weights"),
    "phi": Plain(
        name="Phi", norm="layer", place="beside", ffn="plain", ffn_bias=True, share=0.5,
        options=("bias",), head_bias=True, dropout="resid_pdrop embd_pdrop",
        fixed={"qk_layernorm": (False,)},
    ),
    "phi3": Plain(
        name="Phi3", share=1.0, numbers="original_max_position_embeddings",
        fixed=dict.fromkeys(("resid_pdrop", "embd_pdrop"), (0.0,)),
    ),
    "phimoe": Plain(
        name="Phimoe", norm="layer", head_bias="lm_head_bias", numbers="input_jitter_noise",
        experts=Experts(normalised=False, width="intermediate_size"),
        fixed={"num_experts_per_tok": (2,)},
        remark="scores of experts are weighed as by a softmax of all, where the class has a "
        "softmax of those near the best",
    ),
    "qwen2": Plain(name="Qwen2", options=("qkv-bias",), kinds=_late),
    "qwen2_moe": Plain(
        name="Qwen2Moe", switches={"qkv_bias": "qkv-bias"}, experts=Experts(shared="gated"),
        kinds=_alternate,
    ),
    "qwen3": Plain(name="Qwen3", options=NORMED, kinds=_late),
    "qwen3_moe": Plain(name="Qwen3Moe", options=NORMED, experts=Experts()),
    "seed_oss": Plain(
        name="SeedOss", switches={**QKV, "attention_out_bias": "output-bias"},
        dropout="residual_dropout",
    ),
    "solar_open": Plain(
        name="SolarOpen", numbers=DEEPSEEK, switches=QKV,
        experts=Experts(scores="sigmoid", shared="plain"),
    ),
    "stablelm": Plain(
        name="StableLm", norm="layer", share=0.25, switches={"use_qkv_bias": "qkv-bias"},
        place=lambda c: "beside" if c.switch("use_parallel_residual") else "before",
        fixed={"qk_layernorm": (False,)}, dropout="hidden_dropout",
    ),
    "starcoder2": Plain(
        name="Starcoder2", norm="layer", switches=USE_BIAS, ffn="plain", ffn_bias="use_bias",
        dropout="residual_dropout embedding_dropout", numbers="norm_epsilon",
    ),
    "vaultgemma": Plain(
        name="VaultGemma", norm="rms, 1 + w", activation="hidden_activation", scaled=True,
        cap="final_logit_softcapping", numbers="query_pre_attn_scalar", kinds=every(2),
        options=("soft-cap",),
    ),
}  # fmt: skip
"""model_type -> how its decoder differs from the plain one."""
