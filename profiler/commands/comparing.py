"""`costmodel compare`: mixers, implementations or files, and whether they differ."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from costmodel.commands.options import (
    Device,
    UsageError,
    bar,
    chosen,
    formatted,
    phases,
    regenerating,
    show,
    sized,
    told,
    typed_beside,
)
from costmodel.commands.streams import Failed, complain
from costmodel.report.formats import formats
from profiler.commands.measuring import (
    ENERGY,
    LARGEST_SEED,
    MOST_PROCESSES,
    MOST_ROUNDS,
    PANEL,
    TRIALS,
    WINDOW,
    energy_wanted,
)
from profiler.meters.energy.protocol import TRIALS_IN_TURNS, EnergyLimits

LEAST_LEVEL = 1e-9
"""The smallest accepted level: smaller ones need more rounds than anybody takes."""

FILE = ".jsonl"
"""The suffix of a file of measurements."""


@sized
def compare(
    context: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="A B...",
            help="MIXER, MIXER:IMPLEMENTATION, FILE.py:NAME of a module, or FILE.jsonl.",
        ),
    ],
    sizes: Mapping[str, str | None] = {},  # filled in by `sized`, never changed
    phase: Annotated[
        str, typer.Option("--phase", help="training (forward), inference, backward, training-step.")
    ] = "training",
    impl: Annotated[
        str,
        typer.Option("--impl", metavar="A,B", help="Implementations of mixers named without one."),
    ] = "all",
    dtype: Annotated[str, typer.Option("--dtype", help="fp32, fp64, bf16, fp16; a list.")] = "fp32",
    device: Device = None,
    rounds: Annotated[
        int,
        typer.Option(
            "--rounds",
            metavar="N",
            help="Rounds of each process; a round measures every candidate.",
            min=1,
            max=MOST_ROUNDS,
        ),
    ] = 10,
    processes: Annotated[
        int | None,
        typer.Option(
            "--processes",
            metavar="K",
            help="Fresh processes with all rounds each: by default as many as --level needs (6 for "
            "two candidates). 1: this process.",
            min=1,
            max=MOST_PROCESSES,
        ),
    ] = None,
    level: Annotated[
        float, typer.Option("--level", help="Accepted probability of a false difference.")
    ] = 0.05,
    seed: Annotated[
        int,
        typer.Option("--seed", help="Seed of weights, inputs, orders.", min=0, max=LARGEST_SEED),
    ] = 0,
    energy: Annotated[bool | None, ENERGY] = None,
    energy_window: Annotated[float, WINDOW] = EnergyLimits.window_s,
    energy_trials: Annotated[int, TRIALS] = TRIALS_IN_TURNS,
    shared: Annotated[
        bool,
        typer.Option(
            "--shared", help="Measure while others use the GPU; label it.", rich_help_panel=PANEL
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE.jsonl", help="Append the rounds here."),
    ] = None,
    format_: Annotated[str, formatted("rows", "data")] = "rich",
) -> None:
    """Which is faster, by rounds in turn, in fresh processes; or what two files say of it."""
    from costmodel.program.chosen_sizes import given_sizes
    from profiler.compare import records
    from profiler.compare.in_turns import Run, candidates
    from profiler.compare.report import document
    from profiler.compare.run import run as measured
    from profiler.compare.verdict import rounds_needed
    from profiler.run.plan import Plan
    from profiler.run.subject import named

    chosen(format_, "--format", formats("rows", "data"))
    if not LEAST_LEVEL <= level < 1:
        raise UsageError(
            f"--level {level}: expected a number from {LEAST_LEVEL:g} to below 1, such as 0.05"
        )
    files = [word for word in words if word.endswith(FILE)]
    # `comparison`: the verdict of each pair; `problems`: sentences on what could not be compared
    if files:
        refuse_beside_files(context, words, files)
        comparison, problems = records.compare_files([*map(Path, files)], level, complain)
        told(problems)
    else:
        mixers = [named(word) for word in words]
        plan = Plan(mixers, given_sizes(sizes), one_phase(phase), impl, dtype, device, seed)
        problems = []
        with bar() as progress:
            requests = candidates(plan, problems.append)  # name of a candidate -> its request
            told(problems)
            pairs = len(requests) * (len(requests) - 1) // 2
            run = Run(
                requests,
                rounds,
                # each of several processes gives the test one value, as a round does in one process
                processes or rounds_needed(pairs, level),
                level=level,
                seed=seed,
                energy=energy_wanted(energy, device),
                energy_window_s=energy_window,
                energy_trials=energy_trials,
                force=shared,
                command=regenerating(context),
                progress=progress,
            )
            # in a pipe there is no bar: a sentence before each process is printed
            begin = (lambda _: None) if sys.stderr.isatty() else complain
            comparison = measured(run, output, complain, begin)
    show(document(comparison), format_, None, False, context)
    told(comparison.failures)
    if comparison.interrupted:
        raise KeyboardInterrupt
    if comparison.failures or problems:
        raise Failed


def refuse_beside_files(context: typer.Context, words: Sequence[str], files: Sequence[str]) -> None:
    """Raise UsageError if files are given together with mixers or with options of measuring."""
    others = [word for word in words if word not in files]
    if others:
        raise UsageError(f"compare files or mixers, not both: {files[0]} and {others[0]}")
    if beside := typed_beside(context, "words", "level", "format_"):
        raise UsageError(f"files say what was measured: leave out {', '.join(beside)}")


def one_phase(text: str) -> tuple[str, ...]:
    """The one phase to compare; UsageError if the text names several."""
    found = phases(text)
    if len(found) != 1:
        raise UsageError(f"--phase {text}: compare takes one phase, such as training")
    return found
