"""Which operations does a mixer's module dispatch, and how long do they take on a board, without a
run? The module is called on torch's meta device, on tensors that have shapes and no values. A case
(`Case`) is a row of a table: a form of a mixer in a phase at sizes, with a board."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import fsum
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from costmodel.errors import Unanswered, as_exception
from costmodel.language.equations import Mixer
from costmodel.prediction.columns import board_of
from costmodel.prediction.layers import NoType, Step
from costmodel.program.chosen_sizes import combinations, letters_of
from costmodel.program.conventions import Backward
from costmodel.program.element_types import Dtypes
from costmodel.questions.question import Case
from profiler.counting.dispatch import count_dispatch
from profiler.counting.mode import DispatchMode
from profiler.host.device import DTYPES
from profiler.modules.registry import STEPLESS, Implementation
from profiler.reconcile import predicted
from profiler.records.element_types import dtype_name
from profiler.records.reading import MeasureError, reason_of
from profiler.run.plan import implementation_of
from profiler.run.prepare import prepare
from profiler.run.request import Request, form_of
from profiler.run.subject import subject

MOST = 50_000
"""The most dispatched operations of a call, which take some ten seconds."""


def steps(case: Case) -> tuple[str, Sequence[Step]]:
    """(implementation, the operations that it dispatches with their predicted times): of a mixer's
    module that executes the case's form, on the case's board; the one that the case names, else the
    one that takes the least time. Where no module that executes the mixer's default form has a
    time, the module of another form that takes the least time stands in. Raises Unanswered: there
    is no such module, it cannot be called without values, dispatches more than `MOST` operations,
    or an operation has no predicted time."""
    reasons: list[Unanswered] = []
    try:
        candidates = executing(case)
        modules = _modules(case)
    except ValueError as error:
        raise Unanswered(str(error)) from None
    others = (
        [one for one in modules if one not in candidates and form_of(one, case.phase)]
        if case.form == case.mixer.default_form
        else []
    )
    for group in (candidates, others):
        found: dict[str, Sequence[Step]] = {}
        for one in group:
            try:
                by_op, dtype = _counted(case, one)
                found[one.name] = predicted.steps(by_op, dtype, board_of(case))
            except Unanswered as reason:
                reasons.append(reason)
        if found:
            best = min(found, key=lambda name: fsum(step.seconds for step in found[name]))
            return best, found[best]
    raise reasons[0]


def launched(case: Case) -> int:
    """The number of kernels that the module named by a case launches; Unanswered as `steps`."""
    try:
        (module,) = executing(case)
    except ValueError as error:
        raise Unanswered(str(error)) from None
    number: int = _counted(case, module)[0]["launched"]
    return number


def form_executed(mixer: Mixer, implementation: str, phase: str) -> str:
    """The form that a mixer's module executes in a phase; "" if the mixer has no such module, or
    the module executes none there."""
    try:
        return form_of(implementation_of(mixer, implementation), phase)
    except ValueError:
        return ""


def _counted(case: Case, module: Implementation) -> tuple[Mapping[str, Any], str]:
    """(counts, type): the counts of the operations that a module dispatches at the sizes of a case
    (`DispatchCounts` as JSON values), and the name of the type of its entries ("fp32"). Raises
    Unanswered: the module cannot be called at these sizes, or the case asks for a type that no
    module has (NoType), for several types, or for options of a backward pass."""
    dtypes = case.dtypes or Dtypes()
    if (asked := dtypes.name_of("activations")) not in DTYPES:
        known = ", ".join(DTYPES)
        raise NoType(f"times of modules are known in {known} alone, not in {asked}")
    try:
        dtype = dtype_name(asked)
        if {dtypes.name_of(role) for role in ("weights", "cache", "state")} != {dtype}:
            raise MeasureError(
                f"a module has one element type, here {dtype}: leave out the types of weights, "
                "cache and state"
            )
        if case.about.convention.backward != Backward():
            raise MeasureError(
                "a module computes all gradients from that of its output: leave out the options "
                "'recompute', 'only' and 'loss'"
            )
        letters, given = letters_of(case.mixer, case.phase), case.sizes
        typed = {letter: (given[letter],) for letter in letters if letter in given}
        (sizes,) = combinations(letters, typed, case.mixer)
    except ValueError as error:
        raise Unanswered(str(error)) from None
    found = _dispatched(case.mixer, module, case.phase, tuple(sizes.items()), dtype)
    if isinstance(found, str):
        raise Unanswered(f"{case.mixer.name} {module.name}: {found}")
    return found, dtype


def _modules(case: Case) -> list[Implementation]:
    """The implementations of a case's mixer; only the one that the case names, if it names one."""
    if case.implementation:
        return [implementation_of(case.mixer, case.implementation)]
    return [*subject(case.mixer).implementations().values()]


def executing(case: Case) -> list[Implementation]:
    """The implementations that execute a case's form; [] if only other forms are executed, and the
    case names no implementation and has the mixer's default form. Raises MeasureError: no
    implementation executes a form in the phase, or the case names an implementation, or a form
    beside the default one, and no implementation executes it."""
    candidates = _modules(case)
    forms = {one.name: form_of(one, case.phase) for one in candidates}
    chosen = [one for one in candidates if forms[one.name] == case.form]
    usual = case.form == case.mixer.default_form and not case.implementation
    others = {name: form for name, form in forms.items() if form}
    if chosen or (usual and others):
        return chosen
    if not others:
        why = subject(case.mixer).without_token(candidates[0])
        raise MeasureError(f"{case.mixer.name} {candidates[0].name}: {why or STEPLESS}")
    name, form = next(iter(others.items()))
    raise MeasureError(
        f"no module executes the form {case.form} here, and the module {name} executes {form}: "
        f"choose --form {form}"
    )


@lru_cache(maxsize=4096)
def _dispatched(
    mixer: Mixer,
    implementation: Implementation,
    phase: str,
    sizes: tuple[tuple[str, int], ...],
    dtype: str,
) -> Mapping[str, Any] | str:
    """The counts of the operations that a call dispatches without values (on the meta device),
    `DispatchCounts` as JSON values; or a sentence: the call fails, or has more than `MOST`."""
    request = Request(mixer, implementation, dict(sizes), phase, dtype, "meta")
    try:
        with as_exception(), _AtMost(), _FusedAttention():
            work = prepare(request)
            work.restore()
            return count_dispatch(work.bare).to_json()
    except Exception as error:  # a module of a user's own may raise anything
        return reason_of(error)


class _AtMost(DispatchMode):
    """Refuses a module that dispatches too many operations, such as a loop over many tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def see(self, kind: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Run an operation; MeasureError for one too many."""
        self.number += 1
        if self.number > MOST:
            raise MeasureError(
                f"the module runs more than {MOST:,} operations of torch, as a loop over tokens "
                "does: choose fewer tokens"
            )
        return super().see(kind, args, kwargs)


class _FusedAttention(TorchFunctionMode):
    """Has torch's attention dispatch its fused kernel, which torch on the meta device lacks."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is not functional.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        return fused(*args, **(kwargs or {}))


def fused(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Attention (b, heads, rows, width) by the operation of the fused kernel; the parameters are
    those of torch's function, of which `enable_gqa` changes nothing here."""
    call = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return call(query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)[0]
