"""Which rows and columns show what was measured?

What does a token cost in joules, and how many tokens a second does a watt buy?
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from costmodel.language.functions import CLASSES
from costmodel.program.phases import phase_name
from costmodel.report.cells import Cell, Column, Dash, Grid, Line, Note
from profiler.hardware.operations import UNTOLD
from profiler.hardware.result import MOVED, hardware_level
from profiler.meters.ceilings import ceilings_words
from profiler.meters.disturbances import label_meanings
from profiler.meters.effective_sample_size import markedly_fewer
from profiler.records.measurement import Measurement
from profiler.records.reading import Measured, Reading, Unavailable
from profiler.records.words import DIGITS, PHASES, scaled, sizes_words
from profiler.run.caveats import contention

COLUMNS = (
    Column("mixer", "mixer", numeric=False),
    Column("implementation", "implementation", numeric=False),
    Column("sizes", "sizes", numeric=False),
    Column("dtype", "dtype", numeric=False),
    Column("latency", "latency,\nhot"),
    Column("20-80 %", "20-80 %"),
    Column("n samples", "n samples"),
    Column("cold", "latency,\ncold"),
    Column("graph", "latency,\ngraph"),
    Column("compile", "compiling"),
    Column("weights", "weights"),
    Column("state", "state"),
    Column("peak memory", "peak memory\n(during the call)"),
    Column("kernels", "kernels"),
    Column("operations", "operations"),
    Column("torch", "torch"),
    Column("fvcore", "fvcore"),
    Column("energy", "energy"),
    Column("net J", "net J"),
    Column("power", "power"),
    Column("per token", "energy\na token"),
    Column("per watt", "tokens/s\nper W"),
    Column("executed", "executed"),
    Column("moved cold", "DRAM,\ncold"),
    Column("moved", "DRAM,\nin sequence"),
)


DROP = (
    "n samples", "20-80 %", "moved", "moved cold", "executed", "per watt", "net J", "power",
    "per token", "energy", "graph", "kernels", "fvcore", "torch", "dtype", "cold", "state",
    "compile", "weights", "operations", "peak memory", "sizes",
)  # fmt: skip
"""What a narrow terminal loses, in this order; mixer, implementation and latency stay."""


MEMORY = (
    "peak memory: what the call allocates at its worst moment, its result included; weights, "
    "inputs and state were there before and are not in it"
)


COMPILED = Note(
    ("compiled: time and energy are of what torch.compile made; the rest is of the module itself",)
)


COMPILING = (
    "compiling: the calls before the compiled one settled, less one settled call; in no latency"
)


COUNTED = ("executed", "moved cold", "moved")
"""Columns that are shown where hardware counters were asked for."""


EXECUTED = Note(
    (
        "executed: operations by hardware counters, without conversions; DRAM: bytes that its "
        "memory read and wrote, caches flushed before each kernel, and as kernels leave them",
    ),
    COUNTED,
)


RESEMBLING = (
    "samples resemble the ones before them; as many independent ones would tell as much of the "
    "median"
)


class Reasons:
    """Numbers the reasons of dashes as they come up."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def dash(self, reason: str) -> Dash:
        """A dash with the number of its reason."""
        if reason not in self.texts:
            self.texts.append(reason)
        return Dash(self.texts.index(reason) + 1)


def measurement_grids(measurements: Sequence[Measurement]) -> list[Grid]:
    """One table a phase and device."""
    groups: dict[tuple[str, str], list[Measurement]] = {}
    for measurement in measurements:
        groups.setdefault((measurement.phase, measurement.device), []).append(measurement)
    return [_measured(phase, device, found) for (phase, device), found in groups.items()]


def _measured(phase: str, device: str, found: Sequence[Measurement]) -> Grid:
    reasons = Reasons()
    hidden = [name for name, of in ONLY_WHERE_READ.items() if not _read(found, of)]
    asked = any(m.sweep.get("options", {}).get("counters") for m in found)
    counted = asked or any("hardware" in m.counts for m in found)
    hidden += () if counted else COUNTED
    rows = tuple(_row(m, reasons, hidden) for m in found)
    reached = ceilings_words(m.environment for m in found)
    held = Note(("state: what is held once the token is in it",), ("state",))
    notes = [
        Note(("latency, hot: median of calls back to back, caches as the calls leave them",)),
        Note(("latency, cold: median of calls before each of which caches were flushed",)),
        Note(("20-80 %: spread of the samples of the hot latency",), ("20-80 %",)),
        *_resembling(found),
        *_labelled(found),
        *_contended(found),
        Note((MEMORY,), ("peak memory",)),
        *([held] if any("state" in m.readings for m in found) else []),
        *([COMPILED] if any("compile" in m.readings for m in found) else []),
        Note((COMPILING,), ("compile",)),
        Note(("operations: as dispatched, every class counted 1",), ("operations",)),
        Note(("torch: FlopCounterMode, a multiply-add is 2",), ("torch",)),
        Note(("fvcore: FlopCountAnalysis, a multiply-add is 1",), ("fvcore",)),
        *([EXECUTED] if counted else []),
        *([Note((f"at best the device reaches: {reached}",))] if reached else []),
        Note((f"measured values: {DIGITS} significant digits; -o keeps every sample",)),
        *_uncounted(found),
    ]
    machine = found[0].environment
    where = machine.get("device_name") or machine.get("cpu") or device
    grid = Grid(
        f"Measured: {PHASES[phase]}, on {device} ({where})",
        COLUMNS,
        rows,
        tuple(reasons.texts),
        tuple(notes),
        DROP,
    )
    return grid.without(hidden)


ONLY_WHERE_READ = {
    "graph": "latency_graph",
    "compile": "compile",
    "per token": "energy",
    "per watt": "energy",
}
"""Columns that are shown where some record has the reading that they are of."""


def _read(found: Sequence[Measurement], name: str) -> bool:
    return any(name in m.readings for m in found)


def _row(m: Measurement, reasons: Reasons, hidden: Sequence[str]) -> Line:
    latency = m.readings.get("latency")
    median = _reading(m, "latency", "s", reasons)
    spread = samples = median
    if latency is not None:
        low, high = latency.details["p20"], latency.details["p80"]
        spread = f"{scaled(low, 's')} - {scaled(high, 's')}"
        samples = str(latency.details["n"])
    return (
        m.mixer,
        named(m),
        sizes_words(m.sizes),
        m.dtype,
        median,
        spread,
        samples,
        _reading(m, "latency_cold", "s", reasons),
        "" if "graph" in hidden else _reading(m, "latency_graph", "s", reasons),
        "" if "compile" in hidden else _reading(m, "compile", "s", reasons),
        *(_plain(m, name, " B", reasons) for name in ("weights", "state", "peak_memory")),
        _plain(m, "kernels", "", reasons),
        _operations_of(m, reasons),
        _peer(m, "torch", reasons),
        _peer(m, "fvcore", reasons),
        _reading(m, "energy", "J", reasons),
        _reading(m, "energy_net", "J", reasons),
        _reading(m, "power", "W", reasons),
        *(("", "") if "per token" in hidden else _per_token(m, reasons)),
        *(("", "", "") if "executed" in hidden else _counted(m, reasons)),
    )


def _counted(m: Measurement, reasons: Reasons) -> tuple[Cell, ...]:
    """What the hardware executed in all classes, and the bytes that its memory moved."""
    found = hardware_level(m)
    if found is None:
        missing = reasons.dash(m.reasons.get("hardware", "hardware counters were not read"))
        return (missing,) * len(COUNTED)
    lacking = [why for name, why in found.untold.items() if name not in UNTOLD]
    executed = reasons.dash(lacking[0]) if lacking else f"{sum(found.counts.values()):,}"
    return (executed, *(_plain(m, name, " B", reasons) for name in MOVED.values()))


def _per_token(m: Measurement, reasons: Reasons) -> tuple[Cell, Cell]:
    """Joules a token, and tokens a second for each watt."""
    found = per_token(m)
    joules, tokens = found["J_per_token"], found["tokens_per_s_per_W"]
    return (
        reasons.dash(joules.reason)
        if isinstance(joules, Unavailable)
        else scaled(joules.value, "J"),
        reasons.dash(tokens.reason)
        if isinstance(tokens, Unavailable)
        else scaled(tokens.value, "/J"),
    )


def named(m: Measurement) -> str:
    """The implementation, and whether it was compiled."""
    return f"{m.implementation}, compiled" if m.compiled else m.implementation


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


def _plain(m: Measurement, name: str, unit: str, reasons: Reasons) -> Cell:
    if name not in m.readings:
        return reasons.dash(m.reasons.get(name, f"{name} was not measured"))
    return f"{m.readings[name].value:,.0f}{unit}"


def _peer(m: Measurement, name: str, reasons: Reasons) -> Cell:
    peer = m.counts["peers"].get(name)
    if peer is None:
        return reasons.dash(m.reasons.get(f"peer {name}", f"{name} was not asked"))
    return f"{peer['total']:,}"


def _about(found: Sequence[Measurement]) -> list[tuple[Measurement, str]]:
    """Each measurement with the words that tell it from the others of its table."""
    rows = Counter((m.mixer, named(m)) for m in found)
    told = []
    for m in found:
        row = f" ({sizes_words(m.sizes)}, {m.dtype})" if rows[m.mixer, named(m)] > 1 else ""
        told.append((m, f"{m.mixer} {named(m)}{row}"))
    return told


def _labelled(found: Sequence[Measurement]) -> list[Note]:
    """What a reader must know of readings: each label with the readings that carry it."""
    carried: dict[str, list[str]] = {}
    for m, row in _about(found):
        for name, reading in m.readings.items():
            for label in reading.details.get("labels", ()):
                carried.setdefault(f"{name.replace('_', ' ')} {label}", []).append(row)
    told = [
        Note((f"{label}: {'all' if len(rows) == len(found) > 1 else ', '.join(rows)}",))
        for label, rows in carried.items()
    ]
    latencies = (m.readings["latency"] for m in found if "latency" in m.readings)
    said = label_meanings(
        label for reading in latencies for label in reading.details.get("labels", ())
    )
    return [*told, *(Note((words,)) for words in said)]


def _resembling(found: Sequence[Measurement]) -> list[Note]:
    """Samples that resemble the ones before them, and how many independent ones tell as much."""
    timed = [
        (m.readings["latency"].details, row) for m, row in _about(found) if "latency" in m.readings
    ]
    told = [
        f"{row} {fewer:,} of {details['n']:,}"
        for details, row in timed
        if (fewer := markedly_fewer(details["n"], details.get("n_independent")))
    ]
    return [Note((f"{RESEMBLING}: {', '.join(told)}",), ("n samples",))] if told else []


def _contended(found: Sequence[Measurement]) -> list[Note]:
    """Latencies that are not those of the call alone."""
    timed = [(m, name) for m, name in _about(found) if "latency" in m.readings]
    return [Note((f"latency of {name}: {why}",)) for m, name in timed if (why := contention(m))]


def _uncounted(found: Sequence[Measurement]) -> list[Note]:
    """What peers left out, and how much of the time it took."""
    notes = []
    for m, row in _about(found):
        for name, peer in m.counts["peers"].items():
            if not peer["uncounted"]:
                continue
            listed = ", ".join(f"{op} x{n}" for op, n in peer["uncounted"].items())
            share = peer["uncounted_time_share"]
            time = "an unknown share" if share is None else f"{share:.1%}"
            what = f"{name} did not count in {row}"
            notes.append(Note((f"{what}: {listed} ({time} of the time)",), (name,)))
    return notes


def csv_readings(m: Measurement) -> list[tuple[Any, ...]]:
    """A row for each reading and for each reason why there is none."""
    lead = (m.mixer, m.implementation, m.form, m.phase, sizes_words(m.sizes), m.dtype, m.device)
    rows = [(*lead, n, r.value, r.unit, len(r.samples), None) for n, r in m.readings.items()]
    return rows + [(*lead, name, None, None, None, why) for name, why in m.reasons.items()]


PER_TOKEN = {"energy": "J_per_token", "energy_net": "net_J_per_token"}
"""Reading of a call -> the same per token."""


ENDS = frozenset({"ci_low", "ci_high"})


def tokens(phase: str, sizes: Mapping[str, int]) -> int:
    """Tokens that a call handles: one of each sequence in inference, b x l in every other phase.

    >>> tokens("inference", {"b": 4, "l": 128}), tokens("training", {"b": 4, "l": 128})
    (4, 512)
    """
    return sizes["b"] * (1 if phase_name(phase) == "inference" else sizes["l"])


def per_token(record: Measurement) -> dict[str, Measured]:
    """J per token gross and net, and tokens/s per W of a record, which is tokens per J.

    `tokens_per_s_per_W` is 1 / `J_per_token`: (tokens / s) / (J / s). Intervals are carried over.
    A record without energy gives its reason.
    """
    found: dict[str, Measured] = {}
    number = tokens(record.phase, record.sizes)
    for name, derived in PER_TOKEN.items():
        if name not in record.readings:
            found[derived] = Unavailable(record.reasons.get(name, f"{name} was not measured"))
        else:
            found[derived] = divided(record.readings[name], derived, number)
    gross = found["J_per_token"]
    found["tokens_per_s_per_W"] = inverted(gross) if isinstance(gross, Reading) else gross
    return found


def divided(reading: Reading, name: str, number: int) -> Reading:
    """A reading of energy over so many tokens."""
    details = kept(reading)
    ends = {key: reading.details[key] / number for key in ENDS if key in reading.details}
    samples = tuple(sample / number for sample in reading.samples)
    details |= ends | {"tokens": number}
    return Reading(name, reading.value / number, "J", samples, details)


def inverted(reading: Reading) -> Reading:
    """Tokens per joule from joules per token."""
    details = kept(reading) | {"tokens": reading.details["tokens"]}
    if reading.details.keys() >= ENDS and min(reading.details[key] for key in ENDS) > 0:
        low, high = (reading.details[key] for key in ("ci_low", "ci_high"))
        details |= {"ci_low": 1 / high, "ci_high": 1 / low}
    samples = tuple(1 / sample for sample in reading.samples)
    return Reading("tokens_per_s_per_W", 1 / reading.value, "1/J", samples, details)


def kept(reading: Reading) -> dict[str, object]:
    """The details that stay true of a derived quantity."""
    return {key: reading.details[key] for key in ("systematic", "labels") if key in reading.details}
