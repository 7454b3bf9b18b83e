"""What are the equations of attention to blocks that are sorted first: Sinkhorn attention?

Sparse Sinkhorn attention, Tay et al. 2020. Rows lie in blocks of B. A sorting network reads the sum
of each block; the exponentials of its scores are divided by the sums of their rows, then by those
of their columns, T rounds of both, which makes them nearly a permutation of blocks. By it keys and
values are mixed, row s of a block with the rows s of all. A token attends to its own block and,
apart from it, to the one that is sorted to its place, and both results are added.

Read from the code of Tay et al. 2021 (arXiv 2011.04006, models/sinkhorn_transformer): the network
is one linear layer of a head's summed keys, shared by all heads, and each of the two attentions has
a softmax of its own. Biases, the noise added in training and a temperature are left out. There B
divides l; here the rows behind the last whole block attend to themselves alone, and are not sorted.
"""

from __future__ import annotations

from costmodel.language.equations import Mixer
from costmodel.language.indices import min_
from costmodel.language.macros.softmax import scaled, softmax
from costmodel.language.writing import exp, sum_


def sorted_blocks() -> Mixer:
    """Sinkhorn attention, its rounds by exponentials as the paper has them."""
    m = Mixer(
        "sinkhorn",
        title="Sinkhorn attention",
        idea="self-attention to the own block and to a sorted one",
        source="Tay et al. 2020, arXiv 2002.11296, section 3",
        group="attention",
    )
    l, d, n, h, B, T = m.sizes("l d n h B T")
    whole = l // B
    x, y = m.input("x", l, d), m.output("y", l, d)
    W_Q, W_K, W_V, W_out = (m.parameter(f"W_{name}", d, d) for name in ("Q", "K", "V", "out"))
    W_S = m.parameter("W_S", h, whole)
    with m.form("direct") as f:
        i, j, c = f.index("i", 1, l), f.index("j", 1, n), f.index("c", 1, h)
        a, b = f.index("a", 1, d), f.index("b", 1, d)
        p, q, u = (f.index(name, 1, whole) for name in "pqu")
        e, s, o = f.index("e", 1, B), f.index("s", 1, B), f.index("o", 2, T + 1)
        g, z = f.index("g", 1, whole + 1), f.index("z", whole * B + 1, l)
        r, k = (f.index(name, 1, min_(B, l - (g - 1) * B)) for name in "rk")
        first, own = (p - 1) * B, (g - 1) * B

        Q, K, V = (f.array(name, n, l, h) for name in "QKV")
        for rows, W in ((Q, W_Q), (K, W_K), (V, W_V)):
            rows[j, i, c] = sum_(x[i, a] * W[a, (j - 1) * h + c], over=a)

        X, L = f.array("X", n, whole, h), f.array("L", n, whole, whole)
        P, S = (f.array(name, T + 1, n, whole, whole) for name in "PS")
        N_r, N_c = (f.array(f"N_{name}", T + 1, n, whole) for name in "rc")
        X[j, p, c] = sum_(K[j, first + e, c], over=e)
        L[j, p, q] = sum_(X[j, p, c] * W_S[c, q], over=c)
        S[1, j, p, q] = exp(L[j, p, q])
        N_r[o, j, p] = sum_(S[o - 1, j, p, u], over=u)
        P[o, j, p, q] = S[o - 1, j, p, q] / N_r[o, j, p]
        N_c[o, j, q] = sum_(P[o, j, u, q], over=u)
        S[o, j, p, q] = P[o, j, p, q] / N_c[o, j, q]

        K_S, V_S = (f.array(f"{name}_S", n, whole, B, h) for name in "KV")
        Z_S, A_S = (f.array(f"{name}_S", n, whole, B, B) for name in "ZA")
        Z, A = (f.array(name, n, whole + 1, B, B) for name in "ZA")
        O, R = f.array("O", l, d), f.array("R", l, d)
        for rows, moved in ((K, K_S), (V, V_S)):
            moved[j, q, e, c] = sum_(S[T + 1, j, p, q] * rows[j, first + e, c], over=p)
        Z_S[j, p, e, s] = scaled(sum_(Q[j, first + e, c] * K_S[j, p, s, c], over=c), by=h)
        A_S[j, p, e, s] = softmax(Z_S[j, p, e, s], over=s)
        Z[j, g, r, k] = scaled(sum_(Q[j, own + r, c] * K[j, own + k, c], over=c), by=h)
        A[j, g, r, k] = softmax(Z[j, g, r, k], over=k)

        channel = (j - 1) * h + c
        O[own + r, channel] = sum_(A[j, g, r, k] * V[j, own + k, c], over=k)
        read = sum_(A_S[j, p, e, s] * V_S[j, p, s, c], over=s)
        R[first + e, channel] = O[first + e, channel] + read
        R[z, b] = O[z, b]
        y[i, b] = sum_(R[i, a] * W_out[a, b], over=a)
    return m


sinkhorn = sorted_blocks()
