"""The reverse-mode rule of each kind of node, which passes a gradient to its operands: `RULES`.

A rule *hands* the gradient of a node to its operands: it calls `builder.hand` with the gradient of
each operand, until a reference is reached, whose array gets a cotangent (a contribution to its
gradient, `hand_to`). A `Scope` has the points of the equation at which this happens.
`system.active` are the arrays that get a gradient. A rule that reads the node's result reads the
array of the equation: `residuals` gives such a node, if it is a subexpression, an equation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from costmodel.adjoint.derivatives import (
    COMPARED,
    OF_BOTH,
    OF_OPERAND,
    OF_RESULT,
    TWO,
    ZERO,
    where_larger,
)
from costmodel.adjoint.transpose import Cotangent, Scale, transposed
from costmodel.errors import Unsupported
from costmodel.language.equations import SEQUENCE, STEP, Equation, System
from costmodel.language.indices import Index, outer_first
from costmodel.language.nodes import (
    OPAQUE,
    TRANSFORMS,
    Add,
    Array,
    Binary,
    Bracket,
    Call,
    Composite,
    Constant,
    Div,
    Fft,
    FreeScale,
    Maximum,
    Mul,
    Neg,
    Node,
    Reduce,
    Ref,
    Scan,
    Select,
    Sub,
    names_in,
    substitute,
    walk,
)
from costmodel.language.rule_table import WRITTEN_OUT, Rules, refused
from costmodel.symbolic.constraints import Constraints
from costmodel.symbolic.polynomial import Poly


@dataclass(frozen=True)
class Scope:
    """Where a gradient is taken: the points of an expression in an equation."""

    equation: Equation
    free: tuple[Index, ...]
    """The free indices, in ranges that hold only the points with a gradient."""
    around: Constraints
    """The constraints on all indices."""
    sequence: bool
    """Whether the points depend on the sequence, False if on weights alone."""
    over: tuple[Index, ...] = ()
    """The indices of the reductions around the expression."""
    scale: Scale | None = None
    """The factor for each cotangent, applied after the sum over the readers."""

    @property
    def indices(self) -> tuple[Index, ...]:
        """All indices, outermost first."""
        return self.free + self.over

    def inside(self, over: tuple[Index, ...]) -> Scope:
        """The scope inside a reduction over `over`."""
        inner = self.around.union(*(index.constraints for index in over))
        return replace(self, over=self.over + tuple(outer_first(over)), around=inner)


class Reversal(Protocol):
    """The operations that the rules need from the reverse pass (`reverse._Builder` has them)."""

    system: System
    rewrites: frozenset[str]  # of the backward pass (`reverse.adjoint`)
    written: dict[Equation, str]  # equation of the backward pass -> how often it is executed

    def hand(self, node: Node, gradient: Node, scope: Scope) -> None:
        """Propagate the gradient of an expression to its operands."""
        ...

    def hand_to(self, ref: Ref, gradient: Node, scope: Scope) -> None:
        """Add a gradient to the entry that a reference reads."""
        ...

    def record(self, cotangent: Cotangent | None, scope: Scope) -> None:
        """Record a cotangent of an array; nothing for None."""
        ...

    def stored(self, gradient: Node, scope: Scope) -> Node:
        """A reference to a new array that holds the gradient, for several readers; the gradient
        itself if its computation costs nothing."""
        ...

    def scale_of(self, node: Mul | Div, scope: Scope) -> Scale | None:
        """Under `scale-gradient`, the scale that a product or quotient applies to a sum of scores:
        the gradients of the sum's operands are scaled in its place. None for any other node."""
        ...

    def gradient(self, array: Array) -> Array:
        """The array that holds the complete gradient of an array."""
        ...

    def partial_gradient(self, array: Array) -> Array:
        """A new array for one contribution to the gradient of an array, such as a transform's."""
        ...


def is_active(node: Node, arrays: frozenset[Array]) -> bool:
    """Whether an expression reads one of the arrays that get a gradient."""
    return not arrays.isdisjoint(node.arrays)


def _ref(builder: Reversal, node: Ref, gradient: Node, scope: Scope) -> None:
    builder.hand_to(node, gradient, scope)


def _add(builder: Reversal, node: Add, gradient: Node, scope: Scope) -> None:
    """Hand the gradient of a sum to its operands, at the points of `scope`."""
    gradient = _for_both(builder, node, gradient, scope)
    builder.hand(node.left, gradient, scope)
    builder.hand(node.right, gradient, scope)


def _sub(builder: Reversal, node: Sub, gradient: Node, scope: Scope) -> None:
    """Hand the gradient g of a - b to its operands, at the points of `scope`: b gets -g."""
    gradient = _for_both(builder, node, gradient, scope)
    builder.hand(node.left, gradient, scope)
    builder.hand(node.right, Neg(gradient), scope)


def _for_both(builder: Reversal, node: Binary, gradient: Node, scope: Scope) -> Node:
    """The gradient of an operation; stored in a new array, if both operands need it."""
    if all(is_active(operand, builder.system.active) for operand in (node.left, node.right)):
        return builder.stored(gradient, scope)
    return gradient


def _mul(builder: Reversal, node: Mul, gradient: Node, scope: Scope) -> None:
    """Hand the gradient of a product to its factors, at the points of `scope`: each gets the
    gradient (in an array if both factors need it) times the other factor; under `square-gradient`,
    and in an RMS norm under `rms-square-gradient`, x x gives x the gradient times 2 x. A constant
    that scales a sum of scores (`scale_of`, under `scale-gradient`) joins the scope: it is applied
    to the gradients of the sum's operands."""
    if scale := builder.scale_of(node, scope):
        builder.hand(node.left, gradient, replace(scope, scale=scale))
        return
    arrays = builder.system.active
    if is_active(node.left, arrays) and is_active(node.right, arrays):
        gradient = builder.stored(gradient, scope)
    made = scope.equation.array.origin
    name = "rms-square-gradient" if made is not None and made.how == "rms_norm" else ""
    if node.left == node.right and not builder.rewrites.isdisjoint({"square-gradient", name}):
        builder.hand(node.left, Mul(gradient, Mul(TWO, node.left)), scope)
        return
    builder.hand(node.left, Mul(gradient, node.right), scope)
    builder.hand(node.right, Mul(gradient, node.left), scope)


def _mean(node: Div) -> Reduce | None:
    """The sum in a quotient that is a mean: a sum over indices with one lower and one upper bound
    each, over the number of its terms (of j in 1..n, over n). None for any other quotient."""
    terms, number = node.left, Poly.of(1)
    if not (isinstance(terms, Reduce) and terms.kind == "sum" and len(terms.parts) == 1):
        return None
    for index in terms.over:
        if not len(index.lower) == len(index.upper) == 1:
            return None
        number *= index.upper[0] - index.lower[0] + 1
    return terms if node.right == Constant(number) else None


def _div(builder: Reversal, node: Div, gradient: Node, scope: Scope) -> None:
    """Hand the gradient g of a / b to its operands, at the points of `scope`: a gets u = g / b, b
    gets -u times the stored quotient. Under `mean-gradient` each term of a mean gets g / b; under
    `quotient-gradient` b gets -g ((a / b) / b), with a / b computed again. A constant that scales a
    sum of scores (`scale_of`, under `scale-gradient`) joins the scope: it is applied to the
    gradients of the sum's operands."""
    if scale := builder.scale_of(node, scope):
        builder.hand(node.left, gradient, replace(scope, scale=scale))
        return
    if "mean-gradient" in builder.rewrites and (terms := _mean(node)) is not None:
        handed = Div(builder.stored(gradient, scope), node.right)
        builder.hand(terms.body, handed, scope.inside(terms.over))
        return
    arrays = builder.system.active
    both = is_active(node.left, arrays) and is_active(node.right, arrays)
    if "quotient-gradient" in builder.rewrites:
        gradient = builder.stored(gradient, scope) if both else gradient
        builder.hand(node.left, Div(gradient, node.right), scope)
        builder.hand(node.right, Neg(Mul(gradient, Div(node, node.right))), scope)
        return
    cotangent: Node = Div(gradient, node.right)
    if both:
        cotangent = builder.stored(cotangent, scope)
    builder.hand(node.left, cotangent, scope)
    quotient = Ref(scope.equation.array, scope.equation.positions)
    builder.hand(node.right, Neg(Mul(cotangent, quotient)), scope)


def _maximum(builder: Reversal, node: Maximum, gradient: Node, scope: Scope) -> None:
    """Hand the gradient of a maximum of two to its operands, at the points of `scope`: to the left
    operand where it is larger, to the right one elsewhere; under `comparison-gradient` the
    comparisons are counted."""
    arrays = builder.system.active
    if is_active(node.left, arrays) and is_active(node.right, arrays):
        gradient = builder.stored(gradient, scope)
    if "comparison-gradient" in builder.rewrites:
        builder.hand(node.left, where_larger(gradient, node.left, node.right, ZERO), scope)
        builder.hand(node.right, where_larger(ZERO, node.left, node.right, gradient), scope)
        return
    builder.hand(node.left, Bracket(gradient, node.left, ">", node.right, ZERO), scope)
    builder.hand(node.right, Bracket(ZERO, node.left, ">", node.right, gradient), scope)


def _call(builder: Reversal, node: Call, gradient: Node, scope: Scope) -> None:
    """Hand the gradient of a function to its operand, at the points of `scope`, by the function's
    rule in `derivatives`: of `OF_RESULT`, from the stored result (under `cases-gradient` of
    `OF_BOTH`, under `comparison-gradient` of `COMPARED`), else of `OF_OPERAND`. Unsupported for a
    function without a rule."""
    if node.function in OF_RESULT:
        by_cases = OF_BOTH if "cases-gradient" in builder.rewrites else {}
        compared = COMPARED if "comparison-gradient" in builder.rewrites else {}
        rule = {**OF_RESULT, **by_cases, **compared}[node.function]
        known: Node = Ref(scope.equation.array, scope.equation.positions)
    elif node.function in OF_OPERAND:
        rule, known = OF_OPERAND[node.function], node.body
    else:
        there = ", ".join(sorted({*OF_RESULT, *OF_OPERAND}))
        raise Unsupported(
            f"{scope.equation.name}: the gradient of the function {node.function} has no rule: "
            f"expected one of {there}"
        )
    handed = rule(gradient, known)
    # a gradient that the rule uses several times is computed once
    if sum(part is gradient for part, _ in walk(handed)) > 1:
        handed = rule(builder.stored(gradient, scope), known)
    builder.hand(node.body, handed, scope)


def _reduce(builder: Reversal, node: Reduce, gradient: Node, scope: Scope) -> None:
    """Hand the gradient of a sum or maximum over indices to its terms, at the points of `scope`:
    each term of a sum gets it; of a maximum, the first term that equals the maximum. Unsupported
    for a maximum over several indices or ranges, or of another term than an entry."""
    gradient = builder.stored(gradient, scope)
    if node.kind == "sum":
        for part in node.parts:
            builder.hand(part.body, gradient, scope.inside(part.over))
        return
    said = f"{scope.equation.name}: the gradient of a maximum"
    if len(node.parts) > 1:
        one = "give the index one range"
        raise Unsupported(f"{said} over several ranges is not derived: {one}")
    if len(node.over) > 1:
        one = "take a maximum over one index at a time"
        raise Unsupported(f"{said} over several indices is not derived: {one}")
    if not isinstance(node.body, Ref):
        first = "define the expression as an array first"
        raise Unsupported(f"{said} of an expression is not derived: {first}")
    largest = Ref(scope.equation.array, scope.equation.positions)
    chosen = Bracket(gradient, node.body, "=", largest, first=node.over)
    builder.hand(node.body, chosen, scope.inside(node.over))


def _negated(builder: Reversal, node: Neg, gradient: Node, scope: Scope) -> None:
    builder.hand(node.body, Neg(gradient), scope)


def _free_scale(builder: Reversal, node: FreeScale, gradient: Node, scope: Scope) -> None:
    builder.hand(node.body, FreeScale(gradient, node.factor), scope)


def _fft(builder: Reversal, node: Fft, gradient: Node, scope: Scope) -> None:
    """Hand the gradient of a transform to its operand, at the points of `scope`: the transposed
    transform of the gradient, written to an array of its own; under `fft-gradient` the transform
    that libraries use in its place."""
    assert isinstance(gradient, Ref)  # a transform is a whole right-hand side
    read = set(names_in(node.body.positions))
    # indices of the result (frequencies of rfft), over which the transpose sums, in their order
    results = tuple(i for i in scope.free if i.atom not in read)
    by_place = names_in(scope.equation.positions)
    results = tuple(sorted(results, key=lambda i: by_place.index(i.atom)))
    indices = tuple(outer_first([*(i for i in scope.free if i.atom in read), *node.over]))
    back = TRANSFORMS[node.kind]
    kind = back.of_libraries if "fft-gradient" in builder.rewrites else back.adjoint
    value = Fft(kind, gradient, results, node.length)
    of = node.body.array
    array = builder.partial_gradient(of)
    equation = Equation(array, node.body.positions, value, indices, builder.gradient(of))
    builder.written[equation] = SEQUENCE if scope.sequence else STEP
    around = frozenset().union(*(index.constraints for index in indices))
    cotangent = transposed(node.body, indices, around, Ref(array, node.body.positions))
    builder.record(cotangent, scope)


def _scan(builder: Reversal, node: Scan, gradient: Node, scope: Scope) -> None:
    """Hand the `gradient` g of a scan y[w] = a[w] y[w-1] + x[w] to its operands, x (`node.body`)
    and the decay a (`node.kept`), at the points of `scope`: x[w] gets z[w] = g[w] + a[w+1] z[w+1],
    a scan from the last row to the first, written to an array of its own; a[w] gets z[w] y[w-1]."""
    assert isinstance(gradient, Ref)  # a scan is a whole right-hand side
    (row,) = node.over
    # w is the index `row` of the operands, in whose place the left side has `number`
    (number,) = (i for i in scope.free if i.atom not in names_in(node.body.positions))
    others = tuple(i for i in scope.free if i is not number)
    kept = substitute(node.kept, {row.atom: number.as_poly()})
    back = Scan(node.kind, gradient, (number,), node.length, kept, reverse=True)
    of = node.body.array
    array = builder.partial_gradient(of)
    indices = tuple(outer_first([*others, row]))
    equation = Equation(array, node.body.positions, back, indices, builder.gradient(of))
    builder.written[equation] = SEQUENCE if scope.sequence else STEP
    z = Ref(array, node.body.positions)
    around = frozenset().union(*(index.constraints for index in indices))
    builder.record(transposed(node.body, indices, around, z), scope)
    # the decay of row w multiplies result w - 1: it has a gradient from the second row on
    later = Index(row.name, tuple(low + 1 for low in row.lower), row.upper)
    result = Ref(scope.equation.array, scope.equation.positions)
    y_before = substitute(result, {number.atom: row - 1})
    inner = tuple(outer_first([*others, later]))
    constraints = frozenset().union(*(index.constraints for index in inner))
    builder.hand(node.kept, Mul(z, y_before), replace(scope, free=inner, around=constraints))


def _none(builder: Reversal, node: Constant | Select, gradient: Node, scope: Scope) -> None:
    """Nothing to propagate: a constant reads no array, and the positions that a selection gives
    have no gradient."""


@dataclass(frozen=True)
class Reader:
    """The choices that decide which values gradients read."""

    active: frozenset[Array]
    """The arrays that get a gradient."""
    quotients: bool
    """Whether the gradient of a divisor reads the quotient; False: the numerator."""

    def wants(self, node: Node) -> bool:
        """Whether a gradient flows into an expression."""
        return is_active(node, self.active)


@dataclass(frozen=True)
class Reads:
    """Which forward values the gradient of a node reads."""

    operands: tuple[bool, ...] = ()
    """For each operand in order, whether it is read; () for no operand."""
    result: bool = False
    """Whether the result is read."""


def _no_value(node: Node, reader: Reader) -> Reads:
    return Reads()


def _other_factor(node: Mul, reader: Reader) -> Reads:
    """A factor is read if the other factor gets a gradient."""
    return Reads((reader.wants(node.right), reader.wants(node.left)))


def _divisor(node: Div, reader: Reader) -> Reads:
    """The divisor is read; for the divisor's own gradient also the quotient, or the numerator."""
    below = reader.wants(node.right)
    return Reads((below and not reader.quotients, True), below and reader.quotients)


def _both(node: Maximum, reader: Reader) -> Reads:
    return Reads((True, True))


def _result_or_operand(node: Call, reader: Reader) -> Reads:
    """The result is read by the rules of `OF_RESULT`, the operand by all others."""
    result = node.function in OF_RESULT
    return Reads((not result,), result)


def _largest(node: Reduce, reader: Reader) -> Reads:
    """The terms and the result of a maximum are read, of a sum nothing."""
    return Reads((node.kind == "max",), node.kind == "max")


def _decays(node: Scan, reader: Reader) -> Reads:
    """The decays are read, and for their own gradient the result."""
    return Reads((False, True), reader.wants(node.kept))


@dataclass(frozen=True)
class Adjoint:
    """The rule of a kind of node: `hand` propagates a gradient to the operands; `reads` (node,
    `Reader`) says which forward values that gradient reads, for which `residuals` makes arrays."""

    hand: Callable[..., None]
    reads: Callable[..., Reads] = _no_value


_OF_GRADIENTS = refused("second derivatives are not derived")

RULES: Rules[Adjoint] = Rules(
    "adjoint",
    {
        Constant: Adjoint(_none),
        Ref: Adjoint(_ref),
        Add: Adjoint(_add),
        Sub: Adjoint(_sub),
        Mul: Adjoint(_mul, _other_factor),
        Div: Adjoint(_div, _divisor),
        Maximum: Adjoint(_maximum, _both),
        Neg: Adjoint(_negated),
        FreeScale: Adjoint(_free_scale),
        Call: Adjoint(_call, _result_or_operand),
        Reduce: Adjoint(_reduce, _largest),
        Bracket: Adjoint(_OF_GRADIENTS, _OF_GRADIENTS),
        Fft: Adjoint(_fft),
        Scan: Adjoint(_scan, _decays),
        Select: Adjoint(_none),
        Composite: Adjoint(WRITTEN_OUT, WRITTEN_OUT),
    },
)
"""Kind of node -> its reverse-mode rule."""

ROWS_TOGETHER: Rules[bool] = Rules(
    "adjoint, for whole right sides",
    {Fft: False, Scan: True, Select: False, Composite: False},
    OPAQUE,
)
"""Kind of node -> whether the gradient of a row reads the gradients of other rows."""


def rows_together(value: Node) -> bool:
    """Whether the gradient of a row of a right side reads the gradients of other rows, so that all
    rows need a gradient: that of a scan does."""
    return bool(value.alone) and ROWS_TOGETHER[type(value)]
