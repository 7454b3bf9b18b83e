"""`costmodel sweep` and `costmodel merge`: grids measured into one file, and files merged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from costmodel.commands.options import (
    Force,
    UsageError,
    bar,
    chosen,
    emit,
    formatted,
    no_source,
    regenerating,
    show,
    told,
)
from costmodel.commands.streams import Failed, complain, interruptible
from costmodel.report.formats import formats
from profiler.commands.measuring import Asked, measuring, planned, workers

if TYPE_CHECKING:
    from profiler.sweep.points import Block
    from profiler.sweep.results import Results
    from profiler.sweep.session import Session, Starts


@dataclass(frozen=True)
class Manner:
    """The options of a grid, as typed."""

    rounds: int
    order_seed: int
    shard: str | None
    ray: str | None


@measuring
def sweep(
    context: typer.Context,
    asked: Asked,
    rounds: Annotated[
        int, typer.Option("--rounds", help="Rounds; each measures every point once.", min=1)
    ] = 2,
    order_seed: Annotated[
        int, typer.Option("--order-seed", help="Seed of the order of points.", min=0)
    ] = 0,
    shard: Annotated[
        str | None, typer.Option("--shard", metavar="I/N", help="The I-th of N parts, such as 1/4.")
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option("--ray", metavar="ADDRESS", help="Use a Ray cluster; `local` starts one."),
    ] = None,
    retry: Annotated[
        bool, typer.Option("--retry", help="Retry failed points, out of memory included.")
    ] = False,
    allow_mixed: Annotated[
        bool,
        typer.Option("--allow-mixed", help="Append to another machine's file; label the records."),
    ] = False,
    plan: Annotated[
        bool, typer.Option("--plan", "--dry-run", help="Print the grid; measure nothing.")
    ] = False,
    format_: Annotated[str, formatted("rows", "data")] = "rich",
) -> None:
    """Measure a grid into one file, candidates in turns; the same command goes on where it ended.

    Uses every GPU, a process each. What runs out of memory or is refused is recorded, too.
    """
    chosen(format_, "--format", formats("rows", "data"))
    manner = Manner(rounds, order_seed, shard, ray)
    if plan:
        printed_plan(asked, manner, format_, context)
        return
    if asked.output is None:
        raise UsageError("sweep needs a file for its records: name one, -o FILE.jsonl")
    from profiler.sweep.results import Results

    results = Results(asked.output, mixed=allow_mixed)
    told(results.problems)
    # kind: cpu or cuda; starts: name of a worker -> the function that starts the worker
    with interruptible(), fleet(asked, manner) as (kind, starts):
        blocks = blocks_of(replace(asked, device=kind), manner)
        command = regenerating(context)
        session = swept(blocks, results, starts, retry, command)
    others = results.by_others(blocks, command)
    told(
        [
            f"{results.path}: {number:,} of the plan's points were measured by another command and "
            f"stay as they are: {other}"
            for other, number in others.items()
        ]
    )
    if format_ != "rich":
        from profiler.records.store import read
        from profiler.run.report import document

        records = read(results.path)[0] if results.path.exists() else []  # no point, no file
        show(document([one for one in records if not one.failure]), format_, None, False, context)
    conclude(blocks, results, session, retry, quiet=format_ != "rich")


def blocks_of(asked: Asked, manner: Manner, device: str | None = None) -> list[Block]:
    """Make the blocks of the grid, or of one shard (part of it), in the order of measurement; a
    block holds the points of the candidates at equal sizes. Points that a mixer refuses are
    included. The device of a point is its kind, cpu or cuda, as a worker may use any board."""
    from profiler.run.plan import requests
    from profiler.sweep import order

    part = order.shard(manner.shard) if manner.shard is not None else None
    wanted = planned(asked)
    # with Ray, this machine may lack the device
    here = "cpu" if manner.ray is not None else wanted.device
    processes = asked.processes or 1
    wanted = replace(wanted, device=here)
    found = requests(wanted, refused=True, rounds=manner.rounds, processes=processes)
    kind = (asked.device or found[0].device).partition(":")[0]
    found = [replace(request, device=kind) for request in found]
    return order.grid(found, manner.rounds, manner.order_seed, processes, part)


def printed_plan(asked: Asked, manner: Manner, format_: str, context: typer.Context) -> None:
    """Print the plan of a sweep: for each candidate and for all, the number of points, and of those
    that the output file holds; below, the time that others take at most (`--seconds` a latency)."""
    from profiler.meters.sampler import LatencyLimits
    from profiler.sweep.report import document
    from profiler.sweep.results import Results

    blocks = blocks_of(asked, manner)
    exists = asked.output is not None and asked.output.exists()
    results = Results(asked.output) if asked.output is not None and exists else None
    told(results.problems if results else [])
    points = sum(len(block.points) for block in blocks)
    shard = f", part {manner.shard}" if manner.shard is not None else ""
    title = f"Plan of a sweep: {points:,} points in {len(blocks):,} blocks{shard}"
    limits = LatencyLimits.within(asked.seconds)
    show(document(blocks, results, title, limits), format_, None, False, context)


@contextmanager
def fleet(asked: Asked, manner: Manner) -> Iterator[tuple[str, Starts]]:
    """A context with the kind of the measured device (cpu, cuda), and a dict of functions that
    start the workers, the processes that measure: on the Ray cluster if one is named, else
    processes of this machine."""
    if manner.ray is not None:
        from profiler.meters.sampler import LatencyLimits
        from profiler.sweep.child import MEASURE
        from profiler.sweep.ray_cluster import connected

        limits = LatencyLimits.within(asked.seconds)
        with connected(manner.ray, asked.device) as cluster:
            yield cluster.kind, cluster.actors(limits, MEASURE)
        return
    yield workers(asked)


def swept(
    blocks: Sequence[Block], results: Results, starts: Starts, retry: bool, command: str
) -> Session:
    """Measure the points of the blocks that the file lacks, and return the session; after an
    interrupt by the user, KeyboardInterrupt says how to continue."""
    from profiler.sweep import session

    try:
        with bar() as progress:
            return session.sweep(
                blocks,
                results,
                starts,
                retry=retry,
                progress=progress,
                tell=lambda s: told([s]),
                command=command,
            )
    except KeyboardInterrupt:
        said = f"interrupted: {so_far(blocks, results)}; the same command goes on from there"
        raise KeyboardInterrupt(said) from None


def so_far(blocks: Sequence[Block], results: Results) -> str:
    """A sentence with the number of a plan's points that the file holds."""
    from profiler.sweep.results import MEASURED

    points = sum(len(block.points) for block in blocks)
    return f"{results.path} holds {results.count(blocks)[MEASURED]:,} of {points:,} points"


def conclude(
    blocks: Sequence[Block], results: Results, found: Session, retry: bool, *, quiet: bool = False
) -> None:
    """Print the failures of session `found` and the state of the plan (`blocks`) in the file of
    `results`, on standard error if `quiet`; without `retry` also how many points failed before and
    were not tried again.

    Raises Failed unless every point is measured or failed in an `EXPECTED` way, and at least one
    point is measured; a plan without points (an empty shard) is accepted.
    """
    from profiler.sweep.failures import EXPECTED
    from profiler.sweep.results import MEASURED

    told(found.failures)
    state = results.count(blocks)
    failed = Counter({kind: number for kind, number in state.items() if kind != MEASURED})
    listed = "".join(f"; {kind}: {number:,}" for kind, number in sorted(failed.items()))
    state_words = f"{so_far(blocks, results)}{listed}"
    if quiet:
        told([state_words])
    else:
        emit(f"{state_words}\n", None, False)
    before = sum((failed - found.kinds).values())
    if before and not retry:
        told([f"failed before and not tried again: {before:,} points (--retry tries them)"])
    points = sum(len(block.points) for block in blocks)
    if not points:
        told(["this part of the plan (--shard) holds no point: nothing is measured"])
        return
    if state[MEASURED] + sum(failed[kind] for kind in EXPECTED) < points or not state[MEASURED]:
        raise Failed


def merge(
    files: Annotated[list[Path], typer.Argument(metavar="FILE.jsonl...", help="Files to merge.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE.jsonl", help="The merged file.")
    ] = None,
    allow_mixed: Annotated[
        bool, typer.Option("--allow-mixed", help="Merge different environments; label the records.")
    ] = False,
    force: Force = False,
) -> None:
    """Join files of measurements; refuses a point twice, and different machines or software."""
    from profiler.sweep.merge import merged

    if output is None:
        raise UsageError("merge needs a file for the records: name one, -o FILE.jsonl")
    no_source(output, files)
    lines, number, problems = merged(files, mixed=allow_mixed, tell=complain)
    told(problems)
    emit(lines, output, force)
    told([f"{number:,} records of {len(files):,} files"])
    if problems:
        raise Failed
