r"""Read formulas in text: one grammar in two dialects, plain and printed.

The plain dialect holds whole, decimal and scientific numbers, size letters, `+ - * /`, powers (`**`
or `^`), parentheses, `sum(body, index, first, last)`, `ceil_log2(x)`, `floor(x)`, `ceil(x)`,
`Max(...)` and `Min(...)`: the strings that `--symbolic` prints, and the sums that papers print.
`max(...)` and `min(...)` are read as well.
`where(x, g, ...)` is x where every g is at least 0, and 0 elsewhere, even if x has no value there.
Inside O(...), `log(x)`, `log(x, base)`, `log_2(x)` and `sqrt(x)` are allowed too.

The printed dialect adds what papers print: LaTeX commands, other brackets, products without a sign
(`4d^2l`) and the paper's own symbols. A formula that may be read in two ways is refused.

`_Reader.tokens` reads both dialects, `_GRAMMAR` is the grammar of their tokens, and `_Reader.tree`
turns what the parser finds into the nodes of `symbolic.formulas`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from costmodel.errors import FormulaError, shortened
from costmodel.symbolic.formulas import (
    FUNCTIONS,
    GROWING,
    WHERE,
    BinaryOperation,
    Formula,
    FunctionCall,
    IndexedSum,
    Name,
    Number,
    Tree,
)
from costmodel.symbolic.sizes import LETTERS, is_letter

if TYPE_CHECKING:
    from lark import Lark, Token

MOST_TOKENS, DEEPEST = 5_000, 40
"""A formula with more tokens, or with parentheses nested deeper, is refused."""

MOST_DEPENDENT = 300
"""The largest depth of the syntax tree: the additions of a long sum nest in each other."""

MOST_DIGITS = 1_000
"""A formula with a number of more digits is refused."""

Symbols = Mapping[str, str]
"""Name in a paper -> our letter."""


@lru_cache(maxsize=1000)
def parse(text: str, *, growing: bool = False) -> Formula:
    """The formula that a text in the plain dialect (as users type it) states; `growing` allows
    `log` and `sqrt`, as inside O(...).

    >>> parse("n*sum(t + t, t, 1, l)").at({"n": 3, "l": 4})
    Fraction(60, 1)
    >>> str(parse("n*sum(t + t, t, 1, l)").poly())
    'l**2*n + l*n'

    Raises:
        FormulaError: the message says what was expected, what came, and at which character.
    """
    return _Reader(text, growing).formula()


def printed(text: str, names: Symbols | None = None, *, growing: bool = False) -> Formula:
    r"""Read a formula as papers print it; its `text` is in the plain dialect.

    >>> printed(r"\frac12 nl^2 + 4d^2l").text
    '1/2*n*l^2 + 4*d^2*l'
    >>> printed(r"2N \lceil\log_2 \frac{d}{H}\rceil", {"H": "n"}).text
    '2*N*ceil_log2(d/n)'
    >>> printed(r"8{,}388{,}608 l + 12\,288").text
    '8388608*l + 12288'

    Args:
        names: the paper's symbols; without any, a formula in the plain dialect is not changed.
        growing: allows `log` and `sqrt`, as inside O(...).

    Raises:
        FormulaError: as `parse`; an unknown LaTeX command, or a formula with two readings.
    """
    # a number alone may have plain commas, 8,388,608, which would separate arguments elsewhere
    if _THOUSANDS.fullmatch(text.strip(" $")):
        return parse(re.sub(r"[^\d.+-]", "", text))
    text = _GROUPED.sub(lambda found: re.sub(r"\D", "", found[0]), text)
    if not names:
        try:
            return parse(text, growing=growing)
        except FormulaError:
            pass
    found = _Reader(text, growing, names or {}).formula()
    return Formula(_written(found.tree), found.tree, found.letters)


def symbol_name(text: str) -> str:
    """A symbol without LaTeX: `d_{\\mathrm{model}}` becomes d_model, `\\tau` becomes tau."""
    return re.sub(r"[\\{}\s$]", "", re.sub(_SET_AS, "", text))


_SET_AS = r"\\(?:mathrm|mathit|mathbf|mathcal|mathsf|text|textit|textrm|operatorname|rm)\b\s*"
_UPRIGHT = re.compile(_SET_AS + r"(?:\{(?P<words>[^{}]*)\}|(?P<letter>\w))", re.ASCII)
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?:(?:,|\{,\}|\\,)\d{3})+(?:\.\d+)?")
"""A number with a sign between thousands, as in 8,388,608."""

_GROUPED = re.compile(r"(?<![\d.])\d{1,3}(?:(?:\{,\}|\\,)\d{3})+(?!\d)")
"""A number with a sign of LaTeX between thousands, as in 8{,}388{,}608 l."""

_FOREIGN = re.compile(r"[^\w\s.+\-*/^(),]", re.ASCII)
"""A character that the plain dialect lacks."""

_TOKEN = re.compile(
    r"(?P<space>\s+|\\[,;:! ]|~|\\q?quad\b|\$|\\(?:left|right|[bB]igg?[lr]?|displaystyle)\b|&)"
    r"|(?P<NUMBER>\d+(?:\.\d+)?(?:[eE][+-]?\d{1,4}(?![\w.]))?)"
    r"|(?P<LOG>\\?log(?:_\{\s*(?P<long>\d+|[A-Za-z]\w*)\s*\}|_(?P<short>\w)|(?![A-Za-z_])))"
    r"|(?P<word>\\[A-Za-z]+(?:_\s*(?:\{\s*\w+\s*\}|\w+))?"
    r"|[A-Za-z_]\w*(?:(?<=_)(?:\{\s*\w+\s*\}|\s+\w+))?)"
    r"|(?P<sign>\*\*|\\[{}]|.)",
    re.ASCII | re.DOTALL,
)
_SPELLED = {
    "PLUS": "+", "MINUS": "- \u2212", "TIMES": r"* \cdot \times \ast · × \u2217",
    "OVER": r"/ \div", "POWER": "** ^", "COMMA": ",", "OPEN": r"( [ { \{", "CLOSE": r") ] } \}",
    "CEIL": r"\lceil", "END_CEIL": r"\rceil", "FLOOR": r"\lfloor", "END_FLOOR": r"\rfloor",
    "FRACTION": r"\frac \tfrac \dfrac", "ROOT": r"\sqrt",
}  # fmt: skip
"""Kind of token -> its spellings; the first one is the operator in a tree."""

_LETTERS = re.compile(r"[A-Za-z]+(?=\d)")
_KINDS = {spelling: kind for kind, of in _SPELLED.items() for spelling in of.split()}
_CALLED = {
    **{name: name for name in ("sum", WHERE, *FUNCTIONS, "sqrt")},
    "max": "Max", r"\max": "Max", "min": "Min", r"\min": "Min",
}  # fmt: skip
"""Spelling of a function -> its name."""

_SUPERSCRIPTS = {"²": "2", "³": "3"}
_NESTING = {"OPEN": 1, "CEIL": 1, "FLOOR": 1, "CLOSE": -1, "END_CEIL": -1, "END_FLOOR": -1}

_GRAMMAR = f"""
?sum: product ((PLUS | MINUS) product)*
?product: signed ((TIMES | OVER) signed | factor)*
?signed: (PLUS | MINUS)* factor
?factor: power | LOG bare_power -> logarithm
?power: atom | atom POWER signed
?bare_power: bare | bare POWER signed -> power
?atom: bare | OPEN sum CLOSE -> group
?bare: NUMBER | NAME | (FUNCTION | LOG) OPEN sum (COMMA sum)* CLOSE -> call
     | FRACTION argument argument -> fraction | ROOT argument -> root
     | CEIL sum END_CEIL -> ceil | FLOOR sum END_FLOOR -> floor
?argument: NUMBER | NAME | OPEN sum CLOSE -> group
%declare NUMBER NAME LOG FUNCTION {" ".join(_SPELLED)}
"""
"""The grammar of both dialects. In the printed dialect two factors side by side are a product, and
`log` needs no parentheses: its argument is the next factor alone, except that
`\\lceil\\log_2 d l\\rceil` takes the logarithm of the whole product."""

_ARGUMENTS: Mapping[str, tuple[int, int, str]] = {
    "sum": (4, 4, "sum(body, index, first, last)"),
    WHERE: (2, MOST_TOKENS, f"{WHERE}(value, a condition that is at least 0 there)"),
    "Max": (1, MOST_TOKENS, ""),
    "Min": (1, MOST_TOKENS, ""),
    "log": (1, 2, "one or two arguments of log"),
}
"""Function -> (least number of arguments, largest number, its arguments in words); a function that
is not listed has one argument."""


@cache
def _parser() -> Lark:
    from lark import Lark

    return Lark(_GRAMMAR, start="sum", parser="lalr")


class _Reader:
    """One text, from its tokens to a tree.

    `names` maps the paper's symbols to our letters, and is None for the plain dialect; `growing`
    allows logarithms and roots. A node of the parser is a token (a text with a type), or a branch
    with a rule (`data`) and children. All methods raise FormulaError with the place in the text.
    """

    def __init__(self, text: str, growing: bool, names: Symbols | None = None) -> None:
        self.text, self.growing, self.names = text, growing, names
        self.letters: set[str] = set()

    def formula(self) -> Formula:
        """The formula of the whole text. In the plain dialect (without `names`), two factors side
        by side, such as `2 d`, are refused before the parser gets the second. FormulaError if the
        text is no formula."""
        from lark import UnexpectedToken

        parser: Any = _parser().parse_interactive()
        last: Token | None = None
        try:
            for token in self.tokens():
                if self.names is None and last and last.type in _ENDS and token.type in _BEGINS:
                    # a word before "(" that is no size is meant as a function: foo(3)
                    if (last.type, token.type) == ("NAME", "OPEN") and last not in LETTERS:
                        raise self.unknown(last)
                    raise self.unexpected(token, parser.accepts() - _BEGINS, last)
                parser.feed_token(token)
                last = token
            found = parser.feed_eof()
        except UnexpectedToken as wrong:
            raise self.unexpected(wrong.token, wrong.expected, last) from None
        tree = self.tree(found, frozenset(), 1)
        if _depth(tree) > MOST_DEPENDENT:
            raise FormulaError(
                f"the formula is a chain of {_depth(tree):,} operations, and at most "
                f"{MOST_DEPENDENT} are allowed: put groups of terms in parentheses"
            )
        return Formula(self.text, tree, frozenset(self.letters))

    def tokens(self) -> Iterator[Token]:
        """Yield the tokens of the text, of the kinds that `_GRAMMAR` declares.

        A command such as `\\frac` takes an argument of one digit without braces, as in `\\frac12`:
        `arguments` remembers the arguments that are still missing.
        """
        from lark import Token

        text = self.text
        if self.names is not None:
            text = _UPRIGHT.sub(_padded, text)
        elif foreign := _FOREIGN.search(text):
            raise self.unread(*foreign.span())
        position = number = depth = 0  # in the text; of tokens so far; of open parentheses
        arguments: list[int] = []  # for each argument that a command still takes, its depth
        while match := _TOKEN.match(text, position):
            start, position = match.span()
            if match["space"]:
                continue
            if position - start > MOST_DIGITS:
                raise FormulaError(
                    f"'{shortened(match[0])}' is too long: numbers and names have at most "
                    f"{MOST_DIGITS:,} characters"
                )
            if arguments[-1:] == [depth] and match[0].isdigit():
                position = start + 1  # \frac12 is 1/2
            elif arguments[-1:] == [depth] and match[0] == "[":
                raise self.refused("\\sqrt is a square root: write x^(1/3) for a cube root", start)
            elif self.names is not None and (letters := _LETTERS.match(match[0])):
                position = start + letters.end()  # no size has a digit: l2 is refused at its 2
            for kind, value, at in self.named(match, text[start:position]):
                if arguments[-1:] == [depth]:
                    arguments.pop()
                arguments += [depth] * {"FRACTION": 2, "ROOT": 1}.get(kind, 0)
                depth += _NESTING.get(kind, 0)
                number += 1
                if number > MOST_TOKENS:
                    raise FormulaError(
                        f"the formula has more than {MOST_TOKENS} numbers, names and signs: write "
                        "a shorter one"
                    )
                yield Token(kind, value, start + at, end_pos=position)

    def named(self, match: re.Match[str], spelled: str) -> Iterator[tuple[str, str, int]]:
        """Yield the tokens of one match of the tokens' pattern, as (kind, value, place in the
        match); `spelled` is the part of the match that is read now. In the printed dialect a word
        of size letters is a product: `nl` gives the names n and l."""
        names = self.names or {}
        if match["NUMBER"]:
            yield "NUMBER", spelled, 0
        elif match["LOG"]:
            base = match["long"] or match["short"] or ""
            yield "LOG", names.get(base, base), 0
        elif spelled in _SUPERSCRIPTS:
            yield from (("POWER", "**", 0), ("NUMBER", _SUPERSCRIPTS[spelled], 0))
        elif spelled in _CALLED:
            yield "FUNCTION", _CALLED[spelled], 0
        elif kind := _KINDS.get(spelled):  # all spellings of a sign become the first: \cdot is *
            yield kind, _SPELLED[kind].split()[0], 0
        elif match["word"] and self.names is None:
            yield "NAME", spelled, 0
        elif (name := symbol_name(spelled)) in names:
            yield "NAME", names[name], 0
        elif spelled[0] == "\\" or not match["word"]:
            raise self.unread(*match.span())
        elif all(letter in names or letter in LETTERS for letter in name):
            yield from (("NAME", names.get(x, x), k) for k, x in enumerate(name))
        else:
            yield "NAME", name, 0

    def tree(self, node: Any, bound: frozenset[str], level: int) -> Tree:
        """The tree of a parser's node (a token, or a branch with a rule `data` and children);
        `bound` are the indices of the sums around the node, `level` counts the nested parentheses
        and calls, at most `DEEPEST`; else FormulaError."""
        if level > DEEPEST:
            raise FormulaError(f"'{self.text}' nests deeper than {DEEPEST} levels")
        if isinstance(node, str):
            return self.leaf(node, bound)
        parts, inside = node.children, level + 1
        match node.data:
            case "sum" | "product":
                found = self.tree(parts[0], bound, level)
                for k, part in enumerate(parts[1:], 1):
                    if _kind(part) not in _OPERATORS:
                        operator = self.operator(parts, k)
                        found = BinaryOperation(operator, found, self.tree(part, bound, level))
                return found
            case "signed":
                found = self.tree(parts[-1], bound, level)
                return BinaryOperation("-", _ZERO, found) if parts.count("-") % 2 else found
            case "power":
                base = self.tree(parts[0], bound, level)
                return BinaryOperation("**", base, self.tree(parts[2], bound, inside))
            case "group":
                return self.tree(parts[1], bound, inside)
            case "fraction":
                above, below = (self.tree(part, bound, inside) for part in parts[1:])
                return BinaryOperation("/", above, below)
            case "ceil" if binary := _binary_logarithm(parts[1]):
                return FunctionCall("ceil_log2", (self.tree(binary, bound, inside),))
            case "ceil" | "floor":
                return FunctionCall(node.data, (self.tree(parts[1], bound, inside),))
            case "root":
                return self.call(parts[0], "sqrt", parts[1:], bound, inside)
            case "logarithm" if self.names is None:
                raise self.fail(parts[1], "'(' after log")
            case "logarithm":
                return self.call(parts[0], "log", parts[1:], bound, inside)
        # a call: its name, "(", then arguments with commas between, ")"
        name = "log" if _kind(parts[0]) == "LOG" else str(parts[0])
        return self.call(parts[0], name, parts[2::2], bound, inside, parts[-1])

    def call(
        self, function: Token, name: str, given: Sequence[Any], bound: frozenset[str], level: int,
        end: Any = None,
    ) -> Tree:  # fmt: skip
        """The tree of a call.

        Args:
            function: the token of the function. A token of `log` is its base, "2" of log_2(x), and
                empty without one; a base becomes a further argument.
            name: the function's name.
            given: the nodes of the arguments.
            bound: the indices of the sums around the call; `level`: the nesting inside of it.
            end: the last token of the call, which a message about missing arguments names.
        """
        if name in GROWING and not self.growing:
            why = f"an exact formula ({' and '.join(GROWING)} may stand in O(...) only)"
            raise self.fail(function, why)
        given = [*given, function] if _kind(function) == "LOG" and function else given
        least, most, words = _ARGUMENTS.get(name, (1, 1, f"one argument of {name}"))
        if not least <= len(given) <= most:
            raise self.fail(given[most] if len(given) > most else end, words)
        if name != "sum":
            return FunctionCall(name, tuple(self.tree(x, bound, level) for x in given))
        body, index, first, last = given
        if _kind(index) != "NAME":
            raise self.fail(index, "the name of sum's index")
        inside = self.tree(body, bound | {str(index)}, level)
        ends = (self.tree(end, bound, level) for end in (first, last))
        return IndexedSum(inside, str(index), *ends)

    def leaf(self, token: Any, bound: frozenset[str]) -> Tree:
        """The tree of a number, an index of a sum (of those `bound`), or a size. A size's letter is
        added to `letters`: for h, which is d/n, both d and n. FormulaError for another name, and
        for h where d or n is an index."""
        if token[0].isdigit():
            return Number(Fraction(token))
        name = str(token)
        if name not in bound:
            if not is_letter(name):
                raise self.unknown(token)
            if name == "h" and bound & {"d", "n"}:
                why = "h is d/n, and d or n is an index here: name the index i"
                raise self.refused(why, token.start_pos)
            self.letters |= {"d", "n"} if name == "h" else {name}
        return Name(name)

    def unknown(self, name: Any) -> FormulaError:
        """The error about a name that is no size; in the plain dialect it proposes n*l for `nl`."""
        if self.names is None and all(letter in LETTERS for letter in name):
            return self.fail(name, f"a product written with *, such as {'*'.join(name)},")
        functions = " ".join(("sum", *FUNCTIONS, WHERE, *(GROWING if self.growing else ())))
        return self.fail(name, f"a size ({' '.join(LETTERS)}) or a function ({functions})")

    def operator(self, parts: Sequence[Any], k: int) -> str:
        """The operator before the k-th of `parts`, the operands and operators of a sum or product;
        `*` if two factors stand side by side.

        Raises:
            FormulaError: a number as the second factor; a product behind `/`, since a/bc has two
                readings; or a product behind a logarithm without parentheses, other than of names.
        """
        if _kind(parts[k - 1]) in _OPERATORS:
            return str(parts[k - 1])
        before, part = _unsigned(parts[k - 1]), parts[k]
        if _kind(_first(part)) == "NUMBER":
            raise self.fail(part, "an operator or the end")
        divided = k > 1 and _kind(parts[k - 2]) == "OVER"
        if divided and not _kind(_unsigned(parts[k - 3])) == _kind(before) == "NUMBER":
            why = "the divisor after / is ambiguous: write a/(b*c)"
            raise self.refused(why, _first(part).start_pos)
        if _kind(before) == "logarithm" and not (_is_name(before.children[1]) and _is_name(part)):
            raise self.refused("the argument of log needs parentheses", _first(before).start_pos)
        return "*"

    def unexpected(self, token: Token, expected: set[str], last: Token | None) -> FormulaError:
        """The error about a token that the grammar does not allow after the token `last`;
        `expected` are the kinds of token that the grammar allows there."""
        words = " or ".join(sign for kind, sign in _CLOSING.items() if kind in expected)
        if "FUNCTION" in expected:
            words = "a number, a size, a function or '('"
        elif "NUMBER" in expected:
            words = "the argument of a command, in braces"
        elif "OPEN" in expected and last is not None:
            words = f"'(' after {self.text[last.start_pos : last.end_pos]}"
        return self.fail(token, words or "an operator or the end")

    def fail(self, node: Any, expected: str) -> FormulaError:
        """The error that says that `expected` was expected at the place of the parser's node."""
        token = _first(node)
        ended = token.type == "$END"
        start, end = (len(self.text), None) if ended else (token.start_pos, token.end_pos)
        got = "the end" if ended else f"'{self.text[start:end]}'"
        where = f"at character {start + 1}"
        return FormulaError(f"'{self.text}': expected {expected} {where}, got {got}")

    def refused(self, why: str, position: int) -> FormulaError:
        return FormulaError(f"'{self.text}', character {position + 1}: {why}")

    def unread(self, start: int, end: int) -> FormulaError:
        """The error about the characters from `start` to `end`, which are no token."""
        found = self.text[start:end]
        if found in "<>=\u2264\u2265":
            return self.refused(f"a formula has no sign {found}: leave it out", start)
        if self.names is not None:
            why = f"{found} has no meaning in a formula (--symbols can name its size)"
            return self.refused(why, start)
        return FormulaError(f"'{self.text}': unexpected {found!r} at character {start + 1}")


_BEGINS, _ENDS = {"NUMBER", "NAME", "OPEN", "FUNCTION", "LOG"}, {"NUMBER", "NAME", "CLOSE"}
"""Kinds of tokens with which a factor of the plain dialect begins, and ends."""

_OPERATORS = ("PLUS", "MINUS", "TIMES", "OVER")
_CLOSING = {"COMMA": "','", "CLOSE": "')'", "END_CEIL": r"'\rceil'", "END_FLOOR": r"'\rfloor'"}
_ZERO = Number(Fraction(0))


def _padded(upright: re.Match[str]) -> str:
    """A word without the command that sets it, between blanks, so that it keeps its place."""
    start, end = upright.span("words" if upright["words"] is not None else "letter")
    word = upright.string[start:end]
    return word.rjust(end - upright.start()).ljust(len(upright[0]))


def _kind(node: Any) -> str:
    """The kind of a token ("NUMBER"), or the rule of a branch ("power"), in `_GRAMMAR`."""
    return str(getattr(node, "type", "") or node.data)


def _first(node: Any) -> Any:
    """The first token of a node."""
    while not isinstance(node, str):
        node = node.children[0]
    return node


def _unsigned(node: Any) -> Any:
    return node.children[-1] if _kind(node) == "signed" else node


def _is_name(node: Any) -> bool:
    """Whether a factor is a name or a power of a name, as n and n^2 in `log n n^2`."""
    return _kind(_first(node)) == "NAME" and _kind(node) in ("NAME", "power")


def _binary_logarithm(node: Any) -> Any:
    r"""The parser's node of x if a node is the logarithm of x to base 2, as in `\lceil \log_2 x
    \rceil`; else None. x may be a product of factors side by side, if `\log_2` has no
    parentheses."""
    first, *others = node.children if _kind(node) == "product" else [node]
    kind = _kind(first)
    if kind not in ("logarithm", "call") or _kind(first.children[0]) != "LOG":
        return None
    if first.children[0] != "2" or {*map(_kind, others)} & {*_OPERATORS}:
        return None
    if kind == "call":  # log_2, "(", x, ")"
        return None if others or len(first.children) > 4 else first.children[2]
    return type(first)("product", [first.children[1], *others])


def _depth(tree: Tree) -> int:
    """The depth of the tree, 3 for a + b*c: the largest number of nodes nested in each other, which
    recursion over a formula must have room for."""
    depth, level = 0, [tree]
    while level:
        depth += 1
        held = [part for node in level for part in vars(node).values()]
        level = [x for part in held for x in (part if isinstance(part, tuple) else (part,))
                 if isinstance(x, Tree)]  # fmt: skip
    return depth


_BINDING = {"+": 1, "-": 1, "*": 2, "/": 2, "**": 3}


def _written(node: Tree, binding: int = 0) -> str:
    """The text of a tree in the plain dialect, such as `2*(l + 1)`; in parentheses if the operator
    around it binds more tightly. `binding` is that operator's precedence, of `_BINDING`, 0 for none
    (a fraction as a number binds like a quotient, an integer never needs parentheses)."""
    if isinstance(node, Name):
        return node.name
    if isinstance(node, FunctionCall):
        return f"{node.name}({', '.join(map(_written, node.arguments))})"
    if isinstance(node, IndexedSum):
        inside = (_written(node.body), node.index, _written(node.first), _written(node.last))
        return f"sum({', '.join(inside)})"
    if isinstance(node, Number):
        own, text = 4 if node.value.denominator == 1 else 2, str(node.value)
    elif node.op == "-" and node.left == _ZERO:
        own, text = 2, f"-{_written(node.right, 3)}"
    else:
        own, power = _BINDING[node.op], node.op == "**"
        sign = "^" if power else f" {node.op} " if own == 1 else node.op
        text = f"{_written(node.left, own + power)}{sign}{_written(node.right, own + (not power))}"
    return f"({text})" if own < binding else text
