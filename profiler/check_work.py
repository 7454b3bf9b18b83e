"""Does a module do the work that it is described to do, and hold the state that it needs to?"""

from __future__ import annotations

from collections.abc import Iterator

import torch

import costmodel as cm
from costmodel.check import Proof
from costmodel.constraints import Unsupported
from costmodel.equations import Mixer
from costmodel.phases import Unanswered
from profiler.cases import BATCH, Case, prove_cases
from profiler.counters.dispatch import DispatchCounts, count_dispatch
from profiler.modules import Implementation
from profiler.reconcile import Described, described, difference, dispatched_classes, executed
from profiler.words import signed_words


def dispatched_equals(mixer: Mixer, implementation: Implementation, *, step: bool) -> Proof:
    """Rungs 1 to 3: `forward`, and `step` token by token, dispatch what the equations count under
    the implementation's description."""
    name = f"{implementation.name}: dispatched equals executed"
    phases = ("training", "inference") if step else ("training",)
    left: dict[str, None] = {}

    def apart(case: Case) -> str:
        for phase in phases:
            does = described(mixer, implementation, phase)
            for t, dispatched in _dispatched(case, phase):
                left.update((f"no counting rule for {op}", None) for op in dispatched.unknown)
                if left:
                    return ""
                sizes = dict(case.sizes) | {"b": BATCH} | ({"t": t} if t else {})
                try:
                    counted = executed(mixer, does, phase, sizes)
                except (Unsupported, Unanswered) as reason:
                    left[f"not counted: {reason}"] = None
                    return ""
                found = dispatched_classes(dispatched.operations.to_json())
                if gap := difference(found, counted):
                    return _unexplained(does, phase, t, signed_words(gap))
        return ""

    done = " and ".join(("forward", "step")[: len(phases)]) + ", every class,"
    proof = prove_cases(name, mixer, implementation, apart, done)
    return Proof(name, None, "; ".join(left)) if left and proof.passed else proof


def _dispatched(case: Case, phase: str) -> Iterator[tuple[int, DispatchCounts]]:
    """What `forward` dispatches (t = 0), or `step` at every token t."""
    with torch.no_grad():
        if phase == "training":
            yield 0, count_dispatch(case.forward)
            return
        state = case.initial_state()
        for t in range(1, case.x.shape[1] + 1):
            yield t, count_dispatch(case.step, t, state)


def _unexplained(does: Described, phase: str, t: int, gap: str) -> str:
    """Where a call parts from its description, and how the description may be mended."""
    call, prefix = (f"step at token {t}", "step_") if phase == "inference" else ("forward", "")
    rewrites = ", ".join(does.rewrites) or "none"
    return (
        f"{call} of a batch of {BATCH} dispatches {gap} beyond its description (form "
        f"'{does.form}', rewrites: {rewrites}); where it means to, describe it by "
        f"{prefix}rewrites= or {prefix}form= of @implementation"
    )


def state_equals(mixer: Mixer, implementation: Implementation) -> Proof:
    """After every token, the state holds as many elements as the equations need."""
    name = f"{implementation.name}: state held equals derived state"
    try:
        derived = cm.state(mixer, implementation.step_form)
    except (Unsupported, Unanswered) as reason:
        return Proof(name, None, f"not derived: {reason}")
    left: dict[str, None] = {}

    def apart(case: Case) -> str:
        state = case.initial_state()
        if not hasattr(state, "elements"):
            left["its state has no `elements`"] = None
            return ""
        for t in range(1, case.x.shape[1] + 1):
            with torch.no_grad():
                case.step(t, state)
            needed = derived.at(**{**case.sizes, "t": t})
            if state.elements != needed:
                read = ", ".join(derived.arrays) or "nothing"
                return (
                    f"after token {t} the state holds {state.elements} elements for one sequence, "
                    f"later tokens need {needed} (of {read})"
                )
        return ""

    proof = prove_cases(name, mixer, implementation, apart, "after every token")
    return Proof(name, None, "; ".join(left)) if left and proof.passed else proof
