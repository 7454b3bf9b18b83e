"""Traces a deep module through the same module with fewer of its equal blocks.

Each of 400 equal layers adds the same work, so every number is linear in the number of layers. The
search for formulas runs the module with 4 and with 5 of the layers in place of all 400, and
extrapolates the numbers to 400; the whole module is then run at small and at large sizes. If it
differs there (a block may depend on its place), it is traced as any other module.

With several stacks of layers, the runs are one with 4 blocks in every stack and, per stack, one
with 5 blocks there: n = n_0 + sum over stacks of (blocks - 4) * (n_stack - n_0).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial, wraps
from itertools import cycle, groupby, product, takewhile
from operator import sub
from typing import Any

from torch import nn

from profiler.tracing.interpolation import Point
from profiler.tracing.meta_run.observe import PEAK, Observation
from profiler.tracing.meta_run.target import (
    Sizes,
    Target,
    TraceError,
    build_target,
    listed_sizes,
)
from profiler.tracing.proof import LARGE
from profiler.tracing.result import Trace
from profiler.tracing.size_samples import SHORT, SizeSamples

FORWARD = "forward "
"""The prefix of names of operations in a forward pass."""

KEPT = 4
"""The number of blocks that are kept of a stack: two from the start and two up to the end, since
the first and the last may differ from those between."""

LEAST = 8
"""The smallest number of blocks of a stack that is cut."""

MOST_STACKS = 4
"""The largest number of stacks: each needs a run of its own at all sizes."""


class NotStraight(Exception):
    """Raised if the numbers of the module are not linear in the number of blocks."""


@dataclass(frozen=True)
class Stack:
    """`number` consecutive equal blocks, after `start` and before `behind` others, in the
    `nn.ModuleList` or `nn.Sequential` of this name."""

    name: str
    start: int
    number: int
    behind: int


def stacks(module: nn.Module) -> list[Stack]:
    """Find the stacks (runs of at least `LEAST` consecutive equal blocks) of a module, without
    stacks inside a block of another stack. With `LEAST` 3, a list of 3 A, 1 B and 4 C holds the
    stacks (start 0, number 3, behind 5) and (4, 4, 0)."""
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
    """A key of a block, equal for equal blocks: torch's printed form; names, shapes, dtypes and
    `requires_grad` of parameters and buffers; plain attributes. Of an integer attribute the key
    holds only the type, since the integer may be the block's index."""
    held = (*block.named_parameters(), *block.named_buffers())
    plain = (
        (place, name, int if type(value) is int else value)
        for place, part in block.named_modules()
        for name, value in vars(part).items()
        if value is None or type(value) in (bool, int, float, str)
    )
    tensors = ((name, t.shape, t.dtype, t.requires_grad) for name, t in held)
    return str(block), *tensors, *plain


class CutModules:
    """Makes modules with fewer blocks. Modules are cached by sizes, already cut to `KEPT` + 1
    blocks: otherwise most of the time would go into building blocks that are then removed."""

    def __init__(self, target: Target, found: Sequence[Stack]) -> None:
        """Prepare modules cut to few blocks: `found` are the stacks (runs of equal blocks) in the
        modules that `target` makes; no module is made yet."""
        self.target = target
        self.stacks = found
        self.made: dict[tuple[Any, ...], Any] = {}
        self.even = True
        """Whether every module so far had as many blocks as the first."""

    def with_blocks(self, kept: Sequence[int]) -> Target:
        """A copy of the target whose factory makes modules that keep `kept[k]` blocks of stack k,
        `KEPT` or one more."""

        @wraps(self.target.make)
        def make(**sizes: Any) -> Any:
            """Make the module, once at these sizes, and return a copy cut to `kept` blocks."""
            known = tuple(sizes.items())
            if known not in self.made:
                with few_copies():
                    made = self.target.make(**sizes)
                # whether the numbers of blocks were the same at all sizes so far
                self.even = self.even and all(map(partial(has_stack, module_of(made)), self.stacks))
                self.made[known] = self.cut(made, [KEPT + 1] * len(self.stacks))
            return self.cut(copy.deepcopy(self.made[known]), kept)

        return replace(self.target, make=make)

    def cut(self, made: Any, kept: Sequence[int]) -> Any:
        """Remove blocks of the module in a factory's result, in place, until stack k has `kept[k]`
        blocks, and return the result. The earlier of two stacks in one list may keep more: of 10 A
        and 10 B cut to 4 each, all A stay, as `behind` of A counts the 10 B of the uncut module. If
        numbers then differ from runs of the whole module, it is traced as one without stacks."""
        # the last stack first, so that the start of an earlier stack in the list stays valid
        for stack, number in reversed(list(zip(self.stacks, kept, strict=True))):
            blocks: Any = module_of(made).get_submodule(stack.name)
            del blocks[stack.start + number : len(blocks) - stack.behind]
        return made


def module_of(made: Any) -> nn.Module:
    """The module of a factory's result, which may be a pair with inputs."""
    module: nn.Module = made[0] if isinstance(made, tuple) else made
    return module


def has_stack(module: nn.Module, stack: Stack) -> bool:
    """Whether a module has the same number of blocks in the stack's container."""
    names = dict(module.named_modules(remove_duplicate=False))
    blocks: Any = names.get(stack.name, ())
    return len(blocks) == stack.start + stack.number + stack.behind


@contextmanager
def few_copies() -> Iterator[None]:
    """A context in which a module that is copied repeatedly, as torch makes equal layers, is copied
    only `KEPT` + 3 times; the last copy stands in for all others."""
    home: Any = copy
    plain = home.deepcopy
    known: dict[int, tuple[Any, list[Any]]] = {}  # holds the module, so that its id stays unique

    def copied(item: Any, memo: Any = None, *rest: Any) -> Any:
        """Stand in for `copy.deepcopy`: the first `KEPT` + 3 calls for a module return new copies,
        further calls the last of these copies. Items that are no modules, and modules inside an
        item that is being copied (`memo` is given), are copied as usual."""
        if memo is not None or not isinstance(item, nn.Module):
            return plain(item, memo, *rest)
        _, copies = known.setdefault(id(item), (item, []))
        if len(copies) < KEPT + 3:
            copies.append(plain(item))
        return copies[-1]

    home.deepcopy = copied
    try:
        yield
    finally:
        home.deepcopy = plain


class BlockSamples(SizeSamples):
    """Observations of a deep module, each extrapolated from runs with fewer blocks: one with `KEPT`
    in every stack and, for each stack, one with one more block there. `whole` runs all blocks."""

    def __init__(self, whole: SizeSamples, found: Sequence[Stack]) -> None:
        """Prepare the modules that are run at each point in place of that of `whole`: `targets[0]`
        with `KEPT` blocks in every stack of `found`, `targets[1 + k]` with one more in stack k."""
        super().__init__(
            whole.target,
            whole.variables,
            whole.backend,
            whole.region,
            whole.patience,
            memory=whole.memory,
            effort=whole.effort,
        )
        self.whole = whole
        self.stacks = found
        self.cuts = CutModules(whole.target, found)
        fewest = [KEPT] * len(found)
        one_more = ([*fewest[:k], KEPT + 1, *fewest[k + 1 :]] for k in range(len(found)))
        self.targets = [self.cuts.with_blocks(kept) for kept in (fewest, *one_more)]
        self.target = self.targets[0]

    @property
    def slow(self) -> bool:
        """True: runs of the whole module are slow."""
        return True

    def runs_at(self, sizes: Sizes, *, shapes: bool = False) -> list[Observation]:
        """Run each cut module once at these sizes: the observations, with shapes if `shapes`.

        Raises:
            NotStraight: the number of blocks depends on the sizes.
            TraceError: a cut module does not run.
        """
        try:
            return super().runs_at(sizes, shapes=shapes)
        finally:
            if not self.cuts.even:
                raise NotStraight

    def joined(self, numbers: Sequence[int]) -> int:
        """A number of the whole module, extrapolated from the numbers of the runs: the run with the
        fewest blocks first, then one per stack. 10 and 13, for 4 and 5 of 400 blocks, give
        10 + 396 * 3."""
        first, *longer = numbers
        steps = zip(self.stacks, longer, strict=True)
        return first + sum((stack.number - KEPT) * (more - first) for stack, more in steps)

    def observed(self, runs: Sequence[Observation]) -> Observation:
        """Extrapolate the observation of the whole module from those of the cut modules (`runs`);
        its moments are those of the run with the fewest blocks. Raises NotStraight: a moment is
        missing in another run, or its position is ambiguous."""
        first = runs[0]
        moments = common_moments([steps_of(run) for run in runs])
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
        """The number of operations that a run of the whole module dispatches."""
        sizes = self.variables.sizes(self.named(point))
        return self.joined([len(run.names) for run in self.runs_at(sizes)])

    def proven(self, trace: Trace) -> Trace:
        """Check a trace by runs of the whole module, and return it with the sizes of these runs as
        its proof: the first sizes, the sizes of fewest operations at which the formulas of fewer
        blocks were proven, and all sizes large at once, if that takes little longer. Raises
        NotStraight, TraceError: the whole module differs there, or does not run; or a quantity has
        no formula."""
        if trace.broken:
            raise NotStraight
        # points: the formulas' proof, the first sizes, all sizes large, the fewest operations
        tested = [tuple(sizes[letter] for letter in self.letters) for sizes in trace.proven]
        base = tuple(trace.base.values())
        large = tuple(size * step for size, step in zip(cycle(LARGE), self.multiples, strict=False))
        shortest = min(tested, key=lambda point: len(self.at(point).names), default=base)
        chosen = [base, shortest]
        quick = self.expected(base, large) <= 2 * len(self.at(base).alive)
        if quick and self.inside(large) and self.runs(large):
            chosen.append(large)
        for point in chosen:
            counted = self.whole.at(point).quantities
            if {q: n for q, n in counted.items() if n} != self.at(point).quantities:
                raise NotStraight
        seen = self.whole.at(base)
        blocks = " and ".join(
            f"{stack.number} equal blocks in {stack.name or 'the module'}" for stack in self.stacks
        )
        others = [self.named(point) for point in tested if point not in chosen]
        note = (
            f"{blocks}: formulas come from runs with {KEPT} and {KEPT + 1} blocks, extended to all "
            f"blocks, and are proven by such runs at {'; '.join(map(listed_sizes, others))}"
        )
        doubt = f"one of {blocks} may act differently at untraced sizes, by its position"
        return replace(
            trace,
            proven=[self.named(point) for point in chosen],
            doubts=(*trace.doubts, doubt),
            notes=(*trace.notes, note),
            sample=seen.by_op,
            at_peak=seen.at_peak,
        )


Operation = tuple[str, int]
"""The name of a dispatched operation, and the change of the bytes alive."""


def steps_of(run: Observation) -> list[Operation]:
    """The operations of a run, in order."""
    return list(zip(run.names, map(sub, run.alive, (*run.alive[:1], *run.alive)), strict=False))


def common_moments(runs: Sequence[Sequence[Operation]]) -> list[tuple[int, ...]]:
    """Match the moments (operations in order) of several runs: every moment of the first run as a
    tuple of its indices in all runs. Each other run has one more block in one stack: a moment
    before that stack keeps its distance from the start of the pass, a moment after it from the end,
    and one in inner blocks has an entry for either index: A, 4 B, C beside A, 5 B, C give (0, 0),
    (1, 1), (2, 2), (2, 3), (3, 3), (3, 4), (4, 5), (5, 6). Raises NotStraight: a moment is missing
    in another run, or its place is ambiguous."""
    ends = [sum(name.startswith(FORWARD) for name, _ in steps) for steps in runs]
    forward = [list(steps[:end]) for steps, end in zip(runs, ends, strict=True)]
    backward = [list(steps[end:]) for steps, end in zip(runs, ends, strict=True)]
    found: list[tuple[int, ...]] = []
    for passes, starts in ((forward, [0] * len(runs)), (backward, ends)):
        first, *longer = passes
        places = [places_in(first, other) for other in longer]
        for moment in range(len(first)):
            ways = [each[moment] for each in places]
            if not all(ways):
                raise NotStraight
            for way in product((moment,), *ways):
                found.append(tuple(s + k for s, k in zip(starts, way, strict=True)))
    return found


def places_in(short: Sequence[Operation], long: Sequence[Operation]) -> list[set[int]]:
    """For each operation of a pass, its indices in a pass with one more block, counted from the
    start and from the end: one or two, or none if the passes share no such operation. Raises
    NotStraight: `long` has fewer operations, or both resemble each other in too many places."""
    more = len(long) - len(short)
    ahead, behind = (
        _common_prefix(short, long),
        len(short) - _common_prefix(short[::-1], long[::-1]),
    )
    # the parts before and after the stack may resemble a block by chance, but only
    # in fewer operations than one more block has
    if more < 0 or (more and ahead - behind >= (KEPT + 1) * more):
        raise NotStraight
    found: list[set[int]] = [set() for _ in short]
    for place, there in enumerate(found):
        there |= {place} if place < ahead - more else set()
        there |= {place + more} if place >= behind + more else set()
    return found


def _common_prefix(one: Sequence[Operation], other: Sequence[Operation]) -> int:
    """The number of operations in the longest common prefix."""
    return sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(one, other, strict=False)))


def samples_by_blocks(whole: SizeSamples, starts: Iterable[Point]) -> BlockSamples | None:
    """Prepare the observations of a deep module by runs with fewer blocks, at the first of `starts`
    at which the module can be built; None if there is no such point, the module has no stack (run
    of equal blocks) or more than `MOST_STACKS`, few operations in all, or numbers that are not
    linear in its blocks."""
    for start in starts:
        with suppress(TraceError):
            sizes = whole.variables.sizes(whole.named(start))
            found = stacks(build_target(whole.target, sizes).module)
            if not 0 < len(found) <= MOST_STACKS:
                return None
            deep = BlockSamples(whole, found)
            try:
                return deep if deep.operations(start) > SHORT else None
            except NotStraight:
                return None
    return None
