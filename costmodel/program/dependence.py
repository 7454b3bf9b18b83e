"""Which token does an equation depend on at the latest, given those of the arrays that it reads?

A token is kept as a maximum of affine terms, each at the points where it is reached. See `tokens`,
which asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from costmodel.errors import Unsupported
from costmodel.language.equations import Equation, System
from costmodel.language.indices import Index
from costmodel.language.nodes import Array, Gather, Ref, position_value, walk
from costmodel.program.nonempty import may_be_empty
from costmodel.program.wellformed import defined, every_choice, whole
from costmodel.symbolic.constraints import (
    Constraints,
    bounds,
    implied,
    infeasible,
    nonnegative,
    outside,
    projected,
    variables_of,
)
from costmodel.symbolic.polynomial import Poly, axis_atom, by_text, is_index


@dataclass(frozen=True)
class Term:
    """A token at the points where all conditions are >= 0; at others, token 0."""

    token: Poly
    where: Constraints = frozenset()

    def over(self, token: Poly) -> Constraints:
        """The conditions under which it exceeds a token."""
        return self.where | {self.token - token - 1}


Terms = tuple[Term, ...]
"""tau is the largest of these, and at least 0."""

SOMETHING = Poly.of(1)
"""Whether something depends on a context is derived like a token, that of a context being this."""


@dataclass(frozen=True)
class Read:
    """A reference with the reduction indices around it."""

    ref: Ref
    over: tuple[Index, ...]

    @cached_property
    def constraints(self) -> Constraints:
        """The ranges of the reduction indices."""
        return frozenset().union(*(index.constraints for index in self.over))


@cache
def reads(equation: Equation) -> tuple[Read, ...]:
    """Every reference on an equation's right side."""
    return tuple(
        Read(entry, over) for entry, over in walk(equation.value) if isinstance(entry, Ref)
    )


def anywhere(system: System, read: Read) -> Read:
    """A read at all positions that it may gather at."""
    ref, among = every_choice(system, read.ref)
    return Read(ref, (*read.over, *among)) if among else read


def unproven_inside(equation: Equation, read: Read) -> Constraints:
    """The conditions, in the indices around a reference, under which it reads inside of its array:
    those that are not proven."""
    around = equation.domain | read.constraints
    conditions: set[Poly] = set()
    for position, extent in zip(read.ref.positions, read.ref.array.shape, strict=True):
        if not isinstance(position, Gather):
            place = position_value(position)
            conditions |= {place - 1, extent - place}
    return frozenset(c for c in conditions if not implied(around, c))


def bounded_by(index: Index, bound: Poly) -> Poly:
    """What an index is bounded by."""
    atom = Poly.atom(index.atom)
    return bound + atom if bound.coefficient(index.atom) == -1 else atom - bound


def in_parts(domain: Constraints, terms: Terms, context: Terms) -> list[tuple[Constraints, bool]]:
    """A domain in parts that depend on an input or a context, or on none."""
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
    """The latest tokens read, with reduction indices eliminated.

    What is gathered is thought to be read at all positions that it may be gathered at.

    Args:
        zeros: whether what is read outside of an array is something.
        passing: which references count.
    """
    found: dict[Term, None] = {}
    for read in filter(lambda read: passing(read.ref), reads(equation)):
        for term in arrays.get(read.ref.array, ()):
            every = anywhere(system, read) if hidden(read.ref, (term,)) else read
            latest = _latest_of(equation, every, read_term(every.ref, term), length)
            found.update(dict.fromkeys(latest))
        if zeros and read.ref.array in arrays:
            for inside in unproven_inside(equation, read):
                there = Term(SOMETHING, frozenset({-inside - 1}))
                found.update(dict.fromkeys(_latest_of(equation, read, there, length)))
    return needed(equation.domain, list(found))


def needed(domain: Constraints, terms: list[Term]) -> Terms:
    """The same maximum, without terms that another one is proven to reach."""
    terms = _everywhere(domain, terms)
    return tuple(
        term
        for k, term in enumerate(terms)
        if not any(
            covered(domain, term, [rival]) and not (j > k and covered(domain, rival, [term]))
            for j, rival in enumerate(terms)
            if j != k
        )
    )


def hidden(ref: Ref, terms: Terms) -> bool:
    """Whether some terms name an axis of an array that is gathered from."""
    letters: frozenset[str] = frozenset().union(
        *(p.letters for term in terms for p in (term.token, *term.where))
    )
    gathered = (k for k, p in enumerate(ref.positions) if isinstance(p, Gather))
    return any(axis_atom(axis) in letters for axis in gathered)


def covered(domain: Constraints, term: Term, rivals: Sequence[Term]) -> bool:
    """Whether some of the terms, or token 0, are proven to be as late wherever a term holds."""
    around = domain | term.where
    later = [r.where for r in rivals if implied(around | r.where, r.token - term.token)]
    return all(implied(left, -term.token) for left in outside(around, later))


def _everywhere(domain: Constraints, terms: list[Term]) -> list[Term]:
    """The same maximum, conditions left out where a term counts for nothing outside them."""
    for k, term in enumerate(terms):
        others = [rival for j, rival in enumerate(terms) if j != k]
        without = outside(domain, [term.where]) if term.where else ()
        if all(covered(empty, Term(term.token), others) for empty in without):
            terms[k] = Term(term.token)
    return list(dict.fromkeys(terms))


def _latest_of(
    equation: Equation, read: Read, term: Term, length: frozenset[str]
) -> Iterator[Term]:
    """The latest tokens among the entries of one term that a reference reads.

    Where a sum may have no term, or none of these, they hold at the points where it has one.
    """
    around = equation.domain | read.constraints
    found = [(term.token, around | term.where)]
    for index in reversed(read.over):
        found = [
            latest
            for token, known in found
            for latest in _maximised(token, index, known, known - around, length)
        ]
    hidden = [index.atom for index in reversed(read.over)]
    for token, known in found:
        where: Constraints = frozenset()
        if known != around or (read.over and may_be_empty(equation)):
            reached = projected(known, hidden)
            where = frozenset(c for c in reached if not implied(equation.domain, c))
        if not infeasible(equation.domain | where):
            yield Term(token, where)


def _maximised(
    token: Poly, index: Index, known: Constraints, further: Constraints, length: frozenset[str]
) -> Iterator[tuple[Poly, Constraints]]:
    """The largest value of an affine term while `index` runs over its range, case by case.

    Where the end of the sequence may or may not be the tighter bound, the sequence is thought to go
    on: `length` holds the size that ends it.

    Args:
        known: all that holds around the term; of it, `further` holds besides the ranges of indices.
    """
    slope = token.coefficient(index.atom)
    if not slope.terms:
        yield token, known
        return
    sign = next((s for s in (1, -1) if nonnegative(slope * s)), 0)
    if not sign:
        raise Unsupported(f"a stride of index {index.name} whose sign depends on the sizes")
    lower, upper, _ = bounds((c for c in further if index.atom in c.letters), index.atom)
    if any(scale != 1 for scale, _ in lower + upper):
        raise Unsupported(f"index {index.name} is bounded with a stride")
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
        tightest = {(other - end) * sign - int(j < k) for j, other in enumerate(rivals) if j != k}
        if not infeasible(known | tightest):
            yield token.substitute({index.atom: end}), known | tightest


def joined_terms(array: Array, equations: Mapping[Equation, Terms]) -> Terms:
    """tau of an array in its axes, from all equations that define it.

    One set of terms may do for all of them: each equation may write it in another way, as token 1
    for the first row where the rest says token i. Else the terms of each hold at its own entries.
    """
    found = {
        equation: tuple(_on_axes(equation, term) for term in terms)
        for equation, terms in equations.items()
        if equation.array is array
    }
    for candidate in found.values():
        if all(_same_token(equation, candidate, terms) for equation, terms in found.items()):
            return candidate
    return tuple(
        Term(term.token, term.where | own)
        for equation, terms in found.items()
        if (own := _own(equation)) is not None
        for term in terms
    )


def _own(equation: Equation) -> Constraints | None:
    """The entries that an equation defines, among those of its array; None if there are none."""
    where = defined(equation)
    if where is None:
        return None
    every = whole(equation.array)
    return frozenset(c for c in where if not implied(every, c))


def _same_token(equation: Equation, one: Terms, two: Terms) -> bool:
    """Whether two sets of terms have the same maximum at the entries that an equation defines."""
    if one == two or (where := defined(equation)) is None:
        return True
    return all(
        infeasible(where | term.where) or covered(where, term, rivals)
        for terms, rivals in ((one, two), (two, one))
        for term in terms
    )


def read_term(ref: Ref, term: Term) -> Term:
    """A term in an array's axes, at the positions of a reference."""
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
    """A term in an equation's free indices, in the axes of the array that it defines."""
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
            if free == {name}:
                slope = position_value(position).coefficient(name)
                values[name] = (
                    Poly.atom(axis_atom(axis)) - (poly - slope * Poly.atom(name))
                ) * slope
                break
        else:
            raise Unsupported(f"the token of {equation.name} hides in a flattened axis")
    return _substituted(Term(token, term.where), values)


def at_token(domain: Constraints, terms: Terms, token: Poly) -> list[Constraints]:
    """The disjoint parts of a domain in which the largest of `terms` equals `token`, at least 1."""
    found = []
    for k, term in enumerate(terms):
        part = domain | term.where | {term.token - token, token - term.token}
        later = [o.over(token - int(j < k)) for j, o in enumerate(terms) if j != k]
        found += outside(part, later) if not infeasible(part) else []
    return found


def after_token(domain: Constraints, terms: Terms, token: Poly) -> list[Constraints]:
    """The disjoint parts of a domain in which the largest of `terms` exceeds `token`."""
    found = []
    for k, term in enumerate(terms):
        part = domain | term.over(token)
        found += outside(part, [o.over(token) for o in terms[:k]]) if not infeasible(part) else []
    return found


def up_to_token(domain: Constraints, terms: Terms, token: Poly) -> list[Constraints]:
    """The disjoint parts of a domain in which the largest of `terms` is at most `token`."""
    return outside(domain, [term.over(token) for term in terms])
