"""Are the limits of a measurement possible ones?"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import Field, fields
from typing import Any


def refuse_impossible(limits: Any, least: Mapping[str, int], above: Collection[str]) -> None:
    """Check the numbers of a dataclass of limits: a field with a whole number as default is a
    number of things, any other field seconds, degrees or a share. `parts=0` is refused, as
    `least["parts"]` is 1 and a window has at least one part.

    Args:
        least: field -> its least whole number; 0 for a field that is not named.
        above: the fields, seconds or shares, that must be finite and above 0.

    Raises:
        ValueError: a number of things that is not whole or below its least; a field of `above` that
            is infinite or not above 0; another field below 0, or no number.
    """
    for field in fields(limits):
        value = getattr(limits, field.name)
        if said := _refused(field, value, least.get(field.name, 0), field.name in above):
            raise ValueError(f"expected {field.name} to be {said}, got {value!r}")


def _refused(field: Field[Any], value: Any, least: int, above: bool) -> str:
    """Which values the field takes, in words, if `value` is none of them; else ""."""
    if isinstance(field.default, bool):
        return "" if isinstance(value, bool) else "True or False"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "a number"
    if isinstance(field.default, int):
        return "" if isinstance(value, int) and value >= least else f"a whole number >= {least}"
    if above:
        return "" if 0 < value < math.inf else "above 0 and finite"
    return "" if value >= 0 else "0 or more"
