"""What do the parts of a whole network give together for a quantity that a claim names?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from costmodel.claims.interpretations import Reading
from costmodel.claims.quantities import QUANTITIES, Answer, weighed
from costmodel.errors import Unanswered
from costmodel.program.phases import phase_name
from costmodel.questions.question import Missing
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Poly

if TYPE_CHECKING:
    from costmodel.networks.network import Network


def _parameters(network: Network, reading: Reading) -> Exact:
    return Exact.of(network.parameters().poly)


def _without_tables(network: Network, reading: Reading) -> Exact:
    return Exact.of(network.parameters().without_tables.poly)


def _state(network: Network, reading: Reading) -> Exact:
    return network.state() * Poly.atom("b")


def _activations(network: Network, reading: Reading) -> Exact:
    from costmodel.networks.memory_budget import Holding, Holdings
    from costmodel.networks.part_costs import counting

    found = Holdings(network, counting(reading.convention), Holding(), None).kept
    if isinstance(found, Missing):
        raise Unanswered(found.reason)
    return found


def _memory(network: Network, reading: Reading) -> Exact:
    """Bytes at 4 an element: parameters, their gradients, two numbers of AdamW for each, and what
    is kept for the backward pass."""
    from costmodel.networks.memory_budget import Holding, Holdings
    from costmodel.networks.part_costs import counting

    held = Holdings(network, counting(reading.convention), Holding("adamw", "fp32"), None)
    apart, size = held.apart, held.holding.bytes_each
    if isinstance(apart, Missing):
        raise Unanswered(apart.reason)
    assert size is not None
    return (apart + _activations(network, reading)) * size


def _operations(name: str) -> Callable[[Network, Reading], Exact]:
    def derive(network: Network, reading: Reading) -> Exact:
        phase = phase_name(reading.phase or "training")
        counts = network.count(phase, ",".join(reading.convention))
        return weighed(counts, name, replace(reading, phase=phase)).exact

    return derive


OF_NETWORKS: Mapping[str, Callable[[Network, Reading], Exact]] = {
    **{name: _operations(name) for name, asked in QUANTITIES.items() if asked.operations},
    "parameters": _parameters,
    "parameters_without_tables": _without_tables,
    "state": _state,
    "activations": _activations,
    "memory": _memory,
}
"""Quantity -> the rule for networks; tables are those of embeddings."""


@cache
def derive_network(
    model: str,
    mixer: str,
    quantity: str,
    reading: Reading,
    given: frozenset[tuple[str, int]] = frozenset(),
    left_open: frozenset[str] = frozenset(),
) -> Answer:
    """A quantity of a network that comes with the project, for b sequences.

    Args:
        mixer: the mixer of every layer in place of the network's own, or empty.
        given: sizes in place of the network's own.
        left_open: sizes that stay letters; the others take their values.

    Raises:
        ValueError: an unknown network, mixer, quantity or size.
        Unanswered: the network has no such phase.
    """
    from costmodel.networks import model as network_of

    if quantity not in OF_NETWORKS:
        known = ", ".join(OF_NETWORKS)
        raise ValueError(f"unknown quantity '{quantity}' of a network: expected one of {known}")
    changed = {"mixers": (mixer,)} if mixer else {}
    network = network_of(model, sizes=dict(given), **changed)
    own = {letter: v for letter, v in network.sizes.items() if letter not in left_open}
    return Answer(OF_NETWORKS[quantity](network, reading)).substitute(own)
