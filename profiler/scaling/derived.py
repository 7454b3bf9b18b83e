"""The quantities that equations give along a measured series (operations, bytes), and their growth.

Each quantity is derived for the equations that the implementation is described to execute: its
form, rewritten as it computes. The local exponent of a derived quantity f is d log f / d log l,
computed term by term from the formula, and exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

from costmodel.errors import Unanswered, Unsupported
from costmodel.language.equations import Mixer
from costmodel.program.element_types import element_bytes
from costmodel.questions.traffic import Elements, traffic_of
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Fn, Poly
from profiler.modules.described import (
    Described,
    answers_about,
    description_of,
    executed_counts,
)
from profiler.reconcile.live_sets import live_set
from profiler.run.in_record import candidate_in_record
from profiler.scaling.series import Series

Sizes = Mapping[str, int]
Derive = Callable[["ExecutedMixer"], Exact]

OPERATIONS, UNFUSED, COMPULSORY, LIVE, EXPONENTIALS = (
    "operations",
    "unfused bytes",
    "compulsory bytes",
    "live set",
    "exponentials",
)
MEANINGS: Mapping[str, str] = {
    OPERATIONS: "operations, every class counted 1, as the implementation executes the equations",
    UNFUSED: "bytes moved where every equation reads its operands and writes its result",
    COMPULSORY: "bytes that must move: inputs, weights and state read once, outputs written once",
    LIVE: "the equations' largest live set in bytes, without what is there before the call and "
    "with the gradients of parameters",
    EXPONENTIALS: "exponentiations among the operations",
}
"""Derived quantity -> its definition."""

LOCAL = "local"
"""The value of `how` for a growth given by local exponents."""


class NotSmooth(ValueError):
    """A formula with steps (floor, ceil), or a value of zero, has no local exponent."""


@dataclass(frozen=True)
class ExecutedMixer:
    """A mixer as one implementation executes it in one phase: the argument of every derivation."""

    mixer: Mixer
    does: Described
    phase: str
    dtype: str
    sizes: Sizes


@dataclass(frozen=True)
class Derived:
    """The derived quantity `name` (operations, bytes) along a series."""

    name: str
    series: Series
    formula: Callable[[Sizes], Exact]
    """All sizes -> the formula of the quantity that holds at these sizes."""
    found: dict[int, int] = field(default_factory=dict, compare=False)
    """Size -> the value, for the sizes asked for so far."""

    def sizes(self, size: int) -> dict[str, int]:
        """All sizes, with this value of the series' letter."""
        fixed = dict(self.series.fixed)
        return fixed | dict.fromkeys(sorted(self.series.moving), size)

    def at(self, size: int) -> int:
        """The value at one size of the series."""
        if size not in self.found:
            sizes = self.sizes(size)
            self.found[size] = self.formula(sizes).at(sizes)
        return self.found[size]

    def local(self, size: int) -> Fraction:
        """The local exponent at one size: d log f / d log x, where x is the series' letter, and t
        moves with l in a series of last tokens. NotSmooth without one."""
        sizes = self.sizes(size)
        return local_exponent(self.formula(sizes), self.series.moving, sizes)

    def between(self, first: int, last: int) -> tuple[float, float, str]:
        """The powers with which the quantity f grows with the varied size x, at the sizes `first`
        and `last`, and how they were found: ("local") by the local exponents d log f / d log x; or,
        for a formula with step functions, the one exponent between `first` and `last`, twice, with
        a phrase that says so."""
        try:
            return float(self.local(first)), float(self.local(last)), LOCAL
        except NotSmooth:
            whole = math.log(self.at(last) / self.at(first)) / math.log(last / first)
            return whole, whole, "between the ends, since the formula has steps"


def local_exponent(answer: Exact, letters: frozenset[str], sizes: Sizes) -> Fraction:
    """The local exponent d log f / d log x of the formula f = `answer` at `sizes`, where all
    `letters` grow in proportion to x: the mean degree of the terms, weighted by the terms' shares
    of the value.

    >>> l, d = Poly.atom("l"), Poly.atom("d")
    >>> local_exponent(Exact.of(l * l * d + l * d * d), frozenset({"l"}), {"l": 30, "d": 10})
    Fraction(7, 4)

    Raises:
        NotSmooth: a step function of the letters, or a value of zero.
    """
    value, weighted = Fraction(0), Fraction(0)
    for guards, poly in answer.pieces:
        if not all(guard.rational(sizes) >= 0 for guard in guards):
            continue
        for monomial, number in poly.terms.items():
            if any(
                isinstance(atom, Fn) and Poly.atom(atom).letters & letters for atom, _ in monomial
            ):
                raise NotSmooth(
                    f"a formula with the step function {Poly({monomial: 1})} has no exponent at "
                    "one size"
                )
            term = Fraction(Poly({monomial: number}).rational(sizes))
            value += term
            weighted += term * sum(power for atom, power in monomial if atom in letters)
    if not value:
        raise NotSmooth("a quantity that is zero has no scaling exponent")
    return weighted / value


def executed_operations(of: ExecutedMixer) -> Exact:
    """The number of operations of one call on b sequences, as a formula. Work common to all
    sequences counts once; each entry that is summed over sequences (a gradient of weights) takes b
    - 1 further additions."""
    found = executed_counts(of.mixer, of.does, of.phase)
    total = Exact()
    for each in found.classes.values():
        total = total + each
    once = found.once.exact_total if found.once else Exact()
    b = of.sizes["b"]
    return total * b + once + found.joined * (b - 1)


def executed_exponentiations(of: ExecutedMixer) -> Exact:
    """The exponentiations among the operations; work common to all sequences counts once."""
    found = executed_counts(of.mixer, of.does, of.phase)
    once = found.once.classes.get("exp", Exact()) if found.once else Exact()
    return found.classes.get("exp", Exact()) * of.sizes["b"] + once


def moved_bytes(which: str) -> Derive:
    """Return a function that derives the bytes which one call on b sequences moves; weights move
    once for all sequences. `which`: `unfused` (each equation reads its operands from memory and
    writes its result) or `compulsory` (inputs and weights are read once, outputs written once)."""

    def bytes_(of: ExecutedMixer) -> Exact:
        """The bytes that one call moves (`which`: unfused or compulsory), as a formula: entries by
        kind, weights once and all else for b sequences, times the bytes of an entry."""
        about = answers_about(of.mixer, of.does.form, of.phase, of.does.rewrites)
        elements: Elements = getattr(about.of(traffic_of), which)
        total = Exact()
        for kind, number in elements.kinds.items():
            total = total + number * (1 if kind == "weights" else of.sizes["b"])
        return total * element_bytes(of.dtype)

    return bytes_


def live_set_bytes(of: ExecutedMixer) -> Exact:
    """The largest live set in bytes at these sizes, without arrays from before the call."""
    found = live_set(of.mixer, of.does, of.phase, of.sizes)
    return found * element_bytes(of.dtype)


RULES: Mapping[str, Derive] = {
    OPERATIONS: executed_operations,
    EXPONENTIALS: executed_exponentiations,
    UNFUSED: moved_bytes("unfused"),
    COMPULSORY: moved_bytes("compulsory"),
    LIVE: live_set_bytes,
}
"""Derived quantity -> its derivation."""


@dataclass(frozen=True)
class Predictions:
    """The derived quantities of one series, each with a reason if the equations do not give it."""

    series: Series

    @cached_property
    def _mixer(self) -> tuple[Mixer, Described]:
        """The mixer of the series' records, and what their implementation executes."""
        of = self.series
        mixer, chosen = candidate_in_record(of.mixer, of.implementation, of.form)
        return mixer, description_of(mixer, chosen, of.phase)

    @property
    def kernels(self) -> frozenset[str]:
        """The kernel classes of the implementation; empty if the implementation is unknown."""
        try:
            return frozenset(self._mixer[1].kernels.values())
        except ValueError:
            return frozenset()

    def of(self, name: str) -> Derived | str:
        """The derived quantity `name` (operations, bytes moved, live set) along the series, or the
        reason why there is none, as a string: the implementation is unknown, the equations give no
        value at a size of the series, or give zero."""
        try:
            mixer, does = self._mixer
        except ValueError as error:
            return str(error)

        formulas: dict[int, Exact] = {}

        def formula(sizes: Sizes) -> Exact:
            """The formula of the quantity for one size of the series. One formula serves all sizes
            with the same batch, as all other sizes are symbols in it; the live set is derived at
            each size, since another moment may be the largest there."""
            executed = ExecutedMixer(mixer, does, self.series.phase, self.series.dtype, sizes)
            if name == LIVE:
                return RULES[name](executed)
            if sizes["b"] not in formulas:
                formulas[sizes["b"]] = RULES[name](executed)
            return formulas[sizes["b"]]

        found = Derived(name, self.series, formula)
        try:
            values = [found.at(size) for size in self.series.sizes]
        except (Unsupported, Unanswered, ValueError) as reason:
            return str(reason)
        if min(values) <= 0:
            return f"{name}: the equations give {min(values)}, which has no exponent"
        return found
