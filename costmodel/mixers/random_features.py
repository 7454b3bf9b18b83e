"""What are the equations of attention whose softmax is a product of random features: Performer?

Choromanski et al. 2020. With w_1, ..., w_m drawn once and not trained, FAVOR+ has the features

    phi(u)_p = exp(w_p . u - |u|^2 / 2) / sqrt(m),  u = x / h^(1/4),

of queries and keys, whose products are exp(q . k / sqrt(h)) on average (Lemma 1). Keys then meet
the values first, as in linear attention, whose sums these are: over all rows, or `causal` up to
each row. The linear cost holds for a fixed m.

Read from the paper: all heads have the same w, as in the authors' code; how its rows are drawn
(orthogonal to each other, drawn anew now and then) is no work of a forward pass. Nothing is
subtracted in the exponent or added to the features for stability, as the code does.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from costmodel.language.equations import Form, Mixer
from costmodel.language.nodes import Array, Constant, Node
from costmodel.language.options import Chosen, offering
from costmodel.language.writing import exp, sum_
from costmodel.mixers.linear_attention import (
    FORMS,
    Features,
    Sums,
    attention_by_features,
    define_quotient,
)

CAUSAL = {"causal": "row i sums over rows up to i"}


def over_all(f: Form, Q: Array, K: Array, V: Array, R: Array) -> None:
    """One S and one Z: the sums over all rows."""
    (n, l, m), h = K.shape, V.shape[2]
    j, i = f.index("j", 1, n), f.index("i", 1, l)
    p, c = f.index("p", 1, m), f.index("c", 1, h)
    S, Z = f.array("S", n, m, h), f.array("Z", n, m)
    S[j, p, c] = sum_(K[j, i, p] * V[j, i, c], over=i)
    Z[j, p] = sum_(K[j, i, p], over=i)
    reads = sum_(Q[j, i, p] * S[j, p, c], over=p)
    define_quotient(f, R, reads, sum_(Q[j, i, p] * Z[j, p], over=p))


def sums(chosen: Chosen) -> Mapping[str, Sums]:
    """The ways to sum: those of linear attention where causal."""
    return FORMS if "causal" in chosen else {"direct": over_all}


def scaled_rows(f: Form, name: str, projected: Node) -> Array:
    """U (n, l, h): queries or keys, each divided by the fourth root of h."""
    l, n, h = f.mixer.sizes("l n h")
    U = f.array(f"U_{name}", n, l, h)
    U[f.indices["j"], f.indices["i"], f.indices["c"]] = Constant(h, Fraction(-1, 2)) * projected
    return U


def positive(w: Array) -> Features:
    """The features of FAVOR+ for w (m, h)."""

    def features(f: Form, name: str, projected: Node) -> Array:
        U = scaled_rows(f, name, projected)
        (n, l, _), m = U.shape, w.shape[0]
        j, i, p, c = f.indices["j"], f.indices["i"], f.index("p", 1, m), f.indices["c"]
        N, phi = f.array(f"N_{name}", n, l), f.array(name, n, l, m, latex=rf"\phi({name})")
        N[j, i] = sum_(U[j, i, c] * U[j, i, c], over=c) / 2
        exponent = sum_(w[p, c] * U[j, i, c], over=c) - N[j, i]
        phi[j, i, p] = Constant(m, -1) * exp(exponent)
        return phi

    return features


@offering(CAUSAL)
def performer(chosen: Chosen) -> Mixer:
    """Performer: FAVOR+ for the softmax."""
    m = Mixer(
        "performer",
        title="Performer",
        idea="random features whose products are the softmax's",
        source="Choromanski et al. 2020, arXiv 2009.14794, Lemma 1 and equation (4)",
        group="linear",
    )
    *_, h, features = m.sizes("l d n h m")
    return attention_by_features(m, positive(m.buffer("w", features, h)), sums(chosen))
