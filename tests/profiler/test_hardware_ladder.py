"""Does rung 4 stand beside rung 3, with a cause for every gap that a re-count explains?

What the hardware did is invented: explicit attention (l = 5, d = 6, two heads) on a chip where an
exponential is one EX2 and one multiplication and a division one RCP and four multiply-adds.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs

from costmodel.data import data_dir
from profiler.hardware.operations import NO_OPCODES
from profiler.hardware.products import products_of
from profiler.hardware.tiles import Product, padding, tile_of
from profiler.reconcile.ladder import ladder, ladders
from profiler.reconcile.levels import Ladder, MovedMemory
from profiler.records.measurement import Measurement
from profiler.records.words import signed_words
from profiler.run.hardware_counters import hardware_counts
from profiler.run.lower_bounds import BELOW, flagged, readings_below
from profiler.run.measure import measure
from profiler.sweep.recorded import recorded
from tests import printing
from tests.ncu import READ, SASS, WRITE, XU, calibrating, each, kernel, stand_in
from tests.printing import statement
from tests.profiler.test_hardware import FORBIDDEN, forget, request
from tests.profiler.test_measure import BRIEF
from tests.stand_ins import Instead

PRODUCTS = [(1, 5, 6, 6)] * 3 + [(2, 5, 5, 3), (2, 5, 3, 5), (1, 5, 6, 6)]
"""Batch, rows, columns, terms: three projections, scores, weighted sums, the last projection."""
OUTPUTS = 4 * 5 * 6 + 2 * 5 * 5 + 2 * 5 * 3
"""Entries of all products, each a sum."""
TILED = "cutlass_80_simt_sgemm_32x16_8x5_nn_align1"
"""32 rows and 16 columns of the result, columns first, 8 terms at a time."""

Reconcile = Callable[..., tuple[Measurement, Ladder]]


@pytest.fixture
def reconcile(monkeypatch: pytest.MonkeyPatch, instead: Instead, tmp_path: Path) -> Reconcile:
    """The record and the ladder of the call, measured on a CPU beside invented counters."""

    def take(
        *,
        names: tuple[str, ...] = ("kernel",),
        extra: Mapping[str, int] | None = None,
        **given: Any,
    ) -> tuple[Measurement, Ladder]:
        forget()
        found: list[Any] = []

        def read(asked: Any, note: Any) -> Any:
            with monkeypatch.context() as there:
                work = executed(extra or {})
                calls = [kernel(names[0], **work), *(kernel(name) for name in names[1:])]
                stand_in(there, tmp_path, calls, **given)
                found.append(hardware_counts(replace(asked, device="cuda")))
            return found[-1]

        instead(hardware_counts=read)
        asked = request(device="cpu")
        record = measure(asked, limits=BRIEF)
        return record, ladder(record, asked.equations, asked.implementation)

    return take


def executed(extra: Mapping[str, int]) -> dict[str, Any]:
    """What a chip executes of the call, counted by hand, and `extra` besides.

    Products: 4 * 180 + 2 * 150 / 2 * 2 multiply-adds. Softmax: 50 exponentials, 40 additions and 40
    comparisons of maxima, 50 subtractions, 50 divisions; scores are multiplied by the inverse of
    sqrt(h) besides.
    """
    products = sum(b * m * n * k for b, m, n, k in PRODUCTS)
    divided, scaled = 50, 50
    number = {
        "ffma": products + 4 * divided,
        "fmul": 50 + scaled,
        "fadd": 40 + 50,
        "FMNMX": 40,
        "MUFU.EX2": 50,
        "MUFU.RCP": divided,
    }
    number |= {name: number.get(name, 0) + more for name, more in extra.items()}
    sass = {SASS.format(name): n for name, n in number.items() if name.islower()}
    moved = {READ: 10_000, WRITE: 2_000, XU: 50 + divided}
    return {
        "values": sass | moved,
        "opcodes": {name.upper(): n for name, n in number.items()},
    }


def test_every_gap_is_a_recount(reconcile: Reconcile) -> None:
    record, found = reconcile()
    assert found.hardware is not None and found.hardware.chip == "GH100"
    assert found.rungs["4"] == {
        "mul": 1020 + 200 + 100, "add": 1020 + 200 + 90, "div": 50, "exp": 50, "compare": 40,
    }  # fmt: skip
    causes = {cause.name: cause.counts for cause in found.causes if cause.start == 3}
    assert {name: {k: n for k, n in c.items() if n} for name, c in causes.items()} == {
        "inverse of a number": {"mul": 50, "div": -50},
        "exp on this chip": {"mul": 50},
        "div on this chip": {"mul": 200, "add": 200},
        "sums begin at zero": {"add": OUTPUTS},
    }
    assert found.unexplained == {"1-2": {}, "2-3": {}, "3-4": {}}
    assert "4" not in found.reasons and found.explained
    assert record.environment["ncu"] == "2025.3.1.0"


@pytest.mark.grid(3)
@pytest.mark.parametrize(
    ("extra", "bare"),
    [
        ({"fadd": 7}, {"add": 7}),
        ({"MUFU.EX2": 3}, {"exp": 3}),
        ({"MUFU.LG2": 5}, {"log": 5}),
        ({"ffma": -2}, {"mul": -2, "add": -2}),
        ({"FSETP": 11}, {"compare": 11}),
    ],
)
def test_what_no_cause_names_is_unexplained(
    reconcile: Reconcile, extra: dict[str, int], bare: dict[str, int]
) -> None:
    _, found = reconcile(extra=extra)
    assert found.unexplained["3-4"] == bare
    assert found.explained  # which speaks of rungs 1 to 3
    assert f"unexplained: {signed_words(bare)}" in found.findings


def test_a_function_costs_what_its_kernel_shows(reconcile: Reconcile) -> None:
    """Where an exponential takes two multiply-adds more, 50 of them take a hundred."""
    _, found = reconcile(calibration=calibrating(exp=each(EX2=1, fmul=1, ffma=2)))
    (cause,) = [cause for cause in found.causes if cause.name == "exp on this chip"]
    assert cause.counts["mul"] == 50 + 100 and cause.counts["add"] == 100
    assert cause.meaning == "in the calibration, one exp executes 3 mul, 2 add, 1 exp"
    assert found.unexplained["3-4"] == {"mul": -100, "add": -100}


def test_products_in_the_tiles_of_their_kernels(reconcile: Reconcile) -> None:
    """(5, 6, 6) in 16 rows, 32 columns, 8 terms; scores and weighted sums the same, twice."""
    padded = 4 * 16 * 32 * 8 + 2 * 16 * 32 * 8 + 2 * 16 * 32 * 8
    beyond = padded - sum(b * m * n * k for b, m, n, k in PRODUCTS)
    _, found = reconcile(names=(TILED,) * 6, extra={"ffma": beyond})
    (cause,) = [cause for cause in found.causes if cause.name == "whole tiles"]
    assert cause.counts == {"mul": beyond, "add": beyond}
    assert found.unexplained["3-4"] == {}


def test_where_kernels_and_products_are_not_as_many_tiles_explain_nothing(
    reconcile: Reconcile,
) -> None:
    _, found = reconcile(names=(TILED,) * 5)
    assert not any(cause.name == "whole tiles" for cause in found.causes)


# Tiles


@pytest.mark.parametrize(
    ("name", "tile"),
    [
        ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_32x6_nn", (128, 64, 32)),
        ("cutlass_80_tensorop_s1688gemm_128x256_16x3_nn_align4", (128, 256, 16)),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nt_align1>(T1::Params)",
         (256, 128, 8)),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT", (128, 256, 64)),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize64x32x16_stage4_warpsize2x2x1",
         (64, 32, 16)),
        ("ampere_sgemm_128x64_nn", None),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::exp_kernel>", None),
        ("gemv2T_kernel_val<int, int, float, 128, 16, 4, 4, false>", None),
    ],
)  # fmt: skip
def test_names_of_kernels_tell_tiles(name: str, tile: tuple[int, int, int] | None) -> None:
    assert tile_of(name) == tile


def test_padding_counts_what_lies_beyond() -> None:
    """3 rows of 5 columns of 7 terms in tiles of 4 columns, 2 rows, 8 terms."""
    assert padding([Product(1, 3, 5, 7)], [(4, 2, 8)]) == 4 * 8 * 8 - 3 * 5 * 7
    assert padding([Product(2, 2, 4, 8)], [(4, 2, 8)]) == 0


def test_products_of_a_call() -> None:
    def call() -> None:
        a, b = torch.ones(2, 3), torch.ones(3, 4).requires_grad_()
        y = torch.addmm(torch.ones(4), a, b)
        torch.bmm(torch.ones(5, 2, 3), torch.ones(5, 3, 1))
        torch.autograd.backward(y.sum())

    assert list(products_of(call)) == [
        Product(1, 2, 4, 3), Product(5, 2, 1, 3), Product(1, 3, 4, 2),
    ]  # fmt: skip


# What is missing


def test_without_permission_functions_and_arithmetic_are_those_of_opcodes(
    reconcile: Reconcile,
) -> None:
    _, found = reconcile(probe=FORBIDDEN)
    assert found.unexplained["3-4"] == {}
    assert found.memory["dram_cold"].measured is None
    assert "NVreg_RestrictProfilingToAdminUsers" in found.memory["dram_cold"].reason
    assert found.hardware is not None
    assert any("copy not calibrated" in label for label in found.hardware.labels)


def test_classes_that_are_not_known_are_null(reconcile: Reconcile) -> None:
    gone = {"mode": "fault", "said": "==ERROR== something else"}
    _, found = reconcile(opcodes=gone, calibration_runs={})
    printed = found.to_json()
    for counted in (printed["rungs"]["4"], printed["unexplained"]["3-4"]):
        assert counted["exp"] is None and counted["div"] is None and counted["other"] is None
    assert printed["rungs"]["4"]["mul"] == 1320 and printed["unexplained"]["3-4"]["mul"] == 0
    assert found.reasons["4"] == f"div, exp, other: {NO_OPCODES}"
    assert printed["hardware"]["reasons"]["opcodes"].startswith("the process under ncu fails: ")
    text = printing.ladders([found], "rich")
    (line,) = [line for line in text.splitlines() if "4 hardware" in line]
    assert "1,320" in line and "- (1)" in line and NO_OPCODES in text


def test_a_calibration_that_fails_labels_the_rung(reconcile: Reconcile) -> None:
    wrong = calibrating(copy={"values": {READ: 2**30, WRITE: 3 * 2**30}})
    record, found = reconcile(calibration=wrong)
    assert found.hardware is not None
    (label,) = found.hardware.labels
    assert "calibration of copy fails" in label
    assert record.readings["dram_bytes_cold"].details["labels"] == [label]
    for format_ in ("rich", "markdown", "csv", "json"):
        assert "calibration of copy fails" in printing.ladders([found], format_), format_


# Bytes


def test_bytes_beside_those_that_must_move(reconcile: Reconcile) -> None:
    """Then equation by equation and operation by operation: (5, 6) times (6, 6) reads 66 numbers
    and writes 30."""
    record, found = reconcile()
    cold = found.memory["dram_cold"]
    assert isinstance(cold, MovedMemory)
    assert (cold.derived, cold.measured) == (4 * (2 * 30 + 4 * 36), 12_000)
    by_op = record.counts["dispatch"]["by_op"]
    products = by_op["aten::mm"]
    assert (products["bytes_read"], products["bytes_written"]) == (4 * 4 * 66, 4 * 4 * 30)
    dispatched = sum(one["bytes_read"] + one["bytes_written"] for one in by_op.values())
    assert [cause.name for cause in cold.causes] == ["unfused", "as dispatched"]
    assert cold.unexplained == 12_000 - dispatched
    text = printing.ladders([found], "rich")
    assert "moved, caches flushed before each kernel" in text and "12,000" in text


H100 = data_dir("measured") / "h100_sxm" / "counters.jsonl"


def test_every_multiplication_of_attention_on_an_h100_has_a_cause() -> None:
    """Attention of 8 heads, 4 sequences of 256 in bf16, by ncu. Of softmax's 8192 rows a warp of 32
    lanes shares each; all lanes take the 5 steps of the sum, and sums begin at zero."""
    (found,), problems = ladders(recorded([H100])[0])
    assert problems == [] and found.hardware is not None
    rest = found.unexplained["3-4"]
    assert rest.pop("compare") > 0 and rest == {"add": 8192 * (32 * 5 + 1)}
    cold = found.memory["dram_cold"]
    assert isinstance(cold, MovedMemory) and cold.measured is not None
    assert [cause.name for cause in cold.causes] == ["unfused", "as dispatched", "cached"]
    assert cold.unexplained and abs(cold.unexplained) < 0.02 * cold.measured


def test_a_statement_says_how_counters_were_read(reconcile: Reconcile) -> None:
    record, _ = reconcile()
    said = statement([record, structs.replace(record, counts={})])
    assert "Hardware counters of 1 run were read by Nsight Compute 2025.3.1.0 in processes" in said
    assert "were counted rightly" in said and "Software: " in said
    assert "Nsight Compute 2025.3.1.0" in said.partition("Software: ")[2]
    forbidden, _ = reconcile(probe=FORBIDDEN)
    assert "Labels of the counts: copy not calibrated" in statement([forbidden])
    rounded = {**record.counts["hardware"], "labels": ["9 operations rounded to TF32"]}
    said = statement([structs.replace(record, counts={"hardware": rounded})])
    assert "Labels of the counts: 9 operations rounded to TF32." in said
    assert "Kernels of known work" not in said
    assert "Hardware counters" not in statement([structs.replace(record, counts={})])


def read_only(record: Measurement, moved: int, held: int) -> Measurement:
    """The same where so many bytes were moved on a board with such a cache."""
    readings = {
        name: structs.replace(reading, value=float(moved)) if name.startswith("dram") else reading
        for name, reading in record.readings.items()
    }
    return structs.replace(
        record, readings=readings, environment={**record.environment, "l2_bytes": held}
    )


def test_fewer_bytes_than_must_move_are_a_bug(reconcile: Reconcile) -> None:
    """816 B must move; a cache of 100 B may hold 100 of them, of 1,000 B the 120 that are written,
    unless all was in it before."""
    record, _ = reconcile()
    mixer = request().equations
    cases = {
        (695, 100): set(), (694, 100): {"dram_bytes_cold", "dram_bytes_in_sequence"},
        (676, 1000): set(), (675, 1000): {"dram_bytes_cold"},
    }  # fmt: skip
    for (moved, held), wrong in cases.items():
        found = readings_below(read_only(record, moved, held), mixer)
        assert {name for name in found if name.startswith("dram")} == wrong, (moved, held)
    label = flagged(read_only(record, 10, 100), mixer).readings["dram_bytes_cold"].details["labels"]
    assert label == [BELOW]
    assert not any(
        name.startswith("dram") for name in readings_below(record, mixer)
    )  # no cache is known


# Printed


def test_json_keeps_schema_1_and_every_number_has_its_row(reconcile: Reconcile) -> None:
    record, found = reconcile(extra={"fadd": 7})
    printed = json.loads(printing.ladders([found], "json"))["ladders"][0]
    assert printed["rungs"]["4"] == {
        "mul": 1320, "add": 1317, "div": 50, "exp": 50, "other": {"compare": 40},
    }  # fmt: skip
    nothing = {"mul": 0, "add": 0, "div": 0, "exp": 0, "other": {}}
    assert printed["unexplained"]["3-4"] == nothing | {"add": 7}
    assert {(c["from"], c["to"]) for c in printed["causes"]} == {(1, 2), (3, 4)}
    rows = list(csv.DictReader(StringIO(printing.ladders([found], "csv"))))
    assert all(bool(row["value"]) != bool(row["reason"]) for row in rows)
    fourth = {row["quantity"]: row["value"] for row in rows if row["rung"] == "4"}
    assert fourth == {"mul": "1320", "add": "1317", "div": "50", "exp": "50", "compare": "40"}
    (again,), problems = ladders([record])
    assert problems == [] and again.to_json() == found.to_json()


def test_a_table_reads_from_rung_3_to_rung_4(reconcile: Reconcile) -> None:
    _, found = reconcile(extra={"fadd": 7})
    text = printing.ladders([found], "markdown")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    start = next(k for k, line in enumerate(lines) if "3 dispatched" in line)
    names = ["inverse of", "exp on", "div on", "sums begin at zero", "unexplained", "4 hardware"]
    for name, line in zip(names, lines[start + 1 : start + 7], strict=True):
        assert name in line
    assert "+7" in lines[start + 5] and "GH100, read by ncu 2025.3.1.0" in lines[start + 6]
    assert "1,317" in lines[start + 6]
