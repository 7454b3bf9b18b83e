"""The result of a trace: formulas, the sizes for which they hold, and what has no formula."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from costmodel.errors import shortened
from costmodel.language.functions import CLASSES
from costmodel.symbolic.constraints import Constraints
from costmodel.symbolic.polynomial import Number, Poly
from costmodel.symbolic.printing import conditions_words
from costmodel.symbolic.sizes import whole_number
from profiler.counting.operations import Operations
from profiler.tracing.divisions import Divisions
from profiler.tracing.meta_run.flop_counter import FlopCounter
from profiler.tracing.meta_run.observe import PEAK, Quantity
from profiler.tracing.meta_run.operation import CountedOperation, TracedTensor
from profiler.tracing.meta_run.target import TraceError, Variables, listed_sizes

LONGEST = 60
"""The largest number of characters of a failing formula that is printed."""


@dataclass(frozen=True)
class Break:
    """The failure of a formula: the sizes, the formula's value there, and the counted value."""

    sizes: Mapping[str, int]
    formula: str
    gives: str
    counted: int

    def __str__(self) -> str:
        """A sentence: where the formula fails, with its value there and the counted number."""
        formula = self.formula if len(self.formula) <= LONGEST else "the one found"
        return (
            f"no formula: {formula} breaks at {listed_sizes(self.sizes)}, where it gives "
            f"{self.gives} and {self.counted} was counted"
        )


@dataclass(frozen=True)
class Cases:
    """A formula by cases, pairs (conditions, polynomial): the polynomial holds at the sizes at
    which its conditions, also polynomials, are all at least 0."""

    pieces: tuple[tuple[Constraints, Poly], ...]

    def formula_at(self, sizes: Mapping[str, int]) -> Poly:
        """The polynomial that holds at integer sizes; TraceError if the sizes lie in no case."""
        for region, poly in self.pieces:
            if all(condition.rational(sizes) >= 0 for condition in region):
                return poly
        regions = "; ".join(conditions_words(region) for region, _ in self.pieces)
        raise TraceError(f"{listed_sizes(sizes)} is in none of the formula's cases: {regions}")

    def rational(self, sizes: Mapping[str, int]) -> Number:
        """The exact value at integer sizes; TraceError if the sizes lie in no case."""
        return self.formula_at(sizes).rational(sizes)

    def at(self, sizes: Mapping[str, int]) -> int:
        """The value at integer sizes; TraceError in no case, ValueError if it is not whole."""
        return self.formula_at(sizes).at(sizes)

    def __str__(self) -> str:
        return "; ".join(f"{poly} where {conditions_words(r)}" for r, poly in self.pieces)


Value = Poly | Cases | Break
"""A formula, a formula by cases, or the failure of the best formula."""


@dataclass(frozen=True)
class ZeroArithmetic:
    """The operations of a backward pass on zeros that pad gradients, by class.

    `untested` are sizes at which the whole pass is proven, but this part is not tested.
    """

    formulas: Mapping[str, Value] = field(default_factory=dict)
    untested: Sequence[Mapping[str, int]] = ()


@dataclass(frozen=True)
class Uncounted:
    """A dispatched operation without a counting rule: its calls and the bytes that it touches."""

    name: str
    phase: str
    calls: Value
    bytes_touched: Value


@dataclass(frozen=True)
class Trace:
    """The formulas of one call of a module, in the sizes `over`.

    `quantities` maps (part, kind) to an exact polynomial, or to the polynomial's failure; the parts
    are forward and backward (by class of operations), parameters, bytes (activations, peak), and
    `forward calls`, `forward bytes` (by name) of operations without a counting rule. `fitted` are
    the sizes from which formulas were found, `proven` others at which they were tested. `since` is
    the least size of each letter from which formulas of operations and parameters hold; formulas of
    bytes hold from `base` on. `backend` names the assumed path through torch, `decomposed` the
    operations counted by torch's decompositions; `notes` are sentences for the user.
    """

    target: str
    backend: str
    variables: Variables
    quantities: Mapping[Quantity, Value]
    fitted: Sequence[Mapping[str, int]]
    proven: Sequence[Mapping[str, int]]
    since: Mapping[str, int]
    base: Mapping[str, int]
    within: Callable[..., Trace] = field(repr=False)
    """Traces the same module in a case: arguments are the conditions of the case, and the divisions
    in whose letters the conditions are written."""
    boundaries: Sequence[Poly] = ()
    """Polynomials whose sign the module's code tests: at sizes of another sign it may behave
    differently."""
    doubts: Sequence[str] = ()
    """Reasons why formulas that agree with every run may fail at sizes without a run."""
    notes: Sequence[str] = ()
    decomposed: Sequence[str] = ()
    followed: Callable[[], ZeroArithmetic] = field(default=ZeroArithmetic, repr=False)
    """Computes `zeros`."""
    sample: Mapping[tuple[str, str], CountedOperation] = field(default_factory=dict, repr=False)
    """Operations by phase and name, at the first sizes."""
    at_peak: Sequence[TracedTensor] = ()
    """The tensors that are alive at the peak, at the sizes `peak_sizes`."""
    peak_sizes: Mapping[str, int] = field(default_factory=dict)
    flops: FlopCounter | None = None
    """The figures of torch's FlopCounterMode at the first sizes, and the operations it omits."""
    differentiated: frozenset[str] = frozenset()
    """Which gradients the backward pass computes: of `parameters`, `inputs`, both or none."""
    grad: str | None = None
    """Which gradients were asked for: `parameters`, `inputs`, `both` or `none`; None: those that
    the module's tensors require."""
    modes: frozenset[str] = frozenset()
    """The modes of the layers: `train`, `eval` or both."""
    steps: Mapping[str, int] = field(default_factory=dict)
    """Letter in `over` -> the number at whose multiples the module was run."""
    multiple_of: Mapping[str, str] = field(default_factory=dict)
    """Letter -> another letter, at whose multiples alone the module runs."""
    region: Constraints = frozenset()
    """The conditions of the case that was traced: each polynomial is at least 0. Empty for all
    sizes."""
    memory: bool = True
    """Whether formulas of bytes were sought."""
    divisions: Divisions = ()
    """The divisions of sizes by quotient and remainder; formulas are in their letters."""

    def classes(self, phase: str) -> dict[str, Value]:
        """A dict: class of operations -> formula, for the phase `forward` or `backward`; mul, add,
        div, exp first. Raises TraceError: another phase."""
        if phase not in ("forward", "backward"):
            raise TraceError(f"'{phase}' is no pass of a trace: expected forward or backward")
        found = {kind: value for (part, kind), value in self.quantities.items() if part == phase}
        ordered = [*CLASSES, *sorted(found.keys() - set(CLASSES))]
        return {name: found.get(name, Poly()) for name in ordered}

    @property
    def forward(self) -> dict[str, Value]:
        """Operations of the forward pass by class."""
        return self.classes("forward")

    @property
    def backward(self) -> dict[str, Value]:
        """Operations of the backward pass by class."""
        return self.classes("backward")

    @cached_property
    def zeros(self) -> ZeroArithmetic:
        """Formulas of the operations that the backward pass spends on zeros that pad gradients,
        found at the first request. TraceError: the pass cannot be followed entry by entry."""
        return self.followed()

    @property
    def parameters(self) -> Value:
        """The number of entries of all parameters, including frozen ones."""
        return self.quantities.get(("parameters", ""), Poly())

    @property
    def frozen(self) -> Value:
        """The number of entries of the parameters that the factory made without `requires_grad`."""
        return self.quantities.get(("parameters", "frozen"), Poly())

    @property
    def activation_bytes(self) -> Value:
        """Bytes that the forward pass saves for the backward, without parameters and buffers.
        TraceError: bytes were not sought."""
        return self._of_bytes(("bytes", "activations"))

    @property
    def peak_bytes(self) -> Value:
        """The most bytes alive at once: parameters, buffers, inputs, gradients and all results,
        without memory that a kernel allocates for itself. TraceError: bytes were not sought."""
        return self._of_bytes(PEAK)

    def _of_bytes(self, quantity: Quantity) -> Value:
        """A quantity of bytes, 0 if the module holds none; TraceError if no bytes were sought."""
        if not self.memory:
            raise TraceError("bytes were not traced: call trace with memory=True")
        return self.quantities.get(quantity, Poly())

    @property
    def uncounted(self) -> tuple[Uncounted, ...]:
        """Every operation without a counting rule, whose work is in no formula. Left out is one
        whose formula of calls is 0: it runs only below the sizes from which formulas hold."""
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
        """A dict: quantity -> the failure of its best formula, for quantities without a formula."""
        return {q: v for q, v in self.quantities.items() if isinstance(v, Break)}

    @property
    def complete(self) -> bool:
        """Whether every operation has a counting rule and every quantity a formula."""
        return not self.uncounted and not self.broken

    def sizes(self, text: str) -> dict[str, int]:
        """Parse --at: letter -> size from a text such as `d=128,l=256`, one for each letter in
        `over`. Raises TraceError: a letter is missing, unknown or given twice, a size is no number,
        or the formulas do not hold there. `d=128,l=256`: {"d": 128, "l": 256}."""
        found: dict[str, int] = {}
        for entry in text.split(","):
            letter, _, typed = (part.strip() for part in entry.partition("="))
            number = whole_number(typed)
            if letter not in self.variables.over or letter in found or number is None:
                raise TraceError(
                    f"--at {shortened(entry)}: expected each of {', '.join(self.variables.over)} "
                    f"once, as in --at {listed_sizes(self.base).replace(' ', '')}"
                )
            found[letter] = number
            step, least = self.steps.get(letter, 1), self.since.get(letter, 1)
            if found[letter] % step or found[letter] < least:
                times = f"for multiples of {step} " if step > 1 else ""
                raise TraceError(f"--at {entry}: the formulas hold {times}from {letter}={least} on")
        if missing := [letter for letter in self.variables.over if letter not in found]:
            raise TraceError(f"--at {text}: give {', '.join(missing)}, too")
        for letter, divisor in self.multiple_of.items():
            if found[letter] % found[divisor]:
                raise TraceError(f"--at {text}: {letter} must be a multiple of {divisor}")
        return found

    def at(self, phase: str = "forward", **sizes: int) -> Operations:
        """The numbers of operations of a phase by class, at a size of each letter in `over` (a
        SizeError names a missing one) from `since` on, which is not tested here. Raises TraceError:
        `phase` is neither forward nor backward, one of its classes of operations has no formula, or
        the sizes lie in no case."""
        for (part, _), broken in self.broken.items():
            if part == phase:
                raise TraceError(f"{self.target}: {broken}")
        values = {
            name: poly.at(sizes)
            for name, poly in self.classes(phase).items()
            if not isinstance(poly, Break)
        }
        four = {name: values.pop(name, 0) for name in CLASSES}
        return Operations(**four, other=values)
