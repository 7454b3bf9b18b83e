"""How may operations of several classes be added up to one number?

A "FLOP" is no operation but a way of adding up: the default, `total`, counts every operation 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from costmodel.functions import CLASSES


@dataclass(frozen=True)
class Weighting:
    """A named sum: how often one operation of each class counts; `rest` for every other class."""

    name: str
    meaning: str
    weights: Mapping[str, int]
    rest: int = 0

    def of(self, name: str) -> int:
        """How often an operation of this class counts."""
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
"""The first is the default."""
