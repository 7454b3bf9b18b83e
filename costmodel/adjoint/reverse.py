"""What are the equations of a system's gradients? Reverse mode, equation by equation.

The equations of the forward pass come first, with an array for every value that a gradient reads;
then, in reverse order, those of the gradients: `x.grad` is the gradient of the loss with respect to
x. What follows is a system like any other, and every question about it is answered by the same
rules.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

from costmodel.adjoint.accumulate import Handed, Sums, bar, fused_equations, plain_region
from costmodel.adjoint.gather_adjoint import Picked
from costmodel.adjoint.node_rules import RULES, Scope, is_free
from costmodel.adjoint.recompute import recomputed
from costmodel.adjoint.residuals import Shared, extent, with_residuals
from costmodel.adjoint.softmax import from_logarithms, softmax_of, softmaxes, weighted_sum
from costmodel.adjoint.transpose import Cotangent, Scale, guarded_ranges, transposed
from costmodel.errors import Unsupported
from costmodel.language.equations import (
    SEQUENCE,
    STEP,
    TRAINED,
    Equation,
    Form,
    Mixer,
    System,
)
from costmodel.language.nodes import (
    GRADIENT,
    Array,
    Bracket,
    Constant,
    Div,
    Fft,
    Flat,
    Gather,
    Mul,
    Node,
    Reduce,
    Ref,
    Sub,
    derived,
    position_value,
)
from costmodel.program.dependence import Read, anywhere
from costmodel.program.recurrences import Block, blocks, references
from costmodel.program.tokens import tokens
from costmodel.program.wellformed import defined, whole
from costmodel.symbolic.constraints import (
    Constraints,
    implied,
    infeasible,
    irredundant,
    outside,
    projected,
)
from costmodel.symbolic.polynomial import Poly, axis_atom, index_atom

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

    The gradient of the output, `y.grad`, or that of the loss, where the system has one for its
    output, is a context: it is given. Every input, context and parameter gets its own gradient,
    unless no output depends on it.

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
    picked = Picked(_with_gradient(system, trained))
    kept = with_residuals(picked.without_numbers(), quotients="quotient-gradient" not in rewrites)
    step = picked.restored(_Builder(kept, rewrites=rewrites).built())
    if "logsumexp-gradient" in rewrites:
        step = from_logarithms(step)
    return recomputed(step, recompute) if recompute else step


def _with_gradient(system: System, trained: tuple[str, ...]) -> System:
    """The same equations, of a mixer that is given the gradient of its output."""
    mixer: Mixer = copy.copy(system.mixer)
    output = mixer.role("output")
    given = derived(output, GRADIENT, role="context", owner=mixer, cite="", latex=bar(output))
    mixer.arrays = {**mixer.arrays, given.name: given}
    form = mixer.forms[system.form]
    mixer.forms = {system.form: Form(mixer, form.name, form.indices, form.arrays, form.equations)}
    return System(
        mixer, system.form, system.equations, trained=trained, fixed=system.fixed | {given},
        beyond=system.beyond,
    )  # fmt: skip


@dataclass
class _Builder(Sums):
    """The state of one reversal."""

    rewrites: frozenset[str] = frozenset()
    regions: dict[Array, list[Constraints]] = field(default_factory=dict)
    """The entries of each array that have a gradient, in its axes; they may overlap."""
    shared: Shared = field(default_factory=Shared)

    def built(self) -> System:
        """All equations."""
        output = self.system.mixer.role("output")
        self.handed[output] = [Handed(_of_loss(output, self.system.given), sequence=True)]
        for block in reversed(blocks(self.system)):
            self._block(block)
        for array in self.system.wanted:
            if self.handed.get(array):
                self._collect(array)
        backward = fused_equations(self.written)
        equations = (*self.system.equations, *backward)
        return replace(self.system, equations=equations, backward=backward)

    def _block(self, block: Block) -> None:
        """The gradients of a block's arrays, and what they hand on."""
        arrays = [array for array in _readers_first(block) if array in self.system.active]
        for array in arrays:
            self.grads[array] = self._gradient(array, in_loop=block.is_loop)
        named = self._settled(block, arrays)
        for array in arrays:
            if self.grads[array].role != "context":
                self._collect(array)
            self.written |= named[array]

    def _settled(self, block: Block, arrays: Sequence[Array]) -> dict[Array, dict[Equation, str]]:
        """Hand the gradients of a block's arrays on; what is computed on the way, by array.

        Those of a loop hand on to each other: the entries that have a gradient are first thought to
        be all, and worked out until they stay the same. What repeats itself is right, however it
        was found: every row follows from the one before.
        """
        after = {array: list(handed) for array, handed in self.handed.items()}
        numbers = dict(self.numbers)
        for array in arrays:
            self.regions[array] = [whole(array)] if block.is_loop else self._reached(array)
        for _ in range(ROUNDS):
            self.handed = {array: list(handed) for array, handed in after.items()}
            self.numbers, self.shared = dict(numbers), Shared()
            named = {array: self._differentiated(block, array) for array in arrays}
            found = {array: self._reached(array) for array in arrays}
            if all(_equal(found[array], self.regions[array]) for array in arrays):
                return named
            self.regions |= found
        raise Unsupported(f"{arrays[0].name}: which entries have a gradient does not settle")

    def _reached(self, array: Array) -> list[Constraints]:
        """The entries of an array that a gradient is handed to."""
        return [plain_region(h.cotangent) for h in self.handed.get(array, [])]

    def _differentiated(self, block: Block, array: Array) -> dict[Equation, str]:
        """Hand on the gradient of an array; the equations that it takes on the way."""
        before, self.written = self.written, {}
        for equation in reversed(block.equations):
            if equation.array is array:
                if scores := self._softmax(equation):
                    self._from_result(equation, scores)
                    continue
                for scope in self._scopes(equation):
                    self.hand(equation.value, Ref(self.grads[array], equation.positions), scope)
        found, self.written = self.written, before
        return _in_order(found)

    def _scopes(self, equation: Equation) -> Iterable[Scope]:
        """The points of an equation that have a gradient, those on weights alone apart."""
        for piece in self._pieces(equation):
            for part, sequence in tokens(self.system).dependent(equation):
                around = piece | part
                if infeasible(around):
                    continue
                if around == equation.domain:
                    yield Scope(equation, equation.indices, around, sequence)
                else:
                    what = f"the gradient of {equation.name}"
                    indices = guarded_ranges(around, [i.atom for i in equation.indices], what)
                    yield Scope(equation, indices, around, sequence)

    def _pieces(self, equation: Equation) -> Iterable[Constraints]:
        """Where a gradient reaches an equation; a transform, all that it makes at once."""
        own, regions = defined(equation), self.regions[equation.array]
        if own is None:
            return
        if isinstance(equation.value, Fft):
            regions = _transformed(regions, equation.value.made(equation.positions))
        if not outside(own, regions):
            yield equation.domain
            return
        at = {axis_atom(k): position_value(p) for k, p in enumerate(equation.positions)}
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
        value = self._of_weighted_sum(equation, of_row)
        if value is None:
            value = Reduce("sum", Mul(gradient, result), of_row.value.over)
        same = (e.array for e in self.written if (e.value, e.indices) == (value, of_row.indices))
        rows = next(same, None)
        if rows is None:
            rows = self._next(equation.array, total.array.shape)
            whole = self.gradient(equation.array)
            written = Equation(rows, of_row.positions, value, of_row.indices, whole)
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

    def scale_of(self, node: Mul | Div, scope: Scope) -> Scale | None:
        """How a sum of scores is scaled, where what it hands on is to be scaled in its place."""
        if "scale-gradient" not in self.rewrites or not isinstance(node.right, Constant):
            return None
        if not isinstance(node.left, Reduce) or scope.scale is not None:
            return None
        return (type(node), node.right) if scope.equation.array in self._scores else None

    def hand(self, node: Node, gradient: Node, scope: Scope) -> None:
        """Hand the gradient of an expression on to what it is made of."""
        if not self.system.active.isdisjoint(node.arrays):
            RULES[type(node)].hand(self, node, gradient, scope)

    def named(self, gradient: Node, scope: Scope) -> Node:
        """A gradient that is used more than once, in an array of its own; others as they are."""
        if is_free(gradient):
            return gradient
        of, over = scope.equation.array, scope.over
        shape = of.shape + tuple(extent(index, scope.indices) for index in over)
        array = self.shared.array(
            of, gradient, shape, scope.equation, lambda: self._next(of, shape)
        )
        positions = scope.equation.positions + tuple(index.as_poly() for index in over)
        equation = Equation(array, positions, gradient, scope.indices, self.gradient(of))
        self.written[equation] = SEQUENCE if scope.sequence else STEP
        return Ref(array, positions)

    def handed_by(self, array: Array) -> Array:
        """A new array for a part of the gradient of an array."""
        return self._next(array)

    def hand_to(self, ref: Ref, gradient: Node, scope: Scope) -> None:
        """Hand a gradient to the entry that a reference reads, or to that which it gathers, of all
        that it may."""
        read = anywhere(self.system, Read(ref, ()))
        indices, around = (*scope.indices, *read.over), scope.around | read.constraints
        if read.over:
            gradient = self.named(gradient, scope)
        for place, position in zip(read.ref.positions, ref.positions, strict=True):
            if isinstance(position, Gather):
                named = place.outer if isinstance(place, Flat) else position_value(place)
                gradient = Bracket(gradient, Constant(named), "=", position.at)
        cotangent = transposed(read.ref, indices, around, gradient)
        if cotangent is not None:
            if isinstance(gradient, Bracket) and gradient.first and cotangent.over:
                raise Unsupported(
                    f"the gradient of {ref.array.name}: how many maxima one entry wins depends on "
                    f"the values"
                )
            chosen = {index.name for index in read.over}
            hints = tuple(None if name in chosen else name for name in cotangent.hints)
            self.keep(replace(cotangent, hints=hints, scale=scope.scale), scope)

    def keep(self, cotangent: Cotangent | None, scope: Scope) -> None:
        """Note what is handed to an array, if anything is."""
        if cotangent is not None:
            self.handed.setdefault(cotangent.array, []).append(Handed(cotangent, scope.sequence))


def _transformed(regions: Sequence[Constraints], made: Iterable[int]) -> list[Constraints]:
    """The entries that a transform makes with those of some regions: along each of its own axes
    from the first to the last that all say, whatever the others are."""
    axes = {axis_atom(k) for k in made}
    ends = {c for where in regions for c in where if len(c.variables) == 1 and c.variables <= axes}
    common = frozenset(c for c in ends if all(implied(where, c) for where in regions))
    found = dict.fromkeys(irredundant(projected(where, axes) | common) for where in regions)

    def inside(one: Constraints, other: Constraints) -> bool:
        return one != other and all(implied(one, c) for c in other)

    return [where for where in found if not any(inside(where, other) for other in found)]


def _equal(one: Sequence[Constraints], two: Sequence[Constraints]) -> bool:
    """Whether two lists of regions hold the same entries."""
    return not any(
        outside(where, others) for these, others in ((one, two), (two, one)) for where in these
    )


def _in_order(written: dict[Equation, str]) -> dict[Equation, str]:
    """The same equations, what another one reads of several before it, where that can be."""
    waiting, found = [*written], dict[Equation, str]()
    while waiting:
        unread = (
            e
            for e in waiting
            if not any(o.array in e.value.arrays for o in waiting if o.array is not e.array)
        )
        first = next(unread, waiting[0])
        waiting.remove(first)
        found[first] = written[first]
    return found


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


def _of_loss(output: Array, given: Array) -> Cotangent:
    """The gradient of the loss itself, as handed to an output."""
    layout = (None,) * len(output.shape)
    axes = tuple(index_atom(k) for k in range(len(output.shape)))
    value = Ref(given, tuple(map(Poly.atom, axes)))
    return Cotangent(output, layout, axes, frozenset(), value, (), (None,) * len(axes))
