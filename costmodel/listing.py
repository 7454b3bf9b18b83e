"""Which mixers are there: from which source, in which forms, held against whose code?"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from costmodel import render
from costmodel.equations import Mixer
from costmodel.mixers import builtin, names
from costmodel.tokens import inference_reason, system_of

OWN = "our own reading only"
"""What stands where no reference implementation was found."""

WORDS = ("title", "forms", "implementations", "references", "source")
DROP = ("title", "group", "aliases", "source")


@dataclass(frozen=True)
class Entry:
    """One mixer; `inference` has a reason for every form without one-token inference."""

    mixer: Mixer
    implementations: tuple[str, ...]

    @property
    def inference(self) -> dict[str, str | None]:
        """Form -> why it has no one-token inference, None where it has."""
        return {
            form: inference_reason(system_of(self.mixer, form, (), "inference"))
            for form in self.mixer.forms
        }

    @property
    def forms(self) -> str:
        """The forms, those without one-token inference marked."""
        return ", ".join(f"{f}*" if reason else f for f, reason in self.inference.items())

    def as_json(self) -> dict[str, object]:
        """The entry for other programs."""
        return {
            "name": self.mixer.name,
            "aliases": list(self.mixer.aliases),
            "title": self.mixer.title,
            "group": self.mixer.group,
            "source": self.mixer.source,
            "forms": {f: {"inference": r is None, "reason": r} for f, r in self.inference.items()},
            "implementations": list(self.implementations),
            "references": list(self.mixer.references),
        }


def entries(implementations: Mapping[str, Sequence[str]]) -> list[Entry]:
    """Every built-in mixer, with the names of its implementations."""
    return [Entry(builtin(name), tuple(implementations.get(name, ()))) for name in names()]


def grid(found: Sequence[Entry]) -> render.Grid:
    """The entries as a table."""
    columns = tuple(
        render.Column(name, header, numeric=False, wide=name in WORDS)
        for name, header in (
            ("name", "name"),
            ("aliases", "also"),
            ("title", "title"),
            ("group", "group"),
            ("forms", "forms"),
            ("implementations", "implementations"),
            ("references", "equals, in float64"),
            ("source", "source"),
        )
    )
    rows = tuple(
        (
            entry.mixer.name,
            ", ".join(entry.mixer.aliases),
            entry.mixer.title,
            entry.mixer.group,
            entry.forms,
            ", ".join(entry.implementations) or "none",
            ", ".join(entry.mixer.references) or OWN,
            entry.mixer.source,
        )
        for entry in found
    )
    notes = (
        render.Note(("forms: the first is the default; * has no one-token inference",)),
        render.Note(("a mixer of your own is given as FILE.py:NAME wherever a name is taken",)),
    )
    return render.Grid("Mixers", columns, rows, notes=notes, drop=DROP)


def as_json(found: Sequence[Entry]) -> str:
    """The entries, one a line."""
    inside = ",\n  ".join(json.dumps(entry.as_json()) for entry in found)
    return f'{{"schema": 1, "mixers": [\n  {inside}\n]}}\n'


def as_csv(found: Sequence[Entry]) -> str:
    """The entries as comma-separated values."""
    shown = grid(found)
    return render.as_csv([c.name for c in shown.columns], shown.rows)
