"""Does a table predict, of a module that nobody runs, what reconcile predicts of its record?"""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Any

import pytest

import cli
import costmodel as cm
import profiler  # noqa: F401 - its modules have predicted times
from costmodel.commands.tables import CostRow
from costmodel.data import data_dir
from costmodel.mixers import builtin
from costmodel.prediction.boards import board
from costmodel.program.chosen_sizes import combinations, letters_of
from profiler.modules import implementations
from profiler.reconcile.ladder import ladders
from profiler.run.measure import count
from profiler.run.request import Request
from tests.stand_ins import Instead

SIZES: dict[str, Any] = {"b": 2, "l": 7, "t": 5, "d": 6, "n": 3, "g": 1, "k": 2}
TIMES = ["predicted_time", "predicted_low", "predicted_high", "predicted_energy", "predicted_by"]


def row(mixer: str, on: str, phase: str, **options: Any) -> CostRow:
    """The row of a table with the columns `TIMES`, in bf16 unless `options` name another dtype."""
    (found,) = cm.table(
        mixer, board=on, phase=phase, columns=TIMES, **{"dtype": "bf16", **SIZES, **options}
    )
    return found


@pytest.mark.parametrize(
    ("mixer", "module", "phase"),
    [
        ("deltanet", "recurrent", "training"),
        ("deltanet", "recurrent", "inference"),
        ("she", "conv", "backward"),
        ("self-attention+grouped", "sdpa", "training"),  # a fused operation, which no CPU runs
        ("self-attention+grouped", "sdpa", "training-step"),
    ],
)
def test_a_table_predicts_what_reconcile_predicts(mixer: str, module: str, phase: str) -> None:
    subject = builtin(mixer)
    given = {letter: (size,) for letter, size in SIZES.items()}
    (sizes,) = combinations(letters_of(subject, phase), given, subject)
    request = Request(subject, implementations(subject)[module], sizes, phase, "bf16")
    measured = data_dir("measured") / "h100_sxm/h100_sxm.toml"
    (of_board,), _ = ladders([count(request)], board(str(measured)))
    (own,) = cm.table(mixer, board=str(measured), phase=phase, impl=module, dtype="bf16",
                      columns="floor,bound", **SIZES)  # fmt: skip
    floor = of_board.rungs["5"]["floor_s"]
    assert (own["floor"], own["bound"]) == (ceil(1e9 * floor), "launches")
    (found,), _ = ladders([count(request)], board("h100"))
    asked = row(mixer, "h100", phase, impl=module)
    assert asked["predicted_time"] == ceil(1e9 * found.rungs["5"]["predicted_s"])
    assert asked["predicted_low"] < asked["predicted_time"] < asked["predicted_high"]
    assert asked["predicted_energy"] > 0


@pytest.mark.parametrize(
    ("mixer", "phase", "fastest"),
    [
        ("she", "training", "conv"),
        ("linear-attention", "training", "cumsum"),
        *(("self-attention+grouped", phase, "sdpa") for phase in ("backward", "training-step")),
    ],
)
def test_the_fastest_module_of_a_form_stands_where_no_kernel_is_known(
    mixer: str, phase: str, fastest: str
) -> None:
    names = [
        name
        for name, one in implementations(mixer).items()
        if one.form == builtin(mixer).default_form
    ]
    times = {name: row(mixer, "h100", phase, impl=name)["predicted_time"] for name in names}
    plain = row(mixer, "h100", phase)
    assert len(times) > 1 and min(times, key=lambda name: times[name]) == fastest
    assert (plain["predicted_time"], plain["predicted_by"]) == (times[fastest], fastest)


def test_the_table_of_each_phase_says_what_is_predicted() -> None:
    # where kernels are known they are taken, unless a module is named
    kernels, module = (row("mha", "h100", "inference", impl=impl) for impl in ("", "explicit"))
    assert kernels["predicted_time"] != module["predicted_time"]
    assert (kernels["predicted_by"], module["predicted_by"]) == ("kernels", "explicit")
    # of an element type in which no kernel is known, the fastest module too
    assert row("mha", "h100", "inference", dtype="fp32")["predicted_by"] in ("explicit", "sdpa")
    document = repr(cm.table(["she", "mha"], board="h100", phase=["inference", "backward"],
                             columns=TIMES[:1], dtype="bf16", **SIZES))  # fmt: skip
    told = " ".join(document.split())
    for sentence in (
        "phase inference, predicted: of the kernels of self-attention; of the modules she direct",
        "phase backward, predicted: of the modules she conv, self-attention sdpa",
        "kernels: each linear map",
        "modules: the operations that torch dispatches",
    ):
        assert sentence in told


@pytest.mark.parametrize(
    ("mixer", "phase", "options", "said"),
    [
        (
            "she",
            "training",
            {"impl": "fft", "form": "direct"},
            "no module executes the form direct here, and the module fft executes",
        ),
        ("she", "training", {"impl": "sdpa"}, "no implementation 'sdpa': she has direct,"),
        ("linformer", "inference", {}, "not causal"),
        ("she", "training", {"dtype": "bf16", "state_dtype": "fp32"}, "bf16: leave out the types"),
        ("she", "backward", {"loss": "cross-entropy"}, "all gradients from that of its output"),
        ("she", "training", {"form": "fft"}, "torch.fft has no transform in torch.bfloat16"),
    ],
)
def test_a_module_without_a_predicted_time_has_a_reason(
    mixer: str, phase: str, options: dict[str, Any], said: str
) -> None:
    found = row(mixer, "h100", phase, **options)
    assert found["predicted_time"] is None and said in found.reasons["predicted_time"]


def test_a_module_implies_its_form_and_a_form_without_a_module_has_that_of_another(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for mixer, module, phase in (
        ("she", "fft", "training"),
        ("linear-attention", "parallel", "training"),
        ("gla", "chunked", "inference"),
    ):
        form = implementations(mixer)[module].form
        typed = row(mixer, "h100", phase, impl=module, form=form, dtype="fp32")
        named = row(mixer, "h100", phase, impl=module, dtype="fp32")
        assert (named["predicted_by"], named["predicted_time"]) == (module, typed["predicted_time"])
    assert row("aft-full", "h100", "training")["predicted_by"] == "separate in its form separate"
    words = ["--board", "h100", "--dtype", "bf16", "--impl", "chunked", "--l", "7", "--d", "6"]
    assert cli.run(["explain", "gla", *words, "--n", "3"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert told.count("of the module chunked, nine of ten") == 2


def test_a_network_is_predicted_by_another_command() -> None:
    (whole,) = cm.table("encoder", board="h100", phase="training", columns="predicted_time")
    assert "run costmodel model encoder --board h100" in whole.reasons["predicted_time"]


def test_a_module_of_too_many_operations_is_refused(instead: Instead) -> None:
    instead(unmeasured_shown=11)
    found = row("deltanet", "h100", "training", l=13)
    why = "more than 11 operations of torch, as a loop over tokens does: choose fewer tokens"
    assert found.reasons["predicted_time"].endswith(why)
    instead(unmeasured_shown=409)
    found = row("deltanet", "h100", "training", l=17)
    assert found["predicted_by"] == "chunked-rows in its form chunked-rows"
    found = row("deltanet", "h100", "training", l=17, impl="recurrent")
    assert "more than 409 operations" in found.reasons["predicted_time"]


def test_a_board_that_is_no_gpu_predicts_without_an_interval(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(
        "kind = 'cpu'\n[[figures]]\nlabel = 'measured'\nsource = 'a test'\nspecial = 1e9\n"
        "clock = 1e9\nmemory_bandwidth = 1e9\nl2_bytes = 1e9\nkernel_time = 1e-6\n"
        "matrix = { fp32 = 1e8 }\nvector = { fp32 = 1e8 }\n"
    )
    found = row("she", str(mine), "training", dtype="fp32")
    assert found["predicted_time"] > 0 and "mine is a CPU" in found.reasons["predicted_low"]
    assert cli.run(["table", "she", "--impl", "conv"]) == 2
    assert "add --board" in capsys.readouterr().err
    for command in ("table", "explain"):
        assert cli.run([command, "she", "--impl", "con", "--board", "h100"]) == 2
        assert "no implementation 'con': did you mean 'conv'?" in capsys.readouterr().err
    assert cli.run(["explain", "she", "--board", "h100", "--dtype", "bf16", "--l", "7"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "of the module direct, nine of ten between" in told and "Among other kernels, " in told
