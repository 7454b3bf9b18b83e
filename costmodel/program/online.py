"""Softmaxes over rows in blocks of keys, as online softmax computes them.

Milakov and Gimelshein 2018, arXiv 1805.02867, algorithm 3; with the weighted sum Dao 2023, arXiv
2307.08691, algorithm 1. Each block q of keys j gives a new maximum M of a row's scores S, and
scales the sums of the blocks before it:

    M[q, i] = max(M[q-1, i], max of S[i, j])    F[q, i] = exp(M[q-1, i] - M[q, i])
    E[i, j] = exp(S[i, j] - M[q, i])            T[q, i] = T[q-1, i] F[q, i] + sum of E[i, j]
    R[q, i] = R[q-1, i] F[q, i] + sum of E[i, j] V[j]

The result is R / T of the row's last block. Block 1 has no block before it; under `zero-state` its
sums are scaled too, as by code that starts from sums of 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from math import gcd

from costmodel.errors import Unsupported
from costmodel.language.equations import Equation, System
from costmodel.language.indices import Index, UnionIndex, outer_first
from costmodel.language.nodes import (
    Add,
    Call,
    Div,
    Flat,
    Maximum,
    Mul,
    Node,
    Reduce,
    Ref,
    Sub,
    derived,
    names_in,
    refs,
    substitute,
    with_entries,
    with_refs,
)
from costmodel.program.chunks import at_each_remainder, with_chunks
from costmodel.symbolic.constraints import implied
from costmodel.symbolic.polynomial import Poly, call

ONE = Poly.of(1)

ONLINE = "online"
"""The `how` of the origin of an array of block numbers and rows."""


def in_blocks_of_keys(system: System, rows: int, *, from_zero: bool = False) -> System:
    """The system with each softmax over rows, and the sums over its weights, in blocks of `rows`
    keys; with `from_zero`, block 1 scales sums of 0, as later blocks scale theirs. A softmax stays
    as it is if its keys are no rows 1, 2, ... of a sequence (a window, a union of ranges), if it
    has a sink, or if anything but sums over the keys of a weight, or of a weight times a factor,
    reads its weights.

    Raises:
        Unsupported: the number of a row's blocks has no formula.
    """
    changed: dict[Equation, list[Equation]] = {}
    for equation in system.equations:
        if found := _softmax(system, equation, rows, from_zero):
            changed |= found.changed
    plain = (part for old in system.equations for part in changed.get(old, [old]))
    parts = chain.from_iterable(map(at_each_remainder, plain))
    made = tuple(map(with_chunks, parts))
    return replace(system, equations=made, beyond=system.beyond or from_zero) if changed else system


def require_even_blocks(system: System) -> None:
    """Raise Unsupported if a softmax in blocks of keys (`ONLINE`) has rows with different numbers
    of blocks, as under a causal bound: gradients are then not derived."""
    for equation in system.equations:
        made = equation.array.origin
        if made and (made.how, made.step) == (ONLINE, "scale"):
            ends = {i.atom: i.upper for i in equation.indices}
            (block,) = names_in(equation.positions[:1])
            if any(end.variables for end in ends[block]):
                raise Unsupported(
                    f"{made.of.name}: no gradients of a softmax in blocks of keys, of which rows "
                    "have different numbers: leave out online=ROWS, or ask for phase training, the "
                    "forward pass"
                )


def _softmax(system: System, result: Equation, rows: int, from_zero: bool) -> _Softmax | None:
    """The softmax whose weights, powers over their sum, the equation `result` defines; None without
    one, or for one that stays as it is (with a window, a sink or other readers of weights: see
    `in_blocks_of_keys`, which takes `rows` and `from_zero`)."""
    value = result.value
    if not isinstance(value, Div) or not isinstance(value.left, Ref):
        return None
    origin = value.left.array.origin
    if origin is None or (origin.how, origin.step) != ("softmax", "exp"):
        return None
    assert isinstance(value.right, Ref)
    ((powers,), (total,)) = (system.defining[ref.array] for ref in (value.left, value.right))
    if not isinstance(total.value, Reduce) or len(total.value.over) != 1:
        return None
    (key,) = total.value.over
    lengths = {array.shape[0] for array in (*system.inputs, *system.mixer.contexts)}
    extents = dict(zip(result.positions, result.array.shape, strict=True))
    sums = [e for e in system.equations if result.array in e.value.arrays]
    weight = Ref(result.array, result.positions)
    if (
        len(system.defining[result.array]) > 1
        or isinstance(key, UnionIndex)
        or key.lower != (ONE,)
        or extents.get(key.as_poly()) not in lengths
        or not sums
        or not all(_is_sum(equation.value, weight, key) for equation in sums)
    ):
        return None
    assert isinstance(powers.value, Call)
    replaced = [powers, total]
    match powers.value.body:
        case Sub(score, Ref(largest)):  # under `safe-softmax`
            replaced += system.defining[largest]
        case score:
            pass
    return _Softmax(result, powers, total, score, sums, replaced, key, rows, from_zero)


def _is_sum(value: Node, weight: Ref, key: Index) -> bool:
    """Whether a right side is a sum over the keys of a weight, or of a weight times a factor."""
    if not isinstance(value, Reduce) or value.kind != "sum" or value.over != (key,):
        return False
    match value.body:
        case Mul(left, right):
            factors = [left, right]
        case body:
            factors = [body]
    return weight in factors and sum(ref.array is weight.array for ref, _ in refs(value)) == 1


@dataclass(frozen=True)
class _Softmax:
    """A softmax of the entries `score`: the equations of its weights (`result`), of their
    exponentials (`powers`), of the sums of these (`total`); the `sums` over its weights, the
    equations that are `replaced` by others, the index of its keys (`key`), the number of keys in a
    block (`rows`), and whether sums start from 0."""

    result: Equation
    powers: Equation
    total: Equation
    score: Node
    sums: Sequence[Equation]
    replaced: Sequence[Equation]
    key: Index
    rows: int
    from_zero: bool

    @property
    def changed(self) -> dict[Equation, list[Equation]]:
        """Equation of the softmax, or of a sum over its weights -> the equations in its place: that
        of the weights becomes running maxima, scales and sums, others of the softmax go ([]). In
        the letters of this file: `most` is M, `scale` F, `power` E, `total` T, `so_far` R."""
        row, q = self.total, self.block.as_poly()
        power = Ref(self.powers.array, self.powers.positions)
        scale = _numbered(row, "scale", self.blocks)(q)
        most, maxima = self.running(row, Reduce("max", self.score, (self.key,)), "max", None)
        total, totals = self.running(row, row.value, "sum", scale)
        pairs = replace(row, indices=tuple(i for i in self.powers.indices if i != self.key))
        shifted = Sub(self.of_block(self.score, q), most(q))
        made = [
            *maxima,
            _defined(row, scale, Call("exp", Sub(most(q - 1), most(q))), self.block),
            _defined(
                pairs,
                self.of_block(power, q),
                Call("exp", shifted),
                replace(self.block, lower=(ONE,)),
                self.place(q),
            ),
            *totals,
        ]
        found: dict[Equation, list[Equation]] = {equation: [] for equation in self.replaced}
        found[self.result] = made
        weight = Ref(self.result.array, self.result.positions)
        for equation in self.sums:
            value = with_entries(equation.value, {weight: power})
            so_far, parts = self.running(equation, value, "sum", scale)
            found[equation] = [
                *parts,
                *(
                    replace(equation, indices=indices, value=Div(so_far(last), total(last)))
                    for last, indices in self.last_blocks(equation)
                ),
            ]
        return found

    def running(
        self, row: Equation, value: Node, step: str, scale: Ref | None
    ) -> tuple[Callable[[Poly], Ref], list[Equation]]:
        """A running maximum, or with a `scale` sum, of a row's `value` over blocks of keys, in a
        new array: (number of a block -> entry, equations of the first block, unless sums start from
        0, and of later ones). `step`: the end of the array's name."""
        # of any maxima, as of any shift of a softmax, the results are the same
        entry = _numbered(row, step, self.blocks, cancels=scale is None)
        q = self.block.as_poly()
        before, later = entry(q - 1), self.of_block(value, q)
        later = Add(Mul(before, scale), later) if scale is not None else Maximum(before, later)
        first = [] if self.from_zero else [_defined(row, entry(ONE), self.of_block(value, ONE))]
        return entry, [*first, _defined(row, entry(q), later, self.block)]

    def of_block(self, part: Node, number: Poly) -> Node:
        """An expression with the keys of block `number` alone: a sum or maximum runs over these
        keys, any other expression is taken at key e of them: S[i, (q-1)*16 + e] for S[i, j]."""
        inner = self.place(number)
        match part:
            case Reduce() if part.over == (self.key,):
                return replace(part, body=self.of_block(part.body, number), over=(inner,))
            case _:
                flat = Flat(number, inner.as_poly(), Poly.of(self.rows))

        def at(ref: Ref) -> Ref:
            places = (flat if p == self.key.as_poly() else p for p in ref.positions)
            return Ref(ref.array, tuple(places))

        return substitute(with_refs(part, at), {self.key.atom: flat.value})

    def place(self, number: Poly) -> Index:
        """The keys of a block, counted from its first."""
        before = (number - 1) * self.rows
        ends = (end - before for end in self.key.upper)
        return Index(f"{self.key.name}_place", (ONE,), (Poly.of(self.rows), *ends))

    @cached_property
    def blocks(self) -> Poly:
        """The number of blocks of all keys."""
        at = self.result.positions.index(self.key.as_poly())
        return self.ceil(self.result.array.shape[at])

    @cached_property
    def block(self) -> Index:
        """The blocks of a row behind another block: from 2 on, or from 1 if sums start from 0."""
        ends = dict.fromkeys(map(self.ceil, self.key.upper))
        first = Poly.of(1 if self.from_zero else 2)
        return Index(f"{self.key.name}_block", (first,), tuple(ends))

    def ceil(self, end: Poly) -> Poly:
        """The number of the block with the key `end`: (i - 1)//B + 1."""
        by = gcd(self.rows, *(int(number) for number in end.terms.values()))
        return call("floor_div", end / by - 1, self.rows // by) + 1

    def last_blocks(self, row: Equation) -> Iterator[tuple[Poly, tuple[Index, ...]]]:
        """Yield (number of the last block of keys, indices of those rows of `row` that have it):
        for blocks of 16 keys j <= 32*g, j <= l (blocks g of 32 rows, `dense=32`), 2*g for g up to
        (l + 15)//32, and (l - 1)//16 + 1 for later g.

        Raises:
            Unsupported: the number has no formula.
        """
        ends = {end: self.ceil(end) for end in self.key.upper}
        for end, last in ends.items():
            begin = (last - 1) * self.rows + 1
            if all(_reaches(row, begin, other) for other in ends if other != end):
                yield last, row.indices
                return
        # one end in an index of blocks of `by` rows each, and one in sizes
        (end, last), (end_of_all, last_of_all), *more = sorted(
            ends.items(), key=lambda each: len(each[1].variables), reverse=True
        )
        index = next((i for i in row.indices if end.variables == {i.atom}), None)
        by = end.coefficient(index.atom).constant() if index else None
        if more or last_of_all.variables or not index or not by or end != index.as_poly() * by:
            raise Unsupported(
                f"{self.result.name}: no formula for the last block of {self.rows} keys of a row"
            )
        # up to this value of the index, a row's last block is that of its own end
        reached = end_of_all - 1 + self.rows if by % self.rows == 0 else last_of_all * self.rows
        full = call("floor_div", reached, Poly.of(by))
        for number, changed in (
            (last, replace(index, upper=(*index.upper, full))),
            (last_of_all, replace(index, lower=(*index.lower, full + 1))),
        ):
            yield number, tuple(changed if i is index else i for i in row.indices)


def _reaches(row: Equation, begin: Poly, end: Poly) -> bool:
    """Whether a block of keys begins at or before an end of the keys, for every row."""
    between = Index("between", (begin,), (end,))
    row = with_chunks(replace(row, indices=(*row.indices, between)))
    (between,) = (index for index in row.indices if index.name == between.name)
    around = (i.constraints for i in row.indices if i is not between)
    return implied(frozenset().union(*around), between.upper[0] - between.lower[0])


def _numbered(
    row: Equation, step: str, blocks: Poly, *, cancels: bool = False
) -> Callable[[Poly], Ref]:
    """A function from the number of a block, 1 to `blocks`, to the entry of a row in a new array
    with the number as its first axis, named after the array that the author defines; `cancels` as
    in `Array`."""
    array = derived(row.whole, ONLINE, step, shape=(blocks, *row.array.shape), cancels=cancels)
    return lambda number: Ref(array, (number, *row.positions))


def _defined(row: Equation, entry: Node, value: Node, *more: Index) -> Equation:
    """The equation entry = value over the indices of a row and `more` indices."""
    assert isinstance(entry, Ref)
    indices = tuple(outer_first([*row.indices, *more]))
    return Equation(entry.array, entry.positions, value, indices, row.whole, row.place)
