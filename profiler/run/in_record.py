"""Which mixer and which implementation does a record name?"""

from __future__ import annotations

from collections.abc import Mapping

from costmodel.language.equations import Mixer
from costmodel.mixers.load import imported, known
from profiler.modules.registry import Implementation, implementations
from profiler.records.reading import MeasureError
from profiler.records.words import without_equations


def candidate_in_record(mixer: str, implementation: str, form: str) -> tuple[Mixer, Implementation]:
    """Find the mixer and the implementation that a record names: built-in ones, or those of a
    user's files that this process has already imported.

    Raises:
        UnknownMixer, MeasureError: the mixer or the implementation does not exist any more, or its
            file has not been imported; or the record (with the form "") is of a module without
            equations.
    """
    if not form:
        raise MeasureError(without_equations(mixer))
    found = known(mixer)
    if is_class(implementation):
        from profiler.run.own_class import users_class  # it proves the class, which imports torch

        return found, users_class(found, implementation, imported)
    return found, named_in(implementations_of(found), implementation, found.name)


def is_class(name: str) -> bool:
    """Whether the name of an implementation has the form FILE.py:Class."""
    return name.rpartition(":")[0].endswith(".py")


def implementations_of(mixer: Mixer) -> dict[str, Implementation]:
    """A dict: name -> implementation of the mixer; MeasureError if there is none."""
    try:
        return implementations(mixer)
    except ValueError as error:
        raise MeasureError(str(error)) from error


def named_in(found: Mapping[str, Implementation], name: str, mixer: str) -> Implementation:
    """The implementation of this name among those `found` of a mixer, which is named in the
    MeasureError if there is none."""
    if name not in found:
        raise MeasureError(f"no implementation '{name}': {mixer} has {', '.join(found)}")
    return found[name]
