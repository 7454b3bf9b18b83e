"""What are the equations of the layers whose heads carry a matrix, the mLSTM and RWKV-7?

mLSTM, as in xLSTM 7B: n heads with keys of K and values of h channels. An input gate I and the
logarithm F of a forget gate, numbers of each head and row, are kept in range by M:

    M_i = max(F_i + M_(i-1), I_i),  P = exp(F_i + M_(i-1) - M_i),  E = exp(I_i - M_i),
    S = P S + E k v^T,  Z = P Z + E k,  H = q S / (max(|q Z|, exp(-M_i)) + 1e-6),

with q over sqrt(K). As the authors' code has it, M is 0 before the first row, and I and the operand
of F are 15 tanh(z / 15) of linear maps. Each head's H is normalised to mean 0 and variance 1, times
a gain and a sigmoid of a linear map. `parallel` weighs the products of a query and all earlier keys
by exp(G_i - G_k + I_k - M_i), where G is the running sum of F; the largest of these exponents
without M_i, which the paper subtracts, is M_i, so that M is computed by its recurrence.
"""

from __future__ import annotations

from fractions import Fraction

from costmodel.language.equations import Form, Mixer
from costmodel.language.macros.norms import layer_norm
from costmodel.language.macros.softmax import scaled
from costmodel.language.nodes import Array, Constant, Node
from costmodel.language.options import Chosen, offering
from costmodel.language.writing import exp, function, maximum, sum_
from costmodel.symbolic.polynomial import Poly

CAP = 15
"""The bound of both gates, gate_soft_cap of the authors' configuration."""

TINY = Constant(Poly.of(Fraction(1, 10**6)))
"""What is added to the denominator, eps of the authors' configuration; norm_eps is equal."""


@offering({"core": "the recurrence alone: bare projections and gates, no norm, no output gate"})
def mlstm(chosen: Chosen) -> Mixer:
    """The layer of xLSTM 7B, or with `core` its cells between linear maps."""
    m = Mixer(
        "mlstm",
        title="mLSTM",
        idea="a matrix of each head, with gates for what stays and what comes",
        source="Beck et al. 2025, arXiv 2503.13427, section 3; Beck et al. 2024, arXiv 2405.04517",
        group="recurrent",
    )
    l, d, n, h = m.sizes("l d n h")
    K = m.size("K", "key width of a head", 8)
    whole = "core" not in chosen
    m.input("x", l, d)
    y = m.output("y", l, d)
    for name, width in (("Q", K), ("K", K), ("V", h)):
        m.parameter(f"W_{name}", d, n * width)
    for name in "IF":
        m.parameter(f"W_{name}", d, n)
        if whole:
            m.parameter(f"b_{name}", n)
    if whole:
        m.parameter("W_O", d, n * h)
        m.parameter("gain", n * h)
    W_out = m.parameter("W_out", n * h, d)
    for form, read in (("recurrent", _recurrent), ("parallel", _parallel)):
        with m.form(form) as f:
            i, e, b = f.index("i", 1, l), f.index("e", 1, n * h), f.index("b", 1, d)
            R = f.array("R", l, n * h)
            H = read(f, _headed(f, "Q", K), _headed(f, "K", K), _headed(f, "V", h))
            _joined(f, H, R)
            y[i, b] = sum_(R[i, e] * W_out[e, b], over=e)
    return m


def _mapped(f: Form, name: str, row: Node | object, column: object) -> Node:
    """Entry `column` of x W_name at a row."""
    x, W = f.mixer.role("input"), f.mixer.arrays[f"W_{name}"]
    a = f.index("a", 1, x.shape[1])
    return sum_(x[row, a] * W[a, column], over=a)


def _headed(f: Form, name: str, width: Poly) -> Array:
    """The rows x W_name as n heads, (n, l, width)."""
    l, n = f.mixer.sizes("l n")
    j, i = f.index("j", 1, n), f.index("i", 1, l)
    c = f.index("p" if name in "QK" else "c", 1, width)
    rows = f.array(name, n, l, width)
    rows[j, i, c] = _mapped(f, name, i, (j - 1) * width + c)
    return rows


def _gates(f: Form) -> tuple[Array, Array, Array]:
    """I, F and M (n, l): input gate, logarithm of the forget gate, and their bound."""
    (l, n), b = f.mixer.sizes("l n"), f.mixer.arrays
    j, i, later = f.index("j", 1, n), f.index("i", 1, l), f.index("i2", 2, l)
    I, F, M = f.array("I", n, l), f.array("F", n, l), f.array("M", n, l)
    values = {name: _mapped(f, name, i, j) for name in "IF"}
    if "b_I" in b:
        for name, value in values.items():
            values[name] = CAP * function("tanh", (value + b[f"b_{name}"][j]) / CAP)
    I[j, i] = values["I"]
    F[j, i] = -function("softplus", -values["F"])
    M[j, 1] = maximum(F[j, 1], I[j, 1])
    M[j, later] = maximum(F[j, later] + M[j, later - 1], I[j, later])
    return I, F, M


def _quotient(f: Form, reads: Node, weight: Node, M: Array, H: Array) -> None:
    """Define H (n, l, h) as `reads` over the larger of |weight| and exp(-M), plus a little."""
    n, l, h = H.shape
    j, i, c = f.index("j", 1, n), f.index("i", 1, l), f.index("c", 1, h)
    W, D = f.array("W", n, l), f.array("D", n, l)
    W[j, i] = weight
    D[j, i] = maximum(maximum(W[j, i], -W[j, i]), exp(-M[j, i])) + TINY
    H[j, i, c] = reads / D[j, i]


def _recurrent(f: Form, Q: Array, K: Array, V: Array) -> Array:
    """H (n, l, h): queries read the matrix S and the row Z of their head."""
    (n, l, width), h = K.shape, V.shape[2]
    j, i, later = f.index("j", 1, n), f.index("i", 1, l), f.index("i2", 2, l)
    p, c = f.index("p", 1, width), f.index("c", 1, h)
    I, F, M = _gates(f)
    E, P, A = f.array("E", n, l), f.array("P", n, l), f.array("A", n, l, width)
    S, Z, U = f.array("S", n, l, width, h), f.array("Z", n, l, width), f.array("U", n, l, width)
    E[j, i] = exp(I[j, i] - M[j, i])
    P[j, later] = exp(F[j, later] + M[j, later - 1] - M[j, later])
    A[j, i, p] = E[j, i] * K[j, i, p]
    S[j, 1, p, c] = A[j, 1, p] * V[j, 1, c]
    S[j, later, p, c] = P[j, later] * S[j, later - 1, p, c] + A[j, later, p] * V[j, later, c]
    Z[j, 1, p] = A[j, 1, p]
    Z[j, later, p] = P[j, later] * Z[j, later - 1, p] + A[j, later, p]
    U[j, i, p] = scaled(Q[j, i, p], by=width)
    H = f.array("H", n, l, h)
    reads = sum_(U[j, i, p] * S[j, i, p, c], over=p)
    _quotient(f, reads, sum_(U[j, i, p] * Z[j, i, p], over=p), M, H)
    return H


def _parallel(f: Form, Q: Array, K: Array, V: Array) -> Array:
    """H (n, l, h): values weighted by the gated products of all pairs."""
    (n, l, width), h = K.shape, V.shape[2]
    j, i, later = f.index("j", 1, n), f.index("i", 1, l), f.index("i2", 2, l)
    p, c, k = f.index("p", 1, width), f.index("c", 1, h), f.index("k", 1, i)
    (I, F, M), G = _gates(f), f.array("G", n, l)
    A, B = f.array("A", n, l, l), f.array("B", n, l, l)
    G[j, 1] = F[j, 1]
    G[j, later] = G[j, later - 1] + F[j, later]
    A[j, i, k] = scaled(sum_(Q[j, i, p] * K[j, k, p], over=p), by=width)
    B[j, i, k] = A[j, i, k] * exp(G[j, i] - G[j, k] + I[j, k] - M[j, i])
    H = f.array("H", n, l, h)
    reads = sum_(B[j, i, k] * V[j, k, c], over=k)
    _quotient(f, reads, sum_(B[j, i, k], over=k), M, H)
    return H


def _joined(f: Form, H: Array, R: Array) -> None:
    """Define R (l, n h): the heads side by side, normalised and gated if there is a gain."""
    n, l, h = H.shape
    j, i, c = f.index("j", 1, n), f.index("i", 1, l), f.index("c", 1, h)
    column, arrays = (j - 1) * h + c, f.mixer.arrays
    if "gain" not in arrays:
        R[i, column] = H[j, i, c]
        return
    N, O, e = f.array("N", n, l, h), f.array("O", l, n * h), f.index("e", 1, n * h)
    N[j, i, c] = layer_norm(H[j, i, c], over=c, gain=arrays["gain"][column], eps="1e-6")
    O[i, e] = function("sigmoid", _mapped(f, "O", i, e))
    R[i, column] = O[i, column] * N[j, i, c]
