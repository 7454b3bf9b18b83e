"""Under which convention, and at which sizes, is a part of a network asked?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache

from costmodel.errors import ConventionError, SizeError
from costmodel.language.equations import TRAINED, System
from costmodel.networks.blocks import Use
from costmodel.networks.gradients import without_unwanted
from costmodel.program.conventions import Backward, Convention, convention as named_convention
from costmodel.program.phases import TRAINING_STEP
from costmodel.questions.parameters import parameters
from costmodel.questions.question import Answers, answers
from costmodel.questions.state import State
from costmodel.symbolic.polynomial import Poly, sum_of

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
    """Read names such as `strict,dropout=mul` as a `Counting`: how a mixer's operations are counted
    (its convention), and what dropout costs.

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
            f"expected one rule for the cost of dropout, {' or '.join(DROPOUTS)}, got "
            f"'{','.join(chosen)}'"
        )
    others = [part for part in parts if part not in chosen]
    found = named_convention(",".join(others) if others or not chosen else "strict")
    if found.backward != Backward():
        raise ConventionError(
            "recompute=, only= and loss= are options of a mixer by itself: for a network, give "
            "--recompute layers, --loss or --no-loss"
        )
    return Counting(found, *chosen)


def part_sizes(use: Use, sizes: Mapping[str, int], *, partly: bool = False) -> dict[str, int]:
    """A dict: letter -> value of a part's own sizes, at sizes of the network; if `partly`, only
    those that the given sizes determine.

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
            by = " or ".join(sorted(poly.letters))
            raise SizeError(
                f"{use.name}: {meaning} {poly} is {value}: choose another {by}, so that "
                f"{poly} is a whole number"
            )
        found[letter] = value
    return found


def own_parameters(use: Use) -> Poly:
    """The number of a part's parameters, without those that are counted at another part."""
    arrays = parameters(use.mixer).arrays
    own = sum_of(extent for name, extent in arrays.items() if name not in use.shared)
    return own.substitute(use.parameter_sizes) * use.copies


def own_state(use: Use, found: State) -> State:
    """The state of a part without the rows that another part holds (`Use.shared`), such as the keys
    and values that later layers of Gemma 4 read."""
    arrays = {name: number for name, number in found.arrays.items() if name not in use.shared}
    return replace(found, arrays=arrays)


@dataclass(frozen=True, eq=False, kw_only=True)
class _Wanted(Answers):
    """The answers about a part in a phase with gradients, without the gradients of some inputs and
    parameters, `unwanted`, and without the equations that only these gradients need."""

    unwanted: frozenset[str]

    @property
    def _key(self) -> str:
        return f"{super()._key} without {','.join(sorted(self.unwanted))}"

    @property
    def system(self) -> System:
        """The equations of the part in the phase."""
        return _system_without(super().system, self.unwanted)


@cache
def _system_without(system: System, unwanted: frozenset[str]) -> System:
    """The system without the equations that only the gradients of `unwanted` need. Cached: depths
    are cached by system, and a system is compared by identity."""
    return without_unwanted(system, unwanted)


@cache
def _wanted(about: Answers, unwanted: frozenset[str]) -> Answers:
    """The answers `about` without the gradients of `unwanted`. Cached, as answers keep results."""
    return _Wanted(about.mixer, about.form, about.phase, about.convention, unwanted=unwanted)


def part_answers(
    use: Use, phase: str, convention: Counting, given: frozenset[str] = frozenset()
) -> Answers:
    """The object that answers questions about a part in a phase, in the part's own sizes and in the
    form that the part has in this phase and under this convention. `given`: the names of the part's
    arrays without gradients; of inputs and parameters among them, phases with gradients have no
    equations."""
    chosen = convention.convention
    form = use.form_under(chosen.rewrites)
    if phase == "inference" and use.token_form is not None:
        form = use.token_form
    found = answers(use.mixer, form, phase, chosen)
    arrays = use.mixer.arrays.values()
    unwanted = {a.name for a in arrays if a.role in TRAINED and a.below is None} & given
    if not unwanted or phase not in TRAINING_STEP:
        return found
    return _wanted(found, frozenset(unwanted))
