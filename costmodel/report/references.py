"""Whose code does a built-in mixer equal, in float64, as recorded in tables/references?

Each record names a mixer (with its options), somebody else's package, its version and what was
compared there, and the largest distance between any module of the mixer and that code, relative to
the largest number: of whole sequences, and token by token. They are written by
`python -m tests.references`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from costmodel.data import data_dir, read_data


@dataclass(frozen=True)
class Reference:
    """What one comparison found; `steps` is None where no token has a cost of its own."""

    mixer: str
    package: str
    version: str
    of: str
    sizes: Mapping[str, int]
    whole: float
    steps: float | None

    @property
    def words(self) -> str:
        """The package and its version, `linformer 0.2.3`."""
        return f"{self.package} {self.version}"


@cache
def recorded() -> tuple[Reference, ...]:
    """Every record, in the order of the file."""
    found = read_data(data_dir("references") / "equal.json")
    return tuple(Reference(**record) for record in found["records"])


def of_mixer(name: str) -> tuple[Reference, ...]:
    """The records of a mixer and of its variants."""
    return tuple(one for one in recorded() if one.mixer.split("+")[0] == name)
