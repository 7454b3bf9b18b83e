"""Pairs of mixers at each point of a study, with the ratios of their measured and derived costs.

A *candidate* is a mixer with one of its implementations; `Rounds` are its records at one point, one
per round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from costmodel.errors import Unanswered, Unsupported
from costmodel.mixers.load import known
from costmodel.questions.count import count
from costmodel.questions.sequential import sequential
from costmodel.questions.span import span
from profiler.records.measurement import Measurement
from profiler.records.words import PHASES
from profiler.studies.ratios import LATENCY, Ratio, bound, bytes_ratio, energy_ratio, fastest, ratio

Rounds = list[Measurement]


@dataclass(frozen=True)
class Setting:
    """Phase, dtype and width, which all points of one table share."""

    phase: str
    dtype: str
    d: int

    @property
    def words(self) -> str:
        """The setting in words, for a title."""
        return f"{PHASES[self.phase]}, {self.dtype}, d = {self.d}"


@dataclass(frozen=True)
class Cells:
    """The records of a setting: (mixer, implementation) -> length -> rounds."""

    setting: Setting
    candidates: Mapping[tuple[str, str], Mapping[int, Rounds]]

    @property
    def lengths(self) -> list[int]:
        """The lengths at which any candidate has a record, in increasing order."""
        return sorted({l for found in self.candidates.values() for l in found})

    def at(self, mixer: str, length: int) -> dict[str, Rounds]:
        """Implementation -> the records of a mixer at a length, one per round, without failures."""
        return {
            implementation: kept
            for (name, implementation), found in self.candidates.items()
            if name == mixer and (kept := measured(found.get(length, [])))
        }


def measured(records: Sequence[Measurement]) -> Rounds:
    """The records that are no failures."""
    return [record for record in records if not record.failure]


def settings(records: Sequence[Measurement]) -> Iterator[Cells]:
    """Yield the records, failures too, in groups of one phase, dtype and width d, in this order."""
    groups: dict[Setting, dict[tuple[str, str], dict[int, Rounds]]] = {}
    for record in records:
        setting = Setting(record.phase, record.dtype, record.sizes["d"])
        candidate = groups.setdefault(setting, {}).setdefault(
            (record.mixer, record.implementation), {}
        )
        candidate.setdefault(record.sizes["l"], []).append(record)
    for setting in sorted(groups, key=lambda s: (list(PHASES).index(s.phase), s.dtype, s.d)):
        yield Cells(setting, groups[setting])


@dataclass(frozen=True)
class Pair:
    """Two mixers at one point, each by its fastest implementation; ratios are second over first."""

    setting: Setting
    l: int
    first: tuple[str, str]
    second: tuple[str, str]
    """`first` and `second` are (mixer, implementation)."""
    time: Ratio
    memory: Ratio
    energy: Ratio
    bound: bool
    """Whether the times of either side are bound by launches."""
    operations: float | None
    """The ratio of operations, derived from the equations; None if not derived."""
    span: float | None
    """The ratio of spans, derived from the equations; None if not derived."""
    steps: tuple[int, int] | None
    """The steps of the critical paths of (first, second); None if one is not derived."""

    @property
    def shorter(self) -> bool:
        """Whether the critical path of the second mixer has fewer steps."""
        return self.steps is not None and self.steps[1] < self.steps[0]


def pairs(records: Sequence[Measurement], first: str, others: Sequence[str]) -> list[Pair]:
    """Make the pairs of the mixer `first` with each of `others`, at each point at which both were
    measured. The confidence level holds for the intervals of all pairs together."""
    points = [
        (cells, length, other)
        for cells in settings(records)
        for length in cells.lengths
        for other in others
        if cells.at(first, length) and cells.at(other, length)
    ]
    return [_pair(cells, length, first, other, len(points)) for cells, length, other in points]


def _pair(cells: Cells, length: int, first: str, second: str, number: int) -> Pair:
    """Make the pair of two mixers at one length, with ratios `second` over `first`, each by its
    fastest implementation, or by its first one if no time was measured. `cells`: the records of a
    phase, dtype and width; `number`: how many pairs share the confidence level (Bonferroni).

    The records that choose the fastest implementation also give the ratios. Launches bound the time
    only if it is a hot latency: the replay of a CUDA graph excludes them.
    """
    one, other = cells.at(first, length), cells.at(second, length)
    a, b = fastest(one) or next(iter(one)), fastest(other) or next(iter(other))
    sides = (one[a][0], other[b][0])
    time = ratio(one[a], other[b], comparisons=number)
    return Pair(
        cells.setting, length, (first, a), (second, b),
        time,
        bytes_ratio(one[a], other[b]),
        energy_ratio(one[a], other[b]),
        time.reading == LATENCY[-1] and bound([*one[a], *other[b]]),
        _over(_both(_operations, *sides)), _over(_both(_span, *sides)), _both(_steps, *sides),
    )  # fmt: skip


def _both(rule: Callable[[Measurement], int], *sides: Measurement) -> tuple[int, int] | None:
    """The number that `rule` derives of the first and of the second record; None if it is not
    derived for one of them."""
    try:
        first, second = map(rule, sides)
    except (Unsupported, Unanswered):
        return None
    return first, second


def _over(both: tuple[int, int] | None) -> float | None:
    """The second quantity over the first; None if unknown or the first is 0."""
    return both[1] / both[0] if both and both[0] else None


def _operations(record: Measurement) -> int:
    """The operations of a record's mixer in its default form, at the record's sizes."""
    return count(known(record.mixer), record.phase).at(**record.sizes).total


def _span(record: Measurement) -> int:
    """The span (dependent operations) of a record's mixer in its default form, at its sizes."""
    return span(known(record.mixer), record.phase).at(**record.sizes)


def _steps(record: Measurement) -> int:
    """The steps of the critical path of a record's mixer in its default form, at its sizes."""
    return sequential(known(record.mixer), record.phase).at(**record.sizes)
