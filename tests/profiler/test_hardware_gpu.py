"""Are the counters of a real GPU correct, and is rung 4 of a real mixer physically possible?"""

from __future__ import annotations

from dataclasses import replace

import pytest

import costmodel as cm
from profiler.hardware.result import HardwareCounts
from profiler.meters.sampler import LatencyLimits
from profiler.modules import implementations
from profiler.reconcile.ladder import ladder
from profiler.run.hardware_counters import hardware_counts
from profiler.run.lower_bounds import readings_below
from profiler.run.measure import measure
from profiler.run.request import Request

BRIEF = LatencyLimits(max_seconds=0.5, warmup_seconds=0.1)
SIZES = {"b": 4, "l": 256, "d": 512, "n": 8}
"""Rows of a power of two up to 1024: torch's softmax takes each exponential once."""


def request(dtype: str) -> Request:
    mixer = cm.mixer("self-attention")
    chosen = implementations(mixer)["explicit"]
    asked = Request(mixer, chosen, SIZES, dtype=dtype, device="cuda:0")
    return replace(asked, counters=True, energy=False)


def read(dtype: str) -> HardwareCounts:
    """What ncu reads here; skips with the reason where it reads nothing."""
    found = hardware_counts(request(dtype))
    if not isinstance(found, HardwareCounts):
        pytest.skip(found.reason)
    return found


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_counters_count_what_is_known(dtype: str) -> None:
    found = read(dtype)
    if found.executed is None:
        pytest.skip(found.reasons["executed"])
    assert found.labels == [], found.calibration.to_json()
    assert found.calibration.functions["exp"]["exp"] == pytest.approx(
        found.calibration.to_json()["entries"], rel=0.01
    )


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_mixer_executes_no_less_than_it_dispatches(dtype: str) -> None:
    """Every product of matrices to 1 %, every exponential to 1 %, and the bytes that must move."""
    counted = read(dtype)
    if counted.executed is None:
        pytest.skip(counted.reasons["executed"])
    asked = request(dtype)
    record = measure(asked, limits=BRIEF)
    found = ladder(record, asked.equations, asked.implementation)
    dispatched, executed = found.rungs["3"], found.rungs["4"]
    shapes = record.counts["hardware"]["products"]
    products = sum(batch * rows * columns * terms for batch, rows, columns, terms in shapes)
    assert products > 0.9 * dispatched["mul"]
    for name in ("mul", "add"):
        assert executed[name] >= 0.99 * products, found.to_json()
    assert executed["exp"] == pytest.approx(dispatched["exp"], rel=0.01), counted.opcodes
    wrong = {
        name: why for name, why in readings_below(record, asked.equations).items() if "dram" in name
    }
    assert wrong == {} and record.readings["dram_bytes_cold"].value > 0
