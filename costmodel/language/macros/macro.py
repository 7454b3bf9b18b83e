"""The expansion of a composite (softmax, a norm), a whole right-hand side, into several equations.

The first ones define intermediate arrays, named after the array of the composite's equation, the
last one this array."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from costmodel.errors import EquationError, described
from costmodel.language.equations import Equation
from costmodel.language.indices import Index, outer_first
from costmodel.language.nodes import (
    Array,
    Composite,
    Flat,
    Gather,
    Node,
    Position,
    Ref,
    derived,
    names_in,
)
from costmodel.symbolic.polynomial import Poly, atom_name, is_index

Place = tuple[Position, Poly]
"""(position, extent of its axis)"""

Writer = Callable[[Equation, Composite, Sequence[str]], list[Equation]]
"""Expands the composite of an equation to several equations, under the given rewrites."""


@dataclass(frozen=True)
class Macro:
    """A composite that is a whole right-hand side: its expansion, the names of the rewrites that
    change the expansion (`write` is given no other rewrites), and its LaTeX name, "" for a
    composite with a printing rule of its own."""

    write: Writer
    rewrites: tuple[str, ...] = ()
    latex: str = ""


def under_any(write: Callable[[Equation, Composite], list[Equation]]) -> Writer:
    """A `Writer` that ignores the rewrites."""
    return lambda equation, composite, rewrites: write(equation, composite)


def part_of(
    equation: Equation, step: str, shape: tuple[Poly, ...], *, cancels: bool = False
) -> Array:
    """A new array for a step of the composite in an equation; `cancels` as in `Array`."""
    assert isinstance(equation.value, Composite)
    return derived(equation.array, equation.value.name, step, shape=shape, cancels=cancels)


class Parts:
    """The equations to which a composite is expanded, in the order of computation.

    Args:
        equation: the equation with the composite.
        inner: indices of steps that do not occur on the left side of the equation.
    """

    def __init__(self, equation: Equation, *inner: Index) -> None:
        self.equation = equation
        self.written: list[Equation] = []
        self._indices = {index.atom: index for index in (*equation.indices, *inner)}

    def places(self, *without: Index) -> list[Place]:
        """The (position, extent) of each axis, such as (i, l), of the array that the macro's
        equation defines, except the axes of the indices `without`."""
        whole = self.equation
        places = list(zip(whole.positions, whole.array.shape, strict=True))
        for index in without:
            places = [kept for place in places for kept in _spared(whole, place, index)]
        return places

    def array(self, suffix: str, places: Sequence[Place], *, cancels: bool = False) -> Ref:
        """An entry of a new array with these axes, named `A.exp` for suffix `exp` and array A;
        `cancels` as in `Array`."""
        shape = tuple(extent for _, extent in places)
        array = part_of(self.equation, suffix, shape, cancels=cancels)
        return Ref(array, tuple(position for position, _ in places))

    def add(self, entry: Ref, value: Node) -> None:
        """Add the equation entry = value; its indices are those in the positions of the entry."""
        found = [self._indices[atom] for atom in names_in(entry.positions)]
        indices = tuple(outer_first(found))
        whole = self.equation.whole
        place = self.equation.place
        self.written.append(Equation(entry.array, entry.positions, value, indices, whole, place))

    def define(self, suffix: str, value: Node, *without: Index, cancels: bool = False) -> Ref:
        """Add the equation of a step of the macro: a new array named with `suffix`, with the axes
        of the array that the macro's equation defines; returns the new array's entry.

        Args:
            without: indices that get no axis, because they are reduced over.
            cancels: the result is the same for any entries, which get no gradient.
        """
        found = self.array(suffix, self.places(*without), cancels=cancels)
        self.add(found, value)
        return found

    def finish(self, value: Node) -> list[Equation]:
        """The equations of the steps, and last the equation itself with this value."""
        return [*self.written, replace(self.equation, value=value)]


def _spared(equation: Equation, place: Place, index: Index) -> list[Place]:
    """The axes that remain of an axis of the left side without an index: [the axis] if its position
    does not name the index; [] if the index is the whole position; of a flattening (j-1)*h + c, the
    axis of the other index. EquationError for any other position that names the index."""
    position, extent = place
    if index.atom not in names_in([position]):
        return [place]
    if position == index.as_poly():
        return []
    if isinstance(position, Flat) and position.inner == index.as_poly():
        return [(position.outer, extent / position.extent)]
    if isinstance(position, Flat) and position.outer == index.as_poly():
        return [(position.inner, position.extent)]
    raise EquationError(
        f"{equation.name}: the right side runs over {index.name}: put {index.name} on the left "
        f"side alone, or as in (j - 1)*h + {index.name}, got '{position}'"
    )


def checked_entry(name: str, body: Node, index: Index) -> Ref:
    """The operand `body` of a composite (`name`, such as softmax) unchanged, after the check that
    it is an array entry with this index.

    Raises:
        EquationError: the operand is an expression, or lacks the index.
    """
    if not isinstance(body, Ref):
        raise EquationError(
            f"{name} takes an entry of an array, got {described(body)}: define the operand as an "
            "array first"
        )
    if index.atom not in names_in(body.positions):
        raise EquationError(
            f"{name} runs over {index.name}, which is no index of its operand {body.array.name}: "
            f"the indices of {body.array.name} are {_listed(body)}"
        )
    return body


def checked_axis_entry(name: str, body: Node, index: Index) -> Ref:
    """The operand `body` of a composite (`name`) unchanged, after the check that it is an array
    entry with an axis whose position is this index alone.

    Raises:
        EquationError: the operand is an expression, or lacks such an axis.
    """
    ref = checked_entry(name, body, index)
    if index.as_poly() not in ref.positions:
        raise EquationError(
            f"{name} runs over {index.name}: expected {index.name} alone as a position of "
            f"{ref.array.name}, got {ref.array.name}[{', '.join(map(str, ref.positions))}]"
        )
    return ref


def _listed(ref: Ref) -> str:
    """The indices of an array entry, for messages."""
    names = [atom_name(atom) for atom in names_in(ref.positions)]
    return ", ".join(names) or "none"


def checked_row_index(equation: Equation, composite: Composite, index: Index) -> Index:
    """The index unchanged, after the check that an index which a composite runs over, such as the
    channels of a norm, is an index of the left side.

    Raises:
        EquationError: the left side lacks the index.
    """
    if index not in equation.indices:
        raise EquationError(
            f"{equation.name}: {composite.name} runs over {index.name}: put {index.name} on the "
            "left side too"
        )
    return index


def length_of(name: str, index: Index) -> Poly:
    """The number of values of an index, a polynomial in sizes; `name` is the macro, for the
    message.

    Raises:
        EquationError: the number names an index, or the index has several ranges or bounds.
    """
    if len(index.pieces) == 1 and len(index.lower) == len(index.upper) == 1:
        length = index.upper[0] - index.lower[0] + 1
        if not any(is_index(atom) for atom in length.letters):
            return length
    raise EquationError(
        f"{name} runs over {index.name}, whose length is no size of the mixer: give {index.name} "
        "one range between sizes"
    )


def moved(ref: Ref, index: Index, place: Position) -> Ref:
    """The array entry with the position `place` wherever its position is the index, also inside
    gathers: x[i, j] with i - 1 for i gives x[i - 1, j]."""

    def at(position: Position) -> Position:
        if isinstance(position, Gather):
            return replace(position, at=moved(position.at, index, place))
        return place if position == index.as_poly() else position

    return Ref(ref.array, tuple(map(at, ref.positions)))
