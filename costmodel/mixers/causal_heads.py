"""What are the equations of Terroa's causal attention heads: SSA, LSA, VSA and their combinations?

J. F. G. V. Terroa, "Exploring Causal Attention Models in Transformers for Large Language Models",
2024. All are multi-head causal self-attention, eqs. (2.2)-(2.5), with other scores or values. The
thesis gives equations for the scores, but words and figures for the values (sections 4.2.1 and
4.3). `ssa-split` and the input of the gate are taken from the author's code, nanogpt-benchmarks.
The widening factor v is called k in the thesis.

Choices: each head has its own weights, in its own columns of one array, also for W_U (d, n*d), L_1
and L_2, as the parameter counts of Tables 7.4 and 7.7 require. (In nanogpt-benchmarks the heads of
a layer share L_1 and L_2, and each linear map has a bias.) The scale sqrt(d_k) is sqrt(h), the
width of the keys that W_U replaces; in `ssa-split` it is sqrt(d). The mixers have no biases; the
option `output-bias` adds the bias on the output projection that the thesis's network has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from costmodel.language.equations import Form, Mixer
from costmodel.language.indices import Index
from costmodel.language.macros.softmax import scaled, softmax
from costmodel.language.nodes import Array, Node
from costmodel.language.options import Family
from costmodel.language.writing import function, sum_
from costmodel.symbolic.polynomial import Poly

THESIS = "Terroa 2024, MSc thesis, Universidade de Lisboa, hdl 10400.5/96896"
CODE = "Terroa 2024, the repository joaoterroa/nanogpt-benchmarks"

OPTIONS: Mapping[str, str] = {"output-bias": "b_out, a bias on the output alone"}
"""The option of all mixers of the family, used by the thesis's network."""

Scores = Callable[[Form, Poly], Node]
"""A function of a form and the width of a head's queries and keys. It declares weights, defines the
arrays that the scores read, and returns the scaled score of head j, token i and token k <= i."""


def _common(f: Form) -> tuple[Array, Index, Index, Index, Index]:
    """The input x (l, d), and the indices of head j, token i, token k <= i and input channel a."""
    x = f.mixer.role("input")
    l, d, n = f.mixer.sizes("l d n")
    i = f.index("i", 1, l)
    return x, f.index("j", 1, n), i, f.index("k", 1, i), f.index("a", 1, d)


def _projected_rows(
    f: Form, name: str, weights: str, width: Poly, channel: str, cite: str
) -> Array:
    """Define and return `name` (n, l, width), the projection x W split into n heads. W (d, n*width)
    is declared under the name `weights`; `channel` names the index of a head's channels; `cite` is
    the equation's number in the thesis."""
    x, j, i, _, a = _common(f)
    l, d, n = f.mixer.sizes("l d n")
    c = f.index(channel, 1, width)
    W = f.mixer.parameter(weights, d, n * width)
    rows = f.array(name, n, l, width, cite=cite)
    rows[j, i, c] = sum_(x[i, a] * W[a, (j - 1) * width + c], over=a)
    return rows


def by_queries_and_keys(f: Form, width: Poly) -> Node:
    """Eqs. (4.1)-(4.2): write the equations of queries and keys, of a `width` per head, and return
    the expression of the scaled score of head j, row i and key k."""
    _, j, i, k, _ = _common(f)
    Q = _projected_rows(f, "Q", "W_Q", width, "c", "(4.2)")
    K = _projected_rows(f, "K", "W_K", width, "c", "(4.2)")
    c = f.index("c", 1, width)
    return scaled(sum_(Q[j, i, c] * K[j, k, c], over=c), by=width)


def by_one_matrix(f: Form, width: Poly) -> Node:
    """Eq. (4.5): write the equation of x W_U, with a (d, d) matrix per head, and return the
    expression of the score (x W_U) x^T over the root of `width` at head j, row i and key k."""
    x, j, i, k, _ = _common(f)
    d = x.shape[1]
    Q = _projected_rows(f, "Q", "W_U", d, "c", "(4.5)")
    c = f.index("c", 1, d)
    return scaled(sum_(Q[j, i, c] * x[k, c], over=c), by=width)


def by_one_split_matrix(f: Form, width: Poly) -> Node:
    """heads/ssa.py of the author's code: define x W_U and return the score of head j, row i, key k:
    the product of x W_U and x, both split into heads `width` wide, over the root of d."""
    x, j, i, k, _ = _common(f)
    d = x.shape[1]
    Q = _projected_rows(f, "Q", "W_U", width, "c", "heads/ssa.py")
    c = f.index("c", 1, width)
    return scaled(sum_(Q[j, i, c] * x[k, (j - 1) * width + c], over=c), by=d)


def _gated_values(f: Form, V: Array) -> Array:
    """Section 4.2.1: write the equations of (V + L_1 V) * sigmoid(L_2 V), entry by entry, and
    return this array; L_1 and L_2 are maps of each head's channels. V is (heads, tokens, width)."""
    n, l, width = V.shape
    _, j, i, _, _ = _common(f)
    e, g = f.index("e", 1, width), f.index("g", 1, width)
    L_1, L_2 = (f.mixer.parameter(name, width, n * width) for name in ("L_1", "L_2"))
    column = (j - 1) * width + e
    added = f.array("V_added", n, l, width, cite="section 4.2.1")
    gate = f.array("V_gate", n, l, width, cite="section 4.2.1")
    gated = f.array("V_gated", n, l, width, cite="section 4.2.1")
    added[j, i, e] = sum_(V[j, i, g] * L_1[g, column], over=g)
    gate[j, i, e] = function("sigmoid", sum_(V[j, i, g] * L_2[g, column], over=g))
    gated[j, i, e] = (V[j, i, e] + added[j, i, e]) * gate[j, i, e]
    return gated


def heads(
    name: str,
    title: str,
    idea: str,
    source: str,
    *,
    scores: Scores = by_queries_and_keys,
    layered: bool = False,
    wide: str = "",
    output_bias: bool = False,
) -> Mixer:
    """One mixer of the family: causal attention in n heads, concatenated and projected by W_out.
    Its one form is `direct`. The texts (`name` to `source`) are those of `Mixer`.

    Args:
        scores: the function that gives the scores of row i and key k, from the form and a width.
        layered: whether the maps L_1 and L_2 act on the values.
        wide: which widths are v*h instead of h: none (""), the widths of queries and keys
            ("scores"), or all widths of a head, values, L_1, L_2 and W_out included ("head").
        output_bias: whether b_out (d,) is added to y, as in the thesis's network.
    """
    m = Mixer(name, title=title, idea=idea, source=source, group="attention")
    l, d, n, h = m.sizes("l d n h")
    widened = m.sizes("v")[0] * h if wide else h
    width = widened if wide == "head" else h
    m.input("x", l, d)
    y = m.output("y", l, d, cite="(2.4)")

    with m.form("direct") as f:
        _, j, i, k, _ = _common(f)
        e, b, r = f.index("e", 1, width), f.index("b", 1, d), f.index("r", 1, n * width)
        score = scores(f, widened)
        V = _projected_rows(f, "V", "W_V", width, "e", "(4.6)")
        if layered:
            V = _gated_values(f, V)
        W_out = m.parameter("W_out", n * width, d)
        Z, A = (f.array(name, n, l, l, cite="(2.2)") for name in ("Z", "A"))
        R = f.array("R", l, n * width, cite="(2.2)")
        Z[j, i, k] = score
        A[j, i, k] = softmax(Z[j, i, k], over=k)
        R[i, (j - 1) * width + e] = sum_(A[j, i, k] * V[j, k, e], over=k)
        output = sum_(R[i, r] * W_out[r, b], over=r)
        y[i, b] = output + m.parameter("b_out", d)[b] if output_bias else output
    return m


def offered(make: Callable[..., Mixer]) -> Family:
    """The member of the family that `make` builds, with the option `output-bias`."""
    return Family(lambda chosen: make(output_bias="output-bias" in chosen), OPTIONS)


ssa = offered(
    partial(
        heads,
        "ssa",
        "SSA",
        "one matrix scores two tokens, no queries, no keys",
        f"{THESIS}, section 4.1.1",
        scores=by_one_matrix,
    )
)
ssa_split = offered(
    partial(
        heads,
        "ssa-split",
        "SSA, split",
        "SSA, each head on its own channels",
        f"{CODE}, heads/ssa.py",
        scores=by_one_split_matrix,
    )
)
lsa = offered(
    partial(
        heads,
        "lsa",
        "LSA",
        "self-attention whose values pass a gated layer",
        f"{THESIS}, section 4.2.1",
        layered=True,
    )
)
vsa = offered(
    partial(
        heads,
        "vsa",
        "VSA",
        "self-attention with wider queries and keys",
        f"{THESIS}, section 4.2.2",
        wide="scores",
    )
)
slsa = offered(
    partial(
        heads,
        "slsa",
        "SLSA",
        "SSA whose values pass a gated layer",
        f"{THESIS}, section 4.3.1",
        scores=by_one_matrix,
        layered=True,
    )
)
vlsa = offered(
    partial(
        heads,
        "vlsa",
        "VLSA",
        "VSA whose values pass a gated layer",
        f"{THESIS}, section 4.3.2",
        layered=True,
        wide="scores",
    )
)
vlsa_trained = offered(
    partial(
        heads,
        "vlsa-trained",
        "VLSA, as trained",
        "LSA with heads that are wider as a whole",
        f"{THESIS}, section 4.3.2 and Tables 7.4 and 7.7",
        layered=True,
        wide="head",
    )
)
