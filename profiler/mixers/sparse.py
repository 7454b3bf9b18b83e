"""How does sparse attention run in PyTorch?

Rows that attend to the same rows are taken together; what they attend to lies in a few slices of
the keys, which are copied side by side. No pair outside the pattern is computed, at any length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from profiler.mixers.self_attention import PROJECTIONS, Heads
from profiler.modules.attention import EXPLICIT, dense_attention
from profiler.modules.base import require_sizes
from profiler.modules.registry import implementation

KERNELS = PROJECTIONS | EXPLICIT.kernels


Group = tuple[slice, Sequence[slice]]
"""Rows, and the rows that each of them attends to; rows are counted from 0."""


class Patterned(Heads):
    """n heads of width h = d/n, whose rows attend to some of the others."""

    def groups(self, length: int) -> Iterator[Group]:
        """All rows, in their order."""
        raise NotImplementedError

    def mix(self, x: Tensor) -> Tensor:
        """Q, K, V (b, n, s, h), then heads, then y (b, s, d)."""
        return self._across(*self._project(x), causal=False)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
        """R (b, n, s, h), group by group."""
        groups = self.groups(int(k.shape[2]))
        found = [self.read(q[:, :, rows], k, v, seen) for rows, seen in groups]
        return torch.cat(found, dim=2)

    def read(self, q: Tensor, k: Tensor, v: Tensor, seen: Sequence[slice]) -> Tensor:
        """The rows of queries (b, n, s, h) over some of the keys and values."""
        keys, values = (torch.cat([each[:, :, s] for s in seen], dim=2) for each in (k, v))
        return dense_attention(q, keys, values, by=self.K, causal=False)


@implementation(
    "longformer",
    "explicit",
    rewrites=("safe-softmax",),
    kernels=KERNELS | dict.fromkeys(("Q_g", "K_g", "V_g"), "contraction"),
)
class Longformer(Patterned):
    """A window of w rows, and s rows that see all and are seen by all."""

    def __init__(
        self,
        *,
        d: int,
        l: int,
        n: int,
        w: int,
        s: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(d=d, l=l, n=n, device=device, dtype=dtype)
        require_sizes(w=w, s=s)
        self.w, self.s = w, s
        self.W_Q_g, self.W_K_g, self.W_V_g = (self.weight(d, d) for _ in range(3))

    def groups(self, length: int) -> Iterator[Group]:
        """The rows behind the global ones, each by itself; if there are none, an empty group."""
        side = self.w // 2
        if length <= self.s:
            yield slice(0), (slice(self.s),)
        for row in range(self.s, length):
            near = slice(max(self.s, row - side), row + side + 1)
            yield slice(row - self.s, row - self.s + 1), (slice(self.s), near)

    def mix(self, x: Tensor) -> Tensor:
        """The global rows by their own projections, then the others; y (b, s, d)."""
        first = (x[:, : self.s] @ self.W_Q_g, x @ self.W_K_g, x @ self.W_V_g)
        q, k, v = (self._split(rows).transpose(1, 2) for rows in first)
        found = [dense_attention(q, k, v, by=self.K, causal=False)]
        rest = (self._queries(x[:, self.s :]), *self._keys_and_values(x))
        q, k, v = (rows.transpose(1, 2) for rows in rest)
        found += [self.read(q[:, :, rows], k, v, seen) for rows, seen in self.groups(x.shape[1])]
        return torch.cat(found, dim=2).transpose(1, 2).flatten(2) @ self.W_out
