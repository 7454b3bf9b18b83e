"""Does software reserve for the states of a model what the rules of its engines say?

The tensors of transformers' caches are recorded from the classes (`python -m tests.models.drawn`),
in bfloat16, so that a state kept in float32 shows.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli import app
from costmodel.networks.configuration import DTYPES
from costmodel.networks.engines import ENGINES
from costmodel.networks.engines.reserved import Reserved
from costmodel.networks.engines.transformers import TIGHT
from costmodel.networks.held import Holding
from costmodel.networks.network import Network, network
from costmodel.networks.numerators.figures import Figures
from costmodel.networks.part_costs import Counting
from costmodel.program.element_types import Dtypes
from tests.models.drawn import TOKENS
from tests.models.test_architectures import (
    LLAMA,
    PUBLISHED,
    RECORDED,
    printed,
    read,
    written,
)

LONG = 131_072


def rows_of_image(net: Network) -> Network:
    """The network with as many rows of an image as the class was given."""
    described = net.described
    return network(described.with_sizes(e=TOKENS)) if "e" in described.sizes else net


def reserved(folder: Path, config: Any, engine: str, context: int = TOKENS) -> Reserved:
    net = rows_of_image(read(folder, config))
    types = Dtypes("bf16", net.described.state_dtype or None)
    found = ENGINES[engine].reserved(Holding(net, types, context), Dtypes("bf16"), context, 1)
    assert isinstance(found, Reserved), found
    return found


CACHED = {one["config"]["model_type"] for one in RECORDED if "tensors" in one}
"""The types whose class has a cache."""

MORE = {
    "falcon": "keys and values are kept for each head of queries",
    "gpt_neo": "layers with a window keep all rows",
    "llama4_text": "layers of chunks keep rows of the chunk before",
    "minimax": "layers with a window keep all rows",
}
"""model_type -> what its class keeps beyond what later tokens read."""


@pytest.mark.grid(24)
@pytest.mark.parametrize("kind", sorted(CACHED))
def test_caches_hold_the_tensors_of_the_class(tmp_path: Path, kind: str) -> None:
    """Names, shapes and element types; and the state that follows from the equations is all of
    them but the oldest column of a convolution's rows, which no later token reads."""
    some = [one for one in RECORDED if one["config"]["model_type"] == kind and "tensors" in one]
    assert len(some) > 3
    for one in some:
        theirs = Counter({(name, *map(tuple, (shape,)), dtype): n
                          for name, shape, dtype, n in one["tensors"]})  # fmt: skip
        found = reserved(tmp_path, one["config"], "transformers")
        ours = Counter[Any]()
        for t in found.tensors:
            dtype = next(torch for torch, name in DTYPES.items() if name == t.dtype)
            ours[t.name, t.shape, dtype] += t.layers
        assert ours == theirs, one["config"]
        longer = reserved(tmp_path, one["config"], "transformers", TOKENS + 1)
        assert found.token == longer.bytes - found.bytes
        net = rows_of_image(read(tmp_path, one["config"]))
        types = Dtypes("bf16", net.described.state_dtype or None)
        oldest = sum(t.bytes // t.shape[-1] for t in found.tensors if t.name == "conv_states")
        oldest = 0 if kind in TIGHT else oldest
        needed = Holding(net, types, TOKENS).at(TOKENS)
        assert found.bytes - oldest >= needed if kind in MORE else found.bytes - oldest == needed


@pytest.mark.parametrize(("engine", "answers"), [("transformers", True), ("vllm", False),
                                                 ("llama.cpp", False)])  # fmt: skip
def test_rows_of_an_image_are_kept_beside_those_of_tokens(
    tmp_path: Path, engine: str, answers: bool
) -> None:
    net = read(tmp_path, {"model_type": "mllama", "vision_config": {"image_size": 56}})
    held = Holding(net, Dtypes("bf16"), 5)
    assert held.at(5) == 2 * 2 * 8 * 128 * (32 * 5 + 8 * 4 * (4 * 4 + 1))
    found = ENGINES[engine].reserved(held, Dtypes("bf16"), 5, 1)
    assert isinstance(found, Reserved) == answers


OF_VLLM = {
    "Mistral-7B-v0.1": (807_403_520, "16 tokens"),
    "gpt-oss-120b": (9_663_676_416, "the hybrid manager would take 4,912,644,096 B"),
    "gemma-3-27b, its text": (66_571_993_088, "the hybrid manager would take 13,765,181,440 B"),
    "Qwen3-Next-80B-A3B": (3_262_119_936, "544 tokens"),
    "Qwen3.6-27B": (8_676_966_400, "groups of 16"),
    "Granite-4.0-H-Small": (2_231_894_016, "528 tokens"),
    "LFM2-1.2B": (1_611_005_952, "groups of 6"),
    "DeepSeek-V3": (9_210_691_584, "16 tokens"),
}
"""Model -> the bytes of a sequence of `LONG` tokens by `get_kv_cache_groups` and
`get_max_concurrency_for_kv_cache_config` of vLLM 0.11.0, run on the specifications that its layers
give in bfloat16, and words of a sentence about them."""


@pytest.mark.parametrize("name", OF_VLLM)
def test_pages_equal_those_that_vllm_plans(tmp_path: Path, name: str) -> None:
    found = reserved(tmp_path, PUBLISHED[name][0], "vllm", LONG)
    assert (found.bytes, OF_VLLM[name][1] in "; ".join(found.says)) == (OF_VLLM[name][0], True)


def test_the_width_that_a_layer_with_a_window_keeps_is_named(tmp_path: Path) -> None:
    """`_sliding_window_tensor` of `DynamicSlidingWindowLayer`, one int64."""
    said = "of 18 layers with a window holds its width too, 8 B, not counted"
    for name, there in (("gpt-oss-120b", True), ("Qwen3-Next-80B-A3B", False)):
        found = reserved(tmp_path, PUBLISHED[name][0], "transformers")
        assert (said in "; ".join(found.says)) == there


@pytest.mark.parametrize("engine", ENGINES)
def test_no_engine_has_a_rule_for_a_decoder_that_reads_an_encoder(
    tmp_path: Path, engine: str
) -> None:
    held = Holding(read(tmp_path, {"model_type": "t5"}), Dtypes("bf16"), 64)
    found = ENGINES[engine].reserved(held, Dtypes("bf16"), 64, 1)
    sentence = "the rule does not cover a decoder that reads an encoder's output"
    assert getattr(found, "reason", "") == sentence


def test_chunks_are_held_as_windows_of_their_width(tmp_path: Path) -> None:
    """Llama 4: 36 of 48 layers attend in chunks of 8192 tokens, with 8 heads of keys of 128; their
    pages in vLLM, and their cells in llama.cpp, are for a chunk and a step. torchtitan counts w."""
    net = read(tmp_path, {"model_type": "llama4_text"})
    held = Holding(net, Dtypes("bf16"), LONG)
    assert {array.most for part in held.parts for array in part.arrays} == {None, 8191}
    row, whole = 2 * 2 * 8 * 128, 12 * LONG
    found = reserved(tmp_path, {"model_type": "llama4_text"}, "llama.cpp", LONG)
    assert found.bytes == row * (whole + 36 * (8192 + 512))
    said = f"the hybrid manager would take {row * (whole + 36 * (8192 + 2048)):,} B"
    assert said in "; ".join(reserved(tmp_path, {"model_type": "llama4_text"}, "vllm", LONG).says)
    windows = {part.window for part in Figures(net, Counting(), 64).parts if part.pair}
    assert windows == {None, 8192}


def test_a_further_token_takes_its_share_of_a_page_until_windows_are_full(tmp_path: Path) -> None:
    token = 2 * 2 * 8 * 128 * 32
    for engine in ("transformers", "vllm"):
        for context, further in ((100, token), (LONG, 0)):
            found = reserved(tmp_path, {"model_type": "mistral"}, engine, context)
            assert found.token == further


def test_only_keys_and_values_that_there_are_have_a_sentence(tmp_path: Path) -> None:
    (said,) = reserved(tmp_path, {"model_type": "mamba"}, "llama.cpp").says
    assert said == "rows of convolutions and recurrent states are fp32"


def test_every_layer_of_a_hybrid_is_charged_pages(tmp_path: Path) -> None:
    found = reserved(tmp_path, {"model_type": "gpt_oss"}, "vllm", LONG)
    assert (found.token, found.bytes) == (73_728, 73_728 * LONG)
    assert reserved(tmp_path, {"model_type": "mamba2"}, "vllm", LONG).bytes == 138_149_888
    padded = [
        t for t in reserved(tmp_path, PUBLISHED["LFM2-1.2B"][0], "vllm").tensors if not t.part
    ]
    assert [t.layers for t in padded] == [2], "10 convolutions in groups of 6"


def test_slots_of_llama_cpp(tmp_path: Path) -> None:
    """149.625 MiB of states in Qwen3.6-27B, as llama.cpp prints; windows have 512 cells more."""
    found = reserved(tmp_path, PUBLISHED["Qwen3.6-27B"][0], "llama.cpp", LONG)
    held = sum(t.bytes for t in found.tensors if t.name in ("cache_r", "cache_s"))
    assert held == 149.625 * 2**20
    windows = reserved(tmp_path, {"model_type": "gpt_oss"}, "llama.cpp", LONG).tensors
    assert {t.shape for t in windows} == {(512, 768, 1), (512, LONG, 1)}
    unread = reserved(tmp_path, {"model_type": "mistral"}, "llama.cpp", 1000)
    assert {t.shape for t in unread.tensors} == {(1024, 1024, 1)}
    assert "a window of 4096 is not read for this type" in unread.says
    (latent,) = reserved(tmp_path, {"model_type": "deepseek_v3"}, "llama.cpp", 256).tensors
    assert latent.shape == (512 + 64, 256, 1)


def test_each_engine_says_what_it_keeps_and_in_which_types(tmp_path: Path) -> None:
    path = written(tmp_path, LLAMA)
    found = printed("memory", path, "--context", "1k", "--cache-dtype", "fp8")
    one = {engine["engine"]: engine for engine in found["engines"]}
    assert one["llama.cpp"]["bytes"] is None
    assert "--cache-dtype takes fp16, bf16, fp32, q8_0, q4_0" in one["llama.cpp"]["reason"]
    assert one["vllm"]["bytes"] == found["sequence_bytes"]
    small = printed("memory", path, "--context", "1k", "--cache-dtype", "q4_0")
    (kept,) = (x["bytes"] for x in small["engines"] if x["engine"] == "llama.cpp")
    assert kept == small["sequence_bytes"] == found["sequence_bytes"] // 32 * 18
    text = CliRunner().invoke(app, ["memory", path, "--context", "1k"]).output
    assert "transformers: keys and values of the tokens so far, in tensors that grow" in text


def test_engines_stand_beside_the_need(tmp_path: Path) -> None:
    path = written(tmp_path, LLAMA)
    found = printed("memory", path, "--context", "1k", "--batch", "2", "--cache-dtype", "q8_0")
    one = {engine["engine"]: engine for engine in found["engines"]}
    assert one["llama.cpp"]["bytes"] == 2 * found["sequence_bytes"]
    assert one["vllm"]["bytes"] is None and "has no cache of type q8_0" in one["vllm"]["reason"]
    words = ["memory", path, "--context", "1000", "--engine", "transformers"]
    result = CliRunner().invoke(app, words)
    assert "1 x 8 x 1000 x 128" in result.output and "batch of 1 (B)" in result.output
    refused = CliRunner().invoke(app, [*words[:-1], "sglang"])
    assert "expected one of transformers, vllm, llama.cpp" in str(refused.exception)
    named = CliRunner().invoke(app, ["memory", "gpt-2", *words[2:]])
    assert "reads a config.json, and 'gpt-2' is a name" in str(named.exception)
    assert printed("memory", "gpt-2", "--context", "64")["engines"] == []
    gpt2 = written(
        tmp_path,
        {"model_type": "gpt2", "n_positions": 64, "n_embd": 12, "n_layer": 2, "n_head": 3,
         "vocab_size": 17},
    )  # fmt: skip
    held = printed("memory", gpt2, "--context", "64")
    assert [one["bytes"] for one in held["engines"]][:2] == [held["sequence_bytes"]] * 2


def test_states_have_the_type_that_a_user_names(tmp_path: Path) -> None:
    """Else that of the engine: the model's in vLLM, float32 in the classes of transformers."""
    path = written(tmp_path, {"model_type": "mamba2"})
    usual = printed("memory", path, "--context", "1k")
    wide, narrow = (printed("memory", path, "--context", "1k", "--state-dtype", name)
                    for name in ("fp32", "bf16"))  # fmt: skip
    assert usual["state_bytes"] == wide["state_bytes"] == 2 * narrow["state_bytes"]
    of = [{e["engine"]: e["bytes"] for e in one["engines"]} for one in (usual, wide, narrow)]
    assert of[0]["vllm"] == of[2]["vllm"] < of[1]["vllm"]
    assert of[0]["llama.cpp"] == of[1]["llama.cpp"] == of[2]["llama.cpp"]


NANO = {
    "model_type": "nemotron_h", "hidden_size": 2688, "num_attention_heads": 32,
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    "mamba_num_heads": 64, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8,
    "conv_kernel": 4, "num_key_value_heads": 2, "head_dim": 128, "n_routed_experts": 128,
    "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712,
    "num_experts_per_tok": 6, "mamba_ssm_cache_dtype": "float32",
}  # fmt: skip
"""Nemotron-3-Nano-30B-A3B: 23 layers of Mamba-2 and 6 of attention."""


def test_one_layer_in_nine_attends(tmp_path: Path) -> None:
    """854,388,736 B a sequence, 48,234,496 of them recurrent; vLLM pads states to pages of 6 layers
    of attention each: 23 layers of states stand in 4 groups, of which the last has 5."""
    found = printed("memory", written(tmp_path, NANO), "--context", "128k")
    assert (found["sequence_bytes"], found["state_bytes"]) == (854_388_736, 48_234_496)
    padding = [t for t in reserved(tmp_path, NANO, "vllm", LONG).tensors if not t.part]
    assert [t.layers for t in padding] == [1]
    (page,) = {t.shape[1] for t in reserved(tmp_path, NANO, "vllm", LONG).tensors}
    state = 2 * (64 * 64 * 128 + 3 * (64 * 64 + 2 * 8 * 128))
    assert page == 1024 * 16 * -(-state // (1024 * 16))
