"""How does multi-head causal self-attention run in PyTorch?

Equations (10)-(17) of Chen's SHE/HE/WE/ME paper, which are those of Vaswani et al. 2017 with a
causal mask.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import Tensor, nn

from profiler.modules import State, implementation
from profiler.modules.base import Mixer, Unsupported, require_sizes

PROJECTIONS = dict.fromkeys(("Q", "K", "V", "y"), "contraction")
EXPLICIT = PROJECTIONS | {"Z": "contraction", "A": "softmax", "R": "contraction"}
FUSED = PROJECTIONS | dict.fromkeys(("Z", "A", "R"), "fused-attention")


class SelfAttention(Mixer):
    """Self-attention with n heads of width h = d/n; W_Q, W_K, W_V, W_out are (d, d).

    `l` is only the number of tokens for which `initial_state` makes room.
    """

    def __init__(
        self,
        *,
        d: int,
        l: int,
        n: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(d=d, l=l, device=device, dtype=dtype)
        require_sizes(n=n)
        if d % n:
            raise ValueError(f"d must be divisible by n: d = {d} and n = {n}")
        self.n, self.h = n, d // n
        self.W_Q: nn.Parameter = self.weight(d, d)
        self.W_K: nn.Parameter = self.weight(d, d)
        self.W_V: nn.Parameter = self.weight(d, d)
        self.W_out: nn.Parameter = self.weight(d, d)

    def initial_state(self, batch: int, length: int | None = None) -> State:
        """The KV cache: K and V (batch, n, length, h)."""
        return State({name: self._rows(batch, length, self.n, self.h) for name in ("K", "V")})

    def mix(self, x: Tensor) -> Tensor:
        """Q, K, V (b, n, s, h), then heads, then y (b, s, d)."""
        q, k, v = (heads.transpose(1, 2) for heads in self._project(x))
        return self.attend(q, k, v, causal=True).transpose(1, 2).flatten(2) @ self.W_out

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """Append k_t and v_t to the cache, then attend from q_t to all that is held."""
        q_t, k_t, v_t = self._project(x_t)
        state.append(K=k_t, V=v_t)
        held = self.attend(q_t.unsqueeze(2), state.held("K"), state.held("V"), causal=False)
        return held.flatten(1) @ self.W_out

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Q, K and V (..., n, h) of x (..., d)."""
        heads = (*x.shape[:-1], self.n, self.h)
        q, k, v = (x @ W for W in (self.W_Q, self.W_K, self.W_V))
        return q.view(heads), k.view(heads), v.view(heads)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
        """R (b, n, s, h) of queries q (b, n, s, h) over keys and values (b, n, t, h)."""
        raise NotImplementedError


@implementation(
    "self-attention",
    "explicit",
    rewrites=("dense", "safe-softmax"),
    kernels=EXPLICIT,
    step_rewrites=("safe-softmax",),
    step_kernels=EXPLICIT,
)
class ExplicitSelfAttention(SelfAttention):
    """Scores, division by sqrt(h), mask, softmax and weighted sum as separate dense operations."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
        """Every score is computed and divided, then those of later tokens are masked."""
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(self.h)
        if causal:
            length = scores.shape[-1]
            later = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
            scores = scores.masked_fill(later, -math.inf)
        return torch.softmax(scores, dim=-1) @ v


@implementation(
    "self-attention",
    "sdpa",
    rewrites=("safe-softmax", "scale=mul"),
    kernels=FUSED,
    step_rewrites=("safe-softmax", "scale=mul"),
    step_kernels=FUSED,
)
class FusedSelfAttention(SelfAttention):
    """PyTorch's scaled_dot_product_attention, fused: masked pairs are skipped.

    Described by the reference arithmetic in that function's documentation, which multiplies
    each score by 1/sqrt(h). Where the device has no fused kernel, PyTorch would silently take a
    dense path that the description does not fit, so this raises Unsupported.
    """

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
        """One fused call."""
        if q.device.type == "cuda" and not _has_fused_kernel(q, k, v, causal):
            raise Unsupported(
                f"no fused attention kernel on {q.device.type} for {q.dtype} with heads of width "
                f"{self.h}: take the implementation 'explicit' or another dtype"
            )
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def _has_fused_kernel(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> bool:
    """Whether one of PyTorch's fused CUDA kernels takes these operands."""
    cuda = torch.backends.cuda
    operands = cuda.SDPAParams(q, k, v, None, 0.0, causal, False)
    return (
        cuda.can_use_flash_attention(operands)
        or cuda.can_use_efficient_attention(operands)
        or cuda.can_use_cudnn_attention(operands)
    )
