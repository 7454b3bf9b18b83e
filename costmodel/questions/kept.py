"""A cache on disk of the answers that earlier commands derived about built-in mixers.

The keys are a digest of the sources that decide an answer, the mixer's name, the form, the phase,
the convention and the question; one sqlite file holds all answers. A broken file is deleted, a file
that cannot be written is left alone, and several processes may share the file. Commands open the
cache (`keep_in`); a Python program that imports costmodel derives all answers. A command that needs
many new answers derives them in several processes (`ahead`).
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import pickle
import signal
import sqlite3
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from costmodel.language.equations import Form, Mixer, System
from costmodel.language.nodes import Array
from costmodel.language.options import joined

T = TypeVar("T")

SOURCES = ("symbolic", "language", "program", "paths", "adjoint", "questions", "mixers")
"""The folders of costmodel whose files decide an answer."""

MOST_BYTES = 64 * 2**20
"""A file that is larger than this is removed before new answers are added."""

WAITING_S = 1.0
"""How long a process waits for a lock that another process holds on the file."""


def place() -> Path:
    """The path of the cache: costmodel/answers.sqlite below $XDG_CACHE_HOME or ~/.cache."""
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(caches) / "costmodel" / "answers.sqlite"


def fingerprint(root: Path = Path(__file__).parents[1], folders: Sequence[str] = SOURCES) -> str:
    """A SHA-256 digest of the Python version and of the files in the `folders` of `root`, as hex
    digits: answers that other sources gave are not read."""
    digest = hashlib.sha256(sys.version.encode())
    for file in sorted(file for folder in folders for file in (root / folder).rglob("*.py")):
        digest.update(f"{file.relative_to(root)}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


class Store:
    """The answers in one file that were derived by the sources that this process runs."""

    def __init__(self, file: Path) -> None:
        """A store of answers in a sqlite `file`; those of the present source code are read at
        once."""
        self.file = file
        self.sources = fingerprint()
        self.new: dict[str, bytes] = {}
        """Key -> answer (its digest, then its pickle) derived here, for `write`."""
        self.known = self._read()  # key -> answer, of the file and of forked processes
        self._keys: list[str] = []

    def _read(self) -> dict[str, bytes]:
        """A dict: key -> answer (pickled), as the file holds them for the present source code; {}
        for a file that is missing, locked, broken or without the table. A broken one is deleted."""
        if not self.file.exists():
            return {}
        try:
            with self._open() as opened:
                found = opened.execute(
                    "SELECT key, answer FROM answers WHERE sources = ?", (self.sources,)
                )
                return dict(found.fetchall())
        except sqlite3.OperationalError:  # locked, unreadable or no table; a DatabaseError too
            return {}
        except sqlite3.DatabaseError:  # the file is broken, or no sqlite file
            self._remove()
            return {}

    def keys(self) -> list[str]:
        """The keys of the known answers, sorted."""
        if len(self._keys) != len(self.known):
            self._keys = sorted(self.known)
        return self._keys

    def write(self) -> None:
        """Add the answers in `new` to the file, which is removed first if larger than `MOST_BYTES`.
        A file that cannot be written stays as it is; a broken one is deleted, `new` not written."""
        if not self.new:
            return
        try:
            self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self.file.exists() and self.file.stat().st_size > MOST_BYTES:
                self._remove()  # sqlite's DELETE leaves a file as large as it was
            with self._open() as opened, opened:
                # no wait for the disk: a file that a crash of the system broke is rebuilt
                opened.execute("PRAGMA synchronous = OFF")
                opened.execute(
                    "CREATE TABLE IF NOT EXISTS answers"
                    " (sources TEXT, key TEXT, answer BLOB, PRIMARY KEY (sources, key))"
                )
                rows = [(self.sources, key, answer) for key, answer in self.new.items()]
                opened.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", rows)
        except sqlite3.OperationalError:
            return
        except sqlite3.DatabaseError:
            self._remove()
        except (OSError, MemoryError):
            return

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """A connection to the file, which is closed at the end."""
        opened = sqlite3.connect(self.file, timeout=WAITING_S)
        try:
            yield opened
        finally:
            opened.close()

    def _remove(self) -> None:
        with contextlib.suppress(OSError):
            self.file.unlink()


_store: Store | None = None


def keep_in(file: Path | None) -> None:
    """Use `file` as the cache of this process; None turns the cache off."""
    global _store
    _store = None if file is None else Store(file)


def write() -> None:
    """Add the answers that this process derived to the cache, if the cache is on."""
    if _store is not None:
        _store.write()


MOST_PROCESSES = 4
"""The most processes that share the work of a command, each with a copy of its memory."""


def usable_processes() -> int:
    """The number of processes that share the work of a command: one for each processor that this
    process may use, at most `MOST_PROCESSES`."""
    if hasattr(os, "sched_getaffinity"):
        return min(len(os.sched_getaffinity(0)), MOST_PROCESSES)
    return min(os.cpu_count() or 1, MOST_PROCESSES)


def ahead(tasks: Sequence[Callable[[], object]]) -> None:
    """Carry out tasks (functions whose results are not used) so that the cache has the answers that
    the tasks ask for: in several processes, if processes can be forked. An answer of a task that no
    process carried out is derived when it is asked for. Without a cache, nothing happens. `others`
    has a pair per forked process: its id, and the descriptor of a file with its new answers."""
    if _store is None:
        return
    number = min(usable_processes(), len(tasks)) if hasattr(os, "fork") else 1
    others = []
    try:
        with contextlib.suppress(OSError):  # the system forks no more processes
            for k in range(1, number):
                others.append(_forked(_store, tasks[k::number]))
        for task in tasks[::number]:
            task()
    except BaseException:
        for process, _ in others:
            os.kill(process, signal.SIGTERM)
            os.waitpid(process, 0)
        raise
    for process, answers in others:
        with open(answers, "rb") as sent, contextlib.suppress(EOFError, pickle.UnpicklingError):
            new: dict[str, bytes] = pickle.load(sent)
            _store.new |= new
            _store.known |= new
        os.waitpid(process, 0)


def _forked(store: Store, tasks: Sequence[Callable[[], object]]) -> tuple[int, int]:
    """Begin a process that carries out tasks: (its number, the file descriptor from which the
    answers that the process adds to the store are read). A process that fails sends nothing."""
    answers, sent = os.pipe()
    try:
        process = os.fork()
    except OSError:
        os.close(answers)
        os.close(sent)
        raise
    if process:
        os.close(sent)
        return process, answers
    try:
        for task in tasks:
            task()
        with open(sent, "wb") as into:
            pickle.dump(store.new, into)
    finally:  # after an error too, the process neither returns to the caller nor runs exit handlers
        os._exit(0)


def kept(mixer: Mixer | None, key: str, derive: Callable[[], T]) -> T:
    """The answer in the cache about a built-in mixer, or about all of them (None), under `key`: the
    form, the phase, the convention and the question, such as "direct training strict
    costmodel.questions.count.counted". If there is none that can be read, the result of `derive`,
    which joins the cache unless it holds equations. Without a cache, and for a user's own mixer,
    always the result of `derive`."""
    if _store is None or (mixer is not None and not mixer.builtin):
        return derive()
    key = _about(mixer, key)
    written = _store.known.get(key)
    if written is not None and written[:DIGEST] == _digest(_store.sources, key, written[DIGEST:]):
        with contextlib.suppress(Exception):  # an answer that cannot be read is derived again
            found: T = _Reader(written[DIGEST:], mixer).load()
            return found
    answer = derive()
    with contextlib.suppress(_HoldsEquations):
        pickled = _written(answer, mixer)
        _store.new[key] = _digest(_store.sources, key, pickled) + pickled
    return answer


def knows(mixer: Mixer, key: str) -> bool:
    """Whether the cache has an answer about a mixer whose key begins with `key`; True without a
    cache, and for a user's own mixer, since the cache is then of no use."""
    if _store is None or not mixer.builtin:
        return True
    beginning = _about(mixer, key)
    keys = _store.keys()
    place = bisect_left(keys, beginning)
    return place < len(keys) and keys[place].startswith(beginning)


def _about(mixer: Mixer | None, key: str) -> str:
    """The key of an answer in the file: `key` behind the mixer's name with its options."""
    if mixer is None:
        return key
    # an h in braces makes answers formulas in h, not d/n; other sizes in braces change no formula
    free = "{h}" if "h" in mixer.given else ""
    return f"{joined(mixer.base, mixer.options)}{free} {key}"


DIGEST = 32
"""Bytes of the digest that stands before each answer in the file."""


def _digest(sources: str, key: str, pickled: bytes) -> bytes:
    """A SHA-256 digest of an answer and its keys, by which a damaged answer is recognised."""
    return hashlib.sha256(f"{sources}\0{key}\0".encode() + pickled).digest()


class _HoldsEquations(Exception):
    """The answer contains a form, system, array or other mixer: the cache does not hold it."""


def the_mixer() -> Mixer:
    """Stand for the mixer in a written answer: `_Reader` calls a function that returns the mixer in
    its place. Called itself, it raises UnpicklingError."""
    raise pickle.UnpicklingError(
        "an answer was read without `_Reader`, which puts its mixer in place"
    )


class _Writer(pickle.Pickler):
    """Pickles an answer, with `the_mixer` in place of the mixer itself; an answer with a form,
    system, array or other mixer raises _HoldsEquations."""

    def __init__(self, into: io.BytesIO, mixer: Mixer | None) -> None:
        super().__init__(into, pickle.HIGHEST_PROTOCOL)
        self.mixer = mixer
        self.dispatch_table = dict.fromkeys((Mixer, Form, System, Array), self._replaced)

    def _replaced(self, value: object) -> tuple[Callable[[], Mixer], tuple[()]]:
        if value is not self.mixer:
            raise _HoldsEquations
        return the_mixer, ()


ALSO_READ = {
    ("builtins", "frozenset"),
    ("costmodel.questions.subject", "_fits"),
    ("fractions", "Fraction"),
    ("functools", "partial"),
}
"""(module, name) of the functions and the foreign classes that written answers contain."""


class _Reader(pickle.Unpickler):
    """Reads an answer that `_Writer` wrote."""

    def __init__(self, written: bytes, mixer: Mixer | None) -> None:
        super().__init__(io.BytesIO(written))
        self.mixer = mixer

    def find_class(self, module: str, name: str) -> Any:
        """The object that a name in a pickled answer stands for: a class of this package, one of
        `ALSO_READ`, or for `the_mixer` a function that returns the mixer. Any other name raises
        UnpicklingError, so that a file cannot call other code."""
        if (module, name) == (__name__, the_mixer.__name__):
            return lambda: self.mixer
        if (module, name) in ALSO_READ:
            return super().find_class(module, name)
        if module.startswith("costmodel."):
            found = super().find_class(module, name)
            if isinstance(found, type) and found.__module__ == module:
                return found
        raise pickle.UnpicklingError(f"{module}.{name}: expected a class of costmodel")


def _written(answer: object, mixer: Mixer | None) -> bytes:
    into = io.BytesIO()
    _Writer(into, mixer).dump(answer)
    return into.getvalue()
