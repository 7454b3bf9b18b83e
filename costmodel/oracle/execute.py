"""Costs tallied over an execution of a mixer's equations on numbers, instance by instance.

The equations are run entry by entry with instrumented scalars (interpreter.py). An instance is one
equation at one point (values of its indices); every answer is a plain tally over what the instances
did, read and wrote. Nothing is shared with the rules: there are no polynomials, no closed sums and
no case distinctions.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from costmodel.errors import OracleError
from costmodel.language.buffers import buffer_values, last_positions
from costmodel.language.equations import Equation, Form, System
from costmodel.language.nodes import Array
from costmodel.oracle.interpreter import Interpreter, Run, Values
from costmodel.oracle.owners import Decoding, Held, Kinds, Owners
from costmodel.oracle.scalars import Entry, Instance
from costmodel.program.conventions import computes_masked
from costmodel.program.lowering import lower
from costmodel.symbolic.effort import spend

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Compulsory:
    """The number of entries moved if every entry is read once and written once."""

    inputs: int
    """Entries of inputs and contexts read."""
    weights: int  # entries of parameters and buffers; in inference of all work on weights, read
    state: int
    """Entries of the state read, in one-token inference."""
    outputs: int  # entries of the output, written
    state_written: int  # entries that token t adds to the state, in one-token inference


@dataclass(frozen=True)
class Unfused:
    """The number of entries that one equation reads and writes: `weights` depend on no input,
    `state` is read from earlier tokens (in one-token inference), `activations` are all others."""

    array: str  # the name of the array that the equation defines
    activations: int
    weights: int
    state: int


def random_arrays(form: Form, sizes: Mapping[str, int]) -> dict[str, np.ndarray[Any, Any]]:
    """A dict: name -> values of the declared shape, for every array of the mixer but the output:
    random numbers in -1..1 that the array's name seeds; for an index array random positions, from 1
    to the last that it may hold; for a buffer that defines its values, these."""
    import numpy as np

    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for name, array in form.mixer.arrays.items():
        if array.role == "output":
            continue
        shape = tuple(e.at(sizes) for e in array.shape)
        spend(math.prod(shape))
        if array.value is not None:
            arrays[name] = buffer_values(array, sizes)
        else:
            generator = np.random.default_rng(zlib.crc32(name.encode()))
            if array.below is None:
                arrays[name] = generator.uniform(-1, 1, shape)
            else:
                last = last_positions(array, sizes)
                arrays[name] = generator.integers(1, last.clip(1) + 1, shape)
    return arrays


def execute(
    form: Form,
    sizes: Mapping[str, int],
    *,
    rewrites: Sequence[str] = (),
    length: int | None = None,
    accounting: str = "strict",
    arrays: Values | None = None,
) -> Execution:
    """The execution of a form, lowered under the rewrites, on random values unless `arrays` (by
    name) are given; `length` replaces the size l. OracleError: an entry is undefined."""
    system = lower(form, tuple(rewrites))
    # both read zeros outside of arrays
    dense = "zero-state" in rewrites or computes_masked(rewrites)
    return run(system, sizes, length=length, accounting=accounting, dense=dense, arrays=arrays)


def run(
    system: System,
    sizes: Mapping[str, int],
    *,
    length: int | None = None,
    accounting: str = "strict",
    dense: bool = False,
    arrays: Values | None = None,
    ready: Collection[Equation] = (),
) -> Execution:
    """The execution of a lowered system, operation by operation.

    Args:
        length: the number of tokens, in place of the size l.
        accounting: "strict" (R-1 additions in a sum of R terms) or "mac" (R).
        dense: entries outside of an array, or never defined, are zeros that are multiplied like any
            other entry; otherwise reading one is an error.
        arrays: values by name, for inputs, contexts, parameters and buffers; by default random.
        ready: equations whose results exist from the start: they are executed, but cost nothing.

    Raises:
        OracleError: an entry is read before it is defined, defined twice, never defined though it
            is part of the output, or lies outside its array.
    """
    given = dict(sizes) if length is None else {**sizes, "l": length}
    done = frozenset(k for k, equation in enumerate(system.equations) if equation in ready)
    if arrays is None:
        return _of_random_arrays(system, tuple(given.items()), accounting, dense, done)
    return Execution(system, given, accounting, dense, arrays, done)


@lru_cache(maxsize=64)
def _of_random_arrays(
    system: System,
    sizes: tuple[tuple[str, int], ...],
    accounting: str,
    dense: bool,
    ready: frozenset[int],
) -> Execution:
    """An execution on random arrays, cached: all proofs of a form share one. The results of the
    `ready` equations (by number) exist from the start: the others are executed again, after an
    execution of all equations, which is cached by itself since most proofs need it too."""
    if ready:
        whole = _of_random_arrays(system, sizes, accounting, dense, frozenset())
        return whole.resumed(ready)
    values = random_arrays(system.mixer.forms[system.form], dict(sizes))
    return Execution(system, dict(sizes), accounting, dense, values)


@dataclass(frozen=True)
class Execution:
    """The record of one execution, and every answer read off it; `run` explains the fields."""

    system: System
    sizes: Mapping[str, int]
    accounting: str
    dense: bool
    arrays: Values
    ready: frozenset[int] = frozenset()
    """The numbers of the equations whose results exist from the start."""
    whole: Execution | None = None
    """The execution of the same system without ready equations, if there is one."""

    @cached_property
    def trace(self) -> Run:
        """The run, executed at the first use: memory and instances. If `whole`, an execution of all
        equations, is known, its run is used without the equations that are `ready` (whose arrays
        exist before the phase)."""
        if self.whole is not None:
            return self.whole.trace.without(self.ready)
        asked = self.system, self.sizes, self.accounting, self.dense, self.arrays, self.ready
        return Run(Interpreter(*asked))

    @cached_property
    def instances(self) -> list[Instance]:
        """Every instance in the order of execution, without those of ready equations."""
        return [i for i in self.trace.instances if i.equation not in self.ready]

    def resumed(self, ready: frozenset[int]) -> Execution:
        """The execution in which the results of some equations, by number, exist from the start."""
        return replace(self, ready=ready, whole=self)

    def token(self, entry: Entry) -> int:
        """The latest input row that an entry depends on."""
        return self.trace.memory[entry].token

    def _tally(self, wanted: Callable[[Instance], bool]) -> dict[str, int]:
        """Class -> number of operations of the instances that are `wanted`."""
        return _operations(instance for instance in self.instances if wanted(instance))

    def counts(self) -> dict[str, int]:
        """Class -> number of operations that depend on an input or a context."""
        return self._tally(lambda instance: instance.given)

    def once(self) -> dict[str, int]:
        """Class -> number of operations that depend on weights alone."""
        return self._tally(lambda instance: not instance.given)

    @cached_property
    def owners(self) -> Owners:
        """The owner of every instance: the token whose decoding step executes the instance."""
        return Owners(self.trace, self.system, _kinds(self.system, enlarged(self)))

    @cached_property
    def decoding(self) -> Decoding:
        """The same sequence, decoded token by token."""
        return Decoding(self.trace, self.owners, self.held)

    @cached_property
    def decoded(self) -> Callable[[int], list[Instance]]:
        """Token -> the instances of its decoding step, executed with the state alone in memory.

        Raises:
            OracleError: the state does not suffice, or the values differ from the complete run.
        """
        return cache(self.decoding.token)

    def counts_inference(self, t: int) -> dict[str, int]:
        """Class -> operations of the step of token t; OracleError: the state does not suffice."""
        return _operations(self.decoded(t))

    def span(self) -> int:
        """The depth: the length of the longest chain of operations; needs one instance."""
        return max(instance.depth for instance in self.instances)

    def span_inference(self, t: int) -> int:
        """The depth of the decoding step of token t; the results of older tokens have depth 0."""
        return max((instance.depth for instance in self.decoded(t)), default=0)

    def steps(self) -> int:
        """The length of the longest chain, where a sum, transform or selection is one step."""
        return max(instance.steps for instance in self.instances)

    def steps_inference(self, t: int) -> int:
        """`steps` of the decoding step of token t."""
        return max((instance.steps for instance in self.decoded(t)), default=0)

    @cached_property
    def causal(self) -> bool:
        """Whether no output row depends on a later input row."""
        return all(self.token(e) <= e[1][0] for e in self.trace.memory if e[0].role == "output")

    @property
    def output(self) -> np.ndarray[Any, Any]:
        """The values of the output, of its declared shape; NaN where no entry is defined."""
        import numpy as np

        array = self.system.mixer.role("output")
        result = np.full(self.trace.shape(array), np.nan)
        for (owner, where), scalar in self.trace.memory.items():
            if owner is array:
                result[tuple(p - 1 for p in where)] = scalar.value
        return result

    def state(self, t: int) -> int:
        """The number of entries, of tokens up to t or of a context alone, that an instance of a
        later token reads. OracleError unless the form is causal and l > t; l must be so large that
        every such read occurs."""
        if not self.causal or self.sizes["l"] <= t:
            wrong = "the form is not causal" if not self.causal else f"l is {self.sizes['l']}"
            raise OracleError(f"state({t}): {wrong}; expected a causal form, and l above {t}")
        return len(self.held.after(t))

    @cached_property
    def held(self) -> Held:
        """The entries that are held in memory after each token."""
        return Held(self.trace, self.owners, self.instances)

    def kept(self) -> set[Entry]:
        """The entries (array, positions) of inputs, contexts and arrays that exist from the start,
        which instances read or might gather: of a backward pass, the entries that the forward pass
        keeps."""
        ready = {self.system.equations[k].array for k in self.ready}
        reached = set().union(*(instance.reached for instance in self.instances))
        return {
            entry for entry in reached if entry[0].role in ("input", "context") or entry[0] in ready
        }

    def compulsory(self) -> Compulsory:
        """The least traffic of a forward pass, in entries: inputs, weights and outputs move
        once."""
        read = read_by(self.instances)
        outputs = sum(e[0].role == "output" for e in self.trace.memory)
        inputs = _of_role(read, "input", "context")
        return Compulsory(inputs, _of_role(read, *WEIGHTS), 0, outputs, 0)

    def compulsory_inference(self, t: int) -> Compulsory:
        """The least traffic of token t alone, in entries, given the state of earlier tokens: input
        row t, weights and the held entries that it reads, its output row, and the entries that it
        adds to the state. Exact if l is above t, so large that later tokens read all of these."""
        read = self.held.read_by.get(t, set())
        later = self.held.read_after(t)
        return Compulsory(
            inputs=sum(e[0].role == "input" and self.owners.of_entry(e) == t for e in read),
            weights=sum(not self.trace.memory[e].given for e in read),
            state=sum(self.held.holds(e, t - 1) for e in read),
            outputs=sum(
                e[0].role == "output" and self.owners.of_entry(e) == t for e in self.trace.memory
            ),
            state_written=sum(self.owners.of_entry(e) == t for e in later),
        )

    def unfused(self) -> list[Unfused]:
        """Unfused traffic of a forward pass, one record per equation: its distinct operand entries
        are read, its results written."""
        return self._unfused(self.instances, None)

    def unfused_inference(self, t: int) -> list[Unfused]:
        """The traffic of token t alone without fusion, in entries: one record per equation, and a
        last record of the entries of the input row that later tokens read, written to the state."""
        later = self.held.read_after(t)
        kept = sum(e[0].role == "input" and self.owners.of_entry(e) == t for e in later)
        work = [i for i in self.instances if self.owners.of(i) == t]
        return [*self._unfused(work, t), Unfused("state", 0, 0, kept)]

    def _unfused(self, instances: Sequence[Instance], t: int | None) -> list[Unfused]:
        """The traffic without fusion of the given instances, one `Unfused` record per equation;
        entries held after token t - 1 count as state (none if t is None). Equations that differ in
        their ranges alone (of a union) are one."""
        rows = []
        numbers: dict[object, list[int]] = {}  # equations that count as one -> their numbers
        for number, equation in enumerate(self.system.equations):
            left = equation.array, equation.positions
            numbers.setdefault((left, equation.value), []).append(number)
        of_equation: dict[int, list[Instance]] = {}
        for instance in instances:
            of_equation.setdefault(instance.equation, []).append(instance)
        for same in numbers.values():
            equation = self.system.equations[same[0]]
            of_it = [i for number in same for i in of_equation.get(number, ())]
            read = read_by(of_it)
            # of each entry read or written, whether it depends on an input or a context; one that
            # does not counts as a weight
            moved = [self.trace.memory[e].given for e in read]
            moved += [i.given for i in of_it for _ in i.writes]
            state = 0 if t is None else sum(self.held.holds(e, t - 1) for e in read)
            weights = moved.count(False)
            rows.append(Unfused(equation.name, len(moved) - weights - state, weights, state))
        return rows


def read_by(instances: Iterable[Instance]) -> set[Entry]:
    """The distinct entries (array, positions) that instances read. Of an array that a gather reads,
    v[g[i]] for i = 1..3, as many further entries are taken as there are distinct index expressions
    (3), at most all that might be read: only their number counts, and no value of g decides it."""
    placed: set[Entry] = set()
    may_be: set[Entry] = set()
    names: set[tuple[Array, object]] = set()
    for instance in instances:
        placed |= instance.placed
        if gathered := instance.gathered:
            may_be |= gathered.may_read
            names |= gathered.names
    for array, number in Counter(array for array, _ in names).items():
        others = (entry for entry in may_be - placed if entry[0] is array)
        placed.update(islice(others, number))
    return placed


def _operations(instances: Iterable[Instance]) -> dict[str, int]:
    """Class -> operations of the instances, sorted by class name; zeros left out."""
    total: Counter[str] = Counter()
    for instance in instances:
        for name, number in instance.operations.items():
            total[name] += number
    return {name: number for name, number in sorted(total.items()) if number}


WEIGHTS = ("parameter", "buffer")
"""The roles of arrays that are weights."""


def _of_role(entries: set[Entry], *roles: str) -> int:
    """The number of entries of arrays with one of the roles."""
    return sum(array.role in roles for array, _ in entries)


def enlarged(run: Execution) -> tuple[tuple[str, int], ...]:
    """The sizes of a run, enlarged such that an execution tells temporaries and summaries (`Kinds`)
    apart: no window, chunk or width is 1, and l holds several of each (l=5, w=1 becomes l=10, w=2);
    rows i - w + 1..i - r are two or more (w=1, r=1 becomes w=4, r=2); d is at least 2n. Batch b,
    groups g and heads n keep their values, as do sizes in an extent that would be a fraction, such
    as n/G."""
    letters = {k: max(v, 2) for k, v in run.sizes.items() if k not in ("b", "d", "g", "l", "n")}
    indices = run.system.mixer.forms[run.system.form].indices.values()
    for room in (up - low for i in indices for p in i.pieces for low in p.lower for up in p.upper):
        wider = [x for x in sorted(room.letters) if room.terms.get(((x, 1),)) == 1]
        if wider and room.letters <= letters.keys():
            letters[wider[0]] += max(0, math.ceil(1 - room.rational(letters)))
    letters["l"] = 4 + 3 * max(letters.values(), default=0)  # three windows or chunks, and more
    for fixed in run.sizes.keys() - letters.keys():
        letters[fixed] = run.sizes[fixed]
    if "d" in letters:
        letters["d"] = max(letters["d"], 2 * letters.get("n", 1))
    extents = [e for array in run.system.mixer.arrays.values() for e in array.shape]
    extents += [e for equation in run.system.equations for e in equation.array.shape]
    extents += [end for index in indices for end in index.ends if not end.variables]
    broken = [e for e in extents if not isinstance(e.rational(letters), int)]
    kept = {x for e in broken if "l" not in e.letters for x in e.letters}
    letters |= {x: run.sizes[x] for x in kept}
    # the first length from there on at which all extents are whole
    tried = range(letters["l"], letters["l"] + 1 + max(letters.values()))
    whole = (
        l for l in tried if all(isinstance(e.rational({**letters, "l": l}), int) for e in extents)
    )
    letters["l"] = next(whole, letters["l"])
    return tuple(sorted(letters.items()))


@cache
def _kinds(system: System, sizes: tuple[tuple[str, int], ...]) -> Kinds:
    """Which arrays of a system are single-use temporaries, and which are summaries of several
    tokens, found by an execution at these sizes, which are large enough to tell."""
    values = random_arrays(system.mixer.forms[system.form], dict(sizes))
    run = Run(Interpreter(system, dict(sizes), "strict", system.beyond, values))
    return Owners(run, system).kinds
