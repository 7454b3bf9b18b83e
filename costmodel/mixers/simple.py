"""What are the equations of SimpleTRON's attention without softmax, Simple, -Res and -ResL, and of
their causal variants, which can generate?

Yorsh et al. 2021, section 3 (without equation numbers): per head, Q K^T V / sqrt(L), where each
entry of the product is scaled once, as the paper prints it. A form is an order of the products:
`kv-first`, Q (K^T V), is the paper's; `qk-first`, (Q K^T) V, is that of attention. Both sum over
the whole sequence.

In the causal variants, token i reads the sums over tokens 1..i. `recurrent` is a recurrence with
the running sum of k v^T, `parallel` computes the scores of the pairs k <= i. All rows have the
factor 1/sqrt(l), with l the length that the mixer is made for: with 1/sqrt(i), the terms of row i
would differ from the paper's.

Read from the paper: L is the length of the input sequence; the biases q*, k*, v* and w, printed as
L x D matrices, are vectors added to each row, as in any linear layer; D_E = D_hid = d. The residual
is the skip connection inside the sublayer, which Table 1 names; the skip connection around the
sublayer belongs to the network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from costmodel.language.equations import Form, Mixer
from costmodel.language.nodes import Array, Constant, Node
from costmodel.language.writing import sum_
from costmodel.mixers.linear_attention import running_product, scores

SOURCE = "Yorsh et al. 2021, arXiv 2111.15588, section 3"

Product = Callable[[Form, Array, Array, Array], Node]
"""A function of Q, K and V (n, l, h): their unscaled product at head j, token i, channel c."""


def kv_first(f: Form, Q: Array, K: Array, V: Array) -> Node:
    """Write the equation of M = K^T V (h, h) for each head, and return the expression of Q M
    at head j, row i, channel c; Q, K, V: (heads, rows, channels)."""
    n, l, h = Q.shape
    i, j = f.index("i", 1, l), f.index("j", 1, n)
    c, p = f.index("c", 1, h), f.index("p", 1, h)
    M = f.array("M", n, h, h)
    M[j, p, c] = sum_(K[j, i, p] * V[j, i, c], over=i)
    return sum_(Q[j, i, p] * M[j, p, c], over=p)


def qk_first(f: Form, Q: Array, K: Array, V: Array) -> Node:
    """Write the equation of the scores Z = Q K^T of all pairs of rows, and return the
    expression of Z V at head j, row i, channel c; Q, K, V: (heads, rows, channels)."""
    n, l, h = Q.shape
    i, k, j = f.index("i", 1, l), f.index("k", 1, l), f.index("j", 1, n)
    c, p = f.index("c", 1, h), f.index("p", 1, h)
    Z = f.array("Z", n, l, l)
    Z[j, i, k] = sum_(Q[j, i, p] * K[j, k, p], over=p)
    return sum_(Z[j, i, k] * V[j, k, c], over=k)


FORMS: Mapping[str, Product] = {"kv-first": kv_first, "qk-first": qk_first}


def simple(
    name: str,
    title: str,
    idea: str,
    *,
    residual: bool = False,
    output: bool = False,
    forms: Mapping[str, Product] = FORMS,
) -> Mixer:
    """One mixer of the family: the product of queries, keys and values without softmax, in n heads,
    times l**(-1/2), which is `Constant(l, -1)`. The texts (`name` to `idea`) are those of `Mixer`.

    Args:
        residual: whether the input is added at the end.
        output: whether a linear layer follows the concatenated heads.
        forms: form -> the function that gives the product of queries, keys and values.
    """
    m = Mixer(name, title=title, idea=idea, source=SOURCE, group="linear")
    l, d, n, h = m.sizes("l d n h")  # tokens, channels, heads, channels a head
    x, y = m.input("x", l, d), m.output("y", l, d)
    projections = [
        (letter, m.parameter(f"W_{letter}", d, d), m.parameter(f"b_{letter}", d))
        for letter in "QKV"
    ]
    W_out = m.parameter("W_out", d, d) if output else None
    b_out = m.parameter("b_out", d) if output else None

    for form, product in forms.items():
        with m.form(form) as f:
            i, j = f.index("i", 1, l), f.index("j", 1, n)
            a, b, c = f.index("a", 1, d), f.index("b", 1, d), f.index("c", 1, h)
            heads = []
            for letter, W, bias in projections:
                of_heads = f.array(letter, n, l, h)
                column = (j - 1) * h + c
                of_heads[j, i, c] = sum_(x[i, a] * W[a, column], over=a) + bias[column]
                heads.append(of_heads)
            R = f.array("R", l, d) if residual or output else y
            R[i, (j - 1) * h + c] = Constant(l, -1) * product(f, *heads)
            if W_out is not None and b_out is not None:
                linear = sum_(R[i, a] * W_out[a, b], over=a) + b_out[b]
                y[i, b] = x[i, b] + linear if residual else linear
            elif residual:
                y[i, b] = x[i, b] + R[i, b]
    return m


simple_ = simple("simple", "Simple", "attention without a softmax: q (k v)")
simple_res = simple("simple-res", "Simple-Res", "Simple, and the input is added", residual=True)
simple_resl = simple(
    "simple-resl",
    "Simple-ResL",
    "Simple with a linear map, and the input is added",
    residual=True,
    output=True,
)


def recurrent(f: Form, Q: Array, K: Array, V: Array) -> Node:
    """Write the equations of the state S (h, h) of each head, the running sum of k v^T, and return
    the expression of Q S at head j, row i, channel c; Q, K, V: (heads, rows, channels)."""
    n, l, h = Q.shape
    j, i = f.index("j", 1, n), f.index("i", 1, l)
    p, c = f.index("p", 1, h), f.index("c", 1, h)
    S = running_product(f, "S", K, V)
    return sum_(Q[j, i, p] * S[j, i, p, c], over=p)


def parallel(f: Form, Q: Array, K: Array, V: Array) -> Node:
    """Write the equation of the scores A = Q K^T of the pairs of rows k <= i, and return the
    expression of A V at head j, row i, channel c; Q, K, V: (heads, rows, channels)."""
    n, l, h = Q.shape
    j, i, c = f.index("j", 1, n), f.index("i", 1, l), f.index("c", 1, h)
    k = f.index("k", 1, i)
    A = scores(f, "A", Q, K)
    return sum_(A[j, i, k] * V[j, k, c], over=k)


CAUSAL: Mapping[str, Product] = {"recurrent": recurrent, "parallel": parallel}

simple_causal = simple(
    "simple-causal", "Simple, causal", "q S, S a carried sum of k v", forms=CAUSAL
)
simple_causal_res = simple(
    "simple-causal-res",
    "Simple-Res, causal",
    "Simple, causal, and the input is added",
    residual=True,
    forms=CAUSAL,
)
simple_causal_resl = simple(
    "simple-causal-resl",
    "Simple-ResL, causal",
    "Simple, causal, with a linear map, and the input is added",
    residual=True,
    output=True,
    forms=CAUSAL,
)
