"""The mean power of a board while a call is repeated, from the rates at which the call multiplies
and moves bytes."""

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
    "base": Constant("power of a busy board without work, as a share of its limit", 0.05, 0.6),
    "products": Constant("power at the dense peak of products, as a share of the limit", 0, 1.5),
    "products_power": Constant("exponent of the share of the dense peak", 0.3, 2),
    "bytes": Constant("power at the memory's bandwidth, as a share of the limit", 0, 1.5),
    "bytes_power": Constant("exponent of the share of the bandwidth", 0.3, 2),
}
SHORT = 1e-4
"""Calls that take less, in seconds, fit no constants: their published power is that of the calls
before them too (calls of one size range from 134 to 696 W)."""


def watts(c: Mapping[str, float], calls: Calls, on: Board, seconds: Floats) -> Floats:
    """The board's mean power in watts during each of N calls that take `seconds`, (N,), at most its
    limit: a base, plus a term for the rate of products and one for the rate of bytes, by the
    constants `c`.

    Raises:
        BoardError: the board has no figure that is needed.
    """
    products = (calls.arithmetic(on) / seconds) ** c["products_power"]
    moved = (calls.movement(on) / seconds) ** c["bytes_power"]
    share = c["base"] + c["products"] * products + c["bytes"] * moved
    return np.asarray(on["power_limit"] * np.minimum(1, share))
