"""In which order does autograd take the gradients of a system?

It goes back over the operations of the forward pass. One operation hands on the gradients of all
that it reads, of the last operand first; what an operand that was repeated is handed is summed up
afterwards; where gradients meet, each is added as it comes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import groupby

from costmodel.language.equations import JOINED, SEQUENCE, Equation, System
from costmodel.language.indices import Index
from costmodel.language.nodes import GRADIENT, Add, Array, Node, Reduce, Ref, gradient_name, walk
from costmodel.program.recurrences import blocks, references
from profiler.reconcile.allocations.carriers import ENTRY_BY_ENTRY, PRODUCT, WHOLE, Carriers
from profiler.reconcile.allocations.operations import apart, places_of

LOOP, HANDED, SUMMED, ADDED = range(4)
"""What runs first, and last, while one operation is gone back over."""

Part = tuple[int, int, Equation, str]
"""The turn of an operation, what of it runs, the equation, and how often a batch needs that."""


def by_node(system: System, carriers: Carriers, fused: Collection[str]) -> System:
    """The same equations, those of the gradients in the order in which autograd takes them, with an
    array for each share of a gradient.

    Args:
        fused: arrays of the file that one operation computes together.
    """
    if not system.backward:
        return system
    turns = _Turns(system, fused)
    shares = _Shares(system, carriers, turns)
    parts = [part for equation in system.backward for part in shares.of(equation)]
    parts.sort(key=lambda part: (*part[:2], turns.operand(part)))
    backward = {equation: kind for _, _, equation, kind in parts}
    equations = (*system.forward.equations, *backward)
    return replace(system, equations=equations, backward=backward)


@dataclass
class _Turns:
    """When the operations of the forward pass are gone back over: the turn of the last one is the
    least."""

    system: System
    fused: Collection[str]

    @cached_property
    def places(self) -> Mapping[Array, int]:
        """Array of the forward pass -> the turn of the operation that computes it."""
        found: dict[Array, int] = {}
        together: list[Array] = []
        for k, block in enumerate(blocks(self.system.forward)):
            for e in block.equations:
                found[e.array] = -k
                together += [e.array] * (e.part_of in self.fused)
        last = min((found[array] for array in together), default=0)
        return found | dict.fromkeys(together, last)

    @cached_property
    def read(self) -> Mapping[int, Mapping[str, int]]:
        """Turn -> the gradients of what the operation reads, the last operand first."""
        found: dict[int, dict[str, int]] = {}
        for equation in self.system.forward.equations:
            order = found.setdefault(self.places[equation.array], {})
            for ref in references(equation):
                order[gradient_name(ref.array)] = -len(order)
        return found

    @cached_property
    def of(self) -> Mapping[Array, int]:
        """A gradient, or an array on the way from it -> the turn in which it is handed on."""
        given = [a for a in self.system.mixer.arrays.values() if a.role == "context"]
        arrays = dict.fromkeys([*given, *(e.array for e in self.system.backward)])
        whole = {array: array.origin.of for array in arrays if array.origin and _is_whole(array)}
        found = {array: self.places[of] for array, of in whole.items() if of in self.places}
        on_the_way = [e for e in self.system.backward if e.array not in found]
        for equation in on_the_way:
            turns = [found[array] for array in _read(equation.value) if array in found]
            if turns:
                found[equation.array] = max(*turns, found.get(equation.array, turns[0]))
        for equation in reversed(on_the_way):
            if equation.array not in found:  # it reads no gradient: computed when it is read
                readers = (e for e in self.system.backward if equation.array in _read(e.value))
                found[equation.array] = min(self.turn(e, e.value, found) for e in readers)
        return found

    @staticmethod
    def turn(equation: Equation, node: Node, turns: Mapping[Array, int]) -> int:
        """The turn in which a part of a gradient is computed: of one that reads no other gradient,
        in which it is read."""
        found = [turns[array] for array in _read(node) if array in turns]
        return max(found) if found else turns[equation.array]

    @cached_property
    def loops(self) -> Mapping[Equation, int]:
        """Equation of a loop -> the turn in which the loop runs."""
        found: dict[Equation, int] = {}
        for block in blocks(self.system):
            if block.is_loop and block.equations[0] in self.system.backward:
                turn = min(self.of[e.array] for e in block.equations)
                found |= dict.fromkeys(block.equations, turn)
        return found

    def operand(self, part: Part) -> int:
        """The place of a share among those of one operation: what several of them read first."""
        turn, what, equation, _ = part
        order = self.read.get(turn, {})
        return 0 if what == LOOP else order.get(equation.part_of, -len(order))


@dataclass
class _Shares:
    """Takes gradients apart into what each operation hands on."""

    system: System
    carriers: Carriers
    turns: _Turns

    def of(self, equation: Equation) -> Iterator[Part]:
        """The shares of a gradient, and their sums as they come."""
        kind = self.system.backward[equation]
        if equation in self.turns.loops:
            yield self.turns.loops[equation], LOOP, equation, kind
            return
        shares = self._shares(equation)
        total: Ref | None = None
        for k, (turn, term) in enumerate(shares, 1):
            last = k == len(shares)
            if total is None and last:
                yield from self._handed(turn, replace(equation, value=term), kind)
                return
            share = term if isinstance(term, Ref) else _part(equation, f"{equation.name}[{k}]")
            if share is not term:
                own = replace(equation, array=share.array, value=term)
                yield from self._handed(turn, own, kind)
            if total is not None:
                sum_ = _part(equation, f"{equation.name}[1..{k}]")
                array = equation.array if last else sum_.array
                yield turn, ADDED, replace(equation, array=array, value=Add(total, share)), kind
                share = sum_
            total = share

    def _shares(self, equation: Equation) -> Sequence[tuple[int, Node]]:
        """What a gradient adds up, with the turns: all that one kernel hands on is one share."""
        collected = equation.array is equation.whole or _is_whole(equation.array)
        added = _terms(equation.value) if collected else [equation.value]
        terms = [(self.turns.turn(equation, t, self.turns.of), t) for t in added]
        terms.sort(key=lambda entry: entry[0])
        found: list[tuple[int, Node]] = []
        for turn, group in groupby(terms, key=lambda entry: entry[0]):
            nodes = [node for _, node in group]
            if self.carriers.of(equation, nodes[0]) in WHOLE:
                nodes = [_one(nodes)]
            found += [(turn, node) for node in nodes]
        return found

    def _handed(self, turn: int, equation: Equation, kind: str) -> Iterator[Part]:
        """A share; what another operation sums up comes before."""
        entries = self._entries(equation, kind)
        if entries is None:
            yield turn, HANDED, equation, kind
            return
        inner, over = entries
        own = apart(equation, inner, over, f"{equation.name}*")
        yield turn, HANDED, own, SEQUENCE if kind == JOINED else kind
        read: Node = Ref(own.array, own.positions)
        if kind == JOINED and self.carriers.of(equation, equation.value) == PRODUCT:
            joined = replace(
                own, array=replace(own.array, name=f"{equation.name}+", origin=None), value=read
            )
            yield turn, SUMMED, joined, JOINED
            read = Ref(joined.array, joined.positions)
        value = Reduce("sum", read, over) if over else read
        yield turn, SUMMED, replace(equation, value=value), kind

    def _entries(self, equation: Equation, kind: str) -> tuple[Node, tuple[Index, ...]] | None:
        """What is written before it is summed up, and over what; None where nothing is.

        Of an operand that was repeated, it is what every repetition is handed.
        """
        value = equation.value
        body, over = (value.body, value.over) if isinstance(value, Reduce) else (value, ())
        kernel = self.carriers.of(equation, value)
        if kernel in ENTRY_BY_ENTRY:
            return (body, over) if (over or kind == JOINED) and not isinstance(body, Ref) else None
        windows = tuple(index for index in over if windowed(index, equation))
        if kernel != PRODUCT or not windows or not self._repeated(equation):
            return None
        rest = tuple(index for index in over if index not in windows)
        return (Reduce("sum", body, rest) if rest else body), windows

    def _repeated(self, equation: Equation) -> bool:
        """Whether the operand whose gradient is taken was read at sums of indices, by an operation
        that runs over the same range of each index whatever the others are."""
        part = self.carriers.part(equation, equation.value)
        readers = [e for e in self.system.forward.equations if e.part_of == part]
        summed = (i for e in readers for _, over in walk(e.value) for i in over)
        indices = [*(i for e in readers for i in e.indices), *summed]
        named = {i.atom for i in indices}
        sums = any(
            len(place.letters & named) > 1
            for e in readers
            for ref in references(e)
            if gradient_name(ref.array) == equation.part_of
            for place in places_of(ref)
        )
        return sums and not ragged(indices)


def ragged(indices: Sequence[Index]) -> bool:
    """Whether the range of one index depends on another one."""
    named = {index.atom for index in indices}
    return any(end.letters & named for index in indices for end in index.ends)


def windowed(index: Index, equation: Equation) -> bool:
    """Whether a summed index stands in one position with a free one."""
    free = {i.atom for i in equation.indices}
    places = [place.letters for place in places_of(equation.value)]
    return any(index.atom in letters and letters & free for letters in places)


def _one(nodes: Sequence[Node]) -> Node:
    """Their sum, as one sum where they are sums over the same indices."""
    over = {node.over if isinstance(node, Reduce) else () for node in nodes}
    if len(nodes) > 1 and len(over) == 1 and (indices := over.pop()):
        return Reduce("sum", _one([n.body for n in nodes if isinstance(n, Reduce)]), indices)
    return reduce(Add, nodes)


def _read(node: Node) -> list[Array]:
    """The arrays that an expression reads."""
    return [n.array for n, _ in walk(node) if isinstance(n, Ref)]


def _part(equation: Equation, name: str) -> Ref:
    """An array of its own for a part of a gradient."""
    return Ref(
        replace(equation.array, name=name, origin=None, role="intermediate"), equation.positions
    )


def _terms(node: Node) -> Iterator[Node]:
    """What a sum adds up."""
    if isinstance(node, Add):
        yield from _terms(node.left)
        yield from _terms(node.right)
    else:
        yield node


def _is_whole(array: Array) -> bool:
    """Whether an array is a whole gradient: of an output, its sum beside what is given."""
    return bool(array.origin and array.origin.how == GRADIENT and array.origin.step in ("", "sum"))
