"""The command `explore`: every mixer's costs in one HTML file that readers ask at their sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from costmodel.commands.options import (
    ConventionOption,
    Force,
    Mixers,
    Phase,
    UsageError,
    new,
    phases,
)
from costmodel.commands.streams import printed, written_whole
from costmodel.program.conventions import convention as read_convention


def explore(
    mixers: Mixers = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The HTML file to write.")
    ] = None,
    phase: Phase = "both",
    convention: ConventionOption = "strict",
    force: Force = False,
) -> None:
    """An HTML page of mixers: equations, exact costs at any sizes, a chart, a map of winners."""
    from costmodel.mixers import builtin, names
    from costmodel.mixers.load import mixer
    from costmodel.report.explorer.catalogue import catalogue
    from costmodel.report.explorer.page import page

    if output is None:
        raise UsageError("explore writes a file: name one, -o explore.html")
    new(output, force)
    shown = (
        [mixer(name) for name in mixers]
        if mixers
        else [
            mixer(name) for found in map(builtin, names()) for name in (found.name, *found.variants)
        ]
    )
    text = page(catalogue(dict.fromkeys(shown), phases(phase), read_convention(convention)))
    with written_whole(output) as path:
        path.write_text(text, encoding="utf-8")
    printed(f"wrote {output}: {len(dict.fromkeys(shown))} mixers, {len(text.encode()):,} bytes\n")
