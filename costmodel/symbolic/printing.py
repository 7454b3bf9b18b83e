"""Exact answers as LaTeX, and as plain text for programs and readers.

Answers are written in the size letters; in LaTeX, `Names` may rename the letters.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from costmodel.symbolic.cases import Formula, Quotient, cases, compared, largest
from costmodel.symbolic.constraints import Constraints, nonnegative
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import (
    Fn,
    Monomial,
    Number,
    Poly,
    atom_name,
    by_text,
    call,
    is_variable,
    to_text,
)
from costmodel.symbolic.pretty import ordered_terms, shortest

Names = Mapping[str, str]
"""Size letter -> the LaTeX that is printed for it."""


def identifier(name: str) -> str:
    """The LaTeX of a name: W_ext becomes W^{[ext]}, ext is upright, x is italic.

    >>> identifier("W_ext"), identifier("adj"), identifier("x")
    ('W^{[\\\\mathrm{ext}]}', '\\\\mathrm{adj}', 'x')
    """
    head, _, tail = name.partition("_")
    head = head if len(head) <= 1 or head[1:].strip("'") == "" else rf"\mathrm{{{head}}}"
    return rf"{head}^{{[\mathrm{{{tail.replace('_', ',')}}}]}}" if tail else head


def symbol(name: str, names: Names) -> str:
    r"""The LaTeX of a size, renamed by `names`, or of an index.

    >>> symbol("i1", {}), symbol("i_rest", {}), symbol("l", {"l": "N"})
    ('i_{1}', 'i_{\\mathrm{rest}}', 'N')
    """
    if name in names:
        return names[name]
    letter = name.rstrip("0123456789")
    if letter and letter != name and "_" not in name:
        return f"{letter}_{{{name[len(letter) :]}}}"
    head, _, tail = name.partition("_")
    return rf"{head}_{{\mathrm{{{tail}}}}}" if tail else head


def with_head_width(poly: Poly) -> Poly:
    """Write h for every d/n, as the papers do in equations."""
    terms: dict[Monomial, Number] = {}
    for monomial, number in poly.terms.items():
        powers = dict(monomial)
        times = min(powers.get("d", 0), -powers.get("n", 0))
        if times > 0:
            powers["d"] -= times
            powers["n"] += times
            powers["h"] = powers.get("h", 0) + times
        kept = tuple(sorted((a, p) for a, p in powers.items() if p))
        terms[kept] = terms.get(kept, 0) + number
    return Poly(terms)


def poly_latex(poly: Poly, names: Names | None = None) -> str:
    """A polynomial in LaTeX, highest degree first, positive terms before negative ones.

    >>> from costmodel.symbolic.polynomial import by_text, size
    >>> poly_latex(size("l") * size("d") ** 2 / 2 - size("h"))
    '\\\\frac{1}{2} d^{2} l - \\\\frac{d}{n}'
    """
    terms = sorted(poly.terms.items(), key=lambda term: (-_degree(term[0]), term[1] < 0))
    text = ""
    for monomial, number in terms:
        sign = "-" if number < 0 else "+"
        text += f" {sign} " if text else ("-" if number < 0 else "")
        text += _term_latex(monomial, -number if number < 0 else number, names or {})
    return text or "0"


def _degree(monomial: Monomial) -> int:
    return sum(power for _, power in monomial)


def _term_latex(monomial: Monomial, number: Number, names: Names) -> str:
    fraction = Fraction(number)
    above = [_power(atom, power, names) for atom, power in monomial if power > 0]
    below = [_power(atom, -power, names) for atom, power in monomial if power < 0]
    if below:
        top = ([str(fraction.numerator)] if fraction.numerator != 1 else []) + above
        bottom = ([str(fraction.denominator)] if fraction.denominator != 1 else []) + below
        return rf"\frac{{{' '.join(top) or '1'}}}{{{' '.join(bottom)}}}"
    if fraction.denominator != 1:
        above.insert(0, rf"\frac{{{fraction.numerator}}}{{{fraction.denominator}}}")
    elif fraction.numerator != 1 or not above:
        above.insert(0, str(fraction.numerator))
    return above[0] + "".join(rf" \cdot {f}" if f[0].isdigit() else f" {f}" for f in above[1:])


def _power(atom: str, power: int, names: Names) -> str:
    if not isinstance(atom, Fn):
        base = symbol(atom_name(atom), {}) if is_variable(atom) else symbol(atom, names)
    elif atom.function == "pow2":
        exponent = poly_latex(atom.args[0] * power, names)
        return f"2^{{{exponent}}}"
    else:
        base = _function(atom, names)
    if power == 1:
        return base
    return f"{base}^{{{power}}}" if "^" not in base else rf"\left({base}\right)^{{{power}}}"


def _function(atom: Fn, names: Names) -> str:
    inside = [poly_latex(argument, names) for argument in atom.args]
    if atom.function == "ceil_log2":
        body = inside[0] if len(atom.args[0].terms) == 1 else f"({inside[0]})"
        return rf"\lceil\log_2 {body}\rceil"
    if atom.function == "floor_div":
        return rf"\lfloor\frac{{{inside[0]}}}{{{inside[1]}}}\rfloor"
    return rf"\{atom.function.lower()}({', '.join(inside)})"


def cases_latex(value: Formula, names: Names | None = None) -> tuple[tuple[str, str], ...]:
    """The formula and the condition of every case in LaTeX; () where one formula always holds."""
    found = cases(value)
    if not found[0][0]:
        return ()
    return tuple(
        (formula_latex(part, names), conditions_latex(guards, names)) for guards, part in found
    )


def conditions_latex(guards: Constraints, names: Names | None = None) -> str:
    """Guards in LaTeX."""
    signs = {">=": r"\ge", "<=": r"\le"}
    return r" \text{ and } ".join(
        f"{poly_latex(left, names)} {signs.get(relation, relation)} {poly_latex(right, names)}"
        for left, relation, right in compared(guards)
    )


def conditions_words(guards: Constraints) -> str:
    """Guards in plain text."""
    return " and ".join(
        f"{ordered_text(left)} {relation} {ordered_text(right)}"
        for left, relation, right in compared(guards)
    )


def formula_latex(value: Formula, names: Names | None = None) -> str:
    """A count, a span or a quotient in LaTeX; piecewise answers as cases with their conditions."""
    if found := cases_latex(value, names):
        lines = [rf"{part} & \text{{if }} {when}" for part, when in found]
        return r"\begin{cases} " + r" \\ ".join(lines) + r" \end{cases}"
    if isinstance(value, Exact):
        return sum_latex(value.chambers()[0][1], names)
    if not isinstance(value, Quotient):
        return sum_latex(largest(value), names)
    above, below = (formula_latex(part, names) for part in (value.above, value.below))
    if max(map(_printed_terms, (value.above, value.below))) <= IN_A_FRACTION:
        return rf"\frac{{{above}}}{{{below}}}"
    return f"({above}) / ({below})"


IN_A_FRACTION = 3
"""A quotient with more terms above or below is printed with a slash, which allows a line break."""


def _printed_terms(value: Exact) -> int:
    """The number of terms in the longest printed sum."""
    poly = value.chambers()[0][1]
    found = shortest(poly)
    return len((found[1] if found else poly).terms)


def sum_latex(poly: Poly, names: Names | None = None) -> str:
    r"""A polynomial in LaTeX, with the common factor outside where that is shorter.

    >>> from costmodel.symbolic.polynomial import by_text, size
    >>> l, d = size("l"), size("d")
    >>> sum_latex(d * l**2 / 2 + d * l * 3 / 2, {"l": "N"})
    '\\frac{1}{2} d N (N + 3)'
    """
    if found := shortest(poly):
        return f"{poly_latex(found[0], names)} ({poly_latex(found[1], names)})"
    return poly_latex(poly, names)


def formula_text(value: Formula) -> str:
    """A formula as CSV and JSON print it, with `+ - * / ** ceil_log2 floor Max Min`.

    A piece that holds only where g >= 0 is multiplied by Min(1, Max(0, g + 1)), which is 1 there
    and 0 elsewhere.
    """
    if isinstance(value, Poly):
        return ordered_text(value)
    if isinstance(value, tuple):
        return ordered_text(largest(value))
    if isinstance(value, Quotient):
        return f"({formula_text(value.above)})/({formula_text(value.below)})"
    cases = value.chambers()
    if len(cases) == 1 and not cases[0][0]:
        return ordered_text(cases[0][1])
    parts = [
        f"({to_text(_defined_everywhere(poly))})*{_guards_text(guards)}"
        for guards, poly in cases
        if poly.terms
    ]
    return " + ".join(parts) or "0"


def _defined_everywhere(poly: Poly) -> Poly:
    """The polynomial with floor(a/Max(1, s)) for each floor(a/s): equal where s >= 1, and defined
    at every size."""
    clamped: dict[str, Poly] = {
        atom: call("floor_div", atom.args[0], call("Max", 1, atom.args[1]))
        for atom in poly.atoms
        if isinstance(atom, Fn) and atom.function == "floor_div"
        and not nonnegative(atom.args[1] - 1)
    }  # fmt: skip
    return poly.substitute(clamped)


def formula_words(value: Formula) -> str:
    """A formula for a reader; cases of a piecewise formula read `l - w if l > w; 0 if l <= w`."""
    found = cases(value)
    if not found[0][0]:
        return formula_text(value)
    return "; ".join(
        f"{formula_text(part)} if {conditions_words(guards)}" for guards, part in found
    )


def _guards_text(guards: Constraints) -> str:
    return "*".join(f"Min(1, Max(0, {ordered_text(g + 1)}))" for g in by_text(guards))


def ordered_text(poly: Poly) -> str:
    """Plain text with a positive term first: t - j + 1, not -j + t + 1."""
    first, *others = ordered_terms(poly) or [((), 0)]
    rest = to_text(Poly(dict(others))) if others else ""
    begin = to_text(Poly(dict([first])))
    return f"{begin} {'-' if rest[0] == '-' else '+'} {rest.lstrip('-')}" if rest else begin
