"""Groups of records from one machine with one set of software, and their common facts."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from profiler.records.environments import BOARDS, VARYING, WHOLE, flat
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
        """The facts by their dotted names, `gpu.driver`."""
        return flat(self.facts)

    def readings(self, name: str) -> list[Reading]:
        """The readings of this name, from all records that have one."""
        return readings_of(self.records, name)

    def states(self, name: str, when: str = "state") -> list[float]:
        """The numbers that records state of the varying fact `name`. `when`: "state", as a record
        was written, or "state_before", before its measurement."""
        seen = [record.environment.get(when) or {} for record in self.records]
        found = [state.get(name) for state in seen]
        return [value for value in found if isinstance(value, int | float)]


def machine_groups(records: Sequence[Measurement]) -> list[Group]:
    """Group the records by machine and software, in the order of first occurrence. A record joins
    the first group whose known facts all agree with the record's known facts."""
    found: list[list[Measurement]] = []
    together: list[list[Mapping[str, Any]]] = []  # the distinct environments of each group
    placed: dict[tuple[tuple[str, int], ...], int] = {}  # facts, the same objects -> group
    known: dict[str, dict[Hashable, int]] = {}  # fact -> value -> bit set of groups with the value
    for record in records:
        environment = record.environment
        same = tuple((name, id(fact)) for name, fact in environment.items() if name not in VARYING)
        if same in placed:
            found[placed[same]].append(record)
            continue
        facts = compared(environment)
        left = (1 << len(found)) - 1  # bit k: group k contradicts none of the facts so far
        for name, value in facts.items():
            having = known.setdefault(name, {})
            left &= having.get(value, 0) | ~having.get(None, 0)
        if left:
            place = (left & -left).bit_length() - 1  # the lowest bit: the first group
            found[place].append(record)
            together[place].append(environment)
        else:
            place = len(found)
            found.append([record])
            together.append([environment])
        placed[same] = place
        for name, value in facts.items():
            for each in (value, None):  # under None: the groups that know the fact
                known[name][each] = known[name].get(each, 0) | 1 << place
    return [
        Group(facts_together(environments), tuple(group))
        for environments, group in zip(together, found, strict=True)
    ]


def compared(environment: Mapping[str, Any]) -> dict[str, Hashable]:
    """A dict: name -> value of the known facts of machine and software by which records are told
    apart, nested names joined by dots; the environment variables are one fact, as a variable that
    is absent is unset."""
    found: dict[str, Hashable] = {}
    for name, value in environment.items():
        facts = {x: y for x, y in flat({name: value}).items() if x not in BOARDS and y is not None}
        kept = {x: y if isinstance(y, Hashable) else repr(y) for x, y in facts.items()}
        if name in WHOLE:
            found[name] = frozenset(kept.items()) if value is not None else None
        else:
            found |= kept
    return {name: value for name, value in found.items() if value is not None}


def facts_together(environments: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The union of the facts of several environments, with nested mappings united too; of a fact
    with several values, the first."""
    facts: dict[str, Any] = {}
    for environment in environments:
        for name, value in environment.items():
            if isinstance(value, Mapping):
                facts[name] = dict(value) | (facts.get(name) or {})
            elif facts.get(name) is None:
                facts[name] = value
    return facts
