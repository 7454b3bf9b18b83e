"""How long do the plain table, the list and the table of every mixer take as whole processes, next
to the bare imports and next to fvcore?

python -m benchmarks.whole_process

The project's files are compiled first, as an installation compiles them. A warm command finds its
answers on disk, a cold one begins with an empty folder of answers and fills it.
"""

from __future__ import annotations

import compileall
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

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


def process(*arguments: str, answers: Path | None = None, cold: bool = False) -> Callable[[], None]:
    """A task that runs this Python to the end; its derived answers are kept in a folder, which a
    cold task empties first."""
    kept = {"XDG_CACHE_HOME": str(answers)} if answers else {"COSTMODEL_CACHE": "0"}
    environment = os.environ | kept
    environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def run() -> None:
        if answers and cold:
            shutil.rmtree(answers, ignore_errors=True)
        command = [sys.executable, *arguments]
        subprocess.run(command, check=True, capture_output=True, env=environment)

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
    with tempfile.TemporaryDirectory() as folder:
        warm, cold = Path(folder, "warm"), Path(folder, "cold")
        tasks = {
            "costmodel table --d 128 --l 128, warm": process(*TABLE, answers=warm),
            "costmodel table --all --d 128 --l 128, warm": process(*TABLE, "--all", answers=warm),
            "costmodel table --all --d 128 --l 128, cold": process(
                *TABLE, "--all", answers=cold, cold=True
            ),
            "costmodel list, warm": process("-m", "cli", "list", answers=warm),
            'python -c "import sympy, typer, rich"': process(*IMPORTS),
            "fvcore on the same mixers": process("-c", fvcore),
        }
        found = interleaved(tasks, REPEATS)
    print(environment("sympy", "typer", "rich", "torch", "fvcore"))
    print(f"Whole processes, in turn, {REPEATS} times; mixers: {', '.join(DEFAULT)}\n")
    own_commands, others = list(found.items())[:4], list(found.items())[4:]
    for name, samples in found.items():
        print(f"{name:<45}{spread(samples)}")
    print()
    for table, own in own_commands:
        for name, samples in others:
            print(f"{table} / {name}: {ratio(own, samples):.2f}")


if __name__ == "__main__":
    main()
