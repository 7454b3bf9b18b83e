"""Of which blocks does a network consist, and how are the parts of a block joined?

A stack of layers has blocks in turn, a block has sublayers, a sublayer has one part between norms.
Parts, costs and the order of runs all follow from this description, whether choices or a published
configuration made it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import lcm
from typing import Any

from costmodel.errors import ModelError
from costmodel.language.equations import Mixer
from costmodel.networks.choices import Choices, Size
from costmodel.symbolic.polynomial import Poly

ONE = Poly.of(1)

FORWARD = frozenset({"training"})
"""Parts that run in the forward pass of training only: the loss, dropout."""

PASSES = frozenset({"training", "prefill"})
"""Parts that run in a forward pass over a whole sequence, but not for one new token: an encoder."""

ALWAYS = frozenset({"training", "prefill", "inference"})
"""Parts that run for one new token too."""


@dataclass(frozen=True, eq=False)
class Use:
    """One part of a network: its name in tables, `label`, and its equations, `mixer`.

    `runs` is how often the part runs in a forward pass, `copies` how many sets of parameters it
    has; `sizes` gives those of the part's letters that differ from the network's: the sizes in the
    braces of a mixer, and the mixer's own letters. In a block both numbers are 1.
    """

    label: str
    mixer: Mixer
    runs: Poly = ONE
    copies: Poly = ONE
    sizes: Mapping[str, Poly] = field(default_factory=dict)
    section: str = ""
    """`encoder` or `decoder` in an encoder-decoder, else empty."""
    form: str | None = None
    token_form: str | None = None
    """The form for one new token, where it is not `form`; None as `form`: the mixer's default."""
    forms_under: Mapping[str, str] = field(default_factory=dict)
    """Rewrite of a convention -> the form that is counted under it."""
    shared: frozenset[str] = frozenset()
    """Names of parameters that another part has too, and that are counted there: E of a tied head;
    and of inputs whose earlier rows another part holds."""
    when: frozenset[str] = ALWAYS
    """The passes in which the part runs: FORWARD, PASSES or ALWAYS."""
    last: bool = False
    """Whether, of a prompt, only the last position passes through the part."""
    table: bool = False
    """Whether the part's parameters are tables of embeddings."""
    rows: int | None = None
    """The number of rows of a table of positions, of which l tokens read the first l; None for a
    table of l rows, and for other parts."""
    regularises: bool = False
    """Whether the part is dropout, which costs nothing unless a convention says so."""
    ranges: tuple[str, ...] = ()
    """Which layers the part stands for, such as 3-7, where layers are told apart."""
    adapters: frozenset[str] = frozenset()
    """Names of the parameters of low-rank adapters, beside which all others are frozen."""
    reads: tuple[str, ...] = ()
    """The names of the rows that the part reads as its inputs: "" for those of the part before it,
    "tokens" or "embedding" for those before the layers, or what another part `writes`; () is ("",).
    """
    writes: str = ""
    """The name under which later parts read the output; "" if none does."""
    fixed: str = ""
    """"weights": no training step changes the part's parameters; "all": and no gradient passes the
    part, as under torch.no_grad; "" else."""

    @property
    def name(self) -> str:
        """The label with its section, the layers where they are told apart, and whether no gradient
        passes the part."""
        own, many = self.label, "s" if "-" in "and-".join(self.ranges) else ""
        own += f", layer{many} {' and '.join(self.ranges)}" if self.ranges else ""
        own += ", without gradients" if self.fixed == "all" else ""
        return f"{self.section}: {own}" if self.section else own

    @property
    def parameter_sizes(self) -> Mapping[str, Poly]:
        """Letter -> size of the part's parameters, in sizes of the network; l: a table's rows."""
        return self.sizes if self.rows is None else {**self.sizes, "l": Poly.of(self.rows)}

    def form_under(self, rewrites: tuple[str, ...]) -> str:
        """The form that is counted under these rewrites of a convention: that of the first one in
        `forms_under`, else the part's, else the mixer's default."""
        asked = [self.forms_under[r] for r in rewrites if r in self.forms_under]
        return asked[0] if asked else self.form or self.mixer.default_form

    @cached_property
    def equal(self) -> object:
        """A key that is equal for parts that differ in nothing but their place: `Assembly` counts
        such parts as one."""
        at = {x: str(poly) for x, poly in self.sizes.items()}
        forms, ends = (self.form, self.token_form), (self.reads, self.writes)
        own = tuple(sorted(at.items()))
        return (self.label, self.mixer, own, forms, self.shared, self.ranges, ends, self.fixed)


@dataclass(frozen=True, eq=False)
class Sublayer:
    """A part with what stands around it: after(x + dropout(out(part(before(x))))), each where
    given."""

    part: Use
    residual: Use
    before: Use | None = None
    after: Use | None = None
    dropout: Use | None = None
    out: Use | None = None
    beside: bool = False
    """Whether the sublayer reads what the sublayer before it reads, instead of its sum; without a
    norm before, the same normed rows."""
    makes: tuple[Use, ...] = ()
    """Parts that read what the part reads, and write rows for the part and for later layers."""

    @property
    def equal(self) -> object:
        """A key that is equal for sublayers with equal parts."""
        return (self.beside, *(None if use is None else use.equal for use in self.around))

    @property
    def around(self) -> tuple[Use | None, ...]:
        """The norm before, the parts that make rows for the part, the part, its norm, dropout, the
        residual sum and the norm after."""
        inner = (*self.makes, self.part)
        return (self.before, *inner, self.out, self.dropout, self.residual, self.after)


@dataclass(frozen=True, eq=False)
class Block:
    """A layer: its name and its sublayers in order. `weights`: the name of its set of parameters,
    which layers with the same name share; "" if no other layer has them."""

    name: str
    sublayers: tuple[Sublayer, ...]
    weights: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """What may name the block: its name, and the layers for which it stands, `layers.3-7`."""
        return (self.name, *(f"layers.{r}" for r in self.sublayers[0].residual.ranges))

    def with_parts(self, change: Callable[[Use], Use]) -> Block:
        """A copy of the block with what `change` makes of each part, norms and sums included."""
        found = []
        for one in self.sublayers:
            around: dict[str, Any] = {
                name: change(use) for name, use in vars(one).items() if isinstance(use, Use)
            }
            found.append(replace(one, makes=tuple(map(change, one.makes)), **around))
        return replace(self, sublayers=tuple(found))

    @cached_property
    def equal(self) -> object:
        """A key that is equal for blocks with equal parts."""
        return tuple(sublayer.equal for sublayer in self.sublayers)


@dataclass(frozen=True, eq=False)
class Stack:
    """What a sequence passes: the entry (embedding, positions), layers, a norm at the end.

    Layer i has the block i mod their number; equal blocks cost what one block costs, times their
    number.
    """

    entry: tuple[Use, ...]
    blocks: tuple[Block, ...]
    end: tuple[Use, ...] = ()
    section: str = ""
    tokens: Poly = Poly.atom("l")
    """The number of tokens that the stack reads."""
    when: frozenset[str] = ALWAYS
    """The only passes in which parts of the stack may run."""
    depth: int | None = None
    """The number of its layers; None: that of the network, L."""
    sets: int | None = None
    """How many sets of parameters its layers, equal ones, share; None: each layer has its own."""
    first: frozenset[str] = frozenset()
    """The names of parameters of the first layer that all others share, as T5's."""

    @property
    def period(self) -> int:
        """After how many layers the blocks come again: 1 if all are equal, else their number."""
        return 1 if len({block.equal for block in self.blocks}) == 1 else len(self.blocks)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the blocks, in turn."""
        return tuple(block.name for block in self.blocks)

    def numbers(self, layers: Poly) -> list[tuple[Block, Poly]]:
        """Pairs (distinct block, number of layers with this block), in the order of their first
        layers. `layers`: the layers of the network, an integer unless all blocks are equal."""
        layers = layers if self.depth is None else Poly.of(self.depth)
        if self.period == 1:
            return [(self.blocks[0], layers)]
        number = layers.constant()
        assert isinstance(number, int)
        turns, rest = divmod(number, len(self.blocks))
        found: dict[object, tuple[Block, int]] = {}  # `Block.equal` -> (block, layers with it)
        for k, block in enumerate(self.blocks):
            first, before = found.get(block.equal, (block, 0))
            found[block.equal] = first, before + turns + (k < rest)
        return [(block, Poly.of(times)) for block, times in found.values() if times]

    def placed(self, use: Use) -> Use:
        """A copy of a part of this stack with the stack's name, the stack's number of tokens in
        place of l, and only the passes (training, prefill, inference) in which the stack runs too;
        the part itself in a network of one stack."""
        if not self.section:
            return use
        length = {"l": self.tokens}
        sizes = {x: poly.substitute(length) for x, poly in use.sizes.items()}
        own = {**({} if self.tokens == Poly.atom("l") else length), **sizes}
        return replace(use, sizes=own, section=self.section, when=use.when & self.when)


def in_turn(blocks: Sequence[Block]) -> tuple[Block, ...]:
    """The shortest beginning of `blocks` that, repeated, gives the whole sequence: (a, b) of a, b,
    a, b, a; one block if all are equal."""
    keys = [block.equal for block in blocks]
    for period in range(1, len(keys)):
        if all(key == keys[k % period] for k, key in enumerate(keys)):
            return tuple(blocks[:period])
    return tuple(blocks)


@dataclass(frozen=True, eq=False)
class Description:
    """A network as stacks of blocks and the parts after them.

    Args:
        title, source, place, remark: what tables print: name, publication, place in it, note.
        ending: the parts after the layers, in the order of a forward pass; parts of one token (the
            size l is 1) read the first position's row.
        towers: how many sequences pass through the same stack before one head reads them all.
        sizes: letter -> value, or the values of a sweep.
        formulas: letter -> polynomial in other letters, for sizes that follow from others.
        assumed: what -> where its value is taken from, if the source does not print it.
        dtype: the element type of the weights, if the configuration says; "" else.
        state_dtype: the element type of recurrent states; "" is that of the weights.
        quantised: the sentence that asks for the type of weights that a method such as "fp8" or
            "awq" stores; "" without such a method.
        model_type: the type that the configuration names; "" if none was read.
        trained: patterns of the parts whose parameters a training step changes; () for all parts,
            or for none where there are adapters.
        adapters: PATTERN=RANK of parts that have low-rank adapters.
        choices: the choices that the network was made of; None if a configuration was read.
    """

    name: str
    stacks: tuple[Stack, ...]
    ending: tuple[Use, ...]
    kind: str = "decoder"
    title: str = ""
    source: str = ""
    place: str = ""
    remark: str = ""
    towers: int = 1
    sizes: Mapping[str, Size] = field(default_factory=dict)
    formulas: Mapping[str, Poly] = field(default_factory=dict)
    assumed: Mapping[str, str] = field(default_factory=dict)
    dtype: str = ""
    state_dtype: str = ""
    quantised: str = ""
    model_type: str = ""
    trained: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    choices: Choices | None = None

    @property
    def dtypes(self) -> Mapping[str, str]:
        """A dict for `Dtypes.of`: "activations" -> the type of weights, cache and activations, that
        of the configuration or else bf16; "state", "quantised" -> the fields of these names."""
        found = {"activations": self.dtype or "bf16", "state": self.state_dtype}
        return {**found, "quantised": self.quantised}

    @property
    def decoder(self) -> Stack:
        """The stack whose output the ending reads."""
        return self.stacks[-1]

    @property
    def mixers(self) -> tuple[str, ...]:
        """The names of the blocks of the last stack, in turn."""
        return self.decoder.names

    @property
    def blocks(self) -> tuple[str, ...]:
        """The names of the blocks of all stacks, each once."""
        return tuple(dict.fromkeys(name for stack in self.stacks for name in stack.names))

    @property
    def recomputable(self) -> tuple[str, ...]:
        """What may name blocks that are recomputed: their names, and layers that are apart."""
        blocks = (block for stack in self.stacks for block in stack.blocks)
        return tuple(dict.fromkeys(name for block in blocks for name in block.names))

    @property
    def period(self) -> int:
        """After how many layers the blocks of every stack come again, the least common multiple."""
        return lcm(*(stack.period for stack in self.stacks))

    @property
    def patterned(self) -> bool:
        """Whether the layers of a stack differ, or would if there were more, so that L must be a
        number."""
        return self.period > 1 or any(stack.first for stack in self.stacks)

    def with_sizes(self, **given: Size) -> Description:
        """The description with other sizes; a size that is given follows from no others."""
        formulas = {letter: poly for letter, poly in self.formulas.items() if letter not in given}
        return replace(self, sizes={**self.sizes, **given}, formulas=formulas)

    def exchanged(self, old: Mixer, new: Use, layers: Collection[int], number: int) -> Description:
        """A copy of the description in which the part `new` takes the place of each mixer that may
        give way as `old` (`gives_way`), in these `layers` of the last stack, counted from 1;
        `number`: how many layers the stack has.

        Raises:
            ModelError: a layer that is not there, one without such a mixer, or layers that share
                their weights."""
        *others, last = self.stacks
        if last.sets is not None or any(block.weights for block in last.blocks):
            raise ModelError(
                f"--replace {old.origin}: the layers share weights, so that no single layer can "
                "have another mixer: leave out --replace"
            )
        blocks = [last.blocks[k % len(last.blocks)] for k in range(number)]
        for layer in layers:
            if not 1 <= layer <= number:
                raise ModelError(f"--layers {layer}: the network has layers 1 to {number}")
            block = blocks[layer - 1]
            there = ", ".join(s.part.label for s in block.sublayers)
            if not any(self.gives_way(s.part, old, new.mixer) for s in block.sublayers):
                second = " that reads a second sequence" if crosses(new.mixer) else ""
                raise ModelError(
                    f"--replace {old.origin}: layer {layer} has no mixer {old.origin}{second}, "
                    f"but {there}"
                )
            sublayers = tuple(
                replace(s, part=new) if self.gives_way(s.part, old, new.mixer) else s
                for s in block.sublayers
            )
            blocks[layer - 1] = Block(new.label, sublayers)
        stack = replace(last, blocks=in_turn(blocks))
        sizes = {**self.sizes, "L": number}
        return replace(self, stacks=(*others, stack), sizes=sizes, choices=None)

    def is_called(self, part: Use, name: Mixer) -> bool:
        """Whether a part's mixer has the name of the mixer `name`, all its options and its sizes in
        braces, and perhaps more of both: self-attention+bias{g=8} is called self-attention,
        self-attention+bias and self-attention{g=8}."""
        there, sizes = part.mixer, {**self.sizes, **part.sizes}
        given = all(sizes.get(letter) == size for letter, size in name.given.items())
        return there.base == name.base and {*name.options} <= {*there.options} and given

    def gives_way(self, part: Use, old: Mixer, new: Mixer) -> bool:
        """Whether the mixer `new` may take the place of a part: the part's mixer is called `old`,
        and both mixers read a second sequence, or neither does."""
        return self.is_called(part, old) and crosses(part.mixer) == crosses(new)

    def with_layers_apart(self, ranges: Mapping[str, Collection[int]], number: int) -> Description:
        """A copy of the description in which the parts of each range of layers of the last stack
        are counted apart from those of other layers, and so are the layers before all ranges, to
        which no gradient runs back if ranges alone are trained.

        Args:
            ranges: text of a range -> its layers, counted from 1: {"3-4": [3, 4]}.
            number: the number of layers in all.

        Raises:
            ModelError: a layer that is not there, or layers that share their weights.
        """
        *others, last = self.stacks
        if last.sets is not None or any(block.weights for block in last.blocks):
            raise ModelError(
                f"layers.{next(iter(ranges))}: the layers share their weights, so that no layer is "
                "chosen by its number: write layers.*"
            )
        first = min(layer for layers in ranges.values() for layer in layers)
        before = "1" if first == 2 else f"1-{first - 1}"
        known = {before: range(1, first), **ranges} if first > 1 else ranges
        made: dict[tuple[object, tuple[str, ...]], Block] = {}
        blocks = []
        for text, layers in ranges.items():
            if beyond := [layer for layer in layers if not 1 <= layer <= number]:
                raise ModelError(
                    f"layers.{text}: there is no layer {beyond[0]}, since the network has layers 1 "
                    f"to {number}"
                )
        for k in range(number):
            block = last.blocks[k % len(last.blocks)]
            own = tuple(text for text, layers in known.items() if k + 1 in layers)
            key = (block.equal, own)
            if key not in made:
                made[key] = block.with_parts(partial(replace, ranges=own))
            blocks.append(made[key])
        stack = replace(last, blocks=in_turn(blocks))
        return replace(self, stacks=(*others, stack), sizes={**self.sizes, "L": number})

    @cached_property
    def freezes(self) -> bool:
        """Whether a training step leaves some parameters as they are in some runs."""
        return self.chooses or any(use.fixed for use in self.parts())

    @property
    def chooses(self) -> bool:
        """Whether a user names the parts that a training step changes."""
        return bool(self.trained or self.adapters)

    def with_parts(self, change: Callable[[Use], Use]) -> Description:
        """A copy of the description in which every part is what `change` makes of it, such as the
        part with adapters."""
        stacks = tuple(
            replace(
                stack,
                entry=tuple(map(change, stack.entry)),
                blocks=tuple(block.with_parts(change) for block in stack.blocks),
                end=tuple(map(change, stack.end)),
            )
            for stack in self.stacks
        )
        return replace(self, stacks=stacks, ending=tuple(map(change, self.ending)))

    def parts(self) -> Iterator[Use]:
        """Yield every part (`Use`) of the network: of each stack the parts before its layers, of
        each block and at its end; then the parts after the layers."""
        for stack in self.stacks:
            yield from stack.entry
            for block in stack.blocks:
                for sublayer in block.sublayers:
                    yield from (use for use in sublayer.around if use is not None)
            yield from stack.end
        yield from self.ending

    def ends_with(self, label: str) -> Use | None:
        """The part after the layers with this label, None if there is none."""
        return next((use for use in self.ending if use.label == label), None)

    @property
    def head(self) -> str:
        """What the head scores: `vocabulary`, or `classes` (it reads the first row), or `none`."""
        head = self.ends_with("head")
        if head is None:
            return "none"
        return "classes" if of_first_row(head) else "vocabulary"

    @property
    def tied(self) -> bool:
        """Whether the head's weights are the embedding's."""
        head = self.ends_with("head")
        return head is not None and bool(head.shared)

    @property
    def dropout(self) -> bool:
        """Whether there is dropout."""
        return any(use.regularises for use in self.parts())


def crosses(mixer: Mixer) -> bool:
    """Whether a mixer reads a second sequence, such as an encoder's output."""
    return any(array.role == "context" for array in mixer.arrays.values())


def of_first_row(use: Use) -> bool:
    """Whether a part after the layers reads the first position's row alone."""
    return use.sizes.get("l") == ONE
