"""The critical path: the longest chain of dependent steps.

A product is one step `mul`, a reduction over any indices one step `sum` (or `max`). The number of
steps is the answer of `sequential`, by the same engine, which here also keeps the chain to each
entry. Of chains with equally many steps at the same points, the one with the largest span is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, reduce
from typing import Unpack

from costmodel.errors import Unsupported
from costmodel.language.equations import Mixer, System
from costmodel.language.functions import TABLE
from costmodel.language.nodes import (
    Add,
    Array,
    Bracket,
    Call,
    Composite,
    Constant,
    Div,
    Fft,
    FreeScale,
    Maximum,
    Mul,
    Neg,
    Node,
    Reduce,
    Ref,
    Scan,
    Select,
    Sub,
)
from costmodel.language.rule_table import WRITTEN_OUT, Rules
from costmodel.paths.chains import STEP_WORDS, Chain, CriticalPath, Sizes, Ties, large
from costmodel.paths.longest_path import Depths
from costmodel.program.conventions import Convention
from costmodel.program.phases import IterationDomain, phase_name
from costmodel.program.trip_count import levels as levels_of, number_kept, numbers_of_terms
from costmodel.questions.question import (
    FORWARD,
    Answers,
    Case,
    Explained,
    Figure,
    Listing,
    Name,
    Question,
    Sentence,
    Source,
    Tally,
    Whole,
)
from costmodel.questions.sequential import SEQUENTIAL, STEPS
from costmodel.questions.subject import Training, asked, mixer_required, system_of
from costmodel.symbolic.constraints import Constraints, variables_of
from costmodel.symbolic.piecewise_max import Level, guarded, maximised
from costmodel.symbolic.polynomial import Poly, call


@dataclass(frozen=True)
class Work:
    """The steps that a node adds to a chain: their names, and their levels of the span together.
    The levels are computed only where they decide between chains with equally many steps."""

    names: tuple[str, ...]
    levels: Callable[[], Poly]


def _operation(name: str) -> Callable[..., Work]:
    """The rule of a binary operation: one step of one level."""
    return lambda node, part, around: Work((name,), lambda: Poly.of(1))


def _call(node: Call, part: IterationDomain, around: Constraints) -> Work:
    steps = TABLE[node.function].steps
    return Work(steps, lambda: Poly.of(len(steps)))


def _reduce(node: Reduce, part: IterationDomain, around: Constraints) -> Work:
    """The work of a sum or maximum on a chain: one step, `sum` or `max`, which has ceil(log2 R)
    levels of the span (dependent scalar operations) for R terms. `around`: the constraints on the
    indices around the node."""

    def levels() -> Poly:
        numbers = numbers_of_terms(node, part, around)
        return _most([(call("ceil_log2", n), at) for n, at in numbers], part, around)

    return Work((node.kind,), levels)


def _along(name: str) -> Callable[..., Work]:
    """The rule of a transform or scan: one step, `name`, with the levels of its algorithm."""
    return lambda node, part, around: Work((name,), lambda: node.levels)


def _select(node: Select, part: IterationDomain, around: Constraints) -> Work:
    """The work of a selection (top-k, sort) on a chain: one step, `select`, which in the span has
    the levels of its algorithm. `around`: the constraints on the indices around the node."""

    def levels() -> Poly:
        numbers, kept = numbers_of_terms(node.maximum, part, around), number_kept(part)
        return _most([(levels_of(node, n, kept), at) for n, at in numbers], part, around)

    return Work(("select",), levels)


def _most(
    levels: Sequence[tuple[Poly, Constraints]], part: IterationDomain, around: Constraints
) -> Poly:
    """The largest number of levels of a node at any point (values of indices) of `part` that the
    phase executes, a polynomial in sizes alone. `levels` are (levels, conditions), one pair per
    case; `around` constrains indices around it."""
    names = (*part.variables, *sorted(variables_of(around) - {*part.variables}))
    most = [guarded(maximised(Level(depth, where), names, around)) for depth, where in levels]
    return call("Max", 0, *most)


def _none(node: Node, part: IterationDomain, around: Constraints) -> Work:
    raise AssertionError(f"{type(node).__name__} executes no operation: expected an operation")


WORK: Rules[Callable[..., Work]] = Rules(
    "critical_path",
    {
        Constant: _none,
        Ref: _none,
        Add: _operation("add"),
        Sub: _operation("add"),
        Mul: _operation("mul"),
        Div: _operation("div"),
        Maximum: _operation("compare"),
        Neg: _none,
        FreeScale: _none,
        Call: _call,
        Reduce: _reduce,
        Bracket: _none,
        Fft: _along("fft"),
        Scan: _along("scan"),
        Select: _select,
        Composite: WRITTEN_OUT,
    },
)
"""Kind of node -> the steps that it adds to a chain."""


class ChainDepths(Depths):
    """The depth of each entry in steps; its witness is a chain of these steps, chosen by `ties`."""

    def __init__(self, system: System, phase: str, ties: Ties) -> None:
        self.ties = ties
        super().__init__(system, phase, STEPS)

    def mark(self, array: Array) -> Level:
        """A level that stands for the depth of an array in the previous row of a loop, while the
        loop is solved; its witness is an empty chain that begins at the array."""
        return super().mark(array)._replace(witness=Chain(ties=self.ties, origin=array))

    def after(
        self,
        level: Level,
        node: Node,
        part: IterationDomain,
        around: Constraints,
        levels: Poly | int = 1,
    ) -> Level:
        """The level (a depth in steps, its conditions, a chain of so many steps) after a node of
        `part` at indices within `around`: `levels` steps deeper, 1 for a sum, and the chain with
        these steps. Their levels of the span, ceil(log2 R) for a sum of R terms, break `ties`."""
        work = WORK[type(node)](node, part, around)
        chain = level.witness if isinstance(level.witness, Chain) else Chain(ties=self.ties)
        longer = chain.then(part.equation.part_of, work.names, work.levels)
        return Level(level.depth + levels, level.where, longer)


@cache
def _known(system: System, phase: str) -> list[ChainDepths]:
    """A list, empty at first, of the chains derived so far; sizes at which ties break differently
    need other chains."""
    return []


def _depths(system: System, phase: str, sizes: Sizes | None) -> ChainDepths:
    """The depths of a phase's arrays, each with its longest chains of dependent steps. Chains
    derived before are used if all decisions between chains of equal length (ties) fall the same way
    at `sizes`; else chains are derived and kept."""
    known = _known(system, phase)
    found = next((depths for depths in known if depths.ties.hold_at(sizes)), None)
    if found is None:
        found = ChainDepths(system, phase, Ties(sizes))
        known.append(found)
    return found


@cache
def _path(system: System, phase: str, sizes: Sizes | None) -> CriticalPath:
    """The longest chain at `sizes`; sizes that are not given have large values. In a phase of
    `FORWARD` the chain ends at the output, in other phases at any array, as gradients are results
    too. Without a chain the path is empty. Raises Unsupported: the chain that was kept has fewer
    operations than the largest depth (`most`), which is proven."""
    depths, ties = _depths(system, phase, sizes), Ties(sizes)
    ends = [system.mixer.role("output")] if phase in FORWARD else [*depths.values]
    levels = [level for array in ends for level in depths.largest_depths(array)]
    letters = frozenset[str]().union(*(p.letters for x in levels for p in (x.depth, *x.where)))
    # steps to a row of a loop may name sizes that no depth names
    at = large({*letters, *system.mixer.letters, "t"}) | dict(sizes or ())
    valid = [x for x in levels if all(c.rational(at) >= 0 for c in x.where)]
    most = max((x.depth.at(at) for x in valid), default=0)
    longest = (x.witness for x in valid if x.depth.at(at) == most)
    chains = [replace(chain, ties=ties) for chain in longest if isinstance(chain, Chain)]
    path = (reduce(Chain.joined, chains) if chains else Chain(ties=ties)).path(at)
    if path.length.at(at) != most:
        raise Unsupported(
            f"the span at large sizes is {most}, but the longest chain found has "
            f"{path.length.at(at)} operations: ask for the column span"
        )
    return path


@mixer_required
def critical_path(
    mixer: Mixer,
    phase: str = "training",
    form: str | None = None,
    convention: str | tuple[str, ...] | Convention = "strict",
    sizes: Mapping[str, int] | None = None,
    **training: Unpack[Training],
) -> CriticalPath:
    """The longest chain of dependent steps to the output; in a phase with gradients, to any array.

    Args:
        sizes: the sizes at which, of several longest chains, the chain with the larger span is
            chosen; if None, a chain whose span is proven larger for all sizes.
        phase, form, convention, training: as in `count`; "training" is the forward pass.

    Raises:
        Unanswered: inference of a form that has none.
        Unsupported: the length of the longest chain to an entry, or such a chain, is not derived.

    Source of the wording: Chen 2023, arXiv 2308.07661v1, section 7.

    >>> import costmodel as cm
    >>> cm.critical_path(cm.mixer("she")).steps
    ('mul', 'sum', 'mul', 'mul', 'sum')
    """
    phase = phase_name(phase)
    system = system_of(mixer, form, asked(convention, phase, training).rewrites, phase)
    return _path(system, phase, tuple(sorted(sizes.items())) if sizes else None)


def _path_of(case: Case) -> CriticalPath:
    """The critical path of a case, from the cache if derived before; the case's sizes choose
    between chains of equal length, unless the case is symbolic."""
    sizes = {letter: size for letter, size in case.sizes.items() if letter != "b"}
    return case.about.chained(_derived, None if case.symbolic else sizes)


def _derived(about: Answers, sizes: Mapping[str, int] | None) -> CriticalPath:
    """The critical path of the equations that `about` has, at `sizes`; None for large sizes."""

    @mixer_required
    def derived(mixer: Mixer) -> CriticalPath:
        return _path(about.system, about.phase, tuple(sorted(sizes.items())) if sizes else None)

    return derived(about.mixer)


def _number_of_steps(about: Answers, sizes: Mapping[str, int]) -> int:
    """The number of steps of the critical path at given sizes."""
    return _derived(about, sizes).length.at(sizes)


def _explained(case: Case) -> Explained:
    """Yield, for full explanations alone, a sentence with the critical path in words and, if the
    path has steps, a table of them: number, operation, how often the step repeats (a column that is
    left out if no step repeats), the array computed and its equation."""
    path = _path_of(case)
    if not path.taken:
        yield Sentence(("Critical path: ", *path.said, "."), detail=True)
        return
    yield Sentence(
        (
            "Critical path: ",
            *path.said,
            ". No chain is longer than its ",
            _times(path.length),
            " steps; others may be as long.",
        ),
        detail=True,
    )
    repeated = any(times != 1 for _, _, times in path.places)
    yield Listing(
        "Critical path",
        (
            ("number", "step", True),
            ("step", "operation", False),
            *([("times", "times", True)] if repeated else []),
            ("equation", "computes", False),
            ("cite", "equation", False),
        ),
        tuple(
            (
                str(k),
                STEP_WORDS.get(step, step),
                *([_times(times)] if repeated else []),
                Name(name),
                Source(name),
            )
            for k, (step, name, times) in enumerate(path.places, 1)
        ),
        detail=True,
    )


def _times(number: Poly) -> str | Poly:
    """A number of steps: a formula, or a whole number as text."""
    return str(number) if number.constant() is not None else number


def _of_a_mixer(cases: Sequence[Case]) -> bool:
    """`Figure.usual`: the path of a network alone is longer than a line of a default table."""
    return not all(isinstance(case.mixer, Whole) for case in cases)


CUMULATION = "critical path: sum is one cumulation, a whole sum however many terms it has"

CRITICAL_PATH = Question(
    "critical_path",
    "Critical path",
    (
        Figure(
            "critical_path",
            "the longest chain of steps",
            _path_of,
            header="critical path",
            kind="steps",
            usual=_of_a_mixer,
            claimed=True,
            notes=(lambda cases, shown: (CUMULATION,),),
            decided_by=SEQUENTIAL.figures[0],
        ),
    ),
    critical_path,
    (Tally("steps of the critical path", _number_of_steps),),
    explained=_explained,
)
