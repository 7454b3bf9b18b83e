"""Which tensors are alive while a call holds most, and which does its forward pass keep?

Each is listed with the operation that made it, its shape and its bytes. What autograd's hooks do
not show (attributes of a custom Function's context, caches of a module) is alive too, and listed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from profiler.counting.call import is_arithmetic
from profiler.counting.rules import only_moves
from profiler.counting.saved_tensors import collecting_saved
from profiler.meters.memory.allocations import (
    Address,
    Allocation,
    AllocatorEvent,
    TensorSeen,
    WatchedRun,
    watched,
)

WORKSPACE = "workspace"
COPY = "copy"
CAUSES: Mapping[str, str] = {
    WORKSPACE: "released again before the operation that allocated it had ended",
    "mask": "booleans or integers: masks and positions, not arrays of the equations",
    "filled": "made of one number, or left empty; what is written into it later is not followed",
    COPY: "entries moved, nothing computed",
    "unseen": "alive after the forward pass, though autograd's hooks do not report it",
    "part": "only a part of these bytes was saved, which keeps all of them",
}
"""Cause -> what it means."""

FILLED = "arange empty empty_permuted empty_strided eye full ones scalar_tensor zeros"
FILLING = frozenset(FILLED.split())
"""Operations that make a tensor of no other one, `new_` and `_like` apart."""

THERE_BEFORE = "there before the call"
"""Stands for the operation that made a tensor which existed before the call."""


@dataclass(frozen=True)
class LiveTensor:
    """One tensor that is alive, or `number` equal ones.

    Args:
        operation: what made it; `node` is the node of the autograd graph that ran the operation.
        shape, dtype: those of the largest tensor that was seen to have the bytes; None where no
            operation read them. `views` are other shapes of
            as many entries, one for each set of extents.
        bytes: of one of them, without what the allocator adds.
        cause: one of `CAUSES`, or "".
        name: `x.grad`, `result`: what the call left the tensor as, or "".
    """

    operation: str
    node: str
    shape: tuple[int, ...] | None
    dtype: str | None
    bytes: int
    cause: str = ""
    name: str = ""
    views: tuple[tuple[int, ...], ...] = ()
    number: int = 1


@dataclass(frozen=True)
class LiveTensors:
    """What is alive at one moment: `total` bytes by the allocator more than before the call, tensor
    by tensor; `rounding` is what the allocator added, `released` what was there before the call and
    is not any more."""

    total: int
    tensors: tuple[LiveTensor, ...]
    rounding: int = 0
    released: int = 0

    @property
    def unnamed(self) -> int:
        """Bytes of which neither an operation nor a tensor is known."""
        named = sum(tensor.bytes * tensor.number for tensor in self.tensors)
        return self.total + self.released - self.rounding - named

    def to_json(self) -> dict[str, Any]:
        """tensors, rounding, released."""
        rows = [
            asdict(t) | {"shape": t.shape and [*t.shape], "views": [[*view] for view in t.views]}
            for t in self.tensors
        ]
        return {"tensors": rows, "rounding": self.rounding, "released": self.released}


Named = Mapping[str, Tensor]
"""What a call left a tensor as -> the tensor."""


def most_alive(
    call: Callable[[], Any], device: str, named: Callable[[Any], Named] = lambda _: {}
) -> LiveTensors:
    """What a call has allocated and holds at its worst moment.

    Args:
        named: the call's result -> the tensors that are known by a name after the call.
    """
    run = watched(call, device)
    most, alive, released = run.at_most()
    names = known_names(run, named(run.result))
    rows = [
        described(one, names.get(one.made.address, "") if one.released is None else "")
        for one in alive
        if one.named
    ]
    return LiveTensors(most, counted(rows), sum(one.rounding for one in alive), released)


def known_names(run: WatchedRun, named: Named) -> dict[Address, str]:
    """Address -> name, of what is alive after the call; these tensors are seen, too."""
    alive, names = run.at_the_end(), {}
    for name, tensor in named.items():
        address = address_of(tensor)
        if address in alive:
            names[address] = name
            alive[address].seen.append(seen_now(address, tensor))
    return names


def address_of(tensor: Tensor) -> Address:
    """Where the bytes of a tensor's storage begin."""
    return tensor.device.type, tensor.untyped_storage().data_ptr()


def seen_now(address: Address, tensor: Tensor) -> TensorSeen:
    """A tensor as an operation would read it."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    shape = tuple(extent if stride else min(extent, 1) for extent, stride in pairs)
    return TensorSeen(0, address, shape, tensor.dtype)


def described(one: Allocation, name: str = "", cause: str = "") -> LiveTensor:
    """An allocation as a tensor of the list."""
    whole, operation = one.whole, one.made.operation.removeprefix("aten::")
    own = extents_of(whole.shape) if whole else ()
    views = {
        extents_of(seen.shape): seen.shape
        for seen in reversed(one.seen)
        if whole is not None and seen.bytes == whole.bytes
    }
    return LiveTensor(
        operation,
        one.made.node,
        whole.shape if whole else None,
        str(whole.dtype).removeprefix("torch.") if whole else None,
        one.bytes - one.rounding,
        cause or cause_of(one),
        name,
        tuple(shape for extents, shape in sorted(views.items()) if extents != own),
    )


def extents_of(shape: Iterable[int]) -> tuple[int, ...]:
    """The extents of a shape in ascending order, without those of 1."""
    return tuple(sorted(extent for extent in shape if extent != 1))


def cause_of(one: Allocation) -> str:
    """Why these bytes are no array of the equations; "" where nothing says so."""
    stem = one.made.operation.removeprefix("aten::")
    if one.inside:
        return WORKSPACE
    if one.whole is not None and not is_arithmetic(one.whole.dtype):
        return "mask"
    if stem.removeprefix("new_").removesuffix("_like") in FILLING:
        return "filled"
    return COPY if only_moves(one.made.operation) else ""


def counted(rows: Iterable[LiveTensor]) -> tuple[LiveTensor, ...]:
    """Equal tensors once, with their number, in the order in which the first ones were made."""
    return tuple(replace(row, number=number) for row, number in Counter(rows).items())


def kept(
    forward: Callable[[], Any], device: str, owned: Sequence[Tensor], inputs: Named
) -> LiveTensors:
    """What a forward pass keeps for its backward pass: what autograd saves, without parameters and
    buffers (`owned`), and what else is alive after it and is not its result.

    Raises:
        ValueError: no tensor of the result requires a gradient, so that nothing would be kept.
    """
    require_graph(forward())  # a first call may fill caches
    with collecting_saved() as saved:
        run = watched(forward, device)
    alive, names = run.at_the_end(), {address_of(t): name for name, t in inputs.items()}
    apart = {address_of(tensor) for tensor in owned}
    rows: list[LiveTensor] = []
    listed = {address_of(t) for t in tree_leaves(run.result) if isinstance(t, Tensor)}
    for tensors in saved.storages().values():
        address = address_of(tensors[0])
        if address in apart or not address[1]:
            continue
        listed.add(address)
        rows.append(saved_tensor(alive.get(address), tensors, names.get(address, "")))
    rest = [one for address, one in alive.items() if address not in listed]
    rows += [described(one, cause="unseen") for one in rest if one.named]
    total = sum(row.bytes for row in rows) + sum(one.bytes for one in rest if not one.named)
    return LiveTensors(total, counted(rows))


def saved_tensor(made: Allocation | None, tensors: Sequence[Tensor], name: str) -> LiveTensor:
    """A storage that autograd saved, by some views of it; `made` is None where it was there before
    the call."""
    address, size = address_of(tensors[0]), tensors[0].untyped_storage().nbytes()
    views = {(t.storage_offset(), t.shape, t.stride()): seen_now(address, t) for t in tensors}
    found = made or Allocation(AllocatorEvent(0, address, size, THERE_BEFORE))
    found.seen.extend(views.values())
    row = described(found, name)
    part = "part" if sum(seen.bytes for seen in views.values()) < size else ""
    return replace(row, bytes=size, cause=row.cause or part)


def require_graph(result: Any) -> None:
    """ValueError where no backward pass can follow."""
    if not any(isinstance(t, Tensor) and t.requires_grad for t in tree_leaves(result)):
        raise ValueError(
            "expected a call whose result wants a gradient, got one without: leave out "
            "torch.no_grad, and let a parameter or an input require a gradient"
        )
