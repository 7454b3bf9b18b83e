"""How long does it take to derive every answer for every mixer, from cold caches?

python -m benchmarks.deriving

Memory is searched for cycles as rarely as in the command.
"""

from __future__ import annotations

import functools
import gc
import importlib
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

from benchmarks.timing import environment, spread
from cli import FEW_COLLECTIONS
from costmodel import mixers
from costmodel.errors import Unanswered
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


def forget() -> int:
    """Clear every cache of the core and write the mixers down anew; how many caches there are."""
    for file in {mixers.file_of(name) for name in names()}:
        importlib.reload(importlib.import_module(f"costmodel.mixers.{file}"))
    caches = [
        found
        for found in gc.get_objects()
        if isinstance(found, functools._lru_cache_wrapper)
        and str(getattr(found, "__module__", "")).startswith("costmodel")
    ]
    for cache in caches:
        cache.cache_clear()
    gc.collect()
    return len(caches)


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
        with suppress(Unanswered):  # a form without one-token inference
            question()
        spent.setdefault(name, []).append(time.perf_counter() - start)
    return spent


def main() -> None:
    """Print the time per question and in all."""
    gc.set_threshold(FEW_COLLECTIONS)
    runs = []
    for _ in range(REPEATS + 1):
        caches = forget()
        runs.append(derive())
    del runs[0]  # imports sympy
    asked = sum(map(len, runs[0].values()))
    print(environment("sympy"))
    print(f"{asked} questions, {len(names())} mixers, {REPEATS} times; {caches} caches cleared\n")
    for question in runs[0]:
        print(f"{question:<16}{spread([sum(spent[question]) for spent in runs])}")
    print(f"{'in all':<16}{spread([sum(map(sum, spent.values())) for spent in runs])}")


if __name__ == "__main__":
    main()
