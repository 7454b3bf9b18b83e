"""Which parts does a network consist of, how often each, at which sizes, and when do they run?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from costmodel.errors import ModelError, SizeError
from costmodel.language.equations import Mixer
from costmodel.mixers.load import mixer as load_mixer
from costmodel.networks import parts
from costmodel.networks.choices import Choices
from costmodel.program.chosen_sizes import default
from costmodel.program.losses import FORMS_OF_SCORES
from costmodel.symbolic.polynomial import Poly
from costmodel.symbolic.sizes import checked

ONE = Poly.of(1)


LAYERS = Poly.atom("L")


FORWARD = frozenset({"training"})
"""Parts that run in the forward pass of training only: the loss, dropout."""


PASSES = frozenset({"training", "prefill"})
"""Parts that run in a forward pass over a whole sequence, but not for one new token: an encoder."""


ALWAYS = frozenset({"training", "prefill", "inference"})
"""Parts that run for one new token too."""


@dataclass(frozen=True, eq=False)
class Use:
    """One part of a network.

    `runs` is how often the part runs in a forward pass, `copies` how many sets of parameters it
    has; `sizes` gives those of the part's letters that differ from the network's: the sizes in the
    braces of a mixer, and the mixer's own letters.
    """

    label: str
    mixer: Mixer
    runs: Poly = ONE
    copies: Poly = ONE
    sizes: Mapping[str, Poly] = field(default_factory=dict)
    section: str = ""
    """`encoder` or `decoder` in an encoder-decoder, else empty."""
    form: str | None = None
    forms_under: Mapping[str, str] = field(default_factory=dict)
    """Rewrite of a convention -> the form that is counted under it."""
    shared: frozenset[str] = frozenset()
    """Names of parameters that are another part's too, where they are counted."""
    when: frozenset[str] = ALWAYS
    """The passes in which the part runs: FORWARD, PASSES or ALWAYS."""
    last: bool = False
    """Whether, of a prompt, only the last position passes through the part."""
    table: bool = False
    """Whether the part's parameters are tables of embeddings."""
    rows: int | None = None
    """The rows of a table of positions of which the l tokens read the first; None: one a token."""
    regularises: bool = False
    """Whether the part is dropout, which costs nothing unless a convention says so."""

    @property
    def name(self) -> str:
        """The label with its section."""
        return f"{self.section}: {self.label}" if self.section else self.label

    @property
    def parameter_sizes(self) -> Mapping[str, Poly]:
        """The sizes of the part's parameters."""
        return self.sizes if self.rows is None else {**self.sizes, "l": Poly.of(self.rows)}

    def form_under(self, rewrites: tuple[str, ...]) -> str:
        """The form that is counted under these rewrites of a convention."""
        asked = [self.forms_under[r] for r in rewrites if r in self.forms_under]
        return asked[0] if asked else self.form or self.mixer.default_form


def assemble(c: Choices, layers: Poly = LAYERS) -> tuple[Use, ...]:
    """The parts in the order of a forward pass.

    Args:
        layers: the number of layers of each stack, a letter or a number.

    Raises:
        ModelError: layers that differ, and no number of them; a form that no mixer has.
        UnknownMixer: a mixer that does not exist.
    """
    found = list(_assembled(c, layers))
    formulas = c.formulas
    if c.form and not any(c.form == use.form for use in found):
        raise ModelError(f"{c.name}: none of its mixers has a form '{c.form}'")
    return tuple(replace(use, sizes=_with_formulas(use.sizes, formulas)) for use in found)


def _with_formulas(own: Mapping[str, Poly], formulas: Mapping[str, Poly]) -> dict[str, Poly]:
    """A part's letters in the network's sizes, with the sizes that follow from others put in."""
    return {**formulas, **{x: poly.substitute(formulas) for x, poly in own.items()}}


def _assembled(c: Choices, layers: Poly) -> Iterator[Use]:
    towers = Poly.of(c.towers)
    if c.kind == "encoder-decoder":
        source = {"l": Poly.atom("e")}
        for use in (*_input(c), *_layers(c, c.encoder_mixers, layers)):
            joined = {**source, **{x: p.substitute(source) for x, p in use.sizes.items()}}
            when = use.when & PASSES
            yield replace(use, sizes=joined, section="encoder", when=when)
        shared = frozenset({"E"}) if c.shared_vocabulary else frozenset()
        for use in (*_input(c, shared), *_layers(c, c.mixers, layers, cross=True)):
            yield replace(use, section="decoder")
    else:
        for use in (*_input(c), *_layers(c, c.mixers, layers)):
            yield replace(use, runs=use.runs * towers)
    yield from _after_layers(c)


def _input(c: Choices, shared: frozenset[str] = frozenset()) -> Iterator[Use]:
    """Embedding, positions, segments, and what follows them."""
    scaled = c.scale != "none"
    product = c.embedding == "one-hot"
    embedding = parts.one_hot(scaled) if product else parts.look_up(scaled)
    yield Use("embedding", embedding, shared=shared, table=True)
    if c.positions != "none":
        learned = c.positions == "learned"
        rows = (c.position_rows or None) if learned else None
        added = parts.positions(c.positions, product and learned, learned and c.scale == "all")
        sizes = {"u": Poly.atom("l") if rows is None else Poly.of(rows)}
        yield Use(f"{c.positions} positions", added, sizes=sizes, table=True, rows=rows)
    if c.segments:
        yield Use("segments", parts.segments(c.segments), table=True)
    if c.embedding_norm:
        yield Use("norm of the embedding", parts.layer_norm(c.norm_bias, c.norm_eps))
    if c.dropout:
        yield _dropout(ONE)


def _dropout(runs: Poly) -> Use:
    return Use("dropout", parts.dropout(), runs, when=FORWARD, regularises=True)


def _layers(
    c: Choices, mixers: tuple[str, ...], layers: Poly, *, cross: bool = False
) -> Iterator[Use]:
    """The parts of one stack's layers, equal parts of all layers as one, and the final norm."""
    sublayers = Poly.of(1 + cross + c.ffn)
    norm = parts.layer_norm(c.norm_bias, c.norm_eps)
    if c.norm == "pre":
        yield Use("norm, before", norm, layers * sublayers, layers * sublayers)
    for name, number in _pattern(c, mixers, layers):
        yield _mixer(c, load_mixer(name), number)
    if cross:
        yield _mixer(c, load_mixer(c.cross), layers, cross=True)
    if c.ffn:
        yield Use("FFN", parts.ffn(c.activation, c.biases), layers, layers)
    if c.dropout:
        yield _dropout(layers * sublayers)
    yield Use("residual sum", parts.residual(), layers * sublayers, layers * sublayers)
    if c.norm == "post":
        yield Use("norm, after", norm, layers * sublayers, layers * sublayers)
    if c.norm == "pre":
        yield Use("norm at the end", norm)


def _mixer(c: Choices, mixer: Mixer, number: Poly, *, cross: bool = False) -> Use:
    """The mixer of `number` layers; `cross` says that it is to read the encoder's output.

    Raises:
        ModelError: a mixer that reads a second sequence where there is none, or the reverse.
    """
    reads = any(array.role == "context" for array in mixer.arrays.values())
    if reads and not cross:
        raise ModelError(
            f"{c.name}: {mixer.origin} reads a second sequence, and a layer has only one: give it "
            f"as the mixer that reads the encoder's output (cross)"
        )
    if cross and not reads:
        raise ModelError(
            f"{c.name}: {mixer.origin} reads no second sequence, so it cannot read the encoder's "
            f"output (cross): self-attention+cross does"
        )
    if sum(array.role == "input" for array in mixer.arrays.values()) > 1:
        raise ModelError(f"{c.name}: {mixer.origin} reads several inputs, and a layer has only one")
    form = c.form if c.form in mixer.forms else None
    own = {letter: Poly.of(value) for letter, value in own_sizes(c, mixer).items()}
    return Use(mixer.origin, mixer, number, number, sizes=own, form=form)


def own_sizes(c: Choices, mixer: Mixer) -> dict[str, int]:
    """The sizes of a mixer that are not the network's: the defaults of letters that the mixer
    brings, unless the network's choices give them, and the sizes in its braces."""
    brought = {x: default(x, {}, mixer) for x in mixer.own if x not in c.sizes}
    return {**brought, **mixer.given}


def _pattern(c: Choices, mixers: tuple[str, ...], layers: Poly) -> list[tuple[str, Poly]]:
    """Each mixer with the number of its layers, in the order of the mixers' first layers."""
    if len(set(mixers)) == 1:
        return [(mixers[0], layers)]
    number = layers.constant()
    if not isinstance(number, int):
        raise ModelError(
            f"{c.name}: its layers differ ({', '.join(mixers)} in turn), so their number must be "
            f"known: give --L"
        )
    turns, rest = divmod(number, len(mixers))
    found = Counter(mixers[:rest])
    for name in mixers:
        found[name] += turns
    return [(name, Poly.of(found[name])) for name in dict.fromkeys(mixers) if found[name]]


def _after_layers(c: Choices) -> Iterator[Use]:
    """Pooler, head, probabilities and loss."""
    one = {"l": ONE}
    d, f, z = (Poly.atom(letter) for letter in "dfz")
    if c.pooler:
        pooler = parts.dense("tanh", c.biases)
        yield Use("pooler", pooler, sizes={**one, "f": d}, when=PASSES, last=False)
    if c.transform != "none":
        yield Use("transform", parts.dense(c.transform, c.biases), sizes={"f": d}, last=True)
        norm = parts.layer_norm(c.norm_bias, c.norm_eps)
        yield Use("norm of the transform", norm, last=True)
    classes: dict[str, Poly] = {}
    if c.head == "classes":
        width, hidden = d * c.towers, f
        for k in range(c.hidden):
            label = "classifier" if c.hidden == 1 else f"classifier {k + 1}"
            sizes = {**one, "d": width, "f": hidden}
            yield Use(label, parts.dense("relu", c.biases), sizes=sizes, when=PASSES)
            width, hidden = hidden, hidden / 2
        classes = {**one, "u": z}
        head = parts.head(bias=c.biases or c.head_bias)
        yield Use("head", head, sizes={**classes, "d": width}, when=PASSES)
    elif c.head == "vocabulary":
        shared = frozenset({"E"}) if c.tied else frozenset()
        yield Use("head", parts.head(c.tied, c.head_bias), shared=shared, last=True)
    if c.head == "none":
        return
    when = PASSES if classes else ALWAYS
    if c.output == "probabilities":
        softmax = parts.probabilities()
        yield Use("softmax", softmax, sizes=classes, when=when, last=True)
    if c.loss and c.output == "probabilities":
        yield Use("loss", parts.loss_of_probabilities(), sizes=classes, when=FORWARD)
    elif c.loss:
        yield Use(
            "loss", parts.loss_of_scores(c.smoothing), sizes=classes, when=FORWARD,
            forms_under=FORMS_OF_SCORES,
        )  # fmt: skip


PASS = Poly.atom("l")


LAST: Mapping[str, Poly] = {
    "training": PASS,
    "backward": PASS,
    "training-step": PASS,
    "inference": Poly.atom("t"),
    "prefill": Poly.atom("p"),
    "decode": Poly.atom("p") + Poly.atom("q") - 1,
}
"""Stage of a phase -> the last position that it reads."""


@dataclass(frozen=True)
class OwnSizes:
    """The sizes of a network: defaults for sizes not given, and sizes that cannot be given."""

    sizes: Mapping[str, int] = field(default_factory=dict)
    fixed: Mapping[str, tuple[str, Poly]] = field(default_factory=dict)
    """Letter of a size that follows from others -> what from, in words, and its formula."""
    tables: Sequence[Use] = ()
    """The parts with a table of positions that has a fixed number of rows."""

    def with_given(self, given: Mapping[str, int]) -> dict[str, int]:
        """The network's own sizes, replaced by those given.

        Raises:
            SizeError: an unknown or bad size, a size that follows from others and differs, or a
                position beyond a table.
        """
        sizes = {**self.sizes, **given}
        for letter, (why, value) in self.fixed.items():
            known = letter in given and value.letters <= sizes.keys()
            if letter in given and not (known and value.rational(sizes) == given[letter]):
                raise SizeError(
                    f"{letter} follows from {why} in this network: make the network with another "
                    f"one, such as model(..., sizes={{'{letter}': {given[letter]}}})"
                )
        sizes = {**self.sizes, **checked(given)}
        for use in self.tables:
            for stage in LAST:
                if reason := beyond_table(use, stage, sizes):
                    raise SizeError(reason)
        return sizes


def beyond_table(use: Use, stage: str, sizes: Mapping[str, int]) -> str | None:
    """Why a part's table of positions does not reach to the last position that a stage reads, or
    None: it does, it has no fixed number of rows, or the sizes do not tell."""
    last = Poly.atom("e") if use.section == "encoder" else LAST[stage]
    if use.rows is None or not last.letters <= sizes.keys() or last.at(sizes) <= use.rows:
        return None
    return (
        f"{use.name}: position {last} = {last.at(sizes)} would lie beyond the table, which covers "
        f"{use.rows} positions"
    )


@dataclass(frozen=True, eq=False)
class Assembly:
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
        """The name that tables print."""
        return self.choices.title or self.choices.name

    @cached_property
    def uses(self) -> tuple[Use, ...]:
        """The parts in the order of a forward pass."""
        number = LAYERS if self.layers is None else Poly.of(self.layers)
        return assemble(self.choices, number)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The sizes to which the choices give one value; sizes that follow from others left out."""
        single = {x: v for x, v in self.choices.sizes.items() if isinstance(v, int)}
        if self.layers is not None:
            single["L"] = self.layers
        return single

    @property
    def own(self) -> OwnSizes:
        """The sizes, with those that follow from others (`widths`, a number of layers) as fixed."""
        widths = self.choices.formulas
        fixed = {x: (f"other sizes ({poly})", poly) for x, poly in widths.items()}
        if self.layers is not None:
            pattern = f"the pattern {', '.join(self.choices.mixers)}"
            fixed["L"] = (pattern, Poly.of(self.layers))
        return OwnSizes(self.sizes, fixed, [use for use in self.uses if use.rows is not None])
