"""Which arrays does an implementation write whose operations run one by one?

An equation may hold a whole expression. Where nothing runs it in one kernel, every operation of it
writes an array, which the operation around it reads; a matrix product does not write the products
that it sums up, and does write what is computed before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from costmodel.adjoint.derivatives import OF_BOTH
from costmodel.adjoint.residuals import Shared, extent
from costmodel.language.equations import Equation, System
from costmodel.language.indices import Index
from costmodel.language.nodes import (
    Add,
    Binary,
    Bracket,
    Call,
    Flat,
    FreeScale,
    Gather,
    Mul,
    Neg,
    Node,
    Position,
    Reduce,
    Ref,
    gradient_name,
    reading,
    walk,
)
from costmodel.program.recurrences import Block, blocks, references
from costmodel.symbolic.polynomial import Poly
from profiler.reconcile.allocations.carriers import (
    ENTRY_BY_ENTRY,
    IN_PLACE,
    MULTIPLIED,
    RUNNING,
    WHOLE,
    Carriers,
)


@dataclass
class Parts:
    """What the equations of loops are taken apart into."""

    before: dict[Equation, Equation] = field(default_factory=dict)
    """What is computed of all rows before the loop -> the equation that it is a part of."""
    inner: dict[Equation, Equation] = field(default_factory=dict)
    """What runs in every row -> the equation that it is a part of."""
    loops: dict[Equation, Block] = field(default_factory=dict)
    """Either -> the loop."""
    rows: dict[Equation, Poly] = field(default_factory=dict)
    """An equation that only reads the loop -> the row with which it runs."""

    def row(self, equation: Equation) -> Poly:
        """The row with which an equation runs, in its own indices."""
        if equation in self.rows:
            return self.rows[equation]
        return self.loops[equation].row(self.inner[equation])

    def settle(self) -> None:
        """What is computed before a loop of some rows alone runs with these rows."""
        late: dict[Equation, Equation] = {}
        for loop in {self.loops[e]: None for e in self.inner}:
            every = {loop.row(e) for e in loop.equations}
            own = [e for e in self.before if self.loops[e] is loop]
            for e in own:
                alike = {loop.row(self.before[o]) for o in own if o.array == e.array}
                waits = {o.array for o in late}.intersection(r.array for r in references(e))
                if alike != every or waits:
                    late[e] = self.before[e]
        ran = late | self.inner
        order = [e for loop in {self.loops[e]: None for e in ran} for e in loop.equations]
        self.before = {e: of for e, of in self.before.items() if e not in late}
        self.inner = dict(sorted(ran.items(), key=lambda pair: order.index(pair[1])))


def by_operation(system: System, carriers: Carriers, rows: Parts | None = None) -> System:
    """The same equations, with an array for every operation inside of an expression.

    Rows of loops stay as they are, but for running sums that are computed at once: their terms are
    written before.

    Args:
        rows: if given, rows of loops of the forward pass are taken apart too: it gets the parts.
    """
    loops = {e: block for block in blocks(system) if block.is_loop for e in block.equations}
    backward = dict(system.backward)
    written: list[Equation] = []
    waiting: dict[Block, list[Equation]] = {}
    terms = Shared()
    for equation in system.equations:
        kernel = carriers.of(equation, equation.value)
        inner: list[Equation] = []
        if loop := loops.get(equation):
            writer = _Writer(equation, carriers, terms)
            if kernel == RUNNING:
                *parts, own = writer.row(loop)
                inner = [own]
            elif rows is None or equation in system.backward:
                parts, inner = [], [equation]
            else:
                parts, inner = [], writer.by_row(loop, rows)
        else:
            parts = [equation] if kernel in WHOLE else _Writer(equation, carriers).parts()
        if equation in system.backward:
            backward |= dict.fromkeys((*parts, *inner), system.backward[equation])
        written += parts
        if loop:
            waiting.setdefault(loop, []).extend(inner)
            written += _complete(waiting[loop], loop) if equation == loop.equations[-1] else []
    if rows is not None:
        rows.settle()
        _follow([e for e in written if e not in backward], rows)
    return replace(system, equations=tuple(written), backward=backward)


def _follow(equations: Sequence[Equation], parts: Parts) -> None:
    """Sums over what a row of a loop has run with that row, and what they read on the way."""
    for block in {parts.loops[e]: None for e in parts.inner}:
        for k, equation in enumerate(equations):
            if not isinstance(equation.value, Reduce):
                continue
            read = {ref.array for ref in references(equation)}
            own = [
                *(e for e in equations[:k] if e.part_of == equation.part_of and e.array in read),
                equation,
            ]
            if not parts.loops.keys().isdisjoint(own):
                continue
            places = {
                ref.positions[block.axes[ref.array]]
                for e in own
                for ref in references(e)
                if ref.array in block.axes
            }
            row = places.pop() if len(places) == 1 else None
            if isinstance(row, Poly) and row in [i.as_poly() for i in equation.indices]:
                parts.inner.update({e: e for e in own})
                parts.rows.update(dict.fromkeys(own, row))
                parts.loops.update(dict.fromkeys(own, block))


def _complete(equations: Sequence[Equation], loop: Block) -> list[Equation]:
    """The equations of a loop, after those that need none of its rows, one array after another."""
    rows = {*loop.axes}
    while more := {e.array for e in equations if rows & {r.array for r in references(e)}} - rows:
        rows |= more
    arrays = [*dict.fromkeys(e.array for e in equations if e.array not in rows)]
    before = [e for array in arrays for e in equations if e.array == array]
    return [*before, *(e for e in equations if e.array in rows)]


@dataclass
class _Writer:
    """Writes the operands of one equation's operations into arrays."""

    equation: Equation
    carriers: Carriers
    terms: Shared | None = None
    """The arrays of what a running sum adds up, those of all its rows together."""
    written: list[Equation] = field(default_factory=list)

    def parts(self) -> list[Equation]:
        """The equation, after those of the operands that are written on the way."""
        value = self.whole(self.equation.value, ())
        return [*self.written, replace(self.equation, value=value)]

    def row(self, loop: Block) -> list[Equation]:
        """A row of a running sum, after its term, which is written of all rows at once."""
        value = self.equation.value
        begins = not any(ref.array in loop.axes for ref in references(self.equation))
        read = self.operand(value, ()) if begins else self.whole(value, ())
        return [*self.written, replace(self.equation, value=read)]

    def by_row(self, loop: Block, parts: Parts) -> list[Equation]:
        """What is computed of all rows before a loop, and what runs in each of its rows: products
        with matrices, and what is computed from them alone, need not wait for a row."""
        *operands, own = self.parts()
        multiplied = self.carriers.of(self.equation, self.equation.value) in MULTIPLIED
        waiting = {*loop.axes, *(e.array for e in parts.inner)}
        ahead = {e.array for e in parts.before}
        for part in operands:
            read = {ref.array for ref in references(part)}
            first = multiplied and not read & waiting
            if first and (
                isinstance(part.value, Reduce) or self._affine(part.value) or read & ahead
            ):
                parts.before[part] = self.equation
                ahead.add(part.array)
            else:
                parts.inner[part] = self.equation
                waiting.add(part.array)
        parts.inner[own] = self.equation
        parts.loops.update(dict.fromkeys((*operands, own), loop))
        return [*operands, own]

    def whole(self, node: Node, over: tuple[Index, ...]) -> Node:
        """A node that reads its written operands."""
        if isinstance(node, Binary):
            if self._affine(node):
                return Add(self.whole(node.left, over), node.right)
            return type(node)(self.operand(node.left, over), self.operand(node.right, over))
        if isinstance(node, Neg) and isinstance(node.body, Mul):
            return self.whole(Mul(Neg(node.body.left), node.body.right), over)
        if isinstance(node, Neg | Call | FreeScale):
            return replace(node, body=self.operand(node.body, over))
        if isinstance(node, Bracket) and node.otherwise is not None:
            body, otherwise = (self.operand(n, over) for n in (node.body, node.otherwise))
            return replace(node, body=body, otherwise=otherwise)
        if isinstance(node, Reduce) and len(node.parts) == 1:
            inner, body = (*over, *node.over), node.body
            separate = self.carriers.of(self.equation, node) in ENTRY_BY_ENTRY
            product = isinstance(body, Mul) and not separate
            return replace(
                node, body=self.whole(body, inner) if product else self.operand(body, inner)
            )
        return node

    def _affine(self, node: Node) -> bool:
        """Whether one operation takes a product and adds a parameter."""
        return (
            isinstance(node, Add)
            and isinstance(node.left, Reduce)
            and isinstance(node.right, Ref)
            and node.right.array.role == "parameter"
            and self.carriers.of(self.equation, node) == IN_PLACE
        )

    def operand(self, node: Node, over: tuple[Index, ...]) -> Node:
        """What stands for an operand: an array, where it is an operation."""
        if isinstance(node, FreeScale):
            return replace(node, body=self.operand(node.body, over))
        maximum = isinstance(node, Bracket) and node.otherwise is None
        if maximum or not isinstance(node, Binary | Neg | Call | Reduce | Bracket):
            return node
        value, of = self.whole(node, over), self.equation
        part = apart(of, value, over, f"{of.name}({len(self.written) + 1})")
        if self.terms is not None:
            made = part.array
            array = self.terms.array(of.array, value, made.shape, of, lambda: made)
            part = replace(part, array=array)
        self.written.append(part)
        return Ref(part.array, part.positions)


def apart(equation: Equation, value: Node, over: tuple[Index, ...], name: str) -> Equation:
    """An expression inside of an equation, under some more indices, in an array of its own."""
    own, positions, shape = equation.indices, equation.positions, equation.array.shape
    named = more = _named(value, (*own, *over))
    if {*own} <= {*named}:
        more = tuple(index for index in named if index not in own)
    else:
        positions, shape = (), ()
    extents = tuple(extent(index, named) for index in more)
    array = replace(
        equation.array, name=name, origin=None, role="intermediate", shape=(*shape, *extents)
    )
    places: tuple[Position, ...] = (*positions, *(index.as_poly() for index in more))
    return replace(equation, array=array, positions=places, value=value, indices=named)


def _named(value: Node, indices: tuple[Index, ...]) -> tuple[Index, ...]:
    """The indices that an expression names, and those that bound them."""
    ends = [end for _, over in walk(value) for index in over for end in index.ends]
    letters = {a for poly in (*places_of(value), *ends) for a in poly.letters}
    while True:
        found = tuple(i for i in indices if i.atom in letters)
        wider = letters | {a for i in found for end in i.ends for a in end.letters}
        if wider == letters:
            return found
        letters = wider


def places_of(value: Node) -> list[Poly]:
    """The positions at which an expression reads, both indices of a flattened one by themselves."""
    found: list[Poly] = []
    for node, _ in walk(value):
        for place in node.positions if isinstance(node, Ref) else ():
            if isinstance(place, Flat):
                found += [place.outer, place.inner]
            elif not isinstance(place, Gather):
                found.append(place)
    return found


def by_branch(system: System) -> System:
    """The same equations, with arrays for what is inside of a function by cases and for both of its
    branches. Its gradient needs one of them: it reads that, and not what was chosen."""
    branches = {
        e.array: replace(e.array, name=f"{e.name}.branch", origin=None, role="intermediate")
        for e in system.forward.equations
        if isinstance(e.value, Call) and e.value.function in OF_BOTH
    }
    backward: dict[Equation, str] = {}
    written: list[Equation] = []
    for equation in system.equations:
        value = equation.value
        if equation.array in branches and isinstance(value, Call):
            of, branch = equation.positions, branches[equation.array]
            inside, other = (
                replace(branch, name=f"{equation.name}.{x}", origin=None) for x in ("in", "other")
            )
            written.append(replace(equation, array=inside, value=value.body))
            computed = replace(value, body=Ref(inside, of))
            written += [replace(equation, array=a, value=computed) for a in (branch, other)]
            value = replace(value, body=Ref(branch, of))
        own = {a: b for a, b in branches.items() if gradient_name(a) == equation.part_of}
        written.append(replace(equation, value=reading(value, own)))
        if equation in system.backward:
            backward[written[-1]] = system.backward[equation]
    return replace(system, equations=tuple(written), backward=backward)
