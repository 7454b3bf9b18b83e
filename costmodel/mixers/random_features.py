"""What are the equations of attention whose softmax is a product of random features: Performer,
random feature attention, and RKS and PRF whose kernels are learned?

Queries and keys are mapped to m or 2m features each, by frequencies w_1, ..., w_m that are drawn
once, so that a product of features is a softmax's exponential on average. Keys then
meet the values first, as in linear attention, whose sums these are. The linear cost holds for a
fixed m.

Performer, Choromanski et al. 2020 (Lemma 1, FAVOR+): of u = x / h^(1/4),

    phi(u)_p = exp(w_p . u - |u|^2 / 2) / sqrt(m),

summed over all rows, or `causal` up to each row. All heads have the same w, as in the authors'
code, which also subtracts something in the exponent and adds to the features, for stability.

Random feature attention, Peng et al. 2021 (sections 3.1 and 3.2): of u = x / |x|,

    phi(u) = [sin(w_1 . u), ..., sin(w_m . u), cos(w_1 . u), ..., cos(w_m . u)] / sqrt(m),

summed over all rows, or `causal`. A head's w_p are its own draws times its trained sigma, entry by
entry. With `gate`, a token keeps a part of the sums, g = sigmoid(w_g . x + b_g) for each head, and
adds 1 - g of its own.

How frequencies are drawn (rows orthogonal to each other, drawn anew now and then) is no work of a
forward pass.

Chowdhury et al. 2021, linear attention by random features whose frequencies are trained. Of
u = x / h^(1/4), RKS (random kitchen sinks) takes the cosine and the sine of w . u, PRF (positive
random features) exp(w . u - |u|^2), over the root of their number. A frequency w is

- a Gaussian of the head's own, its numbers drawn once: Sigma times them, plus and minus the mean,
  for RKS (2m frequencies); of independent channels, exp(sigma/2) times them and the mean, for PRF;
- a row of S H G P H B / sqrt(h), FastFood, h frequencies: B, G and S are diagonals that all heads
  share, P is a permutation, drawn once, and H a Hadamard matrix (h is a power of two), here a
  matrix product; in log2(h) rounds of sums and differences it takes h log2(h) additions;
- what a network of three layers makes of drawn numbers, m rows of h, by 2h and 4h; hidden layers
  are normalised over the m rows, then max(x, x/100), and the last one's function is tanh.

Work on frequencies is done once a forward pass. Details are those of the authors' code
(github.com/cs1160701/OnLearningTheKernel, text classification), but for the constant feature and
the 1e-6 that are added there to denominators, and for rows of h/2 drawn numbers. Not causal, as
their code is not.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial

from costmodel.language.equations import Form, Mixer
from costmodel.language.indices import Index
from costmodel.language.macros.norms import l2_norm, layer_norm
from costmodel.language.nodes import Array, Constant, Node
from costmodel.language.options import Chosen, offering
from costmodel.language.writing import exp, function, maximum, sum_
from costmodel.mixers.linear_attention import (
    FORMS,
    attention_by_features,
    define_quotient,
    recurrent,
)
from costmodel.symbolic.polynomial import Poly


def over_all(f: Form, Q: Array, K: Array, V: Array, R: Array) -> None:
    """Define R (l, n h), for each row its query's product with S over that with Z: S (n, m, h) and
    Z (n, m) sum k v^T and k over all rows. Q, K: (heads n, rows l, features m); V: (n, l, h)."""
    (n, l, m), h = K.shape, V.shape[2]
    j, i = f.index("j", 1, n), f.index("i", 1, l)
    p, c = f.index("p", 1, m), f.index("c", 1, h)
    S, Z = f.array("S", n, m, h), f.array("Z", n, m)
    S[j, p, c] = sum_(K[j, i, p] * V[j, i, c], over=i)
    Z[j, p] = sum_(K[j, i, p], over=i)
    reads = sum_(Q[j, i, p] * S[j, p, c], over=p)
    define_quotient(f, R, reads, sum_(Q[j, i, p] * Z[j, p], over=p))


def begun(name: str, title: str, idea: str, source: str) -> Mixer:
    """The mixer with its sizes."""
    m = Mixer(name, title=title, idea=idea, source=source, group="linear")
    m.sizes("l d n h")
    return m


def scaled_rows(f: Form, name: str, projected: Node) -> Array:
    """Define and return U_name (n, l, h): projected queries or keys over the fourth root of h."""
    l, n, h = f.mixer.sizes("l n h")  # tokens, heads, channels a head
    U = f.array(f"U_{name}", n, l, h)
    U[f.indices["j"], f.indices["i"], f.indices["c"]] = Constant(h, Fraction(-1, 2)) * projected
    return U


def along(f: Form, w: Array, U: Array) -> tuple[Node, Index]:
    """(the expression of the product of a row of U (n, l, h) with frequency z, the index z). The
    frequencies w are (m, h) for all heads, or (n, m, h) with those of each head."""
    j, i, c, z = f.indices["j"], f.indices["i"], f.indices["c"], f.index("z", 1, w.shape[-2])
    entry = w[z, c] if len(w.shape) == 2 else w[j, z, c]
    return sum_(entry * U[j, i, c], over=c), z


def positive(f: Form, name: str, U: Array, product: Node, z: Index, halves: int = 1) -> Array:
    """Define and return the features phi (n, l, m): exp(product - halves*|u|^2/2) / sqrt(m), where
    `product` is of the row u of U and frequency z. `halves` is 1 in FAVOR+, 2 in PRF."""
    (n, l, _), m = U.shape, z.upper[0]
    j, i, c = f.indices["j"], f.indices["i"], f.indices["c"]
    N, phi = f.array(f"N_{name}", n, l), f.array(name, n, l, m, latex=rf"\phi({name})")
    square = sum_(U[j, i, c] * U[j, i, c], over=c)
    N[j, i] = square / 2 if halves == 1 else square
    phi[j, i, z] = Constant(m, -1) * exp(product - N[j, i])
    return phi


def fourier(f: Form, name: str, U: Array, product: Node, z: Index) -> Array:
    """Define and return features phi (n, l, 2m): sine and cosine of each product over sqrt(m)."""
    (n, l, _), m, j, i = U.shape, z.upper[0], f.indices["j"], f.indices["i"]
    P, phi = f.array(f"P_{name}", n, l, m), f.array(name, n, l, 2 * m, latex=rf"\phi({name})")
    P[j, i, z] = product
    phi[j, i, z] = Constant(m, -1) * function("sin", P[j, i, z])
    phi[j, i, m + z] = Constant(m, -1) * function("cos", P[j, i, z])
    return phi


@offering({"causal": "row i sums over rows up to i"})
def performer(chosen: Chosen) -> Mixer:
    """The mixer Performer: linear attention with the positive random features of FAVOR+, whose
    products have the softmax's exponentials as their mean. Form `direct` sums over all rows; with
    `causal`, over rows up to i, in the forms `recurrent`, `parallel` and `chunked`."""
    mixer = begun(
        "performer",
        "Performer",
        "random features whose products are the softmax's",
        "Choromanski et al. 2020, arXiv 2009.14794, Lemma 1 and equation (4)",
    )
    w = mixer.buffer("w", *mixer.sizes("m h"))

    def phi(f: Form, name: str, projected: Node) -> Array:
        """Write and return the features (n, l, m) of projected queries or keys ("Q", "K")."""
        U = scaled_rows(f, name, projected)
        return positive(f, name, U, *along(f, w, U))

    def features(f: Form, queries: Node, keys: Node) -> tuple[Array, Array]:
        return phi(f, "Q", queries), phi(f, "K", keys)

    return attention_by_features(mixer, features, FORMS if chosen else {"direct": over_all})


@offering(
    {
        "causal": "row i sums over rows up to i",
        "gate": "so it does, and a token says how much of the earlier ones is kept",
    },
    {("causal", "gate"): "a gate acts on the sums up to each row"},
)
def random_feature_attention(chosen: Chosen) -> Mixer:
    """The mixer of random feature attention: linear attention with sines and cosines of normed
    queries and keys times Gaussian frequencies of learned scale. Form `direct` (over all rows);
    options: `causal` (`recurrent`, `parallel`, `chunked`), `gate` (a gated `recurrent`)."""
    mixer = begun(
        "rfa",
        "Random feature attention",
        "sines and cosines whose products are the softmax's",
        "Peng et al. 2021, arXiv 2103.02143, sections 3.1 and 3.2",
    )
    d, n, m, h = mixer.sizes("d n m h")  # channels, heads, frequencies, channels a head
    drawn, sigma = mixer.buffer("w", n, m, h), mixer.parameter("sigma", d, latex=r"\sigma")

    def features(f: Form, queries: Node, keys: Node) -> tuple[Array, Array]:
        """Write and return sines and cosines of products of frequencies and normed rows, (n, l, 2m)
        for Q and for K. `queries` and `keys` are the projected rows at head j, row i, channel c."""
        (l,), j, i, c = mixer.sizes("l"), f.indices["j"], f.indices["i"], f.indices["c"]
        w, z = f.array("Omega", n, m, h, latex=r"\Omega"), f.index("z", 1, m)
        w[j, z, c] = sigma[(j - 1) * h + c] * drawn[j, z, c]
        found = []
        for name, projected in (("Q", queries), ("K", keys)):
            X, U = f.array(f"X_{name}", n, l, h), f.array(f"U_{name}", n, l, h)
            X[j, i, c] = projected
            U[j, i, c] = l2_norm(X[j, i, c], over=c, least=0)
            found.append(fourier(f, name, U, *along(f, w, U)))
        return found[0], found[1]

    if "gate" in chosen:
        mixer.parameter("W_g", d, n)
        mixer.parameter("b_g", n)
        return attention_by_features(mixer, features, {"recurrent": gated})
    return attention_by_features(mixer, features, FORMS if chosen else {"direct": over_all})


def gated(f: Form, Q: Array, K: Array, V: Array, R: Array) -> None:
    """Define R (l, n h) from running sums S (of k v^T) and Z (of k) with a gate g (n, l): g times
    the sums before a row, plus 1 - g times its own. Q, K: features (n, l, m); V: (n, l, h)."""
    x, w, b = (f.mixer.arrays[name] for name in ("x", "W_g", "b_g"))
    n, l, m = K.shape
    j, i, p, a = f.indices["j"], f.indices["i"], f.index("p", 1, m), f.indices["a"]
    g, rest, own = f.array("g", n, l), f.array("u", n, l, latex="(1-g)"), f.array("G", n, l, m)
    g[j, i] = function("sigmoid", sum_(x[i, a] * w[a, j], over=a) + b[j])
    rest[j, i] = 1 - g[j, i]
    own[j, i, p] = rest[j, i] * K[j, i, p]
    recurrent(f, Q, own, V, R, g)


Product = Callable[[Form, str, Array], tuple[Node, Index]]
"""A function of the form, the name of queries or keys, and their rows U (n, l, h). It returns the
product of a row with frequency z, and the index z."""


def named(f: Form, *extents: object) -> Array:
    """Declare and return the array Omega of frequencies."""
    return f.array("Omega", *extents, latex=r"\Omega")


def from_matrix(f: Form) -> Product:
    """Declare and define frequencies (n, 2m, h), Gaussians with a full covariance: Sigma times
    drawn numbers, plus and minus the mean. Returns a function of (form, "Q" or "K", rows U): the
    product of a row with frequency z, and the index z."""
    n, m, h = f.mixer.sizes("n m h")  # heads, frequencies, channels a head
    drawn, Sigma = f.mixer.buffer("w", m, h), f.mixer.parameter("Sigma", n, h, h, latex=r"\Sigma")
    mean, G, w = (
        f.mixer.parameter("mu", n, h, latex=r"\mu"),
        f.array("G", n, m, h),
        named(f, n, 2 * m, h),
    )
    j, c, p, o = f.indices["j"], f.indices["c"], f.index("s", 1, h), f.index("o", 1, m)
    G[j, o, c] = sum_(drawn[o, p] * Sigma[j, p, c], over=p)
    w[j, o, c] = G[j, o, c] + mean[j, c]
    w[j, m + o, c] = G[j, o, c] - mean[j, c]
    return lambda f, name, U: along(f, w, U)


def from_channels(f: Form) -> Product:
    """Declare and define frequencies (n, m, h), Gaussians with independent channels: exp(sigma/2)
    times the drawn numbers, plus the mean. Returns a function of (form, "Q" or "K", rows U): the
    product of a row with frequency z, and the index z."""
    n, m, h = f.mixer.sizes("n m h")  # heads, frequencies, channels a head
    drawn, sigma = f.mixer.buffer("w", m, h), f.mixer.parameter("sigma", n, h, latex=r"\sigma")
    mean, E, w = f.mixer.parameter("mu", n, h, latex=r"\mu"), f.array("E", n, h), named(f, n, m, h)
    j, c, o = f.indices["j"], f.indices["c"], f.index("o", 1, m)
    E[j, c] = exp(sigma[j, c] / 2)
    w[j, o, c] = E[j, c] * drawn[o, c] + mean[j, c]
    return lambda f, name, U: along(f, w, U)


def fast_food(f: Form) -> Product:
    """Declare the parameters of FastFood, whose h frequencies are never written out: a row is
    multiplied by B, P H, G, H and S one after the other, and divided by sqrt(h). Returns a function
    of (form, "Q" or "K", rows U) that defines these products and returns the last at z, and z."""
    (h,) = f.mixer.sizes("h")
    f.mixer.power_of_two(h)
    B, G, S = (f.mixer.parameter(f"D_{name}", h, latex=name) for name in "BGS")
    PH = f.mixer.buffer("PH", h, h)
    H = f.mixer.buffer("H", h, h, value=lambda p, q, sizes: 1 - 2 * odd_in_both(p - 1, q - 1))

    def product(f: Form, name: str, U: Array) -> tuple[Node, Index]:
        """Write X = B U and Y = G (P H) X (B, G, S: diagonals; P: a permutation; H: Hadamard
        matrix); return S H Y / sqrt(h) at z, and z."""
        j, i, c, z = f.indices["j"], f.indices["i"], f.indices["c"], f.index("z", 1, h)
        X, Y = (f.array(f"{letter}_{name}", *U.shape) for letter in "XY")
        X[j, i, c] = B[c] * U[j, i, c]
        Y[j, i, z] = G[z] * sum_(PH[z, c] * X[j, i, c], over=c)
        return Constant(h, -1) * (S[z] * sum_(H[z, c] * Y[j, i, c], over=c)), z

    return product


def odd_in_both(p: int, q: int) -> int:
    """1 if the number of ones that p and q have in common, in base 2, is odd, else 0.

    >>> odd_in_both(0b101, 0b110), odd_in_both(0b111, 0b110)
    (1, 0)
    """
    return (p & q).bit_count() % 2


def generated(f: Form) -> Product:
    """Declare and define frequencies (m, h), shared by all heads, that a network of three layers
    makes of m rows of h drawn numbers. Returns a function of (form, "Q" or "K", rows U): the
    product of a row with frequency z, and the index z."""
    m, h = f.mixer.sizes("m h")
    rows, width = f.mixer.buffer("w", m, h), h
    o, u = f.index("o", 1, m), f.index("u", 1, width)
    for layer, wide in enumerate((2 * h, 4 * h, h), 1):
        W, b = f.mixer.parameter(f"W_{layer}", width, wide), f.mixer.parameter(f"b_{layer}", wide)
        e = f.index(f"e{layer}", 1, wide)
        linear = sum_(rows[o, u] * W[u, e], over=u) + b[e]
        if layer == 3:
            w = named(f, m, h)
            w[o, e] = function("tanh", linear)
            break
        gain, bias = (f.mixer.parameter(f"{name}_{layer}", wide) for name in ("gain", "bias"))
        X, Y, rows = (f.array(f"{name}_{layer}", m, wide) for name in "XYZ")
        X[o, e] = linear
        Y[o, e] = layer_norm(X[o, e], over=o, gain=gain[e], bias=bias[e])
        rows[o, e] = maximum(Y[o, e], Constant(Poly.of(Fraction(1, 100))) * Y[o, e])
        width, u = wide, e
    return lambda f, name, U: along(f, w, U)


def learned(
    name: str, title: str, idea: str, made: Callable[[Form], Product], kernel: Callable[..., Array]
) -> Mixer:
    """The mixer of linear attention over all rows by random features with learned frequencies.

    Args:
        made: a function that writes the frequencies and returns the function of their products with
            queries or keys, such as `from_matrix`.
        kernel: a function that writes and returns the features of the products: sines and cosines
            (`fourier`), or exponentials (`PRF`).
    """
    mixer = begun(name, title, idea, "Chowdhury et al. 2021, arXiv 2110.08323, section 3")

    def features(f: Form, queries: Node, keys: Node) -> tuple[Array, Array]:
        """Write and return the features of the queries and of the keys."""
        product, found = made(f), []
        for letter, projected in (("Q", queries), ("K", keys)):
            U = scaled_rows(f, letter, projected)
            found.append(kernel(f, letter, U, *product(f, letter, U)))
        return found[0], found[1]

    return attention_by_features(mixer, features, {"direct": over_all})


PRF = partial(positive, halves=2)

gmm_rks = learned(
    "gmm-rks",
    "GMM-RKS",
    "sines and cosines of trained Gaussian frequencies",
    from_matrix,
    fourier,
)
gmm_prf = learned(
    "gmm-prf", "GMM-PRF", "exponentials by trained Gaussian frequencies", from_channels, PRF
)
fastfood_rks = learned(
    "fastfood-rks", "FastFood-RKS", "sines and cosines by Hadamard matrices", fast_food, fourier
)
fastfood_prf = learned(
    "fastfood-prf", "FastFood-PRF", "exponentials by Hadamard matrices", fast_food, PRF
)
generative_rks = learned(
    "generative-rks",
    "Generative-RKS",
    "sines and cosines of frequencies that a net makes",
    generated,
    fourier,
)
generative_prf = learned(
    "generative-prf",
    "Generative-PRF",
    "exponentials by frequencies that a net makes",
    generated,
    PRF,
)
