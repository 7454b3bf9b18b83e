"""How long does an implementation take on a board, operation after operation of torch?

Torch executes the operations that it dispatches (rung 3) one after the other, each by a kernel. On
a board that was measured (`costmodel calibrate`), each call of an operation takes the board's least
time of a kernel (`kernel_time`) and then the longest of these times, as work begins when the kernel
has begun:

- Arithmetic. Products of matrices run at the rate of narrow matrices, as mixers multiply them;
  exponentials at their own rate; others one by one, at half of the rate of multiply-adds.
- Movement. The bytes of operands and result move through the last cache; the bytes of a call that
  exceed the cache move through the memory, those of the result as bytes of a new array.
- Entries that an operation takes one by one, as it chooses or sums them, at their rate.

On a GPU (a board with `sms`), a product of two matrices takes the time of the family of matrix
products (`costmodel/prediction/families.py`) instead: a multiprocessor loads the inner dimension
step after step, which takes longer than a weight's bytes where a product has few rows. For example,
one row times 2048 by 2048 weights takes 6.7 us on H100, and one row times 2048 by 256 weights, an
eighth of the bytes, 5.2 us (published calls).

A record holds the totals over the calls of one operation, so that each call has the average bytes.
Without a measured rate of narrow matrices, the dense peak stands in; without one of new arrays or
of the cache, the memory's bandwidth; without a rate of chosen entries, these take no time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from costmodel.errors import BoardError, Unanswered
from costmodel.prediction.boards import Board
from costmodel.prediction.calls import Calls
from costmodel.prediction.columns import NO_BOARD
from costmodel.prediction.layers import FITTED
from costmodel.prediction.predict import predict
from costmodel.questions.question import BYTES
from profiler.counting.attention_rules import ATTENTION_RULES
from profiler.counting.forward_rules import CONTRACTIONS
from profiler.modules.described import dispatched_classes

PRODUCTS = {*CONTRACTIONS, *ATTENTION_RULES, "convolution_backward", "_grouped_mm", "addbmm"}
"""The operations whose multiplications and additions are those of products of matrices."""
OF_TWO_MATRICES = {"mm", "addmm"}
"""The products whose sizes follow from their totals."""
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
    """Predict the seconds of a call, as the sum over the operations that torch dispatches.

    Args:
        dispatch: the counts of dispatched operations (`DispatchCounts`), as JSON values.
        dtype: the type of the entries.
        on: the board, best a measured one; datasheets state rates that no kernel reaches.
        compiled: whether torch.compile made the call's kernels.

    Raises:
        Unanswered: no board is given, the board lacks a figure, the call is compiled, or the work
            of an operation is not counted.
    """
    if on is None:
        raise Unanswered(NO_BOARD)
    if compiled:
        raise Unanswered(
            "times are predicted for the operations that torch dispatches, and a compiled call has "
            "kernels of its own: measure without --compile"
        )
    if dispatch["unknown"]:
        raise Unanswered(f"the work of {', '.join(dispatch['unknown'])} is not counted")
    if sum(op.get("calls", 0) for op in dispatch["by_op"].values()) < dispatch["launched"]:
        raise Unanswered(
            "the record does not hold the work of each operation of torch: measure again"
        )
    try:
        return sum(taken_s(name, op, dtype, on) for name, op in dispatch["by_op"].items())
    except BoardError as reason:
        raise Unanswered(str(reason)) from None


def taken_s(name: str, op: Mapping[str, Any], dtype: str, on: Board) -> float:
    """The seconds that all calls of one operation of torch (`aten::mm`) take on a board: 0 for a
    view. `op`: the totals of these calls.

    Raises:
        BoardError: the board has no figure that is needed.
    """
    ops = dispatched_classes(op["operations"])
    moved: int = op["bytes_read"] + op["bytes_written"]
    calls: int = op["calls"]
    operation = name.removeprefix("aten::").removesuffix("_")  # in place as out of place
    if operation == UNSEEN_VIEW or (not moved and not sum(ops.values())):
        return 0.0
    if operation in OF_TWO_MATRICES and dtype in FITTED and "sms" in on.figures:
        return calls * product_s(op, dtype, on)
    arithmetic = ops.pop("exp") / on["special"]
    if operation in PRODUCTS:
        shape = "narrow" if f"narrow.{dtype}" in on.figures else "matrix"
        arithmetic += (ops.pop("mul") + ops.pop("add")) / on[f"{shape}.{dtype}"]
    arithmetic += sum(ops.values()) / (on[f"vector.{dtype}"] / 2)
    beyond = calls * max(moved / calls - on["l2_bytes"], 0)
    new = min(beyond, op["bytes_written"]) if "allocation" in on.figures else 0
    movement = (beyond - new) / on["memory_bandwidth"]
    movement += new / on["allocation"] if new else 0
    cache = "l2_bandwidth" if "l2_bandwidth" in on.figures else "memory_bandwidth"
    movement += (moved - beyond) / on[cache]
    one_by_one = 0.0
    if operation in ONE_BY_ONE and "selection" in on.figures:
        one_by_one = float(op["bytes_written"]) / BYTES[dtype] / on["selection"]
    start = calls * on["kernel_time"] if "kernel_time" in on.figures else 0.0
    return start + max(arithmetic, movement, one_by_one)


def product_s(op: Mapping[str, Any], dtype: str, on: Board) -> float:
    """The seconds of the average call among products (l, d) by (d, f) with the totals `op`: d is
    multiplications over results, l + f entries read over d, and l times f results.

    Raises:
        BoardError: the board has no figure that is needed.
    """
    results = op["bytes_written"] / BYTES[dtype] / op["calls"]
    depth = op["operations"]["mul"] / op["calls"] / results
    both = op["bytes_read"] / BYTES[dtype] / op["calls"] / depth
    # from the sum and the product of l and f: f is the larger root of z² - (l + f) z + l f
    columns = (both + max(both**2 - 4 * results, 0) ** 0.5) / 2
    sizes = {"l": results / columns, "d": depth, "f": columns}
    calls = Calls("gemm", {letter: np.array([size]) for letter, size in sizes.items()}, dtype)
    return float(predict(calls, on, repeated=True).seconds[0])
