"""The document of `list`: the built-in mixers, their forms, options, modules and references."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

from costmodel.errors import UnknownMixer, unusable_package
from costmodel.language.options import joined, split
from costmodel.mixers import builtin, names
from costmodel.program.conventions import Convention
from costmodel.questions.kept import kept
from costmodel.questions.question import answers
from costmodel.questions.registry import FIGURES, meant
from costmodel.report.document import Column, Document, Note, Rows, Section, Table
from costmodel.report.references import of_mixer

OWN = "our own reading only"
"""The words for a mixer that no reference implementation is compared with."""


Modules = Callable[[str], Mapping[str, str]]
"""A function from a mixer's name to its implementations: name -> class, as MODULE:CLASS. It raises
ModuleNotFoundError if torch or another package that they need is not installed."""


@dataclass(frozen=True)
class Summary:
    """What `list` says of a mixer, without equations. `inference`: form -> the reason why it has no
    one-token inference, None if it has; the other fields are those of `Mixer`."""

    name: str
    aliases: tuple[str, ...]
    title: str
    idea: str
    group: str
    source: str
    references: tuple[str, ...]
    offers: Mapping[str, str]
    variants: Mapping[str, str]
    inference: Mapping[str, str | None]


def _summary(name: str) -> Summary:
    mixer = builtin(name)
    same = {one.name: getattr(mixer, one.name) for one in fields(Summary)[:-1]}
    about = (answers(mixer, form, "inference", Convention()) for form in mixer.forms)
    return Summary(**same, inference={one.form: one.unanswered for one in about})


def summaries() -> tuple[Summary, ...]:
    """The summaries of all built-in mixers, in the order of the list; from the cache of answers if
    it is on, so that no equations are written."""
    key = ",".join(("list", *(one.name for one in fields(Summary))))
    return kept(None, key, lambda: tuple(map(_summary, names())))


@dataclass(frozen=True)
class Entry:
    """One mixer of the list; `modules` finds its implementations, which are imported only if the
    list shows them."""

    mixer: Summary
    modules: Modules

    @property
    def implementations(self) -> Mapping[str, str] | None:
        """Name of an implementation -> its class, as `costmodel trace` takes it; None if a package
        that they need is not installed."""
        return None if self.needs else self.modules(self.mixer.name)

    @property
    def needs(self) -> str:
        """The package that the mixer's implementations need and that cannot be imported, such as
        "torch", and why; "" if all can. Any error but that of an import is passed on."""
        try:
            self.modules(self.mixer.name)
        except Exception as error:
            if needs := unusable_package(error):
                return needs
            raise
        return ""

    @property
    def references(self) -> tuple[str, ...]:
        """The code of others that a module equals in float64: that of torch, then the packages and
        repositories of the recorded comparisons."""
        packages = dict.fromkeys(one.words for one in of_mixer(self.mixer.name))
        return (*self.mixer.references, *packages)

    @property
    def paper(self) -> str:
        """Author and year of the source: its text before the first comma."""
        return self.mixer.source.split(",")[0]

    @property
    def forms(self) -> str:
        """The forms, with `*` after those without one-token inference."""
        return ", ".join(f"{f}*" if reason else f for f, reason in self.mixer.inference.items())

    def as_json(self) -> dict[str, object]:
        """The entry of JSON: `implementations` (names) and `classes` (name -> class), null if a
        package that they need is not installed; form -> whether it has one-token inference, or the
        `reason` why not; option, or variant's name -> meaning, or full name."""
        modules = self.implementations
        return {
            "name": self.mixer.name,
            "aliases": list(self.mixer.aliases),
            "title": self.mixer.title,
            "idea": self.mixer.idea,
            "group": self.mixer.group,
            "paper": self.paper,
            "source": self.mixer.source,
            "forms": {
                form: {"inference": reason is None, "reason": reason}
                for form, reason in self.mixer.inference.items()
            },
            "options": dict(self.mixer.offers),
            "variants": dict(self.mixer.variants),
            "implementations": None if modules is None else list(modules),
            "classes": None if modules is None else dict(modules),
            "references": list(self.references),
        }


def matching(word: str, modules: Modules) -> list[Entry]:
    """The entries of the built-in mixers that have a word beginning with `word`, in any case, in
    their name, title, idea, family, source, options or references; all mixers for "". A name with
    options or sizes, such as `gqa+bias{h=64}`, finds the mixer that has them. `modules`: name of a
    mixer -> its torch modules, for the entries' cells.

    Raises:
        UnknownMixer: there is none; the message names the column that the word means, the options
            of the mixer, or the families.
        TableError: there is none, and the word may mean several columns.
    """
    begins = re.compile(rf"\b{re.escape(word)}", re.IGNORECASE) if word else re.compile("")
    every = summaries()
    entries = [Entry(mixer, modules) for mixer in every if begins.search(_searched(mixer))]
    if not entries:
        if split(word)[0] != word:
            named = builtin(word).base
            return [Entry(mixer, modules) for mixer in every if mixer.name == named]
        if (column := meant(word)) is not None:
            about = f"{column} ({FIGURES[column].meaning})"
            raise UnknownMixer(f"'{word}' is no mixer but a column: `costmodel table --columns "
                               f"mixer,{column}` shows {about}")  # fmt: skip
        families = ", ".join(dict.fromkeys(mixer.group for mixer in every))
        raise UnknownMixer(
            f"no mixer has a word that begins with '{word}' in its name, title, idea, family, "
            f"source, options or references; the families are {families}"
        )
    return entries


def _searched(mixer: Summary) -> str:
    """The texts of a mixer in which a word is searched, one per line: name, title, idea, family,
    source, options and references."""
    called = (mixer.name, *mixer.aliases, *mixer.variants)
    said = (*called, mixer.title, mixer.idea, mixer.group, mixer.source)
    packages = (one.of for one in of_mixer(mixer.name))
    options = (*mixer.offers, *mixer.offers.values())
    return "\n".join((*said, *options, *mixer.references, *packages))


def document(entries: Sequence[Entry], *, whole: bool = True) -> Document:
    """The document of `list`: one table with a section per family; CSV and JSON have more about
    each mixer.

    Args:
        whole: whether the table has all columns, or only name, idea and forms.
    """
    return Document(
        lambda: [_table(entries, whole)],
        data=lambda: {"mixers": [entry.as_json() for entry in entries]},
        rows=lambda: _rows(entries),
    )


def _names(mixer: Summary) -> str:
    return mixer.name + "".join(f" ({alias})" for alias in mixer.aliases)


def _listed(names: Iterable[str] | None) -> str:
    return "–" if names is None else ", ".join(names) or "none"


COLUMNS: tuple[tuple[str, str, Callable[[Entry], str]], ...] = (
    ("name", "name", lambda entry: _names(entry.mixer)),
    ("idea", "what it does", lambda entry: entry.mixer.idea),
    ("forms", "forms", lambda entry: entry.forms),
    ("paper", "paper", lambda entry: entry.paper),
    ("options", "options", lambda entry: ", ".join(entry.mixer.offers) or "none"),
    ("implementations", "implementations",
     lambda entry: _listed(entry.implementations)),
    ("references", "equals, in float64", lambda entry: ", ".join(entry.references) or OWN),
)  # fmt: skip
BRIEFLY = 3
"""The number of columns that are shown without a search."""
BRIEF = (
    "`costmodel list WORD` searches, and adds paper, options, implementations and the code that "
    "each mixer was found equal to; CSV and JSON have these for all"
)


def _table(entries: Sequence[Entry], whole: bool) -> Table:
    """The table with a row for each mixer of `entries`, a section per family and notes below;
    unless `whole`, only the first `BRIEFLY` columns, and a note on how to see the others."""
    shown = COLUMNS if whole else COLUMNS[:BRIEFLY]
    families: dict[str, list[Entry]] = {}
    for entry in entries:
        families.setdefault(entry.mixer.group, []).append(entry)
    rows: list[tuple[str, ...] | Section] = []
    for family, group in families.items():
        rows += [Section((family,)), *(tuple(cell(entry) for *_, cell in shown) for entry in group)]
    columns = (
        Column("name", "name", numeric=False, names=True),
        *(Column(name, header, numeric=False, wide=True) for name, header, _ in shown[1:]),
    )
    notes = (
        Note(("forms: the first is the default; * has no one-token inference",)),
        *((*_options(entries), *_classes(entries)) if whole else [Note((BRIEF,))]),
        Note(("--group FAMILY shows a family in every table",)),
        Note(("a mixer of your own is given as FILE.py:NAME wherever a name is taken",)),
        *_variants(entries, whole),
        Note(("`costmodel explain NAME` prints title, source and equations",)),
    )
    return Table("Mixers, by family", columns, tuple(rows), notes)


def _rows(entries: Sequence[Entry]) -> Rows:
    """Header and rows of CSV: one row per mixer, with all columns, its source and its classes."""
    header = ("group", "name", "aliases", "title", "idea", "forms", "paper", "options",
              "implementations", "references", "source", "classes")  # fmt: skip
    rows = []
    for entry in entries:
        more = [cell(entry) for *_, cell in COLUMNS[1:]]
        mixer = entry.mixer
        lead = (mixer.group, mixer.name, ", ".join(mixer.aliases), mixer.title)
        classes = (entry.implementations or {}).values()
        rows.append((*lead, *more, mixer.source, ", ".join(classes)))
    return header, rows


def _options(entries: Sequence[Entry]) -> list[Note]:
    """Notes that explain the options of the mixers, [] if none has options: how options are typed,
    then one for mixers with equal options: `options of A, B: bias (a bias on the output)`."""
    alike: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for mixer in (entry.mixer for entry in entries):
        if mixer.offers:
            alike.setdefault(tuple(mixer.offers.items()), []).append(mixer.name)
    if not alike:
        return []
    offers, members = next(iter(alike.items()))
    example = joined(members[0], [offers[0][0]])
    lines = [f"options follow a name, as in {example}; several may be combined, in any order"]
    for offers, members in alike.items():
        taken = ", ".join(f"{option} ({means})" for option, means in offers)
        lines.append(f"options of {', '.join(members)}: {taken}")
    return [Note((line,)) for line in lines]


def _variants(entries: Sequence[Entry], whole: bool) -> list[Note]:
    """[A note with the names of variants, and with what they stand for if `whole`]; or []."""
    named = [item for entry in entries for item in entry.mixer.variants.items()]
    listed = ", ".join(f"{name} ({stands})" if whole else name for name, stands in named)
    what = "variants with names of their own, which options and sizes may follow"
    return [Note((f"{what}: {listed}",))] if named else []


FEW = 5
"""The most mixers whose classes are listed."""


def _classes(entries: Sequence[Entry]) -> list[Note]:
    """Notes with the classes of the implementations, as `costmodel trace` takes them; in place of
    these, one note: the package that is not installed or, for more than `FEW` mixers, a command."""
    if needs := next((entry.needs for entry in entries if entry.needs), ""):
        return [Note((f"implementations are not listed: they need {needs}",))]
    if len(entries) > FEW:
        return [Note(("`costmodel list NAME` adds the classes of modules that `trace` takes",))]
    lines = [
        f"class of {entry.mixer.name}, {name}: {place}"
        for entry in entries
        for name, place in (entry.implementations or {}).items()
    ]
    if lines:
        lines.append(
            "`costmodel trace CLASS --over l,d` gives a class's costs, as formulas in these sizes"
        )
    return [Note((line,)) for line in lines]
