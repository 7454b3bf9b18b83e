"""Which network does the `config.json` of a published model describe?

A `config.json` of the transformers library names an architecture and its sizes. It is read where
every part of the architecture exists here; else the message names the part that does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from costmodel.data import read_data
from costmodel.errors import ModelError
from costmodel.networks.blocks import Description
from costmodel.networks.choices import Choices

Config = Mapping[str, Any]

ACTIVATIONS: Mapping[str, str] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "tanh": "tanh",
}
"""Activation in transformers -> its name here."""

FOREIGN: Mapping[str, str] = {
    "rope_theta": "rotary positions",
    "rope_scaling": "rotary positions",
    "rope_parameters": "rotary positions",
    "rotary_dim": "rotary positions",
    "rms_norm_eps": "RMS normalisation",
    "relative_attention_num_buckets": "relative positions",
    "num_local_experts": "a mixture of experts",
    "num_experts": "a mixture of experts",
    "state_size": "a state-space mixer",
    "sliding_window": "a sliding window",
    "alibi": "positions as biases of the scores",
}
"""A key of architectures with a part that does not exist here -> that part."""


def read(path: Path) -> Choices | Description:
    """The network of a `config.json`.

    Raises:
        ModelError: not JSON, an unknown architecture or part, or a missing size.
    """
    try:
        config = read_data(path)
    except ValueError as reason:
        raise ModelError(f"{path} is not a readable configuration: {reason}") from None
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise ModelError(f"{path}: expected an object with a 'model_type', such as gpt2 or bert")
    kind = config["model_type"]
    if kind not in READERS:
        raise ModelError(f"{path}: {_unknown_architecture(kind, config)}")
    return READERS[kind](path, config)


def _unknown_architecture(kind: str, config: Config) -> str:
    """The message that refuses an unknown architecture, with the parts that do not exist here."""
    parts = [part for key, part in FOREIGN.items() if config.get(key)]
    heads = (config.get("num_attention_heads"), config.get("num_key_value_heads"))
    if None not in heads and heads[0] != heads[1]:
        parts.append("keys and values shared by several heads")
    if config.get("hidden_act") == "silu":
        parts.append("an FFN with a SiLU gate")
    known = " and ".join(READERS)
    if not parts:
        return f"model_type '{kind}' is not known: {known} are"
    listed = ", ".join(dict.fromkeys(parts))
    return f"model_type '{kind}' is not known ({known} are): no part of a network here is {listed}"


def _required_size(path: Path, config: Config, *names: str) -> int:
    """The value of the first of several keys that the configuration has; ModelError if it is no
    positive integer, or there is none."""
    for name in names:
        value = config.get(name)
        if value is not None:
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ModelError(f"{path}: '{name}' must be a positive integer, got {value!r}")
            return value
    raise ModelError(f"{path}: the size '{names[0]}' is missing")


def _activation(path: Path, config: Config, name: str, usual: str) -> str:
    found = config.get(name, usual)
    if not isinstance(found, str) or found not in ACTIVATIONS:
        raise ModelError(f"{path}: {name} '{found}' is unknown: it is one of "
                         f"{', '.join(ACTIVATIONS)}")  # fmt: skip
    return ACTIVATIONS[found]


def _require_settings(path: Path, config: Config, wanted: Mapping[str, tuple[Any, ...]]) -> None:
    """Refuse a key with a value other than those wanted (the first is that of a missing key)."""
    for name, allowed in wanted.items():
        value = config.get(name, allowed[0])
        if value not in allowed:
            raise ModelError(f"{path}: {name} = {value!r} is not known here: expected "
                             f"{' or '.join(map(repr, allowed))}")  # fmt: skip


def _architecture(path: Path, config: Config, known: Mapping[str, Mapping[str, Any]]) -> str:
    """The name of the model's class; the first known one where the configuration names none."""
    named = config.get("architectures") or [next(iter(known))]
    name = named[0] if isinstance(named, list) else named
    if not isinstance(name, str) or name not in known:
        raise ModelError(f"{path}: architecture '{name}' is not known here: expected one of "
                         f"{', '.join(known)}")  # fmt: skip
    return name


def _switch(path: Path, config: Config, name: str, usual: bool) -> bool:
    """A key that is true or false; ModelError where it is anything else."""
    found = config.get(name, usual)
    if not isinstance(found, bool):
        raise ModelError(f"{path}: '{name}' must be true or false, got {found!r}")
    return found


def _has_dropout(path: Path, config: Config, *names: str) -> bool:
    """Whether one of these probabilities, 0.1 where it is missing, is above 0."""
    for name in names:
        found = config.get(name, 0.1)
        if isinstance(found, bool) or not isinstance(found, (int, float)) or not 0 <= found <= 1:
            raise ModelError(f"{path}: '{name}' must be a number from 0 to 1, got {found!r}")
    return any(config.get(name, 0.1) for name in names)


def _network_name(path: Path, config: Config) -> str:
    name = config.get("_name_or_path")
    return name if isinstance(name, str) and name else path.parent.name or config["model_type"]


GPT2: Mapping[str, Mapping[str, Any]] = {
    "GPT2LMHeadModel": {"head": "vocabulary"},
    "GPT2Model": {"head": "none", "loss": False},
}


def _gpt2(path: Path, config: Config) -> Choices:
    """The parts of transformers' GPT2LMHeadModel and GPT2Model."""
    _require_settings(
        path,
        config,
        {
            "scale_attn_weights": (True,),
            "add_cross_attention": (False,),
            "scale_attn_by_inverse_layer_idx": (False,),
        },
    )
    head = GPT2[_architecture(path, config, GPT2)]
    d = _required_size(path, config, "n_embd", "hidden_size")
    inner = config.get("n_inner")
    positions = _required_size(path, config, "n_positions", "n_ctx", "max_position_embeddings")
    sizes = {
        "L": _required_size(path, config, "n_layer", "num_hidden_layers"),
        "d": d,
        "n": _required_size(path, config, "n_head", "num_attention_heads"),
        "l": positions,
        "u": _required_size(path, config, "vocab_size"),
        **({} if inner is None else {"f": _required_size(path, config, "n_inner")}),
    }
    return Choices(
        name=_network_name(path, config),
        source=f"{path.name}, model_type gpt2",
        kind="decoder",
        mixers=("self-attention+bias",),
        positions="learned",
        position_rows=positions,
        norm="pre",
        activation=_activation(path, config, "activation_function", "gelu_new"),
        dropout=_has_dropout(path, config, "resid_pdrop", "embd_pdrop"),
        tied=_switch(path, config, "tie_word_embeddings", True) and head["head"] == "vocabulary",
        sizes=sizes,
        widths={"f": "4*d"} if inner is None else {},
        **head,
    )


BERT: Mapping[str, Mapping[str, Any]] = {
    "BertModel": {"head": "none", "pooler": True, "loss": False},
    "BertForMaskedLM": {"head": "vocabulary", "head_bias": True},
}


def _bert(path: Path, config: Config) -> Choices:
    """The parts of transformers' BertModel and BertForMaskedLM."""
    _require_settings(
        path,
        config,
        {
            "position_embedding_type": ("absolute",),
            "is_decoder": (False,),
            "add_cross_attention": (False,),
        },
    )
    head = BERT[_architecture(path, config, BERT)]
    activation = _activation(path, config, "hidden_act", "gelu")
    scored = head["head"] == "vocabulary"
    positions = _required_size(path, config, "max_position_embeddings")
    return Choices(
        name=_network_name(path, config),
        source=f"{path.name}, model_type bert",
        kind="encoder",
        mixers=("self-attention+bias+bidirectional",),
        positions="learned",
        position_rows=positions,
        segments=_required_size(path, {"type_vocab_size": 2, **config}, "type_vocab_size"),
        embedding_norm=True,
        norm="post",
        activation=activation,
        dropout=_has_dropout(path, config, "hidden_dropout_prob"),
        transform=activation if scored else "none",
        tied=_switch(path, config, "tie_word_embeddings", True) and scored,
        sizes={
            "L": _required_size(path, config, "num_hidden_layers"),
            "d": _required_size(path, config, "hidden_size"),
            "n": _required_size(path, config, "num_attention_heads"),
            "f": _required_size(path, config, "intermediate_size"),
            "l": positions,
            "u": _required_size(path, config, "vocab_size"),
        },
        **head,
    )


READERS: Mapping[str, Callable[[Path, Config], Choices | Description]] = {
    "gpt2": _gpt2,
    "bert": _bert,
}
"""model_type -> the reader of its configuration."""
