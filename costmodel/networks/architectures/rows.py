"""Which choices make each of the plain decoders, by its model type?

A row says where a type differs from Llama: RMS norms before gated FFNs and rotary attention without
biases. A function (c, k, number) gives the kind of layer k, from 0, of the `number` layers of a
configuration c. Rows or channels *turn* if queries and keys get a rotary embedding.
`tests/models/drawn.py` holds each row against the class of transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from costmodel.networks.architectures.decoder import (
    UNIT_GAINS,
    attention,
    conv_bias,
    gated_convolution,
    head_width,
    mamba_2,
    map_biases,
    mixer,
    part,
    rotary,
    sparse,
    square,
)
from costmodel.networks.architectures.equations import expert_attention
from costmodel.networks.architectures.plain import (
    CHUNK,
    CONV,
    CROSS,
    FULL,
    LINEAR,
    NEAR,
    TEXT_ALONE,
    Experts,
    Plain,
    latent,
)
from costmodel.networks.blocks import Use
from costmodel.networks.configuration import Configuration

Kinds = Callable[[Configuration, int, int], str]

NORMED = ("qk-norm",)
WHOLE = ("whole-qk-norm",)
QKV = {"attention_bias": "qkv-bias"}
USE_BIAS = {"use_bias": "bias"}
LAYER_NORMS = {"qk_layernorm": "qk-layer-norm"}
GRANITE = "attention_multiplier embedding_multiplier logits_scaling residual_multiplier"
DEEPSEEK = (
    "routed_scaling_factor ep_size seq_aux aux_loss_alpha num_nextn_predict_layers topk_method "
    "scoring_func moe_layer_freq"
)
"""Constants, losses, and layers that predict further tokens, which no class loads."""


def _mllama(c: Configuration, k: int, number: int) -> str:
    """Cross-attention in the layers that `cross_attention_layers` lists, from 0, or without the
    field in layers 3, 8, ..., 38; full attention in the others."""
    listed = c.layers("cross_attention_layers")
    return CROSS if k in (range(3, 40, 5) if listed is None else listed) else FULL


def _rows_of_image(c: Configuration) -> int:
    """The number of rows of an image, which layers of cross-attention read: of each tile, one for
    each patch and one for the tile."""
    usual = {"image_size": 448, "patch_size": 14, "max_num_tiles": 4}
    tower = Configuration(c.path, c.around).nested("vision_config", usual)
    side = tower.size("image_size") // tower.size("patch_size")
    return tower.size("max_num_tiles") * (side * side + 1)


def every(of: int | str) -> Kinds:
    """Return a function (configuration, layer k, number of layers) -> the kind of layer k: full
    attention in the last of every `of` layers, windows in the others. A string `of` names the field
    with this number; the field `sliding_window_pattern`, if given, takes its place."""

    def kind(c: Configuration, k: int, number: int) -> str:
        found = of if isinstance(of, int) else c.size(of)
        return NEAR if (k + 1) % (c.size_or_none("sliding_window_pattern") or found) else FULL

    return kind


def first(of: int) -> Kinds:
    """Full attention in the first layer of each `of`, and windows in the others."""
    return lambda c, k, number: NEAR if k % of else FULL


def listed(
    name: str, is_read: Callable[[Configuration, Any], bool], words: str
) -> Callable[[Configuration], str]:
    """Return a check of the list in the field `name`: a sentence that says why the configuration is
    refused if `is_read` is false of an entry, "" else. `words`: which entries are read."""

    def check(c: Configuration) -> str:
        found = c.get(name)
        if found is None or (isinstance(found, list) and all(is_read(c, one) for one in found)):
            return ""
        return f"{name} = {found!r} is not read: expected {words} for each layer"

    return check


TURNED = listed("layer_rope_theta", lambda c, base: bool(base), "a base of angles above 0")


def _exaone(c: Configuration, k: int, number: int) -> str:
    """Full attention in each `sliding_window_pattern`-th layer, and windows in the others; full
    attention in all if the configuration has no window's width."""
    near = c.size_or_none("sliding_window") and (k + 1) % c.size("sliding_window_pattern")
    return NEAR if near else FULL


def _exaone_still(c: Configuration) -> frozenset[str]:
    """The kinds of layers without rotary embedding: layers of full attention if others have a
    window, else none."""
    return frozenset({FULL}) if c.size_or_none("sliding_window") else frozenset()


def _windowed(c: Configuration, k: int, number: int) -> str:
    """Windows if the configuration has the width of one."""
    return FULL if c.size_or_none("sliding_window") is None else NEAR


def _alternate(c: Configuration, k: int, number: int) -> str:
    """Windows in layers 0, 2, ... below `max_window_layers`, if `use_sliding_window` is true."""
    near = c.switch("use_sliding_window") and not k % 2 and k < c.number("max_window_layers")
    return NEAR if near else FULL


def _alternately(c: Configuration, k: int, number: int) -> str:
    return FULL if k % 2 else NEAR


def _late(c: Configuration, k: int, number: int) -> str:
    """Windows from layer `max_window_layers` on, if the configuration has the width of one and does
    not switch windows off."""
    near = c.size_or_none("sliding_window") if c.get("use_sliding_window") is not False else None
    return NEAR if near and k >= c.number("max_window_layers") else FULL


def _flint(c: Configuration, k: int, number: int) -> str:
    return FULL if k < 2 or k % 4 == 1 or k == number - 1 else NEAR


def _ernie(c: Configuration, number: int) -> list[bool]:
    """Whether each of `number` layers has experts: each `moe_layer_interval`-th one from layer
    `moe_layer_start_index` to `moe_layer_end_index`, counted from 0; -1 is the last layer."""
    begin, step = c.number("moe_layer_start_index"), c.size("moe_layer_interval")
    to_last = c.get("moe_layer_end_index") == -1
    last = number - 1 if to_last else c.number("moe_layer_end_index")
    return [begin <= k <= last and (k + 1) % step == 0 for k in range(number)]


def _share_of_dim(c: Configuration) -> float:
    """The share of a head's channels that turn, by the number `rotary_dim`."""
    return (c.size_or_none("rotary_dim") or head_width(c)) / head_width(c)


def _parallel(c: Configuration) -> str:
    return "beside, apart" if c.switch("use_parallel_residual") else "before"


def _mamba_2(c: Configuration) -> Use:
    """Make the part Mamba-2, with sizes from the fields of a configuration of Bamba."""
    return mamba_2(c, c.size("mamba_expand") * c.size("hidden_size"))


def _bamba(c: Configuration, k: int, number: int) -> str:
    return FULL if k in (c.layers("attn_layer_indices") or ()) else LINEAR


def _mamba(c: Configuration) -> Use:
    """Make the part Mamba with norms inside, with sizes from the fields of a configuration of
    Jamba."""
    d = c.size("hidden_size")
    rank = c.get("mamba_dt_rank")
    rank = -(-d // 16) if rank == "auto" else c.size("mamba_dt_rank")
    inner, state = c.size("mamba_expand") * d, c.size("mamba_d_state")
    options = ("norms", *conv_bias(c, "mamba_conv_bias"), *map_biases(c, "mamba_proj_bias"))
    return mixer("mamba", options, E=inner, R=rank, N=state, k=c.size("mamba_d_conv"))


def _jamba(c: Configuration, k: int, number: int) -> str:
    """Attention in layer `attn_layer_offset` of each `attn_layer_period`, Mamba in the others."""
    full = k % c.size("attn_layer_period") == c.number("attn_layer_offset")
    return FULL if full else LINEAR


def _jamba_experts(c: Configuration, number: int) -> list[bool]:
    """Experts in layer `expert_layer_offset` of each `expert_layer_period`; none where there is one
    expert."""
    step, offset = c.size("expert_layer_period"), c.number("expert_layer_offset")
    return [c.size("num_experts") > 1 and k % step == offset for k in range(number)]


def _olmo(c: Configuration) -> Use:
    """Make the attention of OLMo Hybrid, as a part. Queries and keys get a rotary embedding unless
    the configuration gives null as the base of the angles (`rope_theta`)."""
    biased = ("bias",) if c.switch("attention_bias") else ()
    turned, _ = rotary(c)
    given = c.get("rope_parameters") or c.fields
    still = "rope_theta" in given and given["rope_theta"] is None
    return attention(c, *biased, *WHOLE, *(() if still else turned))


def _olmo_delta(c: Configuration) -> Use:
    """Make the part Gated DeltaNet, with sizes from the fields of a configuration of OLMo Hybrid:
    where a field is missing, heads are as many as those of attention, keys 0.75 d over all heads
    wide, values twice as wide as keys."""
    n, d = c.size("num_attention_heads"), c.size("hidden_size")
    groups = c.size_or_none("linear_num_key_heads") or n
    width = c.size_or_none("linear_key_head_dim") or int(0.75 * d / groups)
    options = ("negative",) if c.switch("linear_allow_neg_eigval") else ()
    return mixer(
        "gated-deltanet", options, n=c.size_or_none("linear_num_value_heads") or n, g=groups,
        K=width, V=c.size_or_none("linear_value_head_dim") or 2 * width,
        k=c.size("linear_conv_kernel_dim"),
    )  # fmt: skip


def _olmo_hybrid(c: Configuration, k: int, number: int) -> str:
    """Attention in each fourth layer, or in the last one of fewer than four."""
    return FULL if k % 4 == 3 or k == number - 1 < 3 else LINEAR


def _bounded(c: Configuration) -> Use:
    """Make the attention of MiniMax, as a part: its class masks layers of full attention by
    `sliding_window`, if the configuration has the width."""
    turned, sizes = rotary(c)
    if width := c.size_or_none("sliding_window"):
        turned, sizes = (*turned, "window"), {**sizes, "w": width}
    return attention(c, *turned, **sizes)


def _lightning(c: Configuration) -> Use:
    return mixer("lightning", (), n=c.size("num_attention_heads"), h=head_width(c))


def _kda(c: Configuration) -> Use:
    """Make the part KDA (Kimi delta attention): n heads of width h, convolutions of k taps, each
    from the object `linear_attn_config` or, if missing there, from a field of the configuration."""
    given = c.nested("linear_attn_config")
    names = ("num_heads", "head_dim", "short_conv_kernel_size")
    fields = ("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")
    n, h, k = (given.size_or_none(name) or c.size(field)
               for name, field in zip(names, fields, strict=True))  # fmt: skip
    return mixer("kda", (), n=n, h=h, k=k)


def _bailing(c: Configuration) -> Use:
    """Make the part KDA of Ling 3.0, with a map of full rank to its decays and to its gate."""
    safe = ("safe-gate",) if c.switch("kda_safe_gate") else ()
    n = c.size("linear_num_heads", "num_attention_heads")
    h = c.size("linear_head_dim", "head_dim")
    k = c.size("linear_conv_kernel_dim", "short_conv_kernel_size")
    return mixer("kda", ("full-maps", *safe), n=n, h=h, k=k)


def _minimax(c: Configuration, k: int, number: int) -> str:
    """Full attention in layers 0, 2, ..., or where `attn_type_list` of files of 2025 says 1."""
    listed = c.flags("attn_type_list", number)
    if listed:
        c.remark = (
            "attn_type_list says which layers are full attention; the class reads layer_types alone"
        )
    return FULL if (listed[k] if listed else k % 2 == 0) else LINEAR


def _last(of: str) -> Kinds:
    """Full attention in the last of as many layers as the field `of` says, other mixers before."""
    return lambda c, k, number: LINEAR if (k + 1) % c.size(of) else FULL


def _kimi(c: Configuration, k: int, number: int) -> str:
    """The kind of layer k, from 0: latent attention (FULL) if `full_attn_layers` in
    `linear_attn_config` has k + 1, KDA (LINEAR) if `kda_layers` has; without lists FULL at k = 4,
    8, ... ModelError: one list is missing, k + 1 is in both or neither, a number is no layer's."""
    given = c.nested("linear_attn_config")
    lists: dict[str, Any] = {name: given.get(name) for name in ("full_attn_layers", "kda_layers")}
    if all(listed is None for listed in lists.values()):
        return FULL if k and k % 4 == 0 else LINEAR
    for name, listed in lists.items():
        if not isinstance(listed, list):
            raise c.refused(f"'{name}' must list layers by number, from 1 on, got {listed!r}")
        for layer in listed:
            if layer not in range(1, number + 1):
                raise c.refused(f"{name} has layer {layer!r}: expected layers from 1 to {number}")
    places = [name for name, listed in lists.items() if k + 1 in listed]
    if len(places) != 1:
        where = " and in ".join(places) or "neither full_attn_layers nor kda_layers"
        raise c.refused(
            f"layer {k + 1} is in {where}: write each layer into exactly one of these two lists"
        )
    return FULL if places == ["full_attn_layers"] else LINEAR


def _rg_lru(c: Configuration) -> Use:
    """Make the part RG-LRU of RecurrentGemma; ModelError if its heads do not divide its
    channels."""
    n = c.size("num_attention_heads")
    width = c.size_or_none("lru_width") or c.size("hidden_size")
    if width % n:
        raise c.refused(f"num_attention_heads = {n} does not divide lru_width = {width}")
    return mixer("rg-lru", (), n=n, h=width // n, k=c.size("conv1d_width"))


BLOCKS: Mapping[str, str] = {"recurrent": LINEAR, "attention": NEAR}
"""Name of a layer of RecurrentGemma -> its kind."""


def _recurrent(c: Configuration, k: int, number: int) -> str:
    """The kind of layer k: the names in `block_types` (`BLOCKS`) repeat, so that three names serve
    layers 0 to 2, 3 to 5, ...; ModelError for a list without names, or an unknown name."""
    listed = c.listing("block_types")
    types = c.layer_types(len(listed or ()), [*BLOCKS], listed, "block_types")
    if not types:
        raise c.refused(f"'block_types' must list {' or '.join(BLOCKS)}, got {listed!r}")
    return BLOCKS[types[k % len(types)]]


def _falcon(c: Configuration) -> Use:
    """Make the attention of Falcon, as a part: with one head of keys (`multi_query`), as many as of
    queries, or, in the new architecture, `num_kv_heads`."""
    options = ["bias"] if c.switch("bias") else []
    n: int = c.size("num_attention_heads")
    g: int | None = c.size_or_none("num_kv_heads")
    if not c.switch("new_decoder_architecture"):
        g = 1 if c.switch("multi_query") else n
    turned, sizes = rotary(c)
    if c.switch("alibi"):
        turned, sizes = ("alibi",), {}
    return attention(c, *options, *turned, groups=g or n, **sizes)


def _falcon_place(c: Configuration) -> str:
    """Where Falcon's norms stand, as `decoder.block` names it: before each sublayer; or attention
    and FFN both read the layer's input, by one norm ("beside") or two ("beside, apart")."""
    norms = c.get("num_ln_in_parallel_attn") or (2 if c.switch("new_decoder_architecture") else 1)
    c.switch("new_decoder_architecture")  # counts as read, whichever field says
    if not c.switch("parallel_attn"):
        return "before"
    return "beside, apart" if norms == 2 else "beside"


def _bound(c: Configuration) -> tuple[str, ...]:
    """The option of attention with bounds of queries, keys and values, where `clip_qkv` has one."""
    bound = c.get("clip_qkv")
    if bound is not None and (isinstance(bound, bool) or not isinstance(bound, (int, float))):
        raise c.refused(f"'clip_qkv' must be a number or null, got {bound!r}")
    return () if bound is None else ("clipped",)


def _mpt(c: Configuration) -> Use:
    """Make the attention of MPT, by the fields inside of `attn_config`."""
    inner = c.inside(
        "attn_config", {"clip_qkv": None},
        "attn_pdrop attn_impl softmax_scale alibi_bias_max alibi model_type",
        attn_type="multihead_attention", prefix_lm=False, qk_ln=False, attn_uses_sequence_id=False,
    )  # fmt: skip
    c.divide("num_attention_heads", "hidden_size")
    return attention(c, "alibi", *(_bound(inner) if inner.get("clip_qkv") else ()))


def _dbrx(c: Configuration) -> Use:
    """Make the attention of DBRX, by the fields inside of `attn_config`."""
    usual = {"clip_qkv": None, "kv_n_heads": 1}
    inner = c.inside("attn_config", usual, "attn_pdrop rope_theta model_type")
    groups = inner.size("kv_n_heads")
    c.agree(num_key_value_heads=groups)
    return attention(c, *rotary(c)[0], *_bound(inner), groups=groups)


def _clipped(c: Configuration, *options: str) -> Use:
    """Make the attention of OLMo, as a part: with `options`, a rotary embedding, and bounds of
    queries, keys and values if the field `clip_qkv` has one."""
    biased = ("bias",) if c.switch("attention_bias") else ()
    turned, _ = rotary(c)
    return attention(c, *options, *biased, *turned, *_bound(c))


def _japanese(c: Configuration, *options: str) -> Use:
    """Make the attention of the Japanese GPT-NeoX, whose output has a bias in the last layer
    alone."""
    turned, sizes = rotary(c, 1.0)
    return attention(c, *options, *turned, **sizes)


LAST = "last_attention"
"""The kind of the last layer, where the class does not name it."""


def _mimo(c: Configuration, kind: str) -> Use:
    """Make the attention of MiMo-V2-Flash: in layers of the `kind` with a window, twice as many
    heads of keys, and sinks (a learned score of no key)."""
    c.divide("num_key_value_heads", "num_attention_heads")
    turned, sizes = rotary(c, 0.334, kind)
    groups, near = c.size("num_key_value_heads"), kind == NEAR
    biased = ("qkv-bias",) if c.switch("attention_bias") else ()
    options = ("grouped", "wide", *turned, *biased, *(("window", "sinks") if near else ()))
    return mixer(
        "self-attention", options, n=c.size("num_attention_heads"), g=groups * (2 if near else 1),
        K=head_width(c), V=c.size("v_head_dim"), w=c.size("sliding_window") if near else None,
        **sizes,
    )  # fmt: skip


def _mimo_kinds(c: Configuration, k: int, number: int) -> str:
    return FULL if k == 0 or (k + 1) % 6 == 0 else NEAR


def _differential(c: Configuration) -> Use:
    """Make the part differential attention, each of whose heads stands for two heads of
    transformers' class; ModelError for numbers of heads that do not make pairs."""
    c.require({"attention_bias": (False,)})
    turned, _ = rotary(c)
    n, g = c.size("num_attention_heads"), c.size_or_none("num_key_value_heads")
    if n % 2 or (g or n) % 2:
        raise c.refused(
            f"num_attention_heads = {n} and num_key_value_heads = {g or n} must be even, since "
            "differential attention pairs the heads"
        )
    found = mixer("differential-attention", turned, n=n // 2, g=(g or n) // 2, h=head_width(c))
    return replace(found, form="outputs")


def _jetmoe(c: Configuration) -> Use:
    """Make the attention of JetMoE, whose queries and output pass experts."""
    g, chosen, number = (
        c.size("num_key_value_heads"), c.size("num_experts_per_tok"), c.size("num_local_experts")
    )  # fmt: skip
    if chosen > number:
        raise c.refused(f"num_experts_per_tok = {chosen} is more than num_local_experts = {number}")
    c.agree(num_attention_heads=g * chosen)
    rotary(c)  # refuses parameters that are not known here
    sizes = {"E": number, "c": chosen, "g": g, "K": c.size("head_dim")}
    return part("mixture of attention heads", expert_attention.attention(), **sizes)


def _big_code(c: Configuration) -> Use:
    groups = 1 if c.switch("multi_query") else c.size("num_attention_heads")
    c.agree(num_key_value_heads=groups)
    return attention(c, "bias", groups=groups)


NEO: Any = [[["global", "local"], 12]]
"""The default of `attention_types`."""


def _neo(c: Configuration, k: int, number: int) -> str:
    """The kind of layer k (from 0) as `attention_types` says, lists of names, each with how often
    it comes: [[["global", "local"], 12]] for 24 layers in turn, full attention and windows."""
    kinds = {"global": FULL, "local": NEAR}
    given = NEO if (types := c.get("attention_types")) is None else types
    try:
        many = sum(len(names) * times for names, times in given) > number  # too many to write out
        listed = [] if many else [name for names, times in given for name in [*names] * times]
    except (TypeError, ValueError):
        listed = []
    if len(listed) != number or any(name not in [*kinds] for name in listed):
        raise c.refused(
            f"'attention_types' must say global or local for each of {number} layers, such as "
            f"{NEO} for {len(NEO[0][0]) * NEO[0][1]} layers, got {given!r:.200}"
        )
    c.agree(attention_layers=listed)
    return kinds[listed[k]]


def _turned(c: Configuration, number: int) -> list[bool]:
    """A list with a bool for each layer of Llama 4, whether it has a rotary embedding: as the list
    `no_rope_layers` says (1: it has), else all but each `no_rope_layer_interval`-th one."""
    every = c.size("no_rope_layer_interval")
    return c.flags("no_rope_layers", number) or [(k + 1) % every > 0 for k in range(number)]


def _llama_4(c: Configuration) -> str:
    """A sentence on why a configuration of Llama 4 is refused, "" if it is read: rotary embedding
    is read only in layers with chunked attention, and in all of them."""
    number = c.size("num_hidden_layers")
    kinds = c.layer_types(number, (FULL, CHUNK))
    if kinds and [kind == CHUNK for kind in kinds] != _turned(c, number):
        return "no_rope_layers and layer_types differ: rows turn where attention is in chunks"
    return ""


def _llama_4_experts(c: Configuration, number: int) -> list[bool]:
    step, listed = c.size("interleave_moe_layer_step"), c.layers("moe_layers")
    return [k in listed if listed is not None else (k + 1) % step == 0 for k in range(number)]


SUM_SCALED = "a constant multiplies the weights of experts, where the class multiplies their sum"


def _indexed(c: Configuration) -> str:
    """A sentence on why a configuration of MiniMax-M3 is refused, "" if it is read."""
    older = c.nested("sparse_attention_config").listing("sparse_attention_freq")
    listed = c.listing("layer_types") or older or ()
    if any(kind not in (0, FULL) for kind in listed):
        return (
            "some layers have an indexer that chooses keys (minimax_m3_sparse), and no part of a "
            f"network here is one: expected '{FULL}' for each layer"
        )
    return ""


def _unlike_opt(c: Configuration) -> str:
    d, e = c.size("hidden_size"), c.size_or_none("word_embed_proj_dim")
    return "" if e in (None, d) else f"rows of the embedding are {e} wide, not {d}"


def _factor(c: Configuration, name: str) -> int:
    """The channels of a row times the factor in a field, rounded down."""
    return int(c.size("hidden_size") * c.positive(name))


def _mlstm(c: Configuration) -> Use:
    """Make the part mLSTM, with sizes from the fields of a configuration of xLSTM."""
    n, keys, values = c.size("num_heads"), _factor(c, "qk_dim_factor"), _factor(c, "v_dim_factor")
    if keys % n or values % n:
        raise c.refused(
            f"num_heads = {n} must divide qk_dim_factor * hidden_size = {keys} and v_dim_factor * "
            f"hidden_size = {values}"
        )
    return mixer("mlstm", (), n=n, K=keys // n, h=values // n)


def _rounded(c: Configuration) -> int:
    """The width of the FFN of xLSTM: `ffn_proj_factor` times the channels of a row, rounded to a
    multiple as the class does: to multiples of 64, 129 to 192 and 128.5 to 128."""
    multiple, factor = c.size("ffn_round_up_to_multiple_of"), c.positive("ffn_proj_factor")
    return int((c.size("hidden_size") * factor + multiple - 1) // multiple * multiple)


def _lfm_3(c: Configuration, k: int, number: int) -> str:
    return FULL if k % 4 == 2 else NEAR if k and k % 4 == 0 else CONV


ROWS: Mapping[str, Plain] = {
    "afmoe": Plain(
        name="Afmoe", options=(*NORMED, "gate"), place="both", scaled="mup_enabled",
        numbers="route_scale global_attn_every_n_layers", fixed={"attention_bias": (False,)},
        kinds=every("global_attn_every_n_layers"), still=frozenset({FULL}),
        experts=Experts(
            scores="sigmoid", normalised=True, shared="plain", correction="parameter"
        ),
    ),
    "apertus": Plain(name="Apertus", options=NORMED, ffn="plain"),
    "arcee": Plain(name="Arcee", ffn="plain"),
    "aria_text": Plain(
        name="AriaText",
        experts=Experts(
            scores="chosen-softmax", normalised=False, width="intermediate_size", shared="plain"
        ),
    ),
    "axk1": Plain(
        name="AXK1", mixers={FULL: latent}, numbers=DEEPSEEK,
        experts=Experts(scores="sigmoid", shared="plain", first=1, normed=True),
    ),
    "bailing_hybrid": Plain(
        name="BailingHybrid", mixers={FULL: lambda c: latent(c, "head-gate"), LINEAR: _bailing},
        kinds=_last("layer_group_size"), state="fp32", ties=False, fixed={"q_lora_rank": (None,)},
        numbers="layer_group_size kda_lower_bound mtp_loss_scaling_factor " + DEEPSEEK,
        experts=Experts(scores="sigmoid", shared="plain", first=2),
    ),
    "bamba": Plain(
        name="Bamba", mixers={LINEAR: _mamba_2}, kinds=_bamba, share=0.5, state="fp32",
        numbers="num_logits_to_keep mamba_chunk_size time_step_limit z_loss_coefficient "
        "attn_layer_indices attn_rotary_emb",
    ),
    "beam": Plain(
        name="Beam", options=(*NORMED, "biased-gate"), place="both", residual="both",
        kinds=lambda c, k, number: NEAR if (k + 1) % 6 and k + 1 < number else FULL,
        still=lambda c: frozenset() if c.get("rope_parameters") else frozenset({FULL}),
        cap="final_logit_softcapping", numbers=DEEPSEEK, experts=Experts(scores="sigmoid", first=3),
        remark=f"products of queries with a number of the position are not counted; {SUM_SCALED}",
    ),
    "biogpt": Plain(
        name="BioGpt", norm="layer", options=("bias",), turned="", ffn="plain", ffn_bias=True,
        positions="learned", offset=2, scaled="scale_embedding", dropout="hidden_dropout_prob",
        numbers="layerdrop activation_dropout attention_probs_dropout_prob",
    ),
    "bitnet": Plain(
        name="BitNet", options=("heads-norm",), ffn="gated, normed", ffn_bias=False,
        check=square,
    ),
    "bloom": Plain(
        name="Bloom", norm="layer", options=("bias", "alibi"), turned="", ffn="plain",
        ffn_bias=True, width="", activation="gelu-tanh", embedding_norm=True,
        dropout="hidden_dropout",
        spelled={"hidden_size": "n_embed"},
        numbers="slow_but_exact n_inner offset_alibi seq_length unk_token_id "
        "masked_softmax_fusion skip_bias_add skip_bias_add_qkv bias_dropout_fusion "
        "attention_softmax_in_fp32",
        fixed={"apply_residual_connection_post_layernorm": (False,)},
    ),
    "codegen": Plain(
        name="CodeGen", norm="layer", place="beside", ffn="plain", ffn_bias=True, width="n_inner",
        activation="activation_function", head_bias=True, dropout="resid_pdrop embd_pdrop",
        numbers="n_ctx attn_pdrop",
    ),
    "cohere": Plain(
        name="Cohere", norm="layer, no bias", place="beside", turned="rotary-pairs",
        scale="multiplied", numbers="logit_scale",
        switches={"attention_bias": "bias", "use_qk_norm": "heads-qk-layer-norm"},
    ),
    "cohere2": Plain(
        name="Cohere2", norm="layer, no bias", place="beside", turned="rotary-pairs",
        scale="multiplied",
        numbers="logit_scale layer_switch order_of_interleaved_layers position_embedding_type",
        kinds=every(4), still=frozenset({FULL}),
        fixed={
            "rotary_pct": (1.0,), "use_embedding_sharing": (True,), "use_parallel_block": (True,),
            "use_gated_activation": (True,), "use_parallel_embedding": (True, False),
        },
    ),
    "cohere2_moe": Plain(
        name="Cohere2Moe", norm="layer, no bias", place="beside", turned="rotary-pairs",
        scale="multiplied", kinds=every("sliding_window_pattern"), still=frozenset({FULL}),
        numbers="logit_scale shared_expert_combination_strategy norm_topk_prob",
        fixed={
            "rms_norm_eps": (None,), "first_k_dense_replace": (0,),
            "expert_selection_fn": ("softmax",), "prefix_dense_sliding_window_pattern": (1,),
        },
        check=listed("mlp_layer_types", lambda c, kind: kind == "sparse", "'sparse'"),
        experts=Experts(
            scores="chosen-softmax", normalised=False, width="intermediate_size", shared="plain"
        ),
    ),
    "cohere_compass_text": Plain(
        name="CohereCompass", bare="TextModel", norm="layer, no bias", place="beside",
        scale="multiplied", numbers="logit_scale pooling",
    ),
    "ctrl": Plain(
        name="CTRL", head_class="LMHeadModel", norm="layer", options=("bias",), turned="",
        ffn="plain", ffn_bias=True, width="dff", activation="relu", positions="sinusoidal",
        scaled=True, head_bias=True, dropout="resid_pdrop embd_pdrop", check=square,
    ),
    "git": Plain(
        name="Git", norm="layer", place="after", end=False, options=("bias",), turned="",
        ffn="plain", ffn_bias=True, embedding_norm=True, positions="learned", head_bias=True,
        dropout="hidden_dropout_prob", remark=TEXT_ALONE,
        numbers="attention_probs_dropout_prob vision_config num_image_with_embedding",
    ),
    "cwm": Plain(name="Cwm", kinds=first(4)),
    "dbrx": Plain(
        name="Dbrx", norm="layer, no bias", mixers={FULL: _dbrx}, activation="silu", width="",
        dropout="resid_pdrop", numbers="emb_pdrop", check=square,
        experts=Experts(
            normalised="moe_normalize_expert_weights", width="ffn_hidden_size", inner="ffn_config",
            within={
                "moe_num_experts": 4, "moe_top_k": 1, "ffn_hidden_size": 3584,
                "moe_normalize_expert_weights": 1.0,
            },
            fixed={"ffn_act_fn": ({"name": "silu"}, None)},
            numbers="moe_jitter_eps moe_loss_weight hidden_size model_type",
        ),
    ),
    "deepseek_v2": Plain(
        name="DeepseekV2", mixers={FULL: latent}, numbers=DEEPSEEK + " norm_topk_prob",
        fixed={"topk_method": ("greedy", "group_limited_greedy")},
        experts=Experts(shared="plain", chosen=1, normalised=False),
    ),
    "deepseek_v3": Plain(
        name="DeepseekV3", mixers={FULL: latent}, numbers=DEEPSEEK,
        experts=Experts(scores="sigmoid", shared="plain"),
    ),
    "diffllama": Plain(
        name="DiffLlama", mixers={FULL: _differential}, numbers="lambda_std_dev",
        remark="scores are counted once, where the class computes all of them twice",
    ),
    "dots1": Plain(
        name="Dots1", options=NORMED, numbers=DEEPSEEK, kinds=_late,
        experts=Experts(scores="sigmoid", shared="plain"),
    ),
    "emu3_text_model": Plain(
        name="Emu3", bare="TextModel",
        fixed={"attention_bias": (False,), "mlp_bias": (False,)},
    ),
    "ernie4_5": Plain(
        name="Ernie4_5", turned="rotary-pairs", switches=USE_BIAS, ffn_bias="use_bias",
    ),
    "ernie4_5_moe": Plain(
        name="Ernie4_5_Moe", turned="rotary-pairs", fixed={"use_bias": (False,)},
        numbers="moe_norm_min moe_layer_start_index moe_layer_end_index moe_layer_interval",
        experts=Experts(
            normalised=True, shared="plain", correction="parameter", there=_ernie
        ),
    ),
    "exaone4": Plain(
        name="Exaone4", options=NORMED, place="output", kinds=_exaone, still=_exaone_still,
    ),
    "exaone_moe": Plain(
        name="ExaoneMoe", options=NORMED, kinds=_exaone, still=_exaone_still, numbers=DEEPSEEK,
        experts=Experts(scores="sigmoid", shared="plain"),
    ),
    "falcon": Plain(
        name="Falcon", norm="layer", place=_falcon_place, mixers={FULL: _falcon}, ffn="plain",
        ffn_bias="bias", width="ffn_hidden_size", activation="activation",
        dropout="hidden_dropout", called=("RWForCausalLM",),
        numbers="num_ln_in_parallel_attn apply_residual_connection_post_layernorm",
        remark="with num_kv_heads, the class keeps keys and values for each head of queries",
    ),
    "flint": Plain(
        name="Flint", options=(*NORMED, "sinks"), kinds=_flint, still=frozenset({FULL}),
        experts=Experts(
            scores="chosen-sigmoid", shared="plain",
            there=lambda c, n: sparse(c, n, 0 if c.get("mlp_only_layers") is not None else 2),
        ),
        remark="the sigmoids of the chosen scores count, where the class takes those of all",
    ),
    "glm": Plain(name="Glm", switches=QKV, share=0.5),
    "glm4": Plain(name="Glm4", switches=QKV, share=0.5, place="both"),
    "glm4_moe": Plain(
        name="Glm4Moe", switches={**QKV, "use_qk_norm": "qk-norm"}, share=0.5, numbers=DEEPSEEK,
        experts=Experts(scores="sigmoid", shared="plain"),
    ),
    "glm4_moe_lite": Plain(
        name="Glm4MoeLite", mixers={FULL: latent}, numbers=DEEPSEEK,
        experts=Experts(scores="sigmoid", shared="plain", first=1),
    ),
    "flex_olmo": Plain(
        name="FlexOlmo", options=WHOLE, place="output", experts=Experts(width="intermediate_size"),
    ),
    "gpt_bigcode": Plain(
        name="GPTBigCode", norm="layer", mixers={FULL: _big_code}, ffn="plain", ffn_bias=True,
        width="n_inner", activation="activation_function", positions="learned",
        dropout="resid_pdrop embd_pdrop", fixed={"scale_attn_weights": (True,)},
        numbers="attn_pdrop inference_runner max_batch_size max_sequence_length pad_key_length "
        "pre_allocate_kv_cache validate_runner_input",
    ),
    "gpt_neo": Plain(
        name="GPTNeo", norm="layer", options=("output-bias", "unscaled"), turned="", kinds=_neo,
        ffn="plain", ffn_bias=True, activation="activation_function", positions="learned",
        dropout="resid_dropout embed_dropout",
        numbers="attention_types attention_layers window_size classifier_dropout",
        remark="the class keeps all rows in layers with a window too",
    ),
    "gpt_neox": Plain(
        name="GPTNeoX", norm="layer", place=_parallel, ffn="plain", ffn_bias=True, share=0.25,
        dropout="hidden_dropout", spelled={"partial_rotary_factor": "rotary_pct"},
        numbers="rotary_emb_base hidden_dropout_prob attention_probs_dropout_prob",
    ),
    "gpt_neox_japanese": Plain(
        name="GPTNeoXJapanese", norm="layer", ffn="plain", ffn_bias=False,
        mixers={FULL: _japanese, LAST: lambda c: _japanese(c, "output-bias")},
        kinds=lambda c, k, number: LAST if k == number - 1 else FULL,
        width=lambda c: c.size("hidden_size") * c.size("intermediate_multiple_size"),
        dropout="hidden_dropout", numbers="intermediate_multiple_size rotary_emb_base",
        spelled={"partial_rotary_factor": "rotary_pct"}, check=square,
    ),
    "gpt_oss": Plain(
        name="GptOss", options=("sinks",), kinds=_alternately,
        same={"experts_per_token": "num_experts_per_tok"},
        numbers="swiglu_alpha swiglu_limit initial_context_length",
        experts=Experts(
            scores="chosen-softmax", normalised=False, width="intermediate_size", clamped=True,
            biased=True,
        ),
    ),
    "gptj": Plain(
        name="GPTJ", norm="layer", place="beside", ffn="plain", ffn_bias=True, width="n_inner",
        activation="activation_function", head_bias=True, dropout="resid_pdrop embd_pdrop",
        numbers="attn_pdrop", fixed={"rotary": (True,), "scale_attn_weights": (True,)},
    ),
    "granite": Plain(
        name="Granite", scaled=True, residual="output", scale="divided", numbers=GRANITE,
    ),
    "granitemoe": Plain(
        name="GraniteMoe", scaled=True, residual="output", scale="divided", numbers=GRANITE,
        experts=Experts(scores="chosen-softmax", normalised=False, width="intermediate_size"),
    ),
    "granitemoeshared": Plain(
        name="GraniteMoeShared", scaled=True, residual="output", scale="divided", numbers=GRANITE,
        experts=Experts(
            scores="chosen-softmax", normalised=False, width="intermediate_size", shared="plain"
        ),
    ),
    "granite_swa": Plain(
        name="GraniteSWA", options=("sinks",), check=TURNED, scaled=True, residual="output",
        scale="divided",
        numbers=GRANITE, kinds=first(4),
    ),
    "granitemoe_swa": Plain(
        name="GraniteMoeSWA", options=("sinks",), check=TURNED, scaled=True, residual="output",
        scale="divided",
        numbers=GRANITE, kinds=first(4),
        experts=Experts(
            scores="chosen-softmax", normalised=False, width="intermediate_size", shared="plain"
        ),
    ),
    "helium": Plain(name="Helium", turned="rotary-pairs", switches=QKV, check=square),
    "hunyuan_v1_dense": Plain(
        name="HunYuanDenseV1", options=NORMED, numbers="cla_share_factor org_vocab_size pad_id",
        fixed={"norm_type": ("rms",), "num_experts": (1,), "use_qk_norm": (True,)},
        same={"attention_head_dim": "head_dim"},
    ),
    "hunyuan_v1_moe": Plain(
        name="HunYuanMoEV1", options=NORMED,
        experts=Experts(
            normalised=True, width="intermediate_size", shared="plain", copies=1
        ),
    ),
    "hy_v3": Plain(
        name="HYV3", options=NORMED,
        numbers="router_scaling_factor enable_moe_fp32_combine",
        experts=Experts(scores="sigmoid", normalised=True, shared="plain", first=1),
    ),
    "hyperclovax": Plain(
        name="HyperCLOVAX", scaled=True, residual="output", scale="multiplied", numbers=GRANITE,
        place=lambda c: "both" if c.switch("use_post_norm") else "before",
    ),
    "internlm3": Plain(name="Llama", called=("InternLM3ForCausalLM",)),
    "iquestcoder": Plain(name="Llama"),
    "jamba": Plain(
        name="Jamba", turned="", mixers={LINEAR: _mamba}, kinds=_jamba, state="fp32",
        numbers="use_mamba_kernels use_mambapy use_associative_scan num_logits_to_keep n_ctx "
        "calc_logits_for_entire_prompt",
        fixed={"mamba_inner_layernorms": (True,)},
        experts=Experts(normalised=False, width="intermediate_size", there=_jamba_experts),
    ),
    "jais2": Plain(name="Jais2", norm="layer", ffn="plain"),
    "jetmoe": Plain(
        name="JetMoe", mixers={FULL: _jetmoe}, activation="activation_function",
        numbers="aux_loss_coef",
        experts=Experts(
            scores="chosen-softmax", normalised=False, width="intermediate_size", offset=True
        ),
    ),
    "kimi_linear": Plain(
        name="KimiLinear", mixers={FULL: lambda c: latent(c, "nope"), LINEAR: _kda}, kinds=_kimi,
        state="fp32", ties=False,
        numbers="linear_attn_config num_expert_group topk_group use_grouped_topk "
        + DEEPSEEK,
        fixed={"mla_use_nope": (True,), "moe_router_activation_func": ("sigmoid",)},
        experts=Experts(
            scores="sigmoid", normalised="moe_renormalize", shared="plain", first=1
        ),
    ),
    "kolibri1": Plain(
        name="Kolibri1", options=NORMED, place="both", kinds=every(5), still=frozenset({FULL}),
        experts=Experts(
            scores="chosen-sigmoid", shared="plain", correction="buffer",
            there=lambda c, number: [True] * number,
        ),
    ),
    "laguna": Plain(
        name="Laguna", options=(*NORMED, "head-gate"), share={FULL: 0.5, NEAR: 1.0},
        fixed={
            "gating": (True,), "attention_bias": (False,),
            "moe_router_logit_softcapping": (0.0,), "moe_apply_router_weight_on_input": (False,),
        },
        numbers="moe_routed_scaling_factor",
        check=listed(
            "num_attention_heads_per_layer", lambda c, n: n == c.size("num_attention_heads"),
            "num_attention_heads",
        ),
        experts=Experts(
            scores="sigmoid", normalised=True, shared="plain", correction="parameter", first=1
        ),
        remark="gates are sigmoids, where the class has softplus",
    ),
    "lfm2_moe": Plain(
        name="Lfm2Moe", options=NORMED, mixers={CONV: gated_convolution}, activation="silu",
        numbers="routed_scaling_factor use_expert_bias",
        replaced={"tie_word_embeddings": "tie_embedding"},
        experts=Experts(scores="sigmoid"),
    ),
    "lfm3": Plain(
        name="Lfm3", options=(*NORMED, "head-gate"), mixers={CONV: gated_convolution}, kinds=_lfm_3,
        share={FULL: 0.5, NEAR: 1.0}, activation="silu",
        fixed={"use_attention_gate": (True,), "attention_bias": (False,)},
        place=lambda c: "both" if c.switch("use_sandwich_norm") else "before",
    ),
    "llama": Plain(name="Llama"),
    "llama4_text": Plain(
        name="Llama4", bare="TextModel", turned="rotary-pairs", still=frozenset({FULL}),
        kinds=lambda c, k, number: CHUNK if _turned(c, number)[k] else FULL, check=_llama_4,
        width="intermediate_size_mlp",
        numbers="attn_temperature_tuning floor_scale attn_scale use_qk_norm no_rope_layers "
        "no_rope_layer_interval attention_chunk_size moe_layers interleave_moe_layer_step",
        experts=Experts(
            scores="chosen-sigmoid", normalised=False, width="intermediate_size", shared="plain",
            copies=1, there=_llama_4_experts,
        ),
        remark="norms of queries and keys, which have no weights, and scales by the position are "
        "not counted; a token goes through the experts that it chooses, where the class computes "
        "all of them",
    ),
    "mellum": Plain(
        name="Mellum", options=NORMED, experts=Experts(), numbers="num_nextn_predict_layers",
    ),
    "minicpm3": Plain(
        name="MiniCPM3", mixers={FULL: latent}, scaled=True, residual="output", scale="rows",
        numbers="scale_emb scale_depth dim_model_base",
    ),
    "minimax": Plain(
        name="MiniMax", mixers={LINEAR: _lightning, FULL: _bounded},
        kinds=_minimax,
        numbers="block_size full_attn_alpha_factor full_attn_beta_factor linear_attn_alpha_factor "
        "linear_attn_beta_factor mlp_alpha_factor mlp_beta_factor",
        experts=Experts(normalised=True, width="intermediate_size"),
        remark="a sum adds the rows before the norm, where the class adds those behind and "
        "multiplies both terms by constants",
    ),
    "minimax_m2": Plain(
        name="MiniMaxM2", options=WHOLE, share=_share_of_dim,
        fixed={
            "use_qk_norm": (True,), "qk_norm_type": ("per_layer",), "scoring_func": ("sigmoid",),
            "use_routing_bias": (True,), "shared_intermediate_size": (0,),
        },
        numbers="attn_type_list use_mtp num_mtp_modules mtp_transformer_layers "
        "mlp_intermediate_size layernorm_full_attention_alpha layernorm_full_attention_beta "
        "layernorm_linear_attention_alpha layernorm_linear_attention_beta layernorm_mlp_alpha "
        "layernorm_mlp_beta",
        experts=Experts(scores="sigmoid", normalised=True, width="intermediate_size"),
    ),
    "minimax_m3_vl_text": Plain(
        name="MiniMaxM3VL", bare="TextModel", norm="rms, 1 + w", options=NORMED, check=_indexed,
        mixers={FULL: lambda c: attention(c, *NORMED, *rotary(c, 1.0)[0], **rotary(c, 1.0)[1])},
        ffn="gated, clamped", ffn_bias=False, width="dense_intermediate_size", activation="silu",
        numbers="rotary_dim hidden_act swiglu_alpha swiglu_limit index_n_heads index_head_dim "
        "index_block_size index_topk_blocks index_local_blocks routed_scaling_factor",
        experts=Experts(
            scores="sigmoid", normalised=True, width="intermediate_size", shared="plain",
            clamped=True,
        ),
        remark=f"{UNIT_GAINS}; {SUM_SCALED}",
    ),
    "mimo_v2_flash": Plain(
        name="MiMoV2Flash", numbers="attention_value_scale sliding_window_size " + DEEPSEEK,
        mixers={FULL: lambda c: _mimo(c, FULL), NEAR: lambda c: _mimo(c, NEAR)}, kinds=_mimo_kinds,
        experts=Experts(scores="sigmoid", first=1),
        remark="the product of values and a constant is not counted",
    ),
    "ministral": Plain(name="Ministral", kinds=_windowed),
    "ministral3": Plain(
        name="Ministral3",
        remark="products of queries with a number of the position are not counted",
    ),
    "mistral": Plain(name="Mistral"),
    "mllama_text_model": Plain(
        name="Mllama", bare="TextModel", kinds=_mllama, gated=frozenset({CROSS}), beyond=8,
        mixers={CROSS: lambda c: attention(c, "cross", *NORMED)}, seen=_rows_of_image,
        numbers="dropout", ties=False,
        remark="layers of cross-attention read the e rows of an image with all its tiles; without "
        "an image the class passes over these layers",
    ),
    "mixtral": Plain(
        name="Mixtral", experts=Experts(normalised=True, width="intermediate_size")
    ),
    "mpt": Plain(
        name="Mpt", called=("MPTForCausalLM",), norm="layer, no bias", mixers={FULL: _mpt},
        ffn="plain", ffn_bias=False, width="", activation="gelu",
        numbers="max_seq_len emb_pdrop resid_pdrop learned_pos_emb init_device logit_scale "
        "no_bias embedding_fraction norm_type verbose expansion_ratio init_config tokenizer_name",
    ),
    "moshi": Plain(
        name="Moshi", ties=False, width=lambda c: c.size("ffn_dim") // 2, beyond=1,
        remark=TEXT_ALONE,
        numbers="num_codebooks audio_vocab_size audio_encoder_config depth_decoder_config",
    ),
    "nanochat": Plain(
        name="NanoChat", norm="rms, no weights", ffn="plain", cap="final_logit_softcapping",
        remark="norms of queries and keys, which have no weights, are not counted",
    ),
    "nemotron": Plain(name="Nemotron", norm="layer, 1 + w", ffn="plain", share=0.5),
    "olmo": Plain(name="Olmo", norm="layer, no weights", mixers={FULL: _clipped}),
    "olmo2": Plain(name="Olmo2", options=WHOLE, place="output"),
    "olmo3": Plain(name="Olmo3", options=WHOLE, place="output", kinds=every(4)),
    "olmo_hybrid": Plain(
        name="OlmoHybrid", mixers={FULL: _olmo, LINEAR: _olmo_delta}, kinds=_olmo_hybrid,
        place={FULL: "output", LINEAR: "before"}, state="fp32",
        numbers="linear_a_log_min linear_a_log_max linear_dt_min linear_dt_max "
        "linear_dt_init_floor",
    ),
    "olmoe": Plain(
        name="Olmoe", mixers={FULL: lambda c: _clipped(c, *WHOLE)},
        experts=Experts(width="intermediate_size"), check=square,
    ),
    "openai-gpt": Plain(
        name="OpenAIGPT", head_class="LMHeadModel", norm="layer", place="after", end=False,
        options=("bias",), turned="", ffn="plain", ffn_bias=True, width="", activation="afn",
        gelu="gelu-tanh", positions="learned", dropout="resid_pdrop embd_pdrop",
        numbers="attn_pdrop",
    ),
    "opt": Plain(
        name="OPT", norm="layer", switches={"enable_bias": "bias"}, turned="", ffn="plain",
        ffn_bias="enable_bias", width="ffn_dim", activation="activation_function",
        positions="learned", offset=2, dropout="dropout", numbers="layerdrop init_std",
        place=lambda c: "before" if c.switch("do_layer_norm_before") else "after",
        end=lambda c: c.switch("do_layer_norm_before") and not c.switch("_remove_final_layer_norm"),
        check=_unlike_opt, fixed={"layer_norm_elementwise_affine": (True,)},
    ),
    "persimmon": Plain(
        name="Persimmon", norm="layer", options=("bias",), switches=LAYER_NORMS, ffn="plain",
        ffn_bias=True, share=0.5, dropout="hidden_dropout",
    ),
    "phi": Plain(
        name="Phi", norm="layer", place="beside", ffn="plain", ffn_bias=True, share=0.5,
        options=("bias",), head_bias=True, dropout="resid_pdrop embd_pdrop", switches=LAYER_NORMS,
    ),
    "phi3": Plain(
        name="Phi3", share=1.0, numbers="original_max_position_embeddings",
        fixed={"attention_bias": (False,), "resid_pdrop": (0.0,), "embd_pdrop": (0.0,)},
    ),
    "phi4_multimodal": Plain(
        name="Phi4Multimodal", share=1.0, remark=TEXT_ALONE,
        numbers="original_max_position_embeddings vision_config audio_config",
        fixed=dict.fromkeys(("resid_pdrop", "embd_pdrop"), (0.0,)),
    ),
    "phimoe": Plain(
        name="Phimoe", norm="layer", head_bias="lm_head_bias", numbers="input_jitter_noise",
        experts=Experts(normalised=False, width="intermediate_size"),
        fixed={"num_experts_per_tok": (2,)},
        remark="scores of experts are weighed as by a softmax of all, where the class has a "
        "softmax of those near the best",
    ),
    "qwen2": Plain(name="Qwen2", options=("qkv-bias",), kinds=_late),
    "qwen2_moe": Plain(
        name="Qwen2Moe", switches={"qkv_bias": "qkv-bias"}, experts=Experts(shared="gated"),
        kinds=_alternate,
    ),
    "qwen3": Plain(name="Qwen3", options=NORMED, kinds=_late),
    "qwen3_moe": Plain(name="Qwen3Moe", options=NORMED, experts=Experts()),
    "recurrent_gemma": Plain(
        name="RecurrentGemma", norm="rms, 1 + w", options=("output-bias",), kinds=_recurrent,
        mixers={LINEAR: _rg_lru}, share=0.5, ffn_bias=True, activation="hidden_activation",
        width=lambda c: c.size("intermediate_size") // 2, scaled=True, cap="logits_soft_cap",
        state="fp32",
        numbers="block_types attention_window_size w_init_variance_scale "
        "final_w_init_variance_scale",
        switches={"attention_bias": "qkv-bias"}, fixed={"embeddings_scale_by_sqrt_dim": (True,)},
    ),
    "seed_oss": Plain(
        name="SeedOss", switches={**QKV, "attention_out_bias": "output-bias"},
        dropout="residual_dropout",
    ),
    "solar_open": Plain(
        name="SolarOpen", numbers=DEEPSEEK, switches=QKV,
        experts=Experts(scores="sigmoid", shared="plain"),
    ),
    "stablelm": Plain(
        name="StableLm", norm="layer", share=0.25,
        switches={"use_qkv_bias": "qkv-bias", "qk_layernorm": "heads-qk-layer-norm"},
        place=lambda c: "beside" if c.switch("use_parallel_residual") else "before",
        dropout="hidden_dropout",
    ),
    "starcoder2": Plain(
        name="Starcoder2", norm="layer", switches=USE_BIAS, ffn="plain", ffn_bias="use_bias",
        dropout="residual_dropout embedding_dropout",
        numbers="norm_epsilon activation_function",
        fixed={
            "mlp_type": ("default",), "norm_type": ("layer_norm",), "scale_attn_weights": (True,),
        },
    ),
    "xglm": Plain(
        name="XGLM", norm="layer", options=("bias",), turned="", ffn="plain", ffn_bias=True,
        width="ffn_dim", activation="activation_function", positions="sinusoidal",
        scaled="scale_embedding", dropout="dropout", fixed={"add_cross_attention": (False,)},
        numbers="activation_dropout layerdrop init_std",
    ),
    "xlstm": Plain(
        name="xLSTM", mixers={FULL: _mlstm}, width=_rounded, activation="silu",
        cap="output_logit_soft_cap", fixed={"use_bias": (False,), "add_out_norm": (True,)},
        numbers="norm_reduction_force_float32 chunkwise_kernel sequence_kernel step_kernel mode "
        "chunk_size return_last_states autocast_kernel_dtype eps inference_state_dtype "
        "gate_soft_cap weight_mode max_inference_chunksize",
        same={"embedding_dim": "hidden_size", "num_blocks": "num_hidden_layers"}, ties=False,
    ),
    "youtu": Plain(
        name="Youtu", mixers={FULL: latent}, numbers="embedding_initializer_range",
    ),
    "vaultgemma": Plain(
        name="VaultGemma", norm="rms, 1 + w", activation="hidden_activation", scaled=True,
        cap="final_logit_softcapping", numbers="query_pre_attn_scalar", kinds=every(2),
        options=("soft-cap",),
    ),
}  # fmt: skip
"""model_type -> how its decoder differs from the plain one."""
