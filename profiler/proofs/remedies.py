"""Which rewrites would make a module's description agree with the operations that it dispatches?

A rewrite is a named change of the equations, and of what they count: `dense` computes masked pairs
too, `dense=8` those in blocks of 8 rows, `online=64` a softmax in blocks of 64 keys. A gap is the
dispatched operations less the counted ones, by class.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, product
from math import gcd, inf

import torch

from costmodel.errors import ConventionError, Unanswered, Unsupported, as_exception
from costmodel.language.equations import Mixer
from costmodel.program.conventions import (
    IN_BLOCKS,
    OF_FORWARD,
    ONLINE,
    PADDINGS,
    REWRITES,
    SCALES,
    in_order,
    of_sequences,
    rows_of_block,
)
from costmodel.program.lowering import lower
from costmodel.proofs.tried_sizes import LONG, module_sizes, words
from costmodel.symbolic.piecewise import Exact
from profiler.counting.dispatch import MATRICES, DispatchCounts, count_dispatch
from profiler.counting.operations import NOTHING, Classes
from profiler.modules.described import (
    by_class,
    class_differences,
    classes_at,
    classes_of,
    description_of,
    dispatched_classes,
    dispatched_gap,
    executed_counts,
    sum_classes,
)
from profiler.modules.registry import Implementation
from profiler.proofs.cases import BATCH, ModuleCase, case

Names = tuple[str, ...]

BLOCKS: Sequence[Names] = [(f"{IN_BLOCKS}{rows}",) for rows in (*range(2, 17), 32, 64)]
"""Masked pairs in blocks of 2 to 64 rows: one of them is tried, with about the operations that the
module dispatches."""

ZERO = "zero-state"
UNREAD = "unread-rows"

GROUPS: Sequence[Sequence[Names]] = (
    ((), ("dense",), *(("dense", padding) for padding in PADDINGS), *BLOCKS),
    ((), (ZERO,), (UNREAD,)),
    ((), *((scale,) for scale in SCALES if scale in OF_FORWARD)),
    *(((), (name,)) for name in REWRITES if name in OF_FORWARD - {"dense", ZERO, UNREAD, *SCALES}),
)
"""The rewrites that may change the operations of a forward pass, in groups of which a description
makes one choice each: of scales one, and paddings with "dense". To the group `ONLINE_GROUP` a
softmax in blocks of keys is added, with or without sums that start from 0."""

ONLINE_GROUP = 1

UNEXPLAINED = "; no rewrites that were tried explain the difference"

PERIOD = 8
"""The most blocks of rows after which a block of keys and a block of rows end together again, for
blocks of keys between those that are tried first; more take seconds to count."""

RUNNING = {f"aten::{name}" for name in ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")}
"""torch's operations that are counted as recurrences (`cumulation`)."""

MOST = 96
"""The largest number of combinations of rewrites that are tried for a phase."""


def dispatched(case: ModuleCase, phase: str) -> Iterator[tuple[int, DispatchCounts]]:
    """Yield (token, dispatched operations) for each call of a phase: one call of `forward` (token
    0) for "training", else a call of `step` per token, from 1."""
    case = case.counted()
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
    that change the fewest choices of the description. If none explains the difference, the phrase
    says so, with what the nearest combination leaves. "" if the module fails, or an operation has
    no counting rule."""
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
    tried = whole.near(forward)[:MOST]
    right = [names for names in tried if whole.explained(names)]
    for names in right:
        if not steps or steps.explained(_of_steps(names) if follows else own):
            return f"; rewrites={names} explains the whole difference{whole.unclear(names)}"
    if right and steps:
        for names in map(_of_steps, steps.near(own)[:MOST]):
            if steps.explained(names):
                first = "" if whole.explained(forward) else f"rewrites={right[0]}, "
                return f"; {first}step_rewrites={names} explains the whole difference"
    if right:
        return _left(steps, map(_of_steps, steps.near(own)[:MOST]), own, "step") if steps else ""
    return _left(whole, tried, forward, "forward")


def _left(calls: _Calls, tried: Iterable[Names], own: Names, called: str) -> str:
    """A phrase that no rewrites explain what calls of `called` ("forward", "step") dispatch: how
    many operations of each class the last call that differs dispatches more or fewer than
    counted under those rewrites of `tried` that leave least (with the same of `SCALES` as the
    description's, `own`), and which operations of torch do more. "" without a count."""
    scaled = [names for names in tried if {*SCALES} & {*names} == {*SCALES} & {*own}]
    rewrites = min(scaled or [own], key=lambda names: sum(calls.apart(names).values()))
    try:
        at, by_op, left = calls.last(rewrites)  # left: class -> dispatched less counted
    except (ConventionError, Unsupported, Unanswered):
        return ""

    def having(name: str) -> str:
        """The operations with the class; matrix products only where no others have it."""
        found = sorted(op for op, classes in by_op.items() if classes.get(name))
        return ", ".join([op for op in found if op not in MATRICES] or found)

    more = ", ".join(f"{n:,} {name} (in {having(name)})" for name, n in left.items() if n > 0)
    fewer = ", ".join(f"{-n:,} {name}" for name, n in left.items() if n < 0)
    apart = " and ".join([f"{more} more"] * bool(more) + [f"{fewer} fewer"] * bool(fewer))
    option = "step_" * (called == "step")
    compared = " (comparisons: cm.maximum, cm.minimum, cm.max_over)" * (left.get("compare", 0) > 0)
    with_ = f"with {option}rewrites={rewrites}, " if rewrites != own else ""
    running = ", ".join(sorted(op for op in by_op if op in RUNNING)) if fewer else ""
    row_by_row = f" ({running}: a recurrence, each row from the row before)" * bool(running)
    return (
        f"{UNEXPLAINED}. The results equal the equations': the operations alone differ, and {with_}"
        f"{called} at {words(at)} dispatches {apart}. If they are meant, a form with the same "
        f"operations{compared}, named by {option}form=, explains them{row_by_row}"
    )


def _of_steps(rewrites: Names) -> Names:
    """The rewrites of `forward` that `step` has too: without those of whole sequences."""
    return tuple(rewrite for rewrite in rewrites if not of_sequences(rewrite))


class _Calls:
    """What the calls of one phase dispatch at all small sizes, and what descriptions count there.

    `_found`, per call: (sizes, with t of a step; operation of torch -> class -> number, without
    operations on constants of the sizes; all operations and those on constants, by class).
    `_counts(rewrites, dispatched operations)`: what equations count. `known` says whether every
    dispatched operation has a counting rule; `same_keys` is, for a rewrite `online=ROWS`, the
    numbers of keys in a block that count the same."""

    def __init__(self, mixer: Mixer, implementation: Implementation, phase: str) -> None:
        """Call the module in the phase at all small sizes, and count what it dispatches; raises
        whatever the module raises."""
        self._form = mixer.forms[implementation.form] if phase == "training" else None
        self.known, self.same_keys = True, dict[str, Sequence[int]]()
        self._found: list[
            tuple[dict[str, int], Mapping[str, Classes], tuple[Classes, Classes]]
        ] = []
        for sizes in module_sizes(mixer):
            for t, call in dispatched(case(mixer, implementation, sizes), phase):
                at = dict(sizes) | {"b": BATCH} | ({"t": t} if t else {})
                by_op = {
                    name: class_differences(
                        dispatched_classes(op.operations.to_json()),
                        dispatched_classes(call.constants.get(name, NOTHING).to_json()),
                    )
                    for name, op in call.by_op.items()
                }
                self._found.append((at, by_op, classes_of(call)))
                self.known &= call.complete

        @cache
        def counts(names: Names, operations: frozenset[str]) -> Mapping[str, Exact]:
            described = replace(implementation, rewrites=names, step_rewrites=names)
            meant = description_of(mixer, described, phase, operations)
            return by_class(executed_counts(mixer, meant, phase))

        self._counts = counts

    def gaps(self, names: Names) -> Iterator[Classes]:
        """Yield, for each call, the dispatched operations less those that the equations count under
        the rewrites `names`, by class (`dispatched_gap`). Raises ConventionError, Unsupported,
        Unanswered."""
        for at, by_op, classes in self._found:
            counted = classes_at(self._counts(names, frozenset(by_op)), at)
            yield dispatched_gap(classes, counted)[0]

    def explained(self, names: Names) -> bool:
        """Whether the equations count under these rewrites what every call dispatches."""
        try:
            return not any(self.gaps(names))
        except (ConventionError, Unsupported, Unanswered):
            return False

    def unclear(self, names: Names) -> str:
        """Words on blocks of other numbers of keys, which count the same; "" if none do."""
        same = next((self.same_keys[name] for name in names if name in self.same_keys), ())
        if len(same) < 2 and LONG not in same:
            return ""
        most = "or more" if same[-1] == LONG else f"to {same[-1]}"
        return (
            f" (a block of {same[0]} {most} keys counts the same at the sizes tried: write the "
            "module's own number)"
        )

    def apart(self, names: Names) -> Mapping[str, float]:
        """Class -> how many operations the calls and the equations under these rewrites are apart;
        infinitely many if the equations cannot be counted."""
        try:
            return sum_classes({x: abs(n) for x, n in gap.items()} for gap in self.gaps(names))
        except (ConventionError, Unsupported, Unanswered):
            return {"": inf}

    def last(self, names: Names) -> tuple[Mapping[str, int], Mapping[str, Classes], Classes]:
        """(the sizes, the operations of each operation of torch, the gap under these rewrites) of
        the last call with a gap."""
        gaps = zip(self._found, self.gaps(names), strict=True)
        return [(at, by_op, gap) for (at, by_op, _), gap in gaps if gap][-1]

    def near(self, names: Names) -> list[Names]:
        """The combinations of one choice of each of `GROUPS` that differ in what they count, with
        the rewrites of `names` that are in no group; first those closest to `names`."""
        own = [{*names} & {*chain(*group)} for group in GROUPS]
        own[0] |= {name for name in names if rows_of_block(name)}
        own[ONLINE_GROUP] |= {name for name in names if rows_of_block(name, ONLINE)}
        start = [in_order(mine) for mine in own]

        def with_choices(choices: Mapping[int, Names]) -> Names:  # number of a group -> choice
            return (*chain(*(choices.get(k, mine) for k, mine in enumerate(start))),)

        def told(choices: Mapping[int, Names]) -> str:
            """The gaps with other choices, as text, which is equal for choices that count alike."""
            try:
                return str([*self.gaps(with_choices(choices))])
            except (ConventionError, Unsupported, Unanswered) as reason:
                return str(reason)

        def apart(pairs: Names) -> tuple[float, float]:
            return self._pairs_apart(with_choices({0: pairs}))

        nearest = min(BLOCKS, key=apart)
        masked = min(((), ("dense",), nearest), key=apart)
        online = self._online(lambda keys: with_choices({0: masked, ONLINE_GROUP: keys}), masked)

        groups = [
            [choice for choice in group if choice not in BLOCKS or choice == nearest]
            for group in GROUPS
        ]
        groups[ONLINE_GROUP] += online
        # of choices that count the same, the description's own, else the first of the group
        different = [
            {
                told({k: choice, **({0: masked} if choice in online else {})}): choice
                for choice in (*reversed(group), start[k])
            }.values()
            for k, group in enumerate(groups)
        ]

        def changed(chosen: Sequence[Names]) -> int:
            return sum({*one} != mine for one, mine in zip(chosen, own, strict=True))

        # sizes of blocks of keys (`online`) were chosen for `masked`, and are tried with it alone
        others = {*names}.difference(*own)
        tried = (
            one
            for one in product(*different)
            if one[ONLINE_GROUP] not in online or one[0] == masked
        )
        found = ({*others, *chain(*one)} for one in sorted(tried, key=changed))
        return [in_order(one) for one in found]

    def _pairs_apart(self, names: Names) -> tuple[float, float]:
        """How far the equations under the rewrites `names` are from the module in masked pairs: in
        exponentials, one a pair of a softmax, or, if less, in all their multiplications from those
        of the module's matrix products; then in all operations. Infinite without a count."""
        found = self.apart(names)
        if inf in found.values():
            return inf, inf
        others = (  # the module's multiplications outside matrix products, call by call
            sum(n.get("mul", 0) for op, n in by_op.items() if op not in MATRICES)
            for _, by_op, _ in self._found
        )
        products = (gap.get("mul", 0) - n for gap, n in zip(self.gaps(names), others, strict=True))
        return min(found.get("exp", 0), sum(map(abs, products))), sum(found.values())

    def _online(self, with_keys: Callable[[Names], Names], masked: Names) -> list[Names]:
        """The choices of a softmax in blocks of keys, first without sums that start from 0, each
        with the number of keys with which the equations count the nearest number of exponentials;
        [] if there is no formula, or no softmax over rows. `with_keys` gives the rewrites with such
        a choice, and `masked` is the choice of masked pairs among them: tried are blocks of keys
        that hold whole blocks of its rows, or are held by one as a whole; then sizes between two of
        these with which both kinds of blocks end together after at most `PERIOD` blocks of rows."""
        keys = (*masked, f"{ONLINE}1")
        if self._form is None:
            return []
        if lower(self._form, keys).equations == lower(self._form, masked).equations:
            return []
        in_block = sum(rows_of_block(name) for name in masked)
        numbers = [n for n in range(1, LONG + 1) if gcd(n, in_block) in (n, in_block)]
        found = []
        for zero in ((), (ZERO,)):

            def more(rows: int, zero: Names = zero) -> int:
                """The exponentials dispatched beyond those counted: more with larger blocks."""
                names = with_keys((f"{ONLINE}{rows}", *zero))
                return sum(gap.get("exp", 0) for gap in self.gaps(names))

            try:
                first = bisect_left(numbers[:-1], 0, key=more)  # counts none too many, or the last
                sizes = numbers
                if in_block and first and more(numbers[first]):
                    between = range(numbers[first - 1] + 1, numbers[first] + 1)
                    sizes = [n for n in between if n // gcd(n, in_block) <= PERIOD] or numbers
                    first = bisect_left(sizes[:-1], 0, key=more)
                last = bisect_right(sizes, more(sizes[first]), lo=first, key=more)
            except (ConventionError, Unsupported, Unanswered):
                return []
            same = sizes[first:last]
            # of blocks that count the same a power of two, which code prefers; 128 for LONG or more
            usual = [2**k for k in range(8) if 2**k in same or 2**k > LONG == same[-1]]
            found.append((f"{ONLINE}{(usual or same)[0]}", *zero))
            self.same_keys[found[-1][0]] = same
        return found
