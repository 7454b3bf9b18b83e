"""The document that shows reconciliations: a line for each implementation, then the ladders.

A *rung* is one count of a call's operations: by the equations (1), as the implementation executes
them (2), as torch dispatched them (3), as the hardware executed them (4); rung 5 is time, memory
and energy. A *cause* explains a part of the gap between two rungs, such as "1-2". *Peers* are other
tools' counters of operations: torch's FlopCounterMode and fvcore.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from costmodel.language.functions import CLASSES
from costmodel.prediction.columns import NO_BOARD
from costmodel.questions.question import Missing
from costmodel.report.document import (
    Cell,
    Column,
    Document,
    Line,
    Marked,
    Note,
    Row,
    Section,
    Table,
    Text,
    listed,
)
from profiler.counting.operations import UNSEEN
from profiler.hardware.result import HardwareLevel
from profiler.meters.memory.listed import CAUSES, WORKSPACE
from profiler.reconcile.arrays import DENSE
from profiler.reconcile.cost import COMPARABLE, FLOOR
from profiler.reconcile.levels import (
    MEMORY_WORDS,
    HeldMemory,
    Ladder,
    ListedTensor,
    MovedMemory,
)
from profiler.records.grades import BUSY, INTERRUPTED, ONE_THREAD, label_meanings, mark, marked
from profiler.records.measurement import REASON, Measurement
from profiler.records.quantities import QUANTITIES
from profiler.records.words import PHASES, scaled, sizes_apart, sizes_words, value_words
from profiler.run.caveats import processes_words, spread_words, stopped
from profiler.run.report import LEAD, MEMORY


def document(
    found: Sequence[Ladder], lost: Sequence[Measurement] = (), *, full: bool = False
) -> Document:
    """Make the document of reconciliations: a line for each implementation and phase; below, for
    each ladder (one record's operations by equations, torch and hardware, and its cost), the tables
    with a rest that no cause explains, or with `full` every table.

    `lost` are the records of modules that could not be measured: each is a line without figures and
    with its reason. JSON follows schema 1, with these records as `failures`. CSV has a row
    for each class of each count, cause and unexplained rest, for each figure of another counter,
    and for each cost in its own unit; a missing value is a row with its reason.
    """
    header = (*LEAD, "rung", "entry", "quantity", "value", "reason")
    return Document(
        lambda: [*summary(found, lost), *(t for x in found for t in tables(x, full=full))],
        data=lambda: {
            "summary": [summary_record(x) for x in found],
            "ladders": [x.to_json() for x in found],
            **({"failures": [m.to_json() for m in lost]} if lost else {}),
        },
        rows=lambda: (
            header,
            chain(chain.from_iterable(map(csv_rows, found)), map(lost_row, lost)),
        ),
    )


def tables(ladder: Ladder, *, full: bool) -> Iterator[Table]:
    """Yield the tables of one ladder: operations (by the equations, dispatched, in the hardware),
    figures of other projects' counters (peers), memory (if a figure of it is known), and cost.
    Without `full` only the tables with an unexplained rest, or with operations that have no
    counting rule, never the costs; none if all is explained."""
    of = (
        f"{ladder.mixer} {ladder.implementation}, {PHASES[ladder.phase]}, "
        f"{sizes_words(ladder.sizes)}, {ladder.dtype} on {ladder.device}"
    )
    if full or ladder.uncounted or any(ladder.unexplained.values()):
        yield _operations(ladder, f"Operations: {of}")
    if full or any(peer.unexplained for peer in ladder.peers):
        yield _peers(ladder, f"What other counters print: {of}")
    known = any((m.derived, m.measured) != (None, None) for m in ladder.memory.values())
    if known and (full or any(found.unexplained for found in ladder.memory.values())):
        yield _memory(ladder, f"Memory: {of}")
    if full:
        yield _cost(ladder, f"Time, memory and energy: {of}")


SUMMARY = (
    Column("mixer", "mixer", numeric=False, names=True),
    Column("implementation", "implementation", numeric=False, names=True),
    Column("sizes", "sizes", numeric=False, names=True),
    Column("derived", "derived"),
    Column("executed", "executed"),
    Column("dispatched", "dispatched"),
    Column("unexplained", "unexplained operations"),
    Column("time", "time a call"),
    Column("interval", "interval"),
    Column("latency_graph_s", "replayed"),
    Column("floor_s", "floor"),
    Column("bound", "bound", numeric=False),
    Column("bound_share", "reached"),
    Column("rest_s", "above the floor"),
    Column("predicted_s", "predicted"),
    Column("memory", "peak memory, bytes"),
    Column("unexplained_bytes", "unexplained bytes"),
    Column("energy", "energy a call"),
    Column("verdict", "verdict", numeric=False, wide=True),
)

OF_SUMMARY = (
    Note(("derived, executed, dispatched: operations by the equations, by the algorithm that the "
          "implementation executes, and as torch dispatched them; every class counts 1; "
          f"{UNSEEN}",)),
    Note(("explained: every operation between derived and measured has a named cause, every byte "
          "held is a named tensor's or operation's, and other counters print what is predicted of "
          "them; --full shows causes and tensors",)),
    Note((MEMORY,)),
)  # fmt: skip
OF_FLOOR = (
    Note(("floor: the longest of the times that products, exponentials, compulsory bytes, span and "
          "launches each take alone on the board; the time of launches is an estimate, no lower "
          "bound; span unknown: the floor is the longest of the other times, as no span is derived "
          "at these sizes",)),
    Note(("reached: the floor as a share of the time; above 100 % where caches hold what the floor "
          "moves through memory",)),
    Note(("predicted: the time of the operations that torch dispatches, one after the other; each "
          "takes the board's least time of a kernel (by a GPU's datasheet, the part of a small "
          "kernel's launch that remains among other kernels), then the longer of its arithmetic at "
          "the board's rates and its bytes at the bandwidth of the last cache, beyond the cache of "
          "the memory; a GPU's products of matrices are predicted as in --columns predicted_time; "
          "the host's launches and the span are left out, so that predicted may be less than the "
          "floor",)),
)  # fmt: skip
OF_GRAPH = Note((
    "replayed: the call as a CUDA graph, without the host's work for each launch",
))  # fmt: skip


def summary(found: Sequence[Ladder], lost: Sequence[Measurement] = ()) -> Iterator[Table]:
    """Yield a table for each (phase, element type, device), with a line for each ladder in `found`:
    derived and dispatched operations, time, memory, energy, verdict; and one for each record in
    `lost`, which keeps a failure: its reason. Sizes that all lines share stand in the title. Left
    out are the column of sizes if no others are left, those of bounds and prediction if no board
    was named, and that of graph replay if no call was replayed."""
    groups: dict[tuple[str, str, str], list[Ladder | Measurement]] = {}
    every: list[Ladder | Measurement] = [*found, *lost]
    for each in every:
        groups.setdefault((each.phase, each.dtype, each.device), []).append(each)
    for (phase, dtype, device), lines in groups.items():
        common, varying = _sizes(lines)
        group = [each for each in lines if isinstance(each, Ladder)]
        left_out = set() if any(varying) else {"sizes"}
        on = any(x.reasons.get("floor_s") != NO_BOARD for x in group)
        left_out |= set() if on else {*FLOOR, "predicted_s"}
        replayed = any(x.rungs["5"]["latency_graph_s"] is not None for x in group)
        left_out |= set() if replayed else {"latency_graph_s"}
        shown = [c for c in SUMMARY if c.name not in left_out]
        rows = []
        for line, own in zip(lines, varying, strict=True):
            cells = {**(_line(line) if isinstance(line, Ladder) else _lost(line)), "sizes": own}
            rows.append(tuple(cells[column.name] for column in shown))
        title = f"Theory against measurement: {PHASES[phase]}, {common}, {dtype} on {device}"
        costs = [x.rungs["5"] for x in group if x.rungs["5"]["latency_s"] is not None]
        said = processes_words((c["latency_processes"], c["latency_grade"]) for c in costs)
        said += label_meanings(
            label
            for x in group
            for name in ("latency_labels", "energy_labels")
            for label in x.rungs["5"].get(name, ())
        )
        notes = (
            *OF_SUMMARY,
            *([OF_GRAPH] * replayed),
            *(OF_FLOOR * on),
            *(Note((each,)) for each in said),
        )
        yield Table(title, tuple(shown), tuple(rows), notes)


def _lost(record: Measurement) -> Mapping[str, Text]:
    """The line of a record that keeps a failure: no figure, and the reason."""
    why = Missing(record.reason(REASON))
    names = {"mixer": record.mixer, "implementation": record.implementation}
    return {**{column.name: why for column in SUMMARY}, **names}


def lost_row(record: Measurement) -> tuple[Any, ...]:
    """The row of CSV of a record that keeps a failure: no rung, and the reason."""
    lead = (record.mixer, record.implementation, record.form, record.phase)
    place = (sizes_words(record.sizes), record.dtype, record.device)
    return (*lead, *place, None, REASON, None, None, record.reason(REASON))


def _sizes(group: Sequence[Ladder | Measurement]) -> tuple[str, list[str]]:
    """Two parts: the sizes that all lines share, in words ("l = 128, d = 64"); and a list with the
    remaining sizes of each line, in words."""
    common, own = sizes_apart([line.sizes for line in group])
    return sizes_words(common), [sizes_words(sizes) for sizes in own]


def _line(ladder: Ladder) -> Mapping[str, Text]:
    """The line of an implementation in the summary, as a dict: name of a column -> cell, for all
    columns but the sizes. A value that is None becomes a dash with its reason (`Missing`)."""
    found = summary_record(ladder)

    def cell(name: str, words: Callable[[Any], Cell]) -> Cell:
        value = found[name]
        return Missing(found["reasons"][name]) if value is None else words(value)

    same = ("mixer", "implementation", "derived", "executed", "dispatched", "unexplained")
    return {name: found[name] for name in same} | {
        "time": cell("latency_s", lambda value: marked(value, _mark(ladder))),
        "interval": cell(
            "latency_ci_low_s", lambda low: spread_words(low, found["latency_ci_high_s"])
        ),
        "memory": cell("peak_memory_bytes", int),
        "unexplained_bytes": cell("unexplained_bytes", signed),
        "energy": cell("energy_J", lambda value: _labelled(ladder, scaled(value, "J"), "energy")),
        "verdict": _verdict(ladder),
        "latency_graph_s": cell(
            "latency_graph_s", lambda value: _labelled(ladder, scaled(value, "s"), "latency_graph")
        ),
        **{key: _of_floor(ladder, key) for key in (*FLOOR, "predicted_s")},
    }


def _labelled(ladder: Ladder, words: str, name: str) -> Cell:
    """The words for the time of a replayed CUDA graph ("latency_graph") or for the energy, with the
    labels of the reading `name` as a footnote."""
    labels = ladder.rungs["5"][f"{name}_labels"]
    what = "replayed" if name == "latency_graph" else name
    return Marked(words, f"{what}: {', '.join(labels)}") if labels else words


def _mark(ladder: Ladder) -> str:
    """The mark after a time that was measured on a busy device; "" for a quiet or missing time."""
    cost = ladder.rungs["5"]
    return mark(cost["latency_labels"]) if cost["latency_grade"] == BUSY else ""


TAKEN = ("latency_s", "latency_ci_low_s", "latency_ci_high_s", "latency_grade",
         "latency_graph_s", "peak_memory_bytes", "energy_J", *FLOOR, "predicted_s")  # fmt: skip
"""The quantities of rung 5 that the summary shows."""


def summary_record(ladder: Ladder) -> dict[str, Any]:
    """The line of an implementation in the summary as a dict for JSON, values not rounded: sums of
    operations over all classes by rung (derived, executed, dispatched, unexplained), seconds,
    bytes, joules and a verdict in words. `reasons` maps the name of each value that is None to the
    reason, and "verdict" to why the time is not comparable, if it is not."""
    derived, executed, dispatched = (sum(ladder.rungs[k].values()) for k in "123")
    cost, peak = ladder.rungs["5"], ladder.memory["peak"]
    taken = {name: cost[name] for name in TAKEN}
    reasons = {name: ladder.reasons[name] for name, value in taken.items() if value is None}
    if peak.unexplained is None:
        reasons["unexplained_bytes"] = peak.reason
    time, why = _of_time(ladder)
    if why:
        reasons["verdict"] = why
    return {
        "mixer": ladder.mixer, "implementation": ladder.implementation, "phase": ladder.phase,
        "sizes": dict(ladder.sizes), "dtype": ladder.dtype, "device": ladder.device,
        "derived": derived, "executed": executed, "dispatched": dispatched,
        "unexplained": ladder.unexplained_operations, **taken,
        "unexplained_bytes": peak.unexplained,
        "verdict": "; ".join(filter(None, [*(ladder.findings or ["explained"]), time])),
        "reasons": reasons,
    }  # fmt: skip


def _verdict(ladder: Ladder) -> Line:
    """The cell "verdict": what no cause explains, or "explained", with a footnote on operations
    that the count of dispatched operations omits; then the remark on the time, with a footnote on
    why the time is not comparable."""
    found: Cell = "; ".join(ladder.findings or ["explained"])
    if third := ladder.reasons.get("3"):
        found = Marked(found, third)
    words, why = _of_time(ladder)
    return listed((found, *([Marked(words, why) if why else words] if words else [])), "; ")


def _of_time(ladder: Ladder) -> tuple[str, str]:
    """A remark on the time in a few words, and a sentence on why the time is not comparable.

    ("", "") for a comparable time without labels; ("time throttled", "") for a comparable time with
    a label; ("time not comparable", the verdict) for other times; for a missing time the reason.
    """
    cost = ladder.rungs["5"]
    if cost["latency_s"] is None:
        return "time not measured", ladder.reasons["latency_s"]
    why = "" if cost["verdict"] == COMPARABLE else cost["verdict"]
    # the mark behind the time (`_mark`) already says these two
    labels = [each for each in cost["latency_labels"] if each not in (INTERRUPTED, ONE_THREAD)]
    words = ", ".join(filter(None, [*labels, why.partition(":")[0]]))
    return f"time {words}" if words else "", why


def _operations(ladder: Ladder, title: str) -> Table:
    """Make the table of operations, class by class: by the equations (rung 1), as the
    implementation evaluates them (2), as torch dispatched them (3) and as the hardware executed
    them (4); between two rungs, the causes of their difference and the unexplained rest. A row:
    ("1 equations", note, a number for each class that any rung, cause or rest has, total)."""
    fourth = ladder.hardware
    counted = [ladder.rungs[k] for k in "123"] + ([] if fourth is None else [fourth.counts])
    parts = [*counted, *(c.counts for c in ladder.causes), *ladder.unexplained.values()]
    names = [c for c in dict.fromkeys([*CLASSES, *(n for p in parts for n in p)])
             if any(p.get(c) for p in parts)]  # fmt: skip

    def rung(name: str, note: str, counts: Mapping[str, int]) -> Row:
        return (name, note, *(counts.get(n, 0) for n in names), sum(counts.values()))

    def gap(name: str, note: str, counts: Mapping[str, int]) -> Row:
        every = (*(counts.get(n, 0) for n in names), sum(counts.values()))
        return (f"  {name}", note, *map(signed, every))

    def causes(start: int) -> list[Row]:
        return [gap(f"+ {c.name}", c.meaning, c.counts) for c in ladder.causes if c.start == start]

    def unexplained(between: str) -> Row:
        return gap("unexplained", "", ladder.unexplained[between])

    rows = [
        rung("1 equations", "", ladder.rungs["1"]),
        *causes(1),
        unexplained("1-2"),
        rung("2 executed algorithm", "", ladder.rungs["2"]),
        *causes(2),
        unexplained("2-3"),
        rung("3 dispatched", ladder.reasons.get("3", ""), ladder.rungs["3"]),
    ]
    if fourth is None:
        missing = Missing(ladder.reasons["4"])
        rows.append(("4 hardware", "not measured", *(missing for _ in (*names, "total"))))
    else:
        rows += causes(3)
        by = f"{fourth.chip}, read by ncu {fourth.ncu}"
        last = [unexplained("3-4"), rung("4 hardware", by, fourth.counts)]
        rows += [_known(row, names, fourth) for row in last]
    columns = (
        Column("rung", "rung", numeric=False, names=True),
        Column("cause", "cause", numeric=False, wide=True),
        *(Column(n, n) for n in names),
        Column("total", "total"),
    )
    notes = (Note((f"gap 1-2: {ladder.reasons['1-2']}",)), *_counter_notes(fourth))
    return Table(title, columns, tuple(rows), notes)


def _known(row: Row, names: Sequence[str], found: HardwareLevel) -> Row:
    """The row (name, note, a count for each class in `names`, total), with `Missing` in place of
    the counts of classes that the hardware's counts lack, and of the total if any is lacking."""
    name, note, *cells, total = row
    lacking = [Missing(found.why(each)) if found.lacks(each) else None for each in names]
    shown = [missing or cell for missing, cell in zip(lacking, cells, strict=True)]
    return (name, note, *shown, next(filter(None, lacking), total))


def _counter_notes(found: HardwareLevel | None) -> list[Note]:
    """The notes below a table on the operations that the hardware executed: one for each label, and
    one for each reason why parts of these counts are missing; [] if no counts were read (None)."""
    if found is None:
        return []
    lacking: dict[str, list[str]] = {}
    for name, why in found.reasons.items():
        lacking.setdefault(why, []).append(name.replace("_", " "))
    labels = [Note((f"hardware counters: {label}",)) for label in found.labels]
    return labels + [
        Note((f"not read ({', '.join(names)}): {why}",)) for why, names in lacking.items()
    ]


def signed(number: int) -> str:
    """A difference: `+1,064`, `-64`, `0`."""
    return f"{number:+,}" if number else "0"


def _peers(ladder: Ladder, title: str) -> Table:
    """Make the table with a section for each peer (another project's operation counter): the
    operations of the executed equations (rung 2), the causes with what each adds to them, the sum,
    which is predicted of the peer, the figure that it printed, and printed less predicted."""
    rows: list[Row | Section] = []
    for peer in ladder.peers:
        rows.append(Section((peer.name,)))
        rows.append(("operations of rung 2", sum(ladder.rungs["2"].values())))
        rows += [(f"  {name}", signed(number)) for name, number in peer.causes]
        for words, figure in (("predicted", peer.predicted), ("printed", peer.printed)):
            shown = Missing(peer.reasons[words]) if figure is None else figure
            rows.append((f"{words} ({peer.unit})", shown))
        gap = peer.unexplained
        rows.append(
            ("unexplained", Missing(peer.reasons["unexplained"]) if gap is None else signed(gap))
        )
    columns = (Column("step", "step", numeric=False, wide=True), Column("figure", "figure"))
    return Table(title, columns, tuple(rows))


WATCHING = "watching changed the peak by"
"""The row of the difference between the peaks of the listed and the measured run."""

RELEASED = "released"
"""The row of bytes that were allocated before the call and released in it."""

MEMORY_COLUMNS = (
    Column("made by", "made by", numeric=False),
    Column("shape", "shape", numeric=False),
    Column("type", "type", numeric=False),
    Column("array", "array", numeric=False, wide=True),
    Column("cause", "cause", numeric=False),
    Column("bytes", "bytes"),
)

OF_LIST = (
    "by the equations: as the implementation executes them, with the gradients of parameters, "
    "without arrays that exist before the call",
    "array: the equations' arrays with the extents of the tensor, including the batch; part of: "
    "with all extents but one",
)
MEANINGS = {
    DENSE: "the tensor has more entries than the equations compute",
    "rounding": "bytes that the allocator adds, because it allocates whole blocks",
    RELEASED: "allocated before the call, and released by the call before its peak",
    "unexplained": "held by the allocator for no tensor or operation of this list",
    WATCHING: "the bytes of the run in which this list was recorded less the measured ones",
    **CAUSES,
}
"""A word of the table of memory -> its meaning, which is a note if the word occurs."""


def _memory(ladder: Ladder, title: str) -> Table:
    """Make the table of memory in bytes, with a section per quantity that has a derived or a
    measured figure: with the tensors that hold the bytes (kept for the backward pass, peak), or
    with the causes of the difference (moved); and notes on the words that occur in the cells."""
    rows: list[Row | Section] = []
    for name, found in ladder.memory.items():
        if (found.derived, found.measured) == (None, None):
            continue
        steps = _listed(found) if isinstance(found, HeldMemory) else _moved(found)
        rows += [Section((MEMORY_WORDS[name],)), *steps]
    said = {cell for row in rows if not isinstance(row, Section) for cell in row}
    notes = [f"{word}: {meaning}" for word, meaning in MEANINGS.items() if word in said]
    causes = {c.name: c.meaning for found in ladder.memory.values()
              if isinstance(found, MovedMemory) for c in found.causes}  # fmt: skip
    notes = [*OF_LIST, *notes, *(f"{cause}: {meaning}" for cause, meaning in causes.items())]
    return Table(title, MEMORY_COLUMNS, tuple(rows), tuple(Note((text,)) for text in notes))


def _listed(found: HeldMemory) -> Iterator[Row]:
    """Yield the rows of held bytes, (operation, shape, dtype, array, cause, bytes): the bytes by
    the equations, those of each listed tensor (`2 x`: two alike), the sums of the list, the bytes
    that the call released, as a negative number, the unexplained rest, the listed run's peak less
    the measured one if they differ, and the measured bytes. Rows that are no tensors have words and
    bytes alone; without a list (None), the rows on the list are left out."""

    def step(words: str, number: int | None, *, sign: bool = False) -> Row:
        missing = Missing(found.reason)
        shown = missing if number is None else signed(number) if sign else number
        return (words, "", "", "", "", shown)

    yield step("by the equations", found.derived)
    for row in found.listed or ():
        times = f"{row.number:,} x " if row.number > 1 else ""
        shape = Missing(UNREAD) if row.shape is None else " x ".join(map(str, row.shape)) or "1"
        dtype = Missing(UNREAD) if row.dtype is None else row.dtype
        cause = WORKSPACE if row.workspace else row.cause
        yield (f"  {times}{row.operation}", shape, dtype, row.array, cause, row.bytes * row.number)
    if found.listed is not None:
        yield step("listed", found.total(workspace=False))
        yield step("rounding", found.rounding)
        yield step(WORKSPACE, found.total(workspace=True))
        if found.released:
            yield step(RELEASED, -found.released, sign=True)
    yield step("unexplained", found.unexplained, sign=True)
    if found.difference:
        yield step(WATCHING, -found.difference, sign=True)
    yield step("measured", found.measured)


def _moved(found: MovedMemory) -> Iterator[Row]:
    """Yield the rows of moved bytes (only the first and the last cell are used): by the equations,
    of each cause, the unexplained rest, and as measured."""

    def step(words: str, shown: Cell) -> Row:
        return (words, "", "", "", "", shown)

    def known(number: int | None, words: Callable[[int], Cell] = int) -> Cell:
        return Missing(found.reason) if number is None else words(number)

    yield step("by the equations", known(found.derived))
    for cause in found.causes:
        yield step(f"  {cause.name}", signed(cause.bytes))
    yield step("unexplained", known(found.unexplained, signed))
    yield step("measured", known(found.measured))


UNREAD = "no operation read these bytes as a tensor"
"""Why the shape of a tensor is not known."""

COSTS = (
    ("latency_s", "latency", "s"),
    ("latency_samples", "latency samples", "1"),
    *((each.cost_key, each.cost, each.unit) for each in QUANTITIES.values() if each.cost),
    ("operations_per_s", "dispatched operations per second", "op/s"),
    ("bytes_per_s", "compulsory bytes per second", "B/s"),
    ("J_per_operation", "energy per dispatched operation", "J"),
)  # fmt: skip
"""Quantity of rung 5, its words, its unit."""

SPREAD = ("latency_p20_s", "latency_p80_s")
ENDS = ("latency_ci_low_s", "latency_ci_high_s")
"""The ends of the spread and of the interval of the latency, each pair one row of the table."""


def _cost(ladder: Ladder, title: str) -> Table:
    """Make the table of time, memory and energy (rung 5), a row per quantity of `COSTS`, with notes
    on the stopping rule of the latency and on the verdict; before the number of latency samples
    stand the rows of the latency's spread, interval and time on a processor."""
    cost = ladder.rungs["5"]
    columns = (Column("quantity", "quantity", numeric=False), Column("value", "value"))
    rows: list[Row] = []
    for key, words, unit in COSTS:
        if key == "latency_samples":
            rows.append(("latency, 20-80 %", _between(ladder, SPREAD)))
            rows.append(("latency, interval", _between(ladder, ENDS)))
            if (alone := cost.get("latency_processor_s")) is not None:
                rows.append(("on a processor", scaled(alone, "s")))
        rows.append((words, _quantity(ladder, key, unit)))
    rule = cost["latency_stop_rule"]
    said = [] if rule is None else [f"sampling of latency stopped {stopped(rule)}"]
    said += [MEMORY, f"verdict: {cost['verdict']}"]
    return Table(title, columns, tuple(rows), tuple(Note((sentence,)) for sentence in said))


def _quantity(ladder: Ladder, key: str, unit: str) -> Cell:
    """The cell of the cost `key` (time, memory, energy or a rate) in words with its unit, a
    disturbed latency with its mark; or a dash with the reason why the cost is missing."""
    value = ladder.rungs["5"][key]
    if value is None:
        return Missing(ladder.reasons[key])
    if key == "latency_s":
        return marked(value, _mark(ladder))
    return value_words(value, unit)


def _of_floor(ladder: Ladder, key: str) -> Cell:
    """The floor (lower bound) of the time, the limit that sets it, the share of this limit that was
    reached, the rest, or the predicted time (`key`: one of `FLOOR`, or "predicted_s"), in words; or
    the reason why the value is missing."""
    value = ladder.rungs["5"][key]
    if value is None:
        return Missing(ladder.reasons[key])
    if key == "bound":
        return str(value)
    return f"{value:.1%}" if key == "bound_share" else scaled(value, "s")


def _between(ladder: Ladder, ends: tuple[str, str]) -> Cell:
    """`1.2 ms to 3.4 ms`, for two times of the costs, by their keys; or why one is missing."""
    low, high = (ladder.rungs["5"][end] for end in ends)
    if low is None or high is None:
        return Missing(ladder.reasons[ends[0]])
    return spread_words(low, high)


def in_words(row: ListedTensor) -> str:
    """A tensor in one cell: `3 x mul 2x7x7 float32: A (dense)`."""
    times = f"{row.number} x " if row.number > 1 else ""
    shape = "" if row.shape is None else f" {'x'.join(map(str, row.shape))} {row.dtype}"
    array = f": {row.array}" if row.array else ""
    return f"{times}{row.operation}{shape}{array}" + (f" ({row.cause})" if row.cause else "")


def _csv_hardware(x: Ladder, lead: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """The rows of CSV for hardware counters: a row for each class that the counters count, a row
    with the reason for each class of unknown number, and a row for each label; one row with the
    reason without counters. `lead`: the first cells of every row, which identify the ladder."""
    if x.hardware is None:
        return [(*lead, "4", "rung", None, None, x.reasons["4"])]
    counts, untold = x.hardware.counts, x.hardware.untold
    known = [(*lead, "4", "rung", name, number, None) for name, number in counts.items()]
    unknown = [(*lead, "4", "rung", name, None, why) for name, why in untold.items()]
    labels = [(*lead, "4", "label", None, None, label) for label in x.hardware.labels]
    return [*known, *unknown, *labels]


def _csv_memory(x: Ladder, lead: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of CSV for bytes, per quantity (activations, peak, moved): derived, the causes
    or the listed tensors, unexplained, measured. `lead`: the first cells of every row."""
    for name, memory in x.memory.items():
        figures = [("derived", memory.derived)]
        if isinstance(memory, MovedMemory):
            figures += [(cause.name, cause.bytes) for cause in memory.causes]
        elif memory.listed is not None:
            figures += [(in_words(row), row.bytes * row.number) for row in memory.listed]
            figures += [("rounding", memory.rounding), (RELEASED, -memory.released)]
            figures += [(WATCHING, -(memory.difference or 0))]
        figures += [("unexplained", memory.unexplained), ("measured", memory.measured)]
        for entry, number in figures:
            why = memory.reason if number is None else None
            yield (*lead, "memory", entry, f"{name}_bytes", number, why)


def csv_rows(x: Ladder) -> list[tuple[Any, ...]]:
    """The rows of CSV of one ladder: after the cells that identify it come the rung ("1":
    equations, ..., "5": cost), the gap ("1-2"), `peer` or `memory`; then its entry (a cause, for
    instance), the class or quantity, the value, and the reason if a value is missing. Stop rule,
    grade and verdict, which are texts, stand in the place of the reason, without a value."""
    lead = (x.mixer, x.implementation, x.form, x.phase, sizes_words(x.sizes), x.dtype, x.device)
    entries: list[tuple[str, str, Mapping[str, int]]] = []
    entries += [(rung, "rung", x.rungs[rung]) for rung in "123"]
    entries += [(f"{c.start}-{c.end}", c.name, c.counts) for c in x.causes]
    entries += [(gap, "unexplained", counts) for gap, counts in x.unexplained.items()]
    rows: list[tuple[Any, ...]] = []
    for rung, entry, counts in entries:
        rows += [(*lead, rung, entry, name, number, None) for name, number in counts.items()]
    for peer in x.peers:
        for words, figure in (("predicted", peer.predicted), ("printed", peer.printed)):
            why = None if figure is not None else peer.reasons[words]
            rows.append((*lead, "peer", f"{peer.name} {words}", peer.unit, figure, why))
    rows += [*_csv_memory(x, lead), *_csv_hardware(x, lead)]
    cost = x.rungs["5"]
    single = [key for key, _, _ in COSTS]
    for key in (*SPREAD, *ENDS, "latency_processes", *single, *FLOOR, "predicted_s"):
        why = None if cost[key] is not None else x.reasons[key]
        rows.append((*lead, "5", "rung", key, cost[key], why))
    for words, said in (("stop rule", "latency_stop_rule"), ("grade", "latency_grade")):
        rows += [] if cost[said] is None else [(*lead, "5", words, None, None, cost[said])]
    return [*rows, (*lead, "5", "verdict", None, None, cost["verdict"])]
