"""The token mixing of MLP-Mixer, gMLP, aMLP and FNet in PyTorch.

Tolstikhin et al. 2021, Liu et al. 2021 and Lee-Thorp et al. 2021, with the choices stated in
costmodel.mixers.maps. FNet has no parameters: y is the real part of F_l x F_d, where F_n (n, n) is
the matrix of the discrete Fourier transform.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import Tensor, nn

from profiler.modules.attention import dense_attention
from profiler.modules.base import Mixer, SequenceMixer, State, Unsupported, require_sizes
from profiler.modules.registry import implementation


@implementation("mlp-mixer", "explicit", kernels={"H": "contraction", "y": "contraction"})
class TokenMixing(SequenceMixer):
    """Two linear layers along the sequence: W_1 (l, f), b_1 (f,), W_2 (f, l) and b_2 (l,).

    A sequence shorter than l uses the first rows of W_1, and the first columns of W_2 and b_2.
    """

    bounded = True

    def __init__(self, *, d: int, l: int, f: int) -> None:
        """Declare two linear layers along the sequence, from at most l tokens to f hidden ones and
        back."""
        super().__init__(d=d, l=l)
        require_sizes(f=f)
        self.W_1: nn.Parameter = self.weight(l, f)
        self.b_1: nn.Parameter = self.weight(f)
        self.W_2: nn.Parameter = self.weight(f, l)
        self.b_2: nn.Parameter = self.weight(l)

    def mix(self, x: Tensor) -> Tensor:
        """y (b, s, d) of x (b, s, d): channels as rows (b, d, s)."""
        length = x.shape[1]
        hidden = F.gelu(x.transpose(1, 2) @ self.W_1[:length] + self.b_1)
        return (hidden @ self.W_2[:, :length] + self.b_2[:length]).transpose(1, 2)


def layer_norm(x: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
    """Normalise rows (..., m) to mean 0 and variance 1, times the gain, plus the bias.

    Means are a sum and one division: torch's mean would divide each term in its gradient.
    """
    centred = x - x.sum(-1, keepdim=True) / x.shape[-1]
    variance = (centred * centred).sum(-1, keepdim=True) / x.shape[-1]
    return centred / (variance + 1e-5).sqrt() * gain + bias


class Gated(SequenceMixer):
    """gMLP: a spatial gating unit between two linear layers.

    W_U and W_G are (d, f), W is (l, l) and W_out (f, d); w is (l,), b_out (d,), and b_U, b_G, gain
    and bias are (f,). A shorter sequence uses the first rows and columns of W.
    """

    bounded = True
    causal: ClassVar[bool] = False

    def __init__(self, *, d: int, l: int, f: int) -> None:
        """Declare the weights for rows of width d, f channels inside, and at most l tokens."""
        super().__init__(d=d, l=l)
        require_sizes(f=f)
        self.f = f
        self.W_U: nn.Parameter = self.weight(d, f)
        self.b_U: nn.Parameter = self.weight(f)
        self.W_G: nn.Parameter = self.weight(d, f)
        self.b_G: nn.Parameter = self.weight(f)
        self.gain: nn.Parameter = self.weight(f)
        self.bias: nn.Parameter = self.weight(f)
        self.W: nn.Parameter = self.weight(l, l)
        self.w: nn.Parameter = self.weight(l)
        self.W_out: nn.Parameter = self.weight(f, d)
        self.b_out: nn.Parameter = self.weight(d)

    def halves(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """U, the half that is multiplied, and S, the normalised half to be mixed: (..., f) each."""
        gate = layer_norm(F.gelu(x @ self.W_G + self.b_G), self.gain, self.bias)
        return F.gelu(x @ self.W_U + self.b_U), gate

    def mix(self, x: Tensor) -> Tensor:
        """y (b, s, d) of x (b, s, d): the half U times the gate (b, s, f)."""
        kept, normed = self.halves(x)
        return (kept * self.gate(x, normed)) @ self.W_out + self.b_out

    def gate(self, x: Tensor, normed: Tensor) -> Tensor:
        """The gate (b, s, f): all sequences are mixed by one product with W."""
        weights, rows = self.W[: x.shape[1], : x.shape[1]], normed.transpose(0, 1)
        mixed = (weights.tril() if self.causal else weights) @ rows.flatten(1)
        return mixed.view(rows.shape).transpose(0, 1) + self.w[: x.shape[1]].unsqueeze(-1)


class CausalGated(Gated, Mixer):
    """gMLP, where a position reads itself and all earlier positions."""

    causal = True

    def initial_state(self, batch: int, length: int | None = None) -> State:
        """An empty state with the rows S to be mixed, (batch, length, f)."""
        return State({"S": self._rows(batch, length, self.f)})

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """y_t (b, d) of one token x_t (b, d): append the token's row, then mix all held rows with
        the token's row of W."""
        kept, normed = self.halves(x_t)
        state.append(**self.held_of(x_t), S=normed)
        return (kept * self.latest(x_t, state)) @ self.W_out + self.b_out

    def held_of(self, x_t: Tensor) -> dict[str, Tensor]:
        """The token's rows in further arrays of the state: name -> row; {} if there are none."""
        return {}

    def latest(self, x_t: Tensor, state: State) -> Tensor:
        """The gate of the newest token, (b, f)."""
        t = state.position
        weights = self.W[t - 1, :t].expand(len(x_t), 1, t)
        return torch.bmm(weights, state.held("S")).squeeze(1) + self.w[t - 1]


class Attending(Gated):
    """aMLP: the result of one attention head is added to the gate.

    W_Q, W_K and W_V are (d, K), W_T is (K, f) and b_T (f,).
    """

    def __init__(self, *, d: int, l: int, f: int, K: int) -> None:
        """Declare the weights of gMLP with f channels in each half, and of an attention head of
        width K, whose result W_T and b_T map to the f channels of the gate."""
        super().__init__(d=d, l=l, f=f)
        require_sizes(K=K)
        self.K = K
        self.W_Q: nn.Parameter = self.weight(d, K)
        self.W_K: nn.Parameter = self.weight(d, K)
        self.W_V: nn.Parameter = self.weight(d, K)
        self.W_T: nn.Parameter = self.weight(K, f)
        self.b_T: nn.Parameter = self.weight(f)

    def gate(self, x: Tensor, normed: Tensor) -> Tensor:
        """The gate of gMLP plus the attention head, (b, s, f)."""
        keys, values = (x @ W for W in (self.W_K, self.W_V))
        return super().gate(x, normed) + self.attended(x, keys, values, causal=self.causal)

    def attended(self, x: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
        """Attention of the rows x (b, s, d) to keys and values (b, t, K), mapped to (b, s, f)."""
        q, k, v = (rows.unsqueeze(1) for rows in (x @ self.W_Q, k, v))
        read = dense_attention(q, k, v, by=self.K, causal=causal).squeeze(1)
        return read @ self.W_T + self.b_T


class CausalAttending(CausalGated, Attending):
    """aMLP, where a position reads and attends to itself and all earlier positions."""

    def initial_state(self, batch: int, length: int | None = None) -> State:
        """An empty state with the rows S to be mixed, and keys and values (batch, length, K)."""
        state = super().initial_state(batch, length)
        state.arrays |= {name: self._rows(batch, length, self.K) for name in ("K", "V")}
        return state

    def held_of(self, x_t: Tensor) -> dict[str, Tensor]:
        """The token's key and value, (b, K) each."""
        return {"K": x_t @ self.W_K, "V": x_t @ self.W_V}

    def latest(self, x_t: Tensor, state: State) -> Tensor:
        """The gate of gMLP plus the attention head, for the newest token: (b, f)."""
        held = (state.held(name) for name in ("K", "V"))
        read = self.attended(x_t.unsqueeze(1), *held, causal=False).squeeze(1)
        return super().latest(x_t, state) + read


_Class = TypeVar("_Class", bound=type[Gated])


def explicit(mixer: str, rewrites: tuple[str, ...] = ()) -> Callable[[_Class], _Class]:
    """Return a decorator that registers a class as an implementation of `mixer` with one operation
    per equation, which executes `rewrites`. A causal mixer executes the rewrite `dense` too: it
    computes masked pairs."""
    masked = ("dense",) if mixer.endswith("+causal") else ()
    kernels = dict.fromkeys(("U", "G", "F", "y"), "contraction")
    kernels |= {"S": "elementwise", "P": "elementwise"}
    if mixer.startswith("amlp"):
        attention = ("Q", "K", "V", "Z", "R", "T")
        kernels |= dict.fromkeys(attention, "contraction") | {"A": "softmax"}
    return implementation(
        mixer, "explicit", rewrites=(*masked, *rewrites), kernels=kernels, step_kernels=kernels
    )


@explicit("gmlp")
class ExplicitGated(Gated):
    """gMLP."""


@explicit("gmlp+causal")
class ExplicitCausalGated(CausalGated):
    """Causal gMLP; weights of later positions are set to zero."""


@explicit("amlp", ("safe-softmax",))
class ExplicitAttending(Attending):
    """aMLP."""


@explicit("amlp+causal", ("safe-softmax",))
class ExplicitCausalAttending(CausalAttending):
    """Causal aMLP; weights of later positions are set to zero."""


class FNet(SequenceMixer):
    """The real part of a Fourier transform along both axes."""


@implementation("fnet", "matrix", kernels=dict.fromkeys(("U", "V", "y"), "contraction"))
class FNetMatrix(FNet):
    """FNet by products with matrices of cosines and sines, stored for l tokens."""

    C_d: Tensor
    S_d: Tensor
    C_l: Tensor
    S_l: Tensor

    def __init__(self, *, d: int, l: int) -> None:
        super().__init__(d=d, l=l)
        for name, points in (("d", d), ("l", l)):
            for part, table in zip("CS", self.tables(points), strict=True):
                self.register_buffer(f"{part}_{name}", table, persistent=False)

    def tables(self, points: int) -> tuple[Tensor, Tensor]:
        """The cosines and sines of a transform, (points, points) each."""
        number = torch.arange(points)
        angle = torch.outer(number, number).remainder(points).double() * (2 * math.pi / points)
        return angle.cos().to(self.like), angle.sin().to(self.like)

    def mix(self, x: Tensor) -> Tensor:
        """y (b, s, d); for a length other than l, the matrices are computed anew."""
        C_l, S_l = (self.C_l, self.S_l) if x.shape[1] == self.l else self.tables(x.shape[1])
        both = (C_l.expand(len(x), -1, -1), S_l.expand(len(x), -1, -1))
        return torch.bmm(both[0], x @ self.C_d) - torch.bmm(both[1], x @ self.S_d)


@implementation(
    "fnet",
    "fft",
    form="fft",
    kernels={"X": "elementwise", "H": "fft", "F": "fft", "y": "elementwise"},
)
class FNetTransform(FNet):
    """FNet by complex Fourier transforms, over channels, then over tokens."""

    def mix(self, x: Tensor) -> Tensor:
        """The output y (b, s, d) of x (b, s, d), the real part of a Fourier transform along rows
        and channels; Unsupported in float16 and bfloat16, in which torch has no transform of
        any length."""
        if x.dtype in (torch.float16, torch.bfloat16):
            raise Unsupported(f"torch.fft has no transform in {x.dtype} of any length")
        both: Tensor = torch.fft.fft2(torch.view_as_complex(F.pad(x.unsqueeze(-1), (0, 1))))
        return both.real
