"""Which arrays hold nothing but entries of another one, and how many entries does an array have in
memory?

What is moved is no value of its own: while both are held, their entries count once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from costmodel.language.equations import Equation, System
from costmodel.language.nodes import Array, Bracket, Constant, Fft, Flat, Gather, Node, Ref
from costmodel.program.wellformed import axes_of, defined
from costmodel.symbolic.polyhedral_sums import union_size
from costmodel.symbolic.polynomial import Poly

ONE = Poly.of(1)
WEIGHTS = ("parameter", "buffer")


@dataclass(frozen=True, eq=False)
class Moves:
    """What a system only moves."""

    system: System

    @cached_property
    def sources(self) -> Mapping[Array, Array]:
        """An array that consists of another one's entries, and zeros -> that one, which does not.

        What is added up over a batch is none.
        """
        found: dict[Array, Array] = {}
        for array, equations in self.system.defining.items():
            values = [value for e in equations for value in _chosen(e.value)]
            read = {value.array for value in values if isinstance(value, Ref)}
            if len(read) == 1 and all(isinstance(value, Ref | Constant) for value in values):
                (source,) = read
                if array not in self.system.weights or self._of_weights(source):
                    found[array] = source
        for array in found:
            while found[array] in found:
                found[array] = found[found[array]]
        return found

    def _of_weights(self, array: Array) -> bool:
        return array in self.system.weights or array.role in WEIGHTS

    @cached_property
    def begun(self) -> Mapping[Array, Array]:
        """An array of which some rows are those of another one, as they are -> that one."""
        return {
            array: moved[0].array
            for array, equations in self.system.defining.items()
            if (moved := [e.value for e in equations if isinstance(e.value, Ref)])
            and len(moved) < len(equations)
        }

    def rows(self, array: Array, sizes: Mapping[str, int]) -> int:
        """How many entries of an array are those of what it begins with."""
        equations = (e for e in self.system.defining[array] if isinstance(e.value, Ref))
        regions = [where for e in equations if (where := defined(e)) is not None]
        return union_size(axes_of(array), regions, ONE).at(sizes)


def _chosen(value: Node) -> tuple[Node, ...]:
    """The expressions of which each entry is one."""
    if isinstance(value, Bracket) and value.otherwise is not None:
        return value.body, value.otherwise
    return (value,)


POINTS = {"irfft": 1, "rfft-adjoint-complex": 2}
"""A transform that writes all its points -> the numbers that each point has."""


def points(equation: Equation, sizes: Mapping[str, int]) -> int | None:
    """How many numbers a transform writes of which only some points are asked for; None of another
    equation."""
    value = equation.value
    if not isinstance(value, Fft) or value.kind not in POINTS:
        return None
    read = {a for p in value.body.positions if not isinstance(p, Flat | Gather) for a in p.letters}
    number = POINTS[value.kind] * value.length.at(sizes)
    for place, extent in zip(equation.positions, equation.array.shape, strict=True):
        if isinstance(place, Poly) and place.letters <= read:
            number *= extent.at(sizes)
    return number
