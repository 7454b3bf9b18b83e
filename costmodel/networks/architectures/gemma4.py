"""Which network does a configuration of Gemma 4's text describe?

Full attention in some layers, windows in the others, with heads of another width; the last layers
may read the keys and values of earlier ones, and each layer may have an embedding of its own. Heads
of queries, keys and values have norms, and scores are not scaled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from costmodel.networks import parts
from costmodel.networks.architectures import layer_rows
from costmodel.networks.architectures.decoder import (
    FACTOR,
    block,
    decoder,
    layer_kinds,
    mixer,
    part,
)
from costmodel.networks.blocks import Block, Description, Sublayer, Use
from costmodel.networks.configuration import Configuration
from costmodel.networks.experts import experts
from costmodel.symbolic.polynomial import Poly

KINDS = ("full_attention", "sliding_attention")
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
    """Describe the network of a configuration of the classes `name`ForCausalLM and `name``bare`."""
    c.with_class().require({"use_bidirectional_attention": ("vision", None)})
    c.taken.update(("num_experts", "top_k_experts", "moe_intermediate_size"))
    number, shared = c.size("num_hidden_layers"), c.number("num_kv_shared_layers")
    kinds = layer_kinds(c, number, lambda k: KINDS[bool((k + 1) % 6)], KINDS)
    kinds[-1] = KINDS[0]  # as the class does
    heads = _heads(c, kinds)
    for kind in KINDS:
        if given := {*c.rotary(kind)} - {FACTOR}:  # all channels turn, some by an angle of 0
            raise c.refused(f"rotary parameter '{min(given)}' is not read")
    makers = _makers(c, kinds, number - shared) if shared else {}
    wide = c.switch("use_double_wide_mlp")
    f, norm = c.size("intermediate_size"), parts.rms_norm()
    act = c.activation("hidden_activation")
    ffn, layers = parts.gated_ffn(act), list[Block]()
    for k, own in enumerate(heads):
        reads, later = makers.get(own.kind), shared and k >= number - shared
        width = 2 * f if later and wide else f
        mixing = _attention(c, own) if reads is None or k < reads else _given(c, own, reads, k)
        name_of = own.kind.removesuffix("_attention")
        layer = block(name_of, mixing, part("gated FFN", ffn, f=width), norm=norm, place="both")
        first, after = layer.sublayers
        first = replace(first, makes=_made(c, own) if k == reads else ())
        after = _beside_experts(c, act, after) if c.get("enable_moe_block") else after
        layers.append(Block(name_of, (first, after, *_input(c, k, act, after))))
    return decoder(
        c, name, layers, norm, {"f": f}, bare=bare, scaled=True,
        cap=c.get("final_logit_softcapping") is not None,
        remark="; ".join([SCALARS, *([SHARED] if shared else [])]),
    )  # fmt: skip


def _heads(c: Configuration, kinds: Sequence[str]) -> list[Heads]:
    """The heads of each layer: as `per_layer_config` says; else, in full layers, as the fields with
    `global` in their names say."""
    h, g = c.size("head_dim"), c.size("num_key_value_heads")
    full_h, full_g = c.size_or_none("global_head_dim") or 512, g
    if c.switch("attention_k_eq_v"):
        full_g = c.size_or_none("num_global_key_value_heads") or g
    c.taken.add("num_global_key_value_heads")
    given = c.get("per_layer_config")
    if given is None:
        return [Heads(kind, *((full_g, full_h) if kind == KINDS[0] else (g, h))) for kind in kinds]
    if not isinstance(given, dict) or not all(isinstance(own, dict) for own in given.values()):
        raise c.refused("'per_layer_config' must be an object with an object for some layers")
    found = []
    for k, kind in enumerate(kinds):
        own = {"head_dim": h, "num_key_value_heads": g}
        inner = Configuration(c.path, given.get(str(k), {}), own)
        found.append(Heads(kind, inner.size("num_key_value_heads"), inner.size("head_dim")))
        inner.refuse_unread()
    return found


def _makers(c: Configuration, kinds: Sequence[str], first: int) -> dict[str, int]:
    """Kind of a layer -> the last layer of the kind before layer number `first`, from which on
    layers make no keys of their own; ModelError for a kind that has none."""
    if c.switch("attention_k_eq_v"):
        raise c.refused("keys that are values too, and that other layers read, are not known here")
    found = {kind: k for k, kind in enumerate(kinds[: max(0, first)])}
    if missing := {*kinds} - found.keys():
        raise c.refused(f"'num_kv_shared_layers': no earlier layer has keys for {min(missing)}")
    return found


def _biased(c: Configuration) -> bool:
    return c.switch("attention_bias")


def _attention(c: Configuration, own: Heads) -> Use:
    """Make the attention, with heads `own`, of a layer whose keys no other layer reads."""
    near, n = own.kind == KINDS[1], c.size("num_attention_heads")
    options = ["qk-norm", "v-norm", "unscaled", "rotary", *(["bias"] if _biased(c) else [])]
    options += ["window"] if near else ["keys-as-values"] if c.switch("attention_k_eq_v") else []
    options += ["grouped"] if own.g != n else []
    return mixer(
        "self-attention", options, n=n, g=own.g if own.g != n else None, h=own.h,
        w=c.size("sliding_window") if near else None,
    )  # fmt: skip


def _names(kind: str) -> tuple[str, str]:
    """The names of the keys and of the values that the layers of a kind read."""
    near = kind.removesuffix("_attention")
    return f"keys, {near}", f"values, {near}"


def _made(c: Configuration, own: Heads) -> tuple[Use, ...]:
    """Make the parts keys and values, with heads `own`, of a layer; later layers read them too."""
    sizes = {"g": Poly.of(own.g), "K": Poly.of(own.h)}
    biased = _biased(c)
    made = (layer_rows.keys(biased), layer_rows.values(biased))
    named = _names(own.kind)
    return tuple(
        Use(name, m, sizes=sizes, writes=name) for name, m in zip(named, made, strict=True)
    )


def _given(c: Configuration, own: Heads, maker: int, layer: int) -> Use:
    """Make the attention of layer number `layer` to the keys and values that layer number `maker`
    makes."""
    near = own.kind == KINDS[1]
    sizes = {"n": c.size("num_attention_heads"), "g": own.g, "K": own.h}
    sizes |= {"w": c.size("sliding_window")} if near else {}
    label = "attention, with a window" if near else "attention"
    label += " to keys of an earlier layer" if layer > maker else " to keys for later layers too"
    return Use(
        label, layer_rows.attention(near, _biased(c)),
        sizes={x: Poly.of(value) for x, value in sizes.items()},
        shared=frozenset({"K", "V"}) if layer > maker else frozenset(),
        reads=("", *_names(own.kind)),
    )  # fmt: skip


def _beside_experts(c: Configuration, act: str, dense: Sublayer) -> Sublayer:
    """The sublayer in which experts stand beside the FFN of the sublayer `dense`: each of both has
    norms of its own before and after, and both outputs are added before the norm of the output."""
    number, best = c.size("num_experts"), c.size("top_k_experts")
    if best > number:
        raise c.refused(f"a token cannot go through {best} of {number} experts")
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


def _input(c: Configuration, layer: int, act: str, after: Sublayer) -> tuple[Sublayer, ...]:
    """The sublayer of a layer's own embedding, with the norm of the output and the sum of the
    sublayer `after`; () if layers have none. All layers share the norm of embedded tokens."""
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
        "input of the layer", layer_rows.layer_input(act), sizes={"f": f},
        shared=frozenset({"gain_P"}) if layer else frozenset(), reads=("", "embedding", own),
    )  # fmt: skip
    return (Sublayer(use, after.residual, out=after.out, makes=(table,)),)


GEMMA_4: Mapping[str, Callable[[Configuration], Description]] = {
    "gemma4_text": partial(read, "Gemma4", "TextModel"),
    "gemma4_unified_text": partial(read, "Gemma4Unified", "TextModel"),
}
"""model_type -> the reader of its configuration."""
