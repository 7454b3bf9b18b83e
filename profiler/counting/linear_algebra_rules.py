"""How many scalar operations do factorisations of matrices and the solution of systems take?

The textbook's algorithms without blocks (Golub and Van Loan, Matrix Computations, chapters 3 to 5;
LAPACK's potf2, getf2, geqr2, org2r, trsm): Cholesky by columns, LU with partial pivoting, QR by
Householder reflections, substitution row by row. A sum of R terms takes R - 1 additions, and each
exact number follows from the shapes. Kernels work in blocks and may order the same work otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from profiler.counting.call import Call, CountError, Rule
from profiler.counting.forward_rules import free, refuse_complex
from profiler.counting.operations import COMPARE, FUNCTIONS, NOTHING, Operations

if TYPE_CHECKING:
    from torch import Tensor


def rows_and_columns(call: Call, matrices: Tensor) -> tuple[int, int, int]:
    """The numbers of matrices, rows and columns of a tensor (..., rows, columns); CountError if the
    tensor is complex."""
    refuse_complex(call, matrices)
    *_, rows, columns = matrices.shape
    return matrices.numel() // max(rows * columns, 1), rows, columns


def right_sides(solution: Tensor, order: int) -> int:
    """The number of right-hand sides over all matrices, each of `order` entries."""
    return solution.numel() // max(order, 1)


# The work on one matrix


def cholesky_of(n: int) -> Operations:
    """L with L L^T = A, n x n: entry (i, j) subtracts j - 1 products from A[i, j]; then a root on
    the diagonal, or a division below it."""
    below = (n**3 - n) // 6
    return Operations(mul=below, add=below, div=n * (n - 1) // 2) + FUNCTIONS["sqrt"] * n


def lu_of(rows: int, columns: int) -> Operations:
    """The operations of the factorisation P L U = A of one matrix: in each column the entry largest
    in absolute value is the pivot (a comparison per entry below); the entries below are divided by
    the pivot, and multiples of the pivot's row subtracted from the rows below."""
    counts = NOTHING
    for k in range(min(rows, columns)):
        below, after = rows - k - 1, columns - k - 1
        counts += Operations(mul=below * after, add=below * after, div=below) + COMPARE * below
    return counts


def substitution(n: int, *, unit: bool = False) -> Operations:
    """x with T x = b for a triangular T, n x n, whose diagonal is 1 if `unit`."""
    pairs = n * (n - 1) // 2
    return Operations(mul=pairs, add=pairs, div=0 if unit else n)


def reflection(entries: int) -> Operations:
    """x - tau v (v^T x) for one column x of `entries` entries; the first entry of v is 1."""
    return Operations(mul=2 * (entries - 1) + 1, add=2 * entries - 1)


def qr_of(rows: int, columns: int) -> Operations:
    """The operations of a QR factorisation, up to R and the Householder reflections of A: for each
    column x of p entries with the first entry a, its length b (p products, a root), tau = (b -
    a)/b, v = x/(a - b), and the reflection of all later columns."""
    counts = NOTHING
    for k in range(min(rows - 1, columns)):
        p = rows - k
        counts += Operations(mul=p, add=p + 1, div=p) + FUNCTIONS["sqrt"]
        counts += reflection(p) * (columns - k - 1)
    return counts


def columns_of_q(rows: int, columns: int, reflections: int) -> Operations:
    """The operations that make the first `columns` columns of Q (`rows` rows) from its Householder
    reflections, the last reflection first: each is applied to the later columns, and column k
    itself becomes e_k - tau v."""
    counts = NOTHING
    for k in range(min(reflections, columns, rows)):
        p = rows - k
        counts += reflection(p) * (columns - k - 1) + Operations(mul=p - 1, add=1)
    return counts


# Rules


def cholesky(call: Call) -> Operations:
    """The factor of each matrix."""
    number, n, _ = rows_and_columns(call, call.output)
    return cholesky_of(n) * number


def lu(call: Call, matrices: str) -> Operations:
    """The factors of each matrix of the argument named `matrices`."""
    number, rows, columns = rows_and_columns(call, call.tensor(matrices))
    return lu_of(rows, columns) * number


def determinant(call: Call, *, logarithm: bool = False) -> Operations:
    """The operations of determinants: the LU factors of each matrix, and the product of the
    diagonal; with `logarithm` the sum of the logarithms of its absolute values."""
    number, n, _ = rows_and_columns(call, call.tensor("A"))
    each = Operations(mul=max(n - 1, 0))
    if logarithm:
        each = (COMPARE + FUNCTIONS["log"]) * n + Operations(add=max(n - 1, 0))
    return (lu_of(n, n) + each) * number


def solution(call: Call) -> Operations:
    """The operations that solve linear systems: the LU factors of each matrix, and a substitution
    by L and by U for each right-hand side. An inverse has the columns of the identity as right-hand
    sides, whose zeros are not left out."""
    number, n, _ = rows_and_columns(call, call.tensor("A"))
    return lu_of(n, n) * number + (substitution(n) + substitution(n, unit=True)) * right_sides(
        call.output, n
    )


def solved_by_lu(call: Call) -> Operations:
    """A substitution by L and by U for each right-hand side."""
    _, n, _ = rows_and_columns(call, call.tensor("LU"))
    both = substitution(n) + substitution(n, unit=True)
    return both * right_sides(call.output, n)


def solved_by_cholesky(call: Call, factor: str) -> Operations:
    """Two substitutions for each right-hand side; `factor` names the argument with L. An inverse
    has the columns of the identity as right-hand sides, whose zeros are not left out."""
    _, n, _ = rows_and_columns(call, call.tensor(factor))
    return substitution(n) * (2 * right_sides(call.output, n))


def solved_triangle(call: Call, triangle: str) -> Operations:
    """A substitution for each right-hand side; `triangle` names the argument with the matrices."""
    _, n, _ = rows_and_columns(call, call.tensor(triangle))
    unit = bool(call.arguments["unitriangular"])
    return substitution(n, unit=unit) * right_sides(call.output, n)


def qr(call: Call) -> Operations:
    """The operations of QR factorisations: R and, unless `mode` is "r", Q with as many columns as R
    has rows."""
    number, rows, columns = rows_and_columns(call, call.tensor("A"))
    mode = call.arguments["mode"]
    wanted = {"r": 0, "reduced": min(rows, columns), "complete": rows}[mode]
    made = columns_of_q(rows, wanted, min(rows, columns)) if wanted else NOTHING
    return (qr_of(rows, columns) + made) * number


def reflections_of(call: Call) -> Operations:
    """R and the reflections of each matrix."""
    number, rows, columns = rows_and_columns(call, call.tensor("self"))
    return qr_of(rows, columns) * number


def product_of_reflections(call: Call) -> Operations:
    """Q from its reflections."""
    number, rows, columns = rows_and_columns(call, call.tensor("input"))
    return columns_of_q(rows, columns, call.tensor("tau").shape[-1]) * number


def reflected(call: Call) -> Operations:
    """The operations of `ormqr`: Q x for every column x of the other matrix (every row, if `left`
    is False), where Q is a product of Householder reflections, applied one after the other:
    reflection k leaves the first k entries as they are. `input2` has one factor a reflection."""
    refuse_complex(call, call.tensor("self"))
    other = call.tensor("input3")
    axis = -2 if call.arguments["left"] else -1
    entries, counts = other.shape[axis], NOTHING
    for k in range(call.tensor("input2").shape[-1]):
        counts += reflection(entries - k)
    return counts * right_sides(other, entries)


ITERATED = "no standard count: the number of iterations depends on values"
PIVOTED = "no standard count: the choice of pivots depends on values"
SCALED = "no standard count: the number of products depends on values"
RANKED = "no standard count: the rank depends on values"


def without_count(call: Call, reason: str) -> Operations:
    """Raise CountError: no number of operations follows from the shapes, for `reason`."""
    raise CountError(f"{call.name}: {reason}")


LINEAR_ALGEBRA_RULES: Mapping[str, Rule] = {
    "linalg_cholesky_ex": cholesky,
    "linalg_lu_factor_ex": partial(lu, matrices="A"),
    "linalg_lu": partial(lu, matrices="A"),
    "lu_unpack": free,
    "_linalg_det": determinant,
    "_linalg_slogdet": partial(determinant, logarithm=True),
    "_linalg_solve_ex": solution,
    "linalg_inv_ex": solution,
    "linalg_lu_solve": solved_by_lu,
    "cholesky_solve": partial(solved_by_cholesky, factor="input2"),
    "cholesky_inverse": partial(solved_by_cholesky, factor="self"),
    "linalg_solve_triangular": partial(solved_triangle, triangle="self"),
    "triangular_solve": partial(solved_triangle, triangle="A"),
    "linalg_qr": qr,
    "geqrf": reflections_of,
    "linalg_householder_product": product_of_reflections,
    "ormqr": reflected,
    **dict.fromkeys(
        ("_linalg_svd", "_linalg_eigh", "linalg_eig", "_linalg_eigvals"),
        partial(without_count, reason=ITERATED),
    ),
    **dict.fromkeys(
        ("linalg_ldl_factor_ex", "linalg_ldl_solve"), partial(without_count, reason=PIVOTED)
    ),
    "linalg_matrix_exp": partial(without_count, reason=SCALED),
    **dict.fromkeys(("linalg_lstsq", "linalg_pinv"), partial(without_count, reason=RANKED)),
}
