"""How do queries read the sum over earlier tokens of key times value, in PyTorch?

Shared by the mixers that attend without softmax. Queries, keys and values are (b, n, s, h), and
what is read is (b, n, s, h): for token i the sum over k <= i of (q_i . k_k) v_k. The weights are
the sums of q_i . k_k alone, (b, n, s), where a mixer divides by them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from profiler.modules.base import Headed, Mixer, State, require_sizes
from profiler.modules.registry import implementation

Read = tuple[Tensor, Tensor]
"""What queries read, and the weights; nothing, (0,), where they are not asked for."""


WEIGHTS = ("Z", "D")
"""The arrays of the weights."""


class Sums(ABC):
    """A way to sum: the form of the equations that it computes, and the state of one token.

    With weights, an array Z or the scores' sum D stands beside S or the scores A.
    """

    name: ClassVar[str]
    form: ClassVar[str]
    rewrites: ClassVar[tuple[str, ...]] = ()
    computes: ClassVar[Mapping[str, str]]
    """Array -> kernel class, those of the weights among them."""
    sliding: ClassVar[bool]
    """Whether one row is held, whatever the number of tokens."""

    def __init__(self, *, weighted: bool) -> None:
        self.weighted = weighted

    @property
    def kernels(self) -> dict[str, str]:
        """Kernel class of the arrays that it computes."""
        return self._named(self.computes)

    @property
    def step_kernels(self) -> dict[str, str]:
        """The same for one token."""
        return self.kernels

    def _named(self, computes: Mapping[str, str]) -> dict[str, str]:
        return {k: v for k, v in computes.items() if self.weighted or k not in WEIGHTS}

    @abstractmethod
    def whole(self, q: Tensor, k: Tensor, v: Tensor) -> Read:
        """All tokens at once, (b, n, s, h)."""

    @abstractmethod
    def latest(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> Read:
        """The newest token, (b, n, h), which is written into the state."""

    @abstractmethod
    def widths(self, h: int) -> dict[str, int]:
        """Array -> the width of a row that is held for one head."""


class Recurrent(Sums):
    """The sums S of k v^T, (h, h), and Z of k, (h), are carried from row to row."""

    form = "recurrent"
    computes: ClassVar[Mapping[str, str]] = {
        "S": "elementwise",
        "Z": "elementwise",
        "D": "reduction",
    }
    sliding = True

    def widths(self, h: int) -> dict[str, int]:
        """S row by row, and Z."""
        return {"S": h * h, "Z": h} if self.weighted else {"S": h * h}

    def latest(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> Read:
        """One product added to each sum; the first token's is the sum."""
        S, Z = k.unsqueeze(-1) * v.unsqueeze(-2), k
        if state.position:
            S = state.held("S").view(S.shape) + S
            Z = state.held("Z").squeeze(-2) + k if self.weighted else k
        sums = {"S": S.flatten(-2), "Z": Z}
        state.append(**{name: sums[name] for name in state.arrays})
        return self._read(q, S, Z)

    def _read(self, q: Tensor, S: Tensor, Z: Tensor) -> Read:
        """(..., h) of queries and Z (..., h) and S (..., h, h)."""
        reads = (q.unsqueeze(-2) @ S).squeeze(-2)
        return reads, (q * Z).sum(-1) if self.weighted else q.new_empty(0)


class RowByRow(Recurrent):
    """One row after another: one S is held at a time."""

    name = "recurrent"

    def whole(self, q: Tensor, k: Tensor, v: Tensor) -> Read:
        """Every row adds its product to the sums of the row before."""
        S: Tensor | None = None
        Z: Tensor | None = None
        rows: list[Read] = []
        for q_i, k_i, v_i in zip(q.unbind(2), k.unbind(2), v.unbind(2), strict=True):
            product = k_i.unsqueeze(-1) * v_i.unsqueeze(-2)
            S = product if S is None else S + product
            Z = k_i if Z is None or not self.weighted else Z + k_i
            rows.append(self._read(q_i, S, Z))
        reads, weights = zip(*rows, strict=True)
        return torch.stack(reads, dim=2), torch.stack(weights, dim=-1)


class AllRows(Recurrent):
    """The sums of all rows at once, by a running sum: (b, n, s, h, h) numbers are in memory."""

    name = "cumsum"
    computes: ClassVar[Mapping[str, str]] = {
        **Recurrent.computes,
        "S": "running-sum",
        "Z": "running-sum",
    }

    @property
    def step_kernels(self) -> dict[str, str]:
        """One token adds one term to each sum."""
        return self._named(Recurrent.computes)

    def whole(self, q: Tensor, k: Tensor, v: Tensor) -> Read:
        """One running sum for each of S and Z, then one product with all queries."""
        S = (k.unsqueeze(-1) * v.unsqueeze(-2)).cumsum(2)
        return self._read(q, S, k.cumsum(2) if self.weighted else k)


class Pairs(Sums):
    """Every query is scored against every key; the scores of later tokens are zeroed."""

    name = "parallel"
    form = "parallel"
    rewrites = ("dense",)
    computes: ClassVar[Mapping[str, str]] = {"A": "contraction", "D": "reduction"}
    sliding = False

    def widths(self, h: int) -> dict[str, int]:
        """Keys and values."""
        return {"K": h, "V": h}

    def whole(self, q: Tensor, k: Tensor, v: Tensor) -> Read:
        """Scores (b, n, s, s), then what they weigh."""
        length = q.shape[2]
        later = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
        return self._read((q @ k.transpose(-2, -1)).masked_fill(later, 0), v)

    def latest(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> Read:
        """Scores (b, n, 1, t) of all that is held."""
        state.append(K=k, V=v)
        scores = q.unsqueeze(2) @ state.held("K").transpose(-2, -1)
        reads, weights = self._read(scores, state.held("V"))
        return reads.squeeze(2), weights.squeeze(-1)

    def _read(self, scores: Tensor, v: Tensor) -> Read:
        return scores @ v, scores.sum(-1) if self.weighted else v.new_empty(0)


Sum = tuple[Tensor, Tensor]
"""S (b, n, h, h) and Z (b, n, h), the sums of k v^T and of k over the chunks that are complete."""


class ChunkState(State):
    """The keys and values of the chunk that is running, and the sums of the chunks before.

    The rows K and V (b, n, C, h) fill from the front and are cleared when their chunk is complete;
    S (b, n, 1, h h) and Z (b, n, 1, h) are held from then on. Any number of tokens has room.
    """

    @property
    def rows(self) -> int:
        """Number of tokens of the running chunk whose rows are held."""
        return self.position % self.capacity

    def held(self, name: str) -> Tensor:
        """The rows of the running chunk, or a sum once there is one: (b, n, rows, width)."""
        if name in CARRIED:
            return self.arrays[name].narrow(-2, 0, int(self.position >= self.capacity))
        return super().held(name)

    def append(self, **rows: Tensor) -> None:
        """Write one token's key and value (b, n, h) behind those of its chunk, in place."""
        for name, row in rows.items():
            self.arrays[name].select(-2, self.rows).copy_(row)
        self.position += 1

    def chunk(self, name: str) -> Tensor:
        """The rows of the newest token's chunk up to its own, (b, n, rows, h)."""
        return self.arrays[name].narrow(-2, 0, (self.position - 1) % self.capacity + 1)

    def complete(self, **sums: Tensor) -> None:
        """Replace the sums (b, n, width) and clear the chunk: no number is left to be read."""
        for name, sum_ in sums.items():
            self.arrays[name].select(-2, 0).copy_(sum_)
        for name in self.arrays.keys() - sums.keys():
            self.arrays[name].fill_(math.nan)


CARRIED = ("S", "Z")
"""The arrays of sums that chunks carry on."""


class Chunks(Sums):
    """Chunks of C tokens: pairs within a chunk, row by row, and the sums of the chunks before.

    A chunk's sums are taken when it is complete. No pair that the mask forbids is scored.
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

    def widths(self, h: int) -> dict[str, int]:
        """Keys and values of a chunk, S row by row, and Z."""
        return {"K": h, "V": h, "S": h * h, "Z": h}

    def whole(self, q: Tensor, k: Tensor, v: Tensor) -> Read:
        """Chunk after chunk; the last one may be short, and its sums are not taken."""
        before: Sum | None = None
        found: list[Read] = []
        for start in range(0, q.shape[2], self.C):
            queries, keys, values = (rows[:, :, start : start + self.C] for rows in (q, k, v))
            rows = [
                _within(queries[:, :, e - 1 : e], keys[:, :, :e], values)
                for e in range(1, queries.shape[2] + 1)
            ]
            found.append(_beyond(queries, *_joined(rows), before))
            if keys.shape[2] == self.C:
                before = _ended(keys, values, before)
        return _joined(found)

    def latest(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> Read:
        """The pairs of the newest token, and the sums of the chunks before its own."""
        assert isinstance(state, ChunkState)
        before = self._sums(state)
        state.append(K=k, V=v)
        keys, values, query = state.chunk("K"), state.chunk("V"), q.unsqueeze(2)
        reads, weights = _beyond(query, *_within(query, keys, values), before)
        if not state.rows:
            S, Z = _ended(keys, values, before)
            state.complete(S=S.flatten(-2), Z=Z)
        return reads.squeeze(2), weights.squeeze(-1)

    def _sums(self, state: ChunkState) -> Sum | None:
        """The sums that are held, None before a chunk is complete."""
        S, Z = state.held("S"), state.held("Z")
        if not S.shape[-2]:
            return None
        return S.view(*S.shape[:2], Z.shape[-1], Z.shape[-1]), Z.squeeze(-2)


def _joined(parts: Sequence[Read]) -> Read:
    """Reads (b, n, s, h) and weights (b, n, s) of one row, or one chunk, after another."""
    reads, weights = zip(*parts, strict=True)
    return torch.cat(reads, dim=2), torch.cat(weights, dim=2)


def _within(q: Tensor, k: Tensor, v: Tensor) -> Read:
    """N and D of one query (b, n, 1, h) over the keys of its chunk up to its own row, and as many
    values of the chunk."""
    scores = q @ k.transpose(-2, -1)
    return scores @ v[:, :, : k.shape[2]], scores.sum(-1)


def _beyond(q: Tensor, reads: Tensor, weights: Tensor, before: Sum | None) -> Read:
    """What queries (b, n, s, h) read within their chunk with what they read of the sums."""
    if before is None:
        return reads, weights
    S, Z = before
    weights = weights + (q @ Z.unsqueeze(-1)).squeeze(-1)
    return reads + q @ S, weights


def _ended(k: Tensor, v: Tensor, before: Sum | None) -> Sum:
    """The sums up to the end of a complete chunk, (b, n, C, h) each."""
    S = (k.unsqueeze(-1) * v.unsqueeze(-2)).sum(-3)
    if before is None:
        return S, k.sum(-2)
    return before[0] + S, before[1] + k.sum(-2)


class Summing(Headed, Mixer):
    """A mixer of n heads whose queries read running sums."""

    MIXER: ClassVar[str]
    sums: Sums

    @classmethod
    @abstractmethod
    def kernels(cls) -> dict[str, str]:
        """Kernel class of the arrays around the sums."""

    def initial_state(self, batch: int, length: int | None = None) -> State:
        """What the way to sum holds, (batch, n, rows, width); one row has room for any length."""
        require_sizes(length=self.l if length is None else length)
        rows = 1 if self.sums.sliding else length
        arrays = {
            k: self._rows(batch, rows, self.n, w) for k, w in self.sums.widths(self.h).items()
        }
        return State(arrays, sliding=self.sums.sliding)


_Class = TypeVar("_Class", bound=type[Summing])


def summing(sums: Sums) -> Callable[[_Class], _Class]:
    """Give the decorated class its way to sum and describe it as an implementation."""

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
