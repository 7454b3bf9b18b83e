"""How long does it take to derive a training step of each type of published model?

python -m benchmarks.derived_models

Each type has the configuration that its class has by default, and a process of its own, without the
cache on disk. The processor time above that of `--help` is printed as a multiple of the bare
imports, which run beside it.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from pathlib import Path

from benchmarks.many_records import spent
from benchmarks.timing import environment
from benchmarks.whole_process import IMPORTS
from costmodel.networks.huggingface import READERS

SLOWEST = 8
"""How many of the slowest types are printed one by one."""


def main() -> None:
    """Print the median, and the types that take longest."""
    print(environment("sympy", "typer", "rich"))
    os.environ["COSTMODEL_CACHE"] = "0"
    begin = min(spent(["-m", "cli", "--help"])[0] for _ in range(5))
    imports = min(spent(IMPORTS)[0] for _ in range(5))
    found: dict[str, float] = {}
    refused: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for kind in sorted(READERS):
            path = Path(folder, f"{kind}.json")
            path.write_text(json.dumps({"model_type": kind}), encoding="utf-8")
            words = ("model", "--hf", str(path), "--phase", "training-step", "--format", "json")
            try:
                found[kind] = min(spent(["-m", "cli", *words])[0] for _ in range(2)) - begin
            except SystemExit:
                refused.append(kind)
    print(f"{len(found)} types; not by their defaults: {', '.join(refused) or 'none'}")
    print(f"--help {begin:.2f} s, bare imports {imports:.2f} s of processor time\n")
    median = statistics.median(found.values())
    print(f"{'median':<24}{median:6.2f} s; {median / imports:.2f} times the imports")
    for kind in sorted(found, key=lambda one: -found[one])[:SLOWEST]:
        print(f"{kind:<24}{found[kind]:6.2f} s; {found[kind] / imports:.2f} times the imports")


if __name__ == "__main__":
    main()
