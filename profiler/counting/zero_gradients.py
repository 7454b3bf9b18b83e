"""How much of a backward pass is arithmetic with zeros in place of absent gradients?

If only a part of a tensor was used, torch pads the gradient of the part with zeros to the whole
shape, and adds and multiplies these zeros: the separate uses x[0] and x[1] give [g0, 0] + [0, g1].
The equations count nothing there. Each storage has a mask of the entries that hold a gradient.
Each dispatched operation is counted again at these entries alone; the difference is the work on
padding zeros. No value is read: an entry is a padding zero only if a padding operation wrote it, or
an operation computed it from padding zeros, or summed no term. Zeros of a mask in the model or of
padded inputs are ordinary numbers, and so are all results of a forward pass that runs again in the
backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from profiler.counting.backward_rules import DERIVATIVES
from profiler.counting.call import Call, CountError, bind, is_arithmetic, tensors_in, written
from profiler.counting.forward_rules import entry_sum, product_of
from profiler.counting.mode import DispatchMode, OperationKind
from profiler.counting.operations import NOTHING, Operations, named_operation
from profiler.counting.rules import operations_of

FILLING = ("select_backward", "slice_backward", "constant_pad_nd")
"""Operations that pad the gradient of a part with zeros."""

EMPTY = ("zeros", "zeros_like", "new_zeros", "zero_")
"""Operations that a backward pass calls for a part that has no gradient at all."""


class ZeroGradientCounter(DispatchMode):
    """Tracks which entries hold a gradient, and counts in `spent` the work on all other entries.

    The mask of a tensor has the tensor's shape: True where an entry holds a gradient. Tensors that
    share a storage share its mask; every entry of a storage without a mask holds a gradient.
    Masks of meta tensors lie on the CPU; nothing else of a meta tensor is computed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.spent = NOTHING

    def see(self, kind: OperationKind, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Run a dispatched operation, return its result, and set the masks of its results, which
        are True at entries that hold a gradient. An argument that the operation writes loses its
        mask first."""
        result = super().see(kind, args, kwargs)
        if not kind.view:
            call = bind(kind.func, args, kwargs, result)
            masks = self.masks_of_results(kind.func, args, kwargs, call)
            for tensor in written(kind.func, call):
                set_mask(tensor, None)
            for tensor, mask in masks:
                set_mask(tensor, mask)
        return result

    def masks_of_results(
        self, func: Any, args: Any, kwargs: Any, call: Call
    ) -> list[tuple[Tensor, Tensor]]:
        """Add the operations that a call spends on padding zeros to `spent`; return (result, mask)
        for each result that needs a mask (True at entries that hold a gradient). [] if every entry
        of the results is taken to hold one: in a forward pass that runs again, for a call with
        `out=`, if each operand has entries, and none has a mask (unless it makes padding zeros
        itself: `EMPTY`, `FILLING`), or for an operation that neither only moves entries (`MOVES`, a
        copy) nor has a rule for masks (`COUNTED`) and, at this call, a counting rule."""
        name = call.name.removeprefix("aten::")
        own = name.removesuffix("_")
        if torch.is_grad_enabled() or any(argument.is_out for argument in func._schema.arguments):
            return []
        if name in EMPTY or (name == "scalar_tensor" and args[0] == 0):
            return [(call.output, uniform_mask(call.output, there=False))]
        # of a tensor without entries, a sum is a gradient of no term
        if name not in FILLING and all(t.numel() and mask_if_any(t) is None for t in call.inputs):
            return []
        if name in MOVES:
            return moved(func, args, kwargs, call)
        if own == "copy":
            source = mask_of(call.tensor("src"))
            return [(call.output, source.expand(call.output.shape))]
        if own in COUNTED:
            try:
                total = operations_of(call) or NOTHING
            except CountError:
                return []
            carried, mask = COUNTED[own](call)
            self.spent += subtracted(total, carried)
            return [(call.output, mask)]
        return []


MOVED = """
    _conj_physical _unsafe_index block_diag cat channel_shuffle clone constant_pad_nd diag_embed
    diagonal_scatter flip gather index index_select narrow_copy pixel_shuffle pixel_unshuffle repeat
    roll rot90 select_backward select_scatter slice_backward slice_copy slice_scatter split_copy
    stack view_copy
"""
MOVES = frozenset(MOVED.split())
"""Operations that copy each entry of the result from an operand, or fill it with a constant: the
same operation on the masks of the operands gives the mask of the result."""


def moved(func: Any, args: Any, kwargs: Any, call: Call) -> list[tuple[Tensor, Tensor]]:
    """(result, mask: True at gradients) for each result in `call` of an operation that only moves
    entries: the operation runs again with the masks in place of its floating or complex operands;
    [] if torch does not define it for booleans."""

    def masked(leaf: Any) -> Any:
        return mask_of(leaf) if isinstance(leaf, Tensor) and is_arithmetic(leaf.dtype) else leaf

    try:
        masks = func(*tree_map(masked, args), **kwargs)
    except (RuntimeError, TypeError, NotImplementedError):
        return []
    return list(zip(tensors_in(call.result), tensors_in(masks), strict=True))


def storage_mask(tensor: Tensor) -> Tensor | None:
    """The mask of a tensor's whole storage, one boolean per entry (True: it holds a gradient); None
    without one, or if the tensor's entries have another size in bytes than those for which the mask
    was made."""
    if tensor.layout is not torch.strided:
        return None
    storage = tensor.untyped_storage()
    mask: Tensor | None = getattr(storage, "_stands_for_a_gradient", None)
    fits = mask is not None and mask.numel() * tensor.element_size() == storage.nbytes()
    return mask if fits else None


def mask_if_any(tensor: Tensor) -> Tensor | None:
    """The mask of a tensor (True where an entry holds a gradient); None if its storage has none."""
    whole = storage_mask(tensor)
    if whole is None:
        return None
    return whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def mask_of(tensor: Tensor) -> Tensor:
    """The mask of a tensor; True everywhere where it has none."""
    mask = mask_if_any(tensor)
    return uniform_mask(tensor, there=True) if mask is None else mask


def uniform_mask(tensor: Tensor, *, there: bool) -> Tensor:
    """A mask of the tensor's shape that is `there` at all entries."""
    return torch.full(tensor.shape, there, dtype=torch.bool, device=mask_device(tensor))


def mask_device(tensor: Tensor) -> Any:
    """Where the masks of a tensor lie."""
    return "cpu" if tensor.device.type == "meta" else tensor.device


def set_mask(tensor: Tensor, mask: Tensor | None) -> None:
    """Write the mask of a tensor's entries (True: the entry holds a gradient; None: every entry
    does) into the mask of its storage.

    A storage whose mask is True everywhere has none. Integers and booleans get no mask.
    """
    if tensor.layout is not torch.strided or not is_arithmetic(tensor.dtype):
        return
    storage: Any = tensor.untyped_storage()
    whole = storage_mask(tensor)
    if mask is not None and whole is None:
        entries = storage.nbytes() // tensor.element_size()
        whole = torch.ones(entries, dtype=torch.bool, device=mask_device(tensor))
    if whole is not None:
        place = whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        place.copy_(uniform_mask(tensor, there=True) if mask is None else mask)
    kept = whole is not None and not bool(whole.all())
    storage._stands_for_a_gradient = whole if kept else None


def subtracted(total: Operations, carried: Operations) -> Operations:
    """The operations `total` less the operations `carried`, class by class."""
    names = {*total.other, *carried.other}
    return Operations(
        total.mul - carried.mul,
        total.add - carried.add,
        total.div - carried.div,
        total.exp - carried.exp,
        {name: total.other.get(name, 0) - carried.other.get(name, 0) for name in names},
    )


MaskedCount = tuple[Operations, Tensor]
"""The operations on entries that hold a gradient, and the mask of the result."""


def operations_at(call: Call, mask: Tensor) -> Operations:
    """The operations of a call at the entries of its result where `mask`, of its shape, is True.
    Each entry costs total // entries; a remainder is kept: 3 of 7 adds on 4 entries, all False."""
    total, entries = operations_of(call) or NOTHING, max(call.output.numel(), 1)
    each = Operations(
        total.mul // entries,
        total.add // entries,
        total.div // entries,
        total.exp // entries,
        {name: n // entries for name, n in total.other.items()},
    )
    return subtracted(total, each * (mask.numel() - int(mask.count_nonzero())))


def operand_masks(call: Call) -> list[Tensor]:
    """The masks of all tensor operands, expanded to the result's shape, on the result's device."""
    device, shape = mask_device(call.output), call.output.shape
    return [mask_of(t).to(device).expand(shape) for t in call.inputs]


def both_hold(call: Call) -> MaskedCount:
    """(operations at the entries where every operand holds a gradient, the mask of these entries):
    the result holds a gradient there alone."""
    mask = operand_masks(call)[0]
    for other in operand_masks(call)[1:]:
        mask = mask & other
    return operations_at(call, mask), mask


def either_holds(call: Call) -> MaskedCount:
    """(operations of an addition at the entries where both operands hold a gradient, the mask of
    the entries where either does): the result holds a gradient in the latter. A single operand is
    added to a number, which stands for a gradient everywhere."""
    first, *rest = operand_masks(call)
    second = rest[0] if rest else torch.ones_like(first)
    return operations_at(call, first & second), first | second


def where_gradient(call: Call) -> MaskedCount:
    """(operations, mask) of an elementwise derivative where `grad_output` holds a gradient."""
    mask = mask_of(call.tensor("grad_output"))
    return operations_at(call, mask), mask


def where_chosen(call: Call) -> MaskedCount:
    """(operations, mask) of a choice: an entry holds a gradient where either operand may."""
    device, shape = mask_device(call.output), call.output.shape
    one, other = (mask_of(call.tensor(x)).to(device).expand(shape) for x in ("self", "other"))
    return operations_at(call, one | other), one | other


def where_scattered(call: Call) -> MaskedCount:
    """(operations, mask) of an operand of which entries are overwritten along an axis, by those of
    a tensor or by a number. Positions are values, which are not read: any entry of a line may hold
    a gradient if the operand's does, or one written into the line; a written 0 holds none."""
    axis, source = int(call.arguments["dim"]), call.arguments.get("src")
    mask = mask_of(call.tensor("self"))
    if not isinstance(source, Tensor):
        mask = mask | (call.arguments.get("value") != 0)
    else:
        lines = mask_of(source).any(axis, keepdim=True)
        # a source with fewer lines than the operand: any entry may hold a gradient
        one_each = mask.any(axis, keepdim=True).shape == lines.shape
        mask = mask | (lines if one_each else lines.new_ones(()))
    return operations_at(call, mask), mask


def where_named(call: Call, values: str) -> MaskedCount:
    """(operations, mask) of a call that writes the argument named `values` to the entries that
    indices name, or adds it there. Indices are values, which are not read: any entry of the result
    may hold a gradient if an entry of the argument does. If none does, no operation is work, and
    the entries of the operand alone hold gradients (none where the result begins with zeros)."""
    if bool(mask_of(call.tensor(values)).any()):
        return operations_of(call) or NOTHING, uniform_mask(call.output, there=True)
    begun = isinstance(call.arguments.get("self"), Tensor)
    mask = mask_of(call.tensor("self")) if begun else uniform_mask(call.output, there=False)
    return NOTHING, mask


def masked_sum(call: Call) -> MaskedCount:
    """(operations, mask) of a sum: R - 1 additions for the R terms that hold a gradient, and their
    conversions. An entry of the result holds a gradient if R > 0."""
    source = call.tensor("self")
    mask = mask_of(source)
    axes, keep = call.arguments.get("dim"), bool(call.arguments.get("keepdim"))
    every = list(range(mask.dim()))
    terms = mask.to(torch.int64).sum(axes or every, keepdim=keep)
    counts = entry_sum(source) * int((terms - 1).clamp_min(0).sum())
    if source.dtype != call.output.dtype:
        counts += named_operation("convert") * int(mask.count_nonzero())
    return counts, terms > 0


def masked_running_sum(call: Call) -> MaskedCount:
    """(operations, mask) of a running sum: an addition for each term that holds a gradient, if a
    term before it does. An entry of the result holds a gradient if a term up to it does."""
    mask = mask_of(call.tensor("self"))
    terms = mask.to(torch.int64).cumsum(int(call.arguments["dim"]))
    added = int((mask & (terms > 1)).count_nonzero())
    return entry_sum(call.tensor("self")) * added, terms > 0


def masked_product(call: Call) -> MaskedCount:
    """(operations, mask) of a matrix product: R multiplications and R - 1 additions for the R terms
    of an entry of which both factors hold a gradient. The entry holds a gradient if R > 0."""
    left, right = call.inputs[:2]
    terms = mask_of(left).to(torch.float64) @ mask_of(right).to(torch.float64)
    adds = entry_sum(call.output) * int((terms - 1).clamp_min(0).sum())
    return product_of(left, right) * int(terms.sum()) + adds, terms > 0


def masked_convolution(call: Call) -> MaskedCount:
    """(operations, mask) of the backward pass of a convolution: products with the entries of
    `grad_output` that hold a gradient, fewer than all if later operations read a part of the
    result. The mask is that of the input's gradient. A transposed convolution, or one without
    weights, counts in full, with a mask of True."""
    grad, x, weight = (call.tensor(name) for name in ("grad_output", "input", "weight"))
    given, mask = call.arguments, mask_of(grad)
    if given["transposed"] or not weight.numel():
        return operations_of(call) or NOTHING, uniform_mask(x, there=True)
    around = [size + 2 * pad for size, pad in zip(x.shape[2:], given["padding"], strict=True)]
    ones = [
        torch.ones(shape, dtype=torch.float64, device=mask.device)
        for shape in ((*x.shape[:2], *around), weight.shape)
    ]
    # how many entries of `grad_output` that hold a gradient each entry of the padded input meets
    terms = torch.ops.aten.convolution_backward(
        mask.to(torch.float64), *ones, None, given["stride"], [0] * len(around),
        given["dilation"], False, given["output_padding"], given["groups"], [True, False, False],
    )[0]  # fmt: skip
    taps = prod(weight.shape[1:])  # products for each entry of `grad_output`
    channels = int(mask.transpose(0, 1).flatten(1).any(1).count_nonzero())
    held = int(mask.count_nonzero())
    # entries of the gradients of input and weight, each the sum of its products
    sums = (int((terms > 0.5).count_nonzero()), channels * taps)
    counts = NOTHING
    for wanted, number in zip(given["output_mask"], sums, strict=False):
        if wanted:
            counts += Operations(mul=held * taps, add=held * taps - number)
    if given["output_mask"][2]:
        counts += Operations(add=held - channels)
    inside = [slice(pad, pad + n) for pad, n in zip(given["padding"], x.shape[2:], strict=True)]
    return counts, terms[:, :, *inside] > 0.5


COUNTED: Mapping[str, Callable[[Call], MaskedCount]] = {
    **dict.fromkeys(("mul", "div", "neg", "_to_copy"), both_hold),
    **dict.fromkeys(("add", "sub"), either_holds),
    **dict.fromkeys((*DERIVATIVES, "softplus_backward", "gelu_backward"), where_gradient),
    "where": where_chosen,
    "scatter": where_scattered,
    **dict.fromkeys(
        ("index_put", "_index_put_impl", "_unsafe_index_put"), partial(where_named, values="values")
    ),
    "index_add": partial(where_named, values="source"),
    "scatter_add": partial(where_named, values="src"),
    "embedding_dense_backward": partial(where_named, values="grad_output"),
    "sum": masked_sum,
    "cumsum": masked_running_sum,
    "convolution_backward": masked_convolution,
    "mm": masked_product,
    "bmm": masked_product,
}
"""Operation -> a function that returns its operations on entries that hold a gradient, and the mask
of its result; the result of any other operation gets no mask."""


def spent_on_zeros(backward: Callable[[], Any]) -> Operations:
    """The operations of a backward pass, which `backward` runs, on zeros that pad gradients."""
    zeros = ZeroGradientCounter()
    with zeros:
        backward()
    return zeros.spent
