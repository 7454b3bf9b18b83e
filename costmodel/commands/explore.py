"""The page of `explore`: mixers' costs in one HTML file that readers ask at their sizes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from costmodel.commands.options import (
    ConventionOption,
    Force,
    Phase,
    UsageError,
    phases,
    refuse_existing,
)
from costmodel.commands.streams import printed, written_whole
from costmodel.language.equations import Mixer
from costmodel.program.conventions import convention as read_convention

FIRST = ("self-attention", "gqa", "mamba-2", "gated-deltanet")
"""The mixers that a page compares when it opens, if none is named."""

Page = Annotated[Path | None, typer.Option("-o", "--output", help="The HTML file to write.")]


def written(
    mixers: Sequence[str | Mixer],
    output: Path | None,
    phase: Phase,
    convention: ConventionOption,
    force: Force,
    all_: bool = False,
    points: Sequence[dict[str, Any]] = (),
) -> None:
    """Write the HTML page about the named mixers and models to the file `output`; with `all_`, or
    if none is named, about all built-in mixers with their named variants and all networks with a
    name. Print a link that opens the page with mixers and a size.

    Args:
        points: measured points, each with mixer, implementation, form, phase, machine, dtype,
            sizes, and readings, title -> [value, unit]; the page opens at the first one's sizes.

    Raises:
        UsageError: no file is named, or the file exists, unless `force`.
    """
    from costmodel import networks
    from costmodel.backwards.candidates import candidate
    from costmodel.mixers import builtin, names
    from costmodel.report.explorer.catalogue import catalogue
    from costmodel.report.explorer.page import colours, page

    if output is None:
        raise UsageError("explore writes a file: name one, -o explore.html")
    refuse_existing(output, force)
    named = [*mixers]
    if all_ or not named:
        named += [name for found in map(builtin, names()) for name in (found.name, *found.variants)]
        named += networks.presets()
    shown = dict.fromkeys(candidate(name)[0] for name in named)
    data = catalogue(shown, phases(phase), read_convention(convention))
    # of many, the page opens with as many as its map has colours for
    known = {mixer.name for mixer in shown}
    measured = [name for name in dict.fromkeys(each["mixer"] for each in points) if name in known]
    first = [candidate(name)[0].name for name in mixers or measured or FIRST][: colours()]
    text = page({**data, "points": points, "first": first})
    with written_whole(output) as path:
        path.write_text(text, encoding="utf-8")
    printed(f"wrote {output}: {len(shown)} mixers and models, {len(text.encode()):,} bytes\n")
    link = urlencode({"mixers": " ".join(first), **({} if points else {"size.l": "4096"})})
    printed(f"a link with mixers and sizes: {output.resolve().as_uri()}#{link}\n")
