"""How many scalar operations do selections, histograms, bags of rows and grouped products take?"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import prod

from profiler.counting.call import Call, CountError, Rule
from profiler.counting.forward_rules import (
    cumulation,
    entry_sum,
    free,
    product_of,
    refuse_complex,
    sorting,
)
from profiler.counting.indexed_rules import scatter_summed
from profiler.counting.operations import COMPARE, NOTHING, Operations, named_operation


def topk(call: Call) -> Operations:
    """The operations of top-k: k searches for the largest entry along each row of n entries,
    earlier finds masked but still compared: k (n - 1) comparisons, as the equations count top_k.
    torch documents no algorithm."""
    source, k = call.tensor("self"), int(call.arguments["k"])
    entries = source.shape[call.arguments["dim"]] if source.dim() else 1
    rows = source.numel() // max(entries, 1)
    return COMPARE * (rows * k * max(entries - 1, 0))


def middle(call: Call, *, without_nan: bool = False) -> Operations:
    """The median: a sort, after a comparison of each entry if NaN is left out."""
    asked = COMPARE * (call.tensor("self").numel() if without_nan else 0)
    return sorting(call) + asked


def most_frequent(call: Call) -> Operations:
    """The most frequent entry: a sort, and a comparison of each two neighbours in a row."""
    source = call.tensor("self")
    entries = source.shape[call.arguments["dim"]] if source.dim() else 1
    return sorting(call) + COMPARE * neighbours(call, entries)


def neighbours(call: Call, entries: int) -> int:
    """The number of pairs of neighbours in rows of `entries` entries."""
    return call.tensor("self").numel() // max(entries, 1) * max(entries - 1, 0)


def distinct(call: Call, *, ordered: bool = False) -> Operations:
    """The operations that find distinct entries: a comparison of each two neighbours, after a sort;
    `ordered` (unique_consecutive) leaves out the sort. CountError for distinct rows along a
    `dim`."""
    if call.arguments.get("dim") is not None:
        raise CountError(
            f"{call.name}: no counting rule for dim={call.arguments['dim']}, only for dim=None: "
            "the number of compared entries of a row depends on values"
        )
    pairs = COMPARE * neighbours(call, call.tensor("self").numel())
    return pairs if ordered else sorting(call) + pairs


LOG_SUM = Operations(add=3, exp=1, other={"compare": 1, "log": 1})
"""log(exp(a) + exp(b)) as the larger one plus log1p(exp(smaller - larger))."""


def histogram(call: Call) -> Operations:
    """The operations of a histogram: each entry is compared with both bounds and adds one to the
    bin (x - min) * bins / (max - min); without given bounds, the minimum and the maximum are
    computed first."""
    source = call.tensor("self")
    entries = source.numel()
    given = call.arguments["min"] != call.arguments["max"]
    sought = COMPARE * (0 if given else 2 * max(entries - 1, 0))
    return Operations(mul=entries, add=2 * entries, div=entries) + COMPARE * (2 * entries) + sought


def weighted_counts(call: Call) -> Operations:
    """bincount: counting is free, as indices are; with weights an addition per weight."""
    weights = call.arguments.get("weights")
    return NOTHING if weights is None else scatter_summed(call, "weights")


def binary_search(call: Call) -> Operations:
    """The operations of a binary search among n sorted entries: a comparison for each halving,
    floor(log2 n) + 1 per value searched."""
    values = call.arguments["self"]
    places = call.tensor("boundaries" if "boundaries" in call.arguments else "sorted_sequence")
    number = values.numel() if hasattr(values, "numel") else 1
    return COMPARE * (number * int(places.shape[-1]).bit_length())


# bags of rows


SUM, MEAN, MAX = 0, 1, 2
"""Modes of torch.nn.functional.embedding_bag as its operations take them."""


def rows_taken(call: Call) -> int:
    """The number of rows that the indices name, those of `padding_idx` left out; CountError with a
    `padding_idx` for indices without values."""
    rows, padding = call.tensor("indices"), call.arguments["padding_idx"]
    if padding < 0:
        return rows.numel()
    return int((call.values(rows, "the number of padding rows") != padding).sum())


def filled_bags(call: Call) -> int:
    """The number of bags (groups of rows of an embedding bag) with at least one row besides those
    of `padding_idx` (negative: none): 2 of the three bags with offsets [0, 2, 2] of 5 rows.
    CountError for offsets, and with a `padding_idx` for indices, without values."""
    remedy = "; ids with two axes, or offsets that follow from sizes, are counted"
    starts = call.values(call.tensor("offsets"), "the number of filled bags", remedy).tolist()
    rows, padding = call.tensor("indices"), call.arguments["padding_idx"]
    # offsets may have the end of the last bag as a last entry, which begins no bag
    bags = list(zip(starts, [*starts[1:], rows.numel()], strict=False))[: call.output.shape[0]]
    if padding < 0:
        return sum(start < end for start, end in bags)
    named = call.values(rows, "the number of padding rows") != padding
    return sum(bool(named[start:end].any()) for start, end in bags)


def embedding_bag(call: Call) -> Operations:
    """The operations of an embedding bag: the rows of a bag are added (mode max: compared), one
    operation fewer than there are rows, after a product if rows have weights; a mean divides each
    entry of the result."""
    mode, width = call.arguments["mode"], call.tensor("weight").shape[-1]
    rows, bags = rows_taken(call), filled_bags(call)
    each = COMPARE if mode == MAX else Operations(add=1)
    weighted = call.arguments["per_sample_weights"] is not None
    return each * ((rows - bags) * width) + Operations(
        mul=rows * width if weighted else 0, div=bags * width if mode == MEAN else 0
    )


def embedding_bag_backward(call: Call) -> Operations:
    """The operations of an embedding bag's gradient: the gradient of its bag is added to every row,
    times the row's weight, or for a mean divided by the bag's size; for a maximum, each entry of
    the bag's gradient is added to one row. CountError for scale_grad_by_freq."""
    if call.arguments["scale_grad_by_freq"]:
        raise CountError(
            f"{call.name}: no counting rule for scale_grad_by_freq=True, only for False"
        )
    grad, mode = call.tensor("grad"), call.arguments["mode"]
    if mode == MAX:
        return Operations(add=grad.numel())
    entries = rows_taken(call) * grad.shape[-1]
    weighted = call.arguments["per_sample_weights"] is not None
    return Operations(
        mul=entries if weighted else 0, add=entries, div=entries if mode == MEAN else 0
    )


def weights_of_rows_backward(call: Call) -> Operations:
    """The gradient of a row's weight: the row times the gradient of its bag, summed."""
    rows, width = rows_taken(call), call.tensor("weight").shape[-1]
    return Operations(mul=rows * width, add=rows * (width - 1))


# products


def grouped_product(call: Call) -> Operations:
    """The operations of a matrix product for each group. An operand with two axes is split among
    the groups: the left one along its rows, the right one along its columns, or both along the
    summed axis. Every part belongs to one group, so each entry of a left operand with two axes is
    multiplied by one row of `mat2`. Which groups of a split summed axis are empty depends on
    values: as few as possible are taken to be. A bias is added to each entry of the result."""
    left, right, out = call.tensor("self"), call.tensor("mat2"), call.output
    terms = left.shape[-1]
    products = (
        prod(left.shape[:-1]) * right.shape[-1] * terms if left.dim() == 2 else out.numel() * terms
    )
    bias = out.numel() if call.arguments["bias"] is not None else 0
    each = product_of(left, right) * products
    return each + entry_sum(out) * (max(products - out.numel(), 0) + bias)


def summed_products(call: Call) -> Operations:
    """addbmm: beta * self + alpha * sum of batch1 @ batch2; a factor of 1 and 0 * self are free."""
    left, out = call.tensor("batch1"), call.output
    refuse_complex(call, left, out)
    entries, terms = out.numel(), left.shape[0] * left.shape[-1]
    alpha, beta = call.arguments["alpha"], call.arguments["beta"]
    counts = Operations(mul=entries * terms, add=entries * max(terms - 1, 0))
    counts += Operations(mul=entries if alpha != 1 else 0, add=entries if beta != 0 else 0)
    return counts + Operations(mul=entries if beta not in (0, 1) else 0)


def absolute(call: Call) -> Operations:
    """|x|: a comparison per entry; for a complex entry the root of the sum of both squares."""
    entries = call.output.numel()
    if not call.tensor("self").is_complex():
        return COMPARE * entries
    return (Operations(mul=2, add=1) + named_operation("sqrt")) * entries


def accumulated(call: Call) -> Operations:
    """Writing is free; accumulating adds to every entry that an index names."""
    return scatter_summed(call, "index") if call.arguments["accumulate"] else NOTHING


def compared(call: Call) -> Operations:
    """Whether two tensors are alike: a comparison an entry."""
    return COMPARE * call.tensor("self").numel()


def nearly_equal(call: Call) -> Operations:
    """Whether |a - b| <= atol + rtol |b| at every entry of the broadcast tensors."""
    import torch

    shapes = (call.tensor("self").shape, call.tensor("other").shape)
    together: torch.Size = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]  # untyped
    return (Operations(mul=1, add=2) + COMPARE * 3) * prod(together)


JOINED: Mapping[str, Operations] = {
    "sum": Operations(add=1),
    "mean": Operations(add=1),
    "prod": Operations(mul=1),
    "max": COMPARE,
    "min": COMPARE,
}
"""Reduction of a segment -> the operation that joins one more entry."""


def segments(call: Call) -> Operations:
    """The operations of a reduction by segments: each entry of a segment is joined to those before
    it, the first one to the initial value if there is one; a mean divides once per segment with
    entries. CountError for lengths without values."""
    kind, what = call.arguments["reduce"], "the number of filled segments"
    lengths = call.arguments["lengths"]
    if lengths is None:
        lengths = call.values(call.tensor("offsets"), what).diff()
    filled = int((call.values(lengths, what) > 0).sum())
    filled *= call.output.numel() // max(lengths.numel(), 1)
    first = filled if call.arguments["initial"] is None else 0
    joins = JOINED[kind] * (call.tensor("data").numel() - first)
    return joins + Operations(div=filled if kind == "mean" else 0)


def fractional_pool(call: Call) -> Operations:
    """The largest entry of each window: one comparison less than the window has entries."""
    entries: int = prod(call.arguments["kernel_size"])
    return COMPARE * (call.output.numel() * (entries - 1))


DRAWN = "_sample_dirichlet _standard_gamma binomial multinomial poisson randint randperm"


def drawn(call: Call) -> Operations:
    """A number drawn for every entry of the result."""
    return named_operation("random") * call.output.numel()


SORTS: Mapping[str, Rule] = {
    "topk": topk,
    "kthvalue": topk,
    "median": middle,
    "nanmedian": partial(middle, without_nan=True),
    "mode": most_frequent,
    "_unique2": distinct,
    "unique_dim": distinct,
}
"""Operations that compare entries of any type, by an algorithm that torch does not document."""

SELECTION_RULES: Mapping[str, Rule] = {
    **SORTS,
    "unique_consecutive": partial(distinct, ordered=True),
    **dict.fromkeys(("cummax", "cummin"), partial(cumulation, each=COMPARE)),
    "logcumsumexp": partial(cumulation, each=LOG_SUM),
    "histc": histogram,
    "bincount": weighted_counts,
    **dict.fromkeys(("searchsorted", "bucketize"), binary_search),
    **dict.fromkeys(("_embedding_bag", "_embedding_bag_forward_only"), embedding_bag),
    **dict.fromkeys(("_embedding_bag_backward", "_embedding_bag_dense_backward"),
                    embedding_bag_backward),
    "_embedding_bag_per_sample_weights_backward": weights_of_rows_backward,
    "_grouped_mm": grouped_product,
    "addbmm": summed_products,
    "abs": absolute,
    "masked_select": free,
    "put": accumulated,
    "equal": compared,
    "allclose": nearly_equal,
    "segment_reduce": segments,
    **dict.fromkeys(("fractional_max_pool2d", "fractional_max_pool3d"), fractional_pool),
    **dict.fromkeys(("fractional_max_pool2d_backward", "fractional_max_pool3d_backward"),
                    partial(scatter_summed, places="grad_output")),
    **dict.fromkeys(DRAWN.split(), drawn),
}  # fmt: skip
