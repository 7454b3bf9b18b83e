"""Does `doctor` say which meters work here, why others do not, and how to fix them?

Machines are made of files, variables and answers; what needs one that nobody has is a fake.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from profiler.doctor.disturbances import DISTURBS, LIMITS, disturbances
from profiler.doctor.findings import PROBES, SLOW, diagnose, merged
from profiler.doctor.report import document
from profiler.hardware.metrics import OPCODES
from profiler.hardware.ncu import HOST_OPTION, INSTALL, METRIC, PROBE_S, UPDATE
from profiler.host.children import ChildExit, run_child
from profiler.host.probes import (
    NO,
    PARTLY,
    UNTRIED,
    YES,
    MachineFinding,
    Surroundings,
)
from profiler.meters.energy.protocol import SensorError
from profiler.records.reading import Reading, Unavailable
from tests.printing import printed
from tests.profiler.test_environment import nvml, refuse
from tests.profiler.test_host import CPU, host
from tests.stand_ins import Instead

Findings = dict[str, MachineFinding]


def report(metric: str, value: str = "128") -> str:
    """What ncu writes of one kernel."""
    header = f'"ID","Kernel Name","Grid Size","Block Size","{metric}"'
    return f'==PROF== Connected\n{header}\n"","","","","inst"\n"0","fill","1","1","{value}"\n'


def failing(error: Exception) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise error

    return fail


def around(where: Path, **fields: Any) -> Surroundings:
    """A machine with a GPU on which all goes well, changed by `fields`."""
    board = nvml(
        nvmlDeviceGetCount=lambda: 1,
        nvmlGpmQueryDeviceSupport=lambda board: SimpleNamespace(isSupportedDevice=1),
        nvmlDeviceGetVirtualizationMode=lambda board: 0,
        nvmlDeviceGetPersistenceMode=lambda board: 1,
        nvmlDeviceGetCurrentClocksEventReasons=lambda board: 0x1,
        nvmlDeviceGetComputeRunningProcesses=lambda board: [],
    )
    given: dict[str, Any] = {
        "device": "cuda:0",
        "host": host(where),
        "cuda_build": "13.0",
        "cuda_usable": lambda: True,
        "nvml": lambda: board,
        "handle": lambda nvml, device: "board",
        "sensor": lambda device: SimpleNamespace(counter=True, power="instant", labels=()),
        "version": {"triton": "3.6", "nvidia-ml-py": "13"}.get,
        "which": lambda name: f"/vendor/{name}",
        "child": lambda words, seconds, variables: ChildExit(0, report(METRIC)),
        "python": "python",
        "threads": lambda: 1,
    }
    return Surroundings(**given | fields)


def cpu_only(where: Path, **fields: Any) -> Surroundings:
    """A machine without a GPU and without a driver."""
    missing = failing(SensorError("library not found: there is no NVIDIA driver", 12))
    given = {
        "device": "cpu",
        "cuda_usable": lambda: False,
        "nvml": missing,
        "which": lambda _: None,
    }
    return around(where, **given | fields)


BOARDS = ("compile", "energy", "power", "GPM utilisation", "hardware counters")
"""Probes that ask the machine through `Surroundings` alone."""


def found_on(machine: Surroundings) -> Findings:
    probes = {name: PROBES[name] for name in BOARDS}
    return {each.what: each for each in diagnose(machine, probes=probes).findings}


# What can be measured


def test_a_machine_with_everything(tmp_path: Path) -> None:
    found = found_on(around(tmp_path))
    assert {name: each.verdict for name, each in found.items()} == {
        "compile": YES, "energy": YES, "power": YES, "GPM utilisation": YES,
        "hardware counters": YES,
    }  # fmt: skip
    assert disturbances(around(tmp_path)) == []


def test_an_estimate_of_a_time_is_told_with_its_mark(tmp_path: Path, instead: Instead) -> None:
    once = Reading("latency", 1e-3, "s", (1e-3,), {"grade": "busy", "labels": ["1 sample"]})
    instead(latency=lambda *_, **__: once)
    found = PROBES["latency, hot"](cpu_only(tmp_path))
    assert found.said == "back to back, an estimate (1 sample), by a clock"


def test_meters_of_a_cpu_are_tried_for_real(tmp_path: Path) -> None:
    machine = cpu_only(tmp_path, child=lambda *_: ChildExit(0))
    found = diagnose(machine)
    verdicts = {each.what: each.verdict for each in found.findings}
    assert list(verdicts) == list(PROBES)
    for name in ("operations", "latency, hot", "peak memory", "saved tensors"):
        assert verdicts[name] == YES
    graph = next(each for each in found.findings if each.what == "latency, graph")
    assert graph.verdict == NO and "needs an NVIDIA GPU" in graph.said
    assert not found.healthy


@pytest.mark.parametrize(
    ("error", "said", "fix"),
    [
        (SensorError("library not found: there is no NVIDIA driver on this machine", 12),
         "library not found", "install the NVIDIA driver"),
        (SensorError("the NVIDIA driver is not loaded", 9), "not loaded", "modprobe nvidia"),
        (SensorError("driver and library versions differ", 18), "versions differ", "reboot"),
        (SensorError("the package nvidia-ml-py is not installed (pip install nvidia-ml-py)"),
         "is not installed", "pip install nvidia-ml-py"),
        (SensorError("another package named pynvml hides NVIDIA's (pip uninstall pynvml; ...)"),
         "hides NVIDIA's", "pip uninstall pynvml; pip install nvidia-ml-py --force-reinstall"),
    ],
)  # fmt: skip
def test_without_nvml_its_cause_and_cure(
    tmp_path: Path, error: SensorError, said: str, fix: str
) -> None:
    found = found_on(around(tmp_path, nvml=failing(error)))
    for name in ("energy", "power", "GPM utilisation"):
        assert found[name].verdict == NO
        assert said in found[name].said and fix in found[name].fix
        assert "(pip" not in found[name].said


def test_a_missing_or_shadowed_binding_is_found_as_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Surroundings(device="cpu").nvml
    monkeypatch.setitem(sys.modules, "pynvml", None)
    found = found_on(cpu_only(tmp_path, nvml=real))
    assert found["energy"].fix == "pip install nvidia-ml-py"
    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace())
    found = found_on(cpu_only(tmp_path, nvml=real))
    assert found["energy"].fix.startswith("pip uninstall pynvml")


NO_DRIVER = failing(SensorError("library not found: there is no NVIDIA driver", 12))


@pytest.mark.parametrize(
    ("fields", "said", "fix"),
    [
        ({"nvml": NO_DRIVER}, "NVML: library not found: there is no NVIDIA driver",
         "install the NVIDIA driver"),
        ({"nvml": NO_DRIVER, "cuda_build": None},
         "torch was built without CUDA, and NVML: library not found",
         "pip install a build of torch with CUDA; install the NVIDIA driver"),
        ({"nvml": lambda: nvml(nvmlDeviceGetCount=lambda: 0)}, "NVML sees no NVIDIA GPU",
         "take a machine with one"),
        ({"cuda_build": None}, "NVML sees 1, and torch was built without CUDA",
         "pip install a build of torch with CUDA"),
        ({}, "NVML sees 1, and torch cannot use it", "update the driver"),
    ],
)  # fmt: skip
def test_a_gpu_that_is_asked_for_and_not_there_is_diagnosed(
    tmp_path: Path, fields: dict[str, Any], said: str, fix: str
) -> None:
    machine = around(
        tmp_path, device="cuda", cuda_usable=lambda: False,
        handle=failing(AssertionError("Torch not compiled with CUDA enabled")), **fields,
    )  # fmt: skip
    found = diagnose(machine)
    (one,) = merged(found.findings)
    assert one.what == ", ".join(PROBES) and one.verdict == NO and not found.healthy
    assert one.said.startswith("torch finds no NVIDIA GPU: ") and said in one.said
    assert one.fix.startswith(fix)


@pytest.mark.parametrize(
    ("reason", "fix"),
    [
        ("NVML: unsupported (shared): MIG mode is on, and NVML measures the whole board only",
         "nvidia-smi -mig 0"),
        ("NVML: 3 processes compute on this board, one was expected", "stop the other processes"),
        ("NVML: not supported by this device", ""),
    ],
)  # fmt: skip
def test_a_sensor_that_refuses(tmp_path: Path, reason: str, fix: str) -> None:
    found = found_on(around(tmp_path, sensor=lambda device: Unavailable(reason)))
    assert (found["energy"].verdict, found["energy"].said) == (NO, reason)
    assert fix in found["energy"].fix and bool(fix) == bool(found["power"].fix)


@pytest.mark.parametrize(
    ("sensor", "energy", "power"),
    [
        ({"counter": True, "power": "instant", "labels": ("vGPU",)}, PARTLY, YES),
        ({"counter": False, "power": "averaged", "labels": ()}, PARTLY, PARTLY),
        ({"counter": True, "power": None, "labels": ()}, YES, NO),
    ],
)
def test_a_sensor_that_gives_a_part(
    tmp_path: Path, sensor: Mapping[str, Any], energy: str, power: str
) -> None:
    found = found_on(around(tmp_path, sensor=lambda device: SimpleNamespace(**sensor)))
    assert (found["energy"].verdict, found["power"].verdict) == (energy, power)
    if "vGPU" in sensor["labels"]:
        assert "vGPU" in found["energy"].said


def test_gpm_needs_a_board_that_has_it(tmp_path: Path) -> None:
    none = nvml(nvmlGpmQueryDeviceSupport=lambda board: SimpleNamespace(isSupportedDevice=0))
    assert "Hopper" in found_on(around(tmp_path, nvml=lambda: none))["GPM utilisation"].said
    old = nvml(nvmlGpmQueryDeviceSupport=refuse)
    found = found_on(around(tmp_path, nvml=lambda: old))["GPM utilisation"]
    assert (found.verdict, found.said) == (NO, "NVML: not supported by this device")


@pytest.mark.parametrize(
    ("done", "said", "fix"),
    [
        (ChildExit(1, "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission"),
         "forbidden", HOST_OPTION),
        (ChildExit(1, "==ERROR== Failed to initialize the profiler: LibraryNotLoaded"),
         "sandbox", ""),
        (ChildExit(1, "==ERROR== ... driver resource was unavailable ..."), "DCGM", "dcgmi"),
        (ChildExit(0, "==WARNING== No kernels were profiled."), "no kernel", ""),
        (ChildExit(0, report(METRIC, "n/a")), f"no value of {METRIC}", UPDATE),
        (ChildExit(1, "==ERROR== unrecognised option '--page'. Use --help"), "too old", UPDATE),
        (ChildExit(1, "==ERROR== Failed to load Nsight Compute CUDA modules"), "older", UPDATE),
        (ChildExit(1, "cannot open lock file /scratch/x"), "another user", "TMPDIR"),
        (ChildExit(None), f"within {PROBE_S:.0f} s", "first import of torch"),
        (ChildExit(0, "==PROF== Disconnected"), "ncu wrote no table", ""),
        (ChildExit(0, report("other")), f"no column {METRIC}", ""),
        (ChildExit(9, ""), "it said nothing (exit status 9)", ""),
        (ChildExit(1, "a\n==ERROR== /people/somebody/x: Unknown\nb"), "==ERROR== x: Unknown", ""),
    ],
)  # fmt: skip
def test_counters_that_cannot_be_read(tmp_path: Path, done: ChildExit, said: str, fix: str) -> None:
    def child(words: Sequence[str], seconds: float, variables: Mapping[str, str]) -> ChildExit:
        return done if words[0].endswith("ncu") else ChildExit(0)

    found = found_on(around(tmp_path, child=child))["hardware counters"]
    assert found.verdict == NO
    assert said in found.said and fix in found.fix
    assert "/home" not in found.said


def test_counters_are_tried_by_a_process_with_one_kernel_for_minutes(tmp_path: Path) -> None:
    asked: list[tuple[Sequence[str], float]] = []

    def child(words: Sequence[str], seconds: float, variables: Mapping[str, str]) -> ChildExit:
        asked.append((words, seconds))
        return ChildExit(0, report(METRIC))

    found_on(around(tmp_path, child=child))
    ((words, seconds),) = [each for each in asked if each[0][0] == "/vendor/ncu"]
    assert seconds == 180.0
    assert words[words.index("--clock-control") + 1] == "none"
    assert words[words.index("--page") + 1] == "raw"  # the options that a measurement needs
    assert "'cuda:0'" in words[-1]


def test_a_container_has_its_own_cure(tmp_path: Path) -> None:
    inside = host(tmp_path, {".dockerenv": ""})
    forbidden = ChildExit(1, "ERR_NVGPUCTRPERM")
    machine = around(tmp_path, host=inside, child=lambda *_: forbidden)
    assert "--cap-add=SYS_ADMIN" in found_on(machine)["hardware counters"].fix
    (found,) = (each for each in disturbances(machine) if each.what == "container")
    assert found.verdict == LIMITS and "host's ids" in found.said


def test_a_missing_ncu_is_reported_with_its_fix(tmp_path: Path) -> None:
    found = found_on(around(tmp_path, which=lambda name: None))["hardware counters"]
    assert (found.verdict, found.said, found.fix) == (NO, "ncu is not on PATH", INSTALL)


def test_patched_code_counts_where_counters_are_forbidden(tmp_path: Path) -> None:
    asked: list[str] = []

    def child(words: Sequence[str], seconds: float, variables: Mapping[str, str]) -> ChildExit:
        if not words[0].endswith("ncu"):
            return ChildExit(0)
        asked.append(words[words.index("--metrics") + 1])
        forbidden = ChildExit(1, "==ERROR== ERR_NVGPUCTRPERM")
        return ChildExit(0, report(OPCODES, "8 (FADD: 8)")) if asked[-1] == OPCODES else forbidden

    found = found_on(around(tmp_path, child=child))["hardware counters"]
    assert asked == [METRIC, OPCODES]
    assert (found.verdict, found.fix) == (PARTLY, HOST_OPTION)
    assert "opcode alone" in found.said and "forbidden" in found.said


@pytest.mark.parametrize(
    ("done", "said", "fix"),
    [
        (ChildExit(1, "InductorError: InvalidCxxCompiler: No working C++ compiler found"),
         "no C++ compiler", "g++"),
        (ChildExit(1, "torch._inductor.exc.TritonMissing: Cannot find a working triton install"),
         "Triton is missing", "pip install triton"),
        (ChildExit(1, "RuntimeError: Failed to find C compiler."), "no C compiler", "gcc"),
        (ChildExit(1, "fatal error: Python.h: No such file"), "headers", "python3-dev"),
        (ChildExit(1, "Traceback\nAssertionError"), "AssertionError (exit status 1)", ""),
        (ChildExit(None), "within 180 s", ""),
    ],
)  # fmt: skip
def test_compilers_that_are_missing(tmp_path: Path, done: ChildExit, said: str, fix: str) -> None:
    found = found_on(around(tmp_path, child=lambda *_: done))["compile"]
    assert found.verdict == NO
    assert said in found.said and fix in found.fix


def test_a_variable_that_switches_compiling_off(tmp_path: Path) -> None:
    off = host(tmp_path, variables={"TORCHDYNAMO_DISABLE": "1"})
    found = found_on(around(tmp_path, host=off))["compile"]
    assert (found.verdict, found.fix) == (NO, "unset TORCHDYNAMO_DISABLE")


def test_a_probe_that_fails_is_a_finding(tmp_path: Path) -> None:
    probes = {
        "one": failing(ZeroDivisionError("by zero")),
        "two": lambda _: MachineFinding("two", YES, ""),
    }
    first, second = diagnose(cpu_only(tmp_path), probes=probes).findings
    assert first == MachineFinding("one", NO, "it was tried and failed: ZeroDivisionError: by zero")
    assert second.verdict == YES


def test_quick_leaves_out_what_takes_a_process(tmp_path: Path) -> None:
    probes = {name: PROBES[name] for name in SLOW}
    machine = around(tmp_path, child=failing(AssertionError("no process was asked for")))
    assert {f.verdict for f in diagnose(machine, probes=probes, quick=True).findings} == {UNTRIED}


# What disturbs


def named(machine: Surroundings) -> Findings:
    return {each.what: each for each in disturbances(machine)}


def test_a_board_that_torch_cannot_use(tmp_path: Path) -> None:
    board = nvml(nvmlDeviceGetCount=lambda: 2)
    unused = {"device": "cpu", "cuda_usable": lambda: False, "nvml": lambda: board}
    found = named(around(tmp_path, **unused, cuda_build=None))["GPU"]
    assert "built without CUDA" in found.said and "pip install" in found.fix
    hidden = host(tmp_path, variables={"CUDA_VISIBLE_DEVICES": ""})
    assert named(around(tmp_path, **unused, host=hidden))["GPU"].fix == "unset CUDA_VISIBLE_DEVICES"
    assert "update the driver" in named(around(tmp_path, **unused))["GPU"].fix
    assert "GPU" not in named(cpu_only(tmp_path, cuda_build=None))


@pytest.mark.parametrize(
    ("changes", "what", "verdict", "said"),
    [
        ({"nvmlDeviceGetMigMode": lambda board: [1, 1]}, "MIG", LIMITS, "MIG is on"),
        ({"nvmlDeviceGetVirtualizationMode": lambda board: 2}, "vGPU", LIMITS, "'vGPU'"),
        ({"nvmlDeviceGetPersistenceMode": lambda board: 0}, "driver", LIMITS, "persistence"),
        ({"nvmlDeviceGetCurrentClocksEventReasons": lambda board: 0x48}, "clocks", DISTURBS,
         "hardware slowdown, hardware thermal slowdown"),
        # This process is not listed by its number: of two processes one is another's.
        ({"nvmlDeviceGetComputeRunningProcesses": lambda board: [
            SimpleNamespace(pid=-1, usedGpuMemory=1), SimpleNamespace(pid=-2, usedGpuMemory=1)]},
         "shared GPU", DISTURBS, "1 other process(es)"),
    ],
)  # fmt: skip
def test_boards_that_disturb(
    tmp_path: Path, changes: dict[str, Any], what: str, verdict: str, said: str
) -> None:
    healthy = vars(around(tmp_path).nvml())
    machine = around(tmp_path, nvml=lambda: SimpleNamespace(**healthy | changes))
    (found,) = disturbances(machine)
    assert (found.what, found.verdict) == (what, verdict)
    assert said in found.said and found.fix


def test_a_passed_through_board_is_whole(tmp_path: Path) -> None:
    whole = vars(around(tmp_path).nvml()) | {"nvmlDeviceGetVirtualizationMode": lambda board: 1}
    assert disturbances(around(tmp_path, nvml=lambda: SimpleNamespace(**whole))) == []


def test_a_board_that_nvml_does_not_find(tmp_path: Path) -> None:
    lost = around(tmp_path, handle=failing(SensorError("NVML knows no such board", 6)))
    assert "does not find torch's device" in named(lost)["GPU"].said


GROUP = {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "150000 100000"}


@pytest.mark.parametrize(
    ("files", "fields", "what", "verdict", "fix"),
    [
        ({}, {"load": lambda: (9.0, 1.0, 1.0)}, "load", DISTURBS, "stop other work"),
        (GROUP, {}, "CPU limit", DISTURBS, "OMP_NUM_THREADS=1"),
        ({}, {"usable": lambda: 2}, "affinity", DISTURBS, "OMP_NUM_THREADS=2"),
        ({}, {"physical": lambda: 1}, "threads", LIMITS, "OMP_NUM_THREADS=1"),
        ({f"{CPU}/cpu0/cpufreq/scaling_governor": "schedutil"}, {}, "frequency", DISTURBS,
         "sudo cpupower frequency-set -g performance"),
        ({f"{CPU}/cpu0/cpufreq/scaling_governor": "performance", f"{CPU}/cpufreq/boost": "1"}, {},
         "boost", LIMITS, ""),
        ({}, {"variables": {"CUDA_LAUNCH_BLOCKING": "1"}}, "variable", DISTURBS,
         "unset CUDA_LAUNCH_BLOCKING"),
    ],
)  # fmt: skip
def test_processors_that_disturb(
    tmp_path: Path, files: dict[str, str], fields: dict[str, Any], what: str, verdict: str, fix: str
) -> None:
    machine = cpu_only(tmp_path, host=host(tmp_path, files, **fields), threads=lambda: 4)
    (found,) = disturbances(machine)
    assert (found.what, found.verdict) == (what, verdict)
    assert fix in found.fix


def test_variables_at_their_defaults_are_no_finding(tmp_path: Path) -> None:
    given = {"CUDA_LAUNCH_BLOCKING": "0", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100"}
    machine = cpu_only(tmp_path, host=host(tmp_path, {}, variables=given))
    assert disturbances(machine) == []


def test_a_limit_below_one_processor_asks_for_no_fewer_threads(tmp_path: Path) -> None:
    half = {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "50000 100000"}
    machine = cpu_only(tmp_path, host=host(tmp_path, half), threads=lambda: 1)
    assert [found.fix for found in disturbances(machine)] == ["raise the limit"]


def test_a_quiet_machine_has_nothing_to_tell(tmp_path: Path) -> None:
    at_load = host(tmp_path, load=lambda: (4.0, 1.0, 1.0))  # as many as it has cores: not more
    assert disturbances(cpu_only(tmp_path, host=at_load)) == []


def test_packages_that_are_wrong_or_missing(tmp_path: Path) -> None:
    found = named(around(tmp_path, version={"pynvml": "13.0.1"}.get))
    assert "pip uninstall pynvml" in found["pynvml"].fix
    assert found["Triton"].fix == "pip install triton"


# In each format


def test_findings_of_one_cause_share_a_row() -> None:
    findings = [
        MachineFinding("a", NO, "x"), MachineFinding("b", YES, "y"),
        MachineFinding("c", NO, "x"), MachineFinding("d", NO, "z"),
    ]  # fmt: skip
    assert [each.what for each in merged(findings)] == ["a, c", "b", "d"]


def test_the_report_of_doctor_fits_one_screen(tmp_path: Path) -> None:
    machine = cpu_only(tmp_path, child=lambda *_: ChildExit(0), threads=lambda: 9)
    said = printed(document(diagnose(machine)), width=100)
    assert len(said.splitlines()) <= 40
    assert max(map(len, said.splitlines())) <= 100
    assert "energy, power, GPM utilisation" in said


def test_json_holds_every_finding(tmp_path: Path) -> None:
    machine = cpu_only(tmp_path, child=lambda *_: ChildExit(0), threads=lambda: 9)
    said = json.loads(printed(document(diagnose(machine)), "json"))
    assert [each["what"] for each in said["measures"]] == list(PROBES)
    assert said["disturbances"][0]["verdict"] == DISTURBS
    assert (said["schema"], said["healthy"]) == (1, False)
    assert "| energy, power" in printed(document(diagnose(machine)), "markdown")


# Processes


def test_a_process_tells_its_end() -> None:
    done = run_child([sys.executable, "-c", "print('said'); raise SystemExit(3)"], 60, {})
    assert done == ChildExit(3, "said\n")
    assert run_child(["a-command-that-is-nowhere"], 60, {}).status == 127


def test_a_process_gets_a_folder_that_is_gone_afterwards() -> None:
    words = "import os; print(os.environ['PLACE'], os.path.isdir(os.environ['PLACE']))"
    done = run_child([sys.executable, "-c", words], 60, {"PLACE": "{folder}"})
    place, there = done.text.split()
    assert there == "True" and not Path(place).exists()


def test_a_process_that_hangs_is_stopped_with_what_it_started() -> None:
    """Its pipe stays open for as long as anything that it started lives: this returns before."""
    words = (
        "import subprocess, sys, time; print('begun', flush=True); "
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3600)']); "
        "time.sleep(3600)"
    )
    assert run_child([sys.executable, "-c", words], 2.0, {}).status is None


@pytest.mark.gpu
def test_doctor_reads_a_real_gpu() -> None:
    found = {each.what: each for each in diagnose(Surroundings(), quick=True).findings}
    for name in ("operations", "latency, hot", "latency, cold", "latency, graph", "peak memory"):
        assert found[name].verdict == YES
    assert all(each.said for each in found.values())
