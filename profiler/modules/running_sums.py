"""Linear attention in PyTorch, over earlier tokens or all: recurrence, running sum, scores, chunks.

Shapes: queries q and keys k (b, n, s, m), with m features or m = h; values v and reads
(b, n, s, h). The read of token i is the sum over j <= i of (q_i . k_j) v_j, and its weight, in an
array (b, n, s), is the sum of q_i . k_j, by which some mixers divide. Source: Katharopoulos et al.
2020, arXiv 2006.16236, sections 3.2 to 3.4; Hua et al. 2022, arXiv 2202.10447, for chunks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from profiler.modules.base import Headed, Mixer, PreparedState, State, require_sizes
from profiler.modules.registry import implementation

Read = tuple[Tensor, Tensor]
"""The reads (b, n, s, h) and the weights (b, n, s) of queries; a mixer without weights has an empty
tensor (0,) in their place."""


WEIGHTS = ("Z", "D")
"""The arrays of the equations that only a mixer with weights has."""


class Sums(ABC):
    """An algorithm for the reads and weights."""

    computes: ClassVar[Mapping[str, str]]
    """Array -> kernel class ("contraction"), with the arrays of `WEIGHTS`."""

    @abstractmethod
    def whole(self, q: Tensor, k: Tensor, v: Tensor) -> Read:
        """The reads and weights of all tokens of a sequence."""


class AllTokens(Sums):
    """Bidirectional: each query reads the sums over all tokens."""

    computes: ClassVar[Mapping[str, str]] = {
        "S": "contraction",
        "Z": "reduction",
        "D": "contraction",
    }

    def whole(self, q: Tensor, k: Tensor, v: Tensor) -> Read:
        """Reads q (k^T v), and weights q . (sum of keys)."""
        return q @ (k.transpose(-2, -1) @ v), (q @ k.sum(-2).unsqueeze(-1)).squeeze(-1)


class RunningSums(Sums):
    """A causal algorithm: the form of the equations that it computes, and its state between tokens.

    S is the sum of k v^T, A the scores. With weights there is also Z, the sum of keys, for S, and
    D, the sum of scores, for A.
    """

    name: ClassVar[str]
    form: ClassVar[str]
    rewrites: ClassVar[tuple[str, ...]] = ()
    sliding: ClassVar[bool]
    """Whether the state has a fixed size, as opposed to one row per token."""

    def __init__(self, *, weighted: bool) -> None:
        self.weighted = weighted

    @property
    def kernels(self) -> dict[str, str]:
        """A dict: array -> kernel class; arrays of `WEIGHTS` only if `weighted`."""
        return self._named(self.computes)

    @property
    def step_kernels(self) -> dict[str, str]:
        """A dict: array -> kernel class, for one token."""
        return self.kernels

    def _named(self, computes: Mapping[str, str]) -> dict[str, str]:
        """`computes`, without the arrays of `WEIGHTS` unless `weighted`."""
        return {k: v for k, v in computes.items() if self.weighted or k not in WEIGHTS}

    @abstractmethod
    def latest(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> Read:
        """The read (b, n, h) and the weight (b, n) of the newest token, with query and key
        (b, n, m) and value (b, n, h); the token is written into the state."""

    @abstractmethod
    def widths(self, m: int, h: int) -> dict[str, int]:
        """A dict: array of the state -> width of its rows, per head."""


def part(sums: Tensor, kept: Tensor | None) -> Tensor:
    """Sums (b, n, ...) scaled by the decay `kept` (b, n) of their head; unscaled if None."""
    return sums if kept is None else kept.view(*kept.shape, *(1,) * (sums.ndim - 2)) * sums


class RecurrentSums(RunningSums):
    """A recurrence over rows with the sums S of k v^T, (m, h), and Z of k, (m)."""

    form = "recurrent"
    computes: ClassVar[Mapping[str, str]] = {
        "S": "elementwise",
        "Z": "elementwise",
        "D": "reduction",
    }
    sliding = True

    def widths(self, m: int, h: int) -> dict[str, int]:
        """S, flattened to m*h, and Z."""
        return {"S": m * h, "Z": m} if self.weighted else {"S": m * h}

    def latest(
        self, q: Tensor, k: Tensor, v: Tensor, state: State, kept: Tensor | None = None
    ) -> Read:
        """(read, weight) of the newest token in n heads, (b, n, h) and (b, n): scale the sums S and
        Z by the decay `kept` (b, n), if given, add k v^T and k, and read them with q; the first
        token sets S and Z. q, k and v are (b, n, width); `state` is written."""
        S, Z = k.unsqueeze(-1) * v.unsqueeze(-2), k
        if state.position:
            S = part(state.held("S").view(S.shape), kept) + S
            Z = part(state.held("Z").squeeze(-2), kept) + k if self.weighted else k
        sums = {"S": S.flatten(-2), "Z": Z}
        state.append(**{name: sums[name] for name in state.arrays})
        return self._read(q, S, Z)

    def _read(self, q: Tensor, S: Tensor, Z: Tensor) -> Read:
        """Reads and weights of queries (..., m), from S (..., m, h) and Z (..., m); the weights are
        empty, and Z is not read, unless `self.weighted`."""
        reads = (q.unsqueeze(-2) @ S).squeeze(-2)
        return reads, (q * Z).sum(-1) if self.weighted else q.new_empty(0)


class RowByRow(RecurrentSums):
    """The recurrence as a loop over rows, with S (b, n, m, h) of one row in memory."""

    name = "recurrent"

    def whole(self, q: Tensor, k: Tensor, v: Tensor, kept: Tensor | None = None) -> Read:
        """(reads (b, n, s, h), weights (b, n, s)) of all rows by the recurrence: S sums k v^T, Z
        sums k, and a row's query reads both; S and Z are multiplied by the decay `kept` (b, n, s)
        of a row, if given, before the row is added. Weights are empty unless `self.weighted`."""
        S: Tensor | None = None
        Z: Tensor | None = None
        rows: list[Read] = []
        for i, (q_i, k_i, v_i) in enumerate(
            zip(q.unbind(2), k.unbind(2), v.unbind(2), strict=True)
        ):
            own = None if kept is None else kept[..., i]
            product = k_i.unsqueeze(-1) * v_i.unsqueeze(-2)
            S = product if S is None else part(S, own) + product
            Z = k_i if Z is None or not self.weighted else part(Z, own) + k_i
            rows.append(self._read(q_i, S, Z))
        reads, weights = zip(*rows, strict=True)
        return torch.stack(reads, dim=2), torch.stack(weights, dim=-1)


class AllRows(RecurrentSums):
    """The sums of all rows by `cumsum` (a prefix sum), with S (b, n, s, m, h) in memory."""

    name = "cumsum"
    computes: ClassVar[Mapping[str, str]] = {
        **RecurrentSums.computes,
        "S": "running-sum",
        "Z": "running-sum",
    }

    @property
    def step_kernels(self) -> dict[str, str]:
        """A dict: array -> kernel class for one token, which adds one term to each sum."""
        return self._named(RecurrentSums.computes)

    def whole(self, q: Tensor, k: Tensor, v: Tensor) -> Read:
        """S (b, n, s, m, h) and Z (b, n, s, m) by running sums, then read by all queries."""
        S = (k.unsqueeze(-1) * v.unsqueeze(-2)).cumsum(2)
        return self._read(q, S, k.cumsum(2) if self.weighted else k)


class ScoredPairs(RunningSums):
    """All scores q_i . k_k in a dense matrix, with the scores of later tokens set to zero."""

    name = "parallel"
    form = "parallel"
    rewrites = ("dense",)
    computes: ClassVar[Mapping[str, str]] = {"A": "contraction", "D": "reduction"}
    sliding = False

    def widths(self, m: int, h: int) -> dict[str, int]:
        """The keys and values of all tokens (a KV cache)."""
        return {"K": m, "V": h}

    def whole(self, q: Tensor, k: Tensor, v: Tensor) -> Read:
        """Masked scores (b, n, s, s), times the values."""
        length = q.shape[2]
        later = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
        return self._read((q @ k.transpose(-2, -1)).masked_fill(later, 0), v)

    def latest(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> Read:
        """Scores (b, n, 1, t) of the newest query and all t keys, times the values."""
        state.append(K=k, V=v)
        scores = q.unsqueeze(2) @ state.held("K").transpose(-2, -1)
        reads, weights = self._read(scores, state.held("V"))
        return reads.squeeze(2), weights.squeeze(-1)

    def _read(self, scores: Tensor, v: Tensor) -> Read:
        """Reads and weights, from scores (b, n, s, t) and values (b, n, t, h)."""
        return scores @ v, scores.sum(-1) if self.weighted else v.new_empty(0)


Sum = tuple[Tensor, Tensor]
"""S (..., m, h) and Z (..., m): the sums of k v^T and of k over complete chunks."""


@dataclass
class ChunkState(PreparedState):
    """The rows of the current chunk, the sums over all complete chunks, and other arrays as in any
    state.

    The arrays in `chunked`, such as K (b, ..., C, m) and V (b, ..., C, h), fill from the front, and
    the next chunk overwrites them (none of their rows is held at the end of a chunk); S (b, n, 1,
    m*h) and Z (b, n, 1, m) are held from the end of the first chunk on. None of these arrays limits
    the number of tokens.
    """

    chunked: tuple[str, ...] = ("K", "V")

    @property
    def C(self) -> int:
        """Number of tokens in a chunk."""
        return self.arrays[self.chunked[0]].shape[-2]

    @property
    def in_chunk(self) -> int:
        """Number of tokens in the current, incomplete chunk."""
        return self.position % self.C

    def rows(self, name: str) -> int:
        """Number of held rows: for S and Z 0, then 1; for `chunked`, tokens of the current
        chunk."""
        if name in CARRIED:
            return int(self.position >= self.C)
        return self.in_chunk if name in self.chunked else super().rows(name)

    def held(self, name: str) -> Tensor:
        """The held rows of an array, a view (b, ..., rows, width)."""
        if name in CARRIED + self.chunked:
            return self.arrays[name].narrow(-2, 0, self.rows(name))
        return super().held(name)

    def append(self, **rows: Tensor) -> None:
        """Write one token's rows (b, ..., width) in place: of the arrays in `chunked` after the
        rows of the current chunk, of other arrays after the earlier rows; ValueError if the state
        is full."""
        self.require_room()
        for name, row in rows.items():
            if name in self.chunked:
                self.arrays[name].select(-2, self.in_chunk).copy_(row)
            else:
                self._write(self.arrays[name], row)
        self.position += 1

    def chunk(self, name: str) -> Tensor:
        """The rows of the newest token's chunk up to this token, (b, ..., rows, width), between
        `append` and `complete`."""
        return self.arrays[name].narrow(-2, 0, (self.position - 1) % self.C + 1)

    def complete(self, **sums: Tensor) -> None:
        """End a chunk: store the new sums (b, n, width). The rows of the chunk stay until the next
        chunk overwrites them."""
        for name, sum_ in sums.items():
            self.arrays[name].select(-2, 0).copy_(sum_)


CARRIED = ("S", "Z")
"""The arrays of the sums over complete chunks."""


def by_chunk(C: int, *rows: Tensor) -> list[tuple[Tensor, ...]]:
    """Rows (b, n, s, ...) by chunk and place: first those of all complete chunks, (b, n, s//C, C,
    ...), then those of a shorter last chunk, (b, n, 1, r, ...); each only if there are any."""
    whole = rows[0].shape[2] // C * C
    groups = zip(*(torch.tensor_split(part, (whole,), dim=2) for part in rows), strict=True)
    return [
        tuple(part.unflatten(2, (-1, min(C, part.shape[2]))) for part in group)
        for group in groups
        if group[0].shape[2]
    ]


def in_turn(groups: Sequence[Tensor]) -> Tensor:
    """The rows (b, n, s, ...) of groups of chunks, (b, n, chunks, rows of a chunk, ...)."""
    return torch.cat([group.flatten(2, 3) for group in groups], dim=2)


def after_first(groups: Sequence[Tensor]) -> list[Tensor]:
    """Groups of chunks, (b, n, chunks, ...) each, without the first chunk."""
    return [groups[0][:, :, 1:], *groups[1:]]


def before_each(ends: Tensor, groups: Sequence[object]) -> list[Tensor]:
    """What each chunk but the first reads: the array at the end of the chunk before it, of `ends`
    (b, n, complete chunks, ...). In as many groups as `groups`: complete chunks, then the rest."""
    return [ends[:, :, :-1], ends[:, :, -1:]][: len(groups)]


def with_earlier(own: Tensor, found: Sequence[Tensor]) -> Tensor:
    """The rows `own` (b, n, s, ...) of all chunks, plus, from the second chunk on, what the chunks
    before add to them: `found`, for one group of chunks after another; `own` if there is none."""
    if not found:
        return own
    more = in_turn(found)
    first = own.shape[2] - more.shape[2]
    return torch.cat([own[:, :, :first], own[:, :, first:] + more], dim=2)


def carried(own: Tensor, kept: Sequence[Tensor]) -> Tensor:
    """The sums (b, n, c, ...) up to the end of each of c complete chunks, by a loop over chunks:
    the chunk's `own`, plus the sum before times the decay `kept` of the chunk, which broadcasts to
    (b, n, ...); `kept` begins with the second chunk."""
    first, *later = own.unbind(2)
    ends = [first]
    for decay, added in zip(kept, later, strict=True):
        ends.append(decay * ends[-1] + added)
    return torch.stack(ends, dim=2)


class ChunkedSums(RunningSums):
    """Chunks of C tokens: a query reads earlier tokens of its chunk by scores, and complete chunks
    by their sums S and Z.

    All pairs of a chunk have scores, those with later tokens are set to zero; all chunks are
    computed at once.
    """

    name = "chunked"
    form = "chunked"
    rewrites = ("dense",)
    computes: ClassVar[Mapping[str, str]] = {
        "S": "contraction",
        "Z": "reduction",
        "A": "contraction",
        "N": "contraction",
        "D": "reduction",
        "E": "contraction",
    }
    sliding = True

    def __init__(self, C: int) -> None:
        super().__init__(weighted=True)
        self.C = C

    def widths(self, m: int, h: int) -> dict[str, int]:
        """K and V of a chunk, S flattened to m*h, and Z."""
        return {"K": m, "V": h, "S": m * h, "Z": m}

    def whole(self, q: Tensor, k: Tensor, v: Tensor) -> Read:
        """(reads (b, n, s, h), weights (b, n, s)) of all rows: each row's pairs within its chunk,
        plus the sums over earlier chunks, which are running sums over the complete chunks."""
        # (q, k, v) of the complete chunks, then of a shorter last one
        groups = by_chunk(self.C, q, k, v)
        own = [_read_chunk(*group) for group in groups]
        reads, weights = (in_turn(parts) for parts in zip(*own, strict=True))
        if q.shape[2] < self.C:
            return reads, weights
        S, Z = (sums.cumsum(2) for sums in _sums(*groups[0][1:]))
        before = zip(before_each(S, groups), before_each(Z, groups), strict=True)
        # a single complete chunk leaves a group of 0 chunks
        queries = after_first([group[0] for group in groups])
        found = [_read_sums(rows, *sums) for rows, sums in zip(queries, before, strict=True)]
        of_sums, more = zip(*found, strict=True)
        return with_earlier(reads, of_sums), with_earlier(weights, more)

    def latest(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> Read:
        """(read (b, n, h), weight (b, n)) of the newest token: scores within its chunk, plus the
        sums over the complete chunks; the last token of a chunk adds the chunk to the sums."""
        assert isinstance(state, ChunkState)
        before = self._sums(state)  # (S, Z) of the complete chunks, None in the first chunk
        state.append(K=k, V=v)
        keys, values, query = state.chunk("K"), state.chunk("V"), q.unsqueeze(2)
        scores = query @ keys.mT
        reads, weights = scores @ values, scores.sum(-1)
        if before is not None:
            of_sums, more = _read_sums(query, *before)
            reads, weights = reads + of_sums, weights + more
        if not state.in_chunk:
            S, Z = _sums(keys, values)
            if before is not None:
                S, Z = before[0] + S, before[1] + Z
            state.complete(S=S.flatten(-2), Z=Z)
        return reads.squeeze(2), weights.squeeze(-1)

    def _sums(self, state: ChunkState) -> Sum | None:
        """The sums in the state; None before the first complete chunk."""
        S, Z = state.held("S"), state.held("Z")
        if not S.shape[-2]:
            return None
        return S.view(*S.shape[:2], Z.shape[-1], -1), Z.squeeze(-2)


def _read_chunk(q: Tensor, k: Tensor, v: Tensor) -> Read:
    """Reads N (..., r, h) and weights D (..., r) of the queries (..., r, m) of chunks over the keys
    (..., r, m) and values (..., r, h) of their chunk, up to each query's own."""
    later = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).triu(1)
    scores = (q @ k.mT).masked_fill(later, 0)
    return scores @ v, scores.sum(-1)


def _read_sums(q: Tensor, S: Tensor, Z: Tensor) -> Read:
    """Reads (..., r, h) and weights (..., r) of queries (..., r, m) by the sums S (..., m, h) and Z
    (..., m) over earlier chunks."""
    return q @ S, (q @ Z.unsqueeze(-1)).squeeze(-1)


def _sums(k: Tensor, v: Tensor) -> Sum:
    """The sums of k v^T (..., m, h) and of k (..., m) over the rows of complete chunks, with keys
    (..., C, m) and values (..., C, h)."""
    return k.mT @ v, k.sum(-2)


class Summing(Headed, Mixer):
    """A mixer with n heads that reads running sums by the algorithm `sums`. A subclass names its
    mixer in `MIXER`, and receives `sums` from the decorator `summing`."""

    MIXER: ClassVar[str]
    sums: RunningSums

    @property
    def features(self) -> int:
        """The width m of a head's queries and keys."""
        return self.h

    @classmethod
    @abstractmethod
    def kernels(cls) -> dict[str, str]:
        """A dict: array -> kernel class, for the arrays outside of `sums`."""

    def initial_state(self, batch: int, length: int | None = None) -> PreparedState:
        """Make the state before the first token: zero arrays (batch, n, rows, width) with one row
        if `sums` is `sliding`, else with `length` rows (default: l)."""
        require_sizes(length=self.l if length is None else length)
        rows = 1 if self.sums.sliding else length
        widths = self.sums.widths(self.features, self.h)
        arrays = {k: self._rows(batch, rows, self.n, w) for k, w in widths.items()}
        return PreparedState(arrays, sliding=self.sums.sliding)


_Class = TypeVar("_Class", bound=type[Summing])


def summing(sums: RunningSums) -> Callable[[_Class], _Class]:
    """Return a decorator that sets the algorithm `sums` of a class, and registers the class as an
    implementation of the mixer that its `MIXER` names."""

    def register(cls: _Class) -> _Class:
        """Set the class's sums, and register the class with its kernel classes."""
        cls.sums = sums
        kernels = cls.kernels() | sums.kernels
        return implementation(
            cls.MIXER,
            sums.name,
            form=sums.form,
            rewrites=sums.rewrites,
            kernels=kernels,
            step_kernels=cls.kernels() | sums.step_kernels,
        )(cls)

    return register
