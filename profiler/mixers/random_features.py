"""How does attention by random features run in PyTorch: Performer?

Choromanski et al. 2020, with the choices that the equations' file states. A class combines the
features with one way to sum over all or earlier tokens.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from profiler.mixers.linear_attention import PROJECTIONS, ByFeatures, CausalByFeatures, InChunks
from profiler.modules.base import require_sizes
from profiler.modules.registry import implementation
from profiler.modules.running_sums import (
    AllRows,
    AllTokens,
    ChunkedSums,
    RowByRow,
    ScoredPairs,
    summing,
)

POSITIVE = PROJECTIONS | {
    f"{part}_{of}": kernel
    for of in "QK"
    for part, kernel in (("U", "contraction"), ("N", "reduction"))
}


class Positive(ByFeatures):
    """The features of FAVOR+; the frequencies w (m, h) are a buffer.

    W_Q, W_K, W_V and W_out are (d, d).
    """

    w: Tensor

    def __init__(
        self,
        *,
        d: int,
        l: int,
        n: int,
        m: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        require_sizes(m=m)
        self.m = m
        super().__init__(d=d, l=l, n=n, device=device, dtype=dtype)

    def declare(self) -> None:
        """The frequencies, drawn before all weights, and four maps."""
        self.untrained("w", self.m, self.h)
        super().declare()

    @property
    def features(self) -> int:
        """As many as there are frequencies."""
        return self.m

    @classmethod
    def kernels(cls) -> dict[str, str]:
        """Array -> kernel class, for the arrays around the sums."""
        return dict(POSITIVE)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The features of queries and keys, (..., n m) each, and the values, (..., d)."""
        return self.phi(x @ self.W_Q), self.phi(x @ self.W_K), x @ self.W_V

    def phi(self, rows: Tensor) -> Tensor:
        """Features (..., n m) of rows of all heads side by side (..., d)."""
        u = self.split(rows * math.pow(self.h, -0.25))
        norm = (u * u).sum(-1, keepdim=True) / 2
        return (torch.exp(u @ self.w.t() - norm) * (1 / math.sqrt(self.m))).flatten(-2)


@implementation("performer", "explicit", kernels={**POSITIVE, **AllTokens.computes})
class Performer(Positive):
    """Performer, one operation per equation."""

    sums = AllTokens()


class CausalPerformer(Positive, CausalByFeatures):
    """Performer, causal."""

    MIXER = "performer+causal"


@summing(RowByRow(weighted=True))
class CausalPerformerRecurrent(CausalPerformer):
    """Performer, one row after another."""


@summing(AllRows(weighted=True))
class CausalPerformerCumsum(CausalPerformer):
    """Performer, the sums of all rows at once."""


@summing(ScoredPairs(weighted=True))
class CausalPerformerParallel(CausalPerformer):
    """Performer over scored pairs."""


@implementation(
    "performer+causal",
    "chunked",
    form="chunked",
    kernels={**POSITIVE, **ChunkedSums.computes},
    step_kernels={**POSITIVE, **ChunkedSums.computes},
)
class CausalPerformerChunked(CausalPerformer, InChunks):
    """Performer, one chunk of C tokens after another."""

    def __init__(
        self,
        *,
        d: int,
        l: int,
        n: int,
        m: int,
        C: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(d=d, l=l, n=n, m=m, device=device, dtype=dtype)
        self.cut(C)
