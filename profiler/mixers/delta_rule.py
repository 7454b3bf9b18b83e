"""DeltaNet, Gated DeltaNet and Kimi Delta Attention in PyTorch.

The equations are those of costmodel.mixers.delta_rule. Shapes, with n = g r heads of values in g
groups that share a query and a key (DeltaNet and KDA have g = n): queries and keys (b, s, g, 1, K),
values (b, s, g, r, V), degrees beta (b, s, g, r), logarithms of decays (b, s, g, r), or (b, s, g,
r, K) with one for each channel of the key, and the state S (b, g, r, K, V).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import Tensor, nn

from costmodel.mixers.delta_rule import LEAST_LOG
from profiler.mixers.long_convolution import short_convolution, short_latest
from profiler.modules.base import Mixer, PreparedState, State, head_width, require_sizes
from profiler.modules.norms import rms_norm
from profiler.modules.registry import implementation

KERNELS = {
    **dict.fromkeys(("X_Q", "X_K", "X_V", "B", "R", "y"), "contraction"),
    **dict.fromkeys(("C_Q", "C_K", "C_V"), "convolution"),
    **dict.fromkeys(("H_Q", "H_K", "H_V", "N_Q", "N_K", "Q"), "elementwise"),
    **dict.fromkeys(("U", "O"), "contraction"),
    "S": "elementwise",
}
"""Array -> kernel class, for DeltaNet."""
DECAYING = {
    **KERNELS,
    **dict.fromkeys(("E", "Z"), "contraction"),
    **dict.fromkeys(("A", "D", "N_O"), "elementwise"),
}
"""The same for Gated DeltaNet."""
PER_CHANNEL = {**DECAYING, **dict.fromkeys(("F", "G"), "contraction")}
"""The same for KDA."""
STEP = dict.fromkeys(("C_Q", "C_K", "C_V"), "reduction")
"""The kernel classes that differ for one token."""


class Rows(NamedTuple):
    """The arrays that a recurrence reads, for a sequence (b, s, ...) or one token (b, ...), with
    the shapes of the module's docstring: queries, keys, values, and degrees beta."""

    q: Tensor
    k: Tensor
    v: Tensor
    beta: Tensor


def l2_norm(x: Tensor) -> Tensor:
    """Rows (..., m) divided by sqrt(sum of squares + 1e-6)."""
    return x / ((x * x).sum(-1, keepdim=True) + 1e-6).sqrt()


def decayed(S: Tensor, decay: Tensor) -> Tensor:
    """S (b, g, r, K, V) times a decay per head (b, g, r), or per channel of the key
    (b, g, r, K)."""
    return decay.reshape(*decay.shape, *(1,) * (S.ndim - decay.ndim)) * S


def times(rows: Tensor, S: Tensor) -> Tensor:
    """Rows (b, g, 1, K) times S (b, g, r, K, V): (b, g, r, V). A row is expanded to the r heads of
    its group, since counters of matrix products read the shape of the first operand alone."""
    return (rows.expand(S.shape[:-1]).unsqueeze(-2) @ S).squeeze(-2)


def following(S: Tensor | None, row: Rows, decay: Tensor | None) -> Tensor:
    """S (b, g, r, K, V) after a token: S' + k u^T, where S' = exp(decay) S and u = beta (v - k S').

    Args:
        S: the state before; None for the first token, with u = beta v.
        row: the token's query, key, value and degree.
        decay: the logarithm of the token's decay, as `decayed` takes it; None without a decay.
    """
    if S is None:
        u = row.beta.unsqueeze(-1) * row.v
        return row.k.unsqueeze(-1) * u.unsqueeze(-2)
    before = S if decay is None else decayed(S, decay.exp())
    u = row.beta.unsqueeze(-1) * (row.v - times(row.k, before))
    return before + row.k.unsqueeze(-1) * u.unsqueeze(-2)


class DeltaRule(Mixer):
    """A delta rule: W_Q, W_K (d, g*K), W_V (d, n*V), W_b (d, n) and W_out (n*V, d); without `core`
    the taps w_Q, w_K (k, g*K) and w_V (k, n*V), and the gain (V,) of the norm of o."""

    eps = 1e-5
    """The constant under the root of the norm of o."""

    def __init__(
        self, *, d: int, l: int, k: int | None, groups: int, repeat: int, key: int, value: int,
        options: Sequence[str],
    ) -> None:  # fmt: skip
        """`groups` keys of width `key`, each shared by `repeat` heads with values of width `value`;
        convolutions of k taps, None with the option `core`."""
        super().__init__(d=d, l=l)
        self.groups, self.repeat, self.key, self.value = groups, repeat, key, value
        self.n, self.core = groups * repeat, "core" in options
        self.negative = "negative" in options
        self.widths = {"Q": groups * key, "K": groups * key, "V": self.n * value}
        for name, width in self.widths.items():
            setattr(self, f"W_{name}", self.weight(d, width))
        self.W_b: nn.Parameter = self.weight(d, self.n)
        if not self.core:
            self.k = _taps(k)
            for name, width in self.widths.items():
                setattr(self, f"w_{name}", self.weight(self.k, width))
            self.gain: nn.Parameter = self.weight(value)
        self.W_out: nn.Parameter = self.weight(self.n * value, d)

    def rate(self) -> Tensor:
        """The factor A of the decays' logarithms, which depends on parameters alone; an empty
        tensor without decays."""
        return self.like

    def decay(self, x: Tensor, rate: Tensor) -> Tensor | None:
        """The logarithms of the decays of rows x (..., d), given A of `rate`; None without
        decays."""
        return None

    def gated(self, x: Tensor, o: Tensor) -> Tensor:
        """The normed o (..., g, r, V) times the gate of rows x; o itself without a gate."""
        return o

    def mix(self, x: Tensor) -> Tensor:
        """The rows of the recurrence, its reads o, then y (b, s, d)."""
        projected = self.projected(x)
        if not self.core:
            projected = {
                name: F.silu(short_convolution(row, getattr(self, f"w_{name}")))
                for name, row in projected.items()
            }
        return self.joined(x, self.whole(x, self.rows(x, projected)))

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """The short convolutions at the token, then one step of the recurrence: y_t (b, d)."""
        projected, held = self.projected(x_t), {}
        if not self.core:
            held = {f"X_{name}": row for name, row in projected.items()}
            projected = {
                name: F.silu(short_latest(row, state.held(f"X_{name}"), getattr(self, f"w_{name}")))
                for name, row in projected.items()
            }
        return self.joined(x_t, self.latest(x_t, self.rows(x_t, projected), state, held))

    def projected(self, x: Tensor) -> dict[str, Tensor]:
        """The maps of x to queries, keys and values."""
        return {name: x @ getattr(self, f"W_{name}") for name in self.widths}

    def rows(self, x: Tensor, projected: dict[str, Tensor]) -> Rows:
        """Normed queries over sqrt(K), normed keys, values, and degrees sigmoid(x W_b), which the
        option `negative` doubles, all split into heads."""
        q, k = (l2_norm(self.split(projected[name], self.key, repeat=1)) for name in "QK")
        v, beta = self.split(projected["V"], self.value), torch.sigmoid(x @ self.W_b)
        beta = 2 * beta if self.negative else beta
        return Rows(q * self.key**-0.5, k, v, self.split(beta))

    def split(self, rows: Tensor, *width: int, repeat: int | None = None) -> Tensor:
        """Reshape heads side by side (..., g*r*w) to (..., g, r, w), or (..., g*r) to (..., g, r);
        `repeat` stands in place of r."""
        return rows.view(*rows.shape[:-1], self.groups, repeat or self.repeat, *width)

    def joined(self, x: Tensor, o: Tensor) -> Tensor:
        """y (..., d) of o (..., g, r, V)."""
        if not self.core:
            o = self.gated(x, rms_norm(o, self.gain, self.eps))
        return o.flatten(-3) @ self.W_out

    def whole(self, x: Tensor, rows: Rows) -> Tensor:
        """o (b, s, g, r, V), by a loop over rows; the first row has no decay."""
        decays = self.decay(x[:, 1:], self.rate())
        S: Tensor | None = None
        found = []
        for i in range(x.shape[1]):
            row = Rows(*(of[:, i] for of in rows))
            S = following(S, row, decays[:, i - 1] if decays is not None and i else None)
            found.append(times(row.q, S))
        return torch.stack(found, dim=1)

    def latest(self, x_t: Tensor, row: Rows, state: State, held: dict[str, Tensor]) -> Tensor:
        """o (b, g, r, V) of one token: S after the token, read by its query, from `row` (its query,
        key, value and degree). The state takes S and the rows `held` of the convolutions."""
        S = decay = None
        if state.position:
            assert isinstance(state, PreparedState)
            S, decay = state.arrays["S"], self.decay(x_t, state.prepared)
        S = following(S, row, decay)
        state.append(S=S, **held)
        return times(row.q, S)

    @torch.no_grad()
    def initial_state(self, batch: int, length: int | None = None) -> State:
        """S, and the last k-1 rows of each convolution; `prepared` holds A."""
        require_sizes(batch=batch, length=self.l if length is None else length)
        arrays: dict[str, tuple[int, ...]] = {"S": (self.groups, self.repeat, self.key, self.value)}
        if not self.core:
            arrays |= {f"X_{name}": (self.k - 1, width) for name, width in self.widths.items()}
        zeros = {name: self.like.new_zeros(batch, *shape) for name, shape in arrays.items()}
        state = PreparedState(zeros, newest_first=True, sliding=True, carried=("S",))
        state.prepared = self.rate()
        return state


def _taps(k: int | None) -> int:
    """The number of taps; ValueError without one."""
    if k is None:
        raise ValueError("a delta rule without the option 'core' needs the size k, its taps")
    require_sizes(k=k)
    return k


@implementation(
    "deltanet",
    "recurrent",
    form="recurrent",
    options=("core", "negative"),
    rewrites=("dense", "scale=mul"),
    kernels=KERNELS,
    step_kernels=KERNELS | STEP,
)
class DeltaNet(DeltaRule):
    """DeltaNet: n heads of width h, d/n unless given."""

    def __init__(
        self, *, d: int, l: int, n: int, h: int | None = None, k: int | None = None,
        options: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """n heads of width h (default d/n); k taps, needed without the option `core`."""
        width = head_width(d, n) if h is None else h
        super().__init__(d=d, l=l, k=k, groups=n, repeat=1, key=width, value=width, options=options)


class Decaying(DeltaRule):
    """A delta rule with decays, of which A_log (n,) and dt are parameters."""

    A_log: nn.Parameter
    dt: nn.Parameter

    def rate(self) -> Tensor:
        """A = -exp(A_log), (g, r); a subclass with a decay per channel makes it (g, r, 1)."""
        return -torch.exp(self.A_log).view(self.groups, self.repeat)


@implementation(
    "gated-deltanet",
    "recurrent",
    form="recurrent",
    options=("core", "negative"),
    rewrites=("dense", "scale=mul"),
    kernels=DECAYING,
    step_kernels=DECAYING | STEP,
)
class GatedDeltaNet(Decaying):
    """Gated DeltaNet: W_a (d, n), A_log and dt (n,); without `core` the gate's W_z (d, n*V)."""

    eps = 1e-6

    def __init__(
        self, *, d: int, l: int, n: int, g: int, K: int, V: int, k: int | None = None,
        options: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """n heads with values of width V, which share g keys of width K; k taps, needed without the
        option `core`. ValueError unless g divides n."""
        require_sizes(n=n, g=g, K=K, V=V)
        if n % g:
            raise ValueError(f"n = {n} heads are not divisible into g = {g} groups")
        super().__init__(d=d, l=l, k=k, groups=g, repeat=n // g, key=K, value=V, options=options)
        self.W_a: nn.Parameter = self.weight(d, n)
        self.A_log = self.weight(n)
        self.dt = self.weight(n)
        if not self.core:
            self.W_z: nn.Parameter = self.weight(d, n * V)

    def decay(self, x: Tensor, rate: Tensor) -> Tensor:
        """A softplus(x W_a + dt), (..., g, r)."""
        return rate * self.split(F.softplus(x @ self.W_a + self.dt))

    def gated(self, x: Tensor, o: Tensor) -> Tensor:
        """o times silu(x W_z)."""
        return o * self.split(F.silu(x @ self.W_z), self.value)


@implementation(
    "kda",
    "recurrent",
    form="recurrent",
    options=("core", "negative", "safe-gate"),
    rewrites=("dense", "scale=mul"),
    kernels=PER_CHANNEL,
    step_kernels=PER_CHANNEL | STEP,
)
class KimiDeltaAttention(Decaying):
    """KDA: n heads of width h, d/n unless given; W_F (d, h), U_F (h, n*h), A_log (n,) and dt (n*h,)
    of the decays; without `core` W_G (d, h) and U_G (h, n*h) of the gate."""

    def __init__(
        self, *, d: int, l: int, n: int, h: int | None = None, k: int | None = None,
        options: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """n heads of width h (default d/n); k taps, needed without the option `core`."""
        width = head_width(d, n) if h is None else h
        super().__init__(d=d, l=l, k=k, groups=n, repeat=1, key=width, value=width, options=options)
        self.safe = "safe-gate" in options
        self.W_F: nn.Parameter = self.weight(d, width)
        self.U_F: nn.Parameter = self.weight(width, n * width)
        self.A_log = self.weight(n)
        self.dt = self.weight(n * width)
        if not self.core:
            self.W_G: nn.Parameter = self.weight(d, width)
            self.U_G: nn.Parameter = self.weight(width, n * width)

    def rate(self) -> Tensor:
        """A (g, r, 1): -exp(A_log) or, with the option `safe-gate`, exp(A_log)."""
        return torch.exp(self.A_log).view(-1, 1, 1) if self.safe else super().rate().unsqueeze(-1)

    def decay(self, x: Tensor, rate: Tensor) -> Tensor:
        """A softplus(x W_F U_F + dt), (..., g, r, K) or, with the option `safe-gate`, -5 sigmoid(A
        (x W_F U_F + dt))."""
        inside = x @ self.W_F @ self.U_F + self.dt
        if self.safe:
            return LEAST_LOG * torch.sigmoid(rate * self.split(inside, self.key))
        return rate * self.split(F.softplus(inside), self.key)

    def gated(self, x: Tensor, o: Tensor) -> Tensor:
        """o times sigmoid(x W_G U_G)."""
        return o * self.split(torch.sigmoid(x @ self.W_G @ self.U_G), self.value)
