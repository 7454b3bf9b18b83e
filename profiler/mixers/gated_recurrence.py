"""LFM2's short gated convolution and the block around the RG-LRU in PyTorch.

Sources and choices: costmodel.mixers.gated_recurrence. Rows are (b, s, d), inside the RG-LRU
(b, s, W) with W = n h channels in n blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import Tensor, nn

from profiler.mixers.long_convolution import short_convolution, short_latest
from profiler.mixers.self_attention import linear
from profiler.modules.base import Mixer, PreparedState, State, head_width, require_sizes
from profiler.modules.registry import implementation
from profiler.modules.scans import scan


def gelu_tanh(x: Tensor) -> Tensor:
    """gelu by tanh, entry by entry, in separate operations: torch's own kernel computes tanh again
    for the gradient."""
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


GATED = {
    **dict.fromkeys(("B", "C", "X", "y"), "contraction"),
    **dict.fromkeys(("U", "G"), "elementwise"),
}


@implementation(
    "lfm2",
    "convolution",
    options=("bias",),
    rewrites=("dense",),
    kernels={**GATED, "V": "convolution"},
    step_kernels={**GATED, "V": "reduction"},
)
class ShortGatedConvolution(Mixer):
    """LFM2: W_B, W_C, W_X and W_out (d, d), and the k taps w (k, d) of a short convolution; with
    the option `bias` a bias (d) of each."""

    b_B: nn.Parameter | None
    b_C: nn.Parameter | None
    b_X: nn.Parameter | None
    b_w: nn.Parameter | None
    b_out: nn.Parameter | None

    def __init__(self, *, d: int, l: int, k: int, options: Sequence[str] = ()) -> None:
        """Declare four linear maps of rows of width d, k taps for each channel, and the five biases
        b_* (d,), None without the option `bias`."""
        super().__init__(d=d, l=l)
        require_sizes(k=k)
        self.k = k
        self.W_B: nn.Parameter = self.weight(d, d)
        self.W_C: nn.Parameter = self.weight(d, d)
        self.W_X: nn.Parameter = self.weight(d, d)
        self.w: nn.Parameter = self.weight(k, d)
        self.W_out: nn.Parameter = self.weight(d, d)
        for name in ("B", "C", "X", "w", "out"):
            bias = nn.Parameter(self.like.new_zeros(d)) if "bias" in options else None
            self.register_parameter(f"b_{name}", bias)

    def mix(self, x: Tensor) -> Tensor:
        """y (b, s, d) of x (b, s, d): the convolution of B X, where B = x W_B and X = x W_X, times
        C = x W_C."""
        return self._out(x, short_convolution(self._gated(x), self.w, self.b_w))

    def _gated(self, x: Tensor) -> Tensor:
        """B X (..., d) of rows x (..., d)."""
        return linear(x, self.W_B, self.b_B) * linear(x, self.W_X, self.b_X)

    def _out(self, x: Tensor, V: Tensor) -> Tensor:
        """The outputs (..., d) of rows x (..., d) and of the convolution V (..., d) at the rows."""
        return linear(linear(x, self.W_C, self.b_C) * V, self.W_out, self.b_out)

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """y_t (b, d) of one token x_t (b, d): the convolution at the token's row."""
        U = self._gated(x_t)
        V = short_latest(U, state.held("U"), self.w)
        state.append(U=U)
        return self._out(x_t, V if self.b_w is None else V + self.b_w)

    def initial_state(self, batch: int, length: int | None = None) -> State:
        """An empty state with the last k-1 rows of B X, newest first."""
        require_sizes(batch=batch, length=self.l if length is None else length)
        rows = self.like.new_zeros(batch, self.k - 1, self.d)
        return State({"U": rows}, newest_first=True, sliding=True)


class Unit(Mixer):
    """The RG-LRU in its block or, if not `whole`, between two linear maps.

    The block is a map W_X (d, W), a short convolution w (k, W), the unit, and a gate by W_Z (d, W),
    before W_out (W, d); its maps have biases. The unit has W_R and W_I (n, h, h), b_R and b_I
    (n, h) for its gates R and I, and Lambda (W,): H_i = A_i H_(i-1) + sqrt(1 - A_i^2) I_i U_i with
    A_i = exp(-8 softplus(Lambda) R_i), and H_1 = I_1 U_1.
    """

    def __init__(
        self, *, d: int, l: int, n: int, k: int = 1, h: int | None = None, whole: bool = True
    ) -> None:
        """Declare the weights for W = n*h channels in n blocks of width h (default d/n), and k taps
        of the convolution; without `whole` only the unit between two linear maps."""
        super().__init__(d=d, l=l)
        self.n, self.h = n, head_width(d, n) if h is None else h
        require_sizes(n=n, h=self.h, k=k)
        self.k, self.width, self.whole = k, n * self.h, whole
        self.W_X: nn.Parameter = self.weight(d, self.width)
        if self.whole:
            self.b_X: nn.Parameter = self.weight(self.width)
            self.W_Z: nn.Parameter = self.weight(d, self.width)
            self.b_Z: nn.Parameter = self.weight(self.width)
            self.w: nn.Parameter = self.weight(k, self.width)
            self.b_w: nn.Parameter = self.weight(self.width)
        for gate in "RI":
            setattr(self, f"W_{gate}", self.weight(n, self.h, self.h))
            setattr(self, f"b_{gate}", self.weight(n, self.h))
        self.Lambda: nn.Parameter = self.weight(self.width)
        self.W_out: nn.Parameter = self.weight(self.width, d)
        if self.whole:
            self.b_out: nn.Parameter = self.weight(d)

    def mix(self, x: Tensor) -> Tensor:
        """The output y (b, s, d) of x (b, s, d): maps to rows U (b, s, W), convolved in a block,
        then the unit's recurrence H_i = A_i H_(i-1) + sqrt(1 - A_i^2) I_i U_i."""
        U = x @ self.W_X
        if self.whole:
            U = short_convolution(U + self.b_X, self.w, self.b_w)
        new, T = self.gate("I", U) * U, self.gate("R", U[:, 1:]) * self.rate()
        A, later = torch.exp(T), self.root(T) * new[:, 1:]
        return self.read(x, self.carried(A, new[:, :1], later))

    def carried(self, A: Tensor, first: Tensor, later: Tensor) -> Tensor:
        """H (b, s, W) by a loop over rows, with decays A (b, s-1, W), the first row (b, 1, W), and
        what later rows add (b, s-1, W)."""
        H = [first[:, 0]]
        for kept, added in zip(A.unbind(1), later.unbind(1), strict=True):
            H.append(kept * H[-1] + added)
        return torch.stack(H, dim=1)

    def root(self, T: Tensor) -> Tensor:
        """sqrt(1 - exp(2 T)), the factor of the new term of every row but the first; T = log A."""
        return torch.sqrt(1 - torch.exp(2 * T))

    def gate(self, name: str, U: Tensor) -> Tensor:
        """The gate "R" or "I" (..., W) of rows U (..., W): a sigmoid of each block's map, with a
        matrix and a bias per block."""
        W, b = getattr(self, f"W_{name}"), getattr(self, f"b_{name}")
        blocks = U.reshape(-1, self.n, self.h).transpose(0, 1) @ W
        return torch.sigmoid(blocks.transpose(0, 1) + b).reshape(U.shape)

    def rate(self) -> Tensor:
        """-8 softplus(Lambda), (W,): log A for a gate R of 1."""
        return -8 * F.softplus(self.Lambda)

    def read(self, x: Tensor, H: Tensor) -> Tensor:
        """y (..., d) of rows H (..., W) and, for the block's gate, x (..., d)."""
        if not self.whole:
            return H @ self.W_out
        Z = x @ self.W_Z + self.b_Z
        return (H * gelu_tanh(Z)) @ self.W_out + self.b_out

    @torch.no_grad()
    def initial_state(self, batch: int, length: int | None = None) -> State:
        """Make the state before the first token: zeros for H, one row, and in the block the last
        k-1 rows that the convolution reads, newest first; for any number of tokens (`sliding`);
        `prepared` holds -8 softplus(Lambda)."""
        require_sizes(length=self.l if length is None else length)
        rows = {"H": self._rows(batch, 1, self.width)}
        if self.whole:
            rows["X"] = self.like.new_zeros(batch, self.k - 1, self.width)
        state = PreparedState(rows, newest_first=True, sliding=True)
        state.prepared = self.rate()
        return state

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """The output y_t (b, d) of one token x_t (b, d): the convolution at the token's row U
        (b, W), then one step of the recurrence H' = exp(T) H + root(T) I U from `state`, with the
        gate I and T, the gate R times -8 softplus(Lambda) (`prepared`); H' = I U for the first."""
        assert isinstance(state, PreparedState)
        U, rows = x_t @ self.W_X, {}
        if self.whole:
            rows["X"] = U + self.b_X
            U = short_latest(rows["X"], state.held("X"), self.w) + self.b_w
        H = self.gate("I", U) * U
        if state.position:
            T = self.gate("R", U) * state.prepared
            H = torch.exp(T) * state.held("H").squeeze(1) + self.root(T) * H
        state.append(H=H, **rows)
        return self.read(x_t, H)


CORE = {
    **dict.fromkeys(("X", "R", "I", "y"), "contraction"),
    **dict.fromkeys("LTAQNH", "elementwise"),
}
BLOCK = {**CORE, "Z": "contraction", "Y": "elementwise", "G": "elementwise"}


@implementation(
    "rg-lru",
    "recurrent",
    form="recurrent",
    rewrites=("dense",),
    kernels={**BLOCK, "U": "convolution"},
    step_kernels={**BLOCK, "U": "reduction"},
)
class Block(Unit):
    """The unit in its block."""


@implementation("rg-lru+core", "recurrent", form="recurrent", kernels=CORE, step_kernels=CORE)
class Core(Unit):
    """The unit between two maps."""

    def __init__(self, *, d: int, l: int, n: int, h: int | None = None) -> None:
        super().__init__(d=d, l=l, n=n, h=h, whole=False)


class Scanned(Unit):
    """The unit whose recurrence over sequences is a scan; a token is one step."""

    def carried(self, A: Tensor, first: Tensor, later: Tensor) -> Tensor:
        """H (b, s, W) by a parallel scan."""
        kept = torch.cat((torch.zeros_like(first), A), dim=1)
        return scan(kept, torch.cat((first, later), dim=1))


@implementation(
    "rg-lru",
    "scan",
    form="scan",
    rewrites=("dense",),
    kernels={**BLOCK, "U": "convolution"},
    step_form="recurrent",
    step_kernels={**BLOCK, "U": "reduction"},
)
class BlockScanned(Scanned):
    """The unit in its block, by a scan."""


@implementation(
    "rg-lru+core", "scan", form="scan", kernels=CORE, step_form="recurrent", step_kernels=CORE
)
class CoreScanned(Scanned, Core):
    """The unit between two maps, by a scan."""
