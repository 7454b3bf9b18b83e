"""How are measurements kept on disk, so that no crash, full disk or other writer loses one?"""

from __future__ import annotations

import fcntl
import json
import math
import os
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from profiler.meters.interface import Measured, Reading, Unavailable

SCHEMA = 1


class StoreError(ValueError):
    """A record that cannot be written, or is none; one sentence says why."""


def new_id() -> str:
    """A record id that no other record has."""
    return uuid.uuid4().hex


def utc_now() -> str:
    """Now in UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class Measurement:
    """Everything measured of one implementation at one set of sizes.

    `readings` by name, each with unit and raw samples; `reasons` says for everything that is
    missing why; `counts` holds what the counters gave (JSON values). A record with a `failure` has
    no readings: it keeps that the measurement was tried and why there is none.
    """

    mixer: str
    implementation: str
    form: str
    sizes: Mapping[str, int]
    dtype: str
    phase: str
    device: str
    readings: Mapping[str, Reading] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    counts: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    id: str = field(default_factory=new_id)
    created: str = field(default_factory=utc_now)
    sweep: Mapping[str, Any] = field(default_factory=dict)
    """Its place in a sweep: round, turn in the round, order_seed, worker; and `options`, what the
    request asked for beside the fields above."""
    failure: Mapping[str, Any] = field(default_factory=dict)
    """Where nothing was measured: its kind, and what is known of it."""
    labels: tuple[str, ...] = ()
    """What sets the record apart from the others of its file."""

    def to_json(self) -> dict[str, Any]:
        """The record as schema 1 prints it; what joined it later is there where there is any."""
        later = {"sweep": dict(self.sweep), "failure": dict(self.failure)}
        return {
            "schema": SCHEMA,
            "id": self.id,
            "created": self.created,
            "mixer": self.mixer,
            "implementation": self.implementation,
            "form": self.form,
            "sizes": dict(self.sizes),
            "dtype": self.dtype,
            "phase": self.phase,
            "device": self.device,
            "readings": {name: reading_to_json(r) for name, r in self.readings.items()},
            "reasons": dict(self.reasons),
            "counts": dict(self.counts),
            "environment": dict(self.environment),
            **{key: value for key, value in later.items() if value},
            **({"labels": list(self.labels)} if self.labels else {}),
        }

    @classmethod
    def from_json(cls, record: Any) -> Measurement:
        """The measurement that `to_json` gave; StoreError names what is missing or wrong.

        Keys that schema 1 gained later are passed over.
        """
        if not isinstance(record, dict):
            raise StoreError(f"expected an object, got {type(record).__name__}")
        if record.get("schema") != SCHEMA:
            raise StoreError(f"expected schema {SCHEMA}, got {record.get('schema')!r}")
        texts = ("id", "created", "mixer", "implementation", "form", "dtype", "phase", "device")
        fields: dict[str, Any] = {key: taken(record, key, str) for key in texts}
        for key in ("sizes", "reasons", "environment"):
            fields[key] = taken(record, key, dict)
        if any(type(size) is not int for size in fields["sizes"].values()):
            raise StoreError(f"expected integers as sizes, got {fields['sizes']}")
        readings = taken(record, "readings", dict)
        fields["readings"] = {name: reading_from_json(name, r) for name, r in readings.items()}
        for key in ("sweep", "failure"):
            fields[key] = taken({key: {}} | record, key, dict)
        fields["labels"] = tuple(taken({"labels": []} | record, "labels", list))
        return cls(**fields, counts=record.get("counts", {}))


def taken(record: Mapping[str, Any], key: str, kind: type) -> Any:
    """A field of the expected type."""
    if key not in record:
        raise StoreError(f"the field {key!r} is missing")
    if not isinstance(record[key], kind):
        raise StoreError(f"expected {kind.__name__} as {key!r}, got {record[key]!r}")
    return record[key]


def reading_to_json(reading: Reading) -> dict[str, Any]:
    """value, unit, samples, details; the name is the key that it is stored under."""
    return {
        "value": reading.value,
        "unit": reading.unit,
        "samples": list(reading.samples),
        "details": dict(reading.details),
    }


def reading_from_json(name: str, record: Any) -> Reading:
    """The reading that was stored under `name`."""
    if not isinstance(record, dict):
        raise StoreError(f"expected an object as reading {name!r}, got {record!r}")
    samples = taken(record, "samples", list)
    value: Any = record.get("value")
    if not all(is_number(number) for number in (value, *samples)):
        raise StoreError(f"reading {name!r}: expected numbers as value and samples")
    unit, details = taken(record, "unit", str), taken(record, "details", dict)
    return Reading(name, value, unit, tuple(samples), details)


def is_number(value: Any) -> bool:
    """A finite int or float."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def divide(
    measured: Mapping[str, Measured],
) -> tuple[dict[str, Reading], dict[str, str]]:
    """What was read, and the reasons for what was not, by name."""
    readings = {name: m for name, m in measured.items() if isinstance(m, Reading)}
    reasons = {name: m.reason for name, m in measured.items() if isinstance(m, Unavailable)}
    return readings, reasons


def line_of(record: Measurement) -> str:
    """One line of JSON; StoreError where a number is not finite or a value is no JSON."""
    printed = record.to_json()
    where = not_finite(printed)
    if where:
        raise StoreError(f"not written: {where} is not a finite number")
    try:
        line = json.dumps(printed, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise StoreError(f"not written: {error}") from None
    return line


def not_finite(value: Any, path: str = "") -> str:
    """The path of the first NaN or infinity in nested JSON values, empty if there is none."""
    if isinstance(value, float):
        return "" if math.isfinite(value) else path
    if isinstance(value, Mapping):
        items = [(f"{path}.{key}".lstrip("."), item) for key, item in value.items()]
    elif isinstance(value, list | tuple):
        items = [(f"{path}[{place}]", item) for place, item in enumerate(value)]
    else:
        return ""
    return next((where for key, item in items if (where := not_finite(item, key))), "")


_own = threading.Lock()
"""Where locks belong to processes (NFS), they do not keep threads apart."""


@contextmanager
def exclusive(path: str | os.PathLike[str]) -> Iterator[int]:
    """A file of measurements, made if missing, open for appending to this thread alone.

    Raises:
        StoreError: it cannot be opened, written or locked.
    """
    with _own:
        try:
            handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                yield handle
            finally:
                os.close(handle)
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror}") from None


def append(path: str | os.PathLike[str], record: Measurement) -> None:
    """Add one line to a file of measurements, made if missing, and wait until it is on disk.

    Earlier lines are never touched: a last line that was cut off is left as it is and the record
    starts on a line of its own. Others may append at the same time: a line is one write, under a
    lock. StoreError where the file cannot be written.
    """
    data = line_of(record).encode()
    with exclusive(path) as handle:
        write_line(handle, data, path)


def write_line(handle: int, data: bytes, path: str | os.PathLike[str]) -> None:
    """Add one line to the file that `exclusive` opened, and wait until it is on disk."""
    data = (b"\n" if ends_inside_a_line(handle) else b"") + data + b"\n"
    written = os.write(handle, data)
    os.fsync(handle)
    if written != len(data):
        raise StoreError(f"cannot write {path}: {written} of {len(data)} bytes fitted on the disk")


def ends_inside_a_line(handle: int) -> bool:
    """Whether a file holds something whose last byte is no newline."""
    size = os.fstat(handle).st_size
    return size > 0 and os.pread(handle, 1, size - 1) != b"\n"


@dataclass(frozen=True)
class Line:
    """One line of a file of measurements: a record, or a sentence that says why it is none."""

    number: int
    text: bytes
    record: Measurement | None = None
    problem: str = ""


def lines_of(data: bytes, before: int = 0) -> list[Line]:
    """The lines of a file, or of its end after so many lines; empty ones are left out."""
    texts = data.split(b"\n")
    return [
        line_from(text, before + place, last=place == len(texts))
        for place, text in enumerate(texts, start=1)
        if text.strip()
    ]


def line_from(text: bytes, number: int, *, last: bool) -> Line:
    """What one line holds; `last`: no newline follows it."""
    try:
        record = Measurement.from_json(json.loads(text.decode(), parse_constant=refuse))
    except StoreError as error:
        said = f"line {number} is no measurement and was skipped: {error}"
        return Line(number, text, problem=said)
    except (ValueError, RecursionError):  # not UTF-8, or not JSON
        cut = "cut off" if last else "not valid JSON"
        return Line(number, text, problem=f"line {number} is {cut} and was skipped")
    return Line(number, text, record)


def lines(path: str | os.PathLike[str]) -> list[Line]:
    """Every line of a file that holds something; StoreError where the file cannot be read."""
    try:
        return lines_of(Path(path).read_bytes())
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from None


def read(path: str | os.PathLike[str]) -> tuple[list[Measurement], list[str]]:
    """Every measurement that can be read, in order, and one sentence per line that cannot.

    Those of a sweep that failed are among them, without readings. StoreError where the file itself
    cannot be read.
    """
    found = lines(path)
    records = [line.record for line in found if line.record is not None]
    return records, [line.problem for line in found if line.problem]


def refuse(constant: str) -> float:
    """JSON has no NaN and no infinities."""
    raise ValueError(f"{constant} is no JSON number")
