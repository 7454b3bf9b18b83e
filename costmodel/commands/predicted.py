"""What `costmodel model --board` asks: the predicted times of a network on a board."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import typer

from costmodel.commands.options import (
    UsageError,
    chosen,
    on_board,
    refuse_beside,
    tokens,
)
from costmodel.report.formats import formats

if TYPE_CHECKING:
    from costmodel.networks import Description
    from costmodel.program.element_types import Dtypes
    from costmodel.report.document import Document

OF_COSTS = {
    "phase", "optimiser", "recompute", "replace_", "layers", "train", "precision", "mfu",
    "symbolic", "convention", "columns", "symbols", *(f"size_{letter}" for letter in "bltpq"),
}  # fmt: skip
"""The options of `model` that are about costs alone, and sizes that context and batch give."""


def predicted(
    typed: typer.Context,
    described: Description,
    sizes: Mapping[str, str | None],
    board: str | None,
    context: str | None,
    batch: str | None,
    dtypes: Dtypes,
    format_: str,
) -> Document:
    """A document with the predicted times of a network on a board (a GPU with its measured rates):
    for reading `context` tokens, and for each new token, for `batch` sequences (default 1).
    `sizes` replace sizes of the network `described`; `typed` is the line as parsed.

    Raises:
        UsageError: --board or --context is missing or bad, or an option of costs is beside them.
        SizeError: the context is longer than a table of positions.
    """
    from costmodel import networks
    from costmodel.errors import BoardError
    from costmodel.networks.held import Holding
    from costmodel.prediction.models import Predicted
    from costmodel.program.chosen_sizes import given_sizes, listed
    from costmodel.report.networks.predicted import Report

    known = {parameter.name or "" for parameter in typed.command.params} - OF_COSTS  # allowed
    refuse_beside(
        typed, "--board predicts times of prefill and decoding, at --context and --batch", *known
    )
    if (on := on_board(board)) is None or context is None:
        raise UsageError("a predicted time needs a board and a context: --board h100 --context 32k")
    chosen(format_, "--format", formats("rows", "data"))
    at, sequences = tokens("--context", context), tokens("--batch", batch or "1")
    given = listed(given_sizes(sizes))
    if several := [letter for letter, values in given.items() if len(values) != 1]:
        raise UsageError(f"--{several[0]} has several numbers: --board takes one")
    net = networks.network(described, **{letter: values[0] for letter, values in given.items()})
    held = Holding(net, dtypes.of(described.dtypes), at)
    held.refuse_beyond(at)
    try:
        return Report(Predicted(held, on, at, sequences)).document
    except BoardError as error:
        raise UsageError(f"--board: {error}") from None
