"""Are the best rates of a device measured, kept with the records, and printed beside the measured
rates?"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

import cli
from profiler.host.environment import environment_differences
from profiler.meters import ceilings as meter
from profiler.meters.caches import CacheError
from profiler.meters.ceilings import (
    BRIEF,
    EAGER,
    GRAPHED,
    LONGEST_S,
    REGISTERS,
    elementwise_ceilings,
    launching,
    moving,
    product_ceiling,
    product_operations,
    rate_reading,
    sides,
)
from profiler.meters.latency import latency
from profiler.reconcile.cost import cost_of
from profiler.reconcile.ladder import ladders
from profiler.records.measurement import Measurement
from profiler.records.reading import Measured, Reading, Unavailable
from profiler.records.schema import RecordError
from profiler.records.store import line_of
from profiler.run import measure as measure_file
from profiler.run.lower_bounds import NOT_ASKED, ceiling
from profiler.run.measure import measure_with_ceilings
from profiler.sweep.session import recorded as records_of
from tests import printing
from tests.fake_devices import MS, Clock, Work, read, refused
from tests.ladders import theory
from tests.printing import statement
from tests.profiler.test_measure import BRIEF as SHORT
from tests.profiler.test_work import asked
from tests.recorded import ATTENTION

CPU = torch.device("cpu")


def seconds(*durations: float) -> Callable[..., Measured]:
    """A meter that says these, call by call, the last for ever."""
    waiting = list(durations)

    def timing(call: Callable[[], Any], **_: Any) -> Measured:
        call()
        now = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        details = {"ci_low": 0.9 * now, "ci_high": 1.25 * now, "n": 3, "labels": [], "other": 1}
        return Reading("latency", now, "s", (0.8 * now, now, 2 * now), details)

    return timing


def test_a_rate_is_the_inverse_of_the_time_and_its_interval_turns_around() -> None:
    found = read(rate_reading(seconds(0.5)(lambda: None), "copy", 10.0, "B/s", side=3))
    assert (found.name, found.value, found.unit) == ("copy", 20.0, "B/s")
    assert found.samples == (25.0, 20.0, 10.0)
    assert found.details["ci_low"] == 10 / 0.625 and found.details["ci_high"] == 10 / 0.45
    assert found.details["side"] == 3 and "other" not in found.details
    few = seconds(0.5)(lambda: None)
    assert isinstance(few, Reading)
    few = replace(few, details={**few.details, "ci_low": None, "ci_high": None})
    assert read(rate_reading(few, "copy", 10.0, "B/s")).details["ci_low"] is None


def labelled(labels: dict[float, list[str]], *durations: float) -> Callable[..., Measured]:
    """A meter that says these, some of them with labels."""
    plain = seconds(*durations)

    def timing(call: Callable[[], Any], **given: Any) -> Measured:
        found = read(plain(call, **given))
        return replace(found, details={**found.details, "labels": labels.get(found.value, [])})

    return timing


@pytest.mark.parametrize(
    ("label", "said"),
    [
        ("launch-bound", "no ceiling: the timed call was launch-bound"),
        ("throttled", "no ceiling: the timed call was throttled"),
        ("power-capped", None),
    ],
)
def test_a_ceiling_is_of_the_work_alone(
    monkeypatch: pytest.MonkeyPatch, label: str, said: str | None
) -> None:
    monkeypatch.setattr(meter, "cache_bytes", lambda place: (1024, "here"))
    meter_says = labelled({0.5: [label]}, 0.5)
    found = moving(CPU, meter_says)["copy"]
    assert (found.reason if isinstance(found, Unavailable) else None) == said


def test_products_that_launches_bind_are_tried_and_no_ceiling() -> None:
    """The rate of the first is the highest, by a clock that saw launches."""
    timing = labelled({1e-9: ["launch-bound"]}, 1e-9, 1e-3, 1e-3)
    found = read(product_ceiling.__wrapped__(CPU, "fp32", torch.float32, timing, 1024))
    assert found.details["side"] == 1024 and len(found.details["tried"]) == 3


def test_a_chain_in_registers_takes_far_longer_than_its_launch() -> None:
    """A chip of 60 T multiply-adds a second, on as many entries as a cache of 50 MB holds."""
    entries = meter.resident(50 * 2**20)[-1] // (2 * 4)
    assert 2 * entries * meter.LINKS / 60e12 > 10 * 10e-6


def test_the_meter_of_latency_times_a_product_on_a_clock_that_is_known() -> None:
    """A product of 256 x 256 in 1 ms."""
    clock = Clock()
    work = Work(clock, MS)

    def timing(call: Callable[[], Any], **given: Any) -> Measured:
        call()
        return latency(work, clock=clock, **given)

    found = read(product_ceiling(CPU, "fp32", torch.float32, timing, 256))
    assert found.value == pytest.approx(product_operations(256) / 1e-3)
    assert found.details["side"] == 256 and found.details["stop_rule"] == "median settled"


def test_products_grow_while_they_are_short_and_the_best_rate_is_kept() -> None:
    """Rates of 10, 40 and 20 Gop/s; the next product would take 8 x 0.107 s."""
    rates = (1e10, 4e10, 2e10)
    times = [product_operations(side) / r for side, r in zip((256, 512, 1024), rates, strict=True)]
    found = read(product_ceiling(CPU, "fp32", torch.float32, seconds(*times), 16384))
    assert found.value == pytest.approx(4e10) and found.details["side"] == 512
    assert [int(side) for side in found.details["tried"]] == [256, 512, 1024]
    assert times[1] * 8 * 0.8 < LONGEST_S < times[2] * 8 * 0.8


def test_no_product_is_larger_than_the_largest() -> None:
    assert list(sides(1024)) == [256, 512, 1024]
    found = read(product_ceiling(CPU, "fp32", torch.float32, seconds(1e-9), 512))
    assert list(found.details["tried"]) == ["256", "512"]


def test_what_is_reached_before_memory_runs_out_is_kept() -> None:
    tried: list[int] = []

    def timing(call: Callable[[], Any], **_: Any) -> Measured:
        tried.append(1)
        return seconds(1e-6)(call) if len(tried) == 1 else Unavailable("out of memory: 2 GiB")

    found = read(product_ceiling(CPU, "fp32", torch.float32, timing, 2048))
    assert list(found.details["tried"]) == ["256"]
    assert found.details["ended_by"] == "out of memory: 2 GiB"
    said = refused(
        product_ceiling(CPU, "fp32", torch.float32, lambda *_, **__: Unavailable("no"), 256)
    )
    assert said == "no"


def test_a_type_that_the_device_cannot_multiply_is_a_reason() -> None:
    found = product_ceiling(CPU, "truth", torch.bool, latency, 256)
    assert "not implemented for 'Bool'" in refused(found)


@pytest.mark.parametrize("matrix", [1, 2, 3, 7])
def test_operations_of_a_product_are_those_that_are_dispatched(matrix: int) -> None:
    from profiler.counting.dispatch import count_dispatch

    a = torch.randn(matrix, matrix)
    counted = count_dispatch(lambda: a @ a).to_json()["operations"]
    assert counted["mul"] + counted["add"] == product_operations(matrix)


def test_copies_move_twice_what_a_sum_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "cache_bytes", lambda place: (1000, "here"))
    found = {name: read(m) for name, m in moving(CPU, seconds(0.001)).items()}
    size = 4 * 1000
    assert {name: r.value for name, r in found.items()} == {
        "copy": 2 * size / 0.001, "read": size / 0.001, "write": size / 0.001,
    }  # fmt: skip
    for reading in found.values():
        assert reading.details["buffer_bytes"] == size and reading.details["cache_source"] == "here"


def test_without_the_size_of_the_caches_nothing_is_known_to_exceed_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def untold(place: torch.device) -> tuple[int, str]:
        raise CacheError("nobody tells")

    monkeypatch.setattr(meter, "cache_bytes", untold)
    found = moving(CPU, seconds(1.0))
    assert {refused(m) for m in found.values()} == {
        "the size of a buffer that exceeds the cache is unknown: nobody tells"
    }


# Entry by entry


def test_entrywise_operations_are_counted_at_the_size_where_they_are_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Caches of 2 MiB: arrays of 16, 128 and 1024 KiB together, two of four bytes an entry."""
    monkeypatch.setattr(meter, "cache_bytes", lambda place: (2**21, "here"))
    rates = (1e9, 4e9, 2e9)
    counts = (2**11, 2**14, 2**17)
    times = [count / r for count, r in zip(counts, rates, strict=True)]
    found = elementwise_ceilings.__wrapped__(CPU, "fp32", torch.float32, seconds(*times, *times))
    exp, both = read(found["exp fp32"]), read(found["multiply-add fp32"])
    assert exp.value == pytest.approx(4e9) and both.value == pytest.approx(2 * 4e9)
    for reading in (exp, both):
        assert reading.details["entries"] == 2**14 and reading.details["how"] == EAGER
        assert [int(key.split()[3]) for key in reading.details["tried"]] == list(counts)
        assert reading.details["cache_bytes"] == 2**21 and "not_tried" not in reading.details


@pytest.mark.parametrize("operation", meter.ENTRYWISE)
def test_an_entrywise_operation_is_the_one_that_is_counted(operation: meter.Entrywise) -> None:
    """As dispatched, and as the text of a kernel says: x stays between 0 and 1."""
    from profiler.counting.dispatch import count_dispatch

    x, y = torch.rand(7, dtype=torch.float64), torch.empty(7, dtype=torch.float64)
    call, times = meter.repeated_entrywise(operation, EAGER, x, y)
    counted = {k: v for k, v in count_dispatch(call).to_json()["operations"].items() if v}
    assert sum(counted.values()) == operation.counted * times * 7
    value = 0.3
    for _ in range(meter.LINKS):
        value = eval(
            operation.link, {"exp": math.exp, "T": float, "x": value}
        )  # a constant of ours
        assert 0 < value < 1


def test_kernels_chain_operations_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text is one that torch accepts, and is called with an array; in the end it is faster."""
    from torch.cuda.jiterator import _CodeParser

    texts: list[str] = []

    def made(text: str) -> Callable[[torch.Tensor], torch.Tensor]:
        texts.append(text)
        return lambda x: x

    monkeypatch.setattr(torch.cuda.jiterator, "_create_jit_fn", made)
    x = torch.rand(5)
    for operation in meter.ENTRYWISE:
        call, times = meter.repeated_entrywise(operation, REGISTERS, x, x)
        call()
        assert times == meter.LINKS
        parsed = _CodeParser(texts[-1])
        assert parsed.function_name == "chained" and operation.link in parsed.function_body


def test_a_kernel_that_cannot_be_made_leaves_the_other_manner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refusing(text: str) -> Any:
        raise RuntimeError("no compiler for kernels")

    class Gpu(str):
        """What torch takes for the CPU, and its reader for a GPU."""

        type = "cuda"

    monkeypatch.setattr(torch.cuda.jiterator, "_create_jit_fn", refusing)
    monkeypatch.setattr(meter, "why_failed", lambda error, doing, place: f"{error} {doing}")
    chain, place = meter.ENTRYWISE[0], Gpu("cpu")
    timing = seconds(1e-6)
    found = read(meter.elementwise_ceiling(place, "fp32", torch.float32, chain, 2**17, timing, {}))  # type: ignore[arg-type]  # as far as it is asked
    assert found.details["how"] == EAGER
    assert found.details["not_tried"] == {
        REGISTERS: "no compiler for kernels for 2048 entries in registers"
    }


def test_without_caches_no_array_is_known_to_lie_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def untold(place: torch.device) -> tuple[int, str]:
        raise CacheError("nobody tells")

    monkeypatch.setattr(meter, "cache_bytes", untold)
    found = elementwise_ceilings.__wrapped__(CPU, "fp32", torch.float32, seconds(1.0))
    assert set(map(refused, found.values())) == {
        "the size of an array that fits the caches is unknown: nobody tells"
    }


@pytest.mark.gpu
@pytest.mark.parametrize("operation", meter.ENTRYWISE)
def test_kernels_compute_what_their_text_says(operation: meter.Entrywise) -> None:
    x = torch.rand(1000, dtype=torch.float64, device="cuda")
    expected = x.clone()
    for _ in range(meter.LINKS):
        expected = torch.exp(-expected) if operation.counted == 1 else expected * 0.5 + 0.25
    assert torch.allclose(meter.in_registers(operation.link)(x), expected)


def test_launches_are_seconds_each(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = launching(CPU, seconds(3e-6))
    assert read(alone["launch"]).value == 3e-6
    assert "needs an NVIDIA GPU" in refused(alone["launch_graph"])
    monkeypatch.setattr(meter, "latency_graph", lambda call, **_: seconds(2e-4)(call))
    graph = read(launching(CPU, seconds(3e-6))["launch_graph"])
    assert graph.value == pytest.approx(2e-4 / GRAPHED) and graph.unit == "s"
    assert graph.details["ci_high"] == pytest.approx(2.5e-4 / GRAPHED)


# With records


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ceilings of a device that never was: 10 Gop/s and 1 GB/s; who asked for them."""
    asked_for: list[str] = []

    def pretended(device: str, dtype: str, kind: torch.dtype) -> dict[str, Any]:
        asked_for.append(f"{device} {dtype}")
        found = {
            name: {"value": value, "unit": unit, "samples": [value], "details": {"n": 1}}
            for name, value, unit in ((f"product {dtype}", 1e10, "op/s"), ("copy", 1e9, "B/s"))
        }
        return {"readings": found, "reasons": {"launch_graph": "no GPU"}}

    monkeypatch.setattr(measure_file, "ceilings", pretended)
    return asked_for


def test_they_stand_in_the_environment_and_do_not_tell_machines_apart(counted: list[str]) -> None:
    found = measure_with_ceilings(asked("me", "fft"), limits=SHORT)
    assert counted == ["cpu fp32"]
    held = found.environment["ceilings"]["readings"]
    assert held["product fp32"]["value"] == 1e10
    other = {**found.environment, "ceilings": {"readings": {}}}
    assert environment_differences(found.environment, other) == []
    assert Measurement.from_json(json.loads(line_of(found))) == found


def test_a_record_whose_ceilings_are_none_is_no_measurement() -> None:
    broken = {**ATTENTION.to_json(), "environment": {"ceilings": 3}}
    with pytest.raises(RecordError, match=r"environment\.ceilings: expected"):
        Measurement.from_json(broken)


def busy(**environment: Any) -> Measurement:
    """Explicit attention in 125 µs, on a device with such an environment."""
    return replace(ATTENTION, environment={**ATTENTION.environment, **environment})


def held(**readings: tuple[float, str]) -> dict[str, Any]:
    """Ceilings, as the environment of a record has them."""
    found = {
        name.replace("_", " "): {"value": value, "unit": unit, "samples": [], "details": {}}
        for name, (value, unit) in readings.items()
    }
    return {"ceilings": {"readings": found, "reasons": {"copy": "no buffer fits"}}}


def test_rates_are_parts_of_what_the_device_reaches() -> None:
    gpu = {"gpu": {"max_memory_clock_MHz": 3201, "memory_bus_bits": 6144}}
    found = busy(**held(product_fp32=(1e8, "op/s"), copy=(1e9, "B/s")), **gpu)
    cost, why = cost_of(found, theory(found), 5000)
    assert cost is not None
    assert cost["operations_per_s"] == pytest.approx(5000 / 125e-6)  # 40 Mop/s
    assert cost["operations_per_s_share"] == pytest.approx(0.4)
    assert cost["bytes_per_s_share"] == pytest.approx(cost["compulsory_bytes"] / 125e-6 / 1e9)
    assert cost["datasheet_bytes_per_s"] == 3201e6 * 2 * 6144 / 8
    assert not {"operations_per_s_share", "bytes_per_s_share", "ceiling_bytes_per_s"} & set(why)


def test_each_missing_ceiling_has_its_own_reason() -> None:
    cost, why = cost_of(busy(), theory(busy()), 5000)
    assert cost is not None and cost["ceiling_operations_per_s"] is None
    assert why["operations_per_s_share"] == why["ceiling_bytes_per_s"] == NOT_ASKED
    found = busy(**held(product_fp32=(1e8, "op/s")))
    cost, why = cost_of(found, theory(found), 5000)
    assert cost is not None and cost["operations_per_s_share"] == pytest.approx(0.4)
    assert why["bytes_per_s_share"] == "no buffer fits"
    other = ceiling(held(product_bf16=(1e8, "op/s")), "product fp32")
    assert refused(other) == "no ceiling 'product fp32' was measured"


def test_where_rates_mean_nothing_shares_do_neither() -> None:
    slow = ATTENTION.readings["launch_estimate"]
    found = replace(
        busy(**held(product_fp32=(1e8, "op/s"), copy=(1e9, "B/s"))),
        readings={**ATTENTION.readings, "launch_estimate": replace(slow, value=1.0)},
    )
    cost, why = cost_of(found, theory(found), 5000)
    assert cost is not None and cost["operations_per_s_share"] is None
    assert cost["ceiling_operations_per_s"] == 1e8
    assert why["operations_per_s_share"] == cost["verdict"]


def test_a_reconciliation_prints_shares_only_where_ceilings_were_asked_for() -> None:
    gpu = {"gpu": {"max_memory_clock_MHz": 3201, "memory_bus_bits": 6144}}
    found = busy(**held(product_fp32=(1e8, "op/s"), copy=(1e9, "B/s")), **gpu)
    printed = printing.ladders(ladders([found])[0], "markdown")
    assert (
        "| &nbsp;&nbsp;share of the measured rate of matrix products | 51.5% of 100 Mop/s |"
        in printed.replace("|   of", "| of")
    )
    assert "of 1 GB/s (datasheet: 4.917 TB/s)" in printed
    assert "reach here" not in printing.ladders(ladders([ATTENTION])[0], "markdown")


def test_profile_and_statement_say_what_is_reached() -> None:
    reached = held(product_fp32=(1e8, "op/s"), copy=(1e9, "B/s"), launch=(2e-6, "s"))
    other = held(product_bf16=(4e8, "op/s"), copy=(9e9, "B/s"))
    side = reached["ceilings"]["readings"]["product fp32"]["details"]
    side["side"] = 512
    records = [busy(**reached), busy(**other), ATTENTION]
    said = (
        "products of matrices in fp32 100 Mop/s (512 x 512), copying 1 GB/s, launching an "
        "operation 2 µs, products of matrices in bf16 400 Mop/s"
    )
    assert f"at best the device reaches: {said}" in printing.measurements(records, "rich")
    assert f"At best the device reached, in the same processes: {said}." in statement(records)
    assert "at best" not in printing.measurements([ATTENTION], "rich")
    assert "At best" not in statement([ATTENTION])


def test_the_option_reaches_profile_reconcile_and_the_processes_of_a_sweep(
    counted: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "runs.jsonl"
    sizes = "me --impl fft --d 4 --l 3 --seconds 0.02 --device cpu --no-energy"
    assert cli.run(f"profile {sizes} --ceilings -o {path}".split()) == 0
    assert len(counted) == 1
    (record,) = records_of([path])[0]
    assert "ceilings" in record.environment and not record.sweep["options"].get("ceilings")
    assert cli.run(f"profile {sizes}".split()) == 0
    assert len(counted) == 1
    capsys.readouterr()


def test_a_sweep_names_the_function_that_measures_ceilings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from profiler.sweep import processes
    from tests.sweeping import one_worker

    given: list[str] = []

    def started(devices: Any, kind: str, limits: Any, measure: str) -> Any:
        given.append(measure)
        return one_worker()

    monkeypatch.setattr(processes, "processes", started)
    words = "sweep me --impl toeplitz --l 2 --d 2 --rounds 1 --device cpu"
    assert cli.run(f"{words} -o {tmp_path / 'a'}".split()) == 0
    assert cli.run(f"{words} --ceilings -o {tmp_path / 'b'}".split()) == 0
    assert given == ["profiler.run.measure:measure", "profiler.run.measure:measure_with_ceilings"]
    capsys.readouterr()


def test_real_ceilings_are_measured_once_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """On this machine, whatever it reaches."""
    monkeypatch.setattr(meter, "LARGEST", 256)
    monkeypatch.setattr(meter, "BRIEF", SHORT)
    monkeypatch.setattr(meter, "resident", lambda held: [meter.SMALL_BYTES])
    meter.product_ceiling.cache_clear()
    meter.elementwise_ceilings.cache_clear()
    meter.moving_and_launching.cache_clear()
    first = meter.ceilings("cpu", "fp64", torch.float64)
    typed = {"product fp64", "exp fp64", "multiply-add fp64"}
    assert set(first["readings"]) == typed | {"copy", "read", "write", "launch"}
    assert set(first["reasons"]) == {"launch_graph"}
    assert all(r["value"] > 0 and r["samples"] for r in first["readings"].values())
    assert meter.ceilings("cpu", "fp64", torch.float64) == first
    other = meter.ceilings("cpu", "fp32", torch.float32)
    assert other["readings"]["copy"] == first["readings"]["copy"]
    assert set(other["readings"]) - set(first["readings"]) == {
        "product fp32", "exp fp32", "multiply-add fp32",
    }  # fmt: skip
    meter.product_ceiling.cache_clear()
    meter.elementwise_ceilings.cache_clear()
    meter.moving_and_launching.cache_clear()
    assert BRIEF.max_seconds <= 2
