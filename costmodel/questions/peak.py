"""The peak memory: the largest set of live elements under a fixed schedule.

Equations run one by one in topological order. The live range of an array is from the first equation
that writes the array to the last that reads it; inputs are live throughout, results until the end.
An array that only its own loop reads, at most one row back, holds one row. Parameters, their
gradients and the state of an optimiser are counted separately.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache
from operator import ge
from typing import TYPE_CHECKING, Unpack

from costmodel.errors import Unanswered, Unsupported
from costmodel.language.equations import TRAINED, Equation, Mixer, System
from costmodel.language.nodes import Array
from costmodel.program.conventions import WANTED, Convention
from costmodel.program.phases import TRAINING_STEP, iteration_domains, phase_name
from costmodel.program.recurrences import blocks, references
from costmodel.program.tokens import tokens
from costmodel.program.wellformed import axes_of, defined, small_sizes, whole
from costmodel.questions.parameters import parameters, parameters_of
from costmodel.questions.question import (
    BATCH,
    Answers,
    Case,
    Figure,
    Largest,
    Name,
    Question,
    Said,
    Sentence,
    Share,
    Tally,
    in_bytes,
    over_parts,
)
from costmodel.questions.subject import Training, about_mixer, asked, system_of
from costmodel.symbolic.at_sizes import at_sizes
from costmodel.symbolic.constraints import nonnegative, projected
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polyhedral_sums import union_size
from costmodel.symbolic.polynomial import Poly, Values, axis_atom
from costmodel.symbolic.sympy_form import Symbolic

if TYPE_CHECKING:
    import sympy

ONE = Poly.of(1)
OPTIMISERS: Mapping[str, int] = {"none": 0, "sgd": 0, "momentum": 1, "adamw": 2}
"""Optimiser -> the numbers of its state for each parameter."""


@dataclass(frozen=True)
class Live:
    """The live elements while one equation runs: per sequence, and once for the whole batch."""

    equation: str
    each: Exact
    once: Exact

    def at(self, sizes: Mapping[str, int]) -> int:
        """The live elements for b sequences."""
        return sizes.get("b", 1) * self.each.at(sizes) + self.once.at(sizes)


@dataclass(frozen=True)
class Peak(Symbolic):
    """The largest set of live elements of a phase; exact."""

    moments: tuple[Live, ...]
    """The live elements per equation, without equations whose live elements are proven to be at
    most those of another equation."""
    parameters: Poly
    gradients: Poly
    """The entries of the parameters, and those of their gradients, if these are asked for."""

    @at_sizes
    def at(self, *, b: int = 1, **sizes: int) -> int:
        """The largest live set of `b` sequences at integer sizes, without weights and their
        gradients."""
        return max(moment.at({**sizes, "b": b}) for moment in self.moments)

    @at_sizes
    def when(self, *, b: int = 1, **sizes: int) -> str:
        """The first equation that runs while the largest live set is held."""
        return max(self.moments, key=lambda m: m.at({**sizes, "b": b})).equation

    def optimiser(self, name: str) -> Poly:
        """The number of entries in an optimiser's state (such as 2 per weight), for the parameters
        that get a gradient.

        Raises:
            ValueError: an unknown optimiser; the message lists the known ones.
        """
        if name not in OPTIMISERS:
            raise ValueError(f"unknown optimiser '{name}': expected one of {', '.join(OPTIMISERS)}")
        return self.gradients * OPTIMISERS[name]

    @property
    def expr(self) -> sympy.Expr:
        """The largest live set of one sequence as a sympy expression."""
        import sympy

        result: sympy.Expr = sympy.Max(*((m.each + m.once).expr for m in self.moments))
        return result


@dataclass(frozen=True)
class Held:
    """The live range of an array, from step `first` to `last`; `once`: one copy per batch."""

    array: Array
    number: Exact
    """The entries held, per copy."""
    first: int
    last: int
    once: bool


@cache
def _moments(system: System, phase: str) -> tuple[Live, ...]:
    """The live elements at each step of a phase (a step executes one equation, or a loop). Steps
    that are proven to hold at most as many elements as another step are left out."""
    steps = steps_of(system, phase)
    held = list(held_arrays(system, phase, steps))
    found: list[Live] = []
    for k, step in enumerate(steps):
        live = {True: Exact(), False: Exact()}  # of arrays held once a batch, and per sequence
        for one in held:
            if one.first <= k <= one.last:
                live[one.once] = live[one.once] + one.number
        found.append(Live(step[0].part_of, live[False], live[True]))
    return tuple(_largest(found, small_sizes(system.mixer, system.form)))


def steps_of(system: System, phase: str) -> list[tuple[Equation, ...]]:
    """The equations of a phase in the order of execution; the equations of a loop are one step."""
    own = {part.equation for part in iteration_domains(system, phase)}
    found = [tuple(e for e in block.equations if e in own) for block in blocks(system)]
    return [step for step in found if step]


def held_arrays(
    system: System, phase: str, steps: Sequence[tuple[Equation, ...]]
) -> Iterator[Held]:
    """Yield the live range of each array with its entries, without weights and their gradients,
    which `Peak` counts separately. A range is from the first of `steps` (an equation, or those of a
    loop; numbered from 0) that writes an array (0 for given arrays) to the last that reads it, or
    the first if none does; inputs, contexts and results are held to the end. An array that its own
    loop alone reads, one row back, has the entries of one row."""
    apart = {a for a in system.mixer.arrays.values() if a.role in ("parameter", "buffer")}
    apart |= {a for a in system.results(phase) if a in system.shared_gradients}
    written = {e.array: k for k, step in reversed(list(enumerate(steps))) for e in step}
    read = _steps_that_read(steps)
    end, named = len(steps) - 1, {array.name for array in read}
    given = (*system.mixer.inputs, *system.mixer.contexts)
    unread = (array for array in given if array.name not in named)  # held without a reader too
    for array in dict.fromkeys((*written, *read, *unread)):
        if array in apart:
            continue
        kept = array.role in ("input", "context") or array in system.results(phase)
        first = written.get(array, 0)
        last = end if kept else max(read.get(array, {first}))
        inside = array in written and read.get(array) == {first} and not kept
        count = _row if inside and _row_by_row(system, array) else entries_held
        yield Held(array, count(system, array), first, last, once=held_once(system, array))


def _row_by_row(system: System, array: Array) -> bool:
    """Whether an array is read only in the loop that writes the array, at most one row back."""
    return all(
        block.lag(equation, ref) in (0, 1)
        for block in blocks(system)
        for equation in block.equations
        for ref in references(equation)
        if ref.array is array
    )


def held_once(system: System, array: Array) -> bool:
    """Whether a batch holds one copy of an array, as of a gradient or a product of weights."""
    if array in system.shared_gradients:
        return True
    return (
        array in system.forward.defining
        and array not in tokens(system.forward).from_inputs_or_contexts
    )


def entries_held(system: System, array: Array) -> Exact:
    """The number of entries of an array that equations define, l - 1 of h[i] for i in 2..l; of an
    array without equations (an input) all entries."""
    if array not in system.defining:
        return union_size(axes_of(array), [whole(array)], ONE)
    found = [where for e in system.defining[array] if (where := defined(e)) is not None]
    return union_size(axes_of(array), found, ONE)


def _steps_that_read(steps: Sequence[tuple[Equation, ...]]) -> Mapping[Array, Set[int]]:
    """Array -> the numbers, from 0, of the steps in which an equation reads the array."""
    read: dict[Array, set[int]] = {}
    for k, step in enumerate(steps):
        for equation in step:
            for ref in references(equation):
                read.setdefault(ref.array, set()).add(k)
    return read


def _row(system: System, array: Array) -> Exact:
    """The number of entries in one row of an array that a loop writes, 3 for s[i, c] with c in 1..3
    (0 if no equation defines one), exact in sizes. Raises Unsupported: it is not proven that all
    rows have as many entries."""
    axis = next(block.axes[array] for block in blocks(system) if array in block.axes)
    every, here = whole(array), axis_atom(axis)
    across = tuple(x for x in axes_of(array) if x != here)
    regions = [where for e in system.defining[array] if (where := defined(e)) is not None]
    rows = {frozenset(c for c in where if here in c.letters) for where in regions}
    # where a condition on the other axes leaves entries out, it must be the same for all rows
    partial = any(c.letters & {*across} for where in regions for c in where - every)
    if partial and (len(rows) > 1 or any(c.letters & {*across} for row in rows for c in row)):
        raise Unsupported(
            f"{array.name}: not all rows of the recurrence are proven to have equally many "
            f"entries: define {array.name} at every entry of each row"
        )
    return union_size(across, [projected(where, [here]) for where in regions], ONE)


def _largest(found: Sequence[Live], tried: Sequence[Mapping[str, int]]) -> Iterator[Live]:
    """Yield the live sets without those that are proven to be at most as large as another; of equal
    live sets, the first. Before a proof, the sizes `tried` are substituted: a live set that is
    larger at one of them needs no proof."""
    small = [Values(sizes) for sizes in tried]  # the live sets share functions of sizes
    at = [
        tuple(part.rational(sizes) for sizes in small for part in (moment.each, moment.once))
        for moment in found
    ]

    def is_as_large(one: int, two: int) -> bool:
        """Whether live set `one` is at least as large as `two` at the sizes tried, and by proof."""
        return all(map(ge, at[one], at[two])) and _is_at_least(found[one], found[two])

    for k, moment in enumerate(found):
        rivals = (j for j in range(len(found)) if j != k)
        if not any(is_as_large(j, k) and (j < k or not is_as_large(k, j)) for j in rivals):
            yield moment


def _is_at_least(one: Live, two: Live) -> bool:
    """Whether the live set `one` is proven to be at least `two`, per sequence and per batch."""
    return all(_proven(a - b) for a, b in ((one.each, two.each), (one.once, two.once)))


def _proven(difference: Exact) -> bool:
    """Whether a difference is proven to be at least 0; False if it has cases."""
    return all(not guards and nonnegative(poly) for guards, poly in difference.pieces)


def there_before(mixer: Mixer, phase: str) -> Poly:
    """The entries per sequence that exist before a phase begins, without parameters: inputs,
    contexts and, in a phase with gradients, the gradient of the output, as large as the output."""
    given = [mixer.role("input"), *mixer.beside]
    if phase_name(phase) in TRAINING_STEP:
        given.append(mixer.role("output"))
    total = Poly()
    for array in given:
        number = Poly.of(1)
        for extent in array.shape:
            number = number * extent
        total = total + number
    return total


@about_mixer
def peak(
    mixer: Mixer,
    phase: str = "training",
    form: str | None = None,
    convention: str | tuple[str, ...] | Convention = "strict",
    **training: Unpack[Training],
) -> Peak:
    """The largest number of elements live at once in a forward pass, a backward pass or a training
    step, with the numbers of parameters and of their gradients beside it; exact in the sizes.

    Args:
        phase, form, convention, training: as in `count`; "training" is the forward pass.

    Raises:
        Unanswered: the phase `inference`; the memory of one new token is its state.
        Unsupported: an equation whose gradient is not derived, or a loop whose rows are not proven
            to have equally many entries.

    >>> import costmodel as cm
    >>> cm.peak(cm.mixer("me"), "training-step").at(l=128, d=128)
    65536
    """
    phase = phase_name(phase)
    if phase == "inference":
        raise Unanswered(
            "the memory of one new token is the state and one row: ask for the column state"
        )
    system = system_of(mixer, form, asked(convention, phase, training).rewrites, phase)
    gradients = Poly()  # of the parameters, which all sequences of a batch share
    for array in system.results(phase) & system.shared_gradients:
        number = Poly.of(1)
        for extent in array.shape:
            number = number * extent
        gradients = gradients + number
    return Peak(_moments(system, phase), parameters(mixer).poly, gradients)


def _of_parts(shares: Sequence[Share[Peak]]) -> Peak:
    """The peak of a network: the live sets (elements held at a step) of each part's runs by
    themselves (a part's arrays are live during its own run only), and the parameters and gradients
    of all parts. `shares`: the parts' answers."""
    moments, weights, gradients = [], Poly(), Poly()
    for share in shares:
        at = share.sizes
        for one in share.answer.moments:
            moments.append(Live(f"{share.name}: {one.equation}",
                                one.each.substitute(at), one.once.substitute(at)))  # fmt: skip
        weights = weights + share.answer.parameters.substitute(at) * share.copies
        gradients = gradients + share.answer.gradients.substitute(at) * share.copies
    return Peak(tuple(moments), weights, gradients)


@over_parts(_of_parts)
def peak_of(about: Answers) -> Peak:
    """The largest live set of a form in a phase."""
    return peak(about.mixer, about.phase, about.form, about.convention)


def _of_a_batch(case: Case) -> Largest:
    moments = case.about.of(peak_of).moments
    held = [moment.each * BATCH + moment.once for moment in moments]
    return Largest(tuple(held or [Exact.of(Poly())]))


def _optimiser(case: Case) -> Exact:
    """The size of the state of the case's optimiser, in bytes of the weights' type, or in elements
    if the case has no element types; 0 if parameters get no gradient (`only=inputs`). Raises
    Unanswered without an optimiser."""
    if case.optimiser is None:
        raise Unanswered("no optimiser is given: add --optimiser sgd, momentum or adamw")
    trained = "parameter" in WANTED.get(case.about.convention.backward.only, TRAINED)
    times = OPTIMISERS[case.optimiser] if trained else 0
    return in_bytes(case, "weights", case.about.of(parameters_of).exact * times)


def _notes(cases: Sequence[Case], shown: Sequence[str]) -> Iterator[str]:
    for name in dict.fromkeys(case.optimiser for case in cases if case.optimiser):
        yield f"optimiser {name}: {OPTIMISERS[name]} times the parameters that get a gradient"


def _explained(case: Case) -> Iterator[Sentence]:
    """Yield a sentence with the largest live set of b sequences, when it is held, the parameters,
    their gradients (backward, training-step), and the state of a named optimiser (training-step).
    """
    found = case.about.of(peak_of)
    words: list[Said] = [
        f"Largest live set: {found.at(**case.sizes):,} elements at these sizes, held while ",
        Name(found.when(**case.sizes)),
        " is computed, with the equations in the order written. In addition: ",
        *(found.parameters, " parameters"),
    ]
    if case.phase in TRAINING_STEP:
        words += [", ", found.gradients, " entries of their gradients"]
    if case.optimiser and case.phase == "training-step":
        state = found.optimiser(case.optimiser)
        words += [f", and {case.optimiser} keeps ", state, " numbers besides"]
    yield Sentence((*words, "."))


PEAK = Question(
    "peak",
    "Largest live set",
    (
        Figure(
            "peak",
            "the most elements held at once, without parameters and their gradients",
            _of_a_batch,
            header="peak\n(elements)",
            heading="largest live set (elements)",
            key="peak_elements",
            unit="elements",
            phases=("training", *TRAINING_STEP),
            claimed=True,
        ),
        Figure(
            "optimiser",
            "state of the optimiser beside parameters and their gradients",
            _optimiser,
            header="optimiser\n(B)",
            heading="state of the optimiser (bytes)",
            key="optimiser_bytes",
            unit="bytes",
            phases=("training-step",),
            always=True,
            usual=lambda cases: any(case.optimiser for case in cases),
            notes=(_notes,),
        ),
    ),
    peak,
    (Tally("peak", lambda about, sizes: about.of(peak_of).at(**sizes)),),
    explained=_explained,
)
