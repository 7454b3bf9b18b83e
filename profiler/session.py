"""How is a plan measured so that nothing already measured is lost?

Every record is written before the next measurement starts; what fails becomes a sentence and stops
nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import costmodel as cm
from costmodel.equations import Mixer
from costmodel.requests import fit
from profiler.ladder import Ladder
from profiler.measure import MeasureError, Request, measure
from profiler.meters.latency import LatencyLimits
from profiler.modules import Implementation
from profiler.plan import described, is_class, users_class
from profiler.reconcile import ladder
from profiler.store import Measurement, StoreError, append, read

Progress = Callable[[int, int, str], None]
"""Told how many measurements are done, how many there are, and what happens now."""


@dataclass
class Session:
    """What was measured, and one sentence for each way in which measurements failed."""

    measurements: list[Measurement] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def run(
    requests: Sequence[Request],
    output: Path | None = None,
    *,
    limits: LatencyLimits | None = None,
    progress: Progress = lambda done, of, what: None,
) -> Session:
    """Measure requests one by one, appending each record to `output` as it is taken.

    Raises:
        StoreError: the file cannot be written: said before anything is measured, unless the disk
            fills up meanwhile; what was measured before is in it.
    """
    if output is not None:
        writable(output)
    session = Session()
    for done, request in enumerate(requests):
        label = f"{request.mixer.name} {request.implementation.name}"

        def note(what: str, done: int = done, label: str = label) -> None:
            progress(done, len(requests), f"{label}: {what}")

        try:
            found = measure(request, limits=limits, note=note)
        except MeasureError as error:
            if str(error) not in session.failures:
                session.failures.append(str(error))
            continue
        if output is not None:
            append(output, found)
        session.measurements.append(found)
    progress(len(requests), len(requests), "done")
    return session


def writable(path: Path) -> None:
    """StoreError where nothing can be appended to a file; one that is not there stays so."""
    existed = path.exists()
    try:
        path.open("ab").close()
        if not existed:
            path.unlink()
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from None


def ladders(measurements: Sequence[Measurement]) -> tuple[list[Ladder], list[str]]:
    """The ladder of every record whose mixer and implementation are known; sentences for the
    others."""
    found: list[Ladder] = []
    problems: list[str] = []
    for record in measurements:
        label = f"record {record.id[:8]} ({record.mixer})"
        try:
            mixer = cm.mixer(record.mixer)
            fit(mixer, record.sizes)
            found.append(ladder(record, mixer, implementation_of(mixer, record.implementation)))
        except ValueError as error:
            problems.append(f"{label}: {error}")
        except KeyError as error:  # counts are read as they stand
            problems.append(f"{label} lacks {error}, which every measurement of schema 1 has")
        except (AttributeError, TypeError) as error:
            problems.append(f"{label} is not as schema 1 writes it: {error}")
    return found, problems


def implementation_of(mixer: Mixer, name: str) -> Implementation:
    """The implementation that a record names.

    Raises:
        MeasureError: it does not exist (any more).
    """
    if is_class(name):
        return users_class(mixer, name)
    known = described(mixer)
    if name not in known:
        raise MeasureError(f"no implementation '{name}': {mixer.name} has {', '.join(known)}")
    return known[name]


def recorded(path: Path) -> tuple[list[Measurement], list[str]]:
    """The records of a results file, and a sentence for every line that is none.

    Raises:
        StoreError: the file cannot be read, or holds no record at all.
    """
    records, problems = read(path)
    if not records:
        detail = f": {problems[0]}" if problems else ""
        raise StoreError(f"{path} holds no measurement{detail}")
    return records, problems
