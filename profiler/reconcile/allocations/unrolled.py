"""Which operations run when the rows of loops run one after another, and what do they hold?

What was computed before a loop is cut into its rows by one operation; what reads all rows reads
them put together. Parts of one result that are each read alone are cut by one operation too; others
are slices.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass, field, replace
from math import prod

from costmodel.errors import Unsupported
from costmodel.language.equations import Equation, System
from costmodel.language.nodes import (
    Add,
    Array,
    Binary,
    Call,
    Constant,
    Div,
    Flat,
    Mul,
    Neg,
    Node,
    Reduce,
    Ref,
    Sub,
)
from costmodel.program.recurrences import references
from costmodel.symbolic.polynomial import Poly
from profiler.reconcile.allocations.formulas import Key, Operations, Tensor
from profiler.reconcile.allocations.graph import Graph
from profiler.reconcile.allocations.reading import (
    WEIGHTS,
    ends_of,
    entries_of,
    letters_of,
    multiplies,
    number_of,
    operands,
    part_of,
    varies,
)
from profiler.reconcile.allocations.rows import Made, Operation, Place, Rows
from profiler.reconcile.allocations.tape import Value
from profiler.reconcile.allocations.together import Reads

GIVEN = ("input", "context", *WEIGHTS)
"""Roles of what is there before a call."""

BINARY: Mapping[type[Binary], Callable[..., Tensor]] = {
    Add: Operations.add,
    Sub: Operations.subtract,
    Mul: Operations.multiply,
    Div: Operations.divide,
}


@dataclass(eq=False)
class Unrolled:
    """A forward pass at some sizes, and its gradients where they are taken.

    Args:
        order: the equations in the order in which they run; what runs with the rows of one loop is
            one step.
        loops: such a step -> the rows.
        once: what has no batch.
        kernels: arrays of which one kernel computes all that stands on the way.
        in_place: what overwrites an operand that stands on the way to it.
        trained: whether gradients are taken.
    """

    system: System
    order: Sequence[Operation]
    loops: Mapping[Operation, Rows]
    sizes: Mapping[str, int]
    once: Collection[Array]
    kernels: Collection[str]
    in_place: AbstractSet[Equation]
    trained: bool
    whole: dict[Array, Tensor] = field(default_factory=dict)
    """What is there as a whole."""
    of_rows: dict[Array, tuple[Rows, Made]] = field(default_factory=dict)
    """What the rows of loops have written that have run."""
    joined: dict[tuple[Tensor, ...], Tensor] = field(default_factory=dict)
    """Rows -> what they were put together into."""
    in_rows: dict[tuple[Tensor, int], Sequence[Tensor]] = field(default_factory=dict)
    """Tensors that were cut into so many rows."""
    in_parts: dict[Tensor, Mapping[Key, Tensor]] = field(default_factory=dict)
    """Tensors that were cut into their parts."""

    def __post_init__(self) -> None:
        self.does = Operations(Graph(), self.trained)
        self.reads = Reads(self.order, self.loops, self.sizes, self.in_place)
        for array in self.system.mixer.arrays.values():
            if array.role in GIVEN:
                self.whole[array] = self._given(array)

    def most(self, *, kept: bool) -> int:
        """The most elements that are held at once and were not before.

        Args:
            kept: whether the output is held to the end.
        """
        for step in self.order:
            if (rows := self.loops.get(step)) is None:
                self._run(step, None)
            else:
                rows = replace(rows, sizes=self.sizes)
                made = self._loop(step, rows, None)
                self.of_rows |= {e.array: (rows, made) for e in step}
        array = self.system.mixer.role("output")
        output = self.whole[array] if array in self.whole else self._of_rows(array)
        tape = self.does.graph.tape
        if kept:
            tape.kept.add(output.value)
        if self.trained and output.edge:
            gradient = Value(output.size, given=True)
            tape.kept |= {*self.does.graph.backward(output.edge, gradient).values()}
        return tape.most()

    def _given(self, array: Array) -> Tensor:
        """What is there before the call, with the parts of it that equations read."""
        size = prod(extent.at(self.sizes) for extent in array.shape)
        keys = {key for keys in self.reads.together for key in keys if key[:1] == (array,)}
        parts: dict[Key, int] = {}
        if len(keys) > 1:
            parts |= {key: size // len(keys) for key in sorted(keys, key=lambda key: key[1:])}
        weight = array.role in WEIGHTS
        size *= 1 if weight else self.sizes["b"]
        found = self.does.given(size, once=weight, parts=parts)
        return replace(found, edge=None) if array.role == "buffer" else found

    def _loop(self, step: Operation, rows: Rows, outer: Place | None) -> Made:
        """Run all rows: what each of them has written."""
        made: Made = {}
        read = [(e, ref) for e in step for ref in references(e) if ref.array.role not in WEIGHTS]
        for _, ref in read if outer is None else ():
            if ref.array in self.of_rows and ref.array not in self.whole:
                self.whole[ref.array] = self._of_rows(ref.array)
        order = [*self.whole]
        before = [(e, ref) for e, ref in read if ref.array in self.whole]
        before.sort(key=lambda pair: order.index(pair[1].array))
        if not rows.sliced:
            for e, ref in before:
                if cut := rows.cut(e, ref):
                    self._in_rows(self.whole[ref.array], cut)
        cut_first = [pair for pair in before if rows.inner or self._alone(pair[1].array)]
        for row in rows.numbers:
            place = Place(rows, row, made, outer)
            for e, ref in cut_first:
                if rows.runs(e, row):
                    self._cut(e, ref, place)
            for operation in rows.operations(row):
                if operation in rows.inner:
                    self._within(operation, place)
                else:
                    for part in self.reads.parts(operation):
                        self._run(part, place)
        return made

    def _within(self, step: Operation, place: Place) -> None:
        """Run a loop in a row of another one, and put together what is read of its rows."""
        rows = replace(place.rows.inner[step], sizes=place.sizes(step[0]))
        made = self._loop(step, rows, place)
        beside = {r.array for e in self.system.equations if e not in step for r in references(e)}
        for array in dict.fromkeys(e.array for e in step):
            found = self._listed(array, rows, made)
            if found and array in beside:
                place.made[array, place.row] = self._together(found)

    def _of_rows(self, array: Array) -> Tensor:
        """All rows of a loop that has run, put together."""
        rows, made = self.of_rows[array]
        return self._together(self._listed(array, rows, made))

    def _listed(self, array: Array, rows: Rows, made: Made) -> list[Tensor]:
        """The rows that a loop has written of an array, in order."""
        found = [made.get((array, row)) for row in sorted(rows.numbers)]
        return [self._part(tensor, [(array,)]) for tensor in found if tensor is not None]

    def _together(self, rows: Sequence[Tensor]) -> Tensor:
        """Rows put together."""
        if (key := tuple(rows)) not in self.joined:
            self.joined[key] = self.does.stack(rows)
        return self.joined[key]

    def _alone(self, array: Array) -> bool:
        """Whether the parts of what computed an array are each read alone."""
        parts = self.whole[array].parts
        return bool(parts) and self.reads.alone(parts)

    def _cut(self, equation: Equation, ref: Ref, at: Place) -> None:
        """Cut what a row reads of what was computed before the loop: for the loops that run in it,
        or into the parts that are read alone."""
        if at.rows.inner:
            self._sliced(self.whole[ref.array], ref, equation, at)
        else:
            self._part(self._row(ref, equation, at), [part_of(ref)])

    def _in_rows(self, of: Tensor, number: int) -> Sequence[Tensor]:
        """The rows of a tensor, which one operation cuts."""
        if (of, number) not in self.in_rows:
            self.in_rows[of, number] = self.does.rows(of, number)
        return self.in_rows[of, number]

    def _run(self, operation: Operation, at: Place | None) -> None:
        """Run one operation, and know what it computed."""
        own = operation[-1:] if operation[-1].part_of in self.kernels else operation
        sizes: dict[Key, int] = {}
        for e in own:
            sizes[e.array,] = sizes.get((e.array,), 0) + self._size(e, at)
        if not any(sizes.values()):
            return
        made = self._made(operation, sum(sizes.values()), at)
        made = replace(made, once=own[-1].array in self.once)
        if len(sizes) > 1:
            made = replace(made, parts=sizes)
            if self.reads.alone(sizes):
                self.in_parts[made] = self.does.chunks(made)
        for e in own:
            if at is None:
                self.whole[e.array] = made
            else:
                at.made[e.array, at.row] = made

    def _made(self, operation: Operation, size: int, at: Place | None) -> Tensor:
        """The result of an operation."""
        value, does = operation[0].value, self.does
        found = [self._operand(nodes, operation, at) for nodes in operands(operation)]
        tensors = [tensor for tensor in found if tensor is not None]
        if not tensors or (multiplies(value) and None in found):
            raise Unsupported(f"the operations of {operation[0].name}")
        if operation[-1].part_of in self.kernels:
            return does.softmax(tensors[0], size)
        if isinstance(value, Ref):
            return tensors[0]
        if multiplies(value):
            return self._product(operation, tensors, size, at)
        over = self._over(operation, found, at)
        if isinstance(value, Neg):
            return does.by_number(tensors[0], size, over=over)
        if isinstance(value, Call):
            return does.call(value.function, tensors[0], size, over=over)
        if isinstance(value, Reduce) and value.kind == "sum":
            return does.total(tensors[0], size)
        if not isinstance(value, Binary):
            raise Unsupported(f"the operations of {operation[0].name}")
        if len(tensors) == 1:
            same = isinstance(value, Add) or (isinstance(value, Sub) and found[0] is not None)
            if isinstance(value, Div) and found[0] is None:
                raise Unsupported(f"the operations of {operation[0].name}")
            return does.by_number(tensors[0], size, same=same, over=over)
        return BINARY[type(value)](does, *tensors, size, over=over)

    def _product(
        self, operation: Operation, tensors: Sequence[Tensor], size: int, at: Place | None
    ) -> Tensor:
        """A product of matrices, and what a layer adds to it: at once, where the rows that it takes
        lie one after another (at::linear asks whether they are contiguous)."""
        one, two, *more = tensors
        if more and self._side_by_side(size // more[0].size):
            return self.does.affine(one, two, more[0], size)
        found = self.does.product(one, two, size, folded=self._folded(operation[0], at))
        return self.does.add(found, more[0], size) if more else found

    def _side_by_side(self, rows: int) -> bool:
        """Whether so many rows lie one after another, of a batch of sequences one row after
        another."""
        return rows == self.sizes["b"] or self.sizes["b"] == 1

    def _over(
        self, operation: Operation, found: Sequence[Tensor | None], at: Place | None
    ) -> Tensor | None:
        """What a result is written over: an operand that stands on the way to it.

        Of the layers of PyTorch, an output is new unless it is a sum, and so is a sum with what was
        computed of all rows before, unless it is one of a product (aten/native/RNN.cpp).
        """
        first = operation[0]
        if at is None or self.in_place.isdisjoint(operation):
            return None
        named = first.array.name == first.part_of
        if named and first.array.role == "output" and not isinstance(first.value, Add):
            return None
        writers = {e.array: e for e in at.rows.rows}
        refs = [[n for n in nodes if isinstance(n, Ref)] for nodes in operands(operation)]
        before = any(ref.array not in writers for one in refs for ref in one)
        for tensor, one in zip(found, refs, strict=True):
            own = [writers[ref.array] for ref in one if ref.array in writers]
            on_the_way = bool(own) and all(e.array.name != e.part_of for e in own)
            if on_the_way and not (before and not multiplies(own[0].value)):
                return tensor
        return None

    def _operand(
        self, nodes: Sequence[Node], equations: Operation, at: Place | None
    ) -> Tensor | None:
        """What an operation reads in one place; None of a number.

        Raises:
            Unsupported: it is no result of one operation.
        """
        if all(isinstance(node, Constant) for node in nodes):
            return None
        refs = [node for node in nodes if isinstance(node, Ref)]
        named = equations[0].name
        if len(refs) < len(nodes):
            raise Unsupported(f"an operation of {named} that reads numbers beside entries")
        pairs = [*zip(refs, equations, strict=False)]
        rows = [row for ref, e in pairs for row in self._finished(ref, e, at)]
        if rows:
            return self._together([*dict.fromkeys(rows)])
        sources = list(dict.fromkeys(self._source(ref, e, at) for ref, e in pairs))
        if len(sources) > 1:
            raise Unsupported(f"an operation of {named} that reads what several operations wrote")
        return self._part(sources[0], [part_of(ref) for ref in refs])

    def _finished(self, ref: Ref, equation: Equation, at: Place | None) -> list[Tensor]:
        """The rows of a loop that has run which an entry is read from."""
        if at is not None or ref.array not in self.of_rows:
            return []
        rows, made = self.of_rows[ref.array]
        axis = rows.axes[ref.array]
        if axis is None:
            return self._listed(ref.array, rows, made)
        place, extent = ref.positions[axis], 1
        if isinstance(place, Flat):
            place = place.outer
        else:
            own = [e.positions[axis] for e in rows.rows if e.array == ref.array]
            extent = next((p.extent.at(self.sizes) for p in own if isinstance(p, Flat)), 1)
        assert isinstance(place, Poly)
        ends = ends_of(equation.indices, self.sizes)
        low, high = (
            (place.at({**self.sizes, **{atom: pair[k] for atom, pair in ends.items()}}) - 1)
            // extent
            + 1
            for k in (0, 1)
        )
        found = [made.get((ref.array, row)) for row in range(low, high + 1)]
        return [self._part(tensor, [part_of(ref)]) for tensor in found if tensor is not None]

    def _source(self, ref: Ref, equation: Equation, at: Place | None) -> Tensor:
        """The result that an entry is one of, or the row of it."""
        if at is None or ref.array.role in WEIGHTS:
            return self._found(ref.array)
        for place in reversed(at.chain):
            if ref.array in place.rows.axes:
                return self._own(ref, equation, place)
        return self._row(ref, equation, at)

    def _found(self, array: Array) -> Tensor:
        """What is there as a whole.

        Raises:
            Unsupported: nothing has computed it.
        """
        if array not in self.whole:
            raise Unsupported(f"{array.name} is read before an operation has written it")
        return self.whole[array]

    def _own(self, ref: Ref, equation: Equation, at: Place) -> Tensor:
        """What a row of the loop has written: before the first row there are zeros."""
        place = ref.array, at.row - at.rows.lag(equation, ref)
        if place not in at.made and self.system.beyond and place[1] not in at.rows.numbers:
            size = next(self._size(e, at) for e in at.rows.rows if e.array == ref.array)
            at.made[place] = Tensor(Value(size, given=True), size, None)
        if place not in at.made:
            raise Unsupported(f"{ref.array.name} is read before a row of it is written")
        return at.made[place]

    def _row(self, ref: Ref, equation: Equation, at: Place) -> Tensor:
        """What a row reads of what was computed before the loop: a row of it, or a slice."""
        found = self._found(ref.array)
        if not at.rows.sliced:
            if not (number := at.rows.cut(equation, ref)):
                return found
            return self._in_rows(found, number)[at.rows.place(equation, ref, at.row) - 1]
        for place in at.chain:
            found = self._sliced(found, ref, equation, place)
        return found

    def _sliced(self, of: Tensor, ref: Ref, equation: Equation, at: Place) -> Tensor:
        """What a row reads of a tensor, cut out once for all loops that run in the row."""
        if not varies(ref, equation, at.rows.rows[equation]):
            return of
        size = entries_of(ref, equation, at.sizes(equation)) * self.sizes["b"]
        if not at.rows.inner:
            return self.does.slice(of, size, {})
        if (of, size) not in at.slices:
            at.slices[of, size] = self.does.slice(of, size, {})
        return at.slices[of, size]

    def _part(self, of: Tensor, keys: Sequence[Key]) -> Tensor:
        """Some parts of a tensor."""
        wanted = {*keys} & of.parts.keys()
        if wanted == of.parts.keys():
            return of
        if self.reads.alone(of.parts):
            if of not in self.in_parts:
                self.in_parts[of] = self.does.chunks(of)
            (key,) = wanted
            return self.in_parts[of][key]
        parts = {key: n for key, n in of.parts.items() if key in wanted}
        return self.does.slice(of, sum(parts.values()), parts)

    def _size(self, equation: Equation, at: Place | None) -> int:
        """The elements that an equation writes."""
        sizes = self.sizes if at is None else at.sizes(equation)
        number = number_of([i for i in equation.indices if i.atom not in sizes], sizes)
        return number * (1 if equation.array in self.once else self.sizes["b"])

    def _folded(self, equation: Equation, at: Place | None) -> bool:
        """Whether a product runs over another axis beside the batch."""
        one, two = (letters_of(nodes[0]) for nodes in operands((equation,))[:2])
        sizes = self.sizes if at is None else at.sizes(equation)
        both = [i for i in equation.indices if i.atom in one & two and i.atom not in sizes]
        return self.sizes["b"] > 1 and any(number_of([i], sizes) > 1 for i in both)
