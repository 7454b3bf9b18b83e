"""What are the equations of a system's gradients? Reverse mode, equation by equation.

The equations of the forward pass come first, with an array for every value that a gradient reads;
then, in reverse order, those of the gradients: `x.grad` is the gradient of the loss with respect to
x. What follows is a system like any other, and every question about it is answered by the same
rules.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

from costmodel.adjoint.fusion import fused, fused_equations
from costmodel.adjoint.inversion import (
    Scale,
    Share,
    entries,
    inverted,
    moved_index,
    ranges,
    substituted,
)
from costmodel.adjoint.local import OF_BOTH, OF_OPERAND, OF_RESULT
from costmodel.adjoint.recompute import recomputed
from costmodel.adjoint.softmax import from_logarithms, softmax_of, softmaxes, weighted_sum
from costmodel.adjoint.stored import Shared, active, extent, is_active, stored
from costmodel.domains import Constraints, Unsupported, implied, infeasible, irredundant, outside
from costmodel.equations import (
    JOINED,
    SEQUENCE,
    STEP,
    TRAINED,
    Equation,
    Form,
    Mixer,
    System,
    gradient_name,
)
from costmodel.expressions import (
    Add,
    Array,
    Call,
    Constant,
    Div,
    Fft,
    First,
    Flat,
    Folded,
    Index,
    Joined,
    Mul,
    Neg,
    Node,
    Reduce,
    Reduction,
    Ref,
    Sub,
    moved,
    names_in,
    outer_first,
    position_value,
    walk,
)
from costmodel.loops import Block, blocks, references
from costmodel.polynomial import Poly, call
from costmodel.rules.printing import identifier
from costmodel.tokens import tokens
from costmodel.wellformed import defined, region, whole

ROUNDS = 8
"""How often the entries of a loop that have a gradient are worked out anew, at most."""


@cache
def adjoint(
    system: System,
    *,
    rewrites: frozenset[str] = frozenset(),
    trained: tuple[str, ...] = TRAINED,
    recompute: tuple[str, ...] = (),
) -> System:
    """The equations of a training step.

    The gradient of the output is a context, `y.grad`: it is given, and no loss is counted. Every
    input, context and parameter gets its own gradient, unless no output depends on it.

    Args:
        rewrites: those that change the backward pass alone. `softmax-gradient` takes the gradient
            of a softmax from its result y alone, (g - sum of g y) y, as kernels compute it, and
            not through its exponentials and their sum; `quotient-gradient` divides again for that
            of a divisor, -g (a / b) / b, and keeps no quotient; `cases-gradient` adds up what both
            branches of a function by cases hand on; `fft-gradient` takes those of real transforms
            as libraries do, from a complex one, and doubles bins that stand for two.
        trained: the roles of what gets a gradient; what only the others need is left out.
        recompute: the arrays of the forward pass that the backward pass computes again; see
            `recomputed`.

    Raises:
        Unsupported: an expression without a rule here, or a reference that cannot be turned round.
        EquationError: an array to recompute that the forward pass does not compute.
    """
    forward = _with_gradient(system, trained)
    kept = stored(forward, quotients="quotient-gradient" not in rewrites)
    step = _Builder(kept, rewrites).built()
    if "logsumexp-gradient" in rewrites:
        step = from_logarithms(step)
    return recomputed(step, recompute) if recompute else step


def _with_gradient(system: System, trained: tuple[str, ...]) -> System:
    """The same equations, of a mixer that is given the gradient of its output."""
    mixer: Mixer = copy.copy(system.mixer)
    output = mixer.role("output")
    given = Array(gradient_name(output), "context", output.shape, mixer, latex=_bar(output))
    mixer.arrays = {**mixer.arrays, given.name: given}
    form = mixer.forms[system.form]
    mixer.forms = {system.form: Form(mixer, form.name, form.indices, form.arrays, form.equations)}
    return System(mixer, system.form, system.equations, trained=trained, beyond=system.beyond)


def _bar(array: Array, name: str = "") -> str:
    """How LaTeX prints the gradient of an array, or another array on the way to it by its name."""
    part = name.removeprefix(gradient_name(array)).lstrip(".")
    place = f"({part})" if part.isdecimal() else rf"\mathrm{{{part}}}"
    return rf"\bar{{{array.latex or identifier(array.name)}}}" + (f"^{{{place}}}" if part else "")


@dataclass(frozen=True)
class _Handed:
    """A share of a gradient, and whether it is for each sequence or on weights alone."""

    share: Share
    sequence: bool


@dataclass(frozen=True)
class _Scope:
    """Where a gradient is taken: the points of an equation, and the indices summed over."""

    equation: Equation
    free: tuple[Index, ...]
    around: Constraints
    sequence: bool
    over: tuple[Index, ...] = ()
    scale: Scale | None = None
    """What everything that is handed on is scaled by, once it is summed over its readers."""

    @property
    def indices(self) -> tuple[Index, ...]:
        """All indices, outer ones first."""
        return self.free + self.over

    def inside(self, over: tuple[Index, ...]) -> _Scope:
        """Under a reduction."""
        inner = self.around.union(*(index.constraints for index in over))
        return replace(self, over=self.over + tuple(outer_first(over)), around=inner)


@dataclass
class _Builder:
    """The state of one reversal."""

    system: System
    rewrites: frozenset[str] = frozenset()
    grads: dict[Array, Array] = field(default_factory=dict)
    regions: dict[Array, list[Constraints]] = field(default_factory=dict)
    """The entries of each array that have a gradient, in its axes; they may overlap."""
    handed: dict[Array, list[_Handed]] = field(default_factory=dict)
    written: dict[Equation, str] = field(default_factory=dict)
    numbers: dict[Array, int] = field(default_factory=dict)
    shared: Shared = field(default_factory=Shared)

    def built(self) -> System:
        """All equations."""
        output = self.system.mixer.role("output")
        given = self.system.mixer.arrays[gradient_name(output)]
        self.handed[output] = [_Handed(_of_loss(output, given), sequence=True)]
        for block in reversed(blocks(self.system)):
            self._block(block)
        for array in self.system.mixer.arrays.values():
            if array.role in self.system.trained and array is not given and self.handed.get(array):
                self._collect(array)
        backward = fused_equations(self.written)
        equations = (*self.system.equations, *backward)
        return replace(self.system, equations=equations, backward=backward)

    def _block(self, block: Block) -> None:
        """The gradients of a block's arrays, and what they hand on."""
        arrays = [array for array in _readers_first(block) if array in active(self.system)]
        for array in arrays:
            self.grads[array] = self._gradient(array, in_loop=block.is_loop)
        named = self._settled(block, arrays)
        for array in arrays:
            if self.grads[array].role != "context":
                self._collect(array)
            self.written |= named[array]

    def _gradient(self, array: Array, *, in_loop: bool) -> Array:
        """The array that holds the gradient of an array.

        That of an output which other equations read, too, is more than what is given.
        """
        shares = self.handed.get(array, [])
        given = gradient_name(array) if array.role == "output" else ""
        if given and len(shares) == 1 and not in_loop:
            return self.system.mixer.arrays[given]
        name = f"{given}.sum" if given else gradient_name(array)
        return self._array(name, array.shape, array)

    def _array(self, name: str, shape: tuple[Poly, ...], of: Array) -> Array:
        owner = self.system.mixer
        return Array(name, "intermediate", shape, owner, of.cite, _bar(of, name), of.kernel)

    def _settled(self, block: Block, arrays: Sequence[Array]) -> dict[Array, dict[Equation, str]]:
        """Hand the gradients of a block's arrays on; what is computed on the way, by array.

        Those of a loop hand on to each other: the entries that have a gradient are worked out until
        they stay the same.
        """
        after = {array: list(handed) for array, handed in self.handed.items()}
        numbers = dict(self.numbers)
        for _ in range(ROUNDS):
            for array in arrays:
                self.regions[array] = [_plain_region(h.share) for h in self.handed.get(array, [])]
            self.handed = {array: list(handed) for array, handed in after.items()}
            self.numbers, self.shared = dict(numbers), Shared()
            named = {array: self._differentiated(block, array) for array in arrays}
            if all(self._as_before(array) for array in arrays):
                return named
        raise Unsupported(f"{arrays[0].name}: which entries have a gradient does not settle")

    def _as_before(self, array: Array) -> bool:
        found = [_plain_region(h.share) for h in self.handed.get(array, [])]
        return not any(outside(where, self.regions[array]) for where in found)

    def _differentiated(self, block: Block, array: Array) -> dict[Equation, str]:
        """Hand on the gradient of an array; the equations that it takes on the way."""
        before, self.written = self.written, {}
        for equation in reversed(block.equations):
            if equation.array is array:
                if scores := self._softmax(equation):
                    self._from_result(equation, scores)
                    continue
                for scope in self._scopes(equation):
                    self._hand(equation.value, Ref(self.grads[array], equation.positions), scope)
        found, self.written = self.written, before
        return found

    def _scopes(self, equation: Equation) -> Iterable[_Scope]:
        """The points of an equation that have a gradient, those on weights alone apart."""
        for piece in self._pieces(equation):
            for part, sequence in tokens(self.system).dependent(equation):
                around = piece | part
                if infeasible(around):
                    continue
                if around == equation.domain:
                    yield _Scope(equation, equation.indices, around, sequence)
                else:
                    indices, _ = ranges(around, [i.atom for i in equation.indices])
                    yield _Scope(equation, indices, around, sequence)

    def _pieces(self, equation: Equation) -> Iterable[Constraints]:
        own, regions = defined(equation), self.regions[equation.array]
        if own is None:
            return
        if not outside(own, regions):
            yield equation.domain
            return
        at = {f"#{k}": position_value(p) for k, p in enumerate(equation.positions)}
        for k, where in enumerate(regions):
            for piece in outside(where, regions[:k]):
                yield equation.domain | {c.substitute(at) for c in piece}

    def _softmax(self, equation: Equation) -> Ref | None:
        """The scores of an equation whose gradient is to be taken as that of a softmax."""
        if "softmax-gradient" not in self.rewrites:
            return None
        return softmax_of(self.system, equation)

    def _from_result(self, equation: Equation, scores: Ref) -> None:
        """Hand the gradient of a softmax on from its result alone."""
        scopes = list(self._scopes(equation))
        if len(scopes) != 1:
            raise Unsupported(f"{equation.name}: a softmax of which only some entries are read")
        (scope,) = scopes
        assert isinstance(equation.value, Div) and isinstance(equation.value.right, Ref)
        gradient = Ref(self.grads[equation.array], equation.positions)
        result = Ref(equation.array, equation.positions)
        total = equation.value.right
        (of_row,) = self.system.defining[total.array]
        assert isinstance(of_row.value, Reduce)
        rows = self._array(self._next_name(equation.array), total.array.shape, equation.array)
        value = self._of_weighted_sum(equation, of_row)
        if value is None:
            value = Reduce("sum", Mul(gradient, result), of_row.value.over)
        written = Equation(
            rows, of_row.positions, value, of_row.indices, gradient_name(equation.array)
        )
        self.written[written] = SEQUENCE if scope.sequence else STEP
        difference = Sub(gradient, Ref(rows, total.positions))
        self.hand_to(scores, Mul(difference, result), scope)

    def _of_weighted_sum(self, equation: Equation, of_row: Equation) -> Node | None:
        """A row's sum of g y by what its entries y are the weights of, where that is so asked."""
        if "weighted-sum-gradient" not in self.rewrites:
            return None
        found = weighted_sum(self.system, equation, of_row)
        if found is None:
            return None
        reader, entry, over = found
        own = defined(reader)
        if own is None or outside(own, self.regions[reader.array]):
            return None
        product = Mul(Ref(self.grads[reader.array], entry.positions), entry)
        return Reduce("sum", product, over) if over else product

    @cached_property
    def _scores(self) -> frozenset[Array]:
        """The arrays that a softmax is taken of."""
        return frozenset(scores.array for _, scores in softmaxes(self.system))

    def scale_of(self, node: Mul | Div, scope: _Scope) -> Scale | None:
        """How a sum of scores is scaled, where what it hands on is to be scaled in its place."""
        if "scale-gradient" not in self.rewrites or not isinstance(node.right, Constant):
            return None
        if not isinstance(node.left, (Reduce, Joined)) or scope.scale is not None:
            return None
        return (type(node), node.right) if scope.equation.array in self._scores else None

    def _hand(self, node: Node, gradient: Node, scope: _Scope) -> None:
        """Hand the gradient of an expression on to what it is made of."""
        if not is_active(node, active(self.system)):
            return
        try:
            rule = RULES[type(node)]
        except KeyError:
            raise Unsupported(f"{type(node).__name__} has no rule in adjoint") from None
        rule(self, node, gradient, scope)

    def named(self, gradient: Node, scope: _Scope) -> Node:
        """A gradient that is used more than once, in an array of its own; others as they are."""
        if _free(gradient):
            return gradient
        of, over = scope.equation.array, scope.over
        shape = of.shape + tuple(extent(index, scope.indices) for index in over)
        array = self.shared.array(
            of, gradient, shape, scope.equation, lambda: self._array(self._next_name(of), shape, of)
        )
        positions = scope.equation.positions + tuple(index.as_poly() for index in over)
        equation = Equation(array, positions, gradient, scope.indices, gradient_name(of))
        self.written[equation] = SEQUENCE if scope.sequence else STEP
        return Ref(array, positions)

    def _next_name(self, array: Array) -> str:
        self.numbers[array] = self.numbers.get(array, 0) + 1
        return f"{gradient_name(array)}.{self.numbers[array]}"

    def handed_by(self, array: Array) -> Array:
        """A new array for a part of the gradient of an array."""
        return self._array(self._next_name(array), array.shape, array)

    def hand_to(self, ref: Ref, gradient: Node, scope: _Scope) -> None:
        """Hand a gradient to the entry that a reference reads."""
        share = inverted(ref, scope.indices, scope.around, gradient)
        if share is not None:
            if isinstance(gradient, First) and share.over:
                raise Unsupported(
                    f"the gradient of {ref.array.name}: how many maxima one entry wins depends on "
                    f"the values"
                )
            share = replace(share, scale=scope.scale)
            self.handed.setdefault(ref.array, []).append(_Handed(share, scope.sequence))

    def _collect(self, array: Array) -> None:
        """The equations that add up what was handed to an array."""
        target = self.grads.setdefault(array, self._gradient(array, in_loop=False))
        handed = [
            _Handed(share, sequence)
            for sequence in (True, False)
            for share in fused(
                [h.share for h in self.handed.get(array, []) if h.sequence == sequence]
            )
        ]
        if len(handed) > 1 and any(any(h.share.layout) for h in handed):
            handed = [self._flattened(array, h) for h in handed]
        if not handed:
            return
        layout = handed[0].share.layout
        inside = entries(array, layout)
        cells = [inside]
        for where in dict.fromkeys(h.share.where for h in handed):
            cells = [part for cell in cells for part in _split(cell, inside | where)]
        for cell in cells:
            present = [h for h in handed if all(implied(cell, c) for c in h.share.where)]
            self._certain(array, present, handed)
            if present:
                for part, sequence in self._kinds(array, cell, handed[0].share):
                    self._add(target, array, part, present, sequence=sequence)

    def _certain(self, array: Array, present: Sequence[_Handed], handed: Sequence[_Handed]) -> None:
        """Raise Unsupported where the number of additions depends on which entry is largest."""
        firsts = [h for h in present if isinstance(h.share.value, First)]
        elsewhere = any(h.share.where != first.share.where for first in firsts for h in handed)
        if len(firsts) > 1 or elsewhere:
            raise Unsupported(
                f"the gradient of {array.name}: how much is added to the entry that a maximum is "
                f"taken from depends on which one it is"
            )

    def _kinds(
        self, array: Array, cell: Constraints, share: Share
    ) -> list[tuple[Constraints, bool]]:
        """A cell in parts that are for each sequence, or on weights alone.

        Constants among the entries of an array that sequences give stand in it for each sequence.
        """
        constant = any(not [*references(e)] for e in self.system.defining.get(array, ()))
        if constant and array in tokens(self.system).given:
            return [(cell, True)]
        return tokens(self.system).dependent_entries(Ref(array, share.positions), cell)

    def _flattened(self, array: Array, handed: _Handed) -> _Handed:
        """The same share in an array of its own, if it lies in a flattened layout."""
        share = handed.share
        if not any(share.layout):
            return handed
        target = self._array(self._next_name(array), array.shape, array)
        kind = SEQUENCE if handed.sequence else STEP
        self._write(target, array, entries(array, share.layout) | share.where, [share], kind)
        layout = (None,) * len(array.shape)
        plain = tuple(Poly.atom(f"@{k}") for k in range(len(array.shape)))
        at = {f"#{k}": p for k, p in enumerate(plain)}
        found, every = _plain_region(share), whole(array)
        where = frozenset(c.substitute(at) for c in found if not implied(every, c))
        axes, hints = tuple(f"@{k}" for k in range(len(plain))), (None,) * len(plain)
        return _Handed(
            Share(array, layout, axes, where, Ref(target, plain), (), hints), handed.sequence
        )

    def _add(
        self,
        target: Array,
        array: Array,
        cell: Constraints,
        present: Sequence[_Handed],
        *,
        sequence: bool,
    ) -> None:
        """The equation of a gradient at some entries; over the batch before weights alone."""
        shares = [h.share for h in present]
        if sequence:
            self._write(target, array, cell, shares, SEQUENCE)
            return
        each = [h.share for h in present if h.sequence]
        alone = [h.share for h in present if not h.sequence]
        if not (each and alone):
            self._write(target, array, cell, shares, JOINED if each else STEP)
            return
        joined = self._array(self._next_name(array), array.shape, array)
        self._write(joined, array, cell, each, JOINED)
        first = replace(alone[0], value=Ref(joined, alone[0].positions), over=(), scale=None)
        self._write(target, array, cell, [first, *alone], STEP)

    def _write(
        self,
        target: Array,
        array: Array,
        cell: Constraints,
        shares: Sequence[Share],
        kind: str,
    ) -> None:
        """The equation that adds shares up at the entries of a cell."""
        names = self._axis_names(array, shares)
        renamed = {old: Poly.atom("@" + new) for old, new in names.items()}
        indices, _ = ranges(
            frozenset(c.substitute(renamed) for c in cell), [f"@{n}" for n in names.values()]
        )
        guards = [c for c in cell if not c.variables and not implied(frozenset(), c)]
        if guards and not indices:
            raise Unsupported(f"the gradient of {array.name} exists for some sizes only")
        if guards:
            indices = (_guarded(indices[0], guards), *indices[1:])
        fixed = {i.atom: i.lower[0] for i in indices if len({*i.lower, *i.upper}) == 1}
        free = tuple(moved_index(i, fixed) for i in indices if i.atom not in fixed)
        at = {old: new.substitute(fixed) for old, new in renamed.items()}
        terms = [_expression(share, at, names) for share in shares]
        value = terms[0]
        for term in terms[1:]:
            value = Add(value, term)
        positions = tuple(moved(p, at) for p in shares[0].positions)
        equation = Equation(target, positions, value, free, gradient_name(array))
        self.written[equation] = kind

    def _axis_names(self, array: Array, shares: Sequence[Share]) -> dict[str, str]:
        """A name for each axis of an entry: what its equations, or its readers, call it."""
        hints = list(zip(*(share.hints for share in shares), strict=True))
        own = self._own_names(array, shares[0])
        taken: set[str] = set()
        names: dict[str, str] = {}
        for axis, mine, theirs in zip(shares[0].axes, own, hints, strict=True):
            wanted = [name for name in (mine, *theirs) if name and name not in taken]
            name = wanted[0] if wanted else next(x for x in SPARE if x not in taken)
            names[axis] = name
            taken.add(name)
        return names

    def _own_names(self, array: Array, share: Share) -> list[str | None]:
        if any(share.layout):
            return [None] * len(share.axes)
        for equation in self.system.defining.get(array, ()):
            names = {index.as_poly(): index.name for index in equation.indices}
            found = [
                None if isinstance(p, Flat) else names.get(position_value(p))
                for p in equation.positions
            ]
            if all(found):
                return found
        return [None] * len(share.axes)


def _readers_first(block: Block) -> list[Array]:
    """The arrays of a block, each after those that read it in the same row."""
    waiting = list(dict.fromkeys(e.array for e in reversed(block.equations)))
    readers: dict[Array, set[Array]] = {array: set() for array in waiting}
    for equation in block.equations:
        for ref in references(equation):
            if block.lag(equation, ref) == 0:
                readers[ref.array].add(equation.array)
    found: list[Array] = []
    while waiting:
        free = (array for array in waiting if readers[array] <= set(found))
        found.append(next(free, waiting[0]))
        waiting.remove(found[-1])
    return found


SPARE = "pqrsuvwzefg"
"""Names for axes that no equation calls by an index of its own."""


def _of_loss(output: Array, given: Array) -> Share:
    """The gradient of the loss itself, as handed to an output."""
    layout = (None,) * len(output.shape)
    axes = tuple(f"@{k}" for k in range(len(output.shape)))
    value = Ref(given, tuple(map(Poly.atom, axes)))
    return Share(output, layout, axes, frozenset(), value, (), (None,) * len(axes))


def _plain_region(share: Share) -> Constraints:
    """The entries that a share is handed to, in the axes of the array."""
    around = entries(share.array, share.layout) | share.where
    found = region(share.array, share.positions, around, share.axes)
    assert found is not None
    return found


def _guarded(index: Index, guards: Iterable[Poly]) -> Index:
    """An index whose range is empty for the sizes at which a guard is negative."""
    low, upper = index.lower[0], index.upper
    for guard in sorted(guards, key=str):
        holds = call("Min", 1, call("Max", 0, guard + 1))
        upper += (low - 1 + (index.upper[0] - low + 1) * holds,)
    return Index(index.name, index.lower, upper)


def _split(cell: Constraints, where: Constraints) -> list[Constraints]:
    """A cell in the part inside a region and those outside it."""
    inside = cell | where
    if infeasible(inside):
        return [cell]
    return [irredundant(inside), *map(irredundant, outside(cell, [where]))]


def _expression(share: Share, at: Mapping[str, Poly], names: Mapping[str, str]) -> Node:
    """A share at entries called by new names; its own indices make way for these.

    An index whose name is taken gets the one that the reader called that axis by, if it is free.
    """
    values = dict(at)
    called = {names[axis]: hint for axis, hint in zip(share.axes, share.hints, strict=True)}
    taken = {*names.values(), *(index.name for index in share.over)}
    for index in share.over:
        if index.name in called:
            hint = called[index.name]
            numbered = (f"{index.name}{k}" for k in range(2, 100))
            new = next(n for n in (hint, *numbered) if n and n not in taken)
            taken.add(new)
            values[index.atom] = Poly.atom("@" + new)
    return substituted(share.expression, values)


def _free(gradient: Node) -> bool:
    """Whether an expression takes no operation, so that it may be written more than once."""
    if isinstance(gradient, (Neg, Folded)):
        return _free(gradient.body)
    return isinstance(gradient, (Ref, Constant))


def _ref(builder: _Builder, node: Ref, gradient: Node, scope: _Scope) -> None:
    builder.hand_to(node, gradient, scope)


def _add(builder: _Builder, node: Add | Sub, gradient: Node, scope: _Scope) -> None:
    arrays = active(builder.system)
    if is_active(node.left, arrays) and is_active(node.right, arrays):
        gradient = builder.named(gradient, scope)
    builder._hand(node.left, gradient, scope)
    builder._hand(node.right, gradient if isinstance(node, Add) else Neg(gradient), scope)


def _mul(builder: _Builder, node: Mul, gradient: Node, scope: _Scope) -> None:
    if scale := builder.scale_of(node, scope):
        builder._hand(node.left, gradient, replace(scope, scale=scale))
        return
    arrays = active(builder.system)
    if is_active(node.left, arrays) and is_active(node.right, arrays):
        gradient = builder.named(gradient, scope)
    builder._hand(node.left, Mul(gradient, node.right), scope)
    builder._hand(node.right, Mul(gradient, node.left), scope)


def _div(builder: _Builder, node: Div, gradient: Node, scope: _Scope) -> None:
    """u = g / b for the numerator; -u times the stored quotient for the denominator."""
    if scale := builder.scale_of(node, scope):
        builder._hand(node.left, gradient, replace(scope, scale=scale))
        return
    arrays = active(builder.system)
    both = is_active(node.left, arrays) and is_active(node.right, arrays)
    if "quotient-gradient" in builder.rewrites:
        gradient = builder.named(gradient, scope) if both else gradient
        builder._hand(node.left, Div(gradient, node.right), scope)
        builder._hand(node.right, Neg(Mul(gradient, Div(node, node.right))), scope)
        return
    share: Node = Div(gradient, node.right)
    if both:
        share = builder.named(share, scope)
    builder._hand(node.left, share, scope)
    quotient = Ref(scope.equation.array, scope.equation.positions)
    builder._hand(node.right, Neg(Mul(share, quotient)), scope)


def _call(builder: _Builder, node: Call, gradient: Node, scope: _Scope) -> None:
    """A function, from its stored result or its operand."""
    if node.function in OF_RESULT:
        by_cases = OF_BOTH if "cases-gradient" in builder.rewrites else {}
        rule = by_cases.get(node.function, OF_RESULT[node.function])
        known: Node = Ref(scope.equation.array, scope.equation.positions)
    elif node.function in OF_OPERAND:
        rule, known = OF_OPERAND[node.function], node.body
    else:
        raise Unsupported(f"the gradient of {node.function} is not known")
    handed = rule(gradient, known)
    if sum(part is gradient for part, _ in walk(handed)) > 1:
        handed = rule(builder.named(gradient, scope), known)
    builder._hand(node.body, handed, scope)


def _reduce(builder: _Builder, node: Reduction, gradient: Node, scope: _Scope) -> None:
    """A sum broadcasts its gradient to every term; a maximum hands it to its first occurrence."""
    gradient = builder.named(gradient, scope)
    if node.kind == "sum":
        for part in node.parts:
            builder._hand(part.body, gradient, scope.inside(part.over))
        return
    if isinstance(node, Joined) or not isinstance(node.body, Ref) or len(node.over) > 1:
        raise Unsupported(f"{scope.equation.name}: the gradient of a maximum over several ranges")
    largest = Ref(scope.equation.array, scope.equation.positions)
    first = First(gradient, node.body, largest, node.over)
    builder._hand(node.body, first, scope.inside(node.over))


def _negated(builder: _Builder, node: Neg, gradient: Node, scope: _Scope) -> None:
    builder._hand(node.body, Neg(gradient), scope)


def _folded(builder: _Builder, node: Folded, gradient: Node, scope: _Scope) -> None:
    builder._hand(node.body, Folded(gradient, node.factor), scope)


OF_LIBRARIES: Mapping[str, str] = {
    "rfft-adjoint": "rfft-adjoint-complex",
    "irfft-adjoint": "irfft-adjoint-doubled",
}
"""Transposed transform -> how libraries compute it."""


def _fft(builder: _Builder, node: Fft, gradient: Node, scope: _Scope) -> None:
    """The transposed transform, in an array of its own."""
    assert isinstance(gradient, Ref)
    read = set(names_in(node.body.positions))
    made = tuple(i for i in scope.free if i.atom not in read)
    by_place = names_in(scope.equation.positions)
    made = tuple(sorted(made, key=lambda i: by_place.index(i.atom)))
    indices = tuple(outer_first([*(i for i in scope.free if i.atom in read), *node.over]))
    kind = f"{node.kind}-adjoint"
    if "fft-gradient" in builder.rewrites:
        kind = OF_LIBRARIES[kind]
    value = Fft(kind, gradient, made, node.length)
    array = builder.handed_by(node.body.array)
    equation = Equation(array, node.body.positions, value, indices, gradient_name(node.body.array))
    builder.written[equation] = SEQUENCE if scope.sequence else STEP
    around = frozenset().union(*(index.constraints for index in indices))
    share = inverted(node.body, indices, around, Ref(array, node.body.positions))
    if share is not None:
        builder.handed.setdefault(node.body.array, []).append(_Handed(share, scope.sequence))


RULES: Mapping[type[Node], Callable[..., None]] = {
    Ref: _ref,
    Add: _add,
    Sub: _add,
    Mul: _mul,
    Div: _div,
    Call: _call,
    Reduce: _reduce,
    Joined: _reduce,
    Neg: _negated,
    Folded: _folded,
    Fft: _fft,
}
"""Node -> how it hands its gradient on."""
