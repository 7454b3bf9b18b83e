"""The tensors that a record lists: alive at a call's peak, or kept by a forward pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from profiler.records.schema import Record

WORKSPACE = "workspace"
COPY = "copy"
CAUSES: Mapping[str, str] = {
    WORKSPACE: "allocated and released within one operation",
    "mask": "booleans or integers: masks and positions, not arrays of the equations",
    "filled": "filled with constants, or left empty; later writes into it are not traced",
    COPY: "entries moved, nothing computed",
    "unseen": "alive after the forward pass, though autograd's hooks do not report it",
    "part": "autograd saved only a part of these bytes, but keeps the whole storage alive",
}
"""Cause -> its meaning: why the tensor may be no array of the equations."""


class LiveTensor(Record, frozen=True):
    """One tensor that is alive, or `number` equal ones.

    Args:
        operation: the operation that made it; `node` is the autograd node that ran the operation.
        shape, dtype: of the largest tensor that fits into the bytes; None if none was seen.
            `views` are the shapes of equally large tensors, one per multiset of extents.
        bytes: of one tensor, without the allocator's rounding.
        cause: one of `CAUSES`, or "".
        name: the tensor's role after the call (`x.grad`, `result`), or "".
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


class LiveTensors(Record, frozen=True):
    """The tensors alive at one moment. `total`: bytes by the allocator, above those before the
    call. `rounding`: bytes that the allocator added. `released`: bytes from before the call whose
    release the profiler recorded (on CUDA: all). `left`: bytes that outlive the call, without its
    result and the tensors of known role."""

    WRITTEN = ("tensors", "rounding", "released")  # the total is the value of the reading

    total: int
    tensors: tuple[LiveTensor, ...]
    rounding: int = 0
    released: int = 0
    left: int = 0

    @property
    def unnamed(self) -> int:
        """Bytes for which neither an operation nor a tensor is known."""
        named = sum(tensor.bytes * tensor.number for tensor in self.tensors)
        return self.total + self.released - self.rounding - named


def extents_of(shape: Iterable[int]) -> tuple[int, ...]:
    """The extents other than 1, in ascending order."""
    return tuple(sorted(extent for extent in shape if extent != 1))
