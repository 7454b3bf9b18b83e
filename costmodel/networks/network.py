"""What does a whole network cost? It answers the questions about mixers, from its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from costmodel.errors import ModelError, Unanswered
from costmodel.networks.answers import NetworkAnswers, PartAnswers, answers_of
from costmodel.networks.assembly import LAST, Assembly, beyond_table
from costmodel.networks.blocks import Description, Use
from costmodel.networks.choices import Choices
from costmodel.networks.from_choices import description
from costmodel.networks.part_costs import Counting, counting, part_answers, part_sizes
from costmodel.networks.training import recomputed_layers
from costmodel.program.chosen_sizes import fit
from costmodel.program.phases import TRAINING_STEP, phase_name
from costmodel.questions.count import counted
from costmodel.questions.counting.counts import Counts
from costmodel.questions.parameters import Parameters, parameters_of
from costmodel.questions.state import State, state_of
from costmodel.symbolic.at_sizes import held_to, refuse_other_head_width
from costmodel.symbolic.sizes import checked

A = TypeVar("A")


@dataclass(frozen=True, eq=False)
class Network(Assembly):
    """A network with its parameters, costs and state; an answer's `at` completes the given sizes by
    the network's own."""

    def answers(
        self, stage: str, convention: str | Counting = "strict", recompute: str = "none"
    ) -> NetworkAnswers:
        """The object that answers questions about the network in a stage: a phase (`training`,
        ...), or `prefill` or `decode` of generation.

        Args:
            convention: as for mixers, and `dropout=free` or `dropout=mul`.
            recompute: whose forward passes run again before their gradients: "none", all "layers",
                or those of blocks with these names, separated by commas.

        Raises:
            ModelError: `recompute` names no block of the network.
        """
        again = recomputed_layers(recompute, self.described.recomputable)
        return answers_of(self, stage, counting(convention), again)

    def parameters(self) -> Parameters:
        """The number of parameters of every part and in total, as formulas that `at` evaluates.

        >>> from costmodel.networks import model
        >>> model("gpt-2").parameters().at()
        124439808
        """
        return self.with_own_sizes(self.answers("training").of(parameters_of))

    def costs(
        self, phase: str = "training", convention: str | Counting = "strict"
    ) -> tuple[PartAnswers, ...]:
        """The answers about the costs of each part in a phase, in the order of a forward pass.

        Args:
            phase: `training` (a forward pass over l tokens, with the loss), `inference` (one new
                token at t), `backward` (the gradients of a forward pass, and the additions that
                join gradients of different parts), or `training-step` (forward and backward).
        """
        return self.answers(phase_name(phase), convention).parts

    def count(self, phase: str = "training", convention: str | Counting = "strict") -> Counts:
        """The number of operations of a phase by class (mul, add, ...), over all parts, as
        formulas. `training`, or `prefill`, is a forward pass with the loss; other phases are
        `inference`, `backward` and `training-step`. `generation` counts the pass of a prompt.

        Raises:
            Unanswered, Unsupported: a part does not have the phase; the reason is the part's
                own.
        """
        return self.with_own_sizes(self.answers(phase_name(phase), convention).of(counted))

    def state(self) -> State:
        """The elements held after t tokens, in all layers; Unanswered if a mixer has no one-token
        inference."""
        return self.with_own_sizes(self.answers("inference").of(state_of))

    def with_own_sizes(self, answer: A) -> A:
        """The same answer, whose `at` from now on takes the network's own values for sizes that are
        not given, and raises SizeError for sizes that do not fit a part."""
        return held_to(answer, self._fit_with_own)

    def fit(self, sizes: Mapping[str, int]) -> None:
        """Raise SizeError for sizes at which an extent of a part is no whole number; the message
        names the part and the extent."""
        for use in self.uses:
            fit(use.mixer, part_sizes(use, sizes))

    def _fit_with_own(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """A dict: letter -> value: the given sizes, and the network's own values of the others.
        SizeError if a part refuses them, as far as its sizes are known: a width that heads do not
        divide, for instance."""
        refuse_other_head_width(found := checked(sizes))
        found = self.own.with_given(found)
        refuse_layers(self.described, found.get("L"))
        for use in self.uses:
            fit(use.mixer, part_sizes(use, found, partly=True))
        return found

    def beyond(self, stage: str, sizes: Mapping[str, int], convention: Counting) -> dict[Use, str]:
        """Part -> the reason in words, where a part's weights (a table of positions; in inference
        a mixer's parameters too) end before the last position that a stage reads."""
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


@dataclass(frozen=True)
class Generation:
    """What each part costs in the prompt's pass (`prefill`) and in all later steps (`decode`)."""

    network: Network
    counting: Counting

    def answers(self, stage: str) -> NetworkAnswers:
        """The answers in one of the two stages."""
        return self.network.answers(stage, self.counting)

    @property
    def prefill(self) -> tuple[PartAnswers, ...]:
        """The parts in the prompt's pass."""
        return self.answers("prefill").parts

    @property
    def decode(self) -> tuple[PartAnswers, ...]:
        """The parts in all steps; counts are Missing where there is no closed form."""
        return self.answers("decode").parts

    def decode_at(self, sizes: Mapping[str, int]) -> tuple[PartAnswers, ...]:
        """The parts in all steps at integer sizes, p and q among them, also where the sum has no
        closed form."""
        return self.answers("decode").at_numbers(sizes).parts

    @property
    def prompt(self) -> Counts:
        """The operations of the prompt's pass; Unanswered where a part has none."""
        return self.network.with_own_sizes(self.answers("prefill").of(counted))

    @property
    def new(self) -> Counts:
        """The operations of all steps; Unanswered where a part has none."""
        return self.network.with_own_sizes(self.answers("decode").of(counted))


def generation(network: Network, convention: str | Counting = "strict") -> Generation:
    """The costs of generating q tokens after a prompt of p tokens, part by part, in the sizes p and
    q.

    Dropout and loss are left out; an encoder reads its e tokens with the prompt.

    Raises:
        Unanswered: the network has no head over the vocabulary.
    """
    if network.described.head != "vocabulary":
        raise Unanswered(f"{network.name} has no head over the vocabulary: it generates no tokens")
    return Generation(network, counting(convention))


def network(given: Choices | Description, **sizes: int) -> Network:
    """Make the network of these choices, or of this description by blocks.

    Args:
        sizes: sizes that take the place of the network's own.

    Raises:
        ModelError: its layers differ, and their number L is open; more layers than share what the
            first has, or fewer than sets of parameters; UnknownMixer: no such mixer.
    """
    chosen = description(given) if isinstance(given, Choices) else given
    chosen = chosen.with_sizes(**checked(sizes)) if sizes else chosen
    layers = chosen.sizes.get("L") if chosen.patterned else None
    if chosen.patterned and not isinstance(layers, int):
        raise ModelError(
            f"{chosen.name} has layers of {', '.join(chosen.mixers)} in turn, and needs one number "
            f"of layers: give one, such as --L 12, or '{chosen.name.partition('{')[0]}{{L=12}}' "
            "where a command has no --L"
        )
    numbers = chosen.sizes.get("L")
    for number in numbers if isinstance(numbers, tuple) else (numbers,):
        refuse_layers(chosen, number)
    found = Network(chosen, layers if isinstance(layers, int) else None)
    _ = found.uses
    return found


def refuse_layers(described: Description, number: int | None) -> None:
    """Raise ModelError if a stack has fewer layers than sets of parameters (`Stack.sets`) or, where
    layers share parameters (T5) or another layer's keys, more layers than blocks. The number of
    layers is the stack's `depth` if fixed, else L, `number`; None (L is open) passes."""
    for stack in described.stacks:
        parts = (s.part for block in stack.blocks for s in block.sublayers)
        sharing = stack.first.union(*(part.shared for part in parts))
        layers = stack.depth or number
        if layers is None:
            continue
        if sharing and layers > len(stack.blocks):
            raise ModelError(
                f"{described.name}: L must be at most {len(stack.blocks)}, the number of layers in "
                f"the configuration, which share {', '.join(sorted(sharing))}: got {layers}"
            )
        if stack.sets is not None and layers < stack.sets:
            raise ModelError(
                f"{described.name}: L must be at least {stack.sets}, the number of sets of "
                f"parameters that the layers share: got {layers}"
            )
