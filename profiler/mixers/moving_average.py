"""Mega, gated attention to moving averages, in PyTorch: Ma et al. 2022, arXiv 2209.10655.

A class computes the moving averages by the recurrence with state h (b, d, N), or by a convolution
with their kernel w (l, d); one-token inference always uses the recurrence.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import Tensor, nn

from profiler.mixers.extractor import vector_fft
from profiler.modules.base import Mixer, PreparedState, State, require_sizes
from profiler.modules.registry import implementation
from profiler.modules.running_sums import ChunkState


class Mega(Mixer):
    """Mega: N moving averages per channel, by alpha, delta, beta and eta (d, N), which attention
    with a single head reads. A linear map of the averages gives Z of width K; queries and keys are
    kappa * Z + mu, with kappa and mu (K,) each. Values have the width v*d. P is a bias of scores
    per distance, (l,), or (C,) with the option `chunk`, with which tokens attend within chunks of C
    tokens."""

    W_Z: nn.Parameter
    b_Z: nn.Parameter
    W_V: nn.Parameter
    b_V: nn.Parameter
    W_gamma: nn.Parameter
    b_gamma: nn.Parameter
    W_phi: nn.Parameter
    b_phi: nn.Parameter
    W_H: nn.Parameter
    b_H: nn.Parameter

    def __init__(
        self,
        *,
        d: int,
        l: int,
        N: int,
        K: int,
        v: int,
        C: int | None = None,
        options: Sequence[str] = (),
    ) -> None:
        """Declare the weights: N averages per channel, queries and keys of width K, values of width
        v*d; with the option `chunk`, chunks of C tokens (default l), else C is not used and at most
        l tokens."""
        super().__init__(d=d, l=l)
        self.bounded = not options
        self.C = C if options and C else l
        require_sizes(N=N, K=K, v=v, C=self.C)
        self.N, self.K, self.V = N, K, v * d
        self.alpha: nn.Parameter = self.weight(d, N)
        self.delta: nn.Parameter = self.weight(d, N)
        self.beta: nn.Parameter = self.weight(d, N)
        self.eta: nn.Parameter = self.weight(d, N)
        widths = {"Z": K, "V": self.V, "gamma": self.V, "phi": d, "H": d}
        for name, width in widths.items():
            setattr(self, f"W_{name}", self.weight(d, width))
            setattr(self, f"b_{name}", self.weight(width))
        self.kappa_Q: nn.Parameter = self.weight(K)
        self.kappa_K: nn.Parameter = self.weight(K)
        self.mu_Q: nn.Parameter = self.weight(K)
        self.mu_K: nn.Parameter = self.weight(K)
        self.P: nn.Parameter = self.weight(self.C)
        self.U_H: nn.Parameter = self.weight(self.V, d)

    def rates(self) -> tuple[Tensor, Tensor]:
        """E and B (d, N) of the recurrence h' = E h + B x."""
        alpha = torch.sigmoid(self.alpha)
        return 1 - alpha * torch.sigmoid(self.delta), alpha * self.beta

    @abstractmethod
    def averages(self, x: Tensor) -> Tensor:
        """X (b, s, d), the sum of each channel's N moving averages, weighted by eta."""

    def heads(self, x: Tensor, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys (..., K) from the averages, values (..., V) from the rows."""
        Z = F.silu(X @ self.W_Z + self.b_Z)
        V = F.silu(x @ self.W_V + self.b_V)
        return self.kappa_Q * Z + self.mu_Q, self.kappa_K * Z + self.mu_K, V

    def gated(self, x: Tensor, X: Tensor, O: Tensor) -> Tensor:
        """The output y (..., d) from rows x and averages X (..., d) and the attention output O
        (..., V), with the reset gate gamma and the update gate phi."""
        gamma = F.silu(X @ self.W_gamma + self.b_gamma)
        phi = torch.sigmoid(X @ self.W_phi + self.b_phi)
        H = F.silu(X @ self.W_H + self.b_H + (gamma * O) @ self.U_H)
        return phi * H + (1 - phi) * x

    def mix(self, x: Tensor) -> Tensor:
        """The output y (b, s, d) of x (b, s, d): the moving averages, attention within chunks (all
        complete chunks in one batch, then the short last one)."""
        X = self.averages(x)
        q, k, v = self.heads(x, X)
        (batch, length, _), read = x.shape, []
        bias, whole = self.bias(min(self.C, length)), length - length % self.C
        for start, end, size in ((0, whole, self.C), (whole, length, length - whole)):
            if start < end:
                rows = (each[:, start:end] for each in (q, k, v))
                chunks = (each.reshape(batch, -1, size, each.shape[-1]) for each in rows)
                read.append(self.attended(bias[:size, :size], *chunks).flatten(1, 2))
        return self.gated(x, X, torch.cat(read, dim=1))

    def bias(self, size: int) -> Tensor:
        """The bias P[i-k+1] of each pair of rows i, k, (size, size); 0 for k > i."""
        return F.pad(self.P[:size], (size - 1, 0)).unfold(0, size, 1).flip(1)

    def attended(self, bias: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention within chunks (b, chunks, size, ...), with all pairs scored and later rows
        masked: (b, chunks, size, V). `bias` is (size, size)."""
        later = torch.ones_like(bias, dtype=torch.bool).triu(1)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.K) + bias
        return torch.softmax(scores.masked_fill(later, -math.inf), dim=-1) @ v

    @torch.no_grad()
    def initial_state(self, batch: int, length: int | None = None) -> State:
        """Make the state before the first token: room for the keys K and values V of all tokens or,
        with the option `chunk`, of the current chunk, and for h (batch, 1, d*N), the averages'
        recurrence; `prepared` holds its factors E and B, (2, d, N)."""
        room = length if self.bounded else self.C
        rows = {"K": self._rows(batch, room, self.K), "V": self._rows(batch, room, self.V)}
        rows["h"] = self._rows(batch, 1, self.d * self.N)
        made = PreparedState if self.bounded else ChunkState
        state = made(rows, sliding=not self.bounded)
        state.prepared = torch.stack(self.rates())
        return state

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """The output y_t (b, d) of one token x_t (b, d): one step of the averages' recurrence, h =
        E h + B x_t with E and B (d, N), read as X by eta; then attention to the rows of the token's
        chunk or, without chunks, to all rows so far."""
        assert isinstance(state, PreparedState)
        E, B = state.prepared
        h = B * x_t.unsqueeze(-1)
        if state.position:
            h = h + E * state.held("h").view(h.shape)
        X = (self.eta * h).sum(-1)
        q, k, v = self.heads(x_t, X)
        state.append(K=k, V=v, h=h.flatten(1))
        seen = state.chunk if isinstance(state, ChunkState) else state.held
        keys, values = seen("K"), seen("V")
        scores = q.unsqueeze(1) @ keys.transpose(1, 2) / math.sqrt(self.K)
        scores = scores + self.P[: keys.shape[1]].flip(0)
        O = (torch.softmax(scores, dim=-1) @ values).squeeze(1)
        return self.gated(x_t, X, O)


HEAD = {
    **dict.fromkeys(("G", "E", "B", "Q", "K", "F", "y"), "elementwise"),
    **dict.fromkeys(("Z", "V", "M", "O", "gamma", "phi", "H"), "contraction"),
    "A": "softmax",
}
AVERAGED = {"h": "elementwise", "X": "reduction"}
FILTERED = {
    **dict.fromkeys(("T", "D", "R"), "elementwise"),
    **dict.fromkeys(("x_f", "w_f", "X"), "fft"),
    **{"w": "reduction", "e_f": "complex-elementwise"},
}
_Mega = TypeVar("_Mega", bound=type[Mega])


def mega(form: str, kernels: dict[str, str]) -> Callable[[_Mega], _Mega]:
    """Return a decorator that registers a class as an implementation of Mega, named after its form
    of the averages ("recurrent", say). `kernels`: array -> kernel class (the kind of operation that
    computes the array, such as "fft"), for the arrays that `HEAD`, the attention head, lacks."""
    return implementation(
        "mega",
        form,
        form=form,
        rewrites=("dense", "safe-softmax"),
        kernels=HEAD | kernels,
        step_form="recurrent",
        step_kernels=HEAD | AVERAGED,
        options=("chunk",),
    )


@mega("recurrent", AVERAGED)
class MegaCarried(Mega):
    """Mega by the recurrence."""

    def averages(self, x: Tensor) -> Tensor:
        """The moving averages (b, s, d) of rows x (b, s, d), by the recurrence h' = E h + B x over
        rows, with N averages h (b, d, N) of each channel; a row's result is their sum weighted by
        eta."""
        E, B = self.rates()
        h = B * x[:, 0].unsqueeze(-1)
        rows = [h]
        for row in x.unbind(1)[1:]:
            h = B * row.unsqueeze(-1) + E * h
            rows.append(h)
        return torch.stack([(self.eta * h).sum(-1) for h in rows], dim=1)


@mega("fft", FILTERED)
class MegaFft(Mega):
    """Mega by Fourier transforms over the sequence."""

    def averages(self, x: Tensor) -> Tensor:
        """The moving averages (b, s, d) of rows x (b, s, d), by a convolution with the kernel w (s,
        d): at distance s the sum over N of eta B E^s, where E^s is exp(s log E)."""
        E, B = self.rates()
        s = torch.arange(x.shape[1], device=x.device, dtype=x.dtype).view(-1, 1, 1)
        w = (self.eta * B * torch.exp(torch.log(E) * s)).sum(-1)
        return vector_fft(x, w)
