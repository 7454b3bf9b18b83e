"""Which context, and how many sequences, fit beside a network's weights into a memory?"""

from __future__ import annotations

from costmodel.backwards.along import Along
from costmodel.networks.held import Holding
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Poly
from costmodel.symbolic.ranges.solve import NOTHING, Quantity
from costmodel.symbolic.sizes import LARGEST


def largest_context(held: Holding, most: int, batch: int) -> int:
    """The largest context, in tokens of a sequence, such that at this context and every shorter one
    the weights and the states of `batch` sequences take at most `most` bytes; 0 if no context fits.
    The answer is at most the model's own longest context, if the model has one. `held`: the bytes
    of the weights, and the bytes of one sequence's states as a formula in the context t.

    Raises:
        Unsupported: the formula in t cannot be solved for the contexts that fit.
    """
    room = Exact.of(Poly.of(most - held.weights))
    over = Quantity((held.each * batch - room,))
    line = Along("t", ("t",), {}, range(1, (held.longest or LARGEST) + 1))
    parts = line.solved([over, NOTHING], lambda context: over.at({"t": context}) > 0)
    beyond = min((part.first for part, exceeded in parts if exceeded), default=None)
    return line.values[-1] if beyond is None else beyond - 1


def largest_batch(held: Holding, most: int, context: int) -> int | None:
    """The largest number of sequences of this context (tokens) whose states, with the weights,
    take at most `most` bytes; 0 if the weights alone, or with one sequence, take more; None if a
    sequence holds nothing, so that any number fits."""
    room, each = most - held.weights, held.at(context)
    if room < 0:
        return 0
    return room // each if each else None
