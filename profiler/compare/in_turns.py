"""Measures several candidates in turns: time, memory and energy.

A visit times one candidate once, for a short while; a visitor is the object that does so. A round
visits every candidate twice, and the mean of both is its value for the test of `verdict.py`.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from msgspec import structs

from profiler.compare.rows import PROCESSES, Row, energy_rows
from profiler.compare.verdict import LEVEL, Rounds, rounds_needed
from profiler.host.device import on_device
from profiler.host.environment import environment
from profiler.meters.board_energy import energies_in_turn
from profiler.meters.disturbances import Watch, watch_for
from profiler.meters.energy.estimate import PairedEnergy
from profiler.meters.energy.protocol import TRIALS_IN_TURNS, EnergyLimits
from profiler.meters.intervals import LOW, least_number
from profiler.meters.latency import LAUNCH_BOUND, launching_label
from profiler.meters.rounds import (
    LONG_S,
    VISIT,
    Visitor,
    equal_regions,
    undisturbed_too_few,
    visitor,
)
from profiler.meters.sampler import Instruments, latency_summary
from profiler.meters.timers import CudaTimer, timer_for
from profiler.records.grades import BUSY, INTERRUPTED, grade_of
from profiler.records.measurement import Measurement, divide, new_id, readings_of
from profiler.records.reading import Measured, MeasureError, Reading, Unavailable
from profiler.run.called import dispatched_by, zeros_of
from profiler.run.measure import NO_ENERGY, NO_STEADY_LOAD, failure, peak_of_call, require_token
from profiler.run.plan import Plan, requests
from profiler.run.prepare import PreparedCall, prepare
from profiler.run.request import Request, record_of
from profiler.run.subject import subject
from profiler.sweep.session import by_command

ROUNDS = 10
"""The default number of rounds in each process."""
METHOD = (
    "each round visits all candidates in random order, then in reverse; a sample is the mean of "
    f"the two visits of a round, a visit the fastest {LOW:.0%} of its timed regions after an "
    f"untimed call (none before calls of {LONG_S:g} s or more); a visit under thermal throttling "
    "is repeated, or the whole round if it persists"
)
ONE_THREAD_WORDS = (
    "other programs use the processors: all candidates are timed on one thread, because several "
    "threads would wait for one another; the ratio on more threads may differ"
)

Progress = Callable[[int, int, str], None]
"""A function that shows progress, from (rounds done, number of rounds, the current step)."""


def candidates(
    plan: Plan, tell: Callable[[str], object] = lambda sentence: None
) -> dict[str, Request]:
    """A dict: name -> request, of the requests of a plan, which are compared; names are those of
    `with_names`. `tell` gets a sentence on each module of a user that differs from its equations:
    the module is left out. MeasureError: fewer than two are left, or a size has several values;
    SizeError: sizes do not fit."""
    several = [letter for letter, values in plan.given.items() if len(values) > 1]
    if several:
        raise MeasureError(
            f"compare takes one value of each size, and --{several[0]} has several: measure two "
            "files with costmodel sweep, and compare the files"
        )
    apart: list[MeasureError] = []
    found = requests(plan, unequal=lambda request, error: apart.append(error))
    if apart and len(found) < 2:
        raise apart[0]
    for said in dict.fromkeys(map(str, apart)):
        tell(said)
    if len(found) < 2:
        listed = "".join(f": {r.mixer.name} {r.implementation.name}" for r in found)
        raise MeasureError(
            f"compare needs two mixers, implementations or dtypes, and got {len(found)}{listed}"
        )
    return with_names(found)


def with_names(found: Sequence[Request]) -> dict[str, Request]:
    """A dict: unique name -> request. A name is mixer (its origin if mixers of several files share
    the name), implementation, and dtype if there are several: `she conv bf16`. A request may occur
    twice, as a test of the comparison itself: the second name ends with `#2`."""
    dtypes = len({request.dtype for request in found}) > 1
    origins: dict[str, set[str]] = {}
    for request in found:
        origins.setdefault(request.mixer.name, set()).add(request.mixer.origin)
    seen: Counter[str] = Counter()
    named = {}
    for request in found:
        mixer = request.mixer
        called = mixer.name if len(origins[mixer.name]) == 1 else mixer.origin
        name = f"{called} {request.implementation.name}{f' {request.dtype}' * dtypes}"
        seen[name] += 1
        named[name if seen[name] == 1 else f"{name} #{seen[name]}"] = request
    return named


@dataclass
class Run:
    """The options and the state of a comparison of the candidates `asked` (name -> request).

    Raises:
        MeasureError: the energy window is too short, or the number of trials is odd or below two.
    """

    asked: Mapping[str, Request]
    rounds: int = ROUNDS
    processes: int = 1
    """The number of fresh processes that each take all rounds; 1 is this process."""
    process: int | None = None
    """The number of this process among several; None for a single one."""
    level: float = LEVEL
    seed: int = 0
    energy: bool = True
    energy_window_s: float = EnergyLimits.window_s
    energy_trials: int = TRIALS_IN_TURNS
    force: bool = False
    """Whether energy is measured even if other processes use the board."""
    command: str = ""
    """The command line, which every record keeps."""
    progress: Progress = lambda done, of, what: None
    watch: Watch | None = None
    """Replaces the device's own watch in tests."""
    pause: Callable[[float], None] = time.sleep
    works: dict[str, PreparedCall] = field(default_factory=dict)
    counted: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Candidate -> the counts of its dispatched operations."""
    failed: dict[str, str] = field(default_factory=dict)
    """Candidate -> why it could not be built or timed."""
    interrupted: str = ""
    """How the user ended the measurement; "" if it went on to its end."""
    identity: str = field(default_factory=new_id)
    """The id of this comparison, which all its records share."""
    threads: int = 0
    """CPU threads of the timed calls; 0: as torch has, or one if the processors are busy."""
    limits: EnergyLimits = field(init=False)
    """The limits for energy; all its intervals together hold at the level."""

    @property
    def pairs(self) -> int:
        """The number of pairs of candidates."""
        return len(self.asked) * (len(self.asked) - 1) // 2

    @property
    def order_seed(self) -> int:
        """The seed of the order of rounds, different in each process."""
        if not self.process:
            return self.seed
        return random.Random(f"{self.seed}/{self.process}").getrandbits(31)

    @property
    def building(self) -> list[str]:
        """The candidates' names in the order in which a process builds and warms them up, as its
        place in memory may favour a candidate. Processes 0 and 1, 2 and 3, ... have one random
        order, which the second process of each two reverses. A single process has the order of
        `asked`."""
        if self.process is None:
            return list(self.asked)
        pair, backwards = divmod(self.process, 2)
        names = list(self.asked)
        random.Random(f"{self.seed}/building/{pair}").shuffle(names)
        return names[::-1] if backwards else names

    @property
    def unit(self) -> str:
        """The source of the test's values: "rounds", or "processes" if there are several."""
        return PROCESSES if self.processes > 1 else "rounds"

    @property
    def samples(self) -> int:
        """The number of the test's values."""
        return self.processes if self.processes > 1 else self.rounds

    @property
    def needed(self) -> int:
        """The number of undisturbed rounds that a process needs. A single process needs as many as
        the test over rounds. Of several processes, whose medians are tested, each needs as many as
        the interval of a median, or all its rounds if fewer are asked for."""
        if self.process is None:
            return rounds_needed(self.pairs, self.level)
        return min(least_number(), self.rounds)

    @property
    def device(self) -> torch.device:
        """The device of all candidates."""
        return torch.device(next(iter(self.asked.values())).device)

    def __post_init__(self) -> None:
        """Set `limits`, those of the energy measurement. Raises MeasureError: it refuses the window
        or the number of trials."""
        try:
            asked = EnergyLimits.in_turns(self.energy_window_s, self.energy_trials)
        except ValueError as error:
            raise MeasureError(str(error)) from None
        self.limits = replace(asked, confidence=1 - self.level / self.pairs, seed=self.seed)

    def prepare(self) -> None:
        """Build every candidate into `works`, call it once, and count its operations unless they
        are counted already; note in `failed` why one cannot be built, called or counted, or, in
        inference, cannot mix one token. Raises MeasureError: fewer than two are built."""
        for name in self.building:
            request = self.asked[name]
            self.progress(0, self.rounds, f"building {name}")
            try:
                require_token(request)
                work = prepare(request)
                work.once()
                if name not in self.counted:
                    self.counted[name] = {
                        "dispatch": dispatched_by(work).to_json(),
                        "zeros": zeros_of(work).to_json(),
                    }
                self.works[name] = work
            except Exception as error:  # a module of a user's own may raise anything
                self.failed[name] = failure(error)
        # in the order of `asked`, which differs from that of `building`
        self.works = {name: self.works[name] for name in self.asked if name in self.works}
        self.require_two(self.works)

    def require_two(self, usable: Mapping[str, Any]) -> None:
        """MeasureError if fewer than two candidates are left."""
        if len(usable) < 2:
            why = "; ".join(f"{name}: {reason}" for name, reason in self.failed.items())
            raise MeasureError(f"fewer than two of the compared modules can be measured: {why}")

    def warmed_up(self) -> dict[str, Visitor]:
        """Warm up the candidates by `visitors`, and return its dict (name -> visitor, a call that
        times one visit), all with one number of threads: `threads` if given, else torch's, or 1 if
        other programs use the processors. On a CPU, `threads` keeps the number."""
        if self.threads:
            torch.set_num_threads(self.threads)
        found = self.visitors()
        if self.threads or self.device.type != "cpu":
            return found
        self.threads = torch.get_num_threads()
        if self.threads == 1 or not others_have_processors(found.values()):
            return found
        self.threads = 1
        return self.warmed_up()

    def visitors(self) -> dict[str, Visitor]:
        """Warm up each candidate, in the order of `building`; return a dict: candidate -> its
        visitor (a call that times one visit), with timed regions of about one duration. If a
        candidate fails, the reason is in `failed`. Raises MeasureError: fewer than two are left."""
        watch = self.watch or watch_for(self.device)
        visitors: dict[str, Visitor] = {}
        for name in filter(self.works.__contains__, self.building):
            work = self.works[name]
            self.progress(0, self.rounds, f"warming up {name}")
            try:
                setting = Instruments(VISIT, timer_for(self.device), watch, self.pause)
                visitors[name] = visitor(work, setting)
            except Exception as error:  # a module of a user's own may raise anything
                self.failed[name] = failure(error)
        visitors = {name: visitors[name] for name in self.works if name in visitors}
        self.require_two(visitors)
        equal_regions(visitors.values())
        return visitors

    def visited(self) -> tuple[Rounds, dict[str, Visitor]]:
        """Take the rounds (in each, every candidate is timed twice), and return them with a dict:
        candidate -> its visitor, the call that times it; after an interrupt by the user, the
        completed rounds."""
        visitors = self.warmed_up()
        found = Rounds(visitors, self.order_seed)
        try:
            found.take(self.rounds, failure, self.report_round)
        except KeyboardInterrupt:
            self.interrupted = f"interrupted after {len(found.orders)} of {self.rounds} rounds"
        self.failed |= found.failed
        return found, visitors

    def report_round(self, done: int) -> None:
        """Report the progress over the rounds."""
        self.progress(done, self.rounds, f"round {done + 1} of {self.rounds}")

    def memory_and_energies(self) -> tuple[dict[str, Measured], PairedEnergy | Unavailable]:
        """Measure memory and energy, and return a dict: candidate -> its peak memory; and the
        energies of all candidates. If the user interrupts, here or before, both are Unavailable."""
        stopped = Unavailable("the comparison was interrupted before the energy was measured")
        if not self.interrupted:
            try:
                return self.memory(), self.energies()
            except KeyboardInterrupt:
                self.interrupted = "interrupted after the last round: no memory and no energy"
        return dict.fromkeys(self.works, stopped), stopped

    def memory(self) -> dict[str, Measured]:
        """Candidate -> its peak memory in bytes; Unavailable except in the first process."""
        if self.process:
            return dict.fromkeys(self.works, Unavailable("measured in the first process alone"))
        self.progress(self.rounds, self.rounds, "measuring memory")
        return {name: peak_of_call(work, str(self.device)) for name, work in self.works.items()}

    def energies(self) -> PairedEnergy | Unavailable:
        """Measure the energies of the candidates that have not failed, in trials that take turns;
        return them, or the reason why there are none, as in every process but the first, or where a
        call needs a long reset before it (a backward pass: a forward pass)."""
        if self.process:
            return Unavailable("energy is measured in the first process alone")
        if not self.energy:
            return NO_ENERGY
        if not all(work.trivial for work in self.works.values()):
            return Unavailable(NO_STEADY_LOAD)
        self.progress(self.rounds, self.rounds, "measuring energy")
        calls = {n: w.timed() for n, w in self.works.items() if n not in self.failed}
        return energies_in_turn(calls, device=self.device, limits=self.limits, force=self.force)


PROBES = 2
"""Visits of each candidate that test whether others use the processors."""


def others_have_processors(visitors: Iterable[Visitor]) -> bool:
    """Visit each candidate `PROBES` times, and return whether one is then `BUSY`: most visits of it
    were preempted, so that the threads of its call wait for one another."""
    listed = list(visitors)
    for each in (*listed, *listed[::-1]) * (PROBES // 2):
        with suppress(Exception):  # reported when the candidate is visited in a round
            each()
    return any(each.grade == BUSY for each in listed)


@dataclass(frozen=True)
class InProcess:
    """The results of one process: records, rows of energy, and why something is missing."""

    records: Mapping[str, Measurement]
    """Candidate -> its record, with the rounds as samples."""
    energy: tuple[Row, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    """Candidate -> why its measurement ended."""
    notes: tuple[str, ...] = ()
    lost: str = ""
    """Why the process gave no results."""
    threads: int = 0
    """`Run.threads`, as the process determined it."""

    @property
    def busy(self) -> bool:
        """Whether other programs had the processors while a candidate was timed."""
        timed = readings_of(self.records.values(), "latency")
        return any(INTERRUPTED in reading.labels or grade_of(reading) == BUSY for reading in timed)

    @property
    def disturbed(self) -> bool:
        """Whether a candidate lacks a latency, because too few rounds were undisturbed."""
        return any("latency" not in record.readings for record in self.records.values())


def measured(made: Run) -> InProcess:
    """Take the rounds (in each, every candidate is timed twice) in this process, with memory and
    energy, and leave torch's number of threads as it was. Raises MeasureError: fewer than two
    candidates run."""
    threads = torch.get_num_threads()
    try:
        return measured_with_threads(made, threads)
    finally:
        torch.set_num_threads(threads)


def measured_with_threads(made: Run, threads: int) -> InProcess:
    """Take the rounds of the comparison `made` in this process, measure memory and energy, and
    return the results. Calls are timed on one thread if others use the processors; memory and
    energy are measured with `threads`, torch's usual number."""
    with on_device(made.device):
        made.prepare()
        rounds, visitors = made.visited()
        logs = {name: each.log for name, each in visitors.items()}
        why = undisturbed_too_few(logs, len(rounds.orders), made.needed)
        # with too few rounds, a candidate without values has a record too, with the reason
        kept = [n for n in visitors if rounds.values[n] or (why and n not in made.failed)]
        latencies: dict[str, Measured] = {
            name: Unavailable(why)
            if why
            else latency_reading(
                name,
                rounds,
                visitors[name],
                made.identity,
                launches=made.counted[name]["dispatch"]["launched"],
            )
            for name in kept
        }
        torch.set_num_threads(threads)  # memory and energy are of the usual number of threads
        memory, energies = made.memory_and_energies()
    reasons = [f"energy: {energies.reason}"] if isinstance(energies, Unavailable) else []
    return InProcess(
        {name: record(made, name, latencies[name], memory, energies) for name in kept},
        tuple(energy_rows(energies)),
        made.failed,
        (*reasons, *([ONE_THREAD_WORDS] if made.threads == 1 < threads else [])),
        threads=made.threads,
    )


def record(
    made: Run,
    name: str,
    latency: Measured,
    memory: Mapping[str, Measured],
    energies: PairedEnergy | Unavailable,
) -> Measurement:
    """Make the record of the candidate `name` of the comparison `made` from its latency, in
    seconds, sample k from round k, and from all candidates' peak memory (`memory`: candidate ->
    bytes) and energies. What is Unavailable, or measured by other commands alone, stands in the
    record's `reasons`; its `sweep` has the comparison's id, the number of processes and that of
    this process (0 is left out)."""
    request = made.asked[name]
    joules: Measured
    if isinstance(energies, Unavailable):
        joules = energies
    else:
        joules = energies.readings.get(name) or Unavailable(
            "the module failed in an earlier measurement"
        )
    readings, reasons = divide(
        {
            "latency": made.works[name].noted(latency),
            "peak_memory": memory[name],
            "energy": made.works[name].noted(joules),
        }
    )
    other = "costmodel compare measures only latency, peak memory and energy"
    reasons |= dict.fromkeys(("peer torch", "peer fvcore", "hardware", "kernels"), other)
    found = record_of(
        request,
        readings=readings,
        reasons=reasons,
        counts={**made.counted[name], "peers": {}, "seed": request.seed},
        environment=environment(request.device),
    )
    place: dict[str, Any] = {"comparison": made.identity, "processes": made.processes}
    place |= {"process": made.process} if made.process else {}
    return by_command(
        structs.replace(subject(request.mixer).flagged(found), sweep=place), made.command
    )


def latency_reading(
    name: str,
    rounds: Rounds,
    visitor: Visitor,
    identity: str,
    method: str = METHOD,
    launches: int | None = None,
) -> Reading:
    """Make the reading of the latency of the candidate `name`, the median over rounds, with the
    details that a later comparison of the rounds needs.

    Args:
        visitor: timed the candidate; `identity`: the comparison's id; `method`: how it times.
        launches: the number of operations that a call launches; None if it was not counted.
    """
    values = rounds.values[name]
    # a candidate that fails is in the order of that round, without a value, and in no later one
    places = [order.index(name) for order in rounds.orders if name in order]
    timer, log = visitor.setting.timer, visitor.log
    details: dict[str, Any] = latency_summary(values) | timer.facts(len(values)) | log.details() | {
        "grade": visitor.grade,
        "stop_rule": "rounds done",
        "method": method,
        "comparison": identity,
        "candidate": name,
        "order_seed": rounds.seed,
        "places": places[: len(values)],  # in the order of each round, from 0
        "block": visitor.block,  # calls in a timed region
        "timer": timer.name,
        "cache": "hot",  # not flushed before a call
        "labels": log.labels,
    }  # fmt: skip
    median = statistics.median(values)
    if launches is not None and isinstance(timer, CudaTimer):
        label = launching_label(median, details["enqueue_s"], launches)  # from `timer.facts`
        details |= {"launch_bound": True} if label == LAUNCH_BOUND else {}
        details["labels"] = [*log.labels, *filter(None, [label])]
    return Reading("latency", median, "s", tuple(values), details)
