"""Norms of rows that several mixers share."""

from __future__ import annotations

from torch import Tensor


def rms_norm(rows: Tensor, gain: Tensor | float, eps: float) -> Tensor:
    """Divide rows (..., m) by the root of their mean square plus eps, and multiply by the gain
    (m,), by one that broadcasts to the rows, or by a number.

    Source: Zhang and Sennrich 2019, arXiv 1910.07467, equation (4).
    """
    mean = (rows * rows).sum(-1, keepdim=True) / rows.shape[-1]
    return rows / (mean + eps).sqrt() * gain
