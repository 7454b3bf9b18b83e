"""The sizes at which two mixers cost the same, or nearly the same, as a document.

The open size is a size of the first mixer; its candidates are the values at which a figure, such as
`parameters`, equals that of the other mixer or is nearest to it from above or below.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from costmodel.backwards.match import Match, Solution
from costmodel.questions.question import Figure
from costmodel.report import document as doc
from costmodel.report.backwards.sizes import goes_on, words
from costmodel.report.document import Column, Document, Equal, Line, Note, Rows
from costmodel.report.mixer_document import convention_line, named_form
from costmodel.report.mixer_table import Request
from costmodel.report.records import exact
from costmodel.symbolic.sizes import in_order


@dataclass(frozen=True)
class Matching:
    """The answer of `match`.

    Args:
        request: the mixer and the other mixer, and the options; one phase.
        found: the sizes of both mixers, and the candidates: values of the open size.
        figure: the figure whose value is to be that of the other mixer.
        forms: the form of the mixer, and the form of the other mixer.
    """

    request: Request
    found: Match
    figure: Figure
    forms: tuple[str, str]

    @property
    def document(self) -> Document:
        """The document, with one table."""
        return Document(lambda: [self._table()], self._lead, self._data, self._csv)

    @property
    def _lead(self) -> tuple[Line, ...]:
        """The lines above the table: each of the two mixers with its sizes, and the convention."""
        mixer, other = self.request.mixers
        return (
            (*named_form(mixer, self.forms[0]), " at ", *_at(self.found.sizes)),
            (*named_form(other, self.forms[1]), " at ", *_at(self.found.target_sizes)),
            (convention_line(self.request.convention),),
        )

    def _table(self) -> doc.Table:
        """The table with a row for each candidate, a value of the open size: whether the figure
        there equals that of the other mixer or is nearest from above or below, the size, the
        figure, and by how much it exceeds that of the other mixer."""
        mixer, other = self.request.mixers
        unit = f" ({self.figure.unit})" if self.figure.unit in ("bytes", "elements") else ""
        value = f"{self.figure.name}{unit}"
        columns = (
            Column("match", "match", numeric=False, names=True),
            Column("size", doc.letter(self.found.letter)),
            Column("value", value),
            Column("difference", "difference"),
        )
        rows = tuple(
            (self._side(one), words(one.at), one.value, self._apart(one))
            for one in self.found.candidates
        )
        notes = [Note((*named_form(other, self.forms[1]), f": {value} ", self.found.target))]
        if self.figure.unit == "bytes":
            notes.append(Note((f"bytes: {self.request.dtypes.caption_of(self.request.mixers)}",)))
        title = (
            f"{self.figure.title}: ", *named_form(mixer, self.forms[0]), " nearest to ",
            *named_form(other, self.forms[1]), f" ({self.request.phases[0]})",
        )  # fmt: skip
        return doc.Table(title, columns, rows, tuple(notes), lead=self._lead)

    def _side(self, one: Solution) -> str:
        apart = self._apart(one)
        return "equal" if apart == 0 else "above" if apart > 0 else "below"

    def _apart(self, one: Solution) -> Any:
        return one.value - self.found.target

    @property
    def _about(self) -> dict[str, Any]:
        """The question for CSV and JSON, name of a column -> value: both mixers and forms, the
        figure, the open size, the phase."""
        mixer, other = self.request.mixers
        return {
            "mixer": mixer.name,
            "form": self.forms[0],
            "to": other.name,
            "to_form": self.forms[1],
            "by": self.figure.name,
            "vary": self.found.letter,
            "phase": self.request.phases[0],
        }

    @property
    def _candidates(self) -> list[dict[str, Any]]:
        """The sizes found, as objects of JSON: ranges first to last (null if the range goes on),
        with the value there and the difference to the other mixer."""
        return [
            {
                "match": self._side(one),
                "first": one.at.first,
                "last": None if goes_on(one.at) else one.at.last,
                "step": one.at.step,
                "value": exact(one.value),
                "difference": exact(self._apart(one)),
            }
            for one in self.found.candidates
        ]

    def _csv(self) -> Rows:
        lead = {"convention": ",".join(self.request.convention.names), **self._about}
        lead |= _sorted(self.found.sizes)
        rows = [{**lead, **one, "target": exact(self.found.target)} for one in self._candidates]
        return [*rows[0]], [[*row.values()] for row in rows]

    def _data(self) -> dict[str, Any]:
        """The object of JSON: the question, `sizes` of the mixer, `target_sizes` of the other mixer
        and its value `target`, and the values of the open size that match or are nearest."""
        return {
            **self._about,
            "convention": list(self.request.convention.names),
            "sizes": _sorted(self.found.sizes),
            "dtypes": [self.request.dtypes.record_of(m.dtypes) for m in self.request.mixers],
            "target": exact(self.found.target),
            "target_sizes": _sorted(self.found.target_sizes),
            "candidates": self._candidates,
        }


def _sorted(sizes: Mapping[str, int]) -> dict[str, int]:
    return {letter: sizes[letter] for letter in in_order(sizes)}


def _at(sizes: Mapping[str, int]) -> Line:
    return doc.listed((Equal((doc.letter(x), str(n))),) for x, n in _sorted(sizes).items())
