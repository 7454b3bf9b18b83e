"""Which operations does a mixer's module dispatch, and how long do they take on a board, without a
run? The module is called on torch's meta device, on tensors that have shapes and no values. A case
(`Case`) is a row of a table: a form of a mixer in a phase at sizes, with a board."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from math import fsum, inf
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from costmodel.errors import Unanswered, as_exception
from costmodel.language.equations import Mixer
from costmodel.prediction.columns import board_of
from costmodel.prediction.layers import Step
from costmodel.program.chosen_sizes import combinations, letters_of
from costmodel.program.conventions import Backward
from costmodel.questions.question import Case, Dtypes
from profiler.counting.dispatch import count_dispatch
from profiler.counting.mode import DispatchMode
from profiler.host.device import dtype_name
from profiler.modules.registry import STEPLESS, Implementation
from profiler.reconcile import predicted
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
    one that takes the least time.

    Raises:
        Unanswered: there is no such module, it cannot be called without values, dispatches more
            than `MOST` operations, or an operation has no predicted time. The message names the
            forms whose modules have a time.
    """
    dtypes = case.dtypes or Dtypes()
    try:
        dtype = dtype_name(dtypes.name_of("activations"))
        if {dtypes.name_of(role) for role in ("weights", "cache", "state")} != {dtype}:
            raise MeasureError(f"a module has one element type, {dtype}")
        if case.about.convention.backward != Backward():
            raise MeasureError("a module computes all gradients from that of its output")
        candidates = executing(case)
        letters, given = letters_of(case.mixer, case.phase), case.sizes
        typed = {letter: (given[letter],) for letter in letters if letter in given}
        (sizes,) = combinations(letters, typed, case.mixer)
    except ValueError as error:
        raise Unanswered(str(error)) from None

    def answers(modules: Sequence[Implementation]) -> Iterator[Sequence[Step] | Unanswered]:
        """Yield the operations of each module with their times, or why there are none."""
        for one in modules:
            found = _dispatched(case.mixer, one, case.phase, tuple(sizes.items()), dtype)
            try:
                if isinstance(found, str):
                    raise Unanswered(f"{case.mixer.name} {one.name}: {found}")
                yield predicted.steps(found, dtype, board_of(case))
            except Unanswered as reason:
                yield reason

    def taken(of: Sequence[Step] | Unanswered) -> float:
        """The seconds of a module; infinity without an answer."""
        return inf if isinstance(of, Unanswered) else fsum(step.seconds for step in of)

    found = dict(zip((one.name for one in candidates), answers(candidates), strict=True))
    best = min(found, key=lambda name: taken(found[name]))
    if not isinstance(told := found[best], Unanswered):
        return best, told
    others = [one for one in _modules(case) if form_of(one, case.phase) not in ("", case.form)]
    pairs = zip(others, answers(others), strict=True)
    known = [form_of(one, case.phase) for one, answer in pairs if taken(answer) < inf]
    forms = ", ".join(f"{case.mixer.name}:{form}" for form in dict.fromkeys(known))
    raise Unanswered(f"{told}{f'; a time is predicted of {forms}' if forms else ''}")


def _modules(case: Case) -> list[Implementation]:
    """The implementations of a case's mixer; only the one that the case names, if it names one."""
    if case.implementation:
        return [implementation_of(case.mixer, case.implementation)]
    return [*subject(case.mixer).implementations().values()]


def executing(case: Case) -> list[Implementation]:
    """The implementations that execute a case's form; MeasureError if there are none."""
    candidates = _modules(case)
    forms = {one.name: form_of(one, case.phase) for one in candidates}
    if chosen := [one for one in candidates if forms[one.name] == case.form]:
        return chosen
    others = {name: form for name, form in forms.items() if form}
    if not others:
        why = subject(case.mixer).without_token(candidates[0])
        raise MeasureError(f"{case.mixer.name} {candidates[0].name}: {why or STEPLESS}")
    name, form = next(iter(others.items()))
    raise MeasureError(
        f"no module executes the form {case.form} here: the module {name} executes {form}: choose "
        f"--form {form}"
    )


@lru_cache(maxsize=4096)
def _dispatched(
    mixer: Mixer,
    implementation: Implementation,
    phase: str,
    sizes: tuple[tuple[str, int], ...],
    dtype: str,
) -> Mapping[str, Any] | str:
    """The counts of dispatched operations of a call, as JSON values; or why there are none."""
    request = Request(mixer, implementation, dict(sizes), phase, dtype, "meta")
    try:
        with as_exception(), _AtMost(), _FusedAttention():
            work = prepare(request)
            work.restore()
            return count_dispatch(work.bare).to_json()
    except Exception as error:  # a module of a user's own may raise anything
        return reason_of(error)


class _AtMost(DispatchMode):
    """Refuses a module that dispatches too many operations, such as one that takes many tokens one
    by one."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def see(self, kind: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Run an operation; MeasureError for one too many."""
        self.number += 1
        if self.number > MOST:
            raise MeasureError(
                f"it dispatches more than {MOST:,} operations, as token after token: choose fewer "
                "tokens"
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
    those of torch's function."""
    call = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return call(query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)[0]
