"""Which network does the `config.json` of a published model describe?

A `config.json` of the transformers library names an architecture and its sizes. It is read where
every part of the architecture exists here; else the message names the part that does not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from costmodel.data import read_data
from costmodel.errors import ModelError
from costmodel.networks.architectures import (
    bert,
    gemma,
    gpt2,
    granitemoehybrid,
    lfm2,
    mamba,
    nemotron_h,
    qwen3_next,
    smollm3,
)
from costmodel.networks.architectures.rows import ROWS
from costmodel.networks.blocks import Description
from costmodel.networks.choices import Choices
from costmodel.networks.configuration import Configuration

READERS: Mapping[str, Callable[[Configuration], Choices | Description]] = {
    "bert": bert.read,
    "gemma": gemma.read,
    "gemma2": gemma.read_2,
    "gemma3_text": gemma.read_3,
    "gpt2": gpt2.read,
    "granitemoehybrid": granitemoehybrid.read,
    "lfm2": lfm2.read,
    "mamba": mamba.read,
    "mamba2": mamba.read_2,
    "nemotron_h": nemotron_h.read,
    "qwen3_5_moe_text": qwen3_next.read_3_5_moe,
    "qwen3_5_text": qwen3_next.read_3_5,
    "qwen3_next": qwen3_next.read,
    "smollm3": smollm3.read,
    **{kind: row.read for kind, row in ROWS.items()},
}
"""model_type -> the reader of its configuration."""

FOREIGN: Mapping[str, str] = {
    "relative_attention_num_buckets": "relative positions",
    "index_topk": "an indexer that chooses keys",
    "compress_rates": "attention to compressed rows",
    "hc_mult": "several residual streams",
    "num_kv_shared_layers": "layers that read the keys and values of another layer",
    "num_mem_blocks": "a block that several layers share",
    "mamba_d_ssm": "two mixers side by side in one layer",
    "attn_layer_period": "norms of the step, the input and the output inside Mamba",
    "alibi": "positions as biases of the scores",
}
"""A field of architectures with a part that does not exist here -> that part."""


def configuration(path: Path) -> Configuration:
    """The fields of a `config.json`; of a model with images or sound, those of its text.

    Raises:
        ModelError: not JSON, or without a type of model.
    """
    try:
        fields = read_data(path)
    except ValueError as reason:
        raise ModelError(f"{path} is not a readable configuration: {reason}") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("model_type"), str):
        raise ModelError(f"{path}: expected an object with a 'model_type', such as gpt2 or llama")
    text = fields.get("text_config")
    if fields["model_type"] not in READERS and isinstance(text, dict):
        outer = ("_name_or_path", "dtype", "torch_dtype", "tie_word_embeddings")
        named = {name: fields[name] for name in outer if name in fields}
        return Configuration(path, {**named, **text})
    return Configuration(path, fields)


def read(path: Path, ignored: Collection[str] = ()) -> Choices | Description:
    """The network of a `config.json`.

    Args:
        ignored: fields that are not read and may have any value.

    Raises:
        ModelError: not JSON, an unknown architecture or part, a missing size, or a field that is
            not read and may change a count.
    """
    config = configuration(path)
    kind = config.fields["model_type"]
    if kind not in READERS:
        raise ModelError(f"{path}: {_unknown_architecture(kind, config.fields)}")
    found = READERS[kind](config)
    config.refuse_unread(ignored)
    return found


def _unknown_architecture(kind: str, config: Mapping[str, Any]) -> str:
    """The message for an unknown `model_type`; it names the parts that the configuration asks for
    and no network here has, as far as they are known."""
    there = [part for key, part in FOREIGN.items() if config.get(key)]
    known = f"model_type '{kind}' is not known ({', '.join(READERS)} are)"
    if not there:
        return f"{known}: which parts it has is not written down here"
    return f"{known}: no part of a network here is {', '.join(dict.fromkeys(there))}"
