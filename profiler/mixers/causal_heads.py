"""Terroa's causal attention heads (SSA, LSA, VSA, SLSA, VLSA) in PyTorch.

The equations are those of `costmodel.mixers.causal_heads`: each head has its own columns in the
weight arrays. A class combines a mixer with an implementation of attention. PyTorch's fused call is
offered for mixers with equally wide queries and values, since the CPU has no kernel for other
widths. Shapes: n heads, queries and keys of width w, values of width u.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import ClassVar, TypeVar

import torch
from torch import Tensor, nn

from profiler.modules.attention import EXPLICIT, SDPA, Attention
from profiler.modules.base import Mixer, State, head_width
from profiler.modules.registry import implementation


class CausalHeads(Mixer):
    """Causal attention in n heads; a subclass defines the scores.

    `l` is only the default capacity of the state. If `LAYERED`, the values of a head pass through
    L_1 and L_2 first.
    """

    MIXER: ClassVar[str]
    KEYS: ClassVar[str] = "K"
    """The name of the array with the keys."""
    LAYERED: ClassVar[bool] = False
    attention: ClassVar[Attention]

    L_1: nn.Parameter
    L_2: nn.Parameter

    def __init__(
        self,
        *,
        d: int,
        l: int,
        n: int,
        options: Collection[str] = (),
        wide_scores: int = 1,
        wide_values: int = 1,
    ) -> None:
        """Declare the weights of n heads for rows of width d: queries and keys have the width w =
        `wide_scores` * d/n, values u = `wide_values` * d/n. The one option, `output-bias`, adds
        b_out (d,) to the output. ValueError unless w and u are whole."""
        super().__init__(d=d, l=l)
        self.n = n
        self.scored, self.read = head_width(d, n, wide_scores), head_width(d, n, wide_values)
        self.declare_scores()
        self.W_V: nn.Parameter = self.weight(d, n * self.read)
        if self.LAYERED:
            self.L_1 = self.weight(self.read, n * self.read)
            self.L_2 = self.weight(self.read, n * self.read)
        self.W_out: nn.Parameter = self.weight(n * self.read, d)
        self.b_out: nn.Parameter | None = (
            nn.Parameter(self.like.new_zeros(d)) if "output-bias" in options else None
        )

    def declare_scores(self) -> None:
        """Declare the weights of the scores."""
        raise NotImplementedError

    def score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Queries (..., n, w) and keys (..., n, w) or (..., 1, w) of x (..., d)."""
        raise NotImplementedError

    @property
    def by(self) -> int:
        """The number whose square root divides the scores."""
        return self.scored

    @classmethod
    def values(cls) -> str:
        """The name of the array with the values."""
        return "V_gated" if cls.LAYERED else "V"

    @classmethod
    def kernels(cls) -> dict[str, str]:
        """A dict: array -> kernel class, such as "contraction"."""
        projected = ["Q", "V"] + (["K"] if cls.KEYS == "K" else [])
        layered = {"V_added": "contraction", "V_gate": "contraction", "V_gated": "elementwise"}
        around = dict.fromkeys([*projected, "y"], "contraction")
        return around | (layered if cls.LAYERED else {}) | cls.attention.kernels

    def key_heads(self) -> tuple[int, int]:
        """The number of key heads, and their width."""
        return self.n, self.scored

    def initial_state(self, batch: int, length: int | None = None) -> State:
        """Make the state before the first token: zeros with room for the keys (batch, n or 1,
        length, w) and the values (batch, n, length, u) of `length` tokens (default: l) in n
        heads."""
        return State(
            {
                self.KEYS: self._rows(batch, length, *self.key_heads()),
                self.values(): self._rows(batch, length, self.n, self.read),
            }
        )

    def mix(self, x: Tensor) -> Tensor:
        """y (b, s, d) of x (b, s, d): queries, keys and values (b, n, s, ...), then attention."""
        q, k, v = (heads.transpose(1, 2) for heads in (*self.score(x), self.value(x)))
        rows = self.attention.compute(q, k, v, by=self.by, causal=True)
        return self.project(rows.transpose(1, 2).flatten(2))

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """The output y_t (b, d) of one token x_t (b, d): append the token's key and value to
        `state`, then attend to all rows held there."""
        q_t, k_t = self.score(x_t)
        state.append(**{self.KEYS: k_t, self.values(): self.value(x_t)})
        k, v = state.held(self.KEYS), state.held(self.values())
        rows = self.attention.compute(q_t.unsqueeze(2), k, v, by=self.by, causal=False)
        return self.project(rows.flatten(1))

    def heads(self, x: Tensor, weight: Tensor) -> Tensor:
        """x W split into heads, (..., n, columns per head)."""
        return (x @ weight).view(*x.shape[:-1], self.n, -1)

    def value(self, x: Tensor) -> Tensor:
        """Values (..., n, u) of x (..., d)."""
        v = self.heads(x, self.W_V)
        return self.layer(v) if self.LAYERED else v

    def layer(self, v: Tensor) -> Tensor:
        """(v + v L_1) * sigmoid(v L_2), for values (..., n, u) with L_1 and L_2 per head."""
        rows = v.flatten(0, -3).transpose(0, 1)  # (n, tokens, u)
        by_head = (L.view(self.read, self.n, -1).transpose(0, 1) for L in (self.L_1, self.L_2))
        added, gate = (torch.bmm(rows, L) for L in by_head)
        return ((rows + added) * torch.sigmoid(gate)).transpose(0, 1).reshape(v.shape)

    def project(self, rows: Tensor) -> Tensor:
        """The output map: concatenated heads (..., n * u) to y (..., d)."""
        y = rows @ self.W_out
        return y if self.b_out is None else y + self.b_out


class QueriesAndKeys(CausalHeads):
    """Scores are dot products of queries x W_Q and keys x W_K."""

    def declare_scores(self) -> None:
        """W_Q and W_K (d, n * w)."""
        self.W_Q: nn.Parameter = self.weight(self.d, self.n * self.scored)
        self.W_K: nn.Parameter = self.weight(self.d, self.n * self.scored)

    def score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys, (..., n, w) each."""
        return self.heads(x, self.W_Q), self.heads(x, self.W_K)


class WideScores(QueriesAndKeys):
    """Queries and keys of width v*h, values of width h."""

    def __init__(self, *, d: int, l: int, n: int, v: int, options: Collection[str] = ()) -> None:
        super().__init__(d=d, l=l, n=n, options=options, wide_scores=v)


class WideHeads(QueriesAndKeys):
    """Queries, keys and values of width v*h, h = d/n."""

    def __init__(self, *, d: int, l: int, n: int, v: int, options: Collection[str] = ()) -> None:
        """Declare the weights of n heads, whose queries, keys and values have width v*h, h = d/n.
        `l` is the default capacity of the state, `output-bias` the one option."""
        super().__init__(d=d, l=l, n=n, options=options, wide_scores=v, wide_values=v)


class OneMatrix(CausalHeads):
    """Scores x W_U x^T with a (d, d) matrix per head; the rows of x are the keys of all heads."""

    KEYS = "x"

    def declare_scores(self) -> None:
        """W_U (d, n * d)."""
        self.W_U: nn.Parameter = self.weight(self.d, self.n * self.d)

    def score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Queries (..., n, d), and x (..., 1, d)."""
        return self.heads(x, self.W_U), x.unsqueeze(-2)

    def key_heads(self) -> tuple[int, int]:
        """One key head of width d."""
        return 1, self.d


class OneSplitMatrix(CausalHeads):
    """Scores are dot products of x W_U and x, both split into heads, divided by sqrt(d)."""

    KEYS = "x"

    def declare_scores(self) -> None:
        """W_U (d, d)."""
        self.W_U: nn.Parameter = self.weight(self.d, self.d)

    def score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys, (..., n, h) each."""
        return self.heads(x, self.W_U), x.reshape(*x.shape[:-1], self.n, self.scored)

    @property
    def by(self) -> int:
        """The model width."""
        return self.d


_Class = TypeVar("_Class", bound=type[CausalHeads])


def attends(attention: Attention) -> Callable[[_Class], _Class]:
    """Return a decorator that registers a class as an implementation of the mixer in its `MIXER` by
    this `attention` (from all scores, or PyTorch's fused call), with and without the option
    `output-bias`."""

    def register(cls: _Class) -> _Class:
        """Set the class's attention, and register the class."""
        cls.attention = attention
        return implementation(
            cls.MIXER,
            attention.name,
            rewrites=attention.rewrites,
            kernels=cls.kernels(),
            step_kernels=cls.kernels(),
            options=("output-bias",),
        )(cls)

    return register


@attends(EXPLICIT)
class ExplicitSsa(OneMatrix):
    """SSA by dense operations."""

    MIXER = "ssa"


class SplitSsa(OneSplitMatrix):
    """SSA with x split into heads, as in the author's code."""

    MIXER = "ssa-split"


@attends(EXPLICIT)
class ExplicitSplitSsa(SplitSsa):
    """Split SSA by dense operations."""


@attends(SDPA)
class FusedSplitSsa(SplitSsa):
    """Split SSA by one fused call."""


class Lsa(QueriesAndKeys):
    """LSA: self-attention with L_1 and L_2."""

    MIXER = "lsa"
    LAYERED = True


@attends(EXPLICIT)
class ExplicitLsa(Lsa):
    """LSA by dense operations."""


@attends(SDPA)
class FusedLsa(Lsa):
    """LSA by one fused call."""


@attends(EXPLICIT)
class ExplicitVsa(WideScores):
    """VSA by dense operations."""

    MIXER = "vsa"


@attends(EXPLICIT)
class ExplicitSlsa(OneMatrix):
    """SLSA, SSA with L_1 and L_2, by dense operations."""

    MIXER = "slsa"
    LAYERED = True


@attends(EXPLICIT)
class ExplicitVlsa(WideScores):
    """VLSA, VSA with L_1 and L_2, by dense operations."""

    MIXER = "vlsa"
    LAYERED = True


class VlsaTrained(WideHeads):
    """VLSA with the widths that the printed parameter counts require."""

    MIXER = "vlsa-trained"
    LAYERED = True


@attends(EXPLICIT)
class ExplicitVlsaTrained(VlsaTrained):
    """VLSA as trained, by dense operations."""


@attends(SDPA)
class FusedVlsaTrained(VlsaTrained):
    """VLSA as trained, by one fused call."""
