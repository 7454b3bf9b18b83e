"""`costmodel profile` and `costmodel reconcile`: modules measured, and compared with theory.

`device` is cpu or cuda (None: the GPU, if any), `own` are Python files of mixers to import, `board`
is a GPU of tables/devices or BOARD.toml (None: no limits).
"""

from __future__ import annotations

import functools
import gc
import importlib
import inspect
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from costmodel.commands.options import (
    Command,
    Device,
    OnBoard,
    Own,
    UsageError,
    bar,
    chosen,
    finite,
    formatted,
    import_own,
    on_board,
    phases,
    regenerating,
    show,
    sized,
    told,
    typed_beside,
)
from costmodel.commands.streams import Failed, complain
from costmodel.report.formats import formats
from profiler.meters.energy.protocol import FEWEST_TRIALS, EnergyLimits

if TYPE_CHECKING:
    from profiler.records.measurement import Measurement
    from profiler.records.reading import MeasureError
    from profiler.run.plan import Plan
    from profiler.run.request import Request
    from profiler.sweep.session import Session, Starts


LARGEST_SEED = 2**63 - 1
"""The largest seed that torch's generators accept."""


MOST_PROCESSES = MOST_ROUNDS = 1000
"""The largest accepted numbers of processes and of rounds."""


PANEL = "Energy, on an NVIDIA GPU"


ENERGY = typer.Option(
    "--energy/--no-energy",
    help=f"Measure energy: {EnergyLimits().seconds():.0f} s a point, and longer where the board "
    "must warm up or cool; off by default.",
    rich_help_panel=PANEL,
)


LONG_S = 120.0
"""Plans that may take longer than this many seconds are announced beforehand."""


WINDOW = typer.Option(
    "--energy-window",
    metavar="SECONDS",
    help=f"Seconds of load in one trial, {EnergyLimits.min_window_s:g} or more.",
    rich_help_panel=PANEL,
)


TRIALS = typer.Option(
    "--energy-trials",
    metavar="N",
    help=f"Trials of each call; results of fewer than {FEWEST_TRIALS} are labelled.",
    rich_help_panel=PANEL,
)


PROCESSES = typer.Option(
    "--processes",
    metavar="K",
    help="Number of fresh processes, each of which measures everything; intervals then hold their "
    "differences. By default profile and reconcile time short CPU calls in two further processes.",
    min=1,
    max=MOST_PROCESSES,
)
COUNTS_ONLY = typer.Option("--counts-only", help="Count operations and bytes; time nothing.")


@dataclass(frozen=True)
class Asked:
    """The options of a measuring command, as typed."""

    mixers: list[str] | None
    sizes: Mapping[str, str | None]
    phase: str
    impl: str
    dtype: str
    device: str | None
    seed: int
    seconds: float
    compile_: bool
    shared: bool
    energy: bool | None
    energy_window: float
    energy_trials: int
    processes: int | None
    counters: bool
    output: Path | None


def _measuring(
    mixers: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MIXER]...",
            help="MIXER, MIXER:IMPLEMENTATION, or FILE.py:NAME: a mixer, or a module without "
            "equations.",
        ),
    ] = None,
    phase: Annotated[
        str,
        typer.Option(
            "--phase",
            help="training (forward), inference (decode), both; backward, training-step; or all.",
        ),
    ] = "training",
    impl: Annotated[
        str,
        typer.Option(
            "--impl",
            metavar="A,B",
            help="Implementations of mixers named without one: all, names or FILE.py:Class.",
        ),
    ] = "all",
    dtype: Annotated[
        str, typer.Option("--dtype", help="Element types: fp32, fp64, bf16 or fp16; or a list.")
    ] = "fp32",
    device: Device = None,
    seed: Annotated[
        int, typer.Option("--seed", help="Seed of parameters and inputs.", min=0, max=LARGEST_SEED)
    ] = 0,
    seconds: Annotated[
        float,
        typer.Option(
            "--seconds", help="Most seconds to sample one latency for.", min=0.01, callback=finite
        ),
    ] = 15.0,
    compile_: Annotated[
        bool, typer.Option("--compile", help="Time the modules compiled by torch.compile.")
    ] = False,
    shared: Annotated[
        bool,
        typer.Option(
            "--shared", help="Measure while others use the GPU; label it.", rich_help_panel=PANEL
        ),
    ] = False,
    energy: Annotated[bool | None, ENERGY] = None,
    energy_window: Annotated[float, WINDOW] = EnergyLimits.window_s,
    energy_trials: Annotated[int, TRIALS] = EnergyLimits.trials,
    processes: Annotated[int | None, PROCESSES] = None,
    counters: Annotated[
        bool, typer.Option("--counters", help="Also read hardware counters of an NVIDIA GPU: slow.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE.jsonl", help="Append every record here."),
    ] = None,
) -> None:
    """Declare the options of every measuring command: `measuring` reads them from this signature,
    and nothing calls the function."""


def measuring(command: Command) -> Command:
    """Return the command with the options of `_measuring` and the sizes beside its own: typer sees
    the joint signature, and the command receives them as one `asked` (an `Asked`)."""
    signature = inspect.signature(command, eval_str=True)
    shared = inspect.signature(_measuring, eval_str=True).parameters

    @functools.wraps(command)
    def wrapped(sizes: Mapping[str, str | None], **arguments: Any) -> None:
        common = {name: arguments.pop(name) for name in shared}
        command(**arguments, asked=Asked(sizes=sizes, **common))

    own = [p for name, p in signature.parameters.items() if name != "asked"]
    sizes = inspect.Parameter("sizes", inspect.Parameter.KEYWORD_ONLY, annotation=Any)
    parameters = [
        p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*own, *shared.values(), sizes)
    ]
    wrapped.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return sized(wrapped)


def planned(asked: Asked) -> Plan:
    """The plan (what to measure, and how) of a command line; by default of the default mixers."""
    from costmodel.mixers import DEFAULT
    from costmodel.program.chosen_sizes import given_sizes
    from profiler.run.plan import Plan
    from profiler.run.subject import named

    return Plan(
        mixers=tuple(dict.fromkeys(map(named, asked.mixers or DEFAULT))),
        given=given_sizes(asked.sizes),
        phases=phases(asked.phase),
        implementation=asked.impl,
        dtype=asked.dtype,
        device=asked.device,
        seed=asked.seed,
        compile=asked.compile_,
        shared=asked.shared,
        energy=energy_wanted(asked.energy, asked.device),
        energy_window_s=asked.energy_window,
        energy_trials=asked.energy_trials,
        counters=asked.counters,
    )


def energy_wanted(asked: bool | None, device: str | None) -> bool:
    """Whether energy is read. By default only on a CPU, where it costs no time and gives the reason
    why there is none; on a GPU only if asked for."""
    from profiler.host.device import default_device

    return not (device or default_device()).startswith("cuda") if asked is None else asked


def measured(
    asked: Asked, command: str, *, counts_only: bool = False, cold: bool = True
) -> Session:
    """The session (records and failures) of measuring what a command line asks for. Failures are
    printed; a user's module that differs from its equations is one, or raises MeasureError if it is
    the only one. `command`, the command line, is kept in the records; `cold`: calls are timed from
    cold caches too. A plan that may take longer than `LONG_S` is announced, and notes on a busy
    machine are printed if a latency has `LEAST_S` seconds or more. Raises UsageError: `counts_only`
    (time nothing) is given together with an option of timing.
    """
    from profiler.meters.sampler import LatencyLimits
    from profiler.run.duration import estimate, longest_s
    from profiler.run.plan import refuse_too_many, requests
    from profiler.sweep import session
    from profiler.sweep.failures import failure_of
    from profiler.sweep.points import Point

    limits = replace(LatencyLimits.within(asked.seconds), cold=cold)
    number = asked.processes or 1
    unequal: list[tuple[Request, MeasureError]] = []  # modules that differ from their equations
    fitting = requests(planned(asked), processes=number, unequal=lambda *one: unequal.append(one))
    wanted = list({Point(request).key: request for request in fitting}.values())
    refuse_too_many(len(wanted), 1, number)
    if counts_only:
        times = {"--processes": number > 1, "--energy": asked.energy,
                 "--compile": asked.compile_}  # fmt: skip
        if beside := [name for name, given in times.items() if given]:
            raise UsageError(f"--counts-only times nothing: leave out {', '.join(beside)}")
    elif number * sum(longest_s(request, limits) for request in wanted) > LONG_S:
        told([estimate(wanted * number, limits)])
    starts = None if number == 1 else one_worker(asked)  # None: measured in this process
    settle_objects()  # measurements of memory collect garbage: without torch's own objects
    with bar() as progress:
        done = session.run(
            wanted,
            asked.output,
            limits=limits,
            progress=progress,
            tell=lambda sentence: told([sentence] if asked.seconds >= LEAST_S else []),
            command=command,
            counts_only=counts_only,
            processes=number,
            starts=starts,
            further=None if counts_only else further(asked),
        )
    for request, error in unequal:
        done.lose(request, failure_of(error))
    told(done.failures)
    return done


def settle_objects() -> None:
    """Have the garbage collector skip all objects so far until the process ends: each measurement
    of memory collects garbage, and torch's modules alone would take a third of a second each
    time. The largest of these modules, torch._dynamo, which torch imports at the first operation
    that a dispatch mode sees, is imported before."""
    importlib.import_module("torch._dynamo")
    gc.collect()
    gc.freeze()


WAITING = "OMP_WAIT_POLICY"
"""The environment variable that says how a thread of OpenMP waits for the others."""


def load_torch_with_sleeping_threads() -> None:
    """Load torch so that its threads sleep while one waits for another. Threads that spin, as is
    usual, take several times the processor time of the work itself on a busy machine; only a clock
    sees a difference. If torch is loaded or the user has set the variable, do nothing. Records keep
    the user's environment: OpenMP reads the variable once, while torch is loaded."""
    if "torch" in sys.modules or WAITING in os.environ:
        return
    os.environ[WAITING] = "passive"
    try:
        importlib.import_module("torch")
    finally:
        del os.environ[WAITING]


def workers(asked: Asked) -> tuple[str, Starts]:
    """The kind of the measured device (cpu, cuda), and a dict: name of each device of the kind -> a
    function that starts its measuring process."""
    from profiler.host.device import device_name
    from profiler.meters.sampler import LatencyLimits
    from profiler.sweep.child import MEASURE
    from profiler.sweep.devices import devices
    from profiler.sweep.processes import processes

    limits = LatencyLimits.within(asked.seconds)
    wanted = device_name(asked.device)
    kind = wanted.partition(":")[0]
    return kind, processes(devices(wanted), kind, limits, MEASURE)


def one_worker(asked: Asked) -> Starts:
    """The entry of `workers` for the first device."""
    _, starts = workers(asked)
    return dict(list(starts.items())[:1])


LEAST_S = 0.5
"""With fewer --seconds, no further processes start, and notes on a busy machine are not printed."""
AGAIN_S = 0.3
"""The most seconds of sampling for a repeated latency."""


def further(asked: Asked) -> Starts | None:
    """{"cpu": a function that starts a fresh process}, in which short calls are timed again, so
    that the interval of a time covers the variation between processes too. None if the command
    starts processes by itself (--processes), or if further ones cost too much: on a GPU, with
    --compile, or with --seconds below `LEAST_S`."""
    from profiler.host.device import device_name
    from profiler.meters.sampler import LatencyLimits
    from profiler.sweep.child import TIME_AGAIN
    from profiler.sweep.devices import devices
    from profiler.sweep.processes import processes

    kind = device_name(asked.device)
    if asked.processes or asked.seconds < LEAST_S or kind != "cpu":
        return None
    if asked.compile_:
        return None
    first, *_ = devices(kind)
    return processes([first], kind, LatencyLimits.within(AGAIN_S), TIME_AGAIN)


def refuse_without_equations(names: Sequence[str]) -> None:
    """Raise UsageError if a name is that of a module without equations."""
    from profiler.records.words import without_equations
    from profiler.run.plain import PlainModule
    from profiler.run.subject import measurable, parts

    for name, _ in map(parts, names):
        if isinstance(measurable(name), PlainModule):
            raise UsageError(without_equations(name))


def raise_if_interrupted(found: Session, output: Path | None) -> None:
    """Raise KeyboardInterrupt, with the place of earlier measurements, if the user interrupted."""
    if not found.interrupted:
        return
    if not found.measurements:
        raise KeyboardInterrupt("interrupted before anything was measured")
    where = f"are in {output}" if output else "were only printed: -o FILE.jsonl keeps them"
    raise KeyboardInterrupt(f"interrupted: the earlier measurements {where}")


def emptied(records: list[Measurement]) -> Iterator[Measurement]:
    """Yield the records of a list in order, and take each from the list."""
    records.reverse()
    while records:
        yield records.pop()


@measuring
def profile(
    context: typer.Context,
    asked: Asked,
    counts_only: Annotated[bool, COUNTS_ONLY] = False,
    format_: Annotated[str, formatted("rows", "data")] = "rich",
) -> None:
    """Run the real modules: time, memory, operations as dispatched, other counters, energy."""
    if counts_only:
        load_torch_with_sleeping_threads()
    from profiler.run.report import document

    chosen(format_, "--format", formats("rows", "data"))
    session = measured(asked, regenerating(context), counts_only=counts_only)
    if session.measurements:  # `lost`: records of failed requests, which keep the reason alone
        show(document([*session.measurements, *session.lost]), format_, None, False, context)
    raise_if_interrupted(session, asked.output)
    if session.failures:
        raise Failed


@measuring
def reconcile(
    context: typer.Context,
    asked: Asked,
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE.jsonl", help="Read these records; measure nothing."),
    ] = None,
    own: Own = None,
    counts_only: Annotated[bool, COUNTS_ONLY] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Print every table, also if all is explained.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit code 1 where something is unexplained.")
    ] = False,
    board: OnBoard = None,
    format_: Annotated[str, formatted("rows", "data")] = "rich",
) -> None:
    """Theory against measurement: a line for each implementation, and the causes of every gap."""
    if counts_only:
        load_torch_with_sleeping_threads()
    from profiler.reconcile.ladder import ladders
    from profiler.reconcile.report import document
    from profiler.records.measurement import STATES
    from profiler.sweep.recorded import recorded

    chosen(format_, "--format", formats("rows", "data"))
    on = on_board(board)
    lost: list[Measurement] = []  # records of failed requests, which keep the reason alone
    # `problems`, `unknown`: sentences on lines that are no records, failures, records in no ladder
    if source is not None:
        if beside := typed_beside(context, "source", "own", "full", "strict", "board", "format_"):
            listed = ", ".join(beside)
            raise UsageError(f"--from FILE reads all values from FILE: leave out {listed}")
        import_own(own)
        records, problems = recorded([source], complain, without=STATES)
        told(problems)
    elif own:
        raise UsageError("--own needs --from FILE.jsonl: add --from, or leave out --own")
    else:
        refuse_without_equations(asked.mixers or ())
        # cold times stand in no table here: only a file of records is given them
        cold = asked.output is not None
        session = measured(asked, regenerating(context), counts_only=counts_only, cold=cold)
        records, problems, lost = session.measurements, session.failures, session.lost
    # a file may hold many records: each is freed as soon as it has a ladder
    compared, unknown = ladders(
        records if source is None else emptied(records), on, advise=source is None
    )
    told(unknown)
    if compared:
        show(document(compared, lost, full=full), format_, None, False, context)
    if source is None:
        raise_if_interrupted(session, asked.output)
    if problems or unknown or (strict and any(ladder.findings for ladder in compared)):
        raise Failed
