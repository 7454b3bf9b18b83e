"""What are the equations of Fastformer's additive attention?

Wu et al. 2021. Additive attention sums the queries into one global query q; the keys, multiplied by
q entry by entry, are summed into one global key k in the same way; the values, multiplied by k,
pass a linear layer, and the queries are added. Not causal: both softmaxes run over the sequence.

The paper prints one head and leaves details open. Here they follow the authors' code,
github.com/wuch15/Fastformer, class FastSelfAttention:
- values and queries share one projection (the paper's parameter sharing): there is no W_V;
- each of the five linear layers has a bias;
- the score of a head reads all d channels, w_q and w_k being (d, n), and is divided by sqrt(h);
- a head's weights sum its own h channels; one d x d layer follows the concatenated heads.
What follows this class in the code (a dense layer, a residual and a normalisation, as in BERT) and
the mask of padded tokens belong to the network and are not here.
"""

from __future__ import annotations

from costmodel.language.equations import Mixer
from costmodel.language.macros.softmax import scaled, softmax
from costmodel.language.writing import sum_


def additive_pooling() -> Mixer:
    """Fastformer, with its one form."""
    m = Mixer(
        "fastformer",
        title="Fastformer",
        idea="one query and one key for all tokens, by additive attention",
        source="Wu et al. 2021, arXiv 2108.09084, section 3",
        group="linear",
    )
    l, d, n, h = m.sizes("l d n h")
    x, y = m.input("x", l, d), m.output("y", l, d)
    W_Q, W_K, W_U = (m.parameter(name, d, d) for name in ("W_Q", "W_K", "W_U"))
    b_Q, b_K, b_U = (m.parameter(name, d) for name in ("b_Q", "b_K", "b_U"))
    w_q, w_k = (m.parameter(name, d, n) for name in ("w_q", "w_k"))
    b_q, b_k = (m.parameter(name, n) for name in ("b_q", "b_k"))

    with m.form("direct") as f:
        i, j = f.index("i", 1, l), f.index("j", 1, n)
        a, b, c = f.index("a", 1, d), f.index("b", 1, d), f.index("c", 1, h)

        Q, K = f.array("Q", l, d), f.array("K", l, d)
        S_q, A_q = f.array("S_q", n, l), f.array("A_q", n, l, latex=r"\alpha")
        S_k, A_k = f.array("S_k", n, l), f.array("A_k", n, l, latex=r"\beta")
        q, k = f.array("q", d), f.array("k", d)
        P, U = f.array("P", l, d), f.array("U", l, d)

        Q[i, b] = sum_(x[i, a] * W_Q[a, b], over=a) + b_Q[b]
        K[i, b] = sum_(x[i, a] * W_K[a, b], over=a) + b_K[b]
        S_q[j, i] = scaled(sum_(Q[i, a] * w_q[a, j], over=a) + b_q[j], by=h)
        A_q[j, i] = softmax(S_q[j, i], over=i)
        q[(j - 1) * h + c] = sum_(A_q[j, i] * Q[i, (j - 1) * h + c], over=i)
        P[i, b] = q[b] * K[i, b]
        S_k[j, i] = scaled(sum_(P[i, a] * w_k[a, j], over=a) + b_k[j], by=h)
        A_k[j, i] = softmax(S_k[j, i], over=i)
        k[(j - 1) * h + c] = sum_(A_k[j, i] * P[i, (j - 1) * h + c], over=i)
        U[i, b] = k[b] * Q[i, b]
        y[i, b] = sum_(U[i, a] * W_U[a, b], over=a) + b_U[b] + Q[i, b]
    return m


fastformer = additive_pooling()
