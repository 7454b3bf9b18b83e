"""How does attention over a set of pairs run in PyTorch: restricted to w positions, or to a block?

Restricted, Vaswani et al. 2017, section 4: a class combines one neighbourhood, centred or causal,
with one layout of the scores: all pairs, most of them masked, or a band of w scores per token.
Local: all complete blocks of rows are scored together, then the short one behind them.
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
"""From queries, keys and values (b, n, s, h) and the numbers of visible rows before and after each
row: the heads' rows (b, n, s, h)."""


def square(q: Tensor, k: Tensor, v: Tensor, behind: int, ahead: int) -> Tensor:
    """Every pair is scored, then the pairs outside the neighbourhood are masked."""
    length = int(q.shape[2])
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    apart = torch.ones(length, length, dtype=torch.bool, device=q.device)
    outside = apart.triu(ahead + 1) | apart.tril(-behind - 1)
    return torch.softmax(scores.masked_fill(outside, -math.inf), dim=-1) @ v


def band(q: Tensor, k: Tensor, v: Tensor, behind: int, ahead: int) -> Tensor:
    """Every row is scored against the w rows around it; rows of zeros beyond both ends are scored,
    then masked."""
    length, width = int(q.shape[2]), behind + 1 + ahead
    keys, values = (F.pad(rows, (0, 0, behind, ahead)).unfold(2, width, 1) for rows in (k, v))
    scores = (q.unsqueeze(-2) @ keys).squeeze(-2) / math.sqrt(q.shape[-1])
    inside = torch.ones(length, dtype=torch.bool, device=q.device)
    outside = ~F.pad(inside, (behind, ahead)).unfold(0, width, 1)
    weights = torch.softmax(scores.masked_fill(outside, -math.inf), dim=-1)
    return (weights.unsqueeze(-2) @ values.transpose(-2, -1)).squeeze(-2)


@dataclass(frozen=True)
class ScoreLayout:
    """A layout of the scores, and the form of the equations with this layout."""

    name: str
    form: str
    spread: Spread


SQUARE = ScoreLayout("explicit", "direct", square)
BAND = ScoreLayout("banded", "banded", band)


class Restricted(Heads):
    """n heads of width h = d/n; a token attends to at most w positions, its own included."""

    MIXER: ClassVar[str]
    layout: ClassVar[ScoreLayout]

    def __init__(self, *, d: int, l: int, n: int, w: int) -> None:
        super().__init__(d=d, l=l, n=n)
        require_sizes(w=w)
        self.w = w

    @property
    def ahead(self) -> int:
        """How many of the w positions follow the token."""
        raise NotImplementedError

    def mix(self, x: Tensor) -> Tensor:
        """Q, K, V (b, n, s, h), then heads, then y (b, s, d)."""
        return self._across(*self._project(x), causal=False)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
        """R (b, n, s, h) of whole sequences, each row over its neighbourhood."""
        return self.layout.spread(q, k, v, self.w - 1 - self.ahead, self.ahead)


class CentredRestricted(Restricted):
    """The w positions lie around the token; of an even number, one more lies after it than
    before."""

    MIXER = "restricted-attention"

    @property
    def ahead(self) -> int:
        """floor(w/2)."""
        return self.w // 2


class CausalRestricted(Restricted, Mixer):
    """The w positions are the last ones."""

    MIXER = "restricted-attention-causal"

    @property
    def ahead(self) -> int:
        """0."""
        return 0

    def initial_state(self, batch: int, length: int | None = None) -> State:
        """Keys and values (b, n, w-1, h) of the last w-1 tokens, for any number of tokens."""
        require_sizes(batch=batch, length=self.l if length is None else length)
        shape = (batch, self.n, self.w - 1, self.K)
        return State({name: self.like.new_zeros(shape) for name in ("K", "V")}, sliding=True)

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """Attend from q_t to the held rows and the token's own; the oldest row is then dropped."""
        q_t, k_t, v_t = self._project(x_t)
        k, v = (
            torch.cat([state.held(name), row.unsqueeze(2)], dim=2)
            for name, row in (("K", k_t), ("V", v_t))
        )
        state.append(K=k_t, V=v_t)
        row = dense_attention(q_t.unsqueeze(2), k, v, by=self.K, causal=False)
        return row.flatten(1) @ self.W_out


_Class = TypeVar("_Class", bound=type[Restricted])


def laid_out(layout: ScoreLayout) -> Callable[[_Class], _Class]:
    """Give the decorated class its layout, and register it as an implementation."""

    def register(mixer: _Class) -> _Class:
        mixer.layout = layout
        return implementation(
            mixer.MIXER,
            layout.name,
            form=layout.form,
            rewrites=EXPLICIT.rewrites,
            kernels=PROJECTIONS | EXPLICIT.kernels,
            step_form="direct",
            step_kernels=PROJECTIONS | EXPLICIT.kernels,
        )(mixer)

    return register


@laid_out(SQUARE)
class CentredRestrictedSquare(CentredRestricted):
    """Scores of all pairs."""


@laid_out(BAND)
class CentredRestrictedBand(CentredRestricted):
    """A band of scores."""


@laid_out(SQUARE)
class CausalRestrictedSquare(CausalRestricted):
    """Scores of all pairs."""


@laid_out(BAND)
class CausalRestrictedBand(CausalRestricted):
    """A band of scores."""


KERNELS = PROJECTIONS | EXPLICIT.kernels


class InBlocks(Heads):
    """n heads of width h = d/n; rows lie in blocks of B, the last of which may be short."""

    causal: ClassVar[bool] = True

    def __init__(self, *, d: int, l: int, n: int, B: int, options: Sequence[str] = ()) -> None:
        super().__init__(d=d, l=l, n=n, options=options)
        require_sizes(B=B)
        self.B = B

    def mix(self, x: Tensor) -> Tensor:
        """Q, K, V (b, n, s, h), then heads, then y (b, s, d)."""
        return self._across(*self._project(x), causal=self.causal)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
        """R (b, n, s, h): of the complete blocks together, then of the short one."""
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
    """A token attends to its block."""

    causal = False


@implementation(
    "local-attention+causal",
    "explicit",
    rewrites=EXPLICIT.rewrites,
    kernels=KERNELS,
    step_kernels=KERNELS,
)
class CausalLocalAttention(InBlocks, Mixer):
    """A token attends to its block up to itself."""

    def initial_state(self, batch: int, length: int | None = None) -> State:
        """Keys and values (b, n, B, h) of the running block; any length has room."""
        require_sizes(batch=batch, length=self.l if length is None else length)
        shape = (batch, self.n, self.B, self.K)
        return ChunkState({name: self.like.new_zeros(shape) for name in ("K", "V")}, sliding=True)

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """Attend from q_t to the rows of its block."""
        assert isinstance(state, ChunkState)
        q_t, k_t, v_t = self._project(x_t)
        state.append(K=k_t, V=v_t)
        k, v = state.chunk("K"), state.chunk("V")
        row = dense_attention(q_t.unsqueeze(2), k, v, by=self.K, causal=False)
        if not state.in_chunk:
            state.complete()
        return row.flatten(1) @ self.W_out
