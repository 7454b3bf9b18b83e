"""The output of commands: text that is safe on any terminal, files that are written whole or not at
all, and the end of the process after an interrupt."""

from __future__ import annotations

import codecs
import errno
import json
import os
import re
import signal
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Any, TextIO

from costmodel.errors import short_words
from costmodel.symbolic.sizes import whole_number

FAILED, MISUSED, INTERRUPTED = 1, 2, 130
"""Exit codes: the job failed; the request is invalid; Ctrl-C (the number that shells use)."""


class Failed(Exception):
    """The job failed. The message is one sentence; without one, the failure is already printed."""


# Characters

BOLD = r"\x1b\[[01]m"
"""The escape sequences that `report.terminal` prints before and after bold words."""

COMMANDS = r"\x00-\x08\x0b-\x1f\x80-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff"
"""Control characters, characters that change the direction of text, and lone surrogates."""


def harmless(text: str, *, colour: bool = False) -> str:
    r"""Text with control characters escaped as in JSON, so that JSON stays JSON.

    With `colour`, the sequences for bold words are kept.

    >>> harmless("a\x1b[2Jb\udcff")
    'a\\u001b[2Jb\\udcff'
    """
    own = f"(?!{BOLD})" if colour else ""
    return re.sub(f"{own}[{COMMANDS}]", lambda found: _escaped(found[0]), text)


def _escaped(text: str) -> str:
    """Text with escapes as in a JSON string, without quotation marks."""
    return json.dumps(text)[1:-1]


def _escape(error: UnicodeError) -> tuple[str, int]:
    """A codec error handler: escapes as in JSON for characters that an encoding lacks."""
    assert isinstance(error, UnicodeEncodeError)
    return _escaped(error.object[error.start : error.end]), error.end


def safe_streams() -> None:
    """Make standard output accept every character, and replace closed standard streams.

    A write to a closed standard output fails, as in other programs; its descriptor 1 is occupied,
    so that no file is opened under that number.
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
    """Flush standard output and standard error. One that cannot be written, such as a closed pipe,
    is led to the null device, so that the flush when Python exits does not fail too."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


_ANSWERS: list[TextIO] = []
"""The streams of answers of the commands that are being carried out, the innermost last."""


def answers() -> TextIO:
    """The stream that a command's answer is printed on."""
    return _ANSWERS[-1] if _ANSWERS else sys.stdout


@contextmanager
def answers_alone() -> Iterator[None]:
    """A context in which standard output holds what is written to `answers()` alone: what a user's
    module, a library or a child process prints there goes to standard error."""
    own = sys.stdout is sys.__stdout__  # else Python code, such as a test, reads what is printed
    saved = os.dup(1) if own else -1
    kept = sys.stdout
    if own:
        kept.flush()
        kept = open(saved, "w", encoding=kept.encoding, errors=kept.errors)  # noqa: SIM115
        os.dup2(2, 1)
    _ANSWERS.append(kept)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _ANSWERS.pop()
        if own:
            os.dup2(saved, 1)
            with suppress(OSError):  # what a closed pipe does not take is an error already
                kept.close()


def printed(text: str | Iterable[str]) -> None:
    """Print text, whole or in pieces, on the stream of answers, each piece as soon as it is made;
    Failed if it cannot be written, BrokenPipeError if the reader of a pipe has closed it: the
    pieces that follow are then not made."""
    stream = answers()
    try:
        for piece in [text] if isinstance(text, str) else text:
            stream.write(piece)
            stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Failed(f"standard output: {error.strerror}") from None


LONGEST_SENTENCE = 2000
"""The most characters of a sentence that `complain` prints."""


def complain(sentence: str) -> int:
    """Print `costmodel: SENTENCE` on standard error, one of more than `LONGEST_SENTENCE` characters
    without its middle; returns `MISUSED`, 2, whether it is printed or not."""
    said = short_words(" ".join(sentence.split()))
    if (left_out := len(said) - LONGEST_SENTENCE) > 0:
        half = LONGEST_SENTENCE // 2
        said = f"{said[:half]} ... ({left_out:,} characters left out) ... {said[-half:]}"
    with suppress(OSError, ValueError):  # standard error is closed
        sys.stderr.write(f"{wrapped(f'costmodel: {harmless(said)}')}\n")
    return MISUSED


def wrapped(sentence: str) -> str:
    """A sentence in lines that fit the terminal of standard error, or COLUMNS where it is set; in
    one line for a pipe or a file without COLUMNS."""
    width = whole_number(os.environ.get("COLUMNS", ""))
    if width is None:
        if not sys.stderr.isatty():
            return sentence
        width = os.get_terminal_size(sys.stderr.fileno()).columns
    return textwrap.fill(sentence, width or 80, break_long_words=False, break_on_hyphens=False)


# Files


@contextmanager
def written_whole(output: Path) -> Iterator[Path]:
    """A temporary path to write to, which replaces the file `output` after a successful block and
    is deleted otherwise. A device or a pipe is written directly.

    Raises:
        OSError: the file cannot be created; the error names the file.
        Failed: the file could not be written; a previous file is unchanged.
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
            said = error.strerror
            if not file.parent.exists():
                said = f"there is no folder {output.parent} to write to: make it first"
            raise OSError(error.errno, said, str(output)) from None
        beside = Path(name)
        try:
            os.fchmod(handle, file.stat().st_mode if file.exists() else 0o666 & ~_umask())
            with _named(output):  # an OSError becomes Failed
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
    """A `with` block that writes to `output`: an OSError becomes Failed, which names `output`."""
    try:
        yield
    except OSError as error:
        raise Failed(f"{output} is not written: {error.strerror}") from None


def _umask() -> int:
    """The permission bits that a new file of this process does not get."""
    bits = os.umask(0)
    os.umask(bits)
    return bits


# Interrupts


def end(*_: Any) -> None:
    """A signal handler: end the process with `INTERRUPTED`; no derived answer needs to be saved."""
    os._exit(INTERRUPTED)


@contextmanager
def interruptible() -> Iterator[None]:
    """A context in which Ctrl-C raises KeyboardInterrupt, so that code can save or clean up; after
    the block Ctrl-C has the handler that it had before."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
