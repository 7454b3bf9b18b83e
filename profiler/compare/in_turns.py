"""Which of several implementations takes less time, memory and energy, measured in turns?"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations as pairs_of
from pathlib import Path
from typing import Any

import torch

from costmodel.language.equations import Mixer
from costmodel.program.chosen_sizes import Given
from profiler.compare.verdict import LEVEL, Rounds, Verdict, rounds_needed, too_few, verdicts
from profiler.host.device import on_device
from profiler.host.environment import environment
from profiler.meters.disturbances import Watch, watch_for
from profiler.meters.energy.estimate import PairedEnergy
from profiler.meters.energy.protocol import TRIALS_IN_TURNS, EnergyLimits
from profiler.meters.latency import LAUNCH_BOUND
from profiler.meters.nvml import energies_in_turn
from profiler.meters.rounds import (
    VISIT,
    Visitor,
    equal_regions,
    undisturbed_too_few,
    visitor,
)
from profiler.meters.sampler import Instruments, latency_summary
from profiler.meters.timers import CudaTimer, timer_for
from profiler.records.measurement import Measurement, divide, new_id
from profiler.records.reading import Measured, MeasureError, Reading, Unavailable
from profiler.records.store import append
from profiler.run.lower_bounds import flagged
from profiler.run.measure import (
    NO_ENERGY,
    NO_STEADY_LOAD,
    dispatched_by,
    failure,
    peak_of_call,
    require_token,
    zeros_of,
)
from profiler.run.plan import Plan, requests
from profiler.run.prepare import PreparedCall, prepare
from profiler.run.request import Request
from profiler.sweep.results import writable
from profiler.sweep.session import by_command

ROUNDS = 20
METHOD = (
    "rounds of all candidates in random order and backwards; a sample is the mean of the two "
    "visits of a round, a visit the median of its timed regions after an untimed call; a disturbed "
    "visit is taken anew, and so is its round where it stays disturbed"
)

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Row:
    """Two candidates compared in one quantity; values are those of the two in `unit`."""

    quantity: str
    verdict: Verdict
    unit: str = ""
    first: float | None = None
    second: float | None = None
    point: str = ""
    """Where files are compared: the sizes, dtype and phase of both records."""


@dataclass(frozen=True)
class Comparison:
    """What was compared, and what must be known of it."""

    rows: tuple[Row, ...]
    level: float = LEVEL
    records: tuple[Measurement, ...] = ()
    """One a candidate, the rounds as samples; none where files were compared."""
    notes: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    """What was asked for and could not be done."""


@dataclass(frozen=True)
class Asked:
    """What to compare: each mixer with the implementations that were named with it."""

    named: Sequence[tuple[Mixer, str | None]]
    given: Given = field(default_factory=dict)
    phase: str = "training"
    implementation: str = "all"
    dtype: str = "fp32"
    device: str | None = None
    seed: int = 0


def candidates(asked: Asked) -> dict[str, Request]:
    """The candidates by name: mixer and implementation, with the dtype where there are several.

    Raises:
        MeasureError: fewer than two of them, or several values of a size.
    """
    several = [letter for letter, values in asked.given.items() if len(values) > 1]
    if several:
        raise MeasureError(
            f"compare takes one value of each size, and --{several[0]} has several: costmodel "
            f"sweep measures grids, and compare A.jsonl B.jsonl compares them point by point"
        )
    plain = [mixer for mixer, implementation in asked.named if implementation is None]
    found: list[Request] = []
    taken = False
    for mixer, implementation in asked.named:
        if implementation is None and taken:
            continue
        taken = taken or implementation is None
        mixers = plain if implementation is None else [mixer]
        wanted = asked.implementation if implementation is None else implementation
        plan = (mixers, asked.given, (asked.phase,), wanted, asked.dtype, asked.device, asked.seed)
        found += requests(Plan(*plan))
    if len(found) < 2:
        listed = "".join(f": {r.mixer.name} {r.implementation.name}" for r in found)
        raise MeasureError(f"two candidates or more are compared, and this is {len(found)}{listed}")
    return with_names(found)


def with_names(found: Sequence[Request]) -> dict[str, Request]:
    """Requests by names that tell them apart; the same one twice is a test of the comparison."""
    dtypes = len({request.dtype for request in found}) > 1
    seen: Counter[str] = Counter()
    named = {}
    for request in found:
        name = f"{request.mixer.name} {request.implementation.name}"
        name += f" {request.dtype}" if dtypes else ""
        seen[name] += 1
        named[name if seen[name] == 1 else f"{name} #{seen[name]}"] = request
    return named


@dataclass
class Run:
    """A comparison as it is being measured.

    Raises:
        MeasureError: energy in windows that are too short, or a number of trials that cannot take
            turns.
    """

    asked: Mapping[str, Request]
    rounds: int = ROUNDS
    level: float = LEVEL
    seed: int = 0
    energy: bool = True
    energy_window_s: float = EnergyLimits.window_s
    energy_trials: int = TRIALS_IN_TURNS
    force: bool = False
    command: str = ""
    """What was typed; every record keeps it."""
    progress: Progress = lambda done, of, what: None
    watch: Watch | None = None
    """In place of the device's own, in tests."""
    pause: Callable[[float], None] = time.sleep
    works: dict[str, PreparedCall] = field(default_factory=dict)
    counted: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Candidate -> what it dispatches."""
    failed: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    identity: str = field(default_factory=new_id)
    limits: EnergyLimits = field(init=False)
    """How energy is measured; all its intervals together hold at the level."""

    @property
    def pairs(self) -> int:
        """How many pairs are compared if all candidates run."""
        return len(self.asked) * (len(self.asked) - 1) // 2

    @property
    def device(self) -> torch.device:
        """Where all of it runs."""
        return torch.device(next(iter(self.asked.values())).device)

    def __post_init__(self) -> None:
        try:
            asked = EnergyLimits.in_turns(self.energy_window_s, self.energy_trials)
        except ValueError as error:
            raise MeasureError(str(error)) from None
        self.limits = replace(asked, confidence=1 - self.level / self.pairs, seed=self.seed)

    def prepare(self) -> None:
        """Every candidate built, or the reason why it cannot be."""
        for name, request in self.asked.items():
            self.progress(0, self.rounds, f"building {name}")
            try:
                require_token(request)
                work = prepare(request)
                work.once()
                self.counted[name] = {
                    "dispatch": dispatched_by(work).to_json(),
                    "zeros": zeros_of(work).to_json(),
                }
                self.works[name] = work
            except Exception as error:  # a module of a user's own may raise anything
                self.failed[name] = failure(error)
        self.require_two(self.works)

    def require_two(self, usable: Mapping[str, Any]) -> None:
        """MeasureError where fewer than two candidates are left."""
        if len(usable) < 2:
            why = "; ".join(f"{name}: {reason}" for name, reason in self.failed.items())
            raise MeasureError(f"fewer than two candidates can be measured: {why}")

    def visited(self) -> tuple[Rounds, dict[str, Visitor]]:
        """All rounds; those that were whole where the user interrupts."""
        watch = self.watch or watch_for(self.device)
        visitors: dict[str, Visitor] = {}
        for name, work in self.works.items():
            self.progress(0, self.rounds, f"warming up {name}")
            try:
                setting = Instruments(VISIT, timer_for(self.device), watch, self.pause)
                visitors[name] = visitor(work, setting)
            except Exception as error:  # as above
                self.failed[name] = failure(error)
        self.require_two(visitors)
        equal_regions(visitors.values())
        found = Rounds(visitors, self.seed)
        try:
            found.take(self.rounds, failure, self.tell_round)
        except KeyboardInterrupt:
            self.notes.append(f"interrupted after {len(found.orders)} of {self.rounds} rounds")
        self.failed |= found.failed
        return found, visitors

    def tell_round(self, done: int) -> None:
        """Progress over the rounds."""
        self.progress(done, self.rounds, f"round {done + 1} of {self.rounds}")

    def besides(self) -> tuple[dict[str, Measured], PairedEnergy | Unavailable]:
        """Memory and energy, unless the user interrupts."""
        stopped = Unavailable("the comparison was interrupted before")
        if not self.notes:
            try:
                return self.memory(), self.energies()
            except KeyboardInterrupt:
                self.notes.append("interrupted after the last round: no memory and no energy")
        return dict.fromkeys(self.works, stopped), stopped

    def memory(self) -> dict[str, Measured]:
        """The peak of each candidate's memory."""
        self.progress(self.rounds, self.rounds, "measuring memory")
        return {name: peak_of_call(work, str(self.device)) for name, work in self.works.items()}

    def energies(self) -> PairedEnergy | Unavailable:
        """Energy of those that run, in trials that take turns."""
        if not self.energy:
            return NO_ENERGY
        if not all(work.trivial for work in self.works.values()):
            return Unavailable(NO_STEADY_LOAD)
        self.progress(self.rounds, self.rounds, "measuring energy")
        calls = {n: w.timed() for n, w in self.works.items() if n not in self.failed}
        return energies_in_turn(calls, device=self.device, limits=self.limits, force=self.force)


def run(made: Run, output: Path | None = None) -> Comparison:
    """Measure in turns and compare; with `output`, append one record a candidate.

    Raises:
        MeasureError: too few rounds to show anything, or fewer than two candidates that run.
        StoreError: the file cannot be written: said before anything is measured.
    """
    if why := too_few(made.rounds, made.pairs, made.level):
        raise MeasureError(why)
    if output is not None:
        writable(output)
    with on_device(made.device):
        made.prepare()
        rounds, visitors = made.visited()
        memory, energies = made.besides()
    logs = {name: each.log for name, each in visitors.items()}
    why = undisturbed_too_few(logs, len(rounds.orders), rounds_needed(made.pairs, made.level))
    kept = [name for name in visitors if rounds.values[name] or (why and name not in made.failed)]
    latencies: dict[str, Measured] = {
        name: Unavailable(why) if why else latency_reading(made, name, rounds, visitors[name])
        for name in kept
    }
    records = tuple(record(made, name, latencies[name], memory, energies) for name in kept)
    if output is not None:
        for each in records:
            append(output, each)
    rows = (
        *(
            not_compared(made.asked, why)
            if why
            else latency_rows(rounds.values, made.level, made.failed, list(made.asked))
        ),
        *memory_rows(memory),
        *energy_rows(energies),
    )
    reasons = [f"energy: {energies.reason}"] if isinstance(energies, Unavailable) else []
    failures = [f"{name}: {why}" for name, why in made.failed.items()]
    return Comparison(rows, made.level, records, tuple(reasons), (*failures, *made.notes))


def not_compared(names: Iterable[str], why: str) -> list[Row]:
    """Every two candidates' latencies, of which nothing is known."""
    return [Row("latency", Verdict(a, b, 0, refused=why), "s") for a, b in pairs_of(names, 2)]


def latency_rows(
    values: Mapping[str, Sequence[float]],
    level: float,
    failed: Mapping[str, str],
    names: Sequence[str],
    unit: str = "rounds",
) -> list[Row]:
    """Every two candidates' latencies, tested over the rounds."""
    found = verdicts({name: values.get(name, []) for name in names}, level, failed, unit)
    middle = {name: statistics.median(taken) for name, taken in values.items() if taken}
    return [Row("latency", v, "s", middle.get(v.first), middle.get(v.second)) for v in found]


def memory_rows(found: Mapping[str, Measured]) -> list[Row]:
    """Every two candidates' bytes, which are compared exactly."""
    return [exact(a, b, found[a], found[b]) for a, b in pairs_of(found, 2)]


def exact(first: str, second: str, a: Measured | None, b: Measured | None) -> Row:
    """Two readings that repeat to the byte: equal or not, with no interval."""
    for name, reading in ((first, a), (second, b)):
        if not isinstance(reading, Reading):
            why = reading.reason if isinstance(reading, Unavailable) else "was not measured"
            return Row("peak_memory", Verdict(first, second, 0, refused=f"{name}: {why}"))
        if reading.details.get("agree") is False:
            why = f"{name}: its runs do not agree to the byte"
            return Row("peak_memory", Verdict(first, second, 0, refused=why))
    assert isinstance(a, Reading) and isinstance(b, Reading)
    ratio = b.value / a.value if a.value else None
    verdict = Verdict(first, second, 1, ratio, differs=a.value != b.value)
    return Row("peak_memory", verdict, a.unit, a.value, b.value)


def energy_rows(found: PairedEnergy | Unavailable) -> list[Row]:
    """Every two candidates' gross energies: the interval of the ratio decides, by Student's t."""
    if isinstance(found, Unavailable):
        return []
    rows = []
    for a, b in pairs_of(found.readings, 2):
        ratio = found.ratio(b, a)
        apart = not ratio.ci_low <= 1 <= ratio.ci_high
        interval = (ratio.value, ratio.ci_low, ratio.ci_high, found.confidence)
        verdict = Verdict(a, b, len(ratio.samples), *interval, differs=apart)
        values = (found.readings[a].value, found.readings[b].value)
        rows.append(Row("energy", verdict, "J", *values))
    return rows


def record(
    made: Run,
    name: str,
    latency: Measured,
    memory: Mapping[str, Measured],
    energies: PairedEnergy | Unavailable,
) -> Measurement:
    """What was measured of a candidate; sample k of its latency is that of round k."""
    request = made.asked[name]
    joules: Measured
    if isinstance(energies, Unavailable):
        joules = energies
    else:
        joules = energies.readings.get(name) or Unavailable("the candidate failed before")
    readings, reasons = divide(
        {
            "latency": made.works[name].noted(latency),
            "peak_memory": memory[name],
            "energy": made.works[name].noted(joules),
        }
    )
    other = "it was not measured: costmodel compare measures latency, peak memory and energy"
    reasons |= dict.fromkeys(("peer torch", "peer fvcore", "hardware", "kernels"), other)
    step = request.phase == "inference"
    found = Measurement(
        mixer=request.mixer.origin,
        implementation=request.implementation.name,
        form=(request.implementation.step_form or "") if step else request.implementation.form,
        sizes=dict(request.sizes),
        dtype=request.dtype,
        phase=request.phase,
        device=request.device,
        readings=readings,
        reasons=reasons,
        counts={
            **made.counted[name],
            "peers": {},
            "seed": request.seed,
        },
        environment=environment(request.device),
    )
    return by_command(flagged(found, request.mixer), made.command)


def latency_reading(made: Run, name: str, rounds: Rounds, visitor: Visitor) -> Reading:
    """The median over rounds, with what is needed to compare the rounds again."""
    values = rounds.values[name]
    places = [order.index(name) for order in rounds.orders if name in order]
    timer, log = visitor.setting.timer, visitor.log
    details: dict[str, Any] = latency_summary(values) | timer.facts(len(values)) | log.details() | {
        "stop_rule": "rounds done",
        "method": METHOD,
        "comparison": made.identity,
        "candidate": name,
        "order_seed": made.seed,
        "places": places[: len(values)],
        "block": visitor.block,
        "timer": timer.name,
        "cache": "hot",
        "labels": log.labels,
    }  # fmt: skip
    median = statistics.median(values)
    if isinstance(timer, CudaTimer) and median < LAUNCH_BOUND * details["enqueue_s"]:
        details |= {"launch_bound": True, "labels": [*log.labels, "launch-bound"]}
    return Reading("latency", median, "s", tuple(values), details)
