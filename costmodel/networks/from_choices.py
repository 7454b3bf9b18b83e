"""Which blocks do a network's choices describe?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from costmodel.errors import ModelError
from costmodel.language.equations import Mixer
from costmodel.mixers.load import mixer as load_mixer
from costmodel.networks import parts
from costmodel.networks.blocks import (
    ALWAYS,
    FORWARD,
    ONE,
    PASSES,
    Block,
    Description,
    Stack,
    Sublayer,
    Use,
    crosses,
)
from costmodel.networks.choices import Choices
from costmodel.program.chosen_sizes import default
from costmodel.program.losses import FORMS_OF_SCORES
from costmodel.symbolic.polynomial import Poly


def description(c: Choices) -> Description:
    """Make the description of a network by stacks, blocks and parts, from its choices. Both stacks
    of an encoder-decoder share the embedding E if `shared_vocabulary`.

    Raises:
        ModelError: a form that no mixer has, or a mixer whose inputs a layer does not have.
        UnknownMixer: a mixer that does not exist.
    """
    if c.kind == "encoder-decoder":
        shared = frozenset({"E"}) if c.shared_vocabulary else frozenset()
        stacks: tuple[Stack, ...] = (
            _stack(c, c.encoder_mixers, section="encoder", tokens=Poly.atom("e"), when=PASSES),
            _stack(c, c.mixers, section="decoder", cross=True, shared=shared),
        )
    else:
        stacks = (_stack(c, c.mixers),)
    found = Description(
        c.name, stacks, tuple(_after_layers(c)), c.kind, title=c.title, source=c.source,
        place=c.place, remark=c.remark, towers=c.towers, sizes=c.sizes, formulas=c.formulas,
        assumed=c.assumed, choices=c,
    )  # fmt: skip
    if c.form and not any(c.form == use.form for use in found.parts()):
        raise ModelError(
            f"{c.name}: none of its mixers has a form '{c.form}': their forms are "
            f"{', '.join(dict.fromkeys(name for use in found.parts() for name in use.mixer.forms))}"
        )
    return found


def _stack(
    c: Choices,
    mixers: tuple[str, ...],
    *,
    section: str = "",
    tokens: Poly = Poly.atom("l"),
    when: frozenset[str] = ALWAYS,
    cross: bool = False,
    shared: frozenset[str] = frozenset(),
) -> Stack:
    """Make a stack of layers: embedding and positions, a block for each of `mixers`, and a norm at
    the end if norms stand before sublayers. `tokens`: the length of its sequence; `when`: the
    passes in which it runs. `cross`: its layers also read the encoder's output; `shared`:
    parameters of the embedding that are counted at another part."""
    norm = Use("norm at the end", parts.layer_norm(bias=c.norm_bias, eps=c.norm_eps))
    end = (norm,) if c.norm == "pre" else ()
    blocks = tuple(_Layers(c, cross).blocks(mixers))
    return Stack(tuple(_input(c, shared)), blocks, end, section, tokens, when)


def _input(c: Choices, shared: frozenset[str]) -> Iterator[Use]:
    """Yield the parts before the layers, as far as chosen: embedding, positions, segments, a norm
    of the embedding, dropout. `shared`: parameters of the embedding that are counted elsewhere."""
    scaled = c.scale != "none"
    product = c.embedding == "one-hot"
    embedding = parts.one_hot(scaled) if product else parts.look_up(scaled)
    yield Use("embedding", embedding, shared=shared, table=True)
    if c.positions != "none":
        learned = c.positions == "learned"
        rows = (c.position_rows or None) if learned else None  # of the table; None: one a token
        added = parts.positions(
            c.positions, product=product and learned, scaled=learned and c.scale == "all"
        )
        sizes = {"u": Poly.atom("l") if rows is None else Poly.of(rows)}
        yield Use(f"{c.positions} positions", added, sizes=sizes, table=True, rows=rows)
    if c.segments:
        yield Use("segments", parts.segments(c.segments), table=True)
    if c.embedding_norm:
        yield Use("norm of the embedding", parts.layer_norm(bias=c.norm_bias, eps=c.norm_eps))
    if c.dropout:
        yield _dropout()


def _dropout() -> Use:
    return Use("dropout", parts.dropout(), when=FORWARD, regularises=True)


@dataclass(frozen=True)
class _Layers:
    """The layers of a stack; `cross`: they read the encoder's output too."""

    c: Choices
    cross: bool

    def blocks(self, mixers: tuple[str, ...]) -> Iterator[Block]:
        """Yield a block for each mixer: the mixer, a mixer that reads the encoder's output in a
        decoder with `cross`, and an FFN if chosen. Equal names give the same block."""
        c, made = self.c, dict[str, Block]()
        for name in mixers:
            if name not in made:
                inner = [_mixer(c, load_mixer(name))]
                if self.cross:
                    inner.append(_mixer(c, load_mixer(c.cross), cross=True))
                if c.ffn:
                    inner.append(Use("FFN", parts.ffn(c.activation, c.biases)))
                made[name] = Block(name, tuple(map(self._sublayer, inner)))
            yield made[name]

    def _sublayer(self, part: Use) -> Sublayer:
        """A part as a sublayer: with a residual sum, a norm before or after it, and dropout, as
        chosen."""
        c, norm = self.c, parts.layer_norm(self.c.norm_bias, self.c.norm_eps)
        return Sublayer(
            part,
            Use("residual sum", parts.residual()),
            Use("norm, before", norm) if c.norm == "pre" else None,
            Use("norm, after", norm) if c.norm == "post" else None,
            _dropout() if c.dropout else None,
        )


def _mixer(c: Choices, mixer: Mixer, *, cross: bool = False) -> Use:
    """The mixer of a layer as a part, with its sizes and form; `cross` says that it is to read the
    encoder's output."""
    refuse_inputs(c.name, mixer, cross=cross)
    form = c.form if c.form in mixer.forms else None
    own = {letter: Poly.of(value) for letter, value in own_sizes(c, mixer).items()}
    return Use(mixer.origin, mixer, sizes=own, form=form)


def refuse_inputs(network: str, mixer: Mixer, *, cross: bool) -> None:
    """Raise ModelError, with the network's name, for a mixer that reads a second sequence without
    `cross`, one sequence alone with `cross`, or several inputs."""
    reads = crosses(mixer)
    if reads and not cross:
        raise ModelError(
            f"{network}: {mixer.origin} reads a second sequence, and a layer has only one: choose "
            f"another mixer, or, of an encoder-decoder, --cross {mixer.origin}"
        )
    if cross and not reads:
        raise ModelError(
            f"{network}: {mixer.origin} reads no second sequence, and --cross needs a mixer that "
            "reads the encoder's output, such as self-attention+cross"
        )
    if sum(array.role == "input" for array in mixer.arrays.values()) > 1:
        raise ModelError(
            f"{network}: {mixer.origin} reads several inputs, and a layer has only one: choose a "
            "mixer of one input"
        )


def own_sizes(c: Choices, mixer: Mixer) -> dict[str, int]:
    """The sizes of a mixer that are not the network's: the defaults of letters that the mixer
    brings, unless the network's choices give them, and the sizes in its braces."""
    brought = {x: default(x, {}, mixer) for x in mixer.own if x not in c.sizes}
    return {**brought, **mixer.given}


def _after_layers(c: Choices) -> Iterator[Use]:
    """Yield the parts after the layers, as far as chosen: transform with a norm, pooler,
    classifier (hidden layers f, f/2, ... wide), head, probabilities and loss. A head over z classes
    (`classes`: its sizes, {} for a head over the vocabulary) reads the first row (l = 1) of each
    tower, all as one row."""
    one = {"l": ONE}
    d, f, z = (Poly.atom(letter) for letter in "dfz")
    if c.transform != "none":
        yield Use("transform", parts.dense(c.transform, c.biases), sizes={"f": d}, last=True)
        norm = parts.layer_norm(bias=c.norm_bias, eps=c.norm_eps)
        yield Use("norm of the transform", norm, last=True)
    if c.pooler:
        yield Use("pooler", parts.dense("tanh", c.biases), sizes={**one, "f": d}, when=PASSES)
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
        yield Use("head", parts.head(tied=c.tied, bias=c.head_bias), shared=shared, last=True)
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
