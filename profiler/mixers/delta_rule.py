"""DeltaNet, Gated DeltaNet and Kimi Delta Attention in PyTorch.

The equations are those of costmodel.mixers.delta_rule. Shapes, with n = g r heads of values in g
groups that share a query and a key (DeltaNet and KDA have g = n): queries and keys (b, s, g, 1, K),
values (b, s, g, r, V), degrees beta (b, s, g, r), logarithms of decays (b, s, g, r), or (b, s, g,
r, K) with one for each channel of the key, and the state S (b, g, r, K, V).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import Tensor, nn

from costmodel.mixers.delta_rule import LEAST_LOG
from profiler.mixers.long_convolution import short_convolution, short_latest
from profiler.modules.base import Mixer, PreparedState, State, head_width, require_sizes
from profiler.modules.norms import rms_norm
from profiler.modules.registry import implementation
from profiler.modules.running_sums import before_each, by_chunk, in_turn, with_earlier
from profiler.modules.triangles import substituted

KERNELS = {
    **dict.fromkeys(("X_Q", "X_K", "X_V", "B", "R", "y"), "contraction"),
    **dict.fromkeys(("C_Q", "C_K", "C_V"), "convolution"),
    **dict.fromkeys(("H_Q", "H_K", "H_V", "N_Q", "N_K", "Q"), "elementwise"),
    **dict.fromkeys(("U", "O"), "contraction"),
    "S": "elementwise",
}
"""Array -> kernel class ("contraction"), for DeltaNet."""
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
    """The arrays that a recurrence reads, for a sequence (b, s, ...) or one token (b, ...): queries
    and keys (..., g, 1, K), values (..., g, r, V) and degrees beta (..., g, r)."""

    q: Tensor
    k: Tensor
    v: Tensor
    beta: Tensor


def l2_norm(x: Tensor) -> Tensor:
    """Rows (..., m) divided by sqrt(sum of squares + 1e-6)."""
    return x / ((x * x).sum(-1, keepdim=True) + 1e-6).sqrt()


def decayed(S: Tensor, decay: Tensor) -> Tensor:
    """S (b, g, r, K, V) times a decay per head (b, g, r), or per key channel (b, g, r, K)."""
    return decay.reshape(*decay.shape, *(1,) * (S.ndim - decay.ndim)) * S


def times(rows: Tensor, S: Tensor) -> Tensor:
    """Rows (b, g, 1, K) times S (b, g, r, K, V): (b, g, r, V). A row is expanded to the r heads of
    its group, since counters of matrix products read the shape of the first operand alone."""
    return (rows.expand(S.shape[:-1]).unsqueeze(-2) @ S).squeeze(-2)


def following(S: Tensor | None, row: Rows, decay: Tensor | None) -> Tensor:
    """The state S (b, g, r, K, V) after a token, by the delta rule: S' + k u^T, where S' =
    exp(decay) S and u = beta (v - k S'). Axes: b sequences, g groups of r heads that share a key,
    key width K, value width V.

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
    per_channel = False
    """Whether each channel of the key has a decay of its own."""

    def __init__(
        self, *, d: int, l: int, k: int | None, C: int | None, groups: int, repeat: int, key: int,
        value: int, options: Sequence[str],
    ) -> None:  # fmt: skip
        """Declare the linear maps for rows of width d: `groups` queries and keys of width `key`,
        each shared by `repeat` heads with values of width `value`; convolutions of k taps, None
        with the option `core`; C rows in a chunk, None for a class without chunks."""
        super().__init__(d=d, l=l)
        self.C = C
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
        """A of the decays' logarithms, of parameters alone; an empty tensor without decays."""
        return self.like

    def decay(self, x: Tensor, rate: Tensor) -> Tensor | None:
        """The logarithms of the decays of rows x (..., d), given A (`rate`); None without any."""
        return None

    def gated(self, x: Tensor, o: Tensor) -> Tensor:
        """o (..., g, r, V), normed already, times the gate of rows x (..., d); o without a gate."""
        return o

    def mix(self, x: Tensor) -> Tensor:
        """The output y (b, s, d) of sequences x (b, s, d): queries, keys, values and degrees
        (weights beta of an update) of all rows, the recurrence's reads, and the map to y."""
        projected = self.projected(x)
        if not self.core:
            projected = {
                name: F.silu(short_convolution(row, getattr(self, f"w_{name}")))
                for name, row in projected.items()
            }
        return self.joined(x, self.whole(x, self.rows(x, projected)))

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """The output y_t (b, d) of one token x_t (b, d): its short convolutions with the rows held
        in `state`, one step of the recurrence, and the map to y."""
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
        """The arrays that the recurrence reads, split into heads, from the linear maps `projected`
        of x (..., d): queries of norm 1 over sqrt(K), keys of norm 1, values, and degrees beta =
        sigmoid(x W_b), which the option `negative` doubles."""
        q, k = (l2_norm(self.split(projected[name], self.key, repeat=1)) for name in "QK")
        v, beta = self.split(projected["V"], self.value), torch.sigmoid(x @ self.W_b)
        beta = 2 * beta if self.negative else beta
        return Rows(q * self.key**-0.5, k, v, self.split(beta))

    def split(self, rows: Tensor, *width: int, repeat: int | None = None) -> Tensor:
        """Reshape heads side by side (..., g*r*w) to (..., g, r, w), or (..., g*r) to (..., g, r);
        `repeat` stands in place of r."""
        return rows.view(*rows.shape[:-1], self.groups, repeat or self.repeat, *width)

    def joined(self, x: Tensor, o: Tensor) -> Tensor:
        """y (..., d) of o (..., g, r, V), which unless `core` is normed and gated: W_out maps the
        heads side by side."""
        if not self.core:
            o = self.gated(x, rms_norm(o, self.gain, self.eps))
        return o.flatten(-3) @ self.W_out

    def whole(self, x: Tensor, rows: Rows) -> Tensor:
        """The reads o (b, s, g, r, V) of all s rows, q times the state S after the row, by a loop
        over rows (g groups of r heads with values of width V); the first row has no decay."""
        decays = self.decay(x[:, 1:], self.rate())
        S: Tensor | None = None
        found = []
        for i in range(x.shape[1]):
            row = Rows(*(of[:, i] for of in rows))
            S = following(S, row, decays[:, i - 1] if decays is not None and i else None)
            found.append(times(row.q, S))
        return torch.stack(found, dim=1)

    def latest(self, x_t: Tensor, row: Rows, state: State, held: dict[str, Tensor]) -> Tensor:
        """The read o (b, g, r, V) of one token (g groups of r heads, values of width V): its query
        times S after the token, from `row` (its query, key, value and degree). The state takes S
        and the rows `held` of the convolutions."""
        S = decay = None
        if state.position:
            assert isinstance(state, PreparedState)
            S, decay = state.arrays["S"], self.decay(x_t, state.prepared)
        S = following(S, row, decay)
        state.append(S=S, **held)
        return times(row.q, S)

    @torch.no_grad()
    def initial_state(self, batch: int, length: int | None = None) -> State:
        """Make the state of `batch` sequences before the first token: zeros for the sum S and for
        the last k-1 rows that each short convolution reads. It serves any number of tokens
        (`sliding`), so `length` is only checked; `prepared` is the factor of decays' logarithms."""
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
        C: int | None = None, options: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Declare DeltaNet's weights: n heads of width h (default d/n); k taps of short
        convolutions, needed without the option `core`."""
        width = head_width(d, n) if h is None else h
        super().__init__(
            d=d, l=l, k=k, C=C, groups=n, repeat=1, key=width, value=width, options=options
        )


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
        C: int | None = None, options: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Declare Gated DeltaNet's weights: n heads with values of width V, which share g keys of
        width K; k taps, needed without the option `core`; C rows in a chunk, None for a class
        without chunks. ValueError unless g divides n."""
        require_sizes(n=n, g=g, K=K, V=V)
        if n % g:
            raise ValueError(f"n = {n} heads are not divisible into g = {g} groups")
        super().__init__(
            d=d, l=l, k=k, C=C, groups=g, repeat=n // g, key=K, value=V, options=options
        )
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
    options=("core", "negative", "safe-gate", "full-maps"),
    rewrites=("dense", "scale=mul"),
    kernels=PER_CHANNEL,
    step_kernels=PER_CHANNEL | STEP,
)
class KimiDeltaAttention(Decaying):
    """KDA: n heads of width h, d/n unless given; W_F (d, h), U_F (h, n*h), A_log (n,) and dt (n*h,)
    of the decays; without `core` W_G (d, h) and U_G (h, n*h) of the gate. With `full-maps`, W_F and
    W_G are (d, n*h), and there is no U_F or U_G."""

    per_channel = True

    def __init__(
        self, *, d: int, l: int, n: int, h: int | None = None, k: int | None = None,
        C: int | None = None, options: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Declare KDA's weights: n heads of width h (default d/n); k taps of short convolutions,
        needed without the option `core`; C rows in a chunk, None for a class without chunks."""
        width = head_width(d, n) if h is None else h
        super().__init__(
            d=d, l=l, k=k, C=C, groups=n, repeat=1, key=width, value=width, options=options
        )
        self.safe, full = "safe-gate" in options, "full-maps" in options
        for name in ("F",) if self.core else ("F", "G"):
            setattr(self, f"W_{name}", self.weight(d, n * width if full else width))
            if not full:
                setattr(self, f"U_{name}", self.weight(width, n * width))
        self.A_log = self.weight(n)
        self.dt = self.weight(n * width)

    def rate(self) -> Tensor:
        """A (g, r, 1): -exp(A_log) or, with the option `safe-gate`, exp(A_log)."""
        return torch.exp(self.A_log).view(-1, 1, 1) if self.safe else super().rate().unsqueeze(-1)

    def decay(self, x: Tensor, rate: Tensor) -> Tensor:
        """The logarithms of the decays, one for each key channel, of rows x (..., d): (..., g, r,
        K) for g groups of r heads. They are A softplus(x W_F U_F + dt), with the factor A = `rate`
        of a head, or, with the option `safe-gate`, -5 sigmoid(A (x W_F U_F + dt)); without U_F
        with the option `full-maps`."""
        inside = self.mapped(x, "F") + self.dt
        if self.safe:
            return LEAST_LOG * torch.sigmoid(rate * self.split(inside, self.key))
        return rate * self.split(F.softplus(inside), self.key)

    def gated(self, x: Tensor, o: Tensor) -> Tensor:
        """o times sigmoid(x W_G U_G), or sigmoid(x W_G) with the option `full-maps`."""
        return o * self.split(torch.sigmoid(self.mapped(x, "G")), self.value)

    def mapped(self, x: Tensor, name: str) -> Tensor:
        """x W_name U_name, or x W_name with the option `full-maps`: (..., n*h)."""
        rows: Tensor = x @ getattr(self, f"W_{name}")
        second: Tensor | None = getattr(self, f"U_{name}", None)
        return rows if second is None else rows @ second


# --------------------------------------------------------------------------------------------------
# In chunks
# --------------------------------------------------------------------------------------------------


class Chunk:
    """The current chunk: `rows`, name of an array -> its rows so far, oldest first, each (b, g, r
    or 1, width); and S at the end of the chunk before, None in the first chunk."""

    def __init__(self, S: Tensor | None, rows: dict[str, list[Tensor]]) -> None:
        self.S, self.rows = S, rows

    def add(self, name: str, row: Tensor) -> Tensor:
        """Add a row of an array, and return the row."""
        self.rows.setdefault(name, []).append(row)
        return row

    def all(self, name: str) -> Tensor:
        """The rows of an array, (b, g, r or 1, rows, width)."""
        return torch.stack(self.rows[name], dim=-2)


class ChunkState(PreparedState):
    """The rows of the current chunk of C tokens, S of the end of the chunk before, and the last
    rows of the convolutions.

    Arrays of `chunked` (b, g, r or 1, C, width) fill from the front; W and KB have rows from
    the second chunk on; M (b, g, r, C*(C-1)/2, 1) has e-1 further entries after row e; T holds the
    last row alone if not in `chunked`. The next chunk overwrites all of them. S (b, g, r, K, V) is
    held once a chunk is complete.
    """

    C: int
    chunked: tuple[str, ...]

    @property
    def in_chunk(self) -> int:
        """Number of tokens in the current, incomplete chunk."""
        return self.position % self.C

    def rows(self, name: str) -> int:
        """The number of rows that the state holds of the array `name`: of S, K once a chunk is
        complete; of arrays of the chunk, one for each of its tokens so far, except as the class
        says."""
        place, after = self.in_chunk, int(self.position >= self.C)
        if name in self.chunked:
            return place * after if name in ("W", "KB") else place
        kept = {"S": self.key * after, "M": place * (place - 1) // 2, "T": min(place, 1)}
        return kept[name] if name in kept else super().rows(name)

    def held(self, name: str) -> Tensor:
        """The held rows of an array, a view (b, ..., rows, width)."""
        if name in (*self.chunked, "S", "M", "T"):
            return self.arrays[name].narrow(-2, 0, self.rows(name))
        return super().held(name)

    @property
    def key(self) -> int:
        """The width of a key."""
        return self.arrays["S"].shape[-2]

    @property
    def chunk(self) -> Chunk:
        """S, None in the first chunk, and the rows of the current chunk, cut out of the state's
        arrays; arrays without rows are left out. Row e of M, from 2, has the entries at the places
        (e-1)(e-2)/2 to e(e-1)/2 - 1: row 3 those at 1 and 2."""
        of_chunk = (*self.chunked, "M", "T")
        rows = {name: list(self.held(name).unbind(-2)) for name in self.arrays if name in of_chunk}
        if "M" in rows:
            entries = [entry.squeeze(-1) for entry in rows["M"]]
            rows["M"] = [
                torch.stack(entries[(e - 1) * (e - 2) // 2 : e * (e - 1) // 2], dim=-1)
                for e in range(2, self.in_chunk + 1)
            ]
        S = self.arrays["S"] if self.rows("S") else None
        return Chunk(S, {name: held for name, held in rows.items() if held})

    def take(self, held: dict[str, Tensor], chunk: Chunk) -> None:
        """Write what a token adds: the token's rows before the convolutions (`held`) and the newest
        row of each array in `chunk.rows`, where the first chunk has no W or KB. After the last
        token of a chunk `chunk.rows` is empty, and S is written; the chunk's rows stay."""
        for name, row in held.items():
            self._write(self.arrays[name], row)
        for name, rows in chunk.rows.items():
            if name == "M":  # without a row for the chunk's first token; the k-th row has k entries
                at = len(rows) * (len(rows) - 1) // 2
                self.arrays[name].narrow(-2, at, len(rows)).copy_(rows[-1].unsqueeze(-1))
            else:
                place = len(rows) - 1 if name in self.chunked else 0
                self.arrays[name].select(-2, place).copy_(rows[-1])
        if not chunk.rows:
            assert chunk.S is not None
            self.arrays["S"].copy_(chunk.S)
        self.position += 1


class Compared(NamedTuple):
    """Chunks of m rows each, (b, g, chunks, r, m, width): queries q and keys k as they are
    multiplied by the keys `other`; values v; degrees beta (width 1); products KK (width m-1) of
    keys with the keys of the rows 1 to m-1, or what `InChunks.inverted` makes of the products; QK
    (width m) of queries with keys, 0 for later keys; the decays `since`, T or E of
    `InChunks.compared`, None without decays."""

    q: Tensor
    k: Tensor
    other: Tensor
    v: Tensor
    beta: Tensor
    KK: Tensor
    QK: Tensor
    since: Tensor | None

    def after_first(self) -> Compared:
        """All chunks but the first."""
        return Compared(*(None if of is None else of[:, :, 1:] for of in self))  # type: ignore[arg-type]  # `since` alone may be None


class InChunks(DeltaRule):
    """A delta rule in chunks of C tokens: rows are compared within all chunks at once, then a loop
    over chunks carries S. One token follows row by row."""

    FORM: ClassVar[str]
    SOLVED: ClassVar[str] = "contraction"
    """The kernel class of U and W for a sequence."""
    WEIGHED: ClassVar[bool] = True
    """Whether values and keys are multiplied by beta before they are compared with other keys."""
    C: int

    @property
    def keys(self) -> str:
        """The array of the keys that later rows read."""
        return "KI" if self.per_channel else "N_K"

    def whole(self, x: Tensor, rows: Rows) -> Tensor:
        """The reads o (b, s, g, r, V) of all rows, g groups of r heads with values of width V: each
        row reads N of the rows of its chunk so far, and S of the end of the chunk before. Later
        rows of the chunk are multiplied by 0: the result is NaN where a later row is infinite."""
        q, k, v, beta = rows
        arrays = [of.expand(*v.shape[:-1], -1) for of in (q, k, v, beta.unsqueeze(-1))]
        if (logs := self.decay(x, self.rate())) is not None:
            arrays.append(logs if self.per_channel else logs.unsqueeze(-1))
        split = by_chunk(self.C, *(of.transpose(1, 2) for of in arrays))
        groups = [
            self.compared(not number, *(of.transpose(3, 4) for of in group))
            for number, group in enumerate(split)
        ]
        later = [self.later(groups[0].after_first()), *map(self.later, groups[1:])]
        later = later if x.shape[1] >= self.C else []
        N, S = self.carried(groups, later)
        own = in_turn([(of.QK @ n).transpose(3, 4) for of, n in zip(groups, N, strict=True)])
        found = [
            (of.q @ before).transpose(3, 4)
            for of, before in zip(later, before_each(S, later), strict=True)
        ]
        return with_earlier(own, found).transpose(1, 2)

    def compared(
        self, begins: bool, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log: Tensor | None = None
    ) -> Compared:
        """Compare the m rows of each chunk, given queries, keys, values, degrees and logarithms of
        decays (b, g, chunks, r or 1, m, width). T is the sum of the logarithms since the chunk's
        start. With decays per channel, queries and keys are multiplied by E = exp(T) and the other
        keys divided by E; row 1 of the sequence, compared with no other, has k = 0 if the sequence
        `begins` here. Else products are multiplied by the decay between their rows."""
        other, since, P, places = k, None, None, torch.arange(q.shape[-2], device=q.device)
        later = places > places.unsqueeze(-1)
        if log is not None:
            since = log.cumsum(-2)
            if self.per_channel:
                since = since.exp()
                q, k, other = q * since, without_first(k, since) if begins else k * since, k / since
            else:
                P = (since - since.mT).masked_fill(later, -math.inf).exp()
        KK, QK = k @ other[..., :-1, :].mT, q @ other.mT
        if P is not None:
            KK, QK = KK * P[..., :-1], QK * P
        if self.WEIGHED:
            KK, v = beta * KK, beta * v
        QK = QK.masked_fill(later, 0)
        return Compared(q, k, other, v, beta, self.inverted(KK), QK, since)

    def later(self, group: Compared) -> Compared:
        """Chunks after the first: with one decay for each head, queries and keys are multiplied by
        E = exp(T), which stands in place of T."""
        if group.since is None or self.per_channel:
            return group
        E = group.since.exp()
        return group._replace(q=group.q * E, k=group.k * E, since=E)

    def carried(
        self, groups: Sequence[Compared], later: Sequence[Compared]
    ) -> tuple[list[Tensor], Tensor]:
        """(N (b, g, chunks, r, m, V) of each group of chunks, S (b, g, chunks, r, K, V) at the end
        of each complete chunk), by a loop over chunks: N = U - W S with S of the chunk before, U in
        the first chunk. `later` are the groups without the first chunk; [] if no chunk is complete,
        and then U stands in place of S, which no row reads."""
        U = [of for group in groups for of in self.solved_all(group, group.v).unbind(2)]
        W: list[Tensor] = []
        for group in later:
            keys = group.beta * group.k if self.WEIGHED else group.k
            W += self.solved_all(group, keys).unbind(2)
        if not later:
            return [U[0].unsqueeze(2)], U[0]
        # keys of each complete chunk, decayed to the chunk's end
        ends = self.to_the_end(groups[0].other, groups[0].since).unbind(2)
        since = later[0].since
        kept = [None] * len(ends) if since is None else since[..., -1:, :].mT.unbind(2)
        N, S = [U[0]], [self.after(None, ends[0], U[0], None)]
        for number, (u, w) in enumerate(zip(U[1:], W, strict=True), 1):
            N.append(u - w @ S[-1])
            if number < len(ends):
                S.append(self.after(S[-1], ends[number], N[-1], kept[number - 1]))
        whole, short = torch.stack(N[: len(ends)], dim=2), N[len(ends) :]
        return [whole, *(of.unsqueeze(2) for of in short)], torch.stack(S, dim=2)

    @abstractmethod
    def inverted(self, KK: Tensor) -> Tensor:
        """The matrices (b, g, chunks, r, m, m-1) by which `solved_all` solves, from KK."""

    @abstractmethod
    def solved_all(self, group: Compared, rows: Tensor) -> Tensor:
        """Solve for U or W (b, g, chunks, r, m, width) of all rows of chunks; `rows` are values or
        keys, times beta if `WEIGHED`, and `group.KK` comes from `inverted`."""

    @abstractmethod
    def solved(
        self, chunk: Chunk, names: tuple[str, str], row: Tensor, beta: Tensor, KK: Tensor | None
    ) -> Tensor:
        """Solve for a row (b, g, r, width) of U or W from the rows before in its chunk, and add to
        the chunk what later rows need.

        Args:
            names: ("U", "VB") or ("W", "KB"): the array, and the right-hand side that a form may
                keep in its place.
            row: the value or key of the row, times beta if `WEIGHED`.
            beta: the degree of the row (b, g, r).
            KK: the products with the keys before (b, g, r, e-1); None for the first row.
        """

    def following_in(self, chunk: Chunk, row: Rows, decay: Tensor | None) -> Tensor:
        """Compute one row of a chunk: its read o (b, g, r, V), for g groups of r heads and values
        of width V, from the logarithm of its decay (None without). The row's arrays are added to
        `chunk`; after its C-th row, `chunk` gets S at its end, and no rows. T, E and P are as in
        `compared`, for this row."""
        # `first`: the row begins its chunk; `later`: chunks came before, whose sum is S
        (q, k, v, beta), first, later = row, "N" not in chunk.rows, chunk.S is not None
        q, k = (of.expand(*v.shape[:-1], -1) for of in (q, k))
        other, E, P = row.k, None, None
        if decay is not None:
            T = decay if self.per_channel else decay.unsqueeze(-1)
            T = chunk.add("T", T if first else chunk.rows["T"][-1] + T)
            E = T.exp() if self.per_channel or later else None
            if not self.per_channel:
                P = (T - chunk.all("T").squeeze(-1)).exp()
            elif E is not None:
                q, other = q * E, k / E
                k = k * E if later or not first else k  # the sequence's first row reads no key
        chunk.add(self.keys, other)
        keys = chunk.all(self.keys).expand(*v.shape[:-1], -1, -1)
        KK = None if first else self.products(k, keys[..., :-1, :], P)
        QK, weight = self.products(q, keys, P), beta.unsqueeze(-1)
        if self.WEIGHED:
            KK, v = KK if KK is None else weight * KK, weight * v
        N = self.solved(chunk, ("U", "VB"), v, beta, KK)
        if chunk.S is not None:
            if E is not None and not self.per_channel:
                q, k = q * E, k * E
            k = weight * k if self.WEIGHED else k
            N = N - times(self.solved(chunk, ("W", "KB"), k, beta, KK), chunk.S)
        chunk.add("N", N)
        o = (QK.unsqueeze(-2) @ chunk.all("N")).squeeze(-2)
        if chunk.S is not None:
            o = times(q, chunk.S) + o
        if len(chunk.rows["N"]) == self.C:
            since = None if decay is None else chunk.all("T")
            if E is not None:
                since = E.unsqueeze(-2) if self.per_channel else since
                E = E.unsqueeze(-1)
            S = self.after(chunk.S, self.to_the_end(keys, since), chunk.all("N"), E)
            chunk.S, chunk.rows = S, {}
        return o

    def products(self, row: Tensor, keys: Tensor, P: Tensor | None) -> Tensor:
        """The products (b, g, r, e) of a row (b, g, r, K) with e keys (b, g, r, e, K), times the
        decays P between the rows (None without), for g groups of r heads."""
        found = (row.unsqueeze(-2) @ keys.mT).squeeze(-2)
        return found if P is None else found * P[..., : found.shape[-1]]

    def to_the_end(self, keys: Tensor, since: Tensor | None) -> Tensor:
        """The keys (..., C, K) of complete chunks, decayed to the chunk's last row; `since` is T
        or, with decays per channel, E, whose last row is read."""
        if since is None:
            return keys
        last = since[..., -1:, :]
        return (last if self.per_channel else (last - since).exp()) * keys

    def after(self, S: Tensor | None, keys: Tensor, N: Tensor, kept: Tensor | None) -> Tensor:
        """S (..., K, V) at the end of a complete chunk: S before the chunk, None for the first,
        times the chunk's decay `kept`, plus keys^T N, with keys decayed to the last row."""
        added = keys.mT @ N
        if S is None:
            return added
        return (S if kept is None else kept * S) + added

    def latest(self, x_t: Tensor, row: Rows, state: State, held: dict[str, Tensor]) -> Tensor:
        """The read o (b, g, r, V) of one token: the token's rows are added to the chunk that
        `state` holds, and the token's rows before the convolutions (`held`) to `state`."""
        assert isinstance(state, ChunkState)
        chunk = state.chunk
        o = self.following_in(chunk, row, self.decay(x_t, state.prepared))
        state.take(held, chunk)
        return o

    def kept(self) -> dict[str, tuple[int, int, int]]:
        """A dict: array that later rows of a chunk read -> (heads in a group, rows, width)."""
        return {"U": (self.repeat, self.C, self.value), "W": (self.repeat, self.C, self.key)}

    @torch.no_grad()
    def initial_state(self, batch: int, length: int | None = None) -> State:
        """Make the state before the first token: zeros with room for the arrays of one chunk, for
        S, and for the last k-1 rows that each convolution reads; it serves any number of tokens
        (`sliding`)."""
        require_sizes(C=self.C)
        before = super().initial_state(batch, length)
        assert isinstance(before, PreparedState)
        r, decays = self.repeat, before.prepared.numel() > 0
        shapes = {
            self.keys: (r if self.per_channel else 1, self.C, self.key),
            "N": (r, self.C, self.value),
            "S": (r, self.key, self.value),
            **self.kept(),
        }
        if decays:
            shapes["T"] = (r, 1, self.key) if self.per_channel else (r, self.C, 1)
        zeros = {
            name: self.like.new_zeros(batch, self.groups, *shape) for name, shape in shapes.items()
        }
        state = ChunkState({**before.arrays, **zeros}, newest_first=True, sliding=True)
        state.C, state.prepared = self.C, before.prepared
        # arrays without a row for each token of the chunk
        alone = ("S", "M", "T") if self.per_channel else ("S", "M")
        state.chunked = tuple(name for name in shapes if name not in alone)
        return state


class BySolve(InChunks):
    """Chunks by a triangular solve: U_e = VB_e - sum over z < e of KK_ez U_z, and W likewise."""

    FORM = "chunked-solve"
    SOLVED = "reduction"  # counters of matrix products count no triangular solves

    def inverted(self, KK: Tensor) -> Tensor:
        """KK itself."""
        return KK

    def solved_all(self, group: Compared, rows: Tensor) -> Tensor:
        """U or W by one triangular solve for all chunks."""
        return substituted(group.KK, rows)

    def solved(
        self, chunk: Chunk, names: tuple[str, str], row: Tensor, beta: Tensor, KK: Tensor | None
    ) -> Tensor:
        """A row of U or W by forward substitution: `row` minus KK times the rows before."""
        return chunk.add(names[0], less(row, KK, chunk, names[0]))


class ByRows(InChunks):
    """Chunks by M, where 1 - M is the inverse of 1 + KK: U_e = VB_e - sum over z < e of M_ez VB_z;
    W likewise with KB."""

    FORM = "chunked-rows"

    def inverted(self, KK: Tensor) -> Tensor:
        """M, row by row in all chunks at once: KK, 0 for later keys, minus KK times the rows of M
        before, of which the first is 0."""
        found: list[Tensor] = []
        for e, row in enumerate(KK.tril(-1).unbind(-2)):
            if e > 1:
                row = row - (row[..., None, 1:e] @ torch.stack(found[1:], dim=-2)).squeeze(-2)
            found.append(row)
        return torch.stack(found, dim=-2)

    def solved_all(self, group: Compared, rows: Tensor) -> Tensor:
        """U or W: rows minus M times the rows before, as one product for all chunks. Chunks of one
        row have no products."""
        return rows if rows.shape[-2] == 1 else rows - group.KK @ rows[..., :-1, :]

    def solved(
        self, chunk: Chunk, names: tuple[str, str], row: Tensor, beta: Tensor, KK: Tensor | None
    ) -> Tensor:
        """Compute one row e (b, g, r, width) of U or W, the values and keys of the chunk's updates:
        the `row` of VB or KB (beta times values or keys) minus M times the rows of VB or KB before.
        `names` are ("U", "VB") or ("W", "KB"); KK are the products of key e with the keys before
        (None: first row). The row of M, M_ez = KK_ez - sum over z < y < e of KK_ey M_yz, is
        computed and kept in the chunk for U, and read again for W. `beta` is not used."""
        name = names[1]
        if names[0] == "U" and KK is not None:
            before, entries = chunk.rows.get("M", []), []
            for z in range(KK.shape[-1]):
                M = KK[..., z]
                if between := [of[..., z] for of in before[z:]]:
                    column = torch.stack(between, dim=-1).unsqueeze(-1)
                    M = M - (KK[..., z + 1 :].unsqueeze(-2) @ column).flatten(-3)
                entries.append(M)
            chunk.add("M", torch.stack(entries, dim=-1))
        found = less(row, None if KK is None else chunk.rows["M"][-1], chunk, name)
        chunk.add(name, row)
        return found

    def kept(self) -> dict[str, tuple[int, int, int]]:
        """VB and KB in place of U and W, and M."""
        U, W = super().kept().values()
        return {"VB": U, "KB": W, "M": (self.repeat, self.C * (self.C - 1) // 2, 1)}


class ByWY(InChunks):
    """Chunks by the WY representation: U_e = beta_e (v_e - sum over z < e of KK_ez U_z), and W
    likewise with k."""

    FORM = "chunked-wy"
    WEIGHED = False

    def inverted(self, KK: Tensor) -> Tensor:
        """KK itself."""
        return KK

    def solved_all(self, group: Compared, rows: Tensor) -> Tensor:
        """U or W (b, g, chunks, r, m, width) from `rows`, values or keys, row by row in all chunks
        at once: row e is beta_e times (`rows` e minus the rows before, weighted by KK_e)."""
        found: list[Tensor] = []
        products = group.KK.unbind(-2)
        for e, (row, weight) in enumerate(zip(rows.unbind(-2), group.beta.unbind(-2), strict=True)):
            if found:
                weights = products[e][..., :e].unsqueeze(-2)
                row = row - (weights @ torch.stack(found, dim=-2)).squeeze(-2)
            found.append(weight * row)
        return torch.stack(found, dim=-2)

    def solved(
        self, chunk: Chunk, names: tuple[str, str], row: Tensor, beta: Tensor, KK: Tensor | None
    ) -> Tensor:
        """A row of U or W: beta times (`row` minus KK times the rows before)."""
        return chunk.add(names[0], beta.unsqueeze(-1) * less(row, KK, chunk, names[0]))


def less(row: Tensor, weights: Tensor | None, chunk: Chunk, name: str) -> Tensor:
    """A row (b, g, r, width) minus the e-1 rows of an array of the chunk, weighted by `weights` (b,
    g, r, e-1) and summed; the row itself if `weights` is None."""
    return row if weights is None else row - (weights.unsqueeze(-2) @ chunk.all(name)).squeeze(-2)


def without_first(rows: Tensor, factors: Tensor) -> Tensor:
    """Rows (b, g, chunks, r, m, K) times factors, with 0 in place of row 1 of chunk 1."""
    rows, by = (of.transpose(3, 4).flatten(2, 3) for of in (rows, factors))
    found = F.pad(rows[:, :, 1:] * by[:, :, 1:], (0, 0, 0, 0, 1, 0))
    return found.reshape(factors.transpose(3, 4).shape).transpose(3, 4)


_Class = TypeVar("_Class", bound=type[InChunks])


def in_chunks(mixer: str, around: dict[str, str], decays: str) -> Callable[[_Class], _Class]:
    """Return a decorator that registers a class as an implementation of `mixer` in chunks, with the
    kernel class of each array.

    Args:
        around: array -> kernel class of the recurrent form.
        decays: the names of the arrays that only a rule with decays has.
    """

    def register(module: _Class) -> _Class:
        """Register the class as an implementation of `mixer` in chunks, and return it. Kernel
        classes are those of the recurrent form (`around`), and those of the arrays of chunks and of
        the decays in chunks (`decays`: "L T E")."""
        kernels = {k: v for k, v in around.items() if k not in ("D", "E")}
        kernels |= dict.fromkeys(("KK", "QK", "U", "W", "N", "S"), "contraction")
        kernels |= {
            name: "contraction" if name == "L" else "elementwise" for name in decays.split()
        }
        if module.WEIGHED:
            kernels |= dict.fromkeys(("VB", "KB"), "elementwise")
        if issubclass(module, ByRows):
            kernels["M"] = "contraction"
        return implementation(
            mixer,
            form=module.FORM,
            options=("core", "negative", *(("safe-gate",) if module.per_channel else ())),
            rewrites=("dense", "scale=mul"),
            kernels=kernels | dict.fromkeys(("U", "W"), module.SOLVED),
            step_kernels=kernels | STEP,
        )(module)

    return register


BY_HEAD = "L T E P EC KC QE"
"""The arrays that the decays of Gated DeltaNet bring."""
BY_CHANNEL = "L T E QE KE KI KC"
"""The arrays that the decays of KDA bring."""


@in_chunks("deltanet", KERNELS, "")
class DeltaNetSolve(BySolve, DeltaNet):
    """DeltaNet in chunks, by a triangular solve."""


@in_chunks("deltanet", KERNELS, "")
class DeltaNetRows(ByRows, DeltaNet):
    """DeltaNet in chunks, by the rows of an inverse."""


@in_chunks("deltanet", KERNELS, "")
class DeltaNetWY(ByWY, DeltaNet):
    """DeltaNet in chunks, by the WY representation."""


@in_chunks("gated-deltanet", DECAYING, BY_HEAD)
class GatedDeltaNetSolve(BySolve, GatedDeltaNet):
    """Gated DeltaNet in chunks, by a triangular solve."""


@in_chunks("gated-deltanet", DECAYING, BY_HEAD)
class GatedDeltaNetRows(ByRows, GatedDeltaNet):
    """Gated DeltaNet in chunks, by the rows of an inverse."""


@in_chunks("gated-deltanet", DECAYING, BY_HEAD)
class GatedDeltaNetWY(ByWY, GatedDeltaNet):
    """Gated DeltaNet in chunks, by the WY representation."""


@in_chunks("kda", PER_CHANNEL, BY_CHANNEL)
class KimiDeltaAttentionSolve(BySolve, KimiDeltaAttention):
    """KDA in chunks, by a triangular solve."""


@in_chunks("kda", PER_CHANNEL, BY_CHANNEL)
class KimiDeltaAttentionRows(ByRows, KimiDeltaAttention):
    """KDA in chunks, by the rows of an inverse."""


@in_chunks("kda", PER_CHANNEL, BY_CHANNEL)
class KimiDeltaAttentionWY(ByWY, KimiDeltaAttention):
    """KDA in chunks, by the WY representation."""
