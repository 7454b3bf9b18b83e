"""What does a deep module do, going by the same module with fewer of its equal blocks?

A model of 400 equal layers does with every layer more what it did with the one before, so each of
its numbers grows along a straight line in the number of layers. A search for formulas runs the
module with 3 and with 4 of the layers in place of all 400, and continues the numbers to 400; the
whole module is then run at a few sizes. Where it differs there (a block may do something else by
its place), it is traced as any other.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial, wraps
from itertools import groupby, takewhile
from typing import Any

from torch import nn

from profiler.tracing.interpolation import Point
from profiler.tracing.meta_run.observe import PEAK, Observation
from profiler.tracing.meta_run.target import (
    Target,
    TraceError,
    build_target,
    listed_sizes,
)
from profiler.tracing.result import Trace
from profiler.tracing.size_samples import SHORT, SizeSamples

FORWARD = "forward "
"""How the names of operations of a forward pass begin."""

KEPT = 3
"""So many blocks are kept of a stack: the first, the last, and one between."""

LEAST = 8
"""A stack of fewer blocks is left whole."""


class NotStraight(Exception):
    """The module does not do with every block more what it did with the one before."""


@dataclass(frozen=True)
class Stack:
    """`number` equal blocks in a row, between `start` and `behind` others, of the `nn.ModuleList`
    or `nn.Sequential` of this name in the module."""

    name: str
    start: int
    number: int
    behind: int


def stacks(module: nn.Module) -> list[Stack]:
    """The stacks of at least `LEAST` equal blocks; those inside of a block of another are left
    out."""
    found: list[Stack] = []
    within: tuple[str, ...] = ()
    for name, held in module.named_modules():
        if not isinstance(held, nn.ModuleList | nn.Sequential) or f"{name}.".startswith(within):
            continue
        start = 0
        for _, blocks in groupby(held, key=likeness):
            number = len(list(blocks))
            if number >= LEAST:
                found.append(Stack(name, start, number, len(held) - start - number))
                inside = (f"{name}.{k}." for k in range(start, start + number))
                within += tuple(place.lstrip(".") for place in inside)
            start += number
    return found


def likeness(block: nn.Module) -> tuple[Any, ...]:
    """What two equal blocks have in common: what torch prints of them; the names, shapes and types
    of their parameters and buffers."""
    held = (*block.named_parameters(), *block.named_buffers())
    return str(block), *((name, t.shape, t.dtype, t.requires_grad) for name, t in held)


class CutModules:
    """Makes modules with fewer blocks. What the factory makes at some sizes is kept, cut: most of
    the time would otherwise go into building blocks that are then removed."""

    def __init__(self, target: Target, found: Sequence[Stack]) -> None:
        self.target = target
        self.stacks = found
        self.made: dict[tuple[Any, ...], Any] = {}

    def with_blocks(self, kept: Mapping[int, int]) -> Target:
        """What makes the module with fewer blocks; `kept` maps the number of blocks of a stack to
        the number that stay, `KEPT` or one more."""

        @wraps(self.target.make)
        def make(**sizes: Any) -> Any:
            known = tuple(sizes.items())
            if known not in self.made:
                longest = {stack.number: KEPT + 1 for stack in self.stacks}
                with few_copies():
                    made = self.target.make(**sizes)
                self.made[known] = self.cut(made, longest)
            return self.cut(copy.deepcopy(self.made[known]), kept)

        return replace(self.target, make=make)

    def cut(self, made: Any, kept: Mapping[int, int]) -> Any:
        """What a factory made, with fewer blocks."""
        module = made[0] if isinstance(made, tuple) else made
        for stack in reversed(self.stacks):  # places before a cut stay as they are
            blocks = module.get_submodule(stack.name)
            del blocks[stack.start + kept[stack.number] : len(blocks) - stack.behind]
        return made


@contextmanager
def few_copies() -> Iterator[None]:
    """Inside, a module that is copied again and again, as torch makes equal layers, is copied only
    as often as blocks are kept, and twice more; its last copy then stands in for all others."""
    home: Any = copy
    plain = home.deepcopy
    known: dict[int, list[Any]] = {}

    def copied(item: Any, memo: Any = None, *rest: Any) -> Any:
        if memo is not None or not isinstance(item, nn.Module):
            return plain(item, memo, *rest)
        copies = known.setdefault(id(item), [])
        if len(copies) < KEPT + 3:
            copies.append(plain(item))
        return copies[-1]

    home.deepcopy = copied
    try:
        yield
    finally:
        home.deepcopy = plain


class BlockSamples(SizeSamples):
    """Observations of a deep module, each continued from runs with fewer blocks: with `KEPT` in
    every stack and, for each number of blocks that stacks have, with one more in those stacks."""

    def __init__(self, whole: SizeSamples, found: Sequence[Stack]) -> None:
        super().__init__(whole.target, whole.variables, whole.backend, whole.region, whole.patience)
        self.whole = whole
        self.stacks = found
        self.numbers_of_blocks = sorted({stack.number for stack in found})
        fewest = dict.fromkeys(self.numbers_of_blocks, KEPT)
        one_more = [fewest | {number: KEPT + 1} for number in self.numbers_of_blocks]
        cuts = CutModules(whole.target, found)
        self.targets = [cuts.with_blocks(kept) for kept in (fewest, *one_more)]
        self.target = self.targets[0]

    @property
    def slow(self) -> bool:
        """True: the whole module is."""
        return True

    def joined(self, numbers: Sequence[int]) -> int:
        """A number of the whole module, from those of the runs with fewer blocks."""
        first, *longer = numbers
        steps = zip(self.numbers_of_blocks, longer, strict=True)
        return first + sum((all_ - KEPT) * (more - first) for all_, more in steps)

    def observed(self, runs: Sequence[Observation]) -> Observation:
        """What the whole module does: of its moments, those that a run with fewer blocks has,
        counted from the start and counted from the end."""
        first = runs[0]
        moments = common_moments([run.names for run in runs])
        alive = [
            self.joined([run.alive[k] for run, k in zip(runs, moment, strict=True)])
            for moment in moments
        ]
        quantities = self.joined_counts([run.quantities for run in runs])
        return replace(
            first,
            quantities={**quantities, PEAK: max(alive, default=0)},
            alive=alive,
            names=[first.names[moment[0]] for moment in moments],
        )

    def operations(self, point: Point) -> int:
        """How many operations a run of the whole module dispatches."""
        sizes = self.variables.sizes(self.named(point))
        return self.joined([len(run.names) for run in self.runs_at(sizes)])

    def proven(self, found: Trace) -> Trace:
        """The trace, with runs of the whole module at some of its sizes.

        Raises:
            NotStraight, TraceError: the whole module does something else there, or does not run.
        """
        tested = [tuple(sizes[letter] for letter in self.letters) for sizes in found.proven]
        base = tuple(found.base.values())
        shortest = min(tested, key=lambda point: len(self.at(point).names), default=base)
        for point in (base, shortest):
            if self.whole.at(point).quantities != self.at(point).quantities:
                raise NotStraight
        seen = self.whole.at(base)
        listed = " and ".join(listed_sizes(self.named(point)) for point in (base, shortest))
        blocks = " and ".join(
            f"{stack.number} equal blocks in {stack.name or 'the module'}" for stack in self.stacks
        )
        note = (
            f"{blocks}: run with {KEPT} and {KEPT + 1} of them at all sizes, and continued; as a "
            f"whole run at {listed}, with the numbers that the formulas give"
        )
        return replace(found, notes=(*found.notes, note), sample=seen.by_op, at_peak=seen.at_peak)


def common_moments(runs: Sequence[Sequence[str]]) -> list[tuple[int, ...]]:
    """The places, one per run, of the moments that runs have in common, given the operation before
    each moment: of either pass those up to the last block but one of the shortest run, counted from
    the start, and those from its second block on, counted from the end."""
    first_backward = [sum(name.startswith(FORWARD) for name in names) for names in runs]
    found: list[tuple[int, ...]] = []
    for passes in (
        [range(end) for end in first_backward],
        [range(start, len(names)) for start, names in zip(first_backward, runs, strict=True)],
    ):
        lengths = [len(places) for places in passes]
        block = max(lengths) - min(lengths)
        for one_way in (passes, [places[::-1] for places in passes]):
            moments = list(zip(*one_way, strict=False))
            alike = list(takewhile(partial(_alike, runs), moments))
            found += alike[: len(alike) - block]  # the last may be alike by chance
    return found


def _alike(runs: Sequence[Sequence[str]], moment: Sequence[int]) -> bool:
    return len({names[k] for names, k in zip(runs, moment, strict=True)}) == 1


def samples_by_blocks(whole: SizeSamples, starts: Iterable[Point]) -> BlockSamples | None:
    """What stands in for the runs of a deep module while formulas are sought; None where it has no
    stacks, few operations in all, or blocks that are not alike in what they do."""
    for start in starts:
        with suppress(TraceError):
            sizes = whole.variables.sizes(whole.named(start))
            if not (found := stacks(build_target(whole.target, sizes).module)):
                return None
            deep = BlockSamples(whole, found)
            try:
                return deep if deep.operations(start) > SHORT else None
            except NotStraight:
                return None
    return None
