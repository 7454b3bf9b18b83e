"""`costmodel scaling`: the growth of measured costs.

`own` are Python files of mixers to import, `board` a GPU of tables/devices or BOARD.toml (None: no
limits); `force` overwrites `output`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from costmodel.commands.options import (
    Force,
    OnBoard,
    Output,
    Own,
    chosen,
    formatted,
    import_own,
    no_source,
    on_board,
    show,
    told,
)
from costmodel.commands.streams import Failed, complain
from costmodel.report.formats import formats

Records = Annotated[
    list[Path], typer.Argument(metavar="FILE.jsonl...", help="Records, as sweep writes them.")
]
Along = Annotated[
    str, typer.Option("--along", metavar="l,d", help="The sizes along which costs grow.")
]


def along(text: str) -> tuple[str, ...]:
    """The letters of the sizes along which growth is followed, from text such as `l,d`. Raises
    UsageError: a letter is no size."""
    from costmodel.symbolic.sizes import LETTERS

    letters = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for letter in letters:
        chosen(letter, "--along", list(LETTERS))
    return letters


def scaling(
    context: typer.Context,
    files: Records,
    along_: Along = "l,d",
    own: Own = None,
    board: OnBoard = None,
    format_: Annotated[str, formatted("rows", "data", "frame")] = "rich",
    output: Output = None,
    force: Force = False,
) -> None:
    """Measured exponents of latency, memory and energy in l and d, beside the derived ones."""
    from profiler.records.measurement import OF_CALLS, STATES
    from profiler.scaling.growth import scalings
    from profiler.scaling.report import document
    from profiler.sweep.recorded import recorded

    chosen(format_, "--format", formats("rows", "data", "frame"))
    no_source(output, files)
    letters, on = along(along_), on_board(board)
    import_own(own)
    records, problems = recorded(files, complain, without=(*OF_CALLS, *STATES))
    # one growth for each measured quantity of each series; sentences on what has no growth
    found, missing = scalings(records, letters, on)
    told([*problems, *missing])
    if not found:
        raise Failed
    show(document(found), format_, output, force, context)
    if problems:
        raise Failed
