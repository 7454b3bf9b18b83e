"""How are the rows of many triangular systems solved for at once?"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import Tensor


def substituted(below: Tensor, rows: Tensor) -> Tensor:
    """x (..., m, width) with x_e = rows_e minus the sum over z < e of below_ez x_z, for `below`
    (..., m, m-1), of which only the entries with z < e are read; `rows` itself for a single row.
    One call of torch, which solves in elements of four bytes or more; else row by row."""
    if rows.shape[-2] == 1:
        return rows
    if rows.element_size() >= 4:
        solve = torch.linalg.solve_triangular
        solved: Tensor = solve(F.pad(below, (0, 1)), rows, upper=False, unitriangular=True)
        return solved
    found: list[Tensor] = []
    for e, (weights, row) in enumerate(zip(below.unbind(-2), rows.unbind(-2), strict=True)):
        if found:
            earlier = torch.stack(found, dim=-2)
            row = row - (weights[..., :e].unsqueeze(-1) * earlier).sum(-2)
        found.append(row)
    return torch.stack(found, dim=-2)
