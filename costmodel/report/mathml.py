r"""The LaTeX that this project prints, as MathML Core, for pages in a browser.

`mathml` reads the commands that `language.notation` and `symbolic.printing` print, and no others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from html import escape, unescape

_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|\d+|\s+|.", re.DOTALL)

LETTERS: Mapping[str, str] = {
    **{
        name: unescape(f"&{name};")
        for name in ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "kappa",
                     "lambda", "mu", "nu", "xi", "pi", "rho", "sigma", "tau", "psi", "omega",
                     "Delta", "Lambda", "Omega", "Sigma")
    },
    "phi": unescape("&straightphi;"),  # HTML's &phi; is the curly letter
    "varphi": unescape("&phi;"),
}  # fmt: skip
"""Command of a Greek letter -> the letter."""
NAMED = ("log", "sin", "cos", "tanh", "max", "min")
"""Commands of functions, which are printed upright."""
SIGNS: Mapping[str, str] = {
    "cdot": "⋅", "cup": "\u222a", "in": "∈", "le": "≤", "ge": "≥", "dots": "…", "times": "×",
    "lceil": "⌈", "rceil": "⌉", "lfloor": "⌊", "rfloor": "⌋", "{": "{", "}": "}",
}  # fmt: skip
"""Command of an operator, a relation or a bracket -> its sign."""
SPACES: Mapping[str, str] = {",": "0.167em", " ": "0.25em", ";": "0.278em", "quad": "1em"}
"""Command of a space -> its width."""
NO_BREAK = "\u00a0"
"""A space that browsers keep at the end of words."""
ACCENTS: Mapping[str, str] = {"bar": "¯", "tilde": "~", "hat": "^"}
LIMITS = ("<mo>∑</mo>", "<mi>max</mi>", "<mi>min</mi>")
"""The operators whose limits stand below and above."""
BRACKETS = "()[]{}⌈⌉⌊⌋|"


def mathml(latex: str, *, display: bool = False) -> str:
    r"""A formula as a `<math>` element; with `display`, as a formula on its own line.

    >>> mathml(r"\frac{d}{n}")
    '<math><mfrac><mi>d</mi><mi>n</mi></mfrac></math>'
    >>> mathml(r"\text{if } l")
    '<math><mrow><mtext>if\xa0</mtext><mi>l</mi></mrow></math>'

    Raises:
        ValueError: a command that this project does not print, or a brace without its partner.
    """
    reader = _Reader(latex)
    inside = reader.row(())
    if reader.peek():
        raise ValueError(f"'{reader.peek()}' has no partner in {latex}")
    block = ' displaystyle="true"' if display else ""
    return f"<math{block}>{inside}</math>"


class _Reader:
    """A reader of one formula, token by token."""

    def __init__(self, latex: str) -> None:
        self.latex = latex
        self.tokens = _TOKEN.findall(latex)
        self.next = 0

    def peek(self) -> str:
        """The next token that is no space; "" at the end."""
        while self.next < len(self.tokens) and self.tokens[self.next].isspace():
            self.next += 1
        return self.tokens[self.next] if self.next < len(self.tokens) else ""

    def take(self) -> str:
        """The next token that is no space; the reader moves behind it. ValueError at the end."""
        token = self.peek()
        if not token:
            raise ValueError(f"the formula ends too early: {self.latex}")
        self.next += 1
        return token

    def expect(self, token: str) -> None:
        """Move behind the next token, which must be `token`; ValueError if it is another."""
        if self.peek() != token:
            raise ValueError(f"expected '{token}', got '{self.peek()}' in {self.latex}")
        self.take()

    def row(self, ends: tuple[str, ...]) -> str:
        """The MathML of the tokens up to one of `ends`, a closing brace or the end (which is not
        read): one element, or an `<mrow>`."""
        found = []
        while self.peek() not in (*ends, "}", ""):
            found.append(self.scripted())
        return found[0] if len(found) == 1 else f"<mrow>{''.join(found)}</mrow>"

    def scripted(self) -> str:
        """The MathML of an element with its subscript, superscript and primes; below and above it
        for signs such as a sum."""
        base, below, above = self.element(), "", ""
        while self.peek() in ("_", "^", "'"):
            sign = self.take()
            if sign == "_":
                below = self.argument()
                continue
            inside = "<mo>&#x2032;</mo>" if sign == "'" else self.argument()
            above = f"<mrow>{above}{inside}</mrow>" if above else inside
        if base in LIMITS and (below or above):
            tag = "munderover" if below and above else "munder" if below else "mover"
        elif below or above:
            tag = "msubsup" if below and above else "msub" if below else "msup"
        else:
            return base
        return f"<{tag}>{base}{below}{above}</{tag}>"

    def argument(self) -> str:
        """The MathML of the group in braces, or of the single element, behind a command or a
        script's sign."""
        if self.peek() != "{":
            return self.element()
        self.take()
        inside = self.row(())
        self.expect("}")
        return inside

    def words(self) -> str:
        r"""The text in braces behind `\text` or `\mathrm`, with its spaces."""
        self.expect("{")
        start = self.next
        while self.take() != "}":
            pass
        return "".join(self.tokens[start : self.next - 1])

    def element(self) -> str:
        """The MathML of one element: a letter, a number, a sign, a group, or a command with its
        arguments."""
        token = self.take()
        if token == "{":
            self.next -= 1
            return self.argument()
        if token.startswith("\\"):
            return self.command(token[1:])
        if token.isdigit():
            return f"<mn>{token}</mn>"
        if token.isalpha():
            return f"<mi>{token}</mi>"
        return _sign({"-": "\u2212", "*": "\u2217"}.get(token, token))

    def command(self, name: str) -> str:
        r"""The MathML of the command `\name`, whose arguments are read from the tokens that follow;
        ValueError for a command that no rule prints."""
        if name in LETTERS:
            return f"<mi>{LETTERS[name]}</mi>"
        if name in NAMED:
            return f"<mi>{name}</mi>"
        if name in SIGNS:
            return _sign(SIGNS[name])
        if name in SPACES:
            return f'<mspace width="{SPACES[name]}"/>'
        if name in ACCENTS:
            over = f"<mo>{ACCENTS[name]}</mo>"
            return f'<mover accent="true">{self.argument()}{over}</mover>'
        if name not in _COMMANDS:
            raise ValueError(
                f"no rule prints the command '\\{name}' in {self.latex}: add one to _COMMANDS"
            )
        return _COMMANDS[name](self)

    def fenced(self) -> str:
        r"""The MathML of `\left( ... \right)`: a row between brackets that grow with it."""
        left = self.bracket()
        inside = self.row((r"\right",))
        self.expect(r"\right")
        return f"<mrow><mo>{left}</mo>{inside}<mo>{self.bracket()}</mo></mrow>"

    def bracket(self) -> str:
        token = self.take()
        return SIGNS.get(token[1:], token) if token.startswith("\\") else token

    def fraction(self) -> str:
        return f"<mfrac>{self.argument()}{self.argument()}</mfrac>"

    def cases(self) -> str:
        r"""The MathML of `\begin{cases} a & b \\ ... \end{cases}`, whose `\begin` is taken already:
        rows behind a brace. ValueError for another environment, and without an `\end`."""
        if (named := self.words()) != "cases":
            raise ValueError(
                f"no rule prints the environment '{named}' as MathML in {self.latex}: use 'cases'"
            )
        ends, rows = ("&", r"\\", r"\end"), []
        while self.peek() != r"\end":
            cells = [self.row(ends)]
            while self.peek() == "&":
                self.take()
                cells.append(self.row(ends))
            rows.append("".join(f"<mtd>{cell}</mtd>" for cell in cells))
            if self.peek() != r"\end":
                self.expect(r"\\")
        self.take()
        self.words()
        table = "".join(f"<mtr>{row}</mtr>" for row in rows)
        return f'<mrow><mo>{{</mo><mtable class="cases">{table}</mtable></mrow>'

    def upright(self) -> str:
        r"""The MathML of a name in upright letters, as `\mathrm` sets it."""
        name = self.words()
        return (
            f'<mi mathvariant="normal">{escape(name)}</mi>'
            if len(name) == 1
            else (f"<mi>{escape(name)}</mi>")
        )


_COMMANDS: Mapping[str, Callable[[_Reader], str]] = {
    "frac": _Reader.fraction,
    "sqrt": lambda reader: f"<msqrt>{reader.argument()}</msqrt>",
    "sum": lambda reader: "<mo>∑</mo>",
    "text": lambda reader: f"<mtext>{escape(reader.words()).replace(' ', NO_BREAK)}</mtext>",
    "mathrm": _Reader.upright,
    "left": _Reader.fenced,
    "begin": _Reader.cases,
}
"""Command with arguments -> its element."""


def _sign(sign: str) -> str:
    """An operator; a bracket of its usual height."""
    fixed = ' stretchy="false"' if sign in BRACKETS else ""
    return f"<mo{fixed}>{escape(sign)}</mo>"
