"""How long does a model take on a board to read prompts, and to decode a token? From its blocks.

A block is a kind of layer. Its parts (a mixer, a norm, an FFN) run once in each layer of this kind;
parts outside of layers, such as the map to the vocabulary, run once in a pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, fsum

import numpy as np

from costmodel.errors import Unanswered
from costmodel.networks.answers import PartAnswers
from costmodel.networks.blocks import ONE, Use
from costmodel.networks.held import Holding
from costmodel.networks.part_costs import part_sizes
from costmodel.prediction.boards import Board
from costmodel.prediction.calls import Counted
from costmodel.prediction.columns import limits
from costmodel.prediction.families import SMALL, family_of
from costmodel.prediction.kernels import Work
from costmodel.prediction.layers import Step, chooses_weights, predicted_steps, products
from costmodel.prediction.predict import fit_for, power
from costmodel.questions.question import Case
from costmodel.questions.traffic import of_part
from costmodel.symbolic.polynomial import Poly, sum_of

STAGES: Mapping[str, str] = {"prefill": "prefill", "decode": "inference"}
"""Stage of a prediction -> the stage in which a network's parts are asked."""
LATENCY = "latency"
"""What binds a call whose time is mostly none of its limits': launches, tails, idle units."""


@dataclass(frozen=True)
class Part:
    """A part of a block (`block` is "" for parts outside of layers) in one stage: the calls of one
    run, and the runs in all layers with the block. `floor`: the reason why the calls are floors;
    "" if they are predicted. `least`: the floor of one run in seconds; 0 if none is derived, if
    rows choose weights (`_least`), or if the calls are floors."""

    block: str
    name: str
    runs: int
    steps: Sequence[Step]
    floor: str
    least: float

    def run(self, name: str) -> float:
        """A figure of `Step` of one run; no time is below the floor."""
        found = fsum(getattr(step, name) for step in self.steps)
        return found if name.startswith("joules") else max(found, self.least)


def total(parts: Iterable[Part], name: str) -> float:
    """The sum over all runs of a figure of `Step` (joules: nan without a power limit)."""
    return fsum(part.runs * part.run(name) for part in parts)


def binds(parts: Iterable[Part]) -> str:
    """The name of what takes the most of the time of all parts: one of the limits, each call adding
    the time of its largest limit to this one, or `latency`, the time beside them. Time that a
    part's floor adds to its calls belongs to none."""
    found: dict[str, float] = {LATENCY: 0.0}
    for part in parts:
        for step in part.steps:
            name = max(step.limits, key=lambda limit: step.limits[limit])
            reached = min(step.limits[name], step.seconds)
            found[name] = found.get(name, 0.0) + part.runs * reached
            found[LATENCY] += part.runs * (step.seconds - reached)
    return max(found, key=lambda name: found[name])


@dataclass(frozen=True)
class Predicted:
    """A model on a board: `batch` sequences, each with a prompt of `context` tokens, or with one
    new token at position `context`.

    Args:
        held: the network with element types; `held.length` is `context`.
    """

    held: Holding
    on: Board
    context: int
    batch: int

    @cached_property
    def _sizes(self) -> Mapping[str, int]:
        """The values of the network's sizes; l, t and p are `context`, b is `batch`."""
        own = self.held.network.own.with_given({"l": self.context})
        context = dict.fromkeys("ltp", self.context)
        return {**self.held.sizes, **own, **context, "b": self.batch}

    def parts(self, stage: str) -> Sequence[Part]:
        """The parts of each block with the calls of one run and the number of runs, in the order of
        a pass; equal blocks once, equal parts of a block once. `stage`: "prefill" or "decode".

        Raises:
            Unanswered: the model does not decode token by token, or a part has no floor.
            BoardError: the board has no figure that is needed.
        """
        about = self.held.network.answers(STAGES[stage])
        asked = {part.use: part for part in about.parts if part.running}
        runs: dict[tuple[str, Use], list[Poly]] = {}  # in the order of first places
        for block, use, number in self._places():
            if use in asked:
                runs.setdefault((block, use), []).append(number)
        steps = {use: self._steps(part) for use, part in asked.items()}
        return [
            Part(block, use.name, sum_of(numbers).at(self._sizes), *steps[use])
            for (block, use), numbers in runs.items()
        ]

    def _places(self) -> Iterator[tuple[str, Use, Poly]]:
        """Yield (block, part of the network, number of runs in a pass) for each place of a part,
        equal layers once, in the order of first runs; block "" for parts outside of layers."""
        net = self.held.network
        layers = Poly.atom("L") if net.layers is None else Poly.of(net.layers)
        for stack in net.described.stacks:
            towers = ONE * net.described.towers
            for use in stack.entry:
                yield "", net.use(stack.section, use), towers
            for block, number in stack.numbers(layers):
                for sublayer in block.sublayers:
                    for part in filter(None, sublayer.around):
                        yield block.name, net.use(stack.section, part), number * towers
            for use in stack.end:
                yield "", net.use(stack.section, use), towers
        for use in net.described.ending:
            yield "", net.use("", use), ONE

    def _steps(self, part: PartAnswers) -> tuple[Sequence[Step], str, float]:
        """(calls of one run of a part, reason, floor of the run in seconds): the reason why the
        calls are only floors (lower bounds from the GPU's rates; the run's floor is then 0), "" if
        their times are predicted. Unanswered if the part has no answers."""
        if part.unanswered:
            raise Unanswered(f"{part.use.name}: {part.unanswered}")
        own = part_sizes(part.use, self._sizes) | {"t": self.context, "b": self.batch}
        case = Case(part.own, own, symbolic=False, dtypes=self.held.dtypes, board=self.on)
        found = products(case, self.on)
        # what is between the products of a norm or an FFN, a compiler fuses with them
        if part.use.mixer.group == "part of a network":
            if not found:
                return [self._floor(case)], "no matrix product", 0.0
            return found, "", self._least(case)
        try:
            return predicted_steps(case, self.on), "", self._least(case)
        except Unanswered as reason:
            return [self._floor(case)], str(reason), 0.0

    def _moved(self, case: Case) -> int:
        """The compulsory bytes of a part."""
        dtypes, sizes = self.held.dtypes, {x: size for x, size in case.sizes.items() if x != "b"}
        kinds = of_part(case.about.system, case.phase).compulsory.at(b=self.batch, **sizes)
        return ceil(sum(dtypes.bytes_of(kind) * number for kind, number in kinds.items()))

    def _least(self, case: Case) -> float:
        """The floor (lower bound of the time) in seconds of a part; 0 where no floor is derived, or
        where rows choose weights (experts): compulsory bytes then count the most weights that rows
        may choose, not the least."""
        if chooses_weights(case):
            return 0.0
        try:
            return max(limits(case, self._moved(case)).values())
        except Unanswered:
            return 0.0

    def _floor(self, case: Case) -> Step:
        """One call for a part without a known kernel: it takes the launch of a small kernel and the
        longest limit of its work, with the compulsory bytes at the share of the bandwidth that
        small kernels reach; at least the board's own `kernel_time`. Its joules are that time at the
        board's power; nan without a power limit."""
        moved = self._moved(case)
        found = dict(limits(case, moved))
        launched = found.pop("launches", 0.0)
        family = family_of(SMALL, "")
        assert family is not None, SMALL
        constants = fit_for(family, self.on.chip).constants
        moving = found | {"memory": found["memory"] / constants["bandwidth"]}
        seconds = max(launched, constants["start"] * 1e-6 + max(moving.values()))
        joules = float("nan")
        if "power_limit" in self.on.figures:
            work = Work(np.zeros(1), np.zeros(1), np.array([float(moved)]))
            calls = Counted("", {}, self.held.dtypes.name_of("activations"), counted=work)
            joules = seconds * float(power(calls, self.on, np.array([seconds]))[0])
        return Step("floor", seconds, seconds, seconds, joules, joules, joules, found)
