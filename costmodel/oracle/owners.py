"""The owner of every instance of an execution, and the decoding of a sequence that proves owners.

An instance is executed in the decoding step of its owner: the token whose arrival triggers it, by
the rules of `program.owners`. Owners are found on the graph of reads, from the last reader to the
first. `Decoding` executes a sequence token by token with the state alone in memory: what a token
needs is found backwards from its results; an entry that is neither held nor the token's own is an
error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from operator import and_, eq, sub

from costmodel.errors import OracleError
from costmodel.language.equations import System
from costmodel.language.nodes import Array, position_value
from costmodel.oracle.interpreter import Run, needed
from costmodel.oracle.scalars import Entry, Instance


@dataclass(frozen=True)
class Kinds:
    """Properties of arrays that do not depend on the sizes."""

    temporaries: frozenset[Array]
    """Single-use temporaries: each entry is read by at most one instance, of another array."""
    summaries: frozenset[Array]
    """Arrays outside of loops with an entry computed from several tokens and one read for several
    tokens."""
    unread: Mapping[Array, tuple[int, ...]]
    """Array that is read -> how many last positions of each axis nothing reads: (1, 0) of s (l + 1,
    d) if row i reads s[i, c] for all c. At each length as many only where a longer sequence reads
    them."""
    of_one_token: frozenset[int]
    """The numbers of the equations whose instances, at several positions of an axis that grows with
    l, depend on inputs up to the same row, or on no input."""


class Owners:
    """The owner of every instance of a run.

    Args:
        kinds: which arrays are temporaries or summaries, from a run at larger sizes, as small sizes
            (a window of 1) hide it; None: found by this run.
    """

    def __init__(self, run: Run, system: System, kinds: Kinds | None = None) -> None:
        """Find the owners from the last component (array or loop) of the graph of arrays to the
        first, and within a component from the last instance to the first: readers come first."""
        self._collect(run, system)
        self.last: dict[Array, tuple[int, ...]] = {}
        """Array -> the last position of each axis at which an instance reads the array."""
        for array, where in self.readers:
            self.last[array] = tuple(map(max, where, self.last.get(array, where)))
        self.unread = {a: tuple(map(sub, run.shape(a), last)) for a, last in self.last.items()}
        self.longer = kinds.unread if kinds else {}
        self.number: dict[int, int] = {}
        """id of an instance -> its owner; 0 if the instance depends on no input, or, until all
        other owners are known, if only work after the end of the sequence needs it."""
        self.system = system
        lone = kinds.of_one_token if kinds else self._of_one_token(run)
        temporaries = kinds.temporaries if kinds else self._temporaries()
        summaries = set(kinds.summaries) if kinds else set[Array]()
        for group, looped in reversed(_components(system)):
            eager = self._eager(group, temporaries, lone) if looped else set[int]()
            instances = self._in_order(group)
            if not looped and not kinds and self._is_summary(instances, temporaries):
                summaries |= group
            for instance in reversed(instances):
                at_once = id(instance) in eager if looped else group <= summaries
                self.number[id(instance)] = self._owner(instance, at_once=at_once)
        # work that is needed only after the end belongs to the latest owner of its array
        for instances in self.of_array.values():
            latest = max((self.number[id(instance)] for instance in instances), default=0)
            for instance in instances:
                if instance.token and not self.number[id(instance)]:
                    self.number[id(instance)] = max(latest, instance.token)
        self.kinds = kinds or Kinds(temporaries, frozenset(summaries), self.unread, lone)

    def _collect(self, run: Run, system: System) -> None:
        """Note what the instances of a run write and may read, by entry and by array."""
        self.memory = run.memory
        self.writer: dict[Entry, Instance] = {}
        self.readers: dict[Entry, list[Instance]] = {}  # entry -> instances that may read it
        self.of_array: dict[Array, list[Instance]] = {e.array: [] for e in system.equations}
        # id of an instance -> its number in the order of execution
        self.order = {id(instance): k for k, instance in enumerate(run.instances)}
        for instance in run.instances:
            self.of_array[system.equations[instance.equation].array].append(instance)
            for entry in instance.writes:
                self.writer[entry] = instance
            for entry in instance.reached:
                self.readers.setdefault(entry, []).append(instance)

    def _in_order(self, group: Iterable[Array]) -> list[Instance]:
        """The instances that write some arrays, in the order of execution."""
        found = [instance for array in group for instance in self.of_array[array]]
        return sorted(found, key=lambda instance: self.order[id(instance)])

    def of(self, instance: Instance) -> int:
        """The owner of an instance; 0 if it depends on no input."""
        return self.number[id(instance)]

    def of_entry(self, entry: Entry) -> int:
        """The owner of the instance that writes an entry, or the row of an input."""
        writer = self.writer.get(entry)
        return self.memory[entry].token if writer is None else self.of(writer)

    def _reader_owners(self, instance: Instance) -> set[int]:
        """The owners, without 0, of the instances that read or might gather what an instance
        writes."""
        readers = (r for entry in instance.writes for r in self.readers.get(entry, ()))
        return {self.number.get(id(r), 0) for r in readers} - {0}

    def _owner(self, instance: Instance, *, at_once: bool) -> int:
        """The owner (number of a token) of an instance whose readers have owners: 0 if it depends
        on no input, its own row for an output, the latest input row that it depends on if it runs
        `at_once` (a step of a loop that reads this row, a summary) or has no readers, else the
        first owner of its readers. 0 also if only work after the sequence reads the entries."""
        (array, where), *_ = instance.writes
        if not instance.token:
            return 0
        if array.role == "output":
            return where[0]
        if at_once:
            return instance.token
        read = any(entry in self.readers for entry in instance.writes)
        later = read or self._is_read_later(array, where)
        return min(self._reader_owners(instance), default=0 if later else instance.token)

    def _is_read_later(self, array: Array, where: tuple[int, ...]) -> bool:
        """Whether an entry lies behind all entries of its array that are read, on an axis that
        grows with the length l, and at larger sizes equally many positions lie there: work of
        tokens after the sequence reads the entry, as y[l + 1] reads s[l + 1] if y[i] reads s[i]."""
        if array not in self.unread or array not in self.longer:
            return False
        axes = zip(array.shape, where, self.last[array], strict=True)
        behind = ("l" in extent.letters and at > last for extent, at, last in axes)
        alike = map(eq, self.unread[array], self.longer[array])
        return any(map(and_, behind, alike))

    def _temporaries(self) -> frozenset[Array]:
        """The single-use temporaries of the run: the arrays of which each entry is read by at most
        one instance, of another array."""
        found = set()
        for array, instances in self.of_array.items():
            reading = [self.readers.get(e, []) for i in instances for e in i.writes]
            itself = {r.writes[0][0] for readers in reading for r in readers} & {array}
            if not itself and all(len(readers) < 2 for readers in reading):
                found.add(array)
        return frozenset(found)

    def _is_summary(self, instances: Iterable[Instance], temporaries: frozenset[Array]) -> bool:
        """Whether some instance reads entries of several tokens, and some instance's entries are
        read by work of several tokens."""
        several = any(len(self._tokens_read(i, temporaries)) > 1 for i in instances)
        return several and any(len(self._reader_owners(i)) > 1 for i in instances)

    def _tokens_read(self, instance: Instance, temporaries: frozenset[Array]) -> set[int]:
        """The tokens (numbers of the latest input row that an entry depends on) of the entries that
        an instance reads, without 0, the number of entries that depend on no input. An entry of
        single-use `temporaries` has the tokens of the entries that it is computed from."""
        found: set[int] = set()
        for entry in instance.reached:
            inside = entry[0] in temporaries and entry in self.writer
            tokens = {self.memory[entry].token}
            found |= self._tokens_read(self.writer[entry], temporaries) if inside else tokens
        return found - {0}

    def _eager(
        self, group: set[Array], temporaries: frozenset[Array], lone: Collection[int]
    ) -> set[int]:
        """The ids of the instances of a loop (`group`: its arrays) that run as soon as their latest
        input row (`token`) arrives: they read this row without passing an earlier row of the loop.
        Single-use `temporaries` are passed in any row, and are not among the result, nor are the
        equations of `lone` (`Kinds.of_one_token`) with as many rows as the length gives. Empty for
        a loop without row axes (`_axes`), to which the theory gives no order of rows."""
        axes = self._axes(group)
        if not axes:
            return set()
        arrays = {e: self.system.equations[e].array for e in lone}
        lone = {e for e, of in arrays.items() if of in axes and axes[of] in self._growing(e)}
        reached: dict[int, int] = {}  # id of an instance -> the latest input row so reached

        def through(entry: Entry, row: int) -> int:
            """The latest input row that row `row` of the loop reaches by way of an entry that it
            reads; 0 if the entry ends the way: it lies in another row of the loop, and is no
            temporary."""
            array, where = entry
            if array not in group:
                return self.memory[entry].token
            passed = where[axes[array]] == row or array in temporaries
            return reached[id(self.writer[entry])] if passed else 0

        eager = set[int]()
        for instance in self._in_order(group):
            (array, where), *_ = instance.writes
            rows = [through(entry, where[axes[array]]) for entry in instance.reads]
            reached[id(instance)] = max(rows, default=0)
            own = reached[id(instance)] == instance.token and array not in temporaries
            if own and instance.equation not in lone:
                eager.add(id(instance))
        return eager

    def _of_one_token(self, run: Run) -> frozenset[int]:
        """The equations of `Kinds.of_one_token`, by number, as this run shows them."""
        axes = [*map(self._growing, range(len(self.system.equations)))]
        tokens: dict[int, set[int]] = {}  # equation -> the latest input rows of its instances
        rows: dict[int, set[tuple[int, ...]]] = {}  # equation -> its positions on growing axes
        for instance in run.instances:
            (_, where), *_ = instance.writes
            tokens.setdefault(instance.equation, set()).add(instance.token)
            growing = axes[instance.equation]
            rows.setdefault(instance.equation, set()).add(tuple(where[axis] for axis in growing))
        return frozenset(e for e in rows if len(rows[e]) > 1 and len(tokens[e] - {0}) < 2)

    def _growing(self, number: int) -> tuple[int, ...]:
        """The axes on which an equation, by its number, writes further in longer sequences."""
        equation = self.system.equations[number]
        ends = {index.atom: index.ends for index in equation.indices}
        return tuple(
            axis
            for axis, position in enumerate(equation.positions)
            for name in position_value(position).letters & ends.keys()
            if any("l" in end.letters for end in ends[name])
        )

    def _axes(self, group: set[Array]) -> Mapping[Array, int]:
        """Array of a loop -> its row axis, such that every reference reads its own row or the
        neighbouring row on one side, and as many references as possible the neighbouring row. {} if
        there are no such axes."""
        pairs = [
            (written, read)
            for array in group
            for instance in self.of_array[array]
            for written in instance.writes[:1]
            for read in instance.reads
            if read[0] in group
        ]
        best: tuple[int, Mapping[Array, int]] = (-1, {})
        for chosen in product(*(range(len(array.shape)) for array in group)):
            axes = dict(zip(group, chosen, strict=True))
            apart = [one[1][axes[one[0]]] - two[1][axes[two[0]]] for one, two in pairs]
            if {*apart} <= {0, 1} or {*apart} <= {0, -1}:
                best = max(best, (len(apart) - apart.count(0), axes), key=lambda b: b[0])
        return best[1]


def _components(system: System) -> list[tuple[set[Array], bool]]:
    """The strongly connected components of arrays in topological order, as (arrays, whether they
    are a loop)."""
    needs = needed(system)
    found: dict[Array, tuple[set[Array], bool]] = {}
    for equation in system.equations:
        array = equation.array
        group = {a for a in needs[array] if array in needs.get(a, ())} | {array}
        found.pop(array, None)  # an array stands at its last equation, behind all that it reads
        found[array] = group, array in needs[array]
    kept: list[tuple[set[Array], bool]] = []
    for group, looped in found.values():
        if all(group != other for other, _ in kept):
            kept.append((group, looped))
    return kept


class Held:
    """The entries in memory after each token because a later token reads them."""

    def __init__(self, run: Run, owners: Owners, instances: Iterable[Instance]) -> None:
        """Note for each token the entries that its instances read or might gather."""
        self._memory, self._owners = run.memory, owners
        self.read_by: dict[int, set[Entry]] = {}
        """Token -> the entries that its instances read or might gather."""
        for instance in instances:
            self.read_by.setdefault(owners.of(instance), set()).update(instance.reached)
        self._after: dict[int, set[Entry]] = {}

    def read_after(self, t: int) -> set[Entry]:
        """The entries that a token after t reads or might gather."""
        return set().union(*(read for token, read in self.read_by.items() if token > t))

    def after(self, t: int) -> set[Entry]:
        """The entries with owners up to t, or of the context alone, that a later token reads or
        might gather: the state after t tokens."""
        if t not in self._after:
            self._after[t] = {entry for entry in self.read_after(t) if self.holds(entry, t)}
        return self._after[t]

    def holds(self, entry: Entry, t: int) -> bool:
        """Whether an entry depends on an input or context, and its owner is at most t (0 for an
        entry of the context alone)."""
        return self._memory[entry].given and self._owners.of_entry(entry) <= t


class Decoding:
    """A sequence executed token by token, with nothing of earlier tokens but the state: it proves
    that the derived state suffices, and counts the operations of a token."""

    def __init__(self, run: Run, owners: Owners, held: Held) -> None:
        """Note what each token must compute (its output row, unread entries), and the entries that
        are in memory for all tokens, such as weights."""
        self.run, self.owners, self.held = run, owners, held
        self.given: dict[int, list[Entry]] = {}
        """Token -> the entries that it must compute besides new state: its output row, and entries
        of its own that nothing reads."""
        read = {entry for instance in run.instances for entry in instance.reads}
        for entry, writer in owners.writer.items():
            if entry[0].role == "output" or entry not in read:
                self.given.setdefault(owners.of(writer), []).append(entry)
        self.always = {entry for entry in run.memory if not owners.of_entry(entry)}

    def work(self, t: int) -> list[Instance]:
        """The instances that token t needs, in order: found from its results (output row, unread
        entries, new state) back to the entries in memory. OracleError if one needs an entry that is
        not held and that no instance writes."""
        there = self._there(t)
        wanted = [*self.given.get(t, ()), *(self.held.after(t) - self.held.after(t - 1))]
        found: dict[int, Instance] = {}
        while wanted:
            entry = wanted.pop()
            if entry not in there:
                if entry not in self.owners.writer:
                    raise OracleError(
                        f"token {t} needs {entry[0].name}{list(entry[1])}, which no earlier token "
                        "keeps and no equation computes: expected a causal form"
                    )
                instance = self.owners.writer[entry]
                if id(instance) not in found:
                    found[id(instance)] = instance
                    wanted += instance.reads
        return [found[key] for key in sorted(found, key=self.owners.order.__getitem__)]

    def token(self, t: int, without: Collection[Entry] = ()) -> list[Instance]:
        """The instances of the decoding step of token t, executed with only the held entries in
        memory, minus `without`: a test leaves out one entry to show that it is needed.

        Raises:
            OracleError: an instance reads what is not in memory, or gives another value than the
                whole run.
        """
        done, memory = self.run.again(self.work(t), self._there(t) - {*without})
        for entry in (*self.given.get(t, ()), *self.held.after(t)):
            if memory[entry].value != self.run.memory[entry].value:
                raise OracleError(
                    f"{entry[0].name}{list(entry[1])} is {memory[entry].value} in the step of "
                    f"token {t}, but {self.run.memory[entry].value} in the whole run: expected one "
                    "value"
                )
        return done

    def _there(self, t: int) -> set[Entry]:
        """The entries in memory when token t arrives: its input row, the state, weights."""
        row = {e for e in self.run.memory if e[0].role == "input" and e[1][0] == t}
        return row | self.held.after(t - 1) | self.always
