"""What is the largest live set of a training step of a network at given sizes?

The step is a series of events, the forward and backward passes of runs of parts; while an event
takes place, certain arrays between parts (wires), their gradients and kept activations are live:
held because a later event reads them. `recompute` says which layers run forward again: "none",
"layers" (all), or names of blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from costmodel.networks.assembly import LAYERS
from costmodel.networks.blocks import Use
from costmodel.networks.part_costs import part_sizes
from costmodel.networks.schedule import PartRun, Wire, given_arrays, repetition, schedule
from costmodel.networks.training import Graph, activations_of
from costmodel.questions.peak import held_arrays, steps_of
from costmodel.symbolic.piecewise import Exact

STEP = "training-step"


@dataclass(frozen=True)
class LiveSet:
    """A live set: its elements, and in words the event during which they are live."""

    elements: int
    when: str


@dataclass(frozen=True)
class _OwnLiveSets:
    """The elements live inside of one part, without the arrays between parts."""

    forward: tuple[int, ...]
    """While each equation of the part's forward pass is computed."""
    backward: tuple[int, ...]
    """While each equation of the part's gradients is computed, gradients of its inputs included."""
    between: int
    """From the end of the part's forward pass to the start of its gradients."""


@dataclass(frozen=True)
class _Event:
    """The `forward` or `backward` pass of one run of a part. A forward pass that `keeps` no
    activations is followed by a second one, which keeps them, before the backward pass."""

    kind: str
    run: int
    keeps: bool = True


def largest_live_set(graph: Graph, sizes: Mapping[str, int], recompute: str = "none") -> LiveSet:
    """The most elements that are live (held in memory) at one time in a training step, and when, at
    integer sizes of the network (b is 1 if not given). Of many layers a few are simulated: layers
    repeat with a period, and each further period adds the same.

    Raises:
        Unsupported: a part whose gradients are not derived.
        SizeError: a size without a value.
    """
    return _largest(graph, tuple(sorted(sizes.items())), recompute)


@cache
def _largest(graph: Graph, chosen: tuple[tuple[str, int], ...], recompute: str) -> LiveSet:
    """The largest live set of a training step at the sizes `chosen`, pairs (letter, value), with
    the layers that `recompute` names run again. If layers repeat, the events of two networks of few
    layers are simulated (`again`), and a live set grows with the layers left out."""
    sizes = dict(chosen)
    layers = graph.network.layers or LAYERS.at(sizes)
    again = repetition(graph.network, layers)
    if again is None:
        return max(_Simulation(graph, sizes, recompute, layers).during(), key=_elements)
    few = _Simulation(graph, sizes, recompute, again.few).during()
    more = _Simulation(graph, sizes, recompute, again.more).during(again.between)
    # along the layers left out, live sets grow by equal steps, so that the largest is at an end
    grown = (
        replace(one, elements=one.elements + again.times * (two.elements - one.elements))
        for one, two in zip(few, more, strict=True)
    )
    return max(grown, key=_elements)


def _elements(found: LiveSet) -> int:
    return found.elements


class _Simulation:
    """The live set of a training step, from event to event, at a number of layers.

    `live` holds the elements of each wire, of each wire's gradient, and, under the number of a run,
    of what the run's part keeps for its gradients.
    """

    def __init__(self, graph: Graph, sizes: Mapping[str, int], recompute: str, layers: int) -> None:
        """List the runs of parts of a network of `layers` layers and the events of a step (forward
        and backward passes of runs), and begin before the first event, with nothing live. Parts
        without gradients (not in `flows`) have no backward event; `fixed`: the sections of stacks
        with a depth of their own; `unwanted`: part -> its arrays that get no gradients."""
        self.graph, self.sizes = graph, sizes
        self.batch = sizes.get("b", 1)
        self.runs = schedule(graph.network, layers)
        self.unwanted = given_arrays(graph.network)
        stacks = graph.network.described.stacks
        self.fixed = {stack.section for stack in stacks if stack.depth is not None}
        flows = {run.use for run in self.runs if graph.gradients(run.use).system.backward}
        self.events = tuple(
            event
            for event in _events(self.runs, recompute)
            if event.kind == "forward" or self.runs[event.run].use in flows
        )
        self.inside = {use: self._own_live_sets(use) for use in {run.use for run in self.runs}}
        # a wire, the `_Gradient` of a wire, or a run's number (what it keeps) -> live elements
        self.live: dict[object, int] = {}
        self.needed = self._needed()

    def during(self, without: range = range(0)) -> Iterator[LiveSet]:
        """Yield the live set (elements held in memory) of each event of the simulated step, in
        order. Events of the layers numbered in `without` take place too, but their live sets are
        not yielded, so that simulations of two numbers of layers are compared event by event; a
        stack with a depth of its own has the same layers in both simulations, and all are yielded.
        """
        for k, event in enumerate(self.events):
            run = self.runs[event.run]
            held = self._during(event, run)
            if run.layer is None or run.layer[0] in self.fixed or run.layer[2] not in without:
                words = "forward pass of" if event.kind == "forward" else "gradients of"
                yield LiveSet(held, f"{words} {run.use.name}")
            self._after(k, event, run)

    def _during(self, event: _Event, run: PartRun) -> int:
        """Change `live` (array or run -> elements held) for an event, and return the most elements
        live while it takes place. A forward pass adds the run's inputs and output; a backward pass
        adds the output's gradient and drops what the part kept, which `inside.backward` counts."""
        inside = self.inside[run.use]
        if event.kind == "forward":
            for wire in _parents(run):
                self.live.setdefault(wire, self._size(wire))
            self.live[run.writes] = self._size(run.writes)
            return self._total() + max(inside.forward, default=0)
        self.live.setdefault(_Gradient(run.writes), self._size(run.writes))
        self.live.pop(event.run, None)
        return self._total() + max(inside.backward, default=inside.between)

    def _after(self, k: int, event: _Event, run: PartRun) -> None:
        """Change `live` after event number k: after a forward pass add what the part keeps, after a
        backward pass put the gradients of the inputs in place of the output's gradient; then drop
        the arrays between parts that no later event reads."""
        if event.kind == "forward":
            if event.keeps:  # else the pass is run again before the gradients
                self.live[event.run] = self.inside[run.use].between
        else:
            self.live.pop(_Gradient(run.writes))
            for name, wires in run.reads.items():
                for wire in _through(wires):  # the whole arrays of which a pooler reads a row
                    if not wire.source and name not in self.unwanted[run.use]:
                        self.live[_Gradient(wire)] = self._size(wire)
        for wire in {*_parents(run), run.writes} & self.live.keys():
            if not wire.source and not self._later(k, wire):
                del self.live[wire]

    def _later(self, k: int, wire: Wire) -> bool:
        """Whether an event after number k reads a wire before another event writes it anew."""
        following = next(((at, makes) for at, makes in self.needed[wire] if at > k), None)
        return following is not None and not following[1]

    def _needed(self) -> dict[Wire, list[tuple[int, bool]]]:
        """A dict: array between parts (a wire) -> the events that touch it in order, as (number of
        the event, whether the event writes the wire: True, or reads it: False). A backward pass
        reads the inputs and the output of its part that the part's gradients need."""
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

    def _own_live_sets(self, use: Use) -> _OwnLiveSets:
        """The numbers of elements live inside of a part at each equation of its forward and
        backward pass, and between the two passes: the sum of its arrays whose live range holds the
        equation, without inputs and output, which `live` has as arrays between parts, and without
        the gradients of `handed`: their entries are added at once to the gradient rows of the
        chosen experts, so that no such array is ever held whole."""
        own, sizes = self.graph.gradients(use), part_sizes(use, self.sizes)
        system = own.system
        steps = steps_of(system, STEP)
        first = sum(step[0] not in system.backward for step in steps)
        apart = {
            a for a in system.mixer.arrays.values() if a.role in ("input", "context", "output")
        }
        apart |= own.handed
        held = [h for h in held_arrays(system, STEP, steps) if h.array not in apart]
        numbers = [h.number.at(sizes) * (1 if h.once else self.batch) for h in held]

        lives = [(h.first, h.last, number) for h, number in zip(held, numbers, strict=True)]
        at = [sum(n for start, end, n in lives if start <= k <= end) for k in range(len(steps))]
        between = sum(number for start, end, number in lives if start < first <= end)
        return _OwnLiveSets(tuple(at[:first]), tuple(at[first:]), between)


@dataclass(frozen=True)
class _Gradient:
    """The gradient of a wire."""

    of: Wire


def _through(wires: Sequence[Wire]) -> Iterator[Wire]:
    """Yield the wires (arrays between parts); a wire that is the first row of other wires, as a
    pooler reads, is replaced by the other wires, whose arrays are held."""
    for wire in wires:
        yield from wire.first or (wire,)


def _parents(run: PartRun) -> list[Wire]:
    """The arrays between parts that a run reads."""
    return [w for wires in run.reads.values() for w in _through(wires)]


def _events(runs: Sequence[PartRun], recompute: str) -> Iterator[_Event]:
    """Yield the events of a training step: the forward pass of each run in order, then the backward
    passes in reverse order. The forward passes of a recomputed layer take place a second time,
    directly before the layer's first backward pass."""
    for k, run in enumerate(runs):
        yield _Event("forward", k, keeps=not run.again(recompute))
    done: set[object] = set()  # the layers whose second forward passes have taken place
    for k in reversed(range(len(runs))):
        layer = runs[k].layer
        if runs[k].again(recompute) and layer not in done:
            done.add(layer)
            for j, run in enumerate(runs):
                if run.layer == layer:
                    yield _Event("forward", j)  # this time the activations are kept
        yield _Event("backward", k)
