"""Does every derived answer about one form of a mixer equal the tally of an instrumented execution?

Operations, depths, path length, traffic, peak and values are compared for a whole sequence;
operations, depths, traffic and state for each token of one-token inference. In this file an answer
is *derived* by the rules of a question, or *executed*: read from a run of the oracle, which
executes the equations number by number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from costmodel.errors import OracleError, Unanswered, Unsupported
from costmodel.language.equations import Form, Mixer
from costmodel.language.nodes import Array, Flat, Gather, refs
from costmodel.language.positions import chunk_of
from costmodel.oracle.execute import Execution, execute
from costmodel.oracle.quantities import QUANTITIES, Quantity
from costmodel.program.conventions import computes_masked, convention, of_sequences
from costmodel.program.phases import overruns
from costmodel.proofs.tried_sizes import fits, whole_length
from costmodel.questions.count import counted
from costmodel.questions.evaluate import evaluate
from costmodel.questions.question import Answers, Tally
from costmodel.questions.registry import QUESTIONS
from costmodel.questions.subject import system_of
from costmodel.symbolic.constraints import variables_of
from costmodel.symbolic.polynomial import Poly

TOLERANCE = 1e-9
"""Sums of a few dozen numbers near 1 in two orders differ by a few 1e-15 in float64; quotients and
products of earlier results may raise that a thousandfold."""

Sizes = Mapping[str, int]


@dataclass
class OracleComparison:
    """Compares derived and executed answers about one form under one convention.

    `apart` collects a line for each question whose answers differ. `refused` collects a line with
    the reason for each question without a derived answer; no answer is not a wrong answer, but
    built-in mixers must have all answers.
    """

    mixer: Mixer
    form: str = ""
    """The form's name; empty for the default form."""
    rewrites: tuple[str, ...] = ()
    accounting: str = "strict"
    apart: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    compared: dict[str, None] = field(default_factory=dict)
    """The names of the compared questions, `general` for all positions t."""
    _about: dict[str, Answers] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Replace an empty form by the default form."""
        self.form = self.form or self.mixer.default_form

    @property
    def convention(self) -> tuple[str, ...]:
        """The names of the convention."""
        return (self.accounting, *self.rewrites)

    def about(self, phase: str) -> Answers:
        """The object that derives answers about a phase, one for all sizes of this comparison, so
        that answers derived elsewhere are not reused."""
        if phase not in self._about:
            convened = convention(self.convention)
            self._about[phase] = Answers(self.mixer, self.form, phase, convened)
        return self._about[phase]

    def check(self, question: str, derive: Callable[[], object], executed: object) -> None:
        """Compare the answer that `derive` returns with the executed one, and record the question:
        in `compared`, and in `apart` if both differ; in `apart` alone if `derive` crashes; in
        `refused` alone if it has no answer."""
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
            self.apart.append(f"{question}: derived {derived}, executed {executed}")

    def at(self, sizes: Sizes) -> OracleComparison:
        """Compare derived and executed answers to every question at these sizes; returns this
        object, with the results. Under a rewrite of whole sequences, answers about one token are
        not compared, and under `dense` values neither."""
        run = self._run(sizes, sizes["l"])
        self._forward(sizes, run)
        if not computes_masked(self.rewrites):
            self._values(sizes, run)
        if not any(map(of_sequences, self.rewrites)):
            self._inference(sizes, run)
        return self

    def _forward(self, sizes: Sizes, run: Execution) -> None:
        """Compare every figure of a forward pass over the whole sequence with the execution
        `run`."""
        about = self.about("training")
        for tally, quantity in tallies():
            if quantity.sequence is not None:
                derive = partial(tally.derived, about, sizes)
                self.check(tally.name, derive, quantity.sequence(run))

    def _values(self, sizes: Sizes, run: Execution) -> None:
        """Compare the output by `evaluate` with that of the execution `run`, on the same arrays."""
        expected = run.output
        scale = max(1.0, float(abs(expected).max()))

        def derived() -> str:
            """The derived output as text; if both are close, the text of the executed output, since
            `check` compares by ==."""
            arrays, names = dict(run.arrays), tuple(self.rewrites)
            output = evaluate(self.mixer, arrays, dict(sizes), self.form, names)
            same = output.shape == expected.shape
            close = same and abs(output - expected).max() <= TOLERANCE * scale
            return str(expected.tolist() if close else output.tolist())

        self.check("values", derived, str(expected.tolist()))

    def _inference(self, sizes: Sizes, run: Execution) -> None:
        """Compare every question about one token, for t = 1..l; or check, if an execution is not
        causal, that none has an answer.

        An answer is about a sequence that goes on after the token, and is compared with the
        execution of a longer sequence. If counts depend on l, operations are compared with `run`,
        of length l, instead. `refused` gets a token beyond a table of positions or that owns rows
        beyond l, and figures about earlier tokens where both executions differ.
        """
        longer, about = self.longer(sizes), self.about("inference")
        if not (causal(self.mixer.forms[self.form], sizes) and longer.causal):
            self._not_causal(about, {**sizes, "t": 1})
            return
        without_l = _counts_without_length(about)
        for t in range(1, sizes["l"] + 1):
            at = {**sizes, "t": t}
            if reason := self._past_the_end(at):
                self.refused.append(f"everything at {t=}: {reason}")
                continue
            if not without_l and _instances(longer, t) != _instances(run, t):
                self.refused.append(
                    f"everything at {t=}: the token also owns rows beyond the length l"
                )
                continue
            same_work = without_l or longer.counts_inference(t) == run.counts_inference(t)
            for tally, quantity in tallies():
                if quantity.token is None:
                    continue
                if quantity.past and not same_work:
                    why = "a token's work depends on the length l"
                    self.refused.append(f"{tally.name} at {t=}: {why}")
                    continue
                executed = longer if without_l or quantity.past else run
                derive = partial(tally.derived, about, at)
                self.check(f"{tally.name} at {t=}", derive, quantity.token(executed, t))

    def _run(self, sizes: Sizes, length: int) -> Execution:
        """An execution at `sizes` with `length` tokens, or the next length that fits the mixer."""
        length = whole_length(self.mixer, sizes, length)
        form = self.mixer.forms[self.form]
        return execute(
            form, sizes, rewrites=self.rewrites, accounting=self.accounting, length=length
        )

    def longer(self, sizes: Sizes) -> Execution:
        """An execution of a longer sequence, whose end cuts off nothing that tokens 1..l do.

        The length is C*l + 2 w + 2 + c: C is the number of tokens i that read one row (i - 1)//C,
        else 1, w the largest size but l in lower bounds of indices and in bounds that hold an index
        (a window), c the largest constant in a bound. If an array's latest token is then before the
        end, as with chunks, a second execution is longer by the tokens between.
        """
        indices = [p for i in self.mixer.forms[self.form].indices.values() for p in i.pieces]
        bounds = [b for i in indices for b in i.ends if b in i.lower or variables_of([b])]
        windows = {name for b in bounds for name in b.letters - variables_of([b]) - {"l"}}
        each = max((chunk.at(sizes) for chunk in self._rows_in_chunks()), default=1)
        length = sizes["l"] * each + 2 * max((sizes[name] for name in windows), default=0) + 2
        length += max((abs(int(b.terms.get((), 0))) for i in indices for b in i.ends), default=0)
        run = self._run(sizes, length)
        latest: dict[Array, int] = {}
        for (array, _), scalar in run.trace.memory.items():
            if scalar.token:
                latest[array] = max(scalar.token, latest.get(array, 0))
        late = length - min(latest.values(), default=length)  # tokens that an array ends early
        return self._run(sizes, length + late) if late > 0 else run

    def _rows_in_chunks(self) -> Iterator[Poly]:
        """Yield C for each reference to a row (i - 1)//C of the sequence, or to rows up to it."""
        length = self.mixer.role("input").shape[0]
        for equation in self.mixer.forms[self.form].equations:
            for ref, over in refs(equation.value):
                for place, extent in zip(ref.positions, ref.array.shape, strict=True):
                    if isinstance(place, Flat | Gather) or extent != length:
                        continue
                    ends = (end for i in over if i.atom in place.letters for end in i.ends)
                    found = (chunk_of(atom) for end in (place, *ends) for atom in end.atoms)
                    yield from (chunk for _, chunk in filter(None, found))

    def _past_the_end(self, at: Sizes) -> str:
        """The reason why position t is beyond the weights that have a row per position; "" if t is
        within them, or if this is not derived."""
        try:
            found = overruns(system_of(self.mixer, self.form, self.rewrites, "inference"))
        except (Unsupported, Unanswered):
            return ""
        return next((overrun.reason(at) for overrun in found if overrun.at(at)), "")

    def _not_causal(self, about: Answers, sizes: Sizes) -> None:
        """Check that no question about one token has an answer, since the form is not causal."""
        for tally, quantity in tallies():
            if quantity.token is None:
                continue
            try:
                tally.derived(about, sizes)
            except (Unanswered, Unsupported):
                continue
            self.apart.append(
                f"{tally.name} of one token: derived, although the form is not causal"
            )


def tallies() -> Iterator[tuple[Tally, Quantity]]:
    """Yield each `Tally` (a derived answer that is compared with execution) of every question, with
    the quantity that reads the same number off an execution.

    Raises:
        OracleError: the oracle has no quantity of this name.
    """
    for question in QUESTIONS:
        for tally in question.tallies:
            name = tally.quantity or tally.name
            if name not in QUANTITIES:
                raise OracleError(
                    f"question '{question.name}': the oracle has no quantity '{name}': "
                    f"oracle/quantities.py lists them"
                )
            yield tally, QUANTITIES[name]


def _counts_without_length(about: Answers) -> bool:
    """Whether the counts of one token are derived and do not depend on the length l."""
    try:
        found = about.of(counted)
    except (Unsupported, Unanswered):
        return False
    return all("l" not in number.letters for number in found.classes.values())


def _instances(run: Execution, t: int) -> Counter[int]:
    """Number of an equation -> the number of its instances that token t owns."""
    return Counter(instance.equation for instance in run.instances if run.owners.of(instance) == t)


def general(question: str) -> str:
    """The name of a question without a position t: `counts at t=3` is `counts of one token`."""
    what, at, _ = question.partition(" at t=")
    return f"{what} of one token" if at else what


def causal(form: Form, sizes: Sizes) -> bool:
    """Whether no row reads a later token when the form is executed. Windows (w, k) are raised to 2,
    or to 3 where 2 does not fit the mixer (unchanged if neither fits), and the length to 3, since
    smaller sizes would hide reads of later tokens."""
    raised = (
        {letter: max(sizes[letter], least) for letter in ("w", "k") if letter in sizes}
        for least in (2, 3)
    )
    windows = next((w for w in raised if fits(form.mixer, {**sizes, **w})), {})
    length = whole_length(form.mixer, {**sizes, **windows}, max(sizes["l"], 3))
    return execute(form, {**sizes, **windows}, length=length).causal


def differences(
    mixer: Mixer,
    sizes: Sizes,
    *,
    form: str = "",
    rewrites: Sequence[str] = (),
    accounting: str = "strict",
) -> list[str]:
    """A line for each question whose derived and executed answers differ, then a line for each
    question without a derived answer; [] if all are equal."""
    made = OracleComparison(mixer, form, tuple(rewrites), accounting).at(sizes)
    return made.apart + made.refused


def nonzero(counts: Mapping[str, int]) -> dict[str, int]:
    """The counts that are not 0, by name."""
    return {name: number for name, number in sorted(counts.items()) if number}
