"""Do the rules answer what instrumented execution tallies? Every question about one form, compared.

Operations, depth, state, traffic and values, for a whole sequence and for each token by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from costmodel.errors import Unanswered, Unsupported
from costmodel.language.equations import Form, Mixer
from costmodel.language.nodes import Array
from costmodel.oracle.execute import Execution, Unfused, execute
from costmodel.program.phases import overruns
from costmodel.questions.count import count
from costmodel.questions.evaluate import evaluate
from costmodel.questions.span import span
from costmodel.questions.state import state
from costmodel.questions.subject import system_of
from costmodel.questions.traffic import traffic
from costmodel.symbolic.constraints import variables_of

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
        except (Unsupported, Unanswered) as reason:
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
        run = self._run(sizes, sizes["l"])
        self._forward(sizes, run)
        if "dense" not in self.rewrites:
            self._values(sizes, run)
            self._inference(sizes, run)
        return self

    def _forward(self, sizes: Sizes, run: Execution) -> None:
        form, names = self.form, self.convention
        executed = (run.counts(), run.once(), sum((*run.counts().values(), *run.once().values())))
        self.check(
            "counts",
            lambda: counted(count(self.mixer, "training", form, names).at(**sizes)),
            executed,
        )
        self.check(
            "span", lambda: span(self.mixer, "training", form, names).at(**sizes), run.span()
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
            return traffic(self.mixer, phase, self.form, self.convention)

        self.check(
            f"compulsory traffic{when}",
            lambda: nonzero(derived().compulsory.at(sizes)),
            nonzero(least),
        )
        kinds = ("activations", "weights", "state")
        moved = {kind: sum(getattr(row, kind) for row in unfused) for kind in kinds}
        self.check(
            f"unfused traffic{when}",
            lambda: nonzero(derived().unfused.at(sizes)),
            nonzero(moved),
        )

    def _values(self, sizes: Sizes, run: Execution) -> None:
        expected = run.output
        scale = max(1.0, float(abs(expected).max()))

        def derived() -> str:
            arrays, names = dict(run.arrays), tuple(self.rewrites)
            found = evaluate(self.mixer, arrays, dict(sizes), self.form, names)
            same = found.shape == expected.shape
            close = same and abs(found - expected).max() <= TOLERANCE * scale
            return str(expected.tolist() if close else found.tolist())

        self.check("values", derived, str(expected.tolist()))

    def _inference(self, sizes: Sizes, run: Execution) -> None:
        form, names, longer = self.form, self.convention, self._longer(sizes)
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
                lambda at=at: counted(count(self.mixer, "inference", form, names).at(**at)),  # type: ignore[misc]
                (executed.counts_inference(t), {}, sum(executed.counts_inference(t).values())),
            )
            self.check(
                f"span at {t=}",
                lambda at=at: span(self.mixer, "inference", form, names).at(**at),  # type: ignore[misc]
                executed.span_inference(t),
            )
            if not goes_on and longer.counts_inference(t) != run.counts_inference(t):
                self.refused.append(f"state at {t=}: a token's work depends on the length l")
                continue
            self.check(
                f"state at {t=}",
                lambda at=at: state(self.mixer, form).at(**at),  # type: ignore[misc]
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
        except (Unsupported, Unanswered):
            return ""
        return next((overrun.reason(at) for overrun in found if overrun.at(at)), "")

    def _goes_on(self) -> bool:
        """Whether the work of a token is the same in a longer sequence."""
        try:
            found = count(self.mixer, "inference", self.form, self.convention)
        except (Unsupported, Unanswered):
            return False
        return all("l" not in number.letters for number in found.classes.values())

    def _not_causal(self) -> None:
        """One token has no cost of its own: every question about it gives its reason."""
        for question in (count, span, traffic):
            try:
                question(self.mixer, "inference", self.form, self.convention)
            except Unanswered:
                continue
            self.apart.append(f"{question.__name__} of one token: answers, but is not causal")
        try:
            state(self.mixer, self.form)
        except Unanswered:
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


def nonzero(counts: Mapping[str, int]) -> dict[str, int]:
    """The counts that are not 0, by name."""
    return {name: number for name, number in sorted(counts.items()) if number}


def classes(counts: Any) -> dict[str, int]:
    """Operations by class; none of what is not there."""
    if counts is None:
        return {}
    four = {name: getattr(counts, name) for name in ("mul", "add", "div", "exp")}
    return nonzero({**four, **counts.other})


def counted(counts: Any) -> tuple[dict[str, int], dict[str, int], int]:
    """Operations by class, those on weights alone, and the total."""
    return classes(counts), classes(counts.once), counts.total
