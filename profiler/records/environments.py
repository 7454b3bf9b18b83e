"""Which facts of machine and software differ between two records?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

VARYING = ("state", "state_before", "command", "reasons")
"""Top-level facts that differ between two runs on one machine."""

WHOLE = ("variables",)
"""Mappings that list every set name: an absent name is unset, and not merely unknown."""

BOARDS = ("gpu.uuid", "variables.CUDA_VISIBLE_DEVICES")
"""Facts that distinguish two boards of the same model."""


def environment_differences(
    a: Mapping[str, Any], b: Mapping[str, Any], *, boards: bool = False
) -> list[str]:
    """One sentence `fact: value and value` per fact of machine and software that differs.

    Facts that vary from run to run (`VARYING`) are not compared. A fact that is None or absent in
    one environment is unknown there and does not differ, but an absent environment variable is
    unset and may differ, if both list variables. With `boards`, two boards of one model differ.
    """
    first, second = flat(a), flat(b)
    found = []
    for name in dict.fromkeys((*first, *second)):
        if name in BOARDS and not boards:
            continue
        head = name.partition(".")[0]
        whole = head in WHOLE and head in a and head in b
        one, other = first.get(name), second.get(name)
        if one != other and (whole or not (one is None or other is None)):
            found.append(f"{name}: {fact_words(one)} and {fact_words(other)}")
    return found


def flat(facts: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A copy of the facts as one mapping, nested names joined by dots: `gpu.uuid`; at the top level
    without those that vary from run to run (`VARYING`). `prefix`: the names around these facts with
    dots, `gpu.`; "" at the top."""
    found: dict[str, Any] = {}
    for name, value in facts.items():
        if not prefix and name in VARYING:
            continue
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def fact_words(value: Any) -> str:
    """The value of a fact, in words."""
    return "not set" if value is None else str(value)
