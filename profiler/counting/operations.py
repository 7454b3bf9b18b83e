"""Numbers of scalar operations by class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec.structs import force_setattr

from costmodel.language.functions import CLASSES, TABLE
from profiler.records.schema import Record

UNSEEN = "what is calculated without a tensor, from sizes and constants, is not seen"
"""The limit of every count by dispatch."""

ZERO_GRADIENTS = (
    "arithmetic with zeros that pad the gradients of slices, which the equations leave out"
)
"""The meaning of the cause `zeros` in a reconciliation."""

CONSTANTS = (
    "operations on constants of the sizes (as torch.arange makes them; a buffer would hold the "
    "results)"
)
"""The meaning of the cause `constants` in a reconciliation."""


class Operations(Record, frozen=True):
    """Exact numbers of scalar operations; `other` by name (compare, sqrt, tanh, ...).

    A subtraction is an add; unary minus is free; zero entries of `other` are dropped, so that
    equal counts compare equal.

    >>> Operations(mul=2) + Operations(mul=1, add=4) * 3
    Operations(mul=5, add=12, div=0, exp=0, other={})
    """

    mul: int = 0
    add: int = 0
    div: int = 0
    exp: int = 0
    other: Mapping[str, int] = {}

    def __post_init__(self) -> None:
        """Drop zeros from `other`; ValueError for a count that is negative or no integer."""
        counts = (self.mul, self.add, self.div, self.exp, *self.other.values())
        for n in counts:
            if not isinstance(n, int) or n < 0:
                raise ValueError(f"operations are non-negative integers, got {counts}")
        if self.other:
            named = {name: n for name, n in sorted(self.other.items()) if n}
            force_setattr(self, "other", named)

    def __add__(self, more: Operations) -> Operations:
        """The sum of two numbers of operations, class by class; `NOTHING` is the zero."""
        if more is NOTHING:
            return self
        names = self.other.keys() | more.other.keys()
        return Operations(
            self.mul + more.mul,
            self.add + more.add,
            self.div + more.div,
            self.exp + more.exp,
            {name: self.other.get(name, 0) + more.other.get(name, 0) for name in names},
        )

    def __mul__(self, times: int) -> Operations:
        """A copy in which the number of each class is multiplied by `times`."""
        return Operations(
            self.mul * times,
            self.add * times,
            self.div * times,
            self.exp * times,
            {name: n * times for name, n in self.other.items()},
        )

    @property
    def total(self) -> int:
        """All classes together, each operation 1."""
        return self.mul + self.add + self.div + self.exp + sum(self.other.values())


NOTHING = Operations()


COMPARE = Operations(other={"compare": 1})


def named_operation(name: str) -> Operations:
    """One operation that has no class of its own, by name."""
    return Operations(other={name: 1})


def operations_of_steps(steps: Iterable[str]) -> Operations:
    """Count steps, each named by the class of its operation.

    >>> operations_of_steps(("mul", "erf", "mul"))
    Operations(mul=2, add=0, div=0, exp=0, other={'erf': 1})
    """
    number = Counter(steps)
    named = {step: n for step, n in number.items() if step not in CLASSES}
    return Operations(number["mul"], number["add"], number["div"], number["exp"], named)


FUNCTIONS: Mapping[str, Operations] = {
    **{function.name: operations_of_steps(function.steps) for function in TABLE.values()},
    "neg": NOTHING,
    "expm1": operations_of_steps(("exp", "add")),
    "reciprocal": operations_of_steps(("div",)),
    "log1p": operations_of_steps(("add", "log")),
    "floor": named_operation("floor"),
    "abs": COMPARE,
    "square": operations_of_steps(("mul",)),
    "elu": operations_of_steps(("exp", "add", "compare")),
    "gelu-tanh": Operations(mul=6, add=2, other={"tanh": 1}),
}
"""Operations of one application to one real number: first the functions that equations share, then
those that only torch has. elu gives x above 0 and exp(x) - 1 elsewhere, both computed everywhere;
gelu-tanh is x * 0.5 * (1 + tanh(c * (x + c' * x*x*x))), Hendrycks and Gimpel 2016."""


OTHER = "other"
"""The name of all classes without a column of their own taken together."""


Classes = dict[str, int]
"""Class -> number of operations; the keys include the names in `Operations.other`."""
