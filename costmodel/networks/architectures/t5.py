"""Which network does a configuration of T5, mT5 or UMT5 describe?

An encoder and a decoder with cross-attention. Positions are learned numbers, by the distance of two
tokens, that are added to scores; in T5 and mT5 all layers of a stack share those of the first. The
class ties the head and both embeddings, whatever the configuration says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from costmodel.networks import parts
from costmodel.networks.architectures.decoder import block, mixer, part
from costmodel.networks.blocks import (
    ALWAYS,
    FORWARD,
    PASSES,
    Description,
    Stack,
    Use,
    in_turn,
)
from costmodel.networks.configuration import ACTIVATIONS, Configuration
from costmodel.program.losses import FORMS_OF_SCORES
from costmodel.symbolic.polynomial import Poly

TABLE = frozenset({"b_rel"})
"""The parameter that layers share with the first one."""


@dataclass(frozen=True, kw_only=True)
class T5:
    """The choices of a type.

    Args:
        name: the beginning of the names of its classes.
        every: whether each layer has a table of its own of these learned numbers.
        scaled: whether rows are divided by sqrt(d) before the head; None: unless the configuration
            says that the head is not tied.
    """

    name: str
    every: bool = False
    scaled: bool | None = None

    def read(self, c: Configuration) -> Description:
        """Describe the network of the class that a configuration names: encoder, decoder and head
        (ForConditionalGeneration), without the head (Model), or the encoder alone (EncoderModel).
        """
        c.with_class().require({"is_encoder_decoder": (True,), "is_decoder": (False,)})
        # the last two follow from feed_forward_proj
        c.fields_read.update(
            ("relative_attention_max_distance", "initializer_factor", "classifier_dropout",
             "n_positions", "output_past", "dense_act_fn", "is_gated_act")
        )  # fmt: skip
        ends = ("ForConditionalGeneration", "Model", "EncoderModel")
        named = c.architecture(*(self.name + end for end in ends)).removeprefix(self.name)
        tied, saved = c.get("tie_word_embeddings") is not False, c.get("scale_decoder_outputs")
        tied = tied if saved is None else saved  # the class saves there whether the file ties them
        scaled = tied if self.scaled is None else self.scaled  # rows are divided before the head
        deep = c.size("num_layers")
        layers = c.size_or_none("num_decoder_layers") or deep
        if named == "EncoderModel":
            layers = deep
            stacks: tuple[Stack, ...] = (self._stack(c, deep, decodes=False),)
        else:
            stacks = self._both_stacks(c, deep, layers)
        head = Use("head", parts.head(tied=True), shared=frozenset({"E"}), last=True)
        loss = parts.loss_of_scores()
        ending = (
            *((Use("scale", parts.scale(), last=True),) if scaled else ()),
            head,
            Use("loss", loss, when=FORWARD, forms_under=FORMS_OF_SCORES),
        )
        return Description(
            c.name,
            stacks,
            ending if named == ends[0] else (),
            "encoder" if named == ends[2] else "encoder-decoder",
            source=c.source,
            sizes={
                "d": c.size("d_model"), "L": layers, "u": c.size("vocab_size"), "f": c.size("d_ff"),
            },
            dtype=c.dtype,
            model_type=c.fields["model_type"],
        )  # fmt: skip

    def _both_stacks(self, c: Configuration, deep: int, layers: int) -> tuple[Stack, Stack]:
        """The stacks of the encoder, `deep` layers of e tokens, and of the decoder, with a number
        of `layers`; both have one embedding."""
        encoder = self._stack(c, deep, decodes=False)
        embedding, *others = encoder.entry
        encoder = replace(
            encoder,
            entry=(replace(embedding, shared=frozenset({"E"})), *others),
            section="encoder",
            tokens=Poly.atom("e"),
            when=PASSES,
            depth=None if deep == layers else deep,
        )
        return encoder, replace(self._stack(c, layers, decodes=True), section="decoder")

    def _stack(self, c: Configuration, layers: int, *, decodes: bool) -> Stack:
        """The stack of the encoder, or, if `decodes`, of the decoder: embedding, `layers` layers
        and a norm. A layer of the decoder has cross-attention between self-attention and FFN. The
        table of the positions' learned numbers (`TABLE`) belongs to the first layer, whose table
        the others share, unless each layer has its own (`every`)."""
        norm, drop = parts.rms_norm(), None
        entry = [Use("embedding", parts.look_up(), table=True)]
        if c.some("dropout_rate"):
            drop = Use("dropout", parts.dropout(), when=FORWARD, regularises=True)
            entry.append(drop)
        ways = () if decodes else ("bidirectional",)
        buckets, shape = c.size("relative_attention_num_buckets"), self._heads(c)
        first = mixer("self-attention", ("unscaled", "relative-bias", *ways), B=buckets, **shape)
        later, shared = first, frozenset[str]() if self.every else TABLE
        if shared:
            label = f"{first.label}, numbers of the first layer"
            later = replace(first, label=label, shared=shared)
        inner = [self._ffn(c)]
        if decodes:
            inner.insert(0, mixer("self-attention", ("cross", "unscaled"), **shape))
        one, other = (
            block(attention.mixer.base, attention, *inner, norm=norm, dropout=drop)
            for attention in (first, later)
        )
        blocks = in_turn([other if k else one for k in range(layers)])
        end = [Use("norm at the end", norm), *([drop] if drop else [])]
        return Stack(tuple(entry), blocks, tuple(end), when=ALWAYS, first=shared)

    def _heads(self, c: Configuration) -> dict[str, int]:
        return {"n": c.size("num_heads"), "h": c.size("d_kv")}

    def _ffn(self, c: Configuration) -> Use:
        """Make the FFN, as a part, that the field `feed_forward_proj` names: an activation
        ("relu"), or "gated-" and an activation for a gated FFN; "gated-gelu" takes gelu in its form
        with tanh. ModelError for an unknown name."""
        named = str(c.get("feed_forward_proj"))
        name = "gelu_new" if named == "gated-gelu" else named.removeprefix("gated-")
        if name not in ACTIVATIONS:
            raise c.refused(
                f"feed_forward_proj '{named}' is unknown: expected one of "
                f"{', '.join(ACTIVATIONS)}, or 'gated-' with one of these names"
            )
        if named.startswith("gated-"):
            return part("gated FFN", parts.gated_ffn(ACTIVATIONS[name]))
        return part("FFN", parts.ffn(ACTIVATIONS[name], bias=False))


T5S: Mapping[str, T5] = {
    "mt5": T5(name="MT5", scaled=False),
    "t5": T5(name="T5"),
    "umt5": T5(name="UMT5", every=True, scaled=True),
}
"""model_type -> the choices of the type."""
