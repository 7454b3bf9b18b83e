"""The networks of `costmodel.networks` as PyTorch modules, called twins."""

from profiler.networks.twin import TwinError, twin

__all__ = ["TwinError", "twin"]
