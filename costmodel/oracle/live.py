"""The largest set of live entries while equations are executed one by one.

The equations of a strongly connected component (a loop) are one step. Steps follow one another by
their last equations, each after the steps that it reads. The entries of an array are live from the
step that writes the array to the last step that reads the array; inputs are live throughout,
results until the end. Of an array that its own loop alone reads, at most one row back, one row is
live.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import cache

from costmodel.language.equations import Equation, System
from costmodel.language.nodes import Array
from costmodel.oracle.execute import WEIGHTS, Execution, enlarged, run
from costmodel.oracle.interpreter import needed
from costmodel.oracle.scalars import Entry
from costmodel.program.chosen_sizes import raised


def most_live(done: Execution, phase: str) -> int:
    """The largest number of live entries at one step of a phase, without weights and their
    gradients: an array counts from the step that writes it first to the last that reads it, an
    input at all steps, a result to the end. Of an array, no result, that its own loop alone reads,
    at most one row back, the largest row counts, else all entries."""
    results, steps = done.system.results(phase), _steps(done)
    end, live = len(steps) - 1, Counter[int]()
    entries: dict[Array, list[Entry]] = {}
    for entry in done.trace.memory:
        entries.setdefault(entry[0], []).append(entry)
    writing: dict[Array, set[int]] = {}  # array -> the numbers of the steps that write it
    reading: dict[Array, set[int]] = {}
    for k, step in enumerate(steps):
        for equation in step:
            writing.setdefault(equation.array, set()).add(k)
            for array in equation.value.arrays:
                reading.setdefault(array, set()).add(k)
    # add each array to the steps of its live range
    for array, every in entries.items():
        of = array.gradient_of if array in results else None
        if array.role in WEIGHTS or (of and of.role in WEIGHTS):
            continue
        written, read = writing.get(array, set()), reading.get(array, set())
        kept = {end} if array in results or array.role in ("input", "context") else set[int]()
        in_its_loop = len(written) == 1 and written == read and not kept
        number = _of_a_row(done, array, steps[min(read)], every) if in_its_loop else len(every)
        for k in range(min(written, default=0), max(written | read | kept, default=-1) + 1):
            live[k] += number
    return max(live.values(), default=0)


def _steps(done: Execution) -> Sequence[Sequence[Equation]]:
    """The steps of an execution in topological order, each as the equations of a loop or of one
    array. Equations whose results exist from the start (`ready`) are left out."""
    needs, by_loop = needed(done.system), dict[frozenset[Array], list[int]]()
    for number, equation in enumerate(done.system.equations):
        array = equation.array
        loop = frozenset({array, *(a for a in needs[array] if array in needs.get(a, ()))})
        by_loop.setdefault(loop, []).append(number)
    waiting, found = sorted(by_loop, key=lambda loop: by_loop[loop][-1]), []
    while waiting:
        later = frozenset[Array]().union(*waiting)
        found.append(next(loop for loop in waiting if not (needs[next(iter(loop))] - loop) & later))
        waiting.remove(found[-1])
    steps = ([n for n in by_loop[loop] if n not in done.ready] for loop in found)
    return [[done.system.equations[number] for number in step] for step in steps if step]


def _of_a_row(
    done: Execution, array: Array, step: Sequence[Equation], entries: Iterable[Entry]
) -> int:
    """The largest number of `entries` in one row of an array that the loop of `step` computes, as a
    loop keeps one row of it: 3 for a state s[i, c] with c in 1..3. The number of all entries if the
    loop reads the array more than one row back."""
    arrays = tuple(dict.fromkeys(equation.array for equation in step))
    axis = _axes(done.system, tuple(sorted(done.sizes)), done.dense, arrays).get(array)
    return max(Counter(None if axis is None else at[axis] for _, at in entries).values())


@cache
def _axes(
    system: System, letters: tuple[str, ...], dense: bool, loop: tuple[Array, ...]
) -> Mapping[Array, int]:
    """Array -> its axis of rows, for the arrays of a loop that are read at most one row back: 0 for
    s[i, c], whose equation reads s[i - 1, c]. Of the choices of axes that fit an execution
    (`_choices`), the first by which no array is read further back, else the first. Empty if none
    fits, as where r[i] reads s[i], which a later equation writes, and s[i + 1] reads r[i]. Sizes of
    1 are enlarged, or of 4 unless one choice fits: in p[1, c] = s[1, c - 1], s[1, c] = p[1, c], two
    channels c, axis 0 of p fits too, as s reads one entry. `dense`: entries outside are zeros."""
    for size in (1, 4):
        # the same sizes for every run, so that one execution tells the axes of all
        sizes = raised(system.mixer, dict.fromkeys(letters, size), system.form)
        large = enlarged(Execution(system, sizes, "strict", dense, {}))
        found = list(_choices(run(system, dict(large), dense=dense), loop))
        if len(found) == 1:
            break
    if not found:
        return {}
    far, axes = min(found, key=lambda choice: len(choice[0]) > 0)
    return {array: axis for array, axis in axes.items() if array not in far}


def _choices(
    done: Execution, loop: tuple[Array, ...]
) -> Iterator[tuple[Set[Array], Mapping[Array, int]]]:
    """Yield each choice of axes of rows by which every reference of a loop in an execution reads
    rows on one side of its own, or its own row from an equation that comes before, as (arrays that
    are read more than one row back, array -> axis)."""
    writer = {entry: one.equation for one in done.instances for entry in one.writes}
    # (array written, axis, array read, axis) -> (position written - position read, whether the
    # equation that writes what is read comes before)
    apart: dict[tuple[Array, int, Array, int], set[tuple[int, bool]]] = {}
    for instance in done.instances:
        for array, here in instance.writes[:1]:
            for entry in instance.reads:
                if array in loop and entry[0] in loop:
                    before = writer.get(entry, -1) < instance.equation
                    for k, one in enumerate(here):
                        for m, two in enumerate(entry[1]):
                            key = array, k, entry[0], m
                            apart.setdefault(key, set()).add((one - two, before))
    for sign in (1, -1):
        possible: list[dict[Array, int]] = [{}]
        for array in loop:
            more = ({**axes, array: k} for axes in possible for k in range(len(array.shape)))
            possible = [
                axes
                for axes in more
                if all(sign * x > 0 or (x == 0 and before) for _, x, before in _back(apart, axes))
            ]
        for axes in possible:
            yield {array for array, x, _ in _back(apart, axes) if abs(x) > 1}, axes


def _back(
    apart: Mapping[tuple[Array, int, Array, int], set[tuple[int, bool]]], axes: Mapping[Array, int]
) -> Iterator[tuple[Array, int, bool]]:
    """Yield (array read, distance in rows, whether its equation comes before) for the references of
    a loop, if `axes` are the axes of rows: (s, 1, False) for s[i], whose equation reads s[i - 1].
    """
    for (array, k, read, m), rows in apart.items():
        if (axes.get(array), axes.get(read)) == (k, m):
            yield from ((read, x, before) for x, before in rows)
