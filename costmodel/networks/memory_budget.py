"""How much memory does a training step of a network need, line by line?

The lines are parameters, their gradients, the optimiser's state, the activations kept for the
gradients, and the largest live set of a step at given sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from costmodel.errors import ModelError, Unanswered, Unsupported
from costmodel.networks.answers import answers_of
from costmodel.networks.live_set import largest_live_set
from costmodel.networks.network import Network
from costmodel.networks.part_costs import Counting
from costmodel.networks.training import gradient_elements, graph_of
from costmodel.program.element_types import element_bytes
from costmodel.questions.activations import Activations, activations_of
from costmodel.questions.peak import OPTIMISERS
from costmodel.questions.question import Missing
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Poly

BATCH = Poly.atom("b")

ROLES = ("parameters", "gradients", "optimiser", "activations")
"""What a training step holds, each with an element type of its own; `master` beside them is a
second copy of the parameters, in the type in which the optimiser changes them."""

MASTER = "master"


@dataclass(frozen=True)
class MemoryOptions:
    """The options of a training step that change its memory.

    Args:
        optimiser: one of `OPTIMISERS`.
        dtype: the type of elements without a type of their own; None: elements are counted, and no
            bytes.
        recompute: one of `RECOMPUTE`, or names of blocks, separated by commas; not checked here.
        precision: role of `ROLES`, or `master`, -> its element type.

    Raises:
        ModelError: an unknown optimiser, role or type, or types for some roles alone.
    """

    optimiser: str = "adamw"
    dtype: str | None = None
    recompute: str = "none"
    precision: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise ModelError for an unknown optimiser, role or element type, and for a role without
        a type where others have one."""
        if self.optimiser not in OPTIMISERS:
            known = ", ".join(OPTIMISERS)
            raise ModelError(f"--optimiser '{self.optimiser}': expected one of {known}")
        for role in self.precision:
            if role not in (*ROLES, MASTER):
                there = ", ".join((*ROLES, MASTER))
                raise ModelError(f"--precision '{role}': expected one of {there}")
        try:
            # each raises an error for an unknown or missing type
            _ = self.bytes_each, [self.bytes_of(role) for role in (*ROLES, *self.precision)]
        except ModelError:
            raise
        except ValueError as reason:
            option = "--precision" if self.precision else "--dtype"
            raise ModelError(f"{option}: {reason}") from None

    @property
    def bytes_each(self) -> int | None:
        """The size of an element in bytes; None without a type."""
        return None if self.dtype is None else element_bytes(self.dtype)

    def bytes_of(self, role: str) -> int | None:
        """The size of an element of a role in bytes; None without any type; ModelError for a role
        without a type where others have one."""
        if role in self.precision:
            return element_bytes(self.precision[role])
        if self.precision and self.dtype is None:
            raise ModelError(f"--precision says nothing of {role}: add {role}=TYPE, or --dtype")
        return self.bytes_each

    @property
    def types(self) -> str:
        """The element types in words; "" without any."""
        own = ", ".join(f"{role} {dtype}" for role, dtype in self.precision.items())
        return ", ".join(filter(None, (self.dtype, own)))


Number = Exact | int | Missing


@dataclass(frozen=True)
class MemoryLine:
    """One line of the budget: its name, its elements, notes for a reader, and its bytes where the
    element types are known."""

    name: str
    elements: Number
    says: tuple[str, ...] = ()
    bytes: Number | None = None

    def at(self, sizes: Mapping[str, int], *, settled: bool) -> MemoryLine:
        """The line with `sizes` put in: numbers if `settled`, that is, if these are all sizes; else
        formulas. What has no answer stays as it is."""
        held = None if self.bytes is None else _at(self.bytes, sizes, settled)
        return replace(self, elements=_at(self.elements, sizes, settled), bytes=held)


def _at(number: Number, sizes: Mapping[str, int], settled: bool) -> Number:
    """A formula with `sizes` put in: an integer if these are all its sizes (`settled`), else a
    formula in the others; a number that is no formula is returned as it is."""
    if not isinstance(number, Exact):
        return number
    if settled:
        return number.at(sizes)
    return number.substitute({letter: Poly.of(value) for letter, value in sizes.items()})


@dataclass(frozen=True)
class MemoryBudget:
    """The memory of a training step of a network; `sizes` is None where some are not numbers."""

    network: Network
    counting: Counting
    memory_options: MemoryOptions
    sizes: Mapping[str, int] | None

    def _attempt(self, question: Callable[[], Exact]) -> Exact | Missing:
        """What `question` returns, or the reason why it has no answer."""
        try:
            return question()
        except (Unanswered, Unsupported) as reason:
            return Missing(str(reason))

    @property
    def kept(self) -> Exact | Missing:
        """The activations kept for the gradients, of b sequences."""
        # of `costmodel model --replace`, another network may have the blocks that are named
        again = self.memory_options.recompute
        about = answers_of(self.network, "backward", self.counting, again)
        found: Activations | Missing = about.attempt(activations_of)
        return found if isinstance(found, Missing) else found.each * BATCH + found.alone

    @cached_property
    def parameters(self) -> Exact:
        """The number of parameters."""
        return self.network.parameters().exact

    @cached_property
    def gradients(self) -> Exact | Missing:
        """The entries of the parameters' gradients."""
        graph = graph_of(self.network, self.counting)
        return self._attempt(lambda: Exact.of(gradient_elements(graph)))

    @property
    def trained(self) -> Exact | Missing:
        """The parameters that a step changes: all, or those with a gradient if some are frozen."""
        return self.gradients if self.network.described.freezes else self.parameters

    @property
    def optimiser(self) -> Exact | Missing:
        """The elements of the optimiser's state, of the parameters that a step changes."""
        found = self.trained
        times = OPTIMISERS[self.memory_options.optimiser]
        return found if isinstance(found, Missing) else found * times

    @property
    def without_activations(self) -> Exact | Missing:
        """Parameters, their gradients and the optimiser's state together."""
        beside = _sum_or_missing(self.gradients, self.optimiser)
        return _sum_or_missing(self.parameters, beside)

    def _peak(self) -> tuple[Exact | Missing, str]:
        """The elements of the largest live set, and in words the event at which it is reached;
        (`Missing` with a reason, "") if sizes are open or gradients are not derived."""
        if self.sizes is None:
            return Missing("the largest live set needs a number for every size"), ""
        try:
            found = largest_live_set(
                graph_of(self.network, self.counting), self.sizes, self.memory_options.recompute
            )
        except (Unanswered, Unsupported) as reason:
            return Missing(str(reason)), ""
        return Exact.of(Poly.of(found.elements)), found.when

    def lines(self) -> tuple[MemoryLine, ...]:
        """The lines of the budget in elements and bytes: parameters, gradients, optimiser's state
        (a master copy, if `precision` has one), activations, their sum; then the largest live set
        (the most elements held at one time), alone and with all of these but activations."""
        most_held, when = self._peak()
        says = (
            f"largest live set: during the {when}, with the parts' equations run one after "
            f"another; the network's input, arrays between parts and their gradients are included"
        )
        options = self.memory_options
        parts = {
            "parameters": ("parameters", self.parameters),
            "gradients": ("their gradients", self.gradients),
            "optimiser": (f"state of the optimiser ({options.optimiser})", self.optimiser),
            **({MASTER: ("master copy", self.trained)} if MASTER in options.precision else {}),
        }
        lines = [self._line(name, number, role) for role, (name, number) in parts.items()]
        held = self._line("activations", self.kept, "activations")
        peak = self._line("largest live set", most_held, "activations", (says,) if when else ())
        with_peak = "with parameters, gradients and optimiser"
        together = _together("these together", [*lines, held])
        return (*lines, held, together, peak, _together(with_peak, [*lines, peak]))

    def _line(
        self, name: str, number: Exact | Missing, role: str, says: tuple[str, ...] = ()
    ) -> MemoryLine:
        """The budget's line `name` of `number` elements, in bytes too if the role (`parameters`,
        ...) has an element type; `says`: notes for a reader."""
        size = self.memory_options.bytes_of(role)
        held: Number | None = None if size is None else number
        if size is not None and isinstance(number, Exact):
            held = number * size
        return MemoryLine(name, number, says, held)


def _together(name: str, lines: Sequence[MemoryLine]) -> MemoryLine:
    """A line `name` with the sum of lines, in elements and in bytes; if a line has a reason in
    place of a number, the first such reason. Bytes are None if a line has none."""
    held = [line.bytes for line in lines]
    return MemoryLine(
        name,
        _sum([line.elements for line in lines]),
        bytes=None if None in held else _sum([number for number in held if number is not None]),
    )


def _sum(numbers: Sequence[Number]) -> Number:
    """The sum of integers or formulas as a formula, or the first that is `Missing` (a reason)."""
    result = Exact()
    for number in numbers:
        if isinstance(number, Missing):
            return number
        result = result + (number if isinstance(number, Exact) else Exact.of(Poly.of(number)))
    return result


def _sum_or_missing(one: Exact | Missing, two: Exact | Missing) -> Exact | Missing:
    if isinstance(one, Missing):
        return one
    return two if isinstance(two, Missing) else one + two
