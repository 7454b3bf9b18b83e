"""Which mixer does a name stand for, or which network in the place of a mixer?"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from costmodel.errors import ModelError, UnknownMixer
from costmodel.language.equations import Mixer
from costmodel.mixers.load import with_form
from costmodel.questions.question import Whole


def candidate(name: str | Mixer) -> tuple[Mixer, str | None]:
    """(mixer, form) for the name of a mixer, `NAME` with the form None or `NAME:FORM`; or for the
    name or `config.json` of a network, as a mixer whose cost is the network's, with the form None.

    Raises:
        UnknownMixer: an unknown name; EquationError: a form that the mixer lacks.
        ModelError: a configuration that cannot be read.
    """
    try:
        return with_form(name)
    except UnknownMixer:
        # imported here because most commands name no network
        from costmodel.networks import as_mixer

        found = as_mixer(name) if isinstance(name, str) else None
        if found is None:
            raise
        return found, None


def opened(mixer: Mixer, letter: str) -> Mixer:
    """A network as a mixer with a size open that its configuration gives; other mixers as given."""
    return mixer.opened(letter) if isinstance(mixer, Whole) else mixer


def without_fields(names: Iterable[str], ignored: Collection[str] | None) -> list[str | Mixer]:
    """The names as given; with fields to ignore, each name of a `config.json` is replaced by the
    mixer of its network, read without the fields `ignored` that the file has.

    Raises:
        ModelError: fields to ignore, and no name is that of a file; a field that no file has; or a
            configuration that cannot be read.
    """
    given: list[str | Mixer] = [*names]
    if not ignored:
        return given
    # imported here because most commands name no network
    from costmodel.networks import as_mixer
    from costmodel.networks.huggingface import file_fields, named

    paths = {name: name.partition("{")[0] for name in given if isinstance(name, str)}
    known = {
        name: named(file_fields(Path(path)))
        for name, path in paths.items()
        if path.endswith(".json")
    }
    if not known:
        raise ModelError(
            "--ignore leaves out fields of a config.json: name a config.json, or leave out --ignore"
        )
    somewhere = set[str]().union(*known.values())
    found: dict[str | Mixer, Mixer | None] = {
        # a field that no file has is refused by the first
        name: as_mixer(name, [field for field in ignored if field in has or field not in somewhere])
        for name, has in known.items()
    }
    return [found.get(name) or name for name in given]
