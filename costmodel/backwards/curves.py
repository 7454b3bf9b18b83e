"""A figure of mixers as curves over one size with their break-evens, and as a map over two: the
values that `costmodel plot` draws."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

from costmodel.backwards.along import LENGTHS
from costmodel.backwards.crossover import Candidate, Crossover, Stretch
from costmodel.errors import SizeError, TableError, Unanswered, Unsupported
from costmodel.questions.question import Case, Figure, Missing
from costmodel.symbolic.sizes import LARGEST

FAR = 2**20
"""The largest size to which an axis is extended for a break-even."""


@dataclass(frozen=True)
class Curve:
    """A figure of the candidate `name`: size -> value; or size -> the reason why there is none."""

    name: str
    values: Mapping[int, float]
    reasons: Mapping[int, str]


@dataclass(frozen=True)
class BreakEven:
    """The first size at which the candidates with the least of the figure are `after`, where at the
    smaller sizes next to it they are `before`."""

    size: int
    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True)
class Curves:
    """A figure of several candidates over one size.

    Args:
        fixed: the other sizes that the figure of a candidate depends on, with their values, as far
            as the candidates agree.
        own: candidate -> letter -> value, of the other sizes in which candidates differ.
        unmarked: why there are no break-evens; "" where they are derived.
    """

    figure: Figure
    over: str
    phase: str
    fixed: Mapping[str, int]
    own: Mapping[str, Mapping[str, int]]
    curves: tuple[Curve, ...]
    break_evens: tuple[BreakEven, ...]
    unmarked: str = ""


@dataclass(frozen=True)
class Winners:
    """Which candidates have the least of a figure over two sizes: value of the size `across` ->
    the ranges of the size `over`.

    Args:
        names: the candidates.
        fixed: the other sizes, equal in all candidates; own: candidate -> its own sizes.
        first, last: the ends of the axis of `over`.
    """

    names: tuple[str, ...]
    figure: Figure
    over: str
    across: str
    phase: str
    fixed: Mapping[str, int]
    own: Mapping[str, Mapping[str, int]]
    rows: Mapping[int, tuple[Stretch, ...]]
    first: int
    last: int


def curves(found: Crossover, sizes: Sequence[int] = (), board: object | None = None) -> Curves:
    """The values of each candidate at `sizes`, as floats for a drawing, and the break-evens (sizes
    at which another candidate becomes the least) between them.

    Args:
        found: the candidates, one or several.
        sizes: the sizes on the axis; by default the powers of two that `usual_sizes` lists.
        board: the board (`prediction.boards.Board`) that a figure in time needs.

    Raises:
        SizeError: the given sizes do not fit each other; or, without `sizes`, no power of two fits
            any candidate.
        Unanswered: no candidate has a value at any of the sizes.
    """
    break_evens, unmarked = _break_evens(found)  # unmarked: why none are derived, or ""
    sizes = sorted(sizes) or usual_sizes(found, break_evens)
    drawn = tuple(_curve(found, one, sizes, board) for one in found.candidates)
    if not any(one.values for one in drawn):
        reasons = [f"{one.name}: {next(iter(one.reasons.values()))}" for one in drawn]
        raise Unanswered(f"nothing is drawn: {'; '.join(reasons)}")
    inside = tuple(one for one in break_evens if sizes[0] <= one.size <= sizes[-1])
    fixed, own = _other_sizes([found], (found.over,), board)  # sizes of all; of each candidate
    return Curves(found.figure, found.over, found.phase, fixed, own, drawn, inside, unmarked)


def winners(rows: Mapping[int, Crossover], across: str, sizes: Sequence[int] = ()) -> Winners:
    """A map of which candidate has the least at each pair of sizes.

    Args:
        rows: value of the size `across` -> the candidates compared at this value, over another
            size.
        sizes: values of this other size; the smallest and the largest are the ends of its axis.

    Raises:
        Unanswered: a candidate lacks the figure, or a formula for it.
        SizeError: a size does not fit the candidates.
        TableError: a single candidate.
    """
    one = next(iter(rows.values()))
    if len(one.forms) < 2:
        raise TableError("a map of winners needs two candidates: name another mixer")
    found = {value: row.ranges for value, row in rows.items()}
    # the first sizes of all ranges, so that the usual axis reaches as far as the last of them
    ends = [BreakEven(x.first, (), ()) for row in found.values() for x in row if x.step == 1]
    sizes = sorted(sizes) or usual_sizes(one, ends)
    fixed, own = _other_sizes([*rows.values()], (one.over, across))
    low, high = sizes[0], sizes[-1]
    return Winners(one.names, one.figure, one.over, across, one.phase, fixed, own, found, low, high)


def usual_sizes(found: Crossover, break_evens: Sequence[BreakEven] = ()) -> list[int]:
    """The powers of two on an axis at which a candidate exists: 16 to 65,536 for a length, 1 to
    4,096 for another size. The axis is extended to hold each of `break_evens` below `FAR` (sizes at
    which another candidate becomes the least): to 262,144 for a break-even at 100,000.

    Raises:
        SizeError: no power of two fits.
    """
    first, last = (4, 16) if found.over in LENGTHS else (0, 12)
    near = [one.size for one in break_evens if 1 < one.size < FAR]
    first = min([first, *((size - 1).bit_length() - 1 for size in near)])
    last = max([last, *((size - 1).bit_length() + 1 for size in near)])
    lines = [one.line.values for one in found.candidates]
    powers = [2**k for k in range(first, last + 1) if any(2**k in values for values in lines)]
    if not powers:
        raise SizeError(f"no power of two is a possible {found.over}: give --{found.over} N,M")
    return powers


def _other_sizes(
    found: Sequence[Crossover], apart: Sequence[str], board: object | None = None
) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
    """({letter: value}, {candidate: {letter: value}}) of the sizes that the figures depend on,
    without the axes' letters `apart`: first each size that has one value in all candidates that
    depend on it, then the rest. `found`: one comparison, or one for each value across a map;
    `board`: the board that a figure in time needs."""
    own: dict[str, dict[str, int]] = {}
    for asked, one in ((each, one) for each in found for one in each.candidates):
        used: frozenset[str] = frozenset()
        for first in one.line.values[:1]:  # the first size at which the candidate exists, if any
            at = one.line.sizes(first)
            case = Case(one.about, at, symbolic=False, dtypes=asked.dtypes, board=board)
            used = case.sizes_of(asked.figure).difference(apart)
        given = {**one.line.given, **one.about.mixer.given}
        own.setdefault(one.name, {}).update({x: n for x, n in given.items() if x in used})
    values: dict[str, set[int]] = {}
    for letter, size in ((x, n) for sizes in own.values() for x, n in sizes.items()):
        values.setdefault(letter, set()).add(size)
    fixed = {letter: min(sizes) for letter, sizes in values.items() if len(sizes) == 1}
    differing = {
        name: {x: n for x, n in sizes.items() if x not in fixed} for name, sizes in own.items()
    }
    return fixed, differing


def _curve(found: Crossover, one: Candidate, sizes: Sequence[int], board: object | None) -> Curve:
    """The curve of the candidate `one`: the value of the figure at each of `sizes` at which the
    candidate exists and has an answer; for every other size the reason why there is no value.
    `found` has the figure and the element types; `board` is that of a figure in time."""
    case = Case(one.about, symbolic=False, dtypes=found.dtypes, board=board)
    values: dict[int, float] = {}
    reasons: dict[int, str] = {}
    for size in sizes:
        if size not in one.line.values:
            reasons[size] = "this size does not fit"
            continue
        value = replace(case, sizes=one.line.sizes(size)).figure(found.figure)
        if isinstance(value, Missing):
            reasons[size] = value.reason
        else:
            assert isinstance(value, (int, Fraction)), f"{found.figure.name} is no number"
            values[size] = float(value)
    return Curve(one.name, values, reasons)


def _break_evens(found: Crossover) -> tuple[tuple[BreakEven, ...], str]:
    """(break-evens, reason): the sizes at which another candidate becomes the least, and "" or the
    reason why they are not derived. Candidates that lack the phase are not drawn, and left out."""
    always = found.figure.always
    drawn = tuple(form for form in found.forms if always or form.unanswered is None)
    if len(drawn) < 2:
        return (), ""
    try:
        ranges = replace(found, forms=drawn).ranges
    except (Unanswered, Unsupported) as reason:
        return (), str(reason)
    if any(one.step > 1 for one in ranges):
        return (), f"the remainder of {found.over} decides: `costmodel crossover` lists the ranges"
    return tuple(_changes(ranges)), ""


def _changes(ranges: Sequence[Stretch]) -> Iterator[BreakEven]:
    """Yield a break-even for the first size of each range whose least candidates differ from those
    of the range before."""
    for one, two in pairwise(ranges):
        if one.least != two.least and two.first <= LARGEST:
            yield BreakEven(two.first, one.least, two.least)
