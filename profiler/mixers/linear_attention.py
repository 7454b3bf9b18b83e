"""How does linear attention run in PyTorch?

Katharopoulos et al. 2020, with the feature map elu(x) + 1. A class combines the mixer with one way
to sum over earlier tokens.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn

from profiler.modules.base import Headed, PreparedState, State, require_sizes
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
    """x + 1 above 0 and exp(x) elsewhere: both are computed, and exp(x) never overflows."""
    above = x > 0
    return torch.where(above, x + 1, torch.exp(x.masked_fill(above, 0)))


class ByFeatures(Headed):
    """Attention in n heads of width h = d/n whose weights are products of features.

    W_Q, W_K, W_V and W_out are (d, d).
    """

    sums: Sums

    def declare(self) -> None:
        """W_Q, W_K, W_V and W_out."""
        d = self.d
        self.W_Q: nn.Parameter = self.weight(d, d)
        self.W_K: nn.Parameter = self.weight(d, d)
        self.W_V: nn.Parameter = self.weight(d, d)
        self.W_out: nn.Parameter = self.weight(d, d)

    def mix(self, x: Tensor) -> Tensor:
        """Q and K (b, n, s, m), V (b, n, s, h), what the queries read, then y (b, s, d)."""
        q, k, v = (self.heads(rows) for rows in self.project(x))
        reads, weights = self.read(x, q, k, v)
        return (reads / weights.unsqueeze(-1)).transpose(1, 2).flatten(2) @ self.W_out

    def read(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Read:
        """What the queries read of all rows, and the weights."""
        return self.sums.whole(q, k, v)

    @abstractmethod
    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The features of queries and keys, (..., n m) each, and the values, (..., d)."""


class CausalByFeatures(ByFeatures, Summing):
    """Sums over earlier tokens; `l` only sets the room in a state, unless a length is given."""

    sums: RunningSums

    @classmethod
    def kernels(cls) -> dict[str, str]:
        """Array -> kernel class of the maps, all contractions."""
        return dict(PROJECTIONS)

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """The token's query reads the held sums with the token's own key and value included."""
        q, k, v = (self.split(row) for row in self.token(x_t, state))
        reads, weights = self.latest(x_t, q, k, v, state)
        return (reads / weights.unsqueeze(-1)).flatten(1) @ self.W_out

    def token(self, x_t: Tensor, state: State) -> tuple[Tensor, Tensor, Tensor]:
        """The features of one token's query and key, and its value."""
        return self.project(x_t)

    def latest(self, x_t: Tensor, q: Tensor, k: Tensor, v: Tensor, state: State) -> Read:
        """What one token's query reads, and the weights."""
        return self.sums.latest(q, k, v, state)


class InChunks(CausalByFeatures):
    """One chunk of tokens after another."""

    sums: ChunkedSums

    def cut(self, C: int) -> None:
        """Let a chunk have C tokens."""
        require_sizes(C=C)
        self.sums = ChunkedSums(C)

    def initial_state(self, batch: int, length: int | None = None) -> PreparedState:
        """The rows of one chunk and the sums of the chunks before; any length has room."""
        require_sizes(length=self.l if length is None else length)
        room = {"K": self.sums.C, "V": self.sums.C, "S": 1, "Z": 1}
        arrays = {
            name: self._rows(batch, room[name], self.n, width)
            for name, width in self.sums.widths(self.features, self.h).items()
        }
        return ChunkState(arrays, sliding=True)


class LinearAttention(CausalByFeatures):
    """The features of a query or key are as many as its channels."""

    MIXER = "linear-attention"

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The features of queries and keys, and the values, (..., d) each."""
        return elu_plus_1(x @ self.W_Q), elu_plus_1(x @ self.W_K), x @ self.W_V


@summing(RowByRow(weighted=True))
class LinearAttentionRecurrent(LinearAttention):
    """Linear attention, one row after another."""


@summing(AllRows(weighted=True))
class LinearAttentionCumsum(LinearAttention):
    """Linear attention, the sums of all rows at once."""


@summing(ScoredPairs(weighted=True))
class LinearAttentionParallel(LinearAttention):
    """Linear attention over scored pairs."""


@implementation(
    "linear-attention",
    "chunked",
    form="chunked",
    kernels={**PROJECTIONS, **ChunkedSums.computes},
    step_kernels={**PROJECTIONS, **ChunkedSums.computes},
)
class LinearAttentionChunked(InChunks, LinearAttention):
    """Linear attention, one chunk of C tokens after another."""

    def __init__(self, *, d: int, l: int, n: int, C: int) -> None:
        super().__init__(d=d, l=l, n=n)
        self.cut(C)
