"""What are the equations of differential attention, where two softmaxes are subtracted?

Ye et al. 2024. Each of n heads has two queries and two keys of h channels, whose softmaxes weigh
the same rows, and values of 2h channels:

    O = (A_1 - lambda A_2) V,   lambda = exp(q_1 k_1) - exp(q_2 k_2) + lambda_0.

In the paper h is d/(2n). All heads share the parameters q_1, k_1, q_2 and k_2. lambda_0 is that of
layer 0 of 0.8 - 0.6 e^(-0.3 layer), 0.2. An RMS norm of each O without weights, times 1 - lambda_0,
comes before the output.

`difference` subtracts the weights, as printed; `outputs` reads the values with both and subtracts
what was read, as transformers' DiffLlama does. Keys and values of g heads for n/g heads each are
DiffLlama's, which counts two heads for one of these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import partial

from costmodel.language.equations import Form, Mixer
from costmodel.language.macros.norms import rms_norm
from costmodel.language.macros.positions import rotary
from costmodel.language.macros.softmax import scaled, softmax
from costmodel.language.nodes import Array, Constant, Node
from costmodel.language.options import Chosen, offering
from costmodel.language.writing import exp, sum_
from costmodel.mixers.self_attention import angle
from costmodel.symbolic.polynomial import Poly

FIRST = Fraction(1, 5)
"""lambda_0 of layer 0."""


def turned(f: Form, name: str, product: Node, *at: object) -> Array:
    """Define and return an array `name` of queries or keys: the `product` at the indices `at`, the
    last two row and channel, after the rotary embedding if the mixer has tables of cosines."""
    h, arrays, (i, c) = f.mixer.sizes("h")[0], f.mixer.arrays, at[-2:]
    shape = [index.upper[0] for index in at]  # type: ignore[attr-defined]
    found = f.array(name, *shape)
    if "cos" not in arrays:
        found[at] = product
        return found
    raw = f.array(f"{name}_p", *shape)
    raw[at] = product
    tables = {"cos": arrays["cos"][i, c], "sin": arrays["sin"][i, c]}
    found[at] = rotary(raw[at], over=c, pairs=f.index("p", 1, h / 2), **tables)  # type: ignore[arg-type]
    return found


def table(
    turn: Callable[[float], float], h: Poly, row: int, channel: int, sizes: Mapping[str, int]
) -> float:
    """The cosine or sine (`turn`) of the angle of a channel at a row, for a head of h channels;
    equal for c and c + h/2."""
    half = max(1, h.at(sizes) // 2)
    return turn(angle(row, (channel - 1) % half + 1, half))


@offering({"rotary": "rotary embedding of queries and keys, channel c with c + h/2"})
def differential_attention(chosen: Chosen) -> Mixer:
    """The mixer of differential attention: in each head the first softmax minus lambda times a
    second (axis of 2); n/g heads of a group share keys and values. Form `difference` subtracts the
    softmaxes, `outputs` the sums they weigh. What a head reads, O, is RMS normed to N."""
    m = Mixer(
        "differential-attention",
        title="Differential attention",
        idea="a softmax less lambda times another one reads the values",
        source="Ye et al. 2024, arXiv 2410.05258, section 2.1, equations (1)-(3)",
        group="attention",
    )
    l, d, n, g, h = m.sizes("l d n g h")  # tokens, channels, heads, groups, channels a head
    own = n / g  # heads of a group
    x, y = m.input("x", l, d), m.output("y", l, d)
    W_Q, W_K = m.parameter("W_Q", d, 2, g, own * h), m.parameter("W_K", d, 2, g, h)
    W_V, W_out = m.parameter("W_V", d, g, 2 * h), m.parameter("W_out", g, own * 2 * h, d)
    of_lambda = [m.parameter(f"lambda_{one}", 2, h, latex=rf"\lambda_{one}") for one in "QK"]
    if "rotary" in chosen:
        for name, turn in (("cos", math.cos), ("sin", math.sin)):
            m.buffer(name, l, h, value=partial(table, turn, h))
    for form in ("difference", "outputs"):
        with m.form(form) as f:
            i, j, o = f.index("i", 1, l), f.index("j", 1, g), f.index("o", 1, own)
            s, u, k = f.index("s", 1, 2), f.index("u", 1, 1), f.index("k", 1, i)  # s: softmax
            a, b, c, v = (f.index(*of) for of in
                          (("a", 1, d), ("b", 1, d), ("c", 1, h), ("v", 1, 2 * h)))  # fmt: skip
            r = f.index("r", 1, own * 2 * h)
            head = j, o
            T, L = f.array("T", 2), f.array("L", 1, latex=r"\lambda")
            T[s] = exp(sum_(of_lambda[0][s, c] * of_lambda[1][s, c], over=c))
            L[u] = T[1] - T[2] + Constant(Poly.of(FIRST))  # lambda
            queries = sum_(x[i, a] * W_Q[a, s, j, (o - 1) * h + c], over=a)
            Q = turned(f, "Q", queries, s, j, o, i, c)
            K = turned(f, "K", sum_(x[i, a] * W_K[a, s, j, c], over=a), s, j, i, c)
            V = f.array("V", g, l, 2 * h)
            V[j, i, v] = sum_(x[i, a] * W_V[a, j, v], over=a)
            Z, A = (f.array(name, 2, g, own, l, l) for name in "ZA")
            Z[s, *head, i, k] = scaled(sum_(Q[s, *head, i, c] * K[s, j, k, c], over=c), by=h)
            A[s, *head, i, k] = softmax(Z[s, *head, i, k], over=k)
            O = f.array("O", g, own, l, 2 * h)
            if form == "difference":
                D = f.array("D", g, own, l, l)
                D[*head, i, k] = A[1, *head, i, k] - L[1] * A[2, *head, i, k]
                O[*head, i, v] = sum_(D[*head, i, k] * V[j, k, v], over=k)
            else:
                U = f.array("U", 2, g, own, l, 2 * h)
                U[s, *head, i, v] = sum_(A[s, *head, i, k] * V[j, k, v], over=k)
                O[*head, i, v] = U[1, *head, i, v] - L[1] * U[2, *head, i, v]
            N, R = f.array("N", g, own, l, 2 * h), f.array("R", l, g, own * 2 * h)
            N[*head, i, v] = rms_norm(O[*head, i, v], over=v)
            R[i, j, (o - 1) * 2 * h + v] = Constant(Poly.of(1 - FIRST)) * N[*head, i, v]
            y[i, b] = sum_(R[i, j, r] * W_out[j, r, b], over=(j, r))
    return m
