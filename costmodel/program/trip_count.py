"""Trip counts: how often an expression is evaluated, and how many terms or comparisons it has.

The counts of selections (argmax, top-k, sort) are nominal, as are those of Fourier transforms.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from costmodel.errors import Unsupported
from costmodel.language.equations import Equation, rank
from costmodel.language.indices import Index
from costmodel.language.nodes import MERGE_SORT, Binary, Node, Reduce, Select
from costmodel.program.nonempty import EVERYWHERE, Places, both, may_be_empty, present
from costmodel.program.phases import IterationDomain
from costmodel.symbolic.constraints import ONE, Constraints, infeasible, projected, variables_of
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.piecewise_max import proven
from costmodel.symbolic.polyhedral_sums import total
from costmodel.symbolic.polynomial import Fn, Poly, by_text, call, is_index

MOST_CASES = 4
"""A reduction is refused if the number of its terms has more cases."""


def terms_of(over: tuple[Index, ...]) -> Poly:
    """The number of terms of a reduction, in the indices around it; Unsupported if it differs by
    case."""
    names = {index.atom for index in over}
    coupled = any(names & b.letters for i in over for b in i.lower + i.upper)
    if coupled:
        constraints: Constraints = frozenset().union(*(index.constraints for index in over))
        outer = {a: Poly.atom("outer " + a) for c in constraints for a in c.letters - names}
        exact = total(
            tuple(index.atom for index in over),
            frozenset(
                c.substitute({k: v for k, v in outer.items() if is_index(k)}) for c in constraints
            ),
            Poly.of(1),
        )
        if len(exact.pieces) != 1:
            raise Unsupported("the number of terms of a reduction depends on cases")
        return exact.pieces[0][1].substitute({f"outer {a}": Poly.atom(a) for a in outer})
    number = Poly.of(1)
    for index in over:
        number = number * call("Min", *(u - low + 1 for u in index.upper for low in index.lower))
    return number


def numbers_of_terms(
    node: Reduce, part: IterationDomain, around: Constraints
) -> Iterator[tuple[Poly, Constraints]]:
    """The number of terms of a reduction, in the indices around it, as (number, condition) for each
    case; terms that are empty sums are not counted."""
    there = dict.fromkeys(node.parts, EVERYWHERE)
    if may_be_empty(part.equation):
        for one in node.parts:
            inner = around.union(*(index.constraints for index in one.over))
            there[one] = present(one.body, inner)
    filled = len(node.parts) == 1 or all(_filled(one.over, around) for one in node.parts)
    if filled and all(places == EVERYWHERE for places in there.values()):
        try:
            number = sum((terms_of(one.over) for one in there), Poly())
        except Unsupported:
            pass
        else:
            if _rounded(number) is None:
                if (size := number.constant()) is None or size > 0:
                    yield number, frozenset()
                return
    number_of_all = Exact()
    for one, places in there.items():
        number_of_one = _in_cases(_terms_at(one.over, places), around)
        if max(len(number_of_one.pieces), len(_splits(number_of_one))) > MOST_CASES:
            raise Unsupported("the number of terms of a reduction depends on cases")
        number_of_all = number_of_all + number_of_one
    cases = number_of_all.chambers()
    if len(node.parts) > 1 and _smallest(cases, around):
        cases = ((frozenset(), call("Min", *(number for _, number in cases))),)
    for guards, number in cases:
        where = frozenset(c for c in guards if not proven(around, c))
        if number.terms and not infeasible(around | where):
            yield number, where


def _filled(over: tuple[Index, ...], around: Constraints) -> bool:
    """Whether every index of a reduction is proven to have a value."""
    return all(proven(around, up - low) for i in over for up in i.upper for low in i.lower)


def _in_cases(number: Exact, around: Constraints) -> Exact:
    """The number, with cases in place of rounded quotients of indices: for k in 1..C, floor((l -
    k)/C) is floor(l/C) for the places k that the last chunk has, and 1 less for the others."""
    result = Exact()
    for guards, poly in number.pieces:
        atom = next((a for p in (poly, *by_text(guards)) if (a := _rounded(p))), None)
        values = None if atom is None else _values(atom, around)
        if atom is None or values is None:
            result = result + Exact(((guards, poly),))
            continue
        for value, where in values:
            known = frozenset(guard.substitute({atom: value}) for guard in guards) | where
            if not infeasible(around | known):
                needed = frozenset(guard for guard in known if not proven(around, guard))
                one = Exact(((needed, poly.substitute({atom: value})),))
                result = result + _in_cases(one, around)
    return result


def _splits(number: Exact) -> frozenset[frozenset[Poly]]:
    """The conditions that distinguish the cases of a number, each together with its negation."""
    guards = frozenset[Poly]().union(*(guards for guards, _ in number.pieces))
    return frozenset(frozenset({guard, -guard - 1}) for guard in guards)


def _rounded(poly: Poly) -> Fn | None:
    """An atom floor(a/b) that depends on an index; None if there is none."""
    for atom in sorted(poly.atoms):
        if isinstance(atom, Fn):
            if atom.function == "floor_div" and variables_of(atom.args):
                return atom
            for argument in atom.args:
                if (found := _rounded(argument)) is not None:
                    return found
    return None


def _values(atom: Fn, around: Constraints) -> tuple[tuple[Poly, Constraints], ...] | None:
    """The two values of floor((a + m)/s) and their conditions, for a in sizes and 0 <= m <= s or -s
    <= m <= 0: floor(a/s), and 1 more or 1 less. None if no such range of m is proven. The constant
    is first tried as part of m, not of a, so that several quotients share one floor(a/s)."""
    above, below = atom.args
    sizes = Poly({t: x for t, x in above.terms.items() if not variables_of([Poly({t: x})])})
    for still in (sizes - sizes.terms.get((), 0), sizes):
        moving = above - still
        quotient = call("floor_div", still, below)
        within = moving + still - below * quotient
        if proven(around, -moving) and proven(around, moving + below):
            return (quotient, frozenset({within})), (quotient - 1, frozenset({-within - 1}))
        if proven(around, moving) and proven(around, below - moving):
            within = below - 1 - within
            return (quotient, frozenset({within})), (quotient + 1, frozenset({-within - 1}))
    return None


def _smallest(cases: Sequence[tuple[Constraints, Poly]], around: Constraints) -> bool:
    """Whether each case is proven to have the smallest of all numbers wherever the case holds."""
    return all(
        proven(around | guards, other - number) for guards, number in cases for _, other in cases
    )


def _terms_at(over: tuple[Index, ...], places: Places) -> Exact:
    """The number of points in a reduction's ranges at some places, in the indices around it."""
    ranges: Constraints = frozenset().union(*(index.constraints for index in over))
    names = tuple(index.atom for index in over)
    around = {a for c in ranges.union(*places) for a in variables_of([c])} - {*names}
    fixed = {a: Poly.atom("outer " + a) for a in around}
    number = Exact()
    for place in places:
        inside = frozenset(c.substitute(fixed) for c in ranges | place)
        number = number + total(names, inside, ONE)
    return number.substitute({f"outer {a}": Poly.atom(a) for a in around})


def number_kept(part: IterationDomain) -> Poly:
    """The number of positions that a selection keeps per row, in the indices of the row."""
    numbers = rank(part.equation)
    return ONE if numbers is None else terms_of((numbers,))


@dataclass(frozen=True)
class Points:
    """The points of an expression: variables (outermost first) and their constraints."""

    equation: Equation
    variables: tuple[str, ...]
    constraints: Constraints
    accounting: str
    over: tuple[Index, ...] = ()
    """The indices of the enclosing reductions, outermost first."""

    def number(self, places: Places = EVERYWHERE) -> Exact:
        """The number of points, restricted to some places."""
        result = Exact()
        for place in places:
            result = result + total(self.variables, self.constraints | place, ONE)
        return result

    def present(self, node: Node) -> Places:
        """The places at which an expression is not an empty sum."""
        return present(node, self.constraints) if may_be_empty(self.equation) else EVERYWHERE

    def carried_out(self, node: Binary) -> Places:
        """The places at which both operands of an operation are not empty sums."""
        return both(node, self.constraints) if may_be_empty(self.equation) else EVERYWHERE

    def inside(self, over: tuple[Index, ...]) -> Points:
        """The points of an expression inside a reduction over `over`."""
        constraints = self.constraints.union(*(index.constraints for index in over))
        variables = self.variables + tuple(index.atom for index in over)
        over = self.over + over
        return Points(self.equation, variables, constraints, self.accounting, over)

    def without(self, names: Collection[str]) -> Points:
        """The points projected onto the indices that are not in `names`."""
        kept = tuple(name for name in self.variables if name not in names)
        return replace(self, variables=kept, constraints=projected(self.constraints, [*names]))

    def under(self, node: Node) -> Iterator[tuple[Node, Points]]:
        """The operands of a node, each with its points; the terms of a union, range by range."""
        for part in node.parts:
            inner = self.inside(part.binders) if part.binders else self
            for child in part.children:
                yield child, inner


def network(number: Poly) -> Poly:
    """The comparators of a bitonic network for R entries: P/2 per column, P = 2^ceil(log2 R).
    Source: Batcher 1968, Sorting networks and their applications; Knuth, volume 3, section
    5.3.4."""
    return call("pow2", call("ceil_log2", number)) * columns(number) / 2


def merges(number: Poly) -> Poly:
    """The comparisons of a merge sort of R entries: one for each of P = 2^ceil(log2 R) entries in
    each of log2 P rounds, those with an exhausted run among them. Source: Knuth, volume 3, section
    5.2.4."""
    stages = call("ceil_log2", number)
    return call("pow2", stages) * stages


def columns(number: Poly) -> Poly:
    """The columns of that network, one after another: L (L + 1) / 2 with L = ceil(log2 R)."""
    stages = call("ceil_log2", number)
    return stages * (stages + 1) / 2


def levels(node: Select, number: Poly, kept: Poly) -> Poly:
    """The depth in comparisons of a selection of `kept` out of `number` entries. A knockout has
    ceil(log2 R) levels; each of several waits for the mask of the one before. The last merge of two
    runs begins L - 1 levels after the first ones, and gives one of its P entries a level."""
    stages = call("ceil_log2", number)
    if node.kind == MERGE_SORT:
        return call("pow2", stages) + stages - 1
    return columns(number) if node.sorts else stages * kept
