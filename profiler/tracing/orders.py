"""Formulas that depend on which of two sizes is larger, or on one size dividing another.

If no formula fits every size, and a formula fails at sizes of another order, each order is traced
separately and the formula is by cases. If a module runs only at multiples of another size, it is
traced over the quotient, and its formulas are then written in the sizes.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import combinations

from costmodel.symbolic.polynomial import Fn, Poly, call
from profiler.tracing.divisions import Division, sizes_divided
from profiler.tracing.meta_run.target import Sizes, TraceError, Variables
from profiler.tracing.result import Cases, Trace, Value


def by_order(found: Trace) -> Trace:
    """The trace, with formulas by cases x <= y and x > y of two sizes if none fits both, provided
    that everything has a formula in each case."""
    letters = {
        pair
        for broken in found.broken.values()
        for pair in combinations(found.variables.over, 2)
        if order(found.base, pair) != order(broken.sizes, pair)
    }
    for x, y in sorted(letters):
        apart = Poly.atom(y) - Poly.atom(x)
        with suppress(TraceError):
            parts = [found.within(frozenset({case})) for case in (apart, -apart - 1)]
            if not any(part.broken for part in parts):
                return joined(found, parts)
    return found


def order(sizes: Sizes, pair: tuple[str, str]) -> bool:
    """Whether the first of two sizes is larger."""
    return sizes[pair[0]] > sizes[pair[1]]


def joined(found: Trace, parts: list[Trace]) -> Trace:
    """A trace with the formulas of its cases for quantities without a formula."""
    quantities: dict[tuple[str, str], Value] = dict(found.quantities)
    for quantity in found.broken:
        pieces = [(part.region, part.quantities.get(quantity, Poly())) for part in parts]
        quantities[quantity] = Cases(
            tuple((region, poly) for region, poly in pieces if isinstance(poly, Poly))
        )
    return replace(
        found,
        quantities=quantities,
        proven=[*found.proven, *(point for part in parts for point in part.proven)],
        since={x: max(part.since.get(x, 1) for part in parts) for x in found.since},
        doubts=tuple(dict.fromkeys(d for one in (found, *parts) for d in one.doubts)),
        notes=tuple(n for n in found.notes if not n.startswith("the formulas hold from")),
    )


class OnlyDivided(TraceError):
    """The module runs only if a size is a multiple of another size."""

    def __init__(self, reason: str, size: str, divisor: str) -> None:
        super().__init__(reason)
        self.size, self.divisor = size, divisor


def of_multiples(found: Trace, sizes: Variables, division: Division, refused: OnlyDivided) -> Trace:
    """A trace over the quotient of two sizes, rewritten as a trace over the sizes themselves, which
    holds if one is a multiple of the other."""
    inner = sizes_divided(sizes, (division,))

    def asked(point: Sizes) -> dict[str, int]:
        every = inner.sizes(point)
        return {letter: every[letter] for letter in sizes.over}

    def poly(value: Value) -> Value:
        return without_quotient(value, division) if isinstance(value, Poly) else value

    flops = found.flops
    if flops is not None:
        own = {x: size for x, size in flops.sizes.items() if x != division.quotient}
        flops = replace(flops, sizes=own)
    size, divisor = refused.size, refused.divisor
    return replace(
        found,
        variables=sizes,
        quantities={quantity: poly(value) for quantity, value in found.quantities.items()},
        fitted=[asked(point) for point in found.fitted],
        since=asked(found.since),
        base=asked(found.base),
        steps={x: found.steps.get(x, 1) for x in sizes.over},
        multiple_of={size: divisor},
        divisions=(),
        flops=flops,
        notes=(f"{size} runs over multiples of {divisor}: otherwise {refused}", *found.notes),
        followed=lambda: replace(
            found.zeros, formulas={name: poly(p) for name, p in found.zeros.formulas.items()}
        ),
    )


def without_quotient(poly: Poly, division: Division) -> Poly:
    """The same number if a size is a multiple of its divisor: quotient * divisor is the size."""
    (divisor,) = division.divisor.letters
    total = Poly()
    for monomial, number in poly.terms.items():
        powers = dict(monomial)
        both = min(powers.get(division.quotient, 0), powers.get(divisor, 0))
        term = Poly.of(number) * Poly.atom(division.size) ** both
        for atom, power in monomial:
            if isinstance(atom, Fn):
                inner = call(atom.function, *(without_quotient(p, division) for p in atom.args))
                term = term * inner**power
            elif atom in (division.quotient, divisor):
                base = division.floor if atom == division.quotient else Poly.atom(atom)
                term = term * base ** (power - both)
            else:
                term = term * Poly.atom(atom) ** power
        total = total + term
    return total
