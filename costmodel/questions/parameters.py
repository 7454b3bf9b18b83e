"""How many trainable numbers does a mixer hold?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from costmodel.language.equations import Mixer
from costmodel.questions.question import (
    Answers,
    Case,
    Figure,
    Question,
    Sentence,
    Share,
    Tally,
    always,
    listed,
    over_parts,
)
from costmodel.questions.subject import about_mixer
from costmodel.symbolic.at_sizes import FITS, Amount, held_to
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Poly, sum_of
from costmodel.symbolic.sizes import checked


@dataclass(frozen=True)
class Parameters(Amount):
    """The number of elements of each parameter array; exact."""

    arrays: Mapping[str, Poly]
    """Array -> its elements; of a network, part -> the elements of its arrays."""
    tables: frozenset[str] = frozenset()
    """The names of a network's parts that are tables of embeddings."""

    @property
    def poly(self) -> Poly:
        """The total as a polynomial in sizes."""
        return sum_of(self.arrays.values())

    @property
    def alone(self) -> Exact:
        """The total as an exact sum."""
        return Exact.of(self.poly)

    @property
    def without_tables(self) -> Parameters:
        """The parameters without the embeddings of tokens, positions and segments."""
        kept = {name: poly for name, poly in self.arrays.items() if name not in self.tables}
        return held_to(Parameters(kept), getattr(self, FITS, checked))


@about_mixer
def parameters(mixer: Mixer) -> Parameters:
    """The number of a mixer's parameters, by array, as polynomials in the sizes: all that its
    module holds, read or not; `traffic` counts the weights that a phase reads.

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


def _of_parts(shares: Sequence[Share[Parameters]]) -> Parameters:
    """The parameters of a network, part -> number of entries, from the answers of its parts
    (`shares`, each with its number of sets of weights). A parameter that two parts have in common
    is counted at one of them."""
    found: dict[str, Poly] = {}
    for share in shares:
        own = sum_of(n for name, n in share.answer.arrays.items() if name not in share.elsewhere)
        elements = own.substitute(share.sizes) * share.copies
        found[share.name] = found.get(share.name, Poly()) + elements
    return Parameters(found)


@over_parts(_of_parts)
def parameters_of(about: Answers) -> Parameters:
    """The parameters of a mixer."""
    return parameters(about.mixer)


def _explained(case: Case) -> Iterator[Sentence]:
    """Yield one sentence with the elements of each parameter and of all, or that there are none."""
    found = case.about.of(parameters_of)
    if not found.poly.terms:
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
            lambda case: case.about.of(parameters_of).exact,
            varies=frozenset(),
            always=True,
            usual=always,
            claimed=True,
        ),
    ),
    parameters,
    (Tally("parameters", lambda about, sizes: about.of(parameters_of).poly.at(sizes)),),
    explained=_explained,
    place="introduction",
)
