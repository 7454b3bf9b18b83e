"""The equations of a system's gradients, by reverse-mode differentiation.

The forward equations come first, with an array for every value that a gradient reads; then, in
reverse order, those of the gradients: `x.grad` is the gradient of the loss with respect to x. The
result is a system like any other, so every question about it is answered by the same rules. Arrays
are processed from readers to what they read: each *hands* cotangents (`transpose`) to the arrays
that its equations read, and its own gradient is the sum of the cotangents that its readers handed
to it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial

from costmodel.adjoint.accumulate import Handed, Sums, bar, fused_equations, plain_region
from costmodel.adjoint.derivatives import ONE, ZERO, where_larger
from costmodel.adjoint.gather_adjoint import Picked
from costmodel.adjoint.node_rules import RULES, Scope, rows_together
from costmodel.adjoint.norms import REWRITES, NormedRow, computed_again, length_of_row, normed_row
from costmodel.adjoint.recompute import recomputed
from costmodel.adjoint.residuals import Shared, extent, with_residuals
from costmodel.adjoint.softmax import from_logarithms, scored, softmax_of, softmaxes, weighted_sum
from costmodel.adjoint.transpose import Cotangent, Scale, guarded_ranges, transposed
from costmodel.adjoint.triangles import Solved, solved
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
from costmodel.language.indices import Index, one_by_one
from costmodel.language.nodes import (
    GRADIENT,
    Array,
    Bracket,
    Constant,
    Div,
    Flat,
    Gather,
    Mul,
    Neg,
    Node,
    Reduce,
    Ref,
    Sub,
    derived,
    names_in,
    position_value,
)
from costmodel.program.chunks import without_strides
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
"""The maximum number of rounds of the fixed-point iteration in `_Builder._at_fixed_point`."""


@cache
def adjoint(
    system: System,
    *,
    rewrites: frozenset[str] = frozenset(),
    trained: tuple[str, ...] = TRAINED,
    recompute: tuple[str, ...] = (),
) -> System:
    """The equations of a training step: a forward pass and its gradients. The gradient of the
    output, `y.grad`, or of the loss if the system has one, is given as a context. Every input,
    context and parameter that the output depends on gets a gradient; index arrays do not.

    Args:
        rewrites: the rewrites of the backward pass. `softmax-gradient` takes the gradient of a
            softmax from its result y alone, (g - sum of g y) y, as kernels do, and not through
            exponentials and their sum, and `weighted-sum-gradient`, `scale-gradient` and
            `logsumexp-gradient` as kernels that store no weights (`softmax`); `layer-norm-gradient`
            and `rms-norm-gradient` take the gradient of a norm written under `norm=rsqrt` from its
            result; `mean-gradient`, `square-gradient` (in RMS norms alone, `rms-square-gradient`),
            `length-gradient` and `comparison-gradient` take the gradients of means, squares, row
            lengths, and of relu and max, by torch's formulas; `triangle-gradient` takes the
            gradient of the matrix of a triangular system at all pairs of rows; `quotient-gradient`
            computes the gradient of a divisor by another division, -g (a / b) / b, and keeps no
            quotient; `cases-gradient` adds up the gradients of both branches of a function by
            cases; `fft-gradient` takes gradients of real transforms as libraries do, by a complex
            transform, and doubles bins that stand for two.
        trained: the roles of arrays that get a gradient; equations that no such gradient needs are
            left out.
        recompute: the forward arrays that the backward pass recomputes: names in the file (each
            with the steps its equations are lowered to), or `all`.

    Raises:
        Unsupported: an expression without a rule, or a reference that cannot be transposed.
        EquationError: an array to recompute that the forward pass does not compute.
    """
    # while gradients are derived, maxima stand in for gathers, and values to keep have arrays
    picked = Picked(_with_gradient(system, trained))
    kept = with_residuals(picked.with_maxima(), quotients="quotient-gradient" not in rewrites)
    step = picked.restored(_Builder(kept, rewrites=rewrites).built())
    defined, also = step.forward, computed_again(step.forward, rewrites)
    if "logsumexp-gradient" in rewrites:
        step, defined, weights = from_logarithms(step)
        also |= weights
    return without_strides(recomputed(step, recompute, defined=defined, also=also))


def _with_gradient(system: System, trained: tuple[str, ...]) -> System:
    """The system in a copy of its mixer that has a further array of the role `context`, which is
    given: the output's gradient, `y.grad`. `trained`: the roles of arrays that get a gradient, such
    as "parameter". The copy has this form alone; `system` and its mixer stay as they are."""
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
    """The state of one reverse pass."""

    rewrites: frozenset[str] = frozenset()
    regions: dict[Array, list[Constraints]] = field(default_factory=dict)
    """The entries of each array that have a gradient, in its axes, as regions that may overlap."""
    shared: Shared = field(default_factory=Shared)

    def built(self) -> System:
        """The system of a training step: the forward equations, then those of the gradients, which
        are written here block by block, from the output back, and at the end for the arrays that no
        equation computes (`wanted`: inputs, contexts, parameters)."""
        output = self.system.mixer.role("output")
        self.handed[output] = [Handed(_of_loss(output, self.system.given), sequence=True)]
        for block in reversed(blocks(self.system)):
            self._differentiate_block(block)
        for array in self.system.wanted:
            if self.handed.get(array):
                self._write_sums(array)
        backward = fused_equations(self.written)
        equations = (*self.system.equations, *backward)
        return replace(self.system, equations=equations, backward=backward)

    def _differentiate_block(self, block: Block) -> None:
        """Write the equations of the gradients of a block's arrays (of one array, or of a loop),
        and hand cotangents (contributions to gradients) to the arrays that the block reads. A
        gradient that is given (a context) gets no equation."""
        arrays = [array for array in _readers_first(block) if array in self.system.active]
        for array in arrays:
            self.grads[array] = self._gradient(array, in_loop=block.is_loop)
        named = self._at_fixed_point(block, arrays)
        for array in arrays:
            if self.grads[array].role != "context":
                self._write_sums(array)
            self.written |= named[array]

    def _at_fixed_point(
        self, block: Block, arrays: Sequence[Array]
    ) -> dict[Array, dict[Equation, str]]:
        """Hand cotangents (contributions to gradients) from a block's `arrays`, readers first, to
        the arrays that they read; returns, for each of `arrays`, the auxiliary equations of its
        gradient (equation -> how often it is executed).

        In a loop, arrays hand cotangents to each other: an iteration to a fixed point, starting
        from all entries, finds the entries that have a gradient. Any fixed point is correct, as
        each row follows from the row before.

        Raises:
            Unsupported: the iteration does not converge in `ROUNDS` rounds.
        """
        # what the readers behind the block have handed on, with which each round begins
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
        raise Unsupported(
            f"{', '.join(array.name for array in arrays)}: {ROUNDS} rounds do not find which "
            "entries have a gradient: ask for phase training, the forward pass"
        )

    def _reached(self, array: Array) -> list[Constraints]:
        """The regions of the entries of an array that receive a cotangent, in its axes."""
        return [plain_region(h.cotangent) for h in self.handed.get(array, [])]

    def _differentiated(self, block: Block, array: Array) -> dict[Equation, str]:
        """Hand cotangents (contributions to gradients) from an array to the arrays that its
        equations read, by the rule of each node; under rewrites, a softmax, a normalised row and a
        row's length have rules of their own. Returns the auxiliary equations, as equation -> how
        often it is executed, in topological order."""
        before, self.written = self.written, {}
        for equation in reversed(block.equations):
            if equation.array is array:
                if (scores := self._softmax(equation)) is not None:
                    self._hand_softmax(equation, scores)
                    continue
                if row := self._normed(equation):
                    self._hand_normed_row(equation, row)
                    continue
                if length := self._length(equation):
                    self._hand_length(equation, *length)
                    continue
                if "triangle-gradient" in self.rewrites and (system := solved(block, equation)):
                    self._hand_system(equation, system, block.axes[array])
                    continue
                for scope in self._scopes(equation):
                    self.hand(equation.value, Ref(self.grads[array], equation.positions), scope)
        found, self.written = self.written, before
        return _in_order(found)

    def _scopes(self, equation: Equation) -> Iterable[Scope]:
        """Yield the points of an equation that have a gradient, as disjoint scopes (index ranges
        with their constraints), each either of points that depend on the sequence, or of points
        that depend on weights alone."""
        for piece in self._pieces(equation):
            parts = tokens(self.system).dependent(equation)
            if rows_together(equation.value):
                parts = [(equation.domain, any(sequence for _, sequence in parts))]
            for part, sequence in parts:
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
        """Yield the disjoint parts, as constraints, of an equation's domain that have a gradient:
        the whole domain if all points have one, none for an equation without entries. The entries
        of one transform stay together, and the rows of one scan at all sizes, as the scan back
        reads the gradient of every row: zero where no equation reads the row."""
        own, regions = defined(equation), self.regions[equation.array]
        if own is None:  # the equation defines no entry at any size
            return
        if equation.value.alone:
            regions = _whole_transforms(regions, _result_axes(equation))
            if rows_together(equation.value):
                made = {axis_atom(k) for k in _result_axes(equation)}
                regions = [
                    frozenset(c for c in projected(where, made) if c.variables) for where in regions
                ]
        if not outside(own, regions):
            yield equation.domain
            return
        at = {axis_atom(k): position_value(p) for k, p in enumerate(equation.positions)}
        for k, where in enumerate(regions):
            for piece in outside(where, regions[:k]):
                conditions = (c.substitute(at) for c in piece)
                yield equation.domain | {c for c in conditions if not implied(equation.known, c)}

    def _softmax(self, equation: Equation) -> Ref | None:
        """The scores of a softmax equation under `softmax-gradient`; None for any other equation,
        and without the rewrite."""
        if "softmax-gradient" not in self.rewrites:
            return None
        return softmax_of(self.system, equation)

    def _hand_softmax(self, equation: Equation, scores: Ref) -> None:
        """Hand the gradient g of a softmax y (`equation`) to the `scores` that it normalises, from
        y alone: (g - sum of g y) y. The sum, one number per row, is that of `_of_weighted_sum`, if
        there is one; a sum that is written already is not written again. Unsupported if only a part
        of the entries of a row is read."""
        scopes = list(self._scopes(equation))
        if len(scopes) != 1:
            raise Unsupported(
                f"{equation.name}: only a part of each softmax row is read, and "
                "softmax-gradient takes whole rows: leave out the rewrite softmax-gradient"
            )
        (scope,) = scopes
        assert isinstance(equation.value, Div) and isinstance(equation.value.right, Ref)
        gradient = Ref(self.grads[equation.array], equation.positions)
        result = Ref(equation.array, equation.positions)
        total = equation.value.right  # the sum of exponentials in y = exponential / sum
        (of_row,) = self.system.defining[total.array]
        assert isinstance(of_row.value, Reduce)
        value = self._of_weighted_sum(equation, of_row)
        if value is None:
            value = Reduce("sum", Mul(gradient, result), of_row.value.over)
        same = (e.array for e in self.written if (e.value, e.indices) == (value, of_row.indices))
        sums = next(same, None)
        if sums is None:
            sums = self._new_step(equation.array, total.array.shape)
            whole = self.gradient(equation.array)
            written = Equation(sums, of_row.positions, value, of_row.indices, whole)
            self.written[written] = SEQUENCE if scope.sequence else STEP
        difference = Sub(gradient, Ref(sums, total.positions))
        self.hand_to(scores, Mul(difference, result), scope)

    def _normed(self, equation: Equation) -> NormedRow | None:
        """The row that an equation normalises, if a rewrite takes the row's gradient from the
        normalised result; None for any other equation."""
        return normed_row(self.system, equation, self.rewrites)

    def _hand_normed_row(self, equation: Equation, row: NormedRow) -> None:
        """Hand the gradient of a normalised row to the entries of the row, by a formula in the
        normalised entries. Unsupported if only a part of the row is read."""
        for scope in self._scopes(equation):
            if row.over not in scope.free:
                rewrite = REWRITES["rms_norm" if row.centred is None else "layer_norm"]
                raise Unsupported(
                    f"{equation.name}: only a part of each normalised row is read, and {rewrite} "
                    "computes gradients from whole rows of the result: leave out the rewrite "
                    f"{rewrite}"
                )
            gradient = Ref(self.grads[equation.array], equation.positions)
            result = Ref(equation.array, equation.positions)
            of_row = partial(self._store_row_number, row, scope)
            self.hand_to(row.x, row.gradient(gradient, result, of_row), scope)

    def _store_row_number(self, row: NormedRow, scope: Scope, value: Node) -> Ref:
        """Write `value`, one number for each row of a norm (such as the sum of g x'), to a new
        array; returns the reference to the number, in the indices of the norm's factor."""
        array = scope.equation.array
        number = self._new_step(array, row.factor.array.shape)
        indices = tuple(index for index in scope.free if index != row.over)
        written = Equation(number, row.factor.positions, value, indices, self.gradient(array))
        self.written[written] = SEQUENCE if scope.sequence else STEP
        return Ref(number, row.factor.positions)

    def _length(self, equation: Equation) -> tuple[Ref, Index] | None:
        """(entry, its index) of the row whose Euclidean length an equation takes, under
        `length-gradient`; None for any other equation, and without the rewrite."""
        if "length-gradient" not in self.rewrites:
            return None
        return length_of_row(self.system, equation)

    def _hand_length(self, equation: Equation, x: Ref, over: Index) -> None:
        """Hand the gradient g of a row's Euclidean length n, the result of `equation`, to the row's
        entries `x` in the index `over`: g (x / n), and 0 where n is 0."""
        for scope in self._scopes(equation):
            length = Ref(equation.array, equation.positions)
            gradient = Ref(self.grads[equation.array], equation.positions)
            # n where n > 0, else 1: a row of length 0 has entries 0
            divisor = self.stored(where_larger(length, length, ZERO, ONE), scope)
            for ranges in one_by_one((over,)):
                self.hand_to(x, Mul(gradient, Div(x, divisor)), scope.inside(ranges))

    def _hand_system(self, equation: Equation, system: Solved, axis: int) -> None:
        """Hand the gradient of a row of a triangular system, x[e] = b[e] - sum over z < e of A[e,
        z] x[z]: x.grad[e] to b[e], -x.grad[e] A[e, z] to each earlier row x[z], and -x.grad[e]
        x[z], summed over the columns of x, to A[e, z]. These sums are computed for all pairs of
        rows (e, z), and A takes those at which it has entries. `system` has the entries of b, A and
        x in the equation; `axis` is the axis of rows in x."""
        x, z, columns = equation.array, system.any_row, system.columns
        for scope in self._scopes(equation):
            gradient = Ref(self.grads[x], equation.positions)
            self.hand(system.right, gradient, scope)
            negative = Neg(gradient)
            self.hand_to(system.earlier, Mul(negative, system.matrix), scope.inside((system.over,)))
            kept = tuple(index for index in scope.free if index.atom not in columns)
            over = tuple(index for index in scope.free if index.atom in columns)
            # the product's axes: those of x but its columns, then the second row of each pair
            at = [
                (position, extent)
                for position, extent in zip(system.earlier.positions, x.shape, strict=True)
                if columns.isdisjoint(names_in([position]))
            ]
            row = system.row.as_poly()
            pairs = self._new_step(x, (*(extent for _, extent in at), x.shape[axis]))
            positions = (*(position for position, _ in at), row)
            product = Reduce("sum", Mul(negative, system.earlier), over)
            around = projected(scope.around, columns) | z.constraints | system.several_rows
            order = [index.atom for index in (*kept, z)]
            indices = guarded_ranges(around, order, f"the gradient of {system.matrix.array.name}")
            written = Equation(pairs, positions, product, indices, self.gradient(x))
            self.written[written] = SEQUENCE if scope.sequence else STEP
            axes = {axis_atom(k): position_value(p) for k, p in enumerate(system.matrix.positions)}
            for definition in self.system.defining[system.matrix.array]:
                entries = {c.substitute(axes) for c in defined(definition) or ()}
                inside = Scope(equation, (*kept, z), around | entries, scope.sequence)
                self.hand_to(system.matrix, Ref(pairs, positions), inside)

    def _of_weighted_sum(self, equation: Equation, of_row: Equation) -> Node | None:
        """The sum over a row that the gradient of a softmax y needs, sum of g y, as the sum of g_o
        o, o being the weighted sum that alone reads y, under `weighted-sum-gradient`; None without
        this rewrite, without such an o, and if o has entries without a gradient. `of_row` is the
        equation of the softmax's sums, one for each row."""
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
        """The arrays that are the scores (exponents) of a softmax, for `scale_of`."""
        return scored(self.system, softmaxes(self.system))

    def scale_of(self, node: Mul | Div, scope: Scope) -> Scale | None:
        """(operation, constant) of a product or quotient that scales a sum of a softmax's scores,
        such as (Div, sqrt(n)), under `scale-gradient`: like kernels, it scales the gradients of q
        and k in its place. None for any other node, and inside of such a node."""
        if "scale-gradient" not in self.rewrites or not isinstance(node.right, Constant):
            return None
        if not isinstance(node.left, Reduce) or scope.scale is not None:
            return None
        return (type(node), node.right) if scope.equation.array in self._scores else None

    def hand(self, node: Node, gradient: Node, scope: Scope) -> None:
        """Hand an expression's gradient to its operands, if it reads an array with a gradient."""
        if not self.system.active.isdisjoint(node.arrays):
            RULES[type(node)].hand(self, node, gradient, scope)

    def stored(self, gradient: Node, scope: Scope) -> Node:
        """Write the equation of an array that holds the gradient, for several readers, and return a
        reference to the array, which is new unless another equation of the scope's array has the
        same expression there; the gradient itself, without an array, if it costs nothing."""
        if gradient.is_free:
            return gradient
        of, over = scope.equation.array, scope.over
        shape = of.shape + tuple(extent(index, scope.indices) for index in over)
        array = self.shared.array(
            of, gradient, shape, scope.equation, lambda: self._new_step(of, shape)
        )
        positions = scope.equation.positions + tuple(index.as_poly() for index in over)
        equation = Equation(array, positions, gradient, scope.indices, self.gradient(of))
        self.written[equation] = SEQUENCE if scope.sequence else STEP
        return Ref(array, positions)

    def partial_gradient(self, array: Array) -> Array:
        """A new array for one contribution to the gradient of an array."""
        return self._new_step(array)

    def hand_to(self, ref: Ref, gradient: Node, scope: Scope) -> None:
        """Add a gradient, at the points of `scope` (an equation's indices), to the contributions to
        the entry that a reference reads; for a gather v[p[i]], to every entry v[c] that it may
        read, under the condition c = p[i]. Unsupported if the number of terms depends on values, or
        as `transposed`."""
        read = anywhere(self.system, Read(ref, ()))
        indices, around = (*scope.indices, *read.over), scope.around | read.constraints
        if read.over:
            gradient = self.stored(gradient, scope)
        for place, position in zip(read.ref.positions, ref.positions, strict=True):
            if isinstance(position, Gather):
                named = place.outer if isinstance(place, Flat) else position_value(place)
                gradient = Bracket(gradient, Constant(named), "=", position.at)
        cotangent = transposed(read.ref, indices, around, gradient)
        if cotangent is not None:
            if isinstance(gradient, Bracket) and gradient.first and cotangent.over:
                raise Unsupported(
                    f"{scope.equation.name}: the number of additions in the gradient of "
                    f"{ref.array.name} depends on values, on which entry is the maximum of each "
                    "row: ask for phase training, the forward pass"
                )
            # the new indices over what a gather may read give the entry's axes no names
            chosen = {index.name for index in read.over}
            hints = tuple(None if name in chosen else name for name in cotangent.hints)
            self.record(replace(cotangent, hints=hints, scale=scope.scale), scope)

    def record(self, cotangent: Cotangent | None, scope: Scope) -> None:
        """Record a cotangent of an array; nothing for None."""
        if cotangent is not None:
            self.handed.setdefault(cotangent.array, []).append(Handed(cotangent, scope.sequence))


def _result_axes(equation: Equation) -> Iterator[int]:
    """The numbers of the axes of an array along which a transform or selection gives its results:
    those without an index of the operand, 1 for y[i, f] = fft over j of x[i, j]."""
    read = {name for ref in references(equation) for name in names_in(ref.positions)}
    return (k for k, at in enumerate(equation.positions) if read.isdisjoint(names_in([at])))


def _whole_transforms(regions: Sequence[Constraints], made: Iterable[int]) -> list[Constraints]:
    """The `regions` of an array with one range along the axes `made` (numbers from 0), as one
    transform, scan or selection gives all entries along these: of the bounds that name them, only
    those on one axis that hold in all regions remain, `#1` >= 2 of `#1` >= 2 and `#1` >= 5. A
    region inside another is left out."""
    axes = {axis_atom(k) for k in made}
    ends = {c for where in regions for c in where if len(c.variables) == 1 and c.variables <= axes}
    common = frozenset(c for c in ends if all(implied(where, c) for where in regions))
    found = dict.fromkeys(irredundant(projected(where, axes) | common) for where in regions)

    def inside(one: Constraints, other: Constraints) -> bool:
        return one != other and all(implied(one, c) for c in other)

    return [where for where in found if not any(inside(where, other) for other in found)]


def _equal(one: Sequence[Constraints], two: Sequence[Constraints]) -> bool:
    """Whether two lists of regions cover the same entries."""
    return not any(
        outside(where, others) for these, others in ((one, two), (two, one)) for where in these
    )


def _in_order(written: dict[Equation, str]) -> dict[Equation, str]:
    """The equations (-> how often each is executed) in topological order: each after the equations
    of the arrays that it reads. A cycle is broken at its first equation in the given order."""
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
    """The arrays of a block, each after the arrays that read it within the same row, so that all
    cotangents are handed to an array before it hands on its gradient; a cycle is broken at the
    array that is written last."""
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
    """The first cotangent (contribution to the gradient) of the output: at every entry, the given
    gradient of this entry."""
    layout = (None,) * len(output.shape)
    axes = tuple(index_atom(k) for k in range(len(output.shape)))
    value = Ref(given, tuple(map(Poly.atom, axes)))
    return Cotangent(output, layout, axes, frozenset(), value, (), (None,) * len(axes))
