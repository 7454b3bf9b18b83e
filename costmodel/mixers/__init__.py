"""Which mixers are built in, and which file has the equations of each?

A mixer is a layer whose output rows depend on rows of several tokens, such as attention; its forms
are sets of equations that compute the same output at other costs. All files of this folder are
searched for mixers; no list names them. A mixer's name stands in its file in double quotes, by
which the file is found without an import of the other files.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

from costmodel.errors import UnknownMixer as UnknownMixer
from costmodel.language.equations import Mixer
from costmodel.language.options import defined, is_called, joined, split, stands_for, variant

DEFAULT = ("self-attention", "she", "he", "we", "me")
"""The mixers that a command shows if none is named: self-attention and the Extractor family."""

BASELINE = "self-attention"
"""The mixer in the denominator of ratios."""

IN_PAPERS: Mapping[str, str] = {
    "attention": "self-attention", "full attention": "self-attention",
    "softmax attention": "self-attention", "vanilla attention": "self-attention",
    "multi-head attention": "self-attention", "transformer": "self-attention",
    "conv": "convolution", "cnn": "convolution", "linear transformer": "linear-attention",
    "aft-local (aft-conv)": "aft-local",
}  # fmt: skip
"""Name of a mixer in papers, in lower case -> the mixer; besides its names in the catalogue."""


@cache
def names() -> tuple[str, ...]:
    """The names of all built-in mixers, family by family: `DEFAULT` first, then by the year of the
    source."""
    found = [mixer for file in _texts() for mixer in _load(file).values()]
    found.sort(key=_place)
    families = dict.fromkeys(mixer.group for mixer in found)
    return tuple(m.name for family in families for m in found if m.group == family)


def _place(mixer: Mixer) -> tuple[int, int]:
    """The key by which `names` sorts: the place in `DEFAULT`, then the year of the source."""
    year = re.search(r"\b(19|20)\d\d\b", mixer.source)
    shown = DEFAULT.index(mixer.name) if mixer.name in DEFAULT else len(DEFAULT)
    return shown, int(year[0]) if year else 0


def groups() -> dict[str, tuple[Mixer, ...]]:
    """Group -> its built-in mixers, in the order of `costmodel list`."""
    found: dict[str, tuple[Mixer, ...]] = {}
    for name in names():
        mixer = builtin(name)
        found[mixer.group] = (*found.get(mixer.group, ()), mixer)
    return found


@lru_cache(maxsize=1000)
def builtin(name: str) -> Mixer:
    """The built-in mixer with a name or alias (or the variant with a name of its own), with the
    options and sizes that follow the name: `NAME+OPTION{n=32,h=128}`. Upper-case letters of the
    name are accepted: `GQA` is `gqa`.

    Raises:
        UnknownMixer: the message has the nearest known name, or the options or sizes that the mixer
            takes; SizeError: a size outside of 1..2**40.
    """
    base, options = split(name)
    if (file := file_of(base)) is None and (file := file_of(base.lower())) is not None:
        before, *inside = name.partition("{")
        name, base = before.lower() + "".join(inside), base.lower()
    if file is not None:
        found = next(m for m in _load(file).values() if is_called(m, base))
        chosen = variant(_module(file), found, *stands_for(found, name))
        chosen.builtin = True
        return chosen
    loaded = [mixer for file in _texts() for mixer in _load(file).values()]
    others = [other for mixer in loaded for other in (*mixer.aliases, *mixer.variants)]
    said = re.findall(r"\w+", base.lower().replace("_", " "))
    near = [one for words, one in IN_PAPERS.items() if re.findall(r"\w+", words) == said]
    near += difflib.get_close_matches(base.lower(), [*names(), *others], 1, cutoff=0.65)
    hint = f"; did you mean '{_nearest(near[0], options)}'? " if near else ": "
    raise UnknownMixer(
        f"unknown mixer '{name}'{hint}`costmodel list` shows them all, and a mixer of your own "
        "is given as FILE.py:NAME, such as mine.py:windowed"
    )


@cache
def file_of(base: str) -> str | None:
    """The file that defines the mixer with a name or alias, or the variant with a name of its own;
    None for an unknown name."""
    for file, text in _texts().items():
        if f'"{base}"' in text and any(is_called(m, base) for m in _load(file).values()):
            return file
    return None


def _nearest(base: str, options: Sequence[str]) -> str:
    """A known name, with the nearest known option for each typed option."""
    offers = builtin(base).offers
    found = [near for option in options for near in difflib.get_close_matches(option, offers, 1)]
    return joined(base, dict.fromkeys(found))


@cache
def _texts() -> dict[str, str]:
    """Name -> text of each Python file of this folder, without this file."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return {f.stem: f.read_text(encoding="utf-8") for f in files if f.stem != "__init__"}


@cache
def _module(file: str) -> ModuleType:
    return import_module(f"costmodel.mixers.{file}")


@cache
def _load(file: str) -> dict[str, Mixer]:
    """Name of a mixer -> the mixer, for one file of this folder. The mixers are marked as built in,
    and as checked, so that their equations are not validated again."""
    found = {mixer.name: mixer for mixer in defined(_module(file)).values()}
    for mixer in found.values():
        mixer.checked = mixer.builtin = True
    return found
