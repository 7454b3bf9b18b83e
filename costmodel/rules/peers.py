"""What would another tool count for these equations?

A peer counts multiply-adds of contractions over dense axes. The multiply-adds of an equation are
the products inside its reductions, counted with every causal bound widened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from costmodel.conventions import PEERS
from costmodel.domains import Exact
from costmodel.equations import Mixer, Mul, Node, Reduce, System
from costmodel.rules.count import Counts, Points
from costmodel.tokens import instances, system_of


def products(system: System, phase: str) -> Mapping[str, Exact]:
    """Real products inside reductions, per equation as the file writes it."""
    found: dict[str, Exact] = {}
    for part in instances(system, phase):
        points = Points(part.equation, part.variables, part.constraints, "mac")
        for number in _inside(part.equation.value, points, False):
            name = part.equation.part_of
            found[name] = found.get(name, Exact()) + number
    return found


def _inside(node: Node, points: Points, reduced: bool) -> Iterator[Exact]:
    if reduced and isinstance(node, Mul):
        yield points.number()
    inner = points.inside(node.over) if isinstance(node, Reduce) else points
    for child in node.children:
        yield from _inside(child, inner, reduced or isinstance(node, Reduce))


def peer_count(mixer: Mixer, phase: str, form: str | None, peer: str) -> Counts:
    """The operations that a peer counts when every contraction runs dense.

    Multiplications, and as many additions where the peer counts a multiply-add as two; a peer
    counts nothing else, which is not a zero: tables show a dash.
    """
    system = system_of(mixer, form, ("dense",), phase)
    macs = Exact()
    for number in products(system, phase).values():
        macs = macs + number
    classes = {"mul": macs, "add": macs} if PEERS[peer].additions else {"mul": macs}
    return Counts(classes, Counts({}))
