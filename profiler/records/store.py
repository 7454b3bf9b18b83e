"""Files of measurements, a line of JSON each: safe from crashes, full disks and other writers."""

from __future__ import annotations

import fcntl
import gc
import json
import math
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import msgspec

from costmodel.data import read_bytes
from profiler.records.measurement import Measurement
from profiler.records.schema import CONTROL, Details, RecordError, plain, within_limits


class StoreError(ValueError):
    """A file cannot be read, or a record cannot be written; one sentence says why."""


def line_of(record: Measurement) -> str:
    """A record as one line of JSON; StoreError if a number is not finite or a value is not JSON."""
    try:
        printed = record.to_json()
    except RecordError as error:
        raise StoreError(f"the record is not written: {error}") from None
    return json.dumps(printed, allow_nan=False, ensure_ascii=False)


_own = threading.Lock()
"""Keeps the threads of this process apart on file systems whose locks belong to processes (NFS)."""


@contextmanager
def exclusive(path: str | os.PathLike[str]) -> Iterator[int]:
    """Open a file of measurements, created if missing, for appending, locked for this thread alone,
    and give its descriptor. Raises StoreError: the file cannot be opened, written or locked."""
    with _own:
        try:
            handle = _locked(path)
            try:
                yield handle
            finally:
                os.close(handle)
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror}") from None


def _locked(path: str | os.PathLike[str]) -> int:
    """Open and lock a file; anew if it was deleted before the lock was had (as `writable` does)."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                return handle
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def append(path: str | os.PathLike[str], record: Measurement) -> None:
    """Add one line to a file of measurements, created if missing, and wait until it is on disk.

    Existing bytes stay: a truncated last line is marked `CUT` and ended, so that the record starts
    a new line. Other processes may append meanwhile: a line is one write, under a lock. StoreError
    if the file cannot be written.
    """
    data = line_of(record).encode()
    with exclusive(path) as handle:
        write_line(handle, data, path)


def write_line(handle: int, data: bytes, path: str | os.PathLike[str]) -> None:
    """Add one line to a file, open and locked as `handle`, and wait until it is on disk. A last
    line without newline is ended first, a truncated record with the mark `CUT`. StoreError, which
    names `path`, if the disk takes a part of the line; OSError if it takes none."""
    data = ending(unended(handle)) + data + b"\n"
    written = os.write(handle, data)
    os.fsync(handle)
    if written != len(data):
        raise StoreError(
            f"cannot write {path}: {written} of {len(data)} bytes fitted on the disk: free some "
            f"space"
        )


CUT = b" (cut off)"
"""Marks the end of a truncated line; a whole record never ends like this."""

BEGINNING = b'{"schema": '
"""The first bytes of every line."""


def unended(handle: int) -> bytes:
    """The bytes of an open file after its last newline: b"" unless its last line was cut off."""
    size = os.fstat(handle).st_size
    taken = 1  # nearly always the last byte is a newline
    while True:
        start = max(size - taken, 0)
        end = read_from(handle, start, size)
        if start == 0 or b"\n" in end:
            return end.rpartition(b"\n")[2]
        taken *= 1024


def read_from(handle: int, start: int, end: int) -> bytes:
    """The bytes of an open file between two offsets; fewer if the file ends before."""
    found = bytearray()
    while start + len(found) < end:
        more = os.pread(handle, end - start - len(found), start + len(found))
        if not more:
            break
        found += more
    return bytes(found)


def ending(text: bytes) -> bytes:
    """The bytes to append to a file whose last line `text` has no newline, so that a new line may
    begin: a newline, after the mark `CUT` if the line is the beginning of a record.

    >>> ending(b""), ending(b'{"schema": 1}'), ending(b'{"schema": 1, "i'), ending(b"no record")
    (b'', b'\\n', b' (cut off)\\n', b'\\n')
    """
    if not text:
        return b""
    cut = text[: len(BEGINNING)] == BEGINNING[: len(text)] and not is_json(text)
    return CUT + b"\n" if cut else b"\n"


def is_json(text: bytes) -> bool:
    """Whether a line is complete JSON of any content."""
    try:
        json.loads(text.decode())
    except (ValueError, RecursionError):
        return False
    return True


@dataclass(frozen=True)
class Line:
    """One line of a file of measurements: a record, or a sentence on why it is none.

    `remark`: the line was truncated and the file was continued, so the file is intact; `problem`:
    any other reason.
    """

    number: int
    text: bytes
    record: Measurement | None = None
    problem: str = ""
    remark: str = ""


def lines_of(texts: Iterable[bytes], before: int = 0) -> Iterator[Line]:
    """Yield a `Line` (a record, or why it is none) for each line of an open file, numbered after
    the `before` lines already read. Empty lines are left out, and a `CUT` that ends an earlier
    line."""
    for number, read in enumerate(texts, start=before + 1):
        text = read.removesuffix(b"\n")
        if text.strip() and text != CUT:
            yield line_from(text, number, last=not read.endswith(b"\n"))


def numbered(path: str | os.PathLike[str]) -> Iterator[tuple[int, bytes]]:
    """Yield (number, text without its newline) of every line of a file, from 1 on; StoreError if
    the file is unreadable."""
    with opened(path) as file:
        for number, read in enumerate(file, start=1):
            yield number, read.removesuffix(b"\n")


def line_from(text: bytes, number: int, *, last: bool) -> Line:
    """Read one line as a `Line` with its record; with a remark if the line ends with `CUT`, and
    with a problem if it is no record for another reason. `last`: no newline follows the line."""
    if text.endswith(CUT) and not last:
        said = f"line {number} was cut off as its writer was stopped, and was skipped"
        return Line(number, text, remark=f"{said}; the records below it are whole")
    try:
        record = Measurement.of_values(values_of(text))
    except RecordError as error:
        said = f"line {number} is no measurement and was skipped: {error}"
        return Line(number, text, problem=said)
    except (ValueError, RecursionError):  # not UTF-8, or not JSON
        cut = "cut off" if last else "not valid JSON"
        return Line(number, text, problem=f"line {number} is {cut} and was skipped")
    return Line(number, text, record)


def lines(path: str | os.PathLike[str]) -> Iterator[Line]:
    """Yield every non-empty line of a file as a `Line` (a record, or why it is none), read one
    after another; StoreError if the file is unreadable."""
    with opened(path) as file, without_collector():
        yield from lines_of(file)


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A context with an open file, or with the bytes of a device or pipe; StoreError if the file is
    unreadable."""
    place = Path(path)
    try:
        with place.open("rb") if place.is_file() else BytesIO(read_bytes(place)) as file:
            yield file
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as reason:
        raise StoreError(f"cannot read {path}: {reason}") from None


def read(
    path: str | os.PathLike[str],
    tell: Callable[[str], object] = lambda remark: None,
    keep: Callable[[Measurement], Measurement] = lambda record: record,
) -> tuple[list[Measurement], list[str]]:
    """(every readable measurement of a file, in order; one sentence per unreadable line).

    Failed measurements of a sweep are included, without readings. `tell` receives the remarks on
    truncated lines of a file that was continued. `keep` returns what is kept of a record, before
    the next record is read. StoreError if the file cannot be read.
    """
    records: list[Measurement] = []
    problems: list[str] = []
    for line in lines(path):
        if line.record is not None:
            records.append(keep(line.record))
        if line.problem:
            problems.append(line.problem)
        if line.remark:
            tell(line.remark)
    return records, problems


@contextmanager
def without_collector() -> Iterator[None]:
    """A context in which no garbage is collected. Records have no cycles: to walk thousands of them
    takes longer than to read them, and finds nothing."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


ALIKE = ("reasons", "counts")
"""Fields that many records of a file share: equal texts of a field become one value in memory."""


def values_of(text: bytes) -> Any:
    """Decode the JSON values of a line, with each control character in a text replaced by U+FFFD.
    Equal fields of `ALIKE`, and equal facts of environments, of several lines are one value.

    Raises:
        RecordError: a number is not finite, a whole number too large (but for parts of readings
            that `Reading.from_json` checks), or nesting too deep.
        ValueError, RecursionError: the line is no JSON, or not UTF-8.
    """
    # the fast way, for texts without control characters: they need no replacement
    if (text.isascii() and b"\\" not in text and b"\x7f" not in text) or is_harmless(text.decode()):
        try:
            parts = OBJECT.decode(text)
            found = {x: alike(bytes(y)) for x, y in parts.items() if x in ALIKE}
            if "environment" in parts:
                facts = OBJECT.decode(parts["environment"])
                found["environment"] = {x: alike(bytes(y)) for x, y in facts.items()}
            if "readings" in parts:
                found["readings"] = readings_in(parts["readings"])
            found |= {x: values_in(y) for x, y in parts.items() if x not in found}
        except (msgspec.MsgspecError, RecordError, RecursionError):
            pass  # `plain` below raises, with the name of the field
        else:
            return {name: found[name] for name in parts}
    return plain(json.loads(text.decode(), parse_int=whole))


ESCAPED = re.compile(r"\\[bfru]")
"""Escapes that may stand for control characters."""


def is_harmless(text: str) -> bool:
    """Whether a JSON text is known to have no control character, written out or escaped; False also
    for any escape that may stand for one, such as that of a letter, `\\u00e9`."""
    return not ESCAPED.search(text) and (text.isprintable() or not CONTROL.search(text))


OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
"""Reads a JSON object as a dict: name -> the text of its value."""


def values_in(text: msgspec.Raw | bytes) -> Any:
    """The JSON values of a field's text."""
    return within_limits([msgspec.json.decode(text)])[0]


def readings_in(text: msgspec.Raw) -> Any:
    """The JSON values of the field `readings`. What a type bounds is checked with the type: a check
    of each number and list here would take longer than the decoding."""
    found = msgspec.json.decode(text)
    for each in found.values() if isinstance(found, dict) else ():
        details = each.get("details") if isinstance(each, dict) else None
        within_limits(
            [{x: y for x, y in details.items() if x not in BOUNDED}]
            if isinstance(details, dict)
            else [each]
        )
    return found


BOUNDED = frozenset(x for x, kind in Details.__annotations__.items() if "Any" not in str(kind))
"""The details of a reading whose types bound every number."""

alike = lru_cache(maxsize=4096)(values_in)
"""`values_in`, which returns one shared value for equal texts."""


def whole(digits: str) -> float:
    """A whole number from its digits. From 25 digits on it is infinity, which `plain` refuses: no
    record may hold such a number, and Python refuses to read some as int."""
    return int(digits) if len(digits) < 25 else math.inf
