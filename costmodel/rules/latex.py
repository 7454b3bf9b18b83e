"""How are equations and counts printed, in LaTeX and in plain text?

One table of rules per kind of node, two notations. Equations are printed as the file writes them,
composites as the papers write them; h stands for d/n. Counts are printed in the size letters, which
`names` may rename.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from costmodel.domains import Constraints, Exact, Unsupported
from costmodel.equations import (
    Add,
    Array,
    Binary,
    Call,
    Composite,
    Constant,
    Div,
    Equation,
    Fft,
    Flat,
    Folded,
    Index,
    Mul,
    Neg,
    Node,
    Position,
    Reduce,
    Ref,
    Sub,
)
from costmodel.functions import TABLE
from costmodel.polynomial import Fn, Monomial, Number, Poly, call, sorted_terms, to_text

Names = Mapping[str, str]
"""Size letter -> the LaTeX that is printed for it."""

REDUCTION, SUM, PRODUCT, ATOM = range(4)
"""How tightly an expression binds, loosest first."""


@dataclass(frozen=True)
class Piece:
    """A printed expression and how tightly it binds."""

    text: str
    binding: int


def identifier(name: str) -> str:
    """A name as LaTeX prints it: W_ext is W^{[ext]}, ext is upright, x is italic.

    >>> identifier("W_ext"), identifier("adj"), identifier("x")
    ('W^{[\\\\mathrm{ext}]}', '\\\\mathrm{adj}', 'x')
    """
    head, _, tail = name.partition("_")
    head = head if len(head) <= 1 or head[1:].strip("'") == "" else rf"\mathrm{{{head}}}"
    return rf"{head}^{{[\mathrm{{{tail.replace('_', ',')}}}]}}" if tail else head


def symbol(name: str, names: Names) -> str:
    """A size as `names` renames it; an index has no entry there."""
    if name in names:
        return names[name]
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

    >>> from costmodel.polynomial import size
    >>> poly_latex(size("l") * size("d") ** 2 / 2 - size("h"))
    '\\\\frac{1}{2} d^{2} l - \\\\frac{d}{n}'
    """
    terms = sorted_terms(poly)
    degree = {m: sum(p for _, p in m) for m, _ in terms}
    terms.sort(key=lambda term: (-degree[term[0]], term[1] < 0))
    text = ""
    for monomial, number in terms:
        sign = "-" if number < 0 else "+"
        text += f" {sign} " if text else ("-" if number < 0 else "")
        text += _term_latex(monomial, abs(number), names or {})
    return text or "0"


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
    return r" \cdot ".join(above) if re.match(r"\d", " ".join(above[1:])) else " ".join(above)


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
    return rf"\{atom.function.lower()}({', '.join(inside)})"


@dataclass(frozen=True)
class Quotient:
    """One answer over another one, both exact."""

    above: Exact
    below: Exact


Formula = Poly | Exact | Quotient | tuple[Poly, ...]
"""What counts are printed from; a tuple of polynomials is their maximum."""


def formula_latex(value: Formula, names: Names | None = None) -> str:
    """A count, a span or a quotient in LaTeX; piecewise answers with their breakpoints."""
    if isinstance(value, Poly):
        return poly_latex(value, names)
    if isinstance(value, tuple):
        return poly_latex(_largest(value), names)
    if isinstance(value, Quotient):
        above, below = (formula_latex(part, names) for part in (value.above, value.below))
        return rf"\frac{{{above}}}{{{below}}}"
    cases = value.chambers()
    if len(cases) == 1 and not cases[0][0]:
        return poly_latex(cases[0][1], names)
    lines = [rf"{poly_latex(poly, names)} & {_guards_latex(gs, names)}" for gs, poly in cases]
    return r"\begin{cases} " + r" \\ ".join(lines) + r" \end{cases}"


def _guards_latex(guards: Constraints, names: Names) -> str:
    conditions = [rf"{poly_latex(g, names)} \ge 0" for g in sorted(guards, key=str)]
    return r"\text{if } " + r",\ ".join(conditions)


def formula_text(value: Formula) -> str:
    """The same with `+ - * / ** ceil_log2 Max Min`, as the formats promise.

    A piece that counts only where g >= 0 is multiplied by Min(1, Max(0, g + 1)), which is 1 there
    and 0 elsewhere.
    """
    if isinstance(value, Poly):
        return ordered_text(value)
    if isinstance(value, tuple):
        return ordered_text(_largest(value))
    if isinstance(value, Quotient):
        return f"({formula_text(value.above)})/({formula_text(value.below)})"
    cases = value.chambers()
    if len(cases) == 1 and not cases[0][0]:
        return ordered_text(cases[0][1])
    parts = [f"({to_text(poly)})*{_guards_text(guards)}" for guards, poly in cases if poly.terms]
    return " + ".join(parts) or "0"


def formula_words(value: Formula) -> str:
    """The same for a reader: piecewise answers as cases with their breakpoints."""
    cases = value.chambers() if isinstance(value, Exact) else []
    if len(cases) < 2:
        return formula_text(value)
    return "; ".join(
        f"{ordered_text(poly)} if {' and '.join(_at_least_zero(g) for g in sorted(guards, key=str))}"
        for guards, poly in cases
    )


def _at_least_zero(guard: Poly) -> str:
    """`w >= l` for w - l >= 0, negative terms on the other side."""
    above = Poly({m: n for m, n in guard.terms.items() if n > 0})
    return f"{to_text(above)} >= {ordered_text(above - guard)}"


def _guards_text(guards: Constraints) -> str:
    return "*".join(f"Min(1, Max(0, {to_text(g + 1)}))" for g in sorted(guards, key=str))


def _largest(terms: tuple[Poly, ...]) -> Poly:
    return call("Max", *terms) if terms else Poly()


@dataclass(frozen=True)
class Notation:
    """One way to print: LaTeX or plain text. Rules below combine its parts."""

    latex: bool
    names: Names

    def poly(self, poly: Poly) -> str:
        """A bound, a position or a constant, with h for d/n."""
        short = with_head_width(poly)
        return poly_latex(short, self.names) if self.latex else ordered_text(short)

    def array(self, array: Array) -> str:
        """An array's name."""
        if not self.latex:
            return array.name
        return array.latex or identifier(array.name)

    def position(self, position: Position) -> str:
        """An index expression; a flattened axis is written (j-1)h+c."""
        if isinstance(position, Flat):
            parts = (position.outer - 1, position.extent, position.inner)
            outer, extent, inner = (self.poly(part).replace(" ", "") for part in parts)
            return f"({outer}){extent}+{inner}" if self.latex else f"({outer})*{extent}+{inner}"
        return self.poly(position).replace(" ", "")

    def entry(self, array: Array, positions: tuple[Position, ...]) -> str:
        """An array entry."""
        inside = ",".join(self.position(p) for p in positions)
        name = self.array(array)
        return f"{name}_{{{inside}}}" if self.latex else f"{name}[{inside}]"

    def bounds(self, index: Index) -> tuple[str, str]:
        """The ends of an index's range."""
        low, up = (tuple(map(self.poly, ends)) for ends in (index.lower, index.upper))
        return self._extreme("max", low), self._extreme("min", up)

    def _extreme(self, kind: str, ends: tuple[str, ...]) -> str:
        if len(ends) == 1:
            return ends[0]
        return f"\\{kind}({', '.join(ends)})" if self.latex else f"{kind}({', '.join(ends)})"

    def range(self, index: Index) -> str:
        """`i = 1..l`."""
        low, up = self.bounds(index)
        name = symbol(index.name, {}) if self.latex else index.name
        return rf"{name}={low},\dots,{up}" if self.latex else f"{name} = {low}..{up}"

    def reduction(self, kind: str, over: tuple[Index, ...], body: str) -> str:
        """A sum or a maximum."""
        if not self.latex:
            ranges = ", ".join("{} = {}..{}".format(i.name, *self.bounds(i)) for i in over)
            return f"{kind}({ranges}) {body}"
        signs = {"sum": r"\sum", "max": r"\max"}
        parts = []
        for index in over:
            low, up = self.bounds(index)
            name = symbol(index.name, {})
            between = (
                rf"_{{{name}={low}}}^{{{up}}}"
                if kind == "sum"
                else (rf"_{{{low} \le {name} \le {up}}}")
            )
            parts.append(signs[kind] + between)
        return f"{' '.join(parts)} {body}"

    def wrapped(self, piece: Piece, least: int) -> str:
        """The expression in parentheses where it binds more loosely than `least`."""
        if piece.binding >= least:
            return piece.text
        return rf"\left({piece.text}\right)" if self.latex else f"({piece.text})"

    def fraction(self, above: Piece, below: Piece) -> Piece:
        """A quotient."""
        if self.latex:
            return Piece(rf"\frac{{{above.text}}}{{{below.text}}}", PRODUCT)
        return Piece(f"{self.wrapped(above, PRODUCT)} / {self.wrapped(below, ATOM)}", PRODUCT)

    def root(self, body: str) -> str:
        """A square root."""
        return rf"\sqrt{{{body}}}" if self.latex else f"sqrt({body})"


def ordered_text(poly: Poly) -> str:
    """Plain text with a positive term first: t - j + 1, not -j + t + 1."""
    terms = sorted_terms(poly)
    positive = next((k for k, (_, number) in enumerate(terms) if number > 0), 0)
    if not positive:
        return to_text(poly)
    first = Poly(dict([terms[positive]]))
    rest = to_text(poly - first)
    return f"{to_text(first)} - {rest[1:]}" if rest[0] == "-" else f"{to_text(first)} + {rest}"


def _constant(notation: Notation, node: Constant) -> Piece:
    text = notation.poly(node.base)
    positive = all(number > 0 for number in node.base.terms.values())
    binding = ATOM if len(node.base.terms) <= 1 and positive else SUM
    if node.half_power == 2:
        return Piece(text, binding)
    root = notation.root(text)
    if abs(node.half_power) != 1:
        exponent = Fraction(node.half_power, 2)
        body = notation.wrapped(Piece(text, binding), ATOM)
        return Piece(
            f"{body}^{{{exponent}}}" if notation.latex else f"{body}**({exponent})", PRODUCT
        )
    if node.half_power == 1:
        return Piece(root, ATOM)
    return notation.fraction(Piece("1", ATOM), Piece(root, ATOM))


def _ref(notation: Notation, node: Ref) -> Piece:
    return Piece(notation.entry(node.array, node.positions), ATOM)


def _sum(sign: str) -> Callable[[Notation, Binary], Piece]:
    def rule(notation: Notation, node: Binary) -> Piece:
        left = notation.wrapped(printed(notation, node.left), SUM)
        right = notation.wrapped(printed(notation, node.right), PRODUCT)
        return Piece(f"{left} {sign} {right}", SUM)

    return rule


def _mul(notation: Notation, node: Mul) -> Piece:
    left = notation.wrapped(printed(notation, node.left), PRODUCT)
    right = notation.wrapped(printed(notation, node.right), ATOM)
    return Piece(rf"{left} \, {right}" if notation.latex else f"{left} * {right}", PRODUCT)


def _div(notation: Notation, node: Div) -> Piece:
    return notation.fraction(printed(notation, node.left), printed(notation, node.right))


def _neg(notation: Notation, node: Neg) -> Piece:
    return Piece(f"-{notation.wrapped(printed(notation, node.body), PRODUCT)}", SUM)


def _call(notation: Notation, node: Call) -> Piece:
    body = printed(notation, node.body).text
    if notation.latex:
        return Piece(TABLE[node.function].latex.format(body), ATOM)
    return Piece(f"{node.function}({body})", ATOM)


def _reduce(notation: Notation, node: Reduce) -> Piece:
    body = notation.wrapped(printed(notation, node.body), PRODUCT)
    return Piece(notation.reduction(node.kind, node.over, body), REDUCTION)


def _folded(notation: Notation, node: Folded) -> Piece:
    return _mul(notation, Mul(node.body, node.factor))


def _fft(notation: Notation, node: Fft) -> Piece:
    body = printed(notation, node.body).text
    over = ",".join(index.name for index in node.over)
    length = notation.poly(node.length)
    if notation.latex:
        return Piece(rf"\mathrm{{{node.kind}}}_{{{over}}}^{{{length}}}\left({body}\right)", ATOM)
    return Piece(f"{node.kind}({body}, over {over}, {length} points)", ATOM)


def _scaled(notation: Notation, node: Composite) -> Piece:
    below = Piece(notation.root(notation.poly(node.by)), ATOM)
    body = printed(notation, node.body)
    if not notation.latex:
        body = Piece(notation.wrapped(body, PRODUCT), PRODUCT)
    return notation.fraction(body, below)


def _softmax(notation: Notation, node: Composite) -> Piece:
    """e^z over the sum of e^z, with a primed index in the sum, as in eq. (14) of Chen 2023 v2."""
    (index,) = node.over
    assert isinstance(node.body, Ref)
    primed = Index(index.name + "'", index.lower, index.upper)
    other = Ref(
        node.body.array,
        tuple(_renamed(p, {index.atom: primed.as_poly()}) for p in node.body.positions),
    )
    above, below = (printed(notation, Call("exp", part)) for part in (node.body, other))
    total = Piece(notation.reduction("sum", (primed,), below.text), REDUCTION)
    return notation.fraction(above, total)


def _renamed(position: Position, values: Mapping[str, Poly]) -> Position:
    if isinstance(position, Flat):
        parts = (position.outer, position.inner, position.extent)
        return Flat(*(part.substitute(values) for part in parts))
    return position.substitute(values)


COMPOSITES: Mapping[str, Callable[[Notation, Composite], Piece]] = {
    "scaled": _scaled,
    "softmax": _softmax,
}


def _composite(notation: Notation, node: Composite) -> Piece:
    if node.name not in COMPOSITES:
        raise Unsupported(f"composite '{node.name}' has no rule in latex")
    return COMPOSITES[node.name](notation, node)


RULES: Mapping[type[Node], Callable[..., Piece]] = {
    Constant: _constant,
    Ref: _ref,
    Add: _sum("+"),
    Sub: _sum("-"),
    Mul: _mul,
    Div: _div,
    Neg: _neg,
    Call: _call,
    Reduce: _reduce,
    Folded: _folded,
    Fft: _fft,
    Composite: _composite,
}


def printed(notation: Notation, node: Node) -> Piece:
    """A scalar expression in a notation; Unsupported where a node has no rule."""
    try:
        rule = RULES[type(node)]
    except KeyError:
        raise Unsupported(f"{type(node).__name__} has no rule in latex") from None
    return rule(notation, node)


@dataclass(frozen=True)
class Printed:
    """An equation: its two sides, the ranges of its free indices, its number in the source."""

    left: str
    right: str
    ranges: tuple[str, ...]
    cite: str


def equation(value: Equation, *, latex: bool = True, names: Names | None = None) -> Printed:
    """An equation as papers print it.

    >>> import costmodel as cm
    >>> shown = equation(cm.mixer("me").forms["direct"].equations[0], latex=False)
    >>> shown.left, shown.right
    ('y[i,b]', 'sum(j = 1..i) x[j,b] * w_ext[i-j+1]')
    """
    notation = Notation(latex, names or {})
    return Printed(
        notation.entry(value.array, value.positions),
        printed(notation, value.value).text,
        tuple(notation.range(index) for index in value.indices),
        value.array.cite,
    )
