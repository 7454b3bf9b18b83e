r"""Translate formulas as papers print them, `\frac12 nl^2`, `4d^2l` or `\lceil\log_2 d\rceil`.

The result is in the grammar of `symbolic.formulas`: `*` in products, functions for fractions and
ceilings, our letters for the paper's symbols. A formula that is already in the grammar is not
changed; an ambiguous formula is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from costmodel.errors import FormulaError, SizeError
from costmodel.questions.registry import CLAIMED
from costmodel.symbolic.formulas import DEEPEST, FUNCTIONS, GROWING, MOST_TOKENS, WHERE, parse
from costmodel.symbolic.sizes import LETTERS

Symbols = Mapping[str, str]
"""Name in the paper -> our letter."""

_SET_AS = r"\\(?:mathrm|mathit|mathbf|mathcal|mathsf|text|textit|textrm|operatorname|rm)\b\s*"
_TOKEN = re.compile(
    r"(?P<space>\s+|\\[,;:! ]|~|\\q?quad\b|\$|\\(?:left|right|[bB]igg?[lr]?|displaystyle)\b|&)"
    r"|(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d{1,4}(?![\w.]))?)"
    r"|(?P<name>\\?log_(?:\{\w+\}|\w)|\\?[A-Za-z]+(?:_(?:\{\w+\}|\w+))?)"
    r"|(?P<sign>\*\*|\\[{}]|.)",
    re.ASCII | re.DOTALL,
)
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?:(?:,|\{,\}|\\,)\d{3})+(?:\.\d+)?")
"""A number with a sign between thousands, as in 8,388,608."""

_SIGNS = {
    r"\cdot": "*", r"\times": "*", r"\ast": "*", "·": "*", "×": "*", "\u2217": "*", "\u2212": "-",
    r"\div": "/", r"\{": "(", r"\}": ")", "[": "(", "]": ")", "{": "(", "}": ")",
    r"\max": "Max", r"\min": "Min", "max": "Max", "min": "Min",
}  # fmt: skip
_POWERS = str.maketrans({"²": "^2", "³": "^3"})
_CALLED = {*FUNCTIONS, *GROWING, WHERE, "sum"}
_OPERATORS = ("+", "-", "*", "/", "^", "**", ",")
_BRACKETS = {r"\lceil": (r"\rceil", "ceil"), r"\lfloor": (r"\rfloor", "floor")}
_CLOSING = (")", *(closing for closing, _ in _BRACKETS.values()))
STEM = 8
"""Words whose first 8 letters are equal are taken as one: exponentials, exponentiations."""


def symbols(text: str) -> dict[str, str]:
    r"""Read `--symbols N=l,d_{model}=d` as a mapping from a paper's symbols to our letters.

    Raises:
        SizeError: a part that is no pair, or an unknown letter.
    """
    found: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, letter = (side.strip() for side in part.partition("="))
        if letter not in LETTERS or not re.fullmatch(r"\w+", symbol_name(name), re.ASCII):
            raise SizeError(
                f"--symbols takes the paper's symbol=our letter, such as N=l,d_model=d, got "
                f"'{part}': the letters are {', '.join(LETTERS)}"
            )
        if found.setdefault(symbol_name(name), letter) != letter:
            raise SizeError(f"--symbols gives {name} two letters")
    return found


def symbol_name(text: str) -> str:
    """A symbol without LaTeX: `d_{\\mathrm{model}}` becomes d_model, `\\tau` becomes tau."""
    return re.sub(r"[\\{}\s$]", "", re.sub(_SET_AS, "", text))


def grammar(text: str, names: Symbols | None = None, *, growing: bool = False) -> str:
    r"""A printed formula in the grammar of `symbolic.formulas`; not changed if already in it.

    >>> grammar(r"\frac12 nl^2 + 4d^2l"), grammar(r"2N \lceil\log_2 \frac{d}{H}\rceil", {"H": "n"})
    ('(1/2)*n*l^2 + 4*d^2*l', '2*N*ceil_log2((d)/(n))')

    Raises:
        FormulaError: an unknown LaTeX command, or an ambiguous formula.
    """
    if _THOUSANDS.fullmatch(text.strip(" $")):
        text = re.sub(r"[^\d.+-]", "", text)
    if not names:
        try:
            return parse(text, growing=growing).text
        except FormulaError:
            pass
    upright = re.sub(_SET_AS + r"(?:\{([^{}]*)\}|(\w))", r"\1\2", text.translate(_POWERS))
    return "".join(_Reader(text, upright, names or {}).until(""))


class _Reader:
    """A recursive descent parser from the tokens of a printed formula to text in the grammar."""

    def __init__(self, shown: str, text: str, names: Symbols) -> None:
        self.shown, self.names, self.depth = shown, names, 0
        found = (m for m in _TOKEN.finditer(text) if not m["space"])
        self.tokens = [_SIGNS.get(m[0], m[0]) for m in found][::-1]
        if len(self.tokens) > MOST_TOKENS:
            raise FormulaError(f"a formula has at most {MOST_TOKENS} numbers, names and signs")

    def fail(self, what: str) -> FormulaError:
        return FormulaError(f"'{self.shown}': {what}")

    @property
    def next(self) -> str:
        return self.tokens[-1] if self.tokens else ""

    def until(self, end: str) -> list[str]:
        """Consume tokens to the closing sign `end`; pieces with `*` between adjacent factors."""
        self.depth += 1
        if self.depth > DEEPEST:
            raise self.fail(f"nests deeper than {DEEPEST} levels")
        pieces: list[str] = []
        divided = False
        while self.next != end:
            token = self.tokens.pop() if self.tokens else ""
            if token in ("", *_CLOSING):
                raise self.fail(f"expected {_quoted(end)}, got {_quoted(token)}")
            if token in _OPERATORS:
                divided = token == "/" or (divided and token in ("^", "**"))
                pieces.append(f" {token} " if pieces and token in "+-" else token)
                continue
            factor = self.factor(token)
            if pieces and pieces[-1].strip() not in _OPERATORS:
                if divided and not _is_number(pieces[-3:]):
                    raise self.fail("what / divides by may be read in two ways: write a/(b*c)")
                divided = False
                pieces.append(" " if factor[0].isdigit() else "*")
            pieces.append(factor)
        if end:
            self.tokens.pop()
        self.depth -= 1
        return pieces

    def argument(self) -> str:
        """Consume the argument of a LaTeX command: a group in braces, or one character."""
        token = self.tokens.pop() if self.tokens else ""
        if token.isdigit() and len(token) > 1:
            self.tokens.append(token[1:])
            token = token[0]
        if not token or token in (*_OPERATORS, *_CLOSING):
            raise self.fail("expected what a command is about, in braces")
        return self.factor(token)

    def factor(self, token: str) -> str:
        """The factor that begins with `token`, without its power; consumes its further tokens."""
        if token == "(":
            return f"({''.join(self.until(')'))})"
        if token in (r"\frac", r"\tfrac", r"\dfrac"):
            return f"({self.argument()}/{self.argument()})"
        if token in _BRACKETS:
            inside = self.until(_BRACKETS[token][0])
            if token == r"\lceil" and len(inside) == 1 and inside[0].endswith(", 2)"):
                return f"ceil_log2({inside[0][len('log(') : -len(', 2)')]})"
            return f"{_BRACKETS[token][1]}({''.join(inside)})"
        if token == r"\sqrt":
            return f"sqrt({self.argument()})"
        if base := re.fullmatch(r"\\?log(?:_\{?(\w+)\}?)?", token):
            return self.logarithm(self.names.get(base[1], base[1]))
        if token in _CALLED and self.next == "(":
            return token + self.factor(self.tokens.pop())
        return token if token[0].isdigit() else self.product(token)

    def logarithm(self, base: str | None) -> str:
        """A logarithm whose argument is in parentheses, or the factors up to an operator; of
        several letters, as in `l \\log l d`, the first one with its power."""
        run: list[str] = []
        first: list[str] = []
        behind: list[str] = []
        while self.next and self.next not in (*_CLOSING, "+", "-", "*", "/", ","):
            token = self.tokens.pop()
            if token == "^" and run and self.next:
                run += ["^", self.factor(self.tokens.pop())]
            else:
                if run and not first and re.fullmatch("[A-Za-z]", run[0]) and token.isalpha():
                    first, behind = [*run], [*self.tokens, token]
                run += ["*"] * bool(run) + [self.factor(token)]
        factors = len(run) - run.count("^") - run.count("*")
        if first and self.next != r"\rceil":
            run, self.tokens = first, behind
        elif not run or (factors > 1 + run.count("^") and self.next != r"\rceil"):
            raise self.fail("what log is of stands in parentheses")
        inside = "".join(run)
        inside = inside[1:-1] if len(run) == 1 and inside[0] == "(" else inside
        return f"log({inside}, {base})" if base else f"log({inside})"

    def product(self, token: str) -> str:
        """A size or name; a word of several size letters becomes their product: `nl` is n*l."""
        name = symbol_name(token)
        if name in self.names:
            return self.names[name]
        if token[0] == "\\" or not token[0].isalpha():
            raise self.fail(f"{token} is not read in a formula (--symbols may say what it is)")
        letters = [self.names.get(letter, letter) for letter in name]
        if len(letters) > 1 and all(letter in LETTERS for letter in letters):
            return "*".join(letters)
        return name


def _quoted(token: str) -> str:
    return f"'{token}'" if token else "the end"


def _is_number(quotient: Sequence[str]) -> bool:
    """Whether pieces are a number, `/` and a number, as in `1/2 nl`."""
    return [piece[0].isdigit() for piece in quotient] == [True, False, True]


def _same(one: str, two: str) -> bool:
    """Whether two words are equal, or have their first `STEM` letters in common."""
    return one == two or (
        one.isalpha() and two.isalpha() and len(one) >= STEM and one[:STEM] == two[:STEM]
    )


def same_words(some: Sequence[str], others: Sequence[str]) -> bool:
    """Whether two texts consist of the same words in any order, with any endings.

    >>> same_words(["attention", "restricted"], ["restricted", "attention"])
    True
    """
    pairs = zip(sorted(some), sorted(others), strict=True)
    return len(some) == len(others) and all(_same(one, two) for one, two in pairs)


def words(text: str) -> str:
    """The name in claims of a quantity, from a column's heading or a plural; else the text itself.

    >>> words("Multiplications"), words("exponentials"), words("largest live set"), words("mul")
    ('mul', 'exp', 'peak', 'mul')
    """
    said = " ".join(re.split(r"[\s_-]+", text.strip()))
    for figure in CLAIMED.values():
        title = figure.title.lower().split()
        if said == figure.name or same_words(said.lower().split(), title):
            return figure.claim
    return said.lower().replace(" ", "_")
