"""What are the equations of attention whose queries and outputs pass experts, as in JetMoE?

A router scores E pairs of maps, of queries and of the output, for each token; the c best make c
sets of g heads, which all read the same g heads of keys and values.
"""

from __future__ import annotations

from costmodel.language.equations import Mixer
from costmodel.language.indices import min_
from costmodel.language.macros.positions import rotary
from costmodel.language.macros.softmax import scaled, softmax
from costmodel.language.writing import sum_
from costmodel.mixers.self_attention import Rotated, seen_rows
from costmodel.networks.experts import routed
from costmodel.networks.parts import noting

SOURCE = "Shen et al. 2024, arXiv 2404.07413, section 2.2; Zhang et al. 2022, arXiv 2210.05144"


@noting
def attention() -> Mixer:
    """Make the part mixture of attention heads, as a mixer of rows x (l, d) to y (l, d). A token's
    c of E experts, weighed by the softmax of their scores, have maps to queries, in g heads (width
    K), and to y; all share keys and values. Queries and keys have a rotary embedding, y a bias."""
    m = Mixer("expert-attention", title="Mixture of attention heads", source=SOURCE,
              group="attention")  # fmt: skip
    l, d, g, h = m.sizes("l d g K")
    E = m.size("E", "experts", 8)
    chosen = m.size("c", "experts that a token goes through", 2)
    x, y, W_R = m.input("x", l, d), m.output("y", l, d), m.parameter("W_R", d, E)
    W_Q, W_out = m.parameter("W_Q", E, d, g * h), m.parameter("W_out", E, g * h, d)
    W_K, W_V = m.parameter("W_K", d, g * h), m.parameter("W_V", d, g * h)
    offset, tables = m.parameter("b_out", d), Rotated(m, frozenset({"rotary"}), h)
    with m.form("direct") as f:
        i, j, c, a, b, z = (
            f.index(*of)
            for of in (
                ("i", 1, l), ("j", 1, g), ("c1", 1, h), ("a", 1, d), ("b", 1, d), ("z", 1, g * h)
            )
        )  # fmt: skip
        e, r = f.index("e", 1, E), f.index("r", 1, min_(chosen, E))
        p, k = f.index("p", 1, h / 2), seen_rows(f, frozenset(), i, l).over
        R, column = f.array("R", l, E), (j - 1) * h + c  # k: the rows up to i
        R[i, e] = sum_(x[i, a] * W_R[a, e], over=a)
        # at[i, r]: the number of the r-th expert of token i; w[i, r]: the weight of its output
        at, w = routed(f, "chosen-softmax", R, (i, e, r), "")
        Q_p, Q = f.array("Q_p", l, chosen, g, h), f.array("Q", l, chosen, g, h)
        K_p, K, V = (f.array(name, g, l, h) for name in ("K_p", "K", "V"))
        Q_p[i, r, j, c] = sum_(x[i, a] * W_Q[at[i, r], a, column], over=a)
        K_p[j, i, c] = sum_(x[i, a] * W_K[a, column], over=a)
        V[j, i, c] = sum_(x[i, a] * W_V[a, column], over=a)
        cos, sin = tables.cos[i, c], tables.sin[i, c]
        Q[i, r, j, c] = rotary(Q_p[i, r, j, c], over=c, pairs=p, cos=cos, sin=sin)
        K[j, i, c] = rotary(K_p[j, i, c], over=c, pairs=p, cos=cos, sin=sin)
        Z, A = (f.array(name, chosen, g, l, l) for name in "ZA")
        O, Y = f.array("O", l, chosen, g * h), f.array("Y", l, chosen, d)
        Z[r, j, i, k] = scaled(sum_(Q[i, r, j, c] * K[j, k, c], over=c), by=h)
        A[r, j, i, k] = softmax(Z[r, j, i, k], over=k)
        O[i, r, column] = sum_(A[r, j, i, k] * V[j, k, c], over=k)
        Y[i, r, b] = sum_(O[i, r, z] * W_out[at[i, r], z, b], over=z)
        weighed = f.array("weighed", l, chosen, d)
        weighed[i, r, b] = w[i, r] * Y[i, r, b]
        y[i, b] = sum_(weighed[i, r, b], over=r) + offset[b]
    return m
