"""The owner of every instance: the token whose arrival triggers the work, in one-token inference.

tau of an entry (`tokens`) is the latest input row that it depends on; its owner may be later:

1. a row of the input or of the output: the owner is its own number;
2. a step of a loop: tau, if it reads row tau without passing an earlier step of the loop, unless
   one tau is that of all steps, as of R[i] = tanh(R[i-1]), R[1] = x[1]: no input triggers step i;
3. outside of loops: tau, if the array's entries combine several tokens and serve several tokens
   (a summary, such as the state of a chunk);
4. all else: the least owner of the readers; tau without readers.

Single-use temporaries (each entry read by one instance, of another array) count as part of their
reader in rules 2 and 3.

Example: the causal mixer v[i] = a*x[i], s[i, j] = b*x[j], y[i] = sum over j <= i of s[i, j]*v[j].
Token i owns y[i] by rule 1. By rule 4 it owns v[i], whose readers are y[i], y[i+1], ..., and each
s[i, j]: tau of s[i, j] is j, but its only reader is y[i]. So token t owns v[t], s[t, 1..t] and
y[t], with 1 + t + t multiplications. Where the work of a token does not depend on the end of the
sequence (`Owners.ending`), its count is training(t) minus training(t-1). Here training(l) is l +
l*(l+1) multiplications, and the difference is 1 + 2*t.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache, cached_property

from costmodel.errors import Unsupported
from costmodel.language.equations import Equation, System
from costmodel.language.indices import Index
from costmodel.language.nodes import Array, Gather, Ref, names_in, position_value
from costmodel.program.dependence import (
    Read,
    Term,
    Terms,
    after_token,
    anywhere,
    at_token,
    bounded_by,
    covered,
    joined_terms,
    latest,
    needed,
    read_term,
    reads,
)
from costmodel.program.recurrences import Block, blocks
from costmodel.program.tokens import tokens
from costmodel.program.wellformed import region, whole
from costmodel.symbolic.constraints import (
    ONE,
    Constraints,
    bounds,
    implied,
    infeasible,
    nonnegative,
    outside,
    variables_of,
)
from costmodel.symbolic.polynomial import Poly, axis_atom, index_atom, is_index

OWNER = axis_atom("owner")
"""The owner of an instance, as a variable beside the axes of an array that the instance reads."""

TOKEN = index_atom("token")
"""The token of an entry that an instance reads, as a variable beside its indices."""


class Owners:
    """The owners of a system's instances, each the maximum of conditional affine terms (`Terms`).

    Raises:
        Unsupported: owners cannot be derived; the reason names the array.
    """

    def __init__(self, system: System) -> None:
        """Derive the owner (the token whose arrival triggers the work) of every instance by this
        file's rules, from the last block of equations back to the first: readers come first."""
        self.system = system
        self.tokens = tokens(system)
        self._arrays: dict[Array, Terms] = {a: self.tokens.of(a) for a in system.inputs}
        self._equations: dict[Equation, Terms] = {}  # equation -> owner of its instances
        self._temporaries: dict[Array, bool] = {}  # the answers of `_is_temporary`
        for block in reversed(blocks(system)):
            if block.equations[0].array in self.tokens.from_inputs:
                self._settle(block)

    def of(self, array: Array) -> Terms:
        """The owner of an array's entry, in its axes; () is token 0."""
        return self._arrays.get(array, ())

    def at(self, ref: Ref) -> Terms:
        """The owner of a referenced entry, in the indices of the reference."""
        return tuple(read_term(ref, term) for term in self.of(ref.array))

    def instance(self, equation: Equation) -> Terms:
        """The owner of an equation's instance, in its free indices."""
        return self._equations.get(equation, ())

    def _settle(self, block: Block) -> None:
        """Derive the owners of a block (the equations of one array, or of one loop). An output row
        owns itself. A loop's instance that reads row tau (the latest input row that the instance
        depends on) without an earlier step has the owner tau; readers decide at all other points
        (`_late`). In a loop, readers may belong to the loop itself: owners are iterated to a fixed
        point. Raises Unsupported: the iteration does not converge, or an owner is not derived."""
        reached = self._reached(block) if block.is_loop else {}
        waiting: dict[Equation, Sequence[Constraints]] = {}
        for equation in block.equations:
            late = self._late(block, equation, reached)
            if equation.array.role == "output":
                self._equations[equation] = self._owner_of_row(equation)
            elif late:
                waiting[equation] = late
            else:
                self._equations[equation] = self.tokens.instance(equation)
        # each round passes owners on by one equation or more; the last one changes nothing
        for _ in range(len(block.equations) + 2):
            before = dict(self._equations)
            for equation, points in waiting.items():
                self._equations.update(self._owner_from_readers(block, equation, points))
            if before == self._equations or not block.is_loop:
                break
        else:
            names = ", ".join(dict.fromkeys(e.array.name for e in waiting))
            raise Unsupported(
                f"the first token that needs {names} was not found in {len(block.equations) + 2} "
                "rounds of a search: ask for phase training"
            )
        for array in dict.fromkeys(equation.array for equation in block.equations):
            tau = {e: self.tokens.instance(e) for e in block.equations if e.array is array}
            found = {e: self._equations.setdefault(e, tau[e]) for e in tau}
            same = found == tau
            self._arrays[array] = (
                self.tokens.of(array)
                if same
                else joined_terms(self.system, array, found, self.unbounded)
            )

    def _owner_of_row(self, equation: Equation) -> Terms:
        """The owner of an output row (rule 1): its own number, or tau (the latest input row that it
        depends on) where tau is later; token 0 where the row depends on no input."""
        row = position_value(equation.positions[0])
        return self._tau_or(equation, [Term(row)], [equation.domain])

    def _tau_or(
        self, equation: Equation, owners: Sequence[Term], late: Sequence[Constraints]
    ) -> Terms:
        """The maximum of tau (the latest input row that an instance depends on) and, at the points
        in `late` that depend on an input, of `owners`: other points are no work of any token."""
        tau, domain = self.tokens.instance(equation), equation.domain
        found = list(tau)
        for part in late:
            for given in after_token(part, tau, Poly()):
                for owner in owners:
                    where = frozenset(c for c in given | owner.where if not implied(domain, c))
                    term = Term(owner.token, where)
                    if not infeasible(domain | where) and not covered(domain, term, tau):
                        found.append(term)
        return needed(domain, found) if len(found) > len(tau) else tau

    def _owner_from_readers(
        self, block: Block, equation: Equation, late: Sequence[Constraints]
    ) -> Mapping[Equation, Terms]:
        """{equation: the owner of its instances}, by rules 3 and 4 of this file; {} if no reader's
        owner is known yet. `late`: the indices (as constraints) at which the owner may be a later
        token than tau, the latest input row that an instance depends on; at all others the owner is
        tau. In `late` the owner is the least owner of the readers (of v[i], which y[i], y[i+1], ...
        read: i), but tau if work of token tau reads the entry (at the points of `prompt`, which are
        taken out of `late`), or if the array is a summary, as the state of a chunk is. Where tau is
        0, the entry depends on no input and is no work of any token. Raises Unsupported: the
        owner of a reader is not derived, or the entries that one transform or selection writes at
        once have several owners."""
        array, tau = equation.array, self.tokens.instance(equation)
        place = Ref(array, equation.positions)
        prompt = [read_term(place, Term(Poly(), part)).where for part in self._read_at_once(array)]
        later = [left for part in late for left in outside(part, prompt)]
        if not any(after_token(part, tau, Poly()) for part in later):
            return {equation: tau}
        served, unsettled = self._regions_read(array)
        owners = [read_term(place, term) for term in _least(array, served)]
        found = self._tau_or(equation, owners, later) if served else None
        summary = found != tau and not block.is_loop and self._is_summary(array, served)
        if summary or (found == tau and not unsettled):
            return {equation: tau}
        if unsettled:
            raise unsettled
        if found is None:
            return {}
        if equation.value.alone:
            apart = variables_of(p for term in found for p in (term.token, *term.where))
            named = {name for read in reads(equation) for name in names_in(read.ref.positions)}
            if not apart <= named:
                raise Unsupported(
                    f"one operation computes the entries of {array.name} for several tokens, so "
                    "that one token has no cost of its own: ask for phase training"
                )
        return {equation: found}

    def _read_at_once(self, array: Array) -> list[Constraints]:
        """Regions of the entries of an array, in its axes, that work of token tau (the latest input
        row that the entry depends on) reads: no reader can need these entries earlier, so that tau
        owns them."""
        return [
            reached
            for term in self.tokens.of(array)
            for reached, _ in self._reached_by(array, term.token, term.where)
            if reached is not None
        ]

    def _regions_read(self, array: Array) -> tuple[list[Constraints], Unsupported | None]:
        """(regions of the entries that are read, in the array's axes and the variable `OWNER`, the
        reader's owner, without duplicates; the reason why a reference has no region, None if all
        have one)."""
        found = list(self._reached_by(array, Poly.atom(OWNER), frozenset()))
        regions = dict.fromkeys(reached for reached, _ in found if reached is not None)
        return list(regions), next((why for _, why in found if why), None)

    def _reached_by(
        self, array: Array, token: Poly, where: Constraints
    ) -> Iterator[tuple[Constraints | None, Unsupported | None]]:
        """Yield the entries of an array, among those where `where` holds, that instances owned by
        `token` read. For each reference, and each case of its reader's owner, the pair is (region
        in the axes of the array, None), (None, None) if no entry is read, or (None, the reason why
        no region is derived)."""
        inside = {Poly.atom(axis_atom(axis)) - 1 for axis in range(len(array.shape))}
        for reader, read in self._readers(array):
            around = self.unbounded(reader) | read.constraints
            for part in at_token(around, self.instance(reader), token):
                hidden = {a for c in part for a in c.letters if is_index(a)}
                names = sorted(hidden.union(names_in(read.ref.positions)))
                try:
                    yield region(array, read.ref.positions, part | where | inside, names), None
                except Unsupported as error:
                    why = (
                        f"the owner of {array.name} (the token that triggers its work) is not "
                        f"derived: {error}"
                    )
                    yield None, Unsupported(why, error.advice)

    def _readers(self, array: Array) -> Iterator[tuple[Equation, Read]]:
        """Yield the references to an array as (equation, reference); a reference with a gather, as
        x[p[i]], gets an index over all positions that it may read."""
        for reader in self.system.equations:
            for read in reads(reader):
                if read.ref.array is array:
                    yield reader, anywhere(self.system, read)

    def _late(
        self, block: Block, equation: Equation, reached: Mapping[Equation, Terms]
    ) -> list[Constraints]:
        """The points of an equation whose owner depends on its readers: of a temporary, of steps
        that share one tau (the latest input row that a point depends on), and outside of loops, all
        points; in a loop, the points that do not read row tau without passing an earlier step of
        the loop. `reached`: equation of the loop -> the latest rows that it reads in this way."""
        if (
            equation not in reached
            or self._is_temporary(equation.array)
            or self._steps_share_tau(block, equation)
        ):
            return [equation.domain]
        return [
            part
            for term in self.tokens.instance(equation)
            for part in outside(
                equation.domain | term.where | {term.token - 1},
                [x.where | {x.token - term.token} for x in reached[equation]],
            )
        ]

    def _steps_share_tau(self, block: Block, equation: Equation) -> bool:
        """Whether the steps of a loop are as many as the length gives, and the latest input row
        that they depend on (tau) is the same for all."""
        row = block.row(equation).letters
        return not variables_of(term.token for term in self.tokens.instance(equation)) and any(
            index.atom in row and self.tokens.length & constraint.letters
            for index in equation.indices
            for constraint in index.constraints
        )

    def _reached(self, block: Block) -> Mapping[Equation, Terms]:
        """Equation of a loop -> the latest input rows that it reads without reading an earlier row
        of the loop, as terms (token, conditions); a temporary whose entries are read once counts as
        a part of its reader."""
        # array -> such terms of its entries: so far those that inputs give, outside of the loop
        arrays = {a: self.tokens.of(a) for a in self.tokens.from_inputs if a not in block.axes}
        found: dict[Equation, Terms] = {}
        # reads of the own row pass rows on by one equation or more per round
        for _ in block.equations:
            for equation in block.equations:
                # a read of an earlier row of the loop is left out: what that row depends on came in
                # at its own step; a temporary has no step, and is followed in any row
                def passing(ref: Ref, equation: Equation = equation) -> bool:
                    return not block.lag(equation, ref) or self._is_temporary(ref.array)

                system, length = self.system, self.tokens.length
                found[equation] = latest(
                    equation, arrays, length, system, zeros=False, passing=passing
                )
                of_it = {e: terms for e, terms in found.items() if e.array is equation.array}
                arrays[equation.array] = joined_terms(self.system, equation.array, of_it)
        return found

    def _is_temporary(self, array: Array) -> bool:
        """Whether an array is a single-use temporary: each entry is proven to have at most one
        reader, of another array. Rules 2 and 3 count the entry as a part of this reader."""
        if array not in self._temporaries:
            self._temporaries[array] = array in self.system.defining and self._read_once(array)
        return self._temporaries[array]

    def _read_once(self, array: Array) -> bool:
        """Whether it is proven that no two instances read one entry of an array; False also for an
        array that reads itself."""
        readers = list(self._readers(array))
        if any(reader.array is array for reader, _ in readers):
            return False
        for number, (one, read) in enumerate(readers):
            for other, another in readers[number:]:
                again = _all_primed(other.domain | another.constraints)
                both = one.domain | read.constraints | again | _equal_places(read.ref, another.ref)
                apart = [Poly()]  # two references never read one entry: no condition (0 >= 0)
                if one is other:  # one reference: two instances differ in some index
                    steps = [_primed(Poly.atom(i.atom)) - Poly.atom(i.atom) for i in one.indices]
                    apart = [sign * step - 1 for step in steps for sign in (1, -1)]
                if not all(infeasible(both | {step}) for step in apart):
                    return False
        return True

    def _is_summary(self, array: Array, served: Sequence[Constraints]) -> bool:
        """Whether entries of an array, such as the state of a chunk, may combine several tokens and
        serve several; False is proven. `served`: regions of entries with their readers' owners
        (`OWNER`)."""
        # a second reader of the entry, whose owner is later by owner' >= 1; owner 0 is no token
        later = {OWNER: Poly.atom(OWNER) + Poly.atom(f"{OWNER}'")}
        tokens = {Poly.atom(OWNER) - 1, Poly.atom(f"{OWNER}'") - 1}
        return any(
            not infeasible(one | {c.substitute(later) for c in two} | tokens)
            for one in served
            for two in served
        ) and any(map(self._reads_several, self.system.defining[array]))

    def _reads_several(self, equation: Equation) -> bool:
        """Whether an instance of an equation may read several tokens' entries; False is proven."""
        found, kept = self._tokens_read(equation), {index.atom for index in equation.indices}
        # a second read of the instance, with summed indices and token marked ', of a later token
        return any(
            not infeasible(
                one | _all_primed(two, kept) | {_primed(Poly.atom(TOKEN)) - Poly.atom(TOKEN) - 1}
            )
            for one in found
            for two in found
        )

    def _tokens_read(self, equation: Equation) -> list[Constraints]:
        """The tokens (variable `TOKEN`) of the entries that an instance reads, directly or through
        temporaries whose entries are read once, as regions in the free indices, the reduction
        indices and `TOKEN`: 1 <= j <= i, `TOKEN` = j for the sum over j <= i of x[j]."""
        found: list[Constraints] = []
        for read in (anywhere(self.system, read) for read in reads(equation)):
            around = equation.domain | read.constraints | {Poly.atom(TOKEN) - 1}
            if not self._is_temporary(read.ref.array):
                found += at_token(around, self.tokens.at(read.ref), Poly.atom(TOKEN))
                continue
            for part in self.system.defining[read.ref.array]:
                for inner in self._tokens_read(part):
                    names = sorted({a for c in inner for a in c.letters if is_index(a)} - {TOKEN})
                    reached = region(part.array, part.positions, inner, names)
                    if reached is not None:  # in the indices of the reference, not in axes
                        term = read_term(read.ref, Term(Poly(), reached))
                        found.append(around | term.where)
        return found

    def unbounded(self, equation: Equation) -> Constraints:
        """The domain of an equation in an endless sequence, as token t cannot see where the
        sequence ends: i >= 1 for y[i] with i in 1..l, without the bound i <= l that the length
        gives to an index on which the owner or tau (the latest input row that an instance depends
        on) depends."""
        own, tau = self.instance(equation), self.tokens.instance(equation)
        terms = [term.token for term in (*own, *tau)]
        of_token = {a for term in terms for a in term.letters if is_index(a)}

        def ends(index: Index, constraint: Poly) -> bool:
            """Whether a constraint on an index is a bound that the length gives: with the length,
            and either an upper bound without other indices (l - i, l/2 - q), or one that falls as a
            token rises: l - 2*q - e, a bound of e, for the token 2*q + e. Of an index that is in no
            token, a bound that the others imply, as the number of the last chunk of l rows."""
            others = {i.atom for i in equation.indices} - {index.atom}
            if not self.tokens.length <= constraint.letters:
                return False
            if index.atom not in of_token:
                return implied(equation.domain - {constraint}, constraint)
            fall = -constraint.coefficient(index.atom)
            if constraint.letters.isdisjoint(others):
                return fall == Poly.of(1)
            named = variables_of([constraint])
            return nonnegative(fall) and any(
                nonnegative((rise := term.coefficient(index.atom)) - 1)
                and named.isdisjoint(variables_of([constraint * rise + term * fall]))
                for term in terms
            )

        return frozenset(
            constraint
            for index in equation.indices
            for constraint in index.constraints
            if not ends(index, constraint)
        )

    @cached_property
    def ending(self) -> str | None:
        """The reason why the work of a token depends on where the sequence ends, with the first
        equation and bound that limit the work. None if each bound with the length l only repeats
        what the extents of arrays (such as i <= l) or other bounds imply."""
        for equation in self.system.equations:
            if equation.array in self.tokens.from_inputs:
                for name, bound in self._bounded_by_the_end(equation):
                    return (
                        f"{equation.name}: the work of one token depends on the length of the "
                        f"sequence, at the bound {bound} of index {name}"
                    )
        return None

    def _bounded_by_the_end(self, equation: Equation) -> Iterator[tuple[str, Poly]]:
        """Yield the bounds of an equation that make a token's work depend on the length of the
        sequence, as (name of the index, bound): bounds that name the length and that neither the
        extents of the arrays nor the other bounds imply. One-token inference refuses such an
        equation."""
        known = self.unbounded(equation)
        tau = self.tokens.instance(equation)
        of_token = {a for x in (*self.instance(equation), *tau) for a in x.token.letters}
        places = [(equation.array, equation.positions)]
        places += [(read.ref.array, read.ref.positions) for read in reads(equation)]
        inside = {
            end
            for array, positions in places
            for extent, position in zip(array.shape, positions, strict=True)
            if not isinstance(position, Gather)
            for end in (position_value(position) - 1, extent - position_value(position))
        }
        length = self.system.mixer.role("input").shape[0]
        terms = self.instance(equation)
        # a token exists, so that its number is at most the length: per case of the owner's terms
        inside |= {length - term.token for term in terms if not term.where}
        always = not all(term.where for term in terms)
        cases = [frozenset()] if always else [x.where | {length - x.token} for x in terms]
        left = [
            (index, bound)
            for index in equation.indices
            for bound in index.constraints
            if index.atom in of_token and self.tokens.length <= bound.letters
        ]

        def implied_otherwise(bound: Poly) -> bool:
            dropped = bound not in known
            others = known | inside if dropped else equation.domain - {bound}
            return all(implied(others | case, bound) for case in cases)

        # a bound that is implied may imply others: of a chunk those of the chunk that it is in
        while found := [one for one in left if implied_otherwise(one[1])]:
            inside |= {bound for _, bound in found}
            left = [one for one in left if one not in found]
        yield from ((index.name, bounded_by(index, bound)) for index, bound in left)
        for read in reads(equation):
            yield from self._bounded_read(equation, read)

    def _bounded_read(self, equation: Equation, read: Read) -> Iterator[tuple[str, Poly]]:
        """Yield the bounds of the reduction indices around a reference by which the tokens of the
        entries read depend on the length: (j, l) for the sum over j in i..l of x[j]."""
        # the indices of the entry's token, and those whose ranges depend on these indices
        seen = self.tokens.indices_of(read.ref)
        for index in reversed(read.over):
            if any(seen & c.letters for c in index.constraints):
                seen |= {index.atom}
            for bound in index.constraints if index.atom in seen else ():
                others = (equation.domain | read.constraints) - {bound}
                if self.tokens.length <= bound.letters and not implied(others, bound):
                    yield index.name, bounded_by(index, bound)


def _least(array: Array, served: Sequence[Constraints]) -> Iterator[Term]:
    """Yield the least owner among the readers of an entry, as terms (token, conditions) in the axes
    of the array: for each region of `served` (entries with the owners of their readers), the least
    owner where no other region has a smaller one."""
    found = [_lowest(array, reached) for reached in served]
    # left out: regions where another owner is proven to be no later (of equals, the first stays)
    kept = [
        one
        for k, one in enumerate(found)
        if not any(
            _no_later(other, one) and not (j > k and _no_later(one, other))
            for j, other in enumerate(found)
            if j != k
        )
    ]
    # the least owner of a region is the maximum of `lows`; it counts where no other is smaller
    for lows, where in kept:
        others = [other for other in kept if other != (lows, where)]
        before = [there | {low - end - 1 for end in ends} for ends, there in others for low in lows]
        for part in outside(where, before):
            yield from (Term(low, part) for low in lows)


Lowest = tuple[tuple[Poly, ...], Constraints]
"""The least owner is the maximum of these polynomials, at the entries where all conditions hold."""


def _lowest(array: Array, reached: Constraints) -> Lowest:
    """The least owner among the readers of an entry, as (lower bounds whose maximum it is,
    conditions under which there is a reader): ((#0,), {}) if `reached`, on entries and owners of
    their readers, is #0 <= `OWNER` <= l. Unsupported for bounds of a multiple of `OWNER`."""
    lower, upper, rest = bounds(reached, OWNER)
    for scale, _ in lower:
        if scale != ONE:
            raise Unsupported(
                f"only one in {scale} tokens computes entries of {array.name}, so that the cost of "
                "one token has no formula: ask for phase training"
            )
    lows = tuple(low for _, low in lower)
    # an owner exists where no upper bound is below a lower one
    some = [up - low * scale for scale, up in upper for low in lows]
    return lows, frozenset(c for c in (*rest, *some) if not implied(whole(array), c))


def _no_later(one: Lowest, other: Lowest) -> bool:
    """Whether the owner `one` is proven to exist, and to be at most `other`, wherever `other`
    exists, so that `_least` leaves `other` out. Each is (polynomials whose maximum is the owner,
    conditions on the entry)."""
    (lows, where), (rivals, there) = one, other
    return all(implied(there, c) for c in where) and all(
        any(implied(there, rival - low) for rival in rivals) for low in lows
    )


def _primed(value: Poly) -> Poly:
    """A value with the variables of a second point (marked '): i' + 1 for i + 1."""
    return value.substitute({a: Poly.atom(f"{a}'") for a in value.variables})


def _all_primed(constraints: Constraints, kept: Collection[str] = ()) -> Constraints:
    """Constraints with the variables of a second point, except those in `kept`."""
    names = {a: Poly.atom(f"{a}'") for a in variables_of(constraints) - {*kept}}
    return frozenset(c.substitute(names) for c in constraints)


def _equal_places(one: Ref, other: Ref) -> Constraints:
    """The constraints under which two references, the second at a second point (its indices marked
    '), read one entry; gathered positions, as in x[p[i]], are taken to be equal."""
    found: set[Poly] = set()
    for here, there in zip(one.positions, other.positions, strict=True):
        if not isinstance(here, Gather) and not isinstance(there, Gather):
            apart = position_value(here) - _primed(position_value(there))
            found |= {apart, -apart}
    return frozenset(found)


@cache
def owners(system: System) -> Owners:
    """The owners of a system's instances."""
    return Owners(system)
