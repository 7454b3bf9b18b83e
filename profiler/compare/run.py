"""Runs a comparison, in this process or in several fresh ones, and combines the results.

The addresses of arrays and code change from process to process and affect all rounds of a process:
only several processes show how much (Mytkowicz et al., "Producing Wrong Data Without Doing Anything
Obviously Wrong!" (2009)).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from profiler.compare.in_turns import ONE_THREAD_WORDS, InProcess, Run, measured
from profiler.compare.rows import Comparison, Row, rows_of
from profiler.compare.verdict import too_few
from profiler.records.measurement import Measurement
from profiler.records.reading import MeasureError
from profiler.records.schema import checked
from profiler.records.store import append
from profiler.run.plan import request_of
from profiler.run.request import request_json
from profiler.sweep.child import in_folder, serve
from profiler.sweep.processes import Process
from profiler.sweep.results import writable
from profiler.sweep.workers import WorkerGone

PASSED_ON = (
    "rounds",
    "processes",
    "level",
    "seed",
    "energy",
    "energy_window_s",
    "energy_trials",
    "force",
    "command",
    "identity",
    "threads",
    "counted",
)
"""The fields of a run that are passed to its processes."""


def in_fresh_process(made: Run, number: int) -> InProcess:
    """Take the rounds of a run in a fresh process, the one with this number (from 0), and return
    its results; only the first process measures memory and energy.

    Of a process that ended, or in which fewer than two candidates ran, the result has no records
    and the reason in `lost`.
    """
    fields = {name: getattr(made, name) for name in PASSED_ON}
    asked = {name: request_json(request) for name, request in made.asked.items()}
    process = Process("profiler.compare.run")
    try:
        process.say({"folder": os.getcwd()})
        process.hear()
        process.say({"asked": asked, "fields": fields, "process": number})
        found = process.hear(lambda what: made.progress(number, made.processes, what))
    except WorkerGone as gone:
        return InProcess({}, lost=str(gone))
    finally:
        process.stop()
    if "refused" in found:
        return InProcess({}, lost=found["refused"])
    return InProcess(
        {name: Measurement.from_json(record) for name, record in found["records"].items()},
        checked(found["energy"], tuple[Row, ...], "energy"),
        found["failed"],
        tuple(found["notes"]) if not number else (),
        threads=found["threads"],
    )


LONG_S = 30.0
"""A comparison that takes this many seconds more after its first process says so."""


def run(
    made: Run,
    output: Path | None = None,
    tell: Callable[[str], object] = lambda sentence: None,
    begin: Callable[[str], object] = lambda sentence: None,
    clock: Callable[[], float] = time.monotonic,
) -> Comparison:
    """Measure in turns and compare; with `output`, append a record per candidate and process.
    `begin` gets a sentence before each fresh process. `tell` gets, after the first one of several,
    the sentences on a busy machine and on the seconds that the others take (`clock`: seconds).

    Further processes replace those that were disturbed or gave no results, until `made.processes`
    processes count or more are lost than count. The first process determines the number of threads
    and the counts of operations for all. After an interrupt, what was measured is compared.

    Raises:
        MeasureError: too few processes or rounds to show anything, or fewer than two candidates
            run.
        StoreError: the file cannot be written; raised before anything is measured.
    """
    if why := too_few(made.samples, made.pairs, made.level, made.unit):
        raise MeasureError(why)
    if output is not None:
        writable(output)
    found: dict[int, InProcess] = {}
    interrupted, lost = "", 0
    try:
        for number in count():
            alone = made.processes == 1
            if not alone:
                begin(
                    f"{len(found) - lost} of {made.processes} processes done; the next one "
                    f"measures {len(made.asked)} candidates, --rounds {made.rounds}"
                )
            began = clock()
            taken = measured(made) if alone else in_fresh_process(made, number)
            if taken.lost and not any(each.records for each in found.values()):
                raise MeasureError(taken.lost)
            found[number] = taken
            made = replace(made, threads=taken.threads, counted=counts_in(taken) | made.counted)
            if output is not None:
                for each in taken.records.values():
                    append(output, each)
            lost = sum(each.disturbed or bool(each.lost) for each in found.values())
            if len(found) - lost == made.processes or lost > len(found) - lost:
                break
            if not number:
                for sentence in after_first(made, taken, clock() - began):
                    tell(sentence)
    except KeyboardInterrupt:
        if not found:
            raise
        interrupted = f"interrupted after {len(found)} of {made.processes} processes"
    return compared(made, found, interrupted or made.interrupted)


def after_first(made: Run, taken: InProcess, seconds: float) -> Iterator[str]:
    """Yield what to tell a user after the first of several processes, which took this many seconds:
    how times are marked on a busy machine, and how long the other processes take, if long."""
    if taken.busy:
        threads = " on one thread" if ONE_THREAD_WORDS in taken.notes else ""
        yield (
            f"other programs use the processors: all candidates are timed{threads}, and times are "
            "estimates, printed as ≈ (busy); which candidate is faster is tested all the same, and "
            "peak memory is as on a quiet machine"
        )
    left = made.processes - 1
    if left * seconds >= LONG_S:
        fewer = f"fewer --rounds than {made.rounds} or " if made.rounds > 1 else ""
        yield (
            f"the first process took {seconds:.0f} s: at that pace the other {left} take "
            f"{left * seconds:.0f} s; {fewer}--processes 1 take less"
        )


def counts_in(taken: InProcess) -> dict[str, dict[str, Any]]:
    """A dict: candidate -> its counts from one process, for later processes."""
    return {
        name: {each: record.counts[each] for each in ("dispatch", "zeros")}
        for name, record in taken.records.items()
    }


def compared(made: Run, found: Mapping[int, InProcess], interrupted: str) -> Comparison:
    """Compare every two candidates by the results of all processes (number, from 0, -> results):
    the rows, records, notes and failures of a `Comparison`. `interrupted` says how the user ended
    the measurement, or is ""."""
    failed = {name: why for each in found.values() for name, why in each.failed.items()}
    run = {
        name: {p: each.records[name] for p, each in found.items() if name in each.records}
        for name in made.asked
    }
    notes = [note for each in found.values() for note in each.notes]
    failures = [f"{name}: {why}" for name, why in failed.items()]
    failures += [f"process {p + 1}: {each.lost}" for p, each in found.items() if each.lost]
    if made.processes > 1:
        notes += [
            f"process {p + 1} is left out of the test: {record.reasons['latency']}"
            for p, each in found.items()
            for record in each.records.values()
            if "latency" in record.reasons
        ]
    return Comparison(
        (*rows_of(run, made.level, failed), *(row for x in found.values() for row in x.energy)),
        made.level,
        tuple(record for each in found.values() for record in each.records.values()),
        tuple(dict.fromkeys(notes)),
        (*failures, *([interrupted] if interrupted else [])),
        interrupted=bool(interrupted),
    )


class Comparing:
    """Takes the rounds of a comparison, in a process of its own."""

    def __init__(self, setup: Mapping[str, Any]) -> None:
        in_folder(setup)

    def environment(self) -> dict[str, Any]:
        """{}: every record has its own environment."""
        return {}

    def answer(self, description: Mapping[str, Any], note: Callable[[str], None]) -> dict[str, Any]:
        """Take the rounds that a description asks for ("asked": name -> what to measure; "process":
        the number of this process; "fields": further fields of `Run`), and return the results as
        JSON values, or {"refused": the reason why there are none}. `note` receives the current
        step."""
        try:
            asked = {name: request_of(each) for name, each in description["asked"].items()}
            number = description["process"]

            def progress(done: int, of: int, what: str) -> None:
                note(what)

            made = Run(asked, process=number, progress=progress, **description["fields"])
            found = measured(made)
        except MeasureError as error:
            return {"refused": str(error)}
        return {
            "records": {name: record.to_json() for name, record in found.records.items()},
            "energy": [row.to_json() for row in found.energy],
            "failed": dict(found.failed),
            "notes": list(found.notes),
            "threads": found.threads,
        }


def main() -> None:
    """Take the rounds that another process asks for, by its messages on standard input."""
    serve(Comparing)
