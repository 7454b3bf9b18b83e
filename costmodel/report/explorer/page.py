"""One HTML file of the explorer, with style, scripts and data inside."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any


def page(data: Mapping[str, Any]) -> str:
    """The explorer's page, one text of HTML: the template with style, scripts and the data (an
    object of JSON, from `catalogue`) in place of its marks `/*CSS*/`, `/*DATA*/` and so on."""
    here = files(__package__)
    text = json.dumps(
        {**data, "colours": colours()}, ensure_ascii=False, separators=(",", ":")
    ).replace("</", "<\\/")
    parts = {
        "UPLOT_LICENSE": _read(here, "vendor", "uPlot-LICENSE").strip(),
        "UPLOT_CSS": _read(here, "vendor", "uPlot.min.css"),
        "CSS": _read(here, "page.css"),
        "UPLOT_JS": _read(here, "vendor", "uPlot.iife.min.js"),
        "JS": _read(here, "page.js"),
        "DATA": text,
    }
    found = _read(here, "page.html")
    for name, part in parts.items():
        found = found.replace(f"/*{name}*/", part, 1)
    return found


def colours() -> int:
    """The number of mixers that the page's map tells apart, each by a colour of the style: `--c0`,
    `--c1` and so on."""
    return len({*re.findall(r"--c\d+(?=:)", _read(files(__package__), "page.css"))})


def _read(folder: Any, *path: str) -> str:
    return str(folder.joinpath(*path).read_text(encoding="utf-8"))
