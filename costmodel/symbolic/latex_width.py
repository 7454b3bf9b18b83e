"""How wide is a LaTeX formula in print, and where may it break?

Widths are estimates in points at 10 pt Computer Modern, a little on the wide side: they decide only
which formulas get lines of their own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

LINE = 330.0
"""The width of a line in the narrowest usual document, in points."""

_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|.", re.DOTALL)
_SIGN = re.compile(r" [+-] ")

_WIDTHS: Mapping[str, float] = {
    **dict.fromkeys("+-", 12.5),
    **dict.fromkeys(("=", "<", ">", r"\le", r"\ge", r"\dots", r"\quad", r"\log"), 13.5),
    **dict.fromkeys("0123456789", 5.0),
    **dict.fromkeys("()[],", 4.5),
    **dict.fromkeys((r"\lceil", r"\rceil", r"\left", r"\right"), 4.5),
    **dict.fromkeys((r"\max", r"\min"), 19.0),
    **dict.fromkeys((r"\,", "'"), 2.0),
    **dict.fromkeys(("_", "^", " ", r"\mathrm", r"\text"), 0.0),
    r"\cdot": 7.5,
    r"\ ": 4.0,
    r"\sum": 16.0,
    r"\sqrt": 9.0,
}
_OTHERWISE = 6.2
"""The width of a letter."""

_SMALL = 0.75
"""How much smaller subscripts and superscripts are."""


def width(latex: str) -> float:
    r"""How wide a formula is in print, in points; a `cases` environment is not measured.

    >>> width("d l") < width(r"\frac{1}{2} d^{2} l + d l") < width(r"d^{2} l + d l - 2 d l")
    True
    """
    total, base, scripts = 0.0, 0.0, 0.0
    parts = _latex_parts(latex)
    while parts:
        part = parts.pop(0)
        if part in ("_", "^") and parts:
            scripts = max(scripts, _SMALL * width(_without_braces(parts.pop(0))))
            continue
        total += max(base, scripts) if base == _WIDTHS[r"\sum"] else base + scripts
        scripts = 0.0
        if part == r"\frac" and len(parts) > 1:
            base = (
                max(width(_without_braces(parts.pop(0))), width(_without_braces(parts.pop(0))))
                + 3.0
            )
        elif part.startswith("{"):
            base = width(_without_braces(part))
        else:
            base = _WIDTHS.get(part, _OTHERWISE)
    return total + (max(base, scripts) if base == _WIDTHS[r"\sum"] else base + scripts)


def _without_braces(part: str) -> str:
    return part[1:-1] if part.startswith("{") else part


def _latex_parts(latex: str) -> list[str]:
    """The formula cut into commands, characters and groups, a group with its braces."""
    parts: list[str] = []
    depth = 0
    for token in _TOKEN.findall(latex):
        if depth or token == "{":
            opened = token == "{" and not depth
            parts = [*parts, token] if opened else [*parts[:-1], parts[-1] + token]
            depth += (token == "{") - (token == "}")
        else:
            parts.append(token)
    return parts


def broken(latex: str, room: float) -> list[str]:
    """A sum as lines of at most `room` points; every line but the first begins with a sign.

    >>> broken(r"a b + (c - d) - e", 30)
    ['a b', '+ (c - d)', '- e']
    """
    lines: list[str] = []
    for term in _terms_of_sum(latex):
        if lines and width(f"{lines[-1]} {term}") <= room:
            lines[-1] = f"{lines[-1]} {term}"
        else:
            lines.append(term)
    return lines


def _terms_of_sum(latex: str) -> list[str]:
    """The terms of a sum, each but the first with its sign."""
    cuts = [0]
    for sign in _SIGN.finditer(latex):
        before = latex[: sign.start()]
        opened = (before.count(o) - before.count(c) for o, c in ("{}", "()", (r"\left", r"\right")))
        if not any(opened):
            cuts.append(sign.start())
    return [latex[a:b].strip() for a, b in zip(cuts, [*cuts[1:], len(latex)], strict=True)]
