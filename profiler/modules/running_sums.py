"""How do queries read the sum over earlier tokens, or all, of key times value, in PyTorch?

Shared by the mixers that attend without softmax. Queries and keys are (b, n, s, m), with m features
or m = h; values and the reads are (b, n, s, h): token i reads the sum over k <= i of (q_i . k_k)
v_k. The weights are the sums of q_i . k_k, (b, n, s), where a mixer divides by them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from profiler.modules.base import Headed, Mixer, PreparedState, State, require_sizes
from profiler.modules.registry import implementation

Read = tuple[Tensor, Tensor]
"""What queries read, and the weights; the weights are empty, (0,), where they are not asked for."""


WEIGHTS = ("Z", "D")
"""The arrays of the weights."""


class Sums(ABC):
    """A way to sum."""

    computes: ClassVar[Mapping[str, str]]
    """Array -> kernel class, the weights' arrays included."""

    @abstractmethod
    def whole(self, q: Tensor, k: Tensor, v: Tensor) -> Read:
        """All tokens at once."""


class AllTokens(Sums):
    """Every query reads the sums over all tokens."""

    computes: ClassVar[Mapping[str, str]] = {
        "S": "contraction",
        "Z": "reduction",
        "D": "contraction",
    }

    def whole(self, q: Tensor, k: Tensor, v: Tensor) -> Read:
        """One product of keys and values, one of queries with it; the same for the weights."""
        return q @ (k.transpose(-2, -1) @ v), (q @ k.sum(-2).unsqueeze(-1)).squeeze(-1)


class RunningSums(Sums):
    """A way to sum up to each token: the form of the equations that it computes, and the state
    between tokens.

    With weights, an array Z or the scores' sum D exists beside S or the scores A.
    """

    name: ClassVar[str]
    form: ClassVar[str]
    rewrites: ClassVar[tuple[str, ...]] = ()
    sliding: ClassVar[bool]
    """Whether the state is one row, whatever the number of tokens."""

    def __init__(self, *, weighted: bool) -> None:
        self.weighted = weighted

    @property
    def kernels(self) -> dict[str, str]:
        """Array -> kernel class, for the arrays computed with or without weights."""
        return self._named(self.computes)

    @property
    def step_kernels(self) -> dict[str, str]:
        """The same for one token."""
        return self.kernels

    def _named(self, computes: Mapping[str, str]) -> dict[str, str]:
        return {k: v for k, v in computes.items() if self.weighted or k not in WEIGHTS}

    @abstractmethod
    def latest(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> Read:
        """The newest token, (b, n, m) and (b, n, h); its key and value are written into the
        state."""

    @abstractmethod
    def widths(self, m: int, h: int) -> dict[str, int]:
        """Array -> width of a held row of one head."""


def part(sums: Tensor, kept: Tensor | None) -> Tensor:
    """The part of the sums (b, n, ...) of a head that is kept, (b, n), or all of them."""
    return sums if kept is None else kept.view(*kept.shape, *(1,) * (sums.ndim - 2)) * sums


class RecurrentSums(RunningSums):
    """The sums S of k v^T, (m, h), and Z of k, (m), are carried from row to row."""

    form = "recurrent"
    computes: ClassVar[Mapping[str, str]] = {
        "S": "elementwise",
        "Z": "elementwise",
        "D": "reduction",
    }
    sliding = True

    def widths(self, m: int, h: int) -> dict[str, int]:
        """S row by row, and Z."""
        return {"S": m * h, "Z": m} if self.weighted else {"S": m * h}

    def latest(
        self, q: Tensor, k: Tensor, v: Tensor, state: State, kept: Tensor | None = None
    ) -> Read:
        """Add the token's product to the part of each sum that it keeps (b, n), or to all; after
        the first token the sums are its product."""
        S, Z = k.unsqueeze(-1) * v.unsqueeze(-2), k
        if state.position:
            S = part(state.held("S").view(S.shape), kept) + S
            Z = part(state.held("Z").squeeze(-2), kept) + k if self.weighted else k
        sums = {"S": S.flatten(-2), "Z": Z}
        state.append(**{name: sums[name] for name in state.arrays})
        return self._read(q, S, Z)

    def _read(self, q: Tensor, S: Tensor, Z: Tensor) -> Read:
        """Reads and weights of queries (..., m), from S (..., m, h) and Z (..., m)."""
        reads = (q.unsqueeze(-2) @ S).squeeze(-2)
        return reads, (q * Z).sum(-1) if self.weighted else q.new_empty(0)


class RowByRow(RecurrentSums):
    """One row after another, holding one S at a time."""

    name = "recurrent"

    def whole(self, q: Tensor, k: Tensor, v: Tensor, kept: Tensor | None = None) -> Read:
        """Each row adds its product to the part of the sums that it keeps (b, n, s), or to all."""
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
    """The sums of all rows at once, by a running sum: b n s m h numbers are in memory."""

    name = "cumsum"
    computes: ClassVar[Mapping[str, str]] = {
        **RecurrentSums.computes,
        "S": "running-sum",
        "Z": "running-sum",
    }

    @property
    def step_kernels(self) -> dict[str, str]:
        """For one token: one term is added to each sum."""
        return self._named(RecurrentSums.computes)

    def whole(self, q: Tensor, k: Tensor, v: Tensor) -> Read:
        """One running sum for each of S and Z, then one product with all queries."""
        S = (k.unsqueeze(-1) * v.unsqueeze(-2)).cumsum(2)
        return self._read(q, S, k.cumsum(2) if self.weighted else k)


class ScoredPairs(RunningSums):
    """Every query is scored against every key; the scores of later tokens are zeroed."""

    name = "parallel"
    form = "parallel"
    rewrites = ("dense",)
    computes: ClassVar[Mapping[str, str]] = {"A": "contraction", "D": "reduction"}
    sliding = False

    def widths(self, m: int, h: int) -> dict[str, int]:
        """Keys and values."""
        return {"K": m, "V": h}

    def whole(self, q: Tensor, k: Tensor, v: Tensor) -> Read:
        """Scores (b, n, s, s), then the values weighted by them."""
        length = q.shape[2]
        later = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
        return self._read((q @ k.transpose(-2, -1)).masked_fill(later, 0), v)

    def latest(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> Read:
        """Scores (b, n, 1, t) against all held keys."""
        state.append(K=k, V=v)
        scores = q.unsqueeze(2) @ state.held("K").transpose(-2, -1)
        reads, weights = self._read(scores, state.held("V"))
        return reads.squeeze(2), weights.squeeze(-1)

    def _read(self, scores: Tensor, v: Tensor) -> Read:
        return scores @ v, scores.sum(-1) if self.weighted else v.new_empty(0)


Sum = tuple[Tensor, Tensor]
"""S (b, n, m, h) and Z (b, n, m), the sums of k v^T and of k over the chunks that are complete."""


class ChunkState(PreparedState):
    """The keys and values of the running chunk, the sums over all chunks before, and what any state
    holds.

    The rows K (b, ..., C, m) and V (b, ..., C, h) fill from the front and are cleared when their
    chunk is complete; S (b, n, 1, m h) and Z (b, n, 1, m) are held from the first complete chunk
    on. For these, any number of tokens has room.
    """

    @property
    def C(self) -> int:
        """Number of tokens in a chunk."""
        return self.arrays["K"].shape[-2]

    @property
    def in_chunk(self) -> int:
        """Number of tokens in the running chunk."""
        return self.position % self.C

    def rows(self, name: str) -> int:
        """Number of tokens of the running chunk; of a sum 1 once a chunk is complete."""
        if name in CARRIED:
            return int(self.position >= self.C)
        return self.in_chunk if name in CHUNKED else super().rows(name)

    def held(self, name: str) -> Tensor:
        """The rows held, a view (b, ..., rows, width)."""
        if name in CARRIED + CHUNKED:
            return self.arrays[name].narrow(-2, 0, self.rows(name))
        return super().held(name)

    def append(self, **rows: Tensor) -> None:
        """Write one token's key (b, ..., m) and value (b, ..., h) behind its chunk's, in place, and
        any other row."""
        self.require_room()
        for name, row in rows.items():
            if name in CHUNKED:
                self.arrays[name].select(-2, self.in_chunk).copy_(row)
            else:
                self._write(self.arrays[name], row)
        self.position += 1

    def chunk(self, name: str) -> Tensor:
        """The rows of the newest token's chunk up to that token, (b, ..., rows, h)."""
        return self.arrays[name].narrow(-2, 0, (self.position - 1) % self.C + 1)

    def complete(self, **sums: Tensor) -> None:
        """Replace the sums (b, n, width) and overwrite the chunk's rows with NaN, so that none can
        be read."""
        for name, sum_ in sums.items():
            self.arrays[name].select(-2, 0).copy_(sum_)
        for name in CHUNKED:
            self.arrays[name].fill_(math.nan)


CARRIED = ("S", "Z")
"""The arrays of sums that are carried from chunk to chunk."""
CHUNKED = ("K", "V")
"""The arrays of a chunk's rows."""


class ChunkedSums(RunningSums):
    """Chunks of C tokens: pairs within a chunk, row by row, and the sums of the chunks before.

    A chunk is added to the sums when it is complete. No pair that the mask forbids is scored.
    """

    name = "chunked"
    form = "chunked"
    computes: ClassVar[Mapping[str, str]] = {
        "S": "reduction",
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
        """Keys and values of a chunk, S row by row, and Z."""
        return {"K": m, "V": h, "S": m * h, "Z": m}

    def whole(self, q: Tensor, k: Tensor, v: Tensor) -> Read:
        """Chunk after chunk; the last one may be short, and is then not added to the sums."""
        before: Sum | None = None
        found: list[Read] = []
        for start in range(0, q.shape[2], self.C):
            queries, keys, values = (rows[:, :, start : start + self.C] for rows in (q, k, v))
            rows = [
                _read_chunk(queries[:, :, e - 1 : e], keys[:, :, :e], values)
                for e in range(1, queries.shape[2] + 1)
            ]
            found.append(_with_sums(queries, *_concatenated(rows), before))
            if keys.shape[2] == self.C:
                before = _sums_after(keys, values, before)
        return _concatenated(found)

    def latest(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> Read:
        """The pairs of the newest token, and the sums of the chunks before its own."""
        assert isinstance(state, ChunkState)
        before = self._sums(state)
        state.append(K=k, V=v)
        keys, values, query = state.chunk("K"), state.chunk("V"), q.unsqueeze(2)
        reads, weights = _with_sums(query, *_read_chunk(query, keys, values), before)
        if not state.in_chunk:
            S, Z = _sums_after(keys, values, before)
            state.complete(S=S.flatten(-2), Z=Z)
        return reads.squeeze(2), weights.squeeze(-1)

    def _sums(self, state: ChunkState) -> Sum | None:
        """The held sums; None before the first chunk is complete."""
        S, Z = state.held("S"), state.held("Z")
        if not S.shape[-2]:
            return None
        return S.view(*S.shape[:2], Z.shape[-1], -1), Z.squeeze(-2)


def _concatenated(parts: Sequence[Read]) -> Read:
    """Reads (b, n, s, h) and weights (b, n, s) of consecutive rows, or chunks, concatenated."""
    reads, weights = zip(*parts, strict=True)
    return torch.cat(reads, dim=2), torch.cat(weights, dim=2)


def _read_chunk(q: Tensor, k: Tensor, v: Tensor) -> Read:
    """Reads N and weights D of one query (b, n, 1, m) within its chunk: over the keys up to its own
    row and as many of the chunk's values."""
    scores = q @ k.transpose(-2, -1)
    return scores @ v[:, :, : k.shape[2]], scores.sum(-1)


def _with_sums(q: Tensor, reads: Tensor, weights: Tensor, before: Sum | None) -> Read:
    """Reads and weights of queries (b, n, s, m) within their chunk, plus those of the sums before
    it."""
    if before is None:
        return reads, weights
    S, Z = before
    weights = weights + (q @ Z.unsqueeze(-1)).squeeze(-1)
    return reads + q @ S, weights


def _sums_after(k: Tensor, v: Tensor, before: Sum | None) -> Sum:
    """The sums at the end of a complete chunk with keys (b, n, C, m) and values (b, n, C, h)."""
    S = (k.unsqueeze(-1) * v.unsqueeze(-2)).sum(-3)
    if before is None:
        return S, k.sum(-2)
    return before[0] + S, before[1] + k.sum(-2)


class Summing(Headed, Mixer):
    """A mixer of n heads whose queries read running sums."""

    MIXER: ClassVar[str]
    sums: RunningSums

    @property
    def features(self) -> int:
        """The width m of a head's queries and keys."""
        return self.h

    @classmethod
    @abstractmethod
    def kernels(cls) -> dict[str, str]:
        """Array -> kernel class, for the arrays around the sums."""

    def initial_state(self, batch: int, length: int | None = None) -> PreparedState:
        """The state of the way to sum, (batch, n, rows, width); one row has room for any length."""
        require_sizes(length=self.l if length is None else length)
        rows = 1 if self.sums.sliding else length
        widths = self.sums.widths(self.features, self.h)
        arrays = {k: self._rows(batch, rows, self.n, w) for k, w in widths.items()}
        return PreparedState(arrays, sliding=self.sums.sliding)


_Class = TypeVar("_Class", bound=type[Summing])


def summing(sums: RunningSums) -> Callable[[_Class], _Class]:
    """Give the decorated class its way to sum, and register it as an implementation."""

    def register(mixer: _Class) -> _Class:
        mixer.sums = sums
        kernels = mixer.kernels() | sums.kernels
        return implementation(
            mixer.MIXER,
            sums.name,
            form=sums.form,
            rewrites=sums.rewrites,
            kernels=kernels,
            step_kernels=mixer.kernels() | sums.step_kernels,
        )(mixer)

    return register
