"""Do factorisations, distances and alignments have the operations that the textbook's loops count?

Each loop runs on numbers that count what is done with them, and gives torch's values.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from profiler.counting.dispatch import count_dispatch
from profiler.counting.operations import Operations
from profiler.tracing import trace
from tests.profiler.tracing.test_rules import Function


class Tally:
    """Numbers that count additions, products, divisions and functions of each other."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()

    def matrix(self, values: Tensor) -> list[list[Number]]:
        return [[Number(self, x) for x in row] for row in values.tolist()]

    def operations(self) -> Operations:
        four = {name: self.done[name] for name in ("mul", "add", "div", "exp")}
        return Operations(**four, other={n: k for n, k in self.done.items() if n not in four})


class Number:
    """A number of a tally."""

    def __init__(self, tally: Tally, value: float) -> None:
        self.tally, self.value = tally, value

    def _made(self, name: str, value: float) -> Number:
        self.tally.done[name] += 1
        return Number(self.tally, value)

    def __add__(self, other: Number) -> Number:
        return self._made("add", self.value + other.value)

    def __sub__(self, other: Number) -> Number:
        return self._made("add", self.value - other.value)

    def __mul__(self, other: Number) -> Number:
        return self._made("mul", self.value * other.value)

    def __truediv__(self, other: Number) -> Number:
        return self._made("div", self.value / other.value)

    def __lt__(self, other: Number) -> bool:
        self.tally.done["compare"] += 1
        return self.value < other.value

    def __neg__(self) -> Number:
        return Number(self.tally, -self.value)

    def apply(self, name: str, function: Callable[[float], float]) -> Number:
        return self._made(name, function(self.value))

    def sqrt(self) -> Number:
        return self.apply("sqrt", math.sqrt)


Matrix = list[list[Number]]


def dot(left: Sequence[Number], right: Sequence[Number]) -> Number:
    total = left[0] * right[0]
    for x, y in zip(left[1:], right[1:], strict=True):
        total = total + x * y
    return total


def cholesky(a: Matrix) -> Matrix:
    """Row by row, each entry less the products before it one by one."""
    n = len(a)
    for j in range(n):
        for i in range(j, n):
            for k in range(j):
                a[i][j] = a[i][j] - a[i][k] * a[j][k]
        a[j][j] = a[j][j].sqrt()
        for i in range(j + 1, n):
            a[i][j] = a[i][j] / a[j][j]
    return a


def lu(a: Matrix) -> Matrix:
    """In place with partial pivoting."""
    rows, columns = len(a), len(a[0])
    for k in range(min(rows, columns)):
        top = k
        for i in range(k + 1, rows):
            sizes = [Number(a[x][k].tally, abs(a[x][k].value)) for x in (top, i)]
            top = i if sizes[0] < sizes[1] else top
        a[k], a[top] = a[top], a[k]
        for i in range(k + 1, rows):
            a[i][k] = a[i][k] / a[k][k]
            for j in range(k + 1, columns):
                a[i][j] = a[i][j] - a[i][k] * a[k][j]
    return a


def substituted(t: Matrix, b: Matrix, *, lower: bool, unit: bool) -> Matrix:
    order = range(len(t)) if lower else range(len(t) - 1, -1, -1)
    for j in range(len(b[0])):
        for i in order:
            for k in range(i) if lower else range(i + 1, len(t)):
                b[i][j] = b[i][j] - t[i][k] * b[k][j]
            if not unit:
                b[i][j] = b[i][j] / t[i][i]
    return b


def reflect(v: Sequence[Number], tau: Number, a: Matrix, k: int, j: int) -> None:
    """Column j of `a` below row k, by v whose first entry is 1."""
    sum_ = a[k][j]
    for i in range(1, len(v)):
        sum_ = sum_ + v[i] * a[k + i][j]
    sum_ = tau * sum_
    a[k][j] = a[k][j] - sum_
    for i in range(1, len(v)):
        a[k + i][j] = a[k + i][j] - v[i] * sum_


def qr(a: Matrix, wanted: int) -> tuple[Matrix, Matrix]:
    """Q's first columns and R, by Householder reflections."""
    rows, columns = len(a), len(a[0])
    tally = a[0][0].tally
    kept: list[tuple[list[Number], Number]] = []
    for k in range(min(rows - 1, columns)):
        x = [a[i][k] for i in range(k, rows)]
        length = dot(x, x).sqrt()
        beta = length if x[0].value < 0 else -length
        tau = (beta - x[0]) / beta
        scale = x[0] - beta
        v = [Number(tally, 1.0), *(entry / scale for entry in x[1:])]
        for j in range(k + 1, columns):
            reflect(v, tau, a, k, j)
        a[k][k] = beta
        kept.append((v, tau))
    while len(kept) < min(rows, columns):  # of a square matrix the last one reflects nothing
        kept.append(([Number(tally, 1.0)], Number(tally, 0.0)))
    q = tally.matrix(torch.eye(rows)[:, :wanted])
    for k in reversed(range(min(len(kept), wanted))):
        v, tau = kept[k]
        for j in range(k + 1, wanted):
            reflect(v, tau, q, k, j)
        q[k][k] = Number(tally, 1.0) - tau
        for i in range(1, len(v)):
            q[k + i][k] = -(tau * v[i])
    return q, a


def values(matrix: Matrix) -> Tensor:
    return torch.tensor([[x.value for x in row] for row in matrix], dtype=torch.float64)


def counted(fn: Callable[[], Any]) -> tuple[Any, Operations]:
    made: list[Any] = []
    found = count_dispatch(lambda: made.append(fn()))
    assert found.complete, found.unknown
    return made[0], found.operations


@pytest.fixture
def square() -> Tensor:
    a = torch.randn(5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    return a @ a.mT + torch.eye(5, dtype=torch.float64)


def test_cholesky_counts_equal_those_of_loops(square: Tensor) -> None:
    tally = Tally()
    made = values(cholesky(tally.matrix(square))).tril()
    given, operations = counted(lambda: torch.linalg.cholesky_ex(square)[0])
    assert torch.allclose(made, given) and operations == tally.operations()


@pytest.mark.parametrize("shape", [(5, 5), (5, 3), (3, 5), (1, 1)])
def test_lu_counts_equal_those_of_loops(shape: tuple[int, int]) -> None:
    a = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    tally = Tally()
    made = values(lu(tally.matrix(a)))
    given, operations = counted(lambda: torch.linalg.lu_factor_ex(a)[0])
    assert torch.allclose(made, given) and operations == tally.operations()


@pytest.mark.parametrize("columns", [1, 4])
def test_solve_counts_equal_those_of_loops(square: Tensor, columns: int) -> None:
    b = torch.randn(5, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    tally = Tally()
    # rows are not exchanged: the largest entry of each column stands on the diagonal
    wide = square + 50 * torch.eye(5, dtype=torch.float64)
    factors = lu(tally.matrix(wide))
    part = substituted(factors, tally.matrix(b), lower=True, unit=True)
    made = values(substituted(factors, part, lower=False, unit=False))
    given, operations = counted(lambda: torch.linalg.solve(wide, b))
    assert torch.allclose(made, given) and operations == tally.operations()
    tally = Tally()
    lower = tally.matrix(square.tril())
    made = values(substituted(lower, tally.matrix(b), lower=True, unit=False))
    given, operations = counted(
        lambda: torch.linalg.solve_triangular(square.tril(), b, upper=False)
    )
    assert torch.allclose(made, given) and operations == tally.operations()


def test_an_inverse_is_the_solution_for_the_identity(square: Tensor) -> None:
    identity = torch.eye(5, dtype=torch.float64)
    _, inverse = counted(lambda: torch.linalg.inv_ex(square)[0])
    _, solution = counted(lambda: torch.linalg.solve(square, identity))
    assert inverse == solution


@pytest.mark.parametrize("mode", ["r", "reduced", "complete"])
@pytest.mark.parametrize("shape", [(5, 5), (5, 3), (3, 5), (1, 1)])
def test_qr_counts_equal_those_of_loops(shape: tuple[int, int], mode: str) -> None:
    a = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    tally = Tally()
    wanted = {"r": 0, "reduced": min(shape), "complete": shape[0]}[mode]
    q, r = qr(tally.matrix(a), wanted)
    given, operations = counted(lambda: torch.linalg.qr(a, mode))
    rows = len(given[1])
    assert torch.allclose(values(r).triu()[:rows], given[1])
    if wanted:
        assert torch.allclose(values(q), given[0])
    assert operations == tally.operations()


@pytest.mark.parametrize("name", ["svd", "eigh", "eig", "matrix_exp", "pinv"])
def test_what_no_count_is_standard_for_is_named_and_the_rest_counted(name: str) -> None:
    a = torch.eye(3)
    found = count_dispatch(lambda: [getattr(torch.linalg, name)(a), a * 2])
    (reason,) = {one.reason for one in found.unknown.values()}
    assert "no standard count" in reason
    assert found.by_op["aten::mul"].operations.mul == 9


def test_a_trace_names_what_no_count_is_standard_for() -> None:
    found = trace(lambda: Function(lambda x: torch.linalg.svd(x)[1] * 2), over="l,d")
    for l, d in ((3, 7), (7, 3), (40, 40)):
        assert found.at("forward", l=l, d=d) == Operations(mul=min(l, d))
    (one,) = found.uncounted
    assert one.name.startswith("aten::_linalg_svd: ") and "no standard count" in one.name


def log_sum(terms: Sequence[Number]) -> Number:
    top = terms[0]
    for term in terms[1:]:
        top = term if top < term else top
    total = (terms[0] - top).apply("exp", math.exp)
    for term in terms[1:]:
        total = total + (term - top).apply("exp", math.exp)
    return total.apply("log", math.log) + top


LEAST = -1e30
"""In place of -inf, whose differences have no value."""


def test_ctc_loss_counts_equal_those_of_loops() -> None:
    """Two sequences of 6 and 5 steps, with 2 labels and 1; every state looks at three before."""
    x = torch.randn(6, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    logs, targets, steps, labels = x.log_softmax(-1), torch.tensor([[1, 3], [2, 0]]), (6, 5), (2, 1)
    tally, losses = Tally(), []
    for k in range(2):
        states = [0]
        for label in targets[k, : labels[k]].tolist():
            states += [label, 0]
        p = [[Number(tally, logs[t, k, s].item()) for s in states] for t in range(steps[k])]
        alpha = [Number(tally, LEAST) for _ in states]
        alpha[:2] = p[0][:2]
        for t in range(1, steps[k]):
            before = alpha
            alpha = []
            for s, state in enumerate(states):
                skips = s > 1 and state not in (0, states[s - 2])
                ways = [before[s], before[s - 1] if s else Number(tally, LEAST),
                        before[s - 2] if skips else Number(tally, LEAST)]  # fmt: skip
                alpha.append(log_sum(ways) + p[t][s])
        losses.append(-log_sum(alpha[-2:]).value)
    given, operations = counted(lambda: torch.ops.aten._ctc_loss(logs, targets, steps, labels)[0])
    assert torch.allclose(torch.tensor(losses, dtype=torch.float64), given)
    assert operations == tally.operations()


def distance(x: Sequence[Number], y: Sequence[Number], p: float) -> Number:
    apart = [a - b for a, b in zip(x, y, strict=True)]
    if p == 2:
        return dot(apart, apart).sqrt()
    sizes = [a.apply("compare", abs) for a in apart]
    if p == math.inf:
        top = sizes[0]
        for size in sizes[1:]:
            top = size if top < size else top
        return top
    if p == 0:
        sizes = [Number(size.tally, float(size.value != 0)) for size in sizes]
    elif p != 1:
        sizes = [size.apply("pow", lambda value: value**p) for size in sizes]
    total = sizes[0]
    for size in sizes[1:]:
        total = total + size
    return total if p < 2 else total.apply("pow", lambda value: value ** (1 / p))


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 3.0, math.inf])
def test_distance_counts_equal_those_of_loops(p: float) -> None:
    chance = torch.Generator().manual_seed(8)
    x, y = (torch.randn(n, 3, dtype=torch.float64, generator=chance) for n in (4, 2))
    tally = Tally()
    one, two = tally.matrix(x), tally.matrix(y)
    made = values([[distance(a, b, p) for b in two] for a in one])
    given, operations = counted(lambda: torch.cdist(x, y, p))
    assert torch.allclose(made, given) and operations == tally.operations()
    tally = Tally()
    rows = tally.matrix(x)
    made = values([[distance(rows[i], rows[j], p) for i in range(4) for j in range(i + 1, 4)]])
    given, operations = counted(lambda: torch.nn.functional.pdist(x, p))
    assert torch.allclose(made[0], given) and operations == tally.operations()


def test_bilinear_layer_is_two_products() -> None:
    """Of each of 5 results: 2 x 3 sums of 4 products less one, 2 sums of 3 products less one."""
    layer = torch.nn.Bilinear(4, 3, 5, bias=False)
    _, operations = counted(lambda: layer(torch.ones(2, 4), torch.ones(2, 3)))
    assert operations == Operations(mul=5 * (2 * 3 * 4 + 2 * 3), add=5 * (2 * 3 * 3 + 2 * 2))


@pytest.mark.parametrize(
    ("fn", "compared"),
    [
        (lambda x: torch.kthvalue(x, 3), 2 * 3 * 7),  # 3 knockouts along rows of 8
        (lambda x: torch.median(x, -1), 2 * 24),  # a network for 8 entries: 24 exchanges
        (torch.median, 80),  # and for 16
        (lambda x: torch.nanmedian(x, -1), 2 * 24 + 16),
        (lambda x: torch.mode(x, -1), 2 * 24 + 2 * 7),
        (torch.unique, 80 + 15),
        (torch.unique_consecutive, 15),
        (lambda x: torch.searchsorted(torch.arange(5.0), x), 16 * 3),
        (lambda x: torch.bucketize(x, torch.arange(5.0)), 16 * 3),
    ],
)
def test_selections_count_their_comparisons(fn: Callable[[Tensor], Any], compared: int) -> None:
    _, operations = counted(lambda: fn(torch.arange(16.0).reshape(2, 8)))
    assert operations == Operations(other={"compare": compared})


def test_renorm_counts_equal_a_count_by_hand() -> None:
    """3 slices of 4: 4 squares, 3 sums, a root; a comparison, a sum, a division; 4 products."""
    _, operations = counted(lambda: torch.renorm(torch.ones(3, 4), 2, 0, 1.0))
    each = Operations(mul=8, add=4, div=1, other={"sqrt": 1, "compare": 1})
    assert operations == each * 3
