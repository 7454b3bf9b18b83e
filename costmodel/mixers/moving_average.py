"""What are the equations of gated attention to moving averages, Mega?

Ma et al. 2022, section 3. Each channel has N damped exponential moving averages, a recurrence
h' = (1 - alpha delta) h + alpha beta x, where alpha and delta are sigmoids of parameters. X is
their sum, weighted by eta. From X come the queries and keys of one causal head, the reset gate
gamma on the head's result, and the update gate phi on the output. The scores have a bias P per
distance, one of the paper's choices. With `chunk`, the head attends within chunks, and the averages
alone cross chunks. `recurrent` computes the recurrence, `fft` a convolution with its kernel.

The authors' code (github.com/facebookresearch/mega) has silu(X / sqrt(N) + omega x) for X, scales
queries instead of scores, and writes x + phi (H - x) for phi H + (1 - phi) x.
"""

from __future__ import annotations

from costmodel.language.equations import Form, Mixer
from costmodel.language.indices import Index, min_
from costmodel.language.macros.softmax import scaled, softmax
from costmodel.language.nodes import Array, Node
from costmodel.language.options import Chosen, offering
from costmodel.language.writing import exp, function, sum_
from costmodel.mixers.extractor import fft_vectors
from costmodel.symbolic.polynomial import Poly

AVERAGE = ("alpha", "delta", "beta", "eta")
"""The parameters of a moving average."""


def moving_average(f: Form, *, carried: bool) -> Array:
    """Define and return X (l, d): the sum of N exponential moving averages h of each channel of x,
    weighted by eta, h_i = B x_i + E h_{i-1}; by this recurrence over rows if `carried`, else as a
    convolution by Fourier transforms, with the kernel w (l, d)."""
    x, (l, d, N) = f.mixer.arrays["x"], f.mixer.sizes("l d N")
    alpha, delta, beta, eta = (f.mixer.arrays[name] for name in AVERAGE)
    i, b, n = f.index("i", 1, l), f.index("b", 1, d), f.index("n", 1, N)
    X, (G, E, B) = f.array("X", l, d), (f.array(name, d, N) for name in "GEB")  # E: kept
    G[b, n] = function("sigmoid", alpha[b, n])
    E[b, n] = 1 - G[b, n] * function("sigmoid", delta[b, n])
    B[b, n] = G[b, n] * beta[b, n]
    if carried:
        h, later = f.array("h", l, d, N), f.index("i2", 2, l)
        h[1, b, n] = B[b, n] * x[1, b]
        h[later, b, n] = B[b, n] * x[later, b] + E[b, n] * h[later - 1, b, n]
        X[i, b] = sum_(eta[b, n] * h[i, b, n], over=n)
        return X
    s, w, R = f.index("s", 1, l), f.array("w", l, d), f.array("R", l, d, N)
    T, D = f.array("T", d, N), f.array("D", d, N)
    T[b, n] = function("log", E[b, n])
    D[b, n] = eta[b, n] * B[b, n]
    R[s, b, n] = exp(T[b, n] * (s - 1))
    w[s, b] = sum_(D[b, n] * R[s, b, n], over=n)
    fft_vectors(f, x, w, X)
    return X


def read_by_one_head(f: Form, Z: Array, V: Array, *, chunked: bool) -> Array:
    """Define and return O (l, width): causal attention of one head to the values V (l, width), with
    queries and keys kappa Z + mu of Z (l, K), each with a kappa and mu of its own; P[1 + i - k] is
    added to the score of row i and key k. `chunked`: within chunks of C rows, as P has entries."""
    m, (l, K), (_, width) = f.mixer, Z.shape, V.shape
    (C,), P = m.arrays["P"].shape, m.arrays["P"]
    i, c, r = f.index("i", 1, l), f.index("c", 1, K), f.index("r", 1, width)
    Q, K_ = f.array("Q", l, K), f.array("K", l, K)
    for name, rows in (("Q", Q), ("K", K_)):
        rows[i, c] = m.arrays[f"kappa_{name}"][c] * Z[i, c] + m.arrays[f"mu_{name}"][c]
    first, row, at = Poly(), i, tuple[Index, ...]()  # rows before the chunk, row in it, (chunk,)
    if chunked:
        g = f.index("g", 1, l // C + 1)
        first, at = (g - 1) * C, (g,)
        row = f.index("e", 1, min_(C, l - first))
    k = f.index("k", 1, row)
    extents = (*(index.upper[0] for index in at), C, C)
    M, A, O = f.array("M", *extents), f.array("A", *extents), f.array("O", l, width)
    score = sum_(Q[first + row, c] * K_[first + k, c], over=c)
    M[*at, row, k] = scaled(score, by=K) + P[row - k + 1]
    A[*at, row, k] = softmax(M[*at, row, k], over=k)
    O[first + row, r] = sum_(A[*at, row, k] * V[first + k, r], over=k)
    return O


def affine(f: Form, rows: Array, name: str, o: Index) -> Node:
    """Entry o of the linear map W_name, b_name of row i of rows (l, d)."""
    i, a = f.index("i", 1, rows.shape[0]), f.index("a", 1, rows.shape[1])
    W, b = f.mixer.arrays[f"W_{name}"], f.mixer.arrays[f"b_{name}"]
    return sum_(rows[i, a] * W[a, o], over=a) + b[o]


@offering({"chunk": "a token attends to the earlier ones of its chunk of C alone"})
def mega(chosen: Chosen) -> Mixer:
    """The mixer Mega: a head of attention (within chunks with `chunk`) whose queries and keys are
    made of moving averages X of x; gates of X multiply what it reads and mix the result with x.
    Form `recurrent` computes X row by row, `fft` by Fourier transforms."""
    m = Mixer(
        "mega",
        title="Mega",
        idea="one gated head whose queries and keys are moving averages",
        source="Ma et al. 2022, arXiv 2209.10655, section 3",
        group="state-space",
    )
    l, d, N, K, v = m.sizes("l d N K v")  # tokens, channels, averages, width of a key, widening
    C = m.sizes("C")[0] if chosen else l
    x, y = m.input("x", l, d), m.output("y", l, d)
    for name in AVERAGE:
        m.parameter(name, d, N, latex=rf"\{name}")
    widths = {"Z": K, "V": v * d, "gamma": v * d, "phi": d, "H": d}
    for name, width in widths.items():
        m.parameter(f"W_{name}", d, width)
        m.parameter(f"b_{name}", width)
    for name in "QK":
        m.parameter(f"kappa_{name}", K, latex=rf"\kappa_{name}")
        m.parameter(f"mu_{name}", K, latex=rf"\mu_{name}")
    m.parameter("P", C)
    U = m.parameter("U_H", v * d, d)
    for form in ("recurrent", "fft"):
        with m.form(form) as f:
            i, b = f.index("i", 1, l), f.index("b", 1, d)
            c, r = f.index("c", 1, K), f.index("r", 1, v * d)
            X, Z = moving_average(f, carried=form == "recurrent"), f.array("Z", l, K)
            phi, H = f.array("phi", l, d, latex=r"\varphi"), f.array("H", l, d)
            gamma = f.array("gamma", l, v * d, latex=r"\gamma")
            V, F = f.array("V", l, v * d), f.array("F", l, v * d)
            Z[i, c] = function("silu", affine(f, X, "Z", c))
            V[i, r] = function("silu", affine(f, x, "V", r))
            O = read_by_one_head(f, Z, V, chunked=bool(chosen))
            gamma[i, r] = function("silu", affine(f, X, "gamma", r))
            phi[i, b] = function("sigmoid", affine(f, X, "phi", b))
            F[i, r] = gamma[i, r] * O[i, r]
            H[i, b] = function("silu", affine(f, X, "H", b) + sum_(F[i, r] * U[r, b], over=r))
            y[i, b] = phi[i, b] * H[i, b] + (1 - phi[i, b]) * x[i, b]
    return m
