"""What are the equations of attention of low rank, through fewer rows than tokens: Linformer,
efficient attention, Nystromformer and the Set Transformer?

Linformer, Wang et al. 2020, equation (7): E and F, (r, l) each, project the keys and values of a
head along the sequence to r rows, before the scores; r is k in the paper. The cost is linear in l
for a fixed r.

Efficient attention, Shen et al. 2018, sections 3.2 and 3.3, with softmax normalisation: a softmax
of each query over channels, and of each channel of the keys over the sequence, then Q (K^T V).
Biases and skip connection of the authors' code (github.com/cmsflash/efficient-attention) are left
out.

Nystromformer, Xiong et al. 2021, equations (11)-(14): r landmarks are means over l/r consecutive
queries and keys; r divides l. The result is (F A^-1)(B V), where F, A and B are softmaxes of the
scores of queries with key landmarks, query landmarks with key landmarks, and query landmarks with
keys, multiplied in the order of the authors' code (github.com/mlpen/Nystromformer). Six rounds of
a fourth-order iteration approximate A^-1. They begin with A^T, per head, over the largest column
sum of A times the largest row sum; the latter is 1 and costs no operation. The convolution of the
values, which the paper adds in training, is left out.

Set Transformer, Lee et al. 2019, equations (9) and (10), an induced set attention block: r inducing
points I (r, d), which are parameters, attend to the tokens with weights U, which gives H; the
tokens attend to H with weights W. The paper's m is r, its h is n. Scores are divided by sqrt(d), as
in paper and code, not by sqrt(h). Of each MAB only the attention is modelled, without the queries
added in equation (7), the layer norms and the feed-forward layer of (6). The cost is linear in l
for a fixed r.

Projections and heads are those of attention, without biases; so is the scale of Linformer and
Nystromformer. None is causal: the rows that queries read combine all tokens.
"""

from __future__ import annotations

from collections.abc import Mapping

from costmodel.language.equations import Mixer
from costmodel.language.macros.softmax import scaled, softmax
from costmodel.language.nodes import Array, Ref
from costmodel.language.options import Chosen, offering
from costmodel.language.writing import max_over, sum_

OPTIONS = {
    "headwise": "one E and one F for all heads (section 4, headwise sharing)",
    "key-value": "one E for keys and values of all heads (section 4, key-value sharing)",
}
APART = {("headwise", "key-value"): "'key-value' shares among all heads as it is"}


@offering(OPTIONS, APART)
def linformer(chosen: Chosen) -> Mixer:
    """The mixer Linformer: attention in each head to r sums of all keys, weighted by E (r, l), and
    of all values, by F; options share E and F among heads, or among keys and values too."""
    m = Mixer(
        "linformer",
        title="Linformer",
        idea="self-attention to r mixtures of all keys and values",
        source="Wang et al. 2020, arXiv 2006.04768, equation (7)",
        group="linear",
    )
    l, d, n, h, r = m.sizes("l d n h r")  # tokens, channels, heads, channels a head, sums
    x, y = m.input("x", l, d), m.output("y", l, d)
    W_Q, W_K, W_V, W_out = (m.parameter(f"W_{name}", d, d) for name in ("Q", "K", "V", "out"))
    own = () if chosen else (n,)  # either option: one projection for all heads
    E = m.parameter("E", *own, r, l)
    F = E if "key-value" in chosen else m.parameter("F", *own, r, l)
    with m.form("direct") as f:
        i, j, p = f.index("i", 1, l), f.index("j", 1, n), f.index("p", 1, r)
        a, b, c = f.index("a", 1, d), f.index("b", 1, d), f.index("c", 1, h)
        Q, K, V = f.array("Q", n, l, h), f.array("K", n, l, h), f.array("V", n, l, h)
        P_K, P_V = f.array("P_K", n, r, h), f.array("P_V", n, r, h)
        Z, A, R = f.array("Z", n, l, r), f.array("A", n, l, r), f.array("R", l, d)

        def entry(projection: Array) -> Ref:
            """The weight of row i in the projected row p of head j."""
            return projection[j, p, i] if own else projection[p, i]

        for rows, W in ((Q, W_Q), (K, W_K), (V, W_V)):
            rows[j, i, c] = sum_(x[i, a] * W[a, (j - 1) * h + c], over=a)
        P_K[j, p, c] = sum_(entry(E) * K[j, i, c], over=i)  # r sums of keys, and of values
        P_V[j, p, c] = sum_(entry(F) * V[j, i, c], over=i)
        Z[j, i, p] = scaled(sum_(Q[j, i, c] * P_K[j, p, c], over=c), by=h)
        A[j, i, p] = softmax(Z[j, i, p], over=p)
        R[i, (j - 1) * h + c] = sum_(A[j, i, p] * P_V[j, p, c], over=p)
        y[i, b] = sum_(R[i, a] * W_out[a, b], over=a)
    return m


def normalised_twice() -> Mixer:
    """The mixer of efficient attention: queries, after a softmax over channels, times one matrix of
    each head, the sum of k v^T over all rows, with keys after a softmax over all rows."""
    m = Mixer(
        "efficient-attention",
        title="Efficient attention",
        idea="softmax of q over channels, of k over tokens: q (k v)",
        source="Shen et al. 2018, arXiv 1812.01243, equations (3)-(5)",
        group="linear",
    )
    l, d, n, h = m.sizes("l d n h")  # tokens, channels, heads, channels a head
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

ROUNDS = 6
"""The rounds of the iteration that approximates an inverse."""


def landmarks() -> Mixer:
    """The mixer Nyströmformer: three softmaxes through r means of queries and keys, F A^+ B V; Z
    approximates A^+, the pseudo-inverse of A, by `ROUNDS` rounds of an iteration (X, U, H, S)."""
    m = Mixer(
        "nystromformer",
        title="Nyströmformer",
        idea="three softmaxes through r means of the queries and keys",
        source="Xiong et al. 2021, arXiv 2102.03902, equations (11)-(14)",
        group="linear",
    )
    l, d, n, h, r = m.sizes("l d n h r")  # tokens, channels, heads, channels a head, means
    x, y = m.input("x", l, d), m.output("y", l, d)
    W_Q, W_K, W_V, W_out = (m.parameter(f"W_{name}", d, d) for name in ("Q", "K", "V", "out"))
    unit = m.buffer("unit", 3, r, r, latex="I", value=multiple_of_unit)  # 7 I, 15 I, 13 I
    with m.form("direct") as f:
        i, j, e = f.index("i", 1, l), f.index("j", 1, n), f.index("e", 1, l / r)
        p, q, u = (f.index(name, 1, r) for name in "pqu")
        a, b, c = f.index("a", 1, d), f.index("b", 1, d), f.index("c", 1, h)
        o = f.index("o", 2, ROUNDS + 1)
        Q, K, V = (f.array(name, n, l, h) for name in "QKV")
        P_Q, P_K, P_V = (f.array(f"P_{name}", n, r, h) for name in "QKV")
        Z_F, Z_A, Z_B = (
            f.array(f"Z_{name}", n, *by)
            for name, by in (("F", (l, r)), ("A", (r, r)), ("B", (r, l)))
        )
        F, A, B = (f.array(z.name[-1], *z.shape) for z in (Z_F, Z_A, Z_B))
        N, G, T, R = f.array("N", n, r), f.array("G", n), f.array("T", n, l, r), f.array("R", l, d)
        Z, X, U, H, S = (f.array(name, ROUNDS + 1, n, r, r) for name in "ZXUHS")

        for rows, W in ((Q, W_Q), (K, W_K), (V, W_V)):
            rows[j, i, c] = sum_(x[i, a] * W[a, (j - 1) * h + c], over=a)
        for means, rows in ((P_Q, Q), (P_K, K)):
            means[j, p, c] = sum_(rows[j, (p - 1) * (l / r) + e, c], over=e) / (l / r)
        Z_F[j, i, p] = scaled(sum_(Q[j, i, c] * P_K[j, p, c], over=c), by=h)
        Z_A[j, q, p] = scaled(sum_(P_Q[j, q, c] * P_K[j, p, c], over=c), by=h)
        Z_B[j, p, i] = scaled(sum_(P_Q[j, p, c] * K[j, i, c], over=c), by=h)
        F[j, i, p] = softmax(Z_F[j, i, p], over=p)
        A[j, q, p] = softmax(Z_A[j, q, p], over=p)
        B[j, p, i] = softmax(Z_B[j, p, i], over=i)
        N[j, p] = sum_(A[j, q, p], over=q)
        G[j] = max_over(N[j, p], over=p)  # the largest column sum of A
        Z[1, j, p, q] = A[j, q, p] / G[j]  # the first approximation of A^+; round o - 1 gives Z[o]
        X[o, j, p, q] = sum_(A[j, p, u] * Z[o - 1, j, u, q], over=u)
        U[o, j, p, q] = unit[1, p, q] - X[o, j, p, q]
        H[o, j, p, q] = unit[2, p, q] - sum_(X[o, j, p, u] * U[o, j, u, q], over=u)
        S[o, j, p, q] = unit[3, p, q] - sum_(X[o, j, p, u] * H[o, j, u, q], over=u)
        Z[o, j, p, q] = sum_(Z[o - 1, j, p, u] * S[o, j, u, q], over=u) / 4
        P_V[j, p, c] = sum_(B[j, p, i] * V[j, i, c], over=i)  # B V
        T[j, i, p] = sum_(F[j, i, q] * Z[ROUNDS + 1, j, q, p], over=q)  # F A^+
        R[i, (j - 1) * h + c] = sum_(T[j, i, p] * P_V[j, p, c], over=p)
        y[i, b] = sum_(R[i, a] * W_out[a, b], over=a)
    return m


def multiple_of_unit(number: int, row: int, column: int, sizes: Mapping[str, int]) -> float:
    """An entry of the matrix 7 I, 15 I or 13 I (`number` 1, 2 or 3)."""
    return (7.0, 15.0, 13.0)[number - 1] * (row == column)


nystromformer = landmarks()


def inducing_points() -> Mixer:
    """The mixer of the Set Transformer's induced attention: r learned rows I attend to the tokens
    (queries P_Q, keys P_K, values P_V), which gives H (r, d), and the tokens attend to H."""
    m = Mixer(
        "set-transformer",
        title="Set Transformer",
        idea="r learned rows attend to the tokens, and the tokens to them",
        source="Lee et al. 2019, arXiv 1810.00825, equations (9)-(10), of either MAB its attention",
        group="linear",
    )
    l, d, n, h, r = m.sizes("l d n h r")  # tokens, channels, heads, channels a head, learned rows
    x, y = m.input("x", l, d), m.output("y", l, d)
    W_Q, W_K, W_V, W_out = (m.parameter(f"W_{name}", d, d) for name in ("Q", "K", "V", "out"))
    U_Q, U_K, U_V, U_out = (m.parameter(f"U_{name}", d, d) for name in ("Q", "K", "V", "out"))
    I = m.parameter("I", r, d)  # the paper's letter
    with m.form("direct") as f:
        i, j, p = f.index("i", 1, l), f.index("j", 1, n), f.index("p", 1, r)
        a, b, c = f.index("a", 1, d), f.index("b", 1, d), f.index("c", 1, h)
        P_Q, P_K, P_V = f.array("P_Q", n, r, h), f.array("P_K", n, l, h), f.array("P_V", n, l, h)
        Z_H, A_H = f.array("Z_H", n, r, l), f.array("A_H", n, r, l)
        G, H = f.array("G", r, d), f.array("H", r, d)
        Q, K, V = f.array("Q", n, l, h), f.array("K", n, r, h), f.array("V", n, r, h)
        Z, A, R = f.array("Z", n, l, r), f.array("A", n, l, r), f.array("R", l, d)

        P_Q[j, p, c] = sum_(I[p, a] * U_Q[a, (j - 1) * h + c], over=a)
        P_K[j, i, c] = sum_(x[i, a] * U_K[a, (j - 1) * h + c], over=a)
        P_V[j, i, c] = sum_(x[i, a] * U_V[a, (j - 1) * h + c], over=a)
        Z_H[j, p, i] = scaled(sum_(P_Q[j, p, c] * P_K[j, i, c], over=c), by=d)
        A_H[j, p, i] = softmax(Z_H[j, p, i], over=i)
        G[p, (j - 1) * h + c] = sum_(A_H[j, p, i] * P_V[j, i, c], over=i)
        H[p, b] = sum_(G[p, a] * U_out[a, b], over=a)
        Q[j, i, c] = sum_(x[i, a] * W_Q[a, (j - 1) * h + c], over=a)
        K[j, p, c] = sum_(H[p, a] * W_K[a, (j - 1) * h + c], over=a)
        V[j, p, c] = sum_(H[p, a] * W_V[a, (j - 1) * h + c], over=a)
        Z[j, i, p] = scaled(sum_(Q[j, i, c] * K[j, p, c], over=c), by=d)
        A[j, i, p] = softmax(Z[j, i, p], over=p)
        R[i, (j - 1) * h + c] = sum_(A[j, i, p] * V[j, p, c], over=p)
        y[i, b] = sum_(R[i, a] * W_out[a, b], over=a)
    return m


set_transformer = inducing_points()
