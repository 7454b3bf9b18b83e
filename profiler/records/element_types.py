"""The element types that are measured, by their short names and by torch's."""

from __future__ import annotations

from collections.abc import Mapping

from profiler.records.reading import MeasureError

SHORT: Mapping[str, str] = {
    "float64": "fp64", "float32": "fp32", "bfloat16": "bf16", "float16": "fp16",
}  # fmt: skip
"""torch's name -> the short name."""


def dtype_name(name: str) -> str:
    """The short name of a dtype, such as fp32 for float32; MeasureError lists the choices."""
    short = SHORT.get(name, name)
    if short not in SHORT.values():
        raise MeasureError(f"unknown dtype '{name}': expected one of {', '.join(SHORT.values())}")
    return short
