"""Are the best rates of a device measured?"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from profiler.meters import ceilings as meter
from profiler.meters.caches import CacheError
from profiler.meters.ceilings import (
    EAGER,
    LONGEST_S,
    REGISTERS,
    elementwise_ceilings,
    moving,
    product_ceiling,
    product_operations,
    rate_reading,
    sides,
)
from profiler.meters.latency import latency
from profiler.records.reading import Measured, Reading, Unavailable
from tests.fake_devices import MS, Clock, Work, read, refused
from tests.stand_ins import Instead

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
def test_a_ceiling_is_of_the_work_alone(instead: Instead, label: str, said: str | None) -> None:
    instead(cache_bytes=lambda place: (1024, "here"))
    meter_says = labelled({0.5: [label]}, 0.5)
    found = moving(CPU, meter_says)["copy"]
    assert (found.reason if isinstance(found, Unavailable) else None) == said


def test_products_that_launches_bind_are_tried_and_no_ceiling() -> None:
    """The rate of the first is the highest, by a clock that saw launches."""
    timing = labelled({1e-9: ["launch-bound"]}, 1e-9, 1e-3, 1e-3)
    found = read(product_ceiling(CPU, "fp32", torch.float32, timing, 1024))
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


def test_copies_move_twice_what_a_sum_reads(instead: Instead) -> None:
    instead(cache_bytes=lambda place: (1000, "here"))
    found = {name: read(m) for name, m in moving(CPU, seconds(0.001)).items()}
    size = 4 * 1000
    assert {name: r.value for name, r in found.items()} == {
        "copy": 2 * size / 0.001, "read": size / 0.001, "write": size / 0.001,
    }  # fmt: skip
    for reading in found.values():
        assert reading.details["buffer_bytes"] == size and reading.details["cache_source"] == "here"


def test_without_the_size_of_the_caches_nothing_is_known_to_exceed_them(
    instead: Instead,
) -> None:
    def untold(place: torch.device) -> tuple[int, str]:
        raise CacheError("nobody tells")

    instead(cache_bytes=untold)
    found = moving(CPU, seconds(1.0))
    assert {refused(m) for m in found.values()} == {
        "the size of a buffer that exceeds the cache is unknown: nobody tells"
    }


# Entry by entry


def test_entrywise_operations_are_counted_at_the_size_where_they_are_best(
    instead: Instead,
) -> None:
    """Caches of 2 MiB: arrays of 16, 128 and 1024 KiB together, two of four bytes an entry."""
    instead(cache_bytes=lambda place: (2**21, "here"))
    rates = (1e9, 4e9, 2e9)
    counts = (2**11, 2**14, 2**17)
    times = [count / r for count, r in zip(counts, rates, strict=True)]
    found = elementwise_ceilings(CPU, "fp32", torch.float32, seconds(*times, *times))
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
    instead: Instead,
) -> None:
    def refusing(text: str) -> Any:
        raise RuntimeError("no compiler for kernels")

    class Gpu(str):
        """What torch takes for the CPU, and its reader for a GPU."""

        type = "cuda"

    monkeypatch.setattr(torch.cuda.jiterator, "_create_jit_fn", refusing)
    instead(why_failed=lambda error, doing, place: f"{error} {doing}")
    chain, place = meter.ENTRYWISE[0], Gpu("cpu")
    timing = seconds(1e-6)
    found = read(meter.elementwise_ceiling(place, "fp32", torch.float32, chain, 2**17, timing, {}))  # type: ignore[arg-type]  # as far as it is asked
    assert found.details["how"] == EAGER
    assert found.details["not_tried"] == {
        REGISTERS: "no compiler for kernels for 2048 entries in registers"
    }


def test_without_caches_no_array_is_known_to_lie_in_them(instead: Instead) -> None:
    def untold(place: torch.device) -> tuple[int, str]:
        raise CacheError("nobody tells")

    instead(cache_bytes=untold)
    found = elementwise_ceilings(CPU, "fp32", torch.float32, seconds(1.0))
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
