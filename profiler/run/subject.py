"""What may be measured, and what must measuring know of it?

A mixer with its equations, or a module without any. Both say which sizes they have, how they are
built and called, and which floors their readings have; theory beyond that is asked of a mixer
alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from costmodel.errors import UnknownMixer
from costmodel.language.equations import Mixer
from costmodel.language.options import defined
from costmodel.mixers.load import mixer as load_mixer, user_module
from costmodel.program.chosen_sizes import Given, combinations, fit, letters_of
from profiler.counting.operations import Operations
from profiler.modules.registry import Implementation, build, implementations, without_token
from profiler.records.measurement import Measurement
from profiler.records.reading import MeasureError, Unavailable
from profiler.run.inputs import Built
from profiler.run.lower_bounds import flagged
from profiler.run.plain import PlainModule
from profiler.tracing.meta_run.target import load_target

Measurable = Mixer | PlainModule
"""What a request may name."""

Named = Measurable | tuple[Measurable, str]
"""What a word of a command line names: alone, or with one implementation."""


class Subject(Protocol):
    """What measuring asks of a mixer, or of a module without equations."""

    def implementations(self) -> dict[str, Implementation]:
        """What can be measured of it, by name; MeasureError where there is nothing."""

    def combinations(self, phase: str, given: Given) -> list[dict[str, int]]:
        """Every combination of its sizes; SizeError where there are too many."""

    def fit(self, sizes: Mapping[str, int]) -> None:
        """SizeError for sizes that it refuses."""

    def without_token(self, implementation: Implementation) -> str:
        """Why an implementation cannot mix one new token, "" where it can."""

    def build(
        self,
        implementation: Implementation,
        sizes: Mapping[str, int],
        *,
        device: torch.device | str,
        dtype: torch.dtype,
        seed: int,
    ) -> Built:
        """A module with random parameters, and what it is called with."""

    def traced(self, phase: str, sizes: Mapping[str, int]) -> Operations | Unavailable | None:
        """Its operations as traced; None where equations say them."""

    def flagged(self, measurement: Measurement) -> Measurement:
        """The measurement, with a label on each reading that is below its floor."""


def subject(of: Measurable) -> Subject:
    """What measuring asks, of either."""
    return of if isinstance(of, PlainModule) else WithEquations(of)


def measurable(name: str) -> Measurable:
    """The mixer of this name; else the module without equations that FILE.py:NAME makes.

    Raises:
        UnknownMixer, TraceError: neither; one sentence.
    """
    try:
        return load_mixer(name)
    except UnknownMixer:
        path, _, attribute = name.rpartition(":")
        if not (path.endswith(".py") and attribute and Path(path).is_file()):
            raise
        module = user_module(Path(path))
        if defined(module) and not callable(getattr(module, attribute, None)):
            raise
    return PlainModule(load_target(name))


def named(word: str) -> Named:
    """What a word names: MIXER, MIXER:IMPLEMENTATION, FILE.py:NAME or FILE.py:NAME:IMPLEMENTATION.

    Raises:
        UnknownMixer, TraceError: as `measurable`.
    """
    mixer, implementation = parts(word)
    found = measurable(mixer)
    return found if implementation is None else (found, implementation)


def parts(word: str) -> tuple[str, str | None]:
    """The mixer and the implementation that a word names.

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
        """As the protocol."""
        try:
            return implementations(self.mixer)
        except ValueError as error:
            raise MeasureError(str(error)) from error

    def combinations(self, phase: str, given: Given) -> list[dict[str, int]]:
        """As the protocol."""
        return combinations(letters_of(self.mixer, phase), given)

    def fit(self, sizes: Mapping[str, int]) -> None:
        """As the protocol."""
        fit(self.mixer, sizes)

    def without_token(self, implementation: Implementation) -> str:
        """As the protocol."""
        return without_token(self.mixer, implementation)

    def build(
        self,
        implementation: Implementation,
        sizes: Mapping[str, int],
        *,
        device: torch.device | str,
        dtype: torch.dtype,
        seed: int,
    ) -> Built:
        """As the protocol: x (b, l, d), then what the equations are given beside it, (b, ...): a
        module takes it whole, and begins a state with it."""
        module = build(implementation, dict(sizes), device=device, dtype=dtype, seed=seed)
        shapes: dict[str, tuple[int, ...]]
        shapes = {self.mixer.role("input").name: (sizes["l"], sizes["d"])}
        for array in self.mixer.beside:
            shapes[array.name] = tuple(extent.at(sizes) for extent in array.shape)
        given = {n: torch.empty(sizes["b"], *s, device="meta") for n, s in shapes.items()}
        return Built(module, given)

    def traced(self, phase: str, sizes: Mapping[str, int]) -> None:
        """Nothing: its equations say what it computes."""
        return

    def flagged(self, measurement: Measurement) -> Measurement:
        """As the protocol."""
        return flagged(measurement, self.mixer)
