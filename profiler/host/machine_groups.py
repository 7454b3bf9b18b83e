"""Groups of records from one machine with one set of software, and their common facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from profiler.host.environment import BOARDS, WHOLE, flat
from profiler.records.measurement import Measurement, readings_of
from profiler.records.reading import Reading


@dataclass(frozen=True)
class Group:
    """Records from one machine with one set of software."""

    facts: Mapping[str, Any]
    """The environment: every fact that at least one record has."""
    records: tuple[Measurement, ...]

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU was measured."""
        return self.facts.get("device") == "cuda"

    def fact(self, name: str) -> Any:
        """A fact by its dotted name; None if no record has it."""
        return self._flat.get(name)

    @cached_property
    def _flat(self) -> dict[str, Any]:
        return flat(self.facts)

    def readings(self, name: str) -> list[Reading]:
        """The readings of this name, from all records that have one."""
        return readings_of(self.records, name)

    def states(self, name: str, when: str = "state") -> list[float]:
        """The recorded values of a varying fact: at the time of writing or, with `state_before`,
        from before the measurement."""
        seen = [record.environment.get(when) or {} for record in self.records]
        found = [state.get(name) for state in seen]
        return [value for value in found if isinstance(value, int | float)]


def machine_groups(records: Sequence[Measurement]) -> list[Group]:
    """The records by machine and software, in the order of first occurrence. A record joins the
    first group whose known facts all agree with the record's known facts."""
    found: list[tuple[dict[str, Any], list[Measurement]]] = []
    for record in records:
        facts = compared(record.environment)
        place = next((each for each in found if agree(facts, each[0])), None)
        if place is None:
            found.append(place := ({}, []))
        known, group = place
        known |= facts
        group.append(record)
    return [
        Group(facts_together([r.environment for r in group]), tuple(group)) for _, group in found
    ]


def agree(facts: Mapping[str, Any], known: Mapping[str, Any]) -> bool:
    """Whether no fact differs from a known one."""
    return all(known.get(name, value) == value for name, value in facts.items())


def compared(environment: Mapping[str, Any]) -> dict[str, Any]:
    """The known facts of machine and software that `environment_differences` compares; a fact in
    `WHOLE` is compared as a whole mapping."""
    found: dict[str, Any] = {}
    for name, value in environment.items():
        facts = {x: y for x, y in flat({name: value}).items() if x not in BOARDS and y is not None}
        found |= facts if name not in WHOLE or value is None else {name: facts}
    return found


def facts_together(environments: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The union of the facts of several environments; the first value of a fact wins."""
    facts: dict[str, Any] = {}
    for environment in environments:
        for name, value in environment.items():
            if isinstance(value, Mapping):
                facts[name] = dict(value) | (facts.get(name) or {})
            elif facts.get(name) is None:
                facts[name] = value
    return facts
