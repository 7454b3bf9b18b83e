"""What does a sequence mixer cost, derived from its equations?

>>> import costmodel as cm
>>> she, attention = cm.mixer("she"), cm.mixer("self-attention")  # `costmodel list` shows the names

A table, as `costmodel table` prints it; also `.to_pandas()`, `.to_latex()`, `.to_csv()`:

>>> costs = cm.table(["self-attention", "she"], d=128, l=[64, 128], phase="training")
>>> [(row["mixer"], row["l"], row["total"]) for row in costs][-1]
('she', 128, 278888448)

Numbers at sizes; several sizes at once, exact at any magnitude; formulas, which sympy changes:

>>> cm.count(she).at(d=128, l=128).total
278888448
>>> cm.count(she).at(d=128, l=[64, 128]).total
array([ 72335360, 278888448])
>>> l, d = cm.symbols("l d")
>>> cm.count(she).mul.subs(d, 128).diff(l)
16384*l + 41088

Operations, of one new token, of gradients, by another convention:

>>> cm.count(attention, "inference").at(d=128, l=128, t=128, n=8).total
199032
>>> cm.count(attention, "training-step", recompute="all").at(d=128, l=128, n=8).exp
132096
>>> cm.count(attention, convention="mac,dense").total
8*d**2*l + 4*d*l**2 + 4*l**2*n

Parameters, state, traffic in bytes, memory of training:

>>> cm.parameters(attention).expr, cm.state(attention).expr
(4*d**2, 2*d*t)
>>> cm.traffic(attention, "inference").at(d=128, l=128, t=128, n=8, dtype="bf16")["compulsory"]
197120
>>> cm.activations(she).at(d=128, l=128), cm.peak(she, "training-step").at(d=128, l=128)
(65536, 131072)

Depth and its steps, sequential operations, path length, order of growth:

>>> cm.span(she).at(d=128, l=128), cm.critical_path(she).text
(24, 'mul sum mul mul sum')
>>> cm.sequential(she).at(l=128), cm.path_length(she).at(l=128)
(5, 1)
>>> cm.order(cm.count(she).exact_total).expr
d**2*l**2

Asked backwards: from which size on which mixer has the least, the largest size within limits, and
the size at which a mixer costs as much as another:

>>> found = cm.crossover("linear-attention", "self-attention", phase="inference", d=1024, n=16)
>>> [(one.first, *one.least) for one in found.ranges]
[(1, 'self-attention'), (66, 'linear-attention')]
>>> cm.budget("self-attention", state="40GB", d=4096, n=32, b=64, dtype="bf16").largest
38146
>>> found = cm.match("we", to="self-attention", by="parameters", vary="d", d=512)
>>> [(one.at.first, one.value) for one in found.candidates], found.target
([(692, 1046304), (693, 1049202)], 1048576)

A mixer of your own: its equations (docs/language.md); proofs of a mixer, the values
of its output and, by `cm.gradients`, of its gradients:

>>> all(proof.passed for proof in cm.prove(cm.mixer("me")))
True
>>> arrays = {"x": [[1.0], [2.0]], "w_ext": [3.0, 4.0]}
>>> cm.evaluate(cm.mixer("me"), arrays, {"l": 2, "d": 1}).tolist()
[[3.0], [10.0]]

What a machine does: `profiler.measure` and `profiler.trace`; whole networks:
`costmodel.networks.model`.

A name is imported from its file when it is first asked for, so that importing the package costs
nothing. What is refused raises a ValueError of one sentence (`costmodel.errors`).
"""

from typing import TYPE_CHECKING

__all__: list[str]

if TYPE_CHECKING:
    from costmodel.backwards.budget import budget as budget
    from costmodel.backwards.crossover import crossover as crossover
    from costmodel.backwards.match import match as match
    from costmodel.commands.tables import table as table
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
        scan as scan,
        sort as sort,
        sum_ as sum_,
        top_k as top_k,
    )
    from costmodel.mixers.load import mixer as mixer
    from costmodel.proofs.check import prove as prove
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
    from costmodel.symbolic.sympy_form import symbols as symbols

if not TYPE_CHECKING:
    PLACES = {
        "costmodel.backwards.budget": "budget",
        "costmodel.backwards.crossover": "crossover",
        "costmodel.backwards.match": "match",
        "costmodel.commands.tables": "table",
        "costmodel.errors": "EquationError Unanswered",
        "costmodel.language.complex_numbers": "Complex complex_ complex_pair complex_sum polar",
        "costmodel.language.equations": "Mixer",
        "costmodel.language.indices": "max_ min_ union",
        "costmodel.language.macros.softmax": "scaled softmax",
        "costmodel.language.writing": "argmax exp fft function irfft max_over maximum minimum"
        " rfft scan sort sum_ top_k",
        "costmodel.mixers.load": "mixer",
        "costmodel.proofs.check": "prove",
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
        "costmodel.symbolic.sympy_form": "symbols",
    }
    """File -> the names that the package has of it."""

    __all__ = [name for names in PLACES.values() for name in names.split()]

    def __getattr__(name: str) -> object:
        """The object for a name of `__all__`, imported from its module on first use, or the
        function that answers a question of this name. Raises AttributeError for any other name."""
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
