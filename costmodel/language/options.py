"""Options of mixers, and the mixer that a name such as `self-attention+bias` stands for.

A file of equations declares the options of its mixer, above a function that writes the mixer:

    @offering({"bias": "a bias on the output"})
    def gate(chosen: Chosen) -> Mixer:
        m = Mixer("gate")
        ...
        if "bias" in chosen: ...
        return m
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from types import ModuleType

from costmodel.errors import EquationError, UnknownMixer, WrongKind, described
from costmodel.language.arguments import checked
from costmodel.language.equations import Mixer

SEPARATOR = "+"


Chosen = frozenset[str]
"""The options chosen for a mixer."""


def split(name: str) -> tuple[str, tuple[str, ...]]:
    """The name of a mixer without options, and the options in the order typed.

    >>> split("self-attention+bias+wide"), split("she")
    (('self-attention', ('bias', 'wide')), ('she', ()))
    """
    base, *options = name.split(SEPARATOR)
    return base, tuple(options)


def joined(base: str, options: Iterable[str]) -> str:
    """A name with its options.

    >>> joined("self-attention", ("bias", "wide"))
    'self-attention+bias+wide'
    """
    return SEPARATOR.join((base, *options))


@dataclass(frozen=True, eq=False)
class Family:
    """A mixer and its variants: one mixer for every allowed set of options."""

    make: Callable[[Chosen], Mixer]
    """Writes the mixer with the chosen options, under its plain name."""
    offers: Mapping[str, str]
    """Option -> its meaning, in the order in which names print options."""
    apart: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Two options that exclude each other -> the reason."""
    _made: dict[tuple[str, ...], Mixer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the names of the options: letters, digits and hyphens."""
        for option in self.offers:
            if not isinstance(option, str) or not all(p.isalnum() for p in option.split("-")):
                got = f"'{option}'" if isinstance(option, str) else described(option)
                raise EquationError(f"an option is named in letters and hyphens, got {got}")
        for option in (name for pair in self.apart for name in pair):
            if option not in self.offers:
                raise EquationError(
                    f"'{option}' is said to exclude another option, but is no option"
                )

    @cached_property
    def plain(self) -> Mixer:
        """The mixer without options."""
        return self.of(())

    def of(self, options: Sequence[str]) -> Mixer:
        """The mixer with some options, in any order; one object for each set of options.

        Raises:
            UnknownMixer: an option that is unknown, named twice, or excluded by another.
        """
        if options:
            self._refuse(options)
        ordered = tuple(option for option in self.offers if option in options)
        if ordered not in self._made:
            self._made[ordered] = self._written(ordered)
        return self._made[ordered]

    def choices(self) -> Iterator[tuple[str, ...]]:
        """Every allowed set of options, the empty set first."""
        for number in range(len(self.offers) + 1):
            for options in combinations(self.offers, number):
                if not any(set(pair) <= set(options) for pair in self.apart):
                    yield options

    def _written(self, options: tuple[str, ...]) -> Mixer:
        mixer: object = self.make(frozenset(options))
        if not isinstance(mixer, Mixer):
            raise EquationError(
                "a function below @offering must return its cm.Mixer; "
                f"'{getattr(self.make, '__name__', 'it')}' returns none"
            )
        mixer.base, mixer.options, mixer.offers = mixer.name, options, self.offers
        mixer.name = mixer.origin = joined(mixer.base, options)
        mixer.aliases = tuple(joined(alias, options) for alias in mixer.aliases)
        if options:
            mixer.title = f"{mixer.title} ({', '.join(options)})"
        return mixer

    def _refuse(self, options: Sequence[str]) -> None:
        name = self.plain.name
        for option in options:
            if option not in self.offers:
                near = difflib.get_close_matches(option, self.offers, 1)
                hint = f"; did you mean '{near[0]}'? It" if near else ": it"
                listed = ", ".join(f"{known} ({means})" for known, means in self.offers.items())
                raise UnknownMixer(f"{name} has no option '{option}'{hint} takes {listed}")
            if options.count(option) > 1:
                raise UnknownMixer(f"{joined(name, options)} names the option '{option}' twice")
        for pair, reason in self.apart.items():
            if set(pair) <= set(options):
                one, two = pair
                raise UnknownMixer(f"{name} takes '{one}' or '{two}', not both: {reason}")


@checked
def offering(
    offers: Mapping[str, str], apart: Mapping[tuple[str, str], str] | None = None
) -> Callable[[Callable[[Chosen], Mixer]], Family]:
    """Decorate a function that writes a mixer with the chosen options; the result is a `Family`.

    Args:
        offers: option -> its meaning, in the order in which names print options.
        apart: two options that exclude each other -> the reason.
    """
    if not isinstance(offers, Mapping):
        raise WrongKind(f"@offering takes a table of options, got {described(offers)}")

    def decorate(make: Callable[[Chosen], Mixer]) -> Family:
        if not callable(make):
            raise WrongKind(
                f"@offering stands above a function that writes a mixer, got {described(make)}"
            )
        return Family(make, dict(offers), dict(apart or {}))

    return decorate


def defined(module: ModuleType) -> dict[str, Mixer]:
    """Variable of a module -> its mixer, for all mixers and families; a family without options."""
    found: dict[str, Mixer] = {}
    for key, value in vars(module).items():
        if isinstance(value, (Mixer, Family)):
            found[key] = value.plain if isinstance(value, Family) else value
    return found


def variant(module: ModuleType, mixer: Mixer, options: Sequence[str]) -> Mixer:
    """The variant of a module's mixer with some options.

    Raises:
        UnknownMixer: the mixer lacks an option; the message lists its options.
    """
    if not options:
        return mixer
    for value in vars(module).values():
        if isinstance(value, Family) and value.plain is mixer:
            return value.of(options)
    raise UnknownMixer(f"{mixer.name} takes no options, got '{SEPARATOR.join(options)}'")
