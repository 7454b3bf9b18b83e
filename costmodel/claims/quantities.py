"""The derived answer for a quantity that a claim names, under one interpretation of the claim: a
convention, phase and form, and what is counted.

A mixer's quantities are the figures (numbers, such as "mul") of the registry of questions, those of
a network sums over parts. An `Answer` is an exact formula in the sizes; its subclass `AtSizes` is a
figure without a formula, which is searched at given sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodel.claims.interpretations import Interpretation
from costmodel.errors import Unanswered, UnknownMixer, Unsupported, did_you_mean
from costmodel.language.equations import Mixer
from costmodel.mixers.load import mixer as load_mixer
from costmodel.paths.chains import CriticalPath
from costmodel.program.phases import phase_name
from costmodel.questions.critical_path import critical_path
from costmodel.questions.question import (
    BATCH,
    CASES,
    Adding,
    Answer as Derived,
    Case,
    Figure,
    Largest,
    Missing,
    answers,
)
from costmodel.questions.registry import CLAIMED, meant
from costmodel.symbolic.constraints import Constraints
from costmodel.symbolic.effort import limited, spend
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Fn, Poly, call
from costmodel.symbolic.printing import formula_words
from costmodel.symbolic.sizes import in_order

if TYPE_CHECKING:
    from costmodel.networks.network import Network

L = Poly.atom("l")


@dataclass(frozen=True)
class Answer:
    """The derived answer for one quantity: an exact value in sizes, with the steps of a path."""

    exact: Exact = field(default_factory=Exact)
    steps: tuple[str, ...] = ()
    divided: bool = False
    """Whether the value is a quotient, which need not be an integer."""

    @property
    def poly(self) -> Poly | None:
        """The value as one polynomial; None if it is piecewise."""
        cases = self.exact.chambers()
        return cases[0][1] if len(cases) == 1 and not cases[0][0] else None

    @cached_property
    def of_one_sequence(self) -> Answer:
        """The answer for a batch b of 1."""
        return self.substitute({"b": 1})

    @property
    def letters(self) -> frozenset[str]:
        """The sizes that the value depends on."""
        return self.exact.letters

    @property
    def text(self) -> str:
        """The value as a formula, or as cases with their conditions; for a maximum of more than
        `CASES` values only their number."""
        if self.poly is None:
            return formula_words(self.exact)
        several = max((len(a.args) for a in self.poly.atoms if isinstance(a, Fn)), default=0)
        if several > CASES:
            return f"the largest of {several} values, one for each case of the sizes"
        return str(self.poly)

    def at(self, sizes: Mapping[str, int]) -> Fraction:
        """The value at given sizes; ValueError if a value that is not `divided` is no integer."""
        if not self.divided:
            return Fraction(self.exact.at(sizes))
        pieces = (p.rational(sizes) for gs, p in self.exact.pieces if _hold(gs, sizes))
        return sum(map(Fraction, pieces), Fraction(0))

    def substitute(self, values: Mapping[str, Poly | int]) -> Answer:
        """The answer with some sizes replaced."""
        replaced = self.exact.substitute({letter: Poly.of(v) for letter, v in values.items()})
        return replace(self, exact=replaced)


SEARCH = 2_000
"""The units of `symbolic.effort` that one search takes."""


class AtSizes(Answer):
    """The answer for a figure without a formula: its values are found by search, size by size.

    Uses that need a formula raise Unanswered with the reason why there is none.
    """

    def __init__(self, case: Case, figure: Figure, reason: str) -> None:
        self.case, self.figure, self.reason = case, figure, reason

    @property
    def exact(self) -> Exact:
        raise Unanswered(self.reason)

    @property
    def letters(self) -> frozenset[str]:
        return frozenset({"l", *self.case.mixer.open_sizes} - self.case.sizes.keys())

    @property
    def text(self) -> str:
        """The value if all sizes are given; else a phrase."""
        return "no formula: found by search at given sizes" if self.letters else str(self.at({}))

    def at(self, sizes: Mapping[str, int]) -> Fraction:
        """The value at given sizes, found by a search there; Unanswered if there is none, or the
        search takes too long."""
        spend(SEARCH)
        sizes = {**sizes, **self.case.sizes, **self.case.mixer.given}
        value = replace(self.case, sizes=sizes, symbolic=False).figure(self.figure)
        if isinstance(value, Missing):
            raise Unanswered(value.reason)
        assert isinstance(value, int)
        return Fraction(value)

    def substitute(self, values: Mapping[str, Poly | int]) -> Answer:
        """The answer with some sizes given as integers; Unanswered if a value is a formula, since
        the search takes numbers."""
        given = {letter: value for letter, value in values.items() if isinstance(value, int)}
        if given.keys() < values.keys():
            raise Unanswered(self.reason)
        case = replace(self.case, sizes={**self.case.sizes, **given})
        return AtSizes(case, self.figure, self.reason)


def _hold(guards: Constraints, sizes: Mapping[str, int]) -> bool:
    return all(guard.rational(sizes) >= 0 for guard in guards)


def quantity(name: str) -> Figure:
    """The figure (a quantity that the tool derives, such as the number of multiplications) that a
    word means in claims.

    Raises:
        ValueError: an ambiguous word, or an unknown one, whose message names the nearest and lists
            all.
    """
    found = meant(name, CLAIMED)
    if found is None:
        hint = did_you_mean(name, CLAIMED)
        raise ValueError(f"unknown quantity '{name}': {hint}expected one of {', '.join(CLAIMED)}")
    return CLAIMED[found]


def phases_of(asked: Figure) -> tuple[str, ...]:
    """The phases that a claim about a figure may name: all, if the figure depends on the phase
    ("mul"); () if it does not ("parameters"); the only one that is meant if the figure does not
    exist for a forward pass in training: ("inference",) for "state"."""
    if "phase" in asked.varies:
        return asked.phases
    return () if "training" in asked.phases else asked.phases[-1:]


def _phase(asked: Figure, phase: str) -> str:
    """The phase that a claim about a figure means; "" if the figure does not depend on a phase.
    ValueError if it has several phases and the claim names none, or an unknown one."""
    known = phases_of(asked)
    if len(known) < 2:
        return "".join(known)
    if not phase:
        *others, last = known
        raise ValueError(f"'{asked.name}' needs a phase: {', '.join(others)} or {last}")
    return phase_name(phase)


def own_sizes(letters: Iterable[str]) -> frozenset[str]:
    """The sizes that a claim may name: b, l and t besides the declared letters."""
    return frozenset({"b", "l", "t", *letters})


def refuse_letters(named: Iterable[str], declared: Iterable[str], of: str) -> None:
    """Check that the letters `named` are sizes of a mixer or network, whose name `of` is;
    `declared` are its own letters beside the common ones.

    Raises:
        ValueError: a letter is no size; the message names such letters, and the sizes.
    """
    own = own_sizes(declared)
    if foreign := in_order({*named} - own):
        h = " (h is d/n)" if {"d", "n"} & {*foreign} else ""
        are = "are no sizes" if len(foreign) > 1 else "is no size"
        sizes = ", ".join(in_order(own))
        raise ValueError(f"{', '.join(foreign)}{h} {are} of {of}: its sizes are {sizes}")


def mixer_of(name: str, option: str = "") -> Mixer:
    """A mixer by name or FILE.py:NAME, with one more option unless `option` is "": the option is
    inserted before the sizes in braces, `name+option{g=4}`."""
    before, brace, sizes = name.partition("{")
    return load_mixer(f"{before}+{option}{brace}{sizes}" if option else name)


@cache
def further_options(name: str) -> Mapping[str, Mixer]:
    """Option -> the mixer of this name with one more option, for each option that fits the name's
    options and sizes: a claim that is false of the mixer may be true of one of these variants."""
    found: dict[str, Mixer] = {}
    for option in mixer_of(name).offers:
        with suppress(UnknownMixer):
            found[option] = mixer_of(name, option)
    return found


@cache
@limited(None)  # without a limit of effort
def derive(mixer: str, quantity_name: str, interpretation: Interpretation) -> Answer:
    """The derived answer for a figure of a mixer under one interpretation of a claim, for b
    sequences, in inference for the t-th token (`position` replaces t by l or l + 1): a formula in
    the sizes, or an `AtSizes` if a search alone can answer.

    Raises:
        ValueError: an unknown mixer, phase, form, convention or quantity; a missing phase.
        Unanswered, Unsupported: no answer for this mixer, or none derived; the message says why.
    """
    asked, found = quantity(quantity_name), mixer_of(mixer, interpretation.option)
    if interpretation.form and interpretation.form not in found.forms:
        forms = ", ".join(found.forms)
        raise ValueError(
            f"{found.name} has no form '{interpretation.form}': expected one of {forms}"
        )
    form = interpretation.form or found.default_form
    phase = _phase(asked, interpretation.phase) or "training"
    case = Case(
        answers(found, form, phase, interpretation.parsed_convention),
        adding=_adding(interpretation),
    )
    try:
        answer = _per_token_if_asked(asked, _exact(case.answer(asked)), interpretation)
    except Unsupported as reason:
        if asked.search is None:
            raise
        answer = AtSizes(case, asked, str(reason))
    if interpretation.position:
        after = {"t = l": L, "t = l + 1": L + 1}[interpretation.position]
        answer = answer.substitute({"t": after})
    return answer.substitute(found.given) if found.given else answer


def path_at(mixer: str, interpretation: Interpretation, sizes: Mapping[str, int]) -> Answer:
    """The critical path of a mixer at some sizes, which decide among paths that are equally long
    for all sizes; b, the batch, is ignored, since it changes no path."""
    found = mixer_of(mixer, interpretation.option)
    phase, form = interpretation.phase or "training", interpretation.form or None
    own = {letter: size for letter, size in sizes.items() if letter != "b"} | {**found.given}
    convention = interpretation.parsed_convention
    return _exact(critical_path(found, phase, form, convention, own))


def _adding(interpretation: Interpretation) -> Adding:
    """How operations are added up: by which weights, with or without those on parameters alone."""
    return Adding(interpretation.weighting, interpretation.once)


def _per_token_if_asked(asked: Figure, answer: Answer, interpretation: Interpretation) -> Answer:
    """The answer; divided by the b*l tokens of a forward pass if it is a number of operations and
    the interpretation counts them per token."""
    if not (asked.unit == "operations" and interpretation.per_token):
        return answer
    return Answer(answer.exact * (Poly.of(1) / (BATCH * L)), divided=True)


def _exact(found: Derived) -> Answer:
    """A figure's answer as an exact value: the number of steps of a critical path, the `Max` of the
    values of a `Largest`, or the piecewise polynomial itself."""
    if isinstance(found, CriticalPath):
        return Answer(Exact.of(found.length), tuple(map(_step, found.steps)))
    if isinstance(found, Largest):
        return Answer(Exact.of(call("Max", *found.values())))
    assert isinstance(found, Exact), found
    return Answer(found)


def _step(step: str | Mapping[str, Any]) -> str:
    """A step, or repeated steps as one word: {"times": "l - 1", "steps": ["mul", "sum"]} as
    `(l - 1)*(mul sum)`."""
    if isinstance(step, str):
        return step
    return f"({step['times']})*({' '.join(map(_step, step['steps']))})"


def _without_tables(network: Network, interpretation: Interpretation) -> Exact:
    return Exact.of(network.parameters().without_tables.poly)


def _memory(network: Network, interpretation: Interpretation) -> Exact:
    """Bytes in fp32 (4 per element) of parameters, their gradients, AdamW's two numbers for each
    parameter, and the activations kept for the backward pass; Unanswered if one is not derived."""
    from costmodel.networks.memory_budget import MemoryBudget, MemoryOptions
    from costmodel.networks.part_costs import counting

    options = MemoryOptions("adamw", "fp32")
    held = MemoryBudget(network, counting(interpretation.convention), options, None)  # any sizes
    # elements: of parameters, gradients and AdamW; of activations
    apart, kept, size = held.without_activations, held.kept, options.bytes_each
    for found in (apart, kept):
        if isinstance(found, Missing):
            raise Unanswered(found.reason)
    assert isinstance(apart, Exact) and isinstance(kept, Exact) and size is not None
    return (apart + kept) * size


OF_NETWORKS: Mapping[str, Callable[[Network, Interpretation], Exact]] = {
    "parameters_without_tables": _without_tables,
    "memory": _memory,
}
"""Quantity that networks alone have -> its rule; tables are those of embeddings."""


Changed = tuple[str, str, frozenset[tuple[str, int]]]
"""(name of a network, mixer of all layers or "" for its own, sizes that replace its own)."""


@cache
@limited(None)  # without a limit of effort
def _network(changed: Changed) -> Network:
    """The network of (name, mixer for all layers or "", sizes that replace the network's own).

    Raises:
        ValueError: an unknown network; a configuration that cannot be read, or a mixer in place of
            those that a configuration names.
    """
    from costmodel.networks import described, model as network_of, network

    model, mixer, given = changed
    if model.endswith(".json"):
        if mixer:
            raise ValueError(f"{model} says which mixers the network has: leave out "
                             f"'mixer'")  # fmt: skip
        return network(described(None, Path(model), {}), **dict(given))
    return network_of(model, sizes=dict(given), **({"mixers": (mixer,)} if mixer else {}))


def _of_network(
    changed: Changed, name: str, interpretation: Interpretation, recompute: str
) -> Answer:
    """A quantity of a network as a formula in its sizes; `changed` is (name of the network, mixer
    for all layers or "", sizes that replace the network's own), and `recompute` says which forward
    passes a training step runs again."""
    network = _network(changed)
    if name in OF_NETWORKS:
        return Answer(OF_NETWORKS[name](network, interpretation))
    asked = quantity(name)
    phase = _phase(asked, interpretation.phase) or "training"
    about = network.answers(phase, ",".join(interpretation.convention), recompute or "none")
    found = Case(about, adding=_adding(interpretation)).answer(asked)
    return _per_token_if_asked(asked, _exact(found), interpretation)


def parts_of(subjects: Iterable[tuple[str, str]], given: Mapping[str, int]) -> set[Mixer]:
    """The mixers, norms and other parts of the networks (name, mixer of all layers or "") that a
    claim compares, with the sizes that it gives; ValueError as `derive_network`."""
    sizes = frozenset(given.items())
    return {use.mixer for subject in subjects for use in _network((*subject, sizes)).uses}


@cache
@limited(None)  # without a limit of effort
def derive_network(
    model: str,
    mixer: str,
    quantity: str,
    interpretation: Interpretation,
    given: frozenset[tuple[str, int]] = frozenset(),
    left_open: frozenset[str] = frozenset(),
    recompute: str = "",
) -> Answer:
    """The derived answer for a quantity of a network, given by its name or its `config.json`: a
    formula for b sequences.

    Args:
        mixer: the mixer that replaces those of all layers; "" keeps the network's mixers.
        given: sizes that replace the network's own.
        left_open: the sizes that stay letters; all others get their values.
        recompute: "layers" to run the forward pass of layers again before their gradients.

    Raises:
        ValueError: an unknown network, mixer, quantity or size.
        Unanswered: the network has no such phase.
    """
    if quantity not in {**CLAIMED, **OF_NETWORKS}:
        known = (*CLAIMED, *OF_NETWORKS)
        raise ValueError(
            f"unknown quantity '{quantity}' of a network: {did_you_mean(quantity, known)}expected "
            f"one of {', '.join(known)}"
        )
    changed = model, mixer, given
    network = _network(changed)
    of_parts = (use.runs.letters.union(use.mixer.letters) for use in network.uses)
    refuse_letters(left_open, {*network.sizes}.union(*of_parts), model)
    # the network's own sizes replace their letters, except those that the claim leaves open
    own = {letter: v for letter, v in network.sizes.items() if letter not in left_open}
    return _of_network(changed, quantity, interpretation, recompute).substitute(own)
