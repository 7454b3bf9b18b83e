"""How are measurements kept on disk, so that no crash, full disk or other writer loses one?"""

from __future__ import annotations

import fcntl
import json
import math
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from profiler.records.reading import Measured, Reading, Unavailable

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

    @property
    def compiled(self) -> bool:
        """Whether latency and energy are, or were to be, those of a call that was compiled."""
        asked = self.sweep.get("options", {}).get("compile", False)
        return bool(asked) or "compile" in self.readings or "compile" in self.reasons

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
        for key in ("sweep", "failure", "counts"):
            fields[key] = taken({key: {}} | record, key, dict)
        fields["labels"] = tuple(texts_in(record, "labels"))
        for key, why in fields["reasons"].items():
            if not isinstance(why, str):
                raise StoreError(f"expected a sentence as the reason {key!r}, got {why!r}")
        for key in sorted(NESTED):
            if fields["environment"].get(key) is not None:
                taken(fields["environment"], key, dict)
        known = (("sweep", "options", dict), ("counts", "seed", int), ("counts", "hardware", dict))
        for holder, key, kind in known:
            if key in fields[holder]:
                taken(fields[holder], key, kind)
        return cls(**fields)


NESTED = frozenset({"state", "settings", "variables", "caches", "gpu", "ceilings", "reasons"})
"""The facts of an environment that have facts of their own."""


def texts_in(record: Mapping[str, Any], key: str) -> list[str]:
    """A list of texts, none where it is not there."""
    found: list[str] = taken({key: []} | dict(record), key, list)
    if not all(isinstance(text, str) for text in found):
        raise StoreError(f"expected texts as {key!r}, got {found!r}")
    return found


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
    texts_in(details, "labels")
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

    No byte that is there is touched: a last line that was cut off is ended, marked as such, and the
    record starts on a line of its own. Others may append at the same time: a line is one write,
    under a lock. StoreError where the file cannot be written.
    """
    data = line_of(record).encode()
    with exclusive(path) as handle:
        write_line(handle, data, path)


def write_line(handle: int, data: bytes, path: str | os.PathLike[str]) -> None:
    """Add one line to the file that `exclusive` opened, and wait until it is on disk."""
    data = ending(unended(handle)) + data + b"\n"
    written = os.write(handle, data)
    os.fsync(handle)
    if written != len(data):
        raise StoreError(f"cannot write {path}: {written} of {len(data)} bytes fitted on the disk")


CUT = b" (cut off)"
"""What ends a line whose writer was stopped within it: a whole record never ends like this."""


BEGINNING = b'{"schema": '
"""How every line begins."""


def unended(handle: int) -> bytes:
    """What stands in a file after its last newline."""
    size = os.fstat(handle).st_size
    taken = 1  # nearly always the last byte is a newline
    while True:
        start = max(size - taken, 0)
        end = read_from(handle, start, size)
        if start == 0 or b"\n" in end:
            return end.rpartition(b"\n")[2]
        taken *= 1024


def read_from(handle: int, start: int, end: int) -> bytes:
    """The bytes of an open file between two places."""
    found = bytearray()
    while start + len(found) < end:
        more = os.pread(handle, end - start - len(found), start + len(found))
        if not more:
            break
        found += more
    return bytes(found)


def ending(text: bytes) -> bytes:
    """What must follow a last line without newline before another one may begin.

    >>> ending(b""), ending(b'{"schema": 1}'), ending(b'{"schema": 1, "i'), ending(b"no record")
    (b'', b'\\n', b' (cut off)\\n', b'\\n')
    """
    if not text:
        return b""
    cut = text[: len(BEGINNING)] == BEGINNING[: len(text)] and not is_json(text)
    return CUT + b"\n" if cut else b"\n"


def is_json(text: bytes) -> bool:
    """Whether a line is whole JSON, whatever it says."""
    try:
        json.loads(text.decode())
    except (ValueError, RecursionError):
        return False
    return True


@dataclass(frozen=True)
class Line:
    """One line of a file of measurements: a record, or a sentence that says why it is none.

    `remark`: its writer was stopped within it and the file was gone on with, so that nothing is
    wrong with the file; `problem`: anything else.
    """

    number: int
    text: bytes
    record: Measurement | None = None
    problem: str = ""
    remark: str = ""


def lines_of(data: bytes, before: int = 0) -> list[Line]:
    """The lines of a file, or of its end after so many lines; empty ones are left out, and so is
    the end of a line that was told before as cut off."""
    texts = data.split(b"\n")
    return [
        line_from(text, before + place, last=place == len(texts))
        for place, text in enumerate(texts, start=1)
        if text.strip() and text != CUT
    ]


def line_from(text: bytes, number: int, *, last: bool) -> Line:
    """What one line holds; `last`: no newline follows it."""
    if text.endswith(CUT) and not last:
        said = f"line {number} was cut off as its writer was stopped, and was skipped"
        return Line(number, text, remark=f"{said}; the records below it are whole")
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


def read(
    path: str | os.PathLike[str], tell: Callable[[str], object] = lambda remark: None
) -> tuple[list[Measurement], list[str]]:
    """Every measurement that can be read, in order, and one sentence per line that cannot.

    Those of a sweep that failed are among them, without readings. `tell` is told of lines that were
    cut off before the file was gone on with: these are no problem of the file. StoreError where the
    file itself cannot be read.
    """
    found = lines(path)
    for line in found:
        if line.remark:
            tell(line.remark)
    records = [line.record for line in found if line.record is not None]
    return records, [line.problem for line in found if line.problem]


def refuse(constant: str) -> float:
    """JSON has no NaN and no infinities."""
    raise ValueError(f"{constant} is no JSON number")


REASON = "measurement"
"""The reason of a record without readings stands under this name."""
