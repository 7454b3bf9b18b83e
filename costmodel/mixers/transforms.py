"""What are the equations of Fourier transforms in place of attention: FNet?

Lee-Thorp et al. 2021, equation (3): the discrete Fourier transform along the channels, then along
the tokens, of which the real part is kept. `direct` multiplies by the cosines and the sines of
both, as the authors' code does of up to 4096 tokens on a TPU; `fft` transforms, as its jnp.fft.fft2
of complex numbers. Every row reads all tokens, so one token has no output of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from costmodel.language.complex_numbers import Complex, complex_
from costmodel.language.equations import Mixer
from costmodel.language.nodes import Array, node
from costmodel.language.writing import fft, sum_
from costmodel.symbolic.polynomial import Poly


def fourier() -> Mixer:
    """FNet, by matrices and by transforms."""
    m = Mixer(
        "fnet",
        title="FNet",
        idea="real part of a Fourier transform of tokens and channels",
        source="Lee-Thorp et al. 2021, arXiv 2105.03824, equation (3)",
        group="fourier",
    )
    l, d = m.sizes("l d")
    x, y = m.input("x", l, d), m.output("y", l, d, cite="(3)")

    def table(name: str, points: Poly) -> tuple[Array, Array]:
        """Cosines and sines of a transform."""

        def angle(k: int, q: int, sizes: Mapping[str, int]) -> float:
            return 2 * math.pi * ((k - 1) * (q - 1) % points.at(sizes)) / points.at(sizes)

        return (
            m.buffer(f"C_{name}", points, points, value=lambda *at: math.cos(angle(*at))),
            m.buffer(f"S_{name}", points, points, value=lambda *at: math.sin(angle(*at))),
        )

    (C_d, S_d), (C_l, S_l) = table("d", d), table("l", l)
    with m.form("direct") as f:
        i, k = f.index("i", 1, l), f.index("k", 1, l)
        a, b = f.index("a", 1, d), f.index("b", 1, d)
        U, V = f.array("U", l, d), f.array("V", l, d)
        U[k, b] = sum_(x[k, a] * C_d[a, b], over=a)
        V[k, b] = sum_(x[k, a] * S_d[a, b], over=a)
        y[i, b] = sum_(C_l[i, k] * U[k, b], over=k) - sum_(S_l[i, k] * V[k, b], over=k)
    with m.form("fft") as f:
        i, k = f.index("i", 1, l), f.index("k", 1, l)
        a, b = f.index("a", 1, d), f.index("b", 1, d)
        p, q = f.index("p", 1, 2), f.index("q", 1, 2)
        X, H, F = (f.array(name, l, d, 2) for name in "XHF")
        complex_(X)[k, a] = Complex(x[k, a], node(0))
        H[k, b, q] = fft(X[k, a, p], over=(a, p), length=d)
        F[i, b, q] = fft(H[k, b, p], over=(k, p), length=l)
        y[i, b] = complex_(F)[i, b].real
    return m


fnet = fourier()
