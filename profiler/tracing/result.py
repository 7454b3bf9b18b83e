"""What is known of a module once it was traced: formulas, where they hold, what has none?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from costmodel.language.functions import CLASSES
from costmodel.symbolic.constraints import Constraints
from costmodel.symbolic.polynomial import Poly
from profiler.counting.operations import Operations
from profiler.tracing.divisions import Divisions
from profiler.tracing.meta_run.flop_counter import FlopCounter
from profiler.tracing.meta_run.observe import PEAK, Quantity
from profiler.tracing.meta_run.operation import Counted
from profiler.tracing.meta_run.target import TraceError, Variables, words

LONGEST = 60
"""Letters of a formula that is printed although it fails."""


@dataclass(frozen=True)
class Break:
    """Where a formula fails: the first size found, what it gives there and what was counted."""

    sizes: Mapping[str, int]
    formula: str
    gives: str
    counted: int

    def __str__(self) -> str:
        formula = self.formula if len(self.formula) <= LONGEST else "the one found"
        return (
            f"no formula: {formula} breaks at {words(self.sizes)}, where it gives "
            f"{self.gives} and {self.counted} was counted"
        )


@dataclass(frozen=True)
class Uncounted:
    """A dispatched operation without a counting rule: how often it runs, what it touches."""

    name: str
    phase: str
    calls: Poly | Break
    bytes_touched: Poly | Break


@dataclass(frozen=True)
class Trace:
    """Formulas of everything that one call of a module does, in the sizes `over`.

    `quantities` maps (part, kind) to an exact polynomial, or to where it breaks: parts are forward,
    backward (by class of operations), parameters, and bytes (activations, peak). `proven` are the
    sizes that formulas were held against and that did not go into them; `since` is the least size
    of each letter down to which they hold; bytes hold from `base` on. `backend` names the path that
    is assumed.
    """

    target: str
    backend: str
    variables: Variables
    quantities: Mapping[Quantity, Poly | Break]
    fitted: Sequence[Mapping[str, int]]
    proven: Sequence[Mapping[str, int]]
    since: Mapping[str, int]
    base: Mapping[str, int]
    within: Callable[..., Trace] = field(repr=False)
    """Traces the same module at sizes of a case, given its conditions and the divisions by whose
    letters these are written."""
    notes: Sequence[str] = ()
    decomposed: Sequence[str] = ()
    followed: Callable[[], Mapping[str, Poly | Break]] = field(default=dict, repr=False)
    """Finds `zeros`."""
    sample: Mapping[tuple[str, str], Counted] = field(default_factory=dict, repr=False)
    """Operations by phase and name at the first sizes."""
    flops: FlopCounter | None = None
    """What torch's FlopCounterMode prints at the first sizes, and what it leaves out."""
    region: Constraints = frozenset()
    """The case that it was traced in: each of these is at least 0."""
    divisions: Divisions = ()
    """The sizes that stand written by quotients and remainders, which the formulas are in."""

    def classes(self, phase: str) -> dict[str, Poly | Break]:
        """Class of operations -> formula, of `forward` or `backward`; the four first."""
        found = {kind: value for (part, kind), value in self.quantities.items() if part == phase}
        ordered = [*CLASSES, *sorted(found.keys() - set(CLASSES))]
        return {name: found.get(name, Poly()) for name in ordered}

    @property
    def forward(self) -> dict[str, Poly | Break]:
        """Operations of the forward pass by class."""
        return self.classes("forward")

    @property
    def backward(self) -> dict[str, Poly | Break]:
        """Operations of the backward pass by class."""
        return self.classes("backward")

    @cached_property
    def zeros(self) -> Mapping[str, Poly | Break]:
        """Class of operations -> formula of the part of the backward pass that is arithmetic with
        zeros which fill gradients up. Found when first asked for.

        Raises:
            TraceError: the pass cannot be followed entry by entry; one sentence.
        """
        return self.followed()

    @property
    def parameters(self) -> Poly | Break:
        """Numbers in the parameters."""
        return self.quantities.get(("parameters", ""), Poly())

    @property
    def activation_bytes(self) -> Poly | Break:
        """Bytes that the forward pass saves for the backward; parameters and buffers left out."""
        return self.quantities.get(("bytes", "activations"), Poly())

    @property
    def peak_bytes(self) -> Poly | Break:
        """Most bytes alive at once: parameters, buffers, inputs, gradients and all that is made;
        not what a kernel holds for itself while it runs."""
        return self.quantities.get(PEAK, Poly())

    @property
    def uncounted(self) -> tuple[Uncounted, ...]:
        """Every operation that has no rule, whose work is in no formula; what runs only below the
        sizes that formulas hold from is none."""
        return tuple(
            Uncounted(
                name,
                phase,
                self.quantities[f"{phase} calls", name],
                self.quantities.get((f"{phase} bytes", name), Poly()),
            )
            for phase in ("forward", "backward")
            for (part, name), calls in self.quantities.items()
            if part == f"{phase} calls" and calls != Poly()
        )

    @property
    def broken(self) -> dict[Quantity, Break]:
        """What no formula fits."""
        return {q: v for q, v in self.quantities.items() if isinstance(v, Break)}

    @property
    def complete(self) -> bool:
        """Whether every operation has a rule and everything has a formula."""
        return not self.uncounted and not self.broken

    def at(self, phase: str = "forward", **sizes: int) -> Operations:
        """Operations at given sizes of the letters in `over`.

        Raises:
            TraceError: something has no formula.
        """
        if broken := self.broken:
            raise TraceError(f"{self.target}: {next(iter(broken.values()))}")
        values = {
            name: poly.at(sizes)
            for name, poly in self.classes(phase).items()
            if isinstance(poly, Poly)
        }
        four = {name: values.pop(name, 0) for name in CLASSES}
        return Operations(**four, other=values)
