"""At which values of one size does which mixer have the least of a figure?

The figure of every candidate is exact in the sizes, and between two break-evens the order of the
candidates is proven for every value of the size (`symbolic/ranges`), up to 2**40.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from itertools import combinations as combinations_of, groupby
from math import lcm
from typing import Any

from costmodel.backwards.along import Along, along, uncovered, without_assumed
from costmodel.backwards.candidates import candidate
from costmodel.backwards.figures import quantity_named, usual_size
from costmodel.errors import (
    EquationError,
    SizeError,
    TableError,
    Unanswered,
    Unsupported,
)
from costmodel.language.arguments import checked as checked_arguments
from costmodel.language.equations import Mixer
from costmodel.program.chosen_sizes import (
    Given,
    combinations,
    fit,
    letters_of,
    no_size,
    refuse_in_braces,
    sizes_in_python,
)
from costmodel.program.conventions import Convention
from costmodel.program.element_types import Dtypes
from costmodel.program.phases import phase_name
from costmodel.questions.best_size import BEST_SIZE
from costmodel.questions.question import Answers, Case, Figure, answers
from costmodel.questions.registry import FIGURES, meant
from costmodel.questions.subject import asked
from costmodel.symbolic.at_sizes import array_of, each, refuse_other_head_width
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Number, Poly
from costmodel.symbolic.ranges.solve import NOTHING, Quantity
from costmodel.symbolic.sizes import LARGEST, checked, in_order, is_letter
from costmodel.symbolic.thresholds import Case as SizeCase, positive_in


@dataclass(frozen=True)
class Stretch:
    """A range of sizes: of each `step` of the sizes from first to last that fit the candidates, the
    first `width`. 1 to 512 with step 16 and width 2 is 1, 2, 17, 18, 33, ...

    `least`: the candidates with the least of the figure there, several if they are equal; none if a
    candidate has no value there.
    """

    first: int
    last: int
    least: tuple[str, ...]
    step: int = 1
    width: int = 1


@dataclass(frozen=True, eq=False)
class Candidate:
    """One form of a mixer (`about` answers questions on it), its name, and the values that the
    solved size may have, with the other sizes (`line`)."""

    about: Answers
    name: str
    line: Along


@dataclass(frozen=True)
class Cheaper:
    """The sizes at which the candidate `name` has less of the figure than the candidate `other`:
    those at which any of the cases, each a set of conditions on sizes, holds."""

    name: str
    other: str
    cases: tuple[SizeCase, ...]


@dataclass(frozen=True, eq=False, repr=False)
class Crossover:
    """Mixers compared by one figure, over one size: `ranges` says which has the least where, and
    `conditions` the same with letters for the sizes that were not given.

    Args:
        forms: one object per candidate, which answers questions on this form of a mixer.
        over: the letter of the size; the others are given, or have their defaults.
        given: the sizes that the user gave, or the letters of sizes that they are tied to.
        dtypes: the element types, for a figure in bytes.
    """

    forms: tuple[Answers, ...]
    figure: Figure
    over: str
    given: Mapping[str, int | str] = field(default_factory=dict)
    dtypes: Dtypes = Dtypes()

    def __post_init__(self) -> None:
        """Check the candidates and the letters.

        Raises:
            TableError: a candidate named twice.
            SizeError: a letter that is no size of the candidates, the solved size is given or is
                h (d/n), or a size whose value stands in braces after a mixer's name.
        """
        for k, name in enumerate(self.names):
            if name in self.names[:k]:
                raise TableError(f"{name} is given twice: leave one out, or name another form")
        if not is_letter(self.over):
            raise SizeError(f"expected the letter of one size to solve for, got '{self.over}'")
        if self.over in self.given:
            raise SizeError(
                f"size {self.over} is solved for and has a value too: leave out its value, or "
                "solve for another size"
            )
        if self.over == "h":
            raise SizeError("size h is d/n: solve for d or n")
        # h is d/n of each form, or its own size: `candidates` compares a given h with it
        asked = (self.over, *(x for x in self.given if x != "h"))
        refuse_in_braces(asked, [form.mixer for form in self.forms])
        for letter in asked:
            if not any(letter in self._letters(form) for form in self.forms):
                raise SizeError(self._foreign(letter))

    def __repr__(self) -> str:
        names = ", ".join(self.names)
        return f"Crossover of {names} by {self.figure.name} over {self.over}"

    def __str__(self) -> str:
        """The candidates and, line by line, each range of the size with the candidates that have
        the least there; or the reason why there are none."""
        try:
            lines = [f"{self.over} = {self._said(x)}: {' = '.join(x.least)}" for x in self.ranges]
        except (Unanswered, Unsupported) as reason:
            lines = [str(reason)]
        fitting = ""
        if isinstance(self.domain, range) and self.domain.step > 1:
            fitting = f", of the multiples of {self.domain.step:,}"
        return "\n".join([f"{self!r}{fitting}", *lines])

    def _said(self, stretch: Stretch) -> str:
        """A range of the size as text: `1 to 65`; `66 on`, without an end; `17 to 24 of every 16,
        up to 512`, which is 17 to 24, 33 to 40, 49 to 56 and so on."""
        first, last = f"{stretch.first:,}", f"{stretch.last:,}"
        on, one = self.goes_on(stretch), stretch.first == stretch.last
        if stretch.step == stretch.width:
            return f"{first} on" if on else first if one else f"{first} to {last}"
        scale = self.domain.step if isinstance(self.domain, range) else 1
        end = stretch.first + (stretch.width - 1) * scale
        here = first if stretch.width == 1 else f"{first} to {end:,}"
        return f"{here} of every {stretch.step * scale:,}, {'on' if on else f'up to {last}'}"

    def _foreign(self, letter: str) -> str:
        """The message for a letter that is an open size of no candidate, with the reason for t."""
        if letter == "t":
            return f"none of these mixers has size t in {self.phase}: t is a size of inference"
        return no_size(letter, {x for form in self.forms for x in self._letters(form)})

    @property
    def phase(self) -> str:
        """The phase, of all forms."""
        return self.forms[0].phase

    @property
    def names(self) -> tuple[str, ...]:
        """The candidates: a mixer's name, with its form where that is not the default."""
        return tuple(_name(form) for form in self.forms)

    def _letters(self, form: Answers) -> tuple[str, ...]:
        """The sizes of a form in its phase, without those in the mixer's braces."""
        mixer = form.mixer
        letters = letters_of(mixer, form.phase, form.form)
        return tuple(letter for letter in letters if letter not in mixer.given)

    @cached_property
    def candidates(self) -> tuple[Candidate, ...]:
        """Each form to compare, with the values of the solved size that fit the form, at the given
        sizes and the defaults of the others. If l is solved for and t is not given, t equals l, and
        likewise l equals t. A form without the solved size, or whose name gives it (she{d=64}), has
        one cost at all of its values.

        Raises:
            SizeError: a size without a default, sizes that do not fit, or an h that is not d/n.
            Unsupported: the values that fit are not derived.
        """
        numbers = {x: size for x, size in self.given.items() if isinstance(size, int)}
        ties = {x: other for x, other in self.given.items() if isinstance(other, str)}
        found = []
        for form in self.forms:
            if self.over in self._letters(form):
                line = along(Case(form, numbers, ties=ties), self.over)
            else:
                letters = letters_of(form.mixer, form.phase, form.form)
                given: Given = {**ties, **{x: (size,) for x, size in numbers.items()}}
                (sizes,) = combinations(letters, given, form.mixer)
                fit(form.mixer, sizes)
                line = Along(self.over, (), sizes, range(1, LARGEST + 1))
            if "h" in numbers and "h" not in form.mixer.letters:
                refuse_other_head_width({**line.given, "h": numbers["h"]})
            found.append(Candidate(form, _name(form), line))
        return tuple(found)

    @cached_property
    def domain(self) -> Sequence[int]:
        """The values of the size that fit every candidate at its other sizes.

        Raises:
            SizeError: no value fits.
        """
        found = reduce(_common, (one.line.values for one in self.candidates))
        if not found:
            names = ", ".join(self.names)
            raise SizeError(
                f"no {self.over} is allowed in all of {names}: change another size's value"
            )
        return found

    @cached_property
    def quantities(self) -> tuple[Quantity, ...]:
        """The figure of each candidate, as a function of the size `over` alone.

        Raises:
            Unanswered: a candidate lacks the figure, or has no formula for it.
        """
        found = []
        for one in self.candidates:
            quantity = quantity_named(self.figure, Case(one.about, dtypes=self.dtypes), one.name)
            found.append(quantity.substitute(one.line.letters))
        return tuple(found)

    @cached_property
    def _beyond(self) -> Quantity:
        """A quantity in the solved size that is positive where a token stands beyond the table of
        positions of some candidate, which then has no value, and else 0."""
        uncovered_ = [
            Quantity((exact,)).substitute(one.line.letters).terms[0]
            for one in (() if self.figure.always else self.candidates)
            for exact in uncovered(one.about)
        ]
        return Quantity((sum(uncovered_, Exact()),))

    def least(self, size: Any) -> tuple[str, ...]:
        """The names of the candidates with the least of the figure at one size, several if they are
        equal; () at a size at which a candidate has no value, a position being beyond its weights.

        Raises:
            SizeError: several sizes, or a size that does not fit the candidates.
        """
        if not isinstance(size, int):
            found = array_of(self.over, size)
            if found.size != 1:
                raise SizeError(f"size {self.over}: expected one value, got {found.size}")
            size = found.item()
        return self._least(self._fitting(size))

    def _fitting(self, size: Any) -> int:
        """The size as an int; SizeError unless all candidates have it."""
        checked({self.over: size}, self.over)
        if size not in self.domain:
            raise SizeError(
                f"{self.over} = {size} is not allowed in all of {', '.join(self.names)}: the first "
                f"allowed are {', '.join(map(str, self.domain[:3]))}"
            )
        return int(size)

    def _least(self, size: int) -> tuple[str, ...]:
        """The names of the candidates with the least of the figure at a size that is known to fit
        all candidates (`domain`); () if a candidate has no value there, beyond its positions."""
        at = {self.over: size}
        if self._beyond.at(at) > 0:
            return ()
        values = [quantity.at(at) for quantity in self.quantities]
        return tuple(n for n, v in zip(self.names, values, strict=True) if v == min(values))

    def values(self, size: Any) -> dict[str, Any]:
        """Candidate -> its figure at one size, or at each size of an array, as an array.

        Raises:
            SizeError: a size that is no positive integer, or does not fit the candidates.
            Unanswered: a candidate lacks the figure, or a position is beyond a candidate's weights.
        """

        def at(sizes: Mapping[str, int]) -> dict[str, Number]:
            known = {self.over: self._fitting(sizes[self.over])}
            if self._beyond.at(known) > 0:
                raise Unanswered(self._why_beyond(known[self.over]))
            found = (quantity.at(known) for quantity in self.quantities)
            return dict(zip(self.names, found, strict=True))

        return each(at, {self.over: size})  # type: ignore[no-any-return]  # what `at` returns

    @cached_property
    def ranges(self) -> tuple[Stretch, ...]:
        """The ranges of the solved size, up to 2**40, each with the names of the candidates that
        have the least of the figure there; sizes at which a candidate has no value are left out.

        Raises:
            Unanswered: the candidates never differ, a candidate lacks the figure, or some candidate
                has no value at each size.
            Unsupported: the order changes with the remainder of the size by a large number.
        """
        found = [one for one in self._all if one.least]
        if not found:
            raise Unanswered(
                f"at every {self.over}, one of {', '.join(self.names)} has a weight that ends "
                "before position t: give a smaller t, or a longer weight"
            )
        if all(len(one.least) == len(self.names) for one in found):
            names = " and ".join(self.names)
            same = f"the same {self.figure.name} at every {self.over}"
            raise Unanswered(f"{names} have {same} that all of them allow: compare another figure")
        return tuple(found)

    @property
    def conditions(self) -> tuple[Cheaper, ...]:
        """For each two candidates, in both orders, the conditions on the solved size under which
        the first has less of the figure; sizes that the user did not give are letters.

        Raises:
            Unanswered: two candidates never differ, or a candidate lacks the figure.
            SizeError: there is no formula of degree two at most, so that numbers are needed.
        """
        found = []
        values = [self._formula(form) for form in self.forms]
        for (one, left), (two, right) in combinations_of(zip(self.names, values, strict=True), 2):
            # positive where candidate `one` has less: right - left, times both denominators
            apart = _times(right[0], left[1]) - _times(left[0], right[1])
            if apart.is_zero:
                raise Unanswered(
                    f"{one} and {two} have the same {self.figure.name} at every size: compare "
                    "another figure"
                )
            for name, other, difference in ((one, two, apart), (two, one, apart * -1)):
                found.append(Cheaper(name, other, self._cases(difference)))
        return tuple(found)

    def _formula(self, form: Answers) -> tuple[Exact, Exact]:
        """The figure of a candidate, a form, as (numerator, denominator), formulas in the sizes
        that are not given; the denominator of a figure that is no ratio is 1. SizeError for a
        maximum of several formulas. Solved for l, an open t equals l, as in `candidates`."""
        quantity = quantity_named(self.figure, Case(form, dtypes=self.dtypes), _name(form))
        if len(quantity.terms) > 1:
            raise SizeError(self._asking(f"{self.figure.name} is the largest of several formulas"))
        letters = letters_of(form.mixer, form.phase, form.form)
        given: dict[str, int | str] = {"t": "l"} if self.over == "l" and "t" in letters else {}
        given |= {x: y for x, y in self.given.items() if x in letters}
        given |= form.mixer.given
        known = {x: Poly.atom(y) if isinstance(y, str) else Poly.of(y) for x, y in given.items()}
        below = Exact.of(Poly.of(1)) if quantity.below is None else quantity.below
        return quantity.terms[0].substitute(known), below.substitute(known)

    def _cases(self, difference: Exact) -> tuple[SizeCase, ...]:
        """The cases in which a difference of two figures is positive, each with conditions on the
        sizes; SizeError if they are not derived."""
        try:
            return positive_in(difference, self.over)
        except Unsupported as reason:
            raise SizeError(self._asking(str(reason))) from None

    def _asking(self, reason: str) -> str:
        """A message which says that no condition on the solved size is derived, with `reason`, and
        asks for numbers for the sizes that are left open."""
        known = {self.over, *self.given}
        letters = {x for form in self.forms for x in self._letters(form)} - known
        return (
            f"no condition on {self.over} is derived, because {reason}: give numbers for "
            f"{', '.join(in_order(letters))}, and ranges of {self.over} are derived"
        )

    def goes_on(self, stretch: Stretch) -> bool:
        """Whether a stretch ends only because its next size would be greater than 2**40: 1, 2, 17,
        18 (step 16, width 2) goes on at 18 + 16 - 2 + 1 = 33."""
        if not isinstance(self.domain, range):
            return False
        return stretch.last + (stretch.step - stretch.width + 1) * self.domain.step > LARGEST

    @cached_property
    def beyond(self) -> tuple[tuple[Stretch, str], ...]:
        """The ranges of sizes at which a position is beyond the weights of a candidate, each with
        the reason; () if the weights cover all positions."""
        return tuple((x, self._why_beyond(x.first)) for x in self._all if not x.least)

    def _why_beyond(self, size: int) -> str:
        """At a size at which a position is beyond the weights of a candidate: which and why."""
        said = ((one.name, one.about.beyond(one.line.sizes(size))) for one in self.candidates)
        return next(f"{name}: {why}" for name, why in said if why)

    @cached_property
    def _all(self) -> tuple[Stretch, ...]:
        """The stretches of all sizes that fit; no candidate where a position is beyond weights."""
        return tuple(self._stretches())

    def _stretches(self) -> Iterator[Stretch]:
        """Yield the ranges of the solved size at which every candidate exists, each with the names
        of the candidates that have the least there (no name if one has no value). If the sizes are
        a list, neighbours with the same candidates are one range."""
        line = Along(self.over, (self.over,), {}, self.domain)
        beyond = [] if self._beyond.terms[0].is_zero else [self._beyond, NOTHING]
        found = line.solved([*self.quantities, *beyond], self._least)
        if isinstance(self.domain, range):
            apart = self.domain.step  # 16, say: a step of 32 is every second size that fits
            parts = [Stretch(a, b, least, step // apart) for (a, b, step), least in found]
            yield from _blocks(parts, apart)  # 17, 33, ... and 18, 34, ... become one range
            return
        for least, alike in groupby(found, lambda pair: pair[1]):
            (first, *_), *others = (part for part, _ in alike)
            yield Stretch(first, others[-1].last if others else first, least)


def _blocks(found: Sequence[Stretch], apart: int) -> Iterator[Stretch]:
    """Yield the ranges, with ranges merged that have the same step and the same least candidates
    and begin at neighbouring sizes: 17, 33, 49, ... and 18, 34, 50, ... become one range of width
    2. `apart`: the distance of neighbouring sizes, such as 16 if every mixer that is compared
    needs multiples of 16, else 1."""
    waiting: Stretch | None = None
    for one in found:
        if waiting is not None:
            beside = waiting.first + waiting.width * apart == one.first
            if one.step == waiting.step > 1 and one.least == waiting.least and beside:
                last = max(waiting.last, one.last)
                waiting = replace(waiting, last=last, width=waiting.width + 1)
                continue
            yield waiting
        waiting = one
    if waiting is not None:
        yield waiting


@checked_arguments
def crossover(
    *mixers: str | Mixer,
    by: str = "total",
    over: str | None = None,
    phase: str | None = None,
    form: str | None = None,
    convention: str | Sequence[str] | Convention = "strict",
    dtype: str | None = None,
    cache_dtype: str | None = None,
    state_dtype: str | None = None,
    weight_dtype: str | None = None,
    **sizes: Any,
) -> Crossover:
    """Which mixer has the least of a figure, for every value of one size.

    Args:
        mixers: names, NAME:FORM for a form that is not the default, or mixers.
        by: a figure, as a column of a table: total, mul, traffic, state, span, parameters, ...
        over: the letter of the size; by default t for one new token, else l.
        phase: training, inference, backward or training-step; by default the first that the figure
            exists in.
        form: the form of every mixer, or all for all forms of each.
        convention: as `cm.count` takes it; options of a backward pass are among the sizes.
        dtype: for figures in bytes; this and the other types as for `budget`.
        sizes: by letter an integer, or the letter of a size that it equals; others have their
            defaults.

    Raises:
        ValueError: one sentence, as UnknownMixer, TableError, SizeError, Unanswered or another.

    >>> import costmodel as cm
    >>> found = cm.crossover("linear-attention", "self-attention", phase="inference", d=1024, n=16)
    >>> [(one.first, one.last, *one.least) for one in found.ranges]
    [(1, 65, 'self-attention'), (66, 1099511627776, 'linear-attention')]
    >>> found.least(66), found.values(66)
    (('linear-attention',), {'linear-attention': 8655856, 'self-attention': 8656976})
    """
    found = compared(
        *mixers,
        figure=figure_named(by),
        over=over,
        phase=phase,
        form=form,
        convention=convention,
        dtypes=(dtype, state_dtype, weight_dtype, cache_dtype),
        sizes=sizes,
    )
    if len(found.forms) < 2:
        raise TableError(
            "expected at least two candidates: name another mixer, or all forms of this one"
        )
    return found


def compared(
    *mixers: str | Mixer,
    figure: Figure,
    over: str | None,
    phase: str | None,
    form: str | None,
    convention: str | Sequence[str] | Convention,
    dtypes: tuple[str | None, str | None, str | None, str | None],
    sizes: Mapping[str, Any],
) -> Crossover:
    """The comparison of one mixer or several by a figure, over one size; in `crossover`, at least
    two are needed.

    Args:
        over, phase, form: None for the usual size (t in inference, else l), the figure's first
            phase, and each mixer's default form.
        dtypes: the element types of activations, state, weights and cache; None for the default.
        sizes: as `crossover` takes them: letter -> size, and the options of a backward pass by
            name.

    Raises:
        TableError, SizeError, Unanswered, ...: as `crossover` raises them.
    """
    chosen = phase_name(phase) if phase else (*figure.phases,)[0]
    if chosen not in figure.phases:
        raise Unanswered(f"{figure.elsewhere}, not in {chosen}")
    training: Any = {name: value for name, value in sizes.items() if len(name) > 1}  # no letters
    counting = asked(convention, chosen, training)
    timed = figure.name not in FIGURES  # a column of a board, whose times depend on the dtype
    if any(dtypes) and not timed and not figure.unit.endswith(("bytes", "/byte")):
        raise TableError(
            f"{figure.name} is the same for all element types: leave out the element types, or "
            "compare a number of bytes, such as traffic or state_bytes"
        )
    over = over or usual_size(chosen)
    given = {}  # letter -> the one value of a size that is not open
    letters = {x: value for x, value in sizes.items() if len(x) == 1}
    for letter, values in without_assumed(over, sizes_in_python(letters)).items():
        if isinstance(values, tuple) and len(values) > 1:
            raise SizeError(f"size {letter}: expected one value, got {len(values)}")
        given[letter] = values if isinstance(values, str) else values[0]
    forms = tuple(one for typed in mixers for one in _forms(typed, form, chosen, counting))
    return Crossover(forms, figure, over, given, Dtypes(dtypes[0] or "", *dtypes[1:]).checked())


def powers_of_two(found: Crossover) -> tuple[int, ...]:
    """The powers of two up to 4,096 that fit as the solved size: by default, the rows of a map.

    Raises:
        SizeError: no power of two fits.
    """
    powers = tuple(2**k for k in range(13) if 2**k in found.domain)
    if not powers:
        raise SizeError(
            f"no power of two is a possible {found.over}: give --{found.over} {found.domain[0]}"
        )
    return powers


def figure_named(word: str) -> Figure:
    """The figure that a word means.

    Raises:
        TableError: an unknown word or one with several meanings, a figure that is no number, as
            order, or one of `INSTEAD`, which are not compared.
    """
    if (name := meant(word)) is None:
        near = difflib.get_close_matches(word, FIGURES, 1)
        hint = f"; did you mean '{near[0]}'? The" if near else ": the"
        known = [figure for figure in FIGURES.values() if figure.kind not in NO_NUMBERS]
        numbers = ", ".join(figure.name for figure in known if figure.name not in INSTEAD)
        raise TableError(f"unknown figure '{word}'{hint} figures are {numbers}")
    if name in INSTEAD:
        raise TableError(INSTEAD[name])
    if FIGURES[name].kind in NO_NUMBERS:
        raise TableError(
            f"{name} ({FIGURES[name].meaning}) is no number: mixers are compared by numbers, "
            "such as total or span"
        )
    return FIGURES[name]


NO_NUMBERS = ("steps", "order", "label")
"""The kinds of figures that are no number."""

INSTEAD: Mapping[str, str] = {
    "optimiser": "an optimiser holds a multiple of the parameters: compare parameters",
    "ratio": "a ratio is a total over the total of self-attention: compare total",
    **{
        figure.name: f"{figure.name} is a size, no cost: compare total over that size"
        for figure in BEST_SIZE.figures
    },
}
"""Name -> the sentence for a number that is not compared."""


def _forms(
    typed: str | Mixer, form: str | None, phase: str, convention: Convention
) -> Iterator[Answers]:
    """Yield, for each form that the user means, the object that answers questions about the form:
    of `NAME:FORM` this form, else `form` ("all": every form), else the default; EquationError if
    the mixer lacks the form."""
    mixer, own = candidate(typed)
    named = own or form or mixer.default_form
    for one in mixer.forms if named == "all" else (named,):
        if one not in mixer.forms:
            raise EquationError(
                f"{mixer.name} has no form '{one}': expected all, {', '.join(mixer.forms)}"
            )
        yield answers(mixer, one, phase, convention)


def _times(one: Exact, two: Exact) -> Exact:
    """The product of two sums of polynomials under conditions: a piece for each pair of pieces."""
    products = ((p * q, g | h) for g, p in one.pieces for h, q in two.pieces)
    return sum((Exact(((guards, product),)) for product, guards in products), Exact())


def _name(form: Answers) -> str:
    """A mixer's name, with its form where that is not the default."""
    default = form.form == form.mixer.default_form
    return form.mixer.name if default else f"{form.mixer.name}:{form.form}"


def _common(one: Sequence[int], other: Sequence[int]) -> Sequence[int]:
    """The sizes that are in both: a range of the multiples of the common step up to `LARGEST`, if
    both are such ranges, else a list."""
    if isinstance(one, range) and isinstance(other, range):
        step = lcm(one.step, other.step)
        return range(step, LARGEST + 1, step)
    few, many = (other, one) if isinstance(one, range) else (one, other)
    return [size for size in few if size in many]
