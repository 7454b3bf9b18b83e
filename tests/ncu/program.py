"""What does the simulated ncu do? It runs nothing and writes the table that a test gives it.

Modes of a run: `good`; `fault`, with the text that ncu says and the status that it ends with;
`hang`, with a process of its own beside it; `report`, a text in place of the table. What may stand
beside `good`: `absent` (metrics without a value), `left_out` (metrics without a column), `units`
(metric -> unit, the value divided), `extra` (launches more), `no_units` (no row of units),
`sums_alone` (no numbers by opcode).
"""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SASS = "sass__thread_inst_executed_true_per_opcode_with_modifier_all"
FACTORS = {"byte": 1, "inst": 1, "Kbyte": 1000}
HEAD = (
    "ID", "Process ID", "Process Name", "Host Name",
    "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg",
    "Id:Domain:Start/Stop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg",
    "Kernel Name", "Context", "Stream", "Block Size", "Grid Size", "Device", "CC",
)  # fmt: skip


def parsed(given: Sequence[str]) -> tuple[dict[str, str], list[str], list[str]]:
    """Options by name, the ranges, and the program."""
    options: dict[str, str] = {}
    ranges: list[str] = []
    words = list(given)
    while words and words[0].startswith("--"):
        name = words.pop(0)
        if name in ("--csv", "--nvtx"):
            continue
        value = words.pop(0)
        if name == "--nvtx-include":
            ranges.append(value)
        options[name] = value
    return options, ranges, words


def value_of(kernel: Mapping[str, Any], metric: str, behaviour: Mapping[str, Any]) -> str:
    """A cell."""
    if metric in behaviour.get("absent", ()):
        return "n/a"
    if metric == SASS:
        parts = kernel["opcodes"]
        listed = "; ".join(f"{name}: {number}" for name, number in parts.items())
        shown = parts and not behaviour.get("sums_alone")
        return f"{sum(parts.values()):,} ({listed})" if shown else str(sum(parts.values()))
    factor = FACTORS[behaviour.get("units", {}).get(metric, "inst")]
    number = kernel["values"].get(metric, 0)
    return f"{number // factor:,}" if factor == 1 else f"{number / factor:,.3f}"


def table(
    kernels: Sequence[Mapping[str, Any]], metrics: Sequence[str], behaviour: Mapping[str, Any]
) -> str:
    """The page of raw values."""
    shown = [metric for metric in metrics if metric not in behaviour.get("left_out", ())]
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow([*HEAD, *shown])
    units = behaviour.get("units", {})
    if not behaviour.get("no_units"):
        base = ["byte" if "bytes" in metric else "inst" for metric in shown]
        writer.writerow(
            [""] * len(HEAD) + [units.get(m, b) for m, b in zip(shown, base, strict=True)]
        )
    for place, kernel in enumerate(kernels):
        name = kernel.get("range", "costmodel")
        where = f'1  "<default domain>:{name}:none:none:none:none:none:none"'
        lead = [str(place), "7", "python", "127.0.0.1", "", where, kernel["name"], "1", "7"]
        cells = [value_of(kernel, metric, behaviour) for metric in shown]
        writer.writerow([*lead, "(128, 1, 1)", kernel.get("grid", "(4, 1, 1)"), "0", "9.0", *cells])
    return text.getvalue()


def main() -> int:
    """Play the part of ncu."""
    told = json.loads((Path(sys.argv[0]).resolve().parent / "ncu.json").read_text())
    if sys.argv[1:] == ["--version"]:
        print(
            "NVIDIA (R) Nsight Compute Command Line Profiler\nVersion 2025.3.1.0 (build 36398880)"
        )
        return 0
    options, ranges, program = parsed(sys.argv[1:])
    metrics = options["--metrics"].split(",")
    kind = "counters"
    if not ranges:
        kind = "probe_opcodes" if metrics == [SASS] else "probe"
    elif metrics == [SASS]:
        kind = "opcodes"
    elif options["--cache-control"] == "none":
        kind = "in_sequence"
    with open(told["seen"], "a") as seen:
        json.dump({"kind": kind, "options": options, "ranges": ranges, "program": program}, seen)
        seen.write("\n")
    behaviour = told.get(kind, {})
    calibrating = len(ranges) > 1
    if calibrating and "calibration_runs" in told:
        behaviour = told["calibration_runs"].get(kind, {})
    mode = behaviour.get("mode", "good")
    if mode == "hang":
        subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({behaviour['seconds']})"])
        time.sleep(behaviour["seconds"])
    report = Path(options.get("--log-file", "/dev/stdout"))
    if mode == "fault":
        said = behaviour["said"]
        if behaviour.get("in_report"):
            report.write_text(said)
        else:
            print(said)
        return int(behaviour.get("status", 1))
    if mode == "report":
        report.write_text(behaviour["text"])
        return 0
    kernels = told["calibration" if calibrating else "call"]
    if not ranges:
        kernels = [{"name": "fill", "values": {}, "opcodes": {"FADD": 1}, "range": ""}]
    kernels = kernels + kernels[:1] * behaviour.get("extra", 0)
    lines = "==PROF== Connected to process 7 (python)\n==PROF== Disconnected from process 7\n"
    report.write_text(lines + table(kernels, metrics, behaviour))
    return 0


if __name__ == "__main__":
    sys.exit(main())
