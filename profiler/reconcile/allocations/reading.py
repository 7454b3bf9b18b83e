"""Which entries does an operation read, and how many?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from costmodel.errors import Unsupported
from costmodel.language.equations import Equation
from costmodel.language.indices import Index
from costmodel.language.nodes import Add, Array, Flat, Mul, Node, Reduce, Ref, walk
from costmodel.program.recurrences import references
from costmodel.symbolic.polynomial import Poly
from profiler.reconcile.allocations.rows import Operation

WEIGHTS = ("parameter", "buffer")
"""Roles of what has no batch and is there before a call."""

Part = tuple[Array | tuple[int, ...], ...]
"""An array, of a parameter with the positions that do not vary."""


def part_of(ref: Node) -> Part:
    """What tells an entry's array, or its slice of a parameter, from others; of numbers nothing."""
    if not isinstance(ref, Ref):
        return ()
    if ref.array.role not in WEIGHTS:
        return (ref.array,)
    places = (p.constant() for p in ref.positions if isinstance(p, Poly))
    return ref.array, tuple(int(place) for place in places if place is not None)


def operands(operation: Operation) -> list[list[Node]]:
    """What an operation reads, one entry of each equation for every operand.

    Raises:
        Unsupported: equations of several kinds.
    """
    own = {e.array for e in operation}
    if any(ref.array in own for e in operation for ref in references(e)):  # one kernel
        return [[ref] for ref in references(operation[0])]
    if len({(type(e.value), getattr(e.value, "function", None)) for e in operation}) > 1:
        raise Unsupported(f"{operation[0].name}, which several kinds of operations compute")
    read = [_read_by(e.value) for e in operation]
    if len({len(nodes) for nodes in read}) > 1:
        raise Unsupported(f"{operation[0].name}, which reads other operands in other rows")
    return [list(nodes) for nodes in zip(*read, strict=True)]


def _read_by(value: Node) -> tuple[Node, ...]:
    """What an expression of one operation reads."""
    if isinstance(value, Add) and multiplies(value.left):
        return (*_read_by(value.left), value.right)
    if isinstance(value, Reduce):
        value = value.body
    return (value,) if isinstance(value, Ref) else value.children


def multiplies(value: Node) -> bool:
    """Whether an operation is a product of matrices."""
    if isinstance(value, Add):
        return multiplies(value.left)
    return isinstance(value, Reduce) and value.kind == "sum" and isinstance(value.body, Mul)


def letters_of(node: Node) -> set[str]:
    """The indices that an entry is read at."""
    found: set[str] = set()
    for place in node.positions if isinstance(node, Ref) else ():
        for poly in (place.outer, place.inner) if isinstance(place, Flat) else (place,):
            found |= poly.letters if isinstance(poly, Poly) else set()
    return found


def number_of(indices: Sequence[Index], sizes: Mapping[str, int]) -> int:
    """How many values some indices have together, of which one may bound another."""
    waiting = {a for i in indices for end in i.ends for a in end.variables} - sizes.keys()
    outer = [i for i in indices if i.atom in waiting]
    if not outer:
        return prod(_length(i, sizes) for i in indices)
    first = next(i for i in outer if not any(end.variables - sizes.keys() for end in i.ends))
    rest = [i for i in indices if i is not first]
    low, high = _range(first, sizes)
    return sum(number_of(rest, {**sizes, first.atom: k}) for k in range(low, high + 1))


def _length(index: Index, sizes: Mapping[str, int]) -> int:
    low, high = _range(index, sizes)
    return max(0, high - low + 1)


def _range(index: Index, sizes: Mapping[str, int]) -> tuple[int, int]:
    """The ends of an index.

    Raises:
        Unsupported: it runs over a union of ranges.
    """
    if not index.lower:
        raise Unsupported(f"operations over {index.name}, which runs over several ranges")
    return (
        max(end.at(sizes) for end in index.lower),
        min(end.at(sizes) for end in index.upper),
    )


def ends_of(indices: Sequence[Index], sizes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """The least and the largest value of each index, where those that bound it have theirs."""
    found: dict[str, tuple[int, int]] = {}
    waiting = list(indices)
    while waiting:
        known = {**sizes, **{atom: high for atom, (_, high) in found.items()}}
        ready = [i for i in waiting if not any(e.variables - known.keys() for e in i.ends)]
        found |= {i.atom: _range(i, known) for i in ready}
        waiting = [i for i in waiting if i not in ready]
    return found


def _indices(equation: Equation) -> list[Index]:
    """The indices of an equation, those that it sums over among them."""
    return list(
        dict.fromkeys((*equation.indices, *(i for _, over in walk(equation.value) for i in over)))
    )


def varies(ref: Ref, equation: Equation, row: Poly) -> bool:
    """Whether other rows read other entries of an array."""
    letters = letters_of(ref)
    ends = [end for i in _indices(equation) if i.atom in letters for end in i.ends]
    return not row.variables.isdisjoint(letters.union(*(end.variables for end in ends)))


def entries_of(ref: Ref, equation: Equation, sizes: Mapping[str, int]) -> int:
    """How many entries an equation reads of an array in one place."""
    letters = letters_of(ref)
    ends = ends_of([i for i in _indices(equation) if i.atom not in sizes], sizes)
    return prod(max(0, high - low + 1) for atom, (low, high) in ends.items() if atom in letters)
