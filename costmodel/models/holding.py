"""What does a training step of a network hold, line by line?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from costmodel.answers import Missing
from costmodel.constraints import Unsupported
from costmodel.exact import Exact
from costmodel.models.choices import ModelError
from costmodel.models.memory import most
from costmodel.models.network import Counting, Network
from costmodel.models.training import RECOMPUTE, Kept, gradient_elements, graph_of, kept
from costmodel.phases import Unanswered
from costmodel.polynomial import Poly
from costmodel.rules.peak import OPTIMISERS
from costmodel.rules.traffic import element_bytes

BATCH = Poly.atom("b")


@dataclass(frozen=True)
class Holding:
    """How a training step holds what it holds.

    Args:
        optimiser: one of `OPTIMISERS`.
        dtype: the type of every element; None for elements alone.
        recompute: one of `RECOMPUTE`.

    Raises:
        ModelError: an unknown name.
    """

    optimiser: str = "adamw"
    dtype: str | None = None
    recompute: str = "none"

    def __post_init__(self) -> None:
        for name, known in (("optimiser", OPTIMISERS), ("recompute", RECOMPUTE)):
            if (value := getattr(self, name)) not in known:
                raise ModelError(f"--{name} '{value}': expected one of {', '.join(known)}")
        try:
            _ = self.bytes_each
        except ValueError as reason:
            raise ModelError(f"--dtype: {reason}") from None

    @property
    def bytes_each(self) -> int | None:
        """The size of an element in bytes, where a type is given."""
        return None if self.dtype is None else element_bytes(self.dtype)


@dataclass(frozen=True)
class Held:
    """A line: what is held, how many elements, and what a reader has to know of it."""

    name: str
    elements: Exact | int | Missing
    says: tuple[str, ...] = ()

    def at(self, sizes: Mapping[str, int], *, settled: bool) -> Held:
        """The same with some sizes replaced; a number where all are."""
        if not isinstance(self.elements, Exact):
            return self
        if settled:
            return replace(self, elements=self.elements.at(sizes))
        values = {letter: Poly.of(value) for letter, value in sizes.items()}
        return replace(self, elements=self.elements.substitute(values))

    def times(self, size: int) -> Exact | int | Missing:
        """The bytes at a size of an element."""
        return self.elements if isinstance(self.elements, Missing) else self.elements * size


@dataclass(frozen=True)
class Holdings:
    """What a training step of a network holds; `sizes` are None where some are letters."""

    network: Network
    counting: Counting
    holding: Holding
    sizes: Mapping[str, int] | None

    def _attempt(self, question: Callable[[], Exact]) -> Exact | Missing:
        try:
            return question()
        except (Unanswered, Unsupported) as reason:
            return Missing(str(reason))

    @cached_property
    def _all_kept(self) -> Kept | Missing:
        try:
            return kept(graph_of(self.network, self.counting), self.holding.recompute)
        except (Unanswered, Unsupported) as reason:
            return Missing(str(reason))

    @property
    def kept(self) -> Exact | Missing:
        """Activations kept, of b sequences."""
        found = self._all_kept
        return found if isinstance(found, Missing) else found.each * BATCH + found.alone

    def kept_by(self, name: str) -> Exact | Missing:
        """Those that a part keeps."""
        found = self._all_kept
        if isinstance(found, Missing):
            return found
        each, once = found.of(name)
        return each * BATCH + once

    @cached_property
    def parameters(self) -> Exact:
        """The trainable numbers."""
        return self.network.parameters().exact

    @cached_property
    def gradients(self) -> Exact | Missing:
        """The entries of their gradients."""
        graph = graph_of(self.network, self.counting)
        return self._attempt(lambda: Exact.of(gradient_elements(graph)))

    @property
    def optimiser(self) -> Exact:
        """What the optimiser keeps besides."""
        return self.parameters * OPTIMISERS[self.holding.optimiser]

    @property
    def apart(self) -> Exact | Missing:
        """Parameters, gradients and the optimiser's state."""
        grads = self.gradients
        return grads if isinstance(grads, Missing) else self.parameters + grads + self.optimiser

    def _peak(self) -> tuple[Exact | Missing, str]:
        """The largest live set, and which part runs then."""
        if self.sizes is None:
            return Missing("live sets are compared at numbers: give all sizes"), ""
        try:
            found = most(graph_of(self.network, self.counting), self.sizes, self.holding.recompute)
        except (Unanswered, Unsupported) as reason:
            return Missing(str(reason)), ""
        return Exact.of(Poly.of(found.elements)), found.when

    def lines(self) -> tuple[Held, ...]:
        """What is held apart, what is kept, and the largest live set, each with their sum."""
        most_held, when = self._peak()
        says = (
            f"largest live set: during the {when}, the parts' equations one after another; the "
            f"network's input, arrays between parts and their gradients are among it"
        )
        return (
            Held("parameters", self.parameters),
            Held("their gradients", self.gradients),
            Held(f"state of the optimiser ({self.holding.optimiser})", self.optimiser),
            Held("activations", self.kept),
            Held("these together", _sum(self.apart, self.kept)),
            Held("largest live set", most_held, (says,) if when else ()),
            Held("with parameters, gradients and optimiser", _sum(self.apart, most_held)),
        )


def _sum(one: Exact | Missing, two: Exact | Missing) -> Exact | Missing:
    if isinstance(one, Missing):
        return one
    return two if isinstance(two, Missing) else one + two
