"""What have decoder-only models in common: norms before each sublayer, a head over the vocabulary?

A family's reader makes the blocks; `decoder` puts embedding, norm, head and loss around them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from costmodel.language.equations import Mixer
from costmodel.mixers.load import mixer as load_mixer
from costmodel.networks import parts
from costmodel.networks.blocks import (
    FORWARD,
    Block,
    Description,
    Stack,
    Sublayer,
    Use,
    in_turn,
)
from costmodel.networks.configuration import Configuration
from costmodel.program.losses import FORMS_OF_SCORES
from costmodel.symbolic.polynomial import Poly


def mixer(name: str, options: Sequence[str], **sizes: int | None) -> Use:
    """A mixer with options and sizes of its own; sizes that are None follow from others."""
    own = ",".join(f"{letter}={value}" for letter, value in sizes.items() if value is not None)
    found = load_mixer("+".join((name, *options)) + f"{{{own}}}")
    return part(found.origin, found, **found.given)


def part(label: str, mixer: Mixer, **sizes: int) -> Use:
    """A part with sizes of its own."""
    return Use(label, mixer, sizes={letter: Poly.of(value) for letter, value in sizes.items()})


def block(name: str, *inner: Use, norm: Mixer) -> Block:
    """A layer of sublayers, each with a norm before and a residual sum after."""
    sublayers = (Sublayer(use, _residual(), Use("norm, before", norm)) for use in inner)
    return Block(name, tuple(sublayers))


def _residual() -> Use:
    return Use("residual sum", parts.residual())


def attention(
    c: Configuration, *options: str, name: str = "self-attention", **sizes: int | None
) -> Use:
    """Attention of n heads, of g heads of keys and values, and of their width, by the usual
    fields."""
    n = c.size("num_attention_heads")
    g = c.size_or_none("num_key_value_heads") or n
    width = c.size_or_none("head_dim") or c.size("hidden_size") // n
    grouped = ("grouped",) if g != n else ()
    groups = g if grouped else None
    return mixer(name, (*grouped, *options), n=n, g=groups, h=width, **sizes)


def decoder(
    c: Configuration,
    class_prefix: str,
    blocks: Sequence[Block],
    norm: Mixer,
    sizes: Mapping[str, int] | None = None,
    head_bias: bool = False,
) -> Description:
    """A decoder of these layers, with the head that the model's class has.

    Raises:
        ModelError: a class that is not known.
    """
    classes = (f"{class_prefix}ForCausalLM", f"{class_prefix}Model")
    scored = c.architecture(*classes) == classes[0]
    tied = c.switch("tie_word_embeddings") and scored
    head = parts.head(tied, head_bias)
    ending = (
        Use("head", head, shared=frozenset({"E"}) if tied else frozenset(), last=True),
        Use("loss", parts.loss_of_scores(), when=FORWARD, forms_under=FORMS_OF_SCORES),
    )
    own = {
        "d": c.size("hidden_size"),
        "L": len(blocks),
        "l": c.size("max_position_embeddings"),
        "u": c.size("vocab_size"),
        **(sizes or {}),
    }
    stack = Stack(
        (Use("embedding", parts.look_up(), table=True),),
        in_turn(blocks),
        (Use("norm at the end", norm),),
    )
    return Description(
        c.name, (stack,), ending if scored else (), source=c.source, sizes=own, dtype=c.dtype
    )  # fmt: skip


def full(c: Configuration, rotary: Mapping[str, object]) -> None:
    """Refuse a rotary embedding of another shape than the whole head's."""
    if rotary:
        name, value = next(iter(rotary.items()))
        raise c.refused(f"rotary parameter '{name}' = {value!r} is not read")
