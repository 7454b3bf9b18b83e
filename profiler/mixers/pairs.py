"""Attention restricted to w neighbouring positions, or to a block of rows, in PyTorch.

Restricted, Vaswani et al. 2017, section 4: a class combines a neighbourhood, centred or causal,
with a layout of the scores: all pairs, most of them masked, or a band of w scores per token.
Local: all complete blocks are scored in one batch, then the short last block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import Tensor

from profiler.mixers.self_attention import PROJECTIONS, Heads
from profiler.modules.attention import EXPLICIT, dense_attention
from profiler.modules.base import Mixer, State, require_sizes
from profiler.modules.registry import implementation
from profiler.modules.running_sums import ChunkState

Spread = Callable[[Tensor, Tensor, Tensor, int, int], Tensor]
"""A function of queries, keys and values (b, n, s, h) and the numbers of visible rows before
(`behind`) and after (`ahead`) each row. It returns the attention output (b, n, s, h)."""


def square(q: Tensor, k: Tensor, v: Tensor, behind: int, ahead: int) -> Tensor:
    """The attention outputs (b, n, s, h) of queries q, keys k and values v, each row attending to
    the `behind` rows before it, itself and the `ahead` rows after it: all pairs are scored, then
    those outside the neighbourhood are masked."""
    length = int(q.shape[2])
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    apart = torch.ones(length, length, dtype=torch.bool, device=q.device)
    outside = apart.triu(ahead + 1) | apart.tril(-behind - 1)
    return torch.softmax(scores.masked_fill(outside, -math.inf), dim=-1) @ v


def band(q: Tensor, k: Tensor, v: Tensor, behind: int, ahead: int) -> Tensor:
    """The attention outputs (b, n, s, h) of queries q, keys k and values v, each row attending to
    the w = behind + 1 + ahead rows around it, which alone are scored; zero rows beyond both ends of
    the sequence are scored, then masked."""
    length, width = int(q.shape[2]), behind + 1 + ahead
    keys, values = (F.pad(rows, (0, 0, behind, ahead)).unfold(2, width, 1) for rows in (k, v))
    scores = (q.unsqueeze(-2) @ keys).squeeze(-2) / math.sqrt(q.shape[-1])
    inside = torch.ones(length, dtype=torch.bool, device=q.device)
    outside = ~F.pad(inside, (behind, ahead)).unfold(0, width, 1)
    weights = torch.softmax(scores.masked_fill(outside, -math.inf), dim=-1)
    return (weights.unsqueeze(-2) @ values.transpose(-2, -1)).squeeze(-2)


@dataclass(frozen=True)
class ScoreLayout:
    """A layout of the scores, the name of implementations with this layout, and the form of the
    equations that has it."""

    name: str
    form: str
    spread: Spread


SQUARE = ScoreLayout("explicit", "direct", square)
BAND = ScoreLayout("banded", "banded", band)


class HeldRows(Heads, Mixer):
    """A token attends to all rows that the state holds, and to its own."""

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """The output y_t (b, d) of one token x_t (b, d): attend from q_t (scores over sqrt(K)) to
        the rows in the state and the token's own. Then the state takes the token's row."""
        q_t, k_t, v_t = self._project(x_t)
        k, v = (
            torch.cat([state.held(name), row.unsqueeze(2)], dim=2)
            for name, row in (("K", k_t), ("V", v_t))
        )
        state.append(K=k_t, V=v_t)
        row = dense_attention(q_t.unsqueeze(2), k, v, by=self.K, causal=False)
        return row.flatten(1) @ self.W_out


class Restricted(Heads):
    """Attention in n heads of width h = d/n to at most w positions, including the token's own."""

    MIXER: ClassVar[str]
    layout: ClassVar[ScoreLayout]

    def __init__(self, *, d: int, l: int, n: int, w: int) -> None:
        super().__init__(d=d, l=l, n=n)
        require_sizes(w=w)
        self.w = w

    @property
    def ahead(self) -> int:
        """The number of the w positions that follow the token."""
        raise NotImplementedError

    def mix(self, x: Tensor) -> Tensor:
        """y (b, s, d) of x (b, s, d): Q, K, V (b, n, s, h), attention of all heads, then W_out."""
        return self._across(x, *self._project(x), causal=False)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
        """R (b, n, s, h): attention of each row to its neighbourhood."""
        return self.layout.spread(q, k, v, self.w - 1 - self.ahead, self.ahead)


class CentredRestricted(Restricted):
    """The w positions lie around the token; with w even, one more lies after it than before."""

    MIXER = "restricted-attention"

    @property
    def ahead(self) -> int:
        """floor(w/2)."""
        return self.w // 2


class CausalRestricted(Restricted, HeldRows):
    """The w positions are the token's own and the w-1 before it."""

    MIXER = "restricted-attention-causal"

    @property
    def ahead(self) -> int:
        """0."""
        return 0

    def initial_state(self, batch: int, length: int | None = None) -> State:
        """An empty state with keys and values (b, n, w-1, h) of the last w-1 tokens, for any number
        of tokens."""
        require_sizes(batch=batch, length=self.l if length is None else length)
        shape = (batch, self.n, self.w - 1, self.K)
        return State({name: self.like.new_zeros(shape) for name in ("K", "V")}, sliding=True)


_Class = TypeVar("_Class", bound=type[Restricted])


def laid_out(layout: ScoreLayout) -> Callable[[_Class], _Class]:
    """Return a decorator that registers a class as an implementation of the mixer in its `MIXER`,
    with this `layout` of scores: all pairs, or a band of w scores per row."""

    def register(cls: _Class) -> _Class:
        """Set the class's layout, and register the class."""
        cls.layout = layout
        return implementation(
            cls.MIXER,
            layout.name,
            form=layout.form,
            rewrites=EXPLICIT.rewrites,
            kernels=PROJECTIONS | EXPLICIT.kernels,
            step_form="direct",
            step_kernels=PROJECTIONS | EXPLICIT.kernels,
        )(cls)

    return register


@laid_out(SQUARE)
class CentredRestrictedSquare(CentredRestricted):
    """Centred restricted attention with scores of all pairs."""


@laid_out(BAND)
class CentredRestrictedBand(CentredRestricted):
    """Centred restricted attention with a band of scores."""


@laid_out(SQUARE)
class CausalRestrictedSquare(CausalRestricted):
    """Causal restricted attention with scores of all pairs."""


@laid_out(BAND)
class CausalRestrictedBand(CausalRestricted):
    """Causal restricted attention with a band of scores."""


KERNELS = PROJECTIONS | EXPLICIT.kernels


class InBlocks(Heads):
    """Attention within blocks of B rows, the last of which may be short, in n heads."""

    causal: ClassVar[bool] = True

    def __init__(self, *, d: int, l: int, n: int, B: int, options: Sequence[str] = ()) -> None:
        super().__init__(d=d, l=l, n=n, options=options)
        require_sizes(B=B)
        self.B = B

    def mix(self, x: Tensor) -> Tensor:
        """y (b, s, d) of x (b, s, d): Q, K, V (b, n, s, h), attention of all heads, then W_out."""
        return self._across(x, *self._project(x), causal=self.causal)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
        """The attention outputs (b, n, s, h) of queries q, keys k and values v: attention within
        all complete blocks in one batch, then within the short last block, by scores over sqrt(K);
        to all rows of the block or, if `causal`, to earlier rows and the row itself."""
        batch, n, length, h = q.shape
        whole = length - length % self.B
        found = []
        for start, end, size in ((0, whole, self.B), (whole, length, length - whole)):
            if start < end:
                blocks = (each[:, :, start:end].reshape(batch, -1, size, h) for each in (q, k, v))
                rows = dense_attention(*blocks, by=self.K, causal=causal)
                found.append(rows.view(batch, n, -1, h))
        return torch.cat(found, dim=2)


@implementation("local-attention", "explicit", rewrites=("safe-softmax",), kernels=KERNELS)
class LocalAttention(InBlocks):
    """Local attention: a token attends to all tokens of its block."""

    causal = False


@implementation(
    "local-attention+causal",
    "explicit",
    rewrites=EXPLICIT.rewrites,
    kernels=KERNELS,
    step_kernels=KERNELS,
)
class CausalLocalAttention(InBlocks, Mixer):
    """Causal local attention: a token attends to its block, up to itself."""

    def initial_state(self, batch: int, length: int | None = None) -> State:
        """An empty state with keys and values (b, n, B, h) of the current block, for any number of
        tokens."""
        require_sizes(batch=batch, length=self.l if length is None else length)
        shape = (batch, self.n, self.B, self.K)
        return ChunkState({name: self.like.new_zeros(shape) for name in ("K", "V")}, sliding=True)

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """The output y_t (b, d) of one token x_t (b, d): attend from q_t to the rows of the token's
        block up to its own."""
        assert isinstance(state, ChunkState)
        q_t, k_t, v_t = self._project(x_t)
        state.append(K=k_t, V=v_t)
        k, v = state.chunk("K"), state.chunk("V")
        row = dense_attention(q_t.unsqueeze(2), k, v, by=self.K, causal=False)
        return row.flatten(1) @ self.W_out
