"""Does a whole measurement work on an NVIDIA GPU, and is its energy physically possible?"""

from __future__ import annotations

import pytest

import costmodel as cm
from profiler.modules import implementations
from profiler.reconcile.ladder import ladder
from profiler.run.measure import measure
from profiler.run.request import Request

SIZES = {"b": 8, "l": 512, "d": 256, "n": 8}


@pytest.mark.gpu
@pytest.mark.parametrize("phase", ["training", "inference"])
def test_a_gpu_measurement_is_complete_and_explained(phase: str) -> None:
    mixer, chosen = cm.mixer("self-attention"), implementations("self-attention")["explicit"]
    sizes = SIZES | ({"t": 512} if phase == "inference" else {})
    found = measure(Request(mixer, chosen, sizes, phase, device="cuda"))
    assert found.readings["latency"].value > 0
    assert found.readings["kernels"].value > 0
    assert found.readings["peak_memory"].value > 0
    assert ladder(found, mixer, chosen).explained


@pytest.mark.gpu
def test_energy_is_read_or_refused_with_a_reason() -> None:
    """Gross exceeds net, power lies under the board's limit, the window is long enough."""
    mixer, chosen = cm.mixer("self-attention"), implementations("self-attention")["explicit"]
    found = measure(Request(mixer, chosen, SIZES, device="cuda"))
    if "energy" not in found.readings:
        pytest.skip(f"no energy: {found.reasons['energy']}")
    gross = found.readings["energy"]
    assert 0 < found.readings["energy_net"].value < gross.value
    assert gross.details["window_s"] >= 20 * gross.details["update_period_s"]
    limit = found.environment["gpu"]["power_limit_W"]
    assert 0 < found.readings["power"].value <= 1.1 * limit
