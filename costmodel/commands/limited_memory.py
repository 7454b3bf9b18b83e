"""A sentence for a process that a library ends because `ulimit -v` limits its memory."""

from __future__ import annotations

import mmap
import os
import signal
import sys
from collections.abc import Callable

from costmodel.commands.streams import FAILED, INTERRUPTED, complain
from costmodel.errors import limit_words

CRASHES = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS)


def watched(command: str) -> Callable[[], object]:
    """Fork, if the address space has a limit (`ulimit -v`): the child returns and carries the
    command out, while the parent waits, passes SIGTERM on and exits with the child's exit code. If
    a library ended the child (`std::bad_alloc`, an exit of OpenBLAS or libgomp), which no `except`
    catches, the parent prints a sentence on standard error and exits with `FAILED`. Without a limit
    nothing is forked.

    Returns a function to be called when the command has ended by itself.
    """
    if not limit_words():
        return bool  # a function that does nothing
    by_itself = mmap.mmap(-1, 1)  # a byte that both processes share
    child = os.fork()
    if not child:
        return lambda: by_itself.write(b".")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    ended = by_itself[0] or code in (0, INTERRUPTED)
    crashed = not ended and (code > 0 or -code in CRASHES)
    if crashed:
        complain(f"a library that {command} needs ended the process: {limit_words()}")
    sys.stderr.flush()
    os._exit(FAILED if crashed else code if code >= 0 else 128 - code)
