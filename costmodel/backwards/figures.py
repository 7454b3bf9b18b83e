"""Which figures are asked backwards, in which phase, and by which formulas?"""

from __future__ import annotations

from collections.abc import Sequence

from costmodel.errors import Unanswered
from costmodel.program.phases import phase_name
from costmodel.questions.question import EVERY, Case, Figure, Largest
from costmodel.symbolic.piecewise import Exact


def phase_of(figures: Sequence[Figure], letter: str | None, phase: str | None) -> str:
    """The phase of a question about an open size: if none is given, inference for t, else the first
    phase that has all figures.

    Raises:
        Unanswered: a figure does not exist in the phase.
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


def terms_of(figure: Figure, case: Case) -> tuple[Exact, ...]:
    """The formulas of which a figure is the maximum at every size; one formula for a figure that is
    no maximum.

    Raises:
        Unanswered, Unsupported: the figure has no formula in the case.
    """
    found = case.answer(figure)
    terms = found.terms if isinstance(found, Largest) else (found,)
    exact = tuple(term for term in terms if isinstance(term, Exact))
    assert len(exact) == len(terms), f"{figure.name} is no number"
    return exact
