"""Which network does a configuration of BART or of one of its relatives describe?

The class ForCausalLM is the decoder alone. It has the weights of cross-attention, and reads none of
them without an encoder. The other classes have an encoder and a decoder with cross-attention. Where
a type differs from BART is a `Bart`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from costmodel.networks import parts
from costmodel.networks.architectures.decoder import block, decoder, mixer, part, unread
from costmodel.networks.blocks import FORWARD, PASSES, Block, Description, Stack, Use, in_turn
from costmodel.networks.configuration import Configuration
from costmodel.program.losses import FORMS_OF_SCORES
from costmodel.questions.parameters import parameters
from costmodel.symbolic.polynomial import Poly, sum_of

UNREAD = (
    "the decoder alone: its class has weights of cross-attention, which count as parameters, and "
    "reads none of them"
)
CONSTANT = "final_logits_bias, zeros that the class adds to scores, are not counted"
NUMBERS = """
    activation_dropout attention_dropout classif_dropout classifier_dropout decoder_layerdrop
    encoder_layerdrop init_std extra_pos_embeddings force_bos_token_to_be_generated output_past
    do_sample early_stopping encoder_no_repeat_ngram_size length_penalty max_length min_length
    no_repeat_ngram_size num_beam_groups num_beams num_return_sequences diversity_penalty
    bad_words_ids repetition_penalty temperature top_k top_p do_blenderbot_90_layernorm
    extra_layer_norm layernorm_variant unk_token_id
"""
"""Fields that change no count here: on generation, initial weights, dropout, dropped layers."""


@dataclass(frozen=True, kw_only=True)
class Bart:
    """The choices of a type.

    Args:
        name: the beginning of the names of its classes; `scored`: the end of that with an encoder,
            a decoder and a head, "" for a type whose encoder no network here has.
        place: where the norms of a layer stand, a name in `decoder.PLACES`.
        normed: a norm follows the embedding, or the field that says so; `first`: before positions
            are added. `end`: a norm follows the layers.
        positions: "learned", or "sinusoidal", whose table is among the parameters of the class and
            is not trained; `offset`: rows before the first one of a learned table.
        biased: attention has biases, or the field that says so; `keyless`: those of keys aside.
        ties: the class ForCausalLM ties its head where the configuration says so.
        numbers: fields of an encoder that no network here has, separated by spaces.
        fixed: field -> its only values that are read.
    """

    name: str
    scored: str = "ForConditionalGeneration"
    place: str = "after"
    normed: bool | str = True
    first: bool = False
    end: bool = False
    positions: str = "learned"
    offset: int = 2
    biased: bool | str = True
    keyless: bool = False
    ties: bool = True
    numbers: str = ""
    fixed: Mapping[str, tuple[object, ...]] = field(default_factory=dict)

    def read(self, c: Configuration) -> Description:
        """The description of the network that a configuration names by its class: ForCausalLM, the
        default, is a decoder with a head; Model an encoder and a decoder; and the class whose name
        ends with `scored` adds head, loss and the remark `CONSTANT` to these two. ModelError:
        another class, or a field with a value that is not read."""
        c.with_class().require(self.fixed)
        c.fields_read.update((*NUMBERS.split(), *self.numbers.split()))
        whole = (self.scored, "Model") if self.scored else ()
        named = c.architecture(*(self.name + end for end in ("ForCausalLM", *whole)))
        c.agree(
            num_hidden_layers=c.get("encoder_layers" if self.scored else "decoder_layers"),
            normalize_before=self.place == "before", normalize_embedding=self.normed,
            add_final_layer_norm=self.end, static_position_embeddings=self.positions != "learned",
            add_bias_logits=False, decoder_vocab_size=c.get("vocab_size"),
        )  # fmt: skip
        deep = c.size("decoder_layers")
        if named == f"{self.name}ForCausalLM":
            return self._decoder_alone(c, deep)
        c.require({"is_encoder_decoder": (True,), "tie_word_embeddings": (True,)})
        shallow = c.size("encoder_layers")
        encoder, decoding = (
            Stack(
                (self._embedding(c, shared=way == "encoder"), *self._entry(c)),
                in_turn([block] * layers),
                (Use("norm at the end", parts.layer_norm()),) if self.end else (),
                section=way,
            )
            for way, layers, block in (
                ("encoder", shallow, self._block(c, "encoder", "bidirectional")),
                ("decoder", deep, self._block(c, "decoder", "", "cross")),
            )
        )
        encoder = replace(
            encoder, tokens=Poly.atom("e"), when=PASSES, depth=None if shallow == deep else shallow
        )
        head = Use("head", parts.head(tied=True), shared=frozenset({"E"}), last=True)
        loss = Use("loss", parts.loss_of_scores(), when=FORWARD, forms_under=FORMS_OF_SCORES)
        ends = named == self.name + self.scored  # the class with a head and a loss
        rows = c.size("max_position_embeddings")
        return Description(
            c.name,
            (encoder, decoding),
            (head, loss) if ends else (),
            "encoder-decoder",
            source=c.source,
            remark=CONSTANT if ends else "",
            sizes={
                "d": c.size("d_model"), "L": deep, "u": c.size("vocab_size"), "l": rows, "e": rows,
            },
            dtype=c.dtype,
            model_type=c.fields["model_type"],
        )  # fmt: skip

    def _decoder_alone(self, c: Configuration, deep: int) -> Description:
        """The description of the network of the class ForCausalLM: a decoder of `deep` layers with
        a head, and weights of cross-attention that no pass reads. Fields of the encoder change
        nothing: they count as read."""
        c.fields_read.update(("encoder_layers", "encoder_ffn_dim", "encoder_attention_heads"))
        c.fields_read.update(("is_encoder_decoder", "is_decoder", "num_attention_heads"))
        entry, layers = self._entry(c), [self._block(c, "decoder")] * deep
        crossing = self._block(c, "decoder", "cross").sublayers[0]
        inside = [use for use in crossing.around if use is not None]  # with its norm
        number = sum_of(parameters(u.mixer).poly.substitute(u.sizes) for u in inside)
        entry.append(unread("cross-attention, not read", number * deep))
        return decoder(
            c, self.name, layers, parts.layer_norm() if self.end else None, bare="Decoder",
            entry=entry, scaled=c.switch("scale_embedding"), ties=self.ties, remark=UNREAD,
        )  # fmt: skip

    def _embedding(self, c: Configuration, *, shared: bool) -> Use:
        """The embedding of a stack; `shared`: the other stack has its parameters."""
        table = parts.look_up(c.switch("scale_embedding"))
        return Use("embedding", table, table=True, shared=frozenset({"E"} if shared else ()))

    def _entry(self, c: Configuration) -> list[Use]:
        """The parts between the embedding and the layers: positions (and, unless learned, their
        table as an array that no pass trains), a norm, dropout."""
        rows = c.size("max_position_embeddings", "max_target_positions")
        learned = self.positions == "learned"
        added = parts.positions(self.positions, offset=self.offset if learned else 0)
        found = [Use(f"{self.positions} positions", added, sizes={"u": Poly.of(rows)},
                     table=True, rows=rows)]  # fmt: skip
        if not learned:
            found.append(unread("table of positions, not trained", rows * Poly.atom("d")))
        if self.normed if isinstance(self.normed, bool) else c.switch(self.normed):
            # before positions are added, or after
            found.insert(0 if self.first else 1, Use("norm of the embedding", parts.layer_norm()))
        return [*found, *self._dropout(c)]

    def _dropout(self, c: Configuration) -> Sequence[Use]:
        drop = Use("dropout", parts.dropout(), when=FORWARD, regularises=True)
        return [drop] if c.some("dropout") else []

    def _block(self, c: Configuration, way: str, *kinds: str) -> Block:
        """A layer of the encoder or the decoder (`way`: "encoder" or "decoder"): an attention for
        each of `kinds` (options of self-attention, "" for none), and an FFN."""
        biased = self.biased if isinstance(self.biased, bool) else c.switch(self.biased)
        n, d = c.size(f"{way}_attention_heads"), c.size("d_model")
        if d % n:
            raise c.refused(
                f"{n} heads ('{way}_attention_heads') do not divide the {d} channels of a row "
                f"('d_model')"
            )
        bias = ("keyless-bias" if self.keyless else "bias",) if biased else ()
        inner = [
            mixer("self-attention", (*bias, *filter(None, [kind])), n=n, h=d // n)
            for kind in kinds or ("",)
        ]
        ffn = parts.ffn(c.activation("activation_function"))
        drop = next(iter(self._dropout(c)), None)
        return block(
            way, *inner, part("FFN", ffn, f=c.size(f"{way}_ffn_dim")), norm=parts.layer_norm(),
            place=self.place, dropout=drop,
        )  # fmt: skip


BARTS: Mapping[str, Bart] = {
    "bart": Bart(name="Bart"),
    "bigbird_pegasus": Bart(
        name="BigBirdPegasus", scored="", place="before", normed=False, end=True, offset=0,
        biased="use_bias", ties=False,
    ),
    "blenderbot": Bart(name="Blenderbot", place="before", normed=False, end=True, offset=0),
    "blenderbot-small": Bart(name="BlenderbotSmall", first=True, offset=0),
    "marian": Bart(
        name="Marian", scored="MTModel", normed=False, positions="sinusoidal",
        fixed={"share_encoder_decoder_embeddings": (True,)},
    ),
    "mbart": Bart(name="MBart", place="before", end=True),
    "mvp": Bart(name="Mvp", fixed={"use_prompt": (False,)}),
    "pegasus": Bart(
        name="Pegasus", place="before", normed=False, end=True, positions="sinusoidal"
    ),
    "plbart": Bart(name="PLBart"),
    "trocr": Bart(
        name="TrOCR", scored="", normed="layernorm_embedding",
        fixed={"use_learned_position_embeddings": (True,)},
    ),
    "whisper": Bart(
        name="Whisper", scored="", place="before", normed=False, end=True, offset=0, keyless=True,
        numbers="apply_spec_augment begin_suppress_tokens classifier_proj_size "
        "mask_feature_length mask_feature_min_masks mask_feature_prob mask_time_length "
        "mask_time_min_masks mask_time_prob max_source_positions median_filter_width num_mel_bins "
        "suppress_tokens use_weighted_layer_sum",
    ),
}  # fmt: skip
"""model_type -> the choices of the type."""
