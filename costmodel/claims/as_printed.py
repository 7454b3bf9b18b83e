"""The names that papers print: of sizes, their symbols; of quantities, their headings."""

from __future__ import annotations

import re
from collections.abc import Sequence

from costmodel.errors import SizeError
from costmodel.language.formula_text import symbol_name
from costmodel.questions.registry import CLAIMED
from costmodel.symbolic.sizes import LETTERS, is_letter

_SYMBOL = re.compile(r"[A-Za-z]+(?:_\w+)?", re.ASCII)
"""A symbol that a formula can name: letters, then an index if any."""

STEM = 8
"""Words whose first 8 letters are equal are taken as one: exponentials, exponentiations."""


def symbols(text: str) -> dict[str, str]:
    """Read the text of the option `--symbols`, such as `N=l,d_{model}=d`, as a mapping from a
    paper's symbols (in the spelling of `symbol_name`) to our letters for sizes.

    Raises:
        SizeError: a part that is no pair, a symbol that cannot be in a formula, a size that is no
            letter, or two letters for one symbol.
    """
    found: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, letter = (side.strip() for side in part.partition("="))
        if not is_letter(letter) or not _SYMBOL.fullmatch(symbol_name(name)):
            raise SizeError(
                f"--symbols '{part}': expected a paper's SYMBOL=LETTER, such as N=l,d_model=d; the "
                f"letter is that of a size, {', '.join(LETTERS)} or one that a mixer declares"
            )
        if found.setdefault(symbol_name(name), letter) != letter:
            raise SizeError(f"--symbols '{text}' gives {name} two letters: leave out one of them")
    return found


def _same(one: str, two: str) -> bool:
    """Whether two words are equal, or have their first `STEM` letters in common."""
    return one == two or (
        one.isalpha() and two.isalpha() and len(one) >= STEM and one[:STEM] == two[:STEM]
    )


def same_words(some: Sequence[str], others: Sequence[str]) -> bool:
    """Whether two lists have the same words in any order; of long words `STEM` letters count.

    >>> same_words(["attention", "restricted"], ["restricted", "attention"])
    True
    """
    pairs = zip(sorted(some), sorted(others), strict=True)
    return len(some) == len(others) and all(_same(one, two) for one, two in pairs)


def quantity_word(text: str) -> str:
    """The name by which claims call the quantity that a heading means; `text` may be the name, the
    heading of our tables, or the heading with other endings. Any other text is returned in lower
    case, with _ for spaces.

    >>> [*map(quantity_word, ("Multiplications", "exponentials", "largest live set", "mul"))]
    ['mul', 'exp', 'peak', 'mul']
    """
    said = " ".join(re.split(r"[\s_-]+", text.strip()))
    for figure in CLAIMED.values():
        title = figure.title.lower().split()
        if said == figure.name or same_words(said.lower().split(), title):
            return figure.name
    return said.lower().replace(" ", "_")
