"""How many scalar operations does a Fourier transform perform, nominally?"""

from __future__ import annotations

from profiler.counting.call import Call, CountError
from profiler.counting.operations import NOTHING, Operations


def fft(call: Call, real: str | None) -> Operations:
    """The operations of a Fourier transform. Along one axis of length N a real transform takes N
    ceil(log2 N) multiplications and 3/2 as many adds, a complex one twice both: nominal, exact if N
    is a power of two. Over several axes the transforms run one after the other; the one along the
    last axis is real if a side is real, and the others are complex; over no axis there is no
    transform. `real` names the real side ("self", "output"); None if both are complex."""
    side = call.output if real == "output" else call.tensor("self")
    half = call.tensor("self") if real == "output" else call.output  # the complex side
    counts, axes = NOTHING, call.arguments["dim"]
    for axis in axes[-1:]:
        counts += transforms_along(call, side.shape[axis], side.numel(), 2 if real is None else 1)
    for axis in axes[:-1]:
        counts += transforms_along(call, half.shape[axis], half.numel(), 2)
    return counts


def transforms_along(call: Call, length: int, entries: int, factor: int) -> Operations:
    """The operations of `entries / length` Fourier transforms of one length; `factor` is 1 for a
    real transform, 2 for a complex one. CountError for an empty axis, and if the nominal number of
    adds is not whole."""
    if length < 1:
        raise CountError(f"{call.name}: a transform of length {length}: expected 1 or more")
    steps = entries * (length - 1).bit_length()
    if steps * factor % 2:
        raise CountError(
            f"{call.name}: no whole number of adds for the odd length {length}: use an even length"
        )
    return Operations(mul=steps * factor, add=steps * factor * 3 // 2)
