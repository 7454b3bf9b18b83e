"""Which records are of one point, measured in several processes, and what do they say together?

Each process measures the whole plan, and each of its records is one of its own in the file, so that
what is measured is kept, resumed, dealt out and merged as every other record is. Where records are
read, those of one point become one record, whose intervals span the processes
(`meters.intervals.over_processes`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from profiler.meters.intervals import over_processes
from profiler.records.measurement import REASON, Measurement
from profiler.records.reading import Reading
from profiler.sweep.points import key_of


def process_of(record: Measurement) -> int:
    """Which process of a plan took a record; 0 where nothing is said."""
    return int(record.sweep.get("process", 0))


def point_of(record: Measurement) -> str | None:
    """The point that a record is of, the same in every process; None for one that stands alone:
    rounds in turn."""
    latency = record.readings.get("latency")
    if latency is not None and "comparison" in latency.details:
        return None
    return key_of(replace(record, sweep={**record.sweep, "process": 0}))


def joined(records: Sequence[Measurement]) -> list[Measurement]:
    """The points in the order of their first records, each with what all its processes say.

    A record belongs to the last measurement of its point that lacks its process: a plan that was
    measured twice into one file is two measurements. A failure of a later process is a reason of
    its point where the first one did not fail.
    """
    if not any(map(process_of, records)):
        return list(records)
    found: list[dict[int, Measurement]] = []
    there: dict[str, list[dict[int, Measurement]]] = {}
    for record in records:
        point, process = point_of(record), process_of(record)
        taken = [] if point is None else there.setdefault(point, [])
        lacking = [each for each in taken if process not in each]
        if record.failure and not process:  # it may be tried again, and is told as it is
            found.append({process: record})
        elif lacking:
            lacking[-1][process] = record
        else:
            taken.append({process: record})
            found.append(taken[-1])
    return [together(each) for each in found]


def together(found: Mapping[int, Measurement]) -> Measurement:
    """What the processes of one point say, as a record of the first one that measured; what others
    lack, and why, is a reason."""
    measured = {p: record for p, record in sorted(found.items()) if not record.failure}
    if not measured:
        return found[min(found)]
    first = next(iter(measured.values()))
    readings: dict[str, Reading] = {}
    reasons = dict(first.reasons)
    for name in first.readings:
        each = {p: r.readings[name] for p, r in measured.items() if name in r.readings}
        readings[name] = over_processes(each)
        reasons |= {
            f"{name} in process {p + 1}": r.reasons[name]
            for p, r in measured.items()
            if name in r.reasons
        }
    reasons |= {
        f"process {p + 1}": record.reasons.get(REASON, "it failed")
        for p, record in found.items()
        if record.failure
    }
    return replace(first, readings=readings, reasons=reasons)
