"""Which mixers come with the project, and in which module are the equations of each?"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from types import ModuleType

from costmodel.errors import UnknownMixer as UnknownMixer
from costmodel.language.equations import Mixer
from costmodel.language.options import defined, joined, split, variant

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
    "recurrent": ("recurrent", "lstm", "gru"),
    "linear_attention": ("linear-attention",),
    "causal_heads": ("ssa", "ssa-split", "lsa", "vsa", "slsa", "vlsa", "vlsa-trained"),
    "convolution": ("convolution", "convolution-same"),
    "restricted_attention": ("restricted-attention", "restricted-attention-causal"),
    "additive": ("additive-attention", "dot-product-attention", "general-attention"),
    "simple": ("simple", "simple-res", "simple-resl"),
    "simple_causal": ("simple-causal", "simple-causal-res", "simple-causal-resl"),
    "fastformer": ("fastformer",),
    "synthesizer": (
        "synthesizer-dense",
        "synthesizer-random",
        "synthesizer-factorized-dense",
        "synthesizer-factorized-random",
    ),
    "low_rank": ("linformer", "efficient-attention"),
    "attention_free": ("aft-full", "aft-simple"),
    "mlp_mixer": ("mlp-mixer",),
}
"""Module -> the mixers that it defines, in the order of `costmodel list`."""

DEFAULT = ("self-attention", "she", "he", "we", "me")
"""What a command shows when no mixer is named: self-attention and the Extractor family."""

BASELINE = "self-attention"
"""The mixer that ratios are taken to."""


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
    """The built-in mixer with this name or alias, and with the options that follow the name.

    Raises:
        UnknownMixer: the message has the nearest known name, or the options that the mixer takes.
    """
    base, options = split(name)
    for file, found in FILES.items():
        if base in found:
            return variant(_module(file), _load(file)[base], options)
    for file in FILES:
        for mixer in _load(file).values():
            if base in mixer.aliases:
                return variant(_module(file), mixer, options)
    aliases = [alias for file in FILES for mixer in _load(file).values() for alias in mixer.aliases]
    near = difflib.get_close_matches(base, [*names(), *aliases], 1)
    hint = f"; did you mean '{_nearest(near[0], options)}'? " if near else ": "
    raise UnknownMixer(
        f"unknown mixer '{name}'{hint}`costmodel list` shows them all, and a mixer of your own "
        f"is given as FILE.py:NAME"
    )


def _nearest(base: str, options: Sequence[str]) -> str:
    """A known name, with the nearest known option for each option that was typed."""
    offers = builtin(base).offers
    found = [near for option in options for near in difflib.get_close_matches(option, offers, 1)]
    return joined(base, dict.fromkeys(found))


def _module(file: str) -> ModuleType:
    return import_module(f"costmodel.mixers.{file}")


@cache
def _load(file: str) -> dict[str, Mixer]:
    found = {mixer.name: mixer for mixer in defined(_module(file)).values()}
    for mixer in found.values():
        mixer.checked = True
    return found
