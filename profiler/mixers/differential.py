"""How does differential attention run in PyTorch: weights subtracted, or what they read?

Ye et al. 2024, with the choices that the equations' file states. Shapes, with r = n/g heads of
queries for a head of keys: queries (b, 2, g, r, s, h), keys (b, 2, g, s, h) and values (b, g, s,
2h).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from costmodel.language.macros.norms import RMS_EPS
from costmodel.mixers.differential import FIRST
from costmodel.mixers.self_attention import BASE
from profiler.modules.base import Mixer, PreparedState, State, head_width, require_sizes
from profiler.modules.norms import rms_norm
from profiler.modules.registry import implementation

KERNELS = {
    **dict.fromkeys(("Q", "K", "V", "Z", "y"), "contraction"),
    **dict.fromkeys(("T", "L", "N", "R"), "elementwise"),
    "A": "softmax",
}
"""Array -> kernel class, of what both ways compute."""
WEIGHTS = KERNELS | {"D": "elementwise", "O": "contraction"}
OUTPUTS = KERNELS | {"U": "contraction", "O": "elementwise"}
TURNED = dict.fromkeys(("Q_p", "K_p"), "contraction")


class Differential(Mixer):
    """The base: W_Q (d, 2, g, r*h), W_K (d, 2, g, h), W_V (d, g, 2h), W_out (g, r*2h, d), and
    lambda_Q and lambda_K (2, h). h is d/n unless given. With `rotary`, cos and sin (l, h) are
    tables."""

    cos: Tensor
    sin: Tensor

    def __init__(
        self, *, d: int, l: int, n: int, g: int, h: int | None = None, options: Sequence[str] = ()
    ) -> None:
        """Declare the weights of n heads of width h (default d/n), which share g keys and values;
        the option `rotary` makes l the most tokens. ValueError unless g divides n, or for pairs of
        an odd h."""
        super().__init__(d=d, l=l)
        require_sizes(n=n, g=g)
        if n % g:
            raise ValueError(f"n = {n} heads are not divisible into g = {g} groups")
        self.h = h = head_width(d, n) if h is None else h
        self.g, self.own, self.bounded = g, n // g, "rotary" in options
        self.W_Q = self._shaped(self.weight(d, 2 * n * h), d, 2, self.g, -1)
        self.W_K = self._shaped(self.weight(d, 2 * g * h), d, 2, self.g, h)
        self.W_V = self._shaped(self.weight(d, 2 * g * h), d, self.g, 2 * h)
        self.W_out = self._shaped(self.weight(2 * n * h, d), self.g, -1, d)
        self.lambda_Q: nn.Parameter = self.weight(2, h)
        self.lambda_K: nn.Parameter = self.weight(2, h)
        if self.bounded:
            self._make_tables()

    def _shaped(self, weight: nn.Parameter, *shape: int) -> nn.Parameter:
        return nn.Parameter(weight.detach().view(*shape))

    def _make_tables(self) -> None:
        """Register the tables cos and sin (l, h) of the rotary embedding, of the angle row *
        BASE^(-2j/h) for channels j and j + h/2; ValueError for an odd h."""
        if self.h % 2:
            raise ValueError(f"a rotary embedding turns pairs of channels, and a head has {self.h}")
        half = self.h // 2
        pair = torch.arange(half, dtype=torch.float64, device=self.like.device) / half
        row = torch.arange(self.l, dtype=torch.float64, device=self.like.device)
        angles = (row.unsqueeze(1) * BASE**-pair).repeat(1, 2)
        for name, table in (("cos", angles.cos()), ("sin", angles.sin())):
            self.register_buffer(name, table.to(self.like.dtype), persistent=False)

    def weight_of_second(self) -> Tensor:
        """lambda (1,), which depends on no token."""
        powers = torch.exp((self.lambda_Q * self.lambda_K).sum(-1))
        return powers[:1] - powers[1:] + float(FIRST)

    def projected(self, x: Tensor, first: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (b, 2, g, r, s, h), keys (b, 2, g, s, h) and values (b, g, s, 2h) of rows x
        (b, s, d), the first of them at position `first`."""
        q, k, v = (x @ W.flatten(1) for W in (self.W_Q, self.W_K, self.W_V))
        q = q.view(*x.shape[:2], 2, self.g, self.own, self.h).movedim(1, -2)
        k = k.view(*x.shape[:2], 2, self.g, self.h).movedim(1, -2)
        v = v.view(*x.shape[:2], self.g, 2 * self.h).movedim(1, -2)
        return self.placed(q, first), self.placed(k, first), v

    def placed(self, rows: Tensor, first: int) -> Tensor:
        """Rows (..., s, h) of queries or keys, the first at position `first`, after the rotary
        embedding; unchanged without one."""
        if not self.bounded:
            return rows
        here = slice(first, first + rows.shape[-2])
        one, other = rows.chunk(2, dim=-1)
        return rows * self.cos[here] + torch.cat([-other, one], dim=-1) * self.sin[here]

    def weights(self, q: Tensor, k: Tensor, *, causal: bool) -> Tensor:
        """The softmax weights of s queries q over t keys k, two for each head, (b, 2, g, r, s, t),
        in g groups of r heads; `causal` masks later keys."""
        scores = (q.flatten(3, 4) @ k.mT).view(*q.shape[:-1], -1) / math.sqrt(self.h)
        if causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(later, -math.inf)
        return torch.softmax(scores, dim=-1)

    @abstractmethod
    def difference(self, A: Tensor, v: Tensor, second: Tensor) -> Tensor:
        """O (b, g, r, s, 2h), with lambda `second`."""

    def out(self, A: Tensor, v: Tensor, second: Tensor) -> Tensor:
        """y (b, s, d): O after its norm, times 1 - lambda_0, and the map."""
        O = self.difference(A, v, second)
        N = rms_norm(O, float(1 - FIRST), float(RMS_EPS))
        return N.movedim(-2, 1).flatten(2) @ self.W_out.flatten(0, 1)

    def mix(self, x: Tensor) -> Tensor:
        """y (b, s, d) of x (b, s, d): attend from all rows to all rows before them."""
        q, k, v = self.projected(x, 0)
        return self.out(self.weights(q, k, causal=True), v, self.weight_of_second())

    @torch.no_grad()
    def initial_state(self, batch: int, length: int | None = None) -> PreparedState:
        """Make the state before the first token: room for the keys K (batch, 2, g, length, h) and
        values V (batch, g, length, 2h) of `length` tokens (default: l); `prepared` is lambda, the
        weight of the second weights."""
        rows = self._tokens(batch, length)
        state = PreparedState({
            "K": self.like.new_zeros(batch, 2, self.g, rows, self.h),
            "V": self.like.new_zeros(batch, self.g, rows, 2 * self.h),
        })  # fmt: skip
        state.prepared = self.weight_of_second()
        return state

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """The output y_t (b, d) of one token x_t (b, d), whose keys and values are appended to the
        state: attend to all held rows."""
        assert isinstance(state, PreparedState)
        q, k, v = self.projected(x_t.unsqueeze(1), state.position)
        state.append(K=k.squeeze(-2), V=v.squeeze(-2))
        A = self.weights(q, state.held("K"), causal=False)
        return self.out(A, state.held("V"), state.prepared).squeeze(1)


def of_heads(weights: Tensor, v: Tensor) -> Tensor:
    """Weights (b, g, r, s, t) times the values of their head, (b, g, t, 2h)."""
    return (weights.flatten(-3, -2) @ v).view(*weights.shape[:-1], -1)


@implementation(
    "differential-attention",
    "difference",
    form="difference",
    options=("rotary",),
    option_kernels=TURNED,
    rewrites=("dense", "safe-softmax"),
    kernels=WEIGHTS,
    step_kernels=WEIGHTS,
)
class WeightsSubtracted(Differential):
    """One read of the values, with the difference of the weights."""

    def difference(self, A: Tensor, v: Tensor, second: Tensor) -> Tensor:
        """(A_1 - lambda A_2) V."""
        return of_heads(A[:, 0] - second * A[:, 1], v)


@implementation(
    "differential-attention",
    "outputs",
    form="outputs",
    options=("rotary",),
    option_kernels=TURNED,
    rewrites=("dense", "safe-softmax"),
    kernels=OUTPUTS,
    step_kernels=OUTPUTS,
)
class OutputsSubtracted(Differential):
    """Two reads of the values, subtracted afterwards, as in DiffLlama."""

    def difference(self, A: Tensor, v: Tensor, second: Tensor) -> Tensor:
        """A_1 V - lambda A_2 V."""
        return of_heads(A[:, 0], v) - second * of_heads(A[:, 1], v)
