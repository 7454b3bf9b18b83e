"""All questions, for tables, explanations, claims and exports; and what users' words for them mean.

To add a question, write its file with its record in this folder, and add a line to `QUESTIONS`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from costmodel.errors import TableError
from costmodel.questions.activations import ACTIVATIONS
from costmodel.questions.best_size import BEST_SIZE, best_by
from costmodel.questions.count import COUNT
from costmodel.questions.critical_path import CRITICAL_PATH
from costmodel.questions.order import ORDER
from costmodel.questions.parameters import PARAMETERS
from costmodel.questions.path_length import PATH_LENGTH
from costmodel.questions.peak import PEAK
from costmodel.questions.question import Figure, Question
from costmodel.questions.ratios import INTENSITY, RATIO
from costmodel.questions.sequential import SEQUENTIAL
from costmodel.questions.span import SPAN
from costmodel.questions.state import STATE
from costmodel.questions.traffic import TRAFFIC

QUESTIONS: tuple[Question, ...] = (
    COUNT,
    RATIO,
    PARAMETERS,
    CRITICAL_PATH,
    SPAN,
    SEQUENTIAL,
    PATH_LENGTH,
    TRAFFIC,
    STATE,
    ACTIVATIONS,
    PEAK,
    INTENSITY,
    ORDER,
    BEST_SIZE,
)
"""All questions, in the order in which tables, explanations and proofs show them."""

FIGURES: Mapping[str, Figure] = {
    figure.name: figure for question in QUESTIONS for figure in question.figures
}
"""Name of a figure, in `--columns` and in claims -> the figure."""

BEST: Mapping[str, Figure] = {
    column.name: column
    for figure in FIGURES.values()
    if figure.kind in ("number", "names") and figure not in (*BEST_SIZE.figures, FIGURES["total"])
    for column in [best_by(figure)]
}
"""Name -> column, of the best chunk by each cost but the total: best_chunk_span by `span`."""

BY = "best_chunk_"
"""What precedes a cost in the name of the column of the best chunk by this cost."""

CLAIMED: Mapping[str, Figure] = {name: figure for name, figure in FIGURES.items() if figure.claimed}
"""The figures that claims may be about."""

KEPT, MOVED = ("state", "activations", "peak", "parameters"), ("traffic", "unfused")

WORDS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("flops", "flop", "ops", "operations", "compute"), ("total",)),
    **dict.fromkeys(("macs", "mac", "multiply-adds", "multiplications"), ("mul",)),
    "additions": ("add",),
    "divisions": ("div",),
    **dict.fromkeys(("exponentials", "exponentiations"), ("exp",)),
    **dict.fromkeys(("params", "param", "parameter"), ("parameters",)),
    **dict.fromkeys(("kv-cache", "kvcache", "cache", "kv"), ("state",)),
    "path": ("critical_path",),
    "compulsory": ("traffic",),
    "arithmetic-intensity": ("intensity",),
    "complexity": ("order",),
    "depth": ("span", "critical_path", "sequential"),
    **dict.fromkeys(("memory", "mem", "space", "vram", "footprint"), KEPT),
    "bytes": (*MOVED, "weights_bytes", "state_bytes"),
    **dict.fromkeys(("io", "bandwidth", "data-movement", "memory-traffic"), MOVED),
}
"""Word, in lower case with hyphens -> the figures that the word may mean."""

TIMED = "is measured, not derived: `costmodel profile MIXER` measures it"
RATE = (
    "is no column: total counts every operation, and `costmodel reconcile MIXER` measures the "
    "operations in a second"
)
MEASURED: Mapping[str, str] = {
    **dict.fromkeys(("latency", "time", "runtime", "seconds", "throughput", "speed"), TIMED),
    **dict.fromkeys(("energy", "power", "joules", "watts"), TIMED),
    **dict.fromkeys(("gflops", "tflops", "mflops", "gflop", "tflop", "flop/s", "flops/s"), RATE),
}
"""Word that no derived figure answers -> what answers it."""


def meant(word: str, known: Mapping[str, Figure] = FIGURES) -> str | None:
    """The name of the figure that a user's word means, in upper or lower case, with spaces, hyphens
    or underscores; None for an unknown word. `known`: name -> figure.

    >>> meant("total"), meant("FLOPs"), meant("kv cache"), meant("attention")
    ('total', 'total', 'state', None)

    A cost behind `best_chunk_` is such a word too: best_chunk_flops is best_chunk, by the total.

    Raises:
        TableError: the word may mean several figures, or is answered by a measurement.
    """
    plain = "-".join(re.split(r"[\s_-]+", word.strip().lower()))
    means = [name for name in WORDS.get(plain, ()) if name in known]
    snake = plain.replace("-", "_")
    for name in (word, snake, *(means if len(means) == 1 else [])):
        if name in known:
            return name
    if snake.startswith(BY) and (cost := meant(snake.removeprefix(BY), FIGURES)) is not None:
        name = "best_chunk" if cost == "total" else BY + cost
        return name if name in known else None
    if means:
        *others, last = [f"{name} ({known[name].meaning})" for name in means]
        raise TableError(f"'{word}' may mean {', '.join(others)} or {last}: name one of them")
    if plain in MEASURED:
        raise TableError(f"'{word}' {MEASURED[plain]}")
    return None
