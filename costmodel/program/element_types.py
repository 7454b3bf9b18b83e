"""Element types: the bytes of an entry in each, and the types of activations, state and weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from costmodel.errors import Unanswered
from costmodel.language.equations import Mixer
from costmodel.symbolic.polynomial import Poly

BYTES: Mapping[str, int] = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}
"""Element type -> the size of an element in bytes."""

QUANTISED: Mapping[str, tuple[int, int]] = {"q8_0": (32, 34), "q4_0": (32, 18), "int4": (2, 1)}
"""Element type in blocks, of weights and rows of tokens -> the entries and the bytes of a block:
those of llama.cpp with their scale, and two entries in a byte without one."""


def element_bytes(dtype: str) -> int:
    """The size of an element in bytes; ValueError lists the known types."""
    if dtype not in BYTES:
        raise ValueError(f"unknown dtype '{dtype}': expected one of {', '.join(BYTES)}")
    return BYTES[dtype]


def entry_bytes(dtype: str) -> int | Fraction:
    """The bytes of an entry, a fraction for a type in blocks: 17/16 for q8_0, of which 32 entries
    take 34 bytes; ValueError lists the known types."""
    if dtype in QUANTISED:
        entries, taken = QUANTISED[dtype]
        return Fraction(taken, entries)
    if dtype not in BYTES:
        known = ", ".join((*BYTES, *QUANTISED))
        raise ValueError(f"unknown dtype '{dtype}': expected one of {known}")
    return BYTES[dtype]


def bytes_in_rows(dtype: str, row: Poly) -> Poly:
    """The bytes of an entry in rows of `row` entries. Blocks of a type (`QUANTISED`) lie along a
    row, and each row takes whole blocks: 100 entries of q8_0 take 4 blocks, so that an entry takes
    136/100. Unanswered for a row that is a sum of sizes."""
    if dtype not in QUANTISED:
        return Poly.of(entry_bytes(dtype))
    entries, taken = QUANTISED[dtype]
    if len(row.terms) != 1:
        raise Unanswered(
            f"{dtype} stores rows in blocks of {entries} entries, and how many of them a row "
            f"of {row} entries takes is not derived: choose an unquantised type, such as bf16, or "
            f"give numbers for {', '.join(sorted(row.letters))}"
        )
    return (row + entries - 1) // entries * taken / row


USUAL = "fp32"
"""The element type of a mixer where none is named."""


@dataclass(frozen=True)
class Dtypes:
    """Element types by role (`cache`: kept rows of tokens, `state`: entries of recurrences); ""
    where a user names no type of activations, None for the type of activations. `quantised`: the
    sentence that asks for the type of a network's quantised weights; "" for others."""

    activations: str = ""
    state: str | None = None
    weights: str | None = None
    cache: str | None = None
    quantised: str = ""

    def of(self, subject: Mapping[str, str]) -> Dtypes:
        """These types, with the types of a mixer or network (`Mixer.dtypes`) where a user names
        none: of activations, then of the state; else fp32. The weights stay quantised only if a
        user names no type of activations and none of weights."""
        named = self.activations or self.weights
        return replace(
            self,
            activations=self.activations or subject.get("activations", USUAL),
            state=self.state or subject.get("state") or None,
            quantised=self.quantised if named else subject.get("quantised", ""),
        )

    def caption_of(self, subjects: Iterable[Mixer]) -> str:
        """The element types of mixers and networks in words: once if all have the same types, else
        with names: `elements fp32 (self-attention); elements bf16, state fp32 (gpt-2)`. If weights
        have a type of their own, constant tables have it too, and are named."""
        having: dict[str, dict[str, None]] = {}
        tables: dict[str, None] = {}
        for subject in subjects:
            having.setdefault(self.of(subject.dtypes).caption, {})[subject.name] = None
            tables |= {a.name: None for a in subject.arrays.values() if a.role == "buffer"}
        said = [f"{caption} ({', '.join(names)})" for caption, names in having.items()]
        if len(having) == 1:
            said = [*having]
        if self.weights and tables:
            said.append(f"constant tables ({', '.join(tables)}) take the type of weights")
        return "; ".join(said)

    @property
    def caption(self) -> str:
        """The element types in words, for a caption: `elements bf16, state fp32`."""
        named = [f"{role} {dtype}" for role, dtype in self._own.items() if dtype]
        return ", ".join([f"elements {self.name_of('activations')}", *named])

    @property
    def _own(self) -> Mapping[str, str | None]:
        """Role -> its own element type, in the order of a caption."""
        return {"cache": self.cache, "state": self.state, "weights": self.weights}

    def record_of(self, subject: Mapping[str, str]) -> dict[str, str | None]:
        """The element types by role of a mixer or network with the types `subject`, for JSON; of
        quantised weights None."""
        types = self.of(subject)
        own = {role: dtype or types.activations for role, dtype in types._own.items()}
        weights = None if types.quantised else own["weights"]
        return {"activations": types.activations, **own, "weights": weights}

    def name_of(self, kind: str) -> str:
        """The element type of "activations", "cache", "state", "weights" or "rows" of weights;
        Unanswered for weights that are quantised."""
        role = "weights" if kind == "rows" else kind
        if role == "weights" and self.quantised:
            raise Unanswered(self.quantised)
        return self._own.get(role) or self.activations or USUAL

    def bytes_of(self, kind: str) -> int | Fraction:
        """Bytes per entry of a kind ("cache", ...). Unanswered: quantised; ValueError: unknown."""
        return entry_bytes(self.name_of(kind))

    def bytes_in_rows(self, kind: str, row: Poly) -> Poly:
        """Bytes per element of a kind in rows of `row` entries (`bytes_in_rows`)."""
        return bytes_in_rows(self.name_of(kind), row)

    def checked(self) -> Dtypes:
        """These types; ValueError for an unknown one. Only weights and rows of tokens (`cache`) may
        have types in blocks (`QUANTISED`)."""
        for name in filter(None, (self.activations, self.state)):
            element_bytes(name)
        for name in filter(None, (self.weights, self.cache)):
            entry_bytes(name)
        return self
