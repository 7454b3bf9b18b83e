"""Multi-head self-attention in PyTorch, with the options of costmodel.mixers.self_attention.

The equations are (10)-(17) of Chen's SHE/HE/WE/ME paper: Vaswani et al. 2017 with a causal mask.
Norms, rotary embedding and gates surround any implementation of attention; windows, sinks and
bounded scores are options of the explicit one alone. Shapes: linear maps give Q (b, s, n, K) of n
heads, K (b, t, g, K) and V (b, t, g, V) of g; attention gets (b, n, s, K), (b, g, t, K or V).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import Tensor, nn

from costmodel.language.macros.norms import LAYER_EPS, RMS_EPS
from costmodel.mixers.self_attention import (
    BASE,
    BIASED,
    CAP,
    CLIP,
    GATES,
    LAYER_NORMS,
    NORMS,
    ROTARY,
    bucket,
    slope,
)
from profiler.modules.attention import EXPLICIT, SDPA, Attention
from profiler.modules.base import Mixer, SequenceMixer, State, head_width, require_sizes
from profiler.modules.registry import implementation
from profiler.modules.running_sums import ChunkState

PROJECTIONS = dict.fromkeys(("Q", "K", "V", "y"), "contraction")
STEPS = dict.fromkeys(("Q_p", "K_p", "V_p", "S", "G"), "contraction") | dict.fromkeys(
    ("Q_c", "K_c", "Q_n", "K_n", "V_n", "O", "N"), "elementwise"
)
"""Array that an option brings -> kernel class ("elementwise")."""

BIASES = {
    "bias": ("Q", "K", "V", "out", "G"), "output-bias": ("out",), "qkv-bias": ("Q", "K", "V"),
    "keyless-bias": ("Q", "V", "out"),
}  # fmt: skip
"""Option -> the linear maps that get a bias."""

AROUND = (*GATES, "heads-norm", "keys-as-values", *NORMS, "v-norm", "clipped")
"""The options before and after attention, which any implementation of attention can have."""
INSIDE = ("sinks", "soft-cap", "unscaled")
"""The options that change the scores or the softmax, for attention with or without a mask."""
WINDOWS = ("window", "chunked-window")


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x W + b, with W (in, out) and b (out,) or None."""
    return x @ weight if bias is None else x @ weight + bias


class Heads(SequenceMixer):
    """The base of all variants: n query heads, and g heads of keys (width K) and values (width V).
    g is n unless `grouped`; K and V are h unless `wide`, and h is d/n unless given.

    W_Q is (d, n*K), W_K (d, g*K), W_V (d, g*V) and W_out (n*V, d); if `grouped`, W_Q is (d, g,
    n/g*K) and W_out (g, n/g*V, d). A bias has the output axes of its map. `l` is only the default
    capacity of a state, but for a rotary embedding, whose tables cos and sin end at l.

    W_G is (d, n*V), or (d, n) for a gate per head; b_sink is (n). Gains of norms w_Q and w_K are
    (K), with `whole-qk-norm` as long as the rows of all queries and keys, with
    `heads-qk-layer-norm` (n, K) and (g, K); offsets o_Q and o_K (K) go with `qk-layer-norm`, and
    w_R (n*V) is the gain of `heads-norm`. If `grouped`, W_G, b_sink and gains of n heads have axes
    of groups as W_Q has. With `keys-as-values` there is no W_V. b_rel is (B, n), with an axis of
    groups if `grouped`; the table of `alibi` ends at l.
    """

    BOTH = False
    """Whether a token attends to tokens on both sides."""

    way: Attention
    W_V: nn.Parameter | None
    W_G: nn.Parameter | None
    b_Q: nn.Parameter | None
    b_K: nn.Parameter | None
    b_V: nn.Parameter | None
    b_G: nn.Parameter | None
    b_out: nn.Parameter | None
    b_sink: nn.Parameter | None
    w_R: nn.Parameter | None
    w_Q: nn.Parameter | None
    w_K: nn.Parameter | None
    o_Q: nn.Parameter | None
    o_K: nn.Parameter | None
    b_rel: nn.Parameter | None
    alibi: Tensor
    cos: Tensor
    sin: Tensor

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
        w: int | None = None,
        r: int | None = None,
        B: int | None = None,
        options: Sequence[str] = (),
    ) -> None:
        """Declare the weights that the options ask for, with n query heads of width h (default
        d/n). Options need sizes: `grouped` g heads of keys and values, `wide` the widths K and V,
        windows w tokens, `partial-rotary` the r channels of a head that turn, `relative-bias` B
        buckets. ValueError if one is missing or does not fit."""
        super().__init__(d=d, l=l)
        require_sizes(n=n)
        self.n = n
        self.window = self._needed("window", "w", w, options)
        self.chunk = self._needed("chunked-window", "w", w, options)
        self.cap = float(CAP) if "soft-cap" in options else None
        self.g = self._groups(g, "grouped" in options)
        self.K, self.V = self._widths(h, K, V, "wide" in options)
        self.W_Q: nn.Parameter = self.weight(d, n * self.K)
        self.W_K: nn.Parameter = self.weight(d, self.g * self.K)
        apart = "keys-as-values" not in options
        self.register_parameter("W_V", self.weight(d, self.g * self.V) if apart else None)
        self.W_out: nn.Parameter = self.weight(n * self.V, d)
        # the width of the gate's map, 0 without a gate; then the extents of the axes of heads
        gates = 0 if {*GATES}.isdisjoint(options) else n if "head-gate" in options else n * self.V
        self.register_parameter("W_G", self.weight(d, gates) if gates else None)
        heads = (self.g, n // self.g) if "grouped" in options else (n,)
        sink = nn.Parameter(self.like.new_zeros(heads)) if "sinks" in options else None
        self.register_parameter("b_sink", sink)
        if "grouped" in options:
            self.W_Q = nn.Parameter(self.W_Q.detach().view(d, self.g, -1))
            self.W_out = nn.Parameter(self.W_out.detach().view(self.g, -1, d))
            if self.W_G is not None:
                self.W_G = nn.Parameter(self.W_G.detach().view(d, self.g, -1))
        self._declare_norms(heads, options)
        joined = nn.Parameter(self.like.new_ones(self.W_out.shape[:-1]))
        self.register_parameter("w_R", joined if "heads-norm" in options else None)
        self.buckets = self._needed("relative-bias", "B", B, options)
        learned = None
        if self.buckets is not None:
            learned = nn.Parameter(self.like.new_zeros(self.buckets, *heads))
        self.register_parameter("b_rel", learned)
        self.clipped = "clipped" in options
        self.rotary = not {*ROTARY}.isdisjoint(options)
        self.v_norm = "v-norm" in options
        self.scaled = "unscaled" not in options
        # whether keys are changed after the map that equal keys and values share
        moved = self.rotary or self.v_norm or self.w_K is not None
        self.linear = "alibi" in options
        self.cached = ("K", "V") if apart or moved else ("K",)
        """The rows of a token that later tokens read: of equal keys and values one."""
        self.bounded = self.bounded or self.rotary or self.linear
        if self.linear:
            of_head = [[slope(j + 1, n) * row for row in range(l)] for j in range(n)]
            table = torch.tensor(of_head, dtype=torch.float64, device=self.like.device)
            table = table.view(*heads, l).to(self.like.dtype)
            self.register_buffer("alibi", table, persistent=False)
        self.pairs = "rotary-pairs" in options
        self.turned = self._needed("partial-rotary", "r", r, options) or self.K
        if self.turned > self.K:
            raise ValueError(f"r = {r} channels cannot turn: a head has {self.K}")
        if self.rotary and self.turned % 2:
            raise ValueError(f"a rotary embedding turns pairs of channels, not {self.turned}")
        if self.rotary:
            self._make_tables()
        self._declare_biases(heads, options)

    def _declare_norms(self, heads: tuple[int, ...], options: Sequence[str]) -> None:
        """Register the gains w_Q and w_K and offsets o_Q and o_K of the norms of queries and keys,
        None without their options; `heads`: (n,) or, if `grouped`, (g, n/g)."""
        self.whole_norms = "whole-qk-norm" in options
        self.layer_norms = not {*LAYER_NORMS}.isdisjoint(options)
        normed, own = not {*NORMS}.isdisjoint(options), "heads-qk-layer-norm" in options
        offsets = self.layer_norms and not own  # `own`: each head has gains of its own
        for name, map_, of in (("Q", self.W_Q, heads), ("K", self.W_K, (self.g,))):
            shape = map_.shape[1:] if self.whole_norms else (*(of if own else ()), self.K)
            gain = nn.Parameter(self.like.new_ones(shape)) if normed else None
            self.register_parameter(f"w_{name}", gain)
            offset = nn.Parameter(self.like.new_zeros(shape)) if offsets else None
            self.register_parameter(f"o_{name}", offset)

    def _declare_biases(self, heads: tuple[int, ...], options: Sequence[str]) -> None:
        """Register biases b_Q, b_K, b_V, b_G and b_out of zeros, None if the map is absent or has
        no bias by `BIASES`; `biased-gate` gives b_G the shape `heads`: (n,) or, if `grouped`, (g,
        n/g)."""
        biased = {name for option in options for name in BIASES.get(option, ())}
        for name in BIASES["bias"]:
            weight: nn.Parameter | None = getattr(self, f"W_{name}")
            extents = () if weight is None else (self.d,) if name == "out" else weight.shape[1:]
            has = name in biased and weight is not None
            bias = nn.Parameter(self.like.new_zeros(extents)) if has else None
            self.register_parameter(f"b_{name}", bias)
        if "biased-gate" in options:
            self.b_G = nn.Parameter(self.like.new_zeros(heads))

    def _groups(self, g: int | None, grouped: bool) -> int:
        """The number of key and value heads: g if `grouped`, else n; ValueError if g is missing or
        does not divide n."""
        if not grouped:
            return self.n
        if g is None:
            raise ValueError("the option 'grouped' needs the size g, the heads of keys and values")
        require_sizes(g=g)
        if self.n % g:
            raise ValueError(f"n = {self.n} heads are not divisible into g = {g} groups")
        return g

    def _needed(
        self, option: str, letter: str, size: int | None, options: Sequence[str]
    ) -> int | None:
        """The size that goes with an option, under this letter; None without the option. ValueError
        if the size is missing."""
        if option not in options:
            return None
        if size is None:
            raise ValueError(f"the option '{option}' needs the size {letter}")
        require_sizes(**{letter: size})
        return size

    def _make_tables(self) -> None:
        """Register the tables cos and sin of the rotary embedding, (l, r) for the r channels that
        turn (`turned`, K by default), of the angle row * BASE^(-2j/r) for row from 0 and pair j:
        channels 2j and 2j + 1 with `rotary-pairs`, else j and j + r/2."""
        half, device = self.turned // 2, self.like.device
        pair = torch.arange(half, dtype=torch.float64, device=device) / half
        row = torch.arange(self.l, dtype=torch.float64, device=device)
        angles = row.unsqueeze(1) * BASE**-pair
        angles = angles.repeat_interleave(2, 1) if self.pairs else angles.repeat(1, 2)
        for name, table in (("cos", angles.cos()), ("sin", angles.sin())):
            self.register_buffer(name, table.to(self.like.dtype), persistent=False)

    def _widths(self, h: int | None, K: int | None, V: int | None, wide: bool) -> tuple[int, int]:
        """The widths of a head's keys and values; ValueError if a size is missing."""
        if not wide:
            h = head_width(self.d, self.n) if h is None else h
            return h, h
        if K is None or V is None:
            raise ValueError("the option 'wide' needs the sizes K and V, the widths of a head")
        require_sizes(K=K, V=V)
        return K, V

    def _project(self, x: Tensor, first: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Q (..., n, K), K (..., g, K) and V (..., g, V) of rows x (..., d) from `first` on."""
        return self._queries(x, first), *self._keys_and_values(x, first)

    def _queries(self, x: Tensor, first: int = 0) -> Tensor:
        """Q (..., n, K) of x (..., d), whose first row is at the position `first`."""
        bias = None if self.b_Q is None else self.b_Q.flatten()
        rows = self._split(linear(x, self.W_Q.flatten(1), bias), self.n)
        return self._turned(self._normed(rows, self.w_Q, self.o_Q), first)

    def _within(self, rows: Tensor) -> Tensor:
        """The rows, each entry bounded with the option `clipped`."""
        return rows.clamp(-CLIP, CLIP) if self.clipped else rows

    def _keys_and_values(self, x: Tensor, first: int = 0) -> tuple[Tensor, Tensor]:
        """(keys (..., g, K), values (..., g, V)) in g heads of rows x (..., d), whose first row is
        at the position `first` (from 0); with `keys-as-values` V is K before its norm and rotation.
        `v-norm` gives V an RMS norm without gain; `clipped` bounds the entries of both."""
        raw = self._split(linear(x, self.W_K, self.b_K), self.g)
        keys = self._normed(raw, self.w_K, self.o_K)
        if self.W_V is None and self.w_K is None and not self.v_norm:
            return self._turned(keys, first), keys  # keys without a norm, clipped as values are
        values = raw if self.W_V is None else self._split(linear(x, self.W_V, self.b_V), self.g)
        if self.v_norm:
            values = F.rms_norm(values, (self.V,), None, float(RMS_EPS))
        return self._turned(keys, first), self._within(values)

    def _normed(self, rows: Tensor, gain: Tensor | None, offset: Tensor | None) -> Tensor:
        """Queries or keys (..., n, K) after their norm with this gain (None: no norm), and clipped
        with `clipped`: an RMS norm, with `whole-qk-norm` over all heads at once, or a layer norm
        with an offset or, with `heads-qk-layer-norm`, a gain per head and no offset."""
        if self.layer_norms and offset is None and gain is not None:
            rows = F.layer_norm(rows, (self.K,), None, None, float(LAYER_EPS))
            rows = rows * gain.view(-1, self.K)
        elif self.layer_norms:
            rows = F.layer_norm(rows, (self.K,), gain, offset, float(LAYER_EPS))
        elif gain is not None:
            axes = rows.shape[-2:] if self.whole_norms else rows.shape[-1:]
            rows = F.rms_norm(rows, axes, gain.view(axes), float(RMS_EPS))
        return self._within(rows)

    def _turned(self, rows: Tensor, first: int) -> Tensor:
        """Queries or keys (b, s, n, K), or (b, n, K) of one token, the first at the position
        `first`, after the rotary embedding, if any."""
        if not self.rotary:
            return rows
        last = first + (rows.shape[1] if rows.ndim == 4 else 1)
        cos, sin = (table[first:last].unsqueeze(1) for table in (self.cos, self.sin))
        turned, rest = rows[..., : self.turned], rows[..., self.turned :]
        turned = turned * cos + self._swapped(turned) * sin
        return torch.cat([turned, rest], dim=-1) if self.turned < self.K else turned

    def _swapped(self, rows: Tensor) -> Tensor:
        """(-v, u) for each pair of channels (u, v): neighbours with the option `rotary-pairs`, else
        channels p and p + half the width."""
        if self.pairs:
            return torch.stack([-rows[..., 1::2], rows[..., ::2]], dim=-1).flatten(-2)
        one, other = rows.chunk(2, dim=-1)
        return torch.cat([-other, one], dim=-1)

    def _split(self, rows: Tensor, heads: int) -> Tensor:
        """Reshape rows (..., n*w) to heads (..., n, w)."""
        return rows.view(*rows.shape[:-1], heads, rows.shape[-1] // heads)

    def _out(self, heads: Tensor, x: Tensor) -> Tensor:
        """The output y (..., d): the heads (..., n, V) of rows x (..., d), times their gate and
        normed, where the options ask for that, through the output map."""
        if self.W_G is not None:
            opened = self._split(x @ self.W_G.flatten(1), self.n)
            if self.b_G is not None:
                opened = opened + self.b_G.reshape(self.n, -1)  # a bias per channel, or per head
            heads = heads * torch.sigmoid(opened)
        rows = heads.flatten(-2)
        if self.w_R is not None:
            rows = F.rms_norm(rows, rows.shape[-1:], self.w_R.flatten(), float(RMS_EPS))
        return linear(rows, self.W_out.flatten(0, -2), self.b_out)

    def _across(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
        """y (b, s, d): attention of q (b, s, n, K) to k, v (b, t, g, K or V); a gate reads x."""
        q, k, v = (heads.transpose(1, 2) for heads in (q, k, v))
        return self._out(self.attend(q, k, v, causal=causal).transpose(1, 2), x)

    def _row(self, x_t: Tensor, q_t: Tensor, k: Tensor, v: Tensor, at: int = 0) -> Tensor:
        """The output y_t (b, d) of one token x_t (b, d) at the position `at`: its query (b, n, K)
        attends to t held keys and values (b, g, t, K or V), of which the last is at this position
        too."""
        rows = self._from(at, q_t.unsqueeze(2), k, v, causal=False)
        return self._out(rows.squeeze(2), x_t)

    @property
    def biased(self) -> bool:
        """Whether positions are biases of scores."""
        return self.linear or self.buckets is not None

    def _bias(self, at: int, rows: int, first: int, keys: int) -> Tensor:
        """The bias that is added to the scores of `rows` queries from position `at` on and `keys`
        keys from position `first` on, (n, rows or 1, keys): ALiBi's slopes times keys' positions,
        as that of the query changes no weight, or learned numbers by distance."""
        if self.linear:
            return self.alibi.view(self.n, 1, -1)[..., first : first + keys]
        assert self.b_rel is not None and self.buckets is not None
        numbers = [
            [bucket(at + i - first - k, self.buckets, self.BOTH) - 1 for k in range(keys)]
            for i in range(rows)
        ]
        index = torch.tensor(numbers, device=self.like.device)
        return self.b_rel.flatten(1)[index].permute(2, 0, 1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
        """R (b, n, s, V): attention of queries (b, n, s, K) to keys and values (b, g, t, ...), with
        the window or chunks, bound of scores, bias, sink and scale that the options choose; if
        `causal`, later tokens are masked."""
        return self._from(0, q, k, v, causal=causal)

    def _from(self, at: int, q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
        """The attention outputs (b, n, s, V), b sequences and n heads with values of V entries, of
        s queries q, the first at position `at`, to keys k and values v, of which the last is at the
        position of the last query (`causal`: to none later than the query); with the options'
        windows, bounds, sinks and biases of scores."""
        sink = None if self.b_sink is None else self.b_sink.reshape(-1, 1, 1)
        more = {"window": self.window, "cap": self.cap, "sink": sink}
        within: Callable[..., Tensor] = partial(self.way.compute, by=self.K, causal=causal)
        within = partial(within, **{name: one for name, one in more.items() if one is not None})
        within = within if self.scaled else partial(within, scaled=False)
        within = partial(within, both=True) if self.BOTH and self.window else within
        if self.chunk and causal:
            return self._by_chunks(within, q, k, v)
        rows, keys = q.shape[2], k.shape[2]
        if not self.biased:
            return within(q, k, v)
        return within(q, k, v, bias=self._bias(at, rows, at + rows - keys, keys))

    def _by_chunks(self, within: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The attention outputs (b, n, s, V) of queries q, keys k and values v by the function
        `within`, chunk by chunk: all complete chunks in one batch, then the short last one. A bias
        of scores, if any, is given to `within` for the positions of each chunk."""
        assert self.chunk is not None
        batch, length = q.shape[0], int(q.shape[2])
        whole, found = length - length % self.chunk, []
        for start, end, size in ((0, whole, self.chunk), (whole, length, length - whole)):
            if start < end:
                apart = (
                    rows[:, :, start:end].reshape(batch, rows.shape[1], -1, size, rows.shape[-1])
                    for rows in (q, k, v)
                )
                more: dict[str, Tensor] = {}
                if self.biased:
                    bias = [self._bias(at, size, at, size) for at in range(start, end, size)]
                    more = {"bias": torch.stack(bias).repeat(batch, 1, 1, 1)}
                read = within(*(rows.transpose(1, 2).flatten(0, 1) for rows in apart), **more)
                chunks = read.view(batch, -1, *read.shape[1:])
                found.append(chunks.transpose(1, 2).flatten(2, 3))
        return torch.cat(found, dim=2)


class SelfAttention(Heads, Mixer):
    """Causal self-attention: a token attends to itself and all earlier tokens."""

    def initial_state(self, batch: int, length: int | None = None) -> State:
        """Make the state before the first token: zeros with room for the KV cache, K (batch, g,
        length, K) and V (batch, g, length, V) of `length` tokens (default: l) in g heads; K alone
        if values are the keys. With a window only the last w-1 rows, with chunks the w rows of the
        current one, for any number of tokens (`sliding`) or, with tables, l."""
        rows = length = self._tokens(batch, length)
        if last := self.chunk or self.window:
            rows = last if self.chunk else last - 1
        widths = {"K": self.K, "V": self.V}
        arrays = {
            name: self.like.new_zeros(batch, self.g, rows, widths[name]) for name in self.cached
        }
        return (ChunkState if self.chunk else State)(arrays, sliding=bool(last))

    def mix(self, x: Tensor) -> Tensor:
        """y (b, s, d) of x (b, s, d): Q, K, V (b, n, s, h), attention of all heads, then W_out."""
        return self._across(x, *self._project(x), causal=True)

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """The output y_t (b, d) of one token x_t (b, d): attend from q_t to the held rows and the
        token's own, k_t and v_t, which are appended to the state."""
        at = state.position
        q_t, *both = self._project(x_t, at)
        # `last` names the values' array, which is that of the keys if both are equal
        own, last = dict(zip(self.cached, both, strict=False)), self.cached[-1]
        if self.window is not None:
            # a token reads w rows and the state has room for w - 1: joined before the append
            rows = {
                one: torch.cat([state.held(one), row.unsqueeze(2)], dim=2)
                for one, row in own.items()
            }
            state.append(**own)
            return self._row(x_t, q_t, rows["K"], rows[last], at)
        state.append(**own)
        seen = state.chunk if isinstance(state, ChunkState) else state.held
        return self._row(x_t, q_t, seen("K"), seen(last), at)


class BidirectionalSelfAttention(Heads):
    """Bidirectional self-attention: each token attends to all tokens, or to those of a window."""

    BOTH = True

    def mix(self, x: Tensor) -> Tensor:
        """y (b, s, d) of x (b, s, d): Q, K, V (b, n, s, h), attention of all heads, then W_out."""
        return self._across(x, *self._project(x), causal=False)


class SourceState(State):
    """The keys and values of a second sequence, complete before the first token."""

    def rows(self, name: str) -> int:
        """Number of tokens of the second sequence."""
        return self.capacity

    def require_room(self) -> None:
        """Accept every token, since a token appends nothing."""


class CrossAttention(Heads, Mixer):
    """Cross-attention: each token of x attends to all tokens of a second sequence z (b, e, d)."""

    def forward(self, x: Tensor, z: Tensor) -> Tensor:  # type: ignore[override]  # reads z as well
        """Mix x (b, s, d) with z (b, e, d) to y (b, s, d). ValueError for a wrong shape or dtype,
        Unsupported if the device has no kernel for the dtype."""
        self._require_sequence(x)
        self._require_source(z, x.shape[0])
        try:
            return self._across(x, self._queries(x), *self._keys_and_values(z), causal=False)
        except RuntimeError as error:
            self._require_kernel(x, error)
            raise

    def mix(self, x: Tensor) -> Tensor:
        """Raise ValueError: a second sequence is required."""
        raise ValueError("cross-attention mixes x with a second sequence z: call forward(x, z)")

    def initial_state(
        self, batch: int, length: int | None = None, z: Tensor | None = None
    ) -> SourceState:
        """Make the state before the first token: the keys K (batch, g, e, K) and values V (batch,
        g, e, V) of z (batch, e, d), complete, for any number of tokens of x; ValueError without z,
        or for a z of a wrong shape or dtype."""
        require_sizes(batch=batch, length=self.l if length is None else length)
        if z is None:
            raise ValueError("the state of cross-attention is made of z (batch, e, d): pass z")
        self._require_source(z, batch)
        with torch.no_grad():
            own = zip(self.cached, self._keys_and_values(z), strict=False)
            # Contiguous by head: one copy here saves a copy per token.
            return SourceState({name: rows.transpose(1, 2).contiguous() for name, rows in own})

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """y_t (b, d) of one token x_t (b, d): attend from q_t to all held rows."""
        state.position += 1
        return self._row(x_t, self._queries(x_t), state.held("K"), state.held(self.cached[-1]))

    def _require_source(self, z: Tensor, batch: int) -> None:
        """Raise a ValueError unless z is (batch, e, d) with e >= 1, in the module's dtype."""
        if z.dim() != 3 or z.shape[0] != batch or z.shape[1] < 1 or z.shape[2] != self.d:
            shape = tuple(int(size) for size in z.shape)
            raise ValueError(f"z must be ({batch}, source length, {self.d}) and is {shape}")
        if z.dtype != self.like.dtype:
            raise ValueError(f"z is {z.dtype} and the parameters are {self.like.dtype}: convert z")


@implementation(
    "self-attention",
    "explicit",
    options=(*BIASES, "wide", "grouped", *WINDOWS, *INSIDE, *BIASED, *AROUND, *ROTARY),
    option_kernels=STEPS,
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
    options=(*BIASES, "grouped", *AROUND, *ROTARY),
    option_kernels=STEPS,
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
    options=(*BIASES, "wide", "grouped", "window", *INSIDE, *BIASED, *AROUND, *ROTARY),
    option_kernels=STEPS,
    rewrites=EXPLICIT.rewrites,
    kernels=PROJECTIONS | EXPLICIT.kernels,
)
class ExplicitBidirectional(BidirectionalSelfAttention):
    """Scores, division by sqrt(K), softmax and weighted sum as separate operations."""

    way = EXPLICIT


@implementation(
    "self-attention+bidirectional",
    "sdpa",
    options=(*BIASES, "grouped", *AROUND, *ROTARY),
    option_kernels=STEPS,
    rewrites=SDPA.rewrites,
    kernels=PROJECTIONS | SDPA.kernels,
)
class FusedBidirectional(BidirectionalSelfAttention):
    """PyTorch's scaled_dot_product_attention; no `wide`, as above."""

    way = SDPA


@implementation(
    "self-attention+cross",
    "explicit",
    options=(*BIASES, "wide", "grouped", *INSIDE, *AROUND),
    option_kernels=STEPS,
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
    options=(*BIASES, "grouped", *AROUND),
    option_kernels=STEPS,
    rewrites=SDPA.rewrites,
    kernels=PROJECTIONS | SDPA.kernels,
    step_kernels=PROJECTIONS | SDPA.kernels,
)
class FusedCrossAttention(CrossAttention):
    """PyTorch's scaled_dot_product_attention; no `wide`, as above."""

    way = SDPA
