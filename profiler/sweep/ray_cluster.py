"""Workers on the nodes of a Ray cluster.

An actor has exclusive use of a GPU, or of all CPUs of a node. The process that began the sweep
hands out the points and is the only writer of the file.
"""

from __future__ import annotations

import importlib
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from profiler.meters.sampler import LatencyLimits
from profiler.records.measurement import Measurement
from profiler.records.reading import MeasureError, reason_of
from profiler.run.request import request_json
from profiler.sweep.child import MEASURE, Measuring, setup
from profiler.sweep.failures import Failure
from profiler.sweep.points import Point
from profiler.sweep.processes import unpacked
from profiler.sweep.workers import Note, Worker, WorkerGone

LOCAL = "local"

REACHED_S = 5.0
"""The longest wait for a connection to the address. The test comes first, because Ray itself tries
for minutes to reach a cluster."""

_PLACE = re.compile(r"(?:ray://)?\[?(?P<host>[^/\[\]]+)\]?:(?P<port>[0-9]{1,5})")

RESOURCES = {"cpu": "CPU", "cuda": "GPU"}
"""Kind of device -> Ray's name of the resource."""


@dataclass(frozen=True)
class Cluster:
    """A connected cluster."""

    ray: Any
    kind: str
    """The kind of device that is measured: cpu or cuda."""

    def actors(
        self, limits: LatencyLimits | None, measure: str = MEASURE
    ) -> Mapping[str, Callable[[], Worker]]:
        """A dict: name -> a function that starts an actor (a process of the cluster): for every GPU
        or, by `kind`, for all CPUs of every node. `measure` is the "module:function" that measures
        a request, within `limits` (None: the defaults). MeasureError: no node has such a device."""
        asked = setup(self.kind, limits, measure)
        found: dict[str, Callable[[], Worker]] = {}
        for node in self.ray.nodes():
            for number, resources in enumerate(needs(node, self.kind)):
                options = resources | {"scheduling_strategy": on_node(node["NodeID"])}
                name = f"node {node['NodeID'][:8]} {self.kind} {number}"
                found[name] = partial(Actor, self.ray, options, asked)
        if not found:
            raise MeasureError(f"no node of the Ray cluster has a {RESOURCES[self.kind]}")
        return found


@contextmanager
def connected(address: str, device: str | None) -> Iterator[Cluster]:
    """A context with a connected cluster; without `device`, its GPUs are measured, or if it has
    none its CPUs.

    Args:
        address: `local` starts a cluster on this machine; else HOST:PORT, ray://HOST:PORT or auto.
        device: cpu or cuda.

    Raises:
        MeasureError: the package ray is missing, no cluster answers at the address, or the device
            is of another kind.
    """
    if device is not None and device not in RESOURCES:
        raise MeasureError(
            f"--ray measures on every device of a kind: expected cpu or cuda, got '{device}'"
        )
    ray = ray_package()
    own = {"include_dashboard": False} if address == LOCAL else {}
    try:
        reach(address)
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **own)
    except (ConnectionError, ValueError, RuntimeError) as error:
        said = f"--ray {address}: no cluster answers there: {reason_of(error)}"
        raise MeasureError(said) from None
    try:
        yield Cluster(ray, device or ("cuda" if ray.cluster_resources().get("GPU") else "cpu"))
    finally:
        ray.shutdown()


def reach(address: str) -> None:
    """Raise ConnectionError if an address HOST:PORT accepts no connection, ValueError for a bad
    port; an address without a port, such as `auto`, is not tried."""
    place = _PLACE.fullmatch(address)
    if place is None:
        return
    if not 0 < int(place["port"]) < 2**16:
        raise ValueError(f"{place['port']} is no port: expected 1 to 65535")
    try:
        socket.create_connection((place["host"], int(place["port"])), REACHED_S).close()
    except OSError as error:
        raise ConnectionError(error.strerror or reason_of(error)) from None


def ray_package() -> Any:
    """Import the package ray and return it. Raises MeasureError, with the command that installs it:
    the package is missing."""
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise MeasureError(
            "--ray needs the package ray: pip install 'costmodel[ray]', on every node"
        ) from None


def needs(node: Mapping[str, Any], kind: str) -> list[dict[str, Any]]:
    """The resources of each actor on a node: a GPU each, or all CPUs of the node for one actor."""
    has = int(node["Resources"].get(RESOURCES[kind], 0)) if node["Alive"] else 0
    return [{"num_gpus": 1}] * has if kind == "cuda" else [{"num_cpus": has}] * bool(has)


def on_node(node: str) -> Any:
    """The scheduling strategy that binds an actor to a node."""
    strategies = importlib.import_module("ray.util.scheduling_strategies")
    return strategies.NodeAffinitySchedulingStrategy(node_id=node, soft=False)


class Actor:
    """A worker that is a process of the cluster."""

    def __init__(self, ray: Any, options: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
        self.ray, self.options, self.asked = ray, options, asked
        self.environment: Mapping[str, Any] = {}
        self.leaving = False  # the device refuses every call: `measure` starts a new actor
        self._start()

    def _start(self) -> None:
        self.actor = self.ray.remote(Measuring).options(**self.options).remote(self.asked)

    def begin(self) -> None:
        """Wait until the cluster has scheduled the actor and the actor is ready, and keep its
        environment. Raises MeasureError: the actor did not start."""
        try:
            self.environment = self.ray.get(self.actor.environment.remote())
        except self.ray.exceptions.RayError as error:
            raise MeasureError(f"the Ray actor did not start: {reason_of(error)}") from None
        self.leaving = False

    def measure(self, point: Point, note: Note) -> Measurement | Failure:
        """Measure a point on the actor's own device, and return its record or failure; an actor
        whose device was left unusable by the point before (`leaving`) is replaced first. `note` is
        told that the point begins. Raises WorkerGone: the actor ended."""
        if self.leaving:
            self.stop()
            self._start()
            self.begin()
        note(point, "measuring on the cluster")
        request = request_json(point.request) | {"device": self.asked["device"]}
        try:
            answer = self.ray.get(self.actor.answer.remote(request))
        except self.ray.exceptions.RayError as error:
            raise WorkerGone(f"the Ray actor ended: {reason_of(error)}") from None
        self.leaving = answer["leaving"]
        return unpacked(answer)

    def stop(self) -> None:
        """Kill the actor."""
        self.ray.kill(self.actor)
