"""At which value of one size does a mixer cost as much as another mixer, or nearly as much?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from costmodel.backwards.along import Along, along, uncovered, without_assumed
from costmodel.backwards.candidates import candidate, opened
from costmodel.backwards.crossover import figure_named
from costmodel.backwards.figures import phase_of, quantity_named
from costmodel.errors import Unanswered
from costmodel.language.arguments import checked
from costmodel.language.equations import Mixer
from costmodel.mixers.load import one_form
from costmodel.program.chosen_sizes import (
    Given,
    fit,
    letters_of,
    one_combination,
    one_value,
    refuse_foreign,
    refuse_unknown,
    sizes_in_python,
    ties,
)
from costmodel.program.conventions import Convention, convention as read_convention
from costmodel.program.element_types import Dtypes
from costmodel.questions.question import Case, Figure, Missing, answers
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Number, Poly
from costmodel.symbolic.ranges.solve import NOTHING, Quantity, Range


@dataclass(frozen=True)
class Solution:
    """Values of the open size (first, last, step) at which the figure is `value`, the target or the
    nearest to it on one side."""

    at: Range
    value: Number


@dataclass(frozen=True)
class Match:
    """The values of an open size at which a figure equals a target, or is nearest to it.

    Args:
        letter: the open size.
        sizes: the other sizes.
        target: the other mixer's figure at `target_sizes`.
        candidates: the values of the size at which the figure equals the target. If there are
            none: those at which the figure has its nearest value below the target, then those of
            its nearest value above; a side without values is left out.
    """

    letter: str
    sizes: Mapping[str, int]
    target: Number
    target_sizes: Mapping[str, int]
    candidates: tuple[Solution, ...]


def nearest(case: Case, figure: Figure, letter: str, other: Case) -> Match:
    """The values of the size `letter` of a case at which its figure equals that of another case; if
    they are equal nowhere, the values at which the figure is nearest from below and from above.

    Args:
        case: the sizes that are given; its answers are formulas in sizes, of which those not
            given have their defaults.
        other: the case to be matched, with all sizes.

    Raises:
        Unanswered, Unsupported: one of the cases has no such figure; the figure of `case` does not
            depend on the size, or cannot be solved for it; or every value of the size needs a
            position beyond the rows of a learned table of positions.
        SizeError: no value of the size fits the others, or the size is given.
    """
    target = other.figure(figure)
    if isinstance(target, Missing):
        raise Unanswered(f"{other.mixer.name}: {target.reason}")
    assert isinstance(target, (int, Fraction)), figure.name
    try:
        line = along(case, letter)
    except Unanswered as reason:
        raise Unanswered(f"{case.mixer.name}: {reason}") from None
    cost = quantity_named(figure, Case(case.about, dtypes=case.dtypes), case.mixer.name)
    terms = [*cost.terms, *([cost.below] if cost.below is not None else [])]  # below: a divisor
    if not any({*line.equal} & term.letters for term in terms):
        value = cost.at(line.sizes(line.values[0]))
        raise Unanswered(
            f"{figure.name} of {case.mixer.name} is {value:,} at every {letter}, and that of "
            f"{other.mixer.name} is {target:,}: choose another size to vary"
        )
    # parameters (`always`) have a value also where t is beyond a table of positions
    outside = Quantity((Exact(), *([] if figure.always else uncovered(case.about))))
    curve = _Curve(line, cost, outside)
    found = curve.equal(target)
    if not found:
        values = (curve.nearest(target, -1), curve.nearest(target, 1))
        found = [part for value in values if value is not None for part in curve.equal(value)]
    if not found:
        raise Unanswered(f"{case.mixer.name}: {case.about.beyond(line.sizes(line.values[0]))}")
    candidates = tuple(Solution(part, cost.at(line.sizes(part.first))) for part in found)
    return Match(letter, line.given, target, other.sizes, candidates)


@dataclass(frozen=True)
class _Curve:
    """The figure `cost` along an open size, at the sizes of `line` at which `outside` is 0: where
    it is more, a position is beyond a table of positions (weights, a row per position)."""

    line: Along
    cost: Quantity
    outside: Quantity

    def equal(self, number: Number) -> list[Range]:
        """The values of the size at which the figure is a number."""
        return self._where(lambda cost: cost == number, number)

    def nearest(self, target: Number, way: int) -> Number | None:
        """The value of the figure that is nearest to a target, and not equal to it, from below
        (`way` -1) or from above (1); None if there is none. Of values 3, 5 and 9, with target 5:
        3 from below, 9 from above."""
        best: Number | None = None

        def nearer(cost: Number) -> bool:
            return (cost - target) * way > 0 and (best is None or (best - cost) * way > 0)

        parts = self._where(nearer, target)
        while parts:  # each round solves for the sizes at which the figure is nearer than `best`
            tried = [*self._tried(parts)]
            best = max(tried) if way < 0 else min(tried)
            parts = self._where(nearer, target, best)
        return best

    def _where(self, holds: Callable[[Number], bool], *numbers: Number) -> list[Range]:
        """The ranges of the size in which `holds` is true of the figure, and in which no position
        is beyond the table of positions.

        Args:
            holds: a property of the figure that changes only where the figure crosses one of
                `numbers`.
        """

        def inside(value: int) -> bool:
            sizes = self.line.sizes(value)
            return self.outside.at(sizes) == 0 and holds(self.cost.at(sizes))

        compared = [Quantity((Exact.of(Poly.of(number)),)) for number in numbers]
        parts = self.line.solved([self.cost, *compared, self.outside, NOTHING], inside)
        return [part for part, holding in parts if holding]

    def _tried(self, parts: Sequence[Range]) -> Iterator[Number]:
        """Yield the figure at the ends of ranges, which are the extremes where it is monotone, and
        in the middle, so that each round of `nearest` cuts off a part where it is not."""
        for first, last, step in parts:
            for place in (0, (last - first) // step // 2, (last - first) // step):
                yield self.cost.at(self.line.sizes(first + place * step))


@checked
def match(
    mixer: Mixer | str,
    *,
    to: Mixer | str,
    by: str,
    vary: str,
    phase: str | None = None,
    form: str | None = None,
    convention: str | tuple[str, ...] | Convention = "strict",
    dtype: str | None = None,
    weight_dtype: str | None = None,
    cache_dtype: str | None = None,
    state_dtype: str | None = None,
    **sizes: Any,
) -> Match:
    """The values of one size of a mixer at which a figure equals that of another mixer, or is
    nearest to it; exact.

    Args:
        to: the other mixer; NAME:FORM for a form that is not the default.
        by: a figure of the registry that is a number: parameters, total, state, traffic, ...
        vary: the size of `mixer` that is open, of a model also one that its configuration gives;
            `sizes` gives it for the other mixer.
        phase: if it is not given, inference for t, else the first phase that has the figure.
        form: the form of `mixer`. `convention`, `dtype` and the other types: as for `budget`.

    Raises:
        TableError: a figure that is unknown or is not compared. SizeError: sizes that do not fit.
        Unanswered, Unsupported: a figure has no formula, or does not depend on the size.
        ValueError: an unknown mixer, form, convention, phase or element type.

    >>> import costmodel as cm
    >>> found = cm.match("we", to="self-attention", by="parameters", vary="d", d=512)
    >>> found.target, [(one.at.first, one.value) for one in found.candidates]
    (1048576, [(692, 1046304), (693, 1049202)])
    """
    (one, own), (two, its), figure = candidate(mixer), candidate(to), figure_named(by)
    return compared(
        (one, two),
        (one_form(one, own or form), one_form(two, its)),
        figure,
        vary,
        phase_of([figure], vary, phase),
        read_convention(convention),
        Dtypes(dtype or "", state_dtype, weight_dtype, cache_dtype),
        without_assumed(vary, sizes_in_python(sizes)),
    )


def compared(
    pair: tuple[Mixer, Mixer],
    forms: tuple[str, str],
    figure: Figure,
    vary: str,
    phase: str,
    convention: Convention,
    dtypes: Dtypes,
    given: Given,
) -> Match:
    """The values of the size `vary` of the first mixer of `pair` at which a figure equals that of
    the second mixer, or is nearest to it; `forms` are those of both, which share the phase,
    convention and element types. `given`: size -> one value, or the letter of an equal size; a
    value given for `vary` is that of the second mixer alone. A network as first mixer has `vary`
    open, whatever its configuration says. Raises Unanswered, Unsupported and SizeError as
    `nearest`, and SizeError for unknown, several or unfit values."""
    (one, two), (form, other_form) = pair, forms
    one = opened(one, vary)
    refuse_unknown([vary], (one, two))
    refuse_foreign(given, pair, [phase])
    sizes = one_combination(two, given, one)
    fit(two, sizes)
    first = answers(one, form, phase, convention)
    second = answers(two, other_form, phase, convention)
    known = {letter: size for letter, size in one_value(given).items() if letter != vary}
    tied = {letter: size for letter, size in ties(given).items() if letter != vary}
    all_sizes = {letter: sizes[letter] for letter in letters_of(two, phase, other_form)}
    return nearest(
        Case(first, known, dtypes=dtypes, ties=tied),
        figure,
        vary,
        Case(second, all_sizes, symbolic=False, dtypes=dtypes),
    )
