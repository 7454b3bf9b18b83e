"""The proofs of `check --deep`: is a module right at large sizes, in train mode, in low precision,
after many calls and in its gradients, and does it leave its caller's tensors alone?

Ways to call the module (*draws*) are drawn at random from a seed: sizes, mode, layout and values of
the input, an event before the call. A draw that fails is reduced: every condition that the failure
does not need is dropped, then the sizes are lowered. A *subject* is an implementation under proof.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import accumulate
from math import prod

import torch
from torch import Tensor

from costmodel.errors import Unanswered, Unsupported, as_exception
from costmodel.language.equations import Mixer
from costmodel.proofs.check import Proof
from costmodel.proofs.tried_sizes import bounding_letters, fits
from costmodel.questions.state import State, state
from profiler.modules.registry import Implementation
from profiler.proofs.blame import Multisets, first_unseen
from profiler.proofs.cases import ModuleCase, reason_with_kind
from profiler.proofs.draws import (
    LAYOUTS,
    MOST_POINTS,
    OTHERS,
    RANGES,
    SCALES,
    VALUES,
    Draw,
    at_each_size,
    draws,
    evaluated_points,
    range_words,
    spread,
)
from profiler.proofs.each_size import EachSize
from profiler.proofs.history import BEFORE, CALLS, OFTEN
from profiler.proofs.room import decoded_room
from profiler.proofs.rounding import (
    MANY_RUNS,
    MEASURES,
    Digits,
    WrongKernels,
    allowances,
    error_sizes,
    errors,
    least_allowances,
    sharp,
)
from profiler.proofs.trial import (
    Decoding,
    Finding,
    Kind,
    Refused,
    Subject,
    Trial,
    answers,
    decoded,
    refused_by_torch,
)
from profiler.records.words import told_apart

SEVERAL = 3
"""How many draws are called `CALLS` times (in float64, and in each type of low precision), and at
how many draws the memory of decoding is read."""
LONG = range(24, 131)
"""Lengths at which the memory of decoding is read: long enough that a cache of all tokens outgrows
a state of fixed size."""

SIMPLER = 80
"""The largest number of simpler draws that are tried to reduce a failure."""
REDUCING_S = 20.0
"""Processor time to reduce a failure, in seconds."""
FEW = 5
"""To reduce a failure, each value of a size below this one is tried, then bisection above it."""

FEW_POINTS = 200_000
"""The largest number of points at which the equations of a draw in low precision are evaluated,
without the extra cost of rows of loops."""
LONGEST = 300
"""Draws compared in low precision have sequences of at most this length."""

KINDS: dict[Kind, str] = {
    "result": "module equals equations at random calls",
    "gradients": "gradients of the module equal the equations'",
    "step": "step equals equations at random calls",
    "writes": "tensors of the caller keep their values",
}


SIZED = "results, steps and operations at each size in turn"
CALLED = "every call gives the same result"
ROOM = "decoding holds no needless memory"

REFUSES = "the module refuses the sizes of every call"
NO_GRADIENTS = (
    "no call is left to compare: the result differs, or no gradients are derived and inputs are "
    "large or have kinks"
)

BUDGET_S = 120.0
"""Processor time for the draws of one module, in seconds; a common module takes a third of it."""
SHARES = {
    "sizes": 0.15, "gradients": 0.15, "draws": 0.2, "calls": 0.1, "states": 0.1, "precisions": 0.3,
}  # fmt: skip
"""The share of `BUDGET_S` of each part, in the order in which parts are tried: the
cheapest draws find most faults, and the precisions run a module dozens of times. Unused time of a
part goes to the next, at last to the larger draws."""
CHEAP = 3
"""The cheapest draws, one out of this number, are tried before the other proofs."""


Progress = Callable[[int, int, str], None]
"""Called with the number of trials done, the number of all trials, and the name of this part."""


def deep_proofs(
    mixer: Mixer,
    implementation: Implementation,
    seed: int,
    thin: int = 1,
    progress: Progress = lambda done, of, what: None,
    *,
    counted: bool = False,
    step_fault: str = "",
) -> Iterator[Proof]:
    """Yield the proofs of a module by calls in ways that `seed` draws at random, each proof as soon
    as it is made.

    Every `thin`-th draw is tried: first each size in turn (with its operations, if `counted`: they
    agree with the description at small sizes), then the gradients at each size, then the cheapest
    draws, then the proofs by many calls, by memory and by precision, then the remaining draws,
    within `BUDGET_S` of processor time. A proof says how many draws were left out. With a
    `step_fault`, the reason why, no step is tried. If the equations cannot be evaluated, the only
    proof is open (passed None). `progress` is called with the trials done, their number, and what
    is tried.
    """
    if step_fault:
        implementation = replace(implementation, step_form=None)
    subject = Subject(mixer, implementation, step_fault)
    try:
        every = draws(mixer, subject.forward, seed, tuple(BEFORE))
    except Unsupported as reason:
        yield Proof(
            f"{implementation.name}: random calls",
            None,
            f"the equations cannot be evaluated: {reason}",
        )
        return
    drawn = every[::thin]
    cheap = max(1, len(drawn) // CHEAP)
    plain = dict.fromkeys(Draw(one.sizes, one.b, one.train, one.layout) for one in drawn)
    # the draws in low precision, the first of them after many calls of the module
    few = [draw for draw in plain if _in_few_points(subject, draw)]
    often = [replace(draw, before=OFTEN) for draw in few if draw.sizes["l"] >= 2]
    small = [*often[:SEVERAL], *spread(few)]
    # part -> number of trials; `ends`: part -> share of the budget at which it must end
    sized = at_each_size(mixer, subject.forward, seed)[::thin]
    parts = {"sizes": len(sized), "gradients": len(sized)}
    parts |= {"draws": cheap, "calls": SEVERAL, "states": SEVERAL}
    parts |= {precision.name: len(small) for precision in PRECISIONS}
    shares = [SHARES.get(part, SHARES["precisions"] / len(PRECISIONS)) for part in parts]
    ends = dict(zip(parts, accumulate(shares), strict=True))
    report = _reports(parts | {"larger draws": len(drawn) - cheap}, mixer.name, progress)
    budget = Budget(BUDGET_S)
    with torch.random.fork_rng(devices=[]), _threads(1):
        sizes = EachSize(subject, counted=counted)
        yield _proof_of_sizes(sizes, sized, report["sizes"], budget.part(ends["sizes"]))
        tried = Drawn(subject, drawn)
        part = budget.part(ends["gradients"])
        yield from tried.gradients_at(sizes, sized, report["gradients"], part)
        yield from tried.proofs(0, cheap, report["draws"], budget.part(ends["draws"]))
        yield _proof_of_calls(subject, drawn, seed, report["calls"], budget.part(ends["calls"]))
        yield _proof_of_room(subject, every, seed, report["states"], budget.part(ends["states"]))
        for precision in PRECISIONS:
            part = budget.part(ends[precision.name])
            yield _proof_of_precision(subject, small, precision, report[precision.name], part)
        yield from tried.proofs(cheap, len(drawn), report["larger draws"], budget)
        yield from tried.held()


def names(implementation: Implementation) -> list[str]:
    """The names of the proofs of one module, as `deep_proofs` yields them."""
    return [f"{implementation.name}: {name}" for name in _drawn_names()]


def _drawn_names() -> list[str]:
    """The names of the proofs of random calls, without the name of a module before them."""
    return [
        SIZED,
        *KINDS.values(),
        CALLED,
        ROOM,
        *(_in_digits(precision) for precision in PRECISIONS),
    ]


def any_drawn(found: Iterable[Proof]) -> bool:
    """Whether one of the proofs is of calls that were drawn at random."""
    drawn = _drawn_names()
    return any(proof.name.partition(": ")[2] in drawn for proof in found)


@dataclass
class Budget:
    """A span of processor time, in seconds, from now on; a trial that began in it is finished."""

    seconds: float
    begun: float = field(default_factory=time.process_time)

    def part(self, share: float) -> Budget:
        """A budget that begins when this budget began, and ends after a share of its time."""
        return Budget(share * self.seconds, self.begun)

    @property
    def spent(self) -> bool:
        """Whether the time is over."""
        return time.process_time() - self.begun > self.seconds

    def left_out(self, number: int) -> str:
        """A clause that `number` calls were left out when the time was over; "" for 0."""
        said = f"; {number} more left out after {self.seconds:.0f} s of processor time"
        return said * (number > 0)


def _reports(
    parts: Mapping[str, int], name: str, progress: Progress
) -> dict[str, Callable[[int], None]]:
    """A dict: part -> the function that takes the trials done in this part, and calls `progress`
    with the trials done in all parts. `parts`, in order: part -> its number of trials; `name`: the
    mixer's. Of {"sizes": 5, "draws": 9} the second function calls progress(5 + done, 14, ...)."""

    def told(part: str, before: int, done: int) -> None:
        progress(before + done, sum(parts.values()), f"{name} {part}")

    before = accumulate(parts.values(), initial=0)
    return {part: partial(told, part, at) for part, at in zip(parts, before, strict=False)}


def drawn_words(seed: int) -> str:
    """The text of the note that lists the conditions of calls which are drawn at random, and how to
    repeat the draws."""
    sizes = ", ".join(f"{scale:g}" for scale in sorted(set(SCALES)))
    return (
        f"random calls (repeat them with --seed {seed}): in eval and train mode, with one thread "
        f"and two; x {', '.join(LAYOUTS)}; x {', '.join(VALUES)}; x times {sizes}; called on a new "
        f"module, {', '.join(BEFORE)}"
    )


def untried_words() -> str:
    """The text of the note that lists what no randomly drawn call tries."""
    sizes = ", ".join(f"{letter} > {values[-1]}" for letter, values in RANGES.items())
    types = ", ".join(precision.name for precision in PRECISIONS)
    return (
        f"not tried: {sizes}, other sizes > {OTHERS[-1]}; more than {CALLS} calls of one module; "
        f"in {types}: l > {LONGEST}, inputs other than normal numbers, and errors as small as "
        "rounding's, which are some percent and grow in long running sums; devices other than the "
        "CPU; torch.compile"
    )


@contextmanager
def _threads(number: int) -> Iterator[None]:
    """A context in which torch uses `number` threads: on a busy machine the threads of thousands of
    small operations would wait for one another."""
    threads = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class Drawn:
    """The proofs of `KINDS`: each draw is tried once for all kinds, and the first failure of each
    kind is reduced.

    `number` is the number of draws tried so far, `failed` the kinds with a failure, `refused` maps
    the reason of a refused draw to the number of such draws, `unable` says why no equations can be
    evaluated ("" if they can), `left_out` has words on draws beyond the budget; `tried` are draws
    tried, `of_gradients` those at which gradients were compared, `steps` whether steps are tried.
    """

    def __init__(self, subject: Subject, draws: Sequence[Draw]) -> None:
        """Nothing is tried yet: `proofs` tries the draws (ways to call the module) in order; `held`
        then yields the proofs of the kinds that never failed."""
        self.subject, self.draws = subject, draws
        self.steps = not subject.stepless
        self.failed: set[Kind] = set()
        self.unable = ""
        self.left_out = ""
        self.number = 0
        self.tried: list[Draw] = []
        self.of_gradients: list[Draw] = []
        self.gradients_left_out = ""
        """A clause on the sizes in turn at which no gradients were compared; "" if there are
        none."""
        self.refused: dict[str, int] = {}

    def proofs(
        self, since: int, until: int, tell: Callable[[int], None], budget: Budget
    ) -> Iterator[Proof]:
        """Yield a failed proof for each kind of `KINDS` (result, step, gradients, writes) that
        fails for the first time, with its draw (way to call the module) reduced. Tried are the
        draws from number `self.number` (from 0; the next untried one) to `until`, excluded; fewer
        if each kind has failed, the budget is spent (`left_out` then says how many are left out),
        or equations cannot be evaluated. `tell` is called with the number of draws tried since draw
        number `since`. A draw that the module refuses is counted in `refused` alone."""
        self.left_out = ""
        possible = KINDS.keys() - ({"step"} if not self.steps else set())
        while self.number < until and not self.unable and self.failed < possible:
            if self.number and budget.spent:
                self.left_out = budget.left_out(len(self.draws) - self.number)
                return
            tell(max(0, self.number - since))
            torch.default_generator.manual_seed(self.number)
            draw = self.draws[self.number]
            self.number += 1
            try:
                said = self._findings(draw)
            except Unsupported as reason:
                self.unable = f"the equations cannot be evaluated: {reason}"
                return
            except Refused as reason:
                self.refused[str(reason)] = 1 + self.refused.get(str(reason), 0)
                continue
            self.tried.append(draw)
            derived = self.subject.training(draw, MOST_POINTS)
            if "result" not in dict(said) and (derived or draw.smooth):
                self.of_gradients.append(draw)
            for kind, known in said:
                if kind in self.failed:
                    continue
                self.failed.add(kind)
                of_kind = partial(_fault_of_kind, self.subject, kind)
                plainest = _reduced(draw, known, of_kind, self.subject.mixer)
                yield Proof(self._named(kind), False, plainest)

    def gradients_at(
        self, sizes: EachSize, draws: Sequence[Draw], tell: Callable[[int], None], budget: Budget
    ) -> Iterator[Proof]:
        """Yield one failed proof, with its draw reduced, for the first of the plain calls `draws`
        (each value of each size in turn) with wrong gradients, or with a result that is wrong only
        while gradients are recorded (`sizes` compares them); nothing if no call is wrong. Right
        calls join `of_gradients`, `gradients_left_out` is a text on those beyond the budget, and
        `tell` is called with the number of calls made."""
        found: list[Finding] = []

        def fault(draw: Draw) -> str:
            """What is wrong in a call, in words; "" if nothing is. Its kind is noted."""
            found[:] = filter(None, [sizes.with_gradients(draw)])
            return "".join(said for _, said in found)

        for number, draw in enumerate(draws):
            if number and budget.spent:
                self.gradients_left_out = budget.left_out(len(draws) - number)
                return
            tell(number)
            try:
                said = _fault_of_call(partial(fault, draw))
            except (Refused, Unsupported):  # another proof says so
                continue
            if said:
                kind: Kind = found[0][0] if found else "gradients"
                self.failed.add(kind)
                mixer = self.subject.mixer
                plainest = _reduced(draw, said, partial(_unless_refused, fault), mixer)
                yield Proof(self._named(kind), False, plainest)
                return
            self.of_gradients.append(draw)

    def _findings(self, draw: Draw) -> list[Finding]:
        """What is wrong at a draw, as (kind, sentence): by calls on whole sequences and, if the
        module has a step, by decoding token by token."""
        made = (Trial, *[Decoding] * self.steps)
        return [found for one in made for found in findings(one, self.subject, draw)]

    def _named(self, kind: Kind) -> str:
        return f"{self.subject.implementation.name}: {KINDS[kind]}"

    def held(self) -> Iterator[Proof]:
        """Yield the proof of each kind that never failed, after all draws are tried: passed, or
        open (passed None) if the equations cannot be evaluated, every draw was refused, the module
        has no step (kind step), or no draw compared gradients (kind gradients)."""
        subject, unable = self.subject, self.unable
        if not self.tried and not unable:
            unable = f"{REFUSES}: {next(iter(self.refused))}"
        more = self.left_out
        if self.refused:
            number, first = sum(self.refused.values()), next(iter(self.refused))
            more += f"; {number} more refused, for example because: {first}"
        noted = "".join(f"; {clause}" for clause in subject.noted)
        said = f"{_ranges(self.tried)}{more}"
        for kind in KINDS:
            if kind in self.failed:
                continue
            if unable:
                yield Proof(self._named(kind), None, unable)
            elif kind == "step" and not self.steps:
                yield Proof(self._named(kind), None, subject.stepless)
            elif kind == "gradients" and not self.of_gradients:
                yield Proof(self._named(kind), None, NO_GRADIENTS)
            elif kind == "gradients":
                how = "compared with difference quotients, as no gradients are derived; "
                how *= subject.trained[1] is None  # "" if they are derived
                more = f"{self.gradients_left_out}{more}{noted}"
                yield Proof(self._named(kind), True, f"{how}{_ranges(self.of_gradients)}{more}")
            else:
                yield Proof(self._named(kind), True, f"{said}{noted * (kind != 'writes')}")


def _ranges(tried: Sequence[Draw]) -> str:
    """How many calls were tried, and at which sizes, in words."""
    return f"{len(tried)} call{'s' * (len(tried) != 1)}: {range_words(tried)}"


def findings(made: type[Trial], subject: Subject, draw: Draw) -> list[Finding]:
    """What is wrong at one draw (a way to call the module), as (kind, sentence), by a `Trial` (a
    call) or a `Decoding` (token by token), run in another thread if the draw asks for several
    threads. A call that raises an error is a finding too."""
    if draw.threads == 1:
        return _findings(made, subject, draw)
    with _threads(draw.threads), ThreadPoolExecutor(1) as another:
        return another.submit(_findings, made, subject, draw).result()


def _findings(made: type[Trial], subject: Subject, draw: Draw) -> list[Finding]:
    """What is wrong at one draw (a way to call the module), as (kind, sentence), by calls in this
    thread (`made`: `Trial` of whole sequences, or `Decoding` token by token); an error of the
    module is a finding after the findings before it.

    Raises:
        Unsupported: the equations cannot be evaluated.
        Refused: the module or torch refuses the sizes.
    """
    said: list[Finding] = []

    def run() -> str:
        said.extend(made(subject, draw, MOST_POINTS).findings())
        return ""

    if stopped := _fault_of_call(run):
        if made is Decoding:
            cause = Decoding(subject, draw, MOST_POINTS).cause()
            stopped = f"{stopped.removesuffix('.')}{cause}" if cause else stopped
        said.append(("step" if made is Decoding else "result", stopped))
    return said


def _fault_of_call(call: Callable[[], str]) -> str:
    """Run `call`, which runs a module, and return its sentence on what is wrong; an error of the
    module becomes a sentence.

    Raises:
        Unsupported: the equations cannot be evaluated.
        Refused: the module or torch refuses the sizes.
    """
    try:
        with as_exception():
            return call()
    except (Unsupported, Refused):
        raise
    except Exception as error:  # a module of a user's own may raise anything
        if refused_by_torch(error):
            raise Refused(reason_with_kind(error)) from error
        return f"the module fails: {reason_with_kind(error)}"


def _proof_by_several(
    name: str,
    candidates: Sequence[Draw],
    seed: int,
    tell: Callable[[int], None],
    budget: Budget,
    said_of: Callable[[Draw], str],
    refused: str,
    done: Callable[[Sequence[Draw]], str],
) -> Proof:
    """Make the proof `name` by trying `SEVERAL` of the draws `candidates` (ways to call a module),
    chosen by `seed`: passed if `said_of` returns "" at each, failed at the first draw for which it
    returns what is wrong, open (passed None, with the reason `refused`) if the module refuses all.
    `done` words what was tried; `tell` is called with the number of draws that ran; `budget` limits
    the processor time."""
    ran: list[Draw] = []
    for draw in random.Random(seed).sample(candidates, len(candidates)):
        if len(ran) == SEVERAL or (ran and budget.spent):
            break
        tell(len(ran))
        try:
            said = _fault_of_call(partial(said_of, draw))
        except Refused:
            continue
        ran.append(draw)
        if said:
            return Proof(name, False, f"at {draw.words()}: {said}")
    if not ran:
        return Proof(name, None, refused)
    left_out = budget.left_out(min(SEVERAL, len(candidates)) - len(ran)) if budget.spent else ""
    return Proof(name, True, done(ran) + left_out)


def _proof_of_sizes(
    sizes: EachSize, draws: Sequence[Draw], tell: Callable[[int], None], budget: Budget
) -> Proof:
    """Make the proof that a module is right in plain calls (`draws`) at each size in turn, as many
    as the budget allows; open (passed None) if the equations cannot be evaluated or the module
    refuses the sizes of every call. `tell` receives the number of calls made."""
    name = f"{sizes.subject.implementation.name}: {SIZED}"
    ran: list[Draw] = []
    left_out = ""
    for number, draw in enumerate(draws):
        if ran and budget.spent:
            left_out = budget.left_out(len(draws) - number)
            break
        tell(number)
        try:
            said = _fault_of_call(partial(sizes.fault, draw))
        except Unsupported as reason:
            return Proof(name, None, f"the equations cannot be evaluated: {reason}")
        except Refused:
            continue
        if said:
            return Proof(name, False, f"at {draw.words()}: {said}")
        ran.append(draw)
    if not ran:
        return Proof(name, None, REFUSES)
    clauses = (f"{_ranges(ran)}{left_out}", sizes.uncounted)
    return Proof(name, True, "; ".join(filter(None, clauses)))


def _fault_of_kind(subject: Subject, kind: Kind, draw: Draw) -> str:
    """The sentence on the first thing that is wrong, of one kind (result, step, gradients, writes),
    at one draw (a way to call the module); "" if there is none, or the draw is refused. Only the
    calls that can show the kind are made."""
    made = [Trial] * (kind != "step")
    if subject.implementation.step_form and kind in ("step", "writes"):
        made.append(Decoding)
    said = (said for one in made for own, said in findings(one, subject, draw) if own == kind)
    try:
        return next(said, "")
    except Refused:
        return ""


def _unless_refused(fault: Callable[[Draw], str], draw: Draw) -> str:
    """The sentence of `fault` on a draw; "" if the draw is refused."""
    try:
        return _fault_of_call(partial(fault, draw))
    except Refused:
        return ""


def _reduced(draw: Draw, said: str, said_of: Callable[[Draw], str], mixer: Mixer) -> str:
    """Reduce a draw (a way to call the module) that fails with the sentence `said`, and return the
    reduced draw and its sentence in words: conditions are dropped one by one, then each size is
    lowered to a value below `FEW` or by bisection, as long as `said_of` the draw is not "". At most
    `SIMPLER` draws are tried, for about `REDUCING_S` of processor time."""
    left, budget = SIMPLER, Budget(REDUCING_S)

    def fails(one: Draw) -> bool:
        """Try a draw (a way to call the module) that fits the mixer, if trials and time are left:
        True if it fails, and then `draw` becomes this draw and `said` its sentence, so that
        reduction goes on from here."""
        nonlocal draw, said, left
        left -= 1
        if left < 0 or budget.spent or not fits(mixer, one.sizes) or not (still := said_of(one)):
            return False
        draw, said = one, still
        return True

    for _ in range(2):  # smaller sizes may make further conditions needless
        while any(fails(one) for one in draw.plainer()):
            pass
        for letter in ("b", *draw.sizes):
            value = draw.value(letter)
            if any(fails(draw.at(letter, small)) for small in range(1, min(value, FEW))):
                continue
            low = FEW - 1
            while draw.value(letter) - low > 1 and left > 0:
                middle = (low + draw.value(letter)) // 2
                if not fails(draw.at(letter, middle)):
                    low = middle
    return f"at {draw.words()}: {said}"


def _proof_of_calls(
    subject: Subject, drawn: Sequence[Draw], seed: int, tell: Callable[[int], None], budget: Budget
) -> Proof:
    """Make the proof that each of `CALLS` calls of one module gives the first call's answers:
    result, gradients and, if it has a step, decoded rows. Tried at `SEVERAL` of the cheapest draws,
    chosen by `seed`, without a factor of the input or an event before the call. `tell` receives the
    number of draws that ran; `budget` limits the processor time."""
    name = f"{subject.implementation.name}: {CALLED}"
    several = [draw for draw in drawn if draw.sizes["l"] >= 2] or drawn
    small = several[: max(SEVERAL, len(several) // 4)]  # the cheapest stand first
    plain = [replace(draw, before="", scale=1.0, threads=1) for draw in small]
    answered = "gradients" if subject.stepless else "steps and gradients"

    def done(ran: Sequence[Draw]) -> str:
        modules = f"{len(ran)} module{'s' * (len(ran) != 1)}"
        return f"{CALLS} calls of {modules}, with {answered}"

    called = partial(_called_often, subject)
    return _proof_by_several(name, plain, seed, tell, budget, called, REFUSES, done)


def _called_often(subject: Subject, draw: Draw) -> str:
    """A sentence on the first of `CALLS` calls of one module whose answers (result, gradients,
    decoded rows of up to three tokens) differ from those of the first call; "" if none do. Every
    third call is made in the other mode (train or eval) than the draw's."""
    tokens = 0 if subject.stepless else min(3, draw.sizes["l"])
    trial = Trial(subject, draw, MOST_POINTS)
    first = answers(trial.case, trial.gradient, tokens)
    for call in range(2, CALLS + 1):
        torch.default_generator.manual_seed(call)
        trial.case.module.train(draw.train if call % 3 else not draw.train)
        found = answers(trial.case, trial.gradient, tokens)
        for answer, known in first.items():
            if said := trial.apart(found[answer], known.numpy(), answer, answer):
                said = said.replace("the equations give", "the first call gave")
                # of the result, append the blame that follows "; " in the comparison with equations
                mode = "train" if trial.case.module.training else "eval"
                wrong = trial.result_apart(found[answer]) if answer == trial.output else ""
                return f"call {call}, in {mode} mode: {said}{''.join(wrong.partition('; ')[1:])}"
    return ""


def _proof_of_room(
    subject: Subject, drawn: Sequence[Draw], seed: int, tell: Callable[[int], None], budget: Budget
) -> Proof:
    """Make the proof that decoding holds no more memory than allowed.

    For one sequence, the state and the module together may hold twice the entries that later tokens
    need, since an old state may live beside a new one, and one row of the input. The proof stays
    open (passed None) if the module has no step, the state is not derived, or no draw of the
    lengths `LONG` runs. `seed` chooses draws; `tell` receives the number of draws that ran.
    """
    name = f"{subject.implementation.name}: {ROOM}"
    if subject.stepless:
        return Proof(name, None, subject.stepless)
    try:
        derived = state(subject.mixer, subject.implementation.step_form)
    except (Unsupported, Unanswered) as error:
        return Proof(name, None, f"not derived: {error}")
    long = [Draw(draw.sizes) for draw in drawn if draw.sizes["l"] in LONG]
    tokens = f"of {LONG.start} to {LONG.stop - 1} tokens"
    if not long:
        return Proof(name, None, f"no call {tokens} is drawn")

    def done(ran: Sequence[Draw]) -> str:
        lengths = ", ".join(str(draw.sizes["l"]) for draw in ran)
        return f"after every token of sequences of {lengths} tokens"

    room_of = partial(_too_much_room, subject, derived)
    refused = f"the module refuses every call {tokens}"
    return _proof_by_several(name, long, seed, tell, budget, room_of, refused, done)


def _too_much_room(subject: Subject, derived: State, draw: Draw) -> str:
    """A sentence on the first token after which the state and the module hold too many entries for
    one sequence: more than twice the largest number of entries that the equations need later
    (`derived`) at any token, plus one input row; "" if there is none. Batches of one and of two are
    decoded: the difference of their memory is that of one sequence, without tensors that do not
    depend on the batch."""
    one, two = (decoded_room(subject.built(replace(draw, b=b))) for b in (1, 2))
    tokens = range(1, draw.sizes["l"] + 1)
    # a window may be allocated whole from the start, so the state of any token is allowed
    windows = (draw.sizes[x] for x in bounding_letters(subject.mixer))
    longest = max([draw.sizes["l"], *windows])
    at = [{**draw.sizes, "l": longest, "t": t} for t in range(1, longest + 1)]
    most = max(derived.at(**sizes) for sizes in at)
    row = prod(extent.at(draw.sizes) for extent in subject.mixer.role("input").shape[1:])
    for t, single, double in zip(tokens, one, two, strict=True):
        held = (double - single) // torch.float64.itemsize
        if held > 2 * most + row:
            return (
                f"after token {t} the state and the module hold {held} entries for one sequence; "
                f"later tokens need at most {most}"
            )
    return ""


@dataclass(frozen=True)
class Precision:
    """A floating-point type in which a module is called, or to which autocast converts."""

    name: str
    dtype: torch.dtype
    autocast: bool = False

    @property
    def held(self) -> torch.dtype:
        """The type of parameters and inputs: fp32 under autocast."""
        return torch.float32 if self.autocast else self.dtype

    @contextmanager
    def around(self) -> Iterator[None]:
        """A context in which a call runs in this type, or under autocast to it. fp16 switches
        oneDNN off: its depthwise convolutions of 16 taps and more never return on processors with
        AVX512-FP16 (torch 2.13)."""
        onednn = torch.backends.mkldnn
        with (
            onednn.flags(onednn.enabled and self.dtype != torch.float16, allow_tf32=None),
            torch.autocast("cpu", self.dtype, enabled=self.autocast),
        ):
            yield


PRECISIONS = (
    Precision("fp32", torch.float32),
    Precision("bf16", torch.bfloat16),
    Precision("fp16", torch.float16),
    Precision("bf16 by autocast", torch.bfloat16, autocast=True),
)


def _in_digits(precision: Precision) -> str:
    return f"{precision.name} equals fp64 up to rounding"


def _proof_of_precision(
    subject: Subject,
    small: Sequence[Draw],
    precision: Precision,
    tell: Callable[[int], None],
    budget: Budget,
) -> Proof:
    """Make the proof that a module in low precision gives its float64 answers, up to the rounding
    of its own operations, at the draws `small` (ways to call it), as many as the budget allows. A
    draw compares nothing if rounding is as large as the answers, the module refuses the type, or
    torch's own kernel is wrong; the proof stays open (passed None), with the reasons, if no draw is
    compared. A draw at which the module fails in float64 too is a failure. `tell` receives the
    number of draws tried before each."""
    name = f"{subject.implementation.name}: {_in_digits(precision)}"
    refused: dict[str, None] = {}
    clear: set[Draw] = set()
    failing: set[Draw] = set()
    compared: list[Draw] = []

    @cache
    def said_of(draw: Draw, decoding: bool) -> str:
        """Words on how the answers of a draw in low precision differ from float64, or on the error
        that the module raises in float64 too; "" if neither. `decoding`: token by token."""
        try:
            said, shown = _rounded_apart(subject, draw, precision, decoding)
        except Refused:
            return ""
        except Exception as error:  # a type that a module or the device refuses is not wrong
            if said := _fault_in_float64(subject, draw, decoding):
                failing.add(draw)
                return said
            refused[reason_with_kind(error)] = None
            return ""
        clear.update([draw] * shown)
        return said

    ways = (False,) if subject.stepless else (False, True)
    left_out = ""
    for number, draw in enumerate(small):
        if number and budget.spent:
            left_out = budget.left_out(len(small) - number)
            break
        tell(number)
        decoding, said = next(((way, t) for way in ways if (t := said_of(draw, way))), (False, ""))
        compares = bool(said) and draw not in failing
        if compares and (wrong := _wrong_in_torch(subject, draw, precision, decoding)):
            refused[wrong] = None
        elif said:
            of_way = partial(said_of, decoding=decoding)
            return Proof(name, False, _reduced(draw, said, of_way, subject.mixer))
        elif draw in clear:
            compared.append(draw)
        if refused and not compared:  # refused before anything was compared: no draw follows
            break
    reasons = "; ".join(refused)
    if not compared:
        hidden = "the rounding error is too large for a comparison at every call"
        return Proof(name, None, reasons or hidden)
    tried = f"{_ranges(compared)}{left_out}"
    return Proof(name, True, f"{tried}; other calls not compared: {reasons}" if reasons else tried)


def _in_few_points(subject: Subject, draw: Draw) -> bool:
    """Whether a draw is small enough for the many runs that estimate rounding."""
    points = evaluated_points(subject.forward, draw.sizes, row_points=0)
    return draw.b * points <= FEW_POINTS and draw.sizes["l"] <= LONGEST


def _low_precision_answers(
    subject: Subject, draw: Draw, precision: Precision, decoding: bool
) -> tuple[ModuleCase, dict[str, Tensor]]:
    """Call the module of a draw (a way to call the module) in low precision: returns the module
    with its inputs, and its answers by name: decoded rows (`decoding`), or result and gradients."""
    with precision.around():  # the event before the call runs in low precision too
        low = subject.built(draw, precision.held)
    if precision.autocast:  # torch rounds weights and inputs where they enter a product
        with torch.no_grad():
            for tensor in (*low.module.parameters(), *low.module.buffers(), *low.call):
                if tensor.is_floating_point():
                    tensor.copy_(tensor.to(precision.dtype))
    gradient = Trial(subject, replace(draw, before=""), 0).gradient.to(precision.dtype)
    with as_exception(), precision.around():
        return low, _answers(draw, gradient, decoding, low)


def _fault_in_float64(subject: Subject, draw: Draw, decoding: bool) -> str:
    """The error of the module of a draw (a way to call the module) in float64, in words, as it
    decodes (`decoding`), or computes its result and gradients; "" if it raises none."""

    def called() -> str:
        gradient = Trial(subject, replace(draw, before=""), 0).gradient
        _answers(draw, gradient, decoding, subject.built(draw))
        return ""

    return _fault_of_call(called)


def _answers(draw: Draw, gradient: Tensor, decoding: bool, case: ModuleCase) -> dict[str, Tensor]:
    """The answers of the module, called as a draw says, by name: its decoded rows if
    `decoding`, else its result and gradients. All tokens of a contiguous input are decoded, else,
    as a step sees no layout, at most eight."""
    if not decoding:
        return answers(case, gradient)
    length = draw.sizes["l"]
    return {"step": decoded(case, length if draw.layout == LAYOUTS[0] else min(length, 8))}


def _wrong_in_torch(subject: Subject, draw: Draw, precision: Precision, decoding: bool) -> str:
    """Words on the operations in the call of a draw, token by token if `decoding`, that torch
    itself computes wrongly in low precision; "" if there are none."""
    with WrongKernels(precision.dtype) as seen:
        _low_precision_answers(subject, replace(draw, before=""), precision, decoding)
    wrong = [f"{name} is {said}" for name, said in seen.found.items()]
    return f"torch's own result is wrong on this machine: {', '.join(wrong)}" if wrong else ""


def _rounded_apart(
    subject: Subject, draw: Draw, precision: Precision, decoding: bool
) -> tuple[str, bool]:
    """(sentence, compared), from a call of the module in low precision and one in float64. The
    sentence: on the first answer in low precision (decoded rows if `decoding`, else result and
    gradients) that differs from float64 by more than rounding explains, "" if none does. Compared:
    whether any answer was, that is, rounding explains only errors well below the answer."""
    low, found = _low_precision_answers(subject, draw, precision, decoding)
    draw = replace(draw, before="")  # `exact` copies the values that the event left in `low`
    trial = Trial(subject, draw, 0)
    gradient = trial.gradient.to(precision.dtype).double()
    exact = _in_float64(subject, draw, low)
    in_float64 = partial(_answers, draw, gradient, decoding, exact)
    known = in_float64()
    digits = Digits.of(precision.dtype)
    allowed = least_allowances(known, digits)
    # answer ("y") -> errors; `worst`, `allowed`: largest entry (1,), or norm and projection, too
    off = {answer: errors(found[answer], values) for answer, values in known.items()}
    worst = {answer: error_sizes(own, known[answer]) for answer, own in off.items()}
    if any((worst[answer] > allowed[answer]).any() for answer in known):
        # few runs may all miss a kink that lies near a number
        allowed = allowances(in_float64, known, digits, MANY_RUNS, worst)
    clear = False
    for answer, values in known.items():
        compared = sharp(allowed[answer], values)
        clear = clear or bool(compared.any())
        beyond = [*(compared & (worst[answer] > allowed[answer]))]
        if any(beyond):
            sizes = off[answer].abs()
            where = tuple(int(k) for k in (sizes == sizes.max()).nonzero()[0])
            entry = ", ".join(str(k + 1) for k in where)
            blamed = ""
            if answer == trial.output:
                blamed = _blamed(subject, trial, low, precision, sample=where[0])
            both = told_apart(float(found[answer][where]), "in fp64", float(values[where]), 4)
            explained = _explained(beyond.index(True), worst[answer], allowed[answer])
            return f"{answer}[{entry}] is {both}; {explained}{blamed}", True
    return "", clear


def _explained(at: int, worst: torch.Tensor, allowed: torch.Tensor) -> str:
    """Words on how much of an error rounding explains, by the measure `MEASURES[at]` (0: the
    largest entry, whose size is said elsewhere); `worst` are the measures of the error, `allowed`
    those that rounding explains."""
    if at == 0:
        return f"rounding explains a difference of {float(allowed[0]):.2g}"
    own, most = float(worst[at]), float(allowed[at])
    return f"the {MEASURES[at]} is {own:.3g}, of which rounding explains {most:.3g}"


def _in_float64(subject: Subject, draw: Draw, low: ModuleCase) -> ModuleCase:
    """Build the module of a draw in float64, with weights, buffers and inputs copied from `low`,
    the module in low precision; a buffer whose shape a call changed in `low` is not copied."""
    case = subject.built(draw)
    with torch.no_grad():
        for own, other in (
            (case.module.named_parameters, low.module.named_parameters),
            (case.module.named_buffers, low.module.named_buffers),
        ):
            values = dict(other())
            for name, tensor in own():
                if tensor.is_floating_point() and values[name].shape == tensor.shape:
                    tensor.copy_(values[name])
        for tensor, value in zip(case.call, low.call, strict=True):
            tensor.copy_(value)
    return case


def _blamed(
    subject: Subject, trial: Trial, low: ModuleCase, precision: Precision, sample: int
) -> str:
    """The end of a sentence on a wrong result, "; ...", which names the first equation of the mixer
    whose values for sequence `sample` the module in low precision never computes; "" if it computes
    about the values of every equation."""
    recorder = Multisets(trial.draw.b, sample)
    with torch.no_grad(), precision.around(), recorder:
        low.forward()
    form = subject.implementation.form
    found = first_unseen(subject.mixer, form, trial.expected(sample), recorder)
    return f"; {found.words}" if found.words else ""
