"""Trip counts: how often an expression is evaluated, and how many terms or comparisons it has.

An empty sum, one without terms, costs nothing. The comparisons of selections (top-k, sort) are
nominal: those of a fixed algorithm (a sorting network, a merge sort), whatever the values.
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
"""A reduction whose number of terms has more cases than these is refused."""


def terms_of(over: tuple[Index, ...]) -> Poly:
    """The number of terms of a reduction over `over`, a polynomial in the indices around it and
    sizes: Min(i, w) for the last w rows up to i. It holds where every range has a value: for j in
    2..i it is i - 1. Unsupported if ranges depend on each other and their number of points has
    several cases."""
    names = {index.atom for index in over}
    coupled = any(names & b.letters for i in over for b in i.lower + i.upper)
    if coupled:
        constraints: Constraints = frozenset().union(*(index.constraints for index in over))
        # `total` sums over all indices: those around the reduction stand in as sizes, and return
        outer = {a: Poly.atom("outer " + a) for c in constraints for a in c.letters - names}
        exact = total(
            tuple(index.atom for index in over),
            frozenset(
                c.substitute({k: v for k, v in outer.items() if is_index(k)}) for c in constraints
            ),
            Poly.of(1),
        )
        if len(exact.pieces) != 1:
            raise Unsupported(
                f"the number of terms over {_listed(over)} differs by case: bound each index by "
                "one lower and one upper bound"
            )
        return exact.pieces[0][1].substitute({f"outer {a}": Poly.atom(a) for a in outer})
    number = Poly.of(1)
    for index in over:
        number = number * call("Min", *(u - low + 1 for u in index.upper for low in index.lower))
    return number


def numbers_of_terms(
    node: Reduce, part: IterationDomain, around: Constraints
) -> Iterator[tuple[Poly, Constraints]]:
    """Yield the number of terms of a reduction, in the indices around it, as (number, conditions)
    for each case, without cases of 0 terms; terms that are empty sums are not counted. The number
    of a single range may come without the condition that the range has a value: i - 1 of j in 2..i
    is right for i >= 2. `part` tells whether the equation has empty sums, `around` are the
    constraints on the indices around the reduction.

    Raises:
        Unsupported: the number has more than `MOST_CASES` cases.
    """
    places_of = dict.fromkeys(node.parts, EVERYWHERE)  # range -> the places where it has terms
    if may_be_empty(part.equation):
        for one in node.parts:
            inner = around.union(*(index.constraints for index in one.over))
            places_of[one] = present(one.body, inner)
    # over a union, a range without values must count 0 terms, not a negative number of terms
    filled = len(node.parts) == 1 or all(_all_have_values(one.over, around) for one in node.parts)
    if filled and all(places == EVERYWHERE for places in places_of.values()):
        try:
            number = sum((terms_of(one.over) for one in places_of), Poly())
        except Unsupported:
            pass
        else:
            if _floor_of_index(number) is None:  # else a quotient rounded by an index gives cases
                if (size := number.constant()) is None or size > 0:
                    yield number, frozenset()
                return
    of_each = (_in_few_cases(one.over, places, around) for one, places in places_of.items())
    cases = sum(of_each, Exact()).chambers()
    if len(node.parts) > 1 and _each_smallest_in_its_case(cases, around):  # one case: the minimum
        cases = ((frozenset(), call("Min", *(number for _, number in cases))),)
    for guards, number in cases:
        where = frozenset(c for c in guards if not proven(around, c))
        if number.terms and not infeasible(around | where):
            yield number, where


def _in_few_cases(over: tuple[Index, ...], places: Places, around: Constraints) -> Exact:
    """The number of terms of a reduction over `over` at the `places` where it has terms, in cases;
    Unsupported for more than `MOST_CASES`."""
    number = _in_cases(_terms_at(over, places), around)
    if max(len(number.pieces), len(_splits(number))) > MOST_CASES:
        raise Unsupported(
            f"the number of terms over {_listed(over)} has more than {MOST_CASES} cases: give the "
            "indices fewer bounds"
        )
    return number


def _listed(over: tuple[Index, ...]) -> str:
    return ", ".join(index.name for index in over)


def _all_have_values(over: tuple[Index, ...], around: Constraints) -> bool:
    """Whether every index of a reduction is proven to have a value."""
    return all(proven(around, up - low) for i in over for up in i.upper for low in i.lower)


def _in_cases(number: Exact, around: Constraints) -> Exact:
    """The number with floors of indices' quotients replaced, case by case. For k in 1..C, floor((l
    - k)/C) is floor(l/C) where k is at most the remainder of l/C, and 1 less for larger k. A piece
    stays from its first quotient without two such values on. `around`: the constraints on the
    indices."""
    result = Exact()
    for guards, poly in number.pieces:
        atom = next((a for p in (poly, *by_text(guards)) if (a := _floor_of_index(p))), None)
        values = None if atom is None else _two_values(atom, around)
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
    """The conditions that distinguish the cases of a number, as pairs {condition, its negation}, so
    that two cases with opposite conditions (i >= 3, i <= 2) count as one split."""
    guards = frozenset[Poly]().union(*(guards for guards, _ in number.pieces))
    return frozenset(frozenset({guard, -guard - 1}) for guard in guards)


def _floor_of_index(poly: Poly) -> Fn | None:
    """An atom floor(a/b) of a polynomial that depends on an index, also inside another function;
    None if there is none."""
    for atom in sorted(poly.atoms):
        if isinstance(atom, Fn):
            if atom.function == "floor_div" and variables_of(atom.args):
                return atom
            for argument in atom.args:
                if (found := _floor_of_index(argument)) is not None:
                    return found
    return None


def _two_values(atom: Fn, around: Constraints) -> tuple[tuple[Poly, Constraints], ...] | None:
    """The two values of an atom floor((a + m)/s), as (value, conditions), with a in sizes alone and
    m in indices. For -s <= m <= 0 they are floor(a/s) and 1 less; for 0 <= m <= s, floor(a/s) and 1
    more. None if neither range of m is proven from `around`, the constraints on the indices. The
    constant is first tried as part of m, so that several quotients share one floor(a/s)."""
    above, below = atom.args
    sizes = Poly({t: x for t, x in above.terms.items() if not variables_of([Poly({t: x})])})
    for a in (sizes - sizes.terms.get((), 0), sizes):
        moving = above - a
        quotient = call("floor_div", a, below)
        # >= 0 where the quotient is floor(a/s), < 0 where it is the other value
        within = moving + a - below * quotient
        if proven(around, -moving) and proven(around, moving + below):
            return (quotient, frozenset({within})), (quotient - 1, frozenset({-within - 1}))
        if proven(around, moving) and proven(around, below - moving):
            within = below - 1 - within
            return (quotient, frozenset({within})), (quotient + 1, frozenset({-within - 1}))
    return None


def _each_smallest_in_its_case(
    cases: Sequence[tuple[Constraints, Poly]], around: Constraints
) -> bool:
    """Whether in each case the number of the case is proven to be the smallest of all numbers."""
    return all(
        proven(around | guards, other - number) for guards, number in cases for _, other in cases
    )


def _terms_at(over: tuple[Index, ...], places: Places) -> Exact:
    """The number of points in the ranges of a reduction that meet one of the disjoint `places`, in
    the sizes and the indices around it: max(0, i - 2) for j in 1..i and the place j >= 3."""
    ranges: Constraints = frozenset().union(*(index.constraints for index in over))
    names = tuple(index.atom for index in over)
    around = {a for c in ranges.union(*places) for a in variables_of([c])} - {*names}
    # `total` sums over all indices: those around the reduction stand in as sizes, and return
    fixed = {a: Poly.atom("outer " + a) for a in around}
    number = Exact()
    for place in places:
        inside = frozenset(c.substitute(fixed) for c in ranges | place)
        number = number + total(names, inside, ONE)
    return number.substitute({f"outer {a}": Poly.atom(a) for a in around})


def number_kept(part: IterationDomain) -> Poly:
    """The number of positions that a selection keeps per row, in the indices of the row: K for
    top-k, 1 for argmax."""
    numbers = rank(part.equation)
    return ONE if numbers is None else terms_of((numbers,))


@dataclass(frozen=True)
class Points:
    """The points at which an expression of an equation is evaluated: variables (outermost first)
    and their constraints. `accounting` is the convention's: it says how many additions a sum
    takes."""

    equation: Equation
    variables: tuple[str, ...]
    constraints: Constraints
    accounting: str
    over: tuple[Index, ...] = ()
    """The indices of the enclosing reductions, outermost first."""

    def number(self, places: Places = EVERYWHERE) -> Exact:
        """The number of points that meet one of the `places` (disjoint conditions)."""
        result = Exact()
        for place in places:
            result = result + total(self.variables, self.constraints | place, ONE)
        return result

    def present(self, node: Node) -> Places:
        """The places at which an expression is not an empty sum."""
        return present(node, self.constraints) if may_be_empty(self.equation) else EVERYWHERE

    def carried_out(self, node: Binary) -> Places:
        """The places at which an operation is executed, as neither operand is an empty sum."""
        return both(node, self.constraints) if may_be_empty(self.equation) else EVERYWHERE

    def inside(self, over: tuple[Index, ...]) -> Points:
        """The points at which the body of a reduction over `over` is evaluated."""
        constraints = self.constraints.union(*(index.constraints for index in over))
        variables = self.variables + tuple(index.atom for index in over)
        over = self.over + over
        return Points(self.equation, variables, constraints, self.accounting, over)

    def without(self, names: Collection[str]) -> Points:
        """The points projected onto the variables that are not in `names`: i in 1..l of (i, j)."""
        kept = tuple(name for name in self.variables if name not in names)
        return replace(self, variables=kept, constraints=projected(self.constraints, [*names]))

    def under(self, node: Node) -> Iterator[tuple[Node, Points]]:
        """Yield the operands of a node, each with the points (values of the indices) at which the
        operand is evaluated. A reduction over a union gives its body once per range."""
        for part in node.parts:
            inner = self.inside(part.binders) if part.binders else self
            for child in part.children:
                yield child, inner


def comparators(number: Poly) -> Poly:
    """The number of comparators of a bitonic sorting network for `number` = R entries: P/2 in each
    of its L (L + 1) / 2 columns, with L = ceil(log2 R) and P = 2^L. Source: Batcher 1968, Sorting
    networks and their applications; Knuth, volume 3, section 5.3.4."""
    return call("pow2", call("ceil_log2", number)) * columns(number) / 2


def merges(number: Poly) -> Poly:
    """The number of comparisons of a merge sort of `number` = R entries: one for each of P =
    2^ceil(log2 R) entries in each of log2 P rounds, also where one of two runs is exhausted and no
    comparison is needed. Source: Knuth, volume 3, section 5.2.4."""
    stages = call("ceil_log2", number)
    return call("pow2", stages) * stages


def columns(number: Poly) -> Poly:
    """The columns of a bitonic sorting network for `number` = R entries, which work one after
    another: L (L + 1) / 2 with L = ceil(log2 R)."""
    stages = call("ceil_log2", number)
    return stages * (stages + 1) / 2


def levels(node: Select, number: Poly, kept: Poly) -> Poly:
    """The depth, in comparisons, of a selection of `kept` out of `number` = R entries.

    With L = ceil(log2 R) and P = 2^L:

    - argmax, top-k: L for each entry kept, by knockouts one after another;
    - sort: L (L + 1) / 2, the `columns` of the bitonic network;
    - merge sort: P + L - 1. The last merge begins L - 1 levels after the first merges, and gives
      one of P entries per level.
    """
    stages = call("ceil_log2", number)
    if node.kind == MERGE_SORT:
        return call("pow2", stages) + stages - 1
    return columns(number) if node.sorts else stages * kept
