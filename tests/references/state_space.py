"""How does a test load our weights into somebody else's diagonal state space models?

Their layers are whole. What they convert to float32 stays float64, biases that ours have not are 0.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from tests.references.comparison import Comparison, compared, fill, linear
from tests.references.packages import Weights

S4 = "state-spaces/s4"
GUPTA = "ag1988/dss"
SAFARI = "HazyResearch/safari"
TRAINING = ("pytorch_lightning", "pytorch_lightning.utilities", "omegaconf", "hydra")
"""Packages of training, of which layers take a logger and how configurations are written."""
DSS = "src.models.sequence.ss.standalone.dss.DSS"
H3 = "src.models.sequence.h3.H3"
OWN = ("src.models.sequence", *TRAINING)


def as_double() -> Any:
    """A block in which `Tensor.float` keeps the real part in float64."""
    return patch.object(torch.Tensor, "float", lambda x: x.real if x.is_complex() else x.double())


@compared("s4d", S4, "models.s4.s4d.S4D", l=7, d=4, N=3)
@compared("s4d", S4, "models.s4.s4d.S4D", l=5, d=3, N=2)
def s4d(of: Any, ours: Weights, each: Comparison) -> Any:
    """They count the real numbers of a state, two a complex one."""
    d, N = each.sizes["d"], each.sizes["N"]
    theirs = of(d, 2 * N, transposed=False).double()
    fill(
        (theirs.D, ours["D"]),
        (theirs.kernel.C, ours["C"]),
        (theirs.kernel.log_dt, ours["log_step"]),
        (theirs.kernel.log_A_real, ours["log_A"]),
        (theirs.kernel.A_imag, ours["A_im"]),
    )
    by_channel(theirs.output_linear[0], ours)
    return lambda x: theirs(x)[0]


def by_channel(theirs: Any, ours: Weights) -> None:
    """Give a gated linear unit, a map over channels, our two maps."""
    weight = torch.cat([ours["W_1"], ours["W_2"]], 1).t()
    fill((theirs.weight, weight.view_as(theirs.weight)))
    fill((theirs.bias, torch.zeros_like(theirs.bias)))


@compared("dss", GUPTA, DSS, TRAINING, l=7, d=4, N=3)
@compared("dss", GUPTA, DSS, TRAINING, l=5, d=3, N=2)
@compared("dss+softmax", GUPTA, DSS, TRAINING, l=7, d=4, N=3)
@compared("dss+softmax", GUPTA, DSS, TRAINING, l=5, d=3, N=2)
def dss(of: Any, ours: Weights, each: Comparison) -> Any:
    """One step for the real and the imaginary part, nothing added to denominators."""
    d, N = each.sizes["d"], each.sizes["N"]
    softmax = "softmax" in each.options
    theirs = of(
        d, N, postact="glu", transposed=False, sep_dt_re_im=False, epsilon=0.0,
        version="softmax" if softmax else "exp",
    ).double()  # fmt: skip
    model = theirs.kernel
    fill((theirs.D, ours["D"][None]), (model.W, ours["C"][None]), (model.log_dt, ours["log_step"]))
    if softmax:
        fill((model.Lambda, torch.stack([ours["A_re"], ours["A_im"]], -1)))
    else:
        fill((model.Lambda_log_neg_re, ours["log_A"]), (model.Lambda_im, ours["A_im"]))
    by_channel(theirs.output_linear[0], ours)

    def read(x: Tensor) -> Any:
        with as_double():
            return theirs(x)[0]

    return read


class Cache:
    """What their layer asks of a cache of states."""

    def __init__(self) -> None:
        self.key_value_memory_dict: dict[int, Any] = {}
        self.sequence_len_offset = 0


@compared("h3", SAFARI, H3, OWN, l=7, d=4, N=3, k=2)
@compared("h3", SAFARI, H3, OWN, l=9, d=3, N=2, k=4)
def h3(of: Any, ours: Weights, each: Comparison) -> Any:
    """All rows but three at once, then three by their states; they count the real numbers of a
    state, and a shift holds as many rows, of which ours has taps for k."""
    d, N, k = (each.sizes[letter] for letter in "dNk")
    theirs = of(d, 2 * N, layer_idx=0, mode="diag", measure="diag-lin", disc="zoh").double()
    for layer, name in ((theirs.q_proj, "Q"), (theirs.k_proj, "K"), (theirs.v_proj, "V")):
        linear(layer, ours[f"W_{name}"])
    linear(theirs.output_linear, ours["W_out"])
    shift, model = theirs.ssm_k_kernel.kernel, theirs.kernel.kernel
    taps = torch.zeros(1, d, 2 * N, dtype=torch.float64)
    taps[0, :, :k] = ours["w_K"].t()
    one = torch.tensor([1.0, 0.0]).expand_as(model.B)
    fill(
        (shift.C, taps),
        (theirs.ssm_k_D, ours["D_K"]),
        (theirs.D, ours["D"]),
        (model.B, one),
        (model.C, ours["C"][None]),
        (model.log_dt, ours["log_step"]),
        (model.inv_A_real, ours["log_A"]),
        (model.A_imag, ours["A_im"]),
    )

    def read(x: Tensor) -> Tensor:
        cache, before = Cache(), x.shape[1] - 3
        with as_double():
            found = [theirs(x[:, :before], cache)]
            for cache.sequence_len_offset in range(before, x.shape[1]):
                row = slice(cache.sequence_len_offset, cache.sequence_len_offset + 1)
                found.append(theirs(x[:, row], cache))
        return torch.cat(found, 1)

    return read
