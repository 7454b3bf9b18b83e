"""Diagonal state space models (S4D, DSS, H3 and GSS) and SPADE in PyTorch.

The model of a channel is S_i = E S_(i-1) + B u_i, y_i = Re(sum over N of C S_i) + D u_i, with
E = exp(step A) and B = (E - 1) / A; the real part is doubled in S4D, H3 and SPADE. Complex numbers
are pairs of real tensors (real part, imaginary part): E, B and C have parts (d, N). A class
computes the recurrence with state S (b, d, N), or a convolution with the model's kernel K (l, d).
Sources and choices: costmodel.mixers.state_space.
"""

from __future__ import annotations

from typing import ClassVar, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import Tensor, nn

from profiler.mixers.extractor import VECTOR_FFT, VECTOR_TOEPLITZ
from profiler.mixers.long_convolution import (
    LongConvolved,
    convolved_by,
    short_convolution,
    short_latest,
)
from profiler.mixers.maps import layer_norm
from profiler.mixers.pairs import square
from profiler.modules.attention import dense_attention
from profiler.modules.base import PreparedState, State, head_width, require_sizes
from profiler.modules.registry import implementation

Pair = tuple[Tensor, Tensor]
"""A complex tensor: (real part, imaginary part)."""


def product(one: Pair, two: Pair) -> Pair:
    """The complex product, with 4 multiplications and 2 additions per entry."""
    (a, b), (c, d) = one, two
    return a * c - b * d, a * d + b * c


def product_real(one: Pair, two: Pair) -> Tensor:
    """The real part of the complex product."""
    return one[0] * two[0] - one[1] * two[1]


def exponential(exponent: Pair) -> Pair:
    """The complex exponential of every entry."""
    radius = torch.exp(exponent[0])
    return torch.cos(exponent[1]) * radius, torch.sin(exponent[1]) * radius


DISCRETISED = dict.fromkeys(("A", "Q", "step", "G", "T", "E", "M", "B"), "elementwise")
KERNEL = {**dict.fromkeys(("P", "X", "R", "V"), "elementwise"), "K": "reduction"}
CARRIED = {"S_re": "elementwise", "S_im": "elementwise"}


class Diagonal(LongConvolved):
    """A diagonal model: log_step (d,), log_A (or A_re) and A_im (d, N) or (N,), C (channels, N, 2)
    and D (channels,). A has the real part -exp(log_A), or A_re, and the imaginary part A_im."""

    bounded = False
    shared: ClassVar[bool] = False
    """Whether all channels share A; if not, the output is twice the real part (`twice`)."""
    softmax: ClassVar[bool] = False
    """Whether the powers of E are divided by their sum; the real part of A is then a parameter."""
    stepped: ClassVar[bool] = True
    """Whether there is a step; without a step, the imaginary part of A is an exponential."""
    A_re: nn.Parameter
    log_A: nn.Parameter
    A_im: nn.Parameter
    log_A_im: nn.Parameter

    def __init__(self, *, d: int, l: int, N: int, channels: int | None = None) -> None:
        """Declare the model's parameters: N complex states for each of `channels`, by default d;
        another number only where the channels share A (N,), without steps (not `stepped`)."""
        super().__init__(d=d, l=l, channels=channels)
        require_sizes(N=N)
        self.N = N
        own = () if self.shared else (d,)
        if self.stepped:
            self.log_step: nn.Parameter = self.weight(d)
        setattr(self, "A_re" if self.softmax else "log_A", self.weight(*own, N))
        setattr(self, "A_im" if self.stepped else "log_A_im", self.weight(*own, N))
        self.C: nn.Parameter = self.weight(self.channels, N, 2)

    def discretised(self) -> tuple[Pair, Pair, Pair]:
        """(E, B, T), the discrete model's factors E = exp(T) of a state and B = (E - 1) / A of an
        input, and T = step A; each is a pair (real part, imaginary part) of (d, N) tensors; (N,)
        for E, B and T that all channels share. With `softmax`, A is multiplied by exp(T l) - 1 for
        B."""
        real = self.A_re if self.softmax else -torch.exp(self.log_A)
        A = T = real, self.A_im if self.stepped else torch.exp(self.log_A_im)
        if self.stepped:
            step = torch.exp(self.log_step).unsqueeze(1)
            T = A[0] * step, A[1] * step
        E = exponential(T)
        if self.softmax:
            whole = exponential((T[0] * self.l, T[1] * self.l))
            A = product((whole[0] - 1, whole[1]), A)
        squared = A[0] * A[0] + A[1] * A[1]
        B = product((E[0] - 1, E[1]), (A[0], -A[1]))
        return E, (B[0] / squared, B[1] / squared), T

    def kernel(self, length: int) -> Tensor:
        """K (length, d): the sum over N of C B E^s, where E^s is exp(s step A)."""
        _, B, T = self.discretised()
        s = torch.arange(length, device=T[0].device, dtype=T[0].dtype).view(-1, 1, 1)
        powers = exponential((T[0] * s, T[1] * s))
        return self.twice(product_real(product(self.parts(), B), powers).sum(-1))

    def parts(self) -> Pair:
        """C as a pair of real and imaginary part."""
        return self.C[..., 0], self.C[..., 1]

    def twice(self, real: Tensor) -> Tensor:
        """The real part; doubled if each channel has its own A, whose entries stand for pairs of
        conjugates."""
        return real if self.shared else 2 * real


class Carried(Diagonal):
    """A diagonal model as a recurrence over rows."""

    def convolved(self, u: Tensor) -> Tensor:
        """The model's output (b, s, d) for rows u (b, s, d), by the recurrence S = E S + B u over
        rows, whose states S (b, d, N) are complex, N per channel; a row's output is read from S,
        plus D u."""
        E, B, _ = self.discretised()
        S: Pair | None = None
        found = []
        for row in u.unbind(1):
            S = self.following(S, row, E, B)
            found.append(self.read(S))
        return torch.stack(found, dim=1) + self.D * u

    def following(self, S: Pair | None, row: Tensor, E: Pair, B: Pair) -> Pair:
        """The complex state S (b, d, N) after a row (b, d), as (real part, imaginary part): E S + B
        row, or B row for the first row (S is None)."""
        new = B[0] * row.unsqueeze(-1), B[1] * row.unsqueeze(-1)
        if S is None:
            return new
        kept = product(E, S)
        return kept[0] + new[0], kept[1] + new[1]

    def read(self, S: Pair) -> Tensor:
        """The output (b, d) of a state: the real part of the sum over N of C S."""
        return self.twice(product_real(self.parts(), S).sum(-1))

    @torch.no_grad()
    def initial_state(self, batch: int, length: int | None = None) -> State:
        """Make the state before the first token: zeros for S, (batch, 1, channels*N) for its real
        and imaginary part, and for the last rows of `short_rows`, for any number of tokens
        (`sliding`); `prepared` holds the parts of the factors E and B."""
        require_sizes(length=self.l if length is None else length)
        rows = {name: self._rows(batch, 1, self.channels * self.N) for name in CARRIED}
        held = {**rows, **self.short_rows(batch)}
        state = PreparedState(held, newest_first=True, sliding=True)
        E, B, _ = self.discretised()
        state.prepared = torch.stack([*E, *B])
        return state

    def newest(self, u_t: Tensor, state: State, **rows: Tensor) -> Tensor:
        """The model's output (b, d) of one row u_t (b, d): one step of the recurrence, whose state
        S is appended to `state`, as are the `rows` of other arrays (name -> row)."""
        assert isinstance(state, PreparedState)
        E_re, E_im, B_re, B_im = state.prepared
        S = None
        if state.position:
            re, im = (state.held(name).view(-1, self.channels, self.N) for name in CARRIED)
            S = re, im
        S = self.following(S, u_t, (E_re, E_im), (B_re, B_im))
        state.append(S_re=S[0].flatten(1), S_im=S[1].flatten(1), **rows)
        return self.read(S) + self.D * u_t


_Class = TypeVar("_Class", bound=type[Carried])


def carried(cls: _Class) -> _Class:
    """Register and return the decorated class: an implementation of the mixer in its `MIXER` by the
    recurrence, with the kernel classes of the state (`CARRIED`) in place of the kernel K's."""
    dense = ("dense",) if "convolution" in cls.KERNELS.values() else ()
    kernels = {k: v for k, v in cls.KERNELS.items() if k not in KERNEL} | CARRIED
    return implementation(
        cls.MIXER,
        "recurrent",
        form="recurrent",
        rewrites=cls.REWRITES or dense,
        kernels=kernels,
        step_kernels=kernels | cls.STEP,
    )(cls)


class S4D(Diagonal):
    """S4D: the diagonal model, gelu and a gated linear unit with W_1 and W_2 (d, d)."""

    MIXER = "s4d"
    HELD = "x"
    KERNELS: ClassVar[dict[str, str]] = {
        **DISCRETISED, **KERNEL, "H": "elementwise", "y": "contraction",
    }  # fmt: skip

    def __init__(self, *, d: int, l: int, N: int) -> None:
        super().__init__(d=d, l=l, N=N)
        self.W_1: nn.Parameter = self.weight(d, d)
        self.W_2: nn.Parameter = self.weight(d, d)

    def mix(self, x: Tensor) -> Tensor:
        """y (b, s, d) of x (b, s, d): the state space model, then the map to y."""
        return self.mapped(self.convolved(x))

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """y_t (b, d) of one token x_t (b, d): a step of the recurrence, or the long convolution at
        the token's row."""
        return self.mapped(self.newest(x_t, state))

    def mapped(self, rows: Tensor) -> Tensor:
        """Gelu and the gated linear unit."""
        H = F.gelu(rows)
        return (H @ self.W_1) * torch.sigmoid(H @ self.W_2)


@carried
class S4DCarried(Carried, S4D):
    """S4D by the recurrence."""


@convolved_by(VECTOR_TOEPLITZ)
class S4DToeplitz(S4D):
    """S4D by one depthwise convolution of length l."""


@convolved_by(VECTOR_FFT)
class S4DFft(S4D):
    """S4D by Fourier transforms over the sequence."""


class DSS(S4D):
    """DSS_exp: all channels share log_A and A_im (N,)."""

    MIXER = "dss"
    shared = True


@carried
class DSSCarried(Carried, DSS):
    """DSS by the recurrence."""


@convolved_by(VECTOR_TOEPLITZ)
class DSSToeplitz(DSS):
    """DSS by one depthwise convolution of length l."""


@convolved_by(VECTOR_FFT)
class DSSFft(DSS):
    """DSS by Fourier transforms over the sequence."""


class DSSSoftmax(DSS):
    """DSS_softmax, with A_re (N,) in place of log_A."""

    MIXER = "dss+softmax"
    softmax = True
    KERNELS: ClassVar[dict[str, str]] = {
        **DSS.KERNELS, **dict.fromkeys(("L", "G_E_l", "E_l", "W", "Y"), "elementwise"),
    }  # fmt: skip


@carried
class DSSSoftmaxCarried(Carried, DSSSoftmax):
    """DSS_softmax by the recurrence."""


@convolved_by(VECTOR_TOEPLITZ)
class DSSSoftmaxToeplitz(DSSSoftmax):
    """DSS_softmax by one depthwise convolution of length l."""


@convolved_by(VECTOR_FFT)
class DSSSoftmaxFft(DSSSoftmax):
    """DSS_softmax by Fourier transforms over the sequence."""


class GSS(Diagonal):
    """GSS: the model reads r channels, a normalised map W_U (d, r) of x with gain and bias (r,).
    W_O (r, f) maps its output, which is multiplied by a gate from W_V (d, f) and mapped by W_out
    (f, d). log_A and log_A_im are (N,)."""

    MIXER = "gss"
    HELD = "u"
    shared = True
    stepped = False
    KERNELS: ClassVar[dict[str, str]] = {
        **{name: kernel for name, kernel in DISCRETISED.items() if name not in ("step", "T")},
        **KERNEL,
        **dict.fromkeys(("Z", "U", "H", "y"), "contraction"),
        **dict.fromkeys(("u", "O"), "elementwise"),
    }

    def __init__(self, *, d: int, l: int, N: int, f: int, r: int) -> None:
        """Declare the weights: a model of r channels with N states each, and a gate of width f."""
        require_sizes(f=f, r=r)
        super().__init__(d=d, l=l, N=N, channels=r)
        self.W_V: nn.Parameter = self.weight(d, f)
        self.W_U: nn.Parameter = self.weight(d, r)
        self.gain: nn.Parameter = self.weight(r)
        self.bias: nn.Parameter = self.weight(r)
        self.W_O: nn.Parameter = self.weight(r, f)
        self.W_out: nn.Parameter = self.weight(f, d)

    def mix(self, x: Tensor) -> Tensor:
        """y (b, s, d) of x (b, s, d): the state space model on normalised rows, the map to y."""
        return self.gated(x, self.convolved(self.rows(x)))

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """y_t (b, d) of one token x_t (b, d): a step of the recurrence, or the long convolution at
        the token's row."""
        return self.gated(x_t, self.newest(self.rows(x_t), state))

    def rows(self, x: Tensor) -> Tensor:
        """The normalised rows (..., r) that the model reads."""
        return layer_norm(F.gelu(x @ self.W_U), self.gain, self.bias)

    def gated(self, x: Tensor, read: Tensor) -> Tensor:
        """y (..., d) from the model's output (..., r), with the gate of width f."""
        return ((read @ self.W_O) * F.gelu(x @ self.W_V)) @ self.W_out


@carried
class GSSCarried(Carried, GSS):
    """GSS by the recurrence."""


@convolved_by(VECTOR_TOEPLITZ)
class GSSToeplitz(GSS):
    """GSS by one depthwise convolution of length l."""


@convolved_by(VECTOR_FFT)
class GSSFft(GSS):
    """GSS by Fourier transforms over the sequence."""


class H3(Diagonal):
    """H3: W_Q, W_K, W_V (d, d), a short convolution w_K (k, d), D_K (d,) of keys, W_out (d, d)."""

    MIXER = "h3"
    HELD = "u"
    SHORT = ("X_K",)
    STEP: ClassVar[dict[str, str]] = {"Z": "reduction"}
    KERNELS: ClassVar[dict[str, str]] = {
        **DISCRETISED,
        **KERNEL,
        **dict.fromkeys(("X_Q", "X_K", "X_V", "y"), "contraction"),
        **dict.fromkeys(("u", "H"), "elementwise"),
        "Z": "convolution",
    }

    def __init__(self, *, d: int, l: int, N: int, k: int) -> None:
        """Declare the weights: a model of N states per channel, and k taps of the short convolution
        of keys."""
        super().__init__(d=d, l=l, N=N)
        require_sizes(k=k)
        self.k = k
        self.W_Q: nn.Parameter = self.weight(d, d)
        self.W_K: nn.Parameter = self.weight(d, d)
        self.W_V: nn.Parameter = self.weight(d, d)
        self.W_out: nn.Parameter = self.weight(d, d)
        self.w_K: nn.Parameter = self.weight(k, d)
        self.D_K: nn.Parameter = self.weight(d)

    def mix(self, x: Tensor) -> Tensor:
        """y (b, s, d) of x (b, s, d): keys after a short convolution, times values, pass the model;
        times queries."""
        keys = x @ self.W_K
        u = (short_convolution(keys, self.w_K) + self.D_K * keys) * (x @ self.W_V)
        return (self.convolved(u) * (x @ self.W_Q)) @ self.W_out

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """The output y_t (b, d) of one token x_t (b, d): the short convolution at the token, then
        the model at its product with the value."""
        key = x_t @ self.W_K
        short = short_latest(key, state.held("X_K"), self.w_K) + self.D_K * key
        read = self.newest(short * (x_t @ self.W_V), state, X_K=key)
        return (read * (x_t @ self.W_Q)) @ self.W_out


@carried
class H3Carried(Carried, H3):
    """H3 by the recurrence."""


@convolved_by(VECTOR_TOEPLITZ)
class H3Toeplitz(H3):
    """H3 by one depthwise convolution of length l."""


@convolved_by(VECTOR_FFT)
class H3Fft(H3):
    """H3 by Fourier transforms over the sequence."""


class Spade(S4D):
    """SPADE: S4D (global, G) in parallel with n heads of width h = d/n that attend to the last w
    rows (local, L); both results are normalised, with gains g and biases b (d,), and W (2d, d) maps
    their concatenation."""

    MIXER = "spade"
    REWRITES = ("dense", "safe-softmax")
    KERNELS: ClassVar[dict[str, str]] = {
        **DISCRETISED,
        **KERNEL,
        "H": "elementwise",
        **dict.fromkeys(("Y_G", "Y_L", "y"), "contraction"),
        **dict.fromkeys(("Q_w", "K_w", "V_w", "Z_w", "R_w"), "contraction"),
        "A_w": "softmax",
        **dict.fromkeys(("N_G", "N_L"), "elementwise"),
    }

    def __init__(self, *, d: int, l: int, N: int, n: int, w: int) -> None:
        """Declare the weights: a model of N states per channel, n heads that attend to the last w
        rows, and their norms and map."""
        super().__init__(d=d, l=l, N=N)
        require_sizes(w=w)
        self.n, self.h, self.w = n, head_width(d, n), w
        self.W_Q_w: nn.Parameter = self.weight(d, d)
        self.W_K_w: nn.Parameter = self.weight(d, d)
        self.W_V_w: nn.Parameter = self.weight(d, d)
        self.W_out_w: nn.Parameter = self.weight(d, d)
        self.g_G: nn.Parameter = self.weight(d)
        self.b_G: nn.Parameter = self.weight(d)
        self.g_L: nn.Parameter = self.weight(d)
        self.b_L: nn.Parameter = self.weight(d)
        self.W: nn.Parameter = self.weight(2 * d, d)

    def mix(self, x: Tensor) -> Tensor:
        """y (b, s, d) of x (b, s, d): attention to the last w rows, S4D."""
        q, k, v = (rows.transpose(1, 2) for rows in self.heads(x))
        local = square(q, k, v, self.w - 1, 0).transpose(1, 2).flatten(2)
        return self.combined(self.convolved(x), local)

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """The output y_t (b, d) of one token x_t (b, d): attend from the token to the keys and
        values that `state` holds and its own, and join the result with the output of the state
        space model at the token."""
        q, k, v = self.heads(x_t)
        keys, values = (
            torch.cat([state.held(name), row.unsqueeze(2)], dim=2)
            for name, row in (("K_w", k), ("V_w", v))
        )
        local = dense_attention(q.unsqueeze(2), keys, values, by=self.h, causal=False).flatten(1)
        return self.combined(self.newest(x_t, state, K_w=k, V_w=v), local)

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (..., n, h)."""
        q, k, v = (x @ W for W in (self.W_Q_w, self.W_K_w, self.W_V_w))
        shape = (*x.shape[:-1], self.n, self.h)
        return q.view(shape), k.view(shape), v.view(shape)

    def combined(self, read: Tensor, local: Tensor) -> Tensor:
        """The output y (..., d) from the model's output `read` and the heads' rows `local`, (...,
        d) each: both mapped, normalised, concatenated and mapped by W."""
        both = (
            layer_norm(self.mapped(read), self.g_G, self.b_G),
            layer_norm(local @ self.W_out_w, self.g_L, self.b_L),
        )
        return torch.cat(both, dim=-1) @ self.W

    def short_rows(self, batch: int) -> dict[str, Tensor]:
        """Room for the keys and values of the last w-1 rows."""
        shape = (batch, self.n, self.w - 1, self.h)
        return {name: self.like.new_zeros(shape) for name in ("K_w", "V_w")}


@carried
class SpadeCarried(Carried, Spade):
    """SPADE by the recurrence."""


@convolved_by(VECTOR_TOEPLITZ)
class SpadeToeplitz(Spade):
    """SPADE by one depthwise convolution of length l."""


@convolved_by(VECTOR_FFT)
class SpadeFft(Spade):
    """SPADE by Fourier transforms over the sequence."""
