"""What lies between a traced module and a mixer's equations, and which switches name it?

The equations' formula is subtracted from the traced one, class by class, as polynomials. The
equations are then counted again under every form and every set of the ladder's switches: those that
leave the least unexplained are the causes, one switch turned at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from costmodel.composites import REWRITES
from costmodel.domains import Exact
from costmodel.equations import Mixer
from costmodel.load import mixer as load_mixer
from costmodel.polynomial import Poly
from costmodel.rules.count import count
from profiler.tracing.result import Trace
from profiler.tracing.target import TraceError

Classes = dict[str, Poly]


@dataclass(frozen=True)
class Cause:
    """A switch, and what the equations count more under it, by class."""

    name: str
    meaning: str
    counts: Classes


@dataclass(frozen=True)
class Difference:
    """A module's forward pass less a mixer's equations.

    `difference` is the whole of it by class; `causes` are re-counts of the equations under named
    switches; `unexplained` is what stays when all of them are turned, empty where nothing does.
    """

    mixer: str
    form: str
    equations: Classes
    difference: Classes
    causes: tuple[Cause, ...]
    unexplained: Classes

    @property
    def explained(self) -> bool:
        """Whether the switches name all of the difference."""
        return not self.unexplained


def against(found: Trace, name: str | Mixer) -> Difference:
    """Subtract a mixer's equations from a traced forward pass, symbolically, and name the rest.

    Raises:
        UnknownMixer: no such mixer.
        TraceError: the trace has no formula, or the equations have sizes that it lacks.
    """
    mixer = load_mixer(name)
    if found.uncounted:
        listed = ", ".join(dict.fromkeys(u.name for u in found.uncounted if u.phase == "forward"))
        if listed:
            raise TraceError(
                f"{found.target} cannot be held against {mixer.name}: no counting rule for {listed}"
            )
    traced: Classes = {}
    for class_, poly in found.forward.items():
        if not isinstance(poly, Poly):
            raise TraceError(f"{found.target}: {class_}: {poly}")
        if poly.terms:
            traced[class_] = poly
    plain = counted(mixer, mixer.default_form, (), found)
    best = min(
        (
            (remaining(minus(traced, counts)), len(rewrites) + (form != mixer.default_form), form,
             rewrites)
            for form in mixer.forms
            for rewrites in switches(found)
            if (counts := counted(mixer, form, rewrites, found)) is not None
        ),
        key=lambda entry: entry[:2],
    )  # fmt: skip
    form, rewrites = best[2:]
    current, causes = plain, []
    for cause, meaning, inner in steps(mixer, form, rewrites):
        after = counted(mixer, form, inner, found)
        causes.append(Cause(cause, meaning, minus(after, current)))
        current = after
    return Difference(
        mixer.name,
        form,
        plain,
        minus(traced, plain),
        tuple(c for c in causes if c.counts),
        minus(traced, current),
    )


def steps(
    mixer: Mixer, form: str, rewrites: Sequence[str]
) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Another form first, then one rewrite after the other, with those before it."""
    if form != mixer.default_form:
        yield f"form={form}", f"form '{form}' computes the same function by other equations", ()
    for k, rewrite in enumerate(rewrites):
        yield rewrite, REWRITES[rewrite], tuple(rewrites[: k + 1])


def switches(found: Trace) -> Iterator[tuple[str, ...]]:
    """Every set of rewrites that go together, small sets first."""
    for number in range(len(REWRITES) + 1):
        for chosen in combinations(REWRITES, number):
            if sum(name.startswith("scale=") for name in chosen) <= 1:
                yield chosen


def counted(mixer: Mixer, form: str, rewrites: tuple[str, ...], found: Trace) -> Classes:
    """The equations' forward pass in the letters of the trace, for its batch."""
    counts = count(mixer, "training", form, ("strict", *rewrites))
    batch = found.variables.poly("b") or Poly.of(1)
    once = counts.once.classes if counts.once else {}
    result: Classes = {}
    for classes, times in ((counts.classes, batch), (once, Poly.of(1))):
        for name, exact in classes.items():
            poly = in_letters(mixer, exact, found) * times
            result[name] = result.get(name, Poly()) + poly
    return {name: poly for name, poly in result.items() if poly.terms}


def in_letters(mixer: Mixer, exact: Exact, found: Trace) -> Poly:
    """An exact count in the letters of the trace; TraceError where it is no polynomial there."""
    needed = sorted(exact.letters)
    given: Mapping[str, Poly | None] = {letter: found.variables.poly(letter) for letter in needed}
    values = {letter: poly for letter, poly in given.items() if poly is not None}
    if missing := [letter for letter in needed if letter not in values]:
        raise TraceError(
            f"the equations of {mixer.name} have the sizes {', '.join(needed)}: give "
            f"{', '.join(missing)} with --over or --let"
        )
    moved = exact.substitute(values)
    if any(guards for guards, _ in moved.pieces):
        raise TraceError(
            f"the equations of {mixer.name} count by cases ({moved}): give sizes with --let at "
            f"which one case holds"
        )
    return moved.pieces[0][1] if moved.pieces else Poly()


def minus(larger: Classes, smaller: Classes) -> Classes:
    """Per class, zeros left out."""
    names = dict.fromkeys([*larger, *smaller])
    found = {n: larger.get(n, Poly()) - smaller.get(n, Poly()) for n in names}
    return {name: poly for name, poly in found.items() if poly.terms}


def remaining(left: Classes) -> tuple[int, int, int]:
    """How much is unexplained: classes, terms, then their highest degree."""
    terms = [monomial for poly in left.values() for monomial in poly.terms]
    degrees = [sum(power for _, power in monomial) for monomial in terms]
    return len(left), len(terms), max(degrees, default=0)
