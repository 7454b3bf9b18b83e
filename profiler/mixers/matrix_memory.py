"""The mLSTM of xLSTM 7B in PyTorch."""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import Tensor, nn

from profiler.modules.base import Mixer, State, head_width, require_sizes
from profiler.modules.registry import implementation

CAP = 15
"""The bound of the mLSTM's gates."""

Gates = tuple[Tensor, Tensor]
"""The input gate I and the logarithm F of the forget gate, (b, n, s) each, or (b, n)."""


def standardised(x: Tensor, eps: float) -> Tensor:
    """Rows (..., m) with mean 0 and variance 1. Means are a sum and one division: torch's mean
    would divide each term in its gradient."""
    centred = x - x.sum(-1, keepdim=True) / x.shape[-1]
    variance = (centred * centred).sum(-1, keepdim=True) / x.shape[-1]
    return centred / (variance + eps).sqrt()


def larger(one: Tensor, other: Tensor) -> Tensor:
    """The larger entries; torch.maximum would halve the gradient of equal ones."""
    return torch.where(one > other, one, other)


class Cells(Mixer):
    """n cells of K keys and h values, in the layer of xLSTM 7B or, if not `whole`, between linear
    maps: W_Q and W_K (d, n K), W_V and W_O (d, n h), W_I and W_F (d, n), b_I and b_F (n,), gain
    (n h,), W_out (n h, d)."""

    def __init__(
        self, *, d: int, l: int, n: int, K: int, h: int | None = None, whole: bool = True
    ) -> None:
        super().__init__(d=d, l=l)
        self.n, self.K, self.h = n, K, head_width(d, n) if h is None else h
        require_sizes(n=n, K=K, h=self.h)
        self.whole, width = whole, n * self.h
        self.W_Q: nn.Parameter = self.weight(d, n * K)
        self.W_K: nn.Parameter = self.weight(d, n * K)
        self.W_V: nn.Parameter = self.weight(d, width)
        self.W_I: nn.Parameter = self.weight(d, n)
        self.W_F: nn.Parameter = self.weight(d, n)
        if whole:
            self.b_I: nn.Parameter = self.weight(n)
            self.b_F: nn.Parameter = self.weight(n)
            self.W_O: nn.Parameter = self.weight(d, width)
            self.gain: nn.Parameter = self.weight(width)
        self.W_out: nn.Parameter = self.weight(width, d)

    def mix(self, x: Tensor) -> Tensor:
        """H (b, n, s, h) of all heads, then y (b, s, d)."""
        heads = (self.heads(x, W).transpose(1, 2) for W in (self.W_Q, self.W_K, self.W_V))
        H = self.read(*heads, *(gate.transpose(1, 2) for gate in self.gates(x)))
        return self.joined(x, H.transpose(1, 2))

    @abstractmethod
    def read(self, q: Tensor, k: Tensor, v: Tensor, I: Tensor, F: Tensor) -> Tensor:
        """H (b, n, s, h) of all rows, from queries and keys (b, n, s, K), values (b, n, s, h) and
        gates (b, n, s)."""

    def heads(self, x: Tensor, W: Tensor) -> Tensor:
        """x W as n heads, (..., n, width)."""
        return (x @ W).view(*x.shape[:-1], self.n, -1)

    def gates(self, x: Tensor) -> Gates:
        """I and F, (..., n) each."""
        I, z = x @ self.W_I, x @ self.W_F
        if self.whole:
            I, z = (
                CAP * torch.tanh((rows + bias) / CAP)
                for rows, bias in ((I, self.b_I), (z, self.b_F))
            )
        return I, -F.softplus(-z)

    def quotient(self, reads: Tensor, weights: Tensor, M: Tensor) -> Tensor:
        """`reads` (..., h) over the larger of |weights| and exp(-M), plus 1e-6."""
        least = larger(larger(weights, -weights), torch.exp(-M))
        return reads / (least + 1e-6).unsqueeze(-1)

    def joined(self, x: Tensor, H: Tensor) -> Tensor:
        """y (..., d) of the heads (..., n, h)."""
        if self.whole:
            normed = standardised(H, 1e-6) * self.gain.view(self.n, -1)
            return (torch.sigmoid(x @ self.W_O) * normed.flatten(-2)) @ self.W_out
        return H.flatten(-2) @ self.W_out

    def initial_state(self, batch: int, length: int | None = None) -> State:
        """S, Z and M of each head, for any number of tokens."""
        require_sizes(batch=batch, length=self.l if length is None else length)
        shapes = {"S": (self.K, self.h), "Z": (self.K,), "M": ()}
        rows = {name: self.like.new_zeros(batch, self.n, *shape) for name, shape in shapes.items()}
        return State(rows, carried=tuple(rows))

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """Each head's matrix takes the token in, and the token's query reads it."""
        q, k, v = (self.heads(x_t, W) for W in (self.W_Q, self.W_K, self.W_V))
        I, F = self.gates(x_t)
        before = state.held("M") if state.position else None
        M = self.bound(before, I, F)
        A = torch.exp(I - M).unsqueeze(-1) * k
        S, Z = A.unsqueeze(-1) * v.unsqueeze(-2), A
        if before is not None:
            P = torch.exp(F + before - M).unsqueeze(-1)
            S, Z = P.unsqueeze(-1) * state.held("S") + S, P * state.held("Z") + Z
        state.append(S=S, Z=Z, M=M)
        return self.joined(x_t, self.latest(q / math.sqrt(self.K), S, Z, M))

    def bound(self, M: Tensor | None, I: Tensor, F: Tensor) -> Tensor:
        """The next M, (b, n); None stands for the M before the first row."""
        return larger(F if M is None else F + M, I)

    def bounds(self, I: Tensor, F: Tensor) -> Tensor:
        """M (b, n, s) of all rows."""
        found: list[Tensor] = []
        for I_i, F_i in zip(I.unbind(-1), F.unbind(-1), strict=True):
            found.append(self.bound(found[-1] if found else None, I_i, F_i))
        return torch.stack(found, dim=-1)

    def latest(self, q: Tensor, S: Tensor, Z: Tensor, M: Tensor) -> Tensor:
        """H (b, n, h) of the scaled queries (b, n, K) of one row."""
        return self.quotient((q.unsqueeze(-2) @ S).squeeze(-2), (q * Z).sum(-1), M)


class CellsRowByRow(Cells):
    """The cells by their recurrence."""

    def read(self, q: Tensor, k: Tensor, v: Tensor, I: Tensor, F: Tensor) -> Tensor:
        """The recurrence over rows."""
        M = self.bounds(I, F)
        A = torch.exp(I - M).unsqueeze(-1) * k
        P = torch.exp(F[..., 1:] + M[..., :-1] - M[..., 1:])
        q, S, Z = q / math.sqrt(self.K), A[:, :, 0].unsqueeze(-1) * v[:, :, :1], A[:, :, 0]
        rows = [self.latest(q[:, :, 0], S, Z, M[..., 0])]
        for i in range(1, q.shape[2]):
            kept = P[..., i - 1].unsqueeze(-1)
            S = kept.unsqueeze(-1) * S + A[:, :, i].unsqueeze(-1) * v[:, :, i].unsqueeze(-2)
            Z = kept * Z + A[:, :, i]
            rows.append(self.latest(q[:, :, i], S, Z, M[..., i]))
        return torch.stack(rows, dim=2)


class CellsOfPairs(Cells):
    """The cells by the gated products of all pairs."""

    def read(self, q: Tensor, k: Tensor, v: Tensor, I: Tensor, F: Tensor) -> Tensor:
        """Score all pairs, then leave the scores of later rows out."""
        G = F.cumsum(-1)
        M = self.bounds(I, F)
        L = G.unsqueeze(-1) - G.unsqueeze(-2) + I.unsqueeze(-2) - M.unsqueeze(-1)
        later = torch.ones_like(L[0, 0], dtype=torch.bool).triu(1)
        A = q @ k.transpose(-2, -1) / math.sqrt(self.K)
        B = A * torch.exp(L.masked_fill(later, -math.inf))
        return self.quotient(B @ v, B.sum(-1), M)


CORE = {
    **dict.fromkeys(("Q", "K", "V", "I", "F", "y"), "contraction"),
    **dict.fromkeys(("M", "D", "R"), "elementwise"),
    **{"W": "reduction", "H": "contraction"},
}
CARRIED = {**CORE, **dict.fromkeys(("E", "P", "A", "S", "Z", "U"), "elementwise")}
PAIRS = {
    **CORE,
    **{"G": "running-sum", "A": "contraction", "B": "elementwise"},
}
LAYER = {"N": "elementwise", "O": "contraction"}


@implementation(
    "mlstm",
    "recurrent",
    form="recurrent",
    kernels=CARRIED | LAYER,
    step_kernels=CARRIED | LAYER,
)
class MlstmCarried(CellsRowByRow):
    """The layer by the recurrence."""


@implementation(
    "mlstm",
    "parallel",
    form="parallel",
    rewrites=("dense",),
    kernels=PAIRS | LAYER,
    step_form="recurrent",
    step_kernels=CARRIED | LAYER,
)
class MlstmOfPairs(CellsOfPairs):
    """The layer by all pairs."""


@implementation("mlstm+core", "recurrent", form="recurrent", kernels=CARRIED, step_kernels=CARRIED)
class CoreCarried(CellsRowByRow):
    """The cells by the recurrence."""

    def __init__(self, *, d: int, l: int, n: int, K: int, h: int | None = None) -> None:
        super().__init__(d=d, l=l, n=n, K=K, h=h, whole=False)
