"""How do measurements and ladders read on a terminal, in markdown, LaTeX, CSV and JSON?"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from costmodel import render
from costmodel.check import Proof
from costmodel.functions import CLASSES
from costmodel.render import Cell, Column, Dash, Grid, Line, Note
from costmodel.sizes import LETTERS
from profiler.reconcile import Classes, Ladder
from profiler.store import Measurement

PHASES = {"training": "forward pass", "inference": "one new token"}
DIGITS = 4
PREFIXES = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"), (1e-12, "p"))
LARGE = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
DROP = ("n samples", "20-80 %", "net J", "kernels", "operations", "fvcore", "torch")


def scaled(value: float, unit: str) -> str:
    """A measured value with so many significant digits and a prefix.

    >>> scaled(0.000354121, "s"), scaled(1.2e12, "op/s"), scaled(0.0, "J")
    ('354.1 µs', '1.2 Top/s', '0 J')
    """
    if value == 0:
        return f"0 {unit}"
    steps = LARGE if abs(value) >= 1 else PREFIXES
    factor, prefix = next(((f, p) for f, p in steps if abs(value) >= f), steps[-1])
    return f"{value / factor:.{DIGITS}g} {prefix}{unit}"


def sizes_words(sizes: Mapping[str, int]) -> str:
    """`b = 1, d = 128, l = 128`."""
    return ", ".join(f"{letter} = {sizes[letter]}" for letter in LETTERS if letter in sizes)


class Reasons:
    """Numbers the reasons of dashes as they come up."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def dash(self, reason: str) -> Dash:
        """A dash with the number of its reason."""
        if reason not in self.texts:
            self.texts.append(reason)
        return Dash(self.texts.index(reason) + 1)


MEASURED = (
    ("mixer", False),
    ("implementation", False),
    ("sizes", False),
    ("dtype", False),
    ("latency", True),
    ("20-80 %", True),
    ("n samples", True),
    ("peak memory", True),
    ("kernels", True),
    ("operations", True),
    ("torch", True),
    ("fvcore", True),
    ("energy", True),
    ("net J", True),
    ("power", True),
)


def measurement_grids(measurements: Sequence[Measurement]) -> list[Grid]:
    """One table a phase and device."""
    groups: dict[tuple[str, str], list[Measurement]] = {}
    for measurement in measurements:
        groups.setdefault((measurement.phase, measurement.device), []).append(measurement)
    return [_measured(phase, device, found) for (phase, device), found in groups.items()]


def _measured(phase: str, device: str, found: Sequence[Measurement]) -> Grid:
    reasons = Reasons()
    rows = tuple(_measured_row(m, reasons) for m in found)
    notes = [
        Note(("latency: median of calls with warm caches",)),
        Note(("20-80 %: spread of the samples",), ("20-80 %",)),
        Note(("operations: as dispatched, every class counted 1",), ("operations",)),
        Note(("torch: FlopCounterMode, a multiply-add is 2",), ("torch",)),
        Note(("fvcore: FlopCountAnalysis, a multiply-add is 1",), ("fvcore",)),
        Note((f"measured values: {DIGITS} significant digits; -o keeps every sample",)),
        *_uncounted(found),
    ]
    columns = tuple(Column(name, name, numeric) for name, numeric in MEASURED)
    machine = found[0].environment
    where = machine.get("device_name") or machine.get("cpu") or device
    return Grid(
        f"Measured: {PHASES[phase]}, on {device} ({where})",
        columns,
        rows,
        tuple(reasons.texts),
        tuple(notes),
        DROP,
    )


def _measured_row(m: Measurement, reasons: Reasons) -> Line:
    latency = m.readings.get("latency")
    median = _reading(m, "latency", "s", reasons)
    spread = samples = median
    if latency is not None:
        low, high = latency.details["p20"], latency.details["p80"]
        spread = f"{scaled(low, 's')} - {scaled(high, 's')}"
        samples = str(latency.details["n"])
    return (
        m.mixer,
        m.implementation,
        sizes_words(m.sizes),
        m.dtype,
        median,
        spread,
        samples,
        _bytes(m, reasons),
        _plain(m, "kernels", reasons),
        _operations_of(m, reasons),
        _peer(m, "torch", reasons),
        _peer(m, "fvcore", reasons),
        _reading(m, "energy", "J", reasons),
        _reading(m, "energy_net", "J", reasons),
        _reading(m, "power", "W", reasons),
    )


def _operations_of(m: Measurement, reasons: Reasons) -> Cell:
    dispatch = m.counts["dispatch"]
    if dispatch["unknown"]:
        listed = ", ".join(dispatch["unknown"])
        return reasons.dash(f"{m.mixer} {m.implementation}: no counting rule for {listed}")
    return f"{_total(dispatch['operations']):,}"


def _total(operations: Mapping[str, Any]) -> int:
    return int(sum(operations[c] for c in CLASSES) + sum(operations["other"].values()))


def _reading(m: Measurement, name: str, unit: str, reasons: Reasons) -> Cell:
    if name not in m.readings:
        return reasons.dash(m.reasons.get(name, f"{name} was not measured"))
    return scaled(m.readings[name].value, unit)


def _plain(m: Measurement, name: str, reasons: Reasons) -> Cell:
    if name not in m.readings:
        return reasons.dash(m.reasons.get(name, f"{name} was not measured"))
    return f"{m.readings[name].value:,.0f}"


def _bytes(m: Measurement, reasons: Reasons) -> Cell:
    found = _plain(m, "peak_memory", reasons)
    return f"{found} B" if isinstance(found, str) else found


def _peer(m: Measurement, name: str, reasons: Reasons) -> Cell:
    peer = m.counts["peers"].get(name)
    if peer is None:
        return reasons.dash(m.reasons.get(f"peer {name}", f"{name} was not asked"))
    return f"{peer['total']:,}"


def _uncounted(found: Sequence[Measurement]) -> list[Note]:
    """What peers left out, and how much of the time it took."""
    notes = []
    rows = Counter((m.mixer, m.implementation) for m in found)
    for m in found:
        row = f" ({sizes_words(m.sizes)}, {m.dtype})" if rows[m.mixer, m.implementation] > 1 else ""
        for name, peer in m.counts["peers"].items():
            if not peer["uncounted"]:
                continue
            listed = ", ".join(f"{op} x{n}" for op, n in peer["uncounted"].items())
            share = peer["uncounted_time_share"]
            time = "an unknown share" if share is None else f"{share:.1%}"
            what = f"{name} did not count in {m.mixer} {m.implementation}{row}"
            notes.append(Note((f"{what}: {listed} ({time} of the time)",), (name,)))
    return notes


def ladder_grids(ladders: Sequence[Ladder]) -> list[Grid]:
    """Three tables a ladder: operations rung by rung, peers, and what it cost."""
    return [grid for ladder in ladders for grid in _ladder(ladder)]


def _ladder(ladder: Ladder) -> list[Grid]:
    name = f"{ladder.mixer} {ladder.implementation}"
    where = (
        f"{PHASES[ladder.phase]}, {sizes_words(ladder.sizes)}, {ladder.dtype} on {ladder.device}"
    )
    grids = [_operations(ladder, f"{name}: {where}"), _peers(ladder, f"{name}: what others print")]
    return [*grids, _cost(ladder, f"{name}: rung 5, time, memory and energy")]


def _operations(ladder: Ladder, title: str) -> Grid:
    reasons = Reasons()
    counted: list[Classes] = [ladder.rungs[k] for k in "123"]
    parts = [*counted, *(c.counts for c in ladder.causes), *ladder.unexplained.values()]
    names = [c for c in dict.fromkeys([*CLASSES, *(n for p in parts for n in p)])
             if any(p.get(c) for p in parts)]  # fmt: skip
    rows: list[Line] = [_rung("1 equations", "", ladder.rungs["1"], names)]
    for cause in ladder.causes:
        rows.append(_gap(f"  + {cause.name}", cause.meaning, cause.counts, names))
    rows.append(_gap("  unexplained", "", ladder.unexplained["1-2"], names))
    rows.append(_rung("2 executed algorithm", "", ladder.rungs["2"], names))
    rows.append(_gap("  unexplained", "", ladder.unexplained["2-3"], names))
    third = ladder.reasons.get("3", "")
    rows.append(_rung("3 dispatched", third, ladder.rungs["3"], names))
    fourth = reasons.dash(ladder.reasons["4"])
    rows.append(("4 hardware", "not measured", *(fourth for _ in (*names, "total"))))
    columns = (
        Column("rung", "rung", numeric=False),
        Column("cause", "cause", numeric=False, wide=True),
        *(Column(n, n) for n in names),
        Column("total", "total"),
    )
    return Grid(title, columns, tuple(rows), tuple(reasons.texts), (), ("cause",))


def _rung(name: str, note: str, counts: Classes, names: Sequence[str]) -> Line:
    return (name, note, *(f"{counts.get(n, 0):,}" for n in names), f"{sum(counts.values()):,}")


def _gap(name: str, note: str, counts: Classes, names: Sequence[str]) -> Line:
    numbers = [counts.get(n, 0) for n in names]
    return (name, note, *(f"{n:+,}" if n else "0" for n in numbers), _signed(sum(counts.values())))


def _signed(number: int) -> str:
    return f"{number:+,}" if number else "0"


def _peers(ladder: Ladder, title: str) -> Grid:
    reasons = Reasons()
    rows: list[Line] = []
    executed = sum(ladder.rungs["2"].values())
    for peer in ladder.peers:
        rows.append((peer.name, "operations of rung 2", f"{executed:,}"))
        rows += [("", name, _signed(number)) for name, number in peer.causes]
        why = peer.reason or f"{peer.name} was not asked"
        for words, figure in (("predicted", peer.predicted), ("printed", peer.printed)):
            shown = f"{figure:,}" if figure is not None else reasons.dash(why)
            rows.append(("", f"{words} ({peer.unit})", shown))
        gap = peer.unexplained
        rows.append(("", "unexplained", reasons.dash(why) if gap is None else _signed(gap)))
    columns = (
        Column("peer", "peer", numeric=False),
        Column("step", "step", numeric=False, wide=True),
        Column("figure", "figure"),
    )
    return Grid(title, columns, tuple(rows), tuple(reasons.texts))


COSTS = (
    ("latency_s", "latency", "s"),
    ("peak_memory_bytes", "peak memory", "B"),
    ("kernels", "kernels launched", ""),
    ("energy_J", "energy, gross", "J"),
    ("energy_net_J", "energy, net of idle", "J"),
    ("power_W", "power", "W"),
    ("operations_per_s", "dispatched operations per second", "op/s"),
    ("bytes_per_s", "compulsory bytes per second", "B/s"),
    ("J_per_operation", "energy per dispatched operation", "J"),
)
MEASURED_AS = {
    "peak_memory_bytes": "peak_memory",
    "energy_J": "energy",
    "energy_net_J": "energy_net",
    "power_W": "power",
    "J_per_operation": "energy",
}


def _cost(ladder: Ladder, title: str) -> Grid:
    reasons = Reasons()
    cost = ladder.rungs["5"]
    columns = (Column("quantity", "quantity", numeric=False), Column("value", "value"))
    if cost is None:
        row: Line = ("not measured", reasons.dash(ladder.reasons["5"]))
        return Grid(title, columns, (row,), tuple(reasons.texts))
    rows: list[Line] = []
    for key, words, unit in COSTS:
        found = cost.get(key)
        if found is not None:
            rows.append(
                (
                    words,
                    f"{found:,.0f} {unit}".strip() if unit in ("", "B") else scaled(found, unit),
                )
            )
            continue
        rows.append((words, reasons.dash(_missing(ladder, key, words))))
    notes = (Note((f"verdict: {cost['verdict']}",)),)
    return Grid(title, columns, tuple(rows), tuple(reasons.texts), notes)


def _missing(ladder: Ladder, key: str, words: str) -> str:
    """Why a quantity of rung 5 has no value."""
    reason = ladder.reasons.get(MEASURED_AS.get(key, key)) or ladder.reasons.get("5")
    return reason or f"{words}: was not measured"


def _text(
    grids: Sequence[Grid], format_: str, command: str, width: int | None, *, colour: bool
) -> str:
    """Grids for a terminal of this width (or a pipe), in markdown or in LaTeX."""
    if format_ == "markdown":
        return "\n".join(render.markdown(grid, "###") for grid in grids)
    if format_ == "latex":
        return "\n".join(
            [
                render.preamble(command),
                *(render.latex(grid, _caption(grid)) for grid in grids),
            ]
        )
    return "\n".join(render.terminal(grid, width, colour=colour) for grid in grids)


def _caption(grid: Grid) -> Line:
    """The title and what must be said below, as sentences."""
    return (f"{grid.title}.", *(part for line in grid.said for part in (" ", *line, ".")))


def measurements(
    found: Sequence[Measurement],
    format_: str,
    command: str,
    width: int | None = None,
    *,
    colour: bool = False,
) -> str:
    """Measurements in one of the formats rich, markdown, latex, csv, json.

    CSV has a row for each reading, in SI units, and a row with the reason for each missing one.
    """
    if format_ == "json":
        records = [m.to_json() for m in found]
        return json.dumps({"schema": 1, "measurements": records}, indent=1) + "\n"
    if format_ == "csv":
        header = (*_LEAD, "reading", "value", "unit", "samples", "reason")
        return render.as_csv(header, [row for m in found for row in _csv_readings(m)])
    return _text(measurement_grids(found), format_, command, width, colour=colour)


_LEAD = ("mixer", "implementation", "form", "phase", "sizes", "dtype", "device")


def _csv_readings(m: Measurement) -> list[tuple[Any, ...]]:
    lead = (m.mixer, m.implementation, m.form, m.phase, sizes_words(m.sizes), m.dtype, m.device)
    rows = [(*lead, n, r.value, r.unit, len(r.samples), None) for n, r in m.readings.items()]
    return rows + [(*lead, name, None, None, None, why) for name, why in m.reasons.items()]


def ladders(
    found: Sequence[Ladder],
    format_: str,
    command: str,
    width: int | None = None,
    *,
    colour: bool = False,
) -> str:
    """Ladders in one of the formats rich, markdown, latex, csv, json (schema 1).

    CSV has a row for each class of each rung, cause and unexplained rest, for each peer's figures,
    and for each cost in its own unit; what was not measured is a row with its reason.
    """
    if format_ == "json":
        return json.dumps({"schema": 1, "ladders": [x.to_json() for x in found]}, indent=1) + "\n"
    if format_ == "csv":
        header = (*_LEAD, "rung", "entry", "quantity", "value", "reason")
        return render.as_csv(header, [row for x in found for row in _csv_ladder(x)])
    return _text(ladder_grids(found), format_, command, width, colour=colour)


def _csv_ladder(x: Ladder) -> list[tuple[Any, ...]]:
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
            why = None if figure is not None else peer.reason or f"{peer.name} was not asked"
            rows.append((*lead, "peer", f"{peer.name} {words}", peer.unit, figure, why))
    rows.append((*lead, "4", "rung", None, None, x.reasons["4"]))
    cost = x.rungs["5"]
    if cost is None:
        return [*rows, (*lead, "5", "rung", None, None, x.reasons["5"])]
    for key, words, _ in COSTS:
        why = None if cost.get(key) is not None else _missing(x, key, words)
        rows.append((*lead, "5", "rung", key, cost.get(key), why))
    return [*rows, (*lead, "5", "verdict", None, None, cost["verdict"])]


def proofs(
    name: str,
    found: Sequence[Proof],
    format_: str,
    width: int | None = None,
    *,
    colour: bool = False,
) -> str:
    """Proofs in one of the formats rich, markdown, json."""
    words = {True: "holds", False: "FAILS", None: "not checked"}
    if format_ == "json":
        listed = [{"name": p.name, "passed": p.passed, "detail": p.detail} for p in found]
        return json.dumps({"schema": 1, "mixer": name, "proofs": listed}, indent=1) + "\n"
    columns = (
        Column("proof", "proof", numeric=False),
        Column("verdict", "verdict", numeric=False),
        Column("detail", "detail", numeric=False, wide=True),
    )
    rows = tuple((p.name, words[p.passed], p.detail) for p in found)
    return _text([Grid(f"{name}: proofs", columns, rows)], format_, "", width, colour=colour)
