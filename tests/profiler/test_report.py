"""Do measurements and ladders print the same content in every format, with a reason for each gap?

The golden files are written again by `REWRITE_GOLDEN=1 pytest tests/profiler/test_report.py`; read
the difference before it is kept.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from profiler.reconcile import ladder
from profiler.reconcile.levels import HeldMemory, Ladder
from profiler.reconcile.report import document as reconciled
from profiler.records.measurement import Measurement
from profiler.records.words import scaled
from profiler.run.caveats import contention, no_quiet_time
from tests import printing
from tests.goldens import GOLDEN, hold
from tests.recorded import ATTENTION, LAUNCH_BOUND, UNTIMED, dispatch, peer, reading, recorded
from tests.typesetting import compiled, needs_latex

COMMAND = "costmodel reconcile --from results.jsonl"
FORMATS = {"rich": "txt", "markdown": "md", "latex": "tex", "csv": "csv", "json": "json"}
RECORDS = [ATTENTION, LAUNCH_BOUND, UNTIMED]


def ladders_of(*records: Measurement) -> list[Ladder]:
    """The ladders of recorded measurements, all of which have one."""
    found, problems = ladder.ladders(records)
    assert problems == []
    return found


@pytest.mark.parametrize("format_", FORMATS)
def test_measurements_are_printed_as_the_golden_file(format_: str) -> None:
    printed = printing.measurements(RECORDS, format_, command=COMMAND)
    hold(f"measuring/measurements.{FORMATS[format_]}", printed)


@pytest.mark.parametrize("format_", FORMATS)
def test_ladders_are_printed_as_the_golden_file(format_: str) -> None:
    hold(
        f"measuring/ladders.{FORMATS[format_]}",
        printing.ladders(ladders_of(*RECORDS), format_, command=COMMAND),
    )


LOST = structs.replace(
    UNTIMED, id="lost", readings={}, counts={"seed": 0}, environment={},
    reasons={"measurement": "worn out"}, failure={"kind": "call failed"},
)  # fmt: skip


def test_what_failed_is_a_row_with_its_reason() -> None:
    assert "(1) worn out" in printing.measurements([LOST, ATTENTION])
    rows = list(csv.DictReader(StringIO(printing.measurements([ATTENTION, LOST], "csv"))))
    assert [(row["reading"], row["reason"]) for row in rows if row["reason"] == "worn out"] == [
        ("measurement", "worn out")
    ]
    lines = reconciled(ladders_of(ATTENTION), [LOST])
    said = printing.printed(lines)
    assert re.search(rf"{LOST.mixer} +{LOST.implementation}.* - \((\d+)\)\n", said)
    assert ") worn out\n" in said
    *_, last = csv.DictReader(StringIO(printing.printed(lines, "csv")))
    assert (last["mixer"], last["rung"], last["reason"]) == (LOST.mixer, "", "worn out")
    (kept,) = json.loads(printing.printed(lines, "json"))["failures"]
    assert kept["reasons"] == {"measurement": "worn out"}


def test_of_an_estimate_the_ends_of_the_interval_are_shown() -> None:
    timed = ATTENTION.readings["latency"]
    ends = {"grade": "busy", "labels": ["preempted"], "ci_low": 1.5e-6, "ci_high": 2.5e-3}
    busy = structs.replace(timed, details={**timed.details, **ends})
    said = printing.measurements(
        [structs.replace(ATTENTION, readings={"latency": busy})], "markdown"
    )
    assert "| 1.5 µs - 2.5 ms |" in said
    single = structs.replace(timed, samples=timed.samples[:1])
    single = structs.replace(
        single, details={**busy.details, "labels": ["1 sample"], "ci_low": None}
    )
    said = printing.measurements(
        [structs.replace(ATTENTION, readings={"latency": single})], "markdown"
    )
    assert "(1 sample)" in said and "] 1 sample" in said


def test_the_ladder_that_json_prints_has_the_keys_of_schema_1() -> None:
    printed = json.loads(printing.ladders(ladders_of(*RECORDS), "json"))
    assert printed.keys() == {"schema", "summary", "ladders"} and printed["schema"] == 1
    attention, bound, untimed = printed["ladders"]
    for made in printed["ladders"]:
        assert made.keys() >= {
            "mixer", "implementation", "form", "phase", "sizes", "rungs", "causes", "unexplained",
            "peers", "reasons",
        }  # fmt: skip
        assert list(made["rungs"]) == ["1", "2", "3", "4", "5"]
        assert made["rungs"]["4"] is None and "hardware counters" in made["reasons"]["4"]
        assert made["unexplained"].keys() == {"1-2", "2-3"}
        for cause in made["causes"]:
            assert cause.keys() >= {"from", "to", "name", "counts"}
        for figure in made["peers"]:
            assert figure.keys() >= {"name", "predicted", "printed", "causes"}
    assert [cause["name"] for cause in attention["causes"]] == ["dense", "safe-softmax"]
    nothing = {"mul": 0, "add": 0, "div": 0, "exp": 0, "other": {}}
    assert attention["unexplained"] == {"1-2": nothing, "2-3": nothing}
    assert attention["rungs"]["3"] == {
        "mul": 3072, "add": 2864, "div": 256, "exp": 128, "other": {"compare": 112},
    }  # fmt: skip
    assert attention["causes"][1]["counts"] == nothing | {"add": 128, "other": {"compare": 112}}
    assert attention["reasons"]["1-2"].startswith("each cause is the difference between two counts")
    assert [(p["name"], p["predicted"], p["printed"]) for p in attention["peers"]] == [
        ("torch", 6144, 6144), ("fvcore", 3072, 3072),
    ]  # fmt: skip
    assert bound["peers"][1]["printed"] is None
    assert untimed["rungs"]["5"]["latency_s"] is None
    assert untimed["reasons"]["latency_s"] == "the call failed while it was timed: out of memory"
    assert untimed["reasons"]["3"].startswith("incomplete: no counting rule for aten::_fft_r2c")


def test_every_null_that_json_prints_has_its_reason_under_the_same_key() -> None:
    for made in json.loads(printing.ladders(ladders_of(*RECORDS), "json"))["ladders"]:
        for holder, reasons in (
            (made["rungs"], made["reasons"]),
            (made["rungs"]["5"], made["reasons"]),
            *((figure, figure["reasons"]) for figure in made["peers"]),
        ):
            missing = {key for key, value in holder.items() if value is None}
            assert missing <= reasons.keys()
    cost = ladders_of(ATTENTION)[0].rungs["5"]
    for key in ("kernels", "weights_bytes", "peak_memory_bytes"):
        assert type(cost[key]) is int


def test_measurements_in_json_are_the_records() -> None:
    printed = json.loads(printing.measurements(RECORDS, "json"))
    assert printed == {"schema": 1, "measurements": [m.to_json() for m in RECORDS]}


def test_csv_is_a_table_whose_every_row_has_a_value_or_a_reason() -> None:
    for text in (
        printing.measurements(RECORDS, "csv"),
        printing.ladders(ladders_of(*RECORDS), "csv"),
    ):
        rows = list(csv.DictReader(StringIO(text)))
        assert rows
        for row in rows:
            assert None not in row and None not in row.values()
            assert bool(row["value"]) != bool(row["reason"])
    busy = {
        **ATTENTION.readings["latency"].details,
        "grade": "busy",
        "ci_low": 1e-4,
        "ci_high": 2e-4,
    }
    timed = structs.replace(ATTENTION.readings["latency"], details=busy)
    record = structs.replace(ATTENTION, readings={**ATTENTION.readings, "latency": timed})
    header, *lines = csv.reader(StringIO(printing.measurements([record], "csv")))
    assert header[-4:] == ["reason", "ci_low", "ci_high", "grade"]
    graded = {line[7]: line[-4:] for line in lines if line[7] in ("latency", "kernels")}
    assert graded == {"latency": ["", "0.0001", "0.0002", "busy"], "kernels": [""] * 4}


def test_rates_are_effective_rates() -> None:
    (made,) = ladders_of(ATTENTION)
    cost = made.rungs["5"]
    assert cost["verdict"] == "comparable"
    assert cost["operations_per_s"] == pytest.approx(6432 / 0.000125)
    assert cost["bytes_per_s"] == pytest.approx(4 * (2 * 64 + 4 * 64) / 0.000125)
    assert cost["J_per_operation"] is None
    assert made.reasons["J_per_operation"] == made.reasons["energy_J"]


def test_energy_of_a_busy_device_is_divided_by_its_operations() -> None:
    joules = reading("energy", 0.5, "J", labels=["bursty load"])
    record = structs.replace(ATTENTION, readings={**ATTENTION.readings, "energy": joules})
    (made,) = ladders_of(record)
    assert made.rungs["5"]["J_per_operation"] == pytest.approx(0.5 / 6432)
    text = printing.ladders([made], "rich")
    assert "77.74 µJ" in text
    assert "energy: bursty load" in text and "bursty load: power came in bursts" in text


@pytest.mark.parametrize(("threads", "beside"), [(1, True), (2, False)])
def test_processor_time_stands_beside_wall_time_where_one_thread_runs(
    threads: int, beside: bool
) -> None:
    timed = ATTENTION.readings["latency"]
    timed = structs.replace(timed, details={**timed.details, "processor_s": 1.21e-4})
    record = structs.replace(
        ATTENTION,
        readings={**ATTENTION.readings, "latency": timed},
        environment={**ATTENTION.environment, "threads": threads},
    )
    text = printing.ladders(ladders_of(record), "markdown")
    assert ("| on a processor | 121 µs |" in text) is beside


def test_tensors_are_listed_in_every_format() -> None:
    (made,) = ladders_of(ATTENTION)
    for format_ in FORMATS:
        text = " ".join(printing.ladders([made], format_).split()).replace("\\_", "_")
        assert "masked_fill" in text and "A.exp" in text and "workspace" in text, format_
    lines = printing.ladders([made], "rich").splitlines()
    for words in ("listed", "rounding", "unexplained", "measured"):
        assert any(line.startswith(words) for line in lines), words


def test_watching_that_changes_the_peak_is_shown() -> None:
    peak = HeldMemory(derived=8, measured=20, listed=(), watched=16)
    (made,) = ladders_of(ATTENTION)
    made = structs.replace(made, memory={**made.memory, "peak": peak})
    assert (peak.difference, peak.unexplained) == (4, 16)
    assert "watching changed the peak by" in printing.ladders([made], "rich")


def test_a_record_without_a_list_says_so() -> None:
    """An earlier version wrote classes of bytes."""
    told = {"tensors_at_peak": reading("tensors_at_peak", 2112, "B", classes={"values": 2112})}
    (made,) = ladders_of(structs.replace(ATTENTION, readings={**ATTENTION.readings, **told}))
    assert made.memory["peak"].unexplained is None
    assert "no list of tensors in this old record" in made.memory["peak"].reason


def test_what_means_nothing_is_not_comparable_in_every_format() -> None:
    verdict = "not comparable: launch-bound, the device waits for the host most of the time"
    (made,) = ladders_of(LAUNCH_BOUND)
    assert made.rungs["5"]["verdict"] == made.reasons["5"] == verdict
    for rate in ("operations_per_s", "bytes_per_s", "J_per_operation"):
        assert made.rungs["5"][rate] is None
    for format_ in FORMATS:
        assert verdict in printing.ladders([made], format_), format_
    lines = printing.ladders([made], "rich").splitlines()
    for words in ("operations per second", "bytes per second", "energy per dispatched operation"):
        (line,) = (line for line in lines if words in line)
        assert f"{line[line.rindex('- (') + 2 :]} {verdict}" in lines


@pytest.mark.parametrize("format_", ["rich", "markdown", "latex"])
def test_every_dash_has_its_reason_below(format_: str) -> None:
    text = printing.measurements(RECORDS, format_)
    for reason in ("NVML: library not found", "CUPTI is not usable here", "out of memory",
                   "fvcore could not trace the call", "no counting rule for"):  # fmt: skip
        assert reason[1:] in text  # LaTeX begins a footnote with a capital


def test_what_a_label_does_to_a_time_is_said_where_its_name_does_not() -> None:
    latency = ATTENTION.readings["latency"]
    capped = structs.replace(
        latency, details={**latency.details, "labels": ["power-capped", "throttled"]}
    )
    found = structs.replace(ATTENTION, readings={**ATTENTION.readings, "latency": capped})
    text = printing.measurements([found, LAUNCH_BOUND], "rich")
    assert "latency power-capped: self-attention explicit" in text
    assert text.count("a chip lowers its clock, depending on the numbers in the data") == 1
    assert "a chip lowers its clock" not in printing.measurements(RECORDS, "rich")


def test_reasons_are_numbered_as_they_come_up() -> None:
    (line,) = (
        x for x in printing.measurements([UNTIMED], "rich").splitlines() if x.startswith("we")
    )
    marks = [part.split(")")[0] for part in line.split("- (")[1:]]
    assert marks == ["1", "1", "1", "2", "3", "4", "5", "6", "7", "7", "7"]


def test_what_peers_left_out_is_said_below_with_its_share() -> None:
    text = printing.measurements(RECORDS, "rich")
    assert "torch did not count in self-attention explicit: aten::div x1, aten::_softmax x1" in text
    assert "(21.0% of the time)" in text
    assert "(an unknown share of the time)" in text
    readings = {name: r for name, r in ATTENTION.readings.items() if name != "latency"}
    reasons = {**ATTENTION.reasons, "latency": "only counts were asked for"}
    untimed = structs.replace(ATTENTION, readings=readings, reasons=reasons)
    said = printing.measurements([untimed], "rich")
    assert "aten::_softmax x1" in said and not re.search(r"\([^()]* of the time\)", said)
    twice = printing.measurements([ATTENTION, structs.replace(ATTENTION, dtype="fp64")], "rich")
    assert "self-attention explicit (b = 1, l = 8, d = 8, n = 2, fp64): aten::div x1" in twice


HUGE = 123_456_789_012_345_678_901_234_567_890


@pytest.mark.parametrize("width", [None, 200, 80, 50])
def test_numbers_are_never_cut_rounded_or_left_out(width: int | None) -> None:
    record = recorded(
        "me", "toeplitz", {"b": 1, "l": 8, "d": 8},
        readings={"peak_memory": reading("peak_memory", 2**40, "B")},
        counts={"dispatch": dispatch(2, mul=HUGE), "peers": {"torch": peer(HUGE + 1, "flop", 0.5)}},
    )  # fmt: skip
    text = printing.measurements([record], "rich", width=width)
    for number in (f"{HUGE:,}", f"{HUGE + 1:,}", "1,099,511,627,776"):
        assert number in text
    assert f"{HUGE:,}" in printing.ladders(ladders_of(record), "rich", width=width)


@pytest.mark.parametrize("width", [120, 72, 60, 40])
def test_a_narrow_terminal_keeps_the_ladder_whole(width: int) -> None:
    text = printing.ladders(ladders_of(ATTENTION), "rich", width=width)
    assert max(map(len, text.splitlines())) <= width
    third = [line for line in text.splitlines() if "3 dispatched" in line] if width > 60 else [text]
    for number in ("3,072", "2,864", "256", "128", "112", "6,432"):
        assert any(number in line for line in third)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0, "J", "0 J"),
        (0.999_96, "s", "1 s"),
        (1.0, "s", "1 s"),
        (59.123_49, "s", "59.12 s"),
        (2.5e-9, "s", "2.5 ns"),
        (4e-13, "J", "0.4 pJ"),
        (1_234_567.0, "op/s", "1.235 Mop/s"),
        (6.7e14, "op/s", "670 Top/s"),
    ],
)
def test_measured_values_are_scaled(value: float, unit: str, text: str) -> None:
    assert scaled(value, unit) == text


def test_latex_says_how_it_was_made_and_escapes_what_it_prints() -> None:
    text = printing.measurements(RECORDS, "latex", command=COMMAND)
    assert text.splitlines()[0] == f"% {COMMAND}"
    assert "aten::\\_softmax" in text
    assert "125 $\\mu$s" in text
    assert "?s" not in text
    assert text.count(r"\caption{") == 2


def test_colour_marks_the_titles_alone() -> None:
    text = printing.measurements([ATTENTION], "rich", width=300, colour=True)
    assert text.startswith("\x1b[1mMeasured: forward pass")
    assert "\x1b" not in printing.measurements([ATTENTION], "rich")


@needs_latex
@pytest.mark.parametrize("name", ["measurements", "ladders"])
def test_latex_compiles_as_printed(name: str, tmp_path: Path) -> None:
    shutil.copy(GOLDEN / "measuring" / f"{name}.tex", tmp_path / "part.tex")
    assert "Float too large" not in compiled(tmp_path)


@pytest.mark.parametrize("format_", FORMATS)
def test_no_interval_is_a_dash_with_its_reason_in_every_format(format_: str) -> None:
    latency = ATTENTION.readings["latency"]
    few = "5 blocks are too few: 6 are needed"
    held = {**latency.details, "ci_low": None, "ci_high": None, "ci_missing": few}
    readings = {**ATTENTION.readings, "latency": structs.replace(latency, details=held)}
    unknown = structs.replace(ATTENTION, readings=readings)
    assert printing.measurements([unknown], format_)
    printed = printing.ladders(ladders_of(unknown), format_, width=200)
    assert few in printed.replace("\n", " ")


@pytest.mark.parametrize("label", ["preempted", "throttled", "shared device"])
def test_a_verdict_reads_labels(label: str) -> None:
    """A record that kept disturbed samples is not comparable, however narrow its interval is."""
    latency = ATTENTION.readings["latency"]
    tight = {"p20": latency.value, "p80": latency.value, "stop_rule": "median settled"}
    ends = {"ci_low": latency.value, "ci_high": latency.value}
    for labels, words in (([], ""), ([label], "not comparable: the device was disturbed while")):
        held = {**latency.details, **tight, **ends, "labels": labels}
        readings = {**ATTENTION.readings, "latency": structs.replace(latency, details=held)}
        assert contention(structs.replace(ATTENTION, readings=readings)).startswith(words)
        assert bool(contention(structs.replace(ATTENTION, readings=readings))) == bool(words)


def once(**details: Any) -> Measurement:
    """A measurement whose time has one sample, taken on a quiet device."""
    latency = ATTENTION.readings["latency"]
    held = {"grade": "busy", "labels": ["1 sample"], "stop_rule": "time cap", "n": 1, **details}
    single = structs.replace(latency, samples=latency.samples[:1], details=held)
    return structs.replace(ATTENTION, readings={**ATTENTION.readings, "latency": single})


def test_a_time_of_one_sample_is_not_comparable_and_was_not_disturbed() -> None:
    assert contention(once()) == (
        "not comparable: the time has one sample; a longer --seconds takes more"
    )
    assert no_quiet_time(once()) == ""
    both = ["1 sample", "preempted"]
    assert "disturbed while it was timed (preempted)" in contention(once(labels=both))
    assert no_quiet_time(once(labels=both)) == "the device was not quiet while it was timed"


def test_a_quiet_time_without_quantiles_shows_those_of_its_samples() -> None:
    latency = ATTENTION.readings["latency"]
    bare = structs.replace(latency, samples=(1e-3, 2e-3, 3e-3, 4e-3, 5e-3, 6e-3), details={})
    said = printing.measurements([structs.replace(ATTENTION, readings={"latency": bare})])
    assert "2 ms - 5 ms" in said


def test_advice_that_is_followed_already_is_not_given() -> None:
    latency = ATTENTION.readings["latency"]
    spread = structs.replace(latency, details={**latency.details, "p20": 1e-5, "p80": 1e-2})
    record = structs.replace(ATTENTION, readings={"latency": spread})
    assert "fewer threads (OMP_NUM_THREADS=1), a quieter machine" in contention(record)
    single = structs.replace(record, environment={**record.environment, "threads": 1})
    assert contention(single).endswith("; a quieter machine may help")
