"""Sparse attention in PyTorch: the Sparse Transformer, Longformer and BigBird.

Child et al. 2019, Beltagy et al. 2020 and Zaheer et al. 2020, with the choices stated in
costmodel.mixers.sparse. The two patterns of the Sparse Transformer, strided and fixed, are scored
in blocks of B rows; Longformer and BigBird score every pair, and BigBird its random pairs
separately. Pairs outside of the pattern are masked. Shapes: heads (b, n, t, h) of t rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import Tensor

from costmodel.mixers.sparse import drawn
from profiler.mixers.pairs import HeldRows, InBlocks
from profiler.mixers.self_attention import PROJECTIONS, Heads
from profiler.modules.attention import EXPLICIT, dense_attention, products
from profiler.modules.base import Mixer, State, require_sizes
from profiler.modules.registry import implementation

KERNELS = PROJECTIONS | EXPLICIT.kernels


def in_blocks(rows: Tensor, first: int, last: int, size: int) -> Tensor:
    """The rows `first` to `last` - 1 of (b, n, t, h), as blocks (b, n, number, size, h)."""
    return rows[:, :, first:last].reshape(*rows.shape[:2], -1, size, rows.shape[-1])


@implementation(
    "strided-attention",
    "explicit",
    rewrites=EXPLICIT.rewrites,
    kernels=KERNELS,
    step_kernels=KERNELS,
)
class StridedAttention(InBlocks, Mixer):
    """A token attends to the last B rows, its own included, and before these to every row with the
    same place in its block."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
        """The attention outputs (b, n, t, h) of queries q, keys k and values v by the strided
        pattern, which is causal: the first block of B rows, the later complete blocks in one batch,
        then the short last block."""
        B, length = self.B, int(q.shape[2])
        whole = length - length % B
        first = (rows[:, :, :B] for rows in (q, k, v))
        found = [dense_attention(*first, by=self.K, causal=causal)]
        for start, end in ((B, whole), (max(B, whole), length)):
            if start < end:
                found.append(self.later(q, k, v, start, end))
        return torch.cat(found, dim=2)

    def later(self, q: Tensor, k: Tensor, v: Tensor, start: int, end: int) -> Tensor:
        """The attention outputs (b, n, end - start, h) of the rows from `start` to `end`, blocks of
        one size after the first block. A row is scored against its block and the block before (its
        window), and against the rows at its place in all complete blocks; pairs outside of the
        pattern are masked."""
        B, first, size = self.B, start // self.B, min(self.B, end - start)
        number, complete = (end - start) // size, int(q.shape[2]) // B

        def seen(rows: Tensor) -> tuple[Tensor, Tensor]:
            """Each block with the one before it, (b, n, number, size + B, h), and the rows at
            each place of all complete blocks, (b, n, size, complete, h)."""
            before = in_blocks(rows, start - B, start + (number - 1) * B, B)
            near = torch.cat([in_blocks(rows, start, end, size), before], dim=3)
            return near, in_blocks(rows, 0, complete * B, B)[..., :size, :].transpose(2, 3)

        (near, far), (near_values, far_values) = seen(k), seen(v)
        queries = in_blocks(q, start, end, size)
        strides = (queries.transpose(2, 3) @ far.transpose(-2, -1)).transpose(2, 3)
        scores = torch.cat([queries @ near.transpose(-2, -1), strides], dim=-1) / math.sqrt(self.K)
        every = torch.ones(size + number, B + complete, dtype=torch.bool, device=q.device)
        # masked: later rows, rows B or more before, and in strides the own and later blocks
        around = torch.cat([every[:size, :size].triu(1), every[:size, :B].tril()], dim=1)
        apart = every[:number, :complete].triu(first).unsqueeze(1)
        shape = (number, size, -1)
        outside = torch.cat([around.expand(shape), apart.expand(shape)], dim=-1)
        weights = torch.softmax(scores.masked_fill(outside, -math.inf), dim=-1)
        window, strides = weights[..., : size + B], weights[..., size + B :]
        others = (strides.transpose(2, 3) @ far_values).transpose(2, 3)
        return (window @ near_values + others).flatten(2, 3)

    def initial_state(self, batch: int, length: int | None = None) -> State:
        """An empty state with keys and values (b, n, length, h) of all tokens: every row is read
        again B rows later."""
        return State({name: self._rows(batch, length, self.n, self.K) for name in ("K", "V")})

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """The output y_t (b, d) of one token x_t (b, d): attend from q_t to the last B rows, its
        own included, and to the rows at its place in the blocks before: at position 9 with B = 4
        to rows 6 to 9, and 1 and 5."""
        q_t, k_t, v_t = self._project(x_t)
        place, first = state.position % self.B, max(0, state.position + 1 - self.B)
        state.append(K=k_t, V=v_t)
        held = (state.held("K"), state.held("V"))
        k, v = (torch.cat([r[:, :, place : first : self.B], r[:, :, first:]], dim=2) for r in held)
        row = dense_attention(q_t.unsqueeze(2), k, v, by=self.K, causal=False)
        return row.flatten(1) @ self.W_out


@dataclass
class Summaries(State):
    """A state that holds the last `kept` rows of every complete block of B rows, then the rows of
    the current block; `length` is the number of tokens for which there is room."""

    B: int = 1
    kept: int = 1
    length: int = 1

    @property
    def capacity(self) -> int:
        """Number of tokens for which there is room, at least the number of rows that are held."""
        return self.length

    def rows(self, name: str) -> int:
        """Number of rows that an array holds."""
        return self.position // self.B * self.kept + self.position % self.B

    def _write(self, array: Tensor, row: Tensor) -> None:
        """Write a row (b, n, h) after the held rows; if it completes a block, the block's last
        `kept` rows are moved to its front, and the next block overwrites the others."""
        at = self.position // self.B * self.kept
        array.select(-2, at + self.position % self.B).copy_(row)
        if self.kept < self.B and (self.position + 1) % self.B == 0:
            last = array.narrow(-2, at + self.B - self.kept, self.kept)
            array.narrow(-2, at, self.kept).copy_(last.clone())


@implementation(
    "fixed-attention", "explicit", rewrites=EXPLICIT.rewrites, kernels=KERNELS, step_kernels=KERNELS
)
class FixedAttention(InBlocks, HeldRows):
    """A token attends to its block up to itself, and to the last s rows of each block before."""

    def __init__(self, *, d: int, l: int, n: int, B: int, s: int) -> None:
        super().__init__(d=d, l=l, n=n, B=B)
        require_sizes(s=s)
        self.kept = min(s, B)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
        """The attention outputs (b, n, t, h) of queries q, keys k and values v by the fixed
        pattern, which is causal: the complete blocks of B rows in one batch, then the short last
        block. `far`, `values`: keys and values of the last `kept` rows of complete blocks."""
        length = int(q.shape[2])
        whole = length - length % self.B
        if not whole:
            return dense_attention(q, k, v, by=self.K, causal=causal)
        far, values = (
            in_blocks(rows, 0, whole, self.B)[..., -self.kept :, :].flatten(2, 3) for rows in (k, v)
        )
        found = [self.seen(q, k, v, far, values, 0, whole)]
        if whole < length:
            found.append(self.seen(q, k, v, far, values, whole, length))
        return torch.cat(found, dim=2)

    def seen(
        self, q: Tensor, k: Tensor, v: Tensor, far: Tensor, values: Tensor, start: int, end: int
    ) -> Tensor:
        """The attention outputs (b, n, end - start, h) of the rows from `start` to `end`, blocks of
        one size: scored against their block, and against the last rows of all complete blocks.
        Later rows, and the ends of the own and of later blocks, are masked.

        Args:
            far, values: keys and values (b, n, complete*kept, h) of the blocks' last rows.
        """
        size = min(self.B, end - start)
        number, complete = (end - start) // size, far.shape[2] // self.kept
        queries, keys, own = (in_blocks(rows, start, end, size) for rows in (q, k, v))
        ends = in_blocks(q[:, :, start:end] @ far.transpose(-2, -1), 0, end - start, size)
        scores = torch.cat([queries @ keys.transpose(-2, -1), ends], dim=-1) / math.sqrt(self.K)
        every = torch.ones(size + number, size + complete, dtype=torch.bool, device=q.device)
        later = every[:number, :complete].triu(start // self.B).repeat_interleave(self.kept, dim=1)
        around = every[:size, :size].triu(1).expand(number, -1, -1)
        outside = torch.cat([around, later.unsqueeze(1).expand(-1, size, -1)], dim=-1)
        weights = torch.softmax(scores.masked_fill(outside, -math.inf), dim=-1)
        others = weights[..., size:].flatten(2, 3) @ values
        return (weights[..., :size] @ own).flatten(2, 3) + others

    def initial_state(self, batch: int, length: int | None = None) -> State:
        """Make the state before the first token: zeros with room for the keys K and values V
        (batch, n, rows, h) of `length` tokens (default: l): the last s rows of each complete block
        of B rows, then the current block."""
        length = self.l if length is None else length
        require_sizes(batch=batch, length=length)
        rows = length // self.B * self.kept + min(self.B, length)
        arrays = {name: self.like.new_zeros(batch, self.n, rows, self.K) for name in ("K", "V")}
        return Summaries(arrays, B=self.B, kept=self.kept, length=length)


class Windowed(Heads):
    """Attention to a window of w rows around the token, with s global rows at the start, which
    attend to all rows and to which all rows attend."""

    def __init__(self, *, d: int, l: int, n: int, w: int, s: int) -> None:
        super().__init__(d=d, l=l, n=n)
        require_sizes(w=w, s=s)
        self.w, self.s = w, s

    def near(self, q: Tensor, k: Tensor) -> Tensor:
        """The scores (b, n, t - s, t) of the rows after the s global ones, before the division
        by sqrt(h): pairs outside of the window are masked, except with global rows."""
        length, side = int(k.shape[2]), self.w // 2
        apart = torch.ones(length, length, dtype=torch.bool, device=q.device)
        outside = (apart.triu(side + 1) | apart.tril(-side - 1))[self.s :, self.s :]
        outside = F.pad(outside, (min(self.s, length), 0))
        return products(q, k).masked_fill(outside, -math.inf)


@implementation(
    "longformer",
    "explicit",
    rewrites=EXPLICIT.rewrites,
    kernels=KERNELS | dict.fromkeys(("Q_g", "K_g", "V_g"), "contraction"),
)
class Longformer(Windowed):
    """Longformer: global rows attend by further projections W_Q_g, W_K_g and W_V_g (d, d)."""

    def __init__(self, *, d: int, l: int, n: int, w: int, s: int) -> None:
        super().__init__(d=d, l=l, n=n, w=w, s=s)
        self.W_Q_g, self.W_K_g, self.W_V_g = (self.weight(d, d) for _ in range(3))

    def mix(self, x: Tensor) -> Tensor:
        """The output y (b, t, d) of x (b, t, d): the first `self.s` rows, which are global, attend
        to all rows by projections W_*_g; the other rows, if any, to global and near ones by W_*."""
        first = (x[:, : self.s] @ self.W_Q_g, x @ self.W_K_g, x @ self.W_V_g)
        q, k, v = (self._split(rows, self.n).transpose(1, 2) for rows in first)
        found = [dense_attention(q, k, v, by=self.K, causal=False)]
        if x.shape[1] > self.s:
            rest = (self._queries(x[:, self.s :]), *self._keys_and_values(x))
            q, k, v = (rows.transpose(1, 2) for rows in rest)
            found.append(torch.softmax(self.near(q, k) / math.sqrt(self.K), dim=-1) @ v)
        return torch.cat(found, dim=2).transpose(1, 2).flatten(2) @ self.W_out


@implementation("bigbird", "explicit", rewrites=EXPLICIT.rewrites, kernels=KERNELS)
class BigBird(Windowed):
    """BigBird: a row after the global ones also attends to c random rows, by the table P (l, c)."""

    P: Tensor

    def __init__(self, *, d: int, l: int, n: int, w: int, s: int, c: int) -> None:
        super().__init__(d=d, l=l, n=n, w=w, s=s)
        require_sizes(c=c)
        self.c = c
        self.register_buffer("P", self.table(l, self.like.device), persistent=False)

    def table(self, length: int, device: torch.device) -> Tensor:
        """The c random rows of each of `length` rows, (length, c), counted from 0."""
        return torch.tensor(drawn(length, self.c, self.w, self.s), device=device) - 1

    def mix(self, x: Tensor) -> Tensor:
        """y (b, t, d) of x (b, t, d): Q, K, V (b, n, t, h), attention of all heads, then W_out."""
        return self._across(x, *self._project(x), causal=False)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
        """The attention outputs (b, n, t, h) of queries q, keys k and values v: the global rows to
        all (to earlier ones and themselves if `causal`), then the others by one softmax over the
        scores of all pairs and of their c random rows (`named`)."""
        length = int(k.shape[2])
        named = (self.P if length == self.l else self.table(length, q.device))[self.s :]
        first, rest = q[:, :, : self.s], q[:, :, self.s :]
        far = (rest.unsqueeze(-2) @ k[:, :, named].transpose(-2, -1)).squeeze(-2)
        scores = torch.cat([self.near(rest, k), far], dim=-1) / math.sqrt(self.K)
        weights = torch.softmax(scores, dim=-1)
        drawn_rows = (weights[..., length:].unsqueeze(-2) @ v[:, :, named]).squeeze(-2)
        found = dense_attention(first, k, v, by=self.K, causal=causal)
        return torch.cat([found, weights[..., :length] @ v + drawn_rows], dim=2)
