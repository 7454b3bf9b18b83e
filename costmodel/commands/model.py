"""`costmodel model`: what a whole network costs, with the options that change it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from costmodel.commands.options import (
    CacheDtype,
    Caption,
    Force,
    Ignored,
    LayersMixers,
    Output,
    StateDtype,
    Symbols,
    UsageError,
    WeightDtype,
    choice,
    chosen,
    element_types,
    formatted,
    labelled,
    refuse_beside,
    show,
    sized,
    typeset,
)
from costmodel.commands.predicted import predicted
from costmodel.report.formats import SCREEN, formats

if TYPE_CHECKING:
    from costmodel.networks import Description


@partial(sized, networks=True)
def model(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="A network; --list shows them all.")
    ] = None,
    sizes: dict[str, str | None] = {},  # noqa: B006 - filled in by `sized`, never changed
    list_: Annotated[bool, typer.Option("--list", help="List the named networks.")] = False,
    hf: Annotated[
        Path | None,
        typer.Option("--hf", metavar="config.json", help="Read a published model's configuration."),
    ] = None,
    ignore: Ignored = None,
    phase: Annotated[
        str,
        typer.Option(
            "--phase",
            help="Phases: training, inference, both; backward, training-step; all four; generate.",
        ),
    ] = "both",
    optimiser: Annotated[
        str | None,
        typer.Option("--optimiser", help="Training step: none, sgd, momentum or adamw."),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", help="Element type of columns in bytes, and of a training step."),
    ] = None,
    cache_dtype: CacheDtype = None,
    state_dtype: StateDtype = None,
    weight_dtype: WeightDtype = None,
    recompute: Annotated[
        str | None,
        typer.Option(
            "--recompute",
            help="Training step: recompute none, layers, layers.3-7 by number, or blocks A,B.",
        ),
    ] = None,
    replace_: Annotated[
        str | None,
        typer.Option(
            "--replace", metavar="OLD=NEW", help="Replace a mixer of layers, and show what changes."
        ),
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option("--layers", metavar="2,4,6", help="Layers of --replace (default: all)."),
    ] = None,
    train: Annotated[
        str | None,
        typer.Option(
            "--train",
            metavar="A,B",
            help="Training step: train these parts alone, layers.*.attn or layers.3-7.attn.",
        ),
    ] = None,
    adapter: Annotated[
        str | None,
        typer.Option(
            "--adapter",
            metavar="A=R,B=R",
            help="Train low-rank adapters of rank R in parts, layers.*.attn=16; freeze the rest.",
        ),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            "--precision",
            metavar="ROLE=TYPE,...",
            help="Training step: types of parameters, gradients, optimiser, activations, master.",
        ),
    ] = None,
    mfu: Annotated[
        bool,
        typer.Option("--mfu", help="Training step: show formulas for MFU beside the count."),
    ] = False,
    mixer: LayersMixers = None,
    encoder_mixer: Annotated[
        str | None, choice("--encoder-mixer", "The encoder's mixers, taken in turn.", "A,B")
    ] = None,
    cross: Annotated[
        str | None, choice("--cross", "The mixer that reads the encoder's output.", "A")
    ] = None,
    form: Annotated[
        str | None, choice("--form", "A form, for the mixers that have it.", "NAME")
    ] = None,
    embedding: Annotated[str | None, choice("--embedding", "look-up or one-hot.")] = None,
    positions: Annotated[str | None, choice("--positions", "learned, sinusoidal or none.")] = None,
    norm: Annotated[str | None, choice("--norm", "pre, post or none.")] = None,
    activation: Annotated[
        str | None, choice("--activation", "relu, gelu, gelu-tanh, silu, tanh or none.")
    ] = None,
    head: Annotated[str | None, choice("--head", "vocabulary, classes or none.")] = None,
    tied: Annotated[
        bool | None, choice("--tied/--untied", "The head shares the embedding's weights, or not.")
    ] = None,
    biases: Annotated[
        bool | None,
        choice("--biases/--no-biases", "Biases of FFN, norms and head; a mixer's are its options."),
    ] = None,
    ffn: Annotated[bool | None, choice("--ffn/--no-ffn", "Feed-forward sublayers.")] = None,
    dropout: Annotated[bool | None, choice("--dropout/--no-dropout", "Dropout.")] = None,
    loss: Annotated[bool | None, choice("--loss/--no-loss", "The cross-entropy.")] = None,
    symbolic: Annotated[
        bool,
        typer.Option(
            "--symbolic", help="Print formulas; sizes without a given value stay letters."
        ),
    ] = False,
    convention: Annotated[
        str,
        typer.Option(
            "--convention",
            metavar="A,B",
            help="Rules of counting, such as mac,dense; also dropout=free or dropout=mul; "
            "an unknown name lists all.",
        ),
    ] = "strict",
    columns: Annotated[
        str | None,
        typer.Option(
            "--columns", metavar="A,B", help="Columns, in this order; an unknown name lists all."
        ),
    ] = None,
    board: Annotated[
        str | None,
        typer.Option(
            "--board",
            metavar="NAME",
            help="A GPU of tables/devices, or BOARD.toml: predict the time of generation.",
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option("--context", metavar="N", help="With --board: tokens of a sequence; 32k."),
    ] = None,
    batch: Annotated[
        str | None, typer.Option("--batch", metavar="N", help="With --board: sequences [1].")
    ] = None,
    format_: Annotated[str, formatted("rows", "data", "frame")] = SCREEN,
    output: Output = None,
    force: Force = False,
    symbols: Symbols = "",
    label: Annotated[str, labelled("two tables get LABEL-training and so on")] = "",
    caption: Caption = "",
) -> None:
    """Parameters and operations of a whole network: its embedding, layers, head and loss; with
    --board, the predicted time of prefill and of a decoded token."""
    from costmodel import networks
    from costmodel.networks import part_costs
    from costmodel.report.mixer_document import symbol_names
    from costmodel.report.networks import document as network_document, table as network_table

    chosen(format_, "--format", formats("rows", "data", "frame"))
    typeset(format_, symbols=symbols, label=label, caption=caption)
    if list_:
        refuse_beside(context, "--list shows all networks",
                      "list_", "format_", "output", "force", "symbols", "label",
                      "caption")  # fmt: skip
        show(network_document.networks(networks.presets()), format_, output, force, context)
        return
    changes = {
        "mixers": mixer, "encoder_mixers": encoder_mixer, "cross": cross, "form": form,
        "embedding": embedding, "positions": positions, "norm": norm, "activation": activation,
        "head": head, "tied": tied, "biases": biases, "ffn": ffn, "dropout": dropout, "loss": loss,
    }  # fmt: skip
    given, kept = network_table.asked(sizes)  # `kept`: sizes that stay letters
    wanted = network_table.phases(phase)  # the phases
    described = networks.described(name, hf, changes, ignore or ())
    types = (dtype, state_dtype, weight_dtype, cache_dtype)
    if board is not None or at is not None or batch is not None:
        named = element_types(*types)
        document = predicted(context, described, sizes, board, at, batch, named, format_)
        show(document, format_, output, force, context, label=label, caption=caption)
        return
    layer_count = None if "L" in kept else network_table.one_number("L", described, given)
    # `after` is the network with mixers exchanged, None without --replace
    after = networks.exchanged(described, replace_, layers, layer_count)

    def prepared(one: Description) -> Description:
        """A network with layers that options name by number apart, adapters, and trained parts."""
        one = networks.apart(one, layer_count, train, recompute, adapter)
        return networks.trained(networks.with_adapters(one, adapter), wanted, train)

    described = prepared(described)
    shown, in_bytes = network_table.columns(columns, wanted)  # columns; whether some are in bytes
    if any(types[1:]) and not in_bytes:
        raise UsageError("types of state, weights and cache are about columns in bytes: add such "
                         "a column, --columns state_bytes,traffic")  # fmt: skip
    # without a training step, --dtype is that of the columns in bytes
    step = None if in_bytes and "training-step" not in wanted else dtype
    memory = networks.memory_options(
        wanted,
        described.recomputable,
        optimiser=optimiser,
        dtype=step,
        recompute=recompute,
        precision=precision,
    )
    request = network_table.Request(
        described,
        given,
        kept,
        wanted,
        part_costs.counting(convention),
        symbolic,
        memory,
        shown,
        element_types(*types),
        networks.formulas_asked(wanted, mfu),
    )
    made, before = network_table.sheets(request), []  # tables; those before --replace
    if after is not None:
        before = made
        made = network_table.sheets(replace(request, described=prepared(after)))
    network_table.refuse_unread([*before, *made])
    names = symbol_names(symbols, [use.mixer for use in made[0].network.uses])
    document = network_document.document(made, before)
    show(document, format_, output, force, context, names=names, label=label, caption=caption)
