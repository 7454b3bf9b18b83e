"""`costmodel study`: a named plan measured on this machine, and the page of its results.

`device` is cpu or cuda (None: the GPU, if any), `own` are Python files of mixers to import, and
`force` overwrites `page`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from costmodel.commands.options import (
    Device,
    Force,
    Own,
    UsageError,
    bar,
    finite,
    import_own,
    no_source,
    refuse_beside,
    refuse_existing,
    show,
    told,
)
from costmodel.commands.streams import Failed, complain
from profiler.commands.measuring import ENERGY, PROCESSES, TRIALS, WINDOW

if TYPE_CHECKING:
    from profiler.studies.registry import Study
    from profiler.studies.study import Done, Manner


def study(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="A study (--list), or your plan, FILE.toml."),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the studies.")] = False,
    device: Device = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE.jsonl", help="Append every record here."),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE.jsonl", help="Print a page of records; run nothing."),
    ] = None,
    page: Annotated[
        Path | None, typer.Option("--page", metavar="FILE.md", help="Write the page here.")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option("--rounds", help="Rounds, instead of the study's number.", min=1)
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds", help="Most seconds to sample one latency for.", min=0.01, callback=finite
        ),
    ] = None,
    largest: Annotated[
        int | None,
        typer.Option("--largest", help="Longest length (training: steps of a visit).", min=1),
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option("--shard", metavar="I/N", help="The I-th of N parts of a grid, such as 1/4."),
    ] = None,
    energy: Annotated[bool | None, ENERGY] = None,
    energy_window: Annotated[float | None, WINDOW] = None,
    energy_trials: Annotated[int | None, TRIALS] = None,
    processes: Annotated[int, PROCESSES] = 1,
    own: Own = None,
    force: Force = False,
) -> None:
    """Measure a named plan into one file, and write the page that follows from its records."""
    from profiler.host.device import device_name
    from profiler.studies.registry import listing, study as named
    from profiler.studies.study import Manner

    import_own(own)
    found = None if name is None else named(name)
    if list_ or found is None:
        refuse_beside(context, "with --list, or without a name, study lists all studies", "list_")
        show(listing(), "rich", None, False, context)
        return
    refuse_existing(page, force)
    if source is not None:
        refuse_beside(context, "--from FILE reads all records from FILE",
                      "name", "source", "page", "own", "force")  # fmt: skip
        written(found, source, page, force, context)
        return
    if output is None:
        raise UsageError("study needs a file for its records: name one, -o FILE.jsonl")
    kind = device_name(device).partition(":")[0]  # cpu or cuda
    asked = Manner(
        kind, rounds, seconds, shard, largest, energy, energy_window, energy_trials, processes
    )
    done = measured(found, asked, output)
    told(done.failures)
    if page is not None:
        written(found, output, page, force, context)
    if not done.complete:
        raise Failed


def measured(found: Study, manner: Manner, output: Path) -> Done:
    """Measure the points of a study that the file lacks, and return the outcome; after an interrupt
    by the user, KeyboardInterrupt says how to continue."""
    try:
        with bar() as progress:
            return found.measure(manner, output, progress, lambda sentence: told([sentence]))
    except KeyboardInterrupt:
        said = f"interrupted: earlier records are in {output}; the same command continues"
        raise KeyboardInterrupt(said) from None


def written(
    found: Study, source: Path, page: Path | None, force: bool, context: typer.Context
) -> None:
    """Print or write the page of a file's records. Raises Failed: a line that is no record."""
    no_source(page, [source])
    from profiler.sweep.recorded import recorded

    records, problems = recorded([source], complain)
    told(problems)
    show(found.page(records, str(source)), "markdown", page, force, context)
    if problems:
        raise Failed
