"""Do the gradients of a network's parts, joined by its schedule, equal those of the same network in
torch?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from costmodel.networks import network
from costmodel.networks.choices import Choices
from costmodel.networks.network import Network
from costmodel.networks.part_costs import counting, part_sizes
from costmodel.networks.schedule import PartRun, Wire, schedule
from costmodel.networks.training import Graph, graph_of
from costmodel.oracle.execute import run
from profiler.networks.layers import Layer, Stack
from profiler.networks.twin import Twin, twin

SIZES = {"L": 2, "l": 4, "e": 3, "d": 6, "n": 3, "f": 4, "u": 7, "z": 3}

KINDS = {
    "pre, tied": Choices(tied=True, activation="gelu-tanh", head_bias=True),
    "one-hot, probabilities": Choices(
        embedding="one-hot", scale="all", norm="none", biases=False, output="probabilities"
    ),
    "one-hot, tied": Choices(embedding="one-hot", tied=True, mixers=("she", "me")),
    "classifier": Choices(
        kind="encoder", mixers=("simple",), head="classes", towers=2, segments=2,
        embedding_norm=True, activation="gelu",
    ),
    "encoder-decoder": Choices(
        kind="encoder-decoder", norm="post", positions="sinusoidal", scale="tokens", tied=True,
        shared_vocabulary=True, smoothing=True,
    ),
}  # fmt: skip

Values = dict[str, Any]


def in_order(net: Twin) -> list[Any]:
    """The twin's modules in the order of `schedule`'s runs, the stack once for each tower."""

    def of(stack: Stack) -> list[Any]:
        layers = [layer for layer in stack.layers if isinstance(layer, Layer)]
        inner = [
            module
            for layer in layers
            for place in layer.places
            for module in (place.before, place.part, place.out, place.residual, place.after)
        ]
        return [*stack.entry, *inner, *stack.end]

    found = [] if net.encoder is None else of(net.encoder)
    found += [*net.towers * of(net.stack), *net.ending]
    return [one for one in found if one is not None and not isinstance(one, torch.nn.Dropout)]


def weights_of(module: Any) -> Values:
    """A module's parameters and tables, by the names in its equations."""
    return dict(module.named_parameters()) | dict(module.named_buffers())


class Executed:
    """A network run part by part, entry by entry, and its gradients."""

    def __init__(self, graph: Graph, sizes: dict[str, int], net: Twin, given: Values) -> None:
        self.graph, self.sizes, self.net, self.given = graph, sizes, net, given
        self.runs = schedule(graph.network, sizes["L"])
        modules = in_order(net)
        after = self.runs[len(modules) :]
        assert [one.use.label for one in after] == ["loss"], "every other part is a module"
        loss: list[Values] = [{}] * len(after)
        self.weights = [*map(weights_of, modules), *loss]
        self.values: dict[Wire, Any] = {}
        self.gradients: dict[Wire, Any] = {}
        self.of: dict[int, Any] = {}
        """The address of a twin's parameter -> its gradient."""

    def arrays(self, number: int, gradient: Any) -> Values:
        """What a part's equations are given."""
        one = self.runs[number]
        system, sizes = self.graph.gradients(one.use).system, part_sizes(one.use, self.sizes)
        found: Values = {}
        for name, array in system.mixer.arrays.items():
            shape = tuple(extent.at(sizes) for extent in array.shape)
            if name in one.reads:
                found[name] = np.stack([self._value(w, one, shape) for w in one.reads[name]], 1)
                if len(one.reads[name]) == 1:
                    found[name] = found[name][:, 0]
            elif name == "I":
                found[name] = np.eye(shape[0])
            elif name == f"{system.mixer.role('output').name}.grad":
                found[name] = gradient
            elif array.role == "context":
                found[name] = np.zeros(shape)  # a table's rows, whose values no gradient reads
            elif array.role != "output":
                found[name] = self.weights[number][name].detach().numpy()
        return found

    def _value(self, wire: Wire, one: PartRun, shape: tuple[int, ...]) -> Any:
        if wire.name in ("target", "which"):
            return self.given[wire.name]
        if wire.source:
            which = "source" if one.use.section == "encoder" else "tokens"
            tower = sum(r.use is one.use for r in self.runs[: self.runs.index(one)])
            tokens = np.atleast_2d(self.given[which])[tower]
            hot = len(shape) == 2
            return np.eye(shape[1])[tokens - 1] if hot else tokens
        if wire.first:
            return np.concatenate([self.values[w][:1] for w in wire.first], 1)
        return self.values[wire]

    def forward(self) -> float:
        """The loss."""
        from costmodel import evaluate

        for number, one in enumerate(self.runs):
            sizes = part_sizes(one.use, self.sizes)
            arrays = self.arrays(number, None)
            form = one.use.form_under(())
            known = {k: v for k, v in arrays.items() if k in one.use.mixer.arrays}
            table = self.weights[number].get("E")
            if "E" in one.use.mixer.arrays and table is not None:
                known["E"] = table.detach().numpy()
            if one.use.label == "segments":
                known["S"] = self.weights[number]["S"].detach().numpy()
            self.values[one.writes] = evaluate(one.use.mixer, known, sizes, form)
        return float(self.values[self.runs[-1].writes][0])

    def backward(self) -> None:
        """The gradients of every wire and parameter."""
        self.gradients[self.runs[-1].writes] = np.ones(1)
        for number in reversed(range(len(self.runs))):
            one = self.runs[number]
            own = self.graph.gradients(one.use)
            sizes = part_sizes(one.use, self.sizes)
            done = run(
                own.system, sizes, arrays=self.arrays(number, self.gradients[one.writes]),
                ready=own.system.forward.equations,
            )  # fmt: skip
            found: Values = {}
            for (array, where), scalar in done.trace.memory.items():
                shape = tuple(extent.at(sizes) for extent in array.shape)
                values = found.setdefault(array.name, np.zeros(shape))
                values[tuple(p - 1 for p in where)] = scalar.value
            self._hand(one, number, found)

    def _hand(self, one: PartRun, number: int, found: Values) -> None:
        for name, wires in one.reads.items():
            for k, wire in enumerate(wires):
                slope = found.get(f"{name}.grad")
                if slope is not None:
                    self._add(wire, slope[:, k] if len(wires) > 1 else slope)
        for name, parameter in self.weights[number].items():
            table = found.get(f"{name}.rows.grad")
            slope = found.get(f"{name}.grad")
            if table is not None:
                slope = np.zeros(tuple(parameter.shape))
                which = self._value(one.reads["tokens"][0], one, (0,)) if name == "E" else None
                np.add.at(slope, (self.given["which"] if which is None else which) - 1, table)
            if slope is not None and isinstance(parameter, torch.nn.Parameter):
                self.of[id(parameter)] = self.of.get(id(parameter), 0) + slope

    def _add(self, wire: Wire, slope: Any) -> None:
        for k, first in enumerate(wire.first):
            rows = np.zeros(self.values[first].shape)
            width = rows.shape[1]
            rows[0] = slope[0, k * width : (k + 1) * width]
            self._add(first, rows)
        self.gradients[wire] = self.gradients.get(wire, 0) + slope


def numbers(shape: tuple[int, ...], below: int, seed: int) -> Any:
    return np.random.default_rng(seed).integers(1, below + 1, shape)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_autograd(kind: str) -> None:
    """Of every parameter, at the same weights, tokens and targets, in double precision."""
    chosen = replace(KINDS[kind], sizes={"L": SIZES["L"]})
    net: Network = network(chosen)
    made = twin(net, SIZES, dtype=torch.float64)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.full_like(parameter, 0.1))  # no bias is 0
    made.eval()
    c, towers = chosen, chosen.towers
    given: Values = {"tokens": numbers((towers, SIZES["l"]), SIZES["u"], 1)}
    classes = c.head == "classes"
    rows, below = (1, SIZES["z"]) if classes else (SIZES["l"], SIZES["u"])
    given["target"] = numbers((rows,), below, 2)
    given["which"] = np.ones(SIZES["l"], dtype=int)
    data: Values = {"tokens": torch.from_numpy(given["tokens"] - 1)}
    data["targets"] = torch.from_numpy(given["target"] - 1)
    if c.kind == "encoder-decoder":
        given["source"] = numbers((SIZES["e"],), SIZES["u"], 3)
        data["source"] = torch.from_numpy(given["source"] - 1)[None]
    if towers > 1:
        data["tokens"] = data["tokens"][None]
    if not classes:
        data["targets"] = data["targets"][None]
    loss = made.loss(**data)
    loss.backward()  # type: ignore[no-untyped-call]
    executed = Executed(graph_of(net, counting("strict")), dict(made.sizes), made, given)
    assert executed.forward() == pytest.approx(loss.item())
    executed.backward()
    checked = 0
    for name, parameter in made.named_parameters():
        slope = executed.of[id(parameter)]
        assert parameter.grad is not None
        expected = parameter.grad.numpy()
        assert np.abs(slope - expected).max() <= 1e-9 * max(1.0, np.abs(expected).max()), name
        checked += 1
    assert checked >= 8
