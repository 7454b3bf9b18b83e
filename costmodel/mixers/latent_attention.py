"""What are the equations of multi-head latent attention (MLA)?

DeepSeek-V2 and DeepSeek-V3: a token keeps one latent row C of c channels, from which the keys and
values of all n heads are made, and one key K_R of R channels that all heads share and that is
rotated by the token's position. Queries have K channels for the keys of the head and R channels for
the shared key; the scale is 1/sqrt(K + R).

Three forms compute this function. `expanded` makes keys and values of a token once, as printed, and
keeps them for all heads, K_R once (transformers 4 kept K_R again with the keys of each head).
`absorbed` multiplies queries by W_UK and sums of latent rows by W_UV, so that latent rows are all
that later tokens read (V2, section 2.1.2). `re-expanded` keeps latent rows too, and makes keys and
values of all t rows again for each new token, as transformers 5 does: its keys K_C[j,i,k,p] have
the row i of the query as an axis, so that they belong to token i. It describes the step of a token;
over whole sequences nobody makes the keys of a row more than once.

As in the authors' code: no biases, but by an option; norms of latent rows (V2, section 3.1.2), with
an epsilon of 1e-6; pairs of neighbouring channels are rotated, by angles with base 10000. YaRN,
which DeepSeek-V3 uses for long contexts, has other angles and multiplies the scale by a constant:
operations stay.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

from costmodel.language.equations import Form, Mixer
from costmodel.language.indices import Index
from costmodel.language.macros.norms import rms_norm
from costmodel.language.macros.positions import rotary
from costmodel.language.macros.softmax import scaled, softmax
from costmodel.language.nodes import Array, Node
from costmodel.language.options import Chosen, offering
from costmodel.language.writing import function, sum_
from costmodel.symbolic.polynomial import Poly

V2 = "DeepSeek-AI 2024, arXiv 2405.04434, eqs. (9)-(19), sections 2.1.2 and 3.1.2"
V3 = "DeepSeek-AI 2024, arXiv 2412.19437, eqs. (1)-(11)"
EPS = 1e-6
BASE = 10_000.0

OPTIONS: Mapping[str, str] = {
    "query-compression": "queries from a latent row of r channels with a norm of its own",
    "nope": "the R channels of queries and of the shared key are not rotated",
    "no-shared-key": "no R channels: scores from the keys of each head alone, not rotated",
    "bias": "b_DQ, b_DKV, b_KR and b_O, biases of latent rows, of the shared key and of the output",
    "head-gate": "heads times sigmoid(x W_G), a number per head, before the output",
}
SOURCES: Mapping[str, str] = {
    "query-compression": "compressed queries: DeepSeek-V2's eqs. (12)-(13)",
    "nope": "no rotation: Kimi Team 2025, Kimi Linear, arXiv 2510.26692",
    "no-shared-key": "no shared key: transformers 5.23, models/glm5_next, qk_rope_head_dim = 0",
    "bias": "biases: transformers, DeepseekV3Attention, attention_bias",
    "head-gate": "gate: Qiu et al. 2025, arXiv 2505.06708, headwise, after the heads",
}
APART = {("nope", "no-shared-key"): "'no-shared-key' leaves out the channels that 'nope' keeps"}


def angle(i: int, s: int, sizes: Mapping[str, int]) -> float:
    """The angle of channels 2p-1 and 2p of row i."""
    return (i - 1) * float(BASE ** (-2 * ((s - 1) // 2) / sizes["R"]))


def latent(f: Form, name: str, width: Poly, index: str) -> Array:
    """Define and return the latent rows C_name (l, width), the RMS norm of D_name = x W_Dname, plus
    b_Dname if the mixer has this bias; `index`: the name of the index of their channels."""
    x, arrays = f.mixer.role("input"), f.mixer.arrays
    l, d = x.shape
    i, a, e = f.index("i", 1, l), f.index("a", 1, d), f.index(index, 1, width)
    D, C = f.array(f"D_{name}", l, width), f.array(f"C_{name}", l, width)
    D[i, e] = with_bias(f, f"b_D{name}", sum_(x[i, a] * arrays[f"W_D{name}"][a, e], over=a), e)
    C[i, e] = rms_norm(D[i, e], e, gain=arrays[f"gain_{name}"][e], eps=EPS)
    return C


def with_bias(f: Form, name: str, product: Node, at: Index) -> Node:
    """The value of a linear map, plus the bias `name` at channel `at` if the mixer has this
    bias."""
    bias = f.mixer.arrays.get(name)
    return product if bias is None else product + bias[at]


def by_position(f: Form, name: str, at: tuple[Index, ...], value: Node) -> None:
    """Write the equation of the array `name` at the indices `at`, of which the last two are row and
    channel: `value`, rotated by the position of the row if the mixer has tables of cosines."""
    shape, arrays = [index.upper[0] for index in at], f.mixer.arrays
    if "cos" not in arrays:
        f.array(name, *shape)[*at] = value
        return
    raw = f.array(f"U_{name[0]}", *shape)
    raw[*at] = value
    i, s = at[-2:]
    f.array(name, *shape)[*at] = rotary(
        raw[*at],
        over=s,
        pairs=f.index("g", 1, shape[-1] / 2),
        cos=arrays["cos"][i, s],
        sin=arrays["sin"][i, s],
        layout="interleaved",
    )


Attended = tuple[Node, Callable[[Array], Node]]
"""The product of query i and key k of head j over the head's own channels; a function that gives,
from the attention weights A (n, l, l), channel v of head j in row i."""


def expanded(f: Form, *, again: bool = False) -> Attended:
    """Write the equations of keys K_C (n, l, K) and values V_C (n, l, V) made from the latent rows,
    for n heads; with `again` (n, l, l, K) and (n, l, l, V), made again for each row i that reads
    them. Returns the score of head j, rows i and k, and a function from attention weights to sums
    of values."""
    (n, l, K, V, _), (j, i, k, p, v, e) = _around(f)
    Q, C, W_UK, W_UV = f.arrays["Q_C"], f.arrays["C_KV"], *_expanding(f)
    made, read = ((i, k), (i, k)) if again else ((i,), (k,))
    rows = (l,) * len(made)
    K_C, V_C = f.array("K_C", n, *rows, K), f.array("V_C", n, *rows, V)
    K_C[j, *made, p] = sum_(C[made[-1], e] * W_UK[e, (j - 1) * K + p], over=e)
    V_C[j, *made, v] = sum_(C[made[-1], e] * W_UV[e, (j - 1) * V + v], over=e)
    scores = sum_(Q[j, i, p] * K_C[j, *read, p], over=p)
    return scores, lambda A: sum_(A[j, i, k] * V_C[j, *read, v], over=k)


def absorbed(f: Form) -> Attended:
    """Attention to the latent rows themselves: write the equation of Q_A (n, l, c), the queries
    times W_UK. Returns the score of head j, rows i and k, and a function from attention weights to
    the sums of values, which defines sums of latent rows, M (n, l, c), and multiplies by W_UV."""
    (n, l, K, V, c), (j, i, k, p, v, e) = _around(f)
    Q, C, W_UK, W_UV = f.arrays["Q_C"], f.arrays["C_KV"], *_expanding(f)
    Q_A, M = f.array("Q_A", n, l, c), f.array("M", n, l, c)
    Q_A[j, i, e] = sum_(Q[j, i, p] * W_UK[e, (j - 1) * K + p], over=p)

    def read(A: Array) -> Node:
        M[j, i, e] = sum_(A[j, i, k] * C[k, e], over=k)
        return sum_(M[j, i, e] * W_UV[e, (j - 1) * V + v], over=e)

    return sum_(Q_A[j, i, e] * C[k, e], over=e), read


def _around(f: Form) -> tuple[tuple[Poly, ...], tuple[Index, ...]]:
    """(sizes, indices): the numbers of heads n and rows l and the widths K, V, c of a key, a value
    and a latent row; the indices of head j, rows i and k <= i, channels p of a key, v of a value, e
    of a latent row."""
    n, l, K, V, c = sizes = f.mixer.sizes("n l K V c")
    j, i = f.index("j", 1, n), f.index("i", 1, l)
    inner = (f.index(name, 1, width) for name, width in (("p", K), ("v", V), ("e", c)))
    return sizes, (j, i, f.index("k", 1, i), *inner)


def _expanding(f: Form) -> tuple[Array, Array]:
    """W_UK (c, n*K) and W_UV (c, n*V), which make keys and values from a latent row."""
    return f.mixer.arrays["W_UK"], f.mixer.arrays["W_UV"]


FORMS: Mapping[str, Callable[[Form], Attended]] = {
    "expanded": expanded,
    "absorbed": absorbed,
    "re-expanded": partial(expanded, again=True),
}


@offering(OPTIONS, APART)
def mla(chosen: Chosen) -> Mixer:
    """The mixer of multi-head latent attention: keys and values of all heads are maps of one narrow
    row a token, c wide; a further key of R rotated channels is shared by the heads. Forms:
    `expanded` (keys and values once a row), `re-expanded` (again for each query), `absorbed`
    (neither: the maps multiply queries and sums). Weights are (in, out)."""
    m = Mixer(
        "mla",
        title="Multi-head latent attention",
        idea="attention to heads made from one narrow row a token",
        source="; ".join([V2, V3, *(SOURCES[option] for option in OPTIONS if option in chosen)]),
        group="attention",
    )
    shared, compressed = "no-shared-key" not in chosen, "query-compression" in chosen
    l, d, n, K, V = m.sizes("l d n K V")  # tokens, channels, heads, key and value width of a head
    c = m.size("c", "width of the latent row of keys and values", 64)
    x, y = m.input("x", l, d), m.output("y", l, d)
    wide = d
    if compressed:
        wide = m.size("r", "width of the latent row of queries", 32)
        m.parameter("W_DQ", d, wide)
        if "bias" in chosen:
            m.parameter("b_DQ", wide)
        m.parameter("gain_Q", wide)
    W_UQ = m.parameter("W_UQ", wide, n * K)
    if shared:
        R = m.size("R", "width of the rotated key of all heads", 8)
        W_QR, W_KR = m.parameter("W_QR", wide, n * R), m.parameter("W_KR", d, R)
        if "nope" not in chosen:
            m.buffer("cos", l, R, value=lambda i, s, sizes: math.cos(angle(i, s, sizes)))
            m.buffer("sin", l, R, value=lambda i, s, sizes: math.sin(angle(i, s, sizes)))
    m.parameter("W_DKV", d, c)
    m.parameter("gain_KV", c)
    m.parameter("W_UK", c, n * K)
    m.parameter("W_UV", c, n * V)
    W_G = m.parameter("W_G", d, n) if "head-gate" in chosen else None
    W_O = m.parameter("W_O", n * V, d)
    if "bias" in chosen:
        biased = {"b_DKV": c, **({"b_KR": R} if shared else {}), "b_O": d}
        for name, width in biased.items():
            m.parameter(name, width)

    for name, attended in FORMS.items():
        with m.form(name) as f:
            _, (j, i, k, p, v, _) = _around(f)
            a, b = f.index("a", 1, d), f.index("b", 1, d)
            row = latent(f, "Q", wide, "o") if compressed else x  # what queries are maps of
            o = f.indices["o"] if compressed else a
            Q_C = f.array("Q_C", n, l, K)
            Q_C[j, i, p] = sum_(row[i, o] * W_UQ[o, (j - 1) * K + p], over=o)
            latent(f, "KV", c, "e")
            scores, read = attended(f)  # q k of a pair; function: weights -> what a row reads
            if shared:
                s = f.index("s", 1, R)
                turned = sum_(row[i, o] * W_QR[o, (j - 1) * R + s], over=o)
                by_position(f, "Q_R", (j, i, s), turned)
                key = with_bias(f, "b_KR", sum_(x[i, a] * W_KR[a, s], over=a), s)
                by_position(f, "K_R", (i, s), key)
                Q_R, K_R = f.arrays["Q_R"], f.arrays["K_R"]
                scores = scores + sum_(Q_R[j, i, s] * K_R[k, s], over=s)
            Z, A, O = (
                f.array(name, *shape)
                for name, shape in (("Z", (n, l, l)), ("A", (n, l, l)), ("O", (l, n * V)))
            )
            Z[j, i, k] = scaled(scores, by=K + R if shared else K)
            A[j, i, k] = softmax(Z[j, i, k], over=k)
            O[i, (j - 1) * V + v], out = read(A), O
            if W_G is not None:
                G, out = f.array("G", n, l), f.array("GO", l, n * V)  # gates, gated heads
                G[j, i] = function("sigmoid", sum_(x[i, a] * W_G[a, j], over=a))
                out[i, (j - 1) * V + v] = G[j, i] * O[i, (j - 1) * V + v]
            w = f.index("w", 1, n * V)
            y[i, b] = with_bias(f, "b_O", sum_(out[i, w] * W_O[w, b], over=w), b)
    return m
