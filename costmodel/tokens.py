"""Which token does each array entry belong to, and which instances run for one new token?

An entry belongs to tau = the latest input row that it depends on; what depends on parameters and
buffers alone belongs to token 0. tau is derived from bounds and indices and kept as a maximum of
affine terms, each at the points where it is reached: in the axes (`#0`, `#1`) of an array, in the
free indices of an equation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from costmodel.composites import OF_GRADIENTS, lower
from costmodel.conventions import WANTED, parted
from costmodel.domains import (
    Constraints,
    Unsupported,
    bounds,
    implied,
    infeasible,
    nonnegative,
    outside,
    projected,
    variables_of,
)
from costmodel.equations import JOINED, STEP, TRAINED, Equation, Mixer, System
from costmodel.expressions import (
    Array,
    EquationError,
    Fft,
    Flat,
    Gather,
    Index,
    Position,
    Ref,
    Select,
    hashed_once,
    position_value,
    walk,
)
from costmodel.loops import Block, blocks
from costmodel.polynomial import Poly
from costmodel.presence import may_be_empty
from costmodel.wellformed import check_form, defined, every_choice, whole

T = Poly.atom("t")


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


class Unanswered(ValueError):
    """The question has no answer for this mixer or form; the message is the reason."""


@hashed_once
@dataclass(frozen=True)
class Instances:
    """The points of one equation that a phase executes."""

    equation: Equation
    constraints: Constraints
    once: bool
    """Whether they depend on no input and no context: done once a forward pass."""
    joined: bool = False
    """Whether their results are added up over the sequences of a batch, as gradients of weights
    are."""

    @property
    def variables(self) -> tuple[str, ...]:
        """The free indices, outer ones first."""
        return tuple(index.atom for index in self.equation.indices)


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


@dataclass(frozen=True, eq=False)
class Tokens:
    """The tokens of a system's arrays and equations."""

    system: System

    @cached_property
    def dynamic(self) -> frozenset[Array]:
        """The arrays that depend on the input (tau >= 1)."""
        return self._depending({self.system.mixer.role("input")})

    @cached_property
    def given(self) -> frozenset[Array]:
        """The arrays that depend on the input or on a context: work on them is for one sequence."""
        return self._depending(
            {a for a in self.system.mixer.arrays.values() if a.role in ("input", "context")}
        )

    def _depending(self, found: set[Array]) -> frozenset[Array]:
        """The arrays that depend on any of some."""
        while True:
            more = {
                equation.array
                for equation in self.system.equations
                if any(read.ref.array in found for read in reads(equation))
            }
            if more <= found:
                return frozenset(found)
            found = found | more

    @cached_property
    def _terms(self) -> tuple[Mapping[Array, Terms], Mapping[Equation, Terms]]:
        return self._derived({self.system.mixer.role("input"): (Term(Poly.atom("#0")),)})

    @cached_property
    def _from_context(self) -> tuple[Mapping[Array, Terms], Mapping[Equation, Terms]]:
        given = dict.fromkeys(self.system.mixer.contexts, (Term(SOMETHING),))
        return self._derived({**given}, zeros=self.system.beyond)

    @cached_property
    def _dependence(self) -> tuple[Mapping[Array, Terms], Mapping[Equation, Terms]]:
        """Where arrays and equations depend on an input or a context, in a sequence that ends.

        Near the end the token may be another one than in a sequence that goes on, or none. Zeros
        that are read outside of an array stand before and after the rows of each sequence: they
        depend on what the array does.
        """
        given = (self.system.mixer.role("input"), *self.system.mixer.contexts)
        return self._derived(dict.fromkeys(given, (Term(SOMETHING),)), zeros=self.system.beyond)

    def _derived(
        self, arrays: dict[Array, Terms], *, zeros: bool = False
    ) -> tuple[Mapping[Array, Terms], Mapping[Equation, Terms]]:
        """The tokens of all arrays and equations, given those of some arrays."""
        equations: dict[Equation, Terms] = {}
        for block in blocks(self.system) if arrays else ():
            self._settle(block, arrays, equations, zeros)
        return arrays, equations

    def _settle(
        self,
        block: Block,
        arrays: dict[Array, Terms],
        equations: dict[Equation, Terms],
        zeros: bool,
    ) -> None:
        """The tokens of a block; those of a loop are refined until they repeat themselves.

        They are first thought to be alike in all rows. What repeats itself is right, however it was
        found: every row follows from the row before.
        """
        alike = block.is_loop
        for _ in range(len(block.equations) + 4):
            before = [equations.get(equation) for equation in block.equations]
            for equation in block.equations:
                equations[equation] = _latest(equation, arrays, self.length, self.system, zeros)
                known = {e: equations[e] for e in block.equations if equations.get(e)}
                if alike and known:
                    arrays[equation.array] = _joined(equation.array, known)
            settled = before == [equations[equation] for equation in block.equations]
            if settled or not alike:
                for array in {equation.array for equation in block.equations}:
                    complete = {e: equations[e] for e in block.equations if e.array is array}
                    arrays[array] = _joined(array, complete)
            if not block.is_loop or (settled and not alike):
                return
            alike = alike and not settled
        raise Unsupported(f"the tokens of {block.equations[0].name} do not settle")

    def of(self, array: Array) -> Terms:
        """tau of an array's entry as a maximum of terms in its axes; () is token 0."""
        return self._terms[0].get(array, ())

    def at(self, ref: Ref) -> Terms:
        """tau of a referenced entry, in the indices of the reference."""
        return tuple(_read_term(ref, term) for term in self.of(ref.array))

    def hidden(self, ref: Ref) -> bool:
        """Whether tau of a referenced entry depends on the values of positions."""
        return _hidden(ref, self.of(ref.array))

    def spanned(self, node: Fft | Select, equation: Equation) -> bool:
        """Whether an opaque step runs over the token axis, a choice alike for all rows."""
        by_row = variables_of(term.token for term in self.instance(equation))
        over = any(index.atom in self._indices_of(node.body) for index in node.over)
        return over and not (isinstance(node, Select) and by_row)

    def _indices_of(self, ref: Ref) -> frozenset[str]:
        """The indices that tau of a referenced entry depends on, by the positions that are plain:
        others are read themselves."""
        axes = frozenset().union(*(term.token.letters for term in self.of(ref.array)))
        return frozenset().union(
            *(
                position_value(position).letters
                for axis, position in enumerate(ref.positions)
                if f"#{axis}" in axes and not isinstance(position, Gather)
            )
        )

    def instance(self, equation: Equation) -> Terms:
        """tau of an equation's instance, in its free indices."""
        return self._terms[1][equation]

    def dependent(self, equation: Equation) -> list[tuple[Constraints, bool]]:
        """The points of an equation, in parts that depend on an input or a context, or on none."""
        if equation.array not in self.given:
            return [(equation.domain, False)]
        if equation.array in self._whole:
            return [(equation.domain, True)]
        if self.underivable:
            return [(equation.domain, self._throughout(equation))]
        return _dependent(equation.domain, self._dependence[1].get(equation, ()), ())

    def dependent_entries(
        self, ref: Ref, around: Constraints, *, ends: bool = True
    ) -> list[tuple[Constraints, bool]]:
        """The points around a reference, in parts at which the entry that is read depends on an
        input or a context, or on none; `ends` says that the sequence does not go on."""
        if ref.array not in self.given:
            return [(around, False)]
        if self.underivable:
            return [(around, all(map(self._throughout, self.system.defining.get(ref.array, ()))))]
        if ends:
            here = self._dependence[0].get(ref.array, ())
            return _dependent(around, tuple(_read_term(ref, term) for term in here), ())
        context = self._from_context[0].get(ref.array, ())
        return _dependent(around, self.at(ref), tuple(_read_term(ref, term) for term in context))

    @cached_property
    def underivable(self) -> str | None:
        """Why the tokens cannot be derived, or None."""
        try:
            _ = self.causal, self._from_context, self._dependence
        except Unsupported as error:
            return str(error)
        return None

    def _throughout(self, equation: Equation) -> bool:
        """True, once it is proven that every point of an equation depends on an input or a context.

        Raises:
            Unsupported: it is not proven, and tokens are not there to tell.
        """
        if equation.array not in self._whole:
            raise Unsupported(
                f"which entries depend on the input is not derived: {self.underivable}"
            )
        return True

    @cached_property
    def _whole(self) -> frozenset[Array]:
        """Arrays of which every entry depends on an input or a context."""
        found = set(self.given)
        while True:
            partly = {
                equation.array
                for equation in self.system.equations
                if not any(
                    read.ref.array in found and not (read.over and may_be_empty(equation))
                    for read in reads(equation)
                )
            }
            if not partly & found:
                return frozenset(found)
            found -= partly

    @cached_property
    def causal(self) -> bool:
        """Whether tau(y[i]) <= i."""
        output = self.system.mixer.role("output")
        return all(
            implied(
                equation.domain | term.where, position_value(equation.positions[0]) - term.token
            )
            for equation in self.system.defining[output]
            for term in self.instance(equation)
        )

    def unbounded(self, equation: Equation) -> Constraints:
        """The domain with the sequence thought to go on: token indices lose their upper end."""
        terms = [term.token for term in self.instance(equation)]
        of_token = {a for term in terms for a in term.letters if a[0] == "@"}

        def ends(index: Index, constraint: Poly) -> bool:
            others = {i.atom for i in equation.indices} - {index.atom}
            if index.atom not in of_token or not self.length <= constraint.letters:
                return False
            if any(variables_of([constraint + term]) == set() for term in terms):
                return True
            alone = constraint.letters.isdisjoint(others)
            return alone and constraint.coefficient(index.atom) == Poly.of(-1)

        return frozenset(
            constraint
            for index in equation.indices
            for constraint in index.constraints
            if not ends(index, constraint)
        )

    @cached_property
    def ending(self) -> str | None:
        """Why it depends on where the sequence ends what belongs to one token, or None.

        It does not where the bounds that hold the length are those of the arrays alone, or follow
        from other ones: then the sequence may be thought to go on.
        """
        for equation in self.system.equations:
            if equation.array in self.dynamic:
                for name, bound in self._bounded_by_the_end(equation):
                    return (
                        f"{equation.name}: what belongs to one token depends on where the sequence "
                        f"ends, at the bound {bound} of index {name}"
                    )
        return None

    def _bounded_by_the_end(self, equation: Equation) -> Iterator[tuple[str, Poly]]:
        """The indices, and their bounds, with which the work of a token ends as the sequence does,
        and not by the ends of arrays."""
        known = self.unbounded(equation)
        of_token = {a for term in self.instance(equation) for a in term.token.letters}
        places = [(equation.array, equation.positions)]
        places += [(read.ref.array, read.ref.positions) for read in reads(equation)]
        inside = {
            end
            for array, positions in places
            for extent, position in zip(array.shape, positions, strict=True)
            if not isinstance(position, Gather)
            for end in (position_value(position) - 1, extent - position_value(position))
        }
        for index in equation.indices:
            for bound in index.constraints if index.atom in of_token else ():
                dropped = bound not in known
                others = known | inside if dropped else equation.domain - {bound}
                if self.length <= bound.letters and not implied(others, bound):
                    yield index.name, _end(index, bound)
        for read in reads(equation):
            seen = self._indices_of(read.ref)
            for index in reversed(read.over):
                if any(seen & c.letters for c in index.constraints):
                    seen |= {index.atom}
                for bound in index.constraints if index.atom in seen else ():
                    others = (equation.domain | read.constraints) - {bound}
                    if self.length <= bound.letters and not implied(others, bound):
                        yield index.name, _end(index, bound)

    @cached_property
    def length(self) -> frozenset[str]:
        """The sizes that end the sequence."""
        return self.system.mixer.role("input").shape[0].letters


def _end(index: Index, bound: Poly) -> Poly:
    """What an index is bounded by."""
    atom = Poly.atom(index.atom)
    return bound + atom if bound.coefficient(index.atom) == -1 else atom - bound


def _dependent(domain: Constraints, terms: Terms, context: Terms) -> list[tuple[Constraints, bool]]:
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


def _latest(
    equation: Equation,
    arrays: Mapping[Array, Terms],
    length: frozenset[str],
    system: System,
    zeros: bool,
) -> Terms:
    """The latest tokens read, with reduction indices eliminated.

    What is gathered at positions that were chosen among some is thought to be read at all of them:
    that is no later than the choice itself, which has read all of them.

    Args:
        zeros: whether what is read outside of an array is something.

    Raises:
        Unsupported: it may be later, so that it depends on the values of the positions.
    """
    found: dict[Term, None] = {}
    possible: dict[Term, Read] = {}
    for read in reads(equation):
        for term in arrays.get(read.ref.array, ()):
            every = read
            if _hidden(read.ref, (term,)):
                ref, among = every_choice(system, read.ref)
                every = Read(ref, (*read.over, *among))
            latest = _latest_of(equation, every, _read_term(every.ref, term), length)
            if every is read:
                found.update(dict.fromkeys(latest))
            else:
                possible.update(dict.fromkeys(latest, read))
        if zeros and read.ref.array in arrays:
            for inside in unproven_inside(equation, read):
                there = Term(SOMETHING, frozenset({-inside - 1}))
                found.update(dict.fromkeys(_latest_of(equation, read, there, length)))
    for term, read in possible.items():
        if not _covered(equation.domain, term, list(found)):
            raise _by_values(read.ref.array)
    terms = _everywhere(equation.domain, list(found))
    return tuple(
        term
        for k, term in enumerate(terms)
        if not any(
            _covered(equation.domain, term, [rival])
            and not (j > k and _covered(equation.domain, rival, [term]))
            for j, rival in enumerate(terms)
            if j != k
        )
    )


def _hidden(ref: Ref, terms: Terms) -> bool:
    """Whether some terms name an axis of an array that is gathered from."""
    letters: frozenset[str] = frozenset().union(
        *(p.letters for term in terms for p in (term.token, *term.where))
    )
    gathered = (k for k, p in enumerate(ref.positions) if isinstance(p, Gather))
    return any(f"#{axis}" in letters for axis in gathered)


def _covered(domain: Constraints, term: Term, rivals: Sequence[Term]) -> bool:
    """Whether some of the terms, or token 0, are proven to be as late wherever a term holds."""
    around = domain | term.where
    later = [r.where for r in rivals if implied(around | r.where, r.token - term.token)]
    return all(implied(left, -term.token) for left in outside(around, later))


def _everywhere(domain: Constraints, terms: list[Term]) -> list[Term]:
    """The same maximum, conditions left out where a term counts for nothing outside them."""
    for k, term in enumerate(terms):
        others = [rival for j, rival in enumerate(terms) if j != k]
        without = outside(domain, [term.where]) if term.where else ()
        if all(_covered(empty, Term(term.token), others) for empty in without):
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
    ends += tuple(sorted((end for _, end in (upper if sign > 0 else lower)), key=str))
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


def _joined(array: Array, equations: Mapping[Equation, Terms]) -> Terms:
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
        infeasible(where | term.where) or _covered(where, term, rivals)
        for terms, rivals in ((one, two), (two, one))
        for term in terms
    )


def _read_term(ref: Ref, term: Term) -> Term:
    """A term in an array's axes, at the positions of a reference."""
    values: dict[str, Poly] = {}
    letters = term.token.letters.union(*(c.letters for c in term.where))
    for axis, position in enumerate(ref.positions):
        name = f"#{axis}"
        if name in letters:
            values[name] = _plain(ref.array, position)
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
            token = Poly.atom(f"#{axis}") + rest
            break
    values: dict[str, Poly] = {}
    letters = token.letters.union(*(c.letters for c in term.where))
    for name in sorted(a for a in letters if a[0] == "@"):
        for axis, position in enumerate(equation.positions):
            poly = position_value(position)
            free = {a for a in poly.letters if a[0] == "@"}
            if free == {name}:
                slope = _plain(equation.array, position).coefficient(name)
                values[name] = (Poly.atom(f"#{axis}") - (poly - slope * Poly.atom(name))) * slope
                break
        else:
            raise Unsupported(f"the token of {equation.name} hides in a flattened axis")
    return _substituted(Term(token, term.where), values)


def _plain(array: Array, position: Position) -> Poly:
    if isinstance(position, Gather):
        raise _by_values(array)
    return position_value(position)


def _by_values(array: Array) -> Unsupported:
    return Unsupported(f"the token of {array.name} depends on the values of a gather")


@cache
def tokens(system: System) -> Tokens:
    """The tokens of a system.

    Raises:
        EquationError: an array is read before it is defined.
    """
    blocks(system)
    return Tokens(system)


def system_of(mixer: Mixer, form: str | None, rewrites: tuple[str, ...], phase: str) -> System:
    """The equations that a question about a phase counts.

    `dense` widens axes, and one new token at position t has no axis beyond t: it is left out of
    inference. What changes the backward pass alone is left out where there is none.

    Raises:
        EquationError: no such form, or one that reads or defines entries that it must not; an array
            to recompute that the form does not compute.
        Unanswered: the mixer has nothing of what alone is to get a gradient.
    """
    name = form or mixer.default_form
    if name not in mixer.forms:
        raise EquationError(
            f"{mixer.name} has no form '{name}': expected one of {', '.join(mixer.forms)}"
        )
    if not mixer.checked:
        check_form(lower(mixer.forms[name]))
    rewrites, backward = parted(rewrites)
    if phase == "inference":
        rewrites = tuple(r for r in rewrites if r != "dense")
    system = lower(mixer.forms[name], rewrites)
    if phase not in TRAINING_STEP:
        return system
    from costmodel.adjoint import adjoint

    trained = WANTED.get(backward.only, TRAINED)
    step = adjoint(
        system,
        rewrites=frozenset(OF_GRADIENTS).intersection(rewrites),
        trained=trained,
        recompute=backward.recompute,
    )
    if not step.backward:
        raise Unanswered(f"the output of {mixer.name} depends on no {' or '.join(trained)}")
    return step


def underivable(system: System) -> str | None:
    """Why the tokens of a system cannot be derived, or None."""
    return tokens(system).underivable


def _has_inference(system: System) -> bool:
    return underivable(system) is None and tokens(system).causal


def inference_reason(system: System) -> str | None:
    """Why one new token has no incremental cost in this form, or None."""
    if why := underivable(system):
        return f"tokens could not be derived: {why}"
    known = tokens(system)
    if known.causal:
        return None
    mixer = system.mixer
    others = [
        name
        for name in mixer.forms
        if name != system.form and _has_inference(lower(mixer.forms[name]))
    ]
    hint = f"; form '{others[0]}' has it" if others else ""
    for equation in system.equations:
        for part, _ in walk(equation.value):
            if isinstance(part, Fft | Select) and known.spanned(part, equation):
                word = "transforms" if isinstance(part, Fft) else "chooses from"
                return (
                    f"form '{system.form}' {word} the whole token axis at once "
                    f"({equation.name}){hint}"
                )
    return f"not causal: an output depends on later tokens{hint}"


@cache
def instances(system: System, phase: str) -> tuple[Instances, ...]:
    """The points that a phase executes, with the work that depends on no input marked `once`.

    Raises:
        Unanswered: `inference` of a form that has none; the reason names a form that does.
        Unsupported: `inference` of a form in which it depends on where the sequence ends.
        ValueError: an unknown phase.
    """
    if phase == "training":
        return _of_forward(system)
    if phase in TRAINING_STEP:
        forward = () if phase == "backward" else _of_forward(system.forward)
        backward = (
            Instances(equation, equation.domain, once=kind == STEP, joined=kind == JOINED)
            for equation, kind in system.backward.items()
        )
        return (*forward, *backward)
    if phase != "inference":
        raise ValueError(f"unknown phase '{phase}': expected one of {', '.join(PHASES)}")
    known = tokens(system)
    if reason := inference_reason(system):
        raise Unanswered(reason)
    if known.ending:
        raise Unsupported(known.ending)
    return tuple(
        Instances(equation, constraints, False)
        for equation in system.equations
        if equation.array in known.dynamic
        for constraints in at_token(known.unbounded(equation), known.instance(equation), T)
    )


def _of_forward(system: System) -> tuple[Instances, ...]:
    known = tokens(system)
    return tuple(
        Instances(equation, constraints, not given)
        for equation in system.equations
        for constraints, given in known.dependent(equation)
    )


NOW = Poly.atom("now")
"""t where nothing says that t <= l."""


@dataclass(frozen=True)
class Overrun:
    """An axis of weights that token t reads past its end where all `conditions` are >= 0."""

    array: Array
    axis: int
    conditions: Constraints

    def at(self, sizes: Mapping[str, int]) -> bool:
        """Whether it happens at these sizes, t among them."""
        values = {**sizes, "now": sizes["t"]}
        return all(condition.rational(values) >= 0 for condition in self.conditions)

    def reason(self, sizes: Mapping[str, int]) -> str:
        """Why there is no answer at these sizes."""
        extent = self.array.shape[self.axis]
        return (
            f"position t = {sizes['t']} would read past the end of {self.array.name}, which covers "
            f"{extent} = {extent.at(sizes)} positions"
        )


@cache
def overruns(system: System) -> tuple[Overrun, ...]:
    """Where one new token reads weights, or work on weights, past their end if t is too large.

    Raises:
        Unanswered: a form that has no one-token inference.
    """
    found: dict[Overrun, None] = {}
    for part in instances(system, "inference"):
        for read in reads(part.equation):
            if read.ref.array not in tokens(system).dynamic:
                found.update(dict.fromkeys(_past_the_end(part, read)))
    return tuple(found)


def _past_the_end(part: Instances, read: Read) -> Iterator[Overrun]:
    hidden = sorted({*part.variables, *(index.atom for index in read.over)}, reverse=True)
    now = {"t": NOW}
    around = frozenset(c.substitute(now) for c in part.constraints | read.constraints)
    for axis, position in enumerate(read.ref.positions):
        if isinstance(position, (Flat, Gather)):
            continue
        past = around | {position.substitute(now) - read.ref.array.shape[axis] - 1}
        if not infeasible(past):
            yield Overrun(read.ref.array, axis, projected(past, hidden))


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


PHASES: Mapping[str, str] = {
    "training": "training",
    "forward": "training",
    "prefill": "training",
    "inference": "inference",
    "decode": "inference",
    "backward": "backward",
    "training-step": "training-step",
}
"""Phase names and aliases."""

TRAINING_STEP = ("backward", "training-step")
"""The phases whose equations are those of the forward pass and of its gradients."""


def phase_name(phase: str) -> str:
    """The phase that a name or alias means."""
    if phase not in PHASES:
        raise ValueError(f"unknown phase '{phase}': expected one of {', '.join(PHASES)}")
    return PHASES[phase]
