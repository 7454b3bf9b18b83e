"""How does a test load our weights into the layers of transformers for Mamba and Mamba-2?

Their layer reads all rows but the last three, then one row after the other from its cache, which
holds our state, but k columns of a convolution where k-1 are read. Where it casts to float32, the
number keeps its type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch

import costmodel as cm
from tests.references.comparison import Comparison, compared, fill, linear, then_three

PINS = "references-2026"

Weights = Mapping[str, torch.Tensor]

MODELS = "transformers.models"
MAMBA = f"{MODELS}.mamba.modeling_mamba.MambaMixer"
JAMBA = f"{MODELS}.jamba.modeling_jamba.JambaMambaMixer"
MAMBA_2 = f"{MODELS}.mamba2.modeling_mamba2.Mamba2Mixer"


@contextmanager
def in_float64() -> Iterator[None]:
    """A block in which `.float()` and `torch.float32` keep float64."""
    kept = patch.object(torch.Tensor, "float", lambda numbers: numbers)
    with kept, patch.object(torch, "float32", torch.float64):
        yield


def with_cache(layer: Any, config: Any, each: Comparison) -> Callable[[torch.Tensor], torch.Tensor]:
    """Their layer over all rows but the last three, then row by row with its cache."""
    cached, k = import_module("transformers").DynamicCache, each.sizes["k"]

    def theirs(x: torch.Tensor) -> torch.Tensor:
        cache = cached(config=config)
        with in_float64():
            found = then_three(x, lambda rows: layer(x[:, rows], cache_params=cache))
        own = cache.layers[0]
        columns, S = (kept[0].numel() for kept in (own.conv_states, own.recurrent_states))
        derived = cm.state(cm.mixer(each.mixer)).at(**each.sizes, t=x.shape[1])
        assert S + columns // k * (k - 1) == len(x) * derived
        return found

    return theirs


def taps(theirs: Any, ours: Weights, *names: str) -> None:
    """Give a short convolution our taps, the latest row's last, and our biases."""
    weight = torch.cat([ours[f"w_{name}"] for name in names], 1)
    bias = torch.cat([ours[f"b_{name}"] for name in names])
    fill((theirs.weight, weight.flip(0).t().unsqueeze(1)), (theirs.bias, bias))


@compared("mamba", "transformers", MAMBA, l=7, d=6, N=3, E=5, R=2, k=3)
@compared("mamba", "transformers", MAMBA, l=12, d=4, N=5, E=8, R=3, k=4)
def mamba(of: Any, ours: Weights, each: Comparison) -> Any:
    d, N, E, R, k = (each.sizes[letter] for letter in "dNERk")
    config = import_module(f"{MODELS}.mamba.configuration_mamba").MambaConfig(
        hidden_size=d, state_size=N, time_step_rank=R, conv_kernel=k, num_hidden_layers=1
    )
    config.intermediate_size = E
    theirs = of(config, 0).double().eval()
    load_mamba(theirs, ours)
    return with_cache(theirs, config, each)


def load_mamba(theirs: Any, ours: Weights) -> None:
    """Give a layer of Mamba our maps, taps, decays and D."""
    linear(theirs.in_proj, torch.cat([ours["W_X"], ours["W_Z"]], 1))
    taps(theirs.conv1d, ours, "X")
    linear(theirs.x_proj, torch.cat([ours[f"W_{name}"] for name in "RBC"], 1))
    linear(theirs.dt_proj, ours["W_dt"], ours["b_dt"])
    linear(theirs.out_proj, ours["W_out"])
    fill((theirs.A_log, ours["log_A"]), (theirs.D, ours["D"]))


@compared("mamba+norms", "transformers", JAMBA, l=7, d=6, N=3, E=12, R=2, k=3)
@compared("mamba+norms", "transformers", JAMBA, l=12, d=4, N=5, E=8, R=3, k=4)
def jamba(of: Any, ours: Weights, each: Comparison) -> Any:
    d, N, E, R, k = (each.sizes[letter] for letter in "dNERk")
    config = import_module(f"{MODELS}.jamba.configuration_jamba").JambaConfig(
        hidden_size=d, mamba_d_state=N, mamba_dt_rank=R, mamba_d_conv=k, mamba_expand=E // d,
        num_hidden_layers=1, rms_norm_eps=1e-5,
    )  # fmt: skip
    theirs = of(config, 0).double().eval()
    load_mamba(theirs, ours)
    norms = (theirs.dt_layernorm, theirs.b_layernorm, theirs.c_layernorm)
    fill(*((norm.weight, ours[f"gain_{one}"]) for norm, one in zip(norms, "TBC", strict=True)))
    return with_cache(theirs, config, each)


@compared("mamba-2", "transformers", MAMBA_2, l=7, d=6, n=4, k=3, C=2, P=3, N=5, G=2)
@compared("mamba-2", "transformers", MAMBA_2, l=12, d=4, n=2, k=4, C=4, P=6, N=3, G=1)
def mamba_2(of: Any, ours: Weights, each: Comparison) -> Any:
    """Their first rows are computed in chunks of C."""
    d, n, k, C, P, N, G = (each.sizes[letter] for letter in "dnkCPNG")
    config = import_module(f"{MODELS}.mamba2.configuration_mamba2").Mamba2Config(
        hidden_size=d, num_heads=n, head_dim=P, expand=n * P // d, state_size=N, n_groups=G,
        conv_kernel=k, chunk_size=C, num_hidden_layers=1,
    )  # fmt: skip
    theirs = of(config, 0).double().eval()
    linear(theirs.in_proj, torch.cat([ours[f"W_{name}"] for name in ("Z", "X", "K", "Q", "dt")], 1))
    taps(theirs.conv1d, ours, "X", "K", "Q")
    linear(theirs.out_proj, ours["W_out"])
    fill(
        (theirs.A_log, ours["log_A"]),
        (theirs.D, ours["D"]),
        (theirs.dt_bias, ours["b_dt"]),
        (theirs.norm.weight, ours["gain"]),
    )
    return with_cache(theirs, config, each)


MAMBA_3 = "tests/ops/triton/test_mamba3_siso.py:mamba3_siso_step_ref"
KERNELS = "mamba_ssm.ops.triton.mamba3"
MIMO = "tests/ops/tilelang/test_mamba3_mimo.py:mamba3_MIMO_step_ref"
COMPILED = ("triton", *(f"{KERNELS}.mamba3_siso_{name}" for name in ("combined", "step")))


@compared("mamba-3", "state-spaces/mamba", MAMBA_3, COMPILED, l=7, d=5, n=4, P=3, R=2, M=2, G=2)
@compared("mamba-3", "state-spaces/mamba", MAMBA_3, COMPILED, l=5, d=6, n=2, P=2, R=1, M=4, G=1)
@compared("mamba-3+core", "state-spaces/mamba", MAMBA_3, COMPILED,
          l=7, d=5, n=4, P=3, R=2, M=2, G=2)  # fmt: skip
@compared("mamba-3+core", "state-spaces/mamba", MAMBA_3, COMPILED,
          l=5, d=6, n=2, P=2, R=1, M=4, G=1)  # fmt: skip
@compared("mamba-3+mimo", "state-spaces/mamba", MIMO, l=7, d=5, n=4, P=3, R=2, M=2, G=2, r=3)
@compared("mamba-3+mimo", "state-spaces/mamba", MIMO, l=5, d=6, n=2, P=2, R=1, M=4, G=1, r=2)
@compared("mamba-3+core+mimo", "state-spaces/mamba", MIMO,
          l=7, d=5, n=4, P=3, R=2, M=2, G=2, r=3)  # fmt: skip
@compared("mamba-3+core+mimo", "state-spaces/mamba", MIMO,
          l=5, d=6, n=2, P=2, R=1, M=4, G=1, r=2)  # fmt: skip
def mamba_3(of: Any, ours: Weights, each: Comparison) -> Any:
    """Their reference of a whole sequence over all rows but three, their reference of a step for
    these, both with the states in between, after our maps. Two states that turn are neighbours in
    theirs. They are given A: softplus, as in the paper and in release 2.3.2; their layer has taken
    another function since June 2026. With r inputs and outputs, their reference of steps reads the
    first rows too; rows of B and C have r before the group there."""
    n, N, R = each.sizes["n"], 2 * each.sizes["R"] + each.sizes["M"], each.sizes["R"]
    turned = torch.arange(2 * R).view(2, R).t().flatten()
    order = torch.cat([turned, torch.arange(2 * R, N)])
    bias = {name: ours[f"b_{name}"][..., order] for name in "KQ"}

    def of_groups(x: torch.Tensor, name: str) -> torch.Tensor:
        rows = torch.einsum("bla,a...s->bl...s", x, ours[f"W_{name}"])
        if (gain := ours.get(f"gain_{name}")) is not None:
            rows = torch.nn.functional.rms_norm(rows, (N,), gain, 1e-5)
        return rows[..., order].transpose(2, -2)

    def theirs(x: torch.Tensor) -> torch.Tensor:
        softplus = torch.nn.functional.softplus
        step = softplus(x @ ours["W_dt"] + ours["b_dt"])
        A = -softplus(x @ ours["W_A"]).clamp_min(1e-4)
        of_heads = {name: (x @ ours[name]).view(*step.shape, -1) for name in ("W_X", "W_Z")
                    if name in ours}  # fmt: skip
        turn = (x @ ours["W_turn"])[:, :, None].expand(-1, -1, n, -1)
        by_row = {"Q": of_groups(x, "C"), "K": of_groups(x, "B"), "V": of_heads["W_X"],
                  "Angles": turn, "Z": of_heads.get("W_Z")}  # fmt: skip
        by_head = {"ADT": (A * step).mT, "DT": step.mT, "Trap": (x @ ours["W_lam"]).mT}
        held = {"Q_bias": bias["Q"], "K_bias": bias["K"], "D": ours["D"]}
        whole: Any
        if "mimo" in each.options:
            whole, maps = of, {"MIMO_V": "up_X", "MIMO_Z": "up_Z", "MIMO_O": "down"}
            held |= {name: ours[own] for name, own in maps.items() if own in ours}
        else:
            whole = partial(of.__globals__["mamba3_siso_fwd_ref"], dtype=torch.float64)

        def rows(of_rows: slice, form: Any, **state: Any) -> Any:
            given = {name: all_[:, of_rows] for name, all_ in by_row.items() if all_ is not None}
            given |= {name: all_[..., of_rows] for name, all_ in by_head.items()}
            return form(**given, **held, **state)

        first = x.shape[1] - 3
        with in_float64():
            found, states = rows(slice(first), whole)
            kept = [found]
            for i in range(first, x.shape[1]):
                found, states = rows(slice(i, i + 1), of, Input_States=states)
                kept.append(found)
        return torch.cat(kept, 1).flatten(2) @ ours["W_out"]

    return theirs
