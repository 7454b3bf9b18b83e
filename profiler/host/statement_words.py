"""How are the figures of a statement put into words?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from profiler.records.words import scaled


def comma_list(facts: Iterable[str | None]) -> str:
    """The known facts, separated by commas."""
    return ", ".join(fact for fact in facts if fact)


def named_value(name: str, value: Any, unit: str = "") -> str | None:
    """`driver 575.1`; None where the value is unknown."""
    if value is None:
        return None
    return f"{name} {value:g}{unit}" if isinstance(value, float) else f"{name} {value}{unit}"


def mode(value: Any) -> Any:
    """On or off; older records have NVML's number."""
    return {0: "off", 1: "on"}.get(value, value)


def gibibytes(value: float) -> str:
    """Bytes in GiB."""
    return f"{value / 2**30:.4g} GiB"


def mebibytes(value: float) -> str:
    """Bytes in MiB."""
    return f"{value / 2**20:.4g} MiB"


def plural(number: int, noun: str, several: str = "") -> str:
    """`1 run`, `2 runs`."""
    return f"{number} {noun if number == 1 else several or noun + 's'}"


def value_range(values: Sequence[float], unit: str) -> str:
    """`1.2 ms to 3.4 ms`, or one value where both are equal."""
    low, high = scaled(min(values), unit), scaled(max(values), unit)
    return low if low == high else f"{low} to {high}"


def whole_ends(values: Sequence[int]) -> str:
    """`5 to 30`, or one number where both are equal."""
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def counted_range(values: Sequence[int], noun: str) -> str:
    """`5 to 30 samples`, `1 sample`."""
    return f"{whole_ends(values)} {noun}{'' if max(values) == 1 else 's'}"


def noun_range(values: Sequence[float], unit: str, noun: str) -> str | None:
    """`GPU temperature 41 to 43 C`; None where there are no values."""
    if not values:
        return None
    low, high = f"{min(values):g}", f"{max(values):g}"
    return f"{noun} {low if low == high else f'{low} to {high}'}{unit}"


def relative(width: float, of: str) -> str:
    """A width relative to the value that it belongs to, in words.

    >>> relative(0.0364, "its mean"), relative(26.169, "its mean")
    ('3.6% of its mean', '26.2 times its mean')
    """
    return f"{width:.1%} of {of}" if width < 1 else f"{width:.3g} times {of}"
