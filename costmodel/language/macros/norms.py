"""Layer, RMS and l2 normalisation as macros.

A row of m entries is divided by a number of its own: m divisions, as the papers print it. Under
`norm=rsqrt` the row has one reciprocal of its root and m products instead, as kernels do. Every
norm is a whole right-hand side, over one index or, for a row of several axes, over a tuple:

    y[i, b] = layer_norm(x[i, b], over=b, gain=gain[b], bias=bias[b])

Squares are written to an array of their own: their sum is not a matrix product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import prod
from typing import Any

from costmodel.errors import EquationError
from costmodel.language.arguments import checked
from costmodel.language.equations import Equation
from costmodel.language.indices import Index
from costmodel.language.macros.macro import (
    Macro,
    Parts,
    checked_entry,
    checked_row_index,
    length_of,
)
from costmodel.language.nodes import Composite, Constant, Node, Operands, Ref, node, record
from costmodel.language.writing import function, indices_in, maximum, sum_
from costmodel.symbolic.polynomial import Poly

LAYER_EPS = Fraction(1, 100_000)
"""The default of torch.nn.functional.layer_norm."""

RMS_EPS = Fraction(1, 2**52)
"""The default of torch.nn.functional.rms_norm, the machine epsilon of its operand's type, for
float64: in that type equations are evaluated and modules are compared with them."""

LEAST_LENGTH = Fraction(1, 10**12)
"""The default of torch.nn.functional.normalize."""


@record
class Normed(Operands):
    """The operands: an entry of a row, its factor and offset, and two small constants."""

    x: Ref
    gain: Node | None
    bias: Node | None
    eps: Poly
    least: Poly = Poly()


@checked
def layer_norm(
    x: Node,
    over: Index | tuple[Index, ...],
    *,
    gain: Any = None,
    bias: Any = None,
    eps: Any = LAYER_EPS,
) -> Node:
    """The node of (x - mean) / sqrt(variance + eps) * gain + bias, mean and variance along `over`.

    Counted for each row of m entries: m-1 add and 1 div (mean), m add (x - mean), m mul, m-1 add
    and 1 div (variance), 1 add (eps), 1 sqrt, m div; then m mul (gain) and m add (bias). What is
    left out is not counted: no gain, no bias, an eps of 0.

    Source: Ba et al. 2016, arXiv 1607.06450, eq. (3), which has no eps; with it as in
    torch.nn.functional.layer_norm.

    Raises:
        EquationError: x is an expression or lacks an index of `over`; eps is negative.
    """
    return _composite("layer_norm", x, over, gain, bias, eps)


@checked
def rms_norm(
    x: Node,
    over: Index | tuple[Index, ...],
    *,
    gain: Any = None,
    bias: Any = None,
    eps: Any = RMS_EPS,
) -> Node:
    """The node of x / sqrt(mean of squares + eps) * gain + bias, the mean along `over`.

    Counted for each row of m entries: m mul, m-1 add and 1 div (mean of squares), 1 add (eps), 1
    sqrt, m div; then m mul (gain) and m add (bias). What is left out is not counted.

    Source: Zhang and Sennrich 2019, arXiv 1910.07467, eq. (4), which has no eps; with it as in
    torch.nn.functional.rms_norm.

    Raises:
        EquationError: x is an expression or lacks an index of `over`; eps is negative.
    """
    return _composite("rms_norm", x, over, gain, bias, eps)


@checked
def l2_norm(
    x: Node,
    over: Index | tuple[Index, ...],
    *,
    gain: Any = None,
    bias: Any = None,
    eps: Any = 0,
    least: Any = LEAST_LENGTH,
) -> Node:
    """The node of x / max(sqrt(sum of squares + eps), least) * gain + bias, the sum along `over`.

    Counted for each row of m entries: m mul, m-1 add, 1 add (eps), 1 sqrt, 1 compare (least), m
    div; then m mul (gain) and m add (bias). What is left out, or 0, is not counted.

    Source: torch.nn.functional.normalize, whose `eps` is `least` here; kernels of linear attention
    add a constant under the root instead: least=0 and eps.

    Raises:
        EquationError: x is an expression or lacks an index of `over`; eps or least is negative.
    """
    return _composite("l2_norm", x, over, gain, bias, eps, least)


def _composite(
    name: str,
    x: Node,
    over: Index | tuple[Index, ...],
    gain: Any,
    bias: Any,
    eps: Any,
    least: Any = 0,
) -> Node:
    """The node of the norm `name`, with eps and least as exact decimals, gain and bias as
    expressions; EquationError if x is no entry with the indices `over`, or a constant below 0."""
    factor, offset = (None if part is None else node(part) for part in (gain, bias))
    small = _small(name, "eps", eps), _small(name, "least", least)
    indices = indices_in(over)
    rows = [checked_entry(name, x, index) for index in indices]
    return Composite(name, Normed(rows[0], factor, offset, *small), indices)


def _small(name: str, what: str, value: Any) -> Poly:
    """A constant of at least 0, as the exact decimal that was typed: 1e-5 is 1/100000. Raises
    EquationError: no number, or a negative one."""
    try:
        number = Fraction(str(value))
    except (ValueError, ZeroDivisionError):
        number = Fraction(-1)
    if number < 0:
        raise EquationError(f"{name}: {what} must be a number of at least 0, got {value!r}")
    return Poly.of(number)


def _layer_norm(
    equation: Equation, composite: Composite, rewrites: Sequence[str]
) -> list[Equation]:
    """The equations that replace `equation`, whose right side is a layer normalisation, in steps:
    mean (a number for each row), centred row, squares, variance (likewise), quotient. `row`: the
    indices of the entries of a row; `length`: their number."""
    operands, row, parts = _taken(equation, composite)
    length = _length(composite)
    mean = parts.define("mean", sum_(operands.x, over=row) / length, *row)
    centred = parts.define("centred", operands.x - mean)
    square = parts.define("square", centred * centred)
    variance = parts.define("variance", sum_(square, over=row) / length, *row)
    return _divided(parts, operands, centred, variance, row, rewrites)


def _rms_norm(equation: Equation, composite: Composite, rewrites: Sequence[str]) -> list[Equation]:
    """The equations that replace `equation`, whose right side is an RMS normalisation, in steps:
    squares, their mean, quotient."""
    operands, row, parts = _taken(equation, composite)
    length = _length(composite)
    square = parts.define("square", operands.x * operands.x)
    mean = parts.define("mean", sum_(square, over=row) / length, *row)
    return _divided(parts, operands, operands.x, mean, row, rewrites)


def _l2_norm(equation: Equation, composite: Composite, rewrites: Sequence[str]) -> list[Equation]:
    """The equations that replace `equation`, whose right side divides rows by their length, in
    steps: squares, their sum, quotient."""
    operands, row, parts = _taken(equation, composite)
    square = parts.define("square", operands.x * operands.x)
    total = parts.define("sum", sum_(square, over=row), *row)
    return _divided(parts, operands, operands.x, total, row, rewrites)


def _taken(equation: Equation, composite: Composite) -> tuple[Normed, tuple[Index, ...], Parts]:
    """The parts of an equation whose right side is a norm, as (operands: x, gain, bias, constants;
    the indices of a row; the collector of the equations to write)."""
    operands = composite.body
    assert isinstance(operands, Normed)
    row = tuple(checked_row_index(equation, composite, index) for index in composite.over)
    return operands, row, Parts(equation)


def _length(composite: Composite) -> Poly:
    """The number of entries of a row of a norm."""
    return prod((length_of(composite.name, index) for index in composite.over), start=Poly.of(1))


def _divided(
    parts: Parts,
    operands: Normed,
    above: Ref,
    square: Ref,
    row: tuple[Index, ...],
    rewrites: Sequence[str],
) -> list[Equation]:
    """The equations of a norm: those collected in `parts`, and the last, `above` / sqrt(`square` +
    eps) * gain + bias, where `square` is one number of each row and a divisor below `least` is
    replaced by `least`.

    Under the rewrite `norm=rsqrt` the entries are multiplied by the reciprocal of the root instead,
    except with `least`.
    """
    inside = square if operands.eps == Poly() else square + operands.eps
    value: Node
    if "norm=rsqrt" in rewrites and operands.least == Poly():
        factor = parts.define("reciprocal", function("rsqrt", inside), *row)
        value = parts.define("normed", above * factor)
    else:
        length = parts.define("root", function("sqrt", inside), *row)
        if operands.least != Poly():
            length = parts.define("length", maximum(length, Constant(operands.least)), *row)
        value = above / length
    value = value if operands.gain is None else value * operands.gain
    return parts.finish(value if operands.bias is None else value + operands.bias)


MACROS: Mapping[str, Macro] = {
    "layer_norm": Macro(_layer_norm, rewrites=("norm=rsqrt",), latex=r"\mathrm{LayerNorm}"),
    "rms_norm": Macro(_rms_norm, rewrites=("norm=rsqrt",), latex=r"\mathrm{RMSNorm}"),
    "l2_norm": Macro(_l2_norm, rewrites=("norm=rsqrt",), latex=r"\mathrm{L2Norm}"),
}
