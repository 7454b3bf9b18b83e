"""Which mixer does a name stand for, or which network in the place of a mixer?"""

from __future__ import annotations

from costmodel.errors import UnknownMixer
from costmodel.language.equations import Mixer
from costmodel.mixers.load import with_form


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
