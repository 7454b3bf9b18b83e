"""Which cases of the sizes are there, and what does a module do in each?

A case is the sizes at which some polynomials are at least 0. A narrow one is taken apart into
lines, on which a size follows from the others; in one whose formulas would need floors, sizes are
written by their quotients. Each case is traced at sizes of its own, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from costmodel.symbolic.constraints import Constraints, implied, infeasible
from costmodel.symbolic.polynomial import Fn, Poly
from costmodel.symbolic.printing import conditions_words
from profiler.tracing.divisions import Divisions, asked, divided, plain, written
from profiler.tracing.meta_run.target import TraceError, Variables
from profiler.tracing.result import Trace

SETTLED = 2
"""From these sizes on a module is compared: one row alone is a case of its own for a recurrence."""


class ByCases(Exception):
    """The equations count by cases at the sizes of a trace; `regions` are disjoint and cover it."""

    def __init__(self, regions: Sequence[Constraints]) -> None:
        super().__init__(" or ".join(map(conditions_words, regions)))
        self.regions = regions


@dataclass(frozen=True)
class Case:
    """Some sizes: each polynomial of `region` is at least 0 there, in the letters of divisions."""

    region: Constraints = frozenset()
    divisions: Divisions = ()

    @property
    def asked(self) -> Constraints:
        """The conditions in the sizes that were asked for."""
        return asked(self.region, self.divisions) if self.divisions else self.region

    @property
    def plain(self) -> Case:
        """The same without the floors that have one value in it."""
        return replace(self, region=plain(self.region))

    def among(self, regions: Sequence[Constraints]) -> list[Case]:
        """Cases with these conditions, in the same letters."""
        return [replace(self, region=region) for region in regions]


class Traces:
    """One module, traced in every case when it is first asked for."""

    def __init__(self, everywhere: Trace) -> None:
        self.everywhere = everywhere
        self.known: dict[Case, Trace | TraceError | ByCases] = {Case(): everywhere}

    def at(self, case: Case) -> Trace:
        """The trace of a case.

        Raises:
            TraceError: there is none.
            ByCases: the formulas do not hold from the first quotients or remainders on; these are
                cases of their own.
        """
        if case not in self.known:
            try:
                self.known[case] = self.settled(
                    case, self.everywhere.within(case.region, case.divisions)
                )
            except (TraceError, ByCases) as error:
                self.known[case] = error
        if isinstance(known := self.known[case], TraceError | ByCases):
            raise known
        return known

    def settled(self, case: Case, found: Trace) -> Trace:
        """A trace whose formulas hold in all of its case from `SETTLED` on; ByCases where they do
        so from later letters of a division on."""
        sizes = self.sizes(case)
        given = [sizes.poly(letter) for letter in self.everywhere.variables.over]
        where = case.region | {poly - SETTLED for poly in given if poly is not None}
        for letter in (letter for division in case.divisions for letter in division.letters):
            beyond = Poly.atom(letter) - found.since.get(letter, 1)
            if not implied(where, beyond):
                later = replace(case, region=case.region | {beyond})
                self.known[later] = replace(found, region=later.region)
                raise ByCases([later.region, case.region | {-beyond - 1}])
        return found

    def sizes(self, case: Case) -> Variables:
        """The letters of a case."""
        return written(self.everywhere.variables, case.divisions)

    def parts(self, case: Case, unsettled: Sequence[Fn]) -> list[Case]:
        """The cases of a case in which a size under one of some floors is written by its quotient;
        none where no size can be, or all are.

        Raises:
            TraceError: there is no one way to write it.
        """
        if len(case.divisions) == len(self.everywhere.variables.over):
            return []
        return [
            Case(region, (*case.divisions, *([division] if division else [])))
            for region, division in divided(case.region, self.sizes(case), unsettled)
        ]


NARROW = 2
"""A case in which a condition exceeds 0 by no more than this is taken apart."""


def thin(region: Constraints) -> list[Constraints]:
    """The lines of a narrow case, on each of which a condition has one value; a case that is wide,
    or a line already, as it is."""
    for condition in sorted(region, key=str):
        if -condition in region:
            continue
        for most in range(NARROW + 1):
            if implied(region, Poly.of(most) - condition):
                lines = (line(region - {condition}, condition - n) for n in range(most + 1))
                return [one for one in lines if not infeasible(one)]
    return [region]


def line(region: Constraints, zero: Poly) -> Constraints:
    """The sizes of a case at which a polynomial is 0, without conditions that follow."""
    equation = frozenset((zero, -zero))
    for condition in sorted(region, key=str):
        if implied(region - {condition} | equation, condition):
            region = region - {condition}
    return region | equation
