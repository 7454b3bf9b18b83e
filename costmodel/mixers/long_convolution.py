"""What are the equations of convolutions as long as the sequence, with explicit kernels, and Hyena?

The causal depthwise kernel has one number per distance and channel; D times the row itself is
added. `direct` sums over all earlier rows, `fft` multiplies Fourier transforms, where the kernel's
is computed once for all sequences.

Long convolution, Fu et al. 2023, section 3.1: the kernel is a parameter after soft thresholding:
each entry moves towards 0 by lambda, a constant, and smaller entries become 0. Gelu and a gated
linear unit follow, as in the authors' code (github.com/HazyResearch/safari), without its biases.

Hyena, Poli et al. 2023, of order 2 as in the authors' code, which has one long convolution where
the paper's recurrence (definition 3.1) has two: three linear maps of the input, each with a short
convolution of k taps; then a product, the long convolution, a product, and a linear map. The kernel
is implicit (section 3.3): a perceptron with three sine layers of width F reads the position, and
each channel has a window that decays with the distance. As in the code, a position is three
numbers: its share of the way, cosine and sine of an angle that grows to 1e-4 of a circle. The
kernel depends on weights alone. The code's defaults are F = 64 and k = 3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from costmodel.language.equations import Form, Mixer
from costmodel.language.indices import Index
from costmodel.language.macros.positions import short_convolution
from costmodel.language.nodes import Array, Node
from costmodel.language.writing import function, sum_
from costmodel.mixers.extractor import VECTORS


def convolved(f: Form, form: str, u: Array, kernel: Array, D: Array, name: str = "S") -> Node:
    """Define `name` (l, d), the causal convolution of u (l, d) with a kernel (l, d), as sums, or as
    transforms in the form `fft`; return this plus D * u at row i, channel b."""
    l, d = u.shape
    sums = f.array(name, l, d)
    VECTORS.forms[form](f, u, kernel, sums)
    i, b = f.index("i", 1, l), f.index("b", 1, d)
    return sums[i, b] + D[b] * u[i, b]


def explicit() -> Mixer:
    """The mixer of the long convolution with a parameter w (l, d) as kernel, whose entries are
    moved by 0.1 (`lambda_`) towards 0, smaller ones to 0; then gelu and a gated linear unit. Forms:
    `direct` and `fft`."""
    m = Mixer(
        "long-convolution",
        title="Long convolution",
        idea="a weight for each distance and channel, small ones 0",
        source="Fu et al. 2023, arXiv 2302.06646, section 3.1",
        group="convolution",
    )
    l, d = m.sizes("l d")
    x, y = m.input("x", l, d), m.output("y", l, d)
    w, D = m.parameter("w", l, d), m.parameter("D", d)
    W_1, W_2 = m.parameter("W_1", d, d), m.parameter("W_2", d, d)
    squash = m.buffer("lambda_", 1, value=lambda one, sizes: 0.1)
    for form in VECTORS.forms:
        with m.form(form) as f:
            i, s = f.index("i", 1, l), f.index("s", 1, l)
            a, b = f.index("a", 1, d), f.index("b", 1, d)
            K, H = f.array("K", l, d), f.array("H", l, d)
            # w - lambda where w > lambda, w + lambda where w < -lambda, else 0
            above, below = w[s, b] - squash[1], -w[s, b] - squash[1]
            K[s, b] = function("relu", above) - function("relu", below)
            H[i, b] = function("gelu", convolved(f, form, x, K, D))
            y[i, b] = gated_linear_unit(H, W_1, W_2, i, a, b)
    return m


def gated_linear_unit(H: Array, W_1: Array, W_2: Array, i: Index, a: Index, b: Index) -> Node:
    """H W_1 * sigmoid(H W_2) at row i, channel b; `a` runs over the channels of H."""
    gate = function("sigmoid", sum_(H[i, a] * W_2[a, b], over=a))
    return sum_(H[i, a] * W_1[a, b], over=a) * gate


def elapsed(s: int, sizes: Mapping[str, int]) -> float:
    """Position s on the way from 0, the first one, to 1, the last one."""
    return (s - 1) / max(1, sizes["l"] - 1)


def position(s: int, part: int, sizes: Mapping[str, int]) -> float:
    """Input `part` of the perceptron at position s: t, cos(u) or -sin(u), with the small angle
    u = 1e-4 * 2 pi (s-1)/l."""
    turn = 1e-4 * 2 * math.pi * (s - 1) / sizes["l"]
    return (elapsed(s, sizes), math.cos(turn), -math.sin(turn))[part - 1]


def window(s: int, b: int, sizes: Mapping[str, int]) -> float:
    """The factor of the kernel at distance s-1, channel b: an exponential of the distance. The
    first channel decays to 0.01 over 1.5 lengths of the sequence, the last over 0.3; rates between
    are evenly spaced."""
    t, share = elapsed(s, sizes), (b - 1) / max(1, sizes["d"] - 1)
    slow, fast = 1 / 1.5, 1 / 0.3
    return math.exp(t * math.log(0.01) * (slow + share * (fast - slow)))


def implicit() -> Mixer:
    """The mixer Hyena of order 2: y is a map of G times a long causal convolution of V * E, where
    G, E and V are short convolutions of maps of x; the kernel is a network of sines of the
    position. Forms: `direct` and `fft`."""
    m = Mixer(
        "hyena",
        title="Hyena (order 2)",
        idea="a long convolution between two products, its kernel learnt",
        source=(
            "Poli et al. 2023, arXiv 2302.10866, section 3.3, and its code, which has one long "
            "convolution where definition 3.1 has two"
        ),
        group="convolution",
    )
    l, d, k, F = m.sizes("l d k F")  # tokens, channels, taps, width of the kernel's network
    x, y = m.input("x", l, d), m.output("y", l, d)
    P = m.buffer("P", l, 3, value=position)
    decay = m.buffer("decay", l, d, value=window)
    maps = {name: m.parameter(f"W_{name}", d, d) for name in ("G", "E", "V")}
    biases = {name: m.parameter(f"b_{name}", d) for name in maps}
    taps = {name: m.parameter(f"w_{name}", k, d) for name in maps}
    added = {name: m.parameter(f"c_{name}", d) for name in maps}
    layers = [(m.parameter("A_1", 3, F), m.parameter("a_1", F))]
    layers += [(m.parameter(f"A_{n}", F, F), m.parameter(f"a_{n}", F)) for n in (2, 3)]
    omega, A_K, D = m.parameter("omega", F), m.parameter("A_K", F, d), m.parameter("D", d)
    W_out, b_out = m.parameter("W_out", d, d), m.parameter("b_out", d)
    for form in VECTORS.forms:
        with m.form(form) as f:
            i, a, b = f.index("i", 1, l), f.index("a", 1, d), f.index("b", 1, d)
            s, e, z = f.index("s", 1, l), f.index("e", 1, F), f.index("z", 1, k)
            # the rows that a layer of the kernel's network reads, with the index of their channels
            before: tuple[Array, Index] = (P, f.index("c", 1, 3))
            for n, (A, bias) in enumerate(layers, 1):
                N = f.array(f"N_{n}", l, F)
                rows, over = before
                N[s, e] = function(
                    "sin", omega[e] * (sum_(rows[s, over] * A[over, e], over=over) + bias[e])
                )
                before = (N, f.index("r", 1, F))
            K, (N, r) = f.array("K", l, d), before
            K[s, b] = sum_(N[s, r] * A_K[r, b], over=r) * decay[s, b]
            short = {}
            for name in maps:
                rows = f.array(f"X_{name}", l, d)
                short[name] = f.array(name, l, d)
                rows[i, b] = sum_(x[i, a] * maps[name][a, b], over=a) + biases[name][b]
                short[name][i, b] = short_convolution(
                    rows[i, b], taps[name][z, b], along=i, taps=z, bias=added[name][b]
                )
            u, R = f.array("u", l, d), f.array("R", l, d)
            u[i, b] = short["V"][i, b] * short["E"][i, b]
            R[i, b] = convolved(f, form, u, K, D) * short["G"][i, b]
            y[i, b] = sum_(R[i, a] * W_out[a, b], over=a) + b_out[b]
    return m


long_convolution = explicit()
hyena = implicit()
