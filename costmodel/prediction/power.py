"""The mean power of a board while a call is repeated, from the rates at which the call multiplies
and moves bytes, and the share of the time in which the call runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from costmodel.prediction.boards import Board
from costmodel.prediction.calls import Calls
from costmodel.prediction.families import Constant

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

CONSTANTS: Mapping[str, Constant] = {
    "idle": Constant("power between two calls, as a share of the board's limit", 0.05, 0.6),
    "products": Constant("power at the dense peak of products, as a share of the limit", 0, 1.5),
    "products_power": Constant("exponent of the share of the dense peak", 0.1, 2),
    "bytes": Constant("power at the memory's bandwidth, as a share of the limit", 0, 1.5),
    "bytes_power": Constant("exponent of the share of the bandwidth", 0.1, 2),
    "gap": Constant("time between two calls while they are repeated, in microseconds", 0, 600),
}
SHORT = 1e-4
"""Calls that take less, in seconds, fit no constants: their published power is that of the calls
before them too (calls of one size range from 134 to 696 W)."""


def watts(c: Mapping[str, float], calls: Calls, on: Board, seconds: Floats) -> Floats:
    """The board's mean power while N calls that take `seconds` are repeated, (N,), at most its
    limit, by the constants `c`: idle, plus what the rates of products and bytes add for the share
    of the time in which a call runs.

    Raises:
        BoardError: the board has no figure that is needed.
    """
    products = (calls.arithmetic(on) / seconds) ** c["products_power"]
    moved = (calls.movement(on) / seconds) ** c["bytes_power"]
    running = seconds / (seconds + c["gap"] * 1e-6)
    share = c["idle"] + running * (c["products"] * products + c["bytes"] * moved)
    return np.asarray(on["power_limit"] * np.minimum(1, share))
