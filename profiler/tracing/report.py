"""The document of a trace: formulas of the operations, parameters and bytes of a module's call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from costmodel.questions.question import Missing
from costmodel.report.document import Column, Document, Formula, Note, Row, Table
from costmodel.symbolic.constraints import Constraints
from costmodel.symbolic.polynomial import Poly
from costmodel.symbolic.printing import conditions_words
from profiler.counting.operations import UNSEEN
from profiler.tracing.cases import SETTLED
from profiler.tracing.compare_equations import Difference
from profiler.tracing.meta_run.flop_counter import FlopCounter
from profiler.tracing.meta_run.target import listed_sizes
from profiler.tracing.result import Break, Cases, Trace, Value

PATHS: Mapping[str, str] = {
    "math": "torch's own decompositions",
    "fused": "attention, recurrent cells and norms as one operation each",
}
"""Backend -> its assumption in words."""


def document(
    trace: Trace, differences: Sequence[Difference] = (), at: Mapping[str, int] | None = None
) -> Document:
    """Make the document of a trace: its formulas as tables with notes below, then a table for each
    of the `differences` from equations; with `at`, every formula's value at these sizes. JSON holds
    all of them. A trace without bytes has no document: its parts raise TraceError."""
    return Document(
        lambda: [*tables(trace, at), *map(difference_table, differences)],
        data=lambda: data(trace, differences, at),
    )


BELOW = ", and what is listed below"
"""Appended to the counts of a pass with uncounted operations, whose classes are unknown."""

COLUMNS = (
    Column("part", "part", numeric=False),
    Column("kind", "kind", numeric=False),
    Column("formula", "formula", numeric=False, wide=True),
)


def rows_of(trace: Trace) -> Iterator[tuple[str, str, Poly | Break, Constraints]]:
    """Yield the rows of the table of formulas: (part, kind, formula, and the conditions of the case
    for which the formula holds (empty for all sizes)); a formula by cases has a row per case."""
    for part, name, value in answers(trace):
        if not isinstance(value, Cases):
            yield part, name, value, frozenset()
            continue
        for region, poly in value.pieces:
            yield part, f"{name} ({conditions_words(region)})", poly, region


def answers(trace: Trace) -> Iterator[tuple[str, str, Value]]:
    """Yield (part, kind, formula) of every quantity, in the order of the table: ("forward", "mul",
    ...). Parameters have the kind "" if none is frozen, else "trainable" and "frozen"; "all"
    replaces "trainable" if either has no polynomial to subtract. TraceError without bytes."""
    for phase in ("forward", "backward"):
        for name, value in trace.classes(phase).items():
            yield phase, name, value
    if trace.frozen == Poly():
        yield "parameters", "", trace.parameters
    elif isinstance(trace.parameters, Poly) and isinstance(trace.frozen, Poly):
        yield "parameters", "trainable", trace.parameters - trace.frozen
        yield "parameters", "frozen", trace.frozen
    else:
        yield "parameters", "all", trace.parameters
        yield "parameters", "frozen", trace.frozen
    yield "bytes", "saved for backward", trace.activation_bytes
    yield "bytes", "peak", trace.peak_bytes


ELSEWHERE = "these sizes belong to another case"


def value_at(value: Value, part: str, trace: Trace, at: Mapping[str, int]) -> int | Missing:
    """The value of a formula at the sizes `at`; Missing, with the reason, if there is no formula,
    if the value is not whole, or if the formula is one of bytes (`part`) and a size is below the
    first one traced (`trace.base`), from which formulas of bytes hold."""
    if isinstance(value, Break):
        return Missing("this value has no formula")
    if part == "bytes" and any(at[letter] < least for letter, least in trace.base.items()):
        return Missing(f"formulas of bytes hold from {listed_sizes(trace.base)} on")
    number = value.rational(at)
    return int(number) if number.denominator == 1 else Missing(f"the formula gives {number}")


def tables(trace: Trace, at: Mapping[str, int] | None = None) -> Iterator[Table]:
    """Yield the tables of a trace: the formulas, with their values at the sizes `at` if given (a
    dash: in another case) and, in a pass with operations without a counting rule, the words
    `BELOW`; then these operations, and the tensors at the peak, if any."""
    listed = {u.phase for u in trace.uncounted}
    rows: list[Row] = []
    for part, name, value, region in rows_of(trace):
        values: list[Formula | str | int | Missing] = [formula(value)]
        if at is not None:
            here = all(condition.rational(at) >= 0 for condition in region)
            values.append(value_at(value, part, trace, at) if here else Missing(ELSEWHERE))
        partial = part in listed and isinstance(value, Poly)
        rows.append((part, name, *((v, BELOW) if partial else v for v in values)))
    numbers = () if at is None else (Column("value", f"at {listed_sizes(at)}"),)
    title = f"{trace.target}, backend {trace.backend}: {PATHS[trace.backend]}"
    notes = tuple(Note((note,)) for note in note_sentences(trace))
    yield Table(title, (*COLUMNS, *numbers), tuple(rows), notes)
    if trace.uncounted:
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
                    "no formula" if isinstance(n, Break) else formula(n)
                    for n in (u.calls, u.bytes_touched)
                ),
            )
            for u in trace.uncounted
        )
        yield Table("Dispatched without a counting rule: in no formula above", columns, lines)
    if trace.at_peak:
        yield at_peak(trace)


NOTHING_RUNS = "without the workspace of operations, which is unknown because no kernel runs"


def at_peak(trace: Trace) -> Table:
    """Make the table of the tensors alive at the peak at the first traced sizes, a row per kind of
    tensor: operation, shape, dtype, number of tensors, bytes of all of them; then the sum."""
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
        for one in trace.at_peak
    ]
    total = sum(one.bytes * one.number for one in trace.at_peak)
    rows += [("all tensors", "", "", "", total), ("workspace", "", "", "", Missing(NOTHING_RUNS))]
    return Table(f"Alive at the peak, at {listed_sizes(trace.peak_sizes)}", columns, tuple(rows))


def formula(value: Value) -> Formula | str:
    """A formula, a formula by cases, or the failure in words."""
    return Formula(value) if isinstance(value, Poly) else str(value)


ATTENTION = ("aten::_safe_softmax", "fused attention")
"""Operations that only a call of scaled_dot_product_attention leaves in a trace."""

BY_PARTS = (
    "; this holds for attention by torch's decompositions (--backend math): for a fused kernel "
    "FlopCounterMode prints another number, or nothing"
)
"""Appended to the figures of FlopCounterMode if attention runs."""


def note_sentences(trace: Trace) -> Iterator[str]:
    """Yield the notes below the table of formulas: how the formulas were found, what operations
    are, gradients, mode, bytes, proof, doubts, `let`, decomposed operations, FlopCounterMode,
    and `trace.notes`."""
    least = ", ".join(f"{letter} >= {size}" for letter, size in trace.since.items())
    yield f"interpolated at {len(trace.fitted)} points, {least}, all numbers rational"
    yield f"operations: as dispatched; {UNSEEN}"
    yield gradients_words(trace.differentiated, asked=trace.grad != "none")
    yield f"mode: {' and '.join(sorted(trace.modes, reverse=True))}{MODES_BESIDE[trace.modes]}"
    yield from of_bytes(trace)
    what = "the formulas found are proven" if trace.broken else "proven"
    if trace.proven:
        yield (
            f"{what} at sizes beside the fitted ones: "
            f"{'; '.join(map(listed_sizes, trace.proven))}; at all other "
            f"sizes only if the module runs the same operations there"
        )
    else:
        yield "not proven: the module ran at no sizes beside the fitted ones"
    yield from (f"not proven beyond these: {doubt}" for doubt in trace.doubts)
    if trace.variables.let:
        lets = ", ".join(f"{name} = {f.text}" for name, f in trace.variables.let.items())
        yield f"with {lets}"
    if trace.decomposed:
        listed = ", ".join(trace.decomposed)
        yield f"counted by torch's decompositions: {listed}"
    if trace.flops is not None:
        attends = any(name in ATTENTION for _, name in trace.sample)
        yield f"at {listed_sizes(trace.flops.sizes)} {trace.flops}{BY_PARTS if attends else ''}"
    yield from trace.notes


MODES_BESIDE: Mapping[frozenset[str], str] = {
    frozenset(
        {"train"}
    ): ", in which dropout draws and batch norm takes its batch; also --mode eval",
    frozenset({"eval"}): ", in which dropout does nothing; also --mode train",
    frozenset({"train", "eval"}): ", layer by layer as made; also --mode train or eval",
}
"""Modes of a module's layers -> their meaning, and the other modes that may be asked for."""


def gradients_words(differentiated: frozenset[str], *, asked: bool = True) -> str:
    """A sentence on which gradients a backward pass computes (of "parameters", "inputs"), and how
    to ask for others. `asked`: gradients were asked for."""
    if not asked:
        return "backward: nothing, no gradient was asked for (--grad none); also --grad both"
    if not differentiated:
        return (
            "backward: nothing, no result depends on a parameter or input that requires a gradient"
            "; --grad inputs takes those of the inputs"
        )
    if differentiated == {"parameters", "inputs"}:
        return "backward: the gradients of parameters and inputs"
    (one,) = differentiated
    (other,) = {"parameters", "inputs"} - differentiated
    return f"backward: the gradients of the {one}, none of the {other}; also --grad both"


def of_bytes(trace: Trace) -> Iterator[str]:
    """Yield a note beside the formulas of bytes, if there are any."""
    if not all(isinstance(value, Break) for value in (trace.activation_bytes, trace.peak_bytes)):
        yield (
            f"formulas of bytes hold from {listed_sizes(trace.base)} on, in the module's dtype, "
            f"without the workspace of kernels"
        )


def difference_table(difference: Difference) -> Table:
    """Make the table of a difference between a module and a mixer's equations: rows (part, class of
    operations, formula) of the equations, of module less equations, each cause, and the rest."""
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
        notes.append(f"traced in this case and proven at sizes beside the fitted ones: {listed}")
    where = f", where {difference.case}" if difference.case else ""
    title = f"The {difference.phase} pass less the equations of {difference.mixer}{where}"
    return Table(title, COLUMNS, tuple(rows), tuple(Note((note,)) for note in notes))


def data(
    trace: Trace, differences: Sequence[Difference] = (), at: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """The trace as JSON values. A formula is a string, or null if it is missing; `reasons` then
    holds why, under the formula's keys ("backward mul", "peak_bytes"). If given, "at" has the
    values at the sizes `at` (null: none there), "against" the `differences` from equations."""
    reasons: dict[str, str] = {}

    def text(value: Value, *place: str) -> str | None:
        if isinstance(value, Break):
            reasons[" ".join(filter(None, place))] = str(value)
            return None
        return str(value)

    made: dict[str, Any] = {
        "target": trace.target,
        "backend": trace.backend,
        "over": dict(trace.variables.over),
        "let": {name: formula.text for name, formula in trace.variables.let.items()},
        **{
            phase: {name: text(v, phase, name) for name, v in trace.classes(phase).items()}
            for phase in ("forward", "backward")
        },
        "grad": sorted(trace.differentiated),
        "mode": sorted(trace.modes),
        "parameters": text(trace.parameters, "parameters"),
        "frozen_parameters": text(trace.frozen, "frozen_parameters"),
        "activation_bytes": text(trace.activation_bytes, "activation_bytes"),
        "peak_bytes": text(trace.peak_bytes, "peak_bytes"),
        "at_peak": {
            "sizes": dict(trace.peak_sizes),
            "tensors": [asdict(one) | {"shape": list(one.shape)} for one in trace.at_peak],
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
            for u in trace.uncounted
        ],
        "since": dict(trace.since),
        "bytes_since": dict(trace.base),
        "fitted": [dict(point) for point in trace.fitted],
        "proven": [dict(point) for point in trace.proven],
        "not_proven": list(trace.doubts),
        "decomposed": list(trace.decomposed),
        "notes": [*of_bytes(trace), *trace.notes],
        "flop_counter": None if trace.flops is None else _flops(trace.flops),
        "reasons": reasons,
    }
    if at is not None:
        values = {
            (part, name): value_at(value, part, trace, at) for part, name, value in answers(trace)
        }
        made["at"] = {
            "sizes": dict(at),
            "values": [
                {"part": part, "kind": name, "value": None if isinstance(n, Missing) else n}
                for (part, name), n in values.items()
            ],
        }
    if differences:
        made["against"] = [_difference(difference) for difference in differences]
    return made


def _flops(flops: FlopCounter) -> dict[str, Any]:
    """FlopCounterMode's figures, and what it leaves out, as a dict for JSON."""
    return {
        "sizes": dict(flops.sizes),
        "printed": dict(flops.printed),
        "products": dict(flops.products),
        "left_out": dict(flops.left_out),
        "share_left_out": flops.share_left_out,
    }


def _difference(difference: Difference) -> dict[str, Any]:
    """The difference, a module's operations by class minus the equations', as a dict for JSON:
    formulas are strings; case (the sizes at which it holds) and reason are null if empty."""

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
