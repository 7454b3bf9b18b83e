"""Which entry of a module's result differs first, and which equation does the module miss?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from costmodel.language.equations import Equation, Mixer
from costmodel.oracle.execute import execute
from costmodel.proofs.check import evaluated
from profiler.counting.call import tensors_in
from profiler.counting.mode import DispatchMode, OperationKind
from profiler.proofs.cases import TOLERANCE

if TYPE_CHECKING:
    import numpy as np

    from profiler.proofs.cases import Values


def first_difference(
    found: torch.Tensor, expected: torch.Tensor, who: str, before: tuple[int, ...] = ()
) -> str:
    """The first entry of y that differs beyond rounding, in words, or "". `before` is prepended to
    the entry's position; `who` introduces the expected value, as "the equations give" does."""
    if found.shape != expected.shape:
        return f"y is {tuple(found.shape)}, expected {tuple(expected.shape)}"
    apart = (found - expected).abs() > TOLERANCE * max(1.0, float(expected.abs().max()))
    apart |= found.isnan() & ~expected.isnan()
    if not apart.any():
        return ""
    where = tuple(int(k) for k in apart.nonzero()[0])
    entry = ", ".join(str(k + 1) for k in before + where)
    return f"y[{entry}] is {float(found[where]):.6g}, {who} {float(expected[where]):.6g}"


class Recorder(DispatchMode):
    """Records every floating-point value that a call computes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []

    def see(self, kind: OperationKind, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Run an operation and record its result."""
        return self.kept(super().see(kind, args, kwargs))

    def see_functions(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Run a higher-order operator and record its result."""
        return self.kept(super().see_functions(func, args, kwargs))

    def kept(self, result: Any) -> Any:
        """Record the values of a result and return the result."""
        for tensor in tensors_in(result):
            if tensor.is_complex():
                self.seen.append(torch.view_as_real(tensor.detach().resolve_conj()).flatten())
            elif tensor.is_floating_point():
                self.seen.append(tensor.detach().flatten().clone())
        return result

    @cached_property
    def values(self) -> torch.Tensor:
        """All recorded finite values in ascending order."""
        found = torch.cat([torch.zeros(1, dtype=torch.float64), *(t.double() for t in self.seen)])
        return found[found.isfinite()].sort().values

    def has(self, wanted: np.ndarray[Any, Any]) -> bool:
        """Whether every nonzero number of `wanted` was computed, up to rounding."""
        values, seen = torch.from_numpy(wanted[wanted != 0]), self.values
        if len(seen) < 2:
            return not len(values)
        at = torch.searchsorted(seen, values).clamp(1, len(seen) - 1)
        nearest = torch.minimum((seen[at] - values).abs(), (seen[at - 1] - values).abs())
        return bool((nearest <= TOLERANCE * values.abs().clamp(min=1.0)).all())


class Multisets(Recorder):
    """Records the values of a call in low precision, and looks for whole tensors among them."""

    NEAR = 0.1
    """How far sorted values may lie apart, as a share of the largest: several roundings to eight
    bits stay below this share, and another array of as many entries exceeds it."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.batch = batch

    def has(self, wanted: np.ndarray[Any, Any]) -> bool:
        """Whether one recorded tensor holds these values of the first sequence, in any order."""
        values = torch.from_numpy(wanted).double().sort().values
        near = self.NEAR * float(values.abs().max()) if len(values) else 0.0
        return any(
            float((own.sort().values - values).abs().nan_to_num(torch.inf).max()) <= near
            for own in (t.double()[: len(t) // self.batch] for t in self.seen)
            if len(own) == len(values) > 0
        )


def first_unseen(
    mixer: Mixer,
    form: str,
    expected: Values,
    is_seen: Callable[[np.ndarray[Any, Any]], bool],
) -> str:
    """Name the first equation, in the order of evaluation, whose values the call never computed.

    `is_seen` says whether the call computed all of some values, in any order or layout. A kernel
    may fuse an equation away: the equation is passed over where a later equation that reads it
    was computed.
    """
    equations = {e.name: e for e in mixer.forms[form].equations}
    parts = [
        (name, is_seen(expected[name][where].ravel()))
        for name, where in evaluated(mixer.forms[form], expected)
    ]
    reads = sources(mixer.forms[form].equations)
    for k, (name, right) in enumerate(parts):
        if right or any(later and name in reads[other] for other, later in parts[k + 1 :]):
            continue
        cite = equations[name].array.cite
        where = f"equation {cite} " if cite else "equation "
        first = f"{where}{name} is the first whose values the module never computes"
        wrong = {other for other, found in parts if not found}
        listed = ", ".join(other for other in equations if other not in wrong)
        return f"the module computes {listed} as the equations do; {first}" if listed else first
    return "the module computes the values of every equation but returns other values"


def sources(equations: Iterable[Equation]) -> dict[str, set[str]]:
    """The arrays from which each array is computed, directly or indirectly."""
    reads: dict[str, set[str]] = {}
    for equation in equations:
        reads.setdefault(equation.name, set()).update(a.name for a in equation.value.arrays)
    while True:
        wider = {
            a: found.union(*(reads.get(x, set()) for x in found)) for a, found in reads.items()
        }
        if wider == reads:
            return reads
        reads = wider


def values_of_token(
    mixer: Mixer, form: str, arrays: Values, sizes: Mapping[str, int], t: int
) -> Values:
    """Equation -> its array, with 0 for every entry that belongs to another token than t."""
    import numpy as np

    run = execute(mixer.forms[form], sizes, arrays=arrays)
    own = {e.array for e in mixer.forms[form].equations}
    found = {array.name: np.zeros(run.trace.shape(array)) for array in own}
    for (array, where), scalar in run.trace.memory.items():
        if array.name in found and scalar.token == t:
            found[array.name][tuple(p - 1 for p in where)] = scalar.value
    return found
