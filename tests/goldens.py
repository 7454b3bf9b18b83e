"""Is a text what its golden file holds? With REWRITE_GOLDEN=1 the file is written anew: read its
difference before it is committed."""

from __future__ import annotations

import os
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"


def rewriting() -> bool:
    """True if golden files are to be written anew."""
    return bool(os.environ.get("REWRITE_GOLDEN"))


def hold(name: str, text: str) -> None:
    """Compare a text with a file under tests/golden."""
    path = GOLDEN / name
    if rewriting():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
