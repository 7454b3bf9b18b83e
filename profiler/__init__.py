"""What do the mixers, as real PyTorch modules, execute and cost on this machine?"""


def __getattr__(name: str) -> object:
    """`profiler.trace`, loaded when it is first asked for: it imports torch."""
    if name == "trace":
        from profiler.tracing import trace

        return trace
    raise AttributeError(f"module 'profiler' has no attribute '{name}'")
