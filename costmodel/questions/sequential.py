"""How many sequential operations are there, as in Table 1 of Vaswani et al. 2017, but exact?

The number of steps of the critical path. A product, a sum over any number of terms, a transform and
a selection are one step each, a sigmoid three (exp, add, div). The number is constant if all tokens
are computed in parallel, and grows with l if each row needs the previous row.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Unpack

from costmodel.language.equations import Mixer, System
from costmodel.language.nodes import Along, Fft, Reduce, Scan, Select
from costmodel.language.rule_table import Rules
from costmodel.paths.longest_path import Depths
from costmodel.program.conventions import Convention
from costmodel.program.phases import IterationDomain
from costmodel.questions.question import Answers, Case, Figure, Question, Tally, over_parts
from costmodel.questions.span import RULES, Longest, along, longest, longest_in, longest_of, reduced
from costmodel.questions.subject import Training, about_mixer
from costmodel.symbolic.constraints import Constraints
from costmodel.symbolic.piecewise_max import Depth
from costmodel.symbolic.polynomial import Poly


def _one_step(
    steps: Depths, node: Reduce | Along | Select, part: IterationDomain, around: Constraints
) -> Depth:
    """A sum, transform, scan or selection is one step after its deepest term."""
    return reduced(steps, node, part, around, Poly.of(1))


STEPS: Rules[Callable[..., Depth]] = Rules(
    "sequential",
    {**RULES, Reduce: _one_step, Fft: _one_step, Scan: _one_step, Select: _one_step},
)
"""Kind of node -> its depth, in steps."""


@cache
def steps_of(system: System, phase: str) -> Depths:
    """The depths of a system's arrays in a phase, in steps."""
    return Depths(system, phase, STEPS)


@about_mixer
def sequential(
    mixer: Mixer,
    phase: str = "training",
    form: str | None = None,
    convention: str | tuple[str, ...] | Convention = "strict",
    **training: Unpack[Training],
) -> Longest:
    """The number of steps on the longest chain of dependent operations, where a sum of any number
    of terms is one step; an exact expression in the sizes.

    Args:
        phase, form, convention, training: as in `count`; "training" is the forward pass.

    Raises:
        Unanswered: inference of a form that has none.
        Unsupported: the length of the longest chain to an entry is not derived.

    Source: Vaswani et al. 2017, arXiv 1706.03762, section 4 and Table 1.

    >>> import costmodel as cm
    >>> cm.sequential(cm.mixer("she")).at(l=128)
    5
    """
    return longest(steps_of, mixer, phase, form, convention, training)


@over_parts(along, longest_of)
def _steps(about: Answers) -> Longest:
    return longest_in(steps_of, about)


def _searched(case: Case) -> int:
    """The number of steps at the case's sizes, found by visiting all entries, for mixers without a
    formula. Raises Unsupported if there are too many entries."""
    # imported here because it is only needed where no formula is derived
    from costmodel.paths.unrolled import deepest

    return deepest(case.about.system, case.phase, case.sizes, steps=True)


SEQUENTIAL = Question(
    "sequential",
    "Sequential operations",
    (
        Figure(
            "sequential",
            "steps that follow one another",
            lambda case: case.about.of(_steps).exact,
            header="sequential\noperations",
            claimed=True,
            search=_searched,
        ),
    ),
    sequential,
    (Tally("sequential operations", lambda about, sizes: about.of(_steps).at(**sizes)),),
)
