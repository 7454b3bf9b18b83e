"""What does any nn.Module cost, as formulas in its sizes, counted by running it on no data?"""

from profiler.tracing.meta_run.target import TraceError
from profiler.tracing.result import Trace
from profiler.tracing.trace import trace

__all__ = ["Trace", "TraceError", "trace"]
