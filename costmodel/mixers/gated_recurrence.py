"""What are the equations of LFM2's short gated convolution and of the block around the RG-LRU?

LFM2: a row is mapped to B, C and X; a causal depthwise convolution of k taps reads B X, and its
result times C is mapped to the output. There is no further activation.

RG-LRU, in the recurrent block of Griffin and RecurrentGemma: a row is mapped to X and Z, both as
wide as the n blocks of h channels, which is d unless braces give h. A short convolution of X gives
U. Two gates of U, the recurrence gate R and the input gate I, have matrices of n blocks. Then

    A = exp(-8 R softplus(Lambda)),  H_i = A H_(i-1) + sqrt(1 - A^2) I U,

and H times gelu(Z) is mapped to the output. The first row is H = I U, as the shipped code has it:
no row before, and no root. As there, A^2 is an exponential of its own, and gelu is its
approximation by tanh. `recurrent` computes H row by row, `scan` by a parallel scan, as
lru_associative_scan of recurrentgemma does.
"""

from __future__ import annotations

from costmodel.language.equations import Form, Mixer
from costmodel.language.macros.gates import gelu_tanh
from costmodel.language.macros.positions import short_convolution
from costmodel.language.nodes import Array, Node
from costmodel.language.options import Chosen, offering
from costmodel.language.writing import exp, function, scan, sum_

CORE = {"core": "the recurrence alone: bare projections, no convolution, no gate on the output"}


@offering({"bias": "biases on all maps and on the convolution"})
def short_gated_convolution(chosen: Chosen) -> Mixer:
    """The mixer of LFM2: W_out maps C * V, V a short convolution of B * X, maps B, C, X of x."""
    m = Mixer(
        "lfm2",
        title="LFM2 short convolution",
        idea="a convolution of k taps between two products of maps",
        source="Amini et al. 2025, arXiv 2511.23404, section 2; transformers Lfm2ShortConv",
        group="convolution",
    )
    l, d = m.sizes("l d")
    k = m.size("k", "kernel width", 3)
    x, y = m.input("x", l, d), m.output("y", l, d)
    maps = {name: m.parameter(f"W_{name}", d, d) for name in "BCX"}
    w, W_out = m.parameter("w", k, d), m.parameter("W_out", d, d)
    biases = [f"b_{name}" for name in ("B", "C", "X", "w", "out")]
    b_ = {name: m.parameter(name, d) for name in (biases if "bias" in chosen else ())}
    with m.form("direct") as f:
        i, a, b = f.index("i", 1, l), f.index("a", 1, d), f.index("b", 1, d)
        s = f.index("s", 1, k)

        def mapped(of: Array, W: Array, bias: str) -> Node:
            """Row i of an array times W, plus the bias if the mixer has biases."""
            product = sum_(of[i, a] * W[a, b], over=a)
            return product + b_[bias][b] if b_ else product

        B, C, X = (f.array(name, l, d) for name in maps)
        for (name, W), rows in zip(maps.items(), (B, C, X), strict=True):
            rows[i, b] = mapped(x, W, f"b_{name}")
        U, V, G = f.array("U", l, d), f.array("V", l, d), f.array("G", l, d)
        U[i, b] = B[i, b] * X[i, b]
        offset = b_["b_w"][b] if b_ else None
        V[i, b] = short_convolution(U[i, b], w[s, b], along=i, taps=s, bias=offset)
        G[i, b] = C[i, b] * V[i, b]
        y[i, b] = mapped(G, W_out, "b_out")
    return m


@offering(CORE)
def rg_lru(chosen: Chosen) -> Mixer:
    """The mixer of the block around the RG-LRU, a gated recurrence of each channel: a map and short
    convolution before, times the gelu of a second map after; with `core` only maps around."""
    m = Mixer(
        "rg-lru",
        title="RG-LRU",
        idea="a carried row decays by gates, each channel by itself",
        source="De et al. 2024, arXiv 2402.19427, section 2.4; transformers RecurrentGemma",
        group="recurrent",
    )
    l, d, n, h = m.sizes("l d n h")  # tokens, channels, heads, channels a head
    m.input("x", l, d)
    y, whole, width = m.output("y", l, d), "core" not in chosen, n * h
    m.parameter("W_X", d, width)
    if whole:
        m.parameter("b_X", width)
        m.parameter("W_Z", d, width)
        m.parameter("b_Z", width)
        m.parameter("w", m.sizes("k")[0], width)
        m.parameter("b_w", width)
    for gate in "RI":
        m.parameter(f"W_{gate}", n, h, h)
        m.parameter(f"b_{gate}", n, h)
    m.parameter("Lambda", width, latex=r"\Lambda")
    W_out = m.parameter("W_out", width, d)
    if whole:
        m.parameter("b_out", d)
    for form in ("recurrent", "scan"):
        with m.form(form) as f:
            i, e, b = f.index("i", 1, l), f.index("e", 1, width), f.index("b", 1, d)
            read = _unit(f, _convolved(f) if whole else _mapped(f, "X"))  # rows of the RG-LRU
            if whole:
                Z, Y, G = _mapped(f, "Z"), f.array("Y", l, width), f.array("G", l, width)
                Y[i, e] = gelu_tanh(Z[i, e])
                G[i, e] = read[i, e] * Y[i, e]
                y[i, b] = sum_(G[i, e] * W_out[e, b], over=e) + m.arrays["b_out"][b]
            else:
                y[i, b] = sum_(read[i, e] * W_out[e, b], over=e)
    return m


def _mapped(f: Form, name: str) -> Array:
    """Define and return `name` (l, n h): x W_name, plus b_name if the mixer has this bias."""
    x, W = f.mixer.role("input"), f.mixer.arrays[f"W_{name}"]
    (l, d), width = x.shape, W.shape[1]
    i, a, e = f.index("i", 1, l), f.index("a", 1, d), f.index("e", 1, width)
    rows, bias = f.array(name, l, width), f.mixer.arrays.get(f"b_{name}")
    value = sum_(x[i, a] * W[a, e], over=a)
    rows[i, e] = value if bias is None else value + bias[e]
    return rows


def _convolved(f: Form) -> Array:
    """Define and return U (l, n h), the short convolution of x W_X with k taps."""
    rows, w, b_w = _mapped(f, "X"), f.mixer.arrays["w"], f.mixer.arrays["b_w"]
    (l, width), k = rows.shape, w.shape[0]
    i, e, s = f.index("i", 1, l), f.index("e", 1, width), f.index("s", 1, k)
    U = f.array("U", l, width)
    U[i, e] = short_convolution(rows[i, e], w[s, e], along=i, taps=s, bias=b_w[e])
    return U


def _unit(f: Form, U: Array) -> Array:
    """Write the equations of the RG-LRU that reads U (l, n h), and return its rows H (l, n h): H_i
    = A_i H_{i-1} + N_i. R and I are the gates, T and A the decay's logarithm and value, Q its
    square, N what a row adds; `later` are the rows but the first, which have a decay."""
    m, (l, width), (n, h) = f.mixer, U.shape, f.mixer.arrays["b_R"].shape
    i, later, e = f.index("i", 1, l), f.index("i2", 2, l), f.index("e", 1, width)
    j, p, c = f.index("j", 1, n), f.index("p", 1, h), f.index("c", 1, h)
    R, I = f.array("R", l, width), f.array("I", l, width)
    for gate, row in ((R, later), (I, i)):
        W, bias = m.arrays[f"W_{gate.name}"], m.arrays[f"b_{gate.name}"]
        inside = sum_(U[row, (j - 1) * h + p] * W[j, p, c], over=p) + bias[j, c]
        gate[row, (j - 1) * h + c] = function("sigmoid", inside)
    L, (T, A, Q, N, H) = f.array("L", width), (f.array(name, l, width) for name in "TAQNH")
    L[e] = -8 * function("softplus", m.arrays["Lambda"][e])
    T[later, e] = R[later, e] * L[e]
    A[later, e] = exp(T[later, e])
    Q[later, e] = exp(2 * T[later, e])
    N[1, e] = I[1, e] * U[1, e]
    N[later, e] = function("sqrt", 1 - Q[later, e]) * (I[later, e] * U[later, e])
    if f.name == "scan":
        row = f.index("s2", 1, l)
        A[1, e] = 0
        H[i, e] = scan(A[row, e], N[row, e], over=row)
    else:
        H[1, e] = N[1, e]
        H[later, e] = A[later, e] * H[later - 1, e] + N[later, e]
    return H
