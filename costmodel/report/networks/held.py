"""What a network holds while it generates, as a document: `costmodel memory`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from costmodel.networks.engines import ENGINES
from costmodel.networks.engines.reserved import Reserved
from costmodel.networks.held import Held, Holding
from costmodel.program.element_types import BYTES, QUANTISED, Dtypes
from costmodel.questions.question import Missing
from costmodel.questions.state import ROLES
from costmodel.report.document import Cell, Column, Document, Line, Note, Rows, Strong, Table
from costmodel.report.networks.captions import described, source_lines
from costmodel.report.networks.document import heading_of


@dataclass(frozen=True)
class Fitting:
    """What fits into a memory beside the weights: `typed`, the memory as the user typed it; `most`,
    its bytes; `context`, the most tokens of each sequence of the report's batch; `batch`, the most
    sequences of the asked context, None if any number fits or no context is given."""

    typed: str
    most: int
    context: int
    batch: int | None


@dataclass(frozen=True)
class Report:
    """What a network holds: `batch` sequences of `context` tokens, None where none is given, with
    the element types of `held`, of which the user names those of `typed`."""

    held: Holding
    typed: Dtypes
    context: int | None
    batch: int
    fitting: Fitting | None = None
    engine: str | None = None
    """The engine whose tensors are listed; None: no engine's."""

    @property
    def shown(self) -> int:
        """The context of the table in tokens: the one given, else the largest that fits, else 1."""
        if self.context is not None:
            return self.context
        return max(1, self.fitting.context) if self.fitting else 1

    @property
    def document(self) -> Document:
        """The document: a table of what later tokens need to be kept, one of what each engine (vLLM
        and others) reserves, and one of the tensors of the engine that the user named."""
        net = self.held.network
        lead: list[Line] = [(Strong(heading_of(net)),), (described(net.described),)]
        held = self.held
        some = f", {held.active:,} active for a token" if held.active < held.parameters else ""
        lead.append((f"parameters: {held.parameters:,}{some}; {held.dtypes.caption}",))
        lead += [(line,) for line in source_lines(net.described)]
        return Document(lambda: [*self._tables()], tuple(lead), self._data, self._rows)

    @cached_property
    def reserved(self) -> Mapping[str, Reserved | Missing]:
        """Engine -> the memory that the engine reserves, or the reason why its rule says nothing;
        {} for a network that is no published model, of whose type engines know nothing."""
        if not self.held.network.described.model_type:
            return {}
        ask = (self.held, self.typed, self.shown, self.batch)
        return {name: engine.reserved(*ask) for name, engine in ENGINES.items()}

    def _tables(self) -> Iterator[Table]:
        """Yield the tables of what the mathematics needs, of what engines reserve, and of the
        tensors of the named engine."""
        yield self._table()
        if self.reserved:
            yield self._engines()
        if self.engine is not None and isinstance(found := self.reserved[self.engine], Reserved):
            yield self._tensors(self.engine, found)

    def _engines(self) -> Table:
        """The table with a row for each engine: the bytes that it reserves for a further token and
        for the batch, and the ratio of the latter to what the mathematics needs; notes say by which
        rule, or why there is none."""
        columns = (
            Column("engine", "engine", numeric=False, names=True),
            Column("version", "version", numeric=False),
            Column("token", "a further token (B)"),
            Column("bytes", f"batch of {self.batch:,} (B)"),
            Column("ratio", "over the need"),
        )
        need = self.batch * self.held.at(self.shown)
        rows: list[tuple[Cell, ...]] = []
        notes: list[str] = []
        for name, found in self.reserved.items():
            version = ENGINES[name].version
            if isinstance(found, Missing):
                rows.append((name, version, "", "", ""))
                notes.append(f"{name}: {found.reason}")
                continue
            over = f"{found.bytes / need:.3f}" if need else ""
            rows.append((name, version, found.token, found.bytes, over))
            if found.says:
                notes.append(f"{name}: {'; '.join(found.says)}")
        title = "What software reserves, by the rule of one version"
        return Table(title, columns, tuple(rows), tuple(map(_note, notes)), "engines")

    def _tensors(self, name: str, found: Reserved) -> Table:
        """The table with a row for each tensor of `found` that the engine `name` keeps: what it
        holds, its number of layers, the shape of one layer's, its type, the bytes of all layers."""
        columns = (
            Column("part", "held", numeric=False, names=True),
            Column("tensor", "tensor", numeric=False),
            Column("layers", "layers"),
            Column("shape", "shape of one", numeric=False),
            Column("type", "type", numeric=False),
            Column("bytes", "all layers (B)"),
        )
        rows = tuple(
            (t.part, t.name, t.layers, " x ".join(map(str, t.shape)), t.dtype, t.bytes)
            for t in found.tensors
        )
        engine = ENGINES[name]
        title = f"Tensors of {name} {engine.version}"
        return Table(title, columns, rows, (_note(f"source: {engine.source}"),), "tensors")

    def _table(self) -> Table:
        """The table of what the mathematics needs: a row for the weights, for each part that holds
        something, for the sums by role, and for everything together; bytes for a further token, for
        a sequence of `shown` tokens and for the batch."""
        batch, context = self.batch, self.shown
        columns = (
            Column("held", "held", numeric=False, names=True),
            Column("of", "what", numeric=False),
            Column("layers", "layers"),
            Column("token", "a further token (B)"),
            Column("sequence", "a sequence (B)"),
            Column("bytes", f"batch of {batch:,} (B)"),
        )
        rows: list[tuple[Cell, ...]] = [("weights", "parameters", "", "", "", self.held.weights)]
        for part in self.held.parts:
            layers, each = part.layers, part.at(context)
            name, role = part.use.name, ROLES[part.role]
            rows.append((name, role, layers, part.further(context), each, batch * each))
        for role, name in (("cache", "rows of tokens"), ("state", "recurrent state")):
            each = self.held.at(context, role)
            further = sum(p.further(context) for p in self.held.parts if p.role == role)
            rows.append((f"all {name}", "", "", further, each, batch * each))
        each = self.held.at(context)
        total = self.held.weights + batch * each
        rows.append(("together", "", "", self.held.further(context), each, total))
        title = f"Held after {context:,} tokens, with a batch of {batch:,}"
        return Table(title, columns, tuple(rows), tuple(map(_note, self._says())), "memory")

    def _says(self) -> Iterator[str]:
        """Yield the sentences below the table: what is counted, and, if the user gives a memory,
        whether the weights and the asked batch fit into it, and the largest context and the largest
        batch that fit beside the weights. For weights that do not fit, the type in which they would
        is the last sentence."""
        yield (
            "what the mathematics needs: entries that a later token reads; rows of tokens are "
            "keys, values and the last rows of a convolution; activations of a step and buffers of "
            "software are left out"
        )
        dtype = self.held.dtypes.name_of("weights")
        if dtype in QUANTISED:
            entries, taken = QUANTISED[dtype]
            yield (
                f"weights: all parameters in {dtype}, {entries} entries in {taken:,} B, as if rows "
                "filled their blocks"
            )
        if (fitting := self.fitting) is None:
            return
        yield f"{fitting.typed} are {fitting.most:,} B"
        if self.held.weights > fitting.most:
            hint = self._smaller(fitting.most)
            yield f"the weights do not fit: they take {self.held.weights:,} B; {hint}"
            return
        if self.context is not None:
            asked = f"a batch of {self.batch:,} at {self.context:,} tokens"
            total = self.held.weights + self.batch * self.held.at(self.context)
            fits = "fits" if total <= fitting.most else "does not fit"
            yield f"{asked} {fits}: it takes {total:,} B with the weights"
        # the longest context tried: that of the network's table of positions, else 2**40
        if fitting.context == (self.held.longest or 2**40):
            yield f"every context up to {fitting.context:,} fits with a batch of {self.batch:,}"
        else:
            yield f"largest context with a batch of {self.batch:,}: {fitting.context:,} tokens"
        if fitting.batch is not None:
            yield f"largest batch at {self.context:,} tokens: {fitting.batch:,} sequences"

    def _smaller(self, most: int) -> str:
        """The widest element type in which the weights take at most `most` bytes, or that there is
        none, as a phrase."""
        sizes = {dtype: self.held.weights_in(dtype) for dtype in (*BYTES, *QUANTISED)}
        fitting = {dtype: taken for dtype, taken in sizes.items() if taken <= most}
        if not fitting:
            return f"in the smallest element type they take {min(sizes.values()):,} B"
        widest = max(fitting, key=lambda dtype: fitting[dtype])
        return f"--weight-dtype {widest} takes {fitting[widest]:,} B"

    def _data(self) -> dict[str, Any]:
        """The object of JSON: bytes of weights, of one sequence's state by role and by part, and of
        each engine; `fit` (the largest context and batch) if the user gives a memory."""
        held, context, net = self.held, self.shown, self.held.network
        record: dict[str, Any] = {
            "model": net.name,
            "source": net.described.source,
            "parameters": held.parameters,
            "active_parameters": held.active,
            "context": context,
            "batch": self.batch,
            "dtypes": {role: held.dtypes.name_of(role) for role in ("weights", "cache", "state")},
            "weights_bytes": held.weights,
            "cache_bytes": held.at(context, "cache"),
            "state_bytes": held.at(context, "state"),
            "sequence_bytes": held.at(context),
            "bytes_per_further_token": held.further(context),
            "total_bytes": held.weights + self.batch * held.at(context),
            "parts": [self._part(part) for part in held.parts],
            "engines": [self._engine(name) for name in self.reserved],
        }
        if self.fitting is not None:
            record["fit"] = {
                "bytes": self.fitting.most,
                "largest_context": self.fitting.context,
                "largest_batch": self.fitting.batch,
            }
        return {"models": [record]}

    def _engine(self, name: str) -> dict[str, Any]:
        """The object of JSON of the engine `name`: the bytes that it reserves for the batch, in all
        and by tensor, and for a further token of one sequence; or why its rule says nothing."""
        reserved, engine = self.reserved[name], ENGINES[name]
        lead = {"engine": name, "version": engine.version, "source": engine.source}
        if isinstance(reserved, Missing):
            return {**lead, "bytes": None, "reason": reserved.reason}
        tensors = [
            {
                "part": t.part,
                "tensor": t.name,
                "layers": t.layers,
                "shape": list(t.shape),
                "dtype": t.dtype,
                "bytes": t.bytes,
            }
            for t in reserved.tensors
        ]
        totals = {"bytes_per_further_token": reserved.token, "bytes": reserved.bytes}
        return {**lead, **totals, "says": list(reserved.says), "tensors": tensors}

    def _part(self, part: Held) -> dict[str, Any]:
        """The object of JSON of one part: the elements and bytes that it holds for one sequence."""
        return {
            "part": part.use.name,
            "role": part.role,
            "layers": part.layers,
            "elements": part.elements.at({"t": self.shown}),
            "bytes": part.at(self.shown),
            "bytes_per_further_token": part.further(self.shown),
        }

    def _rows(self) -> Rows:
        """Header and rows of CSV: the elements and bytes of the weights, then of each part that
        holds something for one sequence at the context shown."""
        names = ("part", "role", "layers", "elements", "bytes", "bytes_per_further_token")
        parts = [self._part(part) for part in self.held.parts]
        head = ["model", "context", "batch", *names]
        at: Sequence[Any] = (self.held.network.name, self.shown, self.batch)
        weights = ("weights", "weights", None, self.held.parameters, self.held.weights, 0)
        rows = [[*at, *weights], *([*at, *(part[name] for name in names)] for part in parts)]
        return head, rows


def _note(text: str) -> Note:
    return Note((text,))
