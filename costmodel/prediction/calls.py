"""Calls of one kernel on a board, many at a time, and the limits that their work sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from costmodel.prediction.boards import Board
from costmodel.prediction.kernels import KERNELS, Work

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Calls:
    """N calls of a kernel.

    Args:
        kernel: a name of `KERNELS`.
        sizes: letter -> array (N,), the sizes of the kernel's mixer, and `b`, the batch.
        dtype: the type of the entries that move.
        state: the type of a state's entries, by default `dtype`.
    """

    kernel: str
    sizes: Mapping[str, Floats]
    dtype: str = "bf16"
    state: str = ""

    @cached_property
    def work(self) -> Work:
        """Operations and bytes of each call."""
        return KERNELS[self.kernel].work(self.dtype, self.sizes, self.state)

    def arithmetic(self, board: Board) -> Floats:
        """For each call, the seconds of its multiplications and additions at the dense peak of the
        board's matrix units, or of its vector units where no matrix unit takes the type.

        Raises:
            BoardError: the board has no such figure.
        """
        return self.work.products / board[board.product_unit(self.dtype)]

    def movement(self, board: Board) -> Floats:
        """For each call, the seconds in which its compulsory bytes (inputs, weights and outputs,
        each once) move at the bandwidth of the board's memory.

        Raises:
            BoardError: the board has no such figure.
        """
        return self.work.bytes / board["memory_bandwidth"]

    def roofline(self, board: Board) -> Floats:
        """The least seconds of each call: the longer of arithmetic and movement."""
        return np.maximum(self.arithmetic(board), self.movement(board))


@dataclass(frozen=True, kw_only=True)
class Counted(Calls):
    """Calls whose work is given, of a kernel that `KERNELS` lacks: their power follows from it."""

    counted: Work

    @cached_property
    def work(self) -> Work:
        """The work of each call."""
        return self.counted
