"""The number of hops between the two positions furthest apart, followed read by read.

A hop leads from a row to another row that reads it (`questions.path_length`). An entry belongs to
the row at its position on an axis of l entries; of several such axes, on the axis where most
readers read their own row. Without such an axis, or if all entries depend on the same few rows, the
entries of an array belong to the last of the rows that each is computed from if all readers are
there or later, or else to the first of these rows if all readers are there or earlier. Otherwise
the array is transparent: readers of an entry read all rows that the entry is computed from. A
gathered entry joins no rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import pairwise

from costmodel.language.equations import System
from costmodel.language.nodes import Array
from costmodel.oracle.execute import Execution, enlarged, run as run_at
from costmodel.oracle.scalars import Entry


def furthest(run: Execution) -> int:
    """The maximum path length of an execution: the largest number of hops between two rows, of all
    pairs that are joined by reads; 0 if none are."""
    rows = Rows(run)
    joined = {(rows.place(a), rows.place(b)) for a, b in rows.reads}
    return most_hops(joined, run.sizes["l"])


def reads(run: Execution) -> Iterator[tuple[Entry, Entry]]:
    """Yield (entry read, entry written) of each read, without gathered reads and reads of entries
    that depend on no input row."""
    for instance in run.instances:
        for read in instance.placed:
            if run.token(read):
                yield from ((read, written) for written in instance.writes)


def sources(pairs: Iterable[tuple[Entry, Entry]]) -> Mapping[Entry, frozenset[int]]:
    """Entry -> the input rows that the entry depends on, directly or not, given all pairs (entry
    read, entry written) in the order of execution."""
    found: dict[Entry, frozenset[int]] = {}
    for read, written in pairs:
        rows = {read[1][0]} if read[0].role == "input" else found.get(read, frozenset())
        found[written] = found.get(written, frozenset()) | rows
    return found


@lru_cache(maxsize=64)
def _of_few_rows(system: System, sizes: tuple[tuple[str, int], ...]) -> frozenset[Array]:
    """The arrays whose entries all depend on the same input rows, but not on all, in an execution
    at these sizes (`_few`)."""
    made = run_at(system, dict(sizes), dense=system.beyond)
    rows: dict[Array, set[frozenset[int]]] = {}
    found = sources(reads(made))
    for array, where in (entry for instance in made.instances for entry in instance.writes):
        rows.setdefault(array, set()).add(found.get((array, where), frozenset()))
    return frozenset(array for array, of in rows.items() if _few(of, made.sizes["l"]))


def _few(rows: set[frozenset[int]], length: int) -> bool:
    """Whether the entries of an array all depend on the same input rows, but not on all of `length`
    rows. `rows` holds the input rows of each entry; entries of weights alone, without input rows,
    do not count."""
    some = rows - {frozenset()}
    return len(some) == 1 and all(len(of) < length for of in some)


def most_hops(joined: Iterable[tuple[object, object]], length: int) -> int:
    """The largest distance of two rows of 1..length, given all pairs (place read, reader)."""
    after: dict[object, set[object]] = {}
    for read, reader in joined:
        after.setdefault(read, set()).add(reader)
    return max(max(hops(after, row).values()) for row in range(1, length + 1))


def hops(after: Mapping[object, set[object]], start: int) -> dict[int, int]:
    """A dict: row that is reached from the row `start` -> its distance in hops, by breadth-first
    search. Passing an entry that belongs to no row costs no hop.

    Args:
        after: row, or entry without a row -> the rows and entries that read it.
    """
    found, waiting = {start: 0}, deque([start])
    while waiting:
        here = waiting.popleft()
        passed, through = set[object](), list(after.get(here, ()))
        while through:
            there = through.pop()
            if isinstance(there, int) and there not in found:
                found[there] = found[here] + 1
                waiting.append(there)
            elif not isinstance(there, int) and there not in passed:
                passed.add(there)
                through += after.get(there, ())
    return found


class Rows:
    """The rows to which the entries of an execution belong."""

    def __init__(self, run: Execution) -> None:
        """Collect the reads of a run, find the axis of rows of each array, from the last array
        written to the first, and give each entry without such an axis a row."""
        self.run, self.reads = run, [*reads(run)]
        self.readers: dict[Array, dict[Entry, list[Entry]]] = {}
        """Array -> its entry -> the entries that are computed from it."""
        for read, written in self.reads:
            self.readers.setdefault(read[0], {}).setdefault(read, []).append(written)
        self.sources = sources(self.reads)
        last = {array: k for k, i in enumerate(run.instances) for array, _ in i.writes}
        self.written: dict[Array, list[Entry]] = {}  # array -> its entries in order of writing
        for entry in (entry for instance in run.instances for entry in instance.writes):
            self.written.setdefault(entry[0], []).append(entry)
        self.axes: dict[Array, tuple[int, ...]] = {}
        """Array -> its axis of rows, or its axes of chunks of rows and of places in a chunk."""
        last_first = sorted(last, key=last.__getitem__, reverse=True)
        for array in (*last_first, *self.readers):
            if array not in self.axes:
                self.axes[array] = self._row_axes(array)
        self.homes: dict[Entry, int] = {}
        """Entry without an axis of rows -> its row, unless its array has readers on both sides."""
        rows = self._rows_read()  # entry without an axis of rows -> the rows it is computed from
        for array in last_first:
            if not self.axes[array]:
                self._set_homes({e: rows[e] for e in self.written[array] if e in rows})

    def place(self, entry: Entry) -> object:
        """The row of an entry, or the entry itself if it belongs to no row."""
        row = self._row(entry)
        return entry if row is None else row

    def _row(self, entry: Entry) -> int | None:
        """The row of an entry; None if it belongs to no row."""
        axes = self.axes[entry[0]]
        return self._at(entry, axes) if axes else self.homes.get(entry)

    def _at(self, entry: Entry, axes: tuple[int, ...]) -> int:
        """The row of an entry by its positions: on one axis, or on two axes (chunk, place)."""
        array, where = entry
        first, *inner = axes
        if not inner:
            return where[first]
        return (where[first] - 1) * self.run.trace.shape(array)[inner[0]] + where[inner[0]]

    def _row_axes(self, array: Array) -> tuple[int, ...]:
        """The axis of an array that numbers rows, (1,) for k[c, j] with j in 1..l, or its axes
        (chunk, place), (0, 1) for s[q, e, c]: where most readers read their own row. () without
        axes of l entries, or if all entries depend on the same few rows, also at larger sizes."""
        if array.role in ("input", "output"):
            return (0,)
        alike = {self.sources.get(entry, frozenset()) for entry in self.written.get(array, ())}
        few = _few(alike, self.run.sizes["l"])
        if few and array in _of_few_rows(self.run.system, enlarged(self.run)):
            return ()  # no position tells the entries apart, at larger sizes either
        length, shape = self.run.system.mixer.role("input").shape[0], array.shape
        found: list[tuple[int, ...]] = [(k,) for k, extent in enumerate(shape) if extent == length]
        pairs = enumerate(pairwise(shape))
        found += [(k, k + 1) for k, (one, two) in pairs if one * two == length]
        if array.rows is not None and array.rows[1] == length:  # (axis of chunks, number of rows)
            found.append((array.rows[0], array.rows[0] + 1))

        def own(axes: tuple[int, ...]) -> int:
            """The number of readers that read their own row, if these are the axes of rows."""
            return sum(
                self._at(read, axes) == self._row(reader)
                for read, readers in self.readers.get(array, {}).items()
                for reader in readers
                if self.axes.get(reader[0])
            )

        return max(found, key=own, default=())

    def _rows_read(self) -> Mapping[Entry, set[int]]:
        """Entry without an axis of rows -> the rows it is computed from, through others too."""
        made: dict[Entry, set[int]] = {}
        for read, written in self.reads:
            if not self.axes[written[0]]:
                row = self._row(read)
                made.setdefault(written, set()).update(
                    made.get(read, ()) if row is None else (row,)
                )
        return made

    def _set_homes(self, made: Mapping[Entry, set[int]]) -> None:
        """Set the rows (`homes`) of the entries of an array that are computed from the rows in
        `made`: the last of these rows if all readers are there or later, else the first if all
        readers are there or earlier. An array with readers on both sides, and an entry that nothing
        reads, gets no row."""
        reading = {entry: self._reader_rows(entry) for entry in made}
        for end, sign in ((max, 1), (min, -1)):
            homes = {e: end(rows) for e, rows in made.items() if rows and reading[e]}
            if all(sign * (row - home) >= 0 for e, home in homes.items() for row in reading[e]):
                self.homes |= homes
                return

    def _reader_rows(self, entry: Entry) -> set[int]:
        """The rows of the readers of an entry; for a reader without a row, those of its readers."""
        found, seen, through = set[int](), set[Entry](), [entry]
        while through:
            here = through.pop()
            for reader in self.readers.get(here[0], {}).get(here, ()):
                row = self._row(reader)
                if row is not None:
                    found.add(row)
                elif reader not in seen:
                    seen.add(reader)
                    through.append(reader)
        return found
