"""Dependence of one equation on tokens: the latest token that its instances read.

The token of an entry is the number of the latest input row that the entry depends on, 0 for none. A
token is represented as a maximum of affine terms under conditions (`Terms`); `tokens` uses this
module to derive the tokens of a whole system.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from costmodel.errors import Unsupported
from costmodel.language.equations import Equation, System
from costmodel.language.indices import Index
from costmodel.language.nodes import Array, Flat, Gather, Ref, position_value, refs
from costmodel.program.nonempty import may_be_empty
from costmodel.program.wellformed import defined, every_choice, region, whole
from costmodel.symbolic.constraints import (
    Constraints,
    bounds,
    implied,
    infeasible,
    nonnegative,
    outside,
    projected,
    require_plain,
    variables_of,
)
from costmodel.symbolic.polynomial import Poly, atom_name, axis_atom, by_text, is_index


@dataclass(frozen=True)
class Term:
    """The token `token` at the points where all conditions `where` are >= 0; token 0 elsewhere."""

    token: Poly
    where: Constraints = frozenset()

    def over(self, token: Poly) -> Constraints:
        """The conditions under which the term exceeds a token: i - t - 1 >= 0 for i and t."""
        return self.where | {self.token - token - 1}


Terms = tuple[Term, ...]
"""A token as the maximum of these terms and 0."""

SOMETHING = Poly.of(1)
"""The token of every entry of a context, where it is derived whether an entry depends on a context
at all: the terms are derived like tokens, and 1 stands for yes, 0 for no."""


@dataclass(frozen=True)
class Read:
    """A reference, with the enclosing reduction indices."""

    ref: Ref
    over: tuple[Index, ...]

    @cached_property
    def constraints(self) -> Constraints:
        """The ranges of the reduction indices."""
        return frozenset().union(*(index.constraints for index in self.over))


@cache
def reads(equation: Equation) -> tuple[Read, ...]:
    """Every reference on the right-hand side of an equation, those to index arrays included."""
    return tuple(Read(ref, over) for ref, over in refs(equation.value))


def anywhere(system: System, read: Read) -> Read:
    """A read whose gathered positions are replaced by new reduction indices over all positions that
    the gather may select; a read without a gather is unchanged."""
    ref, among = every_choice(system, read.ref)
    return Read(ref, (*read.over, *among)) if among else read


def unproven_inside(equation: Equation, read: Read) -> Constraints:
    """The conditions, in the indices around a reference, under which its entry lies inside its
    array: l - i - 1 >= 0 for x[i + 1]; proven conditions are left out. Gathered positions give no
    condition."""
    around = equation.domain | read.constraints
    conditions: set[Poly] = set()
    for position, extent in zip(read.ref.positions, read.ref.array.shape, strict=True):
        if not isinstance(position, Gather):
            place = position_value(position)
            conditions |= {place - 1, extent - place}
    return frozenset(c for c in conditions if not implied(around, c))


@cache
def holes(system: System, array: Array) -> Sequence[Constraints]:
    """Regions, on an array's axes, of entries within its shape that no equation defines and some
    reference may read: zeros, of token 0. Of A[q, e], defined for e in 2..C and from q = 2 on also
    for e = 1, this is q = e = 1; row 0 is outside, and no hole. The sequence is taken to be
    endless, as no token sees its end. Only rewrites bring such reads (`System.beyond`), else ().

    Raises:
        Unsupported: entries that are defined or read lie at a stride, such as every second row.
    """
    if not system.beyond or array not in system.defining:
        return ()
    length = system.inputs[0].shape[0].letters
    there = [
        frozenset(c for c in own if not length <= c.letters)  # without bounds at the length
        for equation in system.defining[array]
        if (own := _defined_where(equation, equation.domain)) is not None
    ]
    missing = outside(whole(array), there)
    regions = [
        reached
        for equation in (system.equations if missing else ())
        for read in (anywhere(system, one) for one in reads(equation) if one.ref.array is array)
        if (reached := _reached(equation, read)) is not None
    ]
    return [hole for hole in missing if any(not infeasible(hole | reached) for reached in regions)]


def _reached(equation: Equation, read: Read) -> Constraints | None:
    """The entries that the instances of an equation read by one reference, in the axes of the
    array; None if there are none."""
    hidden = [index.atom for index in (*equation.indices, *read.over)]
    around = equation.domain | read.constraints
    return region(read.ref.array, read.ref.positions, around, hidden)


def bounded_by(index: Index, bound: Poly) -> Poly:
    """The bound of an index in a constraint `bound` >= 0: l for l - i >= 0, 1 for i - 1 >= 0."""
    atom = Poly.atom(index.atom)
    return bound + atom if bound.coefficient(index.atom) == -1 else atom - bound


def in_parts(domain: Constraints, terms: Terms, context: Terms) -> list[tuple[Constraints, bool]]:
    """The disjoint parts of a domain, as (constraints, whether the points depend on an input or a
    context): True where the maximum of `terms` (dependence on inputs) or of `context` (dependence
    on contexts) is at least 1. A domain that depends on one of them at every point is one part. For
    rows i in 1..l and the token i - 1: [(2..l, True), (1..1, False)]."""
    none = Poly()
    neither = [
        x for part in up_to_token(domain, terms, none) for x in up_to_token(part, context, none)
    ]
    if not neither:
        return [(domain, True)]
    given = after_token(domain, terms, none)
    given += [
        x for part in up_to_token(domain, terms, none) for x in after_token(part, context, none)
    ]
    return [*((part, True) for part in given), *((part, False) for part in neither)]


def latest(
    equation: Equation,
    arrays: Mapping[Array, Terms],
    length: frozenset[str],
    system: System,
    zeros: bool,
    passing: Callable[[Ref], bool] = lambda ref: True,
) -> Terms:
    """The latest token among the entries that an equation's instances read, as terms (token,
    conditions) in its free indices. A gather, x[p[i]], counts as a read of all positions that it
    may gather.

    Args:
        arrays: array -> its token in the axes of the array; other arrays have token 0.
        length: the letters of the sizes in the length of the sequence.
        system: tells which positions a gather may select.
        zeros: whether a read outside of one of `arrays`, or of an entry that no equation defines,
            counts as token 1 (`SOMETHING`), else as 0: such zeros surround the rows of each
            sequence, so that work on them is work per sequence.
        passing: which references count; all by default.

    Raises:
        Unsupported: the maximum over a reduction index, or where it exists, is not derived.
    """
    found: dict[Term, None] = {}
    for read in filter(lambda read: passing(read.ref), reads(equation)):
        for term in arrays.get(read.ref.array, ()):
            every = anywhere(system, read) if chosen_by_values(read.ref, (term,)) else read
            at_read = read_term(every.ref, term)
            found.update(dict.fromkeys(_latest_of(equation, every, at_read, length)))
        if zeros and read.ref.array in arrays:
            for inside in unproven_inside(equation, read):  # outside the array where it fails
                there = Term(SOMETHING, frozenset({-inside - 1}))
                found.update(dict.fromkeys(_latest_of(equation, read, there, length)))
            for hole in holes(system, read.ref.array):
                there = read_term(read.ref, Term(SOMETHING, hole))
                found.update(dict.fromkeys(_latest_of(equation, read, there, length)))
    return needed(equation.domain, list(found))


def needed(domain: Constraints, terms: list[Term]) -> Terms:
    """The terms (token, conditions) that the maximum of `terms` on the domain needs: a term is left
    out if another term is proven to be at least as large wherever it holds. Of two equal terms, the
    first stays."""
    terms = _with_fewer_conditions(domain, terms)
    return tuple(
        term
        for k, term in enumerate(terms)
        if not any(
            covered(domain, term, [rival]) and not (j > k and covered(domain, rival, [term]))
            for j, rival in enumerate(terms)
            if j != k
        )
    )


def chosen_by_values(ref: Ref, terms: Terms) -> bool:
    """Whether values choose the token of the entry that a reference reads: some of the array's
    `terms` (token, conditions) depend on an axis at which the reference gathers. True of x[p[i]]
    for the token of row #0; False of x[i, p[i]]."""
    letters: frozenset[str] = frozenset().union(
        *(p.letters for term in terms for p in (term.token, *term.where))
    )
    gathered = (k for k, p in enumerate(ref.positions) if isinstance(p, Gather))
    return any(axis_atom(axis) in letters for axis in gathered)


def covered(domain: Constraints, term: Term, rivals: Sequence[Term]) -> bool:
    """Whether a term (token, conditions), wherever its conditions hold in the domain, is proven to
    be at most the maximum of `rivals` and 0."""
    around = domain | term.where
    later = [r.where for r in rivals if implied(around | r.where, r.token - term.token)]
    return all(implied(left, -term.token) for left in outside(around, later))


def _with_fewer_conditions(domain: Constraints, terms: list[Term]) -> list[Term]:
    """The terms (token, conditions) with fewer conditions and the same maximum on the domain: a
    term loses all its conditions if the other terms are proven to be at least as large at the
    points that the conditions exclude."""
    for k, term in enumerate(terms):
        others = [rival for j, rival in enumerate(terms) if j != k]
        without = outside(domain, [term.where]) if term.where else ()
        if all(covered(empty, Term(term.token), others) for empty in without):
            terms[k] = Term(term.token)
    return list(dict.fromkeys(terms))


def _latest_of(
    equation: Equation, read: Read, term: Term, length: frozenset[str]
) -> Iterator[Term]:
    """Yield the latest token that a reference reads while the reduction indices around it run, as
    terms (token, conditions) in the free indices of the equation. For x[j] in the sum over j <= i
    the `term`, in the indices around the read, is (j, none), and the result (i, none); several
    terms if the maximum has cases. The conditions of a result say where the reduction has a summand
    that reads such an entry, unless every point is proven to have one.

    `length`: the letters of the sizes in the length of the sequence (`_maximised`). Unsupported:
    whether the token rises with an index is unknown.
    """
    around = equation.domain | read.constraints
    found = [(term.token, around | term.where)]
    for index in reversed(read.over):
        found = [
            case
            for token, known in found
            for case in _maximised(token, index, known, known - around, length)
        ]
    hidden = [index.atom for index in reversed(read.over)]
    for token, known in found:
        where: Constraints = frozenset()
        if known != around or (read.over and may_be_empty(equation)):
            reached = projected(known, hidden)
            where = frozenset(c for c in reached if not implied(equation.known, c))
        if not infeasible(equation.known | where):
            yield Term(token, where)


def _maximised(
    token: Poly, index: Index, known: Constraints, further: Constraints, length: frozenset[str]
) -> Iterator[tuple[Poly, Constraints]]:
    """Yield the maximum of an affine `token` while `index` runs over its range, as (maximum,
    constraints) per case: of the token j for j <= min(i, C), i where C >= i, and C where i > C. If
    the length l of the sequence is one of several bounds of the index, the sequence is taken to be
    endless: the maximum for j <= min(i, l) is i. A token that falls is largest at a lower bound.

    Args:
        known: all constraints on the indices around the term.
        further: the part of `known` that is no range of an index; it may bound `index` as well.
        length: the sizes in the length of the sequence.

    Raises:
        Unsupported: the coefficient's sign is unknown, or a constraint bounds a multiple of the
            index by another index, 2*i <= j.
    """
    slope = token.coefficient(index.atom)
    if not slope.terms:
        yield token, known
        return
    sign = next((s for s in (1, -1) if nonnegative(slope * s)), 0)
    if not sign:
        raise Unsupported(
            f"row '{token}' may rise with index {index.name} at some sizes and fall at others"
        )
    lower, upper, _ = bounds((c for c in further if index.atom in c.letters), index.atom)
    require_plain(index.atom, lower + upper)
    ends = index.upper if sign > 0 else index.lower
    ends += tuple(by_text([end for _, end in (upper if sign > 0 else lower)]))
    endless = tuple(end for end in ends if not length <= end.letters)
    for rivals in (ends, endless):
        for end in rivals:
            if all(implied(known, (other - end) * sign) for other in rivals):
                yield token.substitute({index.atom: end}), known
                return
    rivals = endless or ends
    for k, end in enumerate(rivals):
        # of equal bounds the first counts, so that the cases are disjoint
        tightest = {(other - end) * sign - int(j < k) for j, other in enumerate(rivals) if j != k}
        if not infeasible(known | tightest):
            yield token.substitute({index.atom: end}), known | tightest


def joined_terms(
    system: System,
    array: Array,
    equations: Mapping[Equation, Terms],
    domain: Callable[[Equation], Constraints] = lambda equation: equation.domain,
) -> Terms:
    """The token of an array's entry in the axes of the array, from the tokens of the equations that
    define the array (in their free indices), all as terms (token, conditions). If the terms of one
    equation are right at the entries of all equations, these terms are used alone: the token i of
    later rows also covers the token 1 of a first row. Otherwise, and where the system reads entries
    that no equation defines, the terms of each equation hold at the entries that the equation
    defines on `domain`."""
    found = {
        equation: tuple(_on_axes(equation, term) for term in terms)
        for equation, terms in equations.items()
        if equation.array is array
    }
    for candidate in found.values() if not holes(system, array) else ():
        if all(_same_token(equation, candidate, terms) for equation, terms in found.items()):
            return candidate
    return tuple(
        Term(term.token, term.where | own)
        for equation, terms in found.items()
        if (own := _defined_where(equation, domain(equation))) is not None
        for term in terms
    )


def _defined_where(equation: Equation, domain: Constraints) -> Constraints | None:
    """The conditions on the entries that an equation defines on a domain, beyond the extents of its
    array; None if it defines no entry."""
    where = region(equation.array, equation.positions, domain, [i.atom for i in equation.indices])
    if where is None:
        return None
    every = whole(equation.array)
    return frozenset(c for c in where if not implied(every, c))


def _same_token(equation: Equation, one: Terms, two: Terms) -> bool:
    """Whether two sets of terms (token, conditions) are proven to have the same maximum at the
    entries that an equation defines: token #0 of row #0, and token 1, at S[1] = x[1]."""
    if one == two or (where := defined(equation)) is None:
        return True
    return all(
        infeasible(where | term.where) or covered(where, term, rivals)
        for terms, rivals in ((one, two), (two, one))
        for term in terms
    )


def read_term(ref: Ref, term: Term) -> Term:
    """A term (token, conditions) in an array's axes, converted to the indices of a reference.
    Unsupported if the term depends on an axis where the reference gathers (x[p[i]])."""
    values: dict[str, Poly] = {}
    letters = term.token.letters.union(*(c.letters for c in term.where))
    for axis, position in enumerate(ref.positions):
        name = axis_atom(axis)
        if name in letters:
            values[name] = position_value(position)
    return _substituted(term, values)


def _substituted(term: Term, values: Mapping[str, Poly]) -> Term:
    where = frozenset(c.substitute(values) for c in term.where)
    return Term(term.token.substitute(values), where)


def _on_axes(equation: Equation, term: Term) -> Term:
    """A term (token, conditions) in an equation's free indices, converted to the axes of the array
    that it defines: token i of S[i + 1, c] is #0 - 1, of S[2*i, c] #0/2. Unsupported if an index is
    in no position without other indices, or if its factor there is a sum of sizes."""
    # where the token is a position plus a constant, the axis replaces the whole position
    token = term.token
    for axis, position in enumerate(equation.positions):
        rest = token - position_value(position)
        if variables_of([token]) and not variables_of([rest]):
            token = Poly.atom(axis_atom(axis)) + rest
            break
    values: dict[str, Poly] = {}
    letters = token.letters.union(*(c.letters for c in term.where))
    for name in sorted(a for a in letters if is_index(a)):
        for axis, position in enumerate(equation.positions):
            poly = position_value(position)
            free = {a for a in poly.letters if is_index(a)}
            slope = poly.coefficient(name)
            if free == {name} and len(slope.terms) == 1:
                # from axis = slope * index + rest
                rest = poly - slope * Poly.atom(name)
                values[name] = (Poly.atom(axis_atom(axis)) - rest) / slope
                break
        else:
            flat = [p.outer for p in equation.positions if isinstance(p, Flat)]
            if name in variables_of([*flat, *(low for i in equation.indices for low in i.lower)]):
                raise Unsupported(
                    f"the last token that {equation.name} depends on rises once per chunk of rows, "
                    f"not with the row: let {equation.part_of} read its own row of an input too"
                )
            raise Unsupported(
                f"the last token that {equation.name} depends on needs index {atom_name(name)}, "
                f"but {atom_name(name)} has no axis of {equation.array.name} to itself: give "
                f"{atom_name(name)} such an axis"
            )
    return _substituted(Term(token, term.where), values)


def at_token(domain: Constraints, terms: Terms, token: Poly) -> list[Constraints]:
    """The disjoint parts of a domain in which the maximum of `terms` (each a token under
    conditions) equals `token`, which is at least 1: of rows i in 1..l with token i, the row t.
    The work of one new token t is counted on these parts."""
    found = []
    for k, term in enumerate(terms):  # a point belongs to the first term that equals the token
        part = domain | term.where | {term.token - token, token - term.token}
        later = [o.over(token - int(j < k)) for j, o in enumerate(terms) if j != k]
        found += outside(part, later) if not infeasible(part) else []
    return found


def after_token(domain: Constraints, terms: Terms, token: Poly) -> list[Constraints]:
    """The disjoint parts of a domain in which the maximum of `terms` (each a token under
    conditions) exceeds `token`: of rows i in 1..l with token i, the rows t + 1..l; for token 0, the
    points that depend on an input."""
    found = []
    for k, term in enumerate(terms):  # a point belongs to the first term that exceeds the token
        part = domain | term.over(token)
        found += outside(part, [o.over(token) for o in terms[:k]]) if not infeasible(part) else []
    return found


def up_to_token(domain: Constraints, terms: Terms, token: Poly) -> list[Constraints]:
    """The disjoint parts of a domain in which the maximum of `terms` is at most `token`."""
    return outside(domain, [term.over(token) for term in terms])
