"""Workers that are processes of this machine, and what happens if one dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from profiler.meters.sampler import LatencyLimits
from profiler.records.measurement import Measurement
from profiler.records.reading import MeasureError
from profiler.records.schema import RecordError, checked
from profiler.run.request import request_json
from profiler.sweep.child import MEASURE, setup
from profiler.sweep.devices import Device
from profiler.sweep.failures import FAULT, Failure
from profiler.sweep.points import Point
from profiler.sweep.workers import Note, Worker, WorkerGone

START = (
    "import json, sys; from importlib import import_module; "
    "sys.path[:] = json.loads(sys.argv.pop()); import_module(sys.argv.pop()).main()"
)
"""The program of a process: modules are found where this process finds them."""


def processes(
    devices: Sequence[Device], kind: str, limits: LatencyLimits | None, measure: str = MEASURE
) -> Mapping[str, Callable[[], Worker]]:
    """A dict: name of a device -> a function that starts a process for it; `kind`: cpu or cuda;
    `measure`: the "module:function" by which the process measures a request."""
    asked = setup(kind, limits, measure)
    return {device.name: partial(Child, device, asked) for device in devices}


class Process:
    """A process that answers a line of JSON with lines of JSON. It has its own session, so that a
    keyboard interrupt reaches only the parent."""

    def __init__(self, module: str, variables: Mapping[str, str] | None = None) -> None:
        """Start a process that runs `module.main()`, which reads requests and writes answers, each
        a line of JSON; `variables` are added to its environment."""
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process lives
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", START, module, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env={**os.environ, **(variables or {})},
            start_new_session=True,
        )

    def say(self, values: Mapping[str, Any]) -> None:
        """Send a request, as a line of JSON. Raises WorkerGone: the process has ended."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(values).encode() + b"\n")
            self.process.stdin.flush()
        except (OSError, ValueError):
            raise WorkerGone(self.how_it_ended()) from None

    def hear(self, note: Callable[[str], None] = lambda what: None) -> dict[str, Any]:
        """Return the next answer; notes before it go to `note`. WorkerGone: the process ended."""
        assert self.process.stdout is not None
        while True:
            line = self.process.stdout.readline()
            if not line.endswith(b"\n"):
                raise WorkerGone(self.how_it_ended())
            found: dict[str, Any] = json.loads(line)
            if "note" not in found:
                return found
            note(found["note"])

    def how_it_ended(self) -> str:
        """Wait for the end of the process, and return a sentence with its signal, or its exit
        code and the last line that it wrote on stderr."""
        code = self.process.wait()
        if code == -signal.SIGKILL:
            return "the measuring process was killed: the machine's memory may have run out"
        if code < 0:
            return f"the measuring process was ended by {signal.Signals(-code).name}"
        said: list[str] = []
        with suppress(ValueError):  # the file was closed meanwhile
            self.errors.seek(0)
            said = self.errors.read().decode(errors="replace").strip().splitlines()
        return f"the measuring process ended with code {code}" + (f": {said[-1]}" if said else "")

    def stop(self) -> None:
        """Kill the process; its measurement in progress is lost."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.errors):
            if stream is not None:
                with suppress(OSError):
                    stream.close()


class Child:
    """A worker that is a process of this machine and sees one device. `asked` tells the process
    what to measure with; `environment` is {} until the process is ready; if `leaving`, the device
    refuses every call, and `measure` starts a new process."""

    def __init__(self, device: Device, asked: Mapping[str, Any]) -> None:
        self.device, self.asked = device, asked
        self.environment: Mapping[str, Any] = {}
        self.leaving = False
        self._start()

    def _start(self) -> None:
        self.process = Process("profiler.sweep.child", self.device.variables)

    def begin(self) -> None:
        """Tell the process what to measure with, wait until it is ready, and keep its environment.
        Raises MeasureError: the process ended."""
        try:
            self.process.say(self.asked)
            self.environment = self.process.hear()["ready"]
            self.leaving = False
        except WorkerGone as gone:
            raise MeasureError(f"the measuring process did not start: {gone}") from None

    def measure(self, point: Point, note: Note) -> Measurement | Failure:
        """Measure a point, and return its record or failure; a process whose device is unusable is
        replaced first. Raises WorkerGone: the process ended; MeasureError: no new one starts."""
        if self.leaving:
            self.stop()
            self._start()
            self.begin()
        request = request_json(point.request) | {"device": self.asked["device"]}
        self.process.say(request)
        answer = self.process.hear(lambda what: note(point, what))
        self.leaving = answer["leaving"]
        return unpacked(answer)

    def stop(self) -> None:
        """Kill the process; its measurement in progress is lost."""
        self.process.stop()


def unpacked(answer: Mapping[str, Any]) -> Measurement | Failure:
    """The outcome in the answer of a measuring process: the record under `found`, or the failure
    under `failed`; for an invalid record a failure (`FAULT`) that says so."""
    if "found" not in answer:
        return checked(answer["failed"], Failure, "failed")
    try:
        return Measurement.from_json(answer["found"])
    except RecordError as error:
        return Failure(FAULT, f"the measuring process sent no valid record: {error}")
