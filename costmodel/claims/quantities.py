"""What do the equations give for a quantity that a claim names, in the way that it is read?

One table lists every quantity that a claim may be about: `QUANTITIES`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from costmodel.claims.interpretations import Reading
from costmodel.errors import Unanswered
from costmodel.language.equations import Mixer
from costmodel.language.functions import CLASSES, TABLE
from costmodel.mixers.load import mixer as load_mixer
from costmodel.program.conventions import Convention
from costmodel.program.phases import TRAINING_STEP, phase_name
from costmodel.questions.activations import activations
from costmodel.questions.count import count
from costmodel.questions.counts import WEIGHTINGS, Counts
from costmodel.questions.critical_path import critical_path
from costmodel.questions.parameters import parameters
from costmodel.questions.peak import peak
from costmodel.questions.span import span
from costmodel.questions.state import state
from costmodel.questions.traffic import traffic
from costmodel.symbolic.constraints import Constraints
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Poly, call
from costmodel.symbolic.printing import formula_words

BATCH = Poly.atom("b")
L = Poly.atom("l")


@dataclass(frozen=True)
class Answer:
    """What the equations give for one quantity: an exact value in sizes, or the steps of a path."""

    exact: Exact = field(default_factory=Exact)
    steps: tuple[str, ...] = ()
    divided: bool = False
    """Whether the value is a quotient, which need not be whole."""

    @property
    def poly(self) -> Poly | None:
        """The value as one polynomial; None where it is piecewise."""
        cases = self.exact.chambers()
        return cases[0][1] if len(cases) == 1 and not cases[0][0] else None

    @property
    def letters(self) -> frozenset[str]:
        """The sizes that the value depends on."""
        return self.exact.letters

    @property
    def text(self) -> str:
        """The value in the notation of the formats; cases with their conditions."""
        return formula_words(self.exact) if self.poly is None else str(self.poly)

    def at(self, sizes: Mapping[str, int]) -> Fraction:
        """The value at given sizes; ValueError where a number that is no quotient is not whole."""
        if not self.divided:
            return Fraction(self.exact.at(sizes))
        pieces = (p.rational(sizes) for gs, p in self.exact.pieces if _hold(gs, sizes))
        return sum(map(Fraction, pieces), Fraction(0))

    def substitute(self, values: Mapping[str, Poly | int]) -> Answer:
        """The answer with some sizes replaced."""
        replaced = self.exact.substitute({letter: Poly.of(v) for letter, v in values.items()})
        return replace(self, exact=replaced)


def _hold(guards: Constraints, sizes: Mapping[str, int]) -> bool:
    return all(guard.rational(sizes) >= 0 for guard in guards)


@dataclass(frozen=True)
class Quantity:
    """A quantity that claims are about.

    `phases`: those in which it exists; none where it depends on no phase. `operations` says that
    it counts operations, `conventions` that accountings and rewrites may change it.
    """

    name: str
    meaning: str
    derive: Callable[[Mixer, Reading], Answer]
    phases: tuple[str, ...] = ("training", "inference", *TRAINING_STEP)
    operations: bool = False
    conventions: bool = True
    formed: bool = True
    """Whether it may differ from form to form."""


def _weighed(name: str) -> Callable[[Mixer, Reading], Answer]:
    """The operations of one class, or of all of them."""

    def derive(mixer: Mixer, reading: Reading) -> Answer:
        counts = _counts(mixer, reading.phase, reading.form or None, reading.read)
        return weighed(counts, name, reading)

    return derive


@cache
def _counts(mixer: Mixer, phase: str, form: str | None, names: Convention) -> Counts:
    return count(mixer, phase, form, names)


def weighed(counts: Counts, name: str, reading: Reading) -> Answer:
    """The operations of one class, or of all of them, of b sequences."""
    value = _of(counts, name, reading) * BATCH
    if name in ("add", "total"):
        weight = 1 if name == "add" else WEIGHTINGS[reading.weighting].of("add")
        value = value + counts.joined * (BATCH - 1) * weight
    if reading.once and counts.once:
        value = value + _of(counts.once, name, reading)
    quotient = value * (Poly.of(1) / L)
    return Answer(quotient, divided=True) if reading.per_token else Answer(value)


def _of(counts: Counts, name: str, reading: Reading) -> Exact:
    if name != "total":
        return counts.exact(name)
    weighting, result = WEIGHTINGS[reading.weighting], Exact()
    for class_name, value in counts.classes.items():
        result = result + value * weighting.of(class_name)
    return result


def _parameters(mixer: Mixer, reading: Reading) -> Answer:
    return Answer(Exact.of(parameters(mixer).poly))


def _state(mixer: Mixer, reading: Reading) -> Answer:
    return Answer(state(mixer, reading.form or None).exact * BATCH)


def _span(mixer: Mixer, reading: Reading) -> Answer:
    found = span(mixer, reading.phase, reading.form or None, reading.read)
    return Answer(Exact.of(call("Max", *found.terms)))


def _path(mixer: Mixer, reading: Reading) -> Answer:
    """The steps, and as the value how many there are."""
    found = critical_path(mixer, reading.phase, reading.form or None, reading.read)
    return Answer(Exact.of(found.length), tuple(map(_step, found.steps)))


def _step(step: str | Mapping[str, Any]) -> str:
    """A step, or a chain of steps that is repeated, as one word: `(l - 1)*(mul sum)`."""
    if isinstance(step, str):
        return step
    return f"({step['times']})*({' '.join(step['steps'])})"


def _moved(kind: str) -> Callable[[Mixer, Reading], Answer]:
    """Entries that are read and written: weights once, the others for each of b sequences."""

    def derive(mixer: Mixer, reading: Reading) -> Answer:
        found = traffic(mixer, reading.phase, reading.form or None, reading.read)
        result = Exact()
        for name, number in getattr(found, kind).kinds.items():
            result = result + (number if name == "weights" else number * BATCH)
        return Answer(result)

    return derive


def _activations(mixer: Mixer, reading: Reading) -> Answer:
    """Entries kept for the backward pass: those of weights alone once."""
    found = activations(mixer, reading.form or None, reading.read)
    return Answer(found.each * BATCH + found.alone)


def _peak(mixer: Mixer, reading: Reading) -> Answer:
    """The largest live set; parameters and their gradients stand apart."""
    found = peak(mixer, reading.phase, reading.form or None, reading.read)
    moments = [Answer(moment.each * BATCH + moment.once).poly for moment in found.moments]
    whole = [moment for moment in moments if moment is not None]
    if len(whole) < len(moments):
        raise Unanswered(f"what {mixer.name} holds at its peak falls into cases of the sizes")
    return Answer(Exact.of(call("Max", *whole)))


def _asked(name: str) -> Callable[[Mixer, Reading], Answer]:
    """A question in a file of its own under costmodel/rules, by the name of the file."""

    def derive(mixer: Mixer, reading: Reading) -> Answer:
        place = f"costmodel.questions.{name}"
        if find_spec(place) is None:
            raise Unanswered(f"{name.replace('_', ' ')} is not derived by this version")
        question = getattr(import_module(place), name)
        known: dict[str, Any] = {
            "phase": reading.phase or "training",
            "form": reading.form or None,
            "convention": reading.read,
        }
        taken = {k: v for k, v in known.items() if k in inspect.signature(question).parameters}
        return Answer(question(mixer, **taken).exact)

    return derive


OTHER = tuple(sorted({step for f in TABLE.values() for step in f.steps} - {*CLASSES} | {"compare"}))
"""Classes of operations without a column of their own."""

MEANINGS = {"mul": "multiplications", "add": "additions and subtractions", "div": "divisions",
            "exp": "exponentiations", "compare": "comparisons"}  # fmt: skip

QUANTITIES: Mapping[str, Quantity] = {
    q.name: q
    for q in (
        *(
            Quantity(
                name, MEANINGS.get(name, f"operations {name}"), _weighed(name), operations=True
            )
            for name in (*CLASSES, *OTHER)
        ),
        Quantity("total", "all operations, each 1", _weighed("total"), operations=True),
        Quantity(
            "parameters", "trainable numbers", _parameters, (), conventions=False, formed=False
        ),
        Quantity(
            "state", "elements held after t tokens", _state, ("inference",), conventions=False
        ),
        Quantity("span", "levels of dependent operations", _span),
        Quantity("critical_path", "the longest chain of steps", _path),
        Quantity(
            "activations", "elements kept for the backward pass", _activations, ("training-step",)
        ),
        Quantity("peak", "the most elements held at once", _peak, ("training", *TRAINING_STEP)),
        Quantity("compulsory", "elements moved when each is moved once", _moved("compulsory")),
        Quantity("unfused", "elements moved equation by equation", _moved("unfused")),
        Quantity(
            "path_length",
            "longest distance of two positions",
            _asked("path_length"),
            (),
            conventions=False,
        ),
        Quantity("sequential", "dependent steps", _asked("sequential")),
    )
}


def quantity(name: str) -> Quantity:
    """The quantity of this name.

    Raises:
        ValueError: an unknown name; the message lists the known ones.
    """
    if name not in QUANTITIES:
        known = ", ".join(QUANTITIES)
        raise ValueError(f"unknown quantity '{name}': expected one of {known}{_hint(name)}")
    return QUANTITIES[name]


def _hint(name: str) -> str:
    if not name.lower().startswith(("flop", "mac")):
        return ""
    return "; claim a total: the ways of adding up operations are tried one after the other"


def _phase(asked: Quantity, phase: str) -> str:
    """The phase that a claim about a quantity means; "" where there is none."""
    if len(asked.phases) < 2:
        return "".join(asked.phases)
    if not phase:
        *others, last = asked.phases
        raise ValueError(f"'{asked.name}' depends on the phase: {', '.join(others)} or {last}")
    return phase_name(phase)


def mixer_of(name: str, option: str = "") -> Mixer:
    """A mixer by name or FILE.py:NAME, with one more option."""
    return load_mixer(f"{name}+{option}" if option else name)


@cache
def derive(mixer: str, quantity_name: str, reading: Reading) -> Answer:
    """A quantity of a mixer for b sequences, as a claim is read.

    Raises:
        ValueError: an unknown mixer, phase, form, convention or quantity.
        Unanswered: the question has no answer for this mixer; the message is the reason.
    """
    asked, found = quantity(quantity_name), mixer_of(mixer, reading.option)
    reading = replace(reading, phase=_phase(asked, reading.phase))
    if reading.form and reading.form not in found.forms:
        forms = ", ".join(found.forms)
        raise ValueError(f"{found.name} has no form '{reading.form}': expected one of {forms}")
    answer = asked.derive(found, reading)
    if reading.position:
        after = {"t = l": L, "t = l + 1": L + 1}[reading.position]
        answer = answer.substitute({"t": after})
    return answer
