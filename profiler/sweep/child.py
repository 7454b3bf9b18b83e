"""The program of a process that measures for another process: reads points, writes results.

One line of JSON each way. First `setup`, answered by {"ready": environment}; then one request per
line, answered by {"note": stage} during the measurement, and by {"found": record} or {"failed":
...} at its end.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import IO, Any, Protocol

from profiler.host.environment import environment
from profiler.meters.sampler import LatencyLimits
from profiler.modules.registry import Implementation
from profiler.records.measurement import Measurement
from profiler.records.store import StoreError, line_of
from profiler.run.plan import candidate_of, request_of
from profiler.run.subject import Measurable
from profiler.sweep.devices import recovered
from profiler.sweep.failures import FAULT, Failure, failure_of
from profiler.sweep.workers import Measure, attempt

MEASURE = "profiler.run.measure:measure"
TIME_AGAIN = "profiler.run.measure:time_again"
"""Functions that measure, as MODULE:FUNCTION."""


def setup(device: str, limits: LatencyLimits | None, measure: str = MEASURE) -> dict[str, Any]:
    """The first message to a measuring process, as JSON values; `measure`: MODULE:FUNCTION."""
    given = None if limits is None else dataclasses.asdict(limits)
    return {"device": device, "limits": given, "measure": measure, "folder": os.getcwd()}


def in_folder(setup: Mapping[str, Any]) -> None:
    """Change to the other process's folder, if it exists: users' files are named relative to it."""
    if os.path.isdir(setup["folder"]):
        os.chdir(setup["folder"])


class Measuring:
    """Measures points one after another."""

    def __init__(self, setup: Mapping[str, Any]) -> None:
        """`setup` has the `device`, the `limits` of latency (None: the defaults), the `folder` of
        users' files, and as `measure` the "module:function" that measures a request."""
        in_folder(setup)
        self.device = setup["device"]
        limits = setup["limits"]
        self.limits = None if limits is None else LatencyLimits(**limits)
        module, _, function = setup["measure"].partition(":")
        self.candidates: dict[tuple[str, str], tuple[Measurable, Implementation]] = {}
        """(mixer, implementation) -> candidate, so that a user's class is proven only once."""
        self.measure: Measure = getattr(importlib.import_module(module), function)

    def environment(self) -> dict[str, Any]:
        """The environment of this process, with its device."""
        return environment(self.device)

    def answer(
        self, description: Mapping[str, Any], note: Callable[[str], None] = lambda _: None
    ) -> dict[str, Any]:
        """Measure a described request, and return the outcome as JSON values: `found`, a record, or
        `failed`, a `Failure`; `leaving` is true if the process cannot measure again, because its
        device refuses every call."""
        found = printable(self._attempt(description, note))
        kind = "found" if isinstance(found, Measurement) else "failed"
        return {kind: found.to_json(), "leaving": not recovered(self.device)}

    def _attempt(
        self, description: Mapping[str, Any], note: Callable[[str], None]
    ) -> Measurement | Failure:
        """The record of a described request, or the failure of finding or measuring it."""
        names = (description["mixer"], description["implementation"])
        try:
            if names not in self.candidates:
                self.candidates[names] = candidate_of(description)
            request = request_of(description, self.candidates[names])
        except ValueError as error:
            return failure_of(error)
        return attempt(request, self.measure, self.limits, note, Exception)


def printable(found: Measurement | Failure) -> Measurement | Failure:
    """The outcome unchanged; but for a measurement that no line of JSON can hold, as one with an
    infinite number, the failure of kind `FAULT` (an error of measuring) that says why."""
    try:
        if isinstance(found, Measurement):
            line_of(found)
    except StoreError as error:
        return Failure(FAULT, str(error))
    return found


class Answering(Protocol):
    """Answers the requests of another process."""

    def environment(self) -> Mapping[str, Any]:
        """The environment of this process."""
        ...

    def answer(
        self, description: Mapping[str, Any], note: Callable[[str], None]
    ) -> Mapping[str, Any]:
        """The answer as JSON values; `leaving` is true if no further request can be answered."""
        ...


def main() -> None:
    """Measure points for another process."""
    serve(Measuring)


def serve(make_worker: Callable[[Mapping[str, Any]], Answering]) -> None:
    """Answer on standard output, until standard input ends, by the worker that `make_worker` makes
    of the first line.

    Output of modules goes to standard error. An answer with `leaving` is the last. When the input
    ends, the other process needs no more, so this process ends at once and frees its device.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    asked: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin, asked), daemon=True).start()

    def say(answer: Mapping[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    worker = make_worker(asked.get())
    say({"ready": worker.environment()})
    while True:
        answer = worker.answer(asked.get(), lambda what: say({"note": what}))
        say(answer)
        if answer.get("leaving"):
            return


def _listen(stream: IO[str], asked: SimpleQueue[Any]) -> None:
    for line in stream:
        asked.put(json.loads(line))
    os._exit(0)


if __name__ == "__main__":
    main()
