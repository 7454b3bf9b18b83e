"""What are the equations of multi-head self-attention, and of its variants?

The plain mixer is causal, without biases, and has heads of width d/n, as in Chen 2023. Options add
biases, bidirectional attention, other widths of keys and values, grouped queries (GQA),
cross-attention to a second sequence, and what layers ship with: windows, sinks, gates, norms of
queries and keys, bounded scores, positions as biases of scores and rotary embedding. Norms come
before the rotary embedding. Each scale is a division, each bound of scores the constant of Gemma 2,
50, and each bound of queries, keys and values that of DBRX, 8. Another base, and yarn (Peng et al.
2023, arXiv 2309.00071), are other numbers in the tables of cosines and sines.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from costmodel.language.equations import Form, Mixer
from costmodel.language.indices import Index, max_, min_
from costmodel.language.macros.norms import layer_norm, rms_norm
from costmodel.language.macros.positions import rotary
from costmodel.language.macros.softmax import scaled, softmax
from costmodel.language.nodes import Array, Node
from costmodel.language.options import Chosen, offering
from costmodel.language.writing import function, maximum, minimum, sum_
from costmodel.symbolic.polynomial import Poly

CHEN = "Chen 2023, arXiv 2308.07661v2, eqs. (10)-(17)"
VASWANI = "Vaswani et al. 2017, arXiv 1706.03762"
SU = "Su et al. 2021, arXiv 2104.09864, eq. (34)"
TORCH = "torch.nn.MultiheadAttention"

OPTIONS = {
    "bias": "b_Q, b_K, b_V, b_out and, with a gate, b_G: a bias on each linear map",
    "output-bias": "b_out alone",
    "qkv-bias": "b_Q, b_K and b_V",
    "keyless-bias": "b_Q, b_V and b_out",
    "bidirectional": "a token attends to all l tokens",
    "wide": "keys of width K and values of width V in each head, in place of d/n",
    "cross": "keys and values of a second sequence z of e tokens",
    "grouped": "keys and values in g heads, each for n/g heads of queries: GQA, or MQA with g = 1",
    "window": "a token attends to the last w tokens, its own among them; with 'bidirectional' to "
    "those up to w - 1 tokens away",
    "chunked-window": "a token attends to its chunk of w tokens, up to itself",
    "sinks": "a learned score per head in the softmax's denominator",
    "gate": "heads times sigmoid(x W_G), a number per channel, before the output",
    "head-gate": "'gate' with a number per head",
    "biased-gate": "'gate' with b_G, a bias per head",
    "heads-norm": "an RMS norm of all heads as one row, before the output",
    "keys-as-values": "no W_V: values are the keys before their norm and rotary embedding",
    "qk-norm": "an RMS norm of each head of queries and of keys",
    "whole-qk-norm": "an RMS norm of all queries as one row, and of all keys",
    "qk-layer-norm": "'qk-norm' as a layer norm",
    "heads-qk-layer-norm": "'qk-layer-norm' with weights a head, no offset",
    "v-norm": "an RMS norm of each head of values, without weights",
    "clipped": "queries, keys and values between -8 and 8, after norms",
    "unscaled": "scores q k without the division by the root of the width",
    "soft-cap": "scores s as 50 tanh(s/50)",
    "alibi": "a number per head and key, from a table, is added to each score",
    "relative-bias": "a learned number per head, of B by the distance, is added to each score",
    "rotary": "rotary embedding of queries and keys, channel c with c + h/2",
    "rotary-pairs": "rotary embedding of queries and keys, channel 2c-1 with 2c",
    "partial-rotary": "rotary embedding of a head's first r channels, c with c + r/2; with "
    "rotary-pairs 2c-1 with 2c",
}
SOURCES = {
    "bias": f"biases as {TORCH} has them",
    "output-bias": f"the output's bias as {TORCH} has it",
    "qkv-bias": "biases of queries, keys and values: Qwen2, arXiv 2407.10671, section 2.2.1",
    "keyless-bias": "no bias of keys, which a softmax would cancel: transformers, WhisperAttention",
    "bidirectional": f"{VASWANI}, section 3.2.3: the encoder's self-attention",
    "wide": f"{VASWANI}, section 3.2.2: d_k and d_v are K and V",
    "cross": f"{VASWANI}, section 3.2.3: encoder-decoder attention",
    "grouped": "Ainslie et al. 2023, arXiv 2305.13245, section 2.2; with g = 1, but for the scale, "
    "Shazeer 2019, arXiv 1911.02150, section 3",
    "window": "window: Beltagy et al. 2020, arXiv 2004.05150, section 3.1, the causal half",
    "chunked-window": "chunks: transformers, masking_utils, chunked_causal_mask_function (Llama 4)",
    "sinks": "sinks: Agarwal et al. 2025, arXiv 2508.10925, gpt-oss",
    "gate": "gate: Qiu et al. 2025, arXiv 2505.06708, elementwise, after the heads",
    "head-gate": "gate: Qiu et al. 2025, arXiv 2505.06708, headwise, after the heads",
    "biased-gate": "gate with a bias per head: transformers, BeamAttention, gate_bias",
    "heads-norm": "norm of the heads: transformers, BitNetAttention, attn_sub_norm",
    "keys-as-values": "keys as values: transformers, Gemma4TextAttention, attention_k_eq_v",
    "qk-layer-norm": "layer norms: transformers, PersimmonAttention, qk_layernorm",
    "heads-qk-layer-norm": "layer norms: transformers, StableLmAttention, qk_layernorm",
    "clipped": "bounds of queries, keys and values: transformers, OlmoeAttention, clip_qkv",
    "v-norm": "a norm of values: transformers, Gemma4TextAttention",
    "unscaled": "no scale: transformers, Gemma4TextAttention",
    "qk-norm": "norms: Dehghani et al. 2023, arXiv 2302.05442; RMS norms as in Qwen3",
    "whole-qk-norm": "norms over all heads: QK-norm of OLMo 2, arXiv 2501.00656",
    "soft-cap": "bound of scores: Gemma Team 2024, arXiv 2408.00118, Gemma 2",
    "alibi": "positions as biases: Press et al. 2021, arXiv 2108.12409, section 3",
    "relative-bias": "relative positions: Raffel et al. 2019, arXiv 1910.10683, section 2.1",
    "rotary": f"{SU}, halves as in GPT-NeoX and Llama",
    "rotary-pairs": SU,
    "partial-rotary": f"{SU}, of the first r channels as in GPT-NeoX and GPT-J",
}
OF_TORCH = {"bias", "output-bias", "bidirectional", "cross"}
"""The options that `TORCH` has."""
ROTARY = ("rotary", "rotary-pairs", "partial-rotary")
NORMS = ("qk-norm", "whole-qk-norm", "qk-layer-norm", "heads-qk-layer-norm")
LAYER_NORMS = ("qk-layer-norm", "heads-qk-layer-norm")
GATES = ("gate", "head-gate", "biased-gate")
OF_MAPS: Mapping[str, Collection[str]] = {
    "output-bias": ("out",), "qkv-bias": "QKV", "keyless-bias": ("Q", "V", "out"),
}  # fmt: skip
"""Option -> the linear maps with a bias, where not all have one."""
BIASED = ("alibi", "relative-bias")
"""The options with positions as biases of scores."""
APART = {
    ("bias", "output-bias"): "'bias' has b_out among its biases",
    ("bias", "qkv-bias"): "'bias' has b_Q, b_K and b_V among its biases",
    ("output-bias", "qkv-bias"): "'bias' has both",
    **{
        (other, "keyless-bias"): "each says which linear maps have a bias"
        for other in ("bias", "output-bias", "qkv-bias")
    },
    ("bidirectional", "cross"): "with 'cross' a token attends to all e tokens of z as it is",
    ("window", "chunked-window"): "each says which earlier tokens a token attends to",
    ("bidirectional", "chunked-window"): "a chunk ends with the token",
    **{
        ("cross", near): "a window is one of tokens of the same sequence"
        for near in ("window", "chunked-window")
    },
    ("bidirectional", "alibi"): "ALiBi's distances are to earlier tokens",
    ("sinks", "alibi"): "a bias by key alone equals one by distance only without a sink",
    ("wide", "keys-as-values"): "values are as wide as the keys that they are",
    **dict.fromkeys(combinations(NORMS, 2), "each is the norm of queries and keys"),
    **dict.fromkeys(combinations(GATES, 2), "each is the gate of the heads"),
    ("rotary", "rotary-pairs"): "each says which two channels turn together",
    ("rotary", "partial-rotary"): "'partial-rotary' turns r channels of a head, 'rotary' all",
    **{
        (near, "relative-bias"): "no score reads the numbers of distances beyond a window"
        for near in ("window", "chunked-window")
    },
    ("alibi", "relative-bias"): "each is the bias of scores by positions",
    **{
        ("cross", placed): "the tokens of z have positions of their own"
        for placed in (*ROTARY, *BIASED)
    },
}
VARIANTS = {
    "mqa": "grouped{g=1}",
    "gqa": "grouped",
    "llama-attention": "grouped+rotary",
    "llama-4-attention": "grouped+chunked-window+rotary-pairs",
    "mistral-attention": "grouped+window+rotary",
    "gemma-2-attention": "grouped+window+soft-cap+rotary",
    "gemma-4-attention": "grouped+keys-as-values+qk-norm+v-norm+unscaled+rotary",
    "olmo-2-attention": "whole-qk-norm+rotary",
    "qwen3-attention": "grouped+qk-norm+rotary",
    "qwen3-next-attention": "grouped+gate+qk-norm+partial-rotary",
    "gpt-oss-attention": "bias+grouped+window+sinks+rotary",
}
"""The combinations that ship, by names of their own, but for biases, scales and bases; of Gemma 4
the layer that attends to all tokens."""

BASE = 10_000
"""The base of the angles: pair p of m turns by BASE**(-(p - 1)/m) from token to token."""
CAP = 50
CLIP = 8
"""The bound of DBRX's queries, keys and values (`clip_qkv`)."""


def angle(row: int, pair: int, pairs: int) -> float:
    """The angle of a pair of channels at a row; row and pair count from 1."""
    return float((row - 1) * BASE ** (-(pair - 1) / pairs))


def slope(head: int, heads: int) -> float:
    """The factor by which ALiBi multiplies distances in a head (counted from 1): 2**(-8 i/n) in
    head i of n heads, if n is a power of two; else the factors for the power of two below n, then
    every second factor for the power above."""
    near = 2 ** (heads.bit_length() - 1)
    if head <= near:
        return float(2 ** (-8 * head / near))
    return float(2 ** (-8 * (2 * (head - near) - 1) / (2 * near)))


FARTHEST = 128
"""T5's `max_distance`: in T5, tokens this far away or farther share the last bucket."""


def bucket(distance: int, buckets: int, both: bool) -> int:
    """The bucket, counted from 1, in which T5 puts a key that stands `distance` tokens before the
    query: half of the `buckets` have one distance each, the others widen with the logarithm of the
    distance. With `both`, half of all buckets are for keys after the query; else such keys are in
    bucket 1."""
    first, number = 1, buckets
    if both:
        buckets = max(1, buckets // 2)
        first += buckets if distance < 0 else 0
    distance = abs(distance) if both else max(distance, 0)
    exact = max(1, buckets // 2)
    if distance >= exact:
        # with more than 128 buckets the distances of the last half end at twice `exact`
        share = math.log(distance / exact) / math.log(max(2, FARTHEST / exact))
        distance = exact + int(share * (buckets - exact))
    return min(first + distance, first + buckets - 1, number)


def bounded(value: Node) -> Node:
    """A value between -CLIP and CLIP: two comparisons."""
    return maximum(minimum(value, CLIP), -CLIP)


def with_bias(product: Node, bias: Array | None, at: object) -> Node:
    """The value of a linear map, plus its bias at position `at` if there is one."""
    return product if bias is None else product + bias[at]


class Rotated:
    """The rotary embedding of queries and keys: how many channels turn, in which pairs, by which
    tables."""

    def __init__(self, m: Mixer, chosen: Chosen, width: Poly) -> None:
        """Declare the tables cos and sin (l, channels that turn) of the rotary embedding, for heads
        of `width` channels; the options give the layout of pairs and how many channels turn."""
        (l,) = m.sizes("l")
        self.width, self.turned = width, width
        self.layout = "interleaved" if "rotary-pairs" in chosen else "halves"
        if "partial-rotary" in chosen:
            self.turned = m.size("r", "channels of a head that turn", 4)
            m.at_most(self.turned, width)
        turned, pairs = self.turned, "rotary-pairs" in chosen

        def of(turn: Any) -> Any:
            """The function of an entry of the table of `turn`, cosine or sine: (row, channel,
            sizes) -> its value at the row and the channel's pair."""

            def entry(row: int, channel: int, sizes: Mapping[str, int]) -> float:
                half = max(1, turned.at(sizes) // 2)
                pair = (channel + 1) // 2 if pairs else (channel - 1) % half + 1
                return float(turn(angle(row, pair, half)))

            return entry

        self.cos, self.sin = (
            m.buffer(name, l, self.turned, value=of(turn))
            for name, turn in (("cos", math.cos), ("sin", math.sin))
        )

    def define(self, f: Form, into: Array, of: Array, head: tuple[Index, ...], i: Index) -> None:
        """Write the equations of the rows of `into`: those of `of`, rotated by the position of row
        i, at the indices `head`; channels that do not turn are copied."""
        partial = self.turned != self.width
        c, p = f.index("c1" if partial else "c", 1, self.turned), f.index("p", 1, self.turned / 2)
        tables = {"cos": self.cos[i, c], "sin": self.sin[i, c]}
        into[*head, i, c] = rotary(of[*head, i, c], over=c, pairs=p, layout=self.layout, **tables)
        if partial:
            rest = f.index("c2", self.turned + 1, self.width)
            into[*head, i, rest] = of[*head, i, rest]


@dataclass(frozen=True)
class Seen:
    """The rows that a row attends to, and where their scores stand in the array of scores.

    Attributes:
        row: the row that attends.
        key: the row attended to, for each value of the index `over`.
        place: the position of `row` on the first axes of a head's scores: (i,), or (chunk, place).
        slot: the position of `key` on the last axis.
        extents: the extents of a head's scores.
        over: the index of the rows attended to.
    """

    row: Any
    key: Any
    place: tuple[Any, ...]
    slot: Any
    extents: tuple[Any, ...]
    over: Index


def seen_rows(f: Form, chosen: Chosen, i: Index, rows: Poly) -> Seen:
    """The rows that row i attends to and the layout of their scores: rows 1 to `rows`, l or e
    (`bidirectional`, `cross`), the rows up to i, the last w of them (`window`; with `bidirectional`
    those less than w away), or those of its chunk of w up to i (`chunked-window`)."""
    (l,) = f.mixer.sizes("l")
    # Seen(row, key, positions of row and key in the scores, extents of the scores, index of keys)
    if "chunked-window" in chosen:
        (w,) = f.mixer.sizes("w")
        q = f.index("q", 1, l // w + 1)
        e = f.index("e", 1, min_(w, l - (q - 1) * w))
        s = f.index("s", 1, e)
        at = (q - 1) * w
        return Seen(at + e, at + s, (q, e), s, (l // w + 1, w, w), s)
    both = bool(chosen & {"bidirectional", "cross"})
    first: Any = 1
    last: Any = rows if both else i
    if "window" in chosen:
        (w,) = f.mixer.sizes("w")
        first = max_(1, i - w + 1)
        last = min_(l, i + w - 1) if both else i
    k = f.index("k", first, last)
    return Seen(i, k, (i,), k, (l, rows), k)


class Placed:
    """Positions as biases of scores: a table, or learned numbers by buckets of distances."""

    def __init__(self, m: Mixer, chosen: Chosen, heads: tuple[Poly, ...]) -> None:
        """Declare the bias of scores by position: with `alibi` the table (heads, l) of slope times
        position; else, as in T5, the parameter b_rel (B, heads) and the table of the bucket of each
        distance, query's row minus key's. `heads`: (n,) or (groups, heads in a group)."""
        (l,) = m.sizes("l")
        both = "bidirectional" in chosen
        self.table = self.learned = None
        if "alibi" in chosen:

            def entry(*at: Any) -> float:
                """Slope of a head, or of a group's head, times the position of a key."""
                *head, row, sizes = at
                own, n = head[-1], sizes["n"]
                if len(head) == 2:
                    own += (head[0] - 1) * heads[1].at(sizes)
                bias: float = slope(own, n) * (row - 1)
                return bias

            self.table = m.buffer("alibi", *heads, l, value=entry, latex=r"\mathrm{alibi}")
            return
        B = m.size("B", "buckets of distances", 32)
        self.learned = m.parameter("b_rel", B, *heads)
        self.first = l if both else Poly.of(1)
        """The position of distance 0."""

        def number(place: int, sizes: Mapping[str, int]) -> int:
            """The bucket of the distance at a place of the table."""
            distance = place - (sizes["l"] if both else 1)
            return bucket(distance, sizes["B"], both)

        extent = 2 * l - 1 if both else l
        self.buckets = m.buffer("bucket", extent, below=B, value=number)

    def at(self, head: tuple[Index, ...], seen: Seen) -> Node:
        """The expression of the bias of a head's score for a row and a key."""
        if self.table is not None:
            return self.table[*head, seen.key]
        assert self.learned is not None
        return self.learned[self.buckets[seen.row - seen.key + self.first], *head]


@offering(OPTIONS, APART, VARIANTS)
def self_attention(chosen: Chosen) -> Mixer:
    """The mixer of self-attention in n heads with the chosen options (queries in groups, norms,
    rotary embedding, windows, sinks, gates, ...), in one form `direct`; weights are (in, out),
    biases (out,)."""
    m = Mixer(
        "self-attention",
        title="Self-attention",
        idea="each token weighs earlier tokens by a softmax of q k",
        source="; ".join([CHEN, *(SOURCES[option] for option in OPTIONS if option in chosen)]),
        group="attention",
        references=() if chosen - OF_TORCH else (TORCH,),
        aliases=("mha",),
    )
    cited = not chosen  # the paper's equations are those of the plain mixer
    l, d, n = m.sizes("l d n")  # tokens, channels, heads
    key, value = m.sizes("K V" if "wide" in chosen else "h h")
    x = m.input("x", l, d)
    z = m.context("z", *m.sizes("e"), d) if "cross" in chosen else x  # rows of keys
    y = m.output("y", l, d, cite="(17)" if cited else "")
    grouped, gate = "grouped" in chosen, chosen & {*GATES}
    (g,) = m.sizes("g") if grouped else (n,)
    # Output axes of W_Q, and input axes of W_out: all heads, or groups of n/g heads.
    queries, rows, gates = (
        ((g, n / g * x) if grouped else (n * x,))
        for x in (key, value, 1 if "head-gate" in chosen else value)
    )
    maps = {"Q": (d, *queries), "K": (d, g * key), "V": (d, g * value), "out": (*rows, d)}
    if "keys-as-values" in chosen:
        del maps["V"]
    maps |= {"G": (d, *gates)} if gate else {}
    biased: Collection[str] = maps if "bias" in chosen else ()
    for option in chosen & OF_MAPS.keys():  # options that name the maps with a bias
        biased = OF_MAPS[option]
    W = {name: m.parameter(f"W_{name}", *shape) for name, shape in maps.items()}
    heads = (g, n / g) if grouped else (n,)  # extents of the axes of heads
    of_biases = {name: maps[name][1:] if name != "out" else (d,) for name in maps if name in biased}
    of_biases |= {"G": heads} if "biased-gate" in chosen else {}
    b_ = {name: m.parameter(f"b_{name}", *shape) for name, shape in of_biases.items()}
    whole = "whole-qk-norm" in chosen
    layer_normed = bool(chosen & {*LAYER_NORMS})
    by_head = {"Q": heads, "K": (g,)} if "heads-qk-layer-norm" in chosen else {"Q": (), "K": ()}
    gains = {
        one: m.parameter(f"w_{one}", *(maps[one][1:] if whole else (*by_head[one], key)))
        for one in ("QK" if chosen & {*NORMS} else "")
    }
    offsets = {
        one: m.parameter(f"o_{one}", key) for one in ("QK" if "qk-layer-norm" in chosen else "")
    }
    w_R = m.parameter("w_R", *rows) if "heads-norm" in chosen else None
    sink = m.parameter("b_sink", *heads) if "sinks" in chosen else None
    turned = Rotated(m, chosen, key) if chosen & {*ROTARY} else None
    placed = Placed(m, chosen, heads) if chosen & {*BIASED} else None
    clipped = "clipped" in chosen

    with m.form("direct") as f:
        i = f.index("i", 1, l)
        seen = seen_rows(f, chosen, i, z.shape[0])  # the rows that row i attends to
        k = seen.over
        s = k if "cross" in chosen else i
        j, c = f.index("j", 1, g), f.index("c", 1, key)
        o = f.index("o", 1, n / g) if grouped else j
        a, b = f.index("a", 1, d), f.index("b", 1, d)
        v = c if value == key and not grouped else f.index("v", 1, value)
        r = a  # the heads side by side, which are d wide unless their width is given
        if v is not c or rows[-1] != d:
            r = f.index("m" if "partial-rotary" in chosen else "r", 1, rows[-1])
        head, group = ((j, o), (j,)) if grouped else ((j,), ())  # indices of a head, of its group

        def array(name: str, *shape: object, cite: str = "") -> Array:
            return f.array(name, *shape, cite=cite if cited else "")

        def mapped(name: str, of: Array, row: Index, *at: Any) -> Node:
            """Row `row` of an array times W_name, plus b_name if there is one, at column `at`."""
            return with_bias(sum_(of[row, a] * W[name][a, *at], over=a), b_.get(name), at)

        # Q and K: projected (_p), normed (_n), clipped (_c), rotated (_r)
        steps = ["_p", *(["_n"] if gains else []), *(["_c"] if clipped else []),
                 *(["_r"] if turned else [])]  # fmt: skip
        names = [*steps[:-1], ""]
        """Queries and keys after each step: the last one is the name without an ending."""
        Q = [array(f"Q{end}", *heads, l, key, cite="(10)") for end in names]
        K = [array(f"K{end}", g, z.shape[0], key, cite="(11)") for end in names]
        V_p = K[0]  # without W_V, values are the projected keys; then normed (V_n), clipped (V)
        if "V" in maps:
            raw = "V_p" if chosen & {"v-norm", "clipped"} else "V"
            V_p = array(raw, g, z.shape[0], value, cite="(12)")
        V_n = V_p
        if "v-norm" in chosen:
            V_n = array("V_n" if clipped else "V", g, z.shape[0], value)
        V = V_n
        if clipped:
            same = V_n is K[0] and not gains  # bounded keys are bounded values
            V = K[1] if same else array("V", g, z.shape[0], value)

        columns = {"Q": (*group, (o - 1) * key + c), "K": ((j - 1) * key + c,)}
        Q[0][*head, i, c] = mapped("Q", x, i, *columns["Q"])
        K[0][j, s, c] = mapped("K", z, s, *columns["K"])
        if "V" in maps:
            V_p[j, s, v] = mapped("V", z, s, (j - 1) * value + v)
        if V_n is not V_p:
            V_n[j, s, v] = rms_norm(V_p[j, s, v], over=v)
        if V is not V_n and V not in K:
            V[j, s, v] = bounded(V_n[j, s, v])
        for one, stages, of, row in (("Q", Q, head, i), ("K", K, (j,), s)):
            for step, before, after in zip(steps[1:], stages, stages[1:], strict=False):
                at = before[*of, row, c]
                if step == "_c":
                    after[*of, row, c] = bounded(at)
                elif step == "_n" and layer_normed:
                    gain = gains[one][*(of if by_head[one] else ()), c]
                    offset = offsets[one][c] if offsets else None
                    after[*of, row, c] = layer_norm(at, over=c, gain=gain, bias=offset)
                elif step == "_n":
                    normed = (*of, c) if whole else c
                    gain = gains[one][columns[one] if whole else c]
                    after[*of, row, c] = rms_norm(at, over=normed, gain=gain)
                else:
                    assert turned is not None
                    turned.define(f, after, before, of, row)

        # scores S before cap and bias, Z after; A: the softmax's weights; R: what heads read
        S = array("S", *heads, *seen.extents) if placed or "soft-cap" in chosen else None
        Z = array("Z", *heads, *seen.extents, cite="(13)")
        A = array("A", *heads, *seen.extents, cite="(14)")
        R = array("R", l, *rows, cite="(15)-(16)")
        pair = (*head, *seen.place, seen.slot)
        score = sum_(Q[-1][*head, seen.row, c] * K[-1][j, seen.key, c], over=c)
        (Z if S is None else S)[pair] = score if "unscaled" in chosen else scaled(score, by=key)
        if S is not None:
            bound = CAP * function("tanh", S[pair] / CAP) if "soft-cap" in chosen else S[pair]
            Z[pair] = bound if placed is None else bound + placed.at(head, seen)
        A[pair] = softmax(Z[pair], over=k, sink=None if sink is None else sink[head])
        R[seen.row, *group, (o - 1) * value + v] = sum_(A[pair] * V[j, seen.key, v], over=k)
        if gate:
            G, O = array("G", l, *gates), array("O", l, *rows)
            column = (o - 1) * value + v
            own = o if "head-gate" in chosen else column
            opened = sum_(x[i, a] * W["G"][a, *group, own], over=a)
            bias_at = (*group, o if "biased-gate" in chosen else own)
            G[i, *group, own] = function("sigmoid", with_bias(opened, b_.get("G"), bias_at))
            O[i, *group, column] = R[i, *group, column] * G[i, *group, own]
            R = O
        if w_R is not None:
            N = array("N", l, *rows)
            N[i, *group, r] = rms_norm(R[i, *group, r], over=(*group, r), gain=w_R[*group, r])
            R = N
        total = sum_(R[i, *group, r] * W["out"][*group, r, b], over=(*group, r))
        y[i, b] = with_bias(total, b_.get("out"), b)
    return m
