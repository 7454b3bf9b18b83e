"""The best chunk: at which value of a size that a form chooses freely is each cost least?

A size is free in a form if another form of the mixer lacks the size: the forms compute one
function, so that the size changes the cost alone, as the chunk C of a chunked form does. The least
cost is proven: every value up to the number of rows (l, or t for one token) and the next larger one
are evaluated exactly, by the cost's formula, or by a search of all entries where no formula is
derived. All values above the number of rows are one case: no chunk is full, and no state is
computed. The search leaves out the values from which on the first rows alone, which are one chunk,
take a path as long.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache

from costmodel.errors import SizeError, Unanswered, Unsupported
from costmodel.language.equations import Mixer
from costmodel.program.chosen_sizes import fit, letters_of
from costmodel.program.one_chunk import same_for_larger
from costmodel.questions.activations import ACTIVATIONS
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

MOST_SEARCHED = 1024
"""The most rows of which all entries are searched at each value of a size: about half a minute."""

COSTS = {
    figure.name: figure
    for question in (COUNT, SPAN, TRAFFIC, STATE, ACTIVATIONS, PEAK)
    for figure in question.figures
    if figure.name in ("total", "span", "traffic", "unfused", "state", "activations", "peak")
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
        raise Unanswered(
            f"form '{form}' has {several} that other forms lack: a best value is derived only of a "
            "form with exactly one such size"
        )
    return free[0]


@dataclass(frozen=True)
class Best:
    """The least value of a cost, and the smallest value of the free size that attains it."""

    size: int
    value: int | Fraction


def best(case: Case, figure: Figure) -> Best:
    """The value of the free size of a case's form (such as the chunk length) with the least
    `figure`, the smallest of several, and this least figure, at the other sizes of the case; every
    value from 1 to l (t in inference) that fits these sizes, and the next larger one, is tried or
    proven to cost no less.

    Raises:
        Unanswered: the case is symbolic; the form has not exactly one free size; the figure does
            not exist or does not depend on the size; there are more than `MOST` rows; or no value
            of the size fits the other sizes.
        Unsupported: the figure is not derived, and its search, if it has one, takes too long.
    """
    letter = free_size(case.mixer, case.form)
    if case.symbolic:
        raise Unanswered(f"the best {letter} needs a number for every size: leave out --symbolic")
    last = _rows(case)
    if last > MOST:
        raise Unanswered(
            f"the best {letter} is searched in {last:,} rows, and at most {MOST:,} are allowed: "
            f"give a smaller {'t' if case.phase == 'inference' else 'l'}"
        )
    tried = _tried(case, letter, last)
    values = ((value, size) for size, value in _costs(case, figure, letter, last, tried))
    value, size = min(values, default=(0, 0))
    if not size:
        raise Unanswered(
            f"no {letter} from 1 to {last} is allowed: change the value of another size"
        )
    return Best(size, value)


def _rows(case: Case) -> int:
    """The number of rows of a case: l, or t for one new token."""
    return case.sizes["t" if case.phase == "inference" else "l"]


def _tried(case: Case, letter: str, last: int) -> Iterator[int]:
    """Yield the values of the size `letter` from 1 to `last` that fit the other sizes of the case,
    and the next larger one; ascending."""
    # a multiple of another size, or a power of two, lies among the values above `last`
    for size in range(1, last + 1 + max(case.sizes.values())):
        if _fits(case, {**case.sizes, letter: size}):
            yield size
            if size > last:
                return


def _costs(
    case: Case, figure: Figure, letter: str, last: int, tried: Iterable[int]
) -> Iterator[tuple[int, int | Fraction]]:
    """Yield (value, cost) for each of the values `tried` of the size `letter`: the figure at this
    value and the other sizes of the case, from the figure's formula, or by its search where it has
    no formula. `last`: the number of rows of the case. Raises as `best`."""
    if case.blocked and not figure.always:
        raise Unanswered(case.blocked)
    known = {x: value for x, value in case.sizes.items() if x != letter}
    try:  # a figure in bytes may depend on the sizes of its case
        answer = replace(case, sizes=known, symbolic=True).answer(figure)
    except Unsupported as reason:
        if figure.search is None:
            raise
        if last > MOST_SEARCHED:
            raise Unsupported(
                f"{reason}; a search for the best {letter} takes at most {MOST_SEARCHED:,} rows, "
                f"got {last:,}: choose a smaller {'t' if case.phase == 'inference' else 'l'}"
            ) from None
        yield from _searched(case, figure, letter, tried)
        return
    terms = answer.terms if isinstance(answer, Largest) else (answer,)
    at = {x: Poly.of(value) for x, value in known.items()}
    # every formula of `COSTS` is Exact or Largest: no term is lost
    costs = [term.substitute(at) for term in terms if isinstance(term, Exact)]
    if not any(letter in cost.letters for cost in costs):
        raise Unanswered(f"{figure.name} does not depend on {letter} at these sizes")
    for size in tried:
        yield size, max(cost.rational({letter: size}) for cost in costs)


def _searched(
    case: Case, figure: Figure, letter: str, tried: Iterable[int]
) -> Iterator[tuple[int, int]]:
    """Yield the values `tried`, ascending, of the size `letter`, each with the figure found by its
    search, up to a value above which all are proven to have no less. Raises Unsupported if a search
    takes too long."""
    least: int | None = None
    for size in tried:
        value = _at(case, figure, {letter: size})
        least = value if least is None else min(least, value)
        yield size, value
        if not size & (size - 1) and _first_rows(case, figure, letter, size) >= least:
            return


def _first_rows(case: Case, figure: Figure, letter: str, size: int) -> int:
    """A lower bound on a longest path at all values of the size `letter` above `size`, where the
    first `size` rows are one chunk: the path through these rows in a forward pass. A form with
    one-token inference computes the entries of a row alike whatever the number of rows. 0 for other
    forms, or if it is not proven that all these values compute the rows alike."""
    forward = replace(case, about=case.about.about("training"))
    sizes = {letter: size + 1, "l": size}
    at = {**case.sizes, **sizes}
    causal = case.about.about("inference").unanswered is None
    if not (causal and _fits(case, at) and same_for_larger(forward.about.system, letter, at)):
        return 0
    return _at(forward, figure, sizes)


def _at(case: Case, figure: Figure, sizes: Mapping[str, int]) -> int:
    """The figure of a case, found by its search, with other values of some sizes. Raises
    Unsupported if the search takes too long."""
    value = replace(case, sizes={**case.sizes, **sizes}).figure(figure)
    if isinstance(value, Missing):
        raise Unsupported(value.reason)
    assert isinstance(value, int)
    return value


def _fits(case: Case, sizes: dict[str, int]) -> bool:
    """Whether the case's form exists at these sizes: extents are whole, bounds hold (`fit`)."""
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
        forward, rows_ = case.about.about("training").system, _rows(case)
        larger = {**case.sizes, "l": rows_, letter: rows_ + 1}
        one = same_for_larger(forward, letter, larger)
        note = (
            f"best {size}: the smallest of the values with the least cost; every value up to one "
            f"above the number of rows{', from which on all are one case,' * one} was evaluated, "
            "or is proven to cost no less"
        )
        yield Listing(f"Best {size}", columns, tuple(rows), (note, *notes))


def best_by(figure: Figure, name: str = "") -> Figure:
    """The column of the value of a form's free size, such as C = 16, at which a case's `figure` is
    least; its name is `name`, or, for "", best_chunk_ and the figure's: best_chunk_span."""
    name = name or f"best_chunk_{figure.name}"

    def value(case: Case) -> Exact:
        return Exact.of(Poly.of(best(case, figure).size))

    def notes(cases: Sequence[Case], shown: Sequence[str]) -> Sequence[str]:
        return [f"{name}: {column.meaning}"]

    column = Figure(
        name,
        f"the size that the form chooses freely, such as C, with the least {figure.name}",
        value,
        header=f"best chunk\n({figure.name})",
        heading=f"best chunk by {figure.title.lower()}",
        phases=figure.phases,
        notes=(notes,),
    )
    return column


BEST_SIZE = Question(
    "best_size",
    "Best chunk",
    (replace(best_by(COSTS["total"], "best_chunk"), header="best\nchunk", heading="best chunk"),),
    untallied="every value is tried, by the answers of other questions",
    explained=_explained,
)
