"""Which parts does a network have, how often each, at which sizes, and when do they run?

A part (`Use`) is a mixer, a norm, an FFN or the like; equal parts of several layers are one part
that runs several times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property

from costmodel.errors import ModelError, SizeError
from costmodel.networks.blocks import Description, Stack, Sublayer, Use
from costmodel.networks.choices import Choices
from costmodel.symbolic.polynomial import Poly, sum_of
from costmodel.symbolic.sizes import checked

LAYERS = Poly.atom("L")

Templates = Sequence[tuple[Use, Poly]]
"""Pairs (part of a block, number of layers that have the part)."""


def matches(use: Use, pattern: str) -> bool:
    """Whether a pattern of `--train` or `--adapter`, with * and ? as a shell reads them, names a
    part: its label (`head`) or `module_name` (`layers.*.attn`, or with the layers for which the
    part stands, `layers.3-7.attn`)."""
    name = module_name(use)
    own = (name.replace("*", text) for text in use.ranges)
    return any(fnmatchcase(one, pattern) for one in (use.label, name, *own))


def module_name(use: Use) -> str:
    """The name of a part (`use`) as PyTorch modules are named: `layers.*.attn` for any mixer,
    `layers.*.ffn` for FFN and experts, `layers.*.norm`; else its label, such as `head`."""
    if use.mixer.group != "part of a network":
        return "layers.*.attn"
    if use.mixer.name in ("ffn", "gated-ffn", "experts"):
        return "layers.*.ffn"
    return "layers.*.norm" if use.label.startswith("norm, ") else use.label


@dataclass
class _Placing:
    """Collects the parts of a network in the order in which tables print them."""

    described: Description
    uses: list[Use] = field(default_factory=list)
    of: dict[tuple[str, object], Use] = field(default_factory=dict)
    """(section of the stack, `Use.equal`) -> the part of the network that stands for such parts."""

    def add(self, stack: Stack | None, found: Templates, sets: int | None = None) -> None:
        """Add the parts `found`, pairs (part, how often it stands in the network): equal parts
        become one part, run as often as all together, once in each tower (a copy of the layers with
        the same parameters, for another sequence). `stack`: None for parts after the layers;
        `sets`: how many sets of parameters all layers share, None if each has its own."""
        together: dict[object, list[tuple[Use, Poly]]] = {}
        for use, number in found:
            together.setdefault(use.equal, []).append((use, number))
        for same in together.values():
            number = sum_of(times for _, times in same)
            first = same[0][0] if stack is None else stack.placed(same[0][0])
            formulas = self.described.formulas
            own = {x: poly.substitute(formulas) for x, poly in first.sizes.items()}
            towers = self.described.towers if stack is not None else 1
            # layers that share are equal: `same` has the part's places in one, such as two norms
            copies = number if sets is None else Poly.of(sets * len(same))
            placed = replace(
                first, runs=number * towers, copies=copies, sizes={**formulas, **own}
            )  # fmt: skip
            self.uses.append(placed)
            self.of["" if stack is None else stack.section, same[0][0].equal] = placed

    def layers(self, stack: Stack, layers: Poly) -> None:
        """Add the parts of a stack's layers, with the number (Poly) of layers that have each: first
        norms before, then parts that make rows for several layers, mixers and other sublayers by
        their place in a layer (all first ones, all second ones, ...), norms of their outputs,
        dropout, residual sums, norms after. `layers`: the network's number of layers, such as L."""
        numbers = stack.numbers(layers)
        every = [(s, number) for block, number in numbers for s in block.sublayers]
        deepest = max(len(block.sublayers) for block, _ in numbers)
        inner = [
            (block.sublayers[place].part, number)
            for place in range(deepest)
            for block, number in numbers
            if place < len(block.sublayers)
        ]
        for found in (
            _each(every, lambda s: s.before),
            [(use, number) for s, number in every for use in s.makes],
            inner,
            _each(every, lambda s: s.out),
            _each(every, lambda s: s.dropout),
            _each(every, lambda s: s.residual),
            _each(every, lambda s: s.after),
        ):
            self.add(stack, found, stack.sets)  # sets of parameters, None if not shared


def _each(
    sublayers: Iterable[tuple[Sublayer, Poly]], of: Callable[[Sublayer], Use | None]
) -> Templates:
    return [(use, number) for sublayer, number in sublayers if (use := of(sublayer)) is not None]


LENGTH = Poly.atom("l")

LAST: Mapping[str, Poly] = {
    "training": LENGTH,
    "backward": LENGTH,
    "training-step": LENGTH,
    "inference": Poly.atom("t"),
    "prefill": Poly.atom("p"),
    "decode": Poly.atom("p") + Poly.atom("q") - 1,
}
"""Stage (a phase, or `prefill` or `decode` of generation) -> the last position that it reads."""


@dataclass(frozen=True)
class OwnSizes:
    """The sizes of a network: defaults for sizes not given, and sizes that cannot be given."""

    sizes: Mapping[str, int] = field(default_factory=dict)
    fixed: Mapping[str, tuple[str, Poly]] = field(default_factory=dict)
    """Letter of a size that follows from others -> what from, in words, and its formula."""
    tables: Sequence[Use] = ()
    """The parts with a table of positions that has a fixed number of rows."""

    def with_given(self, given: Mapping[str, int]) -> dict[str, int]:
        """The sizes to answer with, letter -> int: those given, and the network's own values for
        the others.

        Raises:
            SizeError: an unknown or bad size; a given size that follows from others by a formula
                (`fixed`) and differs from it; a last position beyond a table of positions.
        """
        sizes = {**self.sizes, **given}
        for letter, (why, value) in self.fixed.items():
            # a given size that agrees with its formula is no contradiction
            known = letter in given and value.letters <= sizes.keys()
            if letter in given and not (known and value.rational(sizes) == given[letter]):
                raise SizeError(
                    f"{letter} of this network is fixed by {why}: give another {letter} where the "
                    f"network is made, as in model(..., sizes={{'{letter}': {given[letter]}}})"
                )
        sizes = {**self.sizes, **checked(given)}
        for use in self.tables:
            for stage in LAST:
                if reason := beyond_table(use, stage, sizes):
                    raise SizeError(reason)
        return sizes


def beyond_table(use: Use, stage: str, sizes: Mapping[str, int]) -> str | None:
    """The reason, in words, why a part's table of positions has too few rows for the last position
    that a stage (a phase, `prefill` or `decode`) reads. None if the table suffices, has no fixed
    number of rows, or sizes are missing to decide."""
    last = Poly.atom("e") if use.section == "encoder" else LAST[stage]
    if use.rows is None or not last.letters <= sizes.keys() or last.at(sizes) <= use.rows:
        return None
    return (
        f"{use.name}: position {last} = {last.at(sizes)} would lie beyond the table, which covers "
        f"{use.rows} positions: choose {last} = {use.rows} at most"
    )


@dataclass(frozen=True, eq=False)
class Assembly:
    """A network: its description, written out as parts.

    Args:
        layers: the number of layers, where layers differ; None where all are equal: formulas then
            hold for any number L, such as the 12 that `sizes` has for gpt-2.
    """

    described: Description
    layers: int | None = None

    @property
    def name(self) -> str:
        """The network's name."""
        return self.described.name

    @property
    def title(self) -> str:
        """The name that tables print."""
        return self.described.title or self.described.name

    @property
    def choices(self) -> Choices:
        """The choices that the network was made of; ModelError if the network was read as blocks
        from a configuration, and was made of none."""
        if self.described.choices is None:
            raise ModelError(
                f"{self.name} was read as blocks from a configuration, and has no choices: read "
                "network.described.stacks, the blocks of its layers"
            )
        return self.described.choices

    @cached_property
    def _placing(self) -> _Placing:
        """The collected parts of the network, in the order in which tables print them, each with
        how often it runs; equal parts of a stack's layers are one part."""
        number = LAYERS if self.layers is None else Poly.of(self.layers)
        found = _Placing(self.described)
        for stack in self.described.stacks:
            for use in stack.entry:
                found.add(stack, [(use, Poly.of(1))])
            found.layers(stack, number)
            for use in stack.end:
                found.add(stack, [(use, Poly.of(1))])
        for use in self.described.ending:
            found.add(None, [(use, Poly.of(1))])
        return found

    @cached_property
    def uses(self) -> tuple[Use, ...]:
        """The parts in the order of a forward pass, equal parts of all layers as one."""
        return tuple(self._placing.uses)

    def use(self, section: str, part: Use) -> Use:
        """The part of the network that stands for a part of a block, or of another place."""
        return self._placing.of[section, part.equal]

    def trains(self, use: Use) -> bool:
        """Whether a training step changes the parameters of a part, adapters aside."""
        about = self.described
        named = not about.chooses or any(matches(use, pattern) for pattern in about.trained)
        return named and not use.fixed

    @cached_property
    def sizes(self) -> dict[str, int]:
        """A dict: letter -> value of the sizes that have one value, the number of layers L
        included; without sizes that are computed from others or have several values."""
        single = {x: v for x, v in self.described.sizes.items() if isinstance(v, int)}
        if self.layers is not None:
            single["L"] = self.layers
        return single

    @property
    def own(self) -> OwnSizes:
        """The network's sizes; those that follow from others or the pattern of its layers, letter
        -> (reason, value) as f -> ("other sizes (4*d)", 4*d); and its tables of positions."""
        widths = self.described.formulas
        fixed = {x: (f"other sizes ({poly})", poly) for x, poly in widths.items()}
        if self.layers is not None:
            pattern = f"the pattern {', '.join(self.described.mixers)}"
            fixed["L"] = (pattern, Poly.of(self.layers))
        return OwnSizes(self.sizes, fixed, [use for use in self.uses if use.rows is not None])
