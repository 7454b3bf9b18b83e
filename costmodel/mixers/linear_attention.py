"""What are the equations of linear attention: a feature map in place of the softmax?

Katharopoulos et al. 2020, with the feature map phi(x) = elu(x) + 1 and a causal mask. Row i is

    phi(q_i) S_i / (phi(q_i) Z_i),  S_i = sum_{k <= i} phi(k_k)^T v_k,  Z_i = sum_{k <= i} phi(k_k).

Three forms compute this function: `recurrent` is a recurrence over rows with state S, Z; `parallel`
computes the scores phi(q) phi(k) of all pairs, as attention does; `chunked` computes scores within
chunks of C tokens, and a recurrence over chunks with state S, Z. The chunks are those of mixed
chunk attention, Hua et al. 2022, which has other scores within a chunk.

As in the paper of 2020, phi is applied to each head's queries and keys (section 3.2.1), there are
no biases, and nothing is added to the denominator (the authors' code adds 1e-6). W_out follows the
concatenated heads, as in a Transformer. Both branches of elu are computed for each entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from costmodel.language.equations import Form, Mixer
from costmodel.language.indices import min_
from costmodel.language.nodes import Array, Node
from costmodel.language.writing import function, sum_
from costmodel.symbolic.polynomial import Poly

SOURCE = (
    "Katharopoulos et al. 2020, arXiv 2006.16236, sections 3.2-3.4; chunked: mixed chunk "
    "attention, Hua et al. 2022, arXiv 2202.10447"
)
IDEA = "a sum of k v, carried along, is read by phi(q)"

Features = Callable[[Form, Node, Node], tuple[Array, Array]]
"""A function that defines the features Q and K (n, l, m), given a form and the entries of projected
queries and keys at head j, row i, channel c."""

Sums = Callable[[Form, Array, Array, Array, Array], None]
"""A function that defines R (l, d), the rows before W_out, from Q, K (n, l, m) and V (n, l, h)."""


def running_product(f: Form, name: str, K: Array, V: Array, kept: Array | None = None) -> Array:
    """Define and return S, `name` (n, l, m, h), the running sum of k v^T: S_r = kept_r S_(r-1) +
    k_r v_r^T, for n heads, keys of m and values of h channels; decay `kept` (n, l), by default
    1."""
    (n, l, m), h = K.shape, V.shape[2]
    j, later = f.index("j", 1, n), f.index("r", 2, l)
    p, c = f.index("p", 1, m), f.index("c", 1, h)
    S = f.array(name, n, l, m, h)
    S[j, 1, p, c] = K[j, 1, p] * V[j, 1, c]
    before: Node = S[j, later - 1, p, c]
    before = before if kept is None else kept[j, later] * before
    S[j, later, p, c] = before + K[j, later, p] * V[j, later, c]
    return S


def running_sum(f: Form, name: str, K: Array, kept: Array | None = None) -> Array:
    """Define and return an array `name` (n, l, m): row r is the sum of rows 1..r of K (n, l, m).
    With `kept` (n, l), the sum of the rows before r is first multiplied by kept[j, r]."""
    n, l, m = K.shape
    j, later, p = f.index("j", 1, n), f.index("r", 2, l), f.index("p", 1, m)
    Z = f.array(name, n, l, m)
    Z[j, 1, p] = K[j, 1, p]
    before: Node = Z[j, later - 1, p]
    Z[j, later, p] = (before if kept is None else kept[j, later] * before) + K[j, later, p]
    return Z


def scores(f: Form, name: str, Q: Array, K: Array) -> Array:
    """Define and return `name` (n, l, l): in each head, products of query i with keys 1 to i."""
    n, l, m = Q.shape
    j, i, p = f.index("j", 1, n), f.index("i", 1, l), f.index("p", 1, m)
    k = f.index("k", 1, i)
    A = f.array(name, n, l, l)
    A[j, i, k] = sum_(Q[j, i, p] * K[j, k, p], over=p)
    return A


def define_quotient(f: Form, R: Array, reads: Node, weights: Node) -> None:
    """Define R (l, n h) at row i, head j, channel c, as `reads / weights`, and of the denominator D
    (n, l), which holds `weights`, computed once per head and row."""
    j, i, c = f.indices["j"], f.indices["i"], f.indices["c"]
    D = f.array("D", j.upper[0], i.upper[0])
    D[j, i] = weights
    R[i, (j - 1) * c.upper[0] + c] = reads / D[j, i]


def recurrent(f: Form, Q: Array, K: Array, V: Array, R: Array, kept: Array | None = None) -> None:
    """Section 3.4: define R (l, n h), what the queries Q (n, l, m) read of the running sums of k
    v^T, S, over what they read of the running sum of keys, Z; `kept` (n, l) decays both."""
    (n, l, m), h = Q.shape, V.shape[2]
    j, i = f.index("j", 1, n), f.index("i", 1, l)
    p, c = f.index("p", 1, m), f.index("c", 1, h)
    S, Z = running_product(f, "S", K, V, kept), running_sum(f, "Z", K, kept)
    reads = sum_(Q[j, i, p] * S[j, i, p, c], over=p)
    define_quotient(f, R, reads, sum_(Q[j, i, p] * Z[j, i, p], over=p))


def parallel(f: Form, Q: Array, K: Array, V: Array, R: Array) -> None:
    """Section 3.3: define R (l, n h), the values V (n, l, h) of rows k <= i weighted by the
    products of queries and keys (n, l, m), over the sum of these products."""
    n, l, h = V.shape
    j, i, c = f.index("j", 1, n), f.index("i", 1, l), f.index("c", 1, h)
    k = f.index("k", 1, i)
    A = scores(f, "A", Q, K)
    define_quotient(f, R, sum_(A[j, i, k] * V[j, k, c], over=k), sum_(A[j, i, k], over=k))


def chunk_sums(f: Form, K: Array, V: Array, C: Poly) -> tuple[Array, Array]:
    """Define and return S (n, l//C, m, h) and Z (n, l//C, m): the sums of k v^T and of k up to the
    end of each complete chunk of C rows; n heads, keys of m, values of h channels."""
    (n, l, m), h = K.shape, V.shape[2]
    j, p, c, s = f.index("j", 1, n), f.index("p", 1, m), f.index("c", 1, h), f.index("w", 1, C)
    first, later = f.index("o", 1, min_(1, l // C)), f.index("r", 2, l // C)
    S, Z = f.array("S", n, l // C, m, h), f.array("Z", n, l // C, m)
    for q, before in ((first, None), (later, later - 1)):
        row = (q - 1) * C + s
        product, keys = sum_(K[j, row, p] * V[j, row, c], over=s), sum_(K[j, row, p], over=s)
        S[j, q, p, c] = product if before is None else S[j, before, p, c] + product
        Z[j, q, p] = keys if before is None else Z[j, before, p] + keys
    return S, Z


def chunk_pairs(f: Form, Q: Array, K: Array, V: Array, C: Poly) -> tuple[Array, Array]:
    """Define and return N (n, l, h) and D (n, l): for each row, the sums over the earlier rows and
    itself within its chunk of C rows, of products of query and key, times the value (N) or alone
    (D)."""
    (n, l, m), h = Q.shape, V.shape[2]
    j, p, c = f.index("j", 1, n), f.index("p", 1, m), f.index("c", 1, h)
    q = f.index("q", 1, l // C + 1)
    e = f.index("e", 1, min_(C, l - (q - 1) * C))
    s = f.index("s", 1, e)
    row, seen = (q - 1) * C + e, (q - 1) * C + s
    A, N, D = f.array("A", n, l // C + 1, C, C), f.array("N", n, l, h), f.array("D", n, l)
    A[j, q, e, s] = sum_(Q[j, row, p] * K[j, seen, p], over=p)
    N[j, row, c] = sum_(A[j, q, e, s] * V[j, seen, c], over=s)
    D[j, row] = sum_(A[j, q, e, s], over=s)
    return N, D


def chunked(f: Form, Q: Array, K: Array, V: Array, R: Array) -> None:
    """Define R (l, n h) in chunks of C rows: a row reads the pairs of its chunk, and the sums S (of
    k v^T) and Z (of k) of earlier chunks, over the sum of its weights.

    S and Z exist for all complete chunks; the last complete chunk's are read by the next token.
    Rows after the first chunk have the denominator E (n, l), computed once per head and row.
    """
    (n, l, m), h, (C,) = Q.shape, V.shape[2], f.mixer.sizes("C")
    j, p, c = f.index("j", 1, n), f.index("p", 1, m), f.index("c", 1, h)
    S, Z = chunk_sums(f, K, V, C)
    N, D = chunk_pairs(f, Q, K, V, C)
    E = f.array("E", n, l)
    k, g = f.index("k", 1, min_(C, l)), f.index("g", 2, l // C + 1)
    u = f.index("u", 1, min_(C, l - (g - 1) * C))
    row, column = (g - 1) * C + u, (j - 1) * h + c
    E[j, row] = D[j, row] + sum_(Q[j, row, p] * Z[j, g - 1, p], over=p)
    R[k, column] = N[j, k, c] / D[j, k]
    R[row, column] = (N[j, row, c] + sum_(Q[j, row, p] * S[j, g - 1, p, c], over=p)) / E[j, row]


FORMS: Mapping[str, Sums] = {"recurrent": recurrent, "parallel": parallel, "chunked": chunked}


def attention_by_features(m: Mixer, features: Features, forms: Mapping[str, Sums]) -> Mixer:
    """The mixer m with the parameters and equations of linear attention. `features` writes and
    returns the features Q and K (n, l, m) from projected queries and keys; `forms`: form -> the
    function that writes R (l, d), the rows before W_out, from Q, K and V."""
    l, d, n, h = m.sizes("l d n h")  # tokens, channels, heads, channels a head
    x, y = m.input("x", l, d), m.output("y", l, d)
    W_Q, W_K, W_V, W_out = (m.parameter(f"W_{name}", d, d) for name in ("Q", "K", "V", "out"))
    for form, sums in forms.items():
        with m.form(form) as f:
            j, i = f.index("j", 1, n), f.index("i", 1, l)
            a, b, c = f.index("a", 1, d), f.index("b", 1, d), f.index("c", 1, h)
            column = (j - 1) * h + c
            queries, keys = (sum_(x[i, a] * W[a, column], over=a) for W in (W_Q, W_K))
            Q, K = features(f, queries, keys)
            V, R = f.array("V", n, l, h), f.array("R", l, d)
            V[j, i, c] = sum_(x[i, a] * W_V[a, column], over=a)
            sums(f, Q, K, V, R)
            y[i, b] = sum_(R[i, a] * W_out[a, b], over=a)
    return m


def shifted_elu(f: Form, queries: Node, keys: Node) -> tuple[Array, Array]:
    """Define and return the features Q and K (n, l, h): elu + 1 of each channel of the projected
    queries and keys (expressions at head j, row i, channel c)."""
    l, n, h = f.mixer.sizes("l n h")  # tokens, heads, channels a head
    Q = f.array("Q", n, l, h, latex=r"\phi(Q)")
    K = f.array("K", n, l, h, latex=r"\phi(K)")
    for phi, projected in ((Q, queries), (K, keys)):
        phi[f.indices["j"], f.indices["i"], f.indices["c"]] = function("elu_plus_1", projected)
    return Q, K


linear_attention = attention_by_features(
    Mixer("linear-attention", title="Linear attention", idea=IDEA, source=SOURCE, group="linear"),
    shifted_elu,
    FORMS,
)
