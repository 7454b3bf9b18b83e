"""Convolutions over tokens in PyTorch, causal or centred.

The convolutional layer of Table 1 of Vaswani et al. 2017 has k taps, each a (d, d) matrix, and no
bias; a class combines an alignment of the taps with an algorithm. Light and dynamic convolution are
from Wu et al. 2019, computed over windows of k rows. ConvMixer is by Trockman and Kolter 2022.
Rows are (b, s, d); a tap is the weight of one distance between the row written and the row read.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import Tensor, nn

from profiler.modules.base import (
    Headed,
    Mixer,
    PreparedState,
    SequenceMixer,
    State,
    require_sizes,
)
from profiler.modules.registry import implementation

Apply = Callable[[Tensor, Tensor, int], Tensor]
"""A function of rows (b, s, d), taps (k, d, d) in the order of the rows that they read, and the
number of taps that read later rows. It returns the convolution (b, s, d)."""


def padded_convolution(x: Tensor, taps: Tensor, ahead: int) -> Tensor:
    """One torch convolution over zero-padded rows, with the taps permuted to (out, in, tap)."""
    around = F.pad(x.transpose(1, 2), (len(taps) - 1 - ahead, ahead))
    return F.conv1d(around, taps.permute(2, 1, 0)).transpose(1, 2)


def tap_by_tap(x: Tensor, taps: Tensor, ahead: int) -> Tensor:
    """The convolution over tokens of rows x (b, s, d) with `taps` (k, d, d), of which the last
    `ahead` read later rows: y (b, s, d). One matrix product per tap, over the rows that the tap
    reads: no padding is multiplied. Tap number `own`, from 0, reads the row itself, tap own - 1 the
    row before, and tap own + 1 the row after."""
    length, own = int(x.shape[1]), len(taps) - 1 - ahead
    y = x @ taps[own]
    for number, tap in enumerate(taps):
        back = own - number
        if 0 < back < length:
            y[:, back:].add_(x[:, : length - back] @ tap)
        elif 0 < -back < length:
            y[:, : length + back].add_(x[:, -back:] @ tap)
    return y


@dataclass(frozen=True)
class ConvolutionAlgorithm:
    """An algorithm for whole sequences, with its kernel class and the rewrites of the equations
    that it executes."""

    name: str
    apply: Apply
    kernel: str
    rewrites: tuple[str, ...] = ()


CONVOLUTION = ConvolutionAlgorithm("conv", padded_convolution, "convolution", rewrites=("dense",))
TAPS = ConvolutionAlgorithm("direct", tap_by_tap, "contraction")


class Convolution(SequenceMixer):
    """A convolution with k taps W (k, d, d); a subclass aligns the taps."""

    MIXER: ClassVar[str]
    algorithm: ClassVar[ConvolutionAlgorithm]

    def __init__(self, *, d: int, l: int, k: int) -> None:
        super().__init__(d=d, l=l)
        require_sizes(k=k)
        self.k = k
        self.W: nn.Parameter = self.weight(k, d, d)


class CausalConvolution(Convolution, Mixer):
    """At row i, tap s (from 1) reads row i-s+1."""

    MIXER = "convolution"

    def mix(self, x: Tensor) -> Tensor:
        """y (b, s, d) of x (b, s, d): the taps in the order of the rows that they read, none
        later."""
        return self.algorithm.apply(x, self.W.flip(0), 0)

    def initial_state(self, batch: int, length: int | None = None) -> State:
        """An empty state with the last k-1 rows, newest first, for any number of tokens."""
        require_sizes(batch=batch, length=self.l if length is None else length)
        held = self.like.new_zeros((batch, self.k - 1, self.d))
        return State({"x": held}, newest_first=True, sliding=True)

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """y_t (b, d): one product of the token's row and the held rows, newest first, with their
        taps."""
        rows = torch.cat([x_t.unsqueeze(1), state.held("x")], dim=1)
        state.append(x=x_t)
        return rows.flatten(1) @ self.W[: rows.shape[1]].flatten(0, 1)


class CentredConvolution(Convolution):
    """The middle tap reads the token itself; with k even, the first of the two middle taps."""

    MIXER = "convolution-same"

    def mix(self, x: Tensor) -> Tensor:
        """y (b, s, d) of x (b, s, d): the taps, of which floor(k/2) read later rows."""
        return self.algorithm.apply(x, self.W, self.k // 2)


_Class = TypeVar("_Class", bound=type[Convolution])
_Heads = TypeVar("_Heads", bound="type[ByChannel]")


def computed_by(algorithm: ConvolutionAlgorithm) -> Callable[[_Class], _Class]:
    """Return a decorator that registers a class as an implementation of the mixer in its `MIXER`,
    with this algorithm of the convolution of whole sequences."""

    def register(cls: _Class) -> _Class:
        """Set the class's algorithm, and register the class."""
        cls.algorithm = algorithm
        return implementation(
            cls.MIXER,
            algorithm.name,
            form="direct",
            rewrites=algorithm.rewrites,
            kernels={"y": algorithm.kernel},
            step_kernels={"y": "contraction"},
        )(cls)

    return register


@computed_by(CONVOLUTION)
class CausalConvolutionPadded(CausalConvolution):
    """One call of PyTorch's convolution, after k-1 rows of zeros."""


@computed_by(TAPS)
class CausalConvolutionByTaps(CausalConvolution):
    """One matrix product per tap."""


@computed_by(CONVOLUTION)
class CentredConvolutionPadded(CentredConvolution):
    """One call of PyTorch's convolution, between rows of zeros."""


@computed_by(TAPS)
class CentredConvolutionByTaps(CentredConvolution):
    """One matrix product per tap."""


class ByChannel(Headed):
    """Light or dynamic convolution: a gated linear unit, k taps per head, and a linear map.

    W_1, W_2 and W_out are (d, d). A tap is a number, which multiplies all channels of its head.
    """

    causal: ClassVar[bool] = False

    def __init__(self, *, d: int, l: int, n: int, k: int) -> None:
        require_sizes(k=k)
        self.k = k
        super().__init__(d=d, l=l, n=n)

    def declare(self) -> None:
        """W_1, W_2 and W_out."""
        self.W_1: nn.Parameter = self.weight(self.d, self.d)
        self.W_2: nn.Parameter = self.weight(self.d, self.d)
        self.W_out: nn.Parameter = self.weight(self.d, self.d)

    def gated(self, x: Tensor) -> Tensor:
        """The gated linear unit: the rows (..., d) that the taps read."""
        return (x @ self.W_1) * torch.sigmoid(x @ self.W_2)

    def mix(self, x: Tensor) -> Tensor:
        """The output y (b, s, d) of x (b, s, d): gate the rows, cut windows of k rows around each
        (b, s, d, k), padded with zeros, sum them by the taps of each head, and map the sums."""
        rows = self.gated(x)
        before = self.k - 1 if self.causal else (self.k + 1) // 2 - 1
        around = F.pad(rows, (0, 0, before, self.k - 1 - before)).unfold(1, self.k, 1)
        windows = around.flip(-1) if self.causal else around
        return self.summed(rows, windows, self.taps(rows)).flatten(2) @ self.W_out

    @abstractmethod
    def taps(self, rows: Tensor) -> Tensor:
        """The taps, (n, k), or (..., n, k) of rows (..., d)."""

    def summed(self, rows: Tensor, windows: Tensor, taps: Tensor) -> Tensor:
        """The convolution sums (..., n, h) of n heads with h channels: windows (..., d, r) of r
        rows times the first r taps of each head. `rows` (..., d) are the rows of the windows,
        `taps` (n, k), or (..., n, k) for each row."""
        windows = windows.view(*windows.shape[:-2], self.n, self.h, windows.shape[-1])
        taps = taps[..., : windows.shape[-1]].unsqueeze(-1)
        if taps.dim() > 3:
            return (windows @ taps).squeeze(-1)
        sums = windows.movedim(-3, 0).flatten(1, -2) @ taps  # one product for all rows of a head
        return sums.view(self.n, *rows.shape[:-1], self.h).movedim(0, -2)


class CausalByChannel(ByChannel, Mixer):
    """At row i, tap s (from 1) reads row i-s+1."""

    causal = True

    def initial_state(self, batch: int, length: int | None = None) -> State:
        """An empty state with the last k-1 gated rows, newest first, for any number of tokens."""
        require_sizes(batch=batch, length=self.l if length is None else length)
        held = self.like.new_zeros((batch, self.k - 1, self.d))
        return PreparedState({"G": held}, newest_first=True, sliding=True)

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """The output y_t (b, d) of one token x_t (b, d): the convolution over a window of the
        token's gated row and the rows before it, held in `state`, newest first."""
        assert isinstance(state, PreparedState)
        row = self.gated(x_t)
        window = torch.cat([row.unsqueeze(1), state.held("G")], dim=1).transpose(1, 2)
        state.append(G=row)
        return self.summed(row, window, self.latest(row, state)).flatten(1) @ self.W_out

    @abstractmethod
    def latest(self, row: Tensor, state: PreparedState) -> Tensor:
        """The taps of the newest token, (n, k) or (b, n, k), from its gated row (b, d)."""


class Light(ByChannel):
    """Taps are parameters W (n, k) after a softmax."""

    def declare(self) -> None:
        """W, after the maps of `ByChannel`."""
        super().declare()
        self.W: nn.Parameter = self.weight(self.n, self.k)

    def taps(self, rows: Tensor) -> Tensor:
        """softmax(W), (n, k)."""
        return torch.softmax(self.W, dim=-1)


class Dynamic(ByChannel):
    """Taps are a linear map W (n, k, d) of each token, after a softmax."""

    def declare(self) -> None:
        """W, after the maps of `ByChannel`."""
        super().declare()
        self.W: nn.Parameter = self.weight(self.n, self.k, self.d)

    def taps(self, rows: Tensor) -> Tensor:
        """The softmax of W times each row, (..., n, k)."""
        return torch.softmax(self.split(rows @ self.W.flatten(0, 1).t()), dim=-1)


def windowed(mixer: str, **scores: str) -> Callable[[_Heads], _Heads]:
    """Return a decorator that registers a class as an implementation of `mixer` over zero-padded
    windows; `scores`: array -> kernel class of the arrays that make the taps."""
    kernels = dict.fromkeys(("S", "G", "R", "y"), "contraction") | {"A": "softmax"} | scores
    return implementation(
        mixer,
        "windows",
        rewrites=("dense", "safe-softmax"),
        kernels=kernels,
        step_kernels=kernels,
    )


@windowed("light-convolution")
class CausalLight(CausalByChannel, Light):
    """Causal light convolution; in inference, the taps are computed once before the first token."""

    @torch.no_grad()
    def initial_state(self, batch: int, length: int | None = None) -> State:
        """An empty state with the last k-1 rows; `prepared` holds the taps (n, k)."""
        state = super().initial_state(batch, length)
        assert isinstance(state, PreparedState)
        state.prepared = self.taps(self.like)
        return state

    def latest(self, row: Tensor, state: PreparedState) -> Tensor:
        """The prepared taps, equal for all tokens."""
        return state.prepared


@windowed("light-convolution+centred")
class CentredLight(Light):
    """Centred light convolution."""


@windowed("dynamic-convolution", Z="contraction")
class CausalDynamic(CausalByChannel, Dynamic):
    """Causal dynamic convolution."""

    def latest(self, row: Tensor, state: PreparedState) -> Tensor:
        """The taps (b, n, k) that the token's row gives."""
        return self.taps(row)


@windowed("dynamic-convolution+centred", Z="contraction")
class CentredDynamic(Dynamic):
    """Centred dynamic convolution."""


@implementation(
    "convmixer",
    "conv",
    rewrites=("dense",),
    kernels={"H": "convolution", "Z": "elementwise", "U": "contraction", "y": "elementwise"},
)
class ConvMixer(SequenceMixer):
    """ConvMixer: a centred depthwise convolution with taps W (k, d), then a linear map W_out
    (d, d). Each has a bias b, and is followed by gelu and a batch normalisation, which is a gain
    and a bias per channel, (d,) each."""

    b_W: nn.Parameter
    gain_W: nn.Parameter
    bias_W: nn.Parameter
    b_out: nn.Parameter
    gain_out: nn.Parameter
    bias_out: nn.Parameter

    def __init__(self, *, d: int, l: int, k: int) -> None:
        """Declare k taps for each of d channels, a linear map, and biases and gains (d,)."""
        super().__init__(d=d, l=l)
        require_sizes(k=k)
        self.k = k
        self.W: nn.Parameter = self.weight(k, d)
        self.W_out: nn.Parameter = self.weight(d, d)
        for name in ("b_W", "gain_W", "bias_W", "b_out", "gain_out", "bias_out"):
            setattr(self, name, self.weight(d))

    def mix(self, x: Tensor) -> Tensor:
        """The output y (b, s, d) of x (b, s, d): each channel convolved over rows, gelu and a gain,
        with x added (skip connection); then the linear map, gelu and a gain."""
        around = F.pad(x.transpose(1, 2), ((self.k - 1) // 2, self.k // 2))
        sums = F.conv1d(around, self.W.t().unsqueeze(1), self.b_W, groups=self.d)
        rows = F.gelu(sums).transpose(1, 2) * self.gain_W + self.bias_W + x
        return F.gelu(rows @ self.W_out + self.b_out) * self.gain_out + self.bias_out
