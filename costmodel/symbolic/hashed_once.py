"""How is the hash of a record that is looked up many thousand times worked out once?"""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def hashed_once(kind: type[T]) -> type[T]:
    """A frozen dataclass whose hash is computed when it is first asked for: tables of rules and
    answers look the same few expressions up many thousand times."""
    whole = kind.__hash__

    def remembered(self: T) -> int:
        known: dict[str, int] = self.__dict__
        if "hash" not in known:
            known["hash"] = whole(self)
        return known["hash"]

    kind.__hash__ = remembered  # type: ignore[assignment,method-assign]
    return kind
