"""The table of readings: what each reading is called, its unit, and where it is shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

Meter = Literal["clock", "compiler", "memory", "profiler", "energy", "counters"]

WIDTH = 64
"""The width of a narrow matrix: the usual width of a head of attention. A product whose rows,
columns or terms are at most `WIDTH` is one of narrow matrices."""


class MeasuredQuantity(Struct, frozen=True):
    """One line of the table. An empty text says that the reading is not shown there."""

    reading: str
    """The key of the reading in a record."""
    unit: str
    """s, B, J, W or 1 (a count)."""
    meter: Meter
    """The meter that takes the reading."""
    title: str = ""
    """The title in comparisons, growth and studies, which show the readings with a title."""
    column: str = ""
    """The name of the column in the table of `measure`."""
    heading: str = ""
    """The heading of that column; the title or the name if empty."""
    cost: str = ""
    """The words in the costs of `reconcile`."""
    page: str = ""
    """The title of the table over all lengths on a study's page."""
    exact: bool = False
    """Whether the reading repeats to the byte, so that it needs no interval."""
    launches: bool = False
    """Whether launches dominate the reading when the device waits for the host."""
    signed: bool = False
    """Whether the reading may be negative."""
    rare: bool = False
    """Whether the column of `measure` is hidden unless a record has the reading."""

    @property
    def graded(self) -> bool:
        """Whether a busy device changes the reading, so that its grade and interval count.

        >>> QUANTITIES["latency"].graded, QUANTITIES["peak_memory"].graded
        (True, False)
        """
        return bool(self.title) and not self.exact

    @property
    def cost_key(self) -> str:
        """The key of this quantity among a call's costs in JSON: its name followed by its unit.

        >>> QUANTITIES["energy"].cost_key, QUANTITIES["kernels"].cost_key
        ('energy_J', 'kernels')
        """
        return self.reading + {"1": "", "B": "_bytes"}.get(self.unit, f"_{self.unit}")


DURING = "peak memory (during the call)"
QUANTITIES: Mapping[str, MeasuredQuantity] = {
    each.reading: each
    for each in (
        MeasuredQuantity("latency", "s", "clock", title="latency, hot", column="latency",
                         page="Latency, hot", launches=True),
        MeasuredQuantity("latency_cold", "s", "clock", title="latency, cold", column="cold",
                         launches=True),
        MeasuredQuantity("latency_graph", "s", "clock", title="latency, graph", column="graph",
                         page="Latency, graph", cost="latency, graph", rare=True),
        MeasuredQuantity("launch_estimate", "s", "clock"),
        MeasuredQuantity("compile", "s", "compiler", column="compile", heading="compiling",
                         rare=True),
        MeasuredQuantity("weights", "B", "memory", column="weights", cost="weights"),
        MeasuredQuantity("state", "B", "memory", column="state", cost="state"),
        MeasuredQuantity("peak_memory", "B", "memory", title="peak memory", column="peak memory",
                         heading=DURING, cost=DURING, page="Peak memory", exact=True),
        MeasuredQuantity("tensors_at_peak", "B", "memory"),
        MeasuredQuantity("activations", "B", "memory"),
        MeasuredQuantity("kernels", "1", "profiler", column="kernels", cost="kernels launched"),
        MeasuredQuantity("energy", "J", "energy", title="energy, gross", column="energy",
                         heading="energy", cost="energy, gross", page="Energy, gross, a call",
                         launches=True),
        MeasuredQuantity("energy_net", "J", "energy", title="energy, net", column="net J",
                         heading="net J", cost="energy, net of idle", launches=True, signed=True),
        MeasuredQuantity("power", "W", "energy", column="power", cost="power"),
        MeasuredQuantity("dram_bytes_cold", "B", "counters", column="moved cold",
                         heading="DRAM, each kernel cold"),
        MeasuredQuantity("dram_bytes_in_sequence", "B", "counters", column="moved",
                         heading="DRAM, in sequence"),
    )
}  # fmt: skip
"""Reading -> its line of the table. Every list of readings has the order of the table."""

COMPARED = tuple(each for each in QUANTITIES.values() if each.title)
"""The readings that comparisons, growth and studies show."""
LATENCIES = tuple(each.reading for each in COMPARED if each.unit == "s")
"""The readings of a call's duration, which is never zero: hot, cold, as a graph."""


def read_by(*meters: Meter) -> tuple[str, ...]:
    """The names of the readings that these meters take.

    >>> read_by("energy")
    ('energy', 'energy_net', 'power')
    """
    return tuple(name for name, each in QUANTITIES.items() if each.meter in meters)
