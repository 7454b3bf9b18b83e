"""The letters that stand for sizes: meanings, defaults, bounds.

`LETTERS` are the letters that mixers share. A mixer may bring further letters, or give a shared
letter another meaning and default: `Mixer.size`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from costmodel.errors import SizeError, shortened


@dataclass(frozen=True)
class Letter:
    """One size: its letter, its meaning, and the value used when a user gives none."""

    letter: str
    meaning: str
    default: int | None = None
    networks: bool = False
    """Whether the size exists for whole networks only; commands about a mixer do not offer it."""


LETTERS: Mapping[str, Letter] = {
    entry.letter: entry
    for entry in (
        Letter("b", "batch", 1),
        Letter("l", "sequence length", 128),
        Letter("t", "position of the new token"),
        Letter("d", "model width", 128),
        Letter("n", "heads", 8),
        Letter("g", "key-value heads", 2),
        Letter("h", "head width d/n"),
        Letter("k", "kernel width", 4),
        Letter("w", "window", 16),
        Letter("s", "sinks, global or summary tokens", 4),
        Letter("r", "rank, landmarks or fewer channels", 16),
        Letter("m", "random features", 16),
        Letter("v", "widening factor", 2),
        Letter("C", "chunk", 16),
        Letter("N", "SSM state per channel", 16),
        Letter("B", "block", 16),
        Letter("c", "budget of top-k, or drawn tokens", 16),
        Letter("u", "vocabulary", 5000),
        Letter("f", "FFN width", 512),
        Letter("F", "width of a filter's network", 64),
        Letter("e", "source length: the tokens that an encoder reads", 128),
        Letter("L", "layers", 6, networks=True),
        Letter("z", "classes that a classifier tells apart", 2, networks=True),
        Letter("p", "prompt length", 64, networks=True),
        Letter("q", "new tokens after the prompt", 64, networks=True),
        Letter("K", "key width of a head", 16),
        Letter("V", "value width of a head", 16),
        Letter("T", "rounds", 4),
    )
}


LARGEST = 2**40
"""The upper bound of a size; a larger number (an axis of a petabyte) is a typing error."""


_WHOLE = re.compile(r"([+-]?0*([0-9]+))([kKmM]?)")
FACTORS: Mapping[str, int] = {"": 1, "k": 1024, "m": 1024**2}
"""The letter after a typed number, in lower case -> its factor."""


def whole(letter: str, text: str) -> int | None:
    """The integer that a text states, such as 4096 or 4k, for the size `letter`; None if the text
    is no integer; SizeError if the text has more digits than `LARGEST`.

    >>> whole("l", "4k"), whole("l", "1.5")
    (4096, None)
    """
    found = _WHOLE.fullmatch(text)
    if found is None:
        return None
    if len(found[2]) > len(str(LARGEST)):
        raise SizeError(out_of_bounds(letter, shortened(text)))
    return int(found[1]) * FACTORS[found[3].lower()]


def is_letter(name: object) -> bool:
    """Whether a name can stand for a size: one letter from a to z or A to Z."""
    return isinstance(name, str) and len(name) == 1 and name.isascii() and name.isalpha()


def whole_number(text: str) -> int | None:
    """The number that a text of at most 99 decimal digits writes; None for any other text: Python
    reads no number of thousands of digits.

    >>> whole_number("012"), whole_number("-1"), whole_number("9" * 5000)
    (12, None, None)
    """
    return int(text) if text.isdecimal() and len(text) < 100 else None


def in_order(letters: Iterable[str]) -> tuple[str, ...]:
    """Letters in the order of `LETTERS`, further letters after them in the order of the alphabet.

    >>> in_order({"P", "d", "l"})
    ('l', 'd', 'P')
    """
    found = {*letters}
    return (*(x for x in LETTERS if x in found), *sorted(found - LETTERS.keys()))


def known(letter: str, own: Collection[str] = ()) -> None:
    """Raise SizeError for a letter that is neither shared nor in `own`, a mixer's letters."""
    if letter not in LETTERS and letter not in own:
        listed = ", ".join(in_order({*LETTERS, *own}))
        raise SizeError(f"unknown size '{letter}': the letters are {listed}")


def checked(sizes: Mapping[str, int], own: Collection[str] = ()) -> dict[str, int]:
    """The `sizes` as a dict, after checking that every letter is in `LETTERS` or in `own`, a
    mixer's letters, and every value an integer in 1..2**40.

    Raises:
        SizeError: one sentence naming the letter, what was expected and what came.
    """
    for letter, value in sizes.items():
        known(letter, own)
        if isinstance(value, bool) or not isinstance(value, int):
            raise SizeError(f"size {letter} must be a positive integer, got {value!r}")
        if not 1 <= value <= LARGEST:
            raise SizeError(out_of_bounds(letter, str(value)))
    return dict(sizes)


def out_of_bounds(letter: str, got: str) -> str:
    """The error message for a size outside 1..2**40."""
    return f"size {letter} must lie in 1..2**40, got {got}"


def ceil_log2(x: int | Fraction) -> int:
    """Return ceil(log2 x) of a positive number, exactly (no floating point); ValueError for 0 and
    below.

    >>> [ceil_log2(x) for x in (1, 2, 3, 4, 5, 2**49 + 1, Fraction(1, 2), Fraction(1, 3))]
    [0, 1, 2, 2, 3, 50, -1, -1]
    """
    if x <= 0:
        raise ValueError(f"ceil_log2 needs a positive number, got {x}")
    above, below = x.as_integer_ratio()
    more = below.bit_length() if below > 1 else 0  # 2**more * x is at least 1
    # of a whole number n, ceil(log2 n) is the bit length of n - 1
    return (-(-(above << more) // below) - 1).bit_length() - more
