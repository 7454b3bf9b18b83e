"""How much memory does a training step of a network need, line by line?

The lines are parameters, their gradients, the optimiser's state, the activations kept for the
gradients, and the largest live set of a step at given sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from costmodel.errors import ModelError, Unanswered, Unsupported
from costmodel.networks.live_set import largest_live_set
from costmodel.networks.network import Network
from costmodel.networks.part_costs import Counting
from costmodel.networks.training import RECOMPUTE, gradient_elements, graph_of
from costmodel.questions.activations import Activations, kept
from costmodel.questions.peak import OPTIMISERS
from costmodel.questions.question import Missing, element_bytes
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Poly

BATCH = Poly.atom("b")


@dataclass(frozen=True)
class MemoryOptions:
    """The options of a training step that change its memory.

    Args:
        optimiser: one of `OPTIMISERS`.
        dtype: the type of every element; None: elements are counted, and no bytes.
        recompute: one of `RECOMPUTE`.

    Raises:
        ModelError: an unknown name.
    """

    optimiser: str = "adamw"
    dtype: str | None = None
    recompute: str = "none"

    def __post_init__(self) -> None:
        """Raise ModelError for an unknown optimiser, recomputation or element type."""
        for name, known in (("optimiser", OPTIMISERS), ("recompute", RECOMPUTE)):
            if (value := getattr(self, name)) not in known:
                raise ModelError(f"--{name} '{value}': expected one of {', '.join(known)}")
        try:
            _ = self.bytes_each
        except ValueError as reason:
            raise ModelError(f"--dtype: {reason}") from None

    @property
    def bytes_each(self) -> int | None:
        """The size of an element in bytes; None without a type."""
        return None if self.dtype is None else element_bytes(self.dtype)


@dataclass(frozen=True)
class MemoryLine:
    """One line of the budget: its name, its elements, and notes for a reader."""

    name: str
    elements: Exact | int | Missing
    says: tuple[str, ...] = ()

    def at(self, sizes: Mapping[str, int], *, settled: bool) -> MemoryLine:
        """The line with `sizes` put in: a number of elements if `settled`, that is, if these are
        all sizes; else a formula. A line without an answer stays as it is."""
        if not isinstance(self.elements, Exact):
            return self
        if settled:
            return replace(self, elements=self.elements.at(sizes))
        values = {letter: Poly.of(value) for letter, value in sizes.items()}
        return replace(self, elements=self.elements.substitute(values))

    def times(self, size: int) -> Exact | int | Missing:
        """The line in bytes, an element having `size` bytes."""
        return self.elements if isinstance(self.elements, Missing) else self.elements * size


@dataclass(frozen=True)
class MemoryBudget:
    """The memory of a training step of a network; `sizes` is None where some are not numbers."""

    network: Network
    counting: Counting
    memory_options: MemoryOptions
    sizes: Mapping[str, int] | None

    def _attempt(self, question: Callable[[], Exact]) -> Exact | Missing:
        try:
            return question()
        except (Unanswered, Unsupported) as reason:
            return Missing(str(reason))

    @property
    def kept(self) -> Exact | Missing:
        """The activations kept for the gradients, of b sequences."""
        about = self.network.answers("backward", self.counting, self.memory_options.recompute)
        found: Activations | Missing = about.attempt(kept)
        return found if isinstance(found, Missing) else found.each * BATCH + found.alone

    @cached_property
    def parameters(self) -> Exact:
        """The number of parameters."""
        return self.network.parameters().exact

    @cached_property
    def gradients(self) -> Exact | Missing:
        """The entries of the parameters' gradients."""
        graph = graph_of(self.network, self.counting)
        return self._attempt(lambda: Exact.of(gradient_elements(graph)))

    @property
    def optimiser(self) -> Exact:
        """The elements of the optimiser's state."""
        return self.parameters * OPTIMISERS[self.memory_options.optimiser]

    @property
    def without_activations(self) -> Exact | Missing:
        """Parameters, their gradients and the optimiser's state together."""
        grads = self.gradients
        return grads if isinstance(grads, Missing) else self.parameters + grads + self.optimiser

    def _peak(self) -> tuple[Exact | Missing, str]:
        """The elements of the largest live set, and in words the event at which it is reached; a
        reason and "" if sizes are open or gradients are not derived."""
        if self.sizes is None:
            return Missing("live sets are compared at numbers: give all sizes"), ""
        try:
            found = largest_live_set(
                graph_of(self.network, self.counting), self.sizes, self.memory_options.recompute
            )
        except (Unanswered, Unsupported) as reason:
            return Missing(str(reason)), ""
        return Exact.of(Poly.of(found.elements)), found.when

    def lines(self) -> tuple[MemoryLine, ...]:
        """Parameters, gradients, optimiser's state and activations with their sum, then the largest
        live set, alone and with parameters, gradients and optimiser's state."""
        most_held, when = self._peak()
        says = (
            f"largest live set: during the {when}, with the parts' equations run one after "
            f"another; the network's input, arrays between parts and their gradients are included"
        )
        return (
            MemoryLine("parameters", self.parameters),
            MemoryLine("their gradients", self.gradients),
            MemoryLine(f"state of the optimiser ({self.memory_options.optimiser})", self.optimiser),
            MemoryLine("activations", self.kept),
            MemoryLine("these together", _sum_or_missing(self.without_activations, self.kept)),
            MemoryLine("largest live set", most_held, (says,) if when else ()),
            MemoryLine(
                "with parameters, gradients and optimiser",
                _sum_or_missing(self.without_activations, most_held),
            ),
        )


def _sum_or_missing(one: Exact | Missing, two: Exact | Missing) -> Exact | Missing:
    if isinstance(one, Missing):
        return one
    return two if isinstance(two, Missing) else one + two
