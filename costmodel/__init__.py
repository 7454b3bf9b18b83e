"""What does a sequence mixer cost, derived from its equations?

import costmodel as cm
cm.count(cm.mixer("she"), phase="training").at(d=128, l=128).total

A name is imported from its file when it is first asked for, so that importing the package costs
nothing.
"""

from typing import TYPE_CHECKING

__all__: list[str]

if TYPE_CHECKING:
    from costmodel.errors import EquationError as EquationError, Unanswered as Unanswered
    from costmodel.language.complex_numbers import (
        Complex as Complex,
        complex_ as complex_,
        complex_pair as complex_pair,
        complex_sum as complex_sum,
        polar as polar,
    )
    from costmodel.language.equations import Mixer as Mixer
    from costmodel.language.indices import max_ as max_, min_ as min_, union as union
    from costmodel.language.macros.softmax import scaled as scaled, softmax as softmax
    from costmodel.language.writing import (
        argmax as argmax,
        exp as exp,
        fft as fft,
        function as function,
        irfft as irfft,
        max_over as max_over,
        maximum as maximum,
        minimum as minimum,
        rfft as rfft,
        sort as sort,
        sum_ as sum_,
        top_k as top_k,
    )
    from costmodel.mixers.load import mixer as mixer
    from costmodel.questions.activations import activations as activations
    from costmodel.questions.count import count as count
    from costmodel.questions.critical_path import critical_path as critical_path
    from costmodel.questions.evaluate import evaluate as evaluate, gradients as gradients
    from costmodel.questions.order import order as order
    from costmodel.questions.parameters import parameters as parameters
    from costmodel.questions.path_length import path_length as path_length
    from costmodel.questions.peak import peak as peak
    from costmodel.questions.sequential import sequential as sequential
    from costmodel.questions.span import span as span
    from costmodel.questions.state import state as state
    from costmodel.questions.traffic import traffic as traffic

if not TYPE_CHECKING:
    PLACES = {
        "costmodel.errors": "EquationError Unanswered",
        "costmodel.language.complex_numbers": "Complex complex_ complex_pair complex_sum polar",
        "costmodel.language.equations": "Mixer",
        "costmodel.language.indices": "max_ min_ union",
        "costmodel.language.macros.softmax": "scaled softmax",
        "costmodel.language.writing": "argmax exp fft function irfft max_over maximum minimum"
        " rfft sort sum_ top_k",
        "costmodel.mixers.load": "mixer",
        "costmodel.questions.activations": "activations",
        "costmodel.questions.count": "count",
        "costmodel.questions.critical_path": "critical_path",
        "costmodel.questions.evaluate": "evaluate gradients",
        "costmodel.questions.order": "order",
        "costmodel.questions.parameters": "parameters",
        "costmodel.questions.path_length": "path_length",
        "costmodel.questions.peak": "peak",
        "costmodel.questions.sequential": "sequential",
        "costmodel.questions.span": "span",
        "costmodel.questions.state": "state",
        "costmodel.questions.traffic": "traffic",
    }
    """File -> the names that the package has of it."""

    __all__ = [name for names in PLACES.values() for name in names.split()]

    def __getattr__(name: str) -> object:
        """A name of `__all__`, or a question that the registry lists."""
        from importlib import import_module

        for place, names in PLACES.items():
            if name in names.split():
                globals()[name] = getattr(import_module(place), name)
                return globals()[name]
        if name.startswith("_"):
            raise AttributeError(f"module 'costmodel' has no attribute '{name}'")
        from costmodel.questions.registry import QUESTIONS

        for question in QUESTIONS:
            if question.name == name and question.ask is not None:
                return question.ask
        import sys
        from difflib import get_close_matches

        near = get_close_matches(name, __dir__(), 1)
        hint = f": did you mean '{near[0]}'?" if near else ""
        said = f"module 'costmodel' has no attribute '{name}'{hint}"
        raise AttributeError(said, name=name, obj=sys.modules[__name__])

    def __dir__() -> list[str]:
        """The names that a user calls."""
        return sorted({*globals(), *__all__})
