"""Which path through torch does a count assume: its decompositions, or fused operations?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from profiler.tracing.fused import FusedMode
from profiler.tracing.observe import Backend, Recorder, math_backend


@contextmanager
def fused_backend(recorder: Recorder) -> Iterator[None]:
    """Attention, recurrent cells and norms as one operation each; all else as `math`."""
    with math_backend(recorder), FusedMode(recorder).inside():
        yield


BACKENDS: Mapping[str, Backend] = {"math": math_backend, "fused": fused_backend}
"""Name -> the context in which a module runs."""
