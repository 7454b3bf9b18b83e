"""How is a printed claim written down, and how is a file of claims read?"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from itertools import product
from pathlib import Path
from typing import Any

from costmodel.conventions import convention
from costmodel.formulas import parse
from costmodel.sizes import checked

RELATIONS: Mapping[str, Callable[[Any, Any], bool]] = {
    ">": lambda a, b: bool(a > b),
    "<": lambda a, b: bool(a < b),
    "=": lambda a, b: bool(a == b),
}


class PublishedError(ValueError):
    """A file of claims that cannot be read; the message names file, claim and what was expected."""


@dataclass(frozen=True)
class Claim:
    """One printed statement, as the data files hold it. `claimed` is verbatim, `gloss` English.

    A claim with `unchecked` (the reason) is kept and not checked. `misprint` holds the reason and
    the derived value of a disagreement that is known.
    """

    id: str
    source: str
    place: str
    kind: str
    claimed: str
    gloss: str = ""
    mixer: str = ""
    against: str = ""
    phase: str = ""
    quantity: str = ""
    formula: str = ""
    equals: str = ""
    reconstruction: str = ""
    steps: str = ""
    value: str = ""
    relation: str = ""
    vague: str = ""
    remark: str = ""
    unchecked: str = ""
    sizes: Mapping[str, int | list[int]] = field(default_factory=dict)
    misprint: Mapping[str, str] = field(default_factory=dict)
    convention: tuple[str, ...] = ("strict",)


KEYS = ("id", "place", "kind", "claimed")
"""What every claim has."""

REQUIRED: Mapping[str, frozenset[str]] = {
    "formula": frozenset({"mixer", "quantity", "formula"}),
    "number": frozenset({"mixer", "quantity", "sizes", "value"}),
    "path": frozenset({"mixer", "steps"}),
    "ordering": frozenset({"mixer", "against", "quantity", "relation"}),
    "threshold": frozenset({"mixer", "against", "quantity", "relation", "sizes"}),
    "ratio": frozenset({"mixer", "against", "quantity", "sizes", "value"}),
}


def load(path: Path) -> list[Claim]:
    """The claims of one file.

    Raises:
        PublishedError: not JSON, an unknown or missing key, a value of another type, an unknown
            kind, a bad formula.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as reason:
        raise PublishedError(f"{path} is not a readable file of claims: {reason}") from None
    if not isinstance(data, dict) or data.get("schema") != 1 or "claims" not in data:
        raise PublishedError(f"{path}: expected an object with schema 1 and a list of claims")
    source, names = data.get("source"), data.get("convention")
    if not isinstance(source, str) or not source:
        raise PublishedError(f"{path}: 'source' says which paper the claims are printed in")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise PublishedError(f"{path}: 'convention' is a list of names, such as [\"strict\"]")
    if not isinstance(data["claims"], list):
        raise PublishedError(f"{path}: 'claims' is a list of claims")
    common = {"source": source, "convention": tuple(names)}
    return [_claim(path, common, k, entry) for k, entry in enumerate(data["claims"], 1)]


def _entry(where: str, entry: Any) -> Mapping[str, Any]:
    """The keys of a claim, each known, each of its type, none that it needs missing."""
    if not isinstance(entry, dict):
        raise PublishedError(f"{where}: expected an object with keys, got {entry!r}")
    missing = [key for key in KEYS if key not in entry]
    if missing:
        raise PublishedError(f"{where} lacks {', '.join(missing)}: every claim has them")
    known = {f.name for f in fields(Claim)} - {"source", "convention"}
    if unknown := sorted(set(entry) - known):
        choices = ", ".join(sorted(known))
        raise PublishedError(f"{where}: unknown key {', '.join(unknown)}: known are {choices}")
    for key, value in entry.items():
        wanted = dict if key in ("sizes", "misprint") else str
        if not isinstance(value, wanted):
            kind = "an object" if wanted is dict else "a text"
            raise PublishedError(f"{where}: '{key}' is {kind}, got {value!r}")
    return entry


def _claim(path: Path, common: Mapping[str, Any], number: int, entry: Any) -> Claim:
    name = entry.get("id") if isinstance(entry, dict) else None
    where = f"{path.name}, claim {name or f'number {number}'}"
    claim = Claim(**common, **_entry(where, entry))
    if claim.kind not in REQUIRED:
        raise PublishedError(f"{where}: kind '{claim.kind}' is none of {', '.join(REQUIRED)}")
    if not claim.unchecked:
        missing = sorted(key for key in REQUIRED[claim.kind] if not getattr(claim, key))
        if missing:
            raise PublishedError(f"{where}: a {claim.kind} needs {', '.join(missing)}")
    if claim.relation and claim.relation not in RELATIONS:
        raise PublishedError(f"{where}: relation '{claim.relation}' is none of > < =")
    if claim.misprint and set(claim.misprint) != {"reason", "derived"}:
        raise PublishedError(f"{where}: a misprint states its reason and the derived value")
    try:
        for text in (claim.formula, claim.equals, claim.reconstruction):
            if text:
                parse(text)
        list(instances(claim))
        convention(claim.convention)
    except ValueError as reason:
        raise PublishedError(f"{where}: {reason}") from None
    return claim


def instances(claim: Claim) -> Iterator[dict[str, int]]:
    """The sizes that a claim speaks about: a list of values stands for each of them."""
    values = [v if isinstance(v, list) else [v] for v in claim.sizes.values()]
    for chosen in product(*values):
        yield checked(dict(zip(claim.sizes, chosen, strict=True)))
