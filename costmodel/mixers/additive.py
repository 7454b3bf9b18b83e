"""What are the equations of additive attention, of dot-product and general attention, and of
Fastformer?

Bahdanau et al. 2014 score a query and a key by a small feed-forward network, Luong et al. 2015 by
their dot product (`dot`) or a bilinear form (`general`; Luong's `concat` is Bahdanau's score). The
papers attend from one sequence to another sequence. Here queries, keys and values are all rows of
x, under a causal mask.

As in the papers, the values are the rows themselves, scores are not scaled, and there is one head
without biases. The feed-forward network has one layer of f units (n' in Bahdanau). The layers after
the weighted sum (Bahdanau's decoder recurrence, Luong's tanh layer over state and context) belong
to the network and are left out.

Fastformer, Wu et al. 2021. Additive attention sums the queries into one global query q. The keys,
multiplied by q entry by entry, are summed into one global key k in the same way. The values,
multiplied by k, pass a linear layer, and the queries are added. Not causal: both softmaxes run over
the sequence. The paper prints one head and leaves details open; these follow the authors' code,
github.com/wuch15/Fastformer, class FastSelfAttention:
- values and queries share one projection (the paper's parameter sharing): there is no W_V;
- each of the five linear layers has a bias;
- the score of a head reads all d channels, with w_q and w_k (d, n), and is divided by sqrt(h);
- a head's weights sum its own h channels; one (d, d) layer follows the concatenated heads.
The layers after this class in the code (dense layer, residual and norm, as in BERT) and the mask of
padded tokens belong to the network and are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from costmodel.language.equations import Form, Mixer
from costmodel.language.indices import Index
from costmodel.language.macros.softmax import scaled, softmax
from costmodel.language.nodes import Array, Node
from costmodel.language.writing import function, sum_
from costmodel.symbolic.polynomial import Poly

BAHDANAU = "Bahdanau et al. 2014, arXiv 1409.0473, section 3.1 and appendix A.1.2"
LUONG = "Luong et al. 2015, arXiv 1508.04025, section 3.1"

SDPA = ("torch.nn.functional.scaled_dot_product_attention",)

Score = Callable[..., Node]
"""A function of the form, x (l, d) and the score's parameters: the score of query i and key k."""


def _pair(f: Form, l: Poly) -> tuple[Index, Index]:
    """The indices of query i and key k <= i, the same ones at each call in a form."""
    i = f.index("i", 1, l)
    return i, f.index("k", 1, i)


def additive(f: Form, x: Array, W_a: Array, U_a: Array, v_a: Array) -> Node:
    """Write the equations of Q = x W_a and K = x U_a (l, width) in the form, and return the
    expression of the score v_a^T tanh(Q_i + K_k) in the indices of rows i and k (`_pair`)."""
    (l, d), width = x.shape, v_a.shape[0]
    i, k = _pair(f, l)
    a, c = f.index("a", 1, d), f.index("c", 1, width)
    Q, K = f.array("Q", l, width), f.array("K", l, width)
    Q[i, c] = sum_(x[i, a] * W_a[a, c], over=a)
    K[i, c] = sum_(x[i, a] * U_a[a, c], over=a)
    return sum_(v_a[c] * function("tanh", Q[i, c] + K[k, c]), over=c)


def dot(f: Form, x: Array) -> Node:
    """The expression of the score x_i^T x_k of rows i and k <= i of x (l, d); without weights."""
    l, d = x.shape
    i, k = _pair(f, l)
    a = f.index("a", 1, d)
    return sum_(x[i, a] * x[k, a], over=a)


def general(f: Form, x: Array, W_a: Array) -> Node:
    """Write the equation of Q = x W_a (l, d) in the form, where W_a is (d, d), and return the
    expression of the score Q_i^T x_k in the indices of rows i and k (`_pair`) of x (l, d)."""
    l, d = x.shape
    i, k = _pair(f, l)
    a, c = f.index("a", 1, d), f.index("c", 1, d)
    Q = f.array("Q", l, d)
    Q[i, c] = sum_(x[i, a] * W_a[a, c], over=a)
    return sum_(Q[i, c] * x[k, c], over=c)


def attention(
    name: str,
    title: str,
    idea: str,
    source: str,
    score: Score,
    parameters: Mapping[str, str],
    *,
    references: tuple[str, ...] = (),
    cites: tuple[str, str] = ("", ""),
) -> Mixer:
    """The mixer of causal self-attention whose values are the rows of x (l, d): y_i is the sum of
    the rows k <= i of x, weighted by the softmax of their scores. Its one form is `direct`. The
    texts (`name` to `source`) are those of `Mixer`.

    Args:
        score: the function that gives the score of rows i and k, from the form, x and the
            parameters.
        parameters: parameter of the score -> the letters of its axes.
        references: classes of torch that compute the mixer.
        cites: the equation numbers of the softmax and of the weighted sum.
    """
    m = Mixer(name, title=title, idea=idea, source=source, group="attention", references=references)
    l, d = m.sizes("l d")
    x, y = m.input("x", l, d), m.output("y", l, d, cite=cites[1])
    weights = [m.parameter(key, *m.sizes(" ".join(axes))) for key, axes in parameters.items()]
    with m.form("direct") as f:
        i, k = _pair(f, l)
        b = f.index("b", 1, d)
        Z, A = f.array("Z", l, l), f.array("A", l, l, cite=cites[0])
        Z[i, k] = score(f, x, *weights)
        A[i, k] = softmax(Z[i, k], over=k)
        y[i, b] = sum_(A[i, k] * x[k, b], over=k)
    return m


additive_attention = attention(
    "additive-attention",
    "Additive attention",
    "two tokens are scored by a small network",
    BAHDANAU,
    additive,
    {"W_a": "df", "U_a": "df", "v_a": "f"},
    cites=("(6)", "(5)"),
)
dot_product_attention = attention(
    "dot-product-attention",
    "Dot-product attention",
    "two tokens are scored by their product, nothing is projected",
    LUONG,
    dot,
    {},
    references=SDPA,
)
general_attention = attention(
    "general-attention",
    "General attention",
    "two tokens are scored through one matrix",
    LUONG,
    general,
    {"W_a": "dd"},
    references=SDPA,
)


def additive_pooling() -> Mixer:
    """The mixer Fastformer: for each of n heads a global query q, a softmax-weighted sum of all
    queries; a global key k, such a sum of q * K; and y, a map of k * Q plus the queries."""
    m = Mixer(
        "fastformer",
        title="Fastformer",
        idea="one query and one key for all tokens, by additive attention",
        source="Wu et al. 2021, arXiv 2108.09084, section 3",
        group="linear",
    )
    l, d, n, h = m.sizes("l d n h")  # tokens, channels, heads, channels a head
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
        P, U = f.array("P", l, d), f.array("U", l, d)  # q * K and k * Q

        Q[i, b] = sum_(x[i, a] * W_Q[a, b], over=a) + b_Q[b]
        K[i, b] = sum_(x[i, a] * W_K[a, b], over=a) + b_K[b]
        S_q[j, i] = scaled(sum_(Q[i, a] * w_q[a, j], over=a) + b_q[j], by=h)
        A_q[j, i] = softmax(S_q[j, i], over=i)  # weights of the queries, by scores S_q
        q[(j - 1) * h + c] = sum_(A_q[j, i] * Q[i, (j - 1) * h + c], over=i)
        P[i, b] = q[b] * K[i, b]
        S_k[j, i] = scaled(sum_(P[i, a] * w_k[a, j], over=a) + b_k[j], by=h)
        A_k[j, i] = softmax(S_k[j, i], over=i)  # weights of the rows of P, by scores S_k
        k[(j - 1) * h + c] = sum_(A_k[j, i] * P[i, (j - 1) * h + c], over=i)
        U[i, b] = k[b] * Q[i, b]
        y[i, b] = sum_(U[i, a] * W_U[a, b], over=a) + b_U[b] + Q[i, b]
    return m


fastformer = additive_pooling()
