"""What does one part of a network cost, and what do the parts cost together?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from costmodel.errors import ConventionError, SizeError, Unanswered
from costmodel.networks.assembly import OwnSizes
from costmodel.networks.blocks import Use
from costmodel.program.conventions import Backward, Convention, convention as named_convention
from costmodel.questions.count import counted
from costmodel.questions.counting.counts import Counts, CountsAt
from costmodel.questions.parameters import parameters
from costmodel.questions.question import Answers, Missing, answers
from costmodel.questions.state import state_of
from costmodel.symbolic.at_sizes import Amount, at_sizes
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Poly, sum_of

if TYPE_CHECKING:
    pass


DROPOUTS: Mapping[str, str] = {
    "dropout=free": "dropout costs nothing",
    "dropout=mul": "dropout is one multiplication per entry of a training forward pass",
}
"""What dropout costs, by the name of the convention; the first is the default."""


@dataclass(frozen=True)
class Counting:
    """A convention for whole networks: a mixer's convention, and what dropout costs."""

    convention: Convention = Convention()
    dropout: str = "dropout=free"

    @property
    def names(self) -> tuple[str, ...]:
        """The names as given on the command line, without `dropout=free`, the default."""
        free = self.dropout == next(iter(DROPOUTS))
        return self.convention.names if free else (*self.convention.names, self.dropout)

    def caption(self, *, dropout: bool) -> str:
        """The sentence of a caption; `dropout`: whether the network has dropout."""
        ours = f"; {DROPOUTS[self.dropout]}" if dropout else ""
        return f"{self.convention.caption}{ours}"


def counting(names: str | Iterable[str] | Counting = "strict") -> Counting:
    """Read names such as `strict,dropout=mul`: a mixer's convention and what dropout costs.

    Raises:
        ConventionError: an unknown name, two names of one kind, or an option of a backward pass,
            which the convention of a mixer may have and that of a network may not.
    """
    if isinstance(names, Counting):
        return names
    given = names.split(",") if isinstance(names, str) else list(names)
    parts = [part.strip() for part in given if part.strip()]
    chosen = [part for part in dict.fromkeys(parts) if part.startswith("dropout")]
    if len(chosen) > 1 or any(part not in DROPOUTS for part in chosen):
        raise ConventionError(
            f"'{','.join(chosen)}': what dropout costs is one of {', '.join(DROPOUTS)}"
        )
    others = [part for part in parts if part not in chosen]
    found = named_convention(",".join(others) if others or not chosen else "strict")
    if found.backward != Backward():
        raise ConventionError(
            "recompute=, only= and loss= are about a mixer by itself: of a network, --recompute "
            "layers computes layers again, and --loss or --no-loss says whether its own is counted"
        )
    return Counting(found, *chosen)


@dataclass(frozen=True)
class PartCost:
    """What all runs of one part of a network cost in a phase, for one sequence.

    Where the part has no such phase, counts and state are Missing, with the reason.
    """

    use: Use
    runs: Poly
    """How often the part runs in the phase."""
    parameters: Poly
    counts: Counts | Missing
    state: Exact | Missing = Exact()
    """Elements held after t tokens, in phase `inference`; 0 in the other phases."""

    @property
    def total(self) -> Exact | Missing:
        """Every operation, each counted 1, the work on parameters alone included."""
        return self.counts if isinstance(self.counts, Missing) else self.counts.exact_total


@dataclass(frozen=True)
class NetworkParameters(Amount):
    """The exact number of parameters of each part, by name; `tables` names the embeddings."""

    parts: Mapping[str, Poly]
    tables: frozenset[str] = frozenset()
    own: OwnSizes = OwnSizes()

    @property
    def poly(self) -> Poly:
        """The total as a polynomial in sizes."""
        return sum_of(self.parts.values())

    @property
    def alone(self) -> Exact:
        """The total as an exact sum."""
        return Exact.of(self.poly)

    @property
    def without_tables(self) -> NetworkParameters:
        """The parameters without the embeddings of tokens, positions and segments."""
        kept = {name: poly for name, poly in self.parts.items() if name not in self.tables}
        return replace(self, parts=kept)

    @at_sizes
    def at(self, **sizes: int) -> int:
        """The total at integer sizes."""
        return super().at(**self.own.with_given(sizes))


@dataclass(frozen=True)
class NetworkState(Amount):
    """Elements held after t tokens, in all layers; `at` completes the given sizes by the network's
    own sizes."""

    elements: Exact
    own: OwnSizes = OwnSizes()

    @property
    def each(self) -> Exact:
        """The elements per sequence."""
        return self.elements

    @at_sizes
    def at(self, *, b: int = 1, **sizes: int) -> int:
        """The elements at integer sizes, for `b` sequences."""
        return super().at(b=b, **self.own.with_given(sizes))


@dataclass(frozen=True)
class NetworkCounts(Counts):
    """Operations of a network; `at` completes the given sizes by the network's own sizes."""

    own: OwnSizes = OwnSizes()

    @at_sizes
    def at(self, *, b: int = 1, **sizes: int) -> CountsAt:  # type: ignore[override]  # no single int
        """The operations at given sizes, for `b` sequences; `once` is not multiplied by b."""
        return super().at(b=b, **self.own.with_given(sizes))


def has_row(use: Use, stage: str, convention: Counting) -> bool:
    """Whether a part has a row in the table of a stage: it runs there, or has parameters."""
    if use.regularises:
        return stage in use.when and convention.dropout == "dropout=mul"
    return stage in use.when or bool(own_parameters(use).terms)


def part_sizes(use: Use, sizes: Mapping[str, int], *, partly: bool = False) -> dict[str, int]:
    """The values of a part's own letters at sizes of the network; if `partly`, only those that
    the given sizes determine.

    Raises:
        SizeError: a size is missing, or comes out fractional.
    """
    found: dict[str, int] = {}
    for letter in ("l", *use.mixer.letters):
        poly = use.sizes.get(letter, Poly.atom(letter))
        if partly and not poly.letters <= sizes.keys():
            continue
        if missing := sorted(poly.letters - set(sizes)):
            raise SizeError(f"{use.name}: no value for size {missing[0]}: give --{missing[0]}")
        value = poly.rational(sizes)
        if not isinstance(value, int):
            meaning = use.mixer.letter(letter).meaning
            raise SizeError(f"{use.name}: {meaning} {poly} is {value}, no whole number")
        found[letter] = value
    return found


def own_parameters(use: Use) -> Poly:
    """The number of a part's parameters, without those that are counted at another part."""
    arrays = parameters(use.mixer).arrays
    own = sum_of(extent for name, extent in arrays.items() if name not in use.shared)
    return own.substitute(use.parameter_sizes) * use.copies


def part_answers(use: Use, phase: str, convention: Counting) -> Answers:
    """The answers about a part in a phase of mixers, in the part's own sizes and in the form that
    the part has in this phase and under this convention."""
    chosen = convention.convention
    form = use.form_under(chosen.rewrites)
    if phase == "inference" and use.token_form is not None:
        form = use.token_form
    return answers(use.mixer, form, phase, chosen)


def cost(use: Use, phase: str, convention: Counting, runs: Poly | None = None) -> PartCost:
    """What all runs of a part cost in a phase of mixers; `runs` replaces their own number. A part
    that does not run then has no counts, one without an answer Missing counts with the reason."""
    own = own_parameters(use)
    stage = "inference" if phase == "inference" else "training"
    if stage not in use.when:
        return PartCost(use, Poly(), own, Counts({}, Counts({}), convention.convention.peer))
    runs = use.runs if runs is None else runs
    found = part_answers(use, phase, convention)
    if found.unanswered:
        missing = Missing(found.unanswered)
        return PartCost(use, runs, own, missing, missing)
    counts = found.attempt(counted)
    if not isinstance(counts, Missing):
        counts = scaled(counts, use.sizes, runs)
    state: Exact | Missing = Exact()
    if phase == "inference":
        held = found.attempt(state_of)
        state = held if isinstance(held, Missing) else held.exact.substitute(use.sizes) * runs
    return PartCost(use, runs, own, counts, state)


def scaled(counts: Counts, sizes: Mapping[str, Poly], runs: Poly) -> Counts:
    """The counts of a part in its own letters, with its `sizes` in their place, times `runs`;
    classes without operations are left out."""
    classes = {name: value.substitute(sizes) * runs for name, value in counts.classes.items()}
    once = None if counts.once is None else scaled(counts.once, sizes, runs)
    kept = {c: v for c, v in classes.items() if not v.is_zero}
    return Counts(kept, once, counts.peer, counts.joined.substitute(sizes) * runs)


def summed(costs: Iterable[PartCost], own: OwnSizes) -> NetworkCounts:
    """The sum of the counts of parts, with the network's `own` sizes; Unanswered, with the part and
    its reason, for a part without counts."""
    classes: dict[str, Exact] = {}
    once: dict[str, Exact] = {}
    peer, joined = None, Exact()
    for part in costs:
        if isinstance(part.counts, Missing):
            raise Unanswered(f"{part.use.name}: {part.counts.reason}")
        peer = part.counts.peer
        for name, value in part.counts.classes.items():
            classes[name] = classes.get(name, Exact()) + value
        for name, value in part.counts.once.classes.items() if part.counts.once else ():
            once[name] = once.get(name, Exact()) + value
        joined = joined + part.counts.joined
    return NetworkCounts(classes, Counts(once, peer=peer), peer, joined, own)
