"""The recorded comparisons of built-in mixers with other packages, in float64 (tables/references).

Each record names a mixer (with its options), a package and its version, or a repository of GitHub
and its commit, and the code compared; and the largest difference between any module of the mixer
and that code, relative to the largest number: for whole sequences (`whole`), and token by token
(`steps`). `python -m tests.references` writes the records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from costmodel.data import data_dir, read_data


@dataclass(frozen=True)
class Reference:
    """One comparison; `steps` is None if the mixer is not compared token by token."""

    mixer: str
    package: str
    version: str
    of: str
    sizes: Mapping[str, int]
    whole: float
    steps: float | None

    @property
    def words(self) -> str:
        """The package and its version, `linformer 0.2.3`, or the repository and the first digits of
        a commit, `state-spaces/s4 e757cef57d`."""
        return f"{self.package} {self.version[:10] if '/' in self.package else self.version}"


@cache
def recorded() -> tuple[Reference, ...]:
    """All records, in the order of the file."""
    found = read_data(data_dir("references") / "equal.json")
    return tuple(Reference(**record) for record in found["records"])


def of_mixer(name: str) -> tuple[Reference, ...]:
    """The records of a mixer, without options or with any (`name+option`)."""
    return tuple(one for one in recorded() if one.mixer.split("+")[0] == name)
