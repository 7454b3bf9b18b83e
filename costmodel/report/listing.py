"""Which mixers are there: from which source, in which forms, held against whose code?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from costmodel.language.equations import Mixer
from costmodel.language.options import joined
from costmodel.mixers import builtin, names
from costmodel.program.phases import inference_reason
from costmodel.questions.subject import system_of
from costmodel.report.document import Column, Document, Note, Rows, Section, Table

OWN = "our own reading only"
"""What stands where no reference implementation was found."""


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


def document(found: Sequence[Entry]) -> Document:
    """One table, the mixers of each paper below its name; CSV and JSON say more of each."""
    return Document(
        lambda: [_table(found)],
        data=lambda: {"mixers": [entry.as_json() for entry in found]},
        rows=lambda: _rows(found),
    )


def _table(found: Sequence[Entry]) -> Table:
    papers: dict[str, list[Entry]] = {}
    for entry in found:
        papers.setdefault(entry.paper, []).append(entry)
    rows: list[tuple[str, ...] | Section] = []
    for paper, of in papers.items():
        rows += [Section((paper,)), *map(_row, of)]
    columns = (
        Column("name", "name", numeric=False, names=True),
        *(
            Column(name, header, numeric=False, wide=True)
            for name, header in (
                ("forms", "forms"),
                ("options", "options"),
                ("implementations", "implementations"),
                ("references", "equals, in float64"),
            )
        ),
    )
    notes = (
        Note(("forms: the first is the default; * has no one-token inference",)),
        *_options(found),
        Note((f"groups, for --group: {', '.join(dict.fromkeys(e.mixer.group for e in found))}",)),
        Note(("a mixer of your own is given as FILE.py:NAME wherever a name is taken",)),
        Note(("`costmodel explain NAME` prints title, source and equations",)),
    )
    return Table("Mixers, by paper", columns, tuple(rows), notes)


def _row(entry: Entry) -> tuple[str, ...]:
    aliases = "".join(f" ({alias})" for alias in entry.mixer.aliases)
    return (
        entry.mixer.name + aliases,
        entry.forms,
        ", ".join(entry.mixer.offers) or "none",
        ", ".join(entry.implementations) or "none",
        ", ".join(entry.mixer.references) or OWN,
    )


def _rows(found: Sequence[Entry]) -> Rows:
    header = ("paper", "name", "aliases", "title", "group", "forms", "options", "implementations",
              "references", "source")  # fmt: skip
    rows = []
    for entry in found:
        _, *more = _row(entry)
        mixer = entry.mixer
        lead = (entry.paper, mixer.name, ", ".join(mixer.aliases), mixer.title, mixer.group)
        rows.append((*lead, *more, mixer.source))
    return header, rows


def _options(found: Sequence[Entry]) -> list[Note]:
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
    return [Note((line,)) for line in lines]
