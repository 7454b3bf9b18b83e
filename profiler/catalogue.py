"""Which implementations are there, by name, without importing PyTorch?

`profiler.modules` describes them; a test holds the two equal.
"""

from __future__ import annotations

from collections.abc import Mapping

IMPLEMENTATIONS: Mapping[str, tuple[str, ...]] = {
    "self-attention": ("explicit", "sdpa"),
    "she": ("direct", "conv", "fft"),
    "she-no-output": ("direct", "conv", "fft"),
    "she-extraction": ("direct", "conv", "fft"),
    "he": ("toeplitz", "fft"),
    "he-extraction": ("toeplitz", "fft"),
    "we": ("toeplitz", "fft"),
    "me": ("toeplitz", "fft"),
}
"""Mixer -> its implementations, the default first."""
