"""How do the time and the memory of a trace grow with the layers of a model?

    python -m benchmarks.traced_depth [LAYERS...]

So many `nn.TransformerEncoderLayer`, forward and backward, as formulas in the length, the heads and
their width. Every depth is traced in a process of its own: seconds of CPU without what Python and
torch take to start, the most memory that the process held, and at how many sizes formulas were
found from runs and proven on others.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time
from collections.abc import Callable

from torch import nn

from benchmarks.timing import environment
from profiler.tracing import trace

DEPTHS = (6, 50, 200, 400)


def encoder(layers: int) -> Callable[[int, int], nn.Module]:
    """What makes so many layers of n heads and width d."""

    def make(d: int, n: int) -> nn.Module:
        layer = nn.TransformerEncoderLayer(d, n, 4 * d, batch_first=True)
        return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    return make


def traced(layers: int) -> str:
    """One line on the trace of so many layers."""
    before = peak_mb()
    started = time.process_time()
    found = trace(encoder(layers), over="l,h,n", let="d=n*h", grad="both")
    seconds = time.process_time() - started
    whole = "whole" if found.complete else "in part"
    return (
        f"{layers:4} layers {seconds:6.1f} s of CPU {peak_mb():5.0f} MB "
        f"({before:.0f} before)  traced {whole}, found from {len(found.fitted)} runs, "
        f"proven on {len(found.proven)}"
    )


def peak_mb() -> float:
    """The most memory that this process has held so far, in MB."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def main(depths: list[int]) -> None:
    """Trace models of these depths, one after the other."""
    sys.stdout.write(f"{environment('torch')}\n\n")
    fresh = multiprocessing.get_context("spawn")
    for layers in depths or DEPTHS:
        with fresh.Pool(1) as pool:
            sys.stdout.write(f"{pool.apply(traced, (layers,))}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main([int(text) for text in sys.argv[1:]])
