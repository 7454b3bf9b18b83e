"""The points of a sweep, and the keys that identify them.

A *point* is one request in one round, measured by one process. A *plan* is one run of a command
whose every point several processes measure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from profiler.records.keys import canonical
from profiler.run.request import Request, form_of, options_of


@dataclass(frozen=True)
class Point:
    """One measurement of a sweep."""

    request: Request
    round: int = 0
    turn: int = 0
    """The position within the round."""
    order_seed: int = 0
    process: int = 0
    """The number of the process, if several processes each measure the whole plan."""
    plan: str = ""
    """The id of this run of the plan; "" if each point is measured once."""

    @cached_property
    def key(self) -> str:
        """A text (canonical JSON) that identifies the point, equal for equal measurements of any
        sweep: the request with its options and seed, round and process, but not the turn."""
        asked = self.request
        return canonical(
            mixer=asked.mixer.origin,
            implementation=asked.implementation.name,
            form=form_of(asked.implementation, asked.phase),
            sizes=asked.sizes,
            dtype=asked.dtype,
            phase=asked.phase,
            device=asked.device,
            options=options_of(asked),
            seed=asked.seed,
            round_=self.round,
            process=self.process,
        )

    @property
    def place(self) -> dict[str, Any]:
        """The fields of a record about its place in the sweep."""
        found = {"round": self.round, "turn": self.turn, "order_seed": self.order_seed}
        return found | self.origin

    @property
    def origin(self) -> dict[str, Any]:
        """The fields of a record about its process, plan and options."""
        found: dict[str, Any] = {"process": self.process} if self.process else {}
        return found | ({"plan": self.plan} if self.plan else {}) | self.options

    @property
    def options(self) -> dict[str, Any]:
        """{"options": the request's options that no other field of a record holds}; {} if all are
        defaults."""
        options = options_of(self.request)
        return {"options": options} if options else {}


@dataclass(frozen=True)
class Block:
    """Points that belong together: every candidate at one set of sizes, in every round.

    One process measures them one after another on one device.
    """

    name: str
    points: tuple[Point, ...] = field(repr=False)

    @property
    def process(self) -> int:
        """The number of the process of the plan that measures the block."""
        return self.points[0].process if self.points else 0
