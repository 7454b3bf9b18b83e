"""The costs of any nn.Module as formulas in its sizes, found by running it without data."""

from profiler.tracing.meta_run.target import TraceError
from profiler.tracing.result import Trace
from profiler.tracing.trace import trace

__all__ = ["Trace", "TraceError", "trace"]
