"""The kinds of failures of a point, and whether another attempt would fail again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from costmodel.errors import limit_words
from profiler.meters.cuda_graph import ContextLost
from profiler.meters.failure import is_out_of_memory, requested
from profiler.records.measurement import REASON, Measurement
from profiler.records.reading import MeasureError, reason_of, whole_text
from profiler.records.schema import Record
from profiler.run.request import record_of
from profiler.sweep.points import Point

MEMORY, REFUSED, FAILED = "out of memory", "refused", "call failed"


DISTURBED = "disturbed"
"""The kind in older records of points without latency because of long disturbance."""


DIED, LOST, FAULT = "process died", "device lost", "fault"


REPEATS: Mapping[str, bool] = {
    MEMORY: True, REFUSED: True, FAILED: True, DIED: False, LOST: False, FAULT: False,
    DISTURBED: False,
}  # fmt: skip
"""Kind -> whether another attempt on this machine would fail again, so that a resumed sweep skips
the point unless told to retry. A FAULT is an error of measuring, not of the measured call."""


EXPECTED = (MEMORY, REFUSED)
"""The kinds that bound a grid: findings of a sweep, not errors."""


class Failure(Record, frozen=True):
    """A point that was tried and not measured; `details` are JSON values."""

    kind: str
    sentence: str
    details: Mapping[str, Any] = {}


def failure_of(error: BaseException) -> Failure:
    """Make the failure for an exception, of the kind that its chain of causes shows.

    `MEMORY` if any cause is an allocator's refusal; `LOST` if the device became unusable; `FAULT`
    for an exception other than ValueError (with the limit of memory, if there is one, since C code
    out of memory may raise anything); `FAILED` for a MeasureError with an exception among its
    causes that is no ValueError, which the measured call raised; `REFUSED` otherwise.
    """
    sentence = reason_of(error)
    raised = list(chain(error))
    if any(map(is_out_of_memory, raised)):
        return Failure(MEMORY, sentence, memory_of(raised))
    if any(isinstance(one, ContextLost) for one in raised):
        return Failure(LOST, sentence)
    if not isinstance(error, ValueError):
        limit = limit_words()
        return Failure(FAULT, f"{type(error).__name__}: {sentence}{limit and f'; {limit}'}")
    if isinstance(error, MeasureError) and not all(isinstance(one, ValueError) for one in raised):
        return Failure(FAILED, sentence)
    return Failure(REFUSED, sentence)


_FREE = re.compile(r"of which (?P<size>[\d.]+ (?:[KMGT]i)?[Bb](?:ytes)?) is free")


def memory_of(raised: Sequence[BaseException]) -> dict[str, str]:
    """The sizes `requested` and `free`, in an allocator's words; without those that none prints."""
    asked = next((size for one in raised if (size := requested(one))), "")
    free = next((found["size"] for one in raised if (found := _FREE.search(whole_text(one)))), "")
    return {name: size for name, size in (("requested", asked), ("free", free)) if size}


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and its causes, from the outermost on."""
    one: BaseException | None = error
    while one is not None:
        yield one
        one = one.__cause__


def failed_record(point: Point, failure: Failure, environment: Mapping[str, Any]) -> Measurement:
    """Make the record of a failed point: without readings, with the reason in `reasons` under
    `measurement`, and the kind in `failure`."""
    request = point.request
    return record_of(
        request,
        reasons={REASON: failure.sentence},
        counts={"seed": request.seed},
        environment=environment,
        failure={"kind": failure.kind, **failure.details},
    )
