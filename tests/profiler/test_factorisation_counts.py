"""Do factorisations, distances and alignments have the operations that the textbook's loops count?

Each loop runs on numbers that count what is done with them, and gives torch's values.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
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
Reflection = tuple[list[Number], Number]
"""v, whose first entry is 1, and tau of x - tau v (v^T x)."""


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
    kept: list[Reflection] = []
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
    return columns_of(kept, rows, wanted), a


def columns_of(kept: Sequence[Reflection], rows: int, wanted: int) -> Matrix:
    """The first columns of the product of reflections."""
    tally = kept[0][1].tally
    q = tally.matrix(torch.eye(rows)[:, :wanted])
    for k in reversed(range(min(len(kept), wanted))):
        v, tau = kept[k]
        for j in range(k + 1, wanted):
            reflect(v, tau, q, k, j)
        q[k][k] = Number(tally, 1.0) - tau
        for i in range(1, len(v)):
            q[k + i][k] = -(tau * v[i])
    return q


def reflections(tally: Tally, packed: Tensor, taus: Tensor) -> list[Reflection]:
    """As LAPACK packs reflections: below the diagonal, without the first entry 1."""
    return [
        ([Number(tally, x) for x in (1.0, *packed[k + 1 :, k].tolist())], Number(tally, tau))
        for k, tau in enumerate(taus.tolist())
    ]


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


def dominant(n: int) -> Tensor:
    """A matrix whose rows no pivot exchanges: the largest entries stand on the diagonal."""
    a = torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    return a + 50 * torch.eye(n, dtype=torch.float64)


@pytest.mark.parametrize("n", [1, 5])
def test_determinant_counts_equal_those_of_loops(n: int) -> None:
    a, tally = dominant(n), Tally()
    factors = lu(tally.matrix(a))
    made = factors[0][0]
    for i in range(1, n):
        made = made * factors[i][i]
    given, operations = counted(lambda: torch.linalg.det(a))
    assert made.value == pytest.approx(given.item()) and operations == tally.operations()
    tally = Tally()
    factors = lu(tally.matrix(a))
    logs = [factors[i][i].apply("compare", abs).apply("log", math.log) for i in range(n)]
    made = logs[0]
    for one in logs[1:]:
        made = made + one
    given, operations = counted(lambda: torch.linalg.slogdet(a)[1])
    assert made.value == pytest.approx(given.item()) and operations == tally.operations()


@pytest.mark.parametrize("columns", [1, 4])
def test_solutions_by_factors_count_as_loops(square: Tensor, columns: int) -> None:
    b = torch.randn(5, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    packed, pivots = torch.linalg.lu_factor(dominant(5))
    tally = Tally()
    factors = tally.matrix(packed)
    part = substituted(factors, tally.matrix(b), lower=True, unit=True)
    made = values(substituted(factors, part, lower=False, unit=False))
    given, operations = counted(lambda: torch.linalg.lu_solve(packed, pivots, b))
    assert torch.allclose(made, given) and operations == tally.operations()
    lower, identity = torch.linalg.cholesky(square), torch.eye(5, dtype=torch.float64)
    for sides, call in (
        (b, lambda: torch.cholesky_solve(b, lower)),
        (identity, lambda: torch.cholesky_inverse(lower)),
    ):
        tally = Tally()
        part = substituted(tally.matrix(lower), tally.matrix(sides), lower=True, unit=False)
        made = values(substituted(tally.matrix(lower.mT), part, lower=False, unit=False))
        given, operations = counted(call)
        assert torch.allclose(made, given) and operations == tally.operations()


@pytest.mark.filterwarnings("ignore:torch.triangular_solve is deprecated")
@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize("upper", [True, False])
def test_triangular_solve_counts_as_loops(square: Tensor, upper: bool, unit: bool) -> None:
    b = torch.randn(5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    tally = Tally()
    made = values(substituted(tally.matrix(square), tally.matrix(b), lower=not upper, unit=unit))
    given, operations = counted(
        lambda: torch.triangular_solve(b, square, upper, unitriangular=unit)[0]
    )
    assert torch.allclose(made, given) and operations == tally.operations()


@pytest.mark.parametrize("shape", [(5, 5), (5, 3), (1, 1)])
def test_householder_counts_equal_those_of_loops(shape: tuple[int, int]) -> None:
    a = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    tally = Tally()
    r = qr(tally.matrix(a), 0)[1]
    (packed, taus), operations = counted(lambda: torch.geqrf(a))
    assert torch.allclose(values(r).triu(), packed.triu()) and operations == tally.operations()
    tally = Tally()
    q = columns_of(reflections(tally, packed, taus), *shape)
    given, operations = counted(lambda: torch.linalg.householder_product(packed, taus))
    assert torch.allclose(values(q), given) and operations == tally.operations()


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("transpose", [True, False])
def test_ormqr_counts_equal_those_of_loops(left: bool, transpose: bool) -> None:
    """A row times Q is Q^T times the column, and Q^T applies the first reflection first."""
    chance = torch.Generator().manual_seed(6)
    packed, taus = torch.geqrf(torch.randn(5, 3, dtype=torch.float64, generator=chance))
    other = torch.randn((5, 2) if left else (2, 5), dtype=torch.float64, generator=chance)
    tally = Tally()
    made = tally.matrix(other if left else other.mT)
    kept = list(enumerate(reflections(tally, packed, taus)))
    for k, (v, tau) in kept if transpose == left else reversed(kept):
        for j in range(2):
            reflect(v, tau, made, k, j)
    given, operations = counted(lambda: torch.ormqr(packed, taus, other, left, transpose))
    assert torch.allclose(values(made), given if left else given.mT)
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


@pytest.mark.parametrize("labels", [(2, 1), (0, 2)])
def test_ctc_loss_counts_equal_those_of_loops(labels: tuple[int, int]) -> None:
    """Two sequences of 6 and 5 steps with few labels or none; every state looks at three before."""
    x = torch.randn(6, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    logs, targets, steps = x.log_softmax(-1), torch.tensor([[1, 3], [2, 1]]), (6, 5)
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
        losses.append(-(log_sum(alpha[-2:]) if len(alpha) > 1 else alpha[0]).value)
    given, operations = counted(lambda: torch.ops.aten._ctc_loss(logs, targets, steps, labels)[0])
    assert torch.allclose(torch.tensor(losses, dtype=torch.float64), given)
    assert operations == tally.operations()


@pytest.mark.parametrize("labels", [(2, 1), (0, 2)])
def test_gradients_of_ctc_loss_count_as_loops(labels: tuple[int, int]) -> None:
    """The recursion from the end; each label of a step sums its states; then each derivative."""
    x = torch.randn(6, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    logs, targets, steps = x.log_softmax(-1), torch.tensor([[1, 3], [2, 1]]), (6, 5)
    losses, alpha = torch.ops.aten._ctc_loss(logs, targets, steps, labels)
    grad, tally, made = torch.tensor([2.0, 3.0], dtype=torch.float64), Tally(), x * 0
    least = Number(tally, LEAST)
    for k in range(2):
        states = [0]
        for label in targets[k, : labels[k]].tolist():
            states += [label, 0]
        loss, g = (Number(tally, t[k].item()) for t in (losses, grad))
        beta = [least] * (len(states) + 2)
        for t in reversed(range(steps[k])):
            p = tally.matrix(logs[t])[k]
            if t == steps[k] - 1:
                for s in range(max(len(states) - 2, 0), len(states)):
                    beta[s] = p[states[s]]
            else:
                after, beta = beta, [least] * (len(states) + 2)
                for s, state in enumerate(states):
                    skips = state not in states[s + 2 : s + 3]
                    ways = [after[s], after[s + 1], after[s + 2] if skips else least]
                    beta[s] = log_sum(ways) + p[state]
            gathered = [least] * 4
            for s, state in enumerate(states):
                both = Number(tally, max(alpha[k, t, s].item(), LEAST)) + beta[s]
                gathered[state] = log_sum([gathered[state], both])
            for c, y in enumerate(p):
                less = (gathered[c] + loss - y).apply("exp", math.exp)
                made[t, k, c] = ((y.apply("exp", math.exp) - less) * g).value
    given, operations = counted(
        lambda: torch.ops.aten._ctc_loss_backward(
            grad, logs, targets, steps, labels, losses, alpha, 0
        )
    )
    assert torch.allclose(made, given) and operations == tally.operations()


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


def slope(x: Number, d: Number, p: float) -> Number:
    """The derivative of a distance d by one difference x of entries; of the largest difference 1,
    of others 0 (torch: d less |x| is rounded up, to 1 at most)."""
    if p == 2:
        return x / d
    sign = x.apply("sign", lambda value: math.copysign(1.0, value))
    if p == 1:
        return sign
    one = Number(x.tally, 1.0)
    other = (d - x.apply("compare", abs)).apply("ceil", math.ceil)
    return sign * (one - (one if one < other else other))


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, math.inf])
def test_gradients_of_distances_count_as_loops(p: float) -> None:
    """Every pair has a term in the gradients of rows, the first row's alone or both; the first term
    of an entry is stored."""
    chance = torch.Generator().manual_seed(8)
    x, y = (torch.randn(n, 3, dtype=torch.float64, generator=chance) for n in (4, 2))
    every = [(i, j) for i in range(4) for j in range(2)]
    pairs = [(i, j) for i in range(4) for j in range(i + 1, 4)]
    aten, grad = torch.ops.aten, torch.randn(8, dtype=torch.float64, generator=chance)
    apart = torch.cdist(x, y, p), torch.nn.functional.pdist(x, p)
    for among, other, far, call in (
        (every, y, apart[0], lambda: aten._cdist_backward(grad.view(4, 2), x, y, p, apart[0])),
        (pairs, x, apart[1], lambda: aten._pdist_backward(grad[:6], x, p, apart[1])),
    ):
        tally = Tally()
        rows, others = tally.matrix(x), tally.matrix(other)
        made: dict[tuple[int, int], Number] = {}
        for k, (i, j) in enumerate(among):
            g, d = (Number(tally, t.flatten()[k].item()) for t in (grad, far))
            for c in range(3):
                away = rows[i][c] - others[j][c]
                if p == 3:
                    size = away.apply("compare", abs)
                    above = g * away * size.apply("pow", lambda value: value)
                    step = above / d.apply("pow", lambda value: value**2)
                else:
                    step = g * slope(away, d, p)
                made[i, c] = made[i, c] + step if (i, c) in made else step
                if other is x:
                    made[j, c] = made[j, c] - step if (j, c) in made else -step
        given, operations = counted(call)
        summed = [[made[i, c] for c in range(3)] for i in range(4)]
        assert torch.allclose(values(summed), given) and operations == tally.operations()


def test_gradients_of_a_weight_norm_count_as_loops() -> None:
    """w = v g/n: dg = dw v/n, dv = dw (g/n) - v (g/n) (dg/n), row by row."""
    chance = torch.Generator().manual_seed(8)
    grad, v = (torch.randn(4, 3, dtype=torch.float64, generator=chance) for _ in range(2))
    g = torch.randn(4, 1, dtype=torch.float64, generator=chance)
    n, tally = v.norm(dim=1, keepdim=True), Tally()
    of_v, of_g = [], []
    for dw, row, (scale,), (length,) in zip(*map(tally.matrix, (grad, v, g, n)), strict=True):
        dg, factor = dot(dw, row) / length, scale / length
        less = factor * (dg / length)
        of_g.append([dg])
        of_v.append([a * factor - b * less for a, b in zip(dw, row, strict=True)])
    given, operations = counted(
        lambda: torch.ops.aten._weight_norm_interface_backward(grad, v, g, n, 0)
    )
    assert torch.allclose(values(of_v), given[0]) and torch.allclose(values(of_g), given[1])
    assert operations == tally.operations()


@pytest.mark.parametrize("start", [None, 2.0])
@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "prod"])
@pytest.mark.parametrize("given_as", ["lengths", "offsets"])
def test_segments_count_as_loops(given_as: str, reduce: str, start: float | None) -> None:
    """Segments of 2, 1 and 3 rows, and of none where an initial value stands for the result."""
    data = torch.rand(6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(8))
    lengths = [2, 1, 3] if start is None else [2, 0, 1, 3]
    tally, made, after = Tally(), [], 0
    for length in lengths:
        rows, after = tally.matrix(data[after : after + length]), after + length
        if start is not None:
            rows.insert(0, [Number(tally, start)] * 2)
        total = rows[0]
        for row in rows[1:]:
            if reduce == "max":
                total = [y if x < y else x for x, y in zip(total, row, strict=True)]
            elif reduce == "prod":
                total = [x * y for x, y in zip(total, row, strict=True)]
            else:
                total = [x + y for x, y in zip(total, row, strict=True)]
        if reduce == "mean" and length:
            total = [x / Number(tally, length) for x in total]
        made.append(total)
    ends = torch.tensor([0, *lengths]).cumsum(0)
    where = (torch.tensor(lengths), None) if given_as == "lengths" else (None, ends)
    found, operations = counted(
        lambda: torch.segment_reduce(
            data, reduce, lengths=where[0], offsets=where[1], axis=0, initial=start
        )
    )
    assert torch.allclose(values(made), found) and operations == tally.operations()


def test_allclose_compares_each_pair_of_entries_that_meet() -> None:
    """Also of rows and columns: |a - b| <= atol + rtol |b|, 12 times."""
    each = Operations(mul=1, add=2, other={"compare": 3})
    for other in ((3, 4), (1, 4), (4,)):
        _, operations = counted(
            lambda: torch.allclose(torch.ones(3, 1), torch.ones(other))  # noqa: B023 - called here
        )
        assert operations == each * 12


@pytest.mark.parametrize("eps", [None, 1e-6])
def test_logit_counts_equal_those_of_loops(eps: float | None) -> None:
    x, tally = torch.tensor([[0.1, 0.5, 0.7]], dtype=torch.float64), Tally()
    one, made = Number(tally, 1.0), []
    for p in tally.matrix(x)[0]:
        if eps is not None:
            low, high = Number(tally, eps), Number(tally, 1 - eps)
            p = low if p < low else p
            p = high if high < p else p
        made.append((p / (one - p)).apply("log", math.log))
    given, operations = counted(lambda: torch.logit(x, eps))
    assert torch.allclose(values([made]), given) and operations == tally.operations()


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
        (lambda x: torch.mode(x[0, 0]), 0),
        (torch.unique, 80 + 15),
        (torch.unique_consecutive, 15),
        (lambda x: torch.searchsorted(torch.arange(5.0), x), 16 * 3),
        (lambda x: torch.bucketize(x, torch.arange(5.0)), 16 * 3),
    ],
)
def test_selections_count_their_comparisons(fn: Callable[[Tensor], Any], compared: int) -> None:
    _, operations = counted(lambda: fn(torch.arange(16.0).reshape(2, 8)))
    assert operations == Operations(other={"compare": compared})


@pytest.mark.parametrize(("axes", "kernel"), [(2, (2, 3)), (3, (2, 3, 1))])
def test_fractional_pools_compare_the_entries_of_each_window(
    axes: int, kernel: tuple[int, ...]
) -> None:
    """A window of 6 entries takes 5 comparisons; a gradient is added at the largest entry."""
    pool = getattr(torch.nn.functional, f"fractional_max_pool{axes}d")
    x, begin = torch.rand(1, 2, *(7,) * axes), torch.full((1, 2, axes), 0.5)
    x.requires_grad_()
    made, operations = counted(lambda: pool(x, kernel, (2,) * axes, _random_samples=begin))
    assert operations == Operations(other={"compare": 5 * made.numel()})
    _, operations = counted(lambda: torch.autograd.grad(made, x, torch.ones_like(made)))
    assert operations == Operations(add=made.numel())


def test_gradients_of_bicubic_interpolation_count_as_loops() -> None:
    """Each of 6 x 6 gradients, times a weight a row and a column, is a term of 4 x 4 entries; an
    entry's first term is stored."""
    grad = torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(8))
    shape, tally, a = (1, 1, 3, 3), Tally(), -0.75
    made: dict[tuple[int, int], Number] = {}

    def taps(place: int) -> list[tuple[int, Number]]:
        """Entry and weight of Keys' cubic convolution (a = -0.75), around the middle of a place."""
        middle = (place + 0.5) / 2 - 0.5
        found = []
        for entry in range(math.floor(middle) - 1, math.floor(middle) + 3):
            x = abs(middle - entry)
            near, far = ((a + 2) * x - a - 3) * x * x + 1, ((x - 5) * x + 8) * x * a - 4 * a
            found.append((min(max(entry, 0), 2), Number(tally, near if x <= 1 else far)))
        return found

    for i, row in enumerate(tally.matrix(grad)):
        for j, g in enumerate(row):
            for (y, left), (x, right) in product(taps(i), taps(j)):
                term = g * left * right
                made[y, x] = made[y, x] + term if (y, x) in made else term
    backward = torch.ops.aten.upsample_bicubic2d_backward
    given, operations = counted(lambda: backward(grad[None, None], (6, 6), shape, False))
    summed = [[made[y, x] for x in range(3)] for y in range(3)]
    assert torch.allclose(values(summed), given[0, 0]) and operations == tally.operations()


def test_renorm_counts_equal_a_count_by_hand() -> None:
    """3 slices of 4: 4 squares, 3 sums, a root; a comparison, a sum, a division; 4 products."""
    _, operations = counted(lambda: torch.renorm(torch.ones(3, 4), 2, 0, 1.0))
    each = Operations(mul=8, add=4, div=1, other={"sqrt": 1, "compare": 1})
    assert operations == each * 3
