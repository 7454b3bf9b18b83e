"""Linear attention with decay in PyTorch: RetNet, GLA and Lightning attention.

Sources and choices: costmodel.mixers.decayed_attention. Shapes: queries q and keys k (b, n, s, K),
values v and reads (b, n, s, V), the sum S (b, n, K, V) = decay * S + k^T v, of which a row's read
is q S. A class combines a mixer, which has the linear maps and the gate and norm after the reads,
with an algorithm: a recurrence over rows, a scan, scores of all pairs, or chunks. The decay is a
constant per head (`ByHead`), or a number per key channel that each token gives (`ByChannel`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import Tensor, nn

from profiler.modules.base import Mixer, State, head_width, require_sizes
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

Heads = tuple[Tensor, Tensor, Tensor]
"""Queries (b, n, s, K), keys (b, n, s, K) and values (b, n, s, V)."""

MAPS = dict.fromkeys(("V", "y"), "contraction")
AROUND = {"Z": "contraction", **dict.fromkeys(("R_N", "H"), "elementwise")}
"""Array -> kernel class ("contraction"), for the gate, the norm, and their product."""


class Decayed(Mixer):
    """The base: W_Q, W_K (d, n*K), W_V (d, n*V) and W_out (n*V, d); and, without the option `core`,
    W_G (d, n*V) of a gate, and the gain of a norm."""

    MIXER: ClassVar[str]
    KERNELS: ClassVar[dict[str, str]]
    CORE: ClassVar[dict[str, str]]
    """Array -> kernel class ("contraction"), outside of the reads; `CORE` with option `core`."""
    FORM: ClassVar[str]
    STEP_FORM: ClassVar[str | None] = None
    """The form of one token; None: `FORM`."""
    READ: ClassVar[dict[str, str]]
    """Array -> kernel class, for the arrays of the reads."""
    WHOLE: ClassVar[dict[str, str]] = {}
    """Array -> kernel class, for the arrays that only whole sequences have."""
    STEP: ClassVar[dict[str, str]] = {}
    """Array -> kernel class, for arrays with another class at one token."""
    REWRITES: ClassVar[tuple[str, ...]] = ()
    """The named changes of the equations that the module executes, such as `dense`."""

    def __init__(
        self, *, d: int, l: int, n: int, K: int, V: int, gain: int, core: bool, C: int | None = None
    ) -> None:
        """Declare the linear maps of rows of width d to n heads with keys of width K and values of
        width V and, unless `core`, the gate and the norm (`gain` entries) of the published layer,
        for sequences of length l; C: tokens of a chunk, None without chunks."""
        super().__init__(d=d, l=l)
        require_sizes(n=n, K=K, V=V)
        self.n, self.K, self.V, self.C, self.core = n, K, V, C or 0, core
        self.W_Q: nn.Parameter = self.weight(d, n * K)
        self.W_K: nn.Parameter = self.weight(d, n * K)
        self.W_V: nn.Parameter = self.weight(d, n * V)
        if not core:
            self.W_G: nn.Parameter = self.weight(d, n * V)
            self.gain: nn.Parameter = self.weight(gain)
        self.W_out: nn.Parameter = self.weight(n * V, d)
        self.declare()

    def declare(self) -> None:
        """Declare the tables and parameters of the decay."""

    def table(self, name: str, values: Tensor) -> None:
        """Register a table, which was computed in float64."""
        self.register_buffer(name, values.to(self.like), persistent=False)

    def require_length(self, length: int | None) -> None:
        """Raise a ValueError unless `length` (default: l) is a positive integer and, if tables
        limit the length, at most l."""
        length = self.l if length is None else length
        require_sizes(length=length)
        if self.bounded and length > self.l:
            raise ValueError(f"length {length} is greater than l = {self.l}, where the tables end")

    def heads(self, rows: Tensor) -> Tensor:
        """Concatenated heads (b, s, n*w) as (b, n, s, w)."""
        return rows.view(*rows.shape[:2], self.n, rows.shape[2] // self.n).transpose(1, 2)

    def mix(self, x: Tensor) -> Tensor:
        """y (b, s, d) of x (b, s, d): queries, keys and values, the reads of all rows."""
        return self.finished(x, self.whole(x, *self.projected(x, 0)))

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """The output y_t (b, d) of one token x_t (b, d), which is added to `state`."""
        x = x_t.unsqueeze(1)
        read = self.latest(x, *self.projected(x, state.position), state)
        return self.finished(x, read).squeeze(1)

    def finished(self, x: Tensor, reads: Tensor) -> Tensor:
        """y (b, s, d) of reads (b, n, s, V): normalised and gated, unless `core`, and mapped."""
        rows = reads.transpose(1, 2)
        return (rows.flatten(2) if self.core else self.gated(x, rows)) @ self.W_out

    def gated(self, x: Tensor, rows: Tensor) -> Tensor:
        """Each head's row of (b, s, n, V) normalised, with the gain (V,), times a swish gate."""
        return rms_norm(rows, self.gain, 1e-5).flatten(2) * F.silu(x @ self.W_G)

    @abstractmethod
    def projected(self, x: Tensor, first: int) -> Heads:
        """Queries, keys and values of rows x (b, s, d), of which the first has the position `first`
        (from 0)."""

    @abstractmethod
    def whole(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The reads (b, n, s, V) of all rows of sequences x (b, s, d)."""

    @abstractmethod
    def latest(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, state: State) -> Tensor:
        """The read (b, n, 1, V) of one token, which is written into the state."""


class Recurrent(Decayed):
    """The recurrence as a loop over rows."""

    FORM = "recurrent"
    READ: ClassVar[dict[str, str]] = {"S": "elementwise", "R": "contraction"}

    @abstractmethod
    def kept(self, x: Tensor) -> Sequence[Tensor]:
        """For each row of x (b, s, d) the decay that multiplies S, broadcast to (b, n, K, V)."""

    def whole(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The reads (b, n, s, V) of all rows, by a recurrence: after each row i the sum S = decay *
        S + k_i^T v_i, and the row's read q_i S, in n heads. x is (b, s, d), q and k (b, n, s, K), v
        (b, n, s, V)."""
        S = k[:, :, 0].unsqueeze(-1) * v[:, :, 0].unsqueeze(-2)
        found = [q[:, :, :1] @ S]
        for i, kept in enumerate(self.kept(x[:, 1:]), 1):
            S = kept * S + k[:, :, i].unsqueeze(-1) * v[:, :, i].unsqueeze(-2)
            found.append(q[:, :, i : i + 1] @ S)
        return torch.cat(found, dim=2)

    def latest(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, state: State) -> Tensor:
        """The read (b, n, 1, V) of one token in n heads: its query times S after the token, S =
        decay * S + k^T v, which `state` keeps."""
        S = k.mT * v
        if state.position:
            S = self.kept(x)[0] * state.held("S").view(S.shape) + S
        state.append(S=S.flatten(-2))
        return q @ S

    def initial_state(self, batch: int, length: int | None = None) -> State:
        """An empty state with S, (batch, n, 1, K*V), for any number of tokens."""
        self.require_length(length)
        return State({"S": self._rows(batch, 1, self.n, self.K * self.V)}, sliding=True)


class Scanned(Recurrent):
    """Whole sequences by a parallel scan; a token is one step of the recurrence."""

    FORM = "scan"
    STEP_FORM = "recurrent"
    WHOLE: ClassVar[dict[str, str]] = {"KV": "elementwise"}

    def whole(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The reads (b, n, s, V) of all rows: the scan of k_i^T v_i gives S (b, n, s, K, V), of
        which each query reads its row."""
        S = scan(self.decays(x), k.unsqueeze(-1) * v.unsqueeze(-2), dim=2)
        return (q.unsqueeze(-2) @ S).squeeze(-2)

    @abstractmethod
    def decays(self, x: Tensor) -> Tensor:
        """The decays (b, n, s, K or 1, 1) of all rows of x (b, s, d)."""


class Pairs(Decayed):
    """The scores of all pairs, those of later rows set to zero."""

    FORM = "parallel"
    KEYS: ClassVar[str] = "K"
    """The name of the array with the keys."""
    REWRITES = ("dense",)
    READ: ClassVar[dict[str, str]] = {"A": "contraction", "R": "contraction"}

    def initial_state(self, batch: int, length: int | None = None) -> State:
        """An empty state with the keys and values of all tokens."""
        widths = {self.KEYS: self.K, "V": self.V}
        return State({k: self._rows(batch, length, self.n, w) for k, w in widths.items()})


class ByHead(Decayed):
    """One constant decay for each head."""

    @abstractmethod
    def powers(self, rows: Tensor) -> Tensor:
        """The decays gamma^rows, (n, m), over numbers of rows (m,)."""

    def power_table(self, name: str, first: int, last: int) -> None:
        """Register a table (n, last - first + 1) of the decays over `first` to `last` rows."""
        self.table(name, self.powers(torch.arange(first, last + 1, dtype=torch.float64)))


class RecurrentByHead(Recurrent, ByHead):
    """A recurrence; gamma (n,) is a table."""

    gamma: Tensor

    def declare(self) -> None:
        """The table gamma."""
        super().declare()
        self.table("gamma", self.powers(torch.ones(1, dtype=torch.float64)).squeeze(1))

    def kept(self, x: Tensor) -> Sequence[Tensor]:
        """gamma (n, 1, 1), the same for each row."""
        return [self.gamma.view(-1, 1, 1)] * x.shape[1]


class ScannedByHead(Scanned, RecurrentByHead):
    """A scan; all states of a head share its decay."""

    def decays(self, x: Tensor) -> Tensor:
        """gamma for every row, (b, n, s, 1, 1)."""
        return self.gamma.view(1, -1, 1, 1, 1).expand(x.shape[0], -1, x.shape[1], -1, -1)


class PairsByHead(Pairs, ByHead):
    """Scores of all pairs times D (n, l), a table of the powers 0 to l-1."""

    D: Tensor

    def declare(self) -> None:
        """The table, which limits the length."""
        super().declare()
        self.bounded = True
        self.power_table("D", 0, self.l - 1)

    def whole(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The reads (b, n, s, V): all scores times powers of the decay by distance, 0 for later
        rows."""
        s = x.shape[1]
        decays = F.pad(self.D[:, :s], (s - 1, 0)).unfold(1, s, 1).flip(2)
        return ((q @ k.mT) * decays) @ v

    def latest(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, state: State) -> Tensor:
        """The read (b, n, 1, V) of one token: scores with all keys times powers of the decay."""
        state.append(K=k.squeeze(2), V=v.squeeze(2))
        decays = self.D[:, : state.position].flip(1).unsqueeze(1)
        return ((q @ state.held("K").mT) * decays) @ state.held("V")


class ChunksByHead(ByHead):
    """Chunks of C rows, all computed at once: scores of all pairs of a chunk, those of later rows
    set to zero, and S, the sum up to the end of the chunk before; D_C (n, C+1) is a table of the
    powers 0 to C."""

    FORM = "chunked"
    REWRITES = ("dense",)
    READ: ClassVar[dict[str, str]] = {
        **dict.fromkeys("ANRS", "contraction"),
        **dict.fromkeys(("K_C", "Q_C"), "elementwise"),
    }
    D_C: Tensor

    def declare(self) -> None:
        """The table D_C."""
        require_sizes(C=self.C)
        super().declare()
        self.power_table("D_C", 0, self.C)

    def whole(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The reads (b, n, s, V): each query reads the rows of its chunk so far, plus S, the
        decayed sum of k^T v, at the end of the chunk before. A chunk of fewer than C rows, the
        last, does not update S. x is not used, as the decays are constants."""
        groups = by_chunk(self.C, q, k, v)
        own = in_turn([self.pairs(*group) for group in groups])
        if q.shape[2] < self.C:
            return own
        sums = self.sums(*groups[0][1:])
        S = carried(sums, [self.D_C[:, self.C].view(-1, 1, 1)] * (sums.shape[2] - 1))
        queries = after_first([group[0] for group in groups])
        since = self.D_C[:, 1:, None].unsqueeze(1)
        found = [
            (rows * since[:, :, : rows.shape[3]]) @ before
            for rows, before in zip(queries, before_each(S, groups), strict=True)
        ]
        return with_earlier(own, found)

    def pairs(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The reads (b, n, c, r, V) of c chunks of r rows within each chunk: all scores times
        powers of the decay by distance, 0 for later rows."""
        r = q.shape[3]
        decays = F.pad(self.D_C[:, :r], (r - 1, 0)).unfold(1, r, 1).flip(2)
        return ((q @ k.mT) * decays.unsqueeze(1)) @ v

    def sums(self, k: Tensor, v: Tensor) -> Tensor:
        """The decayed sums of k^T v, (b, n, c, K, V), over the rows of c complete chunks."""
        return (k * self.D_C[:, : self.C].flip(1)[:, None, :, None]).mT @ v

    def latest(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, state: State) -> Tensor:
        """The read (b, n, 1, V) of one token: its query reads the rows of its chunk so far, plus,
        from the second chunk on, S, the decayed sum of k^T v, at the end of the chunk before; the
        last token of a chunk updates S, of which `state` holds no row in the first chunk."""
        assert isinstance(state, ChunkState)
        held, rows = state.held("S"), state.in_chunk + 1
        S = held.view(*held.shape[:2], self.K, self.V) if held.shape[2] else None
        state.append(K=k.squeeze(2), V=v.squeeze(2))
        keys, values = state.chunk("K"), state.chunk("V")
        decays = self.D_C[:, :rows].flip(1).unsqueeze(1)
        read = ((q @ keys.mT) * decays) @ values
        if S is not None:
            read = read + (q * self.D_C[:, rows, None, None]) @ S
        if not state.in_chunk:
            own = self.sums(keys.unsqueeze(2), values.unsqueeze(2)).squeeze(2)
            after = own if S is None else self.D_C[:, self.C].view(-1, 1, 1) * S + own
            state.complete(S=after.flatten(-2))
        return read

    def initial_state(self, batch: int, length: int | None = None) -> State:
        """Make the state before the first token: room for the keys K and values V of one chunk of C
        tokens, and for S, the sum over earlier chunks; it serves any number of tokens."""
        require_sizes(batch=batch)
        self.require_length(length)
        shapes = {"K": (self.C, self.K), "V": (self.C, self.V), "S": (1, self.K * self.V)}
        arrays = {k: self.like.new_zeros(batch, self.n, *shape) for k, shape in shapes.items()}
        return ChunkState(arrays, sliding=True)


class ByChannel(Decayed):
    """Decays for each key channel, given by the token: their logarithms are log sigmoid(z) / 16
    with z = x W_1 W_2 + b_2, for W_1 (d, r), W_2 (r, n*K) and b_2 (n*K,)."""

    r: int

    def declare(self) -> None:
        """W_1, W_2 and b_2."""
        super().declare()
        self.W_1: nn.Parameter = self.weight(self.d, self.r)
        self.W_2: nn.Parameter = self.weight(self.r, self.n * self.K)
        self.b_2: nn.Parameter = self.weight(self.n * self.K)

    def logarithms(self, x: Tensor) -> Tensor:
        """The logarithms g (b, n, s, K) of the decays. Above the threshold of 40 torch's softplus
        returns its argument, which is exact in float64."""
        gate = self.heads((x @ self.W_1) @ self.W_2 + self.b_2)
        return -F.softplus(-gate, threshold=40) / 16


class RecurrentByChannel(Recurrent, ByChannel):
    """A recurrence whose decays follow from each row."""

    READ: ClassVar[dict[str, str]] = {**Recurrent.READ, "alpha": "elementwise"}

    def kept(self, x: Tensor) -> Sequence[Tensor]:
        """The exponentials (b, n, K, 1) of the logarithms."""
        return torch.exp(self.logarithms(x)).unsqueeze(-1).unbind(2)


class ScannedByChannel(Scanned, RecurrentByChannel):
    """A scan; all states of a key channel share its decay."""

    def decays(self, x: Tensor) -> Tensor:
        """The exponentials (b, n, s, K, 1) of the logarithms, and 0 for the first row."""
        later = torch.exp(self.logarithms(x[:, 1:]))
        first = later.new_zeros(*later.shape[:2], 1, later.shape[3])
        return torch.cat((first, later), dim=2).unsqueeze(-1)


class PairsByChannel(Pairs, ByChannel):
    """Scores of all pairs: products of q * B and k / B, where B (b, n, s, K) is the product of the
    decays up to a row."""

    KEYS = "K_B"
    READ: ClassVar[dict[str, str]] = {
        **Pairs.READ,
        **dict.fromkeys(("B", "Q_B", "K_B"), "elementwise"),
        "G": "running-sum",
    }
    STEP: ClassVar[dict[str, str]] = {"G": "elementwise"}

    def whole(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The reads (b, n, s, V) of all rows from the scores of all pairs, those of later rows set
        to zero. With B, the product of decays up to a row, the score of row i with row j is (q_i
        B_i) . (k_j / B_j)."""
        s = x.shape[1]
        B = torch.exp(self.logarithms(x).cumsum(2))
        later = torch.ones(s, s, dtype=torch.bool, device=x.device).triu(1)
        return ((q * B) @ (k / B).mT).masked_fill(later, 0) @ v

    def latest(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, state: State) -> Tensor:
        """The read (b, n, 1, V) of one token from all rows so far: G sums the logarithms of decays
        up to the token, B = exp(G), and `state` holds each key divided by the B of its row."""
        G = self.logarithms(x)
        if state.position:
            G = state.held("G") + G
        B = torch.exp(G)
        state.append(K_B=(k / B).squeeze(2), V=v.squeeze(2), G=G.squeeze(2))
        return ((q * B) @ state.held("K_B").mT) @ state.held("V")

    def initial_state(self, batch: int, length: int | None = None) -> State:
        """An empty state with the keys (divided by B) and values of all tokens, and the sum G
        (batch, n, 1, K) of the logarithms."""
        state = super().initial_state(batch, length)
        state.arrays["G"] = self._rows(batch, 1, self.n, self.K)
        return state


class ChunksByChannel(ByChannel):
    """Chunks of C rows, all computed at once: scores of all pairs of a chunk, those of later rows
    set to zero, products of q * B and k / B, where B is the product of the decays since the chunk's
    start, and S, the sum up to the end of the chunk before."""

    FORM = "chunked"
    REWRITES = ("dense",)
    READ: ClassVar[dict[str, str]] = {
        **dict.fromkeys("ANRS", "contraction"),
        "G": "reduction",
        **dict.fromkeys(("B", "Q_B", "K_B", "K_C"), "elementwise"),
    }

    def declare(self) -> None:
        """W_1, W_2 and b_2, with a size C."""
        require_sizes(C=self.C)
        super().declare()

    def whole(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The reads (b, n, s, V): each query reads the rows of its chunk so far, plus S, the
        decayed sum of k^T v, at the end of the chunk before. B, the decay since the chunk's start,
        multiplies the query q of a row and divides its key k. A chunk of fewer than C rows, the
        last, does not update S."""
        own, groups = [], []  # per group of chunks: reads within a chunk; (q B, k / B, v, B)
        for g, queries, keys, values in by_chunk(self.C, self.logarithms(x), q, k, v):
            r = g.shape[3]
            later = torch.ones(r, r, dtype=torch.bool, device=x.device).triu(1)
            rows = g.unsqueeze(3).expand(-1, -1, -1, r, -1, -1)
            B = torch.exp(rows.masked_fill(later.unsqueeze(-1), 0).sum(4))
            queries, keys = queries * B, keys / B
            own.append((queries @ keys.mT).masked_fill(later, 0) @ values)
            groups.append((queries, keys, values, B))
        reads = in_turn(own)
        if q.shape[2] < self.C:
            return reads
        _, keys, values, B = groups[0]
        S = carried(self.added(keys, values, B[:, :, :, -1:]), B[:, :, 1:, -1, :, None].unbind(2))
        later_queries = after_first([group[0] for group in groups])
        found = map(torch.matmul, later_queries, before_each(S, groups))
        return with_earlier(reads, list(found))

    def added(self, keys: Tensor, values: Tensor, B: Tensor) -> Tensor:
        """What complete chunks add to S, (..., K, V), with values and keys, divided by their B; the
        argument B (..., 1, K) is that of each chunk's last row."""
        return (keys * B).mT @ values

    def latest(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, state: State) -> Tensor:
        """The read (b, n, 1, V) of one token: its query, times the decay B since its chunk's start,
        reads the chunk's rows (each key over its own B) so far, plus, from the second chunk on, S,
        the decayed sum of k^T v at the end of the chunk before; a chunk's last token updates S."""
        assert isinstance(state, ChunkState)
        held = state.held("S")
        S = held.view(*held.shape[:2], self.K, self.V) if held.shape[2] else None
        g = self.logarithms(x)
        B = torch.exp(torch.cat([state.held("g"), g], dim=2).sum(2, keepdim=True))
        query, key = q * B, k / B
        state.append(g=g.squeeze(2), K_B=key.squeeze(2), V=v.squeeze(2))
        keys, values = state.chunk("K_B"), state.chunk("V")
        read = (query @ keys.mT) @ values
        if S is not None:
            read = read + query @ S
        if not state.in_chunk:
            own = self.added(keys, values, B)
            state.complete(S=(own if S is None else B.mT * S + own).flatten(-2))
        return read

    def initial_state(self, batch: int, length: int | None = None) -> State:
        """Make the state before the first token: room for the logarithms of decays g, keys over B
        and values of one chunk of C tokens, and for S, the sum over earlier chunks; it serves any
        number of tokens."""
        require_sizes(batch=batch)
        self.require_length(length)
        rows = {"g": (self.C, self.K), "K_B": (self.C, self.K), "V": (self.C, self.V)}
        shapes = {**rows, "S": (1, self.K * self.V)}
        arrays = {k: self.like.new_zeros(batch, self.n, *shape) for k, shape in shapes.items()}
        return ChunkState(arrays, sliding=True, chunked=tuple(rows))


_Class = TypeVar("_Class", bound=type[Decayed])


def decayed(cls: _Class) -> _Class:
    """Register and return the decorated class: an implementation, named by its form, of the mixer
    in its `MIXER`, without and with the option `core` (maps and recurrence: no gate, no norm)."""
    for name, around in ((cls.MIXER, cls.KERNELS), (f"{cls.MIXER}+core", cls.CORE)):
        kernels = around | cls.READ  # array -> kernel class
        cls = implementation(
            name,
            cls.FORM,
            form=cls.FORM,
            rewrites=cls.REWRITES,
            kernels=kernels | cls.WHOLE,
            step_form=cls.STEP_FORM,
            step_kernels=kernels | cls.STEP,
        )(cls)
    return cls


class RetNet(ByHead):
    """RetNet: keys of width h, values of width v*h; without `core` queries and keys are rotated by
    the tables cos and sin (l, h), which limit the length."""

    MIXER = "retnet"
    CORE: ClassVar[dict[str, str]] = {
        **MAPS, **dict.fromkeys(("X_Q", "K"), "contraction"), "Q": "elementwise",
    }  # fmt: skip
    KERNELS: ClassVar[dict[str, str]] = {
        **CORE, **AROUND, "X_K": "contraction", **dict.fromkeys(("T_Q", "K"), "elementwise"),
    }  # fmt: skip
    cos: Tensor
    sin: Tensor

    def __init__(
        self,
        *,
        d: int,
        l: int,
        n: int,
        v: int,
        h: int | None = None,
        C: int | None = None,
        options: Sequence[str] = (),
    ) -> None:
        """Declare RetNet's weights and tables: n heads of width h (default d/n), values v times as
        wide, chunks of C tokens (None: no chunks). ValueError for an odd h without the option
        `core`, as pairs are rotated."""
        require_sizes(v=v)
        h = head_width(d, n) if h is None else h
        core = "core" in options
        super().__init__(d=d, l=l, n=n, K=h, V=v * h, gain=v * h, C=C, core=core)
        if not core:
            if h % 2:
                raise ValueError(f"the width of a head is {h} and must be even, to turn pairs")
            self.bounded = True
            half = torch.arange(h // 2, dtype=torch.float64) / (h // 2)
            rows = torch.arange(l, dtype=torch.float64).unsqueeze(1)
            angles = (rows * 10_000.0**-half).repeat(1, 2)
            self.table("cos", angles.cos())
            self.table("sin", angles.sin())

    def powers(self, rows: Tensor) -> Tensor:
        """(1 - 2^(-4-j))^rows for head j from 1 to n."""
        j = torch.arange(1, self.n + 1, dtype=torch.float64)
        return (1 - 2.0 ** (-4 - j)).unsqueeze(1) ** rows

    def projected(self, x: Tensor, first: int) -> Heads:
        """(queries, keys, values), (b, n, s, K or V) in n heads, of rows x (b, s, d), whose first
        row has the position `first`; queries and keys are rotated unless `core`, and queries
        divided by sqrt(K)."""
        q, k, v = (self.heads(x @ W) for W in (self.W_Q, self.W_K, self.W_V))
        if not self.core:
            q, k = self.turned(q, first), self.turned(k, first)
        return q * self.K**-0.5, k, v

    def turned(self, rows: Tensor, first: int) -> Tensor:
        """Rows (b, n, s, h), channels p and p + h/2 rotated by the positions from `first` on."""
        one, other = rows.chunk(2, dim=-1)
        part = slice(first, first + rows.shape[2])
        return rows * self.cos[part] + torch.cat([-other, one], dim=-1) * self.sin[part]


@decayed
class RetNetRecurrent(RecurrentByHead, RetNet):
    """RetNet by the recurrence."""


@decayed
class RetNetScan(ScannedByHead, RetNet):
    """RetNet by a scan."""


@decayed
class RetNetParallel(PairsByHead, RetNet):
    """RetNet by the scores of all pairs."""


@decayed
class RetNetChunked(ChunksByHead, RetNet):
    """RetNet in chunks of C rows."""


class GLA(ByChannel):
    """GLA: values of width h, keys of width h/v; the map of the decays has rank r."""

    MIXER = "gla"
    CORE: ClassVar[dict[str, str]] = {
        **MAPS, **dict.fromkeys(("X_Q", "K", "F", "g"), "contraction"), "Q": "elementwise",
    }  # fmt: skip
    KERNELS: ClassVar[dict[str, str]] = {**CORE, **AROUND}

    def __init__(
        self,
        *,
        d: int,
        l: int,
        n: int,
        v: int,
        r: int,
        h: int | None = None,
        C: int | None = None,
        options: Sequence[str] = (),
    ) -> None:
        """Declare GLA's weights: n heads of width h (default d/n), keys of width h/v, decays by a
        map of rank r, chunks of C tokens (None: no chunks); the one option, `core`, leaves out the
        gate and the norm. ValueError unless v divides h."""
        require_sizes(r=r, v=v)
        self.r = r
        h = head_width(d, n) if h is None else h
        if h % v:
            raise ValueError(f"the width of a head is {h} and must be divisible by v = {v}")
        super().__init__(d=d, l=l, n=n, K=h // v, V=h, gain=h, C=C, core="core" in options)

    def projected(self, x: Tensor, first: int) -> Heads:
        """Queries, over sqrt(K), keys and values; `first` has no effect."""
        q, k, v = (self.heads(x @ W) for W in (self.W_Q, self.W_K, self.W_V))
        return q * self.K**-0.5, k, v


@decayed
class GLARecurrent(RecurrentByChannel, GLA):
    """GLA by the recurrence."""


@decayed
class GLAScan(ScannedByChannel, GLA):
    """GLA by a scan."""


@decayed
class GLAParallel(PairsByChannel, GLA):
    """GLA by the scores of all pairs."""


@decayed
class GLAChunked(ChunksByChannel, GLA):
    """GLA in chunks of C rows."""


class Lightning(ByHead):
    """Lightning attention: keys and values of width h; a norm over all heads, with the gain
    (n*h,), and a sigmoid gate. The decays are those of layer 0."""

    MIXER = "lightning"
    CORE: ClassVar[dict[str, str]] = {**MAPS, **dict.fromkeys("QK", "contraction")}
    KERNELS: ClassVar[dict[str, str]] = {**CORE, **AROUND}

    def __init__(
        self,
        *,
        d: int,
        l: int,
        n: int,
        h: int | None = None,
        C: int | None = None,
        options: Sequence[str] = (),
    ) -> None:
        """Declare Lightning's weights: n heads of width h (default d/n), chunks of C tokens (None:
        no chunks); the one option, `core`, leaves out the gate, the norm and silu."""
        h = head_width(d, n) if h is None else h
        super().__init__(d=d, l=l, n=n, K=h, V=h, gain=n * h, C=C, core="core" in options)

    def powers(self, rows: Tensor) -> Tensor:
        """exp(-s rows) with s = 2^(-8j/n) (1 + 1e-5) for head j from 1 to n."""
        j = torch.arange(1, self.n + 1, dtype=torch.float64)
        return torch.exp(-(2.0 ** (-8 * j / self.n)).unsqueeze(1) * (1 + 1e-5) * rows)

    def projected(self, x: Tensor, first: int) -> Heads:
        """Queries, keys and values, each through silu unless `core`; `first` has no effect."""
        q, k, v = (self.heads(x @ W) for W in (self.W_Q, self.W_K, self.W_V))
        return (q, k, v) if self.core else (F.silu(q), F.silu(k), F.silu(v))

    def gated(self, x: Tensor, rows: Tensor) -> Tensor:
        """(b, s, n*h): the concatenated heads (b, s, n, h) normalised together, times a sigmoid
        gate."""
        return rms_norm(rows.flatten(2), self.gain, 1e-6) * torch.sigmoid(x @ self.W_G)


@decayed
class LightningRecurrent(RecurrentByHead, Lightning):
    """Lightning attention by the recurrence."""


@decayed
class LightningScan(ScannedByHead, Lightning):
    """Lightning attention by a scan."""


@decayed
class LightningParallel(PairsByHead, Lightning):
    """Lightning attention by the scores of all pairs."""


@decayed
class LightningChunked(ChunksByHead, Lightning):
    """Lightning attention in chunks of C rows."""
