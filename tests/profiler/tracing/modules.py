"""Modules that the tests trace, each made at given sizes, and their traces, each made once."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import Tensor, nn

from profiler.tracing import trace
from profiler.tracing.result import Trace


@cache
def traced(make: Any, over: str, let: str = "", backend: str = "math") -> Trace:
    """The trace of a module, one for all tests that ask for the same."""
    return trace(make, over=over, let=let or (), backend=backend, grad="both")


def linear(d: int) -> nn.Module:
    return nn.Linear(d, 2 * d)


def attention(l: int, d: int, n: int) -> tuple[nn.Module, dict[str, Any]]:
    x = torch.empty(1, l, d)
    inputs = {"query": x, "key": x, "value": x, "need_weights": False}
    return nn.MultiheadAttention(d, n, batch_first=True), inputs


def encoder_layer(d: int, n: int) -> nn.Module:
    return nn.TransformerEncoderLayer(d, n, 4 * d, dropout=0.0, batch_first=True)


def deep(d: int, n: int) -> nn.Module:
    return nn.Sequential(*(encoder_layer(d, n) for _ in range(3)))


def lstm(d: int) -> nn.Module:
    return nn.LSTM(d, d, batch_first=True)


def gru(d: int) -> nn.Module:
    return nn.GRU(d, d, batch_first=True)


def vast(l: int) -> tuple[nn.Module, Tensor]:
    """Four terabytes of weights."""
    return nn.Linear(2**20, 2**20, bias=False), torch.empty(1, l, 2**20)


class Attend(nn.Module):
    """Causal attention, each token to itself and those before."""

    def forward(self, q: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, q, q, is_causal=True)


def causal(l: int, h: int, n: int) -> tuple[nn.Module, Tensor]:
    return Attend(), torch.empty(1, n, l, h)


class Doctored(nn.Module):
    """A linear map, and what a doctor adds to it."""

    def __init__(self, d: int, doctor: str = "") -> None:
        super().__init__()
        self.inner = nn.Linear(d, d)
        self.doctor = doctor

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x)
        if self.doctor == "add":
            return y + 1
        if self.doctor == "mul":
            return y * 3.0
        if self.doctor == "exp":
            return y.exp()
        if self.doctor == "hook":
            hook: Any = y.register_hook
            hook(lambda gradient: gradient * 2.0)
        if self.doctor == "upcast":
            return y.double()
        return y


class Unruled(nn.Module):
    """An operation without a counting rule."""

    def forward(self, x: Tensor) -> Tensor:
        values: Tensor = torch.polygamma(1, x)
        return values * 2.0


class Branching(nn.Module):
    """A branch on a value."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2.0 if x.sum() > 0 else x


class Selecting(nn.Module):
    """As many results as there are positive entries."""

    def forward(self, x: Tensor) -> Tensor:
        return x[x > 0]


class Itemising(nn.Module):
    """A value read off a tensor."""

    def forward(self, x: Tensor) -> Tensor:
        return x * float(x.max().item())


class Windowed(nn.Module):
    """The last 12 tokens, or as many as there are."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, -12:] * 2.0


class Chunked(nn.Module):
    """Attention within chunks of 7, the last one padded."""

    def forward(self, x: Tensor) -> Tensor:
        b, l, d = x.shape
        x = F.pad(x, (0, 0, 0, -l % 7)).view(b, -1, 7, d)
        scores: Tensor = (x @ x.transpose(-1, -2)).reshape(b, -1)
        return scores


class CutConvolution(nn.Module):
    """A convolution of k taps over rows of zeros on both sides, of which the last k - 1 are cut
    off, with a bias."""

    def __init__(self, d: int, k: int) -> None:
        super().__init__()
        self.inner = nn.Conv1d(d, d, k, groups=d, padding=k - 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2)
        return F.silu(y)


class LongConvolution(nn.Module):
    """A convolution as long as the sequence, by transforms of a padded length."""

    def __init__(self, l: int, d: int) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.empty(d, l))

    def forward(self, x: Tensor) -> Tensor:
        l = x.shape[1]
        n = 2 * (1 << (l - 1).bit_length())
        product = torch.fft.rfft(x.transpose(1, 2), n=n) * torch.fft.rfft(self.kernel, n=n)
        y: Tensor = torch.fft.irfft(product, n=n)[..., :l]
        return y


class Needing(nn.Module):
    """Its width has to be even."""

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.view(*x.shape[:-1], 2, x.shape[-1] // 2).unbind(-2)
        return left * right


class Odd(nn.Module):
    """Work that no polynomial and no period gives: the number of divisors of l."""

    def forward(self, x: Tensor) -> Tensor:
        l = x.shape[1]
        for k in range(1, l + 1):
            if l % k == 0:
                x = x * 2.0
        return x


class Even(nn.Module):
    """Something else where nothing remains of one size over a number."""

    def __init__(self, *, axis: int, chunk: int) -> None:
        super().__init__()
        self.axis, self.chunk = axis, chunk

    def forward(self, x: Tensor) -> Tensor:
        return x.exp() if x.shape[self.axis] % self.chunk == 0 else x


class AtSquares(nn.Module):
    """An exponential at every entry where the length is a square."""

    def forward(self, x: Tensor) -> Tensor:
        length = len(x[0])
        return x.exp() if math.isqrt(length) ** 2 == length else x
