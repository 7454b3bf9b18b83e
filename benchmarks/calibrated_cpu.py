"""Measured times of ten mixers on this machine's CPU, and the times predicted after a calibration.

    python -m benchmarks.calibrated_cpu

The machine is calibrated once (`costmodel calibrate`, at most 60 s); then every mixer is measured
and held against the file (`costmodel reconcile --board`). No constant is fitted to the mixers. A
time that other programs disturbed is marked and counts in no median.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

MIXERS = ("self-attention", "differential-attention", "she", "he", "we", "me", "linear-attention",
          "fnet", "mlp-mixer", "lsa")  # fmt: skip
SIZES = ("--l", "512", "--d", "512", "--b", "1")


def asked(*words: str) -> str:
    """What a command of costmodel prints."""
    command = [sys.executable, "-m", "cli", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def line(row: dict[str, Any]) -> str:
    """The line of an implementation: measured and predicted milliseconds and the error."""
    start = f"{row['mixer']:<24}{row['implementation']:<12}"
    measured, predicted = row["latency_s"], row["predicted_s"]
    if measured is None or predicted is None:
        missing = "latency_s" if measured is None else "predicted_s"
        return f"{start}{row['reasons'][missing]}"
    disturbed = "" if quiet(row) else "  disturbed"
    error = 100 * (predicted / measured - 1)
    return f"{start}{1e3 * measured:>10.3f}{1e3 * predicted:>11.3f}{error:>+8.1f}{disturbed}"


def quiet(row: dict[str, Any]) -> bool:
    """Whether a row has both times, and nothing disturbed the measured one."""
    known = row["latency_s"] is not None and row["predicted_s"] is not None
    return known and row["latency_grade"] == "quiet"


def main() -> None:
    """Print a line for each implementation, and the median error of quiet times."""
    with tempfile.TemporaryDirectory() as folder:
        board = Path(folder) / "cpu.toml"
        asked("calibrate", "--device", "cpu", "--seconds", "60", "-o", str(board))
        figures = [one for one in board.read_text().splitlines() if " = " in one]
        words = ("--device", "cpu", "--dtype", "fp32", "--seconds", "1", "--no-energy")
        printed = asked("reconcile", *MIXERS, *SIZES, *words, "--board", str(board),
                        "--format", "json")  # fmt: skip
    rows = json.loads(printed)["summary"]
    print(*(one for one in figures if not one.startswith(("source", "label"))), sep="\n")
    print(f"\n{'mixer':<24}{'':<12}{'ms':>10}{'predicted':>11}{'error %':>8}")
    for row in rows:
        print(line(row))
    errors = [abs(row["predicted_s"] / row["latency_s"] - 1) for row in rows if quiet(row)]
    if errors:
        print(f"median error of {len(errors)} quiet times: {100 * statistics.median(errors):.1f} %")
    else:
        print("no time was quiet: run again when the machine has nothing else to do")


if __name__ == "__main__":
    main()
