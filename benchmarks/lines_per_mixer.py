"""How many lines does each mixer take, and what does the second one of a file cost?

    python -m benchmarks.lines_per_mixer

A file's top-level statements (functions, classes, constants) that only one mixer uses are its own;
what several use, and the file's head, are counted with the first that the file names. Equations and
module are counted, with their docstrings and without blank lines; tests are not: a file tests all.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from costmodel.language.options import defined, joined
from costmodel.mixers import builtin, file_of, names
from profiler.modules.registry import implementations

ROOT = Path(__file__).parent.parent


def equations(file: str) -> dict[str, str]:
    """The names in a file of equations -> the mixers that they are, in the file's order."""
    return {
        own: mixer.name for own, mixer in defined(import_module(f"costmodel.mixers.{file}")).items()
    }


def modules(mixers: Mapping[str, str]) -> dict[str, str]:
    """The classes of modules -> their mixers, with each option by itself among them."""
    return {
        described.module.__name__: mixer
        for mixer in mixers.values()
        for variant in (mixer, *(joined(mixer, [option]) for option in builtin(mixer).offers))
        for described in implementations(variant).values()
    }


def lines(path: Path, mixers: Mapping[str, str]) -> dict[str, int]:
    """Mixer -> its own lines of a file, given the names in the file that belong to each; the first
    has what is shared too."""
    text = path.read_text(encoding="utf-8")
    defining: dict[str, list[ast.stmt]] = {}
    for statement in ast.parse(text).body:
        for name in bound(statement):
            defining.setdefault(name, []).append(statement)
    used: dict[str, set[ast.stmt]] = {}
    for name, mixer in mixers.items():
        found = used.setdefault(mixer, set())
        waiting = list(defining.get(name, ()))
        while waiting:
            if (statement := waiting.pop()) not in found:
                found.add(statement)
                read = [n.id for n in ast.walk(statement) if isinstance(n, ast.Name)]
                waiting += [other for name in read for other in defining.get(name, ())]
    every = [number for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    own = {
        mixer: len(
            {
                number
                for statement in found.difference(*(s for m, s in used.items() if m != mixer))
                for number in every
                if first(statement) <= number <= (statement.end_lineno or 0)
            }
        )
        for mixer, found in used.items()
    }
    leader = next(iter(own))
    return own | {leader: own[leader] + len(every) - sum(own.values())}


def bound(statement: ast.stmt) -> list[str]:
    """The names that a top-level statement gives a meaning."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return [statement.name]
    stored = [n for n in ast.walk(statement) if isinstance(n, ast.Name)]
    return [name.id for name in stored if isinstance(name.ctx, ast.Store)]


def first(statement: ast.stmt) -> int:
    """The first line of a statement, its decorators included."""
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(found.lineno for found in decorators)])


def main() -> None:
    """Print one line per mixer, file by file, and how many later ones take less than half."""
    later = short = 0
    print(f"{'file':<18} {'mixer':<30} equations  module  of the first")
    for file in dict.fromkeys(file_of(name) or "" for name in names()):
        mixers = equations(file)
        written = lines(ROOT / "costmodel/mixers" / f"{file}.py", mixers)
        built = lines(ROOT / "profiler/mixers" / f"{file}.py", modules(mixers))
        leader = next(iter(written))
        for mixer in written:
            share = (written[mixer] + built[mixer]) / (written[leader] + built[leader])
            later, short = later + (mixer != leader), short + (share < 1 / 2)
            print(f"{file:<18} {mixer:<30} {written[mixer]:>9} {built[mixer]:>7} {share:>12.0%}")
    print(f"{short} of {later} later mixers of a file take less than half of its first")


if __name__ == "__main__":
    main()
