"""Are the derived gradients of a mixer correct, in their values and in their costs?

Values: the gradients by the derived equations are compared with difference quotients of the output.
Costs: the derived answers for the backward pass and the training step are compared with tallies of
an execution.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from costmodel.errors import Unanswered, Unsupported
from costmodel.language.equations import Equation, System
from costmodel.language.nodes import Bracket, walk
from costmodel.oracle.execute import Execution, run
from costmodel.oracle.interpreter import Values
from costmodel.program.conventions import computes_masked
from costmodel.proofs.against_oracle import OracleComparison, Sizes, tallies
from costmodel.questions.evaluate import evaluate_system, gradients
from costmodel.questions.subject import system_of

if TYPE_CHECKING:
    import numpy as np

STEP = 1e-6
"""The step of central difference quotients: their error of order STEP**2 is below TOLERANCE."""
TOLERANCE = 1e-6


@dataclass
class GradientComparison(OracleComparison):
    """Compares derived and executed answers about the gradients of one form under one convention:
    costs, depths and values."""

    def at(self, sizes: Sizes) -> GradientComparison:
        """Compare derived and executed answers to every question about the gradients at these
        sizes; returns this object, with the results.

        Costs are compared in the phases backward and training-step. If the form has a maximum,
        depths are compared in an execution on equal input rows (`deep_...`), where every maximum is
        its first entry; values are not under `dense` or `dense=ROWS`. Without derived gradients,
        `refused` gets the reason alone.
        """
        try:
            system = system_of(self.mixer, self.form, self.rewrites, "backward")
        except (Unanswered, Unsupported) as reason:
            self.refused.append(f"gradients: {reason}")
            return self
        forward = system.forward.equations
        masked = computes_masked(self.rewrites)
        dense = masked or "zero-state" in self.rewrites

        def ran(ready: Collection[Equation], arrays: Values | None = None) -> Execution:
            """The execution; the work of the equations `ready`, a forward pass, is not tallied."""
            return run(
                system, sizes, accounting=self.accounting, dense=dense, ready=ready, arrays=arrays
            )

        backward, step = deep_backward, deep_step = ran(forward), ran(())
        if _has_maximum(system):
            deep_step = ran((), _rows_alike(step.arrays, system))
            deep_backward = deep_step.resumed(backward.ready)  # its forward pass is not tallied
        for phase, done, deep in (
            ("backward", backward, deep_backward),
            ("training-step", step, deep_step),
        ):
            about = self.about(phase)
            for tally, quantity in tallies():
                if quantity.gradients is None or phase not in quantity.phases:
                    continue
                name = f"{tally.name}, {phase}" if len(quantity.phases) > 1 else tally.name
                derive = partial(tally.derived, about, sizes)
                # `alike`: a depth, which depends on the entries that are maxima
                executed = quantity.gradients(deep if quantity.alike else done, phase)
                self.check(name, derive, executed)
        slopes = {} if masked else self._slopes(system, backward, sizes)
        for name, (derived, executed) in slopes.items():
            self.check(f"gradient of {name}", derived, executed)
        return self

    def _slopes(
        self, system: System, done: Execution, sizes: Sizes
    ) -> dict[str, tuple[Callable[[], str], str]]:
        """Name of an array with a gradient -> (function, text), two comparisons of the gradient
        that give "" if there is no difference, else the difference in words.

        The function compares the derived gradient with the one of the backward pass `done`. The
        text compares the executed gradient with difference quotients: for all arrays together,
        which takes two forward passes; only if that differs, for each array by itself.
        """
        import numpy as np

        arrays = dict(done.arrays)
        given = arrays.pop(system.given.name)  # the gradient of the output
        names = tuple(self.rewrites)
        compared: dict[str, tuple[Callable[[], str], str]] = {}

        @cache
        def derived() -> Mapping[str, Any]:
            return gradients(self.mixer, arrays, given, sizes, self.form, names)

        def output(changed: Mapping[str, Any]) -> Any:
            known = {**arrays, **changed, system.given.name: given}
            return evaluate_system(system.forward, known, sizes)[system.mixer.role("output").name]

        slopes = dict(self._executed_gradients(system, done))

        def apart(names: Collection[str]) -> str:
            """The text of both numbers if the slope of (output * given).sum(), with `given` the
            output's gradient, along a random direction of the arrays `names` differs between the
            executed gradients and a difference quotient; "" if equal within TOLERANCE."""
            random = np.random.default_rng(0)
            along = {name: random.uniform(-1, 1, arrays[name].shape) for name in names}
            ends = [
                output({name: arrays[name] + sign * STEP * way for name, way in along.items()})
                for sign in (1, -1)
            ]
            quotient = float(((ends[0] - ends[1]) / (2 * STEP) * given).sum())
            executed = sum(float((slopes[name] * way).sum()) for name, way in along.items())
            close = abs(quotient - executed) <= TOLERANCE * max(1.0, abs(quotient))
            return "" if close else f"{executed} along a direction, by differences {quotient}"

        alike = not apart(slopes)
        for name, slope in slopes.items():

            def evaluated(name: str = name, slope: Any = slope) -> str:
                value = derived().get(name, 0 * slope)
                same = abs(value - slope).max(initial=0) <= TOLERANCE * abs(slope).max(initial=1)
                return "" if same else f"{value.tolist()}, executed {slope.tolist()}"

            compared[name] = (evaluated, "" if alike else apart([name]))
        return compared

    def _executed_gradients(
        self, system: System, done: Execution
    ) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
        """Yield (name of the array, its gradient in the execution `done`, of the same shape) for
        each array whose gradient is asked for; entries that no equation writes are 0."""
        import numpy as np

        values = {a: np.zeros(done.arrays[a.name].shape) for a in system.wanted}
        for (owner, where), scalar in done.trace.memory.items():
            if owner.gradient_of in values and owner.role == "intermediate":
                values[owner.gradient_of][tuple(p - 1 for p in where)] = scalar.value
        for array, slope in values.items():
            yield array.name, slope


def _has_maximum(system: System) -> bool:
    """Whether the gradient of a maximum occurs, which goes to the first entry that attains it."""
    return any(
        isinstance(node, Bracket) and bool(node.first)
        for e in system.equations
        for node, _ in walk(e.value)
    )


def _rows_alike(arrays: Values, system: System) -> Values:
    """The arrays with equal rows in each input, so that the first entry of a maximum is chosen: the
    depth of a maximum's gradient depends on which entry is largest, and is largest there."""
    inputs = {array.name: arrays[array.name] for array in system.mixer.inputs}
    return {**arrays, **{name: rows * 0 + rows[:1] for name, rows in inputs.items()}}
