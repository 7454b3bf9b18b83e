"""Do kernels of known work show whether hardware counters count correctly?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from costmodel.data import data_dir
from profiler.hardware import child, kernels as known
from profiler.hardware.calibration import (
    CHAIN,
    ENTRIES,
    FUNCTIONS,
    NAMES,
    Calibration,
    Check,
    calibrated,
    range_of,
)
from profiler.hardware.counts import calibration, runs_of
from profiler.hardware.metrics import CHIPS
from profiler.hardware.ncu import Ran
from profiler.hardware.ncu_csv import kernels
from profiler.sweep.recorded import recorded
from tests import ncu
from tests.ncu import (
    BF16,
    GEMM,
    L2_BYTES,
    READ,
    SASS,
    WRITE,
    calibrating,
    each,
    stand_in,
)
from tests.profiler.test_hardware import FORBIDDEN, forget
from tests.stand_ins import Instead

CPU = torch.device("cpu")
Calibrate = Callable[..., Calibration]


@pytest.fixture
def calibrate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Calibrate:
    """A calibration by the stand-in, of kernels changed by name."""
    forget()

    def take(
        dtype: str = "fp32", runs: Mapping[str, Any] | None = None, **changed: Any
    ) -> Calibration:
        kernels = calibrating(**changed)
        stand_in(monkeypatch, tmp_path, calibration=kernels, **dict(runs or {}))
        return calibration("ncu", "cuda", dtype)

    return take


def check(found: Calibration, name: str) -> Check:
    (one,) = [each for each in found.checks if each.name == name]
    return one


def test_the_counters_of_an_h100_are_right() -> None:
    """By what ncu 2025.3 wrote there (of its columns those that were asked for)."""
    chip, folder = CHIPS[9, 0], Path(ncu.__file__).parent
    counters, _, opcodes = runs_of(chip, "bf16")
    read, patched = (
        Ran(kernels((folder / f"h100_{run.name}.csv").read_text(), run.metrics), "")
        for run in (counters, opcodes)
    )
    found = calibrated(read, patched, chip, "bf16", 50 * 2**20)
    assert found.labels == [] and found.halves == 2
    (record,), _ = recorded([data_dir("measured") / "h100_sxm" / "counters.jsonl"])
    assert record.counts["hardware"]["calibration"]["functions"] == found.to_json()["functions"]
    for name, own in (("exp", {"exp": 1}), ("div", {"div": 1}), ("sqrt", {"sqrt": 1})):
        counts = {key: n / ENTRIES for key, n in found.functions[name].items() if n}
        assert counts.pop("mul") in (4, 5) and counts.pop("add") in (2, 5) and counts == own


def test_counters_that_are_right(calibrate: Calibrate) -> None:
    found = calibrate()
    assert found.labels == [] and all(one.holds for one in found.checks)
    assert [one.name for one in found.checks] == [
        "gemm", "copy", "exp", "pairs of halves", "halves",
    ]  # fmt: skip
    assert check(found, "gemm").expected == check(found, "gemm").found == GEMM
    assert check(found, "copy").found == 2**31 - L2_BYTES
    assert check(found, "exp").found == ENTRIES
    assert len(found.commands) == 2 and "--nvtx-include costmodel_gemm" in found.commands[0]


def test_a_counter_without_a_value_is_no_zero(calibrate: Calibrate) -> None:
    """Opcodes take the place of all of them, as for a call."""
    whole = calibrate()
    forget()
    found = calibrate(runs={"counters": {"absent": [SASS.format("ffma")]}})
    assert found.functions == whole.functions
    assert check(found, "gemm").found == GEMM
    assert check(found, "halves").found is None


def test_what_a_function_executes_is_read_off_its_kernel(calibrate: Calibrate) -> None:
    found = calibrate()
    assert set(found.functions) == set(FUNCTIONS)
    one = {name: n // ENTRIES for name, n in found.functions["div"].items()}
    assert one == {"mul": 4, "add": 4, "div": 1, "exp": 0}
    one = {name: n // ENTRIES for name, n in found.functions["exp"].items()}
    assert one == {"mul": 1, "add": 0, "div": 0, "exp": 1}
    assert found.functions["erf"]["exp"] == 0 and found.functions["erf"]["mul"] == 8 * ENTRIES
    assert found.to_json()["entries"] == ENTRIES


@pytest.mark.parametrize(
    ("share", "holds"), [(0.991, True), (1.009, True), (0.989, False), (1.011, False), (2, False)]
)
def test_a_product_of_matrices_to_one_per_cent(
    calibrate: Calibrate, share: float, holds: bool
) -> None:
    """A total that is counted twice is one that lists a part beside the whole."""
    counted = round(share * GEMM / 2) * 2
    found = calibrate("bf16", gemm={"values": {BF16: counted}, "opcodes": {"HGMMA": 1}})
    assert check(found, "gemm").holds == holds
    assert any(f"{counted:,} op counted" in label for label in found.labels) != holds


@pytest.mark.parametrize(
    ("name", "holds"), [("nvjet_tst_192x192_64x4_1x2_h_bz", True), ("x", False)]
)
def test_a_product_in_tiles_that_do_not_divide_it_is_known_by_its_kernel(
    calibrate: Calibrate, name: str, holds: bool
) -> None:
    """22 tiles of 192 on either side of 4096, 6 % more than the product."""
    counted = 2 * 4224 * 4224 * 4096
    executed = {"values": {BF16: counted}, "opcodes": {"HGMMA": 1}}
    found = calibrate("bf16", gemm={"name": name, **executed})
    assert check(found, "gemm").holds is holds


@pytest.mark.parametrize(
    ("moved", "holds"),
    [
        (2**31, True),
        (round(1.029 * 2**31), True),
        (round(1.031 * 2**31), False),
        (round(0.97 * 2**31) - L2_BYTES + 1, True),
        (round(0.97 * 2**31) - L2_BYTES - 1, False),
    ],
)
def test_a_pass_over_memory_to_three_per_cent_and_what_its_cache_holds(
    calibrate: Calibrate, moved: int, holds: bool
) -> None:
    found = calibrate(copy={"values": {READ: 2**30, WRITE: moved - 2**30}})
    assert check(found, "copy").holds == holds
    assert (found.labels == []) == holds


CHAINED = CHAIN * ENTRIES


def test_exponentials_to_one_per_cent(calibrate: Calibrate) -> None:
    found = calibrate(ex2=each(EX2=2, fmul=1))
    (label,) = found.labels
    assert label.startswith("calibration of exp fails") and f"{2 * ENTRIES:,} MUFU.EX2" in label


@pytest.mark.parametrize(
    ("counted", "factor"),
    [(CHAIN * ENTRIES, 2.0), (2 * CHAIN * ENTRIES, 1.0), (3, None), (0, None)],
)
def test_what_one_counted_half_stands_for(
    calibrate: Calibrate, counted: int, factor: float | None
) -> None:
    values = {"values": {SASS.format("hfma"): counted}, "opcodes": {"HFMA2": CHAINED}}
    found = calibrate(halves=values)
    assert found.halves == factor
    assert len(found.labels) == (factor is None)


def test_constants_that_every_thread_writes_do_not_break_the_calibration(
    calibrate: Calibrate,
) -> None:
    """Three, as compilers write them, in threads of one entry: 4.7 % of a chain of 64."""
    counted = CHAINED + 3 * ENTRIES
    values = {"values": {SASS.format("hfma"): counted}, "opcodes": {"HFMA2": counted}}
    found = calibrate(halves=values)
    assert found.labels == [] and found.halves == 2


def test_a_kernel_that_was_not_launched_is_said(calibrate: Calibrate) -> None:
    found = calibrate(halves={"range": "elsewhere"})
    assert found.halves is None
    assert found.labels == [
        f"{name} not calibrated: no kernel of the calibration was counted"
        for name in ("pairs of halves", "halves")
    ]


def test_where_counters_are_forbidden_opcodes_alone_are_calibrated(calibrate: Calibrate) -> None:
    found = calibrate(runs={"probe": FORBIDDEN})
    assert check(found, "exp").holds and check(found, "gemm").holds
    assert [label.partition(":")[0] for label in found.labels] == [
        "copy not calibrated", "halves not calibrated",
    ]  # fmt: skip
    assert all("NVreg_RestrictProfilingToAdminUsers=0" in label for label in found.labels)


def test_a_calibration_that_could_not_run_labels_everything(calibrate: Calibrate) -> None:
    gone = {"mode": "fault", "said": "==ERROR== LibraryNotLoaded"}
    found = calibrate(runs={"counters": gone, "opcodes": gone})
    assert len(found.labels) == len(found.checks) == 5
    assert all("sandbox" in label for label in found.labels) and found.functions == {}


# What runs


def test_the_kernels_do_what_is_said_of_them(instead: Instead) -> None:
    """Small, on a CPU; the chain of halves is made for a GPU alone, which is said."""
    instead(kernel_side=3, kernel_copied=40, kernel_entries=5)
    shapes = {}
    made = known.makers(CPU, "fp64")
    assert tuple(made) == NAMES
    for name in (name for name in NAMES if name != "halves"):
        result = made[name]()()
        shapes[name] = result.shape
        assert bool(torch.isfinite(result).all())
    assert shapes == {"gemm": (3, 3), "copy": (10,), "ex2": (5,), **dict.fromkeys(FUNCTIONS, (5,))}


def test_a_kernel_that_cannot_be_made_stops_no_other(
    instead: Instead, capsys: pytest.CaptureFixture[str]
) -> None:
    instead(kernel_side=2, kernel_copied=8, kernel_entries=2)
    counted: list[str] = []

    def count(name: str, call: Callable[[], Any]) -> None:
        call()
        counted.append(name)

    instead(count_call=count)
    child.run_asked({"device": "cpu", "dtype": "fp32"})
    assert counted == [f"costmodel_{name}" for name in NAMES if name != "halves"]
    assert capsys.readouterr().out.startswith("halves: ")


def test_names_of_ranges_are_told_apart() -> None:
    """ncu is asked for them by name, without what means something in its filter."""
    ranges = [range_of(name) for name in NAMES]
    assert len(set(ranges)) == len(ranges)
    assert all(name.replace("_", "").isalnum() for name in ranges)
