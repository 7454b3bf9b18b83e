"""Which document shows a trace?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from costmodel.questions.question import Missing
from costmodel.report.document import Cell, Column, Document, Formula, Note, Row, Table
from costmodel.symbolic.polynomial import Poly
from profiler.counting.dispatch import UNSEEN
from profiler.tracing.cases import SETTLED
from profiler.tracing.compare_equations import Difference
from profiler.tracing.meta_run.flop_counter import FlopCounter
from profiler.tracing.meta_run.target import listed_sizes
from profiler.tracing.result import Break, Trace

PATHS: Mapping[str, str] = {
    "math": "torch's own decompositions",
    "fused": "attention, recurrent cells and norms as one operation each",
}
"""What each backend assumes."""


def document(found: Trace, apart_: Sequence[Difference] = ()) -> Document:
    """Everything that was traced, as tables with sentences below them."""
    return Document(lambda: [*tables(found), *map(apart, apart_)], data=lambda: data(found, apart_))


BELOW = ", and what is listed below"
"""Said of a class beside which operations without a rule ran, whose own classes are not known."""

COLUMNS = (
    Column("part", "part", numeric=False),
    Column("kind", "kind", numeric=False),
    Column("formula", "formula", numeric=False, wide=True),
)


def tables(found: Trace) -> Iterator[Table]:
    """The formulas, and what has none."""
    listed = {u.phase for u in found.uncounted}
    rows: list[Row] = [
        (
            phase,
            name,
            (formula(value), BELOW)
            if phase in listed and isinstance(value, Poly)
            else formula(value),
        )
        for phase in ("forward", "backward")
        for name, value in found.classes(phase).items()
    ]
    rows.append(("parameters", "", formula(found.parameters)))
    rows.append(("bytes", "saved for backward", formula(found.activation_bytes)))
    rows.append(("bytes", "peak", formula(found.peak_bytes)))
    title = f"{found.target}, backend {found.backend}: {PATHS[found.backend]}"
    yield Table(title, COLUMNS, tuple(rows), tuple(Note((note,)) for note in said(found)))
    if found.uncounted:
        columns = (
            Column("operation", "operation", numeric=False),
            Column("phase", "phase", numeric=False),
            Column("calls", "calls"),
            Column("bytes", "bytes touched"),
        )
        lines = tuple(
            (
                u.name,
                u.phase,
                *(
                    formula(n) if isinstance(n, Poly) else "no formula"
                    for n in (u.calls, u.bytes_touched)
                ),
            )
            for u in found.uncounted
        )
        yield Table("Dispatched without a counting rule: in no formula above", columns, lines)
    if found.at_peak:
        yield at_peak(found)


NOTHING_RUNS = "workspace inside operations is unknown: nothing runs"


def at_peak(found: Trace) -> Table:
    """The tensors that are alive at the peak, at the sizes from which formulas of bytes hold."""
    columns = (
        Column("made by", "made by", numeric=False),
        Column("shape", "shape", numeric=False),
        Column("type", "type", numeric=False),
        Column("tensors", "tensors"),
        Column("bytes", "bytes"),
    )
    rows: list[Row] = [
        (
            one.made.replace("aten::", ""),
            " x ".join(map(str, one.shape)) or "1",
            one.dtype,
            one.number,
            one.bytes * one.number,
        )
        for one in found.at_peak
    ]
    total = sum(one.bytes * one.number for one in found.at_peak)
    rows += [("all tensors", "", "", "", total), ("workspace", "", "", "", Missing(NOTHING_RUNS))]
    return Table(f"Alive at the peak, at {listed_sizes(found.base)}", columns, tuple(rows))


def formula(value: Poly | Break) -> Cell:
    """A formula, or where there is none."""
    return Formula(value) if isinstance(value, Poly) else str(value)


def said(found: Trace) -> Iterator[str]:
    """What must be known beside the formulas."""
    least = ", ".join(f"{letter} >= {size}" for letter, size in found.since.items())
    yield f"interpolated at {len(found.fitted)} points, {least}, all numbers rational"
    yield f"operations: as dispatched; {UNSEEN}"
    yield from of_bytes(found)
    what = "what has a formula is proven" if found.broken else "proven"
    yield (
        f"{what} at sizes that were not used: {'; '.join(map(listed_sizes, found.proven))}; "
        f"it holds at others if the module does nothing different there"
    )
    yield from (f"not proven beyond these: {doubt}" for doubt in found.doubts)
    if found.variables.let:
        lets = ", ".join(f"{name} = {f.text}" for name, f in found.variables.let.items())
        yield f"with {lets}"
    if found.decomposed:
        listed = ", ".join(found.decomposed)
        yield f"counted by torch's decomposition of it: {listed}"
    if found.flops is not None:
        yield f"at {listed_sizes(found.flops.sizes)} {found.flops}"
    yield from found.notes


def of_bytes(found: Trace) -> Iterator[str]:
    """What must be known beside the formulas of bytes, where there is one."""
    if not all(isinstance(value, Break) for value in (found.activation_bytes, found.peak_bytes)):
        yield (
            f"bytes hold from {listed_sizes(found.base)} on, in numbers of the type that the "
            f"module has, without what a kernel holds for itself while it runs"
        )


def apart(difference: Difference) -> Table:
    """What lies between a module and a mixer's equations."""
    parts = {
        "equations": difference.equations,
        "difference": difference.difference,
        **{cause.name: cause.counts for cause in difference.causes},
        "unexplained": difference.unexplained,
    }
    rows = [
        (part, name, formula(poly)) for part, polys in parts.items() for name, poly in polys.items()
    ]
    notes: list[str] = [f"{cause.name}: {cause.meaning}" for cause in difference.causes]
    if not difference.reason:
        notes.append(f"compared for sizes from {SETTLED} on")
    if difference.reason:
        notes.append(f"not compared: {difference.reason}")
    notes += difference.notes
    if difference.explained:
        notes.append("nothing is unexplained")
    if difference.proven:
        listed = "; ".join(map(listed_sizes, difference.proven))
        notes.append(f"traced in this case and proven at sizes that were not used: {listed}")
    where = f", where {difference.case}" if difference.case else ""
    title = f"The {difference.phase} pass less the equations of {difference.mixer}{where}"
    return Table(title, COLUMNS, tuple(rows), tuple(Note((note,)) for note in notes))


def data(found: Trace, apart_: Sequence[Difference] = ()) -> dict[str, Any]:
    """The trace for a program; formulas are strings, what has none is null with its reason."""
    reasons: dict[str, str] = {}

    def text(value: Poly | Break, *place: str) -> str | None:
        if isinstance(value, Break):
            reasons[" ".join(filter(None, place))] = str(value)
            return None
        return str(value)

    made: dict[str, Any] = {
        "target": found.target,
        "backend": found.backend,
        "over": dict(found.variables.over),
        "let": {name: formula.text for name, formula in found.variables.let.items()},
        **{
            phase: {name: text(v, phase, name) for name, v in found.classes(phase).items()}
            for phase in ("forward", "backward")
        },
        "parameters": text(found.parameters, "parameters"),
        "activation_bytes": text(found.activation_bytes, "activation_bytes"),
        "peak_bytes": text(found.peak_bytes, "peak_bytes"),
        "at_peak": {
            "sizes": dict(found.base),
            "tensors": [asdict(one) | {"shape": list(one.shape)} for one in found.at_peak],
            "workspace": None,
            "reason": NOTHING_RUNS,
        },
        "uncounted": [
            {
                "name": u.name,
                "phase": u.phase,
                "calls": text(u.calls, u.phase, u.name, "calls"),
                "bytes_touched": text(u.bytes_touched, u.phase, u.name, "bytes"),
            }
            for u in found.uncounted
        ],
        "since": dict(found.since),
        "bytes_since": dict(found.base),
        "fitted": [dict(point) for point in found.fitted],
        "proven": [dict(point) for point in found.proven],
        "not_proven": list(found.doubts),
        "decomposed": list(found.decomposed),
        "notes": [*of_bytes(found), *found.notes],
        "flop_counter": None if found.flops is None else _flops(found.flops),
        "reasons": reasons,
    }
    if apart_:
        made["against"] = [_difference(difference) for difference in apart_]
    return made


def _flops(flops: FlopCounter) -> dict[str, Any]:
    return {
        "sizes": dict(flops.sizes),
        "printed": dict(flops.printed),
        "products": dict(flops.products),
        "left_out": dict(flops.left_out),
        "share_left_out": flops.share_left_out,
    }


def _difference(difference: Difference) -> dict[str, Any]:
    def texts(classes: Mapping[str, Poly]) -> dict[str, str]:
        return {name: str(poly) for name, poly in classes.items()}

    causes: Sequence[dict[str, Any]] = [
        {"name": c.name, "meaning": c.meaning, "counts": texts(c.counts)} for c in difference.causes
    ]
    return {
        "mixer": difference.mixer,
        "phase": difference.phase,
        "form": difference.form,
        "case": difference.case or None,
        "proven": [dict(point) for point in difference.proven],
        "equations": texts(difference.equations),
        "difference": texts(difference.difference),
        "causes": causes,
        "unexplained": texts(difference.unexplained),
        "reason": difference.reason or None,
        "notes": list(difference.notes),
    }
