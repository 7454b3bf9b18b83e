"""What is the longest chain of dependent steps, in the papers' words?

A product is one multiplication, a reduction one cumulation (`sum`) however many indices it has.
Among chains with equally many steps the one with the larger span is shown, then the one whose
equations come first; how many tie is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Unpack

from costmodel.errors import Unsupported
from costmodel.language.equations import Mixer, System
from costmodel.language.functions import TABLE
from costmodel.language.nodes import (
    Add,
    Binary,
    Bracket,
    Call,
    Composite,
    Constant,
    Div,
    Fft,
    FreeScale,
    Mul,
    Neg,
    Node,
    Reduce,
    Ref,
    Select,
    Sub,
)
from costmodel.language.rule_table import WRITTEN_OUT, Rules
from costmodel.paths.loop_rows import in_turn, points_of
from costmodel.paths.witness import (
    Chain,
    CriticalPath,
    Search,
    Sizes,
    chain_to_entries,
    exists_at,
    large,
    through_loop,
    to_arrays,
)
from costmodel.program.conventions import Convention
from costmodel.program.nonempty import EVERYWHERE, Places, may_be_empty, present
from costmodel.program.phases import IterationDomain, phase_name
from costmodel.program.recurrences import ascending, blocks
from costmodel.program.trip_count import levels as levels_of, number_kept, numbers_of_terms
from costmodel.questions.question import Answers, Case, Figure, Question, Tally, always
from costmodel.questions.sequential import steps_of
from costmodel.questions.subject import Training, asked, system_of
from costmodel.symbolic.constraints import Constraints, variables_of
from costmodel.symbolic.piecewise_max import Level, guarded, maximised
from costmodel.symbolic.polynomial import Poly, call


def _ready(search: Search, node: Node, part: IterationDomain, around: Constraints) -> Chain:
    return Chain()


def _ref(search: Search, node: Ref, part: IterationDomain, around: Constraints) -> Chain:
    if (part.equation, node) in search.before:
        return search.before[part.equation, node]
    if not search.alike and search.steps.may_be_fresh(node):
        return _gathered(search, node, part, around)
    longest = chain_to_entries(search, node, around) if search.reads(node, around) else Chain()
    for child in node.children:
        gather = search.chain(child, part, around)
        longest = search.longer(longest, gather) if gather.steps else longest
    return longest


def _gathered(search: Search, node: Ref, part: IterationDomain, around: Constraints) -> Chain:
    """The longest chain to the positions at which something is read that is there before them: the
    number of steps, worked out before, says so."""
    search.steps.depth(node, part, around)
    longest = Chain()
    for child in node.children:
        longest = search.longer(longest, search.chain(child, part, around))
    return longest


def _binary(name: str) -> Callable[[Search, Binary, IterationDomain, Constraints], Chain]:
    def rule(search: Search, node: Binary, part: IterationDomain, around: Constraints) -> Chain:
        left, right = (search.chain(child, part, around) for child in node.children)
        if not search.carried_out(node, part, around):
            return search.longer(left, right) if isinstance(node, (Add, Sub)) else Chain()
        if left == right == Chain():
            return Chain().then(part.equation.part_of, (name,), Poly.of(1))
        return search.longer(left, right).then(part.equation.part_of, (name,), Poly.of(1))

    return rule


def _same(
    search: Search, node: Neg | FreeScale, part: IterationDomain, around: Constraints
) -> Chain:
    return search.chain(node.body, part, around)


def _bracket(search: Search, node: Bracket, part: IterationDomain, around: Constraints) -> Chain:
    longest = Chain()
    for child in node.children:
        longest = search.longer(longest, search.chain(child, part, around))
    return longest


def _call(search: Search, node: Call, part: IterationDomain, around: Constraints) -> Chain:
    steps = TABLE[node.function].steps
    before = search.chain(node.body, part, around)
    return before.then(part.equation.part_of, steps, Poly.of(len(steps)))


def _reduce(search: Search, node: Reduce, part: IterationDomain, around: Constraints) -> Chain:
    before: Chain | None = None
    for one in node.parts:
        inner = around.union(*(index.constraints for index in one.over))
        places = _there(one.body, part, inner)
        if any(search.somewhere(part, inner | place) for place in places):
            chain = search.chain(one.body, part, inner)
            before = chain if before is None else search.longer(before, chain, alike=True)
    if before is None:
        return Chain()
    names = (*part.variables, *sorted(variables_of(around) - {*part.variables}))
    levels = [
        guarded(maximised(Level(call("ceil_log2", number), where), names, around))
        for number, where in numbers_of_terms(node, part, around)
    ]
    return before.then(part.equation.part_of, (node.kind,), call("Max", 0, *levels))


def _there(node: Node, part: IterationDomain, around: Constraints) -> Places:
    return present(node, around) if may_be_empty(part.equation) else EVERYWHERE


def _fft(search: Search, node: Fft, part: IterationDomain, around: Constraints) -> Chain:
    inner = around.union(*(index.constraints for index in node.over))
    before = search.chain(node.body, part, inner)
    return before.then(part.equation.part_of, ("fft",), call("ceil_log2", node.length) * 3)


def _select(search: Search, node: Select, part: IterationDomain, around: Constraints) -> Chain:
    inner = around.union(*(index.constraints for index in node.over))
    before = search.chain(node.body, part, inner)
    names = (*part.variables, *sorted(variables_of(around) - {*part.variables}))
    levels = [
        guarded(maximised(Level(levels_of(node, number, number_kept(part)), where), names, around))
        for number, where in numbers_of_terms(node.maximum, part, around)
    ]
    return before.then(part.equation.part_of, ("select",), call("Max", 0, *levels))


RULES: Rules[Callable[..., Chain]] = Rules(
    "critical_path",
    {
        Constant: _ready,
        Ref: _ref,
        Add: _binary("add"),
        Sub: _binary("add"),
        Mul: _binary("mul"),
        Div: _binary("div"),
        Neg: _same,
        FreeScale: _same,
        Call: _call,
        Reduce: _reduce,
        Bracket: _bracket,
        Fft: _fft,
        Select: _select,
        Composite: WRITTEN_OUT,
    },
)
"""Kind of node -> the longest chain that ends in it."""


FORWARD = ("training", "inference")
"""The phases that end with the output; the others end with the gradients."""


def _alike(system: System, phase: str) -> bool:
    """Whether all entries of an array are computed by the same steps: each by one equation, without
    loops, without sums that some entries lack and without zeros that are read outside of arrays,
    in a forward pass over whole arrays."""
    return (
        phase == "training"
        and not system.beyond
        and not any(block.is_loop for block in blocks(system))
        and all(len(equations) == 1 for equations in system.defining.values())
        and not any(map(may_be_empty, system.equations))
    )


@cache
def _path(system: System, phase: str, sizes: Sizes | None) -> CriticalPath:
    system = ascending(system)
    search = Search(system, phase, steps_of(system, phase), sizes, _alike(system, phase), RULES)
    for block in blocks(system):
        parts = [p for p in points_of(system, phase) if p.equation in block.equations]
        if sizes is not None:
            parts = [part for part in parts if exists_at(part, dict(sizes))]
        for part in parts:
            search.parts.setdefault(part.equation.array, []).append(part)
        if in_turn(block, parts, system, phase):
            search.arrays.update(through_loop(search, block, parts))
        else:
            to_arrays(search, parts)
    ends = [system.mixer.role("output")] if phase in FORWARD else list(search.arrays)
    chain = Chain()
    for array in ends:
        chain = search.longer(chain, search.arrays.get(array, Chain()))
    path = CriticalPath(chain)
    if not search.alike:
        _check(path, search.steps.deepest(*ends), sizes)
    return path


def _check(path: CriticalPath, steps: Sequence[Poly], sizes: Sizes | None) -> None:
    """Raise Unsupported unless the path has as many steps as are derived entry by entry."""
    letters = path.length.letters.union(*(term.letters for term in steps))
    at = dict(sizes) if sizes else large(letters)
    if path.length.at(at) != max(term.at(at) for term in steps):
        raise Unsupported("the longest chain goes through rows that are not told apart here")


def critical_path(
    mixer: Mixer,
    phase: str = "training",
    form: str | None = None,
    convention: str | tuple[str, ...] | Convention = "strict",
    sizes: Mapping[str, int] | None = None,
    **training: Unpack[Training],
) -> CriticalPath:
    """The longest chain of dependent steps to the output.

    Args:
        sizes: numbers that break ties by span; without them only proven differences do.

    Raises:
        Unanswered: inference of a form that has none.

    Source of the wording: Chen 2023, arXiv 2308.07661v1, section 7.

    >>> import costmodel as cm
    >>> cm.critical_path(cm.mixer("she")).steps
    ('mul', 'sum', 'mul', 'mul', 'sum')
    """
    phase = phase_name(phase)
    system = system_of(mixer, form, asked(convention, phase, training).rewrites, phase)
    return _path(system, phase, tuple(sorted(sizes.items())) if sizes else None)


def _path_of(case: Case) -> CriticalPath:
    """The path at the case's sizes, which break ties; in a symbolic case at none."""
    sizes = {letter: size for letter, size in case.sizes.items() if letter != "b"}
    about = case.about
    return critical_path(
        about.mixer, about.phase, about.form, about.convention, None if case.symbolic else sizes
    )


def _number_of_steps(about: Answers, sizes: Mapping[str, int]) -> int:
    found = critical_path(about.mixer, about.phase, about.form, about.convention, sizes)
    return found.length.at(sizes)


CRITICAL_PATH = Question(
    "critical_path",
    "Critical path",
    (
        Figure(
            "path",
            "the longest chain of steps",
            _path_of,
            header="critical path",
            key="critical_path",
            kind="steps",
            usual=always,
            claim="critical_path",
        ),
    ),
    critical_path,
    (Tally("steps of the critical path", _number_of_steps),),
)
