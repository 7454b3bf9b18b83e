"""What does a whole network cost, as the sum over its parts by the rules for mixers?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from costmodel.errors import ModelError, Unanswered
from costmodel.networks import training
from costmodel.networks.assembly import LAST, Assembly, beyond_table
from costmodel.networks.blocks import Description, Use
from costmodel.networks.choices import Choices
from costmodel.networks.from_choices import description
from costmodel.networks.part_costs import (
    Counting,
    NetworkCounts,
    NetworkParameters,
    NetworkState,
    PartCost,
    cost,
    counting,
    has_row,
    own_parameters,
    part_answers,
    part_sizes,
    summed,
)
from costmodel.program.chosen_sizes import fit
from costmodel.program.phases import TRAINING_STEP, phase_name
from costmodel.questions.question import Missing
from costmodel.symbolic.at_sizes import head_width, held_to
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Poly
from costmodel.symbolic.sizes import checked


@dataclass(frozen=True, eq=False)
class Network(Assembly):
    """A network with its parameters, costs and state."""

    def parameters(self) -> NetworkParameters:
        """The number of parameters of every part and in total.

        >>> from costmodel.networks import model
        >>> model("gpt-2").parameters().at()
        124439808
        """
        found: dict[str, Poly] = {}
        for use in self.uses:
            found[use.name] = found.get(use.name, Poly()) + own_parameters(use)
        tables = frozenset(use.name for use in self.uses if use.table)
        return held_to(NetworkParameters(found, tables, self.own), self._fit_with_own)

    def costs(
        self, phase: str = "training", convention: str | Counting = "strict"
    ) -> list[PartCost]:
        """What each part costs in a phase, in the order of a forward pass.

        Args:
            phase: `training` (a forward pass over l tokens, with the loss), `inference` (one new
                token at t), `backward` (the gradients of a forward pass, and the additions that
                join gradients of different parts), or `training-step` (forward and backward).
            convention: as for mixers, and `dropout=free` or `dropout=mul`.
        """
        counted, phase = counting(convention), phase_name(phase)
        if phase in TRAINING_STEP:
            return training.costs(self, phase, counted)
        stage = "inference" if phase == "inference" else "training"
        return [cost(use, phase, counted) for use in self.uses if has_row(use, stage, counted)]

    def count(
        self, phase: str = "training", convention: str | Counting = "strict"
    ) -> NetworkCounts:
        """The operations of a phase in total, over all parts; phase and convention as for the
        costs of the parts: `training` is a forward pass.

        Raises:
            Unanswered: a part does not have the phase; the reason is the part's own.
        """
        return held_to(summed(self.costs(phase, convention), self.own), self._fit_with_own)

    def state(self) -> NetworkState:
        """The elements held after t tokens, in all layers; Unanswered if a mixer has no one-token
        inference."""
        result = Exact()
        for part in self.costs("inference"):
            if isinstance(part.state, Missing):
                raise Unanswered(f"{part.use.name}: {part.state.reason}")
            result = result + part.state
        return held_to(NetworkState(result, self.own), self._fit_with_own)

    def fit(self, sizes: Mapping[str, int]) -> None:
        """Raise SizeError for sizes at which an extent of a part is no whole number; the message
        names the part and the extent."""
        for use in self.uses:
            fit(use.mixer, part_sizes(use, sizes))

    def _fit_with_own(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """The given sizes, after checking that they and the network's own values of the others fit
        every part, as far as they are known; SizeError if they do not."""
        head_width(found := checked(sizes))
        for use in self.uses:
            fit(use.mixer, part_sizes(use, self.own.with_given(found), partly=True))
        return found

    def beyond(self, stage: str, sizes: Mapping[str, int], convention: Counting) -> dict[Use, str]:
        """Part -> the reason why its weights end before the last position that a stage of a phase
        reads at these sizes; only for parts of which this is so."""
        token = stage not in ("training", *TRAINING_STEP)
        found: dict[Use, str] = {}
        for use in self.uses:
            reason = beyond_table(use, stage, sizes)
            if use.rows is None and token and "inference" in use.when:
                answers = part_answers(use, "inference", convention)
                own = part_sizes(use, sizes) | {"t": LAST[stage].at(sizes)}
                reason = None if answers.unanswered else answers.beyond(own)
            if reason:
                found[use] = reason
        return found


def network(given: Choices | Description, **sizes: int) -> Network:
    """The network that choices, or a description by blocks, stand for.

    Args:
        sizes: sizes that take the place of the network's own.

    Raises:
        ModelError: its layers differ, and their number L is open; UnknownMixer: no such mixer.
    """
    chosen = description(given) if isinstance(given, Choices) else given
    chosen = chosen.with_sizes(**checked(sizes)) if sizes else chosen
    layers = chosen.sizes.get("L") if chosen.patterned else None
    if chosen.patterned and not isinstance(layers, int):
        raise ModelError(
            f"{chosen.name}: its layers differ ({', '.join(chosen.mixers)} in turn), so their "
            f"number must be one number: give --L"
        )
    found = Network(chosen, layers if isinstance(layers, int) else None)
    _ = found.uses
    return found
