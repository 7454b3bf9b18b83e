"""What can be measured: a mixer with equations, or a module without.

Both say which sizes they have, how they are built and called, and which readings have a floor;
other theory needs a mixer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os.path import isfile
from pathlib import Path
from typing import Protocol

import torch

from costmodel.errors import UnknownMixer
from costmodel.language.equations import Mixer
from costmodel.language.options import defined
from costmodel.mixers.load import mixer as load_mixer, user_module
from costmodel.program.chosen_sizes import Given, combinations, fit, letters_of
from profiler.counting.operations import Operations
from profiler.modules.building import build
from profiler.modules.registry import Implementation, without_token
from profiler.records.measurement import Measurement
from profiler.records.reading import Unavailable
from profiler.run.in_record import implementations_of
from profiler.run.inputs import Built
from profiler.run.lower_bounds import flagged
from profiler.run.plain import PlainModule
from profiler.tracing.meta_run.target import load_target

Measurable = Mixer | PlainModule
"""The mixer or module of a request."""

Named = Measurable | tuple[Measurable, str]
"""What a command line names: a mixer or module, alone or with one implementation."""


class Subject(Protocol):
    """The questions that measuring asks of a mixer or of a module without equations."""

    def implementations(self) -> dict[str, Implementation]:
        """A dict: name -> implementation; MeasureError if there is none."""

    def combinations(self, phase: str, given: Given) -> list[dict[str, int]]:
        """Every combination of the sizes for a phase; SizeError if there are too many."""

    def fit(self, sizes: Mapping[str, int]) -> None:
        """SizeError for sizes that the mixer or module refuses."""

    def without_token(self, implementation: Implementation) -> str:
        """Why an implementation cannot mix one new token; "" if it can."""

    def build(
        self,
        implementation: Implementation,
        sizes: Mapping[str, int],
        *,
        device: torch.device | str,
        dtype: torch.dtype,
        seed: int,
        drawn: bool = True,
    ) -> Built:
        """Make a module with random parameters, or without `drawn` its class's, and its inputs."""

    def traced(self, phase: str, sizes: Mapping[str, int]) -> Operations | Unavailable | None:
        """The operations of a phase by tracing, or the reason why they are unknown; None for a
        mixer, whose equations count them."""

    def flagged(self, measurement: Measurement) -> Measurement:
        """The measurement, with a label on each reading that is below its floor."""


def subject(of: Measurable) -> Subject:
    """The subject of a mixer or of a module without equations."""
    return of if isinstance(of, PlainModule) else WithEquations(of)


def measurable(name: str) -> Measurable:
    """Load the mixer of this name, or else the module without equations that FILE.py:NAME makes.
    UnknownMixer: neither, or a file of mixers without a callable NAME; TraceError: no module."""
    try:
        return load_mixer(name)
    except UnknownMixer:
        path, _, attribute = name.rpartition(":")
        if not (path.endswith(".py") and attribute and isfile(path)):
            raise
        module = user_module(Path(path))
        if defined(module) and not callable(getattr(module, attribute, None)):
            raise
    return PlainModule(load_target(name))


def named(word: str) -> Named:
    """Load the mixer or module that a word of the command line names: MIXER or FILE.py:NAME; behind
    a further colon may stand an implementation, which the result then includes. Raises
    UnknownMixer, TraceError: there is neither a mixer nor a module of this name."""
    mixer, implementation = parts(word)
    if word.endswith(":"):
        raise UnknownMixer(
            f"'{word}' names no implementation behind its last colon: add one, or leave out the "
            "colon"
        )
    found = measurable(mixer)
    return found if implementation is None else (found, implementation)


def parts(word: str) -> tuple[str, str | None]:
    """Split a word of the command line into the names of mixer and implementation (or None).

    >>> parts("she:conv"), parts("she"), parts("my.py:mine:fast"), parts("she:my.py:Fast")
    (('she', 'conv'), ('she', None), ('my.py:mine', 'fast'), ('she', 'my.py:Fast'))
    """
    head, _, rest = word.partition(":")
    if head.endswith(".py"):
        name, _, rest = rest.partition(":")
        head = f"{head}:{name}"
    return head, rest or None


@dataclass(frozen=True)
class WithEquations:
    """A mixer as a subject."""

    mixer: Mixer

    def implementations(self) -> dict[str, Implementation]:
        return implementations_of(self.mixer)

    def combinations(self, phase: str, given: Given) -> list[dict[str, int]]:
        """Every combination of the given sizes; other sizes of the phase have defaults."""
        return combinations(letters_of(self.mixer, phase), given, self.mixer)

    def fit(self, sizes: Mapping[str, int]) -> None:
        """SizeError if the mixer refuses the sizes."""
        fit(self.mixer, sizes)

    def without_token(self, implementation: Implementation) -> str:
        """Why an implementation cannot mix one new token; "" if it can."""
        return without_token(self.mixer, implementation)

    def build(
        self,
        implementation: Implementation,
        sizes: Mapping[str, int],
        *,
        device: torch.device | str,
        dtype: torch.dtype,
        seed: int,
        drawn: bool = True,
    ) -> Built:
        """Make a module with random parameters (without `drawn` as its class makes them), and its
        inputs: x (b, l, d), and a tensor (b, ...) for each further array that the equations are
        given (`beside`), which the module reads whole and a decoding state begins with. The inputs
        lie on the meta device, as only their shapes are used."""
        module = build(
            implementation, dict(sizes), device=device, dtype=dtype, seed=seed, drawn=drawn
        )
        shapes: dict[str, tuple[int, ...]]
        shapes = {self.mixer.role("input").name: (sizes["l"], sizes["d"])}
        for array in self.mixer.beside:
            shapes[array.name] = tuple(extent.at(sizes) for extent in array.shape)
        given = {n: torch.empty(sizes["b"], *s, device="meta") for n, s in shapes.items()}
        return Built(module, given)

    def traced(self, phase: str, sizes: Mapping[str, int]) -> None:
        """None: the equations count the operations."""
        return

    def flagged(self, measurement: Measurement) -> Measurement:
        """The measurement, with a label on each reading below its lower bound."""
        return flagged(measurement, self.mixer)
