"""Which dispatched operations compute with constants of the sizes, tensors that hold no data?

A constant of the sizes depends on no tensor that was there before the call: no input, parameter,
buffer or state. A factory makes one (`arange(l)`, `ones(l, l)`), and so does an operation on such
tensors alone (`ones(l, l).tril() > 0`), for any data: a buffer would hold its result.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tag, Tensor

from profiler.counting.call import Call, tensors_in, written


class Constants:
    """The constants of the sizes among the tensors of one counted call.

    Tensors that share a storage are constants together: data that are written into one entry, as by
    `mask[0] = x[0]`, make all of them data. A random tensor is data. Once a number or an extent has
    been taken from data (`int(x.argmax())`, `x[x > 0]`), all further tensors are data.
    """

    def __init__(self) -> None:
        self.told = False
        """Whether a number or an extent was taken from data."""

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor is a constant of the sizes."""
        if tensor.layout is not torch.strided:
            return False
        return getattr(tensor.untyped_storage(), "_constants", None) is self

    def see(self, func: Any, call: Call) -> bool:
        """Whether the results of a call are constants of the sizes, which are remembered: all its
        tensor arguments are constants, or their entries are not read (`zeros_like(x)`,
        `torch.tensor`). False for random results, in a backward pass, and after a number was taken
        from data; tensors that the call writes are then data."""
        library, _, name = call.name.partition("::")
        unread = name.endswith("_like") or name.startswith("new_") or name == "lift_fresh"
        unread = unread and library == "aten"
        known = unread or all(map(self.holds, call.inputs))
        self.told |= not known and takes_number(func, call)
        random = Tag.nondeterministic_seeded in func.tags
        # in a backward pass, zeros and ones of factories stand for gradients
        backward = torch._C._current_graph_task_id() != -1
        constant = known and not (self.told or random or backward)
        for tensor in tensors_in(call.result) if constant else written(func, call):
            self.mark(tensor, constant=constant)
        return constant

    def mark(self, tensor: Tensor, *, constant: bool) -> None:
        """Remember that a tensor, and all that share its storage, are constants or data."""
        if tensor.layout is torch.strided:
            storage: Any = tensor.untyped_storage()
            storage._constants = self if constant else None


def takes_number(func: Any, call: Call) -> bool:
    """Whether an operation gives a number to Python, or a result whose shape depends on values, as
    an index by booleans is (`x[x > 0]`)."""
    if Tag.data_dependent_output in func.tags:
        return True
    masks = call.name != "aten::index" or any(t.dtype == torch.bool for t in call.inputs)
    return Tag.dynamic_output_shape in func.tags and masks
