"""Which number does a user mean by 40GB, 1.5GiB, 3e12 or 3T?"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from fractions import Fraction
from math import floor

from costmodel.errors import SizeError, shortened

BYTES: Mapping[str, int] = {
    "B": 1,
    **{f"{prefix}B": 1000**k for k, prefix in enumerate("kMGTP", 1)},
    **{f"{prefix}iB": 1024**k for k, prefix in enumerate("KMGTP", 1)},
}
"""Unit of bytes -> its number of bytes."""

THOUSANDS: Mapping[str, int] = {
    "": 1,
    **{prefix: 1000**k for k, prefix in enumerate("kMGTP", 1)},
}
"""Suffix of a plain number -> its factor."""

_DIGITS = r"[0-9]{1,999}\.?[0-9]{0,999}|\.[0-9]{1,999}"
_AMOUNT = re.compile(rf"([+-]?)({_DIGITS})(?:[eE]([+-]?[0-9]{{1,3}}))?\s*([A-Za-z]*)")
_MOST = 40
"""The power of ten that an amount may reach at most."""


def amount(name: str, text: object, *, in_bytes: bool) -> int:
    """An amount as typed, as an integer, rounded down: bytes if `in_bytes`, else a plain number,
    such as one of operations. `name`: the limited quantity, for messages.

    >>> amount("state", "40GB", in_bytes=True), amount("state", "1.5 KiB", in_bytes=True)
    (40000000000, 1536)
    >>> amount("total", "3T", in_bytes=False), amount("total", 1e12, in_bytes=False)
    (3000000000000, 1000000000000)

    Raises:
        SizeError: no such amount, one below 0, or one above 10**40.
    """
    said = str(text)  # of a float as well, whose fixed six digits would round 0.9999999 up
    wanted = "bytes with their unit, such as 40GB or 40GiB" if in_bytes else (
        "a number, such as 1000000, 1e12 or 3T"
    )  # fmt: skip
    lead = f"{name}: expected {wanted}"
    found = _AMOUNT.fullmatch(said.strip())
    if not found:
        raise SizeError(f"{lead}, got '{shortened(said)}'")
    sign, digits, power, unit = found.groups()
    if sign == "-":
        raise SizeError(f"{name}: expected a limit of 0 or more, got '{shortened(said)}'")
    units = BYTES if in_bytes else THOUSANDS
    if unit not in units:
        raise SizeError(_unit_refused(lead, unit, units, said))
    number = Fraction(digits) * Fraction(10) ** int(power or 0) * units[unit]
    if number > 10**_MOST:
        raise SizeError(f"{name}: at most 10**{_MOST} is allowed, got '{shortened(said)}'")
    return floor(number)


def _unit_refused(lead: str, unit: str, units: Mapping[str, int], said: str) -> str:
    """The sentence, after `lead`, that refuses the amount `said`: '40' has no unit, '40GB' is bytes
    where a number is expected, '40GBs' and '40GiG' have a unit that is none of `units` (unit ->
    factor). Of these two, 'GBs' is told the similar unit GB, 'GiG' all units."""
    if not unit:
        return f"{lead}; '{shortened(said)}' has no unit"
    if unit in BYTES:
        return f"{lead}; '{shortened(said)}' is an amount of bytes"
    known = {name.lower(): name for name in units if name}
    near = get_close_matches(unit.lower(), known, 1, cutoff=0.7)
    hint = (
        f": did you mean {known[near[0]]}?"
        if near
        else f"; the units are {', '.join(known.values())}"
    )
    return f"{lead}; '{shortened(said)}' has the unknown unit {shortened(unit)}{hint}"
