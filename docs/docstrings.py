"""Docstrings as Sphinx reads them: `names` in single backticks are code, and stars, bars and
underscores are letters."""

from __future__ import annotations

import re
from typing import Any

_ACTIVE = re.compile(r"[*|]|(?<=\w)_(?!\w)")
_CODE = re.compile(r"(`[^`]*`)")
SECTIONS = ("Args:", "Raises:", "Returns:", "Yields:")
"""The headings of a Google docstring, which napoleon reads."""


def process(app: Any, what: str, name: str, found: Any, options: Any, lines: list[str]) -> None:
    """The handler of Sphinx's event: change the lines of a docstring in place."""
    lines[:] = as_rst(lines)


def as_rst(lines: list[str]) -> list[str]:
    """The lines of a docstring in reStructuredText. Code stays as written: doctests, and an
    indented block after an empty line.

    >>> as_rst(["The sum over `j` of 2*a:", "", "    y = sum_(a)"])
    ['The sum over `j` of 2\\\\*a::', '', '    y = sum_(a)']
    """
    found: list[str] = []
    code = False
    for k, line in enumerate(lines):
        indented = line.startswith("    ")
        if indented and k and not lines[k - 1].strip() and _before(found).endswith(":"):
            code = True
            at = max(j for j, one in enumerate(found) if one.strip())
            found[at] = found[at].removesuffix(":").removesuffix(":") + "::"
        elif line.strip() and not indented:
            code = False
        plain = code or line.lstrip().startswith((">>>", "..."))
        found.append(line if plain or _output(lines, k) else _escaped(line))
    return found


def _before(found: list[str]) -> str:
    """The last line with words; "" for a section's heading, whose lines are no code."""
    words = next((line for line in reversed(found) if line.strip()), "")
    return "" if words.strip() in SECTIONS else words


def _output(lines: list[str], k: int) -> bool:
    """Whether line k is what a doctest prints."""
    for line in reversed(lines[:k]):
        if not line.strip():
            return False
        if line.lstrip().startswith((">>>", "...")):
            return bool(lines[k].strip())
    return False


def _escaped(line: str) -> str:
    """The line with a backslash before active characters outside of backticks."""
    parts = _CODE.split(line)
    return "".join(p if p.startswith("`") else _ACTIVE.sub(r"\\\g<0>", p) for p in parts)
