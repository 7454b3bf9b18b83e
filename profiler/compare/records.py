"""Compares files of measurements, round by round or point by point.

Records of one run of `compare -o` are compared by their rounds, and so are the candidates of a
sweep at equal sizes, where a pair of rounds is one value. Of two files, the partner of a record is
the record of the same mixer, implementation, sizes, dtype, phase and kind of device in the other
file. Partners were not measured in turns, so a point is judged by the noise within each run: by the
intervals of both medians, made of the medians of blocks (`meters.intervals`). A drift between the
runs stays undetected. A busy time is an estimate whose error nobody knows: a pair with a busy time
has a ratio and no verdict, and the test over all points leaves the pair out.

The values of an energy are trials, each an independent window. The error of a sensor's gain is
equal in every trial of a board, so it cancels if both files are of one board. For two boards, or
unknown ones, it widens the interval, and such energies are not in the test over all points.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, product
from pathlib import Path

from msgspec.structs import replace

from profiler.compare.rows import (
    BUSY_TIMES,
    PROCESSES,
    Comparison,
    Row,
    details_of,
    exact,
    latency_rows,
    rows_of,
    runs_in,
)
from profiler.compare.verdict import (
    LEVEL,
    Verdict,
    location,
    location_interval,
    rounds_needed,
    signed_rank_p,
    too_few,
)
from profiler.meters.energy.protocol import DOWN_TO_ZERO, SYSTEMATIC
from profiler.meters.intervals import (
    block_medians,
    busy_estimate,
    median_interval,
    no_interval,
    processes_in,
)
from profiler.records.environments import environment_differences
from profiler.records.grades import (
    BUSY,
    ONE_THREAD,
    disturbed_by,
    grade_of,
    mark_of,
    mark_of_all,
    undisturbed,
)
from profiler.records.measurement import Measurement
from profiler.records.quantities import COMPARED
from profiler.records.reading import MeasureError, Reading
from profiler.records.words import options_words, sizes_words
from profiler.sweep.recorded import recorded

Key = tuple[str, str, str, str, str, str, str, str, int]
"""Mixer, implementation, form, sizes, dtype, phase, kind of device, options with the seed, and the
repetition."""

JOULES = tuple(each.reading for each in COMPARED if each.unit == "J")
"""The readings with the error of a sensor's gain."""

NOT_IN_TURNS = (
    "the files were measured one after the other, not in turns: the interval covers the noise "
    "within each run, while a drift between the runs biases every ratio"
)
GAINS = (
    "energies of different boards, or of boards without a known UUID: the intervals include "
    "the gain error of each sensor, which more trials cannot reduce"
)
SHOWN = 5
"""The number of records without a partner that are named."""


def compare_files(
    paths: Sequence[Path],
    level: float = LEVEL,
    tell: Callable[[str], object] = lambda sentence: None,
) -> tuple[Comparison, list[str]]:
    """Compare the files, and return the comparison and a sentence for each line without a record.

    One file, or files whose records are all of one run of `costmodel compare`, are compared round
    by round; else every two files are compared at their common points. `level` is the probability
    of a false difference; `tell` receives remarks on truncated lines of a file that was continued.

    Raises:
        StoreError: a file cannot be read or holds no record.
        MeasureError: one file without rounds, files without a point in common, a path given twice,
            or two files with a record in common.
    """
    read = [recorded([path], tell) for path in paths]
    problems = [text for _, sentences in read for text in sentences]
    records = [[r for r in found if not r.failure] for found, _ in read]
    names = file_names(paths)
    notes = [
        text for name, (found, _) in zip(names, read, strict=True) for text in failed(name, found)
    ]
    if len(paths) == 1 or of_one_run(records):
        together = by_rounds([record for found in records for record in found], level)
        if not together:
            raise MeasureError(
                f"{paths[0]} holds no measurements taken in turns, as costmodel compare -o writes: "
                "give a second file"
            )
        return Comparison(tuple(together), level, notes=tuple(notes)), problems
    rows: list[Row] = []
    notes.append(NOT_IN_TURNS)
    for (a, first), (b, second) in combinations(zip(names, records, strict=True), 2):
        if same := {record.id for record in first} & {record.id for record in second}:
            raise MeasureError(
                f"{a} and {b} have {len(same):,} records in common: give files of two separate "
                f"measurements"
            )
        rows += pointwise(a, b, first, second, level)
        if gains_in(first, second) and GAINS not in notes:
            notes.append(GAINS)
        notes += missing(a, b, first, second)
        notes += [f"{a} and {b} differ in {each}" for each in differing_facts(first, second)]
    if not rows:
        some = "; ".join(
            f"{name} has {point_words(next(iter(keyed(found))))}"
            for name, found in zip(names, records, strict=True)
            if found
        )
        raise MeasureError(
            f"the files share no measurement of one mixer at equal sizes: {some}: measure the same "
            "mixers and sizes for each file"
        )
    return Comparison(tuple(rows), level, notes=tuple(notes)), problems


def failed(name: str, records: Sequence[Measurement]) -> list[str]:
    """[A sentence that lists the failed measurements of the file `name`]; [] if there are none."""
    points = [point_words(key) for key in keyed([r for r in records if r.failure])]
    if not points:
        return []
    listed = "; ".join(points[:SHOWN]) + (
        f" and {len(points) - SHOWN} more" * (len(points) > SHOWN)
    )
    return [f"measurements of {name} that failed: {listed}"]


def by_rounds(records: Sequence[Measurement], level: float) -> list[Row]:
    """The rows of the comparisons within runs of `costmodel compare`, and within the blocks of
    sweeps (their records of one point, taken in rounds); [] for records of neither. `level`: the
    accepted probability of a false difference."""
    rows = [row for run in runs_in(records) for row in rows_of(run, level)]
    for point, block in blocks_in([r for r in records if "round" in r.sweep]).items():
        rows += sweep_rows(point, block, level)
    return rows


def blocks_in(records: Sequence[Measurement]) -> dict[str, list[Measurement]]:
    """A dict: point in words (`l = 128, fp32, training, cpu, seed 0`) -> its records, for the
    points with several records. Records of one point agree in the dtype, phase, kind of device,
    seed and options, and in the sizes that all records of the phase have."""
    shared: dict[str, set[str]] = {}
    for r in records:
        shared[r.phase] = shared.get(r.phase, set(r.sizes)) & set(r.sizes)
    found: dict[str, list[Measurement]] = {}
    for r in records:
        sizes = sizes_words({x: n for x, n in r.sizes.items() if x in shared[r.phase]})
        options = options_words(r.options)
        point = f"{sizes}, {r.dtype}, {r.phase}, {r.kind}, seed {r.counts.get('seed', 0)}{options}"
        found.setdefault(point, []).append(r)
    return {point: block for point, block in found.items() if len(block) > 1}


def sweep_rows(point: str, block: Sequence[Measurement], level: float) -> list[Row]:
    """Compare the latencies of a block (the records of one point of a sweep), and return a row for
    every two candidates; [] for fewer than two.

    With several processes, each gives one value per candidate: the mean of its rounds. With one
    process, each pair of rounds (0 and 1, 2 and 3, ...) gives one: the second round of a pair has
    the reverse order of the first. A candidate is refused (its rows have no ratio, but a reason) if
    a round was measured twice, or if its times are of one thread and not all compared times are.
    """
    by_round, failed = _by_round(block)
    if len(by_round) < 2:
        return []
    common = sorted(set.intersection(*(set(taken) for taken in by_round.values())))
    rounds = [taken[k] for taken in by_round.values() for k in common]
    busy = not all(map(undisturbed, rounds))
    several = not all(map(of_one_thread, rounds))
    for name, taken in by_round.items():
        if several and any(of_one_thread(taken[k]) for k in common):
            why = "its times were taken on one thread, and other compared times on several"
            failed.setdefault(name, why)

    def value(reading: Reading) -> float:
        """Seconds per call; if any candidate was disturbed, the low quantile for all of them."""
        if not busy:
            return reading.value
        return busy_estimate(reading.samples, reading.details.get("alone_s", ()), alone=True)[0]

    if any(processes_in(by_round[name][k]) > 1 for name in by_round for k in common):
        unit = PROCESSES
        values = by_process({name: [taken[k] for k in common] for name, taken in by_round.items()})
    else:
        unit = "pairs of rounds"
        pairs = [k for k in common if k % 2 == 0 and k + 1 in common]
        values = {
            name: [(value(taken[k]) + value(taken[k + 1])) / 2 for k in pairs]
            for name, taken in by_round.items()
        }
    marks = {name: mark_of_all(taken[k] for k in common) for name, taken in by_round.items()}
    return [replace(row, point=point) for row in latency_rows(values, level, failed, unit, marks)]


def _by_round(block: Sequence[Measurement]) -> tuple[dict[str, dict[int, Reading]], dict[str, str]]:
    """(candidate -> round, from 0 -> its latency, the last of two; candidate -> which round was
    measured twice, in words) of the records of one point. A candidate's name is `she conv (w = 4)`:
    mixer, implementation, and its values of the sizes that some records lack."""
    by_round: dict[str, dict[int, Reading]] = {}
    shared = set.intersection(*(set(r.sizes) for r in block))
    failed: dict[str, str] = {}
    for r in block:
        if "latency" in r.readings:
            own = sizes_words({x: n for x, n in r.sizes.items() if x not in shared})
            name = f"{r.mixer} {r.implementation}{f' ({own})' if own else ''}"
            taken = by_round.setdefault(name, {})
            if r.round in taken:
                failed[name] = f"round {r.round + 1} was measured twice"
            taken[r.round] = r.readings["latency"]
    return by_round, failed


def of_one_thread(timed: Reading) -> bool:
    """Whether a busy time was taken with one thread, of a call that usually has several."""
    return ONE_THREAD in timed.labels


def by_process(rounds: Mapping[str, Sequence[Reading]]) -> dict[str, list[float]]:
    """A dict: candidate -> seconds for each process that took all rounds of all candidates, in
    order of process numbers: the mean of the candidate's rounds there. `rounds`: candidate -> a
    reading for each round, whose detail `processes` lists the value in each process."""
    seconds = {
        name: [
            {int(each["process"]): float(each["value"]) for each in r.details.get("processes", ())}
            for r in readings
        ]
        for name, readings in rounds.items()
    }
    common = set.intersection(*(set(found) for each in seconds.values() for found in each))
    return {
        name: [statistics.fmean(found[p] for found in each) for p in sorted(common)]
        for name, each in seconds.items()
    }


def of_one_run(records: Sequence[Sequence[Measurement]]) -> bool:
    """Whether all records of all files are of one run of `compare`, whose rounds pair them."""
    runs = {details_of(record).get("comparison") for found in records for record in found}
    return len(runs) == 1 and None not in runs


def file_names(paths: Sequence[Path]) -> list[str]:
    """The shortest suffixes of the paths that distinguish the files; MeasureError if a path is
    given twice.

    >>> file_names([Path("x/one/a.jsonl"), Path("x/two/a.jsonl")])
    ['one/a.jsonl', 'two/a.jsonl']
    """
    for parts in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-parts:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    twice = next(path for k, path in enumerate(paths) if path in paths[:k])
    raise MeasureError(f"{twice} is given twice: give two different files")


def keyed(records: Sequence[Measurement]) -> dict[Key, Measurement]:
    """A dict: point and repetition (`Key`) -> record. The repetition is the record's round, counted
    from 1, or the next greater number that no record of the point before it has."""
    found: dict[Key, Measurement] = {}
    for r in records:
        repetition = r.round + 1
        while True:
            sizes = sizes_words(r.sizes)
            asked = (sizes, r.dtype, r.phase, r.kind, asked_words(r))
            key = (r.mixer, r.implementation, r.form, *asked, repetition)
            if key not in found:
                break
            repetition += 1
        found[key] = r
    return found


def point_words(key: Key) -> str:
    """A point in words: `she conv (l = 128, fp32, training, cpu, repetition 2)`."""
    mixer, implementation, _, sizes, dtype, phase, device, options, repetition = key
    again = f", repetition {repetition}" if repetition > 1 else ""
    return f"{mixer} {implementation} ({sizes}, {dtype}, {phase}, {device}{options}{again})"


def asked_words(record: Measurement) -> str:
    """The options and the seed of a record that are not defaults, in words."""
    seed = record.counts.get("seed", 0)
    return options_words(record.options) + (f", seed {seed}" if seed else "")


def missing(
    a: str, b: str, first: Sequence[Measurement], second: Sequence[Measurement]
) -> list[str]:
    """A sentence for each of two files, named `a` and `b` with the records `first` and `second`, if
    records have no partner (the same point and repetition) in the other file; `SHOWN` are named."""
    found = []
    one, other = keyed(first), keyed(second)
    for name, own, partner, theirs in ((a, one, b, other), (b, other, a, one)):
        alone = [point_words(key) for key in own if key not in theirs]
        if alone:
            more = f" and {len(alone) - SHOWN} more" if len(alone) > SHOWN else ""
            listed = "; ".join(alone[:SHOWN])
            what = "record" if len(alone) == 1 else "records"
            found.append(
                f"{len(alone)} {what} of {name} without a partner in {partner}: {listed}{more}"
            )
    return found


def differing_facts(first: Sequence[Measurement], second: Sequence[Measurement]) -> list[str]:
    """The differences in machine and software of two files at the same points, sorted, in words."""
    found: dict[str, None] = {}
    one, other = keyed(first), keyed(second)
    for key in one.keys() & other.keys():
        found |= dict.fromkeys(
            environment_differences(one[key].environment, other[key].environment)
        )
    return sorted(found)


def pointwise(
    a: str, b: str, first: Sequence[Measurement], second: Sequence[Measurement], level: float
) -> list[Row]:
    """Compare the records `first` of file `a` and `second` of file `b`, and return the rows of the
    points that both files have: for each sampled quantity, a row a point and then a test over all
    points; last, exact quantities (bytes), a row a point. `level`: the accepted probability of a
    false difference."""
    one, other = keyed(first), keyed(second)
    shared = [key for key in one if key in other]
    rows: list[Row] = []
    for quantity in (each.reading for each in COMPARED if not each.exact):
        both = {
            key: (one[key].readings[quantity], other[key].readings[quantity])
            for key in shared
            if quantity in one[key].readings and quantity in other[key].readings
        }
        # energies that are not known to be of one board
        apart = {key for key in both if quantity in JOULES and not same_board(one[key], other[key])}
        for key, (x, y) in both.items():
            errors = (shared_error(x, key in apart), shared_error(y, key in apart))
            verdict = medians(a, b, x, y, level, len(both), errors)
            marks = (mark_of(x), mark_of(y)) if x.unit == "s" else ("", "")
            rows.append(Row(quantity, verdict, x.unit, x.value, y.value, point_words(key), marks))
        alike = {
            key: each
            for key, each in both.items()
            if key not in apart and not (each[0].unit == "s" and BUSY in map(grade_of, each))
        }
        rows += over_all(a, b, quantity, alike, level)
    for name, key in product((each.reading for each in COMPARED if each.exact), shared):
        bytes_a, bytes_b = (of[key].readings.get(name) for of in (one, other))
        if bytes_a is not None and bytes_b is not None:
            row = exact(name, a, b, bytes_a, bytes_b)
            rows.append(replace(row, point=point_words(key)))
    return rows


def same_board(one: Measurement, other: Measurement) -> bool:
    """Whether both records state the same board UUID; False if one states none, as on a CPU."""
    uuids = [(r.environment.get("gpu") or {}).get("uuid") for r in (one, other)]
    return uuids[0] is not None and uuids[0] == uuids[1]


def shared_error(reading: Reading, apart: bool) -> float:
    """The relative error that all trials of an energy share: of the sensor's gain, if the other
    energy is from another board (`apart`), and of the load's phase (`common_error`); 0 for other
    readings."""
    if reading.name not in JOULES:
        return 0.0
    gain = reading.details.get("systematic", SYSTEMATIC) if apart else 0.0
    return float(gain + reading.details.get("common_error", 0.0))


def gains_in(first: Sequence[Measurement], second: Sequence[Measurement]) -> bool:
    """Whether energies that the records of two files, `first` and `second`, have at a common point
    may come from different boards, whose sensors differ by a gain."""
    one, other = keyed(first), keyed(second)
    return any(
        name in one[key].readings and name in other[key].readings
        for key in one.keys() & other.keys()
        if not same_board(one[key], other[key])
        for name in JOULES
    )


def medians(
    a: str,
    b: str,
    x: Reading,
    y: Reading,
    level: float,
    points: int,
    shared: tuple[float, float] = (0.0, 0.0),
) -> Verdict:
    """Compare two medians, of reading `x` from file `a` and `y` from file `b`, by their intervals,
    and return the verdict: they differ if the interval of the ratio excludes 1.

    Each interval misses its median with probability at most level / (2 points), so that all ratio
    intervals together hold at the level. If one of two times is busy, there is a ratio without an
    interval. There is no ratio for a value of zero or less, for too few values (a time of one
    sample among them), for a shared error of 100 % or more, for a disturbed time of an old record,
    or for a busy time of one thread beside one of several.

    Args:
        points: the number of comparisons whose intervals hold together.
        shared: for each reading the relative error that all its samples share.
    """
    share = level / (2 * points)
    few = min(len(x.samples), len(y.samples))
    if min(*x.samples, *y.samples, x.value, y.value) <= 0:
        return Verdict(a, b, few, refused="a ratio needs values above zero")
    if max(shared) >= 1:
        return Verdict(a, b, few, refused=DOWN_TO_ZERO)
    for name, reading in ((a, x), (b, y)):
        by = disturbed_by(reading.labels)
        if by and reading.unit == "s" and "grade" not in reading.details:
            return Verdict(a, b, few, refused=f"{name}: it is labelled {by}")
    if x.unit == "s" and few > 1 and BUSY in map(grade_of, (x, y)):
        if of_one_thread(x) != of_one_thread(y):
            why = f"only the time of {(a, b)[of_one_thread(y)]} was taken on one thread"
            return Verdict(a, b, few, refused=why)
        return Verdict(a, b, few, y.value / x.value, of=BUSY_TIMES)
    ends = [median_interval(block_medians(reading), 1 - share) for reading in (x, y)]
    if None in ends:
        return Verdict(a, b, few, refused=_too_few(x, y, 1 - share))
    (x_low, x_high), (y_low, y_high) = (end for end in ends if end is not None)
    x_error, y_error = shared
    low = y_low / x_high * (1 - x_error) / (1 + y_error)
    high = y_high / x_low * (1 + x_error) / (1 - y_error)
    differs = not low <= 1 <= high
    ratio = statistics.median(block_medians(y)) / statistics.median(block_medians(x))
    within = "processes" if min(map(processes_in, (x, y))) > 1 else "blocks"
    return Verdict(a, b, few, ratio, low, high, 1 - level / points, differs=differs, of=within)


def _too_few(x: Reading, y: Reading, confidence: float) -> str:
    """Why the reading with fewer values (blocks, trials or processes) has too few for an interval
    of this confidence."""
    few = min((x, y), key=lambda reading: len(block_medians(reading)))
    what = "trial" if few.name in JOULES else "block"
    what = "process" if processes_in(few) > 1 else what
    return no_interval(len(block_medians(few)), what, confidence)


def over_all(
    a: str, b: str, quantity: str, both: Mapping[Key, tuple[Reading, Reading]], level: float
) -> list[Row]:
    """Make the row with the signed-rank test, at `level`, whether the values of file `a` or `b`
    tend to be larger, from `both`, point and repetition -> the readings of `a` and `b`. The ratios
    b / a of a point's repetitions are averaged; values of 0 or less are left out. [] for fewer than
    two points, and a row without a test for points too few to show a difference."""
    logs: dict[tuple[object, ...], list[float]] = {}
    for key, (x, y) in both.items():
        if min(x.value, y.value) > 0:
            logs.setdefault(key[:-1], []).append(math.log(y.value / x.value))
    points = [statistics.fmean(found) for found in logs.values()]
    if len(points) < 2:
        return []
    where = f"all {len(points)} points"
    if too_few(len(points), 1, level):
        needed = rounds_needed(1, level)
        why = f"{len(points)} points are too few for a test over all points: {needed} are needed"
        return [Row(quantity, Verdict(a, b, len(points), refused=why), point=where)]
    interval = location_interval(points, 1 - level)
    assert interval is not None
    low, high = map(math.exp, interval)
    p = signed_rank_p(points)
    ratio = math.exp(location(points))
    verdict = Verdict(a, b, len(points), ratio, low, high, 1 - level, p, p, p <= level)
    return [Row(quantity, verdict, point=where)]
