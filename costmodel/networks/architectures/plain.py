"""How is a decoder read whose layers are a mixer and an FFN or experts, between norms?

Most decoder-only models are that, and differ in a few choices. A `Plain` says these choices of one
model type; fields of the configuration that several types have are read in one way for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from costmodel.language.equations import Mixer
from costmodel.networks import parts
from costmodel.networks.architectures.decoder import (
    OF_NUMBER,
    attention,
    block,
    classified,
    decoder,
    head_width,
    layer_kinds,
    mixer,
    mixture,
    part,
    rotary,
    sparse,
    unread,
)
from costmodel.networks.blocks import FORWARD, ONE, PASSES, Block, Description, Use
from costmodel.networks.configuration import Configuration
from costmodel.symbolic.polynomial import Poly

FULL, NEAR, CHUNK, LINEAR, CONV, CROSS = (
    "full_attention", "sliding_attention", "chunked_attention", "linear_attention", "conv",
    "cross_attention",
)  # fmt: skip
"""Kinds of layers, as `layer_types` names them."""

WINDOWS: Mapping[str, str] = {NEAR: "window", CHUNK: "chunked-window"}
"""Kind of a layer -> the option of attention that bounds what a token sees."""

OF_WINDOWS = ("sliding_window", "window_size", "attention_window_size")
"""Names of the field with the width of a window."""

NORMS: Mapping[str, Callable[[], Mixer]] = {
    "rms": parts.rms_norm,
    "rms, 1 + w": lambda: parts.rms_norm(gain="1 + w"),
    "rms, no weights": lambda: parts.rms_norm(gain=""),
    "layer": parts.layer_norm,
    "layer, 1 + w": lambda: parts.layer_norm(gain="1 + w"),
    "layer, no bias": lambda: parts.layer_norm(bias=False),
    "layer, no weights": lambda: parts.layer_norm(bias=False, gain=""),
}
"""The norms of a model, by name."""


OF_EXPERTS = (
    *OF_NUMBER,
    "num_experts_per_tok", "moe_topk", "moe_k", "n_shared_experts", "num_shared_experts",
    "moe_num_shared_experts", "shared_expert_intermediate_size", "shared_intermediate_size",
    "norm_topk_prob", "n_group", "topk_group",
)  # fmt: skip
"""Fields that say nothing where no layer has experts."""


@dataclass(frozen=True, kw_only=True)
class Experts:
    """The mixture of experts that takes the place of the FFN in some layers or in all.

    Args:
        scores: how scores become weights, a name in `experts.ROUTINGS`; "-normalised" is added
            where `normalised` says so: True, or the field of that name.
        width: the field with the width of an expert.
        clamped, biased: bounded gates, and biases, as in gpt-oss.
        shared: an FFN for all tokens, a name in `experts.SHARED` ("biased" in place of "plain"
            where `mlp_bias` of the configuration is true); `copies`: how many experts wide
            it is in a class without a field that says so.
        chosen: how many experts a token goes through if the configuration does not say.
        correction: a name in `experts.CORRECTIONS`; None: as is usual for the scores.
        first: how many layers at the beginning have an FFN if the configuration does not say.
        there: whether each layer has experts, in place of the usual fields.
        inner: the field with an object that has the fields of experts; "": they stand by
            themselves; `within`: the fields in the object, with their defaults; `numbers`: its
            fields that change no count, separated by spaces; `fixed`: field in the object -> its
            only values that are read.
        normed: a norm follows the sum of the experts' outputs, in layers with experts alone.
        offset: the sum of the experts' outputs has a bias.
    """

    scores: str = "softmax"
    normalised: bool | str = "norm_topk_prob"
    width: str = "moe_intermediate_size"
    clamped: bool = False
    biased: bool = False
    shared: str = ""
    copies: int = 0
    chosen: int | None = None
    correction: str | None = None
    first: int = 0
    there: Callable[[Configuration, int], list[bool]] | None = None
    inner: str = ""
    within: Mapping[str, Any] = field(default_factory=dict)
    numbers: str = ""
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    normed: bool = False
    offset: bool = False

    def layers(self, c: Configuration, number: int) -> list[bool]:
        """A list with a bool for each of `number` layers: whether the layer has experts."""
        return self.there(c, number) if self.there else sparse(c, number, self.first)

    def read(self, c: Configuration, activation: str) -> tuple[Use, str]:
        """Make the part mixture of experts with this `activation` of gates, and return (part,
        remark). The chosen scores are divided by their sum if `normalised`, or the field that it
        names, is true, or is 1, a power of the sum (ModelError for another power). The remark says
        that the class chooses within groups of experts, and the part among all; "" for a class that
        chooses among all."""
        if self.inner:
            c = c.inside(self.inner, self.within, " ".join((self.numbers, *self.fixed)))
            c.require(self.fixed)
        normal = self.normalised
        share = normal
        if isinstance(normal, str):  # a power of which the norm is 1, or a switch
            value = c.get(normal)
            power = type(value) in (int, float)
            share = power or (value is not None and c.switch(normal))
            if power and value != 1:
                raise c.refused(f"{normal} = {value!r} is not supported: expected 1.0 or None")
        routing = f"{self.scores}-normalised" if share else self.scores
        shared = self.shared
        if shared == "plain" and _switched(c, "mlp_bias"):
            shared = "biased"
            if c.get("moe_num_shared_experts") == 0:
                raise c.refused(
                    "mlp_bias = true needs shared experts, but moe_num_shared_experts = 0: set "
                    "mlp_bias = false"
                )
        found = mixture(
            c, routing, c.size(self.width), shared=shared, copies=self.copies,
            clamped=self.clamped, biased=self.biased, correction=self.correction,
            activation=activation, chosen=self.chosen, offset=self.offset,
        )  # fmt: skip
        for name in c.of_class(*OF_NUMBER):
            c.divide("n_group", name)
        groups, best = c.size_or_none("n_group") or 1, c.size_or_none("topk_group") or 1
        method = {**c.defaults, **c.fields}.get("topk_method")
        if best >= groups or method == "greedy":  # as DeepSeek-V2 calls a choice among all
            return found, ""
        return found, (
            f"experts are chosen among all, where the class compares within {best} of {groups} "
            f"groups"
        )


def latent(c: Configuration, *options: str) -> Use:
    """Make the part multi-head latent attention as in DeepSeek-V2 and V3, with further options: a
    new token attends to compressed (latent) rows, a whole sequence to the keys and values made of
    them. The class reads no number of heads of keys, and sets `head_dim` and `qk_head_dim`."""
    rotary(c)  # refuses parameters that are not known here
    biased = ("bias",) if c.switch("attention_bias", False) else ()
    c.fields_read.update(("num_key_value_heads", "rope_interleave", "head_dim"))
    c.agree(qk_head_dim=c.size("qk_nope_head_dim") + c.size("qk_rope_head_dim"))
    queries = c.size_or_none("q_lora_rank")
    found = mixer(
        "mla",
        (*(("query-compression",) if queries else ()), *biased, *options),
        n=c.size("num_attention_heads"),
        K=c.size("qk_nope_head_dim"),
        V=c.size_or_none("v_head_dim") or c.size("hidden_size") // c.size("num_attention_heads"),
        c=c.size("kv_lora_rank"),
        R=c.size("qk_rope_head_dim"),
        r=queries,
    )
    return replace(found, token_form="absorbed")


TEXT_ALONE = "the text's model alone: towers and maps for images or sound are not counted"
"""The remark on models with images or sound."""

ABSORBED = "a new token attends to latent rows (absorbed), a whole sequence to keys and values"


@dataclass(frozen=True, kw_only=True)
class Transform:
    """A linear map, an activation and a norm before the head, as in BERT.

    Args:
        activation: as this project names it, or the field with it; "": as the field of the FFN.
        bias: whether the map has a bias, or the field that says.
        width: the field with the width to which rows are mapped; "": that of the embedding.
    """

    activation: str = ""
    bias: bool | str = True
    width: str = ""


@dataclass(frozen=True, kw_only=True)
class Plain:
    """The choices of a model type.

    Args:
        name: the beginning of the names of its classes; `bare` and `head_class` are their ends, and
            `more` are ends of further classes with the same head, `called` their names elsewhere.
        kind: "decoder", or "encoder", where each token sees all.
        options: options of every attention.
        switches: field that is true or false -> the option of attention that it switches on.
        fixed: field -> its only values that are read.
        same: field of a released file -> the field of the class that says the same.
        replaced: field of the class -> a field of released files that takes its place.
        spelled: usual name of a field -> a name that released files have for the field.
        numbers: fields that change numbers and no count, separated by spaces.
        turned: the rotary embedding: an option of attention, or "".
        share: the share of channels that turn by default, of each kind of layer where kinds have
            their own, or the function that reads the share; None if all turn in every model.
        still: kinds of layers whose rows do not turn, or what says them.
        kinds: the kind of layer k of a number of layers, where `layer_types` does not say.
        mixers: kind of a layer -> its mixer, where the mixer is no attention as `attention` reads.
        ffn: "gated", "gated, clamped" (as in gpt-oss), "gated, normed" (as in BitNet) or "plain";
            `ffn_bias`: whether its maps have biases, or the field that says.
        width: the field with the width of the FFN, 4 d where the configuration has none, or what
            says the width; `activation`: the field with its activation, or, where the class has
            no field, the activation as this project names it, or what says it; `gelu`: the one
            that the class means by gelu.
        window: the width of a window, where it is not that of the usual fields.
        norm, place: names in `NORMS` and `decoder.PLACES`, the place of each kind of layer where
            kinds differ; `end`: a norm follows the layers; `begins`: the first layer has a norm
            before its mixer.
        scaled: embedded tokens are multiplied by a constant, or the field that says so.
        residual: which terms of the residual sums constants multiply, as in `parts.residual`.
        gated: kinds of layers in which they are multiplied by tanh of a parameter.
        seen: how many rows of an image, e, layers of cross-attention read.
        scale, cap: of the head, as in `parts.head`; `cap` may be the field with the bound.
        head_bias: whether scores have a bias, or the field that says.
        positions: "", "learned" or "sinusoidal"; `offset`: rows before the first of a table;
            `pads`: rows among `max_position_embeddings` before the first that a token reads.
        beyond: rows of the table of tokens beyond those of the vocabulary.
        segments: the field with the number of kinds of segments, each with a row, or what says the
            number; "" or 0: none.
        appended: (field of a switch, of rows, of their width) for each table whose row stands
            beside that of a token if the switch is on, before a linear map to d channels.
        narrow: the field with the width of embedded rows, which a linear map makes d wide where the
            width is another; "": they are d wide. `widened`: the map stands there at equal widths
            too.
        embedding_norm: a norm follows the embedding.
        transform: what stands before the head, None for nothing.
        pooler: the class without a head has a linear map and tanh of the first row; `pooled`: the
            classes with a head have these weights too, and no score reads their row.
        angles: the class has the table of its rotary embedding among its parameters.
        classifies: the class ForSequenceClassification scores the first row for each class, after
            what stands before the head.
        detects: the class ForPreTraining says of each token whether it was replaced.
        dropout: fields with probabilities of dropout, separated by spaces.
        groups: the field with the number of sets of parameters that all layers share; "": each
            layer has its own.
        state: the element type of recurrent states; "": as the weights.
        adapted: a layer -> the layer with its adapters, and how many parameters of adapters no
            token reads.
        check: what in the configuration is not read, in words; "" if all is.
        remark: what a count leaves out.
    """

    name: str
    bare: str = "Model"
    head_class: str = "ForCausalLM"
    more: tuple[str, ...] = ()
    called: tuple[str, ...] = ()
    kind: str = "decoder"
    options: tuple[str, ...] = ()
    switches: Mapping[str, str] = field(default_factory=lambda: {"attention_bias": "bias"})
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    same: Mapping[str, str] = field(default_factory=dict)
    replaced: Mapping[str, str] = field(default_factory=dict)
    spelled: Mapping[str, str] = field(default_factory=dict)
    numbers: str = ""
    turned: str = "rotary"
    share: float | Mapping[str, float] | Callable[[Configuration], float] | None = None
    still: frozenset[str] | Callable[[Configuration], frozenset[str]] = frozenset()
    kinds: Callable[[Configuration, int, int], str] | None = None
    mixers: Mapping[str, Callable[[Configuration], Use]] = field(default_factory=dict)
    ffn: str = "gated"
    ffn_bias: bool | str = "mlp_bias"
    width: str | Callable[[Configuration], int] = "intermediate_size"
    activation: str | Callable[[Configuration], str] = "hidden_act"
    gelu: str = "gelu"
    experts: Experts | None = None
    window: Callable[[Configuration], int] | None = None
    norm: str | Callable[[Configuration], str] = "rms"
    begins: bool = True
    place: str | Mapping[str, str] | Callable[[Configuration], str] = "before"
    end: bool | Callable[[Configuration], bool] = True
    ties: bool = True
    scaled: bool | str = False
    residual: str = ""
    gated: frozenset[str] = frozenset()
    seen: Callable[[Configuration], int] | None = None
    scale: str = ""
    cap: bool | str = False
    head_bias: bool | str = False
    positions: str = ""
    offset: int = 0
    pads: int = 0
    beyond: int = 0
    segments: str | Callable[[Configuration], int] = ""
    appended: tuple[tuple[str, str, str], ...] = ()
    narrow: str = ""
    widened: bool = False
    embedding_norm: bool = False
    transform: Transform | None = None
    pooler: bool = False
    pooled: bool = False
    angles: bool = False
    classifies: bool = False
    detects: bool = False
    dropout: str = ""
    groups: str = ""
    state: str = ""
    adapted: Callable[[Configuration, Block], tuple[Block, int]] | None = None
    check: Callable[[Configuration], str] | None = None
    remark: str = ""

    def read(self, c: Configuration) -> Description:
        """Describe the network that a configuration of this type describes: embedding, a block for
        each layer (mixer, then FFN or experts), and a head if its class has one. ModelError for a
        field whose value is not read here."""
        self._prepare(c)
        named = self.norm if isinstance(self.norm, str) else self.norm(c)
        number, norm = c.size("num_hidden_layers"), NORMS[named]()
        kinds = self._kinds(c, number)
        both = (FULL, *self.mixers) if self.mixers else ()  # their fields count as read
        made = {kind: self._mixer(c, kind) for kind in dict.fromkeys((*kinds, *both))}
        latent = ABSORBED if any("mla" in made[kind].label for kind in kinds) else ""
        routed, after, of_experts = self._after_mixers(c, number)
        sizes = dict[str, int]()  # letter -> value of the network's own sizes
        if self.pads:
            sizes["l"] = c.size("max_position_embeddings") - self.pads
        if self.seen:
            sizes["e"] = self.seen(c)
        if not all(routed):
            sizes["f"] = self._width(c)
        place = self.place(c) if callable(self.place) else self.place
        places = dict.fromkeys(kinds, place) if isinstance(place, str) else place
        end = self.end if isinstance(self.end, bool) else self.end(c)
        entry, drop = [*self._entry(c, norm)], self._dropout(c)
        layers = [
            block(
                _label(kind, expert, self.experts is not None), made[kind], after[expert],
                norm=norm, place=places[kind], scaled=self.residual, gated=kind in self.gated,
                dropout=drop,
            )
            for kind, expert in zip(kinds, routed, strict=True)
        ]  # fmt: skip
        layers = self._with_own_norms(layers, routed, norm)
        if self.adapted:
            adapted = [self.adapted(c, one) for one in layers]
            layers, idle = [one for one, _ in adapted], sum(number for _, number in adapted)
            if idle:
                entry.append(unread("other adapters, not read", Poly.of(idle)))
        return decoder(
            c, self.name, layers, norm if end else None, sizes, state=self.state, kind=self.kind,
            bare=self.bare, head_classes=(self.head_class, *self.more), ties=self.ties,
            called=self.called, ending_in=self._ending_in(c, norm),
            before=self._before(c, norm), pooler=self.pooler,
            sets=c.size(self.groups) if self.groups else None,
            remark="; ".join(filter(None, (self.remark, latent, of_experts))),
            scaled=_switched(c, self.scaled), cap=_switched(c, self.cap), scale=self.scale,
            bias=_switched(c, self.head_bias), entry=entry, beyond=self.beyond,
        )  # fmt: skip

    def _with_own_norms(
        self, layers: Sequence[Block], routed: Sequence[bool], norm: Mixer
    ) -> list[Block]:
        """The layers, changed where the norms of a type do not follow its `place` (before or after
        each sublayer): a norm of the experts' outputs is added in layers that are `routed` if
        `Experts.normed`, and that before the mixer of the first layer is removed unless `begins`.
        """
        found = [*layers]
        if self.experts and self.experts.normed:
            out = Use("norm, of the output", norm)
            for k, layer in enumerate(layers):
                *others, last = layer.sublayers
                if routed[k]:
                    found[k] = replace(layer, sublayers=(*others, replace(last, out=out)))
        if not self.begins:
            first, *others = found[0].sublayers
            inner = (replace(first, before=None), *others)
            found[0] = replace(found[0], name=f"first {found[0].name}", sublayers=inner)
        return found

    def _prepare(self, c: Configuration) -> None:
        """Give the configuration the class's defaults and the type's spellings of fields, and check
        the fields of `fixed`, `same` and `check`: ModelError for a value that is not read."""
        c.with_class().require(self.fixed)
        c.spellings = {**c.spellings, **self.spelled}
        c.fields_read.update(self.numbers.split())  # a field that nothing reads is refused
        c.fields_read.update((self.width,) if isinstance(self.width, str) else ())
        c.replaced(**self.replaced)
        c.agree(**{name: c.get(other) for name, other in self.same.items()})
        if self.check and (words := self.check(c)):
            raise c.refused(words)

    def _after_mixers(
        self, c: Configuration, number: int
    ) -> tuple[Sequence[bool], Mapping[bool, Use], str]:
        """(for each of `number` layers whether it has experts, True -> experts and False -> FFN,
        as far as some layer has them, a remark on the experts, "" for none)."""
        routed = self.experts.layers(c, number) if self.experts else [False] * number
        after, remark = dict[bool, Use](), ""
        if any(routed) and self.experts:
            after[True], remark = self.experts.read(c, self._activation(c))
        elif self.experts:
            c.fields_read.update((*OF_EXPERTS, self.experts.width))
        if not all(routed):
            after[False] = self._ffn(c)
        return routed, after, remark

    def _kinds(self, c: Configuration, number: int) -> list[str]:
        """The kind of attention or other mixer of each of `number` layers, as a list of names
        ("full_attention", ...): as the field `layer_types` lists them; else by the type's own rule
        (`self.kinds`); else full attention in all layers, or windows in all if the class has no
        `layer_types`, and the configuration gives their width and does not switch them off.
        ModelError for a kind that the type lacks, or windows listed while they are switched off."""
        known = dict.fromkeys((FULL, *WINDOWS, *self.mixers))
        # of a class without windows too, these two change nothing
        c.fields_read.update(("sliding_window_pattern", "max_window_layers"))
        if "sliding_window" in c.defaults:
            c.fields_read.add("sliding_window")
        if "use_sliding_window" in c.defaults and not c.switch("use_sliding_window"):
            usual = self.kinds or (lambda c, k, number: FULL)
        else:
            near = "sliding_window" in c.defaults and bool(c.size_or_none("sliding_window"))
            near = near and "layer_types" not in c.defaults  # such a class lists its windows
            usual = self.kinds or (lambda c, k, number: NEAR if near else FULL)
        if "layer_types" not in c.defaults:
            return [usual(c, k, number) for k in range(number)]
        found = layer_kinds(c, number, lambda k: usual(c, k, number), [*known])
        if NEAR in found and c.get("use_sliding_window") is False:
            raise c.refused(
                "layer_types has 'sliding_attention', but use_sliding_window is false: set "
                "use_sliding_window = true, or write 'full_attention' in layer_types"
            )
        return found

    def _mixer(self, c: Configuration, kind: str) -> Use:
        """The mixer of the layers of a `kind` ("full_attention", "sliding_attention", ...), as a
        part: the one that `mixers` has for the kind, else self-attention. Its options are those of
        the type, those that fields of the configuration switch on (`switches`), the window of the
        kind, and rotary embedding unless the kind is `still`; sizes: w of a window, r that turn."""
        if kind in self.mixers:
            return self.mixers[kind](c)
        options = {*self.options}
        options |= {option for name, option in self.switches.items()
                    if name in c.defaults and c.switch(name)}  # fmt: skip
        if {"qkv-bias", "output-bias"} <= options:
            options = options - {"qkv-bias", "output-bias"} | {"bias"}
        sizes: dict[str, int] = {}
        if kind in WINDOWS:
            options.add(WINDOWS[kind])
            fields = OF_WINDOWS if kind == NEAR else ("attention_chunk_size",)
            sizes["w"] = self.window(c) if self.window else c.size(*fields)
        if self.turned and "rotary_dim" in c.defaults:
            options.add("partial-rotary")
            sizes["r"] = c.size("rotary_dim")
        elif self.turned:
            share = self.share(c) if callable(self.share) else self.share
            share = share.get(kind) if isinstance(share, Mapping) else share
            turned, sizes_turned = rotary(c, share, kind)
            still = self.still(c) if callable(self.still) else self.still
            if kind not in still:
                options |= {self.turned} if turned == ("rotary",) else {*turned}
                sizes |= sizes_turned
        return attention(c, *sorted(options), **sizes)

    def _width(self, c: Configuration) -> int:
        """The width of the FFN, by default four times that of the rows."""
        if not isinstance(self.width, str):
            return self.width(c)
        return c.size_or_none(self.width) or 4 * c.size("hidden_size")

    def _activation(self, c: Configuration) -> str:
        """The name of the FFN's activation; a class may mean the form with tanh by gelu."""
        if callable(self.activation):
            return self.activation(c)
        if self.activation in parts.ACTIVATIONS:
            return self.activation
        found = c.activation(self.activation)
        return self.gelu if found == "gelu" else found

    def _ffn(self, c: Configuration) -> Use:
        """The FFN of layers without experts, as a part: gated, clamped, normed or plain, as `ffn`
        says; "relu2", the square of relu, is read in plain and, as the only one, in normed FFNs."""
        bias = _switched(c, self.ffn_bias)
        named = None if callable(self.activation) else c.get(self.activation)
        if self.ffn == "gated, clamped":
            return part("gated FFN", parts.gated_ffn(bias=bias, clamped=True))
        if self.ffn == "gated, normed":
            if named != "relu2":
                raise c.refused(f"{self.activation} {named!r} is not supported: expected 'relu2'")
            return part("gated FFN", parts.gated_ffn("relu", bias, normed=True))
        if self.ffn == "gated":
            return part("gated FFN", parts.gated_ffn(self._activation(c), bias))
        if named == "relu2":
            return part("FFN", parts.ffn("relu", bias, squared=True))
        if named == "xielu":
            return part("FFN", parts.ffn(named, bias))
        return part("FFN", parts.ffn(self._activation(c), bias))

    def _entry(self, c: Configuration, norm: Mixer) -> Iterable[Use]:
        """Yield the parts between the embedding and the layers, as far as the type has them:
        appended rows, positions, segments (BERT's sentence A or B), a norm, dropout, a map to d
        channels; then weights that the class has and no pass reads: of angles, of the pooler."""
        own = self._narrow(c)  # {"d": the width of embedded rows} if a map makes them d wide
        wide = Poly.atom("d")
        for switch, rows_of, width_of in self.appended:
            number, width = c.size(rows_of), Poly.of(c.size(width_of))
            label = f"rows of {rows_of.removesuffix('_vocab_size')}"
            if c.switch(switch):
                table = parts.appended(number)
                yield Use(label, table, sizes={"d": wide, "r": width}, table=True)
                wide = wide + width
            else:  # the class has the table all the same
                yield replace(unread(f"{label}, not read", number * width), table=True)
        if self.appended:
            sizes = {"d": wide, "f": Poly.atom("d")}
            yield Use("map of the embedding", parts.dense(), sizes=sizes)
        if self.positions:
            rows = c.size("max_position_embeddings") if self.positions == "learned" else None
            added = parts.positions(self.positions, offset=self.offset)
            sizes = {**own, "u": Poly.atom("l") if rows is None else Poly.of(rows)}
            yield Use(f"{self.positions} positions", added, sizes=sizes, table=True, rows=rows)
        kinds = self.segments
        segments: int = kinds(c) if callable(kinds) else c.size(kinds) if kinds else 0
        if segments:
            yield Use("segments", parts.segments(segments), sizes=own, table=True)
        if self.embedding_norm:
            yield Use("norm of the embedding", norm, sizes=own)
        if drop := self._dropout(c):
            yield replace(drop, sizes=own)
        if own:
            yield self._widened(c)
        if self.angles:
            rows = c.size("max_position_embeddings")
            angles = unread("table of angles", Poly.of(rows * head_width(c)))
            yield replace(angles, rows=rows)
        *heads, bare = (self.name + end for end in (self.head_class, *self.more, self.bare))
        if self.pooled and c.architecture(*heads, bare) != bare:
            d = Poly.atom("d")
            yield unread("pooler, not read", d * d + d)

    def _dropout(self, c: Configuration) -> Use | None:
        """The part dropout; None if the type has none, or all its probabilities are 0."""
        if self.dropout and c.some(*self.dropout.split()):
            return Use("dropout", parts.dropout(), when=FORWARD, regularises=True)
        return None

    def _narrow(self, c: Configuration) -> dict[str, Poly]:
        """The width of embedded rows as the size d of parts; {} where no map makes them d wide."""
        width = c.size_or_none(self.narrow) if self.narrow else None
        if width is None or (width == c.size("hidden_size") and not self.widened):
            return {}
        return {"d": Poly.of(width)}

    def _widened(self, c: Configuration) -> Use:
        """The linear map of embedded rows to d channels."""
        sizes = {**self._narrow(c), "f": Poly.atom("d")}
        return Use("map of the embedding", parts.dense(), sizes=sizes)

    def _ending_in(self, c: Configuration, norm: Mixer) -> dict[str, tuple[Use, ...]]:
        """The end of the name of each further class -> its parts after the layers: ForPreTraining
        scores each token, ForSequenceClassification the first row, in passes over a sequence."""
        found = {"ForPreTraining": self._detected(c)} if self.detects else {}
        if self.classifies:
            first = [
                replace(use, sizes={**use.sizes, "l": ONE}, last=False, when=PASSES)
                for use in self._before(c, norm)
            ]
            found["ForSequenceClassification"] = (*first, *classified(c))
        return found

    def _detected(self, c: Configuration) -> tuple[Use, ...]:
        """The parts that score each token, as in ELECTRA: a linear map with the activation of the
        FFN, and a linear map to one number."""
        first = parts.dense(self._activation(c))
        return (
            Use("transform", first, sizes={"f": Poly.atom("d")}),
            Use("score of each token", parts.dense(), sizes={"f": Poly.of(1)}),
        )

    def _before(self, c: Configuration, norm: Mixer) -> tuple[Use, ...]:
        """The parts between the last layer and the head, as in BERT: a linear map with an
        activation, to the width that the type names or else to that of the embedding, and `norm`.
        () if this type of model has no such parts."""
        t = self.transform
        if t is None:
            return ()
        activation = self._activation(c)
        if t.activation:
            known = t.activation in parts.ACTIVATIONS
            activation = t.activation if known else c.activation(t.activation)
        d = Poly.of(c.size(t.width)) if t.width else self._narrow(c).get("d", Poly.atom("d"))
        dense = parts.dense(activation, _switched(c, t.bias))
        return (
            Use("transform", dense, sizes={"f": d}, last=True),
            Use("norm of the transform", norm, sizes={"d": d}, last=True),
        )


def _switched(c: Configuration, value: bool | str) -> bool:
    """Whether a part is there. A bool `value` says so itself; a string names the configuration's
    field that says: True for a float (a constant, such as a bound), False for null, the value
    itself for a boolean; False if the class has no such field. ModelError for any other value, an
    int included."""
    if not isinstance(value, str):
        return value
    if value not in c.defaults:
        return False
    found = c.get(value)
    return found is not None if isinstance(found, float | None) else c.switch(value)


def _label(kind: str, routed: bool, mixed: bool) -> str:
    """The name of a layer, such as "sliding experts": its kind and, in a model where some layers
    have experts (`mixed`), "experts" or "dense"."""
    inner = ("experts" if routed else "dense") if mixed else ""
    return " ".join(filter(None, (kind.removesuffix("_attention"), inner)))
