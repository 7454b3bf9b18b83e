"""The document of `budget`: the largest size within limits for each mixer, and what stops it.

The open size is the one that the user asks for, such as t; all other sizes have values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from costmodel.backwards.budget import Budget, Limit, within
from costmodel.backwards.candidates import opened
from costmodel.errors import SizeError, Unanswered, Unsupported
from costmodel.language.equations import Mixer
from costmodel.program.chosen_sizes import combinations, letters_of, listed, refuse_unknown, ties
from costmodel.questions.question import Case, Missing, Whole, answers
from costmodel.report import document as doc
from costmodel.report.backwards.sizes import in_words
from costmodel.report.document import Column, Document, Equal, Line, Note, Rows, Text
from costmodel.report.mixer_document import (
    convention_line,
    named,
    named_form,
    sizes_of,
    without_answer,
)
from costmodel.report.mixer_table import Request, forms_of
from costmodel.report.records import exact
from costmodel.symbolic.sizes import in_order


@dataclass(frozen=True)
class Row:
    """One form of a mixer at given sizes: the largest size, or the reason why there is none."""

    mixer: Mixer
    form: str
    given: Mapping[str, int]
    found: Budget | Missing

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes that are not open, with defaults; of a row without an answer those given."""
        known = self.given if isinstance(self.found, Missing) else self.found.sizes
        return {letter: known[letter] for letter in in_order(known)}


@dataclass(frozen=True)
class Budgets:
    """The answers of `budget`: a row for each form of each mixer at each combination of sizes.

    Args:
        request: the mixers, the given sizes and the options; one phase.
        limits: the greatest amount of each limited quantity, such as the bytes of the state.
        letter: the open size.
    """

    request: Request
    limits: Sequence[Limit]
    letter: str

    @property
    def phase(self) -> str:
        """The only phase of the request, in which the limited quantities are counted."""
        return self.request.phases[0]

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """A row for each mixer, form and combination of the given sizes: the largest value of the
        open size (the size that the user asks for), or the reason why there is none.

        Raises:
            SizeError: an unknown given or open size (`refuse_unknown`), an open size that is given,
                or sizes that do not fit a mixer that the user named.
            Unanswered: no row has an answer, for the reason of the first; or no mixer has the form.
        """
        given, request, letter = self.request.given, self.request, self.letter
        refuse_unknown(given, request.mixers)
        if not any(letter in mixer.given for mixer in request.mixers if isinstance(mixer, Whole)):
            refuse_unknown([letter], request.mixers)  # of a network, `opened` says which may be
        if letter in given:
            raise SizeError(f"size {letter} is given and asked for: leave out one of the two")
        rows = [
            Row(mixer, form, sizes, self._found(mixer, form, sizes))
            for mixer in request.mixers
            for form in forms_of(mixer, request)
            for sizes in combinations(
                [x for x in letters_of(mixer, self.phase, form) if x in listed(given)],
                listed(given),
                mixer,
            )
        ]
        reasons = [
            f"{row.mixer.name}: {row.found.reason}"
            for row in rows
            if isinstance(row.found, Missing)
        ]
        if len(reasons) == len(rows):
            raise Unanswered([*reasons, f"none of these mixers has a form '{request.form}'"][0])
        return tuple(rows)

    def _found(self, mixer: Mixer, form: str, sizes: Mapping[str, int]) -> Budget | Missing:
        """The largest value of the open size within the limits, for one mixer, form and the other
        `sizes`, or the reason why there is none; SizeError for sizes that do not fit a mixer that
        the user named."""
        try:
            mixer = opened(mixer, self.letter)
            about = answers(mixer, form, self.phase, self.request.convention)
            case = Case(about, sizes, dtypes=self.request.dtypes, ties=ties(self.request.given))
            return within(case, self.limits, self.letter)
        except SizeError as error:
            if self.request.named:
                raise
            return Missing(str(error))
        except (Unanswered, Unsupported) as reason:
            return Missing(str(reason))

    @property
    def document(self) -> Document:
        """The document, with one table; raises SizeError and Unanswered as `rows` does."""
        shown = [r for r in self.rows if self.request.named or isinstance(r.found, Budget)]
        return Document(lambda: [self._table(shown)], self._lead, self._data, self._csv)

    @property
    def _lead(self) -> tuple[Line, ...]:
        """The lines above the table: the sizes, the convention and the limits; if the open size is
        t, the position of a new token, and l is not given, also that l = t: the token is last."""
        asked_for = [self.letter]
        equal: list[Line] = []
        if self.letter == "t" and "l" not in self.request.given:
            asked_for.append("l")
            equal = [(Equal((doc.letter("l"), doc.letter("t"))), ": the new token is the last one")]
        limits = [
            f"{one.name} {one.typed} ({one.most:,}{one.quantity.unit and f' {one.quantity.unit}'})"
            for one in self.limits
        ]
        request = self.request
        forms = [(mixer, form) for mixer in request.mixers for form in forms_of(mixer, request)]
        return (
            sizes_of(forms, request.phases, request.given, asked_for),
            *equal,
            (convention_line(request.convention),),
            ("limits: ", ", ".join(limits)),
        )

    def _table(self, shown: Sequence[Row]) -> doc.Table:
        """The table of the rows `shown`: the largest value of the open size, what bounds it, and
        the limited quantities there; notes name the mixers of the other rows, with the reasons.
        Columns are left out if no row needs them: `form`, sizes with several given values, `kinks`
        (sizes at which a quantity's growth changes) and `again` (larger sizes that fit again)."""
        letter = doc.letter(self.letter)
        swept = [x for x, values in listed(self.request.given).items() if len(values) > 1]
        forms = any(row.form != row.mixer.default_form for row in shown)
        budgets = [row.found for row in shown if isinstance(row.found, Budget)]
        kinks, again = any(one.kinks for one in budgets), any(one.again for one in budgets)
        columns = [
            Column("mixer", "mixer", numeric=False, names=True),
            *([Column("form", "form", numeric=False, names=True)] if forms else []),
            *(Column(x, doc.letter(x), names=True) for x in in_order(swept)),
            Column("largest", ("largest ", letter)),
            Column("bound_by", "bound by", numeric=False, wide=True),
            *(Column(one.name, _header(one)) for one in self.limits),
            *([Column("kinks", "growth changes at", numeric=False, wide=True)] if kinks else []),
            *([Column("again", "fits again", numeric=False, wide=True)] if again else []),
        ]
        rows = [tuple(self._cell(row, column.name) for column in columns) for row in shown]
        notes = []
        if any(one.quantity.unit == "bytes" for one in self.limits):
            types = self.request.dtypes.caption_of(row.mixer for row in shown)
            notes.append(Note((f"bytes: {types}",)))
        if any(one.smallest > 1 for one in budgets):
            notes.append(Note((letter, ": only values at which the mixer exists are counted")))
        notes += without_answer(
            (named_form(row.mixer, row.form), row.found.reason)
            for row in self.rows
            if row not in shown and isinstance(row.found, Missing)
        )
        title = (
            "Largest ", letter, " that is within the limits together with every smaller ", letter,
            f" ({self.phase})",
        )  # fmt: skip
        return doc.Table(title, tuple(columns), tuple(rows), tuple(notes), lead=self._lead)

    def _cell(self, row: Row, name: str) -> Text:
        """The cell of a row in the column `name`. `largest`: the size, "unbounded", "none" if not
        even the smallest size fits, or the reason if the row has no answer (the columns after it
        are then empty). The name of a limit: its quantity's value, as in `Budget.values`."""
        found = row.found
        if name == "mixer":
            return named(row.mixer)
        if name == "form":
            return row.form
        if name in row.given:
            return row.given[name]
        if isinstance(found, Missing):
            return found if name == "largest" else ""
        if name == "largest":
            return "unbounded" if found.largest is None else found.largest or "none"
        if name == "bound_by":
            return _bound(found)
        if name == "kinks":
            return _kinks(found, len(self.limits) > 1)
        if name == "again":
            return in_words(found.again)
        return found.values.get(name, "")

    def _csv(self) -> Rows:
        """Header and rows of CSV: for each row its sizes, its answer (the keys of `_answer`), and
        the limited quantities at the largest size. Several limits, kinks (`state 4095`: the size at
        which a quantity's growth changes) or ranges (`first:last:step`) are joined by semicolons.
        """
        letters = in_order({x for row in self.rows for x in row.sizes})
        limits = [one.name for one in self.limits]
        names = ["largest", "unbounded", "bound_by", "ends", "kinks", "again", "reason"]
        header = ["convention", "mixer", "form", "phase", *letters, "asked_for", *names, *limits]
        convention, rows = ",".join(self.request.convention.names), []
        for row in self.rows:
            answer = _answer(row.found)
            values, kinks = answer.get("values", {}), answer.get("kinks", ())
            joined = {
                "bound_by": ";".join(answer.get("bound_by", ())),
                "kinks": ";".join(f"{kink['of']} {kink['at']}" for kink in kinks),
                "again": ";".join(":".join(map(str, part)) for part in answer.get("again", ())),
            }
            about = [convention, row.mixer.name, row.form, self.phase]
            sizes = [row.sizes.get(letter) for letter in letters]
            rest = [{**answer, **joined}.get(name) for name in names]
            rows.append([*about, *sizes, self.letter, *rest, *(values.get(x) for x in limits)])
        return header, rows

    def _data(self) -> dict[str, Any]:
        """The object of JSON: `asked_for`, the open size; the limits, each with the most that it
        allows; and for each row its mixer, its sizes and the keys of `_answer`."""
        return {
            "asked_for": self.letter,
            "limits": {x.name: {"most": x.most, "unit": x.quantity.unit} for x in self.limits},
            "rows": [
                {
                    "mixer": row.mixer.name,
                    "form": row.form,
                    "phase": self.phase,
                    "convention": list(self.request.convention.names),
                    "sizes": row.sizes,
                    "dtypes": self.request.dtypes.record_of(row.mixer.dtypes),
                    **_answer(row.found),
                }
                for row in self.rows
            ],
        }


def _answer(found: Budget | Missing) -> dict[str, Any]:
    """The answer of a row as an object of JSON, with the fields of `Budget`: `bound_by` are the
    limits that the next size exceeds, `ends` says why there is no next size. `largest` is null if
    every size fits (`unbounded`), and without an answer, beside the `reason` alone."""
    if isinstance(found, Missing):
        return {"largest": None, "reason": found.reason}
    return {
        "largest": found.largest,
        "unbounded": found.largest is None,
        "bound_by": list(found.by),
        "ends": found.ends,
        "values": {name: exact(value) for name, value in found.values.items()},
        "kinks": [asdict(kink) for kink in found.kinks],
        "again": [list(part) for part in found.again],
    }


def _header(limit: Limit) -> str:
    return f"{limit.name} (B)" if limit.quantity.unit == "bytes" else limit.name


def _bound(found: Budget) -> str:
    """What stops the open size, in words: the reason why there is no next value, or the names of
    the limits that the next value exceeds."""
    if found.ends:
        return found.ends
    names = " and ".join(found.by)
    if found.largest == 0:
        return f"{names}: does not fit at {found.letter} = {found.smallest:,}"
    return names


def _kinks(found: Budget, several: bool) -> str:
    """The sizes at which the growth of a quantity changes, `4,095, then constant`; with the name of
    the quantity if `several` have a limit."""
    said = []
    for kink in found.kinks:
        name = f"{kink.of}: " if several else ""
        said.append(f"{name}{kink.at:,}{', then constant' if kink.constant else ''}")
    return "; ".join(said)
