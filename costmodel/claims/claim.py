"""Printed claims as data files state them, and the range of values that a rounded figure allows.

A file is JSON or TOML; tables/published/README.md lists its keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from fractions import Fraction
from itertools import product
from math import ceil, floor, prod
from pathlib import Path
from typing import Any

from costmodel.data import read_data
from costmodel.errors import PublishedError, TooMuch
from costmodel.language.formula_text import parse
from costmodel.mixers.load import only_imported
from costmodel.program.conventions import convention
from costmodel.symbolic.effort import limited, spend
from costmodel.symbolic.sizes import checked, known

RELATIONS: Mapping[str, Callable[[Any, Any], bool]] = {
    ">": lambda a, b: bool(a > b),
    "<": lambda a, b: bool(a < b),
    "=": lambda a, b: bool(a == b),
}


COMPARED = ("ratio", "difference", "percent")
"""How a claim may combine two values a and b: a/b, a - b, 100*(a - b)/b."""


@dataclass(frozen=True)
class Claim:
    """One printed statement of a data file. `claimed` is the original wording, `gloss` in English.

    A claim with `unchecked` (a reason) or `lacks` (a mixer that the catalogue lacks) is listed but
    not checked. For such a claim, `beside` names a quantity to derive and to show next to it, such
    as operations next to a measured time. `misprint` holds the reason and the derived value of a
    known disagreement.
    """

    id: str
    source: str
    place: str
    kind: str
    claimed: str
    gloss: str = ""
    mixer: str = ""
    model: str = ""
    against: str = ""
    against_mixer: str = ""
    form: str = ""
    phase: str = ""
    quantity: str = ""
    formula: str = ""
    equals: str = ""
    reconstruction: str = ""
    steps: str = ""
    value: str = ""
    unit: str = ""
    rounding: str = ""
    compare: str = ""
    relation: str = ""
    letter: str = ""
    vague: str = ""
    remark: str = ""
    unchecked: str = ""
    lacks: str = ""
    beside: str = ""
    sizes: Mapping[str, int | list[int]] = field(default_factory=dict)
    growing: Mapping[str, str] = field(default_factory=dict)
    misprint: Mapping[str, str] = field(default_factory=dict)
    claims: tuple[str, ...] = ()
    convention: tuple[str, ...] = ("strict",)
    citation: str = ""

    @property
    def left_open(self) -> str:
        """The reason why the claim is not checked; "" if it is checked."""
        absent = f"{self.lacks} is not among the mixers, so that nothing is derived for it"
        return "; ".join(filter(None, [self.unchecked, self.lacks and absent]))


KEYS = ("id", "place", "kind", "claimed")
"""The keys that every claim has."""


ABOUT = "mixer or model"


REQUIRED: Mapping[str, tuple[str, ...]] = {
    "formula": (ABOUT, "quantity", "formula"),
    "number": (ABOUT, "quantity", "sizes", "value"),
    "path": ("mixer", "steps"),
    "ordering": (ABOUT, "against", "quantity", "relation"),
    "threshold": (ABOUT, "against", "quantity", "relation", "sizes"),
    "ratio": (ABOUT, "against", "quantity", "value"),
    "order": (ABOUT, "quantity", "formula"),
    "model": ("model", "quantity", "value"),
    "interval": (ABOUT, "quantity", "letter", "value"),
    "intersection": ("claims",),
    "value": ("formula", "value"),
}
"""Kind of claim -> the keys that it needs besides `KEYS`."""


TYPES: Mapping[str, tuple[type[Any], str]] = {
    "sizes": (dict, "an object"),
    "growing": (dict, "an object"),
    "misprint": (dict, "an object"),
    "claims": (list, "a list"),
    "convention": (list, "a list"),
}
"""Key -> its type, with words for messages, for the keys whose values are not texts."""


def load(path: Path) -> list[Claim]:
    """The claims of one file: TOML if its name ends in .toml, else JSON.

    Raises:
        PublishedError: a file that is neither, an unknown or missing key, a value of another type,
            an unknown kind, a bad formula.
    """
    try:
        data = read_data(path)
    except ValueError as reason:
        raise PublishedError(f"{path} is not a readable file of claims: {reason}") from None
    if not isinstance(data, dict) or data.get("schema") != 1 or "claims" not in data:
        raise PublishedError(f"{path}: expected an object with schema 1 and a list of claims")
    source, names = data.get("source"), data.get("convention", ["strict"])
    if not isinstance(source, str) or not source:
        raise PublishedError(f"{path}: 'source' says which paper the claims are printed in")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise PublishedError(f"{path}: 'convention' is a list of names, such as [\"strict\"]")
    citation = data.get("citation", "")
    if not isinstance(citation, str):
        raise PublishedError(f"{path}: 'citation' is a text, got {citation!r}")
    if not isinstance(data["claims"], list):
        raise PublishedError(f"{path}: 'claims' is a list of claims")
    common = {"source": source, "convention": tuple(names), "citation": citation}
    return [_claim_of_entry(path, common, k, entry) for k, entry in enumerate(data["claims"], 1)]


def _checked_entry(where: str, entry: Any) -> Mapping[str, Any]:
    """The keys and values of one claim, with tuples for lists; PublishedError if a key is unknown
    or missing, or a value has another type."""
    if not isinstance(entry, dict):
        raise PublishedError(f"{where}: expected an object with keys, got {entry!r}")
    missing = [key for key in KEYS if key not in entry]
    if missing:
        raise PublishedError(f"{where} lacks {', '.join(missing)}: every claim has them")
    known = {f.name for f in fields(Claim)} - {"source", "citation"}
    if unknown := sorted(set(entry) - known):
        choices = ", ".join(sorted(known))
        raise PublishedError(f"{where}: unknown key {', '.join(unknown)}: known are {choices}")
    for key, value in entry.items():
        wanted, words = TYPES.get(key, (str, "a text"))
        if not isinstance(value, wanted):
            written = f': write {key} = "{value}"' if type(value) in (int, float) else ""
            raise PublishedError(f"{where}: '{key}' is {words}, got {value!r}{written}")
        if wanted is list and not all(isinstance(item, str) for item in value):
            raise PublishedError(f"{where}: '{key}' is a list of texts, got {value!r}")
    lists = {key: tuple(entry[key]) for key in TYPES if isinstance(entry.get(key), list)}
    return {**entry, **lists}


def _claim_of_entry(path: Path, common: Mapping[str, Any], number: int, entry: Any) -> Claim:
    name = entry.get("id") if isinstance(entry, dict) else None
    where = f"{path.name}, claim {name or f'number {number}'}"
    claim = Claim(**{**common, **_checked_entry(where, entry)})
    try:
        for name in (claim.mixer, claim.against, claim.against_mixer):
            only_imported(name)
        with limited():
            validate(claim)
    except (ValueError, TooMuch) as reason:
        raise PublishedError(f"{where}: {reason}") from None
    return claim


def validate(claim: Claim) -> None:
    """Check that a claim has the keys that its kind needs, and that its values can be read.

    Raises:
        ValueError: one sentence that names the key or the value.
    """
    if claim.kind not in REQUIRED:
        raise ValueError(f"kind '{claim.kind}' is none of {', '.join(REQUIRED)}")
    if claim.beside and not claim.left_open:
        raise ValueError("'beside' is for a claim that is not checked: it lacks 'unchecked'")
    if claim.beside or not claim.left_open:
        missing = [key for key in REQUIRED[claim.kind] if not _has_key(claim, key)]
        if missing:
            raise ValueError(f"a claim of kind {claim.kind} needs {', '.join(missing)}")
    if claim.relation and claim.relation not in RELATIONS:
        raise ValueError(f"relation '{claim.relation}' is none of > < =")
    if claim.kind == "order" and claim.relation not in ("", "<"):
        raise ValueError(f"relation '{claim.relation}': an O(...) takes < (slower) or none")
    if claim.compare and claim.compare not in COMPARED:
        raise ValueError(f"compare '{claim.compare}' is none of {', '.join(COMPARED)}")
    if claim.misprint and set(claim.misprint) != {"reason", "derived"}:
        raise ValueError("a misprint states its reason and the derived value")
    for text in (claim.formula, claim.equals, claim.reconstruction):
        if text:
            parse(text, growing=claim.kind == "order")
    if claim.growing and claim.kind != "order":
        raise ValueError("'growing' is for a claim of kind order")
    for letter, text in claim.growing.items():
        known(letter)
        if not isinstance(text, str):
            raise ValueError(f"'growing' is texts: {letter} = {text}")
        parse(text, growing=True)
    if claim.value and not claim.left_open:
        printed_figure(claim.value, claim.unit, claim.rounding)
    list(sizes_of_claim(claim))
    convention(claim.convention)


def _has_key(claim: Claim, key: str) -> bool:
    if key == ABOUT:
        return bool(claim.mixer or claim.model)
    if key == "sizes":
        return bool(claim.sizes or claim.model)
    return bool(getattr(claim, key))


MOST_SIZES, EACH_SIZES = 10_000, 100
"""The most combinations of sizes of a claim; the units of effort that one combination takes."""


def sizes_of_claim(claim: Claim) -> Iterator[dict[str, int]]:
    """The sizes at which a claim is checked: all combinations of the listed values."""
    values = [v if isinstance(v, list) else [v] for v in claim.sizes.values()]
    if (number := prod(map(len, values))) > MOST_SIZES:
        raise ValueError(f"{number:,} combinations of sizes: a claim gives at most {MOST_SIZES:,}")
    for chosen in product(*values):
        spend(EACH_SIZES)
        yield checked(dict(zip(claim.sizes, chosen, strict=True)))


_LITERAL = re.compile(r"[+-]?\d+(?:\.(\d+))?(?:[eE]([+-]?\d+))?")


PRINTED = "printed"
"""The rounding of a figure that is rounded to its last printed digit."""


@dataclass(frozen=True)
class PrintedFigure:
    """A printed figure: its value, and the step to which the value is rounded (0: exact)."""

    value: Fraction
    step: Fraction = Fraction(0)

    @property
    def low(self) -> Fraction:
        """The least value that rounds to the figure; half a step may be rounded up or down."""
        return self.value - self.step / 2

    @property
    def high(self) -> Fraction:
        """The largest value that rounds to the figure."""
        return self.value + self.step / 2

    def holds(self, value: Fraction) -> bool:
        """Whether a value rounds to this figure.

        >>> printed_figure("3.3959", "1e6", "printed").holds(Fraction(3395924))
        True
        """
        return self.low <= value <= self.high

    def otherwise(self, value: Fraction) -> str:
        """The other rounding that gives this figure, "rounded down" or "rounded up"; else ""."""
        if self.step and floor(value / self.step) * self.step == self.value:
            return "rounded down"
        if self.step and ceil(value / self.step) * self.step == self.value:
            return "rounded up"
        return ""


def printed_figure(value: str, unit: str = "", rounding: str = "") -> PrintedFigure:
    """Read a figure as it is printed.

    Args:
        value: a number, or a formula without sizes.
        unit: the number that the value is a multiple of, such as 1e6 for millions; 1 if empty.
        rounding: `printed` (to its last digit), a step in the same unit, or empty (exact).

    Raises:
        ValueError: what was expected and what came.
    """
    scale = parse(unit).at({}) if unit else Fraction(1)
    number = parse(value).at({}) * scale
    if not rounding:
        return PrintedFigure(number)
    if rounding != PRINTED:
        step = parse(rounding).at({})
    elif literal := _LITERAL.fullmatch(value):
        decimals, exponent = literal[1] or "", int(literal[2] or 0)
        step = Fraction(10) ** (exponent - len(decimals))
    else:
        raise ValueError(f"rounding '{PRINTED}' needs a value in digits, got '{value}'")
    if step <= 0:
        raise ValueError(f"rounding needs a positive step, got '{rounding}'")
    return PrintedFigure(number, step * abs(scale))
