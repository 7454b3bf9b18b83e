"""How many comparisons, and how many levels of them, do the algorithms take that choose positions?

`expressions.SELECTIONS` names them. The figures are nominal, like those of a Fourier transform.
"""

from __future__ import annotations

from costmodel.expressions import Select
from costmodel.polynomial import Poly, call


def network(number: Poly) -> Poly:
    """The comparators of a bitonic network for R entries: P/2 in each column, P = 2^ceil(log2 R).

    Source: Batcher 1968, Sorting networks and their applications; Knuth, volume 3, section 5.3.4.
    """
    return call("pow2", call("ceil_log2", number)) * columns(number) / 2


def columns(number: Poly) -> Poly:
    """The columns of such a network, one after another: L (L + 1) / 2 with L = ceil(log2 R)."""
    stages = call("ceil_log2", number)
    return stages * (stages + 1) / 2


def levels(node: Select, number: Poly, kept: Poly) -> Poly:
    """The levels of comparisons until all positions are known, `kept` of `number` entries.

    A knockout takes ceil(log2 R); of several, each waits for the mask of the one before.
    """
    return columns(number) if node.kind == "sort" else call("ceil_log2", number) * kept
