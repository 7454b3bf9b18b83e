"""The Extractor mixers (SHE and its ablations, HE, HE's extraction, WE, ME) in PyTorch.

Equations (23)-(29) of Chen's SHE/HE/WE/ME paper; the ablations are in section 6 of its first
version. A class combines a mixer with an algorithm for the causal convolution out[i] = sum over
j <= i of u[j] * w[i-j+1]. The kernel w holds a matrix, vector or scalar per lag, (l, d, d), (l, d)
or (l,), and * is the vector-matrix, elementwise or scalar product. u is (b, s, d) with s <= l;
kernel rows beyond s are never read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - PyTorch's own name for it

from profiler.modules.base import Mixer, State, Unsupported
from profiler.modules.registry import implementation


def matrix_direct(u: Tensor, kernel: Tensor) -> Tensor:
    """The causal convolution out[i] = sum over j <= i of u[j] w[i-j+1] of rows u (b, s, d), out (b,
    s, d), by one matrix product per lag, over the rows that have an earlier row at this lag, so
    that no masked pair is computed. The kernel w is (l, d, d)."""
    length = int(u.shape[1])
    out = u @ kernel[0]
    for lag in range(1, length):
        out[:, lag:].add_(u[:, : length - lag] @ kernel[lag])
    return out


def matrix_convolution(u: Tensor, kernel: Tensor) -> Tensor:
    """out (b, s, d) by one convolution with s taps; the kernel (l, d, d) is flipped and permuted to
    (out, in, tap)."""
    length = int(u.shape[1])
    taps = kernel[:length].flip(0).permute(2, 1, 0)
    return F.conv1d(_pad_left(u, length), taps).transpose(1, 2)


def vector_toeplitz(u: Tensor, kernel: Tensor) -> Tensor:
    """out (b, s, d) by one depthwise convolution with s taps, a Toeplitz matrix for each channel of
    the kernel (l, d)."""
    length = int(u.shape[1])
    taps = kernel[:length].flip(0).t().unsqueeze(1)
    return F.conv1d(_pad_left(u, length), taps, groups=taps.shape[0]).transpose(1, 2)


def scalar_toeplitz(u: Tensor, kernel: Tensor) -> Tensor:
    """The causal convolution out (b, s, d) of rows u (b, s, d) with a number w per lag, by one
    product with the lower triangular Toeplitz matrix T[i, j] = w[i-j+1].

    T consists of windows of the padded kernel (l,), which needs no arithmetic on indices. T is
    expanded to the batch for torch.bmm, since counters of operations miss broadcast products.
    """
    batch, length = int(u.shape[0]), int(u.shape[1])
    padded = F.pad(kernel[:length], (length - 1, 0))
    toeplitz = padded.unfold(0, length, 1).flip(1)
    return torch.bmm(toeplitz.expand(batch, length, length), u)


def matrix_fft(u: Tensor, kernel: Tensor) -> Tensor:
    """The causal convolution out[i] = sum over j <= i of u[j] w[i-j+1] of rows u (b, s, d) with a
    matrix per lag, w (l, d, d): out (b, s, d), by Fourier transforms over the sequence; per bin one
    complex product (b, d) @ (d, d). Unsupported in float16 and bfloat16: torch lacks the complex
    product of the one and the transform of the other."""
    if u.dtype == torch.float16:
        raise Unsupported("torch has no complex matrix product in half precision (complex32)")
    length, size = int(u.shape[1]), _transform_length(u)
    u_f = torch.fft.rfft(u.transpose(0, 1), n=size, dim=0)  # (bins, b, d)
    kernel_f = torch.fft.rfft(kernel[:length], n=size, dim=0)  # (bins, d, d)
    out: Tensor = torch.fft.irfft(torch.bmm(u_f, kernel_f), n=size, dim=0)
    return out[:length].transpose(0, 1)


def vector_fft(u: Tensor, kernel: Tensor) -> Tensor:
    """The causal convolution out[i] = sum over j <= i of u[j] * w[i-j+1] of rows u (b, s, d),
    channel by channel, with the kernel w (l, d): out (b, s, d), by Fourier transforms over the
    zero-padded sequence; per bin and channel one complex product. Unsupported if torch has no
    transform in the dtype on the device."""
    length, size = int(u.shape[1]), _transform_length(u)
    u_f = torch.fft.rfft(u, n=size, dim=1)  # (b, bins, d)
    kernel_f = torch.fft.rfft(kernel[:length], n=size, dim=0)  # (bins, d)
    out: Tensor = torch.fft.irfft(u_f * kernel_f, n=size, dim=1)
    return out[:, :length]


def scalar_fft(u: Tensor, kernel: Tensor) -> Tensor:
    """As `vector_fft`, with one kernel for all channels."""
    return vector_fft(u, kernel.unsqueeze(1))


def matrix_latest(held: Tensor, kernel: Tensor) -> Tensor:
    """The convolution at the newest row, from rows (b, t, d), newest first: a matrix product."""
    return held.flatten(1) @ kernel[: held.shape[1]].flatten(0, 1)


def vector_latest(held: Tensor, kernel: Tensor) -> Tensor:
    """The convolution at the newest row, from rows (b, t, d), newest first: products, then a
    sum."""
    return (held * kernel[: held.shape[1]]).sum(1)


def scalar_latest(held: Tensor, kernel: Tensor) -> Tensor:
    """The convolution at the newest row, from rows (b, t, d), newest first: a batched product."""
    batch, position = held.shape[:2]
    return torch.bmm(kernel[:position].expand(batch, 1, position), held).squeeze(1)


def _pad_left(u: Tensor, length: int) -> Tensor:
    """u (b, s, d) as (b, d, length - 1 + s), with zeros before the first token."""
    return F.pad(u.transpose(1, 2), (length - 1, 0))


def _transform_length(u: Tensor) -> int:
    """The length of the transforms, 2 * 2**ceil(log2 s), so that the convolution does not wrap
    around; Unsupported if torch has no transform in the dtype on the device."""
    if u.dtype == torch.bfloat16 or (u.dtype == torch.float16 and u.device.type != "cuda"):
        raise Unsupported(f"torch.fft has no transform in {u.dtype} on {u.device.type}")
    return 2 << (int(u.shape[1]) - 1).bit_length()


@dataclass(frozen=True)
class LagSumAlgorithm:
    """An algorithm for the causal convolution of whole sequences, with its kernel classes.

    `compute` maps u (b, s, d) and the kernel to the convolution (b, s, d). `product` is the kernel
    class of the complex product between the Fourier transforms; None for an algorithm without
    transforms.
    """

    name: str
    compute: Callable[[Tensor, Tensor], Tensor]
    kernel: str
    form: str = "direct"
    rewrites: tuple[str, ...] = ()
    product: str | None = None


MATRIX_DIRECT = LagSumAlgorithm("direct", matrix_direct, "contraction")


MATRIX_CONVOLUTION = LagSumAlgorithm("conv", matrix_convolution, "convolution", rewrites=("dense",))


MATRIX_FFT = LagSumAlgorithm("fft", matrix_fft, "fft", form="fft", product="complex-contraction")


VECTOR_TOEPLITZ = LagSumAlgorithm("toeplitz", vector_toeplitz, "convolution", rewrites=("dense",))


VECTOR_FFT = LagSumAlgorithm("fft", vector_fft, "fft", form="fft", product="complex-elementwise")


SCALAR_TOEPLITZ = LagSumAlgorithm("toeplitz", scalar_toeplitz, "contraction", rewrites=("dense",))


SCALAR_FFT = LagSumAlgorithm("fft", scalar_fft, "fft", form="fft", product="complex-elementwise")


class Extractor(Mixer):
    """The extraction ext[i] = sum over j <= i of u[j] * kernel[i-j+1], and the maps around it.

    `PARTS` names the maps that a mixer has: u = x W_in_ext (else u is x), adj = (x W_adj) * ext
    entry by entry, and y = adj W_out. The last of these arrays is called y. The kernel is the
    parameter `KERNEL`: W_ext (l, d, d), w_ext (l, d) or w_ext (l,).
    """

    bounded = True
    MIXER: ClassVar[str]
    KERNEL: ClassVar[str]
    PARTS: ClassVar[tuple[str, ...]] = ()
    STEP_KERNEL: ClassVar[str]
    algorithm: ClassVar[LagSumAlgorithm]

    W_in_ext: nn.Parameter
    W_adj: nn.Parameter
    W_out: nn.Parameter

    def __init__(self, *, d: int, l: int) -> None:
        super().__init__(d=d, l=l)
        setattr(self, self.KERNEL, self.weight(*self.kernel_shape()))
        for name in self.PARTS:
            setattr(self, name, self.weight(d, d))

    def kernel_shape(self) -> tuple[int, ...]:
        """The shape of the kernel: the axis of lags, then the axes of one lag."""
        raise NotImplementedError

    @staticmethod
    def latest(held: Tensor, kernel: Tensor) -> Tensor:
        """The convolution at the newest token, from rows newest first: (b, t, d) to (b, d)."""
        raise NotImplementedError

    @classmethod
    def summed(cls) -> str:
        """The name of the array that is convolved, u or x; its rows are the state."""
        return "u" if "W_in_ext" in cls.PARTS else "x"

    def initial_state(self, batch: int, length: int | None = None) -> State:
        """An empty state with room for the convolved rows, held newest first."""
        return State({self.summed(): self._rows(batch, length, self.d)}, newest_first=True)

    def mix(self, x: Tensor) -> Tensor:
        """y (b, s, d) of x (b, s, d): linear maps around the extraction by this class's
        algorithm."""
        return self._surround(x, self.algorithm.compute(self._enter(x), self._kernel()))

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """y_t (b, d) of one token x_t (b, d): append the token's row, then convolve at this row."""
        state.append(**{self.summed(): self._enter(x_t)})
        return self._surround(x_t, self.latest(state.held(self.summed()), self._kernel()))

    def _kernel(self) -> Tensor:
        kernel: Tensor = getattr(self, self.KERNEL)
        return kernel

    def _enter(self, x: Tensor) -> Tensor:
        """The rows u (..., d) that are convolved, of x (..., d)."""
        return x @ self.W_in_ext if "W_in_ext" in self.PARTS else x

    def _surround(self, x: Tensor, ext: Tensor) -> Tensor:
        """y (..., d) from x and the extraction ext, (..., d) each."""
        if "W_adj" in self.PARTS:
            ext = (x @ self.W_adj) * ext
        return ext @ self.W_out if "W_out" in self.PARTS else ext


_Class = TypeVar("_Class", bound=type[Extractor])


def computed_by(algorithm: LagSumAlgorithm) -> Callable[[_Class], _Class]:
    """Return a decorator that registers a class as an implementation of the mixer in its `MIXER`,
    with this algorithm of the convolution of whole sequences; a step sums over lags directly."""

    def register(cls: _Class) -> _Class:
        """Set the class's algorithm, and register the class with its kernel classes."""
        cls.algorithm = algorithm
        return implementation(
            cls.MIXER,
            algorithm.name,
            form=algorithm.form,
            rewrites=algorithm.rewrites,
            kernels=_kernels(cls, algorithm.kernel) | _transform_kernels(cls, algorithm),
            step_form="direct",
            step_kernels=_kernels(cls, cls.STEP_KERNEL),
        )(cls)

    return register


def _kernels(mixer: type[Extractor], of_sum: str) -> dict[str, str]:
    """A dict: name of an array in the equations of `mixer` -> kernel class that computes it;
    `of_sum` is the class of the convolution, whose array is `ext`. The equations call a mixer's
    last array y: the convolution's, if no map follows it."""
    before = ["u"] if "W_in_ext" in mixer.PARTS else []
    chain = ["ext"] + [part.removeprefix("W_") for part in mixer.PARTS if part != "W_in_ext"]
    chain[-1] = "y"
    return dict.fromkeys([*before, *chain], "contraction") | {chain[0]: of_sum}


def _transform_kernels(mixer: type[Extractor], algorithm: LagSumAlgorithm) -> dict[str, str]:
    """A dict: name of an array -> kernel class, for the Fourier transforms and the product between
    them; {} for an algorithm without transforms."""
    if algorithm.product is None:
        return {}
    transformed = (f"{mixer.summed()}_f", f"{mixer.KERNEL[0]}_f")
    return dict.fromkeys(transformed, "fft") | {"e_f": algorithm.product}


class MatrixExtractor(Extractor):
    """An Extractor with a matrix per lag, W_ext (l, d, d)."""

    KERNEL = "W_ext"
    STEP_KERNEL = "contraction"
    W_ext: nn.Parameter
    latest = staticmethod(matrix_latest)

    def kernel_shape(self) -> tuple[int, ...]:
        """(l, d, d)."""
        return self.l, self.d, self.d


class VectorExtractor(Extractor):
    """An Extractor with a vector per lag, w_ext (l, d)."""

    KERNEL = "w_ext"
    STEP_KERNEL = "reduction"
    w_ext: nn.Parameter
    latest = staticmethod(vector_latest)

    def kernel_shape(self) -> tuple[int, ...]:
        """(l, d)."""
        return self.l, self.d


class ScalarExtractor(Extractor):
    """An Extractor with a scalar per lag, w_ext (l,)."""

    KERNEL = "w_ext"
    STEP_KERNEL = "contraction"
    w_ext: nn.Parameter
    latest = staticmethod(scalar_latest)

    def kernel_shape(self) -> tuple[int, ...]:
        """(l,)."""
        return (self.l,)


class She(MatrixExtractor):
    """SHE: equations (23)-(25)."""

    MIXER = "she"
    PARTS = ("W_adj", "W_out")


@computed_by(MATRIX_DIRECT)
class SheDirect(She):
    """SHE by one matrix product per lag."""


@computed_by(MATRIX_CONVOLUTION)
class SheConvolution(She):
    """SHE by one convolution of length l."""


@computed_by(MATRIX_FFT)
class SheFft(She):
    """SHE by Fourier transforms over the sequence."""


class SheNoOutput(MatrixExtractor):
    """SHE without the optional linear map: equations (23)-(24)."""

    MIXER = "she-no-output"
    PARTS = ("W_adj",)


@computed_by(MATRIX_DIRECT)
class SheNoOutputDirect(SheNoOutput):
    """SHE without output map by one matrix product per lag."""


@computed_by(MATRIX_CONVOLUTION)
class SheNoOutputConvolution(SheNoOutput):
    """SHE without output map by one convolution of length l."""


@computed_by(MATRIX_FFT)
class SheNoOutputFft(SheNoOutput):
    """SHE without output map by Fourier transforms over the sequence."""


class SheExtraction(MatrixExtractor):
    """SHE's extraction alone: equation (23)."""

    MIXER = "she-extraction"


@computed_by(MATRIX_DIRECT)
class SheExtractionDirect(SheExtraction):
    """SHE's extraction by one matrix product per lag."""


@computed_by(MATRIX_CONVOLUTION)
class SheExtractionConvolution(SheExtraction):
    """SHE's extraction by one convolution of length l."""


@computed_by(MATRIX_FFT)
class SheExtractionFft(SheExtraction):
    """SHE's extraction by Fourier transforms over the sequence."""


class He(VectorExtractor):
    """HE: equations (27), (28), (24), (25)."""

    MIXER = "he"
    PARTS = ("W_in_ext", "W_adj", "W_out")


@computed_by(VECTOR_TOEPLITZ)
class HeToeplitz(He):
    """HE by one depthwise convolution of length l."""


@computed_by(VECTOR_FFT)
class HeFft(He):
    """HE by Fourier transforms over the sequence."""


class HeExtraction(VectorExtractor):
    """HE's extraction alone: equations (27)-(28)."""

    MIXER = "he-extraction"
    PARTS = ("W_in_ext",)


@computed_by(VECTOR_TOEPLITZ)
class HeExtractionToeplitz(HeExtraction):
    """HE's extraction by one depthwise convolution of length l."""


@computed_by(VECTOR_FFT)
class HeExtractionFft(HeExtraction):
    """HE's extraction by Fourier transforms over the sequence."""


class We(VectorExtractor):
    """WE: equations (26), (24), (25)."""

    MIXER = "we"
    PARTS = ("W_adj", "W_out")


@computed_by(VECTOR_TOEPLITZ)
class WeToeplitz(We):
    """WE by one depthwise convolution of length l."""


@computed_by(VECTOR_FFT)
class WeFft(We):
    """WE by Fourier transforms over the sequence."""


class Me(ScalarExtractor):
    """ME: equation (29)."""

    MIXER = "me"


@computed_by(SCALAR_TOEPLITZ)
class MeToeplitz(Me):
    """ME by one product with a Toeplitz matrix."""


@computed_by(SCALAR_FFT)
class MeFft(Me):
    """ME by Fourier transforms over the sequence."""
