"""What are the equations of multi-head self-attention, and of its variants?

The plain mixer is causal, without biases, and has heads of width d/n, as in Chen 2023. Options add
biases, bidirectional attention, other widths of keys and values, grouped queries (GQA), or
cross-attention to a second sequence.
"""

from __future__ import annotations

from costmodel.language.equations import Mixer
from costmodel.language.macros.softmax import scaled, softmax
from costmodel.language.nodes import Array, Node
from costmodel.language.options import Chosen, offering
from costmodel.language.writing import sum_

CHEN = "Chen 2023, arXiv 2308.07661v2, eqs. (10)-(17)"
VASWANI = "Vaswani et al. 2017, arXiv 1706.03762"
TORCH = "torch.nn.MultiheadAttention"

OPTIONS = {
    "bias": "b_Q, b_K, b_V and b_out, a bias on each linear map",
    "output-bias": "b_out, a bias on the output alone",
    "bidirectional": "a token attends to all l tokens",
    "wide": "keys of width K and values of width V in each head, in place of d/n",
    "cross": "keys and values of a second sequence z of e tokens",
    "grouped": "keys and values in g heads, each for n/g heads of queries: GQA, or MQA with g = 1",
}
SOURCES = {
    "bias": f"biases as {TORCH} has them",
    "output-bias": f"the output's bias as {TORCH} has it",
    "bidirectional": f"{VASWANI}, section 3.2.3: the encoder's self-attention",
    "wide": f"{VASWANI}, section 3.2.2: d_k and d_v are K and V",
    "cross": f"{VASWANI}, section 3.2.3: encoder-decoder attention",
    "grouped": "Ainslie et al. 2023, arXiv 2305.13245, section 2.2; with g = 1, but for the scale, "
    "Shazeer 2019, arXiv 1911.02150, section 3",
}
APART = {
    ("bias", "output-bias"): "'bias' has b_out among its biases",
    ("bidirectional", "cross"): "with 'cross' a token attends to all e tokens of z as it is",
}


def with_bias(product: Node, bias: Array | None, at: object) -> Node:
    """The value of a linear map, plus its bias at position `at` if there is one."""
    return product if bias is None else product + bias[at]


@offering(OPTIONS, APART)
def self_attention(chosen: Chosen) -> Mixer:
    """Self-attention with options; weights are (in, out), biases (out,)."""
    m = Mixer(
        "self-attention",
        title="Self-attention",
        idea="each token weighs earlier tokens by a softmax of q k",
        source="; ".join([CHEN, *(SOURCES[option] for option in OPTIONS if option in chosen)]),
        group="attention",
        references=() if chosen & {"wide", "grouped"} else (TORCH,),
    )
    cited = not chosen
    l, d, n = m.sizes("l d n")
    key, value = m.sizes("K V" if "wide" in chosen else "h h")
    x = m.input("x", l, d)
    z = m.context("z", *m.sizes("e"), d) if "cross" in chosen else x
    y = m.output("y", l, d, cite="(17)" if cited else "")
    grouped = "grouped" in chosen
    (g,) = m.sizes("g") if grouped else (n,)
    # Output axes of W_Q, and input axes of W_out: all heads, or groups of n/g heads.
    queries, rows = ((g, n / g * x) if grouped else (n * x,) for x in (key, value))
    maps = {"Q": (d, *queries), "K": (d, g * key), "V": (d, g * value), "out": (*rows, d)}
    biased = maps if "bias" in chosen else {"out"} if "output-bias" in chosen else {}
    W_Q, W_K, W_V, W_out = (m.parameter(f"W_{name}", *shape) for name, shape in maps.items())
    b_Q, b_K, b_V, b_out = (
        m.parameter(f"b_{name}", *(shape[1:] if name != "out" else (d,)))
        if name in biased
        else None
        for name, shape in maps.items()
    )

    with m.form("direct") as f:
        i = f.index("i", 1, l)
        k = f.index("k", 1, z.shape[0] if chosen & {"bidirectional", "cross"} else i)
        s = k if "cross" in chosen else i
        j, c = f.index("j", 1, g), f.index("c", 1, key)
        o = f.index("o", 1, n / g) if grouped else j
        a, b = f.index("a", 1, d), f.index("b", 1, d)
        same = value == key and not grouped
        v, r = (c, a) if same else (f.index("v", 1, value), f.index("r", 1, rows[-1]))
        heads, head = ((g, n / g), (j, o)) if grouped else ((n,), (j,))
        group = (j,) if grouped else ()

        def array(name: str, *shape: object, cite: str) -> Array:
            return f.array(name, *shape, cite=cite if cited else "")

        Q = array("Q", *heads, l, key, cite="(10)")
        K = array("K", g, z.shape[0], key, cite="(11)")
        V = array("V", g, z.shape[0], value, cite="(12)")
        Z = array("Z", *heads, l, z.shape[0], cite="(13)")
        A = array("A", *heads, l, z.shape[0], cite="(14)")
        R = array("R", l, *rows, cite="(15)-(16)")

        q, p, w = (*group, (o - 1) * key + c), (j - 1) * key + c, (j - 1) * value + v
        Q[*head, i, c] = with_bias(sum_(x[i, a] * W_Q[a, *q], over=a), b_Q, q)
        K[j, s, c] = with_bias(sum_(z[s, a] * W_K[a, p], over=a), b_K, p)
        V[j, s, v] = with_bias(sum_(z[s, a] * W_V[a, w], over=a), b_V, w)
        Z[*head, i, k] = scaled(sum_(Q[*head, i, c] * K[j, k, c], over=c), by=key)
        A[*head, i, k] = softmax(Z[*head, i, k], over=k)
        R[i, *group, (o - 1) * value + v] = sum_(A[*head, i, k] * V[j, k, v], over=k)
        y[i, b] = with_bias(sum_(R[i, *group, r] * W_out[*group, r, b], over=(*group, r)), b_out, b)
    return m
