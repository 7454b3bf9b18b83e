"""Do all cases hold of the grids and random examples of which the suite runs a part?

python -m benchmarks.full_grid | tee benchmarks/results/full_grid.txt

Every implementation at every size and in every element type, and every random example that a
test may draw.
"""

from __future__ import annotations

import subprocess
import sys

from benchmarks.timing import environment
from profiler.host.environment import CHECKOUT, git_revision


def main() -> int:
    """Print the commit, the machine and pytest's summary; return pytest's exit code."""
    print(f"commit {git_revision(CHECKOUT, {})}; {environment()}")
    words = ("-m", "pytest", "--grid", "-q", "--no-header", *sys.argv[1:])
    ran = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    lines = ran.stdout.splitlines()
    print(
        "\n".join(line for line in lines if line.startswith(("FAILED", "ERROR"))) or "none failed"
    )
    print(lines[-1] if lines else ran.stderr)
    return ran.returncode


if __name__ == "__main__":
    sys.exit(main())
