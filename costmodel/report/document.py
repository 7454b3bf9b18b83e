"""How does an explanation, made of headings, sentences, equations and tables, become text?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from costmodel.report import cells, render, typeset
from costmodel.report.cells import Grid, Line, Math
from costmodel.symbolic.latex_width import LINE, broken, width


@dataclass(frozen=True)
class Heading:
    """A heading; level 1 is the document's."""

    text: str
    level: int = 2


@dataclass(frozen=True)
class Paragraph:
    """Sentences; `item` makes it one point of a list."""

    line: Line
    item: bool = False


@dataclass(frozen=True)
class Shown:
    """One displayed equation: left and right side, ranges, number in the source.

    `closed` is what the right side comes to, after another equals sign.
    """

    left: Math
    right: Math
    ranges: tuple[Math, ...] = ()
    cite: str = ""
    closed: Math | None = None

    def joined(self) -> Math:
        """The right side with what it comes to."""
        if self.closed is None:
            return self.right
        text = f"{self.right.text} = {self.closed.text}"
        return Math(text, f"{self.right.latex} = {self.closed.latex}")


@dataclass(frozen=True)
class Display:
    """Displayed equations, aligned at their equals signs."""

    equations: tuple[Shown, ...]


Part = Heading | Paragraph | Display | Grid


def as_terminal(parts: Sequence[Part], width: int | None, *, colour: bool) -> str:
    """Plain text; sentences are wrapped on a terminal, equations and numbers never."""
    blocks = []
    for part in parts:
        if isinstance(part, Heading):
            text = f"{part.text}\n{'=' * len(part.text)}" if part.level == 1 else part.text
            blocks.append(f"\x1b[1m{text}\x1b[0m" if colour else text)
        elif isinstance(part, Paragraph):
            blocks.append(_wrapped(part, width))
        elif isinstance(part, Display):
            blocks.append(_equations(part))
        else:
            blocks.append(render.terminal(part, width, colour=colour).rstrip("\n"))
    return _spaced(parts, blocks)


def _wrapped(part: Paragraph, width: int | None) -> str:
    import textwrap

    text = cells.sentence(part.line)
    lead = "- " if part.item else ""
    if width is None:
        return lead + text
    return textwrap.fill(
        text, width, initial_indent=lead, subsequent_indent=" " * len(lead),
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _equations(part: Display) -> str:
    left = max((len(shown.left.text) for shown in part.equations), default=0)
    lines = []
    for shown in part.equations:
        ranges = ", ".join(r.text for r in shown.ranges)
        tail = f"    for {ranges}" if ranges else ""
        cite = f"    {shown.cite}" if shown.cite else ""
        lines.append(f"  {shown.left.text:<{left}} = {shown.joined().text}{tail}{cite}")
    return "\n".join(lines)


def _spaced(parts: Sequence[Part], blocks: Sequence[str]) -> str:
    """Blocks with an empty line between them, points of a list without."""
    text = ""
    for k, block in enumerate(blocks):
        this, last = parts[k], parts[k - 1] if k else None
        both = all(isinstance(p, Paragraph) and p.item for p in (this, last))
        text += block if not k else f"\n{block}" if both else f"\n\n{block}"
    return text + "\n"


def as_markdown(parts: Sequence[Part]) -> str:
    """Markdown with formulas between dollars."""
    blocks = []
    for part in parts:
        if isinstance(part, Heading):
            blocks.append(f"{'#' * part.level} {part.text}")
        elif isinstance(part, Paragraph):
            text = "".join(map(render.markdown_cell, part.line))
            blocks.append(f"- {text}" if part.item else text)
        elif isinstance(part, Display):
            blocks.append(f"$$\n{_aligned(part, 'aligned')}\n$$")
        else:
            blocks.append(render.markdown(part, "###").rstrip("\n"))
    return _spaced(parts, blocks)


def as_latex(parts: Sequence[Part], command: str) -> str:
    """A fragment for an appendix; the first line is the command that makes it again."""
    blocks = [typeset.preamble(command)]
    listed = False
    for part in parts:
        item = isinstance(part, Paragraph) and part.item
        if item and not listed:
            blocks.append(r"\begin{itemize}")
        elif listed and not item:
            blocks.append(r"\end{itemize}")
        listed = item
        blocks.append(_latex(part))
    return "\n".join(blocks) + ("\n\\end{itemize}\n" if listed else "\n")


def _latex(part: Part) -> str:
    if isinstance(part, Heading):
        command = "subsection*" if part.level == 1 else "paragraph"
        point = "." if command == "paragraph" else ""
        return rf"\{command}{{{typeset.escaped(part.text)}{point}}}"
    if isinstance(part, Paragraph):
        text = "".join(map(typeset.latex_cell, part.line))
        return rf"\item {text}" if part.item else text
    if isinstance(part, Display):
        inside = _aligned(part, "align*")
        return "\\begingroup\\allowdisplaybreaks\n" + inside + "\n\\endgroup"
    said = [cell for line in part.said for cell in cells.as_sentence(line)]
    caption: Line = (f"{part.title}. ", *said)
    return typeset.latex(part, caption)


def _aligned(part: Display, environment: str) -> str:
    """The equations at their equals signs; on a page, too wide ones take several lines."""
    paged = environment == "align*"
    room = LINE - max((width(shown.left.latex) for shown in part.equations), default=0.0)
    tag = TAG if any(shown.cite for shown in part.equations) else 0.0
    right = max((width(shown.right.latex) for shown in part.equations), default=0.0)
    ranges = max((width(_listed(shown.ranges)) for shown in part.equations), default=0.0)
    beside = not paged or right + ranges + tag <= room
    lines = []
    for shown in part.equations:
        rows = _rows(shown, room) if paged else [f"&= {shown.joined().latex}"]
        if shown.ranges and beside:
            rows[-1] += rf", && {_listed(shown.ranges)}"
        elif shown.ranges:
            rows[-1] += ","
            rows += [rf"&\quad {line}" for line in _packed(shown.ranges, room - tag)]
        if number := shown.cite.replace("(", "").replace(")", "").replace("-", "--"):
            rows[0] += rf" \tag{{{number}}}" if paged else rf" && \text{{({number})}}"
        lines += [f"{shown.left.latex} {rows[0]}", *rows[1:]]
    inside = " \\\\\n".join(lines)
    return rf"\begin{{{environment}}}" + f"\n{inside}\n" + rf"\end{{{environment}}}"


TAG = 40.0
"""The room that a number at the margin takes, in points."""


def _listed(ranges: Sequence[Math]) -> str:
    return r",\ ".join(r.latex for r in ranges)


def _packed(ranges: Sequence[Math], room: float) -> list[str]:
    """Ranges in as few lines as they fit into."""
    lines: list[list[Math]] = []
    for found in ranges:
        if lines and width(_listed([*lines[-1], found])) <= room:
            lines[-1].append(found)
        else:
            lines.append([found])
    return [_listed(line) + ("," if line is not lines[-1] else "") for line in lines]


def _rows(shown: Shown, room: float) -> list[str]:
    """The right side from its equals sign on; what it comes to begins a line where it must."""
    joined = shown.joined()
    if shown.closed and (shown.closed.cases or width(joined.latex) > room):
        return [*_lines(shown.right, room), *_lines(shown.closed, room)]
    return _lines(joined, room)


def _lines(side: Math, room: float) -> list[str]:
    if side.cases:
        return [f"&= {_cases(side, room)}"]
    first, *others = broken(side.latex, room)
    return [f"&= {first}", *(rf"&\quad {{}} {line}" for line in others)]


def _cases(side: Math, room: float) -> str:
    """The cases below each other; a value that is too wide goes on below its condition."""
    lines = []
    beside = max(width(when) for _, when in side.cases) + width(r"\text{if }") + 2 * TAG
    for value, when in side.cases:
        first, *others = broken(value, room - beside)
        lines += [rf"{first} & \text{{if }} {when}", *(rf"\quad {{}} {o}" for o in others)]
    return r"\begin{cases} " + r" \\ ".join(lines) + r" \end{cases}"
