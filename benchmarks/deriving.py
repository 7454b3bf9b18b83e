"""How long does it take to derive every answer for every mixer, in a process that derived nothing
before?

python -m benchmarks.deriving

Each run is a process of its own, and imports are not in its times. Memory is searched for cycles as
rarely as in the command.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from multiprocessing import get_context

import sympy  # noqa: F401 - is loaded before the clock starts

from benchmarks.timing import environment, ratio, spread
from benchmarks.whole_process import IMPORTS, process
from cli import FEW_COLLECTIONS
from costmodel.errors import Unanswered, Unsupported
from costmodel.language.equations import Mixer
from costmodel.mixers import builtin, names
from costmodel.questions.count import count
from costmodel.questions.critical_path import critical_path
from costmodel.questions.order import order
from costmodel.questions.parameters import parameters
from costmodel.questions.span import span
from costmodel.questions.state import state
from costmodel.questions.traffic import traffic

REPEATS = 11


def orders(mixer: Mixer, phase: str, form: str) -> list[object]:
    """The dominant terms of the total and of every class."""
    counts = count(mixer, phase, form)
    return [order(exact) for exact in (counts.exact_total, *counts.classes.values())]


def expressions(mixer: Mixer, phase: str, form: str) -> list[object]:
    """The counts and the span as sympy expressions."""
    counts = count(mixer, phase, form)
    return [exact.expr for exact in counts.classes.values()] + [span(mixer, phase, form).expr]


def questions() -> Iterator[tuple[str, Callable[[], object]]]:
    """Everything that can be asked of every mixer, form and phase."""
    for mixer in map(builtin, names()):
        yield "parameters", partial(parameters, mixer)
        for form in mixer.forms:
            yield "state", partial(state, mixer, form)
            for phase in ("training", "inference"):
                for question in (count, critical_path, span, traffic, orders, expressions):
                    yield question.__name__, partial(question, mixer, phase, form)


def derive() -> dict[str, list[float]]:
    """Ask everything once; seconds of every answer per question."""
    spent: dict[str, list[float]] = {}
    for name, question in questions():
        start = time.perf_counter()
        with suppress(Unanswered, Unsupported):  # such as a form without one-token inference
            question()
        spent.setdefault(name, []).append(time.perf_counter() - start)
    return spent


def main() -> None:
    """Print the time per question and in all, and how many times the imports that is."""
    runs, imports = [], []
    with ProcessPoolExecutor(
        1, get_context("spawn"), gc.set_threshold, (FEW_COLLECTIONS,), max_tasks_per_child=1
    ) as fresh:
        for _ in range(REPEATS + 1):
            start = time.perf_counter()
            process(*IMPORTS)()
            imports.append(time.perf_counter() - start)
            runs.append(fresh.submit(derive).result())
    del runs[0], imports[0]  # these read files from the disk
    asked = sum(map(len, runs[0].values()))
    in_all = [sum(map(sum, spent.values())) for spent in runs]
    print(environment("sympy", "typer", "rich"))
    print(f"{asked} questions, {len(names())} mixers, in {REPEATS} fresh processes\n")
    for question in runs[0]:
        print(f"{question:<16}{spread([sum(spent[question]) for spent in runs])}")
    print(f"{'in all':<16}{spread(in_all)}")
    print(f"{'imports':<16}{spread(imports)}")
    print(f"\nin all / python -c '{IMPORTS[1]}': {ratio(in_all, imports):.1f}")


if __name__ == "__main__":
    main()
