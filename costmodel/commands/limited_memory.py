"""Where `ulimit -v` limits memory, a library may end the process that it runs in; is this told?"""

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
    """Return in a forked process where the address space has a limit, and at once without a limit;
    the returned function is to be called when the command has ended by itself.

    The process that forked waits, passes SIGTERM on and exits as the other process does, with a
    sentence on standard error if a library ended that process (`std::bad_alloc`, an exit of
    OpenBLAS or libgomp), which no `except` catches.
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
