"""Under which convention, and at which sizes, is a part of a network asked?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from costmodel.errors import ConventionError, SizeError
from costmodel.networks.blocks import Use
from costmodel.program.conventions import Backward, Convention, convention as named_convention
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
            f"expected one rule of what dropout costs, {' or '.join(DROPOUTS)}, got "
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


def part_answers(use: Use, phase: str, convention: Counting) -> Answers:
    """The object that answers questions about a part in a phase, in the part's own sizes and in the
    form that the part has in this phase and under this convention."""
    chosen = convention.convention
    form = use.form_under(chosen.rewrites)
    if phase == "inference" and use.token_form is not None:
        form = use.token_form
    return answers(use.mixer, form, phase, chosen)
