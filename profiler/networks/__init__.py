"""A PyTorch twin of every network of `costmodel.networks`."""

from profiler.networks.twin import TwinError, twin

__all__ = ["TwinError", "twin"]
