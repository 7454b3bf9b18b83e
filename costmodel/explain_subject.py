"""What is explained, and how its parts are named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from costmodel import render
from costmodel.constraints import Unsupported
from costmodel.conventions import Convention
from costmodel.equations import Mixer
from costmodel.exact import Exact
from costmodel.expressions import Array
from costmodel.phases import Unanswered, system_of
from costmodel.polynomial import Poly
from costmodel.rules.printing import Names, identifier

PHASE_TITLES = {
    "training": "Forward pass (the papers' training phase)",
    "inference": "One new token (the papers' inference phase)",
    "backward": "Backward pass",
    "training-step": "Training step (forward and backward pass)",
}


@dataclass(frozen=True)
class Subject:
    """What is explained: one form of a mixer at sizes, in some phases, under a convention."""

    mixer: Mixer
    form: str
    phases: tuple[str, ...]
    sizes: Mapping[str, int]
    convention: Convention = Convention()
    names: Names | None = None
    optimiser: str | None = None
    """Whose state a training step holds; None where it is not asked for."""

    def math(self, value: Exact | Poly | tuple[Poly, ...]) -> render.Math:
        """A formula in both notations."""
        return render.formula(value, self.names)

    def size(self, letter: str) -> render.Math:
        """A size letter."""
        return self.math(Poly.atom(letter))

    def array(self, name: str) -> render.Math:
        """An array's name."""
        own = self._arrays[name].latex if name in self._arrays else ""
        return render.Math(name, own or identifier(name))

    @cached_property
    def _arrays(self) -> Mapping[str, Array]:
        """Every array that is named, those of the gradients included."""
        found = {**self.mixer.arrays, **self.mixer.forms[self.form].arrays}
        for phase in self.phases:
            try:
                system = system_of(self.mixer, self.form, self.convention.rewrites, phase)
            except (Unanswered, Unsupported):
                continue
            written = {equation.name: equation.array for equation in system.equations}
            found = {**system.mixer.arrays, **written, **found}
        return found

    def cite(self, name: str) -> str:
        """The number of the equation that an array has in its source; "" where it has none."""
        return self._arrays[name].cite


def lower(text: str) -> str:
    """Words within a sentence."""
    return text[:1].lower() + text[1:]
