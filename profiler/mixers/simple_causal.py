"""How does SimpleTRON's attention run in PyTorch under a causal mask?

A class combines one of the mixers with one way to sum over earlier tokens.
"""

from __future__ import annotations

import math

from torch import Tensor

from profiler.mixers.simple import Simple
from profiler.modules.base import State
from profiler.modules.running_sums import AllRows, RowByRow, ScoredPairs, Summing, summing


class SimpleCausal(Simple, Summing):
    """Products of queries with the running sum of keys and values, times 1/sqrt(l).

    l is the length that the module is built for, whatever the length of a sequence.
    """

    def mix(self, x: Tensor) -> Tensor:
        """Q, K, V (b, n, s, h), what the queries read, then y (b, s, d)."""
        q, k, v = (self.heads(rows) for rows in self.project(x))
        reads, _ = self.sums.whole(q, k, v)
        return self.finish(x, reads.transpose(1, 2).flatten(2) * (1 / math.sqrt(self.l)))

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """The token's query reads the held sums with the token's own key and value included."""
        q, k, v = (self.split(row) for row in self.project(x_t))
        reads, _ = self.sums.latest(q, k, v, state)
        return self.finish(x_t, reads.flatten(1) * (1 / math.sqrt(self.l)))


class SimpleCausalAlone(SimpleCausal):
    """Simple: neither skip connection nor linear layer."""

    MIXER = "simple-causal"


class SimpleCausalRes(SimpleCausal):
    """Simple-Res: a skip connection, no linear layer."""

    MIXER = "simple-causal-res"
    RESIDUAL = True


class SimpleCausalResL(SimpleCausal):
    """Simple-ResL: a linear layer behind the heads, then a skip connection."""

    MIXER = "simple-causal-resl"
    RESIDUAL = True
    OUTPUT = True


@summing(RowByRow(weighted=False))
class SimpleCausalRecurrent(SimpleCausalAlone):
    """Simple, one row after another."""


@summing(AllRows(weighted=False))
class SimpleCausalCumsum(SimpleCausalAlone):
    """Simple, the sums of all rows at once."""


@summing(ScoredPairs(weighted=False))
class SimpleCausalParallel(SimpleCausalAlone):
    """Simple, over scored pairs."""


@summing(RowByRow(weighted=False))
class SimpleCausalResRecurrent(SimpleCausalRes):
    """Simple-Res, one row after another."""


@summing(AllRows(weighted=False))
class SimpleCausalResCumsum(SimpleCausalRes):
    """Simple-Res, the sums of all rows at once."""


@summing(ScoredPairs(weighted=False))
class SimpleCausalResParallel(SimpleCausalRes):
    """Simple-Res, over scored pairs."""


@summing(RowByRow(weighted=False))
class SimpleCausalResLRecurrent(SimpleCausalResL):
    """Simple-ResL, one row after another."""


@summing(AllRows(weighted=False))
class SimpleCausalResLCumsum(SimpleCausalResL):
    """Simple-ResL, the sums of all rows at once."""


@summing(ScoredPairs(weighted=False))
class SimpleCausalResLParallel(SimpleCausalResL):
    """Simple-ResL, over scored pairs."""
