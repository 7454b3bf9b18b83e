"""The parts of a network beside its mixers in PyTorch: embedding, norm, FFN, head and loss.

They correspond to costmodel.networks.parts, with as many parameters. Each part executes the
operations of its equations, for all of which the counter of dispatched operations has rules. Token
numbers start at 0, as in torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import Tensor, nn

from costmodel.networks.choices import Choices
from costmodel.program.losses import SMOOTHING

EPS = 1e-5
"""The constant under the square root of a layer norm, if the network's norms have one."""

Made = Mapping[str, Any]
"""`device` and `dtype` of parameters and buffers, as keyword arguments."""


def _identity(x: Tensor) -> Tensor:
    return x


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "none": _identity,
    "relu": torch.relu,
    "gelu": F.gelu,
    "gelu-tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "tanh": torch.tanh,
}


def normal_parameter(*shape: int, std: float, made: Made) -> nn.Parameter:
    """A parameter of normal random numbers with standard deviation `std`."""
    parameter = nn.Parameter(torch.empty(shape, **made))
    nn.init.normal_(parameter, std=std)
    return parameter


class Dense(nn.Module):
    """A linear map of each row, (..., d) to (..., f), and an activation."""

    def __init__(
        self, d: int, f: int, *, made: Made, activation: str = "none", bias: bool = True
    ) -> None:
        """Declare a linear map of rows of width d to width f; `made` has the device and dtype of
        parameters."""
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.W = normal_parameter(d, f, std=d**-0.5, made=made)
        self.b = nn.Parameter(torch.zeros(f, **made)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """The activation of x W + b."""
        y = x @ self.W
        return self.activation(y if self.b is None else y + self.b)


class LayerNorm(nn.Module):
    """A layer norm with mean, deviation, gain and offset (if `bias`) as separate operations."""

    def __init__(self, d: int, *, bias: bool, eps: bool, made: Made) -> None:
        super().__init__()
        self.eps = eps
        self.gain = nn.Parameter(torch.ones(d, **made))
        self.offset = nn.Parameter(torch.zeros(d, **made)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each row (..., d) to mean 0 and variance 1, times the gain, plus the offset."""
        centred = x - x.mean(-1, keepdim=True)
        variance = (centred * centred).mean(-1, keepdim=True)
        deviation = (variance + EPS if self.eps else variance).sqrt()
        y = centred / deviation * self.gain
        return y if self.offset is None else y + self.offset


def sinusoids(l: int, d: int, made: Made) -> Tensor:
    """Sinusoidal position embeddings (l, d), Vaswani et al. 2017, section 3.5: sines in even
    channels (from 0) and cosines in odd ones, a frequency for each two channels."""
    position = torch.arange(l, dtype=torch.float64).unsqueeze(1)
    channel = torch.arange(d, dtype=torch.float64)
    angle = position / 10_000 ** ((channel - channel % 2) / d)
    return torch.where(channel % 2 == 0, angle.sin(), angle.cos()).to(**made)


class Embedding(nn.Module):
    """Token numbers (b, s) to rows (b, s, d): the sum of token, position and segment embeddings,
    and a norm, as far as the network chooses them. E (u, d) is an embedding matrix to share."""

    def __init__(
        self, c: Choices, *, u: int, l: int, d: int, made: Made, E: nn.Parameter | None = None
    ) -> None:
        """Declare the tables for u kinds of tokens, l positions and width d, as the choices say;
        `E` (u, d) is an embedding to share, if any."""
        super().__init__()
        self.one_hot, self.u, self.made = c.embedding == "one-hot", u, made
        self.factor = d**0.5 if c.scale != "none" else None
        self.E = normal_parameter(u, d, std=d**-0.5, made=made) if E is None else E
        self.learned = c.positions == "learned"
        self.bounded = c.positions != "none"
        self.rows_factor = d**0.5 if self.learned and c.scale == "all" else None
        if self.learned:
            self.P = normal_parameter(c.position_rows or l, d, std=d**-0.5, made=made)
        elif self.bounded:
            self.register_buffer("P", sinusoids(l, d, made), persistent=False)
        self.S = normal_parameter(c.segments, d, std=d**-0.5, made=made) if c.segments else None
        norm = LayerNorm(d, bias=c.norm_bias, eps=c.norm_eps, made=made)
        self.norm = norm if c.embedding_norm else None

    def forward(self, tokens: Tensor, segments: Tensor | None = None) -> Tensor:
        """The rows (b, s, d) of whole sequences of token numbers (b, s), with positions and
        segments as chosen; by default all tokens are in the first segment."""
        x = self._tokens(tokens)
        if self.bounded:
            rows = self.P[: tokens.shape[1]]
            if self.one_hot and self.learned:
                rows = torch.eye(tokens.shape[1], len(self.P), **self.made) @ self.P
            x = x + self._scaled(rows)
        return self._finished(x, torch.zeros_like(tokens) if segments is None else segments)

    def at(self, tokens_t: Tensor, position: int) -> Tensor:
        """Rows (b, d) of one token (b,) of each sequence, after `position` tokens."""
        x = self._tokens(tokens_t)
        if self.bounded:
            x = x + self._scaled(self.P[position])
        return self._finished(x, torch.zeros_like(tokens_t))

    def _tokens(self, tokens: Tensor) -> Tensor:
        """The rows (b, s, d) of E at the tokens (b, s), looked up or as products of one-hot rows
        with E, and scaled as chosen."""
        if not self.one_hot:
            x = self.E[tokens]
        else:
            zeros = self.E.new_zeros(*tokens.shape, self.u)
            x = zeros.scatter(-1, tokens.unsqueeze(-1), 1.0) @ self.E
        return x if self.factor is None else x * self.factor

    def _scaled(self, rows: Tensor) -> Tensor:
        return rows if self.rows_factor is None else rows * self.rows_factor

    def _finished(self, x: Tensor, segments: Tensor) -> Tensor:
        if self.S is not None:
            x = x + self.S[segments]
        return x if self.norm is None else self.norm(x)


class Head(nn.Module):
    """A linear map to scores, (..., d) to (..., u). With the embedding E (u, d), its transpose is
    the weight (weight tying)."""

    def __init__(
        self, d: int, u: int, *, bias: bool, made: Made, E: nn.Parameter | None = None
    ) -> None:
        """Declare a linear map of rows of width d to u scores; `E` (u, d) is an embedding to share,
        None for a new map."""
        super().__init__()
        self.tied = E is not None
        self.W = normal_parameter(d, u, std=d**-0.5, made=made) if E is None else E
        self.b = nn.Parameter(torch.zeros(u, **made)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """The scores (..., u) of rows (..., d)."""
        y = x @ (self.W.t() if self.tied else self.W)
        return y if self.b is None else y + self.b


def at_targets(rows: Tensor, targets: Tensor) -> Tensor:
    """The entry of each row (..., u) at the row's target (...)."""
    return rows.gather(-1, targets.unsqueeze(-1)).squeeze(-1)


def loss_of_scores(scores: Tensor, targets: Tensor, *, smoothed: bool) -> Tensor:
    """The mean cross-entropy of scores (..., u) with target numbers (...), with label smoothing if
    `smoothed`."""
    logs = torch.log_softmax(scores, -1)
    row = at_targets(logs, targets)
    if smoothed:
        row = row * float(1 - SMOOTHING) + logs.sum(-1) * (float(SMOOTHING) / logs.shape[-1])
    return -row.mean()


def loss_of_probabilities(probabilities: Tensor, targets: Tensor) -> Tensor:
    """The mean cross-entropy of probabilities (..., u)."""
    return -at_targets(probabilities, targets).log().mean()
