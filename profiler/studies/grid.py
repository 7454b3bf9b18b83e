"""A study of mixers: the points of its grid that a device measures, and the points left out.

A *point* is one candidate (a mixer and an implementation) at one set of sizes, in one phase and
dtype. The *manner* of a study is how the user wants it measured: device, rounds, energy, ...
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import structs

from costmodel.errors import SizeError, Unanswered, Unsupported
from costmodel.mixers.load import mixer as load_mixer
from costmodel.program.chosen_sizes import values
from costmodel.program.phases import phase_name
from costmodel.report.document import Document
from costmodel.symbolic.piecewise import Exact
from profiler.counting.dispatch import count_dispatch
from profiler.modules.described import description_of
from profiler.records.keys import key_of
from profiler.records.measurement import Measurement
from profiler.records.words import PHASES, sizes_words
from profiler.run.plan import Plan, requests
from profiler.run.prepare import prepare
from profiler.run.request import OF_ENERGY, Request
from profiler.scaling.derived import ExecutedMixer, executed_operations, live_set_bytes
from profiler.studies.grid_page import parts
from profiler.studies.page import page
from profiler.studies.plan import Scale, StudyPlan, of_device
from profiler.studies.study import (
    Done,
    Manner,
    Progress,
    StudyError,
    counted,
    kind_of,
    manner_words,
    manners,
)
from profiler.sweep import order
from profiler.sweep.joined import joined
from profiler.sweep.points import Block

LAUNCHES = 100_000
"""The limit of launches per call; calls above it are left out (a GPU launch takes some 10 us)."""


@dataclass(frozen=True)
class Planned:
    """The points of a study on a device, and one sentence per limit that leaves points out."""

    blocks: tuple[Block, ...]
    left_out: tuple[str, ...]


@dataclass(frozen=True)
class GridStudy:
    """A study that measures mixers at a grid of sizes."""

    name: str
    """The name in commands: the file name of a built-in study, or the path of a user's plan."""
    plan: StudyPlan

    def planned(self, manner: Manner) -> Planned:
        """Plan the grid of the device that the manner names: the blocks of points, in which the
        candidates at equal sizes take turns in rounds, and sentences on points left out. Raises
        StudyError: no grid for the device, or no length up to `manner.largest`."""
        scale = self.scale(manner.device)
        lengths = values("l", scale.lengths)
        if manner.largest is not None:
            lengths = tuple(l for l in lengths if l <= manner.largest)
        if not lengths:
            raise StudyError(
                f"study {self.name} has the lengths l = {scale.lengths}, none of which is at most "
                f"{manner.largest}: give a larger --largest"
            )
        mixers = tuple(map(load_mixer, self.plan.mixers))
        found: list[Request] = []
        for d in values("d", scale.widths):
            given = {"l": lengths, **dict.fromkeys(("d", *self.plan.as_wide), (d,))}
            # planned for the CPU, as this machine may lack the device
            plan = Plan(mixers, given, self.plan.phases, "all", scale.dtypes, "cpu")
            found += requests(plan, refused=True)
        kept, left = within(found, scale)
        asked = [replace(r, device=manner.device, **manner.options) for r in kept]
        shard = None if manner.shard is None else order.shard(manner.shard)
        blocks = order.grid(asked, manner.rounds or scale.rounds, 0, manner.processes, shard)
        return Planned(tuple(blocks), left)

    def scale(self, device: str) -> Scale:
        """The grid of a kind of device; StudyError if the plan has none."""
        return of_device(self.plan.devices, device, self.name)

    def measure(
        self, manner: Manner, output: Path, progress: Progress, tell: Callable[[str], None]
    ) -> Done:
        """Measure the points that the file `output` lacks, as `costmodel sweep` does, and return a
        sentence per failure and whether each point was measured, ran out of memory or was refused
        (`EXPECTED`). `tell` receives remarks. Raises StudyError: the file holds records of this
        study with other options, or the plan has no grid for the device."""
        from profiler.host.device import device_name
        from profiler.meters.sampler import LatencyLimits
        from profiler.sweep.child import MEASURE
        from profiler.sweep.devices import devices
        from profiler.sweep.failures import EXPECTED
        from profiler.sweep.processes import processes
        from profiler.sweep.report import left_words
        from profiler.sweep.results import MEASURED, Results
        from profiler.sweep.session import sweep

        place = device_name(manner.device)
        planned = self.planned(manner)
        self.refuse_other_manner(planned, output)
        results = Results(output)
        seconds = manner.seconds or self.scale(manner.device).seconds
        limits = LatencyLimits.within(seconds)
        tell(left_words(planned.blocks, results, limits))
        workers = processes(devices(place), manner.device, limits, MEASURE)
        found = sweep(planned.blocks, results, workers, progress=progress, tell=tell)
        state = results.count(planned.blocks)
        points = sum(len(block.points) for block in planned.blocks)
        complete = state[MEASURED] + sum(state[kind] for kind in EXPECTED) == points
        return Done((*results.problems, *found.failures), complete)

    def refuse_other_manner(self, planned: Planned, output: Path) -> None:
        """Raise StudyError if the file has records of this study with other options, such as
        `energy_trials=3`, than the planned points, which all have the same; None without a file."""
        from profiler.records.store import read

        options = next((p.options for block in planned.blocks for p in block.points), {})
        asked = manner_words(options.get("options", {}))
        records = joined(read(output)[0]) if output.exists() else []
        in_file = manners(self.own(records))
        if others := [words for words in in_file if words != asked]:
            raise StudyError(
                f"{output} was measured with {' and '.join(others)}, and this command asks for "
                f"{asked}: name another file by -o"
            )

    def own(self, records: Sequence[Measurement]) -> list[Measurement]:
        """Those of the records that are of this study's mixers."""
        return [record for record in records if record.mixer in self.plan.mixers]

    def page(self, records: Sequence[Measurement], source: str) -> Document:
        """Make the page of the study from the records of its mixers in the file `source`. Raises
        StudyError: the records were measured with different options, all are failures, one has no l
        or no d, or they are of several kinds of device (cpu, cuda)."""
        own = self.own(records)
        if len(several := manners(own)) > 1:
            raise StudyError(
                f"{source} holds records measured with {' and with '.join(several)}: measure each "
                "into a file of its own"
            )
        if not [record for record in own if not record.failure]:
            raise StudyError(
                f"{source} holds no measurement of {', '.join(self.plan.mixers)}: measure with "
                f"costmodel study {self.name} -o FILE.jsonl"
            )
        for record in own:
            if absent := [x for x in ("d", "l") if x not in record.sizes]:
                raise StudyError(
                    f"{source}: record {record.id[:8]} ({record.mixer}) has no size "
                    f"{' and no size '.join(absent)}, which every record of this study has: give a "
                    f"file of costmodel study {self.name} -o FILE.jsonl"
                )
        kind = kind_of(own)
        own.sort(key=self.place)
        found = parts(self.plan, own)
        return page(self.name, self.plan.question, own, source, found, self.left_out(own, kind))

    def place(self, record: Measurement) -> tuple[object, ...]:
        """The sort key of a record on the page, which begins with the mixer's place in the plan."""
        sizes, round_ = record.sizes, record.round
        mixer = self.plan.mixers.index(record.mixer)
        names = (mixer, record.implementation, record.phase, record.dtype)
        return (*names, sizes["d"], sizes["l"], round_, record.created, record.id)

    def left_out(self, records: Sequence[Measurement], kind: str) -> list[str]:
        """Sentences on points that the plan leaves out for a kind of device (cpu, cuda), and on
        planned points without a record; one sentence if the plan has no grid for this kind."""
        if kind not in self.plan.devices:
            return [f"the study has no plan for {kind}"]
        scale = self.plan.devices[kind]
        planned = self.planned(Manner(kind, rounds=1))
        there = {key_of(structs.replace(r, sweep=at_any_energy(r.sweep))) for r in records}
        absent = [
            point.request for block in planned.blocks for point in block.points
            if point.key not in there
        ]  # fmt: skip
        said = [*planned.left_out, *([scale.instead] if scale.instead else [])]
        return said + ([lacking(absent)] if absent else [])


def at_any_energy(sweep: Mapping[str, Any]) -> dict[str, Any]:
    """A record's `sweep` with round 0 and without energy options: the record's key then equals the
    key of its point in a plan of one round, whichever energy options it was measured with."""
    options = {k: v for k, v in sweep.get("options", {}).items() if k not in OF_ENERGY}
    return {**sweep, "round": 0, "options": options}


def within(found: Sequence[Request], scale: Scale) -> tuple[list[Request], tuple[str, ...]]:
    """(requests, sentences): the requests within the scale's limits of operations, live set (bytes
    held at once) and launches; and one sentence per limit that some requests exceed. A request is
    held to a limit only if it is within those before; a figure may equal its limit."""
    limits = (  # (function from a request to its figure, limit or None, words on an excess)
        (partial(derived, executed_operations), scale.operations,
         "executes more than {:.0e} operations by its equations and would take minutes"),
        (partial(derived, live_set_bytes), scale.live_bytes,
         "holds more than {:,} B by its equations, too many for the memory of the machine"),
        (Launches(), LAUNCHES,
         "launches more than {:,} operations, as dispatched at short lengths, and would take "
         "minutes"),
    )  # fmt: skip
    kept, said = list(found), []
    for rule, limit, words in limits:
        if limit is None:
            continue
        fits = [rule(request) <= limit for request in kept]
        if over := [request for request, fit in zip(kept, fits, strict=True) if not fit]:
            points = f"{counted(len(over), 'point')} of the grid whose call"
            said.append(f"{points} {words.format(limit)}: {listed(over)}")
        kept = [request for request, fit in zip(kept, fits, strict=True) if fit]
    return kept, tuple(said)


def derived(rule: Callable[[ExecutedMixer], Exact], request: Request) -> int:
    """The number that `rule` (operations, bytes) derives from the equations for a request; 0 if it
    is not derived, so that no limit leaves the request out."""
    phase = phase_name(request.phase)
    try:
        does = description_of(request.equations, request.implementation, phase)
        asked = ExecutedMixer(request.equations, does, phase, request.dtype, request.sizes)
        return rule(asked).at(request.sizes)
    except (Unsupported, Unanswered, SizeError, ValueError):
        return 0


SHORT = (3, 5)
"""The two lengths at which launches are counted: short, so that a count takes milliseconds, and
above 1, where calls may leave operations out; from 2 on, the launches of all built-in studies are
linear in the length."""


class Launches:
    """Request -> number of launches, extrapolated linearly in l from the operations that the call
    dispatches at two `SHORT` lengths (at a length at which it fails, 0). Launches do not depend on
    d, so that each candidate and phase is counted once."""

    def __init__(self) -> None:
        self.counted: dict[tuple[str, ...], tuple[int, int]] = {}
        """(mixer, implementation, phase) -> launches at the two lengths."""

    def __call__(self, request: Request) -> int:
        """The number of operations that a request's call launches, by its counts at two lengths."""
        candidate = (request.mixer.origin, request.implementation.name, request.phase)
        if candidate not in self.counted:
            self.counted[candidate] = self.at(request, SHORT[0]), self.at(request, SHORT[1])
        first, second = self.counted[candidate]
        return first + (second - first) * (request.sizes["l"] - SHORT[0]) // (SHORT[1] - SHORT[0])

    def at(self, request: Request, length: int) -> int:
        """How many operations a request's call launches at a length, on the CPU; 0 if it fails."""
        sizes = {**request.sizes, **dict.fromkeys({"l", "t"} & {*request.sizes}, length)}
        try:
            work = prepare(replace(request, sizes=sizes, device="cpu"))
            work.restore()
            return count_dispatch(work.bare).launched
        except (RuntimeError, ValueError):
            return 0


def listed(found: Sequence[Request]) -> str:
    """Words on requests, grouped by candidate and phase, with their lengths per width: `she conv
    (forward pass) d = 64: l = 128, 256`."""
    groups: dict[str, dict[int, set[int]]] = {}
    for request in found:
        phase = PHASES[phase_name(request.phase)]
        name = f"{request.mixer.name} {request.implementation.name} ({phase})"
        groups.setdefault(name, {}).setdefault(request.sizes["d"], set()).add(request.sizes["l"])
    said = []
    for name, widths in groups.items():
        parts = [f"d = {d}: l = {', '.join(map(str, sorted(ls)))}" for d, ls in widths.items()]
        said.append(f"{name} {', '.join(parts)}")
    return "; ".join(said)


def lacking(absent: Sequence[Request]) -> str:
    """A sentence on planned points without a record: the number of points of each candidate, and
    the sizes of the longest point."""
    by = Counter(f"{r.mixer.name} {r.implementation.name}" for r in absent)
    named = ", ".join(f"{name} ({number})" for name, number in by.items())
    largest = max(absent, key=lambda r: r.sizes["l"])
    return (
        f"{counted(len(absent), 'point')} of the plan that no record is of: {named}; the longest "
        f"at {sizes_words(largest.sizes)}"
    )
