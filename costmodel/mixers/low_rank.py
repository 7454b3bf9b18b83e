"""What are the equations of attention through fewer rows than tokens: Linformer, and efficient
attention?

Linformer, Wang et al. 2020, equation (7): keys and values of a head are projected along the
sequence by E and F, (r, l) each, before the scores; the paper's k is r. The linear cost holds for a
fixed r.

Efficient attention, Shen et al. 2018, sections 3.2 and 3.3, with softmax normalisation: of each
query over its channels, of each channel of the keys over the sequence. Keys then meet the values
first, and queries read their product. Biases and skip connection of the authors' code
(github.com/cmsflash/efficient-attention) are left out.

Projections, heads and, of Linformer, scale are those of attention, without biases. Neither is
causal: a row that queries read holds all tokens.
"""

from __future__ import annotations

from costmodel.language.equations import Mixer
from costmodel.language.macros.softmax import scaled, softmax
from costmodel.language.nodes import Array, Ref
from costmodel.language.options import Chosen, offering
from costmodel.language.writing import sum_

OPTIONS = {
    "headwise": "one E and one F for all heads (section 4, headwise sharing)",
    "key-value": "one E for keys and values of all heads (section 4, key-value sharing)",
}
APART = {("headwise", "key-value"): "'key-value' shares among all heads as it is"}


@offering(OPTIONS, APART)
def linformer(chosen: Chosen) -> Mixer:
    """Linformer with these projections shared."""
    m = Mixer(
        "linformer",
        title="Linformer",
        idea="self-attention to r mixtures of all keys and values",
        source="Wang et al. 2020, arXiv 2006.04768, equation (7)",
        group="linear",
    )
    l, d, n, h, r = m.sizes("l d n h r")
    x, y = m.input("x", l, d), m.output("y", l, d)
    W_Q, W_K, W_V, W_out = (m.parameter(f"W_{name}", d, d) for name in ("Q", "K", "V", "out"))
    own = () if chosen else (n,)
    E = m.parameter("E", *own, r, l)
    F = E if "key-value" in chosen else m.parameter("F", *own, r, l)
    with m.form("direct") as f:
        i, j, p = f.index("i", 1, l), f.index("j", 1, n), f.index("p", 1, r)
        a, b, c = f.index("a", 1, d), f.index("b", 1, d), f.index("c", 1, h)
        Q, K, V = f.array("Q", n, l, h), f.array("K", n, l, h), f.array("V", n, l, h)
        P_K, P_V = f.array("P_K", n, r, h), f.array("P_V", n, r, h)
        Z, A, R = f.array("Z", n, l, r), f.array("A", n, l, r), f.array("R", l, d)

        def entry(projection: Array) -> Ref:
            """What row i weighs in projected row p of head j."""
            return projection[j, p, i] if own else projection[p, i]

        for rows, W in ((Q, W_Q), (K, W_K), (V, W_V)):
            rows[j, i, c] = sum_(x[i, a] * W[a, (j - 1) * h + c], over=a)
        P_K[j, p, c] = sum_(entry(E) * K[j, i, c], over=i)
        P_V[j, p, c] = sum_(entry(F) * V[j, i, c], over=i)
        Z[j, i, p] = scaled(sum_(Q[j, i, c] * P_K[j, p, c], over=c), by=h)
        A[j, i, p] = softmax(Z[j, i, p], over=p)
        R[i, (j - 1) * h + c] = sum_(A[j, i, p] * P_V[j, p, c], over=p)
        y[i, b] = sum_(R[i, a] * W_out[a, b], over=a)
    return m


def normalised_twice() -> Mixer:
    """Efficient attention, with its one form."""
    m = Mixer(
        "efficient-attention",
        title="Efficient attention",
        idea="softmax of q over channels, of k over tokens: q (k v)",
        source="Shen et al. 2018, arXiv 1812.01243, equations (3)-(5)",
        group="linear",
    )
    l, d, n, h = m.sizes("l d n h")
    x, y = m.input("x", l, d), m.output("y", l, d)
    W_Q, W_K, W_V, W_out = (m.parameter(f"W_{name}", d, d) for name in ("Q", "K", "V", "out"))
    with m.form("direct") as f:
        i, j, p = f.index("i", 1, l), f.index("j", 1, n), f.index("p", 1, h)
        a, b, c = f.index("a", 1, d), f.index("b", 1, d), f.index("c", 1, h)
        Q, K, V = f.array("Q", n, l, h), f.array("K", n, l, h), f.array("V", n, l, h)
        S_q = f.array("S_q", n, l, h, latex=r"\rho_q(Q)")
        S_k = f.array("S_k", n, l, h, latex=r"\rho_k(K)")
        G, R = f.array("G", n, h, h), f.array("R", l, d)
        for rows, W in ((Q, W_Q), (K, W_K), (V, W_V)):
            rows[j, i, c] = sum_(x[i, a] * W[a, (j - 1) * h + c], over=a)
        S_q[j, i, p] = softmax(Q[j, i, p], over=p)
        S_k[j, i, p] = softmax(K[j, i, p], over=i)
        G[j, p, c] = sum_(S_k[j, i, p] * V[j, i, c], over=i)
        R[i, (j - 1) * h + c] = sum_(S_q[j, i, p] * G[j, p, c], over=p)
        y[i, b] = sum_(R[i, a] * W_out[a, b], over=a)
    return m


efficient_attention = normalised_twice()
