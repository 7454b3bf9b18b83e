"""Does the statement say exactly what the records show, and name what they lack?"""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec.structs import replace

from profiler.host.machine_groups import machine_groups
from profiler.host.statement import OUTSIDE, document
from profiler.records.environments import environment_differences
from profiler.records.measurement import Measurement
from profiler.records.reading import Reading
from profiler.sweep.recorded import recorded as records_of
from tests.printing import printed, statement
from tests.recorded import ATTENTION, LAUNCH_BOUND, RUNS, UNTIMED, latency

GPU: dict[str, Any] = {
    "python": "3.12.1",
    "torch": "2.11.0+cu130",
    "cuda": "13.0",
    "cudnn": "91300",
    "triton": "3.6.0",
    "package": "0.1.0",
    "revision": "abc123",
    "cpu": "Example CPU",
    "cores": 16,
    "host_memory_bytes": 128 * 2**30,
    "device": "cuda",
    "device_name": "Example GPU",
    "device_memory_bytes": 141 * 2**30,
    "compute_capability": "9.0",
    "multiprocessors": 132,
    "l2_bytes": 50 * 2**20,
    "gpu": {"uuid": "GPU-1", "driver": "580.1", "power_limit_W": 700.0, "mig_mode": "off"},
    "variables": {"OMP_NUM_THREADS": "8"},
    "settings": {"float32_matmul_precision": "highest"},
    "state": {"temperature_C": 41, "other_processes": 0},
    "reasons": {},
}


def joules(value: float, trials: int = 5) -> Reading:
    details = {
        "method": "counter", "systematic": 0.05, "ci_low": 0.98 * value, "ci_high": 1.01 * value,
        "labels": ["power-capped"],
    }  # fmt: skip
    return Reading("energy", value, "J", (value,) * trials, details)


def on_gpu(**fields: Any) -> Measurement:
    """A whole measurement on a GPU."""
    timed = latency(1e-3, 1.1e-3, 1.2e-3, ci_low=1.08e-3, ci_high=1.14e-3, block=4, labels=[])
    readings = {
        "latency": timed,
        "peak_memory": Reading("peak_memory", 2**20, "B", (2.0**20,), {"agree": True}),
        "energy": joules(0.25),
    }
    given: dict[str, Any] = {
        "device": "cuda:0", "environment": GPU, "readings": readings, "reasons": {},
        "counts": {"seed": 7},
    }  # fmt: skip
    return replace(ATTENTION, **given | fields)


def test_everything_that_a_checklist_asks_for() -> None:
    said = statement([on_gpu(), on_gpu(sizes={"b": 1, "l": 16, "d": 8, "n": 2})])
    for part in (
        "Example GPU (141 GiB memory, 132 multiprocessors, 50 MiB L2 cache, compute capability "
        "9.0, power limit 700 W, driver 580.1, MIG off)",
        "host: Example CPU (16 cores, 128 GiB main memory)",
        "GPU temperature 41 C, other processes on the GPU 0",
        "2 runs of 1 implementation of 1 mixer",
        "sizes b = 1; l = 8, 16; d = 8; n = 2, fp32",
        "Seeds: 7.",
        "Medians of latency with warm caches (calls back to back): 1.1 ms in 2 runs, 3 samples",
        "Why sampling stopped: median settled (2).",
        # 2 x 4 calls a sample x (1 + 1.1 + 1.2) ms
        "The timed calls took 26.4 ms in all",
        "Peak memory of a call beyond weights and inputs: 1,048,576 B in 2 runs",
        "Gross energy a call: 250 mJ in 2 runs, 5 trials each, method: counter; the sensor's "
        "systematic error of 5% comes on top",
        "95 % confidence intervals of the median, by order statistics",
        "the widest is 3.6% of its median",  # (1.14 - 1.1) / 1.1
        "Student's t, which takes them as normal; the widest is 2.0% of its mean to one side",
        "Labels of readings: power-capped (2)",
        "Software: Python 3.12.1, PyTorch 2.11.0+cu130, CUDA 13.0, cuDNN 91300, Triton 3.6.0, "
        "costmodel 0.1.0, revision abc123.",
        "float32_matmul_precision = highest; OMP_NUM_THREADS=8",
        OUTSIDE,
    ):
        assert part in said
    assert "Environment" not in said and "Not recorded" not in said and "Not measured" not in said


def test_what_was_not_measured_is_said_with_its_reason() -> None:
    said = statement([UNTIMED])
    assert "Not measured: latency (the call failed while it was timed: out of memory)" in said
    assert "; memory (the call failed while its memory" in said
    assert "; energy (NVML: library not found" in said
    assert "how long the timed calls took" in said
    assert "disturbances, " in said
    assert "main memory not recorded" in said
    assert "the version of Python, the version of PyTorch, the version of costmodel." in said
    assert "Not recorded: seeds, " in said and "the revision of costmodel, " in said
    assert "Error bars" not in said


def test_a_part_without_energy_is_counted() -> None:
    said = statement([on_gpu(), on_gpu(readings={}, reasons={"energy": "MIG mode is on"})])
    assert "energy in 1 run (MIG mode is on)" in said


def test_a_gpu_without_its_software_says_so() -> None:
    bare = {key: value for key, value in GPU.items() if key not in ("cuda", "cudnn", "triton")}
    assert "the version of CUDA, the version of cuDNN, the version of Triton." in statement(
        [on_gpu(environment=bare)]
    )


def test_a_latency_without_interval_is_counted() -> None:
    assert "an interval of 2 latencies" in statement([ATTENTION, ATTENTION])


def test_a_busy_time_is_an_estimate_and_no_median() -> None:
    ends = {"ci_low": 1e-3, "ci_high": 1.2e-3, "labels": ["preempted"], "grade": "busy"}
    timed = latency(1e-3, 1.1e-3, 1.2e-3, **ends)
    said = statement([on_gpu(readings={"latency": timed})])
    assert "Estimates of a busy machine (each a low quantile of short timed intervals," in said
    assert "without a confidence): with warm caches 1.1 ms in 1 run, 3 samples each." in said
    assert "Medians of latency" not in said and "95 %" not in said
    processes = [{"process": k, "value": 1e-3, "samples": [1e-3]} for k in range(3)]
    spanning = latency(1e-3, 1.1e-3, 1.2e-3, **ends, processes=processes)
    assert "Error bars" not in statement([on_gpu(readings={"latency": spanning})])


def test_a_time_of_one_sample_is_no_estimate_of_a_busy_machine() -> None:
    once = {"grade": "busy", "labels": ["1 sample"], "ci_low": None, "ci_high": None}
    timed = Reading("latency", 3.0, "s", (3.0,), {**once, "n": 1})
    said = statement([on_gpu(readings={"latency": timed})])
    assert "Latency with warm caches, without an interval: 3 s in 1 run, 1 sample each." in said
    assert "busy machine" not in said and "Medians of latency" not in said


def test_memory_that_did_not_repeat_is_told() -> None:
    loose = Reading("peak_memory", 8, "B", (8.0, 9.0), {"agree": False})
    said = statement([on_gpu(readings={"peak_memory": loose})])
    assert "Repeated runs did not agree to the byte in 1 run." in said


def test_failed_runs_are_counted_by_kind() -> None:
    lost = on_gpu(readings={}, failure={"kind": "out of memory"})
    assert "Failed: 1 of them: out of memory (1)." in statement([on_gpu(), lost])


def test_environments_are_told_apart() -> None:
    said = statement([on_gpu(), on_gpu(environment=GPU | {"torch": "2.6.0"}), on_gpu()])
    first, second, outside = said.strip().split("\n\n")
    assert first.startswith("Compute resources. Environment 1 of 2. ") and "2 runs" in first
    assert second.startswith(
        "Environment 2 of 2, which differs from the first in torch: 2.11.0+cu130 and 2.6.0. "
    )
    assert "1 run of" in second
    assert outside == OUTSIDE


def test_temperature_tells_no_environments_apart_and_boards_are_counted() -> None:
    warm = GPU | {"state": {"temperature_C": 60}, "gpu": GPU["gpu"] | {"uuid": "GPU-2"}}
    said = statement([on_gpu(), on_gpu(environment=warm)])
    assert "Environment" not in said
    assert "2 boards of the type Example GPU" in said
    assert "GPU temperature 41 to 60 C" in said


def test_records_of_older_versions_join_those_that_know_more() -> None:
    old = {"torch": "2.11.0+cu130", "gpu": None, "device": "cuda", "package": None}
    (group,) = machine_groups([on_gpu(environment=old), on_gpu()])
    assert group.fact("package") == "0.1.0" and group.fact("gpu.driver") == "580.1"


def test_groups_are_those_of_comparing_every_pair() -> None:
    """Facts are known or not, alike or not; a set of variables is complete where there is one."""
    drawn = random.Random(5)
    values: dict[str, list[Any]] = {
        "torch": [None, "2.11", "2.12"],
        "cores": [None, 2, 4],
        "caches": [None, {"L1": 1}, {"L1": 2, "L2": 3}, {"L2": 4}],
        "variables": [{}, {"A": "1"}, {"A": "2", "CUDA_VISIBLE_DEVICES": "0"}, {"A": None}],
        "gpu": [None, {"uuid": "a", "driver": "1"}, {"uuid": "b"}, {"driver": "2"}],
        "settings": [{"list": [1, 2]}, {"list": [1, 3]}, {}],
        "state": [{"load_average": 1}, {"load_average": 2}],
    }
    records = []
    for _ in range(150):
        known = {name: drawn.choice(each) for name, each in values.items() if drawn.random() < 0.8}
        records.append(on_gpu(environment=known))
    found: list[list[Measurement]] = []
    for record in records:
        fitting = (
            group
            for group in found
            if not any(environment_differences(record.environment, r.environment) for r in group)
        )
        if (group := next(fitting, None)) is not None:
            group.append(record)
        else:
            found.append([record])
    assert [list(group.records) for group in machine_groups(records)] == found
    assert 5 < len(found) < 100


def test_markdown_and_latex_print_the_same_words() -> None:
    record = on_gpu(environment=GPU | {"device_name": "GPU_A*100 #1 & 50%"})
    markdown, latex = (printed(document([record]), name) for name in ("markdown", "latex"))
    assert markdown.startswith("**Compute resources.** Measurements ran on GPU_A\\*100 #1 & 50%")
    assert "\\textbf{Compute resources.} Measurements ran on GPU\\_A*100 \\#1" in latex
    assert "50\\%" in latex and "float32\\_matmul\\_precision" in latex
    assert "?" not in latex


def test_the_recorded_run_of_the_project() -> None:
    records, _ = records_of([RUNS])
    said = statement(records)
    assert f"{len(records)} runs of" in said
    assert "energy (NVML" in said
    assert records[0].environment["revision"] in said


def test_no_records_are_refused() -> None:
    with pytest.raises(ValueError, match="one record or more"):
        statement([])


def test_launch_bound_records_of_fewer_facts() -> None:
    assert "Gross energy a call: 1.23 mJ in 1 run, 1 trial each" in statement([LAUNCH_BOUND])


# What torch.compile made


def test_compiled_runs_and_their_compiling_are_said() -> None:
    seconds = (30.25, 12.0)
    made = [
        on_gpu(
            readings={**on_gpu().readings, "compile": Reading("compile", value, "s", (value,))},
            sweep={"options": {"compile": True}},
        )
        for value in seconds
    ]
    said = statement(made)
    assert (
        "In all runs latency and energy are of what torch.compile made of the module; memory and "
        "operations are of the module itself." in said
    )
    assert "Compiling took 12 s to 30.25 s in 2 runs, which no latency includes." in said
    assert "In 2 of 3 runs latency" in statement([*made, on_gpu()])
    assert "torch.compile" not in statement([on_gpu()])


def test_a_compilation_that_failed_is_said() -> None:
    lost = on_gpu(
        readings={}, reasons={"compile": "torch.compile: InvalidCxxCompiler: no g++"},
        sweep={"options": {"compile": True}},
    )  # fmt: skip
    said = statement([on_gpu(), lost])
    assert "In 1 of 2 runs latency" in said and "Compiling took" not in said
    assert "; compiling (torch.compile: InvalidCxxCompiler: no g++)" in said


def test_a_wide_interval_is_a_factor() -> None:
    wide = latency(1e-3, 1.1e-3, 1.2e-3, ci_low=1e-3, ci_high=28.6e-3, block=4, labels=[])
    said = statement([on_gpu(readings={"latency": wide})])
    assert "the widest is 25 times its median to one side" in said  # (28.6 - 1.1) / 1.1


def states(before: dict[str, Any], last: dict[str, Any]) -> str:
    """What is said of records with these states."""
    return statement([on_gpu(environment={**GPU, "state_before": before, "state": last})])


def test_both_states_are_said_where_they_differ() -> None:
    cold = {"temperature_C": 31, "sm_clock_MHz": 345, "other_processes": 0}
    warm = {"temperature_C": 58, "sm_clock_MHz": 1980, "other_processes": 0}
    said = states(cold, warm)
    assert (
        "When the records were written: GPU temperature 58 C, SM clock 1980 MHz, other processes "
        "on the GPU 0. Before anything ran: GPU temperature 31 C, SM clock 345 MHz." in said
    )
    assert "Before anything ran" not in states(warm, warm)


def test_others_that_came_meanwhile_are_said() -> None:
    said = states({"other_processes": 0}, {"other_processes": 2})
    assert "When the records were written: other processes on the GPU 2. " in said
    assert "Before anything ran: other processes on the GPU 0." in said


def test_what_one_state_alone_tells_is_said() -> None:
    assert "Before anything ran: SM clock 345 MHz." in states({"sm_clock_MHz": 345}, {})
    assert "Before anything ran" not in states({}, {"sm_clock_MHz": 345})


def test_states_of_several_records_are_said_as_ranges() -> None:
    records = [
        on_gpu(environment={**GPU, "state_before": {"temperature_C": a}, "state": GPU["state"]})
        for a in (31, 35)
    ]
    assert "Before anything ran: GPU temperature 31 to 35 C." in statement(records)
