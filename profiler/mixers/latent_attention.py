"""Multi-head latent attention in PyTorch, in three ways to use its latent rows.

DeepSeek-V2 and V3, with the choices stated in costmodel.mixers.latent_attention. *Latent rows*
C (b, s, c) are a map of x to few channels, from which W_UK and W_UV make the keys and values of n
heads. `Expanded` makes keys and values once per token, and keeps them as the state. `Absorbed`
keeps latent rows: q . (C W_UK) = (q W_UK^T) . C, so queries of width c read them directly.
`ReExpanded` keeps latent rows, and makes all keys and values again for each token.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from itertools import product
from typing import TypeVar

import torch
from torch import Tensor, nn

from costmodel.language.options import joined
from profiler.mixers.self_attention import linear
from profiler.modules.base import Mixer, State, require_sizes
from profiler.modules.norms import rms_norm
from profiler.modules.registry import implementation

EPS = 1e-6
BASE = 10_000.0
REWRITES = ("dense", "safe-softmax")
OF_FORM = {"expanded": ("K_C", "V_C"), "absorbed": ("Q_A", "M"), "re-expanded": ("K_C", "V_C")}
"""Form -> the arrays that not every form computes, all by matrix products."""

Module = TypeVar("Module", bound=type[nn.Module])


def kernels(form: str, options: Sequence[str]) -> dict[str, str]:
    """A dict: name of an array in the equations -> class of the kernel that computes it, for a form
    of the mixer with options."""
    found = dict.fromkeys(("D_KV", "Q_C", *OF_FORM[form], "Z", "O", "y"), "contraction")
    found |= {"C_KV": "elementwise", "A": "softmax"}
    if "query-compression" in options:
        found |= {"D_Q": "contraction", "C_Q": "elementwise"}
    if "nope" in options:
        found |= dict.fromkeys(("Q_R", "K_R"), "contraction")
    elif "no-shared-key" not in options:
        found |= dict.fromkeys(("U_Q", "U_K"), "contraction")
        found |= dict.fromkeys(("Q_R", "K_R"), "elementwise")
    if "head-gate" in options:
        found |= {"G": "contraction", "GO": "elementwise"}
    return found


def latent(name: str, form: str) -> Callable[[Module], Module]:
    """Return a decorator that registers a class as an implementation of the mixer `mla` with each
    set of its options. `form` is the form of the equations that `forward` executes; `name` is the
    implementation's name, and also the form that `step` executes."""

    def described(module: Module) -> Module:
        """Register the class once for each set of options (24), and return it."""
        positions = ("", "nope", "no-shared-key")
        several = ("", "query-compression"), positions, ("", "bias"), ("", "head-gate")
        for chosen in product(*several):
            options = [option for option in chosen if option]
            implementation(
                joined("mla", options),
                name,
                form=form,
                step_form=name,
                rewrites=REWRITES,
                kernels=kernels(form, options),
                step_kernels=kernels(name, options),
            )(module)
        return module

    return described


def rotated(rows: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rows (..., s, R) with channels 2p-1 and 2p rotated by the angles of cos and sin (s, R)."""
    u, v = rows.view(*rows.shape[:-1], -1, 2).unbind(-1)
    return rows * cos + torch.stack([-v, u], dim=-1).flatten(-2) * sin


def of_all_heads(rows: Tensor, one: Tensor) -> Tensor:
    """Rows of all heads (b, n, s, w) times a matrix (b, w, u) that heads share, without a copy per
    head: (b, n, s, u)."""
    return (rows.flatten(1, 2) @ one).view(*rows.shape[:-1], -1)


def tables(rows: int, width: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines (rows, width) of the angles (i - 1) base^(-2(p - 1)/width) of pair p."""
    pairs = torch.arange(0, width, 2, dtype=torch.float64) / width
    angles = torch.arange(rows, dtype=torch.float64).outer(BASE**-pairs).repeat_interleave(2, 1)
    return angles.cos().to(like), angles.sin().to(like)


class LatentAttention(Mixer):
    """The base: weights, latent rows, rotated parts, and causal attention to the arrays of a state.

    W_DKV is (d, c), W_UK (c, n*K), W_UV (c, n*V), W_KR (d, R) and W_O (n*V, d); W_UQ (d, n*K) and
    W_QR (d, n*R) or, with the option `query-compression`, (r, ...) after W_DQ (d, r); W_G (d, n)
    with the option `head-gate`, which multiplies each head by a sigmoid; b_DQ (r), b_DKV (c), b_KR
    (R) and b_O (d) with the option `bias`; gain_KV (c) and gain_Q (r) are gains of the RMS norms of
    latent rows. A score is the product of a head's query and key of width K, plus that of a query
    and a key K_R of width R that all heads share (none with `no-shared-key`). The query and key of
    width R are rotated by their positions (not with `nope`); cos and sin (l, R) are the tables,
    which limit the length.
    """

    cos: Tensor
    sin: Tensor
    b_DQ: nn.Parameter | None
    b_DKV: nn.Parameter | None
    b_KR: nn.Parameter | None
    b_O: nn.Parameter | None

    def __init__(
        self,
        *,
        d: int,
        l: int,
        n: int,
        K: int,
        V: int,
        c: int,
        R: int | None = None,
        r: int | None = None,
        options: Sequence[str] = (),
    ) -> None:
        """Declare the weights of n heads with keys of width K and values of width V, made from
        latent rows of width c; R is the width of the shared key, r the rank of the queries.
        ValueError if an option's size (R, r) is missing, or an odd R would be rotated."""
        super().__init__(d=d, l=l)
        self.compressed = "query-compression" in options
        self.shared = "no-shared-key" not in options
        self.bounded = self.shared and "nope" not in options  # by its tables
        if self.shared and R is None:
            raise ValueError("latent attention needs the size R, the width of the shared key")
        if self.compressed and r is None:
            raise ValueError("the option 'query-compression' needs the size r, the queries' rank")
        self.n, self.K, self.V, self.c = n, K, V, c
        self.R, self.r = R if self.shared and R else 0, r if self.compressed and r else d
        require_sizes(n=n, K=K, V=V, c=c, r=self.r)
        if self.bounded and self.R % 2:
            raise ValueError(f"pairs of channels are rotated, and R = {R} is odd")
        if self.compressed:
            self.W_DQ: nn.Parameter = self.weight(d, self.r)
            self.gain_Q: nn.Parameter = self.weight(self.r)
        self.W_UQ: nn.Parameter = self.weight(self.r, n * K)
        if self.shared:
            self.W_QR: nn.Parameter = self.weight(self.r, n * self.R)
            self.W_KR: nn.Parameter = self.weight(d, self.R)
        self.W_DKV: nn.Parameter = self.weight(d, c)
        self.gain_KV: nn.Parameter = self.weight(c)
        self.W_UK: nn.Parameter = self.weight(c, n * K)
        self.W_UV: nn.Parameter = self.weight(c, n * V)
        self.gated = "head-gate" in options
        if self.gated:
            self.W_G: nn.Parameter = self.weight(d, n)
        self.W_O: nn.Parameter = self.weight(n * V, d)
        widths = {"b_DQ": self.r if self.compressed else 0, "b_DKV": c, "b_KR": self.R, "b_O": d}
        for name, width in widths.items():
            has = "bias" in options and width > 0
            bias = nn.Parameter(self.like.new_zeros(width)) if has else None
            self.register_parameter(name, bias)
        if self.bounded:
            for name, table in zip(("cos", "sin"), tables(l, self.R, self.like), strict=True):
                self.register_buffer(name, table, persistent=False)

    def heads(self, rows: Tensor) -> Tensor:
        """Reshape concatenated heads (..., s, n*w) to (..., n, s, w)."""
        return rows.view(*rows.shape[:-1], self.n, -1).transpose(-3, -2)

    def queries(self, x: Tensor, first: int) -> tuple[Tensor, Tensor | None]:
        """The queries of rows x (b, s, d) in n heads, whose first row has the position `first`
        (from 0): Q_C (b, n, s, K) for each head's keys and Q_R (b, n, s, R) for the shared key,
        None without one."""
        row = x
        if self.compressed:
            row = rms_norm(linear(x, self.W_DQ, self.b_DQ), self.gain_Q, EPS)
        at_place = self.placed(self.heads(row @ self.W_QR), first) if self.shared else None
        return self.heads(row @ self.W_UQ), at_place

    def latent(self, x: Tensor, first: int) -> dict[str, Tensor]:
        """The latent rows C_KV (b, s, c) and, if there is a shared key, its rows K_R (b, s, R);
        `first`: the position of the first row, from 0."""
        rows = {"C_KV": rms_norm(linear(x, self.W_DKV, self.b_DKV), self.gain_KV, EPS)}
        if self.shared:
            rows["K_R"] = self.placed(linear(x, self.W_KR, self.b_KR), first)
        return rows

    def placed(self, rows: Tensor, first: int) -> Tensor:
        """Rows (..., s, R), rotated by their positions from `first` on; unchanged with `nope`."""
        if not self.bounded:
            return rows
        here = slice(first, first + rows.shape[-2])
        return rotated(rows, self.cos[here], self.sin[here])

    @abstractmethod
    def kept(self, rows: dict[str, Tensor]) -> dict[str, Tensor]:
        """The arrays that later tokens read (name -> rows), made from those of `latent`."""

    @abstractmethod
    def attend(
        self, q: tuple[Tensor, Tensor | None], kept: dict[str, Tensor], causal: bool
    ) -> Tensor:
        """The attention outputs of all heads (b, n, s, V).

        Args:
            q: Q_C (b, n, s, K) for each head's keys, and Q_R (b, n, s, R) for the shared key, None
                without one.
            kept: the arrays that a state keeps, by name, with t rows each.
            causal: whether later rows are masked.
        """

    def weights(
        self, scores: Tensor, q_R: Tensor | None, kept: dict[str, Tensor], causal: bool
    ) -> Tensor:
        """The attention weights A (b, n, s, t) of s queries over t rows: the softmax of `scores`,
        those of each head's own keys, plus those of the shared keys in `kept` (none if q_R is
        None), over sqrt(K + R); with `causal`, later rows are masked."""
        if q_R is not None:
            scores = scores + of_all_heads(q_R, kept["K_R"].mT)
        scores = scores / math.sqrt(self.K + self.R)
        if causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(later, -math.inf)
        return torch.softmax(scores, dim=-1)

    def mix(self, x: Tensor) -> Tensor:
        """y (b, s, d) of x (b, s, d): attend from each row to itself and all rows before."""
        kept = self.kept(self.latent(x, 0))
        heads = self.attend(self.queries(x, 0), kept, causal=True)
        return linear(self.joined(x, heads.transpose(1, 2)), self.W_O, self.b_O)

    def joined(self, x: Tensor, heads: Tensor) -> Tensor:
        """Heads (..., n, V) side by side, (..., n*V); with the option `head-gate` each times the
        sigmoid of a number of rows x (..., d)."""
        if self.gated:
            heads = heads * torch.sigmoid(x @ self.W_G).unsqueeze(-1)
        return heads.flatten(-2)

    def initial_state(self, batch: int, length: int | None = None) -> State:
        """An empty state with room for a row per token in each array of `held_shapes`."""
        return State({
            name: self._rows(batch, length, *inner) for name, inner in self.held_shapes().items()
        })  # fmt: skip

    def held_shapes(self) -> dict[str, tuple[int, ...]]:
        """A dict: name of an array of the state -> its axes without batch and tokens: (n, K) stands
        for (b, n, t, K)."""
        latent: dict[str, tuple[int, ...]] = {"C_KV": (self.c,)}
        return latent | {"K_R": (self.R,)} if self.shared else latent

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """The output y_t (b, d) of one token x_t (b, d): append the token's latent rows (or keys
        and values) to the state, then attend to all rows held there."""
        x, at = x_t.unsqueeze(1), state.position
        rows = self.kept(self.latent(x, at))
        state.append(**{name: row.squeeze(-2) for name, row in rows.items()})
        held = {name: state.held(name) for name in rows}
        heads = self.attend(self.queries(x, at), held, causal=False).squeeze(2)
        return linear(self.joined(x_t, heads), self.W_O, self.b_O)


@latent("expanded", "expanded")
class Expanded(LatentAttention):
    """Keys and values of all heads are made once per token, and are the state."""

    def kept(self, rows: dict[str, Tensor]) -> dict[str, Tensor]:
        """K_C (b, n, s, K), V_C (b, n, s, V), and K_R if there is one."""
        C = rows.pop("C_KV")
        return {"K_C": self.heads(C @ self.W_UK), "V_C": self.heads(C @ self.W_UV)} | rows

    def attend(
        self, q: tuple[Tensor, Tensor | None], kept: dict[str, Tensor], causal: bool
    ) -> Tensor:
        """Attention to the keys and values of each head."""
        return self.weights(q[0] @ kept["K_C"].mT, q[1], kept, causal) @ kept["V_C"]

    def held_shapes(self) -> dict[str, tuple[int, ...]]:
        """K_C and V_C of all heads, and K_R if there is one."""
        shapes = super().held_shapes()
        del shapes["C_KV"]
        return {"K_C": (self.n, self.K), "V_C": (self.n, self.V)} | shapes


class Latent(LatentAttention):
    """The base of classes whose state holds latent rows."""

    def kept(self, rows: dict[str, Tensor]) -> dict[str, Tensor]:
        """`rows` unchanged: the latent rows and shared keys."""
        return rows


@latent("absorbed", "absorbed")
class Absorbed(Latent):
    """Attention to latent rows as keys and values: W_UK is applied to queries, W_UV to outputs."""

    def attend(
        self, q: tuple[Tensor, Tensor | None], kept: dict[str, Tensor], causal: bool
    ) -> Tensor:
        """The attention outputs (b, n, s, V): queries Q_C W_UK^T (b, n, s, c) attend to the latent
        rows C_KV in `kept` (b, t, c), and W_UV maps the weighted sums (b, n, s, c). `q` is
        (Q_C, Q_R or None); with `causal`, later rows are masked."""
        C = kept["C_KV"]
        own = q[0] @ self.W_UK.view(self.c, self.n, -1).permute(1, 2, 0)
        A = self.weights(of_all_heads(own, C.mT), q[1], kept, causal)
        return of_all_heads(A, C) @ self.W_UV.view(self.c, self.n, -1).transpose(0, 1)


@latent("re-expanded", "expanded")
class ReExpanded(Latent):
    """Latent rows are the state; each step makes the keys and values of all held rows, as
    transformers 5 does."""

    def attend(
        self, q: tuple[Tensor, Tensor | None], kept: dict[str, Tensor], causal: bool
    ) -> Tensor:
        """The attention outputs (b, n, s, V): make keys and values from all latent rows in `kept`,
        then attend with q = (Q_C, Q_R or None). The products are batched over sequences: one
        product of all rows would copy the held rows. With `causal`, later rows are masked."""
        C = kept["C_KV"]
        keys, values = (self.heads(C @ W.expand(len(C), -1, -1)) for W in (self.W_UK, self.W_UV))
        return self.weights(q[0] @ keys.mT, q[1], kept, causal) @ values
