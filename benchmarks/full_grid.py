"""Do all cases hold of the grids and random examples of which the suite runs a part?

    python -m benchmarks.full_grid -o RECORD [-- -n 2]

Every implementation at every size and in every element type, and every random example that a test
may draw: each test file with a grid or random examples, in a process of its own, with pytest's
words behind `--`. RECORD gets a line a file, with the commit that the file ran at. The same command
again runs the files whose line names another commit or a failure, and keeps every other line, so
that one sitting need not hold all. `--missing` runs only the files without a line that passed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.timing import environment
from profiler.host.environment import CHECKOUT, git_revision

PARTS = re.compile(r"mark\.grid\b|max_examples=examples\(")
"""How a test says that the suite runs a part of it."""


def files() -> Iterator[str]:
    """The test files of which the suite runs a part, relative to the checkout."""
    for path in sorted((CHECKOUT / "tests").rglob("test_*.py")):
        if PARTS.search(path.read_text(encoding="utf-8")):
            yield path.relative_to(CHECKOUT).as_posix()


def passed(record: Path) -> dict[str, str]:
    """File -> its line in a record, such as `f1c06c5e: 62 passed in 8.27s`, if the file passed."""
    lines = record.read_text(encoding="utf-8").splitlines() if record.exists() else []
    each = (line.partition(": ") for line in lines if line.startswith("tests/"))
    return {file: line for file, _, line in each if not refused(line)}


def refused(line: str) -> bool:
    """Whether a file's line says that a test failed, or that pytest did."""
    return "failed" in line or "error" in line


def main() -> int:
    """Run what the record lacks, and write the record anew after each file; 1 if a test failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", dest="record", type=Path, required=True)
    parser.add_argument("--missing", action="store_true")
    parser.add_argument("pytest", nargs="*", help="words for pytest, behind --")
    asked = parser.parse_args()
    commit = str(git_revision(CHECKOUT, {}))
    found, details = passed(asked.record), list[str]()
    for file in files():
        if file not in found or not (asked.missing or found[file].startswith(f"{commit}: ")):
            limit = ("-o", "faulthandler_timeout=3600")  # a case here may outlast the suite's limit
            words = ("-m", "pytest", "--grid", "-q", "--no-header", *limit, *asked.pytest, file)
            ran = subprocess.run(
                [sys.executable, *words], cwd=CHECKOUT, capture_output=True, text=True, check=False
            )
            lines = ran.stdout.splitlines() or ["error: " + ran.stderr.strip()]
            details += [line for line in lines if line.startswith(("FAILED", "ERROR"))]
            ended = lines[-1].strip("= ")
            if ran.returncode and not refused(ended):
                said = ran.stderr.strip().splitlines() or [ended]  # why the process ended
                ended = f"error {ran.returncode}: {said[-1]}"
            found[file] = f"{commit}: {ended}"
            print(f"{file}: {found[file]}", flush=True)
        rows = (f"{name}: {found[name]}" for name in files() if name in found)
        asked.record.write_text(
            "\n".join([environment(), *rows, *details]) + "\n", encoding="utf-8"
        )
    failed = [f"{name}: {line}" for name, line in found.items() if refused(line)]
    print("\n".join([*failed, *details]) or "none failed")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
