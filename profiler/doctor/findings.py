"""Finds out which quantities this machine can measure, why not the others, and the remedies.

A *probe* tries to measure one quantity and returns a finding. An error in a probe becomes a finding
with its cause (`tried`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from profiler.doctor.disturbances import DISTURBS, cuda_fault, disturbances
from profiler.hardware.ncu import INSTALL, NCU, ability
from profiler.host.children import last_line
from profiler.host.probes import NO, PARTLY, UNTRIED, YES, MachineFinding, Surroundings, nvml_fault
from profiler.meters.energy.protocol import SensorError
from profiler.records.grades import BUSY, grade_of, mark_of
from profiler.records.quantities import LATENCIES, QUANTITIES
from profiler.records.reading import Measured, Unavailable, reason_of

COMPILE_S = 180.0
"""Seconds after which the process that tries the compiler is stopped."""


Probe = Callable[[Surroundings], MachineFinding]
"""A function that tries to measure one quantity."""


NEEDS_GPU = "it needs an NVIDIA GPU, and the device is a CPU"


def operations(around: Surroundings) -> MachineFinding:
    """Make the finding on whether operations are counted, by a trial: a matrix product (2, 3) times
    (3, 5) has 30 multiplications."""
    from profiler.counting.dispatch import count_dispatch

    a, b = torch.ones(2, 3, device=around.device), torch.ones(3, 5, device=around.device)
    found = count_dispatch(lambda: a @ b).operations.mul
    if found != 30:
        return MachineFinding(
            "operations", NO, f"30 multiplications were dispatched and {found} counted"
        )
    return MachineFinding("operations", YES, "counted as dispatched by torch")


def small_call(device: str) -> Callable[[], Any]:
    """A short call on which meters are tried."""
    x = torch.ones(64, 64, device=device)
    return lambda: x @ x


def timed(around: Surroundings, meter: str) -> MachineFinding:
    """Make the finding on whether a latency can be measured on the device of `around`, by trying a
    meter on a short call for about half a second. A disturbed time, or one of one sample (`BUSY`),
    is said to be an estimate.

    `meter`: the name of a function of `meters.latency`, and of the quantity that it measures.
    """
    from profiler.meters import latency, sampler

    what = QUANTITIES[meter].title
    limits = sampler.LatencyLimits(
        min_blocks=6, max_blocks=10, min_seconds=0.01, max_seconds=0.2, warmup_seconds=0.2
    )
    call = small_call(around.device)
    found: Measured = getattr(latency, meter)(call, device=around.device, limits=limits)
    said = "caches flushed before each call" if meter == "latency_cold" else "back to back"
    if meter == "latency_graph":
        said = "replays of a CUDA graph"
    if isinstance(found, Unavailable):
        fix = "take a machine with an NVIDIA GPU" if not around.on_gpu else ""
        return MachineFinding(what, NO, found.reason, fix if meter == "latency_graph" else "")
    if grade_of(found) == BUSY:
        said += f", an estimate ({mark_of(found)})"
    return MachineFinding(what, YES, f"{said}, by {found.details.get('timer', 'a clock')}")


def memory(around: Surroundings) -> MachineFinding:
    """Make the finding on peak memory, by a trial: 1000 numbers, of 4 bytes each, must show."""
    from profiler.meters.memory.allocator import peak_memory

    found = peak_memory(lambda: torch.ones(1000, device=around.device), device=around.device)
    if isinstance(found, Unavailable):
        return MachineFinding("peak memory", NO, found.reason)
    if found.value < 4000:
        return MachineFinding(
            "peak memory", NO, f"4,000 bytes were allocated and {found.value:.0f} seen"
        )
    return MachineFinding("peak memory", YES, "every allocation of torch, to the byte")


def saved(around: Surroundings) -> MachineFinding:
    """Make the finding on saved tensors, by a trial: torch's hooks must show the 40 bytes that exp
    saves for its backward pass."""
    seen: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(tensor.numel() * tensor.element_size())
        return tensor

    x = torch.ones(10, device=around.device, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        x.exp()
    if sum(seen) != 40:
        return MachineFinding("saved tensors", NO, f"exp keeps 40 bytes, and {sum(seen)} were seen")
    return MachineFinding("saved tensors", YES, "torch's hooks on what autograd keeps")


COMPILED = (
    "import torch; f = torch.compile(lambda x: (x + 1).sum()); "
    "assert f(torch.ones(8, device={device!r})).item() == 16"
)


OFF = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")


COMPILE_FAULTS: Mapping[str, tuple[str, str]] = {
    "InvalidCxxCompiler": (
        "there is no C++ compiler", "install g++ (apt-get install g++), or set CXX",
    ),
    "TritonMissing": ("Triton is missing", "pip install triton"),
    "Cannot find a working triton": ("Triton is missing", "pip install triton"),
    "too old to be supported by the triton": (
        "Triton takes GPUs from compute capability 7.0 on", "take a newer GPU",
    ),
    "Failed to find C compiler": (
        "Triton finds no C compiler", "install gcc (apt-get install gcc), or set CC",
    ),
    "Python.h": ("Python's headers are missing", "apt-get install python3-dev"),
    "Dynamo is not supported": ("torch.compile does not take this Python", "take an older Python"),
}  # fmt: skip
"""Text in the output of a process that failed to compile -> the cause in words, and the remedy."""


def compiling(around: Surroundings) -> MachineFinding:
    """Make the finding on torch.compile, by a trial in a separate process with an empty cache (a
    new folder for `{folder}`), unless a variable of `OFF` switches the compiler off."""
    for name in OFF:
        if around.host.variables.get(name, "0") not in ("", "0"):
            return MachineFinding(
                "compile", NO, f"{name} switches torch.compile off", f"unset {name}"
            )
    command = (around.python, "-c", COMPILED.format(device=around.device))
    done = around.child(command, COMPILE_S, {"TORCHINDUCTOR_CACHE_DIR": "{folder}"})
    if done.status == 0:
        return MachineFinding("compile", YES, "torch.compile made a function and it ran")
    if done.status is None:
        return MachineFinding("compile", NO, f"nothing was compiled within {COMPILE_S:.0f} s")
    for piece, (cause, fix) in COMPILE_FAULTS.items():
        if piece in done.text:
            return MachineFinding("compile", NO, cause, fix)
    return MachineFinding("compile", NO, f"torch.compile fails: {last_line(done)}")


def without_board(around: Surroundings, what: str) -> MachineFinding | None:
    """Make the finding on the quantity `what` if no board's sensors can be read; else None."""
    if fault := nvml_fault(around):
        return MachineFinding(what, NO, *fault)
    if not around.on_gpu:
        return MachineFinding(
            what, NO, "NVML reads NVIDIA GPUs, and the device is a CPU", "--device cuda"
        )
    return None


def energy(around: Surroundings) -> MachineFinding:
    """Make the finding on energy: `YES` for a board with an energy counter, `PARTLY` if the counter
    has a label or only a power sensor is there, whose integral over time gives energy, else `NO`.
    """
    if found := without_board(around, "energy"):
        return found
    sensor = around.sensor(around.device)
    if isinstance(sensor, Unavailable):
        return MachineFinding("energy", NO, sensor.reason, sharing_fix(sensor.reason))
    labels = f" ({', '.join(sensor.labels)})" if sensor.labels else ""
    if sensor.counter:
        verdict = PARTLY if labels else YES
        return MachineFinding("energy", verdict, f"the board's energy counter{labels}")
    return MachineFinding("energy", PARTLY, f"no energy counter: the integral of power{labels}")


def sharing_fix(reason: str) -> str:
    """The remedy if the reason (a sentence) is that MIG splits the board or other processes use the
    board; "" for other reasons."""
    if "MIG" in reason:
        return "take a whole GPU, or have MIG switched off (sudo nvidia-smi -mig 0)"
    if "process" in reason or "held by others" in reason or "busy" in reason:
        return "stop the other processes (nvidia-smi shows them), or measure with --shared"
    return ""


POWERS = {
    "instant": (YES, "the board's power now"),
    "averaged": (PARTLY, "the driver's mean over about 1 s"),
}


def power(around: Surroundings) -> MachineFinding:
    """Make the finding on power: whether the board has a power sensor, and of which kind."""
    if found := without_board(around, "power"):
        return found
    sensor = around.sensor(around.device)
    if isinstance(sensor, Unavailable):
        return MachineFinding("power", NO, sensor.reason, sharing_fix(sensor.reason))
    if sensor.power is None:
        return MachineFinding("power", NO, "this board has no power sensor")
    return MachineFinding("power", *POWERS[sensor.power])


def gpm(around: Surroundings) -> MachineFinding:
    """Make the finding on GPM, NVML's utilisation of DRAM and tensor cores, since Hopper."""
    what = "GPM utilisation"
    if found := without_board(around, what):
        return found
    try:
        support = around.board.ask("nvmlGpmQueryDeviceSupport")
    except SensorError as error:
        return MachineFinding(what, NO, f"NVML: {reason_of(error)}")
    if not support.isSupportedDevice:
        return MachineFinding(what, NO, "this board has none: it needs Hopper or later", "")
    return MachineFinding(what, YES, "DRAM bandwidth and tensor cores in percent, by NVML")


def counters(around: Surroundings) -> MachineFinding:
    """Make the finding on hardware counters, by running ncu on a process with one kernel: whether
    ncu reads the counters, or at least the instructions by opcode (`PARTLY`). The fields of
    `ability` are reasons why ncu cannot, or None."""
    what = "hardware counters"
    if not around.on_gpu:
        return MachineFinding(what, NO, NEEDS_GPU, "take a machine with an NVIDIA GPU")
    ncu = around.which(NCU)
    if ncu is None:
        return MachineFinding(what, NO, "ncu is not on PATH", INSTALL)
    found = ability(ncu, around.device, around.child, around.python, around.host)
    if found.counters is None:
        return MachineFinding(what, YES, "ncu reads them (profile --counters)")
    cause, fix = found.counters.cause, found.counters.fix
    if found.opcodes is None:
        return MachineFinding(what, PARTLY, f"instructions by opcode alone: {cause}", fix)
    return MachineFinding(what, NO, cause, fix)


PROBES: Mapping[str, Probe] = {
    "operations": operations,
    **{QUANTITIES[each].title: partial(timed, meter=each) for each in LATENCIES},
    "compile": compiling,
    "peak memory": memory,
    "saved tensors": saved,
    "energy": energy,
    "power": power,
    "GPM utilisation": gpm,
    "hardware counters": counters,
}
"""Quantity -> the probe that finds out whether it can be measured, in the order of the table."""


SLOW = ("compile", "hardware counters")
"""Probes that start a process, which takes many seconds."""


@dataclass(frozen=True)
class Diagnosis:
    """The findings on each quantity that was to be measured on `device`, and on disturbances."""

    device: str
    findings: tuple[MachineFinding, ...]
    disturbances: tuple[MachineFinding, ...]

    @property
    def healthy(self) -> bool:
        """Whether every tried quantity can be measured, in part at least, and nothing disturbs."""
        return all(f.verdict not in (NO, DISTURBS) for f in (*self.findings, *self.disturbances))


def diagnose(
    around: Surroundings,
    *,
    quick: bool = False,
    probes: Mapping[str, Probe] = PROBES,
    progress: Callable[[int, int, str], None] = lambda done, of, what: None,
) -> Diagnosis:
    """Try every probe, each of which tries to measure one quantity; with `quick`, only those that
    start no process (others are `UNTRIED`). Returns the findings, and those on disturbances.

    If a GPU is asked for and torch cannot use one, every finding on a quantity is the reason.
    `progress` gets, before each probe, (probes done, number of probes, the quantity).
    """
    found, disturbing = [], tuple(disturbances(around))  # first, as probes are a load themselves
    if around.on_gpu and (fault := cuda_fault(around)):
        nothing = tuple(MachineFinding(name, NO, *fault) for name in probes)
        return Diagnosis(around.device, nothing, disturbing)
    for done, (name, probe) in enumerate(probes.items()):
        progress(done, len(probes), name)
        if quick and name in SLOW:
            found.append(MachineFinding(name, UNTRIED, "left out by --quick"))
            continue
        found.append(tried(name, probe, around))
    return Diagnosis(around.device, tuple(found), disturbing)


def tried(name: str, probe: Probe, around: Surroundings) -> MachineFinding:
    """Run a probe, a function that tries to measure something, and return its finding; an exception
    becomes the finding that `name` cannot be measured."""
    try:
        return probe(around)
    except Exception as error:  # failures are what probes look for
        return MachineFinding(
            name, NO, f"it was tried and failed: {type(error).__name__}: {reason_of(error)}"
        )


def merged(findings: Sequence[MachineFinding]) -> list[MachineFinding]:
    """The findings in order of first occurrence; findings that differ only in their quantity become
    one finding, which names all the quantities."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for each in findings:
        found.setdefault((each.verdict, each.said, each.fix), []).append(each.what)
    return [MachineFinding(", ".join(names), *rest) for rest, names in found.items()]
