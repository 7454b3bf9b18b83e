"""The span: how many levels of dependent scalar operations are there, with unlimited processors?

A reduction of R terms ends ceil(log2 R) levels after its deepest term; binary operations are
chained as written. A span is a maximum of polynomials with `ceil_log2`, without those proven to be
smaller. A rule (depths, node, part, around) gives the `Depth` of a node of the equation of `part`
at the points of `around`: the maximum of its levels, which are depths with conditions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Unpack

from costmodel.language.equations import Mixer, System
from costmodel.language.functions import TABLE
from costmodel.language.nodes import (
    Add,
    Along,
    Binary,
    Bracket,
    Call,
    Composite,
    Constant,
    Div,
    Fft,
    Flat,
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
from costmodel.paths.longest_path import Depths, at_places
from costmodel.program.conventions import Convention
from costmodel.program.nonempty import EVERYWHERE, Places, both, may_be_empty, present, with_terms
from costmodel.program.phases import IterationDomain, phase_name
from costmodel.program.trip_count import levels as levels_of, number_kept, numbers_of_terms
from costmodel.program.wellformed import every_choice, whole
from costmodel.questions.question import (
    Answers,
    Case,
    Figure,
    Largest,
    Question,
    Share,
    Tally,
    always,
    over_parts,
)
from costmodel.questions.subject import Training, about_mixer, asked, system_of
from costmodel.symbolic.at_sizes import Amount
from costmodel.symbolic.constraints import Constraints, infeasible, outside
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.piecewise_max import READY, Depth, Level, maxima, proven, pruned
from costmodel.symbolic.polynomial import Poly, axis_atom, call, sum_of


@dataclass(frozen=True)
class Longest(Amount):
    """The length of the longest chain: the maximum of `terms`; exact.

    A term that is valid at some sizes only has a factor `Min(1, Max(0, ...))`, which is 1 at these
    sizes and 0 at others.
    """

    terms: tuple[Poly, ...]

    @property
    def alone(self) -> Exact:
        """The length as one polynomial."""
        return Exact.of(call("Max", *self.terms))


def _ready(depths: Depths, node: Node, part: IterationDomain, around: Constraints) -> Depth:
    """Depth 0: the value exists before the phase."""
    return READY


def _ref(depths: Depths, node: Ref, part: IterationDomain, around: Constraints) -> Depth:
    """The depth (the maximum of levels, each under conditions) of the deepest entry that a
    reference in the equation of `part` may read, and of the positions by which it gathers.
    `around`: the constraints on the indices around it. While a loop is solved, `depths.before` has
    the depths of the previous row."""
    before = depths.before.get(part.equation, {}).get(node)
    if before is not None:
        return before
    gathers = [level for child in node.children for level in depths.depth(child, part, around)]
    ref, over = every_choice(depths.system, node)
    inner, hidden = around.union(*(i.constraints for i in over)), [index.atom for index in over]
    found = [
        deepest
        for level in _entry(depths, ref, inner)
        for deepest in (maxima(level, hidden, inner) if hidden else [level])
    ]
    return pruned(around, (*gathers, *found))


def _entry(depths: Depths, node: Ref, around: Constraints) -> Depth:
    """The depth of the entry that a reference without gathers reads at the points of `around`, as
    levels under conditions: those of its array at the positions of the reference (y[i - 1] reads
    depth i - 1 if y has depth #0) where this phase computes the entry; depth 0 (`READY`) where the
    entry exists before the phase, or belongs to an older token."""
    fresh = depths.fresh(node, around)  # the regions where this phase computes the entry
    if not fresh:
        return READY
    flat = {axis_atom(k) for k, p in enumerate(node.positions) if isinstance(p, Flat)}
    inside: Constraints = frozenset()
    # reads beyond the array are of zeros, which `dense` introduces: depth 0; a sequence that is
    # decoded has no end, and a flattened axis no bounds of its own
    if depths.phase != "inference":
        inside = frozenset(c for c in whole(node.array) if not flat & c.letters)
    found = []
    for level in depths.arrays[node.array]:
        here = at_places(level.under(level.where | inside), node, around)
        if here is None:
            continue
        for part in fresh:
            where = frozenset([c for c in (here.where | part) - around if not proven(around, c)])
            if not (where and infeasible(around | where)):
                found.append(here.under(where))
    # one new token also reads entries of earlier tokens
    older = depths.phase == "inference" and outside(around, [around | x.where for x in found])
    return (*found, *READY) if older or not found else tuple(found)


def _one_deeper(depths: Depths, node: Binary, part: IterationDomain, around: Constraints) -> Depth:
    """The depth of an operation: one level after the deeper operand."""
    sides = [depths.depth(child, part, around) for child in node.children]
    latest = pruned(around, [level for side in sides for level in side])
    return tuple(depths.after(level, node, part, around) for level in latest)


def _binary(depths: Depths, node: Binary, part: IterationDomain, around: Constraints) -> Depth:
    """The depth of a binary operation of the equation of `part`, at the points with the constraints
    `around`: one level after the deeper operand where no operand is an empty sum, 0 elsewhere."""
    if not may_be_empty(part.equation):
        return _one_deeper(depths, node, part, around)
    sides = [depths.depth(child, part, around) for child in node.children]
    return _after_both(depths, node, part, around, sides)


def _after_both(
    depths: Depths, node: Binary, part: IterationDomain, around: Constraints, sides: Sequence[Depth]
) -> Depth:
    """The depth of a binary operation, from the depths `sides` of its operands, in an equation with
    empty sums: one level after each operand where both have terms, and 0 (`READY`) elsewhere."""
    places = both(node, around)
    found = [
        depths.after(level, node, part, around)
        for side in sides
        for level in _where(side, places, around)
    ]
    return (*found, *READY)


def _sum(depths: Depths, node: Add | Sub, part: IterationDomain, around: Constraints) -> Depth:
    """The depth of a node `left + right` or `left - right` of the equation of `part`, at the points
    with the constraints `around`: one level after the deeper operand. Where one operand is an empty
    sum, it is the depth of the other operand."""
    if not may_be_empty(part.equation):
        return _one_deeper(depths, node, part, around)
    one, two = sides = [depths.depth(child, part, around) for child in node.children]
    left, right = (present(child, around) for child in node.children)
    return (
        *_where(one, _absent(right, around), around),
        *_where(two, _absent(left, around), around),
        *_after_both(depths, node, part, around, sides),
    )


def _where(depth: Depth, places: Places, around: Constraints) -> list[Level]:
    """The levels of a depth (polynomials, each under its conditions), each under the conditions of
    each of `places` as well; combinations that no point within the constraints `around` fulfils are
    left out."""
    return [
        level.under(level.where | place)
        for level in depth
        for place in places
        if not infeasible(around | level.where | place)
    ]


def _absent(places: Places, around: Constraints) -> Places:
    """The points with `around` that lie in none of the places, as places: where an operand whose
    `present` places these are is an empty sum."""
    return tuple(part - around for part in outside(around, [around | p for p in places]))


def _same(
    depths: Depths, node: Neg | FreeScale, part: IterationDomain, around: Constraints
) -> Depth:
    return depths.depth(node.body, part, around)


def _bracket(depths: Depths, node: Bracket, part: IterationDomain, around: Constraints) -> Depth:
    """The depth of the deepest of condition, body and alternative: the choice itself is free."""
    return tuple(x for child in node.children for x in depths.depth(child, part, around))


def _call(depths: Depths, node: Call, part: IterationDomain, around: Constraints) -> Depth:
    """The depth of a function: one level after its operand for each step of the function."""
    steps = len(TABLE[node.function].steps)
    before = depths.depth(node.body, part, around)
    return tuple(depths.after(level, node, part, around, steps) for level in before)


def reduced(
    depths: Depths,
    node: Reduce | Along | Select,
    part: IterationDomain,
    around: Constraints,
    levels: Poly,
) -> Depth:
    """The depth of a reduction, transform, scan or selection of the equation of `part`: `levels`
    after its deepest term (`latest`, the maximum over the node's indices), and 0 (`READY`) where it
    may have no term. `around`: the constraints on the indices around the node."""
    if len(node.parts) > 1:
        assert isinstance(node, Reduce)
        return _over_ranges(depths, node, part, around, levels)
    inner = around.union(*(index.constraints for index in node.over))
    hidden = [index.atom for index in node.over]
    latest = [
        highest
        for operand in node.children
        for level in depths.depth(operand, part, inner)
        for highest in maxima(level, hidden, inner)
    ]
    found = [depths.after(level, node, part, around, levels) for level in pruned(around, latest)]
    if may_be_empty(part.equation):
        found = [*_where(tuple(found), present(node, around), around), *READY]
    return tuple(found)


def _over_ranges(
    depths: Depths, node: Reduce, part: IterationDomain, around: Constraints, levels: Poly
) -> Depth:
    """The depth of a reduction of the equation of `part` whose index runs over several ranges:
    `levels` after the deepest term of any range; also 0 (`READY`) unless it is proven to have a
    term at all points with the constraints `around`."""
    found: list[Level] = [] if present(node, around) == EVERYWHERE else [*READY]
    for one in node.parts:
        for place in with_terms(one, around):
            if not infeasible(around | place):
                terms = reduced(depths, one, part, around | place, levels)
                found += _where(terms, (place,), around)
    return tuple(found)


def _reduce(depths: Depths, node: Reduce, part: IterationDomain, around: Constraints) -> Depth:
    """The depth of a reduction: ceil(log2 R) levels after the deepest of R terms, for each case of
    the number R; also 0 (`READY`) in an equation with sums that may be empty."""
    found = tuple(
        level.under(level.where | where)
        for number, where in numbers_of_terms(node, part, around)
        for level in reduced(depths, node, part, around | where, call("ceil_log2", number))
    )
    return (*found, *READY) if may_be_empty(part.equation) else found


def _along(depths: Depths, node: Along, part: IterationDomain, around: Constraints) -> Depth:
    """The depth of a transform or scan: its levels after its deepest operand."""
    return reduced(depths, node, part, around, node.levels)


def _select(depths: Depths, node: Select, part: IterationDomain, around: Constraints) -> Depth:
    """The depth of a selection (top-k, sort), equal for all positions that it keeps: for each case
    of its number of entries, the levels of its algorithm after the deepest entry. `around`: the
    constraints on the indices around it."""
    return tuple(
        level.under(level.where | where)
        for number, where in numbers_of_terms(node.maximum, part, around)
        for level in reduced(
            depths, node, part, around | where, levels_of(node, number, number_kept(part))
        )
    )


RULES: Rules[Callable[..., Depth]] = Rules(
    "span",
    {
        Constant: _ready,
        Ref: _ref,
        Add: _sum,
        Sub: _sum,
        Mul: _binary,
        Div: _binary,
        Maximum: _one_deeper,
        Neg: _same,
        FreeScale: _same,
        Call: _call,
        Reduce: _reduce,
        Bracket: _bracket,
        Fft: _along,
        Scan: _along,
        Select: _select,
        Composite: WRITTEN_OUT,
    },
)
"""Kind of node -> its depth, in levels of scalar operations."""


@cache
def depths_of(system: System, phase: str) -> Depths:
    """The depths of a system's arrays in a phase."""
    return Depths(system, phase, RULES)


@about_mixer
def span(
    mixer: Mixer,
    phase: str = "training",
    form: str | None = None,
    convention: str | tuple[str, ...] | Convention = "strict",
    **training: Unpack[Training],
) -> Longest:
    """The largest number of dependent scalar operations in a phase, with unlimited processors (a
    sum of R terms has ceil(log2 R) levels); an exact expression in the sizes.

    Args:
        phase, form, convention, training: as in `count`; "training" is the forward pass.

    Raises:
        Unanswered: inference of a form that has none.
        Unsupported: the length of the longest chain to an entry is not derived.

    >>> import costmodel as cm
    >>> cm.span(cm.mixer("she")).at(d=128, l=128)
    24
    """
    return longest(depths_of, mixer, phase, form, convention, training)


def longest(
    depths: Callable[[System, str], Depths],
    mixer: Mixer,
    phase: str,
    form: str | None,
    convention: str | tuple[str, ...] | Convention,
    training: Training,
) -> Longest:
    """The length of the longest chain of a phase, in the unit of `depths`.

    Args:
        depths: a function that gives the depths of a system's arrays in a phase, in levels of
            operations or in steps.
        training: options of a backward pass.
    """
    phase = phase_name(phase)
    system = system_of(mixer, form, asked(convention, phase, training).rewrites, phase)
    return Longest(depths(system, phase).overall)


def longest_in(depths: Callable[[System, str], Depths], about: Answers) -> Longest:
    """The length of the longest chain of the equations that `about` has, in the unit of `depths`: a
    function that gives the depths of a system's arrays in a phase."""

    @about_mixer
    def derived(mixer: Mixer, form: str) -> Longest:
        return Longest(depths(about.system, about.phase).overall)

    return derived(about.mixer, about.form)


def along(shares: Sequence[Share[Longest]]) -> Longest:
    """The length of a chain of a network's parts, one after another: the sum over their runs."""
    return Longest((sum_of(call("Max", *x.answer.terms).substitute(x.sizes) * x.runs
                           for x in shares),))  # fmt: skip


def longest_of(paths: Sequence[Longest]) -> Longest:
    """The longest of several chains of parts."""
    return Longest(tuple(dict.fromkeys(term for path in paths for term in path.terms)))


@over_parts(along, longest_of)
def levels_of_span(about: Answers) -> Longest:
    """The span of one form in one phase."""
    return longest_in(depths_of, about)


def _searched(case: Case) -> int:
    """The levels at the case's sizes, found by visiting all entries, for mixers without a formula.
    Raises Unsupported if there are too many entries."""
    # imported here because it is only needed where no formula is derived
    from costmodel.paths.unrolled import deepest

    return deepest(case.about.system, case.phase, case.sizes)


SPAN = Question(
    "span",
    "Span",
    (
        Figure(
            "span",
            "levels of dependent operations",
            lambda case: Largest(tuple(map(Exact.of, case.about.of(levels_of_span).terms))),
            usual=always,
            claimed=True,
            search=_searched,
        ),
    ),
    span,
    (Tally("span", lambda about, sizes: about.of(levels_of_span).at(**sizes)),),
)
