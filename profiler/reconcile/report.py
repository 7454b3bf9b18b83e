"""Which rows and columns show a reconciliation?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from costmodel.language.functions import CLASSES
from costmodel.report.cells import Cell, Column, Grid, Line, Note
from profiler.counting.operations import Classes
from profiler.hardware.result import HardwareLevel
from profiler.meters.effective_sample_size import markedly_fewer
from profiler.reconcile.levels import Ladder, Memory
from profiler.records.words import PHASES, scaled, sizes_words
from profiler.run.caveats import spread_words
from profiler.run.lower_bounds import NOT_ASKED
from profiler.run.report import MEMORY, Reasons


def ladder_grids(ladders: Sequence[Ladder]) -> list[Grid]:
    """Four tables a ladder: operations rung by rung, peers, memory, and what it cost; no memory
    where a phase has none to compare."""
    return [grid for ladder in ladders for grid in _ladder(ladder)]


def _ladder(ladder: Ladder) -> list[Grid]:
    name = f"{ladder.mixer} {ladder.implementation}"
    where = (
        f"{PHASES[ladder.phase]}, {sizes_words(ladder.sizes)}, {ladder.dtype} on {ladder.device}"
    )
    grids = [_operations(ladder, f"{name}: {where}"), _peers(ladder, f"{name}: what others print")]
    if any(found.derived is not None for found in ladder.memory.values()):
        grids.append(_memory(ladder, f"{name}: memory, by the equations and as measured"))
    return [*grids, _cost(ladder, f"{name}: rung 5, time, memory and energy")]


def _operations(ladder: Ladder, title: str) -> Grid:
    reasons = Reasons()
    counted: list[Classes] = [ladder.rungs[k] for k in "123"]
    fourth = ladder.hardware
    counted += [] if fourth is None else [fourth.counts]
    parts = [*counted, *(c.counts for c in ladder.causes), *ladder.unexplained.values()]
    names = [c for c in dict.fromkeys([*CLASSES, *(n for p in parts for n in p)])
             if any(p.get(c) for p in parts)]  # fmt: skip
    rows: list[Line] = [_rung("1 equations", "", ladder.rungs["1"], names)]
    rows += _causes(ladder, 1, names)
    rows.append(_gap("  unexplained", "", ladder.unexplained["1-2"], names))
    rows.append(_rung("2 executed algorithm", "", ladder.rungs["2"], names))
    rows += _causes(ladder, 2, names)
    rows.append(_gap("  unexplained", "", ladder.unexplained["2-3"], names))
    third = ladder.reasons.get("3", "")
    rows.append(_rung("3 dispatched", third, ladder.rungs["3"], names))
    if fourth is None:
        missing = reasons.dash(ladder.reasons["4"])
        rows.append(("4 hardware", "not measured", *(missing for _ in (*names, "total"))))
    else:
        rows += _causes(ladder, 3, names)
        rows += [_known(line, names, fourth, reasons) for line in _executed(ladder, fourth, names)]
    columns = (
        Column("rung", "rung", numeric=False),
        Column("cause", "cause", numeric=False, wide=True),
        *(Column(n, n) for n in names),
        Column("total", "total"),
    )
    notes = (Note((f"gap 1-2: {ladder.reasons['1-2']}",)), *_told(fourth))
    drop = ("cause", *reversed(names))
    return Grid(title, columns, tuple(rows), tuple(reasons.texts), notes, drop)


def _executed(ladder: Ladder, found: HardwareLevel, names: Sequence[str]) -> list[Line]:
    """What is unexplained of the gap 3-4, and rung 4."""
    by = f"{found.chip}, read by ncu {found.ncu}"
    return [
        _gap("  unexplained", "", ladder.unexplained["3-4"], names),
        _rung("4 hardware", by, found.counts, names),
    ]


def _known(line: Line, names: Sequence[str], found: HardwareLevel, reasons: Reasons) -> Line:
    """A line with dashes where a class is not known, and where the total would lack one."""
    name, note, *cells = line
    lacking = [each for each in names if found.lacks(each)]
    shown = [
        reasons.dash(found.why(each)) if each in lacking else cell
        for each, cell in zip(names, cells, strict=False)
    ]
    total = reasons.dash(found.why(lacking[0])) if lacking else cells[-1]
    return (name, note, *shown, total)


def _told(found: HardwareLevel | None) -> list[Note]:
    """What must be known of hardware counters: labels, and each reason with all that lacks."""
    if found is None:
        return []
    lacking: dict[str, list[str]] = {}
    for name, why in found.reasons.items():
        lacking.setdefault(why, []).append(name.replace("_", " "))
    labels = [Note((f"hardware counters: {label}",)) for label in found.labels]
    missing = [Note((f"not read ({', '.join(names)}): {why}",)) for why, names in lacking.items()]
    return [*labels, *missing]


def _causes(ladder: Ladder, start: int, names: Sequence[str]) -> list[Line]:
    """The causes of the gap above one rung."""
    found = [cause for cause in ladder.causes if cause.start == start]
    return [_gap(f"  + {cause.name}", cause.meaning, cause.counts, names) for cause in found]


def _rung(name: str, note: str, counts: Classes, names: Sequence[str]) -> Line:
    return (name, note, *(f"{counts.get(n, 0):,}" for n in names), f"{sum(counts.values()):,}")


def _gap(name: str, note: str, counts: Classes, names: Sequence[str]) -> Line:
    return (
        name,
        note,
        *(_signed(counts.get(n, 0)) for n in names),
        _signed(sum(counts.values())),
    )


def _signed(number: int) -> str:
    return f"{number:+,}" if number else "0"


def _peers(ladder: Ladder, title: str) -> Grid:
    reasons = Reasons()
    rows: list[Line] = []
    executed = sum(ladder.rungs["2"].values())
    for peer in ladder.peers:
        rows.append((peer.name, "operations of rung 2", f"{executed:,}"))
        rows += [("", name, _signed(number)) for name, number in peer.causes]
        for words, figure in (("predicted", peer.predicted), ("printed", peer.printed)):
            shown = f"{figure:,}" if figure is not None else reasons.dash(peer.reasons[words])
            rows.append(("", f"{words} ({peer.unit})", shown))
        gap = peer.unexplained
        bare = reasons.dash(peer.reasons["unexplained"]) if gap is None else _signed(gap)
        rows.append(("", "unexplained", bare))
    columns = (
        Column("peer", "peer", numeric=False),
        Column("step", "step", numeric=False, wide=True),
        Column("figure", "figure"),
    )
    return Grid(title, columns, tuple(rows), tuple(reasons.texts))


KEPT = {
    "activations": "kept for the backward pass",
    "peak": "held at the worst moment",
    "dram_cold": "moved, caches flushed before each kernel",
    "dram_in_sequence": "moved, caches as kernels leave them",
}
"""Quantity of memory -> its words."""


def _memory(ladder: Ladder, title: str) -> Grid:
    reasons = Reasons()
    rows: list[Line] = []
    for name, found in ladder.memory.items():
        if found.derived is None and found.measured is None:
            continue
        rows.append((KEPT[name], "by the equations", _bytes(found.derived, found, reasons)))
        rows += [("", cause.name, _signed(cause.bytes)) for cause in found.causes]
        gap = found.unexplained
        rows.append(("", "unexplained", _bytes(gap, found, reasons, signed=True)))
        rows.append(("", "measured", _bytes(found.measured, found, reasons)))
    columns = (
        Column("memory", "memory", numeric=False),
        Column("step", "step", numeric=False, wide=True),
        Column("bytes", "bytes"),
    )
    causes = {c.name: c.meaning for found in ladder.memory.values() for c in found.causes}
    texts = [f"{name}: {meaning}" for name, meaning in causes.items()]
    texts += [f"{KEPT[k]}: {of.unasked}" for k, of in ladder.memory.items() if of.unasked]
    notes = tuple(Note((text,)) for text in texts)
    return Grid(title, columns, tuple(rows), tuple(reasons.texts), notes)


def _bytes(number: int | None, found: Memory, reasons: Reasons, *, signed: bool = False) -> Cell:
    if number is None:
        return reasons.dash(found.reason)
    return _signed(number) if signed else f"{number:,}"


COSTS = (
    ("latency_s", "latency", "s"),
    ("latency_samples", "latency samples", ""),
    ("weights_bytes", "weights", "B"),
    ("state_bytes", "state", "B"),
    ("peak_memory_bytes", "peak memory (during the call)", "B"),
    ("kernels", "kernels launched", ""),
    ("energy_J", "energy, gross", "J"),
    ("energy_net_J", "energy, net of idle", "J"),
    ("power_W", "power", "W"),
    ("operations_per_s", "dispatched operations per second", "op/s"),
    ("bytes_per_s", "compulsory bytes per second", "B/s"),
    ("J_per_operation", "energy per dispatched operation", "J"),
)
"""Quantity of rung 5, its words, its unit."""

SHARES = {
    "operations_per_s": "  of what products of matrices reach here",
    "bytes_per_s": "  of what copying reaches here",
}
"""Rate -> the words of its share of the ceiling that was measured beside it."""
CEILINGS = ("ceiling_operations_per_s", "operations_per_s_share", "ceiling_bytes_per_s",
            "bytes_per_s_share", "datasheet_bytes_per_s")  # fmt: skip

INDEPENDENT = "latency_samples_independent"
SPREAD = ("latency_p20_s", "latency_p80_s")
ENDS = ("latency_ci_low_s", "latency_ci_high_s")
"""What stands between latency and its samples: a row of the table each."""


def _cost(ladder: Ladder, title: str) -> Grid:
    reasons = Reasons()
    cost = ladder.rungs["5"]
    columns = (Column("quantity", "quantity", numeric=False), Column("value", "value"))
    if cost is None:
        row: Line = ("not measured", reasons.dash(ladder.reasons["5"]))
        return Grid(title, columns, (row,), tuple(reasons.texts))
    rows: list[Line] = []
    for key, words, unit in COSTS:
        if key == "latency_samples":
            rows.append(("latency, 20-80 %", spread_words(*(cost[end] for end in SPREAD))))
            rows.append(("latency, 95 % interval", _interval(ladder, reasons)))
            if (again := cost["latency_repetition_s"]) is not None:
                rows.append(("latency, measured again", scaled(again, "s")))
        shown = reasons.dash(ladder.reasons[key]) if cost[key] is None else _figure(cost[key], unit)
        if key == "latency_samples" and (fewer := markedly_fewer(cost[key], cost[INDEPENDENT])):
            shown = f"{shown}, which tell as much as {fewer:,}"
        rows.append((words, shown))
        if key in SHARES and ladder.reasons.get(f"ceiling_{key}") != NOT_ASKED:
            rows.append((SHARES[key], _share(ladder, key, unit, reasons)))
    notes = (
        Note((f"sampling of latency stopped: {cost['latency_stop_rule']}",)),
        Note((MEMORY,)),
        Note((f"verdict: {cost['verdict']}",)),
    )
    return Grid(title, columns, tuple(rows), tuple(reasons.texts), notes)


def _share(ladder: Ladder, key: str, unit: str, reasons: Reasons) -> Cell:
    """`12.5% of 98.2 Gop/s`, and what the datasheet says where it says something."""
    cost = ladder.rungs["5"]
    top, share, told = cost[f"ceiling_{key}"], cost[f"{key}_share"], cost.get(f"datasheet_{key}")
    if share is None:
        return reasons.dash(ladder.reasons[f"{key}_share"])
    beside = "" if told is None else f" (datasheet: {scaled(told, unit)})"
    return f"{share:.1%} of {scaled(top, unit)}{beside}"


def _interval(ladder: Ladder, reasons: Reasons) -> Cell:
    low, high = (ladder.rungs["5"][end] for end in ENDS)
    if low is None or high is None:
        return reasons.dash(ladder.reasons[ENDS[0]])
    return spread_words(low, high)


def _figure(value: float, unit: str) -> str:
    return f"{value:,.0f} {unit}".strip() if unit in ("", "B") else scaled(value, unit)


def _csv_hardware(x: Ladder, lead: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """A row for each class of rung 4, and for each that is not known."""
    if x.hardware is None:
        return [(*lead, "4", "rung", None, None, x.reasons["4"])]
    counts, untold = x.hardware.counts, x.hardware.untold
    known = [(*lead, "4", "rung", name, number, None) for name, number in counts.items()]
    labels = [(*lead, "4", "label", None, None, label) for label in x.hardware.labels]
    return [
        *known,
        *((*lead, "4", "rung", name, None, why) for name, why in untold.items()),
        *labels,
    ]


def csv_ladder(x: Ladder) -> list[tuple[Any, ...]]:
    """A row for each class of each rung, cause and rest, for each peer's figures and each cost."""
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
    for name, memory in x.memory.items():
        figures = [("derived", memory.derived)]
        figures += [(cause.name, cause.bytes) for cause in memory.causes]
        figures += [("unexplained", memory.unexplained), ("measured", memory.measured)]
        for entry, number in figures:
            why = memory.reason if number is None else None
            if entry == "unexplained" and memory.unasked:
                why = memory.unasked
            rows.append((*lead, "memory", entry, f"{name}_bytes", number, why))
    rows += _csv_hardware(x, lead)
    cost = x.rungs["5"]
    if cost is None:
        return [*rows, (*lead, "5", "rung", None, None, x.reasons["5"])]
    single = [key for key, _, _ in COSTS]
    for key in (*SPREAD, *ENDS, INDEPENDENT, "latency_repetition_s", *single, *CEILINGS):
        why = None if cost[key] is not None else x.reasons[key]
        rows.append((*lead, "5", "rung", key, cost[key], why))
    rows.append((*lead, "5", "stop rule", None, None, cost["latency_stop_rule"]))
    return [*rows, (*lead, "5", "verdict", None, None, cost["verdict"])]
