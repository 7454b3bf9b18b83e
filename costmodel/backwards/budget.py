"""How large may one size be, so that this size and every smaller one stay within limits?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fractions import Fraction
from typing import Any

from costmodel.backwards.along import Along, along, uncovered, without_assumed
from costmodel.backwards.amounts import amount
from costmodel.backwards.candidates import candidate, opened
from costmodel.backwards.figures import phase_of, quantity_of, usual_size
from costmodel.errors import SizeError
from costmodel.language.arguments import checked
from costmodel.language.equations import Mixer
from costmodel.mixers.load import one_form
from costmodel.program.chosen_sizes import (
    one_value,
    refuse_unknown,
    sizes_in_python,
    ties,
)
from costmodel.program.conventions import Convention, convention as read_convention
from costmodel.program.element_types import Dtypes
from costmodel.questions.best_size import BEST_SIZE
from costmodel.questions.question import Answer, Case, Figure, Largest, answers, in_bytes
from costmodel.questions.registry import FIGURES, meant
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Poly
from costmodel.symbolic.ranges.solve import NOTHING, Quantity, Range
from costmodel.symbolic.sizes import is_letter

NUMBERS: Mapping[str, Figure] = {
    name: figure
    for name, figure in FIGURES.items()
    if figure.kind == "number" and figure not in BEST_SIZE.figures and name != "optimiser"
}
"""Name -> figure, for the figures with a formula for a number: no best size, which is no cost, and
no optimiser state, which is a multiple of the parameters."""


def _in_bytes(figure: Figure) -> Callable[[Case], Answer]:
    """A function that returns, for a case, `figure`, which counts entries (such as activations), in
    bytes of the case's element types; a maximum of several terms stays a maximum."""

    def value(case: Case) -> Answer:
        terms = tuple(
            in_bytes(case, "activations", term) for term in quantity_of(figure, case).terms
        )
        return terms[0] if len(terms) == 1 else Largest(terms)

    return value


def _weights(case: Case) -> Exact:
    """The bytes of all parameters of a case."""
    (number,) = quantity_of(NUMBERS["parameters"], case).terms
    return in_bytes(case, "weights", number)


def _memory(case: Case) -> Exact:
    """The bytes of a case's weights and state together."""
    (state,) = quantity_of(NUMBERS["state_bytes"], case).terms
    return state + _weights(case)


def _limited() -> Iterator[Figure]:
    """Yield the quantities that can have a limit, as figures: numbers of entries in bytes (`state`
    by the figure `state_bytes`, which has no limit under that name; `peak`, without such a figure,
    by the type of activations), others as they are. The last `weights` replaces that of NUMBERS."""
    for name, figure in NUMBERS.items():
        if figure.unit == "elements" and f"{name}_bytes" in NUMBERS:
            yield replace(NUMBERS[f"{name}_bytes"], name=name)
        elif figure.unit == "elements":
            yield replace(figure, value=_in_bytes(figure), unit="bytes")
        elif not name.endswith("_bytes"):
            yield figure
    every, state = NUMBERS["parameters"], NUMBERS["state_bytes"]
    yield replace(every, name="weights", meaning="all parameters", value=_weights, unit="bytes")
    yield replace(state, name="memory", meaning="weights and state together", value=_memory)


LIMITED: Mapping[str, Figure] = {figure.name: figure for figure in _limited()}
"""Name -> the quantity: the numbers of the registry, in bytes where they count entries; `weights`,
which are all parameters; and `memory`."""


@dataclass(frozen=True)
class Limit:
    """A quantity, the most that it may be (in bytes or the figure's unit), and this as typed."""

    quantity: Figure
    most: int
    typed: str

    @property
    def name(self) -> str:
        """The quantity's name."""
        return self.quantity.name


def _figure_named(word: str) -> Figure:
    """The figure that the word of a limit names.

    Raises:
        SizeError: an unknown word, with the nearest known one.
        TableError: the word may mean several figures, or is answered by a measurement.
    """
    name = meant(word, LIMITED)
    if name is not None:
        return LIMITED[name]
    near = get_close_matches(word, LIMITED, 1)
    hint = f"did you mean '{near[0]}'?" if near else f"choose from {', '.join(LIMITED)}"
    raise SizeError(f"no limit can be set for '{word}': {hint}")


def limits(asked: Iterable[tuple[str, object]]) -> tuple[Limit, ...]:
    """The limits for pairs (name of a quantity, amount as typed); amounts become integers.

    Raises:
        SizeError: no limit, an unknown name, two limits of a quantity, or an amount that cannot be
            read.
        TableError: a name that may mean several quantities, or is answered by a measurement.
    """
    found: dict[str, Limit] = {}
    for name, text in asked:
        quantity = _figure_named(name)
        if quantity.name in found:
            raise SizeError(
                f"{quantity.name} has two limits, {found[quantity.name].typed} and {text}: give one"
            )
        most = amount(quantity.name, text, in_bytes=quantity.unit == "bytes")
        found[quantity.name] = Limit(quantity, most, str(text))
    if not found:
        raise SizeError("no limit is given: expected at least one, such as state='40GB'")
    return tuple(found.values())


@dataclass(frozen=True)
class Kink:
    """The size `at` from which on the quantity `of` grows otherwise or, if `constant`, no more."""

    of: str
    at: int
    constant: bool


@dataclass(frozen=True)
class Budget:
    """The largest value of an open size within limits.

    Args:
        letter: the open size.
        sizes: the other sizes.
        largest: the largest value at which every smaller one fits too; 0 if not even the smallest
            fits, None if every value fits and no quantity grows beyond the last (2**40).
        smallest: the smallest value at which the form exists.
        by: the names of the limits that the next value exceeds.
        ends: why there is no next value; "" if a limit stops the size, or `largest` is None.
        values: quantity -> its value at `largest`; at `smallest` if nothing fits; at the last size
            (2**40), and thus at every larger one, if `largest` is None.
        again: the larger values that fit again, as ranges: first, last, step.
        kinks: the sizes up to `largest` at which the growth of a quantity changes (see `_kinks`).
    """

    letter: str
    sizes: Mapping[str, int]
    largest: int | None
    smallest: int
    by: tuple[str, ...]
    ends: str
    values: Mapping[str, int | Fraction]
    again: tuple[Range, ...]
    kinks: tuple[Kink, ...]


def within(case: Case, chosen: Sequence[Limit], letter: str) -> Budget:
    """The largest value of the size `letter` such that this value and every smaller one are within
    the limits `chosen`, with what stops it and the values of the limited quantities there, or, if
    no value is within the limits (`Budget.largest` is 0), at the smallest value.

    Args:
        case: the sizes that are given; its answers are formulas in sizes, of which those not
            given have their defaults.

    Raises:
        Unanswered, Unsupported: a quantity has no formula, or the ranges of the size in which the
            quantity is within its limit are not derived.
        SizeError: no value of the size fits the others.
    """
    line = along(case, letter)
    found = {limit.name: quantity_of(limit.quantity, case) for limit in chosen}
    most = {limit.name: limit.most for limit in chosen}
    excess = [
        term - Exact.of(Poly.of(limit.most)) for limit in chosen for term in found[limit.name].terms
    ]
    # a quantity that is not `always` there has no value where weights, a table of positions, end
    if not all(limit.quantity.always for limit in chosen):
        excess += uncovered(case.about)
    # the largest of these terms is positive where a limit is exceeded or weights end before t
    over = Quantity(tuple(excess))
    parts = line.solved([over, NOTHING], lambda value: over.at(line.sizes(value)) > 0)
    beyond = min((part.first for part, exceeded in parts if exceeded), default=None)
    fitting = line.values if beyond is None else line.values[: line.values.index(beyond)]
    last = fitting[-1] if fitting else 0
    unbounded = beyond is None and all(line.constant(x) for q in found.values() for x in q.terms)
    shown = line.sizes(last or line.values[0])
    after = {} if beyond is None else line.sizes(beyond)
    # the limits that the first size beyond exceeds; none where weights end there (`_end`)
    by = tuple(name for name in most if beyond and found[name].at(after) > most[name])
    kinks = [kink for name in found for kink in _kinks(line, name, found[name])]
    return Budget(
        letter,
        line.given,
        None if unbounded else last,
        line.values[0],
        by,
        "" if unbounded or by else _end(case, line, after),
        {name: quantity.at(shown) for name, quantity in found.items()},
        tuple(
            _after(part, beyond)
            for part, exceeded in parts
            if beyond and not exceeded and part.last > beyond
        ),
        tuple(kink for kink in kinks if kink.at <= last),
    )


def _after(part: Range, value: int) -> Range:
    """The sizes of a range that are greater than a value."""
    fewer = max(0, (value - part.first) // part.step + 1)
    return Range(part.first + fewer * part.step, part.last, part.step)


def _kinks(line: Along, name: str, quantity: Quantity) -> list[Kink]:
    """The values of the open size at which the formula of the quantity `name` changes. The quantity
    is the largest of its terms: a value counts if the formula of the largest term changes there. A
    value at which another term becomes the largest is left out."""
    found: dict[Kink, None] = {}
    for term in quantity.terms:
        for last, constant in line.kinks(term):
            here = line.sizes(last)
            if term.rational(here) == quantity.at(here):
                found[Kink(name, last, constant)] = None
    return [*found]


def _end(case: Case, line: Along, after: Mapping[str, int]) -> str:
    """The reason why the open size of `line` ends although no limit is exceeded: at the sizes
    `after`, those of the next value, a position lies beyond the table of positions ("" if not); or,
    if `after` is empty, there is no larger value."""
    if after:
        return case.about.beyond(after) or ""
    if not isinstance(line.values, range):
        return f"every {line.letter} that fits the other sizes is within the limits"
    return f"every {line.letter} up to 2**40 fits, the largest that a size may be"


@checked
def budget(
    mixer: Mixer | str,
    *,
    largest: str | None = None,
    phase: str | None = None,
    form: str | None = None,
    convention: str | tuple[str, ...] | Convention = "strict",
    dtype: str | None = None,
    weight_dtype: str | None = None,
    cache_dtype: str | None = None,
    state_dtype: str | None = None,
    **asked: Any,
) -> Budget:
    """The largest value of one size, `largest`, such that this value and every smaller one stay
    within limits; exact. `Budget.largest` is 0 if no value fits, None if every value fits.

    Args:
        mixer: a mixer, its name or NAME:FORM, or the name or `config.json` of a network.
        largest: the open size; by default t (position of the new token) in inference, else l.
        phase: by default inference for t, else the first phase in which all quantities exist.
        form: None for that of NAME:FORM, else the default. `convention`: as `cm.count` takes it.
        dtype: the element type where no other is named; by default the network's own, else fp32.
        weight_dtype, cache_dtype, state_dtype: of weights, of rows such as keys, of other state.
        asked: limits by the name of a quantity: `state="40GB"`, `weights`, `memory` (the sum of
            state and weights), `total=1e12`, `traffic`, `activations` or `peak`; and sizes by
            letter, such as `d=4096`. GB is 10**9 bytes, GiB 2**30.

    Raises:
        SizeError: no limit, an unknown quantity, an amount without its unit, or unfit sizes.
        Unanswered, Unsupported: a quantity has no formula. TableError: it is only measured.
        ValueError: an unknown mixer, form, convention, phase or element type.

    >>> import costmodel as cm
    >>> found = cm.budget("self-attention", state="40GB", d=4096, n=32, b=64, dtype="bf16")
    >>> found.largest, found.by
    (38146, ('state',))
    """
    found, own = candidate(mixer)
    sizes = sizes_in_python({name: size for name, size in asked.items() if is_letter(name)})
    refuse_unknown(sizes, [found])
    chosen = limits((name, most) for name, most in asked.items() if not is_letter(name))
    where = phase_of([one.quantity for one in chosen], largest, phase)
    letter = largest or usual_size(where)
    sizes = without_assumed(letter, sizes)
    found = opened(found, letter)
    refuse_unknown([letter], [found])
    about = answers(found, one_form(found, own or form), where, read_convention(convention))
    dtypes = Dtypes(dtype or "", state_dtype, weight_dtype, cache_dtype)
    return within(Case(about, one_value(sizes), dtypes=dtypes, ties=ties(sizes)), chosen, letter)
