"""Which values does a printed figure stand for, rounded as it is?"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor

from costmodel.formulas import parse

_LITERAL = re.compile(r"[+-]?\d+(?:\.(\d+))?(?:[eE]([+-]?\d+))?")

PRINTED = "printed"
"""Rounded to the last digit that is printed."""


@dataclass(frozen=True)
class Figure:
    """A printed figure: its value, and the step to which it is rounded (0: it is exact)."""

    value: Fraction
    step: Fraction = Fraction(0)

    @property
    def low(self) -> Fraction:
        """The least value that rounds to it; a value half way may be rounded either way."""
        return self.value - self.step / 2

    @property
    def high(self) -> Fraction:
        """The largest value that rounds to it."""
        return self.value + self.step / 2

    def holds(self, value: Fraction) -> bool:
        """Whether a value is rounded to this figure.

        >>> printed("3.3959", "1e6", "printed").holds(Fraction(3395924))
        True
        """
        return self.low <= value <= self.high

    def otherwise(self, value: Fraction) -> str:
        """In which other way a value would have been rounded to this figure, or ""."""
        if self.step and floor(value / self.step) * self.step == self.value:
            return "rounded down"
        if self.step and ceil(value / self.step) * self.step == self.value:
            return "rounded up"
        return ""


def printed(value: str, unit: str = "", rounding: str = "") -> Figure:
    """Read a figure as it is printed.

    Args:
        value: a number, or a formula without sizes.
        unit: what it is a multiple of, such as 1e6 for millions; 1 if empty.
        rounding: `printed` (to its last digit), a step in the same unit, or empty: exact.

    Raises:
        ValueError: what was expected and what came.
    """
    scale = parse(unit).at({}) if unit else Fraction(1)
    number = parse(value).at({}) * scale
    if not rounding:
        return Figure(number)
    if rounding != PRINTED:
        step = parse(rounding).at({})
    elif literal := _LITERAL.fullmatch(value):
        decimals, exponent = literal[1] or "", int(literal[2] or 0)
        step = Fraction(10) ** (exponent - len(decimals))
    else:
        raise ValueError(f"rounding '{PRINTED}' needs a value in digits, got '{value}'")
    if step <= 0:
        raise ValueError(f"rounding needs a positive step, got '{rounding}'")
    return Figure(number, step * abs(scale))
