"""The values of figures of theory: curves over one size, and the map of winners over two."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise

from costmodel.backwards.crossover import Crossover, Stretch
from costmodel.backwards.curves import Curve, Curves, Winners
from costmodel.language.equations import Mixer
from costmodel.questions.question import Figure
from costmodel.symbolic.sizes import LETTERS
from profiler.plots.picture import SIZES, Axis, Line, Panel, Picture, Region
from profiler.records.words import PHASES, sizes_words

MANY = 12
"""The largest number of break-evens that are marked."""
FEW = 6
"""The largest number of sizes without a value that a sentence lists."""
EQUAL = " = "
"""Between the names of candidates that are equal."""
MIXED = "by the remainder"
"""The name of sizes at which the least depends on the remainder of the size."""

UNITS: Mapping[str, tuple[str, str, float]] = {
    "bytes": ("B", "", 1.0),
    "operations/byte": ("", "operations/B", 1.0),
    "ns": ("s", "", 1e-9),
    "uJ": ("J", "", 1e-6),
}
"""Unit of a figure -> the unit of its axis' ticks, the unit in the axis' name, and the factor by
which values are multiplied."""


def curve_picture(
    found: Curves, called: Mapping[str, str], mixers: tuple[Mixer, ...], said: Sequence[str]
) -> Picture:
    """Make the figure of curves over one size, with a line at each size where another mixer begins
    to have the least.

    Args:
        called: candidate -> its entry in the legend.
        mixers: for the meaning of the size; `said`: words for the title.
    """
    sizes = sorted({size for curve in found.curves for size in curve.values})
    lines = []
    missing = [f"break-evens are not marked: {found.unmarked}"] if found.unmarked else []
    *_, factor = UNITS.get(found.figure.unit, ("", "", 1.0))
    for curve in found.curves:
        shown = {x: y for x, y in curve.values.items() if y > 0}
        if shown:
            values = tuple(y * factor for y in shown.values())
            lines.append(Line(called[curve.name], tuple(shown), values))
        missing += _not_drawn(curve, called[curve.name], found.over)
    marks = tuple(one.size for one in found.break_evens)
    if len(marks) > MANY:
        missing.append(
            f"{len(marks)} break-evens are too many to mark: `costmodel crossover` lists the ranges"
        )
        marks = ()
    panel = Panel(
        title_of(found.phase, found.fixed, said),
        size_axis(found.over, mixers, sizes),
        figure_axis(found.figure),
        lines=tuple(lines),
        marks=marks,
    )
    note = ""
    if marks:
        note = f"upright lines: the {found.over} from which on another has the least"
    elif len(lines) > 1 and not missing:
        least = min(line.y[-1] for line in lines)  # no break-even: one size is as good as all
        names = [line.name for line in lines if line.y[-1] == least]
        verb = "have" if len(names) > 1 else "has"
        note = f"{EQUAL.join(names)} {verb} the least throughout"
    elif len(lines) > 1 and not found.unmarked and not found.break_evens:
        note = (
            f"no break-even at these {found.over}; `costmodel crossover` tries every {found.over}"
        )
    if note and len(lines) > 2:
        note += "; other crossings are not marked"
    return Picture((panel,), (note,) if note else (), tuple(missing))


def _not_drawn(curve: Curve, name: str, over: str) -> Iterator[str]:
    """Yield a sentence on the values of the size `over` at which the curve, `name` in the legend,
    is zero, and one on those at which it has no value, with the reason at the least of them. No
    value is named if the whole curve is missing for one reason."""
    zeros = dict.fromkeys((x for x, y in curve.values.items() if not y > 0), "it is zero there")
    for lost in filter(None, (zeros, curve.reasons)):  # size -> why the curve is not drawn there
        least, *_, last = (*sorted(lost), max(lost))  # both ends, of one size too
        at = f"{over} = {', '.join(f'{x:,}' for x in sorted(lost))}"
        if len(lost) > FEW:
            at = f"{len(lost)} sizes {over} from {least:,} to {last:,}"
        partly = len(zeros) < len(curve.values) or (zeros and curve.reasons)
        yield f"{name} is not drawn{f' at {at}' if partly else ''}: {lost[least]}"


def winner_picture(
    found: Winners, called: Mapping[str, str], mixers: tuple[Mixer, ...], said: Sequence[str]
) -> Picture:
    """Make the map of winners, the mixers with the least of a figure over two sizes: a row for each
    value of the one size, reaching half way, on a logarithmic axis, to its neighbours; its parts
    end exactly where the least changes. A note names the mixers that win nowhere. `found.rows`:
    value of the one size -> ranges of the other; `called`: candidate -> its entry in the legend;
    `mixers`, for the meanings of the sizes; `said`, words for the title."""
    values = sorted(found.rows)
    edges = _edges(values)
    regions = []
    for k, value in enumerate(values):
        for name, first, last in _parts(found.rows[value], called):
            left, right = max(first, found.first), min(last, found.last)
            if left < right:
                regions.append(Region(name, (left, right), (edges[k], edges[k + 1])))
    powers = [2.0**k for k in range(41) if found.first <= 2**k <= found.last]
    panel = Panel(
        f"the least {figure_axis(found.figure).name}: {title_of(found.phase, found.fixed, said)}",
        size_axis(found.over, mixers, powers),
        size_axis(found.across, mixers, values),
        regions=tuple(regions),
    )
    shown = (one for ranges in found.rows.values() for one in ranges
             if one.first <= found.last and one.last >= found.first)  # fmt: skip
    won = {name for one in shown for name in one.least}
    never = ", ".join(called[name] for name in found.names if name not in won)
    return Picture((panel,), (f"nowhere the least: {never}",) if never else ())


def _edges(values: list[int]) -> list[float]:
    """The edges between rows: the geometric means of neighbours, and as far beyond both ends."""
    inner = [(a * b) ** 0.5 for a, b in pairwise(values)]
    if not inner:
        return [values[0] / 2**0.5, values[0] * 2**0.5]
    return [values[0] ** 2 / inner[0], *inner, values[-1] ** 2 / inner[-1]]


def _parts(
    ranges: tuple[Stretch, ...], called: Mapping[str, str]
) -> list[tuple[str, float, float]]:
    """The parts of a row of the map of winners: (entry of the legend, first size, last size). Each
    part ends where the next begins: stretches 1 to 9 and 10 to 64 are parts 1 to 10 and 10 to 64.
    Stretches with a step above 1, which are interleaved, are one part; a single size at which
    candidates are equal belongs to the part before. `called`: candidate -> its name in the legend,
    which has the names of those with the least."""
    found: list[tuple[str, float, float]] = []
    for mixed, group in groupby(ranges, key=lambda one: one.step > 1):
        parts = list(group)
        if mixed:
            ends = [end for one in parts for end in (one.first, one.last)]
            found.append((MIXED, float(min(ends)), float(max(ends))))
        else:
            for one in parts:
                if not (found and one.first == one.last and len(one.least) > 1):
                    least = EQUAL.join(called[name] for name in one.least)
                    found.append((least, float(one.first), float(one.last)))
    return [
        (name, first, found[k + 1][1] if k + 1 < len(found) else last)
        for k, (name, first, last) in enumerate(found)
    ]


def title_of(phase: str, fixed: Mapping[str, int], said: Sequence[str]) -> str:
    """A panel's title: the phase, the sizes `fixed` and the further words `said`, with commas."""
    return ", ".join(filter(None, (PHASES[phase], sizes_words(fixed), *said)))


def size_axis(letter: str, mixers: tuple[Mixer, ...], ticks: Iterable[float]) -> Axis:
    """The axis of a size, with the meaning of its letter."""
    own = [mixer.own[letter] for mixer in mixers if letter in mixer.own]
    known = own[0] if own else LETTERS.get(letter)
    name = f"{known.meaning}, {letter}" if known else letter
    return Axis(name, SIZES, tuple(ticks))


def figure_axis(figure: Figure) -> Axis:
    """The axis of a derived figure (total, traffic, ...): its title, and the unit of `UNITS`."""
    lead = figure.title.lower()
    unit, named, _ = UNITS.get(figure.unit, ("", figure.unit, 1.0))
    return Axis(f"{lead} ({named})" if named else lead, unit)


def mixers_of(found: Crossover) -> tuple[Mixer, ...]:
    """The mixers of the candidates."""
    return tuple(form.mixer for form in found.forms)
