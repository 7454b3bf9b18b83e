"""What are the equations of parts (small mixers, as all parts are) that read rows of other layers:
shared keys and values, and embeddings of each layer, as in Gemma 3n and Gemma 4?

Keys and values that several layers read are parts of their own, in the layer that makes them; each
layer attends to them with its own queries. Heads (width h, size K) have norms; no score is scaled.
"""

from __future__ import annotations

from costmodel.language.equations import Form, Mixer
from costmodel.language.indices import Index
from costmodel.language.macros.norms import rms_norm
from costmodel.language.macros.positions import rotary
from costmodel.language.macros.softmax import softmax
from costmodel.language.nodes import Array, Constant
from costmodel.language.writing import sum_
from costmodel.mixers.self_attention import Rotated, seen_rows, with_bias
from costmodel.networks.architectures.equations.streams import active_one, several
from costmodel.networks.parts import RMS_EPS, activated, noting
from costmodel.symbolic.polynomial import Poly

GEMMA = "transformers, Gemma4TextAttention, kv_sharing_modes"
PER_LAYER = "transformers, Gemma4TextModel, per-layer embeddings"


def _turned(f: Form, into: Array, of: Array, at: tuple[Index, ...], c: Index) -> None:
    """Write the equation of the rows of `into`: those of `of`, at the indices `at`, of which the
    last is their channel `c` and the first their position, with all channels of a head rotated."""
    (h,) = f.mixer.sizes("K")
    tables = Rotated(f.mixer, frozenset({"rotary"}), h)
    pair = f.index("p", 1, h / 2)
    cos, sin = tables.cos[at[0], c], tables.sin[at[0], c]
    into[at] = rotary(of[at], over=c, pairs=pair, cos=cos, sin=sin)


@noting
def keys(bias: bool = False) -> Mixer:
    """Make the part keys, a mixer of rows x (l, d) to keys y (l, g, h) that several layers read: a
    linear map (with a bias if `bias`), an RMS norm of each of g heads, and a rotary embedding."""
    m = Mixer("keys", title="Keys of several layers", source=GEMMA, group="attention")
    l, d, g, h = m.sizes("l d g K")
    x, y = m.input("x", l, d), m.output("y", l, g, h)
    W, w = m.parameter("W_K", d, g * h), m.parameter("w_K", h)
    b_K = m.parameter("b_K", g * h) if bias else None
    with m.form("direct") as f:
        i, j, c, a = (f.index(*of) for of in (("i", 1, l), ("j", 1, g), ("c", 1, h), ("a", 1, d)))
        K_p, K_n = f.array("K_p", l, g, h), f.array("K_n", l, g, h)
        column = (j - 1) * h + c
        K_p[i, j, c] = with_bias(sum_(x[i, a] * W[a, column], over=a), b_K, column)
        K_n[i, j, c] = rms_norm(K_p[i, j, c], over=c, gain=w[c])
        _turned(f, y, K_n, (i, j, c), c)
    return m


@noting
def values(bias: bool = False) -> Mixer:
    """Make the part values, a mixer of rows x (l, d) to values y (l, g, h) for several layers: a
    linear map (with a bias if `bias`), and an RMS norm without weights of each of g heads."""
    m = Mixer("values", title="Values of several layers", source=GEMMA, group="attention")
    l, d, g, h = m.sizes("l d g K")
    x, y = m.input("x", l, d), m.output("y", l, g, h)
    W = m.parameter("W_V", d, g * h)
    b_V = m.parameter("b_V", g * h) if bias else None
    with m.form("direct") as f:
        i, j, c, a = (f.index(*of) for of in (("i", 1, l), ("j", 1, g), ("c", 1, h), ("a", 1, d)))
        V_p, column = f.array("V_p", l, g, h), (j - 1) * h + c
        V_p[i, j, c] = with_bias(sum_(x[i, a] * W[a, column], over=a), b_V, column)
        y[i, j, c] = rms_norm(V_p[i, j, c], over=c)
    return m


@noting
def attention(window: bool = False, bias: bool = False) -> Mixer:
    """Make attention of rows x (l, d) to given keys K and values V (l, g, h), as a mixer to y (l,
    d): queries in n heads of h channels, each with a norm and a rotary embedding; n/g heads read
    one head of keys. A query attends to all tokens up to its own, or, if `window`, to the last w of
    these; scores are not scaled. `bias`: the maps to queries and to the output have a bias."""
    title = "Attention to keys and values of a layer"
    m = Mixer("attention-to-given-keys", title=title, source=GEMMA, group="attention")
    l, d, n, g, h = m.sizes("l d n g K")
    if window:
        m.sizes("w")
    x, K, V = m.input("x", l, d), m.input("K", l, g, h), m.input("V", l, g, h)
    y = m.output("y", l, d)
    wide = n / g * h
    W_Q, w_Q = m.parameter("W_Q", d, g, wide), m.parameter("w_Q", h)
    W_out = m.parameter("W_out", g, wide, d)
    b_Q = m.parameter("b_Q", g, wide) if bias else None
    b_out = m.parameter("b_out", d) if bias else None
    with m.form("direct") as f:
        i, j, o, c = (
            f.index(*of) for of in (("i", 1, l), ("j", 1, g), ("o", 1, n / g), ("c", 1, h))
        )
        a, b, r = f.index("a", 1, d), f.index("b", 1, d), f.index("r", 1, wide)
        k = seen_rows(f, frozenset({"window"} if window else ()), i, l).over
        Q_p, Q_n, Q = (f.array(name, l, g, n / g, h) for name in ("Q_p", "Q_n", "Q"))
        Z, A = (f.array(name, g, n / g, l, l) for name in "ZA")
        R, column = f.array("R", l, g, wide), (o - 1) * h + c
        Q_p[i, j, o, c] = with_bias(sum_(x[i, a] * W_Q[a, j, column], over=a), b_Q, (j, column))
        Q_n[i, j, o, c] = rms_norm(Q_p[i, j, o, c], over=c, gain=w_Q[c])
        _turned(f, Q, Q_n, (i, j, o, c), c)
        Z[j, o, i, k] = sum_(Q[i, j, o, c] * K[k, j, c], over=c)
        A[j, o, i, k] = softmax(Z[j, o, i, k], over=k)
        R[i, j, column] = sum_(A[j, o, i, k] * V[k, j, c], over=k)
        y[i, b] = with_bias(sum_(R[i, j, r] * W_out[j, r, b], over=(j, r)), b_out, b)
    return m


@noting
def joined() -> Mixer:
    """Make the part sum, as a mixer: rows x (l, d) plus rows z (l, d), both of parts of a layer."""
    m = Mixer("sum", title="Sum of two parts", group="part of a network")
    l, d = m.sizes("l d")
    x, z, y = m.input("x", l, d), m.input("z", l, d), m.output("y", l, d)
    with m.form("direct") as f:
        i, b = f.index("i", 1, l), f.index("b", 1, d)
        y[i, b] = x[i, b] + z[i, b]
    return m


@noting
def moved() -> Mixer:
    """Make the part moved rows, as a mixer: rows x (l, d) plus one row z (d), as HRM-Text's rows of
    L before their first run."""
    m = Mixer("moved-rows", title="Sum with a row", group="part of a network")
    l, d = m.sizes("l d")
    x, z, y = m.input("x", l, d), m.parameter("z", d), m.output("y", l, d)
    with m.form("direct") as f:
        i, b = f.index("i", 1, l), f.index("b", 1, d)
        y[i, b] = x[i, b] + z[b]
    return m


@noting
def layer_look_up() -> Mixer:
    """Make the part embedding of a layer, as a mixer: rows y (l, f) of a table (u, f) that the
    tokens (l) name, times sqrt(f)."""
    title = "Embedding of a layer, look-up"
    m = Mixer("layer-look-up", title=title, source=PER_LAYER, group="part of a network")
    l, u, width = m.sizes("l u f")
    tokens, y = m.input("tokens", l, below=u), m.output("y", l, width)
    table = m.parameter("E_layer", u, width)
    with m.form("direct") as f:
        i, c = f.index("i", 1, l), f.index("c", 1, width)
        y[i, c] = table[tokens[i], c] * Constant(width, 1)
    return m


@noting
def layer_input(activation: str, streams: bool = False) -> Mixer:
    """Make the part input of a layer, as a mixer of rows x (l, d), embedded tokens z (l, d) and
    rows q (l, f) of the layer's table, to y (l, d) = h W_down, where h (l, f) = act(x W_gate) *
    (norm(z W_P / sqrt(d)) + q) / sqrt(2). `activation`: act, a name in `ACTIVATIONS`. `streams`: x
    (l, S, d) has S streams; its stream A, times a weight for each channel, stands for x above."""
    m = Mixer("layer-input", title="Input of a layer", source=PER_LAYER, group="part of a network")
    l, d, width = m.sizes("l d f")
    shape = (l, several(m), d) if streams else (l, d)
    x, z, q = m.input("x", *shape), m.input("z", l, d), m.input("q", l, width)
    w_x, A = (m.parameter("w_x", d), active_one(m, shape[1])) if streams else (None, Poly())
    y, gain = m.output("y", l, d), m.parameter("gain_P", width)
    W_P, W_gate = m.parameter("W_P", d, width), m.parameter("W_gate", d, width)
    W_down = m.parameter("W_down", width, d)
    with m.form("direct") as f:
        i, b, c = f.index("i", 1, l), f.index("b", 1, d), f.index("c", 1, width)
        a = f.index("a", 1, d)
        P, N, S, G, H = (f.array(name, l, width) for name in ("P", "N", "S", "gate", "hidden"))
        P[i, c] = sum_(z[i, a] * W_P[a, c], over=a) / Constant(d, 1)
        N[i, c] = rms_norm(P[i, c], over=c, gain=gain[c], eps=RMS_EPS)
        S[i, c] = (N[i, c] + q[i, c]) / Constant(Poly.of(2), 1)
        read = x
        if w_x is not None:
            read = f.array("read", l, d)
            read[i, b] = x[i, A, b] * w_x[b]
        G[i, c] = activated(activation, sum_(read[i, a] * W_gate[a, c], over=a))
        H[i, c] = G[i, c] * S[i, c]
        y[i, b] = sum_(H[i, c] * W_down[c, b], over=c)
    return m
