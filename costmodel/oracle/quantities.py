"""The quantities that instrumented execution tallies, by the names of their questions.

Nothing is shared with the derivation: every quantity is a plain tally over what the instances of an
execution (equations at one point each) did, read and wrote.
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
    """How a quantity is read off an execution, as one number or numbers by name.

    Args:
        sequence: reads it off a forward pass; None if the quantity is not defined there.
        token: reads it off a sequence, for token t alone; None if it is not defined there.
        past: whether `token` needs a sequence that runs well past t.
        gradients: reads it off a backward pass or a training step, whose name is the second
            argument; None if it is not defined there.
        phases: the phases for `gradients`.
        alike: whether the quantity in a phase with gradients is compared on equal input rows. There
            the first entry wins every maximum, which gives the largest depth: the depth of a
            gradient depends on which entry wins.
    """

    sequence: Callable[[Execution], object] | None = None
    token: Callable[[Execution, int], object] | None = None
    past: bool = False
    gradients: Callable[[Execution, str], object] | None = None
    phases: tuple[str, ...] = ("backward", "training-step")
    alike: bool = False


def _nonzero(numbers: Mapping[str, int]) -> dict[str, int]:
    """The numbers sorted by name, zeros left out."""
    return {name: number for name, number in sorted(numbers.items()) if number}


def _counts(run: Execution) -> dict[str, int]:
    """Class -> operations; the names of classes of work on weights alone begin with "once "."""
    once = {f"once {name}": number for name, number in run.once().items()}
    return _nonzero({**run.counts(), **once})


def _counts_of_gradients(run: Execution, phase: str) -> dict[str, int]:
    """Class -> operations, with work on weights alone added to its class."""
    return _nonzero(Counter(run.counts()) + Counter(run.once()))


def _deepest(run: Execution, phase: str = "") -> int:
    """The longest chain of operations; 0 if there is no instance."""
    return run.span() if run.instances else 0


def _steps(run: Execution, phase: str = "") -> int:
    return run.steps() if run.instances else 0


def _steps_to_the_output(run: Execution) -> int:
    """The steps of the longest chain that ends at an entry of the output."""
    memory = run.trace.memory
    return max(scalar.steps for (array, _), scalar in memory.items() if array.role == "output")


def _compulsory(run: Execution) -> dict[str, int]:
    """Kind -> entries moved at least in a forward pass."""
    moved = run.compulsory()
    return _nonzero({"activations": moved.inputs + moved.outputs, "weights": moved.weights})


def _compulsory_of_a_token(run: Execution, t: int) -> dict[str, int]:
    """Kind -> entries moved at least for token t; new state counts as `state`."""
    moved = run.compulsory_inference(t)
    given, state = moved.inputs + moved.outputs, moved.state + moved.state_written
    return _nonzero({"activations": given, "weights": moved.weights, "state": state})


def _compulsory_of_gradients(run: Execution, phase: str) -> int:
    """The least traffic of a phase with gradients, in entries: entries that are read but not
    computed, plus the entries of the phase's results."""
    fresh = {entry for instance in run.instances for entry in instance.writes}
    read = read_by(run.instances)
    results = run.system.results(phase)
    return len(read - fresh) + sum(entry[0] in results for entry in fresh)


def _unfused(rows: Sequence[Unfused]) -> dict[str, int]:
    """Kind -> entries moved by all equations."""
    kinds = ("activations", "weights", "state")
    return _nonzero({kind: sum(getattr(row, kind) for row in rows) for kind in kinds})


def _kept(run: Execution, phase: str) -> int:
    """The number of forward entries that gradients read, except the gradient of the output."""
    return sum(entry[0] is not run.system.given for entry in run.kept())


def _parameters(run: Execution) -> int:
    """The number of entries of all parameters."""
    arrays = run.system.mixer.arrays
    return sum(int(v.size) for name, v in run.arrays.items() if arrays[name].role == "parameter")


def _hops(run: Execution) -> int:
    """The maximum path length of a form, which is executed again without the rewrites."""
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
