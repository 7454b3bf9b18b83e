"""Cases of the sizes, such as all sizes with l >= w, and a module's trace (its formulas) in each.

A case is the set of sizes at which some polynomials are at least 0, such as l - w >= 0. A narrow
case (0 <= l - w <= 2) is split into the lines l = w, l = w + 1, l = w + 2, on which one size
follows from the others; if formulas would need floors, sizes are written by quotient and remainder
(`divisions.py`). Each case is traced once, at its own sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from costmodel.symbolic.constraints import Constraints, implied, infeasible
from costmodel.symbolic.polynomial import Fn, Poly, by_text
from costmodel.symbolic.printing import conditions_words
from profiler.tracing.divisions import (
    Divisions,
    asked_conditions,
    division_cases,
    sizes_divided,
    without_single_floors,
)
from profiler.tracing.meta_run.target import TraceError, Variables
from profiler.tracing.result import Trace

SETTLED = 2
"""The smallest sizes of a comparison: a recurrence over one row is a separate case."""


class ByCases(Exception):
    """Raised if no single polynomial holds at all sizes of a trace. `regions` are disjoint cases
    that cover these sizes, to be compared one by one."""

    def __init__(self, regions: Sequence[Constraints]) -> None:
        super().__init__(" or ".join(map(conditions_words, regions)))
        self.regions = regions


@dataclass(frozen=True)
class SizeCase:
    """The set of sizes at which each polynomial of `region` is at least 0. `region` is written in
    the letters of `divisions`, by default in the sizes of the user."""

    region: Constraints = frozenset()
    divisions: Divisions = ()

    @property
    def asked(self) -> Constraints:
        """The conditions in the sizes of the user, without letters of divisions."""
        return asked_conditions(self.region, self.divisions) if self.divisions else self.region

    @property
    def plain(self) -> SizeCase:
        """The same case, with each floor that has only one value replaced by the value."""
        return replace(self, region=without_single_floors(self.region))

    def among(self, regions: Sequence[Constraints]) -> list[SizeCase]:
        """The cases with these conditions, in the same letters."""
        return [replace(self, region=region) for region in regions]


class Traces:
    """The traces of one module by case (`known`), each made at its first request, from that of all
    sizes (`everywhere`)."""

    def __init__(self, everywhere: Trace) -> None:
        self.everywhere = everywhere
        self.known: dict[SizeCase, Trace | TraceError | ByCases] = {SizeCase(): everywhere}

    def at(self, case: SizeCase) -> Trace:
        """The trace of the module (its formulas) in a case, a set of sizes; made once.

        Raises:
            TraceError: the module has no trace in this case.
            ByCases: a size is written l = C*q + r, and the formulas hold only from a q or r above 1
                on; smaller ones are a separate case.
        """
        if case not in self.known:
            try:
                self.known[case] = self.checked(
                    case, self.everywhere.within(case.region, case.divisions)
                )
            except (TraceError, ByCases) as error:
                self.known[case] = error
        if isinstance(known := self.known[case], TraceError | ByCases):
            raise known
        return known

    def checked(self, case: SizeCase, trace: Trace) -> Trace:
        """Return `trace`, the trace of `case`, if its formulas hold at all sizes of the case that
        are at least `SETTLED`. Raises ByCases: a size is written l = C*q + r, and the formulas hold
        only from a larger q or r on; the two `regions` are the case from there on, and the case
        below."""
        sizes = self.sizes(case)
        given = [sizes.poly(letter) for letter in self.everywhere.variables.over]
        where = case.region | {poly - SETTLED for poly in given if poly is not None}
        for letter in (letter for division in case.divisions for letter in division.letters):
            beyond = Poly.atom(letter) - trace.since.get(letter, 1)
            if not implied(where, beyond):
                later = replace(case, region=case.region | {beyond})
                self.known[later] = replace(trace, region=later.region)
                raise ByCases([later.region, case.region | {-beyond - 1}])
        return trace

    def sizes(self, case: SizeCase) -> Variables:
        """The sizes of a case, written in the letters of its divisions."""
        return sizes_divided(self.everywhere.variables, case.divisions)

    def parts(self, case: SizeCase, floors: Sequence[Fn]) -> list[SizeCase]:
        """Split a case by a division: the cases into which it falls when a size under one of
        `floors` (terms such as floor(l/C)) is written by its quotient, l = C*q + r; [] if no floor
        has a suitable size, all sizes are written by quotients already, or the case is unchanged.
        TraceError: floors divide the size by several others, or leave too many remainders."""
        if len(case.divisions) == len(self.everywhere.variables.over):
            return []
        parts = [
            SizeCase(region, (*case.divisions, *([division] if division else [])))
            for region, division in division_cases(case.region, self.sizes(case), floors)
        ]
        return [] if case in parts else parts


NARROW = 2
"""The largest value of a condition in a narrow case, which is split into lines."""


def narrow_lines(region: Constraints) -> list[Constraints]:
    """Split a narrow case (one of its conditions lies between 0 and `NARROW`) into lines, on each
    of which this condition has one value: 0 <= l - w <= 2 into l = w, l = w + 1 and l = w + 2.
    [region] for a wide case, or for a line."""
    for condition in by_text(region):
        if -condition in region:  # an equation: a line already
            continue
        for most in range(NARROW + 1):
            if implied(region, Poly.of(most) - condition):
                lines = (zero_set(region - {condition}, condition - n) for n in range(most + 1))
                return [one for one in lines if not infeasible(one)]
    return [region]


def zero_set(region: Constraints, zero: Poly) -> Constraints:
    """The conditions (polynomials that are at least 0) of the part of a case at which the
    polynomial `zero` is 0, written as two inequalities; implied conditions are left out."""
    equation = frozenset((zero, -zero))
    for condition in by_text(region):
        if implied(region - {condition} | equation, condition):
            region = region - {condition}
    return region | equation
