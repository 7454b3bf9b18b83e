"""Does a mixer hold what its author claims? The proofs that need no module.

Well formed; causal or not; derived answers equal instrumented execution; forms agree. A proof that
fails says where: the first equation that differs and the smallest sizes at which it does.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import costmodel as cm
from costmodel.composites import lower
from costmodel.domains import Unsupported, variables_of
from costmodel.equations import Form, Mixer
from costmodel.execution.oracle import Execution, Unfused, execute, random_arrays
from costmodel.execution.tallying import OracleError
from costmodel.expressions import Array, EquationError
from costmodel.requests import fit
from costmodel.rules.count import count_equations
from costmodel.rules.evaluate import evaluate_all
from costmodel.sizes import SizeError
from costmodel.tokens import inference_reason, overruns, system_of, tokens, underivable
from costmodel.wellformed import check_form

TOLERANCE = 1e-9
"""Two float64 summation orders of a few dozen numbers of size one differ by a few 1e-15; quotients
and products of earlier results may raise that a thousandfold."""

Sizes = Mapping[str, int]


@dataclass
class Comparison:
    """One form under one convention; `apart` collects a line for every question that differs.

    `refused` collects the questions that the rules leave open, with the reason: no answer is not a
    wrong answer, but a mixer that the project ships has to have all of them.
    """

    mixer: Mixer
    form: str = ""
    """The default form if empty."""
    rewrites: tuple[str, ...] = ()
    accounting: str = "strict"
    apart: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    compared: dict[str, None] = field(default_factory=dict)
    """The questions that were answered and compared, without their positions."""

    def __post_init__(self) -> None:
        """Take the default form."""
        self.form = self.form or self.mixer.default_form

    @property
    def convention(self) -> tuple[str, ...]:
        """The names that the rules take."""
        return (self.accounting, *self.rewrites)

    def check(self, question: str, derive: Callable[[], object], executed: object) -> None:
        """Hold one derived answer against the executed one."""
        try:
            derived = derive()
        except (Unsupported, cm.Unanswered) as reason:
            self.refused.append(f"{question}: {reason}")
            return
        except Exception as error:  # a crash is a finding like any other
            self.apart.append(f"{question}: {type(error).__name__}: {error}")
            return
        self.compared[general(question)] = None
        if derived != executed:
            self.apart.append(f"{question}: rules {derived}, oracle {executed}")

    def at(self, sizes: Sizes) -> Comparison:
        """Ask every question at these sizes."""
        self._forward(sizes)
        if "dense" not in self.rewrites:
            self._values(sizes)
            self._inference(sizes)
        return self

    def _forward(self, sizes: Sizes) -> None:
        form, names = self.form, self.convention
        run = execute(
            self.mixer.forms[form], sizes, rewrites=self.rewrites, accounting=self.accounting
        )
        executed = (run.counts(), run.once(), sum((*run.counts().values(), *run.once().values())))
        self.check(
            "counts",
            lambda: _counted(cm.count(self.mixer, "training", form, names).at(**sizes)),
            executed,
        )
        self.check(
            "span", lambda: cm.span(self.mixer, "training", form, names).at(**sizes), run.span()
        )
        least = run.compulsory()
        moved = {"activations": least.inputs + least.outputs, "weights": least.weights}
        self._traffic("", "training", sizes, moved, run.unfused())

    def _traffic(
        self,
        when: str,
        phase: str,
        sizes: Sizes,
        least: Mapping[str, int],
        unfused: Sequence[Unfused],
    ) -> None:
        def derived() -> Any:
            return cm.traffic(self.mixer, phase, self.form, self.convention)

        self.check(
            f"compulsory traffic{when}",
            lambda: _nonzero(derived().compulsory.at(sizes)),
            _nonzero(least),
        )
        kinds = ("activations", "weights", "state")
        moved = {kind: sum(getattr(row, kind) for row in unfused) for kind in kinds}
        self.check(
            f"unfused traffic{when}",
            lambda: _nonzero(derived().unfused.at(sizes)),
            _nonzero(moved),
        )

    def _values(self, sizes: Sizes) -> None:
        run = execute(self.mixer.forms[self.form], sizes, rewrites=self.rewrites)
        expected = run.output
        scale = max(1.0, float(abs(expected).max()))

        def derived() -> str:
            arrays, names = dict(run.arrays), tuple(self.rewrites)
            found = cm.evaluate(self.mixer, arrays, dict(sizes), self.form, names)
            same = found.shape == expected.shape
            close = same and abs(found - expected).max() <= TOLERANCE * scale
            return str(expected.tolist() if close else found.tolist())

        self.check("values", derived, str(expected.tolist()))

    def _inference(self, sizes: Sizes) -> None:
        form, names = self.form, self.convention
        run, longer = self._run(sizes, sizes["l"]), self._longer(sizes)
        if not (causal(self.mixer.forms[form], sizes) and longer.causal):
            self._not_causal()
            return
        goes_on = self._goes_on()
        for t in range(1, sizes["l"] + 1):
            at = {**sizes, "t": t}
            if reason := self._past_the_end(at):
                self.refused.append(f"everything at {t=}: {reason}")
                continue
            executed = longer if goes_on else run
            if not goes_on and _instances(longer, t) != _instances(run, t):
                self.refused.append(f"everything at {t=}: rows past the length l belong to it too")
                continue
            self.check(
                f"counts at {t=}",
                lambda at=at: _counted(cm.count(self.mixer, "inference", form, names).at(**at)),  # type: ignore[misc]
                (executed.counts_inference(t), {}, sum(executed.counts_inference(t).values())),
            )
            self.check(
                f"span at {t=}",
                lambda at=at: cm.span(self.mixer, "inference", form, names).at(**at),  # type: ignore[misc]
                executed.span_inference(t),
            )
            if not goes_on and longer.counts_inference(t) != run.counts_inference(t):
                self.refused.append(f"state at {t=}: a token's work depends on the length l")
                continue
            self.check(
                f"state at {t=}",
                lambda at=at: cm.state(self.mixer, form).at(**at),  # type: ignore[misc]
                longer.state(t),
            )
            least = longer.compulsory_inference(t)
            moved = {
                "activations": least.inputs + least.outputs,
                "weights": least.weights,
                "state": least.state + least.state_written,
            }
            self._traffic(f" at {t=}", "inference", at, moved, longer.unfused_inference(t))

    def _run(self, sizes: Sizes, length: int) -> Execution:
        form = self.mixer.forms[self.form]
        return execute(
            form, sizes, rewrites=self.rewrites, accounting=self.accounting, length=length
        )

    def _longer(self, sizes: Sizes) -> Execution:
        """An execution of a sequence that goes on for as long as rows read what lies behind them:
        twice the largest window, the largest number in a bound, and as many rows as the last entry
        of any array is late."""
        indices = [p for i in self.mixer.forms[self.form].indices.values() for p in i.pieces]
        bounds = [b for i in indices for b in i.ends if b in i.lower or variables_of([b])]
        windows = {name for b in bounds for name in b.letters - variables_of([b]) - {"l"}}
        length = sizes["l"] + 2 * max((sizes[name] for name in windows), default=0) + 2
        length += max((abs(int(b.terms.get((), 0))) for i in indices for b in i.ends), default=0)
        run = self._run(sizes, length)
        latest: dict[Array, int] = {}
        for (array, _), scalar in run.trace.memory.items():
            if scalar.token:
                latest[array] = max(scalar.token, latest.get(array, 0))
        late = length - min(latest.values(), default=length)
        return self._run(sizes, length + late) if late > 0 else run

    def _past_the_end(self, at: Sizes) -> str:
        """Why one token has no answer at these sizes, though it has one at others."""
        try:
            found = overruns(system_of(self.mixer, self.form, self.rewrites, "inference"))
        except (Unsupported, cm.Unanswered):
            return ""
        return next((overrun.reason(at) for overrun in found if overrun.at(at)), "")

    def _goes_on(self) -> bool:
        """Whether the work of a token is the same in a longer sequence."""
        try:
            found = cm.count(self.mixer, "inference", self.form, self.convention)
        except (Unsupported, cm.Unanswered):
            return False
        return all("l" not in number.letters for number in found.classes.values())

    def _not_causal(self) -> None:
        """One token has no cost of its own: every question about it gives its reason."""
        for question in (cm.count, cm.span, cm.traffic):
            try:
                question(self.mixer, "inference", self.form, self.convention)
            except cm.Unanswered:
                continue
            self.apart.append(f"{question.__name__} of one token: answers, but is not causal")
        try:
            cm.state(self.mixer, self.form)
        except cm.Unanswered:
            return
        self.apart.append("state: answers, but the form is not causal")


def _instances(run: Execution, t: int) -> Counter[int]:
    """How often each equation is worked out for token t."""
    return Counter(instance.equation for instance in run.instances if instance.token == t)


def general(question: str) -> str:
    """A question without the position that it was asked at: `counts of one token`."""
    what, at, _ = question.partition(" at t=")
    return f"{what} of one token" if at else what


def causal(form: Form, sizes: Sizes) -> bool:
    """Whether the form is causal at sizes at which windows and sequences are longer than 1."""
    windows = {letter: max(sizes[letter], 2) for letter in ("w", "k") if letter in sizes}
    return execute(form, {**sizes, **windows}, length=max(sizes["l"], 3)).causal


def differences(
    mixer: Mixer,
    sizes: Sizes,
    *,
    form: str = "",
    rewrites: Sequence[str] = (),
    accounting: str = "strict",
) -> list[str]:
    """Every question on which rules and oracle disagree, or that has no answer, a line each."""
    made = Comparison(mixer, form, tuple(rewrites), accounting).at(sizes)
    return made.apart + made.refused


PRIMES = (2, 3, 5, 7)


def small_sizes(mixer: Mixer) -> list[dict[str, int]]:
    """Sets of sizes from small to large: all ones, then distinct small primes, d a multiple of n.

    Raises:
        SizeError: no set of small sizes gives whole extents.
    """
    letters = tuple(dict.fromkeys(["l", *mixer.letters]))
    found: list[dict[str, int]] = []
    for shift in range(-1, len(PRIMES) - 1):
        if shift < 0:
            sizes = dict.fromkeys(letters, 1)
        else:
            sizes = {x: PRIMES[(k + shift) % len(PRIMES)] for k, x in enumerate(letters)}
        if "n" in sizes and "d" in sizes:
            sizes["n"] = min(sizes["n"], 3)
            sizes["d"] = sizes["n"] * (1 if shift < 0 else 2)
        for scale in (1, 2, 4):
            try:
                fit(mixer, whole := {**sizes, **({"d": sizes["d"] * scale} if scale > 1 else {})})
            except SizeError:
                continue
            found.append(whole)
            break
    if not found:
        raise SizeError(f"no small sizes give {mixer.name} whole extents")
    return sorted(found, key=lambda s: math.prod(s.values()))


@dataclass(frozen=True)
class Proof:
    """One proof: passed, failed (`detail` says where), or not applicable (None)."""

    name: str
    passed: bool | None
    detail: str


def prove(mixer: Mixer) -> list[Proof]:
    """The proofs of a mixer's equations, in order; what cannot follow a failure is left out."""
    proofs = [_well_formed(mixer)]
    if not proofs[0].passed:
        return proofs
    return [*proofs, *_causality(mixer), *_executed(mixer), *_forms_agree(mixer)]


def words(sizes: Sizes) -> str:
    """`l = 2, d = 3`."""
    return ", ".join(f"{letter} = {value}" for letter, value in sizes.items())


def first_apart(mixer: Mixer, apart: Callable[[Sizes], str]) -> tuple[dict[str, int], str] | None:
    """The smallest sizes at which `apart` has something to say, and what it says; None if it has
    nothing to say at any set of small sizes.

    Smallest: no single letter can be lowered without silencing it.
    """
    for sizes in small_sizes(mixer):
        if said := apart(sizes):
            return _shrunk(mixer, sizes, said, apart)
    return None


def _shrunk(
    mixer: Mixer, sizes: dict[str, int], said: str, apart: Callable[[Sizes], str]
) -> tuple[dict[str, int], str]:
    for letter, value in sizes.items():
        for lower_value in range(1, value):
            smaller = {**sizes, letter: lower_value}
            try:
                fit(mixer, smaller)
            except SizeError:
                continue
            if still := apart(smaller):
                return _shrunk(mixer, smaller, still, apart)
    return sizes, said


def _well_formed(mixer: Mixer) -> Proof:
    """Every form is written in the order of computation and runs at every set of small sizes."""
    name = "well formed"

    def stopped(sizes: Sizes) -> str:
        for form in mixer.forms.values():
            try:
                _ = execute(form, sizes).trace
            except (OracleError, ArithmeticError) as error:
                return f"form '{form.name}' does not run: {error}"
        return ""

    try:
        _ = mixer.default_form
        for role in ("input", "output"):
            mixer.role(role)
        for form in mixer.forms.values():
            check_form(lower(form))
            tokens(lower(form))
        apart = first_apart(mixer, stopped)
    except Unsupported as error:
        return Proof(name, None, str(error))
    except (EquationError, SizeError) as error:
        return Proof(name, False, str(error))
    if apart is not None:
        return Proof(name, False, apart[1])
    forms = ", ".join(mixer.forms)
    return Proof(name, True, f"{len(small_sizes(mixer))} sets of small sizes; forms: {forms}")


def _causality(mixer: Mixer) -> Iterator[Proof]:
    """Derived and executed causality are the same."""
    for name, form in mixer.forms.items():
        reason = inference_reason(lower(form))
        apart = first_apart(mixer, lambda s, form=form: "" if causal(form, s) else "not causal")  # type: ignore[misc]
        said = reason or "causal"
        agree: bool | None = (reason is None) == (apart is None)
        if underivable(lower(form)):
            agree = None
        shown = said
        if agree is not True:
            shown = _disagree(said, apart)
        yield Proof(f"{name}: causal or not", agree, shown)


def _disagree(said: str, apart: tuple[dict[str, int], str] | None) -> str:
    executed = f"not causal at {words(apart[0])}" if apart else "causal at all small sizes"
    return f"derived: {said}; executed: {executed}"


def _executed(mixer: Mixer) -> Iterator[Proof]:
    """Counts, once, span, state, traffic and values, at every set of small sizes."""
    for form in mixer.forms:
        refused: dict[str, str] = {}
        answered: dict[str, None] = {}

        def differing(
            sizes: Sizes,
            form: str = form,
            refused: dict[str, str] = refused,
            answered: dict[str, None] = answered,
        ) -> str:
            made = Comparison(mixer, form).at(sizes)
            answered.update(made.compared)
            for line in made.refused:
                question, _, reason = line.partition(": ")
                refused.setdefault(reason, general(question))
            if not made.apart:
                return ""
            return first_equation_apart(mixer, form, sizes) + made.apart[0]

        apart = first_apart(mixer, differing)
        left = [
            f"{question} is not derived{' everywhere' if question in answered else ''}: {reason}"
            for reason, question in refused.items()
        ]
        done = "; ".join([", ".join(answered), *left])
        proof = _proof(f"{form}: counts equal instrumented execution", apart, done)
        yield proof if "counts" in answered or apart else replace(proof, passed=None)


def _proof(name: str, apart: tuple[dict[str, int], str] | None, done: str) -> Proof:
    return Proof(name, apart is None, f"at {words(apart[0])}: {apart[1]}" if apart else done)


def first_equation_apart(mixer: Mixer, form: str, sizes: Sizes) -> str:
    """The first equation whose derived operations differ from the executed ones, as a phrase."""
    run = execute(mixer.forms[form], sizes)
    try:
        derived = count_equations(run.system, "training")
    except Unsupported:
        return ""
    executed: dict[str, Counter[str]] = {}
    for instance in run.instances:
        part = run.system.equations[instance.equation].part_of
        executed.setdefault(part, Counter()).update(instance.operations)
    for name, counts in derived.items():
        rules = Counter(_classes(counts.at(**sizes))) + Counter(_classes(counts.at(**sizes).once))
        if rules != +executed[name]:
            return f"{name} is the first equation that differs; "
    return ""


def _forms_agree(mixer: Mixer) -> Iterator[Proof]:
    """Every other form gives the numbers of the first."""
    first, *others = mixer.forms
    for other in others:

        def differing(sizes: Sizes, other: str = other) -> str:
            arrays = random_arrays(mixer.forms[first], sizes)
            one, two = (evaluate_all(mixer, arrays, sizes, form) for form in (first, other))
            parted = [name for name in two if name in one and _apart(one[name], two[name])]
            output = mixer.role("output").name
            if output not in parted:
                return ""
            furthest = abs(one[output] - two[output]).max()
            return f"{parted[0]} is the first array that differs; {output} by {furthest:.3g}"

        yield _proof(f"{other}: equals {first}", first_apart(mixer, differing), "the same numbers")


def _apart(one: Any, two: Any) -> bool:
    """Whether two arrays have other shapes, or entries that differ beyond rounding."""
    if one.shape != two.shape:
        return True
    return bool(abs(one - two).max() > TOLERANCE * max(1.0, float(abs(one).max())))


def _nonzero(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: number for name, number in sorted(counts.items()) if number}


def _classes(counts: Any) -> dict[str, int]:
    if counts is None:
        return {}
    four = {name: getattr(counts, name) for name in ("mul", "add", "div", "exp")}
    return _nonzero({**four, **counts.other})


def _counted(counts: Any) -> tuple[dict[str, int], dict[str, int], int]:
    return _classes(counts), _classes(counts.once), counts.total
