"""How much would the equations hold at once, at most, if they ran as an implementation runs them?

The equations' own schedule is that of `costmodel.questions.peak`. What an implementation does
otherwise is a switch under which it is counted again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import groupby
from math import prod

from costmodel.language.equations import Equation, System
from costmodel.language.nodes import AGAIN, Array, Origin, gradient_name
from costmodel.program.recurrences import references
from costmodel.questions.peak import Held, held_arrays, steps_of
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Poly
from profiler.reconcile.allocations.carriers import (
    ALL_AT_ONCE,
    FUSED,
    IN_PLACE,
    ONE_KERNEL,
    Carriers,
)
from profiler.reconcile.allocations.looping import in_rows, loops_of
from profiler.reconcile.allocations.moves import Moves, points
from profiler.reconcile.allocations.nodes import by_node
from profiler.reconcile.allocations.operations import Parts, by_branch, by_operation
from profiler.reconcile.allocations.rows import Rows
from profiler.reconcile.allocations.shifts import Around, Handed, Shifts, by_shift
from profiler.reconcile.allocations.unrolled import Unrolled

Order = Sequence[tuple[Equation, ...]]
"""The equations of a phase in turn; a loop is one step."""

GIVEN = ("input", "context")
"""Roles of what is there before a call and throughout."""


@dataclass(frozen=True)
class Schedule:
    """How an implementation holds arrays otherwise than the equations' schedule has it."""

    kernels: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Array -> the kernel class that carries it."""
    one_kernel: bool = False
    """Whether what a kernel computes on the way to its result is not written."""
    lets_go: bool = False
    """Whether the output is released after the last equation that reads it."""
    operations: bool = False
    """Whether every operation of an expression writes its whole result."""
    nodes: bool = False
    """Whether gradients are taken in autograd's order, and added up as they come."""
    shifts: bool = False
    """Whether sums over windows of which not all are whole run shift by shift."""
    unbound: tuple[str, ...] = ()
    """The parameters whose slices one operation takes."""
    branches: bool = False
    """Whether a function by cases computes both branches, and keeps the one its gradient needs."""
    rows: bool = False
    """Whether the rows of loops run operation by operation, and the gradients of such a call in
    the order in which autograd takes them."""
    moves: bool = False
    """Whether what holds another array's entries is counted with that one, once."""

    def carried_by(self, kernel: str) -> tuple[str, ...]:
        """The arrays that one kernel class computes, where such are told apart."""
        return tuple(a for a, k in self.kernels.items() if k == kernel and self.one_kernel)


def schedules(
    kernels: Mapping[str, str], unbound: tuple[str, ...] = (), *, lets_go: bool
) -> Iterator[tuple[str, str, Schedule]]:
    """The switches that lead to an implementation's way: name, meaning, and the schedule when it is
    turned, too.

    Args:
        kernels: array -> the kernel class that carries it.
        unbound: the parameters whose slices one operation takes.
        lets_go: whether the call ends without its output.
    """
    kept = Schedule(kernels, one_kernel=True, unbound=unbound)
    yield "one kernel", IN_ONE, kept
    yield "output let go", LET_GO, (kept := replace(kept, lets_go=lets_go))
    yield "operations", OPERATIONS, (kept := replace(kept, operations=True))
    yield "row by row", ROWS, (kept := replace(kept, rows=True))
    yield "node by node", NODES, (kept := replace(kept, nodes=True))
    yield "shift by shift", SHIFTS, (kept := replace(kept, shifts=True))
    yield "both branches", BRANCHES, (kept := replace(kept, branches=True))
    yield "moved", MOVED, replace(kept, moves=True)


IN_ONE = "arrays between the equations of one kernel, which writes its result and none of them"
LET_GO = "the output, which the caller does not keep: freed after the last equation that reads it"
OPERATIONS = (
    "operations inside of an expression: each writes its whole result, which the one around it "
    "reads; a running sum that is taken at once reads all its terms"
)
ROWS = (
    "rows of a loop, and those that have different lengths: operation by operation, those of one "
    "row after those of the row before; products with matrices that wait for no row are taken "
    "before, of all rows at once, and sums over what a row has with that row; gradients in the "
    "order in which autograd takes them, each added up as it comes"
)
NODES = (
    "gradients in autograd's order: what one operation of the forward pass hands on is taken "
    "together, and added up as it comes"
)
SHIFTS = (
    "sums of products over windows of which some are cut off: one product for each shift, over the "
    "rows that have it, added to the result; backward, the slices of gradients that each hands on, "
    "which are added up as whole arrays"
)
BRANCHES = (
    "both branches of a function by cases, which are there before it chooses; its gradient reads "
    "one of them, in place of what was chosen"
)
MOVED = "entries that are those of another array, moved: they count once while both are held"


def held_in_turn(
    system: System, phase: str, sizes: Mapping[str, int], schedule: Schedule | None = None
) -> int:
    """The largest live set of a phase in elements, each gradient of a parameter held from the
    equation that gives it on."""
    does = schedule or Schedule()
    if does.rows and (looped := _looped(system.forward, does)).loops:
        trained, kept = bool(system.backward), not does.lets_go
        return _row_by_row(looped, tuple(sizes.items()), trained=trained, kept=kept)
    return max(sum(alive.values()) for _, alive in moments(system, phase, sizes, schedule))


@dataclass(frozen=True, eq=False)
class _Looped:
    """A forward pass whose loops run row by row, at any sizes."""

    run: _Run
    order: Order
    loops: Mapping[tuple[Equation, ...], Rows]
    kernels: tuple[str, ...]
    """Arrays of which one kernel computes all that stands on the way."""


@cache
def _looped(forward: System, does: Schedule) -> _Looped:
    plain = replace(does, lets_go=False, nodes=False, shifts=False, branches=False, moves=False)
    if plain != does:
        return _looped(forward, plain)
    run = _run(forward, "training", plain)
    order, loops = loops_of(run.order, run.parts, does.kernels)
    return _Looped(run, order, loops, does.carried_by(ONE_KERNEL))


@cache
def _row_by_row(
    looped: _Looped, sizes: tuple[tuple[str, int], ...], *, trained: bool, kept: bool
) -> int:
    """The largest live set where the rows of loops run operation by operation, and gradients are
    taken as autograd takes them."""
    run, known = looped.run, dict(sizes)
    once = {one.array for one in (*run.held, *run.inside) if one.once}
    unrolled = Unrolled(
        run.system, looped.order, looped.loops, known, once, looped.kernels, run.in_place, trained
    )
    mixer = run.system.mixer
    given = [a for a in mixer.arrays.values() if a.role in GIVEN]
    before = sum(prod(extent.at(known) for extent in array.shape) for array in given)
    return before * known["b"] + unrolled.most(kept=kept)


Moment = tuple[tuple[Equation, ...], Mapping[Array, int]]
"""A step, and the elements that are held while it runs, by array."""


def moments(
    system: System, phase: str, sizes: Mapping[str, int], schedule: Schedule | None = None
) -> list[Moment]:
    """What is held while each step of a phase runs."""
    does = schedule or Schedule()
    run = _run(system, phase, does)
    own = {
        one.array: _number(one, run.system, sizes, whole=does.operations)
        for one in (*run.held, *run.inside)
    }
    for handed in run.handed:
        own |= {a: n * run.batch(sizes)[a] for a, n in handed.written(sizes).items()}
    alive: list[dict[Array, int]] = [{} for _ in run.order]
    for one in run.held:
        for k in range(one.first, one.last + 1):
            alive[k][one.array] = own[one.array]
    found = [moment for k in range(len(alive)) for moment in _within(run, k, alive[k], sizes)]
    if does.moves:
        found = [(step, _once(held, own, run.moves, sizes)) for step, held in found]
    return found


def _within(
    run: _Run, k: int, alive: Mapping[Array, int], sizes: Mapping[str, int]
) -> Iterator[Moment]:
    """What is held while a step runs: shift by shift, where it does."""
    step = run.order[k]
    ends = {one.array for one in run.held if one.last == k} - run.throughout
    batch = run.batch(sizes)
    if shifts := run.shifts.get(step):
        yield from shifts.moments(Around(alive, batch, ends), sizes)
        return
    yield step, alive


@dataclass(frozen=True, eq=False)
class _Run:
    """A phase as an implementation runs it, at any sizes."""

    system: System
    order: Order
    held: Sequence[Held]
    inside: Sequence[Held]
    """What is written and read inside of one kernel alone."""
    phase: str
    parts: Parts
    """What runs in the rows of loops, operation by operation."""
    in_place: frozenset[Equation]
    shifts: Mapping[tuple[Equation, ...], Shifts | Handed]
    """The steps that run shift by shift."""

    @property
    def handed(self) -> list[Handed]:
        """What shifts hand on."""
        return [one for one in self.shifts.values() if isinstance(one, Handed)]

    def batch(self, sizes: Mapping[str, int]) -> Mapping[Array, int]:
        """Array -> how many sequences it tells apart."""
        found = (*self.held, *self.inside)
        return {one.array: 1 if one.once else sizes["b"] for one in found}

    @cached_property
    def throughout(self) -> frozenset[Array]:
        """What is there before a phase, or after it."""
        given = {one.array for one in self.held if one.array.role in GIVEN}
        return frozenset(given | self.system.results(self.phase))

    @cached_property
    def moves(self) -> Moves:
        """What is only moved."""
        return Moves(self.system)


@cache
def _run(system: System, phase: str, does: Schedule) -> _Run:
    carriers = Carriers(system, does.kernels)
    system, parts = _as_run(system, does, carriers)
    in_place = frozenset(e for e in parts.inner if does.kernels.get(e.part_of) == IN_PLACE)
    kernels = _Kernels.of(system, does)
    order = list(_joined(in_rows(steps_of(system, phase), parts), kernels))
    if does.nodes:
        order = list(_all_at_once(order, system, carriers))
    shifts: Mapping[tuple[Equation, ...], Shifts | Handed] = {}
    if does.shifts:
        order, shifts = by_shift(order, carriers, does.unbound, backward=does.nodes)
    held: dict[bool, list[Held]] = {True: [], False: []}
    for one in (*held_arrays(system, phase, order), *_of_parameters(system, phase, order)):
        last = _last(one, order, lets_go=does.lets_go)
        held[_inside(one, order, kernels)].append(replace(one, last=last))
    return _Run(system, order, held[False], held[True], phase, parts, in_place, shifts)


def _as_run(system: System, does: Schedule, carriers: Carriers) -> tuple[System, Parts]:
    """The equations as operations in the order in which they run."""
    if does.nodes:
        system = by_node(system, carriers, does.carried_by(FUSED))
    if does.branches:
        system = by_branch(system)
    parts = Parts()
    if does.operations:
        system = by_operation(system, carriers, parts if does.rows else None)
    return system, parts


def _number(one: Held, system: System, sizes: Mapping[str, int], *, whole: bool) -> int:
    """The elements of an array, of a transform's result all points where it is `whole`."""
    number = one.number.at(sizes)
    for equation in system.defining.get(one.array, ()) if whole else ():
        number = points(equation, sizes) or number
    return number * (1 if one.once else sizes["b"])


def _once(
    alive: Mapping[Array, int], own: Mapping[Array, int], moves: Moves, sizes: Mapping[str, int]
) -> dict[Array, int]:
    """What is held, each entry once: what was moved stands for its source, where that is gone.

    Args:
        own: the elements of every array.
    """
    found: dict[Array, int] = {}
    for array, number in alive.items():
        source = moves.sources.get(array, array)
        whole = max(own.get(source, 0), alive.get(source, 0))
        found[source] = min(found.get(source, 0) + number, whole)
    for array, first in moves.begun.items():
        if array in found and moves.sources.get(first, first) in found:
            found[array] -= moves.rows(array, sizes) * sizes["b"]
    return found


@dataclass(frozen=True)
class _Kernels:
    """The names of arrays, their gradients and what is computed again of them: of `whole` the
    result is written, of `inner` nothing."""

    whole: frozenset[str]
    inner: frozenset[str]

    @staticmethod
    def of(system: System, does: Schedule) -> _Kernels:
        """Those of a schedule."""
        together = does.carried_by(FUSED)
        fused = [e.part_of for e in system.forward.equations if e.part_of in together]
        parts = does.carried_by(ONE_KERNEL), set(together) - {*fused[-1:]}
        return _Kernels(*(frozenset(_named(system, names)) for names in parts))

    def part(self, equation: Equation) -> bool:
        """Whether an equation stands on the way to the result of one kernel."""
        name, own = equation.part_of, equation.array.name
        return name in self.inner or (name in self.whole and name != own)


def _named(system: System, names: Collection[str]) -> Iterator[str]:
    """Some arrays, their gradients and what is computed again of them, by name."""
    for array in system.defining:
        if array.name in names:
            yield from (array.name, gradient_name(array), Origin(array, AGAIN).name)


def _joined(order: Order, kernels: _Kernels) -> Iterator[tuple[Equation, ...]]:
    """The steps, those of one kernel as one: what stands on the way joins the step behind it."""
    waiting: tuple[Equation, ...] = ()
    for step in order:
        waiting = (*waiting, *step)
        if not kernels.part(step[-1]):
            yield waiting
            waiting = ()
    if waiting:
        yield waiting


def _all_at_once(
    order: Order, system: System, carriers: Carriers
) -> Iterator[tuple[Equation, ...]]:
    """The steps, those as one that are the gradients of one kernel which gives all of its own."""

    def operation(step: tuple[Equation, ...]) -> str | None:
        """The kernel class of arrays computed together, or the array that one kernel computes."""
        last = step[-1]
        kernel = carriers.of(last, last.value) if last in system.backward else None
        if kernel not in ALL_AT_ONCE:
            return None
        return kernel if kernel == FUSED else carriers.part(last, last.value)

    for own, steps in groupby(order, key=operation):
        if own is None:
            yield from steps
        else:
            yield tuple(equation for step in steps for equation in step)


def _of_parameters(system: System, phase: str, order: Order) -> Iterator[Held]:
    """The gradients of parameters, from the equations that give them on."""
    written = {e.array: k for k, step in reversed([*enumerate(order)]) for e in step}
    for array in system.results(phase) & system.weights:
        entries = Exact.of(Poly.of(1))
        for extent in array.shape:
            entries = entries * extent
        yield Held(array, entries, written[array], len(order) - 1, once=True)


def _inside(one: Held, order: Order, kernels: _Kernels) -> bool:
    """Whether an array is written and read inside of one kernel alone."""
    parts = {e.array for e in order[one.first] if kernels.part(e)}
    return one.first == one.last and one.array in parts


def _last(one: Held, order: Order, *, lets_go: bool) -> int:
    """The last step that holds an array."""
    if not lets_go or one.array.role != "output":
        return one.last
    reading = [
        k
        for k, step in enumerate(order)
        if any(ref.array == one.array for e in step for ref in references(e))
    ]
    return max([one.first, *reading])
