"""Do complex numbers, written as pairs of reals, have the values of Python and the right counts?"""

from __future__ import annotations

import cmath
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import costmodel as cm
from costmodel import EquationError, Mixer

Expression = Callable[[Any, Any], Any]

EXPRESSIONS: dict[str, tuple[Expression, Expression, dict[str, int]]] = {
    "product": (lambda x, w: x * w, lambda x, w: x * w, {"mul": 4, "add": 2}),
    "sums": (lambda x, w: x + w - x, lambda x, w: w, {"add": 4}),
    "with reals": (
        lambda x, w: x * w * 3 + 2 - 5,
        lambda x, w: x * w * 3 - 3,
        {"mul": 6, "add": 4},
    ),
    "quotient": (
        lambda x, w: x * w.conjugate / w.squared,
        lambda x, w: x / w,
        {"mul": 4 + 2 * 2, "add": 2 + 2 * 1, "div": 2},
    ),
    "exponential": (
        lambda x, w: cm.polar(x.real, w.imag),
        lambda x, w: x.real * cmath.exp(1j * w.imag),
        {"mul": 2, "cos": 1, "sin": 1},
    ),
}
"""What an author writes, what it means to complex numbers, and operations of one."""


def written(expression: Expression) -> Mixer:
    """y[i] is an expression of x[i] and w, whose parts lie on its first axis."""
    m = Mixer("pairs")
    l, d = m.sizes("l d")
    x, y, w = m.input("x", l, d, 2), m.output("y", l, d, 2), m.parameter("w", 2, d)
    with m.form("direct") as f:
        i, a = f.index("i", 1, l), f.index("a", 1, d)
        cm.complex_(y)[i, a] = expression(cm.complex_(x)[i, a], cm.complex_(w, axis=0)[a])
    return m


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_complex_numbers_have_the_values_and_counts_of_python(name: str) -> None:
    expression, meaning, operations = EXPRESSIONS[name]
    mixer, sizes = written(expression), {"l": 3, "d": 2}
    x, w = (np.random.default_rng(k).normal(size=s) for k, s in enumerate([(3, 2, 2), (2, 2)]))
    found = cm.evaluate(mixer, {"x": x, "w": w}, sizes) @ [1, 1j]
    expected = [[meaning(complex(*x[i, a]), complex(*w[:, a])) for a in range(2)] for i in range(3)]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)
    counted = cm.count(mixer).at(**sizes).by_class()
    assert {k: n for k, n in counted.items() if n} == {k: 6 * n for k, n in operations.items()}


def test_a_sum_adds_both_parts() -> None:
    m = Mixer("sums")
    (l,) = m.sizes("l")
    x, y = m.input("x", l, 2), m.output("y", l, 2)
    with m.form("direct") as f:
        i = f.index("i", 1, l)
        j = f.index("j", 1, i)
        cm.complex_(y)[i] = cm.complex_sum(cm.complex_(x)[j].conjugate, over=j)
    rows = np.random.default_rng(0).normal(size=(5, 2))
    assert np.allclose(cm.evaluate(m, {"x": rows}, {"l": 5}), np.cumsum(rows * [1, -1], axis=0))
    assert cm.count(m).at(l=5).add == 2 * 10


def test_a_recurrence_of_two_arrays_has_a_longest_path() -> None:
    """S[i] = w S[i-1] + x[i]: a product and two additions a row."""
    m = Mixer("turning")
    (l,) = m.sizes("l")
    x, y, w = m.input("x", l), m.output("y", l), cm.complex_(m.parameter("w", 2))
    with m.form("recurrent") as f:
        i, k = f.index("i", 1, l), f.index("k", 2, l)
        S = cm.complex_pair(f.array("S_re", l), f.array("S_im", l))
        S[1] = w[()] * x[1]
        S[k] = w[()] * S[k - 1] + w[()] * x[k]
        y[i] = S[i].real
    rows = np.random.default_rng(0).normal(size=4)
    turned = 0.6 - 0.8j
    expected: list[complex] = []
    for number, row in enumerate(rows):
        expected.append(turned * (expected[-1] if number else 0) + turned * row)
    found = cm.evaluate(m, {"x": rows, "w": np.array([0.6, -0.8])}, {"l": 4})
    np.testing.assert_allclose(found, np.real(expected), rtol=0, atol=1e-14)
    assert [cm.span(m).at(l=length) for length in (1, 2, 5)] == [1, 4, 13]
    assert cm.state(m).at(l=5, t=3) == 2


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        (
            lambda x, w: (x + w) * w,
            "the expression of x and w twice: define",
        ),
        (lambda x, w: (x * w).squared, "the expression of x and w twice: define"),
        (lambda x, w: x / w, "write z / w as z \\* w.conjugate / w.squared"),
    ],
)
def test_what_would_be_calculated_twice_is_refused(expression: Expression, reason: str) -> None:
    with pytest.raises(EquationError, match=reason):
        written(expression)
