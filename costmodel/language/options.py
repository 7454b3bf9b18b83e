"""Options and sizes of mixers: the mixer that `self-attention+grouped{n=32,g=8}` stands for.

A file of equations declares the options of its mixer, above a function that writes the mixer:

    @offering({"bias": "a bias on the output"})
    def gate(chosen: Chosen) -> Mixer:
        m = Mixer("gate")
        ...
        if "bias" in chosen: ...
        return m

A variant may have a name of its own, `@offering({...}, variants={"gqa": "grouped", "mqa":
"grouped{g=1}"})`; further options and sizes follow such a name as they follow the mixer's.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import module_from_spec
from types import MappingProxyType, ModuleType

from costmodel.errors import (
    EquationError,
    UnknownMixer,
    WrongKind,
    described,
    shortened,
)
from costmodel.language.arguments import checked
from costmodel.language.equations import GIVEN, Mixer
from costmodel.symbolic.sizes import checked as checked_sizes, whole

SEPARATOR = "+"


Chosen = frozenset[str]
"""The options chosen for a mixer."""

Sizes = tuple[tuple[str, int], ...]
"""The sizes of a mixer's own, as pairs of letter and size."""


def split(name: str) -> tuple[str, tuple[str, ...]]:
    """(name of a mixer without options and sizes, its options in the order typed).

    >>> split("self-attention+bias+wide"), split("she"), split("self-attention+grouped{g=8}")
    (('self-attention', ('bias', 'wide')), ('she', ()), ('self-attention', ('grouped',)))
    """
    base, *options = name.partition("{")[0].split(SEPARATOR)
    return base, tuple(options)


def braces(name: str) -> dict[str, int]:
    """The sizes in braces behind a name, by letter.

    >>> braces("self-attention+grouped{n=32, g=8}"), braces("she")
    ({'n': 32, 'g': 8}, {})

    Raises:
        UnknownMixer: braces that are not closed at the end, no size, a value that is no whole
            number, or a letter given twice.
        SizeError: a number with more digits than the largest size.
    """
    before, opened, rest = name.partition("{")
    if not opened and "}" not in before:
        return {}
    found: dict[str, int] = {}
    typed, example = f"'{shortened(name)}'", f"{shortened(before.rstrip('}'))}{{n=32,h=128}}"
    if not opened or not rest.endswith("}") or "{" in rest or "}" in rest[:-1]:
        raise UnknownMixer(f"{typed}: sizes stand in braces at the end, such as {example}")
    for part in rest[:-1].split(","):
        letter, sign, value = (word.strip() for word in part.partition("="))
        number = whole(letter, value) if letter and sign else None
        if number is None:
            got = f"'{shortened(value if sign and value else part.strip())}'"
            raise UnknownMixer(
                f"{typed}: a size in braces is one whole number, with a comma before the next "
                f"size, such as {example}; got {got if part.strip() else 'nothing'}"
            )
        if letter in found:
            raise UnknownMixer(f"{typed} gives size {letter} twice")
        found[letter] = number
    return found


def listed(text: str) -> list[str]:
    """The parts of a text between its commas, other than commas in braces or parentheses;
    stripped, empty parts left out.

    >>> listed("mamba-2{n=8,P=64}, she,")
    ['mamba-2{n=8,P=64}', 'she']
    >>> listed("Self-attention (grouped, window)=gqa, Ours=me")
    ['Self-attention (grouped, window)=gqa', 'Ours=me']
    """
    parts = (part.strip() for part in re.split(r",(?![^{}]*\})(?![^()]*\))", text))
    return [part for part in parts if part]


def joined(base: str, options: Iterable[str], sizes: Mapping[str, int] | None = None) -> str:
    """A name with its options and its sizes.

    >>> joined("self-attention", ("bias", "wide")), joined("she", (), {"l": 2, "d": 8})
    ('self-attention+bias+wide', 'she{l=2,d=8}')
    """
    inside = ",".join(f"{letter}={value}" for letter, value in (sizes or {}).items())
    return SEPARATOR.join((base, *options)) + (f"{{{inside}}}" if inside else "")


@dataclass(frozen=True, eq=False)
class Family:
    """A mixer and its variants: one mixer for every allowed set of options."""

    make: Callable[[Chosen], Mixer]
    """Writes the mixer with the chosen options, under its plain name."""
    offers: Mapping[str, str]
    """Option -> its meaning, in the order in which names print options."""
    apart: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Two options that exclude each other -> the reason."""
    variants: Mapping[str, str] = field(default_factory=dict)
    """Name of its own -> the options of a variant, with sizes in braces: `grouped{g=1}`."""
    _made: dict[tuple[tuple[str, ...], Sizes], Mixer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise EquationError unless every option is named in letters, digits and hyphens, and
        `apart` (pairs that exclude each other) and `variants` (further names) name only options."""
        for option in self.offers:
            if not isinstance(option, str) or not all(p.isalnum() for p in option.split("-")):
                got = f"'{option}'" if isinstance(option, str) else described(option)
                raise EquationError(f"an option is named in letters, digits and hyphens, got {got}")
        for option in (name for pair in self.apart for name in pair):
            if option not in self.offers:
                raise EquationError(
                    f"apart= names '{option}', which is no option: expected some of "
                    f"{', '.join(self.offers)}"
                )
        for name, text in self.variants.items():
            for option in _options_of(text):
                if option not in self.offers:
                    raise EquationError(
                        f"'{name}' stands for '{text}', but '{option}' is no option: expected "
                        f"some of {', '.join(self.offers)}"
                    )

    @cached_property
    def plain(self) -> Mixer:
        """The mixer without options."""
        return self.of(())

    def of(self, options: Sequence[str], sizes: Mapping[str, int] | None = None) -> Mixer:
        """The mixer of the family with some options, in any order, and some sizes of its own (in
        braces). A call with the same options, and sizes in the same order, returns the same object.

        Raises:
            UnknownMixer: an option that is unknown, named twice, or excluded by another.
        """
        if options:
            self._refuse(options)
        ordered = tuple(option for option in self.offers if option in options)
        key = ordered, tuple((sizes or {}).items())
        if key not in self._made:
            if sizes:
                self._made[key] = sized(self.of(options), sizes, lambda: self._written(ordered))
            else:
                self._made[key] = self._written(ordered)
        return self._made[key]

    def _written(self, options: tuple[str, ...]) -> Mixer:
        """The mixer with these options, allowed ones in the order of `offers`, written anew by the
        author's function (`make`): gate+bias, with the title Gate (bias), for ("bias",). Raises
        EquationError: the author's function returns no mixer."""
        mixer: object = self.make(frozenset(options))
        if not isinstance(mixer, Mixer):
            raise EquationError(
                "a function below @offering must return its cm.Mixer; "
                f"'{getattr(self.make, '__name__', 'it')}' returns none"
            )
        mixer.base, mixer.options, mixer.offers = mixer.name, options, self.offers
        mixer.name = mixer.origin = joined(mixer.base, options)
        mixer.aliases = tuple(joined(alias, options) for alias in mixer.aliases)
        mixer.variants = {
            name: joined(mixer.base, _options_of(text), braces(text))
            for name, text in self.variants.items()
        }
        if options:
            mixer.title = f"{mixer.title} ({', '.join(options)})"
        return mixer

    def _refuse(self, options: Sequence[str]) -> None:
        """Raise UnknownMixer for an option that is unknown, named twice, or excluded by another, or
        that is the name of a variant or of the mixer, as `gqa` in `self-attention+gqa`; the message
        then has the name with the options that the variant does not bring."""
        name = self.plain.name
        for option in options:
            if option in (*self.variants, *self.plain.aliases):
                brought = (option, *_options_of(self.variants.get(option, "")))
                others = [other for other in options if other not in brought]
                raise UnknownMixer(
                    f"'{option}' is a mixer, and no option of {name}: write its name first, "
                    f"{joined(option, others)}"
                )
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


def _options_of(text: str) -> tuple[str, ...]:
    """The options in `grouped+window{g=1}`."""
    return tuple(text.partition("{")[0].split(SEPARATOR))


@checked
def offering(
    offers: Mapping[str, str],
    apart: Mapping[tuple[str, str], str] | None = None,
    variants: Mapping[str, str] | None = None,
) -> Callable[[Callable[[Chosen], Mixer]], Family]:
    """Decorate a function that writes a mixer with the chosen options; the result is a `Family`,
    which stands for the mixer with any of the options.

    Args:
        offers: option -> its meaning, in the order in which names print options.
        apart: two options that exclude each other -> the reason.
        variants: a variant's own name -> its options, with sizes in braces.

    Raises:
        WrongKind: `offers` is no table, or the decorated object is no function.
    """
    if not isinstance(offers, Mapping):
        raise WrongKind(f"@offering takes a table of options, got {described(offers)}")

    def decorate(make: Callable[[Chosen], Mixer]) -> Family:
        """The family of mixers that the function `make` writes; WrongKind if `make` is no
        function."""
        if not callable(make):
            raise WrongKind(
                f"@offering stands above a function that writes a mixer, got {described(make)}"
            )
        return Family(make, dict(offers), dict(apart or {}), dict(variants or {}))

    return decorate


def defined(module: ModuleType) -> dict[str, Mixer]:
    """Variable of a module, such as a user's file -> its mixer; for a family (a function below
    `@offering`) the mixer without options."""
    found: dict[str, Mixer] = {}
    for key, value in vars(module).items():
        if isinstance(value, (Mixer, Family)):
            found[key] = value.plain if isinstance(value, Family) else value
    return found


def is_called(mixer: Mixer, base: str) -> bool:
    """Whether `base` is the mixer's name, an alias, or the name of a variant, such as gqa."""
    return base in (mixer.name, *mixer.aliases, *mixer.variants)


def stands_for(mixer: Mixer, name: str) -> tuple[tuple[str, ...], dict[str, int]]:
    """(options, sizes) of the mixer that a typed name means; a variant's own name brings options
    and sizes, to which further typed ones are added: `mqa+bias` is grouped{g=1} with a bias,
    (("grouped", "bias"), {"g": 1}).

    Raises:
        UnknownMixer: a typed option or size that the variant's own name stands for already.
    """
    (base, options), sizes = split(name), braces(name)
    text = mixer.variants.get(base, mixer.name)
    own = braces(text)
    for option in options:
        if option in split(text)[1]:
            raise UnknownMixer(f"'{base}' is {text}: leave out '{option}'")
    for letter in own.keys() & sizes.keys():
        raise UnknownMixer(f"'{base}' is {text}: leave {letter} out of its braces")
    return (*split(text)[1], *options), own | sizes


def variant(
    module: ModuleType, mixer: Mixer, options: Sequence[str], sizes: Mapping[str, int]
) -> Mixer:
    """The variant of a module's mixer with some options, and with some sizes of its own (in
    braces).

    The sizes are known while the mixer is written, so that its equations may depend on them: h,
    else d/n, is then a size by itself. A family writes the variant by a further call of its
    function; for a mixer at the top level of the module, the module is run again.

    Raises:
        UnknownMixer: the mixer lacks an option or a size; the message lists the mixer's own.
        SizeError: a size outside of 1..2**40.
    """
    family = next(
        (v for v in vars(module).values() if isinstance(v, Family) and v.plain is mixer), None
    )
    if family is None and options:
        raise UnknownMixer(f"{mixer.name} takes no options, got '{SEPARATOR.join(options)}'")
    found = mixer if family is None else family.of(options)
    if not sizes:
        return found
    own = ordered_sizes(found, sizes)
    if family is not None:
        return family.of(options, own)
    # the variants written so far are kept in the module
    known: dict[Sizes, Mixer] = vars(module).setdefault(WRITTEN, {}).setdefault(mixer.name, {})
    key = tuple(own.items())
    if key not in known:
        known[key] = sized(mixer, own, lambda: _run_again(module, mixer.name))
    return known[key]


WRITTEN = "__written_with_sizes__"
"""The variable of a module that holds its mixers with sizes of their own, by name and sizes."""


def _run_again(module: ModuleType, name: str) -> Mixer:
    """The mixer of this name that another run of the module's file writes, since its equations may
    depend on the sizes in braces (`GIVEN`) at the time."""
    assert module.__spec__ is not None and module.__spec__.loader is not None
    again = module_from_spec(module.__spec__)
    module.__spec__.loader.exec_module(again)
    return next(mixer for mixer in defined(again).values() if mixer.name == name)


def sized(plain: Mixer, sizes: Mapping[str, int], write: Callable[[], Mixer]) -> Mixer:
    """A mixer with sizes of its own, written by `write` while `GIVEN` holds the sizes.

    `plain`, the mixer without these sizes, becomes the new mixer's `at_any_sizes`, about which
    proofs for all sizes ask. If the sizes give h, a second writing takes the place of `plain`,
    since h is a size by itself only in a mixer that is written with h.
    """
    token = GIVEN.set(MappingProxyType(dict(sizes)))
    try:
        found, free = write(), write() if "h" in sizes else plain
    finally:
        GIVEN.reset(token)
    free.given, found.at_any_sizes = {}, free
    found.name = found.origin = joined(plain.base, plain.options, sizes)
    return found


def ordered_sizes(mixer: Mixer, sizes: Mapping[str, int]) -> dict[str, int]:
    """The sizes in braces behind a name ({g=8,n=32}), checked, in the order of the mixer's letters.

    Raises:
        UnknownMixer: a size that the mixer lacks, or l, t or b, which belong to the input.
        SizeError: a value outside of 1..2**40.
    """
    takes = [x for x in (*mixer.letters, *("h" if mixer.has_head_width else "")) if x != "l"]
    for letter in sizes:
        if letter not in takes:
            raise UnknownMixer(
                f"{mixer.name} has no size {letter} of its own: its braces take {', '.join(takes)}"
            )
    checked_sizes(sizes, takes)
    return {letter: sizes[letter] for letter in dict.fromkeys(takes) if letter in sizes}
