"""The pages of the site about the built-in mixers, written from the catalogue.

Each page has the mixer's equations, form by form, and tables of formulas for the figures of a
forward pass and of one new token. `conf.py` writes the pages when Sphinx starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from costmodel.language.equations import Mixer
from costmodel.language.notation import equation
from costmodel.mixers import groups
from costmodel.program.conventions import Convention
from costmodel.questions.question import Case, Figure, answers
from costmodel.questions.registry import FIGURES
from costmodel.report.document import Column, Line, Page, Table, Text, letter, sentence
from costmodel.report.markdown import Markdown, escaped
from costmodel.report.mixer_document import cell
from costmodel.report.references import of_mixer
from profiler.modules import implementations

PHASES: Mapping[str, Line] = {
    "training": ("forward pass over ", letter("l"), " tokens"),
    "inference": ("one new token at position ", letter("t")),
}
"""The phases that a page shows -> the header of their table's formulas."""

SHOWN = (
    "mul", "add", "div", "exp", "other", "total", "order", "parameters", "state", "weights",
    "traffic", "critical_path", "span", "sequential", "path_length",
)  # fmt: skip
"""The figures that a page shows."""


def write(folder: Path) -> None:
    """Write `index.md` and a page for each built-in mixer into `folder`; a page whose text has not
    changed keeps its date, so that Sphinx reads changed pages alone."""
    folder.mkdir(exist_ok=True)
    pages = {"index": index()}
    pages |= {mixer.name: page(mixer) for family in groups().values() for mixer in family}
    for old in folder.glob("*.md"):
        if old.stem not in pages:
            old.unlink()
    for name, text in pages.items():
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def index() -> str:
    """The list of all mixers, family by family, each with a link to its page."""
    lines = [
        "# The catalogue",
        "",
        "A page for each mixer: its equations, and the costs that follow from them, by the default",
        "[convention](../conventions.md), for one sequence. `costmodel list` prints the same list,",
        "`costmodel explain NAME` every step of a count; [the explorer](../explorer.md) has the",
        "costs at sizes of your choice.",
    ]
    for family, mixers in groups().items():
        lines += ["", f"## {family}", "", "```{toctree}", ":hidden:", ""]
        lines += [f"{mixer.title} <{mixer.name}>" for mixer in mixers]
        lines += ["```", "", "| mixer | what it does | source |", "| --- | --- | --- |"]
        lines += [
            f"| [{escaped(m.title)}]({m.name}.md) | {escaped(m.idea)} | {escaped(m.source)} |"
            for m in mixers
        ]
    return "\n".join(lines) + "\n"


def page(mixer: Mixer) -> str:
    """The page of a mixer in MyST markdown."""
    lines = [f"# {escaped(mixer.title)}", "", f"{_sentence(mixer.idea)} Name: `{mixer.name}`."]
    lines += ["", *(f"- {item}" for item in _facts(mixer))]
    for form in mixer.forms:
        lines += ["", f"## Form {form}", "", *_equations(mixer, form), "", *_costs(mixer, form)]
    return "\n".join(lines) + "\n"


def _sentence(words: str) -> str:
    return f"{escaped(words[:1].upper() + words[1:])}."


def _facts(mixer: Mixer) -> Iterator[str]:
    """Source, family, other names, sizes, options, classes and references of a mixer."""
    yield f"Source: {escaped(mixer.source)}"
    yield f"Family: `{mixer.group}`"
    if mixer.aliases:
        yield f"Also called: {', '.join(f'`{name}`' for name in mixer.aliases)}"
    sizes = (f"${x}$ {escaped(mixer.letter(x).meaning)}" for x in mixer.letters)
    yield f"Sizes: {', '.join(sizes)}; one sequence, $b = 1$"
    for name, meaning in mixer.offers.items():
        yield f"Option `{mixer.name}+{name}`: {escaped(meaning)}"
    for name, full in mixer.variants.items():
        yield f"Variant `{name}`: stands for `{full}`"
    for name, found in implementations(mixer.name).items():
        yield f"Module `{mixer.name}:{name}`: `{found.place}`"
    equal = dict.fromkeys([*mixer.references, *(one.words for one in of_mixer(mixer.name))])
    if equal:
        yield f"Equal in float64 to: {escaped(', '.join(equal))}"
    yield f"Every step: `costmodel explain {mixer.name} --full`"


def _equations(mixer: Mixer, form: str) -> Iterator[str]:
    """The equations of a form, each on a line of its own with its ranges and its number."""
    for each in map(equation, mixer.forms[form].equations):
        cite = rf"\quad \text{{({each.cite.strip('()')})}}" if each.cite else ""
        ranges = r",\ ".join(each.ranges)
        where = rf",\quad {ranges}" if ranges else ""
        yield from ("$$", f"{each.left} = {each.right}{where}{cite}", "$$", "")


def _costs(mixer: Mixer, form: str) -> Iterator[str]:
    """A table of a form's figures for each phase; for a phase without an answer, the reason."""
    for phase, words in PHASES.items():
        about = answers(mixer, form, phase, Convention())
        if about.unanswered:
            yield from (
                f"{Markdown(Page()).text(sentence(words))}No costs: {escaped(about.unanswered)}.",
                "",
            )
            continue
        case = Case(about, {"b": 1})
        asked = [figure for name in SHOWN if phase in (figure := FIGURES[name]).phases]
        rows = tuple((_words(one), _answer(case, one)) for one in asked)
        heads: dict[str, Line] = {"figure": ("figure",), phase: words}
        columns = tuple(Column(name, header, numeric=False) for name, header in heads.items())
        yield from (Markdown(Page()).table(Table("", columns, rows), ()), "")


def _words(figure: Figure) -> Line:
    """The name of a figure; a `Case` without element types counts elements for bytes."""
    elements = figure.unit in ("elements", "bytes")
    return (f"{figure.title}{' (elements)' if elements else ''}",)


def _answer(case: Case, figure: Figure) -> Text:
    """The formula of a figure, or the reason why it has none."""
    return cell(case.figure(figure), of="O" if figure.kind == "order" else "")
