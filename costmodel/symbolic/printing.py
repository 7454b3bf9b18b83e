"""Exact answers as LaTeX, and as plain text for programs and readers.

Answers are written in the size letters; in LaTeX, `Names` may rename the letters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fractions import Fraction

from costmodel.symbolic.cases import Formula, Quotient, cases, conditions, largest
from costmodel.symbolic.constraints import Constraints, nonnegative
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import (
    Fn,
    Monomial,
    Number,
    Poly,
    Style,
    atom_name,
    by_text,
    call,
    is_variable,
    to_text,
)
from costmodel.symbolic.pretty import ORDERED, shortest

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


def prints_head_width(names: Names) -> bool:
    """Whether h stands for d/n: not where `names` gives another size the name h."""
    return "h" in names or "h" not in names.values()


def with_head_width(poly: Poly) -> Poly:
    """The polynomial with h for every d/n, as papers write the width of a head: d h for d**2/n; as
    it is if it has the letter h already."""
    if "h" in poly.letters:
        return poly
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
    """A polynomial in LaTeX, highest degree first, positive terms before negative ones. `names`:
    size letter -> the LaTeX that is printed for it.

    >>> from costmodel.symbolic.polynomial import by_text, size
    >>> poly_latex(size("l") * size("d") ** 2 / 2 - size("h"))
    '\\\\frac{1}{2} d^{2} l - \\\\frac{d}{n}'
    """
    return Latex(names or {}).poly(poly)


def grouped(number: int) -> str:
    """A whole number in LaTeX, with a comma after each three digits if it has five or more.

    >>> grouped(4096), grouped(8386560)
    ('4096', '8{,}386{,}560')
    """
    return f"{number:,}".replace(",", "{,}") if abs(number) > 9999 else str(number)


class Latex(Style):
    """LaTeX, the term of the highest degree first, positive terms before negative ones."""

    relations: Mapping[str, str] = {">=": r"\ge", "<=": r"\le"}
    conjunction = r" \text{ and } "

    def __init__(self, names: Names) -> None:
        self.names = names

    def ordered(self, poly: Poly) -> list[tuple[Monomial, Number]]:
        def place(term: tuple[Monomial, Number]) -> tuple[int, bool]:
            return -sum(power for _, power in term[0]), term[1] < 0

        return sorted(poly.terms.items(), key=place)

    def quotient(self, number: Fraction, above: list[str], below: list[str]) -> str:
        r"""The LaTeX of a number times the product of `above`, over the product of `below`: one
        fraction if sizes are below, else the number as a factor, with \cdot before a factor that
        begins with a digit."""
        top, bottom = map(grouped, (number.numerator, number.denominator))
        if below:
            over = ([top] if top != "1" else []) + above
            under = ([bottom] if bottom != "1" else []) + below
            return rf"\frac{{{' '.join(over) or '1'}}}{{{' '.join(under)}}}"
        if bottom != "1":
            above = [rf"\frac{{{top}}}{{{bottom}}}", *above]
        elif top != "1" or not above:
            above = [top, *above]
        return above[0] + "".join(rf" \cdot {f}" if f[0].isdigit() else f" {f}" for f in above[1:])

    def power(self, atom: str, power: int) -> str:
        """The LaTeX of a positive power of an atom; one with an exponent is put in parentheses."""
        if not isinstance(atom, Fn):
            base = symbol(atom_name(atom), {} if is_variable(atom) else self.names)
        elif atom.function == "pow2":
            return f"2^{{{self.poly(atom.args[0] * power)}}}"
        else:
            base = self.function(atom)
        if power == 1:
            return base
        return f"{base}^{{{power}}}" if "^" not in base else rf"\left({base}\right)^{{{power}}}"

    def function(self, atom: Fn) -> str:
        """The LaTeX of a function: logarithms and quotients stand between rounding brackets."""
        inside = [self.poly(argument) for argument in atom.args]
        if atom.function == "ceil_log2":
            body = inside[0] if len(atom.args[0].terms) == 1 else f"({inside[0]})"
            return rf"\lceil\log_2 {body}\rceil"
        if atom in self.names:
            return self.names[atom]
        if atom.function == "floor_div":
            return rf"\lfloor\frac{{{inside[0]}}}{{{inside[1]}}}\rfloor"
        return rf"\{atom.function.lower()}({', '.join(inside)})"


def polynomials(value: Formula) -> Iterator[Poly]:
    """Yield the polynomials that a formula is printed with: its conditions, and its cases."""
    for guards, part in cases(value):
        yield from (*guards, *_of_one_case(part))


def floors(value: Formula) -> Iterator[Fn]:
    """Yield the quotients rounded down in the cases of a formula, each as often as it occurs."""
    for poly in polynomials(value):
        yield from _floors(poly)


def _of_one_case(value: Formula) -> Iterator[Poly]:
    """Yield the polynomials that a formula of one case is printed with."""
    if isinstance(value, Quotient):
        yield from (*_of_one_case(value.above), *_of_one_case(value.below))
    elif isinstance(value, Exact):
        yield from (poly for _, poly in value.chambers())
    else:
        yield from (value,) if isinstance(value, Poly) else value


def _floors(poly: Poly) -> Iterator[Fn]:
    """Yield the functions floor(a/b) in a polynomial, those inside of other functions too."""
    for monomial in poly.terms:
        for atom, _ in monomial:
            if isinstance(atom, Fn):
                yield from (atom,) if atom.function == "floor_div" else ()
                for argument in atom.args:
                    yield from _floors(argument)


def short_floor(atom: Fn, names: Names) -> str:
    r"""A short name for a quotient rounded down: the dividend, with the divisor as its index.

    >>> from costmodel.symbolic.polynomial import size
    >>> l, w = size("l"), size("w")
    >>> [short_floor(floor, {"w": "W"}) for floor in floors((l - 1) // w + w // 2)]
    ['(l - 1)_{W}', 'W_{2}']
    """
    above, below = (poly_latex(argument, names) for argument in atom.args)
    plain = re.fullmatch(r"\\?[A-Za-z]+", above) and len(atom.args[0].letters) == 1
    return f"{above if plain else f'({above})'}_{{{below}}}"


def cases_latex(value: Formula, names: Names | None = None) -> tuple[tuple[str, str], ...]:
    """(formula, condition) of every case in LaTeX; () if one formula holds at all sizes. `names`:
    size letter -> the LaTeX that is printed for it."""
    found = cases(value)
    if not found[0][0]:
        return ()
    return tuple(
        (formula_latex(part, names), conditions_latex(guards, names)) for guards, part in found
    )


def conditions_latex(guards: Constraints, names: Names | None = None) -> str:
    """Guards in LaTeX."""
    return conditions(guards, Latex(names or {}))


def conditions_words(guards: Constraints) -> str:
    """Guards in plain text."""
    return conditions(guards, ORDERED)


def formula_latex(value: Formula, names: Names | None = None) -> str:
    """A formula in LaTeX (`names`: size letter -> its LaTeX); with several cases, as cases with
    their conditions. A quotient is a fraction if both its sides have at most `IN_A_FRACTION` terms,
    else printed with a slash."""
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
"""A quotient with more terms above or below is printed with a slash, where lines may break."""


def _printed_terms(value: Exact) -> int:
    """The number of terms that are printed of a value with one case: of its polynomial or, if a
    common factor stands outside, of the rest in brackets."""
    poly = value.chambers()[0][1]
    found = shortest(poly)
    return len((found[1] if found else poly).terms)


def sum_latex(poly: Poly, names: Names | None = None) -> str:
    r"""A polynomial in LaTeX, with the common factor outside where that is shorter. `names`: size
    letter -> its LaTeX.

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
        return ORDERED.poly(value)
    if isinstance(value, tuple):
        return ORDERED.poly(largest(value))
    if isinstance(value, Quotient):
        return f"({formula_text(value.above)})/({formula_text(value.below)})"
    cases = value.chambers()
    if len(cases) == 1 and not cases[0][0]:
        return ORDERED.poly(cases[0][1])
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
    """The factor that is 1 where all guards hold and 0 elsewhere, as text."""
    return "*".join(f"Min(1, Max(0, {ORDERED.poly(g + 1)}))" for g in by_text(guards))


def unpaired_braces(latex: str) -> str:
    """The braces of a text in LaTeX that have no partner; escaped braces count too.

    >>> unpaired_braces("a{b}{c}"), unpaired_braces("}{a}")
    ('', '}')
    """
    braces = re.sub("[^{}]", "", latex)
    while "{}" in braces:
        braces = braces.replace("{}", "")
    return braces
