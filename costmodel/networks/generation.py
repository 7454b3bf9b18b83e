"""What does it cost to generate q tokens of text after a prompt of p tokens?

The prompt passes through the network at once, with the head at its last position alone, which gives
the first new token. Each further one takes a step that reads the token before it: q - 1 steps, at
positions p+1 .. p+q-1, each with the state held so far. The last new token is read by no step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from costmodel.errors import Unanswered, Unsupported
from costmodel.networks.assembly import LAST, OwnSizes
from costmodel.networks.network import Network
from costmodel.networks.part_costs import (
    Counting,
    NetworkCounts,
    PartCost,
    cost,
    counting,
    own_parameters,
    scaled,
    summed,
)
from costmodel.questions.counting.counts import Counts
from costmodel.questions.question import Missing
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polyhedral_sums import total
from costmodel.symbolic.polynomial import Poly, index_atom

PROMPT, STEPS = Poly.atom("p"), Poly.atom("q") - 1
LAST_READ = LAST["decode"]
STEP = index_atom("step")
"""The index of the steps: no size and no index of a mixer has this name."""

MOST_STEPS = 1_000_000
"""A sum without a closed form is refused beyond this number of steps."""


@dataclass(frozen=True)
class Generation:
    """What each part costs in the prompt's forward pass (`prefill`) and in one later step."""

    prefill: list[PartCost]
    steps: list[PartCost]
    """The costs of the step at position t; `decode` sums them over t = p+1 .. p+q-1."""
    own: OwnSizes

    @property
    def prompt(self) -> NetworkCounts:
        """The operations of the prompt's forward pass; Unanswered where a part has none."""
        return summed(self.prefill, self.own)

    @property
    def decode(self) -> list[PartCost]:
        """What each part costs in all steps; counts are Missing where there is no closed form."""
        return [_all_steps(part) for part in self.steps]

    @property
    def new(self) -> NetworkCounts:
        """The operations of all steps; Unanswered where a part has none."""
        return summed(self.decode, self.own)

    def decode_at(self, sizes: Mapping[str, int]) -> list[PartCost]:
        """`decode` at integer sizes, p and q among them, also where the sum has no closed form."""
        return [_all_steps_at(part, sizes) for part in self.steps]


def generation(network: Network, convention: str | Counting = "strict") -> Generation:
    """What generating q tokens after a prompt of p costs, part by part, in the sizes p and q.

    Dropout and loss are left out; an encoder reads its e tokens with the prompt.

    Raises:
        Unanswered: the network has no head over the vocabulary.
    """
    counted = replace(counting(convention), dropout="dropout=free")
    if network.described.head != "vocabulary":
        raise Unanswered(f"{network.name} has no head over the vocabulary: it generates no tokens")
    prefill = []
    for use in network.uses:
        runs_here = "prefill" in use.when and not use.regularises
        if not (runs_here or own_parameters(use).terms):
            continue
        if not runs_here:
            nothing = Counts({}, Counts({}), counted.convention.peer)
            prefill.append(PartCost(use, Poly(), own_parameters(use), nothing))
            continue
        part = cost(use, "inference" if use.last else "training", counted)
        prefill.append(_of_prompt(replace(part, state=Exact())))
    return Generation(prefill, network.costs("inference", counted), network.own)


def _of_prompt(part: PartCost) -> PartCost:
    if isinstance(part.counts, Missing):
        return part
    at_prompt = {"l": PROMPT, "t": PROMPT}
    return replace(part, counts=scaled(part.counts, at_prompt, Poly.of(1)))


def _all_steps(part: PartCost) -> PartCost:
    """The cost of a part over all steps of decoding, t = p+1 .. p+q-1, from its cost of one step;
    the state is that after the last step. Counts are Missing if the sum has no closed form."""
    state: Exact | Missing = part.state
    if isinstance(state, Exact):
        state = state.substitute({"t": LAST_READ})
    runs = part.runs * STEPS
    if isinstance(part.counts, Missing):
        return replace(part, runs=runs, state=state)
    try:
        classes = {name: over_steps(value) for name, value in part.counts.classes.items()}
    except Unsupported as reason:
        why = f"the sum over the steps has no closed form: {reason}; give numbers for all sizes"
        return replace(part, runs=runs, state=state, counts=Missing(why))
    counts = replace(part.counts, classes=classes)
    return replace(part, runs=runs, state=state, counts=counts)


def _all_steps_at(part: PartCost, sizes: Mapping[str, int]) -> PartCost:
    """The cost of a part over all steps of decoding; counts without a closed form are added up at
    integer sizes of the network."""
    found = _all_steps(part)
    if isinstance(part.counts, Missing) or isinstance(found.counts, Counts):
        return found
    numbers = {
        name: Exact.of(Poly.of(over_steps_at(value, sizes)))
        for name, value in part.counts.classes.items()
    }
    return replace(found, counts=replace(part.counts, classes=numbers))


def over_steps(step: Exact) -> Exact:
    """The sum of an answer in t over t = p+1 .. p+q-1, as a closed form; Unsupported if t stands
    inside a function, so that there is none."""
    at = Poly.atom(STEP)
    result = Exact()
    for guards, poly in step.pieces:
        around = {guard.substitute({"t": at}) for guard in guards}
        around |= {at - PROMPT - 1, LAST_READ - at}
        result = result + total((STEP,), frozenset(around), poly.substitute({"t": at}))
    return result


def over_steps_at(step: Exact, sizes: Mapping[str, int]) -> int:
    """The sum of an answer in t over t = p+1 .. p+q-1 at integer sizes, p and q among them; without
    a closed form it is added up step by step.

    Raises:
        Unsupported: no closed form, and more than a million steps.
    """
    try:
        return over_steps(step).at(sizes)
    except Unsupported:
        first, number = sizes["p"] + 1, sizes["q"] - 1
        if number > MOST_STEPS:
            raise Unsupported(f"{number} steps are too many to add up one by one") from None
        return sum(step.at({**sizes, "t": t}) for t in range(first, first + number))
