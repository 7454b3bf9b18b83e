"""Do the twins of architectures compute what the classes of transformers compute?

Each record of `equal_outputs.json` has a small configuration. `python -m
tests.models.equal_outputs` needs transformers, and writes the rest of the records anew: the names
and shapes of the class's parameters, and its scores for some tokens, in float64. Parameters are
drawn from their names, so that the tests load the same into a twin without transformers.

Gradients are those of the class too, but for a row of a table: that of the padding token
(`padding_idx` of `nn.Embedding`), which has none in the class and has one in the twin.

The class has the constants of the equations: the configurations choose those of scores, multipliers
and angles, and the command sets those under the roots of norms, and tables of sines.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from costmodel.networks.blocks import Description
from costmodel.networks.parts import MULTIPLIER
from profiler.networks.modules import float_of, sinusoids
from profiler.networks.twin import Twin
from tests.models.drawn import TOWERS, class_of

FILE = Path(__file__).parent / "equal_outputs.json"
LENGTH = 7

STRAIGHT = ("gpt2", "gpt-sw3", "openai-gpt")
"""Types whose linear maps are (in, out)."""

STRAIGHT_EXPERTS = ("gpt_oss", "aria_text")
"""Types whose maps of experts are (E, in, out)."""

NEIGHBOURS = ("glm", "glm4", "gptj")
"""Types that turn neighbouring channels, where the mixer turns those of two halves."""

LAST: Mapping[str, Sequence[str]] = {
    "blenderbot-small": ("positions",),
    "hrm_text": ("z_L_init", "lm_head"),
    "roc_bert": (
        "word",
        "shape",
        "pronunciation",
        "map_",
        "position",
        "token_type",
        "embed",
        "transform",
        "cls",
    ),
    "xlm": ("position", "norm", "bias"),
    "xmod": (
        "word",
        "position",
        "token_type",
        "embeddings.Layer",
        "dense",
        "layer_norm",
        "lm_head",
    ),
}
"""Type -> pieces of the names of its last parameters beside the layers, in the order in which rows
pass them, where the class names them otherwise; bias of the scores: last in all others."""

PADDED = {"xmod": 2}
"""Type -> rows of its table of positions that no token reads: here the last, there the first."""

IN_ORDER = {
    **dict.fromkeys(("glm4", "kolibri1", "longcat_flash"), (0, 2, 1, 3)),
    "gemma4_text": (0, 1, 2, 5, 7, 6, 3, 4),
}
"""Type -> its norms in the order in which rows pass them, where the class names them otherwise."""

UNIT = (
    "gemma3_text", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "minimax_m3_vl_text",
)  # fmt: skip
"""Types whose norms of queries and keys have gains 1 + w, where mixers have w."""


def tokens_of(u: int) -> Tensor:
    """Two sequences (2, l) of numbers below u."""
    draw = random.Random("tokens")
    return torch.tensor([[draw.randrange(u) for _ in range(LENGTH)] for _ in range(2)])


def image_of(config: Mapping[str, Any]) -> Tensor | None:
    """Rows (2, e, d) of an image, if layers of the configuration read some."""
    if "cross_attention_layers" not in config:
        return None
    return drawn("rows of an image", (2, 4, config["hidden_size"]))


def drawn(name: str, shape: Sequence[int]) -> Tensor:
    """Parameters from their name, uniform between -0.7 and 0.7, in float64."""
    draw, number = random.Random(name), 1
    for extent in shape:
        number *= extent
    values = [draw.uniform(-0.7, 0.7) for _ in range(number)]
    return torch.tensor(values, dtype=torch.float64).reshape(tuple(shape))


Rule = tuple[str, str, str]
"""How a class calls parameters of the equations: a pattern of its name, the names in the equations,
and how a linear map (out, in) is turned and split: by "columns" of (in, out), by columns within
each of the "heads", in "pairs" of columns, or "" for a parameter that stays as it is."""

BIASED: Sequence[Rule] = [
    (rf"{theirs}\.{kind}", f"{letter}_{ours}", "columns")
    for kind, letter in (("weight", "W"), ("bias", "b"))
    for theirs, ours in (("(k_proj|k_lin|key)", "K"), ("(v_proj|v_lin|value)", "V"),
                         ("(o_proj|out_proj|out_lin|dense)", "out"), ("(gate_proj|g_proj)", "G"))
]  # fmt: skip
DELTA: Sequence[Rule] = [
    (r"q_proj\.weight", "W_Q", "columns"), (r"k_proj\.weight", "W_K", "columns"),
    (r"v_proj\.weight", "W_V", "columns"), (r"b_proj\.weight", "W_b", "columns"),
    (r"a_proj\.weight", "W_a", "columns"), (r"g_proj\.weight", "W_z", "columns"),
    (r"q_conv1d\.weight", "w_Q", "columns"), (r"k_conv1d\.weight", "w_K", "columns"),
    (r"v_conv1d\.weight", "w_V", "columns"), (r"o_norm\.weight", "gain", ""),
]  # fmt: skip
RULES: Mapping[str, Sequence[Rule]] = {
    "self-attention": [
        (r"(q_proj|q_lin|query)\.weight", "W_Q W_G", "heads"),
        (r"(q_proj|q_lin|query)\.bias", "b_Q b_G", "heads"), *BIASED,
        (r"query_key_value\.weight", "W_Q W_K W_V", "heads"),
        (r"query_key_value\.bias", "b_Q b_K b_V", "heads"),
        (r"(qkv_proj|c_attn)\.weight", "W_Q W_K W_V", "columns"),
        (r"c_attn\.bias", "b_Q b_K b_V", "columns"), (r"c_proj\.weight", "W_out", "columns"),
        (r"c_proj\.bias", "b_out", ""),
        (r"(q_norm|q_layernorm|query_layernorm)\.weight", "w_Q", ""),
        (r"(k_norm|k_layernorm|key_layernorm)\.weight", "w_K", ""),
        ("sinks", "b_sink", ""), ("gate_bias", "b_G", ""), (r"attn_sub_norm\.weight", "w_R", ""),
    ],
    "attention-to-given-keys": [
        (r"q_proj\.weight", "W_Q", "columns"), (r"q_proj\.bias", "b_Q", ""), *BIASED,
        (r"q_norm\.weight", "w_Q", ""), (r"k_norm\.weight", "w_K", ""),
    ],
    "layer-input": [
        (r"input_gate\.weight", "W_gate", "columns"), (r"projection\.weight", "W_down", "columns"),
        (r"table\.weight", "E_layer", ""), (r"map\.weight", "W_P", "columns"),
        (r"norm\.weight", "gain_P", ""),
    ],
    "mla": [
        (r"q_a_proj\.weight", "W_DQ", "columns"), (r"q_a_layernorm\.weight", "gain_Q", ""),
        (r"(q_b_proj|q_proj)\.weight", "W_UQ W_QR", "heads"),
        (r"kv_a_proj_with_mqa\.weight", "W_DKV W_KR", "columns"),
        (r"kv_a_layernorm\.weight", "gain_KV", ""),
        (r"q_a_proj\.bias", "b_DQ", ""), (r"kv_a_proj_with_mqa\.bias", "b_DKV b_KR", "columns"),
        (r"(o_proj|dense)\.bias", "b_O", ""),
        (r"kv_b_proj\.weight", "W_UK W_UV", "heads"), (r"o_proj\.weight", "W_O", "columns"),
        (r"g_proj\.weight", "W_G", "columns"),
    ],
    "gated-deltanet": [
        ("dt_bias", "dt", ""), ("A_log", "A_log", ""),
        (r"conv1d\.weight", "w_Q w_K w_V", "columns"),
        (r"in_proj_qkvz\.weight", "W_Q W_K W_V W_z", "heads"),
        (r"in_proj_ba\.weight", "W_b W_a", "heads"),
        (r"in_proj_qkv\.weight", "W_Q W_K W_V", "columns"),
        (r"in_proj_z\.weight", "W_z", "columns"), (r"in_proj_b\.weight", "W_b", "columns"),
        (r"in_proj_a\.weight", "W_a", "columns"), (r"norm\.weight", "gain", ""),
        (r"(out_proj|o_proj)\.weight", "W_out", "columns"), *DELTA,
    ],
    "kda": [
        *(rule for rule in DELTA if rule[1] != "W_z"), (r"g_proj\.weight", "W_G", "columns"),
        (r"forget_gate\.f_proj\.weight", "W_F", "columns"),
        (r"conv1d\.weight", "w_Q w_K w_V", "columns"),
        (r"forget_gate\.dt_bias", "dt", ""), (r"forget_gate\.A_log", "A_log", ""),
        (r"forget_gate\.f_a_proj\.weight", "W_F", "columns"),
        (r"forget_gate\.f_b_proj\.weight", "U_F", "columns"),
        (r"g_a_proj\.weight", "W_G", "columns"), (r"g_b_proj\.weight", "U_G", "columns"),
        (r"o_proj\.weight", "W_out", "columns"),
    ],
    "mamba": [
        ("A_log", "log_A", ""), ("D", "D", ""), (r"conv1d\.weight", "w_X", "columns"),
        (r"conv1d\.bias", "b_X", ""), (r"in_proj\.weight", "W_X W_Z", "columns"),
        (r"x_proj\.weight", "W_R W_B W_C", "columns"), (r"dt_proj\.weight", "W_dt", "columns"),
        (r"dt_proj\.bias", "b_dt", ""), (r"out_proj\.weight", "W_out", "columns"),
        (r"dt_layernorm\.weight", "gain_T", ""), (r"b_layernorm\.weight", "gain_B", ""),
        (r"c_layernorm\.weight", "gain_C", ""), (r"in_proj\.bias", "p_X p_Z", "columns"),
        (r"out_proj\.bias", "p_out", ""),
    ],
    "mamba-2": [
        ("A_log", "log_A", ""), ("D", "D", ""), ("dt_bias", "b_dt", ""),
        (r"conv1d\.weight", "w_X w_K w_Q", "columns"), (r"conv1d\.bias", "b_X b_K b_Q", "columns"),
        (r"in_proj\.weight", "W_Z W_X W_K W_Q W_dt", "columns"), (r"norm\.weight", "gain", ""),
        (r"out_proj\.weight", "W_out", "columns"), (r"out_proj\.bias", "p_out", ""),
        (r"in_proj\.bias", "p_Z p_X p_K p_Q p_dt", "columns"),
    ],
    "lfm2": [
        (r"conv\.weight", "w", "columns"), (r"in_proj\.weight", "W_B W_C W_X", "columns"),
        (r"out_proj\.weight", "W_out", "columns"),
        (r"conv\.bias", "b_w", ""), (r"in_proj\.bias", "b_B b_C b_X", "columns"),
        (r"out_proj\.bias", "b_out", ""),
    ],
    "mlstm": [
        *((rf"{theirs}\.weight", f"W_{ours}", "columns") for theirs, ours in (
            ("q", "Q"), ("k", "K"), ("v", "V"), ("igate_preact", "I"), ("fgate_preact", "F"),
            ("ogate_preact", "O"), ("out_proj", "out"),
        )),
        (r"igate_preact\.bias", "b_I", ""), (r"fgate_preact\.bias", "b_F", ""),
        (r"multihead_norm\.weight", "gain", ""),
    ],
    "rg-lru": [
        (r"linear_y\.weight", "W_Z", "columns"), (r"linear_y\.bias", "b_Z", ""),
        (r"linear_x\.weight", "W_X", "columns"), (r"linear_x\.bias", "b_X", ""),
        (r"linear_out\.weight", "W_out", "columns"), (r"linear_out\.bias", "b_out", ""),
        (r"conv_1d\.weight", "w", "columns"), (r"conv_1d\.bias", "b_w", ""),
        (r"rg_lru\.recurrent_param", "Lambda", ""),
        (r"rg_lru\.input_gate_weight", "W_I", ""), (r"rg_lru\.input_gate_bias", "b_I", ""),
        (r"rg_lru\.recurrent_gate_weight", "W_R", ""),
        (r"rg_lru\.recurrent_gate_bias", "b_R", ""),
    ],
    "gated-ffn": [
        (r"(gate_proj|w1|proj_up_gate)\.weight", "W_gate", "columns"),
        (r"(up_proj|w3|proj_up)\.weight", "W_up", "columns"),
        (r"(down_proj|w2|output_linear|proj_down)\.weight", "W_down", "columns"),
        (r"gate_proj\.bias", "b_gate", ""), (r"ffn_sub_norm\.weight", "gain_F", ""),
        (r"(gate_up_proj|input_linear|fc1)\.weight", "W_gate W_up", "columns"),
        (r"fc2\.weight", "W_down", "columns"), (r"up_proj\.bias", "b_up", ""),
        (r"down_proj\.bias", "b_down", ""),
    ],
    "ffn": [
        (r"(up_proj|c_fc|fc1|fc_in|lin1|dense1|dense_h_to_4h)\.weight", "W_1", "columns"),
        (r"(up_proj|c_fc|fc1|fc_in|lin1|dense1|dense_h_to_4h)\.bias", "b_1", ""),
        (r"(down_proj|c_proj|fc2|fc_out|lin2|dense2|dense_4h_to_h)\.weight", "W_2", "columns"),
        (r"(down_proj|c_proj|fc2|fc_out|lin2|dense2|dense_4h_to_h)\.bias", "b_2", ""),
    ],
    "experts": [
        (r"(gate|router|router\.(layer|gate|proj|classifier))\.weight", "W_R", "columns"),
        (r"router\.scale", "gain", ""), (r"router\.per_expert_scale", "factor", ""),
        (r"router\.bias", "b_R", ""), (r"experts\.gate_up_proj", "W_gate W_up", "columns"),
        (r"experts\.up_proj", "W_up", "columns"),
        (r"input_linear\.weight", "W_gate W_up", "columns"),
        (r"output_linear\.weight", "W_down", "columns"),
        (r"experts\.down_proj", "W_down", "columns"),
        (r".*e_score_correction_bias|expert_bias", "moved", ""),
        (r"experts\.gate_up_proj_bias", "b_gate b_up", "pairs"),
        (r"experts\.down_proj_bias", "b_down", ""),
        (r"shared_experts?\.gate_proj\.weight", "V_gate", "columns"),
        (r"shared_experts?\.up_proj\.weight", "V_up", "columns"),
        (r"shared_experts?\.down_proj\.weight", "V_down", "columns"),
        (r"shared_experts?\.(input_linear|gate_up_proj)\.weight", "V_gate V_up", "columns"),
        (r"shared_experts?\.output_linear\.weight", "V_down", "columns"),
        (r"shared_experts\.gate_proj\.bias", "bias_gate", ""),
        (r"shared_experts\.up_proj\.bias", "bias_up", ""),
        (r"shared_experts\.down_proj\.bias", "bias_down", ""),
        (r"shared_expert_gate\.weight", "v", ""),
    ],
}  # fmt: skip
"""Name of a mixer or part -> its rules."""


def load(net: Twin, about: Description, tensors: Mapping[str, Tensor]) -> None:
    """Give a twin the parameters of the class, by their names; ValueError for one that no rule
    names, or a parameter of the twin that the class lacks."""
    layer = re.compile(r".*?\.(?:layers|layer|h|blocks)\.(\d+)\.(.*)")
    of_xlm = re.compile(r"transformer\.(attentions|layer_norm\d|ffns)\.(\d+)\.")
    # layers of HRM-Text are those of a stack, whose first run has their place here
    of_stack = re.compile(r".*\.([LH])_module\.layers\.(\d+)\.")
    places = [block.weights for block in about.decoder.blocks]
    at: dict[int, dict[str, Tensor]] = {}
    beside: dict[str, Tensor] = {}
    for name, value in tensors.items():
        if of := of_stack.match(name):
            name = f".layers.{places.index(f'{of[1]}{int(of[2]) + 1}')}.{name[of.end() :]}"
        if found := layer.match(of_xlm.sub(r"of.layers.\2.\1.", name)):
            at.setdefault(int(found[1]), {})[found[2]] = value
        else:
            beside[name] = value
    for name, ours in OF_LAYERS.items():
        if name in beside:
            value = beside.pop(name)
            axis = None if value.ndim == 1 else 0 if ours == "map" else 1
            for k in range(len(at)):
                piece = value if axis is None else value.tensor_split(len(at), axis)[k]
                at[k][f"per_layer_{ours}.weight"] = piece
    for name in ("altup_projections", "altup_unembed_projections"):
        pieces = [beside.pop(n) for n in [*beside] if n.startswith(f"model.{name}.")]
        if pieces:
            beside[name] = torch.stack(pieces)
            beside["model.norm.weight"] = beside.pop("model.norm.weight")  # rows pass the norm last
    for group in (beside, *at.values()):  # weights that no score reads
        for name in [name for name in group if re.match(r"encoder_attn|bert\.pooler", name)]:
            del group[name]
    late = LAST.get(about.model_type, ("predictions.bias",))
    place = {
        name: next((k for k, piece in enumerate(late) if piece in name), -1) for name in beside
    }
    last = sorted(beside, key=lambda name: place[name])
    stack = net.stack
    own = [p for part in (stack.entry, stack.end, net.ending) for n, p in part.named_parameters()
           if p.requires_grad or n.endswith(".z")]  # fmt: skip
    tables = {id(p) for p in stack.entry.parameters()}
    for parameter, name in zip({id(p): p for p in own}.values(), last, strict=True):
        value = beside[name]
        if about.model_type in PADDED and "position" in name:
            value = value.roll(-PADDED[about.model_type], 0)
        straight = value.ndim == 1 or (
            id(parameter) in tables and value.ndim == 2 and value.shape == parameter.shape
        )
        _set(parameter, value if straight else value.mT)
    for k, one in enumerate(stack.layers):
        if k not in at:
            assert about.decoder.blocks[k].weights, "no parameters of the layer, nor of a set"
            continue
        if about.model_type in PLACES:
            _load_by_place(one, at[k], PLACES[about.model_type])
            continue
        blocks = about.decoder.blocks
        parts = [s.part.mixer for s in blocks[k % len(blocks)].sublayers]
        _load_layer(one, [mixer.base for mixer in parts], at[k], about.model_type)


PLACES: Mapping[str, Mapping[str, str]] = {
    "gemma3n_text": {
        "altup.modality_router.weight": "0.makes.1.W_M", "altup.router_norm.weight":
        "0.makes.1.gain_M", "altup.prediction_coefs.weight": "0.makes.2.W_C",
        "input_layernorm.weight": "0.makes.4.gain", "laurel.linear_left.weight": "0.makes.5.W_left",
        "laurel.linear_right.weight": "0.makes.5.W_right",
        "laurel.post_laurel_norm.weight": "0.makes.5.gain_L",
        **{f"self_attn.{of}_proj.{kind}": f"0.part.{name}_{letter}"
           for of, letter in (("q", "Q"), ("k", "K"), ("v", "V"), ("o", "out"))
           for kind, name in (("weight", "W"), ("bias", "b"))},
        "self_attn.q_norm.weight": "0.part.w_Q", "self_attn.k_norm.weight": "0.part.w_K",
        "post_attention_layernorm.weight": "0.out.gain",
        "pre_feedforward_layernorm.weight": "1.before.gain",
        **{f"mlp.{of}_proj.weight": f"1.part.W_{of}" for of in ("gate", "up", "down")},
        "post_feedforward_layernorm.weight": "1.out.gain",
        "altup.correction_coefs.weight": "2.makes.1.W_K",
        "altup.correct_output_scale": "2.part.w_x", "per_layer_table.weight": "2.makes.2.E_layer",
        "per_layer_map.weight": "2.part.W_P", "per_layer_norm.weight": "2.part.gain_P",
        "per_layer_input_gate.weight": "2.part.W_gate",
        "per_layer_projection.weight": "2.part.W_down",
        "post_per_layer_input_norm.weight": "2.out.gain",
    },
}  # fmt: skip
"""Type -> name of a parameter in a layer of the class -> its place in a layer of the twin, where
parts of a layer read several others."""


def _load_by_place(layer: Any, tensors: Mapping[str, Tensor], places: Mapping[str, str]) -> None:
    """The parameters of a layer, each at its place."""
    given = dict(layer.sublayers.named_parameters())
    lacking = {*given} - {"2.makes.0.gain_M", "2.makes.0.W_M"}  # those of the first modalities
    for name, value in tensors.items():
        place = places[name]
        if place not in given:  # keys and values that later layers read
            place = place.replace("part", "makes.6" if "K" in place else "makes.7")
        straight = place.endswith("E_layer") or value.ndim == 1
        _set(given[place], value if straight else value.t())
        lacking.remove(place)
    assert not lacking, lacking


def _set(parameter: Tensor, value: Tensor) -> None:
    with torch.no_grad():
        parameter.copy_(value.reshape(parameter.shape))


OF_LAYERS: Mapping[str, str] = {
    "model.embed_tokens_per_layer.weight": "table",
    "model.per_layer_model_projection.weight": "map",
    "model.per_layer_projection_norm.weight": "norm",
}
"""Parameters beside the layers of which each layer has a piece, or that all share -> as rules call
them."""

MOVED: Sequence[tuple[str, str]] = [
    (r"output\.adapter_modules\.[a-z]+_XX", "adapter"),
    (r"(self_attn|mlps|input_layernorm|post_attention_layernorm)\.(\d)", r"\1_\2"),
    ("router", "experts.router"), ("experts", "experts.experts"),
    ("per_layer_(input_gate|projection|table|map|norm)", r"layer_input.\1"),
    ("fc1", "mlp.fc1"), ("fc2", "mlp.fc2"), ("shared_mlp", "block_sparse_moe.shared_expert"),
    (r"attention\.self", "attention"), (r"attention\.output\.dense", "attention.o_proj"),
    (r"attention\.output\.LayerNorm", "norm_1"), (r"attention\.ln", "norm_1"),
    (r"intermediate\.dense", "mlp.fc1"), (r"output\.dense", "mlp.fc2"),
    (r"output\.LayerNorm", "norm_2"),
]  # fmt: skip
"""How names of a layer begin that belong to another module of the layer, and how there."""

GATES = ("cross_attn_attn_gate", "cross_attn_mlp_gate")
"""Gates of the residual sums of a layer of Mllama, in order."""

AFTER: Mapping[str, float] = {
    "mlps_0": 0.1, "self_attn_1": 0.2, "mlps_1": 2,
    **dict.fromkeys(
        ("mlp", "block_sparse_moe", "feed_forward", "moe", "mlp_block", "ffn", "ffns"), 1
    ),
    "experts": 2, "adapter": 2, "layer_input": 3,
}  # fmt: skip
"""Modules of a layer that rows pass after the mixer, wherever the class names them -> when."""


def _load_layer(layer: Any, bases: Sequence[str], tensors: Mapping[str, Tensor], kind: str) -> None:
    """The parameters of a layer, whose parts are called `bases`: norms in the order in which rows
    pass them, then mixer and FFN."""
    groups: dict[str, dict[str, Tensor]] = {}
    for full, value in tensors.items():
        if full in GATES:
            _set(layer.places[GATES.index(full)].residual.gate, value)
            continue
        name = full
        for begins, moved in MOVED:
            name, times = re.subn(rf"^{begins}\.", f"{moved}.", name)
            if times:
                break
        group, rest = name.split(".", 1)
        groups.setdefault(group, {})[rest] = value
    norms = [name for name, group in groups.items() if {*group} <= {"weight", "bias"}]
    norms = [norms[k] for k in IN_ORDER.get(kind, range(len(norms)))]
    around = [(p.before, *_normed(p), p.out, p.after) for p in layer.places]
    ours = [one for three in around for one in three if one and [*one.parameters()]]
    for module, name in zip(ours, norms, strict=True):
        _set(module.gain, groups[name]["weight"])
        if "bias" in groups[name]:
            _set(module.offset, groups[name]["bias"])
    inner = sorted((n for n in groups if n not in norms), key=lambda n: AFTER.get(n, 0))
    loaded: list[tuple[str, list[Any]]] = []
    for place, base in zip(layer.places, bases, strict=True):
        if base == "sum":
            loaded += [(one.part, [one]) for one in place.makes if one not in _normed(place)]
        elif [*place.part.parameters()]:  # no norm without weights
            loaded.append((base, [place.part, *place.makes]))
    for (base, modules), name in zip(loaded, inner, strict=True):
        _load_part(modules, base, groups[name], kind)


def _normed(place: Any) -> list[Any]:
    """The norms among the parts that make rows."""
    return [one for one in place.makes if one.part.endswith("norm")]


def _load_part(modules: Sequence[Any], base: str, tensors: Mapping[str, Tensor], kind: str) -> None:
    part = modules[0]
    named = dict(pair for one in modules for pair in one.named_parameters())
    given, lacking = {**named, **dict(part.named_buffers())}, {*named}
    for full, value in _by_heads(tensors).items():
        name = full.removeprefix("attention.").replace("_proj.linear.", "_proj.")
        found = [(names, how) for theirs, names, how in RULES[base] if re.fullmatch(theirs, name)]
        if len(found) != 1:
            raise ValueError(f"{kind}: {len(found)} rules of {base} name {name}")
        targets, how = [n for n in found[0][0].split() if n in given], found[0][1]
        if how == "heads" and value.numel() == given[targets[0]].numel():
            targets = targets[:1]  # the gate has a map of its own
        if kind == "gpt_oss" and targets[0] in ("W_gate", "b_gate"):
            how = "pairs"
        straight = kind in STRAIGHT or (kind in STRAIGHT_EXPERTS and value.ndim == 3)
        turned = value if straight else _turned(value, how)
        heads = getattr(part, "groups", getattr(part, "n", 1))
        for target, piece in zip(targets, _pieces(turned, targets, how, given, heads), strict=True):
            if kind in NEIGHBOURS and target[2:] in ("Q", "K"):
                piece = _in_halves(piece, part.K, part.turned)
            unit = kind in UNIT and name in ("q_norm.weight", "k_norm.weight")
            _set(given[target], piece + 1 if unit else piece)
            lacking.discard(target)
    if lacking:
        raise ValueError(f"{kind}: the class has no {', '.join(sorted(lacking))} of {base}")


def _by_heads(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parameters, with those of a norm for each head, `norms.0.weight` (h), `norms.1.weight`,
    ..., as one (heads, h)."""
    found: dict[str, Tensor] = {}
    for full, value in tensors.items():
        name, times = re.subn(r"\.norms\.\d+\.", ".", full)
        rows = [*found[name], value] if name in found else [value]
        found[name] = torch.stack(rows) if times else value
    return found


def _in_halves(value: Tensor, width: int, turned: int) -> Tensor:
    """The columns of heads of a width, of which the first `turned` are pairs of neighbours, with
    all first ones of the pairs before all second ones."""
    heads = value.reshape(*value.shape[:-1], -1, width)
    first = heads[..., :turned]
    return torch.cat([first[..., ::2], first[..., 1::2], heads[..., turned:]], -1)


def _turned(value: Tensor, how: str) -> Tensor:
    """A linear map (..., out, in) as (..., in, out); taps (channels, 1, k) as (k, channels), the
    newest row first."""
    if how not in ("columns", "heads") or value.ndim < 2:
        return value
    if value.ndim == 3 and value.shape[1] == 1:
        return value.squeeze(1).t().flip(0)
    return value.mT


def _pieces(
    value: Tensor, targets: Sequence[str], how: str, given: Mapping[str, Tensor], heads: int
) -> Sequence[Tensor]:
    """The parameters of the equations that a parameter of a class holds side by side."""
    if len(targets) == 1:
        return [value]
    if how == "pairs":
        return [value[..., ::2], value[..., 1::2]]
    rows = value.numel() // value.shape[-1]
    widths = [given[name].numel() // rows for name in targets]
    if how == "heads":
        value = value.reshape(*value.shape[:-1], heads, -1)
        widths = [width // heads for width in widths]
    return torch.split(value, widths, -1)


# With transformers.


def computed(config: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a configuration: its class's parameters and scores."""
    from torch.overrides import TorchFunctionMode
    from transformers import CONFIG_MAPPING, __version__

    class InFloat64(TorchFunctionMode):
        """float64 wherever a class says float32."""

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            def wider(value: Any) -> Any:
                return torch.float64 if value is torch.float32 else value

            func = torch.Tensor.double if func is torch.Tensor.float else func
            named = {name: wider(value) for name, value in (kwargs or {}).items()}
            return func(*map(wider, args), **named)

    kind = config["model_type"]
    fields = {name: value for name, value in deepcopy(config).items() if name != "model_type"}
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with InFloat64():
            made = CONFIG_MAPPING[kind](**fields)
            made._experts_implementation = made._attn_implementation = "eager"
            model = class_of(made)(made).eval().double()
            with_constants(model)
            tensors = {}
            kept = [(n, b) for n, b in model.named_buffers() if n.endswith("correction_bias")]
            for name, value in [*model.named_parameters(), *kept]:
                if re.search(TOWERS, name):
                    continue
                if name.endswith("embed_positions.weight") and not value.requires_grad:
                    place = {"dtype": torch.float64, "device": value.device}
                    value.data.copy_(sinusoids(value.shape[0], value.shape[1], place))
                    continue
                tensors[name] = list(value.shape)
                value.data.copy_(drawn(name, value.shape))
            with torch.no_grad():
                more = {name: rows for name, rows in [("cross_attention_states", image_of(config))]
                        if rows is not None}  # fmt: skip
                scores = model(tokens_of(made.vocab_size), use_cache=False, **more).logits
    finally:
        torch.set_default_dtype(before)
    last = [[float(v) for v in row] for row in scores[:, -1]]
    return {"config": config, "of": type(model).__name__, "version": __version__,
            "parameters": tensors, "scores": last}  # fmt: skip


def with_constants(model: nn.Module) -> None:
    """Give the norms of a class the constants of the equations under their roots, and the residual
    sums of Beam those of the equations."""
    for name, module in model.named_modules():
        for field in ("attn_residual_add_idx", "mlp_residual_add_idx"):
            if hasattr(module, field):
                setattr(module, field, float_of(MULTIPLIER) ** -2)
        for field in ("variance_epsilon", "eps", "epsilon"):
            if hasattr(module, field):
                setattr(module, field, eps_of(name, module))


def eps_of(name: str, module: nn.Module) -> float:
    """What the equations add under the root of a norm."""
    layered = "LayerNorm" in type(module).__name__
    if not layered and re.search(r"attn\.(q|k|v|query|key|attn_sub)_(layer)?norm$", name):
        return 2.0**-52
    if name.endswith("multihead_norm"):
        return 1e-6
    if re.search(
        r"(mixer|mamba|self_attn)\.(norm|o_norm|dt_layernorm|b_layernorm|c_layernorm)$", name
    ):
        return 1e-5
    return (
        1e-5 if isinstance(module, nn.LayerNorm) or "LayerNorm" in type(module).__name__ else 1e-6
    )


def main(kinds: Sequence[str]) -> None:
    """Write the records anew; with types named, those of these types alone."""
    records = json.loads(FILE.read_text(encoding="utf-8"))
    found = [
        one if kinds and one["config"]["model_type"] not in kinds else computed(one["config"])
        for one in records
    ]
    FILE.write_text("[\n" + ",\n".join(map(json.dumps, found)) + "\n]\n", encoding="utf-8")
    print(f"{len(found)} types")


if __name__ == "__main__":
    main(sys.argv[1:])
