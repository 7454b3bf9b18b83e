"""Which network does the `config.json` of a published model describe?

A `config.json` of the transformers library names an architecture and its sizes. It is read where
every part of the architecture exists here; else the message names the part that does not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from costmodel.data import data_dir, read_data
from costmodel.errors import ModelError, SizeError, described, did_you_mean
from costmodel.networks.architectures import (
    gemma,
    gpt2,
    hrm_text,
    lfm2,
    longcat_flash,
    mamba,
    mamba_2_hybrids,
    nemotron_h,
    qwen3_next,
    smollm3,
    vit,
    zamba,
)
from costmodel.networks.architectures.bart import BARTS
from costmodel.networks.architectures.bert import ENCODERS
from costmodel.networks.architectures.encoder_rows import ENCODER_ROWS
from costmodel.networks.architectures.gemma4 import GEMMA_4
from costmodel.networks.architectures.plain import TEXT_ALONE
from costmodel.networks.architectures.rows import ROWS
from costmodel.networks.architectures.t5 import T5S
from costmodel.networks.blocks import Description
from costmodel.networks.choices import Choices
from costmodel.networks.configuration import Configuration

READERS: Mapping[str, Callable[[Configuration], Choices | Description]] = {
    "falcon_h1": mamba_2_hybrids.read_falcon,
    "falcon_mamba": mamba.read_falcon,
    "gemma": gemma.read,
    "gemma2": gemma.read_2,
    "gemma3_text": gemma.read_3,
    "gpt-sw3": gpt2.read,
    "gpt2": gpt2.read,
    "granitemoehybrid": mamba_2_hybrids.read_granite,
    "hrm_text": hrm_text.read,
    "lfm2": lfm2.read,
    "longcat_flash": longcat_flash.read,
    "mamba": mamba.read,
    "mamba2": mamba.read_2,
    "nemotron_h": nemotron_h.read,
    "qwen3_5_moe_text": qwen3_next.read_3_5_moe,
    "qwen3_5_text": qwen3_next.read_3_5,
    "qwen3_next": qwen3_next.read,
    "smollm3": smollm3.read,
    "vit": vit.read,
    "zamba": zamba.read_1,
    "zamba2": zamba.read,
    **GEMMA_4,
    **{kind: row.read for kind, row in ROWS.items()},
    **{kind: row.read for kind, row in ENCODER_ROWS.items()},
    **{kind: one.read for kind, one in ENCODERS.items()},
    **{kind: one.read for kind, one in T5S.items()},
    **{kind: one.read for kind, one in BARTS.items()},
}
"""model_type -> the reader of its configuration."""

FOREIGN: Mapping[str, str] = {
    "index_topk": "an indexer that chooses keys",
    "compress_rates": "attention to compressed rows",
    "hc_mult": "several residual streams",
}
"""A field of architectures with a part that does not exist here -> that part."""


TIES = "tie_word_embeddings"
OF_TEXT = ("text_config", "llm_config", "language_config")
"""Names of the object with the fields of a model's text."""

INDEXER = "an indexer that chooses keys"
OTHERS = "keys and values of another model"
STREAMS = "several residual streams"
INDEXED = (
    "deepseek_v32", "glm_moe_dsa", "axk2", "qwen4_exp_text", "qwen4_exp", "dots3_note_text",
    "dots3_note",
)  # fmt: skip
MISSING: Mapping[str, str] = {
    **dict.fromkeys(INDEXED, INDEXER),
    "deepseek_v4": f"attention to compressed rows, and {STREAMS}",
    "hy_v4": f"{STREAMS}, and {INDEXER}",
    **dict.fromkeys(("musicgen", "musicgen_melody"), "several tokens of sound at a time"),
    "prophetnet": "streams that each predict a further token",
    **dict.fromkeys(("gemma4_assistant", "gemma4_unified_assistant"), OTHERS),
    "blt": "patches of bytes",
    "cpmant": "rows of a prompt before the tokens, and keys of rows that read later rows, kept for "
    "new tokens",
    "doge": "a mask that each token makes",
    **dict.fromkeys(("inkling_text", "inkling2_text"), "short convolutions of keys and values"),
    "reformer": "attention to rows of equal hashes, and reversible layers",
    "rwkv": "the recurrence of RWKV-4",
    "xlnet": "scores by a map of relative positions",
    "zaya": "attention that mixes neighbouring rows of queries and keys",
}
"""Type of a model that is not read -> the part that no network here has."""


Source = Path | Mapping[str, Any]
"""The path of a `config.json`, or its fields."""


def _place(source: Source) -> Path:
    """The path of a configuration, for messages; "configuration" for fields without a file."""
    return source if isinstance(source, Path) else Path("configuration")


def file_fields(source: Source) -> dict[str, Any]:
    """The fields of a `config.json`; ModelError if the file cannot be read or parsed, if the fields
    have no "model_type" that is text, or for a URL or a path as text."""
    path = _place(source)
    if not isinstance(source, (Path, Mapping)):
        raise ModelError(f"expected the path of a config.json, or its fields, got {source!r}")
    if path.parts[:1] in (("https:",), ("http:",)):
        url = path.as_posix().replace(":/", "://", 1)  # a path has lost a slash
        raise ModelError(f"{url}: a URL is not read: download the file, and give its path")
    try:
        fields = read_data(source) if isinstance(source, Path) else _as_json({**source})
    except ValueError as reason:
        raise ModelError(f"{path} is not a readable configuration: {reason}") from None
    kind = fields.get("model_type") if isinstance(fields, dict) else fields
    if not isinstance(fields, dict) or not isinstance(kind, str):
        got = (
            "an object without the field"
            if isinstance(fields, dict) and kind is None
            else described(kind)
        )
        raise ModelError(
            f"{path}: expected an object with a 'model_type', such as gpt2 or llama, got {got}"
        )
    return fields


def _as_json(value: Any) -> Any:
    """A value as JSON has it: tuples as lists, in objects and lists too."""
    if isinstance(value, dict):
        return {name: _as_json(one) for name, one in value.items()}
    return [*map(_as_json, value)] if isinstance(value, list | tuple) else value


def named(value: Any) -> set[str]:
    """The names of all fields of an object, those of objects in it included."""
    if not isinstance(value, dict):
        return set()
    return {*value}.union(*map(named, value.values()))


def _without(value: Any, ignored: Collection[str]) -> Any:
    """An object without the fields `ignored`, in it and in objects in it."""
    if not isinstance(value, dict):
        return value
    return {name: _without(one, ignored) for name, one in value.items() if name not in ignored}


def _left(source: Source, ignored: Collection[str]) -> dict[str, Any]:
    """The fields of a `config.json` without those `ignored`, at any depth; ModelError for a name
    that the file has not, or for `model_type`."""
    path, fields = _place(source), file_fields(source)
    known = named(fields) - {"model_type"}
    for name in ignored:
        if name == "model_type":
            raise ModelError(f"{path}: --ignore model_type: the type of model must stay, since it "
                             f"says how the other fields are read")  # fmt: skip
        if name not in known:
            near = get_close_matches(name, known, 1)
            meant = f": did you mean {near[0]}?" if near else ", so leave out --ignore"
            raise ModelError(f"{path}: --ignore {name}: the file has no such field{meant}")
    left: dict[str, Any] = _without(fields, ignored)
    return left


def configuration(source: Source, ignored: Collection[str] = ()) -> Configuration:
    """The fields of a `config.json` without those `ignored`; of a model with images or sound, those
    of its text, which stand in an object such as "text_config": {...}. If the file has no such
    object, the text has the defaults in tables/transformers/texts.json ("text"). The table also
    lists the fields of images or sound ("beside"), and whether the class reads the file's other
    fields as the text's ("flat", as Fuyu); if not, other fields are refused.

    Raises:
        ModelError: not JSON, without a type of model, a field that is not read, or an `ignored`
            field that is not there.
    """
    path, fields = _place(source), _left(source, ignored)
    kind, outer = fields["model_type"], ("_name_or_path", "dtype", "torch_dtype", TIES)
    usual = read_data(data_dir("transformers") / "texts.json").get(kind, {})
    text = next((fields[name] for name in OF_TEXT if fields.get(name) is not None), None)
    if text is None and usual:
        own = {n: value for n, value in fields.items() if n not in (*usual["beside"], "model_type")}
        if not usual["flat"]:
            outside = Configuration(path, own, fields_read={*outer})
            outside.refuse_unread()
        text = {**usual["text"], **(own if usual["flat"] else {})}
    if kind not in READERS and isinstance(text, dict):
        whole = {name: fields[name] for name in outer if name in fields}
        of_text = usual.get("text", {}).get("model_type", f"{kind}_text")
        inner = {"model_type": of_text, **whole, **text}
        if not isinstance(inner["model_type"], str):
            raise ModelError(
                f"{path}: 'model_type' of the text must be a name, such as llama, got "
                f"{inner['model_type']!r}"
            )
        return Configuration(path, inner, around=fields, remark=TEXT_ALONE)
    return Configuration(path, fields)


def read(source: Source, ignored: Collection[str] = ()) -> Choices | Description:
    """Read the network of a published model's `config.json`, as choices or as a description by
    blocks, whichever the reader of its type gives.

    Args:
        ignored: fields that are left out, so that the defaults of the class hold.

    Raises:
        ModelError: not JSON, an unknown architecture or part, a missing size, or a field that is
            not read and may change a count.
    """
    config = configuration(source, ignored)
    kind = config.fields["model_type"]
    if kind not in READERS:
        raise ModelError(f"{config.path}: {_unknown_architecture(kind, config.fields)}")
    try:
        found = READERS[kind](config)
    except SizeError as reason:
        raise config.refused(str(reason)) from None
    config.refuse_unread()
    method = quantised(config)
    of_weights = (
        f"parameters and operations are those before {method} quantises weights; bytes of weights "
        "are those of all, embeddings and head included, in one element type, without "
        f"{method}'s scales"
    ) * bool(method)
    left_out = [f"{name} = {value:,}" for name, value in config.by_default.items()]
    of_class = f"sizes by default of the class: {', '.join(left_out)}" if left_out else ""
    remark = "; ".join(filter(None, (config.remark, found.remark, of_weights, of_class)))
    # plain integers, without the names of fields
    sizes = {x: int(v) if isinstance(v, int) else v for x, v in found.sizes.items()}
    return replace(found, sizes=sizes, remark=remark)


def quantised(c: Configuration) -> str:
    """How a configuration says that the file of its weights stores them: the method in
    `quantization_config`, such as "fp8"; "" without such an object. ModelError if the field holds
    no object."""
    given = _quantisation(c)
    return str(given.get("quant_method") or "quantization_config") if given else ""


def _quantisation(c: Configuration) -> Mapping[str, Any]:
    """The object `quantization_config` of the whole file, or else of its text; {} without one."""
    of_file, of_text = (one.nested("quantization_config").fields
                        for one in (Configuration(c.path, c.around), c))  # fmt: skip
    return of_file or of_text


BITS = {8: "int8", 4: "int4"}
"""Bits of a quantised weight -> the element type with as many."""


def unnamed(c: Configuration) -> str:
    """The sentence for quantised weights whose type the user did not name, with the
    `--weight-dtype` to try first: int4 if `quantization_config` says 4 bits (also by "load_in_4bit"
    or a 4 in the method's name), int8 if 8 bits, else fp8. "" for a file without this object."""
    if not (method := quantised(c)):
        return ""
    given = _quantisation(c)
    four = given.get("load_in_4bit") or "4" in method
    bits = given.get("bits") or (4 if four else 0)
    dtype = next((name for number, name in BITS.items() if number == bits), "fp8")
    return (
        f"{c.path}: {method} quantises some of the weights or all: --weight-dtype {dtype}, or "
        "another type, says how many bytes each takes"
    )


def _unknown_architecture(kind: str, config: Mapping[str, Any]) -> str:
    """The message for an unknown `model_type`; it names the parts that the configuration asks for
    and no network here has, as far as `MISSING` (by type) or `FOREIGN` (by a field) knows them."""
    there = [MISSING[kind]] if kind in MISSING else []
    there = there or [part for key, part in FOREIGN.items() if config.get(key)]
    known, hint = f"model_type '{kind}' is not known", did_you_mean(kind, READERS)
    if there:
        known = f"no part of a network here is {', '.join(dict.fromkeys(there))}, and {known}"
        hint = ""
    return f"{known}: {hint}known are {', '.join(sorted(READERS))}"
