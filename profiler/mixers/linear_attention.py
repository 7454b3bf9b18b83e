"""Linear attention in PyTorch.

Katharopoulos et al. 2020, with the feature map elu(x) + 1. A class combines the mixer with an
algorithm of `running_sums`, which defines the reads and weights of queries and their shapes.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from profiler.mixers.low_rank import Mapped
from profiler.modules.base import PreparedState, State, require_sizes
from profiler.modules.registry import implementation
from profiler.modules.running_sums import (
    AllRows,
    ChunkedSums,
    ChunkState,
    Read,
    RowByRow,
    RunningSums,
    ScoredPairs,
    Summing,
    Sums,
    summing,
)

PROJECTIONS = dict.fromkeys(("Q", "K", "V", "R", "y"), "contraction")


def elu_plus_1(x: Tensor) -> Tensor:
    """x + 1 if x > 0, else exp(x), entry by entry. Both are computed everywhere; exp gets 0 if
    x > 0, so that it cannot overflow."""
    above = x > 0
    return torch.where(above, x + 1, torch.exp(x.masked_fill(above, 0)))


class ByFeatures(Mapped):
    """Linear attention in n heads of width h = d/n, with W_Q, W_K, W_V and W_out (d, d).

    A subclass defines the features of queries and keys in `project`.
    """

    sums: Sums

    def mix(self, x: Tensor) -> Tensor:
        """y (b, s, d) of x (b, s, d): Q and K (b, n, s, m), V (b, n, s, h), reads over weights."""
        q, k, v = (self.heads(rows) for rows in self.project(x))
        reads, weights = self.read(x, q, k, v)
        return (reads / weights.unsqueeze(-1)).transpose(1, 2).flatten(2) @ self.W_out

    def read(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Read:
        """The reads (b, n, s, h) and weights (b, n, s) of all rows."""
        return self.sums.whole(q, k, v)

    @abstractmethod
    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The features of queries and keys, (..., n*m) each, and the values, (..., d)."""


class CausalByFeatures(ByFeatures, Summing):
    """Causal linear attention; `l` is only the default capacity of a state."""

    sums: RunningSums

    @classmethod
    def kernels(cls) -> dict[str, str]:
        """A dict: array -> kernel class, for the arrays outside of `sums`: all contractions."""
        return dict(PROJECTIONS)

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """y_t (b, d) of one token x_t (b, d): add the token's key and value to the state, then read
        it with the token's query."""
        q, k, v = (self.split(row) for row in self.token(x_t, state))
        reads, weights = self.latest(x_t, q, k, v, state)
        return (reads / weights.unsqueeze(-1)).flatten(1) @ self.W_out

    def token(self, x_t: Tensor, state: State) -> tuple[Tensor, Tensor, Tensor]:
        """The features (b, n*m) of one token's query and key, and its value (b, d)."""
        return self.project(x_t)

    def latest(self, x_t: Tensor, q: Tensor, k: Tensor, v: Tensor, state: State) -> Read:
        """The read (b, n, h) and weight (b, n) of one token."""
        return self.sums.latest(q, k, v, state)


class InChunks(CausalByFeatures):
    """Linear attention in chunks of C tokens; a subclass calls `cut` to set C."""

    sums: ChunkedSums

    def cut(self, C: int) -> None:
        """Set the chunk length C."""
        require_sizes(C=C)
        self.sums = ChunkedSums(C)

    def initial_state(self, batch: int, length: int | None = None) -> PreparedState:
        """Make the state before the first token: room for the keys K and values V of one chunk of C
        tokens, and for the sums S (of k v^T) and Z (of k) over earlier chunks; it serves any number
        of tokens. `length` is only checked."""
        require_sizes(length=self.l if length is None else length)
        room = {"K": self.sums.C, "V": self.sums.C, "S": 1, "Z": 1}
        arrays = {
            name: self._rows(batch, room[name], self.n, width)
            for name, width in self.sums.widths(self.features, self.h).items()
        }
        return ChunkState(arrays, sliding=True)


class LinearAttention(CausalByFeatures):
    """Linear attention with the feature map elu(x) + 1, so that m = h."""

    MIXER = "linear-attention"

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The features of queries and keys, and the values, (..., d) each."""
        return elu_plus_1(x @ self.W_Q), elu_plus_1(x @ self.W_K), x @ self.W_V


@summing(RowByRow(weighted=True))
class LinearAttentionRecurrent(LinearAttention):
    """Linear attention by a recurrence over rows."""


@summing(AllRows(weighted=True))
class LinearAttentionCumsum(LinearAttention):
    """Linear attention by a running sum over all rows."""


@summing(ScoredPairs(weighted=True))
class LinearAttentionParallel(LinearAttention):
    """Linear attention by masked scores of all pairs."""


@implementation(
    "linear-attention",
    "chunked",
    form="chunked",
    rewrites=ChunkedSums.rewrites,
    kernels={**PROJECTIONS, **ChunkedSums.computes},
    step_kernels={**PROJECTIONS, **ChunkedSums.computes},
)
class LinearAttentionChunked(InChunks, LinearAttention):
    """Linear attention by a recurrence over chunks of C tokens."""

    def __init__(self, *, d: int, l: int, n: int, C: int) -> None:
        super().__init__(d=d, l=l, n=n)
        self.cut(C)
