"""Is the file that `calibrate` writes a board, with the rates that follow from the times?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from cli import complete
from costmodel.prediction.boards import BY_DTYPE, UNITS, board
from profiler.host import board_file
from profiler.host.board_file import CHAIN, TYPES, Figure, Within, from_system, measured, text
from profiler.host.device import DTYPES
from profiler.host.system import Host
from profiler.meters.caches import cache_bytes
from profiler.records.grades import ONE_THREAD
from profiler.records.reading import Measured, Reading, Unavailable
from tests.stand_ins import Instead

CPU = torch.device("cpu")
CACHE = 2**16


@pytest.fixture(autouse=True)
def small_caches(instead: Instead) -> None:
    """Caches so small that buffers of several times their size are made at once, and matrices of
    so few rows that the caches hold several."""
    known = cache_bytes

    def held(place: torch.device) -> tuple[int, str]:
        return known(place) if place.type == "cuda" else (CACHE, "a test")

    instead(cache_bytes=held, ceiling_rows=16)


def taking(*seconds: float, labels: tuple[str, ...] = ()) -> Callable[..., Measured]:
    """A meter by which every call takes these samples."""

    def meter(call: Callable[[], Any], **_: Any) -> Measured:
        call()
        middle = sorted(seconds)[len(seconds) // 2]
        return Reading("latency", middle, "s", seconds, {"labels": [*labels], "threads": 2})

    return meter


def written(folder: Path, figures: list[Figure]) -> Path:
    path = folder / "mine.toml"
    path.write_text(text('A "machine"', "cpu", figures))
    return path


def test_the_file_is_a_board_whose_rates_follow_from_the_fastest_sample(tmp_path: Path) -> None:
    """A preempted sample is longer, and changes no rate; products end with the first side that
    takes so long."""
    meter = Within(10.0, taking(0.3, 0.1, 0.2, labels=("preempted",)), lambda: 0.0)
    figures, missing = measured(CPU, meter)
    name, said = from_system(CPU, Host())
    found = board(str(written(tmp_path, [*figures, *said])))
    assert not missing and name and found.title == 'A "machine"'
    assert found["kernel_time"] == pytest.approx(0.1 / CHAIN, rel=1e-3)
    assert found["memory_bandwidth"] == pytest.approx(2 * 4 * CACHE / 0.1, rel=1e-3)
    assert found["l2_bandwidth"] == pytest.approx(CACHE / 2 / 0.1, rel=1e-3)
    assert found["allocation"] == pytest.approx(4 * CACHE / 0.1, rel=1e-3)
    assert found["selection"] == pytest.approx(CACHE / 32 / 0.1, rel=1e-3)
    for dtype in TYPES:
        side = 256
        assert found[f"matrix.{dtype}"] == pytest.approx(side**2 * (2 * side - 1) / 0.1, rel=1e-3)
        scores = CACHE / 4 / DTYPES[dtype].itemsize
        assert found[f"narrow.{dtype}"] == pytest.approx(scores * 127 / 0.1, rel=1e-3)
    assert {one.split(".")[0] for one in found.figures} <= {*UNITS} and set(BY_DTYPE) <= {
        one.split(".")[0] for one in found.figures
    }
    labels = {figure: one.label for figure, one in found.figures.items()}
    assert labels["special"] == "measured" and labels["memory_bytes"] == "system"
    assert (found.kind, found["l2_bytes"], labels["l2_bytes"]) == ("cpu", CACHE, "measured")
    assert "samples: 3, of which the fastest; threads: 2" in found.figures["matrix.fp32"].source


@pytest.mark.parametrize(("own", "held"), [(CACHE, CACHE), (CACHE // 4, CACHE // 4), (1, CACHE)])
def test_a_cache_that_others_share_is_as_large_as_what_is_read_quickly(own: int, held: int) -> None:
    """A matrix beyond the share takes four times as long for each byte."""

    def meter(call: Any, **_: Any) -> Measured:
        size = 4 * call.__defaults__[0].numel()
        seconds = size * (1.0 if size <= own else 4.0)
        return Reading("latency", seconds, "s", (seconds / 9, seconds, seconds), {"labels": []})

    found = board_file.cache_held(CPU, meter)
    assert isinstance(found, Figure) and found.value == held


def test_a_rate_that_a_slow_clock_changed_is_left_out_with_its_reason() -> None:
    figures, missing = measured(CPU, Within(10.0, taking(0.1, labels=("throttled",)), lambda: 0.0))
    assert not figures and "the timed call was throttled" in missing["matrix.bf16"]


def test_a_gpu_has_multiprocessors(monkeypatch: pytest.MonkeyPatch) -> None:
    about = SimpleNamespace(
        name="GPU", multi_processor_count=7, total_memory=8, clock_rate=9, L2_cache_size=10
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda place: about)
    name, figures = from_system(torch.device("cuda"), Host())
    found = {one.name: one.value for one in figures}
    assert name == "GPU"
    assert found == {"sms": 7, "memory_bytes": 8, "clock": 9e3, "l2_bytes": 10}


def test_a_rate_of_one_thread_is_multiplied_by_the_number_of_threads() -> None:
    """So that all rates of arithmetic are those of one machine; bytes do not grow with threads."""
    several, one = (
        {
            figure.name: figure
            for figure in measured(CPU, Within(10.0, taking(0.1, labels=labels), lambda: 0.0))[0]
        }
        for labels in ((), (ONE_THREAD,))
    )
    for name in ("matrix.fp32", "narrow.fp32", "vector.bf16", "special", "selection"):
        assert one[name].value == pytest.approx(2 * several[name].value)
        assert "threads: 1, the rate times 2 threads" in one[name].source
    for name in ("memory_bandwidth", "l2_bandwidth", "allocation", "kernel_time"):
        assert one[name].value == several[name].value


def test_no_call_is_timed_after_the_seconds() -> None:
    now = iter((0.0, 1.0, 9.9))
    meter = Within(10.0, taking(0.1), lambda: next(now))
    assert isinstance(meter(lambda: None, device=CPU), Reading)
    late = meter(lambda: None, device=CPU)
    assert isinstance(late, Unavailable) and "the 10 seconds of --seconds had passed" in late.reason


def test_the_command_writes_a_board_that_table_takes(tmp_path: Path, instead: Instead) -> None:
    quick = Within(10.0, taking(0.1), lambda: 0.0)
    instead(calibrating=lambda seconds: quick)
    path, run, both = tmp_path / "mine.toml", CliRunner().invoke, complete()
    asked = ["calibrate", "-o", str(path), "--device", "cpu"]
    assert (result := run(both, asked)).exit_code == 0, result.output
    words = ["table", "gdn", "--board", str(path), "--dtype", "bf16", "--l", "7"]
    result = run(both, [*words, "--columns", "mixer,floor,bound,predicted_time,predicted_by"])
    assert "board mine" in result.output and "measured; system (" in result.output
    assert "predicted: of the modules gated-deltanet recurrent" in " ".join(result.output.split())
    for typed, said in (
        (asked, "exists already"),
        (["calibrate", "-o", str(tmp_path / "none" / "mine.toml")], "there is no folder"),
        (["calibrate", "-o", "mine.json"], "ends in .toml"),
        ([*asked, "--force", "--seconds", "61"], "at most 60"),
    ):
        assert said in str(run(both, typed).exception)
