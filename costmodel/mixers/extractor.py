"""What are the equations of the Extractor family: SHE, HE, WE, ME and their ablations?

Each member has an extraction: ext[i] is a causal convolution of the sequence with one weight per
distance (a matrix, a vector or a number). Most members then multiply ext by a gate and mix
channels. Form `direct` sums over tokens; `fft` multiplies Fourier transforms (of weights, once).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from costmodel.language.complex_numbers import ComplexArray, complex_, complex_sum
from costmodel.language.equations import Form, Mixer
from costmodel.language.indices import Index
from costmodel.language.nodes import Array
from costmodel.language.writing import irfft, rfft, sum_
from costmodel.symbolic.polynomial import Poly, padded

V1 = "Chen 2023, arXiv 2308.07661v1"
V2 = "Chen 2023, arXiv 2308.07661v2"

Extract = Callable[[Form, Array, Array, Array], None]
"""A function (form, source, weights, target) that defines target[i, b], the extraction."""


def _tokens(f: Form, l: Poly) -> tuple[Index, Index]:
    """The indices of token i and token j <= i."""
    i = f.index("i", 1, l)
    return i, f.index("j", 1, i)


def _channels(f: Form, d: Poly) -> tuple[Index, Index]:
    """Two indices of channels, a before and b after a linear map."""
    return f.index("a", 1, d), f.index("b", 1, d)


def _spectrum(f: Form, source: Array, name: str) -> tuple[ComplexArray, Index, Index]:
    """Write the equation of the Fourier transform of each channel of a sequence (l, d), an array
    `name` (bins, 2, d); returns (transform as complex numbers, index of bins, index of real and
    imaginary part). The sequence is padded with zeros to at least 2l points, so that the cyclic
    convolution that a product of transforms gives is the causal one."""
    l, d = source.shape
    points = 2 * padded(l)
    spectrum = f.array(name, points / 2 + 1, 2, d)
    i, _ = _tokens(f, l)
    a, _ = _channels(f, d)
    q, p = f.index("q", 1, points / 2 + 1), f.index("p", 1, 2)
    spectrum[q, p, a] = rfft(source[i, a], over=i, length=points)
    return complex_(spectrum, axis=1), q, p


def direct_matrices(f: Form, source: Array, weights: Array, target: Array) -> None:
    """Eq. (23): a (d, d) matrix per distance."""
    i, j = _tokens(f, source.shape[0])
    a, b = _channels(f, source.shape[1])
    target[i, b] = sum_(source[j, a] * weights[i - j + 1, a, b], over=(j, a))


def direct_vectors(f: Form, source: Array, weights: Array, target: Array) -> None:
    """Eqs. (26) and (28): a vector per distance, multiplied channel by channel."""
    i, j = _tokens(f, source.shape[0])
    _, b = _channels(f, source.shape[1])
    target[i, b] = sum_(source[j, b] * weights[i - j + 1, b], over=j)


def direct_scalars(f: Form, source: Array, weights: Array, target: Array) -> None:
    """Eq. (29): one weight per distance for all channels."""
    i, j = _tokens(f, source.shape[0])
    _, b = _channels(f, source.shape[1])
    target[i, b] = sum_(source[j, b] * weights[i - j + 1], over=j)


def fft_matrices(f: Form, source: Array, weights: Array, target: Array) -> None:
    """Write the equations of `target` (l, d), the causal convolution of `source` (l, d) with
    matrices `weights` (l, d, d), eq. (23), by Fourier transforms: of the sequence and of the
    matrices, W_f; per bin a complex product of a row and a matrix, e_f; its inverse transform."""
    l, d = source.shape
    spectrum, q, p = _spectrum(f, source, f"{source.name}_f")  # the transform, its bin and part
    (a, b), (i, _), s = _channels(f, d), _tokens(f, l), f.index("s", 1, l)
    points = 2 * padded(l)
    W_f = f.array("W_f", points / 2 + 1, 2, d, d)
    W_f[q, p, a, b] = rfft(weights[s, a, b], over=s, length=points)
    product = f.array("e_f", points / 2 + 1, 2, d, kernel="complex-contraction")
    factor = complex_(W_f, axis=1)[q, a, b]
    complex_(product, axis=1)[q, b] = complex_sum(spectrum[q, a] * factor, over=a)
    target[i, b] = irfft(product[q, p, b], over=(q, p), length=points)


def fft_vectors(f: Form, source: Array, weights: Array, target: Array) -> None:
    """Define `target` (l, d), the causal convolution of `source` (l, d) with `weights` (l, d), eqs.
    (26) and (28), by Fourier transforms: a complex product per bin and channel."""
    l, d = source.shape
    spectrum, q, p = _spectrum(f, source, f"{source.name}_f")  # the transform, its bin and part
    (_, b), (i, _), s = _channels(f, d), _tokens(f, l), f.index("s", 1, l)
    points = 2 * padded(l)
    shape = (points / 2 + 1, 2, d)
    w_f, product = f.array("w_f", *shape), f.array("e_f", *shape)
    w_f[q, p, b] = rfft(weights[s, b], over=s, length=points)
    complex_(product, axis=1)[q, b] = spectrum[q, b] * complex_(w_f, axis=1)[q, b]
    target[i, b] = irfft(product[q, p, b], over=(q, p), length=points)


def fft_scalars(f: Form, source: Array, weights: Array, target: Array) -> None:
    """Define `target` (l, d), the causal convolution of `source` (l, d) with `weights` (l,), eq.
    (29), by Fourier transforms: all channels share the transform of the weights."""
    l, d = source.shape
    spectrum, q, p = _spectrum(f, source, f"{source.name}_f")  # the transform, its bin and part
    (_, b), (i, _), s = _channels(f, d), _tokens(f, l), f.index("s", 1, l)
    points = 2 * padded(l)
    w_f = f.array("w_f", points / 2 + 1, 2)
    product = f.array("e_f", points / 2 + 1, 2, d)
    w_f[q, p] = rfft(weights[s], over=s, length=points)
    complex_(product, axis=1)[q, b] = spectrum[q, b] * complex_(w_f, axis=1)[q]
    target[i, b] = irfft(product[q, p, b], over=(q, p), length=points)


@dataclass(frozen=True)
class Extraction:
    """A kind of extraction: the weights' name, the letters of their axes, and form -> equation."""

    weights: str
    axes: str
    forms: Mapping[str, Extract]


MATRICES = Extraction("W_ext", "ldd", {"direct": direct_matrices, "fft": fft_matrices})
VECTORS = Extraction("w_ext", "ld", {"direct": direct_vectors, "fft": fft_vectors})
SCALARS = Extraction("w_ext", "l", {"direct": direct_scalars, "fft": fft_scalars})


def extractor(
    name: str,
    title: str,
    idea: str,
    source: str,
    extraction: Extraction,
    *,
    cite: str,
    transform: bool = False,
    adjust: bool = True,
    output: bool = True,
    aliases: tuple[str, ...] = (),
) -> Mixer:
    """One mixer of the family: an extraction, which is a causal weighted sum over rows, with maps
    around. The texts (`name` to `source`, and `aliases`) are those of `Mixer`.

    Args:
        extraction: the name and axes of its weights, and form -> the function that writes it.
        cite: the equation number of the extraction.
        transform: whether a linear map precedes the extraction, eq. (27).
        adjust: whether the gate of eq. (24) follows.
        output: whether the linear map of eq. (25) follows at the end.
    """
    m = Mixer(name, title=title, idea=idea, source=source, group="extractor", aliases=aliases)
    l, d = m.sizes("l d")
    x = m.input("x", l, d)
    y = m.output("y", l, d, cite="(25)" if output else "(24)" if adjust else cite)
    W_in = m.parameter("W_in_ext", d, d) if transform else None
    extents = {"l": l, "d": d}
    weights = m.parameter(extraction.weights, *(extents[axis] for axis in extraction.axes))
    W_adj = m.parameter("W_adj", d, d) if adjust else None
    W_out = m.parameter("W_out", d, d) if output else None

    for form, extract in extraction.forms.items():
        with m.form(form) as f:
            i, _ = _tokens(f, l)
            a, b = _channels(f, d)
            sequence = x
            if W_in is not None:
                sequence = f.array("u", l, d, cite="(27)")
                sequence[i, b] = sum_(x[i, a] * W_in[a, b], over=a)
            ext = f.array("ext", l, d, cite=cite) if adjust else y
            extract(f, sequence, weights, ext)
            if W_adj is not None:
                adj = f.array("adj", l, d, cite="(24)") if W_out is not None else y
                adj[i, b] = sum_(x[i, a] * W_adj[a, b], over=a) * ext[i, b]
                if W_out is not None:
                    y[i, b] = sum_(adj[i, a] * W_out[a, b], over=a)
    return m


she = extractor(
    "she",
    "SHE",
    "a matrix for each distance, then a gate and a linear map",
    f"{V2}, eqs. (23)-(25)",
    MATRICES,
    cite="(23)",
    aliases=("extractor",),
)
she_no_output = extractor(
    "she-no-output",
    "SHE without W_out",
    "a matrix for each distance, then a gate",
    f"{V1}, section 6; eqs. (23)-(24) of v2",
    MATRICES,
    cite="(23)",
    output=False,
)
she_extraction = extractor(
    "she-extraction",
    "SHE, extraction only",
    "a matrix for each distance",
    f"{V1}, section 6; eq. (23) of v2",
    MATRICES,
    cite="(23)",
    adjust=False,
    output=False,
)
he = extractor(
    "he",
    "HE",
    "WE on rows that were mapped linearly first",
    f"{V2}, eqs. (27)-(28), (24)-(25)",
    VECTORS,
    cite="(28)",
    transform=True,
)
he_extraction = extractor(
    "he-extraction",
    "HE, extraction only",
    "a linear map, then a weight for each distance and channel",
    f"{V2}, section 5.4 and eqs. (27)-(28)",
    VECTORS,
    cite="(28)",
    transform=True,
    adjust=False,
    output=False,
)
we = extractor(
    "we",
    "WE",
    "a weight for each distance and channel, then gate and map",
    f"{V2}, eqs. (26), (24)-(25)",
    VECTORS,
    cite="(26)",
)
me = extractor(
    "me",
    "ME",
    "one number for each distance",
    f"{V2}, eq. (29)",
    SCALARS,
    cite="(29)",
    adjust=False,
    output=False,
)
