"""Do formulas for MFU give what their sources compute, and do their differences explain themselves?

Each source's function is written down here once more, from its arguments, as the source has it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli import app
from costmodel.networks.numerators import NUMERATORS, compared
from costmodel.networks.numerators.figures import Figures
from costmodel.networks.part_costs import counting
from tests.models.test_architectures import LLAMA, printed, read, written

T = 4096
NEXT = {"model_type": "qwen3_next"}
OSS = {"model_type": "gpt_oss"}
GEMMA = {"model_type": "gemma3_text"}


def of(folder: Path, config: Any) -> dict[str, int | None]:
    figures = Figures(read(folder, config), counting(), T)
    return {one.numerator.name: one.total if not one.missing else None
            for one in compared(figures)}  # fmt: skip


def attention(n: int, g: int, h: int, d: int, gate: bool = False) -> int:
    return d * h * (n + 2 * g) + n * h * d + (n * h * d if gate else 0)


def test_llama_by_each_source(tmp_path: Path) -> None:
    """d 4096, f 14336, 32 layers of 32 heads of 128, 8 of keys, 128,256 tokens."""
    d, f, L, n, g, h, u = 4096, 14336, 32, 32, 8, 128, 128_256
    N, pairs = 8_030_261_248, L * n * h
    maps = L * (attention(n, g, h, d) + 3 * d * f)
    half = 6 * (maps + d * u) * T + 3 * 2 * pairs * T * T
    assert of(tmp_path, LLAMA) == {
        "6N": 6 * N * T,
        "6N active": 6 * N * T,
        "PaLM": (6 * N + 12 * L * n * h * T) * T,
        "Megatron": half,
        "torchtitan": (6 * (N - u * d) + 6 * L * n * 2 * h * T) * T,
        "MaxText": half,
        "verl": half + 6 * u * d * T,
    }


def test_gpt_oss_by_each_source(tmp_path: Path) -> None:
    """d 2880, 36 layers of 64 heads of 64, 8 of keys, half of them with a window of 128; 4 of 128
    experts 2880 wide. Megatron leaves out the router; MaxText and verl keep windows."""
    d, L, n, g, h, u, w = 2880, 36, 64, 8, 64, 201_088, 128
    experts, router, maps = 4 * 3 * d * d, d * 128, attention(n, g, h, d)
    found = of(tmp_path, OSS)
    products = L * (maps + experts) + d * u
    assert found["Megatron"] == 6 * products * T + 6 * L * n * h * T * T
    near = 6 * n * h * T * (18 * T + 18 * w)
    assert found["MaxText"] == 6 * (products + L * router) * T + near
    assert found["verl"] == 6 * (products + L * router + d * u) * T + near
    active = 5_711_982_912 - u * d
    assert found["torchtitan"] == 6 * active * T + 2 * near


def test_hybrids_by_each_source(tmp_path: Path) -> None:
    """36 layers of Gated DeltaNet with 16 heads of keys and 32 of values, 128 wide, 12 of gated
    attention with 16 heads of 256, 2 of keys; 10 of 512 experts and a shared one, 512 wide."""
    d, u, K, V = 2048, 151_936, 16 * 128, 32 * 128
    delta = d * (2 * K + 2 * V + 2 * 32) + 4 * (2 * K + V) + d * V
    experts = 11 * 3 * d * 512
    found = of(tmp_path, NEXT)
    core = 6 * 12 * 16 * 256 * T * T
    products = 36 * delta + 12 * attention(16, 2, 256, d, gate=True) + 48 * experts + d * u
    assert found["Megatron"] == 6 * (products + 36 * 4 * 32 * 128**2) * T + core
    ungated = products - 12 * 16 * 256 * d + 48 * d * 512
    assert found["MaxText"] == (6 * ungated + 3 * 8 * 36 * 32 * 128**2) * T + core
    active = 3_874_929_408 - u * d
    assert found["torchtitan"] == 6 * (active + 36 * 3 * 32 * 128**2) * T + 2 * core
    assert found["verl"] is None
    d, inner = 4096, 2 * 4096
    scan = 7 * inner * 128 + 2 * d * (2 * inner + 2 * 8 * 128 + 128) + 2 * inner * d
    mamba = of(tmp_path, {"model_type": "mamba2"})
    assert mamba["Megatron"] == 3 * T * (64 * scan + 2 * d * 32_768)
    assert mamba["torchtitan"] is None


def test_tied_embeddings_are_counted_where_a_source_counts_them(tmp_path: Path) -> None:
    """Once by 6N and torchtitan, twice by verl."""
    found, d, u = of(tmp_path, GEMMA), 2304, 262_208
    assert found["6N"] == found["6N active"] == 6 * 2_628_658_432 * T
    assert found["Megatron"] is not None and found["verl"] is not None
    assert found["verl"] - found["Megatron"] == 6 * d * u * T, "the window is as long as the text"


@pytest.mark.parametrize("config", [LLAMA, OSS, NEXT, GEMMA, {"model_type": "deepseek_v3"}])
def test_terms_add_up_to_the_exact_step(tmp_path: Path, config: Any) -> None:
    """Products with weights are 6 an entry but for sums of m products with m-1 additions, and what
    is left is less than a fifth of a percent."""
    net = read(tmp_path, config)
    figures = Figures(net, counting(), T)
    whole = net.count("training-step").at(l=T).total
    assert sum(figures.exact.values()) == whole
    assert figures.exact["the rest"] < whole / 500
    for one in compared(figures):
        assert sum(d.more for d in one.differences) == (one.total - whole if not one.missing else 0)
        assert all(d.why for d in one.differences if d.more)


def test_pairs_of_tokens_are_those_that_the_mask_leaves(tmp_path: Path) -> None:
    """Of one layer: 2 n h operations for each of T (T+1) / 2 pairs, three times, less the addition
    that the first term of a sum does without."""
    one = {**LLAMA, "num_hidden_layers": 1}
    exact = Figures(read(tmp_path, one), counting("mac"), T).exact["between tokens"]
    products = 3 * 4 * 4096 * T * (T + 1) // 2
    assert 0 <= exact - products < products / 100, "and the scale of the scores"


def test_layers_that_share_weights_or_run_without_gradients_are_named(tmp_path: Path) -> None:
    """Of HRM-Text 6N counts the weights of a stack once, however often the stack runs; Megatron
    counts gradients for each run."""
    small = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "head_dim": 8,
             "intermediate_size": 24, "vocab_size": 31}  # fmt: skip
    net = read(tmp_path, {"model_type": "hrm_text", **small})
    found = {one.numerator.name: one for one in compared(Figures(net, counting(), 64))}
    for name, start in (("6N", "weights that several"), ("Megatron", "three passes for layers")):
        ffn = next(d for d in found[name].differences if d.term == "weights of feed-forward layers")
        assert ffn.why.startswith(start)


def test_formulas_stand_beside_the_step(tmp_path: Path) -> None:
    path = written(tmp_path, OSS)
    words = ("model", "--hf", path, "--phase", "training-step", "--l", "128", "--mfu")
    found = printed(*words)["mfu"]
    assert [one["name"] for one in found] == [one.name for one in NUMERATORS]
    idle = next(t for t in found[0]["terms"] if t["term"] == "experts not chosen")
    assert idle["counted"] == 6 * 128 * (116_829_156_672 - 5_711_982_912)
    shown = CliRunner().invoke(app, [*words, "--format", "markdown"]).output
    assert "the router is left out" in shown and "commit 001b00c" in shown


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["gpt-2", "--mfu"], "--mfu is about a training step: add --phase training-step"),
        (["gpt-2", "--mfu", "--phase", "training-step", "--symbolic"], "a number for every size"),
        (["bert-base", "--mfu", "--phase", "training-step"], "not causal"),
        (["transformer-base", "--mfu", "--phase", "training-step"], "layers of cross-attention"),
    ],
)
def test_formulas_that_are_refused(words: list[str], sentence: str) -> None:
    result = CliRunner().invoke(app, ["model", *words])
    assert result.exit_code != 0 and sentence in str(result.exception)
