"""Does `compare` match records of files with their partners, and name the records without one?"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from profiler.compare.records import GAINS, compare_files, file_names, medians
from profiler.compare.report import document
from profiler.compare.rows import Comparison
from profiler.records.measurement import Measurement
from profiler.records.reading import MeasureError, Reading
from profiler.records.store import append
from tests.printing import printed
from tests.recorded import recorded

SAMPLES = tuple(1e-3 * (1 + 0.001 * (17 * k % 40)) for k in range(40))
"""Seconds: 1 ms to 1.039 ms, in an order in which none resembles the one before it."""


def timed(
    l: int = 8, scale: float = 1.0, implementation: str = "fft", **fields: Any
) -> Measurement:
    """ME at a length, as many times slower."""
    samples = tuple(scale * each for each in SAMPLES)
    median = sorted(samples)[20]
    reading = Reading(
        "latency", median, "s", samples, {"p20": 0, "p80": 1, "n": 40, "blocks": [1] * 40}
    )
    memory = Reading("peak_memory", 64 * l, "B", (64.0 * l,), {"agree": True})
    readings = {"latency": reading, "peak_memory": memory}
    made = recorded("me", implementation, {"b": 1, "l": l, "d": 4}, readings=readings)
    return replace(made, **fields)


def written(path: Path, *records: Measurement) -> Path:
    for number, record in enumerate(records):
        append(path, replace(record, id=f"{path.name}-{number}"))
    return path


def test_a_copy_is_not_compared_with_what_it_copies(tmp_path: Path) -> None:
    a, b = written(tmp_path / "a.jsonl", timed(8), timed(16)), tmp_path / "b.jsonl"
    b.write_bytes(a.read_bytes())
    append(b, timed(32))
    with pytest.raises(MeasureError, match=r"a\.jsonl and b\.jsonl have 2 records in common"):
        compare_files([a, b])


def test_a_point_is_compared_with_its_partner(tmp_path: Path) -> None:
    a = written(tmp_path / "a.jsonl", timed(8), timed(16))
    b = written(tmp_path / "b.jsonl", timed(16, 2.0), timed(8, 1.001))
    made, problems = compare_files([a, b])
    assert problems == []
    latency = {row.point: row.verdict for row in made.rows if row.quantity == "latency"}
    same, slower = (
        latency[f"me fft (b = 1, l = {l}, d = 4, fp32, training, cpu)"] for l in (8, 16)
    )
    assert not same.differs
    assert slower.differs and slower.ratio == pytest.approx(2.0)
    assert slower.ci_low is not None and slower.ci_high is not None
    assert slower.ci_low < 2.0 < slower.ci_high
    assert (slower.first, slower.second) == ("a.jsonl", "b.jsonl")
    said = "2 points are too few for a test over all points: 6 are needed"
    assert latency["all 2 points"].refused == said
    assert not any(r.verdict.differs for r in made.rows if r.quantity == "peak_memory")
    assert "not in turns" in printed(document(made), "rich")


def test_an_interval_of_two_medians_holds_at_the_level() -> None:
    """With n samples each, the interval of a median is exact, and that of the ratio the wider."""
    chance, missed = random.Random(5), 0
    for _ in range(500):
        x, y = ([chance.lognormvariate(0, 0.5) for _ in range(25)] for _ in range(2))
        blocks = {"blocks": [1] * 25}
        first, second = (Reading("latency", sorted(v)[12], "s", tuple(v), blocks) for v in (x, y))
        missed += medians("a", "b", first, second, 0.05, 1).differs
    assert missed <= 25  # 5 % of 500: medians of both are 1


def test_over_many_points_a_tendency_is_tested(tmp_path: Path) -> None:
    a = written(tmp_path / "a.jsonl", *(timed(l) for l in range(2, 10)))
    b = written(tmp_path / "b.jsonl", *(timed(l, 1.001 + 0.0005 * l) for l in range(2, 10)))
    made, _ = compare_files([a, b])
    (over_all,) = (row.verdict for row in made.rows if row.point == "all 8 points")
    assert over_all.differs and over_all.p == pytest.approx(2 / 2**8)
    single = [r.verdict for r in made.rows if r.point.startswith("me") and r.quantity == "latency"]
    assert not any(verdict.differs for verdict in single)


def test_records_without_a_partner_are_told(tmp_path: Path) -> None:
    a = written(tmp_path / "a.jsonl", timed(8), *(timed(l) for l in range(20, 28)))
    b = written(tmp_path / "b.jsonl", timed(8), timed(8), timed(8, implementation="toeplitz"))
    made, _ = compare_files([a, b])
    alone = [note for note in made.notes if "without a partner" in note]
    assert alone[0].startswith("8 records of a.jsonl without a partner in b.jsonl: me fft (b = 1")
    assert alone[0].endswith(" and 3 more")
    assert "2 records of b.jsonl" in alone[1]
    assert "repetition 2" in alone[1] and "me toeplitz" in alone[1]


def test_other_machines_are_told(tmp_path: Path) -> None:
    a = written(tmp_path / "a.jsonl", timed(8, environment={"cpu": "One", "threads": 2}))
    b = written(tmp_path / "b.jsonl", timed(8, environment={"cpu": "Other", "threads": 2}))
    made, _ = compare_files([a, b])
    assert "a.jsonl and b.jsonl differ in cpu: One and Other" in made.notes


def test_too_few_samples_are_refused_with_the_number_that_is_needed(tmp_path: Path) -> None:
    few = Reading("latency", 1e-3, "s", (1e-3, 1.1e-3, 1.2e-3), {})
    a = written(tmp_path / "a.jsonl", timed(8))
    b = written(tmp_path / "b.jsonl", timed(8, readings={"latency": few}))
    made, _ = compare_files([a, b])
    assert made.rows[0].verdict.refused == "1 block is too few: 7 are needed"


def test_values_that_are_not_positive_have_no_ratio() -> None:
    one, none = (Reading("energy_net", 1.0, "J", (v, *[1.0] * 9), {}) for v in (1.0, -0.1))
    assert medians("a", "b", one, none, 0.05, 1).refused == "a ratio needs values above zero"


@pytest.mark.parametrize("label", ["preempted", "throttled", "shared device"])
def test_what_was_disturbed_is_compared_with_nothing(label: str) -> None:
    """As old records keep it, whatever its interval."""
    fine = timed().readings["latency"]
    held = replace(fine, details={**fine.details, "labels": [label]})
    assert medians("a", "b", fine, fine, 0.05, 1).ratio == 1
    found = medians("a", "b", fine, held, 0.05, 1)
    assert (found.ratio, found.refused) == (None, f"b: it is labelled {label}")


def busy(seconds: float, low: float, high: float, *labels: str) -> Reading:
    ends = {"ci_low": low, "ci_high": high, "labels": ["preempted", *labels], "grade": "busy"}
    return Reading("latency", seconds, "s", (seconds, seconds, high), ends)


@pytest.mark.parametrize("low", [1.9e-3, 0.0])
def test_of_a_busy_time_no_direction_is_claimed(tmp_path: Path, low: float) -> None:
    """Six points, each twice as slow, in either order of the files; a lower end may be 0."""
    lengths = (8, 16, 32, 64, 128, 256)
    a = written(tmp_path / "a.jsonl", *map(timed, lengths))
    slow = [replace(timed(l), readings={"latency": busy(2e-3, low, 2.6e-3)}) for l in lengths]
    b = written(tmp_path / "b.jsonl", *slow)
    for files in ([a, b], [b, a]):
        made, _ = compare_files(files)
        verdicts = [row.verdict for row in made.rows if row.quantity == "latency"]
        assert [(v.differs, v.ci_low, v.refused) for v in verdicts] == [(False, None, "")] * 6
        assert all(v.ratio is not None for v in verdicts)
        assert printed(document(made), "markdown").count("busy: no claim") == 6
        assert printed(document(made), "markdown").count("≈ 2 ms (busy)") == 6


def test_times_of_one_thread_and_of_several_have_no_ratio() -> None:
    one, several = busy(2e-3, 1e-3, 3e-3, "one thread"), busy(1e-3, 9e-4, 2e-3)
    why = "only the time of {} was taken on one thread"
    assert medians("a", "b", one, several, 0.05, 1).refused == why.format("a")
    assert medians("a", "b", several, one, 0.05, 1).refused == why.format("b")
    assert medians("a", "b", one, one, 0.05, 1).ratio == 1


# Energies


TRIALS = tuple(1.0 + 0.001 * k for k in range(8))
"""Joules a call, one a trial."""


def joules(
    scale: float, board: str | None, l: int = 8, trials: int = 8, **details: float
) -> Measurement:
    """A record of energy by a board's sensor, whose gain may be off by 5 %."""
    samples = tuple(scale * each for each in TRIALS[:trials])
    reading = Reading("energy", samples[0], "J", samples, {"systematic": 0.05, **details})
    environment = {"gpu": {"uuid": board} if board else {}}
    return timed(l, readings={"energy": reading}, environment=environment)


def energies_of(tmp_path: Path, first: list[Measurement], second: list[Measurement]) -> Comparison:
    pair = [written(tmp_path / "a.jsonl", *first), written(tmp_path / "b.jsonl", *second)]
    return compare_files(pair)[0]


def test_energies_of_one_board_are_compared_by_their_trials(tmp_path: Path) -> None:
    """8 of each: of 2.5 % each side, the medians' intervals are from the least to the largest."""
    made = energies_of(tmp_path, [joules(1.0, "GPU-1")], [joules(1.02, "GPU-1")])
    (verdict,) = (row.verdict for row in made.rows)
    assert verdict.ratio == pytest.approx(1.02)
    assert verdict.ci_low == pytest.approx(1.02 * 1.0 / 1.007)
    assert verdict.ci_high == pytest.approx(1.02 * 1.007 / 1.0)
    assert verdict.differs and GAINS not in made.notes


def test_an_error_that_trials_share_widens_the_interval(tmp_path: Path) -> None:
    """Of one board, whose gain cancels."""
    shaky = joules(1.02, "GPU-1", common_error=0.02)
    made = energies_of(tmp_path, [joules(1.0, "GPU-1")], [shaky])
    (verdict,) = (row.verdict for row in made.rows)
    assert verdict.ci_low == pytest.approx(1.02 / 1.007 / 1.02)
    assert not verdict.differs


@pytest.mark.parametrize("boards", [("GPU-1", "GPU-2"), ("GPU-1", None), (None, None)])
def test_gains_of_two_boards_widen_the_interval(
    tmp_path: Path, boards: tuple[str | None, str | None]
) -> None:
    made = energies_of(tmp_path, [joules(1.0, boards[0])], [joules(1.02, boards[1])])
    (verdict,) = (row.verdict for row in made.rows)
    assert verdict.ci_low == pytest.approx(1.02 / 1.007 * 0.95 / 1.05)
    assert verdict.ci_high == pytest.approx(1.02 * 1.007 * 1.05 / 0.95)
    assert not verdict.differs and GAINS in made.notes
    x, y = (Reading("energy", s, "J", tuple(s * t for t in TRIALS), {}) for s in (1.0, 1.2))
    far = medians("a", "b", x, y, 0.05, 1, (0.05, 0.05))
    assert far.differs
    unknown = medians("a", "b", x, y, 0.05, 1, (0.0, 1.2))
    assert unknown.refused == "an interval of energy reaches down to zero"


def test_five_trials_of_energy_are_too_few_for_two_files(tmp_path: Path) -> None:
    found = [[joules(scale, "GPU-1", trials=5)] for scale in (1.0, 2.0)]
    (row,) = energies_of(tmp_path, *found).rows
    assert row.verdict.refused == "5 trials are too few: 7 are needed"


def test_a_tendency_over_points_is_no_gain_of_a_sensor(tmp_path: Path) -> None:
    """Eight points whose energies all differ by 2 %: of one board, and of two."""
    one = energies_of(
        tmp_path,
        [joules(1.0, "GPU-1", l) for l in range(2, 10)],
        [joules(1.02, "GPU-1", l) for l in range(2, 10)],
    )
    (over_all,) = (row.verdict for row in one.rows if row.point == "all 8 points")
    assert over_all.differs
    folder = tmp_path / "two"
    folder.mkdir()
    two = energies_of(
        folder,
        [joules(1.0, "GPU-1", l) for l in range(2, 10)],
        [joules(1.02, "GPU-2", l) for l in range(2, 10)],
    )
    assert not [row for row in two.rows if row.point.startswith("all")]


# What is left out


def test_failed_measurements_are_told_and_no_partners(tmp_path: Path) -> None:
    lost = timed(16, readings={}, failure={"kind": "out of memory"})
    a = written(tmp_path / "a.jsonl", timed(8), lost)
    b = written(tmp_path / "b.jsonl", timed(8), timed(16))
    made, _ = compare_files([a, b])
    assert any(
        "measurements of a.jsonl that failed: me fft (b = 1, l = 16" in n for n in made.notes
    )
    assert any("1 record of b.jsonl without a partner" in note for note in made.notes)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (
            ["a.jsonl"],
            "holds no measurements taken in turns, as costmodel compare -o writes: give a",
        ),
        (["a.jsonl", "a.jsonl"], "a.jsonl is given twice"),
        (["a.jsonl", "b.jsonl", "b.jsonl"], "b.jsonl is given twice"),
        (
            ["a.jsonl", "b.jsonl"],
            r"no measurement of one mixer at equal sizes: a.* has .* b.* has .*: measure the same",
        ),
    ],
)
def test_files_that_cannot_be_compared(tmp_path: Path, names: list[str], said: str) -> None:
    written(tmp_path / "a.jsonl", timed(8))
    written(tmp_path / "b.jsonl", timed(9))
    with pytest.raises(MeasureError, match=said):
        compare_files([tmp_path / name for name in names])


def test_a_cut_off_line_is_told(tmp_path: Path) -> None:
    a = written(tmp_path / "a.jsonl", timed(8))
    b = written(tmp_path / "b.jsonl", timed(8))
    with b.open("a") as file:
        file.write('{"schema": 1, "id"')
    made, (problem,) = compare_files([a, b])
    assert "b.jsonl: line 2 is cut off" in problem
    assert len(made.rows) == 2


def test_files_of_one_name_are_told_apart() -> None:
    assert file_names([Path("x/one/a.jsonl"), Path("x/two/a.jsonl")]) == [
        "one/a.jsonl", "two/a.jsonl",
    ]  # fmt: skip


# Rounds


def of_rounds(run: str, name: str, values: list[float], **fields: Any) -> Measurement:
    details = {"comparison": run, "candidate": name, "p20": 0, "p80": 1, "n": len(values)}
    latency = Reading("latency", sorted(values)[len(values) // 2], "s", tuple(values), details)
    return timed(8, readings={"latency": latency}, implementation=name.split()[1], **fields)


def test_rounds_of_compare_are_compared_again(tmp_path: Path) -> None:
    wobble = [1e-3 * (1 + 0.5 * (k % 5)) for k in range(10)]
    first = of_rounds("run", "me fft", wobble)
    second = of_rounds("run", "me toeplitz", [1.01 * value for value in wobble])
    made, _ = compare_files([written(tmp_path / "a.jsonl", first, second)])
    verdict = made.rows[0].verdict
    assert verdict.differs and verdict.ratio == pytest.approx(1.01)  # 1 % where runs vary by 200 %
    assert made.rows[1].verdict.refused == "me fft: was not measured"
    halves = [written(tmp_path / "b.jsonl", first), written(tmp_path / "c.jsonl", second)]
    assert compare_files(halves)[0].rows[0].verdict == verdict


def test_a_candidate_with_fewer_rounds_is_not_paired(tmp_path: Path) -> None:
    records = [
        of_rounds("run", "me fft", [1e-3] * 4),
        of_rounds("run", "me toeplitz", [1e-3 + 1e-5 * k for k in range(10)]),
    ]
    made, _ = compare_files([written(tmp_path / "a.jsonl", *records)])
    assert made.rows[0].verdict.refused == "me fft: only 4 of 10 rounds measured it"


def swept(round_: int, turn: int, implementation: str, seconds: float, l: int = 8) -> Measurement:
    latency = Reading("latency", seconds, "s", (seconds,), {})
    place = {"round": round_, "turn": turn, "order_seed": 0}
    return timed(
        l, readings={"latency": latency}, implementation=implementation, sweep=place,
        counts={"seed": 0},
    )  # fmt: skip


def test_pairs_of_rounds_of_a_sweep_are_compared_without_drift(tmp_path: Path) -> None:
    records, now = [], 0
    for round_ in range(12):
        order = ["fft", "toeplitz"] if round_ % 2 == 0 else ["toeplitz", "fft"]
        for turn, name in enumerate(order):
            now += 1
            cost = {"fft": 1e-3, "toeplitz": 1.5e-3}[name]
            records.append(swept(round_, turn, name, cost * (1 + 0.2 * now)))
    records.append(swept(12, 0, "fft", 1.0))  # no way back: it is in no pair
    made, _ = compare_files([written(tmp_path / "a.jsonl", *records)])
    (row,) = made.rows
    assert row.verdict.pairs == 6
    assert row.verdict.ratio == pytest.approx(1.5) and row.verdict.differs
    assert row.point == "b = 1, l = 8, d = 4, fp32, training, cpu, seed 0"


def test_rounds_of_one_thread_and_of_several_are_not_compared(tmp_path: Path) -> None:
    """On a busy machine one candidate may be timed on one thread: its slowness may be that of the
    thread alone. Candidates that are all timed on one thread are compared."""
    details = {"grade": "busy", "labels": ["preempted", "one thread"]}
    records = [
        swept(k, 0, name, cost * (1 + 0.1 * k))
        for k in range(12)
        for name, cost in (("fft", 1e-3), ("toeplitz", 1.5e-3))
    ]
    alone = [
        replace(r, readings={"latency": replace(r.readings["latency"], details=details)})
        for r in records
    ]
    mixed = [
        y if x.implementation == "toeplitz" else x for x, y in zip(records, alone, strict=True)
    ]
    (row,) = compare_files([written(tmp_path / "mixed.jsonl", *mixed)])[0].rows
    assert row.verdict.refused.startswith("me toeplitz: its times were taken on one thread, and")
    (row,) = compare_files([written(tmp_path / "alone.jsonl", *alone)])[0].rows
    assert row.verdict.differs and row.marks == ("busy, one thread",) * 2


def test_a_time_of_one_sample_leaves_medians_to_the_other_candidates(tmp_path: Path) -> None:
    """One sample is no disturbance: the fastest tenth is for candidates beside a busy one."""
    once = {"grade": "busy", "labels": ["1 sample"]}
    records = []
    for k in range(12):
        median = swept(k, 0, "fft", 1e-3)
        fast = (0.5e-3,) * 2 + (1e-3,) * 7
        latency = replace(median.readings["latency"], samples=fast)
        records.append(replace(median, readings={"latency": latency}))
        single = swept(k, 1, "toeplitz", 2e-3)
        latency = replace(single.readings["latency"], details=once)
        records.append(replace(single, readings={"latency": latency}))
    (row,) = compare_files([written(tmp_path / "a.jsonl", *records)])[0].rows
    assert row.verdict.ratio == pytest.approx(2.0)


def test_a_sweep_of_two_rounds_is_too_short(tmp_path: Path) -> None:
    records = [swept(k, 0, name, 1e-3) for k in range(2) for name in ("fft", "toeplitz")]
    made, _ = compare_files([written(tmp_path / "a.jsonl", *records)])
    assert "6 pairs of rounds are needed" in made.rows[0].verdict.refused


def test_processes_of_a_sweep_are_compared_each_as_one(tmp_path: Path) -> None:
    """Two rounds in each of six: six ratios, whatever the rounds say; a process that one of them
    lacks is left out."""
    factors = {p: 1.1 + 0.01 * p for p in range(7)}
    records = [
        replace(record, sweep={**record.sweep, "process": p} if p else record.sweep)
        for p in range(7)
        for record in (
            swept(0, 0, "fft", 1.0), swept(0, 1, "toeplitz", factors[p]),
            swept(1, 0, "toeplitz", factors[p]), swept(1, 1, "fft", 1.0),
        )
        if not (p == 6 and record.implementation == "fft" and record.sweep["round"] == 1)
    ]  # fmt: skip
    made, _ = compare_files([written(tmp_path / "a.jsonl", *records)])
    (row,) = (row for row in made.rows if row.quantity == "latency")
    assert (row.verdict.pairs, row.verdict.of, row.verdict.differs) == (6, "processes", True)
    assert row.verdict.ratio == pytest.approx(1.125, rel=1e-4)
    assert "second slower\n" in printed(document(made), "rich", width=200)


def test_a_verdict_of_one_process_says_so(tmp_path: Path) -> None:
    rounds = [
        swept(k, turn, name, seconds)
        for k in range(12)
        for turn, (name, seconds) in enumerate((("fft", 1.0), ("toeplitz", 1.1 + 0.001 * k)))
    ]
    made, _ = compare_files([written(tmp_path / "a.jsonl", *rounds)])
    assert "second slower, in this process" in printed(document(made), "rich", width=200)


def test_a_round_that_was_measured_twice_is_compared_with_nothing(tmp_path: Path) -> None:
    rounds = [swept(k, 0, name, 1.0) for k in range(12) for name in ("fft", "toeplitz")]
    made, _ = compare_files([written(tmp_path / "a.jsonl", *rounds, swept(3, 0, "fft", 9.0))])
    (row,) = (row for row in made.rows if row.quantity == "latency")
    assert "round 4 was measured twice" in row.verdict.refused
