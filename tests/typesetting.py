"""Does a LaTeX fragment compile as printed?"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from costmodel.report.latex import PACKAGES

needs_latex = pytest.mark.skipif(
    shutil.which("pdflatex") is None, reason="pdflatex is not installed"
)


def compiled(folder: Path, columns: str = "onecolumn") -> str:
    """Compile `part.tex` in a folder inside an article of one or two columns; the log."""
    (folder / "whole.tex").write_text(
        rf"\documentclass[{columns}]{{article}}\usepackage{{{','.join(PACKAGES)}}}"
        r"\begin{document}\input{part}\end{document}",
        encoding="utf-8",
    )
    made = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "whole.tex"],
        cwd=folder, capture_output=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stdout.decode(errors="replace")[-3000:]
    assert (folder / "whole.pdf").stat().st_size > 0
    return (folder / "whole.log").read_text(encoding="utf-8", errors="replace")
