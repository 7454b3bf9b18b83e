"""Which arrays does an equation need, and which need themselves or a sequence's input?"""

from __future__ import annotations

from collections.abc import Iterator

from costmodel.equations import System
from costmodel.expressions import Array, Node, Ref


def of_a_sequence(system: System) -> set[Array]:
    """The arrays that each sequence has its own of: zeros around them are its own, too."""
    found = {a for a in system.mixer.arrays.values() if a.role in ("input", "context")}
    for _ in system.equations:
        for equation in system.equations:
            if not found.isdisjoint(_arrays(equation.value)):
                found.add(equation.array)
    return found


def in_loops(system: System) -> list[int]:
    """The equations whose array needs itself, directly or through others."""
    needs: dict[Array, set[Array]] = {}
    for equation in system.equations:
        needs.setdefault(equation.array, set()).update(_arrays(equation.value))

    def reached(array: Array) -> set[Array]:
        found: set[Array] = set()
        fresh = needs[array]
        while fresh:
            found |= fresh
            fresh = set().union(*(needs.get(a, set()) for a in fresh)) - found
        return found

    return [k for k, e in enumerate(system.equations) if e.array in reached(e.array)]


def _arrays(expression: Node) -> Iterator[Array]:
    if isinstance(expression, Ref):
        yield expression.array
    for child in expression.children:
        yield from _arrays(child)
