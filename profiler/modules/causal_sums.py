"""By which torch operations is the causal sum over lags of the Extractor family computed?

Every function computes out[i] = sum over j <= i of u[j] * w[i-j+1], from u (b, s, d) and a kernel
whose first axis is the lag: matrices (l, d, d), vectors (l, d) or scalars (l,), l >= s. The
product is the vector-matrix, the elementwise or the scalar one. The rows of the kernel beyond s
are never read. (Equations (23), (26), (28), (29) of Chen's SHE/HE/WE/ME paper.)
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import Tensor

from profiler.modules.base import Unsupported


def matrix_direct(u: Tensor, kernel: Tensor) -> Tensor:
    """One matrix product per lag, each over the rows that have it: no masked pair is computed."""
    length = int(u.shape[1])
    out = u @ kernel[0]
    for lag in range(1, length):
        out[:, lag:].add_(u[:, : length - lag] @ kernel[lag])
    return out


def matrix_convolution(u: Tensor, kernel: Tensor) -> Tensor:
    """One convolution with s taps; the weights are flipped and permuted to (out, in, tap)."""
    length = int(u.shape[1])
    taps = kernel[:length].flip(0).permute(2, 1, 0)
    return F.conv1d(_pad_left(u, length), taps).transpose(1, 2)


def vector_toeplitz(u: Tensor, kernel: Tensor) -> Tensor:
    """One depthwise convolution with s taps: a Toeplitz matrix for each channel."""
    length = int(u.shape[1])
    taps = kernel[:length].flip(0).t().unsqueeze(1)
    return F.conv1d(_pad_left(u, length), taps, groups=taps.shape[0]).transpose(1, 2)


def scalar_toeplitz(u: Tensor, kernel: Tensor) -> Tensor:
    """One product with the lower triangular Toeplitz matrix T[i, j] = w[i-j+1], zeros above.

    T is copied together from windows of the padded kernel, without arithmetic on indices; the
    product is batched with equal batches because a counter of operations would miss a broadcast.
    """
    batch, length = int(u.shape[0]), int(u.shape[1])
    padded = F.pad(kernel[:length], (length - 1, 0))
    toeplitz = padded.unfold(0, length, 1).flip(1)
    return torch.bmm(toeplitz.expand(batch, length, length), u)


def matrix_fft(u: Tensor, kernel: Tensor) -> Tensor:
    """Transforms along the sequence; per frequency one complex matrix product (b, d) @ (d, d)."""
    if u.dtype == torch.float16:
        raise Unsupported("torch has no complex matrix product in half precision (complex32)")
    length, size = int(u.shape[1]), _transform_length(u)
    u_f = torch.fft.rfft(u.transpose(0, 1), n=size, dim=0)  # (bins, b, d)
    kernel_f = torch.fft.rfft(kernel[:length], n=size, dim=0)  # (bins, d, d)
    out: Tensor = torch.fft.irfft(torch.bmm(u_f, kernel_f), n=size, dim=0)
    return out[:length].transpose(0, 1)


def vector_fft(u: Tensor, kernel: Tensor) -> Tensor:
    """Transforms along the sequence; per frequency and channel one complex product."""
    length, size = int(u.shape[1]), _transform_length(u)
    u_f = torch.fft.rfft(u, n=size, dim=1)  # (b, bins, d)
    kernel_f = torch.fft.rfft(kernel[:length], n=size, dim=0)  # (bins, d)
    out: Tensor = torch.fft.irfft(u_f * kernel_f, n=size, dim=1)
    return out[:, :length]


def scalar_fft(u: Tensor, kernel: Tensor) -> Tensor:
    """As `vector_fft`, with one kernel for all channels."""
    return vector_fft(u, kernel.unsqueeze(1))


def matrix_latest(held: Tensor, kernel: Tensor) -> Tensor:
    """The newest row of the sum, from the rows held newest first (b, t, d): one matrix product."""
    return held.flatten(1) @ kernel[: held.shape[1]].flatten(0, 1)


def vector_latest(held: Tensor, kernel: Tensor) -> Tensor:
    """The newest row of the sum, from the rows held newest first: products, then their sum."""
    return (held * kernel[: held.shape[1]]).sum(1)


def scalar_latest(held: Tensor, kernel: Tensor) -> Tensor:
    """The newest row of the sum, from the rows held newest first: one batched matrix product."""
    batch, position = held.shape[:2]
    return torch.bmm(kernel[:position].expand(batch, 1, position), held).squeeze(1)


def _pad_left(u: Tensor, length: int) -> Tensor:
    """u (b, s, d) as (b, d, length - 1 + s), zeros before the first token."""
    return F.pad(u.transpose(1, 2), (length - 1, 0))


def _transform_length(u: Tensor) -> int:
    """The power of two N = 2 * 2**ceil(log2 s), after checking that the transform exists."""
    if u.dtype == torch.bfloat16 or (u.dtype == torch.float16 and u.device.type != "cuda"):
        raise Unsupported(f"torch.fft has no transform in {u.dtype} on {u.device.type}")
    return 2 << (int(u.shape[1]) - 1).bit_length()
