"""Compares every two candidates of one comparison, from its records.

A record holds the rounds of a candidate in one process. With several processes, each gives one
value per candidate, the geometric mean of its rounds: the ratio of two such values is the mean
ratio of the paired rounds, and test and interval are over processes.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from profiler.compare.verdict import LEVEL, Verdict, reasons, verdicts
from profiler.meters.energy.estimate import PairedEnergy
from profiler.meters.energy.protocol import DOWN_TO_ZERO
from profiler.records.grades import disturbed_by, mark_of_all
from profiler.records.measurement import Measurement, readings_of
from profiler.records.quantities import COMPARED
from profiler.records.reading import Measured, Reading, Unavailable
from profiler.records.schema import Record
from profiler.sweep.joined import process_of

PROCESSES = "processes"
"""The source of each candidate's values if there are several processes."""
BUSY_TIMES = "busy times"
"""The source of two values of which one is an estimate of a busy device: nothing is claimed."""


class Row(Record, frozen=True):
    """Two candidates compared in one quantity; `first` and `second` are their values in `unit`."""

    quantity: str
    verdict: Verdict
    unit: str = ""
    first: float | None = None
    second: float | None = None
    point: str = ""
    """In a comparison of files: the sizes, dtype and phase of both records."""
    marks: tuple[str, str] = ("", "")
    """The words behind each value that is an estimate, such as `busy`; "" for other values."""


@dataclass(frozen=True)
class Comparison:
    """The rows of a comparison, its records, and notes for the reader."""

    rows: tuple[Row, ...]
    level: float = LEVEL
    records: tuple[Measurement, ...] = ()
    """One per candidate and process, with the rounds as samples; none in a comparison of files."""
    notes: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    """A sentence for each thing that was asked for and failed."""
    interrupted: bool = False


def latency_rows(
    values: Mapping[str, Sequence[float]],
    level: float,
    failed: Mapping[str, str],
    unit: str = "rounds",
    marks: Mapping[str, str] = {},
) -> list[Row]:
    """Compare the latencies of every two candidates, and return a row for each: at this `level` of
    false differences, and refused for the `failed` ones (candidate -> why). `unit` is the source of
    one value (a round, a process) and `marks` the words behind the values that are estimates."""
    found = verdicts(values, level, failed, unit)
    middle = {name: statistics.median(taken) for name, taken in values.items() if taken}
    rows = []
    for v in found:
        each = marks.get(v.first, ""), marks.get(v.second, "")
        rows.append(Row("latency", v, "s", middle.get(v.first), middle.get(v.second), marks=each))
    return rows


def exact(quantity: str, first: str, second: str, a: Measured, b: Measured) -> Row:
    """Compare for equality two readings that repeat to the byte, such as peaks of memory, and
    return the row; refused if one is missing or its runs disagree. A first value of 0 has no
    ratio."""
    for name, reading in ((first, a), (second, b)):
        if isinstance(reading, Unavailable):
            why = f"{name}: {reading.reason}"
            return Row(quantity, Verdict(first, second, 0, refused=why))
        if reading.details.get("agree") is False:
            why = f"{name}: the runs give different numbers of bytes"
            return Row(quantity, Verdict(first, second, 0, refused=why))
    assert isinstance(a, Reading) and isinstance(b, Reading)
    ratio = b.value / a.value if a.value else None
    verdict = Verdict(first, second, 1, ratio, differs=a.value != b.value)
    return Row(quantity, verdict, a.unit, a.value, b.value)


def energy_rows(found: PairedEnergy | Unavailable) -> list[Row]:
    """Compare the gross energies (idle power included, J per call) of every two candidates a, b by
    the interval of the ratio b/a (`PairedEnergy.ratio`), and return the rows; [] without energies.
    A pair is refused if all samples of one may share an error of 100 % or more."""
    if isinstance(found, Unavailable):
        return []
    rows = []
    for a, b in combinations(found.readings, 2):
        values = (found.readings[a].value, found.readings[b].value)
        if max(map(found.common_error, (a, b))) >= 1:
            verdict = Verdict(a, b, len(found.samples(a)), refused=DOWN_TO_ZERO)
            rows.append(Row("energy", verdict, "J", *values))
            continue
        ratio = found.ratio(b, a)
        apart = not ratio.ci_low <= 1 <= ratio.ci_high
        interval = (ratio.value, ratio.ci_low, ratio.ci_high, found.confidence)
        verdict = Verdict(a, b, len(ratio.samples), *interval, differs=apart)
        rows.append(Row("energy", verdict, "J", *values))
    return rows


def details_of(record: Measurement) -> Mapping[str, Any]:
    """The details of a record's latency; {} without a latency."""
    return record.readings["latency"].details if "latency" in record.readings else {}


@dataclass(frozen=True)
class Candidate:
    """The records of one candidate, from all processes of a comparison."""

    records: Mapping[int, Measurement]
    """Process -> the candidate's record."""

    @property
    def latencies(self) -> list[Reading]:
        """The latencies of all processes."""
        return readings_of(self.records.values(), "latency")

    @property
    def rounds(self) -> dict[int, Sequence[float]]:
        """A dict: process -> seconds per call, one value per round."""
        return {
            process: record.readings["latency"].samples
            for process, record in sorted(self.records.items())
            if "latency" in record.readings
        }

    def values(self, *, several: bool) -> list[float]:
        """Seconds per call: with `several` processes one value per process, the geometric mean of
        its rounds; else one per round."""
        if several:
            return [statistics.geometric_mean(rounds) for rounds in self.rounds.values()]
        return [value for rounds in self.rounds.values() for value in rounds]

    def agreed(self, name: str) -> Reading | Unavailable:
        """The reading `name`, which repeats to the byte, as the first process has it; Unavailable
        if no process has it, or if the processes disagree."""
        found = readings_of(self.records.values(), name)
        if not found:
            said = [r.reasons[name] for r in self.records.values() if name in r.reasons]
            return Unavailable(said[0] if said else "was not measured")
        if len({reading.value for reading in found}) > 1:
            return Unavailable("the processes give different numbers of bytes")
        return found[0]

    def why_not(self, rounds: Mapping[int, int]) -> str:
        """A sentence why the candidate is not compared; "" if it is.

        Args:
            rounds: process -> the largest number of rounds of any candidate.
        """
        for record in self.records.values():
            if "latency" not in record.readings:
                return record.reason("latency")
            if by := disturbed_by(details_of(record).get("labels", ())):
                return f"it is labelled {by}"
        if len(self.records) < len(rounds):
            return f"only {len(self.records)} of {len(rounds)} processes measured it"
        for process, most in rounds.items():
            if len(self.rounds[process]) < most:
                return f"only {len(self.rounds[process])} of {most} rounds measured it"
        return ""


def rows_of(
    run: Mapping[str, Mapping[int, Measurement]], level: float, failed: Mapping[str, str] = {}
) -> list[Row]:
    """The rows that compare latencies and bytes of one run, over processes if there are several.

    Of several processes, one in which a candidate has no latency (too few rounds were undisturbed)
    is left out of the test; with fewer processes than were asked for, no latency is tested.

    Args:
        run: candidate -> number of a process -> the candidate's record.
        level: the accepted probability of a false difference.
        failed: candidate -> why the candidate is not compared.
    """
    records = [record for each in run.values() for record in each.values()]
    asked = max((int(record.sweep.get("processes", 1)) for record in records), default=1)
    there = {process for each in run.values() for process in each}
    lost: set[int] = set()  # the processes in which a candidate has no latency
    timed = run
    if asked > 1:
        lost = {p for each in run.values() for p, r in each.items() if "latency" not in r.readings}
        timed = {
            name: {p: record for p, record in each.items() if p not in lost}
            for name, each in run.items()
        }
    candidates = {name: Candidate(records) for name, records in timed.items()}
    most: dict[int, int] = {}  # process -> the largest number of rounds of a candidate
    for each in candidates.values():
        for process, taken in each.rounds.items():
            most[process] = max(most.get(process, 0), len(taken))
    refused = {name: each.why_not(most) for name, each in candidates.items()} | dict(failed)
    values = {name: each.values(several=asked > 1) for name, each in candidates.items()}
    refused = {name: why for name, why in refused.items() if why}
    undisturbed = len(there - lost)
    if undisturbed < asked:
        said = f"{undisturbed} of {len(there)} processes were undisturbed, and {asked} are needed"
        rows = [
            Row("latency", Verdict(*pair, undisturbed, refused=reasons(pair, refused) or said), "s")
            for pair in combinations(run, 2)
        ]
    else:
        marks = {name: mark_of_all(each.latencies) for name, each in candidates.items()}
        rows = latency_rows(values, level, refused, PROCESSES if asked > 1 else "rounds", marks)
    for quantity in (each.reading for each in COMPARED if each.exact):
        held = {name: Candidate(of).agreed(quantity) for name, of in run.items() if of}
        rows += [exact(quantity, a, b, held[a], held[b]) for a, b in combinations(held, 2)]
    return rows


def by_candidate(run: Iterable[Measurement]) -> dict[str, dict[int, Measurement]]:
    """A dict: candidate -> process -> record, of the records of one run of `costmodel compare`."""
    found: dict[str, dict[int, Measurement]] = {}
    for record in run:
        name = str(details_of(record).get("candidate", f"{record.mixer} {record.implementation}"))
        found.setdefault(name, {})[process_of(record)] = record
    return found


def runs_in(records: Sequence[Measurement]) -> list[dict[str, dict[int, Measurement]]]:
    """The runs of `costmodel compare` that the records hold, each as candidate -> process ->
    record; a run with a single candidate is left out."""
    found: dict[str, list[Measurement]] = {}
    for record in records:
        run = details_of(record).get("comparison")
        if isinstance(run, str):
            found.setdefault(run, []).append(record)
    return [run for run in map(by_candidate, found.values()) if len(run) > 1]
