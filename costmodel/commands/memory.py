"""The command `memory`: what a model holds while it generates, and what fits."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from os.path import isfile
from pathlib import Path
from typing import Annotated

import typer

from costmodel.commands.options import (
    CacheDtype,
    Caption,
    Force,
    Ignored,
    LayersMixers,
    Output,
    StateDtype,
    UsageError,
    WeightDtype,
    chosen,
    element_types,
    formatted,
    labelled,
    show,
    tokens,
    typeset,
)
from costmodel.errors import UnknownMixer
from costmodel.report.formats import SCREEN, formats


def memory(
    context_: typer.Context,
    model: Annotated[
        str,
        typer.Argument(metavar="config.json", help="A file, or a network: NAME{d=4096,L=32}."),
    ],
    context: Annotated[
        str | None,
        typer.Option("--context", "--t", metavar="N", help="Tokens of a sequence; 128k is 131072."),
    ] = None,
    batch: Annotated[str, typer.Option("--batch", "--b", metavar="N", help="Batch size.")] = "1",
    fit: Annotated[
        str | None,
        typer.Option("--fit", metavar="80GB", help="Find the largest context and batch for 80GB."),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", help="Type of weights and cache (default: the model's, or bf16)."),
    ] = None,
    weight_dtype: WeightDtype = None,
    cache_dtype: CacheDtype = None,
    state_dtype: StateDtype = None,
    mixer: LayersMixers = None,
    engine: Annotated[
        str | None,
        typer.Option("--engine", help="Show what transformers, vllm or llama.cpp reserves."),
    ] = None,
    ignore: Ignored = None,
    format_: Annotated[str, formatted("rows", "data")] = SCREEN,
    output: Output = None,
    force: Force = False,
    label: Annotated[str, labelled("the table gets LABEL")] = "",
    caption: Caption = "",
) -> None:
    """Bytes of a model's weights, KV cache and recurrent state, what fits into a memory, and what
    transformers, vLLM and llama.cpp reserve."""
    from costmodel import networks
    from costmodel.backwards.amounts import amount
    from costmodel.backwards.fit import largest_batch, largest_context
    from costmodel.language.options import braces
    from costmodel.networks.engines import ENGINES
    from costmodel.networks.held import Holding
    from costmodel.report.networks.held import Fitting, Report

    chosen(format_, "--format", formats("rows", "data"))
    typeset(format_, label=label, caption=caption)
    if engine is not None:
        chosen(engine, "--engine", [*ENGINES])
    if context is None and fit is None:
        raise UsageError("memory needs a context, --context 128k, or a memory to fill, --fit 80GB")
    at = None if context is None else tokens("--context", context)  # tokens of a sequence
    sequences = tokens("--batch", batch)  # the batch
    of_file = isfile(model)
    name, sizes = (model, {}) if of_file else (model.partition("{")[0], braces(model))
    if not (is_file := of_file or name.endswith(".json")) and name not in networks.names():
        refuse_mixer(model)
    path = Path(name) if is_file else None
    network = None if is_file else name
    described = networks.described(network, path, {"mixers": mixer}, ignore or ())
    if engine is not None and not described.model_type:
        raise UsageError(
            f"--engine {engine} reads a config.json, and '{model}' is a name: give the file of a "
            "configuration"
        )
    named = element_types(dtype, state_dtype, weight_dtype, cache_dtype)
    types = named.of(described.dtypes)
    typed = replace(types, state=state_dtype)  # as reported: a state type only if it was typed
    held = Holding(networks.network(described, **sizes), types, at)  # weights, cache and state
    if at is not None:
        held.refuse_beyond(at)
    fitting = None
    if fit is not None:
        most = amount("--fit", fit, in_bytes=True)  # bytes of the memory
        number = None if at is None else largest_batch(held, most, at)
        fitting = Fitting(fit, most, largest_context(held, most, sequences), number)
    document = Report(held, typed, at, sequences, fitting, engine).document
    show(document, format_, output, force, context_, label=label, caption=caption)


def refuse_mixer(name: str) -> None:
    """Raise UsageError, which says what takes a mixer, if `name` is that of a mixer."""
    from costmodel.mixers.load import mixer

    with suppress(UnknownMixer):
        mixer(name)
        raise UsageError(
            f"'{name}' is a mixer, and memory takes a model, such as decoder --mixer '{name}'; for "
            f"the state of the mixer alone, use table '{name}' --columns state,state_bytes"
        )
