"""How long does an implementation take on a board, kernel after kernel?

A kernel of an implementation's description executes one equation, or all equations of a fused
kernel. On a board that was measured (`costmodel calibrate`), a kernel takes the longer of two
times: its operations at the board's rates, and the bytes that exceed the last cache at the memory's
bandwidth, and at least the board's `kernel_time`. Products of contractions run at the rate of
matrix products; torch applies other operations one by one, each like an elementwise multiply-add,
which counts as two operations. Torch often launches several kernels for one equation: each
operation that torch dispatches beyond these kernels takes `kernel_time` again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from costmodel.errors import BoardError, Unanswered
from costmodel.language.equations import Mixer
from costmodel.prediction.boards import Board
from costmodel.prediction.columns import NO_BOARD
from costmodel.program.conventions import FUSED_ATTENTION, PEERS
from costmodel.questions.counting.by_equation import count_equations
from costmodel.questions.question import BYTES, FORWARD
from costmodel.questions.subject import system_of
from costmodel.questions.traffic import moved_by
from profiler.modules.described import Described, classes_at, sum_classes

MATRIX = {
    key if isinstance(key, str) else key[0]
    for key, rule in PEERS["torch"].kernels.items()
    if rule.per_product is not None
}
"""The kernel classes whose multiplications and additions are those of matrix products: the classes
whose products FlopCounterMode counts, on some backend. A recurrent layer is one of these, as torch
executes the maps of rows and states in a recurrent layer as matrix products."""


def kernels(described: Described, equations: Mapping[str, object]) -> Iterator[tuple[str, ...]]:
    """Yield, for each kernel of a call, the names of the arrays that the kernel computes: all
    arrays of fused attention together, then each other array of `equations` (the arrays that the
    call computes, as keys) alone."""
    kinds = described.kernels.items()
    fused = tuple(a for a, kind in kinds if kind == FUSED_ATTENTION and a in equations)
    if fused:
        yield fused
    yield from ((array,) for array in equations if array not in fused)


def predicted_s(
    mixer: Mixer,
    described: Described,
    phase: str,
    sizes: Mapping[str, int],
    dtype: str,
    on: Board | None,
    launched: int = 0,
) -> float:
    """Predict the seconds of a call, as the sum of its kernels' times, one after the other.

    Args:
        described: the equations and kernel classes of the implementation in the phase.
        on: the board, best a measured one; datasheets state rates that no kernel reaches.
        launched: the number of operations that torch dispatches, without views.

    Raises:
        Unanswered: no board is given, the board lacks a figure, the phase has gradients, or the
            description names no kernel classes.
    """
    if on is None:
        raise Unanswered(NO_BOARD)
    if phase not in FORWARD:
        raise Unanswered("times of kernels are predicted for forward passes and new tokens alone")
    if not described.kernels:
        raise Unanswered("the description of the implementation names no kernels")
    system = system_of(mixer, described.form, described.rewrites, phase)
    counts = count_equations(system, phase, "strict")
    try:
        product, entry, exponential = on[f"matrix.{dtype}"], on[f"vector.{dtype}"], on["special"]
        held, bandwidth = on["l2_bytes"], on["memory_bandwidth"]
    except BoardError as reason:
        raise Unanswered(str(reason)) from None
    least = on["kernel_time"] if "kernel_time" in on.figures else 0.0
    executed = list(kernels(described, counts))
    total = max(launched - len(executed), 0) * least
    for arrays in executed:
        ops = sum_classes(classes_at(counts[array].at(**sizes)) for array in arrays)
        taken = ops.pop("exp", 0) / exponential
        if described.kernels.get(arrays[0]) in MATRIX:
            taken += (ops.pop("mul", 0) + ops.pop("add", 0)) / product
        taken += sum(ops.values()) / (entry / 2)
        moved = BYTES[dtype] * sum(moved_by(system, phase, arrays).at(**sizes).values())
        total += max(taken, (moved - held) / bandwidth, least)
    return total
