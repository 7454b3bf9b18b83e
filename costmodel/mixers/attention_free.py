"""What are the equations of the attention free transformer: AFT-full, -local and -simple?

Zhai et al. 2021, equation (2): every channel of row i is a weighted mean of the values, gated,

    sigmoid(Q_i) * (sum of exp(K_k + w_ik) V_k) / (sum of exp(K_k + w_ik)),

over all rows k, or with `causal` over rows up to i, as in the paper's language models. w is (l, l),
or U T^T of rank r (section 3.2, `factorized`). `separate` computes exp(K) and exp(w) apart, so that
sums over rows are matrix products; exp(w) is then work on weights alone.

In AFT-local w_ik is 0 unless |i - k| is less than a window w, the paper's s; within the window,
w_ik is row i, column k - i + w of the parameter u, of 2w - 1 columns. Columns with k outside of
1..l are not read: at w = l the rows read l^2 of the l(2l - 1) entries. The paper has no window
beyond l; there, u has columns that no row reads: parameters count them, weights read do not.
`windowed` sums all rows once, and adds for row i the sum of exp(w_ik) - 1 times the rows of its
window, as the paper does for AFT-conv. In AFT-simple w_ik is 0 (section 3.2). As in the paper,
there is no output projection, and no bias.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from costmodel.language.equations import Form, Mixer
from costmodel.language.indices import Index, max_, min_, union
from costmodel.language.macros.softmax import softmax
from costmodel.language.nodes import Array, Node
from costmodel.language.options import Chosen, offering
from costmodel.language.writing import exp, function, sum_

SOURCE = "Zhai et al. 2021, arXiv 2105.14103"
CAUSAL = {"causal": "row i is a mean over rows up to i"}
FACTORIZED = {"factorized": "w of rank r"}


class Means(Protocol):
    """A function that returns the weighted mean of values at row i, channel c."""

    def __call__(self, f: Form, K: Array, V: Array, k: Index, w: Array) -> Node:
        """Keys K and values V (l, d), the index k of the rows that row i sees, and weights w
        (l, l), defined at row i and row k."""
        ...


def direct(f: Form, K: Array, V: Array, k: Index, w: Array) -> Node:
    """Define E (l, l, d) = exp(K + w), for each pair of rows and channel, and return, at row i and
    channel c, the mean of the values V (l, d) over rows k, weighted by E."""
    (l, d), i, c = K.shape, f.indices["i"], f.indices["c"]
    E = f.array("E", l, l, d)
    E[i, k, c] = exp(K[k, c] + w[i, k])
    return sum_(E[i, k, c] * V[k, c], over=k) / sum_(E[i, k, c], over=k)


def separate(f: Form, K: Array, V: Array, k: Index, w: Array) -> Node:
    """Write the equations of E_w (l, l) = exp(w), E_K (l, d) = exp(K), and of the mean's numerator
    N and denominator D (l, d), which are matrix products; return N / D at row i and channel c: the
    mean of the values V (l, d) over rows k, weighted by exp(K + w)."""
    (l, d), i, c = K.shape, f.indices["i"], f.indices["c"]
    E, W = f.array("E_K", l, d, latex="e^K"), f.array("E_w", l, l, latex="e^w")
    P, N, D = f.array("P", l, d), f.array("N", l, d), f.array("D", l, d)
    E[i, c] = exp(K[i, c])
    W[i, k] = exp(w[i, k])
    P[i, c] = E[i, c] * V[i, c]
    N[i, c] = sum_(W[i, k] * P[k, c], over=k)
    D[i, c] = sum_(W[i, k] * E[k, c], over=k)
    return N[i, c] / D[i, c]


FORMS: Mapping[str, Means] = {"direct": direct, "separate": separate}


def projected(f: Form, x: Array) -> tuple[Array, Array, Array]:
    """Define and return sigmoid(x W_Q), x W_K and x W_V in the form: Q, K and V, (l, d) each."""
    l, d = x.shape
    i, c, a = f.index("i", 1, l), f.index("c", 1, d), f.index("a", 1, d)
    W_Q, W_K, W_V = (f.mixer.arrays[f"W_{name}"] for name in "QKV")
    Q = f.array("Q", l, d, latex=r"\sigma(Q)")
    K, V = f.array("K", l, d), f.array("V", l, d)
    Q[i, c] = function("sigmoid", sum_(x[i, a] * W_Q[a, c], over=a))
    K[i, c] = sum_(x[i, a] * W_K[a, c], over=a)
    V[i, c] = sum_(x[i, a] * W_V[a, c], over=a)
    return Q, K, V


def begun(name: str, title: str, idea: str, place: str) -> Mixer:
    """A new mixer with x, y (l, d) and W_Q, W_K, W_V (d, d) declared; `place`: its part of the
    paper."""
    m = Mixer(name, title=title, idea=idea, source=f"{SOURCE}, {place}", group="linear")
    l, d = m.sizes("l d")
    m.input("x", l, d)
    m.output("y", l, d)
    for letter in "QKV":
        m.parameter(f"W_{letter}", d, d)
    return m


@offering(CAUSAL | FACTORIZED)
def aft_full(chosen: Chosen) -> Mixer:
    """The mixer AFT-full: y is Q = sigmoid(x W_Q) times a mean of values, weighted by exp(K + w),
    where w (l, l) has a weight for each pair of rows, or is U T^T of rank r (`factorized`). Forms:
    `direct` (exp of each sum K + w) and `separate` (exp(K) and exp(w) apart)."""
    m = begun(
        "aft-full",
        "AFT-full",
        "a weighted mean per channel, weights by key and position",
        "equation (2)",
    )
    x, y = m.arrays["x"], m.arrays["y"]
    l, _ = x.shape
    if "factorized" in chosen:
        (r,) = m.sizes("r")
        U, T = m.parameter("U", l, r), m.parameter("T", l, r)
    else:
        given = m.parameter("w", l, l)
    for form, means in FORMS.items():
        with m.form(form) as f:
            Q, K, V = projected(f, x)
            i, c = f.indices["i"], f.indices["c"]
            k = f.index("k", 1, i if "causal" in chosen else l)
            if "factorized" in chosen:
                p, w = f.index("p", 1, r), f.array("w", l, l)
                w[i, k] = sum_(U[i, p] * T[k, p], over=p)
            else:
                w = given
            y[i, c] = Q[i, c] * means(f, K, V, k, w)
    return m


def summed(f: Form, name: str, rows: Array, *, causal: bool) -> Array:
    """Define and return `name`: the sum of all rows, (d,), or if `causal` the running sums, (l,
    d)."""
    (l, d), i, c = rows.shape, f.indices["i"], f.indices["c"]
    if not causal:
        total = f.array(name, d)
        total[c] = sum_(rows[i, c], over=i)
        return total
    later, sums = f.index("r", 2, l), f.array(name, l, d)
    sums[1, c] = rows[1, c]
    sums[later, c] = sums[later - 1, c] + rows[later, c]
    return sums


@offering(CAUSAL)
def aft_local(chosen: Chosen) -> Mixer:
    """The mixer AFT-local: weights u (l, 2w - 1), or (l, w) if causal, for the rows fewer than w
    apart; for all others u is 0. Form `direct` sums exp(K + u) V and exp(K + u) over the window,
    exp(K) V and exp(K) outside; `windowed` sums exp(K) V and exp(K) over all rows, with corrections
    exp(u) - 1 within the window (N: weighted values, D: weights)."""
    m = begun(
        "aft-local",
        "AFT-local",
        "AFT-full whose positions weigh nearby alone",
        "section 3.2, for w <= l",
    )
    x, y = m.arrays["x"], m.arrays["y"]
    (l, d), (w,), causal = x.shape, m.sizes("w"), "causal" in chosen
    width = w if causal else 2 * w - 1
    u = m.parameter("u", l, width)
    with m.form("direct") as f:
        Q, K, V = projected(f, x)
        i, c = f.indices["i"], f.indices["c"]
        k = f.index("k", max_(1, i - w + 1), i if causal else min_(l, i + w - 1))
        # k: rows in the window of row i; far: rows outside of the window
        far = f.index("o", 1, i - w) if causal else f.index("o", union((1, i - w), (i + w, l)))
        behind, ahead = (1, l - w), (max_(w + 1, l - w + 1), l)
        # rows outside of the window of some row: only they need exp(K) without u
        seen = f.index("p", *behind) if causal else f.index("p", union(behind, ahead))
        E, F = f.array("E", l, l, d), f.array("E_K", l, d, latex="e^K")
        E[i, k, c] = exp(K[k, c] + u[i, k - i + w])
        F[seen, c] = exp(K[seen, c])
        above = sum_(E[i, k, c] * V[k, c], over=k) + sum_(F[far, c] * V[far, c], over=far)
        below = sum_(E[i, k, c], over=k) + sum_(F[far, c], over=far)
        y[i, c] = Q[i, c] * (above / below)
    with m.form("windowed") as f:
        Q, K, V = projected(f, x)
        i, c = f.indices["i"], f.indices["c"]
        near = f.index("k", max_(1, w + 1 - i), w if causal else min_(2 * w - 1, l + w - i))
        E, P = f.array("E_K", l, d, latex="e^K"), f.array("P", l, d)
        W, N, D = f.array("E_u", l, width), f.array("N", l, d), f.array("D", l, d)
        E[i, c] = exp(K[i, c])
        P[i, c] = E[i, c] * V[i, c]
        W[i, near] = exp(u[i, near]) - 1
        for result, name, rows in ((N, "S_N", P), (D, "S_D", E)):
            sums = summed(f, name, rows, causal=causal)
            part = sum_(W[i, near] * rows[i + near - w, c], over=near)
            result[i, c] = (sums[i, c] if causal else sums[c]) + part
        y[i, c] = Q[i, c] * (N[i, c] / D[i, c])
    return m


@offering(CAUSAL)
def aft_simple(chosen: Chosen) -> Mixer:
    """The mixer AFT-simple, without weights by position. Form `direct`: a softmax of each channel
    of the keys over rows; with `causal`, form `recurrent`: running sums of exp(K) V and exp(K)."""
    m = begun(
        "aft-simple", "AFT-simple", "a weighted mean per channel, weights by key", "section 3.2"
    )
    x, y = m.arrays["x"], m.arrays["y"]
    l, d = x.shape
    with m.form("recurrent" if "causal" in chosen else "direct") as f:
        Q, K, V = projected(f, x)
        i, c = f.indices["i"], f.indices["c"]
        if "causal" not in chosen:
            A, R = f.array("A", l, d), f.array("R", d)
            A[i, c] = softmax(K[i, c], over=i)
            R[c] = sum_(A[i, c] * V[i, c], over=i)
            y[i, c] = Q[i, c] * R[c]
            return m
        E, P = f.array("E_K", l, d, latex="e^K"), f.array("P", l, d)
        E[i, c] = exp(K[i, c])
        P[i, c] = E[i, c] * V[i, c]
        N, D = (summed(f, *of, causal=True) for of in (("N", P), ("D", E)))
        y[i, c] = Q[i, c] * (N[i, c] / D[i, c])
    return m
