"""The proof of `check --deep` that a module is right at every value of each size, one at a time.

A value such as d = 24, at which alone a module is wrong, would have one draw among hundreds: here
the value has a plain call of its own, whose result, decoded rows and operations are compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial

import torch

from costmodel.errors import ConventionError, Unanswered, Unsupported
from costmodel.symbolic.piecewise import Exact
from profiler.counting.dispatch import count_dispatch
from profiler.modules.described import (
    by_class,
    classes_at,
    classes_of,
    description_of,
    dispatched_gap,
    executed_counts,
)
from profiler.proofs.draws import MOST_POINTS, Draw
from profiler.proofs.trial import Finding, Subject, Trial, answers, row_apart


class EachSize:
    """Plain calls of a module at sizes (`Draw`), and what is wrong with each. `uncounted` is a
    clause on operations that were not compared, "" if all were; `_executed(phase, names of
    dispatched operations)` gives what the equations count: class -> formula."""

    def __init__(self, subject: Subject, *, counted: bool) -> None:
        """`counted`: whether operations are compared too, as of a module whose description
        agrees with what it dispatches at small sizes."""
        self.subject, self.counted = subject, counted
        self.uncounted = "" if counted else "operations were not compared"
        mixer, implementation = subject.mixer, subject.implementation
        described = cache(partial(description_of, mixer, implementation))

        @cache
        def executed(phase: str, names: frozenset[str]) -> Mapping[str, Exact]:
            return by_class(executed_counts(mixer, described(phase, names), phase))

        self._executed = executed

    def fault(self, draw: Draw) -> str:
        """What is wrong in a call at these sizes, in words; "" if nothing is. Raises Refused: the
        module refuses the sizes; Unsupported: the equations cannot be evaluated."""
        trial = Trial(self.subject, draw, 0)
        with torch.no_grad():
            said = trial.result_apart(trial.case.forward()) or self._rows_apart(trial)
        return said or (self._work_apart(trial) if self.counted else "")

    def with_gradients(self, draw: Draw) -> Finding | None:
        """What is wrong in a call at these sizes with gradients recorded alone, first in its
        result, then in its gradients, as (kind, sentence); None if nothing is, or the result is
        wrong without gradients too. Raises Refused: the module refuses the sizes;
        Unsupported: the equations cannot be evaluated."""
        trial = Trial(self.subject, draw, MOST_POINTS)
        with torch.no_grad():
            if trial.result_apart(trial.case.forward()):
                return None
        found = answers(trial.case, trial.gradient)
        if said := trial.result_apart(found[trial.output], torch.enable_grad):
            return "result", f"with gradients recorded, {said}"
        said = trial.gradients_apart(found)
        return ("gradients", said) if said else None

    def _rows_apart(self, trial: Trial) -> str:
        """A sentence on the first decoded row of wrong shape or values; "" if none, or no step."""
        if self.subject.stepless:  # in words, why there is no step, or it is not tried
            return ""
        case, draw = trial.case, trial.draw
        state = case.initial_state()
        for t in range(1, draw.sizes["l"] + 1):
            row = case.step(t, state)
            if said := row_apart(row, trial.gradient[:, 0].shape, t):  # gradient: (b, l, ...)
                return said
            for sample in range(draw.b):
                known = trial.expected(sample)[trial.output][t - 1]
                place = f"{trial.output}[{t}]"
                if said := trial.apart(row[sample], known, place, "step"):
                    return f"in step, {said}"
        return ""

    def _work_apart(self, trial: Trial) -> str:
        """A sentence on the operations that `forward`, or the step of the last token, dispatches
        beyond or below its description ("...: +12 mul, -3 add"); "" if there are none, or if they
        cannot be counted: `uncounted` then gets a clause."""
        case, draw = trial.case.counted(), trial.draw
        # calls: (name in words, phase, function that counts the call, sizes of the formulas)
        at = {**draw.sizes, "b": draw.b}
        calls = [("forward", "training", partial(count_dispatch, case.forward), at)]
        if not self.subject.stepless:
            last, state = draw.sizes["l"], case.initial_state()
            with torch.no_grad():
                for t in range(1, last):
                    case.step(t, state)
            step = partial(count_dispatch, case.step, last, state)
            calls.append((f"step at token {last}", "inference", step, {**at, "t": last}))
        for who, phase, called, sizes in calls:
            with torch.no_grad():
                call = called()
            try:
                counted = classes_at(self._executed(phase, frozenset(call.by_op)), sizes)
            except (ConventionError, Unsupported, Unanswered):
                self.uncounted = f"operations of {phase} have no formula and were not compared"
                continue
            gap, _ = dispatched_gap(classes_of(call), counted)
            if not call.complete:
                self.uncounted = f"some operations of {phase} have no rule and were not compared"
            elif gap:
                more = ", ".join(f"{n:+,} {name}" for name, n in gap.items())
                return f"{who} dispatches other operations than its description: {more}"
        return ""
