"""The record of one measurement: schema 1 of the files."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from msgspec import field
from msgspec.structs import replace

from profiler.records.reading import Measured, Reading, Unavailable, compact
from profiler.records.schema import (
    Counts,
    Device,
    Environment,
    Failure,
    Name,
    Phase,
    Place,
    Record,
    RecordError,
    Size,
    Text,
    checked,
    plain,
)

SCHEMA: Literal[1] = 1
REASON = "measurement"
"""The name in `reasons` under which a record without readings states its reason."""


def new_id() -> str:
    """A unique record id."""
    return uuid.uuid4().hex


def utc_now() -> str:
    """Now in UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class Share:
    """Returns the first of the mappings that have the same names for the same objects (not merely
    for equal ones), so that thousands of records share one mapping."""

    def __init__(self) -> None:
        self.known: dict[tuple[Any, ...], Mapping[str, Any]] = {}

    def __call__(self, facts: Mapping[str, Any]) -> Mapping[str, Any]:
        # a value that a known mapping holds is alive, so that no other value has its id
        return self.known.setdefault((*facts, *map(id, facts.values())), facts)


class Measurement(Record, frozen=True, kw_only=True):
    """All measurements of one implementation at one set of sizes: schema 1 of the files.

    `readings` by name, each with unit and raw samples; `reasons` states for each missing reading
    why; `counts` holds the counters' figures (JSON values). A record with a `failure` keeps that
    the measurement was tried, and why it has no reading, or no latency: comparisons leave it out,
    `scaling` and `reconcile` take what the record has.
    """

    schema: Literal[1] = SCHEMA
    id: Name = field(default_factory=new_id)
    created: Name = field(default_factory=utc_now)
    mixer: Name
    implementation: Name
    form: Text
    sizes: Mapping[str, Size]
    dtype: Name
    phase: Phase
    device: Device
    readings: Mapping[str, Reading] = {}
    reasons: Mapping[str, Text] = {}
    counts: Mapping[str, Any] = {}
    environment: Mapping[str, Any] = {}
    sweep: Mapping[str, Any] = {}
    """The place in a sweep: round, turn in the round, order_seed, worker; and `options`, the
    request's options that the fields above do not hold."""
    failure: Mapping[str, Any] = {}
    """If the call, or its latency, was not measured: the kind of failure, and its circumstances."""
    labels: tuple[Text, ...] = ()
    """What distinguishes the record from the others of its file."""

    @property
    def kind(self) -> str:
        """The kind of device, cpu or cuda: boards of one machine are interchangeable."""
        return self.device.partition(":")[0]

    @property
    def options(self) -> Mapping[str, Any]:
        """The options of the request that are not their defaults."""
        found: Mapping[str, Any] = self.sweep.get("options", {})
        return found

    @property
    def round(self) -> int:
        """The round of a sweep, from 0."""
        return int(self.sweep.get("round", 0))

    @property
    def failed(self) -> bool:
        """Whether the record keeps a failure, and no figure at all."""
        return bool(self.failure) and not self.readings

    def reason(self, name: str) -> str:
        """Why a reading is missing: the reason of the reading, else that of the whole call, else
        `NAME was not measured`."""
        return self.reasons.get(name) or self.reasons.get(REASON, f"{name} was not measured")

    @property
    def compiled(self) -> bool:
        """Whether latency and energy are, or would have been, of a call compiled by
        torch.compile."""
        return (
            bool(self.options.get("compile"))
            or "compile" in self.readings
            or "compile" in self.reasons
        )

    def compact(
        self,
        without: Collection[str],
        share: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda facts: facts,
    ) -> Measurement:
        """The record with its numbers in arrays, for commands that hold thousands of records and
        write none. Details of readings, counters and facts of the environment that `without` names
        are left out; `share` returns one of equal mappings."""
        return replace(
            self,
            readings={name: compact(reading, without) for name, reading in self.readings.items()},
            counts=share({x: y for x, y in self.counts.items() if x not in without}),
            environment=share({x: y for x, y in self.environment.items() if x not in without}),
        )

    def written(self) -> dict[str, Any]:
        """The fields of schema 1; fields of `LATER` are present if they are not empty."""
        return {k: value for k, value in super().written().items() if value or k not in LATER}

    @classmethod
    def from_json(cls, record: Any) -> Measurement:
        """The measurement that `to_json` printed, with each control character replaced by U+FFFD;
        RecordError names the wrong field. Unknown fields are ignored, as schema 1 may gain some."""
        return cls.of_values(plain(record))

    @classmethod
    def of_values(cls, record: Any) -> Measurement:
        """Make a record from a dict of JSON values, which are finite and without control
        characters; RecordError for another schema, or a field that is missing or has a wrong type,
        unit or bounds."""
        if not isinstance(record, dict):
            raise RecordError(f"expected an object, got {type(record).__name__}")
        if record.get("schema") != SCHEMA:
            raise RecordError(f"expected schema {SCHEMA}, got {record.get('schema')!r:.60}")
        if missing := [name for name in STATED if name not in record]:
            raise RecordError(f"{missing[0]} is missing")
        stored = checked(record["readings"], dict[str, Any], "readings")
        found = checked(record | {"readings": {}}, cls, "")
        for name, facts in FACTS.items():
            checked(getattr(found, name), facts, name)
        readings = {name: Reading.from_json(name, one) for name, one in stored.items()}
        return replace(found, readings=readings)


STATED = ("id", "created", "readings", "reasons", "environment")
"""Fields that have a default in a measurement, and that a record must state."""
LATER = ("sweep", "failure", "labels")
"""Fields that joined schema 1 after its first version."""

OF_CALLS = (
    *(name for name in Counts.__annotations__ if name not in ("seed", "hardware")),
    "tensors",
    "steps",
)
"""What a record says of single operations, tensors and steps of the energy counter, which commands
on costs leave out."""
STATES = ("state", "state_before")
"""The facts of an environment that differ from record to record."""

FACTS: Mapping[str, Any] = {
    "counts": Counts,
    "environment": Environment,
    "sweep": Place,
    "failure": Failure,
}
"""Field -> the type of its content."""


def readings_of(records: Iterable[Measurement], name: str) -> list[Reading]:
    """The readings of this name, from the records that have one."""
    return [record.readings[name] for record in records if name in record.readings]


def first_reason(records: Iterable[Measurement], name: str) -> str:
    """The first recorded reason why records lack a reading, else `NAME was not measured`."""
    lacking = (record for record in records if name not in record.readings)
    told = [record for record in lacking if record.reasons.keys() & {name, REASON}]
    return told[0].reason(name) if told else f"{name} was not measured"


def divide(
    measured: Mapping[str, Measured],
) -> tuple[dict[str, Reading], dict[str, str]]:
    """Split the results of meters into two dicts: name -> reading, and name -> reason for those
    that are missing (`Unavailable`)."""
    readings = {name: m for name, m in measured.items() if isinstance(m, Reading)}
    reasons = {name: m.reason for name, m in measured.items() if isinstance(m, Unavailable)}
    return readings, reasons
