"""What did the hardware execute and move in one call?

ncu runs the call in three processes: one reads the performance counters and the DRAM bytes of cold
caches, one the DRAM bytes in sequence, one the instructions by opcode. Opcodes are counted even if
the counters are forbidden. A missing number is recorded as a reason, never as zero.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch

from profiler.hardware.calibration import NAMES, Calibration, calibrated, range_of
from profiler.hardware.metrics import CHIPS, OPCODES, OPERATIONS, Chip, complete_counts
from profiler.hardware.ncu import (
    NCU,
    Ability,
    NcuRun,
    Ran,
    Refused,
    abilities,
    ncu_version,
    run_ncu,
)
from profiler.hardware.ncu_csv import absent
from profiler.hardware.result import (
    COLD,
    COUNTERS,
    EXECUTED,
    IN_SEQUENCE,
    OPCODES_READ,
    HardwareCounts,
    Launch,
)
from profiler.hardware.tiles import tile_of
from profiler.meters.caches import l2_bytes
from profiler.records.reading import Unavailable

NEEDS = (
    "reading them needs an NVIDIA GPU, Nsight Compute's command ncu, and permission to read the "
    "GPU's performance counters (NVreg_RestrictProfilingToAdminUsers=0, or CAP_SYS_ADMIN)"
)


def counts_of_call(
    device: str, dtype: str, call: Mapping[str, Any], note: Callable[[str], None] = lambda _: None
) -> HardwareCounts | Unavailable:
    """Read what the hardware executes and moves in one call (instructions, DRAM bytes) on the GPU
    `device`, by running it under ncu; or Unavailable with the reason in one sentence. The number
    type `dtype` chooses the metrics of executed instructions.

    `call` describes the call to a separate process: `make`, the "module:function" that makes it,
    and `of`, the JSON value that this function takes. `note` receives each step.
    """
    ncu = shutil.which(NCU)
    if missing := missing_tools(device, ncu):
        return Unavailable(f"hardware counters were not read: {missing}; {NEEDS}")
    assert ncu is not None
    chip = chip_of(device)
    if isinstance(chip, Unavailable):
        return chip
    note("reading hardware counters")
    runs = counter_runs(ncu, chip, dtype, {"device": device, **call}, abilities(ncu, device))
    refused = [run.reason for run in runs.values() if isinstance(run, Refused)]
    if len(refused) == len(runs):
        return Unavailable(f"hardware counters were not read: {refused[0]}")
    note("calibrating hardware counters")
    known = calibration(ncu, device, dtype)
    return merged_runs(chip, dtype, known, ncu_version(ncu) or "unknown", runs)


def not_asked() -> Unavailable:
    """Why a measurement without `--counters` has none: not asked for, or not readable here."""
    missing = missing_tools("cuda", shutil.which(NCU))
    if not missing:
        return Unavailable("hardware counters were not asked for (--counters reads them)")
    return Unavailable(f"hardware counters were not read: {missing}; {NEEDS}")


def missing_tools(device: str, ncu: str | None) -> str:
    """The missing prerequisites of reading counters, joined by "and"; "" if none is missing."""
    found = []
    if not torch.cuda.is_available():
        found.append("torch finds no NVIDIA GPU")
    elif not device.startswith("cuda"):
        found.append(f"the device is {device}")
    if ncu is None:
        found.append("ncu is not on PATH")
    return " and ".join(found)


def chip_of(device: str) -> Chip | Unavailable:
    """The chip of a device; Unavailable if the names of its counters are unknown."""
    capability = torch.cuda.get_device_capability(device)
    if capability in CHIPS:
        return CHIPS[capability]
    known = ", ".join(f"{a}.{b} ({chip.name})" for (a, b), chip in CHIPS.items())
    return Unavailable(
        f"the counters of compute capability {'.'.join(map(str, capability))} are not known by "
        f"name: known are {known}"
    )


def runs_of(chip: Chip, dtype: str) -> tuple[NcuRun, NcuRun, NcuRun]:
    """The three runs of a process under ncu that one call needs: performance counters with the DRAM
    bytes of cold caches, DRAM bytes with caches as the kernels leave them, counts by opcode.

    DRAM bytes in sequence have a run to themselves, which takes one pass: a second pass would find
    the data of the first pass in the caches.
    """
    moved = tuple(chip.moved.values())
    return (
        NcuRun(COUNTERS, (*chip.executed(dtype).values(), *moved)),
        NcuRun(IN_SEQUENCE, moved, "none"),
        NcuRun(OPCODES_READ, (OPCODES,), "none"),
    )


@cache
def calibration(ncu: str, device: str, dtype: str) -> Calibration:
    """Calibrate the counters of a device for a number type, once per process: run kernels of known
    work under `ncu` (its path). Metrics that ncu may not read here are not run: their reason in
    `able` stands instead (None: it may). KeyError for a chip outside `CHIPS`."""
    chip, able = CHIPS[torch.cuda.get_device_capability(device)], abilities(ncu, device)
    counters, _, opcodes = runs_of(chip, dtype)
    asked = {"device": device, "dtype": dtype}
    ranges = tuple(map(range_of, NAMES))
    return calibrated(
        able.counters or run_ncu(ncu, counters, asked, ranges),
        able.opcodes or run_ncu(ncu, opcodes, asked, ranges),
        chip,
        dtype,
        l2_bytes(torch.cuda.get_device_properties(device)) or 0,
    )


def counter_runs(
    ncu: str, chip: Chip, dtype: str, asked: Mapping[str, Any], able: Ability
) -> dict[str, Ran | Refused]:
    """Run a call three times under ncu, and return name of the run -> its result: performance
    counters with DRAM bytes of cold caches, DRAM bytes in sequence, counts by opcode. `asked` says
    as JSON values which call the process under ncu makes; `able` says which metrics ncu may read.
    Runs of other metrics are not started, and have the reason as result; if the first run is
    started and fails, the others get its reason instead of a start."""
    runs: dict[str, Ran | Refused] = {}
    failed: Refused | None = None
    for run in runs_of(chip, dtype):
        refused = (able.opcodes if run.name == OPCODES_READ else able.counters) or failed
        found = refused or run_ncu(ncu, run, asked)
        if isinstance(found, Refused) and refused is None and not runs:
            failed = found
        runs[run.name] = found
    return runs


def merged_runs(
    chip: Chip, dtype: str, known: Calibration, version: str, runs: Mapping[str, Ran | Refused]
) -> HardwareCounts:
    """Join the results of a call's runs (`COUNTERS`, `IN_SEQUENCE`, `OPCODES_READ` -> result), of
    which at least one succeeded, into its counts, without runs that launched other kernels than the
    first that succeeded; each missing number has a reason. `chip` names the metrics of a module of
    the number type `dtype`; `known` is the calibration, `version` that of ncu."""
    read, reasons = alike(runs)
    names = chip.executed(dtype)  # quantity -> ncu's metric
    counted, moved = None, {}  # instructions by quantity; state of the caches -> DRAM bytes
    if COUNTERS in read:
        totals = read[COUNTERS].totals(names)
        counted = complete_counts(totals, names)
        reasons |= {name: absent(names[name]) for name in names if name not in totals}
        if counted is None:
            reasons[EXECUTED] = absent(*[names[name] for name in OPERATIONS if name in reasons])
    else:
        reasons |= dict.fromkeys((EXECUTED, COLD), reasons.pop(COUNTERS))
    for caches, name in ((COLD, COUNTERS), (IN_SEQUENCE, IN_SEQUENCE)):
        if name in read:
            moved[caches] = read[name].totals(chip.moved)
            if lost := [metric for q, metric in chip.moved.items() if q not in moved[caches]]:
                reasons[caches] = absent(*lost)
                del moved[caches]
    opcodes = read[OPCODES_READ].parts(OPCODES) if OPCODES_READ in read else None
    if opcodes is None:
        reasons.setdefault(OPCODES_READ, absent(OPCODES))
    launched = launches_of_run(next(iter(read.values())))
    return HardwareCounts(
        chip=chip.name,
        version=version,
        executed=counted,
        opcodes=opcodes,
        moved=moved,
        kernels=Counter(launched),
        tiles=[tile for name, _, _ in launched if (tile := tile_of(name))],
        commands={name: run.command for name, run in read.items()},
        metrics={**names, **chip.moved, OPCODES_READ: OPCODES},
        calibration=known,
        reasons=reasons,
    )


def alike(runs: Mapping[str, Ran | Refused]) -> tuple[dict[str, Ran], dict[str, str]]:
    """Two dicts: name -> run, for the successful runs that launched the same kernels as the first
    successful run; and name -> reason, for all other runs."""
    read: dict[str, Ran] = {}
    reasons: dict[str, str] = {}
    for name, run in runs.items():
        if isinstance(run, Refused):
            reasons[name] = run.reason
            continue
        first = launches_of_run(next(iter(read.values()), run))
        if why := unlike(first, launches_of_run(run)):
            reasons[name] = why
        else:
            read[name] = run
    return read, reasons


def launches_of_run(run: Ran) -> list[Launch]:
    """The launches of a run, in order: name, grid and block of each kernel."""
    return [kernel.launch for kernel in run.kernels]


def unlike(first: Sequence[Launch], other: Sequence[Launch]) -> str:
    """A sentence on how two runs launched different kernels (`first`, `other`: name, grid and block
    of each launch), with numbers, `other`'s before `first`'s, if they differ; "" for the same."""
    if first == other:
        return ""
    what = "different kernels"
    if len(first) != len(other):
        what = f"{len(other)} and {len(first)} kernels"
    return f"two runs of the call launched {what}: every call must launch the same kernels"
