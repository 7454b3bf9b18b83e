"""How do AFT-full and AFT-simple run in PyTorch?

Zhai et al. 2021, with the choices that the equations' file states. No maximum is subtracted before
an exponential.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from profiler.modules.base import Mixer, PreparedState, SequenceMixer, State, require_sizes
from profiler.modules.registry import implementation

MAPS = dict.fromkeys(("Q", "K", "V"), "contraction")
SUMS = dict.fromkeys(("w", "N", "D"), "contraction")
FULL = MAPS | SUMS | dict.fromkeys(("E_K", "E_w", "P", "y"), "elementwise")
SIMPLE = MAPS | {"A": "softmax", "R": "reduction", "y": "elementwise"}
SUMMED = MAPS | dict.fromkeys(("E_K", "N", "D", "y"), "elementwise")


class AttentionFree(SequenceMixer):
    """W_Q, W_K and W_V are (d, d)."""

    def __init__(
        self,
        *,
        d: int,
        l: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(d=d, l=l, device=device, dtype=dtype)
        self.W_Q: nn.Parameter = self.weight(d, d)
        self.W_K: nn.Parameter = self.weight(d, d)
        self.W_V: nn.Parameter = self.weight(d, d)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """sigmoid(Q), K and V, (..., d) each."""
        return torch.sigmoid(x @ self.W_Q), x @ self.W_K, x @ self.W_V


class Full(AttentionFree):
    """A weight for every pair of positions: w is (l, l), or U T^T of U and T (l, r)."""

    bounded = True
    causal: ClassVar[bool] = False

    def __init__(
        self,
        *,
        d: int,
        l: int,
        r: int | None = None,
        options: Sequence[str] = (),
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(d=d, l=l, device=device, dtype=dtype)
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
        """exp(w) of the first positions, 0 where causal and later."""
        w = self.U[:length] @ self.T[:length].t() if self.factorized else self.w[:length, :length]
        return torch.exp(w).tril() if self.causal else torch.exp(w)

    def mix(self, x: Tensor) -> Tensor:
        """Numerators and denominators of all sequences by one product each, then y (b, s, d)."""
        gate, k, v = self.project(x)
        weights, keys = self.powers(x.shape[1]), torch.exp(k)
        above, below = (
            (weights @ rows.transpose(0, 1).flatten(1)).view(rows.transpose(0, 1).shape)
            for rows in (keys * v, keys)
        )
        return gate * (above / below).transpose(0, 1)


@implementation("aft-full", "separate", form="separate", options=("factorized",), kernels=FULL)
class FullSeparate(Full):
    """Exponentials of keys and of weights apart."""


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
    """The same, zeros in place of later weights."""

    causal = True

    @torch.no_grad()
    def initial_state(self, batch: int, length: int | None = None) -> PreparedState:
        """exp(K) and exp(K) V, (batch, length, d) each, beside exp(w)."""
        state = PreparedState({name: self._rows(batch, length, self.d) for name in ("P", "E_K")})
        state.prepared = self.powers(state.capacity)
        return state

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """The token's weights meet what is held and the token's own."""
        assert isinstance(state, PreparedState)
        gate, k, v = self.project(x_t)
        keys = torch.exp(k)
        state.append(P=keys * v, E_K=keys)
        weights = state.prepared[state.position - 1, : state.position]
        above, below = (
            (weights.unsqueeze(0) @ state.held(name).transpose(0, 1).flatten(1)).view_as(gate)
            for name in ("P", "E_K")
        )
        return gate * (above / below)


@implementation("aft-simple", "explicit", rewrites=("safe-softmax",), kernels=SIMPLE)
class Simple(AttentionFree):
    """A softmax along the sequence."""

    def mix(self, x: Tensor) -> Tensor:
        """One mean of the values for all rows, gated: y (b, s, d)."""
        gate, k, v = self.project(x)
        return gate * (torch.softmax(k, dim=1) * v).sum(1, keepdim=True)


@implementation(
    "aft-simple+causal", "recurrent", form="recurrent", kernels=SUMMED, step_kernels=SUMMED
)
class CausalSimple(AttentionFree, Mixer):
    """Two sums are carried from row to row."""

    def mix(self, x: Tensor) -> Tensor:
        """The sums of each row are those of the row before plus its own, then y (b, s, d)."""
        gate, k, v = self.project(x)
        keys = torch.exp(k)
        products = keys * v
        above, below = [products[:, 0]], [keys[:, 0]]
        for i in range(1, x.shape[1]):
            above.append(above[-1] + products[:, i])
            below.append(below[-1] + keys[:, i])
        return gate * (torch.stack(above, dim=1) / torch.stack(below, dim=1))

    def initial_state(self, batch: int, length: int | None = None) -> State:
        """N and D, (batch, 1, d) each, for any number of tokens."""
        require_sizes(length=self.l if length is None else length)
        return State({name: self._rows(batch, 1, self.d) for name in ("N", "D")}, sliding=True)

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """The token is added to the sums, which are then divided."""
        gate, k, v = self.project(x_t)
        below = torch.exp(k)
        above = below * v
        if state.position:
            above, below = state.held("N").squeeze(1) + above, state.held("D").squeeze(1) + below
        state.append(N=above, D=below)
        return gate * (above / below)
