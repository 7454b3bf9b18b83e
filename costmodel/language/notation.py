"""Print equations in LaTeX and in plain text.

One table of rules, by kind of node, serves both notations. Equations are printed as authors write
them, composites as papers print them; h stands for d/n.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from costmodel.errors import Unsupported
from costmodel.language.equations import Equation
from costmodel.language.functions import TABLE
from costmodel.language.indices import Index, UnionIndex
from costmodel.language.macros import MACROS
from costmodel.language.macros.softmax import scores_and_sink
from costmodel.language.nodes import (
    TRANSFORMS,
    Add,
    Array,
    Binary,
    Bracket,
    Call,
    Composite,
    Constant,
    Div,
    Fft,
    FreeScale,
    Gather,
    Maximum,
    Mul,
    Neg,
    Node,
    Operands,
    Position,
    Reduce,
    Ref,
    Scan,
    Select,
    Sub,
    substitute,
)
from costmodel.language.rule_table import Rules
from costmodel.symbolic.polynomial import Poly, atom_name
from costmodel.symbolic.pretty import ORDERED
from costmodel.symbolic.printing import (
    Names,
    conditions_latex,
    conditions_words,
    identifier,
    poly_latex,
    prints_head_width,
    symbol,
    with_head_width,
)

REDUCTION, SUM, PRODUCT, ATOM = range(4)
"""The precedence of printed expressions, lowest first; see `Notation.wrapped`."""


@dataclass(frozen=True)
class Piece:
    """A printed expression and its precedence: `REDUCTION`, `SUM`, `PRODUCT` or `ATOM`."""

    text: str
    binding: int


@dataclass(frozen=True)
class Notation:
    """How equations are printed: in LaTeX, by `names` (size -> symbol), or in plain text."""

    latex: bool
    names: Names

    def poly(self, poly: Poly) -> str:
        """A bound, a position or a constant, with h for d/n unless h names another size."""
        short = with_head_width(poly) if prints_head_width(self.names) else poly
        return poly_latex(short, self.names) if self.latex else ORDERED.poly(short)

    def array(self, array: Array) -> str:
        """An array's name."""
        if not self.latex:
            return array.name
        return array.latex or identifier(array.name)

    def position(self, position: Position) -> str:
        """The text of a position on an axis: a polynomial; a flattened position as (j-1)h+c; an
        entry of an index array, or with blocks of B rows (at[i]-1)B+c."""
        if isinstance(position, Poly):
            return self.poly(position).replace(" ", "")
        if isinstance(position, Gather):
            outer = self.entry(position.at.array, position.at.positions)
            if position.extent == Poly.of(1):
                return outer
            outer += "-1"
        elif not position.inner.variables:
            return self.poly(position.value).replace(" ", "")
        else:
            outer = self.poly(position.outer - 1).replace(" ", "")
        parts = (position.extent, position.inner)
        extent, inner = (self.poly(part).replace(" ", "") for part in parts)
        return f"({outer}){extent}+{inner}" if self.latex else f"({outer})*{extent}+{inner}"

    def entry(self, array: Array, positions: tuple[Position, ...]) -> str:
        """An array entry: `x[i,j]`, or x_{i,j} in LaTeX."""
        inside = ",".join(self.position(p) for p in positions)
        name = self.array(array)
        return f"{name}_{{{inside}}}" if self.latex else f"{name}[{inside}]"

    def bounds(self, index: Index) -> tuple[str, str]:
        """The lower and the upper end of an index's range, such as `1` and `min(l, i + r)`."""
        low, up = (tuple(map(self.poly, ends)) for ends in (index.lower, index.upper))
        return self._extreme("max", low), self._extreme("min", up)

    def _extreme(self, kind: str, ends: tuple[str, ...]) -> str:
        if len(ends) == 1:
            return ends[0]
        return f"\\{kind}({', '.join(ends)})" if self.latex else f"{kind}({', '.join(ends)})"

    def range(self, index: Index) -> str:
        """The text of an index's range: `i = 1..l`; for a union `j = 1..s and s + 2..i`; for an
        index whose ranges correspond to those of index i (`beside`) `j = 1..s or s + 2..l as i`."""
        if self.latex and isinstance(index, UnionIndex):
            return self._element(index)
        if self.latex:
            return f"{symbol(index.name, {})}={self._dots(index)}"
        ranges = ("{}..{}".format(*self.bounds(piece)) for piece in index.pieces)
        if index.beside:
            return f"{index.name} = {' or '.join(ranges)} as {atom_name(index.beside)}"
        return f"{index.name} = {' and '.join(ranges)}"

    def _dots(self, index: Index) -> str:
        low, up = self.bounds(index)
        return rf"{low},\dots,{up}"

    def _element(self, index: UnionIndex) -> str:
        """The LaTeX of a union's ranges, `j in {1..s} cup {s+2..i}`; with "or ... as i" if its
        ranges correspond to those of another index i."""
        ranges = [rf"\{{{self._dots(piece)}\}}" for piece in index.pieces]
        name, said = symbol(index.name, {}), r" \cup ".join(ranges)
        if index.beside:
            said = r" \text{ or } ".join(ranges)
            said += rf" \text{{ as }} {symbol(atom_name(index.beside), {})}"
        return rf"{name} \in {said}"

    def conditions(self, guards: frozenset[Poly]) -> str:
        """Conditions in words or LaTeX: `t <= 1` for the constraint 1 - t >= 0."""
        return conditions_latex(guards, self.names) if self.latex else conditions_words(guards)

    def reduction(self, kind: str, over: tuple[Index, ...], body: str) -> str:
        """The text of a sum or a maximum (`kind`) over indices, in LaTeX with a sign for each
        index; the summand `body` is printed already: `sum(j = 1..i) x[j]` for the body x[j]."""
        if not self.latex:
            return f"{kind}({', '.join(map(self.range, over))}) {body}"
        signs = {"sum": r"\sum", "max": r"\max"}
        parts = []
        for index in over:
            if isinstance(index, UnionIndex):
                parts.append(f"{signs[kind]}_{{{self._element(index)}}}")
                continue
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
        """The expression, in parentheses if its precedence is lower than `least`."""
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


NAMED: Mapping[float, tuple[str, str]] = {
    math.pi: ("pi", r"\pi"),
    math.exp(-0.5): ("exp(-0.5)", "e^{-0.5}"),
}
"""Number -> its name in text and in LaTeX, in place of a quotient of two long integers."""


def _constant(notation: Notation, node: Constant) -> Piece:
    """The text and precedence of a constant: a polynomial in sizes to the power half_power/2 (its
    square root for 1, one over the root for -1), or the value of an index expression, such as i. A
    number of `NAMED`, such as pi, has its name."""
    if node.base.variables:
        return Piece(notation.position(node.base), ATOM if len(node.base.terms) == 1 else SUM)
    number = node.base.terms.get((), 0) if len(node.base.terms) == 1 else 0  # 0: no number
    if named := NAMED.get(abs(float(number))):
        text = f"{'-' if number < 0 else ''}{named[notation.latex]}"
    else:
        text = notation.poly(node.base)
    positive = all(number > 0 for number in node.base.terms.values())
    single = PRODUCT if {*text.replace("**", "")} & {*"*/"} else ATOM
    binding = single if len(node.base.terms) <= 1 and positive else SUM
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
    """The rule that prints a node as `left sign right`, for the sign + or -; a sum on the right is
    put in parentheses."""

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


def _maximum(notation: Notation, node: Maximum) -> Piece:
    left, right = (printed(notation, child).text for child in node.children)
    if notation.latex:
        return Piece(rf"\max\left({left}, {right}\right)", ATOM)
    return Piece(f"max({left}, {right})", ATOM)


def _neg(notation: Notation, node: Neg) -> Piece:
    return Piece(f"-{notation.wrapped(printed(notation, node.body), PRODUCT)}", SUM)


def _call(notation: Notation, node: Call) -> Piece:
    body = printed(notation, node.body).text
    if notation.latex:
        return Piece(TABLE[node.function].latex.format(body), ATOM)
    return Piece(f"{node.function}({body})", ATOM)


def _reduce(notation: Notation, node: Reduce) -> Piece:
    """The text of a sum or maximum; of one over no index, which rewrites may leave, that of its
    body."""
    if not node.over:
        return printed(notation, node.body)
    body = notation.wrapped(printed(notation, node.body), PRODUCT)
    return Piece(notation.reduction(node.kind, node.over, body), REDUCTION)


def _bracket(notation: Notation, node: Bracket) -> Piece:
    """The text of a choice: `(a if z > 0 else b)`; for the gradient of a maximum `(g where z[c] is
    the first to equal m, else 0)`."""
    body, left, right = (
        printed(notation, part).text for part in (node.body, node.left, node.right)
    )
    otherwise = "0" if node.otherwise is None else printed(notation, node.otherwise).text
    first = bool(node.first) and isinstance(node.left, Ref)
    if notation.latex:
        condition = rf"{left} {node.relation} {right}" + (r" \text{, first}" if first else "")
        cases = rf"{body} & {condition} \\ {otherwise} & \text{{else}}"
        return Piece(rf"\begin{{cases}} {cases} \end{{cases}}", ATOM)
    if node.relation == ">":
        return Piece(f"({body} if {left} > {right} else {otherwise})", ATOM)
    equal = f"{left} {'is the first to equal' if first else 'is'} {right}"
    return Piece(f"({body} where {equal}, else {otherwise})", ATOM)


def _free_scale(notation: Notation, node: FreeScale) -> Piece:
    return _mul(notation, Mul(node.body, node.factor))


def _fft(notation: Notation, node: Fft) -> Piece:
    """The text of a transform: `rfft(x[i,b], over i, 2*l points)`."""
    body = printed(notation, node.body).text
    over = ",".join(index.name for index in node.over)
    length = notation.poly(node.length)
    if notation.latex:
        name = TRANSFORMS[node.kind].latex
        return Piece(rf"{name}_{{{over}}}^{{{length}}}\left({body}\right)", ATOM)
    return Piece(f"{node.kind}({body}, over {over}, {length} points)", ATOM)


def _scan(notation: Notation, node: Scan) -> Piece:
    """The text of a scan: `scan(A[w,b], B[w,b], over w)` with decays A; of a gradient,
    `scan-back`."""
    kept, added = (printed(notation, part).text for part in (node.kept, node.body))
    name, (index,) = "scan-back" if node.reverse else "scan", node.over
    if notation.latex:
        over = symbol(index.name, {})
        return Piece(rf"\mathrm{{{name}}}_{{{over}}}\left({kept}, {added}\right)", ATOM)
    return Piece(f"{name}({kept}, {added}, over {index.name})", ATOM)


def _select(notation: Notation, node: Select) -> Piece:
    """The text of a selection (argmax, top-k, sort): `argmax(e = 1..u) s[i,e]`."""
    body = printed(notation, node.body).text
    if notation.latex:
        (index,) = node.over
        low, up = notation.bounds(index)
        between = rf"{low} \le {symbol(index.name, {})} \le {up}"
        return Piece(rf"\mathrm{{{node.kind}}}_{{{between}}}\left({body}\right)", ATOM)
    return Piece(f"{node.kind}({', '.join(map(notation.range, node.over))}) {body}", REDUCTION)


def _scaled(notation: Notation, node: Composite) -> Piece:
    """The text of a composite `scaled`: its body over the square root of a size."""
    below = Piece(notation.root(notation.poly(node.by)), ATOM)
    body = printed(notation, node.body)
    if not notation.latex:
        body = Piece(notation.wrapped(body, PRODUCT), PRODUCT)
    return notation.fraction(body, below)


def _softmax(notation: Notation, node: Composite) -> Piece:
    """The text of a softmax: e^z over a sum of e^z with primed indices, as in eq. (14) of Chen 2023
    v2; plus that of the sink, if there is one."""
    scores, sink = scores_and_sink(node)
    named = {i.atom: replace(i, name=i.name + "'").as_poly() for i in node.over}
    primed = tuple(replace(i.substitute(named), name=i.name + "'") for i in node.over)
    other = Ref(scores.array, substitute(scores.positions, named))
    above, below = (printed(notation, Call("exp", part)) for part in (scores, other))
    total = Piece(notation.reduction("sum", primed, below.text), REDUCTION)
    if sink is not None:
        further = printed(notation, Call("exp", sink))
        total = Piece(f"{total.text} + {further.text}", SUM)
    return notation.fraction(above, total)


def _by_name(latex_name: str) -> Callable[[Notation, Composite], Piece]:
    """The rule that prints a composite with its operands and the indices that it runs over, in
    LaTeX under the name `latex_name`, in plain text under the composite's own."""

    def rule(notation: Notation, node: Composite) -> Piece:
        """The text of `node`: operands and indices that it runs over, `rms_norm(x[i,c], over c)`;
        in LaTeX a call of `latex_name`."""
        operands = node.body.children if isinstance(node.body, Operands) else (node.body,)
        texts = [printed(notation, operand).text for operand in operands]
        over = ",".join(index.name for index in node.over)
        if notation.latex:
            called = f"{latex_name}_{{{over}}}" if over else latex_name
            return Piece(rf"{called}\left({', '.join(texts)}\right)", ATOM)
        ranges = [f"over {over}"] if over else []
        return Piece(f"{node.name}({', '.join([*texts, *ranges])})", ATOM)

    return rule


COMPOSITES: Mapping[str, Callable[[Notation, Composite], Piece]] = {
    "scaled": _scaled,
    "softmax": _softmax,
    **{name: _by_name(macro.latex) for name, macro in MACROS.items()},
}


def _composite(notation: Notation, node: Composite) -> Piece:
    """The printed composite, by its rule in COMPOSITES; Unsupported without a rule."""
    if node.name not in COMPOSITES:
        raise Unsupported(
            f"'{node.name}' cannot be printed as a formula: expected one of {', '.join(COMPOSITES)}"
        )
    return COMPOSITES[node.name](notation, node)


RULES: Rules[Callable[..., Piece]] = Rules(
    "notation",
    {
        Constant: _constant,
        Ref: _ref,
        Add: _sum("+"),
        Sub: _sum("-"),
        Mul: _mul,
        Div: _div,
        Maximum: _maximum,
        Neg: _neg,
        FreeScale: _free_scale,
        Call: _call,
        Reduce: _reduce,
        Bracket: _bracket,
        Fft: _fft,
        Scan: _scan,
        Select: _select,
        Composite: _composite,
    },
)
"""Kind of node -> the rule that prints it."""


def printed(notation: Notation, node: Node) -> Piece:
    """An expression in a notation, with its precedence."""
    return RULES[type(node)](notation, node)


@dataclass(frozen=True)
class Printed:
    """An equation: its two sides, the ranges of its free indices, its number in the source."""

    left: str
    right: str
    ranges: tuple[str, ...]
    cite: str


def equation(value: Equation, *, latex: bool = True, names: Names | None = None) -> Printed:
    """The left side, right side, ranges and number of an equation, as papers print them: in LaTeX,
    where `names` has the symbols of sizes, or in plain text.

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
