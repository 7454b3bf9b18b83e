"""The quantities that instrumented execution tallies, by the names of their questions.

Nothing is shared with the derivation: every quantity is a plain tally over what the instances of an
execution did, read and wrote.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from costmodel.oracle.execute import Execution, Unfused, execute, read_by
from costmodel.oracle.hops import furthest
from costmodel.oracle.live import most_live


@dataclass(frozen=True)
class Quantity:
    """How a quantity is read off an execution, as one number or numbers by name; None if undefined.

    Args:
        sequence: in a forward pass.
        token: of token t, from the execution of a sequence.
        past: whether that sequence must run well past t.
        gradients: in a backward pass or a training step, given by name.
        phases: in which of these two it exists.
        alike: whether its maximum is attained with all input rows equal, where the first entry wins
            every maximum: the depth of a gradient depends on which entry wins.
    """

    sequence: Callable[[Execution], object] | None = None
    token: Callable[[Execution, int], object] | None = None
    past: bool = False
    gradients: Callable[[Execution, str], object] | None = None
    phases: tuple[str, ...] = ("backward", "training-step")
    alike: bool = False


def _nonzero(numbers: Mapping[str, int]) -> dict[str, int]:
    return {name: number for name, number in sorted(numbers.items()) if number}


def _counts(run: Execution) -> dict[str, int]:
    """Operations by class; classes of work on weights alone begin with "once"."""
    once = {f"once {name}": number for name, number in run.once().items()}
    return _nonzero({**run.counts(), **once})


def _counts_of_gradients(run: Execution, phase: str) -> dict[str, int]:
    return _nonzero(Counter(run.counts()) + Counter(run.once()))


def _deepest(run: Execution, phase: str = "") -> int:
    """The longest chain of operations; 0 if there is no instance."""
    return run.span() if run.instances else 0


def _steps(run: Execution, phase: str = "") -> int:
    return run.steps() if run.instances else 0


def _steps_to_the_output(run: Execution) -> int:
    memory = run.trace.memory
    return max(scalar.steps for (array, _), scalar in memory.items() if array.role == "output")


def _compulsory(run: Execution) -> dict[str, int]:
    moved = run.compulsory()
    return _nonzero({"activations": moved.inputs + moved.outputs, "weights": moved.weights})


def _compulsory_of_a_token(run: Execution, t: int) -> dict[str, int]:
    moved = run.compulsory_inference(t)
    given, state = moved.inputs + moved.outputs, moved.state + moved.state_written
    return _nonzero({"activations": given, "weights": moved.weights, "state": state})


def _compulsory_of_gradients(run: Execution, phase: str) -> int:
    """The number of entries that are read but not computed, plus the number of results."""
    fresh = {entry for instance in run.instances for entry in instance.writes}
    read = read_by(run.instances)
    results = run.system.results(phase)
    return len(read - fresh) + sum(entry[0] in results for entry in fresh)


def _unfused(rows: Sequence[Unfused]) -> dict[str, int]:
    kinds = ("activations", "weights", "state")
    return _nonzero({kind: sum(getattr(row, kind) for row in rows) for kind in kinds})


def _kept(run: Execution, phase: str) -> int:
    """The number of forward entries that gradients read, except the gradient of the output."""
    return sum(entry[0] is not run.system.given for entry in run.kept())


def _parameters(run: Execution) -> int:
    arrays = run.system.mixer.arrays
    return sum(int(v.size) for name, v in run.arrays.items() if arrays[name].role == "parameter")


def _hops(run: Execution) -> int:
    """The maximum path length of a form, which rewrites do not change."""
    form = run.system.mixer.forms[run.system.form]
    return furthest(execute(form, run.sizes))


QUANTITIES: Mapping[str, Quantity] = {
    "counts": Quantity(
        _counts,
        lambda run, t: _nonzero(run.counts_inference(t)),
        gradients=_counts_of_gradients,
    ),
    "parameters": Quantity(_parameters),
    "span": Quantity(
        _deepest, lambda run, t: run.span_inference(t), gradients=_deepest, alike=True
    ),
    "steps of the critical path": Quantity(_steps_to_the_output),
    "sequential operations": Quantity(
        _steps, lambda run, t: run.steps_inference(t), gradients=_steps, alike=True
    ),
    "compulsory traffic": Quantity(
        _compulsory, _compulsory_of_a_token, past=True, gradients=_compulsory_of_gradients
    ),
    "unfused traffic": Quantity(
        lambda run: _unfused(run.unfused()),
        lambda run, t: _unfused(run.unfused_inference(t)),
        past=True,
        gradients=lambda run, phase: sum(_unfused(run.unfused()).values()),
    ),
    "state": Quantity(token=lambda run, t: run.state(t), past=True),
    "path length": Quantity(_hops),
    "peak": Quantity(lambda run: most_live(run, "training"), gradients=most_live),
    "activations": Quantity(gradients=_kept, phases=("backward",)),
}
"""Name, as the records of questions give it -> the quantity."""
