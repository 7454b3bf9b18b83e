"""How many scalar operations do pooling layers and their derivatives perform?

A window holds only entries of the input: torch's kernels cut a window at the edges, so that padding
is neither compared nor added. An average divides by the number that its options determine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from math import prod
from typing import Any

from profiler.counting.call import Call, Rule
from profiler.counting.indexed_rules import scatter_summed
from profiler.counting.operations import COMPARE, NOTHING, Operations


def per_axis(values: Any, axes: int) -> list[int]:
    """One number per axis; a single number stands for all axes."""
    listed = [int(v) for v in values] if isinstance(values, list | tuple) else [int(values)]
    return listed * axes if len(listed) == 1 else listed


@cache
def entries_along(
    extent: int, windows: int, kernel: int, stride: int, padding: int, dilation: int
) -> int:
    """The number of entries in all windows of one axis, positions outside of the input left out.

    >>> entries_along(10, 5, 3, 2, 0, 1)  # the last window begins at 8 and has two entries
    14
    >>> entries_along(4, 2, 3, 2, 1, 1)  # -1 to 1 and 1 to 3
    5
    """
    total = 0
    for tap in range(kernel):
        before = padding - tap * dilation  # window i has this tap at i * stride - before
        first, last = -(-before // stride), (extent - 1 + before) // stride
        total += max(0, min(last, windows - 1) - max(first, 0) + 1)
    return total


@cache
def covered_along(
    extent: int, windows: int, kernel: int, stride: int, padding: int, dilation: int
) -> int:
    """The number of positions of one axis that at least one window holds, without the padding.

    >>> covered_along(10, 3, 3, 4, 0, 1), covered_along(4, 2, 3, 2, 1, 1)  # the first skips 3 and 7
    (8, 4)
    """
    if stride > dilation * (kernel - 1):  # no position is in two windows
        return entries_along(extent, windows, kernel, stride, padding, dilation)
    if dilation == 1:
        return min(extent, (windows - 1) * stride + kernel - padding)
    begins = range(-padding, windows * stride - padding, stride)
    held = {begin + tap * dilation for begin in begins for tap in range(kernel)}
    return sum(0 <= position < extent for position in held)


def over_windows(
    call: Call, result: Sequence[int], axes: int, along: Callable[..., int] = entries_along
) -> int:
    """The number of entries in all windows, over every batch and channel; with `covered_along` for
    `along`, of positions that some window holds. `result` is a shape with an entry per window."""
    source = call.tensor("self").shape
    kernel = per_axis(call.arguments["kernel_size"], axes)
    given = zip(
        source[-axes:],
        result[-axes:],
        kernel,
        per_axis(call.arguments["stride"] or kernel, axes),
        per_axis(call.arguments["padding"], axes),
        per_axis(call.arguments.get("dilation", 1), axes),
        strict=True,
    )
    return prod(result[:-axes]) * prod(along(*axis) for axis in given)


def max_pool(call: Call, axes: int) -> Operations:
    """The largest entry of each window: one comparison less than the window has entries."""
    entries, outputs = over_windows(call, call.output.shape, axes), call.output.numel()
    return COMPARE * max(entries - outputs, 0)


def into_largest(call: Call, entries: int, covered: int) -> Operations:
    """The derivative of a maximum over windows: each gradient goes to the largest entry of its
    window. Where no entry is in two windows (`entries` of all windows = `covered` by any), each
    gradient is the first of its place and is stored; elsewhere the places depend on values, and
    each gradient is an addition."""
    return NOTHING if entries == covered else scatter_summed(call, "grad_output")


def max_pool_backward(call: Call, axes: int) -> Operations:
    """The derivative of `max_pool`, see `into_largest`."""
    shape = call.tensor("grad_output").shape
    return into_largest(
        call, *(over_windows(call, shape, axes, along) for along in (entries_along, covered_along))
    )


def average_pool(call: Call, axes: int) -> Operations:
    """The sum of a window and one division."""
    outputs = call.output.numel()
    entries = over_windows(call, call.output.shape, axes)
    return Operations(add=max(entries - outputs, 0), div=outputs)


def average_pool_backward(call: Call, axes: int) -> Operations:
    """Each gradient is divided once and summed into every entry of its window (the loop of torch's
    kernel): one addition less than terms for each entry that some window holds."""
    grad = call.tensor("grad_output")
    entries, covered = (
        over_windows(call, grad.shape, axes, along) for along in (entries_along, covered_along)
    )
    return Operations(add=entries - covered, div=grad.numel())


@cache
def adaptive_entries_along(extent: int, outputs: int) -> int:
    """Entries of all adaptive windows of one axis with n = `extent` and m = `outputs`: window i
    runs from floor(i*n/m) to ceil((i+1)*n/m), exclusive, as in torch's kernels."""
    return sum(-(-(i + 1) * extent // outputs) - i * extent // outputs for i in range(outputs))


def adaptive_entries(source: Sequence[int], result: Sequence[int], axes: int) -> int:
    """The number of entries in all adaptive windows, over every batch and channel, of an input and
    a result of these shapes."""
    along = zip(source[-axes:], result[-axes:], strict=True)
    windows = prod(adaptive_entries_along(n, m) for n, m in along)
    return prod(source[:-axes]) * windows


def adaptive_max_pool(call: Call, axes: int) -> Operations:
    """The largest entry of each window: one comparison less than the window has entries."""
    entries = adaptive_entries(call.tensor("self").shape, call.output.shape, axes)
    return COMPARE * (entries - call.output.numel())


def adaptive_max_pool_backward(call: Call, axes: int) -> Operations:
    """The derivative of `adaptive_max_pool`, see `into_largest`; the windows hold every entry."""
    grad, source = call.tensor("grad_output"), call.tensor("self")
    return into_largest(call, adaptive_entries(source.shape, grad.shape, axes), source.numel())


def adaptive_pool(call: Call, axes: int) -> Operations:
    """The sum of each window and one division."""
    outputs = call.output.numel()
    entries = adaptive_entries(call.tensor("self").shape, call.output.shape, axes)
    return Operations(add=entries - outputs, div=outputs)


def adaptive_pool_backward(call: Call, axes: int) -> Operations:
    """Each gradient is divided once and summed into every entry of its window; the windows hold
    every entry of the input, whose first gradient is only stored."""
    grad, source = call.tensor("grad_output"), call.tensor("self")
    entries = adaptive_entries(source.shape, grad.shape, axes)
    return Operations(add=max(entries - source.numel(), 0), div=grad.numel())


POOLING_RULES: Mapping[str, Rule] = {
    f"{before}{axes}d{after}": partial(rule, axes=axes)
    for axes in (2, 3)
    for before, after, rule in (
        ("max_pool", "_with_indices", max_pool),
        ("max_pool", "_with_indices_backward", max_pool_backward),
        ("adaptive_max_pool", "", adaptive_max_pool),
        ("adaptive_max_pool", "_backward", adaptive_max_pool_backward),
        ("avg_pool", "", average_pool),
        ("avg_pool", "_backward", average_pool_backward),
        ("_adaptive_avg_pool", "", adaptive_pool),
        ("_adaptive_avg_pool", "_backward", adaptive_pool_backward),
    )
}
