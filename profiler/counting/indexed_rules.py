"""How many scalar operations do writes and sums take at the entries that indices name?

A sum of R terms into zeros is R adds here: R depends on the indices, not on shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import prod

from profiler.counting.call import Call, CountError, Rule
from profiler.counting.forward_rules import entry_sum, product_of, refuse_complex
from profiler.counting.operations import COMPARE, NOTHING, Operations


def named_entries(call: Call) -> int:
    """The number of entries of `self[indices]`: the size of the indices' broadcast shape, times the
    extents of axes without an index: 4*5*7 for shape (5, 6, 7) and [None, 4 integers]. A mask
    stands for as many indices as it has True; CountError for a mask without values."""
    import torch

    target, shapes, free_axes, axis = call.tensor("self"), [], 1, 0
    for index in call.arguments["indices"]:
        if index is None:
            free_axes, axis = free_axes * target.shape[axis], axis + 1
        elif index.dtype in (torch.bool, torch.uint8):
            mask = call.values(index, "the number of entries in a mask")
            shapes.append((int(mask.count_nonzero()),))
            axis += index.dim()
        else:
            shapes.append(tuple(index.shape))
            axis += 1
    together: torch.Size = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]  # untyped
    return prod(together) * free_axes * prod(target.shape[axis:])


def index_put(call: Call) -> Operations:
    """Writing is free; accumulating adds to every entry that the indices name."""
    if not call.arguments.get("accumulate"):
        return NOTHING
    return entry_sum(call.output) * named_entries(call)


def scatter_write(call: Call) -> Operations:
    """Writing is free; `reduce` ("add", "multiply") takes an addition or product per entry."""
    each = {"add": entry_sum(call.output), "multiply": product_of(call.output, call.output)}
    return each.get(call.arguments.get("reduce", ""), NOTHING) * call.tensor("index").numel()


def scatter_summed(call: Call, places: str) -> Operations:
    """An addition for each entry of the argument named `places`, the index or the source."""
    return entry_sum(call.output) * call.tensor(places).numel()


INTO: Mapping[str, Operations] = {
    "sum": Operations(add=1),
    "prod": Operations(mul=1),
    "amax": COMPARE,
    "amin": COMPARE,
}
"""Reduction -> the operation that combines a source entry with the entry that an index names."""


def scatter_reduced(call: Call, places: str) -> Operations:
    """The operations of scatter_reduce: each entry of the argument named `places` is combined, by
    the reduction `reduce` ("sum", "prod", "amax", ...; `INTO` has the operations of one
    combination), with the entry of the result that an index names. CountError for a reduction that
    `INTO` lacks, and for include_self=False."""
    kind = call.arguments["reduce"]
    refuse_complex(call, call.output)
    if kind not in INTO:
        raise CountError(
            f"{call.name}: no counting rule for the reduction '{kind}', only for {', '.join(INTO)}"
        )
    if not call.arguments["include_self"]:
        raise CountError(f"{call.name}: no counting rule for include_self=False, only for True")
    return INTO[kind] * call.tensor(places).numel()


def index_add(call: Call) -> Operations:
    """self + alpha * source at the entries that an index names; alpha = 1 costs nothing."""
    source, alpha = call.tensor("source"), call.arguments["alpha"]
    scaled = NOTHING if alpha == 1 else product_of(source, alpha) * source.numel()
    return scatter_summed(call, "source") + scaled


def embedding_backward(call: Call) -> Operations:
    """The operations of an embedding's gradient: every entry of the result's gradient is added to
    the row that an index names; rows of `padding_idx` are left out. CountError for
    scale_grad_by_freq, and with a `padding_idx` for indices on the meta device."""
    if call.arguments["scale_grad_by_freq"]:
        raise CountError(
            f"{call.name}: no counting rule for scale_grad_by_freq=True, only for False"
        )
    grad, rows, left_out = call.tensor("grad_output"), call.tensor("indices"), 0
    if call.arguments["padding_idx"] >= 0:
        named = call.values(rows, "the number of padding rows")
        left_out = int((named == call.arguments["padding_idx"]).sum())
    width = grad.shape[-1]
    return entry_sum(grad) * ((rows.numel() - left_out) * width)


INDEXED_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("index_put", "_index_put_impl", "_unsafe_index_put"), index_put),
    "scatter": scatter_write,
    "scatter_add": partial(scatter_summed, places="index"),
    "scatter_reduce": partial(scatter_reduced, places="index"),
    "index_add": index_add,
    "index_reduce": partial(scatter_reduced, places="source"),
    "embedding_dense_backward": embedding_backward,
}
