"""How does Fastformer's additive attention run in PyTorch?

Wu et al. 2021, with the choices that the equations' file states.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from profiler.modules.base import Headed
from profiler.modules.registry import implementation

CONTRACTIONS = ("Q", "K", "S_q", "q", "S_k", "k", "y")
KERNELS = (
    dict.fromkeys(CONTRACTIONS, "contraction")
    | dict.fromkeys(("A_q", "A_k"), "softmax")
    | dict.fromkeys(("P", "U"), "elementwise")
)


@implementation("fastformer", "explicit", rewrites=("safe-softmax",), kernels=KERNELS)
class Fastformer(Headed):
    """One operation per equation.

    W_Q, W_K, W_U are (d, d) and b_Q, b_K, b_U (d,); w_q and w_k are (d, n), b_q and b_k (n,).
    """

    def declare(self) -> None:
        """Three maps of the rows, and the scores of queries and of keys."""
        d, n = self.d, self.n
        self.W_Q: nn.Parameter = self.weight(d, d)
        self.W_K: nn.Parameter = self.weight(d, d)
        self.W_U: nn.Parameter = self.weight(d, d)
        self.b_Q: nn.Parameter = self.weight(d)
        self.b_K: nn.Parameter = self.weight(d)
        self.b_U: nn.Parameter = self.weight(d)
        self.w_q: nn.Parameter = self.weight(d, n)
        self.w_k: nn.Parameter = self.weight(d, n)
        self.b_q: nn.Parameter = self.weight(n)
        self.b_k: nn.Parameter = self.weight(n)

    def mix(self, x: Tensor) -> Tensor:
        """The global query, the global key, then y (b, s, d)."""
        q, k = x @ self.W_Q + self.b_Q, x @ self.W_K + self.b_K
        p = self._pool(q, self.w_q, self.b_q) * k
        u = self._pool(p, self.w_k, self.b_k) * q
        return u @ self.W_U + self.b_U + q

    def _pool(self, rows: Tensor, w: Tensor, b: Tensor) -> Tensor:
        """Rows (b, s, d) summed over s to (b, 1, d), weighted by each head's softmax."""
        scores = (rows @ w + b) / math.sqrt(self.h)
        weights = torch.softmax(scores, dim=1).transpose(1, 2).unsqueeze(2)  # (b, n, 1, s)
        return (weights @ self.heads(rows)).transpose(1, 2).flatten(2)
