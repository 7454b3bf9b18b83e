"""Does a printed number hold: a count, a ratio, a difference, a percentage, plain arithmetic?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import islice

from costmodel.claims import RELATIONS, Claim, instances
from costmodel.exact import Exact
from costmodel.figures import Answer
from costmodel.findings import Finding, answers
from costmodel.formulas import parse
from costmodel.identities import SEARCHED
from costmodel.polynomial import Poly
from costmodel.readings import Reading
from costmodel.rounding import Figure, printed
from costmodel.thresholds import points, where_positive, where_zero

DIGITS = 6
"""Significant digits to which a quotient that is not printed exactly is shown."""


def number(claim: Claim, reading: Reading) -> Finding:
    """One value, or what is printed of two, at the sizes that the claim gives."""
    found = answers(claim, reading)
    figure = printed(claim.value, claim.unit, claim.rounding)
    sizes = list(instances(claim))
    open_letters = frozenset().union(*(a.letters for a in found)) - set(claim.sizes)
    if open_letters:
        return _at_all(claim, found, figure, sizes)
    shown, notes, under = [], [], []
    for at in sizes:
        values = [answer.at(at) for answer in found]
        value = _compared(claim, values)
        shown.append(_shown(claim, values, value))
        notes.append(_note(claim, values, value))
        if not _agrees(claim, figure, value):
            under.append(figure.otherwise(value))
            if not under[-1]:
                there = {"derived": _text(value), "claimed": _text(figure.value)}
                return Finding(False, shown[-1], at, notes[-1], there=there)
    return Finding(
        not under, ", ".join(shown), {}, "; ".join(filter(None, notes)), under=_either(under)
    )


def _either(under: Sequence[str]) -> str:
    return " and ".join(dict.fromkeys(under))


def _kind(claim: Claim) -> str:
    """What is printed: one value, or a ratio, a difference or a percentage of two."""
    if not claim.against:
        return ""
    return claim.compare or ("ratio" if claim.kind == "ratio" else "difference")


def _compared(claim: Claim, values: Sequence[Fraction]) -> Fraction:
    kind = _kind(claim)
    if not kind:
        return values[0]
    left, right = values
    if kind == "difference":
        return left - right
    if not right:
        raise ValueError(f"{claim.against}: {claim.quantity} is 0 there: no {kind} to it")
    return left / right if kind == "ratio" else 100 * (left - right) / right


def _agrees(claim: Claim, figure: Figure, value: Fraction) -> bool:
    """An inequality, a rounded figure, or "about 1/N": its reciprocal rounds to N."""
    if claim.relation in ("<", ">"):
        return RELATIONS[claim.relation](value, figure.value)
    inverse = _kind(claim) == "ratio" and figure.value.numerator == 1 and not figure.step
    if inverse and value:
        return round(1 / value) == figure.value.denominator
    return figure.holds(value)


def _shown(claim: Claim, values: Sequence[Fraction], value: Fraction) -> str:
    kind = _kind(claim)
    if kind == "ratio":
        exact = f" = {claim.value}" if parse(claim.value).at({}) == value else ""
        return f"{_text(values[0])}/{_text(values[1])}{exact}"
    return _text(value, sign=bool(kind)) + (" %" if kind == "percent" else "")


def _note(claim: Claim, values: Sequence[Fraction], value: Fraction) -> str:
    kind = _kind(claim)
    if kind == "ratio" and value and parse(claim.value).at({}) != value:
        return f"a ratio of 1/{float(1 / value):.3f}" if value < 1 else f"a ratio of {_text(value)}"
    return f"{_text(values[0])} against {_text(values[1])}" if kind not in ("", "ratio") else ""


def _text(value: Fraction, *, sign: bool = False) -> str:
    """A whole number in full, a quotient to a few digits."""
    plus = "+" if sign and value > 0 else ""
    return plus + (str(value) if value.denominator == 1 else f"{float(value):.{DIGITS}g}")


def _at_all(
    claim: Claim, found: Sequence[Answer], figure: Figure, sizes: Sequence[Mapping[str, int]]
) -> Finding:
    """A claim that leaves sizes open speaks of all their values."""
    if figure.step:
        missing = sorted(frozenset().union(*(a.letters for a in found)) - set(claim.sizes))
        raise ValueError(f"a rounded figure needs every size: give {', '.join(missing)} in sizes")
    shown = []
    for at in sizes:
        given = [answer.substitute(at) for answer in found]
        excess = _excess(claim, [a.exact for a in given], figure.value)
        solve = where_zero if claim.relation in ("", "=") else where_positive
        cases = [solve(poly) for _, poly in excess.chambers()]
        always = all(condition.always for condition in cases)
        shown.append(" against ".join(a.text for a in given))
        if not always:
            open_letters = frozenset().union(*(a.letters for a in given))
            first = next(
                (
                    s
                    for s in islice(points(open_letters), SEARCHED)
                    if not _agrees(claim, figure, _compared(claim, [a.at(s) for a in given]))
                ),
                {},
            )
            text = "; ".join(condition.text for condition in cases)
            return Finding(False, "; ".join(shown), {**at, **first}, f"in general iff {text}")
    return Finding(True, "; ".join(shown), {}, "proven for all other sizes")


def _excess(claim: Claim, exact: Sequence[Exact], value: Fraction) -> Exact:
    """Positive where the relation holds, 0 where the printed value is met exactly."""
    kind, left = _kind(claim), exact[0]
    right = exact[1] if kind else Exact()
    apart = {
        "": lambda: left - Exact.of(Poly.of(value)),
        "difference": lambda: left - right - Exact.of(Poly.of(value)),
        "ratio": lambda: left - right * Poly.of(value),
        "percent": lambda: left * 100 - right * Poly.of(100 + value),
    }[kind]()
    return apart * -1 if claim.relation == "<" else apart


def arithmetic(claim: Claim, reading: Reading) -> Finding:
    """A formula of numbers, such as 12*3600*8*9.5e12, has the printed value."""
    figure = printed(claim.value, claim.unit, claim.rounding)
    (sizes,) = instances(claim)
    value = parse(claim.formula).at(sizes)
    holds = _agrees(claim, figure, value)
    under = "" if holds else figure.otherwise(value)
    there = {"derived": _text(value), "claimed": _text(figure.value)}
    return Finding(holds, _text(value), {} if holds else sizes, under=under, there=there)
