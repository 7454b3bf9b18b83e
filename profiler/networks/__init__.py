"""How is a network of `costmodel.networks` run in PyTorch? By its twin, a torch module."""

from profiler.networks.twin import TwinError, twin

__all__ = ["TwinError", "twin"]
