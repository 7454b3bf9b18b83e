"""AFT-full, AFT-local and AFT-simple in PyTorch.

Zhai et al. 2021, with the choices stated in costmodel.mixers.attention_free. No maximum is
subtracted before an exponential. Each result is a gate sigmoid(Q) times a quotient N / D, where N
sums weights times exp(K) V and D sums weights times exp(K), (b, s, d) each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import Tensor, nn

from profiler.modules.base import Mixer, PreparedState, SequenceMixer, State, require_sizes
from profiler.modules.registry import implementation

MAPS = dict.fromkeys(("Q", "K", "V"), "contraction")
SUMS = dict.fromkeys(("N", "D"), "contraction")
FULL = MAPS | SUMS | dict.fromkeys(("E_K", "E_w", "P", "y"), "elementwise")
SIMPLE = MAPS | {"A": "softmax", "R": "reduction", "y": "elementwise"}
SUMMED = MAPS | dict.fromkeys(("E_K", "P", "N", "D", "y"), "elementwise")
LOCAL = MAPS | dict.fromkeys(("N", "D"), "contraction")
LOCAL |= dict.fromkeys(("E_K", "E_u", "P", "y"), "elementwise")


class AttentionFree(SequenceMixer):
    """An attention-free mixer with the linear maps W_Q, W_K and W_V (d, d)."""

    def __init__(self, *, d: int, l: int) -> None:
        super().__init__(d=d, l=l)
        self.W_Q: nn.Parameter = self.weight(d, d)
        self.W_K: nn.Parameter = self.weight(d, d)
        self.W_V: nn.Parameter = self.weight(d, d)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """sigmoid(Q), K and V, (..., d) each."""
        return torch.sigmoid(x @ self.W_Q), x @ self.W_K, x @ self.W_V


class Full(AttentionFree):
    """AFT-full: a weight for each pair of positions, w (l, l), or with the option `factorized`
    U T^T of rank r, with U and T (l, r)."""

    bounded = True
    causal: ClassVar[bool] = False

    def __init__(
        self, *, d: int, l: int, r: int | None = None, options: Sequence[str] = ()
    ) -> None:
        """Declare the weights of pairs of l positions, w or, with the option `factorized`, its
        factors U and T of rank r. ValueError if r is then missing; without the option r is not
        used."""
        super().__init__(d=d, l=l)
        self.factorized = "factorized" in options
        if not self.factorized:
            self.w: nn.Parameter = self.weight(l, l)
            return
        if r is None:
            raise ValueError("the option 'factorized' needs the size r, the rank of w")
        require_sizes(r=r)
        self.U: nn.Parameter = self.weight(l, r)
        self.T: nn.Parameter = self.weight(l, r)

    def powers(self, length: int) -> Tensor:
        """exp(w) of the first `length` positions, (length, length); if causal, 0 for pairs of which
        the position read is the later one."""
        w = self.U[:length] @ self.T[:length].t() if self.factorized else self.w[:length, :length]
        return torch.exp(w).tril() if self.causal else torch.exp(w)

    def mix(self, x: Tensor) -> Tensor:
        """The output y (b, s, d) of x (b, s, d): a gate times sums of weighted values over sums of
        weights (b sequences, s rows), one matrix product each for all sequences."""
        gate, k, v = self.project(x)
        weights, keys = self.powers(x.shape[1]), torch.exp(k)
        above, below = (
            (weights @ rows.transpose(0, 1).flatten(1)).view(rows.transpose(0, 1).shape)
            for rows in (keys * v, keys)
        )
        return gate * (above / below).transpose(0, 1)


@implementation("aft-full", "separate", form="separate", options=("factorized",), kernels=FULL)
class FullSeparate(Full):
    """AFT-full with exp(w) exp(k) in place of exp(w + k)."""


@implementation(
    "aft-full+causal",
    "separate",
    form="separate",
    options=("factorized",),
    rewrites=("dense",),
    kernels=FULL,
    step_kernels=FULL,
)
class CausalFull(Full, Mixer):
    """Causal AFT-full; weights of later positions are set to zero."""

    causal = True

    @torch.no_grad()
    def initial_state(self, batch: int, length: int | None = None) -> PreparedState:
        """An empty state with exp(K) and exp(K) V, (batch, length, d); `prepared` is exp(w)."""
        state = PreparedState({name: self._rows(batch, length, self.d) for name in ("P", "E_K")})
        state.prepared = self.powers(state.capacity)
        return state

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """The output y_t (b, d) of one token x_t (b, d): append the token's rows exp(K) V and
        exp(K) to `state`, then sum all t held rows (b, t, d) with the weights of the token's
        position, row t of exp(w) from 1 (`prepared`, (l, l))."""
        assert isinstance(state, PreparedState)
        gate, k, v = self.project(x_t)
        keys = torch.exp(k)
        state.append(P=keys * v, E_K=keys)
        t = state.position
        weights = state.prepared[t - 1, :t].expand(len(x_t), 1, t)
        above, below = (torch.bmm(weights, state.held(name)).squeeze(1) for name in ("P", "E_K"))
        return gate * (above / below)


def running(rows: Tensor) -> Tensor:
    """The running sums of rows (b, s, d), one addition after another."""
    sums = [rows[:, 0]]
    for i in range(1, rows.shape[1]):
        sums.append(sums[-1] + rows[:, i])
    return torch.stack(sums, dim=1)


class Local(AttentionFree):
    """AFT-local: weights for positions nearer than w, u (l, 2w-1), or (l, w) if causal."""

    bounded = True
    causal: ClassVar[bool] = False

    def __init__(self, *, d: int, l: int, w: int) -> None:
        super().__init__(d=d, l=l)
        require_sizes(w=w)
        self.w, self.ahead = w, 0 if self.causal else w - 1
        self.u: nn.Parameter = self.weight(l, w + self.ahead)

    def mix(self, x: Tensor) -> Tensor:
        """The output y (b, s, d) of x (b, s, d): a gate times a quotient of two sums over rows, in
        which rows at positions nearer than w have the weights exp(u) and all others 1."""
        gate, k, v = self.project(x)
        weights, keys = torch.exp(self.u[: x.shape[1]]) - 1, torch.exp(k)
        above, below = (self.total(r) + self.nearby(r, weights) for r in (keys * v, keys))
        return gate * (above / below)

    def total(self, rows: Tensor) -> Tensor:
        """The sum of all rows (b, 1, d), or, if causal, the running sums (b, s, d)."""
        return running(rows) if self.causal else rows.sum(1, keepdim=True)

    def nearby(self, rows: Tensor, weights: Tensor) -> Tensor:
        """The zero-padded window of each row, summed with the row's weights: (b, s, d)."""
        windows = F.pad(rows, (0, 0, self.w - 1, self.ahead)).unfold(1, weights.shape[1], 1)
        sums = windows.transpose(0, 1).flatten(1, 2) @ weights.unsqueeze(-1)  # (s, b d, 1)
        return sums.view(rows.transpose(0, 1).shape).transpose(0, 1)


@implementation(
    "aft-local",
    "windowed",
    form="windowed",
    rewrites=("dense",),
    kernels=LOCAL | {"S_N": "reduction", "S_D": "reduction"},
)
class FullLocal(Local):
    """AFT-local over zero-padded windows."""


@implementation(
    "aft-local+causal",
    "windowed",
    form="windowed",
    rewrites=("dense",),
    kernels=LOCAL | {"S_N": "elementwise", "S_D": "elementwise"},
    step_kernels=LOCAL | {"S_N": "elementwise", "S_D": "elementwise"},
)
class CausalLocal(Local, Mixer):
    """Causal AFT-local over zero-padded windows."""

    causal = True

    @torch.no_grad()
    def initial_state(self, batch: int, length: int | None = None) -> PreparedState:
        """Make the state before the first token: zeros for the last w-1 rows of P = exp(K) V and
        E_K = exp(K), (batch, w-1, d), and for S_N and S_D, their sums over all tokens, (batch, 1,
        d); `prepared`, (l, w): weights exp(u) of nearby positions less 1, their weight in a sum."""
        self._rows(batch, length, 1)  # refuses a length beyond the l rows of weights
        rows = {"P": self.w - 1, "E_K": self.w - 1, "S_N": 1, "S_D": 1}
        held = {name: self.like.new_zeros(batch, room, self.d) for name, room in rows.items()}
        state = PreparedState(held, sliding=True)
        state.prepared = torch.exp(self.u) - 1
        return state

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """The output y_t (b, d) of one token x_t (b, d): add the token's rows P and E_K to the sums
        S_N and S_D in `state`; to these, add the rows of the window that ends at the token times
        exp(u) - 1, as the sums hold each row once already."""
        assert isinstance(state, PreparedState)
        gate, k, v = self.project(x_t)
        keys = torch.exp(k)
        own = {"P": keys * v, "E_K": keys}
        found = []
        for name, total in (("P", "S_N"), ("E_K", "S_D")):
            row = own[name]
            sums = state.held(total).squeeze(1) + row if state.position else row
            window = torch.cat([state.held(name), row.unsqueeze(1)], dim=1)
            # the first tokens have shorter windows, which the last weights of the row belong to
            weights = state.prepared[state.position, self.w - window.shape[1] :].unsqueeze(0)
            found.append(sums + (weights @ window.transpose(0, 1).flatten(1)).view_as(row))
            own[total] = sums
        state.append(**own)
        above, below = found
        return gate * (above / below)


@implementation("aft-simple", "explicit", rewrites=("safe-softmax",), kernels=SIMPLE)
class Simple(AttentionFree):
    """AFT-simple: a softmax of the keys along the sequence weights the values."""

    def mix(self, x: Tensor) -> Tensor:
        """y (b, s, d) of x (b, s, d): one weighted mean of the values, gated by each row."""
        gate, k, v = self.project(x)
        return gate * (torch.softmax(k, dim=1) * v).sum(1, keepdim=True)


@implementation(
    "aft-simple+causal", "recurrent", form="recurrent", kernels=SUMMED, step_kernels=SUMMED
)
class CausalSimple(AttentionFree, Mixer):
    """Causal AFT-simple, a recurrence with numerator and denominator as state."""

    def mix(self, x: Tensor) -> Tensor:
        """y (b, s, d) of x (b, s, d): the quotient of two running sums, gated."""
        gate, k, v = self.project(x)
        keys = torch.exp(k)
        return gate * (running(keys * v) / running(keys))

    def initial_state(self, batch: int, length: int | None = None) -> State:
        """An empty state with N and D, (batch, 1, d) each, for any number of tokens."""
        require_sizes(length=self.l if length is None else length)
        return State({name: self._rows(batch, 1, self.d) for name in ("N", "D")}, sliding=True)

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """The output y_t (b, d) of one token x_t (b, d): add the token's exp(k) v and exp(k) to the
        sums N and D in `state`, then divide them; a gate multiplies the quotient."""
        gate, k, v = self.project(x_t)
        below = torch.exp(k)
        above = below * v
        if state.position:
            above, below = state.held("N").squeeze(1) + above, state.held("D").squeeze(1) + below
        state.append(N=above, D=below)
        return gate * (above / below)
