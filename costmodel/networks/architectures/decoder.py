"""What have decoder-only models in common: norms before each sublayer, a head over the vocabulary?

A family's reader makes the blocks, of parts (`Use`); `decoder` puts embedding, norm, head and loss
around them. A field that no reader takes is refused: fields that change no count are added to
`fields_read`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from costmodel.language.equations import Mixer
from costmodel.mixers.load import mixer as load_mixer
from costmodel.networks import parts
from costmodel.networks.blocks import (
    FORWARD,
    ONE,
    PASSES,
    Block,
    Description,
    Stack,
    Sublayer,
    Use,
    in_turn,
)
from costmodel.networks.configuration import Configuration, FieldSize
from costmodel.networks.experts import experts
from costmodel.program.chosen_sizes import fit
from costmodel.program.losses import FORMS_OF_SCORES
from costmodel.symbolic.polynomial import Poly


def mixer(name: str, options: Sequence[str], **sizes: int | None) -> Use:
    """Make the part of the mixer `name` with options and sizes (letter=value) of its own. A size
    that is None is not given: it is the network's, or follows from others.

    Raises:
        SizeError: sizes that do not fit the mixer; the message names fields in place of letters.
    """
    own = ",".join(f"{letter}={value}" for letter, value in sizes.items() if value is not None)
    found = load_mixer("+".join((name, *options)) + f"{{{own}}}")
    fields = {x: size.field for x, size in sizes.items() if isinstance(size, FieldSize)}
    fit(found, found.given, called=fields)
    return part(found.origin, found, **found.given)


def part(label: str, mixer: Mixer, **sizes: int) -> Use:
    """A part with sizes of its own."""
    return Use(label, mixer, sizes={letter: Poly.of(value) for letter, value in sizes.items()})


def unread(label: str, number: Poly) -> Use:
    """Make a part of `number` parameters that a class has and no pass reads, such as a pooler."""
    return Use(label, parts.unread(), sizes={"r": number}, when=frozenset())


PLACES: Mapping[str, str] = {
    "before": "each sublayer has a norm before",
    "output": "each sublayer has a norm of its output, before the sum, as in OLMo 2",
    "both": "each sublayer has both",
    "after": "each sum has a norm after",
    "beside": "all sublayers read the rows of one norm, as in GPT-J",
    "beside, apart": "all sublayers read the same rows, each by a norm of its own, as in GPT-NeoX",
}
"""Where the norms of a layer stand, and whether its sublayers read one another, by name."""


def block(
    name: str,
    *inner: Use,
    norm: Mixer,
    place: str = "before",
    scaled: str = "",
    gated: bool = False,
    dropout: Use | None = None,
) -> Block:
    """Make a layer called `name` whose sublayers are the parts `inner`, in order, each followed by
    a residual sum.

    Args:
        norm: the equations of each norm.
        place: where norms stand (`PLACES`): "before" each sublayer, of its "output" before the sum,
            "both", "after" each sum; all sublayers read the layer's input if "beside" (by one norm)
            or "beside, apart" (by a norm each).
        scaled, gated: which terms of the residual sum constants multiply, and whether tanh of a
            parameter multiplies the output, as in `parts.residual`.
        dropout: what each output passes before the sum.
    """
    total = Use("residual sum", parts.residual(scaled, gated=gated))
    out = Use("norm, of the output", norm) if place in ("output", "both") else None
    before = None if place in ("output", "after") else Use("norm, before", norm)
    after = Use("norm, after", norm) if place == "after" else None
    found = []
    for k, use in enumerate(inner):
        beside = k > 0 and place.startswith("beside")
        own = None if beside and place == "beside" else before
        found.append(Sublayer(use, total, own, after, dropout, out, beside))
    return Block(name, tuple(found))


def attention(
    c: Configuration, *options: str, groups: int | None = None, **sizes: int | None
) -> Use:
    """Make the part self-attention with `options` and `sizes` of its own (None: not given); the
    usual fields of the configuration give its n heads, g heads of keys and values (the option
    `grouped` if fewer than n) unless `groups` does, and the width of a head."""
    if groups is None:
        c.divide("num_key_value_heads", "num_attention_heads")
    n = c.size("num_attention_heads")
    g = groups or c.size_or_none("num_key_value_heads") or n
    grouped = ("grouped",) if g != n else ()
    found = g if grouped else None
    return mixer("self-attention", (*grouped, *options), n=n, g=found, h=head_width(c), **sizes)


def mamba_2(
    c: Configuration, inner: int, *options: str, of: str = "mamba_expand", out: str = ""
) -> Use:
    """Make the part Mamba-2, `inner` channels wide, by the usual fields of a configuration; `out`:
    the field that says whether the map out has a bias, where that of all maps does not. ModelError,
    which names the field `of` that gives `inner`, if all heads together are not `inner` wide."""
    heads, width = c.size("mamba_n_heads"), c.get("mamba_d_head")
    auto = FieldSize.of("mamba_d_head", inner // heads)
    width = auto if width == "auto" else c.size("mamba_d_head")
    if heads * width != inner:
        raise c.refused(
            f"mamba_n_heads = {heads} times mamba_d_head = {width} is {heads * width}: expected "
            f"{inner}, which {of} gives"
        )
    groups, taps = c.size("mamba_n_groups"), c.size("mamba_d_conv")
    biases = (*conv_bias(c, "mamba_conv_bias"), *map_biases(c, "mamba_proj_bias", out))
    options = (*options, *biases)
    return mixer("mamba-2", options, n=heads, P=width, N=c.size("mamba_d_state"), G=groups, k=taps)


def gated_convolution(c: Configuration) -> Use:
    """Make the part LFM2's gated convolution, with taps and biases by the usual fields of a
    configuration."""
    biased = ("bias",) if c.switch("conv_bias", False) else ()
    return mixer("lfm2", biased, k=c.size("conv_L_cache"))


def conv_bias(c: Configuration, name: str) -> tuple[str, ...]:
    """The option of Mamba and Mamba-2 for a field that says whether short convolutions have
    biases; none where the field is missing or true."""
    return () if c.switch(name, usual=True) else ("no-conv-bias",)


def square(c: Configuration) -> str:
    """For classes whose map out of the heads reads as many channels as a row has: a sentence that
    refuses heads which together are not as wide as a row, "" if they are."""
    n, h, d = c.size("num_attention_heads"), head_width(c), c.size("hidden_size")
    wide = f"{n.field} = {n} times {h.field} = {h} is {n * h}"
    return "" if n * h == d else f"{wide}: expected {d.field} = {d}, the width of a row"


def map_biases(c: Configuration, name: str, out: str = "") -> tuple[str, ...]:
    """The options of Mamba and Mamba-2, of "in-bias" and "out-bias", for biases of their maps of
    rows: both if the field `name` is true; a field `out`, if named, decides about the map out."""
    there = {"in-bias": c.switch(name, False), "out-bias": c.switch(out or name, False)}
    return tuple(option for option, has in there.items() if has)


OF_NUMBER = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Names of the field with the number of experts."""


def mixture(
    c: Configuration,
    routing: str,
    width: int,
    *,
    clamped: bool = False,
    biased: bool = False,
    squared: str = "",
    shared: str = "",
    copies: int = 0,
    chosen: int | None = None,
    correction: str | None = None,
    activation: str | None = None,
    offset: bool = False,
) -> Use:
    """Make the part mixture of experts, each expert `width` wide, by the usual fields of a
    configuration; ModelError if a token is to go through more experts than there are, if no field
    says how many, or if a gated shared expert has width 0.

    Args:
        routing: how scores become weights of experts, a name in `experts.ROUTINGS`.
        clamped, biased: bounded gates, and biases, as in gpt-oss.
        squared: the activation of experts without a gate, which is squared; "": with a gate. With
            it the FFN `shared` is as wide as `moe_shared_expert_intermediate_size` says.
        shared: an FFN for all tokens, a name in `experts.SHARED`, "" for none; none if 0 wide.
            `copies`: how many experts wide it is if the configuration does not say.
        chosen: how many experts a token goes through if the configuration does not say.
        correction: the bias added to scores that choose: none (""), a "buffer" or a "parameter";
            None: a buffer where `routing` takes sigmoids of all scores.
        activation: that of the gates, as this project names it; None: that of the usual field.
        offset: the sum of the experts' outputs has a bias.
    """
    names = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k",
             "moe_top_k")  # fmt: skip
    numbers, choices = c.of_class(*OF_NUMBER) or OF_NUMBER, c.of_class(*names) or names
    part_sizes = {"E": c.size(*numbers), "f": width}
    # the last call raises ModelError: neither configuration nor class says a number
    part_sizes["c"] = c.size_or_none(*choices) or chosen or c.size(*choices)
    if part_sizes["c"] > part_sizes["E"]:
        given = next((name for name in choices if name in c.fields), choices[0])
        number = part_sizes["E"]
        raise c.refused(f"{given} = {part_sizes['c']} is more than the number of experts, {number}")
    if squared:
        part_sizes["S"] = c.size("moe_shared_expert_intermediate_size")
    elif shared:
        named = c.of_class("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
        copies = (c.number(*named) if named else 0) or copies
        named = c.of_class("shared_expert_intermediate_size", "shared_intermediate_size")
        wide = c.number(*named) if named else 0
        if copies or wide:
            part_sizes["S"] = copies * width or wide
        elif shared == "gated":
            raise c.refused(
                "the shared expert has width 0, but the model's class gives it a gate: expected "
                "a width of 1 or more"
            )
        else:
            shared = ""
    if idle := c.number("zero_expert_num"):  # experts that return their input, as in LongCat-Flash
        part_sizes["Z"] = idle
    activation = squared or activation or c.activation("hidden_act")
    made = experts(
        routing, activation, clamped=clamped, biased=biased, squared=bool(squared),
        shared=shared, correction=correction, offset=offset, idle=bool(idle),
    )  # fmt: skip
    return part("experts", made, **part_sizes)


UNIT_GAINS = "the sums 1 + w of the norms of queries and keys, on weights alone, are not counted"
"""The remark on norms of mixers whose gain is 1 + w."""


def sparse(c: Configuration, layers: int, first: int = 0) -> list[bool]:
    """A list with a bool for each layer, whether it has experts: as listed in `mlp_layer_types`,
    else every layer, or each `decoder_sparse_step`-th one, without those listed in
    `mlp_only_layers` and without the first ones, `first_k_dense_replace` or else `first`. Of these
    fields the class of the model reads some; ModelError if another one does not say the same."""
    step, dense, listed = 1, list[Any](), None
    if c.of_class("decoder_sparse_step"):
        step = c.size_or_none("decoder_sparse_step") or 1
    if c.of_class("mlp_only_layers"):
        dense = c.layers("mlp_only_layers") or []
    if c.of_class("mlp_layer_types"):
        listed = c.listing("mlp_layer_types")
    names = c.of_class("first_k_dense_replace", "num_dense_layers")
    begin = c.number(*names) if names and c.get(*names) is not None else first
    if listed is None:
        found = [k >= begin and k not in dense and (k + 1) % step == 0 for k in range(layers)]
    elif len(listed) != layers or any(kind not in ("dense", "sparse") for kind in listed):
        raise c.refused(f"'mlp_layer_types' must say dense or sparse for each of {layers} layers")
    else:
        found = [kind == "sparse" for kind in listed]
    begins = next((k for k, there in enumerate(found) if there), layers)
    said = {
        "first_k_dense_replace": begins, "num_dense_layers": begins, "decoder_sparse_step": step,
        "mlp_only_layers": [k for k in range(layers) if not found[k]],
        "mlp_layer_types": ["sparse" if there else "dense" for there in found],
    }  # fmt: skip
    c.agree(**{name: value for name, value in said.items() if not c.of_class(name)})
    return found


NONE: Mapping[str, Sequence[Use]] = {}


def decoder(
    c: Configuration,
    class_prefix: str,
    blocks: Sequence[Block],
    norm: Mixer | None,
    sizes: Mapping[str, int] | None = None,
    *,
    kind: str = "decoder",
    bare: str = "Model",
    head_classes: Sequence[str] = ("ForCausalLM",),
    called: Sequence[str] = (),
    ending_in: Mapping[str, Sequence[Use]] = NONE,
    ties: bool = True,
    remark: str = "",
    scaled: bool = False,
    cap: bool = False,
    scale: str = "",
    state: str = "",
    bias: bool = False,
    entry: Sequence[Use] = (),
    before: Sequence[Use] = (),
    pooler: bool = False,
    sets: int | None = None,
    beyond: int = 0,
) -> Description:
    """Put a network together: an embedding, a layer for each of `blocks`, a norm, and, for the
    class with a head, scores of the vocabulary with their loss.

    Args:
        class_prefix: the beginning of the names of the model's classes, such as "Llama".
        norm, sizes: the norm after the layers, or None; sizes of the network beside d, L, u and l.
        kind: "decoder", or "encoder", where each token sees all.
        bare, head_classes: how the names of the class without a head and of those with a head end;
            `called`: names of the class with a head in released files.
        ending_in: the end of the name of a further class -> its parts after the layers.
        ties: whether the class ties the head to the embedding if the configuration says so.
        remark: a sentence for a reader: what a count leaves out.
        scaled: embedded tokens are multiplied by a constant.
        cap, scale, bias: of the head, as in `parts.head`.
        state: the element type in which the class keeps recurrent states; "": as the weights.
        entry: what stands between the embedding and the layers; the first part may give the width
            of embedded rows as its size d, where that is another than d.
        before: what stands before the head.
        pooler: the class without a head has a linear map and tanh of the first row.
        sets: how many sets of parameters all layers share; None: each layer has its own.
        beyond: rows of the table of tokens beyond those of the vocabulary.

    Raises:
        ModelError: the configuration names another class.
    """
    *classes, without = (class_prefix + end for end in (*head_classes, bare))
    others = {class_prefix + end: uses for end, uses in ending_in.items()}
    named = c.architecture(*classes, *called, *others, without)
    scored = named not in (without, *others)
    tied = c.switch("tie_word_embeddings") and scored and ties
    head = parts.head(tied, bias, cap=cap, scale=scale)
    scores = {"d": before[-1].sizes["d"]} if before else {}
    ending = (
        *before,
        Use(
            "head", head, shared=frozenset({"E"}) if tied else frozenset(), last=True, sizes=scores
        ),
        Use("loss", parts.loss_of_scores(), when=FORWARD, forms_under=FORMS_OF_SCORES),
    )
    first = {"l": ONE, "f": Poly.atom("d")}
    pooled = (Use("pooler", parts.dense("tanh"), sizes=first, when=PASSES),)
    own = {
        "d": c.size("hidden_size"),
        "L": len(blocks),
        "u": c.size("vocab_size"),
        **(sizes or {}),
    }
    if (longest := c.size_or_none("max_position_embeddings")) is not None:
        own.setdefault("l", longest)
    narrow = {"d": entry[0].sizes["d"]} if entry and "d" in entry[0].sizes else {}
    narrow |= {"u": Poly.atom("u") + beyond} if beyond else {}
    stack = Stack(
        (Use("embedding", parts.look_up(scaled), table=True, sizes=narrow), *entry),
        in_turn(blocks),
        () if norm is None else (Use("norm at the end", norm),),
        sets=sets,
    )
    return Description(
        c.name,
        (stack,),
        tuple(others[named]) if named in others else ending if scored else pooled if pooler else (),
        kind,
        source=c.source,
        remark=remark,
        sizes=own,
        dtype=c.dtype,
        state_dtype=state,
        model_type=c.fields["model_type"],
    )


def classified(c: Configuration) -> tuple[Use, ...]:
    """The parts after the layers: a head that scores the first row for each class, and the loss.
    The fields `id2label` or `num_labels` count the classes; without them there are 2. ModelError
    if both fields are given and differ."""
    named = c.nested("id2label").fields
    c.agree(num_labels=len(named)) if named else None
    number = len(named) if named else c.size_or_none("num_labels") or 2
    classes = {"l": ONE, "u": Poly.of(number)}
    return (
        Use("head", parts.head(bias=True), sizes=classes, when=PASSES),
        Use(
            "loss", parts.loss_of_scores(), sizes=classes, when=FORWARD,
            forms_under=FORMS_OF_SCORES,
        ),
    )  # fmt: skip


def head_width(c: Configuration) -> FieldSize:
    """The width of a head of attention: `head_dim`, else hidden_size // num_attention_heads."""
    if own := c.size_or_none("head_dim"):
        return own
    d, n = c.size("hidden_size"), c.size("num_attention_heads")
    return FieldSize.of(f"{d.field}//{n.field}", d // n)


def rotary(
    c: Configuration, usual: float | None = None, kind: str = ""
) -> tuple[tuple[str, ...], dict[str, int]]:
    """The (options, sizes) of self-attention with the configuration's rotary embedding:
    (("rotary",), {}) if all channels of a head are rotated, (("partial-rotary",), {"r": r}) if the
    first r are, ((), {}) if the object of a kind of layer is null. Channels turn in halves here; a
    class that turns neighbours has the same costs.

    Args:
        usual: the share of the channels that turn by default; None if all turn in every model.
        kind: the kind of layer whose parameters are read where each kind has its own.

    Raises:
        ModelError: a share of no pair of channels or of more than a head's width, or a parameter
            that is not known here and may change more than the tables of angles.
    """
    given, turned = dict(c.rotary(kind)), None
    if kind and (c.get("rope_parameters") or {}).get(kind, "") is None:
        return (), {}
    if usual is not None:
        field, width = c.get(FACTOR), head_width(c)
        share = given.pop(FACTOR, usual if field is None else field)
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1:
            raise c.refused(f"{FACTOR} = {share!r}: expected a number above 0, and at most 1")
        turned = 2 * -(-int(width * share) // 2)  # a pair for each even number below, as classes do
        if not 2 <= turned <= width:
            raise c.refused(
                f"{FACTOR} = {share} rotates {turned} of the {width} channels of a head: expected "
                f"2 to {width}"
            )
        turned = None if turned == width else turned
    for name in ("mrope_section", "mrope_interleaved"):
        given.pop(name, None)  # which of three positions turns a channel: one of text
    if given:
        name, value = next(iter(given.items()))
        raise c.refused(
            f"rotary parameter '{name}' = {value!r} is not supported: take it out of the "
            "configuration if it leaves the number of rotated channels as it is"
        )
    if turned is None:
        return ("rotary",), {}
    return ("partial-rotary",), {"r": turned}


FACTOR = "partial_rotary_factor"


def layer_kinds(
    c: Configuration, layers: int, usual: Callable[[int], str], known: Sequence[str]
) -> list[str]:
    """The kind of each of a number of `layers`: as the field `layer_types` lists them, each one of
    `known` (else ModelError); without the field usual(k) for layer k, from 0."""
    return c.layer_types(layers, known) or [usual(k) for k in range(layers)]
