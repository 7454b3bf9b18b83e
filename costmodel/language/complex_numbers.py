"""Complex numbers in equations, as pairs of real numbers.

    A = complex_(m.parameter("A", d, 2))
    S = complex_pair(f.array("S_re", l, d), f.array("S_im", l, d))
    S[i, c] = A[c] * S[i - 1, c] + B[c] * x[i, c]
    y[i, c] = S[i, c].real

An equation of complex numbers stands for two real equations. A product of two complex numbers takes
4 multiplications and 2 additions, a product with a real number 2 multiplications.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from costmodel.errors import EquationError, WrongKind, described
from costmodel.language.arguments import checked
from costmodel.language.nodes import Array, Node, refs
from costmodel.language.writing import function, sum_
from costmodel.symbolic.refused_operators import compared_by_structure, refuse_truth


@compared_by_structure
@dataclass(frozen=True)
class Complex:
    """A complex number, given by its real and imaginary part."""

    real: Node
    imag: Node

    __bool__ = refuse_truth

    @property
    def conjugate(self) -> Complex:
        """The complex conjugate, at no cost."""
        return Complex(self.real, -self.imag)

    @property
    def squared(self) -> Node:
        """The squared absolute value: 2 multiplications, an addition; EquationError as `z * z`."""
        one, two = _parts_read_twice(self)
        return one * one + two * two

    def __add__(self, other: Any) -> Complex:
        if isinstance(other, Complex):
            return Complex(self.real + other.real, self.imag + other.imag)
        return Complex(self.real + other, self.imag)

    def __sub__(self, other: Any) -> Complex:
        if isinstance(other, Complex):
            return Complex(self.real - other.real, self.imag - other.imag)
        return Complex(self.real - other, self.imag)

    def __mul__(self, other: Any) -> Complex:
        if not isinstance(other, Complex):
            return Complex(self.real * other, self.imag * other)
        (a, b), (c, d) = _parts_read_twice(self), _parts_read_twice(other)
        return Complex(a * c - b * d, a * d + b * c)

    def __truediv__(self, other: Any) -> Complex:
        if isinstance(other, Complex):
            raise EquationError(
                "a complex number cannot be a divisor: write z / w as z * w.conjugate / w.squared"
            )
        return Complex(self.real / other, self.imag / other)


def _parts_read_twice(number: Complex) -> tuple[Node, Node]:
    """(real part, imaginary part) of a factor of a complex product, which reads each part twice.
    EquationError if a part is an expression that costs something, which would be computed twice; an
    entry, a constant or the negative of one is free."""
    for part in (number.real, number.imag):
        if not part.is_free:
            read = dict.fromkeys(ref.array.name for ref, _ in refs(part))
            raise EquationError(
                "a complex product reads each factor twice, and would compute the expression of "
                f"{' and '.join(read)} twice: define the expression as an array first"
            )
    return number.real, number.imag


def _check_complex(array: Array, value: object) -> None:
    if not isinstance(value, Complex):
        raise WrongKind(
            f"the value of {array.name}: expected a complex number, got {described(value)}"
        )


@dataclass(frozen=True)
class ComplexArray:
    """A complex array within a real array: `axis` (by default the last) has the real part at 1,
    the imaginary part at 2. Indexed and defined by the positions on the other axes."""

    array: Array
    axis: int = -1

    def __getitem__(self, key: Any) -> Complex:
        return Complex(self.array[self._at(key, 1)], self.array[self._at(key, 2)])

    def __setitem__(self, key: Any, value: Complex) -> None:
        _check_complex(self.array, value)
        self.array[self._at(key, 1)] = value.real
        self.array[self._at(key, 2)] = value.imag

    def _at(self, key: Any, part: int) -> tuple[Any, ...]:
        """The index of the real part (1) or the imaginary part (2) of entry `key`."""
        places = list(key) if isinstance(key, tuple) else [key]
        places.insert(self.axis % len(self.array.shape), part)
        return tuple(places)


@dataclass(frozen=True)
class ComplexPair:
    """A complex array stored as an array of real parts and an array of imaginary parts."""

    real: Array
    imag: Array

    def __getitem__(self, key: Any) -> Complex:
        return Complex(self.real[key], self.imag[key])

    def __setitem__(self, key: Any, value: Complex) -> None:
        _check_complex(self.real, value)
        self.real[key] = value.real
        self.imag[key] = value.imag


@checked
def complex_(array: Array, axis: int = -1) -> ComplexArray:
    """A complex array stored in one real array: `axis`, of extent 2, has the real part at 1, the
    imaginary part at 2; a negative `axis` counts from the last axis. EquationError for an axis of
    another extent, or that the array lacks."""
    present = -len(array.shape) <= axis < len(array.shape)
    if not present or array.shape[axis] != 2:
        found = f"the array has no axis {axis}"
        if present:
            found = f"axis {axis} of the array has extent {array.shape[axis]}"
        raise EquationError(
            f"complex_ of {array.name}: {found}: expected an axis of extent 2, the real part at 1, "
            "the imaginary part at 2"
        )
    return ComplexArray(array, axis)


@checked
def complex_pair(real: Array, imag: Array) -> ComplexPair:
    """A complex array stored in two real arrays of one shape; EquationError for two shapes."""
    if real.shape != imag.shape:
        first, second = (f"({', '.join(map(str, x.shape))})" for x in (real, imag))
        raise EquationError(
            f"complex_pair of {real.name} and {imag.name}: the extents are {first} and {second}: "
            "expected one shape"
        )
    return ComplexPair(real, imag)


@checked
def complex_sum(body: Complex, over: Any) -> Complex:
    """The sum of complex numbers over one index or a tuple of indices."""
    return Complex(sum_(body.real, over), sum_(body.imag, over))


@checked
def polar(radius: Node, angle: Node) -> Complex:
    """The complex number with the absolute value `radius` and the `angle` in radians, counted as a
    cosine, a sine and 2 multiplications. e**z has the radius exp(z.real) and the angle z.imag.

    Raises:
        EquationError: the radius or the angle is an expression, which would be computed twice.
    """
    both = Complex(function("cos", angle), function("sin", angle))
    _parts_read_twice(Complex(radius, angle))  # radius and angle are read twice each
    return both * radius
