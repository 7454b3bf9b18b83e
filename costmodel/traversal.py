"""How is an expression gone through part by part, and how are its parts replaced?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from costmodel.expressions import (
    Composite,
    Fft,
    Flat,
    Gather,
    Node,
    Position,
    Reduce,
    Ref,
    Select,
)
from costmodel.indices import Index, outer_first
from costmodel.polynomial import Poly


def names_in(positions: Sequence[Position]) -> list[str]:
    """Index atoms of the left side, in order of appearance."""
    found: dict[str, None] = {}
    for position in positions:
        if isinstance(position, Gather):
            found.update(dict.fromkeys(names_in(position.at.positions)))
            continue
        parts = (position.outer, position.inner) if isinstance(position, Flat) else (position,)
        for part in parts:
            found.update(dict.fromkeys(sorted(a for a in part.letters if a.startswith("@"))))
    return list(found)


Walked = tuple[tuple[Node, tuple[Index, ...]], ...]


def walk(expression: Node) -> Walked:
    """Every node with the reduction indices around it."""
    known: dict[str, Walked] = expression.__dict__
    if "walked" not in known:
        known["walked"] = tuple(_walked(expression, ()))
    return known["walked"]


def _walked(expression: Node, over: tuple[Index, ...]) -> Iterator[tuple[Node, tuple[Index, ...]]]:
    yield expression, over
    inner = over
    if isinstance(expression, (Reduce, Fft, Select)):
        inner = over + tuple(outer_first(expression.over))
    elif isinstance(expression, Composite):
        inner = over + tuple(i for i in expression.over if i not in over)
    for child in expression.children:
        yield from _walked(child, inner)


def rebuilt(
    expression: Node, entry: Callable[[Ref], Node], index: Callable[[Index], Index]
) -> Node:
    """The same expression with every reference and every index of a reduction replaced."""
    if isinstance(expression, Ref):
        return entry(expression)
    changed: dict[str, Any] = {}
    for part in fields(expression):
        value = getattr(expression, part.name)
        if isinstance(value, Node):
            changed[part.name] = rebuilt(value, entry, index)
        elif part.name == "over":
            changed[part.name] = tuple(map(index, value))
    return replace(expression, **changed) if changed else expression


def moved(position: Position, values: Mapping[str, Poly]) -> Position:
    """A position with indices replaced."""
    if isinstance(position, Gather):
        where = tuple(moved(p, values) for p in position.at.positions)
        return Gather(Ref(position.at.array, where))
    if isinstance(position, Flat):
        parts = (position.outer, position.inner, position.extent)
        return Flat(*(part.substitute(values) for part in parts))
    return position.substitute(values)
