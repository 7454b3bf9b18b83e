"""The best chunk: at which value of a size that a form chooses freely is each cost least?

A size is free in a form if another form of the mixer lacks the size: the forms compute one
function, so that the size changes the cost alone, as the chunk C of a chunked form does. The least
cost is proven: every value up to the number of rows (l, or t for one token) is evaluated exactly,
by the cost's formula, or by a search of all entries where no formula is derived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache

from costmodel.errors import SizeError, Unanswered, Unsupported
from costmodel.language.equations import Mixer
from costmodel.program.chosen_sizes import fit, letters_of
from costmodel.questions.count import COUNT
from costmodel.questions.peak import PEAK
from costmodel.questions.question import (
    Case,
    Explained,
    Figure,
    Largest,
    Listing,
    Missing,
    Question,
)
from costmodel.questions.span import SPAN
from costmodel.questions.state import STATE
from costmodel.questions.traffic import TRAFFIC
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Poly

MOST = 2**17
"""The most values of a size that are tried by a formula: some seconds for each cost."""

MOST_SEARCHED = 64
"""The most values of a size that are tried by a search of all entries: some seconds."""

COSTS = {
    figure.name: figure
    for question in (COUNT, SPAN, TRAFFIC, STATE, PEAK)
    for figure in question.figures
    if figure.name in ("total", "span", "unfused", "state", "peak")
}
"""The costs whose least value `explain` shows."""


@cache
def free_size(mixer: Mixer, form: str) -> str:
    """The letter of the form's free size: the one size of the form that some other form of the
    mixer lacks, such as C of the form `chunked` beside a form `direct`.

    Raises:
        Unanswered: the form has no such size, or has several.
    """
    having = [{*letters_of(mixer, "training", name)} for name in mixer.forms]
    shared = set.intersection(*having)
    free = [x for x in letters_of(mixer, "training", form) if x not in shared]
    if len(free) != 1:
        several = f"several sizes ({', '.join(free)})" if free else "no size"
        raise Unanswered(f"form '{form}' has {several} of free choice")
    return free[0]


@dataclass(frozen=True)
class Best:
    """The least value of a cost, and the smallest value of the free size that attains it."""

    size: int
    value: int | Fraction


def best(case: Case, figure: Figure) -> Best:
    """The value of the free size of a case's form (such as the chunk length) with the least
    `figure`, the smallest of several, and this least figure, at the other sizes of the case; every
    value from 1 to l (t in inference) that fits these sizes is tried.

    Raises:
        Unanswered: the case is symbolic; the form has not exactly one free size; the figure does
            not exist or does not depend on the size; there are more than `MOST` rows; or no value
            of the size fits the other sizes.
        Unsupported: the figure is not derived, and its search, if it has one, takes too long.
    """
    letter = free_size(case.mixer, case.form)
    if case.symbolic:
        raise Unanswered(f"the best {letter} needs a number for every size: leave out --symbolic")
    others = {x: value for x, value in case.sizes.items() if x != letter}
    last = others["t" if case.phase == "inference" else "l"]
    if last > MOST:
        raise Unanswered(
            f"the best {letter} is searched in {last:,} rows, and at most {MOST:,} are allowed: "
            f"give a smaller {'t' if case.phase == 'inference' else 'l'}"
        )
    tried = (size for size in range(1, last + 1) if _fits(case, {**others, letter: size}))
    values = ((value, size) for size, value in _costs(case, figure, letter, last, tried))
    value, size = min(values, default=(0, 0))
    if not size:
        raise Unanswered(f"no {letter} from 1 to {last} fits the other sizes: change another size")
    return Best(size, value)


def _costs(
    case: Case, figure: Figure, letter: str, last: int, tried: Iterable[int]
) -> Iterator[tuple[int, int | Fraction]]:
    """Yield the values `tried` of the size `letter`, at most `last` of them, each with the figure
    at the value and the other sizes of the case. Raises as `best`."""
    try:
        answer = case.answer(figure)
    except Unsupported as reason:
        if figure.search is None:
            raise
        if last > MOST_SEARCHED:
            raise Unsupported(
                f"{reason}; a search finds the best of at most {MOST_SEARCHED} values, and there "
                f"are {last}: choose a smaller {'t' if case.phase == 'inference' else 'l'}"
            ) from None
        for size in tried:
            value = replace(case, sizes={**case.sizes, letter: size}).figure(figure)
            if isinstance(value, Missing):
                raise Unsupported(value.reason) from None
            assert isinstance(value, int)
            yield size, value
        return
    known = {x: Poly.of(value) for x, value in case.sizes.items() if x != letter}
    terms = answer.terms if isinstance(answer, Largest) else (answer,)
    # every formula of `COSTS` is Exact or Largest: no term is lost
    costs = [term.substitute(known) for term in terms if isinstance(term, Exact)]
    if not any(letter in cost.letters for cost in costs):
        raise Unanswered(f"{figure.name} does not depend on {letter} at these sizes")
    for size in tried:
        yield size, max(cost.rational({letter: size}) for cost in costs)


def _fits(case: Case, sizes: dict[str, int]) -> bool:
    """Whether every axis of the case's form has a whole number of entries at these sizes."""
    try:
        fit(case.mixer, sizes, case.form)
    except SizeError:
        return False
    return True


def _explained(case: Case) -> Explained:
    """Yield a table with a row for each figure of `COSTS`: the best value of the form's free size
    (such as the chunk length), the least value of the figure, and the value at the case's size. A
    note names the figures that are not derived; figures that do not depend on the size are left
    out. Nothing is yielded for a form without one free size, or if no figure has an answer."""
    try:
        letter = free_size(case.mixer, case.form)
    except Unanswered:
        return
    rows, notes = [], []
    for name, figure in COSTS.items():
        if case.phase not in figure.phases:
            continue
        try:
            found = best(case, figure)
        except Unanswered:
            continue
        except Unsupported as reason:
            notes.append(f"{name}: no formula, and so no best value ({reason})")
            continue
        here = case.figure(figure)
        if isinstance(here, (int, Fraction)):
            rows.append((name, f"{found.size:,}", f"{found.value:,}", f"{here:,}"))
    if rows:
        size = case.mixer.letter(letter).meaning
        columns = (
            ("cost", "cost", False),
            ("best", f"best {size}", True),
            ("least", "least cost", True),
            ("here", f"at {case.sizes[letter]:,}", True),
        )
        note = (
            f"best {size}: the smallest of the values with the least cost; every value up to the "
            "number of rows was evaluated"
        )
        yield Listing(f"Best {size}", columns, tuple(rows), (note, *notes))


def _least(name: str) -> Callable[[Case], Exact]:
    return lambda case: Exact.of(Poly.of(best(case, COSTS[name]).size))


def _notes(cases: Sequence[Case], shown: Sequence[str]) -> Sequence[str]:
    return ["best_chunk: the size that the form chooses freely, such as C, with the least total"]


BEST_SIZE = Question(
    "best_size",
    "Best chunk",
    (
        Figure(
            "best_chunk",
            "the size that the form chooses freely, at the least total",
            _least("total"),
            header="best\nchunk",
            heading="best chunk",
            notes=(_notes,),
        ),
    ),
    untallied="every value is tried, by the answers of other questions",
    explained=_explained,
)
