"""The result of a measurement: a reading with unit and raw samples, or the reason why not."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from sys import intern
from typing import Any

import msgspec
from msgspec.structs import replace

from costmodel.errors import TOO_LITTLE, shortened, text_of
from profiler.records.quantities import LATENCIES, QUANTITIES
from profiler.records.schema import Details, Name, Number, Record, RecordError, Samples, checked

NOT_RECORDED = "not recorded"
"""The stopping rule of a time whose record names none."""
INTERVAL = ("ci_low", "ci_high")
"""The ends of a confidence interval among the details of a reading."""
NO_INTERVAL = "too few samples for an interval of the median"
"""The reason for a missing interval in a record without a reason."""


class Reading(Record, frozen=True):
    """One measured quantity.

    `value` is in `unit` (s, B, J, W, 1 for a count); `samples` are the raw values from which it was
    computed, in the same unit; `details` holds JSON values about how it was obtained.
    """

    WRITTEN = ("value", "unit", "samples", "details")  # the name is the key of the reading

    name: Name
    value: Number
    unit: Name
    samples: Samples = ()
    details: Mapping[str, Any] = {}

    @property
    def labels(self) -> Sequence[str]:
        """The labels: what disturbed or limits the reading."""
        found: Sequence[str] = self.details.get("labels", ())
        return found

    @property
    def interval(self) -> tuple[float, float] | None:
        """The ends of the confidence interval; None if it is unknown."""
        low, high = map(self.details.get, INTERVAL)
        return None if low is None or high is None else (low, high)

    @property
    def why_no_interval(self) -> str:
        """Why the confidence interval is unknown."""
        return str(self.details.get("ci_missing", NO_INTERVAL))

    def converted(
        self, name: str, unit: str, convert: Callable[[float], float], keep: Iterable[str] = ()
    ) -> Reading:
        """A reading of another quantity, `name` in `unit`, from the same measurement: the monotone
        function `convert` is applied to value, samples and the ends of the interval. Of the other
        details, only `keep` remain."""
        details = {key: self.details[key] for key in keep if key in self.details}
        if self.interval is not None:
            details["ci_low"], details["ci_high"] = sorted(map(convert, self.interval))
        return Reading(name, convert(self.value), unit, tuple(map(convert, self.samples)), details)

    @classmethod
    def from_json(cls, name: str, stored: Any, place: str = "readings") -> Reading:
        """Check and return the reading that a record stores under `name`, as JSON values. Raises
        RecordError: a field has a wrong type, unit or bounds: a duration of zero, a negative value
        of an unsigned quantity, half an interval, or a value outside its interval. The message
        names the field below `place`, the mapping's place in the record."""
        where = f"{place}.{name}"
        given = {**stored, "name": name} if isinstance(stored, dict) else stored
        found = checked(given, cls, where)
        details = checked(found.details, Details, f"{where}.details")
        quantity = QUANTITIES.get(name)
        if quantity and found.unit != quantity.unit:
            raise RecordError(f"{where}.unit: expected {quantity.unit!r}, got {found.unit!r}")
        least = min(found.value, *found.samples) if found.samples else found.value
        signed = quantity is not None and quantity.signed
        if (least < 0 and not signed) or (least == 0 and name in LATENCIES):
            raise RecordError(
                f"{where}: {least} {found.unit} is too small: expected "
                f"{'more than 0' if name in LATENCIES else '0 or more'}"
            )
        low, high = details.get("ci_low"), details.get("ci_high")
        if (low is None) != (high is None):
            raise RecordError(
                f"{where}.details: got {'ci_high' if low is None else 'ci_low'} alone: expected "
                "both ci_low and ci_high, or neither"
            )
        if low is not None and high is not None:
            if not low <= found.value <= high:
                raise RecordError(
                    f"{where}.details: the value {found.value} lies outside its interval, ci_low "
                    f"{low} to ci_high {high}"
                )
            if low < 0 and found.unit != "J":
                raise RecordError(
                    f"{where}.details.ci_low: {low} {found.unit} is too small: expected 0 or more"
                )
        return found


def compact(reading: Reading, without: Collection[str]) -> Reading:
    """The reading with its samples, and each list of numbers in its details, as arrays, which take
    a quarter of the memory of tuples and lists (`packed`). The details `without`, and those that
    the schema lacks, which no command reads, are left out."""
    details = {
        x: packed(value) if type(value) in PACKED else value
        for x, value in reading.details.items()
        if x in Details.__annotations__ and x not in without
    }
    return replace(reading, samples=packed(reading.samples), details=details)


@dataclass(frozen=True, slots=True, eq=False)
class Objects(Sequence[Any]):
    """A list of JSON objects in a quarter of its memory: as text, decoded at each access. It equals
    a list or tuple of the same objects."""

    text: bytes
    """The list in JSON."""
    number: int
    """How many objects the list has."""

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, place: Any) -> Any:
        return msgspec.json.decode(self.text)[place]

    def __iter__(self) -> Iterator[Any]:
        return iter(msgspec.json.decode(self.text))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, list | tuple | Objects) and [*self] == [*other]

    def __hash__(self) -> int:
        return hash(self.text)


PACKED = (str, list, tuple)
"""The types that `packed` may change."""


def packed(values: Any) -> Any:
    """A list or tuple of at least four floats, or as many integers, as an array, or of as many
    objects as `Objects`; a text as the object of all equal texts; others unchanged.

    >>> packed((0.5, 1.0, 2.0, 3.0)), packed([1, 2, 3, 4]), packed([0.5, 1, 2, 3])
    (array('d', [0.5, 1.0, 2.0, 3.0]), array('q', [1, 2, 3, 4]), [0.5, 1, 2, 3])
    >>> packed([{"bytes": 4}] * 4)[1:3]
    [{'bytes': 4}, {'bytes': 4}]
    """
    kind = type(values)
    if kind is str:
        return intern(values)
    if (kind is not list and kind is not tuple) or len(values) < 4:
        return values
    kinds = {*map(type, values)}
    if kinds == {dict}:
        return Objects(msgspec.json.encode(values), len(values))
    return (
        array("d", values) if kinds == {float} else array("q", values) if kinds == {int} else values
    )


def quantile(samples: Sequence[float], part: float) -> float:
    """The quantile `part` of the samples, interpolated linearly.

    >>> quantile([1.0, 2.0, 3.0], 0.25)
    1.5
    """
    ordered = sorted(samples)
    place = part * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def details_of_time(timed: Reading) -> Mapping[str, Any]:
    """The details of a time, with its number of samples `n`, their 20 % and 80 % quantiles `p20`
    and `p80`, and why sampling stopped (`stop_rule`). Where the record lacks one of the four,
    numbers are computed from the samples, and the rule is `NOT_RECORDED`."""
    if {"n", "p20", "p80", "stop_rule"} <= timed.details.keys():
        return timed.details
    low, high = (quantile(timed.samples or (timed.value,), part) for part in (0.2, 0.8))
    summary = {"n": len(timed.samples), "p20": low, "p80": high, "stop_rule": NOT_RECORDED}
    return summary | {**timed.details}


def taken_once(name: str, value: float, details: Mapping[str, Any] = {}) -> Reading:
    """Make the reading of a quantity that was measured once, in the unit of the table of readings.

    >>> taken_once("weights", 8).samples
    (8.0,)
    """
    return Reading(name, value, QUANTITIES[name].unit, (float(value),), details)


class Unavailable(Record, frozen=True):
    """A quantity that was not measured: `reason` is one sentence on the cause and the remedy."""

    reason: str

    def __post_init__(self) -> None:
        if not self.reason.strip():
            raise ValueError("Unavailable needs a reason: one sentence, not an empty string")


class DeviceLost(Unavailable, frozen=True):
    """An Unavailable after which this process cannot use the device, so that nothing may follow."""


Measured = Reading | Unavailable


def reason_of(error: BaseException) -> str:
    """The first line of an exception's message; if the message is empty, the name of its class, and
    for a MemoryError a sentence.

    >>> reason_of(RuntimeError("out of memory\\nat frame 3"))
    'out of memory'
    >>> reason_of(MemoryError())
    'there is too little memory here; smaller sizes need less'
    """
    lines = text_of(error).splitlines()
    if not lines and isinstance(error, MemoryError):
        return TOO_LITTLE
    return lines[0].strip() if lines else shortened(type(error).__name__)


def whole_text(error: BaseException) -> str:
    """The message of an exception, up to 100,000 characters; "" if its own code raises."""
    return text_of(error, 100_000)


class MeasureError(ValueError):
    """A measurement that cannot be made; one sentence says what was expected and what came."""
