"""Which quantities does instrumented execution tally? One table, by the names that questions give.

Nothing of what the derivation uses takes part: every quantity is a plain tally over what the
instances of an execution did, read and wrote.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from costmodel.oracle.execute import Execution, Unfused, read_by


@dataclass(frozen=True)
class Quantity:
    """How a quantity is read off an execution: a number, or numbers by name; None: it is not.

    Args:
        sequence: of a forward pass.
        token: of token t, from the execution of a sequence.
        past: whether that sequence must run well past t.
        gradients: of a backward pass or a training step, named.
        phases: in which of these two it exists.
        alike: whether a maximum of it is reached with all rows of the input alike, so that the
            first entry is the largest: how deep a gradient is depends on which entry wins.
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
    """Operations by class, those on weights alone apart."""
    once = {f"once {name}": number for name, number in run.once().items()}
    return _nonzero({**run.counts(), **once})


def _counts_of_gradients(run: Execution, phase: str) -> dict[str, int]:
    return _nonzero(Counter(run.counts()) + Counter(run.once()))


def _deepest(run: Execution, phase: str = "") -> int:
    """The longest chain; none where no equation is left to run."""
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
    """The entries that are read and not computed, and the results."""
    fresh = {entry for instance in run.instances for entry in instance.writes}
    read = read_by(run.instances)
    results = run.system.results(phase)
    return len(read - fresh) + sum(entry[0] in results for entry in fresh)


def _unfused(rows: Sequence[Unfused]) -> dict[str, int]:
    kinds = ("activations", "weights", "state")
    return _nonzero({kind: sum(getattr(row, kind) for row in rows) for kind in kinds})


def _kept(run: Execution, phase: str) -> int:
    """The entries of the forward pass that its gradients read, that of the result left out."""
    return sum(entry[0] is not run.system.given for entry in run.kept())


def _parameters(run: Execution) -> int:
    arrays = run.system.mixer.arrays
    return sum(int(v.size) for name, v in run.arrays.items() if arrays[name].role == "parameter")


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
    "activations": Quantity(gradients=_kept, phases=("backward",)),
}
"""Name, as the records of questions give it -> the quantity."""
