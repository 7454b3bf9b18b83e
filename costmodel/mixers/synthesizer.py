"""What are the equations of the Synthesizer: attention whose scores come from no pair of tokens?

Tay et al. 2020. A token's scores of the l positions are a function of the token alone (dense), or
parameters (random); either may be factorized. The values, the softmax and the output are those of
attention, without a scale. Plain, a token attends to all l positions, as in an encoder; `causal` is
the paper's language model. Softmaxes of parameters alone are done once a forward pass.

Read from the paper, and from the authors' code (Mesh TensorFlow, class Synthesizer):
- no layer has a bias: the paper prints biases of F, its table of parameters counts none;
- of n heads each has functions of its own, for its own h channels. The first layer of F is then one
  (d, d) matrix, and the layers after it count dl or d (k1 + k2), as the table has it, for any n.
  The code has one (h, l) matrix for all heads in the dense one. R, R1 and R2 are a head's own;
- values have a projection W_V (the paper's G), and W_out follows the heads;
- the rank of R1 R2^T, the paper's k, is r. The two factors of a token have B and ceil(l/B)
  entries, the paper's k1 and k2 with k1 k2 = l, of which l products are used: position k takes
  entry (k-1) mod B + 1 of one and floor((k-1)/B) + 1 of the other. There is no causal variant: how
  many entries a token has would follow from the length of the whole sequence.
"""

from __future__ import annotations

from collections.abc import Callable

from costmodel.language.equations import Form, Mixer
from costmodel.language.indices import Index, min_
from costmodel.language.macros.softmax import softmax
from costmodel.language.nodes import Array
from costmodel.language.options import Family, offering
from costmodel.language.writing import function, sum_

Scores = Callable[[Form, Array, Index], Array]
"""A function of the form, x (l, d) and the index k of the positions that row i attends to. It
returns the scores Z (n, l, l), a parameter or an array that is defined at head j, row i and k."""


def hidden(f: Form, x: Array) -> Array:
    """Define and return H (n, l, h) = relu(x W_F): h channels for each of n heads; declares W_F."""
    (n, h), (l, d) = f.mixer.sizes("n h"), x.shape
    i, j, c, a = f.index("i", 1, l), f.index("j", 1, n), f.index("c", 1, h), f.index("a", 1, d)
    W_F, H = f.mixer.parameter("W_F", d, d), f.array("H", n, l, h)
    H[j, i, c] = function("relu", sum_(x[i, a] * W_F[a, (j - 1) * h + c], over=a))
    return H


def dense(f: Form, x: Array, k: Index) -> Array:
    """Define and return the dense scores Z (n, l, l) of head j, row i and row `k` attended to, a
    function of row i of x alone: H = relu(x W_F) (n, l, h), times a matrix W (h, l) per head."""
    H = hidden(f, x)
    n, l, h = H.shape
    W, Z = f.mixer.parameter("W", n, h, l), f.array("Z", n, l, l)
    i, j, c = f.indices["i"], f.indices["j"], f.indices["c"]
    Z[j, i, k] = sum_(H[j, i, c] * W[j, c, k], over=c)
    return Z


def factorized_dense(f: Form, x: Array, k: Index) -> Array:
    """Define and return the factorized dense scores Z (n, l, l): row i gives B entries S and
    ceil(l/B) entries P, and position (p - 1)*B + e has the score P[p] S[e]. `k` is not used."""
    H, (B,) = hidden(f, x), f.mixer.sizes("B")
    n, l, h = H.shape
    blocks = (l + B - 1) // B
    i, j, c = f.indices["i"], f.indices["j"], f.indices["c"]
    W_P, W_S = f.mixer.parameter("W_P", n, h, blocks), f.mixer.parameter("W_S", n, h, B)
    P, S, Z = f.array("P", n, l, blocks), f.array("S", n, l, B), f.array("Z", n, l, l)
    p, s = f.index("p", 1, blocks), f.index("s", 1, min_(B, l))
    e = f.index("e", 1, min_(B, l - (p - 1) * B))
    P[j, i, p] = sum_(H[j, i, c] * W_P[j, c, p], over=c)
    S[j, i, s] = sum_(H[j, i, c] * W_S[j, c, s], over=c)
    Z[j, i, (p - 1) * B + e] = P[j, i, p] * S[j, i, e]
    return Z


def random(f: Form, x: Array, k: Index) -> Array:
    """The random scores R (n, l, l), which are trained or stay as they were drawn."""
    (n,), (l, _) = f.mixer.sizes("n"), x.shape
    return f.mixer.parameter("R", n, l, l)


def factorized_random(f: Form, x: Array, k: Index) -> Array:
    """Define and return the random scores Z (n, l, l): parameters R_1 R_2^T of rank r, which do not
    depend on x; of x only the extents are used. `k` is the index of the rows attended to."""
    (n, r), (l, _) = f.mixer.sizes("n r"), x.shape
    R_1, R_2 = f.mixer.parameter("R_1", n, l, r), f.mixer.parameter("R_2", n, l, r)
    Z = f.array("Z", n, l, l)
    i, j, c = f.index("i", 1, l), f.index("j", 1, n), f.index("c", 1, r)
    Z[j, i, k] = sum_(R_1[j, i, c] * R_2[j, k, c], over=c)
    return Z


def written(name: str, title: str, idea: str, scores: Scores, *, causal: bool) -> Mixer:
    """The mixer of attention to scores Z (n, l, l) that are no products of queries and keys:
    `scores` defines them, for the form, x and the index k of the rows seen; k <= i if `causal`."""
    source = "Tay et al. 2020, arXiv 2005.00743, section 3"
    m = Mixer(name, title=title, idea=idea, source=source, group="attention")
    l, d, n, h = m.sizes("l d n h")  # tokens, channels, heads, channels a head
    x, y = m.input("x", l, d), m.output("y", l, d)
    W_V, W_out = m.parameter("W_V", d, d), m.parameter("W_out", d, d)
    with m.form("direct") as f:
        i, j = f.index("i", 1, l), f.index("j", 1, n)
        a, b, v = f.index("a", 1, d), f.index("b", 1, d), f.index("v", 1, h)
        k = f.index("k", 1, i if causal else l)
        Z = scores(f, x, k)
        V, A, O = f.array("V", n, l, h), f.array("A", n, l, l), f.array("O", l, d)
        V[j, i, v] = sum_(x[i, a] * W_V[a, (j - 1) * h + v], over=a)
        A[j, i, k] = softmax(Z[j, i, k], over=k)
        O[i, (j - 1) * h + v] = sum_(A[j, i, k] * V[j, k, v], over=k)
        y[i, b] = sum_(O[i, a] * W_out[a, b], over=a)
    return m


def synthesizer(name: str, title: str, idea: str, scores: Scores) -> Family:
    """Attention with these scores, to all positions or to the earlier ones."""
    return offering({"causal": "a token attends to itself and those before it"})(
        lambda chosen: written(name, title, idea, scores, causal="causal" in chosen)
    )


synthesizer_dense = synthesizer(
    "synthesizer-dense", "Synthesizer, dense", "a token alone says how it weighs the others", dense
)
synthesizer_random = synthesizer(
    "synthesizer-random", "Synthesizer, random", "weights of positions are parameters", random
)
synthesizer_factorized_random = synthesizer(
    "synthesizer-factorized-random",
    "Synthesizer, factorized random",
    "weights of positions are parameters of rank r",
    factorized_random,
)
synthesizer_factorized_dense = written(
    "synthesizer-factorized-dense",
    "Synthesizer, factorized dense",
    "a token's weights are products of B and l/B numbers",
    factorized_dense,
    causal=False,
)
