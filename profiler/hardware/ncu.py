"""How is a process run under ncu, what did ncu read, and if nothing, why?

ncu repeats each kernel once per pass of metrics (kernel replay). Between passes ncu flushes the
caches ("all": DRAM traffic of cold caches) or leaves them ("none": traffic of the kernels in
sequence, valid if one pass reads all metrics). Clocks are not locked, and nothing is timed. Errors
of ncu become a cause and a remedy; a process with one kernel tests what ncu may read here.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from profiler.hardware.metrics import OPCODES
from profiler.hardware.ncu_csv import Kernel, ReportError, absent, kernels
from profiler.host.children import ChildExit, last_line, run_child
from profiler.host.system import NO_CONTAINER, Host, container

NCU = "ncu"
LIMIT_S = 600.0
"""Seconds after which ncu and all its child processes are killed."""
VERSION_S = 30.0
"""Seconds after which `ncu --version` is killed."""
RANGE = "costmodel"
"""The NVTX range in which kernels are counted. A start/end range covers all threads; a push/pop
range would miss the backward pass, whose kernels another thread launches."""
CHILD = "profiler.hardware.child"
"""The module that the process under ncu runs."""
LOG = "ncu.csv"
"""The file that ncu writes its report to."""


@dataclass(frozen=True)
class NcuRun:
    """One process under ncu: the metrics to read, and whether caches are flushed before each
    kernel ("all") or not ("none")."""

    name: str
    metrics: tuple[str, ...]
    cache: str = "all"


@dataclass(frozen=True)
class Ran:
    """A successful run: the kernels with their metrics, and the command as a user can type it."""

    kernels: tuple[Kernel, ...]
    command: str

    def within(self, name: str) -> Ran:
        """This run with only the kernels that were launched in the NVTX range `name`."""
        word = re.compile(rf"\b{re.escape(name)}\b")
        return replace(self, kernels=tuple(k for k in self.kernels if word.search(k.ranges)))

    def totals(self, asked: Mapping[str, str]) -> dict[str, int]:
        """A dict: quantity -> the sum of its metric over all kernels. `asked` maps quantities to
        metrics; a quantity without a value in some kernel is left out."""
        found: dict[str, int] = {}
        for quantity, metric in asked.items():
            values = [kernel.values[metric] for kernel in self.kernels if metric in kernel.values]
            if len(values) == len(self.kernels):
                found[quantity] = sum(values)
        return found

    def parts(self, metric: str) -> dict[str, int] | None:
        """A dict: opcode -> the number of instructions, by a metric with one value for each opcode,
        summed over all kernels; None if some kernel has no value, or only a total."""
        found: dict[str, int] = {}
        for kernel in self.kernels:
            listed = kernel.parts.get(metric, {})
            if kernel.values.get(metric) != sum(listed.values()):
                return None
            for name, number in listed.items():
                found[name] = found.get(name, 0) + number
        return dict(sorted(found.items()))


@dataclass(frozen=True)
class Refused:
    """A failed run: the cause, the remedy (or ""), and whether counts by opcode may still work
    (`patched`: instrumented code counts them, without performance counters)."""

    cause: str
    fix: str = ""
    patched: bool = False

    @property
    def reason(self) -> str:
        """Cause and remedy in one sentence."""
        return f"{self.cause}: {self.fix}" if self.fix else self.cause


def options(run: NcuRun, ranges: Sequence[str] = (), log: str | None = None) -> list[str]:
    """The command-line options of ncu for a run. Without `log` ncu writes its report to stdout;
    without `ranges` it counts every kernel."""
    included = [word for name in ranges for word in ("--nvtx-include", name)]
    parts = ("--print-metric-instances", "details") if OPCODES in run.metrics else ()
    into = () if log is None else ("--log-file", log)
    return [
        "--target-processes", "all", "--replay-mode", "kernel", "--clock-control", "none",
        "--cache-control", run.cache, "--nvtx", *included, "--metrics", ",".join(run.metrics),
        "--csv", "--page", "raw", "--print-units", "base", *parts, *into,
    ]  # fmt: skip


INJECTED = "CUDA_INJECTION64_PATH"
"""The variable that names a tool that CUDA loads into every process. ncu fails beside a tool."""


def plain_variables() -> dict[str, str]:
    """Environment variables for ncu: decimal points in numbers, no injected tool."""
    return {"LC_ALL": "C"} | ({INJECTED: "none"} if INJECTED in os.environ else {})


def child_variables() -> dict[str, str]:
    """`plain_variables`, and a PYTHONPATH with this process's path of modules."""
    path = os.pathsep.join(place or os.getcwd() for place in sys.path)
    return {**plain_variables(), "PYTHONPATH": path}


def run_ncu(
    ncu: str,
    run: NcuRun,
    asked: Mapping[str, Any],
    ranges: Sequence[str] = (RANGE,),
    *,
    limit_s: float = LIMIT_S,
    host: Host | None = None,
) -> Ran | Refused:
    """Run the module `CHILD` (the program that makes one call) under ncu, and return the kernels
    that ncu reports, or why it reports none.

    Args:
        run: the metrics to read, and the treatment of caches.
        asked: the call, or the calibration, that the process under ncu runs, as JSON values.
        ranges: the NVTX ranges whose kernels are counted.
        limit_s: the seconds after which the process is stopped, and refused.
        host: says whether a remedy is told for a container; None for this machine.
    """
    program = ("-P", "-m", CHILD, json.dumps(asked, sort_keys=True))
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / LOG
        words = [ncu, *options(run, ranges, str(log)), sys.executable, *program]
        done = run_child(words, limit_s, child_variables())
        text = log.read_text("utf-8", "replace") if log.is_file() else ""
    shown = shlex.join([NCU, *options(run, ranges, LOG), "python", *program])
    found = understood(done, text, run, limit_s, host or Host())
    return found if isinstance(found, Refused) else Ran(found, shown)


def understood(
    done: ChildExit, report: str, run: NcuRun, limit_s: float, host: Host
) -> tuple[Kernel, ...] | Refused:
    """Read ncu's report: the kernels in it, with the metrics of `run`; or, from how the process
    ended (`done`, stopped after `limit_s` seconds if it has no status) and what it printed, the
    cause why there are none, with a remedy (on `host`, which may be a container)."""
    if done.status is None:
        slow = f"ncu did not end within {limit_s:.0f} s and was stopped"
        return Refused(slow, "try again (a first import of torch is slow), or smaller sizes")
    if fault := fault_in((report, done.text)):
        return Refused(fault.cause, in_container(fault.fix, host), fault.patched)
    if done.status != 0:
        return Refused(f"the process under ncu fails: {last_line(done)}")
    try:
        return kernels(report, run.metrics)
    except ReportError as error:
        return Refused(str(error))


def ncu_version(ncu: str) -> str | None:
    """The version of ncu, such as 2025.3.1.0; None if ncu prints no version."""
    done = run_child((ncu, "--version"), VERSION_S, {})
    found = re.search(r"[Vv]ersion\s+([\d.]*\d)", done.text)
    return found[1] if found and done.status == 0 else None


HOST_OPTION = (
    "on the host: options nvidia NVreg_RestrictProfilingToAdminUsers=0 in /etc/modprobe.d, and "
    "reload the driver"
)
INSTALL = "install Nsight Compute, whose command is ncu, and put it on PATH"
UPDATE = "update Nsight Compute (ncu) to one as new as the driver"


@dataclass(frozen=True)
class Fault:
    """A known error: words in ncu's output, cause, remedy, and whether counts by opcode may work
    nevertheless (`patched`)."""

    words: str
    cause: str
    fix: str = ""
    patched: bool = False


PERMISSION = "reading the performance counters is forbidden"

FAULTS = (
    Fault("ERR_NVGPUCTRPERM", f"{PERMISSION} (ERR_NVGPUCTRPERM)", HOST_OPTION, patched=True),
    Fault("INSUFFICIENT_PRIVILEGES", PERMISSION, HOST_OPTION, patched=True),
    Fault(
        "driver resource was unavailable",
        "another profiler holds the performance counters, often DCGM",
        "dcgmi profile --pause",
        patched=True,
    ),
    Fault(
        "LibraryNotLoaded",
        "ncu cannot load its library: a sandbox such as gVisor",
        "leave the sandbox",
    ),
    Fault("Failed to load Nsight Compute CUDA modules", "ncu is older than the driver", UPDATE),
    Fault("driver is not compatible with Nsight Compute", "ncu is older than the driver", UPDATE),
    Fault("is not supported on device", "this ncu does not know the GPU", UPDATE),
    Fault("unrecognised option", "ncu is too old: it refuses an option", UPDATE),
    Fault("unrecognized option", "ncu is too old: it refuses an option", UPDATE),
    Fault("lock file", "ncu's lock file belongs to another user",
          "set TMPDIR to a folder of your own"),
    Fault("No kernels were profiled", "ncu saw no kernel"),
)  # fmt: skip
"""The known errors. The first fault whose words occur in ncu's output is reported."""


def fault_in(texts: Iterable[str]) -> Fault | None:
    """The first fault whose words occur in the texts; None if no fault matches."""
    said = "\n".join(texts)
    return next((fault for fault in FAULTS if fault.words in said), None)


def in_container(fix: str, host: Host) -> str:
    """The remedy `fix` in words; in a container, a remedy that sets the driver's option on the host
    (`HOST_OPTION`) is followed by the container's own option."""
    inside = container(host) not in (None, NO_CONTAINER)
    if fix == HOST_OPTION and inside:
        return f"{fix}; or start the container with --cap-add=SYS_ADMIN"
    return fix


PROBE_S = 180.0
"""Seconds after which the test process is killed. The first import of torch from a cold disk may
take a minute under ncu."""

METRIC = "smsp__inst_executed.sum"
"""The performance counter that the test reads: executed instructions."""
ONE_KERNEL = "import torch; torch.ones(8, device={device!r}).add_(1); torch.cuda.synchronize()"

Start = Callable[[Sequence[str], float, Mapping[str, str]], ChildExit]
"""A function that runs a command (words, time limit in seconds, environment variables)."""


@dataclass(frozen=True)
class Ability:
    """Which of counters and counts by opcode ncu may read: None, or the reason why not."""

    counters: Refused | None = None
    opcodes: Refused | None = None


def ability(
    ncu: str,
    device: str,
    start: Start = run_child,
    python: str = sys.executable,
    host: Host | None = None,
) -> Ability:
    """Find out which metrics ncu may read here, by running it on a process with one kernel on the
    GPU `device` (`start` runs the command, `python` is the process's program). A second process
    tests counts by opcode if counters fail for a reason that need not affect instrumented code,
    such as a missing permission; otherwise counts by opcode can be read if counters can."""

    def refused(metric: str) -> Refused | None:
        """Read one metric of a process with one kernel under ncu; return why it cannot be read (ncu
        fails, or some kernel lacks the metric), or None."""
        run = NcuRun("probe", (metric,), "none")
        program = (python, "-c", ONE_KERNEL.format(device=device))
        done = start((ncu, *options(run), *program), PROBE_S, plain_variables())
        found = understood(done, done.text, run, PROBE_S, host or Host())
        if isinstance(found, Refused):
            return found
        there = all(metric in each.values for each in found)
        return None if there else Refused(absent(metric), UPDATE)

    counters = refused(METRIC)
    if counters is None or not counters.patched:  # opcodes can be read if counters can
        return Ability(counters, counters)
    return Ability(counters, refused(OPCODES))


@cache
def abilities(ncu: str, device: str) -> Ability:
    """The `ability` of ncu on this machine, tested once per process."""
    return ability(ncu, device)
