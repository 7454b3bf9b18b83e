"""Which mixers are there: from which source, in which forms, held against whose code?"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from costmodel.language.equations import Mixer
from costmodel.language.options import joined
from costmodel.mixers import builtin, names
from costmodel.program.phases import inference_reason
from costmodel.questions.subject import system_of
from costmodel.report import cells, render

OWN = "our own reading only"
"""What stands where no reference implementation was found."""

WORDS = ("title", "forms", "options", "implementations", "references", "source")
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
    def paper(self) -> str:
        """Author and year of the source, which its versions and sections share."""
        return self.mixer.source.split(",")[0]

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
            "paper": self.paper,
            "source": self.mixer.source,
            "forms": {f: {"inference": r is None, "reason": r} for f, r in self.inference.items()},
            "options": dict(self.mixer.offers),
            "implementations": list(self.implementations),
            "references": list(self.mixer.references),
        }


def entries(implementations: Mapping[str, Sequence[str]]) -> list[Entry]:
    """Every built-in mixer, with the names of its implementations."""
    return [Entry(builtin(name), tuple(implementations.get(name, ()))) for name in names()]


def grids(found: Sequence[Entry]) -> list[cells.Grid]:
    """One table a paper, in the order of the first mixer that each has; notes below the last."""
    papers: dict[str, list[Entry]] = {}
    for entry in found:
        papers.setdefault(entry.paper, []).append(entry)
    last = list(papers)[-1]
    return [
        _grid(paper, of, _notes(found) if paper == last else ()) for paper, of in papers.items()
    ]


def _grid(paper: str, found: Sequence[Entry], notes: tuple[cells.Note, ...]) -> cells.Grid:
    columns = tuple(
        cells.Column(name, header, numeric=False, wide=name in WORDS)
        for name, header in (
            ("name", "name"),
            ("aliases", "also"),
            ("title", "title"),
            ("group", "group"),
            ("forms", "forms"),
            ("options", "options"),
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
            ", ".join(entry.mixer.offers) or "none",
            ", ".join(entry.implementations) or "none",
            ", ".join(entry.mixer.references) or OWN,
            entry.mixer.source,
        )
        for entry in found
    )
    return cells.Grid(paper, columns, rows, notes=notes, drop=DROP)


def _notes(found: Sequence[Entry]) -> tuple[cells.Note, ...]:
    return (
        cells.Note(("forms: the first is the default; * has no one-token inference",)),
        *_options(found),
        cells.Note(("a mixer of your own is given as FILE.py:NAME wherever a name is taken",)),
    )


def _options(found: Sequence[Entry]) -> list[cells.Note]:
    """What may follow a name, and what it means."""
    alike: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for mixer in (entry.mixer for entry in found):
        if mixer.offers:
            alike.setdefault(tuple(mixer.offers.items()), []).append(mixer.name)
    if not alike:
        return []
    offers, members = next(iter(alike.items()))
    example = joined(members[0], [offers[0][0]])
    lines = [f"options follow a name, as in {example}; any that go together, in any order"]
    for offers, members in alike.items():
        taken = ", ".join(f"{option} ({means})" for option, means in offers)
        lines.append(f"options of {', '.join(members)}: {taken}")
    return [cells.Note((line,)) for line in lines]


def as_json(found: Sequence[Entry]) -> str:
    """The entries, one a line."""
    inside = ",\n  ".join(json.dumps(entry.as_json()) for entry in found)
    return f'{{"schema": 1, "mixers": [\n  {inside}\n]}}\n'


def as_csv(found: Sequence[Entry]) -> str:
    """The entries as comma-separated values."""
    shown = grids(found)
    rows = [(grid.title, *row) for grid in shown for row in grid.rows]
    return render.as_csv(["paper", *(c.name for c in shown[0].columns)], rows)
