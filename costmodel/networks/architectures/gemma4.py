"""Which network does a configuration of Gemma 4's text, or of Gemma 3n's, describe?

Full attention in some layers, windows in the others, in Gemma 4 with heads of another width; the
last layers may read the keys and values of earlier ones, and each layer may have an embedding of
its own. Heads of queries, keys and values have norms, and scores are not scaled. Gemma 3n has
several residual streams.

A part (`Use`) names the rows that it `reads` as its inputs, by what other parts `writes`: "" is the
input of its sublayer, which a part without `reads` reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from costmodel.errors import shortened
from costmodel.networks import parts
from costmodel.networks.architectures.decoder import (
    FACTOR,
    block,
    decoder,
    layer_kinds,
    mixer,
    part,
)
from costmodel.networks.architectures.equations import layer_rows, streams
from costmodel.networks.blocks import Block, Description, Sublayer, Use
from costmodel.networks.configuration import Configuration
from costmodel.networks.experts import experts
from costmodel.symbolic.polynomial import Poly
from costmodel.symbolic.sizes import whole_number

FULL, NEAR = KINDS = ("full_attention", "sliding_attention")
GLOBAL_WIDTH = 512
"""The width of heads in full layers of a file without `global_head_dim`: the class takes it as an
argument (transformers 5.23.0, Gemma4TextConfig.__post_init__), not as a field with a default."""
SCALARS = "products with a number of each layer are not counted"
SHARED = (
    "layers that read the keys of another layer pass all tokens of a prompt, where generate of the "
    "class passes the last one alone"
)


@dataclass(frozen=True)
class Heads:
    """The heads of a layer: their kind, g heads of keys and values, h channels each."""

    kind: str
    g: int
    h: int


def read(name: str, bare: str, c: Configuration) -> Description:
    """Describe the network of a configuration of Gemma 4, whose classes are Gemma4ForCausalLM and
    Gemma4TextModel for `name` "Gemma4" and `bare` "TextModel". A layer is attention, an FFN
    (experts beside it if `enable_moe_block`), and maybe an embedding of its own. The last
    `num_kv_shared_layers` layers read keys of earlier ones."""
    c.with_class().require({"use_bidirectional_attention": ("vision", None, "all")})
    c.fields_read.update(("num_experts", "top_k_experts", "moe_intermediate_size"))
    number, shared = c.size("num_hidden_layers"), c.number("num_kv_shared_layers")
    kinds = layer_kinds(c, number, lambda k: NEAR if (k + 1) % 6 else FULL, KINDS)
    kinds[-1] = FULL  # as the class does
    heads = _heads(c, kinds)
    _refuse_rotary(c)
    whole = c.get("use_bidirectional_attention") == "all"
    if whole and shared:
        raise c.refused(
            "use_bidirectional_attention = 'all' and 'num_kv_shared_layers' are not supported "
            "together: give one of the two"
        )
    makers = _makers(c, kinds, number - shared) if shared else {}  # kind -> layer that makes keys
    wide = c.switch("use_double_wide_mlp")
    f, norm = c.size("intermediate_size"), parts.rms_norm()
    act = c.activation("hidden_activation")
    ffn, layers = parts.gated_ffn(act), list[Block]()
    for k, own in enumerate(heads):
        width = 2 * f if wide and shared and k >= number - shared else f
        mixing, made = _mixing(c, own, makers.get(own.kind), k)
        name_of = own.kind.removesuffix("_attention")
        layer = block(name_of, mixing, part("gated FFN", ffn, f=width), norm=norm, place="both")
        first, after = layer.sublayers
        first = replace(first, makes=made)
        after = _beside_experts(c, act, after) if c.get("enable_moe_block") else after
        layers.append(Block(name_of, (first, after, *_input(c, k, act, after))))
    return decoder(
        c, name, layers, norm, {"f": f}, bare=bare, scaled=True,
        cap=c.get("final_logit_softcapping") is not None, kind="encoder" if whole else "decoder",
        remark="; ".join([SCALARS, *([SHARED] if shared else [])]),
    )  # fmt: skip


def read_3n(c: Configuration) -> Description:
    """Describe the network of a configuration of Gemma3nForCausalLM or Gemma3nTextModel: in each
    layer one of S streams, `altup_active_idx`, is active, and passes attention beside a residual of
    low rank, then the FFN; the other streams are predicted and corrected."""
    c.with_class().require({"altup_correct_scale": (True,)})
    # a bound on coefficients in training, and a base of angles: no cost depends on them
    c.fields_read.update(("altup_coef_clip", "rope_local_base_freq"))
    number, shared = c.size("num_hidden_layers"), c.number("num_kv_shared_layers")
    kinds = layer_kinds(c, number, lambda k: NEAR if (k + 1) % 5 else FULL, KINDS)
    g, h = c.size("num_key_value_heads"), c.size("head_dim")
    _refuse_rotary(c)
    makers = _makers(c, kinds, number - shared) if shared else {}  # kind -> layer that makes keys
    own_sizes = _streams(c)
    c.size("hidden_size_per_layer_input")  # 0 is refused
    act, norm = c.activation("hidden_activation"), parts.rms_norm()
    ffns = {sparse: parts.gated_ffn(act, sparse=sparse) for sparse in (False, True)}
    layers = list[Block]()
    widths, sparse = _widths(c, number), _sparse(c, number)
    for k, kind in enumerate(kinds):
        mixing, made = _mixing(c, Heads(kind, g, h), makers.get(kind), k)
        label = kind.removesuffix("_attention")
        layer = block(
            label, mixing, part("gated FFN", ffns[sparse[k]], f=widths[k]), norm=norm, place="both"
        )
        first, second = layer.sublayers
        (last,) = _input(c, k, act, second, several=True)
        first, last = _on_active_stream(c, first, made, own_sizes), _on_streams(last, own_sizes)
        layers.append(Block(label, (first, second, last)))
    opened = Use("streams of embedded tokens", streams.opened(), sizes=own_sizes)
    found = decoder(
        c, "Gemma3n", layers, norm, {"f": widths[0]}, bare="TextModel", scaled=True, entry=[opened],
        cap=c.get("final_logit_softcapping") is not None,
        remark="coefficients of streams are not bounded, as a step of training bounds them",
    )  # fmt: skip
    (stack,) = found.stacks
    closed = Use("mean of the streams", streams.closed(), sizes=own_sizes)
    return replace(found, stacks=(replace(stack, end=(closed, *stack.end)),))


def _streams(c: Configuration) -> dict[str, Poly]:
    """{"S": the number of residual streams, "A": the number of the active one, from 1}; ModelError
    for one stream alone, or an active one that is not there."""
    S, at = c.size("altup_num_inputs"), c.number("altup_active_idx") + 1
    if S < 2 or at > S:
        raise c.refused(
            f"altup_num_inputs = {S} and altup_active_idx = {at - 1}: expected 2 inputs or more, "
            "and an index below their number"
        )
    return {"S": Poly.of(S), "A": Poly.of(at)}


def _mixing(c: Configuration, own: Heads, maker: int | None, k: int) -> tuple[Use, tuple[Use, ...]]:
    """The attention of layer `k`, from 0, and the parts beside it that make keys and values for
    several layers, in layer `maker` alone: `maker` and later layers are given these, earlier ones,
    or all if `maker` is None, make their own inside attention."""
    mixing = _attention(c, own) if maker is None or k < maker else _given(c, own, maker, k)
    return mixing, _made(c, own) if k == maker else ()


def _on_active_stream(
    c: Configuration, first: Sublayer, made: Sequence[Use], sizes: Mapping[str, Poly]
) -> Sublayer:
    """The sublayer of attention `first`, which reads one stream, as Gemma 3n's, which reads all
    streams: they are predicted from one another, and the active one passes attention, beside it a
    residual of low rank (LAuReL), and the sum of all three. `made`: parts that make keys and values
    for later layers, `sizes`: the number of streams and that of the active one."""
    assert first.out is not None and first.before is not None
    chosen = Use("active stream", streams.active(), sizes=sizes)
    return Sublayer(
        replace(first.part, reads=("normed", *first.part.reads[1:])),
        Use("sum over sqrt(2)", streams.joined(), reads=("active", "attention", "laurel")),
        out=replace(first.out, writes="attention"),
        makes=(
            replace(chosen, writes="active before"),
            Use(
                "modalities", streams.modalities(), sizes=sizes, reads=("active before",),
                writes="modalities",
            ),
            Use(
                "predicted streams", streams.predicted(), sizes=sizes, reads=("", "modalities"),
                writes="predicted",
            ),
            replace(chosen, reads=("predicted",), writes="active"),
            replace(first.before, reads=("active",), writes="normed"),
            Use(
                "residual of low rank", streams.low_rank(), reads=("normed",), writes="laurel",
                sizes={"r": Poly.of(c.size("laurel_rank"))},
            ),
            *(replace(one, reads=("normed",)) for one in made),
        ),
    )  # fmt: skip


def _on_streams(last: Sublayer, sizes: Mapping[str, Poly]) -> Sublayer:
    """The sublayer of a layer's own embedding, `last`, as Gemma 3n's: before it all streams are
    corrected by what the active one became, and its output is added to all but the first."""
    assert last.out is not None
    own = replace(last.part, reads=("corrected", *last.part.reads[1:]))
    return Sublayer(
        replace(own, sizes={**own.sizes, **sizes}),
        Use("sum with streams", streams.added(), sizes=sizes, reads=("corrected", "input")),
        out=replace(last.out, writes="input"),
        makes=(
            Use(
                "modalities", streams.modalities(), sizes=sizes, writes="modalities after",
                shared=frozenset({"gain_M", "W_M"}),
            ),
            Use(
                "corrected streams", streams.corrected(), sizes=sizes,
                reads=("predicted", "", "modalities after"), writes="corrected",
            ),
            *last.makes,
        ),
    )  # fmt: skip


def _widths(c: Configuration, number: int) -> list[int]:
    """A list with the width of the FFN of each of `number` layers. The field `intermediate_size` is
    one integer for all layers or such a list; ModelError for any other value."""
    given = c.get("intermediate_size")
    if not isinstance(given, list):
        return [c.size("intermediate_size")] * number
    if len(given) != number or not all(type(f) is int and f > 0 for f in given):
        raise c.refused(
            f"'intermediate_size' must be a positive integer or a list of {number}, one a layer, "
            f"got {given!r}"
        )
    return given


def _sparse(c: Configuration, number: int) -> list[bool]:
    """A list with a bool for each layer, whether gates are sparse: whether the share of its gates
    that become 0 (`activation_sparsity_pattern`) is above 0. Without the field the first ten of
    more than ten layers are sparse, and none of ten or fewer. ModelError for any other value."""
    given = c.get("activation_sparsity_pattern")
    if given is None:
        return [number > 10 and k < 10 for k in range(number)]
    numbers = isinstance(given, list) and all(type(one) in (int, float) for one in given)
    if not numbers or len(given) != number:
        raise c.refused(
            f"'activation_sparsity_pattern' must be a list of {number} numbers, one a layer, got "
            f"{given!r}"
        )
    return [share > 0 for share in given]


def _refuse_rotary(c: Configuration) -> None:
    """Raise ModelError for a rotary parameter that is not known here; all channels turn, in
    Gemma 4 some by an angle of 0."""
    for kind in KINDS:
        if given := {*c.rotary(kind)} - {FACTOR}:
            raise c.refused(
                f"rotary parameter '{min(given)}' is not supported: expected {FACTOR} alone"
            )


def _heads(c: Configuration, kinds: Sequence[str]) -> list[Heads]:
    """A list with the `Heads` of each layer. With `per_layer_config`, {"3": {"head_dim": 64}}, the
    heads of layer 3 (from 0) have 64 channels, and all else is as `head_dim` and
    `num_key_value_heads` say. Without it these two are for layers with windows; full layers have
    `global_head_dim` channels and, if `attention_k_eq_v`, `num_global_key_value_heads` heads.
    ModelError for a layer that the network lacks."""
    h, g = c.size("head_dim"), c.size("num_key_value_heads")
    full_h, full_g = c.size_or_none("global_head_dim") or GLOBAL_WIDTH, g
    if c.switch("attention_k_eq_v"):
        full_g = c.size_or_none("num_global_key_value_heads") or g
    c.fields_read.add("num_global_key_value_heads")
    given = c.get("per_layer_config")
    if given is None:
        return [Heads(kind, *((full_g, full_h) if kind == FULL else (g, h))) for kind in kinds]
    if not isinstance(given, dict) or not all(isinstance(own, dict) for own in given.values()):
        raise c.refused(
            f"'per_layer_config' must be an object of objects, one a layer, got {given!r}"
        )
    given = {str(k): own for k, own in given.items()}  # a dict in Python may have numbers
    numbers = {k: whole_number(k) for k in given}
    if unknown := [k for k, n in numbers.items() if n is None or n >= len(kinds)]:
        raise c.refused(
            f"'per_layer_config' names layer {shortened(min(unknown))}: expected layers from 0 to "
            f"{len(kinds) - 1}"
        )
    given = {int(k): own for k, own in given.items()}  # classes write 05 for 5
    found = []
    for k, kind in enumerate(kinds):
        own = {"head_dim": h, "num_key_value_heads": g}
        inner = Configuration(c.path, given.get(k, {}), own)
        found.append(Heads(kind, inner.size("num_key_value_heads"), inner.size("head_dim")))
        inner.refuse_unread()
    return found


def _makers(c: Configuration, kinds: Sequence[str], first: int) -> dict[str, int]:
    """Kind of a layer -> the last layer of the kind before layer number `first`, from which on
    layers make no keys of their own; ModelError for a kind that has none."""
    if c.get("attention_k_eq_v"):
        raise c.refused(
            "'attention_k_eq_v' and 'num_kv_shared_layers' are not supported together: remove one "
            "of the two"
        )
    found = {kind: k for k, kind in enumerate(kinds[: max(0, first)])}
    if missing := {*kinds} - found.keys():
        raise c.refused(
            f"'num_kv_shared_layers' leaves no layer of kind {min(missing)} that computes keys of "
            "its own: expected fewer shared layers"
        )
    return found


def _attention(c: Configuration, own: Heads) -> Use:
    """Make the attention, with heads `own`, of a layer whose keys no other layer reads."""
    near, n = own.kind == NEAR, c.size("num_attention_heads")
    options = ["qk-norm", "v-norm", "unscaled", "rotary"]
    options += ["bias"] if c.switch("attention_bias") else []
    options += ["window"] if near else ["keys-as-values"] if c.get("attention_k_eq_v") else []
    options += ["grouped"] if own.g != n else []
    width: int = c.size("sliding_window")
    if c.get("use_bidirectional_attention") == "all":  # half of the window on each side
        options, width = [*options, "bidirectional"], width // 2 + 1
    return mixer(
        "self-attention", options, n=n, g=own.g if own.g != n else None, h=own.h,
        w=width if near else None,
    )  # fmt: skip


def _names(kind: str) -> tuple[str, str]:
    """The names of the keys and of the values that the layers of a kind read."""
    near = kind.removesuffix("_attention")
    return f"keys, {near}", f"values, {near}"


def _made(c: Configuration, own: Heads) -> tuple[Use, ...]:
    """Make the two parts, keys and values, of a layer with the heads `own`. The layer's attention
    and that of later layers of its kind read their outputs by the names `writes`."""
    sizes = {"g": Poly.of(own.g), "K": Poly.of(own.h)}
    biased = c.switch("attention_bias")
    made = (layer_rows.keys(biased), layer_rows.values(biased))
    named = _names(own.kind)
    return tuple(
        Use(name, m, sizes=sizes, writes=name) for name, m in zip(named, made, strict=True)
    )


def _given(c: Configuration, own: Heads, maker: int, layer: int) -> Use:
    """Make the attention of layer `layer`, from 0, with the heads `own`, to the keys and values of
    layer `maker`: `layer` itself, or an earlier one, which then holds the rows of K and V."""
    near = own.kind == NEAR
    sizes = {"n": c.size("num_attention_heads"), "g": own.g, "K": own.h}
    sizes |= {"w": c.size("sliding_window")} if near else {}
    label = "attention, with a window" if near else "attention"
    label += " to keys of an earlier layer" if layer > maker else " to keys for later layers too"
    return Use(
        label, layer_rows.attention(near, c.switch("attention_bias")),
        sizes={x: Poly.of(value) for x, value in sizes.items()},
        # the rows are held once, in the layer that makes them
        shared=frozenset({"K", "V"}) if layer > maker else frozenset(),
        reads=("", *_names(own.kind)),
    )  # fmt: skip


def _beside_experts(c: Configuration, act: str, dense: Sublayer) -> Sublayer:
    """The sublayer in which experts stand beside the FFN of the sublayer `dense`: each of both has
    norms of its own before and after, and both outputs are added before the norm of the output. The
    router reads the sublayer's input, which it norms itself (`apart`)."""
    number, best = c.size("num_experts"), c.size("top_k_experts")
    if best > number:
        raise c.refused(f"top_k_experts = {best} is more than num_experts = {number}")
    mixture = part(
        "experts", experts("softmax-normalised", act, apart=True), E=number, c=best,
        f=c.size("moe_intermediate_size"),
    )  # fmt: skip
    assert dense.before is not None
    norm, added = dense.before.mixer, ("FFN, normed", "experts, normed")
    return replace(
        dense, before=None, part=Use("sum of FFN and experts", layer_rows.joined(), reads=added),
        makes=(
            replace(dense.before, writes="FFN, in"),
            replace(dense.part, reads=("FFN, in",), writes="FFN"),
            Use("norm, of the FFN", norm, reads=("FFN",), writes=added[0]),
            Use("norm, before experts", norm, writes="experts, in"),
            replace(mixture, reads=("", "experts, in"), writes="experts"),
            Use("norm, of the experts", norm, reads=("experts",), writes=added[1]),
        ),
    )  # fmt: skip


def _input(
    c: Configuration, layer: int, act: str, after: Sublayer, several: bool = False
) -> tuple[Sublayer, ...]:
    """The sublayer of a layer's own embedding, with the norm of the output and the sum of the
    sublayer `after`; () if layers have none. `layer`: its number, from 0; the others share the norm
    of embedded tokens of layer 0. `several`: whether there are several streams."""
    if "hidden_size_per_layer_input" not in c.defaults:
        return ()
    u = c.size("vocab_size_per_layer_input")
    if not (width := c.number("hidden_size_per_layer_input")):
        return ()
    f, own = Poly.of(width), "embedding of the layer"
    table = Use(
        own, layer_rows.layer_look_up(), sizes={"f": f, "u": Poly.of(u)}, table=True,
        reads=("tokens",), writes=own,
    )  # fmt: skip
    use = Use(
        "input of the layer", layer_rows.layer_input(act, several), sizes={"f": f},
        shared=frozenset({"gain_P"}) if layer else frozenset(), reads=("", "embedding", own),
    )  # fmt: skip
    return (Sublayer(use, after.residual, out=after.out, makes=(table,)),)


GEMMA_4: Mapping[str, Callable[[Configuration], Description]] = {
    "gemma3n_text": read_3n,
    "gemma4_text": partial(read, "Gemma4", "TextModel"),
    "gemma4_unified_text": partial(read, "Gemma4Unified", "TextModel"),
}
"""model_type -> the reader of its configuration."""
