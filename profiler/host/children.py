"""Runs a command in a child process, with a limit of time."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from profiler.host.system import pathless


@dataclass(frozen=True)
class ChildExit:
    """The exit status of a child process (None: killed at its time limit), and its output."""

    status: int | None
    text: str = ""


def run_child(words: Sequence[str], seconds: float, variables: Mapping[str, str]) -> ChildExit:
    """Run a command, and return its exit status and output; kill it and its child processes after
    `seconds`, or on an interrupt. A command that cannot be started has the status 127, and the
    reason as its output.

    `variables` are added to the environment; "{folder}" in them stands for a temporary folder.
    """
    with tempfile.TemporaryDirectory() as folder:
        own = {name: value.replace("{folder}", folder) for name, value in variables.items()}
        try:
            started = subprocess.Popen(
                list(words),
                env={**os.environ, **own},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            return ChildExit(127, error.strerror or "it cannot be started")
        try:
            text, _ = started.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            return ChildExit(None, stopped(started))
        except BaseException:  # an interrupt from the keyboard reaches this process alone
            stopped(started)
            raise
        return ChildExit(started.returncode, text)


LAST_WORDS_S = 5.0
"""Seconds to read the output of a killed process. The read may block longer, as a descendant that
left the session keeps the pipe open."""


def stopped(started: subprocess.Popen[str]) -> str:
    """Kill the process group of a process; return its output, "" if a pipe stays open."""
    os.killpg(started.pid, signal.SIGKILL)
    try:
        return started.communicate(timeout=LAST_WORDS_S)[0]
    except subprocess.TimeoutExpired:
        if started.stdout is not None:
            started.stdout.close()
        started.wait()
        return ""


def last_line(done: ChildExit) -> str:
    """The last line of a process's output that reports an error, or else its last line; of a path
    the last part alone (`pathless`), and with the exit status."""
    lines = [line.strip() for line in done.text.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line or "==ERROR==" in line]
    said = (errors or lines or ["it said nothing"])[-1]
    return f"{pathless(said)} (exit status {done.status})"
