"""Additive attention, attention with two multiplicative scores, and Fastformer in PyTorch.

Bahdanau et al. 2014 and Luong et al. 2015, as causal self-attention whose values are the rows of x.
A class combines a score with an order of the pairs of tokens: all pairs at once, with a mask, or
row by row. Fastformer, Wu et al. 2021, has the choices stated in costmodel.mixers.additive. Shapes:
b sequences, s rows of queries, t rows of keys, q channels of queries and keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch
from torch import Tensor, nn

from profiler.modules.base import Headed, Mixer, State, require_sizes
from profiler.modules.registry import implementation


class ScoredAttention(Mixer):
    """Causal attention: y_i = sum over k <= i of softmax_k(z_ik) x_k; a subclass defines z_ik.

    `STATE` names the arrays that later tokens read: x, and the keys K unless these are the rows of
    x. `KERNELS` names the arrays from which the scores are computed, all contractions.
    """

    MIXER: ClassVar[str]
    STATE: ClassVar[tuple[str, ...]] = ("x",)
    KERNELS: ClassVar[tuple[str, ...]] = ()
    pairs: ClassVar[PairOrder]

    def queries(self, x: Tensor) -> Tensor:
        """The queries (..., q) of rows (..., d)."""
        return x

    def keys(self, x: Tensor) -> Tensor:
        """The keys (..., q) of rows (..., d)."""
        return x

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """The scores (b, s, t) of queries (b, s, q) and keys (b, t, q)."""
        return q @ k.transpose(-2, -1)

    def weighted(self, scores: Tensor, values: Tensor) -> Tensor:
        """The sum of values (b, t, d), weighted by the softmax of scores (b, s, t)."""
        return torch.softmax(scores, dim=-1) @ values

    def initial_state(self, batch: int, length: int | None = None) -> State:
        """An empty state with room for keys and values, or for x alone if its rows are both."""
        return State({name: self._rows(batch, length, self._width(name)) for name in self.STATE})

    def _width(self, name: str) -> int:
        """The width of the rows of an array of `STATE`."""
        return self.d

    def mix(self, x: Tensor) -> Tensor:
        """y (b, s, d) of x (b, s, d): queries and keys, then attention by `self.pairs`."""
        return self.pairs.attend(self, self.queries(x), self.keys(x), x)

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """The output y_t (b, d) of one token x_t (b, d): append its key and row to `state`, then
        attend to all rows held there."""
        q_t, k_t = self.queries(x_t), self.keys(x_t)
        own = {"K": k_t, "x": x_t}
        state.append(**{name: own[name] for name in self.STATE})
        scores = self.scores(q_t.unsqueeze(1), state.held(self.STATE[0]))
        return self.weighted(scores, state.held("x")).squeeze(1)


@dataclass(frozen=True)
class PairOrder:
    """An order of the pairs of queries and keys, with the rewrites of the equations that an
    implementation in this order executes. `attend` maps the mixer, queries (b, s, q), keys (b, s,
    q) and x (b, s, d) to y (b, s, d)."""

    name: str
    attend: Callable[[ScoredAttention, Tensor, Tensor, Tensor], Tensor]
    rewrites: tuple[str, ...] = ("safe-softmax",)


def masked(mixer: ScoredAttention, q: Tensor, k: Tensor, x: Tensor) -> Tensor:
    """y (b, s, d) from the scores of all pairs, of which those of later tokens are masked."""
    scores, length = mixer.scores(q, k), x.shape[1]
    later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
    return mixer.weighted(scores.masked_fill(later, -math.inf), x)


def row_by_row(mixer: ScoredAttention, q: Tensor, k: Tensor, x: Tensor) -> Tensor:
    """The output y (b, s, d) of rows x (b, s, d) with queries q and keys k (b, s, channels), by a
    loop over queries i, each scored against keys k <= i: no masked pair is computed."""
    rows = []
    for i in range(1, int(x.shape[1]) + 1):
        weights = torch.softmax(mixer.scores(q[:, i - 1 : i], k[:, :i]), dim=-1)
        rows.append(weights @ x[:, :i])
    return torch.cat(rows, dim=1)


MASKED = PairOrder("explicit", masked, ("dense", "safe-softmax"))
ROW_BY_ROW = PairOrder("rows", row_by_row)

_Class = TypeVar("_Class", bound=type[ScoredAttention])


def going(pairs: PairOrder) -> Callable[[_Class], _Class]:
    """Return a decorator that registers a class as an implementation of the mixer in its `MIXER`,
    with the order `pairs` of the pairs of queries and keys (all at once, or row by row)."""

    def register(cls: _Class) -> _Class:
        """Set the class's order of pairs, and register the class."""
        cls.pairs = pairs
        kernels = dict.fromkeys((*cls.KERNELS, "Z", "y"), "contraction") | {"A": "softmax"}
        return implementation(
            cls.MIXER, pairs.name, rewrites=pairs.rewrites, kernels=kernels, step_kernels=kernels
        )(cls)

    return register


class AdditiveAttention(ScoredAttention):
    """z_ik = v^T tanh(W x_i + U x_k), with W_a and U_a (d, f), v_a (f,)."""

    MIXER = "additive-attention"
    STATE = ("K", "x")
    KERNELS = ("Q", "K")

    def __init__(self, *, d: int, l: int, f: int) -> None:
        """Declare the weights of scores of rows of width d through f hidden channels; l is the
        default number of tokens of a state."""
        super().__init__(d=d, l=l)
        require_sizes(f=f)
        self.f = f
        self.W_a: nn.Parameter = self.weight(d, f)
        self.U_a: nn.Parameter = self.weight(d, f)
        self.v_a: nn.Parameter = self.weight(f)

    def queries(self, x: Tensor) -> Tensor:
        """W x."""
        return x @ self.W_a

    def keys(self, x: Tensor) -> Tensor:
        """U x."""
        return x @ self.U_a

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """The scores (b, s, t): the activations of all pairs (b, s, t, f), times v."""
        activations = torch.tanh(q.unsqueeze(2) + k.unsqueeze(1))
        return (activations @ self.v_a.unsqueeze(1)).squeeze(3)

    def _width(self, name: str) -> int:
        return self.f if name == "K" else self.d


@going(MASKED)
class AdditiveExplicit(AdditiveAttention):
    """Additive attention with separate dense operations."""


@going(ROW_BY_ROW)
class AdditiveRows(AdditiveAttention):
    """Additive attention, one query after another."""


class DotProductAttention(ScoredAttention):
    """z_ik = x_i^T x_k, without parameters."""

    MIXER = "dot-product-attention"


@going(MASKED)
class DotProductExplicit(DotProductAttention):
    """Dot-product attention with separate dense operations."""


@going(ROW_BY_ROW)
class DotProductRows(DotProductAttention):
    """Dot-product attention, one query after another."""


class GeneralAttention(ScoredAttention):
    """z_ik = x_i^T W x_k, with W_a (d, d)."""

    MIXER = "general-attention"
    KERNELS = ("Q",)

    def __init__(self, *, d: int, l: int) -> None:
        super().__init__(d=d, l=l)
        self.W_a: nn.Parameter = self.weight(d, d)

    def queries(self, x: Tensor) -> Tensor:
        """x^T W."""
        return x @ self.W_a


@going(MASKED)
class GeneralExplicit(GeneralAttention):
    """General attention with separate dense operations."""


@going(ROW_BY_ROW)
class GeneralRows(GeneralAttention):
    """General attention, one query after another."""


FASTFORMER = (
    dict.fromkeys(("Q", "K", "S_q", "q", "S_k", "k", "y"), "contraction")
    | dict.fromkeys(("A_q", "A_k"), "softmax")
    | dict.fromkeys(("P", "U"), "elementwise")
)


@implementation("fastformer", "explicit", rewrites=("safe-softmax",), kernels=FASTFORMER)
class Fastformer(Headed):
    """Fastformer, with one operation per equation.

    W_Q, W_K, W_U are (d, d) and b_Q, b_K, b_U (d,); w_q and w_k are (d, n), b_q and b_k (n,).
    """

    def declare(self) -> None:
        """Declare the parameters: three linear maps of rows with biases (W, b), and the score
        weights w and biases b of queries and of keys for n heads."""
        d, n = self.d, self.n
        self.W_Q: nn.Parameter = self.weight(d, d)
        self.W_K: nn.Parameter = self.weight(d, d)
        self.W_U: nn.Parameter = self.weight(d, d)
        self.b_Q: nn.Parameter = self.weight(d)
        self.b_K: nn.Parameter = self.weight(d)
        self.b_U: nn.Parameter = self.weight(d)
        self.w_q: nn.Parameter = self.weight(d, n)
        self.w_k: nn.Parameter = self.weight(d, n)
        self.b_q: nn.Parameter = self.weight(n)
        self.b_k: nn.Parameter = self.weight(n)

    def mix(self, x: Tensor) -> Tensor:
        """y (b, s, d) of x (b, s, d): the global query, the global key."""
        q, k = x @ self.W_Q + self.b_Q, x @ self.W_K + self.b_K
        p = self._pool(q, self.w_q, self.b_q) * k
        u = self._pool(p, self.w_k, self.b_k) * q
        return u @ self.W_U + self.b_U + q

    def _pool(self, rows: Tensor, w: Tensor, b: Tensor) -> Tensor:
        """The sum of rows (b, s, d) over s, weighted by a softmax per head: (b, 1, d)."""
        scores = (rows @ w + b) / math.sqrt(self.h)
        weights = torch.softmax(scores, dim=1).transpose(1, 2).unsqueeze(2)  # (b, n, 1, s)
        return (weights @ self.heads(rows)).transpose(1, 2).flatten(2)
