"""Linformer, efficient attention, Nystromformer and the Set Transformer in PyTorch.

Wang et al. 2020, Shen et al. 2018, Xiong et al. 2021 and Lee et al. 2019, with the choices stated
in costmodel.mixers.low_rank. Shapes: rows (b, s, d), heads (b, n, s, h); r is the rank.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from costmodel.mixers.low_rank import ROUNDS
from profiler.modules.base import Headed, require_sizes
from profiler.modules.registry import implementation

MAPS = dict.fromkeys(("Q", "K", "V", "R", "y"), "contraction")


class Mapped(Headed):
    """A mixer with heads and the linear maps W_Q, W_K, W_V and W_out (d, d)."""

    def declare(self) -> None:
        """Declare the linear maps W_Q, W_K, W_V and W_out, (d, d) each."""
        d = self.d
        self.W_Q: nn.Parameter = self.weight(d, d)
        self.W_K: nn.Parameter = self.weight(d, d)
        self.W_V: nn.Parameter = self.weight(d, d)
        self.W_out: nn.Parameter = self.weight(d, d)


@implementation(
    "linformer",
    "explicit",
    options=("headwise", "key-value"),
    rewrites=("safe-softmax",),
    kernels=MAPS | dict.fromkeys(("P_K", "P_V", "Z"), "contraction") | {"A": "softmax"},
)
class Linformer(Mapped):
    """Linformer, with one operation per equation.

    E and F, which project keys and values along the sequence, are (n, r, l), or (r, l) for all
    heads with the option `headwise`; with `key-value` E (r, l) serves both. A shorter sequence uses
    their first columns.
    """

    bounded = True

    def __init__(self, *, d: int, l: int, n: int, r: int, options: Sequence[str] = ()) -> None:
        self.shape = (r, l) if options else (n, r, l)
        self.both = "key-value" not in options
        super().__init__(d=d, l=l, n=n)

    def declare(self) -> None:
        """The linear maps, E, and F unless keys and values share E."""
        super().declare()
        self.E: nn.Parameter = self.weight(*self.shape)
        if self.both:
            self.F: nn.Parameter = self.weight(*self.shape)

    def mix(self, x: Tensor) -> Tensor:
        """The output y (b, s, d) of x (b, s, d): keys and values of s rows are projected to r rows,
        to which all queries attend."""
        k = self.projected(x @ self.W_K, self.E)
        v = self.projected(x @ self.W_V, self.F if self.both else self.E)
        scores = self.heads(x @ self.W_Q) @ k.transpose(-2, -1) / math.sqrt(self.h)
        read = torch.softmax(scores, dim=-1) @ v
        return read.transpose(1, 2).flatten(2) @ self.W_out

    def projected(self, rows: Tensor, weights: Tensor) -> Tensor:
        """Project rows (b, s, d) along the sequence to r rows in n heads, (b, n, r, h), in one
        product; weights (r, l), or (n, r, l) per head, of which the first s columns are used."""
        batch, length = rows.shape[:2]
        weights = weights[..., :length]
        if weights.dim() == 3:
            sums = weights @ self.split(rows).permute(2, 1, 0, 3).flatten(2)  # (n, r, b h)
            return sums.view(self.n, -1, batch, self.h).permute(2, 0, 1, 3)
        sums = weights @ rows.transpose(0, 1).flatten(1)  # (r, b d)
        return sums.view(-1, batch, self.n, self.h).permute(1, 2, 0, 3)


@implementation(
    "efficient-attention",
    "explicit",
    rewrites=("safe-softmax",),
    kernels=MAPS | {"G": "contraction", "S_q": "softmax", "S_k": "softmax"},
)
class EfficientAttention(Mapped):
    """Efficient attention, with one operation per equation."""

    def mix(self, x: Tensor) -> Tensor:
        """y (b, s, d) of x (b, s, d): softmax(Q) (softmax(K)^T V)."""
        q, k, v = (self.heads(x @ W) for W in (self.W_Q, self.W_K, self.W_V))
        context = torch.softmax(k, dim=-2).transpose(-2, -1) @ v
        read = torch.softmax(q, dim=-1) @ context
        return read.transpose(1, 2).flatten(2) @ self.W_out


@implementation(
    "nystromformer",
    "explicit",
    rewrites=("safe-softmax",),
    kernels=MAPS
    | dict.fromkeys(("Z_F", "Z_A", "Z_B", "P_V", "T"), "contraction")
    | dict.fromkeys(("X", "H", "S", "Z"), "contraction")
    | dict.fromkeys(("P_Q", "P_K", "N", "G"), "reduction")
    | {"F": "softmax", "A": "softmax", "B": "softmax", "U": "elementwise"},
)
class Nystromformer(Mapped):
    """Nystromformer, with one operation per equation; r divides the length."""

    unit: Tensor

    def __init__(self, *, d: int, l: int, n: int, r: int) -> None:
        """Declare the maps of n heads, with r mean queries and r mean keys each, and the constants
        of the iteration for an inverse."""
        require_sizes(r=r)
        super().__init__(d=d, l=l, n=n)
        self.r = r
        one = torch.eye(r).to(self.like)
        self.register_buffer("unit", torch.stack([7 * one, 15 * one, 13 * one]), persistent=False)

    def mix(self, x: Tensor) -> Tensor:
        """The output y (b, s, d) of x (b, s, d), by approximate attention (F A^-1)(B V). F (b, n,
        s, r) are the weights of all queries to mean keys (`near`), A (b, n, r, r) of mean queries
        to mean keys (`between`), and B (b, n, r, s) of mean queries to all keys (`far`). ValueError
        unless r divides s."""
        if x.shape[1] % self.r:
            raise ValueError(
                f"the sequence has {x.shape[1]} tokens: expected a multiple of r = {self.r}"
            )
        q, k, v = (self.heads(x @ W) for W in (self.W_Q, self.W_K, self.W_V))
        means_q, means_k = self.means(q), self.means(k)
        near, between, far = (
            torch.softmax(one @ two.transpose(-2, -1) / math.sqrt(self.h), dim=-1)
            for one, two in ((q, means_k), (means_q, means_k), (means_q, k))
        )
        read = near @ self.inverse(between) @ (far @ v)
        return read.transpose(1, 2).flatten(2) @ self.W_out

    def means(self, rows: Tensor) -> Tensor:
        """The means of r equal segments of rows (b, n, s, h): (b, n, r, h)."""
        segments = rows.view(*rows.shape[:2], self.r, -1, self.h)
        return segments.sum(-2) / segments.shape[-2]

    def inverse(self, A: Tensor) -> Tensor:
        """The approximate inverse of A (b, n, r, r), after `ROUNDS` rounds of the paper's
        iteration: Z becomes Z (13 - X (15 - X (7 - X))) / 4 with X = A Z."""
        Z = A.transpose(-2, -1) / A.sum(-2).max(-1).values[..., None, None]
        seven, fifteen, thirteen = self.unit
        for _ in range(ROUNDS):
            X = A @ Z
            Z = Z @ (thirteen - X @ (fifteen - X @ (seven - X))) / 4
        return Z


@implementation(
    "set-transformer",
    "explicit",
    rewrites=("safe-softmax",),
    kernels=MAPS
    | dict.fromkeys(("P_Q", "P_K", "P_V", "Z_H", "G", "H", "Z"), "contraction")
    | {"A_H": "softmax", "A": "softmax"},
)
class SetTransformer(Mapped):
    """Induced set attention: r learned rows, the inducing points I (r, d), attend to the tokens,
    and the tokens to the results."""

    def __init__(self, *, d: int, l: int, n: int, r: int) -> None:
        require_sizes(r=r)
        self.r = r
        super().__init__(d=d, l=l, n=n)

    def declare(self) -> None:
        """Declare the linear maps of both attentions, W and U (d, d), and the inducing points I (r,
        d), which attend to the tokens first."""
        super().declare()
        d = self.d
        self.U_Q: nn.Parameter = self.weight(d, d)
        self.U_K: nn.Parameter = self.weight(d, d)
        self.U_V: nn.Parameter = self.weight(d, d)
        self.U_out: nn.Parameter = self.weight(d, d)
        self.I: nn.Parameter = self.weight(self.r, d)

    def mix(self, x: Tensor) -> Tensor:
        """y (b, s, d) of x (b, s, d): the points attend to the tokens, which gives H (b, r, d); the
        tokens attend to H."""
        q = (self.I @ self.U_Q).expand(len(x), -1, -1)
        H = self.attend(q, x @ self.U_K, x @ self.U_V) @ self.U_out
        return self.attend(x @ self.W_Q, H @ self.W_K, H @ self.W_V) @ self.W_out

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of queries (b, s, d) to k and v (b, t, d): concatenated heads (b, s, d). Scores
        are over sqrt(d), as in the paper, not over sqrt(h)."""
        scores = self.heads(q) @ self.heads(k).transpose(-2, -1) / math.sqrt(self.d)
        read = torch.softmax(scores, dim=-1) @ self.heads(v)
        return read.transpose(1, 2).flatten(2)
