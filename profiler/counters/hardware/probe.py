"""What may ncu read here at all? It is tried on a process with one kernel."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from profiler.counters.hardware.command import Refused, Run, options, plain, understood
from profiler.counters.hardware.faults import UPDATE
from profiler.counters.hardware.metrics import OPCODES
from profiler.counters.hardware.reports import absent
from profiler.machine.host import Host
from profiler.machine.surroundings import Child, run_child

PROBE_S = 60.0
"""Seconds after which it is stopped."""
METRIC = "smsp__inst_executed.sum"
ONE_KERNEL = "import torch; torch.ones(8, device={device!r}).add_(1); torch.cuda.synchronize()"

Start = Callable[[Sequence[str], float, Mapping[str, str]], Child]
"""Runs a command for so many seconds at most, with variables."""


@dataclass(frozen=True)
class Ability:
    """Why counters, and instructions by opcode, cannot be read; None where they can."""

    counters: Refused | None = None
    opcodes: Refused | None = None


def ability(
    ncu: str,
    device: str,
    start: Start = run_child,
    python: str = sys.executable,
    host: Host | None = None,
) -> Ability:
    """What ncu may read; opcodes are tried where counters are refused and patched code may count
    all the same."""

    def refused(metric: str) -> Refused | None:
        run = Run("probe", (metric,), "none")
        program = (python, "-c", ONE_KERNEL.format(device=device))
        done = start((ncu, *options(run), *program), PROBE_S, plain())
        found = understood(done, done.text, run, PROBE_S, host or Host())
        if isinstance(found, Refused):
            return found
        there = all(metric in each.values for each in found)
        return None if there else Refused(absent(metric), UPDATE)

    counters = refused(METRIC)
    if counters is None or not counters.patched:
        return Ability(counters, counters)
    return Ability(counters, refused(OPCODES))


@cache
def abilities(ncu: str, device: str) -> Ability:
    """The same of this machine, tried once a process."""
    return ability(ncu, device)
