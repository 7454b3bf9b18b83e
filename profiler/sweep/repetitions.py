"""Which measurements of a plan are taken again after all others, and to what do these belong?

A repetition measures memory, time and energy, not what is counted. It is a request of its own
(`Request.repetition`) and a record of its own, so that it is kept, resumed, dealt out and merged as
every other one is. Where records are read, `joined` lays it beside the first, whose intervals it
may widen (`profiler.meters.repetition`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from profiler.meters.repetition import REPETITION, widened
from profiler.records.measurement import REASON, Measurement
from profiler.records.reading import Reading
from profiler.run.request import Request
from profiler.sweep.points import key_of


def repetition_of(request: Request) -> Request:
    """The same request, to be measured again."""
    return replace(request, repetition=True)


def is_repetition(record: Measurement) -> bool:
    """Whether a record is of something that was measured before."""
    return bool(record.sweep.get("options", {}).get(REPETITION))


def point_of(record: Measurement) -> str | None:
    """The point that a record is of, the same for a first measurement and its repetition; None
    where it is of rounds in turn, which nothing repeats."""
    latency = record.readings.get("latency")
    if latency is not None and "comparison" in latency.details:
        return None
    options = {k: v for k, v in record.sweep.get("options", {}).items() if k != REPETITION}
    return key_of(replace(record, sweep={**record.sweep, "options": options}))


def joined(records: Sequence[Measurement]) -> tuple[list[Measurement], list[str]]:
    """The first measurements in their order, each with what its repetition says of it, and a
    sentence for every repetition that has no first one beside it.

    A repetition belongs to the last measurement of its point before it that has none yet, or to
    one that follows (a point that failed at first and was tried again).
    """
    if not any(map(is_repetition, records)):
        return list(records), []
    points = [point_of(record) for record in records]
    partners = paired(records, points)
    found = [
        repeated(record, records[partners[place]]) if place in partners else record
        for place, record in enumerate(records)
        if not is_repetition(record)
    ]
    taken = set(partners.values())
    there = {p for p, r in zip(points, records, strict=True) if not is_repetition(r)}
    alone = [
        f"record {record.id[:8]} ({record.mixer} {record.implementation}) repeats no measurement "
        f"that is there, and was left out"
        for place, record in enumerate(records)
        if is_repetition(record)
        and place not in taken
        and not (record.failure and points[place] in there)  # both failed, or the next one did not
    ]
    return found, alone


def paired(records: Sequence[Measurement], points: Sequence[str | None]) -> dict[int, int]:
    """Place of what was measured -> place of its repetition, of one that failed where no other
    is left."""
    found: dict[int, int] = {}
    for failed in (False, True):
        waiting: dict[tuple[str, bool], list[int]] = {}
        for place, (record, point) in enumerate(zip(records, points, strict=True)):
            again = is_repetition(record)
            fits = bool(record.failure) == (failed and again)
            if point is None or place in found or not fits:
                continue
            if others := waiting.get((point, not again)):
                other = others.pop()
                found[other if again else place] = place if again else other
            else:
                waiting.setdefault((point, again), []).append(place)
    return found


def repeated(first: Measurement, again: Measurement) -> Measurement:
    """The first measurement with the intervals that hold what both say; where the repetition
    failed, or lacks a reading, the first says why it was not repeated."""
    readings: dict[str, Reading] = {}
    reasons = dict(first.reasons)
    told = {"id": again.id, "created": again.created}
    for name, reading in first.readings.items():
        other = again.readings.get(name)
        readings[name] = reading if other is None else widened(reading, other, told)
        if other is None and name in again.reasons:
            reasons[f"{REPETITION} of {name}"] = again.reasons[name]
    if again.failure:
        reasons[REPETITION] = again.reasons.get(REASON, "it failed")
    return replace(first, readings=readings, reasons=reasons)
