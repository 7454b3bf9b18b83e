"""What does a whole network cost? The sums of what its parts cost, by the rules that count them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from costmodel.answers import Answers, Missing, answers
from costmodel.conventions import (
    Backward,
    Convention,
    ConventionError,
    convention as named_convention,
)
from costmodel.exact import Exact
from costmodel.models.assembly import LAYERS, Use, assemble
from costmodel.models.choices import Choices, ModelError
from costmodel.phases import TRAINING_STEP, Unanswered, phase_name
from costmodel.polynomial import Poly, sum_of
from costmodel.quantity import Quantity
from costmodel.requests import fit
from costmodel.rules.counts import Counts, CountsAt
from costmodel.rules.parameters import parameters
from costmodel.sizes import LETTERS, SizeError, checked
from costmodel.symbols import to_sympy

if TYPE_CHECKING:
    import sympy

DROPOUTS: Mapping[str, str] = {
    "dropout=free": "dropout costs nothing",
    "dropout=mul": "dropout is one multiplication per entry of a training forward pass",
}
"""What dropout costs, by the name of the convention; the first is the default."""


@dataclass(frozen=True)
class Counting:
    """How a network's operations are counted: as a mixer's are, and what dropout costs."""

    convention: Convention = Convention()
    dropout: str = "dropout=free"

    @property
    def names(self) -> tuple[str, ...]:
        """The names as given on the command line; what is the default is left out."""
        free = self.dropout == next(iter(DROPOUTS))
        return self.convention.names if free else (*self.convention.names, self.dropout)

    def caption(self, *, dropout: bool) -> str:
        """What a caption says about it; `dropout`: whether the network has any."""
        ours = f"; {DROPOUTS[self.dropout]}" if dropout else ""
        return f"{self.convention.caption}{ours}"


def counting(names: str | Iterable[str] | Counting = "strict") -> Counting:
    """Read `a,b`: an accounting, rewrites or a peer, as for mixers, and what dropout costs.

    Raises:
        ConventionError: an unknown name, or two of one kind.
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
    """What one part of a network costs in a phase, all its runs together, for one sequence.

    Where the phase does not exist for the part, counts and state are Missing, with the reason.
    """

    use: Use
    runs: Poly
    """How often it runs in the phase."""
    parameters: Poly
    counts: Counts | Missing
    state: Exact | Missing = Exact()
    """Elements held after t tokens; of a phase that is no token, none."""

    @property
    def total(self) -> Exact | Missing:
        """Every operation, each counted 1, with the work done once."""
        return self.counts if isinstance(self.counts, Missing) else self.counts.exact_total


@dataclass(frozen=True)
class OwnSizes:
    """A network's own sizes, taken where others are not given, and those that cannot be given."""

    sizes: Mapping[str, int] = field(default_factory=dict)
    fixed: Mapping[str, tuple[str, Poly]] = field(default_factory=dict)
    """Letter -> what it follows from, in words and as a formula."""

    def with_given(self, given: Mapping[str, int]) -> dict[str, int]:
        """All sizes, those given before the network's own.

        Raises:
            SizeError: an unknown or bad size, or one that follows from others and differs.
        """
        sizes = {**self.sizes, **given}
        for letter, (why, value) in self.fixed.items():
            known = letter in given and value.letters <= sizes.keys()
            if letter in given and not (known and value.rational(sizes) == given[letter]):
                raise SizeError(
                    f"{letter} follows from {why} in this network: make the network with another "
                    f"one, such as model(..., sizes={{'{letter}': {given[letter]}}})"
                )
        return {**self.sizes, **checked(given)}


@dataclass(frozen=True)
class NetworkParameters(Quantity):
    """The parameters of every part, by its name; exact. `tables` are the embeddings' parts."""

    parts: Mapping[str, Poly]
    tables: frozenset[str] = frozenset()
    own: OwnSizes = OwnSizes()

    @property
    def poly(self) -> Poly:
        """The total as a polynomial in sizes."""
        return sum_of(self.parts.values())

    @property
    def exact(self) -> Exact:
        """The total as an exact sum."""
        return Exact.of(self.poly)

    @property
    def without_tables(self) -> NetworkParameters:
        """The same without tokens', positions' and segments' tables of embeddings."""
        kept = {name: poly for name, poly in self.parts.items() if name not in self.tables}
        return replace(self, parts=kept)

    @property
    def expr(self) -> sympy.Expr:
        """The total as a sympy expression."""
        return to_sympy(self.poly)

    def at(self, **sizes: int) -> int:
        """The total at integer sizes."""
        return self.poly.at(self.own.with_given(sizes))


@dataclass(frozen=True)
class NetworkCounts(Counts):
    """Operations of a network; `at` takes the network's own sizes where it is given no others."""

    own: OwnSizes = OwnSizes()

    def at(self, *, b: int = 1, **sizes: int) -> CountsAt:  # type: ignore[override]
        """Integers at given sizes; work on the input is done for each of `b` sequences."""
        return super().at(b=b, **self.own.with_given(sizes))


@dataclass(frozen=True, eq=False)
class Network:
    """A network: its choices, written out as parts.

    Args:
        layers: the number of layers of each stack, where it is known.
    """

    choices: Choices
    layers: int | None = None

    @property
    def name(self) -> str:
        """The network's name."""
        return self.choices.name

    @property
    def title(self) -> str:
        """How tables print it."""
        return self.choices.title or self.choices.name

    @cached_property
    def uses(self) -> tuple[Use, ...]:
        """The parts in the order of a forward pass."""
        number = LAYERS if self.layers is None else Poly.of(self.layers)
        return assemble(self.choices, number)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The sizes that the choices give one value; those that follow from others left out."""
        single = {x: v for x, v in self.choices.sizes.items() if isinstance(v, int)}
        if self.layers is not None:
            single["L"] = self.layers
        return single

    @property
    def own(self) -> OwnSizes:
        """The sizes, and those that no formula names: they are written out in it."""
        widths = self.choices.formulas
        fixed = {x: (f"other sizes ({poly})", poly) for x, poly in widths.items()}
        if self.layers is not None:
            pattern = f"the pattern {', '.join(self.choices.mixers)}"
            fixed["L"] = (pattern, Poly.of(self.layers))
        return OwnSizes(self.sizes, fixed)

    def parameters(self) -> NetworkParameters:
        """The trainable numbers of every part and in total.

        >>> from costmodel.models import model
        >>> model("gpt-2").parameters().at()
        124439808
        """
        found: dict[str, Poly] = {}
        for use in self.uses:
            found[use.name] = found.get(use.name, Poly()) + own_parameters(use)
        tables = frozenset(use.name for use in self.uses if use.table)
        return NetworkParameters(found, tables, self.own)

    def costs(
        self, phase: str = "training", convention: str | Counting = "strict"
    ) -> list[PartCost]:
        """What each part costs in a phase, in the order of a forward pass.

        Args:
            phase: `training` (a forward pass over l tokens, with the loss), `inference` (one new
                token at t), `backward` (the gradients of a forward pass, and what joins those of
                different parts), or `training-step` (both).
            convention: as for mixers, and `dropout=free` or `dropout=mul`.
        """
        counted, phase = counting(convention), phase_name(phase)
        if phase in TRAINING_STEP:
            from costmodel.models import training

            return training.costs(self, phase, counted)
        stage = "inference" if phase == "inference" else "training"
        return [cost(use, phase, counted) for use in self.uses if _shown(use, stage, counted)]

    def count(
        self, phase: str = "training", convention: str | Counting = "strict"
    ) -> NetworkCounts:
        """The operations of a phase in total; see `costs`.

        Raises:
            Unanswered: a part does not have the phase; the reason is the part's own.
        """
        return summed(self.costs(phase, convention), self.own)

    def state(self) -> Exact:
        """Elements held after t tokens, in all layers, for one sequence.

        Raises:
            Unanswered: a mixer has no one-token inference.
        """
        result = Exact()
        for part in self.costs("inference"):
            if isinstance(part.state, Missing):
                raise Unanswered(f"{part.use.name}: {part.state.reason}")
            result = result + part.state
        return result

    def fit(self, sizes: Mapping[str, int]) -> None:
        """Refuse sizes at which an extent of a part is no whole number.

        Raises:
            SizeError: names the part, the extent and the sizes.
        """
        for use in self.uses:
            fit(use.mixer, part_sizes(use, sizes))

    def beyond(self, sizes: Mapping[str, int], convention: Counting) -> str | None:
        """Why position t lies beyond what the weights cover at these sizes, or None."""
        for use in self.uses:
            if "inference" in use.when:
                found = _answers(use, "inference", convention)
                own = part_sizes(use, sizes) | {"t": sizes["t"]}
                if not found.unanswered and (reason := found.beyond(own)):
                    return f"{use.name}: {reason}"
        return None


def _shown(use: Use, stage: str, convention: Counting) -> bool:
    """Whether a part stands in the table of a stage: it runs there, or holds parameters."""
    if use.regularises:
        return stage in use.when and convention.dropout == "dropout=mul"
    return stage in use.when or bool(own_parameters(use).terms)


def part_sizes(use: Use, sizes: Mapping[str, int]) -> dict[str, int]:
    """The sizes of a part's own letters at sizes of the network.

    Raises:
        SizeError: a size is missing, or comes out fractional.
    """
    found: dict[str, int] = {}
    for letter in ("l", *use.mixer.letters):
        poly = use.sizes.get(letter, Poly.atom(letter))
        if missing := sorted(poly.letters - set(sizes)):
            raise SizeError(f"{use.name}: no value for size {missing[0]}: give --{missing[0]}")
        value = poly.rational(sizes)
        if not isinstance(value, int):
            raise SizeError(f"{use.name}: {LETTERS[letter].meaning} {poly} is {value}, no whole "
                            f"number")  # fmt: skip
        found[letter] = value
    return found


def own_parameters(use: Use) -> Poly:
    """The parameters that a part brings: not those that another part has already."""
    arrays = parameters(use.mixer).arrays
    own = sum_of(extent for name, extent in arrays.items() if name not in use.shared)
    return own.substitute(use.sizes) * use.copies


def _answers(use: Use, phase: str, convention: Counting) -> Answers:
    chosen = convention.convention
    return answers(use.mixer, use.form_under(chosen.rewrites), phase, chosen)


def cost(use: Use, phase: str, convention: Counting, runs: Poly | None = None) -> PartCost:
    """What a part costs in a phase of mixers, all its runs together."""
    own = own_parameters(use)
    stage = "inference" if phase == "inference" else "training"
    if stage not in use.when:
        return PartCost(use, Poly(), own, Counts({}, Counts({}), convention.convention.peer))
    runs = use.runs if runs is None else runs
    found = _answers(use, phase, convention)
    if found.unanswered:
        missing = Missing(found.unanswered)
        return PartCost(use, runs, own, missing, missing)
    counts = found.counts
    if not isinstance(counts, Missing):
        counts = scaled(counts, use.sizes, runs)
    state: Exact | Missing = Exact()
    if phase == "inference":
        held = found.state
        one = {**use.sizes, "b": Poly.of(1)}
        state = held if isinstance(held, Missing) else held.substitute(one) * runs
    return PartCost(use, runs, own, counts, state)


def scaled(counts: Counts, sizes: Mapping[str, Poly], runs: Poly) -> Counts:
    """Counts at other sizes, so many times."""
    classes = {name: value.substitute(sizes) * runs for name, value in counts.classes.items()}
    once = None if counts.once is None else scaled(counts.once, sizes, runs)
    kept = {c: v for c, v in classes.items() if not v.is_zero}
    return Counts(kept, once, counts.peer, counts.joined.substitute(sizes) * runs)


def summed(costs: Iterable[PartCost], own: OwnSizes) -> NetworkCounts:
    """The counts of parts together.

    Raises:
        Unanswered: a part has none; the reason is the part's own.
    """
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


def network(choices: Choices, **sizes: int) -> Network:
    """The network that some choices describe.

    Args:
        sizes: sizes that take the place of the choices' own.

    Raises:
        ModelError: layers that differ without a number of them; UnknownMixer: no such mixer.
    """
    chosen = choices.with_sizes(**checked(sizes)) if sizes else choices
    layers = chosen.sizes.get("L") if chosen.patterned else None
    if chosen.patterned and not isinstance(layers, int):
        raise ModelError(
            f"{chosen.name}: its layers differ ({', '.join(chosen.mixers)} in turn), so their "
            f"number must be one number: give --L"
        )
    found = Network(chosen, layers if isinstance(layers, int) else None)
    _ = found.uses
    return found
