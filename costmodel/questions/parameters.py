"""How many trainable numbers does a mixer hold?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from costmodel.language.equations import Mixer
from costmodel.questions.question import (
    Answers,
    Case,
    Figure,
    Question,
    Sentence,
    Tally,
    always,
    listed,
)
from costmodel.questions.subject import about_mixer
from costmodel.symbolic.at_sizes import Amount
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Poly, sum_of


@dataclass(frozen=True)
class Parameters(Amount):
    """The number of elements of each parameter array; exact."""

    arrays: Mapping[str, Poly]

    @property
    def poly(self) -> Poly:
        """The total as a polynomial in sizes."""
        return sum_of(self.arrays.values())

    @property
    def alone(self) -> Exact:
        """The total as an exact sum."""
        return Exact.of(self.poly)


@about_mixer
def parameters(mixer: Mixer) -> Parameters:
    """Count a mixer's parameters.

    >>> import costmodel as cm
    >>> cm.parameters(cm.mixer("me")).at(l=128)
    128
    """
    found: dict[str, Poly] = {}
    for array in mixer.parameters:
        entries = Poly.of(1)
        for extent in array.shape:
            entries = entries * extent
        found[array.name] = entries
    return Parameters(found)


def _all(about: Answers) -> Exact:
    return Exact.of(parameters(about.mixer).poly)


def _explained(case: Case) -> Iterator[Sentence]:
    """One sentence with the elements of each parameter and of all, or that there are none."""
    found = parameters(case.mixer)
    if not found.arrays:
        yield Sentence(("Parameters: none.",))
        return
    number = f" = {found.poly.at(case.sizes):,} numbers."
    yield Sentence(("Parameters: ", *listed(found.arrays), "; in all ", found.poly, number))


PARAMETERS = Question(
    "parameters",
    "Parameters",
    (
        Figure(
            "parameters",
            "trainable numbers",
            lambda case: case.about.of(_all),
            varies=frozenset(),
            always=True,
            usual=always,
            claimed=True,
        ),
    ),
    parameters,
    (Tally("parameters", lambda about, sizes: about.of(_all).at(sizes)),),
    explained=_explained,
    place="introduction",
)
