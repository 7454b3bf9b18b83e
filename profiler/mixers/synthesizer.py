"""How does the Synthesizer run in PyTorch?

Tay et al. 2020, with the choices that the equations' file states. A class combines one way to score
with attention to all positions or to the earlier ones.
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
    """The larger one of x and 0; the backward pass reads which it was, and compares no more."""
    return x.masked_fill(x <= 0, 0)


class Synthesizer(Headed):
    """n heads, each with scores of its own; a sequence has at most l tokens.

    W_V and W_out are (d, d).
    """

    bounded = True
    causal: ClassVar[bool] = False

    def declare(self) -> None:
        """W_V and W_out."""
        self.W_V: nn.Parameter = self.weight(self.d, self.d)
        self.W_out: nn.Parameter = self.weight(self.d, self.d)

    @abstractmethod
    def scores(self, x: Tensor) -> Tensor:
        """The scores (n, b, s, s) of x (b, s, d), or (n, s, s) where they are parameters."""

    def mix(self, x: Tensor) -> Tensor:
        """Scores, a softmax, the values' sums (b, s, d), then y (b, s, d)."""
        batch, length = x.shape[:2]
        weights, v = self.weights(x), self.split(x @ self.W_V)  # (b, s, n, h)
        if weights.dim() == 4:
            read = weights @ v.permute(2, 0, 1, 3)
        else:  # the same for all sequences
            rows = weights @ v.permute(2, 1, 0, 3).flatten(2)
            read = rows.view(self.n, length, batch, self.h).transpose(1, 2)
        return read.permute(1, 2, 0, 3).flatten(2) @ self.W_out

    def weights(self, x: Tensor) -> Tensor:
        """The softmax of the scores, those of later tokens masked where causal."""
        scores, length = self.scores(x), x.shape[1]
        if self.causal:
            later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(later, -math.inf)
        return torch.softmax(scores, dim=-1)


class Causal(Synthesizer, Mixer):
    """A token attends to itself and those before it."""

    causal = True

    def initial_state(self, batch: int, length: int | None = None) -> State:
        """The values, (batch, n, length, h)."""
        return State({"V": self._rows(batch, length, self.n, self.h)})

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """The held values, the token's own among them, in the token's weights."""
        state.append(V=self.split(x_t @ self.W_V))
        read = self.latest(x_t, state).unsqueeze(-2) @ state.held("V")
        return read.flatten(1) @ self.W_out

    @abstractmethod
    def latest(self, x_t: Tensor, state: State) -> Tensor:
        """The weights (b, n, t) of the newest token."""


class OfToken(Synthesizer):
    """Scores are a function of the token; W_F is (d, d)."""

    def declare(self) -> None:
        """W_F besides."""
        super().declare()
        self.W_F: nn.Parameter = self.weight(self.d, self.d)

    def hidden(self, x: Tensor) -> Tensor:
        """The first layer, (n, b s, h), of x (b, s, d)."""
        return self.split(relu(x.flatten(0, 1) @ self.W_F)).transpose(0, 1)

    @abstractmethod
    def of(self, hidden: Tensor, length: int) -> Tensor:
        """The scores (n, rows, length) of rows of the first layer, (n, rows, h)."""

    def scores(self, x: Tensor) -> Tensor:
        """The scores (n, b, s, s)."""
        return self.of(self.hidden(x), x.shape[1]).view(self.n, *x.shape[:2], -1)


class CausalOfToken(Causal, OfToken):
    """A token's scores are computed when it comes."""

    def latest(self, x_t: Tensor, state: State) -> Tensor:
        """The weights (b, n, t) of the newest token."""
        scores = self.of(self.hidden(x_t.unsqueeze(1)), state.position)
        return torch.softmax(scores, dim=-1).transpose(0, 1)


class Dense(OfToken):
    """A second layer gives the scores; W is (n, h, l)."""

    def declare(self) -> None:
        """W besides."""
        super().declare()
        self.W: nn.Parameter = self.weight(self.n, self.h, self.l)

    def of(self, hidden: Tensor, length: int) -> Tensor:
        """The scores of the first positions."""
        return hidden @ self.W[..., :length]


class FactorizedDense(OfToken):
    """Products of two factors; W_P is (n, h, ceil(l/B)) and W_S (n, h, B)."""

    def __init__(self, *, d: int, l: int, n: int, B: int) -> None:
        self.B = B
        super().__init__(d=d, l=l, n=n)

    def declare(self) -> None:
        """W_P and W_S besides."""
        super().declare()
        self.W_P: nn.Parameter = self.weight(self.n, self.h, -(-self.l // self.B))
        self.W_S: nn.Parameter = self.weight(self.n, self.h, self.B)

    def of(self, hidden: Tensor, length: int) -> Tensor:
        """Products of the two factors, block by block; those beyond the length are not computed."""
        blocks = -(-length // self.B)
        one = hidden @ self.W_P[..., :blocks]
        two = hidden @ self.W_S[..., : min(self.B, length)]
        rest = length % self.B
        whole = one[..., : length // self.B].unsqueeze(-1) * two.unsqueeze(-2)
        if not rest:
            return whole.flatten(-2)
        return torch.cat([whole.flatten(-2), one[..., -1:] * two[..., :rest]], dim=-1)


class OfPosition(Synthesizer):
    """Scores are parameters."""

    @abstractmethod
    def table(self, length: int) -> Tensor:
        """The scores (n, length, length)."""

    def scores(self, x: Tensor) -> Tensor:
        """The scores of the first positions."""
        return self.table(x.shape[1])


class CausalOfPosition(Causal, OfPosition):
    """All weights are computed once."""

    @torch.no_grad()
    def initial_state(self, batch: int, length: int | None = None) -> PreparedState:
        """The values, (batch, n, length, h), and the weights (n, length, length) of all rows."""
        state = PreparedState(super().initial_state(batch, length).arrays)
        state.prepared = self.weights(self.like.new_empty(batch, state.capacity, self.d))
        return state

    def latest(self, x_t: Tensor, state: State) -> Tensor:
        """The weights (b, n, t) of the newest token, the same for every sequence."""
        assert isinstance(state, PreparedState)
        row = state.prepared[:, state.position - 1, : state.position]
        return row.expand(len(x_t), *row.shape)


class Random(OfPosition):
    """R is (n, l, l)."""

    def declare(self) -> None:
        """R besides."""
        super().declare()
        self.R: nn.Parameter = self.weight(self.n, self.l, self.l)

    def table(self, length: int) -> Tensor:
        """The scores (n, length, length)."""
        return self.R[:, :length, :length]


class FactorizedRandom(OfPosition):
    """R_1 and R_2 are (n, l, r)."""

    def __init__(self, *, d: int, l: int, n: int, r: int) -> None:
        self.r = r
        super().__init__(d=d, l=l, n=n)

    def declare(self) -> None:
        """R_1 and R_2 besides."""
        super().declare()
        self.R_1: nn.Parameter = self.weight(self.n, self.l, self.r)
        self.R_2: nn.Parameter = self.weight(self.n, self.l, self.r)

    def table(self, length: int) -> Tensor:
        """The scores (n, length, length)."""
        return self.R_1[:, :length] @ self.R_2[:, :length].transpose(1, 2)


_Class = TypeVar("_Class", bound=type[Synthesizer])


def explicit(mixer: str, **scores: str) -> Callable[[_Class], _Class]:
    """Register the decorated class, whose scores have these kernel classes."""
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
    """One operation per equation."""


@explicit("synthesizer-dense+causal", H="contraction", Z="contraction")
class CausalDense(CausalOfToken, Dense):
    """All scores are computed, those of later tokens are masked."""


@explicit("synthesizer-random")
class ExplicitRandom(Random):
    """One operation per equation."""


@explicit("synthesizer-random+causal")
class CausalRandom(CausalOfPosition, Random):
    """The softmax runs over masked rows."""


@explicit("synthesizer-factorized-random", Z="contraction")
class ExplicitFactorizedRandom(FactorizedRandom):
    """One operation per equation."""


@explicit("synthesizer-factorized-random+causal", Z="contraction")
class CausalFactorizedRandom(CausalOfPosition, FactorizedRandom):
    """All scores are computed, those of later tokens are masked."""


@explicit(
    "synthesizer-factorized-dense",
    H="contraction",
    P="contraction",
    S="contraction",
    Z="elementwise",
)
class ExplicitFactorizedDense(FactorizedDense):
    """One operation per equation."""
