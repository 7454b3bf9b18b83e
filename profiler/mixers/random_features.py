"""Attention by random features in PyTorch: Performer, random feature attention, RKS and PRF.

Choromanski et al. 2020, Peng et al. 2021 and Chowdhury et al. 2021, with the choices stated in
costmodel.mixers.random_features. The features of a row u (h,) are functions of its products with
*frequencies* w (h,): exponentials (Performer, PRF), or sines and cosines (RFA, RKS). A class
combines features with an algorithm of `running_sums`; RKS and PRF combine a source of frequencies
with one of the two kinds of features. Shapes: n heads of width h; M = m, 2m or h frequencies each.
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
    """Features from m frequencies, made from random numbers w: a buffer that is not trained, drawn
    before all weights to be equal on every device. W_Q, W_K, W_V and W_out are (d, d)."""

    w: Tensor

    def __init__(self, *, d: int, l: int, n: int, m: int) -> None:
        require_sizes(m=m)
        self.m = m
        super().__init__(d=d, l=l, n=n)


class Positive(RandomFeatures):
    """The features of FAVOR+, exp(w . u - |u|^2 / 2) / sqrt(m) with u = row / h^(1/4), for the
    frequencies w (m, h) of all heads."""

    def declare(self) -> None:
        """The frequencies w (m, h), drawn before all weights, then the four linear maps."""
        self.untrained("w", self.m, self.h)
        super().declare()

    @property
    def features(self) -> int:
        """The number of features, m: one per frequency."""
        return self.m

    @classmethod
    def kernels(cls) -> dict[str, str]:
        """A dict: array -> kernel class, for the arrays outside of `sums`."""
        return dict(POSITIVE)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The features of queries and keys, (..., n m) each, and the values, (..., d)."""
        return self.phi(x @ self.W_Q), self.phi(x @ self.W_K), x @ self.W_V

    def phi(self, rows: Tensor) -> Tensor:
        """Features (..., n*m) of rows (..., d), the concatenated rows of all heads."""
        u = self.split(rows * math.pow(self.h, -0.25))
        norm = (u * u).sum(-1, keepdim=True) / 2
        return (torch.exp(u @ self.w.t() - norm) * (1 / math.sqrt(self.m))).flatten(-2)


@implementation("performer", "explicit", kernels={**POSITIVE, **AllTokens.computes})
class Performer(Positive):
    """Performer over all tokens, with one operation per equation."""

    sums = AllTokens()


class CausalPerformer(Positive, CausalByFeatures):
    """Causal Performer."""

    MIXER = "performer+causal"


@summing(RowByRow(weighted=True))
class CausalPerformerRecurrent(CausalPerformer):
    """Causal Performer by a recurrence over rows."""


@summing(AllRows(weighted=True))
class CausalPerformerCumsum(CausalPerformer):
    """Causal Performer by a running sum over all rows."""


@summing(ScoredPairs(weighted=True))
class CausalPerformerParallel(CausalPerformer):
    """Causal Performer by masked scores of all pairs."""


class FeaturesInChunks(RandomFeatures, InChunks):
    """Random features read in chunks of C tokens."""

    def __init__(self, *, d: int, l: int, n: int, m: int, C: int) -> None:
        super().__init__(d=d, l=l, n=n, m=m)
        self.cut(C)


@implementation(
    "performer+causal",
    "chunked",
    form="chunked",
    rewrites=ChunkedSums.rewrites,
    kernels={**POSITIVE, **ChunkedSums.computes},
    step_kernels={**POSITIVE, **ChunkedSums.computes},
)
class CausalPerformerChunked(CausalPerformer, FeaturesInChunks):
    """Causal Performer by a recurrence over chunks of C tokens."""


class Trained(ByFeatures):
    """Features from frequencies that depend on trained parameters; over all tokens unless a
    subclass sets `sums`."""

    sums: Sums = AllTokens()

    @abstractmethod
    def frequencies(self) -> Tensor:
        """The frequencies, which depend on parameters alone: computed once per forward pass."""

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The features of queries and keys, (b, s, n*m) for m features per head, and the values,
        (b, s, d)."""
        return self.projected(x, self.frequencies())

    def projected(self, x: Tensor, omega: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As `project`, with the frequencies `omega`."""
        rows = (self.rows(x @ W) for W in (self.W_Q, self.W_K))
        queries, keys = (self.kernel(u, self.products(u, omega)).flatten(-2) for u in rows)
        return queries, keys, x @ self.W_V

    def rows(self, projected: Tensor) -> Tensor:
        """The rows u (b, s, n, h) of queries or keys (b, s, d), divided by h^(1/4)."""
        return self.split(projected * math.pow(self.h, -0.25))

    def products(self, u: Tensor, omega: Tensor) -> Tensor:
        """The products (b, s, n, M) of rows (b, s, n, h) with frequencies (n, M, h)."""
        return along(u, omega)

    @abstractmethod
    def kernel(self, u: Tensor, products: Tensor) -> Tensor:
        """The features (b, s, n, M or 2M) of rows (b, s, n, h) with the products (b, s, n, M)."""


class Fourier(Trained):
    """The features sin(w . u) and cos(w . u), over sqrt(M)."""

    def kernel(self, u: Tensor, products: Tensor) -> Tensor:
        """The sines of all products, then their cosines: (b, s, n, 2M)."""
        both = torch.cat([torch.sin(products), torch.cos(products)], dim=-1)
        return both * (1 / math.sqrt(products.shape[-1]))


def along(u: Tensor, omega: Tensor) -> Tensor:
    """Products (b, s, n, M) of rows (b, s, n, h) with their head's frequencies (n, M, h)."""
    of_heads = u.flatten(0, 1).transpose(0, 1) @ omega.transpose(1, 2)  # (n, b s, M)
    return of_heads.transpose(0, 1).reshape(*u.shape[:-1], -1)


@implementation("rfa", "explicit", kernels={**FOURIER, **UNIT_ROWS, **AllTokens.computes})
class RFA(RandomFeatures, Fourier):
    """Random feature attention; the frequencies are w (n, m, h) times sigma (d,)."""

    def declare(self) -> None:
        """The random numbers w, drawn before all weights, the four linear maps, and sigma (d,)."""
        self.untrained("w", self.n, self.m, self.h)
        super().declare()
        self.sigma: nn.Parameter = self.weight(self.d)

    def frequencies(self) -> Tensor:
        """w times sigma, channel by channel: (n, m, h)."""
        return self.sigma.view(self.n, 1, self.h) * self.w

    def rows(self, projected: Tensor) -> Tensor:
        """The rows u (b, s, n, h) of queries or keys (b, s, d), divided by their lengths."""
        u = self.split(projected)
        return u / torch.sqrt((u * u).sum(-1, keepdim=True))


class CausalRFA(RFA, CausalByFeatures):
    """Causal random feature attention."""

    MIXER = "rfa+causal"
    sums: RunningSums

    @property
    def features(self) -> int:
        """The number of features, 2m: a sine and a cosine per frequency."""
        return 2 * self.m

    @classmethod
    def kernels(cls) -> dict[str, str]:
        """A dict: array -> kernel class, for the arrays outside of `sums`."""
        return FOURIER | UNIT_ROWS

    @torch.no_grad()
    def initial_state(self, batch: int, length: int | None = None) -> PreparedState:
        """The empty state, with room for the running sums of its algorithm; `prepared` holds the
        frequencies of the random features."""
        state = super().initial_state(batch, length)
        state.prepared = self.frequencies()
        return state

    def token(self, x_t: Tensor, state: State) -> tuple[Tensor, Tensor, Tensor]:
        """The features (b, n*2m) of one token's query and key, and its value (b, d)."""
        assert isinstance(state, PreparedState)
        q, k, v = self.projected(x_t.unsqueeze(1), state.prepared)
        return q.squeeze(1), k.squeeze(1), v.squeeze(1)


@summing(RowByRow(weighted=True))
class CausalRFARecurrent(CausalRFA):
    """Causal random feature attention by a recurrence over rows."""


@summing(AllRows(weighted=True))
class CausalRFACumsum(CausalRFA):
    """Causal random feature attention by a running sum over all rows."""


@summing(ScoredPairs(weighted=True))
class CausalRFAParallel(CausalRFA):
    """Causal random feature attention by masked scores of all pairs."""


@implementation(
    "rfa+causal",
    "chunked",
    form="chunked",
    rewrites=ChunkedSums.rewrites,
    kernels={**FOURIER, **UNIT_ROWS, **ChunkedSums.computes},
    step_kernels={**FOURIER, **UNIT_ROWS, **ChunkedSums.computes},
)
class CausalRFAChunked(CausalRFA, FeaturesInChunks):
    """Causal random feature attention by a recurrence over chunks of C tokens."""

    sums: ChunkedSums


@summing(RowByRow(weighted=True))
class GatedRFA(CausalRFA):
    """RFA with a gate g per token and head, sigmoid(x W_g + b_g) with W_g (d, n): the sums become
    g times the old sums plus (1 - g) times the token's terms."""

    MIXER = "rfa+gate"
    sums: RowByRow

    def declare(self) -> None:
        """W_g and b_g, after the parameters of RFA."""
        super().declare()
        self.W_g: nn.Parameter = self.weight(self.d, self.n)
        self.b_g: nn.Parameter = self.weight(self.n)

    @classmethod
    def kernels(cls) -> dict[str, str]:
        """A dict: array -> kernel class, for the arrays outside of `sums`, those of the gate
        included."""
        return super().kernels() | {"g": "contraction", "u": "elementwise", "G": "elementwise"}

    def read(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Read:
        """The reads (b, n, s, h) and the weights (b, n, s) of all queries from gated sums."""
        gate = torch.sigmoid(x @ self.W_g + self.b_g).transpose(1, 2)
        return self.sums.whole(q, (1 - gate).unsqueeze(-1) * k, v, gate)

    def latest(self, x_t: Tensor, q: Tensor, k: Tensor, v: Tensor, state: State) -> Read:
        """The read (b, n, h) and the weight (b, n) of one token's query from gated sums."""
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
    """The features exp(w . u - |u|^2), over sqrt(M)."""

    def kernel(self, u: Tensor, products: Tensor) -> Tensor:
        """A feature per product: (b, s, n, M)."""
        powers = torch.exp(products - (u * u).sum(-1, keepdim=True))
        return powers * (1 / math.sqrt(products.shape[-1]))


class Gaussians(RandomFeatures, Trained):
    """Frequencies that are normal numbers with the mean mu (n, h) of each head, made from the
    random numbers w (m, h)."""

    def declare(self) -> None:
        """w (m, h), drawn before all weights, then the four linear maps and mu (n, h)."""
        self.untrained("w", self.m, self.h)
        super().declare()
        self.mu: nn.Parameter = self.weight(self.n, self.h)


@implementation("gmm-rks", "explicit", kernels=RKS | {"G": "contraction", "Omega": "elementwise"})
class GaussianRKS(Gaussians, Fourier):
    """GMM-RKS: the frequencies w Sigma + mu and w Sigma - mu, with Sigma (n, h, h)."""

    def declare(self) -> None:
        """Sigma, after the other parameters."""
        super().declare()
        self.Sigma: nn.Parameter = self.weight(self.n, self.h, self.h)

    def frequencies(self) -> Tensor:
        """w Sigma + mu, then w Sigma - mu: (n, 2m, h)."""
        spread, mean = self.w.expand(self.n, -1, -1) @ self.Sigma, self.mu.unsqueeze(1)
        return torch.cat([spread + mean, spread - mean], dim=1)


@implementation("gmm-prf", "explicit", kernels=PRF | {"E": "elementwise", "Omega": "elementwise"})
class GaussianPRF(Gaussians, Exponential):
    """GMM-PRF: the frequencies exp(sigma / 2) w + mu, with sigma (n, h)."""

    def declare(self) -> None:
        """sigma, after the other parameters."""
        super().declare()
        self.sigma: nn.Parameter = self.weight(self.n, self.h)

    def frequencies(self) -> Tensor:
        """exp(sigma / 2) w + mu, channel by channel: (n, m, h)."""
        return torch.exp(self.sigma / 2).unsqueeze(1) * self.w + self.mu.unsqueeze(1)


class FastFood(Trained):
    """FastFood: products with h frequencies by diagonals D_B, D_G and D_S (h,), a Hadamard matrix
    H (h, h), and PH, which is H with its rows permuted at random. h is a power of two."""

    PH: Tensor
    H: Tensor

    def declare(self) -> None:
        """Declare the Hadamard matrix H of entries 1 and -1, its rows in random order PH (drawn
        before all weights), the linear maps, and the diagonals D_B, D_G and D_S (h,)."""
        h = self.h
        # entry (p, q) of a Hadamard matrix is -1 if p and q have an odd number of common bits
        ones = [[(p & q).bit_count() % 2 for q in range(h)] for p in range(h)]
        signs = 1 - 2 * self.like.new_tensor(ones)
        self.register_buffer("H", signs, persistent=False)
        self.register_buffer("PH", signs[torch.randperm(h).to(signs.device)])
        super().declare()
        self.D_B: nn.Parameter = self.weight(h)
        self.D_G: nn.Parameter = self.weight(h)
        self.D_S: nn.Parameter = self.weight(h)

    def frequencies(self) -> Tensor:
        """An empty tensor: `products` needs no matrix of frequencies."""
        return self.like

    def products(self, u: Tensor, omega: Tensor) -> Tensor:
        """D_S H D_G PH D_B u / sqrt(h), (b, s, n, h), for rows u (b, s, n, h)."""
        mixed = self.D_G * ((self.D_B * u) @ self.PH.t())
        return self.D_S * (mixed @ self.H.t()) * (1 / math.sqrt(self.h))


@implementation("fastfood-rks", "explicit", kernels=RKS | HADAMARD)
class FastFoodRKS(FastFood, Fourier):
    """FastFood-RKS: sines and cosines of h products."""


@implementation("fastfood-prf", "explicit", kernels=PRF | HADAMARD)
class FastFoodPRF(FastFood, Exponential):
    """FastFood-PRF: exponentials of h products."""


class Generated(RandomFeatures, Trained):
    """The m frequencies that all heads share, made from the random numbers w (m, h) by a network of
    three layers, of widths 2h, 4h and h."""

    def declare(self) -> None:
        """Declare the random numbers w (m, h), first to be equal on every device, the linear maps,
        and W and b of the network's layers, two with gain and bias of a batch normalisation."""
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
        """The frequencies Omega (m, h) of all heads, from the random numbers w (m, h): two layers
        with batch normalisation over the m rows and leaky relu, then tanh of a third."""
        held, rows = dict(self.named_parameters()), self.w
        for layer in (1, 2):
            rows = rows @ held[f"W_{layer}"] + held[f"b_{layer}"]
            centred = rows - rows.sum(0) / self.m
            scale = torch.sqrt((centred * centred).sum(0) / self.m + 1e-5)
            rows = centred / scale * held[f"gain_{layer}"] + held[f"bias_{layer}"]
            rows = torch.where(rows > 0, rows, rows * 0.01)
        return torch.tanh(rows @ held["W_3"] + held["b_3"])

    def products(self, u: Tensor, omega: Tensor) -> Tensor:
        """The products (b, s, n, m) of all heads' rows with the same frequencies."""
        return u @ omega.t()


@implementation("generative-rks", "explicit", kernels=RKS | GENERATOR)
class GeneratedRKS(Generated, Fourier):
    """Generative RKS: sines and cosines of m products."""


@implementation("generative-prf", "explicit", kernels=PRF | GENERATOR)
class GeneratedPRF(Generated, Exponential):
    """Generative PRF: exponentials of m products."""
