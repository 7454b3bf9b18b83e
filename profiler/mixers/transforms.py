"""How do Fourier transforms along tokens and channels, FNet, run in PyTorch?

Equation (3) of Lee-Thorp et al. 2021: y is the real part of F_l x F_d, where F_n (n, n) holds the
powers of the n-th root of unity. Without parameters.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import Tensor

from profiler.modules.base import SequenceMixer, Unsupported
from profiler.modules.registry import implementation


class FNet(SequenceMixer):
    """The real part of a transform along both axes."""


@implementation("fnet", "matrix", kernels=dict.fromkeys(("U", "V", "y"), "contraction"))
class FNetMatrix(FNet):
    """Products with cosines and sines; the tables are those of l tokens."""

    C_d: Tensor
    S_d: Tensor
    C_l: Tensor
    S_l: Tensor

    def __init__(
        self,
        *,
        d: int,
        l: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(d=d, l=l, device=device, dtype=dtype)
        for name, points in (("d", d), ("l", l)):
            for part, table in zip("CS", self.tables(points), strict=True):
                self.register_buffer(f"{part}_{name}", table, persistent=False)

    def tables(self, points: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines of a transform, (points, points) each."""
        number = torch.arange(points)
        angle = torch.outer(number, number).remainder(points).double() * (2 * math.pi / points)
        return angle.cos().to(self.like), angle.sin().to(self.like)

    def mix(self, x: Tensor) -> Tensor:
        """y (b, s, d); another length than l has tables of its own."""
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
    """A transform of complex numbers along the channels, then along the tokens."""

    def mix(self, x: Tensor) -> Tensor:
        """y (b, s, d)."""
        if x.dtype in (torch.float16, torch.bfloat16):
            raise Unsupported(f"torch.fft has no transform in {x.dtype} of any length")
        both: Tensor = torch.fft.fft2(torch.view_as_complex(F.pad(x.unsqueeze(-1), (0, 1))))
        return both.real
