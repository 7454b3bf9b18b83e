"""Which equations need each other, and along which axis do they run, row by row?

Equations that need each other form one loop. Within a loop every reference reads the row before
(`S[i-1]`) or the same row of what is written earlier; the axis that the rows lie on is derived from
the references, never declared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

from costmodel.domains import Unsupported, infeasible
from costmodel.equations import Equation, System
from costmodel.expressions import Array, EquationError, Flat, Gather, Position, Ref, walk
from costmodel.polynomial import Poly


@dataclass(frozen=True, eq=False)
class Block:
    """Equations that are computed together: a loop over rows, or one array by itself."""

    equations: tuple[Equation, ...]
    axes: Mapping[Array, int]
    """The axis of each array on which the rows lie; empty where nothing needs itself."""

    @property
    def is_loop(self) -> bool:
        """Whether rows are computed one after another."""
        return bool(self.axes)

    def row(self, equation: Equation) -> Poly:
        """The row that an equation of the loop defines, in its free indices."""
        return _row(self.axes, equation)

    def lag(self, equation: Equation, ref: Ref) -> int | None:
        """How many rows back a reference reads (0 or 1); None if it reads outside the loop."""
        if ref.array not in self.axes:
            return None
        back = self.row(equation) - _plain(ref.positions[self.axes[ref.array]])
        lag = back.constant()
        assert isinstance(lag, int)
        return lag


@cache
def blocks(system: System) -> tuple[Block, ...]:
    """The blocks of a system, in the order of computation, which is that of the file.

    Raises:
        EquationError: an array is read before it is complete, or defined at gathered positions.
        Unsupported: a loop that reads another row than the one before, or equations that read each
            other in a way that no order of rows can satisfy.
    """
    found = tuple(_block(system, arrays) for arrays in _components(system))
    _check_order(system, found)
    return found


def references(equation: Equation) -> Iterator[Ref]:
    """Every reference on an equation's right side."""
    return (entry for entry, _ in walk(equation.value) if isinstance(entry, Ref))


def _components(system: System) -> list[list[Array]]:
    """Arrays that need each other, in the order in which the file starts to define them."""
    needs: dict[Array, set[Array]] = {
        array: {r.array for e in equations for r in references(e) if r.array in system.defining}
        for array, equations in system.defining.items()
    }
    while True:
        wider = {a: found.union(*(needs[x] for x in found)) for a, found in needs.items()}
        if wider == needs:
            break
        needs = wider
    parts: list[list[Array]] = []
    for array in system.defining:
        for part in parts:
            if part[0] in needs[array] and array in needs[part[0]]:
                part.append(array)
                break
        else:
            parts.append([array])
    return parts


def _block(system: System, arrays: Sequence[Array]) -> Block:
    equations = tuple(e for e in system.equations if e.array in arrays)
    inside = [(e, r) for e in equations for r in references(e) if r.array in arrays]
    return Block(equations, _axes(arrays, inside, equations) if inside else {})


def _axes(
    arrays: Sequence[Array], inside: Sequence[tuple[Equation, Ref]], equations: Sequence[Equation]
) -> Mapping[Array, int]:
    """The axes under which every reference reads the same row or the one before."""
    choices = [[(a, axis) for axis in range(len(a.shape))] for a in arrays]
    for chosen in product(*choices):
        axes = dict(chosen)
        plain = all(not isinstance(e.positions[axes[e.array]], (Flat, Gather)) for e in equations)
        if not plain or any(_lag(axes, e, ref) not in (0, 1) for e, ref in inside):
            continue
        if _possible(axes, inside, equations):
            return axes
    names = ", ".join(a.name for a in arrays)
    raise Unsupported(
        f"{names} {'needs itself' if len(arrays) == 1 else 'need each other'}: a recurrence reads "
        f"the row before, at index i-1 of one axis, or the same row of what is written earlier"
    )


def _lag(axes: Mapping[Array, int], equation: Equation, ref: Ref) -> object:
    here, there = equation.positions[axes[equation.array]], ref.positions[axes[ref.array]]
    if isinstance(here, (Flat, Gather)) or isinstance(there, (Flat, Gather)):
        return None
    return (here - there).constant()


def _possible(
    axes: Mapping[Array, int],
    inside: Sequence[tuple[Equation, Ref]],
    equations: Sequence[Equation],
) -> bool:
    """Whether what is read in the same row is written by earlier equations."""
    order = {equation: k for k, equation in enumerate(equations)}
    for reader, ref in inside:
        if _lag(axes, reader, ref) == 1:
            continue
        for other in equations:
            late = other.array is ref.array and order[other] >= order[reader]
            if late and _share_a_row(axes, reader, other):
                return False
    return True


def _share_a_row(axes: Mapping[Array, int], one: Equation, two: Equation) -> bool:
    """Whether two equations of a loop may define entries of the same row."""
    renamed = {index.atom: Poly.atom(index.atom + "'") for index in two.indices}
    apart = _row(axes, one) - _row(axes, two).substitute(renamed)
    other = frozenset(c.substitute(renamed) for c in two.domain)
    return not infeasible(one.domain | other | {apart, -apart})


def _row(axes: Mapping[Array, int], equation: Equation) -> Poly:
    return _plain(equation.positions[axes[equation.array]])


def _plain(position: Position) -> Poly:
    assert not isinstance(position, (Flat, Gather))
    return position


def _check_order(system: System, found: Sequence[Block]) -> None:
    """Outside loops, what an equation reads is complete before it in the file."""
    block_of = {e: block for block in found for e in block.equations}
    order = {e: k for k, e in enumerate(system.equations)}
    last = {array: order[es[-1]] for array, es in system.defining.items()}
    given = ("input", "context", "parameter", "buffer")
    for equation in system.equations:
        for position in equation.positions:
            if isinstance(position, Gather):
                raise EquationError(
                    f"{equation.name} is defined at positions that {position.at.array.name} holds; "
                    f"define it at indices and gather where it is read"
                )
        for ref in references(equation):
            if ref.array.role in given or ref.array in block_of[equation].axes:
                continue
            if last.get(ref.array, len(order)) > order[equation]:
                raise EquationError(
                    f"{equation.name} reads {ref.array.name} before it is complete; write "
                    f"equations in the order of computation"
                )
