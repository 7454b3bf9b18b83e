"""The mLSTM of xLSTM 7B and RWKV-7 in PyTorch: heads with a matrix as memory.

Beck et al. 2025 and Peng et al. 2025, with the choices stated in costmodel.mixers.matrix_memory.
Sequences are (b, s, d); the memory S is (b, n, K, h) in the mLSTM and (b, n, h, h) in RWKV-7.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import Tensor, nn

from profiler.modules.base import Mixer, PreparedState, State, head_width, require_sizes
from profiler.modules.registry import implementation
from profiler.modules.running_sums import (
    after_first,
    before_each,
    by_chunk,
    carried,
    in_turn,
    with_earlier,
)
from profiler.modules.triangles import substituted

CAP = 15
"""The bound of the mLSTM's gates."""

Gates = tuple[Tensor, Tensor]
"""The logarithms I of the input gate and F of the forget gate, (b, n, s) each, or (b, n)."""


def standardised(x: Tensor, eps: float) -> Tensor:
    """Rows (..., m) shifted to mean 0 and divided by sqrt(variance + eps). Means are a sum and one
    division: torch's mean would divide each term in its gradient."""
    centred = x - x.sum(-1, keepdim=True) / x.shape[-1]
    variance = (centred * centred).sum(-1, keepdim=True) / x.shape[-1]
    return centred / (variance + eps).sqrt()


def larger(one: Tensor, other: Tensor) -> Tensor:
    """The larger of two entries; torch.maximum would halve the gradient of equal entries."""
    return torch.where(one > other, one, other)


class Cells(Mixer):
    """n cells with keys of width K and values of width h, in the layer of xLSTM 7B or, if not
    `whole`, between linear maps: W_Q and W_K (d, n*K), W_V (d, n*h), W_I and W_F (d, n) and W_out
    (n*h, d), and if `whole` b_I and b_F (n,), W_O (d, n*h) of a gate and gain (n*h,) of a norm.

    S = exp(F + M' - M) S' + exp(I - M) k v^T and Z likewise with k alone, where F is the logarithm
    of the forget gate, and the bound M = max(F + M', I) keeps the exponentials small; primes denote
    the row before. A row reads q S / (max(|q Z|, exp(-M)) + 1e-6), with q over sqrt(K).
    """

    def __init__(
        self, *, d: int, l: int, n: int, K: int, h: int | None = None, whole: bool = True
    ) -> None:
        """Declare the weights of n cells with keys of width K and values of width h (default d/n);
        without `whole` only the cells between linear maps."""
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
        """y (b, s, d) of x (b, s, d): H (b, n, s, h) of all heads, then the map to y."""
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
        """The logarithms I = x W_I of the input gates and F = log sigmoid(x W_F) of the forget
        gates, (..., n) each for n cells. If `whole`, both maps have a bias and are bounded by
        `CAP`: CAP tanh((x W + b) / CAP) in place of x W."""
        I, z = x @ self.W_I, x @ self.W_F
        if self.whole:
            I, z = (
                CAP * torch.tanh((rows + bias) / CAP)
                for rows, bias in ((I, self.b_I), (z, self.b_F))
            )
        return I, -F.softplus(-z)

    def quotient(self, reads: Tensor, weights: Tensor, M: Tensor) -> Tensor:
        """H (..., h): the reads (..., h) divided by max(|weights|, exp(-M)) + 1e-6, where weights
        and M are (...,)."""
        least = larger(larger(weights, -weights), torch.exp(-M))
        return reads / (least + 1e-6).unsqueeze(-1)

    def joined(self, x: Tensor, H: Tensor) -> Tensor:
        """The output y (..., d) of the heads H (..., n, h) of rows x (..., d): if `whole`,
        normalised per head, times the gain and the output gate sigmoid(x W_O); then mapped by
        W_out."""
        if self.whole:
            normed = standardised(H, 1e-6) * self.gain.view(self.n, -1)
            return (torch.sigmoid(x @ self.W_O) * normed.flatten(-2)) @ self.W_out
        return H.flatten(-2) @ self.W_out

    def initial_state(self, batch: int, length: int | None = None) -> State:
        """An empty state with S, Z and M of each head, for any number of tokens."""
        require_sizes(batch=batch, length=self.l if length is None else length)
        shapes = {"S": (self.K, self.h), "Z": (self.K,), "M": ()}
        rows = {name: self.like.new_zeros(batch, self.n, *shape) for name, shape in shapes.items()}
        return State(rows, carried=tuple(rows))

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """The output y_t (b, d) of one token x_t (b, d): update each head's memory S, normaliser Z
        and bound M in `state`, then read them with the token's query. A is the key times its gate,
        P the decay of S and Z, which the first token does not need."""
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
        """The next M (b, n) = max(F + M, I); the M before the first row is None and counts as
        0."""
        return larger(F if M is None else F + M, I)

    def bounds(self, I: Tensor, F: Tensor) -> Tensor:
        """The bounds M (b, n, s) of all rows, M_i = max(F_i + M_(i-1), I_i), from the logarithms I
        and F (b, n, s) of the input and forget gates."""
        found: list[Tensor] = []
        for I_i, F_i in zip(I.unbind(-1), F.unbind(-1), strict=True):
            found.append(self.bound(found[-1] if found else None, I_i, F_i))
        return torch.stack(found, dim=-1)

    def latest(self, q: Tensor, S: Tensor, Z: Tensor, M: Tensor) -> Tensor:
        """H (b, n, h) of one row: its queries q (b, n, K), already over sqrt(K), read S
        (b, n, K, h), Z (b, n, K) and M (b, n)."""
        return self.quotient((q.unsqueeze(-2) @ S).squeeze(-2), (q * Z).sum(-1), M)


class CellsRowByRow(Cells):
    """The cells by their recurrence."""

    def read(self, q: Tensor, k: Tensor, v: Tensor, I: Tensor, F: Tensor) -> Tensor:
        """The heads' outputs H (b, n, s, h) of queries q, keys k, values v and gates' logarithms I
        and F, by the recurrence over rows, with A = exp(I - M) k in the new term and P = exp(F + M'
        - M), the factor of the old one."""
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
        """The heads' outputs H (b, n, s, h) of queries q, keys k, values v and gates' logarithms I
        and F, by all pairs of rows: the score of row i with row j <= i, times the gates between,
        exp(G_i - G_j + I_j - M_i) with G the running sum of F; pairs with j > i are 0."""
        G = F.cumsum(-1)
        M = self.bounds(I, F)
        L = G.unsqueeze(-1) - G.unsqueeze(-2) + I.unsqueeze(-2) - M.unsqueeze(-1)
        later = torch.ones_like(L[0, 0], dtype=torch.bool).triu(1)
        A = q @ k.transpose(-2, -1) / math.sqrt(self.K)
        B = A * torch.exp(L.masked_fill(later, -math.inf))
        return self.quotient(B @ v, B.sum(-1), M)


class CellsInChunks(Cells):
    """The cells in chunks of C rows, all computed at once: gated products of all pairs of a chunk,
    those with later rows masked, and S, Z and T, the bound M of its last row, at its end."""

    def __init__(
        self, *, d: int, l: int, n: int, K: int, C: int, h: int | None = None, whole: bool = True
    ) -> None:
        """Declare the cells' weights, for chunks of C rows; n cells with keys of width K and values
        of width h (default d/n); `whole`: with the maps around them."""
        super().__init__(d=d, l=l, n=n, K=K, h=h, whole=whole)
        require_sizes(C=C)
        self.C = C

    def read(self, q: Tensor, k: Tensor, v: Tensor, I: Tensor, F: Tensor) -> Tensor:
        """The heads' outputs H (b, n, s, h): gated scores within the chunk, plus a read of the
        memory S and normaliser Z at the end of the chunk before, whose bound is T. G sums F since
        the start of the chunk, J is I - G, and X the largest exponent G + J of a row's pairs."""
        groups = by_chunk(self.C, q, k, v, I, F)
        exponents = [self.exponents(*group[3:]) for group in groups]
        G, J, X = map(list, zip(*exponents, strict=True))
        bounds: list[Tensor] = []
        if q.shape[2] >= self.C:
            T = self.bounds(X[0][..., -1], G[0][..., -1])
            # of each group's chunks, T at the end of the chunk before
            bounds = [before.unsqueeze(-1) for before in before_each(T, groups)]
        # without a complete chunk there are no bounds, and nothing is spread
        spread = [at.expand_as(sums) for sums, at in zip(after_first(G), bounds, strict=False)]
        M = larger(with_earlier(in_turn(G), spread), in_turn(X))
        bound = [rows for (rows,) in by_chunk(self.C, M)]
        own = [
            self.pairs(*group[:3], *rows) for group, *rows in zip(groups, G, J, bound, strict=True)
        ]
        reads, weights = (in_turn(parts) for parts in zip(*own, strict=True))
        if bounds:
            S, Z = self.memories(groups[0][1], groups[0][2], G[0], J[0], T)
            queries = after_first([group[0] for group in groups])
            # of each group: queries, G, T of the chunk before, and the rows' own bound M
            arrays = zip(queries, after_first(G), bounds, after_first(bound), strict=True)
            U = [
                rows / math.sqrt(self.K) * torch.exp(sums + before - own_bound).unsqueeze(-1)
                for rows, sums, before, own_bound in arrays
            ]
            found = zip(U, before_each(S, groups), before_each(Z, groups), strict=True)
            read, weight = zip(
                *((rows @ S, (rows * Z.unsqueeze(3)).sum(-1)) for rows, S, Z in found), strict=True
            )
            reads, weights = with_earlier(reads, read), with_earlier(weights, weight)
        return self.quotient(reads, weights, M)

    def exponents(self, I: Tensor, F: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """G, J and X of chunks with gates I and F, (b, n, c, r) each."""
        r = F.shape[-1]
        later = torch.ones(r, r, dtype=torch.bool, device=F.device).triu(1)
        G = F.unsqueeze(-2).expand(-1, -1, -1, r, r).masked_fill(later, 0).sum(-1)
        J = I - G
        L = (G.unsqueeze(-1) + J.unsqueeze(-2)).masked_fill(later, -math.inf)
        return G, J, L.max(-1).values

    def pairs(
        self, q: Tensor, k: Tensor, v: Tensor, G: Tensor, J: Tensor, M: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(reads (b, n, c, r, h), sums of weights (b, n, c, r)) of c chunks of r rows, each row
        within its chunk: row i weighs row j <= i by q_i . k_j / sqrt(K) exp(G_i + J_j - M_i), later
        rows by 0; a read is the sum of the values v by these weights. G, J, M are (b, n, c, r)."""
        L = G.unsqueeze(-1) + J.unsqueeze(-2) - M.unsqueeze(-1)
        later = torch.ones_like(L[0, 0, 0], dtype=torch.bool).triu(1)
        A = q @ k.mT / math.sqrt(self.K)
        B = A * torch.exp(L.masked_fill(later, -math.inf))
        return B @ v, B.sum(-1)

    def memories(
        self, k: Tensor, v: Tensor, G: Tensor, J: Tensor, T: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The memory S (b, n, c, K, h) and normaliser Z (b, n, c, K) after each complete chunk,
        with keys k, values v, sums G of log forget gates, J = I - G, and bounds T (b, n, c)."""
        G_C = G[..., -1]
        keys = torch.exp(G_C.unsqueeze(-1) + J - T.unsqueeze(-1)).unsqueeze(-1) * k
        P = torch.exp(G_C[..., 1:] + T[..., :-1] - T[..., 1:]).unsqueeze(-1)
        S = carried(keys.mT @ v, P.unsqueeze(-1).unbind(2))
        return S, carried(keys.sum(3), P.unbind(2))


CORE = {
    **dict.fromkeys(("Q", "K", "V", "I", "F", "y"), "contraction"),
    **dict.fromkeys(("M", "D", "R"), "elementwise"),
    **{"W": "reduction", "H": "contraction"},
}
CARRIED = {**CORE, **dict.fromkeys(("E", "P", "A", "S", "Z", "U"), "elementwise")}
PAIRS = {**CORE, **{"G": "running-sum", "A": "contraction", "B": "elementwise"}}
IN_CHUNKS = {
    **CORE,
    **dict.fromkeys(("L", "J", "T", "E", "P", "K_C", "B", "U", "D_C"), "elementwise"),
    **dict.fromkeys(("G", "X", "Z", "W_C"), "reduction"),
    **dict.fromkeys(("A", "O_C", "S"), "contraction"),
}
LAYER = {"N": "elementwise", "O": "contraction"}


@implementation(
    "mlstm", "recurrent", form="recurrent", kernels=CARRIED | LAYER, step_kernels=CARRIED | LAYER
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


@implementation(
    "mlstm",
    "chunked",
    form="chunked",
    rewrites=("dense",),
    kernels=IN_CHUNKS | LAYER,
    step_form="recurrent",
    step_kernels=CARRIED | LAYER,
)
class MlstmInChunks(CellsInChunks):
    """The layer in chunks of C rows, and by the recurrence token by token."""


@implementation("mlstm+core", "recurrent", form="recurrent", kernels=CARRIED, step_kernels=CARRIED)
class CoreCarried(CellsRowByRow):
    """The cells by the recurrence."""

    def __init__(self, *, d: int, l: int, n: int, K: int, h: int | None = None) -> None:
        super().__init__(d=d, l=l, n=n, K=K, h=h, whole=False)


@implementation(
    "mlstm+core",
    "chunked",
    form="chunked",
    rewrites=("dense",),
    kernels=IN_CHUNKS,
    step_form="recurrent",
    step_kernels=CARRIED,
)
class CoreInChunks(CellsInChunks):
    """The cells in chunks of C rows, and by the recurrence token by token."""

    def __init__(self, *, d: int, l: int, n: int, K: int, C: int, h: int | None = None) -> None:
        super().__init__(d=d, l=l, n=n, K=K, C=C, h=h, whole=False)


DECAY = 0.6065306597126334
"""exp(-1/2)."""


class Rows(NamedTuple):
    """The arrays that RWKV-7's recurrence reads, for a sequence (b, s, n, h) or one token
    (b, n, h): the receptance R, the key K and the value V; and in `later` the logarithm L of the
    decay, the removed direction kappa, and F = kappa * alpha, for all rows but the first,
    (b, s - 1, n, h), in chunks L for all rows; None for a first token."""

    R: Tensor
    K: Tensor
    V: Tensor
    later: tuple[Tensor, Tensor, Tensor] | None


class Memory(Mixer):
    """RWKV-7's recurrence in n heads of h channels: S = diag(E) S' - F (kappa S') + K V^T, and
    the row reads O = R S; S' is S after the row before, and the first row has S = K V^T."""

    def __init__(self, *, d: int, l: int, n: int, h: int | None) -> None:
        super().__init__(d=d, l=l)
        self.n, self.h = n, head_width(d, n) if h is None else h
        require_sizes(n=n, h=self.h)
        self.width = n * self.h

    def heads(self, rows: Tensor) -> Tensor:
        """Rows (..., n h) as n heads, (..., n, h)."""
        return rows.view(*rows.shape[:-1], self.n, self.h)

    def carried(self, rows: Rows) -> Tensor:
        """The reads O (b, s, n, h) of sequences in n heads of h channels: a loop over rows carries
        the memory S from row to row, and each row's R reads S. `rows.later`, (log E, kappa, F),
        begins at the second row."""
        S = self.following(None, rows.K[:, 0], rows.V[:, 0])
        read = [self.read(rows.R[:, 0], S)]
        assert rows.later is not None
        L, *others = rows.later
        arrays = (each.unbind(1) for each in (torch.exp(L), *others))
        for i, later in enumerate(zip(*arrays, strict=True), 1):
            S = self.following(S, rows.K[:, i], rows.V[:, i], *later)
            read.append(self.read(rows.R[:, i], S))
        return torch.stack(read, dim=1)

    def following(self, S: Tensor | None, K: Tensor, V: Tensor, *later: Tensor) -> Tensor:
        """The memory S (b, n, h, h) after one row with key K and value V (b, n, h). `later` are the
        decay E, the removed direction kappa and F: S becomes diag(E) S - F (kappa S) + K V^T. For
        the first row S is None and `later` empty."""
        added = K.unsqueeze(-1) * V.unsqueeze(-2)
        if S is None:
            return added
        E, kappa, F = later
        P = kappa.unsqueeze(-2) @ S
        return E.unsqueeze(-1) * S - F.unsqueeze(-1) * P + added

    def read(self, R: Tensor, S: Tensor) -> Tensor:
        """O (b, n, h) of one row with R (b, n, h)."""
        return (R.unsqueeze(-2) @ S).squeeze(-2)

    def latest(self, rows: Rows, state: State, **held: Tensor) -> Tensor:
        """O (b, n, h) of the newest token, what its R reads of the memory S after the token. S and
        the rows `held` are written into `state`; `rows.later` is None for a first token."""
        if rows.later is None:
            S = self.following(None, rows.K, rows.V)
        else:
            L, *others = rows.later
            S = self.following(state.held("S"), rows.K, rows.V, torch.exp(L), *others)
        state.append(S=S, **held)
        return self.read(rows.R, S)

    def decay(self, z: Tensor) -> Tensor:
        """The log decay L = -exp(-1/2) sigmoid(z), (..., n, h), of rows z (..., n*h)."""
        return self.heads(-DECAY * torch.sigmoid(z))

    def decaying(self, rows: Tensor, later: slice) -> Tensor:
        """The rows of which a decay is computed, among rows (b, s, d), or (b, d) of one token."""
        return rows[:, later] if rows.ndim == 3 else rows

    def directions(self, k: Tensor) -> Tensor:
        """kappa: rows k (..., n, h) divided by their lengths, at least 1e-12."""
        length = (k * k).sum(-1, keepdim=True).sqrt()
        return k / torch.where(length > 1e-12, length, 1e-12)

    def matrices(self, batch: int, length: int | None) -> Tensor:
        """Zeros in the shape of the memory S, (b, n, h, h)."""
        require_sizes(batch=batch, length=self.l if length is None else length)
        return self.like.new_zeros(batch, self.n, self.h, self.h)


MEMORY = {
    **dict.fromkeys(("r", "k", "v", "alpha", "L", "P", "O", "y"), "contraction"),
    **dict.fromkeys(("E", "kappa", "F", "S", "Y"), "elementwise"),
}


class Compared(NamedTuple):
    """Chunks of m rows, (b, n, chunks, m, h): RE, receptances times the decay E since the chunk's
    start; V; KI and FI, keys K and F over E; the decay `end` of the last row (one row); and the
    rows of what a chunk removes, U + W S. FI and W have no row for the first row of the sequence,
    U none for the first row of any chunk; U and W are None without rows."""

    RE: Tensor
    V: Tensor
    KI: Tensor
    FI: Tensor
    end: Tensor
    U: Tensor | None
    W: Tensor | None


class InChunks(Memory):
    """RWKV-7's recurrence over chunks of C rows, whose last may be short: rows are compared within
    all chunks at once, then a loop over chunks carries S. Tokens one by one take the recurrence."""

    C: int

    def decaying(self, rows: Tensor, later: slice) -> Tensor:
        """All rows (b, s, d); or one token (b, d)."""
        return rows

    def carried(self, rows: Rows) -> Tensor:
        """The reads O (b, s, n, h) of a sequence from its rows of R, K, V, L, kappa and F, of which
        the last two begin at the second row. Chunks are compared in groups of one size: chunk 1,
        the other complete chunks, a short last one. Rows read their chunk, and the memory S at the
        end of the chunk before."""
        assert rows.later is not None
        arrays = [of.transpose(1, 2) for of in (*rows[:3], *rows.later)]
        begins = [*zip(arrays, [self.C] * 4 + [self.C - 1] * 2, strict=True)]
        first = [of[:, :, :begin].unsqueeze(2) for of, begin in begins]
        others = (of[:, :, begin:] for of, begin in begins)
        groups = [self.compared(*group) for group in (first, *by_chunk(self.C, *others))]
        ends: list[Tensor] = []
        read = in_turn([self.within(group, ends) for group in groups])
        if ends:
            # of one chunk alone, an array of no chunks
            later = [group.RE for group in groups[1:]] or [groups[0].RE[:, :, 1:]]
            chunks = [of.shape[2] for of in later]
            before = torch.split(torch.stack(ends, dim=2)[:, :, : sum(chunks)], chunks, dim=2)
            read = with_earlier(read, [*map(torch.matmul, later, before)])
        return read.transpose(1, 2)

    def compared(
        self, R: Tensor, K: Tensor, V: Tensor, L: Tensor, kappa: Tensor, F: Tensor
    ) -> Compared:
        """Compare the rows of each chunk. Arrays are (b, n, chunks, m, h); kappa and F of the
        sequence's first chunk lack the first row. What row i removes, P_i = kappa_i S_(i-1), solves
        (1 + B) P = G + KA S, for S at the chunk's start: with B, the products of KA (kappa times
        the decay up to the row before) and FI of earlier rows, and G, what KA reads of earlier
        rows' KI and V. U, from row 2 on, and W, None in the first chunk, solve for G and KA."""
        m, skipped = R.shape[3], R.shape[3] - kappa.shape[3]
        E = torch.exp(L.cumsum(3))
        KI, FI, own = K / E, F / E[..., skipped:, :], slice(1 - skipped, None)
        KA = kappa[..., own, :] * E[..., :-1, :]
        after = KA
        if not skipped:
            KA = torch.cat([kappa[..., :1, :], KA], dim=3)
        B = KA @ FI[..., :-1, :].mT
        U = None
        if m > 1:
            G = (after @ KI[..., :-1, :].mT).tril() @ V[..., :-1, :]
            U = substituted(B[..., own, own], G)
        W = None if skipped else substituted(B, KA)
        return Compared(R * E, V, KI, FI, E[..., -1:, :], U, W)

    def within(self, of: Compared, ends: list[Tensor]) -> Tensor:
        """What rows read of the rows of their chunks, (b, n, chunks, m, h). `ends` are the memories
        S (b, n, h, h) at the ends of all chunks before; those at the ends of these chunks, if
        complete, are added. Rows remove P = U + W S, from row 2 on in the first chunk (W None)."""
        U, W = (None if each is None else each.unbind(2) for each in (of.U, of.W))
        complete = of.V.shape[3] == self.C
        added = ((of.end * of.KI).mT @ of.V).unbind(2) if complete else ()
        FC = (of.end * of.FI).mT.unbind(2) if complete else ()
        removed = []
        for chunk, end in enumerate(of.end.mT.unbind(2)):
            P, S = None if U is None else U[chunk], ends[-1] if ends else None
            if W is not None and S is not None:
                P = removal(P, W[chunk] @ S)
            if P is not None:
                removed.append(P)
            if complete:
                own = added[chunk] if P is None else added[chunk] - FC[chunk] @ P
                ends.append(own if S is None else end * S + own)
        O = (of.RE @ of.KI.mT).tril() @ of.V
        if not removed:
            return O
        skipped = of.V.shape[3] - of.FI.shape[3]
        return O - (of.RE @ of.FI.mT).tril(-skipped) @ torch.stack(removed, dim=2)


def removal(U: Tensor | None, of_S: Tensor) -> Tensor:
    """What the rows of a chunk remove, W S + U (b, n, rows, h), where U lacks the first row; None
    for U if that row is the only one."""
    return of_S if U is None else torch.cat([of_S[:, :, :1], U + of_S[:, :, 1:]], dim=2)


@implementation("rwkv-7+core", "recurrent", form="recurrent", kernels=MEMORY, step_kernels=MEMORY)
class MemoryOfMaps(Memory):
    """The recurrence alone: W_r, W_w, W_k, W_v and W_a (d, n h), W_out (n h, d)."""

    W_w: nn.Parameter
    W_a: nn.Parameter

    def __init__(self, *, d: int, l: int, n: int, h: int | None = None) -> None:
        super().__init__(d=d, l=l, n=n, h=h)
        for name in "rwkva":
            setattr(self, f"W_{name}", self.weight(d, self.width))
        self.W_out: nn.Parameter = self.weight(self.width, d)

    def mix(self, x: Tensor) -> Tensor:
        """y (b, s, d) of x (b, s, d): reads O (b, s, n, h) of the recurrence, then W_out."""
        return self.carried(self.rows(x, slice(1, None))).flatten(2) @ self.W_out

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """y_t (b, d) of one token x_t (b, d): one step of the recurrence from `state`."""
        rows = self.rows(x_t, slice(None) if state.position else None)
        return self.latest(rows, state).flatten(1) @ self.W_out

    def rows(self, x: Tensor, later: slice | None) -> Rows:
        """The arrays that the recurrence reads (receptance R, key K, value V, decay, directions) of
        rows x, (b, s, d) or (b, d). `later` is the slice of s with the rows that have a row before;
        None for a first token."""
        R, K, V = (self.heads(x @ getattr(self, f"W_{name}")) for name in "rkv")
        if later is None:
            return Rows(R, K, V, None)
        w = self.decaying(x, later) @ self.W_w
        x, k = (each[:, later] if x.ndim == 3 else each for each in (x, K))
        kappa, alpha = self.directions(k), torch.sigmoid(x @ self.W_a)
        return Rows(R, K, V, (self.decay(w), kappa, kappa * self.heads(alpha)))

    def initial_state(self, batch: int, length: int | None = None) -> State:
        """An empty state with S of each head, for any number of tokens."""
        return State({"S": self.matrices(batch, length)}, carried=("S",))


MEMORY_IN_CHUNKS = {
    **MEMORY,
    **dict.fromkeys(("L_C", "RE", "KI", "KA", "FI", "KC", "FC", "V_C"), "elementwise"),
    **dict.fromkeys(("A_C", "B_C", "G_C", "RK", "RF", "O_C", "S"), "contraction"),
    **dict.fromkeys(("U_C", "W_C"), "reduction"),
}


@implementation(
    "rwkv-7+core",
    "chunked",
    form="chunked",
    rewrites=("dense",),
    kernels=MEMORY_IN_CHUNKS | {"X": "elementwise"},
    step_form="recurrent",
    step_kernels=MEMORY,
)
class MapsInChunks(InChunks, MemoryOfMaps):
    """The recurrence alone in chunks of C rows, and token by token. A row is independent of later
    rows as long as all values are finite: inside a chunk, later rows are multiplied by 0, and 0
    times an infinity is NaN."""

    def __init__(self, *, d: int, l: int, n: int, C: int, h: int | None = None) -> None:
        super().__init__(d=d, l=l, n=n, h=h)
        require_sizes(C=C)
        self.C = C


OF_LAYER = {
    **dict.fromkeys(("D", *(f"X_{name}" for name in "rwkvag"), "U", "K", "N"), "elementwise"),
    **dict.fromkeys(("T_w", "T_a", "T_g", "Z"), "contraction"),
    "B": "reduction",
}
LAYER_7 = MEMORY | OF_LAYER


class TimeMixing(Memory):
    """The layer: six mixtures of each row with the row before, by mu_r, mu_w, mu_k, mu_v, mu_a and
    mu_g (d,), are mapped to r, k and v by W (d, n*h), and to w, a, g and, if `later`, the share (v)
    of the first layer's values by maps of low rank, A (d, rank) and B (rank, n*h), with biases b
    (n*h,) except g. k_k, k_a, the norm's gain and bias are (n*h,), r_k (n, h), W_out (n*h, d)."""

    k_k: nn.Parameter
    k_a: nn.Parameter
    gain: nn.Parameter
    bias: nn.Parameter
    later: ClassVar[bool] = False

    def __init__(
        self, *, d: int, l: int, n: int, A: int, G: int, M: int = 1, h: int | None = None
    ) -> None:
        """Declare the layer's weights: n heads of width h (default d/n); the maps of low rank have
        the ranks A (w and a), G (the gate g) and, in a later layer alone, M (the share)."""
        super().__init__(d=d, l=l, n=n, h=h)
        ranks = {"w": A, "a": A, "g": G} | ({"v": M} if self.later else {})
        require_sizes(A=A, G=G, M=M)
        for name in "rwkvag":
            setattr(self, f"mu_{name}", self.weight(d))
        for name in "rkv":
            setattr(self, f"W_{name}", self.weight(d, self.width))
        for name, rank in ranks.items():
            setattr(self, f"A_{name}", self.weight(d, rank))
            setattr(self, f"B_{name}", self.weight(rank, self.width))
            if name != "g":
                setattr(self, f"b_{name}", self.weight(self.width))
        for name in ("k_k", "k_a", "gain", "bias"):
            setattr(self, name, self.weight(self.width))
        self.r_k: nn.Parameter = self.weight(n, self.h)
        self.W_out: nn.Parameter = self.weight(self.width, d)

    def mix(self, x: Tensor) -> Tensor:
        """y (b, s, d) of x (b, s, d): reads O (b, s, n, h) of the recurrence, then the map to y."""
        return self.mixed(x, None)

    def mixed(self, x: Tensor, first: Tensor | None) -> Tensor:
        """y (b, s, d); `first` holds the first layer's values (b, s, n*h), None in that layer."""
        D = torch.cat([-x[:, :1], x[:, :-1] - x[:, 1:]], dim=1)
        rows = self.rows(x, D, slice(1, None), first)
        return self.joined(self.carried(rows), rows, x, D)

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """y_t (b, d) of one token x_t (b, d): one step of the recurrence."""
        return self.following_row(x_t, state, None)

    def following_row(self, x_t: Tensor, state: State, first: Tensor | None) -> Tensor:
        """y_t (b, d) of one token; `first` are the first layer's values (b, n*h), None in the first
        layer."""
        before = state.held("x").squeeze(1) - x_t if state.position else -x_t
        rows = self.rows(x_t, before, slice(None) if state.position else None, first)
        return self.joined(self.latest(rows, state, x=x_t), rows, x_t, before)

    def moved(self, name: str, x: Tensor, D: Tensor) -> Tensor:
        """Rows x + D mu of the mixture `name`, where D is the row before minus x."""
        mu: Tensor = getattr(self, f"mu_{name}")
        return x + D * mu

    def low(self, name: str, rows: Tensor, between: Callable[[Tensor], Tensor] | None) -> Tensor:
        """Rows (..., d) through the map of low rank `name`, (rows A) B plus a bias (none for g):
        (..., n*h); `between` is applied between the factors, None for nothing."""
        A, B = getattr(self, f"A_{name}"), getattr(self, f"B_{name}")
        inner: Tensor = rows @ A
        found: Tensor = (inner if between is None else between(inner)) @ B
        return found if name == "g" else found + getattr(self, f"b_{name}")

    def rows(self, x: Tensor, D: Tensor, later: slice | None, first: Tensor | None) -> Rows:
        """The arrays that the recurrence reads (receptance R, key K, value V, decay, directions) of
        rows x, (b, s, d) or (b, d); D are the rows before minus x. `later` is the slice of s with
        the rows that have a row before, None for a first token; `first` holds the first layer's
        values (..., n*h), None in that layer."""
        mixes = {name: self.moved(name, x, D) for name in "rkv"}
        R, k, V = (self.heads(mix @ getattr(self, f"W_{name}")) for name, mix in mixes.items())
        if first is not None:
            part = self.heads(torch.sigmoid(self.low("v", mixes["v"], None)))
            V = V + part * (self.heads(first) - V)
        alpha = self.heads(torch.sigmoid(self.low("a", self.moved("a", x, D), None)))
        K = k * (1 + (alpha - 1) * self.heads(self.k_a))
        if later is None:
            return Rows(R, K, V, None)
        w = self.moved("w", *(self.decaying(each, later) for each in (x, D)))
        L = self.decay(self.low("w", w, torch.tanh))
        k, alpha = (each[:, later] if x.ndim == 3 else each for each in (k, alpha))
        kappa = self.directions(k * self.heads(self.k_k))
        return Rows(R, K, V, (L, kappa, kappa * alpha))

    def joined(self, O: Tensor, rows: Rows, x: Tensor, D: Tensor) -> Tensor:
        """The output y (..., d) of the reads O (..., n, h) of rows x; D is the row before minus x:
        O normalised per head, plus V times the sum of R K r_k over the head's channels, times the
        gate g, then mapped by W_out."""
        N = standardised(O, 64e-5) * self.heads(self.gain) + self.heads(self.bias)
        B = (rows.R * rows.K * self.r_k).sum(-1, keepdim=True)
        G = self.low("g", self.moved("g", x, D), torch.sigmoid)
        return ((N + B * rows.V).flatten(-2) * G) @ self.W_out

    def initial_state(self, batch: int, length: int | None = None) -> State:
        """An empty state with the last row of x, (batch, 1, d), and S of each head, for any number
        of tokens."""
        rows = {"x": self._rows(batch, 1, self.d), "S": self.matrices(batch, length)}
        return State(rows, sliding=True, carried=("S",))


@implementation("rwkv-7", "recurrent", form="recurrent", kernels=LAYER_7, step_kernels=LAYER_7)
class FirstTimeMixing(TimeMixing):
    """The first layer, which reads no other layer's values."""


@implementation(
    "rwkv-7",
    "chunked",
    form="chunked",
    rewrites=("dense",),
    kernels=MEMORY_IN_CHUNKS | OF_LAYER,
    step_form="recurrent",
    step_kernels=LAYER_7,
)
class FirstInChunks(InChunks, FirstTimeMixing):
    """The first layer in chunks of C rows, and by the recurrence token by token."""

    def __init__(
        self, *, d: int, l: int, n: int, A: int, G: int, C: int, h: int | None = None
    ) -> None:
        super().__init__(d=d, l=l, n=n, A=A, G=G, h=h)
        require_sizes(C=C)
        self.C = C


OF_LATER = {**dict.fromkeys(("T_v", "T"), "contraction"), "V": "elementwise"}
LATER = LAYER_7 | OF_LATER


@implementation("rwkv-7+later", "recurrent", form="recurrent", kernels=LATER, step_kernels=LATER)
class LaterTimeMixing(TimeMixing):
    """A later layer, which reads the first layer's values v_first (b, s, n h) as well."""

    later = True

    def __init__(
        self, *, d: int, l: int, n: int, A: int, G: int, M: int, h: int | None = None
    ) -> None:
        super().__init__(d=d, l=l, n=n, A=A, G=G, M=M, h=h)

    def forward(self, x: Tensor, v_first: Tensor) -> Tensor:  # type: ignore[override]  # two inputs
        """Mix x (b, s, d) with the first layer's values v_first (b, s, n*h) to y (b, s, d).
        ValueError: a wrong shape or dtype; Unsupported: the device has no kernel for the dtype."""
        self._require_sequence(x)
        self._require_values(v_first, *x.shape[:2])
        try:
            return self.mixed(x, v_first)
        except RuntimeError as error:
            self._require_kernel(x, error)
            raise

    def _require_values(self, v_first: Tensor, batch: int, rows: int) -> None:
        """Raise a ValueError unless v_first is (batch, rows, n*h) in the module's dtype."""
        if v_first.shape != (batch, rows, self.width):
            raise ValueError(
                f"v_first must be ({batch}, {rows}, {self.width}) and is {tuple(v_first.shape)}"
            )
        if v_first.dtype != self.like.dtype:
            raise ValueError(
                f"v_first is {v_first.dtype} and the parameters are {self.like.dtype}: convert "
                "v_first"
            )

    def initial_state(  # type: ignore[override]  # begins with the first layer's values
        self, batch: int, length: int | None, v_first: Tensor
    ) -> State:
        """Make the state before the first token: the last row of x and the memory S, both zero;
        `prepared` holds v_first (b, s, n*h), the first layer's values, a row for each token to
        come."""
        begun = super().initial_state(batch, length)
        self._require_values(v_first, batch, v_first.shape[1])
        state = PreparedState(begun.arrays, sliding=True, carried=begun.carried)
        state.prepared = v_first
        return state

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """The output y_t (b, d) of one token x_t (b, d): the recurrence at one token, with its row
        of the state's v_first. ValueError beyond the rows of v_first."""
        assert isinstance(state, PreparedState)
        given = state.prepared.shape[1]
        if state.position >= given:
            raise ValueError(
                f"the state began with {given} row{'s' * (given > 1)} of v_first, one for each "
                "token: give initial_state a row for each token"
            )
        return self.following_row(x_t, state, state.prepared[:, state.position])


@implementation(
    "rwkv-7+later",
    "chunked",
    form="chunked",
    rewrites=("dense",),
    kernels=MEMORY_IN_CHUNKS | OF_LAYER | OF_LATER,
    step_form="recurrent",
    step_kernels=LATER,
)
class LaterInChunks(InChunks, LaterTimeMixing):
    """A later layer in chunks of C rows, and by the recurrence token by token."""

    def __init__(
        self, *, d: int, l: int, n: int, A: int, G: int, M: int, C: int, h: int | None = None
    ) -> None:
        super().__init__(d=d, l=l, n=n, A=A, G=G, M=M, h=h)
        require_sizes(C=C)
        self.C = C
