"""The kinds of claims, and claims as data files state them.

A file is JSON or TOML; tables/published/README.md lists its keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from costmodel.claims.asymptotics import OrderClaim
from costmodel.claims.claim import Claim
from costmodel.claims.comparisons import FormulaClaim, OrderingClaim, PathClaim, ThresholdClaim
from costmodel.claims.numeric_claims import (
    ArithmeticClaim,
    IntersectionClaim,
    IntervalClaim,
    NetworkClaim,
    NumberClaim,
    RatioClaim,
)
from costmodel.claims.quantities import OF_NETWORKS
from costmodel.data import read_data
from costmodel.errors import PublishedError, TooMuch
from costmodel.mixers.load import refuse_unimported
from costmodel.questions.registry import CLAIMED, meant
from costmodel.symbolic.effort import limited

KINDS: Mapping[str, type[Claim]] = {
    kind.kind: kind
    for kind in (
        FormulaClaim, NumberClaim, PathClaim, OrderingClaim, ThresholdClaim, RatioClaim, OrderClaim,
        NetworkClaim, IntervalClaim, IntersectionClaim, ArithmeticClaim,
    )
}  # fmt: skip

KEYS = ("id", "place", "kind", "claimed")
"""The keys that every claim has."""


_IN_RECORDS: Mapping[str, tuple[type[Any], str]] = {
    "str": (str, "a string"), "int": (int, "a whole number"), "bool": (bool, "true or false"),
    "tuple": (list, "a list"), "Mapping": (dict, "an object"),
}  # fmt: skip
"""Type of a claim's field, without its arguments -> (its type in a record, that type in words)."""

TYPES: Mapping[str, tuple[type[Any], str]] = {
    key.name: _IN_RECORDS[str(key.type).partition("[")[0]]
    for kind in KINDS.values()
    for key in fields(kind)
}
"""Key -> (type of its value, the type in words)."""


def load(path: Path) -> list[Claim]:
    """The claims of one file: TOML if its name ends in .toml, else JSON.

    Raises:
        PublishedError: a file that is missing or neither, an unknown or missing key, a value of
            another type, an unknown kind, a bad formula; of all claims at once, a line for each.
    """
    try:
        data = read_data(path)
    except ValueError as reason:
        raise PublishedError(f"{path} is not a readable file of claims: {reason}") from None
    if not isinstance(data, dict):
        raise PublishedError(f"{path}: expected an object with the keys schema, source and claims")
    source, names = data.get("source"), data.get("convention", ["strict"])
    citation, claims = data.get("citation", ""), data.get("claims")
    wrong = list[str]()
    if data.get("schema") != 1:
        wrong.append(f"'schema' must be 1, got {data.get('schema')!r}")
    if not isinstance(source, str) or not source:
        wrong.append(f"'source' must name the paper of the claims, got {source!r}")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        wrong.append(f"'convention' must be a list of names, such as [\"strict\"], got {names!r}")
    if not isinstance(citation, str):
        wrong.append(f"'citation' must be a string, got {citation!r}")
    if not isinstance(claims, list):
        wrong.append(f"'claims' must be a list of claims, got {claims!r}")
    if wrong:
        raise PublishedError(f"{path}: {'; '.join(wrong)}")
    common = {"source": source, "convention": tuple(names), "citation": citation}
    found = list[Claim]()
    for number, entry in enumerate(data["claims"], 1):
        try:
            found.append(_claim_of_entry(path, common, number, entry))
        except PublishedError as error:
            wrong.append(str(error))
    if wrong:
        raise PublishedError("\n".join(wrong))
    return found


def keys_of(kind: type[Claim]) -> set[str]:
    """The keys that a record of a kind may have besides `kind`."""
    return {f.name for f in fields(kind)} - {"source", "citation", "without"}


def _claim_of_entry(path: Path, common: Mapping[str, Any], number: int, entry: Any) -> Claim:
    """The claim of one entry, the `number`th of its file; `common` holds what the file states for
    all claims (source, convention, citation). PublishedError if the entry is no claim."""
    name = entry.get("id") if isinstance(entry, dict) else None
    where = f"{path.name}, claim {name or f'number {number}'}"
    if not isinstance(entry, dict):
        raise PublishedError(f"{where}: expected an object with keys, got {entry!r}")
    kind = KINDS.get(str(entry.get("kind")))
    stated = {key: value for key, value in entry.items() if key != "kind"}
    if missing := [key for key in KEYS if key not in entry]:
        said = f"{where} lacks {', '.join(missing)}: every claim needs these keys"
        raise PublishedError("; ".join((said, *(_values_of(kind, stated)[1] if kind else ()))))
    if kind is None:
        raise PublishedError(f"{where}: kind '{entry['kind']}': expected one of {', '.join(KINDS)}")
    try:
        found, wrong = _values_of(kind, stated)
        if wrong:
            raise ValueError("; ".join(wrong))
        claim = kind(**{**common, **found, **_quantity_meant(kind, found)})
        for key in ("mixer", "against", "against_mixer"):
            refuse_unimported(stated.get(key, ""))
        with limited():
            claim.validate()
    except (ValueError, TooMuch) as reason:
        raise PublishedError(f"{where}: {reason}") from None
    return claim


def _quantity_meant(kind: type[Claim], stated: Mapping[str, Any]) -> dict[str, str]:
    """{key: name} for a claim whose quantity is derived: the key `quantity`, or `beside` for a
    claim that is not checked, with the name of the figure that its word means: {"quantity": "mul"}
    for `multiplications`.

    {} if the kind derives no such quantity, for a quantity of networks, and for an unknown word;
    ValueError for an ambiguous word.
    """
    key = "beside" if {"unchecked", "lacks"} & stated.keys() else "quantity"
    word = stated.get(key, "")
    if key not in (*kind.needs, "beside") or ("model" in stated and word in OF_NETWORKS):
        return {}
    name = meant(word, CLAIMED)
    return {} if name is None else {key: name}


def _values_of(kind: type[Claim], stated: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """({key: value} of a record, with tuples for lists; a clause for each key that `kind` lacks and
    each value of another type, and one for all unknown keys)."""
    known, found, wrong = keys_of(kind), dict[str, Any](), list[str]()
    of_others = {one.kind: keys_of(one) for one in KINDS.values()}
    every = {"kind"}.union(*of_others.values())
    for key, value in stated.items():
        if key not in every:
            continue
        if key not in known:
            kinds = ", ".join(name for name, keys in of_others.items() if key in keys)
            wrong.append(f"'{key}' is for a claim of kind {kinds}: leave out the key")
            continue
        wanted, words = TYPES[key]
        if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
            written = f', a number: write "{value}"' if type(value) in (int, float) else ""
            wrong.append(f"'{key}' must be {words}, got {value!r}{written}")
        elif wanted is list and not all(isinstance(item, str) for item in value):
            wrong.append(f"'{key}' must be a list of strings, got {value!r}")
        else:
            found[key] = tuple(value) if wanted is list else value
    if unknown := sorted({*stated} - every):
        wrong.append(f"unknown key {', '.join(unknown)}: known are {', '.join(sorted(every))}")
    return found, wrong
