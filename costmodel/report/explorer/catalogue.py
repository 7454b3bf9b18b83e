"""The mixers of `explore` as data: equations in MathML, answers to all questions as trees."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from costmodel.errors import Unanswered, Unsupported
from costmodel.language.equations import Mixer
from costmodel.language.notation import equation
from costmodel.networks.answers import NetworkMixer
from costmodel.paths.chains import CriticalPath
from costmodel.program.chosen_sizes import extents, letters_of
from costmodel.program.conventions import Convention
from costmodel.program.element_types import BYTES, Dtypes
from costmodel.questions.question import Answer, Answers, Case, Figure, Missing, answers
from costmodel.questions.registry import FIGURES
from costmodel.report.explorer.trees import Trees
from costmodel.report.mathml import mathml
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Poly
from costmodel.symbolic.printing import sum_latex
from costmodel.symbolic.sizes import LETTERS

ROLES: Mapping[str, str] = {
    "activations": "activations",
    "weights": "weights",
    "cache": "cache rows",
    "state": "recurrent state",
}
"""Kind of elements in `Dtypes` -> its words. The bytes of an element are sizes of these names."""

ASKED = [
    figure
    for figure in FIGURES.values()
    if figure.kind == "number" and figure.name not in ("optimiser", "best_chunk")
] + [FIGURES["intensity"]]
"""The figures whose formulas the page holds."""


class OpenDtypes(Dtypes):
    """Element types that stay open: the bytes of an element are a size named as the role; rows,
    which data choose, are of weights."""

    def bytes_of(self, kind: str) -> Any:
        return Poly.atom("weights" if kind == "rows" else kind)

    def bytes_in_rows(self, kind: str, row: Poly) -> Poly:
        return Poly.of(self.bytes_of(kind))  # the page's types have no blocks


def catalogue(
    mixers: Iterable[Mixer], phases: Sequence[str], convention: Convention
) -> dict[str, Any]:
    """The data of the explorer's page as an object of JSON: sizes, figures, mixers with their
    answers as trees, and the tables of polynomials, functions and texts that the trees refer to by
    number.

    Args:
        phases: the phases whose answers the page holds.
    """
    trees = Trees()
    found = [_mixer(mixer, phases, convention, trees) for mixer in mixers]
    return {
        "convention": f"{convention.title}: {convention.caption}",
        "letters": {x: [size.meaning, size.default] for x, size in LETTERS.items()},
        "roles": ROLES,
        "bytes": BYTES,
        "phases": phases,
        "figures": {
            f.name: [f.title, f.meaning, f.unit, f.kind, f.phases, f.always] for f in ASKED
        },
        "mixers": found,
        "polys": trees.polys,
        "functions": trees.functions,
        "answers": trees.answers,
        "texts": trees.texts,
    }


def _mixer(
    mixer: Mixer, phases: Sequence[str], convention: Convention, trees: Trees
) -> dict[str, Any]:
    """The object of JSON for one mixer: its names (`called`: that of its variant, `gqa` of
    `self-attention+grouped`, else `name`), source, `own` sizes (letter -> meaning and default), the
    quantities that must be `whole` numbers or `powers` of two, `bounds` (pairs of a size and the
    bound that it may not exceed), and its forms with equations and answers by phase. Polynomials
    and answers are numbers of entries of `trees`."""
    called = [name for name, full in mixer.variants.items() if full == mixer.name]
    return {
        "name": mixer.name,
        "title": mixer.title,
        "idea": mixer.idea,
        "group": "models" if isinstance(mixer, NetworkMixer) else mixer.group,
        "source": mixer.source,
        "called": called[0] if called else mixer.name,
        "aliases": [*called, *mixer.aliases],
        "own": {x: [mixer.letter(x).meaning, mixer.letter(x).default] for x in mixer.own_sizes},
        "given": dict(mixer.given),
        "whole": [trees.poly(extent) for extent in extents(mixer, None)],
        "bounds": [[*map(trees.poly, pair)] for pair in mixer.bounded_sizes],
        "powers": [trees.poly(size) for size in mixer.powers_of_two],
        "default": mixer.default_form,
        "forms": {
            name: {
                "equations": _equations(mixer, name, trees),
                "phases": {
                    phase: _phase(answers(mixer, name, phase, convention), trees)
                    for phase in phases
                },
            }
            for name in mixer.forms
        },
    }


def _equations(mixer: Mixer, form: str, trees: Trees) -> list[list[Any]]:
    """The equations of a form, each as [number of the MathML text, numbers of its ranges' texts,
    its number in the paper]; `trees` collects the texts."""
    shown = map(equation, mixer.forms[form].equations)
    return [
        [
            trees.text(mathml(f"{each.left} = {each.right}", display=True)),
            [trees.text(mathml(found)) for found in each.ranges],
            each.cite,
        ]
        for each in shown
    ]


def _phase(about: Answers, trees: Trees) -> dict[str, Any]:
    """The answers of a form in a phase, as an object of JSON: `letters`, the sizes in them;
    `figures`, name -> number of the answer's tree in `trees`; `beyond`, conditions under which the
    last position (now, shown as t) lies outside of the weights; the critical path
    and the order of growth, as numbers of texts."""
    case = Case(about, dtypes=OpenDtypes())
    asked = (figure for figure in ASKED if about.phase in figure.phases)
    return {
        "letters": letters_of(about.mixer, about.phase, about.form),
        "figures": {f.name: trees.answer(_answer(case, f)) for f in asked},
        "beyond": [
            [
                f"the last position would read {over.where} of {over.array}, "
                f"which has {over.extent} positions",
                [trees.poly(c.substitute({"now": Poly.atom("t")})) for c in over.conditions],
            ]
            for over in about.overruns
        ],
        "path": trees.text(_path(case)),
        "order": trees.text(_order(case)),
    }


def _answer(case: Case, figure: Figure) -> Answer | Missing:
    """A figure for all sizes as a formula, or `Missing` with the reason why it has none."""
    try:
        return case.answer(figure)
    except Unanswered as reason:
        return Missing(str(reason))
    except Unsupported as reason:
        found = "; costmodel table searches for it at given sizes" if figure.search else ""
        return Missing(f"{reason}{found}")


def _path(case: Case) -> str:
    """The critical path in one line, or the reason why there is none."""
    found = _answer(case, FIGURES["critical_path"])
    return found.text if isinstance(found, CriticalPath) else _reason(found)


def _order(case: Case) -> str:
    """The order of growth as MathML, or the reason why there is none."""
    found = _answer(case, FIGURES["order"])
    if not isinstance(found, Exact):
        return _reason(found)
    return mathml(rf"O\left({sum_latex(found.chambers()[0][1])}\right)")


def _reason(found: Answer | Missing) -> str:
    assert isinstance(found, Missing)
    return found.reason
