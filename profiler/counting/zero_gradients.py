"""How much of a backward pass is arithmetic with zeros that stand for no gradient at all?

Where only a part of a tensor was used, torch fills the gradient of the whole up with zeros, and
adds and multiplies these like any other number: x[0] and x[1] used apart give [g0, 0] + [0, g1].
The equations count nothing there. A mask follows, for every gradient, which entries stand for a
gradient; each dispatched operation is counted again at these entries alone, and the difference is
what the pass did with such zeros. Zeros from a mask of the model or from padding are numbers, and
are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from profiler.counting.backward_rules import DERIVATIVES, DISPATCHED_RULES
from profiler.counting.call import Call, CountError, bind, tensors_in
from profiler.counting.forward_rules import free, operations_of, rule_for
from profiler.counting.operations import NOTHING, Operations

FILLING = ("select_backward", "slice_backward")
"""Operations that give the gradient of a part: zeros everywhere outside the part."""

EMPTY = ("zeros", "zeros_like", "new_zeros")
"""Operations that a backward pass calls for a part that has no gradient at all."""


MEANING = "arithmetic with zeros that fill up the gradients of parts, which the equations leave out"
"""What this difference is called as the cause of a gap."""


class ZeroGradientCounter(TorchDispatchMode):
    """Follows which entries of gradients stand for a gradient, and counts the work on all others.

    The mask of a tensor has the tensor's shape: True where an entry stands for a gradient. A tensor
    without a mask stands for a gradient everywhere. Masks of meta tensors lie on the CPU; nothing
    else of a meta tensor is computed.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.spent = NOTHING

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        rule = rule_for(func._schema.name, DISPATCHED_RULES)
        if rule is None:
            with self:
                parts = func.decompose(*args, **kwargs)
                if parts is not NotImplemented:
                    return parts
        result = func(*args, **kwargs)
        call = bind(func, args, kwargs, result)
        if name in EMPTY:
            set_mask(result, uniform_mask(result, there=False))
        elif name in FILLING or any(mask_if_any(t) is not None for t in call.inputs):
            self.follow(func, name, args, kwargs, call, moves=rule is free or func.is_view)
        return result

    def follow(
        self, func: Any, name: str, args: Any, kwargs: Any, call: Call, *, moves: bool
    ) -> None:
        """Count what the call did with zeros, and give its result a mask."""
        own = name.removesuffix("_")
        if moves and own not in PLACED:
            self.moved(func, args, kwargs, call)
        elif own in COUNTED:
            carried, mask = COUNTED[own](call)
            try:
                total = operations_of(call, DISPATCHED_RULES) or NOTHING
            except CountError:
                return
            self.spent += subtracted(total, carried)
            set_mask(call.output, mask)

    @staticmethod
    def moved(func: Any, args: Any, kwargs: Any, call: Call) -> None:
        """Give the results of an operation that only moves entries their masks: the masks, moved
        alike."""
        masked = tree_map(lambda leaf: mask_of(leaf) if isinstance(leaf, Tensor) else leaf, args)
        try:
            masks = func(*masked, **kwargs)
        except (RuntimeError, TypeError, NotImplementedError):  # not defined for booleans
            return
        for tensor, mask in zip(tensors_in(call.result), tensors_in(masks), strict=True):
            set_mask(tensor, mask.bool() if mask.dtype != torch.bool else mask)


PLACED = ("copy", "fill", "zero", "index_put", "_index_put_impl", "masked_fill", "where", "tril",
          "triu", "scatter", "masked_scatter", "set", "resize")  # fmt: skip
"""Moves that write into a tensor that existed before, or choose by a mask: every entry of the
result is taken as a number."""


def mask_if_any(tensor: Tensor) -> Tensor | None:
    """The mask of a tensor; None where it has none."""
    mask: Tensor | None = getattr(tensor, "_stands_for_a_gradient", None)
    return mask


def mask_of(tensor: Tensor) -> Tensor:
    """The mask of a tensor; True everywhere where it has none."""
    mask = mask_if_any(tensor)
    return uniform_mask(tensor, there=True) if mask is None else mask


def uniform_mask(tensor: Tensor, *, there: bool) -> Tensor:
    """A mask of the tensor's shape that is `there` at all entries."""
    device = "cpu" if tensor.device.type == "meta" else tensor.device
    return torch.full(tensor.shape, there, dtype=torch.bool, device=device)


def set_mask(tensor: Tensor, mask: Tensor | None) -> None:
    """Give a tensor its mask; a mask that is True everywhere is not kept."""
    if mask is not None and mask.shape == tensor.shape and not bool(mask.all()):
        tensor._stands_for_a_gradient = mask  # type: ignore[attr-defined]  # ours
    elif mask_if_any(tensor) is not None:
        tensor._stands_for_a_gradient = None  # type: ignore[attr-defined]  # ours


def subtracted(total: Operations, carried: Operations) -> Operations:
    """total - carried, class by class."""
    names = {*total.other, *carried.other}
    return Operations(
        total.mul - carried.mul,
        total.add - carried.add,
        total.div - carried.div,
        total.exp - carried.exp,
        {name: total.other.get(name, 0) - carried.other.get(name, 0) for name in names},
    )


MaskedCount = tuple[Operations, Tensor | None]
"""The operations on entries that stand for a gradient, and the mask of the result."""


def operations_at(call: Call, number: int) -> Operations:
    """The operations of `number` result entries, where every entry of the result costs the same."""
    total, entries = operations_of(call, DISPATCHED_RULES) or NOTHING, max(call.output.numel(), 1)
    each = Operations(
        total.mul // entries,
        total.add // entries,
        total.div // entries,
        total.exp // entries,
        {name: n // entries for name, n in total.other.items()},
    )
    return each * number


def operand_masks(call: Call) -> list[Tensor]:
    """The masks of all tensor operands, expanded to the result's shape."""
    return [mask_of(t).expand(call.output.shape) for t in call.inputs]


def where_all(call: Call) -> MaskedCount:
    """Counted where every operand stands for a gradient; so does the result there."""
    mask = operand_masks(call)[0]
    for other in operand_masks(call)[1:]:
        mask = mask & other
    return operations_at(call, int(mask.sum())), mask


def where_any(call: Call) -> MaskedCount:
    """An addition: counted where both operands stand for a gradient; the result does where one
    does."""
    first, *rest = operand_masks(call)
    second = rest[0] if rest else torch.ones_like(first)
    return operations_at(call, int((first & second).sum())), first | second


def where_gradient(call: Call) -> MaskedCount:
    """An elementwise derivative, counted at every entry where `grad_output` stands for a
    gradient."""
    mask = mask_of(call.tensor("grad_output"))
    return operations_at(call, int(mask.sum())), mask


def masked_sum(call: Call) -> MaskedCount:
    """A sum: R - 1 additions for the R terms that stand for a gradient."""
    source = call.tensor("self")
    mask = mask_of(source)
    axes, keep = call.arguments.get("dim"), bool(call.arguments.get("keepdim"))
    every = list(range(mask.dim()))
    terms = mask.to(torch.int64).sum(axes or every, keepdim=keep)
    adds = int((terms - 1).clamp_min(0).sum())
    return Operations(add=adds), terms > 0


def masked_product(call: Call) -> MaskedCount:
    """A matrix product: R multiplications and R - 1 additions where R terms stand for a
    gradient."""
    left, right = (mask_of(t).to(torch.float64) for t in call.inputs[:2])
    terms = left @ right
    adds = int((terms - 1).clamp_min(0).sum())
    return Operations(mul=int(terms.sum()), add=adds), terms > 0


COUNTED: Mapping[str, Callable[[Call], MaskedCount]] = {
    **dict.fromkeys(("mul", "div", "neg"), where_all),
    **dict.fromkeys(("add", "sub"), where_any),
    **dict.fromkeys(DERIVATIVES, where_gradient),
    "sum": masked_sum,
    "mm": masked_product,
    "bmm": masked_product,
}
"""Operation -> its operations and its mask; the result of any other operation gets no mask."""


def spent_on_zeros(backward: Callable[[], Any]) -> Operations:
    """The operations of a backward pass on zeros that stand for no gradient."""
    zeros = ZeroGradientCounter()
    with zeros:
        backward()
    return zeros.spent
