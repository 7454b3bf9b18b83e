"""Series of a file's records: one quantity against one size, all else equal.

A value is cut if it does not show how the work grows: launches bound its time, it has no interval,
or the machine was busy and the interval overlaps that of a neighbouring size. A cut value is
reported with the reason and is not fitted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from profiler.records.grades import BUSY, grade_of
from profiler.records.measurement import REASON, Measurement, first_reason
from profiler.records.quantities import MeasuredQuantity
from profiler.records.reading import Reading
from profiler.records.words import PHASES, options_words, sizes_words
from profiler.run.caveats import idleness
from profiler.scaling.exponents import MeasuredValue, pooled, with_touching_cut

COMMON = ("b", "l", "t", "d")
"""The sizes that every mixer has."""

LAUNCH_BOUND, NO_INTERVAL = "bound by launches", "without an interval"
"""The reasons why a value does not show the growth of the work."""

Fixed = tuple[tuple[str, int], ...]
"""Sizes with their values."""
Key = tuple[str, str, str, str, str, str, str, Fixed]
"""Mixer, implementation, form, phase, dtype, kind of device, letter and the fixed sizes."""


@dataclass(frozen=True)
class Series:
    """Measurements at several values of one size, all else equal."""

    mixer: str
    implementation: str
    form: str
    phase: str
    dtype: str
    device: str
    """cpu or cuda."""
    letter: str
    fixed: Fixed
    """The other sizes with their values; without t if t varies with l (the last token)."""
    records: tuple[Measurement, ...]

    @property
    def label(self) -> str:
        """Mixer, implementation and options."""
        return f"{self.mixer} {self.implementation}{self.asked}"

    @property
    def asked(self) -> str:
        """The options, as `, compile=True`; "" if there are none."""
        return options_words(self.records[0].options)

    @property
    def name(self) -> str:
        """The label, with the sizes that are not common to all mixers."""
        own = sizes_words({x: n for x, n in self.fixed if x not in COMMON})
        return f"{self.label} ({own})" if own else self.label

    @property
    def setting(self) -> str:
        """The phase, dtype, device and fixed sizes, in words."""
        return self.setting_at(frozenset(dict(self.fixed)))

    def setting_at(self, letters: frozenset[str]) -> str:
        """The setting in words, with only those fixed sizes that are in `letters`."""
        sizes = sizes_words({x: n for x, n in self.fixed if x in letters})
        words = (PHASES[self.phase], self.dtype, self.device, sizes)
        return ", ".join(filter(None, words))

    @property
    def sizes(self) -> list[int]:
        """The values of the letter, ascending."""
        return sorted(self._at)

    def at(self, size: int) -> list[Measurement]:
        """The records at one size, one per round."""
        return self._at[size]

    @cached_property
    def _at(self) -> dict[int, list[Measurement]]:
        """A dict: size -> the records of the series at this size."""
        found: dict[int, list[Measurement]] = {}
        for record in self.records:
            found.setdefault(record.sizes[self.letter], []).append(record)
        return found

    @cached_property
    def moving(self) -> frozenset[str]:
        """The letters that vary along the series: the letter, and t with l for the last token."""
        letters = set(self.records[0].sizes)
        return frozenset(letters - {letter for letter, _ in self.fixed})

    def values(self, quantity: MeasuredQuantity) -> list[MeasuredValue]:
        """The values of a quantity, one per size at which it was measured and is above zero."""
        found = [v for size in self.sizes if (v := pooled_value(self.at(size), size, quantity))]
        return with_touching_cut(found)

    def missing(self, quantity: MeasuredQuantity) -> str:
        """Why no record has the quantity; "" if one has it."""
        if any(quantity.reading in record.readings for record in self.records):
            return ""
        return first_reason(self.records, quantity.reading)


def series_of(records: Iterable[Measurement], letter: str) -> list[Series]:
    """The series along a size (`letter`): groups of records that differ in this size alone, with
    two values of it or more, in the order in which they first occur.

    A record with a failure belongs to a series if it has readings.

    A record of the last token, t = l, belongs to two series along l: one in which t varies with l,
    and one in which t is fixed.
    """
    groups: dict[tuple[Key, str], list[Measurement]] = {}
    for record in records:
        if record.failed or letter not in record.sizes:
            continue
        options = repr(sorted(record.options.items()))
        names = (record.mixer, record.implementation, record.form, record.phase, record.dtype)
        for fixed in fixed_of(record, letter):
            key = (*names, record.kind, letter, fixed)
            groups.setdefault((key, options), []).append(record)
    return [
        Series(*key, tuple(group))
        for (key, _), group in groups.items()
        if len({record.sizes[letter] for record in group}) > 1
    ]


def in_no_series(records: Sequence[Measurement], along: Sequence[Series], letter: str) -> list[str]:
    """A sentence for each reason why records are in none of the series `along` a letter, with the
    number of these records; the reason of the most records first."""
    inside = {record.id for series in along for record in series.records}
    lost: Counter[str] = Counter()
    for record in records:
        if record.id in inside:
            continue
        if record.failed:
            lost[f"nothing was measured ({record.reasons.get(REASON, 'unknown reason')})"] += 1
        elif letter in record.sizes:
            lost[f"no other record differs in {letter} alone"] += 1
        else:
            lost[f"they have no size {letter}"] += 1
    return [
        f"{number:,} of {len(records):,} records are in no series in {letter}: {why}"
        for why, number in lost.most_common()
    ]


def without_value(along: Iterable[Series], quantity: MeasuredQuantity) -> dict[str, set[str]]:
    """A dict over the records of these series: reason why a record has no value of `quantity` above
    zero -> the ids of the records."""
    name = quantity.reading
    found: dict[str, set[str]] = {}
    for record in (record for series in along for record in series.records):
        if name in record.readings and record.readings[name].value > 0:
            continue
        zero = f"{quantity.title} is zero"
        why = zero if name in record.readings else record.reason(name)
        found.setdefault(why, set()).add(record.id)
    return found


def fixed_of(record: Measurement, letter: str) -> list[Fixed]:
    """The sizes that stay fixed, (letter, value) each, for each series along `letter` to which a
    record belongs: one series, or two. A record of the last token, t = l, belongs to two series
    along l: in one t moves with l, in the other t is fixed.

    >>> from functools import partial
    >>> token = partial(Measurement, mixer="she", implementation="conv", form="", dtype="fp32",
    ...                 phase="inference", device="cpu")
    >>> fixed_of(token(sizes={"l": 4, "t": 2}), "l"), fixed_of(token(sizes={"l": 4, "t": 4}), "l")
    ([(('t', 2),)], [(), (('t', 4),)])
    """
    sizes = record.sizes
    others = tuple((x, n) for x, n in sizes.items() if x != letter)
    if letter != "l" or "t" not in sizes or sizes["t"] != sizes["l"]:
        return [others]
    return [tuple((x, n) for x, n in others if x != "t"), others]


def pooled_value(
    records: Sequence[Measurement], size: int, quantity: MeasuredQuantity
) -> MeasuredValue | None:
    """Pool the records at one size, one for each round of measurement, into one value with an
    interval; None if no round has a value above zero.

    The value is `cut` (will not be fitted) if a round has no interval, which an exact quantity
    (bytes) does not need, or if launches bound the time of a round.
    """
    read = [(r, r.readings[quantity.reading]) for r in records if quantity.reading in r.readings]
    rounds = [reading for _, reading in read if reading.value > 0]
    if not rounds:
        return None
    found = pooled([reading_interval(reading) for reading in rounds])
    if not quantity.exact and not all(map(has_interval, rounds)):
        return MeasuredValue(size, *found, cut=f"{NO_INTERVAL} ({why_no_interval(rounds)})")
    busy = not quantity.exact and any(grade_of(reading) == BUSY for reading in rounds)
    bound = quantity.launches and any(waits_for_launches(record) for record, _ in read)
    return MeasuredValue(size, *found, cut=LAUNCH_BOUND if bound else "", busy=busy)


def has_interval(reading: Reading) -> bool:
    """Whether the interval of the median is known and lies above zero."""
    return reading.interval is not None and min(reading.interval) > 0


def why_no_interval(rounds: Sequence[Reading]) -> str:
    """Why a round has no interval: the first reason in a record, else the fewest samples."""
    said = [r.details["ci_missing"] for r in rounds if "ci_missing" in r.details]
    fewest = min(len(reading.samples) for reading in rounds)
    return said[0] if said else f"{fewest} sample{'s' if fewest != 1 else ''}"


def reading_interval(reading: Reading) -> tuple[float, float, float]:
    """Value and interval of the median; without one, the range of the samples above zero."""
    ends = [*(reading.interval or ())] if has_interval(reading) else []
    ends = ends or [sample for sample in reading.samples if sample > 0]
    return reading.value, min([*ends, reading.value]), max([*ends, reading.value])


def waits_for_launches(record: Measurement) -> bool:
    """Whether the device is launch-bound, or mostly idle because of launches."""
    return "latency" in record.readings and bool(idleness(record))
