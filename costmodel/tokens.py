"""Which token does each array entry belong to, and which instances run for one new token?

An entry belongs to tau = the latest input row that it depends on; what depends on parameters and
buffers alone belongs to token 0. tau is derived from bounds and indices and kept as a maximum of
affine terms: in the axes (`#0`, `#1`) of an array, in the free indices of an equation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property

from costmodel.composites import lower
from costmodel.domains import Constraints, Unsupported, implied, infeasible, projected
from costmodel.equations import Equation, Mixer, System
from costmodel.expressions import (
    Array,
    EquationError,
    Fft,
    Flat,
    Index,
    Position,
    Reduce,
    Ref,
    position_value,
    walk,
)
from costmodel.polynomial import Poly
from costmodel.wellformed import check_form

T = Poly.atom("t")
Terms = tuple[Poly, ...]


class Unanswered(ValueError):
    """The question has no answer for this mixer or form; the message is the reason."""


@dataclass(frozen=True)
class Instances:
    """The points of one equation that a phase executes."""

    equation: Equation
    constraints: Constraints
    once: bool
    """Whether they depend on no input: done once a forward pass."""

    @property
    def variables(self) -> tuple[str, ...]:
        """The free indices, outer ones first."""
        return tuple(index.atom for index in self.equation.indices)


@dataclass(frozen=True)
class Read:
    """A reference with the reduction indices around it."""

    ref: Ref
    over: tuple[Index, ...]

    @property
    def constraints(self) -> Constraints:
        """The ranges of the reduction indices."""
        return frozenset().union(*(index.constraints for index in self.over))


@cache
def reads(equation: Equation) -> tuple[Read, ...]:
    """Every reference on an equation's right side."""
    return tuple(
        Read(entry, over) for entry, over in walk(equation.value) if isinstance(entry, Ref)
    )


@dataclass(frozen=True, eq=False)
class Tokens:
    """The tokens of a system's arrays and equations."""

    system: System

    @cached_property
    def dynamic(self) -> frozenset[Array]:
        """The arrays that depend on the input (tau >= 1)."""
        found: set[Array] = {self.system.mixer.role("input")}
        for equation in self.system.equations:
            if any(read.ref.array in found for read in reads(equation)):
                found.add(equation.array)
        return frozenset(found)

    @cached_property
    def _terms(self) -> tuple[Mapping[Array, Terms], Mapping[Equation, Terms]]:
        arrays: dict[Array, Terms] = {self.system.mixer.role("input"): (Poly.atom("#0"),)}
        equations: dict[Equation, Terms] = {}
        for equation in self.system.equations:
            terms = _latest(equation, arrays)
            equations[equation] = terms
            on_axes = tuple(_on_axes(equation, term) for term in terms)
            known = arrays.get(equation.array, on_axes)
            if set(known) != set(on_axes):
                raise Unsupported(
                    f"the equations of {equation.name} belong to different tokens: "
                    f"{_words(known)} and {_words(on_axes)}"
                )
            arrays[equation.array] = on_axes
        return arrays, equations

    def of(self, array: Array) -> Terms:
        """tau of an array's entry as a maximum of terms in its axes; () is token 0."""
        return self._terms[0].get(array, ())

    def at(self, ref: Ref) -> Terms:
        """tau of a referenced entry, in the indices of the reference."""
        return tuple(_read_term(ref, term) for term in self.of(ref.array))

    def instance(self, equation: Equation) -> Terms:
        """tau of an equation's instance, in its free indices."""
        return self._terms[1][equation]

    @cached_property
    def causal(self) -> bool:
        """Whether tau(y[i]) <= i."""
        output = self.system.mixer.role("output")
        return all(
            implied(equation.domain, position_value(equation.positions[0]) - term)
            for equation in self.system.defining[output]
            for term in self.instance(equation)
        )

    def unbounded(self, equation: Equation) -> Constraints:
        """The domain with the sequence thought to go on: token indices lose their upper end."""
        of_token = {a for term in self.instance(equation) for a in term.letters if a[0] == "@"}
        length = self.system.mixer.role("input").shape[0].letters
        return frozenset(
            constraint
            for index in equation.indices
            for constraint in index.constraints
            if not (
                index.atom in of_token
                and constraint.coefficient(index.atom) == Poly.of(-1)
                and length <= constraint.letters
                and constraint.letters.isdisjoint({i.atom for i in equation.indices} - {index.atom})
            )
        )


def _latest(equation: Equation, arrays: Mapping[Array, Terms]) -> Terms:
    """The latest tokens read, with reduction indices eliminated."""
    found: dict[Poly, None] = {}
    for read in reads(equation):
        for term in arrays.get(read.ref.array, ()):
            latest = _read_term(read.ref, term)
            for index in reversed(read.over):
                latest = _maximised(latest, index, equation.domain | read.constraints)
            found[latest] = None
    terms = list(found)
    return tuple(
        term
        for k, term in enumerate(terms)
        if not any(
            implied(equation.domain, rival - term)
            and not (j > k and implied(equation.domain, term - rival))
            for j, rival in enumerate(terms)
            if j != k
        )
    )


def _maximised(term: Poly, index: Index, constraints: Constraints) -> Poly:
    """The largest value of an affine term while `index` runs over its range."""
    slope = term.coefficient(index.atom).constant()
    if slope == 0:
        return term
    if not isinstance(slope, int):
        raise Unsupported(f"a symbolic stride of index {index.name}")
    sign = 1 if slope > 0 else -1
    ends = index.upper if slope > 0 else index.lower
    for end in ends:
        if all(implied(constraints, (other - end) * sign) for other in ends):
            return term.substitute({index.atom: end})
    raise Unsupported(f"which bound of index {index.name} is the tighter depends on the sizes")


def _read_term(ref: Ref, term: Poly) -> Poly:
    """A term in an array's axes, at the positions of a reference."""
    values: dict[str, Poly] = {}
    for axis, position in enumerate(ref.positions):
        name = f"#{axis}"
        if name in term.letters:
            values[name] = _plain(ref.array, position)
    return term.substitute(values)


def _on_axes(equation: Equation, term: Poly) -> Poly:
    """A term in an equation's free indices, in the axes of the array that it defines."""
    values: dict[str, Poly] = {}
    for name in sorted(a for a in term.letters if a[0] == "@"):
        for axis, position in enumerate(equation.positions):
            poly = position_value(position)
            free = {a for a in poly.letters if a[0] == "@"}
            if free == {name}:
                slope = _plain(equation.array, position).coefficient(name)
                values[name] = (Poly.atom(f"#{axis}") - (poly - slope * Poly.atom(name))) * slope
                break
        else:
            raise Unsupported(f"the token of {equation.name} hides in a flattened axis")
    return term.substitute(values)


def _plain(array: Array, position: Position) -> Poly:
    if isinstance(position, Flat):
        raise Unsupported(f"the token of {array.name} hides in a flattened axis")
    return position


def _words(terms: Terms) -> str:
    return ", ".join(map(str, terms)) or "token 0"


@cache
def tokens(system: System) -> Tokens:
    """The tokens of a system.

    Raises:
        EquationError: an array is read before it is defined.
        Unsupported: a reduction may have no term.
    """
    defined = {a for a in system.mixer.arrays.values() if a.role not in ("intermediate", "output")}
    for equation in system.equations:
        for read in reads(equation):
            if read.ref.array not in defined:
                raise EquationError(
                    f"{equation.name} reads {read.ref.array.name} before it is complete; write "
                    f"equations in the order of computation (recurrences are not supported yet)"
                )
        if system.defining[equation.array][-1] is equation:
            defined.add(equation.array)
        _nonempty(equation)
    return Tokens(system)


def _nonempty(equation: Equation) -> None:
    """Raise Unsupported unless every reduction has at least one term at every point."""
    for part, over in walk(equation.value):
        if not isinstance(part, Reduce):
            continue
        known = equation.domain.union(*(index.constraints for index in over))
        for index in part.over:
            for low in index.lower:
                for up in index.upper:
                    if not implied(known, up - low):
                        raise Unsupported(
                            f"{equation.name}: the range {low}..{up} of {index.name} may be empty, "
                            f"and empty sums are not supported yet; start the outer index later, "
                            f"or widen the range"
                        )
            known = known | index.constraints


def system_of(mixer: Mixer, form: str | None, rewrites: tuple[str, ...], phase: str) -> System:
    """The equations that a question about a phase counts.

    `dense` widens axes, and one new token at position t has no axis beyond t: it is left out of
    inference.

    Raises:
        EquationError: no such form, or one that reads or defines entries that it must not.
    """
    name = form or mixer.default_form
    if name not in mixer.forms:
        raise EquationError(
            f"{mixer.name} has no form '{name}': expected one of {', '.join(mixer.forms)}"
        )
    check_form(lower(mixer.forms[name]))
    if phase == "inference":
        rewrites = tuple(r for r in rewrites if r != "dense")
    return lower(mixer.forms[name], rewrites)


def underivable(system: System) -> str | None:
    """Why the tokens of a system cannot be derived, or None."""
    try:
        _ = tokens(system).causal
    except Unsupported as error:
        return str(error)
    return None


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
        if name != system.form and inference_reason(lower(mixer.forms[name])) is None
    ]
    hint = f"; form '{others[0]}' has it" if others else ""
    for equation in system.equations:
        for part, _ in walk(equation.value):
            if isinstance(part, Fft) and any(
                index.atom in term.letters for term in known.at(part.body) for index in part.over
            ):
                return (
                    f"form '{system.form}' transforms the whole token axis at once "
                    f"({equation.name}){hint}"
                )
    return f"not causal: an output depends on later tokens{hint}"


@cache
def instances(system: System, phase: str) -> tuple[Instances, ...]:
    """The points that a phase executes, with the work that depends on no input marked `once`.

    Raises:
        Unanswered: `inference` of a form that has none; the reason names a form that does.
        ValueError: an unknown phase.
    """
    known = tokens(system)
    if phase == "training":
        return tuple(
            Instances(equation, equation.domain, equation.array not in known.dynamic)
            for equation in system.equations
        )
    if phase != "inference":
        raise ValueError(f"unknown phase '{phase}': expected training or inference")
    if reason := inference_reason(system):
        raise Unanswered(reason)
    return tuple(
        Instances(equation, constraints, False)
        for equation in system.equations
        if equation.array in known.dynamic
        for constraints in at_token(known.unbounded(equation), known.instance(equation), T)
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
    """Where one new token reads a parameter or a buffer beyond its extent if t is too large.

    Raises:
        Unanswered: a form that has no one-token inference.
    """
    found: dict[Overrun, None] = {}
    for part in instances(system, "inference"):
        for read in reads(part.equation):
            if read.ref.array.role in ("parameter", "buffer"):
                found.update(dict.fromkeys(_past_the_end(part, read)))
    return tuple(found)


def _past_the_end(part: Instances, read: Read) -> Iterator[Overrun]:
    hidden = sorted({*part.variables, *(index.atom for index in read.over)}, reverse=True)
    now = {"t": NOW}
    around = frozenset(c.substitute(now) for c in part.constraints | read.constraints)
    for axis, position in enumerate(read.ref.positions):
        if isinstance(position, Flat):
            continue
        past = around | {position.substitute(now) - read.ref.array.shape[axis] - 1}
        if not infeasible(past):
            yield Overrun(read.ref.array, axis, projected(past, hidden))


def at_token(domain: Constraints, terms: Terms, token: Poly) -> list[Constraints]:
    """The disjoint parts of a domain in which the largest of `terms` equals `token`."""
    found = []
    for k, term in enumerate(terms):
        conditions = {term - token, token - term}
        conditions |= {token - other - int(j < k) for j, other in enumerate(terms) if j != k}
        part = domain | conditions
        if not infeasible(part):
            found.append(part)
    return found


def after_token(domain: Constraints, terms: Terms, token: Poly) -> list[Constraints]:
    """The disjoint parts of a domain in which the largest of `terms` exceeds `token`."""
    found = []
    for k, term in enumerate(terms):
        conditions = {term - token - 1} | {token - other for other in terms[:k]}
        part = domain | conditions
        if not infeasible(part):
            found.append(part)
    return found


PHASES: Mapping[str, str] = {
    "training": "training",
    "forward": "training",
    "prefill": "training",
    "inference": "inference",
    "decode": "inference",
}
"""Phase names and aliases."""


def phase_name(phase: str) -> str:
    """The phase that a name or alias means."""
    if phase not in PHASES:
        raise ValueError(f"unknown phase '{phase}': expected one of {', '.join(PHASES)}")
    return PHASES[phase]
