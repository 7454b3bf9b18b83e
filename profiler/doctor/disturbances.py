"""Properties of this machine that disturb measurements or limit their meaning, and remedies.

A finding *disturbs* if it changes what is measured now (other work on the cores); it *limits* if
measurements are right but mean less, or something cannot be measured (Triton is missing). Every
function is given the machine as `around`, or one fact about a board.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from profiler.host.probes import MachineFinding, Surroundings, nvml_fault
from profiler.host.system import (
    NO_CONTAINER,
    SCALING,
    boost,
    container,
    cpu_limit,
    load_average,
    usable_cores,
)
from profiler.meters.energy.protocol import SensorError
from profiler.meters.nvml import IDENTITY, STATE, ask_nvml

DISTURBS, LIMITS = "disturbs", "limits"

Sign = Callable[[Surroundings], Iterator[MachineFinding]]
"""A function that examines the machine for one kind of finding."""


NO_CUDA = ("torch was built without CUDA", "pip install a build of torch with CUDA")
NO_BOARD = (
    "NVML sees no NVIDIA GPU",
    "take a machine with one; start a container with it (docker run --gpus all)",
)


def boards_seen(around: Surroundings) -> int:
    """The number of NVIDIA boards that NVML sees; 0 if NVML does not answer."""
    try:
        return int(ask_nvml(around.nvml(), "nvmlDeviceGetCount"))
    except SensorError:
        return 0


def unused_because(around: Surroundings) -> tuple[str, str]:
    """(why torch does not use an existing board, the remedy), in words."""
    if around.cuda_build is None:
        return NO_CUDA
    if "CUDA_VISIBLE_DEVICES" in around.host.variables:
        return "CUDA_VISIBLE_DEVICES may hide it", "unset CUDA_VISIBLE_DEVICES"
    return "torch cannot use it", "update the driver to what this torch's CUDA needs"


def gpu_unused(around: Surroundings) -> Iterator[MachineFinding]:
    """Yield a finding if NVML sees a board and torch does not."""
    if around.cuda_usable() or not (boards := boards_seen(around)):
        return
    why, fix = unused_because(around)
    yield MachineFinding("GPU", LIMITS, f"NVML sees {boards} NVIDIA GPU(s), and {why}", fix)


def cuda_fault(around: Surroundings) -> tuple[str, str] | None:
    """(why no GPU can be measured here, the remedy), in words; None if torch can use CUDA."""
    if around.cuda_usable():
        return None
    if boards := boards_seen(around):
        why, fix = unused_because(around)
        return f"torch finds no NVIDIA GPU: NVML sees {boards}, and {why}", fix
    faults = [NO_CUDA] if around.cuda_build is None else []
    faults.append(nvml_fault(around) or NO_BOARD)
    said, fixes = zip(*faults, strict=True)
    return f"torch finds no NVIDIA GPU: {', and '.join(said)}", "; ".join(filter(None, fixes))


def old_pynvml(around: Surroundings) -> Iterator[MachineFinding]:
    """Yield a finding if the package `pynvml` is installed, which is no longer NVIDIA's binding."""
    if around.version("pynvml") is not None:
        said = "the retired package pynvml is installed: torch warns, old versions hide NVIDIA's"
        fix = "pip uninstall pynvml; pip install --force-reinstall nvidia-ml-py"
        yield MachineFinding("pynvml", LIMITS, said, fix)


def triton(around: Surroundings) -> Iterator[MachineFinding]:
    """Yield a finding on a GPU if Triton, torch's compiler of kernels, is missing."""
    if around.on_gpu and around.version("triton") is None:
        said = "Triton is not installed: torch.compile needs Triton on a GPU"
        yield MachineFinding("Triton", LIMITS, said, "pip install triton")


def board(around: Surroundings) -> Iterator[MachineFinding]:
    """Yield findings from the facts that NVML states about torch's board (`BOARD`), on other
    processes (`compute_processes`, less this one), or that NVML does not find the board; none on a
    CPU, if torch cannot use the GPU, or if NVML cannot be loaded."""
    if not (around.on_gpu and around.cuda_usable()) or nvml_fault(around):
        return
    try:
        board = around.board
    except SensorError as error:
        yield MachineFinding("GPU", LIMITS, f"NVML does not find torch's device: {error}")
        return
    reasons: dict[str, str] = {}
    facts = board.facts({**IDENTITY, **STATE}, reasons, "")
    for name, said in BOARD.items():
        if name in facts and (found := said(facts[name])):
            yield found
    if "other_processes" not in facts and facts.get("compute_processes", 0) > 1:
        yield shared(facts["compute_processes"] - 1)


def mig(mode: str) -> MachineFinding | None:
    """A finding if MIG splits the board into parts; else None."""
    said = "MIG is on: latency and memory are of one MIG instance, energy is unavailable"
    fix = "take a whole GPU (sudo nvidia-smi -mig 0)"
    return MachineFinding("MIG", LIMITS, said, fix) if mode == "on" else None


def virtual(mode: str) -> MachineFinding | None:
    """A finding if, by NVML's virtualisation mode, other machines may share the board; or None."""
    if mode in ("none", "passthrough"):
        return None
    said = f"virtualisation mode '{mode}': other machines may share the board and its sensors"
    return MachineFinding("vGPU", LIMITS, said, "take a whole GPU (passthrough or bare metal)")


def sharing(others: int) -> MachineFinding | None:
    """A finding if other processes use the board; else None."""
    return shared(others) if others else None


def shared(others: int) -> MachineFinding:
    """The finding that this many other processes compute on the board."""
    said = f"{others} other process(es) compute on this GPU"
    return MachineFinding(
        "shared GPU", DISTURBS, said, "stop them, or wait (nvidia-smi shows them)"
    )


def persistence(mode: str) -> MachineFinding | None:
    """A finding if persistence is "off": the driver is unloaded between processes; else None."""
    said = "persistence mode is off: the driver loads anew for each process, counters begin at 0"
    return (
        MachineFinding("driver", LIMITS, said, "sudo nvidia-smi -pm 1") if mode == "off" else None
    )


SLOW_CLOCKS = ("slowdown", "brake", "power cap")


def clocks(events: list[str]) -> MachineFinding | None:
    """A finding if heat or power slows the board's clocks now: if NVML's causes of lowered clocks
    (`events`) contain one of `SLOW_CLOCKS`; else None."""
    slow = [event for event in events if any(word in event for word in SLOW_CLOCKS)]
    said = f"clocks are throttled now: {', '.join(slow)}"
    return (
        MachineFinding("clocks", DISTURBS, said, "let the GPU cool (nvidia-smi -q -d PERFORMANCE)")
        if slow
        else None
    )


BOARD: Mapping[str, Callable[[Any], MachineFinding | None]] = {
    "mig_mode": mig,
    "virtualisation": virtual,
    "other_processes": sharing,
    "persistence": persistence,
    "clock_events": clocks,
}
"""Fact of a board -> a function from its value to the finding, or to None."""


def load(around: Surroundings) -> Iterator[MachineFinding]:
    """Yield a finding if the load average (processes that run or wait) exceeds the usable cores."""
    now, cores = load_average(around.host), usable_cores(around.host) or around.host.cores()
    if now is not None and cores and now > cores:
        said = f"load average {now:.1f} on {cores} cores: other processes compete for the cores"
        yield MachineFinding("load", DISTURBS, said, "stop other work, or wait")


def limited(around: Surroundings) -> Iterator[MachineFinding]:
    """Yield findings if torch has more threads than the processors that the control group grants,
    the cores that the process may use, or the physical cores: one finding for each."""
    limit, cores = cpu_limit(around.host), usable_cores(around.host)
    threads = around.threads()
    if isinstance(limit, float) and limit < threads:
        said = (
            f"the control group grants {limit:g} processors, and torch uses {threads} threads: "
            f"the scheduler pauses threads in turns"
        )
        least = max(1, math.floor(limit))
        fewer = f"OMP_NUM_THREADS={least}, or " if least < threads else ""
        yield MachineFinding("CPU limit", DISTURBS, said, f"{fewer}raise the limit")
    if cores is not None and cores < threads:
        said = f"the process may use {cores} cores, and torch works with {threads} threads"
        yield MachineFinding("affinity", DISTURBS, said, f"OMP_NUM_THREADS={cores}")
    physical = around.host.physical()
    if physical is not None and threads > physical:
        said = f"torch works with {threads} threads on {physical} physical cores"
        yield MachineFinding("threads", LIMITS, said, f"OMP_NUM_THREADS={physical}")


def scaling(around: Surroundings) -> Iterator[MachineFinding]:
    """Yield a finding if the processors' frequency varies with the load, or else if they boost."""
    governor = around.host.text(f"{SCALING}/scaling_governor")
    if governor is not None and governor != "performance":
        said = f"the governor '{governor}' changes the processors' frequency with the load"
        fix = "sudo cpupower frequency-set -g performance"
        yield MachineFinding("frequency", DISTURBS, said, fix)
    elif governor is not None and boost(around.host) == "on":
        said = "cores boost above their base frequency while they are cool"
        yield MachineFinding("boost", LIMITS, said)


def contained(around: Surroundings) -> Iterator[MachineFinding]:
    """Yield a finding on a GPU if a container hides the process ids that NVML uses."""
    kind = container(around.host)
    if around.on_gpu and kind is not None and kind != NO_CONTAINER:
        said = f"{kind}: NVML lists processes by the host's ids, so only their number is known"
        yield MachineFinding("container", LIMITS, said)


SWITCHES: Mapping[str, tuple[str, str]] = {
    "CUDA_LAUNCH_BLOCKING": (DISTURBS, "every launch waits for its kernel"),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": (
        DISTURBS,
        "every allocation calls the driver, which is slow",
    ),
    "NVIDIA_TF32_OVERRIDE": (LIMITS, "the variable overrides torch's choice of TF32"),
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": (LIMITS, "a part of the GPU is used"),
}
"""Variable -> whether it disturbs or limits, and the effect in words."""
WITHOUT_EFFECT = (("CUDA_LAUNCH_BLOCKING", "0"), ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100"))
"""Variables of `SWITCHES`, each with its default value."""


def variables(around: Surroundings) -> Iterator[MachineFinding]:
    """Yield a finding for each variable of `SWITCHES` whose value, neither empty nor the default,
    affects measurements."""
    for name, (verdict, said) in SWITCHES.items():
        value = around.host.variables.get(name)
        if value and (name, value) not in WITHOUT_EFFECT:
            yield MachineFinding("variable", verdict, f"{name}={value}: {said}", f"unset {name}")


SIGNS: tuple[Sign, ...] = (
    gpu_unused, old_pynvml, triton, board, load, limited, scaling, contained, variables,
)  # fmt: skip


def disturbances(around: Surroundings) -> list[MachineFinding]:
    """All findings on disturbances and limits here."""
    return [found for sign in SIGNS for found in sign(around)]
