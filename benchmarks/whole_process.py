"""How long do the plain table and that of every mixer take as whole processes, next to the bare
imports and next to fvcore?

python -m benchmarks.whole_process

The project's files are compiled first, as they are once it is installed.
"""

from __future__ import annotations

import compileall
import subprocess
import sys
from collections.abc import Callable

import cli
import costmodel
import profiler
from benchmarks.timing import environment, interleaved, ratio, spread

REPEATS = 21

IMPORTS = ("-c", "import sympy, typer, rich")
TABLE = ("-m", "cli", "table", "--d", "128", "--l", "128")
FVCORE = """
import warnings
warnings.simplefilter("ignore")
import torch
from fvcore.nn import FlopCountAnalysis
from profiler.modules import build, implementations

sizes = {"d": 128, "l": 128, "n": 8}
for mixer in MIXERS:
    described = next(iter(implementations(mixer).values()))
    module = build(described, sizes, device="cpu", dtype=torch.float32, seed=0)
    analysis = FlopCountAnalysis(module, torch.zeros(1, 128, 128))
    analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False).total()
"""
"""What fvcore needs: the same mixers as modules, their weights, and a run of each."""


def process(*arguments: str) -> Callable[[], None]:
    """A task that runs this Python to the end."""

    def run() -> None:
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)

    return run


def compiled() -> None:
    """Compile what is measured, where that has not been done."""
    for package in (costmodel, profiler):
        compileall.compile_dir(package.__path__[0], quiet=1)
    compileall.compile_file(cli.__file__, quiet=1)


def main() -> None:
    """Print medians and ratios."""
    from costmodel.mixers import DEFAULT

    compiled()
    fvcore = FVCORE.replace("MIXERS", repr(DEFAULT))
    tasks = {
        "costmodel table --d 128 --l 128": process(*TABLE),
        "costmodel table --all --d 128 --l 128": process(*TABLE, "--all"),
        'python -c "import sympy, typer, rich"': process(*IMPORTS),
        "fvcore on the same mixers": process("-c", fvcore),
    }
    found = interleaved(tasks, REPEATS)
    print(environment("sympy", "typer", "rich", "torch", "fvcore"))
    print(f"Whole processes, in turn, {REPEATS} times; mixers: {', '.join(DEFAULT)}\n")
    tables, others = list(found.items())[:2], list(found.items())[2:]
    for name, samples in found.items():
        print(f"{name:<40}{spread(samples)}")
    print()
    for table, own in tables:
        for name, samples in others:
            print(f"{table} / {name}: {ratio(own, samples):.2f}")


if __name__ == "__main__":
    main()
