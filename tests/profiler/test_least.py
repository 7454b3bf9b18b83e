"""Is an impossible measurement flagged, and every other measurement unchanged?"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import costmodel as cm
from costmodel import Mixer
from costmodel.prediction.columns import NO_BOARD
from profiler.reconcile.cost import cost_of
from profiler.records.measurement import Measurement
from profiler.records.reading import Reading
from profiler.run.lower_bounds import flagged, lower_bounds, readings_below
from profiler.run.measure import measure
from profiler.run.prepare import PreparedCall
from tests import printing
from tests.ladders import theory
from tests.profiler.test_measure import BRIEF
from tests.profiler.test_work import asked
from tests.recorded import latency, reading, recorded
from tests.stand_ins import Instead

ME = cm.mixer("me")
SIZES = {"b": 3, "l": 4096, "d": 1024}
X = 3 * 4096 * 1024 * 4  # bytes of x, of y and of their gradients
W = 4096 * 4  # of w_ext
BOARD = {
    "device_name": "Example GPU",
    "l2_bytes": 50 * 2**20,
    "gpu": {"max_memory_clock_MHz": 3201, "memory_bus_bits": 6144},
}
RATE = 3201e6 * 2 * 6144 / 8  # B/s: both edges of the clock
LEAST = (2 * X + W - 50 * 2**20) / RATE  # s: x and w_ext are read, y is written


def record(environment: dict[str, Any] = BOARD, **more: Any) -> Measurement:
    """ME on a GPU, with these readings."""
    given: dict[str, Any] = {"device": "cuda", "form": "direct", "environment": environment}
    return recorded("me", "fft", SIZES, **given | more)


@pytest.mark.parametrize(
    ("phase", "least"),
    [("training", X), ("training-step", X + W), ("backward", X + W)],
)
@pytest.mark.parametrize(("lacking", "flags"), [(0, False), (1, True)])
def test_memory_holds_what_the_call_leaves(
    phase: str, least: int, lacking: int, flags: bool
) -> None:
    found = record(
        phase=phase, readings={"peak_memory": reading("peak_memory", least - lacking, "B")}
    )
    assert lower_bounds(found, ME)["peak_memory"].value == least
    assert ("peak_memory" in readings_below(found, ME)) == flags


def test_the_memory_has_a_floor_where_moved_bytes_have_no_formula() -> None:
    """The values of a table decide which of T5's learned numbers are read."""
    mixer, sizes = (
        cm.mixer("self-attention+relative-bias"),
        {"b": 2, "l": 5, "d": 6, "n": 2, "B": 4},
    )
    found = recorded(mixer.name, "explicit", sizes, device="cuda", form="direct", environment=BOARD)
    assert {name: floor.value for name, floor in lower_bounds(found, mixer).items()} == {
        "peak_memory": 2 * 5 * 6 * 4
    }


def test_half_precision_needs_half_the_bytes() -> None:
    assert lower_bounds(record(dtype="bf16"), ME)["peak_memory"].value == X // 2


def test_one_new_token_may_be_a_view_of_the_state() -> None:
    assert lower_bounds(recorded("me", "fft", SIZES | {"t": 4096}, phase="inference"), ME) == {}


@pytest.mark.parametrize("name", ["latency", "latency_cold", "latency_graph"])
@pytest.mark.parametrize(("part", "flags"), [(0.96, False), (0.94, True)])
def test_what_the_cache_cannot_hold_takes_time(name: str, part: float, flags: bool) -> None:
    """5 % are the clocks'."""
    found = record(readings={name: replace(latency(0.0, part * LEAST, 1.0), name=name)})
    said = readings_below(found, ME)
    assert list(said) == ([name] if flags else [])
    if flags:
        assert said[name].endswith(
            "moving the 48,250,880 B that exceed the cache takes 9.814 µs at 4.917 TB/s"
        )


@pytest.mark.parametrize("unknown", ["l2_bytes", "gpu"])
def test_a_board_that_does_not_tell_its_best_gives_times_no_floor(unknown: str) -> None:
    environment = BOARD | {unknown: None}
    assert list(lower_bounds(record(environment), ME)) == ["peak_memory"]


def test_what_fits_into_the_cache_has_no_floor_of_time() -> None:
    small = replace(record(), sizes={"b": 1, "l": 128, "d": 64})
    assert list(lower_bounds(small, ME)) == ["peak_memory"]


def test_tables_of_constants_may_be_computed_instead_of_read() -> None:
    """y = x * table: x is read and y written, and the table may be none."""
    mixer = Mixer("scaled")
    l, d = mixer.sizes("l d")
    x, y, table = mixer.input("x", l, d), mixer.output("y", l, d), mixer.buffer("table", l, d)
    with mixer.form("direct") as f:
        i, a = f.index("i", 1, l), f.index("a", 1, d)
        y[i, a] = x[i, a] * table[i, a]
    environment = BOARD | {"l2_bytes": 0}
    found = lower_bounds(record(environment), mixer)["latency"]
    assert found.why.startswith(f"moving the {2 * X:,} B that exceed the cache")


def test_a_meter_that_reads_too_low_is_flagged_in_record_report_and_ladder(
    instead: Instead,
) -> None:
    """The same call with an honest meter, and with one that loses all but 8 bytes."""
    honest = measure(asked("me", "fft"), limits=BRIEF)
    assert "below the floor" not in printing.measurements([honest], "markdown")

    def doctored(work: PreparedCall, device: str) -> Reading:
        return Reading("peak_memory", 8, "B", (8.0, 8.0), {"labels": []})

    instead(peak_of_call=doctored)
    found = measure(asked("me", "fft"), limits=BRIEF)
    details = found.readings["peak_memory"].details
    assert details["labels"] == ["below the floor"]
    assert details["floor"] == (
        "peak memory of 8 B is below its lower bound: the results of the call take 240 B"
    )
    assert "peak memory below the floor: me fft" in printing.measurements([found], "markdown")
    cost, why = cost_of(found, theory(found), 1, NO_BOARD)
    assert cost is not None
    assert cost["verdict"] == why["operations_per_s"] == details["floor"]
    assert cost["operations_per_s"] is None


def test_a_record_without_the_label_is_flagged_when_it_is_reconciled() -> None:
    """Records of before have none."""
    timed = latency(LEAST / 3, LEAST / 2, LEAST / 1.9)
    launches = reading("launch_estimate", 0.0, "s", operations=1)
    found = record(readings={"latency": timed, "launch_estimate": launches})
    cost, _ = cost_of(found, theory(found), 1, NO_BOARD)
    assert cost is not None
    assert cost["verdict"].startswith("latency of 4.907 µs is below its lower bound: moving")
    once = flagged(found, ME)
    assert once.readings["latency"].details["labels"] == ["below the floor"]
    assert once.readings["latency"].samples == timed.samples
