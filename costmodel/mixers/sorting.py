"""What are the equations of attention to rows that are sorted first: Sinkhorn attention, Reformer?

Sparse Sinkhorn attention, Tay et al. 2020. The sequence is cut into blocks of B rows. A linear
layer scores pairs of blocks, from the sum of each block's keys. Exponentials of the scores are
normalised by row, then by column, in T rounds, which gives nearly a permutation matrix of blocks.
The matrix mixes keys and values over blocks, row s of a block with rows s of the others. A token
attends to its own block and, separately, to the mixed block in the same place; results are added.

Taken from the code of Tay et al. 2021 (arXiv 2011.04006, models/sinkhorn_transformer): all heads
share the linear layer, and each of the two attentions has its own softmax. Biases, training noise
and a temperature are left out. There B divides l; here, rows after the last whole block attend
among themselves only, without sorting.

Reformer, Kitaev et al. 2020: attention by locality-sensitive hashing, one round. A row's key is its
query, normalised to length 1. Its bucket is the argmax of 2m numbers: the products of its query
with m random directions, shared by all heads, and their negatives. Rows are sorted by bucket (a
stable sort) and cut into chunks of C; a row attends to its chunk and the chunk before, and results
return to the sequence's order. The data decide which rows share a chunk, but not how many pairs
there are. As in the code of Tay et al. 2021 (models/reformer), no pair is masked: neither later
rows, nor other buckets, nor the row itself. W_out, absent from that code, is the paper's. Sorts are
counted as bitonic sorting networks.
"""

from __future__ import annotations

from costmodel.language.equations import Mixer
from costmodel.language.indices import min_
from costmodel.language.macros.norms import l2_norm
from costmodel.language.macros.softmax import scaled, softmax
from costmodel.language.writing import argmax, exp, sort, sum_


def sorted_blocks() -> Mixer:
    """The mixer of Sinkhorn attention: a row attends to its block of B rows and, apart, to a
    mixture (K_S, V_S) of the complete blocks. Its weights S are exponentials of a map of the sums X
    of the blocks' keys, with rows (P), then columns (S) divided by their sums, in T rounds."""
    m = Mixer(
        "sinkhorn",
        title="Sinkhorn attention",
        idea="self-attention to the own block and to a sorted one",
        source="Tay et al. 2020, arXiv 2002.11296, section 3",
        group="attention",
    )
    l, d, n, h, B, T = m.sizes("l d n h B T")  # tokens, channels, heads, head width, block, rounds
    whole = l // B
    x, y = m.input("x", l, d), m.output("y", l, d)
    W_Q, W_K, W_V, W_out = (m.parameter(f"W_{name}", d, d) for name in ("Q", "K", "V", "out"))
    W_S = m.parameter("W_S", h, whole)
    with m.form("direct") as f:
        i, j, c = f.index("i", 1, l), f.index("j", 1, n), f.index("c", 1, h)
        a, b = f.index("a", 1, d), f.index("b", 1, d)
        # p, q, u: complete blocks; g: the short last one too; e, s, r, k: rows in one; o: rounds
        p, q, u = (f.index(name, 1, whole) for name in "pqu")
        e, s, o = f.index("e", 1, B), f.index("s", 1, B), f.index("o", 2, T + 1)
        g, z = f.index("g", 1, whole + 1), f.index("z", whole * B + 1, l)  # z: rows of the last one
        r, k = (f.index(name, 1, min_(B, l - (g - 1) * B)) for name in "rk")
        first, own = (p - 1) * B, (g - 1) * B  # rows before block p, before block g

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


def sorted_rows() -> Mixer:
    """The mixer of Reformer's attention with one round of hashing: rows are sorted by the bucket g,
    the best of 2m directions (`at`, undone by `back`), and a row attends to its chunk of C sorted
    rows and the chunk before. Z and A are (heads, chunk, row in it, row attended to: 1..C in the
    chunk before, C + 1..2C in the own one); the first chunk, rows r, has none before."""
    mixer = Mixer(
        "reformer",
        title="Reformer",
        idea="self-attention to a chunk of the rows sorted by a hash",
        source="Kitaev et al. 2020, arXiv 2001.04451, section 2",
        group="attention",
    )
    l, d, n, h, C, m = mixer.sizes("l d n h C m")  # rows, channels, heads, width, chunk, directions
    x, y = mixer.input("x", l, d), mixer.output("y", l, d)
    W_Q, W_V, W_out = (mixer.parameter(f"W_{name}", d, d) for name in ("Q", "V", "out"))
    H = mixer.buffer("H", h, m)
    with mixer.form("direct") as f:
        i, j, c = f.index("i", 1, l), f.index("j", 1, n), f.index("c", 1, h)
        a, b, t = f.index("a", 1, d), f.index("b", 1, d), f.index("t", 1, l)
        z, w = f.index("z", 1, m), f.index("w", 1, 2 * m)
        q, p, u = f.index("q", 1, l // C + 1), f.index("p", 2, l // C + 1), f.index("u", 1, C)
        e, s = (f.index(name, 1, min_(C, l - (q - 1) * C)) for name in "es")
        o, v = (f.index(name, 1, min_(C, l - (p - 1) * C)) for name in "ov")
        r, s1 = (f.index(name, 1, min_(C, l)) for name in ("r", "s1"))
        k1 = f.index("k1", C + 1, min_(2 * C, C + l))
        k = f.index("k", 1, min_(2 * C, l - (p - 2) * C))
        own, later, before = (q - 1) * C, (p - 1) * C, (p - 2) * C  # rows before q, p, p - 1

        Q, V, Q_S, K_S, V_S, O = (f.array(s, n, l, h) for s in ("Q", "V", "Q_S", "K_S", "V_S", "O"))
        D, P, g = f.array("D", n, l, m), f.array("P", n, l, 2 * m), f.array("g", n, l, below=2 * m)
        at, back = f.array("at", n, l, below=l), f.array("back", n, l, below=l)
        Z, A = (f.array(name, n, l // C + 1, C, 2 * C) for name in "ZA")
        R = f.array("R", l, d)

        for rows, W in ((Q, W_Q), (V, W_V)):
            rows[j, i, c] = sum_(x[i, a] * W[a, (j - 1) * h + c], over=a)
        D[j, i, z] = sum_(Q[j, i, c] * H[c, z], over=c)
        P[j, i, z] = D[j, i, z]
        P[j, i, m + z] = -D[j, i, z]
        g[j, i] = argmax(P[j, i, w], over=w)
        at[j, t] = sort(g[j, i], over=i)
        back[j, i] = sort(at[j, t], over=t)
        for rows, moved in ((Q, Q_S), (V, V_S)):
            moved[j, t, c] = rows[j, at[j, t], c]
        K_S[j, t, c] = l2_norm(Q_S[j, t, c], over=c, least=0)
        Z[j, q, e, C + s] = scaled(sum_(Q_S[j, own + e, c] * K_S[j, own + s, c], over=c), by=h)
        Z[j, p, o, u] = scaled(sum_(Q_S[j, later + o, c] * K_S[j, before + u, c], over=c), by=h)
        A[j, 1, r, k1] = softmax(Z[j, 1, r, k1], over=k1)
        A[j, p, o, k] = softmax(Z[j, p, o, k], over=k)
        O[j, r, c] = sum_(A[j, 1, r, C + s1] * V_S[j, s1, c], over=s1)
        read = sum_(A[j, p, o, C + v] * V_S[j, later + v, c], over=v)
        O[j, later + o, c] = sum_(A[j, p, o, u] * V_S[j, before + u, c], over=u) + read
        R[i, (j - 1) * h + c] = O[j, back[j, i], c]
        y[i, b] = sum_(R[i, a] * W_out[a, b], over=a)
    return mixer


reformer = sorted_rows()
