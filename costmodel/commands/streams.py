"""How does what a command says leave the process: in characters that any terminal may get, in files
that are whole or untouched, and not at all after an interrupt?"""

from __future__ import annotations

import codecs
import errno
import json
import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from costmodel.errors import shortened

FAILED, MISUSED, INTERRUPTED = 1, 2, 130
"""Exit codes: the job failed; what was asked for cannot be; Ctrl-C, as shells number it."""


class Failed(Exception):
    """The answer is bad news: printed already, or the message is its one sentence."""


# Characters

BOLD = r"\x1b\[[01]m"
"""What the terminal's writer puts before and after words that stand out."""

COMMANDS = r"\x00-\x08\x0b-\x1f\x80-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff"
"""Characters that command a terminal, that turn its text around, and halves of characters."""


def harmless(text: str, *, colour: bool = False) -> str:
    r"""Text whose control characters are written as JSON writes them, so that JSON stays JSON.

    `colour`: what makes words stand out stays.

    >>> harmless("a\x1b[2Jb\udcff")
    'a\\u001b[2Jb\\udcff'
    """
    own = f"(?!{BOLD})" if colour else ""
    return re.sub(f"{own}[{COMMANDS}]", lambda found: _escaped(found[0]), text)


def _escaped(text: str) -> str:
    return json.dumps(text)[1:-1]


def _escape(error: UnicodeError) -> tuple[str, int]:
    """What stands for characters that an encoding lacks."""
    assert isinstance(error, UnicodeEncodeError)
    return _escaped(error.object[error.start : error.end]), error.end


def safe_streams() -> None:
    """Let standard output take every character, and let both streams exist.

    A closed output refuses what is written, as it does in other programs; its number is taken, so
    that no file is opened in its place.
    """
    codecs.register_error("json", _escape)
    if sys.stdout is None:
        nowhere = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nowhere, 1)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - as long as the process
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="json")


def flush_streams() -> None:
    """Write what waits; what cannot be written has been said, and is not tried again at the end."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def printed(text: str) -> None:
    """Print, or say that standard output does not take it; BrokenPipeError where nobody reads."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Failed(f"standard output: {error.strerror}") from None


LONGEST_WORD, LONGEST_SENTENCE = 200, 2000
"""So many signs of what was typed or read, and of a sentence about that, are shown at most."""


def complain(sentence: str) -> int:
    """One sentence on standard error, bounded in length whatever it repeats."""
    said = " ".join(shortened(word, LONGEST_WORD) for word in sentence.split())
    if (left_out := len(said) - LONGEST_SENTENCE) > 0:
        half = LONGEST_SENTENCE // 2
        said = f"{said[:half]} ... ({left_out:,} signs left out) ... {said[-half:]}"
    with suppress(OSError):  # nobody is there to hear it
        sys.stderr.write(f"costmodel: {harmless(said)}\n")
    return MISUSED


# Files


@contextmanager
def written_whole(output: Path) -> Iterator[Path]:
    """A path to write to; it becomes the file once all is on disk, and is gone otherwise.

    What is no regular file (a device, a pipe) is written itself.

    Raises:
        OSError: there can be no such file; it names the file.
        Failed: it could not be written; what was there before is as it was.
    """
    file = Path(os.path.realpath(output))
    if file.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(output))
    if file.exists() and not file.is_file():
        with _named(output):
            yield file
        return
    with interruptible():
        try:
            handle, name = tempfile.mkstemp(file.suffix, f".{file.stem[:100]}.", file.parent)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(output)) from None
        beside = Path(name)
        try:
            os.fchmod(handle, file.stat().st_mode if file.exists() else 0o666 & ~_umask())
            with _named(output):
                yield beside
                os.fsync(handle)
                beside.replace(file)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
        finally:
            os.close(handle)


@contextmanager
def _named(output: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Failed(f"{output} is not written: {error.strerror}") from None


def _umask() -> int:
    """The bits that a new file does not get."""
    bits = os.umask(0)
    os.umask(bits)
    return bits


# Interrupts


def end(*_: Any) -> None:
    """End the process at once, whatever it does: nothing that it derives is worth keeping."""
    os._exit(INTERRUPTED)


@contextmanager
def interruptible() -> Iterator[None]:
    """Within, Ctrl-C raises KeyboardInterrupt, for what has something to keep or to tidy up."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
