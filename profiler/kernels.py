"""Which kernel class carries each equation where an implementation does not say?"""

from __future__ import annotations

from collections.abc import Mapping

from costmodel.equations import Composite, Equation, Fft, Mixer, Mul, Reduce, walk


def default_kernels(mixer: Mixer, form: str) -> Mapping[str, str]:
    """Array name -> kernel class, from the shape of its equation."""
    return {e.array.name: _class_of(e) for e in mixer.forms[form].equations}


def _class_of(equation: Equation) -> str:
    parts = [part for part, _ in walk(equation.value)]
    if any(isinstance(part, Fft) for part in parts):
        return "fft"
    if any(isinstance(part, Composite) and part.name == "softmax" for part in parts):
        return "softmax"
    sums = [part for part in parts if isinstance(part, Reduce)]
    if any(isinstance(inner, Mul) for part in sums for inner, _ in walk(part.body)):
        return "contraction"
    return "reduction" if sums else "elementwise"
