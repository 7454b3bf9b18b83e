"""Do configurations of published models give the parameters, the state and the costs of the model?

`configurations.json` has the parameters of transformers' classes for default and drawn
configurations; `python -m tests.models.drawn` records them anew.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli import app
from costmodel import networks
from costmodel.data import data_dir, read_data
from costmodel.errors import ModelError, SizeError
from costmodel.networks import huggingface
from costmodel.networks.answers import together
from costmodel.networks.architectures.plain import TEXT_ALONE
from costmodel.networks.blocks import Description
from costmodel.networks.configuration import Configuration
from costmodel.networks.network import Network, network
from costmodel.networks.part_costs import counting
from costmodel.networks.training import gradient_elements, graph_of
from costmodel.questions.count import counted
from costmodel.symbolic.polynomial import OFTEN, Poly
from tests.models.drawn import FILE, TOKENS

RECORDED = json.loads(FILE.read_text(encoding="utf-8"))
KINDS = sorted({one["config"]["model_type"] for one in RECORDED})
EVERY_TEXT: dict[str, Any] = read_data(data_dir("transformers") / "texts.json")
LAST = {one["text"]["model_type"]: kind for kind, one in EVERY_TEXT.items()}
TEXTS = {kind: EVERY_TEXT[kind] for kind in [*LAST.values(), "fuyu"]}
"""A type with images or sound for each type of text, as `drawn.texts` records it."""

LLAMA: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-05, "rope_theta": 5e5, "use_cache": True, "torch_dtype": "bfloat16",
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                     "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
}  # fmt: skip
"""Llama 3.1 8B."""


def written(folder: Path, config: Any) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return str(path)


def read(folder: Path, config: Any, ignored: tuple[str, ...] = ()) -> Network:
    found = huggingface.read(Path(written(folder, config)), ignored)
    return network(found)


def printed(*words: str) -> Any:
    """The JSON that a command prints."""
    result = CliRunner().invoke(app, [*words, "--format", "json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.output)["models"][0]


@pytest.mark.grid(4)
@pytest.mark.parametrize("kind", KINDS)
def test_parameters_equal_those_of_the_class(tmp_path: Path, kind: str) -> None:
    some = [one for one in RECORDED if one["config"]["model_type"] == kind]
    assert len(some) > 5
    for one in some:
        net = read(tmp_path, one["config"])
        assert net.parameters().at() == one["parameters"], one["config"]
        described = {use.label for use in net.described.parts()}
        assert described == {use.label for use in net.uses}, "each described part is there"


MORE = {
    "mamba-2", "gated-deltanet", "kda", "lightning", "rg-lru", "differential-attention", "mlstm",
    "llama4_text", "big_bird",
}  # fmt: skip
"""What multiplies more often in the classes than in the equations: mixers whose recurrence the
classes compute in chunks, over rows that are padded to whole chunks; RG-LRU, whose gate of the
first row has nothing to decay; differential attention, whose class computes all scores twice; the
type whose class computes all experts for all tokens; and BigBird, whose class maps the first row
for a pooler that no score reads."""


def of_padding(net: Network) -> int:
    """The multiplications of short convolutions on the k - 1 rows of padding after the last token,
    which the classes compute and drop."""
    found = 0
    for use in net.uses:
        for array in use.mixer.arrays.values():
            if array.role != "parameter" or str(array.shape[0]) != "k":
                continue
            k, width = (poly.substitute(use.sizes).at(net.sizes) for poly in array.shape)
            found += use.runs.at(net.sizes) * k * (k - 1) * width
    return found


@pytest.mark.grid(12)
@pytest.mark.parametrize("kind", KINDS)
def test_matrix_products_multiply_as_often_as_those_of_the_class(tmp_path: Path, kind: str) -> None:
    """A forward pass over all tokens, or over an image, with eager attention and each expert by
    itself; but for what is named above."""
    for one in RECORDED:
        if one["config"]["model_type"] == kind and "products" in one:
            net = read(tmp_path, one["config"])
            sizes = {} if kind == "vit" else {"l": TOKENS}
            read_too = net.described.kind == "encoder-decoder" or "e" in net.described.sizes
            sizes |= {"e": TOKENS} if read_too else {}
            ours = net.count("training", "torch").at(**sizes).by_class()["mul"]
            if MORE & {kind, *(re.split("[+{]", use.label)[0] for use in net.uses)}:
                assert ours < one["products"], one["config"]
            else:
                assert ours + of_padding(net) == one["products"], one["config"]


ZAMBA: dict[str, Any] = {
    "model_type": "zamba2", "vocab_size": 31, "hidden_size": 24, "num_hidden_layers": 4,
    "n_mamba_heads": 6, "mamba_ngroups": 3, "mamba_d_state": 3, "num_attention_heads": 6,
    "intermediate_size": 11,
}  # fmt: skip


CYCLES: dict[str, Any] = {
    "model_type": "hrm_text", "vocab_size": 13, "hidden_size": 24, "intermediate_size": 10,
    "num_hidden_layers": 2, "num_attention_heads": 6, "head_dim": 4, "attention_bias": True,
}  # fmt: skip


@pytest.mark.parametrize(
    ("passed", "multiplied"),
    [([2], 998_424), ([1, 1], 888_216), ([], 888_216), ([3, 3], 1_329_048), ([1, 0], 778_008)],
)
def test_runs_without_gradients_have_no_backward_pass(
    tmp_path: Path, passed: list[int], multiplied: int
) -> None:
    """What the matrix products of a training step of HrmTextForCausalLM of 7 tokens multiply, by
    FlopCounterMode, for the numbers of runs that pass gradients in each of two cycles; every weight
    but the row before the first run has a gradient."""
    net = read(tmp_path, {**CYCLES, "L_bp_cycles": passed})
    assert net.count("training-step", "torch").at(l=7).by_class()["mul"] == multiplied
    trained = gradient_elements(graph_of(net, counting("strict"))).at(net.sizes)
    assert trained == net.parameters().at() - CYCLES["hidden_size"]
    again, named, once = (
        net.answers("training-step", recompute=which)
        .of(counted)
        .exact_total.at({**net.sizes, "l": 7})
        for which in ("layers", "L,H", "none")
    )
    assert again == named > once
    adapted = network(networks.with_adapters(net.described, "layers.*.attn=3"))
    # five maps of 24 to 24 channels in each of four layers, however often a layer runs
    further = 4 * 5 * 3 * (24 + 24)
    assert adapted.parameters().at() == net.parameters().at() + further
    assert gradient_elements(graph_of(adapted, counting("strict"))).at(net.sizes) == further


@pytest.mark.parametrize(
    ("further", "multiplied"),
    [
        ({}, 546_000),
        ({"num_mem_blocks": 2, "adapter_rank": 5, "use_shared_attention_adapter": True,
          "use_mem_rope": True}, 419_460),
        ({"num_key_value_heads": 3, "num_attention_heads": 12, "hidden_act": "silu"}, 442_320),
    ],
)  # fmt: skip
def test_a_shared_block_multiplies_as_often_as_in_the_class(
    tmp_path: Path, further: dict[str, Any], multiplied: int
) -> None:
    """What the matrix products of Zamba2ForCausalLM of 30 tokens grow by where a layer of four
    becomes a hybrid one; Mamba-2, which the class computes in chunks, is in both."""
    found = []
    for last in ("mamba", "hybrid"):
        config = {**ZAMBA, **further, "layers_block_type": ["mamba", "hybrid", "hybrid", last]}
        net = read(tmp_path, config)
        found.append(net.count("training", "torch").at(l=TOKENS).by_class()["mul"])
    assert found[1] - found[0] == multiplied


PUBLISHED: dict[str, tuple[dict[str, Any], int, int, int, int]] = {
    "Mistral-7B-v0.1": ({"model_type": "mistral"}, 7_241_732_096, 7_241_732_096, 536_739_840, 0),
    "Mixtral-8x7B": (
        {"model_type": "mixtral"}, 46_702_792_704, 12_879_925_248, 17_179_869_184, 0
    ),
    "gpt-oss-120b": (
        {"model_type": "gpt_oss"}, 116_829_156_672, 5_711_982_912, 4_836_519_936, 0
    ),
    "Qwen3-Next-80B-A3B": (
        {"model_type": "qwen3_next"}, 79_674_391_296, 3_874_929_408, 3_298_492_416, 75_497_472
    ),
    "Qwen3.6-27B": (
        {"model_type": "qwen3_5", "text_config": {
            "model_type": "qwen3_5_text", "hidden_size": 5120, "intermediate_size": 17408,
            "num_hidden_layers": 64, "num_attention_heads": 24, "num_key_value_heads": 4,
            "linear_num_key_heads": 16, "linear_num_value_heads": 48,
        }}, 26_895_998_464, 26_895_998_464, 8_743_878_656, 150_994_944,
    ),
    "DeepSeek-V3": (
        {"model_type": "deepseek_v3"}, 671_026_404_352, 37_552_282_624, 9_210_691_584, 0
    ),
    "Granite-4.0-H-Small": (
        {
            "model_type": "granitemoehybrid", "vocab_size": 100352, "intermediate_size": 768,
            "num_hidden_layers": 40, "num_key_value_heads": 8, "mamba_d_state": 128,
            "num_local_experts": 72, "num_experts_per_tok": 10, "shared_intermediate_size": 1536,
            "layer_types": ["attention" if k in (5, 15, 25, 35) else "mamba" for k in range(40)],
            "tie_word_embeddings": True,
        }, 32_207_337_984, 8_803_121_664, 2_300_303_360, 150_994_944,
    ),
    "LFM2-1.2B": (
        {
            "model_type": "lfm2", "hidden_size": 2048, "num_hidden_layers": 16,
            "full_attn_idxs": [2, 5, 8, 10, 12, 14],
        }, 1_170_340_608, 1_170_340_608, 1_610_694_656, 0,
    ),
    "gemma-3-27b, its text": (
        {
            "model_type": "gemma3", "text_config": {
                "model_type": "gemma3_text", "hidden_size": 5376, "intermediate_size": 21504,
                "num_hidden_layers": 62, "num_attention_heads": 32, "num_key_value_heads": 16,
                "head_dim": 128,
            },
        }, 27_009_346_304, 27_009_346_304, 12_481_822_720, 0,
    ),
}  # fmt: skip
"""Configuration -> parameters, those active for a token, and the bytes of a sequence of 131,072
tokens, in all and of recurrent state: bf16, but float32 for the state. Mixtral's card says 12.9B
active, that of gpt-oss-120b 5.1B without its embedding of 0.58B, DeepSeek-V3's 37B: all
parameters but 3 d f of each expert that is not chosen."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_hold_what_their_classes_hold(tmp_path: Path, name: str) -> None:
    config, parameters, active, sequence, state = PUBLISHED[name]
    found = printed("memory", written(tmp_path, config), "--context", "128k")
    assert (found["parameters"], found["active_parameters"]) == (parameters, active)
    assert (found["sequence_bytes"], found["state_bytes"]) == (sequence, state)
    assert found["cache_bytes"] == sequence - state == sum(
        part["bytes"] for part in found["parts"] if part["role"] == "cache"
    )  # fmt: skip


TINY = {
    "vocab_size": 31, "hidden_size": 24, "num_hidden_layers": 2, "intermediate_size": 11,
    "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 4,
}  # fmt: skip
DISPATCHED = {
    "llama": ({}, {"mul": 46886, "add": 43617, "div": 812, "exp": 742, "compare": 504}),
    "qwen3": ({}, {"mul": 48230, "add": 44065, "div": 1036, "exp": 742, "compare": 504}),
    "gemma3_text": (
        {"sliding_window": 3, "sliding_window_pattern": 2},
        {"mul": 51254, "add": 45123, "div": 938, "exp": 588, "compare": 504, "tanh": 154},
    ),
}
"""model_type -> further fields, and what profiler.counting.count_dispatch counts in a forward pass
of the class of transformers 5.23.0 over 7 tokens, eager attention, without cosines and sines."""


@pytest.mark.parametrize("kind", DISPATCHED)
def test_operations_equal_those_dispatched_by_the_class(tmp_path: Path, kind: str) -> None:
    """But for what is named: masked scores are computed, masked by an addition and multiplied by
    the scale; a row's maximum is subtracted; tables of angles are made in each pass, once for each
    base; and norms of queries and keys with gains 1 + w add 1."""
    further, theirs = DISPATCHED[kind]
    net = read(tmp_path, {"model_type": kind, **TINY, **further})
    about = net.answers("training", "dense,norm=rsqrt")
    parts = tuple(part for part in about.parts if part.use.label != "loss")
    ours = net.with_own_sizes(together(about.graph, about.stage, parts).of(counted)).at(l=7)
    assert ours.once is not None
    done = Counter(ours.by_class()) + Counter(ours.once.by_class())
    scores, tables = 2 * 6 * 7 * 7, 2 if kind == "gemma3_text" else 1
    done["compare"] += scores - 2 * 6 * 7
    done["add"] += 2 * scores + (2 * 2 * 4 if kind == "gemma3_text" else 0)
    done["mul"] += scores + tables * (7 * 2 + 2 * 7 * 4)
    done["div"] -= scores
    assert {name: done[name] for name in theirs} == theirs


def test_letters_are_shared_by_no_two_blocks(tmp_path: Path) -> None:
    """Three layers of Gated DeltaNet beside attention with other heads, 48 of 64 in all."""
    config = PUBLISHED["Qwen3.6-27B"][0]
    net = read(tmp_path, config)
    state = net.state().at(t=10)
    assert state == 48 * (48 * 128**2 + 3 * 10_240) + 16 * 2 * 4 * 256 * 10
    assert net.described.period == 4


def test_a_class_without_a_head_has_no_scores(tmp_path: Path) -> None:
    whole = read(tmp_path, LLAMA).parameters()
    bare = read(tmp_path, {**LLAMA, "architectures": ["LlamaModel"]}).parameters()
    assert (whole.at(), whole.at() - bare.at()) == (8_030_261_248, 4096 * 128_256)


def test_many_equal_layers_are_one_block(tmp_path: Path) -> None:
    net = read(tmp_path, {**LLAMA, "num_hidden_layers": 100})
    assert len(net.described.decoder.blocks) == 1
    (attention,) = (use for use in net.uses if "attention" in use.label)
    assert attention.runs.at(net.sizes) == 100


def test_a_share_of_the_channels_of_a_head_turns(tmp_path: Path) -> None:
    """Phi-4-mini, whose heads turn 96 of 128 channels, and Phi-3, whose heads turn all."""
    sizes = {"hidden_size": 3072, "num_attention_heads": 24, "num_key_value_heads": 8}
    for share, turned in ((0.75, ("partial-rotary", 96)), (1.0, ("rotary", None))):
        net = read(tmp_path, {"model_type": "phi3", **sizes, "partial_rotary_factor": share})
        (use,) = (use for use in net.uses if "attention" in use.label)
        assert (use.mixer.options[-1], use.mixer.given.get("r")) == turned


NARROW_3N = {"model_type": "gemma3n_text", "num_hidden_layers": 2, "num_kv_shared_layers": 0,
             "layer_types": ["full_attention"] * 2}  # fmt: skip
REFUSED = [
    ({"model_type": "qwen3_next", "num_experts_per_tok": 600}, "= 600 is more than the number of"),
    ({"model_type": "qwen3_next", "partial_rotary_factor": 0.05, "head_dim": 10}, "0 of the 10"),
    ({"model_type": "qwen3_next", "partial_rotary_factor": 1.5}, "above 0, and at most 1"),
    ({"model_type": "qwen3_next", "partial_rotary_factor": "1/2"}, "above 0, and at most 1"),
    ({"model_type": "qwen3_next", "layer_types": ["conv"] * 48}, "layer_types has 'conv': "),
    ({"model_type": "qwen2", "layer_types": ["full_attention"]}, "the kind of each of 32 layers"),
    ({"model_type": "qwen2", "layer_types": ["sliding_attention"] * 32}, "use_sliding_window is f"),
    ({"model_type": "gpt_oss", "experts_per_token": 3}, "= 3 contradicts other fields, from which"),
    ({"model_type": "gemma4_text", "num_kv_shared_layers": 26}, "no layer of kind full_attention"),
    ({"model_type": "gemma4_text", "per_layer_config": {"5": {"window": 3}}}, "'window' = 3 is"),
    ({"model_type": "gemma4_text", "per_layer_config": {"x": {"head_dim": 8}}}, "names layer x"),
    ({"model_type": "gemma4_text", "per_layer_config": {"9" * 5000: {"head_dim": 8}}},
     "expected layers from 0 to 29"),
    ({"model_type": "gemma4_text", "num_kv_shared_layers": 10,
      "use_bidirectional_attention": "all"}, "'all' and 'num_kv_shared_layers' are not supported"),
    ({**NARROW_3N, "intermediate_size": [True, True]}, "positive integer or a list of 2, one a la"),
    ({**NARROW_3N, "activation_sparsity_pattern": [True, False]}, "must be a list of 2 numbers, o"),
    ({**ZAMBA, "layers_block_type": ["mamba"]}, "the kind of each of 4 layers"),
    ({"model_type": "zamba2", "layers_block_type": []}, "the kind of each of 54 layers"),
    ({"model_type": "zamba2", "n_mamba_heads": 7}, "divide mamba_expand * hidden_size = 5120"),
    ({"model_type": "zamba2", "mamba_expand": None}, "the size 'mamba_expand' is missing"),
    ({"model_type": "zamba2", "mamba_expand": "2"}, "'mamba_expand' must be a positive integer"),
    ({"model_type": "mamba", "expand": "2"}, "'expand' must be a positive integer, got '2'"),
    ({"model_type": "zamba2", "num_hidden_layers": 38}, "'layers_block_type' must name the kind"),
    ({"model_type": "zamba", "n_mamba_heads": 3}, "divide mamba_expand * hidden_size = 7424"),
    ({"model_type": "zamba", "attention_hidden_size": 64}, "= 64 contradicts other fields, from"),
    ({"model_type": "zamba2", "num_key_value_heads": 5},
     "num_key_value_heads = 5 does not divide num_attention_heads = 32"),
    ({**LLAMA, "num_key_value_heads": 5}, "num_key_value_heads = 5 does not divide num_attention"),
    ({"model_type": "qwen3_next", "linear_num_key_heads": 5},
     "linear_num_key_heads = 5 does not divide linear_num_value_heads = 32"),
    ({"model_type": "glm4_moe", "num_local_experts": 9, "n_group": 2},
     "n_group = 2 does not divide num_local_experts = 9"),
    ({"model_type": "zamba2", "num_attention_heads": 30, "use_shared_attention_adapter": True},
     "divides 2 * hidden_size = 5120: got 30 and 30"),
    ({"model_type": "xlstm", "ffn_proj_factor": -1}, "must be a positive number, got -1"),
    ({"model_type": "xlstm", "ffn_proj_factor": float("inf")}, "positive number, got inf"),
    ({"model_type": "gemma4_text", "num_kv_shared_layers": False}, "0 or a positive integer, got"),
    ({"model_type": "kimi_linear", "linear_attn_config": "x"}, "must be an object, got 'x'"),
    ({"model_type": "kimi_linear", "linear_attn_config": {"num_heads": "8"}}, "positive integer"),
    ({"model_type": "minimax_m3_vl_text", "sparse_attention_config": "x"}, "be an object, got 'x'"),
    ({"model_type": "nemotron_h", "hybrid_override_pattern": 5}, "a string of M E * -, got 5"),
    ({"model_type": "gpt_neo", "attention_types": [[["global"], 10**30]]}, "for each of 24 layers"),
    ({"model_type": "llava", "text_config": {"model_type": ["llama"]}}, "the text must be a name"),
    ({"model_type": "vit", "patch_size": 225}, "225 x 225 pixels are larger than the image, 224"),
    ({"model_type": "mamba2", "num_heads": 7}, "head_dim = 64 is 448: expected 8192, which"),
    ({"model_type": "jetmoe", "num_experts_per_tok": 9}, "_per_tok = 9 is more than num_local"),
    ({"model_type": "jetmoe", "num_attention_heads": 16}, "= 16 contradicts other fields, from"),
    ({"model_type": "roformer", "rotary_value": True}, "rotary_value = True is not supported"),
    ({"model_type": "mpt", "d_model": 24}, "n_heads = 16 does not divide d_model = 24"),
    ({**LLAMA, "head_dim": 3}, "needs head_dim/2 to be whole, got 3/2 (head_dim = 3); choose head_"
     "dim divisible by 2, such as head_dim = 2 or 4"),
    ({**LLAMA, "hidden_size": 32 * 3}, "needs hidden_size//num_attention_heads/2 to be whole"),
    ({**LLAMA, "num_hidden_layers": 10**9}, "'num_hidden_layers' must be a positive integer of 10,0"
     "00 at most, got 1000000000"),
    ({**LLAMA, "hidden_size": 10**16}, "'hidden_size' must be a positive integer of 1,099,511,627"),
    ({**LLAMA, "model_type": "lama"}, "'lama' is not known: did you mean 'llama'? known are"),
    ({"model_type": "mamba2", "n_groups": 3}, "needs head_dim*num_heads/n_groups to be whole"),
    ({"model_type": "deepseek_v2", "qk_rope_head_dim": 63}, "needs qk_rope_head_dim/2 to be whole"),
    ({"model_type": "gpt2", "n_head": 5}, "n_head = 5 does not divide n_embd = 768"),
    ({"model_type": "bert", "hidden_size": 769}, "heads = 12 does not divide hidden_size = 769"),
    ({"model_type": "vit", "num_attention_heads": 5}, "heads = 5 does not divide hidden_size"),
    ({"model_type": "dbrx", "attn_config": {"kv_heads": 2}}, "'kv_heads' = 2 is not read"),
    ({"model_type": "dbrx", "attn_config": [2]}, "'attn_config' must be an object, got [2]"),
    ({"model_type": "t5", "feed_forward_proj": "gated-mish"}, "'gated-mish' is unknown: expected"),
    ({"model_type": "dbrx", "ffn_config": {"ffn_act_fn": {"name": "relu"}}}, "or None"),
    ({"model_type": "albert", "num_hidden_groups": 13}, "L must be at least 13, the number of"),
    ({"model_type": "vit", "id2label": 5}, "'id2label' must be an object, got 5"),
    (
        {"model_type": "vit", "architectures": ["ViTModel"], "pooler_act": ["a"]},
        "pooler_act '['a']' is unknown: expected one of relu",
    ),
    ({"model_type": "vit", "patch_size": [4]}, "'patch_size' must be a positive integer or a l"),
    ({**LLAMA, "attn_logit_cap": 30.0}, "--ignore attn_logit_cap counts without"),
    ({"model_type": "qwen2_moe", "shared_expert_intermediate_size": 0}, "expert has width 0, but"),
    ({"model_type": "hy_v3", "first_k_dense_replace": 2}, "other fields, from which 1 follows"),
    ({"model_type": "mixtral", "n_routed_experts": 4}, "'n_routed_experts' = 4 is not read"),
    ({"model_type": "zamba2", "conv_kernel": 3}, "conv_kernel = 3 contradicts other fields, from"),
    ({**LLAMA, "is_decoder": True}, "'is_decoder' = True is not read (the default is False)"),
    ({**LLAMA, "hidden_act": "relu2"}, "hidden_act 'relu2' is unknown"),
    ({**LLAMA, "num_attention_heads": 0}, "'num_attention_heads' must be a positive integer"),
    ({**LLAMA, "mlp_bias": "no"}, "'mlp_bias' must be true or false, got 'no'"),
    ({**LLAMA, "rope_scaling": {"partial_rotary_factor": 0.5}}, "'partial_rotary_factor' = 0.5"),
    ({**LLAMA, "architectures": ["LlamaForTokenClassification"]}, "is not supported: expected"),
    ({"model_type": "laguna", "num_attention_heads_per_layer": [48, 24]},
     "num_attention_heads_per_layer = [48, 24] is not read: expected num_attention_heads for each"),
    ({"model_type": "mllama_text_model", "cross_attention_layers": ["3"]},
     "'cross_attention_layers' must list layers by number, from 0 on, got ['3']"),
    ({"model_type": "helium", "head_dim": 16}, "times head_dim = 16 is 320: expected hidden_size"),
    ({"model_type": "electra", "num_attention_heads": 3},
     "num_attention_heads = 3 times hidden_size//num_attention_heads = 85 is 255: expected hidden"),
    *(({"model_type": kind, "num_attention_heads": 8, "hidden_size": 50},
       "= 6 is 48: expected hidden_size = 50")
      for kind in ("albert", "roformer", "ctrl", "dbrx", "gpt_neox_japanese", "olmoe")),
    ({"model_type": "jamba", "num_experts": 3, "num_local_experts": 4},
     "num_local_experts = 4 and num_experts = 3 are two names of one field: leave out one"),
    ({"model_type": "jamba", "num_experts": 3, "num_local_experts": 4},
     "num_local_experts = 4 and num_experts = 3 are two names of one field: leave out one"),
    ({"model_type": "nemotron_h", "layers_block_type": 7}, "must name the kind of each layer, got"),
    ({"model_type": "gemma3n_text", "hidden_size_per_layer_input": 0}, "must be a positive int"),
    ({"model_type": "longcat_flash", "qk_head_dim": 7}, "qk_head_dim = 7 contradicts other fields"),
    ({"model_type": "aria_text", "moe_num_shared_experts": 0, "mlp_bias": True},
     "mlp_bias = true needs shared experts, but moe_num_sh"),
    *(({"model_type": kind, name: 7}, f"'{name}' must be a list, got 7") for kind, name in (
        ("smollm3", "no_rope_layers"), ("lfm2", "full_attn_idxs"), ("llama4_text", "moe_layers"),
        ("llama4_text", "no_rope_layers"), ("mellum", "mlp_layer_types"),
        ("qwen3_moe", "mlp_only_layers"), ("bamba", "attn_layer_indices"))),
    ({"model_type": "llama4_text", "no_rope_layers": [1]}, "must say 0 or 1 for each of 48 layers"),
    *(({"model_type": kind, name: "x"}, f"'{name}' must be") for kind, name in (
        ("deepseek_v3", "first_k_dense_replace"), ("qwen3_moe", "decoder_sparse_step"),
        ("ernie4_5_moe", "moe_layer_end_index"), ("lfm2", "block_ffn_dim_multiplier"))),
    ({"model_type": "minimax_m3_vl_text", "sparse_attention_config": {
        "sparse_attention_freq": [0, 1]}}, "some layers have an indexer that chooses keys"),
    ({"model_type": "recurrent_gemma", "lru_width": 7}, "heads = 10 does not divide lru_width = 7"),
    ({**LLAMA, "quantization_config": 7}, "'quantization_config' must be an object, got 7"),
    ({"model_type": "mllama", "vision_config": 7}, "'vision_config' must be an object, got 7"),
    ({**LLAMA, "torch_dtype": "banana"}, "torch_dtype = 'banana' is unknown: expected float64, fl"),
    *(({"model_type": "minimax", "num_hidden_layers": 2, "attn_type_list": one},
       "'attn_type_list' must say 0 or 1 for each of 2 layers") for one in ([0, 2], [1])),
    ({"model_type": "phimoe", "num_hidden_layers": 2, "attn_type_list": [0, 1]},
     "'attn_type_list' = [0, 1] is not read"),
    ({"model_type": "recurrent_gemma", "block_types": ["recurrent", "foo"]},
     "block_types has 'foo': expected recurrent, attention"),
    ({"model_type": "recurrent_gemma", "block_types": []},
     "'block_types' must list recurrent or attention, got []"),
    *(({"model_type": kind, name: ["1"]},
       f"'{name}' must list layers by number, from 0 on, got ['1']")
      for kind, name in (("lfm2", "full_attn_idxs"), ("llama4_text", "moe_layers"),
                         ("qwen3_moe", "mlp_only_layers"), ("bamba", "attn_layer_indices"))),
    *(({"model_type": kind, "num_hidden_layers": 1, "no_rope_layers": ["0"]},
       "'no_rope_layers' must say 0 or 1 for each of 1 layers")
      for kind in ("smollm3", "llama4_text")),
    *(({"model_type": kind, "sliding_window": 40}, "'sliding_window' = 40 is not read (the "
       "default is None), but counts may depend on the field: --ignore sliding_window counts")
      for kind in ("llama", "glm4_moe", "olmo2", "deepseek_v3", "nemotron_h", "qwen3_next")),
    *(({"model_type": "kimi_linear", "num_hidden_layers": 3, "linear_attn_config": {
        "full_attn_layers": full, "kda_layers": kda}}, sentence) for full, kda, sentence in (
        ([3], [1, 2, 3], "layer 3 is in full_attn_layers and in kda_layers: write each layer"),
        ([3], [1], "layer 2 is in neither full_attn_layers nor kda_layers"),
        ([2], [0, 1], "kda_layers has layer 0: expected layers from 1 to 3"),
        ([3], None, "'kda_layers' must list layers by number, from 1 on, got None"),
    )),
    *(({"model_type": "gpt_neo", "attention_types": types}, "must say global or local for "
       "each of 24 layers, such as [[['global', 'local'], 12]] for 24 layers, got ")
      for types in ([[["global", "foo"], 12]], [[["global"], 12]], [[[["local"]], 24]], 24, [])),
    ({"model_type": "gemma4_text", "per_layer_config": {"030": {"head_dim": 3}}},
     "'per_layer_config' names layer 030: expected layers from 0 to 29"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "sentence"), REFUSED)
def test_what_is_not_read_is_refused_by_name(tmp_path: Path, config: Any, sentence: str) -> None:
    with pytest.raises(ModelError) as raised:
        read(tmp_path, config)
    assert sentence in str(raised.value)


@pytest.mark.parametrize("kind", ["lfm2", "lfm2_moe"])
def test_the_older_name_of_ties_takes_the_place_of_todays_field(tmp_path: Path, kind: str) -> None:
    """As the classes Lfm2Config and Lfm2MoeConfig read it."""
    small = {"model_type": kind, "num_hidden_layers": 3, "hidden_size": 64}
    apart, tied = (
        [
            read(tmp_path, {**small, **fields}).parameters().at()
            for fields in ({"tie_word_embeddings": ties}, {"tie_embedding": ties},
                           {"tie_embedding": ties, "tie_word_embeddings": not ties})
        ]
        for ties in (False, True)
    )  # fmt: skip
    assert {*apart} == {tied[0] + 64 * 65536}
    assert len({*tied}) == 1


@pytest.mark.parametrize(
    ("kind", "scale"),
    [
        *((kind, "multiplied") for kind in ("cohere", "cohere2", "cohere2_moe", "hyperclovax")),
        *((kind, "divided") for kind in ("granite", "granitemoe", "granitemoehybrid")),
        ("minicpm3", "rows"),
    ],
)
def test_scores_are_scaled_as_the_class_scales_them(tmp_path: Path, kind: str, scale: str) -> None:
    (head,) = (use for use in read(tmp_path, {"model_type": kind}).uses if use.label == "head")
    assert head.mixer.made_with["scale"] == scale


def test_gemma_4_attends_to_half_of_its_window_on_each_side(tmp_path: Path) -> None:
    config = {"model_type": "gemma4_text", "num_hidden_layers": 6, "sliding_window": 7}
    net = read(tmp_path, {**config, "use_bidirectional_attention": "all"})
    assert net.parameters().at() == read(tmp_path, config).parameters().at()
    widths = {use.mixer.given.get("w") for use in net.uses if "bidirectional" in use.label}
    assert (net.described.kind, widths) == ("encoder", {None, 7 // 2 + 1})


def test_the_mean_that_a_classifier_maps_is_named(tmp_path: Path) -> None:
    config = {"model_type": "modernbert", "num_hidden_layers": 2, "classifier_pooling": "mean"}
    for named, said in (("MaskedLM", False), ("SequenceClassification", True)):
        net = read(tmp_path, {**config, "architectures": [f"ModernBertFor{named}"]})
        assert ("the mean of all rows" in net.described.remark) == said


def test_attn_type_list_of_minimax_is_read_as_layer_types(tmp_path: Path) -> None:
    kinds = ["linear_attention", "full_attention", "linear_attention"]
    config = {"model_type": "minimax", "num_hidden_layers": 3}
    older = read(tmp_path, {**config, "attn_type_list": [0, 1, 0]})
    today = read(tmp_path, {**config, "layer_types": kinds})
    assert older.parameters().at() == today.parameters().at()
    assert older.parameters().at() != read(tmp_path, config).parameters().at()
    assert "the class reads layer_types alone" in older.described.remark


@pytest.mark.parametrize(
    ("kind", "name"), [("gemma3", ""), ("gemma3", "text_config"), ("internvl_chat", "llm_config")]
)
def test_of_a_model_with_images_the_text_is_read_and_that_is_said(
    tmp_path: Path, kind: str, name: str
) -> None:
    inner = {"model_type": "gemma3_text", **({"vocab_size": 31} if name else {})}
    text, own = read(tmp_path, inner), {name: inner} if name else {}
    found = read(tmp_path, {"model_type": kind, **own, "vision_config": {"depth": 3}})
    assert found.parameters().at() == text.parameters().at()
    assert found.described.remark.startswith(TEXT_ALONE)
    assert not text.described.remark.startswith(TEXT_ALONE)


@pytest.mark.parametrize("kind", sorted(TEXTS))
def test_the_default_text_of_a_model_with_images_has_the_parameters_of_its_class(
    tmp_path: Path, kind: str
) -> None:
    one = TEXTS[kind]
    beside: dict[str, Any] = dict.fromkeys({*one["beside"]} - {"text_config"}, 7)
    beside.update({name: {"depth": 7} for name in ["vision_config"] if name in beside})
    net = read(tmp_path, {"model_type": kind, **beside})
    assert net.parameters().at() == one["parameters"]


def test_fields_without_a_text_are_read_as_the_class_reads_them(tmp_path: Path) -> None:
    flat = {"model_type": "fuyu", "num_hidden_layers": 3, "patch_size": 5}
    inner = {**TEXTS["fuyu"]["text"], "num_hidden_layers": 3}
    assert read(tmp_path, flat).parameters().at() == read(tmp_path, inner).parameters().at()
    for unread in ({"model_type": "fuyu", "num_layer": 3}, {"model_type": "gemma3", "head_dim": 7}):
        with pytest.raises(ModelError, match=f"'{[*unread][1]}' = .* is not read"):
            read(tmp_path, unread)
    ignoring = read(tmp_path, {"model_type": "gemma3", "head_dim": 7}, ("head_dim",))
    assert ignoring.parameters().at() == EVERY_TEXT["gemma3"]["parameters"]


def test_a_type_that_is_not_read_is_refused_with_the_part_that_is_missing(tmp_path: Path) -> None:
    for kind, part in huggingface.MISSING.items():
        assert kind not in huggingface.READERS
        with pytest.raises(ModelError, match=re.escape(f"'{kind}' is not known")) as raised:
            read(tmp_path, {"model_type": kind})
        first = f"no part of a network here is {part}, and model_type '{kind}' is not known: known"
        assert str(raised.value).partition("config.json: ")[2].startswith(first)


@pytest.mark.parametrize(
    ("fields", "turned"),
    [
        ({}, True),
        ({"rope_parameters": None}, True),
        ({"rope_parameters": {"rope_theta": 5e5}}, True),
        ({"rope_parameters": {"rope_theta": None, "rope_type": "default"}}, False),
        ({"rope_theta": None}, False),
    ],
)
def test_rows_of_olmo_hybrid_turn_unless_the_base_is_null(
    tmp_path: Path, fields: dict[str, Any], turned: bool
) -> None:
    labels = {use.label for use in read(tmp_path, {"model_type": "olmo_hybrid", **fields}).uses}
    (attention,) = (label for label in labels if label.startswith("self-attention"))
    assert ("rotary" in attention) == turned


def test_a_released_file_has_fields_that_the_class_reads_elsewhere(tmp_path: Path) -> None:
    """Of a model with images the text is read; further spellings say the same as the fields."""
    text = {
        "model_type": "qwen3_5_text", "attn_output_gate": True, "mamba_ssm_dtype": "float32",
        "mlp_only_layers": [], "mtp_num_hidden_layers": 1, "dtype": "float16",
        "rope_parameters": {"mrope_interleaved": True, "mrope_section": [11, 11, 10],
                            "rope_type": "default", "partial_rotary_factor": 0.25},
    }  # fmt: skip
    whole = {"model_type": "qwen3_5", "text_config": text, "vision_config": {"depth": 27}}
    found = printed("memory", written(tmp_path, whole), "--context", "1k")
    assert (found["parameters"], found["dtypes"]["weights"]) == (8_953_803_264, "fp16")
    unnamed = {**whole, "text_config": {n: v for n, v in text.items() if n != "model_type"}}
    assert printed("memory", written(tmp_path, unnamed), "--context", "1k") == found
    narrow = {**whole, "text_config": {**text, "head_dim": 64}}
    less = printed("memory", written(tmp_path, narrow), "--context", "1k")["cache_bytes"]
    assert less < found["cache_bytes"]


RELEASED: list[tuple[int, dict[str, Any]]] = [
    (11_221_680, {
        "model_type": "albert", "architectures": ["AlbertForMaskedLM"], "hidden_size": 768,
        "num_attention_heads": 12, "intermediate_size": 3072, "down_scale_factor": 1, "gap_size": 0,
        "net_structure_type": 0, "num_memory_blocks": 0, "position_embedding_type": "absolute",
    }),
    (559_214_592, {
        "model_type": "bloom", "n_embed": 1024, "n_layer": 24, "n_head": 16, "offset_alibi": 100,
        "skip_bias_add": True, "bias_dropout_fusion": True, "unk_token_id": 0,
    }),
    (66_985_530, {
        "model_type": "distilbert", "architectures": ["DistilBertForMaskedLM"],
        "sinusoidal_pos_embds": False, "qa_dropout": 0.1,
    }),
    (13_549_057, {
        "model_type": "electra", "architectures": ["ElectraForPreTraining"],
        "generator_size": "0.25", "position_embedding_type": "absolute",
    }),
    (1_311_625_216, {
        "model_type": "falcon", "alibi": True, "bias": True, "hidden_size": 2048,
        "multi_query": False, "num_attention_heads": 32, "num_hidden_layers": 24,
        "parallel_attn": False, "vocab_size": 50304, "architectures": ["RWForCausalLM"],
        "apply_residual_connection_post_layernorm": False,
    }),
    (521_411_104, {
        "model_type": "falcon_h1", "hidden_size": 1024, "intermediate_size": 2048, "head_dim": 64,
        "mamba_d_ssm": 1536, "mamba_d_state": 128, "mamba_n_heads": 24, "mamba_d_head": 64,
        "num_attention_heads": 8, "num_hidden_layers": 36, "num_key_value_heads": 2,
        "attn_layer_indices": None, "mamba_use_mlp": True, "mlp_expansion_factor": 8,
        "key_multiplier": 0.390625, "vocab_size": 32784,
    }),
    (149_655_232, {
        "model_type": "modernbert", "global_rope_theta": 160000.0, "local_rope_theta": 10000.0,
        "global_attn_every_n_layers": 3, "classifier_pooling": "mean",
        "position_embedding_type": "absolute",
    }),
    (6_649_286_656, {
        "model_type": "mpt", "architectures": ["MPTForCausalLM"], "d_model": 4096, "n_heads": 32,
        "n_layers": 32, "vocab_size": 50432, "verbose": 0, "init_config": {"init_std": None},
        "attn_config": {"alibi": True, "attn_type": "multihead_attention", "clip_qkv": None,
                        "qk_ln": False, "prefix_lm": False, "softmax_scale": None},
    }),
    (20_554_567_680, {
        "model_type": "gpt_neox", "rotary_pct": 0.25, "rotary_emb_base": 10000,
        "hidden_act": "gelu_fast", "attention_probs_dropout_prob": 0, "max_length": 20,
    }),
    (6_050_882_784, {
        "model_type": "gptj", "rotary": True, "scale_attn_weights": True,
        "tie_word_embeddings": False, "summary_type": "cls_index",
        "task_specific_params": {"text-generation": {}},
    }),
    (49_133_074_464, {
        "model_type": "kimi_linear", "mla_use_nope": True, "use_grouped_topk": True,
        "moe_router_activation_func": "sigmoid", "model_max_length": 1048576,
    }),
    (7_285_403_648, {"model_type": "mamba2", "norm_before_gate": True, "rms_norm": True}),
    (60_506_624, {
        "model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "n_positions": 512,
        "output_past": True, "task_specific_params": {"summarization": {}},
    }),
    (86_567_656, {
        "model_type": "vit", "architectures": ["ViTForImageClassification"],
        "id2label": {str(k): "a name" for k in range(1000)}, "label2id": {"a name": 0},
    }),
]  # fmt: skip
"""The parameters of ALBERT base, Bloom 560m, DistilBERT, ELECTRA small, Falcon-RW-1B,
Falcon-H1-0.5B, ModernBERT base, MPT-7B, GPT-NeoX-20B, GPT-J, a Kimi Linear, Codestral Mamba, T5
small and ViT-B/16, whose files have fields that the
classes read otherwise or not at all."""


@pytest.mark.parametrize(
    ("parameters", "config"),
    RELEASED,
    ids=lambda one: one["model_type"] if isinstance(one, dict) else None,
)
def test_released_files_are_read_with_their_own_fields(
    tmp_path: Path, parameters: int, config: dict[str, Any]
) -> None:
    assert read(tmp_path, config).parameters().at() == parameters


def test_the_old_name_of_the_share_of_turned_channels_is_read(tmp_path: Path) -> None:
    def total(**fields: Any) -> int:
        return read(tmp_path, {"model_type": "gpt_neox", **fields}).count("training").at(l=5).total

    assert total(rotary_pct=0.5) == total(partial_rotary_factor=0.5) > total(rotary_pct=0.25)
    assert total(rotary_pct=0.25) == total()


def test_a_configuration_is_read_in_python_by_its_path_or_its_fields(tmp_path: Path) -> None:
    """With the name that the file gives, or else its type, wherever the file lies."""
    path = written(tmp_path, {**LLAMA, "_name_or_path": "a/name"})
    for given in (path, Path(path), {**LLAMA, "_name_or_path": "a/name"}):
        net = networks.model(given, sizes={"L": 3})
        assert (net.name, net.sizes["L"]) == ("a/name", 3)
        held: Any = networks.memory(net, weight_dtype="fp8")
        assert held.weights == held.active == net.parameters().at()
        assert held.at(5) == 2 * net.state().at(t=5)
        assert [*held.at([5, 7])] == [held.at(5), held.at(7)]
        assert [*held.further([5, 7])] == [held.further(5)] * 2
        for bad in (-1, 0, 1.5, "5"):
            with pytest.raises(SizeError, match="size t must "):
                held.at(bad)
    two = {"model_type": "lfm2", "num_hidden_layers": 2}
    kinds = ("conv", "full_attention")
    found, other = (networks.model({**two, "layer_types": of(kinds)}) for of in (tuple, list))
    assert found.parameters().at() == other.parameters().at()
    assert networks.model(LLAMA).name == "llama"
    found = printed("memory", path, "--t", "5")
    assert (found["model"], found["source"]) == ("a/name", f"{path}, model_type llama")
    assert networks.model({**LLAMA, "odd": 3}, ignore=("odd",)).sizes["L"] == 32
    for wrong, said in (
        ({"odd": 3}, "configuration: expected an object with a 'model_type'"),
        (3, "expected the path of a config.json, or its fields, got 3"),
    ):
        with pytest.raises(ModelError, match=said):
            networks.model(wrong)  # type: ignore[arg-type]  # the wrong kind
    with pytest.raises(ModelError, match="gpt-2 is the name of a network, and ignore leaves"):
        networks.model("gpt-2", ignore=("odd",))


def test_the_class_of_xlstm_ties_no_head(tmp_path: Path) -> None:
    one, two = (read(tmp_path, {"model_type": "xlstm", "tie_word_embeddings": tied})
                for tied in (True, False))  # fmt: skip
    assert one.parameters().at() == two.parameters().at()


def test_full_attention_of_minimax_is_masked_by_the_width_of_a_window(tmp_path: Path) -> None:
    """The class masks these layers by `sliding_window`, though `layer_types` calls them full: a
    window of 3 holds 2 keys and 2 values of 2 heads of width 8."""
    kinds = ["linear_attention", "full_attention"]
    config = {
        "model_type": "minimax", "num_hidden_layers": 2, "hidden_size": 16, "head_dim": 8,
        "num_attention_heads": 2, "num_key_value_heads": 2, "layer_types": kinds,
    }  # fmt: skip
    recurrent, rows = 2 * 8 * 8, 2 * 2 * 8
    assert read(tmp_path, config).state().at(t=30) == recurrent + 30 * rows
    assert read(tmp_path, {**config, "sliding_window": 3}).state().at(t=30) == recurrent + 2 * rows


@pytest.mark.parametrize("format_", ["rich", "markdown", "latex", "csv"])
def test_memory_in_every_format(tmp_path: Path, format_: str) -> None:
    words = ["memory", written(tmp_path, LLAMA), "--context", "128k", "--format", format_]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0
    number = "17179869184" if format_ == "csv" else "17,179,869,184"
    assert number in result.output.replace("{,}", ",")


def test_a_field_that_is_ignored_is_left_out(tmp_path: Path) -> None:
    path = written(tmp_path, {**LLAMA, "attn_logit_cap": 30.0})
    assert printed("model", "--hf", path, "--ignore", "attn_logit_cap")["parameters"] > 0
    assert printed("memory", path, "--t", "3", "--ignore", "num_key_value_heads", "--ignore",
                   "attn_logit_cap")["cache_bytes"] == 3 * 32 * 2 * 4096 * 2  # fmt: skip
    for name, said in (
        ("attn_logit_cup", "the file has no such field: did you mean attn_logit_cap?"),
        ("zz", "--ignore zz: the file has no such field, so leave out --ignore"),
        ("model_type", "--ignore model_type: the type of model must stay"),
    ):
        with pytest.raises(ModelError, match=said):
            huggingface.read(Path(path), (name,))
    nested = {"model_type": "mistral3", "text_config": {**LLAMA, "rope_scaling": {"odd": 3}}}
    assert read(tmp_path, nested, ("odd", "vocab_size")).parameters().at() < 8e9


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--ffn", "takes no --ffn: change the configuration"),
        ("--encoder-mixer she", "takes no --encoder-mixer: change the configuration"),
        ("--mixer she", "takes no --mixer: `costmodel model --hf config.json --replace OLD=NEW` "
                        "replaces mixers of layers"),
    ],
)  # fmt: skip
def test_a_choice_of_a_configuration_that_is_read_as_blocks(
    tmp_path: Path, words: str, said: str
) -> None:
    result = CliRunner().invoke(app, ["model", "--hf", written(tmp_path, LLAMA), *words.split()])
    assert said in str(result.exception)


@pytest.mark.parametrize("command", ["memory --t 8", "model --hf", "table"])
def test_an_address_in_the_web_is_not_read(command: str) -> None:
    url = "https://example.org/config.json"
    result = CliRunner().invoke(app, [*command.split(), url])
    assert str(result.exception) == (
        f"{url}: a URL is not read: download the file, and give its path"
    )


def test_sizes_that_the_file_leaves_out_are_named_with_the_defaults_of_the_class(
    tmp_path: Path,
) -> None:
    said = "sizes by default of the class: "
    without = {name: value for name, value in LLAMA.items() if name != "vocab_size"}
    assert read(tmp_path, without).described.remark == f"{said}vocab_size = 32,000"
    assert said not in read(tmp_path, LLAMA).described.remark
    inner = {"model_type": "dbrx", "attn_config": {"clip_qkv": None}}
    assert "kv_n_heads = 1, " in read(tmp_path, inner).described.remark.partition(said)[2]
    spelled = {"model_type": "gpt2", "hidden_size": 48, "n_layer": 3, "n_head": 2, "n_ctx": 7}
    assert read(tmp_path, spelled).described.remark == f"{said}vocab_size = 50,257"


def test_every_phase_of_a_read_model_has_its_costs(tmp_path: Path) -> None:
    """Attention and FFN are most of a training step, of which the forward pass is a third."""
    net = read(tmp_path, LLAMA)
    forward, step = (net.count(phase).at(l=1024).total for phase in ("training", "training-step"))
    assert 2.99 < step / forward < 3.01
    routed = read(tmp_path, {"model_type": "qwen3_next"}).count("training-step").at(l=1024).total
    multiplied = 3_874_929_408 - 151_936 * 2048  # but for the rows of the embedding
    assert 6 < routed / (1024 * multiplied) < 6.5, "6 an active parameter, and the mixers' cores"
    made = networks.generation(net)
    assert made.prompt.at(p=8, q=2).total > made.new.at(p=8, q=2).total > 2 * 7e9


@pytest.mark.parametrize(("groups", "layers"), [(1, 6), (2, 6), (3, 3)])
def test_layers_with_the_same_weights_add_up_their_gradients(
    tmp_path: Path, groups: int, layers: int
) -> None:
    """ALBERT: a set of weights of a layer for each group; each further layer adds a gradient of all
    of them, once a batch."""
    config = {
        "model_type": "albert", "hidden_size": 24, "num_attention_heads": 6, "vocab_size": 31,
        "intermediate_size": 11, "num_hidden_layers": layers, "num_hidden_groups": groups,
    }  # fmt: skip
    net = read(tmp_path, config)
    layer = 4 * 24 * 25 + 24 * 11 + 11 + 11 * 24 + 24 + 4 * 24
    fewer = read(tmp_path, {**config, "num_hidden_groups": 1}).parameters().at()
    assert net.parameters().at() - fewer == (groups - 1) * layer
    once = net.count("backward").at(l=5).once
    assert once is not None
    alone = read(tmp_path, {**config, "num_hidden_groups": layers}).count("backward").at(l=5).once
    assert once.total - (alone.total if alone else 0) == (layers - groups) * layer


@pytest.mark.parametrize(
    ("config", "unread"),
    [
        ({"model_type": "roformer", "hidden_size": 24, "num_attention_heads": 6,
          "intermediate_size": 11, "num_hidden_layers": 2}, 40 * 4),
        ({"model_type": "bart", "d_model": 6, "decoder_attention_heads": 2, "decoder_ffn_dim": 3,
          "decoder_layers": 2}, 2 * (4 * 6 * 6 + 4 * 6 + 2 * 6)),
    ],
)  # fmt: skip
def test_no_step_of_training_changes_what_no_pass_reads(
    tmp_path: Path, config: dict[str, Any], unread: int
) -> None:
    """RoFormer's table of angles, with a row for each position of as many numbers as a head has
    channels; the cross-attention, with its norm, of BART's decoder alone."""
    net = read(tmp_path, {"vocab_size": 31, "max_position_embeddings": 40, **config})
    graph = graph_of(net, counting("strict"))
    trained = gradient_elements(graph).at(net.sizes)
    assert net.parameters().at() - trained == unread
    with pytest.raises(SizeError, match="position l = 41 would lie beyond"):
        net.count("training").at(l=41)


def test_an_encoder_reads_as_many_tokens_as_its_table_has_rows(tmp_path: Path) -> None:
    """Of a sequence, BART's decoder holds keys and values of 16 tokens, and of the encoder's 17."""
    fields = {"vocab_size": 31, "max_position_embeddings": 17, "architectures": ["BartModel"]}
    found = printed("memory", written(tmp_path, {"model_type": "bart", **fields}), "--t", "16")
    assert found["sequence_bytes"] == 12 * 2 * (16 + 17) * 1024 * 2


def test_layers_of_gemma_4_have_the_heads_of_their_own(tmp_path: Path) -> None:
    """As the class's own files say them: an entry for each full layer."""
    kind = {"model_type": "gemma4_text"}
    full = {str(layer): {"head_dim": 512} for layer in range(5, 30, 6)}
    own = read(tmp_path, {**kind, "per_layer_config": full}).parameters().at()
    assert own == read(tmp_path, kind).parameters().at()
    narrow = {**full, "5": {"head_dim": 256, "num_key_value_heads": 4}}
    fewer = read(tmp_path, {**kind, "per_layer_config": narrow}).parameters().at()
    maps, norms = 2304 * (8 + 2 * 4 + 8), 2  # queries, keys, values and output; of queries and keys
    assert own - fewer == 256 * (maps + norms)


def test_layers_keep_the_parameters_that_they_share(tmp_path: Path) -> None:
    """As few layers as sets in ALBERT; in T5 one table of positions in each stack, whose further
    layers only a configuration describes. T5ForConditionalGeneration has as many parameters."""
    albert = read(tmp_path, {"model_type": "albert", "num_hidden_groups": 2})
    with pytest.raises(ModelError, match="L must be at least 2, the number of sets"):
        albert.count("backward").at(L=1, l=5)
    words = ["model", "--hf", str(tmp_path / "config.json"), "--L", "1"]
    assert "L must be at least 2, the number" in str(CliRunner().invoke(app, words).exception)
    small = {"d_model": 8, "d_kv": 4, "num_heads": 2, "d_ff": 4, "vocab_size": 11}
    for layers, parameters in ((1, 1168), (2, 2104)):
        net = read(tmp_path, {"model_type": "t5", **small, "num_layers": layers})
        assert (net.parameters().at(), net.layers) == (parameters, layers)
        assert [len(stack.blocks) for stack in net.described.stacks] == [layers, layers]
        with pytest.raises(ModelError, match=rf"L must be at most {layers}, .* share b_rel"):
            network(net.described, L=layers + 1)


def test_dropout_after_the_last_norm_of_t5_is_outside_of_its_layers(tmp_path: Path) -> None:
    """Of two stacks of one layer: after the embedding, two and three sublayers, and the norm."""
    small = {"d_model": 8, "d_kv": 4, "num_heads": 2, "d_ff": 4, "vocab_size": 11}
    net = read(tmp_path, {"model_type": "t5", **small, "num_layers": 1})
    at = {**net.sizes, "l": 5, "e": 5}
    with_, without = (net.count("training", f"dropout={way}").at(**at) for way in ("mul", "free"))
    assert with_.mul - without.mul == (4 + 5) * 5 * 8
    again = [net.answers("backward", "dropout=mul", way).of(counted) for way in ("layers", "none")]
    free = [net.answers("backward", "dropout=free", way).of(counted) for way in ("layers", "none")]
    more, less = ([c.at(**at).mul for c in counts] for counts in (again, free))
    assert (more[0] - more[1]) - (less[0] - less[1]) == 5 * 5 * 8, "those of the sublayers"


def test_memory_of_a_context(tmp_path: Path) -> None:
    found = printed(
        "memory", written(tmp_path, LLAMA), "--context", "128k", "--batch", "8", "--fit", "160GB"
    )
    assert found["sequence_bytes"] == 17_179_869_184 == 131_072 * found["bytes_per_further_token"]
    assert found["weights_bytes"] == 2 * 8_030_261_248
    assert found["total_bytes"] == found["weights_bytes"] + 8 * 17_179_869_184
    room, fit = 160 * 10**9 - found["weights_bytes"], found["fit"]
    assert fit["largest_batch"] == room // 17_179_869_184
    assert fit["largest_context"] == room // (8 * found["bytes_per_further_token"])
    same = printed("memory", written(tmp_path, LLAMA), "--t", "131072", "--b", "8")
    assert same == {key: value for key, value in found.items() if key != "fit"}


def test_memory_of_a_network_by_its_name() -> None:
    found = printed("memory", "gpt-2", "--context", "1k", "--fit", "1GB", "--cache-dtype", "int8")
    assert found["cache_bytes"] == 2 * 12 * 768 * 1024
    assert found["fit"]["largest_context"] == 1024, "positions end there"


def test_positions_of_a_decoder_beside_an_encoder_bound_the_context(tmp_path: Path) -> None:
    bart = {"model_type": "bart", "architectures": ["BartForConditionalGeneration"]}
    found = printed("memory", written(tmp_path, bart), "--context", "8", "--fit", "80GB")
    assert found["fit"]["largest_context"] == 1024


def test_a_table_of_positions_shorter_than_the_usual_length_bounds_the_context(
    tmp_path: Path,
) -> None:
    path = written(tmp_path, {"model_type": "whisper", "max_target_positions": 40})
    length = Poly.atom("l")
    assert [length.at({"l": 40}) for _ in range(OFTEN)][-1] == 40  # compiled, it returns the size
    assert printed("memory", path, "--fit", "80GB")["fit"]["largest_context"] == 40


def test_blocks_of_entries_take_34_bytes_for_32(tmp_path: Path) -> None:
    words = ("memory", written(tmp_path, LLAMA), "--context", "128k", "--cache-dtype", "q8_0")
    found = printed(*words, "--fit", "80GB")
    assert found["cache_bytes"] == 17_179_869_184 // 2 // 32 * 34
    room = 80 * 10**9 - found["weights_bytes"]
    assert found["fit"]["largest_context"] == room // found["bytes_per_further_token"]


@pytest.mark.parametrize(
    ("width", "dtype", "row"), [(100, "q8_0", 4 * 34), (2, "q4_0", 18), (6, "int4", 3)]
)
def test_a_row_of_a_head_takes_whole_blocks(
    tmp_path: Path, width: int, dtype: str, row: int
) -> None:
    """Keys and values of 3 heads, in 7 layers, of 11 tokens."""
    odd = {"num_attention_heads": 3, "num_key_value_heads": 3, "num_hidden_layers": 7}
    path = written(tmp_path, {**LLAMA, **odd, "head_dim": width})
    found = printed("memory", path, "--t", "11", "--cache-dtype", dtype, "--fit", "80GB")
    token = 2 * 3 * 7 * row
    assert (found["cache_bytes"], found["bytes_per_further_token"]) == (11 * token, token)
    assert found["fit"]["largest_context"] == (80 * 10**9 - found["weights_bytes"]) // token
    (one,) = (engine for engine in found["engines"] if engine["engine"] == "llama.cpp")
    said = (
        "in int4" if dtype == "int4" else f"a row of the cache has {width} entries: choose --cache"
    )
    assert one["bytes"] is None and said in one["reason"]


def test_memory_takes_a_network_of_mixers_at_sizes() -> None:
    """Four layers of two tokens in bf16: in two, keys and values of 3 heads of 5; in two, of 1."""
    words = ("memory", "decoder{d=7,L=4}", "--mixer", "gqa{n=3,g=3,h=5},mqa{n=2,h=11}", "--t", "2")
    assert printed(*words)["cache_bytes"] == 2 * 2 * 2 * (2 * 3 * 5 + 2 * 11)


@pytest.mark.parametrize(
    ("fields", "dtype"),
    [
        ({"quant_method": "awq", "bits": 4}, "int4"), ({"quant_method": "gptq", "bits": 8}, "int8"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4"),
        ({"quant_method": "mxfp4"}, "int4"), ({"quant_method": "fp8"}, "fp8"),
    ],
)  # fmt: skip
def test_a_method_names_the_type_of_its_weights(
    tmp_path: Path, fields: dict[str, Any], dtype: str
) -> None:
    config = Configuration(tmp_path / "config.json", {"quantization_config": fields})
    assert f"or all: --weight-dtype {dtype}, or" in huggingface.unnamed(config)


@pytest.mark.parametrize("nested", [False, True])
def test_quantised_weights_are_counted_and_their_bytes_are_asked_for(
    tmp_path: Path, nested: bool
) -> None:
    quantised = {"quantization_config": {"quant_method": "fp8"}}
    outer = {"model_type": "mistral3", "text_config": LLAMA} if nested else LLAMA
    net = read(tmp_path, {**outer, **quantised})
    assert net.parameters() == read(tmp_path, outer).parameters()
    assert (
        "parameters and operations are those before fp8 quantises weights; bytes of weights are "
        "those of all, embeddings and head included, in one element type, without fp8's scales"
    ) in net.described.remark
    words = ["memory", written(tmp_path, {**outer, **quantised}), "--t", "1"]
    result = CliRunner().invoke(app, words)
    said = f"{words[1]}: fp8 quantises some of the weights or all: --weight-dtype fp8, or another"
    assert said in str(result.exception)
    plain = printed(*words, "--ignore", "quantization_config")["weights_bytes"]
    assert printed(*words, "--weight-dtype", "fp8")["weights_bytes"] == plain // 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["gpt-2", "--context", "64", "--cache-dtype", "q9"], "dtype 'q9': expected one of fp64"),
        (["gpt-2", "--context", "64", "--weight-dtype", "q9"], "int8, q8_0, q4_0, int4"),
        (["gpt-2", "--context", "64", "--dtype", "q9"], "--dtype 'q9': expected one of fp64"),
        (["gpt-2"], "memory needs a context, --context 128k, or a memory to fill"),
        (["gpt-2", "--context", "many"], "expected a number from 1 to 2**40, such as 4096, 128k"),
        (["gpt-2", "--context", "2k"], "position t = 2048 would lie beyond the table"),
        (["gpt-2", "--fit", "80"], "has no unit"),
        (["bert-base", "--context", "64"], "not causal"),
        (["gqa{n=4}", "--context", "64"], "'gqa{n=4}' is a mixer, and memory takes a model, such"),
        (["gqa+bais", "--context", "64"], "'gqa' is a mixer, and the name of a network"),
    ],
)
def test_memory_that_is_refused(words: list[str], sentence: str) -> None:
    result = CliRunner().invoke(app, ["memory", *words])
    assert result.exit_code != 0 and sentence in str(result.exception)


def test_weights_that_no_pass_reads_are_active_for_no_token(tmp_path: Path) -> None:
    """The class of LongCat-Flash has gates for experts that return their input."""
    held = {}
    for idle in (0, 5):
        config = {
            "model_type": "longcat_flash",
            "hidden_size": 24,
            "num_layers": 3,
            "n_routed_experts": 13,
            "expert_ffn_hidden_size": 11,
            "zero_expert_num": idle,
        }
        found = printed("memory", written(tmp_path, config), "--context", "1k")
        held[idle] = found["parameters"], found["active_parameters"]
    router, gates = 5 * 24 * 3, 5 * 2 * 11 * 24 * 3
    assert held[5][0] - held[0][0] == router + gates
    assert held[5][1] - held[0][1] == router


def test_weights_alone_may_fill_a_memory(tmp_path: Path) -> None:
    """The sentence names the widest element type that fits."""

    def said(fit: str) -> str:
        words = ["memory", written(tmp_path, LLAMA), "--fit", fit]
        return " ".join(CliRunner().invoke(app, words).output.split())

    lead = "the weights do not fit: they take 16,060,522,496 B; "
    assert f"{lead}--weight-dtype q8_0 takes 8,532,152,576 B" in said("10GB")
    assert f"{lead}--weight-dtype q4_0 takes 4,517,021,952 B" in said("8GB")
    assert f"{lead}in the smallest element type they take 4,015,130,624 B" in said("1GB")


def test_it_is_said_whether_the_asked_batch_and_context_fit(tmp_path: Path) -> None:
    words = ["memory", written(tmp_path, LLAMA), "--context", "128k", "--batch", "8", "--fit"]
    less, more = (CliRunner().invoke(app, [*words, fit]).output for fit in ("80GB", "160GB"))
    asked, took = "a batch of 8 at 131,072 tokens", "it takes 153,499,475,968 B with the weights"
    assert f"{asked} does not fit: {took}" in less and f"{asked} fits: {took}" in more
    assert "activations of a step and buffers of software are left out" in less


@pytest.mark.parametrize(("dtype", "taken"), [("q8_0", 34), ("q4_0", 18), ("int4", 16)])
def test_weights_in_blocks_take_their_bytes_for_32_entries(
    tmp_path: Path, dtype: str, taken: int
) -> None:
    words = ("memory", written(tmp_path, LLAMA), "--context", "4k", "--weight-dtype", dtype)
    found = printed(*words)
    assert found["weights_bytes"] == 8_030_261_248 // 32 * taken
    assert found["total_bytes"] == found["weights_bytes"] + 4096 * 131_072
    assert found["dtypes"]["weights"] == dtype


def test_layers_of_a_hybrid_are_kinds_without_a_position(tmp_path: Path) -> None:
    words = ["memory", written(tmp_path, {"model_type": "qwen3_next"}), "--context", "64"]
    text = CliRunner().invoke(app, words).output
    assert "layers of kind 1: norm, before, gated-deltanet" in text and "layer 2" not in text


def test_descriptions_say_their_blocks(tmp_path: Path) -> None:
    found = huggingface.read(Path(written(tmp_path, LLAMA)))
    assert isinstance(found, Description)
    with pytest.raises(ModelError, match="was read as blocks from a configuration"):
        _ = network(found).choices
