"""A decorator for frozen dataclasses that caches the hash of each instance."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def hashed_once(kind: type[T]) -> type[T]:
    """Make a frozen dataclass compute its hash once per instance, at the first use; returns the
    class. Tables of rules and memoised functions look up the same few expressions many thousand
    times."""
    whole = kind.__hash__

    def remembered(self: T) -> int:
        known: dict[str, int] = self.__dict__
        if "hash" not in known:
            known["hash"] = whole(self)
        return known["hash"]

    kind.__hash__ = remembered  # type: ignore[assignment,method-assign]  # of a class
    return kind
