"""How far may rounding alone move a module's result in low precision from its float64 result?

The module runs again in float64, with the result of every operation rounded to the type of low
precision: once to the nearest number, then a few times to either neighbour at random (Monte Carlo
arithmetic, Parker 1997). The distance of these results from the unrounded one estimates the
rounding error of this algorithm at these inputs, also where they are ill-conditioned. A module that
computes something else in low precision lies further off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from profiler.counting.call import bind, tensors_in
from profiler.counting.mode import DispatchMode, OperationKind

SUMS = ("mm", "mv", "dot", "sum", "mean", "conv", "attention", "softmax", "norm", "fft")
"""Operations with one of these parts in their names add up terms."""
IN_STEPS = ("norm", "softmax_backward")
"""Kernels with one of these parts in their names subtract numbers of similar size inside: they run
by torch's decomposition, each of whose steps is rounded."""
LINEAR, EXACT = 20.0, 40.0
"""Above its default threshold, `LINEAR`, torch's softplus returns its argument, up to 2e-9 below
log(1 + exp(x)). Above `EXACT` the argument is the nearest number of float64."""
ACCUMULATED = 4
"""Standard deviation of the random error of each term of a sum, in roundings: a few roundings of
each term amount to those of some hundred partial sums."""

FEW_RUNS, MANY_RUNS = 3, 40
"""Runs with random rounding beside the run to the nearest: for an estimate, and to confirm a
failure."""

ALLOWED = 8.0
"""The allowed error as a multiple of the largest error among the rounded runs: four runs are few,
and a fused kernel, which is rounded once here, rounds several times inside."""
MEASURES = ("largest entry of the error", "norm of the error", "error along the answer")
"""What is compared of an error. Rounding errors of many entries differ in sign, and their norm
hardly varies from run to run; so the norm shows smaller errors than an entry does, and the
projection on the answer shows a factor."""
ENTRIES = 16
"""The norm and the projection are compared for answers of at least so many entries."""

SHARP = 0.25
"""A measure is compared where its allowed error is at most this share of that of the answer itself,
so that an error as large as the answer is found."""

Answers = Mapping[str, Tensor]
"""Name of an answer (the result, a gradient, the decoded rows) -> its values."""


@dataclass(frozen=True)
class Digits:
    """A floating-point type: the number after 1 is 1 + `eps`, `least` is the smallest subnormal
    number, `largest` the largest finite one."""

    eps: float
    least: float
    largest: float

    @staticmethod
    def of(dtype: torch.dtype) -> Digits:
        """The numbers of a type of torch."""
        info = torch.finfo(dtype)
        return Digits(info.eps, info.smallest_normal * info.eps, info.max)


SPARE = 7
"""Binary digits: 2**7 is above 100, so that float64's own rounding is below a hundredth of the
error that a run estimates; the error stays proportional to the rounding at so many digits fewer."""
_DOUBLE = Digits.of(torch.float64)
NEARLY_DOUBLE = replace(_DOUBLE, eps=_DOUBLE.eps * 2**SPARE)
"""float64 with `SPARE` binary digits fewer: errors of float64 are estimated as 2**-SPARE times the
errors of runs that round to these numbers."""


class _Rounded(DispatchMode):
    """Rounds the float64 result of every operation to a type's numbers; exact results stay exact.

    `chance` draws between the two neighbours (stochastic rounding, whose mean is the unrounded
    number); without `chance` the nearest is taken.
    """

    def __init__(self, digits: Digits, chance: torch.Generator | None) -> None:
        """Round results to numbers of a type, `digits`: by `chance`, or (None) to the nearest."""
        super().__init__()
        self.digits, self.chance = digits, chance
        carried = Digits.of(torch.float32)
        self.inside = carried if digits.eps > carried.eps else digits
        """The numbers of intermediate results inside a kernel: float32's for shorter types."""

    def see(self, kind: OperationKind, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Run an operation in float64, round its result in place to the numbers of `digits` unless
        it is a view, and return it. With `chance`, operands of sums first get random errors
        (`_accumulated`), and a computed float32 result gets them too (`_jitter`)."""
        result = self._in_steps(kind, args, kwargs)
        if result is NotImplemented:
            if self.chance and not kind.writes and any(part in kind.func.__name__ for part in SUMS):
                args = tree_map(self._accumulated, args)
            result = super().see(kind, args, kwargs)
        if not kind.view:
            for tensor in tensors_in(result):
                if tensor.dtype in (torch.float64, torch.complex128):
                    self._round(tensor)
                elif tensor.dtype == torch.float32 and self.chance and not kind.free:
                    self._jitter(tensor)
        return result

    def _jitter(self, tensor: Tensor) -> None:
        """Move every float32 entry, which a module computes within its call in float64, by up to
        half a rounding of float32, unless the digits looked at are finer."""
        eps = torch.finfo(torch.float32).eps
        if self.digits.eps >= eps:
            drawn = torch.rand(tensor.shape, generator=self.chance, dtype=tensor.dtype)
            tensor.detach().mul_(1 + eps * (drawn - 0.5))

    def _in_steps(
        self, kind: OperationKind, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Run a kernel that subtracts similar numbers inside (`IN_STEPS`), such as a norm, by
        torch's decomposition, with each step rounded, and return its result; NotImplemented for any
        other operation, or without a decomposition."""
        if kind.writes or not any(part in kind.func.__name__ for part in IN_STEPS):
            return NotImplemented
        from torch._decomp import decomposition_table  # takes 0.7 s

        if (steps := decomposition_table.get(kind.func)) is None:
            return NotImplemented
        with _Rounded(self.inside, self.chance):  # kernels compute short types in float32 inside
            return steps(*args, **kwargs)

    def _accumulated(self, term: Any) -> Any:
        """An argument of a sum: a float64 operand gets a random relative error per entry, which
        stands for the rounding of partial sums; other arguments are unchanged."""
        if not isinstance(term, Tensor) or term.dtype not in (torch.float64, torch.complex128):
            return term
        off = torch.randn(term.shape, generator=self.chance, dtype=torch.float64)
        return term * (1 + ACCUMULATED * self.inside.eps / 2 * off)

    def _round(self, tensor: Tensor) -> None:
        """Round every entry in place to a number of the type `digits`, the nearest (1.3 in bf16:
        1.296875) or, with `chance`, one of the two neighbours at random; entries beyond the largest
        number become infinite, and entries that are not finite stay."""
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor)
        _, exponent = torch.frexp(tensor)  # 2**(exponent - 1) <= |entry| < 2**exponent
        eps = torch.full_like(tensor, self.digits.eps)
        unit = torch.ldexp(eps, exponent - 1).clamp(min=self.digits.least)  # spacing of neighbours
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


class SingleInside(DispatchMode):
    """Notes in `found` whether a call in float64 computes in float32 inside, as a softmax with
    `dtype=torch.float32` does: an operation computes a float32 tensor or makes one of float64."""

    found = False

    def see(self, kind: OperationKind, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Run an operation and return its result; set `found` if it is in float32, unless it is a
        view, or a fill or move (`kind.free`), as of a mask, without an operand in float64."""
        result = super().see(kind, args, kwargs)
        if not (self.found or kind.view):
            single = any(tensor.dtype == torch.float32 for tensor in tensors_in(result))
            given = tensors_in((args, kwargs)) if single and kind.free else ()
            double = any(tensor.dtype == torch.float64 for tensor in given)
            self.found = single and (not kind.free or double)
        return result


IN_SINGLE = "computes in float32 inside: compared up to float32 rounding"
"""What the proofs say of a module that computes in float32 within a call in float64."""


def single_allowance(call: Callable[[], Tensor]) -> float:
    """The largest error of an entry that rounding to float32 explains, in the result of a call in
    float64 that computes in float32 inside."""
    with torch.no_grad():
        runs = allowances(lambda: {"": call()}, {"": call()}, Digits.of(torch.float32))
    return float(runs[""][0])


class ExactSoftplus(DispatchMode):
    """Computes softplus, and its gradient, as log(1 + exp(x)) to float64's last digit: calls with
    torch's default threshold, or a larger one, run with the threshold `EXACT`. `used`: whether a
    call had such a threshold."""

    used = False

    def see(self, kind: OperationKind, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Run an operation and return its result; softplus and its gradient, if their threshold is
        at least torch's default but below `EXACT`, run with the threshold `EXACT`."""
        if kind.name in ("aten::softplus", "aten::softplus_backward"):
            given = bind(kind.func, args, kwargs, None).arguments
            if LINEAR <= given["threshold"] < EXACT:
                self.used = True
                return kind.func(**{**given, "threshold": EXACT})
        return super().see(kind, args, kwargs)


def allowances(
    call: Callable[[], Answers],
    exact: Answers,
    digits: Digits,
    runs: int = FEW_RUNS,
    off: Answers | None = None,
) -> dict[str, Tensor]:
    """Estimate by runs with rounding: name of an answer -> the largest error that rounding to
    `digits` explains, as `MEASURES` (largest entry, norm, projection): `ALLOWED` times the largest
    among runs that round each operation, at least that of rounding the answer alone; infinite if a
    run overflows.

    Args:
        call: computes the answers in float64, from inputs that the digits represent.
        exact: the answers without rounding.
        runs: the number of runs with random rounding, after one to the nearest number.
        off: the `MEASURES` of the error of each answer that is to be explained; no further runs are
            made as soon as all are.
    """
    found = least_allowances(exact, digits)
    for run in range(1 + runs):
        chance = torch.Generator().manual_seed(run) if run else None
        with _Rounded(digits, chance):
            rounded = call()
        for name, known in exact.items():
            own = error_sizes(errors(rounded[name], known), known)
            found[name] = torch.maximum(found[name], ALLOWED * own)
        if off is not None and all((off[name] <= found[name]).all() for name in exact):
            break
    return found


class WrongKernels(DispatchMode):
    """Names the operations that torch itself computes wrongly in the type `dtype`: results that
    differ from float64 at the same operands by more than rounding explains, as those of bf16
    convolutions by oneDNN on some processors (pytorch issues 163347, 169688). `found` maps an
    operation to its error in words."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype, self.found = dtype, dict[str, str]()

    def see(self, kind: OperationKind, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Run an operation, return its result, and, if one of torch's own operations computes it
        without random numbers as one tensor of `dtype`, compare it with float64: the first error
        of an operation beyond rounding joins `found`, in words."""
        result = super().see(kind, args, kwargs)
        one_answer = isinstance(result, Tensor) and result.dtype == self.dtype
        own = kind.name.startswith("aten::") and not (kind.writes or kind.free)
        drawn = torch.Tag.nondeterministic_seeded in kind.func.tags
        if one_answer and own and not (drawn or kwargs.get("dtype")):
            exact_args, exact_kwargs = tree_map(self._exact, (args, kwargs))
            call = partial(kind.func, *exact_args, **exact_kwargs)
            try:
                exact = {"": call()}
            except Exception:  # an operation that refuses float64 has no result to compare with
                return result
            off = error_sizes(errors(result, exact[""]), exact[""])
            digits = Digits.of(self.dtype)
            allowed = allowances(lambda: {"": call()}, exact, digits, MANY_RUNS, {"": off})[""]
            for measure, size, most in zip(MEASURES, off.tolist(), allowed.tolist(), strict=False):
                if size > most:
                    of = f" in the {measure}" * (measure != MEASURES[0])
                    said = f"off by {size:.2g}{of}, where rounding explains {most:.2g}"
                    self.found.setdefault(kind.name, said)
        return result

    def _exact(self, operand: Any) -> Any:
        """An operand in float64 if it is a tensor of the type `dtype`, else unchanged."""
        held = isinstance(operand, Tensor) and operand.dtype == self.dtype
        return operand.double() if held else operand


def errors(found: Tensor, exact: Tensor) -> Tensor:
    """The error of each entry: infinite for NaN, and 0 where float64 gives no finite value."""
    off = (found.double() - exact).nan_to_num(torch.inf, torch.inf, -torch.inf)
    return torch.where(exact.isfinite(), off, 0.0)


def error_sizes(off: Tensor, exact: Tensor) -> Tensor:
    """A tensor (3,) with three sizes of the errors `off` (from `errors`) of the answer `exact`:
    largest absolute entry, norm, and absolute projection on the answer: (1, 4, 4) for 16 errors
    -1 of 1; (1,), the first alone, below `ENTRIES` entries."""
    entry = off.abs().max() if off.numel() else off.new_zeros(())
    if off.numel() < ENTRIES:
        return entry.unsqueeze(0)
    known = torch.where(exact.isfinite(), exact, 0.0)
    along = (off * known).sum() / known.norm().clamp(min=torch.finfo(known.dtype).tiny)
    return torch.stack([entry, off.norm(), along.abs()]).nan_to_num(torch.inf)


def least_allowances(exact: Answers, digits: Digits) -> dict[str, Tensor]:
    """A dict: answer -> the error that is always allowed, as `MEASURES` (largest entry, norm,
    projection): `ALLOWED` times half the largest error of rounding the answer once."""
    unit = digits.eps / 4  # rounding to the nearest is off by at most eps / 2
    return {name: ALLOWED * unit * _answer_sizes(values) for name, values in exact.items()}


def _answer_sizes(values: Tensor) -> Tensor:
    """The `MEASURES` (largest entry, norm, projection) of an error equal to the answer's finite
    entries, with which errors are compared."""
    finite = torch.where(values.isfinite(), values, 0.0)
    return error_sizes(finite, finite)


def sharp(allowed: Tensor, exact: Tensor) -> Tensor:
    """For each of the `MEASURES`, whether the allowed error is at most `SHARP` of an error equal to
    the answer, so that the measure can find a wrong answer; False if no entry is finite."""
    return exact.isfinite().any() & (allowed <= SHARP * _answer_sizes(exact))
