"""How long does an implementation take on a board, operation after operation of torch?

Torch executes the operations that it dispatches (rung 3) one after the other, each by a kernel. On
a board that was measured (`costmodel calibrate`), each call of an operation takes the board's least
time of a kernel (`kernel_time`) and then the longest of these times, as work begins when the kernel
has begun:

- Arithmetic. Products of matrices run at the rate of narrow matrices if their rows, columns or
  terms are at most `WIDTH`, as those of heads of attention, else at the rate of matrices, and on a
  CPU, where they have one row or column, at the rate of multiply-adds, as no entry of their
  matrices is used again; exponentials at their own rate; others one by one, at half of the rate of
  multiply-adds.
- Movement. The bytes of operands and result move through the last cache; the bytes of a call that
  exceed the cache move through the memory, those of the result as bytes of a new array. Where the
  operands of all products of the module's call together exceed a CPU's cache, as the weights of a
  layer may on one new token, each product reads its operands from the memory. An
  operation that torch makes of a copy and of itself in place (`COPIED_FIRST`) is two calls.
- Entries that an operation takes one by one, as it chooses or sums them, at their rate.

On a GPU (a board whose file does not say `kind = "cpu"`), a product of two matrices takes the time
of the family of matrix products (`costmodel/prediction/families.py`) instead: a multiprocessor
loads the inner dimension step after step, which takes longer than a weight's bytes where a product
has few rows. For example, one row times 2048 by 2048 weights takes 6.7 us on H100, and one row
times 2048 by 256 weights, an eighth of the bytes, 5.2 us (published calls).

Of a GPU that is known by its datasheet alone, constants that were fitted to published calls stand
for what the datasheet leaves out: the launch of a small kernel (`families.SMALL`), of which a share
is left among other kernels, its share of the bandwidth, with the interval of its family, and the
share of the peak that products reach.

A record holds the totals over the calls of one operation, so that each call has the average bytes;
of products of matrices a record also holds the shapes, and an older one without shapes the average
shape (of batches: the average work, and all products of a CPU run at the rate of narrow matrices).
Without a measured rate of narrow matrices, the dense peak stands in; without one of matrices in
a type that the matrix units do not take, such as fp32, that of the vector units; without one of new
arrays or of the cache, the memory's bandwidth; without a rate of chosen entries, these take no
time. A `Step` names the figures for which others stood in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from costmodel.errors import BoardError, Unanswered
from costmodel.prediction.boards import CPU, GPU, Board
from costmodel.prediction.calls import Calls, Counted
from costmodel.prediction.columns import NO_BOARD
from costmodel.prediction.families import SMALL, family_of
from costmodel.prediction.kernels import Work
from costmodel.prediction.layers import FITTED, Step
from costmodel.prediction.predict import (
    Fit,
    Prediction,
    among_kernels,
    energy,
    fit_for,
    predict,
)
from costmodel.program.element_types import BYTES
from profiler.counting.attention_rules import ATTENTION_RULES
from profiler.counting.forward_rules import CONTRACTIONS
from profiler.modules.described import dispatched_classes
from profiler.records.quantities import WIDTH

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

PRODUCTS = {*CONTRACTIONS, *ATTENTION_RULES, "convolution_backward", "_grouped_mm", "addbmm"}
"""The operations whose multiplications and additions are those of products of matrices."""
OF_TWO_MATRICES = {"mm", "addmm"}
"""The products whose sizes follow from their totals."""
COPIED_FIRST = {"masked_fill"}
"""The operations that torch makes of a copy of their first operand, and of themselves in place: on
H100, attention's masked_fill is a copy by the driver and a kernel that fills."""
UNSEEN_VIEW = "_unsafe_view"
"""A view of which older records hold bytes, as of a copy."""
ONE_BY_ONE = {
    "where", "masked_fill", "masked_scatter", "cumsum", "cumprod", "cummax", "cummin",
    "logcumsumexp",
}  # fmt: skip
"""The operations that take entries one by one: by a mask, or each after the one before."""


def predicted_s(
    dispatch: Mapping[str, Any], dtype: str, on: Board | None, compiled: bool = False
) -> float:
    """The predicted seconds of a call: the sum over its `steps`. Unanswered without a board (`on`
    is None), or if torch.compile made the call's kernels (`compiled`), or as `steps` raises it."""
    if on is None:
        raise Unanswered(NO_BOARD)
    if compiled:
        raise Unanswered(
            "times are predicted for the operations that torch dispatches, and a compiled call has "
            "kernels of its own: measure without --compile"
        )
    return sum(step.seconds for step in steps(dispatch, dtype, on))


def steps(dispatch: Mapping[str, Any], dtype: str, on: Board) -> Sequence[Step]:
    """The operations that torch dispatches in a call, except views, each with the predicted seconds
    and joules of all its calls.

    Args:
        dispatch: the counts of dispatched operations (`DispatchCounts`), as JSON values; its key
            `by_op` maps "aten::mm" to the totals of all calls of mm (`DispatchedOperation`).
        dtype: the type of the entries.
        on: the board, best a measured one; datasheets state rates that no kernel reaches.

    Raises:
        Unanswered: the board lacks a figure, the work of an operation is not counted, or an older
            record lacks the calls of operations.
    """
    if dispatch["unknown"]:
        listed = ", ".join(dispatch["unknown"])
        raise Unanswered(
            f"no counting rule for {listed}: choose an implementation without {listed}"
        )
    if sum(op.get("calls", 0) for op in dispatch["by_op"].values()) < dispatch["launched"]:
        raise Unanswered(
            "the record lacks the calls, products and bytes of torch's operations: measure again, "
            "by costmodel reconcile"
        )
    try:
        by_op = dispatch["by_op"]
        found = [
            step_of(name, op, dtype, on, streamed=streamed(by_op, on)) for name, op in by_op.items()
        ]
    except BoardError as reason:
        raise Unanswered(str(reason)) from None
    return [step for step in found if step is not None]


def streamed(by_op: Mapping[str, Mapping[str, Any]], on: Board) -> bool:
    """Whether a CPU's last cache holds less than the operands of all products of matrices among the
    operations `by_op` of a call, so that each product reads its operands from the memory; False for
    a GPU."""
    names = [name for name in by_op if _plain(name) in PRODUCTS]
    read: int = sum(by_op[name]["bytes_read"] for name in names)
    return on.kind == CPU and bool(names) and read > on["l2_bytes"]


def _plain(name: str) -> str:
    """The name of an operation, out of place: `mul` of `aten::mul_`."""
    return name.removeprefix("aten::").removesuffix("_")


def step_of(
    name: str, op: Mapping[str, Any], dtype: str, on: Board, *, streamed: bool = False
) -> Step | None:
    """The predicted seconds and joules of all calls of one operation of torch (`aten::mm`) on
    entries of type `dtype` on a board; None for a view (older records hold bytes of `UNSEEN_VIEW`),
    and for another operation that moves no byte and computes nothing. `op`: the totals of these
    calls, a `DispatchedOperation` as JSON values; `streamed`: whether products of matrices read
    their operands from the memory, not from a cache. A call takes its start and the largest of
    arithmetic, movement of bytes and work entry by entry; a GPU's products of matrices with a
    fitted family (`_of_fitted_products`) take the time of the fit alone. Raises BoardError: the
    board has no figure that is needed."""
    ops = dispatched_classes(op["operations"])
    moved: int = op["bytes_read"] + op["bytes_written"]
    calls: int = op["calls"]
    operation = name.removeprefix("aten::")
    if operation == UNSEEN_VIEW or (not moved and not sum(ops.values())):
        return None
    named = f"{calls:,} x {name}"
    if operation in COPIED_FIRST:  # out of place alone
        moved, calls = moved + 2 * op["bytes_written"], 2 * calls
    operation = operation.removesuffix("_")  # in place as out of place
    if fitted := _of_fitted_products(named, operation, op, calls, dtype, on):
        return fitted
    products = ops["mul"] + ops["add"] if operation in PRODUCTS else 0
    one_row = _of_one_row(op) if on.kind == CPU else 0
    counted = (np.array([x / calls]) for x in (products, ops["exp"], moved))
    own = Counted("", {}, dtype, counted=Work(*counted))  # the work of one call, arrays (1,)
    small = _fit(SMALL, on) if on.kind == GPU else None
    # a GPU whose least time of a kernel was not measured: fitted constants stand in
    by_datasheet = small is not None and "kernel_time" not in on.figures
    instead = ["kernel_time"] if by_datasheet else []  # figures that the board lacks
    # seconds of all calls: `arithmetic`, `movement`, `one_by_one`
    arithmetic = _others_s(operation, ops, dtype, on)
    if products:
        at_peak = _products_s(op, products, dtype, on, instead)
        arithmetic += at_peak / (_fit("gemm", on).constants["peak"] if by_datasheet else 1.0)
    movement = _movement_s(op, moved, calls, on, instead)
    if one_row:
        arithmetic = max(arithmetic, one_row / on[f"vector.{dtype}"])
    if streamed and products:
        movement = max(movement, op["bytes_read"] / on["memory_bandwidth"])
    one_by_one = 0.0
    if operation in ONE_BY_ONE and "selection" in on.figures:
        one_by_one = float(op["bytes_written"]) / BYTES[dtype] / on["selection"]
    elif operation in ONE_BY_ONE:
        instead.append("selection")
    if small is not None and by_datasheet:
        movement /= small.constants["bandwidth"]
    low, high = (np.nan, np.nan) if small is None else small.interval  # unknown on a CPU
    # seconds of one call: at least, expected and at most
    taken = _starts_s(small, on) + max(arithmetic, movement, one_by_one) / calls
    least, seconds, most = np.split(taken * np.array([low, 1, high]), 3)
    ends = least, most
    joules = energy(own, on, seconds, *ends) if _has_power(dtype, on) else (None, None, None)
    one = Prediction(seconds, *ends, *joules)
    return _step(named, SMALL, np.array([calls]), own, one, on, instead)


def _starts_s(small: Fit | None, on: Board) -> Floats:
    """The seconds in which a kernel starts, at least, expected and at most (3,): the least time of
    a kernel or, on a GPU without it, those of `small`, the constants of small kernels on a GPU."""
    if small is None:
        return np.full(3, on["kernel_time"])
    alone = small.constants["start"] * 1e-6
    if "kernel_time" not in on.figures:  # a share is left among other kernels
        return alone * np.array([0, among_kernels()[0], 1])
    least = on["kernel_time"]  # some kernels start as if alone
    return np.array([least, least, max(least, alone)])


def _of_one_row(op: Mapping[str, Any]) -> float:
    """The multiplications and additions of an operation's products with one row or column."""
    return _sums([one for one in op.get("products", ()) if 1 in one[1:3]])


def _of_fitted_products(
    named: str, operation: str, op: Mapping[str, Any], calls: int, dtype: str, on: Board
) -> Step | None:
    """The step `named` of products of matrices on a GPU, by the fitted family of these products:
    shape by shape, or by the average shape of `calls` calls where a record has no shapes; a call is
    predicted as one of a loop (`repeated`). None for another operation, board or type."""
    if dtype not in FITTED or on.kind != GPU:
        return None
    # a shape: matrices in the batch, rows, columns, terms of a sum, calls; below, arrays (shapes,)
    if shapes := op.get("products", ()):
        batch, rows, columns, terms, times = np.array(shapes, dtype=float).T
        sizes = {"batch": batch, "l": rows, "d": terms, "f": columns}
        entries = batch * (rows * terms + terms * columns + rows * columns)
        sums = batch * rows * columns * (2 * terms - 1)
        work = Work(sums, np.zeros(len(batch)), BYTES[dtype] * entries)
        each = Counted("gemm", sizes, dtype, counted=work)
        return _step(named, "gemm", times, each, predict(each, on, repeated=True), on)
    if operation in OF_TWO_MATRICES:
        mean = Calls("gemm", sizes_of_average_product(op, dtype), dtype)
        once = predict(mean, on, repeated=True)
        return _step(named, "gemm", np.array([calls]), mean, once, on)
    return None


def _products_s(
    op: Mapping[str, Any], number: int, dtype: str, on: Board, instead: list[str]
) -> float:
    """The seconds that a board takes for the `number` of multiplications and additions of an
    operation's products of matrices, those of narrow matrices (rows, columns or terms at most
    `WIDTH`, and all of unknown shape) at their own rate. `instead` gets the figures for which
    others stand in."""
    shapes = op.get("products", ())
    wide = [one for one in shapes if min(one[1:4]) > WIDTH]
    of_wide = number * _sums(wide) / _sums(shapes) if wide else 0.0
    unit, narrow = on.product_unit(dtype), f"narrow.{dtype}"
    if number > of_wide and narrow not in on.figures:
        instead.append("narrow")
        narrow = unit
    if unit.startswith("vector") and (of_wide or narrow == unit):
        instead.append("matrix")
    found = of_wide / on[unit] if of_wide else 0.0
    return found + ((number - of_wide) / on[narrow] if number > of_wide else 0.0)


def _sums(shapes: Sequence[Sequence[int]]) -> float:
    """The multiplications and additions of products with these shapes: batch, rows, columns, terms,
    and the number of calls."""
    return sum(
        float(batch * rows * columns * (2 * terms - 1) * times)
        for batch, rows, columns, terms, times in shapes
    )


def _others_s(operation: str, ops: Mapping[str, int], dtype: str, on: Board) -> float:
    """The seconds that a board takes for the arithmetic `ops` (class -> number) of an operation
    beside products of matrices: exponentials, and all else. BoardError: the board has no rate."""
    others = {name: number for name, number in ops.items() if name != "exp"}
    found = ops["exp"] / on["special"] if ops["exp"] else 0.0
    if operation in PRODUCTS:
        del others["mul"], others["add"]
    if number := sum(others.values()):
        # entries in two bytes are computed in fp32 where their type has no rate of its own
        unit = next((x for x in (dtype, "fp32") if f"vector.{x}" in on.figures), dtype)
        found += number / (on[f"vector.{unit}"] / 2)
    return found


def _movement_s(
    op: Mapping[str, Any], moved: int, calls: int, on: Board, instead: list[str]
) -> float:
    """The seconds in which `calls` calls of an operation move `moved` bytes: through the last cache
    or, what of a call exceeds the cache, through the memory, first the bytes written, at the rate
    of a new array if it is known. `instead` gets the figures for which others stand in."""
    beyond = calls * max(moved / calls - on["l2_bytes"], 0)
    new = min(beyond, op["bytes_written"])
    found: float = (beyond - new) / on["memory_bandwidth"]
    for figure, number in (("allocation", new), ("l2_bandwidth", moved - beyond)):
        if number and figure not in on.figures:
            instead.append(figure)
            figure = "memory_bandwidth"
        found += number / on[figure] if number else 0.0
    return found


def _fit(kernel: str, on: Board) -> Fit:
    """The constants of a kernel's family for a board; BoardError if there are none."""
    family = family_of(kernel, "")
    assert family is not None, kernel
    return fit_for(family, on.chip)


def _has_power(dtype: str, on: Board) -> bool:
    """Whether a board has the figures from which its power follows."""
    return on.kind == GPU and "power_limit" in on.figures and bool(on.product_units(dtype))


def _step(
    named: str,
    like: str,
    calls: Floats,
    work: Calls,
    each: Prediction,
    on: Board,
    instead: Sequence[str] = (),
) -> Step:
    """The step `named` of N kinds of calls (such as shapes of matrix products), from the prediction
    `each` and the `work` of one call of each kind, both with arrays (N,); a figure that is None
    becomes nan. `calls`: how many calls there are of each kind (N,); `like`: the kernel whose
    family has the constants; `instead`: the figures for which others stand in. The step's `limits`
    are the seconds of all calls by "memory" alone and, for products of matrices, by "products"."""

    def total(of_one: Any) -> float:
        return float("nan") if of_one is None else float((calls * of_one).sum())

    limits = {"memory": total(work.movement(on))}
    if work.work.products.any():
        unit = on.product_unit(work.dtype)
        rate = on[unit if unit in on.figures else f"narrow.{work.dtype}"]
        limits["products"] = total(work.work.products) / rate
    return Step(
        named,
        total(each.seconds), total(each.low), total(each.high),
        total(each.joules), total(each.joules_low), total(each.joules_high),
        limits, like, frozenset(instead),
    )  # fmt: skip


def sizes_of_average_product(op: Mapping[str, Any], dtype: str) -> Mapping[str, Any]:
    """The sizes l, d and f, each an array (1,), of the average call among products (l, d) by (d, f)
    with the totals `op`. Per call, with m multiplications, r results and e entries read: d = m/r, l
    + f = e/d, l f = r; f is taken as the larger of l and f."""
    results = op["bytes_written"] / BYTES[dtype] / op["calls"]
    depth = op["operations"]["mul"] / op["calls"] / results
    both = op["bytes_read"] / BYTES[dtype] / op["calls"] / depth
    columns = (both + max(both**2 - 4 * results, 0) ** 0.5) / 2
    sizes = {"l": results / columns, "d": depth, "f": columns}
    return {letter: np.array([size]) for letter, size in sizes.items()}
