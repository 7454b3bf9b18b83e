"""Selective state spaces in PyTorch: Mamba, Mamba-2 and Mamba-3.

Sources and choices: costmodel.mixers.selective. Sequences are (b, s, d), the states S of Mamba
(b, E, N), those of Mamba-2 (b, G, n/G, P, N), with n heads of P channels in G groups that share K
and Q. A row's step Delta is positive; S becomes exp(Delta A) S + Delta X B, and the row reads S C
(B and C are called K and Q in Mamba-2).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import Tensor, nn

from profiler.mixers.long_convolution import short_convolution, short_latest
from profiler.modules.base import Mixer, PreparedState, State, require_sizes
from profiler.modules.norms import rms_norm
from profiler.modules.registry import implementation
from profiler.modules.running_sums import (
    ChunkState,
    after_first,
    before_each,
    by_chunk,
    carried,
    in_turn,
    with_earlier,
)
from profiler.modules.scans import scan

BIASES = ("no-conv-bias", "in-bias", "out-bias")
"""Options of Mamba and Mamba-2 about biases."""
EPS = 1e-5
"""What is added to a mean square, as in transformers and mamba-ssm."""


class Selective(Mixer):
    """A layer around a selective state space: linear maps whose rows pass short convolutions with k
    taps and silu, and a gate. If `core`, there are no convolutions, no silu and no gate."""

    core: ClassVar[bool] = False
    options: Collection[str] = ()
    """Options about biases: `no-conv-bias`, `in-bias`, `out-bias`."""
    k: int
    W_Z: nn.Parameter
    log_A: nn.Parameter

    def declare_rows(self, name: str, width: int) -> None:
        """Declare the map W_name (d, width), with `in-bias` its bias p_name (width,), and unless
        `core` the taps w_name (k, width) and, unless `no-conv-bias`, the bias b_name (width,) of
        its convolution."""
        self.declare_map(name, width)
        if not self.core:
            setattr(self, f"w_{name}", self.weight(self.k, width))
            if "no-conv-bias" not in self.options:
                setattr(self, f"b_{name}", self.weight(width))

    def declare_map(self, name: str, width: int) -> None:
        """Declare W_name (d, width) and, with `in-bias`, p_name (width,)."""
        setattr(self, f"W_{name}", self.weight(self.d, width))
        if "in-bias" in self.options:
            setattr(self, f"p_{name}", self.weight(width))

    def declare_out(self, width: int) -> None:
        """Declare W_out (width, d) and, with `out-bias`, p_out (d,)."""
        self.W_out: nn.Parameter = self.weight(width, self.d)
        if "out-bias" in self.options:
            self.p_out = self.weight(self.d)

    def mapped(self, x: Tensor, name: str) -> Tensor:
        """The rows x (..., in) times W_name, plus the bias p_name if there is one."""
        found: Tensor = x @ getattr(self, f"W_{name}")
        bias = getattr(self, f"p_{name}", None)
        return found if bias is None else found + bias

    def rows(self, x: Tensor, name: str, state: State | None, new: dict[str, Tensor]) -> Tensor:
        """Map rows x (`mapped`), then convolve them over tokens and apply silu (neither if `core`).

        Args:
            x: sequences (b, s, d), or one token (b, d).
            state: None for sequences; for a token, holds the last k-1 mapped rows before it.
            new: receives a token's mapped row, for the state; nothing of sequences or if `core`.

        Returns:
            Rows (..., width).
        """
        projected = self.mapped(x, name)
        if self.core:
            return projected
        w, b = getattr(self, f"w_{name}"), getattr(self, f"b_{name}", None)
        if state is None:
            return F.silu(short_convolution(projected, w, b))
        new[f"U_{name}"] = projected
        latest = short_latest(projected, state.held(f"U_{name}"), w)
        return F.silu(latest if b is None else latest + b)

    def short_rows(self, batch: int, **widths: int) -> dict[str, Tensor]:
        """A dict: arrays of a state, name -> zeros (batch, k-1, width): the last k-1 rows that each
        convolution of k taps reads. `widths`: name of a map -> its width; {} if `core`, without
        convolutions."""
        held = {} if self.core else widths
        return {
            f"U_{name}": self.like.new_zeros(batch, self.k - 1, width)
            for name, width in held.items()
        }

    @torch.no_grad()
    def carrying(
        self, batch: int, length: int | None, shape: Sequence[int], **widths: int
    ) -> PreparedState:
        """Make the state before the first token: S, zeros (batch, *shape), and zeros for the last
        k-1 rows that each convolution reads (`widths`: name of a map -> its width), for any number
        of tokens (`sliding`); `prepared` holds A, the negative rates of the decays exp(Delta A).
        ValueError for a batch or length that is no positive integer."""
        require_sizes(batch=batch, length=self.l if length is None else length)
        arrays = {"S": self.like.new_zeros(batch, *shape), **self.short_rows(batch, **widths)}
        state = PreparedState(arrays, newest_first=True, sliding=True, carried=("S",))
        state.prepared = self.A()
        return state

    def A(self) -> Tensor:
        """A = -exp(log_A), computed once before the first token in inference."""
        return -torch.exp(self.log_A)

    @abstractmethod
    def out(self, x: Tensor, read: Tensor) -> Tensor:
        """y (..., d) of x (..., d) and the reads of its rows: gated unless `core`, then mapped."""


CORE = {
    **dict.fromkeys(("kept", "U", "A", "S"), "elementwise"),
    **dict.fromkeys(("step", "O", "y"), "contraction"),
}
AROUND = {"H": "elementwise", "Z": "contraction"}


def kernels(*names: str, convolution: str) -> dict[str, str]:
    """A dict: array -> kernel class, for each map X of `names`: its projection U_X, its convolution
    T_X (of the class `convolution`), and X itself, which is silu of T_X."""
    found = dict.fromkeys((f"U_{name}" for name in names), "contraction")
    found |= dict.fromkeys((f"T_{name}" for name in names), convolution)
    return found | dict.fromkeys(names, "elementwise")


class Mamba(Selective):
    """Mamba: W_X and W_Z (d, E), w_X (k, E), b_X (E), W_R (E, R), W_dt (R, E), b_dt (E), W_B and
    W_C (E, N), log_A (E, N), D (E) and W_out (E, d); if `normed`, gain_T (R), gain_B and gain_C
    (N)."""

    normed: ClassVar[bool] = False

    def __init__(
        self, *, d: int, l: int, N: int, E: int, R: int, k: int = 1, options: Collection[str] = ()
    ) -> None:
        """Declare the weights: E channels with N states each, a step size per channel by a map of
        rank R, a convolution of k taps, and biases by the options `BIASES`; without the convolution
        and the gate W_Z in a class whose attribute `core` is True."""
        super().__init__(d=d, l=l)
        require_sizes(N=N, E=E, R=R, k=k)
        self.N, self.E, self.k, self.options = N, E, k, options
        self.declare_rows("X", E)
        self.W_R: nn.Parameter = self.weight(E, R)
        self.W_dt: nn.Parameter = self.weight(R, E)
        self.b_dt: nn.Parameter = self.weight(E)
        self.W_B: nn.Parameter = self.weight(E, N)
        self.W_C: nn.Parameter = self.weight(E, N)
        if self.normed:
            for name, width in (("T", R), ("B", N), ("C", N)):
                setattr(self, f"gain_{name}", self.weight(width))
        self.log_A = self.weight(E, N)
        self.D: nn.Parameter = self.weight(E)
        if not self.core:
            self.declare_map("Z", E)
        self.declare_out(E)

    def mix(self, x: Tensor) -> Tensor:
        """The output y (b, s, d) of sequences x (b, s, d), by a loop over rows that holds the state
        S (b, E, N) of one row at a time: E channels with N states each, which B writes and C reads;
        a row's value X times D is added to what is read."""
        X = self.rows(x, "X", None, {})
        step, U, B, C = self.given(X)
        kept = torch.exp(step[:, 1:].unsqueeze(-1) * self.A())
        S: Tensor | None = None
        read = []
        for i in range(x.shape[1]):
            S = self.following(S, None if S is None else kept[:, i - 1], U[:, i], B[:, i])
            read.append(self.read(S, C[:, i]))
        return self.out(x, torch.stack(read, dim=1) + self.D * X)

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """The output y_t (b, d) of one token x_t (b, d), by one step of the recurrence from
        `state`, which holds S (b, E, N), N states of each of E channels: B writes U, the value
        times the step, to S, and C reads it."""
        assert isinstance(state, PreparedState)
        new: dict[str, Tensor] = {}
        X = self.rows(x_t, "X", state, new)
        step, U, B, C = self.given(X)
        S = kept = None
        if state.position:
            S, kept = state.held("S"), torch.exp(step.unsqueeze(-1) * state.prepared)
        S = self.following(S, kept, U, B)
        state.append(S=S, **new)
        return self.out(x_t, self.read(S, C) + self.D * X)

    def given(self, X: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What the recurrence reads of rows X (..., E): (Delta, U, B, C), the steps Delta and U =
        Delta X, (..., E) each, and B (written to the state) and C (read from it), (..., N) each."""
        T, B, C = X @ self.W_R, X @ self.W_B, X @ self.W_C
        if self.normed:
            T, B, C = (
                rms_norm(rows, getattr(self, f"gain_{name}"), EPS)
                for name, rows in (("T", T), ("B", B), ("C", C))
            )
        step = F.softplus(T @ self.W_dt + self.b_dt)
        return step, step * X, B, C

    def following(self, S: Tensor | None, kept: Tensor | None, U: Tensor, B: Tensor) -> Tensor:
        """The states (b, E, N) after a row: `kept` * S + U B. S and `kept` = exp(Delta A),
        (b, E, N) each, are None for the first row; U is (b, E), B (b, N)."""
        added = U.unsqueeze(-1) * B.unsqueeze(1)
        return added if S is None or kept is None else kept * S + added

    def read(self, S: Tensor, C: Tensor) -> Tensor:
        """The sum over N of S C, (b, E)."""
        return (S @ C.unsqueeze(-1)).squeeze(-1)

    def out(self, x: Tensor, read: Tensor) -> Tensor:
        """y (..., d) of the reads (..., E): times silu of the gate x W_Z unless `core`, then mapped
        by W_out."""
        H = read if self.core else read * F.silu(self.mapped(x, "Z"))
        return self.mapped(H, "out")

    def initial_state(self, batch: int, length: int | None = None) -> State:
        """An empty state with S, and the last k-1 rows of the convolution."""
        return self.carrying(batch, length, (self.E, self.N), X=self.E)


class MambaScanned(Mamba):
    """Mamba whose sequences are scanned in parallel; a token is one step of the recurrence."""

    def mix(self, x: Tensor) -> Tensor:
        """The output y (b, s, d) of sequences x (b, s, d), by a scan of the states (b, s, E, N)."""
        X = self.rows(x, "X", None, {})
        step, U, B, C = self.given(X)
        kept = torch.exp(step[:, 1:].unsqueeze(-1) * self.A())
        S = scan(from_nothing(kept), U.unsqueeze(-1) * B.unsqueeze(2))
        return self.out(x, self.read(S, C) + self.D * X)


def from_nothing(kept: Tensor) -> Tensor:
    """Decays (b, s-1, ...) of later rows as those of all rows (b, s, ...): 0 for the first."""
    return torch.cat((kept.new_zeros(kept.shape[0], 1, *kept.shape[2:]), kept), dim=1)


PARTS = dict.fromkeys(("T", "B", "C"), "contraction")
NORMS = dict.fromkeys(PARTS, "elementwise") | {f"{name}_p": kind for name, kind in PARTS.items()}
BARE = {"X": "contraction"}


SCANNED = {"V": "elementwise"}


@implementation(
    "mamba",
    "recurrent",
    options=BIASES,
    form="recurrent",
    rewrites=("dense",),
    kernels=CORE | PARTS | AROUND | kernels("X", convolution="convolution"),
    step_kernels=CORE | PARTS | AROUND | kernels("X", convolution="reduction"),
)
class MambaRecurrent(Mamba):
    """Mamba by the recurrence."""


@implementation(
    "mamba",
    "scan",
    options=BIASES,
    form="scan",
    rewrites=("dense",),
    kernels=CORE | PARTS | AROUND | SCANNED | kernels("X", convolution="convolution"),
    step_form="recurrent",
    step_kernels=CORE | PARTS | AROUND | kernels("X", convolution="reduction"),
)
class MambaScan(MambaScanned):
    """Mamba by a scan."""


@implementation(
    "mamba+norms",
    "recurrent",
    options=BIASES,
    form="recurrent",
    rewrites=("dense",),
    kernels=CORE | NORMS | AROUND | kernels("X", convolution="convolution"),
    step_kernels=CORE | NORMS | AROUND | kernels("X", convolution="reduction"),
)
class MambaNormed(Mamba):
    """Mamba with norms of B, C and the rows that give the step."""

    normed = True


@implementation(
    "mamba+norms",
    "scan",
    options=BIASES,
    form="scan",
    rewrites=("dense",),
    kernels=CORE | NORMS | AROUND | SCANNED | kernels("X", convolution="convolution"),
    step_form="recurrent",
    step_kernels=CORE | NORMS | AROUND | kernels("X", convolution="reduction"),
)
class MambaNormedScan(MambaScanned):
    """Mamba with norms, by a scan."""

    normed = True


@implementation(
    "mamba+core",
    "recurrent",
    form="recurrent",
    kernels=CORE | PARTS | BARE,
    step_kernels=CORE | PARTS | BARE,
)
class MambaCore(Mamba):
    """The recurrence of Mamba with bare projections."""

    core = True


@implementation(
    "mamba+core",
    "scan",
    form="scan",
    kernels=CORE | PARTS | BARE | SCANNED,
    step_form="recurrent",
    step_kernels=CORE | PARTS | BARE,
)
class MambaCoreScan(MambaScanned):
    """The recurrence of Mamba with bare projections, by a scan."""

    core = True


class Mamba2(Selective):
    """Mamba-2 in n heads of P channels, with N states per channel, and K and Q in G groups: W_X and
    W_Z (d, n*P), W_K and W_Q (d, G*N), taps w and biases b for the convolutions of X, K and Q, W_dt
    (d, n), b_dt, log_A and D (n,), gain (n*P,) and W_out (n*P, d). A subclass chooses the
    recurrence over rows, pairs of rows, or chunks."""

    def __init__(
        self, *, d: int, l: int, n: int, P: int, N: int, G: int, k: int = 1,
        options: Collection[str] = (),
    ) -> None:  # fmt: skip
        """Declare the weights: n heads of P channels with N states each, in G groups, and k taps;
        without gain by the option `no-norm`, without taps, W_Z and gain if `core`; `BIASES` are
        further options. ValueError unless G divides n."""
        super().__init__(d=d, l=l)
        require_sizes(n=n, P=P, N=N, G=G, k=k)
        if n % G:
            raise ValueError(f"n must be divisible by G: n = {n} and G = {G}")
        self.n, self.P, self.N, self.G, self.k = n, P, N, G, k
        self.options = options
        self.declare_rows("X", n * P)
        self.declare_rows("K", G * N)
        self.declare_rows("Q", G * N)
        self.declare_map("dt", n)
        self.b_dt: nn.Parameter = self.weight(n)
        self.log_A = self.weight(n)
        self.D: nn.Parameter = self.weight(n)
        if not self.core:
            self.declare_map("Z", n * P)
        self.normed = not self.core and "no-norm" not in options
        if self.normed:
            self.gain: nn.Parameter = self.weight(n * P)
        self.declare_out(n * P)

    def given(
        self, x: Tensor, state: State | None, new: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """What the recurrence reads of rows x (..., d): (X, K, Q, Delta, U) with values X (..., n,
        P), keys K and queries Q (..., G, N), the steps Delta (..., n) and U = Delta X (..., n, P).
        For one token `state` holds the earlier rows (None for sequences), and `new` receives the
        token's rows before the convolutions."""
        X, K, Q = (self.rows(x, name, state, new) for name in "XKQ")
        X = X.view(*X.shape[:-1], self.n, self.P)
        K, Q = (rows.view(*rows.shape[:-1], self.G, self.N) for rows in (K, Q))
        step = F.softplus(self.mapped(x, "dt") + self.b_dt)
        return X, K, Q, step, step.unsqueeze(-1) * X

    def out(self, x: Tensor, read: Tensor) -> Tensor:
        """The output y (..., d) from the reads (..., n, P) of the state by n heads of P channels:
        times silu of the gate, normalised within each of G groups (neither if `core`, no norm with
        `no-norm`), then mapped by W_out."""
        rows = read.flatten(-2)
        if not self.core:
            rows = rows * F.silu(self.mapped(x, "Z"))
        if self.normed:
            split = (self.G, self.n // self.G * self.P)
            gated = rows.view(*rows.shape[:-1], *split)
            rows = rms_norm(gated, self.gain.view(split), EPS).flatten(-2)
        return self.mapped(rows, "out")

    def weighted(self, M: Tensor, decays: Tensor, U: Tensor) -> Tensor:
        """The reads (b, n, ..., s, P) of s rows from r rows: the sum of the rows U (b, n, ..., r,
        P), weighted by the scores M (b, G, ..., s, r) times the decays (b, n, ..., s, r)."""
        return (M.unsqueeze(2) * self.grouped(decays)).flatten(1, 2) @ U

    def grouped(self, rows: Tensor) -> Tensor:
        """Arrays of heads (b, n, ...) by groups, (b, G, n/G, ...)."""
        return rows.reshape(len(rows), self.G, self.n // self.G, *rows.shape[2:])


class Mamba2Recurrent(Mamba2):
    """Mamba-2 by the recurrence over rows."""

    def mix(self, x: Tensor) -> Tensor:
        """The output y (b, s, d) of sequences x (b, s, d), by a loop over rows that holds one row's
        state S (b, G, n/G, P, N): n heads of P channels with N states each, in G groups that share
        keys K and queries Q; a row is read by Q, and D times its value X added."""
        X, K, Q, step, U = self.given(x, None, {})
        kept = torch.exp(step[:, 1:] * self.A())
        S: Tensor | None = None
        read = []
        for i in range(x.shape[1]):
            S = self.following(S, None if S is None else kept[:, i - 1], U[:, i], K[:, i])
            read.append(self.read(S, Q[:, i]))
        return self.out(x, torch.stack(read, dim=1) + self.D.unsqueeze(-1) * X)

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """The output y_t (b, d) of one token x_t (b, d), by one step of the recurrence from
        `state`, which holds S (b, G, n/G, P, N): exp(step * A), with A in `prepared`, times S, plus
        U (the step times the value X) times the key K, is read by the query Q."""
        assert isinstance(state, PreparedState)
        new: dict[str, Tensor] = {}
        X, K, Q, step, U = self.given(x_t, state, new)
        S = kept = None
        if state.position:
            S, kept = state.held("S"), torch.exp(step * state.prepared)
        S = self.following(S, kept, U, K)
        state.append(S=S, **new)
        return self.out(x_t, self.read(S, Q) + self.D.unsqueeze(-1) * X)

    def following(self, S: Tensor | None, kept: Tensor | None, U: Tensor, K: Tensor) -> Tensor:
        """The states (b, G, n/G, P, N) after a row: `kept` * S + U K. S and `kept` = exp(Delta A)
        (b, n) are None for the first row; U is (b, n, P), K (b, G, N)."""
        heads = (-1, self.G, self.n // self.G)
        added = U.view(*heads, self.P, 1) * K.view(-1, self.G, 1, 1, self.N)
        return added if S is None or kept is None else kept.view(*heads, 1, 1) * S + added

    def read(self, S: Tensor, Q: Tensor) -> Tensor:
        """The sum over N of S Q, (b, n, P)."""
        rows = S.flatten(2, 3) @ Q.unsqueeze(-1)
        return rows.view(-1, self.n, self.P)

    def initial_state(self, batch: int, length: int | None = None) -> State:
        """An empty state with S, and the last k-1 rows of each convolution."""
        shape = (self.G, self.n // self.G, self.P, self.N)
        X, K = self.n * self.P, self.G * self.N
        return self.carrying(batch, length, shape, X=X, K=K, Q=K)


class Mamba2Scanned(Mamba2Recurrent):
    """Mamba-2 whose sequences are scanned in parallel; a token is one step of the recurrence."""

    def mix(self, x: Tensor) -> Tensor:
        """The output y (b, s, d) of sequences x (b, s, d), by a scan of the states S (b, s, G, n/G,
        P, N): a row's decay `kept`, one per head, times S before, plus U K (U is the step times the
        value X); a row is read by Q, and D times X added."""
        X, K, Q, step, U = self.given(x, None, {})
        rows = (*x.shape[:2], self.G, self.n // self.G)
        kept = from_nothing(torch.exp(step[:, 1:] * self.A())).view(*rows, 1, 1)
        added = U.view(*rows, self.P, 1) * K.view(*x.shape[:2], self.G, 1, 1, self.N)
        read = scan(kept, added).flatten(3, 4) @ Q.unsqueeze(-1)
        return self.out(x, read.view(X.shape) + self.D.unsqueeze(-1) * X)


class Mamba2Parallel(Mamba2):
    """Mamba-2 by the pairs of all rows; F (..., n) is the sum of the logarithms of the decays up to
    a row, so that exp(F_i - F_j) is the decay from row j to row i."""

    def mix(self, x: Tensor) -> Tensor:
        """The output y (b, s, d) of sequences x (b, s, d): row i sums the rows U_j, j <= i (steps
        times values X), weighted by Q_i . K_j exp(F_i - F_j), F being `sums`; pairs with later rows
        are masked; D times X is added."""
        X, K, Q, step, U = self.given(x, None, {})
        sums = (step * self.A()).cumsum(1).transpose(1, 2)
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        between = (sums.unsqueeze(-1) - sums.unsqueeze(-2)).masked_fill(later, -math.inf)
        M = Q.transpose(1, 2) @ K.permute(0, 2, 3, 1)
        read = self.weighted(M, torch.exp(between), U.transpose(1, 2)).transpose(1, 2)
        return self.out(x, read + self.D.unsqueeze(-1) * X)

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """The output y_t (b, d) of one token x_t (b, d), which reads the rows of all tokens so far:
        `state` holds their F, K and U, and the token's are appended (F is `total`)."""
        assert isinstance(state, PreparedState)
        new: dict[str, Tensor] = {}
        X, K, Q, step, U = self.given(x_t, state, new)
        total = step * state.prepared
        total = state.held("F")[:, :, 0, 0] + total if state.position else total
        state.append(F=total.unsqueeze(-1), K=K, U=U, **new)
        decays = torch.exp(total[..., None, None] - state.held("F").mT)
        M = Q.unsqueeze(2) @ state.held("K").mT
        read = self.weighted(M, decays, state.held("U")).squeeze(2)
        return self.out(x_t, read + self.D.unsqueeze(-1) * X)

    @torch.no_grad()
    def initial_state(self, batch: int, length: int | None = None) -> State:
        """Make the state before the first token: room for F (sums of log decays), K and U of
        `length` tokens (default: l), and for the last k-1 rows that each convolution reads;
        `prepared` holds A, the negative rates of decays."""
        X, K = self.n * self.P, self.G * self.N
        shapes = {"F": (self.n, 1), "K": (self.G, self.N), "U": (self.n, self.P)}
        arrays = {name: self._rows(batch, length, *shape) for name, shape in shapes.items()}
        arrays |= self.short_rows(batch, X=X, K=K, Q=K)
        state = PreparedState(arrays, newest_first=True)
        state.prepared = self.A()
        return state


class Mamba2Chunked(Mamba2):
    """Mamba-2 in chunks of C rows, all computed at once: all pairs of rows within a chunk, those
    with later rows masked, and states S at the end of each chunk, which later chunks read; F (...,
    n) is the sum of the logarithms of the decays since the chunk's start."""

    def __init__(
        self, *, d: int, l: int, n: int, P: int, N: int, G: int, C: int, k: int = 1,
        options: Collection[str] = (),
    ) -> None:  # fmt: skip
        """Declare the weights: n heads of P channels with N states each, in G groups; k taps of the
        convolutions; chunks of C rows; with the option `no-norm` without gain; and `BIASES`."""
        super().__init__(d=d, l=l, n=n, P=P, N=N, G=G, k=k, options=options)
        require_sizes(C=C)
        self.C = C

    def mix(self, x: Tensor) -> Tensor:
        """The output y (b, s, d) of sequences x (b, s, d): each row reads the rows of its chunk up
        to itself, by its query Q and their keys K, times their decay, and the states S at the
        chunk's start; D times its value X is added. A chunk of fewer than C rows, the last, does
        not update S."""
        X, K, Q, step, U = self.given(x, None, {})
        A = self.A().view(-1, 1, 1)
        own, groups = [], []
        for keys, queries, steps, values in by_chunk(
            self.C, *(rows.transpose(1, 2) for rows in (K, Q, step, U))
        ):
            reads, F = self.within(keys, queries, steps, values, A)
            own.append(reads)
            groups.append((keys, queries, F, values))
        read = in_turn(own)
        if x.shape[1] >= self.C:
            keys, _, F, values = groups[0]
            kept = self.grouped(torch.exp(F[:, :, 1:, -1]))[..., None, None]
            S = carried(self.added(keys, F, values), kept.unbind(3))
            later_rows = (after_first([group[part] for group in groups]) for part in (2, 1))
            found = map(self.of_states, before_each(S, groups), *later_rows)
            read = with_earlier(read, list(found))
        return self.out(x, read.transpose(1, 2) + self.D.unsqueeze(-1) * X)

    def within(
        self, keys: Tensor, queries: Tensor, steps: Tensor, values: Tensor, A: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(what rows read of the rows of their chunk up to themselves, (b, n, chunks, r, P); F (b,
        n, chunks, r)), from keys and queries (b, G, chunks, r, N), steps (b, n, chunks, r) and
        values U (b, n, chunks, r, P); A (n, 1, 1) times a step is the logarithm of a decay."""
        r = steps.shape[3]
        later = torch.ones(r, r, dtype=torch.bool, device=steps.device).triu(1)
        F = steps.unsqueeze(-2).expand(-1, -1, -1, r, r).masked_fill(later, 0).sum(-1) * A
        between = (F.unsqueeze(-1) - F.unsqueeze(-2)).masked_fill(later, -math.inf)
        return self.weighted(queries @ keys.mT, torch.exp(between), values), F

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """The output y_t (b, d) of one token x_t (b, d), which reads the rows of its chunk so far
        and S; the last token of a chunk updates S. `latest` is F of the token, and the decay from
        a row of the chunk is exp(`latest` - F)."""
        assert isinstance(state, ChunkState)
        new: dict[str, Tensor] = {}
        X, K, Q, step, U = self.given(x_t, state, new)
        held, heads = state.held("S"), (self.G, 1, self.n // self.G)
        S = held.view(-1, *heads, self.P, self.N) if held.shape[2] else None
        steps = torch.cat([state.held("step"), step[..., None, None]], dim=2)
        latest = (steps.sum(2).squeeze(-1) * state.prepared)[..., None, None]
        state.append(F=latest.flatten(2), step=step.unsqueeze(-1), K=K, U=U, **new)
        F, keys, values = (state.chunk(name).unsqueeze(2) for name in ("F", "K", "U"))
        F, query = F.squeeze(-1), Q[:, :, None, None]
        decays = torch.exp(latest - F).unsqueeze(3)
        read = self.weighted(query @ keys.mT, decays, values)
        if S is not None:
            read = read + self.of_states(S, latest, query)
        if not state.in_chunk:
            after = self.added(keys, F, values)
            if S is not None:
                after = torch.exp(latest).view(-1, *heads, 1, 1) * S + after
            state.complete(S=after.view(-1, self.n, self.P * self.N))
        return self.out(x_t, read[:, :, 0, 0] + self.D.unsqueeze(-1) * X)

    def of_states(self, S: Tensor, F: Tensor, Q: Tensor) -> Tensor:
        """The reads (b, n, c, s, P) of the states S (b, G, c, n/G, P, N) at the start of each of c
        chunks, by s rows with queries Q (b, G, c, s, N), which decay by exp(F) (b, n, c, s)."""
        found = Q @ S.flatten(3, 4).mT
        rows = (
            found.view(*found.shape[:4], self.n // self.G, self.P)
            .permute(0, 1, 4, 2, 3, 5)
            .flatten(1, 2)
        )
        return torch.exp(F).unsqueeze(-1) * rows

    def added(self, K: Tensor, F: Tensor, U: Tensor) -> Tensor:
        """What each of c complete chunks adds to the states, (b, G, c, n/G, P, N), with keys K (b,
        G, c, C, N), sums F of log decays (b, n, c, C) and U (b, n, c, C, P)."""
        rows = self.grouped(torch.exp(F[..., -1:] - F).unsqueeze(-1) * U)
        found = rows.permute(0, 1, 3, 2, 5, 4).flatten(3, 4) @ K
        return found.view(*found.shape[:3], self.n // self.G, self.P, self.N)

    @torch.no_grad()
    def initial_state(self, batch: int, length: int | None = None) -> State:
        """Make the state before the first token: room for F (sums of log decays), steps, K and U of
        one chunk of C tokens, for S, and for the last k-1 rows that each convolution reads; it
        serves any number of tokens (`sliding`); `prepared` holds A, the negative rates of
        decays."""
        require_sizes(batch=batch, length=self.l if length is None else length)
        rows = {"F": (self.n, 1), "step": (self.n, 1), "K": (self.G, self.N), "U": (self.n, self.P)}
        arrays = {
            name: self.like.new_zeros(batch, heads, self.C, width)
            for name, (heads, width) in rows.items()
        }
        arrays["S"] = self.like.new_zeros(batch, self.n, 1, self.P * self.N)
        arrays |= self.short_rows(batch, X=self.n * self.P, K=self.G * self.N, Q=self.G * self.N)
        state = ChunkState(arrays, newest_first=True, sliding=True, chunked=tuple(rows))
        state.prepared = self.A()
        return state


NORMED = AROUND | {"Y": "elementwise"}
HEADS = "XKQ"
BARE_HEADS = dict.fromkeys(HEADS, "contraction")


@implementation(
    "mamba-2",
    "recurrent",
    options=("no-norm", *BIASES),
    form="recurrent",
    rewrites=("dense",),
    kernels=CORE | NORMED | kernels(*HEADS, convolution="convolution"),
    step_kernels=CORE | NORMED | kernels(*HEADS, convolution="reduction"),
)
class Mamba2Layer(Mamba2Recurrent):
    """Mamba-2 by the recurrence."""


@implementation(
    "mamba-2+core",
    "recurrent",
    form="recurrent",
    kernels=CORE | BARE_HEADS,
    step_kernels=CORE | BARE_HEADS,
)
class Mamba2Core(Mamba2Recurrent):
    """The recurrence of Mamba-2 with bare projections."""

    core = True


@implementation(
    "mamba-2",
    "scan",
    options=("no-norm", *BIASES),
    form="scan",
    rewrites=("dense",),
    kernels=CORE | NORMED | SCANNED | kernels(*HEADS, convolution="convolution"),
    step_form="recurrent",
    step_kernels=CORE | NORMED | kernels(*HEADS, convolution="reduction"),
)
class Mamba2Scan(Mamba2Scanned):
    """Mamba-2 by a scan."""


@implementation(
    "mamba-2+core",
    "scan",
    form="scan",
    kernels=CORE | BARE_HEADS | SCANNED,
    step_form="recurrent",
    step_kernels=CORE | BARE_HEADS,
)
class Mamba2ScanCore(Mamba2Scanned):
    """The scan of Mamba-2 with bare projections."""

    core = True


PAIRS = {
    **dict.fromkeys(("U", "A", "W"), "elementwise"),
    **dict.fromkeys(("M", "step", "O", "y"), "contraction"),
}
ALL_PAIRS = PAIRS | {"F": "running-sum"}
NEW_PAIRS = PAIRS | {"F": "elementwise"}


@implementation(
    "mamba-2",
    "parallel",
    options=("no-norm", *BIASES),
    form="parallel",
    rewrites=("dense",),
    kernels=ALL_PAIRS | NORMED | kernels(*HEADS, convolution="convolution"),
    step_kernels=NEW_PAIRS | NORMED | kernels(*HEADS, convolution="reduction"),
)
class Mamba2Pairs(Mamba2Parallel):
    """Mamba-2 by the pairs of all rows."""


@implementation(
    "mamba-2+core",
    "parallel",
    form="parallel",
    rewrites=("dense",),
    kernels=ALL_PAIRS | BARE_HEADS,
    step_kernels=NEW_PAIRS | BARE_HEADS,
)
class Mamba2PairsCore(Mamba2Parallel):
    """The pairs of all rows with bare projections."""

    core = True


IN_CHUNKS = {
    **PAIRS,
    **dict.fromkeys("ETBL", "elementwise"),
    **dict.fromkeys("VS", "contraction"),
    "F": "reduction",
}


@implementation(
    "mamba-2",
    "chunked",
    options=("no-norm", *BIASES),
    form="chunked",
    rewrites=("dense",),
    kernels=IN_CHUNKS | NORMED | kernels(*HEADS, convolution="convolution"),
    step_kernels=IN_CHUNKS | NORMED | kernels(*HEADS, convolution="reduction"),
)
class Mamba2LayerInChunks(Mamba2Chunked):
    """Mamba-2 in chunks of C rows."""


@implementation(
    "mamba-2+core",
    "chunked",
    form="chunked",
    rewrites=("dense",),
    kernels=IN_CHUNKS | BARE_HEADS,
    step_kernels=IN_CHUNKS | BARE_HEADS,
)
class Mamba2ChunkedCore(Mamba2Chunked):
    """Chunks of C rows with bare projections."""

    core = True


class Rows3(NamedTuple):
    """The arrays that Mamba-3 makes from rows (..., d): X (..., n, P), `step` Delta and `lam`
    lambda (..., n), `turn`, the angles per unit of Delta (..., R), and B and C (..., G, N), or
    (..., G, r, N) with r inputs and outputs."""

    X: Tensor
    step: Tensor
    lam: Tensor
    turn: Tensor
    B: Tensor
    C: Tensor


Parts = tuple[Tensor, Tensor]
"""An array along the N states, in two parts: the 2R states that are rotated, R pairs, then the M
other states: (..., 2R) and (..., M)."""


class Mamba3(Selective):
    """Mamba-3 in n heads of P channels with N = 2R + M states each: W_X and W_Z (d, n*P), W_B and
    W_C (d, G, N), W_dt, W_A and W_lam (d, n), W_turn (d, R), b_dt and D (n,), b_K and b_Q (n, N),
    gain_B and gain_C (N,), W_out (n*P, d).

    S_i = alpha_i S_(i-1) + V_i K_(i-1) + U_i K_i, with U_i = lambda_i Delta_i X_i and V_i =
    (1 - lambda_i) Delta_i alpha_i X_(i-1); K and Q are B and C plus a bias per head, rotated by the
    angles theta, the running sum of Delta times `turn`.

    With the option `mimo` a head has r inputs and outputs: W_B and W_C are (d, G, r, N), b_K and
    b_Q (n, r, N); K and Q have an axis r before the states; up_X (n, r, P) makes r rows of X and of
    V, whose products with K are added; up_Z (n, r, P) makes r gates, and the sum of the r gated
    reads times `down` (n, r, P) is the head's output.
    """

    def __init__(
        self, *, d: int, l: int, n: int, P: int, R: int, M: int, G: int, r: int = 1,
        options: Collection[str] = (),
    ) -> None:  # fmt: skip
        """Declare the weights: n heads of P channels in G groups; of the 2R + M states of a
        channel, R pairs are rotated; with the option `mimo` r inputs and outputs a head. ValueError
        unless G divides n."""
        super().__init__(d=d, l=l)
        require_sizes(n=n, P=P, R=R, M=M, G=G, r=r)
        if n % G:
            raise ValueError(f"n must be divisible by G: n = {n} and G = {G}")
        self.n, self.P, self.R, self.M, self.G = n, P, R, M, G
        self.many = (r,) if "mimo" in options else ()
        N = 2 * R + M
        self.W_X: nn.Parameter = self.weight(d, n * P)
        self.W_B: nn.Parameter = self.weight(d, G, *self.many, N)
        self.W_C: nn.Parameter = self.weight(d, G, *self.many, N)
        self.W_dt: nn.Parameter = self.weight(d, n)
        self.W_A: nn.Parameter = self.weight(d, n)
        self.W_lam: nn.Parameter = self.weight(d, n)
        self.W_turn: nn.Parameter = self.weight(d, R)
        self.b_dt: nn.Parameter = self.weight(n)
        self.b_K: nn.Parameter = self.weight(n, *self.many, N)
        self.b_Q: nn.Parameter = self.weight(n, *self.many, N)
        self.D: nn.Parameter = self.weight(n)
        if not self.core:
            self.W_Z = self.weight(d, n * P)
            self.gain_B: nn.Parameter = self.weight(N)
            self.gain_C: nn.Parameter = self.weight(N)
        if self.many:
            self.up_X: nn.Parameter = self.weight(n, r, P)
            self.down: nn.Parameter = self.weight(n, r, P)
            if not self.core:
                self.up_Z: nn.Parameter = self.weight(n, r, P)
        self.W_out: nn.Parameter = self.weight(n * P, d)

    def given(self, x: Tensor) -> Rows3:
        """The arrays that the recurrence reads of rows x (..., d): X, steps, lambda, angles, B and
        C (`Rows3`); B and C are normalised unless `core`."""
        B, C = ((x @ W.flatten(1)).view(*x.shape[:-1], *W.shape[1:]) for W in (self.W_B, self.W_C))
        if not self.core:
            B, C = rms_norm(B, self.gain_B, EPS), rms_norm(C, self.gain_C, EPS)
        return Rows3(
            (x @ self.W_X).view(*x.shape[:-1], self.n, self.P),
            F.softplus(x @ self.W_dt + self.b_dt),
            torch.sigmoid(x @ self.W_lam),
            math.pi * torch.tanh(x @ self.W_turn),
            B,
            C,
        )

    def kept(self, x: Tensor, step: Tensor) -> Tensor:
        """The decays alpha = exp(-max(softplus(x W_A), 1e-4) Delta), (..., n), of rows x (..., d)
        with the steps Delta (..., n)."""
        return torch.exp(-F.softplus(x @ self.W_A).clamp_min(1e-4) * step)

    def turned(self, rows: Tensor, bias: Tensor, cos: Tensor, sin: Tensor) -> Parts:
        """K or Q in two parts, the rotated channels (..., n, 2R) and the others (..., n, M): B or C
        (`rows`, (..., G, N)) plus the bias (n, N) of each head, whose first 2R channels are rotated
        by the angles with these cosines and sines (..., n, R). With r inputs and outputs, an axis r
        stands before the channels."""
        group = -2 - len(self.many)  # of a new axis after the groups, for the heads of one
        heads = (self.G, self.n // self.G)
        all_ = (rows.unsqueeze(group) + bias.view(*heads, *bias.shape[1:])).flatten(
            group - 1, group
        )
        cos, sin = self.of_heads(cos), self.of_heads(sin)
        u, v = all_[..., : self.R], all_[..., self.R : 2 * self.R]
        turned = torch.cat([u * cos - v * sin, u * sin + v * cos], dim=-1)
        return turned, all_[..., 2 * self.R :]

    def of_heads(self, rows: Tensor) -> Tensor:
        """Rows of heads, (..., n, any width); with r inputs and outputs (..., n, 1, any width)."""
        return rows.unsqueeze(-2) if self.many else rows

    def inputs(self, X: Tensor) -> Tensor:
        """What the inputs of a head are given of its rows X (..., n, P): X itself, or X times up_X,
        (..., n, r, P)."""
        return self.of_heads(X) * self.up_X if self.many else X

    def added(self, U: Tensor, K: Tensor) -> Tensor:
        """The products (b, n, P, N) of U (b, n, P) and K (b, n, N), or the sums over r of those of
        U (b, n, r, P) and K (b, n, r, N)."""
        return U.mT @ K if self.many else U.unsqueeze(-1) * K.unsqueeze(-2)

    def following(
        self, S: Parts | None, K: Parts, U: Tensor, kept: Tensor | None, V: Tensor | None,
        before: Parts | None,
    ) -> Parts:  # fmt: skip
        """The state S after a row with K and U (b, n, P), in two parts (b, n, P, 2R) and (b, n, P,
        M), of rotated and other channels: kept S + V K_before + U K. S, the decay `kept` (b, n), V
        (b, n, P) and `before`, K of the row before, are None for the first row. U and V are (b, n,
        r, P) with r inputs."""
        added = [self.added(U, k) for k in K]
        if S is None or kept is None or V is None or before is None:
            return added[0], added[1]
        one, two = (
            kept[..., None, None] * s + self.added(V, k) + own
            for s, k, own in zip(S, before, added, strict=True)
        )
        return one, two

    def read(self, S: Parts, Q: Parts) -> Tensor:
        """The sum of S Q over a channel's states, rotated and other, (b, n, P), or (b, n, r, P)."""
        if self.many:
            one, two = (q @ s.mT for s, q in zip(S, Q, strict=True))
        else:
            one, two = ((s @ q.unsqueeze(-1)).squeeze(-1) for s, q in zip(S, Q, strict=True))
        return one + two

    def mix(self, x: Tensor) -> Tensor:
        """The output y (b, s, d) of sequences x (b, s, d): angles theta by a running sum over rows;
        then K, Q and U of all rows, V and the decays `kept` from the second row on; then `reads` of
        the states, plus D times X."""
        rows = self.given(x)
        angles = self.summed(rows.turn.unsqueeze(2) * rows.step.unsqueeze(-1))
        cos, sin = torch.cos(angles), torch.sin(angles)
        K, Q = (self.turned(*of, cos, sin) for of in ((rows.B, self.b_K), (rows.C, self.b_Q)))
        X = self.inputs(rows.X)
        U = self.of_heads((rows.lam * rows.step).unsqueeze(-1)) * X
        kept = self.kept(x[:, 1:], rows.step[:, 1:])
        factor = self.earlier(rows.lam[:, 1:], rows.step[:, 1:], kept)
        V = self.inputs(factor.unsqueeze(-1) * rows.X[:, :-1])
        read = self.reads(K, Q, U, kept, V)
        return self.out(x, read + self.of_heads(self.D.unsqueeze(-1)) * X)

    def summed(self, change: Tensor) -> Tensor:
        """The running sums over rows of the changes of the angles, (b, s, n, R)."""
        theta = [change[:, 0]]
        for i in range(1, change.shape[1]):
            theta.append(theta[-1] + change[:, i])
        return torch.stack(theta, dim=1)

    def reads(self, K: Parts, Q: Parts, U: Tensor, kept: Tensor, V: Tensor) -> Tensor:
        """What Q reads of the states, (b, s, n, P), or (b, s, n, r, P), by a loop over s rows that
        holds one row's S: K, Q and U of all rows, the decays `kept` (b, s-1, n) and V of later
        rows."""
        S: Parts | None = None
        read = []
        for i in range(U.shape[1]):
            own, one = (K[0][:, i], K[1][:, i]), (Q[0][:, i], Q[1][:, i])
            if S is None:
                S = self.following(None, own, U[:, i], None, None, None)
            else:
                last = K[0][:, i - 1], K[1][:, i - 1]
                S = self.following(S, own, U[:, i], kept[:, i - 1], V[:, i - 1], last)
            read.append(self.read(S, one))
        return torch.stack(read, dim=1)

    def earlier(self, lam: Tensor, step: Tensor, kept: Tensor) -> Tensor:
        """The factor (1 - lambda) Delta alpha, (..., n), of the term of the row before."""
        return (1 - lam) * step * kept

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """The output y_t (b, d) of one token x_t (b, d), by one step of the recurrence from
        `state`: S, in a rotated part (_T) and another (_F), is decayed and gets the values of this
        token (U) and the one before (V) times their keys K, rotated by the running angles theta;
        queries Q read it."""
        rows = self.given(x_t)
        theta = rows.turn.unsqueeze(1) * rows.step.unsqueeze(-1)
        theta = state.held("theta") + theta if state.position else theta
        cos, sin = torch.cos(theta), torch.sin(theta)
        K, Q = (self.turned(*of, cos, sin) for of in ((rows.B, self.b_K), (rows.C, self.b_Q)))
        X = self.inputs(rows.X)
        U = self.of_heads((rows.lam * rows.step).unsqueeze(-1)) * X
        S: Parts | None = None
        before, kept, V = None, None, None
        if state.position:
            S, before = ((state.held(f"{x}_T"), state.held(f"{x}_F")) for x in "SK")
            kept = self.kept(x_t, rows.step)
            factor = self.earlier(rows.lam, rows.step, kept)
            V = self.inputs(factor.unsqueeze(-1) * state.held("X"))
        S = self.following(S, K, U, kept, V, before)
        state.append(S_T=S[0], S_F=S[1], K_T=K[0], K_F=K[1], X=rows.X, theta=theta)
        return self.out(x_t, self.read(S, Q) + self.of_heads(self.D.unsqueeze(-1)) * X)

    def out(self, x: Tensor, read: Tensor) -> Tensor:
        """y (..., d) of the reads (..., n, P): times silu of the gate unless `core`, then mapped by
        W_out. Reads (..., n, r, P) have a gate each, and are added, times `down`."""
        if self.many:
            if not self.core:
                gate = (x @ self.W_Z).view(*x.shape[:-1], self.n, 1, self.P)
                read = read * F.silu(gate * self.up_Z)
            return (read * self.down).sum(-2).flatten(-2) @ self.W_out
        H = read.flatten(-2)
        return (H if self.core else H * F.silu(x @ self.W_Z)) @ self.W_out

    def initial_state(self, batch: int, length: int | None = None) -> State:
        """Make the state before the first token: zeros for S in two parts (_T: rotated channels,
        _F: others), and for K, X and the angles theta of the newest row; each token replaces all of
        them."""
        require_sizes(batch=batch, length=self.l if length is None else length)
        n, P, R, M = self.n, self.P, self.R, self.M
        shapes = {
            "S_T": (n, P, 2 * R), "S_F": (n, P, M),
            "K_T": (n, *self.many, 2 * R), "K_F": (n, *self.many, M), "X": (n, P), "theta": (n, R),
        }  # fmt: skip
        arrays = {k: self.like.new_zeros(batch, *shape) for k, shape in shapes.items()}
        return State(arrays, sliding=True, carried=tuple(arrays))


class Mamba3Scanned(Mamba3):
    """Mamba-3 whose sequences are scanned in parallel; a token is one step of the recurrence."""

    def summed(self, change: Tensor) -> Tensor:
        """The running sums over rows of the changes of the angles, by a scan with decays of 1."""
        return scan(torch.ones_like(change[:, :, :1, :1]), change)

    def reads(self, K: Parts, Q: Parts, U: Tensor, kept: Tensor, V: Tensor) -> Tensor:
        """What Q reads of the states, (b, s, n, P), or (b, s, n, r, P): both parts of the states of
        all rows, (b, s, n, P, 2R) and (b, s, n, P, M), are made by a scan: U K, plus V K of the row
        before, with the decays `kept` (b, s-1, n)."""
        decays = from_nothing(kept)[..., None, None]
        found = []
        for part in K:
            own = self.added(U, part)
            later = self.added(V, part[:, :-1]) + own[:, 1:]
            found.append(scan(decays, torch.cat((own[:, :1], later), dim=1)))
        return self.read((found[0], found[1]), Q)


TURNING = {
    **dict.fromkeys(("theta", "cos", "sin", "kept", "before", "own", "U", "V"), "elementwise"),
    **dict.fromkeys(("S_T", "S_F", "K_B", "K_T", "K_F", "Q_B", "Q_T", "Q_F"), "elementwise"),
    **dict.fromkeys(("X", "B", "C", "step", "A", "lam", "turn", "O", "y"), "contraction"),
}
GATED = AROUND | dict.fromkeys(("N_B", "N_C"), "elementwise")
MANY = {
    **TURNING,
    **dict.fromkeys(("X_r", "V_r", "Y"), "elementwise"),
    **dict.fromkeys(("S_T", "S_F"), "contraction"),
    "H": "reduction",
}
SCANNED_3 = dict.fromkeys(("one", "change", "added_T", "added_F"), "elementwise")
SCANNED_MANY = SCANNED_3 | dict.fromkeys(("added_T", "added_F"), "contraction")


@implementation(
    "mamba-3", "recurrent", form="recurrent", kernels=TURNING | GATED, step_kernels=TURNING | GATED
)
class Mamba3Layer(Mamba3):
    """Mamba-3 by the recurrence."""


@implementation(
    "mamba-3+core", "recurrent", form="recurrent", kernels=TURNING, step_kernels=TURNING
)
@implementation("mamba-3+core+mimo", "recurrent", form="recurrent", kernels=MANY, step_kernels=MANY)
class Mamba3Core(Mamba3):
    """The recurrence of Mamba-3 with bare projections, with one input and output a head or r."""

    core = True


@implementation(
    "mamba-3+mimo", "recurrent", form="recurrent", kernels=GATED | MANY, step_kernels=GATED | MANY
)
class Mamba3LayerOfMany(Mamba3):
    """Mamba-3 with r inputs and outputs a head, by the recurrence."""


@implementation(
    "mamba-3",
    "scan",
    form="scan",
    kernels=TURNING | GATED | SCANNED_3,
    step_form="recurrent",
    step_kernels=TURNING | GATED,
)
class Mamba3Scan(Mamba3Scanned):
    """Mamba-3 by a scan."""


@implementation(
    "mamba-3+core",
    "scan",
    form="scan",
    kernels=TURNING | SCANNED_3,
    step_form="recurrent",
    step_kernels=TURNING,
)
@implementation(
    "mamba-3+core+mimo",
    "scan",
    form="scan",
    kernels=MANY | SCANNED_MANY,
    step_form="recurrent",
    step_kernels=MANY,
)
class Mamba3ScanCore(Mamba3Scanned):
    """The recurrence of Mamba-3 with bare projections, by a scan, with one input a head or r."""

    core = True


@implementation(
    "mamba-3+mimo",
    "scan",
    form="scan",
    kernels=GATED | MANY | SCANNED_MANY,
    step_form="recurrent",
    step_kernels=GATED | MANY,
)
class Mamba3ScanOfMany(Mamba3Scanned):
    """Mamba-3 with r inputs and outputs a head, by a scan."""
