"""Which steps follow one another: a chain of them, and the longest one in words?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from costmodel.expressions import Array
from costmodel.polynomial import Poly

STEP_WORDS: Mapping[str, str] = {
    "mul": "multiplication",
    "sum": "cumulation",
    "add": "addition",
    "div": "division",
    "exp": "exponentiation",
    "max": "maximum",
    "compare": "comparison",
    "fft": "Fourier transform",
    "select": "selection",
}
"""How papers say a step; a function is called by its name."""


@dataclass(frozen=True)
class Step:
    """One step and the equation that it stands in."""

    name: str
    equation: str


@dataclass(frozen=True)
class Repeat:
    """Steps that follow each other `times` times: one row of a loop after the other."""

    times: Poly
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Chain:
    """A chain of steps with the levels that it takes in the worst case, and how many tie.

    `ties` is None where rows of a loop tie among themselves. While the rows of a loop are worked
    out, a chain holds the steps of one row; `origin` is the array of the row before that it goes
    on from, and `before` the whole chain to there.
    """

    steps: tuple[Step | Repeat, ...] = ()
    levels: Poly = Poly()
    ties: int | None = 1
    origin: Array | None = None
    before: Chain | None = None

    def then(self, equation: str, names: tuple[str, ...], levels: Poly) -> Chain:
        """The chain with steps at its end."""
        steps = self.steps + tuple([Step(name, equation) for name in names])
        return Chain(steps, self.levels + levels, self.ties, self.origin, self.before)

    @cached_property
    def length(self) -> Poly:
        """How many steps there are."""
        repeats = [step for step in self.steps if isinstance(step, Repeat)]
        length = Poly.of(len(self.steps) - len(repeats))
        for step in repeats:
            length = length + step.times * len(step.steps)
        return length + self.before.length if self.before else length

    @property
    def deepest(self) -> Poly:
        """The levels of the whole chain."""
        return self.levels + (self.before.deepest if self.before else Poly())

    @property
    def whole(self) -> Chain:
        """The chain from its very beginning."""
        if self.before is None:
            return self
        start = self.before.whole
        ties = None if start.ties is None or self.ties is None else start.ties * self.ties
        return Chain(start.steps + self.steps, self.deepest, ties)


@dataclass(frozen=True)
class CriticalPath:
    """The steps of the longest chain; `ties` counts the chains with as many steps, and is None
    where they branch in every row of a loop."""

    chain: Chain

    @property
    def steps(self) -> tuple[Any, ...]:
        """Step names (mul sum add div exp max compare, a function's name, fft, select); the rows of
        a loop are one entry {"times": "l - 1", "steps": [...]}."""
        return tuple(
            {"times": str(step.times), "steps": [s.name for s in step.steps]}
            if isinstance(step, Repeat)
            else step.name
            for step in self.chain.steps
        )

    @property
    def length(self) -> Poly:
        """How many steps the path has, rows of loops multiplied out."""
        return self.chain.length

    @property
    def places(self) -> tuple[tuple[str, str, str], ...]:
        """Every step with the equation in which it stands and how often it follows itself."""
        found: list[tuple[str, str, str]] = []
        for step in self.chain.steps:
            if isinstance(step, Repeat):
                found += [(s.name, s.equation, str(step.times)) for s in step.steps]
            else:
                found.append((step.name, step.equation, "1"))
        return tuple(found)

    @property
    def ties(self) -> int | None:
        """How many chains have as many steps."""
        return self.chain.ties

    @property
    def text(self) -> str:
        """The path in one line: `mul sum`, and `(l - 1)*[mul sum]` for rows of a loop."""
        return " ".join(
            f"({step['times']})*[{' '.join(step['steps'])}]" if isinstance(step, dict) else step
            for step in self.steps
        )

    @property
    def words(self) -> str:
        """The path as papers print it."""
        return " - ".join(
            f"{step['times']} times ({_in_words(step['steps'])})"
            if isinstance(step, dict)
            else _in_words([step])
            for step in self.steps
        )

    def _repr_latex_(self) -> str:
        return r"$\text{" + self.words.replace(" - ", " -- ") + "}$"


def _in_words(steps: Iterable[str]) -> str:
    return " - ".join(STEP_WORDS.get(name, name) for name in steps)
