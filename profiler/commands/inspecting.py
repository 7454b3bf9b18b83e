"""`costmodel doctor`, `statement`, `calibrate`: what a machine measures, measured, and reaches.

`device` is cpu or cuda (None: the GPU, if any); `force` overwrites `output`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from costmodel.commands.options import (
    Device,
    Force,
    Output,
    UsageError,
    bar,
    chosen,
    formatted,
    no_source,
    refuse_existing,
    show,
    told,
)
from costmodel.commands.streams import Failed, complain, harmless, wrapped, written_whole
from costmodel.report.formats import formats


def doctor(
    context: typer.Context,
    device: Device = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Skip slow checks: torch.compile and ncu.")
    ] = False,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Exit code 1 where a measurement is missing or disturbed."),
    ] = False,
    format_: Annotated[str, formatted("data")] = "rich",
) -> None:
    """What this machine can measure, why not the rest, and what would change that."""
    from profiler.doctor.findings import diagnose
    from profiler.doctor.report import document
    from profiler.host.device import default_device, device_name, kind_of_device
    from profiler.host.probes import Surroundings

    chosen(format_, "--format", formats("data"))
    place = None if device is None else kind_of_device(device)
    # a GPU that is asked for and missing is examined too, to say why it is missing
    missing = place is not None and place.type == "cuda" and default_device() == "cpu"
    around = Surroundings(str(place) if missing else device_name(device))
    with bar() as progress:
        diagnosis = diagnose(around, quick=quick, progress=progress)
    show(document(diagnosis), format_, None, False, context)
    if strict and not diagnosis.healthy:
        raise Failed


def statement(
    context: typer.Context,
    source: Annotated[
        list[Path], typer.Option("--from", metavar="FILE.jsonl", help="Read records; repeatable.")
    ],
    format_: Annotated[str, typer.Option("--format", help="plain, markdown or latex.")] = "plain",
    output: Output = None,
    force: Force = False,
) -> None:
    """The paragraph that paper checklists ask for: device, memory, time, energy, software, runs."""
    from profiler.host.statement import document
    from profiler.records.measurement import OF_CALLS
    from profiler.sweep.recorded import recorded

    chosen(format_, "--format", ("plain", "markdown", "latex"))
    no_source(output, source)
    # `every`: failed points too; the times of single calls are not needed
    records, problems = recorded(source, complain, every=True, without=OF_CALLS)
    show(document(records), "rich" if format_ == "plain" else format_, output, force, context)
    told(problems)
    if problems:
        raise Failed


def calibrate(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="BOARD.toml", help="The file to write.")
    ],
    device: Device = None,
    seconds: Annotated[
        float, typer.Option("--seconds", help="Seconds to measure, at most 60.")
    ] = 45.0,
    force: Force = False,
) -> None:
    """Measure what this machine reaches, and write a file that --board takes."""
    import torch

    from costmodel.prediction.boards import CPU, GPU
    from profiler.host.board_file import MOST_SECONDS, Within, from_system, measured, text
    from profiler.host.device import device_name, on_device
    from profiler.host.system import Host

    if not 0 < seconds <= MOST_SECONDS:
        raise UsageError(f"--seconds {seconds:g}: expected more than 0 and at most 60")
    if output.suffix != ".toml":
        raise UsageError(f"-o {output}: expected a name that ends in .toml, as --board reads")
    refuse_existing(output, force)
    place = torch.device(device_name(device))
    with written_whole(output) as path:  # a file that cannot be written is told before measuring
        with on_device(place):
            figures, missing = measured(place, Within(seconds))
        told([f"{figure} was not measured: {reason}" for figure, reason in missing.items()])
        if not figures:
            raise Failed
        name, stated = from_system(place, Host())  # figures that the system states, unmeasured
        kind = CPU if place.type == "cpu" else GPU
        path.write_text(text(name, kind, [*figures, *stated]), encoding="utf-8")
    sys.stderr.write(f"{wrapped(harmless(f'wrote {output}'))}\n")
