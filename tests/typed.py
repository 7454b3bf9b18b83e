"""What does a typed command print, and how does it refuse a mistake?"""

from __future__ import annotations

import pytest

import cli
from costmodel.commands.streams import MISUSED

Capture = pytest.CaptureFixture[str]


def printed(capsys: Capture, *words: str, code: int = 0) -> str:
    """What a command prints, with this exit code and nothing on standard error."""
    found = cli.run(list(words))
    out, err = capsys.readouterr()
    assert (found, err) == (code, "")
    return out


def refused(capsys: Capture, *words: str, code: int = MISUSED) -> str:
    """The one sentence of a command that prints no answer."""
    found = cli.run(list(words))
    out, err = capsys.readouterr()
    assert (found, out) == (code, "")
    assert err.startswith("costmodel: ") and err.count("\n") == 1
    return err.removeprefix("costmodel: ").rstrip()
