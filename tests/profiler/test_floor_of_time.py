"""Does reconcile hold a measured time against what a board allows?"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import cli
import costmodel as cm
from costmodel.data import data_dir
from costmodel.prediction.boards import board
from costmodel.prediction.columns import NO_BOARD
from profiler.modules.described import description_of
from profiler.modules.registry import implementations
from profiler.reconcile.ladder import ladders
from profiler.reconcile.predicted import predicted_s
from profiler.records.store import append
from profiler.sweep.session import recorded
from tests import printing
from tests.growing import with_rates
from tests.recorded import ATTENTION, UNTIMED

RATES = {"matrix_fp32": 1e9, "special": 1e9, "memory_bandwidth": 1e9, "clock": 1e9}
"""Of a CPU's board, which has no multiprocessors."""


def cost_on(record: Any, **rates: float) -> tuple[dict[str, Any], Any]:
    """Rung 5 of a record on a board with these rates, and the reasons."""
    (found,), problems = ladders([record], with_rates(**RATES | rates))
    assert not problems
    return found.rungs["5"], found.reasons


def test_the_floor_is_the_longest_limit_and_is_never_a_sum() -> None:
    sizes: dict[str, Any] = {x: n for x, n in ATTENTION.sizes.items() if x != "b"}
    (row,) = cm.table("self-attention", phase="training", columns="mul,add,traffic,span", **sizes)
    seconds = ATTENTION.readings["latency"].value
    quiet = replace(ATTENTION, readings={"latency": ATTENTION.readings["latency"]})
    for slow, name, number in (
        ("matrix_fp32", "products", row["mul"] + row["add"]),
        ("memory_bandwidth", "memory", row["traffic"]),
        ("clock", "span", row["span"]),
    ):
        cost, _ = cost_on(quiet, **{slow: 1e6})
        assert (cost["bound"], cost["floor_s"]) == (name, pytest.approx(number / 1e6))
        assert cost["bound_share"] == pytest.approx(cost["floor_s"] / seconds)
        assert cost["rest_s"] == pytest.approx(seconds - cost["floor_s"])
    launches = replace(ATTENTION.readings["launch_estimate"], value=1e-4)
    both = replace(quiet, readings={**quiet.readings, "launch_estimate": launches})
    cost, _ = cost_on(both)
    assert (cost["bound"], cost["floor_s"]) == ("launches", 1e-4)


def test_what_is_missing_has_its_reason() -> None:
    (found,), _ = ladders([ATTENTION])
    assert found.rungs["5"]["floor_s"] is None and found.reasons["floor_s"] == NO_BOARD
    assert "above the floor" not in printing.ladders([found], "markdown")
    cost, why = cost_on(UNTIMED)
    assert cost["floor_s"] > 0 and cost["bound_share"] is None
    assert why["bound_share"] == why["latency_s"]
    (found,), _ = ladders([ATTENTION], with_rates(special=1.0))
    assert "board mine has no figure 'matrix.fp32'" in found.reasons["bound"]


def test_the_command_prints_floor_bound_share_and_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, mine = tmp_path / "runs.jsonl", tmp_path / "mine.toml"
    append(runs, ATTENTION)
    mine.write_text(
        "[[figures]]\nlabel = 'measured'\nsource = 'a test'\nspecial = 1e9\nclock = 1e9\n"
        "memory_bandwidth = 1e9\nmatrix = { fp32 = 1e8 }\n"
    )
    asked = ["reconcile", "--from", str(runs), "--board", str(mine)]
    assert cli.run([*asked, "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["summary"]
    assert row["floor_s"] + row["rest_s"] == pytest.approx(row["latency_s"])
    assert cli.run([*asked, "--format", "markdown"]) == 0
    told = capsys.readouterr().out
    assert f"{row['bound_share']:.1%}" in told and row["bound"] in told and "reached: " in told
    assert cli.run(["reconcile", "--from", str(runs), "--board", "h1000"]) == 2
    assert "did you mean 'h100'?" in capsys.readouterr().err


def test_a_predicted_time_is_that_of_the_kernels_one_after_the_other() -> None:
    """Self-attention without fusion: products of contractions at one rate, the softmax entry by
    entry at half of the rate of multiply-adds, exponentials at their own."""
    (found,), _ = ladders([ATTENTION], with_rates(**RATES, vector_fp32=1e9, l2_bytes=1e9))
    executed = found.rungs["2"]
    quick, _ = ladders(
        [ATTENTION],
        with_rates(**RATES | {"matrix_fp32": 1e18}, vector_fp32=1e9, l2_bytes=1e9),
    )
    rest = quick[0].rungs["5"]["predicted_s"]
    products = found.rungs["5"]["predicted_s"] - rest
    softmax = 16 * 7 + 16 * 8  # additions of 16 rows of 8 entries, and subtractions of the maxima
    assert products == pytest.approx((executed["mul"] + executed["add"] - softmax) / 1e9)
    others = executed["div"] + softmax + executed["compare"]
    assert rest == pytest.approx(others / 0.5e9 + executed["exp"] / 1e9)


@pytest.mark.parametrize("kernel", ["einsum", "recurrent-layer"])
def test_products_of_every_kernel_that_multiplies_matrices_run_at_their_rate(kernel: str) -> None:
    mixer, sizes = cm.mixer("she"), {"b": 1, "l": 37, "d": 36}
    described = description_of(mixer, implementations("she")["direct"], "training")
    on = with_rates(**RATES | {"matrix_fp32": 1e12}, vector_fp32=1e9, l2_bytes=1e9)
    dense, other = (
        predicted_s(mixer, dataclasses.replace(described, kernels=named), "training", sizes,
                    "fp32", on)
        for named in (described.kernels, {**described.kernels, "y": kernel})
    )  # fmt: skip
    assert described.kernels["y"] == "contraction" and other == dense


def test_bytes_beyond_the_cache_move_at_the_bandwidth() -> None:
    rates = {**RATES, "matrix_fp32": 1e18, "vector_fp32": 1e18, "special": 1e18}
    held, slow = (
        ladders([ATTENTION], with_rates(**rates, l2_bytes=size))[0][0].rungs["5"]["predicted_s"]
        for size in (1e9, 1)
    )
    assert held < 1e-9 < slow


def test_each_operation_takes_at_least_the_time_of_a_kernel() -> None:
    """Torch launches 19 operations for 7 equations, each in less than a kernel's least time."""
    fast = {**RATES, "matrix_fp32": 1e18, "vector_fp32": 1e18, "special": 1e18, "l2_bytes": 1e9}
    (found,), _ = ladders([ATTENTION], with_rates(**fast, kernel_time=1e-6))
    launched = ATTENTION.counts["dispatch"]["launched"]
    assert found.rungs["5"]["predicted_s"] == pytest.approx(launched * 1e-6, rel=1e-6)


def test_replayed_kernels_of_an_h100_take_the_predicted_time() -> None:
    """What the board launches one by one, whatever the host does meanwhile: four layers at one
    token."""
    folder = data_dir("measured") / "h100_sxm"
    found, _ = ladders(recorded([folder / "shipped.jsonl"])[0], board(str(folder / "board.toml")))
    costs = [x.rungs["5"] for x in found if not x.mixer.startswith("self-attention")]
    assert len(costs) == 4
    for cost in costs:
        assert 1.0 < cost["predicted_s"] / cost["latency_graph_s"] < 1.12  # some launch no kernel
        assert cost["predicted_s"] < cost["latency_s"] / 4


def test_gradients_have_no_predicted_time() -> None:
    (found,), _ = ladders([replace(ATTENTION, phase="training-step")], with_rates(**RATES))
    assert found.rungs["5"]["predicted_s"] is None
    assert "forward passes and new tokens alone" in found.reasons["predicted_s"]
