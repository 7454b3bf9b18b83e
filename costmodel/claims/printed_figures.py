"""The range of values that a rounded figure allows: 3.4 of millions, 3350000 to 3450000."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor

from costmodel.language.formula_text import parse

_LITERAL = re.compile(r"[+-]?\d+(?:\.(\d+))?(?:[eE]([+-]?\d+))?")


PRINTED = "printed"
"""The rounding of a figure that is rounded to its last printed digit."""


@dataclass(frozen=True)
class PrintedFigure:
    """A printed figure: its value, and the step to which the value is rounded (0: exact)."""

    value: Fraction
    step: Fraction = Fraction(0)

    @property
    def low(self) -> Fraction:
        """The least value that rounds to the figure; a value half a step away may be rounded either
        way, so that both bounds are included."""
        return self.value - self.step / 2

    @property
    def high(self) -> Fraction:
        """The largest value that rounds to the figure."""
        return self.value + self.step / 2

    def holds(self, value: Fraction) -> bool:
        """Whether a value rounds to this figure.

        >>> printed_figure("3.3959", "1e6", "printed").holds(Fraction(3395924))
        True
        """
        return self.low <= value <= self.high

    def otherwise(self, value: Fraction) -> str:
        """The rounding other than to the nearest that turns `value` into this figure: "rounded
        down" or "rounded up"; "" if neither does, or the figure is exact."""
        if self.step and floor(value / self.step) * self.step == self.value:
            return "rounded down"
        if self.step and ceil(value / self.step) * self.step == self.value:
            return "rounded up"
        return ""


def _number(key: str, text: str, expected: str) -> Fraction:
    """The number that the key of a claim states; ValueError, which says what was expected."""
    try:
        return parse(text).at({})
    except ValueError:
        raise ValueError(f"{key} '{text}': expected {expected}") from None


def printed_figure(value: str, unit: str = "", rounding: str = "") -> PrintedFigure:
    """Read a figure as it is printed.

    Args:
        value: a number, or a formula without sizes.
        unit: the number that the value is a multiple of, such as 1e6 for millions; 1 if empty.
        rounding: `printed` (to its last digit), a step in the same unit, or empty (exact).

    Raises:
        ValueError: what was expected and what came.
    """
    scale = _number("unit", unit, "a number, such as 1e6") if unit else Fraction(1)
    number = _number("value", value, "a number, or a formula of numbers") * scale
    if not rounding:
        return PrintedFigure(number)
    if rounding != PRINTED:
        step = _number("rounding", rounding, f"'{PRINTED}' or a step, such as 0.01")
    elif literal := _LITERAL.fullmatch(value):
        decimals, exponent = literal[1] or "", int(literal[2] or 0)
        step = Fraction(10) ** (exponent - len(decimals))
    else:
        raise ValueError(f"rounding '{PRINTED}' needs a value in digits, got '{value}'")
    if step <= 0:
        raise ValueError(f"rounding needs a positive step, got '{rounding}'")
    return PrintedFigure(number, step * abs(scale))
