"""Power over one window of load or of idling, from the energy counter or the power reading.

A counter of energy moves in steps, some per second. A poller reads the counter over and over. An
edge is a step as the poller sees the step, between the last poll with the old value and the first
with the new value. A stretch is a span of time, from edge to edge if there is a counter.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from profiler.meters.energy.protocol import CounterFault, EnergyLimits, Load, Sensor, SensorError

REST = 0.9
"""After a step, polling of the counter rests for this part of the counter's period, less the time
between two polls."""
FINE = 20
"""Bursts are looked for in pieces that are this many times as long as the time between polls."""
OVER_LIMIT = 2.0
"""A step is a jump if it implies more than this many times the board's power limit."""
OVER_MEDIAN = 10.0
"""If the limit is unknown, a step is a jump above this many times the median step."""


@dataclass(frozen=True)
class Edge:
    """A step of the counter to `energy_mJ`, known to lie between two polls."""

    early_ns: int
    late_ns: int
    energy_mJ: int

    @property
    def ns(self) -> float:
        """The midpoint between the two polls."""
        return (self.early_ns + self.late_ns) / 2

    @property
    def width_s(self) -> float:
        """Seconds between the two polls."""
        return (self.late_ns - self.early_ns) * 1e-9


@dataclass
class Poller:
    """Reads a sensor whenever a reading is due; keeps each step that polling sees, and each power
    reading that succeeds.

    If `period_s`, the counter's period, is known, polling rests for most of a period after a step:
    a poll costs the host time that the load may need.
    """

    sensor: Sensor
    limits: EnergyLimits
    period_s: float | None = None
    edges: list[Edge] = field(default_factory=list)
    powers: list[tuple[float, float]] = field(default_factory=list)  # ns, W
    last: tuple[int, int] | None = None  # ns, mJ of the previous poll
    next_counter_ns: float = 0
    next_power_ns: float = 0
    slowest_s: float = 0.0
    """The longest time of one `look`, in which the host queues no work."""

    def look(self) -> None:
        """Read the counter and the power if their next readings are due, and note how long the
        slowest such look took."""
        now = self.sensor.now_ns()
        if self.sensor.counter and now >= self.next_counter_ns:
            self.read_counter(now)
        if self.sensor.power is not None and now >= self.next_power_ns:
            self.read_power(now)
        self.slowest_s = max(self.slowest_s, (self.sensor.now_ns() - now) * 1e-9)

    def read_counter(self, now: int) -> None:
        """Poll the counter at `now` (ns); keep an edge (the two times between which the counter
        moved, and its value) if the counter moved. CounterFault if the counter decreased."""
        energy, before = self.sensor.energy_mJ(), self.last
        self.last = (now, energy)
        self.next_counter_ns = now + self.limits.poll_s * 1e9
        if before is None or energy == before[1]:
            return
        if energy < before[1]:
            raise CounterFault(
                f"the energy counter went down from {before[1]} to {energy} mJ: the driver was "
                "reloaded or the counter wrapped"
            )
        edge = Edge(before[0], self.sensor.now_ns(), energy)
        self.edges.append(edge)
        if self.period_s is not None:
            self.rest(edge, self.period_s, now)

    def rest(self, edge: Edge, period_s: float, now: int) -> None:
        """After an edge (the times between which the counter moved) that the poll at `now` (ns)
        found, stop polling the counter for most of its period, since a poll costs the host time;
        unless the last such rest missed a step.

        Without a rest polls are close together; an edge wider than half a rest therefore fell into
        a rest, so the counter is irregular and polling never rests again. A load whose submission
        blocks the host is polled once a batch: the rest ends one such time early, so that a poll
        precedes the next step.
        """
        pause_s = REST * period_s
        if edge.width_s > pause_s / 2:
            self.period_s = None
        else:
            between_s = (now - edge.early_ns) * 1e-9
            self.next_counter_ns = edge.early_ns + (pause_s - between_s) * 1e9

    def read_power(self, now: int) -> None:
        """Read the power at `now` (ns); readings come at least twice per period of the counter."""
        power = self.sensor.power_mW()
        every = min(self.limits.power_poll_s, (self.period_s or self.limits.power_poll_s) / 2)
        self.next_power_ns = now + every * 1e9
        if power is not None:
            self.powers.append(((now + self.sensor.now_ns()) / 2, power * 1e-3))


@dataclass
class Running:
    """A load that runs while sensors are read; leaving the context drains the queue."""

    load: Load
    poller: Poller
    marks: list[int] = field(default_factory=list)  # ns: at the start, then at each batch's end

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *error: object) -> None:
        self.load.drain()

    def step(self) -> None:
        """Put a batch of calls into the device's queue, and poll the sensor until the queue needs
        another batch."""
        self.load.submit()
        while not self.load.ready():
            self.poller.look()
        self.marks.append(self.poller.sensor.now_ns())
        self.poller.look()

    def during(self, seconds: float, batches: int = 1) -> None:
        """Keep the load running for at least this many seconds and at least this many batches."""
        end = self.poller.sensor.now_ns() + seconds * 1e9
        stop = len(self.marks) + batches
        while self.poller.sensor.now_ns() < end or len(self.marks) < stop:
            self.step()

    def until_edge(self) -> int:
        """Keep the load running until the counter moves; the index of this edge (`until_edge`)."""
        return until_edge(self.poller, self.step)


def until_edge(poller: Poller, step: Callable[[], None]) -> int:
    """Repeat `step()` until the energy counter moves, and return the index of this movement (edge)
    among the poller's edges. SensorError if the counter stands still for `patience_s` seconds."""
    seen, limits = len(poller.edges), poller.limits
    deadline = poller.sensor.now_ns() + limits.patience_s * 1e9
    while len(poller.edges) == seen:
        step()
        if len(poller.edges) == seen and poller.sensor.now_ns() > deadline:
            raise SensorError(
                f"the energy counter did not move in {limits.patience_s:g} s: costmodel doctor "
                "tells which sensors work"
            )
    return seen


@dataclass(frozen=True)
class Stretch:
    """Power over a stretch of time, by the primary and the second sensor."""

    start_ns: float
    end_ns: float
    power_W: float
    check_W: float | None
    """Power by the power reading, if `power_W` comes from the counter; None otherwise."""
    spread: float
    """Relative standard deviation (`unsteadiness`) of parts, about `limits.parts` of them."""
    bursts: float
    """The same of the shortest pieces that the counter resolves, or of single power readings."""
    stray: float
    """How far the energy since the start strays from a straight line, relative to all energy."""
    edge_error: float
    """The largest relative error of the length by polling: half the width of both edges; or 0."""
    edges: tuple[Edge, ...] = ()
    """The counter's steps; none without a counter."""

    @property
    def elapsed_s(self) -> float:
        """The length in seconds."""
        return (self.end_ns - self.start_ns) * 1e-9


@dataclass(frozen=True)
class Window:
    """A stretch of load, the seconds per call, and the whole batches and their calls in it."""

    stretch: Stretch
    call_s: float
    calls: int
    batches: int
    slowest_s: float
    """The longest time of one look at the sensors while the load ran."""

    @property
    def call_J(self) -> float:
        """Joules of one call."""
        return self.stretch.power_W * self.call_s


def update_period(running: Running, edges: int = 8) -> float:
    """Seconds between the counter's steps under load: the median gap in a row of `edges` edges."""
    first = running.until_edge()
    while len(running.poller.edges) < first + edges:
        running.until_edge()
    return statistics.median(gap_s(a, b) for a, b in pairwise(running.poller.edges[first:]))


def gap_s(a: Edge, b: Edge) -> float:
    """Seconds between two edges."""
    return (b.ns - a.ns) * 1e-9


def loaded(running: Running, window_s: float) -> Window:
    """Keep the load running for at least `window_s` seconds and three batches, from one step of the
    energy counter to another: returns the power, and the calls and seconds per call.

    Without a counter, the power readings measure the window. SensorError if a sensor is unusable or
    fewer than two batches ended in the window.
    """
    poller, limits = running.poller, running.poller.limits
    if poller.sensor.counter:
        first = running.until_edge()
        running.during(window_s, batches=3)
        last = running.until_edge()
        stretch = by_counter(poller, first, last)
    else:
        start = poller.sensor.now_ns()
        running.during(window_s, batches=3)
        stretch = by_power(poller, start, poller.sensor.now_ns(), limits)
    inside = [ns for ns in running.marks if stretch.start_ns <= ns <= stretch.end_ns]
    if len(inside) < 2:
        raise SensorError(
            f"{len(inside)} batches of calls ended within the window, and 2 are needed: give a "
            "longer --energy-window"
        )
    batches = len(inside) - 1
    calls = batches * running.load.calls
    call_s = (inside[-1] - inside[0]) * 1e-9 / calls
    return Window(stretch, call_s, calls, batches, poller.slowest_s)


def idling(poller: Poller, pause: Callable[[float], None]) -> Stretch:
    """Measure the power of an idle device over `idle_s` seconds: between two steps of the counter,
    or without a counter by the power readings. SensorError if a sensor is unusable."""
    limits, sensor = poller.limits, poller.sensor

    def step() -> None:
        pause(limits.poll_s)
        poller.look()

    first = until_edge(poller, step) if sensor.counter else 0
    start = sensor.now_ns()
    while sensor.now_ns() < start + limits.idle_s * 1e9:
        step()
    if not sensor.counter:
        return by_power(poller, start, sensor.now_ns(), limits)
    return by_counter(poller, first, until_edge(poller, step))


def by_counter(poller: Poller, first: int, last: int) -> Stretch:
    """The power, and its spread, between the edges with the indices `first` and `last`; `check_W`
    is the power by the power reading, a second sensor, which `poller` read meanwhile.

    Raises:
        CounterFault: the counter jumped between the two edges.
        SensorError: the counter shows no energy between them.
    """
    edges = poller.edges[first : last + 1]
    start, end = edges[0], edges[-1]
    energy_mJ = end.energy_mJ - start.energy_mJ
    if energy_mJ <= 0:
        raise SensorError(
            "the energy counter shows 0 J while the load ran: costmodel doctor tells which sensors "
            "work"
        )
    refuse_jumps(edges, poller.sensor.limit_W)
    elapsed_s = gap_s(start, end)
    return Stretch(
        start.ns,
        end.ns,
        power_W=energy_mJ * 1e-3 / elapsed_s,
        check_W=mean_power(poller.powers, start.ns, end.ns),
        spread=unsteadiness(edges[:: max((len(edges) - 1) // poller.limits.parts, 1)]),
        bursts=unsteadiness(edges[:: finest(edges)]),
        stray=stray(edges),
        edge_error=(start.width_s + end.width_s) / 2 / elapsed_s,
        edges=tuple(edges),
    )


def by_power(poller: Poller, start_ns: float, end_ns: float, limits: EnergyLimits) -> Stretch:
    """Make the stretch between two moments by the power reading alone: the mean power, and its
    spread and stray over those of `limits.parts` equal parts that have a reading; bursts are of
    single readings. SensorError if there is no reading or 0 W."""
    power_W = mean_power(poller.powers, start_ns, end_ns)
    if not power_W:
        shown = "no reading" if power_W is None else "0 W"
        raise SensorError(
            f"the power sensor shows {shown} while the power was sampled: costmodel doctor tells "
            "which sensors work"
        )
    length = (end_ns - start_ns) / limits.parts
    marks = [start_ns + part * length for part in range(limits.parts + 1)]
    parts = [mean_power(poller.powers, a, b) for a, b in pairwise(marks)]
    known = [part for part in parts if part is not None]
    bursts = relative_sd([power for ns, power in poller.powers if start_ns <= ns <= end_ns])
    strays = off_line(list(range(len(known) + 1)), [0.0, *accumulate(known)])
    spread = relative_sd(known)
    return Stretch(start_ns, end_ns, power_W, None, spread, bursts, strays, edge_error=0.0)


def refuse_jumps(edges: Sequence[Edge], limit_W: float | None) -> None:
    """Raise CounterFault if one step of the energy counter implies more than `OVER_LIMIT` times the
    board's power limit, or if the limit is unknown (None), `OVER_MEDIAN` times the median step."""
    # mJ/ns = 1e6 W, over the longest time that the step may have taken
    steps = [
        (b.energy_mJ - a.energy_mJ) / (b.late_ns - a.early_ns) * 1e6 for a, b in pairwise(edges)
    ]
    most = OVER_LIMIT * limit_W if limit_W else OVER_MEDIAN * statistics.median(steps)
    if max(steps) > most:
        raise CounterFault(
            f"the energy counter jumped: one step means {max(steps):.0f} W, and at most "
            f"{most:.0f} W are plausible"
        )


def mean_power(powers: Sequence[tuple[float, float]], start: float, end: float) -> float | None:
    """The integral of power readings (ns, W) over a window, divided by the window's length, in W;
    None without a reading inside. Each inside holds until the next, the first from the start.

    >>> mean_power([(0, 100.0), (5, 200.0)], 0, 10)
    150.0
    >>> mean_power([(0, 100.0)], 5, 10) is None
    True
    """
    inside = [(ns, power) for ns, power in powers if start <= ns <= end]
    if not inside:
        return None
    moments = [start, *(ns for ns, _ in inside[1:]), end]
    return sum(
        power * (until - since)
        for (_, power), (since, until) in zip(inside, pairwise(moments), strict=True)
    ) / (end - start)


def unsteadiness(marks: Sequence[Edge]) -> float:
    """Relative standard deviation between pieces from mark to mark, of as many steps of the counter
    each: of their energies or of their powers, whichever is smaller.

    A step may become visible late: then lengths of pieces vary at equal energies. The counter may
    step irregularly: then energies vary as lengths do. Both vary together only with the load.
    """
    energies = [b.energy_mJ - a.energy_mJ for a, b in pairwise(marks)]
    powers = [
        energy / gap_s(a, b) for energy, (a, b) in zip(energies, pairwise(marks), strict=True)
    ]
    return min(relative_sd(energies), relative_sd(powers))


def stray(edges: Sequence[Edge]) -> float:
    """How far the energy since the first step strays from a straight line over time, or over the
    number of steps, whichever is less, for the reasons of `unsteadiness`; see `off_line`."""
    energies = [edge.energy_mJ - edges[0].energy_mJ for edge in edges]
    times = [gap_s(edges[0], edge) for edge in edges]
    return min(off_line(times, energies), off_line(range(len(edges)), energies))


def off_line(x: Sequence[float], y: Sequence[float]) -> float:
    """The range of the distances of points from the straight line through the first and the last,
    relative to the last `y`; both sequences begin at 0.

    >>> off_line([0, 1, 2, 3], [0, 4, 4, 8])  # the line: 0, 8/3, 16/3, 8
    0.3333333333333333
    """
    distances = [b - y[-1] * a / x[-1] for a, b in zip(x, y, strict=True)]
    return (max(distances) - min(distances)) / y[-1]


def finest(edges: Sequence[Edge]) -> int:
    """The number of steps in the shortest piece whose length polling resolves: `FINE` times the
    median time between the polls around a step."""
    coarse = statistics.median(edge.width_s for edge in edges)
    step = gap_s(edges[0], edges[-1]) / (len(edges) - 1)
    return math.ceil(FINE * coarse / step)


def relative_sd(values: Sequence[float]) -> float:
    """Standard deviation divided by the mean; 0 for no value, one value or equal values.

    >>> relative_sd([1.0, 3.0]) == 2**0.5 / 2, relative_sd([0.0, 0.0]), relative_sd([5.0])
    (True, 0.0, 0.0)
    """
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return spread / statistics.fmean(values) if spread else 0.0
