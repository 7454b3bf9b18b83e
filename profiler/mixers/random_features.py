"""How does attention by random features run in PyTorch: Performer, random feature
attention, RKS and PRF?

Choromanski et al. 2020, Peng et al. 2021 and Chowdhury et al. 2021, with the choices that the
equations' file states. A class combines the features with one way to sum over all or earlier
tokens; of RKS and PRF, a source of frequencies with one of the two kernels.
"""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from torch import Tensor, nn

from profiler.mixers.linear_attention import PROJECTIONS, ByFeatures, CausalByFeatures, InChunks
from profiler.modules.base import PreparedState, State, require_sizes
from profiler.modules.registry import implementation
from profiler.modules.running_sums import (
    AllRows,
    AllTokens,
    ChunkedSums,
    Read,
    RowByRow,
    RunningSums,
    ScoredPairs,
    Sums,
    summing,
)

FOURIER = PROJECTIONS | dict.fromkeys(("U_Q", "U_K", "P_Q", "P_K"), "contraction")
FOURIER |= dict.fromkeys(("Q", "K"), "elementwise")
UNIT_ROWS = dict.fromkeys(("X_Q", "X_K"), "contraction") | {"Omega": "elementwise"}
UNIT_ROWS |= dict.fromkeys(("U_Q", "U_K"), "reduction")
POSITIVE = PROJECTIONS | {
    f"{part}_{of}": kernel
    for of in "QK"
    for part, kernel in (("U", "contraction"), ("N", "reduction"))
}


class RandomFeatures(ByFeatures):
    """Features by m frequencies, which are a buffer.

    W_Q, W_K, W_V and W_out are (d, d).
    """

    w: Tensor

    def __init__(self, *, d: int, l: int, n: int, m: int) -> None:
        require_sizes(m=m)
        self.m = m
        super().__init__(d=d, l=l, n=n)


class Positive(RandomFeatures):
    """The features of FAVOR+; w is (m, h)."""

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


class FeaturesInChunks(RandomFeatures, InChunks):
    """One chunk of C tokens after another."""

    def __init__(self, *, d: int, l: int, n: int, m: int, C: int) -> None:
        super().__init__(d=d, l=l, n=n, m=m)
        self.cut(C)


@implementation(
    "performer+causal",
    "chunked",
    form="chunked",
    kernels={**POSITIVE, **ChunkedSums.computes},
    step_kernels={**POSITIVE, **ChunkedSums.computes},
)
class CausalPerformerChunked(CausalPerformer, FeaturesInChunks):
    """Performer, one chunk of C tokens after another."""


class Trained(ByFeatures):
    """Features by frequencies that are trained, over all tokens."""

    sums: Sums = AllTokens()

    @abstractmethod
    def frequencies(self) -> Tensor:
        """What is computed of parameters alone, once a forward pass."""

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The features of queries and keys, (b, s, n M) each, and the values, (b, s, d)."""
        return self.projected(x, self.frequencies())

    def projected(self, x: Tensor, omega: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same, of these frequencies."""
        rows = (self.rows(x @ W) for W in (self.W_Q, self.W_K))
        queries, keys = (self.kernel(u, self.products(u, omega)).flatten(-2) for u in rows)
        return queries, keys, x @ self.W_V

    def rows(self, projected: Tensor) -> Tensor:
        """u (b, s, n, h) of queries or keys of all heads side by side."""
        return self.split(projected * math.pow(self.h, -0.25))

    def products(self, u: Tensor, omega: Tensor) -> Tensor:
        """Products of rows (b, s, n, h) with frequencies (n, M, h)."""
        return along(u, omega)

    @abstractmethod
    def kernel(self, u: Tensor, products: Tensor) -> Tensor:
        """Features of rows (b, s, n, h) and their products (b, s, n, M)."""


class Fourier(Trained):
    """Sines and cosines."""

    def kernel(self, u: Tensor, products: Tensor) -> Tensor:
        """Both of every product, (b, s, n, 2M)."""
        both = torch.cat([torch.sin(products), torch.cos(products)], dim=-1)
        return both * (1 / math.sqrt(products.shape[-1]))


def along(u: Tensor, omega: Tensor) -> Tensor:
    """Products (b, s, n, M) of rows (b, s, n, h) with their head's frequencies (n, M, h)."""
    of_heads = u.flatten(0, 1).transpose(0, 1) @ omega.transpose(1, 2)  # (n, b s, M)
    return of_heads.transpose(0, 1).reshape(*u.shape[:-1], -1)


@implementation("rfa", "explicit", kernels={**FOURIER, **UNIT_ROWS, **AllTokens.computes})
class RFA(RandomFeatures, Fourier):
    """Random feature attention; w is (n, m, h) and sigma (d,)."""

    def declare(self) -> None:
        """The frequencies, drawn before all weights, what they are multiplied by, four maps."""
        self.untrained("w", self.n, self.m, self.h)
        super().declare()
        self.sigma: nn.Parameter = self.weight(self.d)

    def frequencies(self) -> Tensor:
        """The drawn numbers times sigma."""
        return self.sigma.view(self.n, 1, self.h) * self.w

    def rows(self, projected: Tensor) -> Tensor:
        """Each head's rows over their lengths."""
        u = self.split(projected)
        return u / torch.sqrt((u * u).sum(-1, keepdim=True))


class CausalRFA(RFA, CausalByFeatures):
    """Random feature attention, causal."""

    MIXER = "rfa+causal"
    sums: RunningSums

    @property
    def features(self) -> int:
        """A sine and a cosine of each frequency."""
        return 2 * self.m

    @classmethod
    def kernels(cls) -> dict[str, str]:
        """Array -> kernel class, for the arrays around the sums."""
        return FOURIER | UNIT_ROWS

    @torch.no_grad()
    def initial_state(self, batch: int, length: int | None = None) -> PreparedState:
        """The state of the way to sum, beside it the frequencies."""
        state = super().initial_state(batch, length)
        state.prepared = self.frequencies()
        return state

    def token(self, x_t: Tensor, state: State) -> tuple[Tensor, Tensor, Tensor]:
        """The features of one token's query and key, and its value."""
        assert isinstance(state, PreparedState)
        q, k, v = self.projected(x_t.unsqueeze(1), state.prepared)
        return q.squeeze(1), k.squeeze(1), v.squeeze(1)


@summing(RowByRow(weighted=True))
class CausalRFARecurrent(CausalRFA):
    """Random feature attention, one row after another."""


@summing(AllRows(weighted=True))
class CausalRFACumsum(CausalRFA):
    """Random feature attention, the sums of all rows at once."""


@summing(ScoredPairs(weighted=True))
class CausalRFAParallel(CausalRFA):
    """Random feature attention over scored pairs."""


@implementation(
    "rfa+causal",
    "chunked",
    form="chunked",
    kernels={**FOURIER, **UNIT_ROWS, **ChunkedSums.computes},
    step_kernels={**FOURIER, **UNIT_ROWS, **ChunkedSums.computes},
)
class CausalRFAChunked(CausalRFA, FeaturesInChunks):
    """Random feature attention, one chunk of C tokens after another."""

    sums: ChunkedSums


@summing(RowByRow(weighted=True))
class GatedRFA(CausalRFA):
    """A token says which part of the sums is kept, and adds as much as is not; W_g is (d, n)."""

    MIXER = "rfa+gate"
    sums: RowByRow

    def declare(self) -> None:
        """The gate's map and bias besides."""
        super().declare()
        self.W_g: nn.Parameter = self.weight(self.d, self.n)
        self.b_g: nn.Parameter = self.weight(self.n)

    @classmethod
    def kernels(cls) -> dict[str, str]:
        """Those of the gate besides."""
        return super().kernels() | {"g": "contraction", "u": "elementwise", "G": "elementwise"}

    def read(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Read:
        """What the queries read of gated sums, and the weights."""
        gate = torch.sigmoid(x @ self.W_g + self.b_g).transpose(1, 2)
        return self.sums.whole(q, (1 - gate).unsqueeze(-1) * k, v, gate)

    def latest(self, x_t: Tensor, q: Tensor, k: Tensor, v: Tensor, state: State) -> Read:
        """What one token's query reads of gated sums, and the weights."""
        gate = torch.sigmoid(x_t @ self.W_g + self.b_g)
        return self.sums.latest(q, (1 - gate).unsqueeze(-1) * k, v, state, gate)


RKS = {**FOURIER, **AllTokens.computes}
PRF = {**POSITIVE, **AllTokens.computes}

HADAMARD = {
    f"{part}_{of}": kernel
    for of in "QK"
    for part, kernel in (("X", "elementwise"), ("Y", "contraction"))
}
GENERATOR = dict.fromkeys(("X_1", "X_2", "Omega"), "contraction")
GENERATOR |= dict.fromkeys(("Y_1", "Y_2"), "reduction")
GENERATOR |= dict.fromkeys(("Z_1", "Z_2"), "elementwise")


class Exponential(Trained):
    """exp(w . u - |u|^2)."""

    def kernel(self, u: Tensor, products: Tensor) -> Tensor:
        """As many features as products."""
        powers = torch.exp(products - (u * u).sum(-1, keepdim=True))
        return powers * (1 / math.sqrt(products.shape[-1]))


class Gaussians(RandomFeatures, Trained):
    """Frequencies of the head's own mean (n, h); w is (m, h)."""

    def declare(self) -> None:
        """The drawn numbers, before all weights, then four maps and means."""
        self.untrained("w", self.m, self.h)
        super().declare()
        self.mu: nn.Parameter = self.weight(self.n, self.h)


@implementation("gmm-rks", "explicit", kernels=RKS | {"G": "contraction", "Omega": "elementwise"})
class GaussianRKS(Gaussians, Fourier):
    """Sigma is (n, h, h)."""

    def declare(self) -> None:
        """The matrices besides."""
        super().declare()
        self.Sigma: nn.Parameter = self.weight(self.n, self.h, self.h)

    def frequencies(self) -> Tensor:
        """Both signs of the mean, (n, 2m, h)."""
        spread, mean = self.w.expand(self.n, -1, -1) @ self.Sigma, self.mu.unsqueeze(1)
        return torch.cat([spread + mean, spread - mean], dim=1)


@implementation("gmm-prf", "explicit", kernels=PRF | {"E": "elementwise", "Omega": "elementwise"})
class GaussianPRF(Gaussians, Exponential):
    """sigma is (n, h)."""

    def declare(self) -> None:
        """The deviations besides."""
        super().declare()
        self.sigma: nn.Parameter = self.weight(self.n, self.h)

    def frequencies(self) -> Tensor:
        """The drawn numbers scaled and moved, (n, m, h)."""
        return torch.exp(self.sigma / 2).unsqueeze(1) * self.w + self.mu.unsqueeze(1)


class FastFood(Trained):
    """Diagonals D_B, D_G and D_S (h,); H (h, h) is a Hadamard matrix, PH its rows permuted."""

    PH: Tensor
    H: Tensor

    def declare(self) -> None:
        """The permutation, before all weights, four maps and three diagonals."""
        h = self.h
        ones = [[(p & q).bit_count() % 2 for q in range(h)] for p in range(h)]
        signs = 1 - 2 * self.like.new_tensor(ones)
        self.register_buffer("H", signs, persistent=False)
        self.register_buffer("PH", signs[torch.randperm(h).to(signs.device)])
        super().declare()
        self.D_B: nn.Parameter = self.weight(h)
        self.D_G: nn.Parameter = self.weight(h)
        self.D_S: nn.Parameter = self.weight(h)

    def frequencies(self) -> Tensor:
        """There is nothing to compute."""
        return self.like

    def products(self, u: Tensor, omega: Tensor) -> Tensor:
        """S H G P H B u over the root of h, (b, s, n, h)."""
        mixed = self.D_G * ((self.D_B * u) @ self.PH.t())
        return self.D_S * (mixed @ self.H.t()) * (1 / math.sqrt(self.h))


@implementation("fastfood-rks", "explicit", kernels=RKS | HADAMARD)
class FastFoodRKS(FastFood, Fourier):
    """Sines and cosines of h products."""


@implementation("fastfood-prf", "explicit", kernels=PRF | HADAMARD)
class FastFoodPRF(FastFood, Exponential):
    """Exponentials of h products."""


class Generated(RandomFeatures, Trained):
    """A network of three layers makes the frequencies of all heads; w is (m, h)."""

    def declare(self) -> None:
        """The drawn numbers, before all weights, four maps and the network's layers."""
        h = self.h
        self.untrained("w", self.m, h)
        super().declare()
        for layer, into, out in ((1, h, 2 * h), (2, 2 * h, 4 * h), (3, 4 * h, h)):
            self.register_parameter(f"W_{layer}", self.weight(into, out))
            self.register_parameter(f"b_{layer}", self.weight(out))
            if layer < 3:
                self.register_parameter(f"gain_{layer}", self.weight(out))
                self.register_parameter(f"bias_{layer}", self.weight(out))

    def frequencies(self) -> Tensor:
        """Omega (m, h)."""
        held, rows = dict(self.named_parameters()), self.w
        for layer in (1, 2):
            rows = rows @ held[f"W_{layer}"] + held[f"b_{layer}"]
            centred = rows - rows.sum(0) / self.m
            scale = torch.sqrt((centred * centred).sum(0) / self.m + 1e-5)
            rows = centred / scale * held[f"gain_{layer}"] + held[f"bias_{layer}"]
            rows = torch.where(rows > 0, rows, rows * 0.01)
        return torch.tanh(rows @ held["W_3"] + held["b_3"])

    def products(self, u: Tensor, omega: Tensor) -> Tensor:
        """One product for all heads, (b, s, n, m)."""
        return u @ omega.t()


@implementation("generative-rks", "explicit", kernels=RKS | GENERATOR)
class GeneratedRKS(Generated, Fourier):
    """Sines and cosines of m products."""


@implementation("generative-prf", "explicit", kernels=PRF | GENERATOR)
class GeneratedPRF(Generated, Exponential):
    """Exponentials of m products."""
