"""The list of all questions, which tables, explanations, claims, exports and proofs read.

To add a question, write its file with its record in this folder, and add a line to `QUESTIONS`.
"""

from __future__ import annotations

from collections.abc import Mapping

from costmodel.questions.activations import ACTIVATIONS
from costmodel.questions.best_size import BEST_SIZE
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
    BEST_SIZE,
)
"""All questions, in the order in which tables, explanations and proofs show them."""

FIGURES: Mapping[str, Figure] = {
    figure.name: figure for question in QUESTIONS for figure in question.figures
}
"""Name of a figure in `--columns` -> the figure."""

CLAIMED: Mapping[str, Figure] = {
    figure.claim: figure for question in QUESTIONS for figure in question.figures if figure.claim
}
"""Name of a quantity in claims -> the figure."""
