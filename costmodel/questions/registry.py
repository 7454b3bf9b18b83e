"""Which questions are there? One list, which everything that shows, writes or proves answers reads.

A new question is a file beside this one, with its record, and a line in `QUESTIONS`.
"""

from __future__ import annotations

from collections.abc import Mapping

from costmodel.questions.activations import ACTIVATIONS
from costmodel.questions.count import COUNT
from costmodel.questions.critical_path import CRITICAL_PATH
from costmodel.questions.order import ORDER
from costmodel.questions.parameters import PARAMETERS
from costmodel.questions.path_length import PATH_LENGTH
from costmodel.questions.peak import PEAK
from costmodel.questions.question import Figure, Question
from costmodel.questions.ratios import INTENSITY, RATIO
from costmodel.questions.sequential import SEQUENTIAL
from costmodel.questions.span import SPAN
from costmodel.questions.state import STATE
from costmodel.questions.traffic import TRAFFIC

QUESTIONS: tuple[Question, ...] = (
    COUNT,
    RATIO,
    PARAMETERS,
    CRITICAL_PATH,
    SPAN,
    SEQUENTIAL,
    PATH_LENGTH,
    TRAFFIC,
    STATE,
    ACTIVATIONS,
    PEAK,
    INTENSITY,
    ORDER,
)
"""In the order of tables, of explanations and of proofs."""

FIGURES: Mapping[str, Figure] = {
    figure.name: figure for question in QUESTIONS for figure in question.figures
}
"""Name, as `--columns` takes it -> the figure."""

CLAIMED: Mapping[str, Figure] = {
    figure.claim: figure for question in QUESTIONS for figure in question.figures if figure.claim
}
"""The word of a claim -> the figure that it is about."""
