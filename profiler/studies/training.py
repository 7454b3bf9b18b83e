"""A study of networks: their measured training times, relative to a baseline, and printed ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from msgspec.structs import replace

from costmodel.networks import model
from costmodel.questions.question import Missing
from costmodel.report.document import (
    Cell,
    Column,
    Document,
    Heading,
    Note,
    Paragraph,
    Part,
    Table,
)
from profiler.compare.rows import rows_of, runs_in
from profiler.compare.verdict import LEVEL, Verdict
from profiler.meters.energy.protocol import EnergyLimits
from profiler.records.measurement import Measurement
from profiler.run.report import COLUMNS as MEASURED
from profiler.studies.page import page
from profiler.studies.plan import TrainingPlan, of_device
from profiler.studies.published_times import PrintedTime, printed_times
from profiler.studies.ratios import Ratio, bytes_ratio, energy_ratio
from profiler.studies.study import Done, Manner, Progress, StudyError, manner_words, manners
from profiler.studies.training_rounds import OWN_LIMITS, Training


@dataclass(frozen=True)
class TrainingStudy:
    """A study that times training steps of networks in turns."""

    name: str
    """The name in commands: the file name of a built-in study, or the path of a user's plan."""
    plan: TrainingPlan

    def measure(
        self,
        manner: Manner,
        output: Path,
        progress: Progress,
        tell: Callable[[str], None],
    ) -> Done:
        """Measure all networks and add their records to the file `output`, unless the last run in
        the file holds all networks, measured with these options on this device. Return the failures
        and whether every network has a record. `manner.rounds` and `manner.largest` replace the
        plan's rounds and steps of a visit. `tell` is not used: other studies need it. Raises
        StudyError: an option that a comparison of networks does not have, energy options out of
        range, or a plan without this kind of device."""
        from profiler.host.device import device_name
        from profiler.records.store import append, read
        from profiler.sweep.results import writable

        if manner.shard is not None:
            raise StudyError(f"study {self.name} is one comparison: leave out --shard")
        if manner.processes > 1:
            raise StudyError(f"study {self.name} runs in one process: leave out --processes")
        place = device_name(manner.device)
        amount = of_device(self.plan.devices, manner.device, self.name)
        amount = replace(
            amount, rounds=manner.rounds or amount.rounds, steps=manner.largest or amount.steps
        )
        writable(output)
        names = self.networks()
        options = {k: v for k, v in manner.options.items() if v != OWN_LIMITS[k]}
        asked = {**OWN_LIMITS, **options}
        try:
            EnergyLimits.in_turns(asked["energy_window_s"], asked["energy_trials"])
        except ValueError as error:
            raise StudyError(str(error)) from None
        training = Training(names, amount, place, progress=progress, options=options)
        last = latest(read(output)[0]) if output.exists() else {}
        made = manners([*last.values()]) == [manner_words(options)]
        if made and set(last) == set(names) and all(map(training.made, last.values())):
            return Done()
        records = training.records()
        for record in records:
            append(output, record)
        failures = tuple(f"{name}: {why}" for name, why in training.failed.items())
        return Done(failures, len(records) == len(names))

    def networks(self) -> list[str]:
        """The names of the networks: the baseline, then the others in the printed order."""
        found = printed_times(self.plan.printed)
        return list(dict.fromkeys([*(p.against for p in found), *(p.model for p in found)]))

    def page(self, records: Sequence[Measurement], source: str) -> Document:
        """Make the page of the last run in the records, which come from the file `source`. Raises
        StudyError: the run lacks the baseline (the first network) or has no other network."""
        found = latest(records)
        baseline = self.networks()[0]
        if baseline not in found or len(found) < 2:
            raise StudyError(
                f"the last run in {source} lacks {baseline} or has no other network: measure with "
                f"costmodel study {self.name} -o FILE.jsonl"
            )
        ratios = ratios_to(baseline, found)
        compared = [
            Compared(printed, found[baseline], found.get(printed.model), ratios)
            for printed in printed_times(self.plan.printed)
        ]
        parts: list[Part] = [
            Heading("Measured, printed and derived"),
            Paragraph((overall(compared),)),
            table(compared, found[baseline], self.plan.printed),
            costs(found),
        ]
        left = left_out(self.plan, found)
        return page(self.name, self.plan.question, [*found.values()], source, parts, left)


@dataclass(frozen=True)
class Compared:
    """One network compared with the baseline: printed, measured (if `record`) and derived."""

    printed: PrintedTime
    base: Measurement
    record: Measurement | None
    ratios: Mapping[str, Verdict]

    @property
    def verdict(self) -> Verdict:
        """The measured ratio of the network's time to the baseline's, or why there is none."""
        name = self.printed.model
        missing = Verdict(self.base.mixer, name, 0, refused=f"{name} was not measured")
        return self.ratios.get(name, missing)

    @property
    def derived(self) -> float:
        """The ratio of the derived operations of a training step, network over baseline, by the
        counting convention of the printed claim, which counts masked pairs as the thesis does."""
        b = self.base.sizes["b"]
        convention = self.printed.claim.convention
        return step_operations(self.printed.model, convention, b) / step_operations(
            self.printed.against, convention, b
        )

    def place_of(self, value: float) -> str:
        """Words on whether a ratio lies below, inside or above the measured confidence interval, or
        "not compared" without one."""
        low, high = self.verdict.ci_low, self.verdict.ci_high
        if low is None or high is None:
            return "not compared"
        if value < low:
            return "below the interval"
        return "above the interval" if value > high else "inside the interval"

    @property
    def printed_place(self) -> str:
        """Whether the printed ratio lies below, inside or above the measured interval: "inside the
        interval" if any number that rounds to the printed ratio is inside."""
        places = [self.place_of(v) for v in (self.printed.low, self.printed.high)]
        return places[0] if places[0] == places[1] else "inside the interval"


@cache
def step_operations(name: str, convention: tuple[str, ...], batch: int) -> int:
    """The operations of a training step of a network on a batch of `batch` sequences, without the
    optimiser's, by the counting options `convention`."""
    return model(name).count("training-step", ",".join(convention)).at(b=batch).total


def latest(records: Sequence[Measurement]) -> dict[str, Measurement]:
    """A dict: network -> record, of the last run in the records; {} if there is no run."""
    runs = runs_in([record for record in records if "network" in record.counts])
    return {name: next(iter(own.values())) for name, own in runs[-1].items()} if runs else {}


def ratios_to(baseline: str, found: Mapping[str, Measurement]) -> dict[str, Verdict]:
    """A dict: network -> verdict on its time over the baseline's, paired by rounds."""
    run = {name: {0: found[name]} for name in (baseline, *found)}  # 0: the only record of each
    verdicts = (row.verdict for row in rows_of(run, LEVEL) if row.quantity == "latency")
    return {each.second: each for each in verdicts if each.first == baseline}


def overall(compared: Sequence[Compared]) -> str:
    """A sentence: how many printed and how many derived ratios lie in the measured intervals, and
    whether measured and derived ratios order the networks as the printed ratios do."""
    known = [c for c in compared if not c.verdict.refused and c.verdict.ratio is not None]
    if not known:
        return "No ratio was measured with an interval, so the printed ratios are not judged."
    inside = sum(c.printed_place == "inside the interval" for c in known)
    derived = sum(c.place_of(c.derived) == "inside the interval" for c in known)
    orders = [
        [c.printed.model for c in sorted(known, key=by)]
        for by in (
            lambda c: c.printed.ratio,
            lambda c: c.verdict.ratio or 0.0,
            lambda c: c.derived,
        )
    ]
    same, theory = (
        "in the order of the printed ones" if orders[0] == own else f"in the order {', '.join(own)}"
        for own in orders[1:]
    )
    return (
        f"Of {len(known)} printed ratios, {inside} lie in the measured interval; of the derived "
        f"ratios of operations, {derived}. The measured medians stand {same}, the derived "
        f"operations {theory}."
    )


COLUMNS = (
    Column("network", "network", numeric=False, names=True),
    Column("measured", "measured, of the baseline's"),
    Column("interval", "interval"),
    Column("differs", "differs", numeric=False),
    Column("printed", "printed"),
    Column("place", "printed lies", numeric=False),
    Column("derived", "operations, derived"),
    Column("derived_place", "operations lie", numeric=False),
    Column("memory", "peak memory", numeric=False),
    Column("energy", "energy", numeric=False),
)


def table(compared: Sequence[Compared], base: Measurement, printed: str) -> Table:
    """Make the table of all networks compared with the baseline, a row each. `base` is the
    baseline's record, with a latency; `printed` names the paper's table."""
    rows = tuple(_row(each) for each in compared)
    taken = len(base.readings["latency"].samples)
    notes = (
        Note((f"interval: of the median ratio over {taken} rounds in turn; all pairs of networks "
              f"hold together at {100 * (1 - LEVEL):g} %",)),
        Note((f"printed: {printed}, changes in percent as ratios of the baseline's time; every "
              f"number that rounds to the printed one counts as printed",)),
        Note(("operations: of a training step without its optimiser, with masked pairs",)),
    )  # fmt: skip
    title = f"A training step, relative to {base.mixer}"
    return Table(title, COLUMNS, rows, notes)


def _row(each: Compared) -> tuple[Cell, ...]:
    """The table's row of one network: its name; the measured ratio of its time to the baseline's,
    the interval, whether they differ; the printed ratio, its place in the interval, the derived one
    and its place; ratios of memory and energy. Cells of what was not measured are missing."""
    v = each.verdict
    measured: tuple[Cell, ...] = (Missing(v.refused),) * 3
    if v.ratio is not None:
        differs = "yes" if v.differs else "not shown"
        measured = (f"{v.ratio:.3f}", f"{v.ci_low:.3f} to {v.ci_high:.3f}", differs)
    memory, energy = (
        Ratio(refused=f"{each.printed.model} was not measured")
        if each.record is None
        else rule([each.base], [each.record])
        for rule in (bytes_ratio, energy_ratio)
    )
    return (
        each.printed.model, *measured, f"{each.printed.ratio:.4f}", each.printed_place,
        f"{each.derived:.3f}", each.place_of(each.derived), memory.cell(), energy.cell(),
    )  # fmt: skip


COSTS = ("latency", "peak memory", "energy", "per token")
"""The columns of `costmodel profile` that `costs` shows."""


def costs(found: Mapping[str, Measurement]) -> Table:
    """Make the table of latency, memory and energy of each network's training step."""
    shown = [(column, cell) for column, cell in MEASURED if column.name in COSTS]
    columns = (COLUMNS[0], *(column for column, _ in shown))
    rows = tuple((name, *(cell(record) for _, cell in shown)) for name, record in found.items())
    return Table("A training step of each", columns, rows)


def left_out(plan: TrainingPlan, found: Mapping[str, Measurement]) -> list[str]:
    """Sentences on how the measured steps differ from the printed trainings: number of steps, size
    of the batch, and what the plan says besides."""
    record = next(iter(found.values()))
    b, steps = record.sizes["b"], record.counts["network"]["steps"]
    instead = f"in place of {plan.iterations:,} iterations"
    said = [f"{steps} timed training steps of each network, {instead}"]
    if b != plan.batch:
        said.append(f"{b} sequences in a batch, in place of {plan.batch}")
    return [*said, *plan.otherwise]
