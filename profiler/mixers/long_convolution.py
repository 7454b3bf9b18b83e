"""Convolutions as long as the sequence in PyTorch: with an explicit kernel, and Hyena.

The kernel K (l, d) has one row per distance; a class computes K from its parameters, in inference
once before the first token. The convolved rows u (b, s, d) are the state between tokens. Sources
and choices: costmodel.mixers.long_convolution.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import Tensor, nn

from profiler.mixers.extractor import VECTOR_FFT, VECTOR_TOEPLITZ, LagSumAlgorithm, vector_latest
from profiler.mixers.synthesizer import relu
from profiler.modules.base import Mixer, PreparedState, State, require_sizes
from profiler.modules.registry import implementation


def short_convolution(rows: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """The causal depthwise convolution of rows (b, s, d) with k taps w (k, d), of which the first
    reads the row itself, and a bias (d,) if given."""
    around = F.pad(rows.transpose(1, 2), (len(w) - 1, 0))
    taps = w.flip(0).t().unsqueeze(1)
    return F.conv1d(around, taps, bias, groups=len(taps)).transpose(1, 2)


def short_latest(row: Tensor, held: Tensor, w: Tensor) -> Tensor:
    """The short convolution at the newest row (b, d), without bias; `held` (b, at most k-1, d) are
    the rows before, newest first."""
    window = torch.cat([row.unsqueeze(1), held], dim=1)
    return (window * w[: window.shape[1]]).sum(1)


class LongConvolved(Mixer):
    """A mixer that convolves rows u (b, s, channels) with a kernel and adds D * u."""

    bounded = True
    MIXER: ClassVar[str]
    HELD: ClassVar[str]
    """The name of the convolved array u."""
    KERNELS: ClassVar[dict[str, str]]
    """Array -> kernel class, except the arrays of the long convolution."""
    STEP: ClassVar[dict[str, str]] = {}
    """The kernel classes that differ for one token."""
    SHORT: ClassVar[tuple[str, ...]] = ()
    """The names of the arrays that short convolutions of k taps read."""
    REWRITES: ClassVar[tuple[str, ...]] = ()
    """The rewrites of the equations; if empty, "dense" where a kernel class is "convolution"."""
    k: int
    algorithm: ClassVar[LagSumAlgorithm]

    def __init__(self, *, d: int, l: int, channels: int | None = None) -> None:
        super().__init__(d=d, l=l)
        self.channels = channels or d
        self.D: nn.Parameter = self.weight(self.channels)

    @abstractmethod
    def kernel(self, length: int) -> Tensor:
        """The kernel K (l, d), or at least its first `length` rows."""

    def convolved(self, u: Tensor) -> Tensor:
        """The long convolution of rows u (b, s, d), plus D * u."""
        return self.algorithm.compute(u, self.kernel(u.shape[1])) + self.D * u

    @torch.no_grad()
    def initial_state(self, batch: int, length: int | None = None) -> State:
        """Make the state before the first token: room for the rows that the long convolution reads
        (`length` tokens, default: l) and the last rows of short ones, newest first; `prepared`
        holds the long kernel K."""
        rows = self._rows(batch, length, self.channels)
        state = PreparedState({self.HELD: rows, **self.short_rows(batch)}, newest_first=True)
        state.prepared = self.kernel(rows.shape[1])
        return state

    def short_rows(self, batch: int) -> dict[str, Tensor]:
        """Room for the last k-1 rows of each short convolution."""
        return {name: self.like.new_zeros(batch, self.k - 1, self.d) for name in self.SHORT}

    def newest(self, u_t: Tensor, state: State, **rows: Tensor) -> Tensor:
        """Append u_t (b, d) and the rows of other arrays to the state; return the long convolution
        at u_t, plus D * u_t, (b, d)."""
        assert isinstance(state, PreparedState)
        state.append(**{self.HELD: u_t}, **rows)
        return vector_latest(state.held(self.HELD), state.prepared) + self.D * u_t


_Class = TypeVar("_Class", bound=type[LongConvolved])


def convolved_by(algorithm: LagSumAlgorithm) -> Callable[[_Class], _Class]:
    """Return a decorator that registers a class as an implementation of the mixer in its `MIXER`,
    with this algorithm of the convolution of whole sequences; a step sums over distances."""

    def register(cls: _Class) -> _Class:
        """Set the class's algorithm, register the class with the kernel class (`contraction`,
        `fft`) of each array, and return it. S is the convolution; u_f, w_f and e_f, of an algorithm
        by transforms, are those of u and K and their product."""
        cls.algorithm = algorithm
        kernels = cls.KERNELS | {"S": algorithm.kernel}
        if algorithm.product is not None:
            transformed = dict.fromkeys((f"{cls.HELD}_f", "w_f"), "fft")
            kernels |= {**transformed, "e_f": algorithm.product}
        dense = ("dense",) if "convolution" in kernels.values() else ()
        return implementation(
            cls.MIXER,
            algorithm.name,
            form=algorithm.form,
            rewrites=cls.REWRITES or dense,
            kernels=kernels,
            step_form="direct",
            step_kernels=cls.KERNELS | cls.STEP | {"S": "reduction"},
        )(cls)

    return register


class LongConvolution(LongConvolved):
    """A kernel of soft-thresholded parameters w (l, d); gelu and a gated linear unit follow."""

    MIXER = "long-convolution"
    HELD = "x"
    KERNELS: ClassVar[dict[str, str]] = {"K": "elementwise", "H": "elementwise", "y": "contraction"}
    lambda_: Tensor

    def __init__(self, *, d: int, l: int) -> None:
        """Declare a kernel w of l rows for d channels, the two maps of a gated linear unit, and the
        threshold lambda_ = 0.1."""
        super().__init__(d=d, l=l)
        self.w: nn.Parameter = self.weight(l, d)
        self.W_1: nn.Parameter = self.weight(d, d)
        self.W_2: nn.Parameter = self.weight(d, d)
        self.register_buffer("lambda_", self.like.new_full((1,), 0.1), persistent=False)

    def kernel(self, length: int) -> Tensor:
        """K (l, d), the soft threshold of w: each entry moves towards 0 by lambda = 0.1, and is 0
        if its absolute value is smaller."""
        return relu(self.w - self.lambda_) - relu(-self.w - self.lambda_)

    def mix(self, x: Tensor) -> Tensor:
        """y (b, s, d) of x (b, s, d): the long convolution."""
        return self.mapped(self.convolved(x))

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """y_t (b, d) of one token x_t (b, d): append the token's row, then convolve at this row."""
        return self.mapped(self.newest(x_t, state))

    def mapped(self, rows: Tensor) -> Tensor:
        """Gelu and the gated linear unit."""
        H = F.gelu(rows)
        return (H @ self.W_1) * torch.sigmoid(H @ self.W_2)


@convolved_by(VECTOR_TOEPLITZ)
class LongConvolutionToeplitz(LongConvolution):
    """Long convolution by one depthwise convolution of length l."""


@convolved_by(VECTOR_FFT)
class LongConvolutionFft(LongConvolution):
    """Long convolution by Fourier transforms over the sequence."""


MAPS = ("G", "E", "V")


class Hyena(LongConvolved):
    """Hyena: y = (G * long convolution of (V * E)) W_out + b_out, entry by entry.

    Each of G, E and V is a linear map W (d, d) with bias b (d,) and a short convolution with k taps
    w (k, d) and bias c (d,). A perceptron of width F makes the kernel K (l, d) from the positions
    P (l, 3), times the window `decay` (l, d).
    """

    MIXER = "hyena"
    HELD = "u"
    KERNELS: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("N_1", "N_2", "N_3", "K", "X_G", "X_E", "X_V", "y"), "contraction"),
        **dict.fromkeys(MAPS, "convolution"),
        **dict.fromkeys(("u", "R"), "elementwise"),
    }
    STEP: ClassVar[dict[str, str]] = dict.fromkeys(MAPS, "reduction")
    SHORT = ("X_G", "X_E", "X_V")
    P: Tensor
    decay: Tensor
    W_out: nn.Parameter
    b_out: nn.Parameter
    A_K: nn.Parameter
    omega: nn.Parameter

    def __init__(self, *, d: int, l: int, k: int, F: int) -> None:
        """Declare maps and short convolutions of k taps, and, for a long kernel of at most l rows,
        a perceptron of width F with the tables P (l, 3), of positions, and `decay` (l, d)."""
        super().__init__(d=d, l=l)
        require_sizes(k=k, F=F)
        self.k = k
        shapes = {name: shape for m in MAPS for name, shape in self.shapes(m).items()}
        shapes |= {"A_1": (3, F), "A_2": (F, F), "A_3": (F, F), "A_K": (F, d), "omega": (F,)}
        shapes |= {"a_1": (F,), "a_2": (F,), "a_3": (F,), "W_out": (d, d), "b_out": (d,)}
        for name, shape in shapes.items():
            setattr(self, name, self.weight(*shape))
        before = torch.arange(l, dtype=torch.float64).unsqueeze(1)
        t, turn = before / max(1, l - 1), 1e-4 * 2 * math.pi * before / l
        # the window of the first channel falls to 1/100 in 1.5 l rows, that of the last in 0.3 l
        rates = torch.linspace(1 / 1.5, 1 / 0.3, d, dtype=torch.float64)
        for name, table in (
            ("P", torch.cat([t, turn.cos(), -turn.sin()], dim=1)),
            ("decay", (t * math.log(0.01) * rates).exp()),
        ):
            made = table.to(self.like)
            self.register_buffer(name, made, persistent=False)

    def shapes(self, name: str) -> dict[str, tuple[int, ...]]:
        """A dict: parameter -> shape, of the map and short convolution of "G", "E" or "V"."""
        d = self.d
        own = {"W": (d, d), "b": (d,), "w": (self.k, d), "c": (d,)}
        return {f"{letter}_{name}": shape for letter, shape in own.items()}

    def of(self, name: str) -> list[Tensor]:
        """The parameters W, b, w and c of "G", "E" or "V"."""
        return [self.get_parameter(own) for own in self.shapes(name)]

    def kernel(self, length: int) -> Tensor:
        """The long kernel K (l, d), a row per distance: three sine layers on the positions, a
        linear map, and the decaying window. `length` is not used, as the kernel is made for all l
        rows."""
        rows = self.P
        for n in (1, 2, 3):
            A, a = (self.get_parameter(f"{letter}_{n}") for letter in "Aa")
            rows = torch.sin(self.omega * (rows @ A + a))
        return (rows @ self.A_K) * self.decay

    def mix(self, x: Tensor) -> Tensor:
        """The output y (b, s, d) of x (b, s, d): G, E and V by linear maps and short convolutions,
        then (G * long convolution of (V * E)) W_out + b_out."""
        found = []
        for name in MAPS:
            W, b, w, c = self.of(name)
            found.append(short_convolution(x @ W + b, w, c))
        G, E, V = found
        return (self.convolved(V * E) * G) @ self.W_out + self.b_out

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """The output y_t (b, d) of one token x_t (b, d): the short convolutions at the token, then
        the long convolution at their product."""
        found, rows = [], {}
        for name in MAPS:
            W, b, w, c = self.of(name)
            rows[f"X_{name}"] = x_t @ W + b
            found.append(short_latest(rows[f"X_{name}"], state.held(f"X_{name}"), w) + c)
        G, E, V = found
        return (self.newest(V * E, state, **rows) * G) @ self.W_out + self.b_out


@convolved_by(VECTOR_TOEPLITZ)
class HyenaToeplitz(Hyena):
    """Hyena by one depthwise convolution of length l."""


@convolved_by(VECTOR_FFT)
class HyenaFft(Hyena):
    """Hyena by Fourier transforms over the sequence."""
