"""Does the notebook print what it shows? Its cells run in order, as a notebook runs them.

`REWRITE_GOLDEN=1 pytest tests/test_notebook.py` writes the outputs of its cells anew.
"""

from __future__ import annotations

import ast
import json
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from tests.goldens import rewriting

NOTEBOOK = Path(__file__).parents[1] / "examples" / "costmodel.ipynb"
SHOWN = {"text/html": "_repr_html_", "text/latex": "_repr_latex_"}
"""Kind of output -> the method by which a notebook asks an object for that kind."""


def outputs(source: str, names: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """The outputs of a cell: the printed text, and the value of a last expression."""
    *first, last = ast.parse(source).body
    asked = ast.Expression(last.value) if isinstance(last, ast.Expr) else None
    body = first if asked else [*first, last]
    with redirect_stdout(StringIO()) as printed:
        exec(compile(ast.Module(body, []), NOTEBOOK.name, "exec"), names)
        value = eval(compile(asked, NOTEBOOK.name, "eval"), names) if asked else None
    found: list[dict[str, Any]] = []
    if text := printed.getvalue():
        found.append({"name": "stdout", "output_type": "stream", "text": lines(text)})
    if value is not None:
        kinds = {kind: getattr(value, name, str)() for kind, name in SHOWN.items()}
        told = {**kinds, "text/plain": repr(value)}
        data = {kind: lines(text) for kind, text in told.items() if text}
        result = {"data": data, "execution_count": number, "metadata": {}}
        found.append({**result, "output_type": "execute_result"})
    return found


def lines(text: str) -> list[str]:
    """A text as notebooks store it."""
    return text.splitlines(keepends=True)


def test_the_notebook_shows_what_its_cells_print() -> None:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    found = [outputs("".join(c["source"]), names, k) for k, c in enumerate(cells, 1)]
    if rewriting():
        for k, cell in enumerate(cells, 1):
            cell.update(outputs=found[k - 1], execution_count=k)
        text = json.dumps(notebook, indent=1, ensure_ascii=False)
        NOTEBOOK.write_text(f"{text}\n", encoding="utf-8")
    for k, cell in enumerate(cells, 1):
        assert cell["outputs"] == found[k - 1], "".join(cell["source"])
        assert cell["execution_count"] == k
