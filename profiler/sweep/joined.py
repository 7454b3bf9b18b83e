"""Joins the records of one point, measured in several processes, into one record.

Each process measures the whole plan and writes its own records, so that they are kept, resumed,
dealt out and merged like all records. When records are read, those of one point become one record,
whose intervals span the processes (`meters.intervals.over_processes`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from costmodel.symbolic.sizes import LETTERS, in_order
from profiler.meters.intervals import over_processes
from profiler.records.environments import environment_differences
from profiler.records.keys import in_turns, key_of
from profiler.records.measurement import REASON, Measurement


def process_of(record: Measurement) -> int:
    """The number of the process that took a record; 0 if the record has none."""
    return int(record.sweep.get("process", 0))


def joined(records: Sequence[Measurement]) -> list[Measurement]:
    """Join the records of each point over its processes, and return the joined records in the order
    of their first records.

    Records are joined if they agree in point, plan and environment; records of comparisons in turns
    are not joined. A failure of a process from number 1 on is replaced by a later measurement of
    this process; a failure that remains is a reason of its point. A failure of process 0 stays a
    record of its own beside the point's later measurement; `settled` drops the failure. A plan that
    was measured twice into one file gives two records per point.
    """
    if not any(map(process_of, records)):
        return list(records)
    found: list[dict[int, Measurement]] = []
    there: dict[str, list[dict[int, Measurement]]] = {}
    for record in records:
        process = process_of(record)
        taken = [] if in_turns(record) else there.setdefault(plan_and_point(record), [])
        fitting = [each for each in taken if fits(record, process, each)]
        if record.failure and not process:  # kept as it is, as it may be retried
            found.append({process: record})
        elif fitting:
            fitting[-1][process] = record
        else:
            taken.append({process: record})
            found.append(taken[-1])
    return [together(each) for each in found]


def plan_and_point(record: Measurement) -> str:
    """A key: the plan and the point of a record, equal in every process."""
    plan = record.sweep.get("plan", "")
    return f"{plan} {key_of(replace(record, sweep={**record.sweep, 'process': 0}))}"


def fits(record: Measurement, process: int, group: Mapping[int, Measurement]) -> bool:
    """Whether a record joins a group (process -> record): the group has no measurement of this
    process yet, and has the record's environment, which is not asked of a failure."""
    if process in group and not group[process].failure:
        return False
    others = [each for each in group.values() if not each.failure]
    return record.failure != {} or not any(
        environment_differences(each.environment, record.environment) for each in others[:1]
    )


def together(found: Mapping[int, Measurement]) -> Measurement:
    """Join a point's records (process -> record) into one: that of the first process with a
    measurement, with the readings over all processes; a failed process and a missing reading become
    reasons. A single record, and without a measurement the first failure, is returned as it is."""
    measured = {p: record for p, record in sorted(found.items()) if not record.failure}
    if not measured:
        return found[min(found)]
    if len(found) == 1:
        return next(iter(measured.values()))
    names = dict.fromkeys(name for record in measured.values() for name in record.readings)
    reasons = {
        f"process {p + 1}": record.reasons.get(REASON, "it failed")
        for p, record in found.items()
        if record.failure
    }
    for p, record in measured.items():
        for name, why in record.reasons.items():
            reasons[f"{name} in process {p + 1}" if name in names else name] = why
    each = {
        name: {p: r.readings[name] for p, r in measured.items() if name in r.readings}
        for name in names
    }
    return replace(
        next(iter(measured.values())),
        readings={name: over_processes(read) for name, read in each.items()},
        reasons=reasons,
        labels=tuple(dict.fromkeys(x for record in measured.values() for x in record.labels)),
    )


def settled(records: Sequence[Measurement]) -> list[Measurement]:
    """The records without superseded failures: a failure is left out if its point was measured, or
    failed again later; repeated measurements stay. Records of a sweep, which have a random order,
    are sorted by mixer, phase, dtype, device, sizes, implementation and round."""
    keys = [key_of(record) for record in records]
    last: dict[str, int] = {}
    for i, record in enumerate(records):
        if not record.failure or keys[i] not in last or records[last[keys[i]]].failure:
            last[keys[i]] = i
    kept = [r for i, r in enumerate(records) if not r.failure or last[keys[i]] == i]
    return in_sweep_order(kept) if any("round" in r.sweep for r in kept) else kept


def in_sweep_order(records: Sequence[Measurement]) -> list[Measurement]:
    """The records by mixer, phase, dtype, device, sizes (0: missing), implementation, round."""
    letters = in_order({*LETTERS}.union(*(record.sizes for record in records)))

    def key(record: Measurement) -> tuple[object, ...]:
        sizes = tuple(record.sizes.get(letter, 0) for letter in letters)
        names = (record.mixer, record.phase, record.dtype, record.device)
        return (*names, sizes, record.implementation, record.round)

    return sorted(records, key=key)
