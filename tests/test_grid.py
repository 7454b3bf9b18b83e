"""Is an answer over a grid equal to the answer at every point, and is overflow refused?"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import costmodel as cm
from costmodel.errors import GridOverflow, SizeError
from costmodel.mixers import builtin
from costmodel.symbolic.grid import axes, grid
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Poly, call, padded, size
from tests.small import forms, variants, without_inference

l, d, n, w = (Poly.atom(letter) for letter in "ldnw")

FORMS = forms(variants())
WINDOW = Exact(
    (
        (frozenset({w - l}), l * (l + 1) / 2),
        (frozenset({l - w - 1}), l * w - w * (w - 1) / 2),
    )
)
"""Pairs in a causal window: a triangle where l <= w, a band where l > w."""


def agrees(answer: Exact | Poly, sizes: dict[str, Any]) -> None:
    """Compare every point of the grid with the answer at that point."""
    found = grid(answer, sizes)
    letters = dict(zip(sizes, np.broadcast_arrays(*sizes.values()), strict=True))
    for point in np.ndindex(found.shape):
        at = {letter: int(values[point]) for letter, values in letters.items()}
        assert found[point] == answer.at(at), (str(answer), at)


def spread(name: str, **sizes: tuple[int, ...]) -> dict[str, Any]:
    """A grid of these sizes, with two values for every other letter of a mixer."""
    letters = builtin(name).letters
    return axes(**sizes, **{x: (1, 3) for x in letters if x not in sizes})


@pytest.mark.parametrize(("name", "form"), FORMS, ids=lambda part: part)
def test_counts_of_every_mixer(name: str, form: str) -> None:
    counts = cm.count(builtin(name), form=form)
    sizes = spread(name, l=(1, 2, 5, 7, 16), d=(6, 12, 30), n=(1, 2, 3))
    agrees(counts.exact_total, sizes)
    for exact in counts.classes.values():
        agrees(exact, sizes)


@pytest.mark.parametrize(("name", "form"), FORMS, ids=lambda part: part)
def test_state_span_and_parameters(name: str, form: str) -> None:
    mixer = builtin(name)
    sizes = spread(name, t=(1, 4, 9), l=(2, 9), d=(6, 12), n=(1, 2, 3))
    if reason := without_inference(mixer, form):
        with pytest.raises(cm.Unanswered, match=re.escape(reason)):
            cm.state(mixer, form)
    else:
        agrees(cm.state(mixer, form).exact, sizes)
        agrees(call("Max", *cm.span(mixer, "inference", form).terms), sizes)
    agrees(cm.parameters(mixer).poly, sizes)
    agrees(call("Max", *cm.span(mixer, form=form).terms), sizes)


def test_piecewise_window() -> None:
    sizes = axes(l=range(1, 9), w=(1, 2, 5, 8, 11))
    agrees(WINDOW, sizes)
    assert grid(WINDOW, sizes)[:, 1].tolist() == [1, 3, 5, 7, 9, 11, 13, 15]  # w = 2: 2 l - 1


COEFFICIENTS = st.one_of(
    st.integers(-9, 9), st.fractions(min_value=-5, max_value=5, max_denominator=6)
)
ATOMS = (
    l,
    d,
    n,
    size("h"),
    n**-1,
    padded(l),
    call("ceil_log2", l),
    call("ceil_log2", size("h")),
    call("Max", l, d),
    call("Min", d, n * 3),
)


@st.composite
def polynomials(draw: st.DrawFn) -> Poly:
    """Sums of up to five products of sizes and functions with rational coefficients."""
    total = Poly()
    for _ in range(draw(st.integers(1, 5))):
        term = Poly.of(draw(COEFFICIENTS))
        for factor in draw(st.lists(st.sampled_from(ATOMS), max_size=3)):
            term = term * factor
        total = total + term
    return total


@given(polynomials(), st.lists(st.integers(1, 70), min_size=1, max_size=3), st.integers(1, 4))
def test_random_polynomials(poly: Poly, lengths: list[int], heads: int) -> None:
    sizes = axes(l=lengths, d=(12, 24), n=range(1, heads + 1))
    points = [
        {"l": x, "d": y, "n": z} for x in lengths for y in (12, 24) for z in range(1, heads + 1)
    ]
    expected = [poly.rational(at) for at in points]
    if any(isinstance(value, Fraction) for value in expected):
        with pytest.raises(ValueError, match="not an integer at every point"):
            grid(poly, sizes)
    else:
        assert grid(poly, sizes).ravel().tolist() == expected


@given(st.lists(st.tuples(st.integers(1, 99), st.integers(1, 9), st.integers(1, 9)), min_size=1))
def test_sizes_that_vary_together(points: list[tuple[int, int, int]]) -> None:
    lengths, widths, heads = np.array(points).T
    counts = cm.count(builtin("self-attention"))
    agrees(counts.exact_total, {"l": lengths, "d": widths * heads, "n": heads})


def test_shape_is_that_of_all_sizes() -> None:
    sizes = axes(l=(1, 2, 3), d=(4, 5), n=(1,))
    assert grid(cm.parameters(builtin("me")).poly, sizes).shape == (3, 2, 1)
    assert grid(Exact(), sizes).tolist() == [[[0], [0]]] * 3
    assert grid(l, {"l": 7}).shape == ()


def test_ceil_log2_is_exact_beyond_floating_point() -> None:
    values = [1, 2, 3, 2**31, 2**32, 2**32 + 1, 2**39 + 1, 2**40]
    assert grid(call("ceil_log2", l), {"l": values}).tolist() == [0, 1, 2, 31, 32, 33, 40, 40]
    sizes = {"l": [2**40], "d": [2**14]}
    assert grid(call("ceil_log2", l * d), sizes).tolist() == [54]
    assert grid(call("ceil_log2", l * d + 1), sizes).tolist() == [55]


def test_the_limit_itself() -> None:
    assert grid(l**3, {"l": [2**21 - 1]}).tolist() == [(2**21 - 1) ** 3]
    with pytest.raises(GridOverflow):
        grid(l**3, {"l": [2**21]})  # 2**63


@pytest.mark.parametrize(
    "answer",
    [
        Exact.of(l**3 * 2),
        Exact.of(l**3 * 2 - l**3 * d * 2),
        Exact.of(l**4 - l**4 + l**2 * d**2),
        Exact(((frozenset({l - w}), l**3 * 2),)),
        Exact(((frozenset({l**3 * 2}), l),)),
        Exact.of(call("pow2", l)),
        Exact.of(call("Max", l**4, d)),
    ],
    ids=["power", "cancels", "product", "piece", "guard", "exponent", "argument"],
)
def test_overflow_is_refused(answer: Exact) -> None:
    sizes = axes(l=(3, 2_000_000), d=(1, 2_000_000), w=(4,))
    with pytest.raises(GridOverflow, match="beyond 64-bit integers"):
        grid(answer, sizes)


def test_overflow_message_names_the_point_and_the_way_out() -> None:
    with pytest.raises(GridOverflow, match=r"l=4000000000.*point by point, which is exact"):
        grid(l * l, {"l": [1, 4_000_000_000]})


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"d": [1]}, "no value for size l"),
        ({"l": [0, 1]}, r"must lie in 1..2\*\*40, got 0"),
        ({"l": [2**41]}, r"must lie in 1..2\*\*40, got 2199023255552"),
        ({"l": [1.5]}, "must be positive integers, got float64"),
        ({"l": [True]}, "must be positive integers, got bool"),
        ({"l": []}, "must be positive integers"),
        ({"l": [1], "Z": [1]}, "unknown size 'Z'"),
        ({"l": [1, 2], "d": [1, 2, 3]}, r"do not broadcast.*l \(2,\), d \(3,\)"),
    ],
)
def test_bad_sizes(sizes: dict[str, list[int]], message: str) -> None:
    with pytest.raises(SizeError, match=message):
        grid(l, sizes)


def test_axes_take_lists_only() -> None:
    with pytest.raises(SizeError, match="size d must be a list"):
        axes(l=[1], d=[[1, 2], [3, 4]])  # type: ignore[list-item]  # what a user may try


def test_width_that_heads_do_not_divide() -> None:
    with pytest.raises(ValueError, match="not an integer at every point of the grid: divided by n"):
        grid(call("ceil_log2", size("h")), axes(d=(6, 8), n=(2, 3)))


def test_division_by_what_may_be_zero() -> None:
    with pytest.raises(ValueError, match="it may be 0 or negative"):
        grid(l / call("ceil_log2", l), {"l": [4]})
