"""How does MLP-Mixer's token mixing run in PyTorch?

Tolstikhin et al. 2021, with the choices that the equations' file states.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import Tensor, nn

from profiler.modules.base import SequenceMixer, require_sizes
from profiler.modules.registry import implementation


@implementation("mlp-mixer", "explicit", kernels={"H": "contraction", "y": "contraction"})
class TokenMixing(SequenceMixer):
    """Two linear layers along the sequence; a shorter one takes the first rows of W_1, and the
    first columns of W_2.

    W_1 is (l, f), b_1 (f,), W_2 (f, l) and b_2 (l,).
    """

    bounded = True

    def __init__(
        self,
        *,
        d: int,
        l: int,
        f: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(d=d, l=l, device=device, dtype=dtype)
        require_sizes(f=f)
        self.W_1: nn.Parameter = self.weight(l, f)
        self.b_1: nn.Parameter = self.weight(f)
        self.W_2: nn.Parameter = self.weight(f, l)
        self.b_2: nn.Parameter = self.weight(l)

    def mix(self, x: Tensor) -> Tensor:
        """Channels as rows (b, d, s), then y (b, s, d)."""
        length = x.shape[1]
        hidden = F.gelu(x.transpose(1, 2) @ self.W_1[:length] + self.b_1)
        return (hidden @ self.W_2[:, :length] + self.b_2[:length]).transpose(1, 2)
