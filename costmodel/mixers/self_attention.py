"""What are the equations of multi-head self-attention, and of its variants?

The plain mixer is causal, has no biases, and its heads are d/n wide, as in Chen 2023. Options add
biases, attention to all tokens, other widths of keys and values, or a second sequence from which
keys and values come.
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
}
SOURCES = {
    "bias": f"biases as {TORCH} has them",
    "output-bias": f"the output's bias as {TORCH} has it",
    "bidirectional": f"{VASWANI}, section 3.2.3: the encoder's self-attention",
    "wide": f"{VASWANI}, section 3.2.2: d_k and d_v are K and V",
    "cross": f"{VASWANI}, section 3.2.3: encoder-decoder attention",
}
APART = {
    ("bias", "output-bias"): "'bias' has b_out among its biases",
    ("bidirectional", "cross"): "with 'cross' a token attends to all e tokens of z as it is",
}


def with_bias(product: Node, bias: Array | None, at: object) -> Node:
    """The value of a linear map plus its bias at position `at`, if it has a bias."""
    return product if bias is None else product + bias[at]


@offering(OPTIONS, APART)
def self_attention(chosen: Chosen) -> Mixer:
    """Self-attention with these options; each linear map is (in, out), its bias has extent out."""
    m = Mixer(
        "self-attention",
        title="Self-attention",
        idea="each token weighs earlier tokens by a softmax of q k",
        source="; ".join([CHEN, *(SOURCES[option] for option in OPTIONS if option in chosen)]),
        group="attention",
        references=() if "wide" in chosen else (TORCH,),
    )
    cited = not chosen
    l, d, n = m.sizes("l d n")
    key, value = m.sizes("K V" if "wide" in chosen else "h h")
    x = m.input("x", l, d)
    z = m.context("z", *m.sizes("e"), d) if "cross" in chosen else x
    y = m.output("y", l, d, cite="(17)" if cited else "")
    maps = {"Q": (d, n * key), "K": (d, n * key), "V": (d, n * value), "out": (n * value, d)}
    biased = maps if "bias" in chosen else {"out"} if "output-bias" in chosen else {}
    W_Q, W_K, W_V, W_out = (m.parameter(f"W_{name}", *shape) for name, shape in maps.items())
    b_Q, b_K, b_V, b_out = (
        m.parameter(f"b_{name}", shape[1]) if name in biased else None
        for name, shape in maps.items()
    )

    with m.form("direct") as f:
        i = f.index("i", 1, l)
        k = f.index("k", 1, z.shape[0] if chosen & {"bidirectional", "cross"} else i)
        s = k if "cross" in chosen else i
        j, c = f.index("j", 1, n), f.index("c", 1, key)
        a, b = f.index("a", 1, d), f.index("b", 1, d)
        v, r = (f.index("v", 1, value), f.index("r", 1, n * value)) if value != key else (c, a)

        def array(name: str, *shape: object, cite: str) -> Array:
            return f.array(name, *shape, cite=cite if cited else "")

        Q = array("Q", n, l, key, cite="(10)")
        K = array("K", n, z.shape[0], key, cite="(11)")
        V = array("V", n, z.shape[0], value, cite="(12)")
        Z = array("Z", n, l, z.shape[0], cite="(13)")
        A = array("A", n, l, z.shape[0], cite="(14)")
        R = array("R", l, n * value, cite="(15)-(16)")

        q, p = (j - 1) * key + c, (j - 1) * value + v
        Q[j, i, c] = with_bias(sum_(x[i, a] * W_Q[a, q], over=a), b_Q, q)
        K[j, s, c] = with_bias(sum_(z[s, a] * W_K[a, q], over=a), b_K, q)
        V[j, s, v] = with_bias(sum_(z[s, a] * W_V[a, p], over=a), b_V, p)
        Z[j, i, k] = scaled(sum_(Q[j, i, c] * K[j, k, c], over=c), by=key)
        A[j, i, k] = softmax(Z[j, i, k], over=k)
        R[i, p] = sum_(A[j, i, k] * V[j, k, v], over=k)
        y[i, b] = with_bias(sum_(R[i, r] * W_out[r, b], over=r), b_out, b)
    return m
