"""The named functions and Fourier transforms of the equations, on numpy arrays.

A transform runs along the last axis; a spectrum has a further last axis of 2 for real and imaginary
parts. `points` is the length of the transform. Importing this file imports numpy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Values = NDArray[Any]


def _rfft(source: Values, points: int) -> Values:
    """(..., rows) -> (..., points/2 + 1, 2): the spectrum of real numbers."""
    spectrum = np.fft.rfft(source, n=points, axis=-1)
    return np.stack([spectrum.real, spectrum.imag], axis=-1)


def _irfft(source: Values, points: int) -> Values:
    """(..., points/2 + 1, 2) -> (..., points): the real numbers of a spectrum."""
    return np.fft.irfft(source[..., 0] + 1j * source[..., 1], n=points, axis=-1)


def _rfft_adjoint(source: Values, points: int) -> Values:
    """The transpose of `_rfft`, (..., bins, 2) -> (..., points): each bin counts once, while
    `irfft` counts the bins between first and last twice."""
    bins = source[..., 0] + 1j * source[..., 1]
    return np.fft.ifft(bins, n=points, axis=-1).real * points


def _irfft_adjoint(source: Values, points: int) -> Values:
    """The transpose of the linear map `_irfft` (the inverse real Fourier transform): (..., points)
    -> (..., bins, 2); the last axis is (real, imaginary). A bin that stands for two conjugate bins
    has the weight 2/points; the first bin and, of an even number of points, the last have 1/points,
    and `_irfft` does not depend on their imaginary parts."""
    weight, alone = np.full(points // 2 + 1, 2.0 / points), [0, 0 if points % 2 else -1]
    weight[alone] = 1 / points
    spectrum = np.fft.rfft(source, n=points, axis=-1) * weight
    spectrum.imag[..., alone] = 0
    return np.stack([spectrum.real, spectrum.imag], axis=-1)


def _fft(source: Values, points: int) -> Values:
    """(..., rows, 2) -> (..., points, 2): the spectrum of complex numbers."""
    bins = np.fft.fft(source[..., 0] + 1j * source[..., 1], n=points, axis=-1)
    return np.stack([bins.real, bins.imag], axis=-1)


def _fft_adjoint(source: Values, points: int) -> Values:
    """The gradient of `_fft`, (..., points, 2) -> (..., points, 2): the inverse transform, without
    its factor 1/points."""
    rows = np.fft.ifft(source[..., 0] + 1j * source[..., 1], n=points, axis=-1) * points
    return np.stack([rows.real, rows.imag], axis=-1)


TRANSFORMS: Mapping[str, Callable[[Any, int], Any]] = {
    "rfft": _rfft,
    "irfft": _irfft,
    "rfft-adjoint": _rfft_adjoint,
    "irfft-adjoint": _irfft_adjoint,
    "rfft-adjoint-complex": _rfft_adjoint,
    "irfft-adjoint-doubled": _irfft_adjoint,
    "fft": _fft,
    "fft-adjoint": _fft_adjoint,
}


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


_erf = np.vectorize(math.erf, otypes=[float])

VALUES: Mapping[str, Callable[[Any], Any]] = {
    "exp": np.exp,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "log": np.log,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "erf": _erf,
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x),
    "softplus": lambda x: np.logaddexp(0, x),
    "elu_plus_1": lambda x: np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))),
    "gelu": lambda x: x * (0.5 * (1 + _erf(x * 2**-0.5))),
    "silu_slope": lambda x: _sigmoid(x) * (1 + x * (1 - _sigmoid(x))),
    "erf_slope": lambda x: np.exp(-x * x) * (2 / math.sqrt(math.pi)),
    "gelu_slope": lambda x: (
        0.5 * (1 + _erf(x * 2**-0.5)) + x * np.exp(x * x * -0.5) * (2 * math.pi) ** -0.5
    ),
}
"""Name of a function in `functions.TABLE` -> the function on arrays."""
