"""The record `Counts`: operations by class, as expressions in the sizes and at given sizes.

A class is mul, add, div, exp, or any other operation by its name (sqrt). A *peer* is the counter of
another tool, such as torch's, which counts some classes only.
`WEIGHTINGS` are the ways to add up operations of several classes to one number, such as papers
print as "FLOPs"; the default, `total`, counts every operation 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from costmodel.errors import Unanswered
from costmodel.language.functions import CLASSES
from costmodel.program.conventions import PEERS
from costmodel.symbolic.at_sizes import at_sizes, exact_sum, nonzero
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Poly
from costmodel.symbolic.sympy_form import Symbolic

if TYPE_CHECKING:
    import sympy


def require_counted(name: str, peer: str | None) -> None:
    """Raise Unanswered for a class that a peer does not count: its count is unknown, not 0."""
    if peer is not None and name not in PEERS[peer].counted:
        raise Unanswered(f"{peer} does not count {PEERS[peer].words(name)}")


@dataclass(frozen=True)
class CountsAt:
    """Operations at given sizes: `.mul .add .div .exp`, `.other` by name, `.once` (the work on
    parameters alone), `.total`. A class of the four that the counter `peer` does not count raises
    Unanswered."""

    classes: Mapping[str, int]
    once: CountsAt | None = None
    peer: str | None = None

    def _of(self, name: str) -> int:
        """The operations of one class; 0 for a class that does not occur."""
        require_counted(name, self.peer)
        return self.classes.get(name, 0)

    @property
    def mul(self) -> int:
        """Multiplications."""
        return self._of("mul")

    @property
    def add(self) -> int:
        """Additions and subtractions."""
        return self._of("add")

    @property
    def div(self) -> int:
        """Divisions."""
        return self._of("div")

    @property
    def exp(self) -> int:
        """Exponentiations."""
        return self._of("exp")

    @property
    def other(self) -> dict[str, int]:
        """The operations outside of the four classes, by name; zeros left out."""
        return {c: n for c, n in self.classes.items() if c not in CLASSES and nonzero(n)}

    @property
    def total(self) -> int:
        """All operations, each counted 1, including work on parameters alone."""
        return exact_sum([*self.classes.values(), self.once.total if self.once else 0])

    def by_class(self) -> dict[str, int]:
        """Class -> operations, without `once`: mul, add, div and exp even if 0 (of a peer, the
        classes that it counts), other classes if not 0."""
        four = CLASSES if self.peer is None else PEERS[self.peer].counted
        return {c: self.classes.get(c, 0) for c in four} | self.other


def with_once(counts: CountsAt) -> dict[str, int]:
    """Class -> operations, with work on parameters alone added to its class; zeros left out."""
    total = Counter(counts.by_class())
    if counts.once:
        total.update(counts.once.by_class())
    return {name: number for name, number in sorted(total.items()) if number}


@dataclass(frozen=True)
class Counts(Symbolic):
    """Operations by class. `.mul .add .div .exp` and `.total` are sympy expressions.

    `classes` holds the work that depends on the input, for one sequence. `once` holds the work on
    parameters alone, in a record whose own `once` is None. `.total` includes `once`.
    """

    classes: Mapping[str, Exact]
    once: Counts | None = None
    peer: str | None = None
    """The other tool whose count this is; None for the count of this project."""
    joined: Exact = Exact()
    """The entries that are summed over a batch (gradients of weights): each takes b - 1 additions
    besides the work of b sequences."""

    def exact(self, name: str) -> Exact:
        """The operations of one class, exact; Unanswered if the peer does not count the class."""
        require_counted(name, self.peer)
        return self.classes.get(name, Exact())

    @property
    def mul(self) -> sympy.Expr:
        """Multiplications."""
        return self.exact("mul").expr

    @property
    def add(self) -> sympy.Expr:
        """Additions and subtractions."""
        return self.exact("add").expr

    @property
    def div(self) -> sympy.Expr:
        """Divisions."""
        return self.exact("div").expr

    @property
    def exp(self) -> sympy.Expr:
        """Exponentiations."""
        return self.exact("exp").expr

    @property
    def other(self) -> dict[str, sympy.Expr]:
        """The operations outside of the four classes, by name."""
        return {c: e.expr for c, e in self.classes.items() if c not in CLASSES}

    @property
    def exact_total(self) -> Exact:
        """The number of all operations, each with weight 1, work on parameters alone included;
        exact in the sizes."""
        result = Exact()
        for value in self.classes.values():
            result = result + value
        return result + (self.once.exact_total if self.once else Exact())

    @property
    def total(self) -> sympy.Expr:
        """All operations, each counted 1, including work on parameters alone."""
        return self.exact_total.expr

    @property
    def expr(self) -> sympy.Expr:
        """The total."""
        return self.total

    def _repr_latex_(self) -> str:
        """LaTeX for notebooks: a line for each class of operations, for each class of `once` (work
        on parameters alone), and the total of all these lines."""
        import sympy

        lines = [(name, exact.expr) for name, exact in self.classes.items()]
        if self.once is not None:
            lines += [(f"{name}, once", exact.expr) for name, exact in self.once.classes.items()]
        lines.append(("total", self.total))
        body = r" \\ ".join(rf"\text{{{name}}} &= {sympy.latex(e)}" for name, e in lines)
        return rf"$\begin{{aligned}} {body} \end{{aligned}}$"

    @at_sizes
    def at(self, *, b: int = 1, **sizes: int) -> CountsAt:  # type: ignore[override]  # no single int
        """The operations at given sizes, for `b` sequences; work on parameters alone (`once`) is
        not multiplied by b. Gradients of weights are summed over the sequences: b - 1 additions per
        entry."""
        values = {c: e.at(sizes) * b for c, e in self.classes.items()}
        if joins := (b - 1) * self.joined.at(sizes):
            values["add"] = values.get("add", 0) + joins
        once = self.once.at(**sizes) if self.once else None
        return CountsAt(values, once, self.peer)

    def scaled(self, sizes: Mapping[str, Poly], times: Poly, once: Poly) -> Counts:
        """The counts of a part of a network that runs `times` times and has `once` sets of
        parameters, with `sizes` in place of letters: work on parameters alone is multiplied by
        `once`, all else by `times`. Classes without operations are left out."""
        found = {c: v.substitute(sizes) * times for c, v in self.classes.items()}
        apart = None if self.once is None else self.once.scaled(sizes, once, once)
        kept = {c: v for c, v in found.items() if not v.is_zero}
        return Counts(kept, apart, self.peer, self.joined.substitute(sizes) * times)

    def __add__(self, other: Counts) -> Counts:
        once = self.once + other.once if self.once and other.once else self.once or other.once
        joined = self.joined + other.joined
        return Counts(_merged(self.classes, other.classes), once, joined=joined)


def _merged(first: Mapping[str, Exact], second: Mapping[str, Exact]) -> dict[str, Exact]:
    """Class -> the sum of two counts; zeros left out."""
    merged = dict(first)
    for name, value in second.items():
        merged[name] = merged[name] + value if name in merged else value
    return {name: value for name, value in merged.items() if not value.is_zero}


@dataclass(frozen=True)
class Weighting:
    """A named weighted sum of operations: the weight of each class, `rest` for other classes."""

    name: str
    meaning: str
    weights: Mapping[str, int]
    rest: int = 0

    def of(self, name: str) -> int:
        """The weight of an operation of this class."""
        return self.weights.get(name, self.rest)


WEIGHTINGS: Mapping[str, Weighting] = {
    w.name: w
    for w in (
        Weighting("total", "every operation counts 1", {}, rest=1),
        Weighting("2*mul", "2 per multiplication (a multiply-add), nothing else", {"mul": 2}),
        Weighting("mul only", "1 per multiplication (a multiply-add), nothing else", {"mul": 1}),
        Weighting("mul + add", "multiplications and additions only", {"mul": 1, "add": 1}),
        Weighting(
            "mul + add + div + exp",
            "no comparisons, square roots or other operations outside the four classes",
            dict.fromkeys(CLASSES, 1),
        ),
    )
}
"""Name -> weighting; the first is the default."""
