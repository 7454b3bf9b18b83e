"""Multi-head self-attention in PyTorch, with the options of costmodel.mixers.self_attention.

The equations are (10)-(17) of Chen's SHE/HE/WE/ME paper: Vaswani et al. 2017 with a causal mask.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from profiler.modules.attention import EXPLICIT, SDPA, Attention
from profiler.modules.base import Mixer, SequenceMixer, State, head_width, require_sizes
from profiler.modules.registry import implementation

PROJECTIONS = dict.fromkeys(("Q", "K", "V", "y"), "contraction")

BIASES = {"bias": ("Q", "K", "V", "out"), "output-bias": ("out",)}
"""Option -> the linear maps that get a bias."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x W + b, with W (in, out) and b (out,) or None."""
    return x @ weight if bias is None else x @ weight + bias


class Heads(SequenceMixer):
    """The base of all variants: n query heads, and g heads of keys (width K) and values (width V).
    g is n unless `grouped`; K and V are h unless `wide`, and h is d/n unless given.

    W_Q is (d, n*K), W_K (d, g*K), W_V (d, g*V) and W_out (n*V, d); if `grouped`, W_Q is (d, g,
    n/g*K) and W_out (g, n/g*V, d). A bias has the output axes of its map. `l` is only the default
    capacity of a state.
    """

    way: Attention
    b_Q: nn.Parameter | None
    b_K: nn.Parameter | None
    b_V: nn.Parameter | None
    b_out: nn.Parameter | None

    def __init__(
        self,
        *,
        d: int,
        l: int,
        n: int,
        g: int | None = None,
        h: int | None = None,
        K: int | None = None,
        V: int | None = None,
        options: Sequence[str] = (),
    ) -> None:
        super().__init__(d=d, l=l)
        require_sizes(n=n)
        self.n = n
        self.g = self._groups(g, "grouped" in options)
        self.K, self.V = self._widths(h, K, V, "wide" in options)
        self.W_Q: nn.Parameter = self.weight(d, n * self.K)
        self.W_K: nn.Parameter = self.weight(d, self.g * self.K)
        self.W_V: nn.Parameter = self.weight(d, self.g * self.V)
        self.W_out: nn.Parameter = self.weight(n * self.V, d)
        if "grouped" in options:
            self.W_Q = nn.Parameter(self.W_Q.detach().view(d, self.g, -1))
            self.W_out = nn.Parameter(self.W_out.detach().view(self.g, -1, d))
        biased = {name for option in options for name in BIASES.get(option, ())}
        for name in BIASES["bias"]:
            weight: nn.Parameter = getattr(self, f"W_{name}")
            extents = weight.shape[1:] if name != "out" else (d,)
            bias = nn.Parameter(self.like.new_zeros(extents)) if name in biased else None
            self.register_parameter(f"b_{name}", bias)

    def _groups(self, g: int | None, grouped: bool) -> int:
        """The number of key and value heads; ValueError if g is missing or does not divide n."""
        if not grouped:
            return self.n
        if g is None:
            raise ValueError("the option 'grouped' needs the size g, the heads of keys and values")
        require_sizes(g=g)
        if self.n % g:
            raise ValueError(f"n = {self.n} heads are not divisible into g = {g} groups")
        return g

    def _widths(self, h: int | None, K: int | None, V: int | None, wide: bool) -> tuple[int, int]:
        """The widths of a head's keys and values; ValueError if a size is missing."""
        if not wide:
            h = head_width(self.d, self.n) if h is None else h
            return h, h
        if K is None or V is None:
            raise ValueError("the option 'wide' needs the sizes K and V, the widths of a head")
        require_sizes(K=K, V=V)
        return K, V

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Q (..., n, K), K (..., g, K) and V (..., g, V) of x (..., d)."""
        return self._queries(x), *self._keys_and_values(x)

    def _queries(self, x: Tensor) -> Tensor:
        bias = None if self.b_Q is None else self.b_Q.flatten()
        return self._split(linear(x, self.W_Q.flatten(1), bias), self.n)

    def _keys_and_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = linear(x, self.W_K, self.b_K), linear(x, self.W_V, self.b_V)
        return self._split(keys, self.g), self._split(values, self.g)

    def _split(self, rows: Tensor, heads: int) -> Tensor:
        """Reshape rows (..., n*w) to heads (..., n, w)."""
        return rows.view(*rows.shape[:-1], heads, rows.shape[-1] // heads)

    def _out(self, rows: Tensor) -> Tensor:
        """The output map: the concatenated heads (..., n*V) to y (..., d)."""
        return linear(rows, self.W_out.flatten(0, -2), self.b_out)

    def _across(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
        """y (b, s, d): attention of q (b, s, n, K) to k (b, t, g, K) and v (b, t, g, V)."""
        q, k, v = (heads.transpose(1, 2) for heads in (q, k, v))
        rows = self.attend(q, k, v, causal=causal).transpose(1, 2).flatten(2)
        return self._out(rows)

    def _row(self, q_t: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend from one query (b, n, K) to held keys and values (b, g, t, K or V): y_t (b, d)."""
        return self._out(self.attend(q_t.unsqueeze(2), k, v, causal=False).flatten(1))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
        """R (b, n, s, V): attention of queries (b, n, s, K) to keys and values (b, g, t, ...)."""
        return self.way.compute(q, k, v, by=self.K, causal=causal)


class SelfAttention(Heads, Mixer):
    """Causal self-attention: a token attends to itself and all earlier tokens."""

    def initial_state(self, batch: int, length: int | None = None) -> State:
        """The KV cache: K (batch, g, length, K) and V (batch, g, length, V)."""
        widths = {"K": self.K, "V": self.V}
        return State({name: self._rows(batch, length, self.g, w) for name, w in widths.items()})

    def mix(self, x: Tensor) -> Tensor:
        """Q, K, V (b, n, s, h), then heads, then y (b, s, d)."""
        return self._across(*self._project(x), causal=True)

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """Append k_t and v_t to the cache, then attend from q_t to all held rows."""
        q_t, k_t, v_t = self._project(x_t)
        state.append(K=k_t, V=v_t)
        return self._row(q_t, state.held("K"), state.held("V"))


class BidirectionalSelfAttention(Heads):
    """Bidirectional self-attention: each token attends to all tokens."""

    def mix(self, x: Tensor) -> Tensor:
        """Q, K, V (b, n, s, h), then heads, then y (b, s, d)."""
        return self._across(*self._project(x), causal=False)


class SourceState(State):
    """The keys and values of a second sequence, complete before the first token."""

    def rows(self, name: str) -> int:
        """Number of tokens of the second sequence."""
        return self.capacity

    def require_room(self) -> None:
        """Always: a token appends nothing."""


class CrossAttention(Heads, Mixer):
    """Cross-attention: each token of x attends to all tokens of a second sequence z (b, e, d)."""

    def forward(self, x: Tensor, z: Tensor) -> Tensor:  # type: ignore[override]  # reads z as well
        """Mix x (b, s, d) with z (b, e, d) to y (b, s, d); errors as of `SequenceMixer.forward`."""
        self._require_sequence(x)
        self._require_source(z, x.shape[0])
        try:
            return self._across(self._queries(x), *self._keys_and_values(z), causal=False)
        except RuntimeError as error:
            self._require_kernel(x, error)
            raise

    def mix(self, x: Tensor) -> Tensor:
        """Raise ValueError: a second sequence is required."""
        raise ValueError("cross-attention mixes x with a second sequence z: call forward(x, z)")

    def initial_state(
        self, batch: int, length: int | None = None, z: Tensor | None = None
    ) -> SourceState:
        """K (batch, g, e, K) and V (batch, g, e, V) of z (batch, e, d), whatever the `length`."""
        require_sizes(batch=batch, length=self.l if length is None else length)
        if z is None:
            raise ValueError("the state of cross-attention is made of z (batch, e, d): give it")
        self._require_source(z, batch)
        with torch.no_grad():
            # Contiguous by head: one copy here saves a copy per token.
            k, v = (heads.transpose(1, 2).contiguous() for heads in self._keys_and_values(z))
        return SourceState({"K": k, "V": v})

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """Attend from q_t to all held rows."""
        state.position += 1
        return self._row(self._queries(x_t), state.held("K"), state.held("V"))

    def _require_source(self, z: Tensor, batch: int) -> None:
        if z.dim() != 3 or z.shape[0] != batch or z.shape[1] < 1 or z.shape[2] != self.d:
            shape = tuple(int(size) for size in z.shape)
            raise ValueError(f"z must be ({batch}, source length, {self.d}) and is {shape}")
        if z.dtype != self.like.dtype:
            raise ValueError(
                f"z is {z.dtype} and the parameters are {self.like.dtype}: convert one of them"
            )


@implementation(
    "self-attention",
    "explicit",
    options=("bias", "output-bias", "wide", "grouped"),
    rewrites=EXPLICIT.rewrites,
    kernels=PROJECTIONS | EXPLICIT.kernels,
    step_kernels=PROJECTIONS | EXPLICIT.kernels,
)
class ExplicitSelfAttention(SelfAttention):
    """Scores, division by sqrt(K), mask, softmax and weighted sum as separate dense operations."""

    way = EXPLICIT


@implementation(
    "self-attention",
    "sdpa",
    options=("bias", "output-bias", "grouped"),
    rewrites=SDPA.rewrites,
    kernels=PROJECTIONS | SDPA.kernels,
    step_kernels=PROJECTIONS | SDPA.kernels,
)
class FusedSelfAttention(SelfAttention):
    """PyTorch's scaled_dot_product_attention, without `wide`: CPUs lack a kernel for two widths."""

    way = SDPA


@implementation(
    "self-attention+bidirectional",
    "explicit",
    options=("bias", "output-bias", "wide", "grouped"),
    rewrites=EXPLICIT.rewrites,
    kernels=PROJECTIONS | EXPLICIT.kernels,
)
class ExplicitBidirectional(BidirectionalSelfAttention):
    """Scores, division by sqrt(K), softmax and weighted sum as separate operations."""

    way = EXPLICIT


@implementation(
    "self-attention+bidirectional",
    "sdpa",
    options=("bias", "output-bias", "grouped"),
    rewrites=SDPA.rewrites,
    kernels=PROJECTIONS | SDPA.kernels,
)
class FusedBidirectional(BidirectionalSelfAttention):
    """PyTorch's scaled_dot_product_attention; no `wide`, as above."""

    way = SDPA


@implementation(
    "self-attention+cross",
    "explicit",
    options=("bias", "output-bias", "wide", "grouped"),
    rewrites=EXPLICIT.rewrites,
    kernels=PROJECTIONS | EXPLICIT.kernels,
    step_kernels=PROJECTIONS | EXPLICIT.kernels,
)
class ExplicitCrossAttention(CrossAttention):
    """Scores, division by sqrt(K), softmax and weighted sum as separate operations."""

    way = EXPLICIT


@implementation(
    "self-attention+cross",
    "sdpa",
    options=("bias", "output-bias", "grouped"),
    rewrites=SDPA.rewrites,
    kernels=PROJECTIONS | SDPA.kernels,
    step_kernels=PROJECTIONS | SDPA.kernels,
)
class FusedCrossAttention(CrossAttention):
    """PyTorch's scaled_dot_product_attention; no `wide`, as above."""

    way = SDPA
