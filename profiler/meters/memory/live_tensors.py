"""The tensors that are alive at a call's peak, and the tensors that a forward pass keeps.

Each is listed with the operation that made it, its shape and its bytes, including tensors that
autograd's hooks do not report (attributes of a custom Function's context, caches of a module).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace
from torch import Tensor
from torch.utils._pytree import tree_leaves

from profiler.counting.call import is_arithmetic
from profiler.counting.rules import only_moves
from profiler.counting.saved_tensors import collecting_saved
from profiler.meters.memory.allocations import (
    Address,
    Allocation,
    AllocatorEvent,
    WatchedRun,
    address_of,
    seen_now,
    watched,
)
from profiler.meters.memory.listed import COPY, WORKSPACE, LiveTensor, LiveTensors, extents_of
from profiler.meters.memory.without_values import watched_without_values

FILLED = "arange empty empty_permuted empty_strided eye full ones scalar_tensor zeros"
FILLING = frozenset(FILLED.split())
"""Operations that make a constant or an empty tensor; variants `new_`, `_like` count as well."""

THERE_BEFORE = "there before the call"
"""Stands for the operation of a tensor that existed before the call."""


Named = Mapping[str, Tensor]
"""Role of a tensor after a call (`x.grad`, `result`) -> the tensor."""


def most_alive(
    call: Callable[[], Any], device: str, named: Callable[[Any], Named] = lambda _: {}
) -> LiveTensors:
    """List the tensors that a call has allocated and that are alive at the peak of its memory, with
    the total and other bytes (`LiveTensors`).

    Args:
        device: the type of the call's device; on "meta" the call runs without values.
        named: the call's result -> the tensors with a known role after the call.
    """
    run = watched_without_values(call) if device == "meta" else watched(call, device)
    most, alive, released = run.at_most()
    names = known_names(run, named(run.result))
    known = {address_of(t) for t in tree_leaves(run.result) if isinstance(t, Tensor)} | {*names}
    # bytes alive after the call at other places than the result and the named tensors
    left = sum(one.bytes for place, one in run.at_the_end().items() if place not in known)
    rows = [
        described(one, names.get(one.made.address, "") if one.released is None else "")
        for one in alive
        if one.named
    ]
    rounding = sum(one.rounding for one in alive)
    return LiveTensors(most, counted(rows), rounding, released=released, left=left)


def known_names(run: WatchedRun, named: Named) -> dict[Address, str]:
    """A dict: address -> role ("result", "x.grad"), for those of the tensors `named` (role ->
    tensor) that the call allocated and that are alive after it; each is added to the tensors seen
    in its allocation."""
    alive, names = run.at_the_end(), {}
    for name, tensor in named.items():
        address = address_of(tensor)
        if address in alive:
            names[address] = name
            alive[address].seen.append(seen_now(address, tensor))
    return names


def described(one: Allocation, name: str = "", cause: str = "") -> LiveTensor:
    """Describe an allocation as an entry of the list of live tensors, under the role `name`.
    `cause` says why its bytes are no array of the equations; by default it follows from the
    operation. `views` are other shapes seen of all its bytes, one for each set of extents."""
    whole, operation = one.whole, one.made.operation.removeprefix("aten::")
    own = extents_of(whole.shape) if whole else ()
    views = {  # reversed: of several shapes with the same extents, the first one seen is kept
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


def cause_of(one: Allocation) -> str:
    """The first of workspace, mask, filled, copy (`CAUSES`) that holds for the bytes, or ""."""
    stem = one.made.operation.removeprefix("aten::")
    if one.inside:
        return WORKSPACE
    if one.whole is not None and not is_arithmetic(one.whole.dtype):
        return "mask"
    if stem.removeprefix("new_").removesuffix("_like") in FILLING:
        return "filled"
    return COPY if only_moves(one.made.operation) else ""


def counted(rows: Iterable[LiveTensor]) -> tuple[LiveTensor, ...]:
    """Equal tensors, each of number 1, merged, with their number, in order of first occurrence."""
    return tuple(replace(row, number=number) for row, number in Counter(rows).items())


def kept(
    forward: Callable[[], Any], device: str, owned: Sequence[Tensor], inputs: Named
) -> LiveTensors:
    """List the tensors that a forward pass keeps for its backward pass: those that autograd saves,
    without parameters and buffers (`owned`), and others that are alive afterwards, without the
    result.

    Args:
        inputs: name -> tensor, for the names of kept inputs.

    Raises:
        ValueError: no tensor of the result requires a gradient, so nothing would be kept.
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
        if address in apart or not address[1]:  # address 0: a storage without bytes
            continue
        listed.add(address)
        rows.append(saved_tensor(alive.get(address), tensors, names.get(address, "")))
    rest = [one for address, one in alive.items() if address not in listed]
    rows += [described(one, cause="unseen") for one in rest if one.named]
    total = sum(row.bytes for row in rows) + sum(one.bytes for one in rest if not one.named)
    return LiveTensors(total, counted(rows))


def saved_tensor(made: Allocation | None, tensors: Sequence[Tensor], name: str) -> LiveTensor:
    """Describe a storage that autograd saved as an entry of the list, from the saved views of it
    (`tensors`), all its bytes; if the views have fewer, the cause "part" says so. `made` is the
    storage's allocation, None if the storage existed before the call; `name`, "" if unknown."""
    address, size = address_of(tensors[0]), tensors[0].untyped_storage().nbytes()
    views = {(t.storage_offset(), t.shape, t.stride()): seen_now(address, t) for t in tensors}
    found = made or Allocation(AllocatorEvent(0, address, size, THERE_BEFORE))
    found.seen.extend(views.values())
    row = described(found, name)
    part = "part" if sum(seen.bytes for seen in views.values()) < size else ""
    return replace(row, bytes=size, cause=row.cause or part)


def require_graph(result: Any) -> None:
    """Raise ValueError if no tensor of the result requires a gradient."""
    if not any(isinstance(t, Tensor) and t.requires_grad for t in tree_leaves(result)):
        raise ValueError(
            "expected a call whose result wants a gradient, got one without: leave out "
            "torch.no_grad, and let a parameter or an input require a gradient"
        )
