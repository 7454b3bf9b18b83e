"""Are hardware counters read as ncu prints them, with a reason for every failure?

A stand-in for ncu (`tests/ncu`) answers; nothing runs on a GPU here.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import costmodel as cm
from profiler.hardware import child, counts, ncu
from profiler.hardware.ncu import HOST_OPTION, UPDATE, NcuRun, run_ncu
from profiler.hardware.result import HardwareCounts
from profiler.host.children import last_line, run_child
from profiler.mixers.self_attention import ExplicitSelfAttention
from profiler.modules import implementations
from profiler.records.reading import Reading, Unavailable
from profiler.records.store import append
from profiler.run import hardware_counters
from profiler.run.hardware_counters import hardware_counts
from profiler.run.measure import measure
from profiler.run.request import Request, request_json
from profiler.sweep.recorded import recorded as records_of
from tests.fake_devices import refused
from tests.ncu import OPCODES, READ, SASS, TF32, WRITE, XU, kernel, runs, stand_in
from tests.profiler.test_host import host
from tests.profiler.test_measure import BRIEF
from tests.stand_ins import Instead
from tests.typed import Capture, printed

CALL = [
    kernel(
        "gemm",
        {SASS.format("ffma"): 1_048_576, SASS.format("fmul"): 512, READ: 8_192, WRITE: 4_096},
        {"FFMA": 1_048_576, "FMUL": 512, "IMAD": 77},
        grid="(8, 1, 1)",
    ),
    kernel(
        "softmax",
        {SASS.format("fadd"): 100, SASS.format("fmul"): 50, XU: 70, READ: 1_024, WRITE: 512},
        {"FADD.FTZ": 60, "FADD": 40, "FMUL": 50, "MUFU.EX2": 50, "MUFU.RCP": 20, "FMNMX": 30},
    ),
]


def forget() -> None:
    """What is found out once a process."""
    counts.calibration.cache_clear()
    ncu.abilities.cache_clear()


@pytest.fixture(autouse=True)
def _anew() -> None:
    """Nothing is known of an earlier probe or calibration."""
    forget()


def request(dtype: str = "fp32", device: str = "cuda", **fields: Any) -> Request:
    """Of a mixer with two products of matrices, on a GPU."""
    mixer = cm.mixer("self-attention")
    chosen = implementations(mixer)["explicit"]
    sizes = {"b": 1, "l": 5, "d": 6, "n": 2}
    return Request(mixer, chosen, sizes, "training", dtype, device, **{"counters": True} | fields)


def read(asked: Request) -> HardwareCounts:
    """Counts that were read."""
    found = hardware_counts(asked)
    assert isinstance(found, HardwareCounts), found
    return found


Standing = Callable[..., Path]


@pytest.fixture
def standing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Standing:
    """A stand-in for ncu, for `CALL` unless other kernels are given."""

    def place(call: Any = CALL, **behaviour: Any) -> Path:
        return stand_in(monkeypatch, tmp_path, call, **behaviour)

    return place


# What is read


def test_a_call_is_counted_by_instruction_by_opcode_and_by_its_bytes(standing: Standing) -> None:
    standing()
    found = read(request())
    assert found.chip == "GH100" and found.version == "2025.3.1.0"
    assert found.executed is not None
    nothing = dict.fromkeys(found.executed, 0)
    assert found.executed == nothing | {"ffma": 1_048_576, "fmul": 562, "fadd": 100, "xu": 70}
    assert found.opcodes == {
        "FADD": 40, "FADD.FTZ": 60, "FFMA": 1_048_576, "FMNMX": 30, "FMUL": 562, "IMAD": 77,
        "MUFU.EX2": 50, "MUFU.RCP": 20,
    }  # fmt: skip
    both = {"read": 9_216, "write": 4_608}
    assert found.moved == {"cold": both, "in_sequence": both}
    assert found.to_json()["mufu"] == {"EX2": 50, "RCP": 20}
    assert found.reasons == {} and found.labels == []
    assert found.kernels == {
        ("gemm", "(8, 1, 1)", "(128, 1, 1)"): 1, ("softmax", "(4, 1, 1)", "(128, 1, 1)"): 1,
    }  # fmt: skip
    cold = found.readings()["dram_bytes_cold"]
    assert isinstance(cold, Reading) and (cold.value, cold.unit) == (13_824, "B")
    assert {"read": 9_216, "write": 4_608, "ncu": "2025.3.1.0"}.items() <= cold.details.items()


def test_a_probe_then_three_runs_of_the_call_then_two_of_kernels_that_are_known(
    standing: Standing,
) -> None:
    """Bytes in sequence in one pass, alone; clocks are left alone; nothing is timed."""
    seen = standing()
    read(request())
    probed, *made = runs(seen)
    assert probed["kind"] == "probe" and "'cuda'" in probed["program"][-1]
    assert [(run["kind"], len(run["ranges"]) > 1) for run in made] == [
        ("counters", False), ("in_sequence", False), ("opcodes", False),
        ("counters", True), ("opcodes", True),
    ]  # fmt: skip
    for run in made:
        given = run["options"]
        assert given["--clock-control"] == "none" and given["--print-units"] == "base"
        assert given["--replay-mode"] == "kernel" and given["--page"] == "raw"
        assert "duration" not in given["--metrics"] and "time" not in given["--metrics"]
        assert "/" not in "".join(run["ranges"])  # a slash would ask for pushed ranges
        assert run["program"][1:4] == ["-P", "-m", "profiler.hardware.child"]
    counters, sequence, opcodes = made[:3]
    assert counters["options"]["--cache-control"] == "all"
    assert sequence["options"]["--cache-control"] == "none"
    assert sequence["options"]["--metrics"] == f"{READ},{WRITE}"
    assert opcodes["options"]["--print-metric-instances"] == "details"
    asked = json.loads(counters["program"][4])["of"]
    assert asked["mixer"] == "self-attention" and asked["seed"] == 0


def test_a_calibration_is_taken_once_a_process_and_type_of_number(standing: Standing) -> None:
    seen = standing()
    read(request())
    read(request())
    read(request("bf16"))
    calibrations = [run for run in runs(seen) if len(run["ranges"]) > 1]
    assert [json.loads(run["program"][4])["dtype"] for run in calibrations] == [
        "fp32", "fp32", "bf16", "bf16",
    ]  # fmt: skip


def test_the_command_is_kept_without_paths(standing: Standing) -> None:
    standing()
    found = read(request())
    assert set(found.commands) == {"counters", "in_sequence", "opcodes"}
    for said in found.commands.values():
        assert said.startswith("ncu --target-processes all") and "--log-file ncu.csv python" in said
        assert "profiler.hardware.child" in said and os.sep + "bin" not in said


def test_an_unknown_chip_is_a_reason(standing: Standing, monkeypatch: pytest.MonkeyPatch) -> None:
    standing()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (13, 5))
    said = refused(hardware_counts(request()))
    assert "compute capability 13.5" in said and "9.0 (GH100)" in said


def test_no_row_of_units_and_scaled_units(standing: Standing) -> None:
    standing(counters={"units": {READ: "Kbyte"}}, in_sequence={"no_units": True})
    found = read(request())
    assert found.moved["cold"]["read"] == found.moved["in_sequence"]["read"] == 9_216


# What can go wrong


FORBIDDEN = {"mode": "fault", "said": "==ERROR== ERR_NVGPUCTRPERM - no permission"}
BUSY = {"mode": "fault", "said": "==ERROR== the driver resource was unavailable. Ensure that no"}


@pytest.mark.parametrize(
    ("behaviour", "said", "fix"),
    [
        ({"mode": "fault", "said": "==ERROR== LibraryNotLoaded"}, "sandbox", "leave the sandbox"),
        ({"mode": "fault", "said": "unrecognised option '--page'"}, "too old", UPDATE),
        ({"mode": "fault", "said": "Failed to load Nsight Compute CUDA modules"}, "older", UPDATE),
        ({"mode": "fault", "said": "cannot open lock file"}, "another user", "TMPDIR"),
        ({"absent": [ncu.METRIC]}, f"no value of {ncu.METRIC}", UPDATE),
        ({"mode": "report", "text": ""}, "wrote no table", ""),
    ],
)  # fmt: skip
def test_a_machine_that_lets_nothing_be_read_is_asked_once(
    standing: Standing, behaviour: dict[str, Any], said: str, fix: str
) -> None:
    seen = standing(probe=behaviour)
    for _ in range(2):
        found = refused(hardware_counts(request()))
        assert found.startswith("hardware counters were not read")
        assert said in found and fix in found
    assert [run["kind"] for run in runs(seen)] == ["probe"]


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        ({"mode": "fault", "said": "==WARNING== No kernels were profiled.", "status": 0},
         "ncu saw no kernel"),
        ({"mode": "fault", "said": "==WARNING== No kernels were profiled.", "in_report": True},
         "ncu saw no kernel"),
        ({"mode": "fault", "said": "ValueError: out of everything"},
         "out of everything (exit status 1)"),
        ({"mode": "fault", "said": "", "status": 9}, "it said nothing (exit status 9)"),
        ({"mode": "report", "text": "==PROF== Disconnected\n"}, "wrote no table"),
        ({"left_out": [XU]}, f"no column {XU}"),
    ],
)  # fmt: skip
def test_a_call_that_cannot_be_read_is_a_reason_and_nothing_else_is_run(
    standing: Standing, behaviour: dict[str, Any], said: str
) -> None:
    seen = standing(counters=behaviour)
    assert said in refused(hardware_counts(request()))
    assert [run["kind"] for run in runs(seen)] == ["probe", "counters"]


@pytest.mark.parametrize(("fault", "fix"), [(FORBIDDEN, HOST_OPTION), (BUSY, "dcgmi profile")])
def test_instructions_are_counted_by_patched_code_where_counters_may_not_be_read(
    standing: Standing, fault: dict[str, Any], fix: str
) -> None:
    seen = standing(probe=fault)
    found = read(request())
    assert found.executed is None and found.moved == {} and found.opcodes is not None
    for missing in ("executed", "cold", "in_sequence"):
        assert fix in found.reasons[missing]
    assert [run["kind"] for run in runs(seen)] == ["probe", "probe_opcodes", "opcodes", "opcodes"]
    readings = found.readings()
    assert all(isinstance(each, Unavailable) and fix in each.reason for each in readings.values())
    assert found.to_json()["executed"] is None


def test_where_nothing_may_be_read_the_fix_is_the_reason(standing: Standing) -> None:
    standing(probe=FORBIDDEN, probe_opcodes=FORBIDDEN)
    assert HOST_OPTION in refused(hardware_counts(request()))


def test_a_container_is_told_its_own_fix(standing: Standing, tmp_path: Path) -> None:
    standing(counters=FORBIDDEN)
    inside = host(tmp_path, {".dockerenv": ""})
    found = run_ncu("ncu", NcuRun("counters", (READ,)), {}, host=inside)
    assert "--cap-add=SYS_ADMIN" in found.reason  # type: ignore[union-attr]  # it was refused


def test_a_run_past_its_limit_is_stopped_with_what_it_started(standing: Standing) -> None:
    """The stand-in starts a process of its own and sleeps with it for a minute and more."""
    seconds = 61.25
    seen = standing(counters={"mode": "hang", "seconds": seconds})
    before = time.monotonic()
    found = run_ncu("ncu", NcuRun("counters", (READ,)), {}, limit_s=1.0)
    assert "did not end within 1 s" in found.reason  # type: ignore[union-attr]  # it was refused
    assert time.monotonic() - before < seconds / 2
    assert runs(seen) and not asleep(seconds)


def test_what_left_the_session_is_not_waited_for(instead: Instead) -> None:
    """It holds the output open for 6 s."""
    instead(last_words_s=0.2)
    apart = "[sys.executable, '-c', 'import time; time.sleep(6)']"
    code = f"import subprocess, sys, time; subprocess.Popen({apart}, start_new_session=True)"
    before = time.monotonic()
    done = run_child((sys.executable, "-c", f"{code}; time.sleep(60)"), 1.0, {})
    assert done.status is None and time.monotonic() - before < 5


def asleep(seconds: float) -> list[str]:
    """The processes that were started to sleep for so long."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(entry.read_bytes().decode(errors="replace"))
    return [words for words in found if f"time.sleep({seconds})" in words]


def test_an_interrupt_stops_what_was_started() -> None:
    """What it started is in a session of its own, which the keyboard does not reach."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    seconds = 62.75
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_child((sys.executable, "-c", f"import time; time.sleep({seconds})"), 60.0, {})
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not asleep(seconds)


def test_what_the_chip_does_not_have_is_a_reason(standing: Standing) -> None:
    standing(counters={"absent": [TF32]}, in_sequence={"absent": [WRITE]})
    found = read(request())
    assert TF32 in found.reasons["tensor src_tf32_dst_fp32"]
    assert found.executed is not None and "tensor src_tf32_dst_fp32" not in found.executed
    assert WRITE in found.reasons["in_sequence"] and "in_sequence" not in found.moved
    assert "cold" in found.moved


def test_a_missing_value_that_is_needed_leaves_out_all_counters(standing: Standing) -> None:
    standing(counters={"absent": [SASS.format("ffma")]})
    found = read(request())
    assert found.executed is None
    assert SASS.format("ffma") in found.reasons["executed"]
    assert found.opcodes is not None and "cold" in found.moved


@pytest.mark.parametrize("behaviour", [{"absent": [OPCODES]}, {"sums_alone": True}])
def test_opcodes_that_are_not_told_are_no_zeros(
    standing: Standing, behaviour: dict[str, Any]
) -> None:
    standing(opcodes=behaviour)
    found = read(request())
    assert found.opcodes is None and OPCODES in found.reasons["opcodes"]
    assert found.executed is not None and found.calibration.functions == {}


def test_another_tool_is_kept_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ncu.INJECTED, raising=False)
    assert ncu.INJECTED not in ncu.child_variables()
    monkeypatch.setenv(ncu.INJECTED, "libtool.so")
    assert ncu.child_variables()[ncu.INJECTED] == "none"


def test_runs_of_other_kernels_are_left_out(standing: Standing) -> None:
    standing(opcodes={"extra": 2})
    found = read(request())
    assert found.opcodes is None
    assert found.reasons["opcodes"].startswith("two runs of the call launched 4 and 2 kernels")
    assert found.executed is not None


def test_no_ncu_and_no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("PATH", "")
    for asked in (request(), request(counters=False), request(device="cpu")):
        said = refused(hardware_counts(asked))
        assert "torch finds no NVIDIA GPU" in said and "ncu is not on PATH" in said
        assert "permission" in said


def test_nothing_is_run_where_counters_are_not_asked_for(standing: Standing) -> None:
    seen = standing()
    assert "--counters" in refused(hardware_counts(request(counters=False)))
    assert "the device is cpu" in refused(hardware_counts(request(device="cpu")))
    assert not seen.exists()


# What runs under it


def test_the_process_under_ncu_makes_one_steady_call_in_its_range(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same call as elsewhere, on a CPU in place of a GPU; ranges are started and ended."""
    seen: list[str] = []

    def started(name: str) -> int:
        seen.append(name)
        return 7

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: seen.append("wait"))
    monkeypatch.setattr(torch.cuda.nvtx, "range_start", started)
    monkeypatch.setattr(torch.cuda.nvtx, "range_end", lambda id_: seen.append(f"end {id_}"))
    asked = request_json(request(device="cpu"))
    forward = ExplicitSelfAttention.forward

    def counted(self: Any, x: torch.Tensor) -> torch.Tensor:
        seen.append("call")
        return forward(self, x)

    monkeypatch.setattr(ExplicitSelfAttention, "forward", counted)
    child.run_asked({"device": "cpu", "make": hardware_counters.MAKE, "of": asked})
    assert seen == ["call"] * child.WARMUPS + ["wait", "costmodel", "call", "wait", "end 7"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU it does not fail")
def test_the_process_under_ncu_says_why_it_fails() -> None:
    """Started as ncu starts it, without ncu."""
    asked = json.dumps(
        {
            "device": "cpu",
            "make": hardware_counters.MAKE,
            "of": request_json(request(device="cpu")),
        }
    )
    program = (sys.executable, "-P", "-m", ncu.CHILD, asked)
    done = run_child(program, 120.0, ncu.child_variables())
    assert done.status == 1
    assert "CUDA" in last_line(done) or "NVIDIA" in last_line(done)


# Kept and shown


def test_a_record_keeps_what_was_read(
    standing: Standing, monkeypatch: pytest.MonkeyPatch, instead: Instead, tmp_path: Path
) -> None:
    standing()
    found = read(request())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    instead(hardware_counts=lambda asked, note: found)
    record = measure(request(device="cpu"), limits=BRIEF)
    path = tmp_path / "a.jsonl"
    append(path, record)
    ((again,), _) = records_of([path])
    kept = dict(again.counts["hardware"])
    assert kept.pop("products")[0] == [1, 5, 6, 6]
    assert kept == json.loads(json.dumps(found.to_json()))
    assert again.readings["dram_bytes_cold"].value == 13_824
    assert "hardware" not in again.reasons
    assert again.counts["hardware"]["metrics"]["opcodes"] == OPCODES


def profiled(capsys: Capture, *words: str) -> str:
    """What the command prints of one implementation, small."""
    small = ("--impl", "toeplitz", "--l", "3", "--d", "4", "--seconds", "0.02", "--no-energy")
    return printed(capsys, "profile", "me", *small, *words)


def test_the_command_shows_what_was_read(
    standing: Standing, monkeypatch: pytest.MonkeyPatch, instead: Instead, capsys: Capture
) -> None:
    standing(counters={"absent": [WRITE]})
    found = read(request())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    instead(hardware_counts=lambda asked, note: found)
    out = profiled(capsys, "--device", "cpu", "--counters")
    header = next(line for line in out.splitlines() if "executed" in line)
    assert "sequence" in header
    row = next(line for line in out.splitlines() if "toeplitz" in line)
    executed = 2 * 1_048_576 + 562 + 100 + 50 + 20 + 30
    assert f"{executed:,}" in row and "13,824 B" in row
    assert f"ncu has no value of {WRITE}" in out


def test_the_command_says_why_nothing_was_read(capsys: Capture) -> None:
    """On a CPU, and not at all where nobody asked."""
    out = profiled(capsys, "--device", "cpu", "--counters")
    assert "hardware counters were not read" in out and "executed" in out
    plain = profiled(capsys, "--device", "cpu")
    assert "executed" not in plain and "hardware counters" not in plain


def test_the_option_is_part_of_what_was_asked(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "a.jsonl"
    profiled(capsys, "--device", "cpu", "--counters", "-o", str(path))
    ((record,), _) = records_of([path])
    assert record.sweep["options"]["counters"] is True
    assert "ncu" in record.reasons["hardware"]


def test_a_cpu_is_measured_as_before(instead: Instead) -> None:
    """No process is started, nothing of counters is in the record but the reason."""
    instead(run_ncu=lambda *_, **__: pytest.fail("it was started"))
    record = measure(request(device="cpu", counters=False), limits=BRIEF)
    assert "hardware" not in record.counts and "ncu" in record.reasons["hardware"]


def test_fp32_that_tensor_cores_rounded_to_tf32_says_so(standing: Standing) -> None:
    metric = "sm__ops_path_tensor_src_tf32_dst_fp32.sum"
    standing([kernel("gemm", values={**CALL[0]["values"], metric: 4_096})])
    found = read(request())
    assert found.labels == ["4,096 operations of tensor cores on fp32 rounded to TF32"]
