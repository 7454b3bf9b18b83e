"""How is an exact answer written, as LaTeX and as text for programs and for readers?

Answers are written in the size letters, which `Names` may rename in LaTeX.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from costmodel.symbolic.constraints import Constraints, implied, infeasible, nonnegative
from costmodel.symbolic.latex_width import width
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Fn, Monomial, Number, Poly, call, sorted_terms, to_text
from costmodel.symbolic.sizes import LETTERS

Names = Mapping[str, str]
"""Size letter -> the LaTeX that is printed for it."""


def identifier(name: str) -> str:
    """A name as LaTeX prints it: W_ext is W^{[ext]}, ext is upright, x is italic.

    >>> identifier("W_ext"), identifier("adj"), identifier("x")
    ('W^{[\\\\mathrm{ext}]}', '\\\\mathrm{adj}', 'x')
    """
    head, _, tail = name.partition("_")
    head = head if len(head) <= 1 or head[1:].strip("'") == "" else rf"\mathrm{{{head}}}"
    return rf"{head}^{{[\mathrm{{{tail.replace('_', ',')}}}]}}" if tail else head


def symbol(name: str, names: Names) -> str:
    r"""The LaTeX of a size, as `names` renames it, or of an index, which `names` never holds.

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

    >>> from costmodel.symbolic.polynomial import size
    >>> poly_latex(size("l") * size("d") ** 2 / 2 - size("h"))
    '\\\\frac{1}{2} d^{2} l - \\\\frac{d}{n}'
    """
    terms = sorted_terms(poly)
    terms.sort(key=lambda term: (-_degree(term[0]), term[1] < 0))
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
        base = symbol(atom[1:], {}) if atom[0] in "@#" else symbol(atom, names)
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


@dataclass(frozen=True)
class Quotient:
    """One answer over another one, both exact."""

    above: Exact
    below: Exact


Formula = Poly | Exact | Quotient | tuple[Poly, ...]
"""What is printed; a tuple of polynomials is their maximum."""


def cases(value: Formula) -> list[tuple[Constraints, Formula]]:
    """Disjoint cases that cover all sizes, each with its formula; one case without guards where a
    single formula holds at all sizes."""
    found: list[tuple[Constraints, Formula]]
    if isinstance(value, Exact):
        found = [*value.chambers()]
    elif isinstance(value, Quotient):
        found = [
            (some | others, Quotient(Exact.of(above), Exact.of(below)))
            for some, above in value.above.chambers()
            for others, below in value.below.chambers()
            if not (some | others) or not infeasible(some | others)
        ]
    else:
        found = [(frozenset(), value)]
    parted = [part for guards, whole in found for part in _split_at_switches(whole, guards)]
    return [(_without_implied(guards), part) for guards, part in parted]


def _split_at_switches(value: Formula, where: Constraints) -> list[tuple[Constraints, Formula]]:
    """The cases of a depth in which each switch Min(1, Max(0, g)) is 1 or 0, and left out."""
    terms = () if isinstance(value, (Exact, Quotient)) else _terms_of_max(value)
    switch = next((guard for term in terms for guard in _switches(term)), None)
    if switch is None:
        return [(where, value)]
    sides = (where | {guard} for guard in (switch - 1, -switch))
    return [
        part
        for there in sides
        if not infeasible(there)
        for part in _split_at_switches(
            _max_where([_simplified_where(term, there) for term in terms], there), there
        )
    ]


def _terms_of_max(value: Poly | tuple[Poly, ...]) -> tuple[Poly, ...]:
    return (value,) if isinstance(value, Poly) else value


def _switches(poly: Poly) -> Iterator[Poly]:
    """g of every Min(1, Max(0, g)), inside functions too."""
    for atom in poly.atoms:
        if isinstance(atom, Fn):
            guard = _switch(atom)
            yield from (guard,) if guard is not None else ()
            for argument in atom.args:
                yield from _switches(argument)


def _switch(atom: Fn) -> Poly | None:
    """g of Min(1, Max(0, g)); None of any other atom."""
    rest = [a for a in atom.args if a != 1]
    if atom.function != "Min" or len(rest) != 1 or len(atom.args) != 2:
        return None
    inner = next(iter(rest[0].atoms), None)
    if not isinstance(inner, Fn) or inner.function != "Max" or rest[0] != Poly.atom(inner):
        return None
    guards = [a for a in inner.args if a.terms]
    return guards[0] if len(guards) == 1 < len(inner.args) else None


def _simplified_where(poly: Poly, where: Constraints) -> Poly:
    """A polynomial equal to `poly` at the sizes of `where`, without the arguments of each Max and
    Min that are never the largest or smallest there."""
    result = Poly()
    for monomial, number in poly.terms.items():
        term = Poly.of(number)
        for atom, power in monomial:
            base = _simplified_atom(atom, where) if isinstance(atom, Fn) else Poly.atom(atom)
            term = term * base**power
        result = result + term
    return result


def _simplified_atom(atom: Fn, where: Constraints) -> Poly:
    if (guard := _switch(atom)) is not None:
        known = implied(where, guard - 1), implied(where, -guard)
        return Poly.of(int(known[0])) if any(known) else Poly.atom(atom)
    parts = [_simplified_where(argument, where) for argument in atom.args]
    if atom.function in ("Max", "Min"):
        parts = _possible_results(parts, where, 1 if atom.function == "Max" else -1)
    return call(atom.function, *parts)


def _possible_results(parts: Sequence[Poly], where: Constraints, sign: int) -> list[Poly]:
    """The arguments of a maximum (sign 1) or minimum (-1) that may be the result at some sizes.

    Of two that are equal at all these sizes, a number is kept rather than a formula.
    """
    kept = list(dict.fromkeys(parts))
    for part in sorted(kept, key=lambda part: part.constant() is not None):
        others = [other for other in kept if other is not part]
        if any(implied(where, (other - part) * sign) for other in others):
            kept.remove(part)
    return kept


def _max_where(terms: Sequence[Poly], where: Constraints) -> Poly | tuple[Poly, ...]:
    kept = _possible_results(terms, where, 1)
    return kept[0] if len(kept) == 1 else tuple(kept)


def _without_implied(guards: Constraints) -> Constraints:
    kept = guards
    for guard in sorted(guards, key=str):
        if len(kept) > 1 and implied(kept - {guard}, guard):
            kept -= {guard}
    return kept


def condition(guard: Poly) -> tuple[Poly, str, Poly]:
    """A guard `g >= 0` as (left side, relation, right side), both sides with positive terms; the
    size that comes first in the list of letters stands left.

    >>> from costmodel.symbolic.polynomial import size
    >>> " ".join(map(str, condition(size("w") - size("l"))))
    'l <= w'
    >>> " ".join(map(str, condition(size("l") - size("w") - 1)))
    'l > w'
    """
    free = guard.terms.get((), 0)
    above = Poly({m: n for m, n in guard.terms.items() if m and n > 0})
    below = above + free - guard
    whole = all(isinstance(n, int) and all(p > 0 for _, p in m) for m, n in guard.terms.items())
    relation = ">="
    if whole and free == -1 and above.terms and below.terms:
        relation = ">"
    elif free < 0:
        below = below - free
    else:
        above = above + free
    if _letter_order(below) < _letter_order(above):
        return below, relation.replace(">", "<"), above
    return above, relation, below


def _letter_order(side: Poly) -> int:
    """The place in the list of letters of the first size that one side names; the end for none."""
    order = list(LETTERS)
    return min((order.index(x) for x in side.letters if x in LETTERS), default=len(order))


def cases_latex(value: Formula, names: Names | None = None) -> tuple[tuple[str, str], ...]:
    """The formula and the condition of every case in LaTeX; () where one formula always holds."""
    found = cases(value)
    if not found[0][0]:
        return ()
    return tuple(
        (formula_latex(part, names), conditions_latex(guards, names)) for guards, part in found
    )


def _conditions(guards: Constraints) -> list[tuple[Poly, str, Poly]]:
    """The guards as conditions; two guards g >= 0 and -g >= 0 are one equation."""
    found = []
    for guard in sorted(guards, key=str):
        left, relation, right = condition(guard)
        if -guard not in guards:
            found.append((left, relation, right))
        elif str(guard) < str(-guard):
            if "=" not in relation:  # l > w says that l - w is at least 1
                left, _, right = condition(-guard)
            found.append((left, "=", right))
    return found


def conditions_latex(guards: Constraints, names: Names | None = None) -> str:
    """Guards in LaTeX."""
    signs = {">=": r"\ge", "<=": r"\le"}
    return r" \text{ and } ".join(
        f"{poly_latex(left, names)} {signs.get(relation, relation)} {poly_latex(right, names)}"
        for left, relation, right in _conditions(guards)
    )


def conditions_words(guards: Constraints) -> str:
    """Guards in plain text."""
    return " and ".join(
        f"{ordered_text(left)} {relation} {ordered_text(right)}"
        for left, relation, right in _conditions(guards)
    )


def formula_latex(value: Formula, names: Names | None = None) -> str:
    """A count, a span or a quotient in LaTeX; piecewise answers as cases with their conditions."""
    if found := cases_latex(value, names):
        lines = [rf"{part} & \text{{if }} {when}" for part, when in found]
        return r"\begin{cases} " + r" \\ ".join(lines) + r" \end{cases}"
    if isinstance(value, Exact):
        return poly_latex(value.chambers()[0][1], names)
    if not isinstance(value, Quotient):
        return poly_latex(_as_max(_terms_of_max(value)), names)
    above, below = (formula_latex(part, names) for part in (value.above, value.below))
    if max(width(above), width(below)) <= WIDEST:
        return rf"\frac{{{above}}}{{{below}}}"
    return f"({above}) / ({below})"


WIDEST = 100.0
"""A fraction with a wider side is printed with a slash, so that it may break."""


def formula_text(value: Formula) -> str:
    """A formula as CSV and JSON print it, with `+ - * / ** ceil_log2 floor Max Min`.

    A piece that holds only where g >= 0 is multiplied by Min(1, Max(0, g + 1)), which is 1 there
    and 0 elsewhere.
    """
    if isinstance(value, Poly):
        return ordered_text(value)
    if isinstance(value, tuple):
        return ordered_text(_as_max(value))
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
    """The polynomial with floor(a/Max(1, s)) for each floor(a/s): the same where s is positive, and
    defined elsewhere too."""
    clamped: dict[str, Poly] = {
        atom: call("floor_div", atom.args[0], call("Max", 1, atom.args[1]))
        for atom in poly.atoms
        if isinstance(atom, Fn) and atom.function == "floor_div"
        and not nonnegative(atom.args[1] - 1)
    }  # fmt: skip
    return poly.substitute(clamped)


def formula_words(value: Formula) -> str:
    """A formula for a reader, a piecewise one as cases: `l - w if l > w; 0 if l <= w`."""
    found = cases(value)
    if not found[0][0]:
        return formula_text(value)
    return "; ".join(
        f"{formula_text(part)} if {conditions_words(guards)}" for guards, part in found
    )


def _guards_text(guards: Constraints) -> str:
    return "*".join(f"Min(1, Max(0, {ordered_text(g + 1)}))" for g in sorted(guards, key=str))


def _as_max(terms: tuple[Poly, ...]) -> Poly:
    return call("Max", *terms) if terms else Poly()


def ordered_text(poly: Poly) -> str:
    """The polynomial's text with a positive term first: t - j + 1, not -j + t + 1."""
    terms = sorted_terms(poly)
    positive = next((k for k, (_, number) in enumerate(terms) if number > 0), 0)
    if not positive:
        return to_text(poly)
    first = Poly(dict([terms[positive]]))
    rest = to_text(poly - first)
    return f"{to_text(first)} - {rest[1:]}" if rest[0] == "-" else f"{to_text(first)} + {rest}"
