"""The Synthesizer in PyTorch: attention whose scores are no products of queries and keys.

Tay et al. 2020, with the choices stated in costmodel.mixers.synthesizer. The scores of a token are
a function of the token alone (dense), or parameters of its position (random). A class combines such
scores with attention to all positions or to earlier ones. Shapes: rows (b, s, d), n heads of width
h, scores (n, b, s, s).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, TypeVar

import torch
from torch import Tensor, nn

from profiler.modules.base import Headed, Mixer, PreparedState, State
from profiler.modules.registry import implementation


def relu(x: Tensor) -> Tensor:
    """max(x, 0) for every entry; the backward pass reads the saved comparison alone."""
    return x.masked_fill(x <= 0, 0)


class Synthesizer(Headed):
    """n heads, each with its scores; W_V and W_out (d, d). A sequence has at most l tokens."""

    bounded = True
    causal: ClassVar[bool] = False

    def declare(self) -> None:
        """W_V and W_out."""
        self.W_V: nn.Parameter = self.weight(self.d, self.d)
        self.W_out: nn.Parameter = self.weight(self.d, self.d)

    @abstractmethod
    def scores(self, x: Tensor) -> Tensor:
        """The scores (n, b, s, s) of x (b, s, d), or (n, s, s), the same for all sequences."""

    def mix(self, x: Tensor) -> Tensor:
        """The output y (b, s, d) of x (b, s, d): softmax weights of the scores, the sums of values
        by these weights in n heads, and the output map."""
        batch, length = x.shape[:2]
        weights, v = self.weights(x), self.split(x @ self.W_V)  # (b, s, n, h)
        if weights.dim() == 4:
            read = weights @ v.permute(2, 0, 1, 3)
        else:  # the same for all sequences
            rows = weights @ v.permute(2, 1, 0, 3).flatten(2)
            read = rows.view(self.n, length, batch, self.h).transpose(1, 2)
        return read.permute(1, 2, 0, 3).flatten(2) @ self.W_out

    def weights(self, x: Tensor) -> Tensor:
        """The attention weights, the softmax of the scores of x (b, s, d) and of their shape, (n,
        b, s, s) or, the same for all sequences, (n, s, s); if causal, those of later tokens are
        masked."""
        scores, length = self.scores(x), x.shape[1]
        if self.causal:
            later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(later, -math.inf)
        return torch.softmax(scores, dim=-1)


class Causal(Synthesizer, Mixer):
    """A token attends to itself and all tokens before it."""

    causal = True

    def initial_state(self, batch: int, length: int | None = None) -> State:
        """An empty state with the values, (batch, n, length, h)."""
        return State({"V": self._rows(batch, length, self.n, self.h)})

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """y_t (b, d) of one token x_t (b, d): append the token's value, then sum all held values
        with the token's weights."""
        state.append(V=self.split(x_t @ self.W_V))
        read = self.latest(x_t, state).unsqueeze(-2) @ state.held("V")
        return read.flatten(1) @ self.W_out

    @abstractmethod
    def latest(self, x_t: Tensor, state: State) -> Tensor:
        """The weights (b, n, t) of the newest token."""


class OfToken(Synthesizer):
    """Scores are a function of the token: two layers, of which the first is relu(x W_F), with W_F
    (d, d) split into heads."""

    def declare(self) -> None:
        """W_F, after W_V and W_out."""
        super().declare()
        self.W_F: nn.Parameter = self.weight(self.d, self.d)

    def hidden(self, x: Tensor) -> Tensor:
        """The first layer (n, b*s, h) of x (b, s, d)."""
        return self.split(relu(x.flatten(0, 1) @ self.W_F)).transpose(0, 1)

    @abstractmethod
    def of(self, hidden: Tensor, length: int) -> Tensor:
        """The second layer: the scores (n, rows, length) against the first `length` positions, of
        rows of the first layer (n, rows, h)."""

    def scores(self, x: Tensor) -> Tensor:
        """The scores (n, b, s, s)."""
        return self.of(self.hidden(x), x.shape[1]).view(self.n, *x.shape[:2], -1)


class CausalOfToken(Causal, OfToken):
    """In inference, a token's scores are computed at its step."""

    def latest(self, x_t: Tensor, state: State) -> Tensor:
        """The weights (b, n, t) of the newest token."""
        scores = self.of(self.hidden(x_t.unsqueeze(1)), state.position)
        return torch.softmax(scores, dim=-1).transpose(0, 1)


class Dense(OfToken):
    """The second layer is a linear map W (n, h, l)."""

    def declare(self) -> None:
        """W, after the other parameters."""
        super().declare()
        self.W: nn.Parameter = self.weight(self.n, self.h, self.l)

    def of(self, hidden: Tensor, length: int) -> Tensor:
        """The scores (n, rows, length) against the first `length` positions."""
        return hidden @ self.W[..., :length]


class FactorizedDense(OfToken):
    """The score against a position is the product of a number for its block of B positions and a
    number for its place in the block, by linear maps W_P (n, h, ceil(l/B)) and W_S (n, h, B)."""

    def __init__(self, *, d: int, l: int, n: int, B: int) -> None:
        self.B = B
        super().__init__(d=d, l=l, n=n)

    def declare(self) -> None:
        """W_P and W_S, after the other parameters."""
        super().declare()
        self.W_P: nn.Parameter = self.weight(self.n, self.h, -(-self.l // self.B))
        self.W_S: nn.Parameter = self.weight(self.n, self.h, self.B)

    def of(self, hidden: Tensor, length: int) -> Tensor:
        """The scores (n, rows, length) of hidden rows (n, rows, h) against the first `length`
        positions: the products of both factors for all complete blocks, then for the short last
        block. With B = 2, position 4 has number 2 of W_P times number 0 of W_S."""
        blocks = -(-length // self.B)
        one = hidden @ self.W_P[..., :blocks]
        two = hidden @ self.W_S[..., : min(self.B, length)]
        if length < self.B:
            return one * two
        rest = length % self.B
        whole = one[..., : length // self.B].unsqueeze(-1) * two.unsqueeze(-2)
        if not rest:
            return whole.flatten(-2)
        return torch.cat([whole.flatten(-2), one[..., -1:] * two[..., :rest]], dim=-1)


class OfPosition(Synthesizer):
    """Scores are parameters of the positions, the same for all sequences."""

    @abstractmethod
    def table(self, length: int) -> Tensor:
        """The scores (n, length, length)."""

    def scores(self, x: Tensor) -> Tensor:
        """The scores (n, s, s) of the first s positions."""
        return self.table(x.shape[1])


class CausalOfPosition(Causal, OfPosition):
    """In inference, all weights are computed once, before the first token."""

    @torch.no_grad()
    def initial_state(self, batch: int, length: int | None = None) -> PreparedState:
        """An empty state with the values, (batch, n, length, h); `prepared` holds the weights (n,
        length, length)."""
        state = PreparedState(super().initial_state(batch, length).arrays)
        state.prepared = self.weights(self.like.new_empty(batch, state.capacity, self.d))
        return state

    def latest(self, x_t: Tensor, state: State) -> Tensor:
        """The weights (b, n, t) of the newest token, the same for every sequence."""
        assert isinstance(state, PreparedState)
        row = state.prepared[:, state.position - 1, : state.position]
        return row.expand(len(x_t), *row.shape)


class Random(OfPosition):
    """The scores are R (n, l, l)."""

    def declare(self) -> None:
        """R, after W_V and W_out."""
        super().declare()
        self.R: nn.Parameter = self.weight(self.n, self.l, self.l)

    def table(self, length: int) -> Tensor:
        """The scores (n, length, length)."""
        return self.R[:, :length, :length]


class FactorizedRandom(OfPosition):
    """The scores are R_1 R_2^T of rank r, with R_1 and R_2 (n, l, r)."""

    def __init__(self, *, d: int, l: int, n: int, r: int) -> None:
        self.r = r
        super().__init__(d=d, l=l, n=n)

    def declare(self) -> None:
        """R_1 and R_2, after W_V and W_out."""
        super().declare()
        self.R_1: nn.Parameter = self.weight(self.n, self.l, self.r)
        self.R_2: nn.Parameter = self.weight(self.n, self.l, self.r)

    def table(self, length: int) -> Tensor:
        """The scores (n, length, length)."""
        return self.R_1[:, :length] @ self.R_2[:, :length].transpose(1, 2)


_Class = TypeVar("_Class", bound=type[Synthesizer])


def explicit(mixer: str, **scores: str) -> Callable[[_Class], _Class]:
    """Return a decorator that registers a class as an implementation of `mixer` with one operation
    per equation; `scores` maps the arrays of the scores to kernel classes. A causal mixer executes
    the rewrite `dense` too."""
    masked = ("dense",) if mixer.endswith("+causal") else ()
    kernels = dict.fromkeys(("V", "O", "y"), "contraction") | {"A": "softmax"} | scores
    return implementation(
        mixer,
        "explicit",
        rewrites=(*masked, "safe-softmax"),
        kernels=kernels,
        step_kernels=kernels,
    )


@explicit("synthesizer-dense", H="contraction", Z="contraction")
class ExplicitDense(Dense):
    """The dense Synthesizer, with one operation per equation."""


@explicit("synthesizer-dense+causal", H="contraction", Z="contraction")
class CausalDense(CausalOfToken, Dense):
    """The causal dense Synthesizer; all scores are computed, and those of later tokens masked."""


@explicit("synthesizer-random")
class ExplicitRandom(Random):
    """The random Synthesizer, with one operation per equation."""


@explicit("synthesizer-random+causal")
class CausalRandom(CausalOfPosition, Random):
    """The causal random Synthesizer; the softmax runs over masked rows."""


@explicit("synthesizer-factorized-random", Z="contraction")
class ExplicitFactorizedRandom(FactorizedRandom):
    """The factorized random Synthesizer, with one operation per equation."""


@explicit("synthesizer-factorized-random+causal", Z="contraction")
class CausalFactorizedRandom(CausalOfPosition, FactorizedRandom):
    """The causal factorized random Synthesizer; scores of later tokens are computed and masked."""


@explicit(
    "synthesizer-factorized-dense",
    H="contraction",
    P="contraction",
    S="contraction",
    Z="elementwise",
)
class ExplicitFactorizedDense(FactorizedDense):
    """The factorized dense Synthesizer, with one operation per equation."""
