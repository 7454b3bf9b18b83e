"""How is a study of mixers measured: which grid on which device, and what is left out of it?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from costmodel.errors import SizeError, Unanswered, Unsupported
from costmodel.mixers.load import mixer as load_mixer
from costmodel.program.chosen_sizes import values
from costmodel.program.phases import phase_name
from costmodel.report.document import Document
from costmodel.symbolic.piecewise import Exact
from profiler.counting.dispatch import count_dispatch
from profiler.modules.described import description_of
from profiler.records.measurement import Measurement
from profiler.records.words import PHASES, sizes_words
from profiler.run.plan import Plan, requests
from profiler.run.prepare import prepare
from profiler.run.request import OF_ENERGY, Request
from profiler.scaling.derived import ExecutedMixer, executed_operations, live_set_bytes
from profiler.studies.grid_page import parts
from profiler.studies.page import page
from profiler.studies.plan import Scale, StudyPlan
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
from profiler.sweep.points import Block, key_of

LAUNCHES = 100_000
"""A call that launches more operations is left out: each takes some 10 us to launch on a GPU."""


@dataclass(frozen=True)
class Planned:
    """The points of a study on a device, and a sentence for each way in which some are left out."""

    blocks: tuple[Block, ...]
    left_out: tuple[str, ...]


@dataclass(frozen=True)
class GridStudy:
    """Mixers at a grid of sizes."""

    name: str
    """What is typed: of the studies that come with the project the file's name, else its path."""
    plan: StudyPlan

    @property
    def question(self) -> str:
        """As the page's title asks it."""
        return self.plan.question

    def planned(self, manner: Manner) -> Planned:
        """The grid of a device, candidates at equal sizes in rounds.

        Raises:
            StudyError: no plan for such a device.
        """
        scale = self.scale(manner.device)
        lengths = values("l", scale.lengths)
        if manner.largest is not None:
            lengths = tuple(l for l in lengths if l <= manner.largest)
        if not lengths:
            raise StudyError(
                f"study {self.name} begins at l = {scale.lengths}: {manner.largest} leaves nothing"
            )
        mixers = tuple(map(load_mixer, self.plan.mixers))
        found: list[Request] = []
        for d in values("d", scale.widths):
            given = {"l": lengths, **dict.fromkeys(("d", *self.plan.as_wide), (d,))}
            plan = Plan(mixers, given, self.plan.phases, "all", scale.dtypes, "cpu")
            found += requests(plan, refused=True)
        kept, left = within(found, scale)
        asked = [replace(r, device=manner.device, **manner.options) for r in kept]
        shard = None if manner.shard is None else order.shard(manner.shard)
        blocks = order.grid(asked, manner.rounds or scale.rounds, 0, manner.processes, shard)
        return Planned(tuple(blocks), left)

    def scale(self, device: str) -> Scale:
        """The grid of a kind of device."""
        if device not in self.plan.devices:
            known = ", ".join(self.plan.devices)
            raise StudyError(
                f"study {self.name} has no plan for '{device}': it has one for {known}"
            )
        return self.plan.devices[device]

    def measure(
        self,
        manner: Manner,
        output: Path,
        progress: Progress,
        tell: Callable[[str], None],
    ) -> Done:
        """Measure what the file lacks of the grid, as `costmodel sweep` does; what the device
        reaches at best, too, where the manner asks for it."""
        from profiler.host.device import device_name
        from profiler.meters.sampler import LatencyLimits
        from profiler.sweep.child import MEASURE, MEASURE_WITH_CEILINGS
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
        by = MEASURE_WITH_CEILINGS if manner.with_ceilings else MEASURE
        workers = processes(devices(place), manner.device, limits, by)
        found = sweep(planned.blocks, results, workers, progress=progress, tell=tell)
        state = results.count(planned.blocks)
        points = sum(len(block.points) for block in planned.blocks)
        complete = state[MEASURED] + sum(state[kind] for kind in EXPECTED) == points
        return Done((*results.problems, *found.failures), complete)

    def refuse_other_manner(self, planned: Planned, output: Path) -> None:
        """StudyError where a file holds records of this study that were measured otherwise."""
        from profiler.records.store import read

        options = next((p.options for block in planned.blocks for p in block.points), {})
        asked = manner_words(options.get("options", {}))
        records = joined(read(output)[0]) if output.exists() else []
        there = manners(self.own(records))
        if others := [words for words in there if words != asked]:
            raise StudyError(
                f"{output} was measured with {' and '.join(others)}, and this asks for {asked}: "
                f"give another file"
            )

    def own(self, records: Sequence[Measurement]) -> list[Measurement]:
        """The records of this study's mixers."""
        return [record for record in records if record.mixer in self.plan.mixers]

    def page(self, records: Sequence[Measurement], source: str) -> Document:
        """The page, from records of this study's mixers."""
        own = self.own(records)
        if len(several := manners(own)) > 1:
            raise StudyError(
                f"{source} holds records measured with {' and with '.join(several)}: a page is "
                f"about one of them, so that each needs a file of its own"
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
                    f"{' and no size '.join(absent)}, which every record of this study has"
                )
        kind = kind_of(own)
        own.sort(key=self.place)
        found = parts(self.plan, own)
        return page(self.name, self.question, own, source, found, self.left_out(own, kind))

    def place(self, record: Measurement) -> tuple[object, ...]:
        """Where a record stands on the page: mixers as the study names them, whatever order they
        were measured in."""
        sizes, round_ = record.sizes, record.sweep.get("round", 0)
        mixer = self.plan.mixers.index(record.mixer)
        names = (mixer, record.implementation, record.phase, record.dtype)
        return (*names, sizes["d"], sizes["l"], round_, record.created, record.id)

    def left_out(self, records: Sequence[Measurement], kind: str) -> list[str]:
        """What the device's plan leaves out, and what of it the records lack."""
        if kind not in self.plan.devices:
            return [f"the study has no plan for {kind}"]
        scale = self.plan.devices[kind]
        planned = self.planned(Manner(kind, rounds=1))
        there = {key_of(replace(r, sweep=at_any_energy(r.sweep))) for r in records}
        absent = [
            point.request for block in planned.blocks for point in block.points
            if point.key not in there
        ]  # fmt: skip
        said = [*planned.left_out, *([scale.instead] if scale.instead else [])]
        return said + ([lacking(absent)] if absent else [])


def at_any_energy(sweep: Mapping[str, Any]) -> dict[str, Any]:
    """What a record keeps of a sweep, in round 0 and however its energy was measured."""
    options = {k: v for k, v in sweep.get("options", {}).items() if k not in OF_ENERGY}
    return {**sweep, "round": 0, "options": options}


def within(found: Sequence[Request], scale: Scale) -> tuple[list[Request], tuple[str, ...]]:
    """The requests that a device can be asked for, and a sentence on those that it cannot."""
    limits = (
        (partial(derived, executed_operations), scale.operations,
         "executes more than {:.0e} operations, as derived, and would take minutes"),
        (partial(derived, live_set_bytes), scale.live_bytes,
         "holds more than {:,} B, as derived, which the machine shares with everything else"),
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
    """What the equations give for a request; 0 where they give nothing, so that it is tried."""
    phase = phase_name(request.phase)
    try:
        does = description_of(request.equations, request.implementation, phase)
        asked = ExecutedMixer(request.equations, does, phase, request.dtype, request.sizes)
        return rule(asked).at(request.sizes)
    except (Unsupported, Unanswered, SizeError, ValueError):
        return 0


SHORT = (3, 5)
"""Lengths at which launches are counted."""


class Launches:
    """The operations that a call launches, as dispatched at two short lengths and continued as a
    line in l; 0 where it does not run there, so that it is tried. Width does not change them."""

    def __init__(self) -> None:
        self.counted: dict[tuple[str, ...], tuple[int, int]] = {}
        """At the two lengths, by candidate and phase."""

    def __call__(self, request: Request) -> int:
        candidate = (request.mixer.origin, request.implementation.name, request.phase)
        if candidate not in self.counted:
            self.counted[candidate] = self.at(request, SHORT[0]), self.at(request, SHORT[1])
        first, second = self.counted[candidate]
        return first + (second - first) * (request.sizes["l"] - SHORT[0]) // (SHORT[1] - SHORT[0])

    def at(self, request: Request, length: int) -> int:
        """Launched at a length."""
        sizes = {**request.sizes, **dict.fromkeys({"l", "t"} & {*request.sizes}, length)}
        try:
            work = prepare(replace(request, sizes=sizes, device="cpu"))
            work.restore()
            return count_dispatch(work.bare).launched
        except (RuntimeError, ValueError):
            return 0


def listed(found: Sequence[Request]) -> str:
    """Requests by candidate and phase, with the lengths and widths that they are about."""
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
    """What of the plan is in no record."""
    by = Counter(f"{r.mixer.name} {r.implementation.name}" for r in absent)
    named = ", ".join(f"{name} ({number})" for name, number in by.items())
    largest = max(absent, key=lambda r: r.sizes["l"])
    return (
        f"{counted(len(absent), 'point')} of the plan that no record is of: {named}; the longest "
        f"at {sizes_words(largest.sizes)}"
    )
