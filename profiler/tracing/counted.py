"""What do a mixer's equations count, in the letters of a trace, and what is left beside it?

Where the count is several polynomials at the sizes of a trace, the cases are raised.
"""

from __future__ import annotations

from collections.abc import Mapping

from costmodel.composites import OF_GRADIENTS
from costmodel.constraints import Constraints, implied, infeasible, irredundant, nonnegative
from costmodel.equations import Mixer
from costmodel.exact import Exact
from costmodel.polynomial import Poly
from costmodel.rules.count import count
from profiler.tracing.cases import SETTLED, ByCases
from profiler.tracing.divisions import settled, told
from profiler.tracing.halves import by_halves
from profiler.tracing.result import Trace
from profiler.tracing.target import TraceError

Classes = dict[str, Poly]
"""Class of operations -> formula."""

PHASES: Mapping[str, str] = {"forward": "training", "backward": "backward"}
"""What a trace calls a pass -> the phase of the equations."""


def counted(
    mixer: Mixer, form: str, rewrites: tuple[str, ...], found: Trace, phase: str
) -> Classes:
    """A pass of the equations in the letters of the trace, for its batch.

    A forward pass under a rewrite of gradients is that of a training step: it keeps what they read.
    """
    if phase == "forward" and not {*OF_GRADIENTS}.isdisjoint(rewrites):
        both, one = (
            in_trace(mixer, form, rewrites, found, part) for part in ("training-step", "backward")
        )
        return minus(both, one)
    return in_trace(mixer, form, rewrites, found, PHASES[phase])


def in_trace(
    mixer: Mixer, form: str, rewrites: tuple[str, ...], found: Trace, phase: str
) -> Classes:
    """What the equations count in a phase, in the letters of the trace."""
    counts = count(mixer, phase, form, ("strict", *rewrites))
    batch = found.variables.poly("b") or Poly.of(1)
    once = counts.once.classes if counts.once else {}
    result: Classes = {}
    for classes, times in ((counts.classes, batch), (once, Poly.of(1))):
        for name, exact in classes.items():
            poly = in_letters(mixer, exact, found) * times
            result[name] = result.get(name, Poly()) + poly
    joined = in_letters(mixer, counts.joined, found) * (batch - 1)
    result["add"] = result.get("add", Poly()) + joined
    return {name: poly for name, poly in result.items() if poly.terms}


def in_letters(mixer: Mixer, exact: Exact, found: Trace) -> Poly:
    """An exact count in the letters of the trace; ByCases where it is several polynomials there,
    TraceError where it has other sizes."""
    needed = sorted(exact.letters)
    given: Mapping[str, Poly | None] = {letter: found.variables.poly(letter) for letter in needed}
    known = {letter: poly for letter, poly in given.items() if poly is not None}
    if missing := [letter for letter in needed if letter not in known]:
        raise TraceError(
            f"the equations of {mixer.name} have the sizes {', '.join(needed)}: give "
            f"{', '.join(missing)} with --over or --let"
        )
    moved = without_floors(exact.substitute(known), found)
    total, split = Poly(), Exact()
    for guards, poly in moved.pieces:
        open_ = frozenset(guard for guard in guards if not _always(guard, found))
        if not open_:
            total = total + poly
        elif not any(_always(-guard - 1, found) for guard in open_):
            split = split + Exact(((open_, poly),))
    least = {Poly.atom(x) - _least(found, x) for x in split.letters}
    here = found.region | least | _compared(found)
    for where in (frozenset(), found.region):  # cases may join at all sizes, or in this case alone
        cases = [case for case in split.chambers(where) if not infeasible(case[0] | here)]
        if len(cases) == 1:
            return total + cases[0][1]
    raise ByCases([irredundant(guards | found.region) for guards, _ in cases])


def without_floors(exact: Exact, found: Trace) -> Exact:
    """A count with numbers for the floors that have one value in the case of a trace; ByCases where
    one has several, under a size that is written by its quotient."""
    parts = [poly for guards, value in exact.pieces for poly in (*guards, value)]
    if found.divisions and (regions := told(parts, found.region)):
        raise ByCases(regions)
    total = Exact()
    for guards, poly in exact.pieces:
        held = frozenset(settled(guard, found.region) for guard in guards)
        total = total + Exact(((held, settled(poly, found.region)),))
    return total


def _always(guard: Poly, found: Trace) -> bool:
    """Whether a condition is proven in the case of a trace, from the sizes on from which its
    formulas hold."""
    later = {x: Poly.atom(x) + _least(found, x) - 1 for x in guard.letters}
    here = found.region | _compared(found)
    return nonnegative(guard.substitute(later)) or implied(here, guard)


def _least(found: Trace, letter: str) -> int:
    """The size of a letter from which on a trace is compared."""
    quotients = {letter for division in found.divisions for letter in division.letters}
    return max(found.since.get(letter, 1), 1 if letter in quotients else SETTLED)


def _compared(found: Trace) -> Constraints:
    """That a size which is written by its quotient is one from which on a trace is compared."""
    sizes = [found.variables.poly(division.size) for division in found.divisions]
    return frozenset(poly - SETTLED for poly in sizes if poly is not None)


def minus(larger: Classes, smaller: Classes) -> Classes:
    """Per class, zeros left out."""
    names = dict.fromkeys([*larger, *smaller])
    found = {n: by_halves(larger.get(n, Poly()) - smaller.get(n, Poly())) for n in names}
    return {name: poly for name, poly in found.items() if poly.terms}


NOTHING_LEFT = (0, 0, 0)


def remaining(left: Classes) -> tuple[int, int, int]:
    """How much is unexplained: classes, terms, then their highest degree."""
    terms = [monomial for poly in left.values() for monomial in poly.terms]
    degrees = [sum(power for _, power in monomial) for monomial in terms]
    return len(left), len(terms), max(degrees, default=0)
