"""Which mixers exist, and where is each written down?"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib import import_module

from costmodel.equations import Mixer

FILES: Mapping[str, tuple[str, ...]] = {
    "self_attention": ("self-attention",),
    "extractor": (
        "she",
        "he",
        "we",
        "me",
        "she-no-output",
        "she-extraction",
        "he-extraction",
    ),
}
"""Module -> the mixers that it defines, in the order of `costmodel list`."""

DEFAULT = ("self-attention", "she", "he", "we", "me")
"""What a command shows when no mixer is named: self-attention and the Extractor family."""

BASELINE = "self-attention"
"""The mixer that ratios are taken to."""


class UnknownMixer(ValueError):
    """No mixer has this name; the message suggests the nearest one."""


def names() -> tuple[str, ...]:
    """The names of all built-in mixers."""
    return tuple(name for found in FILES.values() for name in found)


def groups() -> dict[str, tuple[Mixer, ...]]:
    """Group -> its built-in mixers, in the order of `costmodel list`."""
    found: dict[str, tuple[Mixer, ...]] = {}
    for name in names():
        mixer = builtin(name)
        found[mixer.group] = (*found.get(mixer.group, ()), mixer)
    return found


def builtin(name: str) -> Mixer:
    """The built-in mixer with this name or alias.

    Raises:
        UnknownMixer: with the nearest known name.
    """
    for file, found in FILES.items():
        if name in found:
            return _load(file)[name]
    for file in FILES:
        for mixer in _load(file).values():
            if name in mixer.aliases:
                return mixer
    aliases = [alias for file in FILES for mixer in _load(file).values() for alias in mixer.aliases]
    near = difflib.get_close_matches(name, [*names(), *aliases], 1)
    hint = f"; did you mean '{near[0]}'? " if near else ": "
    raise UnknownMixer(
        f"unknown mixer '{name}'{hint}`costmodel list` shows them all, and a mixer of your own "
        f"is given as FILE.py:NAME"
    )


def _load(file: str) -> dict[str, Mixer]:
    module = import_module(f"costmodel.mixers.{file}")
    return {m.name: m for m in vars(module).values() if isinstance(m, Mixer)}
