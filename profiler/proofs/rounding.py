"""By how much may a right module's result in few digits differ from its result in float64?

The module is run in float64 once more, and every number that an operation computes is rounded as
the type rounds: once to the nearest, and to either neighbour at random a few times (Monte Carlo
arithmetic, Parker 1997). How far these results lie from the unrounded one is the error that this
algorithm makes at these inputs, whatever its condition; a module that does something else in the
type alone lies further off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from profiler.counting.call import tensors_in
from profiler.counting.mode import DispatchMode, OperationKind

SUMS = ("mm", "mv", "dot", "sum", "mean", "conv", "attention", "softmax", "norm", "fft")
"""Parts of the names of operations that add up terms."""
IN_STEPS = ("norm", "softmax_backward")
"""Parts of the names of kernels that subtract numbers of like size inside: they are rounded step
by step, as torch writes them out."""
ACCUMULATED = 4
"""How many roundings each term of a sum is off, at random: the rounding of some hundred partial
sums amounts to that of a few of each term."""

FEW_RUNS, MANY_RUNS = 3, 40
"""Runs with random rounding, beside one to the nearest; and before a module is called wrong."""

ALLOWED = 8.0
"""An error is allowed up to this multiple of the largest one among the rounded runs: a kernel that
is one operation here rounds inside, once for a handful of steps, and four runs are few."""

SHARP = 0.25
"""A comparison says something where the allowed error is at most this share of the largest entry: a
fault of order one is found."""

Answers = Mapping[str, Tensor]


@dataclass(frozen=True)
class Digits:
    """Which numbers a type has: the distance from 1 to the next, the least and the largest."""

    eps: float
    least: float
    largest: float

    @staticmethod
    def of(dtype: torch.dtype) -> Digits:
        """Those of a type of torch."""
        info = torch.finfo(dtype)
        return Digits(info.eps, info.smallest_normal * info.eps, info.max)


SPARE = 7
_DOUBLE = Digits.of(torch.float64)
NEARLY_DOUBLE = replace(_DOUBLE, eps=_DOUBLE.eps * 2**SPARE)
"""Seven digits fewer than float64: a rounding is random in these, and small enough that an error is
2**-SPARE times as large in float64."""


class _Rounded(DispatchMode):
    """Rounds the float64 result of every operation as a type does; exact results stay exact.

    `chance` draws which neighbour is taken, with the mean kept; without it the nearest is.
    """

    def __init__(self, digits: Digits, chance: torch.Generator | None) -> None:
        super().__init__()
        self.digits, self.chance = digits, chance
        carried = Digits.of(torch.float32)
        self.inside = carried if digits.eps > carried.eps else digits
        """What a kernel carries its steps and sums in."""

    def see(self, kind: OperationKind, args: tuple[Any, ...], kwargs: Any) -> Any:
        """The result of an operation, rounded in place where it is new."""
        result = self._in_steps(kind, args, kwargs)
        if result is NotImplemented:
            if self.chance and not kind.writes and any(part in kind.func.__name__ for part in SUMS):
                args = tree_map(self._accumulated, args)
            result = super().see(kind, args, kwargs)
        if not kind.view:
            for tensor in tensors_in(result):
                if tensor.dtype in (torch.float64, torch.complex128):
                    self._round(tensor)
        return result

    def _in_steps(
        self, kind: OperationKind, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """What a kernel of `IN_STEPS` gives step by step; NotImplemented for another one."""
        if kind.writes or not any(part in kind.func.__name__ for part in IN_STEPS):
            return NotImplemented
        from torch._decomp import decomposition_table  # takes 0.7 s

        if (steps := decomposition_table.get(kind.func)) is None:
            return NotImplemented
        with _Rounded(self.inside, self.chance):
            return steps(*args, **kwargs)

    def _accumulated(self, term: Any) -> Any:
        if not isinstance(term, Tensor) or term.dtype not in (torch.float64, torch.complex128):
            return term
        off = torch.randn(term.shape, generator=self.chance, dtype=torch.float64)
        return term * (1 + ACCUMULATED * self.inside.eps / 2 * off)

    def _round(self, tensor: Tensor) -> None:
        """Round in place."""
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor)
        _, exponent = torch.frexp(tensor)
        eps = torch.full_like(tensor, self.digits.eps)
        unit = torch.ldexp(eps, exponent - 1).clamp(min=self.digits.least)
        steps = tensor / unit
        if self.chance is None:
            steps = steps.round()
        else:
            drawn = torch.rand(steps.shape, generator=self.chance, dtype=steps.dtype)
            steps = (steps + drawn).floor()
        rounded = steps * unit
        beyond = rounded.abs() > self.digits.largest
        rounded = torch.where(beyond, torch.sign(rounded) * torch.inf, rounded)
        tensor.detach().copy_(torch.where(tensor.isfinite(), rounded, tensor))


def allowances(
    call: Callable[[], Answers], exact: Answers, digits: Digits, runs: int = FEW_RUNS
) -> dict[str, float]:
    """The error that each answer may have with these digits; infinite where it goes beyond their
    range. `call` computes the answers in float64, on inputs that have no more digits."""
    found = dict.fromkeys(exact, 0.0)
    for run in range(1 + runs):
        chance = torch.Generator().manual_seed(run) if run else None
        with _Rounded(digits, chance):
            rounded = call()
        for name, known in exact.items():
            off = (rounded[name] - known).abs()[known.isfinite()]
            worst = float(off.max()) if off.numel() else 0.0
            found[name] = max(found[name], worst) if off.isfinite().all() else torch.inf
    least = least_allowances(exact, digits)
    return {name: max(ALLOWED * worst, least[name]) for name, worst in found.items()}


def least_allowances(exact: Answers, digits: Digits) -> dict[str, float]:
    """The error that each answer may have however well its condition is: that of half a rounding
    of its largest entry, times `ALLOWED`."""
    unit = digits.eps / 4
    return {name: ALLOWED * unit * _largest(values) for name, values in exact.items()}


def _largest(values: Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0


def sharp(allowed: float, exact: Tensor) -> bool:
    """Whether an error of order one would be seen."""
    return allowed <= SHARP * _largest(exact)
