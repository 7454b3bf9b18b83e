"""What all kinds of printed claims share; each kind is a subclass with its keys and its check.

An interpretation is a way to read a claim: a convention, phase and form, and what is counted. The
check of a claim under an interpretation gives a finding: whether the claim holds, and evidence.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import product
from math import prod
from typing import Any, ClassVar

from costmodel.claims.findings import Finding, join_notes
from costmodel.claims.interpretations import Interpretation, LeftOpen
from costmodel.claims.quantities import (
    Answer,
    derive,
    derive_network,
    further_options,
    mixer_of,
    own_sizes,
    parts_of,
    phases_of,
    refuse_letters,
)
from costmodel.errors import PublishedError, Unanswered, Unsupported
from costmodel.language.options import braces
from costmodel.program.conventions import convention
from costmodel.program.lowering import effective
from costmodel.program.phases import PHASES, TRAINING_STEP, phase_name
from costmodel.questions.registry import CLAIMED
from costmodel.symbolic.effort import spend
from costmodel.symbolic.formulas import Formula
from costmodel.symbolic.sizes import LETTERS, checked, is_letter

ABOUT = "mixer or model"

MOST_SIZES, EACH_SIZES = 10_000, 100
"""The most combinations of sizes of a claim; the units of `symbolic.effort` for one combination."""


@dataclass(frozen=True, kw_only=True)
class Claim(ABC):
    """One printed statement of a data file. `claimed` is the original wording, `gloss` in English.

    A claim with `unchecked` (a reason) or `lacks` (a mixer that the catalogue lacks) is listed but
    not checked. For such a claim, `beside` names a quantity to derive and to show next to it, such
    as operations next to a measured time. `misprint` holds the reason and the derived value of a
    known disagreement.
    """

    kind: ClassVar[str]
    needs: ClassVar[tuple[str, ...]]
    """The keys that the check of a claim of this kind needs."""
    one_sided: ClassVar[bool] = False
    """Whether the claim is about one mixer, of which other forms and options may be meant."""
    counted: ClassVar[bool] = True
    """Whether other interpretations, such as another convention, are tried if the claim fails."""

    id: str
    source: str
    place: str
    claimed: str
    gloss: str = ""
    mixer: str = ""
    model: str = ""
    form: str = ""
    phase: str = ""
    quantity: str = ""
    remark: str = ""
    unchecked: str = ""
    lacks: str = ""
    beside: str = ""
    sizes: Mapping[str, int | list[int]] = field(default_factory=dict)
    misprint: Mapping[str, str] = field(default_factory=dict)
    convention: tuple[str, ...] = ("strict",)
    citation: str = ""
    without: tuple[str, ...] = ()
    """The parts of the quantity that its table shows in columns of their own, such as `sqrt` of
    `other`: the claim is about the rest."""
    recompute: str = ""
    """"layers": a training step of the network runs the forward pass of layers again."""

    @abstractmethod
    def check(self, interpretation: Interpretation, known: Mapping[str, Claim]) -> Finding:
        """Whether the claim holds under an interpretation; `known` are all claims, by id."""

    @property
    def words(self) -> str:
        """The claim in one line: the gloss, else the original wording; a kind with a formula or a
        path returns the formula or the path instead."""
        return self.gloss or self.claimed

    @property
    def formulas(self) -> Sequence[Formula]:
        """The formulas that are claimed to equal the quantity, or to grow as the quantity does."""
        return ()

    @property
    def in_braces(self) -> Mapping[str, int]:
        """The sizes in the braces of the mixer's name, whose letters stand for these numbers in the
        claim's formulas; none for a network."""
        return {} if self.model else braces(self.mixer)

    @property
    def letters(self) -> frozenset[str]:
        """The sizes that the claim names."""
        return frozenset(self.sizes) | self.letters_of_formulas

    @cached_property
    def letters_of_formulas(self) -> frozenset[str]:
        """The sizes that the formulas of the claim name."""
        return frozenset[str]().union(*(formula.letters for formula in self.formulas))

    @property
    def left_open(self) -> str:
        """The reason why the claim is not checked; "" if it is checked."""
        absent = f"{self.lacks} is not among the mixers, so nothing is derived"
        return "; ".join(filter(None, [self.unchecked, self.lacks and absent]))

    @property
    def interpretation(self) -> Interpretation:
        """The interpretation that the claim states: its convention, phase and form."""
        return Interpretation(self.convention, PHASES.get(self.phase, self.phase), self.form)

    @property
    def subjects(self) -> Sequence[tuple[str, str]]:
        """The (network, mixer) pairs that the claim compares; "" without a network or a mixer."""
        return ((self.model, self.mixer),)

    @property
    def given(self) -> Mapping[str, int]:
        """The sizes that have one value in the claim."""
        return {letter: size for letter, size in self.sizes.items() if isinstance(size, int)}

    def validate(self) -> None:
        """Check that the claim has the keys that its kind needs (a claim that is not checked needs
        them only if it has `beside`), that its keys go together, and that its values can be read.

        Raises:
            ValueError: one sentence that names the key or the value.
        """
        if self.beside and not self.left_open:
            raise ValueError(
                "'beside' is for a claim that is not checked: add 'unchecked', or "
                "leave out 'beside'"
            )
        if self.beside or not self.left_open:
            missing = [key for key in self.needs if not self._has(key)]
            if missing:
                raise ValueError(f"a claim of kind {self.kind} needs {', '.join(missing)}")
        phase = phase_name(self.phase) if self.phase else ""
        asked = CLAIMED.get(self.quantity)
        exists = phases_of(asked) if asked else ()
        # papers call activations in training what training-step has
        if phase not in ("", "training", *exists) and exists:
            raise ValueError(
                f"'{self.quantity}' has no phase {phase}: expected {' or '.join(exists)}"
            )
        if self.recompute not in ("", "layers"):
            raise ValueError(f"'recompute' must be \"layers\", got {self.recompute!r}")
        if self.recompute and not self.model:
            raise ValueError("'recompute' is for a claim about a network: give the key 'model'")
        if self.recompute and self.interpretation.phase not in TRAINING_STEP:
            need = f"give {' or '.join(TRAINING_STEP)} as the phase, got {self.phase!r}"
            raise ValueError(f"'recompute' is for a claim about gradients: {need}")
        if self.misprint and set(self.misprint) != {"reason", "derived"}:
            raise ValueError(
                f"'misprint' takes the keys reason and derived, got {', '.join(self.misprint)}"
            )
        # these raise ValueError for what cannot be read
        _ = self.formulas
        list(self.chosen_sizes())
        convention(self.convention)

    def _has(self, key: str) -> bool:
        given = self.mixer if key == ABOUT else getattr(self, key)
        return bool(given or (key in (ABOUT, "sizes") and self.model))

    def chosen_sizes(self) -> Iterator[dict[str, int]]:
        """Yield the sizes at which the claim is checked, each a mapping from letter to value: all
        combinations of the values that the claim lists.

        Raises:
            ValueError: an empty list, more than `MOST_SIZES` combinations, or an impossible size.
            TooMuch: they spend the effort that the enclosing `limited` allows.
        """
        values = [v if isinstance(v, list) else [v] for v in self.sizes.values()]
        if not all(values):
            empty = next(letter for letter, size in self.sizes.items() if size == [])
            raise ValueError(f"size {empty} has an empty list of values: give at least one")
        if (number := prod(map(len, values))) > MOST_SIZES:
            most = f"a claim gives at most {MOST_SIZES:,}"
            raise ValueError(f"{number:,} combinations of sizes: {most}")
        own = [*filter(is_letter, self.sizes)]  # any letter: `_check_letters` refuses foreign ones
        for chosen in product(*values):
            spend(EACH_SIZES)
            yield checked(dict(zip(self.sizes, chosen, strict=True)), own)

    def finding(
        self, interpretation: Interpretation, known: Mapping[str, Claim] | None = None
    ) -> Finding:
        """The outcome of the check under one interpretation (form, phase, convention and other
        choices of what is counted).

        Args:
            known: the claims by id, which a claim about the intersection of others names.

        Raises:
            Unanswered, Unsupported: the question has no answer for the subject of the claim.
            PublishedError: the claim cannot be read; the message names the claim.
        """
        with self.naming():
            found = self.check(interpretation, known or {})
        return found

    @contextmanager
    def naming(self) -> Iterator[None]:
        """A `with` block whose ValueErrors become PublishedErrors that name the claim; Unanswered
        and Unsupported stay as they are."""
        try:
            yield
        except (Unanswered, Unsupported):
            raise
        except ValueError as reason:
            raise PublishedError(f"claim {self.id}: {reason}") from None

    def unchecked_finding(self) -> Finding:
        """The finding, which does not hold, for a claim that is not checked. Its note is the
        reason; if the claim's `beside` names a quantity to derive for comparison, also the derived
        value, or why there is none."""
        if not self.beside:
            return Finding(False, "", {}, self.left_open)
        words = f"for comparison, {self.beside} under {','.join(self.convention)}"
        try:
            found = replace(self, quantity=self.beside).finding(self.interpretation)
        except (Unanswered, Unsupported) as reason:
            return Finding(False, "", {}, join_notes(self.left_open, f"{words}: {reason}"))
        shown = f"{words}: {found.derived}"
        return Finding(False, found.derived, {}, join_notes(self.left_open, shown, found.note))

    def sizes_left_open(self) -> Sequence[str]:
        """The sizes that the answer depends on and that the claim does not name. `published.check`
        tries such a claim again at their default values; () means: do not try again."""
        return ()

    def answers(self, interpretation: Interpretation) -> tuple[Answer, ...]:
        """The derived answer, a formula in sizes, for each mixer or network that the claim
        compares: for one sequence, unless the claim names the batch b.

        Raises:
            ValueError: a letter of the claim's formula is no size of its network or mixer.
        """
        if not self.model:
            names = tuple(name for _, name in self.subjects)
            _check_letters(self.mixer, names, frozenset(self.sizes), self.letters_of_formulas)
        found = tuple(self._answer(*subject, interpretation) for subject in self.subjects)
        return found if "b" in self.letters else tuple(a.of_one_sequence for a in found)

    def _answer(self, model: str, mixer: str, interpretation: Interpretation) -> Answer:
        """The derived answer, a formula in sizes: of `mixer`, less the parts `without`, if `model`
        is ""; else of the network `model` with this mixer in all layers, or with the network's own
        mixers if `mixer` is ""."""
        if not model:
            found = derive(mixer, self.quantity, interpretation)
            for part in self.without:
                apart = derive(mixer, part, interpretation)
                found = replace(found, exact=found.exact - apart.exact)
            return found
        given, left_open = frozenset(self.given.items()), self.letters.difference(self.given)
        return derive_network(
            model, mixer, self.quantity, interpretation, given, left_open, self.recompute
        )

    def outcome_key(self, interpretation: Interpretation) -> object:
        """A key of the check's outcome, for the caller's cache of findings: interpretations with
        equal keys have the same finding, so that the claim is checked once for all of them."""
        return interpretation.phase, self.answers(interpretation)

    def choices(self) -> LeftOpen:
        """What the claim does not state and other interpretations may choose, such as another form,
        option, phase or convention. Nothing for a kind of claim that no other way of counting can
        make true (`counted` is False) and for a quantity that is no figure of mixers."""
        asked = CLAIMED.get(self.quantity) if self.counted else None  # its figure
        if asked is None:
            return LeftOpen(conventions=False)
        one = self.one_sided and not self.model  # a claim about one mixer, not two or a network
        mixer = mixer_of(self.mixer) if self.mixer and not self.model else None
        options = further_options(self.mixer) if mixer and one else {}  # option -> variant
        named = [] if self.model else [mixer_of(name) for _, name in self.subjects if name]
        parts = parts_of(self.subjects, self.given) if self.model else []
        forms = [f for m in (*named, *options.values(), *parts) for f in m.forms.values()]
        own = self.form or (mixer.default_form if mixer else "")  # the claim's form
        formed = mixer and one and "form" in asked.varies  # forms of the mixer differ in it
        # of one new token, a formula in l may mean t = l or t = l + 1
        in_length = bool(self.formulas) and "l" in self.letters and "t" not in self.letters
        return LeftOpen(
            forms=tuple(f for f in mixer.forms if f != own) if mixer and formed else (),
            options=tuple(options),
            phases=_other_phases(phases_of(asked), self.interpretation.phase),
            operations=asked.unit == "operations",
            total=self.quantity == "total",
            positions=one and in_length,
            conventions="convention" in asked.varies,
            rewrites=frozenset().union(*map(effective, forms)),
        )


@cache
def _check_letters(
    mixer: str, compared: tuple[str, ...], sizes: frozenset[str], named: frozenset[str]
) -> None:
    """Check the letters of a claim about a mixer, and the mixers that it is `compared` with.

    Raises:
        ValueError: a letter of the claim's `sizes` that is none of `LETTERS` and no size of a
            compared mixer; a letter in a formula (`named`) that is a size neither of the mixer nor
            of the mixer with one more option.
    """
    found = frozenset[str]().union(*(mixer_of(name).open_sizes for name in compared))
    refuse_letters(sizes - LETTERS.keys(), found, mixer)
    own = mixer_of(mixer).open_sizes
    if not named <= own_sizes(own):
        options = (m.open_sizes for m in further_options(mixer).values())
        if not named <= own_sizes(own).union(*options):
            refuse_letters(named, own, mixer)


def _other_phases(known: Sequence[str], own: str) -> tuple[str, ...]:
    """The phases among `known` other than the claim's `own` in which the claim may be true; phases
    with gradients only for a claim about one of them; () if `known` has one phase alone."""
    others = (p for p in known if own in TRAINING_STEP or p not in TRAINING_STEP)
    return tuple(p for p in others if p != own) if len(known) > 1 else ()


RELATIONS: Mapping[str, Callable[[Any, Any], bool]] = {
    ">": lambda a, b: bool(a > b),
    "<": lambda a, b: bool(a < b),
    "=": lambda a, b: bool(a == b),
}


@dataclass(frozen=True, kw_only=True)
class Related(Claim):
    """A claim that may state a relation between its quantity and a number, or another quantity."""

    relation: str = ""

    def validate(self) -> None:
        super().validate()
        if self.relation and self.relation not in RELATIONS:
            raise ValueError(f"relation '{self.relation}': expected >, < or =")


@dataclass(frozen=True, kw_only=True)
class TwoSided(Related):
    """A claim that may compare its mixer or network with another one, `against`; `vague` is a word
    such as "much", which has no number."""

    against: str = ""
    against_mixer: str = ""
    vague: str = ""

    @property
    def subjects(self) -> Sequence[tuple[str, str]]:
        other = (self.against, self.against_mixer) if self.model else ("", self.against)
        return (*super().subjects, *([other] if self.against else []))
