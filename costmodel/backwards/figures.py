"""Which figures are asked backwards, in which phase, and by which formulas?

A figure is a column of a table, such as `total` or `state`; a case is a row of it: a form of a
mixer with its phase and sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from costmodel.errors import Unanswered, Unsupported
from costmodel.program.phases import phase_name
from costmodel.questions.question import EVERY, Case, Figure, Largest
from costmodel.symbolic.cases import Quotient
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Poly
from costmodel.symbolic.ranges.solve import Quantity


def phase_of(figures: Sequence[Figure], letter: str | None, phase: str | None) -> str:
    """The phase of a question about the open size `letter`: the given one by its name or alias; if
    none is given, inference for t, else the first phase in which all figures exist.

    Raises:
        Unanswered: a figure does not exist in the phase. ValueError: an unknown phase.
    """
    if phase is None and letter == "t":
        phase = "inference"
    if phase is None:
        having = [x for x in EVERY if all(x in figure.phases for figure in figures)]
        phase = having[0] if having else figures[0].phases[0]
    phase = phase_name(phase)
    for figure in figures:
        if phase not in figure.phases:
            raise Unanswered(f"{figure.elsewhere}, not in {phase}")
    return phase


def usual_size(phase: str) -> str:
    """The size that is open in a phase if none is named: t in inference, else l."""
    return "t" if phase == "inference" else "l"


def quantity_of(figure: Figure, case: Case) -> Quantity:
    """A figure of a case for all sizes: a formula, the maximum of several, or a quotient.

    Raises:
        Unanswered, Unsupported: the figure has no formula in the case.
    """
    found = case.answer(figure)
    if isinstance(found, Largest):
        return Quantity(found.terms)
    if isinstance(found, Quotient):
        return Quantity((found.above,), found.below)
    if isinstance(found, (int, Fraction)):
        found = Exact.of(Poly.of(found))
    assert isinstance(found, Exact), f"{figure.name} is no number"
    return Quantity((found,))


def quantity_named(figure: Figure, case: Case, name: str) -> Quantity:
    """The figure of a case for all sizes, as `quantity_of` returns it, but every refusal is
    `Unanswered` and starts with `name`, the candidate's."""
    try:
        return quantity_of(figure, case)
    except (Unanswered, Unsupported) as reason:
        lead = f"no formula of {figure.name}: " if isinstance(reason, Unsupported) else ""
        raise Unanswered(f"{name}: {lead}{reason}") from None
