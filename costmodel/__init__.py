"""What does a sequence mixer cost, derived from its equations?

import costmodel as cm
cm.count(cm.mixer("she"), phase="training").at(d=128, l=128).total
"""

from typing import TYPE_CHECKING

from costmodel.errors import EquationError, Unanswered
from costmodel.language.complex_numbers import (
    Complex,
    complex_,
    complex_pair,
    complex_sum,
    polar,
)
from costmodel.language.equations import Mixer
from costmodel.language.indices import max_, min_, union
from costmodel.language.macros.softmax import scaled, softmax
from costmodel.language.writing import (
    argmax,
    exp,
    fft,
    function,
    irfft,
    max_over,
    maximum,
    minimum,
    rfft,
    sort,
    sum_,
    top_k,
)
from costmodel.mixers.load import mixer
from costmodel.questions.activations import activations
from costmodel.questions.count import count
from costmodel.questions.critical_path import critical_path
from costmodel.questions.evaluate import evaluate, gradients
from costmodel.questions.order import order
from costmodel.questions.parameters import parameters
from costmodel.questions.path_length import path_length
from costmodel.questions.peak import peak
from costmodel.questions.sequential import sequential
from costmodel.questions.span import span
from costmodel.questions.state import state
from costmodel.questions.traffic import traffic

__all__ = [
    "Complex",
    "EquationError",
    "Mixer",
    "Unanswered",
    "activations",
    "argmax",
    "complex_",
    "complex_pair",
    "complex_sum",
    "count",
    "critical_path",
    "evaluate",
    "exp",
    "fft",
    "function",
    "gradients",
    "irfft",
    "max_",
    "max_over",
    "maximum",
    "min_",
    "minimum",
    "mixer",
    "order",
    "parameters",
    "path_length",
    "peak",
    "polar",
    "rfft",
    "scaled",
    "sequential",
    "softmax",
    "sort",
    "span",
    "state",
    "sum_",
    "top_k",
    "traffic",
    "union",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """A question that the registry lists and that stands in no line above."""
        from costmodel.questions.registry import QUESTIONS

        for question in QUESTIONS:
            if question.name == name and question.ask is not None:
                return question.ask
        raise AttributeError(f"module 'costmodel' has no attribute '{name}'")
