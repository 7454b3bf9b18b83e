"""How much would the equations hold at once, at most, if they ran as an implementation runs them?

The equations' own schedule is that of `costmodel.rules.peak`. What an implementation does otherwise
is a switch under which it is counted again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from costmodel.adjoint.recompute import AGAIN
from costmodel.domains import Exact
from costmodel.equations import Equation, System, gradient_name
from costmodel.expressions import (
    Array,
    Binary,
    Call,
    Gather,
    Neg,
    Node,
    Reduce,
    Ref,
    position_value,
    walk,
)
from costmodel.loops import blocks, references
from costmodel.polynomial import Poly
from costmodel.rules.peak import Held, held_arrays, steps_of

Order = Sequence[tuple[Equation, ...]]
"""The equations of a phase in turn; a loop is one step."""

ONE_KERNEL = "softmax"
"""The kernel class that computes all that a composite is written out as."""

FUSED = "fused-attention"
"""The kernel class of several arrays of which the last alone is written."""


@dataclass(frozen=True)
class Schedule:
    """How an implementation holds arrays otherwise than the equations' schedule has it."""

    whole: tuple[str, ...] = ()
    """Arrays that one kernel computes, with all that they are written out as: it writes nothing
    else."""
    fused: tuple[str, ...] = ()
    """Arrays that one kernel computes together: it writes the last one."""
    lets_go: bool = False
    """Whether the output is released after the last equation that reads it."""
    at_once: bool = False
    """Whether gradients of parameters are computed as soon as what they read is there."""
    operands: bool = False
    """Whether sums inside of an expression are written before what they are an operand of."""


def schedules(kernels: Mapping[str, str], *, lets_go: bool) -> Iterator[tuple[str, str, Schedule]]:
    """The switches that lead to an implementation's way: name, meaning, and the schedule when it is
    turned, too.

    Args:
        kernels: array -> the kernel class that carries it.
        lets_go: whether the call ends without its output.
    """
    whole, fused = (
        tuple(array for array, kernel in kernels.items() if kernel == one)
        for one in (ONE_KERNEL, FUSED)
    )
    kept = Schedule(whole, fused)
    yield "one kernel", IN_ONE, kept
    yield "output let go", LET_GO, (kept := replace(kept, lets_go=lets_go))
    yield "gradients at once", AT_ONCE, (kept := replace(kept, at_once=True))
    yield "operands", OPERANDS, replace(kept, operands=True)


IN_ONE = "arrays that stand on the way inside of one kernel, which writes its result alone"
LET_GO = "the output, which the call does not hold on to: held until it is last read"
AT_ONCE = "gradients of parameters, each taken as soon as what it reads is there"
OPERANDS = "sums inside of an expression: each is written, and read by the operation around it"


def held_in_turn(
    system: System, phase: str, sizes: Mapping[str, int], schedule: Schedule | None = None
) -> int:
    """The largest live set of a phase in elements, each gradient of a parameter held from the
    equation that gives it on."""
    does = schedule or Schedule()
    system = by_operation(system) if does.operands else system
    inside = _Kernels.of(system, does)
    order = list(_joined(steps_of(system, phase), inside))
    if does.at_once:
        order = _as_soon(order, system.results(phase) & system.weights)
    held = [*held_arrays(system, phase, order), *_of_parameters(system, phase, order)]
    sums = [0] * len(order)
    for one in held:
        if _inside(one, order, inside):
            continue
        number = one.number.at(sizes) * (1 if one.once else sizes["b"])
        for k in range(one.first, _last(one, order, lets_go=does.lets_go) + 1):
            sums[k] += number
    return max(sums)


@dataclass(frozen=True)
class _Kernels:
    """The names of arrays, their gradients and what is computed again of them: of `whole` the
    result is written, of `inner` nothing."""

    whole: frozenset[str]
    inner: frozenset[str]

    @staticmethod
    def of(system: System, does: Schedule) -> _Kernels:
        """Those of a schedule."""
        fused = [e.part_of for e in system.forward.equations if e.part_of in does.fused]
        inner = set(does.fused) - {*fused[-1:]}
        return _Kernels(*(frozenset(_named(system, names)) for names in (does.whole, inner)))

    def part(self, equation: Equation) -> bool:
        """Whether an equation stands on the way to the result of one kernel."""
        name, own = equation.part_of, equation.array.name
        return name in self.inner or (name in self.whole and name != own)


def _named(system: System, names: Collection[str]) -> Iterator[str]:
    """Some arrays, their gradients and what is computed again of them, by name."""
    for array in system.defining:
        if array.name in names:
            yield from (array.name, gradient_name(array), array.name + AGAIN)


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


def _as_soon(order: Order, soon: Collection[Array]) -> list[tuple[Equation, ...]]:
    """The steps in turn, those that write some arrays moved to right behind what they read."""
    placed = [step for step in order if step[0].array not in soon]
    for step in order:
        if step[0].array in soon:
            read = {ref.array for equation in step for ref in references(equation)}
            behind = [k for k, other in enumerate(placed) if any(e.array in read for e in other)]
            placed.insert(max(behind, default=-1) + 1, step)
    return placed


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


def by_operation(system: System) -> System:
    """The same equations, with an array for every sum inside of an expression and for what is
    computed from it on the way to the result; rows of loops stay as they are."""
    in_loops = {e for block in blocks(system) if block.is_loop for e in block.equations}
    backward = dict(system.backward)
    written: list[Equation] = []
    for equation in system.equations:
        parts = [equation] if equation in in_loops else _parts(equation)
        if equation in system.backward:
            backward |= dict.fromkeys(parts, system.backward[equation])
        written += parts
    return replace(system, equations=tuple(written), backward=backward)


def _parts(equation: Equation) -> list[Equation]:
    """An equation, after those of the operands that are written on the way."""
    letters = {index.atom for index in equation.indices}
    parts: list[Equation] = []

    def whole(node: Node) -> Node:
        """A node that reads its written operands."""
        if isinstance(node, Binary):
            left, right = operand(node.left), operand(node.right)
            return type(node)(left, right)
        return replace(node, body=operand(node.body)) if isinstance(node, Neg | Call) else node

    def operand(node: Node) -> Node:
        """What stands for an operand: an array, where it is a sum or computed from one."""
        if not _sums(node, letters):
            return node
        value = whole(node)
        name = f"{equation.name}({len(parts) + 1})"
        array = replace(equation.array, name=name, role="intermediate")
        parts.append(replace(equation, array=array, value=value))
        return Ref(array, equation.positions)

    value = whole(equation.value)
    return [*parts, replace(equation, value=value)] if parts else [equation]


def _sums(node: Node, letters: set[str]) -> bool:
    """Whether a node is a sum, or computed from one, that has an entry for all indices."""
    if isinstance(node, Reduce):
        return letters <= {a for n, _ in walk(node) if isinstance(n, Ref) for a in _names(n)}
    return isinstance(node, Binary | Neg | Call) and any(_sums(c, letters) for c in node.children)


def _names(ref: Ref) -> set[str]:
    """The indices in the positions of a reference."""
    places = [position_value(p) for p in ref.positions if not isinstance(p, Gather)]
    return {atom for place in places for atom in place.letters if atom[0] == "@"}
