"""Words for measured values, sizes and phases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from costmodel.symbolic.sizes import in_order

PHASES = {
    "training": "forward pass",
    "inference": "one new token",
    "backward": "backward pass",
    "training-step": "training step",
}
"""Phase -> its words."""
DIGITS = 4
"""Significant digits of a measured value."""
PREFIXES = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"), (1e-12, "p"))
LARGE = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def scaled(value: float, unit: str, digits: int = DIGITS) -> str:
    """A measured value as text, with this many significant digits and an SI prefix.

    >>> scaled(0.000354121, "s"), scaled(1.2e12, "op/s"), scaled(0.0, "J")
    ('354.1 µs', '1.2 Top/s', '0 J')
    """
    if value == 0:
        return f"0 {unit}"
    value = float(f"{value:.{digits}g}")  # 999.6 ms are 1 s in three digits, as in the prefix
    steps = LARGE if abs(value) >= 1 else PREFIXES
    factor, prefix = next(((f, p) for f, p in steps if abs(value) >= f), steps[-1])
    return f"{value / factor:.{digits}g} {prefix}{unit}"


def value_words(value: float, unit: str) -> str:
    """A measured value as text: bytes and counts (unit 1) as whole numbers, others with an SI
    prefix.

    >>> value_words(4096, "B"), value_words(1500, "1"), value_words(0.0015, "s")
    ('4,096 B', '1,500', '1.5 ms')
    """
    if unit in ("1", "B"):
        return f"{value:,.0f}{' B' * (unit == 'B')}"
    return scaled(value, unit)


def told_apart(found: float, who: str, expected: float, digits: int = 6) -> str:
    """Two different numbers as text, the words `who` between them, with `digits` significant
    digits; if the two texts are then equal, with as many digits as tell the numbers apart, and with
    the difference of the numbers.

    >>> told_apart(0.5, "forward gives", 0.25), told_apart(1 + 2**-30, "forward gives", 1.0)
    ('0.5, forward gives 0.25', '1.000000001, forward gives 1 (a difference of 9.3e-10)')
    """
    for shown in range(digits, 18):  # 17 digits tell any two float64 apart
        one, two = f"{found:.{shown}g}", f"{expected:.{shown}g}"
        if one != two:
            break
    difference = f" (a difference of {abs(found - expected):.2g})" if shown > digits else ""
    return f"{one}, {who} {two}{difference}"


def sizes_words(sizes: Mapping[str, int]) -> str:
    """Sizes as text, in the usual order of letters: `b = 1, l = 128, d = 128`."""
    return ", ".join(f"{letter} = {sizes[letter]}" for letter in in_order(sizes))


def sizes_apart(each: Sequence[Mapping[str, int]]) -> tuple[dict[str, int], list[dict[str, int]]]:
    """The sizes that have one value in all mappings with the letter; and the other sizes of each.

    >>> sizes_apart([{"d": 64, "n": 4, "g": 2}, {"d": 64, "n": 4, "g": 1}])
    ({'d': 64, 'n': 4}, [{'g': 2}, {'g': 1}])
    """
    values: dict[str, set[int]] = {}
    for sizes in each:
        for letter, size in sizes.items():
            values.setdefault(letter, set()).add(size)
    common = {letter: min(found) for letter, found in values.items() if len(found) == 1}
    return common, [{x: n for x, n in sizes.items() if x not in common} for sizes in each]


def options_words(options: Mapping[str, Any]) -> str:
    """Options of a request, sorted by name, as `, compile=True, energy=False`; "" without any."""
    return "".join(f", {name}={value}" for name, value in sorted(options.items()))


def signed_words(counts: Mapping[str, int]) -> str:
    """Differences per class of operations, with their signs.

    >>> signed_words({"mul": 12, "add": -3000})
    '+12 mul, -3,000 add'
    """
    return ", ".join(f"{number:+,} {name}" for name, number in counts.items())


def without_equations(name: str) -> str:
    """Why a module cannot be compared with theory, and which commands serve instead."""
    return (
        f"{name} has no equations to compare with: `costmodel trace {name} --over l,d` counts it "
        f"as formulas, and --impl {name} measures it as an implementation of a mixer"
    )
