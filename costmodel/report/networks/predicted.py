"""The predicted times of a model on a board, as a document: `costmodel model --board`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from math import isnan
from typing import Any

from costmodel.errors import BoardError, Unanswered
from costmodel.prediction.models import STAGES, Part, Predicted, binds, total
from costmodel.questions.question import Missing
from costmodel.report.document import Cell, Column, Document, Line, Note, Rows, Strong, Table
from costmodel.report.networks.captions import described, source_lines
from costmodel.report.networks.document import heading_of

COLUMNS = (
    Column("block", "block", numeric=False, names=True),
    Column("part", "part", numeric=False),
    Column("runs", "runs"),
    Column("time", "predicted time (us)"),
    Column("low", "low (us)"),
    Column("high", "high (us)"),
    Column("share", "share (%)"),
    Column("energy", "energy (mJ)"),
    Column("binds", "binds", numeric=False),
)
FIGURES = ("seconds", "low", "high", "joules", "joules_low", "joules_high")


@dataclass(frozen=True)
class Report:
    """A model on a board, in both stages of generation."""

    predicted: Predicted

    @cached_property
    def stages(self) -> Mapping[str, Sequence[Part] | Missing]:
        """Stage ("prefill", "decode") -> its parts with their predicted times, or the reason why
        there is no prediction, such as a figure that the board lacks; Unanswered or BoardError if
        no stage has one."""
        found: dict[str, Sequence[Part] | Missing] = {}
        reasons: list[Exception] = []
        for stage in STAGES:
            try:
                found[stage] = self.predicted.parts(stage)
            except (Unanswered, BoardError) as reason:
                reasons.append(reason)
                found[stage] = Missing(str(reason))
        if len(reasons) == len(found):
            raise reasons[0]
        return found

    @property
    def document(self) -> Document:
        """The document: the model, its board and types, a sentence for each stage (prefill,
        decode), then a table of predicted times for each stage."""
        p = self.predicted
        net = p.held.network
        lead: list[Line] = [
            (Strong(heading_of(net)),),
            (described(net.described),),
            *((line,) for line in source_lines(net.described)),
            (f"board {p.on.caption}; {p.held.dtypes.caption}",),
            *((line,) for line in self._sentences()),
        ]
        return Document(lambda: [*self._tables()], tuple(lead), self._data, self._rows)

    def _sentences(self) -> Iterator[str]:
        """Yield a sentence for each stage, with its time, energy (each with its range) and the
        limit that binds, or why there is none; and one if the model does not fit into the board's
        memory."""
        p, stages = self.predicted, self.stages
        said = {
            "prefill": f"prefill of {p.batch:,} x {p.context:,} tokens",
            "decode": f"decoding a token for each of {p.batch:,} after {p.context:,}",
        }
        for stage, parts in stages.items():
            if isinstance(parts, Missing):
                yield f"{said[stage]}: not predicted: {parts.reason}"
                continue
            seconds, low, high, joules, *ends = (total(parts, name) for name in FIGURES)
            unit, scale = ("ms", 1e3) if stage == "decode" else ("s", 1)
            time = f"{seconds * scale:.4g} {unit} ({low * scale:.4g} to {high * scale:.4g})"
            tokens = p.batch * (p.context if stage == "prefill" else 1)
            told = f", {joules:.4g} J ({ends[0]:.4g} to {ends[1]:.4g}), "
            energy = "" if isnan(joules) else f"{told}{joules / tokens:.4g} J a token"
            yield f"{said[stage]}: {time}{energy}; {binds(parts)} binds"
        if "memory_bytes" in p.on.figures and not isinstance(stages["decode"], Missing):
            needed, memory = p.held.weights + p.batch * p.held.at(p.context), p.on["memory_bytes"]
            if needed > memory:
                yield (
                    f"the weights and what the sequences hold, {needed:,} B, exceed the board's "
                    f"memory of {int(memory):,} B: the times are those of a board with more"
                )

    def _tables(self) -> Iterator[Table]:
        """Yield a table for each stage (prefill, decode) with a prediction: a row for each part,
        for each block, and for all parts."""
        titles = {"prefill": "Prefill", "decode": "A new token for each sequence"}
        for stage, parts in self.stages.items():
            if isinstance(parts, Missing):
                continue
            seconds = total(parts, "seconds")
            rows = [self._row(block, name, some, seconds) for block, name, some in _each(parts)]
            texts = [*_says(parts, seconds), *self._assumes]
            notes = tuple(Note((text,)) for text in texts)
            yield Table(titles[stage], COLUMNS, tuple(rows), notes, stage)

    @property
    def _assumes(self) -> Sequence[str]:
        """The sentence on experts, of a model that has some."""
        some = any(use.mixer.name == "experts" for use in self.predicted.held.network.uses)
        even = "experts: each is chosen equally often, and a batch reads all that its rows choose"
        return [even] if some else []

    def _row(self, block: str, name: str, parts: Sequence[Part], whole: float) -> tuple[Cell, ...]:
        """The cells of one row, for `parts` together: the runs of a single part, the time with its
        interval in microseconds, its percentage of `whole`, the seconds of all parts, energy in
        millijoules ("" if not predicted), and the limit that binds."""
        seconds, low, high, joules = (total(parts, figure) for figure in FIGURES[:4])
        times = (round(1e6 * one) for one in (seconds, low, high))
        energy = "" if isnan(joules) else round(1e3 * joules)
        runs = parts[0].runs if len(parts) == 1 else ""
        return (block, name, runs, *times, round(100 * seconds / whole), energy, binds(parts))

    def _data(self) -> dict[str, Any]:
        """The object of JSON: the model, the board, the tokens of context and the batch, and for
        each stage its predicted figures, or the reason why there are none."""
        p = self.predicted
        model = {
            "model": p.held.network.name, "board": p.on.name, "context": p.context,
            "batch": p.batch, "dtype": p.held.dtypes.activations,
            "stages": [self._stage(stage, parts) for stage, parts in self.stages.items()],
        }  # fmt: skip
        return {"models": [model]}

    def _stage(self, stage: str, parts: Sequence[Part] | Missing) -> dict[str, Any]:
        """A stage as an object of JSON: its figures and parts, or the reason why it has none."""
        if isinstance(parts, Missing):
            return {"stage": stage, "reason": parts.reason}
        each = [
            {"block": part.block, "part": part.name, "runs": part.runs, **_figures([part]),
             "floor": part.floor or None}
            for part in parts
        ]  # fmt: skip
        return {"stage": stage, **_figures(parts), "parts": each}

    def _rows(self) -> Rows:
        """The rows of CSV: the parts of each stage."""
        stages = (self._stage(stage, parts) for stage, parts in self.stages.items())
        rows = [{"stage": one["stage"], **part} for one in stages for part in one.get("parts", ())]
        return list(rows[0]), [list(row.values()) for row in rows]


def _figures(parts: Sequence[Part]) -> dict[str, Any]:
    """The figures of parts together for JSON, name in `FIGURES` -> sum in seconds or joules (None
    if no energy is predicted), and "binds" -> the limit that binds."""
    found: dict[str, Any] = {name: total(parts, name) for name in FIGURES}
    known = {name: None if isnan(figure) else figure for name, figure in found.items()}
    return {**known, "binds": binds(parts)}


def _each(parts: Sequence[Part]) -> Iterator[tuple[str, str, Sequence[Part]]]:
    """Yield (block, part, parts) for each row of a table: each part, then the parts of its block
    together (named "together"), and at the end all parts (named "all")."""
    for block, found in groupby(parts, lambda part: part.block):
        there = [*found]
        for part in there:
            yield block, part.name, [part]
        if block:
            yield block, "together", there
    yield "", "all", parts


def _says(parts: Sequence[Part], whole: float) -> Iterator[str]:
    """Yield the sentences below a table: what was predicted, and which parts were counted by a
    lower bound of their time instead, with their share of `whole` (all seconds) and the reasons."""
    yield (
        "matrix products, attention, delta rules, scans and short convolutions are predicted, one "
        "call after the other; "
        "latency is what calls take beside their largest limit: launches, tails, idle units"
    )
    floors = [part for part in parts if part.floor]
    if not floors:
        return
    reasons: dict[str, list[str]] = {}
    for part in floors:
        reasons.setdefault(part.floor, []).append(part.name)
    share = 100 * total(floors, "seconds") / whole
    yield (
        f"not predicted but counted by a launch and the longest limit, without an interval: "
        f"{share:.2g} % of the time"
    )
    for reason, names in reasons.items():
        yield f"{'; '.join(dict.fromkeys(names))}: {reason}"
