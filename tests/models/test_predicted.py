"""Are a model's predicted times those of its parts, above the floors, and refused in a sentence?"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import costmodel as cm
from cli import app
from costmodel.commands.options import UsageError
from costmodel.data import data_dir
from costmodel.prediction.boards import board
from tests.models.test_architectures import LLAMA, written

EXPERTS = {"model_type": "mixtral", "num_hidden_layers": 2}
"""Two layers of Mixtral 8x7B, with two of eight experts a token."""


def asked(folder: Path, config: dict[str, Any], *typed: str) -> str:
    """What `costmodel model --board h100` prints about a configuration; of two boards typed, the
    last."""
    words = ["model", "--hf", written(folder, config), "--board", "h100", *typed]
    result = CliRunner().invoke(app, words)
    if result.exception:
        raise result.exception
    return result.output


def stages(folder: Path, config: dict[str, Any], *typed: str) -> dict[str, Any]:
    """Stage -> its object in JSON."""
    (model,) = json.loads(asked(folder, config, *typed, "--format", "json"))["models"]
    return {stage["stage"]: stage for stage in model["stages"]}


def test_a_decoded_token_takes_little_more_than_its_weights_at_the_bandwidth(
    tmp_path: Path,
) -> None:
    """The floor is 16 GB of weights at 3.35 TB/s, 4.8 ms."""
    token = stages(tmp_path, LLAMA, "--context", "1k")["decode"]
    weights = 2 * 8.03e9 / board("h100")["memory_bandwidth"]
    assert weights < token["seconds"] < 2 * weights and token["binds"] == "memory"
    assert token["low"] < token["seconds"] < token["high"]
    assert 0.2 < token["joules"] / token["seconds"] / board("h100")["power_limit"] <= 1


def test_a_prompt_is_bound_by_products_and_a_model_is_the_sum_of_its_blocks(
    tmp_path: Path,
) -> None:
    typed = ("--context", "4k", "--batch", "2")
    deep = stages(tmp_path, LLAMA, *typed)
    flat = stages(tmp_path, LLAMA | {"num_hidden_layers": 1}, *typed)
    prompt = deep["prefill"]
    products = 2 * 7.5e9 * 2 * 4096 / board("h100")["matrix.bf16"]
    assert prompt["binds"] == "products" and products < prompt["seconds"] < 3 * products
    for stage in ("prefill", "decode"):
        for name in ("seconds", "low", "high", "joules"):
            assert deep[stage][name] == pytest.approx(sum(p[name] for p in deep[stage]["parts"]))
            block = sum(p[name] for p in flat[stage]["parts"] if p["block"])
            assert deep[stage][name] - flat[stage][name] == pytest.approx(31 * block)


@pytest.mark.parametrize(("context", "batch"), [(32768, 8), (1024, 1)])
def test_no_end_of_an_interval_is_below_the_bytes_and_the_products(
    tmp_path: Path, context: int, batch: int
) -> None:
    """Llama 8B: 32 layers with two matrices of 4096 x 4096 and two of 4096 x 1024 in attention,
    three of 4096 x 14336 in the feed-forward part, and 2048 kept numbers a token; two bytes each. A
    sum of d products takes d multiplications and d - 1 additions."""
    on = board("h100")
    attended, fed, head = 2 * 4096 * 5120, 3 * 4096 * 14336, 4096 * 128256
    rows = 32 * batch * context / on["matrix.bf16"]
    kept = batch * context * 2048
    found = stages(tmp_path, LLAMA, "--context", f"{context}", "--batch", f"{batch}")
    least = {
        ("decode", "self"): 32 * 2 * (attended + kept) / on["memory_bandwidth"],
        ("decode", "gated FFN"): 32 * 2 * fed / on["memory_bandwidth"],
        ("decode", "head"): 2 * head / on["memory_bandwidth"],
        ("prefill", "self"): rows * (2 * attended - 2 * 5120),
        ("prefill", "gated FFN"): rows * (2 * fed - 2 * 14336 - 4096),
    }
    for stage in ("decode", "prefill"):
        there = [seconds for (at, _), seconds in least.items() if at == stage]
        assert sum(there) <= found[stage]["low"] <= found[stage]["seconds"]
    for (stage, name), seconds in least.items():
        (part,) = (one for one in found[stage]["parts"] if one["part"].startswith(name))
        assert seconds <= part["low"] <= part["seconds"] <= part["high"]


def test_no_end_of_an_interval_is_below_the_floor_of_the_part(tmp_path: Path) -> None:
    """Each call is above its own limits; a part also holds what is between its calls, such as the
    norm of queries and keys."""
    heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096}
    config = {"model_type": "qwen3", "num_hidden_layers": 1, "head_dim": 128, **heads}
    found = stages(tmp_path, config, "--context", "128k", "--batch", "8")["prefill"]["parts"]
    (part,) = (one for one in found if one["part"].startswith("self-attention"))
    (row,) = cm.table(part["part"], board="h100", dtype="bf16", phase="training", l=131072,
                      b=8, d=4096, columns="floor,predicted_low")  # fmt: skip
    assert row["floor"] - 1 <= 1e9 * part["low"] / part["runs"] <= 1e9 * part["seconds"]
    assert row["predicted_low"] - 1 <= 1e9 * part["low"] / part["runs"]


def test_a_batch_reads_the_weights_once_and_its_keys_for_each_sequence(tmp_path: Path) -> None:
    one, many = (stages(tmp_path, LLAMA, "--context", "32k", "--batch", b) for b in ("1", "8"))
    times = {
        part["part"].partition("+")[0]: after["seconds"] / part["seconds"]
        for part, after in zip(one["decode"]["parts"], many["decode"]["parts"], strict=True)
    }
    assert times["gated FFN"] < 1.2 and times["self-attention"] > 3


def test_a_batch_reads_more_experts_than_a_token(tmp_path: Path) -> None:
    times = []
    for batch in ("1", "64"):
        token = stages(tmp_path, EXPERTS, "--context", "16", "--batch", batch)["decode"]
        times += [part["seconds"] for part in token["parts"] if "expert" in part["part"]]
    one, many = times
    assert 3 < many / one < 4.2
    assert "each is chosen equally often" in asked(tmp_path, EXPERTS, "--context", "16")


def test_a_part_that_is_counted_by_its_floor_is_launched_once(tmp_path: Path) -> None:
    """A `kernel_time` of 1 us hides in the launch of a small kernel; one of 9 ms is the whole time
    of a norm, and no second launch follows."""
    times = {}
    for kernel_time in ("", "1e-6", "9e-3"):
        path = tmp_path / f"mine{kernel_time}.toml"
        shipped = (data_dir("devices") / "h100_sxm.toml").read_text()
        own = f"kernel_time = {kernel_time}\n" if kernel_time else ""
        path.write_text(f'{shipped}\n[[figures]]\nlabel = "m"\nsource = "m"\n{own}')
        token = stages(tmp_path, LLAMA, "--context", "1k", "--board", str(path))["decode"]
        (norm,) = (part for part in token["parts"] if part["part"] == "norm, before")
        times[kernel_time] = norm["seconds"] / norm["runs"]
    assert times["1e-6"] == times[""] and times["9e-3"] == pytest.approx(9e-3)


def test_what_is_counted_by_its_floor_is_said(tmp_path: Path) -> None:
    text = asked(tmp_path, {"model_type": "gemma2"}, "--context", "64")
    assert "no time is predicted of self-attention with soft-cap: expected " in text
    text = asked(tmp_path, LLAMA, "--context", "1k", "--batch", "99")
    assert "embedding; norm, before; residual sum; norm at the end: no matrix product" in text
    assert "exceed" not in text
    assert "exceed the board's memory" in asked(
        tmp_path, LLAMA, "--context", "32k", "--batch", "99"
    )


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ((), "a predicted time needs a board and a context"),
        (("--context", "many"), "--context 'many': expected a number"),
        (("--context", "1k", "--columns", "mul"), "leave out --columns"),
        (("--context", "1k", "--dtype", "fp32"), "known in bf16 and fp16 alone, not in fp32"),
    ],
)
def test_what_cannot_be_predicted_is_refused_in_a_sentence(
    tmp_path: Path, typed: tuple[str, ...], said: str
) -> None:
    with pytest.raises(Exception, match=said):
        asked(tmp_path, LLAMA, *typed)


def test_a_figure_that_one_stage_needs_is_missed_by_this_stage_alone(tmp_path: Path) -> None:
    """Exponentials of a prompt's attention take time, those of a new token none."""
    text = (data_dir("devices") / "h100_sxm.toml").read_text()
    for figure in ("special", "sms"):
        (tmp_path / f"no_{figure}.toml").write_text(re.sub(f"(?m)^{figure} = .*$", "", text))
    typed = ("--context", "1k", "--board")
    found = stages(tmp_path, LLAMA, *typed, str(tmp_path / "no_special.toml"))
    assert "no figure 'special': add it to" in found["prefill"]["reason"]
    assert found["decode"]["seconds"] > 0
    cpu = tmp_path / "cpu.toml"
    cpu.write_text(f'kind = "cpu"\n{text}')
    for path, said in (
        (tmp_path / "no_sms.toml", "no figure 'sms': add it to .*, or write kind = \"cpu\" there"),
        (cpu, "cpu is a CPU, and this prediction is for GPUs: for a CPU"),
    ):
        with pytest.raises(UsageError, match=said):
            asked(tmp_path, LLAMA, *typed, str(path))
