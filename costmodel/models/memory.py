"""How much does a network hold at once in a training step, at most, part by part in order?

The schedule: the parts of the forward pass in order, then their gradients in reverse order, each
part's equations one after another. An array between parts is held from the part that writes it to
the last one that reads it; its gradient from the first part that hands one to it to the part that
wrote it. Parameters, their gradients and the state of an optimiser stand apart; dropout is left
out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from costmodel.exact import Exact
from costmodel.models.assembly import Use
from costmodel.models.network import part_sizes
from costmodel.models.schedule import Run, Wire, schedule
from costmodel.models.training import Graph, activations_of
from costmodel.rules.peak import held_arrays, steps_of

STEP = "training-step"


@dataclass(frozen=True)
class Most:
    """The largest live set, in elements, and the part that runs while it is held."""

    elements: int
    when: str


@dataclass(frozen=True)
class _Inside:
    """What a part holds of its own, step by step, besides the arrays between parts."""

    forward: tuple[int, ...]
    """At each equation of its forward pass."""
    backward: tuple[int, ...]
    """At each equation of its gradients; the gradients that it hands on are among them."""
    between: int
    """After its forward pass, until its gradients."""


@dataclass(frozen=True)
class _Event:
    """A part's forward pass or its gradients; a forward pass that keeps nothing is run again."""

    kind: str
    run: int
    keeps: bool = True


def most(graph: Graph, sizes: Mapping[str, int], recompute: str = "none") -> Most:
    """The largest live set of a training step at integer sizes of the network, b among them.

    Raises:
        Unsupported: a part whose gradients are not derived.
        SizeError: a size without a value.
    """
    return _Simulation(graph, sizes, recompute).most()


class _Simulation:
    """The live set, event by event."""

    def __init__(self, graph: Graph, sizes: Mapping[str, int], recompute: str) -> None:
        self.graph, self.sizes = graph, sizes
        self.batch = sizes.get("b", 1)
        self.runs = schedule(graph.network, graph.network.layers or sizes["L"])
        self.events = tuple(_events(self.runs, recompute))
        self.inside = {use: self._inside(use) for use in {run.use for run in self.runs}}
        self.live: dict[object, int] = {}
        self.needed = self._needed()

    def most(self) -> Most:
        """The largest live set."""
        found = Most(0, "")
        for k, event in enumerate(self.events):
            run = self.runs[event.run]
            held = self._during(event, run)
            if held > found.elements:
                words = "forward pass of" if event.kind == "forward" else "gradients of"
                found = Most(held, f"{words} {run.use.name}")
            self._after(k, event, run)
        return found

    def _during(self, event: _Event, run: Run) -> int:
        inside = self.inside[run.use]
        if event.kind == "forward":
            for wire in _parents(run):
                self.live.setdefault(wire, self._size(wire))
            self.live[run.writes] = self._size(run.writes)
            return self._total() + max(inside.forward, default=0)
        self.live.setdefault(_Gradient(run.writes), self._size(run.writes))
        self.live.pop(event.run, None)
        return self._total() + max(inside.backward, default=inside.between)

    def _after(self, k: int, event: _Event, run: Run) -> None:
        if event.kind == "forward":
            if event.keeps:
                self.live[event.run] = self.inside[run.use].between
        else:
            self.live.pop(_Gradient(run.writes))
            for wire in _parents(run):
                if not wire.source:
                    self.live[_Gradient(wire)] = self._size(wire)
        for wire in [w for w in self.live if isinstance(w, Wire)]:
            if not wire.source and not self._later(k, wire):
                del self.live[wire]

    def _later(self, k: int, wire: Wire) -> bool:
        """Whether an event after this one reads a wire as it is now."""
        following = next(((at, makes) for at, makes in self.needed[wire] if at > k), None)
        return following is not None and not following[1]

    def _needed(self) -> dict[Wire, list[tuple[int, bool]]]:
        """The events that touch each wire, and whether they write it anew."""
        found: dict[Wire, list[tuple[int, bool]]] = {}
        for k, event in enumerate(self.events):
            run = self.runs[event.run]
            touched: list[tuple[Wire, bool]] = []
            if event.kind == "forward":
                touched = [(w, False) for w in _parents(run)] + [(run.writes, True)]
            else:
                arrays = activations_of(self.graph, run.use).arrays
                for name, wires in run.reads.items():
                    if not arrays.get(name, Exact()).is_zero:
                        touched += [(w, False) for w in _through(wires)]
                if not arrays.get(run.use.mixer.role("output").name, Exact()).is_zero:
                    touched.append((run.writes, False))
            for wire, makes in touched:
                found.setdefault(wire, []).append((k, makes))
        return found

    def _total(self) -> int:
        return sum(self.live.values())

    def _size(self, wire: Wire) -> int:
        return wire.entries.at(self.sizes) * self.batch

    def _inside(self, use: Use) -> _Inside:
        own, sizes = self.graph.gradients(use), part_sizes(use, self.sizes)
        system = own.system
        steps = steps_of(system, STEP)
        first = sum(step[0] not in system.backward for step in steps)
        apart = {
            a for a in system.mixer.arrays.values() if a.role in ("input", "context", "output")
        }
        held = [h for h in held_arrays(system, STEP, steps) if h.array not in apart]
        numbers = [h.number.at(sizes) * (1 if h.once else self.batch) for h in held]

        lives = [(h.first, h.last, number) for h, number in zip(held, numbers, strict=True)]
        at = [sum(n for start, end, n in lives if start <= k <= end) for k in range(len(steps))]
        between = sum(number for start, end, number in lives if start < first <= end)
        return _Inside(tuple(at[:first]), tuple(at[first:]), between)


@dataclass(frozen=True)
class _Gradient:
    """The gradient of a wire."""

    of: Wire


def _through(wires: Sequence[Wire]) -> Iterator[Wire]:
    """Wires, and those whose first row they are in place of it."""
    for wire in wires:
        yield from wire.first or (wire,)


def _parents(run: Run) -> list[Wire]:
    return [w for wires in run.reads.values() for w in _through(wires)]


def _events(runs: Sequence[Run], recompute: str) -> Iterator[_Event]:
    """Forward passes in order, then gradients in reverse, a layer's forward pass before them if it
    is run again."""
    again = recompute == "layers"
    for k, run in enumerate(runs):
        yield _Event("forward", k, keeps=not (again and run.layer is not None))
    done: set[object] = set()
    for k in reversed(range(len(runs))):
        layer = runs[k].layer
        if again and layer is not None and layer not in done:
            done.add(layer)
            for j, run in enumerate(runs):
                if run.layer == layer:
                    yield _Event("forward", j)
        yield _Event("backward", k)
