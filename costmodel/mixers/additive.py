"""What are the equations of additive attention, and of dot-product and general attention?

Bahdanau et al. 2014 score a query and a key by a small feed-forward network, Luong et al. 2015 by
their product (`dot`) or by a bilinear form (`general`; Luong's `concat` is Bahdanau's score). Both
papers attend from the states of one sequence to the states of another. Here both sequences are x:
queries, keys and values are rows of x, and token i sees tokens 1..i.

Read from the papers: the values are the rows themselves, as the papers sum annotations; no score is
scaled; there is one head and no bias. The alignment network is a feed-forward layer of f units
(Bahdanau's n'). What follows the weighted sum (Bahdanau's decoder recurrence, Luong's tanh layer
over state and context) belongs to the network and is not here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from costmodel.language.equations import Form, Mixer
from costmodel.language.indices import Index
from costmodel.language.macros.softmax import softmax
from costmodel.language.nodes import Array, Node
from costmodel.language.writing import function, sum_
from costmodel.symbolic.polynomial import Poly

BAHDANAU = "Bahdanau et al. 2014, arXiv 1409.0473, section 3.1 and appendix A.1.2"
LUONG = "Luong et al. 2015, arXiv 1508.04025, section 3.1"

SDPA = ("torch.nn.functional.scaled_dot_product_attention",)

Score = Callable[..., Node]
"""Called with the form, x (l, d) and the parameters: the score of query i and key k."""


def _pair(f: Form, l: Poly) -> tuple[Index, Index]:
    i = f.index("i", 1, l)
    return i, f.index("k", 1, i)


def additive(f: Form, x: Array, W_a: Array, U_a: Array, v_a: Array) -> Node:
    """v^T tanh(W x_i + U x_k): every row is projected once as a query and once as a key."""
    (l, d), width = x.shape, v_a.shape[0]
    i, k = _pair(f, l)
    a, c = f.index("a", 1, d), f.index("c", 1, width)
    Q, K = f.array("Q", l, width), f.array("K", l, width)
    Q[i, c] = sum_(x[i, a] * W_a[a, c], over=a)
    K[i, c] = sum_(x[i, a] * U_a[a, c], over=a)
    return sum_(v_a[c] * function("tanh", Q[i, c] + K[k, c]), over=c)


def dot(f: Form, x: Array) -> Node:
    """x_i^T x_k."""
    l, d = x.shape
    i, k = _pair(f, l)
    a = f.index("a", 1, d)
    return sum_(x[i, a] * x[k, a], over=a)


def general(f: Form, x: Array, W_a: Array) -> Node:
    """x_i^T W x_k: the query is projected, so that the keys are the rows themselves."""
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
    """Causal self-attention with a score of its own.

    Args:
        parameters: the score's parameters and their axes, sizes by letter.
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
