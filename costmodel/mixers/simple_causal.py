"""What are the equations of SimpleTRON's attention under a causal mask, so that it can generate?

Yorsh et al. 2021 sum over the whole sequence; here token i reads the sums over tokens 1..i, which
is another function. `recurrent` carries the sum of k v^T from row to row, `parallel` scores the
pairs that the mask leaves. Everything else is as in costmodel.mixers.simple.

Every row keeps the factor 1/sqrt(l), with l the length that the mixer is made for: with 1/sqrt(i),
row i would not be a part of the paper's own sum.
"""

from __future__ import annotations

from collections.abc import Mapping

from costmodel.language.equations import Form
from costmodel.language.nodes import Array, Node
from costmodel.language.writing import sum_
from costmodel.mixers.linear_attention import running_product, scores
from costmodel.mixers.simple import Product, simple


def recurrent(f: Form, Q: Array, K: Array, V: Array) -> Node:
    """Q S: a matrix S (h, h) per head is carried from row to row."""
    n, l, h = Q.shape
    j, i = f.index("j", 1, n), f.index("i", 1, l)
    p, c = f.index("p", 1, h), f.index("c", 1, h)
    S = running_product(f, "S", K, V)
    return sum_(Q[j, i, p] * S[j, i, p, c], over=p)


def parallel(f: Form, Q: Array, K: Array, V: Array) -> Node:
    """(Q K^T) V: a score for every pair that the mask leaves."""
    n, l, h = Q.shape
    j, i, c = f.index("j", 1, n), f.index("i", 1, l), f.index("c", 1, h)
    k = f.index("k", 1, i)
    A = scores(f, "A", Q, K)
    return sum_(A[j, i, k] * V[j, k, c], over=k)


FORMS: Mapping[str, Product] = {"recurrent": recurrent, "parallel": parallel}

simple_causal = simple(
    "simple-causal", "Simple, causal", "q S, S a carried sum of k v", forms=FORMS
)
simple_causal_res = simple(
    "simple-causal-res",
    "Simple-Res, causal",
    "Simple, causal, and the input is added",
    residual=True,
    forms=FORMS,
)
simple_causal_resl = simple(
    "simple-causal-resl",
    "Simple-ResL, causal",
    "Simple, causal, with a linear map, and the input is added",
    residual=True,
    output=True,
    forms=FORMS,
)
