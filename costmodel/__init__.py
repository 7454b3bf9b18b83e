"""What does a sequence mixer cost, derived from its equations?

import costmodel as cm
cm.count(cm.mixer("she"), phase="training").at(d=128, l=128).total
"""

from costmodel.composites import scaled, softmax
from costmodel.equations import Mixer
from costmodel.indices import EquationError, max_, min_, union
from costmodel.load import mixer
from costmodel.phases import Unanswered
from costmodel.rules.activations import activations
from costmodel.rules.count import count
from costmodel.rules.critical_path import critical_path
from costmodel.rules.evaluate import evaluate, gradients
from costmodel.rules.order import order
from costmodel.rules.parameters import parameters
from costmodel.rules.path_length import path_length
from costmodel.rules.peak import peak
from costmodel.rules.sequential import sequential
from costmodel.rules.span import span
from costmodel.rules.state import state
from costmodel.rules.traffic import traffic
from costmodel.writing import argmax, exp, function, irfft, max_over, rfft, sort, sum_, top_k

__all__ = [
    "EquationError",
    "Mixer",
    "Unanswered",
    "activations",
    "argmax",
    "count",
    "critical_path",
    "evaluate",
    "exp",
    "function",
    "gradients",
    "irfft",
    "max_",
    "max_over",
    "min_",
    "mixer",
    "order",
    "parameters",
    "path_length",
    "peak",
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
