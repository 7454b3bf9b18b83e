"""Which records come from one machine with one set of software, and what do they know together?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from profiler.host.environment import environment_differences, flat
from profiler.records.measurement import Measurement
from profiler.records.reading import Reading


@dataclass(frozen=True)
class Group:
    """Records of one machine with one set of software."""

    facts: Mapping[str, Any]
    """The environment: every fact that at least one of the records has."""
    records: tuple[Measurement, ...]

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU was measured."""
        return self.facts.get("device") == "cuda"

    def fact(self, name: str) -> Any:
        """A fact by its name with points; None where no record has it."""
        return flat(self.facts).get(name)

    def readings(self, name: str) -> list[Reading]:
        """The readings of this name, of all records that have it."""
        return [record.readings[name] for record in self.records if name in record.readings]

    def states(self, name: str, when: str = "state") -> list[float]:
        """The recorded values of something that varies, from when the records were written or, with
        `state_before`, from before anything ran."""
        seen = [record.environment.get(when) or {} for record in self.records]
        found = [state.get(name) for state in seen]
        return [value for value in found if isinstance(value, int | float)]


def machine_groups(records: Sequence[Measurement]) -> list[Group]:
    """The records by machine and software, in the order in which these first occur."""
    found: list[list[Measurement]] = []
    for record in records:
        for group in found:
            if not any(environment_differences(record.environment, r.environment) for r in group):
                group.append(record)
                break
        else:
            found.append([record])
    return [Group(facts_together([r.environment for r in group]), tuple(group)) for group in found]


def facts_together(environments: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The facts of several environments together; where several have a fact, the first one's
    value."""
    facts: dict[str, Any] = {}
    for environment in environments:
        for name, value in environment.items():
            if isinstance(value, Mapping):
                facts[name] = dict(value) | (facts.get(name) or {})
            elif facts.get(name) is None:
                facts[name] = value
    return facts
