"""The networks of `costmodel.networks` as PyTorch modules, called twins."""

from profiler.networks.twin import TwinError, block_twin, twin

__all__ = ["TwinError", "block_twin", "twin"]
