"""Does one printed claim hold under one convention, and where does it first fail?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from itertools import islice

from costmodel.claims import RELATIONS, Claim, PublishedError, instances
from costmodel.domains import Exact
from costmodel.formulas import Formula, FormulaError, NotPolynomial, parse
from costmodel.functions import CLASSES
from costmodel.mixers import builtin
from costmodel.polynomial import Poly
from costmodel.rules.count import count
from costmodel.rules.critical_path import critical_path
from costmodel.rules.parameters import parameters
from costmodel.thresholds import Condition, least, points, where_positive, where_zero
from costmodel.tokens import Unanswered

POINTS = 60
"""Sizes at which an identity is evaluated besides its proof, every sum run term by term."""

SEARCHED = 5000
"""Sizes tried, in increasing order, before a search for a counterexample gives up."""


@dataclass(frozen=True)
class Answer:
    """What the equations give for one quantity: an exact value in sizes, or the steps of a path."""

    exact: Exact = field(default_factory=Exact)
    steps: tuple[str, ...] = ()

    @property
    def poly(self) -> Poly | None:
        """The value as one polynomial; None where it is piecewise."""
        cases = self.exact.chambers()
        return cases[0][1] if len(cases) == 1 and not cases[0][0] else None

    @property
    def letters(self) -> frozenset[str]:
        """The sizes that the value depends on."""
        return self.exact.letters

    @property
    def text(self) -> str:
        """The value in the notation of the formats."""
        return str(self.exact.expr) if self.poly is None else str(self.poly)

    def at(self, sizes: Mapping[str, int]) -> int:
        """The integer at given sizes."""
        return self.exact.at(sizes)


@dataclass(frozen=True)
class Finding:
    """The outcome of one check under one convention.

    `in_limit`: a claim about most sizes holds from some length on, but not everywhere.
    """

    holds: bool
    derived: str
    counterexample: Mapping[str, int] = field(default_factory=dict)
    note: str = ""
    in_limit: bool = False


@cache
def derive(mixer: str, quantity: str, phase: str, names: tuple[str, ...]) -> Answer:
    """A quantity of a built-in mixer (its default form) under a convention.

    Raises:
        ValueError: an unknown mixer, phase or quantity.
        Unanswered: the question has no answer for this mixer; the message is the reason.
    """
    found = builtin(mixer)
    if quantity == "parameters":
        return Answer(Exact.of(parameters(found).poly))
    if quantity == "critical_path":
        path = critical_path(found, phase=phase, convention=names)
        return Answer(steps=tuple(map(str, path.steps)))
    counts = count(found, phase=phase, convention=names)
    if quantity == "total":
        return Answer(counts.exact_total)
    if quantity in CLASSES:
        once = counts.once.exact(quantity) if counts.once else Exact()
        return Answer(counts.exact(quantity) + once)
    known = ", ".join((*CLASSES, "total", "parameters", "critical_path"))
    raise ValueError(f"unknown quantity '{quantity}': expected one of {known}")


def evaluate(claim: Claim, names: Sequence[str]) -> Finding:
    """Check a claim under the convention with these names, by its kind.

    Raises:
        Unanswered: the question has no answer for the claim's mixer.
        PublishedError: the claim cannot be read; the message names it.
    """
    try:
        return CHECKS[claim.kind](claim, tuple(names))
    except Unanswered:
        raise
    except ValueError as reason:
        raise PublishedError(f"claim {claim.id}: {reason}") from None


def _answers(claim: Claim, names: tuple[str, ...]) -> Iterator[Answer]:
    """The claim's quantity for its mixer, then for the mixer that it is compared with."""
    for mixer in filter(None, (claim.mixer, claim.against)):
        yield derive(mixer, claim.quantity, claim.phase, names)


def _formula(claim: Claim, names: tuple[str, ...]) -> Finding:
    """The formula, and the simplification printed behind it, equal the derived count."""
    (answer,) = _answers(claim, names)
    note = ""
    for what, text in (("the expression", claim.formula), ("its simplification", claim.equals)):
        if text:
            sizes, note = _difference(parse(text), answer)
            if sizes is not None:
                return Finding(False, answer.text, sizes, f"{what} {note}")
    return Finding(True, answer.text, {}, note)


def _difference(formula: Formula, answer: Answer) -> tuple[dict[str, int] | None, str]:
    """The smallest sizes at which formula and answer differ (or None), and what was found."""
    try:
        proven = answer.poly is not None and formula.poly() == answer.poly
    except NotPolynomial:
        proven = False
    tried = 0
    for sizes in islice(points(formula.letters | answer.letters), POINTS if proven else SEARCHED):
        tried += 1
        derived = answer.at(sizes)
        try:
            printed = formula.at(sizes)
        except FormulaError as reason:
            return sizes, f"has no value there: {reason}"
        if printed != derived:
            return sizes, f"gives {printed} there, the equations {derived}"
    if proven:
        return None, "equal for all sizes (polynomial identity)"
    return None, f"equal at the {tried} smallest sizes; no proof for all"


def _number(claim: Claim, names: tuple[str, ...]) -> Finding:
    """A number equals the derived value at the sizes given."""
    (answer,) = _answers(claim, names)
    (sizes,) = instances(claim)
    derived = answer.at(sizes)
    holds = parse(claim.value).at({}) == derived
    return Finding(holds, str(derived), {} if holds else sizes)


def path_text(steps: Sequence[str]) -> str:
    """A critical path on one line."""
    return " - ".join(steps)


def _path(claim: Claim, names: tuple[str, ...]) -> Finding:
    """A critical path has exactly these steps."""
    derived = derive(claim.mixer, "critical_path", claim.phase, names).steps
    printed = tuple(claim.steps.split())
    if derived == printed:
        return Finding(True, path_text(derived))
    pairs = enumerate(zip(derived, printed, strict=False), 1)
    step = next((k for k, (a, b) in pairs if a != b), min(len(derived), len(printed)) + 1)
    note = f"printed {len(printed)} steps, derived {len(derived)}; they part at step {step}"
    return Finding(False, path_text(derived), {"step": step}, note)


def _ordering(claim: Claim, names: tuple[str, ...]) -> Finding:
    """One quantity is larger than, smaller than or equal to another, at its sizes or at all."""
    left, right = _answers(claim, names)
    if claim.quantity == "critical_path":
        return _shorter(claim, len(left.steps), len(right.steps))
    condition = _condition(claim, left, right)
    if not claim.sizes:
        where = "" if condition.always else "iff "
        text = f"{left.text} {claim.relation} {right.text}, {where}{condition.text}"
        failing = {} if condition.always else _first_failure(claim, left, right)
        return Finding(condition.always, text, failing, "proven" if condition.always else "")
    values = [(left.at(s), right.at(s)) for s in instances(claim)]
    failing = next((s for s in instances(claim) if not _holds(claim, left, right, s)), {})
    note = f"holds {condition.text}" if condition.always else f"in general iff {condition.text}"
    factors = ", ".join(f"{max(pair) / min(pair):.3f}" for pair in values)
    note += f"; '{claim.vague}' has no number: a factor of {factors}" if claim.vague else ""
    text = ", ".join(f"{a} {_sign(a, b)} {b}" for a, b in values)
    return Finding(not failing, text, failing, note)


def _shorter(claim: Claim, left: int, right: int) -> Finding:
    """Critical paths are compared by their number of steps, which depends on no size."""
    text = f"{left} steps {_sign(left, right)} {right} steps"
    note = f"'{claim.vague}' has no number" if claim.vague else ""
    return Finding(RELATIONS[claim.relation](left, right), text, {}, note)


def _threshold(claim: Claim, names: tuple[str, ...]) -> Finding:
    """A relation claimed for most sizes: where it holds is solved for, not typed."""
    left, right = _answers(claim, names)
    condition = _condition(claim, left, right)
    if condition.always:
        return Finding(True, condition.text)
    letter = "t" if claim.phase == "inference" else "l"
    larger = _excess(claim, left, right)
    starts: dict[str, int | None] = {}
    for sizes in instances(claim):
        known = {k: v for k, v in sizes.items() if k != letter and k in larger.letters}
        given = ", ".join(f"{k} = {v}" for k, v in known.items())
        starts[f"at {given} " if given else ""] = least(larger, letter, known)
    note = "; ".join(
        f"{given}from {letter} = {start} on" if start else f"{given}not for good"
        for given, start in starts.items()
    )
    holds = all(_holds(claim, left, right, sizes) for sizes in instances(claim))
    failing = _first_failure(claim, left, right)
    in_limit = holds and None not in starts.values()
    return Finding(False, f"iff {condition.text}", failing, note, in_limit)


def _ratio(claim: Claim, names: tuple[str, ...]) -> Finding:
    """A quantity is about one N-th of another: the reciprocal of their ratio rounds to N."""
    (sizes,) = instances(claim)
    left, right = (answer.at(sizes) for answer in _answers(claim, names))
    claimed, ratio = parse(claim.value).at({}), Fraction(left, right)
    if claimed.numerator != 1:
        raise PublishedError(f"a ratio is 1/N, got {claim.value}")
    holds = round(1 / ratio) == claimed.denominator
    if ratio == claimed:
        return Finding(True, f"{left}/{right} = {claim.value}")
    note = f"a ratio of 1/{float(1 / ratio):.3f}"
    return Finding(holds, f"{left}/{right}", {} if holds else sizes, note)


def _holds(claim: Claim, left: Answer, right: Answer, sizes: Mapping[str, int]) -> bool:
    return RELATIONS[claim.relation](left.at(sizes), right.at(sizes))


def _first_failure(claim: Claim, left: Answer, right: Answer) -> dict[str, int]:
    """The smallest sizes at which the relation does not hold."""
    searched = islice(points(left.letters | right.letters), SEARCHED)
    return next((s for s in searched if not _holds(claim, left, right, s)), {})


def _excess(claim: Claim, left: Answer, right: Answer) -> Poly:
    """A polynomial that is positive exactly where the relation (not "=") holds."""
    if left.poly is None or right.poly is None:
        raise PublishedError("a piecewise count: its threshold is not solved")
    return right.poly - left.poly if claim.relation == "<" else left.poly - right.poly


def _condition(claim: Claim, left: Answer, right: Answer) -> Condition:
    excess = _excess(claim, left, right)
    return where_zero(excess) if claim.relation == "=" else where_positive(excess)


def _sign(left: int, right: int) -> str:
    return "=" if left == right else ">" if left > right else "<"


CHECKS: Mapping[str, Callable[[Claim, tuple[str, ...]], Finding]] = {
    "formula": _formula,
    "number": _number,
    "path": _path,
    "ordering": _ordering,
    "threshold": _threshold,
    "ratio": _ratio,
}
