"""The site, built by one command: `sphinx-build -W -n docs docs/_build/html`.

Pages of mixers are written from the catalogue when Sphinx starts, formulas are typeset by
`costmodel.report.mathml`, and `costmodel explore` writes the explorer beside the pages.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from costmodel.report.mathml import mathml  # noqa: E402  # the checkout is on the path only now
from docs import docstrings, mixer_pages  # noqa: E402  # likewise

project = "costmodel"
author = "the authors of costmodel"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = "costmodel"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_copy_source = False
html_show_copyright = False
exclude_patterns = ["_build"]

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

default_role = "literal"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
# Types in signatures and exceptions in docstrings are named, and have no page of their own.
nitpick_ignore_regex = [(r"py:(class|data|obj|exc)", r".*")]


def setup(app: Sphinx) -> None:
    """Connect what the site adds to Sphinx."""
    app.add_html_math_renderer("mathml", (_inline, None), (_display, None))
    app.connect("builder-inited", lambda app: mixer_pages.write(HERE / "mixers"))
    app.connect("autodoc-process-docstring", docstrings.process, priority=400)
    app.connect("build-finished", _explorer)


def _inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(mathml(node.astext()))
    raise nodes.SkipNode


def _display(translator: Any, node: nodes.math_block) -> None:
    formula = mathml(node.astext(), display=True)
    translator.body.append(f'<div class="formula">{formula}</div>\n')
    raise nodes.SkipNode


def _explorer(app: Sphinx, failure: Exception | None) -> None:
    """Write the explorer into the site, which the page explorer.md shows."""
    if failure is None and app.builder.format == "html":
        import cli

        code = cli.run(["explore", "-o", str(Path(app.outdir) / "explore.html"), "--force"])
        if code:
            raise RuntimeError(f"`costmodel explore` ended with exit code {code}")
