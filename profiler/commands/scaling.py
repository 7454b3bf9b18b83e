"""`costmodel scaling` and `costmodel plot`: the growth of measured costs, as numbers and drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from costmodel.commands.options import (
    Force,
    Output,
    Own,
    UsageError,
    chosen,
    formatted,
    import_own,
    new,
    no_source,
    phases,
    show,
    told,
)
from costmodel.commands.streams import Failed, complain, written_whole
from costmodel.report.formats import formats

Records = Annotated[
    list[Path], typer.Argument(metavar="FILE.jsonl...", help="Records, as sweep writes them.")
]
Along = Annotated[
    str, typer.Option("--along", metavar="l,d", help="The sizes along which costs grow.")
]


def along(text: str) -> tuple[str, ...]:
    """The letters along which growth is followed; UsageError for a letter that is no size."""
    from costmodel.symbolic.sizes import LETTERS

    letters = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for letter in letters:
        chosen(letter, "--along", list(LETTERS))
    return letters


def scaling(
    context: typer.Context,
    files: Records,
    along_: Along = "l,d",
    own: Own = None,
    format_: Annotated[str, formatted("rows", "data", "frame")] = "rich",
    output: Output = None,
    force: Force = False,
) -> None:
    """Measured exponents of latency, memory and energy in l and d, beside the derived ones."""
    from profiler.scaling.growth import scalings
    from profiler.scaling.report import document
    from profiler.sweep.session import recorded

    chosen(format_, "--format", formats("rows", "data", "frame"))
    no_source(output, files)
    letters = along(along_)
    import_own(own)
    records, problems = recorded(files, complain)
    found, missing = scalings(records, letters)
    told([*problems, *missing])
    if not found:
        raise Failed
    show(document(found), format_, output, force, context)
    if problems:
        raise Failed


def plot(
    files: Records,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE.png|svg|pdf", help="The figure."),
    ] = None,
    along_: Along = "l,d",
    own: Own = None,
    phase: Annotated[
        str | None, typer.Option("--phase", metavar="A,B", help="Only these phases.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option("--dtype", metavar="A,B", help="Only these element types.")
    ] = None,
    only: Annotated[
        str | None,
        typer.Option("--only", metavar="A,B", help="Only these mixers, or MIXER:IMPLEMENTATION."),
    ] = None,
    force: Force = False,
) -> None:
    """Draw latency, memory and energy against l and d, theory beside measurement."""
    from profiler.scaling import plot as plotting
    from profiler.sweep.session import recorded

    if output is None:
        raise UsageError("plot draws into a file: name one, such as -o runs.svg")
    chosen(output.suffix.lower().lstrip("."), "the end of the file's name", plotting.FORMATS)
    new(output, force)
    no_source(output, files)
    import_own(own)
    records, problems = recorded(files, complain)
    wanted = tuple(name for part in listed(phase) for name in phases(part))
    asked = plotting.PlotSelection(along(along_), wanted, listed(dtype), listed(only))
    told(problems)
    with written_whole(output) as path:
        missing = plotting.draw(records, asked, path)
    told(missing)
    if problems:
        raise Failed


def listed(text: str | None) -> tuple[str, ...]:
    """The names in a comma-separated list; () if the option was not given."""
    return () if text is None else tuple(part.strip() for part in text.split(","))
