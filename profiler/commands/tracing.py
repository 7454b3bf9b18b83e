"""`costmodel trace` and `costmodel training`: modules as formulas, traced without data.

`output` is a file in place of standard output, which `force` overwrites.
"""

from __future__ import annotations

from typing import Annotated

import typer

from costmodel.commands.options import (
    Force,
    Mixers,
    Output,
    chosen,
    formatted,
    refuse_existing,
    show,
)
from costmodel.mixers.load import mixer as load_mixer
from costmodel.report.formats import formats


def trace(
    context: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE",
            help="package.module:factory or path/file.py:Class, which takes sizes by name and "
            "returns a module of x (b, l, d), or a pair (module, inputs).",
        ),
    ],
    over: Annotated[
        str,
        typer.Option("--over", metavar="l,h,n", help="Sizes that the formulas keep as letters."),
    ],
    let: Annotated[
        list[str] | None,
        typer.Option("--let", metavar="d=n*h", help="Define a size by a formula of other sizes."),
    ] = None,
    backend: Annotated[
        str,
        typer.Option(
            "--backend",
            help="math (torch's decompositions), or fused (attention is one operation).",
        ),
    ] = "math",
    grad: Annotated[
        str | None,
        typer.Option(
            "--grad",
            metavar="parameters|inputs|both|none",
            help="Gradients of the backward pass (default: where requires_grad is set, none of "
            "inputs; with --against, both).",
        ),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            "--mode", metavar="train|eval", help="Mode of the module (default: as it is built)."
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="d=128,l=256", help="Also print numbers at these sizes."),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option("--against", metavar="MIXER", help="Subtract the equations of this mixer."),
    ] = None,
    format_: Annotated[str, formatted("data")] = "rich",
    output: Output = None,
    force: Force = False,
) -> None:
    """Any nn.Module counted as formulas in its sizes, forward and backward, without running it."""
    from profiler import tracing
    from profiler.tracing import compare_equations as comparing
    from profiler.tracing.report import document

    chosen(format_, "--format", formats("data"))
    refuse_existing(output, force)  # before minutes of tracing
    lets = [part for text in let or () for part in text.split(",")]
    gradients = "both" if grad is None and against is not None else grad
    mixer = None if against is None else load_mixer(against)
    found = tracing.trace(target, over=over, let=lets, backend=backend, grad=gradients, mode=mode)
    sizes = None if at is None else found.sizes(at)
    # of each pass, how the module's formulas differ from the equations
    differences = comparing.compare_passes(found, mixer) if mixer is not None else []
    show(document(found, differences, sizes), format_, output, force, context)


def training(
    context: typer.Context,
    mixers: Mixers = None,
    modules: Annotated[
        bool, typer.Option("--modules/--equations", help="Also trace every module: minutes.")
    ] = True,
    output: Output = None,
    force: Force = False,
) -> None:
    """A page on training: forward and backward of mixers, by equations and by traced modules."""
    from costmodel.report.mixer_table import selection
    from profiler.tracing.training_page import document

    refuse_existing(output, force)
    selected, _ = selection([load_mixer(name) for name in mixers or ()], None, not mixers)
    show(document(selected, modules=modules), "markdown", output, force, context)
