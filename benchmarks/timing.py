"""How long do things take, side by side in one run, and on what machine?"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata


def environment(*packages: str) -> str:
    """Python, processors and versions, in one line; nothing that names the machine."""
    versions = [f"{name} {metadata.version(name)}" for name in packages]
    system = f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs"
    return ", ".join([f"Python {platform.python_version()}", system, *versions])


def interleaved(tasks: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each task, `repeats` times in turn, after one run of each that does not count."""
    for task in tasks.values():
        task()
    found: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(repeats):
        for name, task in tasks.items():
            start = time.perf_counter()
            task()
            found[name].append(time.perf_counter() - start)
    return found


def spread(samples: Sequence[float]) -> str:
    """The median with the quartiles, in milliseconds."""
    low, median, high = statistics.quantiles(samples, n=4)
    return f"{median * 1e3:9.3f} ms  ({low * 1e3:.3f} to {high * 1e3:.3f})"


def ratio(samples: Sequence[float], reference: Sequence[float]) -> float:
    """The median of one over the median of the other."""
    return statistics.median(samples) / statistics.median(reference)


@contextmanager
def spinning() -> Iterator[int]:
    """Twice as many processes as processors compute meanwhile; how many that are."""
    from profiler.meters.disturbances import processors

    spin = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(spin) for _ in range(2 * len(processors()))]
    try:
        yield len(others)
    finally:
        for other in others:
            other.kill()
            other.wait()
