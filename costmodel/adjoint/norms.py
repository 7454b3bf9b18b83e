"""The gradient of a row's normalisation from its normalised entries x', as kernels compute it.

Source: torch/_decomp/decompositions.py, native_layer_norm_backward and _fused_rms_norm_backward. Of
the forward pass these keep x, the means and the reciprocal roots r, and compute x' = (x - mean) r
again. The equations of a norm are recognised by the `origin` of their arrays: the norm (`how`) and
the step of the norm, such as `normed` for x'.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TypeVar

from costmodel.language.equations import Equation, System
from costmodel.language.indices import Index
from costmodel.language.macros.macro import length_of
from costmodel.language.nodes import (
    Array,
    Call,
    Constant,
    Div,
    Mul,
    Node,
    Reduce,
    Ref,
    Sub,
    names_in,
)


@dataclass(frozen=True)
class NormedRow:
    """The operands of x' = (x - mean) r, or of x' = x r, at an entry x of a row."""

    x: Ref
    factor: Ref
    """The reciprocal root r of the row."""
    over: Index
    """The index over the entries of the row."""
    centred: Array | None
    """The array that holds x - mean; None for a norm without a mean."""

    def gradient(self, given: Ref, normed: Ref, of_row: Callable[[Node], Ref]) -> Node:
        """The gradient of a row x from the gradient g of the normalised row x', where r is the
        reciprocal of the root and m the number of entries: (m g - sum of g - x' sum of g x') (r /
        m); without a mean (g - x' (sum of g x') / m) r.

        Args:
            given: the entry of g.
            normed: the entry of x'.
            of_row: writes one number per row to an array, and returns the reference to it.
        """
        length = Constant(length_of("a norm", self.over))
        along = Reduce("sum", Mul(given, normed), (self.over,))
        if self.centred is None:
            return Mul(Sub(given, Mul(normed, of_row(Div(along, length)))), self.factor)
        total, product = of_row(Reduce("sum", given, (self.over,))), of_row(along)
        left = Sub(Sub(Mul(length, given), total), Mul(normed, product))
        return Mul(left, of_row(Div(self.factor, length)))


Kind = TypeVar("Kind", bound=Node)

REWRITES = {"layer_norm": "layer-norm-gradient", "rms_norm": "rms-norm-gradient"}
"""Norm -> the rewrite that takes the gradient from the result, of a norm under `norm=rsqrt`."""


def normed_row(system: System, equation: Equation, rewrites: Collection[str]) -> NormedRow | None:
    """(x, r, the index over the row, the array of x - mean, None for an RMS norm) of an equation of
    `system` that normalises a row, if one of the `rewrites` takes the gradient of this norm from
    its result. None for any other equation, and for a layer norm without an equation x - mean at
    the same positions."""
    value, made = equation.value, equation.array.origin
    if made is None or made.step != "normed" or REWRITES.get(made.how) not in rewrites:
        return None
    assert isinstance(value, Mul) and isinstance(value.left, Ref) and isinstance(value.right, Ref)
    kept = names_in(value.right.positions)
    # r has one entry for each row: the index that its positions lack runs over the row
    (over,) = (index for index in equation.indices if index.atom not in kept)
    if made.how == "rms_norm":
        return NormedRow(value.left, value.right, over, None)
    centred = value.left
    for found in _values_of(system, centred, Sub):
        assert isinstance(found.left, Ref)
        return NormedRow(found.left, value.right, over, centred.array)
    return None


def _values_of(system: System, entry: Ref, kind: type[Kind]) -> Iterator[Kind]:
    """Yield the right sides of one kind of node in the equations of an entry's array that define it
    at the entry's positions."""
    for equation in system.defining[entry.array]:
        if equation.positions == entry.positions and isinstance(equation.value, kind):
            yield equation.value


def computed_again(forward: System, rewrites: Collection[str]) -> frozenset[Array]:
    """The arrays of a forward pass, normalised rows x' and differences x - mean, that the backward
    pass computes again under the `rewrites`, so that the forward pass need not keep them."""
    found: set[Array] = set()
    for equation in forward.equations:
        if row := normed_row(forward, equation, rewrites):
            found |= {equation.array, *([row.centred] if row.centred else [])}
    return frozenset(found)


def length_of_row(system: System, equation: Equation) -> tuple[Ref, Index] | None:
    """(entry x, its index) of the equation of `l2_norm` that takes a row's Euclidean length n, the
    root of the sum of the squares of x, whose gradient torch takes as g (x / n). None for any other
    equation, and for a root of any further term (an epsilon)."""
    value, made = equation.value, equation.array.origin
    if made is None or (made.how, made.step) != ("l2_norm", "root"):
        return None
    if not (isinstance(value, Call) and isinstance(value.body, Ref)):
        return None
    for total in _values_of(system, value.body, Reduce):
        square, (over,) = total.body, total.over
        assert isinstance(square, Ref)
        for product in _values_of(system, square, Mul):
            assert isinstance(product.left, Ref)
            return product.left, over
    return None
