"""Which rewrites would make a module's description agree with the operations that it dispatches?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, product
from math import inf

import torch

from costmodel.errors import ConventionError, Unanswered, Unsupported, as_exception
from costmodel.language.equations import Mixer
from costmodel.program.conventions import (
    IN_BLOCKS,
    OF_FORWARD,
    PADDINGS,
    REWRITES,
    SCALES,
    in_order,
    of_sequences,
)
from costmodel.proofs.tried_sizes import module_sizes
from costmodel.symbolic.piecewise import Exact
from profiler.counting.dispatch import DispatchCounts, count_dispatch
from profiler.counting.operations import Classes
from profiler.modules.described import (
    by_class,
    class_differences,
    classes_at,
    description_of,
    dispatched_classes,
    executed_counts,
)
from profiler.modules.registry import Implementation
from profiler.proofs.cases import BATCH, ModuleCase, case

Names = tuple[str, ...]

BLOCKS: Sequence[Names] = [(f"{IN_BLOCKS}{2**k}",) for k in range(1, 7)]
"""Masked pairs in blocks of 2 to 64 rows: one of them is tried, with about the operations that the
module dispatches."""

GROUPS: Sequence[Sequence[Names]] = (
    ((), ("dense",), *(("dense", padding) for padding in PADDINGS), *BLOCKS),
    ((), *((scale,) for scale in SCALES if scale in OF_FORWARD)),
    *(((), (name,)) for name in REWRITES if name in OF_FORWARD - {"dense", *SCALES}),
)
"""The rewrites that may change the operations of a forward pass, in groups of which a description
makes one choice each: of scales one, and paddings with "dense"."""

MOST = 96
"""The largest number of combinations of rewrites that are tried for a phase."""


def dispatched(case: ModuleCase, phase: str) -> Iterator[tuple[int, DispatchCounts]]:
    """Yield (token, dispatched operations) for each call of a phase: one call of `forward` (token
    0) for "training", else a call of `step` per token, from 1."""
    with torch.no_grad():
        if phase == "training":
            yield 0, count_dispatch(case.forward)
            return
        state = case.initial_state()
        for t in range(1, case.x.shape[1] + 1):
            yield t, count_dispatch(case.step, t, state)


def rewrites_meant(mixer: Mixer, implementation: Implementation, *, step: bool) -> str:
    """A phrase `; rewrites=('dense',) explains the whole difference`: the options of
    @implementation under which the equations count what `forward` and, if `step`, the step dispatch
    at all small sizes. Tried are the combinations of rewrites that change the counts, first those
    that change the fewest choices of the description. "" if none explains the difference, the
    module fails, or an operation has no counting rule."""
    forward, own = implementation.rewrites, implementation.step_rewrites
    follows = own == _of_steps(forward)
    try:
        with as_exception():
            whole = _Calls(mixer, implementation, "training")
            steps = _Calls(mixer, implementation, "inference") if step else None
    except Exception:  # a module of a user's own may raise anything, and another proof says so
        return ""
    if not whole.known or (steps and not steps.known):
        return ""
    right = [names for names in whole.near(forward)[:MOST] if whole.explained(names)]
    for names in right:
        if not steps or steps.explained(_of_steps(names) if follows else own):
            return f"; rewrites={names} explains the whole difference"
    if right and steps:
        for names in map(_of_steps, steps.near(own)[:MOST]):
            if steps.explained(names):
                first = "" if whole.explained(forward) else f"rewrites={right[0]}, "
                return f"; {first}step_rewrites={names} explains the whole difference"
    return ""


def _of_steps(rewrites: Names) -> Names:
    """The rewrites of `forward` that `step` has too: without those of whole sequences."""
    return tuple(rewrite for rewrite in rewrites if not of_sequences(rewrite))


class _Calls:
    """What the calls of one phase dispatch at all small sizes, and what descriptions count there.

    `known` says whether every dispatched operation has a counting rule."""

    def __init__(self, mixer: Mixer, implementation: Implementation, phase: str) -> None:
        """Call the module in the phase at all small sizes, and count what it dispatches; raises
        whatever the module raises."""
        self.known = True
        self._found: list[tuple[dict[str, int], frozenset[str], Classes]] = []
        for sizes in module_sizes(mixer):
            for t, call in dispatched(case(mixer, implementation, sizes), phase):
                at = dict(sizes) | {"b": BATCH} | ({"t": t} if t else {})
                classes = dispatched_classes(call.operations.to_json())
                self._found.append((at, frozenset(call.by_op), classes))
                self.known &= call.complete

        @cache
        def counts(names: Names, operations: frozenset[str]) -> Mapping[str, Exact]:
            described = replace(implementation, rewrites=names, step_rewrites=names)
            meant = description_of(mixer, described, phase, operations)
            return by_class(executed_counts(mixer, meant, phase))

        self._counts = counts

    def gaps(self, names: Names) -> Iterator[Classes]:
        """Yield, for each call, the dispatched operations less those that the equations count under
        the rewrites `names`, by class. Raises ConventionError, Unsupported, Unanswered."""
        for at, operations, classes in self._found:
            yield class_differences(classes, classes_at(self._counts(names, operations), at))

    def explained(self, names: Names) -> bool:
        """Whether the equations count under these rewrites what every call dispatches."""
        try:
            return not any(self.gaps(names))
        except (ConventionError, Unsupported, Unanswered):
            return False

    def near(self, names: Names) -> list[Names]:
        """The combinations of rewrites that differ in what they count, first those with the most
        choices in common with `names`."""
        own = [{*names} & {*chain(*group)} for group in GROUPS]
        start = [
            next((choice for choice in group if {*choice} == mine), ())
            for group, mine in zip(GROUPS, own, strict=True)
        ]

        def with_choice(k: int, choice: Names) -> Names:
            return (*chain(*start[:k]), *choice, *chain(*start[k + 1 :]))

        def told(k: int, choice: Names) -> str:
            """The gaps with one choice in place of the description's, as text."""
            try:
                return str([*self.gaps(with_choice(k, choice))])
            except (ConventionError, Unsupported, Unanswered) as reason:
                return str(reason)

        def apart(block: Names) -> tuple[float, float]:
            """How far a block is from what is dispatched: in exponentials, one for each pair of a
            softmax, then in all operations."""
            try:
                found = [*self.gaps(with_choice(0, block))]
            except (ConventionError, Unsupported, Unanswered):
                return inf, inf
            return (
                sum(abs(gap.get("exp", 0)) for gap in found),
                sum(abs(number) for gap in found for number in gap.values()),
            )

        nearest = min(BLOCKS, key=apart)
        groups = [
            [choice for choice in group if choice not in BLOCKS or choice == nearest]
            for group in GROUPS
        ]
        # of choices that count the same, the description's own, else the first of the group
        different = [
            {told(k, choice): choice for choice in (*reversed(group), start[k])}.values()
            for k, group in enumerate(groups)
        ]

        def changed(chosen: Sequence[Names]) -> int:
            return sum({*one} != mine for one, mine in zip(chosen, own, strict=True))

        others = {*names}.difference(*own)
        found = ({*others, *chain(*one)} for one in sorted(product(*different), key=changed))
        return [in_order(one) for one in found]
